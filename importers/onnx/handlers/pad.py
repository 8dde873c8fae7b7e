"""Pad, or to cut, where no window takes it as padding: means of single elements, whose padding counts as zeros.

Around another constant the map is made less by it before, and more after.
"""

from __future__ import annotations

import numpy as np

from hdl.layers.pointwise.bias import Bias
from hdl.layers.pool.average_pool import AveragePool
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.registry import handles
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported

# what is padded with is written in the number format of the map: much more would leave it few bits
LARGEST_VALUE = 64.0


@handles("Pad")
def pad(node: OnnxNode, state: Lowering) -> None:
    """Around height and width; sizes and value are attributes before opset 11, axes may be given since 18."""
    x = state.map_of(node)
    height, width, channels = x.map
    attributes = Attributes(node)
    mode, value = attributes.get("mode", "constant"), attributes.get("value", 0.0)
    pads = attributes.get("pads", None)
    attributes.finish()
    if state.has(node, 1):
        pads = state.constant(node, 1).reshape(-1).tolist()
    if state.has(node, 2):
        value = state.constant(node, 2).item()
    axes = state.constant(node, 3).reshape(-1).tolist() if state.has(node, 3) else list(range(len(x.shape)))
    if pads is None or len(pads) != 2 * len(axes):
        raise Unsupported(f"pads {pads} on {len(axes)} axes", "export with two pads an axis")
    sizes = np.zeros((2, len(x.shape)), int)
    sizes[:, [int(axis) % len(x.shape) for axis in axes]] = np.reshape(pads, (2, -1))
    if mode != "constant":
        cure = "only constants are supported: export with padding_mode='zeros', or pad the images beforehand"
        raise Unsupported(f"pads in mode {mode}", cure)
    if not abs(value) <= LARGEST_VALUE:
        raise Unsupported(f"pads with {value}", f"export with a constant from -{LARGEST_VALUE:g} to {LARGEST_VALUE:g}")
    if len(x.shape) != 4 or sizes[:, :2].any():
        raise Unsupported(f"pads {pads}", "only pads around height and width are supported")
    if not sizes.any():
        state.give(node, x)
        return
    around = (int(sizes[0, 2]), int(sizes[0, 3]), int(sizes[1, 2]), int(sizes[1, 3]))
    top, left, bottom, right = (max(side, 0) for side in around)
    layer = AveragePool(
        height=height,
        width=width,
        channels=channels,
        kernel=(1, 1),
        stride=(1, 1),
        padding=around,
        counted=(top, left, bottom, right),
    )
    if value:
        x = _shifted(node, state, x, -value)
    padded = state.emit(node, layer, {"x": x})
    state.give(node, _shifted(node, state, padded, value) if value else padded)


def _shifted(node: OnnxNode, state: Lowering, x: Value, by: float) -> Value:
    """The map with a constant added that nothing trains."""
    height, width, channels = x.map
    layer = Bias(height=height, width=width, channels=channels, recipe=state.recipe, frozen=True)
    return state.emit(node, layer, {"x": x}, {"b": np.full(channels, by)}, name=f"{node.label}_shift", view=x.shape)
