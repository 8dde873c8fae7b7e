"""Add and Sum: where branches join; with a constant vector, a bias; with one number, a constant."""

from __future__ import annotations

from dagtrain.graph.ir import Node
from hdl.layers.pointwise.add import Add
from hdl.layers.pointwise.bias import Bias
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.per_channel import per_channel
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("Add")
def add(node: OnnxNode, state: Lowering) -> None:
    """Two maps, or a map and one number a channel."""
    Attributes(node).finish()
    for index in range(2):
        if state.is_constant(node, index):
            _add_constant(node, state, index)
            return
    state.give(node, _sum(node, state, state.value(node, 0), state.value(node, 1)))


@handles("Sum")
def total(node: OnnxNode, state: Lowering) -> None:
    """Any number of maps, from the left."""
    Attributes(node).finish()
    values = [state.value(node, index) for index in range(len(node.inputs))]
    result = values[0]
    for other in values[1:]:
        result = _sum(node, state, result, other)
    state.give(node, result)


def _sum(node: OnnxNode, state: Lowering, a: Value, b: Value) -> Value:
    if a.map != b.map or a.shape != b.shape:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        raise Unsupported(f"adds tensors of shapes {shapes}", "broadcasting is not supported: shapes must be equal")
    height, width, channels = a.map
    layer = Add(height=height, width=width, channels=channels)
    return state.emit(node, layer, {"a": a, "b": b}, view=a.shape)


def _add_constant(node: OnnxNode, state: Lowering, index: int) -> None:
    x = state.value(node, 1 - index)
    height, width, channels = x.map
    constant = state.weight(node, index)
    values = per_channel(x, constant)
    # one number for many channels is no parameter of theirs, and what prepares the data is none at all
    frozen = constant.size < channels or not state.learns(x)
    layer = Bias(height=height, width=width, channels=channels, recipe=state.recipe, frozen=frozen)
    state.give(node, state.emit(node, layer, {"x": x}, {"b": values}, view=x.shape))


@writes(Add)
def write_add(node: Node, state: Writing) -> None:
    """As it is."""
    state.add(node, "Add")


@writes(Bias)
def write_bias(node: Node, state: Writing) -> None:
    """The bias of a convolution before it; else an addition."""
    values = state.value(node, "b")
    vector = state.constant(node, "bias", values)
    if not state.absorb(node, "Conv", 2, vector):
        state.add(node, "Add", state.tensor(node), state.constant(node, "map", values.reshape(-1, 1, 1)))
