"""The cycles of whole batches: what `batch_time` says of a placed graph, against its Verilog in simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.passes.fold import fold_graph
from dagtrain.progress import Silent
from dagtrain.schedule.batch_time import _long_run, batch_time, edge_ways
from dagtrain.schedule.buffers import fifo_beats
from dagtrain.schedule.schedule import schedule
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from tests.cosim_support import (
    BATCH,
    CLOSE,
    DEVICES,
    inception_net,
    placement,
    residual_net,
    said_batch_cycles,
    simulate_design,
    twelve_net,
)

NETS = {"residual": residual_net, "inception": inception_net, "twelve": twelve_net}
NETWORK_CYCLES = 90


@pytest.mark.parametrize("staleness", [0, 1, 6, 17, 40])
@pytest.mark.parametrize("kind", ["one", "dealt out"])
def test_long_batches_follow_from_short_ones(kind: str, staleness: int) -> None:
    graph, frames = fold_graph(residual_net(0), 300), 40
    placed = placement(graph, kind)
    crossing = {edge: 9 for edge, p, _, c, _ in graph.edges if placed[p.name] != placed[c.name]}
    depths = fifo_beats(graph, schedule(graph, 300, crossing))
    ways = edge_ways(graph, depths, crossing, network_cycles=NETWORK_CYCLES, word_bits=64)
    long = replace(graph, recipe=replace(graph.recipe, batch=frames, staleness=staleness))
    simulated, _ = _long_run(long, ways, frames, staleness)
    assert batch_time(long, ways).cycles == pytest.approx(simulated, abs=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "kind", "staleness", "cycles", "batches"),
    [
        ("residual", "one", 0, 1200, 3),
        ("residual", "one", 2, 300, 3),
        # FIFOs must be full until the rests of gradient engines are felt
        ("residual", "one", BATCH, 300, 14),
        ("residual", "branches apart", 0, 300, 3),
        ("inception", "dealt out", 0, 300, 3),
        ("inception", "one", 1, 200, 3),
        ("twelve", "one", 0, 576, 3),
        ("twelve", "dealt out", 2, 576, 3),
        ("twelve", "one", BATCH, 576, 14),
    ],
)
def test_batches_take_the_cycles_that_are_said(
    net: str, kind: str, staleness: int, cycles: int, batches: int, tmp_path: Path
) -> None:
    graph, library = NETS[net](staleness), ModuleLibrary(cache_folder() / "modules")
    design = design_cluster(graph, placement(graph, kind), DEVICES, cycles, library, word_bits=64)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(batches)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, stall_256=0)
    run = simulate_design(
        design, library, feeds, tmp_path, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False
    )
    assert run.mismatches == ()
    assert said_batch_cycles(design, NETWORK_CYCLES) == pytest.approx(run.batch_cycles[-1], rel=CLOSE)
