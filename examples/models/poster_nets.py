"""Writes the two small networks of the poster's first rows as ONNX files with seeded weights.

    python examples/models/poster_nets.py                     # vggmini.onnx and demo.onnx, into build/models/
    python examples/models/poster_nets.py vggmini --out /data

The poster gives their layers' number in the training graph alone (34 and 127); what stands here is of that size:
VGG mini has three convolutions at 64x64, the demo network twelve with normalisation from 32x32 on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 2026
OPSET = 17
CLASSES = 10


class Net:
    """ONNX nodes and initialisers in the making; every method takes and returns the name of a tensor."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        """An initialiser."""
        self.constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, kind: str, name: str, *inputs: str, **attributes: object) -> str:
        """A node with one output."""
        self.nodes.append(helper.make_node(kind, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def conv(self, x: str, name: str, channels: int, filters: int, norm: bool) -> str:
        """3x3 convolution, normalisation if wanted, relu."""
        values = self.rng.normal(0.0, np.sqrt(2 / (9 * channels)), (filters, channels, 3, 3))
        weight = self.constant(f"{name}.weight", values)
        y = self.node("Conv", name, x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        if norm:
            ones, zeros = np.ones(filters), np.zeros(filters)
            parts = (("scale", ones), ("shift", zeros), ("mean", zeros), ("variance", ones))
            y = self.node("BatchNormalization", f"{name}_norm", y, *(self.constant(f"{name}.{p}", v) for p, v in parts))
        return self.node("Relu", f"{name}_relu", y)

    def pool(self, x: str, name: str) -> str:
        """2x2 max pool."""
        return self.node("MaxPool", name, x, kernel_shape=[2, 2], strides=[2, 2])

    def head(self, x: str, channels: int) -> str:
        """Global average pool and classifier."""
        flat = self.node("Flatten", "flatten", self.node("GlobalAveragePool", "average", x))
        values = self.rng.normal(0.0, np.sqrt(1 / channels), (CLASSES, channels))
        return self.node("Gemm", "fc", flat, self.constant("fc.weight", values), transB=1)

    def model(self, name: str, size: int, output: str) -> onnx.ModelProto:
        """The finished model of an RGB image."""
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, size, size])
        logits = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", CLASSES])
        graph = helper.make_graph(self.nodes, name, [image], [logits], self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        onnx.checker.check_model(made)
        return made


def vggmini() -> onnx.ModelProto:
    """Three convolutions at 64x64."""
    net = Net()
    x = net.conv("image", "conv1", 3, 32, norm=False)
    x = net.pool(net.conv(x, "conv2", 32, 32, norm=False), "pool1")
    x = net.pool(net.conv(x, "conv3", 32, 64, norm=False), "pool2")
    return net.model("vggmini", 64, net.head(x, 64))


def demo() -> onnx.ModelProto:
    """Twelve convolutions with normalisation from 32x32 on."""
    net = Net()
    x, channels = "image", 3
    for index in range(12):
        filters = 32 << index // 4
        x = net.conv(x, f"conv{index}", channels, filters, norm=True)
        channels = filters
        if index % 4 == 3:
            x = net.pool(x, f"pool{index}")
    return net.model("demo", 32, net.head(x, channels))


NETS: dict[str, Callable[[], onnx.ModelProto]] = {"vggmini": vggmini, "demo": demo}


def main() -> None:
    """Parse and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {', '.join(NETS)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("build/models"))
    options = parser.parse_args()
    unknown = [name for name in options.nets if name not in NETS]
    if unknown:
        parser.error(f"unknown networks {', '.join(unknown)}; there are {', '.join(NETS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.nets or NETS:
        onnx.save(NETS[name](), options.out / f"{name}.onnx")
        print(options.out / f"{name}.onnx")


if __name__ == "__main__":
    main()
