"""Two's-complement fixed-point formats: a width and a binary point, and the one way this project rounds.

A *code* is the integer that a wire carries; its value is ``code * 2**-fraction_bits``.  All golden
models compute on codes held in NumPy ``int64`` arrays, so they are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdl.threads import in_ranges

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fixed:
    """A fixed-point format: ``width`` bits, of which ``fraction_bits`` lie right of the binary point.

    ``fraction_bits`` may be negative or exceed ``width``: the binary point lies wherever calibration put it.
    """

    # bits of the code, sign included
    width: int
    # bits right of the binary point
    fraction_bits: int
    # two's complement if True, plain binary if False
    signed: bool = True

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a fixed-point format needs at least 1 bit, not {self.width}")

    @property
    def low(self) -> int:
        """The least code."""
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """The greatest code."""
        return (1 << (self.width - 1)) - 1 if self.signed else (1 << self.width) - 1

    @property
    def step(self) -> float:
        """The value of one code step."""
        return float(2.0**-self.fraction_bits)

    def encode(self, values: npt.ArrayLike) -> IntArray:
        """Nearest codes (ties away from minus infinity, as in `round_shift`), saturated."""
        scaled = np.floor(np.asarray(values, np.float64) * 2.0**self.fraction_bits + 0.5)
        return np.clip(scaled, self.low, self.high).astype(np.int64)

    def decode(self, codes: npt.ArrayLike) -> FloatArray:
        """The values of codes."""
        return np.asarray(codes, np.float64) * self.step

    def saturate(self, codes: IntArray) -> IntArray:
        """Codes clamped to the range of this format."""
        # minimum and maximum: np.clip takes several times longer on the short arrays of golden models
        return np.minimum(np.maximum(codes, self.low), self.high)

    def wrap(self, codes: IntArray) -> IntArray:
        """Codes modulo the range of this format, as its low bits say."""
        return ((codes - self.low) & ((1 << self.width) - 1)) + self.low

    def __str__(self) -> str:
        return f"{'s' if self.signed else 'u'}{self.width}.{self.fraction_bits}"


def round_shift(codes: IntArray, shift: int) -> IntArray:
    """``codes * 2**-shift`` rounded to nearest, ties towards plus infinity; a negative shift is exact.

    This is the only rounding of forward and backward arithmetic: add half, then shift right
    arithmetically, which in hardware is one adder whose carry-in is the bit shifted out last.
    """
    if shift <= 0:
        return codes << -shift
    return (codes + (1 << (shift - 1))) >> shift


def cut_product(codes: IntArray, cut: int) -> IntArray:
    """``codes * 2**-cut`` rounded to nearest, ties to even: how products are cut before they are added.

    Zero stays zero and what is cut has no mean, neither of one sign nor of ties, however many are added."""
    if cut <= 0:
        return codes
    return (codes + ((1 << (cut - 1)) - 1) + ((codes >> cut) & 1)) >> cut


def requantise(codes: IntArray | FloatArray, fraction_bits: int, target: Fixed) -> IntArray:
    """Codes with ``fraction_bits`` right of the point, `round_shift`-ed once and saturated into ``target``.

    ``codes`` may be integers held in float64, as products of matrices are."""
    from hdl.fixed_kernel import nearest

    result = np.empty(codes.shape, np.int64)
    flat, made = np.ascontiguousarray(codes).reshape(-1), result.reshape(-1)
    shift = fraction_bits - target.fraction_bits

    def work(first: int, end: int) -> None:
        nearest(flat[first:end], shift, target.low, target.high, made[first:end])

    in_ranges(work, len(flat))
    return result


def requantised_sum(first: tuple[IntArray, Fixed], second: tuple[IntArray, Fixed], target: Fixed) -> IntArray:
    """The exact sum of codes of two formats, rounded once and saturated into ``target``."""
    from hdl.fixed_kernel import nearest_sum

    (left, left_fixed), (right, right_fixed) = first, second
    result = np.empty(left.shape, np.int64)
    ours, theirs = np.ascontiguousarray(left).reshape(-1), np.ascontiguousarray(right).reshape(-1)
    fraction_bits = max(left_fixed.fraction_bits, right_fixed.fraction_bits)
    up = fraction_bits - left_fixed.fraction_bits, fraction_bits - right_fixed.fraction_bits
    rounding = fraction_bits - target.fraction_bits, target.low, target.high
    arrays = ours, theirs, up, rounding, result.reshape(-1)
    in_ranges(lambda start, end: nearest_sum(start, end, *arrays), result.size)
    return result
