"""The way back: trained networks as ONNX files that other programs run and that import again; `dagtrain evaluate`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.split_layers import Parts, split_layers
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import load_digits
from hdl.layers.pointwise.relu import Relu
from hdl.layers.pool.average_pool import AveragePool
from hdl.recipe import Recipe
from importers.onnx import NormMode, import_model
from importers.onnx.handlers import WRITERS
from importers.onnx.writing import ExportError, write_model
from tests.cosim_support import copied_net
from tests.flow_support import Case, call, new_case
from tests.import_support import model, node, operator_layers, save

DIGITS = Path(__file__).parent.parent / "examples" / "digits"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the digits network is trained for two epochs and exported."""
    out = tmp_path_factory.mktemp("digits")
    for words in (
        ("import", DIGITS / "digits.onnx", "--data", "digits", "--recipe", DIGITS / "recipe.toml"),
        ("train", "--epochs", 2),
        ("export",),
    ):
        outcome = call(*words, "--out", out)
        assert outcome.code == 0, outcome.error
    return out


def test_onnxruntime_is_as_right_on_the_exported_digits_as_training(digits: Path) -> None:
    held_out = load_digits().split(0.2, 1)[1]
    session = InferenceSession(digits / "export" / "digits.onnx")
    images = held_out.frames().transpose(0, 3, 1, 2).astype(np.float32)
    (scores,) = session.run(["scores"], {"image": images})
    accuracy = float((scores.argmax(1) == held_out.classes()).mean())
    trained = json.loads((digits / "train" / "train.json").read_text())["epochs"][-1]["held_out_accuracy"]
    assert accuracy > 0.9
    assert abs(accuracy - trained) <= 0.003


def test_the_export_imports_again_with_the_same_layers_and_scores(digits: Path, tmp_path: Path) -> None:
    first, again = (import_model(path, norm=NormMode.AS_IS) for path in (
        DIGITS / "digits.onnx", digits / "export" / "digits.onnx"
    ))  # fmt: skip
    assert [type(node.layer) for node in again.nodes] == [type(node.layer) for node in first.nodes]
    assert sorted(value.shape for value in again.parameters.values()) == sorted(
        value.shape for value in first.parameters.values()
    )
    outcome = call("import", digits / "export" / "digits.onnx", "--norm", "none", "--data", "digits", "--out", tmp_path)
    assert outcome.code == 0, outcome.error
    held_out = load_digits().split(0.2, 1)[1]
    trained = json.loads((digits / "train" / "train.json").read_text())["epochs"][-1]["held_out_accuracy"]
    found = Emulator(load_training_graph(Workspace(tmp_path))).evaluate(held_out)
    assert abs(found.accuracy - trained) <= 0.003


def test_the_exported_weights_are_those_of_the_hardware_to_the_bit(digits: Path) -> None:
    proto = onnx.load(digits / "export" / "digits.onnx")
    exported = {item.name: onnx.numpy_helper.to_array(item) for item in proto.graph.initializer}
    with np.load(digits / "train" / "weights.npz") as weights:
        for key in weights.files:
            if key.endswith(".w"):
                np.testing.assert_array_equal(exported[key.replace(".w", ".weight")], weights[key])


def test_evaluate_agrees_with_train_and_on_the_export(digits: Path) -> None:
    results = []
    for words in ((), (digits / "train",), (digits / "export" / "digits.onnx",)):
        outcome = call("evaluate", *words, "--json", "--out", digits)
        assert outcome.code == 0, outcome.error
        results.append(json.loads(outcome.out))
    trained = json.loads((digits / "train" / "train.json").read_text())["epochs"][-1]
    for found in results:
        confusion = np.array(found["confusion"])
        assert confusion.sum() == found["frames"] == 359
        assert confusion.trace() / 359 == pytest.approx(found["accuracy"])
        np.testing.assert_array_equal(confusion.sum(1), np.bincount(load_digits().split(0.2, 1)[1].classes()))
    assert [found["with"] for found in results] == ["emulator", "emulator", "onnxruntime"]
    for found in results[:2]:
        assert found["accuracy"] == trained["held_out_accuracy"]
        assert found["loss"] == trained["held_out_loss"]
    assert results[2]["accuracy"] == pytest.approx(trained["held_out_accuracy"], abs=0.003)
    assert results[2]["loss"] == pytest.approx(trained["held_out_loss"], abs=0.003)


# ---- each layer


