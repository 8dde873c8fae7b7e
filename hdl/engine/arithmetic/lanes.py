"""Arithmetic on lists of signed lanes, a register or two a step; all blocks run freely.

A list is of signed signals of one width.  Those of a result must be wide enough for every value that can come.
"""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.mac import WIDEST_FACTOR, WIDEST_OF_PAIR, signed_signal
from hdl.engine.arithmetic.scalar import Scalar
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import bits_of

# cycles of a product by a constant: of codes that fit a multiplier, and of any others
PRODUCT_LATENCY, WIDE_PRODUCT_LATENCY = 1, 2
# cycles of `scale_lanes` and `scale_rounded`, of such and of such codes
SCALE_LATENCY, WIDE_SCALE_LATENCY = PRODUCT_LATENCY + 1, WIDE_PRODUCT_LATENCY + 1
# bits of the narrowest constant that is worth a multiplier
LEAST_FACTOR = 4


def constant_multipliers(bits: int, factor: int) -> int:
    """Multipliers a lane of `multiply_constant` with codes of so many bits, where products are made by multipliers."""
    if factor.bit_length() < LEAST_FACTOR or factor.bit_count() == 1:
        return 0
    return 1 if bits <= WIDEST_FACTOR else 2


def signed_lanes(count: int, bits: int) -> list[Bits]:
    """A list of two's-complement signals."""
    return [signed_signal(bits) for _ in range(count)]


@block
def split_lanes(
    clk: Clock, vector: Bits, lanes: Sequence[Bits], *, width: int, signed: bool = True, base: int = 0
) -> Instances:
    """Registers codes of ``width`` bits, which start at bit ``base`` of a flat vector, as signed signals.

    Ports:
        vector: in, at least ``base + len(lanes) * width`` bits.
        lanes: out, 1 cycle later.
    """
    count = len(lanes)

    if signed:

        @always(clk.posedge)
        def split() -> None:
            for lane in range(count):
                lanes[lane].next = vector[bits_of(lane, width, base)].signed()

        return split

    @always(clk.posedge)
    def widen() -> None:
        for lane in range(count):
            lanes[lane].next = vector[bits_of(lane, width, base)]

    return widen


@block
def part_lanes(vector: Bits, lanes: Sequence[Bits], *, width: int) -> Instances:
    """Signed codes of ``width`` bits of a flat vector as signals; combinational, the inverse of `join_lanes`.

    Ports:
        vector: in, ``len(lanes) * width`` bits.
        lanes: out, in the same cycle.
    """
    count = len(lanes)

    @always_comb
    def part() -> None:
        for lane in range(count):
            lanes[lane].next = vector[bits_of(lane, width)].signed()

    return part


@block
def join_lanes(lanes: Sequence[Bits], vector: Bits) -> Instances:
    """A list of equally wide signed signals as one flat vector, lane 0 in the low bits; combinational.

    Ports:
        lanes: in, of any width.
        vector: out, as wide as all lanes together, in the same cycle.
    """
    count, width = len(lanes), len(lanes[0])

    @always_comb
    def join() -> None:
        for lane in range(count):
            vector.next[bits_of(lane, width)] = lanes[lane][width:]

    return join


@block
def delay_vector(clk: Clock, source: Bits, delayed: Bits, *, cycles: int) -> Instances:
    """A vector or a flag, ``cycles`` (0: a wire) later.

    Ports:
        source: in, of any width.
        delayed: out, as wide as ``source``, ``cycles`` later.
    """
    if cycles == 0:

        @always_comb
        def wire() -> None:
            delayed.next = source

        return wire

    width = len(source)
    last = cycles - 1
    stages = [Signal(intbv(0)[width:]) for _ in range(cycles)]

    @always(clk.posedge)
    def shift() -> None:
        stages[0].next = source
        for stage in range(last):
            stages[stage + 1].next = stages[stage]

    @always_comb
    def out() -> None:
        delayed.next = stages[last]

    return shift, out


