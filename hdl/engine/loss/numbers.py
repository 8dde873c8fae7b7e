"""Exponentials, reciprocal and logarithm of a softmax as integer functions of codes; the circuit does exactly this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hdl.fixed import Fixed, IntArray, round_shift

# a record of the loss: [loss, nats in u32.16; 1 if the largest probability is the label's]
METRICS = Fixed(32, 16, signed=False)

# bits of the fraction of an exponent (to base 2), looked up in two tables of half as many bits
EXPONENT_BITS = 14
HALF_BITS = EXPONENT_BITS // 2
# fraction bits of the tables' entries
TABLE_BITS = 17
# fraction bits of exp(x - m); 1 is the largest value
VALUE_BITS = 24
# significant bits of log2(e)
SCALE_BITS = 17
# bits of the mantissa of s that index the table of logarithms, whose entries have as many fraction bits as METRICS
LOG_BITS = 10
# bits of a quotient 1 / s beyond those that tell the number of classes
QUOTIENT_BITS = 17


def finer_bits(weight: float) -> int:
    """Fraction bits that an error multiplied by the weight of its loss, at most 1, has beyond those of a whole one."""
    return math.floor(-math.log2(weight))


@dataclass(frozen=True)
class SoftmaxNumbers:
    """The arithmetic, step by step."""

    x: Fixed
    classes: int
    # share of the target that all classes have alike
    smoothing: float = 0.0
    # of the loss, by which its error is multiplied; at most 1
    weight: float = 1.0

    @property
    def exponent_shift(self) -> int:
        """Bits to cut off from ``distance * scale`` to get an exponent with `EXPONENT_BITS` fraction bits."""
        return self.x.fraction_bits + SCALE_BITS - 1 - EXPONENT_BITS

    @property
    def scale(self) -> int:
        """log2(e) with `SCALE_BITS` - 1 fraction bits."""
        return round(math.log2(math.e) * (1 << (SCALE_BITS - 1)))

    @property
    def distance_bits(self) -> int:
        """Bits of m - x."""
        return self.x.width

    @cached_property
    def coarse(self) -> tuple[int, ...]:
        """2**-(i / 2**HALF_BITS)."""
        return tuple(round(2 ** (TABLE_BITS - i / 2**HALF_BITS)) for i in range(2**HALF_BITS))

    @cached_property
    def fine(self) -> tuple[int, ...]:
        """2**-(i / 2**EXPONENT_BITS)."""
        return tuple(round(2 ** (TABLE_BITS - i / 2**EXPONENT_BITS)) for i in range(2**HALF_BITS))

    @property
    def sum_bits(self) -> int:
        """Bits of s, whose terms are at most 1."""
        return VALUE_BITS + 1 + (self.classes - 1).bit_length()

    @property
    def quotient_shift(self) -> int:
        """The reciprocal is (one << quotient_shift) // s: at most `quotient_shift` + 1 bits."""
        return QUOTIENT_BITS + (self.classes - 1).bit_length() + finer_bits(self.weight)

    @property
    def one(self) -> int:
        """What is divided by s: the weight, `VALUE_BITS` fraction bits."""
        return round(self.weight * (1 << VALUE_BITS))

    @property
    def hot(self) -> int:
        """The target of the label's class, with the fraction bits of an exponential times a reciprocal."""
        return self.cold + round(self.weight * (1 - self.smoothing) * (1 << (VALUE_BITS + self.quotient_shift)))

    @property
    def cold(self) -> int:
        """The target of every other class, likewise."""
        return round(self.weight * self.smoothing / self.classes * (1 << (VALUE_BITS + self.quotient_shift)))

    @cached_property
    def log_of_exponent(self) -> tuple[int, ...]:
        """ln 2**i, for the power of two in s."""
        return tuple(round(i * math.log(2) * 2**METRICS.fraction_bits) for i in range(self.sum_bits - VALUE_BITS))

    @cached_property
    def log_of_mantissa(self) -> tuple[int, ...]:
        """ln of the middle of each interval of the mantissa; exactly 0 in the first, which a sure guess falls into."""
        steps = 2**LOG_BITS
        middles = [math.log(1 + (i + 0.5) / steps) for i in range(steps)]
        return (0, *(round(value * 2**METRICS.fraction_bits) for value in middles[1:]))

    @cached_property
    def _powers(self) -> tuple[IntArray, IntArray]:
        """`coarse` and `fine`, for `exponentials`."""
        return np.array(self.coarse), np.array(self.fine)

    @cached_property
    def _logarithms(self) -> tuple[IntArray, IntArray]:
        """`log_of_exponent` and `log_of_mantissa`, for `logarithm`."""
        return np.array(self.log_of_exponent), np.array(self.log_of_mantissa)

    def exponentials(self, distance: IntArray) -> IntArray:
        """exp(-distance), `VALUE_BITS` fraction bits."""
        exponent = round_shift(distance * self.scale, self.exponent_shift)
        whole = np.minimum(exponent >> EXPONENT_BITS, VALUE_BITS + 2)
        part = exponent & ((1 << EXPONENT_BITS) - 1)
        coarse, fine = self._powers
        product = coarse[part >> HALF_BITS] * fine[part & ((1 << HALF_BITS) - 1)]
        kept = product >> (2 * TABLE_BITS - VALUE_BITS - 1)
        return np.asarray(((kept >> whole) + 1) >> 1)

    def reciprocal(self, total: IntArray) -> IntArray:
        """Weight / s, cut off, with `VALUE_BITS` + `quotient_shift` fraction bits less those of s."""
        return (self.one << self.quotient_shift) // total

    def logarithm(self, total: IntArray) -> IntArray:
        """ln s, with as many fraction bits as METRICS."""
        power = np.frexp(total.astype(np.float64))[1].astype(np.int64) - 1
        mantissa = (total >> (power - LOG_BITS)) - (1 << LOG_BITS)
        powers, mantissas = self._logarithms
        return np.asarray(powers[power - VALUE_BITS] + mantissas[mantissa])
