"""Operators that files spell out: each spelling becomes one operator with the same function by ONNX's evaluator."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from hdl.errors import ImportProblem
from hdl.layers.pool.average_pool import AveragePool
from importers.onnx import NormMode, import_model
from importers.onnx.check import check_model
from importers.onnx.handlers import HANDLERS
from importers.onnx.idioms import rewrite
from importers.onnx.model import OnnxModel
from importers.onnx.normalise import normalise
from importers.onnx.problems import Problems
from tests.import_support import Array, assert_close, evaluate, forward, model, node, save

RNG = np.random.default_rng(71)
SQRT2, ROOT = math.sqrt(2), math.sqrt(2 / math.pi)


# ---- what our own operators mean, for ONNX's evaluator


class Silu(OpRun):
    """x * sigmoid(x)."""

    op_domain = "dagtrain"

    def _run(self, x: Array) -> tuple[Array]:
        return (x / (1 + np.exp(-x)),)


class ChannelShuffle(OpRun):
    """Rows of channels read column by column."""

    op_domain = "dagtrain"

    def _run(self, x: Array, groups: int) -> tuple[Array]:
        batch, channels, height, width = x.shape
        rows = x.reshape(batch, groups, channels // groups, height, width)
        return (rows.swapaxes(1, 2).reshape(x.shape),)


class LayerNorm(OpRun):
    """Over axis 1, the channels."""

    op_domain = "dagtrain"

    def _run(self, x: Array, scale: Array, shift: Array, epsilon: float) -> tuple[Array]:
        centred = x - x.mean(axis=1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
        sizes = (-1, *(1 for _ in x.shape[2:]))
        return ((normal * scale.reshape(sizes) + shift.reshape(sizes)).astype(np.float32),)


class AdaptiveAveragePool(OpRun):
    """Every window by itself, along one axis after the other."""

    op_domain = "dagtrain"

    def _run(self, x: Array, size: list[int]) -> tuple[Array]:
        for axis, outputs in zip((2, 3), size, strict=True):
            pixels = x.shape[axis]
            bounds = [(i * pixels // outputs, -(-(i + 1) * pixels // outputs)) for i in range(outputs)]
            means = [x.take(range(*bound), axis).mean(axis, keepdims=True) for bound in bounds]
            x = np.concatenate(means, axis)
        return (x,)


OPERATORS = [Silu, ChannelShuffle, LayerNorm, AdaptiveAveragePool]

# ---- helpers


def rewritten(proto: ModelProto, known: Sequence[str] = ()) -> tuple[OnnxModel, Problems]:
    """After all idioms, and what was found wrong."""
    problems = Problems("net.onnx")
    checked = check_model(proto, Path("net.onnx"), problems)
    return rewrite(normalise(checked.model, problems), {*HANDLERS, *known}, problems), problems


def as_proto(made: OnnxModel) -> ModelProto:
    """For ONNX's evaluator; an idiom may become an operator that is newer than the file's opset."""
    constants = [numpy_helper.from_array(_single(value), name) for name, value in made.constants.items()]
    image = helper.make_tensor_value_info(made.image, TensorProto.FLOAT, made.image_shape)
    result = helper.make_empty_tensor_value_info(made.output)
    graph = helper.make_graph([item.to_proto() for item in made.nodes], "rewritten", [image], [result], constants)
    newer = {"Gelu", "HardSwish", "LayerNormalization"} & {item.op for item in made.nodes}
    opsets = [helper.make_opsetid("", max(made.opset, 20) if newer else made.opset), helper.make_opsetid("dagtrain", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def _single(value: Any) -> Array:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def becomes(proto: ModelProto, wanted: Sequence[str], tolerance: float = 1e-5) -> OnnxModel:
    """The model after all idioms, which has these operators and computes what the file does."""
    made, problems = rewritten(proto)
    assert list(problems) == []
    assert [item.op.removeprefix("dagtrain.") for item in made.nodes] == list(wanted)
    sizes = made.image_shape
    x = (np.random.default_rng(72).standard_normal(sizes) * 4).astype(np.float32)
    x.reshape(-1)[:6] = (0, 1, -1, 0.5, 3, -3)[: x.size]
    ours = ReferenceEvaluator(as_proto(made), new_ops=OPERATORS).run(None, {made.image: x})[0]
    theirs = ReferenceEvaluator(proto).run(None, {made.image: x})[0]
    assert_close(np.asarray(ours), np.asarray(theirs), tolerance)
    return made


Numbers = Mapping[str, Any]
Spelling = tuple[list[NodeProto], Numbers]


def spelt(text: str, **numbers: Any) -> Spelling:
    """Nodes, one an item between semicolons: ``result = Operator input input``; numbers are constants.

    A name in ``numbers`` that is of the form Operator_attribute is an attribute of all such operators."""
    nodes, attributes = [], {key: value for key, value in numbers.items() if "_" in key and key[0].isupper()}
    for line in text.split(";"):
        outputs, _, call = line.partition("=")
        op, *inputs = call.split()
        own = {key.partition("_")[2]: value for key, value in attributes.items() if key.partition("_")[0] == op}
        nodes.append(node(op, " ".join(inputs), outputs.strip(), **own))
    constants = {
        key: np.float32(value) if isinstance(value, float) else value
        for key, value in numbers.items()
        if key not in attributes
    }
    return nodes, constants


# ---- activations

ACTIVATIONS: list[tuple[str, int, Spelling]] = [
    ("HardSwish", 11, spelt("g = HardSigmoid x; y = Mul x g", HardSigmoid_alpha=1 / 6)),
    ("HardSwish", 11, spelt("a = Add x t; c = Clip a z s; p = Mul x c; y = Div p s", t=3.0, z=0.0, s=6.0)),
    ("HardSwish", 13, spelt("a = Add t x; c = Clip a z s; d = Div c s; y = Mul d x", t=3.0, z=0.0, s=6.0)),
    (
        "HardSwish",
        9,
        spelt("a = Add x t; c = Clip a; d = Mul c f; y = Mul d x", t=3.0, f=1 / 6, Clip_min=0.0, Clip_max=6.0),
    ),
    ("HardSwish", 13, spelt("h = Mul x f; a = Add t x; r = Relu a; c = Min r s; y = Mul h c", t=3.0, s=6.0, f=1 / 6)),
    ("HardSigmoid", 13, spelt("a = Add x t; c = Clip a z s; y = Div c s", t=3.0, z=0.0, s=6.0)),
    ("HardSigmoid", 13, spelt("a = Add x t; m = Max z a; c = Min m s; y = Mul f c", t=3.0, z=0.0, s=6.0, f=1 / 6)),
    ("Silu", 11, spelt("g = Sigmoid x; y = Mul x g")),
    ("Silu", 11, spelt("g = Sigmoid x; y = Mul g x")),
    ("Sigmoid", 11, spelt("n = Neg x; e = Exp n; a = Add e i; y = Div i a", i=1.0)),
    ("Sigmoid", 13, spelt("n = Mul x m; e = Exp n; a = Add i e; y = Reciprocal a", i=1.0, m=-1.0)),
    ("Silu", 13, spelt("n = Neg x; e = Exp n; a = Add i e; y = Div x a", i=1.0)),
    ("Silu", 13, spelt("n = Sub z x; e = Exp n; a = Add e i; g = Div i a; y = Mul g x", i=1.0, z=0.0)),
    ("Gelu", 11, spelt("d = Div x r; e = Erf d; a = Add e i; p = Mul x a; y = Mul p h", r=SQRT2, i=1.0, h=0.5)),
    ("Gelu", 13, spelt("d = Mul x r; e = Erf d; a = Add i e; p = Mul h x; y = Mul p a", r=1 / SQRT2, i=1.0, h=0.5)),
    ("Gelu", 13, spelt("d = Div x r; e = Erf d; a = Add i e; p = Div a t; y = Mul p x", r=SQRT2, i=1.0, t=2.0)),
    (
        "Gelu",
        13,
        spelt(
            "q = Pow x three; k = Mul c q; b = Add x k; m = Mul r b; t = Tanh m; a = Add t i; p = Mul h a; y = Mul x p",
            three=3.0,
            c=0.044715,
            r=ROOT,
            i=1.0,
            h=0.5,
        ),
    ),
    (
        "Gelu",
        11,
        spelt(
            "q = Mul x x; w = Mul x q; k = Mul w c; b = Add x k; m = Mul b r; t = Tanh m; a = Add i t; p = Mul x a;"
            "y = Mul p h",
            c=0.044715,
            r=ROOT,
            i=1.0,
            h=0.5,
        ),
    ),
    ("Relu", 13, spelt("y = Max zero x", zero=0.0)),
    ("Clip", 13, spelt("a = Relu x; y = Min six a", six=6.0)),
]


@pytest.mark.parametrize(
    ("wanted", "opset", "spelling"), ACTIVATIONS, ids=[f"{a[0]}-{i}" for i, a in enumerate(ACTIVATIONS)]
)
def test_activations_spelt_out(wanted: str, opset: int, spelling: Spelling) -> None:
    becomes(model(*spelling, opset=opset), [wanted])


@pytest.mark.parametrize(
    "spelling",
    [
        # gate of other numbers
        spelt("g = HardSigmoid x; y = Mul x g"),
        spelt("a = Add x t; c = Clip a z s; y = Div c s", t=2.0, z=0.0, s=6.0),
        spelt("a = Add x t; c = Clip a z s; y = Div c u", t=3.0, z=0.0, s=5.0, u=6.0),
        # another tensor than that of the gate
        spelt("r = Relu x; g = Sigmoid r; y = Mul x g"),
    ],
)
def test_formulas_like_an_activation_s_are_left_alone(spelling: Spelling) -> None:
    made, _ = rewritten(model(*spelling))
    assert not {item.op for item in made.nodes} & {"HardSwish", "dagtrain.Silu"}
    x = RNG.standard_normal((2, 2, 6, 6)).astype(np.float32) * 4
    ours = ReferenceEvaluator(as_proto(made)).run(None, {"x": x})[0]
    assert_close(np.asarray(ours), np.asarray(ReferenceEvaluator(model(*spelling)).run(None, {"x": x})[0]), 1e-5)


def test_a_ceiling_other_than_6_makes_no_hard_swish() -> None:
    spelling = spelt("a = Add x t; c = Clip a; d = Mul c f; y = Mul d x", t=3.0, f=1 / 6, Clip_min=0.0, Clip_max=5.0)
    made, _ = rewritten(model(*spelling, opset=9))
    assert [item.op for item in made.nodes] == ["Add", "Clip", "Mul", "Mul"]


def test_what_others_read_of_an_idiom_stays() -> None:
    becomes(model(*spelt("g = Sigmoid x; s = Mul x g; y = Add s g")), ["Sigmoid", "Silu", "Add"])


# ---- dropout and stochastic depth

ONE_EACH, MAP = np.zeros((2, 1, 1, 1), np.float32), np.zeros((2, 2, 6, 6), np.float32)
DRAWN: list[tuple[str, float, int, Spelling]] = [
    (
        "Dropout",
        0.3,
        13,
        spelt("r = RandomUniformLike x; l = Less r k; m = Cast l; d = Div m k; y = Mul x d", k=0.7, Cast_to=1),
    ),
    (
        "Dropout",
        0.3,
        13,
        spelt(
            "r = RandomUniformLike x; g = GreaterOrEqual r p; m = Cast g; s = Mul x m; y = Div s k",
            k=0.7,
            p=0.3,
            Cast_to=1,
        ),
    ),
    (
        "Dropout",
        0.25,
        15,
        spelt(
            "r = RandomUniformLike x; l = LessOrEqual p r; m = CastLike l x; s = Mul m f; y = Mul s x", p=0.25, f=4 / 3
        ),
    ),
    (
        "Dropout",
        0.25,
        13,
        spelt("r = RandomUniformLike x; l = Greater k r; s = Mul x f; y = Where l s z", k=0.75, f=4 / 3, z=0.0),
    ),
    (
        "Dropout",
        0.5,
        13,
        spelt(
            "r = RandomUniform; l = Less r k; m = Cast l; d = Div m k; y = Mul x d",
            k=0.5,
            Cast_to=1,
            RandomUniform_shape=[2, 2, 6, 6],
        ),
    ),
    ("Dropout", 0.2, 15, spelt("b = Bernoulli share; d = Div b k; y = Mul d x", k=0.8, share=MAP + np.float32(0.8))),
    (
        "StochasticDepth",
        0.2,
        13,
        spelt(
            "r = RandomUniformLike o; l = Less r k; m = Cast l; d = Div m k; y = Mul x d", k=0.8, o=ONE_EACH, Cast_to=1
        ),
    ),
    (
        "StochasticDepth",
        0.2,
        15,
        spelt("b = Bernoulli share; s = Mul x b; y = Div s k", k=0.8, share=ONE_EACH + np.float32(0.8)),
    ),
    ("Dropout", 0.3, 13, spelt("r = RandomUniformLike x; l = Less r k; w = Where l x z; y = Div w k", k=0.7, z=0.0)),
    # rounded down once the share is added, as older timm and EfficientNet's drop_connect have it
    (
        "StochasticDepth",
        0.2,
        13,
        spelt("r = RandomUniformLike o; a = Add r k; f = Floor a; d = Div x k; y = Mul d f", k=0.8, o=ONE_EACH),
    ),
    (
        "Dropout",
        0.3,
        13,
        spelt("r = RandomUniformLike x; a = Add k r; f = Floor a; s = Mul x f; y = Div s k", k=0.7),
    ),
]


@pytest.mark.parametrize(("wanted", "ratio", "opset", "spelling"), DRAWN)
def test_random_masks_are_dropout_or_stochastic_depth(
    wanted: str, ratio: float, opset: int, spelling: Spelling
) -> None:
    made, problems = rewritten(model(*spelling, image=(2, 2, 6, 6), opset=opset), ["dagtrain.StochasticDepth"])
    assert list(problems) == []
    (only,) = made.nodes
    assert only.op.removeprefix("dagtrain.") == wanted
    found = made.constants[only.inputs[1]] if wanted == "Dropout" else only.attributes["ratio"]
    assert float(found) == pytest.approx(ratio, abs=1e-6)


BROKEN: list[tuple[str, Spelling]] = [
    (
        r"node r_node \(RandomUniformLike\): .* but what is kept is not divided by 0.7, the share that is kept; .*",
        spelt("r = RandomUniformLike x; l = Less r k; m = Cast l; d = Div m h; y = Mul x d", k=0.7, h=0.5, Cast_to=1),
    ),
    (
        r"node r_node \(RandomUniformLike\): begins dropout or stochastic depth spelt out, which breaks at node y_node "
        r"\(Mul\); a comparison with the share that is kept must follow",
        spelt("r = RandomUniformLike x; y = Mul x r"),
    ),
    (
        r"node r_node \(RandomUniformLike\): begins dropout or stochastic depth whose ratio is computed \(k, read by "
        r"node l_node \(Less\)\); export it with a number",
        spelt(
            "k = ReduceMean x; r = RandomUniformLike x; l = Less r k; m = Cast l; d = Div m k; y = Mul x d", Cast_to=1
        ),
    ),
    (
        r"node r_node \(RandomUniformLike\): .* but what is kept is not divided by 0.7, the share that is kept; .*",
        spelt("r = RandomUniformLike x; l = Less r k; m = Cast l; y = Mul x m", k=0.7, Cast_to=1),
    ),
    (
        r"node r_node \(RandomUniformLike\): .* but numbers of shape \[2, 2, 1, 1\] are drawn for \[2, 2, 6, 6\], not "
        r"one an element or one an image; .*",
        spelt(
            "r = RandomUniformLike o; l = Less r k; m = Cast l; d = Div m k; y = Mul x d",
            k=0.7,
            o=np.zeros((2, 2, 1, 1), np.float32),
            Cast_to=1,
        ),
    ),
    (
        r"node r_node \(RandomUniformLike\): .* but what is kept is not divided by 0.7, the share that is kept; .*",
        spelt("r = RandomUniformLike x; l = Less r k; y = Where l x z", k=0.7, z=0.0),
    ),
    (
        r"node r_node \(RandomUniformLike\): .* but what is dropped becomes another number than 0; .*",
        spelt("r = RandomUniformLike x; l = Less r k; d = Div x k; y = Where l d z", k=0.7, z=-1.0),
    ),
    (
        r"node e_node \(Erf\): begins GELU spelt out, which breaks at node a_node \(Mul\); an addition of 1 must .*",
        spelt("d = Div x r; e = Erf d; a = Mul e x; y = Mul a h", r=SQRT2, h=0.5),
    ),
    (
        r"node e_node \(Erf\): is part of GELU spelt out up to node y_node \(Mul\), but its formula is another one; .*",
        spelt("d = Div x r; e = Erf d; a = Add e i; y = Mul a h", r=1.5, i=1.0, h=0.5),
    ),
    (
        r"node e_node \(Erf\): begins GELU spelt out, which breaks there: node e_node \(Erf\) is read by 2 nodes; .*",
        spelt("d = Div x r; e = Erf d; a = Add e i; b = Relu e; y = Mul a b", r=1.5, i=1.0),
    ),
]


@pytest.mark.parametrize(("wanted", "spelling"), BROKEN)
def test_an_idiom_that_breaks_is_named_with_the_node_where_it_breaks(
    wanted: str, spelling: Spelling, tmp_path: Path
) -> None:
    nodes, constants = spelling
    head = [node("Flatten", "y", "flat"), node("Gemm", "flat w", "scores", transB=1)]
    proto = model([*nodes, *head], {**constants, "w": np.ones((3, 72))}, (2, 2, 6, 6), ["scores"])
    with pytest.raises(ImportProblem) as caught:
        import_model(save(proto, tmp_path))
    assert re.search(wanted, str(caught.value)), str(caught.value)
    assert "RandomUniform" not in str(caught.value).partition("(RandomUniform")[2]


# ---- channels

SHUFFLES: list[tuple[list[str], Spelling]] = [
    (
        ["ChannelShuffle"],
        spelt(
            "a = Reshape x s; b = Transpose a; y = Reshape b t",
            s=np.array([2, 3, 4, 5, 6]),
            t=np.array([2, 12, 5, 6]),
            Transpose_perm=[0, 2, 1, 3, 4],
        ),
    ),
    (
        ["ChannelShuffle"],
        spelt(
            "a = Reshape x s; b = Transpose a; y = Reshape b t",
            s=np.array([0, 4, 3, -1]),
            t=np.array([0, -1, 5, 6]),
            Transpose_perm=[0, 2, 1, 3],
        ),
    ),
    (
        ["ChannelShuffle", "Slice"],
        spelt(
            "a = Reshape x s; b = Transpose a; c = Reshape b t; y = Gather c i",
            s=np.array([12, 2, 30]),
            t=np.array([2, -1, 6, 5, 6]),
            i=np.array(1),
            Transpose_perm=[1, 0, 2],
        ),
    ),
    (["Slice"], spelt("y = Gather x i", i=np.array([3, 4, 5]), Gather_axis=1)),
    (["Slice"], spelt("g = Gather x i; y = Unsqueeze g o", i=np.array(-1), o=np.array([1]), Gather_axis=1)),
]


@pytest.mark.parametrize(("wanted", "spelling"), SHUFFLES)
def test_shuffles_and_choices_of_channels(wanted: list[str], spelling: Spelling) -> None:
    becomes(model(*spelling, image=("N", 12, 5, 6), opset=13), wanted)


@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        (np.arange(12).reshape(3, 4).T.reshape(-1), ["ChannelShuffle"]),
        (np.arange(12).reshape(4, 3).T.reshape(-1) - 12, ["ChannelShuffle"]),
        (np.arange(12)[::-1], ["Gather"]),
        (np.array([0, 4, 8]), ["Gather"]),
        (np.array([], int), ["Gather"]),
    ],
)
def test_channels_gathered_in_the_order_of_a_shuffle(places: Array, wanted: list[str]) -> None:
    proto = model([node("Gather", "x places", "y", axis=1)], {"places": places}, ("N", 12, 3, 3))
    made, _ = rewritten(proto)
    assert [item.op.removeprefix("dagtrain.") for item in made.nodes] == wanted
    if wanted == ["ChannelShuffle"]:
        becomes(proto, wanted)


def test_every_other_channel_side_by_side_is_a_shuffle() -> None:
    nodes = [node("Slice", f"x from{place} many axis step", f"p{place}") for place in range(3)]
    numbers = {f"from{place}": [place] for place in range(3)} | {"many": [2**62], "axis": [1], "step": [3]}
    constants = {name: np.array(value) for name, value in numbers.items()}
    made = becomes(
        model([*nodes, node("Concat", "p0 p1 p2", "y", axis=1)], constants, ("N", 12, 3, 3)), ["ChannelShuffle"]
    )
    assert made.nodes[0].attributes == {"groups": 4}
    for order in ("p0 p2 p1", "p0 p1"):
        made, _ = rewritten(model([*nodes, node("Concat", order, "y", axis=1)], constants, ("N", 12, 3, 3)))
        assert made.nodes[-1].op == "Concat"


def test_channels_scaled_one_by_one_are_scaled_together() -> None:
    nodes, constants = [], {"one": np.array([1])}
    for index in range(3):
        names = {"i": f"i{index}", "g": f"g{index}", "u": f"u{index}", "m": f"m{index}", "a": f"a{index}"}
        nodes += [
            node("Gather", f"x {names['i']}", names["g"], axis=1),
            node("Unsqueeze", f"{names['g']} one", names["u"]),
            node("Mul", f"{names['u']} k{index}", names["m"]),
            node("Add", f"{names['m']} b{index}", names["a"]),
        ]
        constants |= {names["i"]: np.array(index), f"k{index}": RNG.random(), f"b{index}": RNG.random()}
    nodes.append(node("Concat", "a0 a1 a2", "y", axis=1))
    becomes(model(nodes, constants, ("N", 3, 4, 4)), ["Mul", "Add"])


# ---- normalisations

SCALE, SHIFT = RNG.standard_normal(4), RNG.standard_normal(4)
MOMENTS = "u = ReduceMean x; c = Sub x u; q = Pow c two; v = ReduceMean q; e = Add v eps; s = Sqrt e; n = Div c s"
COLUMN = {"scale": SCALE.reshape(4, 1, 1), "shift": SHIFT.reshape(4, 1, 1)}
LAYER_NORMS: list[tuple[list[str], Spelling]] = [
    (
        ["LayerNorm"],
        spelt(f"{MOMENTS}; m = Mul n scale; y = Add m shift", eps=1e-5, two=2.0, ReduceMean_axes=[1], **COLUMN),
    ),
    (["LayerNorm"], spelt(MOMENTS.replace("n =", "y ="), eps=1e-6, two=2.0, ReduceMean_axes=[1])),
    (
        ["LayerNormalization"],
        spelt(
            f"{MOMENTS}; m = Mul scale n; y = Add shift m",
            eps=1e-5,
            two=2.0,
            ReduceMean_axes=[-1],
            scale=SCALE,
            shift=SHIFT,
        ),
    ),
    (
        ["LayerNorm"],
        spelt(
            "u = ReduceMean x; c = Sub x u; q = Mul c c; v = ReduceMean q; e = Add v eps; s = Sqrt e; r = Reciprocal s;"
            "y = Mul c r",
            eps=1e-5,
            ReduceMean_axes=[-3],
        ),
    ),
]


@pytest.mark.parametrize(("wanted", "spelling"), LAYER_NORMS)
def test_layer_normalisation_spelt_out(wanted: list[str], spelling: Spelling) -> None:
    becomes(model(*spelling, image=("N", 4, 4, 4)), wanted)


@pytest.mark.parametrize("other", ["one", "same"])
def test_layer_normalisation_with_axes_as_an_input(other: str) -> None:
    """A constant for both means, or for each its own."""
    axes = {name: np.array([1]) for name in {"one", other}}
    moments = MOMENTS.replace("x;", "x one;", 1).replace("q;", f"q {other};")
    nodes, constants = spelt(moments, eps=1e-5, two=2.0, **axes)
    nodes[-1].output[0] = "y"
    becomes(model(nodes, constants, ("N", 4, 4, 4), opset=18), ["LayerNorm"])


def test_layer_normalisation_of_a_flat_tensor_is_over_its_channels() -> None:
    spelling = spelt("y = LayerNormalization x scale shift", scale=SCALE, shift=SHIFT, LayerNormalization_epsilon=1e-3)
    becomes(model(*spelling, image=("N", 4)), ["LayerNorm"])


@pytest.mark.parametrize("last", ["m = Mul n scale; y = Add m shift", "y = Mul n scale"])
def test_scale_and_shift_after_batch_normalisation_are_its_own(last: str) -> None:
    vectors = {"g": RNG.random(4) + 0.5, "b": RNG.random(4), "mean": RNG.random(4), "variance": RNG.random(4) + 0.5}
    becomes(
        model(*spelt(f"n = BatchNormalization x g b mean variance; {last}", **vectors, **COLUMN), image=("N", 4, 5, 5)),
        ["BatchNormalization"],
    )


def test_local_response_normalisation_as_pytorch_writes_it() -> None:
    spelling = spelt(
        "q = Mul x x; v = Reshape q s; p = Pad v pads; m = AveragePool p; r = Squeeze m one; k = Mul r alpha;"
        "b = Add k bias; d = Pow b beta; y = Div x d",
        s=np.array([0, 1, 7, 5, -1]),
        pads=np.array([0, 0, 2, 0, 0, 0, 0, 2, 0, 0]),
        one=np.array([1]),
        alpha=0.5,
        bias=2.0,
        beta=0.75,
        AveragePool_kernel_shape=[5, 1, 1],
    )
    # ONNX's evaluator takes the batch for the number of channels
    made = becomes(model(*spelling, image=(7, 7, 5, 5), opset=13), ["LRN"])
    assert made.nodes[0].attributes == {"alpha": 0.5, "bias": 2.0, "beta": 0.75, "size": 5}


# ---- pools and padding


def test_a_pool_of_one_pixel_is_nothing() -> None:
    spelling = spelt(
        "a = AveragePool x; b = MaxPool a; y = Relu b", AveragePool_kernel_shape=[1, 1], MaxPool_kernel_shape=[1, 1]
    )
    becomes(model(*spelling), ["Relu"])
    becomes(
        model(*spelt("y = AveragePool x", AveragePool_kernel_shape=[1, 1], AveragePool_strides=[2, 2])), ["AveragePool"]
    )


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("first", [2, 3])
def test_a_mean_of_means_is_one_mean(first: int, keep: int) -> None:
    second = 5 - first if keep else 2
    nodes = [
        node("ReduceMean", "x", "a", axes=[first], keepdims=keep),
        node("ReduceMean", "a", "y", axes=[second], keepdims=keep),
    ]
    becomes(model(nodes, image=("N", 2, 5, 7), opset=13), ["ReduceMean"])
    newer = [node("ReduceMean", "x i", "a", keepdims=keep), node("ReduceMean", "a j", "y", keepdims=keep)]
    constants = {"i": np.array([first]), "j": np.array([second])}
    becomes(model(newer, constants, ("N", 2, 5, 7), opset=18), ["ReduceMean"])


def test_the_largest_of_the_map_is_a_max_pool() -> None:
    becomes(model(*spelt("y = GlobalMaxPool x")), ["MaxPool"])
    becomes(
        model(*spelt("y = ReduceMax x", ReduceMax_axes=[-1, -2], ReduceMax_keepdims=0), opset=13),
        ["MaxPool", "Flatten"],
    )


def windows(size: int, outputs: int) -> Array:
    """Pixels of each window of adaptive pooling, windows of fewer pixels filled up."""
    bounds = [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]
    most = max(end - start for start, end in bounds)
    return np.array([[min(start + k, end - 1) for k in range(most)] for start, end in bounds])


def test_a_view_by_gathering_all_elements_in_order() -> None:
    nodes = [node("Reshape", "x one", "row"), node("Gather", "row places", "y", axis=0)]
    places = np.arange(2 * 8 * 9).reshape(2, 72, 1, 1)
    proto = model(nodes, {"one": np.array([-1]), "places": places}, (2, 8, 3, 3))
    becomes(proto, ["Reshape"])
    swapped = model(nodes, {"one": np.array([-1]), "places": places[:, ::-1]}, (2, 8, 3, 3))
    found, problems = rewritten(swapped)
    assert [item.op for item in found.nodes] == ["Reshape", "Gather"]
    assert list(problems) == []


@pytest.mark.parametrize(("size", "outputs"), [(8, 7), (8, 4), (8, 3), (7, 3), (1, 5), (14, 4)])
def test_adaptive_pooling_by_gathering(size: int, outputs: int) -> None:
    pixels = windows(size, outputs)
    rows = np.broadcast_to(pixels[:, :, None, None], (*pixels.shape, *pixels.shape))
    columns = np.broadcast_to(pixels[None, None], (*pixels.shape, *pixels.shape))
    nodes = [
        node("Transpose", "x", "t", perm=[2, 3, 0, 1]),
        node("GatherND", "t i", "g"),
        node("Transpose", "g", "w", perm=[4, 5, 0, 1, 2, 3]),
        node("ReduceMean", "w axes", "y", keepdims=0),
    ]
    constants = {"i": np.stack([rows, columns], -1), "axes": np.array([-3, -1])}
    proto = model(nodes, constants, ("N", 2, size, size), opset=18)
    if (size, outputs) != (8, 3):
        becomes(proto, ["AveragePool", "Gather", "Gather"] if size == 14 else ["AveragePool"])
        return
    _, problems = rewritten(proto)
    assert [problem.what.partition("but ")[2] for problem in problems] == [
        "its windows are not all of one size, as they are where the map's size is a multiple"
    ]


def sliced_pooling(
    sizes: tuple[int, int],
    outputs: tuple[int, int],
    mean: str = "ReduceMean",
    rows_last: bool = True,
    nested: bool = False,
) -> ModelProto:
    """Every window by a Slice and a mean, joined along one axis after the other."""
    bounds = [[(i * n // o, -(-(i + 1) * n // o)) for i in range(o)] for n, o in zip(sizes, outputs, strict=True)]
    nodes, constants = [], {"axes": np.array([2, 3]), "by_rows": np.array([2]), "by_columns": np.array([-1])}
    for place in np.ndindex(outputs):
        name = f"{place[0]}_{place[1]}"
        (top, bottom), (left, right) = (bounds[axis][index] for axis, index in enumerate(place))
        constants |= {f"t{name}": np.array([top]), f"b{name}": np.array([bottom])}
        constants |= {f"l{name}": np.array([left]), f"r{name}": np.array([right])}
        constants |= {f"from{name}": np.array([top, left]), f"to{name}": np.array([bottom, right - sizes[1] or 2**62])}
        if nested:
            nodes.append(node("Slice", f"x t{name} b{name} by_rows", f"rows{name}"))
            nodes.append(node("Slice", f"rows{name} l{name} r{name} by_columns", f"window{name}"))
        else:
            nodes.append(node("Slice", f"x from{name} to{name} axes", f"window{name}"))
        own = {"ReduceMean": {"axes": [2, 3]}, "AveragePool": {"kernel_shape": [bottom - top, right - left]}}
        nodes.append(node(mean, f"window{name}", f"mean{name}", **own.get(mean, {})))
    outer, inner = (0, 1) if rows_last else (1, 0)
    lines = []
    for first in range(outputs[outer]):
        line = [(first, second) if rows_last else (second, first) for second in range(outputs[inner])]
        lines.append(f"line{first}")
        nodes.append(node("Concat", " ".join(f"mean{row}_{column}" for row, column in line), lines[-1], axis=inner - 2))
    nodes.append(node("Concat", " ".join(lines), "y", axis=outer + 2))
    return model(nodes, constants, ("N", 2, *sizes))


@pytest.mark.parametrize(
    ("sizes", "outputs", "wanted"),
    [
        ((6, 6), (3, 3), "AveragePool"),
        ((8, 8), (3, 3), "AveragePool"),
        ((6, 9), (2, 7), "dagtrain.AdaptiveAveragePool"),
        ((9, 4), (7, 2), "dagtrain.AdaptiveAveragePool"),
    ],
)
@pytest.mark.parametrize("mean", ["ReduceMean", "AveragePool", "GlobalAveragePool"])
def test_adaptive_pooling_by_slices(sizes: tuple[int, int], outputs: tuple[int, int], wanted: str, mean: str) -> None:
    for rows_last, nested in ((True, False), (False, True)):
        proto = sliced_pooling(sizes, outputs, mean, rows_last, nested)
        assert becomes(proto, [wanted.removeprefix("dagtrain.")]).nodes[0].op == wanted


@pytest.mark.parametrize("broken", ["t0_0", "r1_1", "b2_0"])
def test_means_of_slices_that_are_no_pool_s_windows_stay(broken: str) -> None:
    proto = sliced_pooling((6, 6), (3, 3), nested=True)
    for one in proto.graph.initializer:
        if one.name == broken:
            one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one) + (1 if broken == "t0_0" else -1), broken))
    made, _ = rewritten(proto)
    # a single row of them may be one
    assert made.nodes[-1].op == "Concat"
    x = RNG.standard_normal((2, 2, 6, 6)).astype(np.float32)
    ours = ReferenceEvaluator(as_proto(made), new_ops=OPERATORS).run(None, {"x": x})[0]
    assert_close(np.asarray(ours), evaluate(proto, x), 1e-6)


def masked_pooling(sizes: tuple[int, int], outputs: tuple[int, int], scaled: bool = False) -> ModelProto:
    """As PyTorch's dynamo exporter writes adaptive pooling whose windows have unlike sizes; ``scaled``: by products."""
    pixels = [windows(size, output) for size, output in zip(sizes, outputs, strict=True)]
    there = [np.diff(each, axis=1, prepend=-1) > 0 for each in pixels]
    kernel = [each.shape[1] for each in pixels]
    shape = (outputs[0], kernel[0], outputs[1], kernel[1])
    rows, columns = np.broadcast_to(pixels[0][:, :, None, None], shape), np.broadcast_to(pixels[1], shape)
    constants: dict[str, Any] = {"i": np.stack([rows, columns], -1), "zero": np.float32(0)}
    constants |= {"mask0": ~there[0][:, :, None, None], "mask1": ~there[1]}
    counts = there[0].sum(axis=1)[:, None] * there[1].sum(axis=1).astype(np.float32)
    constants["counts"] = (1 / counts if scaled else counts).astype(np.float32)
    constants |= {f"p{place}": np.array(place) for place in range(max(kernel))}
    nodes = [
        node("Transpose", "x", "t", perm=[2, 3, 0, 1]),
        node("GatherND", "t i", "g"),
        node("Transpose", "g", "w", perm=[4, 5, 0, 1, 2, 3]),
        node("Where", "mask0 zero w", "m"),
        node("Where", "mask1 zero m", "n"),
    ]
    total = ""
    for row, column in np.ndindex(*kernel):
        nodes += [
            node("Gather", f"n p{row}", f"r{row}{column}", axis=3),
            node("Gather", f"r{row}{column} p{column}", f"e{row}{column}", axis=4),
        ]
        if total:
            nodes.append(node("Add", f"{total} e{row}{column}", f"s{row}{column}"))
        total = f"s{row}{column}" if total else f"e{row}{column}"
    nodes.append(node("Mul" if scaled else "Div", f"{total} counts", "y"))
    return model(nodes, constants, ("N", 2, *sizes), opset=18)


