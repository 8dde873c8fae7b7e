"""Mul: of two maps, or of a map and one number a channel of each image, as squeeze-and-excitation has it."""

from __future__ import annotations

from dagtrain.graph.ir import Node
from hdl.layers.pointwise.mul import Mul, Scale
from importers.onnx.context import Attributes, Lowering
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("Mul")
def mul(node: OnnxNode, state: Lowering) -> None:
    """Equal shapes, or (batch, channels, height, width) and (batch, channels, 1, 1) in any order."""
    Attributes(node).finish()
    a, b = state.value(node, 0), state.value(node, 1)
    if a.shape == b.shape and a.map == b.map:
        height, width, channels = a.map
        layer = Mul(height=height, width=width, channels=channels)
        state.give(node, state.emit(node, layer, {"a": a, "b": b}, view=a.shape))
        return
    if a.shape[2:] == (1, 1):
        a, b = b, a
    height, width, channels = a.map
    if a.shape != (state.batch, channels, height, width) or b.shape != (state.batch, channels, 1, 1):
        shapes = f"{list(state.value(node, 0).shape)} and {list(state.value(node, 1).shape)}"
        cure = "shapes must be equal, or one of them (batch, channels, 1, 1)"
        raise Unsupported(f"multiplies tensors of shapes {shapes}", cure)
    scale = Scale(height=height, width=width, channels=channels)
    state.give(node, state.emit(node, scale, {"x": a, "s": b}, view=a.shape))


@writes(Mul, Scale)
def write_mul(node: Node, state: Writing) -> None:
    """Of two maps; one number a channel is a map of one pixel, which ONNX stretches."""
    state.add(node, "Mul")
