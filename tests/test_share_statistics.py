"""Norms whose statistics and controls advance for few channels at a time: the same bits and pace, fewer ALMs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.multiply_constants import multiply_constants, multiplying_nodes
from dagtrain.passes.share_statistics import share_statistics
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import fit
from hdl.errors import DagtrainError, FoldingError
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.norm.online_norm_backward import OnlineNormBackward
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from tests.cosim_support import CLOSE, DEVICES, placement, said_batch_cycles, simulate_design

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCH, CYCLES, NETWORK_CYCLES = 4, 300, 90
KINDS = OnlineNorm, OnlineNormBackward


def wide_net(staleness: int) -> Graph:
    """A streaming graph whose norms take several channels a cycle."""
    builder = GraphBuilder("wide", Recipe(batch=BATCH, staleness=staleness), seed=22)
    x = builder.relu(builder.norm(builder.conv(builder.input(12, 12, 1), 8, 3, padding=1)))
    x = builder.relu(builder.norm(builder.depthwise(x, 3, padding=1)))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


def norms(graph: Graph) -> dict[str, Any]:
    return {node.name: node.layer for node in graph.nodes if isinstance(node.layer, KINDS)}


def test_norms_take_the_fewest_channels_at_a_time_that_keep_the_pace() -> None:
    graph = wide_net(0)
    before, after = (norms(fold_graph(each, CYCLES)) for each in (graph, share_statistics(graph)))
    assert len(before) == 4
    for name, layer in after.items():
        assert before[name].statistic_lanes == 0
        assert layer.core == before[name].core == 4
        assert layer.engine.slow.lanes == layer.statistic_lanes == 1
        assert layer.cycles_per_frame <= CYCLES
        assert before[name].sources == layer.sources
    # nothing to share at a pace of one channel a cycle, and no time for it at a pace of a few cycles
    assert all(layer.engine.slow.lanes == 1 for layer in norms(fold_graph(share_statistics(graph), 4000)).values())
    layer = OnlineNorm(height=8, width=8, channels=8, statistics_shared=True)
    assert {cycles: layer.fold(cycles).engine.slow.lanes for cycles in (72, 90, 180, 250)} == {
        72: 8, 90: 4, 180: 2, 250: 1,
    }  # fmt: skip


def test_channels_that_do_not_divide_are_refused() -> None:
    with pytest.raises(FoldingError, match="statistics of 3 channels at a time do not divide 4 core lanes"):
        OnlineNorm(height=2, width=2, channels=8, lanes=4, statistic_lanes=3)


@pytest.mark.parametrize(("kind", "share"), [(OnlineNorm, 0.3), (OnlineNormBackward, 0.4)])
def test_a_norm_of_several_channels_a_cycle_takes_fewer_alms(kind: Any, share: float) -> None:
    """That of MobileNetV2 with the most of them, at the pace of a plan."""
    layer = kind(height=56, width=56, channels=144, recipe=Recipe(batch=256, staleness=48))
    estimator, target = Estimator(), part("AGFB014")
    alone, shared = (
        fit(estimator.layer(replace(layer, statistics_shared=each).fold(62_720)), target) for each in (False, True)
    )
    assert shared.alm < share * alone.alm
    assert shared.dsp <= alone.dsp
    assert shared.m20k <= alone.m20k + 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("staleness", "kind", "multiplied"),
    [
        (2, "one", True),
        (2, "dealt out", True),
        (0, "one", False),
    ],
)
def test_a_cluster_with_shared_statistics_trains_to_the_bits_of_the_emulator(
    staleness: int, kind: str, multiplied: bool, tmp_path: Path
) -> None:
    graph = share_statistics(wide_net(staleness))
    if multiplied:
        graph = multiply_constants(graph, tuple(multiplying_nodes(graph)))
    design = design_cluster(graph, placement(graph, kind), DEVICES, CYCLES, LIBRARY, word_bits=64)
    assert {layer.statistic_lanes for layer in norms(design.graph).values()} == {1}
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(4)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, words=1, cycles=2, stall_256=40 if staleness else 0, seed=3)
    run = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 64 if staleness else 0, 3, Silent(),
        optimise=False,
    )  # fmt: skip
    assert run.mismatches == ()
    assert len(run.losses) == 4 * BATCH
    if not staleness:
        assert run.batch_cycles[-1] == pytest.approx(said_batch_cycles(design, NETWORK_CYCLES), rel=CLOSE)


def test_an_unknown_way_to_share_statistics_is_refused() -> None:
    with pytest.raises(DagtrainError, match="--share-statistics always: no such way; one of auto, never"):
        levers_wanted(PlaceOptions(Path("cluster.toml"), share_statistics="always"))
