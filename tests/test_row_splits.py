"""Layers in parts by rows give the bits of the whole layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import row_splits
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, GraphError, Node, Role
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import CalibrationOptions, calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.recompute import kept_edges
from dagtrain.passes.replicate import most_copies, replicate
from dagtrain.passes.split_layers import Parts, split_layers
from dagtrain.passes.split_rows import split_rows
from dagtrain.passes.widths import Widths
from dagtrain.progress import Silent
from dagtrain.schedule.buffers import deadlock_beats, fifo_beats
from dagtrain.schedule.schedule import schedule
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.errors import FoldingError
from hdl.layers.conv.dense import Conv
from hdl.layers.exchange.exchange import Exchange
from hdl.layers.pointwise.add import Add
from hdl.layers.wiring.host import METRICS
from hdl.layers.wiring.row_deal import RowDeal
from hdl.layers.wiring.row_gather import RowGather
from hdl.recipe import Recipe
from hdl.tensor import Kind
from tests.cosim_support import DEVICES, simulate_design
from tests.suites import quick

BATCHES = 4
# cycles a frame of circuits
CYCLES = 700
# a layer, without halo, of stride 2, a channel at a time, a stretch, unlike numbers side by side, all
SETS: Mapping[str, Mapping[str, int]] = {
    "a convolution": {"conv2": 2},
    "three parts of eight rows": {"conv2": 3},
    "a kernel of one pixel": {"conv3": 3},
    "stride 2": {"conv4": 2},
    "channel by channel": {"depthwise1": 4},
    "a stretch": {"conv2": 3, "bias1": 3, "relu2": 3, "conv3": 3},
    "unlike numbers": {"conv1": 2, "relu1": 2, "conv2": 3, "conv4": 2, "max_pool1": 2},
    "all windows": {"conv1": 3, "relu1": 3, "conv2": 3, "bias1": 3, "relu2": 3, "conv3": 3, "add1": 3, "conv4": 3,
                    "depthwise1": 3, "max_pool1": 2},
}  # fmt: skip
RECIPES = [(4, 0), pytest.param(5, 3, marks=pytest.mark.slow)]


@cache
def net(batch: int, staleness: int, sums: str = "") -> Graph:
    """A training graph of 8 x 5 pixels with a residual join, a bias, a kernel of one pixel, strides, a pool; ``sums``:
    bits of sums of gradients."""
    build = GraphBuilder("net", Recipe(batch=batch, staleness=staleness, learning_rate=0.1), seed=5)
    x = build.relu(build.conv(build.input(8, 5, 2), 3, 3, padding=1))
    y = build.conv(build.relu(build.bias(build.conv(x, 3, 3, padding=1))), 3, 1)
    x = build.conv(build.add(y, x), 4, 3, stride=2, padding=1)
    x = build.max_pool(build.depthwise(x, 3, padding=1), 2, 2)
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    options = CalibrationOptions(width=Widths.parse((f"sum={sums}",) if sums else ()))
    return calibrate(training, [synthetic_feeds(training, batch, seed) for seed in range(2)], options)


def trained(graph: Graph, batches: int = BATCHES) -> tuple[Executor, list[np.ndarray]]:
    """After some batches, with what the host got."""
    executor = Executor(graph)
    results = [executor.step(synthetic_feeds(graph, graph.recipe.batch, 100 + n)) for n in range(batches)]
    return executor, [array for result in results for array in result.values()]


@cache
def of_whole(batch: int, staleness: int, sums: str = "") -> tuple[Executor, list[np.ndarray]]:
    return trained(insert_forks(net(batch, staleness, sums)))


@pytest.mark.parametrize(("batch", "staleness"), RECIPES)
@pytest.mark.parametrize("name", SETS)
def test_parts_by_rows_train_to_the_bits_of_the_whole(name: str, batch: int, staleness: int) -> None:
    whole, wanted = of_whole(batch, staleness)
    several, results = trained(insert_forks(split_rows(net(batch, staleness), SETS[name])))
    assert all(map(np.array_equal, results, wanted)), "what the host gets"
    weights, wanted_weights = several.parameters(), whole.parameters()
    assert weights.keys() == wanted_weights.keys()
    assert all(np.array_equal(weights[key], wanted_weights[key]) for key in weights)


# bits of sums that wrap, and as many as engines of a row or two would not want to cut any product for
NARROW = ("fit", "20", "36")


@pytest.mark.parametrize("sums", NARROW)
@pytest.mark.parametrize("name", SETS)
def test_parts_whose_sums_have_few_bits_train_to_the_bits_of_the_whole(name: str, sums: str) -> None:
    graph = split_rows(net(4, 0, sums), SETS[name])
    assert sum(getattr(node.layer, "cut", 0) > 0 for node in graph.nodes) > 3
    several, results = trained(insert_forks(graph))
    whole, wanted = of_whole(4, 0, sums)
    assert all(map(np.array_equal, results, wanted)), "what the host gets"
    weights, wanted_weights = several.parameters(), whole.parameters()
    assert all(np.array_equal(weights[key], wanted_weights[key]) for key in weights)


def test_parts_that_follow_one_another_exchange_halos_alone() -> None:
    graph = split_rows(net(4, 0), SETS["a stretch"])
    ends = {node.name: node.layer for node in graph.nodes if node.role is Role.DEAL}
    # in front of the stretch, and of its way back; between them halos of errors for the kernel of three rows
    assert isinstance(ends["relu1.y.deal"], RowDeal)
    assert ends["relu1.y.deal"].ranges == ((0, 3), (1, 6), (4, 8))
    assert isinstance(ends["conv4.error.dx.deal"], RowDeal)
    assert ends["conv4.error.dx.deal"].ranges == ((0, 2), (2, 5), (5, 8))
    gathered = {name: layer.rows for name, layer in ends.items() if isinstance(layer, RowGather)}
    assert [*gathered.values()] == [(2, 3, 3), (2, 1), (1, 3, 1), (1, 3), (2, 3, 3)]
    # a halo waits for its part, the part's own rows move in step
    assert [port.tensor.kind for port in ends[[*gathered][2]].sinks] == [Kind.STASH, Kind.ERROR, Kind.STASH]
    assert len(ends) == 2 + 3 + len(gathered)


# parts of one or two rows, whose windows see those of two parts on either side
FEW_ROWS: Mapping[str, Mapping[str, int]] = {
    "a row each": {"conv2": 9},
    "a row each, one after another": {"conv1": 9, "relu1": 9, "conv2": 9},
    "unlike numbers": {"conv1": 7, "relu1": 9, "conv2": 5, "max_pool1": 3},
}


@cache
def large_windows() -> Graph:
    """A training graph of 9 x 4 pixels with kernels of five rows."""
    build = GraphBuilder("windows", Recipe(batch=4, learning_rate=0.1), seed=5)
    x = build.relu(build.conv(build.input(9, 4, 1), 2, 5, padding=2))
    x = build.max_pool(build.conv(x, 2, 5, padding=2), 3, 3)
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    return calibrate(training, [synthetic_feeds(training, 4, seed) for seed in range(2)])


@pytest.mark.parametrize("name", FEW_ROWS)
def test_parts_may_have_fewer_rows_than_their_halo(name: str) -> None:
    whole, wanted = trained(insert_forks(large_windows()))
    graph = insert_forks(split_rows(large_windows(), FEW_ROWS[name]))
    several, results = trained(graph)
    assert all(map(np.array_equal, results, wanted)), "what the host gets"
    assert all(np.array_equal(several.parameters()[key], values) for key, values in whole.parameters().items())
    assert max(len(node.layer.rows) for node in graph.nodes if isinstance(node.layer, RowGather)) >= 5


def test_one_engine_sums_the_error_of_each_row() -> None:
    """No errors of parts are added up: what would be rounded twice is not there."""
    graph = split_rows(net(4, 0), SETS["all windows"])
    adders = [node.name for node in graph.nodes if node.role is Role.SUM and not isinstance(node.layer, Exchange)]
    assert sorted(adders) == sorted(f"relu1_rows{part}.y.sum0" for part in range(3))
    updates = [node for node in graph.nodes if node.role is Role.UPDATE]
    assert len(updates) == len([node for node in net(4, 0).nodes if node.role is Role.UPDATE])


def test_what_comes_once_a_batch_goes_from_part_to_part() -> None:
    """Sums to the last part, which rounds, and new weights back to the first."""
    graph, layer = split_rows(net(4, 0), {"depthwise1": 4}), "depthwise1"
    comes = f"{layer}_rows0.gradient"
    for part in (1, 2, 3):
        adder = graph.by_name[f"{layer}.gradient.g.exchange{part}"]
        assert isinstance(adder.layer, Exchange)
        assert adder.layer_of == f"{layer}_rows{part}"
        assert makers(graph, adder) == {"g": f"{layer}_rows{part}.gradient", "ring_in": comes}
        comes = adder.name
    update = graph.by_name[f"{layer}.w.update"]
    assert makers(graph, update)["g"] == comes
    comes = update.name
    for part in (3, 2, 1, 0):
        spread = graph.by_name[f"{update.name}.w.spread{part}"]
        assert spread.layer_of == f"{layer}_rows{part}"
        assert makers(graph, spread) == {"x": comes}
        after = [f"{update.name}.w.spread{part - 1}"] if part else []
        assert [user for edge in spread.outputs.values() for user in users(graph, edge)] == [
            f"{layer}_rows{part}",
            f"{layer}_rows{part}.error",
            *after,
        ]
        comes = spread.name


def test_all_that_is_wrong_is_said_at_once() -> None:
    wrong = {"conv1": 9, "gemm1": 2, "average1": 2, "conv4": 1, "convx": 2}
    with pytest.raises(GraphError) as raised:
        split_rows(net(4, 0), wrong)
    for part in (
        "conv1 (Conv): 8 rows in 9 parts are impossible; choose 2 to 8",
        "gemm1 (Conv): 1 rows in 2 parts are impossible; leave it whole",
        "average1 (GlobalAveragePool) can't be split by rows; choose layers of windows or of single pixels",
        "conv4 (Conv): 4 rows in 1 parts are impossible; choose 2 to 4",
        "no layer convx; names are like conv",
    ):
        assert part in str(raised.value), part
    build = GraphBuilder("net", Recipe(batch=2), seed=5)
    x = build.global_average_pool(build.conv(build.input(6, 6, 1), 2, 5, padding=2))
    wide = build.classify(build.gemm(x, 3))
    with pytest.raises(GraphError, match="6 rows in 7 parts are impossible; choose 2 to 6"):
        split_layers(wide, {"conv1": Parts(7, by_rows=True)})
    with pytest.raises(GraphError, match="no layer c; choose of conv1"):
        split_layers(wide, {"c": Parts(2, by_rows=True)})
    assert Parts.parse(str(Parts(3, by_rows=True))) == Parts(3, by_rows=True)


def test_parts_by_rows_have_no_copies_and_others_have() -> None:
    graph = split_rows(net(4, 0), SETS["a convolution"])
    with pytest.raises(GraphError, match=r"conv2_rows0.gradient .* is one of the parts by rows"):
        replicate(graph, {"conv2": 2})
    most = most_copies(insert_forks(graph))
    assert (most["conv2"], most["conv1"]) == (1, 4)
    several, results = trained(insert_forks(replicate(graph, {"conv1": 2, "relu1": 2, "conv4": 3})))
    whole, wanted = of_whole(4, 0)
    assert all(map(np.array_equal, results, wanted))
    assert all(np.array_equal(several.parameters()[key], values) for key, values in whole.parameters().items())


def test_graphs_in_parts_are_kept_in_files(tmp_path: Path) -> None:
    graph = insert_forks(split_rows(net(4, 0), SETS["unlike numbers"]))
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json").nodes == graph.nodes


def test_a_halo_is_not_taken_for_what_waits_for_the_way_back() -> None:
    sinks = [
        sink
        for found in kept_edges(insert_forks(split_rows(net(4, 0), SETS["all windows"]))).values()
        for sink in found
    ]
    assert sinks
    assert not [name for name, _ in sinks if ".gather" in name]


# ---- time


@pytest.mark.parametrize("name", ["three parts of eight rows", "all windows"])
def test_rows_of_a_part_wait_as_long_as_their_engine_takes(name: str) -> None:
    """A part gets its rows in its share of a frame, and takes a frame's time for them."""
    graph = fold_graph(insert_forks(split_rows(net(4, 0), SETS[name])), CYCLES)
    times = schedule(graph, CYCLES)
    depths = fifo_beats(graph, times)
    for edge, producer, source, consumer, sink in graph.streams:
        if isinstance(producer.layer, RowDeal):
            first, last = producer.layer.frame_share(source.name) or (0, 1)
            assert times.offered[edge].last - times.offered[edge].first <= CYCLES * (last - first) * 2 + 2
        if isinstance(consumer.layer, RowGather) and isinstance(producer.layer, Conv):
            assert times.taken[edge].last >= times.offered[edge].last
            assert depths[edge] >= times.frames_waiting(edge) * sink.beats > 0.2 * sink.beats


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a convolution", "a stretch"])
def test_depths_of_the_schedule_are_no_less_than_it_takes_to_move(name: str) -> None:
    graph = fold_graph(insert_forks(split_rows(net(4, 0), SETS[name])), CYCLES)
    depths = fifo_beats(graph, schedule(graph, CYCLES))
    for edge, _, _, consumer, sink in graph.streams:
        if not sink.tensor.kind.per_batch and isinstance(consumer.layer, RowGather | Add):
            assert depths[edge] >= deadlock_beats(graph, edge), edge


