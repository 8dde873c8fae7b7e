"""Concat: maps side by side, along the channels."""

from __future__ import annotations

from dagtrain.graph.ir import Node
from hdl.layers.wiring.concat import Concat
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("Concat")
def concat(node: OnnxNode, state: Lowering) -> None:
    """Any number of maps, from the left."""
    attributes = Attributes(node)
    axis = attributes.get("axis", None)
    attributes.finish()
    values = [state.value(node, index) for index in range(len(node.inputs))]
    rank = len(values[0].shape)
    if axis is None or axis % rank != 1:
        raise Unsupported(f"joins tensors along axis {axis}", "only axis 1, the channels, is supported")
    result = values[0]
    for other in values[1:]:
        result = _side_by_side(node, state, result, other)
    state.give(node, result)


def _side_by_side(node: OnnxNode, state: Lowering, a: Value, b: Value) -> Value:
    shapes = f"{list(a.shape)} and {list(b.shape)}"
    if (
        len(a.shape) != len(b.shape)
        or (a.shape[:1], a.shape[2:]) != (b.shape[:1], b.shape[2:])
        or a.map[:2] != b.map[:2]
    ):
        raise Unsupported(f"joins tensors of shapes {shapes}", "all but the channels must be equal")
    height, width, a_channels = a.map
    b_channels = b.map[2]
    if (a.shape[1], b.shape[1]) != (a_channels, b_channels):
        raise Unsupported(f"joins flattened maps of shapes {shapes}", "join the maps before Flatten or Reshape")
    layer = Concat(height=height, width=width, a_channels=a_channels, b_channels=b_channels)
    view = (a.shape[0], a_channels + b_channels, *a.shape[2:])
    return state.emit(node, layer, {"a": a, "b": b}, view=view)


@writes(Concat)
def write_concat(node: Node, state: Writing) -> None:
    """Two maps along the channels."""
    state.add(node, "Concat", axis=1)
