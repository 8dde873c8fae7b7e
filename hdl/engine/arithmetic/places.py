"""Reservation of places in the queue behind a pipeline that can't stall."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream


@block
def result_places(domain: ClockReset, take: Bit, results: Stream, may: Bit, *, places: int) -> Instances:
    """Free places in a queue: ``take`` reserves one, a transfer on ``results`` frees it; ``may`` while any is free.

    Ports:
        take: in, 1 bit, only while ``may``: a place is reserved at this edge.
        results: in, stream of any width that leaves the queue, watched.
        may: out, 1 bit, from registers.
    """
    free = Signal(intbv(places, min=0, max=places + 1))
    give = Signal(bool(0))

    @always_comb
    def decide() -> None:
        give.next = results.valid and results.ready
        may.next = free != 0

    @always(domain.clk.posedge)
    def count() -> None:
        if take and not give:
            free.next = free - 1
        elif give and not take:
            free.next = free + 1
        if domain.rst:
            free.next = places

    return decide, count
