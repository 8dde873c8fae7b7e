"""SiLU, or swish: an element times its logistic sigmoid, read from a table.

y = x / (1 + exp(-x))        mask = s * (1 + x * (1 - s)) with s = 1 / (1 + exp(-x))        dx = e * mask
"""

from __future__ import annotations

from dataclasses import dataclass

from hdl.fixed import Fixed, FloatArray
from hdl.layers.pointwise.derivative_error import SLOPE, DerivativeError
from hdl.layers.pointwise.sigmoid import sigmoid
from hdl.layers.pointwise.tabled import LONGEST, SHORTEST, Tabled


@dataclass(frozen=True, kw_only=True)
class Silu(Tabled):
    """A table of ``2**table_bits`` entries (4 to 11 bits) over -8 to 8, one a lane, of y - max(x, 0) and its slope.

    y is off by at most 2**(2 - table_bits) and 0.0027, since an entry stands for 2**(4 - table_bits) of x, what it
    holds changes at most half as fast, and beyond ±8 y is max(x, 0); then come the roundings of the entry and of y,
    0.625 steps: with 10 bits, 2.4 steps of ``Fixed(16, 8)`` at most, 28 of ``Fixed(16, 12)``.  The derivative is off
    by at most 2**(2 - table_bits) and 0.0024, and half a step of 2**-8."""

    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    range_bits = 4
    steepest = 0.5, 0.5
    beside_relu = True
    mask_fixed = SLOPE
    variants = (
        {},
        {"table_bits": LONGEST, "x_fixed": Fixed(12, 5), "y_fixed": Fixed(16, 12)},
        {"table_bits": SHORTEST, "x_fixed": Fixed(12, 9), "y_fixed": Fixed(12, 6)},
    )

    def values(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        s = sigmoid(x)
        return x * s, s * (1 + x * (1 - s))

    def error(self) -> DerivativeError:
        return DerivativeError(**self.map)
