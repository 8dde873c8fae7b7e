"""Depths of FIFOs: enough for the interval, and the least that does not deadlock."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import Simulator, StuckError
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.progress import Silent
from dagtrain.schedule.buffers import REGISTER_BEATS, burst_elements, deadlock_beats, fifo_beats, held_back
from dagtrain.schedule.schedule import schedule
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.layers.pointwise.sigmoid import Sigmoid
from hdl.recipe import Recipe
from hdl.strips import Strips
from tests.cosim_support import simulate_design
from tests.suites import quick

BATCH = 4
CYCLES = 600
HEIGHT, WIDTH, CHANNELS = 5, 4, 4


def net() -> Graph:
    """A convolution beside an identity shortcut: a join, and stashes that wait for the loss."""
    build = GraphBuilder("shortcut", Recipe(batch=BATCH, staleness=BATCH), seed=5)
    x = build.relu(build.conv(build.input(HEIGHT, WIDTH, 1), CHANNELS, 1))
    y = build.add(build.conv(x, CHANNELS, 3, padding=1), x)
    training = differentiate(build.classify(build.gemm(build.global_average_pool(y), 3)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


# edge -> why it needs room; layers on the way hold nothing, so the bound is exact
JOIN, ERROR_JOIN, STASH = "relu1.y.fork.y1", "average1.error.dx.fork.y2", "relu1.mask"
PLANNED = 480


def bounds(graph: Graph) -> dict[str, int]:
    folded = fold_graph(graph, CYCLES)
    return {edge: deadlock_beats(folded, edge) for edge in (JOIN, ERROR_JOIN, STASH)}


# of the chain below: its engines need all of it
TIGHT = 1800


def chain() -> Graph:
    """Engines that work row by row, with layers between them that hand on every beat."""
    build = GraphBuilder("chain", Recipe(batch=2 * BATCH, staleness=2 * BATCH), seed=5)
    x = build.relu(build.conv(build.input(10, 10, 2), 4, 3, padding=1))
    x = build.relu(build.conv(x, 8, 3, stride=2, padding=1))
    x = build.relu(build.conv(x, 8, 3, padding=1))
    x = build.relu(build.conv(x, 16, 3, stride=2, padding=1))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def train(graph: Graph, folder: Path, depths: dict[str, int], batches: int = 1, cycles: int = CYCLES) -> ClusterRun:
    """Train on one device without any stall from outside, these FIFOs other than analysed."""
    library = ModuleLibrary(cache_folder() / "modules")
    where = dict.fromkeys((node.name for node in graph.nodes), "one")
    made = design_cluster(graph, where, ("one",), cycles, library, word_bits=64, fifo_override=depths)
    batch = graph.recipe.batch
    assert made.needed_staleness <= batch
    feeds = [synthetic_feeds(graph, batch, 100 + index) for index in range(batches)]
    network = NetworkModel()
    return simulate_design(made, library, feeds, folder, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False)


def test_the_bound_is_what_the_long_branch_takes_in_before_its_first_result() -> None:
    graph = net()
    consumers = {edge: graph.consumers[edge][0][0].name for edge in (JOIN, ERROR_JOIN, STASH)}
    assert consumers == {JOIN: "add1", ERROR_JOIN: "relu1.y.sum0", STASH: "relu1.error"}
    # a 3x3 window with padding needs two rows, the loss the whole frame; a beat waits in front of the fork
    row = WIDTH * CHANNELS
    assert bounds(graph) == {JOIN: 2 * row - 1, ERROR_JOIN: 2 * row - 1, STASH: HEIGHT * row - 1}


def test_edges_that_close_no_branch_cannot_deadlock() -> None:
    graph = fold_graph(net(), CYCLES)
    for edge in ("conv1.y", "relu1.y", "relu1.y.fork.y0", "gemm1.y", "average1.error.dx", "relu1.y.sum0.y"):
        assert deadlock_beats(graph, edge) == 0, edge


def test_analysed_depths_are_no_less_than_the_bound() -> None:
    graph = fold_graph(net(), CYCLES)
    depths = fifo_beats(graph, schedule(graph, CYCLES))
    for edge, _producer, _source, _consumer, _sink in graph.edges:
        assert depths[edge] >= deadlock_beats(graph, edge), edge


@pytest.mark.slow
def test_the_analysed_depths_keep_the_interval_and_the_bound_only_moves(tmp_path: Path) -> None:
    graph = net()
    folded = fold_graph(graph, CYCLES)
    assert max(node.layer.cycles_per_frame for node in folded.nodes) == PLANNED
    analysed = train(graph, tmp_path / "analysed", {}, batches=6)
    least = train(graph, tmp_path / "least", bounds(graph), batches=6)
    assert analysed.mismatches == least.mismatches == ()
    assert analysed.cycles_per_frame <= PLANNED
    assert least.cycles_per_frame > 1.05 * PLANNED


def without_bursts(folded: Graph) -> dict[str, int]:
    """Depths of the chain's FIFOs for frames that wait, and for nothing else."""
    plan = schedule(folded, TIGHT)
    return {
        edge: math.ceil(plan.frames_waiting(edge) * source.tensor.elements / sink.lanes) + REGISTER_BEATS
        for edge, _producer, source, _consumer, sink in folded.edges
        if not source.tensor.kind.per_batch
    }


