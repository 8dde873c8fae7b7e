"""Ends of files: losses, labels, auxiliary heads; and images that are flat or have no channels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from hdl.errors import ImportProblem
from hdl.recipe import Loss, Recipe
from importers.onnx import Imported, import_with_notes
from tests.import_support import Array, assert_close, evaluate, forward, model, node, save

RNG = np.random.default_rng(61)
W = RNG.standard_normal((3, 72))
SCORES = (node("Flatten", "x", "flat"), node("Gemm", "flat w", "scores", transB=1))
BEFORE = model(SCORES, {"w": W}, outputs=["scores"])


def imported(proto: ModelProto, folder: Path) -> Imported:
    return import_with_notes(save(proto, folder))


def kinds(found: Imported) -> list[str]:
    """Class names of layers between image and loss."""
    return [type(item.layer).__name__ for item in found.graph.nodes][1:-1]


def labelled(proto: ModelProto) -> ModelProto:
    """With labels as a second input."""
    proto.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"]))
    return proto


@pytest.mark.parametrize(
    ("ends", "outputs", "dropped"),
    [
        ([node("SoftmaxCrossEntropyLoss", "scores labels", "loss")], ["loss"], ["node loss_node (Softm"]),
        ([node("SoftmaxCrossEntropyLoss", "scores labels", "loss log")], ["loss", "log"], ["node loss_node (Softm"]),
        (
            [node("LogSoftmax", "scores", "log", axis=1), node("NegativeLogLikelihoodLoss", "log labels", "loss")],
            ["loss"],
            ["node loss_node (Negat", "node log_node (LogSof"],
        ),
        (
            [node("SoftmaxCrossEntropyLoss", "scores labels", "loss")],
            ["loss", "scores"],
            ["node loss_node (Softm"],
        ),
        ([node("ArgMax", "scores", "y", axis=1)], ["y"], ["node y_node (ArgMax)"]),
        (
            [node("Softmax", "scores", "p"), node("ArgMax", "p", "best", axis=1), node("Cast", "best", "y", to=6)],
            ["y", "p"],
            ["node best_node (ArgMax)", "node p_node (Softmax)"],
        ),
        (
            [node("Softmax", "scores", "p"), node("TopK", "p two", "value place")],
            ["value", "place"],
            ["node value_node (TopK)", "node p_node (Softmax)"],
        ),
        (
            [node("SoftmaxCrossEntropyLoss", "scores labels", "mean"), node("Identity", "mean", "loss")],
            ["loss"],
            ["node mean_node (Softm"],
        ),
        ([node("Softmax", "scores", "p"), node("Log", "p", "y")], ["y"], ["node y_node (Log)"]),
        # a loss spelt out, beside the scores
        (
            [
                node("LogSoftmax", "scores", "log"),
                node("Unsqueeze", "labels one", "column"),
                node("GatherElements", "log column", "picked", axis=1),
                node("ReduceMean", "picked", "mean", keepdims=0),
                node("Neg", "mean", "loss"),
            ],
            ["loss", "scores"],
            ["output loss was dropped"],
        ),
    ],
)
def test_losses_and_decisions_are_dropped_with_a_note(
    ends: Sequence[NodeProto], outputs: list[str], dropped: list[str], tmp_path: Path
) -> None:
    proto = model([*SCORES, *ends], {"w": W, "two": np.array([2]), "one": np.array([1])}, outputs=outputs)
    if "labels" in str(ends):
        labelled(proto)
    found = imported(proto, tmp_path)
    assert kinds(found) == ["Conv"]
    assert [note.startswith(start) for note, start in zip(found.notes, dropped, strict=True)] == [True] * len(dropped)
    image = RNG.standard_normal((2, 2, 6, 6))
    assert_close(forward(found.graph, image), evaluate(BEFORE, image), 1e-5)


@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid"])
def test_a_gate_at_the_end_is_kept_with_a_note_unless_the_loss_is_of_such_scores(gate: str, tmp_path: Path) -> None:
    path = save(model([*SCORES, node(gate, "scores", "y")], {"w": W}), tmp_path)
    found = import_with_notes(path)
    assert kinds(found) == ["Conv", gate]
    assert [note.partition(",")[0] for note in found.notes] == [
        f"node y_node ({gate}) at the end stays: it keeps scores between 0 and 1"
    ]
    assert import_with_notes(path, recipe=Recipe(loss=Loss.MEAN_SQUARED_ERROR)).notes == ()


def test_a_loss_spelt_out_without_the_scores_beside_it_is_named_and_nothing_else(tmp_path: Path) -> None:
    loss = [node("Sub", "scores labels", "d"), node("Mul", "d d", "e"), node("ReduceMean", "e", "loss", keepdims=0)]
    proto = model([*SCORES, *loss], {"w": W}, outputs=["loss"])
    proto.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.FLOAT, ["N", 3]))
    with pytest.raises(ImportProblem) as caught:
        imported(proto, tmp_path)
    assert [(problem.where, problem.what, problem.cure) for problem in caught.value.problems] == [
        (
            "",
            "has 2 inputs (x, labels)",
            "export a model with one input, the image; if the others are labels that a loss reads, without the loss",
        )
    ]


def test_a_loss_that_weighs_classes_is_refused(tmp_path: Path) -> None:
    loss = node("SoftmaxCrossEntropyLoss", "scores labels share", "loss")
    proto = labelled(model([*SCORES, loss], {"w": W, "share": np.ones(3)}, outputs=["loss"]))
    wanted = (
        r"node loss_node \(SoftmaxCrossEntropyLoss\): weighs classes by share, .*; export the model without its loss"
    )
    with pytest.raises(ImportProblem, match=wanted):
        imported(proto, tmp_path)


def test_labels_and_probabilities_as_scikit_learn_writes_them(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["floats"], to=TensorProto.FLOAT),
        node("MatMul", "floats a", "h"),
        node("Add", "h b", "i"),
        node("Relu", "i", "r"),
        node("MatMul", "r c", "s"),
        node("Add", "s d", "t"),
        node("Softmax", "t", "p"),
        node("ArgMax", "p", "best", axis=1),
        helper.make_node("ArrayFeatureExtractor", ["classes", "best"], ["picked"], domain="ai.onnx.ml"),
        node("Cast", "picked", "whole", to=TensorProto.INT64),
        node("Reshape", "whole flat", "label"),
        helper.make_node(
            "ZipMap", ["p"], ["probability"], name="zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
        ),
    ]
    weights = {"a": RNG.standard_normal((5, 4)), "b": RNG.standard_normal(4), "c": RNG.standard_normal((4, 3))}
    constants = {**weights, "d": RNG.standard_normal((1, 3)), "classes": np.arange(3), "flat": np.array([-1])}
    proto = model(nodes, constants, ("N", 5), ["label", "probability"])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    found = imported(proto, tmp_path)
    assert kinds(found) == ["Conv", "Bias", "Relu", "Conv", "Bias"]
    assert [note.partition(" at the end")[0] for note in found.notes] == [
        "node best_node (ArgMax)", "node zip (ai.onnx.ml.ZipMap)", "node p_node (Softmax)",
    ]  # fmt: skip
    x = RNG.standard_normal((2, 5))
    wanted = np.maximum(x @ weights["a"] + weights["b"], 0) @ weights["c"] + constants["d"]
    assert_close(forward(found.graph, x.reshape(2, 5, 1, 1)), wanted, 1e-5)


def test_auxiliary_heads_are_dropped_with_a_note_and_the_deepest_head_stays(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x k", "c"),
        node("GlobalAveragePool", "c", "side"),
        node("Flatten", "side", "side_flat"),
        node("Gemm", "side_flat v", "aux", transB=1),
        node("Relu", "c", "r"),
        node("Conv", "r j", "d"),
        node("GlobalAveragePool", "d", "pooled"),
        node("Flatten", "pooled", "flat"),
        node("Gemm", "flat v", "y", transB=1),
    ]
    constants = {
        "k": RNG.standard_normal((4, 2, 3, 3)),
        "j": RNG.standard_normal((4, 4, 1, 1)),
        "v": RNG.random((3, 4)),
    }
    found = imported(model(nodes, constants, outputs=["aux", "y"]), tmp_path)
    assert found.notes[0] == (
        "output aux was dropped, with the 3 nodes that lead to it alone: the class scores are y; "
        "`--aux 0.3` trains it, too, its loss counting 0.3"
    )
    assert found.graph.nodes[-2].name == "y_node"


def test_a_tensor_on_the_way_that_is_listed_as_a_result_is_dropped(tmp_path: Path) -> None:
    found = imported(model(SCORES, {"w": W}, outputs=["flat", "scores"]), tmp_path)
    assert found.notes == ("output flat was dropped, a tensor on the way: the class scores are scores",)


@pytest.mark.parametrize("image", [("N", 72), ("N", 6, 12)], ids=str)
def test_flat_images_and_images_without_channels(image: tuple[int | str, ...], tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Flatten", "r", "flat"), node("Gemm", "flat w", "y", transB=1)]
    proto = model(nodes, {"w": W}, image)
    found = imported(proto, tmp_path)
    sizes = [size for size in image if isinstance(size, int)]
    x = RNG.standard_normal((2, *sizes))
    channels, height, width = (72, 1, 1) if len(sizes) == 1 else (1, 6, 12)
    frames: Array = x.reshape(2, channels, height, width)
    assert_close(forward(found.graph, frames), evaluate(proto, x), 1e-5)


def test_floats_cast_to_floats_are_nothing(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "a", to=1), node("Relu", "a", "b"), node("Cast", "b", "x16", to=10), *SCORES[:0]]
    nodes += [node("Flatten", "x16", "flat"), node("Gemm", "flat w", "scores", transB=1)]
    assert kinds(imported(model(nodes, {"w": W}, outputs=["scores"]), tmp_path)) == ["Relu", "Conv"]


def test_a_branch_whose_condition_is_known_is_taken(tmp_path: Path) -> None:
    def branch(op: str) -> object:
        made = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], ["inner"])], op, [], [made])

    choose = node("If", "large", "m", then_branch=branch("Relu"), else_branch=branch("Tanh"))
    nodes = [
        node("Shape", "x", "size"),
        node("Gather", "size one", "channels", axis=0),
        node("Equal", "channels two", "large"),
        choose,
        node("Flatten", "m", "flat"),
        node("Gemm", "flat w", "y", transB=1),
    ]
    proto = model(nodes, {"w": W, "one": np.array(1), "two": np.array(2)})
    found = imported(proto, tmp_path)
    assert kinds(found) == ["Relu", "Conv"]
    image = RNG.standard_normal((2, 2, 6, 6))
    assert_close(forward(found.graph, image), evaluate(proto, image), 1e-5)


def test_a_branch_whose_condition_is_computed_is_named(tmp_path: Path) -> None:
    made = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["inner"])], "g", [], [made])
    nodes = [
        node("ReduceMean", "x", "mean", keepdims=0),
        node("Greater", "mean zero", "bright"),
        node("If", "bright", "m", then_branch=inner, else_branch=inner),
        node("Flatten", "m", "flat"),
        node("Gemm", "flat w", "y", transB=1),
    ]
    with pytest.raises(ImportProblem, match=re.escape("Greater (1, first at bright_node), If (1, first at m_node)")):
        imported(model(nodes, {"w": W, "zero": np.float32(0)}), tmp_path)
