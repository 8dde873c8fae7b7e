"""Gather of rows or columns of a map."""

from __future__ import annotations

import numpy as np

from dagtrain.graph.ir import Node
from hdl.layers.wiring.pixel_slice import PixelSlice
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("Gather")
def gather(node: OnnxNode, state: Lowering) -> None:
    """Rows (axis 2) or columns (axis 3) in their order; all of them is nothing.  Other Gathers are parts of idioms."""
    attributes = Attributes(node)
    axis = attributes.get("axis", 0)
    attributes.finish()
    x = state.value(node)
    places = state.constant(node, 1)
    height, width, channels = x.map
    if x.shape != (state.batch, channels, height, width) or axis % 4 not in (2, 3) or places.ndim != 1:
        shape = "x".join(map(str, places.shape)) or "one"
        raise Unsupported(
            f"gathers {shape} of axis {axis} of shape {list(x.shape)}", "only rows and columns of a map are supported"
        )
    size = x.shape[axis]
    chosen = tuple(int(place) % size for place in places)
    if list(chosen) != sorted({*chosen}):
        raise Unsupported(
            f"gathers {list(chosen)} of axis {axis}", "only rows and columns in their order are supported"
        )
    if len(chosen) == size:
        state.give(node, x)
        return
    every = tuple(range(width if axis % 4 == 2 else height))
    rows, columns = (chosen, every) if axis % 4 == 2 else (every, chosen)
    state.give(node, pick(node, state, x, rows, columns))


def pick(node: OnnxNode, state: Lowering, x: Value, rows: tuple[int, ...], columns: tuple[int, ...]) -> Value:
    """Rows and columns of a map, ascending."""
    height, width, channels = x.map
    layer = PixelSlice(height=height, width=width, channels=channels, rows=rows, columns=columns)
    return state.emit(node, layer, {"x": x})


@writes(PixelSlice)
def write_pixel_slice(node: Node, state: Writing) -> None:
    """One Gather for each axis of which some are left out; an import leaves some out."""
    layer = node.layer
    assert isinstance(layer, PixelSlice)
    read = state.tensor(node)
    some_columns = len(layer.columns) < layer.width
    if len(layer.rows) < layer.height:
        made = f"{node.name}.rows_alone" if some_columns else node.outputs["y"]
        rows = state.constant(node, "rows", layer.rows, np.int64)
        state.add(node, "Gather", read, rows, outputs=[made], axis=2)
        read = made
    if some_columns:
        columns = state.constant(node, "columns", layer.columns, np.int64)
        state.add(node, "Gather", read, columns, axis=3)
