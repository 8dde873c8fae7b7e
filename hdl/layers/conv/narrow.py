"""Convolution of codes of at most 16 bits, exactly: what `hdl.layers.conv.correlate` defines, for golden models.

One factor of every product is split into parts of 8 bits, so that sums of pairs fit 32 bits for a while
(`hdl.layers.conv.pair_sums`); each part's sum then joins the total in 64 bits.  No matrix of patches is made: a tap is
an offset into the map, which lies between zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from hdl.engine.arithmetic.mac import operand_bits
from hdl.fixed import Fixed, IntArray
from hdl.layers.conv.versions import Versions
from hdl.layers.window import Window
from hdl.threads import in_ranges

ShortArray = npt.NDArray[np.int16]
# bits of a code that is multiplied
WIDEST = 16
# bytes of a map as it is laid out; more frames than fit are done one chunk after another
CHUNK_BYTES = 1 << 24
# products that take as long as an element of `in_ranges`
PRODUCTS_AN_ELEMENT = 32


def is_narrow(*formats: Fixed) -> bool:
    """Whether codes of all formats can be multiplied here."""
    return all(operand_bits(fixed) <= WIDEST for fixed in formats)


@dataclass(frozen=True)
class _Pixels:
    """Results that see the same taps: every ``every``-th one of a map from ``first`` on."""

    first: tuple[int, int]
    every: tuple[int, int]
    # pixels of the stored map between two of them
    step: tuple[int, int]
    # of each tap in the kernel's order
    taps: IntArray
    # of each tap, and of each piece of its channels, in codes
    offsets: IntArray

    @cached_property
    def by_tap(self) -> IntArray:
        """Of the first piece of each."""
        return np.ascontiguousarray(self.offsets[:: len(self.offsets) // len(self.taps)])


@dataclass(frozen=True)
class _Layout:
    """How a map is stored for one window."""

    # rows above, columns on the left
    before: tuple[int, int]
    # rows, columns, channels
    shape: tuple[int, int, int]
    pixels: tuple[_Pixels, ...]


def _chunks(frames: int, each: int) -> Iterator[slice]:
    """Ranges of frames of ``each`` bytes."""
    step = max(1, CHUNK_BYTES // each)
    return (slice(start, min(frames, start + step)) for start in range(0, frames, step))


def _pieces(pairs: int) -> tuple[int, int]:
    """Equal pieces, and pairs of each, of so many pairs: none passes what 32 bits hold."""
    from hdl.layers.conv.pair_sums import MOST_PAIRS

    pieces = -(-pairs // MOST_PAIRS)
    return pieces, -(-pairs // pieces)


# taps along one axis: (place in the kernel, stored row or column of the first result)
_Taps = list[tuple[int, int]]


def _forward(window: Window, axis: int) -> list[_Taps]:
    """All taps of an axis, of every result."""
    before, apart = window.padding[axis], window.dilation[axis]
    return [[(tap, tap * apart - before) for tap in range(window.kernel[axis])]]


def _backward(window: Window, axis: int) -> list[_Taps]:
    """Of each remainder of a place in the input by the stride: the taps that saw it, and for which place of the
    output."""
    stride, found = window.stride[axis], []
    for first in range(stride):
        places = [
            (tap, first + window.padding[axis] - tap * window.dilation[axis]) for tap in range(window.kernel[axis])
        ]
        found.append([(tap, place // stride) for tap, place in places if place % stride == 0])
    return found


@cache
def _layout(window: Window, channels: int, transposed: bool) -> _Layout:
    """Of the input map, or, ``transposed``, of the output map, from which errors of the input are made."""
    inputs, outputs = (window.height, window.width), window.output
    stored, made = (outputs, inputs) if transposed else (inputs, outputs)
    find = _backward if transposed else _forward
    every, step = (window.stride, (1, 1)) if transposed else ((1, 1), window.stride)
    phases = [find(window, axis) for axis in (0, 1)]
    before, sizes = [0, 0], list(stored)
    for axis in (0, 1):
        for first, taps in enumerate(phases[axis]):
            results = len(range(first, made[axis], every[axis]))
            for _, place in taps:
                before[axis] = max(before[axis], -place)
                sizes[axis] = max(sizes[axis], place + (results - 1) * step[axis] + 1)
    pieces, pairs = _pieces(-(-channels // 2))
    height, width, depth = before[0] + sizes[0], before[1] + sizes[1], 2 * pieces * pairs

    def pixels(first: tuple[int, int]) -> _Pixels:
        both = [(row, column) for row in phases[0][first[0]] for column in phases[1][first[1]]]
        places = [((y + before[0]) * width + x + before[1]) * depth for (_, y), (_, x) in both]
        offsets = [place + piece * 2 * pairs for place in places for piece in range(pieces)]
        taps = np.array([row * window.kernel[1] + column for (row, _), (column, _) in both], np.int64)
        return _Pixels(first, every, step, taps, np.array(offsets, np.int64))

    firsts = [(row, column) for row in range(len(phases[0])) for column in range(len(phases[1]))]
    return _Layout((before[0], before[1]), (height, width, depth), tuple(pixels(first) for first in firsts))


def _stored(maps: IntArray, layout: _Layout) -> ShortArray:
    """Maps between zeros."""
    from hdl.layers.conv.narrow_kernel import surround

    stored = np.empty((len(maps), *layout.shape), np.int16)
    in_ranges(lambda first, end: surround(first, end, maps, layout.before, stored), len(maps), stored[0].size)
    return stored


@dataclass(frozen=True)
class Correlation:
    """`correlate.correlate`, or, ``transposed``, of errors `correlate.correlate_error`, by ``2**-shift`` to nearest and
    saturated into ``target``, with all that depends on no code worked out once."""

    window: Window
    filters: int
    channels: int
    shift: int
    target: Fixed
    transposed: bool = False
    # parts of the channels and of the filters that meet only one another; sizes are those of one
    groups: int = 1

    def __call__(self, maps: IntArray, versions: Versions) -> IntArray:
        """Of maps whose frames see several versions of the weights."""
        if self.groups == 1:
            return self._of_group(maps, versions)
        weights = [[(frames, part) for part in np.split(given, self.groups)] for frames, given in versions]
        parts = zip(np.split(maps, self.groups, 3), *weights, strict=True)
        return np.concatenate([self._of_group(part, list(seen)) for part, *seen in parts], 3)

    def _of_group(self, maps: IntArray, versions: Versions) -> IntArray:
        height, width, results = self._made
        result = np.empty((len(maps), height, width, results), np.int64)
        codes = [(frames.indices(len(maps)), np.ascontiguousarray(given).reshape(-1)) for frames, given in versions]
        for chunk in _chunks(len(maps), self._frame_bytes):
            stored = _stored(np.ascontiguousarray(maps[chunk]), self._layout)
            for (first, end, _), weights in codes:
                begin, behind = max(first, chunk.start), min(end, chunk.stop)
                if begin < behind:
                    seen, made = stored[begin - chunk.start : behind - chunk.start], result[begin:behind]
                    for pixels, products in self._pixels:
                        if products:
                            self._make(pixels, products * len(made), seen, weights, made)
                        else:
                            made[:, pixels.first[0] :: pixels.every[0], pixels.first[1] :: pixels.every[1]] = 0
        return result

    def _make(self, pixels: _Pixels, products: int, stored: ShortArray, weights: IntArray, made: IntArray) -> None:
        """Results of frames that see one version, of pixels that see the same taps."""
        from hdl.layers.conv.narrow_kernel import correlate

        places = pixels.taps, pixels.offsets, self._rounding, pixels.first, pixels.every
        arrays = stored, weights, pixels.step, self._weights, *places, made
        in_ranges(lambda first, end: correlate(first, end, *arrays), self._lane_groups, products)

    @cached_property
    def _weights(self) -> tuple[int, int, int, int]:
        """Results, and what is summed; what lies between two of each among the weights."""
        taps = self.window.taps
        forward, backward = (self.filters, self.channels * taps), (self.channels, taps)
        (results, by_result), (summed, by_summed) = (backward, forward) if self.transposed else (forward, backward)
        return results, summed, by_result, by_summed

    @cached_property
    def _made(self) -> tuple[int, int, int]:
        """Height, width and channels of the result."""
        height, width = (self.window.height, self.window.width) if self.transposed else self.window.output
        return height, width, self._weights[0]

    @cached_property
    def _lane_groups(self) -> int:
        """Of `LANES` results."""
        from hdl.layers.conv.pair_sums import LANES

        return -(-self._weights[0] // LANES)

    @cached_property
    def _rounding(self) -> tuple[int, int, int]:
        return self.shift, self.target.low, self.target.high

    @cached_property
    def _layout(self) -> _Layout:
        return _layout(self.window, self._weights[1], self.transposed)

    @cached_property
    def _frame_bytes(self) -> int:
        """Of a map as it is laid out."""
        return 2 * math.prod(self._layout.shape)

    @cached_property
    def _pixels(self) -> list[tuple[_Pixels, int]]:
        """Results that see the same taps, and for a group how many elements of `in_ranges` they are a frame, none where
        there are no taps."""
        size, depth = math.prod(self._made) // self._lane_groups, self._layout.shape[2]
        return [
            (pixels, -(-size * depth * len(pixels.taps) // (math.prod(pixels.every) * PRODUCTS_AN_ELEMENT)))
            for pixels in self._layout.pixels
        ]


@dataclass(frozen=True)
class ChannelCorrelation(Correlation):
    """A kernel a channel: ``filters`` is 1, and weights are ``(channels, 1, rows, columns)``."""

    def _make(self, pixels: _Pixels, products: int, stored: ShortArray, weights: IntArray, made: IntArray) -> None:
        from hdl.layers.conv.channel_kernel import correlate

        places = pixels.step, pixels.first, pixels.every
        arrays = weights, pixels.taps, stored, pixels.by_tap, places, self._rounding, made
        in_ranges(lambda first, end: correlate(first, end, *arrays), len(made), made[0].size * len(pixels.taps))

    @cached_property
    def _weights(self) -> tuple[int, int, int, int]:
        """Results are the channels."""
        return self.channels, self.channels, self.window.taps, self.window.taps


def channel_gradient(window: Window, maps: IntArray, errors: IntArray) -> IntArray:
    """The gradient of `ChannelCorrelation`'s weights, summed over frames."""
    from hdl.layers.conv.channel_kernel import gradient as run

    channels = maps.shape[3]
    layout = _layout(window, channels, False)
    (pixels,) = layout.pixels
    total = np.zeros((window.taps, channels), np.int64)
    for chunk in _chunks(len(maps), 2 * math.prod(layout.shape)):
        stored = _stored(np.ascontiguousarray(maps[chunk]), layout)
        run(stored, np.ascontiguousarray(errors[chunk]), pixels.step, pixels.by_tap, total)
    return total.T.reshape(channels, 1, *window.kernel)


