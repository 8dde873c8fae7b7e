"""Relu, Clip, LeakyRelu, HardSigmoid, Sigmoid, Silu, Swish, HardSwish, Gelu, Tanh, Elu, Dropout, StochasticDepth."""

from __future__ import annotations

import math
from typing import Any

from dagtrain.graph.ir import Node
from hdl.layers.pointwise.affine import LARGEST_OFFSET, LEAST_SLOPE
from hdl.layers.pointwise.base import Pointwise
from hdl.layers.pointwise.dropout import Dropout
from hdl.layers.pointwise.elu import Elu
from hdl.layers.pointwise.gelu import Approximate, Gelu
from hdl.layers.pointwise.hard_sigmoid import HardSigmoid
from hdl.layers.pointwise.hard_swish import HardSwish
from hdl.layers.pointwise.leaky_relu import LeakyRelu
from hdl.layers.pointwise.relu import Relu
from hdl.layers.pointwise.sigmoid import Sigmoid
from hdl.layers.pointwise.silu import Silu
from hdl.layers.pointwise.stochastic_depth import StochasticDepth
from hdl.layers.pointwise.tanh import Tanh
from importers.onnx.context import Attributes, Lowering
from importers.onnx.handlers.registry import handles, writes
from importers.onnx.model import OnnxNode
from importers.onnx.problems import Unsupported
from importers.onnx.writing import Writing


@handles("Relu")
def relu(node: OnnxNode, state: Lowering) -> None:
    """max(x, 0)."""
    Attributes(node).finish()
    _activate(node, state, Relu)


@handles("Clip")
def clip(node: OnnxNode, state: Lowering) -> None:
    """min(max(x, 0), ceiling): relu6 and the like; bounds are inputs since opset 11, attributes before."""
    attributes = Attributes(node)
    low, high = attributes.get("min", -math.inf), attributes.get("max", math.inf)
    attributes.finish()
    if state.has(node, 1):
        low = state.number(node, 1)
    if state.has(node, 2):
        high = state.number(node, 2)
    if low != 0:
        raise Unsupported(f"clips at min={low}", "only min=0 (relu, relu6) is supported")
    if not high > 0:
        raise Unsupported(f"clips between 0 and max={high}", "max must be positive")
    # exporters write the greatest float for "no ceiling"
    _activate(node, state, Relu, ceiling=float(high) if high < 1e30 else None)


@handles("LeakyRelu")
def leaky_relu(node: OnnxNode, state: Lowering) -> None:
    """x above 0, alpha * x below."""
    attributes = Attributes(node)
    alpha = attributes.get("alpha", 0.01)
    attributes.finish()
    if alpha == 0:
        _activate(node, state, Relu)
    else:
        _activate(node, state, LeakyRelu, alpha=_slope(alpha))


@handles("HardSigmoid")
def hard_sigmoid(node: OnnxNode, state: Lowering) -> None:
    """min(max(alpha * x + beta, 0), 1)."""
    attributes = Attributes(node)
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    attributes.finish()
    if not abs(beta) <= LARGEST_OFFSET:
        raise Unsupported(f"beta is {beta}", f"it must lie between -{LARGEST_OFFSET} and {LARGEST_OFFSET}")
    _activate(node, state, HardSigmoid, alpha=_slope(alpha), beta=beta)


@handles("Sigmoid")
def sigmoid(node: OnnxNode, state: Lowering) -> None:
    """1 / (1 + exp(-x))."""
    Attributes(node).finish()
    _activate(node, state, Sigmoid)


@handles("dagtrain.Silu")
def silu(node: OnnxNode, state: Lowering) -> None:
    """x times its sigmoid."""
    Attributes(node).finish()
    _activate(node, state, Silu)


@handles("Swish")
def swish(node: OnnxNode, state: Lowering) -> None:
    """x times the sigmoid of alpha * x."""
    attributes = Attributes(node)
    attributes.expect("alpha", 1.0)
    attributes.finish()
    _activate(node, state, Silu)


@handles("HardSwish")
def hard_swish(node: OnnxNode, state: Lowering) -> None:
    """x * min(max(x / 6 + 1 / 2, 0), 1)."""
    Attributes(node).finish()
    _activate(node, state, HardSwish)


@handles("Gelu")
def gelu(node: OnnxNode, state: Lowering) -> None:
    """By erf, or approximated by tanh."""
    attributes = Attributes(node)
    ways = [way.value for way in Approximate]
    way = attributes.get("approximate", Approximate.NONE.value)
    attributes.finish()
    if way not in ways:
        raise Unsupported(f"approximate is {way!r}", f"it must be {' or '.join(ways)}")
    _activate(node, state, Gelu, approximate=Approximate(way))


@handles("Tanh")
def tanh(node: OnnxNode, state: Lowering) -> None:
    """tanh(x)."""
    Attributes(node).finish()
    _activate(node, state, Tanh)


