"""Networks of the published shapes, as PyTorch exports them: what their files hold, what is imported of them.

The files are those of examples/models: `NAME-EXPORTER-MODE` at the published size, `small/…` for small images.
"""

from __future__ import annotations

import math
import tempfile
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import pytest

from examples.models.published import FAMILIES, NETWORKS, OPSETS, UNEXPORTABLE
from examples.models.styles import keras, mlp
from hdl.layers.conv.engine import WindowEngine
from hdl.layers.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.layers.pointwise.dropout import Dropout
from hdl.layers.pointwise.stochastic_depth import StochasticDepth
from hdl.recipe import Recipe
from importers.onnx import NormMode, import_model
from importers.onnx.skeleton import load_skeleton
from tests.import_support import MODELS, Array, evaluate, example, forward, save
from tests.suites import quick

SLOW = pytest.mark.slow
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
    # halves of the channels by Slice and by Split; channel shuffle
    "shufflenet_v2-torchscript-eval",
    "shufflenet_v2-dynamo-eval",
    # grouped convolutions
    "regnet_y_400mf-dynamo-eval",
    # SiLU
    "efficientnet_b0-torchscript-eval",
}
# draws of each network in training mode: ratios of dropout; how many stochastic depths there are, and the last's ratio
DRAWS: dict[str, tuple[list[float], int, float]] = {
    "alexnet": ([0.5, 0.5], 0, 0),
    "vgg11_bn": ([0.5, 0.5], 0, 0),
    "squeezenet1_1": ([0.5], 0, 0),
    "googlenet": ([0.2], 0, 0),
    "inception_v3": ([0.5], 0, 0),
    "mnasnet": ([0.2], 0, 0),
    "mobilenetv2": ([0.2], 0, 0),
    "mobilenetv3_small": ([0.2], 0, 0),
    "regnet_y_400mf": ([], 0, 0),
    # rising from 0 with the block, of which the last has no shortcut
    "efficientnet_b0": ([0.2], 9, 0.2 * 14 / 16),
    "convnext_tiny": ([], 17, 0.1),
}
LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))
# in the default suite at the published size
COUNTED = {"squeezenet1_1-torchscript-training", "shufflenet_v2-dynamo-training", "mobilenetv3_small-torchscript-eval"}


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
    size = NETWORKS[name.partition("-")[0]].small
    image = np.random.default_rng(41).standard_normal((2, 3, size, size))
    _agree(example(f"small/{name}"), image, image, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VARIANTS if "-eval" in name])
def test_the_forward_pass_of_the_published_layers_equals_the_reference_evaluator(name: str, tmp_path: Path) -> None:
    published = NETWORKS[name.partition("-")[0]]
    # dense layers over a map, and what the dynamo exporter makes of ConvNeXt, want images of the published size
    size = published.size if name.startswith(("alexnet", "vgg", "convnext_tiny-dynamo")) else published.small
    image = np.random.default_rng(46).standard_normal((1, 3, size, size))
    _agree(example(name, size), image, image, tmp_path)


def _agree(proto: onnx.ModelProto, image: Array, given: Array, folder: Path) -> None:
    """The graph's scores of ``image``, (N, C, H, W), are the evaluator's of the same image as the file wants it."""
    graph = import_model(save(proto, folder), norm=NormMode.NONE)
    found, wanted = forward(graph, image), evaluate(proto, given)
    wanted = wanted.reshape(found.shape)
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("googlenet_aux-dynamo-training", 2),
        pytest.param("inception_v3_aux-dynamo-training", 1, marks=SLOW),
        pytest.param("inception_v3_aux-torchscript-training", 1, marks=SLOW),
    ],
)
def test_with_its_auxiliary_heads_a_network_has_all_published_parameters(name: str, heads: int, tmp_path: Path) -> None:
    graph = import_model(save(example(name), tmp_path), recipe=Recipe(auxiliary=0.3))
    losses = [node.layer.auxiliary for node in graph.nodes if isinstance(node.layer, SoftmaxCrossEntropy)]
    assert sorted(losses) == [0.0, *[0.3] * heads]
    assert sum(value.size for value in graph.parameters.values()) == NETWORKS[name.partition("-")[0]].parameters


@lru_cache(maxsize=1)
def at_its_own_opset(name: str) -> onnx.ModelProto:
    """A file whose weights are drawn once for all later opsets, which are tried one after another."""
    return example(f"small/{name}")


@cache
def layers_of(name: str) -> tuple[list[tuple[object, ...]], dict[str, Array]]:
    """(layers with the numbers of the edges that they read, parameters in their order) of a file at its own opset."""
    return _layers(at_its_own_opset(name))


def _layers(proto: onnx.ModelProto) -> tuple[list[tuple[object, ...]], dict[str, Array]]:
    with tempfile.TemporaryDirectory() as folder:
        graph = import_model(save(proto, Path(folder)), norm=NormMode.NONE)
    numbers = {edge: number for number, edge in enumerate(graph.producers)}
    return [(node.layer, *map(numbers.get, node.inputs.values())) for node in graph.nodes], dict(graph.parameters)


