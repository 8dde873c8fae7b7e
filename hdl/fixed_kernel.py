"""Rounding and saturation of whole arrays in one compiled pass; apart so that only who computes with many codes pays
for numba.  Their meaning stands in `hdl.fixed` and `hdl.random_bits`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from hdl.fixed import IntArray


@njit(cache=True)
def fitted(code: int, shift: int, low: int, high: int) -> int:
    """``code * 2**-shift`` to nearest, ties up, within [low, high]."""
    code = (code + (1 << (shift - 1))) >> shift if shift > 0 else code << -shift
    return min(max(code, low), high)


@njit(cache=True, nogil=True)
def nearest(codes: npt.NDArray[Any], shift: int, low: int, high: int, result: IntArray) -> None:
    """`fitted` codes; they are integers, also as float64."""
    for index in range(len(codes)):
        result[index] = fitted(int(codes[index]), shift, low, high)


@njit(cache=True, nogil=True)
def nearest_sum(
    first: int,
    end: int,
    left: IntArray,
    right: IntArray,
    up: tuple[int, int],
    rounding: tuple[int, int, int],
    result: IntArray,
) -> None:
    """Sums of codes moved ``up``, then `fitted` by (shift, low, high), from ``first`` to ``end``."""
    (left_up, right_up), (shift, low, high) = up, rounding
    ours, theirs, made = left[first:end], right[first:end], result[first:end]
    for index in range(len(made)):
        made[index] = fitted((ours[index] << left_up) + (theirs[index] << right_up), shift, low, high)


@njit(cache=True, nogil=True)
def add_cut_products(left: npt.NDArray[Any], right: npt.NDArray[Any], cut: int, total: IntArray) -> None:
    """Adds ``cut_product(left[p, m] * right[p, n], cut)`` over all p to ``total[m, n]``; ``cut`` is above 0.

    Of ``int32`` operands no product may pass 2**30; half the time of ``int64``."""
    kind = left.dtype.type
    most, shift = kind((1 << (cut - 1)) - 1), kind(cut)
    one, terms, columns = kind(1), left.shape[0], right.shape[1]
    # so many cut products fit the operands' type
    chunk = 1 << min(cut, 16)
    part = np.empty(columns, left.dtype)
    for m in range(left.shape[1]):
        for start in range(0, terms, chunk):
            part[:] = kind(0)
            for p in range(start, min(start + chunk, terms)):
                factor = left[p, m]
                if factor != 0:
                    for n in range(columns):
                        product = kind(factor * right[p, n])
                        part[n] += (product + most + ((product >> shift) & one)) >> shift
            for n in range(columns):
                total[m, n] += part[n]


@njit(cache=True, nogil=True)
def stochastic(
    codes: npt.NDArray[Any], shift: int, random16: IntArray, spread: int, low: int, high: int, result: IntArray
) -> None:
    """``(codes + random16 * 2**-spread) * 2**-shift``, cut off, within [low, high]; ``shift`` is above 0."""
    for index in range(len(codes)):
        noise = random16[index] >> spread if spread >= 0 else random16[index] << -spread
        code = (int(codes[index]) + noise) >> shift
        result[index] = min(max(code, low), high)
