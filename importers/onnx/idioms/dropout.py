"""Dropout and stochastic depth spelt out: random numbers, compared with the share that is kept, times x.

    x * cast(uniform < keep) / keep      the order of the product and the quotient is free; the comparison may be any,
                                         and where of (mask, x / keep, 0) does as well
    Bernoulli(keep), or floor(uniform + keep), in place of the comparison

Random numbers of the shape of x make dropout; one number an image, stochastic depth (Huang et al. 2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from importers.onnx.idioms.idiom import Idiom, Rewrite, Step, in_place
from importers.onnx.idioms.pattern import Constant, Either, Found, Op, Scene, Tensor, first_match, match
from importers.onnx.model import OnnxNode

X = Tensor("x")
DRAWN = Either(
    Op("RandomUniformLike", Tensor("like"), name="random"),
    Op("RandomUniformLike", Constant("like"), name="random"),
    Op("RandomUniform", name="random"),
)
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
COMPARED = Either(
    Op(" ".join(COMPARISONS), DRAWN, Constant("bound"), name="comparison"),
    Op(" ".join(COMPARISONS), Constant("bound"), DRAWN, name="reversed"),
)
DRAWN_BITS = Op("Bernoulli", Constant("share"), name="bits")
MASK = Either(Op("Cast", Either(COMPARED, DRAWN_BITS)), Op("CastLike", COMPARED, Tensor("as")), DRAWN_BITS)
SCALE = Constant("keep")
FACTOR = Constant("factor")
CHOSEN = Op("Where", COMPARED, X, Constant("zero"))
KEPT = Either(
    # no scale: what is kept counts as it is
    Op("Mul", X, MASK, name="bare"),
    Op("Mul", X, Op("Div", MASK, SCALE)),
    Op("Mul", X, Op("Mul", MASK, FACTOR)),
    Op("Div", Op("Mul", X, MASK), SCALE),
    Op("Mul", Op("Mul", X, MASK), FACTOR),
    Op("Mul", Op("Div", X, SCALE), MASK),
    Op("Mul", Op("Mul", X, FACTOR), MASK),
    Op("Where", COMPARED, Either(Op("Div", X, SCALE), Op("Mul", X, FACTOR)), Constant("zero")),
    Op("Div", CHOSEN, SCALE),
    Op("Mul", CHOSEN, FACTOR),
    Op("Where", COMPARED, X, Constant("zero"), name="bare"),
)
RAISED = Op("Floor", Op("Add", DRAWN, Constant("share")))


def _keep(found: Found, scene: Scene) -> float | None:
    """The share of elements that random numbers let through."""
    if "bits" in found:
        share = scene.constant(found["share"])
        return float(share.flat[0]) if share is not None and share.size and np.ptp(share) == 0 else None
    bound = scene.number(found["bound"])
    drawn = scene.made(found, "random").attributes
    low, high = float(drawn.get("low", 0.0)), float(drawn.get("high", 1.0))
    if bound is None or not low < high:
        return None
    below = min(max((bound - low) / (high - low), 0.0), 1.0)
    node = scene.made(found, "comparison" if "comparison" in found else "reversed")
    is_below = node.op.startswith("Less") == ("comparison" in found)
    return below if is_below else 1 - below


def _scaled(found: Found, scene: Scene, keep: float) -> bool:
    """Whether what is kept is divided by the share that is kept."""
    if "bare" in found:
        return False
    if "zero" in found and scene.number(found["zero"]) != 0:
        return False
    divisor = scene.number(found["keep"]) if "keep" in found else None
    factor = scene.number(found["factor"]) if "factor" in found else None
    given = divisor if divisor is not None else 1 / factor if factor else None
    return given is not None and math.isclose(given, keep, rel_tol=1e-3)


def _rounded_down(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """Whether the sum of a number from 0 to 1 and the share reaches 1, as a comparison."""
    found = first_match(RAISED, node.outputs[0], scene)
    share = scene.number(found["share"]) if found is not None else None
    if found is None or share is None or not 0 < share <= 1:
        return None
    drawn = scene.made(found, "random").attributes
    if (drawn.get("low", 0.0), drawn.get("high", 1.0)) != (0, 1):
        return None
    bound, compared = f"{node.name}//bound", f"{node.name}//compared"
    above = OnnxNode(compared, "Greater", (found["random"], bound), (compared,))
    made = in_place(node, "Cast", compared, attributes={"to": TensorProto.FLOAT})
    return Rewrite((above, made), {bound: np.array(1 - share, np.float32)})


def _drawn_shape(found: Found, scene: Scene) -> tuple[int, ...] | None:
    if "bits" in found:
        return scene.shape(found["share"])
    if "like" in found:
        return scene.shape(found["like"])
    return tuple(scene.made(found, "random").attributes.get("shape", ()))


def _spelt_out(node: OnnxNode, scene: Scene) -> Iterator[tuple[Found, float, bool]]:
    """(the parts, the share that is dropped, whether one number is drawn an image)."""
    for found in match(KEPT, node.outputs[0], scene):
        keep, drawn, x = _keep(found, scene), _drawn_shape(found, scene), scene.shape(found["x"])
        if keep is None or x is None or drawn is None or not _scaled(found, scene, keep):
            continue
        # shares are single precision in files
        ratio = round(1 - keep, 6)
        if drawn == x:
            yield found, ratio, False
        elif drawn[:1] == x[:1] and len(drawn) == len(x) and set(drawn[1:]) == {1}:
            yield found, ratio, True


def _dropout(node: OnnxNode, scene: Scene) -> Rewrite | None:
    for found, ratio, whole in _spelt_out(node, scene):
        if ratio == 0:
            return Rewrite((in_place(node, "Identity", found["x"]),))
        if whole:
            return Rewrite((in_place(node, "dagtrain.StochasticDepth", found["x"], attributes={"ratio": ratio}),))
        name = f"{node.name}//ratio"
        made = in_place(node, "Dropout", found["x"], name)
        return Rewrite((made,), {name: np.array(ratio, np.float32)})
    return None


def _why(node: OnnxNode, scene: Scene) -> str:
    """What keeps a product with a random mask from being dropout."""
    for found in match(KEPT, node.outputs[0], scene):
        keep, drawn, x = _keep(found, scene), _drawn_shape(found, scene), scene.shape(found["x"])
        if keep is None:
            return "its ratio is not one number"
        if "zero" in found and scene.number(found["zero"]) != 0:
            return "what is dropped becomes another number than 0"
        if not _scaled(found, scene, keep):
            return f"what is kept is not divided by {keep:.6g}, the share that is kept"
        if drawn != x:
            return f"numbers of shape {_shown(drawn)} are drawn for {_shown(x)}, not one an element or one an image"
    return ""


def _shown(shape: tuple[int, ...] | None) -> str:
    return "an unknown shape" if shape is None else str(list(shape))


COMPARE = Step(COMPARISONS, "a comparison with the share that is kept", "ratio")
CAST = Step(("Cast", "CastLike", "Where"), "a cast of the comparison to floats")
TIMES = Step(("Mul", "Div"), "a product with x, and a division by the share that is kept")
DROPOUT = (
    Idiom("a share of random numbers", ("Floor",), _rounded_down),
    Idiom(
        "dropout or stochastic depth",
        ("Mul", "Div", "Where"),
        _dropout,
        ("RandomUniformLike", "RandomUniform"),
        (COMPARE, CAST, TIMES),
        _why,
    ),
    Idiom("dropout or stochastic depth", ("Mul", "Div", "Where"), _dropout, ("Bernoulli",), (TIMES,), _why),
)
