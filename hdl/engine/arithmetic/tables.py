"""Constant tables, and signals just wide enough for a set of values."""

from __future__ import annotations

from collections.abc import Iterable

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv

from hdl.signals import Bits, Clock, Instances

# bits of an index for which a bit of a table is one gate
GATE_BITS = 6


def signal_for(values: Iterable[int], start: int = 0) -> Bits:
    """A signal that holds ``start`` and every one of ``values``; signed if one is negative."""
    found = [start, *values]
    low, high = min(found), max(found)
    signal: Bits
    if low >= 0:
        signal = Signal(intbv(start)[max(1, high.bit_length()) :])
    else:
        bits = max((-1 - low).bit_length(), high.bit_length() if high > 0 else 0) + 1
        signal = Signal(intbv(start, min=-(1 << (bits - 1)), max=1 << (bits - 1)))
    return signal


@block
def look_up(index: Bits, value: Bits, *, table: tuple[int, ...]) -> Instances:
    """``value = table[index]``, combinational; an index past the table yields any entry in hardware.

    Ports:
        index: in, unsigned, of any width.
        value: out, as `signal_for` the table or wider, in the same cycle.
    """

    @always_comb
    def read() -> None:
        value.next = table[int(index)]

    return read


@block
def registered_look_up(clk: Clock, index: Bits, value: Bits, *, table: tuple[int, ...]) -> Instances:
    """As `look_up`, a cycle later.

    Ports:
        index: in, unsigned, of any width.
        value: out, as `signal_for` the table or wider, 1 cycle later.
    """

    @always(clk.posedge)
    def read() -> None:
        value.next = table[int(index)]

    return read


@block
def large_look_up(clk: Clock, index: Bits, value: Bits, *, table: tuple[int, ...]) -> Instances:
    """As `look_up` of a table of 2**k values that aren't negative, k above `GATE_BITS`, two cycles later.

    Parts of the table whose bits are one gate each, then a choice among them.

    Ports:
        index: in, k bits.
        value: out, as `signal_for` the table or wider, 2 cycles later.
    """
    width, bits = len(value), len(index)
    size = 1 << GATE_BITS
    parts = len(table) // size
    found = [Signal(intbv(0)[width:]) for _ in range(parts)]
    every = ConcatSignal(*reversed(found))
    inside, chosen = Signal(intbv(0)[GATE_BITS:]), Signal(intbv(0)[bits - GATE_BITS :])
    reads = [
        registered_look_up(clk, inside, found[part], table=table[part * size : part * size + size])
        for part in range(parts)
    ]
    every_bits, levels = parts * width, bits - GATE_BITS

    @always_comb
    def cut() -> None:
        inside.next = index[GATE_BITS:]

    @always(clk.posedge)
    def choose() -> None:
        # halves, from the last bit of the choice on: a tree, and no chain of comparisons
        left = intbv(0)[every_bits:]
        left[:] = every
        chosen.next = index[bits:GATE_BITS]
        for level in range(levels):
            if chosen[levels - 1 - level]:
                left[:] = left >> (width << (levels - 1 - level))
        value.next = left[width:]

    return reads, cut, choose