@block
def split_word(
    clk: Clock, word: Bits, lanes: Sequence[Bits], *, width: int, signed: bool, base: int, cycles: int
) -> Instances:
    """Delays part of a word by ``cycles`` (at least 1), the last of which splits it into lanes; see `split_lanes`.

    Ports:
        word: in, at least ``base + len(lanes) * width`` bits.
        lanes: out, ``cycles`` later.
    """
    late = Signal(intbv(0)[len(word) :])
    wait = delay_vector(clk, word, late, cycles=cycles - 1)
    split = split_lanes(clk, late, lanes, width=width, signed=signed, base=base)
    return wait, split


@block
def started(domain: ClockReset, ready: Bit) -> Instances:
    """Low in reset.  What a constant is gated with, so that synthesis takes it for a number that varies.

    Ports:
        ready: out, 1 bit, from a register: the last cycle had no reset.
    """

    @always(domain.clk.posedge)
    def start() -> None:
        ready.next = not domain.rst

    return start


@block
def multiply_constant(
    clk: Clock,
    codes: Sequence[Bits],
    products: Sequence[Bits],
    *,
    factor: int,
    cycles: int,
    ready: Bit | None = None,
) -> Instances:
    """``products = codes * factor``, exactly, for a factor that isn't negative.

    Codes too wide for a multiplier are multiplied in two parts; products stand in registers before they are added.
    They cost adders; with ``ready`` `constant_multipliers`.

    Ports:
        codes: in, lanes of at most `WIDEST_FACTOR` bits, with the longer latency of twice that less 1.
        products: out, ``cycles`` later.
        ready: in, of `started`: products are made by multipliers.  Or None.

    Args:
        cycles: `PRODUCT_LATENCY` or `WIDE_PRODUCT_LATENCY`.
    """
    count, bits = len(codes), len(codes[0])
    cut = WIDEST_FACTOR - 1
    narrow = bits <= WIDEST_FACTOR or factor <= 1
    if not narrow and (cycles == PRODUCT_LATENCY or bits > WIDEST_FACTOR + cut):
        raise ValueError(f"codes of {bits} bits are too wide for {cycles} multipliers of {WIDEST_FACTOR} bits")
    if cycles == PRODUCT_LATENCY:
        return constant_products(clk, codes, products, factor=factor, ready=ready)
    if narrow:
        made = signed_lanes(count, len(products[0]))
        return constant_products(clk, codes, made, factor=factor, ready=ready), register_lanes(clk, made, products)

    low_codes, high_codes = signed_lanes(count, WIDEST_FACTOR), signed_lanes(count, bits - cut)
    lows, highs = (signed_lanes(count, len(part[0]) + factor.bit_length()) for part in (low_codes, high_codes))
    bound = 1 << (len(products[0]) - 1)
    multiply_low = constant_products(clk, low_codes, lows, factor=factor, ready=ready)
    multiply_high = constant_products(clk, high_codes, highs, factor=factor, ready=ready)

    @always_comb
    def cut_codes() -> None:
        for lane in range(count):
            low_codes[lane].next = codes[lane][cut:]
            high_codes[lane].next = codes[lane][bits:cut].signed()

    @always(clk.posedge)
    def add() -> None:
        low = intbv(0, min=-bound, max=bound)
        high = intbv(0, min=-bound, max=bound)
        for lane in range(count):
            low[:] = lows[lane]
            high[:] = highs[lane]
            high[:] = high << cut
            products[lane].next = low + high

    return multiply_low, multiply_high, cut_codes, add


@block
def constant_products(
    clk: Clock, codes: Sequence[Bits], products: Sequence[Bits], *, factor: int, ready: Bit | None = None
) -> Instances:
    """``products = codes * factor``, one cycle; one multiplier a lane.

    Ports:
        codes: in, lanes of any width.
        products: out, 1 cycle later.
        ready: in, as of `multiply_constant`.
    """
    count = len(codes)
    if ready is not None and constant_multipliers(len(codes[0]), factor):
        return gated_products(clk, codes, products, ready, factor=factor)
    # see `multiply_lanes`; a factor of 18 bits, with its sign, fits the narrower multiplier, whatever the codes
    if factor.bit_length() >= WIDEST_OF_PAIR:

        @always(clk.posedge)
        def multiply_wide() -> None:
            for lane in range(count):
                products[lane].next = factor * codes[lane]

        return multiply_wide

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(count):
            products[lane].next = codes[lane] * factor

    return multiply