# ---- several pixels a beat

# cycles of a frame of 64 pixels, of which no part of a layer takes as many
FAST = 40
WIDE: Mapping[str, int] = {"conv1": 4, "relu1": 4, "conv2": 4}


def large_images() -> Graph:
    build = GraphBuilder("large", Recipe(batch=4, learning_rate=0.1), seed=5)
    x = build.relu(build.conv(build.input(8, 8, 2), 3, 3, padding=1))
    x = build.conv(x, 4, 3, stride=2, padding=1)
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    return calibrate(training, [synthetic_feeds(training, 4, seed) for seed in range(2)])


def test_parts_take_several_pixels_a_cycle_together() -> None:
    graph = fold_graph(insert_forks(split_rows(large_images(), WIDE)), FAST)
    deal = graph.by_name["input1.y.deal"].layer
    assert (deal.cycles_per_frame, deal.port("x").lanes, deal.port("y1").lanes) == (32, 4, 4)
    assert max(node.layer.cycles_per_frame for node in graph.nodes if not node.layer.works_per_batch) <= FAST
    with pytest.raises(FoldingError, match="relu1"):
        fold_graph(insert_forks(split_rows(large_images(), {"conv1": 4, "conv2": 4})), FAST)


@pytest.mark.parametrize(("cycles", "lanes"), [(96, 1), (32, 3), (31, 6), (16, 6), (15, 12), (8, 12)])
def test_a_beat_of_several_pixels_is_a_part_of_a_row(cycles: int, lanes: int) -> None:
    rows = {"height": 8, "width": 4, "channels": 3}
    for layer in (RowDeal(**rows, starts=(0, 3), ends=(5, 8)), RowGather(**rows, rows=(3, 5))):
        assert layer.fold(cycles).lanes == lanes
        with pytest.raises(FoldingError, match="all pixels of a row a beat still take 8 cycles a frame, more than 7"):
            layer.fold(7)
        # a pixel and a half, two pixels and a channel, eight pixels of rows of four
        for wrong in (4, 5, 9, 24):
            with pytest.raises(FoldingError, match=f"{wrong} lanes do not divide 3 channels"):
                replace(layer, lanes=wrong)


