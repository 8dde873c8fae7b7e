"""`hdl.random_bits.hash32` for many words, compiled; apart so that only who draws many words pays for numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

UintArray = npt.NDArray[np.uint32]


@njit(cache=True)
def permute(x: UintArray, y: UintArray, words: UintArray, result: UintArray) -> None:
    """Seven rounds of Speck-64 over each pair (x, y), whitened already; the second word is the result."""
    for index in range(len(x)):
        left, right = x[index], y[index]
        for word in words:
            left = np.uint32(np.uint32(np.uint32((left >> np.uint32(8)) | (left << np.uint32(24))) + right) ^ word)
            right = np.uint32(np.uint32((right << np.uint32(3)) | (right >> np.uint32(29))) ^ left)
        result[index] = right
