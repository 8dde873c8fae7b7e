"""Maps that are kept channels last for a while, or from the image on, are computed channels first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from importers.onnx import NormMode, import_with_notes
from tests.import_support import Array, assert_close, evaluate, forward, model, node, save
from tests.test_import_idioms import becomes, rewritten

RNG = np.random.default_rng(81)
LAST, FIRST, TURNED = [0, 2, 3, 1], [0, 3, 1, 2], [0, 2, 1, 3]


def last(source: str, result: str) -> NodeProto:
    """Channels last."""
    return node("Transpose", source, result, perm=LAST)


def first(source: str, result: str) -> NodeProto:
    """Channels first."""
    return node("Transpose", source, result, perm=FIRST)


def weights(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def test_the_linear_layers_of_convnext_are_convolutions() -> None:
    nodes = [
        node("Conv", "x k b", "c", group=4, pads=[1, 1, 1, 1]),
        last("c", "t"),
        node("LayerNormalization", "t scale shift", "n", axis=-1, epsilon=1e-6),
        node("MatMul", "n w1", "h"),
        node("Add", "b1 h", "i"),
        node("Gelu", "i", "g"),
        node("MatMul", "g w2", "j"),
        node("Add", "j b2", "o"),
        first("o", "u"),
        node("Mul", "gamma u", "s"),
        node("Add", "x s", "y"),
    ]
    constants = {
        "k": weights(4, 1, 3, 3), "b": weights(4), "scale": weights(4), "shift": weights(4), "w1": weights(4, 16),
        "b1": weights(16), "w2": weights(16, 4), "b2": weights(4), "gamma": weights(4, 1, 1),
    }  # fmt: skip
    wanted = ["Conv", "LayerNorm", "Conv", "Gelu", "Conv", "Mul", "Add"]
    made = becomes(model(nodes, constants, ("N", 4, 5, 6), opset=20), wanted, 1e-4)
    assert [len(item.inputs) for item in made.nodes if item.op == "Conv"] == [3, 3, 3]


def test_layer_normalisation_spelt_out_between_transposes() -> None:
    nodes = [
        last("x", "t"),
        node("ReduceMean", "t", "u", axes=[-1]),
        node("Sub", "t u", "c"),
        node("Pow", "c two", "q"),
        node("ReduceMean", "q", "v", axes=[-1]),
        node("Add", "v eps", "e"),
        node("Sqrt", "e", "s"),
        node("Div", "c s", "n"),
        node("Mul", "n scale", "m"),
        node("Add", "m shift", "a"),
        first("a", "y"),
    ]
    constants = {"two": 2.0, "eps": 1e-5, "scale": weights(4), "shift": weights(4)}
    becomes(model(nodes, constants, ("N", 4, 5, 6), opset=11), ["LayerNorm"])


def channels_last_network(image: Sequence[int | str] = ("N", 6, 8, 2)) -> ModelProto:
    """As tf2onnx writes a network of Keras: NHWC from the image on, Transposes around convolutions."""
    nodes = [
        node("Sub", "x mean", "centred"),
        node("Pad", "centred pads", "padded"),
        first("padded", "p"),
        node("Conv", "p k", "c", strides=[2, 2]),
        last("c", "l"),
        node("Add", "l bias", "b"),
        node("Relu", "b", "r"),
        first("r", "q"),
        node("MaxPool", "q", "m", kernel_shape=[2, 2]),
        last("m", "n"),
        node("Concat", "n n", "twice", axis=3),
        node("Reshape", "twice flat", "f"),
        node("Relu", "f", "g"),
        node("MatMul", "g w", "s"),
        node("Add", "s d", "scores"),
        node("Softmax", "scores", "y"),
    ]
    constants: dict[str, Any] = {
        "mean": weights(1, 1, 2), "pads": np.array([0, 0, 0, 0, 0, 1, 1, 0]), "k": weights(3, 2, 3, 3),
        "bias": weights(3), "flat": np.array([-1, 36]), "w": weights(36, 5), "d": weights(5),
    }  # fmt: skip
    return model(nodes, constants, image, opset=13)


def test_a_network_written_channels_last_loses_all_transposes(tmp_path: Path) -> None:
    proto = channels_last_network()
    made, problems = rewritten(proto)
    assert list(problems) == []
    assert made.image_shape == (2, 2, 6, 8)
    # the padding follows a difference, so it is not the convolution's own: zeros and not mean values stand there
    wanted = ["Add", "Conv", "Relu", "MaxPool", "Concat", "Relu", "Flatten", "MatMul", "Add"]
    assert [item.op for item in made.nodes] == wanted
    image = RNG.standard_normal((2, 6, 8, 2))
    found = import_with_notes(save(proto, tmp_path), norm=NormMode.NONE)
    assert_close(forward(found.graph, image.transpose(0, 3, 1, 2)), evaluate(proto, image), 1e-5)
    assert "input x is (N, height, width, channels) in the file; its channels are the last axis" in found.notes


@pytest.mark.parametrize("keep", [0, 1])
def test_a_mean_over_rows_and_columns_channels_last(keep: int) -> None:
    ends = [node("Reshape", "a s", "y")] if keep else [node("Relu", "a", "y")]
    nodes = [last("x", "t"), node("ReduceMean", "t", "a", axes=[1, 2], keepdims=keep), *ends]
    wanted = ["ReduceMean", *(["Reshape", "Reshape"] if keep else ["Relu"])]
    becomes(model(nodes, {"s": np.array([0, -1])}, ("N", 4, 5, 6), opset=13), wanted)


def test_squeeze_and_excitation_channels_last() -> None:
    nodes = [
        last("x", "t"),
        node("Relu", "t", "r"),
        node("ReduceMean", "r", "a", axes=[1, 2], keepdims=0),
        node("MatMul", "a w", "h"),
        node("Sigmoid", "h", "g"),
        node("Reshape", "g s", "e"),
        node("Mul", "r e", "m"),
        first("m", "y"),
    ]
    constants = {"w": weights(4, 4), "s": np.array([-1, 1, 1, 4])}
    wanted = ["Relu", "ReduceMean", "MatMul", "Sigmoid", "Reshape", "Reshape", "Mul"]
    becomes(model(nodes, constants, ("N", 4, 5, 6), opset=13), wanted)


def test_slices_and_splits_channels_last() -> None:
    nodes = [
        last("x", "t"),
        node("Split", "t sizes", "a b", axis=-1),
        node("Slice", "b from to axis", "c"),
        node("Concat", "c a", "d", axis=3),
        first("d", "y"),
    ]
    constants = {"sizes": np.array([1, 3]), "from": np.array([1]), "to": np.array([3]), "axis": np.array([3])}
    becomes(model(nodes, constants, ("N", 4, 5, 6), opset=13), ["Split", "Slice", "Concat"])


def test_gemm_behind_a_flattened_view_with_weights_either_way() -> None:
    for transposed in (0, 1):
        nodes = [
            last("x", "t"),
            node("Flatten", "t", "f"),
            node("Gemm", "f w b", "y", transB=transposed, alpha=0.5),
        ]
        shape = (7, 120) if transposed else (120, 7)
        constants = {"w": weights(*shape), "b": weights(7)}
        becomes(model(nodes, constants, ("N", 4, 5, 6), opset=13), ["Flatten", "Gemm"])


def test_transposes_that_undo_one_another_are_nothing() -> None:
    nodes = [last("x", "a"), last("a", "b"), last("b", "c"), node("Relu", "c", "y")]
    becomes(model(nodes, image=("N", 4, 4, 4)), ["Relu"])


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        # an axis of the map becomes the channels
        (
            [node("Transpose", "x", "t", perm=TURNED), node("MaxPool", "t", "y", kernel_shape=[2, 2])],
            ["Transpose", "MaxPool"],
        ),
        # two orders of one map
        (
            [last("x", "t"), node("Transpose", "x", "u", perm=TURNED), node("Add", "t u", "y")],
            ["Transpose", "Transpose", "Add"],
        ),
        # the result is channels last
        ([last("x", "t"), node("Relu", "t", "y")], ["Relu", "Transpose"]),
        # a matrix that is multiplied from the right axis of another order
        ([node("Transpose", "x", "t", perm=[0, 3, 2, 1]), node("MatMul", "t w", "y")], ["Transpose", "MatMul"]),
    ],
)
def test_transposes_that_nothing_takes_away_stay(nodes: list[NodeProto], wanted: list[str]) -> None:
    becomes(model(nodes, {"w": weights(4, 3)}, (2, 4, 4, 4)), wanted)


def test_axes_of_size_1_may_move_freely() -> None:
    nodes = [node("GlobalAveragePool", "x", "g"), last("g", "t"), node("MatMul", "t w", "m"), node("Relu", "m", "y")]
    # the result keeps the axes of the file
    becomes(model(nodes, {"w": weights(4, 3)}, ("N", 4, 5, 6)), ["GlobalAveragePool", "Conv", "Relu", "Reshape"])
