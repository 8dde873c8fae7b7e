"""GELU (Hendrycks and Gimpel 2016): an element times the share of a normal distribution below it, read from a table.

y = x * (1 + erf(x / sqrt(2))) / 2        mask = dy / dx        dx = e * mask

or, ``approximate`` by tanh,  y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hdl.fixed import Fixed, FloatArray
from hdl.layers.pointwise.derivative_error import SLOPE, DerivativeError
from hdl.layers.pointwise.tabled import LONGEST, SHORTEST, Tabled

CUBE = 0.044715
_erf = np.frompyfunc(math.erf, 1, 1)


class Approximate(Enum):
    """How the distribution is computed; the two are less than 0.0005 apart."""

    NONE = "none"
    TANH = "tanh"


@dataclass(frozen=True, kw_only=True)
class Gelu(Tabled):
    """A table of ``2**table_bits`` entries (4 to 11 bits) over -4 to 4, one a lane, of y - max(x, 0) and its slope.

    y is off by at most 2**(1 - table_bits) and 0.0002, since an entry stands for 2**(3 - table_bits) of x, what it
    holds changes at most half as fast, and beyond ±4 y is max(x, 0); then come the roundings of the entry and of y,
    0.625 steps: with 10 bits, 1.2 steps of ``Fixed(16, 8)`` at most, 9.2 of ``Fixed(16, 12)``.  The derivative is off
    by at most 0.8 * 2**(2 - table_bits) and 0.0006, and half a step of 2**-8."""

    approximate: Approximate = Approximate.NONE
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    range_bits = 3
    steepest = 0.5, 0.8
    beside_relu = True
    mask_fixed = SLOPE
    variants = (
        {},
        {"approximate": Approximate.TANH, "table_bits": LONGEST, "x_fixed": Fixed(12, 8), "y_fixed": Fixed(16, 11)},
        {"table_bits": SHORTEST, "x_fixed": Fixed(12, 9), "y_fixed": Fixed(12, 6)},
    )

    def values(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        # beyond ±40 both are at their ends, and cubes stay small
        near = np.clip(x, -40, 40)
        if self.approximate is Approximate.TANH:
            scale = math.sqrt(2 / math.pi)
            tanh = np.tanh(scale * (near + CUBE * near**3))
            below, density = (1 + tanh) / 2, (1 - tanh**2) / 2 * scale * (1 + 3 * CUBE * near**2)
        else:
            below = (1 + np.asarray(_erf(near / math.sqrt(2)), np.float64)) / 2
            density = np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi)
        return x * below, below + near * density

    def error(self) -> DerivativeError:
        return DerivativeError(**self.map)
