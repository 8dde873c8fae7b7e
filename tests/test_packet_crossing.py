"""Crossings of whole packets between two clocks: at unlike clocks of any phase, with bits that are sampled while they
change, packets arrive whole, without a gap, in order, and each that does not is counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, Simulation, StopSimulation, always, block, intbv

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog, run_tool
from hdl.convert.verilog import convert
from hdl.costs.resources import count
from hdl.costs.synthesis import compare, synthesise
from hdl.elaboration.ports import subblocks
from hdl.errors import ContractViolation
from hdl.link import clocks
from hdl.memory import unsimulated
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream
from tests.mutated import Mutator
from tests.test_clock_crossing import PERIODS, RESET_EDGES, SKEW, Ran, clock, late

WIDTH, DEPTH = 10, 32
LAST = WIDTH - 1
# two hundred millionths apart, beside the unlike ones
ALL_PERIODS = (*PERIODS, (1_000_000, 1_000_200), (1_000_200, 1_000_000))


def packets(seed: int, number: int) -> list[list[int]]:
    """Random beats, the last one of each marked."""
    rng = random.Random(f"{seed}/packets")
    sizes = [rng.choice((1, 2, 3, DEPTH - clocks.TOLD_LATE, rng.randint(1, 12))) for _ in range(number)]
    return [[rng.randrange(1 << LAST) | (k == size - 1) << LAST for k in range(size)] for size in sizes]


@dataclass
class Came(Ran):
    """What a run came to."""

    words: list[int] = field(default_factory=list)
    dropped: int = 0

    @property
    def packets(self) -> list[list[int]]:
        """Those that are whole."""
        found: list[list[int]] = [[]]
        for word in self.words:
            found[-1].append(word)
            if word >> LAST:
                found.append([])
        return found[:-1]


def run(
    number: int, periods: tuple[int, int], seed: int, stalls: tuple[float, float] = (0.2, 0.2), *,
    drops: bool = False, depth: int = DEPTH,
) -> Came:  # fmt: skip
    """So many random packets through a crossing in MyHDL, its clocks at a random phase."""
    rng = random.Random(f"{seed}/run")
    x, y = Stream(WIDTH), Stream(WIDTH)
    clks, rsts = ([Signal(bool(0)) for _ in range(2)], [Signal(bool(1)) for _ in range(2)])
    dropped = Signal(intbv(0)[clocks.DROPPED_BITS :])
    found = Came()
    with fresh_simulator():
        dut = clocks.packet_crossing(
            clks[0], rsts[0], clks[1], rsts[1], x, y, dropped if drops else None, depth=depth, last_bit=LAST
        )
        samplers = [sub for sub in subblocks(dut) if sub.func.__name__ == "synchroniser"]
        made = [
            dut,
            *(clock(clk, rst, period, rng) for clk, rst, period in zip(clks, rsts, periods, strict=True)),
            give(clks[0], x, packets(seed, number), stalls[0], rng),
            get(clks[1], y, number, stalls[1], rng, found, dropped),
            *(late(sub.args[0], sub.args[1], sub.symdict["first"], int(SKEW * periods[sub.args[0] is clks[0]]), rng,
                   found) for sub in samplers),
        ]  # fmt: skip
        simulation = Simulation(*made)
        try:
            simulation.run(60 * (number + 20) * max(periods), quiet=1)
        finally:
            if not simulation._finished:
                simulation.quit()
    return found


@block
def give(clk: Any, x: Any, wanted: list[list[int]], stall: float, rng: random.Random) -> Any:
    words = [word for packet in wanted for word in packet]
    at, edges = [0], [0]

    @always(clk.posedge)
    def step() -> None:
        edges[0] += 1
        if edges[0] < 8 * RESET_EDGES:
            return
        at[0] += bool(x.valid) and bool(x.ready)
        if not x.valid or x.ready:
            x.valid.next = at[0] < len(words) and rng.random() >= stall
            x.payload.next = words[min(at[0], len(words) - 1)]

    return step


@block
def get(clk: Any, y: Any, number: int, stall: float, rng: random.Random, found: Came, dropped: Any) -> Any:
    """Until all packets have come or been counted; raises `ContractViolation` where there is a gap in one."""
    inside, edges, since = [False], [0], [0]

    @always(clk.posedge)
    def step() -> None:
        edges[0] += 1
        if edges[0] < RESET_EDGES:
            return
        if inside[0] and not y.valid:
            raise ContractViolation(f"valid fell inside packet {len(found.packets)}")
        if y.valid and y.ready:
            found.words.append(int(y.payload))
            inside[0] = not int(y.payload) >> LAST
        y.ready.next = rng.random() >= stall
        found.dropped = int(dropped)
        # what comes too much would come behind the last
        since[0] += len(found.packets) + found.dropped >= number
        if since[0] > 30:
            raise StopSimulation

    return step


def check(periods: tuple[int, int], seed: int, number: int = 40, *, drops: bool = False, **options: Any) -> Came:
    """All packets come, or all but those that were dropped and counted."""
    found, wanted = run(number, periods, seed, drops=drops, **options), packets(seed, number)
    where = f"seed {seed}, periods {periods}"
    if drops:
        left = iter(wanted)
        assert all(packet in left for packet in found.packets), f"{where}: not in their order, or cut"
        assert len(found.packets) + found.dropped == number, f"{where}: {found.dropped} counted"
    else:
        assert found.packets == wanted, where
    assert len(found.words) == sum(map(len, found.packets)), where
    assert found.late > 10, where
    return found


def test_packets_cross_whole_and_without_a_gap() -> None:
    check((2000, 3000), 2, 12)


def test_a_packet_that_finds_no_room_is_dropped_whole_and_counted() -> None:
    found = check((1000, 3000), 3, 25, drops=True)
    assert found.dropped > 5
    assert len(found.packets) > 5
    assert check((3000, 1000), 4, 12, drops=True, stalls=(0.2, 0.0), depth=4 * DEPTH).dropped == 0


@pytest.mark.slow
@pytest.mark.parametrize("periods", ALL_PERIODS, ids=lambda p: f"{p[0]}-{p[1]}")
@pytest.mark.parametrize("seed", range(5, 9))
def test_packets_cross_whatever_the_clocks(periods: tuple[int, int], seed: int) -> None:
    check(periods, seed, 150)
    check(periods, seed, 150, drops=True)
    check(periods, seed, 100, stalls=(0.0, 0.8))
    check(periods, seed, 100, stalls=(0.0, 0.8), drops=True)


# as few words stay free as must
NO_SPARE = {"limit, mask = len(written), depth - TOLD_LATE,": "limit, mask = len(written), depth - 2,"}
FAULTS: dict[str, tuple[dict[str, str], bool]] = {
    "words taken cross without Gray code": (
        {"taken_code.next = taken ^ (taken >> 1)": "taken_code.next = taken",
         "y.next = eight ^ (eight >> 8)": "y.next = x", **NO_SPARE}, False,
    ),
    "a packet begins before it is whole": (
        {"whole.next = x.valid and room and x.payload[last_bit]": "whole.next = push"}, False,
    ),
    "a gap inside a packet": ({"not valid) and (goes_on or more)": "not valid) and more"}, False),
    "more is believed to be free": (
        {"limit, mask = len(written), depth - TOLD_LATE,": "limit, mask = len(written), depth + 1,"}, False,
    ),
    "what is dropped is not counted": ({"lost.next = over\n": "lost.next = False\n"}, True),
    "a packet is cut": ({"            written.next = first\n": "            written.next = written\n"}, True),
    "the rest of a packet is stored": (
        {"push.next = x.valid and room and not cut": "push.next = x.valid and room",
         "whole.next = x.valid and room and not cut and": "whole.next = x.valid and room and"}, True,
    ),
}  # fmt: skip


def check_both_ways(seeds: int, *, drops: bool = False) -> None:
    for seed in range(seeds):
        check((1000, 3000), seed, drops=drops)
        check((3000, 1000), seed, drops=drops, stalls=(0.0, 0.7))


@pytest.mark.slow
def test_two_words_are_spare_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Mutator(monkeypatch, tmp_path)(clocks, clocks, "packet_crossing", NO_SPARE)
    check_both_ways(2)


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "drops"), FAULTS.values(), ids=FAULTS)
def test_a_seeded_fault_is_seen(
    changes: dict[str, str], drops: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Mutator(monkeypatch, tmp_path)(clocks, clocks, "packet_crossing", changes)
    with pytest.raises((AssertionError, ContractViolation)):
        check_both_ways(4, drops=drops)


def elaborated(width: int = WIDTH, depth: int = DEPTH, *, drops: bool = True) -> Any:
    dropped = Signal(intbv(0)[clocks.DROPPED_BITS :]) if drops else None
    ends = [Signal(bool(0)) for _ in range(4)]
    with unsimulated():
        return clocks.packet_crossing(*ends, Stream(width), Stream(width), dropped, depth=depth, last_bit=width - 1)


@pytest.mark.parametrize("depth", [16, 33, 48])
def test_a_depth_that_is_no_power_of_two_is_refused(depth: int) -> None:
    with pytest.raises(
        ValueError, match=rf"^a crossing of packets holds a power of two of beats, at least 32, not {depth}$"
    ):
        elaborated(depth=depth)


@pytest.mark.slow
@pytest.mark.parametrize("drops", [False, True])
def test_the_verilog_is_clean_and_costs_what_is_counted(drops: bool, tmp_path: Path) -> None:
    made = elaborated(66, 512, drops=drops)
    module = convert(made, "crossing")
    path = module.write(tmp_path)
    lint_verilog([path], "crossing")
    compile_icarus([path], "crossing")
    check_yosys([path], "crossing")
    rows = {row.quantity: row for row in compare(count(made), synthesise(module))}
    for quantity in ("multipliers", "m20k", "mlab_cells"):
        assert rows[quantity].estimate == rows[quantity].synthesis, rows[quantity]
    registers, alm = rows["registers"], rows["alm"]
    assert abs(registers.estimate - registers.synthesis) <= max(1, 0.02 * registers.synthesis), registers
    assert abs(alm.estimate - alm.synthesis) <= max(3, 0.12 * alm.synthesis), alm


# ------------------------------------------------------------------------------------------------ synchronisers


def unsynchronised(path: Path, top: str, at: dict[str, str]) -> list[str]:
    """What of a module, whose inputs are ``at`` these clocks, goes from one clock to another but through two flip-flops
    in a row, of which the second alone sees the first: the first may not settle before the next edge, and whoever looks
    at it then may see another bit than his neighbour.  Data of memories are left out."""
    netlist = path.with_suffix(".json")
    run_tool(["yosys", "-q", "-p", f"read_verilog {path}; proc; flatten; opt_clean; write_json {netlist}"])
    module = json.loads(netlist.read_text())["modules"][top]
    ports = {bit: at[name] for name, port in module["ports"].items() if name in at for bit in port["bits"]}
    names = {bit: name for name, net in module["netnames"].items() for bit in net["bits"]}
    clock_of: dict[int, str] = dict(ports)
    drivers: dict[int, list[int]] = {}
    stages: dict[int, int] = {}
    readers: Counter[int] = Counter()
    for cell in module["cells"].values():
        pins = cell["connections"]
        if cell["type"] == "$dff":
            clk = names[pins["CLK"][0]]
            clock_of |= dict.fromkeys(pins["Q"], clk)
            stages |= dict(zip(pins["Q"], pins["D"], strict=True))
        elif not cell["type"].startswith("$mem"):
            inputs = [pin for pin, way in cell["port_directions"].items() if way == "input"]
            drivers |= {bit: [one for pin in inputs for one in pins[pin]] for bit in pins["Y"]}
        for pin, way in cell["port_directions"].items():
            readers.update(bit for bit in pins[pin] if way == "input" and isinstance(bit, int))

    @cache
    def sources(bit: int) -> frozenset[int]:
        """Registers and inputs that a bit follows."""
        if bit in clock_of or not isinstance(bit, int):
            return frozenset([bit]) & clock_of.keys()
        return frozenset().union(*(sources(one) for one in drivers.get(bit, [])))

    found = []
    for q, d in stages.items():
        foreign = {names[bit] for bit in sources(d) if clock_of[bit] != clock_of[q]}
        second = [other for other, one in stages.items() if one == q and clock_of[other] == clock_of[q]]
        if foreign and (d not in clock_of or len(second) != 1 or readers[q] != 1):
            found.append(f"{names[q]} follows {', '.join(sorted(foreign))}")
    return found


AT = {
    "write_rst": "write_clk",
    "x_valid": "write_clk",
    "x_payload": "write_clk",
    "read_rst": "read_clk",
    "y_ready": "read_clk",
}


def test_every_signal_goes_through_two_flip_flops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = convert(elaborated(12, 32), "crossing").write(tmp_path)
    assert unsynchronised(path, "crossing", AT) == []
    Mutator(monkeypatch, tmp_path)(
        clocks, clocks, "packet_crossing", {"        y.next = first\n": "        y.next = x\n"}
    )
    path = convert(elaborated(12, 32), "missing").write(tmp_path)
    assert len(unsynchronised(path, "missing", AT)) > 10
