"""The crossing between two clocks: in MyHDL and in Icarus, at unlike clocks of any phase, with bits that are sampled
while they change."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from myhdl import Signal, Simulation, StopSimulation, always, block, delay, instance, now

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog, run_tool
from hdl.convert.verilog import VerilogModule, convert
from hdl.costs.resources import count
from hdl.costs.synthesis import compare, synthesise
from hdl.elaboration.ports import subblocks
from hdl.errors import ContractViolation
from hdl.link import clocks
from hdl.link.clocks import CROSSING_WORDS, ClockCrossing, clock_crossing
from hdl.signals import ClockReset
from hdl.simulate.drivers import Sink, Source
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream

WIDTH = 12
EDGES = (0, 1, 1 << (WIDTH - 1), (1 << WIDTH) - 1)
# picoseconds of a cycle at either side: 1:3 to 3:1, alike, and nearly so
PERIODS = ((3000, 1000), (2000, 3000), (1000, 1000), (1000, 1007), (1250, 1000), (1000, 3000))
# part of a cycle of the clock that a bit changes at, after which at most it is sampled as it has become
SKEW = 0.9
RESET_EDGES = 4
# part of a period, at most, by which an edge comes sooner or later
JITTER = 25
# faults: counts cross as they are; the sides agree on what is full
WITHOUT_GRAY = {
    "written_code_next.next = written_next ^ (written_next >> 1)": "written_code_next.next = written_next",
    "taken_code_next.next = taken_next ^ (taken_next >> 1)": "taken_code_next.next = taken_next",
    "3 << (bits - 1)": "1 << bits",
}


def beats(seed: int, number: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.choice(EDGES) if rng.random() < 0.2 else rng.randrange(1 << WIDTH) for _ in range(number)]


@dataclass
class Ran:
    """What a run came to."""

    words: list[int]
    was_full: bool = False
    was_empty: bool = False
    # bits that were sampled as they had been
    late: int = 0
    # picoseconds of each word that left
    times: list[int] = field(default_factory=list)


def run(
    number: int, periods: tuple[int, int], seed: int, stalls: tuple[float, float], circuit: Any = clock_crossing,
    depth: int = CROSSING_WORDS,
) -> Ran:  # fmt: skip
    """``number`` random words through a crossing in MyHDL, its clocks at a random phase."""
    rng = random.Random(f"{seed}/run")
    x, y = Stream(WIDTH), Stream(WIDTH)
    clks, rsts = ([Signal(bool(0)) for _ in range(2)], [Signal(bool(1)) for _ in range(2)])
    source = Source("x", WIDTH, beats(seed, number), rng, stalls[0])
    sink = Sink("y", number, rng, stalls[1])
    found = Ran(sink.beats)
    with fresh_simulator():
        dut = circuit(clks[0], rsts[0], clks[1], rsts[1], x, y, depth=depth)
        samplers = [sub for sub in subblocks(dut) if sub.func.__name__ == "synchroniser"]
        made = [
            dut,
            *(clock(clk, rst, period, rng) for clk, rst, period in zip(clks, rsts, periods, strict=True)),
            drive(clks[0], x, source, found),
            take(clks[1], y, sink, found),
            *(late(sub.args[0], sub.args[1], sub.symdict["first"], int(SKEW * period), rng, found)
              for sub, period in zip(samplers, periods, strict=True)),
        ]  # fmt: skip
        simulation = Simulation(*made)
        try:
            simulation.run(8 * (number + 50) * max(periods), quiet=1)
        finally:
            if not simulation._finished:
                simulation.quit()
    return found


@block
def clock(clk: Any, rst: Any, period: int, rng: random.Random, reset_edges: int = RESET_EDGES) -> Any:
    """Of any phase, which wanders."""

    @instance
    def tick() -> Iterator[object]:
        yield delay(1 + rng.randrange(period))
        edges = 0
        while True:
            clk.next = True
            edges += 1
            rst.next = edges < reset_edges
            yield delay(period // 2)
            clk.next = False
            yield delay(period - period // 2 + rng.randint(-period // JITTER, period // JITTER))

    return tick


@block
def drive(clk: Any, x: Any, source: Source, found: Ran) -> Any:
    edges = [0]

    @always(clk.posedge)
    def step() -> None:
        # the other side may be in reset for longer
        edges[0] += 1
        if edges[0] < 8 * RESET_EDGES:
            return
        found.was_full |= bool(x.valid) and not x.ready
        source.step(edges[0], bool(x.ready))
        x.valid.next, x.payload.next = source.valid, source.payload

    return step


@block
def take(clk: Any, y: Any, sink: Sink, found: Ran) -> Any:
    edges = [0]

    @always(clk.posedge)
    def step() -> None:
        edges[0] += 1
        if edges[0] < RESET_EDGES:
            return
        found.was_empty |= bool(y.ready) and not y.valid and bool(sink.beats)
        before = len(sink.beats)
        sink.step(edges[0], bool(y.valid), int(y.payload))
        y.ready.next = sink.ready
        found.times += [now()] * (len(sink.beats) - before)
        if sink.done:
            raise StopSimulation

    return step


@block
def late(clk: Any, x: Any, first: Any, most: int, rng: random.Random, found: Ran) -> Any:
    """A bit of ``x`` that has changed is sampled as it was until a random time is over, up to ``most``: of metastable
    flip-flops, and of wires of unlike length."""
    arrives: list[int] = [0] * len(x)
    before = [0]

    @always(x)
    def watch() -> None:
        for i in range(len(x)):
            if (before[0] ^ int(x)) >> i & 1:
                arrives[i] = now() + rng.randrange(most)
        before[0] = int(x)

    @instance
    def spoil() -> Iterator[object]:
        while True:
            yield clk.posedge
            sampled = int(x)
            under_way = [i for i in range(len(x)) if now() < arrives[i]]
            yield delay(1)
            for i in under_way:
                sampled ^= 1 << i
                found.late += 1
            if under_way:
                first.next = sampled

    return watch, spoil


def wrong(ran: Ran, seed: int, number: int) -> bool:
    return ran.words != beats(seed, number)


@pytest.mark.parametrize("periods", PERIODS, ids=lambda p: f"{p[0]}-{p[1]}")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_words_cross_in_order_whatever_the_clocks(periods: tuple[int, int], seed: int) -> None:
    ran = run(150, periods, seed, (0.3, 0.3))
    assert not wrong(ran, seed, 150), f"seed {seed}"
    assert ran.late > 40, ran.late


@pytest.mark.parametrize("periods", [(3000, 1000), (1000, 1007), (1000, 3000)], ids=lambda p: f"{p[0]}-{p[1]}")
def test_a_crossing_fills_and_empties(periods: tuple[int, int]) -> None:
    full, empty = run(120, periods, 5, (0.0, 0.85)), run(120, periods, 6, (0.85, 0.0))
    assert (full.was_full, wrong(full, 5, 120)) == (True, False)
    assert (empty.was_empty, wrong(empty, 6, 120)) == (True, False)


@pytest.mark.parametrize("periods", PERIODS, ids=lambda p: f"{p[0]}-{p[1]}")
def test_a_word_a_cycle_of_the_slower_clock_passes(periods: tuple[int, int]) -> None:
    ran = run(200, periods, 3, (0.0, 0.0))
    assert not wrong(ran, 3, 200)
    settled = ran.times[50:]
    assert (settled[-1] - settled[0]) / (len(settled) - 1) == pytest.approx(max(periods), rel=0.02)


def mutant(changes: dict[str, str], folder: Path) -> ModuleType:
    """The module of the crossing with its text changed."""
    text = Path(clocks.__file__).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "mutant_clocks.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("mutant_clocks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutant_clocks"] = module
    spec.loader.exec_module(module)
    return module


def goes_wrong(circuit: Any, seed: int, periods: tuple[int, int]) -> bool:
    try:
        return wrong(run(150, periods, seed, (0.3, 0.3), circuit), seed, 150)
    except ContractViolation:
        return True


def test_counts_that_cross_without_gray_code_are_found(tmp_path: Path) -> None:
    spoilt = mutant(WITHOUT_GRAY, tmp_path).clock_crossing
    for periods in ((3000, 1000), (1000, 3000)):
        found = [goes_wrong(spoilt, seed, periods) for seed in range(4)]
        assert all(found), (periods, found)


# ------------------------------------------------------------------------------------------------ in Verilog


BENCH = """`timescale 1ps/1ps
module bench;
integer seed = {seed}, n, taken = 0, given = 0, wrong = 0, late = 0, i;
reg write_clk = 0, read_clk = 0, write_rst = 1, read_rst = 1, x_valid = 0, y_ready = 0, full = 0, empty = 0;
reg [{top}:0] x_payload = 0;
wire x_ready, y_valid;
wire [{top}:0] y_payload;
crossing dut (.write_clk(write_clk), .write_rst(write_rst), .read_clk(read_clk), .read_rst(read_rst),
    .x_valid(x_valid), .x_ready(x_ready), .x_payload(x_payload),
    .y_valid(y_valid), .y_ready(y_ready), .y_payload(y_payload));
function [{top}:0] beat(input integer k); beat = k * 32'd2654435761 >> 7; endfunction
function integer jitter(input integer period); jitter = $random(seed) % (period / {jitter}); endfunction
initial begin #({phase}); forever begin
    write_clk = 1; #({write} / 2); write_clk = 0; #({write} - {write} / 2 + jitter({write})); end end
initial begin #1; forever begin
    read_clk = 1; #({read} / 2); read_clk = 0; #({read} - {read} / 2 + jitter({read})); end end
initial begin #(5 * {slow}); @(posedge write_clk) write_rst <= 0; end
initial begin #(5 * {slow}); @(posedge read_clk) read_rst <= 0; end
always @(posedge write_clk) if (!write_rst && $time > 12 * {slow}) begin
    if (x_valid && !x_ready) full = 1;
    if (x_valid && x_ready) given = given + 1;
    if (!x_valid || x_ready) begin
        x_valid <= given < {number} && ($random(seed) & 255) >= {stall_x};
        x_payload <= beat(given);
    end
end
always @(posedge read_clk) if (!read_rst) begin
    if (y_ready && !y_valid && taken > 0) empty = 1;
    if (y_valid && y_ready) begin
        if (y_payload !== beat(taken)) wrong = wrong + 1;
        taken = taken + 1;
    end
    y_ready <= ($random(seed) & 255) >= {stall_y};
    if (taken == {number}) begin $display("done %0d %0d %0d %0d", wrong, late, full, empty); $finish; end
end
initial begin #({limit}); $display("stuck %0d of {number}", taken); $finish; end
{samplers}endmodule
"""
# a bit that changed is sampled as it was until a random time is over
SAMPLER = """reg [{bits}:0] before{n} = 0, late{n} = 0;
time arrives{n} [0:{bits}];
initial for (n = 0; n <= {bits}; n = n + 1) arrives{n}[n] = 0;
always @(dut.{code}) begin : watch{n}
    integer b;
    for (b = 0; b <= {bits}; b = b + 1)
        if (dut.{code}[b] !== before{n}[b]) arrives{n}[b] = $time + ($random(seed) & 32'h7fffffff) % {most};
    before{n} = dut.{code};
end
always @(posedge {clk}) begin : spoil{n}
    integer b;
    reg [{bits}:0] sampled;
    sampled = dut.{code};
    late{n} = 0;
    for (b = 0; b <= {bits}; b = b + 1) late{n}[b] = $time < arrives{n}[b];
    #1 if (late{n} != 0) begin dut.{first} = sampled ^ late{n}; late = late + 1; end
end
"""


@dataclass(frozen=True)
class Verdict:
    """What Icarus said at the end."""

    wrong: int
    late: int
    full: bool
    empty: bool


def in_icarus(
    module: VerilogModule, folder: Path, seed: int, periods: tuple[int, int], stalls: tuple[int, int], number: int = 400
) -> Verdict | None:
    """``stalls``: of 256 cycles.  None where not all words came."""
    samplers = "".join(
        SAMPLER.format(
            n=n, bits=4, code=code, first=f"synchroniser{n}_first", clk=clk, most=int(SKEW * period),
        )
        for n, (code, clk, period) in enumerate(
            (("written_code", "read_clk", periods[0]), ("taken_code", "write_clk", periods[1]))
        )
    )  # fmt: skip
    text = BENCH.format(
        seed=seed, top=WIDTH - 1, jitter=JITTER, phase=1 + 7919 * seed % periods[0], write=periods[0], read=periods[1],
        slow=max(periods), number=number, stall_x=stalls[0], stall_y=stalls[1], limit=10 * (number + 50) * max(periods),
        samplers=samplers,
    )  # fmt: skip
    (folder / "bench.v").write_text(text)
    program = folder / "bench.vvp"
    run_tool(["iverilog", "-g2005", "-o", program, "-s", "bench", module.write(folder), folder / "bench.v"])
    words = run_tool(["vvp", "-n", program], folder).split()
    if words[0] != "done":
        return None
    wrong_words, late_bits, full, empty = map(int, words[1:5])
    return Verdict(wrong_words, late_bits, bool(full), bool(empty))


def elaborated(circuit: Any = clock_crossing) -> Any:
    return circuit(*(Signal(bool(0)) for _ in range(4)), Stream(WIDTH), Stream(WIDTH))


@pytest.mark.parametrize("periods", PERIODS, ids=lambda p: f"{p[0]}-{p[1]}")
def test_the_verilog_keeps_order_fills_and_empties(periods: tuple[int, int], tmp_path: Path) -> None:
    module = convert(elaborated(), "crossing")
    for seed, stalls in ((1, (80, 80)), (2, (0, 200)), (3, (200, 0))):
        found = in_icarus(module, tmp_path, seed, periods, stalls)
        assert found is not None, f"seed {seed}"
        assert found.wrong == 0, f"seed {seed}: {found}"
        assert found.late > 40, f"seed {seed}: {found}"
        assert found.full or seed != 2, found
        assert found.empty or seed != 3, found


def test_verilog_without_gray_code_is_found(tmp_path: Path) -> None:
    module = convert(elaborated(mutant(WITHOUT_GRAY, tmp_path).clock_crossing), "crossing")
    for periods in ((3000, 1000), (1000, 3000)):
        found = [in_icarus(module, tmp_path, seed, periods, (80, 80)) for seed in range(4)]
        assert all(one is None or one.wrong for one in found), (periods, found)


# ------------------------------------------------------------------------------------------------ as a unit


def test_the_ports_of_a_crossing_are_those_it_declares_and_its_verilog_is_clean(tmp_path: Path) -> None:
    unit = ClockCrossing(payload_bits=WIDTH)
    streams = {name: Stream(width) for name, width in unit.streams.items()}
    module = convert(unit.build(ClockReset(), streams), "unit")
    found = {port.name: port.width for port in module.ports}
    expected = dict(unit.inputs)
    for name, width in unit.streams.items():
        expected |= {f"{name}_valid": 1, f"{name}_ready": 1, f"{name}_payload": width}
    assert found == expected
    path = module.write(tmp_path)
    lint_verilog([path], "unit")
    compile_icarus([path], "unit")
    check_yosys([path], "unit")


@pytest.mark.parametrize("depth", [2, 3, 12])
def test_a_depth_that_is_no_power_of_two_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"^a clock crossing holds a power of two of words, at least 4, not {depth}$"):
        clock_crossing(*(Signal(bool(0)) for _ in range(4)), Stream(3), Stream(3), depth=depth)


def test_what_a_crossing_takes_agrees_with_synthesis() -> None:
    made = count(elaborated())
    rows = {row.quantity: row for row in compare(made, synthesise(convert(elaborated(), "crossing")))}
    for quantity in ("multipliers", "m20k", "mlab_cells"):
        assert rows[quantity].estimate == rows[quantity].synthesis, rows[quantity]
    registers, alm = rows["registers"], rows["alm"]
    assert abs(registers.estimate - registers.synthesis) <= max(1, 0.02 * registers.synthesis), registers
    assert abs(alm.estimate - alm.synthesis) <= max(3, 0.12 * alm.synthesis), alm
