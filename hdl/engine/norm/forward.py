"""The circuit of `hdl.layers.norm.online_norm.OnlineNorm`.

A data path of one beat a cycle multiplies by what stands in the table; sums of each channel leave it with the last
pixel of a frame and wait in a queue for the sequential unit, which advances the statistics and writes the table for
the frame after next (lag 1).  The data path runs freely: a beat enters only when there is room for all its results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import (
    WIDE_SCALE_LATENCY,
    add_lanes,
    delay_vector,
    join_lanes,
    multiply_lanes,
    round_lanes,
    scale_lanes,
    scale_rounded,
    signed_lanes,
    split_lanes,
    subtract_lanes,
)
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line, requantise_lanes
from hdl.engine.arithmetic.serial import (
    reciprocal_latency,
    root_latency,
    serial_reciprocal,
    serial_root,
    serial_square,
    square_latency,
    unsigned_lanes,
)
from hdl.engine.norm.common import (
    MEAN_LATENCY,
    beat_counter,
    channel_sums,
    frame_gate,
    line_table,
    mean_lanes,
    shortest_frame,
    split_word,
)
from hdl.engine.norm.numbers import NORMAL, ROOT_EXTRA, SQUARE_GUARD, ForwardNumbers
from hdl.engine.weights.buffer import weight_buffer
from hdl.fixed import Fixed
from hdl.memory import address_width, simple_dual_port
from hdl.recipe import Recipe
from hdl.stream import Stream
from hdl.streams import join, queue, queue_latency, width_adapter

# beats that may be on their way; more than the latency of data path and queue, so that it never limits the rate
RESULTS = 32
# cycles, counted from that in which a beat is accepted, in which a signal shows what belongs to it
X_AT = 3
NORMAL_AT = 7
Y_AT = 12
# from the last beat's acceptance to its sums in the queue
SUMS_AT = 4
# the same counted from the start of the sequential unit on a group
SQUARES_AT = MEAN_LATENCY + 4


@dataclass(frozen=True)
class ForwardShape:
    """Everything that the circuit is built from."""

    numbers: ForwardNumbers
    recipe: Recipe
    groups: int
    # channels a cycle
    lanes: int
    # cycles between beats of the data path, as the ports deliver them
    beat_cycles: int
    gamma: Fixed
    beta: Fixed
    y: Fixed

    @property
    def square_bits(self) -> int:
        """Even bits of the magnitudes that are squared once a frame."""
        return (self.numbers.x.width + 11) // 2 * 2

    @property
    def statistics_at(self) -> int:
        """When the new statistics of a group stand."""
        return SQUARES_AT + square_latency(self.square_bits) + 2 * WIDE_SCALE_LATENCY + 4

    @property
    def root_at(self) -> int:
        """When the root is there."""
        return self.statistics_at + 1 + root_latency(self.numbers.root_bits)

    @property
    def table_at(self) -> int:
        """When a group's line of the table is written."""
        return self.root_at + reciprocal_latency(self.numbers.inverse.width)

    @property
    def cycles_a_group(self) -> int:
        """Cycles between groups in the sequential unit: its three parts work on different groups."""
        root = root_latency(self.numbers.root_bits)
        return max(self.statistics_at + 1, root + 1, reciprocal_latency(self.numbers.inverse.width) + 1)

    @property
    def beats(self) -> int:
        """Beats a frame."""
        return self.numbers.pixels * self.groups

    @property
    def cycles(self) -> int:
        """Cycles a frame."""
        loop = math.ceil(self.loop_cycles / (self.recipe.norm_lag + 1))
        return max(shortest_frame(self.beats), self.groups * self.cycles_a_group, loop)

    @property
    def sums_depth(self) -> int:
        """Places of the queue of sums."""
        return max(4, self.groups)

    @property
    def loop_cycles(self) -> int:
        """From the first beat of a frame, unstalled, to the first beat of the frame that uses its statistics."""
        flow = (self.numbers.pixels - 1) * self.groups * self.beat_cycles
        first_sum = flow + SUMS_AT + queue_latency(self.sums_depth)
        return first_sum + (self.groups - 1) * max(self.cycles_a_group, self.beat_cycles) + self.table_at + 2


