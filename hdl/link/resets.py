"""Resets of a board: of a device until all around it works, and of a memory controller that begins anew with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.link.clocks import synchroniser
from hdl.signals import Bit, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.unit import Unit

# cycles for which what a device waits for has to be good: a reset that long is seen at every clock of the device
SETTLED_CYCLES = 64


class _Resets(Unit):
    """A unit that gives resets, and takes none."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {}


@dataclass(frozen=True, kw_only=True)
class StartUp(_Resets):
    """Holds a device in reset from power-on until ``good`` has been high for `SETTLED_CYCLES`, and again while ``stop``
    is high.  ``good`` may then fall: a cable that is pulled is no reset."""

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants, and of any clock."""
        return {"good": 1, "stop": 1}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"held": 1}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        del streams
        return start_up(domain.clk, *self.signals(self.inputs), *self.signals(self.outputs))


@block
def start_up(clk: Clock, good: Bit, stop: Bit, held: Bit) -> Instances:
    """See `StartUp`.  Cost: a counter.

    Ports:
        good, stop: in, 1 bit, of any clock.
        held: out, 1 bit, high from power-on.
    """
    seen, last = Signal(intbv(0)[2:]), SETTLED_CYCLES - 1
    told = Signal(intbv(0)[2:])
    # all registers are 0 at power-on
    count = Signal(intbv(0, min=0, max=SETTLED_CYCLES))
    started = Signal(bool(0))

    @always_comb
    def gather() -> None:
        told.next[0] = good
        told.next[1] = stop
        held.next = not started

    sampled = synchroniser(clk, told, seen)

    @always(clk.posedge)
    def step() -> None:
        if seen[1]:
            started.next = False
            count.next = 0
        elif not seen[0]:
            count.next = 0
        elif count == last:
            started.next = True
        else:
            count.next = count + 1

    return gather, sampled, step


@dataclass(frozen=True, kw_only=True)
class MemoryGate(_Resets):
    """Has a memory controller begin anew with its device: what was asked for before a reset must not be answered behind
    it.

    Behind ``again`` it asks for a reset (``request``) until ``ready`` falls, waits until that has been high for
    `SETTLED_CYCLES`, and keeps what is between device and controller in reset meanwhile (``closed``)."""

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants, and ``ready`` of any clock."""
        return {"again": 1, "ready": 1}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"request": 1, "closed": 1}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        del streams
        return memory_gate(domain.clk, *self.signals(self.inputs), *self.signals(self.outputs))


@block
def memory_gate(clk: Clock, again: Bit, ready: Bit, request: Bit, closed: Bit) -> Instances:
    """See `MemoryGate`.  Cost: a counter.

    Ports:
        again: in, 1 bit.
        ready: in, 1 bit, of any clock.
        request: out, 1 bit, a register.
        closed: out, 1 bit, high from power-on.
    """
    seen, last = Signal(intbv(0)[1:]), SETTLED_CYCLES - 1
    told = Signal(intbv(0)[1:])
    count = Signal(intbv(0, min=0, max=SETTLED_CYCLES))
    opened, asks = Signal(bool(0)), Signal(bool(0))

    @always_comb
    def gather() -> None:
        told.next[0] = ready
        request.next = asks
        closed.next = not opened

    sampled = synchroniser(clk, told, seen)

    @always(clk.posedge)
    def step() -> None:
        if again:
            opened.next = False
            asks.next = True
            count.next = 0
        elif asks:
            if not seen[0]:
                asks.next = False
        elif not seen[0]:
            count.next = 0
        elif count == last:
            opened.next = True
        else:
            count.next = count + 1

    return gather, sampled, step
