"""Hard swish (Howard et al. 2019): an element times a ramp from -3 to 3, read from a table.

y = x * min(max(x / 6 + 1 / 2, 0), 1)        mask = 0 below -3, x / 3 + 1 / 2, 1 from 3 on        dx = e * mask
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdl.fixed import Fixed, FloatArray
from hdl.layers.pointwise.derivative_error import SLOPE, DerivativeError
from hdl.layers.pointwise.tabled import LONGEST, SHORTEST, Tabled


@dataclass(frozen=True, kw_only=True)
class HardSwish(Tabled):
    """A table of ``2**table_bits`` entries (4 to 11 bits) over -4 to 4, one a lane, of y - max(x, 0) and its slope.

    y is off by at most 2**(1 - table_bits), since an entry stands for 2**(3 - table_bits) of x and what it holds
    changes at most half as fast; then come the roundings of the entry and of y, 0.625 steps: with 10 bits, 1.125 steps
    of ``Fixed(16, 8)`` at most, 8.6 of ``Fixed(16, 12)``.  The derivative is off by at most 1/3 of 2**(2 - table_bits),
    and half a step of 2**-8; it jumps at ±3, between two entries."""

    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    range_bits = 3
    steepest = 0.5, 1 / 3
    beside_relu = True
    mask_fixed = SLOPE
    variants = (
        {},
        {"table_bits": LONGEST, "x_fixed": Fixed(12, 8), "y_fixed": Fixed(16, 11)},
        {"table_bits": SHORTEST, "x_fixed": Fixed(12, 9), "y_fixed": Fixed(12, 6)},
    )

    def values(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        slope = np.where(x < -3, 0.0, np.where(x < 3, x / 3 + 0.5, 1.0))
        return x * np.clip(x / 6 + 0.5, 0, 1), slope

    def error(self) -> DerivativeError:
        return DerivativeError(**self.map)
