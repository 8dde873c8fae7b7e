"""Counts what is repeated: beats of a frame, classes, groups."""

from __future__ import annotations

from myhdl import always, block

from hdl.signals import Bit, Bits, ClockReset, Instances


@block
def counter(domain: ClockReset, step: Bit, place: Bits, *, count: int, start: int = 0) -> Instances:
    """0 … ``count`` - 1 and again, ``start`` first.  Costs a counter.

    Ports:
        step: in, 1 bit: on to the next at this edge.
        place: out, at least `hdl.memory.address_width` ``(count)`` bits, from a register that is ``start`` at power-up.
    """
    last = count - 1

    @always(domain.clk.posedge)
    def move() -> None:
        if step:
            if place == last:
                place.next = 0
            else:
                place.next = place + 1
        if domain.rst:
            place.next = start

    return move
