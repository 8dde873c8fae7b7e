"""Counter-based random bits for stochastic rounding and dropout, and the stochastic rounding itself.

A random word is a function of (element index, step, key): never of lane, cycle or placement, so every
configuration of a layer draws the same bits.  The function is seven rounds of the permutation of Speck-64
(Beaulieu et al., "The SIMON and SPECK Families of Lightweight Block Ciphers", 2013; add, rotate, xor, so it needs
no multipliers) over (index, step).  Seven rounds are the fewest that pass the statistical tests here;
nothing of this is meant to be secret.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cache

import numpy as np
import numpy.typing as npt

from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.threads import in_ranges

UintArray = npt.NDArray[np.uint32]
ROUNDS = 7
# random bits that decide one rounding
ROUNDING_BITS = 16
# random words are 32 bits
WORD = 32
_WORD_MASK = 0xFFFFFFFF


def stable_id(name: str) -> int:
    """A 32-bit number for a tensor's name, the same in every process (CRC-32 of its UTF-8)."""
    return zlib.crc32(name.encode())


def tensor_key(seed: int, tensor_id: int) -> int:
    """The key of one tensor's random bits under the recipe's seed."""
    return (seed & _WORD_MASK) << 32 | (tensor_id & _WORD_MASK)


@cache
def round_keys(key: int) -> tuple[int, ...]:
    """Two whitening words and one word a round, 32 bits each, from a key of any size."""
    words: list[int] = []
    block_number = 0
    while len(words) < 2 + ROUNDS:
        digest = hashlib.sha256(f"{key}/{block_number}".encode()).digest()
        words += [int.from_bytes(digest[at : at + 4], "little") for at in range(0, 32, 4)]
        block_number += 1
    return tuple(words[: 2 + ROUNDS])


@cache
def key_words(key: int) -> UintArray:
    """`round_keys` for compiled loops."""
    return np.array(round_keys(key), np.uint32)


def hash32(index: npt.ArrayLike, step: int | npt.ArrayLike, key: int) -> UintArray:
    """Random 32-bit words for elements ``index`` at ``step`` (batch or frame number), of the shape of ``index``.

    ``index`` and ``step`` count modulo 2**32."""
    from hdl.random_kernel import permute

    counted = np.asarray(index, np.int64)
    x = (counted & _WORD_MASK).astype(np.uint32).reshape(-1)
    y = np.empty_like(x)
    y.reshape(counted.shape)[...] = (np.asarray(step, np.int64) & _WORD_MASK).astype(np.uint32)
    result = np.empty_like(x)
    permute(x, y, key_words(key), result)
    words_made: UintArray = result.reshape(counted.shape)
    return words_made


def high_half(words: UintArray) -> IntArray:
    """Bits 31..16: the first of the two independent 16-bit numbers in a word."""
    return (words >> np.uint32(16)).astype(np.int64)


def low_half(words: UintArray) -> IntArray:
    """Bits 15..0: the second of the two independent 16-bit numbers in a word."""
    return (words & np.uint32(0xFFFF)).astype(np.int64)


def stochastic_round_shift(codes: IntArray, shift: int, random16: IntArray) -> IntArray:
    """``codes * 2**-shift`` rounded up with the probability of the part cut off; a negative shift is exact.

    Adds ``shift`` random bits, then shifts right arithmetically (Gupta et al., "Deep Learning with Limited
    Numerical Precision", 2015).  Of the random bits the top 16 are ``random16`` (or its top ``shift`` bits) and
    the rest zero.  Does not saturate."""
    if shift <= 0:
        return codes << -shift
    spread = ROUNDING_BITS - shift
    noise = random16 >> spread if spread >= 0 else random16 << -spread
    return (codes + noise) >> shift


def requantise_stochastically(codes: IntArray, fraction_bits: int, target: Fixed, random16: IntArray) -> IntArray:
    """Codes with ``fraction_bits`` right of the point, `stochastic_round_shift`-ed and saturated into ``target``."""
    shift = fraction_bits - target.fraction_bits
    if shift <= 0:
        return target.saturate(codes << -shift)
    from hdl.fixed_kernel import stochastic

    result = np.empty(codes.shape, np.int64)
    flat, noise = (np.ascontiguousarray(array).reshape(-1) for array in (codes, random16))
    stochastic(flat, shift, noise, ROUNDING_BITS - shift, target.low, target.high, result.reshape(-1))
    return result


def requantise_by_element(
    codes: IntArray | FloatArray, fraction_bits: int, target: Fixed, step: int, key: int
) -> IntArray:
    """`requantise_stochastically` of all elements of a tensor once a ``step``: with the upper half of `hash32` of an
    element's index.  ``codes`` may be integers held in float64."""
    shift = fraction_bits - target.fraction_bits
    if shift <= 0:
        return requantise(codes, fraction_bits, target)
    from hdl.random_kernel import stochastic_by_element

    result = np.empty(codes.shape, np.int64)
    flat, made = np.ascontiguousarray(codes).reshape(-1), result.reshape(-1)
    counted, words = np.uint32(step & _WORD_MASK), key_words(key)

    def work(first: int, end: int) -> None:
        stochastic_by_element(flat, first, end, shift, counted, words, target.low, target.high, made)

    in_ranges(work, len(flat))
    return result
