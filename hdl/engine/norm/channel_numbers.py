"""The arithmetic of normalisation over the channels of a pixel, in integers; the circuit does exactly this.

Of C codes x with sum S and sum of squares Q, C x - S is C times the distance from the mean, and C Q - S**2 is C**2
times the variance, both without any rounding.  So a normalised code is (C x - S) / sqrt(C Q - S**2 + E), E for epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from hdl.engine.arithmetic.mac import WIDEST_FACTOR
from hdl.engine.norm.numbers import Mean
from hdl.errors import ShapeError
from hdl.fixed import Fixed, IntArray, requantise, round_shift

# bits of 1 / root, which lies between 1/2 and 1
ROOT_BITS = 18
# bits of its table's index (the first of them tells 1 to 2 from 2 to 4), of the place between two entries, and of an
# entry beyond `ROOT_BITS`
INDEX_BITS, BETWEEN_BITS, ENTRY_EXTRA = 9, 11, 4
ENTRY_BITS = ROOT_BITS + ENTRY_EXTRA
SLOPE_BITS = 14
# the root of a variance that isn't 0 is off by at most 2**-this of itself because epsilon is rounded
EPSILON_BITS = 17
# bits below a step of y to which the distance over the power of two next to its root is rounded
DISTANCE_EXTRA = 3
# bits below a step of the error to which what the inverse multiplies is rounded
SHAPED_EXTRA = 4
# of integers in 64 bits
MOST_BITS = 62


@lru_cache(maxsize=1)
def root_table() -> tuple[tuple[int, int], ...]:
    """(entry, slope) by index: 1 / sqrt(m) is ``(entry - (slope * between >> BETWEEN_BITS)) >> ENTRY_EXTRA``.

    The chord between both ends of an interval, lowered by half of what it is above the curve in its middle: off by less
    than 2**-20.4 of the root, before entries are rounded."""
    size, one = 1 << (INDEX_BITS - 1), 1 << ENTRY_BITS
    table = []
    for index in range(2 * size):
        scale, place = 1 + index // size, index % size
        ends = [scale * (1 + (place + step) / size) for step in (0, 0.5, 1)]
        first, middle, last = (1 / math.sqrt(end) for end in ends)
        lowered = first - ((first + last) / 2 - middle) / 2
        # half a step of the root is added here, so that what is cut off is rounded
        entry = round(lowered * one) + (1 << (ENTRY_EXTRA - 1))
        table.append((min(entry, one - 1), round((first - last) * one)))
    return tuple(table)


@dataclass(frozen=True)
class ChannelNumbers:
    """Forwards."""

    x: Fixed
    y: Fixed
    inverse: Fixed
    channels: int
    epsilon: float

    def __post_init__(self) -> None:
        name = f"ChannelNorm of {self.channels} channels of {self.x}"
        if self.channels < 2:
            raise ShapeError(f"{name}: one channel has no variance", "leave the normalisation out")
        if not self.x.signed or self.sum_bits > WIDEST_FACTOR:
            raise ShapeError(
                f"{name}: sums take {self.sum_bits} bits, signed, more than {WIDEST_FACTOR}",
                "normalise fewer channels, or signed ones of fewer bits",
            )
        if not 0 <= self.epsilon < math.inf or self.variance_bits > MOST_BITS:
            raise ShapeError(f"{name}: epsilon is {self.epsilon}", "it must be small beside the largest variance")
        if self.distance_fraction < self.y.fraction_bits:
            raise ShapeError(f"{name}: {self.y} is too fine for what is normalised", "give y fewer fraction bits")

    @property
    def log(self) -> int:
        """Bits of a channel's number."""
        return (self.channels - 1).bit_length()

    @property
    def factor(self) -> tuple[int, int]:
        """(odd factor, shift) of the number of channels."""
        shift = (self.channels & -self.channels).bit_length() - 1
        return self.channels >> shift, shift

    @property
    def sum_bits(self) -> int:
        """Of S, signed."""
        return self.x.width + self.log

    @property
    def square_bits(self) -> int:
        """Of Q, signed."""
        return 2 * self.x.width + self.log

    @property
    def guard(self) -> int:
        """Bits below the last one of C Q - S**2, an even number: the least of those that aren't 0 is C - 1."""
        missing = max(0, EPSILON_BITS - (self.channels - 1).bit_length())
        return missing + missing % 2

    @cached_property
    def epsilon_code(self) -> int:
        """E: epsilon C**2 in steps of x squared, with ``guard`` bits below; at least 1."""
        exponent = 2 * self.x.fraction_bits + self.guard
        return max(1, round(math.ldexp(self.epsilon * self.channels**2, exponent)))

    @property
    def variance_bits(self) -> int:
        """Of C Q - S**2 + E, unsigned."""
        largest = self.channels**2 << (2 * self.x.width - 2 + self.guard)
        return (largest + self.epsilon_code).bit_length()

    @property
    def top(self) -> int:
        """The largest exponent of a root."""
        return (self.variance_bits - 1) // 2

    @property
    def raise_bits(self) -> int:
        """Of by how much an exponent is below the largest."""
        return self.top.bit_length()

    @property
    def distance_bits(self) -> int:
        """Of C x - S when it is shifted left by as much: |C x - S| is at most sqrt(C - 1) roots."""
        return (2 * math.isqrt((self.channels - 1) << max(0, 2 * self.top - self.guard)) + 2).bit_length() + 1

    @property
    def distance_fraction(self) -> int:
        """Fraction bits of the distance that the root divides, as it is rounded: so many that it fits a multiplier."""
        point = self.top - self.guard // 2
        widest = WIDEST_FACTOR - 1 - (self.distance_bits - point)
        return min(self.y.fraction_bits + DISTANCE_EXTRA, point, widest)

    @property
    def distance_cut(self) -> int:
        """Bits that are rounded away from it."""
        return self.top - self.guard // 2 - self.distance_fraction

    @property
    def short_bits(self) -> int:
        """Of it, rounded."""
        return self.distance_bits - self.distance_cut + (self.distance_cut > 0)

    @property
    def y_shift(self) -> int:
        """Bits that are rounded away from its product with 1 / root."""
        return self.distance_fraction + ROOT_BITS - self.y.fraction_bits

    @property
    def inverse_bits(self) -> int:
        """Of C / root, less the power of two in C, signed, shifted left as the distance."""
        return ROOT_BITS + self.factor[0].bit_length() + self.top + 1

    @property
    def inverse_shift(self) -> int:
        """Bits that are rounded away from it."""
        point = ROOT_BITS + self.top - self.x.fraction_bits - self.guard // 2 - self.factor[1]
        return point - self.inverse.fraction_bits

    @property
    def off(self) -> float:
        """How far 1 / root of a pixel whose codes differ is off, in parts of itself: table, its rounding, epsilon's."""
        return float(2.0**-20.4 + 2.0 ** (1 - ENTRY_BITS) + 2.0**-ROOT_BITS + 2.0**-EPSILON_BITS)

    @property
    def off_flat(self) -> float:
        """As `off`, of a pixel whose codes are all equal: its variance is epsilon alone."""
        exact = math.ldexp(self.epsilon * self.channels**2, 2 * self.x.fraction_bits + self.guard)
        return self.off + abs(1 - math.sqrt(exact / self.epsilon_code))

    def roots(self, sums: IntArray, squares: IntArray) -> tuple[IntArray, IntArray]:
        """(1 / root between 1/2 and 1, by how much its exponent is below `top`), of exact sums."""
        variance = ((self.channels * squares - sums * sums) << self.guard) + self.epsilon_code
        exponent = np.zeros_like(variance)
        for level in (16, 8, 4, 2, 1):
            exponent += np.where(variance >> (2 * (exponent + level)) > 0, level, 0)
        raised = self.top - exponent
        width = 2 * self.top + 2
        mantissa = variance << (2 * raised)
        upper = mantissa >> (width - 1)
        # below the leading one
        below = (mantissa << (1 - upper)) & ((1 << (width - 1)) - 1)
        place = upper << (INDEX_BITS - 1) | _cut(below, width - 1, INDEX_BITS - 1)
        between = _cut(below, width - 1, INDEX_BITS - 1 + BETWEEN_BITS) & ((1 << BETWEEN_BITS) - 1)
        entries, slopes = (np.array(column) for column in zip(*root_table(), strict=True))
        return (entries[place] - (slopes[place] * between >> BETWEEN_BITS)) >> ENTRY_EXTRA, raised

    def normalised(self, x: IntArray) -> tuple[IntArray, IntArray]:
        """Codes (…, channels) -> y, and inverse (…, 1)."""
        sums, squares = x.sum(-1, keepdims=True), (x * x).sum(-1, keepdims=True)
        roots, raised = self.roots(sums, squares)
        distance = round_shift((self.channels * x - sums) << raised, self.distance_cut)
        y = requantise(distance * roots, self.distance_fraction + ROOT_BITS, self.y)
        inverse = round_shift((self.factor[0] * roots) << raised, self.inverse_shift)
        return y, self.inverse.saturate(inverse)


