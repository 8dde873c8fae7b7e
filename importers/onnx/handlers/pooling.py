"""MaxPool, AveragePool, GlobalAveragePool, and what amounts to the latter: ReduceMean over height and width."""

from __future__ import annotations

import numpy as np

from dagtrain.graph.ir import Node
from hdl.layers.pool.average_pool import AveragePool
from hdl.layers.pool.global_average_pool import GlobalAveragePool
from hdl.layers.pool.max_pool import MaxPool
from hdl.layers.window import SharedWindow
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.handlers.windows import read_window, rounded_up, write_window
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("MaxPool")
def max_pool(node: OnnxNode, state: Lowering) -> None:
    """Rounding up (``ceil_mode``) is padding at the ends, which never wins against an element of the map."""
    x = state.map_of(node)
    height, width, channels = x.map
    attributes = Attributes(node)
    attributes.ignore("storage_order")
    up = attributes.get("ceil_mode", 0)
    window = read_window(attributes, (height, width), None)
    attributes.finish()
    window = rounded_up(window, (height, width)) if up else window
    layer = MaxPool(
        height=height,
        width=width,
        channels=channels,
        **window.fields,
    )
    state.give(node, state.emit(node, layer, {"x": x}))


@handles("GlobalAveragePool")
def global_average_pool(node: OnnxNode, state: Lowering) -> None:
    """Mean over the map."""
    Attributes(node).finish()
    state.give(node, _average(node, state, state.map_of(node), True))


@handles("AveragePool")
def average_pool(node: OnnxNode, state: Lowering) -> None:
    """`GlobalAveragePool` where one window is the whole map.  Rounding up (``ceil_mode``) is padding at the ends, which
    doesn't count, whether other padding does (``count_include_pad``) or not."""
    x = state.map_of(node)
    height, width, channels = x.map
    attributes = Attributes(node)
    include, up = attributes.get("count_include_pad", 0), attributes.get("ceil_mode", 0)
    window = read_window(attributes, (height, width), None)
    attributes.finish()
    if window.kernel == (height, width) and not any(window.padding):
        state.give(node, _average(node, state, x, True))
        return
    counted = window.padding if include else (0, 0, 0, 0)
    window = rounded_up(window, (height, width)) if up else window
    layer = AveragePool(height=height, width=width, channels=channels, **window.fields, counted=counted)
    state.give(node, state.emit(node, layer, {"x": x}))


@handles("dagtrain.AdaptiveAveragePool")
def adaptive_average_pool(node: OnnxNode, state: Lowering) -> None:
    """Windows that overlap equal shares of the map, of unlike sizes."""
    x = state.map_of(node)
    height, width, channels = x.map
    attributes = Attributes(node)
    rows, columns = attributes.get("size", [])
    attributes.finish()
    layer = AveragePool.sharing(height, width, (rows, columns), channels=channels)
    state.give(node, state.emit(node, layer, {"x": x}))


@handles("ReduceMean")
def reduce_mean(node: OnnxNode, state: Lowering) -> None:
    """Only over all of the map; axes are an input since opset 18, an attribute before."""
    attributes = Attributes(node)
    axes = attributes.get("axes", None)
    keep = bool(attributes.get("keepdims", 1))
    attributes.ignore("noop_with_empty_axes")
    attributes.finish()
    if state.has(node, 1):
        axes = np.atleast_1d(state.constant(node, 1)).tolist()
    x = state.value(node)
    rank = len(x.shape)
    chosen = sorted(int(axis) % rank for axis in axes) if axes else list(range(rank))
    if chosen != list(range(2, rank)) or x.shape[1] != x.map[2]:
        raise Unsupported(
            f"averages axes {chosen} of a tensor of shape {list(x.shape)}",
            "only the mean over height and width is supported",
        )
    state.give(node, _average(node, state, x, keep))


def _average(node: OnnxNode, state: Lowering, x: Value, keep: bool) -> Value:
    height, width, channels = x.map
    layer = GlobalAveragePool(height=height, width=width, channels=channels)
    view = (state.batch, channels, *(1 for _ in x.shape[2:] if keep))
    return state.emit(node, layer, {"x": x}, view=view)


@writes(MaxPool)
def write_max_pool(node: Node, state: Writing) -> None:
    """Rounded down: what rounding up added is padding."""
    assert isinstance(node.layer, MaxPool)
    state.add(node, "MaxPool", **write_window(node.layer))


@writes(AveragePool)
def write_average_pool(node: Node, state: Writing) -> None:
    """Padding that counts is a Pad of its own where other padding doesn't, and around windows of one element; means of
    windows of unlike sizes are products with a matrix an axis."""
    layer = node.layer
    assert isinstance(layer, AveragePool)
    if isinstance(layer.window, SharedWindow):
        by_row, by_column = (layer.window.means(axis) for axis in range(2))
        between, read = f"{node.name}.columns_pooled", state.tensor(node)
        state.add(node, "MatMul", read, state.constant(node, "columns", by_column.T), outputs=[between])
        state.add(node, "MatMul", state.constant(node, "rows", by_row), between)
        return
    window, read = write_window(layer), state.tensor(node)
    # of single elements, of which nothing else can be around the map than zeros that count
    if layer.kernel == layer.stride == (1, 1):
        top, left, bottom, right = layer.padding
        state.add(node, "Pad", read, state.constant(node, "pads", [0, 0, top, left, 0, 0, bottom, right], np.int64))
        return
    if layer.counted == layer.padding:
        state.add(node, "AveragePool", read, count_include_pad=1, **window)
        return
    if any(layer.counted):
        top, left, bottom, right = layer.counted
        sizes = state.constant(node, "pads", [0, 0, top, left, 0, 0, bottom, right], np.int64)
        read, given = f"{node.name}.padded", read
        state.add(node, "Pad", given, sizes, outputs=[read])
        window["pads"] = [every - some for every, some in zip(layer.padding, layer.counted, strict=True)]
    state.add(node, "AveragePool", read, **window)


@writes(GlobalAveragePool)
def write_global_average_pool(node: Node, state: Writing) -> None:
    """As it is."""
    state.add(node, "GlobalAveragePool")
