"""Differentiation: float gradients equal central differences, and the training graph has the promised structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph, GraphError, Role, Stage, is_delayed, verify
from dagtrain.passes.autodiff import differentiate
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.layers.registry import load_layers
from hdl.recipe import Recipe
from hdl.tensor import Kind, Tile
from tests.layer_support import DirectTape, all_examples, forward
from tests.suites import quick

load_layers()
STEP = 1e-6
TOLERANCE = 1e-5
RECIPE = Recipe(batch=3, staleness=0)


def unfolded(layer: Any) -> Any:
    """The layer as differentiation meets it: tiles, which the engines of a weight must agree on, come later."""
    return dataclasses.replace(layer, tile=Tile(), w_lanes=1) if hasattr(layer, "tile") else layer


def differentiable_examples() -> list[Any]:
    cases = []
    for kind in Layer.concrete():
        # the norm's backward pass is a control process, not a gradient (Chiley et al. 2019); its own tests check it
        if kind.backward is Layer.backward or kind.__name__ in (
            "OnlineNorm",
            "SoftmaxCrossEntropy",
            "MeanSquaredError",
        ):
            continue
        for name, layer in all_examples([kind]).items():
            if layer.sources[0].tensor.kind is Kind.ACTIVATION:
                cases.append(pytest.param(unfolded(layer), id=name))
    return cases


def central(function: Any, array: FloatArray, index: tuple[int, ...]) -> float:
    """d function / d array[index]; the array is restored."""
    kept = array[index]
    array[index] = kept + STEP
    above = function()
    array[index] = kept - STEP
    below = function()
    array[index] = kept
    return float((above - below) / (2 * STEP))


def assert_derivative(given: FloatArray, function: Any, array: FloatArray, rng: np.random.Generator, what: str) -> None:
    """Up to 25 entries of ``given`` equal central differences, relative to the largest derivative."""
    assert given.shape == array.shape, f"{what}: derivative of shape {given.shape} for {array.shape}"
    scale = max(float(np.abs(given).max()), 1e-3)
    for flat in rng.choice(array.size, min(array.size, 25), replace=False):
        index = tuple(int(i) for i in np.unravel_index(flat, array.shape))
        expected = central(function, array, index)
        assert abs(given[index] - expected) <= TOLERANCE * scale, f"{what}{index}: {given[index]} is not {expected}"


@pytest.mark.parametrize("layer", differentiable_examples())
def test_the_backward_nodes_of_a_layer_are_its_float_gradient(layer: Layer) -> None:
    rng = np.random.default_rng(11)
    frames = getattr(getattr(layer, "recipe", None), "batch", 2)
    inputs = {
        port.name: rng.normal(size=port.tensor.shape if port.tensor.kind.per_batch else (frames, *port.tensor.shape))
        for port in (*layer.sinks, *layer.held_parameters)
    }
    tape = DirectTape(layer, inputs, rng)
    layer.backward(tape)
    assert tape.derivatives.keys() == {port.name for port in layer.sinks}

    def total() -> float:
        made = forward(layer, inputs)
        return float(sum(np.sum(error * made[name]) for name, error in tape.errors.items()))

    for name, given in tape.derivatives.items():
        assert_derivative(given, total, inputs[name], rng, f"{type(layer).__name__}.{name}")


# ---- whole nets -----------------------------------------------------------------------------------------


def plain_net(recipe: Recipe) -> Graph:
    """conv, bias, relu, max pool, gemm."""
    net = GraphBuilder("plain", recipe, seed=1)
    x = net.relu(net.conv(net.input(6, 5, 2), 4, kernel=3, padding=1, bias=True))
    return net.classify(net.gemm(net.max_pool(x, kernel=2, stride=2), 3))


def residual_net(recipe: Recipe) -> Graph:
    """A residual block with identity and one with stride 2 and projection."""
    net = GraphBuilder("residual", recipe, seed=2)
    x = net.relu(net.conv(net.input(6, 6, 1), 4, kernel=3, padding=1))
    x = net.relu(net.add(net.conv(net.relu(net.conv(x, 4, kernel=3, padding=1)), 4, kernel=3, padding=1), x))
    main = net.conv(net.relu(net.conv(x, 6, kernel=3, stride=2, padding=1)), 6, kernel=3, padding=1)
    x = net.relu(net.add(main, net.conv(x, 6, kernel=1, stride=2)))
    return net.classify(net.gemm(net.global_average_pool(x), 4))


def inverted_residual_net(recipe: Recipe) -> Graph:
    """A MobileNetV2 block between a stem and the classifier."""
    net = GraphBuilder("inverted", recipe, seed=3)
    x = net.conv(net.input(5, 5, 3), 4, kernel=3, stride=1, padding=1)
    y = net.relu(net.bias(net.conv(x, 8, kernel=1)), ceiling=0.8)
    y = net.relu(net.depthwise(y, kernel=3, padding=1), ceiling=0.8)
    x = net.add(net.conv(y, 4, kernel=1), x)
    return net.classify(net.gemm(net.global_average_pool(x), 5))


def shared_net(recipe: Recipe) -> Graph:
    """One activation with four consumers, so that three sums of errors are needed."""
    net = GraphBuilder("shared", recipe, seed=4)
    x = net.conv(net.input(4, 4, 2), 3, kernel=1)
    parts = [net.conv(x, 3, kernel=3, padding=1), net.relu(x), net.depthwise(x, kernel=3, padding=1), x]
    total = parts[0]
    for part in parts[1:]:
        total = net.add(total, part)
    return net.classify(net.gemm(total, 3))


def inception_net(recipe: Recipe) -> Graph:
    """Branches side by side, one of them from the image, which nobody learns from."""
    net = GraphBuilder("inception", recipe, seed=6)
    image = net.input(5, 4, 2)
    x = net.concat(image, net.relu(net.conv(image, 4, kernel=3, padding=1)))
    x = net.concat(net.conv(x, 3, kernel=1), net.concat(net.conv(x, 2, kernel=3, padding=1), x))
    return net.classify(net.gemm(net.global_average_pool(x), 3))


def shuffle_net(recipe: Recipe) -> Graph:
    """A unit of ShuffleNetV2, then slices that overlap, of which some channels nobody reads."""
    net = GraphBuilder("shuffle", recipe, seed=7)
    a, b = net.split(net.conv(net.input(5, 4, 2), 8, kernel=3, padding=1), 4)
    b = net.conv(net.depthwise(net.relu(net.conv(b, 4, kernel=1)), kernel=3, padding=1), 4, kernel=1)
    x = net.channel_shuffle(net.concat(a, net.relu(b)), 2)
    x = net.add(net.channel_slice(x, 1, 5), net.channel_slice(x, 2, 5))
    return net.classify(net.gemm(net.global_average_pool(x), 3))


def convnext_net(recipe: Recipe) -> Graph:
    """A block of ConvNeXt, and its normalised head."""
    net = GraphBuilder("convnext", recipe, seed=8)
    x = net.conv(net.input(5, 4, 2), 6, kernel=3, padding=1)
    y = net.channel_norm(net.depthwise(x, kernel=3, padding=1))
    x = net.add(net.conv(net.relu(net.conv(y, 12, kernel=1)), 6, kernel=1), x)
    return net.classify(net.gemm(net.channel_norm(net.global_average_pool(x)), 3))


def alexnet(recipe: Recipe) -> Graph:
    """Normalised across channels twice, by odd and even numbers of neighbours."""
    net = GraphBuilder("alexnet", recipe, seed=9)
    x = net.relu(net.conv(net.input(6, 6, 2), 7, kernel=3, padding=1))
    x = net.max_pool(net.local_response_norm(x, 5, alpha=0.5, beta=0.75, bias=2.0), kernel=2, stride=2)
    x = net.local_response_norm(net.conv(x, 6, kernel=3, padding=1), 4, alpha=0.8, beta=1.25, bias=0.5)
    return net.classify(net.gemm(x, 3))


def random_net(seed: int, recipe: Recipe) -> Graph:
    """A seeded chain of random layers with random shortcuts."""
    rng = np.random.default_rng(seed)
    net = GraphBuilder(f"random{seed}", recipe, seed=seed)
    x = net.conv(net.input(*(int(rng.integers(4, 8)) for _ in range(2)), int(rng.integers(1, 4))), 4, 3, padding=1)
    seen = [x]
    for _ in range(int(rng.integers(3, 7))):
        height, width, channels = net.shapes[x]
        match int(rng.integers(7)):
            case 0:
                x = net.conv(x, int(rng.integers(2, 6)), int(rng.choice([1, 3])), int(rng.integers(1, 3)), padding=1)
            case 1:
                x = net.depthwise(x, kernel=3, stride=int(rng.integers(1, 3)), padding=1)
            case 2:
                x = net.relu(x, ceiling=float(rng.choice([0.5, 6.0])))
            case 3 if min(height, width) > 2:
                x = net.max_pool(x, kernel=int(rng.integers(2, 4)), stride=2, padding=int(rng.integers(2)))
            case 4:
                x = net.bias(x)
            case _:
                others = [edge for edge in seen if net.shapes[edge] == net.shapes[x]]
                x = net.add(x, others[int(rng.integers(len(others)))] if others else net.relu(x))
        seen.append(x)
        del channels
    return net.classify(net.gemm(x, 3))


NETS = [plain_net, residual_net, inverted_residual_net, shared_net, inception_net, shuffle_net, convnext_net, alexnet]


def batch(graph: Graph, seed: int, frames: int) -> dict[str, FloatArray]:
    """Random images and labels by host input of a training graph."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, FloatArray] = {}
    for node in graph.nodes:
        if not node.layer.sinks:
            tensor = node.layer.sources[0].tensor
            if tensor.kind is Kind.ACTIVATION:
                feeds[node.name] = rng.normal(size=(frames, *tensor.shape))
            else:
                feeds[node.name] = rng.integers(0, 3, (frames, *tensor.shape)).astype(np.float64)
    return feeds


