"""Sums by channel over the beats of a frame or a batch, and their means."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.lanes import (
    WIDE_SCALE_LATENCY,
    delay_vector,
    join_lanes,
    round_lanes,
    scale_rounded,
    signed_lanes,
)
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.norm.numbers import RECIPROCAL_BITS, Mean
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter

# cycles of `mean_lanes`
MEAN_LATENCY = 1 + WIDE_SCALE_LATENCY
# up to so many groups, sums circulate in registers; more lie in a memory
RING_GROUPS = 4


@block
def channel_sums(
    domain: ClockReset,
    early: Bit,
    first: Bit,
    last: Bit,
    values: Sequence[Bits],
    totals: Sequence[Bits],
    complete: Bit,
    *,
    groups: int,
) -> Instances:
    """Sums of ``values`` by channel, from the first to the last beat of each group.

    Costs registers for `RING_GROUPS` groups or fewer, else a memory of ``groups`` words.

    Ports:
        early: in, 1 bit, 2 cycles before ``values`` of the next group (in order) are there.
        first, last: in, 1 bit each, with ``early``: the sum starts with these values; is complete with them.
        values: in, signed signals of one width, 2 cycles after ``early``.
        totals: out, signed signals wide enough for every sum, 3 cycles after ``early``.
        complete: out, 1 bit, 3 cycles after ``early``: ``totals`` are complete sums.
    """
    valid, fresh, final = (Signal(bool(0)) for _ in range(3))
    waits = [
        delay_vector(domain.clk, early, valid, cycles=2),
        delay_vector(domain.clk, first, fresh, cycles=2),
        delay_vector(domain.clk, last, final, cycles=2),
    ]
    if groups <= RING_GROUPS:
        sums = ring_sums(domain.clk, valid, fresh, values, totals, groups=groups)
    else:
        sums = memory_sums(domain, early, valid, fresh, values, totals, groups=groups)

    @always(domain.clk.posedge)
    def mark() -> None:
        complete.next = valid and final

    return waits, sums, mark


@block
def ring_sums(
    clk: Clock, valid: Bit, fresh: Bit, values: Sequence[Bits], totals: Sequence[Bits], *, groups: int
) -> Instances:
    """`channel_sums` in a ring of registers.

    Ports:
        valid: in, 1 bit: values of the next group (in order) are there.
        fresh: in, 1 bit, with ``valid``: sums start with them.
        values: in, signed signals of one width, with ``valid``.
        totals: out, signed signals wide enough for every sum, 1 cycle later, until the next values.
    """
    lanes, bits = len(values), len(totals[0])
    others = (groups - 1) * lanes
    ring = signed_lanes(max(1, others), bits)

    if groups == 1:

        @always(clk.posedge)
        def add_single() -> None:
            for lane in range(lanes):
                if valid:
                    if fresh:
                        totals[lane].next = values[lane]
                    else:
                        totals[lane].next = totals[lane] + values[lane]

        return add_single

    back = others - lanes

    @always(clk.posedge)
    def add() -> None:
        for lane in range(lanes):
            if valid:
                if fresh:
                    totals[lane].next = values[lane]
                else:
                    totals[lane].next = ring[back + lane] + values[lane]

    @always(clk.posedge)
    def turn() -> None:
        if valid:
            for lane in range(lanes):
                ring[lane].next = totals[lane]
            for slot in range(back):
                ring[lanes + slot].next = ring[slot]

    return add, turn


@block
def memory_sums(
    domain: ClockReset,
    early: Bit,
    valid: Bit,
    fresh: Bit,
    values: Sequence[Bits],
    totals: Sequence[Bits],
    *,
    groups: int,
) -> Instances:
    """`channel_sums` in a memory.

    Ports:
        early: in, 1 bit, 2 cycles before ``valid``.
        valid, fresh, values: in, as of `ring_sums`.
        totals: out, as of `ring_sums`.
    """
    lanes, bits = len(values), len(totals[0])
    word, total = (Signal(intbv(0)[lanes * bits :]) for _ in range(2))
    write = Signal(bool(0))
    place, write_at = (Signal(intbv(0)[address_width(groups) :]) for _ in range(2))
    counting = counter(domain, early, place, count=groups)
    store = simple_dual_port(
        domain.clk, write, write_at, total, early, place, word, depth=groups, width=lanes * bits, output_register=True
    )
    wait = delay_vector(domain.clk, place, write_at, cycles=3)
    join = join_lanes(totals, total)

    @always(domain.clk.posedge)
    def add() -> None:
        old = intbv(0, min=-(1 << (bits - 1)), max=1 << (bits - 1))
        write.next = valid
        if valid:
            for lane in range(lanes):
                old[:] = word[bits_of(lane, bits)].signed()
                if fresh:
                    totals[lane].next = values[lane]
                else:
                    totals[lane].next = old + values[lane]

    return store, wait, join, counting, add


def mean_bits(sum_bits: int, mean: Mean) -> int:
    """Bits of a sum of ``sum_bits`` bits, shifted, as its reciprocal multiplies it."""
    return max(sum_bits - mean.pre, 2) + 1


def mean_scalar(mean: Mean) -> Scalar:
    """What a shifted sum is multiplied by."""
    return Scalar(1, 0) if mean.is_shift else Scalar(mean.reciprocal, RECIPROCAL_BITS)


@block
def mean_lanes(
    clk: Clock, sums: Sequence[Bits], means: Sequence[Bits], *, mean: Mean, ready: Bit | None = None
) -> Instances:
    """`Mean.of` on each lane, `MEAN_LATENCY` cycles.

    Ports:
        sums: in, signed signals of one width.
        means: out, signed signals wide enough for every mean, `MEAN_LATENCY` cycles later.
        ready: in, as of `hdl.engine.arithmetic.lanes.multiply_constant`.
    """
    shifted = signed_lanes(len(sums), mean_bits(len(sums[0]), mean))
    first = round_lanes(clk, sums, shifted, shift=mean.pre)
    second = scale_rounded(clk, shifted, means, scalar=mean_scalar(mean), ready=ready)
    return first, second


@block
def part_sums(sums: Stream, parts: Stream, *, lanes: int, chosen: int, widths: tuple[int, int]) -> Instances:
    """A word of sums of ``lanes`` lanes as words of ``chosen`` ones, one above the other; combinational.

    Ports:
        sums: in, stream of ``lanes`` numbers of the first width and above them as many of the second.
        parts: out, stream as wide: for every ``chosen`` lanes the same.
    """
    low, high = (chosen * width for width in widths)
    both, above = low + high, lanes * widths[0]
    count = lanes // chosen

    @always_comb
    def part() -> None:
        for index in range(count):
            parts.payload.next[index * both + low : index * both] = sums.payload[index * low + low : index * low]
            parts.payload.next[index * both + both : index * both + low] = sums.payload[
                above + index * high + high : above + index * high
            ]

    @always_comb
    def handshake() -> None:
        parts.valid.next = sums.valid
        sums.ready.next = parts.ready

    return part, handshake
