"""Stashes, weights and sums of gradients in DRAM: whole clusters train to the bits of the emulator all the same."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import DeviceMemory, MemoryModel, fifo_regions
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from dagtrain.emission.stored import DramUse, can_be_dealt
from dagtrain.flow.cosim_step import link_rates, memory_model
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.memory_home import keep_in_dram, move_memories, sharing_weights
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.convert.tools import check_yosys, lint_verilog
from hdl.dram.axi import AxiFormat
from hdl.errors import DagtrainError, ToolError
from hdl.layers.storage import Home
from hdl.tensor import Kind
from placement.problem.cluster import parse_cluster
from tests.cosim_support import (
    BATCH,
    CYCLES,
    DEVICES,
    TINY_CYCLES,
    copied_net,
    deliver,
    placement,
    residual_net,
    said_batch_cycles,
    simulate_design,
    tiny_design,
    tiny_net,
    tiny_placement,
)

# between the ports of two devices
NETWORK_CYCLES = 90
FORMAT = AxiFormat(data_bits=64, address_bits=16)
BURST = 8
# cycles in which what engines do is counted together
STRETCH = 100
# stashes of at least so many bits go to DRAM
BIG_BITS = 2048
CONVOLUTIONS = ("conv1", "conv2", "conv3", "conv4")
LIBRARY = ModuleLibrary(cache_folder() / "modules")


# a port of which narrow units take an eighth, or a quarter, as what goes through them packs
NARROW = DramUse(format=AxiFormat(data_bits=512, address_bits=14), unit_bits=64, burst=BURST, prefetch=32)


def use(edges: frozenset[str] = frozenset(), form: AxiFormat = FORMAT) -> DramUse:
    return DramUse(edges=edges, format=form, burst=BURST, prefetch=32)


def designed(graph: Graph, kind: str, dram: DramUse) -> ClusterDesign:
    return design_cluster(graph, placement(graph, kind), DEVICES, CYCLES, LIBRARY, word_bits=64, dram=dram)


def streaming(graph: Graph, names: Collection[str]) -> Graph:
    """Weights and sums of gradients of convolutions in DRAM, the optimiser's state on chip."""
    engines = {name for name in sharing_weights(graph, names) if graph.by_name[name].role is not Role.UPDATE}
    return keep_in_dram(graph, engines)


def big_stashes(design: ClusterDesign) -> frozenset[str]:
    """Stash edges whose FIFO is big."""
    return frozenset(
        edge
        for edge, _producer, _source, _consumer, sink in design.graph.edges
        if sink.tensor.kind is Kind.STASH and design.fifo_beats[edge] * sink.payload_bits >= BIG_BITS
    )


def with_big_stashes_in_dram(graph: Graph, kind: str) -> ClusterDesign:
    return designed(graph, kind, use(big_stashes(designed(graph, kind, use()))))


def memories(design: ClusterDesign) -> dict[tuple[str, str], DeviceMemory]:
    return {(device.name, memory.port): memory for device in design.devices for memory in device.memories}


def stored(design: ClusterDesign) -> set[str]:
    return {region.name for memory in memories(design).values() for region in memory.regions}


def train(design: ClusterDesign, folder: Path, memory: MemoryModel | None = None, batches: int = 4) -> ClusterRun:
    feeds = [synthetic_feeds(design.graph, design.graph.recipe.batch, 100 + index) for index in range(batches)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, words=1, cycles=2, stall_256=40, seed=3)
    return simulate_design(
        design, LIBRARY, feeds, folder, Simulator.VERILATOR, network, 64, 3, Silent(), optimise=False, memory=memory,
        stretch_cycles=STRETCH,
    )  # fmt: skip


