"""Where normalisation stands after import, in each mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from dagtrain.graph.ir import Role
from dagtrain.passes.autodiff import differentiate
from hdl.errors import ImportProblem
from hdl.layers.pointwise.channel_affine import ChannelAffine
from importers.onnx import Imported, NormMode, import_with_notes
from importers.onnx.norm import Fate, NormChoice
from tests.import_support import assert_close, evaluate, forward, model, node, save

RNG = np.random.default_rng(31)
CONSTANTS: dict[str, Any] = {
    "w": RNG.standard_normal((3, 2, 3, 3)),
    "b": RNG.standard_normal(3),
    "d": RNG.standard_normal(3),
    "v": RNG.standard_normal((3, 3, 1, 1)),
    "scale": RNG.uniform(0.5, 2, 3),
    "shift": RNG.standard_normal(3),
    "mean": RNG.standard_normal(3),
    "variance": RNG.uniform(0.5, 2, 3),
    "scores_w": RNG.standard_normal((4, 3)),
    "scores_b": RNG.standard_normal(4),
}
HEAD = [
    node("GlobalAveragePool", "m", "pooled"),
    node("Flatten", "pooled", "flat"),
    node("Gemm", "flat scores_w scores_b", "y", transB=1),
]
NORM = node("BatchNormalization", "c scale shift mean variance", "n", epsilon=1e-3)


def kinds(imported: Imported) -> list[str]:
    """Class names of layers between image and classifier."""
    return [type(item.layer).__name__ for item in imported.graph.nodes][1:-4]


def net(*nodes: Any, constants: dict[str, Any] | None = None, opset: int = 17) -> ModelProto:
    """The nodes, and a classifier on tensor ``m``."""
    return model([*nodes, *HEAD], constants or CONSTANTS, opset=opset)


WITH_NORM = (node("Conv", "x w b", "c"), NORM, node("Relu", "n", "m"))
FOLDED = (node("Conv", "x w b", "c"), node("Relu", "c", "m"))


@pytest.mark.parametrize(
    ("nodes", "mode", "wanted"),
    [
        (WITH_NORM, NormMode.ONLINE, ["Conv", "OnlineNorm", "Relu"]),
        (WITH_NORM, NormMode.NONE, ["Conv", "Bias", "Relu"]),
        (WITH_NORM, NormMode.AS_IS, ["Conv", "Bias", "OnlineNorm", "Relu"]),
        (FOLDED, NormMode.ONLINE, ["Conv", "OnlineNorm", "Relu"]),
        (FOLDED, NormMode.NONE, ["Conv", "Bias", "Relu"]),
        (FOLDED, NormMode.AS_IS, ["Conv", "Bias", "Relu"]),
        (WITH_NORM, NormMode.FROZEN, ["Conv", "Bias", "ChannelAffine", "Relu"]),
        (FOLDED, NormMode.FROZEN, ["Conv", "Bias", "Relu"]),
    ],
)
def test_each_mode_puts_normalisation_where_it_says(
    nodes: tuple[Any, ...], mode: NormMode, wanted: list[str], tmp_path: Path
) -> None:
    imported = import_with_notes(save(net(*nodes), tmp_path), norm=mode)
    assert kinds(imported) == wanted
    assert sum(type(item.layer).__name__ == "Bias" for item in imported.graph.nodes[-3:]) == 1


def test_online_keeps_scale_shift_and_epsilon_of_the_file(tmp_path: Path) -> None:
    graph = import_with_notes(save(net(*WITH_NORM), tmp_path)).graph
    norm = next(item for item in graph.nodes if type(item.layer).__name__ == "OnlineNorm")
    assert norm.layer.epsilon == pytest.approx(1e-3)  # type: ignore[attr-defined]
    np.testing.assert_allclose(graph.parameters[norm.parameters["gamma"]], CONSTANTS["scale"], rtol=1e-6)
    np.testing.assert_allclose(graph.parameters[norm.parameters["beta"]], CONSTANTS["shift"], rtol=1e-6)


@pytest.mark.parametrize("mode", [NormMode.ONLINE, NormMode.AS_IS])
def test_online_begins_with_the_statistics_of_the_file(mode: NormMode, tmp_path: Path) -> None:
    proto = net(*WITH_NORM)
    # with the bias of the convolution, or the mean without it
    graph = import_with_notes(save(proto, tmp_path), norm=mode).graph
    image = np.random.default_rng(34).standard_normal((1, 2, 6, 6))
    assert_close(forward(graph, image), evaluate(proto, image), 1e-6)


def test_statistics_into_which_no_data_went_are_left_open(tmp_path: Path) -> None:
    fresh = {**CONSTANTS, "shift": np.zeros(3), "mean": np.zeros(3), "variance": np.ones(3)}
    assert import_with_notes(save(net(*WITH_NORM, constants=fresh), tmp_path)).graph.carried == {}
    assert import_with_notes(save(net(node("Conv", "x w", "m")), tmp_path)).graph.carried == {}
    # a shift tells of a training; the function of the file is kept
    (kept,) = import_with_notes(save(net(*FOLDED), tmp_path)).graph.carried.values()
    np.testing.assert_equal(dict(kept), {"mean": np.zeros(3), "variance": np.ones(3)})
    for name in ("shift", "mean", "variance"):
        changed = {**fresh, name: CONSTANTS[name]}
        assert len(import_with_notes(save(net(*WITH_NORM, constants=changed), tmp_path)).graph.carried) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"variance": np.array([1.0, -0.1, 1.0])}, "a running variance is negative; export again"),
        ({"mean": np.zeros(2)}, r"mean of shape \[2\] meets 3 channels"),
    ],
)
def test_statistics_that_cannot_be_are_named(bad: dict[str, Any], message: str, tmp_path: Path) -> None:
    proto = net(node("Conv", "x w", "c"), NORM, node("Relu", "n", "m"), constants={**CONSTANTS, **bad})
    with pytest.raises(ImportProblem, match=message):
        import_with_notes(save(proto, tmp_path))


def test_normalisation_put_back_has_scale_1_and_the_bias_as_shift(tmp_path: Path) -> None:
    graph = import_with_notes(save(net(*FOLDED), tmp_path)).graph
    norm = next(item for item in graph.nodes if type(item.layer).__name__ == "OnlineNorm")
    np.testing.assert_array_equal(graph.parameters[norm.parameters["gamma"]], np.ones(3))
    np.testing.assert_allclose(graph.parameters[norm.parameters["beta"]], CONSTANTS["b"], rtol=1e-6)


def test_normalisation_is_put_back_where_the_exporter_dropped_a_bias_of_0(tmp_path: Path) -> None:
    imported = import_with_notes(save(net(node("Conv", "x w", "c"), node("Relu", "c", "m")), tmp_path))
    assert kinds(imported) == ["Conv", "OnlineNorm", "Relu"]
    assert imported.notes == ()
    why = "the file has no BatchNormalization: it was folded"
    assert imported.norms[0] == NormChoice("c_node", Fate.PUT_BACK, why)


def test_the_convolution_that_makes_the_class_scores_is_never_normalised(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Relu", "c", "r"),
        node("Conv", "r v d", "scores"),
        node("GlobalAveragePool", "scores", "pooled"),
        node("Flatten", "pooled", "y"),
    ]
    imported = import_with_notes(save(model(nodes, CONSTANTS), tmp_path))
    found = [type(item.layer).__name__ for item in imported.graph.nodes]
    assert found == [
        "HostInput", "Conv", "OnlineNorm", "Relu", "Conv", "Bias", "GlobalAveragePool", "SoftmaxCrossEntropy",
    ]  # fmt: skip


@pytest.mark.parametrize("opset", [9, 15, 17])
def test_folding_normalisation_does_not_change_the_function(opset: int, tmp_path: Path) -> None:
    proto = net(*WITH_NORM, opset=opset)
    imported = import_with_notes(save(proto, tmp_path), norm=NormMode.NONE)
    image = np.random.default_rng(32).standard_normal((2, 2, 6, 6))
    assert_close(forward(imported.graph, image), evaluate(proto, image), 1e-6)


@pytest.mark.parametrize("opset", [9, 17])
def test_frozen_normalisation_does_not_change_the_function_and_is_not_trained(opset: int, tmp_path: Path) -> None:
    before = node("BatchNormalization", "x one two three four", "early")
    nodes = (before, node("Conv", "early w b", "c"), NORM, node("Relu", "n", "m"))
    rng = np.random.default_rng(33)
    constants = {**CONSTANTS, **{name: rng.uniform(0.5, 2, 2) for name in ("one", "two", "three", "four")}}
    proto = net(*nodes, constants=constants, opset=opset)
    image = np.random.default_rng(32).standard_normal((2, 2, 6, 6))
    imported = import_with_notes(save(proto, tmp_path), norm=NormMode.FROZEN)
    assert_close(forward(imported.graph, image), evaluate(proto, image), 1e-5)
    assert any(note.startswith("2 BatchNormalization nodes stay as they are") for note in imported.notes)
    training = differentiate(imported.graph)
    updated = {node.name for node in training.nodes if node.role is Role.UPDATE}
    frozen = [item.name for item in imported.graph.nodes if isinstance(item.layer, ChannelAffine)]
    assert len(frozen) == 2
    assert not [name for name in updated if name.split(".")[0] in frozen]
    # nothing learns before the first
    assert [f"{name}.error" in training.by_name for name in frozen] == [False, True]


def test_a_folded_file_has_nothing_to_freeze(tmp_path: Path) -> None:
    imported = import_with_notes(save(net(*FOLDED), tmp_path), norm=NormMode.FROZEN)
    assert any("has no BatchNormalization that could stay" in note for note in imported.notes)


def test_normalisation_that_no_convolution_can_take_becomes_a_depthwise_one(tmp_path: Path) -> None:
    # the convolution's raw result is used as well
    nodes = [node("Conv", "x w", "c"), NORM, node("Add", "n c", "m")]
    proto = net(*nodes)
    imported = import_with_notes(save(proto, tmp_path), norm=NormMode.NONE)
    assert kinds(imported) == ["Conv", "DepthwiseConv", "Bias", "Add"]
    image = np.random.default_rng(33).standard_normal((2, 2, 6, 6))
    assert_close(forward(imported.graph, image), evaluate(proto, image), 1e-6)


def test_training_mode_with_its_three_results_is_online_normalisation(tmp_path: Path) -> None:
    norm = node("BatchNormalization", "c scale shift mean variance", "n rm rv", training_mode=1, momentum=0.1)
    proto = net(node("Conv", "x w", "c"), norm, node("Relu", "n", "m"))
    assert kinds(import_with_notes(save(proto, tmp_path))) == ["Conv", "OnlineNorm", "Relu"]


def test_running_statistics_listed_as_results_are_none(tmp_path: Path) -> None:
    norm = node("BatchNormalization", "c scale shift mean variance", "n rm rv", training_mode=1)
    nodes = [node("Conv", "x w", "c"), norm, node("Relu", "n", "m"), *HEAD]
    proto = model(nodes, CONSTANTS, outputs=("y", "rm", "rv"))
    assert kinds(import_with_notes(save(proto, tmp_path))) == ["Conv", "OnlineNorm", "Relu"]


# ---- which convolutions were folded

VECTORS, OTHERS = "scale shift mean variance", "scale2 shift2 mean variance"
BEFORE = {
    "k3": RNG.standard_normal((3, 3, 1, 1)),
    "k4": RNG.standard_normal((3, 3, 1, 1)),
    "scale2": RNG.uniform(0.5, 2, 3),
    "shift2": RNG.standard_normal(3),
    "d2": RNG.standard_normal(3),
    **CONSTANTS,
}


def fates(imported: Imported) -> dict[str, Fate]:
    """Node -> what became of its normalisation."""
    return {choice.node: choice.fate for choice in imported.norms}


def test_of_a_folded_file_that_keeps_normalisation_before_activations_the_folded_ones_get_theirs_back(
    tmp_path: Path,
) -> None:
    # as in DenseNet: norm, relu, 1x1 (its norm folded), relu, 3x3, joined, norm
    nodes = [
        node("Conv", "x w b", "stem"),
        node("Relu", "stem", "r"),
        node("BatchNormalization", f"r {VECTORS}", "n1"),
        node("Relu", "n1", "r1"),
        node("Conv", "r1 k3 d", "folded"),
        node("Relu", "folded", "r2"),
        node("Conv", "r2 k4", "plain"),
        node("Add", "plain r", "joined"),
        node("BatchNormalization", f"joined {OTHERS}", "m"),
    ]
    found = import_with_notes(save(net(*nodes, constants=BEFORE), tmp_path))
    assert fates(found) == {
        "stem_node": Fate.PUT_BACK,
        "folded_node": Fate.PUT_BACK,
        "plain_node": Fate.LEFT,
        "n1_node": Fate.KEPT,
        "m_node": Fate.KEPT,
    }
    assert kinds(found) == [
        "Conv", "OnlineNorm", "Relu", "OnlineNorm", "Relu", "Conv", "OnlineNorm", "Relu", "Conv", "Add", "OnlineNorm",
    ]  # fmt: skip


def test_a_convolution_without_bias_that_meets_weights_before_a_normalisation_was_folded(tmp_path: Path) -> None:
    nodes = [
        node("BatchNormalization", f"x {VECTORS}", "n1"),
        node("Conv", "n1 k3", "a"),
        node("Conv", "a k4", "c"),
        node("Relu", "c", "r"),
        node("BatchNormalization", f"r {OTHERS}", "m"),
    ]
    proto = model([*nodes, *HEAD], BEFORE, ("N", 3, 6, 6))
    found = import_with_notes(save(proto, tmp_path))
    assert fates(found) == {"a_node": Fate.PUT_BACK, "c_node": Fate.LEFT, "n1_node": Fate.KEPT, "m_node": Fate.KEPT}


def test_a_convolution_with_a_bias_that_meets_a_normalisation_before_any_activation_was_not_folded(
    tmp_path: Path,
) -> None:
    # as in ResNet-50 V2 of Keras, whose convolutions have biases of their own
    nodes = [
        node("BatchNormalization", f"x {VECTORS}", "n1"),
        node("Relu", "n1", "r1"),
        node("Conv", "r1 k3 d", "folded"),
        node("Relu", "folded", "r2"),
        node("Conv", "r2 k4 d2", "plain"),
        node("Add", "plain x", "joined"),
        node("BatchNormalization", f"joined {OTHERS}", "n2"),
        node("Relu", "n2", "m"),
    ]
    found = import_with_notes(save(model([*nodes, *HEAD], BEFORE, ("N", 3, 6, 6)), tmp_path))
    assert [fates(found)[f"{name}_node"] for name in ("folded", "plain")] == [Fate.PUT_BACK, Fate.LEFT]
    assert [type(item.layer).__name__ for item in found.graph.nodes].count("Bias") == 2


def test_a_convolution_that_a_normalisation_reads_beside_others_was_not_folded(tmp_path: Path) -> None:
    # the first one of a network that normalises before activations: the shortcut reads it, too
    nodes = [
        node("Conv", "x w b", "c"),
        NORM,
        node("Relu", "n", "r"),
        node("Conv", "r k3 d", "e"),
        node("Add", "e c", "m"),
    ]
    found = import_with_notes(save(net(*nodes, constants=BEFORE), tmp_path))
    assert fates(found) == {"c_node": Fate.LEFT, "e_node": Fate.PUT_BACK, "n_node": Fate.KEPT}


def test_a_file_that_keeps_normalisation_behind_convolutions_was_not_folded(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "c"),
        NORM,
        node("Conv", "n k3 d", "plain"),
        node("Relu", "plain", "m"),
    ]
    found = import_with_notes(save(net(*nodes, constants=BEFORE), tmp_path))
    assert fates(found) == {"c_node": Fate.KEPT, "plain_node": Fate.LEFT}
    assert kinds(found) == ["Conv", "OnlineNorm", "Conv", "Bias", "Relu"]


def test_convolutions_on_averages_over_the_map_are_left(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("GlobalAveragePool", "c", "squeezed"),
        node("Conv", "squeezed k3 d", "fewer"),
        node("Relu", "fewer", "r"),
        node("Conv", "r k4 d2", "more"),
        node("Sigmoid", "more", "gate"),
        node("Mul", "c gate", "m"),
    ]
    found = import_with_notes(save(net(*nodes, constants=BEFORE), tmp_path))
    assert fates(found) == {"c_node": Fate.PUT_BACK, "fewer_node": Fate.LEFT, "more_node": Fate.LEFT}
    assert found.norms[1].why == "it works on averages over the map, as in squeeze-and-excitation"


def test_folding_says_what_it_folded(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), NORM, node("Add", "n c", "s"), node("Conv", "s k3", "e")]
    nodes.append(node("BatchNormalization", f"e {VECTORS}", "m"))
    found = import_with_notes(save(net(*nodes, constants=BEFORE), tmp_path), norm=NormMode.NONE)
    assert fates(found) == {"n_node": Fate.FOLDED, "e_node": Fate.FOLDED}


# ---- of features


FEATURES = {
    "a": RNG.standard_normal((3, 8)),
    "at": RNG.standard_normal((8, 3)),
    "b": RNG.standard_normal((1, 3)),
    "scale": RNG.uniform(0.5, 2, 3),
    "shift": RNG.standard_normal(3),
    "mean": RNG.standard_normal(3),
    "variance": RNG.uniform(0.5, 2, 3),
    "last": RNG.standard_normal((4, 3)),
    "axes": np.array([2]),
}
OF_FEATURES = node("BatchNormalization", f"g {VECTORS}", "n")
SCORES = [node("Relu", "n", "r"), node("Gemm", "r last", "y", transB=1)]


@pytest.mark.parametrize("mode", NormMode)
@pytest.mark.parametrize(
    ("nodes", "folded"),
    [
        ([node("Gemm", "x a b", "g", transB=1, beta=0.5, alpha=2.0), OF_FEATURES], ["Conv", "Bias"]),
        ([node("Gemm", "x at", "g"), OF_FEATURES], ["Conv", "Bias"]),
        (
            [node("MatMul", "x at", "p"), node("Add", "p b", "g"), OF_FEATURES],
            ["Conv", "Bias", "DepthwiseConv", "Bias"],
        ),
        # older exporters have three axes for BatchNorm1d
        (
            [
                node("Gemm", "x a b", "p", transB=1),
                node("Unsqueeze", "p axes", "g"),
                node("BatchNormalization", f"g {VECTORS}", "u"),
                node("Squeeze", "u axes", "n"),
            ],
            ["Conv", "Bias", "DepthwiseConv", "Bias"],
        ),
    ],
    ids=["gemm", "gemm without bias", "matmul", "three axes"],
)
def test_normalisation_of_features_is_imported_in_every_mode(
    nodes: list[Any], folded: list[str], mode: NormMode, tmp_path: Path
) -> None:
    proto = model([*nodes, *SCORES], FEATURES, ("N", 8))
    imported = import_with_notes(save(proto, tmp_path), norm=mode)
    image = np.random.default_rng(35).standard_normal((2, 8))
    if mode is NormMode.NONE:
        assert [type(item.layer).__name__ for item in imported.graph.nodes[1:-3]] == folded
    if mode in (NormMode.NONE, NormMode.FROZEN):
        assert_close(forward(imported.graph, image.reshape(2, 8, 1, 1)), evaluate(proto, image), 1e-6)
