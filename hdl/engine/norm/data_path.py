"""The data path of the forward circuit: x to the normalised map, y and the sums of a frame."""

from __future__ import annotations

from myhdl import Signal, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import (
    add_lanes,
    delay_vector,
    join_lanes,
    multiply_lanes,
    round_lanes,
    signed_lanes,
    split_lanes,
    split_word,
    subtract_lanes,
)
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line, requantise_lanes
from hdl.engine.norm.bundles import Beat, ForwardRoom
from hdl.engine.norm.numbers import NORMAL
from hdl.engine.norm.shapes import NORMAL_AT, RESULTS, X_AT, Y_AT, ForwardShape, sum_widths
from hdl.engine.norm.sums import channel_sums
from hdl.signals import Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import queue


@block
def data_path(
    domain: ClockReset,
    x: Bits,
    line: Bits,
    pair: Bits,
    beat: Beat,
    y: Stream,
    normal: Stream,
    inverse: Stream,
    room: ForwardRoom,
    *,
    shape: ForwardShape,
) -> Instances:
    """n = (x - centre) * inverse, y = gamma n + beta, each into its queue.

    Ports:
        x: in, ``lanes`` codes of ``shape.numbers.x``, as a beat is accepted.
        line: in, ``lanes`` codes of ``shape.numbers.inverse`` and above them ``lanes`` of ``shape.numbers.centre``,
            2 cycles later.
        pair: in, ``lanes`` codes of ``shape.beta`` and above them ``lanes`` of ``shape.gamma``, 3 cycles later.
        beat: in; takes ``fire``, ``first_pixel``.
        y: out, stream of ``lanes`` codes of ``shape.y``, from a queue that takes them `Y_AT` cycles later.
        normal: out, stream of ``lanes`` codes of `NORMAL`, from a queue that takes them `NORMAL_AT` cycles later.
        inverse: out, stream of ``lanes`` codes of ``shape.numbers.inverse``, from a queue that takes those of a frame's
            first pixel 2 cycles later.
        room: out, all of it but ``sums``.
    """
    numbers, lanes = shape.numbers, shape.lanes
    xs, twice = signed_lanes(lanes, numbers.x.width), signed_lanes(lanes, numbers.x.width + 1)
    centres, inverses = signed_lanes(lanes, numbers.centre.width), signed_lanes(lanes, numbers.inverse.width + 1)
    away = signed_lanes(lanes, numbers.x.width + 2)
    products = signed_lanes(lanes, numbers.x.width + 2 + numbers.inverse.width)
    ys, normals, inverse_words = Stream(y.width), Stream(normal.width), Stream(inverse.width)
    split_x = split_word(domain.clk, x, xs, width=numbers.x.width, signed=True, base=0, cycles=X_AT - 1)
    double = round_lanes(domain.clk, xs, twice, shift=-1)
    inverse_bits = lanes * numbers.inverse.width
    split_centre = split_lanes(domain.clk, line, centres, width=numbers.centre.width, base=inverse_bits)
    split_inverse = split_word(domain.clk, line, inverses, width=numbers.inverse.width, signed=False, base=0, cycles=2)
    centre = subtract_lanes(domain.clk, twice, centres, away)
    multiply = multiply_lanes(domain.clk, away, inverses, products)
    shift = numbers.centre.fraction_bits + numbers.inverse.fraction_bits - NORMAL.fraction_bits
    rounding = requantise_lanes(domain.clk, products, normals.payload, shift=shift, target=NORMAL)
    affine = scale_and_shift(domain.clk, normals.payload, pair, ys.payload, shape=shape)
    reserve_inverse = Signal(bool(0))
    # all inverses of a frame come with its first pixel and may leave as slowly as the frame
    inverse_depth = max(RESULTS, shape.groups)
    marks = [
        delay_line(domain.clk, beat.fire, ys.valid, cycles=Y_AT),
        delay_line(domain.clk, beat.fire, normals.valid, cycles=NORMAL_AT),
        delay_line(domain.clk, reserve_inverse, inverse_words.valid, cycles=2),
    ]
    queues = [
        queue(domain, ys, y, depth=RESULTS),
        queue(domain, normals, normal, depth=RESULTS),
        queue(domain, inverse_words, inverse, depth=inverse_depth),
    ]
    places = [
        result_places(domain, beat.fire, y, room.y, places=RESULTS),
        result_places(domain, beat.fire, normal, room.normal, places=RESULTS),
        result_places(domain, reserve_inverse, inverse, room.inverse, places=inverse_depth),
    ]

    @always_comb
    def take_inverse() -> None:
        reserve_inverse.next = beat.fire and beat.first_pixel
        inverse_words.payload.next = line[inverse_bits:]

    return (
        split_x,
        double,
        split_centre,
        split_inverse,
        centre,
        multiply,
        rounding,
        affine,
        marks,
        queues,
        places,
        take_inverse,
    )


