"""Normalisations spelt out, or spread over several nodes.

(x - mean x) / sqrt(mean (x - mean x)^2 + eps) * scale + shift      -> LayerNormalization over the last axis,
                                                                       dagtrain.LayerNorm over axis 1, the channels
BatchNormalization, Mul and Add by one number a channel (Caffe)     -> BatchNormalization
x / (k + alpha * average of x^2 over neighbouring channels)^beta    -> LRN
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from importers.onnx.idioms.idiom import Idiom, Rewrite, in_place
from importers.onnx.idioms.pattern import Constant, Either, Found, Op, Pattern, Scene, Tensor, first_match, number
from importers.onnx.model import Array, OnnxNode

X = Tensor("x")


# ---- layer normalisation


def _averaged(what: Pattern, name: str) -> Either:
    """The mean of it, over axes that are an input since opset 18: a constant of each node's own."""
    return Either(Op("ReduceMean", what, name=name), Op("ReduceMean", what, Constant(f"{name} axes"), name=name))


MEAN = _averaged(X, "mean")
CENTRED = Op("Sub", X, MEAN)
SQUARED = Either(Op("Pow", CENTRED, number(2)), Op("Mul", CENTRED, CENTRED))
VARIANCE = _averaged(SQUARED, "spread")
DEVIATION = Op("Sqrt", Op("Add", VARIANCE, Constant("epsilon")))
NORMALISED = Either(Op("Div", CENTRED, DEVIATION), Op("Mul", CENTRED, Op("Reciprocal", DEVIATION)))
SCALED = Op("Mul", NORMALISED, Constant("scale"))
LAYER_NORM = Either(Op("Add", SCALED, Constant("shift")), SCALED, NORMALISED)


def _axes(node: OnnxNode, scene: Scene, rank: int) -> list[int]:
    """The axes over which a ReduceMean goes; an input since opset 18."""
    known = scene.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    axes: Sequence[int] = np.atleast_1d(known).tolist() if known is not None else node.attributes.get("axes", [])
    return sorted(int(axis) % rank for axis in axes)


