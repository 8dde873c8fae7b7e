"""Conv: plain, grouped and depthwise convolution, its bias as a layer of its own."""

from __future__ import annotations

from dagtrain.graph.ir import Node
from hdl.layers.conv.dense import Conv
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.pointwise.bias import Bias
from importers.onnx.context import Attributes, Lowering, Value
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.handlers.windows import read_window, write_window
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("Conv")
def conv(node: OnnxNode, state: Lowering) -> None:
    """Becomes `Conv`, or `DepthwiseConv` where every channel has one filter of its own; a bias becomes `Bias`."""
    weight = state.weight(node, 1)
    if weight.ndim != 4:
        raise Unsupported(f"weights have shape {list(weight.shape)}", "only two-dimensional convolution is supported")
    x = state.map_of(node)
    height, width, channels = x.map
    attributes = Attributes(node)
    groups = attributes.get("group", 1)
    window = read_window(attributes, (height, width), weight.shape[2:])
    attributes.finish()
    filters = weight.shape[0]
    name = node.label
    if groups < 1 or weight.shape[1] * groups != channels or filters % groups:
        parts = "" if groups == 1 else f" in {groups} groups"
        raise Unsupported(f"weights of shape {list(weight.shape)} meet {channels} channels{parts}", "export again")
    if groups == channels == filters > 1:
        layer: Conv | DepthwiseConv = DepthwiseConv(
            height=height,
            width=width,
            channels=channels,
            **window.fields,
            recipe=state.recipe,
        )
    else:
        layer = Conv(
            height=height,
            width=width,
            channels=channels,
            filters=filters,
            groups=groups,
            **window.fields,
            recipe=state.recipe,
        )
    # of a vector, which has fewer axes or more, it makes another one
    view = None if len(x.shape) == 4 else (state.batch, filters, *x.shape[2:])
    y = state.emit(node, layer, {"x": x}, {"w": weight}, name, view=view)
    state.give(node, add_bias(node, state, y, 2, name) if state.has(node, 2) else y)


def add_bias(node: OnnxNode, state: Lowering, x: Value, index: int, name: str) -> Value:
    """A `Bias` with the vector at input ``index`` of ``node``."""
    height, width, channels = x.map
    vector = state.weight(node, index)
    if vector.size != channels:
        raise Unsupported(f"bias of shape {list(vector.shape)} meets {channels} channels", "export again")
    layer = Bias(height=height, width=width, channels=channels, recipe=state.recipe)
    return state.emit(node, layer, {"x": x}, {"b": vector.reshape(channels)}, f"{name}_bias", view=x.shape)


@writes(Conv, DepthwiseConv)
def write_conv(node: Node, state: Writing) -> None:
    """Without a bias, which is a layer of its own."""
    layer = node.layer
    assert isinstance(layer, Conv | DepthwiseConv)
    weight = state.constant(node, "weight", state.value(node, "w"))
    groups = layer.channels if isinstance(layer, DepthwiseConv) else layer.groups
    state.add(node, "Conv", state.tensor(node), weight, group=groups, **write_window(layer))
