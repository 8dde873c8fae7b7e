"""Writes the ten networks of HyPar's evaluation (docs/hypar.md) as ONNX files with seeded weights.

    python examples/models/hypar_nets.py lenet-c              # into build/models/
    python examples/models/hypar_nets.py vgg-a alexnet --out /data

Their hyper-parameters stand in `placement/hypar/published.py`; the weights are random.  The largest file has 574 MB.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from placement.hypar.published import PUBLISHED, Conv, Published

SEED = 2026
OPSET = 17


def model(network: Published) -> onnx.ModelProto:
    """The network with relus behind all layers but the last."""
    rng = np.random.default_rng(SEED)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    shape: tuple[int, ...] = (network.channels, network.side, network.side)
    x = "image"

    def put(kind: str, name: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def weight(name: str, *sizes: int) -> str:
        scale = np.float32(np.sqrt(2 / np.prod(sizes[1:])))
        values = rng.standard_normal(sizes, np.float32) * scale
        constants.append(numpy_helper.from_array(values, f"{name}.weight"))
        return f"{name}.weight"

    for layer in network.layers:
        if isinstance(layer, Conv):
            kernel, pads = [layer.kernel] * 2, [layer.padding] * 4
            weights = weight(layer.name, layer.filters, shape[0], *kernel)
            x = put("Conv", layer.name, x, weights, kernel_shape=kernel, pads=pads, strides=[layer.stride] * 2)
            shape = layer.filters, *(layer.after(side) for side in shape[1:])
        else:
            x = put("Flatten", f"{layer.name}_flatten", x) if len(shape) > 1 else x
            x = put("Gemm", layer.name, x, weight(layer.name, layer.outputs, int(np.prod(shape))), transB=1)
            shape = (layer.outputs,)
        if layer is not network.layers[-1]:
            x = put("Relu", f"{layer.name}_relu", x)
        if isinstance(layer, Conv) and layer.pool:
            window = {"kernel_shape": [layer.pool.size] * 2, "strides": [layer.pool.stride] * 2}
            x = put("MaxPool", f"{layer.name}_pool", x, **window, ceil_mode=int(layer.pool.ceil))
            shape = shape[0], *(layer.pool.after(side) for side in shape[1:])
    if len(shape) > 1:
        x, shape = put("Flatten", "flatten", x), (int(np.prod(shape)),)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", network.channels, *[network.side] * 2])
    scores = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["N", *shape])
    graph = helper.make_graph(nodes, network.name, [image], [scores], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])


def main() -> None:
    """Parse and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="+", metavar="NET", choices=PUBLISHED, help=f"of {', '.join(PUBLISHED)}")
    parser.add_argument("--out", type=Path, default=Path("build/models"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.nets:
        onnx.save(model(PUBLISHED[name]), options.out / f"{name}.onnx")
        print(options.out / f"{name}.onnx")


if __name__ == "__main__":
    main()
