"""Clusters of FPGAs that cables join, without a switch, train to the bits of the emulator; stalls change no bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagtrain.cosim.bench import design_bench
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
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.errors import DagtrainError
from placement.problem.routes import Routing, chain_cables, mesh_cables
from tests.cosim_support import (
    BATCH,
    CYCLES,
    TINY_CYCLES,
    deliver,
    residual_net,
    simulate_design,
    tiny_net,
)

BOARDS = ("alpha", "beta", "gamma", "delta")
GBIT = 10**9
LIBRARY = ModuleLibrary(cache_folder() / "modules")


def chain(count: int, *, closed: bool = False) -> Routing:
    devices = BOARDS[:count]
    return Routing(devices, chain_cables(devices, [GBIT] * count, closed=closed))


SHAPES = {
    "chain": chain(3),
    "ring": chain(4, closed=True),
    "mesh": Routing(BOARDS, mesh_cables(BOARDS, [GBIT] * 4, 2), 2),
}


def dealt_out(graph: Graph, devices: tuple[str, ...]) -> dict[str, str]:
    """Layers in turn to these devices, the host on the first one."""
    layers = list(dict.fromkeys(node.layer_of for node in graph.nodes))
    where = {name: devices[at % len(devices)] for at, name in enumerate(layers)}
    return {node.name: devices[0] if node.layer.pinned_to_host else where[node.layer_of] for node in graph.nodes}


def tiny_chain() -> ClusterDesign:
    """The tiny network on both ends of a chain, whose middle holds nothing."""
    graph = tiny_net()
    placed = dealt_out(graph, ("alpha", "gamma"))
    return design_cluster(graph, placed, BOARDS[:3], TINY_CYCLES, LIBRARY, word_bits=64, routing=SHAPES["chain"])


def trained(made: ClusterDesign, graph: Graph, folder: Path, seed: int) -> ClusterRun:
    feeds = [synthetic_feeds(graph, graph.recipe.batch, 100 + index) for index in range(3)]
    network = NetworkModel(latency_cycles=40, words=1, cycles=2, stall_256=60, seed=seed)
    return simulate_design(
        made, LIBRARY, feeds, folder, Simulator.VERILATOR, network, 64, seed, Silent(), optimise=False
    )


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


def test_manifests_tell_who_is_at_the_other_end_of_each_port(tmp_path: Path) -> None:
    delivered = deliver(tiny_chain(), LIBRARY, tmp_path)
    told = {}
    for device in delivered.devices:
        record = device.manifest.network
        assert record is not None
        assert record.cables is not None
        for cable in record.cables:
            told[device.manifest.device, cable.port] = cable.device, cable.device_port
            assert cable.bits_per_s == GBIT
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
    with pytest.raises(DagtrainError, match=r"words go over cables"):
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