# ---- circuits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch", "staleness"),
    [("three parts of eight rows", 4, 0), ("a convolution", 4, 0), ("all windows", 5, 3), ("unlike numbers", 5, 3)],
)
def test_circuits_of_parts_on_slow_links_train_to_the_bits_of_the_whole(
    name: str, batch: int, staleness: int, tmp_path: Path
) -> None:
    graph = insert_forks(split_rows(net(batch, staleness), SETS[name]))
    check_circuits(graph, CYCLES, of_whole(batch, staleness)[1], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a row each", "a row each, one after another", "unlike numbers"])
def test_circuits_of_few_rows_train_to_the_bits_of_the_whole(name: str, tmp_path: Path) -> None:
    graph = insert_forks(split_rows(large_windows(), FEW_ROWS[name]))
    check_circuits(graph, CYCLES, trained(insert_forks(large_windows()))[1], tmp_path)


@pytest.mark.parametrize("sums", quick(1, ["20", "36"]))
def test_circuits_of_parts_whose_sums_have_few_bits_train_to_the_bits_of_the_whole(sums: str, tmp_path: Path) -> None:
    graph = insert_forks(split_rows(net(4, 0, sums), SETS["three parts of eight rows"]))
    check_circuits(graph, CYCLES, of_whole(4, 0, sums)[1], tmp_path)


@pytest.mark.slow
def test_circuits_whose_rows_come_several_pixels_a_beat_train_to_the_bits_of_the_whole(tmp_path: Path) -> None:
    graph = insert_forks(split_rows(large_images(), WIDE))
    check_circuits(graph, FAST, trained(insert_forks(large_images()))[1], tmp_path)


def check_circuits(graph: Graph, cycles: int, wanted: list[np.ndarray], path: Path) -> None:
    """Parts on three devices, over slow links with stalls."""
    batch = graph.recipe.batch
    placed = {node.name: DEVICES[(part_of(node) + 1) % 3] for node in graph.nodes}
    library = ModuleLibrary(cache_folder() / "modules")
    design = design_cluster(graph, placed, DEVICES, cycles, library, word_bits=64)
    feeds = [synthetic_feeds(graph, batch, 100 + n) for n in range(BATCHES)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=2)
    run = simulate_design(design, library, feeds, path, Simulator.VERILATOR, network, 64, 2, Silent(), optimise=False)
    assert run.mismatches == ()
    assert run.compared_words > 100
    records = np.concatenate([results.reshape(-1, 2) for results in wanted])
    assert np.array_equal(run.losses, METRICS.decode(records[:, 0]))


def makers(graph: Graph, node: Node) -> dict[str, str]:
    """Sink -> what makes its stream."""
    return {sink: graph.producers[edge][0].name for sink, edge in node.inputs.items()}


def users(graph: Graph, edge: str) -> list[str]:
    """Names of what reads an edge."""
    return [node.name for node, _ in graph.consumers[edge]]


def part_of(node: Node) -> int:
    """Which part a node is, or which it deals for; -1 of what there is one of."""
    found = re.search(r"_rows(\d+)", node.name) or re.search(r"gather\d*\.(\d+)$", node.name)
    return int(found[1]) if found else -1


# ---- what crosses


def test_a_cut_by_rows_is_crossed_by_each_map_once_and_by_halos() -> None:
    """Rows of x and of dx for the boards behind, of y and of errors for those before, and a row of either halo."""
    side, channels = 8, 4
    forward = row_splits.conv1(side, channels)
    graph = row_splits.in_parts(forward, "rows", 2)
    (cut,) = row_splits.cuts(graph, "rows", 2)
    row = side * channels * 16
    # x and errors 5 rows, y and dx 4; once a batch weights of 16 bits, and exact sums of gradients, a word each
    once = channels * channels * 9 * (16 + row_splits.WORD_BITS) / row_splits.BATCH
    assert cut.bits == 18 * row + once
    of_inputs = row_splits.widest(forward, "inputs", 4)
    assert of_inputs.bits > cut.bits
    assert cut.linear_boards > of_inputs.linear_boards
    assert pytest.approx(92.8e9, rel=1e-3) == row_splits.OPERATIONS


def test_a_stretch_by_rows_is_crossed_by_halos_and_by_what_is_small() -> None:
    forward = row_splits.conv1(8, 4)
    alone, block = (row_splits.widest(forward, way, 2).bits for way in ("rows", "all of conv1 by rows"))
    assert block < 0.75 * alone
