"""Clusters of FPGAs that cables join, without a switch, train to the bits of the emulator; stalls change no bit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.bench import design_bench
from dagtrain.cosim.cluster import simulate_cluster
from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.parts import BenchOptions
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.windows import Share
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.manifest import DeliveryError
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.ir import Graph
from dagtrain.progress import Silent
from dagtrain.simulate.exact import ExactOptions, simulate_exactly
from dagtrain.simulate.fast import simulate_fast
from dagtrain.simulate.result import Bound
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from placement.problem.routes import Routing, chain_cables, mesh_cables
from tests.cosim_support import (
    BATCH,
    CLOCK_HZ,
    CLOSE,
    CYCLES,
    TINY_CYCLES,
    deliver,
    residual_net,
    said_batch_cycles,
    simulate_design,
    tiny_net,
    wired_of,
)

BOARDS = ("alpha", "beta", "gamma", "delta")
# a word of 64 bits a cycle
FULL = 64 * CLOCK_HZ
# what the interval of a batch may differ between levels
INTERVAL = 0.001
LIBRARY = ModuleLibrary(cache_folder() / "modules")


def chain(count: int, *, closed: bool = False, rate: int = FULL) -> Routing:
    devices = BOARDS[:count]
    return Routing(devices, chain_cables(devices, [rate] * count, closed=closed))


SHAPES = {
    "chain": chain(3),
    "ring": chain(4, closed=True),
    "mesh": Routing(BOARDS, mesh_cables(BOARDS, [FULL] * 4, 2), 2),
}


def dealt_out(graph: Graph, devices: tuple[str, ...]) -> dict[str, str]:
    """Layers in turn to these devices, the host on the first one."""
    layers = list(dict.fromkeys(node.layer_of for node in graph.nodes))
    where = {name: devices[at % len(devices)] for at, name in enumerate(layers)}
    return {node.name: devices[0] if node.layer.pinned_to_host else where[node.layer_of] for node in graph.nodes}


def tiny_chain(**options: Any) -> ClusterDesign:
    """The tiny network on both ends of a chain, whose middle holds nothing."""
    graph, chained = tiny_net(), {"word_bits": 64, "routing": SHAPES["chain"], **options}
    return design_cluster(graph, dealt_out(graph, ("alpha", "gamma")), BOARDS[:3], TINY_CYCLES, LIBRARY, **chained)


def trained(made: ClusterDesign, graph: Graph, folder: Path, seed: int, **options: Any) -> ClusterRun:
    feeds = [synthetic_feeds(graph, graph.recipe.batch, 100 + index) for index in range(3)]
    network = NetworkModel(latency_cycles=40, words=1, cycles=2, stall_256=60, seed=seed)
    return simulate_design(
        made, LIBRARY, feeds, folder, Simulator.VERILATOR, network, 64, seed, Silent(), optimise=False, **options
    )


@pytest.mark.slow
def test_both_ends_of_a_chain_train_through_a_device_that_holds_nothing(tmp_path: Path) -> None:
    made = tiny_chain()
    middle = made.devices[1]
    assert (middle.name, middle.nodes, middle.egress, middle.ingress) == ("beta", (), (), ())
    run = trained(made, tiny_net(), tmp_path, 1)
    assert run.mismatches == ()
    assert run.compared_words > 50


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_clusters_on_cables_train_to_the_bits_of_the_emulator(shape: str, tmp_path: Path) -> None:
    routing = SHAPES[shape]
    for seed, staleness in ((1, 0), (2, 2)):
        graph = residual_net(staleness)
        placed = dealt_out(graph, routing.devices)
        made = design_cluster(graph, placed, routing.devices, CYCLES, LIBRARY, word_bits=64, routing=routing)
        run = trained(made, graph, tmp_path / str(seed), seed)
        assert run.mismatches == (), f"seed {seed}"
        assert run.compared_words > 300
        assert len(run.losses) == 3 * BATCH


@pytest.mark.slow
def test_a_chain_of_boards_with_clocks_and_memories_of_their_own_trains_to_the_same_bits(tmp_path: Path) -> None:
    unlike = {"beta": Fraction(200, 300), "gamma": Fraction(200, 150)}
    for number, options in enumerate(({"periods": unlike}, {"pooled": True})):
        run = trained(tiny_chain(**options), tiny_net(), tmp_path / str(number), 3)
        assert run.mismatches == ()


@pytest.mark.slow
def test_every_stream_of_a_chain_may_stand_still_for_a_while(tmp_path: Path) -> None:
    """Watchers find no word of a link lost, doubled or changed where streams inside are held up, of cables too."""
    run = trained(tiny_chain(), tiny_net(), tmp_path, 5, hold_cycles=300)
    assert run.mismatches == ()


@pytest.mark.slow
def test_time_over_cables_is_as_told_and_control_alone_takes_as_long(tmp_path: Path) -> None:
    made, graph, latency = tiny_chain(), tiny_net(), 40
    delivered = deliver(made, LIBRARY, tmp_path / "emit")
    feeds = [synthetic_feeds(graph, graph.recipe.batch, 100 + index) for index in range(3)]
    network, memory = NetworkModel(latency_cycles=latency, stall_256=0), MemoryModel(stall_256=0)
    run = simulate_cluster(
        delivered, made.graph, LIBRARY, feeds, tmp_path / "bench", Simulator.VERILATOR, network, 0, 1, Silent(),
        optimise=False, memory=memory,
    )  # fmt: skip
    assert run.mismatches == ()
    said = said_batch_cycles(made, latency, SHAPES["chain"])
    assert run.batch_cycles[-1] == pytest.approx(said, rel=CLOSE)
    how = ExactOptions(batches=3, network=network, memory=memory)
    exact = simulate_exactly(delivered, made.graph, LIBRARY, tmp_path / "exact", how, Silent(), optimise=False)
    assert exact.log.frame_cycles == run.frame_cycles
    ways = {(cable.source, cable.target): cable.bits for cable in exact.simulation.cables}
    assert ways.keys() == {("alpha", "beta"), ("beta", "alpha"), ("beta", "gamma"), ("gamma", "beta")}
    fast = simulate_fast(wired_of(made, latency, SHAPES["chain"]), 3, CLOCK_HZ / 10**6, Silent())
    assert {(cable.source, cable.target): cable.bits for cable in fast.cables} == ways
    assert fast.batch_interval == pytest.approx(exact.simulation.batch_interval, rel=INTERVAL)


def test_a_cable_carries_what_its_rate_lets_through_at_both_levels(tmp_path: Path) -> None:
    routing, graph, batches = chain(3, rate=FULL // 10), tiny_net(), 6
    made = design_cluster(
        graph, dealt_out(graph, ("alpha", "gamma")), BOARDS[:3], TINY_CYCLES, LIBRARY, word_bits=64, routing=routing
    )
    network, memory = NetworkModel(latency_cycles=40, stall_256=0), MemoryModel(stall_256=0)
    how = ExactOptions(batches=batches, network=network, memory=memory)
    delivered = deliver(made, LIBRARY, tmp_path / "emit")
    exact = simulate_exactly(delivered, made.graph, LIBRARY, tmp_path, how, Silent(), optimise=False).simulation
    fast = simulate_fast(wired_of(made, 40, routing), batches, CLOCK_HZ / 10**6, Silent())
    for told in (exact, fast):
        assert told.binds.kind is Bound.CABLE
        assert 0.4 < told.binds.share <= 1
        assert {cable.bits_per_cycle for cable in told.cables} == {made.form.payload_bits / 10}
    assert fast.batch_interval == pytest.approx(exact.batch_interval, rel=CLOSE)


def test_devices_that_hold_nothing_and_pass_nothing_on_are_left_out_with_their_cables() -> None:
    graph = tiny_net()
    placed = dealt_out(graph, ("alpha", "beta"))
    made = design_cluster(graph, placed, BOARDS, TINY_CYCLES, LIBRARY, word_bits=64, routing=chain(4))
    assert [device.name for device in made.devices] == ["alpha", "beta"]
    assert [[port.peer for port in device.cables.ports] for device in made.devices if device.cables] == [
        ["beta"], ["alpha"],
    ]  # fmt: skip
    alone = dict.fromkeys(placed, "alpha")
    (one,) = design_cluster(graph, alone, BOARDS, TINY_CYCLES, LIBRARY, word_bits=64, routing=chain(4)).devices
    assert not one.has_network


def test_manifests_tell_who_is_at_the_other_end_of_each_port(tmp_path: Path) -> None:
    delivered = deliver(tiny_chain(), LIBRARY, tmp_path)
    told = {}
    for device in delivered.devices:
        record = device.manifest.network
        assert record is not None
        assert record.cables is not None
        for cable in record.cables:
            told[device.manifest.device, cable.port] = cable.device, cable.device_port
            assert cable.bits_per_s == FULL
        ports = {port.name for port in device.manifest.ports}
        assert {name for name in ports if name.endswith("_tvalid")} == {
            f"net_{way}_{cable.port}_tvalid" for cable in record.cables for way in ("rx", "tx")
        }
    assert told == {
        ("alpha", 0): ("beta", 0), ("beta", 0): ("alpha", 0), ("beta", 1): ("gamma", 0), ("gamma", 0): ("beta", 1),
    }  # fmt: skip


def test_cables_with_one_end_are_no_network(tmp_path: Path) -> None:
    first, *others = deliver(tiny_chain(), LIBRARY, tmp_path).devices
    record = first.manifest.network
    assert record is not None
    assert record.cables is not None
    elsewhere = tuple(replace(cable, device_port=1) for cable in record.cables)
    moved = replace(first, manifest=replace(first.manifest, network=replace(record, cables=elsewhere)))
    options = BenchOptions(frames=1, batch=1, network=NetworkModel(), memory=MemoryModel())
    with pytest.raises(DeliveryError, match=r"no manifest tells of the other ends of cables at alpha:0, beta:0;"):
        design_bench([moved, *others], LIBRARY, options, tmp_path)


def test_ranks_share_no_cables(tmp_path: Path) -> None:
    delivered = deliver(tiny_chain(), LIBRARY, tmp_path)
    options = BenchOptions(frames=1, batch=1, network=NetworkModel(), memory=MemoryModel())
    with pytest.raises(ValueError, match=r"^words go over cables, which one bench has alone$"):
        design_bench(delivered.devices, LIBRARY, options, tmp_path, share=Share(rank=0, homes=(0, 1, 1)))


def test_buffers_hold_what_comes_in_as_many_cables_as_there_are() -> None:
    """As many cycles for each cable on the way: FIFOs beside it wait for as long, and the plan knows more of it."""
    graph, devices = residual_net(2), BOARDS[:3]
    placed = dealt_out(graph, ("alpha", "gamma"))
    made = [
        design_cluster(graph, placed, devices, CYCLES, LIBRARY, word_bits=64, routing=routing, network_cycles=cycles)
        for routing, cycles in ((SHAPES["chain"], 200), (None, 400), (None, 200))
    ]
    over_two, far, near = made
    assert over_two.fifo_beats == far.fifo_beats != near.fifo_beats
    assert over_two.needed_staleness == far.needed_staleness
