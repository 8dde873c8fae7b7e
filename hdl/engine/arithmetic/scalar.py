"""Multiplication by a real constant as the circuits do it: an integer mantissa and a shift."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from hdl.fixed import IntArray, round_shift

# significant bits of a mantissa
MANTISSA_BITS = 17


@dataclass(frozen=True)
class Scalar:
    """``codes -> floor(codes * mantissa / 2**shift)``; a negative shift is exact."""

    mantissa: int
    shift: int

    @classmethod
    @cache
    def of(cls, value: float, source_fraction: int, target_fraction: int) -> Scalar:
        """Multiply codes with ``source_fraction`` bits by ``value`` into codes with ``target_fraction`` bits.

        The mantissa has 17 significant bits (a power of two: 1).  Raises ValueError for negative values."""
        if value < 0 or not math.isfinite(value):
            raise ValueError(f"a constant factor must be finite and not negative, not {value}")
        if value == 0:
            return cls(0, 0)
        fraction, exponent = math.frexp(value)
        mantissa = round(fraction * 2**MANTISSA_BITS)
        shift = MANTISSA_BITS - exponent + source_fraction - target_fraction
        while mantissa % 2 == 0:
            mantissa //= 2
            shift -= 1
        return cls(mantissa, shift)

    def times(self, codes: IntArray) -> IntArray:
        """The product, cut off (towards minus infinity) after the shift."""
        product = codes * self.mantissa
        return product >> self.shift if self.shift >= 0 else product << -self.shift

    def rounded(self, codes: IntArray) -> IntArray:
        """As `times`, but rounded to nearest."""
        return round_shift(codes * self.mantissa, self.shift)

    def product_bits(self, width: int) -> int:
        """Bits of the product with a signed code of ``width`` bits, before the shift."""
        return width + self.mantissa.bit_length()

    def bits(self, width: int) -> int:
        """Bits needed for product and result with a signed code of ``width`` bits."""
        return self.product_bits(width) + max(0, -self.shift)
