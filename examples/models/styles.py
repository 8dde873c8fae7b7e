"""Writes small networks in the styles of other exporters than PyTorch's, with seeded weights.

    python examples/models/styles.py                  # keras.onnx and mlp.onnx, into build/models/

``keras`` is as tf2onnx writes a Keras model: the image is (N, height, width, channels), a Transpose makes it
(N, channels, height, width) for every convolution, `ZeroPadding2D` is a Pad before a convolution without padding,
the classifier a MatMul and an Add with a Softmax after it.  ``mlp`` is as skl2onnx writes scikit-learn's
`MLPClassifier`: features of shape (N, features), operators of both domains, a label and probabilities as results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 2026
OPSET = 17
CLASSES = 10
FEATURES, HIDDEN = 64, (100, 50)
TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]


class Writer:
    """ONNX nodes and initialisers in the making; methods take and return names of tensors."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: object, kind: type = np.float32) -> str:
        """An initialiser."""
        self.constants.append(numpy_helper.from_array(np.asarray(values).astype(kind), name))
        return name

    def weights(self, name: str, *shape: int) -> str:
        """Normal numbers that keep the variance; the last axis of a matrix, else the first, are the outputs."""
        inputs = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        return self.constant(name, self.rng.normal(0.0, np.sqrt(2 / inputs), shape))

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        self.nodes.append(helper.make_node(kind, list(inputs), [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def dense(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """Matrix product and bias."""
        y = self.node("MatMul", f"{name}/MatMul", x, self.weights(f"{name}/kernel", inputs, outputs))
        return self.node("Add", f"{name}/BiasAdd", y, self.constant(f"{name}/bias", self.rng.normal(0, 0.1, outputs)))

    def finish(self, name: str, image: onnx.ValueInfoProto, results: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self.nodes, name, [image], results, self.constants)
        domains = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", 3)]
        made = helper.make_model(graph, opset_imports=domains, ir_version=8)
        onnx.checker.check_model(made)
        return made


def _keras_conv(net: Writer, x: str, name: str, channels: int, filters: int, stride: int, depthwise: bool) -> str:
    """Transpose, padding at the lower right if strided, convolution, normalisation, relu6, transpose back."""
    x = net.node("Transpose", f"{name}/to_nchw", x, perm=TO_NCHW)
    pads = [1, 1, 1, 1]
    if stride == 2:
        pads = [0, 0, 0, 0]
        x = net.node("Pad", f"{name}/pad", x, net.constant(f"{name}/pads", [0, 0, 0, 0, 0, 0, 1, 1], np.int64))
    weights = net.weights(f"{name}/kernel", filters, 1 if depthwise else channels, 3, 3)
    groups = channels if depthwise else 1
    x = net.node(
        "Conv", f"{name}/Conv2D", x, weights, kernel_shape=[3, 3], strides=[stride] * 2, pads=pads, group=groups
    )
    parts = (("gamma", (0.5, 1.5)), ("beta", (-0.1, 0.1)), ("mean", (-0.1, 0.1)), ("variance", (0.5, 1.5)))
    named = [net.constant(f"{name}/{part}", net.rng.uniform(*ends, filters)) for part, ends in parts]
    x = net.node("BatchNormalization", f"{name}/FusedBatchNormV3", x, *named, epsilon=0.001)
    x = net.node("Clip", f"{name}/Relu6", x, net.constant(f"{name}/low", 0.0), net.constant(f"{name}/high", 6.0))
    return net.node("Transpose", f"{name}/to_nhwc", x, perm=TO_NHWC)


def keras() -> onnx.ModelProto:
    """A small MobileNet of 32x32 images."""
    net = Writer()
    x = _keras_conv(net, "input_1", "conv1", 3, 16, 2, False)
    x = _keras_conv(net, x, "conv_dw_1", 16, 16, 1, True)
    x = _keras_conv(net, x, "conv2", 16, 32, 2, False)
    x = _keras_conv(net, x, "conv_dw_2", 32, 32, 2, True)
    x = net.node("ReduceMean", "global_average_pooling2d", x, axes=[1, 2], keepdims=0)
    x = net.node("Softmax", "predictions/Softmax", net.dense(x, "predictions", 32, CLASSES), axis=-1)
    image = helper.make_tensor_value_info("input_1", TensorProto.FLOAT, ["N", 32, 32, 3])
    return net.finish("keras", image, [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["N", CLASSES])])


def mlp() -> onnx.ModelProto:
    """Two hidden layers, as of the 8x8 digits."""
    net = Writer()
    x, inputs = net.node("Cast", "Cast", "X", to=TensorProto.FLOAT), FEATURES
    for index, outputs in enumerate(HIDDEN):
        x, inputs = net.node("Relu", f"Relu{index}", net.dense(x, f"layer{index}", inputs, outputs)), outputs
    chances = net.node("Softmax", "Softmax", net.dense(x, "out", inputs, CLASSES))
    best = net.node("ArgMax", "ArgMax", chances, axis=1)
    classes = net.constant("classes", range(CLASSES), np.int64)
    label = net.node("ArrayFeatureExtractor", "ArrayFeatureExtractor", classes, best, domain="ai.onnx.ml")
    label = net.node("Reshape", "Reshape", label, net.constant("flat", [-1], np.int64))
    zipped = net.node("ZipMap", "ZipMap", chances, domain="ai.onnx.ml", classlabels_int64s=list(range(CLASSES)))
    features = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", FEATURES])
    by_class = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    results = [
        helper.make_tensor_value_info(label, TensorProto.INT64, ["N"]),
        helper.make_value_info(zipped, helper.make_sequence_type_proto(by_class)),
    ]
    return net.finish("mlp", features, results)


STYLES: dict[str, Callable[[], onnx.ModelProto]] = {"keras": keras, "mlp": mlp}


def main() -> None:
    """Parse and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/models"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, make in STYLES.items():
        onnx.save(make(), options.out / f"{name}.onnx")
        print(options.out / f"{name}.onnx")


if __name__ == "__main__":
    main()
