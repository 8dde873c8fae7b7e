"""Accumulate exactly, then round once to nearest and saturate."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.fixed import Fixed
from hdl.signals import Bit, Bits, Clock, Instances
from hdl.stream import bits_of

# cycles from an operation's sums to the rounded result
ACCUMULATE_LATENCY = 1
REQUANTISE_LATENCY = 2


@block
def accumulator(
    clk: Clock, valid: Bit, first: Bit, last: Bit, sums: Sequence[Bits], totals: Sequence[Bits], done: Bit
) -> Instances:
    """Adds the sums of operations up to the last of a result; ``done`` marks the cycle with complete ``totals``.

    Ports:
        valid: in, 1 bit: an operation.
        first, last: in, 1 bit each, with ``valid``: it begins a result, ends one.
        sums: in, signed signals of one width, with ``valid``.
        totals: out, signed signals wide enough for a result, 1 cycle later, until the next operation.
        done: out, 1 bit, 1 cycle after the last operation of a result.
    """
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
def saturate_codes(numbers: Bits, codes: Bits, *, lanes: int, target: Fixed) -> Instances:
    """Each signed number of a flat vector saturated into ``target``; combinational.

    Costs two gates over the bits that ``target`` lacks, and a multiplexer a bit.

    Ports:
        numbers: in, ``lanes`` signed numbers of one width, more than that of ``target``; lane 0 in the low bits.
        codes: out, ``lanes`` codes of ``target``, in the same cycle.
    """
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
def requantise_lanes(clk: Clock, totals: Sequence[Bits], result: Bits, *, shift: int, target: Fixed) -> Instances:
    """`hdl.fixed.round_shift` by ``shift`` and saturation into ``target``, two cycles; runs freely.

    Ports:
        totals: in, signed signals of one width.
        result: out, ``len(totals)`` codes of ``target``, lane 0 in the low bits, `REQUANTISE_LATENCY` cycles later.
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
def delay_line(clk: Clock, source: Bit, delayed: Bit, *, cycles: int) -> Instances:
    """A flag, ``cycles`` (at least 1) later.

    Ports:
        source: in, 1 bit.
        delayed: out, 1 bit, ``cycles`` later.
    """
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
