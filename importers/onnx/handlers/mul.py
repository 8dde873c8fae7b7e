"""Mul: of two maps; of a map and one number a channel of each image, as squeeze-and-excitation has it; by constants."""

from __future__ import annotations

import numpy as np

from dagtrain.graph.ir import Node
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.pointwise.channel_affine import ChannelAffine
from hdl.layers.pointwise.mul import Mul, Scale
from importers.onnx.context import Attributes, Lowering
from importers.onnx.handlers.per_channel import per_channel
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("Mul")
def mul(node: OnnxNode, state: Lowering) -> None:
    """Equal shapes, or (batch, channels, height, width) and (batch, channels, 1, 1) or one constant a channel."""
    Attributes(node).finish()
    for index in range(2):
        if state.is_constant(node, index):
            _by_constant(node, state, index)
            return
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


def _by_constant(node: OnnxNode, state: Lowering, index: int) -> None:
    """One number a channel behind anything that learns is a parameter, as a bias is; all else stays as it is."""
    x = state.value(node, 1 - index)
    height, width, channels = x.map
    constant = np.asarray(state.constant(node, index), np.float64)
    scale = per_channel(x, constant)
    if constant.size > 1 and state.learns(x):
        trained = DepthwiseConv(height=height, width=width, channels=channels, kernel=(1, 1), recipe=state.recipe)
        weights = {"w": state.weight(node, index).reshape(channels, 1, 1, 1)}
        state.give(node, state.emit(node, trained, {"x": x}, weights, view=x.shape))
        return
    if constant.size > 1:
        state.notes.append(f"{node} multiplies channels by constants, {node.inputs[index]}: nothing trains them")
    layer = ChannelAffine(height=height, width=width, channels=channels, shifted=False)
    state.give(node, state.emit(node, layer, {"x": x}, {"scale": scale}, view=x.shape))


@writes(Mul, Scale)
def write_mul(node: Node, state: Writing) -> None:
    """Of two maps; one number a channel is a map of one pixel, which ONNX stretches."""
    state.add(node, "Mul")