@block
def norm_forward(
    clk: Any,
    rst: Any,
    x: Stream,
    gamma: Stream,
    beta: Stream,
    y: Stream,
    normal: Stream,
    inverse: Stream,
    *,
    shape: ForwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Any:
    """Rates as `OnlineNorm.cycles_per_frame` says; latency `Y_AT` cycles and a queue.

    Costs three multipliers a lane, two large serial dividers a lane, and memories of a few words a channel."""
    contents = images or {}
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    xs, ys, normals, inverses = (Stream(lanes * fixed.width) for fixed in (numbers.x, shape.y, NORMAL, numbers.inverse))
    adapters = [
        width_adapter(clk, rst, x, xs, element_bits=numbers.x.width),
        width_adapter(clk, rst, ys, y, element_bits=shape.y.width),
        width_adapter(clk, rst, normals, normal, element_bits=NORMAL.width),
        width_adapter(clk, rst, inverses, inverse, element_bits=numbers.inverse.width),
    ]
    fire, first_pixel, last_pixel, done = (Signal(bool(0)) for _ in range(4))
    group = Signal(intbv(0, min=0, max=max(2, groups)))
    pair = Signal(intbv(0)[lanes * (shape.gamma.width + shape.beta.width) :])
    line = Signal(intbv(0)[lanes * (numbers.centre.width + numbers.inverse.width) :])
    write = Signal(bool(0))
    write_group = Signal(intbv(0)[address_width(groups) :])
    write_line = Signal(intbv(0)[len(line) :])
    sum_bits = sum_widths(shape)
    sums_made, sums = Stream(lanes * sum(sum_bits)), Stream(lanes * sum(sum_bits))
    may = [Signal(bool(0)) for _ in range(4)]

    begin = frames(clk, rst, xs, gamma, beta, done, may, fire, group, first_pixel, last_pixel, pair, shape, contents)
    table = line_table(
        clk, rst, fire, group, last_pixel, line, write, write_group, write_line, shape, contents.get("table")
    )
    path = data_path(clk, xs, line, pair, fire, first_pixel, ys, normals, inverses, rst, may, shape)
    add = data_sums(clk, rst, xs, fire, first_pixel, last_pixel, sums_made, shape)
    hold = queue(clk, rst, sums_made, sums, depth=shape.sums_depth)
    reserve = Signal(bool(0))
    places = result_places(clk, rst, reserve, sums, may[3], places=shape.sums_depth)
    statistics = sequential_unit(clk, rst, sums, write, write_group, write_line, done, shape, contents)

    @always_comb
    def reserve_sums() -> None:
        reserve.next = fire and last_pixel

    return adapters, begin, table, path, add, hold, places, statistics, reserve_sums


def sum_widths(shape: ForwardShape) -> tuple[int, int]:
    """Bits of a frame's sums of x and of its square."""
    growth = (shape.numbers.pixels - 1).bit_length()
    return shape.numbers.x.width + growth, 2 * shape.numbers.x.width + growth


@block
def frames(
    clk: Any,
    rst: Any,
    x: Stream,
    gamma: Stream,
    beta: Stream,
    done: Any,
    may: Any,
    fire: Any,
    group: Any,
    first_pixel: Any,
    last_pixel: Any,
    pair: Any,
    shape: ForwardShape,
    contents: Mapping[str, Sequence[int]],
) -> Any:
    """Accepts beats of ``x`` and reads scale and shift (``pair``, beta in the low bits) for them.

    Args:
        may: room for y, for the normalised map, for inverses, for sums.
    """
    groups, last_group = shape.groups, shape.groups - 1
    permit, claim, claimable, start, finish, frame_last, ready = (Signal(bool(0)) for _ in range(7))
    gammas = Stream(shape.lanes * shape.gamma.width)
    betas = Stream(shape.lanes * shape.beta.width)
    pairs = Stream(gammas.width + betas.width)
    place = Signal(intbv(0)[address_width(groups) :])
    adapt_gamma = width_adapter(clk, rst, gamma, gammas, element_bits=shape.gamma.width)
    adapt_beta = width_adapter(clk, rst, beta, betas, element_bits=shape.beta.width)
    meet = join(clk, rst, [betas, gammas], pairs)
    versions = weight_buffer(
        clk,
        rst,
        pairs,
        claim,
        claimable,
        fire,
        place,
        frame_last,
        pair,
        words=groups,
        recipe=shape.recipe,
        contents=contents.get("weights"),
    )
    gate = frame_gate(
        clk,
        rst,
        claimable,
        done,
        start,
        claim,
        permit,
        finish,
        credits=shape.recipe.norm_lag + 1,
        spacing=shape.cycles,
        beats=shape.beats,
    )
    counter = beat_counter(clk, rst, fire, group, first_pixel, last_pixel, pixels=shape.numbers.pixels, groups=groups)
    may_y, may_normal, may_inverse, may_sums = may

    @always_comb
    def decide() -> None:
        ready.next = (
            may_y
            and may_normal
            and (may_inverse or not first_pixel)
            and (may_sums or not last_pixel)
            and (permit or not first_pixel or group != 0)
        )

    @always_comb
    def handshake() -> None:
        x.ready.next = ready
        fire.next = ready and x.valid
        start.next = ready and x.valid and first_pixel and group == 0
        finish.next = ready and x.valid and last_pixel and group == last_group
        frame_last.next = last_pixel and group == last_group
        place.next = group

    return adapt_gamma, adapt_beta, meet, versions, gate, counter, decide, handshake


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


@block
def sequential_unit(
    clk: Any,
    rst: Any,
    sums: Stream,
    write: Any,
    write_group: Any,
    write_line: Any,
    done: Any,
    shape: ForwardShape,
    contents: Mapping[str, Sequence[int]],
) -> Any:
    """Advances the statistics of a group every `ForwardShape.cycles_a_group` cycles and writes its line of the table.

    Three parts in a row, each on a group of its own: statistics, root, reciprocal.  What a part works on is held, so
    nothing in it need be aligned."""
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    start, settled, rooted = (Signal(bool(0)) for _ in range(3))
    load_root = Signal(bool(0))
    place = Signal(intbv(0)[address_width(groups) :])
    word = Signal(intbv(0)[sums.width :])
    means, variances = signed_lanes(lanes, numbers.mean.width), unsigned_lanes(lanes, numbers.variance.width)
    control = sequence(clk, rst, sums, start, place, word, groups=groups, spacing=shape.cycles_a_group)
    advance = new_statistics(clk, start, settled, place, word, means, variances, shape, contents)
    pulses = [
        delay_line(clk, start, settled, cycles=shape.statistics_at),
        delay_line(clk, settled, load_root, cycles=1),
        delay_line(clk, settled, rooted, cycles=shape.root_at - shape.statistics_at),
        delay_line(clk, rooted, write, cycles=shape.table_at - shape.root_at),
    ]
    radicands = unsigned_lanes(lanes, 2 * numbers.root_bits)
    roots, quotients = unsigned_lanes(lanes, numbers.root_bits), unsigned_lanes(lanes, numbers.inverse.width)
    mean_root, mean_table = signed_lanes(lanes, numbers.mean.width), signed_lanes(lanes, numbers.mean.width)
    group_root = Signal(intbv(0)[len(place) :])
    centres = Signal(intbv(0)[lanes * numbers.centre.width :])
    inverses = Signal(intbv(0)[lanes * numbers.inverse.width :])
    prepare = root_operands(clk, settled, variances, radicands, numbers=numbers)
    root = serial_root(clk, load_root, radicands, roots, bits=numbers.root_bits)
    divide = serial_reciprocal(clk, rooted, roots, quotients, exponent=numbers.numerator_bits)
    carry = [hold_lanes(clk, settled, means, mean_root), hold_lanes(clk, rooted, mean_root, mean_table)]
    shift = numbers.mean.fraction_bits - numbers.centre.fraction_bits
    centre = requantise_lanes(clk, mean_table, centres, shift=shift, target=numbers.centre)
    collect = join_lanes(quotients, inverses)
    last_group = groups - 1

    @always(clk.posedge)
    def carry_group() -> None:
        if settled:
            group_root.next = place
        if rooted:
            write_group.next = group_root

    @always_comb
    def out() -> None:
        write_line.next = concat(centres, inverses)
        done.next = write and write_group == last_group

    return control, advance, pulses, prepare, root, divide, carry, centre, collect, carry_group, out


@block
def sequence(clk: Any, rst: Any, sums: Stream, start: Any, place: Any, word: Any, *, groups: int, spacing: int) -> Any:
    """Takes a word of sums at most every ``spacing`` cycles, holds it and the number of its group."""
    rest, last_group = spacing - 1, groups - 1
    resting = Signal(intbv(0, min=0, max=rest + 1))
    next_place = Signal(intbv(0)[len(place) :])

    @always_comb
    def handshake() -> None:
        sums.ready.next = resting == 0
        start.next = resting == 0 and sums.valid

    @always(clk.posedge)
    def count() -> None:
        if start:
            resting.next = rest
            word.next = sums.payload
            place.next = next_place
            if next_place == last_group:
                next_place.next = 0
            else:
                next_place.next = next_place + 1
        elif resting != 0:
            resting.next = resting - 1
        if rst:
            resting.next = 0
            next_place.next = 0

    return handshake, count


@block
def new_statistics(
    clk: Any,
    start: Any,
    settled: Any,
    place: Any,
    word: Any,
    new_means: Any,
    new_variances: Any,
    shape: ForwardShape,
    contents: Mapping[str, Sequence[int]],
) -> Any:
    """`ForwardNumbers.step` on a held word of sums; its memories are read after ``start``, written with ``settled``."""
    numbers, lanes = shape.numbers, shape.lanes
    sum_bits, square_bits = sum_widths(shape)
    mean_bits, variance_bits = numbers.mean.width, numbers.variance.width
    read, squaring = Signal(bool(0)), Signal(bool(0))
    old_mean, new_mean = (Signal(intbv(0)[lanes * mean_bits :]) for _ in range(2))
    old_variance, new_variance = (Signal(intbv(0)[lanes * variance_bits :]) for _ in range(2))
    memories = [
        state_words(clk, read, settled, place, old_mean, new_mean, shape.groups, contents.get("mean"), "mean"),
        state_words(
            clk, read, settled, place, old_variance, new_variance, shape.groups, contents.get("variance"), "variance"
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
        mean_lanes(clk, sums, now, mean=numbers.mean_of_x),
        mean_lanes(clk, square_sums, square_means, mean=numbers.mean_of_square),
        subtract_lanes(clk, now, means, away),
        scale_rounded(clk, away, moved, scalar=numbers.fresh),
        add_lanes(clk, means, moved, new_means),
    ]
    variance_path = new_variances_of(clk, squaring, now, away, square_means, variances, new_variances, shape=shape)
    joins = [join_lanes(new_means, new_mean), join_lanes(new_variances, new_variance)]
    return memories, pulses, splits, mean_path, variance_path, joins


@block
def state_words(
    clk: Any, read: Any, write: Any, place: Any, old: Any, new: Any, depth: int, contents: Any, public: str
) -> Any:
    """A memory of one word a group, read and written at the same place."""
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
    clk: Any,
    squaring: Any,
    now: Any,
    away: Any,
    square_means: Any,
    variances: Any,
    new_variances: Any,
    *,
    shape: ForwardShape,
) -> Any:
    """The variance's part of `ForwardNumbers.step`."""
    numbers, lanes, size = shape.numbers, shape.lanes, shape.square_bits
    short_now, short_away = signed_lanes(lanes, size + 1), signed_lanes(lanes, size + 1)
    now_squares, away_squares = unsigned_lanes(lanes, 2 * size), unsigned_lanes(lanes, 2 * size)
    # of a square, with a sign; sums of three such
    bits = 2 * size - SQUARE_GUARD + 2
    squares, distances = signed_lanes(lanes, bits), signed_lanes(lanes, bits)
    raw, within, kept, part, change, growth, grown = (signed_lanes(lanes, bits + 2) for _ in range(7))
    ceiling = numbers.variance.high - numbers.epsilon_code
    return [
        round_lanes(clk, now, short_now, shift=numbers.square_shift),
        round_lanes(clk, away, short_away, shift=numbers.square_shift),
        serial_square(clk, squaring, short_now, now_squares, bits=size),
        serial_square(clk, squaring, short_away, away_squares, bits=size),
        round_lanes(clk, now_squares, squares, shift=SQUARE_GUARD),
        round_lanes(clk, away_squares, distances, shift=SQUARE_GUARD),
        subtract_lanes(clk, square_means, squares, raw),
        clamp_negative(clk, raw, within),
        scale_lanes(clk, distances, kept, scalar=numbers.kept, cycles=WIDE_SCALE_LATENCY),
        subtract_lanes(clk, within, variances, part),
        add_lanes(clk, part, kept, change),
        scale_rounded(clk, change, growth, scalar=numbers.fresh),
        add_lanes(clk, variances, growth, grown),
        limit_lanes(clk, grown, new_variances, ceiling=ceiling),
    ]


@block
def clamp_negative(clk: Any, a: Any, b: Any) -> Any:
    """``b = max(a, 0)``, one cycle."""
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
def limit_lanes(clk: Any, a: Any, b: Any, *, ceiling: int) -> Any:
    """``b = min(a, ceiling)`` for numbers that aren't negative once they have settled; ``b`` is unsigned; one cycle."""
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


@block
def root_operands(clk: Any, take: Any, variances: Any, radicands: Any, *, numbers: ForwardNumbers) -> Any:
    """``radicands = (variances + epsilon) * 2**ROOT_EXTRA`` when ``take``."""
    count, bits = len(variances), len(radicands[0])
    epsilon = numbers.epsilon_code

    @always(clk.posedge)
    def add() -> None:
        number = intbv(0)[bits:]
        constant = intbv(0)[bits - ROOT_EXTRA :]
        constant[:] = intbv(epsilon)[bits - ROOT_EXTRA :]
        for lane in range(count):
            if take:
                number[:] = variances[lane]
                number[:] = number + constant
                radicands[lane].next = number << ROOT_EXTRA

    return add


@block
def hold_lanes(clk: Any, take: Any, a: Any, b: Any) -> Any:
    """``b = a`` when ``take``."""
    count = len(a)

    @always(clk.posedge)
    def hold() -> None:
        for lane in range(count):
            if take:
                b[lane].next = a[lane]

    return hold