@block
def gated_products(
    clk: Clock, codes: Sequence[Bits], products: Sequence[Bits], ready: Bit, *, factor: int
) -> Instances:
    """``products = codes * factor``, one cycle; a multiplier of two numbers that vary a lane.

    Ports:
        codes: in, lanes that fit a multiplier.
        products: out, 1 cycle later.
        ready: in, 1 bit, from a register: high from the first code that matters on.
    """
    count = len(codes)
    held = signed_signal(factor.bit_length() + 1)

    @always_comb
    def gate() -> None:
        if ready:
            held.next = factor
        else:
            held.next = 0

    # see `multiply_lanes`; low bits of codes may be constant
    if factor.bit_length() >= WIDEST_OF_PAIR:

        @always(clk.posedge)
        def multiply_wide() -> None:
            for lane in range(count):
                products[lane].next = held * codes[lane]

        return gate, multiply_wide

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(count):
            products[lane].next = codes[lane] * held

    return gate, multiply


@block
def scale_lanes(
    clk: Clock,
    codes: Sequence[Bits],
    scaled: Sequence[Bits],
    *,
    scalar: Scalar,
    cycles: int = SCALE_LATENCY,
    ready: Bit | None = None,
) -> Instances:
    """`Scalar.times` on each lane: a product by a constant, then its shift.

    Ports:
        codes: in, lanes as for `multiply_constant`.
        scaled: out, ``cycles`` later.
        ready: in, as of `multiply_constant`.

    Args:
        cycles: `SCALE_LATENCY` or `WIDE_SCALE_LATENCY`.
    """
    count, bits = len(codes), len(codes[0])
    product_bits = scalar.product_bits(bits) + 1
    products = signed_lanes(count, product_bits)
    right, left = max(scalar.shift, 0), max(-scalar.shift, 0)
    out_bits = len(scaled[0])
    bound = 1 << (max(out_bits, product_bits) - 1)
    multiply = multiply_constant(clk, codes, products, factor=scalar.mantissa, cycles=cycles - 1, ready=ready)

    if left:

        @always(clk.posedge)
        def shift_left() -> None:
            number = intbv(0, min=-bound, max=bound)
            for lane in range(count):
                number[:] = products[lane]
                scaled[lane].next = number << left

        return multiply, shift_left

    @always(clk.posedge)
    def shift_right() -> None:
        number = intbv(0, min=-bound, max=bound)
        for lane in range(count):
            number[:] = products[lane]
            scaled[lane].next = number >> right

    return multiply, shift_right


@block
def add_lanes(clk: Clock, a: Sequence[Bits], b: Sequence[Bits], sums: Sequence[Bits], *, a_shift: int = 0) -> Instances:
    """``sums = a * 2**a_shift + b``, one cycle.

    Ports:
        a, b: in, lanes of any widths.
        sums: out, wide enough for ``a * 2**a_shift`` too, 1 cycle later.
    """
    count = len(sums)
    if a_shift == 0:

        @always(clk.posedge)
        def add() -> None:
            for lane in range(count):
                sums[lane].next = a[lane] + b[lane]

        return add

    bound = 1 << (len(sums[0]) - 1)

    @always(clk.posedge)
    def add_aligned() -> None:
        left = intbv(0, min=-bound, max=bound)
        for lane in range(count):
            left[:] = a[lane]
            left[:] = left << a_shift
            sums[lane].next = left + b[lane]

    return add_aligned


