"""Sums of `hdl.layers.conv.depthwise` of any kind of number, compiled, without a copy of what every pixel sees.

Maps are ``(frames, height, width, channels)``, weights ``(taps, channels)``.  Every sum adds its products one after
another in the order of frames, rows, columns and taps, so that floats are the same wherever it is done.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import njit

from hdl.layers.window import Geometry, Pair

Numbers = npt.NDArray[Any]


@njit(cache=True)
def _seen(geometry: Geometry, row: int, column: int, tap: int) -> Pair:
    """The pixel that an output pixel sees through a tap; of the padding, one beside the map."""
    kernel, stride, dilation, start = geometry
    return (
        row * stride[0] - start[0] + tap // kernel[1] * dilation[0],
        column * stride[1] - start[1] + tap % kernel[1] * dilation[1],
    )


@njit(cache=True)
def _add_products(one: Numbers, other: Numbers, sums: Numbers) -> None:
    for channel in range(len(sums)):
        sums[channel] += one[channel] * other[channel]


@njit(cache=True, nogil=True)
def forward(first: int, end: int, maps: Numbers, weights: Numbers, geometry: Geometry, result: Numbers) -> None:
    """Frames from ``first`` to ``end`` of the convolution, added to ``result``."""
    height, width = maps.shape[1:3]
    for frame in range(first, end):
        for row in range(result.shape[1]):
            for column in range(result.shape[2]):
                for tap in range(len(weights)):
                    y, x = _seen(geometry, row, column, tap)
                    if 0 <= y < height and 0 <= x < width:
                        _add_products(maps[frame, y, x], weights[tap], result[frame, row, column])


@njit(cache=True, nogil=True)
def error(first: int, end: int, errors: Numbers, weights: Numbers, geometry: Geometry, result: Numbers) -> None:
    """Frames from ``first`` to ``end`` of the errors at the input of `forward`, added to ``result``."""
    height, width = result.shape[1:3]
    for frame in range(first, end):
        for row in range(errors.shape[1]):
            for column in range(errors.shape[2]):
                for tap in range(len(weights)):
                    y, x = _seen(geometry, row, column, tap)
                    if 0 <= y < height and 0 <= x < width:
                        _add_products(errors[frame, row, column], weights[tap], result[frame, y, x])


@njit(cache=True, nogil=True)
def gradient(maps: Numbers, errors: Numbers, geometry: Geometry, result: Numbers) -> None:
    """The gradient of the weights of `forward`, summed over frames, added to ``result``."""
    height, width = maps.shape[1:3]
    for frame in range(len(maps)):
        for row in range(errors.shape[1]):
            for column in range(errors.shape[2]):
                for tap in range(len(result)):
                    y, x = _seen(geometry, row, column, tap)
                    if 0 <= y < height and 0 <= x < width:
                        _add_products(maps[frame, y, x], errors[frame, row, column], result[tap])
