"""Streams through DRAM against queue models, with random back-pressure and a slow, stalling memory."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.netlist import Direction
from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.dram import store as store_module
from hdl.dram.axi import Axi, AxiFormat, AxiMerge, axi_merge
from hdl.dram.deal import Collect, Deal, elements_a_turn
from hdl.dram.rules import Bursts, replay_rule
from hdl.dram.store import DramConstant, DramFifo, DramReplay, DramUnit, LoadedReplay, dram_constant, dram_store
from hdl.engine.weights.loaded_constant import LoadedConstant
from hdl.errors import ContractViolation, DeadlockError
from hdl.recipe import LoadedRecipe, Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, StreamPort, run_streams
from hdl.simulate.models.dram import dram_model
from hdl.stream import Stream
from hdl.streams import collect, deal
from hdl.streams.fifo import queue
from hdl.streams.fork_join import side_by_side
from hdl.unit import Unit

FORM = AxiFormat(data_bits=64, address_bits=12)
DEPTH = 1024
# memory: latency, words, cycles, stall_256
Memory = tuple[int, int, int, int]
FAST: Memory = (3, 1, 1, 0)
SLOW: Memory = (25, 1, 3, 60)


@block
def in_dram(
    domain: ClockReset, base: Any, x: Stream, y: Stream, errors: Stream,
    unit: DramUnit, memory: Memory, contents: Sequence[int] | None, arbiters: int = 0,
) -> Any:  # fmt: skip
    """A store, arbiters that nobody else has a port of, and its memory; ``errors`` is valid after an error."""
    own = port = Axi(unit.format)
    error = Signal(bool(0))
    latency, words, cycles, stall = memory
    store = dram_store(domain, base, x, y, own, error, unit=unit)
    tree = []
    for level in range(arbiters):
        merged = Axi(unit.format)
        tree.append(axi_merge(domain, port, Axi(unit.format), merged, form=unit.format, cut=bool(level % 2)))
        port = merged
    model = dram_model(
        domain, port, form=unit.format, depth=DEPTH,
        latency=latency, words=words, cycles=cycles, stall_256=stall, contents=contents,
    )  # fmt: skip

    @always_comb
    def watch() -> None:
        errors.valid.next = error
        errors.payload.next = 1

    return store, tree, model, watch


def design_of(unit: DramUnit, memory: Memory, base: int = 64, image: Sequence[int] = (), arbiters: int = 0) -> Design:
    whole = [0] * DEPTH
    whole[base : base + len(image)] = image

    def factory(images: Mapping[str, Sequence[int]]) -> Any:
        start = Signal(intbv(0)[unit.format.address_bits :])
        streams = (Stream(unit.streams["x"]), Stream(unit.streams["y"]), Stream(1))
        return in_dram(ClockReset(), start, *streams, unit, memory, images.get("dram"), arbiters)

    ports = (
        StreamPort("x", unit.streams["x"], Direction.IN),
        StreamPort("y", unit.streams["y"], Direction.OUT),
        StreamPort("errors", 1, Direction.OUT),
    )
    return Design("in_dram", factory, ports, images={"dram": whole}, constants={"base": base})


def tensors(unit: DramUnit, count: int, seed: int) -> list[list[int]]:
    """Random tensors as flat elements."""
    rng = random.Random(seed)
    return [[rng.getrandbits(unit.element_bits) for _ in range(unit.elements)] for _ in range(count)]


def beats(flat: Sequence[Sequence[int]], lanes: int, bits: int) -> list[int]:
    elements = [element for tensor in flat for element in tensor]
    groups = [elements[at : at + lanes] for at in range(0, len(elements), lanes)]
    return [sum(element << (bits * i) for i, element in enumerate(group)) for group in groups]


def passes(
    unit: DramUnit, memory: Memory, backend: Backend, seed: int, stall: float, count: int = 6, preload: int = 0,
    arbiters: int = 0,
) -> int:  # fmt: skip
    """``count`` tensors through the store behind those it starts with; returns the cycles."""
    all_tensors = tensors(unit, preload + count, seed)
    old = [beats([tensor], unit.x_lanes, unit.element_bits) for tensor in all_tensors[:preload]]
    sent = beats(all_tensors[preload:], unit.x_lanes, unit.element_bits)
    expected = beats(all_tensors, unit.y_lanes, unit.element_bits)
    design = design_of(unit, memory, image=unit.image(old, unit.x_lanes), arbiters=arbiters)
    run = run_streams(
        backend, design, {"x": sent}, {"y": len(expected)}, seed=seed, stall_probability=stall, max_cycles=40_000
    )
    assert run.outputs["y"] == expected, f"seed {seed}"
    assert run.outputs["errors"] == [], f"seed {seed}"
    return run.cycles


FIFOS = [
    DramFifo(format=FORM, element_bits=16, x_lanes=2, y_lanes=1, elements=22, burst=2, prefetch=5, capacity=2),
    DramFifo(format=FORM, element_bits=1, x_lanes=1, y_lanes=3, elements=9, burst=4, prefetch=4, capacity=1),
    DramFifo(format=FORM, element_bits=7, x_lanes=4, y_lanes=4, elements=64, burst=4, prefetch=16, capacity=3),
    DramFifo(format=FORM, element_bits=16, x_lanes=8, y_lanes=2, elements=128, burst=16, prefetch=32, capacity=2),
    DramFifo(format=FORM, element_bits=64, x_lanes=1, y_lanes=2, elements=6, burst=1, prefetch=2, capacity=2),
]


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("memory", [FAST, SLOW])
@pytest.mark.parametrize("unit", FIFOS, ids=str)
def test_a_fifo_in_dram_returns_every_tensor_in_order(unit: DramFifo, memory: Memory, stall: float) -> None:
    passes(unit, memory, Backend.MYHDL, 1, stall)


# a word each way in every cycle, if the memory is as fast
WHOLE_WORDS = DramFifo(
    format=FORM, element_bits=64, x_lanes=1, y_lanes=1, elements=64, burst=16, prefetch=64, capacity=4
)


@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.VERILATOR])
@pytest.mark.parametrize(("words", "cycles"), [(2, 1), (3, 2), (1, 1), (2, 3)])
def test_a_memory_moves_reads_beside_writes_and_no_more_words_than_it_can(
    words: int, cycles: int, backend: Backend
) -> None:
    count = 24
    took = passes(WHOLE_WORDS, (20, words, cycles, 0), backend, 3, 0.0, count=count)
    both_ways = 2 * count * WHOLE_WORDS.elements
    # the first bursts there and the last ones back pass alone, and nobody waits for an answer between
    filling = 200
    assert both_ways * cycles / words <= took + filling
    assert took <= both_ways * cycles / words + filling


def test_a_fifo_behind_arbiters_moves_a_word_a_cycle() -> None:
    unit = replace(WHOLE_WORDS, burst=8, prefetch=128)
    took = passes(unit, (20, 2, 1, 0), Backend.MYHDL, 4, 0.0, count=24, arbiters=4)
    # in front of the first burst and behind the last one, the latency of all
    assert took <= 24 * unit.elements + 200


RINGS = [
    DramFifo(format=FORM, element_bits=24, x_lanes=1, y_lanes=1, elements=n, burst=4, prefetch=8, capacity=c, preload=p)
    for n, c, p in ((20, 1, 1), (7, 2, 1), (16, 2, 2), (1, 1, 1))
]


@pytest.mark.parametrize("memory", [FAST, SLOW])
@pytest.mark.parametrize("unit", RINGS, ids=str)
def test_a_ring_first_yields_its_image_then_what_was_written_back(unit: DramFifo, memory: Memory) -> None:
    for stall in (0.0, 0.5):
        passes(unit, memory, Backend.MYHDL, 2, stall, preload=unit.preload)


@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
@pytest.mark.parametrize("unit", [FIFOS[0], FIFOS[2], RINGS[0]], ids=str)
def test_the_verilog_of_a_store_behaves_alike(unit: DramFifo, backend: Backend) -> None:
    passes(unit, SLOW, backend, 3, 0.3, preload=unit.preload)


def test_a_fifo_holds_all_its_tensors_while_nobody_reads() -> None:
    unit = FIFOS[2]
    flat = tensors(unit, unit.capacity, 5)
    sent = beats(flat, unit.x_lanes, unit.element_bits)
    design = design_of(unit, FAST)
    with pytest.raises(DeadlockError, match=rf"input x: {len(sent)} of {len(sent)} beats taken"):
        # an output that never comes keeps the run going: all that is asked is that the store took everything
        run_streams(Backend.MYHDL, design, {"x": sent}, {"errors": 1}, seed=1, max_cycles=600)


def test_bandwidth_of_the_memory_is_used() -> None:
    """Words in and out share one word a cycle; bursts and turns cost less than a third."""
    unit = DramFifo(format=FORM, element_bits=64, x_lanes=1, y_lanes=1, elements=64, burst=16, prefetch=64, capacity=4)
    cycles = passes(unit, (20, 1, 1, 0), Backend.MYHDL, 1, 0.0, count=20)
    assert 2 * 20 * 64 <= cycles < 1.33 * 2 * 20 * 64


@block
def written(domain: ClockReset, x: Stream, y: Stream, w: Stream, unit: DramUnit) -> Any:
    """A store before a port that takes every request to write at once, and none to read; ``w`` is what is written."""
    m, error, base = Axi(unit.format), Signal(bool(0)), Signal(intbv(0)[unit.format.address_bits :])
    store = dram_store(domain, base, x, y, m, error, unit=unit)
    answers = Signal(intbv(0, min=0, max=DEPTH))
    last = Signal(bool(0))
    last_at = unit.format.data_bits

    @always_comb
    def out() -> None:
        m.aw.ready.next = True
        m.ar.ready.next = False
        m.r.valid.next = False
        m.r.payload.next = 0
        m.w.ready.next = w.ready
        w.valid.next = m.w.valid
        w.payload.next = m.w.payload
        m.b.valid.next = answers != 0
        m.b.payload.next = 0
        last.next = m.w.valid and w.ready and m.w.payload[last_at]

    @always(domain.clk.posedge)
    def count() -> None:
        if last and answers == 0:
            answers.next = 1
        elif answers != 0 and not last:
            answers.next = answers - 1

    return store, out, count


@pytest.mark.parametrize("burst", [4, 8])
def test_a_store_writes_a_word_a_cycle(burst: int) -> None:
    """As planning has it (`dagtrain.emission.stored.Stored.keeps_up`)."""
    unit = DramFifo(
        format=FORM, element_bits=64, x_lanes=1, y_lanes=1, elements=64, burst=burst, prefetch=16, capacity=4
    )
    widths = {"x": 64, "y": 64, "w": 65}

    def factory(_images: Mapping[str, Sequence[int]]) -> Any:
        return written(ClockReset(), *(Stream(width) for width in widths.values()), unit)

    ways = {"x": Direction.IN, "y": Direction.OUT, "w": Direction.OUT}
    design = Design("written", factory, tuple(StreamPort(name, widths[name], ways[name]) for name in widths))
    run = run_streams(Backend.MYHDL, design, {"x": list(range(256))}, {"w": 128}, seed=1, drain_cycles=0)
    cycles = run.fire_cycles["w"]
    assert cycles[127] - cycles[0] == 127


# ----------------------------------------------------------------------------------------------- replay


def replay(
    elements: int, batch: int, staleness: int, burst: int = 4, kind: type[DramReplay] = DramReplay
) -> DramReplay:
    return kind(
        format=FORM, element_bits=16, x_lanes=2, y_lanes=1, elements=elements, burst=burst, prefetch=2 * burst,
        batch=batch, staleness=staleness,
    )  # fmt: skip


def replays(unit: DramReplay, memory: Memory, backend: Backend, seed: int, stall: float, batches: int = 4) -> None:
    """Every version but the image's comes by the stream; where it is loaded, all do, and the image is nonsense."""
    recipe, first = Recipe(batch=unit.batch, staleness=unit.staleness), 1
    version = recipe.version
    if unit.loaded:
        loaded = LoadedRecipe.of(recipe)
        version, first = loaded.loaded_version, 1 - loaded.rounds
    versions = tensors(unit, batches + 1 - min(first, 0), seed)
    # with all versions given, reading stops before the first frame of a version that doesn't exist
    frames = (batches + 1) * unit.batch + unit.staleness
    expected = beats([versions[version(frame)] for frame in range(frames)], unit.y_lanes, unit.element_bits)
    image = unit.image([beats(versions[:1], unit.x_lanes, unit.element_bits)], unit.x_lanes)
    if unit.loaded:
        image = [word ^ 0x5555 for word in image]
    sent = beats(versions[max(first, 0) :], unit.x_lanes, unit.element_bits)
    run = run_streams(
        backend, design_of(unit, memory, image=image), {"x": sent}, {"y": len(expected)},
        seed=seed, stall_probability=stall, max_cycles=60_000, drain_cycles=300,
    )  # fmt: skip
    assert run.outputs["y"] == expected, f"seed {seed}"
    assert run.outputs["errors"] == [], f"seed {seed}"