def _cut(number: IntArray, width: int, bits: int) -> IntArray:
    """The highest ``bits`` of numbers of ``width`` bits, zeros below where there are fewer."""
    return number >> (width - bits) if width >= bits else number << (bits - width)


@dataclass(frozen=True)
class ChannelErrorNumbers:
    """Backwards: dx = inverse * (e - mean(e) - normal * mean(e * normal)), means over the channels of a pixel."""

    e: Fixed
    normal: Fixed
    inverse: Fixed
    channels: int

    def __post_init__(self) -> None:
        if not self.e.signed or not self.normal.signed or self.inverse.signed:
            raise ShapeError(
                f"ChannelNormError takes signed errors and maps and unsigned inverses, not {self.e}, {self.normal}, "
                f"{self.inverse}"
            )
        if self.shaped.fraction_bits < self.e.fraction_bits or self.e.width + self.normal.width > MOST_BITS - 24:
            raise ShapeError(
                f"ChannelNormError: errors {self.e} times {self.normal} take too many bits", "give them fewer bits"
            )

    @property
    def mean(self) -> Fixed:
        """Of both means: the range of e, as many bits as a multiplier takes."""
        return Fixed(WIDEST_FACTOR, self.e.fraction_bits + WIDEST_FACTOR - self.e.width)

    @property
    def sum_bits(self) -> int:
        """Of the sum of errors."""
        return self.e.width + (self.channels - 1).bit_length()

    @property
    def product_bits(self) -> int:
        """Of the sum of errors times normalised codes."""
        return self.sum_bits + self.normal.width

    @property
    def mean_of_e(self) -> Mean:
        """From the sum."""
        return Mean(self.channels, self.e.fraction_bits, self.mean.fraction_bits)

    @property
    def mean_of_product(self) -> Mean:
        """From the sum."""
        return Mean(self.channels, self.e.fraction_bits + self.normal.fraction_bits, self.mean.fraction_bits)

    @property
    def total_fraction(self) -> int:
        """Fraction bits of what is shaped, exactly."""
        return self.mean.fraction_bits + max(self.normal.fraction_bits, 0)

    @property
    def total_bits(self) -> int:
        """Of it."""
        grown = self.mean.width + max(self.normal.fraction_bits, 0)
        return max(grown + 1, self.mean.width + self.normal.width + max(-self.normal.fraction_bits, 0)) + 1

    @property
    def shaped(self) -> Fixed:
        """Of it, rounded so far that it fits a multiplier."""
        whole = self.total_bits - self.total_fraction + 1
        fraction_bits = min(self.e.fraction_bits + SHAPED_EXTRA, WIDEST_FACTOR - whole, self.total_fraction)
        return Fixed(whole + fraction_bits, fraction_bits)

    def means(self, e: IntArray, normal: IntArray) -> tuple[IntArray, IntArray]:
        """mean(e), mean(e * normal) of codes (…, channels), saturated."""
        of_e = self.mean_of_e.of(e.sum(-1, keepdims=True))
        of_product = self.mean_of_product.of((e * normal).sum(-1, keepdims=True))
        return self.mean.saturate(of_e), self.mean.saturate(of_product)

    def errors(self, e: IntArray, normal: IntArray, inverse: IntArray, dx: Fixed) -> IntArray:
        """Codes of dx."""
        of_e, of_product = self.means(e, normal)
        point = self.normal.fraction_bits
        away = (e << (self.mean.fraction_bits - self.e.fraction_bits)) - of_e
        total = (away << max(point, 0)) - (normal * of_product << max(-point, 0))
        shaped = round_shift(total, self.total_fraction - self.shaped.fraction_bits)
        return requantise(shaped * inverse, self.shaped.fraction_bits + self.inverse.fraction_bits, dx)

    @property
    def off(self) -> float:
        """How far what the inverse multiplies is off, in steps of e."""
        mean = 1.5 * 2.0 ** (self.e.width - WIDEST_FACTOR) + 2.0 ** (self.e.width - 25)
        return 2.0 ** (self.e.fraction_bits - self.shaped.fraction_bits - 1) + mean * (
            1 + (self.normal.high + 1) * self.normal.step
        )
