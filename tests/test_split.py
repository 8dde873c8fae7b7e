"""Layers split by output channels: the same function and gradients, on FPGAs of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dagtrain.builder import GraphBuilder
from dagtrain.cosim.cluster import simulate_cluster
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.executor import Executor, Mode
from dagtrain.feeds import synthetic_feeds
from dagtrain.ir import Graph, GraphError
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.split_layers import split_layers
from dagtrain.progress import Silent
from dagtrain.summary import base_layer
from hdl.fixed import FloatArray
from hdl.layers.conv import Conv
from hdl.recipe import Recipe
from hdl.simulate.design import cache_folder
from tests.flow_support import new_case, quick_costs

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


@pytest.mark.parametrize("parts", [{"conv1": 2}, {"conv1": 5, "conv2": 3}, {"gemm1": 3, "conv2": 2}], ids=str)
def test_a_split_layer_has_the_outputs_and_the_gradients_of_the_whole(parts: dict[str, int]) -> None:
    whole, whole_loss = gradients(differentiate(net()))
    graph = split_layers(net(), parts)
    split, split_loss = gradients(differentiate(graph))
    assert split_loss == pytest.approx(whole_loss, rel=1e-12)
    for node in net().nodes:
        if "w" not in node.parameters:
            continue
        key = node.parameters["w"]
        count = parts.get(node.name)
        found = np.concatenate([split[f"{key}.part{index}"] for index in range(count)]) if count else split[key]
        np.testing.assert_allclose(found, whole[key], rtol=1e-9, atol=1e-12)


def test_parts_are_as_equal_as_can_be() -> None:
    layers = {node.name: node.layer for node in split_layers(net(), {"conv1": 3}).nodes}
    parts = [layer.filters for name, layer in layers.items() if isinstance(layer, Conv) and name.startswith("conv1_")]
    assert parts == [1, 2, 2]


def test_whatever_is_wrong_is_said_at_once() -> None:
    with pytest.raises(GraphError) as caught:
        split_layers(net(), {"relu1": 2, "conv9": 2, "conv1": 1, "conv2": 5})
    message = str(caught.value)
    assert "relu1 (Relu) can't be split; choose of conv1, conv2, gemm1" in message
    assert "no layer conv9; choose of conv1, conv2, gemm1" in message
    assert "conv1 has 5 output channels; 1 parts are impossible" in message
    assert "conv2 has 4 output channels; 5 parts are impossible" in message


def test_parts_on_fpgas_of_their_own_train_to_the_bits_of_the_emulator(tmp_path: Path) -> None:
    training = differentiate(split_layers(net(), {"conv2": 2}))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))
    devices = ("alpha", "beta", "gamma")
    where = {"conv2_part0": "beta", "conv2_part1": "gamma"}
    placed = {
        node.name: "alpha" if node.layer.pinned_to_host else where.get(base_layer(node.name), "alpha")
        for node in graph.nodes
    }
    library = ModuleLibrary(cache_folder() / "modules")
    design = design_cluster(graph, placed, devices, 1200, library, word_bits=64)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(4)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=2)
    run = simulate_cluster(
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
    bad = case.step("import", "--split", "k", "--split", "c_node=2", "--split", "c_node=3")
    assert bad.code == 1
    assert "'k' is not LAYER=PARTS" in bad.error
    assert "names c_node twice" in bad.error
    assert "no layer q; choose of c_node, y_node" in case.step("import", "--split", "q=2").error
