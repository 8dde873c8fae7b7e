"""Narrow masters behind a wide AXI4 port, and the watcher of such ports: bits, bursts, seeded faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always_comb, block, intbv

from benchmarks.timing import time_circuit
from hdl.analysis.same_cycle import broken_handshakes
from hdl.convert.netlist import Direction
from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.dram.axi import CHANNELS, Axi, AxiFormat, axi_merge
from hdl.dram.checker import AxiChecker, axi_monitor
from hdl.dram.store import DramFifo, DramReplay, DramUnit, dram_store
from hdl.dram.widen import AxiWiden, axi_widen
from hdl.errors import ContractViolation
from hdl.recipe import Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, StreamPort, run_streams
from hdl.simulate.models.dram import dram_model
from hdl.stream import Stream
from hdl.streams.checker import Handshake
from tests.test_dram import FAST, SLOW, Memory, beats, tensors

DEPTH = 256
WORDS = {bits: AxiFormat(data_bits=bits, address_bits=10) for bits in (128, 256, 512)}
# wide words at which the regions of the two masters begin
BASES = (16, 144)


def stores(wide: AxiFormat, data_bits: int, burst: int, elements: int = 86) -> tuple[DramFifo, DramReplay]:
    """A FIFO of tensors that fill neither wide words nor bursts, and weights."""
    fields = {"format": wide.narrowed(data_bits), "element_bits": 16, "x_lanes": 2, "y_lanes": 1, "burst": burst}
    fifo = DramFifo(**fields, elements=elements, prefetch=burst + 3, capacity=3)  # type: ignore[arg-type]
    replay = DramReplay(**fields, elements=38, prefetch=2 * burst, batch=3, staleness=1)  # type: ignore[arg-type]
    return fifo, replay


@block
def widened(
    domain: ClockReset, base0: Any, base1: Any, a: Stream, b: Stream, p: Stream, q: Stream, errors: Stream,
    units: Sequence[DramUnit], unit: AxiWiden, memory: Memory, contents: Sequence[int] | None,
    checkers: Sequence[AxiChecker],
) -> Any:  # fmt: skip
    """Two narrow stores on a wide port, which ``checkers`` watch, a narrow one and a wide one, where there are any."""
    ports, wide = [Axi(unit.narrow) for _ in range(3)], Axi(unit.wide)
    flags = [Signal(bool(0)) for _ in range(2)]
    sides = ((base0, a, p), (base1, b, q))
    made = [dram_store(domain, *sides[i], ports[i], flags[i], unit=units[i]) for i in range(2)]
    merging = axi_merge(domain, *ports, form=unit.narrow, cut=False)
    widening = axi_widen(domain, ports[2], wide, unit=unit)
    watchers = [
        axi_monitor(domain, port, checker=checker) for port, checker in zip((ports[2], wide), checkers, strict=False)
    ]
    latency, words, cycles, stall = memory
    model = dram_model(
        domain, wide, form=unit.wide, depth=DEPTH,
        latency=latency, words=words, cycles=cycles, stall_256=stall, contents=contents,
    )  # fmt: skip
    f0, f1 = flags

    @always_comb
    def watch() -> None:
        errors.valid.next = f0 or f1
        errors.payload.next = 1

    return made, merging, widening, watchers, model, watch


def wide_words(unit: DramUnit, words: Sequence[int], ratio: int) -> list[int]:
    """Words of a narrow region as those of the memory."""
    bits = unit.format.data_bits
    return [
        sum(word << (bits * i) for i, word in enumerate(words[at : at + ratio])) for at in range(0, len(words), ratio)
    ]


def both_pass(
    wide: AxiFormat,
    data_bits: int,
    burst: int,
    backend: Backend,
    memory: Memory,
    seed: int,
    stall: float,
) -> tuple[int, list[AxiChecker]]:
    """Tensors and versions through both stores; returns cycles and the watchers."""
    fifo, weights = units = stores(wide, data_bits, burst)
    words = burst * data_bits // wide.data_bits
    # no more room to read than a burst needs
    unit = AxiWiden(narrow=units[0].format, wide=wide, burst=words, reads=words)
    given = (tensors(fifo, 5, seed), tensors(weights, 4, seed + 1))
    image = [0] * DEPTH
    region = weights.image([beats(given[1][:1], 2, 16)], 2)
    held = wide_words(weights, region, unit.ratio)
    image[BASES[1] : BASES[1] + len(held)] = held
    assert BASES[0] + fifo.region_words // unit.ratio <= BASES[1]
    assert BASES[1] + weights.region_words // unit.ratio <= DEPTH
    checkers = [AxiChecker("narrow", unit.narrow), AxiChecker("wide", unit.wide)] if backend is Backend.MYHDL else []

    def factory(images: Mapping[str, Sequence[int]]) -> Any:
        bases = [Signal(intbv(0)[unit.narrow.address_bits :]) for _ in units]
        streams = [Stream(each.streams[port]) for port in "xy" for each in units]
        return widened(ClockReset(), *bases, *streams, Stream(1), units, unit, memory, images.get("dram"), checkers)

    ports = [StreamPort(n, 32, Direction.IN) for n in "ab"] + [StreamPort(n, 16, Direction.OUT) for n in "pq"]
    constants = {f"base{i}": base * unit.ratio for i, base in enumerate(BASES)}
    ports.append(StreamPort("errors", 1, Direction.OUT))
    design = Design("widened", factory, tuple(ports), images={"dram": image}, constants=constants)
    recipe = Recipe(batch=weights.batch, staleness=weights.staleness)
    sent = {"a": beats(given[0], 2, 16), "b": beats(given[1][1:], 2, 16)}
    expected = {
        "p": beats(given[0], 1, 16),
        "q": beats([given[1][recipe.version(frame)] for frame in range(13)], 1, 16),
    }
    counts = {name: len(values) for name, values in expected.items()}
    run = run_streams(backend, design, sent, counts, seed=seed, stall_probability=stall, max_cycles=60_000)
    assert {name: run.outputs[name] for name in expected} == expected, f"seed {seed}"
    assert run.outputs["errors"] == [], f"seed {seed}"
    return run.cycles, checkers


# wide port, narrow words, words of a narrow burst
WIDTHS = [(512, 128, 16), (512, 64, 8), (256, 128, 4), (128, 64, 2), (512, 256, 2)]


@pytest.mark.parametrize(
    ("memory", "stall"),
    [(FAST, 0.0), (SLOW, 0.5), *(pytest.param(*both, marks=pytest.mark.slow) for both in ((FAST, 0.5), (SLOW, 0.0)))],
)
@pytest.mark.parametrize(("wide", "narrow", "burst"), WIDTHS)
def test_narrow_stores_on_a_wide_port_give_every_tensor_and_version(
    wide: int, narrow: int, burst: int, memory: Memory, stall: float
) -> None:
    _, (narrow_port, wide_port) = both_pass(WORDS[wide], narrow, burst, Backend.MYHDL, memory, 1, stall)
    assert narrow_port.bursts >= wide_port.bursts - 1 >= 20
    # what is asked for is there, and has room: narrow words hold nobody up
    assert wide_port.idle_cycles <= wide_port.bursts
    assert wide_port.refused_cycles == 0


@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
@pytest.mark.parametrize(("wide", "narrow", "burst"), [WIDTHS[0], WIDTHS[2]])
def test_the_verilog_of_narrow_stores_behaves_alike(wide: int, narrow: int, burst: int, backend: Backend) -> None:
    both_pass(WORDS[wide], narrow, burst, backend, SLOW, 3, 0.3)


WIDENERS = [
    AxiWiden(narrow=WORDS[wide].narrowed(narrow), wide=WORDS[wide], burst=burst * narrow // wide)
    for wide, narrow, burst in WIDTHS
]


@pytest.mark.parametrize("unit", WIDENERS, ids=lambda unit: f"{unit.narrow.data_bits} to {unit.wide.data_bits}")
def test_the_verilog_of_a_widener_is_clean_and_no_handshake_follows_itself(unit: AxiWiden, tmp_path: Path) -> None:
    streams = {name: Stream(width) for name, width in unit.streams.items()}
    circuit = unit.build(ClockReset(), streams)
    assert broken_handshakes(circuit, "widen") == []
    path = convert(unit.build(ClockReset(), {n: Stream(w) for n, w in unit.streams.items()}), "unit").write(tmp_path)
    lint_verilog([path], "unit")
    compile_icarus([path], "unit")
    check_yosys([path], "unit")


# its widest is synthesised for a minute
@pytest.mark.parametrize("unit", [WIDENERS[-2], pytest.param(WIDENERS[0], marks=pytest.mark.slow)])
def test_a_widener_is_fast_and_no_ready_passes_through_it(unit: AxiWiden) -> None:
    timing = time_circuit(unit.streams, unit.build)
    assert timing.worst.ps <= 4000, timing.worst
    assert not [pins for pins in timing.delays.through if all(pin[0].endswith("_ready") for pin in pins)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"narrow": AxiFormat(data_bits=128, address_bits=10)}, "has no narrow masters of"),
        ({"writes": 7}, "room for two to be written and one to be read, not 7 and 32 words"),
        ({"reads": 3}, "room for two to be written and one to be read, not 32 and 3 words"),
    ],
)
def test_a_widener_that_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    fields = {"narrow": WORDS[512].narrowed(128), "wide": WORDS[512], "burst": 4} | change
    with pytest.raises(ValueError, match=message):
        AxiWiden(**fields)


# ----------------------------------------------------------------------------------------------- the watcher

FORM = AxiFormat(data_bits=64, address_bits=16)
IDLE = Handshake(False, False, 0)
# a cycle: channel → payload of a beat that passes
Cycle = dict[str, int]


def request(address: int, words: int) -> int:
    return (words - 1) << FORM.address_bits | address


def word(last: bool = False) -> int:
    return int(last) << 64


def datum(last: bool = False) -> int:
    return int(last) << 66


LAWFUL: list[Cycle] = [
    {"aw": request(0, 2), "w": word()},
    {"w": word(True), "ar": request(508, 4)},
    # data before their request
    {"b": 0, "w": word(True), "r": datum()},
    {"aw": request(8, 1), "r": datum()},
    {"b": 0, "r": datum()},
    {"r": datum(True)},
]
# what is wrong → the cycles that replace those from the given one on
FAULTS: list[tuple[str, int, list[Cycle]]] = [
    ("a burst of 5 words at byte 0xfe0 crosses 4 KiB", 1, [{"ar": request(508, 5)}]),
    ("last came after 1 words of a burst of 2", 0, [{"aw": request(0, 2), "w": word(True)}]),
    ("2 words of a burst of 2 came without last", 1, [{"w": word()}]),
    ("a write is answered before its last word", 1, [{"b": 0}]),
    ("data are read that nobody asked for", 0, [{"r": datum()}]),
    ("last is 1 with 3 words of the burst to come", 2, [{"r": datum(True)}]),
    ("last is 0 with 0 words of the burst to come", 5, [{"r": datum()}]),
]


def watched(cycles: Sequence[Cycle]) -> AxiChecker:
    checker = AxiChecker("m", FORM)
    for number, cycle in enumerate(cycles):
        beats_now = {c: Handshake(True, True, cycle[c]) if c in cycle else IDLE for c in CHANNELS}
        checker.observe(number, beats_now)
    return checker


def test_lawful_bursts_pass_the_watcher() -> None:
    assert watched(LAWFUL).bursts == 3


@pytest.mark.parametrize(("message", "at", "cycles"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_the_watcher_names_every_fault(message: str, at: int, cycles: list[Cycle]) -> None:
    with pytest.raises(ContractViolation, match=message):
        watched([*LAWFUL[:at], *cycles])


def test_the_watcher_holds_every_channel_to_the_contract_of_streams() -> None:
    for channel in CHANNELS:
        checker = AxiChecker("m", FORM)
        idle = dict.fromkeys(CHANNELS, IDLE)
        checker.observe(0, idle | {channel: Handshake(True, False, 1)})
        with pytest.raises(ContractViolation, match=f"stream m_{channel}, cycle 1: valid fell"):
            checker.observe(1, idle)
