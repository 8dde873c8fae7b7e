"""The codec of integers: over all codes of its width, and beside rounding written down apart."""

from __future__ import annotations

import random
from fractions import Fraction
from math import floor

import numpy as np
import pytest

from hdl.engine.codec.element_codec import TAG_BITS
from hdl.engine.codec.integer_codec import Cut, IntegerCodec, IntegerTag, with_feedback
from hdl.fixed import IntArray

EVERY16 = np.arange(-(1 << 15), 1 << 15, dtype=np.int64)
CODECS = [
    IntegerCodec(drop, window=window, cut=cut)
    for cut in Cut
    for drop, window in [(0, 7), (1, 7), (5, 7), (7, 7), (8, 7), (9, 6), (14, 1), (0, 15)]
]


def named(codec: IntegerCodec) -> str:
    return f"{codec.cut.value}-{codec.drop}-{codec.window}"


def drawn(count: int) -> IntArray:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    return np.random.default_rng(seed).integers(0, 1 << 16, count)


def nearest(codec: IntegerCodec, element: int) -> tuple[IntegerTag, int]:
    """(tag, value) by exact fractions."""
    units = Fraction(abs(element), 1 << codec.drop)
    counted = floor(units) if codec.cut is Cut.TRUNCATE else floor(units + Fraction(1, 2))
    greatest = (1 << codec.window) - 1
    if (counted if codec.cut is Cut.TRUNCATE else units) > greatest:
        return IntegerTag.RAW, element
    value = (counted << codec.drop) * (1 if element > 0 else -1)
    return (IntegerTag.SMALL, value) if counted else (IntegerTag.ZERO, 0)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec.cut is not Cut.STOCHASTIC], ids=named)
def test_elements_are_rounded_as_fractions_are(codec: IntegerCodec) -> None:
    edges = [0, 1, 1 << codec.drop, 3 << codec.drop >> 1, 1 << codec.drop + codec.window, codec.raw_from, 1 << 15]
    near = {edge + off for edge in edges for off in (-1, 0, 1)}
    elements = np.array(sorted({sign * n for n in near for sign in (1, -1)} & set(EVERY16.tolist())), np.int64)
    tags, codes = codec.encode(elements)
    found = list(zip(tags.tolist(), codec.decode(tags, codes).tolist(), strict=True))
    assert found == [nearest(codec, element) for element in elements.tolist()]


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_every_element_of_16_bits_keeps_bound_sign_and_size(codec: IntegerCodec) -> None:
    noise = drawn(EVERY16.size)
    tags, codes = codec.encode(EVERY16, noise)
    assert all(int(codes[tags == tag].max(initial=0)).bit_length() <= codec.code_bits(tag) for tag in IntegerTag)
    assert codes.min() >= 0
    back = codec.decode(tags, codes)
    worst = int(np.abs(back - EVERY16).max())
    # the bound is reached, or there is nothing between two that are kept
    assert worst == codec.worst_error if codec.cut is not Cut.STOCHASTIC else worst <= codec.worst_error
    assert (back * EVERY16 >= 0).all()
    assert (back[tags == IntegerTag.ZERO] == 0).all()
    assert (back[tags == IntegerTag.SMALL] != 0).all()
    assert codec.bits(tags) == sum(TAG_BITS + codec.code_bits(IntegerTag(tag)) for tag in tags.tolist())
    # what was decoded is kept from then on, whatever is drawn
    again = codec.encode(back, drawn(EVERY16.size))
    assert np.array_equal(codec.decode(*again), back)


@pytest.mark.parametrize("drop", [1, 3, 5])
def test_stochastic_cuts_are_right_on_average(drop: int) -> None:
    codec = IntegerCodec(drop, width=8, window=2, cut=Cut.STOCHASTIC)
    every = np.arange(-128, 128, dtype=np.int64)
    total = np.zeros(every.size, np.int64)
    for noise in range(1 << drop):
        total += codec.decode(*codec.encode(every, np.full(every.size, noise << 16 - drop)))
    assert np.array_equal(total, every << drop)


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_feedback_loses_nothing_and_keeps_residuals_small(codec: IntegerCodec) -> None:
    noise = drawn(64 * 40).reshape(40, 64)
    # sums of two residuals and an element never leave the format, so that nothing is saturated
    elements = drawn(64 * 40).reshape(40, 64) // 2 - (1 << 14)
    elements[:4] = [[0], [1], [-1], [1 << 13]]
    residual, sent = np.zeros(64, np.int64), np.zeros(64, np.int64)
    for batch, random16 in zip(elements, noise, strict=True):
        tags, codes, residual = with_feedback(codec, batch, residual, random16)
        sent += codec.decode(tags, codes)
        assert np.abs(residual).max() <= codec.worst_error
    assert np.array_equal(sent + residual, elements.sum(axis=0))


def test_residuals_stay_small_where_sums_are_saturated() -> None:
    codec = IntegerCodec(9, window=6)
    for extreme in (-(1 << 15), (1 << 15) - 1):
        residual = np.zeros(1, np.int64)
        for _ in range(100):
            *_, residual = with_feedback(codec, np.array([extreme], np.int64), residual)
            assert abs(int(residual[0])) <= codec.worst_error


@pytest.mark.parametrize(("bound_bits", "drop", "window"), [(1, 14, 1), (6, 9, 6), (8, 7, 7), (10, 5, 7), (15, 0, 7)])
def test_a_relative_bound_is_one_of_the_range(bound_bits: int, drop: int, window: int) -> None:
    codec = IntegerCodec.relative(bound_bits)
    assert (codec.drop, codec.window) == (drop, window)
    assert codec.worst_error < 2.0**-bound_bits * (1 << 15)


def test_what_is_impossible_is_refused() -> None:
    for drop, window in [(-1, 7), (9, 7), (0, 16), (3, 0)]:
        with pytest.raises(ValueError, match=f"window of {window} behind {drop} that are dropped is impossible"):
            IntegerCodec(drop, window=window)
    for bound_bits in (0, 16):
        with pytest.raises(ValueError, match=f"2\\^-{bound_bits} of 16 bits is impossible; take 1 to 15"):
            IntegerCodec.relative(bound_bits)
    codec = IntegerCodec(5, cut=Cut.STOCHASTIC)
    with pytest.raises(ValueError, match="stochastic rounding needs random bits"):
        codec.encode(np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="2 of 3 tags are 3"):
        codec.decode(np.array([3, 0, 3], np.uint8), np.zeros(3, np.int64))
