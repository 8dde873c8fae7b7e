"""An ONNX model in plain Python: what is left of a file once protocol buffers are out of the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import networkx as nx
import numpy.typing as npt
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

Array = npt.NDArray[Any]

# operator of a node whose results can't be known, because of a problem that is told already; what follows from that
# reports nothing.  An attribute "shape" tells the shape of its first result, where that is known
LOST = "dagtrain.Lost"


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
        node = helper.make_node(op, self.inputs, self.outputs, self.name, domain=domain or None)
        for key, value in sorted(self.attributes.items()):
            # a list of nothing has no type; all that ONNX's operators take empty are lists of whole numbers
            kind = AttributeProto.INTS if isinstance(value, list) and not value else None
            if value is not None:
                node.attribute.append(helper.make_attribute(key, value, attr_type=kind))
        return node

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
    if isinstance(value, TensorProto | GraphProto):
        # a part of a message keeps all of it in memory, weights included
        alone = type(value)()
        alone.CopyFrom(value)
        return alone
    return list(value) if isinstance(value, list | tuple) or hasattr(value, "append") else value


@dataclass(frozen=True)
class OnnxModel:
    """One image in, class scores out, nodes in between, constants known."""

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
    # as the file sees the image: (batch, channels, height, width), (batch, height, width) or (batch, features)
    image_shape: tuple[int, ...]
    # name of the result
    output: str
    # what was dropped or changed and the user may want to know
    notes: tuple[str, ...] = ()
    # scores of auxiliary heads, which are trained as well
    heads: tuple[str, ...] = ()
    # idioms that were rewritten, one entry an instance
    rewritten: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[str, ...]:
        """All scores that a loss reads, the main head's first."""
        return (self.output, *self.heads)

    @property
    def image_map(self) -> tuple[int, int, int]:
        """(channels, height, width) of the image: without channels it has one, features are channels of one pixel."""
        match self.image_shape[1:]:
            case (channels, height, width):
                return channels, height, width
            case (height, width):
                return 1, height, width
            case (features,):
                return features, 1, 1
        raise AssertionError(f"an image of shape {self.image_shape} was let in")

    @cached_property
    def producers(self) -> dict[str, OnnxNode]:
        """Tensor -> node."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each tensor is read, as a result included."""
        return Counter([name for node in self.nodes for name in node.inputs if name] + list(self.results))

    @cached_property
    def _readers(self) -> dict[str, list[OnnxNode]]:
        found: dict[str, list[OnnxNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node)
        return found

    def readers(self, tensor: str) -> tuple[OnnxNode, ...]:
        """Nodes that read a tensor."""
        return tuple(self._readers.get(tensor, ()))

    def noted(self, *notes: str) -> OnnxModel:
        """With more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def live(self) -> OnnxModel:
        """Without nodes that don't lead to a result, and without constants that nobody reads."""
        nodes = leading_to(self.results, self.nodes)
        read = {*self.results, *(name for node in nodes for name in node.inputs)}
        return replace(
            self, nodes=nodes, constants={name: self.constants[name] for name in self.constants if name in read}
        )


def leading_to(results: Iterable[str], nodes: Iterable[OnnxNode]) -> tuple[OnnxNode, ...]:
    """Those of the nodes that some result needs, in their order."""
    given = tuple(nodes)
    producers = {name: index for index, node in enumerate(given) for name in node.outputs if name}
    needed: set[int] = set()
    waiting = list(results)
    while waiting:
        index = producers.get(waiting.pop())
        if index is not None and index not in needed:
            needed.add(index)
            waiting.extend(name for name in (*given[index].inputs, *captured(given[index])) if name)
    return tuple(given[index] for index in sorted(needed))


def captured(node: OnnxNode) -> tuple[str, ...]:
    """Tensors that the graphs inside a node read from outside: the branches of an If."""
    graphs = [value for value in node.attributes.values() if isinstance(value, GraphProto)]
    return tuple(name for graph in graphs for name in _free(graph))


def _free(graph: GraphProto) -> list[str]:
    inside = {tensor.name for tensor in graph.initializer} | {name for node in graph.node for name in node.output}
    return [name for node in graph.node for name in node.input if name and name not in inside]


def sort_nodes(nodes: Iterable[OnnxNode]) -> tuple[tuple[OnnxNode, ...], str]:
    """(nodes in topological order, ties in the given order; "") or (nodes as given; a cycle in words)."""
    given = tuple(nodes)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(given)))
    producer = {name: index for index, node in enumerate(given) for name in node.outputs if name}
    for index, node in enumerate(given):
        graph.add_edges_from((producer[name], index) for name in (*node.inputs, *captured(node)) if name in producer)
    try:
        return tuple(given[index] for index in nx.lexicographical_topological_sort(graph)), ""
    except nx.NetworkXUnfeasible:
        cycle = [given[edge[0]].name for edge in nx.find_cycle(graph)]
        return given, " -> ".join([*cycle, cycle[0]])
