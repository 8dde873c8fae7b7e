"""Simulation in MyHDL: of the block itself, or of anything else that answers on the same signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import myhdl
from myhdl import StopSimulation, always, block, delay, instance
from myhdl._extractHierarchy import _memInfoMap

from hdl.signals import Bit, Bits, Instances
from hdl.simulate.design import Design, Run
from hdl.simulate.drivers import PROBE_CYCLES, RESET_CYCLES, Bench, Sink, Source
from hdl.streams.checker import Handshake


@dataclass(frozen=True)
class ClockTimes:
    """When a clock of a testbench rises and falls, in steps of time."""

    # of the first rise
    first: int
    # from a rise to the fall, and from there to the next rise
    high: int
    low: int

    @property
    def period(self) -> int:
        """From rise to rise."""
        return self.high + self.low


# clocks of a testbench by name, where there is one
ONE_CLOCK: Mapping[str, ClockTimes] = {"clk": ClockTimes(3, 3, 3)}


@contextmanager
def fresh_simulator() -> Iterator[None]:
    """MyHDL keeps every signal ever made; forget them before and after a run."""
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    myhdl._simulator._signals.clear()
    myhdl._simulator._siglist.clear()
    myhdl._simulator._futureEvents.clear()
    myhdl._Simulation.Simulation._no_of_instances = 0
    _memInfoMap.clear()


def run_myhdl(design: Design, bench: Bench) -> Run:
    """Simulate the block of the design."""
    with fresh_simulator():
        dut = design.factory(design.images)
        simulate(design.signals(dut), design.constants, bench, lambda _signals: dut)
        return bench.result()


def simulate(
    signals: Mapping[str, Bits],
    constants: Mapping[str, int],
    bench: Bench,
    make_dut: Callable[[Mapping[str, Bits]], Instances],
    clocks: Mapping[str, ClockTimes] = ONE_CLOCK,
    at: str = "clk",
) -> None:
    """Drive ``signals`` with the bench until it has finished: all ``clocks``, and streams at the one called ``at``."""
    simulation = myhdl.Simulation(make_dut(signals), testbench(signals, bench=bench, clocks=clocks, at=at))
    for name, value in constants.items():
        signals[name].next = value
    try:
        simulation.run(quiet=1)
    finally:
        if not simulation._finished:
            simulation.quit()


@block
def testbench(signals: Mapping[str, Bits], *, bench: Bench, clocks: Mapping[str, ClockTimes], at: str) -> Instances:
    """Clocks, reset, and the bench at each rising edge of one of them; between edges, now and then, a probe, unless
    other clocks rise there.  Not convertible.

    Ports:
        signals: in and out, by name: ``clocks``, ``rst``, and of each stream of ``bench`` ``<name>_valid``,
            ``<name>_ready`` and ``<name>_payload``, driven after the edge of the clock ``at``.
    """
    clk, rst = signals[at], signals["rst"]
    # the slowest clock has as many as it would have alone
    resets = math.ceil(RESET_CYCLES * max(times.period for times in clocks.values()) / clocks[at].period)
    ticking = [tick(signals[name], times=times) for name, times in clocks.items()]
    sources = [(s, *_stream(signals, s.name)) for s in bench.sources]
    sinks = [(s, *_stream(signals, s.name)) for s in bench.sinks]
    edges = [0]

    @always(clk.posedge)
    def step() -> None:
        edges[0] += 1
        rst.next = edges[0] < resets
        if edges[0] <= resets:
            if edges[0] == resets:
                for source, valid, _, payload in sources:
                    source.offer()
                    valid.next, payload.next = source.valid, source.payload
                for sink, _, ready, _ in sinks:
                    ready.next = sink.ready
            return
        for source, valid, ready, payload in sources:
            source.step(bench.cycle, bool(ready))
            valid.next, payload.next = source.valid, source.payload
        for sink, valid, ready, payload in sinks:
            sink.step(bench.cycle, bool(valid), int(payload))
            ready.next = sink.ready
        bench.cycle += 1
        if bench.finished():
            raise StopSimulation

    @instance
    def probe() -> Iterator[object]:
        ports: list[tuple[Source | Sink, Bit, Bit, Bits]] = [*sources, *sinks]
        for port, valid, ready, payload in cycle(ports):
            for _ in range(PROBE_CYCLES):
                yield clk.posedge
            # after what happens at the falling edge
            yield delay(clocks[at].high + 1)
            driven = valid if isinstance(port, Source) else ready
            # a payload that is not offered may be anything, so none is offered for a probe
            if edges[0] > resets and (driven is ready or valid):
                before = Handshake(bool(valid), bool(ready), int(payload))
                driven.next = not driven
                yield delay(1)
                after = Handshake(bool(valid), bool(ready), int(payload))
                driven.next = not driven
                port.checker.probe(bench.cycle, before, after)

    return ticking, step, probe if len(clocks) == 1 else []


@block
def tick(clk: Bit, *, times: ClockTimes) -> Instances:
    """A clock.  Not convertible.

    Ports:
        clk: out, 1 bit.
    """

    @instance
    def run() -> Iterator[object]:
        yield delay(times.first)
        while True:
            clk.next = True
            yield delay(times.high)
            clk.next = False
            yield delay(times.low)

    return run


def _stream(signals: Mapping[str, Bits], name: str) -> tuple[Bit, Bit, Bits]:
    return signals[f"{name}_valid"], signals[f"{name}_ready"], signals[f"{name}_payload"]
