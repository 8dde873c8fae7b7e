"""Codes times a constant, plus another: exact, in registers, beside the beat that the codes came in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from myhdl import always_comb, block, intbv

from hdl.engine.arithmetic.rounding import scale_cycles, scale_stream
from hdl.errors import Problem
from hdl.fixed import Fixed, IntArray
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import fork, join, m2s_pipe, take_bits

# significant bits of a slope, and fraction bits that an offset has at least
SLOPE_BITS = 16
LEAST_SLOPE = 2.0**-SLOPE_BITS
LARGEST_OFFSET = 1 << SLOPE_BITS
# of a sum, as `int64` holds it
MOST_BITS = 62


@dataclass(frozen=True)
class Affine:
    """``slope * x + offset`` of codes x of a format, the slope rounded to 16 significant bits, sums exact.

    In hardware no multiplier: the slope is a constant, ``factor * 2**-shift`` with an odd factor."""

    # of the codes of x
    x_fixed: Fixed
    # from `LEAST_SLOPE` to 1
    slope: float
    # to `LARGEST_OFFSET` either way; with one, sums have at least `SLOPE_BITS` fraction bits
    offset: float | None = None

    @property
    def problem(self) -> Problem | None:
        """What is wrong with it."""
        if not LEAST_SLOPE <= self.slope <= 1:
            return Problem(f"slope is {self.slope}", f"it must lie between {LEAST_SLOPE} and 1")
        if self.offset is not None and not abs(self.offset) <= LARGEST_OFFSET:
            return Problem(f"offset is {self.offset}", f"it must lie between {-LARGEST_OFFSET} and {LARGEST_OFFSET}")
        if self.exact.width > MOST_BITS:
            what = f"sums of {self.x_fixed} take {self.exact.width} bits, more than {MOST_BITS}"
            return Problem(what, "give x fewer fraction bits")
        return None

    @property
    def _rounded(self) -> tuple[int, int]:
        shift = SLOPE_BITS - math.frexp(self.slope)[1]
        factor = round(math.ldexp(self.slope, shift))
        while factor % 2 == 0:
            factor, shift = factor // 2, shift - 1
        return factor, shift

    @property
    def factor(self) -> int:
        """What codes are multiplied by."""
        return self._rounded[0]

    @property
    def shift(self) -> int:
        """Bits by which the binary point of a product lies further left than that of a code."""
        return self._rounded[1]

    @property
    def product_bits(self) -> int:
        """Bits of a product."""
        return self.x_fixed.width + self.factor.bit_length()

    @property
    def exact(self) -> Fixed:
        """A format that holds every sum exactly; without an offset every code too, with one 1."""
        fraction_bits = self.x_fixed.fraction_bits + self.shift
        if self.offset is None:
            return Fixed(self.x_fixed.width + self.shift, fraction_bits)
        grow = max(0, SLOPE_BITS - fraction_bits)
        offset_bits = round(math.ldexp(self.offset, fraction_bits + grow)).bit_length() + 1
        sum_bits = max(self.product_bits + grow, offset_bits) + 1
        return Fixed(max(sum_bits, fraction_bits + grow + 2), fraction_bits + grow)

    @property
    def word_bits(self) -> int:
        """Bits of a sum in a beat: those of `exact`, or of a product alone."""
        return self.product_bits if self.offset is None else self.exact.width

    @property
    def offset_code(self) -> int:
        """The offset in the format `exact`."""
        return round(math.ldexp(self.offset or 0.0, self.exact.fraction_bits))

    @property
    def grow(self) -> int:
        """Bits by which a product is shifted left to be one of `exact`."""
        return self.exact.fraction_bits - self.x_fixed.fraction_bits - self.shift

    @property
    def cycles(self) -> int:
        """Cycles of `with_sums`."""
        return 1 + scale_cycles(self.x_fixed.width, self.factor) + (self.offset is not None)

    def sums(self, x: IntArray) -> IntArray:
        """Codes of `exact`."""
        return (x * self.factor << self.grow) + self.offset_code

    def off(self, largest: float) -> float:
        """How far sums up to ``largest`` either way may be from those of real numbers."""
        slope = abs(math.ldexp(self.factor, -self.shift) - self.slope) / self.slope
        product = min(self.slope * (self.x_fixed.high + 1) * self.x_fixed.step, largest + abs(self.offset or 0.0))
        return slope * product + (0.0 if self.offset is None else self.exact.step / 2)


@block
def with_sums(domain: ClockReset, x: Stream, y: Stream, *, lanes: int, affine: Affine) -> Instances:
    """The sums of a beat's codes, in front of the beat.

    Costs a product with a constant a lane, with an offset an adder, and registers for all.  One beat a cycle.

    Ports:
        x: in, stream of ``lanes`` codes of `Affine.x_fixed`, lane 0 in the low bits, and of whatever follows them.
        y: out, stream of ``lanes`` signed codes of `Affine.word_bits`, then of x's payload; `Affine.cycles` later.
    """
    width, stages = affine.x_fixed.width, affine.cycles - 1
    held, codes, sums = Stream(x.width), Stream(lanes * width), Stream(lanes * affine.word_bits)
    products = Stream(lanes * affine.product_bits) if affine.offset is not None else sums
    parts = [Stream(x.width) for _ in range(2)]
    waiting = [parts[1], *(Stream(x.width) for _ in range(stages))]
    register = m2s_pipe(domain, x, held)
    split = fork(domain, held, parts)
    take = take_bits(parts[0], codes, low=0)
    scale = scale_stream(domain, codes, products, lanes=lanes, factor=affine.factor)
    add = ()
    if affine.offset is not None:
        add = offset_stream(domain, products, sums, lanes=lanes, grow=affine.grow, offset=affine.offset_code)
    wait = [m2s_pipe(domain, waiting[stage], waiting[stage + 1]) for stage in range(stages)]
    joined = join(domain, [sums, waiting[stages]], y)
    return register, split, take, scale, add, wait, joined


@block
def offset_stream(domain: ClockReset, x: Stream, y: Stream, *, lanes: int, grow: int, offset: int) -> Instances:
    """Codes times ``2**grow``, plus a constant.  Costs an adder and a register a lane.  One beat a cycle.

    Ports:
        x: in, stream of ``lanes`` signed codes; its ready is combinational in that of ``y``.
        y: out, stream of ``lanes`` signed codes, wide enough for every sum; 1 cycle later, from registers.
    """
    width, y_width = x.width // lanes, y.width // lanes
    bound = 1 << (y_width - 1)
    computed = Stream(y.width)
    register = m2s_pipe(domain, computed, y)

    @always_comb
    def add() -> None:
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            code[:] = x.payload[bits_of(lane, width)].signed()
            code[:] = code << grow
            code[:] = code + offset
            computed.payload.next[bits_of(lane, y_width)] = code[y_width:]

    @always_comb
    def handshake() -> None:
        computed.valid.next = x.valid
        x.ready.next = computed.ready

    return register, add, handshake
