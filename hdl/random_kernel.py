"""`hdl.random_bits` for many elements, compiled; apart so that only who draws many words pays for numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from hdl.random_bits import ROUNDING_BITS, ROUNDS

UintArray = npt.NDArray[np.uint32]
# elements whose random words are made before they are used: loops over either alone are vector instructions
BLOCK = 1024


@njit(cache=True)
def _permuted(left: Any, right: Any, words: Any) -> Any:
    """Two words of 32 bits whitened with the first two of ``words``, a tuple, then a round of Speck-64 a word of the
    rest; the second word is the result."""
    left, right = left ^ words[0], right ^ words[1]
    for at in range(2, 2 + ROUNDS):
        left = np.uint32(np.uint32(np.uint32((left >> np.uint32(8)) | (left << np.uint32(24))) + right) ^ words[at])
        right = np.uint32(np.uint32((right << np.uint32(3)) | (right >> np.uint32(29))) ^ left)
    return right


@njit(cache=True)
def _held(words: UintArray) -> Any:
    """Key words that stay in registers."""
    return words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8]


@njit(cache=True, nogil=True)
def permute(x: UintArray, y: UintArray, words: UintArray, result: UintArray) -> None:
    """The random word of each pair (x, y)."""
    held = _held(words)
    for index in range(len(x)):
        result[index] = _permuted(x[index], y[index], held)


@njit(cache=True)
def random_words(first: int, step: Any, words: UintArray, result: UintArray) -> None:
    """Those of (``first``, ``step``) and of the elements behind it."""
    held, begin, counted = _held(words), np.uint32(first), np.uint32(step)
    for index in range(len(result)):
        result[index] = _permuted(np.uint32(begin + np.uint32(index)), counted, held)


@njit(cache=True)
def noise(random16: Any, shift: int) -> Any:
    """`ROUNDING_BITS` random bits, where ``shift`` bits, above 0, are cut off: the upper ones of few, the top of many.
    Without a branch, so that a loop becomes vector instructions."""
    return (random16 >> max(ROUNDING_BITS - shift, 0)) << max(shift - ROUNDING_BITS, 0)


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
    random = np.empty(BLOCK, np.uint32)
    for start in range(first, end, BLOCK):
        behind = min(start + BLOCK, end)
        given, made = codes[start:behind], result[start:behind]
        random_words(start, step, words, random[: len(made)])
        for index in range(len(made)):
            added = np.int64(given[index]) + noise(np.int64(random[index] >> np.uint32(16)), shift)
            made[index] = min(max(added >> shift, low), high)
