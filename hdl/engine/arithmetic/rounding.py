"""Exact sums and products of streams, and their rounding, a register after each: the hardware of `hdl.fixed.requantise`
(to nearest, ties towards plus infinity, saturated).  Each takes no more than an adder or a multiplier between
registers, so that none limits the clock."""

from __future__ import annotations

from myhdl import Signal, always_comb, block, intbv

from hdl.engine.arithmetic.mac import WIDEST_FACTOR
from hdl.engine.arithmetic.requantise import rounded_bits, saturate_codes
from hdl.fixed import Fixed
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import join, m2s_pipe, wire


def exact_sum(a: Fixed, b: Fixed) -> Fixed:
    """The narrowest format that holds every sum of two codes exactly."""
    fraction_bits = max(a.fraction_bits, b.fraction_bits)
    integer_bits = max(a.width - a.fraction_bits, b.width - b.fraction_bits)
    return Fixed(integer_bits + fraction_bits + 1, fraction_bits)


def rounding_cycles(shift: int) -> int:
    """Cycles of `round_stream`: one to round, if there is anything to round, and one to saturate."""
    return 2 if shift > 0 else 1


@block
def round_stream(domain: ClockReset, x: Stream, y: Stream, *, lanes: int, shift: int, target: Fixed) -> Instances:
    """``lanes`` signed codes a beat of x, each times ``2**-shift`` into a code of ``target``.

    Costs an adder, a comparison and two registers a lane; `rounding_cycles`, one beat a cycle.

    Ports:
        x: in, stream of ``lanes`` signed codes of any width.
        y: out, stream of ``lanes`` codes of ``target``, `rounding_cycles` later, from registers.
    """
    width, y_width = x.width // lanes, target.width
    cut, grow = max(0, shift), max(0, -shift)
    kept = rounded_bits(width, shift, target)
    bits = kept + cut
    bound = 1 << (bits - 1)
    half = 1 << (cut - 1) if cut else 0
    half_width = max(1, cut)
    computed, rounded, codes = Stream(lanes * kept), Stream(lanes * kept), Stream(lanes * y_width)
    first = m2s_pipe if cut else wire
    hold = first(domain, computed, rounded)
    saturate = saturate_codes(rounded.payload, codes.payload, lanes=lanes, target=target)
    register = m2s_pipe(domain, codes, y)

    if cut == 0:

        @always_comb
        def compute() -> None:
            code = intbv(0, min=-bound, max=bound)
            for lane in range(lanes):
                code[:] = x.payload[bits_of(lane, width)].signed()
                code[:] = code << grow
                computed.payload.next[bits_of(lane, kept)] = code[bits:]

    else:

        @always_comb
        def compute() -> None:
            code = intbv(0, min=-bound, max=bound)
            add = intbv(0, min=-bound, max=bound)
            add[:] = intbv(half)[half_width:]
            for lane in range(lanes):
                code[:] = x.payload[bits_of(lane, width)].signed()
                code[:] = code + add
                computed.payload.next[bits_of(lane, kept)] = code[bits:cut]

    @always_comb
    def handshake() -> None:
        computed.valid.next = x.valid
        x.ready.next = computed.ready

    @always_comb
    def hand_on() -> None:
        codes.valid.next = rounded.valid
        rounded.ready.next = codes.ready

    return hold, saturate, register, compute, handshake, hand_on


def sum_cycles(a: Fixed, b: Fixed, target: Fixed) -> int:
    """Cycles of `sum_stream`."""
    return 1 + rounding_cycles(exact_sum(a, b).fraction_bits - target.fraction_bits)


