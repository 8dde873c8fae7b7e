"""What tests of the importer share: tiny models, the models of examples/, and the forward pass of a graph."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from hdl.layers.base import Layer
from hdl.layers.registry import load_layers
from importers.onnx import handlers
from importers.onnx.skeleton import fill, load_skeleton

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "examples" / "models"
Array = npt.NDArray[Any]


def export_script() -> Any:
    """examples/models/export_models.py as a module; skips the test without PyTorch."""
    pytest.importorskip("torch", reason="needs the optional extra: pip install -e .[torch]")
    sys.path.insert(0, str(MODELS))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("export_models")
    finally:
        sys.path.remove(str(MODELS))


def model(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, npt.ArrayLike] | None = None,
    image: Sequence[int | str | None] | None = ("N", 2, 6, 6),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> ModelProto:
    """A model with input ``x`` and the given nodes; integer constants are int64, others float32."""
    initialisers = []
    for name, value in (constants or {}).items():
        array = np.asarray(value)
        dtype = np.int64 if array.dtype.kind == "i" else np.float32 if array.dtype == np.float64 else array.dtype
        initialisers.append(numpy_helper.from_array(array.astype(dtype), name))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "net", inputs, results, initialisers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node; names of tensors separated by blanks, ``-`` for one left out, named after its first output."""
    given = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, given, outputs.split(), name=f"{outputs.split()[0]}_node", **attributes)


def save(proto: ModelProto, folder: Path, name: str = "net.onnx") -> Path:
    """Written to a file."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def example(name: str, size: int | None = None) -> ModelProto:
    """A filled model of examples/models; with ``size``, for images of that height and width."""
    proto = fill(load_skeleton(MODELS / f"{name}.skeleton.gz"))
    if size is not None:
        for axis in (2, 3):
            proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
        del proto.graph.value_info[:]
    return proto


def operator_layers() -> set[type[Layer]]:
    """Layers that handlers of the importer name."""
    known, handling = set(load_layers().values()), {handler.__module__ for handler in handlers.HANDLERS.values()}
    modules = [module for name, module in vars(handlers).items() if f"{handlers.__name__}.{name}" in handling]
    inside = [value for module in modules for value in vars(module).values()]
    return {value for value in inside if inspect.isclass(value) and value in known}


class LRN(OpRun):
    """As ONNX says it; the evaluator's own takes the sums of as many channels as there are frames, and 0 elsewhere."""

    op_domain = ""

    def _run(self, x: Array, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        before = (size - 1) // 2
        squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (before, size - 1 - before), (0, 0), (0, 0)))
        sums = sum(squares[:, first : first + x.shape[1]] for first in range(size))
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)


def evaluate(proto: ModelProto, image: Array) -> Array:
    """What ONNX's own reference evaluator computes, without a Softmax at the end."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    last = bare.graph.node[-1]
    if last.op_type == "Softmax":
        result = last.input[0]
        del bare.graph.node[-1]
        del bare.graph.output[:]
        bare.graph.output.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, None))
    # up to opset 13 the evaluator updates running statistics even where the file asks for no such results
    if bare.opset_import[0].version < 14 and any(item.op_type == "BatchNormalization" for item in bare.graph.node):
        bare.opset_import[0].version = 14
    for item in bare.graph.node:
        # where nothing is to be rounded the evaluator makes the map larger
        attributes = {attribute.name: attribute for attribute in item.attribute}
        if item.op_type == "MaxPool" and "ceil_mode" in attributes and set(attributes["strides"].ints) == {1}:
            item.attribute.remove(attributes["ceil_mode"])
    weights = {tensor.name for tensor in bare.graph.initializer}
    name = next(item.name for item in bare.graph.input if item.name not in weights)
    return np.asarray(ReferenceEvaluator(bare, new_ops=[LRN]).run(None, {name: image.astype(np.float32)})[0])


def forward(graph: Graph, image: Array) -> Array:
    """Class scores (N, classes) of a graph in float64, by the layers' references; ``image`` is (N, C, H, W)."""
    loss = graph.nodes[-1]
    bare = Graph(graph.name, graph.nodes[:-1], graph.recipe, graph.parameters, graph.carried)
    seen: dict[str, Array] = {}
    wanted = loss.inputs["x"]

    def watch(edge: str, array: Array) -> None:
        if edge == wanted:
            seen[edge] = array

    Executor(bare, Mode.REFERENCE).step({"image": image.transpose(0, 2, 3, 1)}, watch)
    return seen[wanted].reshape(len(image), -1)


def assert_close(found: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    """Largest difference, relative to the largest wanted magnitude."""
    wanted = wanted.reshape(found.shape)
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    assert error < tolerance, f"relative error {error:.2e}"
