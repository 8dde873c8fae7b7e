"""Convolution of whole maps as products of matrices, forwards and backwards, for golden models and references."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.fixed import IntArray
from hdl.layers.window import Number, Window
from hdl.threads import mapped

# float64 holds every integer up to this exactly
EXACT = 1 << 53


def checked(factor: npt.NDArray[Number], bound: int) -> npt.NDArray[Number]:
    """A factor of a product whose partial sums stay within ``bound``.  Raises OverflowError if int64 could overflow."""
    if factor.dtype == np.int64 and bound >= 1 << 62:
        raise OverflowError(f"sums up to {bound} do not fit 64 bits; use narrower formats or fewer terms")
    return factor


def fastest(array: npt.NDArray[Any], bound: int) -> npt.NDArray[Any]:
    """Integers as float64, for which there is BLAS, if sums up to ``bound`` are exact so; else as they are."""
    return array.astype(np.float64) if array.dtype == np.int64 and bound <= EXACT else array


def by_group(
    groups: int, first: tuple[npt.NDArray[Number], int], second: tuple[npt.NDArray[Number], int]
) -> Iterator[tuple[npt.NDArray[Number], npt.NDArray[Number]]]:
    """The operands of each group: equal parts of two arrays, each along its axis."""
    if groups == 1:
        return iter([(first[0], second[0])])
    return zip(*(np.split(array, groups, axis) for array, axis in (first, second)), strict=True)


def joined(parts: Sequence[npt.NDArray[Number]], axis: int) -> npt.NDArray[Number]:
    """What the groups make, side by side."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def correlate(
    window: Window, maps: npt.NDArray[Number], weights: npt.NDArray[Number], bound: int = 0
) -> npt.NDArray[Number]:
    """Convolution as networks mean it: weights ``(filters, channels, kernel_h, kernel_w)``, maps by frame.

    Of integers the result is integers, in float64 where ``bound`` lets it (`fastest`)."""
    filters, channels = weights.shape[:2]
    # a row a filter: its taps are turned in place, and the product takes the matrix as it lies
    matrix = fastest(weights.transpose(0, 2, 3, 1).reshape(filters, -1), bound)
    result = np.empty((len(maps), *window.output, filters), matrix.dtype)

    def work(part: slice) -> None:
        rows = window.patches(maps[part], matrix.dtype).reshape(-1, matrix.shape[1])
        np.matmul(rows, checked(matrix, bound).T, out=result[part].reshape(-1, filters))

    deque(mapped(work, window.chunks(len(maps), channels)), 0)
    return result


def correlate_error(
    window: Window, errors: npt.NDArray[Number], weights: npt.NDArray[Number], bound: int = 0
) -> npt.NDArray[Number]:
    """The error at the input of `correlate` from the errors at its output; of the type that `correlate` has."""
    filters, channels = weights.shape[:2]
    matrix = fastest(weights.transpose(0, 2, 3, 1).reshape(filters, -1), bound)
    result = np.empty((len(errors), window.height, window.width, channels), matrix.dtype)

    def work(part: slice) -> None:
        patches = fastest(errors[part], bound).reshape(-1, filters) @ checked(matrix, bound)
        result[part] = window.scatter(patches.reshape(-1, *window.output, window.taps, channels))

    deque(mapped(work, window.chunks(len(errors), channels)), 0)
    return result


def correlate_gradient(
    window: Window, maps: npt.NDArray[Number], errors: npt.NDArray[Number], bound: int = 0
) -> npt.NDArray[Number]:
    """The gradient of the weights of `correlate`, summed over frames: ``(filters, channels, kernel_h, kernel_w)``."""
    channels, filters = maps.shape[3], errors.shape[3]
    total: npt.NDArray[Any] | None = None

    def work(part: slice) -> npt.NDArray[Any]:
        columns = checked(fastest(errors[part], bound), bound).reshape(-1, filters).T
        rows = window.patches(maps[part], columns.dtype).reshape(-1, window.taps * channels)
        partial: npt.NDArray[Any] = columns @ rows
        return partial

    # no sum is held twice: they are as large as the weights
    for summed in mapped(work, window.chunks(len(maps), channels)):
        if total is None:
            total = summed.astype(maps.dtype, copy=False)
        else:
            total += summed.astype(maps.dtype, copy=False)
    if total is None:
        total = np.zeros((filters, window.taps * channels), maps.dtype)
    return total.reshape(filters, *window.kernel, channels).transpose(0, 3, 1, 2)


def correlate_cut_gradient(window: Window, maps: IntArray, errors: IntArray, product_bits: int, cut: int) -> IntArray:
    """`correlate_gradient` of products, ``product_bits`` wide, of which `hdl.fixed.cut_product` keeps all but ``cut``
    bits, above 0."""
    from hdl.fixed_kernel import add_cut_products

    channels, filters = maps.shape[3], errors.shape[3]
    kind: np.dtype[Any] = np.dtype(np.int32 if product_bits <= 32 else np.int64)

    def work(part: slice) -> IntArray:
        columns = errors[part].reshape(-1, filters).astype(kind)
        rows = window.patches(maps[part], kind).reshape(-1, window.taps * channels)
        partial = np.zeros((filters, window.taps * channels), np.int64)
        add_cut_products(columns, rows, cut, partial)
        return partial

    total = sum(mapped(work, window.chunks(len(maps), channels)))
    return np.asarray(total).reshape(filters, *window.kernel, channels).transpose(0, 3, 1, 2)
