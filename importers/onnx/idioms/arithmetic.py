"""Arithmetic with constants in its plainest form.

x * 1, x / 1, x + 0, x - 0, x ^ 1                               -> nothing
x / c, -x                                                       -> Mul by 1 / c, by -1
x - c, c - x                                                    -> Add of -c; Mul by -1, Add of c
x - y                                                           -> x + y * -1
max(x, 0), min(max(x, 0), c)                                    -> Relu, Clip
x * expand(y)                                                   -> x * y, which broadcasts
Conv + one number a channel                                     -> its bias
Concat of every channel times a number plus a number            -> Mul, Add by one number a channel
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from importers.onnx.idioms.idiom import Idiom, Rewrite, in_place
from importers.onnx.idioms.pattern import Constant, Either, Op, Scene, Tensor, first_match, number
from importers.onnx.model import Array, OnnxNode

X = Tensor("x")
MINUS = np.full((), -1, np.float32)
NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Pow": 1.0, "Add": 0.0, "Sub": 0.0}


def _neutral(node: OnnxNode, scene: Scene) -> Rewrite | None:
    for x, other in ((0, 1), (1, 0)):
        known = scene.number(node.inputs[other])
        swaps = node.op in ("Add", "Mul") or other == 1
        if not swaps or known != NEUTRAL[node.op] or scene.constant(node.inputs[x]) is not None:
            continue
        value, shape = scene.model.constants[node.inputs[other]], scene.shape(node.inputs[x])
        # a constant of more axes than x gives the result more axes
        if value.ndim == 0 or (shape is not None and value.ndim <= len(shape)):
            return Rewrite((in_place(node, "Identity", node.inputs[x]),))
    return None


def _plain(node: OnnxNode, scene: Scene) -> Rewrite | None:
    name = f"{node.name}//constant"
    if node.op == "Neg":
        return Rewrite((in_place(node, "Mul", node.inputs[0], name),), {name: MINUS})
    value = scene.constant(node.inputs[1])
    if value is not None and value.dtype.kind == "f":
        if node.op == "Sub":
            return Rewrite((in_place(node, "Add", node.inputs[0], name),), {name: -value})
        if np.all(value != 0):
            return Rewrite((in_place(node, "Mul", node.inputs[0], name),), {name: 1 / value.astype(np.float64)})
        return None
    if node.op == "Div":
        return None
    turned = f"{node.name}//negative"
    negative = OnnxNode(f"{node.name}//negation", "Mul", (node.inputs[1], name), (turned,))
    return Rewrite((negative, in_place(node, "Add", turned, node.inputs[0])), {name: MINUS})


# ---- ceilings and floors

FLOOR = Op("Max", X, number(0))
CEILING = Op("Min", Either(FLOOR, Op("Relu", X)), Constant("high"))


def _floor(node: OnnxNode, scene: Scene) -> Rewrite | None:
    if node.op == "Max":
        found = first_match(FLOOR, node.outputs[0], scene)
        return None if found is None else Rewrite((in_place(node, "Relu", found["x"]),))
    found = first_match(CEILING, node.outputs[0], scene)
    high = scene.number(found["high"]) if found is not None else None
    if found is None or high is None:
        return None
    limits: dict[str, Array] = {
        f"{node.name}//low": np.zeros((), np.float32),
        f"{node.name}//high": np.full((), high, np.float32),
    }
    if scene.model.opset < 11:
        return Rewrite((in_place(node, "Clip", found["x"], attributes={"min": 0.0, "max": high}),))
    return Rewrite((in_place(node, "Clip", found["x"], *limits),), limits)


# ---- broadcasting


def _expanded(node: OnnxNode, scene: Scene) -> Rewrite | None:
    shape = scene.shape(node.outputs[0])
    inputs = list(node.inputs)
    for index, tensor in enumerate(inputs):
        made = scene.producer(tensor)
        if made is not None and made.op == "Expand" and shape is not None and scene.shape(inputs[1 - index]) == shape:
            inputs[index] = made.inputs[0]
    if tuple(inputs) == node.inputs:
        return None
    return Rewrite((in_place(node, node.op, *inputs, attributes=node.attributes),))


# ---- biases

CONVOLVED = Op("Add", Op("Conv", X, Constant("weight"), name="conv"), Constant("bias"))


def _bias(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(CONVOLVED, node.outputs[0], scene)
    shape = scene.shape(found["conv"]) if found is not None else None
    if found is None or shape is None or scene.model.uses[found["conv"]] != 1:
        return None
    vector = scene.model.constants[found["bias"]]
    sizes = (1,) * (len(shape) - vector.ndim) + vector.shape
    if sizes != (1, shape[1], *(1 for _ in shape[2:])):
        return None
    conv, name = scene.made(found, "conv"), f"{node.name}//bias"
    made = replace(conv, inputs=(found["x"], found["weight"], name), outputs=node.outputs[:1])
    return Rewrite((made,), {name: vector.reshape(-1)})


# ---- one number a channel

CHANNEL = Op("Slice", X, Constant("first"), Constant("end"), Constant("axis"))
SCALED = Either(Op("Mul", CHANNEL, Constant("scale")), CHANNEL)
MOVED = Either(Op("Add", SCALED, Constant("shift")), SCALED)


def _channel_by_channel(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """As torchvision's Inception and GoogLeNet undo one normalisation of the image and do another."""
    if node.attributes.get("axis") not in (1, -3):
        return None
    scales, shifts = [], []
    whole = ""
    for index, tensor in enumerate(node.inputs):
        found = first_match(MOVED, tensor, scene)
        if found is None or found["x"] != (whole or found["x"]):
            return None
        whole = found["x"]
        first, axis = scene.number(found["first"]), scene.number(found["axis"])
        scale = scene.number(found["scale"]) if "scale" in found else 1.0
        shift = scene.number(found["shift"]) if "shift" in found else 0.0
        one = (scene.shape(tensor) or (0, 0))[1] == 1
        if (first, axis) != (index, 1) or scale is None or shift is None or not one:
            return None
        scales.append(scale)
        shifts.append(shift)
    shape = scene.shape(whole)
    if len(scales) < 2 or shape is None or len(shape) != 4 or shape[1] != len(scales):
        return None
    scaled = f"{node.name}//scaled"
    constants = {
        f"{node.name}//scales": np.array(scales).reshape(-1, 1, 1),
        f"{node.name}//shifts": np.array(shifts).reshape(-1, 1, 1),
    }
    names = list(constants)
    product = OnnxNode(f"{node.name}//product", "Mul", (whole, names[0]), (scaled,))
    return Rewrite((product, in_place(node, "Add", scaled, names[1])), constants)


BROADCAST = Idiom("broadcast", ("Mul", "Add"), _expanded)
CEILINGS = Idiom("ceiling", ("Max", "Min"), _floor)
CHANNELS = Idiom("one number a channel", ("Concat",), _channel_by_channel)
BIAS = Idiom("bias of a convolution", ("Add",), _bias)
NEUTRALS = Idiom("neutral arithmetic", tuple(NEUTRAL), _neutral)
PLAIN = Idiom("plain arithmetic", ("Div", "Sub", "Neg"), _plain)
