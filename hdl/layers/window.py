"""A kernel on a feature map, and its windows as matrices, for golden models and references of layers with a kernel.

Maps are ``(frames, height, width, channels)``.  Tap ``(i, j)`` of output pixel ``(r, c)`` reads the input pixel
``(r * stride - padding_top + i * dilation, c * stride - padding_left + j * dilation)``; outside the map are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from hdl.engine.window.walk import SharedAxis

Number = TypeVar("Number", np.int64, np.float64)

Pair = tuple[int, int]
# pairs, of rows and columns: kernel, stride, dilation, padding in front
Geometry = tuple[Pair, Pair, Pair, Pair]

# bytes of one matrix of patches; more frames than fit are done one chunk after another
CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Kernel:
    """How a kernel slides over a map."""

    # rows, columns
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    # top, left, bottom, right; of the map that is cut off where negative
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    # distance of neighbouring taps along rows, columns
    dilation: tuple[int, int] = (1, 1)

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns from the first tap to the last."""
        (rows, columns), (down, right) = self.kernel, self.dilation
        return (rows - 1) * down + 1, (columns - 1) * right + 1

    @property
    def fields(self) -> dict[str, Any]:
        """As fields of a layer."""
        return {"kernel": self.kernel, "stride": self.stride, "padding": self.padding, "dilation": self.dilation}


@dataclass(frozen=True)
class Window(Kernel):
    """A kernel that slides over a map."""

    # of the input map
    height: int = field(kw_only=True)
    width: int = field(kw_only=True)

    @cached_property
    def output(self) -> tuple[int, int]:
        """Height and width of the output map."""
        top, left, bottom, right = self.padding
        return (
            (self.height + top + bottom - self.extent[0]) // self.stride[0] + 1,
            (self.width + left + right - self.extent[1]) // self.stride[1] + 1,
        )

    @property
    def geometry(self) -> Geometry:
        """As compiled loops want it."""
        return self.kernel, self.stride, self.dilation, self.padding[:2]

    @property
    def taps(self) -> int:
        """Kernel positions."""
        return self.kernel[0] * self.kernel[1]

    @cached_property
    def _is_pixelwise(self) -> bool:
        """Whether every output pixel sees the input pixel in its place, and no other."""
        return (self.kernel, self.stride, self.padding) == ((1, 1), (1, 1), (0, 0, 0, 0))

    def patches(self, maps: npt.NDArray[Number], dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
        """``(frames, out_height, out_width, taps, channels)``: what every output pixel sees; of the maps' type if none
        is given.  Not to be written: of windows of one pixel it may be the maps themselves."""
        from hdl.layers.window_kernel import gather

        if self._is_pixelwise:
            as_they_are = np.ascontiguousarray(maps, dtype or maps.dtype)
            return as_they_are.reshape(len(maps), *self.output, 1, maps.shape[3])
        found = np.empty((len(maps), *self.output, self.taps, maps.shape[3]), dtype or maps.dtype)
        gather(np.ascontiguousarray(maps), *self.geometry, found)
        return found

    def scatter(self, patches: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """The transpose of `patches`: every patch entry added to the input pixel it came from."""
        from hdl.layers.window_kernel import scatter

        if self._is_pixelwise:
            return np.ascontiguousarray(patches).reshape(len(patches), self.height, self.width, patches.shape[4])
        found = np.zeros((len(patches), self.height, self.width, patches.shape[4]), patches.dtype)
        given = np.ascontiguousarray(patches)
        scatter(given, *self.geometry, found)
        return found

    def chunks(self, frames: int, channels: int) -> Iterator[slice]:
        """Ranges of frames whose patches take about `CHUNK_BYTES`."""
        each = 8 * channels * self.taps * self.output[0] * self.output[1]
        step = max(1, CHUNK_BYTES // each)
        for start in range(0, frames, step):
            yield slice(start, min(frames, start + step))


@dataclass(frozen=True)
class SharedWindow(Window):
    """Windows of unlike sizes: each is what overlaps an equal share of the map, and is filled up with zeros behind."""

    # rows and columns of the output map
    shares: tuple[int, int] = field(kw_only=True)

    @classmethod
    def over(cls, height: int, width: int, shares: tuple[int, int]) -> Self:
        """With the kernel of the largest of them."""
        rows, columns = SharedAxis.of(height, shares[0]), SharedAxis.of(width, shares[1])
        return cls((rows.kernel, columns.kernel), height=height, width=width, shares=shares)

    @property
    def output(self) -> tuple[int, int]:
        """As chosen."""
        return self.shares

    @cached_property
    def _axes(self) -> tuple[SharedAxis, SharedAxis]:
        (height, width), (rows, columns) = (self.height, self.width), self.shares
        return SharedAxis.of(height, rows), SharedAxis.of(width, columns)

    def lengths(self, axis: int) -> list[int]:
        """Pixels of each row (axis 0) or column of windows."""
        along = self._axes[axis]
        return [along.count(along.phase(output)) for output in range(along.outputs)]

    def means(self, axis: int) -> npt.NDArray[np.float64]:
        """The means of each row (axis 0) or column of windows as a matrix: (windows, pixels)."""
        along = self._axes[axis]
        found = np.zeros((along.outputs, along.stored))
        for output, length in enumerate(self.lengths(axis)):
            start = along.position(output, 0)
            found[output, start : start + length] = 1 / length
        return found

    @cached_property
    def _read(self) -> npt.NDArray[np.int64]:
        """Which pixel each tap reads, in raster order, or one behind all: (rows, columns, taps)."""
        rows, columns = (
            np.array([[axis.position(o, tap) if tap < axis.count(axis.phase(o)) else -1 for tap in range(axis.kernel)]
                      for o in range(axis.outputs)])
            for axis in self._axes
        )  # fmt: skip
        down, right = rows[:, None, :, None], columns[None, :, None, :]
        at = np.where((down < 0) | (right < 0), self.height * self.width, down * self.width + right)
        return at.reshape(*self.shares, -1)

    def patches(self, maps: npt.NDArray[Number], dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
        """As of `Window`."""
        frames, _, _, channels = maps.shape
        pixels = np.zeros((frames, self.height * self.width + 1, channels), dtype or maps.dtype)
        pixels[:, :-1] = maps.reshape(frames, -1, channels)
        return pixels[:, self._read]

    def scatter(self, patches: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """As of `Window`."""
        frames, channels = len(patches), patches.shape[4]
        pixels = np.zeros((self.height * self.width + 1, frames, channels), patches.dtype)
        np.add.at(pixels, self._read, np.moveaxis(patches, 0, 3))
        return np.moveaxis(pixels[:-1], 0, 1).reshape(frames, self.height, self.width, channels)