@pytest.mark.parametrize("memory", [FAST, SLOW])
@pytest.mark.parametrize(
    ("elements", "batch", "staleness"),
    [(22, 3, 0), (22, 3, 1), (22, 3, 3), (16, 1, 0), (16, 1, 1), (64, 2, 1), (2, 4, 3), (6, 2, 2)],
)
def test_every_frame_gets_the_weights_of_its_version(elements: int, batch: int, staleness: int, memory: Memory) -> None:
    for seed, stall in ((1, 0.0), (2, 0.5)):
        replays(replay(elements, batch, staleness), memory, Backend.MYHDL, seed, stall)


@pytest.mark.parametrize("memory", [SLOW, pytest.param(FAST, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("elements", "batch", "staleness"), [(22, 3, 0), (22, 3, 1), (22, 3, 3), (16, 1, 0), (16, 1, 1), (2, 4, 3)]
)
def test_every_frame_gets_the_weights_of_its_version_where_the_first_ones_are_loaded(
    elements: int, batch: int, staleness: int, memory: Memory
) -> None:
    for seed, stall in ((1, 0.0), (2, 0.5)):
        replays(replay(elements, batch, staleness, kind=LoadedReplay), memory, Backend.MYHDL, seed, stall)


@pytest.mark.parametrize("kind", [DramReplay, LoadedReplay])
@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
@pytest.mark.parametrize("staleness", [0, 2])
def test_the_verilog_of_a_replay_behaves_alike(staleness: int, backend: Backend, kind: type[DramReplay]) -> None:
    replays(replay(22, 3, staleness, kind=kind), SLOW, backend, 4, 0.3)


@block
def read_at_once(domain: Any, slot: Any, writes: Any, reads: Any, **sizes: Any) -> Any:
    """`replay_rule` that takes the first version to be there from the start."""
    return replay_rule(domain, slot, writes, reads, **{**sizes, "preload": 1})


@block
def read_too_often(domain: Any, slot: Any, writes: Any, reads: Any, **sizes: Any) -> Any:
    """`replay_rule` that reads the first version for frames of the next one, too."""
    return replay_rule(domain, slot, writes, reads, **{**sizes, "first": sizes["first"] + 1})


@block
def read_while_written(domain: Any, slot: Any, writes: Any, reads: Any, **sizes: Any) -> Any:
    """`replay_rule` that lets a version be read when its first burst is on its way."""
    early = Bursts()
    early.may_start, early.first, early.last = writes.may_start, writes.first, writes.last
    early.started, early.done = writes.started, writes.done

    @always_comb
    def tell() -> None:
        early.tensor_done.next = writes.started and writes.first

    return replay_rule(domain, slot, early, reads, **sizes), tell


@pytest.mark.parametrize("faulty", [read_at_once, read_too_often, read_while_written], ids=lambda made: made.__name__)
def test_a_version_that_is_read_when_it_should_not_is_seen(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = replay(64, 3, 1, kind=LoadedReplay)
    replays(unit, FAST, Backend.MYHDL, 2, 0.5)
    monkeypatch.setattr(store_module, "replay_rule", faulty)
    with pytest.raises((AssertionError, ContractViolation)):
        replays(unit, FAST, Backend.MYHDL, 2, 0.5)


# --------------------------------------------------------------------------------------------- constants


@block
def constant_in_dram(
    domain: ClockReset, base: Any, y: Stream, errors: Stream,
    unit: DramConstant, memory: Memory, contents: Sequence[int] | None,
) -> Any:  # fmt: skip
    """What reads a memory, and the memory; ``errors`` is valid after an error."""
    port = Axi(unit.format)
    error = Signal(bool(0))
    latency, words, cycles, stall = memory
    reader = dram_constant(domain, base, y, port, error, unit=unit)
    model = dram_model(
        domain, port, form=unit.format, depth=DEPTH,
        latency=latency, words=words, cycles=cycles, stall_256=stall, contents=contents,
    )  # fmt: skip

    @always_comb
    def watch() -> None:
        errors.valid.next = error or port.aw.valid or port.w.valid
        errors.payload.next = 1

    return reader, model, watch


def reads_again_and_again(unit: DramConstant, memory: Memory, backend: Backend, seed: int, stall: float) -> int:
    """A tensor a few times; returns the cycles."""
    base, times = 64, 5
    ((flat,), bits) = tensors(unit, 1, seed), unit.element_bits
    image = [0] * DEPTH
    region = unit.image([beats([flat], unit.y_lanes, bits)], unit.y_lanes)
    image[base : base + len(region)] = region

    def factory(images: Mapping[str, Sequence[int]]) -> Any:
        start = Signal(intbv(0)[unit.format.address_bits :])
        streams = Stream(unit.streams["y"]), Stream(1)
        return constant_in_dram(ClockReset(), start, *streams, unit, memory, images.get("dram"))

    ports = StreamPort("y", unit.streams["y"], Direction.OUT), StreamPort("errors", 1, Direction.OUT)
    design = Design("constant_in_dram", factory, ports, images={"dram": image}, constants={"base": base})
    expected = beats([flat] * times, unit.y_lanes, bits)
    run = run_streams(
        backend, design, {}, {"y": len(expected)}, seed=seed, stall_probability=stall, max_cycles=40_000, drain_cycles=0
    )
    assert run.outputs["y"] == expected, f"seed {seed}"
    assert run.outputs["errors"] == [], f"seed {seed}"
    return run.cycles


def constant(elements: int, lanes: int = 1, prefetch: int = 12) -> DramConstant:
    return DramConstant(
        format=FORM, element_bits=16, x_lanes=lanes, y_lanes=lanes, elements=elements, burst=4, prefetch=prefetch
    )


@pytest.mark.parametrize("memory", [FAST, SLOW])
@pytest.mark.parametrize("elements", [1, 22])
def test_what_nobody_writes_comes_from_the_image_again_and_again(elements: int, memory: Memory) -> None:
    for seed, stall in ((1, 0.0), (2, 0.5)):
        reads_again_and_again(constant(elements), memory, Backend.MYHDL, seed, stall)


def test_the_verilog_of_a_constant_behaves_alike() -> None:
    reads_again_and_again(constant(22, lanes=2), SLOW, Backend.ICARUS, 4, 0.3)


def test_a_constant_comes_a_word_a_cycle_less_one_a_burst() -> None:
    # four elements a word, four words a burst; the memory's latency and the stages once
    cycles = reads_again_and_again(constant(64, lanes=4, prefetch=32), FAST, Backend.MYHDL, 1, 0.0)
    assert cycles <= 5 * 4 * (4 + 1) + 20


# ---------------------------------------------------------------------------------------------- sharing


@block
def shared(
    domain: ClockReset, base0: Any, base1: Any, base2: Any, a: Stream, b: Stream, c: Stream,
    p: Stream, q: Stream, r: Stream, errors: Stream,
    units: tuple[DramUnit, ...], memory: Memory, contents: Sequence[int] | None,
) -> Any:  # fmt: skip
    """Three stores on one port."""
    ports = [Axi(FORM) for _ in range(5)]
    flags = [Signal(bool(0)) for _ in range(3)]
    sides = ((base0, a, p), (base1, b, q), (base2, c, r))
    stores = [dram_store(domain, *sides[i], ports[i], flags[i], unit=units[i]) for i in range(3)]
    merges = [
        axi_merge(domain, ports[0], ports[1], ports[3], form=FORM, cut=True),
        axi_merge(domain, ports[3], ports[2], ports[4], form=FORM, cut=False),
    ]
    latency, words, cycles, stall = memory
    model = dram_model(
        domain, ports[4], form=FORM, depth=DEPTH,
        latency=latency, words=words, cycles=cycles, stall_256=stall, contents=contents,
    )  # fmt: skip
    f0, f1, f2 = flags

    @always_comb
    def watch() -> None:
        errors.valid.next = f0 or f1 or f2
        errors.payload.next = 1

    return stores, merges, model, watch


SHARED = (FIFOS[0], replay(22, 3, 1), RINGS[0])
BASES = (0, 256, 512)


def shared_design(image: list[int]) -> Design:
    def factory(images: Mapping[str, Sequence[int]]) -> Any:
        bases = [Signal(intbv(0)[FORM.address_bits :]) for _ in SHARED]
        streams = [Stream(unit.streams[port]) for port in "xy" for unit in SHARED]
        domain = ClockReset()
        return shared(domain, *bases, *streams, Stream(1), SHARED, SLOW, images.get("dram"))

    ins = [StreamPort(n, u.streams["x"], Direction.IN) for n, u in zip("abc", SHARED, strict=True)]
    outs = [StreamPort(n, u.streams["y"], Direction.OUT) for n, u in zip("pqr", SHARED, strict=True)]
    constants = {f"base{i}": base for i, base in enumerate(BASES)}
    ports = (*ins, *outs, StreamPort("errors", 1, Direction.OUT))
    return Design("shared", factory, ports, images={"dram": image}, constants=constants)


@pytest.mark.parametrize("backend", list(Backend))
def test_several_stores_share_one_port_and_one_memory(backend: Backend) -> None:
    fifo, weights, ring = SHARED
    image = [0] * DEPTH
    data = [tensors(fifo, 5, 1), tensors(weights, 4, 2), tensors(ring, 4, 3)]
    for unit, base, flat in ((weights, BASES[1], data[1]), (ring, BASES[2], data[2])):
        region = unit.image([beats(flat[:1], unit.x_lanes, unit.element_bits)], unit.x_lanes)
        image[base : base + len(region)] = region
    given = {"a": data[0], "b": data[1][1:], "c": data[2][1:]}
    recipe = Recipe(batch=3, staleness=1)
    wanted = {"p": data[0], "q": [data[1][recipe.version(frame)] for frame in range(13)], "r": data[2]}
    sent = {n: beats(given[n], u.x_lanes, u.element_bits) for n, u in zip("abc", SHARED, strict=True)}
    expected = {n: beats(wanted[n], u.y_lanes, u.element_bits) for n, u in zip("pqr", SHARED, strict=True)}
    counts = {name: len(values) for name, values in expected.items()}
    for seed, stall in ((1, 0.0), (2, 0.4)):
        run = run_streams(
            backend, shared_design(image), sent, counts, seed=seed, stall_probability=stall, max_cycles=40_000
        )
        assert {name: run.outputs[name] for name in expected} == expected, f"seed {seed}"
        assert run.outputs["errors"] == []


@pytest.mark.parametrize("unit", [*FIFOS, RINGS[0]], ids=str)
def test_tensors_can_be_read_out_of_an_image_of_the_memory(unit: DramFifo) -> None:
    flat = tensors(unit, unit.capacity, 1)
    given = [beats([tensor], unit.x_lanes, unit.element_bits) for tensor in flat]
    region = unit.image(given, unit.x_lanes)
    assert len(region) == unit.region_words
    for index, tensor in enumerate(flat):
        assert unit.beats(region, index, unit.y_lanes) == beats([tensor], unit.y_lanes, unit.element_bits)


# ----------------------------------------------------------------------------------- dealt over channels


@block
def dealt_in_dram(domain: ClockReset, x: Stream, y: Stream, errors: Stream, unit: DramUnit, parts: int) -> Any:
    """Stores dealt out to, each with a memory of its own, one slower than the other."""
    turn = elements_a_turn(unit.x_lanes, unit.y_lanes)
    ports = [Axi(unit.format) for _ in range(parts)]
    flags = [Signal(bool(0)) for _ in range(parts)]
    xs, ys = [Stream(x.width) for _ in range(parts)], [Stream(y.width) for _ in range(parts)]
    base = Signal(intbv(64)[unit.format.address_bits :])
    dealing = deal(domain, x, xs, turn=turn // unit.x_lanes)
    collecting = collect(domain, ys, y, turn=turn // unit.y_lanes)
    stores = [dram_store(domain, base, xs[i], ys[i], ports[i], flags[i], unit=unit) for i in range(parts)]
    models = [
        dram_model(
            domain, ports[i], form=unit.format, depth=DEPTH,
            latency=3 + 20 * i, words=1, cycles=1 + i, stall_256=60 * i, seed=1 + i,
        )
        for i in range(parts)
    ]  # fmt: skip
    found = side_by_side(flags)

    @always_comb
    def watch() -> None:
        errors.valid.next = found != 0
        errors.payload.next = 1

    return dealing, collecting, stores, models, watch


@pytest.mark.parametrize(("parts", "x_lanes", "y_lanes"), [(2, 1, 1), (3, 2, 3), (2, 4, 2)])
def test_a_stream_dealt_over_channels_comes_back_in_order(parts: int, x_lanes: int, y_lanes: int) -> None:
    unit = DramFifo(
        format=FORM, element_bits=16, x_lanes=x_lanes, y_lanes=y_lanes, elements=36, burst=2, prefetch=8, capacity=2
    )
    widths = {"x": unit.streams["x"], "y": unit.streams["y"], "errors": 1}

    def factory(_images: Mapping[str, Sequence[int]]) -> Any:
        return dealt_in_dram(ClockReset(), *(Stream(width) for width in widths.values()), unit, parts)

    ways = {"x": Direction.IN, "y": Direction.OUT, "errors": Direction.OUT}
    design = Design("dealt_in_dram", factory, tuple(StreamPort(name, widths[name], ways[name]) for name in widths))
    elements = tensors(replace(unit, elements=parts * unit.elements), 3, 11)
    sent, expected = (beats(elements, lanes, unit.element_bits) for lanes in (x_lanes, y_lanes))
    for seed, stall in ((1, 0.0), (2, 0.4)):
        run = run_streams(
            Backend.MYHDL, design, {"x": sent}, {"y": len(expected)}, seed=seed, stall_probability=stall,
            max_cycles=20_000,
        )  # fmt: skip
        assert run.outputs["y"] == expected, f"seed {seed}"
        assert run.outputs["errors"] == [], f"seed {seed}"


@block
def dealt_to_queues(domain: ClockReset, x: Stream, y: Stream, depths: Sequence[int], turn: int) -> Any:
    """FIFOs of unlike depths between both ends."""
    xs, ys = [Stream(x.width) for _ in depths], [Stream(x.width) for _ in depths]
    dealing, collecting = deal(domain, x, xs, turn=turn), collect(domain, ys, y, turn=turn)
    queues = [queue(domain, xs[i], ys[i], depth=depths[i]) for i in range(len(depths))]
    return dealing, collecting, queues


@pytest.mark.parametrize(("depths", "turn"), [((5, 0), 1), ((0, 2, 7), 3), ((1, 6, 3, 2), 2)])
def test_the_verilog_of_a_dealt_stream_behaves_alike(depths: tuple[int, ...], turn: int) -> None:
    def factory(_images: Mapping[str, Sequence[int]]) -> Any:
        return dealt_to_queues(ClockReset(), Stream(9), Stream(9), depths, turn)

    design = Design("dealt", factory, (StreamPort("x", 9, Direction.IN), StreamPort("y", 9, Direction.OUT)))
    given = [random.Random(4).getrandbits(9) for _ in range(100)]
    run = run_streams(Backend.ICARUS, design, {"x": given}, {"y": 100}, seed=4, stall_probability=0.4)
    assert run.outputs["y"] == given


def test_a_stream_is_dealt_out_to_several_in_turns_of_a_beat_at_least() -> None:
    with pytest.raises(ValueError, match=r"^turns of 1 beats for 1 parts: at least 1 beat, 2 parts$"):
        Deal(payload_bits=8, parts=1)
    with pytest.raises(ValueError, match=r"^turns of 0 beats for 2 parts: at least 1 beat, 2 parts$"):
        Collect(payload_bits=8, parts=2, turn=0)


# --------------------------------------------------------------------------------------- ports, errors

UNITS: list[Unit] = [
    FIFOS[0],
    FIFOS[4],
    RINGS[0],
    replay(22, 3, 1),
    replay(22, 3, 1, kind=LoadedReplay),
    constant(22),
    LoadedConstant(format=FORM, element_bits=16, x_lanes=2, y_lanes=1, elements=22, burst=4, prefetch=12),
    AxiMerge(format=FORM, cut=False),
    AxiMerge(format=FORM, cut=True),
    Deal(payload_bits=16, parts=2),
    Collect(payload_bits=8, parts=3, turn=2),
    DramFifo(format=AxiFormat(), element_bits=16, x_lanes=64, y_lanes=16, elements=4096, capacity=300),
]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
def test_the_ports_of_a_unit_are_those_it_declares_and_its_verilog_is_clean(unit: Unit, tmp_path: Path) -> None:
    streams = {name: Stream(width) for name, width in unit.streams.items()}
    module = convert(unit.build(ClockReset(), streams), "unit")
    expected = {"clk": 1, "rst": 1, **unit.inputs, **unit.outputs}
    for name, width in unit.streams.items():
        expected |= {f"{name}_valid": 1, f"{name}_ready": 1, f"{name}_payload": width}
    found = {port.name: port.width for port in module.ports}
    assert found == expected
    path = module.write(tmp_path)
    lint_verilog([path], "unit")
    compile_icarus([path], "unit")
    check_yosys([path], "unit")


def test_an_address_outside_the_memory_raises_the_error() -> None:
    unit = FIFOS[0]
    design = design_of(unit, FAST, base=DEPTH - 2)
    sent = beats(tensors(unit, 1, 1), unit.x_lanes, unit.element_bits)
    run = run_streams(Backend.MYHDL, design, {"x": sent}, {"errors": 1}, seed=1, max_cycles=500, drain_cycles=0)
    assert run.outputs["errors"] == [1]


def test_bursts_stay_within_4_kib_and_aligned_to_their_length() -> None:
    assert AxiFormat(data_bits=512).max_burst == 64
    assert AxiFormat(data_bits=64).max_burst == 256
    with pytest.raises(ValueError, match=r"^a burst must be a power of two up to 64 words, not 128$"):
        DramFifo(format=AxiFormat(), element_bits=16, x_lanes=1, y_lanes=1, elements=64, burst=128, capacity=1)
    with pytest.raises(ValueError, match=r"^a burst must be a power of two up to 64 words, not 3$"):
        DramFifo(format=AxiFormat(), element_bits=16, x_lanes=1, y_lanes=1, elements=64, burst=3, capacity=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefetch": 3}, r"^prefetch \(3 words\) must hold a burst \(4 words\)$"),
        ({"x_lanes": 5}, r"^5 and 1 lanes must divide a tensor of 22 elements$"),
        ({"staleness": 4}, r"^staleness must lie in 0\.\.batch = 0\.\.3, not 4$"),
    ],
)
def test_a_store_that_cannot_work_is_refused(change: dict[str, int], message: str) -> None:
    fields = vars(replay(22, 3, 1)) | change
    with pytest.raises(ValueError, match=message):
        DramReplay(**fields)
