"""Fresh exports from PyTorch import and compute what PyTorch computes; the committed skeletons are what it exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from importers.onnx import NormMode, import_model
from importers.onnx.skeleton import load_skeleton, strip
from tests.import_support import MODELS, assert_close, export_script, forward

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

SMALL = 64


@pytest.fixture(scope="module")
def exports() -> Any:
    return export_script()


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2"])
def test_an_exported_model_computes_what_pytorch_computes(
    name: str, exporter: str, exports: Any, tmp_path: Path
) -> None:
    import torch

    exports.export(exports.Variant(name, exporter, "eval"), tmp_path / "net.onnx", size=SMALL)
    torch.manual_seed(exports.SEED)
    network = exports.seasoned(exports.MODELS[name]()).eval()
    image = np.random.default_rng(51).standard_normal((2, 3, SMALL, SMALL))
    with torch.no_grad():
        wanted = network(torch.from_numpy(image).float()).numpy()
    graph = import_model(tmp_path / "net.onnx", norm=NormMode.NONE)
    assert_close(forward(graph, image), wanted)


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
def test_older_opsets_of_the_torchscript_exporter(opset: int, exports: Any, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(exports.SEED)
    network = exports.seasoned(exports.MODELS["mobilenetv2"]()).eval()
    image = torch.randn(2, 3, SMALL, SMALL)
    path = tmp_path / "net.onnx"
    torch.onnx.export(network, (image,), path, dynamo=False, opset_version=opset)
    with torch.no_grad():
        wanted = network(image).numpy()
    graph = import_model(path, norm=NormMode.NONE)
    assert_close(forward(graph, image.double().numpy()), wanted)


def test_skeletons_have_the_structure_of_fresh_exports(exports: Any, tmp_path: Path) -> None:
    for name, exporter, mode in [("resnet18", "torchscript", "eval"), ("mobilenetv2", "dynamo", "training")]:
        variant = exports.Variant(name, exporter, mode)
        exports.export(variant, tmp_path / "net.onnx")
        fresh = strip(onnx.load(tmp_path / "net.onnx"))
        kept = load_skeleton(MODELS / f"{variant.file}.skeleton.gz")
        assert [node.op_type for node in fresh.graph.node] == [node.op_type for node in kept.graph.node]
        assert [list(item.dims) for item in fresh.graph.initializer] == [
            list(item.dims) for item in kept.graph.initializer
        ]
