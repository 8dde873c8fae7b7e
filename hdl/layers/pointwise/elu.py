"""Exponential linear units (Clevert et al. 2015), read from a table.

y = x where x >= 0, else alpha * (exp(x) - 1)        mask = 1 where x >= 0, else alpha * exp(x)        dx = e * mask
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray
from hdl.layers.pointwise.derivative_error import SLOPE, DerivativeError
from hdl.layers.pointwise.tabled import LONGEST, SHORTEST, Tabled


@dataclass(frozen=True, kw_only=True)
class Elu(Tabled):
    """A table of ``2**table_bits`` entries (4 to 11 bits) over -8 to 8, one a lane, of y - max(x, 0) and its slope.

    y is off by at most ``alpha`` (at most 1) times 2**(3 - table_bits) and 0.0004, since an entry stands for
    2**(4 - table_bits) of x and what it holds changes at most ``alpha`` times as fast; below -8 y is -alpha.  Then come
    the roundings of the entry and of y, 0.625 steps: with 10 bits, 2.8 steps of ``Fixed(16, 8)`` at most, 34 of
    ``Fixed(16, 12)``.  The derivative is off by as much, and half a step of 2**-8; it jumps at 0, between two
    entries."""

    alpha: float = 1.0
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    range_bits = 4
    steepest = 1.0, 1.0
    beside_relu = True
    mask_fixed = SLOPE
    variants = (
        {},
        {"alpha": 0.5, "table_bits": LONGEST, "x_fixed": Fixed(12, 7), "y_fixed": Fixed(16, 11)},
        {"table_bits": SHORTEST, "x_fixed": Fixed(12, 9), "y_fixed": Fixed(12, 6)},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1:
            raise ShapeError(f"Elu: alpha is {self.alpha}", "it must lie above 0 and be at most 1")

    def values(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        low = np.minimum(x, 0)
        return np.maximum(x, 0) + self.alpha * np.expm1(low), np.where(x >= 0, 1.0, self.alpha * np.exp(low))

    def error(self) -> DerivativeError:
        return DerivativeError(**self.map)
