"""Frozen layers: no gradient, no update, less hardware, the same bits for ever; what else learns, learns as before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import DIGITS
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.device import stored_streams
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.import_step import import_again
from dagtrain.flow.placed import load_plan
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph, GraphError, Role
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.form import Form
from dagtrain.passes.freeze_layers import freeze_layers
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import keep_in_dram
from dagtrain.passes.split_layers import Parts
from dagtrain.planning.choices import plan_choices
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.planner import Planner
from dagtrain.planning.prices import Prices
from dagtrain.planning.results import Planned
from dagtrain.progress import Silent
from dagtrain.training.emulator import Emulator
from dagtrain.training.feeds import synthetic_feeds
from dagtrain.training.sources import load_digits
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Resources
from hdl.errors import FoldingError, InfeasibleError
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv
from hdl.layers.storage import Home
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from hdl.tensor import Tile
from importers.onnx import import_model
from placement.problem.cluster import Cluster, parse_cluster
from placement.problem.validate import violations
from placement.search.search import SearchOptions
from tests.cosim_support import BATCH, CYCLES, DEVICES, TINY_DRAM, placement, simulate_design
from tests.flow_support import CLUSTER, Case, QuickEstimator, new_case, with_few_dsp
from tests.import_support import model, node, save

# a frozen layer behind one that learns, both ways
OUTSIDE = ("conv3", "conv3.error")
# of every kind that has weights, before and behind one another, with masks and indices between
LAYERS = ("conv1", "norm1", "conv2", "bias1", "depthwise1", "norm2", "conv3", "gemm1", "bias2")


def forward_net(staleness: int = 2) -> Graph:
    net = GraphBuilder("frozen", Recipe(batch=BATCH, staleness=staleness, learning_rate=0.1, weight_decay=0.01), seed=5)
    x = net.relu(net.norm(net.conv(net.input(6, 6, 2), 4, 3, padding=1)))
    y = net.max_pool(net.relu(net.conv(x, 4, 3, padding=1, bias=True), ceiling=6.0), 2, 2)
    y = net.relu(net.norm(net.depthwise(y, 3, padding=1)))
    return net.classify(net.gemm(net.global_average_pool(net.conv(y, 4, 1)), 5))


def streaming(forward: Graph) -> Graph:
    training = differentiate(forward)
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def trained(graph: Graph, batches: int, mode: Mode = Mode.GOLDEN) -> Executor:
    executor = Executor(graph, mode)
    for seed in range(batches):
        executor.step(synthetic_feeds(graph, BATCH, seed))
    return executor


def roles(graph: Graph, layer: str) -> list[Role]:
    return [node.role for node in graph.nodes if node.layer_of == layer and node.role not in (Role.FORK, Role.FORWARD)]


def test_a_frozen_head_has_no_way_back_at_all() -> None:
    graph = differentiate(freeze_layers(forward_net(), ["conv1", "norm1", "conv2", "bias1"]))
    for name in ("conv1", "norm1", "relu1", "conv2", "bias1", "relu2", "max_pool1"):
        assert roles(graph, name) == [], name
        assert list(graph.by_name[name].outputs) == ["y"]
    # nobody before it learns, so it makes no error
    assert roles(graph, "depthwise1") == [Role.GRADIENT, Role.UPDATE]
    assert roles(graph, "norm2") == [Role.ERROR, Role.UPDATE, Role.UPDATE]


def test_a_frozen_layer_behind_one_that_learns_passes_errors_on_and_no_more() -> None:
    graph = differentiate(freeze_layers(forward_net(), ["norm*", "conv[23]", "bias1", "depthwise1"]))
    for name in ("norm1", "conv2", "depthwise1", "norm2", "conv3"):
        assert roles(graph, name) == [Role.ERROR], name
    assert roles(graph, "bias1") == []
    assert roles(graph, "conv1") == [Role.GRADIENT, Role.UPDATE]
    assert set(graph.by_name["norm1.backward"].parameters) == {"gamma"}


@pytest.mark.parametrize("patterns", [["conv1", "norm1"], ["norm*", "conv2", "bias*", "depthwise1"], ["gemm1"]])
def test_frozen_weights_stay_and_the_others_learn_as_if_nothing_were_frozen(patterns: list[str]) -> None:
    plain, some = streaming(forward_net(0)), streaming(freeze_layers(forward_net(0), patterns))
    held = {key for node in some.nodes if node.layer.held_parameters for key in node.parameters.values()}
    assert held
    # the first batch moves what learns by the same gradients, in float64
    first, other = trained(plain, 1, Mode.REFERENCE).parameters(), trained(some, 1, Mode.REFERENCE).parameters()
    assert first.keys() == other.keys()
    for key, value in other.items():
        if key in held:
            np.testing.assert_array_equal(value, some.parameters[key])
        else:
            np.testing.assert_allclose(value, first[key], rtol=1e-12, atol=1e-15)
    after = trained(some, 4).parameters()
    for key, value in after.items():
        assert (key in held) == bool((value == some.parameters[key]).all()), key


def test_training_goes_on_with_frozen_layers_to_fewer_errors() -> None:
    executor = trained(streaming(freeze_layers(forward_net(0), ["conv1", "norm*", "depthwise1"])), 0)
    feeds = synthetic_feeds(executor.graph, BATCH, 1)
    losses = [float(next(iter(executor.step(feeds).values()))[..., 0].mean()) for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


def test_a_frozen_engine_costs_half_the_memory_of_weights_and_fewer_registers() -> None:
    size = {"height": 8, "width": 8, "channels": 16, "filters": 16, "kernel": (3, 3), "padding": (1, 1, 1, 1)}
    plain = Conv(**size)
    frozen = replace(plain, frozen=True)
    bits = [sum(memory.depth * memory.width for memory in layer.memories()) for layer in (plain, frozen)]
    assert bits == [2 * 2304 * 16, 2304 * 16]
    found = [Estimator().layer(layer) for layer in (plain, frozen)]
    assert found[1].registers < found[0].registers
    assert found[1].multipliers == found[0].multipliers


def test_tiles_of_frozen_weights_are_told_apart_by_the_one_version_that_they_have() -> None:
    size = {"height": 8, "width": 8, "channels": 64, "filters": 128, "kernel": (3, 3), "padding": (1, 1, 1, 1)}
    parts, wide, deep = (part("AGFB014"),), Tile(32, 16), Tile(16, 32)
    for tile in (wide, deep):
        plain, frozen = (Conv(**size, frozen=frozen)._memory_share(tile, parts) for frozen in (False, True))
        # 144 words of a version: two of them need no more blocks of 512 words than one
        assert plain == frozen
    plain, frozen = (Conv(**size, frozen=frozen)._memory_share(Tile(16, 8), parts) for frozen in (False, True))
    # 576 words of one version, 1 152 of two
    assert frozen < plain


def test_frozen_weights_lie_on_chip_in_dram_or_in_a_store_and_are_neither_parked_nor_lent() -> None:
    layer = Conv(height=4, width=4, channels=2, filters=2, kernel=(3, 3), padding=(1, 1, 1, 1), frozen=True)
    assert [home for home in Home if layer.at(home) is not None] == [Home.ON_CHIP, Home.DRAM, Home.REMOTE]
    assert layer.at(Home.ON_CHIP) == layer
    outside = layer.at(Home.DRAM)
    assert outside is not None
    assert [port.name for port in outside.fetched] == ["w"]
    assert not outside.memories()
    assert outside.sinks == layer.sinks
    stored = layer.at(Home.REMOTE)
    assert stored is not None
    assert [port.name for port in stored.sinks] == ["x", "w"]
    assert stored.fetched == stored.memories() == ()
    with pytest.raises(FoldingError, match="frozen weights are not parked; they lie on chip, in DRAM or in a store"):
        replace(layer, weights=Home.PARKED)


def test_a_graph_with_frozen_layers_survives_its_file(tmp_path: Path) -> None:
    graph = streaming(freeze_layers(forward_net(), ["conv1", "norm1", "conv3"]))
    save_graph(graph, tmp_path / "graph.json")
    read = load_graph(tmp_path / "graph.json")
    assert read.nodes == graph.nodes
    one, two = trained(graph, 2), trained(read, 2)
    for key, value in one.parameters().items():
        np.testing.assert_array_equal(value, two.parameters()[key])


@pytest.mark.slow
def test_verilog_with_frozen_layers_trains_to_the_bits_of_the_emulator(tmp_path: Path) -> None:
    # a head without any way back, and layers of all kinds behind one that learns; the weights of one of them in DRAM
    graph = streaming(freeze_layers(forward_net(), ["conv1", "norm*", "bias1", "depthwise1", "conv3"]))
    graph = keep_in_dram(graph, OUTSIDE)
    library = ModuleLibrary(cache_folder() / "modules")
    placed = placement(graph, "dealt out")
    made = design_cluster(graph, placed, DEVICES, CYCLES, library, word_bits=64, dram=TINY_DRAM)
    kept = {f"{image.node}.{image.image}" for device in made.devices for image in device.images if image.is_state}
    held = {node.name for node in graph.nodes if node.layer.held_parameters}
    assert {f"{name}.weights" for name in held - set(OUTSIDE)} <= kept
    assert not {f"{name}.weights" for name in OUTSIDE} & kept
    regions = {region.name for device in made.devices for memory in device.memories for region in memory.regions}
    assert regions == {f"{name}.w" for name in OUTSIDE}
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(3)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=1)
    run = simulate_design(made, library, feeds, tmp_path, Simulator.VERILATOR, network, 64, 1, Silent(), optimise=False)
    assert run.mismatches == ()
    assert run.compared_words > 100


# ---- plans


class WeightEstimator(QuickEstimator):
    """Memories with contents too."""

    def layer(self, layer: Layer) -> Resources:
        """Declared multipliers and memories."""
        shapes = Counter((memory.depth, memory.width) for memory in layer.memories())
        return super().layer(layer) + Resources(memories=dict(shapes))


# of the board: hold the weights of either convolution below, not of both; fold them so far that they need blocks
FEW_BLOCKS, FEW_DSP = 40, 64


def heavy_net() -> Graph:
    net = GraphBuilder("heavy", Recipe(batch=BATCH), seed=6)
    x = net.relu(net.conv(net.relu(net.conv(net.input(4, 4, 48), 64, 3, padding=1)), 64, 3, padding=1))
    return net.classify(net.gemm(net.global_average_pool(x), 4))


def few_blocks(dram: bool = True) -> Cluster:
    of = parse_cluster(CLUSTER)
    board = replace(of.devices[0].board, m20k=FEW_BLOCKS, dsp=FEW_DSP)
    board = board if dram else replace(board, dram_bytes_per_s=0, dram_bytes=0)
    return replace(of, devices=(replace(of.devices[0], board=board),))


def test_frozen_weights_in_dram_are_offered_and_charged_with_what_they_move() -> None:
    graph = insert_forks(differentiate(freeze_layers(heavy_net(), ["conv*"])))
    of = few_blocks()
    prices = Prices(graph, of, WeightEstimator(), {}, Silent())
    level = prices.costs(200_000)
    # the bound of all foldings
    items = {item.name: item for item in Foldings(prices).instance.items}
    for name in ("conv1", "conv2"):
        node = level.folded.by_name[name]
        weights = 2 * node.layer.port("w").elements
        offers = {offer.choice.memory: offer for offer in level.offers(node)}
        assert offers.keys() == {Home.ON_CHIP, Home.DRAM}
        outside = offers[Home.DRAM]
        assert stored_streams(replace(node, layer=outside.layer), {}) == [f"{name}.w"]
        # twice, as a port reads and writes at once; words of 64 bytes
        (moved,) = outside.dram_streams
        assert 2 * weights <= moved < 2 * (weights + 64)
        assert moved == level.dram.bytes_per_frame(level.dram.constant(outside.layer.port("w")))
        menu = items[name].configurations["AGFB014"]
        assert {c.dram_bytes_per_frame for c in menu if c.payload == Home.DRAM.value} == {2 * weights}
        assert {c.m20k for c in menu if c.payload == Home.DRAM.value} == {0}
        # the narrowest tile
        assert max(c.m20k for c in menu if c.payload == Home.ON_CHIP.value) * 20_480 >= 8 * weights


@pytest.mark.slow
def test_a_board_that_does_not_hold_the_frozen_weights_has_a_plan_with_dram_alone() -> None:
    def planned(of: Cluster) -> Planned:
        return Planner(graph, of, WeightEstimator(), SearchOptions(seed=1), {}, Silent()).run()

    graph = insert_forks(differentiate(freeze_layers(heavy_net(), ["conv*"])))
    with pytest.raises(InfeasibleError, match="by relaxing block memories"):
        planned(few_blocks(dram=False))
    found = planned(few_blocks())
    assert violations(found.instance, found.plan) == []
    outside = {name for name, choice in plan_choices(found.plan).items() if choice.memory is Home.DRAM}
    assert outside
    assert outside <= {"conv1", "conv2"}
    moved = sum(4 * graph.by_name[name].layer.port("w").elements for name in outside)
    assert found.plan.devices[0].dram_bytes_per_frame >= moved
    # the validator charges it
    less = (replace(item, dram_bytes_per_frame=0) if item.item in outside else item for item in found.plan.items)
    assert violations(found.instance, replace(found.plan, items=tuple(less)))


# ---- what the user says


def digits(patterns: list[str]) -> Graph:
    return freeze_layers(import_model(DIGITS / "digits.onnx", recipe=Recipe(staleness=9)), patterns)


def test_the_head_of_the_digits_net_stays_while_the_rest_learns() -> None:
    data, held_out = load_digits().split(0.2, 1)
    graph = differentiate(digits(["stem*", "block1*"]))
    feeds = Emulator(graph, Mode.REFERENCE).feeds
    graph = calibrate(graph, [feeds(data, index) for index in list(data.batches(16, 1, epoch=0))[:16]])
    emulator = Emulator(graph)
    for epoch in range(2):
        emulator.train_epoch(data, 1, epoch)
    assert emulator.evaluate(held_out).accuracy > 0.7
    frozen = {key for node in graph.nodes if node.layer.held_parameters for key in node.parameters.values()}
    assert {key.split("_")[0].split(".")[0] for key in frozen} == {"stem", "block1"}
    for key, value in emulator.executor.parameters().items():
        assert (key in frozen) == bool((value == graph.parameters[key]).all()), key


def test_freezing_the_head_of_the_digits_net_takes_its_multiplications_for_the_way_back() -> None:
    plain, frozen = differentiate(digits([])), differentiate(digits(["stem*", "block1*"]))
    back = [
        sum(node.layer.macs for node in graph.nodes if node.role in (Role.ERROR, Role.GRADIENT))
        for graph in (plain, frozen)
    ]
    assert back[1] < 0.3 * back[0]


def test_bad_patterns_are_listed_all_at_once_with_near_names() -> None:
    with pytest.raises(GraphError) as caught:
        digits(["blok1_conv1", "block1_relu1", "stem"])
    assert "no layer matches 'blok1_conv1'; names are like block1_conv1, " in str(caught.value)
    assert "'block1_relu1' matches only layers without weights: block1_relu1; layers with weights are stem, " in str(
        caught.value
    )


def test_to_freeze_everything_is_refused() -> None:
    with pytest.raises(GraphError, match="nothing is left that learns; freeze fewer layers"):
        digits(["*"])


def test_import_freezes_and_says_so(tmp_path: Path) -> None:
    case = new_case(tmp_path)
    outcome = case.step("import", "--freeze", "c*")
    assert outcome.code == 0
    assert "504 weights, 72 of them frozen" in outcome.out
    assert case.step("import", "--freeze", "c*").out.startswith("import: unchanged")
    shown = json.loads(case.step("show", "--json").out)["layers"]
    assert {layer["name"]: layer["frozen"] for layer in shown if layer["frozen"]} == {"c_node": 72}
    # what `place` imports again, to split layers, is frozen as before
    again = import_again(case.workspace, Form({"c_node": Parts(2)}))
    assert all(node.layer.held_parameters for node in again.nodes if node.name.startswith("c_node_part"))
    bad = case.step("import", "--freeze", "k", "--freeze", "r*", "--freeze", "*")
    assert bad.code == 1
    assert "no layer matches 'k'; names are like " in bad.error
    assert "'r*' matches only layers without weights: r_node" in bad.error


# ---- through all commands

# block memories of the board: fewer than the weights below fill in both engines
LITTLE_MEMORY = 0.008
COMMAND = "import sys; from dagtrain.cli import main; main()"


def wide_case(root: Path) -> Case:
    """A convolution whose weights are most of the network's, behind one that learns, on one board."""
    rng = np.random.default_rng(3)
    constants = {
        "k": rng.standard_normal((16, 2, 3, 3)) / 4,
        "m": rng.standard_normal((256, 16, 3, 3)) / 12,
        "w": rng.standard_normal((3, 256)) / 16,
    }
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c", "r"),
        node("Conv", "r m", "d"),
        node("Relu", "d", "s"),
        node("Flatten", "s", "f"),
        node("Gemm", "f w", "y", transB=1),
    ]
    root.mkdir()
    save(model(nodes, constants), root)
    case = Case(root)
    few = with_few_dsp(0.003).replace("dsp = 0.003", f"dsp = 0.003\nm20k = {LITTLE_MEMORY}")
    case.write("cluster.toml", few.partition('[[device]]\nname = "worker"')[0])
    return case