@handles("Elu")
def elu(node: OnnxNode, state: Lowering) -> None:
    """x above 0, alpha * (exp(x) - 1) below."""
    attributes = Attributes(node)
    alpha = attributes.get("alpha", 1.0)
    attributes.finish()
    if not 0 < alpha <= 1:
        raise Unsupported(f"alpha is {alpha}", "it must lie above 0 and be at most 1")
    _activate(node, state, Elu, alpha=float(alpha))


def _slope(alpha: float) -> float:
    if not LEAST_SLOPE <= alpha <= 1:
        raise Unsupported(f"alpha is {alpha}", f"it must lie between {LEAST_SLOPE} and 1")
    return alpha


def _activate(node: OnnxNode, state: Lowering, kind: type[Pointwise], **parameters: Any) -> None:
    x = state.value(node)
    height, width, channels = x.map
    layer = kind(height=height, width=width, channels=channels, **parameters)
    state.give(node, state.emit(node, layer, {"x": x}, view=x.shape))


@handles("Dropout")
def dropout(node: OnnxNode, state: Lowering) -> None:
    """Kept, whatever mode the file was exported in: it trains.  A ratio of 0 does nothing and vanishes."""
    attributes = Attributes(node)
    ratio = attributes.get("ratio", 0.5)
    attributes.ignore("seed")
    attributes.finish()
    if state.has(node, 1):
        ratio = state.number(node, 1)
    _drop(node, state, Dropout, ratio)


@handles("dagtrain.StochasticDepth")
def stochastic_depth(node: OnnxNode, state: Lowering) -> None:
    """Whole images are dropped; a ratio of 0 vanishes."""
    attributes = Attributes(node)
    ratio = attributes.get("ratio", 0.5)
    attributes.finish()
    _drop(node, state, StochasticDepth, ratio)


def _drop(node: OnnxNode, state: Lowering, kind: type[Dropout], ratio: float) -> None:
    x = state.value(node)
    if ratio == 0:
        state.give(node, x)
        return
    if not 0 < ratio < 1:
        raise Unsupported(f"ratio is {ratio}", "it must lie in [0, 1)")
    height, width, channels = x.map
    layer = kind(height=height, width=width, channels=channels, ratio=float(ratio), recipe=state.recipe)
    state.give(node, state.emit(node, layer, {"x": x}, view=x.shape))


@writes(Relu)
def write_relu(node: Node, state: Writing) -> None:
    """A ceiling is a clip."""
    assert isinstance(node.layer, Relu)
    if node.layer.ceiling is None:
        state.add(node, "Relu")
    else:
        bounds = (state.constant(node, name, value) for name, value in (("min", 0), ("max", node.layer.ceiling)))
        state.add(node, "Clip", state.tensor(node), *bounds)


@writes(LeakyRelu)
def write_leaky_relu(node: Node, state: Writing) -> None:
    """As it is."""
    assert isinstance(node.layer, LeakyRelu)
    state.add(node, "LeakyRelu", alpha=node.layer.alpha)


@writes(HardSigmoid)
def write_hard_sigmoid(node: Node, state: Writing) -> None:
    """As it is."""
    assert isinstance(node.layer, HardSigmoid)
    state.add(node, "HardSigmoid", alpha=node.layer.alpha, beta=node.layer.beta)


@writes(Sigmoid, Tanh, HardSwish)
def write_activation(node: Node, state: Writing) -> None:
    """Exact, where the layer reads a table."""
    state.add(node, type(node.layer).__name__)


@writes(Silu)
def write_silu(node: Node, state: Writing) -> None:
    """Spelt out, as there is no operator before opset 24."""
    gate = f"{node.name}.gate"
    state.add(node, "Sigmoid", state.tensor(node), outputs=[gate])
    state.add(node, "Mul", state.tensor(node), gate)


@writes(Gelu)
def write_gelu(node: Node, state: Writing) -> None:
    """As it is."""
    assert isinstance(node.layer, Gelu)
    state.add(node, "Gelu", approximate=node.layer.approximate.value)


@writes(Elu)
def write_elu(node: Node, state: Writing) -> None:
    """As it is."""
    assert isinstance(node.layer, Elu)
    state.add(node, "Elu", alpha=node.layer.alpha)


@writes(Dropout)
def write_dropout(node: Node, state: Writing) -> None:
    """Kept: it does nothing where the model is evaluated, and drops where it is trained again."""
    assert isinstance(node.layer, Dropout)
    state.add(node, "Dropout", state.tensor(node), state.constant(node, "ratio", node.layer.ratio))


@writes(StochasticDepth)
def write_stochastic_depth(node: Node, state: Writing) -> None:
    """Nothing, as in evaluation: ONNX has no operator that drops whole images."""
    state.add(node, "Identity")