@pytest.mark.slow
def test_stashes_of_copies_in_dram_are_as_fast_as_on_chip(tmp_path: Path) -> None:
    """Units are as fast as a copy wants them, and it stands behind frames that come as fast as all copies want them."""
    # 36 words of a port with 64 bits in twice as many cycles, of which the memory is busy in a good half
    cycles, graph = 140, copied_net(16, 16, {"*": 2})
    edges = frozenset(graph.by_name[f"conv2.gradient@{copy}"].inputs["x"] for copy in range(2))
    runs = []
    for outside in (frozenset[str](), edges):
        form = AxiFormat(data_bits=64, address_bits=16)
        dram = DramUse(edges=outside, format=form, cycles_per_frame=cycles)
        where = placement(graph, "one")
        design = design_cluster(graph, where, DEVICES, cycles, LIBRARY, word_bits=64, dram=dram)
        assert stored(design) == outside
        runs.append(train(design, tmp_path / str(len(outside)), MemoryModel(latency_cycles=60, words=4, stall_256=0)))
    on_chip, outside_run = runs
    assert on_chip.mismatches == outside_run.mismatches == ()
    assert outside_run.batch_cycles[-1] <= 1.02 * on_chip.batch_cycles[-1]


@pytest.mark.slow
def test_stashes_in_a_slow_memory_change_no_bit_but_cost_cycles(tmp_path: Path) -> None:
    design = with_big_stashes_in_dram(residual_net(2), "one")
    edges = big_stashes(design)
    assert len(edges) >= 4
    assert stored(design) == edges
    slow = train(design, tmp_path, MemoryModel(latency_cycles=150, words=1, cycles=5, stall_256=64))
    assert slow.mismatches == ()
    assert len(slow.losses) == 4 * BATCH
    # what is said is of a memory that keeps up
    assert slow.batch_cycles[-1] > 1.2 * said_batch_cycles(design, NETWORK_CYCLES)
    # a stash waits there for its error; all that passed would not fit
    assert slow.timeline
    levels = {fifo.name: fifo for fifo in slow.timeline.fifos if fifo.name.startswith("DRAM of ")}
    (memory,) = memories(design).values()
    assert set(levels) == {f"DRAM of {region.name}" for region in memory.regions}
    for region in memory.regions:
        level, port = levels[f"DRAM of {region.name}"], design.graph.producers[region.name][1]
        assert level.depth == region.words < 4 * BATCH * port.elements * port.tensor.fixed.width // FORMAT.data_bits
        assert 0 < max(level.highest) <= region.words, region.name


# the default suite has them beside weights, sums and state
@pytest.mark.slow
def test_stashes_in_dram_of_several_devices_change_no_bit(tmp_path: Path) -> None:
    design = with_big_stashes_in_dram(residual_net(2), "branches apart")
    assert len(memories(design)) >= 2
    assert train(design, tmp_path).mismatches == ()


# on one device and on several, without waiting for the weights of a batch and with
EVERY = pytest.mark.parametrize(("staleness", "kind"), [(0, "one"), (2, "branches apart"), (BATCH, "one")])


@pytest.mark.slow
@EVERY
def test_weights_sums_optimiser_state_and_stashes_in_dram_change_no_bit(
    staleness: int, kind: str, tmp_path: Path
) -> None:
    graph = residual_net(staleness)
    updates = [node.name for node in graph.nodes if node.role is Role.UPDATE]
    design = with_big_stashes_in_dram(keep_in_dram(streaming(graph, CONVOLUTIONS), updates), kind)
    # both copies of the weights, and the sums; the first layer sends no error back
    assert {f"{name}.gradient.sums" for name in CONVOLUTIONS} <= stored(design)
    preloaded = [region for memory in memories(design).values() for region in memory.regions if region.contents]
    assert len(preloaded) == 2 * len(CONVOLUTIONS) - 1 + len(updates)
    states = [region.holds.node for region in preloaded if region.holds and region.holds.is_state]
    assert sorted(states) == sorted(updates)
    assert not any(
        image.image == "weights" and image.node.startswith("conv") for d in design.devices for image in d.images
    )
    run = train(design, tmp_path)
    assert run.mismatches == ()
    assert len(run.losses) == 4 * BATCH


