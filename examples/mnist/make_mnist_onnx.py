"""Writes mnist.onnx: a small ResNet for the 28x28 images of MNIST.

    python examples/mnist/make_mnist_onnx.py [path]

Stem with stride 2; three residual blocks of 8, 16 and 32 channels, the latter two with stride 2 and a projection;
global average pool; gemm.  Weights are initialised as He et al. 2015, from a fixed seed, by the code of the digits
network's script; the file is committed beside this one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "digits"))

from make_digits_onnx import CLASSES, OPSET, Net  # noqa: E402 - beside this folder

WIDTHS = (8, 16, 32)


def make() -> tuple[onnx.ModelProto, int]:
    """The model and its number of trained weights."""
    net = Net()
    x = net.relu(net.conv("image", "stem", 1, WIDTHS[0], 3, 2), "stem_relu")
    x = net.residual(x, "block1", WIDTHS[0], WIDTHS[0], 1)
    x = net.residual(x, "block2", WIDTHS[0], WIDTHS[1], 2)
    x = net.residual(x, "block3", WIDTHS[1], WIDTHS[2], 2)
    x = net.node("GlobalAveragePool", "average", x)
    x = net.node("Flatten", "flatten", x, axis=1)
    bound = 1 / np.sqrt(WIDTHS[2])
    weight = net.weight("classify.weight", net.rng.uniform(-bound, bound, (CLASSES, WIDTHS[2])))
    bias = net.weight("classify.bias", np.zeros(CLASSES))
    net.node("Gemm", "classify", x, weight, bias, transB=1)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 28, 28])
    logits = helper.make_tensor_value_info("classify_out", TensorProto.FLOAT, ["N", CLASSES])
    graph = helper.make_graph(net.nodes, "mnist", [image], [logits], net.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="dagtrain")
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model, net.count


def main() -> None:
    """Write the file."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "mnist.onnx"
    model, weights = make()
    onnx.save(model, path)
    print(f"{path}: {weights} trained weights")


if __name__ == "__main__":
    main()
