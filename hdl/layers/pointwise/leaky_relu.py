"""Leaky rectified linear units: a gentle slope below 0, so that an element that is never positive still learns.

y = x where x > 0, else alpha * x        mask = 1 where x > 0        dx = e where mask, else alpha * e
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from myhdl import intbv

from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.pointwise.affine import Affine
from hdl.layers.pointwise.base import LaneBlock, Mask, Pointwise
from hdl.layers.pointwise.slope_error import SlopeError
from hdl.stream import Stream, bits_of


@dataclass(frozen=True, kw_only=True)
class LeakyRelu(Pointwise):
    """``alpha`` from 2**-16 to 1, to 16 significant bits; products are exact, rounded once to nearest, ties up."""

    alpha: float = 0.01
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    variants = ({}, {"alpha": 0.5, "x_fixed": Fixed(12, 13)}, {"alpha": 1.0})

    @property
    def affine(self) -> Affine:
        return Affine(self.x_fixed, self.alpha)

    def codes(self, x: IntArray) -> tuple[IntArray, Mask]:
        return np.where(x > 0, x << self.affine.shift, self.affine.sums(x)), x > 0

    def values(self, x: FloatArray) -> tuple[FloatArray, Mask]:
        return np.where(x > 0, x, x * self.alpha), x > 0

    def error(self) -> SlopeError:
        return SlopeError(**self.map, slope=self.alpha, where=0, rest=1)

    def lane_block(self, taken: Stream, computed: Stream) -> LaneBlock:
        lanes, width, exact, word = self.lanes, self.x_fixed.width, self.exact.width, self.affine.word_bits
        codes, masks, shift, bound = lanes * word, lanes * exact, self.affine.shift, 1 << (exact - 1)

        def choose() -> None:
            value = intbv(0, min=-bound, max=bound)
            for lane in range(lanes):
                value[:] = taken.payload[bits_of(lane, width, codes)].signed()
                computed.payload.next[masks + lane] = value > 0
                if value > 0:
                    value[:] = value << shift
                else:
                    value[:] = taken.payload[bits_of(lane, word)].signed()
                computed.payload.next[bits_of(lane, exact)] = value[exact:]

        return choose
