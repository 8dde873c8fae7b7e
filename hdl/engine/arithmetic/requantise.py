"""Accumulate exactly, then round once to nearest and saturate."""

from __future__ import annotations

from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.fixed import Fixed
from hdl.stream import bits_of

# cycles from an operation's sums to the rounded result
ACCUMULATE_LATENCY = 1
REQUANTISE_LATENCY = 2


@block
def accumulator(clk: Any, valid: Any, first: Any, last: Any, sums: Any, totals: Any, done: Any) -> Any:
    """Adds the sums of operations up to the last of a result; ``done`` marks the cycle with complete ``totals``."""
    count = len(sums)

    @always(clk.posedge)
    def add() -> None:
        if valid:
            for lane in range(count):
                if first:
                    totals[lane].next = sums[lane]
                else:
                    totals[lane].next = totals[lane] + sums[lane]
        done.next = valid and last

    return add


def rounded_bits(width: int, shift: int, target: Fixed) -> int:
    """Bits of a code of ``width`` bits after `hdl.fixed.round_shift`, before it is saturated into ``target``."""
    return max(width - shift + (shift > 0), target.width + 1)


@block
def saturate_codes(numbers: Any, codes: Any, *, lanes: int, target: Fixed) -> Any:
    """Each signed number of a flat vector saturated into ``target``; combinational.

    Costs two gates over the bits that ``target`` lacks, and a multiplexer a bit."""
    width, out_width = len(numbers) // lanes, target.width
    low, high = target.low & ((1 << out_width) - 1), target.high
    sign = 1 if target.signed else 0
    all_ones = (1 << (width - out_width + sign)) - 1

    @always_comb
    def saturate() -> None:
        number = intbv(0)[width:]
        over = intbv(0)[width - out_width + sign :]
        for lane in range(lanes):
            number[:] = numbers[bits_of(lane, width)]
            over[:] = number[width : out_width - sign]
            if number[width - 1]:
                if sign == 1 and over == all_ones:
                    codes.next[bits_of(lane, out_width)] = number[out_width:]
                else:
                    codes.next[bits_of(lane, out_width)] = intbv(low)[out_width:]
            elif over == 0:
                codes.next[bits_of(lane, out_width)] = number[out_width:]
            else:
                codes.next[bits_of(lane, out_width)] = intbv(high)[out_width:]

    return saturate


@block
def requantise_lanes(clk: Any, totals: Any, result: Any, *, shift: int, target: Fixed) -> Any:
    """`hdl.fixed.round_shift` by ``shift`` and saturation into ``target``, two cycles; runs freely.

    Args:
        totals: list of signed signals of one width.
        result: codes of ``target``, lane 0 in the low bits.
    """
    lanes, width = len(totals), len(totals[0])
    cut, grow = max(shift, 0), max(-shift, 0)
    kept = rounded_bits(width, shift, target)
    bits = kept + cut
    rounded, codes = Signal(intbv(0)[lanes * kept :]), Signal(intbv(0)[len(result) :])
    bound = 1 << (bits - 1)
    half = 1 << (cut - 1) if cut else 0
    half_width = max(1, cut)
    saturate = saturate_codes(rounded, codes, lanes=lanes, target=target)

    if cut == 0:

        @always(clk.posedge)
        def prepare() -> None:
            code = intbv(0, min=-bound, max=bound)
            for lane in range(lanes):
                code[:] = totals[lane]
                code[:] = code << grow
                rounded.next[bits_of(lane, kept)] = code[bits:]

    else:

        @always(clk.posedge)
        def prepare() -> None:
            code = intbv(0, min=-bound, max=bound)
            add = intbv(0, min=-bound, max=bound)
            add[:] = intbv(half)[half_width:]
            for lane in range(lanes):
                code[:] = totals[lane]
                code[:] = code + add
                rounded.next[bits_of(lane, kept)] = code[bits:cut]

    @always(clk.posedge)
    def store() -> None:
        result.next = codes

    return prepare, saturate, store


@block
def delay_line(clk: Any, source: Any, delayed: Any, *, cycles: int) -> Any:
    """A flag, ``cycles`` (at least 1) later."""
    stages = [Signal(bool(0)) for _ in range(cycles)]
    final = stages[cycles - 1]

    @always(clk.posedge)
    def shift() -> None:
        stages[0].next = source
        for stage in range(1, cycles):
            stages[stage].next = stages[stage - 1]

    @always_comb
    def out() -> None:
        delayed.next = final

    return shift, out
