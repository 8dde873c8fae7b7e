"""The arithmetic of local response normalisation, in integers; the circuit does exactly this.

Of a channel with the sum S of the squares of its neighbours, the strength is s = bias + alpha / size * S.  It is
rounded once, into as many bits as are kept for the way back; powers of it are read from tables of chords.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np

from hdl.engine.arithmetic.mac import WIDEST_FACTOR
from hdl.engine.arithmetic.rounding import exact_sum
from hdl.engine.arithmetic.scalar import MANTISSA_BITS
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise, round_shift

# of a power, signed, so that a DSP block multiplies by two of them; bits of a table's entries beyond it
POWER_BITS, ENTRY_EXTRA = 18, 4
# bits of a strength that find an entry; the others lie between two
PLACE_BITS = 10
# bits below a step of the strength to which sums are scaled
STRENGTH_EXTRA = 20
# of a code times the power that the way back takes, signed
SHARE_BITS = 18
# of integers in 64 bits
MOST_BITS = 62
Values = TypeVar("Values", IntArray, FloatArray)


@dataclass(frozen=True)
class PowerTable:
    """``scale * max(s, bias)**-exponent`` of unsigned codes s, as signed codes of `power`."""

    strength: Fixed
    bias: float
    exponent: float
    scale: float = 1.0

    @property
    def place_bits(self) -> int:
        """Of the index of an entry."""
        return min(PLACE_BITS, self.strength.width - 1)

    @property
    def between_bits(self) -> int:
        """Of the place between two entries."""
        return self.strength.width - self.place_bits

    @property
    def power(self) -> Fixed:
        """As fine as the largest power, of the bias, allows."""
        largest = self.scale * self.bias**-self.exponent
        return Fixed(POWER_BITS, math.floor(math.log2(((1 << (POWER_BITS - 1)) - 2) / largest)))

    @property
    def entry_bits(self) -> int:
        """Of an entry, unsigned."""
        return POWER_BITS + ENTRY_EXTRA

    @cached_property
    def slope_bits(self) -> int:
        """Of a slope, unsigned; at least 1."""
        return max(1, *(slope.bit_length() for _, slope in self.rows))

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """(entry, slope) by index; a power is ``(entry - (slope * between >> between_bits)) >> ENTRY_EXTRA``.

        The chord over each interval, lowered by half of what it is above the curve in its middle.  Below the bias,
        where no strength comes, it goes on or is flat."""
        return _rows(self)

    def values(self, strength: FloatArray) -> FloatArray:
        """Of real numbers."""
        return np.asarray(self.scale * np.maximum(strength, self.bias) ** -self.exponent)

    def codes(self, strength: IntArray) -> IntArray:
        """Codes of `power`."""
        entries, slopes = (np.array(column) for column in zip(*self.rows, strict=True))
        place = strength >> self.between_bits
        between = strength & ((1 << self.between_bits) - 1)
        return np.asarray((entries[place] - (slopes[place] * between >> self.between_bits)) >> ENTRY_EXTRA)

    @cached_property
    def off(self) -> float:
        """How far a power of any strength from the bias on is off."""
        return _off(self)


@lru_cache(maxsize=64)
def _rows(table: PowerTable) -> tuple[tuple[int, int], ...]:
    size, one = 1 << table.place_bits, 2.0 ** (table.power.fraction_bits + ENTRY_EXTRA)
    width = table.strength.step * (1 << table.between_bits)
    rows = []
    for index in range(size):
        low, high = index * width, (index + 1) * width
        start = max(low, table.bias)
        first, middle, last = table.values(np.array([start, (start + max(high, start)) / 2, max(high, start)])).tolist()
        slope = (first - last) / (high - start) if high > start else 0.0
        entry = first + slope * (start - low) - max(0.0, (first + last) / 2 - middle) / 2
        # half a step is added here, so that what is cut off is rounded
        rounded = round(entry * one) + (1 << (ENTRY_EXTRA - 1))
        rows.append((min(rounded, (1 << (POWER_BITS - 1 + ENTRY_EXTRA)) - 1), round(slope * width * one)))
    return tuple(rows)


@lru_cache(maxsize=64)
def _off(table: PowerTable) -> float:
    codes = np.arange(math.ceil(table.bias / table.strength.step), 1 << table.strength.width, dtype=np.int64)
    away = table.power.decode(table.codes(codes)) - table.values(table.strength.decode(codes))
    return float(np.abs(away).max())


@dataclass(frozen=True)
class LocalResponseNumbers:
    """Forwards, and what both ways share."""

    name: str
    x: Fixed
    strength: Fixed
    channels: int
    size: int
    alpha: float
    beta: float
    bias: float

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("beta", self.beta), ("bias", self.bias)):
            if not 0 < value < math.inf:
                raise ShapeError(f"{self.name}: {name} is {value}", "it must be positive and finite")
        if self.size < 1:
            raise ShapeError(f"{self.name}: size is {self.size}", "it must be at least 1")
        if self.strength.signed or self.strength.width < 2 or self.strength.high * self.strength.step <= self.bias:
            raise ShapeError(
                f"{self.name}: {self.strength} does not hold strengths of {self.bias} and more",
                "give the strength an unsigned format of fewer fraction bits",
            )
        if not self.x.signed or self.total_bits > MOST_BITS:
            raise ShapeError(
                f"{self.name}: alpha {self.alpha} with codes {self.x} takes {self.total_bits} bits",
                "normalise signed codes of fewer bits, or leave the normalisation out",
            )

    @property
    def before(self) -> int:
        """Channels before one that count for it."""
        return (self.size - 1) // 2

    @property
    def after(self) -> int:
        """Channels after one that count for it."""
        return self.size - 1 - self.before

    @property
    def sum_bits(self) -> int:
        """Of S, signed."""
        return 2 * self.x.width + (self.size - 1).bit_length()

    @property
    def factor(self) -> tuple[int, int]:
        """(mantissa, shift): alpha / size to 17 significant bits."""
        fraction, exponent = math.frexp(self.alpha / self.size)
        return round(math.ldexp(fraction, MANTISSA_BITS)), MANTISSA_BITS - exponent

    @property
    def cut(self) -> int:
        """Low bits of S that are rounded away, since they are far below a step of the strength."""
        point = 2 * self.x.fraction_bits + self.factor[1]
        return min(max(0, point - self.strength.fraction_bits - STRENGTH_EXTRA), self.sum_bits - 2)

    @property
    def short_bits(self) -> int:
        """Of what is left of S, signed."""
        return self.sum_bits - self.cut + 1

    @property
    def total_fraction(self) -> int:
        """Fraction bits of the strength before it is rounded."""
        return 2 * self.x.fraction_bits + self.factor[1] - self.cut

    @property
    def offset(self) -> int:
        """The bias in them."""
        return round(math.ldexp(self.bias, self.total_fraction))

    @property
    def scaled_bits(self) -> int:
        """Of S times alpha / size, signed."""
        return self.short_bits + MANTISSA_BITS + 1

    @property
    def total_bits(self) -> int:
        """Of the strength before it is rounded, signed."""
        return max(self.scaled_bits, self.offset.bit_length() + 1) + 1

    @property
    def power(self) -> PowerTable:
        """Of what x is multiplied by."""
        return PowerTable(self.strength, self.bias, self.beta)

    def windows(self, values: Values, before: int, after: int) -> Values:
        """Sums over neighbouring channels, of which those outside are 0."""
        padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(before, after)])
        total: Values = np.zeros_like(values)
        for step in range(before + after + 1):
            total += padded[..., step : step + values.shape[-1]]
        return total

    def strengths(self, x: IntArray) -> IntArray:
        """Codes of the strength."""
        short = round_shift(self.windows(x * x, self.before, self.after), self.cut)
        return requantise(short * self.factor[0] + self.offset, self.total_fraction, self.strength)

    def normalised(self, x: IntArray, strength: IntArray, y: Fixed) -> IntArray:
        """Codes of y."""
        power = self.power
        return requantise(x * power.codes(strength), self.x.fraction_bits + power.power.fraction_bits, y)

    @property
    def strength_off(self) -> float:
        """How far a strength is off, at most, where it does not saturate: alpha's rounding, S's, its own."""
        fraction = 2.0**-MANTISSA_BITS * self.strength.high * self.strength.step
        return fraction + 2.0**-4 * self.strength.step + self.strength.step / 2

    @property
    def power_off(self) -> float:
        """How far the power of a strength is off: its table, and the strength."""
        return float(self.power.off + self.beta * self.bias ** (-self.beta - 1) * self.strength_off)


@dataclass(frozen=True)
class LocalResponseErrorNumbers:
    """Backwards: dx = e * s**-beta - x * sum of (e * x * v(s)) over the channels for which x counts,
    v(s) = 2 alpha beta / size * s**(-beta - 1)."""

    forward: LocalResponseNumbers
    e: Fixed

    def __post_init__(self) -> None:
        if not self.e.signed or self.difference.width > MOST_BITS:
            raise ShapeError(
                f"{self.forward.name}: errors {self.e} take {self.difference.width} bits, more than {MOST_BITS}",
                "give them fewer bits",
            )

    @property
    def slope(self) -> PowerTable:
        """v."""
        forward = self.forward
        scale = 2 * forward.alpha * forward.beta / forward.size
        return PowerTable(forward.strength, forward.bias, forward.beta + 1, scale)

    @property
    def share(self) -> Fixed:
        """Of x v(s), rounded: the range of x times the largest v."""
        exact = self.forward.x.fraction_bits + self.slope.power.fraction_bits
        return Fixed(SHARE_BITS, exact - (self.forward.x.width + POWER_BITS - 1 - SHARE_BITS))

    @property
    def sum_bits(self) -> int:
        """Of a sum of e x v(s), signed."""
        return self.e.width + SHARE_BITS + (self.forward.size - 1).bit_length()

    @property
    def total(self) -> Fixed:
        """Of that sum, rounded so far that it fits a multiplier."""
        cut = max(0, self.sum_bits + 1 - WIDEST_FACTOR)
        return Fixed(WIDEST_FACTOR, self.e.fraction_bits + self.share.fraction_bits - cut)

    @property
    def direct(self) -> Fixed:
        """Of e times a power."""
        power = self.forward.power.power
        return Fixed(self.e.width + power.width, self.e.fraction_bits + power.fraction_bits)

    @property
    def across(self) -> Fixed:
        """Of x times that sum."""
        x = self.forward.x
        return Fixed(x.width + self.total.width, x.fraction_bits + self.total.fraction_bits)

    @property
    def difference(self) -> Fixed:
        """Of both."""
        return exact_sum(self.direct, self.across)

    def errors(self, e: IntArray, x: IntArray, strength: IntArray, dx: Fixed) -> IntArray:
        """Codes of dx."""
        forward, slope = self.forward, self.slope
        share = requantise(x * slope.codes(strength), forward.x.fraction_bits + slope.power.fraction_bits, self.share)
        sums = forward.windows(e * share, forward.after, forward.before)
        total = requantise(sums, self.e.fraction_bits + self.share.fraction_bits, self.total)
        point = self.difference.fraction_bits
        direct = e * forward.power.codes(strength) << (point - self.direct.fraction_bits)
        return requantise(direct - (x * total << (point - self.across.fraction_bits)), point, dx)

    @property
    def off(self) -> float:
        """How far dx is off, of the largest e and x."""
        e, x = (self.e.high + 1) * self.e.step, (self.forward.x.high + 1) * self.forward.x.step
        share = x * self.slope.off + self.share.step / 2
        total = self.forward.size * e * share + self.total.step / 2
        return e * self.forward.power.off + x * total
