"""The data path of the forward circuit: x to the normalised map, y and the sums of a frame."""

from __future__ import annotations

from typing import Any

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
from hdl.engine.norm.numbers import NORMAL
from hdl.engine.norm.shapes import NORMAL_AT, RESULTS, X_AT, Y_AT, ForwardShape, sum_widths
from hdl.engine.norm.sums import channel_sums
from hdl.stream import Stream
from hdl.streams import queue


@block
def data_path(
    clk: Any,
    x: Stream,
    line: Any,
    pair: Any,
    fire: Any,
    first_pixel: Any,
    y: Stream,
    normal: Stream,
    inverse: Stream,
    rst: Any,
    may: Any,
    shape: ForwardShape,
) -> Any:
    """n = (x - centre) * inverse, y = gamma n + beta, each into its queue."""
    numbers, lanes = shape.numbers, shape.lanes
    xs, twice = signed_lanes(lanes, numbers.x.width), signed_lanes(lanes, numbers.x.width + 1)
    centres, inverses = signed_lanes(lanes, numbers.centre.width), signed_lanes(lanes, numbers.inverse.width + 1)
    away = signed_lanes(lanes, numbers.x.width + 2)
    products = signed_lanes(lanes, numbers.x.width + 2 + numbers.inverse.width)
    ys, normals, inverse_words = Stream(y.width), Stream(normal.width), Stream(inverse.width)
    split_x = split_word(clk, x.payload, xs, width=numbers.x.width, signed=True, base=0, cycles=X_AT - 1)
    double = round_lanes(clk, xs, twice, shift=-1)
    inverse_bits = lanes * numbers.inverse.width
    split_centre = split_lanes(clk, line, centres, width=numbers.centre.width, base=inverse_bits)
    split_inverse = split_word(clk, line, inverses, width=numbers.inverse.width, signed=False, base=0, cycles=2)
    centre = subtract_lanes(clk, twice, centres, away)
    multiply = multiply_lanes(clk, away, inverses, products)
    shift = numbers.centre.fraction_bits + numbers.inverse.fraction_bits - NORMAL.fraction_bits
    rounding = requantise_lanes(clk, products, normals.payload, shift=shift, target=NORMAL)
    affine = scale_and_shift(clk, normals.payload, pair, ys.payload, shape)
    reserve_inverse = Signal(bool(0))
    # all inverses of a frame come with its first pixel and may leave as slowly as the frame
    inverse_depth = max(RESULTS, shape.groups)
    marks = [
        delay_line(clk, fire, ys.valid, cycles=Y_AT),
        delay_line(clk, fire, normals.valid, cycles=NORMAL_AT),
        delay_line(clk, reserve_inverse, inverse_words.valid, cycles=2),
    ]
    queues = [
        queue(clk, rst, ys, y, depth=RESULTS),
        queue(clk, rst, normals, normal, depth=RESULTS),
        queue(clk, rst, inverse_words, inverse, depth=inverse_depth),
    ]
    places = [
        result_places(clk, rst, fire, y, may[0], places=RESULTS),
        result_places(clk, rst, fire, normal, may[1], places=RESULTS),
        result_places(clk, rst, reserve_inverse, inverse, may[2], places=inverse_depth),
    ]

    @always_comb
    def take_inverse() -> None:
        reserve_inverse.next = fire and first_pixel
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
def scale_and_shift(clk: Any, normal: Any, pair: Any, y: Any, shape: ForwardShape) -> Any:
    """``y = gamma * normal + beta`` from `NORMAL_AT` to `Y_AT`."""
    lanes = shape.lanes
    scaled_bits = shape.gamma.fraction_bits + NORMAL.fraction_bits
    product_width = shape.gamma.width + NORMAL.width
    width = max(product_width, shape.beta.width + scaled_bits - shape.beta.fraction_bits) + 1
    normals, gammas = signed_lanes(lanes, NORMAL.width), signed_lanes(lanes, shape.gamma.width)
    betas, aligned = signed_lanes(lanes, shape.beta.width), signed_lanes(lanes, width)
    products, sums = signed_lanes(lanes, product_width), signed_lanes(lanes, width)
    base = lanes * shape.beta.width
    split = split_lanes(clk, normal, normals, width=NORMAL.width)
    wait = NORMAL_AT + 1 - 3
    split_gamma = split_word(clk, pair, gammas, width=shape.gamma.width, signed=True, base=base, cycles=wait)
    split_beta = split_word(clk, pair, betas, width=shape.beta.width, signed=True, base=0, cycles=wait)
    multiply = multiply_lanes(clk, normals, gammas, products)
    align = round_lanes(clk, betas, aligned, shift=shape.beta.fraction_bits - scaled_bits)
    add = add_lanes(clk, products, aligned, sums)
    rounding = requantise_lanes(clk, sums, y, shift=scaled_bits - shape.y.fraction_bits, target=shape.y)
    return split, split_gamma, split_beta, multiply, align, add, rounding


@block
def data_sums(
    clk: Any, rst: Any, x: Stream, fire: Any, first_pixel: Any, last_pixel: Any, made: Stream, shape: ForwardShape
) -> Any:
    """Sums of x (low bits) and of x squared of a frame, by group, at `SUMS_AT`."""
    width, lanes = shape.numbers.x.width, shape.lanes
    sum_bits, square_bits = sum_widths(shape)
    early, first, last, complete, same = (Signal(bool(0)) for _ in range(5))
    xs, values = signed_lanes(lanes, width), signed_lanes(lanes, width)
    squares = signed_lanes(lanes, 2 * width)
    sums, square_sums = signed_lanes(lanes, sum_bits), signed_lanes(lanes, square_bits)
    low, high = Signal(intbv(0)[lanes * sum_bits :]), Signal(intbv(0)[lanes * square_bits :])
    split = split_word(clk, x.payload, xs, width=width, signed=True, base=0, cycles=2)
    hold = round_lanes(clk, xs, values, shift=0)
    multiply = multiply_lanes(clk, xs, xs, squares)
    waits = [
        delay_vector(clk, fire, early, cycles=1),
        delay_vector(clk, first_pixel, first, cycles=1),
        delay_vector(clk, last_pixel, last, cycles=1),
    ]
    add = channel_sums(clk, rst, early, first, last, values, sums, complete, groups=shape.groups)
    add_squares = channel_sums(clk, rst, early, first, last, squares, square_sums, same, groups=shape.groups)
    join_low, join_high = join_lanes(sums, low), join_lanes(square_sums, high)

    @always_comb
    def out() -> None:
        made.valid.next = complete
        made.payload.next = concat(high, low)

    return split, hold, multiply, waits, add, add_squares, join_low, join_high, out
