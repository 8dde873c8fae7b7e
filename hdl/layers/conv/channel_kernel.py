"""`hdl.layers.conv.narrow` of a kernel a channel, compiled: rows of channels become vector instructions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from hdl.fixed import IntArray
from hdl.fixed_kernel import fitted

ShortArray = npt.NDArray[np.int16]
Pair = tuple[int, int]


@njit(cache=True)
def _add_products(left: ShortArray, right: ShortArray, sums: IntArray) -> None:
    for c in range(len(sums)):
        sums[c] += np.int64(left[c]) * np.int64(right[c])


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
    (_, height, width, channels), (shift, low, high), (step, begin, every) = result.shape, rounding, places
    _, stored_rows, stored_columns, depth = stored.shape
    codes, each = stored.reshape(-1), len(weights) // channels
    by_tap = np.empty((len(taps), channels), np.int16)
    for tap in range(len(taps)):
        for c in range(channels):
            by_tap[tap, c] = weights[c * each + taps[tap]]
    sums = np.empty(channels, np.int64)
    for frame in range(first, end):
        for row in range((height - begin[0] + every[0] - 1) // every[0]):
            for column in range((width - begin[1] + every[1] - 1) // every[1]):
                origin = ((frame * stored_rows + row * step[0]) * stored_columns + column * step[1]) * depth
                sums[:] = 0
                for tap in range(len(taps)):
                    place = origin + offsets[tap]
                    _add_products(codes[place : place + channels], by_tap[tap], sums)
                made = result[frame, begin[0] + row * every[0], begin[1] + column * every[1]]
                for c in range(channels):
                    made[c] = fitted(sums[c], shift, low, high)


@njit(cache=True, nogil=True)
def gradient(stored: ShortArray, errors: IntArray, step: Pair, offsets: IntArray, total: IntArray) -> None:
    """Adds to ``total``, by tap and channel, the sums of products of errors and what their pixels see."""
    frames, rows, columns, channels = errors.shape
    _, stored_rows, stored_columns, depth = stored.shape
    codes, error = stored.reshape(-1), np.empty(channels, np.int16)
    for frame in range(frames):
        for row in range(rows):
            for column in range(columns):
                error[:] = errors[frame, row, column]
                origin = ((frame * stored_rows + row * step[0]) * stored_columns + column * step[1]) * depth
                for tap in range(len(offsets)):
                    place = origin + offsets[tap]
                    _add_products(codes[place : place + channels], error, total[tap])