NEWEST = onnx.defs.onnx_opset_version()
# from the oldest opset of which there are files, and from the newest
CONVERTED = [
    (f"{network}-{exporter}-eval-opset{oldest}", opset)
    for network in FAMILIES
    for exporter, oldest in OPSETS.items()
    for opset in range(oldest + 1, NEWEST + 1)
]
# in training mode from 11, with its draws spelt out, and from the exporters' own choice
CONVERTED += [("convnext_tiny-torchscript-training-opset11", opset) for opset in range(12, NEWEST + 1)]
CONVERTED += [
    (f"{network}-{exporter}-training", opset)
    for network in FAMILIES
    for exporter in EXPORTERS
    for opset in range(21, NEWEST + 1)
]
# in the default suite: opsets at which what these files hold changed its form
TURNING = {12, 13, 14, 18, 20, NEWEST}
QUICK = {f"{network}-torchscript-eval-opset11" for network in ("squeezenet1_1", "mobilenetv3_small", "shufflenet_v2")}
QUICK |= {"squeezenet1_1-torchscript-training"}


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        pytest.param(name, opset, marks=() if name in QUICK and opset in TURNING else pytest.mark.slow)
        for name, opset in CONVERTED
    ],
)
def test_a_file_is_the_same_network_at_every_later_opset(name: str, opset: int) -> None:
    proto = onnx.version_converter.convert_version(at_its_own_opset(name), opset)
    assert proto.opset_import[0].version == opset
    (layers, parameters), (wanted, weights) = _layers(proto), layers_of(name)
    assert layers == wanted
    for found, weight in zip(parameters.values(), weights.values(), strict=True):
        np.testing.assert_array_equal(found, weight)


@pytest.mark.parametrize("network", DRAWS)
@pytest.mark.parametrize("exporter", quick(1, reversed(EXPORTERS)))
def test_an_export_in_training_mode_draws_as_the_network_does(network: str, exporter: str, tmp_path: Path) -> None:
    graph = import_model(save(example(f"small/{network}-{exporter}-training"), tmp_path))
    dropouts = [node.layer.ratio for node in graph.nodes if type(node.layer) is Dropout]
    depths = [node.layer.ratio for node in graph.nodes if isinstance(node.layer, StochasticDepth)]
    ratios, count, last = DRAWS[network]
    assert dropouts == pytest.approx(ratios)
    assert len(depths) == count
    assert depths[-1:] == pytest.approx([last] * bool(count))
    assert depths == sorted(depths)


def test_the_style_of_tf2onnx_equals_the_reference_evaluator(tmp_path: Path) -> None:
    image = np.random.default_rng(42).standard_normal((3, 3, 32, 32))
    _agree(_scores(keras(), "predictions/BiasAdd:0"), image, image.transpose(0, 2, 3, 1), tmp_path)
    assert len(import_model(save(keras(), tmp_path)).nodes) == 1 + 4 * 3 + 3 + 1


def test_the_style_of_skl2onnx_equals_the_reference_evaluator(tmp_path: Path) -> None:
    image = np.random.default_rng(43).standard_normal((5, 64, 1, 1))
    graph = import_model(save(mlp(), tmp_path), norm=NormMode.NONE)
    wanted = evaluate(_scores(mlp(), "out/BiasAdd:0"), image.reshape(5, 64))
    assert np.abs(forward(graph, image) - wanted).max() <= TOLERANCE * np.abs(wanted).max()


def _scores(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model up to the class scores: what comes behind is the loss's or no part of training."""
    last = next(index for index, item in enumerate(proto.graph.node) if item.output[0] == name)
    del proto.graph.node[last + 1 :], proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return proto


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem == "light_squeezenet" else pytest.mark.slow) for path in LIGHT],
    ids=lambda path: path.stem,
)
def test_a_file_of_the_onnx_package_equals_the_reference_evaluator(path: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(44).standard_normal((1, 3, 224, 224))
    _agree(_with_weights(onnx.load(path)), image, image, tmp_path)


def _with_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The files hold shapes alone, of tensors whose elements are all equal; here they are drawn.  No dropout."""
    rng = np.random.default_rng(45)
    shapes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    kept = []
    for node in proto.graph.node:
        if node.op_type != "ConstantOfShape":
            if node.op_type == "Dropout":
                del node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute("ratio", 0.0))
            kept.append(node)
            continue
        shape = tuple(int(size) for size in shapes[node.input[0]])
        scale = np.sqrt(2 / max(1, math.prod(shape[1:])))
        drawn = rng.normal(0, scale, shape) if len(shape) > 1 else rng.uniform(0.5, 1.5, shape)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(drawn.astype(np.float32), node.output[0]))
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    return proto


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