@pytest.mark.slow
@EVERY
def test_weights_that_wait_in_dram_for_the_ones_in_use_change_no_bit(staleness: int, kind: str, tmp_path: Path) -> None:
    graph = residual_net(staleness)
    engines = {
        node.name: Home.PARKED for node in graph.nodes if node.layer.macs and node.layer.at(Home.PARKED) is not None
    }
    design = designed(move_memories(graph, engines), kind, use())
    assert stored(design) == {graph.by_name[name].inputs["w"] for name in engines}
    assert len(engines) == 2 * len(CONVOLUTIONS) + 1
    two = designed(graph, kind, use())
    words = [
        sum(len(i.words) for d in made.devices for i in d.images if i.image == "weights" and i.node in engines)
        for made in (design, two)
    ]
    assert 2 * words[0] == words[1]
    assert train(design, tmp_path).mismatches == ()


# units of one channel are those of several
@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_narrow_units_on_several_channels_change_no_bit(
    channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stashes, weights, sums and state, of several widths beside one another; with three channels also where words of
    that width are filled badly."""
    if channels > 1:
        monkeypatch.setattr("dagtrain.emission.stored.LEAST_FILLED", 0)
    graph = residual_net(2)
    updates = [node.name for node in graph.nodes if node.role is Role.UPDATE]
    graph = keep_in_dram(streaming(graph, CONVOLUTIONS), updates)
    edges = big_stashes(designed(graph, "one", use()))
    plain = designed(graph, "one", replace(NARROW, edges=edges, unit_bits=0))
    names = sorted(stored(plain))
    spread = {name: index % channels for index, name in enumerate(names)}
    several = {DEVICES[0]: channels} if channels > 1 else {}
    design = designed(graph, "one", replace(NARROW, edges=edges, channels=several, channel_of=spread))
    (device,) = design.devices
    ports = ["m_axi"] if channels == 1 else [f"m_axi{channel}" for channel in range(channels)]
    assert [memory.port for memory in device.memories] == ports
    for channel, memory in enumerate(device.memories):
        assert {region.name for region in memory.regions} == {n for n in names if spread[n] == channel}
    widths = {
        wire.width - 1
        for wire in device.top.wires
        for name in names
        if wire.name == f"dram_{verilog_name(name)}_w_payload"
    }
    assert len(widths) >= (3 if channels == 1 else 1), widths
    assert sum(instance.name.startswith("dram_widen") for instance in device.top.instances) >= channels
    # some of a narrow region's words are loaded at the start, some are compared at the end
    held = [region.holds for memory in device.memories for region in memory.regions if region.holds]
    assert (False, False) in {(h.is_state, h.unit.format == NARROW.format) for h in held}
    assert channels == 1 or (True, False) in {(h.is_state, h.unit.format == NARROW.format) for h in held}
    run = train(design, tmp_path, MemoryModel(latency_cycles=60, words=1, cycles=2, stall_256=64))
    assert run.mismatches == ()
    assert len(run.losses) == 4 * BATCH


def dealt_design(library: ModuleLibrary) -> ClusterDesign:
    """The tiny network on two devices, every stash that can be dealt out over two memory channels, that which comes
    over the network too."""
    graph = tiny_net()
    placed = tiny_placement(graph)
    plain = design_cluster(graph, placed, DEVICES, TINY_CYCLES, library, word_bits=64)
    crossing = {crossing.edge for crossing in plain.crossings}
    dealt = {
        edge: 2
        for edge, _producer, source, _consumer, sink in plain.graph.edges
        if sink.tensor.kind is Kind.STASH and can_be_dealt(sink.lanes if edge in crossing else source.lanes, sink, 2)
    }
    assert dealt.keys() & crossing
    channel_of = {name: part for edge in dealt for part, name in enumerate(fifo_regions(edge, 2))}
    dram = replace(use(frozenset(dealt)), dealt=dealt, channels=dict.fromkeys(DEVICES, 2), channel_of=channel_of)
    return design_cluster(graph, placed, DEVICES, TINY_CYCLES, library, word_bits=64, dram=dram)


def with_fault(library: ModuleLibrary, kind: str, old: str, new: str) -> ModuleLibrary:
    """Modules of a kind with a piece of their text replaced."""
    spoilt = ModuleLibrary()
    for module in library:
        text = module.verilog.text
        if module.name.startswith(f"{kind}_"):
            assert text.count(old) == 1, text
            module = replace(module, verilog=replace(module.verilog, text=text.replace(old, new)))
        spoilt._modules[module.name] = module
    return spoilt


@pytest.mark.slow
@pytest.mark.parametrize("wrong_one_first", [False, True])
def test_streams_dealt_over_memory_channels_change_no_bit(wrong_one_first: bool, tmp_path: Path) -> None:
    library = ModuleLibrary(cache_folder() / "modules")
    design = dealt_design(library)
    names = {port: {region.name for region in memory.regions} for (_, port), memory in memories(design).items()}
    assert {name.rpartition(".")[2] for name in names["m_axi1"]} == {"dealt1"}
    if wrong_one_first:
        library = with_fault(
            library, "collect", "if (rst) begin\n        part <= 0;", "if (rst) begin\n        part <= 1;"
        )
    run = simulate_design(
        design, library, [synthetic_feeds(design.graph, 2, 100 + index) for index in range(2)], tmp_path,
        Simulator.VERILATOR, NetworkModel(latency_cycles=90, stall_256=40, seed=3), 64, 3, Silent(), optimise=False,
        memory=MemoryModel(latency_cycles=30, words=1, cycles=2, stall_256=64),
    )  # fmt: skip
    assert (run.mismatches == ()) != wrong_one_first


def test_a_device_with_narrow_units_and_channels_is_clean_verilog(tmp_path: Path) -> None:
    dram = replace(NARROW, channels={DEVICES[1]: 2}, channel_of={"conv2.w.update.w.fork.y1": 1})
    design = tiny_design(LIBRARY, net=streaming(tiny_net(), ["conv2"]), dram=dram)
    (device,) = (device for device in design.devices if device.memories)
    (delivered,) = (one for one in deliver(design, LIBRARY, tmp_path).devices if one.manifest.device == device.name)
    # Yosys reads a device with a memory port below, and the one kind of unit that is not there in tests/test_axi.py
    lint_verilog(delivered.sources, device.top.name)
    ports = {port.name: port.width for port in device.top.ports}
    assert ports["m_axi1_wdata"] == ports["m_axi0_rdata"] == 512
    assert "dram_error" in ports


@pytest.mark.slow
def test_a_memory_that_refuses_an_address_is_reported(tmp_path: Path) -> None:
    design = tiny_design(LIBRARY, net=streaming(tiny_net(), ["conv2"]), dram=use(frozenset(["norm1.normal"])))
    index, device = next((index, device) for index, device in enumerate(design.devices) if device.memories)
    (memory,) = device.memories
    cut = replace(device, memories=(replace(memory, regions=memory.regions[:1]),))
    short = replace(design, devices=(*design.devices[:index], cut, *design.devices[index + 1 :]))
    with pytest.raises(ToolError, match=r"^a memory refused an address before cycle \d+$"):
        train(short, tmp_path, batches=1)


def test_regions_lie_apart_in_whole_bursts() -> None:
    design = with_big_stashes_in_dram(streaming(residual_net(2), CONVOLUTIONS), "one")
    (memory,) = memories(design).values()
    end = 0
    for region in sorted(memory.regions, key=lambda region: region.base):
        assert region.base >= end
        assert region.base % BURST == region.words % BURST == 0
        assert len(region.contents) in (0, region.words)
        end = region.base + region.words
    assert memory.words == end


def test_a_device_with_a_memory_port_is_clean_verilog_and_its_manifest_tells_what_to_load(tmp_path: Path) -> None:
    net = streaming(tiny_net(), ["conv2"])
    design = tiny_design(LIBRARY, net=net, dram=use(frozenset(["norm1.normal"])))
    (device,) = (device for device in design.devices if device.memories)
    (delivered,) = (one for one in deliver(design, LIBRARY, tmp_path).devices if one.manifest.device == device.name)
    sources = delivered.sources
    lint_verilog(sources, device.top.name)
    check_yosys(sources, device.top.name)
    ports = {port.name: port.width for port in device.top.ports}
    assert ports["m_axi_awaddr"] == FORMAT.address_bits + 3
    assert (ports["m_axi_wdata"], ports["m_axi_wstrb"], ports["m_axi_rdata"]) == (64, 8, 64)
    (told,) = json.loads((delivered.folder / "manifest.json").read_text())["memory"]
    (memory,) = device.memories
    lines = (delivered.folder / told["image"]).read_text().splitlines()
    assert [line for line in lines if line.startswith("@")] == [f"@{base:x}" for base, _ in memory.image]
    words = [int(line, 16) for line in lines if not line.startswith("@")]
    assert words == [word for _, contents in memory.image for word in contents]
    assert {region["name"] for region in told["regions"]} == stored(design)


def test_a_device_without_dram_has_no_memory_port() -> None:
    (device,) = designed(residual_net(2), "one", use()).devices
    assert device.memories == ()
    assert not any(port.name.startswith("m_axi") for port in device.top.ports)


def test_what_cannot_lie_in_dram_is_refused() -> None:
    graph = residual_net(2)
    with pytest.raises(DagtrainError, match=r"^graph residual has no edges nowhere that could lie in DRAM$"):
        designed(graph, "one", use(frozenset(["nowhere"])))
    with pytest.raises(DagtrainError, match=r"unheard: no such node; relu1: has no memory that could lie in DRAM"):
        keep_in_dram(graph, ["conv1", "relu1", "unheard"])
    small = AxiFormat(data_bits=64, address_bits=8)
    with pytest.raises(DagtrainError, match=r"past the 8-bit addresses of the memory port; keep less in DRAM"):
        designed(graph, "one", use(big_stashes(designed(graph, "one", use())), small))


def test_simulated_memories_and_links_are_those_of_the_cluster_file() -> None:
    text = """
[cluster]
name = "two"
clock_mhz = 200
dram_word_bits = 512
link_word_bits = 64

[[board]]
name = "near"
part = "AGFB014"
dram_gb_per_s = 40
dram_gbyte = 8
dram_efficiency = 0.5
dram_channels = 2
link_gbit_per_s = 10
utilisation = { dsp = 0.5, m20k = 0.5, alm = 0.5 }

[[board]]
name = "far"
part = "AGFB014"
clock_mhz = 100
dram_gb_per_s = 0
dram_gbyte = 0
link_gbit_per_s = 4
utilisation = { dsp = 0.5, m20k = 0.5, alm = 0.5 }

[[device]]
name = "a"
board = "near"

[[device]]
name = "b"
board = "far"
"""
    cluster = parse_cluster(text, "cluster.toml")
    model = memory_model(cluster, 7, 3)
    assert model.bytes_per_s == {"a": 10 * 10**9}
    # 12.8 GB/s were a word of 64 bytes in every cycle of 200 MHz
    found = model.behind("a", 512, 200e6)
    assert (found.words, found.cycles) == (25, 32)
    assert Fraction(found.words, found.cycles) == Fraction(100, 128)
    assert (found.stall_256, found.seed, found.bytes_per_s) == (7, 3, {})
    # each way a word a cycle, and no more
    assert model.behind("a", 64, 200e6).words == 2
    assert model.behind("b", 512, 100e6) == replace(model, bytes_per_s={})
    assert link_rates(cluster) == {"a": 10 * 10**9, "b": 4 * 10**9}
