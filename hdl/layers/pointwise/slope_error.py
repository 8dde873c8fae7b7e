"""The way back through an activation that is linear in two pieces: dx = slope * e where mask == where, else rest * e.

One of the slopes is 0 or 1, so there is one product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from myhdl import intbv

from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.pointwise.affine import Affine
from hdl.layers.pointwise.base import LaneBlock, PointwiseError
from hdl.stream import Stream, bits_of


@dataclass(frozen=True, kw_only=True)
class SlopeError(PointwiseError):
    """A product with the slope, of 16 significant bits, and a choice a lane; products are exact, rounded once."""

    slope: float = 0.01
    # the mask of elements that it is for
    where: int = 0
    # slope of the others: 0 or 1
    rest: int = 0
    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    dx_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    variants = ({"rest": 1}, {"slope": 0.2, "where": 1}, {"slope": 0.5, "rest": 1, "dx_fixed": Fixed(16, 14)})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.where not in (0, 1) or self.rest not in (0, 1):
            raise ShapeError(f"SlopeError: where is {self.where} and rest {self.rest}", "each must be 0 or 1")

    @property
    def affine(self) -> Affine:
        """The product."""
        return Affine(self.e_fixed, self.slope)

    @property
    def exact(self) -> Fixed:
        """A product; where others pass too, any code."""
        affine = self.affine
        return affine.exact if self.rest else Fixed(affine.product_bits, affine.exact.fraction_bits)

    def codes(self, e: IntArray, mask: IntArray) -> IntArray:
        """Select."""
        return np.where(mask == self.where, self.affine.sums(e), e * self.rest << self.affine.shift)

    def values(self, e: FloatArray, mask: FloatArray) -> FloatArray:
        """The formula."""
        return e * np.where(mask == self.where, self.slope, self.rest)

    def lane_block(self, both: Stream, computed: Stream) -> LaneBlock:
        """Select."""
        lanes, width, exact, word = self.lanes, self.e_fixed.width, self.exact.width, self.affine.word_bits
        where, shift, bound = self.where, self.affine.shift, 1 << (exact - 1)
        codes, masks = lanes * word, lanes * (word + width)

        # where nothing else passes, the codes themselves are of no use, and synthesis drops their registers
        if self.rest == 0:

            def choose() -> None:
                value = intbv(0, min=-bound, max=bound)
                for lane in range(lanes):
                    value[:] = 0
                    if both.payload[masks + lane] == where:
                        value[:] = both.payload[bits_of(lane, word)].signed()
                    computed.payload.next[bits_of(lane, exact)] = value[exact:]

        else:

            def choose() -> None:
                value = intbv(0, min=-bound, max=bound)
                for lane in range(lanes):
                    if both.payload[masks + lane] == where:
                        value[:] = both.payload[bits_of(lane, word)].signed()
                    else:
                        value[:] = both.payload[bits_of(lane, width, codes)].signed()
                        value[:] = value << shift
                    computed.payload.next[bits_of(lane, exact)] = value[exact:]

        return choose
