"""LayerNorm and LRN over channels; BatchNormalization: online normalisation, where `norm` left it, or constants, where
it was frozen."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagtrain.graph.ir import Node
from hdl.fixed import FloatArray
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.norm.channel_norm import ChannelNorm
from hdl.layers.norm.local_response_norm import LocalResponseNorm, strength_for
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.pointwise.bias import Bias
from hdl.layers.pointwise.channel_affine import ChannelAffine
from importers.onnx.context import Attributes, Lowering
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.norm import is_fresh
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing

# ONNX's own
LRN_DEFAULTS = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}


@handles("BatchNormalization")
def batch_normalization(node: OnnxNode, state: Lowering) -> None:
    """Scale and shift stay, and statistics where data went into them; the mode (training or not) has no meaning."""
    attributes = Attributes(node)
    epsilon = attributes.get("epsilon", 1e-5)
    attributes.ignore("momentum", "training_mode", "spatial")
    attributes.finish()
    x = state.map_of(node)
    height, width, channels = x.map
    gamma, beta = state.weight(node, 1), state.weight(node, 2)
    if gamma.shape != (channels,) or beta.shape != (channels,):
        raise Unsupported(f"scale of shape {list(gamma.shape)} meets {channels} channels", "export again")
    layer = OnlineNorm(height=height, width=width, channels=channels, recipe=state.recipe, epsilon=float(epsilon))
    made = state.emit(node, layer, {"x": x}, {"gamma": gamma, "beta": beta}, node.label, view=x.shape)
    statistics = _statistics(node, state, channels)
    if not is_fresh(node, state.model.constants):
        state.carried[state.nodes[-1].name] = statistics
    state.give(node, made)


def _statistics(node: OnnxNode, state: Lowering, channels: int) -> dict[str, FloatArray]:
    """Running mean and variance of the file."""
    found: dict[str, FloatArray] = {}
    for index, what in ((3, "mean"), (4, "variance")):
        found[what] = np.asarray(state.constant(node, index), np.float64)
        if found[what].shape != (channels,):
            raise Unsupported(f"{what} of shape {list(found[what].shape)} meets {channels} channels", "export again")
    if found["variance"].min() < 0:
        raise Unsupported("a running variance is negative", "export again, from an earlier checkpoint")
    return found


@writes(OnlineNorm)
def write_online_norm(node: Node, state: Writing) -> None:
    """With the mean and deviation that the next frame would meet; a variance below epsilon goes into the scale."""
    assert isinstance(node.layer, OnlineNorm)
    mean, inverse = node.layer.statistics(state.states[node.name])
    variance = np.maximum(inverse**-2 - node.layer.epsilon, 0)
    scale = state.value(node, "gamma") * inverse * np.sqrt(variance + node.layer.epsilon)
    vectors = {"weight": scale, "bias": state.value(node, "beta"), "running_mean": mean, "running_var": variance}
    constants = (state.constant(node, name, vector) for name, vector in vectors.items())
    state.add(node, "BatchNormalization", state.tensor(node), *constants, epsilon=node.layer.epsilon)


@handles("dagtrain.LayerNorm")
def layer_norm(node: OnnxNode, state: Lowering) -> None:
    """Over the channels of each pixel; the scale, if there is one, is a depthwise 1x1 convolution, the shift a bias."""
    attributes = Attributes(node)
    epsilon = attributes.get("epsilon", 1e-5)
    attributes.finish()
    x = state.map_of(node)
    height, width, channels = x.map
    name, sizes = node.label, dict[str, Any](height=height, width=width, channels=channels)
    value = state.emit(node, ChannelNorm(**sizes, epsilon=float(epsilon)), {"x": x}, name=name, view=x.shape)
    for index, what in ((1, "scale"), (2, "shift")):
        if not state.has(node, index):
            continue
        vector = state.weight(node, index)
        if vector.shape != (channels,):
            raise Unsupported(f"{what} of shape {list(vector.shape)} meets {channels} channels", "export again")
        if what == "scale":
            layer = DepthwiseConv(**sizes, kernel=(1, 1), recipe=state.recipe)
            weights = {"w": vector.reshape(channels, 1, 1, 1)}
            value = state.emit(node, layer, {"x": value}, weights, f"{name}_scale", view=x.shape)
        else:
            bias = Bias(**sizes, recipe=state.recipe)
            value = state.emit(node, bias, {"x": value}, {"b": vector}, f"{name}_shift", view=x.shape)
    state.give(node, value)


@handles("LayerNormalization")
def layer_normalization(node: OnnxNode, state: Lowering) -> None:
    """What is left of them is over other axes than the channels."""
    x = state.value(node)
    axis = node.attributes.get("axis", -1)
    count = -axis if axis < 0 else len(x.shape) - axis
    what = f"normalises the last {count} axes of shape {list(x.shape)}"
    raise Unsupported(what, "only over the channels of each pixel, between Transposes to channels last and back")


@writes(ChannelNorm)
def write_channel_norm(node: Node, state: Writing) -> None:
    """Between Transposes, since ONNX normalises over last axes; scale and shift are layers behind it."""
    assert isinstance(node.layer, ChannelNorm)
    last, normal = f"{node.name}.last", f"{node.name}.normal"
    scale = state.constant(node, "scale", np.ones(node.layer.channels))
    state.add(node, "Transpose", state.tensor(node), outputs=[last], perm=[0, 2, 3, 1])
    state.add(node, "LayerNormalization", last, scale, outputs=[normal], axis=-1, epsilon=node.layer.epsilon)
    state.add(node, "Transpose", normal, perm=[0, 3, 1, 2])


@handles("dagtrain.ChannelAffine")
def channel_affine(node: OnnxNode, state: Lowering) -> None:
    """Each channel times a constant and plus another."""
    Attributes(node).finish()
    x = state.map_of(node)
    height, width, channels = x.map
    scale, offset = state.weight(node, 1), state.weight(node, 2)
    if scale.shape != (channels,) or offset.shape != (channels,):
        raise Unsupported(f"scale of shape {list(scale.shape)} meets {channels} channels", "export again")
    layer = ChannelAffine(height=height, width=width, channels=channels)
    held = {"scale": scale, "offset": offset}
    state.give(node, state.emit(node, layer, {"x": x}, held, view=x.shape))


@writes(ChannelAffine)
def write_channel_affine(node: Node, state: Writing) -> None:
    """With an offset, a normalisation of mean 0 and variance 1, which may be frozen again; else a product."""
    assert isinstance(node.layer, ChannelAffine)
    scale = state.value(node, "scale")
    if not node.layer.shifted:
        state.add(node, "Mul", state.tensor(node), state.constant(node, "scale", scale.reshape(-1, 1, 1)))
        return
    offset, zero, one = state.value(node, "offset"), np.zeros_like(scale), np.ones_like(scale)
    vectors = {"weight": scale, "bias": offset, "running_mean": zero, "running_var": one}
    constants = (state.constant(node, name, vector) for name, vector in vectors.items())
    state.add(node, "BatchNormalization", state.tensor(node), *constants, epsilon=0.0)


@handles("LRN")
def local_response_norm(node: OnnxNode, state: Lowering) -> None:
    """Over neighbouring channels."""
    attributes = Attributes(node)
    numbers = dict[str, Any]((name, float(attributes.get(name, value))) for name, value in LRN_DEFAULTS.items())
    size = attributes.get("size", 1)
    attributes.finish()
    x = state.map_of(node)
    height, width, channels = x.map
    layer = LocalResponseNorm(
        height=height,
        width=width,
        channels=channels,
        size=size,
        strength_fixed=strength_for(numbers["bias"]),
        **numbers,
    )
    state.give(node, state.emit(node, layer, {"x": x}, view=x.shape))


@writes(LocalResponseNorm)
def write_local_response_norm(node: Node, state: Writing) -> None:
    """As it was read."""
    layer = node.layer
    assert isinstance(layer, LocalResponseNorm)
    numbers = {name: getattr(layer, name) for name in LRN_DEFAULTS}
    state.add(node, "LRN", state.tensor(node), size=layer.size, **numbers)
