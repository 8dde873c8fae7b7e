"""Rectified linear units, plain and with a ceiling (relu6), and the mask that is all they keep for the way back.

y = min(max(x, 0), ceiling)        mask = 1 where 0 < x < ceiling        dx = e where mask, else 0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from myhdl import intbv

from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.meaning import Again
from hdl.layers.pointwise.base import LaneBlock, Mask, Pointwise, PointwiseError
from hdl.stream import Stream, bits_of


@dataclass(frozen=True, kw_only=True)
class Relu(Pointwise):
    """Keeps one bit an element; a comparison, with a ceiling two, and a register a lane."""

    # largest output, None for plain relu
    ceiling: float | None = None
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    # the last one's ceiling is beyond the format
    variants = ({}, {"ceiling": 6.0}, {"ceiling": 6.0, "x_fixed": Fixed(16, 14)})

    @cached_property
    def ceiling_code(self) -> int:
        """The ceiling as a code; one past the greatest code if there is none."""
        if self.ceiling is None:
            return self.x_fixed.high + 1
        return int(self.x_fixed.encode(self.ceiling))

    def codes(self, x: IntArray) -> tuple[IntArray, Mask]:
        """Compare and select."""
        # not np.clip, which takes several times longer on short arrays
        y, mask = np.maximum(x, 0), x > 0
        if self.ceiling_code > self.x_fixed.high:
            return y, mask
        return np.minimum(y, self.ceiling_code), mask & (x < self.ceiling_code)

    def values(self, x: FloatArray) -> tuple[FloatArray, Mask]:
        """The formula."""
        top = np.inf if self.ceiling is None else self.ceiling
        return np.clip(x, 0, top), (x > 0) & (x < top)

    def again(self) -> tuple[Again, ...]:
        """The same of x, or of y, which it leaves as it is: the mask can't tell them apart."""
        of_x = super().again()
        return (*of_x, *(Again(again.layer, {"x": "y"}) for again in of_x))

    def error(self) -> PointwiseError:
        """The masked error."""
        return ReluError(**self.map)

    def lane_block(self, taken: Stream, computed: Stream) -> LaneBlock:
        """Compare and select."""
        lanes, width, top = self.lanes, self.x_fixed.width, self.ceiling_code
        low, high, values = self.x_fixed.low, self.x_fixed.high + 1, lanes * width

        # no code reaches a ceiling beyond the format: a comparison that nobody needs, which synthesis would not see
        if top > self.x_fixed.high:

            def clamp() -> None:
                value = intbv(0, min=low, max=high)
                for lane in range(lanes):
                    value[:] = taken.payload[bits_of(lane, width)].signed()
                    if value <= 0:
                        computed.payload.next[bits_of(lane, width)] = 0
                        computed.payload.next[values + lane] = False
                    else:
                        computed.payload.next[bits_of(lane, width)] = taken.payload[bits_of(lane, width)]
                        computed.payload.next[values + lane] = True

        else:

            def clamp() -> None:
                value = intbv(0, min=low, max=high)
                for lane in range(lanes):
                    value[:] = taken.payload[bits_of(lane, width)].signed()
                    if value <= 0:
                        computed.payload.next[bits_of(lane, width)] = 0
                        computed.payload.next[values + lane] = False
                    elif value >= top:
                        computed.payload.next[bits_of(lane, width)] = top
                        computed.payload.next[values + lane] = False
                    else:
                        computed.payload.next[bits_of(lane, width)] = taken.payload[bits_of(lane, width)]
                        computed.payload.next[values + lane] = True

        return clamp


@dataclass(frozen=True, kw_only=True)
class ReluError(PointwiseError):
    """Passes e where the mask says so; a gate and a register a lane."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    def codes(self, e: IntArray, mask: IntArray) -> IntArray:
        """Select."""
        return e * mask

    def values(self, e: FloatArray, mask: FloatArray) -> FloatArray:
        """Select."""
        return e * mask

    def lane_block(self, both: Stream, computed: Stream) -> LaneBlock:
        """Select."""
        lanes, width = self.lanes, self.e_fixed.width
        values = lanes * width

        def select() -> None:
            for lane in range(lanes):
                if both.payload[values + lane]:
                    computed.payload.next[bits_of(lane, width)] = both.payload[bits_of(lane, width)]
                else:
                    computed.payload.next[bits_of(lane, width)] = 0

        return select
