"""The way back: a forward graph with trained weights as an ONNX model, one writer a layer (`handlers`).

Maps are (N, C, H, W) throughout and keep the names of their edges; weights are float32, in which the hardware's codes
are exact.  The result of the model is what the loss reads, flattened to (N, classes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from dagtrain.graph.heads import main_loss
from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.passes.exchange import named
from hdl.errors import DagtrainError
from hdl.fixed import FloatArray
from hdl.layers.meaning import State

OPSET, IR_VERSION = 20, 9
# names of the input and of the result
IMAGE, SCORES = "image", "scores"
# roles of nodes that hand on what they read
PASSING = frozenset({Role.FORK, Role.RELAY, Role.COUNTER})
# of the first of several copies
FIRST_COPY = named("", 0)


class ExportError(DagtrainError):
    """A graph that can't be written as ONNX."""


@dataclass
class Writing:
    """The model in the making; what writers see of the world."""

    graph: Graph
    # values of weights, by key of `Graph.parameters`
    values: Mapping[str, FloatArray]
    # of every node, as the emulator left it
    states: Mapping[str, State]
    # edge -> tensor, where that has another name
    names: Mapping[str, str] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        layers = forward_layers(self.graph)
        self._reads = Counter(self._source(edge) for node in layers for edge in node.inputs.values())

    def tensor(self, node: Node, sink: str = "x") -> str:
        """The name of the map that a layer reads."""
        return self._source(node.inputs[sink])

    def value(self, node: Node, sink: str) -> FloatArray:
        """A trained weight of a layer."""
        return self.values[node.parameters[sink]]

    def constant(self, node: Node, name: str, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """An initialiser ``<node>.<name>``; returns its name."""
        full = f"{own_name(node)}.{name}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype, order="C"), full))
        return full

    def add(self, node: Node, op: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> None:
        """An operator under a layer's name, that reads its maps and makes its source y unless others are given.

        One of several operators of a layer is named after what it makes."""
        read = inputs or tuple(self.tensor(node, sink.name) for sink in node.layer.sinks)
        name = outputs[0] if outputs and outputs[0] else own_name(node)
        self.nodes.append(helper.make_node(op, read, outputs or [node.outputs["y"]], name, **attributes))

    def absorb(self, node: Node, op: str, inputs: int, constant: str) -> bool:
        """Lets the operator that makes what a layer reads do that layer's work, by one more constant as its input.

        Only if it is ``op``, has so many inputs as yet, and nobody else reads what it makes; returns whether it did."""
        read = self.tensor(node)
        for before in self.nodes:
            if before.output[0] == read and self._reads[read] == 1:
                if before.op_type != op or len(before.input) != inputs:
                    return False
                before.input.append(constant)
                before.output[0] = node.outputs["y"]
                return True
        return False

    def _source(self, edge: str) -> str:
        """The tensor on an edge: what its layer made, before forks, relays and counters, and ends of copies."""
        producer, _ = self.graph.producers[edge]
        while (handed_on := _handed_on(producer)) is not None:
            edge = handed_on
            producer, _ = self.graph.producers[edge]
        return self.names.get(edge, edge)


def own_name(node: Node) -> str:
    """What a layer is called, one of which stands for all copies."""
    return node.name.removesuffix(FIRST_COPY)


def _handed_on(node: Node) -> str | None:
    """The edge whose maps a node hands on; of what copies made, all of which do the same, that of the first.  None
    where it makes maps of its own."""
    first, *_ = (*node.inputs.values(), "")
    if node.role in PASSING:
        return first
    ports = (*node.layer.sinks, *node.layer.sources)
    return first if node.role is Role.DEAL and any(node.layer.dealt(port.name) for port in ports) else None


def write_model(
    graph: Graph, values: Mapping[str, FloatArray], states: Mapping[str, State], notes: Mapping[str, str]
) -> onnx.ModelProto:
    """The main head's forward part of a training graph, with these weights and states, as a model of ONNX.

    ``notes`` become its metadata.  Raises `ExportError` naming all layers that have no way back to ONNX."""
    from importers.onnx.handlers import WRITERS

    layers, loss = forward_layers(graph), main_loss(graph)
    (image,) = (node for node in layers if not node.layer.sinks)
    written = [node for node in layers if node not in (image, loss)]
    lost = [node for node in written if type(node.layer) not in WRITERS]
    if lost:
        raise ExportError.listing(
            f"{graph.name} can't be written as ONNX",
            [f"{node.name} is a {type(node.layer).__name__}, which has no way back" for node in lost],
            "train without these layers",
        )
    state = Writing(graph, values, states, {image.outputs["y"]: IMAGE})
    for node in written:
        WRITERS[type(node.layer)](node, state)
    state.nodes.append(helper.make_node("Flatten", [state.tensor(loss)], [SCORES], SCORES))
    height, width, channels = image.layer.port("y").tensor.shape
    classes = loss.layer.port("x").tensor.shape[-1]
    made = helper.make_graph(
        state.nodes,
        graph.name,
        [helper.make_tensor_value_info(IMAGE, TensorProto.FLOAT, ["N", channels, height, width])],
        [helper.make_tensor_value_info(SCORES, TensorProto.FLOAT, ["N", classes])],
        state.constants,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="dagtrain")
    model.ir_version = IR_VERSION
    helper.set_model_props(model, dict(notes))
    onnx.checker.check_model(model, full_check=True)
    return model


def forward_layers(graph: Graph) -> list[Node]:
    """The layers that the main head's loss depends on, and the loss: auxiliary heads only help to train.  Of copies
    there is the first; between parts of a layer by rows stands what deals rows out and gathers them."""
    loss = main_loss(graph)
    needed, found = {loss.inputs["x"]}, [loss]
    for node in reversed(graph.nodes):
        handed_on = _handed_on(node)
        if not needed.intersection(node.outputs.values()):
            continue
        if handed_on is not None:
            needed.add(handed_on)
        elif node.is_layer or node.role is Role.DEAL:
            needed.update(node.inputs.values())
            found.append(node)
    return found[::-1]
