"""Fully connected layer: a convolution whose kernel covers the whole map."""

from __future__ import annotations

from typing import Any

from hdl.layers.conv.dense import Conv
from hdl.recipe import Recipe


def gemm(height: int, width: int, channels: int, filters: int, recipe: Recipe, **fields: Any) -> Conv:
    """``filters`` outputs of shape (1, 1, filters), each a weighted sum of the whole map.

    Weights have shape (filters, channels, height, width): ONNX's (filters, inputs) with the flattening undone.
    The stride is the kernel: that changes no result, and an error engine, which visits the taps that a stride leaves a
    pixel, visits one and not all of them.
    ``fields`` are further fields of `Conv`."""
    return Conv(
        height=height,
        width=width,
        channels=channels,
        filters=filters,
        kernel=(height, width),
        stride=(height, width),
        recipe=recipe,
        **fields,
    )
