"""What boards are tested with: pseudo-random words and a march through DRAM, against their golden models, with errors
that must be counted."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.convert.netlist import Direction
from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import VerilogModule, convert
from hdl.dram.axi import Axi, AxiFormat
from hdl.dram.checker import AxiChecker, axi_monitor
from hdl.memory import unsimulated
from hdl.selftest.console import Console, Order, order
from hdl.selftest.march import March, march, march_unit, pattern
from hdl.selftest.prbs import WORD_BITS, PrbsCheck, PrbsSource, first_word, prbs_check, prbs_source, prbs_words
from hdl.signals import Bits, ClockReset
from hdl.simulate import Backend, Design, StreamPort, run_streams
from hdl.simulate.models.dram import StuckBit, dram_model
from hdl.stream import Stream
from hdl.unit import Unit

SEED = 0x1234567
FORM = AxiFormat(data_bits=64, address_bits=10)
MARCH = March(format=FORM, burst=4)
DEPTH = 16
UNITS: list[Unit] = [
    PrbsSource(word_bits=64),
    PrbsCheck(word_bits=64),
    MARCH,
    Console(links=2, channels=1, values=3),
]


def verilog(unit: Unit, name: str) -> VerilogModule:
    with unsimulated():
        return convert(unit.build(ClockReset(), {n: Stream(w) for n, w in unit.streams.items()}), name)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
def test_the_ports_of_a_unit_are_those_it_declares_and_its_verilog_is_clean(unit: Unit, tmp_path: Path) -> None:
    module = verilog(unit, "unit")
    streams = {f"{n}_{part}" for n in unit.streams for part in ("valid", "ready", "payload")}
    assert {port.name for port in module.ports} == streams | {*unit.inputs, *unit.outputs, "clk", "rst"}
    ports = {port.name: port.width for port in module.ports}
    assert all(ports[name] == bits for name, bits in {**unit.inputs, **unit.outputs}.items())
    path = module.write(tmp_path)
    lint_verilog([path], "unit")
    compile_icarus([path], "unit")


@pytest.mark.parametrize("bits", WORD_BITS)
def test_words_are_the_sequence_of_the_polynomial(bits: int) -> None:
    words = prbs_words(SEED, bits)
    flat = [word >> at & 1 for word in (next(words) for _ in range(4096 // bits)) for at in range(bits)]
    assert sum(bit << at for at, bit in enumerate(flat[:31])) == SEED
    assert all(flat[at] == flat[at - 28] ^ flat[at - 31] for at in range(31, len(flat)))


def test_a_seed_of_no_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a seed is a number of 31 bits, not 0, and not 0$"):
        first_word(0, 64)


@block
def over_a_wire(
    domain: ClockReset, first: Bits, x: Stream, through: Stream, came: Stream, results: Stream, expected: int
) -> Any:
    """A source whose words leave at ``through``, a checker of those that come at ``came``, and what both have
    counted once so many left and came."""
    sent, words, wrong_words, wrong_bits = (Signal(intbv(0)[32:]) for _ in range(4))
    source = prbs_source(domain, first, x, through, sent)
    check = prbs_check(domain, first, came, words, wrong_words, wrong_bits)

    over = Signal(bool(0))

    @always_comb
    def watch() -> None:
        results.valid.next = words == expected and sent == expected and not over
        results.payload.next = concat(sent, words, wrong_words, wrong_bits)

    @always(domain.clk.posedge)
    def once() -> None:
        over.next = words == expected and sent == expected and (over or results.ready)

    return source, check, watch, once


def wire(bits: int, expected: int) -> Design:
    def factory(_: Mapping[str, Sequence[int]]) -> Any:
        streams = Stream(33), Stream(bits), Stream(bits), Stream(128)
        return over_a_wire(ClockReset(), Signal(intbv(0)[bits:]), *streams, expected)

    ports = (
        StreamPort("x", 33, Direction.IN),
        StreamPort("through", bits, Direction.OUT),
        StreamPort("came", bits, Direction.IN),
        StreamPort("results", 128, Direction.OUT),
    )
    return Design("over_a_wire", factory, ports, constants={"first": first_word(SEED, bits)})


def counted(backend: Backend, bits: int, seed: int, words: int = 40) -> None:
    """Orders of several sizes, one of which turns a bit over; words that come with errors."""
    rng = random.Random(seed)
    orders = [words // 2, 0, 1 << 32 | words // 4, words - words // 2 - words // 4]
    sequence = prbs_words(SEED, bits)
    right = [next(sequence) for _ in range(words)]
    sent = [*right]
    sent[words // 2] ^= 1
    came = [*right]
    wrong = rng.sample(range(words), 3)
    errors = [1 << rng.randrange(bits), (1 << bits) - 1, rng.getrandbits(bits) | 1]
    for at, error in zip(wrong, errors, strict=True):
        came[at] ^= error
    flipped = sum(error.bit_count() for error in errors)
    run = run_streams(
        backend, wire(bits, words), {"x": orders, "came": came}, {"through": words, "results": 1}, seed=seed,
        stall_probability=0.4, max_cycles=4000,
    )  # fmt: skip
    assert run.outputs["through"] == sent, f"seed {seed}"
    (told,) = run.outputs["results"]
    assert [told >> 32 * at & 0xFFFFFFFF for at in range(4)] == [flipped, 3, words, words], f"seed {seed}"


def test_each_wrong_bit_and_each_wrong_word_is_counted() -> None:
    counted(Backend.MYHDL, 32, 1)
    counted(Backend.ICARUS, 64, 2, 20)


@pytest.mark.slow
@pytest.mark.parametrize("bits", WORD_BITS)
@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
def test_the_verilog_counts_alike(backend: Backend, bits: int) -> None:
    counted(backend, bits, bits, 200)


# ------------------------------------------------------------------------------------------------ march


@block
def marches(
    domain: ClockReset, x: Stream, results: Stream, unit: March, stuck: StuckBit | None, wanted: int, watched: bool
) -> Any:
    """A march through a slow memory, and what it found once ``wanted`` have ended."""
    port = Axi(unit.format)
    outputs = unit.signals(unit.outputs)
    busy, done, wrong, first, element, refused, bits = outputs
    marcher = march_unit(domain, x, port, *outputs, unit=unit)
    watcher = axi_monitor(domain, port, checker=AxiChecker("m", unit.format)) if watched else ()
    model = dram_model(domain, port, form=unit.format, depth=DEPTH, latency=3, stall_256=40, stuck=stuck)
    over = Signal(bool(0))

    @always_comb
    def watch() -> None:
        results.valid.next = done == wanted and not busy and not over
        results.payload.next = concat(refused, wrong, element, first, bits)

    @always(domain.clk.posedge)
    def once() -> None:
        over.next = done == wanted and not busy and (over or results.ready)

    return marcher, watcher, model, watch, once


def in_memory(unit: March, stuck: StuckBit | None, wanted: int, watched: bool) -> Design:
    width = 64 + 3 + unit.format.address_bits + unit.format.data_bits

    def factory(_: Mapping[str, Sequence[int]]) -> Any:
        return marches(ClockReset(), Stream(32), Stream(width), unit, stuck, wanted, watched)

    ports = (StreamPort("x", 32, Direction.IN), StreamPort("results", width, Direction.OUT))
    return Design("marches", factory, ports, images={"dram": [0] * DEPTH})


def golden(unit: March, bursts: int, stuck: StuckBit | None) -> tuple[int, ...]:
    """Wrong words, element, first and bits, as `march` finds them in a memory with that bit."""
    memory: dict[int, int] = {}

    def write(address: int, word: int) -> None:
        if stuck is not None and address == stuck.word:
            word = word & ~(1 << stuck.bit) | stuck.value << stuck.bit
        memory[address] = word

    found = march(bursts * unit.burst, unit.burst, unit.format.data_bits, write, memory.__getitem__)
    return found.wrong_words, found.element, found.first, found.bits


def found(backend: Backend, unit: March, orders: Sequence[int], stuck: StuckBit | None, seed: int) -> tuple[int, ...]:
    """Refusals, wrong words, element, first and bits of the last of these marches."""
    wanted = sum(order > 0 for order in orders)
    design = in_memory(unit, stuck, wanted, backend is Backend.MYHDL)
    run = run_streams(
        backend, design, {"x": orders}, {"results": 1}, seed=seed, stall_probability=0.2,
        max_cycles=60_000,
    )  # fmt: skip
    (told,) = run.outputs["results"]
    values = []
    for size in (unit.format.data_bits, unit.format.address_bits, 3, 32, 32):
        values.append(told & (1 << size) - 1)
        told >>= size
    return tuple(reversed(values))


def test_a_good_memory_has_no_wrong_word() -> None:
    assert found(Backend.MYHDL, MARCH, [1], None, 1) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("value", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stuck_bit_is_found_where_it_is(value: bool) -> None:
    rng = random.Random(3 + value)
    word = rng.randrange(8)
    # a bit that is wrong wherever the word is not complemented: in the last element too
    bit = rng.choice([bit for bit in range(64) if pattern(word, 64) >> bit & 1 != value])
    stuck = StuckBit(word=word, bit=bit, value=value)
    wanted = golden(MARCH, 2, stuck)
    assert wanted[0] == 3
    assert wanted[2:] == (stuck.word, 1 << stuck.bit)
    assert found(Backend.MYHDL, MARCH, [1, 0, 2], stuck, 4) == (0, *wanted), stuck


@pytest.mark.slow
def test_addresses_that_the_memory_does_not_have_are_refused() -> None:
    refused, wrong, _, first, _ = found(Backend.MYHDL, MARCH, [DEPTH // 4 + 1], None, 5)
    # of the burst behind the end: five times each way
    assert refused == 10
    assert wrong
    assert first == DEPTH


def test_the_golden_march_finds_what_marches_are_for() -> None:
    """Stuck cells, shorted address lines, and cells that follow a neighbour."""
    words, burst, full = 16, 2, (1 << 64) - 1
    for line in range(4):
        memory: dict[int, int] = {}
        shorted = march(
            words, burst, 64, lambda a, w, m=memory, n=line: m.__setitem__(a & ~(1 << n), w),
            lambda a, m=memory, n=line: m[a & ~(1 << n)],
        )  # fmt: skip
        assert shorted.wrong_words, f"address line {line} is stuck at 0"
    for victim, aggressor in ((4, 6), (6, 4), (4, 12), (12, 4)):
        cells: dict[int, int] = {}

        def write(
            address: int, word: int, cells: dict[int, int] = cells, of: int = aggressor, at: int = victim
        ) -> None:
            rises = address == of and word & 1 and not cells.get(of, 0) & 1
            cells[address] = word
            if rises and at in cells:
                cells[at] ^= 1

        assert march(words, burst, 64, write, cells.__getitem__).wrong_words, (victim, aggressor)
    assert len({pattern(a, 64) for a in range(64)} | {pattern(a, 64) ^ full for a in range(64)}) == 128


@pytest.mark.slow
@pytest.mark.parametrize("data_bits", [64, 256, 512])
@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
def test_the_verilog_marches_alike(backend: Backend, data_bits: int) -> None:
    unit = March(format=AxiFormat(data_bits=data_bits, address_bits=12), burst=8)
    rng = random.Random(data_bits)
    for seed in range(3):
        stuck = StuckBit(word=rng.randrange(DEPTH), bit=rng.randrange(data_bits), value=rng.random() < 0.5)
        assert found(backend, unit, [2], stuck, seed) == (0, *golden(unit, 2, stuck)), f"{stuck}, seed {seed}"


# ------------------------------------------------------------------------------------------------ orders


@pytest.mark.parametrize("backend", [Backend.MYHDL, pytest.param(Backend.VERILATOR, marks=pytest.mark.slow)])
def test_orders_reach_whom_they_mean_and_reports_tell_every_value(backend: Backend) -> None:
    unit, rng = Console(links=2, channels=1, values=3), random.Random(7)
    values = [rng.getrandbits(64) for _ in range(3)]
    orders = [
        order(Order.RUN, 1, 5, flags=3), order(Order.RUN, 0, 6), order(Order.RUN, 2, 7), order(Order.REPORT),
        order(Order.MARCH, 0, 8), order(Order.MARCH, 1, 9), 0xFF << 56, order(Order.REPORT, 3), order(Order.RUN, 1, 4),
    ]  # fmt: skip
    ways = {name: Direction.IN if name == "x" else Direction.OUT for name in unit.streams}
    design = Design(
        "console",
        lambda _: unit.build(ClockReset(), {name: Stream(bits) for name, bits in unit.streams.items()}),
        tuple(StreamPort(name, bits, ways[name]) for name, bits in unit.streams.items()),
        constants={"values": sum(value << 64 * at for at, value in enumerate(values))},
    )
    told = {"y": 10, "run0": 1, "run1": 2, "march0": 1}
    run = run_streams(backend, design, {"x": orders}, told, seed=7, stall_probability=0.4)
    assert run.outputs["run1"] == [1 << 32 | 5, 4]
    assert run.outputs["run0"] == [6]
    assert run.outputs["march0"] == [8]
    first, second = run.outputs["y"][:5], run.outputs["y"][5:]
    assert first[2:] == second[2:] == values
    # orders that nobody took until then
    assert (first[1], second[1]) == (1, 3)
    assert 0 < first[0] < second[0] < run.cycles


@pytest.mark.slow
def test_yosys_takes_them(tmp_path: Path) -> None:
    for at, unit in enumerate([*UNITS, PrbsSource(word_bits=512), PrbsCheck(word_bits=512)]):
        check_yosys([verilog(unit, f"unit{at}").write(tmp_path)], f"unit{at}")