def _layer_norm(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(LAYER_NORM, node.outputs[0], scene)
    shape = scene.shape(found["x"]) if found is not None else None
    if found is None or shape is None or scene.number(found["epsilon"]) is None:
        return None
    rank = len(shape)
    axes = {tuple(_axes(scene.made(found, name), scene, rank)) for name in ("mean", "spread")}
    kept = all(scene.made(found, name).attributes.get("keepdims", 1) for name in ("mean", "spread"))
    if not kept or len(axes) != 1:
        return None
    (chosen,) = axes
    if chosen not in ((rank - 1,), (1,)):
        return None
    channels = shape[chosen[0]]
    vectors = {f"{node.name}//{what}": _vector(found, what, scene, channels, rank - chosen[0]) for what in _WHAT}
    if any(value is None for value in vectors.values()):
        return None
    constants = {name: value for name, value in vectors.items() if value is not None}
    attributes = {"epsilon": scene.number(found["epsilon"])}
    # of a flat tensor both are the same
    if chosen == (rank - 1,) and rank > 2:
        made = in_place(node, "LayerNormalization", found["x"], *constants, attributes={**attributes, "axis": -1})
    else:
        made = in_place(node, "dagtrain.LayerNorm", found["x"], *constants, attributes=attributes)
    return Rewrite((made,), constants)


_WHAT = {"scale": 1.0, "shift": 0.0}


def _vector(found: Found, what: str, scene: Scene, channels: int, axis_from_end: int) -> Array | None:
    """One number a channel, if a constant is that."""
    if what not in found:
        return np.full(channels, _WHAT[what], np.float32)
    value = scene.constant(found[what])
    assert value is not None, "the pattern says that it is a constant"
    sizes = (1,) * (axis_from_end - value.ndim) + value.shape
    if value.size == 1:
        return np.broadcast_to(value.reshape(1), (channels,)).copy()
    if value.size != channels or len(sizes) < axis_from_end or sizes[-axis_from_end] != channels:
        return None
    return value.reshape(channels)


def _channel_norm(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """LayerNormalization of a flat tensor: all its features are channels of one pixel."""
    shape = scene.shape(node.inputs[0])
    if shape is None or len(shape) != 2 or node.attributes.get("axis", -1) not in (1, -1):
        return None
    return Rewrite((channel_norm(node, node.inputs[0]),))


def channel_norm(node: OnnxNode, x: str) -> OnnxNode:
    """`dagtrain.LayerNorm` of x, over axis 1, with the vectors of a LayerNormalization."""
    epsilon = node.attributes.get("epsilon", 1e-5)
    return in_place(
        node, "dagtrain.LayerNorm", x, *node.inputs[1:], attributes={"epsilon": epsilon}, module=node.module
    )


# ---- batch normalisation

NORM = Op("BatchNormalization", X, *(Constant(what) for what in ("gamma", "beta", "average", "variance")), name="norm")
AFFINE = Either(Op("Add", Op("Mul", NORM, Constant("scale")), Constant("shift")), Op("Mul", NORM, Constant("scale")))


def _batch_norm(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(AFFINE, node.outputs[0], scene)
    if found is None or scene.model.uses[found["norm"]] != 1:
        return None
    # the Mul alone only where no Add follows that belongs to it
    readers = scene.model.readers(node.outputs[0])
    if "shift" not in found and len(readers) == 1 and first_match(AFFINE, readers[0].outputs[0], scene):
        return None
    gamma, beta = scene.model.constants[found["gamma"]], scene.model.constants[found["beta"]]
    shape = scene.shape(found["norm"])
    if shape is None:
        return None
    vectors = [_vector(found, what, scene, gamma.size, len(shape) - 1) for what in _WHAT]
    if any(value is None for value in vectors):
        return None
    scale, shift = (np.asarray(value, np.float64) for value in vectors)
    constants = {f"{node.name}//scale": gamma * scale, f"{node.name}//shift": beta * scale + shift}
    norm = scene.made(found, "norm")
    inputs = (found["x"], *constants, found["average"], found["variance"])
    made = OnnxNode(norm.name, norm.op, inputs, node.outputs[:1], norm.attributes, norm.module)
    return Rewrite((made,), constants)


# ---- local response normalisation

SQUARES = Either(Op("Mul", X, X), Op("Pow", X, number(2)))
VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Identity")
STRENGTH = Op("Pow", Op("Add", Op("Mul", Tensor("average"), Constant("alpha")), Constant("bias")), Constant("beta"))
LRN = Op("Div", X, STRENGTH)


def _lrn(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(LRN, node.outputs[0], scene)
    if found is None:
        return None
    pool = _behind_views(found["average"], scene)
    kernel = [] if pool is None or pool.op != "AveragePool" else list(pool.attributes.get("kernel_shape", []))
    pad = _behind_views(pool.inputs[0], scene) if pool is not None and kernel else None
    if pool is None or pad is None or pad.op != "Pad" or any(pool.attributes.get("pads", [])):
        return None
    squares = _behind_views(pad.inputs[0], scene)
    square = first_match(SQUARES, squares.outputs[0], scene) if squares is not None else None
    shape, view = scene.shape(found["x"]), scene.shape(pad.inputs[0])
    if square is None or square["x"] != found["x"] or shape is None or len(shape) != 4:
        return None
    # channels are the first axis of the window, as depth
    size = kernel[0]
    given = scene.constant(pad.inputs[1]) if len(pad.inputs) > 1 else np.array(pad.attributes.get("pads", []))
    wanted = np.zeros((2, 5), int)
    wanted[:, 2] = size // 2
    across = view == (shape[0], 1, shape[1], *shape[2:]) and kernel[1:] == [1, 1] and size % 2 == 1
    if not across or given is None or given.tolist() != wanted.reshape(-1).tolist():
        return None
    numbers = {name: scene.number(found[name]) for name in ("alpha", "bias", "beta")}
    if None in numbers.values():
        return None
    return Rewrite((in_place(node, "LRN", found["x"], attributes={**numbers, "size": size}),))


def _behind_views(tensor: str, scene: Scene) -> OnnxNode | None:
    """The node whose elements, in their order, a tensor has."""
    node = scene.producer(tensor)
    while node is not None and node.op in VIEWS:
        node = scene.producer(node.inputs[0])
    return node


NORMS = (
    Idiom("layer normalisation", ("Add", "Mul", "Div"), _layer_norm),
    Idiom("layer normalisation", ("LayerNormalization",), _channel_norm),
    Idiom("batch normalisation", ("Add", "Mul"), _batch_norm),
    Idiom("local response normalisation", ("Div",), _lrn),
)
