"""The logistic sigmoid, read from a table.

y = 1 / (1 + exp(-x))        mask = y * (1 - y), of 9 bits        dx = e * mask

Both are read at the same entry: what is kept is the derivative, rounded once from the exact y of that entry, neither y
nor a product of its codes.  So there is a product on the way back and none on the way there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdl.fixed import Fixed, FloatArray
from hdl.layers.pointwise.derivative_error import ProductError
from hdl.layers.pointwise.tabled import LONGEST, SHORTEST, Tabled

# of the derivative, 0 to 1/4
DERIVATIVE = Fixed(9, 10, signed=False)


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), for any x."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


@dataclass(frozen=True, kw_only=True)
class Sigmoid(Tabled):
    """A table of ``2**table_bits`` entries (4 to 11 bits) over -8 to 8, one a lane, of y and its derivative.

    y is off by at most ``0.5 + 2**(f + 1 - table_bits)`` steps of a format with f fraction bits, since an entry stands
    for 2**(4 - table_bits) of x and the slope is at most 1/4: with 10 bits, one step of ``Fixed(16, 8)``, 32.5 of
    ``Fixed(16, 14)``.  The derivative is off by at most ``0.5 + 2**(10 - table_bits)`` steps of its own, 2**-10; it is
    0 where x is beyond about 7.6."""

    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    # beyond, the ends are less than 2**-11 from 0 and 1
    range_bits = 4
    steepest = 0.25, 0.125
    far_ends = False
    mask_fixed = DERIVATIVE
    variants = (
        {},
        {"table_bits": SHORTEST, "x_fixed": Fixed(12, 13), "y_fixed": Fixed(16, 15)},
        {"table_bits": LONGEST, "x_fixed": Fixed(8, 3), "y_fixed": Fixed(16, 14)},
    )

    def values(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        y = sigmoid(x)
        return y, y * (1 - y)

    def error(self) -> SigmoidError:
        return SigmoidError(**self.map)


@dataclass(frozen=True, kw_only=True)
class SigmoidError(ProductError):
    """dx = e * mask, the derivative that was kept: one multiplier a lane, exact, rounded once to nearest, ties up."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    dx_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    mask_fixed = DERIVATIVE
    variants = ({}, {"dx_fixed": Fixed(16, 14)}, {"e_fixed": Fixed(12, 4), "dx_fixed": Fixed(16, 16)})
