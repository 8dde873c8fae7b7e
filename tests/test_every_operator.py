"""One small network with every operator of docs/importing.md: what each suite holds of its layers alone, together."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.freeze_layers import freeze_layers
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.recipe import Recipe, Schedule
from importers.onnx import NormMode, import_model
from placement.problem.validate import violations
from tests.cosim_support import CYCLES, DEVICES, placement, simulate_design
from tests.import_support import assert_close, evaluate, forward, model, node, operator_layers, save
from tests.test_relays import plan

BATCH, CLASSES, CHANNELS = 4, 3, 8
RECIPE = Recipe(
    batch=BATCH, learning_rate=0.02, schedule=Schedule.COSINE, period=40, warm_up=2, nesterov=True, clip=2.0,
    label_smoothing=0.1,
)  # fmt: skip
DRAWS = [
    node("RandomUniformLike", "one_a_frame", "r1"),
    node("Less", "r1 keep", "r2"),
    node("Cast", "r2", "r3", to=1),
    node("Div", "r3 keep", "r4"),
    node("Mul", "excited r4", "thinned"),
]


def _constants() -> dict[str, Any]:
    rng = np.random.default_rng(81)
    shapes = {
        "stem": (8, 2, 3, 3), "bias": (8,), "shift": (8,), "mean": (8,), "grouped": (8, 2, 3, 3),
        "spread": (8, 1, 3, 3), "dilated": (8, 8, 3, 3), "squeeze": (4, 8, 1, 1), "excite": (8, 4, 1, 1),
        "classes": (3, 8), "scores": (3,), "moved": (8,),
    }  # fmt: skip
    drawn: dict[str, Any] = {name: rng.standard_normal(shape) / 2 for name, shape in shapes.items()}
    drawn |= {name: rng.uniform(0.5, 1.5, 8) for name in ("scale", "variance", "stretched")}
    drawn["layer_scale"] = rng.uniform(0.5, 1.5, (8, 1, 1))
    lists = {
        "parts": [0, 2, 4, 8, 8], "whole": [0, 8, 8, 8], "zero": [0], "four": [4], "channels": [1], "many": [2**62],
        "pads": [0, 0, 1, 0, 0, 0, 0, 1], "rows": [0, 2, 4, 6],
    }  # fmt: skip
    numbers = {"half": 0.5, "six": 6.0, "none": 0.0, "ratio": 0.25, "keep": 0.75}
    drawn["one_a_frame"] = np.zeros((2, 1, 1, 1), np.float32)
    return (
        drawn
        | {name: np.array(value) for name, value in lists.items()}
        | {name: np.float32(value) for name, value in numbers.items()}
    )


def every_operator(draws: bool = True) -> ModelProto:
    """2 channels of 8x8 pixels in, 3 classes out; without ``draws`` it computes the same at every evaluation."""
    nodes = [
        node("Conv", "x stem bias", "a1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "a1 scale shift mean variance", "a2"),
        node("HardSwish", "a2", "a3"),
        node("Conv", "a3 grouped", "a4", pads=[1, 1, 1, 1], group=4),
        node("LeakyRelu", "a4", "a5", alpha=0.1),
        node("Conv", "a5 spread", "a6", pads=[2, 2, 2, 2], group=8, dilations=[2, 2]),
        node("Sigmoid", "a6", "gate"),
        node("Mul", "a6 gate", "a7"),
        node("Conv", "a7 dilated", "a8", pads=[2, 2, 2, 2], dilations=[2, 2]),
        node("Gelu", "a8", "a9"),
        # squeeze and excitation
        node("GlobalAveragePool", "a9", "q1"),
        node("Conv", "q1 squeeze", "q2"),
        node("Elu", "q2", "q3", alpha=0.5),
        node("Conv", "q3 excite", "q4"),
        node("HardSigmoid", "q4", "q5"),
        node("Mul", "a9 q5", "excited"),
        *(DRAWS if draws else [node("Identity", "excited", "thinned")]),
        node("Add", "thinned a7", "joined"),
        # channel shuffle, slice
        node("Reshape", "joined parts", "b1"),
        node("Transpose", "b1", "b2", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "b2 whole", "b3"),
        node("Slice", "b3 zero four channels", "c1"),
        node("Slice", "b3 four many channels", "c2"),
        node("Tanh", "c1", "c3"),
        node("Concat", "c2 c3", "c4", axis=1),
        node("LRN", "c4", "c5", size=3, alpha=0.5, beta=0.75, bias=2.0),
        node("Mul", "c5 layer_scale", "c6"),
        node("Mul", "c6 half", "c7"),
        node("Transpose", "c7", "t1", perm=[0, 2, 3, 1]),
        node("LayerNormalization", "t1 stretched moved", "t2", axis=-1),
        node("Transpose", "t2", "t3", perm=[0, 3, 1, 2]),
        node("Pad", "t3 pads", "p1"),
        node("Split", "p1", "s1 s2", axis=1),
        node("Sigmoid", "s1", "s3"),
        node("Concat", "s3 s2", "p2", axis=1),
        # padding that does not count, rows, rounding up, padding that counts
        node("AveragePool", "p2", "p3", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Gather", "p2 rows", "w1", axis=2),
        node("MaxPool", "w1", "w2", kernel_shape=[1, 2], strides=[1, 2], ceil_mode=1),
        node("AveragePool", "w2", "w3", kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
        node("GlobalAveragePool", "p3", "e1"),
        node("GlobalAveragePool", "w3", "e2"),
        node("Mul", "e1 e2", "e3"),
        node("Clip", "e3 none six", "e4"),
        node("Flatten", "e4", "e5"),
        *([node("Dropout", "e5 ratio", "e6")] if draws else [node("Identity", "e5", "e6")]),
        node("Gemm", "e6 classes scores", "y", transB=1),
    ]
    constants = {name: value for name, value in _constants().items() if any(name in item.input for item in nodes)}
    return model(nodes, constants, (2, 2, 8, 8), opset=20)


@cache
def streaming(folder: Path) -> Graph:
    """The training graph with formats, a frozen convolution in it."""
    made = freeze_layers(import_model(save(every_operator(), folder), recipe=RECIPE), ["a4_node"])
    training = differentiate(made)
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return streaming(tmp_path_factory.mktemp("every"))


def test_it_has_every_layer_that_an_operator_becomes(tmp_path: Path) -> None:
    path = save(every_operator(), tmp_path)
    found = {type(one.layer) for norm in NormMode for one in import_model(path, norm=norm).nodes}
    assert operator_layers() - found == set()


@pytest.mark.parametrize("norm", [NormMode.NONE, NormMode.FROZEN])
def test_it_computes_what_onnx_does(norm: NormMode, tmp_path: Path) -> None:
    proto = every_operator(draws=False)
    image = np.random.default_rng(82).standard_normal((2, 2, 8, 8))
    assert_close(forward(import_model(save(proto, tmp_path), norm=norm), image), evaluate(proto, image), 1e-5)


def test_it_learns_a_batch_by_heart_in_integers_as_in_floats(graph: Graph) -> None:
    exact, real = Executor(graph), Executor(graph, Mode.REFERENCE)
    feeds = synthetic_feeds(graph, BATCH, seed=1)
    losses = []
    for _ in range(25):
        (codes,), (values,) = exact.step(feeds).values(), real.step(feeds).values()
        losses.append((codes[..., 0].mean() / 65536, values[..., 0].mean()))
    codes, values = np.transpose(losses)
    np.testing.assert_allclose(codes, values, atol=0.01)
    assert codes[-5:].mean() < 0.7 * codes[0]


def test_every_node_of_it_is_priced_and_placed(graph: Graph) -> None:
    found = plan(graph, 2, 60)
    assert violations(found.instance, found.plan) == []
    placed = {item.item: item.device for item in found.plan.items}
    assert [node.name for node in graph.nodes if node.name not in placed] == []
    assert set(placed.values()) == {"d0", "d1"}


@pytest.mark.slow
def test_its_verilog_trains_to_the_bits_of_the_emulator(graph: Graph, tmp_path: Path) -> None:
    library = ModuleLibrary(cache_folder() / "modules")
    made = design_cluster(graph, placement(graph, "dealt out"), DEVICES, CYCLES, library, word_bits=64)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(3)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=1)
    run = simulate_design(made, library, feeds, tmp_path, Simulator.VERILATOR, network, 64, 1, Silent(), optimise=False)
    assert run.mismatches == ()
    assert run.compared_words > 100
