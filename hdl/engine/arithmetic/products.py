"""Exact products of two streams, with registers on both sides of the multipliers."""

from __future__ import annotations

from myhdl import always_comb, block, intbv

from hdl.errors import ShapeError
from hdl.fixed import Fixed
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import join, m2s_pipe

# cycles of `product_stream`
PRODUCT_CYCLES = 2
# of a product or a sum of products, as `int64` holds it
MOST_BITS = 62


def exact_product(a: Fixed, b: Fixed) -> Fixed:
    """The format that holds every product of two signed codes exactly."""
    return Fixed(a.width + b.width, a.fraction_bits + b.fraction_bits)


def check_bits(name: str, bits: int) -> None:
    """Raises `ShapeError` where products of the layer ``name``, or their sums, take more bits than NumPy has."""
    if bits > MOST_BITS:
        raise ShapeError(f"{name}: products take {bits} bits, more than {MOST_BITS}", "give the factors fewer bits")


@block
def product_stream(
    domain: ClockReset, a: Stream, b: Stream, y: Stream, *, lanes: int, a_fixed: Fixed, b_fixed: Fixed
) -> Instances:
    """``lanes`` codes a beat of each of a and b, multiplied exactly.

    Costs a multiplier a lane, and registers for factors and products; `PRODUCT_CYCLES`, one beat a cycle.

    Ports:
        a, b: in, streams of ``lanes`` codes of ``a_fixed``, of ``b_fixed``, both signed; taken together.
        y: out, stream of ``lanes`` codes of ``exact_product(a_fixed, b_fixed)``, `PRODUCT_CYCLES` later.
    """
    a_width, b_width, width = a_fixed.width, b_fixed.width, a_fixed.width + b_fixed.width
    a_bound, b_bound, bound = 1 << (a_width - 1), 1 << (b_width - 1), 1 << (width - 1)
    b_start = lanes * a_width
    both, factors, computed = Stream(a.width + b.width), Stream(a.width + b.width), Stream(lanes * width)
    joined = join(domain, [a, b], both)
    hold = m2s_pipe(domain, both, factors)
    register = m2s_pipe(domain, computed, y)

    @always_comb
    def multiply() -> None:
        left = intbv(0, min=-a_bound, max=a_bound)
        right = intbv(0, min=-b_bound, max=b_bound)
        product = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            left[:] = factors.payload[bits_of(lane, a_width)].signed()
            right[:] = factors.payload[bits_of(lane, b_width, b_start)].signed()
            product[:] = left * right
            computed.payload.next[bits_of(lane, width)] = product[width:]

    @always_comb
    def handshake() -> None:
        computed.valid.next = factors.valid
        factors.ready.next = computed.ready

    return joined, hold, register, multiply, handshake
