"""Imported graphs compute what their files do, by ONNX's own evaluator, and cost what the papers say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import onnx
import pytest

from dagtrain.graph.ir import Graph
from hdl.layers.conv.dense import Conv
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.pointwise.dropout import Dropout
from importers.onnx import NormMode, import_model
from tests.import_support import MODELS, ROOT, assert_close, evaluate, example, forward, save

# the other networks of examples/models are those of test_networks.py
NAMES = ("resnet18-", "resnet50-", "mobilenetv2-")
VARIANTS = sorted(
    path.name.removesuffix(".skeleton.gz") for path in MODELS.glob("*.skeleton.gz") if path.name.startswith(NAMES)
)
# in evaluation mode nothing is dropped and statistics are those of the file, so the answers must be equal
EVALUATED = [name for name in VARIANTS if "-eval" in name]
# the largest network once in the fast suite, all its exports in the slow one
COUNTED = [
    pytest.param(name, marks=pytest.mark.slow if name.startswith("resnet50") and name != "resnet50-dynamo-eval" else ())
    for name in VARIANTS
]
MACS = {"resnet18": 1.814e9, "resnet50": 4.089e9, "mobilenetv2": 0.3008e9}
WEIGHTS = {"resnet18": 11_689_512, "resnet50": 25_557_032, "mobilenetv2": 3_504_872}
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"


@pytest.mark.parametrize("name", [name for name in EVALUATED if "resnet50" not in name])
def test_forward_pass_equals_the_reference_evaluator_on_small_images(name: str, tmp_path: Path) -> None:
    proto = example(name, size=64)
    graph = import_model(save(proto, tmp_path), norm=NormMode.NONE)
    image = np.random.default_rng(11).standard_normal((2, 3, 64, 64))
    assert_close(forward(graph, image), evaluate(proto, image))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVALUATED)
def test_forward_pass_equals_the_reference_evaluator_at_full_size(name: str, tmp_path: Path) -> None:
    proto = example(name)
    graph = import_model(save(proto, tmp_path), norm=NormMode.NONE)
    image = np.random.default_rng(12).standard_normal((1, 3, 224, 224))
    assert_close(forward(graph, image), evaluate(proto, image))


def test_digits_network_equals_the_reference_evaluator() -> None:
    image = np.random.default_rng(13).standard_normal((3, 1, 8, 8))
    graph = import_model(DIGITS, norm=NormMode.NONE)
    assert_close(forward(graph, image), evaluate(onnx.load(DIGITS), image))


def test_the_digits_script_writes_the_committed_file(tmp_path: Path) -> None:
    command = [sys.executable, str(DIGITS.with_name("make_digits_onnx.py")), str(tmp_path / "digits.onnx")]
    subprocess.run(command, check=True, capture_output=True)
    assert onnx.load(tmp_path / "digits.onnx") == onnx.load(DIGITS)
    graph = import_model(DIGITS)
    assert 8_000 <= sum(value.size for value in graph.parameters.values()) <= 12_000


def test_fill_writes_a_model_that_imports(tmp_path: Path) -> None:
    command = [sys.executable, str(MODELS / "fill.py"), "mobilenetv2-torchscript-eval", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert len(import_model(tmp_path / "mobilenetv2-torchscript-eval.onnx").nodes) > 100


@pytest.mark.parametrize(("name", "size", "weights"), [("vggmini", 64, 29_152), ("demo", 32, 674_912)])
def test_the_small_networks_of_the_poster_equal_the_reference_evaluator(
    name: str, size: int, weights: int, tmp_path: Path
) -> None:
    command = [sys.executable, str(MODELS / "poster_nets.py"), name, "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    path = tmp_path / f"{name}.onnx"
    graph = import_model(path, norm=NormMode.NONE)
    image = np.random.default_rng(15).standard_normal((2, 3, size, size))
    assert_close(forward(graph, image), evaluate(onnx.load(path), image))
    kernels = [value.size for key, value in graph.parameters.items() if value.ndim > 1]
    assert sum(kernels) == weights


@pytest.mark.slow
def test_light_resnet50_equals_the_reference_evaluator() -> None:
    image = np.random.default_rng(14).standard_normal((1, 3, 224, 224))
    graph = import_model(LIGHT, norm=NormMode.NONE)
    assert_close(forward(graph, image), evaluate(onnx.load(LIGHT), image))


def test_light_resnet50_is_the_exported_resnet50_but_for_epsilon(tmp_path: Path) -> None:
    # so costs, plans and Verilog of the one are those of the other
    light, exported = import_model(LIGHT), import_model(save(example("resnet50-dynamo-eval-norm"), tmp_path))
    assert nx.is_isomorphic(_labelled(light), _labelled(exported), node_match=lambda a, b: bool(a == b))


def _labelled(graph: Graph) -> nx.DiGraph:
    """The nodes with their layers, less numbers for random bits, and epsilon, which ends in a constant."""
    found = nx.DiGraph()
    for node in graph.nodes:
        found.add_node(node.name, layer=re.sub(r"(epsilon|tensor_id)=[^,)]*", "", repr(node.layer)))
    found.add_edges_from((producer.name, consumer.name) for _, producer, _, consumer, _ in graph.edges)
    return found


@pytest.mark.parametrize("name", ["resnet18-torchscript-eval", "mobilenetv2-dynamo-eval"])
def test_normalisation_put_back_starts_where_the_folded_network_is(name: str, tmp_path: Path) -> None:
    # statistics begin at mean 0 and variance 1; only epsilon makes a difference
    proto = example(name, size=32)
    _tame(proto)
    graph = import_model(save(proto, tmp_path), norm=NormMode.ONLINE)
    image = np.random.default_rng(15).standard_normal((1, 3, 32, 32))
    assert_close(forward(graph, image), evaluate(proto, image), 2e-3)


def _tame(proto: onnx.ModelProto) -> None:
    """Halve all convolution weights, so that no map reaches the 8 standard deviations at which normal maps saturate."""
    convs = {node.input[1] for node in proto.graph.node if node.op_type == "Conv"}
    for tensor in proto.graph.initializer:
        if tensor.name in convs:
            value = onnx.numpy_helper.to_array(tensor) / 2
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))


@pytest.mark.parametrize("name", COUNTED)
def test_every_export_has_the_layers_weights_and_multiplications_of_its_network(name: str, tmp_path: Path) -> None:
    graph = import_model(save(example(name), tmp_path))
    network = name.partition("-")[0]
    layers = [node.layer for node in graph.nodes]
    convs = [layer for layer in layers if isinstance(layer, Conv | DepthwiseConv)]
    assert sum(layer.macs for layer in convs) == pytest.approx(MACS[network], rel=1e-3)
    # every convolution but the classifier is normalised, whatever the exporter folded
    assert sum(isinstance(layer, OnlineNorm) for layer in layers) == len(convs) - 1
    # the dynamo exporter's optimiser drops the classifier's bias while it is 0, as in this network
    missing = 1000 if name.startswith("mobilenetv2-dynamo") and "norm" not in name else 0
    assert sum(value.size for value in graph.parameters.values()) == WEIGHTS[network] - missing
    trained = network == "mobilenetv2" and "-training" in name
    assert sum(isinstance(layer, Dropout) for layer in layers) == trained


def test_all_exports_of_one_network_give_the_same_layers_in_the_same_order(tmp_path: Path) -> None:
    found = {}
    for name in VARIANTS:
        if name.startswith("resnet18"):
            graph = import_model(save(example(name), tmp_path))
            found[name] = [
                (type(node.layer).__name__, getattr(node.layer, "filters", None), node.layer.sources[0].tensor.shape)
                for node in graph.nodes
            ]
    reference = found["resnet18-torchscript-training"]
    assert len(reference) == 70 + 1
    assert all(layers == reference for layers in found.values())


def test_light_resnet50_has_its_layers_and_multiplications() -> None:
    graph = import_model(LIGHT)
    layers = [node.layer for node in graph.nodes]
    assert sum(isinstance(layer, Conv) for layer in layers) == 54
    assert sum(isinstance(layer, OnlineNorm) for layer in layers) == 53
    assert sum(layer.macs for layer in layers if isinstance(layer, Conv)) == pytest.approx(MACS["resnet50"], rel=1e-3)


def test_import_is_deterministic(tmp_path: Path) -> None:
    path = save(example("mobilenetv2-dynamo-training"), tmp_path)
    first, second = import_model(path), import_model(path)
    assert first.nodes == second.nodes
    assert list(first.parameters) == list(second.parameters)
    assert all(np.array_equal(first.parameters[key], second.parameters[key]) for key in first.parameters)
