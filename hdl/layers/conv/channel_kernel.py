"""`hdl.layers.conv.narrow` of a kernel a channel, compiled: rows of channels become vector instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from hdl.fixed import IntArray
from hdl.fixed_kernel import fitted

ShortArray = npt.NDArray[np.int16]
Pair = tuple[int, int]


# places are unsigned: numbers that can't be negative, without slices, become vector instructions


@njit(cache=True)
def _set_products(codes: ShortArray, place: Any, factors: ShortArray, at: Any, sums: IntArray) -> None:
    for each in range(len(sums)):
        c = np.uint64(each)
        sums[c] = np.int64(codes[place + c]) * np.int64(factors[at + c])


@njit(cache=True)
def _add_products(codes: ShortArray, place: Any, factors: ShortArray, at: Any, sums: IntArray) -> None:
    for each in range(len(sums)):
        c = np.uint64(each)
        sums[c] += np.int64(codes[place + c]) * np.int64(factors[at + c])


@njit(cache=True)
def _add_errors(codes: ShortArray, place: Any, error: ShortArray, sums: IntArray, at: Any) -> None:
    for each in range(len(error)):
        c = np.uint64(each)
        sums[at + c] += np.int64(codes[place + c]) * np.int64(error[c])


@njit(cache=True)
def _fit(sums: IntArray, rounding: tuple[int, int, int], made: IntArray, at: Any) -> None:
    shift, low, high = rounding
    for each in range(len(sums)):
        c = np.uint64(each)
        made[at + c] = fitted(sums[c], shift, low, high)


@njit(cache=True, nogil=True)
def correlate(
    first: int,
    end: int,
    weights: IntArray,
    taps: IntArray,
    stored: ShortArray,
    offsets: IntArray,
    places: tuple[Pair, Pair, Pair],
    rounding: tuple[int, int, int],
    result: IntArray,
) -> None:
    """Frames from ``first`` to ``end``: sums over ``taps`` of codes and weights, side by side for a channel,
    rounded by (shift, low, high) of `fitted`, of the ``places`` (pixels of ``stored`` between two, first, every).

    ``offsets``: of each tap, from the code where a pixel begins."""
    (_, height, width, channels), (step, begin, every) = result.shape, places
    _, stored_rows, stored_columns, depth = stored.shape
    codes, made, each = stored.reshape(-1), result.reshape(-1), len(weights) // channels
    by_tap = np.empty(len(taps) * channels, np.int16)
    for tap in range(len(taps)):
        for c in range(channels):
            by_tap[tap * channels + c] = weights[c * each + taps[tap]]
    sums = np.empty(channels, np.int64)
    for frame in range(first, end):
        for row in range((height - begin[0] + every[0] - 1) // every[0]):
            for column in range((width - begin[1] + every[1] - 1) // every[1]):
                origin = ((frame * stored_rows + row * step[0]) * stored_columns + column * step[1]) * depth
                _set_products(codes, np.uint64(origin + offsets[0]), by_tap, np.uint64(0), sums)
                for tap in range(1, len(taps)):
                    _add_products(codes, np.uint64(origin + offsets[tap]), by_tap, np.uint64(tap * channels), sums)
                y, x = begin[0] + row * every[0], begin[1] + column * every[1]
                _fit(sums, rounding, made, np.uint64(((frame * height + y) * width + x) * channels))


@njit(cache=True, nogil=True)
def gradient(stored: ShortArray, errors: IntArray, step: Pair, offsets: IntArray, total: IntArray) -> None:
    """Adds to ``total``, by tap and channel, the sums of products of errors and what their pixels see."""
    frames, rows, columns, channels = errors.shape
    _, stored_rows, stored_columns, depth = stored.shape
    codes, error, sums = stored.reshape(-1), np.empty(channels, np.int16), total.reshape(-1)
    for frame in range(frames):
        for row in range(rows):
            for column in range(columns):
                error[:] = errors[frame, row, column]
                origin = ((frame * stored_rows + row * step[0]) * stored_columns + column * step[1]) * depth
                for tap in range(len(offsets)):
                    _add_errors(codes, np.uint64(origin + offsets[tap]), error, sums, np.uint64(tap * channels))
