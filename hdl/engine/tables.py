"""Constant tables, and signals just wide enough for a set of values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from myhdl import Signal, always, always_comb, block, intbv


def signal_for(values: Iterable[int], start: int = 0) -> Any:
    """A signal that holds ``start`` and every one of ``values``; signed if one is negative."""
    found = [start, *values]
    low, high = min(found), max(found)
    if low >= 0:
        return Signal(intbv(start)[max(1, high.bit_length()) :])
    bits = max((-1 - low).bit_length(), high.bit_length() if high > 0 else 0) + 1
    return Signal(intbv(start, min=-(1 << (bits - 1)), max=1 << (bits - 1)))


@block
def look_up(index: Any, value: Any, *, table: tuple[int, ...]) -> Any:
    """``value = table[index]``, combinational; an index past the table yields any entry in hardware."""

    @always_comb
    def read() -> None:
        value.next = table[int(index)]

    return read


@block
def registered_look_up(clk: Any, index: Any, value: Any, *, table: tuple[int, ...]) -> Any:
    """As `look_up`, a cycle later."""

    @always(clk.posedge)
    def read() -> None:
        value.next = table[int(index)]

    return read
