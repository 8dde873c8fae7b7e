"""Gradients and new weights that take several frames' time on their way: fewer lanes, the same bits, rests as said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.spread_updates import spread_updates
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import fit
from hdl.errors import DagtrainError
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from tests.cosim_support import CLOSE, DEVICES, placement, said_batch_cycles, simulate_design

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCH, CYCLES, FRAMES = 8, 200, 4
NETWORK_CYCLES = 90


def heavy_net(staleness: int) -> Graph:
    """A streaming graph with many weights for its pace: 768 of a matrix, 200 cycles a frame."""
    builder = GraphBuilder("heavy", Recipe(batch=BATCH, staleness=staleness), seed=21)
    x = builder.relu(builder.norm(builder.conv(builder.input(6, 6, 2), 8, 3, padding=1)))
    y = builder.relu(builder.gemm(builder.relu(builder.gemm(builder.global_average_pool(x), 32)), 24))
    training = differentiate(builder.classify(builder.gemm(y, 5)))
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


def test_fewer_lanes_save_most_of_their_alms_at_both_ends() -> None:
    found = []
    for frames in (1, FRAMES):
        folded = fold_graph(spread_updates(heavy_net(0), frames), CYCLES)
        nodes = [folded.by_name[name].layer for name in ("gemm2.w.update", "gemm2.gradient")]
        found.append([fit(Estimator().layer(layer), part("AGFB014")).alm for layer in nodes])
    (update, gradient), (narrow_update, narrow_gradient) = found
    assert narrow_update < update / 2
    assert narrow_gradient < gradient - 500


@pytest.mark.parametrize("frames", [0, -1, BATCH + 1])
def test_frames_that_a_batch_does_not_have_are_refused(frames: int) -> None:
    with pytest.raises(DagtrainError, match=rf"time of {frames} frames; give them 1 to {BATCH}, the frames of a batch"):
        spread_updates(heavy_net(0), frames)


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
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(batches)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, stall_256=0)
    run = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False
    )
    assert run.mismatches == ()
    said = said_batch_cycles(design, NETWORK_CYCLES)
    assert run.batch_cycles[-1] == pytest.approx(said, rel=CLOSE)
    if staleness == BATCH:
        # the rest is felt: nothing else waits
        slowest = max(node.layer.cycles_per_frame for node in design.graph.nodes)
        assert said > BATCH * slowest + 3 * CYCLES
