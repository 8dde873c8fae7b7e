"""Simulation in MyHDL: of the block itself, or of anything else that answers on the same signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle

import myhdl
from myhdl import StopSimulation, always, block, delay, instance
from myhdl._extractHierarchy import _memInfoMap

from hdl.signals import Bit, Bits, Instances
from hdl.simulate.design import Design, Run
from hdl.simulate.drivers import PROBE_CYCLES, RESET_CYCLES, Bench, Sink, Source
from hdl.streams.checker import Handshake


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
) -> None:
    """Drive ``signals`` with the bench until it has finished."""
    simulation = myhdl.Simulation(make_dut(signals), testbench(signals, bench=bench))
    for name, value in constants.items():
        signals[name].next = value
    try:
        simulation.run(quiet=1)
    finally:
        if not simulation._finished:
            simulation.quit()


@block
def testbench(signals: Mapping[str, Bits], *, bench: Bench) -> Instances:
    """Clock, reset, and the bench at each rising edge; between edges, now and then, a probe.  Not convertible.

    Ports:
        signals: in and out, by name: ``clk``, ``rst``, and of each stream of ``bench`` ``<name>_valid``,
            ``<name>_ready`` and ``<name>_payload``, driven after the edge.
    """
    clk, rst = signals["clk"], signals["rst"]
    sources = [(s, *_stream(signals, s.name)) for s in bench.sources]
    sinks = [(s, *_stream(signals, s.name)) for s in bench.sinks]
    edges = [0]

    @always(delay(2))
    def clock() -> None:
        clk.next = not clk

    @always(clk.posedge)
    def step() -> None:
        edges[0] += 1
        rst.next = edges[0] < RESET_CYCLES
        if edges[0] <= RESET_CYCLES:
            if edges[0] == RESET_CYCLES:
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
            # the middle between two rising edges
            yield delay(2)
            driven = valid if isinstance(port, Source) else ready
            # a payload that is not offered may be anything, so none is offered for a probe
            if edges[0] > RESET_CYCLES and (driven is ready or valid):
                before = Handshake(bool(valid), bool(ready), int(payload))
                driven.next = not driven
                yield delay(1)
                after = Handshake(bool(valid), bool(ready), int(payload))
                driven.next = not driven
                port.checker.probe(bench.cycle, before, after)

    return clock, step, probe


def _stream(signals: Mapping[str, Bits], name: str) -> tuple[Bit, Bit, Bits]:
    return signals[f"{name}_valid"], signals[f"{name}_ready"], signals[f"{name}_payload"]