def trained(graph: Graph, frames: int = 64, seed: int = 3) -> tuple[Executor, np.ndarray]:
    """The float executor of a network, or of its training, after some batches on random frames, and other frames to
    compare on."""
    rng = np.random.default_rng(seed)
    learns = any(node.role is Role.UPDATE for node in graph.nodes)
    emulator = Emulator(graph if learns else insert_forks(differentiate(graph)), Mode.REFERENCE)
    shape = graph.nodes[0].layer.sources[0].tensor.shape
    images = rng.standard_normal((frames, *shape)).transpose(0, 3, 1, 2)
    data = Dataset(images.astype(np.float32), rng.integers(0, 3, frames))
    emulator.train_epoch(data, 1, 0)
    return emulator.executor, rng.standard_normal((5, *shape))


# of a convolution's map h of two channels: nodes that make a, shapes (or values) of their constants
NODES = {
    "Conv": ([node("Conv", "h k b", "a", pads=[0, 1, 2, 1], strides=[2, 1])], {"k": (3, 2, 3, 3), "b": (3,)}),
    "depthwise": ([node("Conv", "h k", "a", group=2, pads=[1, 1, 1, 1])], {"k": (2, 1, 3, 3)}),
    "dilated": ([node("Conv", "h k", "a", dilations=[1, 2], pads=[1, 2, 1, 1])], {"k": (2, 2, 3, 3)}),
    "groups": ([node("Conv", "h k", "c"), node("Conv", "c j", "a", group=2)], {"k": (4, 2, 1, 1), "j": (6, 2, 2, 3)}),
    "StochasticDepth": ([node("StochasticDepth", "h", "a", domain="dagtrain", ratio=0.25)], {}),
    "ChannelNorm": (
        [node("LayerNorm", "h gain shift", "a", domain="dagtrain", epsilon=1e-3)],
        {"gain": (2,), "shift": (2,)},
    ),
    "LocalResponseNorm": ([node("LRN", "h", "a", size=3, alpha=0.3, beta=0.6, bias=1.5)], {}),
    "Bias alone": ([node("Relu", "h", "r"), node("Add", "r b", "a")], {"b": (2, 1, 1)}),
    "a bias behind two readers": (
        [node("Conv", "h k", "c", pads=[1, 1, 1, 1]), node("Add", "c b", "d"), node("Add", "c d", "a")],
        {"k": (2, 2, 3, 3), "b": (2, 1, 1)},
    ),
    "Clip": ([node("Clip", "h low high", "a")], {"low": 0.0, "high": 0.7}),
    "LeakyRelu": ([node("Relu", "h", "r"), node("LeakyRelu", "h", "l", alpha=0.125), node("Add", "r l", "a")], {}),
    "HardSigmoid": ([node("HardSigmoid", "h", "a", alpha=0.3, beta=0.4)], {}),
    "Sigmoid": ([node("Sigmoid", "h", "a")], {}),
    "Dropout": ([node("Dropout", "h ratio", "a")], {"ratio": 0.25}),
    "MaxPool": ([node("MaxPool", "h", "a", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1)], {}),
    "AveragePool": ([node("AveragePool", "h", "a", kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 0, 1])], {}),
    "Pad": ([node("Pad", "h around", "r"), node("Relu", "r", "a")], {"around": [0, 0, 2, -1, 0, 0, 0, 3]}),
    "AveragePool with padding": (
        [node("AveragePool", "h", "a", kernel_shape=[3, 3], pads=[1, 1, 0, 1], count_include_pad=1)],
        {},
    ),
    "AveragePool rounded up": (
        [
            node(
                "AveragePool",
                "h",
                "a",
                kernel_shape=[2, 3],
                strides=[3, 2],
                pads=[1, 0, 0, 1],
                ceil_mode=1,
                count_include_pad=1,
            )
        ],
        {},
    ),
    "Tanh": ([node("Tanh", "h", "a")], {}),
    "Elu": ([node("Elu", "h", "a", alpha=0.7)], {}),
    "HardSwish": ([node("HardSwish", "h", "a")], {}),
    "Gelu": ([node("Gelu", "h", "a", approximate="tanh")], {}),
    "Silu": ([node("Sigmoid", "h", "s"), node("Mul", "h s", "a")], {}),
    "ChannelAffine": ([node("ChannelAffine", "h k b", "a", domain="dagtrain")], {"k": (2,), "b": (2,)}),
    "Mul by constants": ([node("Mul", "h k", "a")], {"k": (2, 1, 1)}),
    "Mul": ([node("Relu", "h", "r"), node("Mul", "h r", "a")], {}),
    "Scale": ([node("GlobalAveragePool", "h", "p"), node("Sigmoid", "p", "s"), node("Mul", "s h", "a")], {}),
    "PixelSlice": (
        [node("Gather", "h rows", "r", axis=2), node("Gather", "r columns", "a", axis=3)],
        {"rows": [0, 2, 3], "columns": [1]},
    ),
    "ChannelSlice": (
        [node("Slice", "h one two one", "b"), node("Concat", "b b", "a", axis=1)],
        {"one": [1], "two": [2]},
    ),
    "Split": ([node("Split", "h", "b c", axis=1, num_outputs=2), node("Concat", "c b", "a", axis=1)], {}),
    "ChannelShuffle": (
        [
            node("Concat", "h h", "d", axis=1),
            node("Reshape", "d apart", "e"),
            node("Transpose", "e", "f2", perm=[0, 2, 1, 3, 4]),
            node("Reshape", "f2 together", "a"),
        ],
        {"apart": [0, 2, 2, 4, 4], "together": [0, 4, 4, 4]},
    ),
    "Concat": ([node("Relu", "h", "r"), node("Concat", "h r h", "a", axis=1)], {}),
}


