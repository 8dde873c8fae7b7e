"""Activations spelt out: HardSigmoid, HardSwish, Sigmoid, SiLU, GELU.

HardSigmoid     clip(x + 3, 0, 6) / 6                                       -> HardSigmoid(1/6, 1/2)
HardSwish       x * HardSigmoid(x), x * clip(x + 3, 0, 6) / 6               -> HardSwish
Sigmoid         1 / (1 + Exp(-x)), or its Reciprocal                        -> Sigmoid
SiLU            x * Sigmoid(x), x / (1 + Exp(-x)), Swish of alpha 1                            -> dagtrain.Silu
GELU            x * (1 + Erf(x / sqrt 2)) / 2                               -> Gelu
GELU by tanh    x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2     -> Gelu(approximate="tanh")
"""

from __future__ import annotations

import math

import numpy as np

from importers.onnx.idioms.idiom import Idiom, Rewrite, Step, in_place
from importers.onnx.idioms.pattern import Constant, Either, Found, Op, Pattern, Scene, Tensor, first_match, number
from importers.onnx.model import OnnxNode

X = Tensor("x")


def times(value: float, *factors: Pattern) -> Pattern:
    """``value`` times one factor, or two in any order, written as a product or as a quotient."""
    if len(factors) == 1:
        return Either(Op("Mul", factors[0], number(value)), Op("Div", factors[0], number(1 / value)))
    a, b = factors
    return Either(times(value, Op("Mul", a, b)), Op("Mul", times(value, a), b), Op("Mul", a, times(value, b)))


# ---- HardSigmoid and HardSwish

# relu6(x + 3); bounds of Clip are attributes before opset 11
SHIFTED = Op("Add", X, number(3))
CLIPPED = Either(
    Op("Clip", SHIFTED, number(0), number(6)),
    Op("Clip", SHIFTED, name="clip"),
    Op("Min", Op("Relu", SHIFTED), number(6)),
)
HARD_SIGMOID = times(1 / 6, CLIPPED)
HARD_SWISH = Either(Op("Mul", X, Op("HardSigmoid", X, name="gate")), times(1 / 6, X, CLIPPED))


def _relu6(found: Found, scene: Scene) -> bool:
    """Whether the bounds of Clip, where they are attributes, are 0 and 6."""
    bounds = scene.made(found, "clip").attributes if "clip" in found else {"min": 0, "max": 6}
    return (bounds.get("min"), bounds.get("max")) == (0, 6)


def _hard_sigmoid(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(HARD_SIGMOID, node.outputs[0], scene)
    if found is None or not _relu6(found, scene):
        return None
    return Rewrite((in_place(node, "HardSigmoid", found["x"], attributes={"alpha": 1 / 6, "beta": 0.5}),))


def _hard_swish(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(HARD_SWISH, node.outputs[0], scene)
    if found is None or not _relu6(found, scene):
        return None
    if "gate" in found:
        given = scene.made(found, "gate").attributes
        if not np.allclose((given.get("alpha", 0.2), given.get("beta", 0.5)), (1 / 6, 0.5), rtol=1e-3):
            return None
    return Rewrite((in_place(node, "HardSwish", found["x"]),))


# ---- Sigmoid and SiLU

MINUS = Either(Op("Neg", X), Op("Mul", X, number(-1)), Op("Sub", number(0), X))
ONE_AND_EXP = Op("Add", Op("Exp", MINUS), number(1))
SIGMOID = Either(Op("Div", number(1), ONE_AND_EXP), Op("Reciprocal", ONE_AND_EXP))
SILU = Either(Op("Mul", X, Op("Sigmoid", X)), Op("Div", X, ONE_AND_EXP), Op("Swish", X, name="swish"))


def _sigmoid(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(SIGMOID, node.outputs[0], scene)
    return None if found is None else Rewrite((in_place(node, "Sigmoid", found["x"]),))


def _silu(node: OnnxNode, scene: Scene) -> Rewrite | None:
    found = first_match(SILU, node.outputs[0], scene)
    if found is None or ("swish" in found and node.attributes.get("alpha", 1.0) != 1.0):
        return None
    return Rewrite((in_place(node, "dagtrain.Silu", found["x"]),))


# ---- GELU

ERF = Op("Add", Op("Erf", times(math.sqrt(0.5), X)), number(1))
CUBE = Either(Op("Pow", X, number(3)), Op("Mul", X, Op("Mul", X, X)))
BENT = Op("Add", X, times(0.044715, CUBE))
# x + c * x * x * x, the constant in the middle
BENT_IN_STEPS = Op("Add", X, Op("Mul", X, Op("Mul", X, Op("Mul", X, number(0.044715)))))
TANH = Op("Add", Op("Tanh", times(math.sqrt(2 / math.pi), Either(BENT, BENT_IN_STEPS))), number(1))


def _gelu(node: OnnxNode, scene: Scene) -> Rewrite | None:
    for gate, how in ((ERF, "none"), (TANH, "tanh")):
        found = first_match(times(0.5, X, gate), node.outputs[0], scene)
        if found is not None:
            return Rewrite((in_place(node, "Gelu", found["x"], attributes={"approximate": how}),))
    return None


PRODUCTS = ("Mul", "Div")
ADD_ONE = Step(("Add",), "an addition of 1", "addend")
ACTIVATIONS = (
    Idiom("hard sigmoid", PRODUCTS, _hard_sigmoid),
    Idiom("hard swish", PRODUCTS, _hard_swish),
    Idiom("sigmoid", ("Div", "Reciprocal"), _sigmoid),
    Idiom("SiLU", ("Mul", "Div", "Swish"), _silu),
    Idiom("GELU", PRODUCTS, _gelu, ("Erf",), (ADD_ONE, Step(PRODUCTS, "a product with x"))),
)

__all__ = ["ACTIVATIONS", "Constant", "times"]