@block
def scale_and_shift(clk: Clock, normal: Bits, pair: Bits, y: Bits, *, shape: ForwardShape) -> Instances:
    """``y = gamma * normal + beta`` from `NORMAL_AT` to `Y_AT`.

    Ports:
        normal: in, ``lanes`` codes of `NORMAL`, `NORMAL_AT` cycles after a beat is accepted.
        pair: in, ``lanes`` codes of ``shape.beta`` and above them ``lanes`` of ``shape.gamma``, 3 cycles after it.
        y: out, ``lanes`` codes of ``shape.y``, `Y_AT` cycles after it.
    """
    lanes = shape.lanes
    product_width, width = shape.gamma.width + NORMAL.width, shape.sum_width
    normals, gammas = signed_lanes(lanes, NORMAL.width), signed_lanes(lanes, shape.gamma.width)
    betas, aligned = signed_lanes(lanes, shape.beta.width), signed_lanes(lanes, width)
    products, sums = signed_lanes(lanes, product_width), signed_lanes(lanes, width)
    base = lanes * shape.beta.width
    split = split_lanes(clk, normal, normals, width=NORMAL.width)
    wait = NORMAL_AT + 1 - 3
    split_gamma = split_word(clk, pair, gammas, width=shape.gamma.width, signed=True, base=base, cycles=wait)
    split_beta = split_word(clk, pair, betas, width=shape.beta.width, signed=True, base=0, cycles=wait)
    multiply = multiply_lanes(clk, normals, gammas, products)
    align = round_lanes(clk, betas, aligned, shift=shape.beta.fraction_bits - shape.sum_bits)
    add = add_lanes(clk, products, aligned, sums, a_shift=shape.sum_bits - shape.scaled_bits)
    rounding = requantise_lanes(clk, sums, y, shift=shape.sum_bits - shape.y.fraction_bits, target=shape.y)
    return split, split_gamma, split_beta, multiply, align, add, rounding


@block
def data_sums(domain: ClockReset, x: Bits, beat: Beat, made: Stream, *, shape: ForwardShape) -> Instances:
    """Sums of x (low bits) and of x squared of a frame, by group, at `SUMS_AT`.

    Ports:
        x: in, ``lanes`` codes of ``shape.numbers.x``, as a beat is accepted.
        beat: in, all of it but ``group``.
        made: out, stream of ``lanes`` sums of x and above them ``lanes`` of x squared, as wide as `sum_widths` says,
            `SUMS_AT` cycles after a group's last beat; must be ready.
    """
    width, lanes = shape.numbers.x.width, shape.lanes
    sum_bits, square_bits = sum_widths(shape)
    early, first, last, complete, same = (Signal(bool(0)) for _ in range(5))
    xs, values = signed_lanes(lanes, width), signed_lanes(lanes, width)
    squares = signed_lanes(lanes, 2 * width)
    sums, square_sums = signed_lanes(lanes, sum_bits), signed_lanes(lanes, square_bits)
    low, high = Signal(intbv(0)[lanes * sum_bits :]), Signal(intbv(0)[lanes * square_bits :])
    split = split_word(domain.clk, x, xs, width=width, signed=True, base=0, cycles=2)
    hold = round_lanes(domain.clk, xs, values, shift=0)
    multiply = multiply_lanes(domain.clk, xs, xs, squares)
    waits = [
        delay_vector(domain.clk, beat.fire, early, cycles=1),
        delay_vector(domain.clk, beat.first_pixel, first, cycles=1),
        delay_vector(domain.clk, beat.last_pixel, last, cycles=1),
    ]
    add = channel_sums(domain, early, first, last, values, sums, complete, groups=shape.groups)
    add_squares = channel_sums(domain, early, first, last, squares, square_sums, same, groups=shape.groups)
    join_low, join_high = join_lanes(sums, low), join_lanes(square_sums, high)

    @always_comb
    def out() -> None:
        made.valid.next = complete
        made.payload.next = concat(high, low)

    return split, hold, multiply, waits, add, add_squares, join_low, join_high, out
