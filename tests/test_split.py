"""Layers split by output channels: the same function and gradients, on FPGAs of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow import place_step
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.placed import load_placed_graph, load_plan
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph, GraphError
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.split_layers import Parts, split_layers
from dagtrain.planning.former import FormedPlan
from dagtrain.planning.planner import Planner
from dagtrain.planning.splitting import Splitter
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.resources import Resources
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv
from hdl.recipe import Recipe
from tests.cosim_support import simulate_design
from tests.flow_support import CLUSTER, Case, QuickEstimator, call, new_case, quick_costs
from tests.suites import quick

BATCH = 4


def net() -> Graph:
    """Two convolutions and a matrix product, of 5, 4 and 3 output channels."""
    build = GraphBuilder("net", Recipe(batch=BATCH), seed=3)
    x = build.relu(build.conv(build.input(6, 6, 2), 5, kernel=3, padding=1))
    x = build.relu(build.conv(x, 4, kernel=3, stride=2, padding=1))
    return build.classify(build.gemm(x, 3))


def gradients(graph: Graph) -> tuple[dict[str, FloatArray], float]:
    """Parameter -> gradient of one batch in float, and the sum of the losses."""
    feeds = synthetic_feeds(graph, BATCH, 5)
    updates = {node.inputs["g"]: node.parameters["w"] for node in graph.nodes if "g" in node.inputs}
    found: dict[str, FloatArray] = {}

    def observe(edge: str, array: FloatArray) -> None:
        if edge in updates:
            found[updates[edge]] = array

    metrics = Executor(graph, Mode.REFERENCE).step(feeds, observe)
    return found, float(sum(np.sum(array) for array in metrics.values()))


@pytest.mark.parametrize(
    "texts",
    [
        {"conv1": "2"},
        {"conv1": "5", "conv2": "3"},
        {"gemm1": "3", "conv2": "2"},
        {"conv2": "3:inputs"},
        {"conv1": "2:inputs", "conv2": "5:inputs", "gemm1": "4:inputs"},
        {"conv1": "3", "conv2": "2:inputs"},
    ],
    ids=str,
)
def test_a_split_layer_has_the_outputs_and_the_gradients_of_the_whole(texts: dict[str, str]) -> None:
    parts = {layer: Parts.parse(text) for layer, text in texts.items()}
    whole, whole_loss = gradients(differentiate(net()))
    graph = split_layers(net(), parts)
    split, split_loss = gradients(differentiate(graph))
    assert split_loss == pytest.approx(whole_loss, rel=1e-12)
    for node in net().nodes:
        if "w" not in node.parameters:
            continue
        key = node.parameters["w"]
        how = parts.get(node.name)
        pieces = [split[f"{key}.part{index}"] for index in range(how.count)] if how else [split[key]]
        found = np.concatenate(pieces, axis=int(how is not None and how.by_inputs))
        np.testing.assert_allclose(found, whole[key], rtol=1e-9, atol=1e-12)


def test_parts_are_as_equal_as_can_be() -> None:
    layers = {node.name: node.layer for node in split_layers(net(), {"conv1": Parts(3)}).nodes}
    parts = [layer.filters for name, layer in layers.items() if isinstance(layer, Conv) and name.startswith("conv1_")]
    assert parts == [1, 2, 2]


def test_whatever_is_wrong_is_said_at_once() -> None:
    wrong = {"relu1": Parts(2), "conv9": Parts(2), "conv1": Parts(1), "conv2": Parts(5), "gemm1": Parts(5, True)}
    with pytest.raises(GraphError) as caught:
        split_layers(net(), wrong)
    message = str(caught.value)
    assert "relu1 (Relu) can't be split; choose of conv1, conv2, gemm1" in message
    assert "no layer conv9; choose of conv1, conv2, gemm1" in message
    assert "conv1 has 5 output channels; 1 parts are impossible" in message
    assert "conv2 has 4 output channels; 5 parts are impossible" in message
    assert "gemm1 has 4 input channels; 5 parts are impossible" in message


@pytest.mark.parametrize("how", quick(1, [Parts(2), Parts(2, by_inputs=True)], id=str))
def test_parts_on_fpgas_of_their_own_train_to_the_bits_of_the_emulator(tmp_path: Path, how: Parts) -> None:
    training = differentiate(split_layers(net(), {"conv2": how}))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))
    devices = ("alpha", "beta", "gamma")
    where = {"conv2_part0": "beta", "conv2_part1": "gamma"}
    placed = {
        node.name: "alpha" if node.layer.pinned_to_host else where.get(node.layer_of, "alpha") for node in graph.nodes
    }
    library = ModuleLibrary(cache_folder() / "modules")
    design = design_cluster(graph, placed, devices, 1200, library, word_bits=64)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(4)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=2)
    run = simulate_design(
        design, library, feeds, tmp_path, Simulator.VERILATOR, network, 64, 2, Silent(), optimise=False
    )
    assert run.mismatches == ()
    assert run.compared_words > 100


def test_the_command_splits_and_the_parts_can_be_pinned_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path)
    outcome = case.step("import", "--split", "c_node=2")
    assert outcome.code == 0, outcome.error
    assert case.step("place", "--pin", "c_node_part0=head", "--pin", "c_node_part1=worker").code == 0
    assert case.step("import", "--split", "c_node=2").out.startswith("import: unchanged")
    assert case.step("import", "--split", "c_node=2:inputs").code == 0
    assert "no layer is named" in case.step("import", "--split", "=2").error
    bad = case.step("import", "--split", "k", "--split", "y_node=2:row", "--split", "c_node=2", "--split", "c_node=3")
    assert bad.code == 1
    assert "'k' is not LAYER=PARTS" in bad.error
    assert "'2:row' is no whole number of parts, nor N:inputs, nor N:rows" in bad.error
    assert "names c_node twice" in bad.error
    assert "no layer q; choose of c_node, y_node" in case.step("import", "--split", "q=2").error


TWO_SMALL = CLUSTER.replace("AGFB014", "10AX115")


class HungryEstimator(QuickEstimator):
    """Convolutions, but for matrix products, take block memories by the filter, and multipliers by the hundred."""

    def layer(self, layer: Layer) -> Resources:
        """As above."""
        if not isinstance(layer, Conv) or layer.port("y").tensor.shape[0] == 1:
            return super().layer(layer)
        blocks = {(512, 40): BLOCKS_PER_FILTER * layer.filters}
        return Resources(multipliers={(16, 16): HUNGER * int(layer.multipliers)}, memories=blocks)


BLOCKS_PER_FILTER, HUNGER = 0, 1


def hungry_case(root: Path, monkeypatch: pytest.MonkeyPatch, blocks_per_filter: int, hunger: int) -> Case:
    monkeypatch.setattr(place_step, "Estimator", HungryEstimator)
    monkeypatch.setattr(sys.modules[__name__], "BLOCKS_PER_FILTER", blocks_per_filter)
    monkeypatch.setattr(sys.modules[__name__], "HUNGER", hunger)
    case = new_case(root)
    case.write("cluster.toml", TWO_SMALL)
    return case.must("import")


def test_a_layer_that_fits_no_device_is_split_by_the_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = hungry_case(tmp_path, monkeypatch, blocks_per_filter=800, hunger=1)
    refused = case.step("place", "--no-split")
    assert refused.code == 1
    assert "'c_node' fits no device" in refused.error
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    assert "in parts: c_node=2 (as" in outcome.out
    parts = {item.item: item.device for item in load_plan(case.workspace).items}
    assert parts["c_node_part0"] != parts["c_node_part1"]
    assert case.step("place").out.startswith("place: unchanged")
    placed = load_placed_graph(case.workspace)
    assert case.step("import", "--split", "c_node=2").code == 0
    chosen = load_training_graph(case.workspace)
    assert placed.nodes == chosen.nodes
    for key, values in chosen.parameters.items():
        np.testing.assert_array_equal(placed.parameters[key], values)


def test_a_large_engine_is_split_where_that_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = hungry_case(tmp_path, monkeypatch, blocks_per_filter=0, hunger=500)
    assert case.step("place", "--no-split").code == 0
    whole = load_plan(case.workspace).throughput_fps
    assert case.step("place").code == 0
    split = load_plan(case.workspace)
    assert "c_node_part1" in {item.item for item in split.items}
    assert split.throughput_fps > 1.5 * whole
    kept = case.step("place", "--pin", "c_node=head")
    assert kept.code == 0
    assert "in parts" not in kept.out


def test_training_is_that_of_the_planned_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = hungry_case(tmp_path, monkeypatch, blocks_per_filter=0, hunger=500)
    train = ("train", "--data", case.data(), "--epochs", 1)
    assert case.step(*train).code == 0
    assert case.step("place").code == 0
    assert case.step(*train).out.startswith("train: done")
    weights = np.load(case.workspace.folder("train") / "weights.npz")
    assert any("part1" in key for key in weights)
    assert case.step(*train).out.startswith("train: unchanged")


def test_a_model_that_is_gone_is_asked_for_when_it_is_to_be_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = hungry_case(tmp_path, monkeypatch, blocks_per_filter=800, hunger=1)
    case.model.write_bytes(case.model.read_bytes() + b"\n")
    assert "has changed since it was imported" in case.step("place").error
    case.model.unlink()
    assert "cannot be read" in case.step("place").error


def test_a_plan_is_kept_if_the_model_that_could_be_split_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = hungry_case(tmp_path, monkeypatch, blocks_per_filter=0, hunger=500)
    moved = case.model.rename(tmp_path / "elsewhere.onnx")
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    assert "large layers were not tried in parts" in outcome.out
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert call("import", moved.rename(folder / "net.onnx"), "--norm", "as-is", "--out", case.out).code == 0
    assert "in parts: c_node=" in case.step("place").out


def test_a_search_that_is_ended_while_parts_are_tried_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = hungry_case(tmp_path, monkeypatch, blocks_per_filter=0, hunger=500)

    def interrupted(planner: Planner, *_: object) -> None:
        planner.searcher.time.deadline.interrupt()

    with monkeypatch.context() as patch:
        patch.setattr(Planner, "promising", interrupted)
        outcome = case.step("place")
    assert outcome.code == 0
    assert "the same command goes on from this plan" in outcome.out
    assert not (case.workspace.folder("place") / "graph.json").exists()
    with monkeypatch.context() as patch:
        # parts are kept, but it is not known whether more of them would be better
        patch.setattr(Splitter, "_better", only_once(Splitter._better))
        second = case.step("place")
    assert "in parts: c_node=2 (as" in second.out
    assert "the same command goes on from this plan" in second.out
    third = case.step("place")
    assert "in parts: c_node=" in third.out
    assert "goes on" not in third.out


def only_once(better: Callable[..., tuple[FormedPlan | None, bool]]) -> Callable[..., tuple[FormedPlan | None, bool]]:
    """A method that works when it is called first, and is interrupted then."""
    calls = []

    def method(splitter: Splitter, *arguments: object) -> tuple[FormedPlan | None, bool]:
        calls.append(arguments)
        return better(splitter, *arguments) if len(calls) == 1 else (None, True)

    return method


def test_a_layer_is_split_in_the_way_that_copies_the_smaller_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix product of 144 inputs and 3 outputs that fits no device, beside a convolution that stays whole."""
    case = hungry_case(tmp_path, monkeypatch, blocks_per_filter=0, hunger=1)
    monkeypatch.setattr(place_step, "Estimator", DeepEstimator)
    assert "in parts: y_node=2:inputs (as" in case.step("place").out


class DeepEstimator(QuickEstimator):
    """Matrix products take block memories by the input channel."""

    def layer(self, layer: Layer) -> Resources:
        """As above."""
        if not isinstance(layer, Conv) or layer.port("y").tensor.shape[0] > 1:
            return super().layer(layer)
        return Resources(multipliers={(16, 16): int(layer.multipliers)}, memories={(512, 40): 800 * layer.channels})


@pytest.mark.parametrize("simulated", quick(1, [False, True], id=str))
def test_a_layer_whose_channels_stay_together_is_split_by_rows(
    simulated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conv, "narrowed", lambda *_: None)
    monkeypatch.setattr(Conv, "summand", lambda *_: None)
    case = hungry_case(tmp_path, monkeypatch, blocks_per_filter=0, hunger=500)
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    assert "in parts: c_node=4:rows (as" in outcome.out
    assert len({item.device for item in load_plan(case.workspace).items if item.item.startswith("c_node_rows")}) == 2
    placed = load_placed_graph(case.workspace)
    if simulated:
        outcome = case.must("emit").step("cosim")
        assert outcome.code == 0, outcome.error
    assert case.step("import", "--split", "c_node=4:rows").code == 0
    assert placed.nodes == load_training_graph(case.workspace).nodes
