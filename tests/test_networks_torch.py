"""The networks of examples/models have the published shapes, and their exports train as PyTorch says.  Optional."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.training.feeds import host_inputs
from examples.models.published import FAMILIES, NETWORKS
from hdl.recipe import Recipe
from importers.onnx import NormMode, import_model
from tests.import_support import export_script

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def exports() -> Any:
    return export_script()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_published_parameters_and_multiplications(name: str, exports: Any) -> None:
    import torch

    published = NETWORKS[name]
    with torch.device("meta"):
        network = exports.build(name).eval()
    found = []

    def count(module: Any, _: Any, output: Any) -> None:
        weights = module.in_features if isinstance(module, torch.nn.Linear) else module.weight[0].numel()
        found.append(output.numel() * weights)

    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            module.register_forward_hook(count)
    network(torch.zeros(1, 3, published.size, published.size, device="meta"))
    assert sum(value.numel() for value in network.parameters()) == published.parameters
    assert sum(found) / 1e9 == pytest.approx(published.gmacs, abs=6e-4)


FRAMES = 3
# weight of the losses of auxiliary heads
AUXILIARY = 0.3
# of a parameter's gradient, relative to its largest element
TOLERANCE = 1e-6


def varied(network: Any) -> Any:
    """The network with random numbers where parameters are all equal, so that none is taken for another."""
    import torch

    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.min() == parameter.max():
                parameter.normal_(0.1, 0.1)
    return network


def folded(network: Any) -> Any:
    """The network without running statistics: folded into the convolution right before them, else scale and shift."""
    import torch
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    class Affine(nn.Module):
        def __init__(self, norm: Any) -> None:
            super().__init__()
            scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
            self.scale = nn.Parameter(scale.detach())
            self.shift = nn.Parameter((norm.bias - scale * norm.running_mean).detach())

        def forward(self, x: Any) -> Any:
            return x * self.scale.reshape(1, -1, 1, 1) + self.shift.reshape(1, -1, 1, 1)

    # where the last convolution stands, if nothing came after it
    last: list[tuple[Any, str]] = []

    def walk(parent: Any) -> None:
        for name, child in list(parent.named_children()):
            if next(child.children(), None) is not None:
                walk(child)
                continue
            if isinstance(child, nn.BatchNorm2d):
                holder, conv = last[0] if last else (None, "")
                if holder is not None and getattr(holder, conv).out_channels == child.num_features:
                    setattr(holder, conv, fuse_conv_bn_eval(getattr(holder, conv), child))
                    setattr(parent, name, nn.Identity())
                else:
                    setattr(parent, name, Affine(child))
            last[:] = [(parent, name)] if isinstance(child, nn.Conv2d) else []

    walk(network)
    return network


def matched(network: Any, graph: Graph) -> dict[str, Any]:
    """The network's parameter of every parameter of the graph, by its values, which then become the graph's."""
    import torch

    free = list(network.parameters())
    found = {}
    for key, value in graph.parameters.items():
        flat = torch.from_numpy(np.asarray(value, np.float64)).reshape(-1)
        same = [item for item in free if item.numel() == flat.numel() and torch.allclose(item.reshape(-1), flat, 1e-4)]
        assert len(same) == 1, f"{key} of shape {value.shape} is {len(same)} parameters of the network"
        found[key] = same[0]
        free = [item for item in free if item is not same[0]]
        with torch.no_grad():
            same[0].copy_(flat.reshape(same[0].shape))
    assert not free, f"parameters of shapes {[tuple(item.shape) for item in free]} are not in the graph"
    return found


@pytest.mark.parametrize("name", [*FAMILIES, "googlenet_aux"])
def test_gradients_of_an_imported_network_equal_autograd(name: str, exports: Any, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(exports.SEED)
    network = varied(exports.seasoned(exports.build(name, small=True)))
    if name.endswith("_aux"):
        # all heads, no dropout, statistics of normalisation as they are
        network = folded(network.eval())
        network.training = True
        image = torch.randn(1, 3, NETWORKS[name].small, NETWORKS[name].small)
        preserve = torch.onnx.TrainingMode.PRESERVE
        torch.onnx.export(network, (image,), tmp_path / "net.onnx", dynamo=False, training=preserve)
    else:
        variant = exports.Variant(name, "torchscript", "eval", small=True)
        exports.write(network, variant, tmp_path / "net.onnx")
        network = folded(network)
    recipe = Recipe(batch=FRAMES, auxiliary=AUXILIARY if name.endswith("_aux") else 0)
    forward = import_model(tmp_path / "net.onnx", norm=NormMode.NONE, recipe=recipe)
    network = network.double().requires_grad_(True)
    parameters = matched(network, forward)
    rng = np.random.default_rng(61)
    size = NETWORKS[name].small
    images, labels = rng.standard_normal((FRAMES, 3, size, size)), rng.integers(0, exports.SMALL_CLASSES, FRAMES)
    scores = network(torch.from_numpy(images))
    main, *heads = scores if isinstance(scores, tuple) else (scores,)
    loss = partial(torch.nn.functional.cross_entropy, target=torch.from_numpy(labels), reduction="sum")
    (loss(main) + AUXILIARY * sum(map(loss, heads))).backward()
    graph = differentiate(forward)
    updates = {node.inputs["g"]: node.parameters["w"] for node in graph.nodes if "g" in node.inputs}
    found: dict[str, Any] = {}

    def observe(edge: str, array: Any) -> None:
        if edge in updates:
            found[updates[edge]] = array

    image, label = host_inputs(graph)
    feeds = {image: images.transpose(0, 2, 3, 1), label: labels.reshape(-1, 1, 1, 1).astype(np.float64)}
    Executor(graph, Mode.REFERENCE).step(feeds, observe)
    assert found.keys() == parameters.keys()
    for key, parameter in parameters.items():
        wanted = parameter.grad.reshape(-1).numpy()
        error = np.abs(found[key].reshape(-1) - wanted).max()
        assert error <= TOLERANCE * np.abs(wanted).max(), f"{key}: {error:.1e} of {np.abs(wanted).max():.1e}"