def gradients(graph: Graph, feeds: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Parameter key -> gradient, summed over one batch."""
    found: dict[str, FloatArray] = {}
    updates = {node.inputs["g"]: node.parameters["w"] for node in graph.nodes if "g" in node.inputs}

    def observe(edge: str, array: FloatArray) -> None:
        if edge in updates:
            found[updates[edge]] = array

    Executor(graph, Mode.REFERENCE).step(feeds, observe)
    return found


def loss(graph: Graph, feeds: Mapping[str, FloatArray]) -> float:
    """Cross-entropy summed over one batch with the graph's initial parameters."""
    (result,) = Executor(graph, Mode.REFERENCE).step(feeds).values()
    return float(result[..., 0].sum())


@pytest.mark.parametrize("build", [*NETS, *quick(4, range(12), id="random{}".format)])
def test_gradients_of_a_whole_net_equal_central_differences(build: Any) -> None:
    rng = np.random.default_rng(5)
    graph = differentiate(random_net(build, RECIPE) if isinstance(build, int) else build(RECIPE))
    feeds = batch(graph, seed=6, frames=RECIPE.batch)
    found = gradients(graph, feeds)
    assert found.keys() == graph.parameters.keys()
    for key, given in found.items():
        values = graph.parameters[key]
        assert_derivative(given, lambda: loss(graph, feeds), values, rng, f"{graph.name} {key}")


@pytest.mark.parametrize("build", NETS)
def test_the_training_graph_is_legal_and_its_names_are_deterministic(build: Any) -> None:
    first, second = differentiate(build(RECIPE)), differentiate(build(RECIPE))
    verify(first, Stage.TRAINING)
    assert str(first) == str(second)


def test_nodes_are_named_after_the_layer_they_serve() -> None:
    names = [node.name for node in differentiate(plain_net(RECIPE)).nodes]
    assert {"conv1.gradient", "conv1.w.update", "gemm1.error", "gemm1.gradient", "gemm1.w.update"} <= set(names)


def test_the_first_convolution_has_no_error_engine() -> None:
    graph = differentiate(plain_net(RECIPE))
    assert "conv1.error" not in graph.by_name
    assert "gemm1.error" in graph.by_name


def test_errors_of_several_consumers_are_summed() -> None:
    graph = differentiate(shared_net(RECIPE))
    sums = [node for node in graph.nodes if node.name.startswith("conv1.y.sum")]
    assert [node.name for node in sums] == ["conv1.y.sum0", "conv1.y.sum1", "conv1.y.sum2"]
    assert all(node.layer.sources[0].tensor.kind is Kind.ERROR for node in sums)


def test_only_edges_of_new_weights_are_delayed() -> None:
    graph = differentiate(residual_net(RECIPE))
    for _, producer, _, consumer, sink in graph.edges:
        assert is_delayed(consumer.layer, sink) == (producer.role is Role.UPDATE)


def test_every_random_layer_has_a_tensor_id_of_its_own() -> None:
    graph = differentiate(residual_net(RECIPE))
    ids = [node.layer.tensor_id for node in graph.nodes if node.name.endswith((".gradient", ".update"))]
    assert len(set(ids)) == len(ids) > 0


def test_a_graph_without_loss_is_rejected() -> None:
    net = GraphBuilder("lossless", RECIPE)
    net.relu(net.conv(net.input(4, 4, 1), 2, kernel=1))
    graph = Graph("lossless", tuple(net.nodes), RECIPE, net.parameters)
    with pytest.raises(GraphError, match="has no loss layer"):
        differentiate(graph)


def test_tied_weights_are_rejected() -> None:
    graph = plain_net(RECIPE)
    nodes = tuple(
        node if node.name != "gemm1" else type(node)(node.name, node.layer, node.inputs, node.outputs, {"w": "conv1.w"})
        for node in graph.nodes
    )
    with pytest.raises(GraphError, match=r"parameter conv1\.w is used by conv1 and gemm1; tied weights"):
        differentiate(Graph(graph.name, nodes, RECIPE, graph.parameters))


def test_what_would_be_kept_before_all_that_learns_has_no_edge() -> None:
    net = GraphBuilder("early", Recipe(batch=2), seed=1)
    x = net.relu(net.max_pool(net.input(4, 4, 2), kernel=2, stride=2))
    graph = differentiate(net.classify(net.gemm(x, 3)))
    assert {name: list(graph.by_name[name].outputs) for name in ("max_pool1", "relu1")} == {
        "max_pool1": ["y"],
        "relu1": ["y"],
    }
    assert [node.name for node in graph.nodes if node.layer_of in ("max_pool1", "relu1")] == ["max_pool1", "relu1"]
