"""Normalisation over the channels of a pixel, forwards and backwards: `hdl.engine.norm.channel_numbers` as circuits.

A pixel's codes go two ways: into sums, which run freely and end in a queue with a place reserved for each pixel, and
into a queue of their own, in which they wait for what is made of the sums.  Behind both a pixel's numbers stand beside
every beat of it.  So one beat passes in a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv, modbv

from hdl.engine.arithmetic.lanes import (
    WIDE_PRODUCT_LATENCY,
    always_on,
    delay_vector,
    multiply_constant,
    multiply_lanes,
    register_lanes,
    signed_lanes,
    split_lanes,
    subtract_lanes,
)
from hdl.engine.arithmetic.mac import adder_trees, signed_signal, tree_levels
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import (
    ACCUMULATE_LATENCY,
    REQUANTISE_LATENCY,
    accumulator,
    delay_line,
    requantise_lanes,
)
from hdl.engine.arithmetic.rounding import round_stream, rounding_cycles
from hdl.engine.norm.channel_numbers import (
    BETWEEN_BITS,
    ENTRY_BITS,
    ENTRY_EXTRA,
    INDEX_BITS,
    ROOT_BITS,
    SLOPE_BITS,
    ChannelErrorNumbers,
    ChannelNumbers,
)
from hdl.engine.norm.sums import MEAN_LATENCY, mean_lanes
from hdl.fixed import Fixed
from hdl.memory import address_width, read_only
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter, fork, join, m2s_pipe, queue, queue_latency

# cycles of `exact_variance`, of a read of the table and what is made of it
VARIANCE_LATENCY, ROOT_LATENCY = WIDE_PRODUCT_LATENCY + 2, 4
# cycles of `raise_stream`
RAISE_CYCLES = 2
# beats and pixels that queues hold beyond what their latencies ask for
SLACK = 8


def sums_latency(lanes: int) -> int:
    """Cycles of `pixel_sums`: registers, products, trees, accumulators."""
    return 2 + tree_levels(lanes) + ACCUMULATE_LATENCY


def levels_of(numbers: ChannelNumbers) -> list[int]:
    """By how much exponents are raised at once, largest first."""
    return [1 << level for level in reversed(range(numbers.raise_bits))]


def root_latency(numbers: ChannelNumbers) -> int:
    """Cycles from sums to a root."""
    return VARIANCE_LATENCY + numbers.raise_bits + ROOT_LATENCY


def places_of(latency: int, beats: int) -> int:
    """Pixels of ``beats`` under way through ``latency`` cycles and the queue behind them."""
    return -(-(latency + SLACK) // beats) + 2


def forward_latency(numbers: ChannelNumbers, beats: int, lanes: int) -> int:
    """Cycles from the last beat of a pixel until its numbers stand beside the first."""
    latency = sums_latency(lanes) + root_latency(numbers)
    return latency + queue_latency(places_of(latency, beats)) + 1


# cycles of `centre_beats`
CENTRE_CYCLES = 2


def normal_cycles(numbers: ChannelNumbers) -> int:
    """Cycles of `normalise_beats`: centring, raising, rounding, a product, rounding."""
    return CENTRE_CYCLES + RAISE_CYCLES + 2 + rounding_cycles(numbers.y_shift)


def inverse_cycles(numbers: ChannelNumbers) -> int:
    """Cycles of `inverse_of`: a product, raising, rounding."""
    return 1 + RAISE_CYCLES + rounding_cycles(numbers.inverse_shift)


def means_latency(lanes: int) -> int:
    """Cycles from the last beat of errors to its means."""
    return sums_latency(lanes) + MEAN_LATENCY + REQUANTISE_LATENCY


def backward_latency(lanes: int, beats: int) -> int:
    """Cycles from the last beat of a pixel until its means stand beside the first."""
    return means_latency(lanes) + queue_latency(places_of(means_latency(lanes), beats)) + 1


def shape_cycles(numbers: ChannelErrorNumbers, dx_fraction: int) -> int:
    """Cycles of `shape_beats`: a product and a difference, a difference, rounding, a product, rounding."""
    shift = numbers.shaped.fraction_bits + numbers.inverse.fraction_bits - dx_fraction
    return 4 + rounding_cycles(shift)


@block
def channel_norm(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    inverse: Stream,
    *,
    numbers: ChannelNumbers,
    lanes: int,
    contents: Sequence[int] | None = None,
) -> Instances:
    """Sums and roots beside the beats that wait for them.

    Costs two multipliers a lane, two more, a table of ``2**INDEX_BITS`` words, a shifter of some 30 bits a lane, and a
    queue of a pixel and of the beats that come while its numbers are made.

    Ports:
        x: in, stream of ``lanes`` codes of ``numbers.x``.
        y: out, stream of ``lanes`` codes of ``numbers.y``, `forward_latency` + `normal_cycles` after the last beat of a
            pixel its first, from registers.
        inverse: out, stream of a code of ``numbers.inverse``, a pixel a beat, from registers.
    """
    beats = numbers.channels // lanes
    latency = sums_latency(lanes) + root_latency(numbers)
    places = places_of(latency, beats)
    parts, held = [Stream(x.width) for _ in range(2)], Stream(x.width)
    made = Stream(ROOT_BITS + numbers.raise_bits + numbers.sum_bits)
    copies = [Stream(made.width) for _ in range(2)]
    return (
        fork(domain, x, parts),
        queue(domain, parts[0], held, depth=beats + latency + 2 * SLACK),
        pixel_roots(domain, parts[1], made, numbers=numbers, lanes=lanes, places=places, contents=contents),
        fork(domain, made, copies),
        normalise_beats(domain, held, copies[0], y, numbers=numbers, lanes=lanes),
        inverse_of(domain, copies[1], inverse, numbers=numbers),
    )


@block
def channel_norm_error(
    domain: ClockReset,
    e: Stream,
    normal: Stream,
    inverse: Stream,
    dx: Stream,
    *,
    numbers: ChannelErrorNumbers,
    lanes: int,
    target: Fixed,
) -> Instances:
    """Means beside the beats that wait for them.

    Costs three multipliers a lane, two products with constants, and queues as of `channel_norm`.

    Ports:
        e, normal: in, streams of ``lanes`` codes of ``numbers.e``, of ``numbers.normal``; taken together.
        inverse: in, stream of a code of ``numbers.inverse``, a pixel a beat.
        dx: out, stream of ``lanes`` codes of ``target``, `backward_latency` + `shape_cycles` after the last beat
            of a pixel its first, from registers.
    """
    beats = numbers.channels // lanes
    latency = means_latency(lanes)
    places = places_of(latency, beats)
    both = Stream(e.width + normal.width)
    parts, held = [Stream(both.width) for _ in range(2)], Stream(both.width)
    means = Stream(2 * numbers.mean.width)
    early, beside = Stream(inverse.width), Stream(means.width + inverse.width)
    return (
        join(domain, [e, normal], both),
        fork(domain, both, parts),
        queue(domain, parts[0], held, depth=beats + latency + 2 * SLACK),
        pixel_means(domain, parts[1], means, numbers=numbers, lanes=lanes, places=places),
        queue(domain, inverse, early, depth=places),
        join(domain, [means, early], beside),
        shape_beats(domain, held, beside, dx, numbers=numbers, lanes=lanes, target=target),
    )


@block
def pixel_beats(
    domain: ClockReset, x: Stream, may: Bit, take: Bit, valid: Bit, first: Bit, last: Bit, *, beats: int
) -> Instances:
    """Beats taken while they may be, and where in a pixel of ``beats`` each stands.

    Ports:
        x: in, stream of any width, of which valid is read and ready driven.
        may: in, 1 bit.
        take: out, 1 bit: the last beat of a pixel is taken at this edge.
        valid, first, last: out, 1 bit each, from registers: a beat was taken, which began a pixel, which ended one.
    """
    final = beats - 1
    place = Signal(intbv(0)[address_width(beats) :])
    fire, ends = Signal(bool(0)), Signal(bool(0))
    places = counter(domain, fire, place, count=beats)

    @always_comb
    def decide() -> None:
        fire.next = x.valid and may
        x.ready.next = may
        ends.next = place == final

    @always_comb
    def finish() -> None:
        take.next = fire and ends

    @always(domain.clk.posedge)
    def step() -> None:
        valid.next = fire
        first.next = place == 0
        last.next = ends
        if domain.rst:
            valid.next = False

    return places, decide, finish, step


@block
def pixel_sums(
    clk: Clock,
    valid: Bit,
    first: Bit,
    last: Bit,
    a: Sequence[Bits],
    b: Sequence[Bits],
    total: Sequence[Bits],
    product_total: Sequence[Bits],
    done: Bit,
) -> Instances:
    """The sum of all ``a`` of a pixel, and of all ``a * b``; one multiplier a lane.

    Ports:
        valid, first, last: in, 1 bit each, as `pixel_beats` makes them.
        a, b: in, signed lanes from registers, with ``valid``.
        total, product_total: out, a signed signal each, wide enough, with ``done``.
        done: out, 1 bit, `sums_latency` - 1 after the last ``valid`` of a pixel.
    """
    lanes, levels = len(a), tree_levels(len(a))
    products, waiting = signed_lanes(lanes, len(a[0]) + len(b[0])), signed_lanes(lanes, len(a[0]))
    sums = [signed_signal(len(waiting[0]) + levels)]
    product_sums = [signed_signal(len(products[0]) + levels)]
    flags = [Signal(bool(0)) for _ in range(3)]
    multiply = multiply_lanes(clk, a, b, products)
    wait = register_lanes(clk, a, waiting)
    delays = [
        delay_line(clk, source, flag, cycles=1 + levels)
        for source, flag in zip((valid, first, last), flags, strict=True)
    ]
    product_done = Signal(bool(0))
    if lanes == 1:
        sums, product_sums = waiting, products
        trees: Instances = ()
    else:
        trees = adder_trees(clk, waiting, sums, terms=lanes), adder_trees(clk, products, product_sums, terms=lanes)
    add = accumulator(clk, *flags, sums, total, done)
    add_products = accumulator(clk, *flags, product_sums, product_total, product_done)
    return multiply, wait, delays, trees, add, add_products


@block
def pixel_roots(
    domain: ClockReset,
    x: Stream,
    made: Stream,
    *,
    numbers: ChannelNumbers,
    lanes: int,
    places: int,
    contents: Sequence[int] | None,
) -> Instances:
    """Sum, root and exponent of each pixel.

    Ports:
        x: in, stream of ``lanes`` codes of ``numbers.x``; its ready from registers.
        made: out, stream of one beat a pixel, from registers.  From the low bits on: 1 / root (`ROOT_BITS`), by how
            much its exponent is below the largest (``numbers.raise_bits``), the sum (``numbers.sum_bits``, signed).
    """
    clk, width = domain.clk, numbers.x.width
    may, take, valid, first, last, done = (Signal(bool(0)) for _ in range(6))
    codes = signed_lanes(lanes, width)
    total, squares = [signed_signal(numbers.sum_bits)], [signed_signal(numbers.square_bits)]
    sum_word, late_sum = (Signal(intbv(0)[numbers.sum_bits :]) for _ in range(2))
    variance = Signal(intbv(0)[2 * numbers.top + 2 :])
    root, raised = Signal(intbv(0)[ROOT_BITS:]), Signal(intbv(0)[numbers.raise_bits :])
    result, ready = Stream(made.width), Signal(bool(0))
    latency, sum_bits = root_latency(numbers), numbers.sum_bits
    word = ConcatSignal(late_sum, raised, root)
    enter = pixel_beats(domain, x, may, take, valid, first, last, beats=numbers.channels // lanes)
    split = split_lanes(clk, x.payload, codes, width=width)
    sums = pixel_sums(clk, valid, first, last, codes, codes, total, squares, done)
    vary = exact_variance(clk, total, squares, variance, numbers=numbers)
    find = inverse_root(clk, variance, root, raised, numbers=numbers, contents=contents)
    wait = delay_vector(clk, sum_word, late_sum, cycles=latency)
    signal = delay_line(clk, done, ready, cycles=latency)
    reserve = result_places(domain, take, made, may, places=places)
    hold = queue(domain, result, made, depth=places)

    @always_comb
    def connect() -> None:
        sum_word.next = total[0][sum_bits:]
        result.valid.next = ready
        result.payload.next = word

    return enter, split, sums, vary, find, wait, signal, reserve, hold, connect


@block
def exact_variance(
    clk: Clock, total: Sequence[Bits], squares: Sequence[Bits], variance: Bits, *, numbers: ChannelNumbers
) -> Instances:
    """``C * squares - total**2 + epsilon``, `VARIANCE_LATENCY` cycles; a multiplier, and a product with a constant.

    Ports:
        total, squares: in, a signed signal each.
        variance: out, unsigned, wide enough, `VARIANCE_LATENCY` later.
    """
    factor, shift = numbers.factor
    guard, epsilon, bits = numbers.guard, numbers.epsilon_code, len(variance)
    square, late_square = signed_lanes(1, 2 * numbers.sum_bits), signed_lanes(1, 2 * numbers.sum_bits)
    scaled = signed_lanes(1, numbers.square_bits + factor.bit_length())
    difference = signed_lanes(1, max(2 * numbers.sum_bits, numbers.square_bits + factor.bit_length() + shift) + 1)
    multiply = multiply_lanes(clk, total, total, square)
    wait = register_lanes(clk, square, late_square)
    scale = multiply_constant(clk, squares, scaled, factor=factor, cycles=WIDE_PRODUCT_LATENCY)
    subtract = subtract_lanes(clk, scaled, late_square, difference, a_shift=shift)
    kept = min(bits - guard, len(difference[0]))

    @always(clk.posedge)
    def add() -> None:
        number = intbv(0)[bits:]
        more = intbv(0)[bits + 1 :]
        number[:] = difference[0][kept:]
        number[:] = number << guard
        more[:] = intbv(epsilon)[bits:]
        more[:] = more + number
        variance.next = more[bits:]

    return multiply, wait, scale, subtract, add


@block
def inverse_root(
    clk: Clock,
    variance: Bits,
    root: Bits,
    raised: Bits,
    *,
    numbers: ChannelNumbers,
    contents: Sequence[int] | None,
) -> Instances:
    """`ChannelNumbers.roots`: exponents a power of two at a time, then a table with a slope; a multiplier.

    Ports:
        variance: in, unsigned, ``2 * numbers.top + 2`` bits, not 0.
        root: out, `ROOT_BITS`, ``numbers.raise_bits`` + `ROOT_LATENCY` cycles later.
        raised: out, ``numbers.raise_bits``, with ``root``.
    """
    width, count, raise_bits = len(variance), numbers.raise_bits, numbers.raise_bits
    mantissas = [variance, *(Signal(intbv(0)[width:]) for _ in range(count))]
    amounts = [None, *(Signal(intbv(0)[raise_bits:]) for _ in range(count))]
    shifts = [
        raise_variance(clk, mantissas[step], amounts[step], mantissas[step + 1], amounts[step + 1], level=level)
        for step, level in enumerate(levels_of(numbers))
    ]
    index = Signal(intbv(0)[INDEX_BITS:])
    between, late_between = (Signal(intbv(0)[BETWEEN_BITS:]) for _ in range(2))
    word = Signal(intbv(0)[ENTRY_BITS + SLOPE_BITS :])
    entry = Signal(intbv(0)[ENTRY_BITS:])
    product = Signal(intbv(0)[SLOPE_BITS + BETWEEN_BITS :])
    on = Signal(bool(0))
    enable = always_on(clk, on)
    table = read_only(
        clk, on, index, word, depth=1 << INDEX_BITS, width=len(word), contents=contents, output_register=True,
        image="root",
    )  # fmt: skip
    found = find_entry(mantissas[count], index, between)
    wait = delay_vector(clk, between, late_between, cycles=2)
    wait_amount = delay_vector(clk, amounts[count], raised, cycles=ROOT_LATENCY)
    product_bits, word_bits = len(product), len(word)

    @always(clk.posedge)
    def interpolate() -> None:
        # an entry is larger than what is taken from it
        number = modbv(0)[ENTRY_BITS:]
        entry.next = word[ENTRY_BITS:]
        product.next = word[word_bits:ENTRY_BITS] * late_between
        number[:] = entry - product[product_bits:BETWEEN_BITS]
        root.next = number[ENTRY_BITS:ENTRY_EXTRA]

    return shifts, table, found, wait, wait_amount, enable, interpolate


@block
def raise_variance(
    clk: Clock, number: Bits, amount: Bits | None, raised: Bits, new_amount: Bits, *, level: int
) -> Instances:
    """A number shifted left by ``2 * level`` bits if those are 0, and by how much it was shifted; 1 cycle.

    Ports:
        number: in, unsigned, of any width.
        amount: in, of any width; None for 0.
        raised: out, as wide as ``number``, 1 cycle later.
        new_amount: out, as wide as any amount: ``level`` more if it was shifted, 1 cycle later.
    """
    width, rest, bits, distance = len(number), len(number) - 2 * level, len(new_amount), 2 * level

    @always(clk.posedge)
    def shift() -> None:
        moved = intbv(0)[width:]
        moved[:] = number
        if number[width:rest] == 0:
            moved[:] = moved[rest:] << distance
        raised.next = moved

    if amount is None:

        @always(clk.posedge)
        def begin() -> None:
            new_amount.next = 0
            if number[width:rest] == 0:
                new_amount.next = level

        return shift, begin

    @always(clk.posedge)
    def count() -> None:
        more = intbv(0)[bits:]
        more[:] = amount
        if number[width:rest] == 0:
            more[:] = more | level
        new_amount.next = more

    return shift, count


@block
def find_entry(mantissa: Bits, index: Bits, between: Bits) -> Instances:
    """Where the root of a number stands in the table; combinational.

    Ports:
        mantissa: in, unsigned, of an even width, one of its two highest bits set.
        index: out, `INDEX_BITS`, in the same cycle.
        between: out, `BETWEEN_BITS`, in the same cycle.
    """
    width, places = len(mantissa), INDEX_BITS - 1
    extra = max(0, INDEX_BITS + BETWEEN_BITS + 1 - width)
    wide = width + extra
    top = wide - 2

    @always_comb
    def find() -> None:
        number = intbv(0)[wide:]
        number[:] = mantissa
        number[:] = number[width:] << extra
        if not mantissa[width - 1]:
            number[:] = number[wide - 1 :] << 1
        index.next[places] = mantissa[width - 1]
        index.next[places:] = number[top + 1 : top + 1 - places]
        between.next = number[top + 1 - places : top + 1 - places - BETWEEN_BITS]

    return find


@block
def beside_pixel(domain: ClockReset, x: Stream, numbers: Stream, y: Stream, *, beats: int) -> Instances:
    """Each beat of a pixel with the numbers of that pixel above it, in registers; one beat a cycle.

    Ports:
        x: in, stream of any width.
        numbers: in, stream of any width, of which a beat is needed with each of x, and taken with every ``beats``-th.
        y: out, stream as wide as both together, 1 cycle later, from registers.
    """
    final, low, high = beats - 1, x.width, x.width + numbers.width
    both = Stream(high)
    place = Signal(intbv(0)[address_width(beats) :])
    register = m2s_pipe(domain, both, y)
    ends, fire = Signal(bool(0)), Signal(bool(0))
    places = counter(domain, fire, place, count=beats)

    @always_comb
    def judge() -> None:
        ends.next = place == final

    @always_comb
    def handshake() -> None:
        both.valid.next = x.valid and numbers.valid
        x.ready.next = both.ready and numbers.valid
        numbers.ready.next = both.ready and x.valid and ends
        fire.next = both.ready and x.valid and numbers.valid

    @always_comb
    def payload() -> None:
        both.payload.next[low:] = x.payload
        both.payload.next[high:low] = numbers.payload

    return register, places, judge, handshake, payload


@block
def normalise_beats(
    domain: ClockReset, x: Stream, made: Stream, y: Stream, *, numbers: ChannelNumbers, lanes: int
) -> Instances:
    """`ChannelNumbers.normalised` of beats that wait for the numbers of their pixel.

    Ports:
        x: in, stream of ``lanes`` codes of ``numbers.x``.
        made: in, stream as `pixel_roots` makes it.
        y: out, stream of ``lanes`` codes of ``numbers.y``, 1 + `normal_cycles` later, from registers.
    """
    bits, short = numbers.distance_bits, numbers.short_bits
    both = Stream(x.width + made.width)
    centred, raised = (Stream(lanes * bits + ROOT_BITS + extra) for extra in (numbers.raise_bits, 0))
    rounded, factors = (Stream(lanes * short + ROOT_BITS) for _ in range(2))
    products, held = (Stream(lanes * (short + ROOT_BITS)) for _ in range(2))
    return (
        beside_pixel(domain, x, made, both, beats=numbers.channels // lanes),
        centre_beats(domain, both, centred, numbers=numbers, lanes=lanes),
        raise_stream(domain, centred, raised, lanes=lanes, width=bits, rest=ROOT_BITS),
        round_beside(raised, rounded, lanes=lanes, width=bits, shift=numbers.distance_cut, rest=ROOT_BITS),
        m2s_pipe(domain, rounded, factors),
        multiply_beside(factors, products, lanes=lanes, width=short, factor_bits=ROOT_BITS),
        m2s_pipe(domain, products, held),
        round_stream(domain, held, y, lanes=lanes, shift=numbers.y_shift, target=numbers.y),
    )


@block
def inverse_of(domain: ClockReset, made: Stream, inverse: Stream, *, numbers: ChannelNumbers) -> Instances:
    """The inverse of the deviation of each pixel.

    Ports:
        made: in, stream as `pixel_roots` makes it.
        inverse: out, stream of a code of ``numbers.inverse``, `inverse_cycles` later, from registers.
    """
    factor, width, raise_bits = numbers.factor[0], numbers.inverse_bits, numbers.raise_bits
    scaled, held = (Stream(width + 1 + raise_bits) for _ in range(2))
    raised, codes = Stream(width + 1), Stream(width)

    @always_comb
    def scale() -> None:
        number = intbv(0)[width:]
        number[:] = made.payload[ROOT_BITS:]
        number[:] = number * factor
        scaled.payload.next[width:] = number
        scaled.payload.next[width] = False
        scaled.payload.next[width + 1 + raise_bits : width + 1] = made.payload[ROOT_BITS + raise_bits : ROOT_BITS]

    @always_comb
    def take() -> None:
        scaled.valid.next = made.valid
        made.ready.next = scaled.ready

    @always_comb
    def hand_on() -> None:
        codes.valid.next = raised.valid
        codes.payload.next = raised.payload[width:]
        raised.ready.next = codes.ready

    register = m2s_pipe(domain, scaled, held)
    lift = raise_stream(domain, held, raised, lanes=1, width=width, rest=1)
    rounding = round_stream(domain, codes, inverse, lanes=1, shift=numbers.inverse_shift, target=numbers.inverse)
    return scale, take, hand_on, register, lift, rounding


@block
def centre_beats(domain: ClockReset, x: Stream, y: Stream, *, numbers: ChannelNumbers, lanes: int) -> Instances:
    """C x - S, `CENTRE_CYCLES`: a product with a constant, then a difference.

    Ports:
        x: in, stream of ``lanes`` codes of ``numbers.x``, then a beat as `pixel_roots` makes it; from registers.
        y: out, stream of ``lanes`` signed numbers of ``numbers.distance_bits``, then root and exponent, from registers.
    """
    (factor, shift), width, sum_bits = numbers.factor, numbers.x.width, numbers.sum_bits
    bits, product_bits = numbers.distance_bits, width + factor.bit_length()
    rest = x.width - lanes * width
    bound = 1 << (max(product_bits + shift, sum_bits, bits) + 1)
    beside, total_at = rest - sum_bits, lanes * product_bits + rest - sum_bits
    scaled, products, computed = (
        Stream(lanes * product_bits + rest),
        Stream(lanes * product_bits + rest),
        Stream(y.width),
    )
    first, second = m2s_pipe(domain, scaled, products), m2s_pipe(domain, computed, y)
    codes_end, products_end, ends = lanes * width, lanes * product_bits, lanes * bits
    whole, wide = x.width, lanes * product_bits + rest

    @always_comb
    def scale() -> None:
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            code[:] = x.payload[bits_of(lane, width)].signed()
            code[:] = code * factor
            scaled.payload.next[bits_of(lane, product_bits)] = code[product_bits:]
        scaled.payload.next[wide:products_end] = x.payload[whole:codes_end]

    @always_comb
    def subtract() -> None:
        code = intbv(0, min=-bound, max=bound)
        total = intbv(0, min=-bound, max=bound)
        total[:] = products.payload[total_at + sum_bits : total_at].signed()
        for lane in range(lanes):
            code[:] = products.payload[bits_of(lane, product_bits)].signed()
            code[:] = code << shift
            code[:] = code - total
            computed.payload.next[bits_of(lane, bits)] = code[bits:]
        computed.payload.next[ends + beside : ends] = products.payload[products_end + beside : products_end]

    @always_comb
    def take() -> None:
        scaled.valid.next = x.valid
        x.ready.next = scaled.ready

    @always_comb
    def hand_on() -> None:
        computed.valid.next = products.valid
        products.ready.next = computed.ready

    return first, second, scale, subtract, take, hand_on


@block
def raise_stream(domain: ClockReset, x: Stream, y: Stream, *, lanes: int, width: int, rest: int) -> Instances:
    """``lanes`` numbers a beat shifted left by one amount, `RAISE_CYCLES`; costs multiplexers.

    Ports:
        x: in, stream of ``lanes`` numbers of ``width`` bits, ``rest`` other bits, and the amount above all.
        y: out, stream without the amount, from registers.
    """
    start, held_bits = lanes * width + rest, x.width
    levels = x.width - start
    low, half = levels // 2, lanes * width
    coarse, held, fine = Stream(x.width), Stream(x.width), Stream(y.width)
    first, second = m2s_pipe(domain, coarse, held), m2s_pipe(domain, fine, y)

    @always_comb
    def shift_far() -> None:
        number = modbv(0)[width:]
        for lane in range(lanes):
            number[:] = x.payload[bits_of(lane, width)]
            for level in range(low, levels):
                if x.payload[start + level]:
                    number[:] = number << (1 << level)
            coarse.payload.next[bits_of(lane, width)] = number
        coarse.payload.next[held_bits:half] = x.payload[held_bits:half]

    @always_comb
    def shift_near() -> None:
        number = modbv(0)[width:]
        for lane in range(lanes):
            number[:] = held.payload[bits_of(lane, width)]
            for level in range(low):
                if held.payload[start + level]:
                    number[:] = number << (1 << level)
            fine.payload.next[bits_of(lane, width)] = number
        fine.payload.next[start:half] = held.payload[start:half]

    @always_comb
    def take() -> None:
        coarse.valid.next = x.valid
        x.ready.next = coarse.ready

    @always_comb
    def hand_on() -> None:
        fine.valid.next = held.valid
        held.ready.next = fine.ready

    return first, second, shift_far, shift_near, take, hand_on


@block
def round_beside(x: Stream, y: Stream, *, lanes: int, width: int, shift: int, rest: int) -> Instances:
    """Signed numbers rounded to nearest, beside other bits; combinational, an adder a lane.

    Ports:
        x: in, stream of ``lanes`` signed numbers of ``width`` bits, then ``rest`` bits.
        y: out, stream of ``lanes`` signed numbers ``shift`` bits shorter, one longer if that
            isn't 0, then ``rest`` bits; in the same cycle.
    """
    short = width - shift + (shift > 0)
    bound, half = 1 << width, (1 << shift) >> 1
    start, end = lanes * width, lanes * short

    @always_comb
    def compute() -> None:
        number = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            number[:] = x.payload[bits_of(lane, width)].signed()
            number[:] = number + half
            y.payload.next[bits_of(lane, short)] = number[short + shift : shift]
        y.payload.next[end + rest : end] = x.payload[start + rest : start]

    @always_comb
    def handshake() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready

    return compute, handshake


@block
def multiply_beside(x: Stream, y: Stream, *, lanes: int, width: int, factor_bits: int) -> Instances:
    """Signed numbers times an unsigned one that stands beside them; combinational, a multiplier a lane.

    Ports:
        x: in, stream of ``lanes`` signed numbers of ``width`` bits, then one of ``factor_bits``.
        y: out, stream of ``lanes`` signed numbers as wide as both together, in the same cycle.
    """
    bits, start = width + factor_bits, lanes * width
    left, right, bound = 1 << (width - 1), 1 << factor_bits, 1 << (bits - 1)

    # the wider one comes first: see `hdl.engine.arithmetic.lanes.multiply_lanes`
    if width > factor_bits:

        @always_comb
        def multiply() -> None:
            number = intbv(0, min=-left, max=left)
            factor = intbv(0, min=-right, max=right)
            product = intbv(0, min=-bound, max=bound)
            factor[:] = x.payload[start + factor_bits : start]
            for lane in range(lanes):
                number[:] = x.payload[bits_of(lane, width)].signed()
                product[:] = number * factor
                y.payload.next[bits_of(lane, bits)] = product[bits:]

    else:

        @always_comb
        def multiply() -> None:
            number = intbv(0, min=-left, max=left)
            factor = intbv(0, min=-right, max=right)
            product = intbv(0, min=-bound, max=bound)
            factor[:] = x.payload[start + factor_bits : start]
            for lane in range(lanes):
                number[:] = x.payload[bits_of(lane, width)].signed()
                product[:] = factor * number
                y.payload.next[bits_of(lane, bits)] = product[bits:]

    @always_comb
    def handshake() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready

    return multiply, handshake


@block
def pixel_means(
    domain: ClockReset, x: Stream, means: Stream, *, numbers: ChannelErrorNumbers, lanes: int, places: int
) -> Instances:
    """The mean of the errors of each pixel, and of their products with the normalised codes.

    Ports:
        x: in, stream of ``lanes`` codes of ``numbers.e``, then as many of ``numbers.normal``; its ready from registers.
        means: out, stream of a code of ``numbers.mean`` of each, a pixel a beat, from registers.
    """
    clk, bits = domain.clk, numbers.mean.width
    may, take, valid, first, last, done, ready = (Signal(bool(0)) for _ in range(7))
    errors, codes = signed_lanes(lanes, numbers.e.width), signed_lanes(lanes, numbers.normal.width)
    total, product_total = [signed_signal(numbers.sum_bits)], [signed_signal(numbers.product_bits)]
    mean, product_mean = [signed_signal(bits + 2)], [signed_signal(bits + numbers.normal.width + 2)]
    words = [Signal(intbv(0)[bits:]) for _ in range(2)]
    result = Stream(means.width)
    flat = ConcatSignal(words[1], words[0])
    enter = pixel_beats(domain, x, may, take, valid, first, last, beats=numbers.channels // lanes)
    splits = [
        split_lanes(clk, x.payload, errors, width=numbers.e.width),
        split_lanes(clk, x.payload, codes, width=numbers.normal.width, base=lanes * numbers.e.width),
    ]
    sums = pixel_sums(clk, valid, first, last, errors, codes, total, product_total, done)
    averages = [
        mean_lanes(clk, total, mean, mean=numbers.mean_of_e),
        mean_lanes(clk, product_total, product_mean, mean=numbers.mean_of_product),
        requantise_lanes(clk, mean, words[0], shift=0, target=numbers.mean),
        requantise_lanes(clk, product_mean, words[1], shift=0, target=numbers.mean),
    ]
    signal = delay_line(clk, done, ready, cycles=MEAN_LATENCY + REQUANTISE_LATENCY)
    reserve = result_places(domain, take, means, may, places=places)
    hold = queue(domain, result, means, depth=places)

    @always_comb
    def connect() -> None:
        result.valid.next = ready
        result.payload.next = flat

    return enter, splits, sums, averages, signal, reserve, hold, connect


@block
def shape_beats(
    domain: ClockReset,
    x: Stream,
    beside: Stream,
    dx: Stream,
    *,
    numbers: ChannelErrorNumbers,
    lanes: int,
    target: Fixed,
) -> Instances:
    """`ChannelErrorNumbers.errors` of beats that wait for the means of their pixel.

    Ports:
        x: in, stream of ``lanes`` codes of ``numbers.e``, then as many of ``numbers.normal``.
        beside: in, stream of both means, then a code of ``numbers.inverse``, a pixel a beat.
        dx: out, stream of ``lanes`` codes of ``target``, 1 + `shape_cycles` later, from registers.
    """
    inverse_bits, short = numbers.inverse.width, numbers.shaped.width
    bits = numbers.total_bits
    both = Stream(x.width + beside.width)
    totals = Stream(lanes * bits + inverse_bits)
    rounded, factors = (Stream(lanes * short + inverse_bits) for _ in range(2))
    products, held = (Stream(lanes * (short + inverse_bits)) for _ in range(2))
    cut = numbers.total_fraction - numbers.shaped.fraction_bits
    shift = numbers.shaped.fraction_bits + numbers.inverse.fraction_bits - target.fraction_bits
    return (
        beside_pixel(domain, x, beside, both, beats=numbers.channels // lanes),
        subtract_means(domain, both, totals, numbers=numbers, lanes=lanes),
        round_beside(totals, rounded, lanes=lanes, width=bits, shift=cut, rest=inverse_bits),
        m2s_pipe(domain, rounded, factors),
        multiply_beside(factors, products, lanes=lanes, width=short, factor_bits=inverse_bits),
        m2s_pipe(domain, products, held),
        round_stream(domain, held, dx, lanes=lanes, shift=shift, target=target),
    )


@block
def subtract_means(domain: ClockReset, x: Stream, y: Stream, *, numbers: ChannelErrorNumbers, lanes: int) -> Instances:
    """e - mean(e) - normal * mean(e * normal), exactly, two cycles: a product beside a difference, then a difference.

    Ports:
        x: in, stream of ``lanes`` codes of ``numbers.e``, as many of ``numbers.normal``, both means, an inverse; from
            registers.
        y: out, stream of ``lanes`` signed numbers of ``numbers.total_bits``, then the inverse; from registers.
    """
    e_bits, n_bits, mean_bits, bits = numbers.e.width, numbers.normal.width, numbers.mean.width, numbers.total_bits
    inverse_bits, point = numbers.inverse.width, numbers.normal.fraction_bits
    left, right = max(point, 0), max(-point, 0)
    codes_at, mean_at = lanes * e_bits, lanes * (e_bits + n_bits)
    product_mean_at, inverse_at = mean_at + mean_bits, mean_at + 2 * mean_bits
    product_bits, away_bits = n_bits + mean_bits, mean_bits + 1
    products_at, rest_at = lanes * away_bits, lanes * (away_bits + product_bits)
    grow = numbers.mean.fraction_bits - numbers.e.fraction_bits
    bound, mean_bound, code_bound = 1 << bits, 1 << (mean_bits - 1), 1 << (n_bits - 1)
    parts, held = (Stream(rest_at + inverse_bits) for _ in range(2))
    computed, ends = Stream(y.width), lanes * bits
    first, second = m2s_pipe(domain, parts, held), m2s_pipe(domain, computed, y)

    @always_comb
    def multiply() -> None:
        mean = intbv(0, min=-mean_bound, max=mean_bound)
        product_mean = intbv(0, min=-mean_bound, max=mean_bound)
        code = intbv(0, min=-code_bound, max=code_bound)
        error = intbv(0, min=-bound, max=bound)
        product = intbv(0, min=-bound, max=bound)
        mean[:] = x.payload[mean_at + mean_bits : mean_at].signed()
        product_mean[:] = x.payload[product_mean_at + mean_bits : product_mean_at].signed()
        for lane in range(lanes):
            error[:] = x.payload[bits_of(lane, e_bits)].signed()
            error[:] = error << grow
            error[:] = error - mean
            parts.payload.next[bits_of(lane, away_bits)] = error[away_bits:]
            code[:] = x.payload[bits_of(lane, n_bits, codes_at)].signed()
            product[:] = product_mean * code
            parts.payload.next[bits_of(lane, product_bits, products_at)] = product[product_bits:]
        parts.payload.next[rest_at + inverse_bits : rest_at] = x.payload[inverse_at + inverse_bits : inverse_at]

    @always_comb
    def subtract() -> None:
        error = intbv(0, min=-bound, max=bound)
        product = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            error[:] = held.payload[bits_of(lane, away_bits)].signed()
            error[:] = error << left
            product[:] = held.payload[bits_of(lane, product_bits, products_at)].signed()
            product[:] = product << right
            error[:] = error - product
            computed.payload.next[bits_of(lane, bits)] = error[bits:]
        computed.payload.next[ends + inverse_bits : ends] = held.payload[rest_at + inverse_bits : rest_at]

    @always_comb
    def take() -> None:
        parts.valid.next = x.valid
        x.ready.next = parts.ready

    @always_comb
    def hand_on() -> None:
        computed.valid.next = held.valid
        held.ready.next = computed.ready

    return first, second, multiply, subtract, take, hand_on
