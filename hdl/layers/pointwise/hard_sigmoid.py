"""Hard sigmoid, a ramp from 0 to 1, as ONNX defines it.

y = min(max(alpha * x + beta, 0), 1)    mask = 1 where 0 < alpha * x + beta < 1    dx = alpha * e where mask, else 0
"""

from __future__ import annotations

from dataclasses import dataclass

from myhdl import intbv

from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.pointwise.affine import Affine
from hdl.layers.pointwise.base import LaneBlock, Mask, Pointwise
from hdl.layers.pointwise.slope_error import SlopeError
from hdl.stream import Stream, bits_of


@dataclass(frozen=True, kw_only=True)
class HardSigmoid(Pointwise):
    """``alpha`` from 2**-16 to 1, to 16 significant bits, also in the mask; sums are exact, rounded once, ties up."""

    alpha: float = 0.2
    beta: float = 0.5
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    variants = ({"y_fixed": Fixed(16, 14)}, {"alpha": 0.5, "beta": 0.3, "x_fixed": Fixed(16, -2)}, {"alpha": 1.0})

    @property
    def affine(self) -> Affine:
        return Affine(self.x_fixed, self.alpha, self.beta)

    def codes(self, x: IntArray) -> tuple[IntArray, Mask]:
        y, one = self.affine.sums(x), 1 << self.exact.fraction_bits
        return y.clip(0, one), (y > 0) & (y < one)

    def values(self, x: FloatArray) -> tuple[FloatArray, Mask]:
        return (y := self.alpha * x + self.beta).clip(0, 1), (y > 0) & (y < 1)

    def error(self) -> SlopeError:
        return SlopeError(**self.map, slope=self.alpha, where=1, rest=0)

    def lane_block(self, taken: Stream, computed: Stream) -> LaneBlock:
        lanes, exact, one = self.lanes, self.exact.width, self.exact.fraction_bits

        def clip() -> None:
            y = intbv(0)[exact:]
            clipped = intbv(0)[one + 1 :]
            for lane in range(lanes):
                y[:] = taken.payload[bits_of(lane, exact)]
                clipped[:] = 0
                computed.payload.next[lanes * exact + lane] = False
                if not y[exact - 1] and y[exact:one] != 0:
                    clipped[one] = True
                elif not y[exact - 1] and y != 0:
                    clipped[:] = y[one:]
                    computed.payload.next[lanes * exact + lane] = True
                computed.payload.next[bits_of(lane, exact)] = clipped

        return clip
