"""Frozen weights in DRAM that a host loads and dumps: the unit against records, and devices against the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, always_comb, block, intbv

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.state import restored
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.freeze_layers import freeze_layers
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import keep_in_dram
from dagtrain.progress import Silent
from dagtrain.training.emulator import Emulator
from dagtrain.training.feeds import synthetic_feeds
from hdl.convert.netlist import Direction
from hdl.dram.axi import Axi, AxiFormat
from hdl.engine.weights import loaded_constant as module
from hdl.engine.weights.loaded_constant import LoadedConstant, loaded_constant
from hdl.engine.weights.records import CHAIN_BITS, Kind, Record, chain_of, start
from hdl.errors import DeadlockError
from hdl.recipe import Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, StreamPort, run_streams
from hdl.simulate.models.dram import dram_model
from hdl.stream import Stream
from tests.cosim_support import DEVICES, TINY_CYCLES, TINY_DRAM, deliver, placement, simulate_design
from tests.test_state_access import BATCH, BEHIND, LIBRARY, Cluster, feeds_of, state_of

FORM = AxiFormat(data_bits=64, address_bits=12)
BASE, DEPTH, TIMES = 64, 256, 6
# cycles for which requests to write wait in front of the memory
LATE = 40
# memory: latency, words, cycles, stall_256
FAST, SLOW = (3, 1, 1, 0), (25, 1, 3, 60)


def unit_of(elements: int, x_lanes: int, y_lanes: int) -> LoadedConstant:
    return LoadedConstant(
        format=FORM, element_bits=16, x_lanes=x_lanes, y_lanes=y_lanes, elements=elements, burst=4, prefetch=12
    )


@block
def in_memory(
    domain: ClockReset, base: Any, load: Stream, dump: Stream, y: Stream, errors: Stream,
    unit: LoadedConstant, memory: tuple[int, int, int, int], contents: Sequence[int] | None,
) -> Any:  # fmt: skip
    """The unit and a memory; ``y`` takes so many beats and then no more, in the middle of a tensor where it can;
    ``errors`` is valid after an error."""
    port, error = Axi(unit.format), Signal(bool(0))
    inner, left, most = Stream(y.width), Signal(intbv(0, min=0, max=1000)), beats_of(unit)
    late = LATE
    latency, words, cycles, stall = memory
    made = loaded_constant(domain, base, load, dump, inner, port, error, unit=unit)
    # requests to write come late
    behind = Axi(unit.format)
    behind.w, behind.b, behind.ar, behind.r = port.w, port.b, port.ar, port.r
    waited = Signal(intbv(0, min=0, max=LATE + 1))
    model = dram_model(
        domain, behind, form=unit.format, depth=DEPTH,
        latency=latency, words=words, cycles=cycles, stall_256=stall, contents=contents,
    )  # fmt: skip

    @always_comb
    def watch() -> None:
        errors.valid.next = error
        errors.payload.next = 1

    @always_comb
    def limit() -> None:
        y.valid.next = inner.valid and left != most
        y.payload.next = inner.payload
        inner.ready.next = y.ready and left != most

    @always_comb
    def delay() -> None:
        behind.aw.valid.next = port.aw.valid and waited == late
        behind.aw.payload.next = port.aw.payload
        port.aw.ready.next = behind.aw.ready and waited == late

    @always(domain.clk.posedge)
    def count() -> None:
        if not port.aw.valid or (behind.aw.ready and waited == late):
            waited.next = 0
        elif waited != late:
            waited.next = waited + 1
        if inner.valid and inner.ready:
            left.next = left + 1
        if domain.rst:
            left.next = 0

    return made, model, watch, limit, delay, count


def beats_of(unit: LoadedConstant) -> int:
    """What is taken of ``y``."""
    return TIMES * unit.elements // unit.y_lanes + (unit.elements > unit.y_lanes)


def loads_and_dumps(unit: LoadedConstant, memory: tuple[int, int, int, int], backend: Backend, seed: int) -> None:
    """Two rounds of a load, a dump at once and two later, records of others among them; the tensor again and again."""
    flat = np.random.default_rng(seed).integers(0, 1 << 16, unit.elements).tolist()

    def beats(lanes: int) -> list[int]:
        groups = [flat[at : at + lanes] for at in range(0, len(flat), lanes)]
        return [sum(code << (16 * lane) for lane, code in enumerate(group)) for group in groups]

    state = tuple(beats(unit.x_lanes))
    mine, given = Record(Kind.LOAD, state), Record(Kind.STATE, state)
    # of a circuit with as many words further on, and of one with more
    others = [Record(Kind.LOAD, tuple(word ^ 1 for word in state)), Record(Kind.LOAD, (*state, 5))]
    begin, run, end = start(3, 2), Record(Kind.RUN, (2,)), Record(Kind.DUMP)
    sent = [begin, mine, end, *others, begin, mine, *others, run, end, run, end]
    wanted = [begin, given, end, *others, begin, *others, run, given, end, run, given, end]
    image = [0xDEAD_BEEF] * DEPTH

    def factory(images: Mapping[str, Sequence[int]]) -> Any:
        first = Signal(intbv(0)[unit.format.address_bits :])
        streams = Stream(CHAIN_BITS), Stream(CHAIN_BITS), Stream(unit.streams["y"]), Stream(1)
        return in_memory(ClockReset(), first, *streams, unit, memory, images.get("dram"))

    ports = (
        StreamPort("load", CHAIN_BITS, Direction.IN),
        StreamPort("dump", CHAIN_BITS, Direction.OUT),
        StreamPort("y", unit.streams["y"], Direction.OUT),
        StreamPort("errors", 1, Direction.OUT),
    )
    design = Design("in_memory", factory, ports, images={"dram": image}, constants={"base": BASE})
    expected = {"dump": chain_of(wanted), "y": ((TIMES + 1) * beats(unit.y_lanes))[: beats_of(unit)]}
    counts = {name: len(found) for name, found in expected.items()}
    run_ = run_streams(
        backend, design, {"load": chain_of(sent)}, counts, seed=seed, stall_probability=0.3 * (seed % 2),
        max_cycles=20_000, drain_cycles=0,
    )  # fmt: skip
    assert {name: run_.outputs[name] for name in expected} == expected, f"seed {seed}"
    assert run_.outputs["errors"] == [], f"seed {seed}"


@pytest.mark.parametrize("memory", [FAST, SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize(("elements", "x_lanes", "y_lanes"), [(1, 1, 1), (24, 4, 2), (22, 2, 1)])
def test_what_is_loaded_is_read_again_and_again_and_dumped(
    elements: int, x_lanes: int, y_lanes: int, memory: tuple[int, int, int, int]
) -> None:
    for seed in (1, 2):
        loads_and_dumps(unit_of(elements, x_lanes, y_lanes), memory, Backend.MYHDL, seed)


def test_the_verilog_of_it_behaves_alike() -> None:
    loads_and_dumps(unit_of(22, 2, 1), SLOW, Backend.ICARUS, 3)


# ---- seeded faults


@block
def read_at_once(domain: Any, taken: Any, batches: Any, writes: Any, reads: Any, dumps: Any) -> Any:
    """`loaded_rule` that lets the memory be read before it was written."""
    early = module.Bursts()

    @always_comb
    def allow() -> None:
        reads.may_start.next = not domain.rst

    return rule(domain, taken, batches, writes, early, dumps), allow


@block
def dumped_too_early(domain: Any, taken: Any, batches: Any, writes: Any, reads: Any, dumps: Any) -> Any:
    """`loaded_rule` that does not waited for what is under way to the memory."""
    other = module.Batches()

    @always_comb
    def tell() -> None:
        other.giving.next = batches.giving
        batches.rests.next = not domain.rst

    return rule(domain, taken, other, writes, reads, dumps), tell


rule = module.loaded_rule


@pytest.mark.parametrize("faulty", [read_at_once, dumped_too_early], ids=["read at once", "dumped too early"])
def test_a_seeded_fault_is_seen(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "loaded_rule", faulty)
    with pytest.raises((AssertionError, DeadlockError)):
        loads_and_dumps(unit_of(24, 4, 2), SLOW, Backend.MYHDL, 2)


# ---- devices


def frozen_net() -> Graph:
    """A frozen convolution behind layers that learn, its weights in DRAM twice: on the way there and back."""
    builder = GraphBuilder("frozen", Recipe(batch=BATCH, staleness=1, learning_rate=0.1), seed=3)
    x = builder.relu(builder.norm(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1)))
    x = builder.relu(builder.conv(x, 3, 3, padding=1))
    forward = builder.classify(builder.gemm(builder.global_average_pool(x), 3))
    training = differentiate(freeze_layers(forward, ["conv2"]))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(2)]))
    return keep_in_dram(graph, ["conv2", "conv2.error"])


def frozen_design() -> ClusterDesign:
    graph = frozen_net()
    return design_cluster(
        graph, placement(graph, "updates apart"), DEVICES, TINY_CYCLES, LIBRARY, word_bits=64, dram=TINY_DRAM,
        state_access=True,
    )  # fmt: skip


@pytest.mark.slow
def test_co_simulation_loads_and_compares_frozen_weights_in_dram(tmp_path: Path) -> None:
    design = frozen_design()
    run = simulate_design(
        design, LIBRARY, [feeds_of(design.graph, 0)], tmp_path, Simulator.ICARUS, NetworkModel(latency_cycles=20), 32,
        3, Silent(), hold_cycles=32,
    )  # fmt: skip
    assert run.mismatches == ()


@pytest.mark.slow
def test_devices_train_with_the_frozen_weights_that_a_host_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted, design = frozen_net(), frozen_design()
    cluster = Cluster(design, deliver(design, LIBRARY, tmp_path / "emit"), tmp_path)
    # other frozen weights than those that were emitted
    (key,) = {name for name in emitted.parameters if name.startswith("conv2.w")}
    other = np.random.default_rng(8).normal(0, 0.3, emitted.parameters[key].shape)
    graph = replace(design.graph, parameters={**design.graph.parameters, key: other})
    emulator = Emulator(graph)
    golden = emulator.executor
    for batch in range(BEHIND):
        golden.step(feeds_of(graph, batch))
    emulator.save(tmp_path / "state.npz")
    checkpoint = Emulator(graph)
    checkpoint.load(tmp_path / "state.npz")
    states = []
    for batch in range(BEHIND, BEHIND + 3):
        golden.step(feeds_of(graph, batch))
        states.append(state_of(golden))
    assert {"conv2", "conv2.error"} <= states[0].words.keys()
    first = cluster.train(checkpoint.executor, [BEHIND, BEHIND + 1], 5, monkeypatch)
    assert first.states == states[:2]

    # reset, and on from what they dumped, with the graph that was emitted: frozen weights come from the devices
    begin = restored(design.graph, first.states[1], first.states[0])
    np.testing.assert_array_equal(begin.parameters()[key], golden.parameters()[key])
    second = cluster.train(begin, [BEHIND + 2], 6, monkeypatch)
    assert second.states == states[2:]
