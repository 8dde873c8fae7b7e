"""BatchNormalization: online normalisation.  (What it was folded into, or is to be folded into, is `norm`'s work.)"""

from __future__ import annotations

import numpy as np

from dagtrain.graph.ir import Node
from hdl.layers.norm.online_norm import OnlineNorm
from importers.onnx.context import Attributes, Lowering
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("BatchNormalization")
def batch_normalization(node: OnnxNode, state: Lowering) -> None:
    """Scale and shift stay; statistics are begun anew, frame by frame; the mode (training or not) has no meaning."""
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
    name = node.label
    state.give(node, state.emit(node, layer, {"x": x}, {"gamma": gamma, "beta": beta}, name, view=x.shape))


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