@block
def sum_stream(
    domain: ClockReset,
    a: Stream,
    b: Stream,
    y: Stream,
    *,
    lanes: int,
    a_fixed: Fixed,
    b_fixed: Fixed,
    target: Fixed,
    minus: bool = False,
) -> Instances:
    """``lanes`` codes a beat of each of a and b, added exactly, or with ``minus`` a - b; rounded once and saturated.

    Costs an adder a lane, and one more where bits are rounded away; `sum_cycles`, one beat a cycle.

    Ports:
        a, b: in, streams of ``lanes`` codes of ``a_fixed``, of ``b_fixed``, both signed; taken together.
        y: out, stream of ``lanes`` codes of ``target``, `sum_cycles` later, from registers.
    """
    exact = exact_sum(a_fixed, b_fixed)
    width, a_width, b_width = exact.width, a_fixed.width, b_fixed.width
    a_shift, b_shift = exact.fraction_bits - a_fixed.fraction_bits, exact.fraction_bits - b_fixed.fraction_bits
    bound, b_start = 1 << (width - 1), a.width
    both, computed, sums = Stream(a.width + b.width), Stream(lanes * width), Stream(lanes * width)
    # with the binary point of the sum
    lefts, rights = (Signal(intbv(0)[lanes * width :]) for _ in range(2))
    joined = join(domain, [a, b], both)
    register = m2s_pipe(domain, computed, sums)
    rounding = round_stream(
        domain, sums, y, lanes=lanes, shift=exact.fraction_bits - target.fraction_bits, target=target
    )

    @always_comb
    def align() -> None:
        left = intbv(0, min=-bound, max=bound)
        right = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            left[:] = both.payload[bits_of(lane, a_width)].signed()
            right[:] = both.payload[bits_of(lane, b_width, b_start)].signed()
            left[:] = left << a_shift
            right[:] = right << b_shift
            lefts.next[bits_of(lane, width)] = left[width:]
            rights.next[bits_of(lane, width)] = right[width:]

    if minus:

        @always_comb
        def combine() -> None:
            total = intbv(0, min=-bound, max=bound)
            for lane in range(lanes):
                total[:] = lefts[bits_of(lane, width)].signed() - rights[bits_of(lane, width)].signed()
                computed.payload.next[bits_of(lane, width)] = total[width:]

    else:

        @always_comb
        def combine() -> None:
            total = intbv(0, min=-bound, max=bound)
            for lane in range(lanes):
                total[:] = lefts[bits_of(lane, width)].signed() + rights[bits_of(lane, width)].signed()
                computed.payload.next[bits_of(lane, width)] = total[width:]

    @always_comb
    def handshake() -> None:
        computed.valid.next = both.valid
        both.ready.next = computed.ready

    return joined, register, rounding, align, combine, handshake


def scale_cycles(width: int, factor: int) -> int:
    """Cycles of `scale_stream` on codes of ``width`` bits."""
    return 0 if factor == 1 else 1 if width <= WIDEST_FACTOR else 2


@block
def scale_stream(domain: ClockReset, x: Stream, y: Stream, *, lanes: int, factor: int) -> Instances:
    """``lanes`` signed codes a beat, each times a positive constant, exactly; x must come from registers.

    Costs a product with a constant and a register a lane, two and an adder if a code is too wide for a multiplier;
    `scale_cycles`, one beat a cycle.

    Ports:
        x: in, stream of ``lanes`` signed codes of any width; valid and payload from registers.
        y: out, stream of ``lanes`` signed codes wide enough for every product, `scale_cycles` later.
    """
    width, y_width = x.width // lanes, y.width // lanes
    if scale_cycles(width, factor) == 2:
        return scale_wide_stream(domain, x, y, lanes=lanes, factor=factor)
    computed = Stream(y.width)
    stage = wire if factor == 1 else m2s_pipe
    register = stage(domain, computed, y)
    bound = 1 << (y_width - 1)

    @always_comb
    def compute() -> None:
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            code[:] = x.payload[bits_of(lane, width)].signed()
            code[:] = code * factor
            computed.payload.next[bits_of(lane, y_width)] = code[y_width:]

    @always_comb
    def handshake() -> None:
        computed.valid.next = x.valid
        x.ready.next = computed.ready

    return register, compute, handshake


@block
def scale_wide_stream(domain: ClockReset, x: Stream, y: Stream, *, lanes: int, factor: int) -> Instances:
    """`scale_stream` of codes in two parts: both products in registers, then their sum.

    Ports:
        x: in, stream of ``lanes`` signed codes of more than `WIDEST_FACTOR` bits; valid and payload from registers.
        y: out, stream of ``lanes`` signed codes wide enough for every product, 2 cycles later.
    """
    width, y_width = x.width // lanes, y.width // lanes
    cut = WIDEST_FACTOR - 1
    # low parts of all lanes, then high parts
    products, held, computed = Stream(2 * y.width), Stream(2 * y.width), Stream(y.width)
    first, second = m2s_pipe(domain, products, held), m2s_pipe(domain, computed, y)
    bound, start = 1 << (y_width - 1), y.width

    @always_comb
    def multiply() -> None:
        low = intbv(0, min=-bound, max=bound)
        high = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            low[:] = x.payload[lane * width + cut : lane * width]
            high[:] = x.payload[lane * width + width : lane * width + cut].signed()
            low[:] = low * factor
            high[:] = high * factor
            products.payload.next[bits_of(lane, y_width)] = low[y_width:]
            products.payload.next[bits_of(lane, y_width, start)] = high[y_width:]

    @always_comb
    def add() -> None:
        low = intbv(0, min=-bound, max=bound)
        high = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            low[:] = held.payload[bits_of(lane, y_width)].signed()
            high[:] = held.payload[bits_of(lane, y_width, start)].signed()
            high[:] = high << cut
            low[:] = low + high
            computed.payload.next[bits_of(lane, y_width)] = low[y_width:]

    @always_comb
    def take() -> None:
        products.valid.next = x.valid
        x.ready.next = products.ready

    @always_comb
    def hand_on() -> None:
        computed.valid.next = held.valid
        held.ready.next = computed.ready

    return first, second, multiply, add, take, hand_on
