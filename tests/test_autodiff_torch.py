"""The same gradients as PyTorch autograd, in float64.  Optional: PyTorch is an extra."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph, Node
from dagtrain.passes.autodiff import differentiate
from hdl.fixed import FloatArray
from hdl.layers.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.layers.pointwise.base import Pointwise
from hdl.layers.pointwise.elu import Elu
from hdl.layers.pointwise.gelu import Approximate, Gelu
from hdl.layers.pointwise.hard_sigmoid import HardSigmoid
from hdl.layers.pointwise.hard_swish import HardSwish
from hdl.layers.pointwise.leaky_relu import LeakyRelu
from hdl.layers.pointwise.sigmoid import Sigmoid
from hdl.layers.pointwise.silu import Silu
from hdl.layers.pointwise.tanh import Tanh
from hdl.recipe import Recipe
from hdl.tensor import Kind

pytestmark = pytest.mark.torch
RECIPE = Recipe(batch=4)


def mobile(recipe: Recipe) -> Graph:
    """Stem, inverted residual, strided residual with projection, max pool, classifier."""
    net = GraphBuilder("mobile", recipe, seed=21)
    x = net.relu(net.conv(net.input(9, 8, 3), 6, kernel=3, stride=2, padding=1, bias=True))
    y = net.relu(net.conv(x, 12, kernel=1, bias=True), ceiling=6.0)
    y = net.relu(net.bias(net.depthwise(y, kernel=3, padding=1)), ceiling=6.0)
    x = net.add(net.conv(y, 6, kernel=1), x)
    y = net.conv(net.relu(net.conv(x, 8, kernel=3, stride=2, padding=1)), 8, kernel=3, padding=1)
    x = net.relu(net.add(y, net.conv(x, 8, kernel=1, stride=2)))
    return net.classify(net.gemm(net.global_average_pool(x), 5))


def pooled(recipe: Recipe) -> Graph:
    """Padded pools, and a pad alone, in front of a dense layer over the map."""
    net = GraphBuilder("pooled", recipe, seed=22)
    x = net.average_pool(net.conv(net.input(7, 7, 2), 5, kernel=5, padding=2), kernel=3, stride=1, padding=1, counted=1)
    x = net.average_pool(net.max_pool(x, kernel=3, stride=2, padding=1), kernel=3, stride=1, padding=1)
    x = net.average_pool(x, kernel=1, stride=1, padding=1, counted=1)
    return net.classify(net.gemm(x, 5))


def squeezed(recipe: Recipe) -> Graph:
    """Squeeze-and-excitation between convolutions, and a product of two branches."""
    net = GraphBuilder("squeezed", recipe, seed=24)
    x = net.relu(net.conv(net.input(6, 5, 2), 6, kernel=3, padding=1, bias=True))
    s = net.relu(net.gemm(net.global_average_pool(x), 4))
    x = net.mul(x, net.activation(Sigmoid, net.gemm(s, 6)))
    x = net.mul(net.conv(x, 4, kernel=1, bias=True), net.conv(x, 4, kernel=3, padding=1))
    return net.classify(net.gemm(net.mul(x, x), 5))


def shuffled(recipe: Recipe) -> Graph:
    """A unit of ShuffleNetV2, then slices that overlap, of which some channels nobody reads."""
    net = GraphBuilder("shuffled", recipe, seed=25)
    a, b = net.split(net.conv(net.input(6, 5, 2), 12, kernel=3, padding=1), 5)
    b = net.conv(net.depthwise(net.relu(net.conv(b, 6, kernel=1)), kernel=3, padding=1), 7, kernel=1)
    x = net.channel_shuffle(net.concat(a, net.relu(b)), 3)
    x = net.add(net.channel_slice(x, 1, 8), net.channel_slice(x, 3, 8))
    return net.classify(net.gemm(net.global_average_pool(x), 5))


def curved(recipe: Recipe) -> Graph:
    """Every activation of one stream, one after another with a convolution between."""
    net = GraphBuilder("curved", recipe, seed=26)
    x = net.input(5, 4, 3)
    parameters: dict[type[Pointwise], dict[str, Any]] = {Elu: {"alpha": 0.5}, LeakyRelu: {"alpha": 0.2}}
    for kind in (Silu, HardSwish, Gelu, Tanh, Elu, Sigmoid, HardSigmoid, LeakyRelu):
        x = net.activation(kind, net.conv(x, 6, kernel=3, padding=1, bias=True), **parameters.get(kind, {}))
    x = net.activation(Gelu, net.conv(x, 6, kernel=1), approximate=Approximate.TANH)
    x = net.channel_affine(x, np.linspace(-1, 2, 6), np.linspace(3, -3, 6))
    x = net.mul(x, net.channel_affine(x, np.full(6, 0.3)))
    return net.classify(net.gemm(net.global_average_pool(x), 5))


def thinned(recipe: Recipe) -> Graph:
    """Branches that some frames skip, and dropout before the classifier."""
    net = GraphBuilder("thinned", recipe, seed=27)
    x = net.conv(net.input(5, 4, 2), 6, kernel=3, padding=1)
    for ratio in (0.25, 0.6):
        x = net.add(net.dropout(net.relu(net.conv(x, 6, kernel=3, padding=1)), ratio, per_frame=True), x)
    return net.classify(net.gemm(net.dropout(net.global_average_pool(x), 0.3), 5))


def torch_activation(layer: Any, x: Any) -> Any:
    """What PyTorch has for an activation; None where it has nothing."""
    from torch.nn import functional

    match type(layer).__name__:
        case "Gelu":
            return functional.gelu(x, approximate=layer.approximate.value)
        case "Elu":
            return functional.elu(x, layer.alpha)
        case "LeakyRelu":
            return functional.leaky_relu(x, layer.alpha)
        case "HardSigmoid":
            return functional.hardtanh(x * layer.alpha + layer.beta, 0, 1)
        case "Silu" | "HardSwish" | "Tanh" | "Sigmoid" as name:
            return getattr(functional, name.lower())(x)
    return None


def grouped(recipe: Recipe) -> Graph:
    """Convolutions in groups: a bottleneck's, with stride; two filters a channel, dilated; one of several channels.
    One of all channels, dilated."""
    net = GraphBuilder("grouped", recipe, seed=24)
    x = net.relu(net.conv(net.input(9, 8, 3), 8, kernel=3, padding=1))
    x = net.relu(net.conv(x, 12, kernel=3, stride=2, padding=1, groups=4))
    x = net.relu(net.conv(x, 12, kernel=3, padding=2, dilation=2))
    x = net.relu(net.conv(x, 24, kernel=3, padding=2, bias=True, groups=12, dilation=2))
    return net.classify(net.gemm(net.global_average_pool(net.conv(x, 6, kernel=2, groups=6)), 5))


def normalised(recipe: Recipe) -> Graph:
    """A block of ConvNeXt, and its normalised head."""
    net = GraphBuilder("normalised", recipe, seed=26)
    x = net.conv(net.input(6, 5, 2), 8, kernel=3, padding=1)
    y = net.channel_norm(net.depthwise(x, kernel=3, padding=1))
    x = net.add(net.conv(net.relu(net.conv(y, 16, kernel=1)), 8, kernel=1), x)
    return net.classify(net.gemm(net.channel_norm(net.global_average_pool(x)), 5))


def responding(recipe: Recipe) -> Graph:
    """Normalised across channels twice."""
    net = GraphBuilder("responding", recipe, seed=27)
    x = net.relu(net.conv(net.input(6, 6, 2), 7, kernel=3, padding=1))
    x = net.max_pool(net.local_response_norm(x, 5, alpha=0.5, beta=0.75, bias=2.0), kernel=2, stride=2)
    x = net.local_response_norm(net.conv(x, 6, kernel=3, padding=1), 3, alpha=0.8, beta=1.25, bias=0.5)
    return net.classify(net.gemm(x, 5))


def two_headed(recipe: Recipe) -> Graph:
    """Two auxiliary heads of different depths, whose losses count less."""
    net = GraphBuilder("heads", replace(recipe, auxiliary=0.3), seed=28)
    x = net.relu(net.conv(net.input(6, 5, 2), 6, kernel=3, padding=1))
    # adaptive pooling to three rows and two columns
    pooled = net.pixel_slice(net.average_pool(x, kernel=3, stride=1), (0, 2, 3), (0, 2))
    first = net.gemm(net.relu(net.conv(pooled, 4, kernel=1)), 5)
    x = net.relu(net.conv(x, 6, kernel=3, padding=1))
    # windows of unlike sizes
    second = net.gemm(net.adaptive_average_pool(x, 4, 3), 5)
    return net.classify(net.gemm(net.conv(x, 4, kernel=3), 5), first, second)


def torch_node(node: Node, inputs: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
    """One forward layer in PyTorch; maps are (frames, channels, height, width)."""
    import torch
    from torch.nn import functional

    layer: Any = node.layer
    name = type(layer).__name__
    if isinstance(layer, Pointwise) and name != "Relu":
        return torch_activation(layer, inputs["x"])
    if name in ("Conv", "DepthwiseConv"):
        top, left, bottom, right = layer.padding
        padded = functional.pad(inputs["x"], (left, right, top, bottom))
        groups = layer.channels if name == "DepthwiseConv" else layer.groups
        return functional.conv2d(padded, weights["w"], stride=layer.stride, dilation=layer.dilation, groups=groups)
    if name == "Bias":
        return inputs["x"] + weights["b"].reshape(1, -1, 1, 1)
    if name == "Relu":
        # not clamp, which lets the error pass where x is exactly 0 or at the ceiling
        return torch.relu(inputs["x"]) if layer.ceiling is None else functional.hardtanh(inputs["x"], 0, layer.ceiling)
    if name == "MaxPool":
        top, left, bottom, right = layer.padding
        padded = functional.pad(inputs["x"], (left, right, top, bottom), value=-np.inf)
        return functional.max_pool2d(padded, layer.kernel, layer.stride, dilation=layer.dilation)
    if name == "AveragePool" and layer.shares is not None:
        return functional.adaptive_avg_pool2d(inputs["x"], layer.shares)
    if name == "AveragePool":
        top, left, bottom, right = layer.padding
        padded = functional.pad(inputs["x"], (left, right, top, bottom))
        total = functional.avg_pool2d(padded, layer.kernel, layer.stride, divisor_override=1)
        low, start, high, end = layer.counted
        inside = functional.pad(torch.ones_like(inputs["x"]), (start, end, low, high), value=1.0)
        rest = (left - start, right - end, top - low, bottom - high)
        counts = functional.avg_pool2d(functional.pad(inside, rest), layer.kernel, layer.stride, divisor_override=1)
        return total / counts
    if name == "GlobalAveragePool":
        return inputs["x"].mean((2, 3), keepdim=True)
    if name == "Add":
        return inputs["a"] + inputs["b"]
    if name == "Mul":
        return inputs["a"] * inputs["b"]
    if name in ("Dropout", "StochasticDepth"):
        drawn = torch.tensor(layer.keep(0, RECIPE.batch).transpose(0, 3, 1, 2).copy())
        return inputs["x"] * drawn / (1 - layer.ratio)
    if name == "ChannelAffine":
        scaled = inputs["x"] * weights["scale"].reshape(1, -1, 1, 1)
        return scaled + weights["offset"].reshape(1, -1, 1, 1) if layer.shifted else scaled
    if name == "Scale":
        return inputs["x"] * inputs["s"]
    if name == "Concat":
        return torch.cat((inputs["a"], inputs["b"]), 1)
    if name == "Split":
        return dict(zip("ab", inputs["x"].split((layer.a_channels, layer.b_channels), 1), strict=True))
    if name == "ChannelNorm":
        last = inputs["x"].permute(0, 2, 3, 1)
        made = functional.layer_norm(last, (layer.channels,), eps=layer.epsilon).permute(0, 3, 1, 2)
        # autograd has no use for the stash
        return {"y": made}
    if name == "LocalResponseNorm":
        return functional.local_response_norm(inputs["x"], layer.size, layer.alpha, layer.beta, layer.bias)
    if name == "ChannelShuffle":
        return functional.channel_shuffle(inputs["x"], layer.groups)
    if name == "PixelSlice":
        return inputs["x"][:, :, *layer.places]
    if name == "ChannelSlice":
        return inputs["x"].narrow(1, layer.first, layer.part)
    raise AssertionError(f"no PyTorch counterpart of {name}")


def _by_port(made: Any) -> dict[str, Any]:
    """What `torch_node` made, by source; a single result is y."""
    return made if isinstance(made, dict) else {"y": made}


def torch_gradients(graph: Graph, images: FloatArray, labels: FloatArray) -> tuple[float, dict[str, FloatArray]]:
    """(summed loss of the main head, gradient of all by parameter key) of a forward graph."""
    import torch
    from torch.nn import functional

    held = {node.parameters[port.name] for node in graph.nodes for port in node.layer.held_parameters}
    parameters = {key: torch.tensor(value, requires_grad=key not in held) for key, value in graph.parameters.items()}
    edges: dict[str, Any] = {}
    losses: dict[float, Any] = {}
    for node in graph.nodes:
        inputs = {port: edges[edge] for port, edge in node.inputs.items()}
        weights = {port: parameters[key] for port, key in node.parameters.items()}
        if not node.layer.sinks:
            edges[node.outputs["y"]] = torch.tensor(images.transpose(0, 3, 1, 2).copy())
        elif any(port.tensor.kind is Kind.ERROR for port in node.layer.sources):
            logits = inputs["x"].flatten(1)
            target = torch.tensor(labels.reshape(-1).astype(np.int64))
            loss, layer = (
                functional.cross_entropy(logits, target, reduction="sum"),
                cast(SoftmaxCrossEntropy, node.layer),
            )
            losses[layer.auxiliary] = losses.get(layer.auxiliary, 0) + loss
        else:
            made = torch_node(node, inputs, weights)
            edges.update((node.outputs[port], value) for port, value in _by_port(made).items())
    sum(loss * (weight or 1.0) for weight, loss in losses.items()).backward()
    return losses[0.0].item(), {key: value.grad.numpy() for key, value in parameters.items() if key not in held}


@pytest.mark.parametrize(
    "build", [mobile, pooled, squeezed, shuffled, curved, thinned, grouped, normalised, responding, two_headed]
)
def test_gradients_equal_those_of_pytorch(build: Any) -> None:
    if "torch" not in sys.modules:
        pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install -e .[torch]")
    forward = build(RECIPE)
    rng = np.random.default_rng(23)
    shape = forward.nodes[0].layer.sources[0].tensor.shape
    images = rng.normal(size=(RECIPE.batch, *shape))
    labels = rng.integers(0, 5, (RECIPE.batch, 1, 1, 1)).astype(np.float64)
    graph = differentiate(forward)
    # the layers that draw random bits know which only now
    drawing = tuple(replace(node, layer=graph.by_name[node.name].layer) for node in forward.nodes)
    loss, expected = torch_gradients(replace(forward, nodes=drawing), images, labels)
    updates = {node.inputs["g"]: node.parameters["w"] for node in graph.nodes if "g" in node.inputs}
    found: dict[str, FloatArray] = {}

    def observe(edge: str, array: FloatArray) -> None:
        if edge in updates:
            found[updates[edge]] = array

    executor = Executor(graph, Mode.REFERENCE)
    (result,) = executor.step({"input1": images, "loss1.label": labels}, observe).values()
    assert float(result[..., 0].sum()) == pytest.approx(loss, rel=1e-9)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        np.testing.assert_allclose(found[key], gradient, rtol=1e-6, atol=1e-9, err_msg=key)
