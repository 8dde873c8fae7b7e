"""What `import` and `show` count: weights, multiplications and stash, against counts from the file's own shapes."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import pytest

from dagtrain.graph.summary import LayerSummary, summarise
from dagtrain.passes.autodiff import differentiate
from importers.onnx import import_model
from tests.import_support import ROOT, example, save

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
CONVOLUTIONS = ("Conv", "DepthwiseConv", "Gemm")
# of maps, weights and errors
WORD_BITS = 16


def counted(proto: onnx.ModelProto) -> list[tuple[int, int, int, int, int]]:
    """Of every convolution and matrix product, in the file's order: weights, multiplications of a frame forward, for
    the error of its input, for its gradient, and bits of its input.

    Each multiplication of the forward pass has one in both others (x·w gives y; e·w gives the error of x, e·x the
    gradient of w), but no error is wanted of images."""
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    sizes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.value_info, *inferred.input, *inferred.output)
    }
    weights = {tensor.name: list(tensor.dims) for tensor in inferred.initializer}
    found = []
    for node in inferred.node:
        if node.op_type not in ("Conv", "Gemm"):
            continue
        source, kernel = node.input[0], math.prod(weights[node.input[1]])
        pixels = math.prod(sizes[node.output[0]][2:])
        macs = kernel * pixels
        error = 0 if source == inferred.input[0].name else macs
        found.append((kernel, macs, error, macs, math.prod(sizes[source][1:]) * WORD_BITS))
    return found


@pytest.mark.parametrize("name", ["digits", "resnet18-torchscript-eval", "mobilenetv2-torchscript-eval"])
def test_weights_multiplications_and_stash_are_those_of_the_files_shapes(name: str, tmp_path: Path) -> None:
    proto = onnx.load(DIGITS) if name == "digits" else example(name)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    summary = summarise(differentiate(import_model(save(proto, tmp_path))))
    layers = [layer for layer in summary.layers if layer.kind in CONVOLUTIONS]
    assert [_of(layer) for layer in layers] == counted(proto)
    # one bit of a map tells which of its elements went through
    relus = [layer for layer in summary.layers if layer.kind == "Relu"]
    assert [layer.stash_bits for layer in relus] == [math.prod(layer.output_shape) for layer in relus]
    for total in ("weights", "forward_macs", "error_macs", "gradient_macs", "stash_bits"):
        assert getattr(summary, total) == sum(getattr(layer, total) for layer in summary.layers)


def _of(layer: LayerSummary) -> tuple[int, int, int, int, int]:
    return layer.weights, layer.forward_macs, layer.error_macs, layer.gradient_macs, layer.stash_bits
