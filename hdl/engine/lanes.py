"""Arithmetic on lists of signed lanes, a register or two a step; all blocks run freely."""

from __future__ import annotations

from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.mac import signed_signal
from hdl.engine.scalar import Scalar

# cycles of `scale_lanes`
SCALE_LATENCY = 2


def signed_lanes(count: int, bits: int) -> list[Any]:
    """A list of two's-complement signals."""
    return [signed_signal(bits) for _ in range(count)]


@block
def split_lanes(clk: Any, vector: Any, lanes: Any, *, width: int, signed: bool = True, base: int = 0) -> Any:
    """Registers codes of ``width`` bits, which start at bit ``base`` of a flat vector, as signed signals."""
    count = len(lanes)

    if signed:

        @always(clk.posedge)
        def split() -> None:
            for lane in range(count):
                lanes[lane].next = vector[base + lane * width + width : base + lane * width].signed()

        return split

    @always(clk.posedge)
    def widen() -> None:
        for lane in range(count):
            lanes[lane].next = vector[base + lane * width + width : base + lane * width]

    return widen


@block
def join_lanes(lanes: Any, vector: Any) -> Any:
    """A list of equally wide signed signals as one flat vector, lane 0 in the low bits; combinational."""
    count, width = len(lanes), len(lanes[0])

    @always_comb
    def join() -> None:
        for lane in range(count):
            vector.next[lane * width + width : lane * width] = lanes[lane][width:]

    return join


@block
def delay_vector(clk: Any, source: Any, delayed: Any, *, cycles: int) -> Any:
    """A vector or a flag, ``cycles`` (0: a wire) later."""
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
def scale_lanes(clk: Any, codes: Any, scaled: Any, *, scalar: Scalar) -> Any:
    """`Scalar.times` on each lane, `SCALE_LATENCY` cycles: a product by a constant, then its shift."""
    count, bits = len(codes), len(codes[0])
    product_bits = scalar.product_bits(bits) + 1
    products = signed_lanes(count, product_bits)
    mantissa, right, left = scalar.mantissa, max(scalar.shift, 0), max(-scalar.shift, 0)
    out_bits = len(scaled[0])
    bound = 1 << (max(out_bits, product_bits) - 1)

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(count):
            products[lane].next = codes[lane] * mantissa

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
def add_lanes(clk: Any, a: Any, b: Any, sums: Any) -> Any:
    """``sums = a + b``, one cycle."""
    count = len(sums)

    @always(clk.posedge)
    def add() -> None:
        for lane in range(count):
            sums[lane].next = a[lane] + b[lane]

    return add


@block
def subtract_lanes(clk: Any, a: Any, b: Any, differences: Any) -> Any:
    """``differences = a - b``, one cycle."""
    count = len(differences)

    @always(clk.posedge)
    def subtract() -> None:
        for lane in range(count):
            differences[lane].next = a[lane] - b[lane]

    return subtract


@block
def register_lanes(clk: Any, a: Any, b: Any) -> Any:
    """``b = a``, one cycle."""
    count = len(a)

    @always(clk.posedge)
    def register() -> None:
        for lane in range(count):
            b[lane].next = a[lane]

    return register


@block
def always_on(clk: Any, enable: Any) -> Any:
    """The enable of a pipeline that never stalls."""

    @always(clk.posedge)
    def drive() -> None:
        enable.next = True

    return drive


@block
def multiply_lanes(clk: Any, a: Any, b: Any, products: Any) -> Any:
    """``products = a * b``, one cycle; one multiplier a lane."""
    count = len(products)

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(count):
            products[lane].next = a[lane] * b[lane]

    return multiply


@block
def round_lanes(clk: Any, codes: Any, rounded: Any, *, shift: int) -> Any:
    """`hdl.fixed.round_shift`, one cycle; ``rounded`` must be wide enough."""
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
def scale_rounded(clk: Any, codes: Any, rounded: Any, *, scalar: Scalar) -> Any:
    """`Scalar.rounded` on each lane, `SCALE_LATENCY` cycles."""
    count = len(codes)
    products = signed_lanes(count, scalar.product_bits(len(codes[0])) + 1)
    mantissa = scalar.mantissa

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(count):
            products[lane].next = codes[lane] * mantissa

    finish = round_lanes(clk, products, rounded, shift=scalar.shift)
    return multiply, finish
