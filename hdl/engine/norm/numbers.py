"""The arithmetic of online normalisation that happens once a frame and channel, in integers.

Statistics are wide (the mean 32 bits, the variance twice the data's width and 8 more), so that running averages with a
memory of a thousand frames move; what the data path multiplies by fits an 18 x 19 bit multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hdl.engine.arithmetic.scalar import Scalar
from hdl.errors import FoldingError
from hdl.fixed import Fixed, IntArray, round_shift

# format of the normalised map: a range of 8 standard deviations, which also clamps outliers
NORMAL = Fixed(16, 12)
# bits of the running mean
MEAN_BITS = 32
# bits below the last bit of x (of x squared) that means to be squared (variances) carry
SQUARE_GUARD = 8
# bits of the inverse of sigma
INVERSE_BITS = 18
# bits below the last bit of the variance that its square root sees
ROOT_EXTRA = 8
# fraction bits of the reciprocal of the number of pixels
RECIPROCAL_BITS = 23
# widest data that the statistics have room for in 64 bits
WIDEST_DATA = 16


@dataclass(frozen=True)
class Mean:
    """Exact sums over ``pixels`` to mean codes: ``round(round(sum / 2**pre) * reciprocal / 2**23)``.

    The power of two next above ``pixels`` is a shift; what remains, between 1/2 and 1, is one multiplication by a
    constant, and none when ``pixels`` is a power of two."""

    pixels: int
    # fraction bits of the sums and of the mean
    source: int
    target: int

    @property
    def pre(self) -> int:
        """Right shift of the sum."""
        return (self.pixels - 1).bit_length() + self.source - self.target

    @property
    def reciprocal(self) -> int:
        """Mantissa with `RECIPROCAL_BITS` fraction bits, 1 <= value < 2."""
        scale = 1 << (self.pixels - 1).bit_length()
        return round((scale << RECIPROCAL_BITS) / self.pixels)

    @property
    def is_shift(self) -> bool:
        """Whether the number of pixels is a power of two."""
        return self.reciprocal == 1 << RECIPROCAL_BITS

    def of(self, sums: IntArray) -> IntArray:
        """Mean codes."""
        shifted = round_shift(sums, self.pre)
        return shifted if self.is_shift else round_shift(shifted * self.reciprocal, RECIPROCAL_BITS)


@dataclass(frozen=True)
class ForwardNumbers:
    """Formats and steps of the running statistics of one `OnlineNorm`."""

    x: Fixed
    pixels: int
    # decay of the running statistics
    decay: float
    epsilon: float

    def __post_init__(self) -> None:
        if not self.x.signed or self.x.width > WIDEST_DATA:
            raise FoldingError(
                f"online normalisation takes signed data of at most {WIDEST_DATA} bits, not {self.x}",
                "narrow its input",
            )

    @property
    def mean(self) -> Fixed:
        """The running mean: the range of x."""
        return Fixed(MEAN_BITS, self.x.fraction_bits + MEAN_BITS - self.x.width)

    @property
    def variance(self) -> Fixed:
        """The running variance, and epsilon added."""
        return Fixed(2 * self.x.width + SQUARE_GUARD, 2 * self.x.fraction_bits + SQUARE_GUARD, signed=False)

    @property
    def centre(self) -> Fixed:
        """The mean as subtracted from x."""
        return Fixed(self.x.width + 1, self.x.fraction_bits + 1)

    @property
    def inverse(self) -> Fixed:
        """1 / sigma: saturates for a sigma below 16 steps of x; 9 bits and more for one below 1/8 of the range of x."""
        return Fixed(INVERSE_BITS, self.x.width + 6 - self.x.fraction_bits, signed=False)

    @property
    def numerator_bits(self) -> int:
        """inverse = 2**this / root, to nearest."""
        return self.x.width + SQUARE_GUARD + 6

    @property
    def root_bits(self) -> int:
        """Bits of the square root."""
        return (self.variance.width + ROOT_EXTRA + 1) // 2

    @cached_property
    def epsilon_code(self) -> int:
        """Epsilon in the variance's format; at least one step, at most a quarter of the range."""
        code = round(self.epsilon * 2.0**self.variance.fraction_bits)
        return min(max(code, 1), 1 << (self.variance.width - 2))

    @cached_property
    def mean_of_x(self) -> Mean:
        """Sum of x to mean."""
        return Mean(self.pixels, self.x.fraction_bits, self.mean.fraction_bits)

    @cached_property
    def mean_of_square(self) -> Mean:
        """Sum of x squared to variance format."""
        return Mean(self.pixels, 2 * self.x.fraction_bits, self.variance.fraction_bits)

    @property
    def square_shift(self) -> int:
        """Bits by which means are shortened before they are squared."""
        return MEAN_BITS - self.x.width - SQUARE_GUARD

    @cached_property
    def fresh(self) -> Scalar:
        """1 - decay."""
        return Scalar.of(1.0 - self.decay, 0, 0)

    @cached_property
    def kept(self) -> Scalar:
        """decay."""
        return Scalar.of(self.decay, 0, 0)

    def start(self, channels: int) -> tuple[IntArray, IntArray]:
        """Mean 0 and variance 1 (or as much of it as the format holds)."""
        one = int(self.variance.encode(1.0)) - self.epsilon_code
        return np.zeros(channels, np.int64), np.full(channels, max(one, 0), np.int64)

    def step(self, mean: IntArray, variance: IntArray, sums: IntArray, squares: IntArray) -> tuple[IntArray, IntArray]:
        """Statistics after a frame with these sums of x and of x squared (all by channel)."""
        now = self.mean_of_x.of(sums)
        away = now - mean
        square = round_shift(round_shift(now, self.square_shift) ** 2, SQUARE_GUARD)
        distance = round_shift(round_shift(away, self.square_shift) ** 2, SQUARE_GUARD)
        within = np.maximum(self.mean_of_square.of(squares) - square, 0)
        change = within + self.kept.times(distance) - variance
        grown = variance + self.fresh.rounded(change)
        return mean + self.fresh.rounded(away), np.minimum(grown, self.variance.high - self.epsilon_code)

    def table(self, mean: IntArray, variance: IntArray) -> tuple[IntArray, IntArray]:
        """What the data path needs of the statistics: centre and inverse."""
        root = integer_root((variance + self.epsilon_code) << ROOT_EXTRA)
        inverse = np.minimum(((1 << self.numerator_bits) + (root >> 1)) // root, self.inverse.high)
        shift = self.mean.fraction_bits - self.centre.fraction_bits
        return self.centre.saturate(round_shift(mean, shift)), inverse


@dataclass(frozen=True)
class BackwardNumbers:
    """Formats and steps of the control process of one `OnlineNormBackward`."""

    e: Fixed
    dx: Fixed
    normal: Fixed
    pixels: int
    # decay of the control process
    decay: float

    @property
    def shaped(self) -> Fixed:
        """The error after the first control."""
        return Fixed(self.e.width + 2, self.e.fraction_bits + 1)

    @property
    def state_v(self) -> Fixed:
        """Accumulated correlation of the shaped error with the normalised map."""
        return Fixed(self.e.width + 24, self.e.fraction_bits + 16)

    @property
    def state_u(self) -> Fixed:
        """Accumulated mean of dx."""
        return Fixed(self.dx.width + 24, self.dx.fraction_bits + 16)

    @property
    def control_v(self) -> Fixed:
        """(1 - decay) v as the data path multiplies by it."""
        return Fixed(self.e.width + 3, self.e.fraction_bits + 4)

    @property
    def control_u(self) -> Fixed:
        """(1 - decay) u as the data path subtracts it."""
        return Fixed(self.dx.width + 8, self.dx.fraction_bits + 8)

    @cached_property
    def mean_v(self) -> Mean:
        """Sum of shaped error times normalised map to the format of v."""
        return Mean(self.pixels, self.shaped.fraction_bits + self.normal.fraction_bits, self.state_v.fraction_bits)

    @cached_property
    def mean_u(self) -> Mean:
        """Sum of dx to the format of u."""
        return Mean(self.pixels, self.dx.fraction_bits, self.state_u.fraction_bits)

    @cached_property
    def gain_v(self) -> Scalar:
        """v to its control."""
        return Scalar.of(1.0 - self.decay, self.state_v.fraction_bits, self.control_v.fraction_bits)

    @cached_property
    def gain_u(self) -> Scalar:
        """u to its control."""
        return Scalar.of(1.0 - self.decay, self.state_u.fraction_bits, self.control_u.fraction_bits)

    def step(self, v: IntArray, u: IntArray, sum_v: IntArray, sum_u: IntArray) -> tuple[IntArray, IntArray]:
        """State after a frame with these sums."""
        return (
            self.state_v.saturate(v + self.mean_v.of(sum_v)),
            self.state_u.saturate(u + self.mean_u.of(sum_u)),
        )

    def table(self, v: IntArray, u: IntArray) -> tuple[IntArray, IntArray]:
        """Controls of the data path."""
        return (
            self.control_v.saturate(self.gain_v.rounded(v)),
            self.control_u.saturate(self.gain_u.rounded(u)),
        )


def integer_root(numbers: IntArray) -> IntArray:
    """Floor of the square root of numbers below 2**52."""
    root = np.sqrt(numbers.astype(np.float64)).astype(np.int64)
    root -= root * root > numbers
    root += (root + 1) ** 2 <= numbers
    return root
