"""`hdl.layers.conv.narrow`, compiled; apart so that only who computes with maps pays for numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from hdl.fixed import IntArray
from hdl.fixed_kernel import fitted
from hdl.layers.conv.pair_sums import LANES, MOST_PAIRS, PAIR_CODES, ROWS, add_pair_sums

ShortArray = npt.NDArray[np.int16]
Pair = tuple[int, int]
# results, channels that are summed; weights from one of each to the next
Sizes = tuple[int, int, int, int]


@njit(cache=True, nogil=True)
def surround(first: int, end: int, maps: IntArray, before: Pair, stored: ShortArray) -> None:
    """Frames from ``first`` to ``end`` in the middle of zeros, ``before`` of them above and on the left."""
    _, height, width, channels = maps.shape
    for frame in range(first, end):
        for row in range(stored.shape[1]):
            y = row - before[0]
            for column in range(stored.shape[2]):
                x = column - before[1]
                seen = channels if 0 <= y < height and 0 <= x < width else 0
                for channel in range(seen):
                    stored[frame, row, column, channel] = maps[frame, y, x, channel]
                for channel in range(seen, stored.shape[3]):
                    stored[frame, row, column, channel] = 0


@njit(cache=True)
def _split(code: int, parts: ShortArray, at: Any) -> None:
    """A code's parts: 256 times the high one and the low one, which lies in -128 … 127."""
    low = ((code + 128) & 255) - 128
    parts[at] = (code - low) >> 8
    parts[at + np.uint64(PAIR_CODES // 2)] = low


@njit(cache=True)
def _weight_parts(weights: IntArray, sizes: Sizes, taps: IntArray, group: int, parts: ShortArray) -> None:
    """Of the weights of one group of results: tap, pair of channels, lane; ``parts`` holds zeros where none are."""
    results, channels, by_result, by_channel = sizes
    lanes = min(LANES, results - group * LANES)
    by_tap = len(parts) // len(taps)
    if lanes < LANES:
        parts[:] = 0
    for channel in range(channels):
        for lane in range(lanes):
            start = (group * LANES + lane) * by_result + channel * by_channel
            at = channel // 2 * PAIR_CODES + 2 * lane + channel % 2
            for tap in range(len(taps)):
                _split(weights[np.uint64(start + taps[tap])], parts, np.uint64(at + tap * by_tap))


@njit(cache=True, nogil=True)
def correlate(
    first: int,
    end: int,
    stored: ShortArray,
    weights: IntArray,
    step: Pair,
    sizes: Sizes,
    taps: IntArray,
    offsets: IntArray,
    rounding: tuple[int, int, int],
    begin: Pair,
    every: Pair,
    result: IntArray,
) -> None:
    """Groups of `LANES` results from ``first`` to ``end`` of every ``every``-th pixel from ``begin`` on: the sum over
    ``taps``, where their weights begin, of weights and codes of ``stored``, rounded by (shift, low, high) of `fitted`.
    A weight stands at that of its tap, so much on for each result and channel as ``sizes`` says.

    ``offsets``: of each tap, and of each piece of its channels, from the code where a pixel begins."""
    (frames, height, width), (shift, low, high) = result.shape[:3], rounding
    rows, columns = (height - begin[0] + every[0] - 1) // every[0], (width - begin[1] + every[1] - 1) // every[1]
    _, stored_rows, stored_columns, channels = stored.shape
    pairs = channels * len(taps) // (2 * len(offsets))
    at_once = MOST_PAIRS // pairs
    codes, made, pixels = stored.reshape(-1), result.reshape(-1), frames * rows * columns
    parts = np.zeros(len(taps) * channels * PAIR_CODES // 2, np.int16)
    results = sizes[0]
    origins, places = np.empty(ROWS, np.int64), np.empty(ROWS, np.int64)
    totals = np.empty(ROWS * LANES, np.int64)
    for group in range(first, end):
        _weight_parts(weights, sizes, taps, group, parts)
        lanes = min(LANES, results - group * LANES)
        for start in range(0, pixels, ROWS):
            for place in range(ROWS):
                pixel = min(start + place, pixels - 1)
                line, column = pixel // columns, pixel % columns
                frame, row = line // rows, line % rows
                y, x = frame * stored_rows + row * step[0], column * step[1]
                origins[place] = (y * stored_columns + x) * channels
                y, x = frame * height + begin[0] + row * every[0], begin[1] + column * every[1]
                places[place] = (y * width + x) * results + group * LANES
            totals[:] = 0
            for segment in range(0, len(offsets), at_once):
                count = min(at_once, len(offsets) - segment)
                part = segment * pairs * PAIR_CODES
                add_pair_sums(codes, origins, offsets, segment, count, pairs, 2, parts, part, totals, 0)
            for place in range(min(ROWS, pixels - start)):
                sums, codes_made = totals[place * LANES :], made[places[place] : places[place] + lanes]
                for lane in range(len(codes_made)):
                    codes_made[lane] = fitted(sums[lane], shift, low, high)


@njit(cache=True)
def _narrowed(codes: IntArray, place: Any, count: int, made: ShortArray, at: Any) -> None:
    """``count`` codes and zeros behind them, `ROWS` together, at every second place."""
    if count == ROWS:
        for each in range(ROWS):
            made[at + np.uint64(2 * each)] = codes[place + np.uint64(each)]
    else:
        for each in range(ROWS):
            made[at + np.uint64(2 * each)] = codes[place + np.uint64(each)] if each < count else 0


@njit(cache=True, nogil=True)
def pair_pixels(
    first: int, end: int, maps: IntArray, stride: int, dilation: int, before: Pair, paired: ShortArray
) -> None:
    """Frames from ``first`` to ``end`` by column of taps, group of `ROWS` channels, frame, row, pair of output columns,
    channel, column of the pair: what each sees of ``maps``."""
    frames, height, width, channels = maps.shape
    taps, groups, _, rows, pairs, _, _ = paired.shape
    codes, stored = maps.reshape(-1), paired.reshape(-1)
    for frame in range(first, end):
        for tap in range(taps):
            for group in range(groups):
                line = ((tap * groups + group) * frames + frame) * rows
                for row in range(rows):
                    y = row - before[0]
                    for column in range(2 * pairs):
                        x = column * stride + tap * dilation - before[1]
                        seen = min(channels - group * ROWS, ROWS) if 0 <= y < height and 0 <= x < width else 0
                        place = ((frame * height + y) * width + x) * channels + group * ROWS
                        at = ((line + row) * pairs + column // 2) * 2 * ROWS + column % 2
                        _narrowed(codes, np.uint64(place), seen, stored, np.uint64(at))


@njit(cache=True)
def _error_parts(codes: IntArray, place: Any, count: int, parts: ShortArray, at: Any) -> None:
    """Of ``count`` errors of a column, side by side with those of the other column of its pair; zeros where no lane
    is."""
    for lane in range(count):
        _split(codes[place + np.uint64(lane)], parts, at + np.uint64(2 * lane))
    for lane in range(count, LANES):
        _split(0, parts, at + np.uint64(2 * lane))


@njit(cache=True, nogil=True)
def gradient(
    first: int,
    end: int,
    paired: ShortArray,
    stride: int,
    dilation: int,
    errors: IntArray,
    pieces: int,
    total: IntArray,
) -> None:
    """Adds the sums of products of errors and maps, as `pair_pixels` lays them, to ``total[filter, channel, row,
    column]``, groups of `LANES` filters from ``first`` to ``end``.

    ``pieces``: parts of a row of pairs, none of which passes `MOST_PAIRS`."""
    filters, channels, kernel_rows, _ = total.shape
    taps, groups, frames, stored_rows, row_pairs, _, _ = paired.shape
    rows, pairs = errors.shape[1], row_pairs // pieces
    segments, at_once = frames * rows * pieces, MOST_PAIRS // pairs
    codes, given, columns = paired.reshape(-1), errors.reshape(-1), errors.shape[2]
    parts, offsets = np.empty(at_once * pairs * PAIR_CODES, np.int16), np.empty(at_once, np.int64)
    origins, tile = np.empty(ROWS, np.int64), ROWS * LANES
    totals = np.empty(kernel_rows * taps * groups * tile, np.int64)
    for group in range(first, end):
        totals[:] = 0
        for start in range(0, segments, at_once):
            count = min(at_once, segments - start)
            for segment in range(count):
                line, piece = (start + segment) // pieces, (start + segment) % pieces
                frame, row = line // rows, line % rows
                offsets[segment] = ((frame * stored_rows + row * stride) * row_pairs + piece * pairs) * 2 * ROWS
                for half in range(2 * pairs):
                    column = 2 * piece * pairs + half
                    place = (line * columns + column) * filters + group * LANES
                    at = (segment * pairs + half // 2) * PAIR_CODES + half % 2
                    lanes = min(LANES, filters - group * LANES) if column < columns else 0
                    _error_parts(given, np.uint64(place), lanes, parts, np.uint64(at))
            for tap in range(kernel_rows * taps):
                tap_row, tap_column = tap // taps, tap % taps
                for place in range(groups):
                    line = (tap_column * groups + place) * frames * stored_rows + tap_row * dilation
                    for channel in range(ROWS):
                        origins[channel] = line * row_pairs * 2 * ROWS + 2 * channel
                    at = (tap * groups + place) * tile
                    add_pair_sums(codes, origins, offsets, 0, count, pairs, 2 * ROWS, parts, 0, totals, at)
        for lane in range(min(LANES, filters - group * LANES)):
            for channel in range(channels):
                for tap in range(kernel_rows * taps):
                    at = (tap * groups + channel // ROWS) * tile + channel % ROWS * LANES + lane
                    total[group * LANES + lane, channel, tap // taps, tap % taps] += totals[at]
