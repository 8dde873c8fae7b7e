"""Gradients and new weights that take several frames' time on their way, or part of one: other lanes, the same bits,
rests as said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.exchange import Exchanging
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import replicate
from dagtrain.passes.spread_updates import spread_updates
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import fit
from hdl.engine.codec.collective import Collective
from hdl.errors import DagtrainError
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from tests.cosim_support import CLOSE, DEVICES, placement, said_batch_cycles, simulate_design

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCH, CYCLES, FRAMES, QUARTER = 8, 200, 4, 0.25
NETWORK_CYCLES = 90


def heavy_net(staleness: int, copies: int = 1, collective: Collective = Collective.CENTRAL) -> Graph:
    """A streaming graph with many weights for its pace: 768 of a matrix, 200 cycles a frame."""
    builder = GraphBuilder("heavy", Recipe(batch=BATCH, staleness=staleness), seed=21)
    x = builder.relu(builder.norm(builder.conv(builder.input(6, 6, 2), 8, 3, padding=1)))
    y = builder.relu(builder.gemm(builder.relu(builder.gemm(builder.global_average_pool(x), 32)), 24))
    training = differentiate(builder.classify(builder.gemm(y, 5)))
    calibrated = calibrate(training, [synthetic_feeds(training, 4, seed) for seed in range(3)])
    return insert_forks(replicate(calibrated, {"gemm*": copies}, Exchanging(collective)))


def wide_net(staleness: int) -> Graph:
    """A streaming graph whose slowest engine has a matrix of several tiles: 576 weights, 4 of 144 at a time."""
    builder = GraphBuilder("wide", Recipe(batch=BATCH, staleness=staleness), seed=22)
    x = builder.relu(builder.conv(builder.input(6, 6, 2), 8, 3, padding=1))
    y = builder.relu(builder.conv(x, 8, 3, padding=1))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, 4, seed) for seed in range(3)]))


def lanes(graph: Graph) -> dict[str, int]:
    """Of every port that passes a tensor a batch."""
    ports = ((node, port) for node in graph.nodes for port in (*node.layer.sinks, *node.layer.sources))
    return {f"{node.name}.{port.name}": port.lanes for node, port in ports if port.tensor.kind.per_batch}


def test_engines_and_updates_have_the_lanes_that_the_frames_ask_for() -> None:
    graph = heavy_net(0)
    once, spread = (lanes(fold_graph(spread_updates(graph, frames), CYCLES)) for frames in (1, FRAMES))
    assert once == lanes(fold_graph(graph, CYCLES))
    fewer = {name for name in once if spread[name] != once[name]}
    layers = ("gemm1", "gemm2")
    assert {f"{layer}.gradient.g" for layer in layers} <= fewer
    assert {f"{layer}.w.update.g" for layer in layers} | {f"{layer}.w" for layer in layers} <= fewer
    assert all(spread[name] < once[name] for name in fewer)
    assert once["gemm2.w.update.g"] == 4
    assert spread["gemm2.w.update.g"] == 1


def test_with_less_than_a_frames_time_engines_rest_less_and_nothing_on_the_way_is_narrower() -> None:
    graph = wide_net(0)
    once, faster = (fold_graph(spread_updates(graph, frames), CYCLES) for frames in (1, QUARTER))
    before, after = lanes(once), lanes(faster)
    assert all(after[name] >= before[name] for name in before)
    wider = {name for name in before if after[name] > before[name]}
    # also the fork that hands new weights to both engines
    fork = {f"conv2.w.update.w.fork.{port}" for port in ("x", "y0", "y1")}
    assert {"conv2.gradient.g", "conv2.w.update.g", "conv2.w.update.w", "conv2.error.w", *fork} <= wider
    rests: list[int] = [getattr(graph.by_name["conv2.gradient"].layer, "drain_cycles", 0) for graph in (once, faster)]
    assert rests[0] > CYCLES * 0.7
    assert 0 < rests[1] < rests[0] / 3


@pytest.mark.parametrize("collective", [Collective.CENTRAL, Collective.CHAIN])
@pytest.mark.parametrize("frames", [QUARTER, 1, FRAMES])
def test_sums_of_copies_and_what_hands_them_on_are_as_wide_as_the_engines(
    frames: float, collective: Collective
) -> None:
    folded = fold_graph(spread_updates(heavy_net(0, 2, collective), frames), CYCLES)
    ends = [(edge, source, sink) for edge, _producer, source, _consumer, sink in folded.streams]
    passing = [(edge, source.lanes, sink.lanes) for edge, source, sink in ends if source.tensor.kind.per_batch]
    assert [edge for edge, source, sink in passing if source != sink] == []


def test_fewer_lanes_save_most_of_their_alms_at_both_ends() -> None:
    found = []
    for frames in (1, FRAMES):
        folded = fold_graph(spread_updates(heavy_net(0), frames), CYCLES)
        nodes = [folded.by_name[name].layer for name in ("gemm2.w.update", "gemm2.gradient")]
        found.append([fit(Estimator().layer(layer), part("AGFB014")).alm for layer in nodes])
    (update, gradient), (narrow_update, narrow_gradient) = found
    assert narrow_update < update / 2
    assert narrow_gradient < gradient - 500


@pytest.mark.parametrize("frames", [0, -1, BATCH + 1, float("nan"), float("inf")])
def test_frames_that_a_batch_does_not_have_are_refused(frames: float) -> None:
    told = rf"time of {frames} frames; give them at most {BATCH}, the frames of a batch"
    with pytest.raises(DagtrainError, match=told):
        spread_updates(heavy_net(0), frames)


def trained_as_said(graph: Graph, design: ClusterDesign, batches: int, folder: Path) -> int:
    """Cycles of a batch, as a plan says, once the Verilog has trained some in as many and without a wrong bit."""
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(batches)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, stall_256=0)
    run = simulate_design(design, LIBRARY, feeds, folder, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False)
    assert run.mismatches == ()
    said = said_batch_cycles(design, NETWORK_CYCLES)
    assert run.batch_cycles[-1] == pytest.approx(said, rel=CLOSE)
    return said


@pytest.mark.parametrize(
    ("staleness", "frames", "batches"),
    [
        (0, FRAMES, 3),
        pytest.param(BATCH, FRAMES, 12, marks=pytest.mark.slow),
        pytest.param(2, FRAMES, 8, marks=pytest.mark.slow),
    ],
)
def test_batches_train_to_the_same_bits_in_the_cycles_that_are_said(
    staleness: int, frames: int, batches: int, tmp_path: Path
) -> None:
    graph = spread_updates(heavy_net(staleness), frames)
    design = design_cluster(graph, placement(graph, "one"), DEVICES, CYCLES, LIBRARY, word_bits=64)
    rests: dict[str, Any] = {node.name: getattr(node.layer, "drain_cycles", 0) for node in design.graph.nodes}
    assert max(rests.values()) > 3 * CYCLES
    said = trained_as_said(graph, design, batches, tmp_path)
    if staleness == BATCH:
        # the rest is felt: nothing else waits
        slowest = max(node.layer.cycles_per_frame for node in design.graph.nodes)
        assert said > BATCH * slowest + 3 * CYCLES


@pytest.mark.slow
def test_with_less_than_a_frames_time_a_batch_takes_less_and_has_the_same_bits(tmp_path: Path) -> None:
    said = {}
    for frames in (1, QUARTER):
        graph = spread_updates(wide_net(BATCH), frames)
        design = design_cluster(graph, placement(graph, "one"), DEVICES, CYCLES, LIBRARY, word_bits=64)
        said[frames] = trained_as_said(graph, design, 12, tmp_path / str(frames))
    assert said[1] - said[QUARTER] > CYCLES / 2