@block
def subtract_lanes(
    clk: Clock, a: Sequence[Bits], b: Sequence[Bits], differences: Sequence[Bits], *, a_shift: int = 0, b_shift: int = 0
) -> Instances:
    """``differences = a * 2**a_shift - b * 2**b_shift``, one cycle; ``differences`` must be wide enough.

    Ports:
        a, b: in, lanes of any widths.
        differences: out, wide enough for each term too, 1 cycle later.
    """
    count = len(differences)
    bound = 1 << (len(differences[0]) - 1)
    if a_shift == 0 and b_shift == 0:

        @always(clk.posedge)
        def subtract() -> None:
            for lane in range(count):
                differences[lane].next = a[lane] - b[lane]

        return subtract

    @always(clk.posedge)
    def subtract_aligned() -> None:
        left = intbv(0, min=-bound, max=bound)
        right = intbv(0, min=-bound, max=bound)
        for lane in range(count):
            left[:] = a[lane]
            left[:] = left << a_shift
            right[:] = b[lane]
            right[:] = right << b_shift
            differences[lane].next = left - right

    return subtract_aligned


@block
def register_lanes(clk: Clock, a: Sequence[Bits], b: Sequence[Bits]) -> Instances:
    """``b = a``, one cycle.

    Ports:
        a: in, lanes of any width.
        b: out, 1 cycle later.
    """
    count = len(a)

    @always(clk.posedge)
    def register() -> None:
        for lane in range(count):
            b[lane].next = a[lane]

    return register


@block
def always_on(clk: Clock, enable: Bit) -> Instances:
    """The enable of a pipeline that never stalls.

    Ports:
        enable: out, 1 bit: high.
    """

    @always(clk.posedge)
    def drive() -> None:
        enable.next = True

    return drive


@block
def multiply_lanes(clk: Clock, a: Sequence[Bits], b: Sequence[Bits], products: Sequence[Bits]) -> Instances:
    """``products = a * b``, one cycle; one multiplier a lane.

    Ports:
        a, b: in, lanes that fit a multiplier.
        products: out, 1 cycle later.
    """
    count = len(products)
    # Yosys takes one multiplier for factors on both sides of `WIDEST_OF_PAIR` bits only if the wider one comes first
    wide, narrow = (a, b) if len(a[0]) >= len(b[0]) else (b, a)

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(count):
            products[lane].next = wide[lane] * narrow[lane]

    return multiply


@block
def round_lanes(clk: Clock, codes: Sequence[Bits], rounded: Sequence[Bits], *, shift: int) -> Instances:
    """`hdl.fixed.round_shift`, one cycle; ``rounded`` must be wide enough.

    Ports:
        codes: in, lanes of any width.
        rounded: out, 1 cycle later.
    """
    count = len(codes)
    width = max(len(codes[0]), len(rounded[0])) + 1
    bound = 1 << (width - 1)
    left = max(-shift, 0)

    if shift <= 0:

        @always(clk.posedge)
        def grow() -> None:
            number = intbv(0, min=-bound, max=bound)
            for lane in range(count):
                number[:] = codes[lane]
                rounded[lane].next = number << left

        return grow

    half_width = shift
    half = 1 << (shift - 1)

    @always(clk.posedge)
    def cut() -> None:
        number = intbv(0, min=-bound, max=bound)
        add = intbv(0, min=-bound, max=bound)
        add[:] = intbv(half)[half_width:]
        for lane in range(count):
            number[:] = codes[lane]
            number[:] = number + add
            rounded[lane].next = number >> shift

    return cut


@block
def scale_rounded(
    clk: Clock, codes: Sequence[Bits], rounded: Sequence[Bits], *, scalar: Scalar, ready: Bit | None = None
) -> Instances:
    """`Scalar.rounded` on each lane, `WIDE_SCALE_LATENCY` cycles.

    Ports:
        codes: in, lanes as for `multiply_constant`.
        rounded: out, `WIDE_SCALE_LATENCY` cycles later.
        ready: in, as of `multiply_constant`.
    """
    products = signed_lanes(len(codes), scalar.product_bits(len(codes[0])) + 1)
    multiply = multiply_constant(clk, codes, products, factor=scalar.mantissa, cycles=WIDE_PRODUCT_LATENCY, ready=ready)
    finish = round_lanes(clk, products, rounded, shift=scalar.shift)
    return multiply, finish
