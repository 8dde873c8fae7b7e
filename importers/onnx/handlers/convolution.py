"""Conv: plain and depthwise convolution, its bias as a layer of its own."""

from __future__ import annotations

from hdl.layers.conv.dense import Conv
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.pointwise.bias import Bias
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.registry import handles
from importers.onnx.handlers.windows import read_window
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported


@handles("Conv")
def conv(node: OnnxNode, state: Lowering) -> None:
    """Group 1 becomes `Conv`, one group a channel `DepthwiseConv`; a bias becomes `Bias`."""
    x = state.map_of(node)
    weight = state.weight(node, 1)
    height, width, channels = x.map
    if weight.ndim != 4:
        raise Unsupported(f"weights have shape {list(weight.shape)}", "only two-dimensional convolution is supported")
    attributes = Attributes(node)
    groups = attributes.get("group", 1)
    window = read_window(attributes, (height, width), weight.shape[2:])
    attributes.finish()
    filters = weight.shape[0]
    name = node.label
    if groups == 1:
        if weight.shape[1] != channels:
            raise Unsupported(f"weights of shape {list(weight.shape)} meet {channels} channels", "export again")
        layer: Conv | DepthwiseConv = Conv(
            height=height,
            width=width,
            channels=channels,
            filters=filters,
            **window.fields,
            recipe=state.recipe,
        )
    elif groups == channels == filters and weight.shape[1] == 1:
        layer = DepthwiseConv(
            height=height,
            width=width,
            channels=channels,
            **window.fields,
            recipe=state.recipe,
        )
    else:
        raise Unsupported(
            f"group={groups} with {channels} channels and {filters} filters is not supported",
            "only group 1 and depthwise (group = channels = filters) are",
        )
    y = state.emit(node, layer, {"x": x}, {"w": weight}, name)
    state.give(node, add_bias(node, state, y, 2, name) if state.has(node, 2) else y)


def add_bias(node: OnnxNode, state: Lowering, x: Value, index: int, name: str) -> Value:
    """A `Bias` with the vector at input ``index`` of ``node``."""
    height, width, channels = x.map
    vector = state.weight(node, index)
    if vector.size != channels:
        raise Unsupported(f"bias of shape {list(vector.shape)} meets {channels} channels", "export again")
    layer = Bias(height=height, width=width, channels=channels, recipe=state.recipe)
    return state.emit(node, layer, {"x": x}, {"b": vector.reshape(channels)}, f"{name}_bias", view=x.shape)
