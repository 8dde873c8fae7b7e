"""Writes digits.onnx: a small network that holds every kind of block of ResNet and MobileNetV2, for 8x8 digits.

    python examples/digits/make_digits_onnx.py [path]

Stem; residual block with identity; residual block with stride 2 and projection; inverted residual; max pool; global
average pool; gemm.  Weights are initialised as He et al. 2015, from a fixed seed; the file is committed beside this
script.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 7
OPSET = 17
CLASSES = 10


class Net:
    """ONNX nodes and initialisers in the making; every method takes and returns tensor names."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.count = 0

    def weight(self, name: str, values: np.ndarray) -> str:
        """An initialiser."""
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        self.count += values.size
        return name

    def node(self, kind: str, name: str, *inputs: str, **attributes: object) -> str:
        """A node with one output."""
        self.nodes.append(helper.make_node(kind, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def conv(
        self, x: str, name: str, channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> str:
        """Convolution without bias, then batch normalisation."""
        fan_in = channels // groups * kernel * kernel
        shape = (filters, channels // groups, kernel, kernel)
        values = self.rng.normal(0.0, np.sqrt(2 / fan_in), shape)
        pad = kernel // 2
        y = self.node(
            "Conv",
            name,
            x,
            self.weight(f"{name}.weight", values),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
            group=groups,
        )
        return self.norm(y, f"{name}_bn", filters)

    def norm(self, x: str, name: str, channels: int) -> str:
        """Batch normalisation at its start: scale 1, shift 0, mean 0, variance 1."""
        before = self.count
        scale = self.weight(f"{name}.weight", np.ones(channels))
        shift = self.weight(f"{name}.bias", np.zeros(channels))
        learnt = self.count - before
        mean = self.weight(f"{name}.running_mean", np.zeros(channels))
        variance = self.weight(f"{name}.running_var", np.ones(channels))
        self.count = before + learnt
        return self.node("BatchNormalization", name, x, scale, shift, mean, variance, epsilon=1e-5)

    def relu(self, x: str, name: str) -> str:
        """max(x, 0)."""
        return self.node("Relu", name, x)

    def relu6(self, x: str, name: str) -> str:
        """min(max(x, 0), 6), as PyTorch exports it."""
        return self.node("Clip", name, x, "zero", "six")

    def residual(self, x: str, name: str, channels: int, filters: int, stride: int) -> str:
        """Two 3x3 convolutions beside the identity, or beside a 1x1 projection where shapes change."""
        y = self.relu(self.conv(x, f"{name}_conv1", channels, filters, 3, stride), f"{name}_relu1")
        y = self.conv(y, f"{name}_conv2", filters, filters, 3)
        short = (
            x if stride == 1 and channels == filters else self.conv(x, f"{name}_project", channels, filters, 1, stride)
        )
        return self.relu(self.node("Add", f"{name}_add", y, short), f"{name}_relu2")

    def inverted(self, x: str, name: str, channels: int, expansion: int) -> str:
        """1x1 expansion, 3x3 depthwise, 1x1 projection, added to the input."""
        wide = channels * expansion
        y = self.relu6(self.conv(x, f"{name}_expand", channels, wide, 1), f"{name}_relu6a")
        y = self.relu6(self.conv(y, f"{name}_depthwise", wide, wide, 3, 1, wide), f"{name}_relu6b")
        return self.node("Add", f"{name}_add", self.conv(y, f"{name}_shrink", wide, channels, 1), x)


def make() -> tuple[onnx.ModelProto, int]:
    """The model and its number of trained weights."""
    net = Net()
    net.weights += [numpy_helper.from_array(np.float32(value), name) for name, value in (("zero", 0), ("six", 6))]
    x = net.relu(net.conv("image", "stem", 1, 16, 3), "stem_relu")
    x = net.residual(x, "block1", 16, 16, 1)
    x = net.residual(x, "block2", 16, 16, 2)
    x = net.inverted(x, "block3", 16, 2)
    x = net.node("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.node("GlobalAveragePool", "average", x)
    x = net.node("Flatten", "flatten", x, axis=1)
    bound = 1 / np.sqrt(16)
    weight = net.weight("classify.weight", net.rng.uniform(-bound, bound, (CLASSES, 16)))
    bias = net.weight("classify.bias", np.zeros(CLASSES))
    net.node("Gemm", "classify", x, weight, bias, transB=1)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])
    logits = helper.make_tensor_value_info("classify_out", TensorProto.FLOAT, ["N", CLASSES])
    graph = helper.make_graph(net.nodes, "digits", [image], [logits], net.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="dagtrain")
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model, net.count


def main() -> None:
    """Write the file."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("digits.onnx")
    model, weights = make()
    onnx.save(model, path)
    print(f"{path}: {weights} trained weights")


if __name__ == "__main__":
    main()
