"""An ONNX model in plain Python: what is left of a file once protocol buffers are out of the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx
import numpy.typing as npt
from onnx import NodeProto, helper

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OnnxNode:
    """One operator."""

    # unique in the model; the file's own name where it has one, else that of the first output
    name: str
    # operator, with its domain in front unless that is ONNX's own: "Conv", "com.microsoft.Gelu"
    op: str
    # tensors; "" where an optional one is left out
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    # the module whose weights it has, if names tell: "layer1.0.conv1"
    module: str = ""

    @property
    def label(self) -> str:
        """What to name its layer after."""
        return self.module or self.name

    def __str__(self) -> str:
        return f"node {self.name} ({self.op})"

    def to_proto(self) -> NodeProto:
        """The protocol buffer again, for ONNX's own tools."""
        domain, _, op = self.op.rpartition(".")
        return helper.make_node(op, self.inputs, self.outputs, self.name, domain=domain or None, **self.attributes)

    @staticmethod
    def from_proto(proto: NodeProto, name: str, module: str = "") -> OnnxNode:
        """A node under the name ``name``; attributes as Python values and `TensorProto`."""
        op = f"{proto.domain}.{proto.op_type}" if proto.domain not in ("", "ai.onnx") else proto.op_type
        attributes = {item.name: _attribute(item) for item in proto.attribute}
        return OnnxNode(name, op, tuple(proto.input), tuple(proto.output), attributes, module)


def _attribute(item: Any) -> Any:
    try:
        value = helper.get_attribute_value(item)
    except ValueError:
        # of no known type: nothing reads it, and what is left unread is named to the user
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(value) if isinstance(value, list | tuple) or hasattr(value, "append") else value


@dataclass(frozen=True)
class OnnxModel:
    """One image in, one tensor out, nodes in between, constants known."""

    # of the graph to be made
    name: str
    # as the user named it
    file: str
    opset: int
    nodes: tuple[OnnxNode, ...]
    # initialisers and folded values
    constants: Mapping[str, Array]
    # name of the one input
    image: str
    # (batch, channels, height, width)
    image_shape: tuple[int, int, int, int]
    # names of results; one in the end
    outputs: tuple[str, ...]
    # what was dropped or changed and the user may want to know
    notes: tuple[str, ...] = ()

    @cached_property
    def producers(self) -> dict[str, OnnxNode]:
        """Tensor -> node."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each tensor is read, as a result included."""
        return Counter([name for node in self.nodes for name in node.inputs if name] + list(self.outputs))

    def readers(self, tensor: str) -> tuple[OnnxNode, ...]:
        """Nodes that read a tensor."""
        return tuple(node for node in self.nodes if tensor in node.inputs)


def sort_nodes(nodes: Iterable[OnnxNode]) -> tuple[tuple[OnnxNode, ...], str]:
    """(nodes in topological order, ties in the given order; "") or (nodes as given; a cycle in words)."""
    given = tuple(nodes)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(given)))
    producer = {name: index for index, node in enumerate(given) for name in node.outputs if name}
    for index, node in enumerate(given):
        graph.add_edges_from((producer[name], index) for name in node.inputs if name in producer)
    try:
        return tuple(given[index] for index in nx.lexicographical_topological_sort(graph)), ""
    except nx.NetworkXUnfeasible:
        cycle = [given[edge[0]].name for edge in nx.find_cycle(graph)]
        return given, " -> ".join([*cycle, cycle[0]])
