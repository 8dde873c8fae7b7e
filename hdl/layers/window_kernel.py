"""`hdl.layers.window.Window.patches` and `scatter`, compiled; apart so that only who computes with maps pays for numba.

Shapes: maps ``(frames, height, width, channels)``, patches ``(frames, rows, columns, taps, channels)``.  Pairs are of
rows and columns; ``start`` is the padding at the top and on the left.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import njit

Pair = tuple[int, int]


@njit(cache=True, nogil=True)
def gather(
    maps: npt.NDArray[Any], kernel: Pair, stride: Pair, dilation: Pair, start: Pair, patches: npt.NDArray[Any]
) -> None:
    """Fills ``patches`` with what every output pixel sees of ``maps``."""
    height, width = maps.shape[1:3]
    for frame in range(patches.shape[0]):
        for row in range(patches.shape[1]):
            for column in range(patches.shape[2]):
                for tap in range(patches.shape[3]):
                    y = row * stride[0] - start[0] + tap // kernel[1] * dilation[0]
                    x = column * stride[1] - start[1] + tap % kernel[1] * dilation[1]
                    if 0 <= y < height and 0 <= x < width:
                        for channel in range(maps.shape[3]):
                            patches[frame, row, column, tap, channel] = maps[frame, y, x, channel]
                    else:
                        for channel in range(maps.shape[3]):
                            patches[frame, row, column, tap, channel] = 0


@njit(cache=True, nogil=True)
def scatter(
    patches: npt.NDArray[Any], kernel: Pair, stride: Pair, dilation: Pair, start: Pair, maps: npt.NDArray[Any]
) -> None:
    """Adds every entry of ``patches`` to the element of ``maps`` from which `gather` takes it."""
    height, width = maps.shape[1:3]
    for frame in range(patches.shape[0]):
        for row in range(patches.shape[1]):
            for column in range(patches.shape[2]):
                for tap in range(patches.shape[3]):
                    y = row * stride[0] - start[0] + tap // kernel[1] * dilation[0]
                    x = column * stride[1] - start[1] + tap % kernel[1] * dilation[1]
                    if 0 <= y < height and 0 <= x < width:
                        for channel in range(maps.shape[3]):
                            maps[frame, y, x, channel] += patches[frame, row, column, tap, channel]
