"""Tensors as the beats of a stream, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hdl.fixed import Fixed, IntArray
from hdl.layers.shape import Shape
from hdl.tensor import from_order, in_order

# codes that `pack` handles at a time
PACKED_CODES = 1 << 18


def pack(codes: IntArray, width: int, lanes: int) -> list[int]:
    """Beats (unsigned payloads) of a flat code array in stream order; lane 0 in the low bits."""
    beats = codes.reshape(-1, lanes)
    found: list[int] = []
    for at in range(0, len(beats), max(1, PACKED_CODES // lanes)):
        part = np.ascontiguousarray(beats[at : at + max(1, PACKED_CODES // lanes)], dtype="<i8")
        raw = part.view(np.uint8).reshape(*part.shape, 8)
        if width % 8:
            bits = np.unpackbits(raw, axis=-1, count=width, bitorder="little").reshape(len(part), lanes * width)
            rows = np.packbits(bits, axis=-1, bitorder="little")
        else:
            rows = raw[:, :, : width // 8].reshape(len(part), lanes * width // 8)
        size, text = rows.shape[1], rows.tobytes()
        found += [int.from_bytes(text[i : i + size], "little") for i in range(0, len(text), size)]
    return found


def pack_pairs(low: IntArray, high: IntArray, widths: tuple[int, int], lanes: int) -> list[int]:
    """Beats of two arrays of as many codes: those of ``high`` above those of ``low``."""
    above = lanes * widths[0]
    beats = zip(pack(low, widths[0], lanes), pack(high, widths[1], lanes), strict=True)
    return [lower | higher << above for lower, higher in beats]


def unpack(beats: Sequence[int], fixed: Fixed, lanes: int) -> IntArray:
    """Inverse of `pack`."""
    mask = (1 << fixed.width) - 1
    flat = [(beat >> (fixed.width * lane)) & mask for beat in beats for lane in range(lanes)]
    codes = np.array(flat, np.int64)
    return np.where(codes > fixed.high, codes - (1 << fixed.width), codes) if fixed.signed else codes


def to_beats(layer: Shape, port_name: str, tensors: IntArray) -> list[int]:
    """Beats of stacked tensors ``(count, *shape)`` at a port, in that port's stream order."""
    port = layer.port(port_name)
    flat = in_order(tensors.reshape(len(tensors), -1), layer.stream_order(port_name))
    return pack(flat, port.tensor.fixed.width, port.lanes)


def from_beats(layer: Shape, port_name: str, beats: Sequence[int]) -> IntArray:
    """Inverse of `to_beats`."""
    port = layer.port(port_name)
    flat = unpack(beats, port.tensor.fixed, port.lanes).reshape(-1, port.elements)
    return from_order(flat, layer.stream_order(port_name)).reshape(-1, *port.tensor.shape)
