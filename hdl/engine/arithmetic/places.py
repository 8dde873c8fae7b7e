"""Reservation of places in the queue behind a pipeline that can't stall."""

from __future__ import annotations

from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.stream import Stream


@block
def result_places(clk: Any, rst: Any, take: Any, results: Stream, may: Any, *, places: int) -> Any:
    """Free places in a queue: ``take`` reserves one, a transfer on ``results`` frees it; ``may`` while any is free.

    ``may`` comes from registers."""
    free = Signal(intbv(places, min=0, max=places + 1))
    give = Signal(bool(0))

    @always_comb
    def decide() -> None:
        give.next = results.valid and results.ready
        may.next = free != 0

    @always(clk.posedge)
    def count() -> None:
        if take and not give:
            free.next = free - 1
        elif give and not take:
            free.next = free + 1
        if rst:
            free.next = places

    return decide, count
