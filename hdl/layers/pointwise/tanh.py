"""The hyperbolic tangent, read from a table.

y = tanh(x)        mask = 1 - y**2        dx = e * mask
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdl.fixed import Fixed, FloatArray
from hdl.layers.pointwise.derivative_error import SLOPE, DerivativeError
from hdl.layers.pointwise.tabled import LONGEST, SHORTEST, Tabled


@dataclass(frozen=True, kw_only=True)
class Tanh(Tabled):
    """A table of ``2**table_bits`` entries (4 to 11 bits) over -4 to 4, one a lane, of y and its derivative.

    y is off by at most 2**(2 - table_bits) and 0.0007, since an entry stands for 2**(3 - table_bits) of x, the slope is
    at most 1, and beyond ±4 y is ±1; then it is rounded: with 10 bits, 1.7 steps of ``Fixed(16, 8)`` at most, 75 of
    ``Fixed(16, 14)``.  The derivative is off by at most 0.8 * 2**(2 - table_bits) and 0.0014, and half a step of
    2**-8."""

    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    range_bits = 3
    steepest = 1.0, 0.8
    mask_fixed = SLOPE
    variants = (
        {},
        {"table_bits": LONGEST, "x_fixed": Fixed(12, 8), "y_fixed": Fixed(16, 13)},
        {"table_bits": SHORTEST, "x_fixed": Fixed(12, 9), "y_fixed": Fixed(12, 9)},
    )

    def values(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        y = np.tanh(x)
        return y, 1 - y**2

    def error(self) -> DerivativeError:
        return DerivativeError(**self.map)