@pytest.mark.parametrize("name", NODES)
def test_a_layer_is_written_so_that_onnx_computes_what_it_does(name: str, tmp_path: Path) -> None:
    nodes, shapes = NODES[name]
    rng = np.random.default_rng(7)
    given = {key: rng.standard_normal(shape) if isinstance(shape, tuple) else shape for key, shape in shapes.items()}
    channels = {"Conv": 3, "Concat": 6, "ChannelShuffle": 4, "groups": 6}.get(name, 2)
    constants = {"first": rng.standard_normal((2, 2, 3, 3)), "w": rng.standard_normal((channels, 3)), **given}
    tail = [node("GlobalAveragePool", "a", "g"), node("Flatten", "g", "f"), node("MatMul", "f w", "y")]
    proto = model([node("Conv", "x first", "h"), *nodes, *tail], constants, opset=20)
    graph = import_model(save(proto, tmp_path), norm=NormMode.AS_IS, recipe=Recipe(batch=8))
    agrees(graph)


def agrees(graph: Graph) -> onnx.ModelProto:
    """The exported model, which computes what the float reference does, and so does what is imported of it."""
    executor, frames = trained(graph)
    written = write_model(executor.graph, executor.parameters(), executor.states, {})
    feeds = {"image": frames.transpose(0, 3, 1, 2).astype(np.float32)}
    (scores,) = InferenceSession(written.SerializeToString()).run(None, feeds)
    data = Dataset(feeds["image"], np.zeros(len(frames), np.int64))
    emulator = Emulator(executor.graph, Mode.REFERENCE)
    emulator.executor = executor
    np.testing.assert_allclose(scores, emulator.judge(data)[1], atol=1e-5)
    return written


def test_means_of_windows_of_unlike_sizes_are_written_as_products_and_import_again(tmp_path: Path) -> None:
    net = GraphBuilder("unlike", Recipe(batch=8), seed=3)
    x = net.adaptive_average_pool(net.conv(net.input(9, 5, 2), 3, kernel=1), 7, 3)
    graph = net.classify(net.gemm(x, 3))
    agrees(graph)
    executor, _ = trained(graph)
    written = write_model(executor.graph, executor.parameters(), executor.states, {})
    assert [made.op_type for made in written.graph.node][:3] == ["Conv", "MatMul", "MatMul"]
    again = import_model(save(written, tmp_path), norm=NormMode.AS_IS, recipe=Recipe(batch=8))
    assert AveragePool.sharing(9, 5, (7, 3), channels=3) in [one.layer for one in again.nodes]


def test_a_layer_in_parts_is_cut_and_put_together() -> None:
    net = GraphBuilder("net", Recipe(batch=8), seed=3)
    x = net.relu(net.conv(net.input(6, 6, 4), 4, kernel=3, padding=1))
    forward = net.classify(net.gemm(net.global_average_pool(net.conv(x, 6, kernel=3, padding=1)), 3))
    agrees(split_layers(forward, {"conv1": Parts(3, by_inputs=True), "conv2": Parts(2)}))


