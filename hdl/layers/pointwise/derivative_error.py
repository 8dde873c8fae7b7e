"""The way back through an activation whose derivative was kept: dx = e * mask, one multiplier a lane."""

from __future__ import annotations

from dataclasses import dataclass

from myhdl import intbv

from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.pointwise.base import LaneBlock, PointwiseError
from hdl.stream import Stream, bits_of

# of derivatives between -2 and 2
SLOPE = Fixed(10, 8)


@dataclass(frozen=True, kw_only=True)
class ProductError(PointwiseError):
    """Products are exact, rounded once to nearest, ties up.  (Not registered: it is abstract.)

    A subclass states fields ``e_fixed`` and ``dx_fixed``, ``mask_fixed`` and ``variants``."""

    products = 1

    @property
    def exact(self) -> Fixed:
        """A product."""
        mask = self.mask_fixed
        return Fixed(self.e_fixed.width + mask.width, self.e_fixed.fraction_bits + mask.fraction_bits)

    def codes(self, e: IntArray, mask: IntArray) -> IntArray:
        return e * mask

    def values(self, e: FloatArray, mask: FloatArray) -> FloatArray:
        return e * mask

    def lane_block(self, both: Stream, computed: Stream) -> LaneBlock:
        lanes, width, d_width, exact = self.lanes, self.e_fixed.width, self.mask_fixed.width, self.exact.width
        masks, e_bound, d_bound, bound = lanes * width, 1 << (width - 1), 1 << d_width, 1 << (exact - 1)

        if self.mask_fixed.signed:

            def multiply() -> None:
                e = intbv(0, min=-e_bound, max=e_bound)
                d = intbv(0, min=-d_bound, max=d_bound)
                product = intbv(0, min=-bound, max=bound)
                for lane in range(lanes):
                    e[:] = both.payload[bits_of(lane, width)].signed()
                    d[:] = both.payload[bits_of(lane, d_width, masks)].signed()
                    product[:] = e * d
                    computed.payload.next[bits_of(lane, exact)] = product[exact:]

        else:

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


@dataclass(frozen=True, kw_only=True)
class DerivativeError(ProductError):
    """Derivatives are numbers of 10 bits between -2 and 2, in steps of 2**-8."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    dx_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    mask_fixed = SLOPE
    variants = ({}, {"dx_fixed": Fixed(16, 14)}, {"e_fixed": Fixed(12, 4), "dx_fixed": Fixed(16, 10)})
