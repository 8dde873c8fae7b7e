"""Flatten, Reshape, Squeeze, Unsqueeze: other shapes of the same elements, which cost nothing.  Transpose, if no idiom
and no layout took it away.  Softmax: the loss's."""

from __future__ import annotations

import math

import numpy as np

from importers.onnx.context import Attributes, Lowering
from importers.onnx.handlers.registry import handles
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported


@handles("Flatten")
def flatten(node: OnnxNode, state: Lowering) -> None:
    """(batch, features)."""
    attributes = Attributes(node)
    axis = attributes.get("axis", 1)
    attributes.finish()
    shape = state.value(node).shape
    axis = axis + len(shape) if axis < 0 else axis
    state.see_as(node, (math.prod(shape[:axis]), math.prod(shape[axis:])))


@handles("Reshape")
def reshape(node: OnnxNode, state: Lowering) -> None:
    """0 keeps a size (unless ``allowzero``), one -1 takes what is left."""
    attributes = Attributes(node)
    keeps = not attributes.get("allowzero", 0)
    attributes.finish()
    old = state.value(node).shape
    target = np.atleast_1d(state.constant(node, 1)).tolist()
    new = [old[axis] if keeps and size == 0 and axis < len(old) else size for axis, size in enumerate(target)]
    if new.count(-1) > 1 or min(new, default=1) < -1 or 0 in new:
        raise Unsupported(f"reshapes {list(old)} to {target}", "at most one size may be -1, none 0 beyond the input's")
    if -1 in new:
        rest = -math.prod(new)
        new[new.index(-1)] = math.prod(old) // rest
    state.see_as(node, new)


@handles("Squeeze")
def squeeze(node: OnnxNode, state: Lowering) -> None:
    """Sizes of 1 vanish; axes are an input since opset 13, an attribute before."""
    shape = state.value(node).shape
    axes = _axes(node, state)
    gone = {axis % len(shape) for axis in axes} if axes is not None else {i for i, n in enumerate(shape) if n == 1}
    if any(shape[axis] != 1 for axis in gone):
        raise Unsupported(f"squeezes axes {sorted(gone)} of shape {list(shape)}", "they must have size 1")
    if 0 in gone:
        raise Unsupported(f"squeezes the batch of shape {list(shape)}", "export with axes that leave the batch")
    state.see_as(node, [size for axis, size in enumerate(shape) if axis not in gone])


@handles("Unsqueeze")
def unsqueeze(node: OnnxNode, state: Lowering) -> None:
    """Sizes of 1 appear."""
    shape = list(state.value(node).shape)
    axes = _axes(node, state) or []
    rank = len(shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        shape.insert(axis, 1)
    state.see_as(node, shape)


def _axes(node: OnnxNode, state: Lowering) -> list[int] | None:
    attributes = Attributes(node)
    axes = attributes.get("axes", None)
    attributes.finish()
    if state.has(node, 1):
        axes = np.atleast_1d(state.constant(node, 1)).tolist()
    return None if axes is None else [int(axis) for axis in axes]


@handles("Transpose")
def transpose(node: OnnxNode, state: Lowering) -> None:
    """What is left of them moves elements between channels, rows and columns."""
    shape = list(state.value(node).shape)
    order = node.attributes.get("perm", list(range(len(shape)))[::-1])
    what = f"puts axes of shape {shape} in the order {order}"
    cure = "only channels last and back around what works on pixels, and shuffles of channels in groups, are supported"
    raise Unsupported(what, cure)


@handles("Softmax", "LogSoftmax")
def softmax(node: OnnxNode, state: Lowering) -> None:
    """At the end over the classes it was dropped before; elsewhere it is not supported."""
    state.value(node)
    raise Unsupported("stands elsewhere than at the end over the classes", "only there it is supported, as the loss")