@pytest.mark.parametrize(
    ("sizes", "outputs", "wanted"),
    [
        ((8, 8), (3, 3), ["AveragePool"]),
        ((11, 6), (4, 3), ["AveragePool"]),
        ((8, 14), (3, 4), ["AveragePool", "Gather"]),
        ((5, 9), (3, 5), ["AveragePool"]),
        # larger in the middle too, along one axis or both
        ((9, 9), (7, 7), ["AdaptiveAveragePool"]),
        ((9, 4), (7, 2), ["AdaptiveAveragePool"]),
        ((10, 13), (7, 6), ["AdaptiveAveragePool"]),
        ((3, 5), (5, 3), ["AdaptiveAveragePool"]),
    ],
)
def test_adaptive_pooling_by_windows_of_unlike_sizes(
    sizes: tuple[int, int], outputs: tuple[int, int], wanted: list[str]
) -> None:
    becomes(masked_pooling(sizes, outputs), wanted)
    becomes(masked_pooling(sizes, outputs, scaled=True), wanted)


def test_unlike_windows_are_one_layer_of_the_graph(tmp_path: Path) -> None:
    proto = masked_pooling((9, 9), (7, 7))
    proto.graph.node.extend([node("Flatten", "y", "flat"), node("Gemm", "flat weight", "scores", transB=1)])
    weight = RNG.standard_normal((3, 2 * 7 * 7)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    proto.graph.output[0].name = "scores"
    frames = RNG.standard_normal((2, 2, 9, 9))
    graph = import_model(save(proto, tmp_path), norm=NormMode.NONE)
    assert_close(forward(graph, frames), evaluate(proto, frames), 1e-5)
    assert [one.layer for one in graph.nodes if isinstance(one.layer, AveragePool)] == [
        AveragePool.sharing(9, 9, (7, 7), channels=2)
    ]


@pytest.mark.parametrize("size", [(8, 3), (9, 7)])
@pytest.mark.parametrize("broken", ["counts", "mask1", "p0", "zero", "i"])
def test_sums_that_are_no_means_of_windows_stay(broken: str, size: tuple[int, int]) -> None:
    proto = masked_pooling(*((each, each) for each in size))
    for one in proto.graph.initializer:
        if one.name == broken:
            value = numpy_helper.to_array(one)
            other = ~value if broken == "mask1" else value + 1
            one.CopyFrom(numpy_helper.from_array(other, broken))
    made, _ = rewritten(proto)
    assert not any("AveragePool" in item.op for item in made.nodes)


@pytest.mark.parametrize(
    ("wanted", "before", "attributes"),
    [
        (["Conv"], "", {}),
        (["Conv"], "", {"Conv_pads": [1, 0, 0, 1]}),
        (["Pad", "Conv"], "", {"Conv_auto_pad": "SAME_UPPER"}),
        (["Relu", "MaxPool"], "Relu", {}),
        (["Pad", "MaxPool"], "", {}),
        (["MaxPool"], "", {"low": True}),
        (["AveragePool"], "", {}),
        (["AveragePool"], "", {"AveragePool_count_include_pad": 1, "AveragePool_pads": [0, 1, 1, 0]}),
        (["Pad", "AveragePool"], "", {"AveragePool_pads": [0, 1, 1, 0]}),
        (["Pad", "AveragePool"], "", {"AveragePool_ceil_mode": 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("opset", [10, 18])
def test_padding_before_a_window_is_its_own(
    wanted: list[str], before: str, attributes: dict[str, Any], opset: int
) -> None:
    kind, low = wanted[-1], -np.inf if attributes.pop("low", False) else 0.0
    own = {key.partition("_")[2]: value for key, value in attributes.items()}
    attributes["low"] = low != 0.0
    first = [node("Relu", "x", "r")] if before else []
    source = "r" if before else "x"
    constants: dict[str, Any] = {"k": RNG.standard_normal((3, 2, 3, 3))}
    if opset < 11:
        pad = node("Pad", source, "p", pads=[0, 0, 1, 0, 0, 0, 1, 2], value=float(low))
    else:
        pad = node("Pad", f"{source} pads low axes", "p")
        constants |= {"pads": np.array([1, 0, 1, 2]), "low": np.float32(low), "axes": np.array([2, -1])}
    if kind != "Conv":
        own |= {"kernel_shape": [3, 3], "strides": [2, 2]}
    last = node(kind, "p k" if kind == "Conv" else "p", "y", **own)
    becomes(model([*first, pad, last], constants, opset=opset), wanted)


# ---- arithmetic


def test_neutral_arithmetic_is_nothing() -> None:
    spelling = spelt(
        "a = Mul x one; b = Div a one; c = Add zero b; d = Sub c zero; e = Pow d one; y = Relu e", one=1.0, zero=0.0
    )
    becomes(model(*spelling), ["Relu"])
    becomes(model(*spelt("a = Sub zero x; y = Relu a", zero=0.0)), ["Mul", "Add", "Relu"])


def test_a_constant_of_more_axes_is_not_neutral() -> None:
    made, _ = rewritten(model(*spelt("y = Mul x one", one=np.ones((1, 1), np.float32)), image=("N", 4)))
    assert made.nodes == ()
    made, _ = rewritten(model(*spelt("y = Mul x one", one=np.ones((1, 1, 1), np.float32)), image=("N", 4)))
    assert [item.op for item in made.nodes] == ["Mul"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("y = Div x c", ["Mul"]),
        ("y = Sub x c", ["Add"]),
        ("y = Neg x", ["Mul"]),
        ("r = Relu x; y = Sub x r", ["Relu", "Mul", "Add"]),
        ("y = Sub c x", ["Mul", "Add"]),
        ("r = Sigmoid x; y = Div x r", ["Sigmoid", "Div"]),
    ],
)
def test_divisions_and_differences_are_products_and_sums(text: str, wanted: list[str]) -> None:
    becomes(model(*spelt(text, c=np.array([[[2.0]], [[-3.0]]]))), wanted)


def test_what_is_expanded_for_a_product_broadcasts() -> None:
    nodes = [node("GlobalAveragePool", "x", "g"), node("Expand", "g s", "e"), node("Mul", "e x", "y")]
    becomes(model(nodes, {"s": np.array([1, 2, 6, 6])}), ["GlobalAveragePool", "Mul"])


def test_adaptive_pooling_by_windows_of_several_sizes_is_named() -> None:
    nodes = [
        node("Transpose", "x", "t", perm=[2, 3, 0, 1]),
        node("GatherND", "t i", "g"),
        node("Transpose", "g", "w", perm=[4, 5, 0, 1, 2, 3]),
        node("Where", "mask w zero", "y"),
    ]
    constants = {"i": np.zeros((3, 4, 3, 4, 2), int), "mask": np.ones((4, 1, 1), bool), "zero": np.float32(0)}
    _, problems = rewritten(model(nodes, constants, ("N", 2, 8, 8), opset=18))
    assert [str(problem) for problem in problems] == [
        "node g_node (GatherND): begins adaptive pooling spelt out, which breaks at node y_node (Where); a mean over "
        "windows that overlap equal shares of the map must follow"
    ]


# ---- with the layers


WHOLE: list[tuple[tuple[int | str, ...], int, Spelling]] = [
    *((("N", 2, 6, 6), opset, spelling) for _, opset, spelling in ACTIVATIONS),
    *((("N", 12, 5, 6), 13, spelling) for _, spelling in SHUFFLES),
    *((("N", 4, 4, 4), 17, spelling) for wanted, spelling in LAYER_NORMS if wanted == ["LayerNorm"]),
]


@pytest.mark.parametrize(("image", "opset", "spelling"), WHOLE)
def test_layers_of_what_was_spelt_out_compute_what_the_file_does(
    image: tuple[int | str, ...], opset: int, spelling: Spelling, tmp_path: Path
) -> None:
    nodes, constants = spelling
    head = [
        node("GlobalAveragePool", "y", "pooled"),
        node("Flatten", "pooled", "flattened"),
        node("Gemm", "flattened weight", "scores", transB=1),
    ]
    sizes = (2, *(size for size in image if isinstance(size, int)))
    channels = ReferenceEvaluator(model(nodes, constants, sizes, opset=opset)).run(None, {"x": np.zeros(sizes, "f4")})[
        0
    ]
    weight = np.random.default_rng(73).standard_normal((3, channels.shape[1]))
    proto = model([*nodes, *head], {**constants, "weight": weight}, image, ["scores"], opset)
    frames = np.random.default_rng(74).standard_normal(sizes) * 4
    graph = import_model(save(proto, tmp_path), norm=NormMode.NONE)
    assert_close(forward(graph, frames), evaluate(proto, frames), 1e-5)


# ---- all in all


def test_rewriting_leaves_the_opset_of_the_file_and_every_constant_in_use() -> None:
    made, _ = rewritten(model(*spelt("g = Sigmoid x; y = Mul x g; z = Add y w", w=np.ones(3))))
    assert (made.opset, dict(made.constants)) == (17, {})