def run_cold(case: Case, hash_seed: str) -> dict[str, bytes]:
    """Graph, plan and emitted files, by processes of their own with nothing cached; no times, no folders."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "DAGTRAIN_CACHE": str(case.root / "cache")}
    for words in (
        ("import", case.model, "--norm", "as-is", "--freeze", "d*"),
        ("place", "--devices", case.cluster),
        ("emit",),
    ):
        command = [sys.executable, "-c", COMMAND, *map(str, words), "--out", str(case.out)]
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=900)
        assert done.returncode == 0, f"{words[0]}: {done.stderr}"
    told = ("stamp.json", "import.json", "place.json")
    return {name: text for name, text in case.snapshot().items() if not name.endswith(told)}


@pytest.mark.slow
def test_frozen_weights_that_fit_no_chip_go_through_all_commands_in_dram_to_equal_bits(tmp_path: Path) -> None:
    one, two = (wide_case(tmp_path / seed) for seed in ("1", "2"))
    found = [run_cold(case, case.root.name) for case in (one, two)]
    assert sum(name.startswith("emit/") for name in found[0]) > 40
    assert [name for name in found[0] | found[1] if found[0].get(name) != found[1].get(name)] == []
    # one version in each of two engines
    assert LITTLE_MEMORY * part("AGFB014").m20k * part("AGFB014").m20k_bits < 2 * 256 * 16 * 3 * 3 * 16
    homes = {name: choice.memory for name, choice in plan_choices(load_plan(one.workspace)).items()}
    outside = {f"{name}.w" for name in ("d_node", "d_node.error") if homes[name] is Home.DRAM}
    manifest = json.loads((one.out / "emit" / "head" / "manifest.json").read_text())
    assert outside == {region["name"] for memory in manifest["memory"] for region in memory["regions"]} != set()
    outcome = one.step("cosim", "--batches", 2)
    assert outcome.code == 0, outcome.error
    assert "every bit equal" in outcome.out
    # one other weight in DRAM
    image = one.out / "emit" / "head" / "images" / "dram.mem"
    head, first, rest = image.read_text().split("\n", 2)
    image.write_text("\n".join((head, f"{int(first, 16) ^ 1 << 12:0{len(first)}x}", rest)))
    one.restamp("emit")
    outcome = one.step("cosim", "--batches", 1)
    assert outcome.code == 1
    assert "MISMATCH: head: w of d_node" in outcome.out, outcome.out
