"""The step of the running mean and variance, once a frame and channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from myhdl import Signal, always, block, intbv

from hdl.engine.arithmetic.lanes import (
    WIDE_SCALE_LATENCY,
    add_lanes,
    join_lanes,
    round_lanes,
    scale_lanes,
    scale_rounded,
    signed_lanes,
    split_lanes,
    subtract_lanes,
)
from hdl.engine.arithmetic.requantise import delay_line
from hdl.engine.arithmetic.serial import serial_square, unsigned_lanes, whole_square
from hdl.engine.norm.numbers import SQUARE_GUARD
from hdl.engine.norm.shapes import SQUARES_AT, ForwardShape, square_bits, sum_widths
from hdl.engine.norm.sums import mean_lanes
from hdl.engine.weights.sections import MemoryAccess, accessed_dual_port
from hdl.memory import simple_dual_port
from hdl.signals import Bit, Bits, Clock, Instances


@block
def new_statistics(
    clk: Clock,
    start: Bit,
    settled: Bit,
    place: Bits,
    word: Bits,
    new_means: Sequence[Bits],
    new_variances: Sequence[Bits],
    ready: Bit | None,
    *,
    shape: ForwardShape,
    contents: Mapping[str, Sequence[int]],
    access: Mapping[str, MemoryAccess] | None = None,
) -> Instances:
    """`ForwardNumbers.step` on a held word of sums; its memories are read after ``start``, written with ``settled``.

    Ports:
        start: in, 1 bit: ``place`` and ``word`` come with the next cycle.
        settled: in, 1 bit, ``shape.statistics_at`` cycles after ``start``: what is new is written at this edge.
        place: in, `address_width` ``(shape.groups)`` bits: the group, from ``start`` to ``settled``.
        word: in, sums as `data_sums` makes them, from ``start`` to ``settled``.
        new_means: out, signed codes of ``shape.numbers.mean``, with ``settled``.
        new_variances: out, unsigned codes of ``shape.numbers.variance``, with ``settled``.
        ready: in, as of `hdl.engine.arithmetic.lanes.multiply_constant`.
        access: in and out, of mean and variance; or None.
    """
    ways = access or {}
    numbers, lanes = shape.numbers, shape.lanes
    sum_bits, square_bits = sum_widths(shape)
    mean_bits, variance_bits = numbers.mean.width, numbers.variance.width
    read, squaring = Signal(bool(0)), Signal(bool(0))
    old_mean, new_mean = (Signal(intbv(0)[lanes * mean_bits :]) for _ in range(2))
    old_variance, new_variance = (Signal(intbv(0)[lanes * variance_bits :]) for _ in range(2))
    memories = [
        state_words(
            clk,
            read,
            settled,
            place,
            old_mean,
            new_mean,
            ways.get("mean"),
            depth=shape.groups,
            contents=contents.get("mean"),
            public="mean",
        ),
        state_words(
            clk,
            read,
            settled,
            place,
            old_variance,
            new_variance,
            ways.get("variance"),
            depth=shape.groups,
            contents=contents.get("variance"),
            public="variance",
        ),
    ]
    pulses = [delay_line(clk, start, read, cycles=1), delay_line(clk, start, squaring, cycles=SQUARES_AT)]
    sums, square_sums = signed_lanes(lanes, sum_bits), signed_lanes(lanes, square_bits)
    means, variances = signed_lanes(lanes, mean_bits), signed_lanes(lanes, variance_bits + 1)
    splits = [
        split_lanes(clk, word, sums, width=sum_bits),
        split_lanes(clk, word, square_sums, width=square_bits, base=lanes * sum_bits),
        split_lanes(clk, old_mean, means, width=mean_bits),
        split_lanes(clk, old_variance, variances, width=variance_bits, signed=False),
    ]
    now, away = signed_lanes(lanes, mean_bits + 1), signed_lanes(lanes, mean_bits + 2)
    moved, square_means = signed_lanes(lanes, mean_bits + 2), signed_lanes(lanes, variance_bits + 2)
    mean_path = [
        mean_lanes(clk, sums, now, mean=numbers.mean_of_x, ready=ready),
        mean_lanes(clk, square_sums, square_means, mean=numbers.mean_of_square, ready=ready),
        subtract_lanes(clk, now, means, away),
        scale_rounded(clk, away, moved, scalar=numbers.fresh, ready=ready),
        add_lanes(clk, means, moved, new_means),
    ]
    variance_path = new_variances_of(
        clk, squaring, now, away, square_means, variances, new_variances, ready, shape=shape
    )
    joins = [join_lanes(new_means, new_mean), join_lanes(new_variances, new_variance)]
    return memories, pulses, splits, mean_path, variance_path, joins


@block
def state_words(
    clk: Clock,
    read: Bit,
    write: Bit,
    place: Bits,
    old: Bits,
    new: Bits,
    access: MemoryAccess | None = None,
    *,
    depth: int,
    contents: Sequence[int] | None,
    public: str,
) -> Instances:
    """A memory of one word a group, read and written at the same place; its image is named ``public``.

    Ports:
        read: in, 1 bit: the word is read at this edge.
        write: in, 1 bit: the word is written at this edge.
        place: in, `address_width` ``(depth)`` bits, with ``read`` and with ``write``.
        old: out, of any width, 2 cycles after ``read``.
        new: in, as wide as ``old``, with ``write``.
        access: in and out, a second way to it; or None.
    """
    if access is not None:
        return accessed_dual_port(
            clk, write, place, new, read, place, old, access, depth=depth, contents=contents, public=public
        )
    return simple_dual_port(
        clk,
        write,
        place,
        new,
        read,
        place,
        old,
        depth=depth,
        width=len(old),
        contents=contents,
        output_register=True,
        image=public,
    )


@block
def new_variances_of(
    clk: Clock,
    squaring: Bit,
    now: Sequence[Bits],
    away: Sequence[Bits],
    square_means: Sequence[Bits],
    variances: Sequence[Bits],
    new_variances: Sequence[Bits],
    ready: Bit | None,
    *,
    shape: ForwardShape,
) -> Instances:
    """The variance's part of `ForwardNumbers.step`.

    Ports:
        squaring: in, 1 bit, `SQUARES_AT` cycles after a group's start.
        now, away: in, the frame's means and their distances from the running ones, signed, 1 and 2 bits wider than
            ``shape.numbers.mean``; 1 cycle before ``squaring`` at the latest, held.
        square_means: in, means of x squared, signed, 2 bits wider than ``shape.numbers.variance``; held.
        variances: in, the running ones, signed, 1 bit wider than ``shape.numbers.variance``; held.
        new_variances: out, unsigned codes of ``shape.numbers.variance``, ``shape.statistics_at`` cycles after the
            group's start.
        ready: in, as of `hdl.engine.arithmetic.lanes.multiply_constant`.
    """
    numbers, lanes, size = shape.numbers, shape.lanes, shape.square_bits
    short_now, short_away = signed_lanes(lanes, size + 1), signed_lanes(lanes, size + 1)
    now_squares, away_squares = unsigned_lanes(lanes, 2 * size), unsigned_lanes(lanes, 2 * size)
    # of sums of three squares
    bits = square_bits(shape)
    squares, distances = signed_lanes(lanes, bits), signed_lanes(lanes, bits)
    raw, within, kept, part, change, growth, grown = (signed_lanes(lanes, bits + 2) for _ in range(7))
    ceiling = numbers.variance.high - numbers.epsilon_code
    square = serial_square if ready is None else whole_square
    return [
        round_lanes(clk, now, short_now, shift=numbers.square_shift),
        round_lanes(clk, away, short_away, shift=numbers.square_shift),
        square(clk, squaring, short_now, now_squares, bits=size),
        square(clk, squaring, short_away, away_squares, bits=size),
        round_lanes(clk, now_squares, squares, shift=SQUARE_GUARD),
        round_lanes(clk, away_squares, distances, shift=SQUARE_GUARD),
        subtract_lanes(clk, square_means, squares, raw),
        clamp_negative(clk, raw, within),
        scale_lanes(clk, distances, kept, scalar=numbers.kept, cycles=WIDE_SCALE_LATENCY, ready=ready),
        subtract_lanes(clk, within, variances, part),
        add_lanes(clk, part, kept, change),
        scale_rounded(clk, change, growth, scalar=numbers.fresh, ready=ready),
        add_lanes(clk, variances, growth, grown),
        limit_lanes(clk, grown, new_variances, ceiling=ceiling),
    ]


@block
def clamp_negative(clk: Clock, a: Sequence[Bits], b: Sequence[Bits]) -> Instances:
    """``b = max(a, 0)``, one cycle.

    Ports:
        a: in, signed signals of any width.
        b: out, signed signals as wide, 1 cycle later.
    """
    count = len(a)

    @always(clk.posedge)
    def clamp() -> None:
        for lane in range(count):
            if a[lane] < 0:
                b[lane].next = 0
            else:
                b[lane].next = a[lane]

    return clamp


@block
def limit_lanes(clk: Clock, a: Sequence[Bits], b: Sequence[Bits], *, ceiling: int) -> Instances:
    """``b = min(a, ceiling)`` for numbers that aren't negative once they have settled; one cycle.

    Ports:
        a: in, signed signals of any width.
        b: out, unsigned signals wide enough for ``ceiling``, 1 cycle later.
    """
    count, wide, bits = len(a), len(a[0]), len(b[0])

    @always(clk.posedge)
    def limit() -> None:
        number = intbv(0)[wide:]
        most = intbv(0)[wide:]
        most[:] = intbv(ceiling)[wide:]
        for lane in range(count):
            number[:] = a[lane][wide:]
            if number > most:
                number[:] = most
            b[lane].next = number[bits:]

    return limit
