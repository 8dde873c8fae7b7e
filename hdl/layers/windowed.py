"""What layers share whose kernel slides over each channel by itself: pooling and depthwise convolution."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hdl.engine.window.walk import Axis, Walk
from hdl.errors import ShapeError
from hdl.layers.base import Layer
from hdl.layers.conv.patches import Window


@dataclass(frozen=True, kw_only=True)
class _Windowed(Layer):
    """A map, a kernel, and the order of work: pixel, group of channels, taps."""

    # of the forward layer's input map
    height: int
    width: int
    channels: int
    # rows, columns
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    # top, left, bottom, right
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def name(self) -> str:
        """For messages."""
        return f"{type(self).__name__} {self.height}x{self.width}x{self.channels}, kernel {self.kernel}"

    def check_shape(self) -> None:
        """Raises `ShapeError`."""
        if min(self.height, self.width, self.channels, *self.kernel, *self.stride) < 1:
            raise ShapeError(f"{self.name}: dimensions, kernel and stride {self.stride} must be positive")
        if min(self.padding) < 0 or min(self.window.output) < 1:
            raise ShapeError(
                f"{self.name} with padding {self.padding} does not fit the map; "
                "make the padding (none negative) or the map larger"
            )

    @property
    def window(self) -> Window:
        """The kernel on the forward layer's input map."""
        return Window(self.height, self.width, self.kernel, self.stride, self.padding)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of the forward layer's input."""
        return self.height, self.width, self.channels

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Shape of the forward layer's output."""
        return (*self.window.output, self.channels)

    def tap_groups(self, *, transposed: bool) -> list[int]:
        """How many taps a cycle are possible; parallel taps of an error engine need stride 1 along their axis."""
        groups = {1}
        if self.stride[1] == 1 or not transposed:
            groups.add(self.kernel[1])
            if self.stride[0] == 1 or not transposed:
                groups.add(self.window.taps)
        return sorted(groups)

    def parallel_taps(self, taps: int) -> tuple[int, int]:
        """Tap rows and columns of a cycle."""
        return self.kernel if taps == self.window.taps else (1, taps)

    def channel_walk(self, lanes: int, taps: int, *, transposed: bool) -> Walk:
        """The walk of an engine with ``lanes`` channels and ``taps`` taps a cycle; backwards if ``transposed``."""
        out_height, out_width = self.window.output
        sizes = ((self.height, out_height), (self.width, out_width))
        parallel = self.parallel_taps(taps)
        rows, columns = (
            Axis(
                sizes[axis][transposed],
                sizes[axis][not transposed],
                self.kernel[axis],
                self.stride[axis],
                self.padding[axis],
                parallel[axis],
                transposed,
            )
            for axis in range(2)
        )
        return Walk(rows, columns, reduce=1, repeat=self.channels // lanes, group_steps=(0, 1))

    def stored_required(self, walk: Walk, elements: int) -> int:
        """Stored elements that must be there for ``elements`` of the output: whole rows."""
        row = (elements - 1) // (walk.columns.outputs * self.channels)
        return walk.rows.needs()[row] * walk.columns.stored * self.channels

    @property
    def kernel_macs(self) -> int:
        """Taps of all outputs of a frame, those in padding counted."""
        return math.prod(self.output_shape) * self.window.taps
