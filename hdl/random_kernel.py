"""`hdl.random_bits` for many elements, compiled; apart so that only who draws many words pays for numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

UintArray = npt.NDArray[np.uint32]


@njit(cache=True)
def permuted(left: Any, right: Any, words: UintArray) -> Any:
    """Two words of 32 bits whitened with the first two of ``words``, then a round of Speck-64 a word of the rest; the
    second word is the result."""
    left, right = left ^ words[0], right ^ words[1]
    for at in range(2, len(words)):
        left = np.uint32(np.uint32(np.uint32((left >> np.uint32(8)) | (left << np.uint32(24))) + right) ^ words[at])
        right = np.uint32(np.uint32((right << np.uint32(3)) | (right >> np.uint32(29))) ^ left)
    return right


@njit(cache=True, nogil=True)
def permute(x: UintArray, y: UintArray, words: UintArray, result: UintArray) -> None:
    """`permuted` of each pair (x, y)."""
    for index in range(len(x)):
        result[index] = permuted(x[index], y[index], words)


@njit(cache=True, nogil=True)
def stochastic_by_element(
    codes: npt.NDArray[Any],
    first: int,
    end: int,
    shift: int,
    step: Any,
    words: UintArray,
    low: int,
    high: int,
    result: npt.NDArray[Any],
) -> None:
    """``codes * 2**-shift`` from ``first`` to ``end``, rounded with the upper half of the random word of (index,
    ``step``), within [low, high]; ``shift`` is above 0."""
    spread = 16 - shift
    for index in range(first, end):
        noise = np.int64(permuted(np.uint32(index), step, words) >> np.uint32(16))
        noise = noise >> spread if spread >= 0 else noise << -spread
        result[index] = min(max((np.int64(codes[index]) + noise) >> shift, low), high)