@pytest.mark.slow
def test_a_burst_waits_in_front_of_an_engine_and_nowhere_else(tmp_path: Path) -> None:
    graph = chain()
    folded = fold_graph(graph, TIGHT)
    assert sum(node.layer.cycles_per_frame == TIGHT for node in folded.nodes) >= 6
    depths, without = fifo_beats(folded, schedule(folded, TIGHT)), without_bursts(folded)
    assert [depths[edge] - without[edge] for edge in ("conv2.y", "relu2.y", "relu2.y.fork.y0")] == [0, 0, 2 * 5 * 8]
    analysed = train(graph, tmp_path, {}, batches=8, cycles=TIGHT)
    assert analysed.mismatches == ()
    assert analysed.cycles_per_frame <= 1.005 * TIGHT


# that depths are no larger than those above is told there without a simulation
@pytest.mark.slow
def test_without_room_for_bursts_engines_wait(tmp_path: Path) -> None:
    graph = chain()
    slower = train(graph, tmp_path, without_bursts(fold_graph(graph, TIGHT)), batches=8, cycles=TIGHT)
    assert slower.mismatches == ()
    assert slower.cycles_per_frame > 1.01 * TIGHT


@pytest.mark.parametrize("edge", quick(1, [JOIN, STASH, ERROR_JOIN]))
def test_a_beat_below_the_bound_deadlocks(edge: str, tmp_path: Path) -> None:
    graph = net()
    reported = (
        r"^nothing moved any more, seen in cycle \d+ after \d+ records: the pipeline has deadlocked; "
        r"the host waits for frame \d+ of batch \d+; these wait.*:\n"
        rf"(.*\n)*.*FIFO of {re.escape(edge)} .*is offered and not taken"
    )
    with pytest.raises(StuckError, match=reported):
        train(graph, tmp_path, {edge: bounds(graph)[edge] - 1})


def test_a_map_that_waits_for_a_vector_made_of_it_needs_a_frame(tmp_path: Path) -> None:
    build = GraphBuilder("squeezed", Recipe(batch=BATCH, staleness=BATCH), seed=5)
    x = build.relu(build.conv(build.input(HEIGHT, WIDTH, 1), CHANNELS, 1))
    y = build.mul(x, build.activation(Sigmoid, build.global_average_pool(x)))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(y), 3)))
    graph, edge = insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, 0)])), "relu1.y.fork.y1"
    folded = fold_graph(graph, CYCLES)
    ((scale, sink),) = folded.consumers[edge]
    assert (scale.name, sink.name, sink.lanes) == ("scale1", "x", 1)
    # the first channel of the vector comes with that of the last pixel, which waits in front of the fork
    bound = deadlock_beats(folded, edge)
    assert bound == sink.beats - CHANNELS
    assert fifo_beats(folded, schedule(folded, CYCLES))[edge] > bound
    with pytest.raises(StuckError, match=rf"the pipeline has deadlocked(.*\n)*.*FIFO of {re.escape(edge)} "):
        train(graph, tmp_path, {edge: bound - 1})


def test_what_a_host_is_early_with_needs_no_fifo() -> None:
    graph = chain()
    folded = fold_graph(graph, 4 * TIGHT)
    depths = fifo_beats(folded, schedule(folded, 4 * TIGHT))
    (first,) = (node for node in folded.nodes if node.name == "conv1")
    sink, edge = first.layer.port("x"), first.inputs["x"]
    # it could send the frame in an eighth of the time that the engine takes
    assert first.layer.cycles_per_frame > 8 * sink.beats
    assert depths[edge] <= burst_elements(sink.tensor.shape) + 2 * REGISTER_BEATS < sink.beats / 2


# ---- rows of little work


def row_by_row(cycles: list[int], each: int, lanes: int, most: int, room: int, frames: int = 8) -> float:
    """Cycles a frame of an engine that makes so many elements in each of its strips, at most ``most`` a cycle, in front
    of a FIFO of so much room from which ``lanes`` leave in each cycle: cycle by cycle."""
    lying, now, ends = 0.0, 0, []
    for strip in cycles * frames:
        pace, left = each / strip, float(each)
        while left > 1e-9:
            lying = max(0.0, lying - lanes)
            came = min(pace, left, max(0.0, room - lying), most)
            lying, left, now = lying + came, left - came, now + 1
        ends.append(now)
    span = len(cycles)
    return (ends[-1] - ends[-1 - 3 * span]) / 3


@pytest.mark.parametrize("seed", range(60))
def test_what_is_held_back_of_unlike_rows_is_what_they_want(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, lanes = int(rng.integers(4, 9)), int(rng.integers(2, 6))
    width, channels, most = 24, 12, lanes + int(rng.integers(1, 6))
    each = width * channels
    cycles = [int(rng.integers(each // most, (3, 1.5)[seed % 2] * each / lanes)) for _ in range(rows)]
    made = [max(c, -(-each // most)) for c in cycles]
    tensor = SimpleNamespace(shape=(rows, width, channels), elements=rows * each, kind=SimpleNamespace(per_batch=False))
    source, sink = (SimpleNamespace(tensor=tensor, lanes=n, beats=-(-rows * each // n)) for n in (most, lanes))
    strips = Strips(stored={}, room={}, cycles=tuple(cycles), words={}, begin_cycles=0, result_cycles=0, free_cycles=0)
    graph = SimpleNamespace(producers={"e": (SimpleNamespace(layer=SimpleNamespace(strips=strips)), source)})
    held = held_back(graph, "e", source, sink)
    least = max(sum(made), sink.beats)
    if not held:
        # each row may take as long as it takes to pass
        assert row_by_row(made, each, lanes, most, lanes) <= least + 2 * rows, seed
        return
    # what is left over of a cycle at the end of each row
    assert row_by_row(made, each, lanes, most, held - channels + most) <= least + 2 * rows, seed
    assert row_by_row(made, each, lanes, most, max(lanes, (held - channels) // 2)) > least, seed