@pytest.mark.parametrize("ways", [{"copies": {"conv*": 2}}, {"copies": {"*": 3}}, {"rows": {"conv1": 3, "relu1": 3}}])
def test_copies_become_one_layer_and_rows_are_cut_and_put_together(ways: dict[str, dict[str, int]]) -> None:
    made = agrees(copied_net(0, 4, **ways))
    assert not [name for name in (one.name for one in (*made.graph.node, *made.graph.initializer)) if "@" in name]


def test_statistics_of_the_norm_become_those_of_batch_normalization() -> None:
    net = GraphBuilder("net", Recipe(batch=8, norm_forward_decay=0.99), seed=5)
    x = net.norm(net.conv(net.input(6, 6, 2), 4, kernel=3, padding=1))
    graph = net.classify(net.gemm(net.global_average_pool(net.relu(x)), 3))
    rng = np.random.default_rng(9)
    images = (3 + 2 * rng.standard_normal((320, 2, 6, 6))).astype(np.float32)
    data = Dataset(images, rng.integers(0, 3, 320))
    training = insert_forks(differentiate(graph))
    emulator = Emulator(training)
    emulator.train_epoch(data, 1, 0)
    states = emulator.executor.states
    written = write_model(training, emulator.executor.parameters(), states, {})
    feeds = {"image": images[:32]}
    (scores,) = InferenceSession(written.SerializeToString()).run(None, feeds)
    exact = emulator.judge(data.take(np.arange(32)))[1]
    assert np.abs(scores - exact).max() < 0.02
    (norm,) = (item for item in written.graph.node if item.op_type == "BatchNormalization")
    values = {item.name: onnx.numpy_helper.to_array(item) for item in written.graph.initializer}
    assert np.abs(values[norm.input[3]]).max() > 0.1
    assert np.abs(values[norm.input[4]] - 1).max() > 0.1


def test_a_layer_without_a_way_back_is_named_with_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    net = GraphBuilder("net", Recipe(batch=8), seed=5)
    x = net.relu(net.relu(net.conv(net.input(2, 2, 1), 2, kernel=1)))
    graph = net.classify(net.gemm(net.global_average_pool(x), 2))
    executor = Executor(insert_forks(differentiate(graph)))
    monkeypatch.delitem(WRITERS, Relu)
    with pytest.raises(ExportError, match=r"relu1 is a Relu, which has no way back; relu2 is a Relu"):
        write_model(executor.graph, executor.parameters(), executor.states, {})


def test_every_layer_that_an_operator_becomes_has_a_way_back() -> None:
    made = operator_layers()
    assert len(made) > 10
    assert made <= WRITERS.keys()


# ---- what a user can do wrong


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return new_case(tmp_path / "case").must("import")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export",), "holds no result of `dagtrain train`; run `dagtrain train` first"),
        (("export", "--weights", "none.npz"), "none.npz does not exist; give a checkpoint that"),
        (("evaluate",), "holds no result of `dagtrain train`; run `dagtrain train` first"),
        (("evaluate", "nowhere.onnx"), "nowhere.onnx does not exist; give an ONNX file"),
        (("evaluate", __file__), "is neither .onnx nor .npz; give"),
    ],
)
def test_export_and_evaluate_say_what_is_missing(words: tuple[object, ...], message: str, case: Case) -> None:
    outcome = case.step(str(words[0]), *words[1:])
    assert outcome.code == 1
    assert message in outcome.error


def test_evaluate_refuses_data_of_another_shape_and_data_that_changed(digits: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", images=np.zeros((4, 3, 8, 8), np.float32), labels=np.zeros(4, int))
    for what in ((), (digits / "export" / "digits.onnx",)):
        outcome = call("evaluate", *what, "--data", tmp_path / "other.npz", "--out", digits)
        assert outcome.code == 1
        assert "its images are (3, 8, 8), the model takes (channels, height, width) = (1, 8, 8)" in outcome.error


def test_evaluate_notices_that_training_data_changed(case: Case) -> None:
    data = case.data()
    assert case.step("train", "--data", data, "--epochs", 1).code == 0
    assert case.step("evaluate").code == 0
    shutil.copyfile(data, case.root / "kept.npz")
    with np.load(case.root / "kept.npz") as file:
        np.savez(data, images=file["images"] + 1, labels=file["labels"])
    outcome = case.step("evaluate")
    assert outcome.code == 1
    assert "is not what `dagtrain train` was given any more; train again" in outcome.error
