"""Rounding and saturation of whole arrays in one compiled pass; apart so that only who computes with many codes pays
for numba.  Their meaning stands in `hdl.fixed` and `hdl.random_bits`."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import njit

from hdl.fixed import IntArray


@njit(cache=True, nogil=True)
def nearest(codes: npt.NDArray[Any], shift: int, low: int, high: int, result: IntArray) -> None:
    """``codes * 2**-shift`` to nearest, ties up, within [low, high]; ``codes`` are integers, also as float64."""
    half = 1 << (shift - 1) if shift > 0 else 0
    for index in range(len(codes)):
        code = int(codes[index])
        code = (code + half) >> shift if shift > 0 else code << -shift
        result[index] = min(max(code, low), high)


@njit(cache=True, nogil=True)
def stochastic(
    codes: npt.NDArray[Any], shift: int, random16: IntArray, spread: int, low: int, high: int, result: IntArray
) -> None:
    """``(codes + random16 * 2**-spread) * 2**-shift``, cut off, within [low, high]; ``shift`` is above 0."""
    for index in range(len(codes)):
        noise = random16[index] >> spread if spread >= 0 else random16[index] << -spread
        code = (int(codes[index]) + noise) >> shift
        result[index] = min(max(code, low), high)
