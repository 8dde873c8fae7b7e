"""Windows of feature maps as matrices, for golden models and references of all layers with a kernel.

Maps are ``(frames, height, width, channels)``.  Tap ``(i, j)`` of output pixel ``(r, c)`` reads the input pixel
``(r * stride - padding_top + i, c * stride - padding_left + j)``; outside the map there are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", np.int64, np.float64)

# float64 holds every integer up to this exactly
EXACT = 1 << 53
# bytes of one matrix of patches; more frames than fit are done one chunk after another
CHUNK_BYTES = 1 << 26


@dataclass(frozen=True)
class Window:
    """A kernel that slides over a map."""

    # of the input map
    height: int
    width: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    # top, left, bottom, right
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the output map."""
        top, left, bottom, right = self.padding
        return (
            (self.height + top + bottom - self.kernel[0]) // self.stride[0] + 1,
            (self.width + left + right - self.kernel[1]) // self.stride[1] + 1,
        )

    @property
    def taps(self) -> int:
        """Kernel positions."""
        return self.kernel[0] * self.kernel[1]

    def _slices(self) -> Iterator[tuple[int, slice, slice]]:
        (out_height, out_width), (stride_h, stride_w) = self.output, self.stride
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                yield (
                    row * self.kernel[1] + column,
                    slice(row, row + (out_height - 1) * stride_h + 1, stride_h),
                    slice(column, column + (out_width - 1) * stride_w + 1, stride_w),
                )

    def _padded_shape(self, frames: int, channels: int) -> tuple[int, int, int, int]:
        top, left, bottom, right = self.padding
        return frames, self.height + top + bottom, self.width + left + right, channels

    def patches(self, maps: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """``(frames, out_height, out_width, taps, channels)``: what every output pixel sees."""
        frames, channels = len(maps), maps.shape[3]
        padded = np.zeros(self._padded_shape(frames, channels), maps.dtype)
        top, left = self.padding[:2]
        padded[:, top : top + self.height, left : left + self.width] = maps
        found = np.empty((frames, *self.output, self.taps, channels), maps.dtype)
        for tap, rows, columns in self._slices():
            found[:, :, :, tap] = padded[:, rows, columns]
        return found

    def scatter(self, patches: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """The transpose of `patches`: every patch entry added to the input pixel it came from."""
        frames, channels = len(patches), patches.shape[4]
        padded = np.zeros(self._padded_shape(frames, channels), patches.dtype)
        for tap, rows, columns in self._slices():
            padded[:, rows, columns] += patches[:, :, :, tap]
        top, left = self.padding[:2]
        return padded[:, top : top + self.height, left : left + self.width]

    def chunks(self, frames: int, channels: int) -> Iterator[slice]:
        """Ranges of frames whose patches take about `CHUNK_BYTES`."""
        each = 8 * channels * self.taps * self.output[0] * self.output[1]
        step = max(1, CHUNK_BYTES // each)
        for start in range(0, frames, step):
            yield slice(start, min(frames, start + step))


def product(left: npt.NDArray[Number], right: npt.NDArray[Number], bound: int) -> npt.NDArray[Number]:
    """``left @ right``, exact for integers whose partial sums stay within ``bound``.

    Raises OverflowError when int64 could overflow."""
    if left.dtype == np.int64 and bound >= 1 << 62:
        raise OverflowError(f"sums up to {bound} do not fit 64 bits; use narrower formats or fewer terms")
    return left @ right


def fastest(array: npt.NDArray[Any], bound: int) -> npt.NDArray[Any]:
    """Integers as float64, for which there is BLAS, if sums up to ``bound`` are exact so; else as they are."""
    return array.astype(np.float64) if array.dtype == np.int64 and bound <= EXACT else array


def correlate(
    window: Window, maps: npt.NDArray[Number], weights: npt.NDArray[Number], bound: int = 0
) -> npt.NDArray[Number]:
    """Convolution as networks mean it: weights ``(filters, channels, kernel_h, kernel_w)``, maps by frame."""
    filters, channels = weights.shape[:2]
    matrix = fastest(weights.transpose(2, 3, 1, 0).reshape(-1, filters), bound)
    result = np.empty((len(maps), *window.output, filters), maps.dtype)
    for part in window.chunks(len(maps), channels):
        rows = window.patches(fastest(maps[part], bound)).reshape(-1, len(matrix))
        result[part] = product(rows, matrix, bound).reshape(-1, *window.output, filters)
    return result


def correlate_error(
    window: Window, errors: npt.NDArray[Number], weights: npt.NDArray[Number], bound: int = 0
) -> npt.NDArray[Number]:
    """The error at the input of `correlate` from the errors at its output."""
    filters, channels = weights.shape[:2]
    matrix = fastest(weights.transpose(0, 2, 3, 1).reshape(filters, -1), bound)
    result = np.empty((len(errors), window.height, window.width, channels), errors.dtype)
    for part in window.chunks(len(errors), channels):
        patches = product(fastest(errors[part], bound).reshape(-1, filters), matrix, bound)
        result[part] = window.scatter(patches.reshape(-1, *window.output, window.taps, channels))
    return result


def correlate_gradient(
    window: Window, maps: npt.NDArray[Number], errors: npt.NDArray[Number], bound: int = 0
) -> npt.NDArray[Number]:
    """The gradient of the weights of `correlate`, summed over frames: ``(filters, channels, kernel_h, kernel_w)``."""
    channels, filters = maps.shape[3], errors.shape[3]
    total = np.zeros((filters, window.taps * channels), maps.dtype)
    for part in window.chunks(len(maps), channels):
        rows = window.patches(fastest(maps[part], bound)).reshape(-1, window.taps * channels)
        made = product(fastest(errors[part], bound).reshape(-1, filters).T, rows, bound)
        total += made.astype(total.dtype)
    return total.reshape(filters, *window.kernel, channels).transpose(0, 3, 1, 2)
