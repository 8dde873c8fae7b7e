"""Clusters whose receivers have one memory (`[network] receivers = "pool"`): every bit as with FIFOs, what it costs."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel, pool_of, receiver
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.stored import DramUse
from dagtrain.planning.frame_ports import pool_rest
from dagtrain.planning.link_costs import LinkCosts
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Usage, fit
from hdl.errors import DagtrainError
from hdl.link.pool import NARROW_STAGE, WIDE_STAGE, ReceivePool
from hdl.parts.catalogue import PARTS
from hdl.simulate.models.ethernet import Faults
from hdl.unit import Unit
from placement.problem.cluster import read_cluster
from tests.cosim_support import (
    CLOSE,
    CYCLES,
    DEVICES,
    placement,
    residual_net,
    said_batch_cycles,
    simulate_design,
    tiny_design,
    tiny_net,
)
from tests.flow_support import CLUSTER, new_case, quick_costs, with_few_dsp
from tests.test_ethernet_emission import ethernet

LIBRARY = ModuleLibrary(cache_folder() / "modules")
NETWORK_CYCLES = 90
POOLED = '\n[network]\nreceivers = "pool"\n'


@pytest.fixture(scope="module")
def design() -> ClusterDesign:
    """A residual block whose branches are apart."""
    graph = residual_net(1)
    placed = placement(graph, "branches apart")
    return design_cluster(graph, placed, DEVICES, CYCLES, LIBRARY, word_bits=64, pooled=True)


def trained(design: ClusterDesign, folder: Path, network: NetworkModel, **options: Any) -> ClusterRun:
    graph, batch = design.graph, design.graph.recipe.batch
    feeds = [synthetic_feeds(graph, batch, 100 + index) for index in range(3)]
    run = simulate_design(
        design, LIBRARY, feeds, folder, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False, **options
    )
    assert run.mismatches == ()
    assert len(run.losses) == 3 * batch
    return run


@pytest.mark.slow
def test_a_cluster_trains_to_the_bits_of_the_emulator_in_the_time_that_is_told(
    design: ClusterDesign, tmp_path: Path
) -> None:
    run = trained(design, tmp_path, NetworkModel(latency_cycles=NETWORK_CYCLES, stall_256=0), stretch_cycles=CYCLES)
    assert run.batch_cycles[-1] == pytest.approx(said_batch_cycles(design, NETWORK_CYCLES), rel=CLOSE)
    # what waits for each receiver is seen
    assert run.timeline is not None
    found = {(fifo.device, fifo.name): fifo for fifo in run.timeline.fifos}
    for device in design.devices:
        for crossing in device.ingress:
            fifo = found[device.name, f"receiver of {crossing.edge}"]
            assert 0 < max(fifo.highest) <= fifo.depth == device.link_words[crossing.edge]


@pytest.mark.slow
def test_streams_that_are_held_up_change_no_bit(design: ClusterDesign, tmp_path: Path) -> None:
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, words=1, cycles=2, stall_256=40, seed=3)
    trained(design, tmp_path, network, hold_cycles=200)


def test_a_device_has_one_memory_and_receivers_have_none(design: ClusterDesign) -> None:
    for device in design.devices:
        pools = [one for one in device.top.instances if one.module.startswith("receive_pool_")]
        assert len(pools) == bool(device.ingress)
        for pool in pools:
            ways = {net for port, net in pool.connections.items() if port.startswith("ys") and port.endswith("_valid")}
            assert len(ways) == len(device.ingress)
    wide = [receiver(crossing, design.form, 32) for crossing in design.crossings]
    pool = pool_of(wide)
    assert pool.regions == (32,) * len(wide)
    stages = {unit.lanes * unit.element_bits: stage for unit, stage in zip(wide, pool.stages, strict=True)}
    assert {*stages.values()} <= {NARROW_STAGE, WIDE_STAGE}
    assert stages == {bits: NARROW_STAGE if 7 * bits <= 2 * 64 else WIDE_STAGE for bits in stages}


@pytest.mark.slow
def test_an_ethernet_that_does_what_it_likes_changes_no_bit(tmp_path: Path) -> None:
    design = tiny_design(
        LIBRARY, net=tiny_net(), dram=DramUse(), ethernet=ethernet(), state_access=True, pooled=True,
        periods={"beta": Fraction(200, 250)},
    )  # fmt: skip
    faults = Faults(loss=5e-2, duplicate=5e-2, reorder=5e-2, corrupt=5e-2)
    run = trained(design, tmp_path, NetworkModel(latency_cycles=60, stall_256=16, faults=faults))
    assert sum(pair.again for pair in run.pairs) > 0


def usage(unit: Unit, estimator: Estimator, part: str = "10AX115") -> Usage:
    return fit(estimator.block(repr(unit), dict(unit.streams), unit.build), PARTS[part])


def test_streams_pay_their_parts_of_what_is_built(design: ClusterDesign) -> None:
    estimator = Estimator(":memory:")
    graph = design.graph
    links = LinkCosts.of(graph, graph.placed, DEVICES, 512, pooled=True)
    apart = LinkCosts.of(graph, graph.placed, DEVICES, 512)
    crossing = next(c for c in design.crossings if not c.sink.tensor.kind.per_batch)
    beats = design.fifo_beats[crossing.edge]
    charged, alone = (
        sum((usage(unit, estimator).scaled(share) for unit, share in each.receiving(crossing.edge, beats)), Usage())
        for each in (links, apart)
    )
    unit = receiver(crossing, links.form, 32)
    built = usage(pool_of([unit] * 40), estimator)
    mine = charged.alm - usage(unit, estimator).alm
    assert 40 * mine == pytest.approx(built.alm, rel=0.1)
    assert 40 * charged.m20k + pool_rest(links.form, PARTS["10AX115"]).m20k >= built.m20k
    assert 40 * charged.m20k == pytest.approx(built.m20k, abs=14)
    # fewer ALMs, for block memories
    assert charged.alm < alone.alm
    assert charged.m20k > alone.m20k == 0


def test_the_cluster_file_says_who_has_memories(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    assert not read_cluster(path).network.pooled
    path.write_text(CLUSTER + POOLED)
    assert read_cluster(path).network.pooled
    path.write_text(CLUSTER + POOLED.replace("pool", "pond"))
    with pytest.raises(DagtrainError, match=r"network\.receivers = 'pond': .*\"fifos\" or \"pool\""):
        read_cluster(path)
    framed = '\n[network]\nkind = "ethernet"\nreceivers = "pool"\nhost_mac = "02:00:00:00:ff:ff"\n'
    path.write_text(CLUSTER + framed)
    assert read_cluster(path).network.pooled


@pytest.mark.slow
def test_commands_plan_emit_and_simulate_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path, with_few_dsp(0.003, CLUSTER + POOLED))
    recipe = case.write("recipe.toml", "batch = 4\nstaleness = 4\n")
    for words in (("import", "--recipe", recipe, "--data", case.data()), ("place",), ("emit",)):
        outcome = case.step(*words)
        assert outcome.code == 0, outcome.error
    folders = [folder for folder in (case.out / "emit").iterdir() if (folder / "rtl").is_dir()]
    assert len(folders) == 2
    pools = [path for folder in folders for path in (folder / "rtl").glob("receive_pool_*.v")]
    assert pools
    outcome = case.step("cosim", "--batches", "2", "--no-efficiency")
    assert outcome.code == 0, outcome.error
    assert "every bit equal" in outcome.out
    outcome = case.step("simulate", "--level", "fast", "--batches", "2", "--latency", "200")
    assert outcome.code == 0, outcome.error
    assert json.loads((case.out / "cosim" / "cosim.json").read_text())["mismatches"] == []


def test_a_pool_says_what_it_is_of() -> None:
    form = LinkCosts.of(residual_net(1), None, DEVICES, 64, pooled=True).form
    unit = ReceivePool(format=form, regions=(4, 5), stages=(2, 2))
    assert unit.depth == 9
    # data, last and sequence
    assert unit.kept_bits == 64 + 1 + 8
