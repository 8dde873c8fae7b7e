"""Networks of the published shapes, as PyTorch exports them: what their files hold, what is imported of them.

The files are those of examples/models: `NAME-EXPORTER-MODE` at the published size, `small/…` for small images.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from examples.models.published import NETWORKS, UNEXPORTABLE
from hdl.layers.conv.engine import WindowEngine
from importers.onnx import NormMode, import_model
from importers.onnx.skeleton import load_skeleton
from tests.import_support import MODELS, evaluate, example, forward, save

SUFFIX = ".skeleton.gz"
EXPORTERS, MODES = ("torchscript", "dynamo"), ("eval", "training")
VARIANTS = [f"{name}-{exporter}-{mode}" for name in NETWORKS for exporter in EXPORTERS for mode in MODES]
SMALL = sorted(path.name.removesuffix(SUFFIX) for path in (MODELS / "small").glob(f"*{SUFFIX}"))
# of the class scores, relative to the largest
TOLERANCE = 1e-5
# in the default suite: small files that hold every idiom between them
CHOSEN = {
    # ceil_mode, Concat, a convolution as classifier
    "squeezenet1_1-dynamo-eval",
    # ReduceMean, depthwise 5x5
    "mnasnet-torchscript-eval",
    # squeeze and excite; hard swish spelt out
    "mobilenetv3_small-torchscript-eval-opset11",
}
# in the default suite at the published size
COUNTED = {"squeezenet1_1-torchscript-training", "mnasnet-torchscript-eval"}


def test_there_is_a_file_of_every_network_exporter_and_mode() -> None:
    found = {path.name.removesuffix(SUFFIX) for path in MODELS.glob(f"*{SUFFIX}")}
    assert set(VARIANTS) - found == set(UNEXPORTABLE)
    assert set(VARIANTS) <= set(SMALL)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_file_holds_the_published_number_of_parameters(network: str) -> None:
    name = f"{network}-torchscript-training"
    model = load_skeleton(MODELS / f"{name if name not in UNEXPORTABLE else f'small/{name}'}{SUFFIX}")
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    held = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    # the one file that is of the small form has so many weights less in its three classifiers of 1000 classes
    fewer = 990 * (1024 + 1) * 3 if name in UNEXPORTABLE else 0
    assert sum(size for key, size in held.items() if key not in statistics) == NETWORKS[network].parameters - fewer


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in CHOSEN else pytest.mark.slow) for name in SMALL if "-eval" in name]
)
def test_the_forward_pass_equals_the_reference_evaluator(name: str, tmp_path: Path) -> None:
    proto = example(f"small/{name}")
    size = NETWORKS[name.partition("-")[0]].small
    graph = import_model(save(proto, tmp_path), norm=NormMode.NONE)
    image = np.random.default_rng(41).standard_normal((2, 3, size, size))
    found, wanted = forward(graph, image), evaluate(proto, image)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in COUNTED else pytest.mark.slow)
        for name in VARIANTS
        if name not in UNEXPORTABLE
    ],
)
def test_the_imported_network_multiplies_as_often_as_published(name: str, tmp_path: Path) -> None:
    published = NETWORKS[name.partition("-")[0]]
    graph = import_model(save(example(name), tmp_path))
    engines = [node.layer for node in graph.nodes if isinstance(node.layer, WindowEngine)]
    assert sum(layer.macs for layer in engines) / 1e9 == pytest.approx(published.gmacs, abs=6e-4)
