"""The contract checker and the scoreboard catch every seeded fault.

A faulty pipe stands between source and sink.  Contract breaches must be raised by the checker, lost and extra
beats by the beat counts, changed and swapped beats by comparing in order, and a lock by the cycle limit.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, Simulation, StopSimulation, always, always_comb, block, delay, intbv

from hdl.errors import ContractViolation, DeadlockError
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream
from hdl.streams.checker import Handshake, StreamChecker, monitor

WIDTH = 16
BEATS = 120
# the beat that is hit
VICTIM = 23


class Fault(Enum):
    """What the pipe does to the beat `VICTIM`."""

    NONE = 0
    DROP = 1
    DUPLICATE = 2
    CORRUPT = 3
    REORDER = 4
    LOCK = 5
    VALID_FALLS = 6
    PAYLOAD_CHANGES = 7
    VALID_FOLLOWS_READY = 8
    READY_FOLLOWS_VALID = 9
    PAYLOAD_FOLLOWS_READY = 10
    WAITS_FOR_READY = 11


@block
def faulty_pipe(domain: ClockReset, x: Any, y: Any, fault: int) -> Any:
    """A wire, but for its fault: the last six hit the victim and all beats after it."""
    count = Signal(intbv(0)[16:])
    hit, later = Signal(bool(0)), Signal(bool(0))
    # duplicate: the first copy has gone; reorder: the victim is sent now; valid falls: it is down now
    second, down = Signal(bool(0)), Signal(bool(0))
    kept = Signal(intbv(0)[WIDTH:])
    ready, valid = Signal(bool(0)), Signal(bool(0))

    @always_comb
    def where() -> None:
        hit.next = count == VICTIM
        later.next = count >= VICTIM

    @always_comb
    def pipe() -> None:
        ready.next = y.ready
        valid.next = x.valid
        if fault == 1 and hit:
            ready.next = True
            valid.next = False
        if fault == 2 and hit and not second:
            ready.next = False
        if fault == 4 and hit:
            ready.next = True
            valid.next = False
        if fault == 4 and second:
            ready.next = False
            valid.next = True
        if fault == 5 and hit:
            ready.next = False
            valid.next = False
        if fault == 6 and down:
            ready.next = False
            valid.next = False
        if fault == 8 and later:
            valid.next = x.valid and y.ready
        if fault == 9 and later:
            ready.next = x.valid and y.ready
        if fault == 11 and later and not down:
            ready.next = False
            valid.next = False

    @always_comb
    def payload() -> None:
        y.payload.next = x.payload
        if fault == 3 and hit:
            y.payload.next = x.payload ^ 256
        if fault == 4 and second:
            y.payload.next = kept
        if fault == 7 and down and later:
            y.payload.next = x.payload ^ 1
        if fault == 10 and later and y.ready:
            y.payload.next = x.payload ^ 1

    @always_comb
    def ports() -> None:
        x.ready.next = ready
        y.valid.next = valid

    @always(domain.clk.posedge)
    def step() -> None:
        if domain.rst:
            count.next = 0
            second.next = False
            down.next = False
        else:
            down.next = later and valid and not y.ready
            if fault == 11:
                down.next = later and (y.ready or valid)
            if x.valid and ready:
                count.next = count + 1
            if fault == 2:
                second.next = hit and (second or (valid and y.ready)) and not (second and x.valid and ready)
            if fault == 4:
                if hit and x.valid:
                    kept.next = x.payload
                if second:
                    second.next = not y.ready
                elif count == VICTIM + 1 and x.valid and y.ready:
                    second.next = True

    return where, pipe, payload, ports, step


def design(fault: Fault) -> Design:
    def build(_images: Mapping[str, Sequence[int]]) -> Any:
        return faulty_pipe(ClockReset(), Stream(WIDTH), Stream(WIDTH), fault.value)

    ports = (StreamPort("x", WIDTH, Direction.IN), StreamPort("y", WIDTH, Direction.OUT))
    return Design(f"pipe_{fault.name.lower()}", build, ports)


def verdict(fault: Fault, backend: Backend, seed: int) -> str:
    """How the harness judges the pipe: "" is a pass."""
    beats = [int(x) for x in np.random.default_rng(seed).integers(1 << WIDTH, size=BEATS)]
    try:
        run = run_streams(
            backend, design(fault), {"x": beats}, {"y": BEATS}, seed=seed, stall_probability=0.4, max_cycles=2000
        )
    except (ContractViolation, DeadlockError) as error:
        return f"{type(error).__name__} {error}"
    return "" if run.outputs["y"] == beats else "the scoreboard differs"


EXPECTED = {
    Fault.NONE: r"",
    Fault.DROP: r"DeadlockError .*input x: 120 of 120 beats taken; output y: 119 of 120 beats",
    Fault.DUPLICATE: r"ContractViolation .*beat 121 came, only 120 expected",
    Fault.CORRUPT: r"the scoreboard differs",
    Fault.REORDER: r"the scoreboard differs",
    Fault.LOCK: r"DeadlockError .*not done after 2000 cycles: input x: 23 of 120 beats taken; output y: 23 of 120",
    Fault.VALID_FALLS: r"ContractViolation .*stream y, cycle \d+: valid fell before the beat was taken",
    Fault.PAYLOAD_CHANGES: r"ContractViolation .*stream y, cycle \d+: payload changed .*while valid waited",
    Fault.VALID_FOLLOWS_READY: r"ContractViolation .*stream y, cycle \d+: valid and ready follow one another",
    Fault.READY_FOLLOWS_VALID: r"ContractViolation .*stream x, cycle \d+: valid and ready follow one another",
    Fault.PAYLOAD_FOLLOWS_READY: r"ContractViolation .*stream y, cycle \d+: payload (follows ready|changed)",
    Fault.WAITS_FOR_READY: r"DeadlockError .*not done after 2000 cycles",
}


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("fault", Fault)
def test_a_seeded_fault_is_caught_in_myhdl(fault: Fault, seed: int) -> None:
    found = verdict(fault, Backend.MYHDL, seed)
    assert re.fullmatch(f"(?:{EXPECTED[fault]}).*", found), f"seed {seed}: {found}"
    assert bool(found) == (fault is not Fault.NONE), f"seed {seed}: {found}"


@pytest.mark.parametrize("fault", Fault)
def test_a_seeded_fault_is_caught_in_verilator(fault: Fault) -> None:
    found = verdict(fault, Backend.VERILATOR, 1)
    assert re.fullmatch(f"(?:{EXPECTED[fault]}).*", found), found
    assert bool(found) == (fault is not Fault.NONE), found


@pytest.mark.parametrize("fault", [Fault.VALID_FOLLOWS_READY, Fault.READY_FOLLOWS_VALID, Fault.PAYLOAD_FOLLOWS_READY])
def test_what_follows_within_a_cycle_is_caught_in_icarus(fault: Fault) -> None:
    found = verdict(fault, Backend.ICARUS, 1)
    assert re.fullmatch(f"(?:{EXPECTED[fault]}).*", found), found


def test_a_probe_names_what_followed() -> None:
    checker = StreamChecker("s")
    # what is not offered may follow anything; a signal may be turned round either way
    checker.probe(1, Handshake(False, True, 5), Handshake(False, False, 6))
    checker.probe(1, Handshake(True, True, 5), Handshake(False, True, 5))
    with pytest.raises(
        ContractViolation, match="stream s, cycle 7: valid and ready follow one another in the same cycle"
    ):
        checker.probe(7, Handshake(True, True, 5), Handshake(False, False, 5))
    with pytest.raises(ContractViolation, match="stream s, cycle 8: payload follows ready in the same cycle"):
        checker.probe(8, Handshake(True, True, 5), Handshake(True, False, 6))


def test_the_checker_accepts_a_lawful_stream_and_counts_transfers() -> None:
    checker = StreamChecker("s")
    trace = [(0, 0, 9), (1, 0, 5), (1, 0, 5), (1, 1, 5), (1, 1, 6), (0, 1, 0), (1, 0, 7), (1, 1, 7)]
    fired = [checker.observe(i, bool(v), bool(r), p) for i, (v, r, p) in enumerate(trace)]
    assert fired == [False, False, False, True, True, False, False, True]


def test_the_checker_names_stream_cycle_and_breach() -> None:
    checker = StreamChecker("weights")
    checker.observe(3, True, False, 0x12)
    with pytest.raises(ContractViolation, match=r"stream weights, cycle 4: valid fell before the beat was taken"):
        checker.observe(4, False, True, 0x12)
    checker = StreamChecker("weights")
    checker.observe(3, True, False, 0x12)
    with pytest.raises(ContractViolation, match=r"stream weights, cycle 4: payload changed from 0x12 to 0x13"):
        checker.observe(4, True, True, 0x13)


def test_a_reset_forgets_a_waiting_beat() -> None:
    checker = StreamChecker("s")
    checker.observe(0, True, False, 1)
    checker.observe(1, False, False, 0, reset=True)
    assert checker.observe(2, True, True, 2)


@pytest.mark.parametrize("lawful", [True, False])
def test_a_monitor_watches_a_stream_in_a_myhdl_test(lawful: bool) -> None:
    with fresh_simulator():
        clk, rst, stream = Signal(bool(0)), Signal(bool(0)), Stream(8)
        ticks = [0]

        @block
        def bench() -> Any:
            @always(delay(1))
            def clock() -> None:
                clk.next = not clk

            @always(clk.posedge)
            def drive() -> None:
                ticks[0] += 1
                stream.valid.next = ticks[0] < 5 or lawful
                if ticks[0] > 9:
                    raise StopSimulation

            return clock, drive, monitor(ClockReset(clk, rst), stream, "watched")

        simulation = Simulation(bench())
        if lawful:
            simulation.run(quiet=1)
            return
        with pytest.raises(ContractViolation, match="stream watched, cycle 5"):
            simulation.run(quiet=1)