def gradient(window: Window, maps: IntArray, errors: IntArray) -> IntArray:
    """`correlate.correlate_gradient`."""
    from hdl.layers.conv.narrow_kernel import gradient as run
    from hdl.layers.conv.narrow_kernel import pair_pixels
    from hdl.layers.conv.pair_sums import LANES, ROWS

    channels, filters = maps.shape[3], errors.shape[3]
    pieces, pairs = _pieces(-(-window.output[1] // 2))
    rows = (window.output[0] - 1) * window.stride[0] + window.extent[0]
    shape = (rows, pieces * pairs, ROWS, 2)
    ends = window.kernel[1], -(-channels // ROWS)
    groups = -(-filters // LANES)
    total = np.zeros((filters, channels, *window.kernel), np.int64)

    def work(seen: IntArray, given: IntArray) -> None:
        paired = np.empty((*ends, len(seen), *shape), np.int16)
        along = window.stride[1], window.dilation[1], window.padding[:2], paired
        in_ranges(lambda first, end: pair_pixels(first, end, seen, *along), len(seen), paired.size // len(seen))
        arrays = paired, window.stride[0], window.dilation[0], given, pieces, total
        products = given.size // groups * channels * window.taps
        in_ranges(lambda first, end: run(first, end, *arrays), groups, products // PRODUCTS_AN_ELEMENT)

    for chunk in _chunks(len(maps), 2 * math.prod((*ends, *shape))):
        work(np.ascontiguousarray(maps[chunk]), np.ascontiguousarray(errors[chunk]))
    return total
