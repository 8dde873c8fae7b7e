"""The logistic sigmoid, read from a table.

y = 1 / (1 + exp(-x))        mask = y * (1 - y), of 9 bits        dx = e * mask

Both are read at the same entry: what is kept is the derivative, rounded once from the exact y of that entry, neither y
nor a product of its codes.  So there is a product on the way back and none on the way there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from myhdl import intbv

from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.pointwise.base import LaneBlock, Mask, Pointwise, PointwiseError
from hdl.layers.pointwise.table import Table
from hdl.stream import Stream, bits_of

# the table covers -8 to 8; beyond, its ends are less than 2**-11 from 0 and 1
RANGE_BITS = 4
# shorter ones are of no use; in longer ones the entries would be closer than the ends
SHORTEST, LONGEST = 4, 11
# of the derivative, 0 to 1/4
DERIVATIVE = Fixed(9, 10, signed=False)
# a code of x in steps of the table
WIDEST_INDEX = 48


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), for any x."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


@functools.lru_cache(maxsize=64)
def _table(bits: int, dropped: int, y_fixed: Fixed) -> Table:
    """By the index as two's complement, each in the middle of the codes of an entry."""
    index = np.arange(1 << bits)
    steps = np.where(index < 1 << (bits - 1), index, index - (1 << bits)) + (0.5 - 0.5 / (1 << max(dropped, 0)))
    y = sigmoid(np.ldexp(steps, RANGE_BITS - bits))
    return Table(tuple(y_fixed.encode(y).tolist()), tuple(DERIVATIVE.encode(y * (1 - y)).tolist()))


@dataclass(frozen=True, kw_only=True)
class Sigmoid(Pointwise):
    """A table of ``2**table_bits`` entries (4 to 11 bits) over -8 to 8, one a lane, of y and its derivative.

    y is off by at most ``0.5 + 2**(f + 1 - table_bits)`` steps of a format with f fraction bits, since an entry stands
    for 2**(4 - table_bits) of x and the slope is at most 1/4: with 10 bits, one step of ``Fixed(16, 8)``, 32.5 of
    ``Fixed(16, 14)``.  The derivative is off by at most ``0.5 + 2**(10 - table_bits)`` steps of its own, 2**-10; it is
    0 where x is beyond about 7.6."""

    table_bits: int = 10
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    mask_fixed = DERIVATIVE
    variants = (
        {},
        {"table_bits": SHORTEST, "x_fixed": Fixed(12, 13), "y_fixed": Fixed(16, 15)},
        {"table_bits": LONGEST, "x_fixed": Fixed(8, 3), "y_fixed": Fixed(16, 14)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not SHORTEST <= self.table_bits <= LONGEST:
            raise ShapeError(
                f"Sigmoid: table_bits is {self.table_bits}", f"it must lie between {SHORTEST} and {LONGEST}"
            )
        if self.x_fixed.width - self.dropped > WIDEST_INDEX:
            raise ShapeError(f"Sigmoid: steps of {self.x_fixed} are too coarse", "give x more fraction bits")

    @property
    def dropped(self) -> int:
        """Low bits of a code of x that the table does not see; below 0, bits that it sees and x has not."""
        return self.x_fixed.fraction_bits + RANGE_BITS - self.table_bits

    @property
    def table(self) -> Table:
        return _table(self.table_bits, self.dropped, self.y_fixed)

    @property
    def closeness(self) -> dict[str, float]:
        """The middle of an entry, then one rounding."""
        return {
            "y": 0.5 + 2.0 ** (self.y_fixed.fraction_bits + 1 - self.table_bits),
            "mask": 0.5 + 2.0 ** (DERIVATIVE.fraction_bits - self.table_bits),
        }

    def codes(self, x: IntArray) -> tuple[IntArray, Mask]:
        half = 1 << (self.table_bits - 1)
        index = np.clip(x >> self.dropped if self.dropped > 0 else x << -self.dropped, -half, half - 1)
        return np.array(self.table.y)[index], np.array(self.table.mask)[index]

    def values(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        y = sigmoid(x)
        return y, y * (1 - y)

    def error(self) -> SigmoidError:
        return SigmoidError(**self.map)

    def lane_block(self, taken: Stream, computed: Stream) -> LaneBlock:
        lanes, width, bits = self.lanes, self.x_fixed.width, self.table_bits
        right, left, half = max(self.dropped, 0), max(-self.dropped, 0), 1 << (self.table_bits - 1)
        bound = 1 << max(width + left - 1, bits)

        def clip() -> None:
            value = intbv(0, min=-bound, max=bound)
            for lane in range(lanes):
                value[:] = taken.payload[bits_of(lane, width)].signed()
                value[:] = value << left
                value[:] = value >> right
                if value < -half:
                    value[:] = -half
                elif value >= half:
                    value[:] = half - 1
                computed.payload.next[bits_of(lane, bits)] = value[bits:]

        return clip


@dataclass(frozen=True, kw_only=True)
class SigmoidError(PointwiseError):
    """dx = e * mask, the derivative that was kept: one multiplier a lane, exact, rounded once to nearest, ties up."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    dx_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    products = 1
    mask_fixed = DERIVATIVE
    variants = ({}, {"dx_fixed": Fixed(16, 14)}, {"e_fixed": Fixed(12, 4), "dx_fixed": Fixed(16, 16)})

    @property
    def exact(self) -> Fixed:
        """A product."""
        return Fixed(self.e_fixed.width + DERIVATIVE.width, self.e_fixed.fraction_bits + DERIVATIVE.fraction_bits)

    def codes(self, e: IntArray, mask: IntArray) -> IntArray:
        return e * mask

    def values(self, e: FloatArray, mask: FloatArray) -> FloatArray:
        return e * mask

    def lane_block(self, both: Stream, computed: Stream) -> LaneBlock:
        lanes, width, d_width, exact = self.lanes, self.e_fixed.width, DERIVATIVE.width, self.exact.width
        masks, e_bound, d_bound, bound = lanes * width, 1 << (width - 1), 1 << d_width, 1 << (exact - 1)

        def multiply() -> None:
            e = intbv(0, min=-e_bound, max=e_bound)
            d = intbv(0, min=-d_bound, max=d_bound)
            product = intbv(0, min=-bound, max=bound)
            for lane in range(lanes):
                e[:] = both.payload[bits_of(lane, width)].signed()
                d[:] = both.payload[bits_of(lane, d_width, masks)]
                product[:] = e * d
                computed.payload.next[bits_of(lane, exact)] = product[exact:]

        return multiply
