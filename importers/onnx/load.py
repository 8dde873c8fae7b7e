"""An ONNX file as a checked `Model`: constants folded, shapes static, batch 1; every problem found, in one error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from hdl.errors import ImportProblem

Constant = npt.NDArray[Any]

# folding a constant larger than this would only copy weights about
LARGEST_FOLD = 1 << 28


@dataclass(frozen=True)
class Operation:
    """One node that is left after folding."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A network with one image input and one output."""

    name: str
    file: str
    opset: int
    operations: tuple[Operation, ...]
    # tensor name -> value, for everything that does not depend on the image
    constants: Mapping[str, Constant]
    # tensor name -> static shape with batch 1, where known
    shapes: Mapping[str, tuple[int, ...]]
    input: str
    output: str


class Problems:
    """Collects what is wrong with a file; raised all at once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[str] = []

    def add(self, problem: str) -> None:
        """One more; the same is kept once."""
        if problem not in self.found:
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raise `ImportProblem` with all of them."""
        if self.found:
            listed = "\n  ".join(self.found)
            raise ImportProblem(f"{self.file} cannot be imported:\n  {listed}")


def load(path: Path) -> Model:
    """Read and check a file.  Raises `ImportProblem` listing all problems found."""
    problems = Problems(str(path))
    proto = _parse(path)
    _check_inputs(proto, problems)
    _check_order(proto, problems)
    problems.raise_if_any()
    _fix_batch(proto)
    inferred = _infer(proto, problems)
    problems.raise_if_any()
    shapes = _shapes(inferred)
    constants = {item.name: numpy_helper.to_array(item) for item in inferred.graph.initializer}
    operations = _fold(inferred, constants, shapes, problems)
    images = [item.name for item in inferred.graph.input if item.name not in constants]
    operations = _reachable(operations, images[0], inferred.graph.output[0].name, problems)
    _check_constants(operations, constants, problems)
    problems.raise_if_any()
    opset = next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), 1)
    output = inferred.graph.output[0].name
    return Model(path.stem, str(path), opset, operations, constants, shapes, images[0], output)


def _parse(path: Path) -> onnx.ModelProto:
    try:
        proto = onnx.load(str(path))
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ImportProblem(
            f"{path} is not a readable ONNX file ({type(error).__name__}: {error}); export it again"
        ) from error
    if not proto.graph.node:
        raise ImportProblem(f"{path} holds no ONNX graph, or an empty one; export it again")
    return proto


def _check_inputs(proto: onnx.ModelProto, problems: Problems) -> None:
    initial = {item.name for item in proto.graph.initializer}
    images = [item for item in proto.graph.input if item.name not in initial]
    if len(images) != 1:
        names = ", ".join(item.name for item in images) or "none"
        problems.add(f"the graph must have one input, the image; it has {len(images)}: {names}")
    if not proto.graph.output:
        problems.add("the graph has no output; export it again")
    for item in images[:1]:
        if item.type.tensor_type.elem_type != TensorProto.FLOAT:
            kind = TensorProto.DataType.Name(item.type.tensor_type.elem_type)
            problems.add(f"input {item.name} is {kind}; export the model in FLOAT (32 bits)")
        if not item.type.tensor_type.HasField("shape"):
            problems.add(f"input {item.name} has no shape; export with a fixed image size (N, C, H, W)")
            continue
        dims = list(item.type.tensor_type.shape.dim)
        if len(dims) != 4:
            problems.add(f"input {item.name} has {len(dims)} dimensions; images need 4: (N, C, H, W)")
        for position, dim in enumerate(dims):
            if position and dim.dim_value < 1:
                what = dim.dim_param or "unknown"
                problems.add(
                    f"input {item.name}: dimension {position} is dynamic ({what}); only the batch may be, so export "
                    "with a fixed image size"
                )


def _check_order(proto: onnx.ModelProto, problems: Problems) -> None:
    """Sort nodes topologically; a cycle is shown."""
    graph = nx.DiGraph()
    producer = {name: index for index, node in enumerate(proto.graph.node) for name in node.output if name}
    graph.add_nodes_from(range(len(proto.graph.node)))
    known = {item.name for item in (*proto.graph.initializer, *proto.graph.input)}
    for index, node in enumerate(proto.graph.node):
        for name in node.input:
            if name in producer:
                graph.add_edge(producer[name], index)
            elif name and name not in known:
                problems.add(f"node {node.name or node.op_type}: input {name} is produced by nobody; export it again")
    try:
        order = list(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        cycle = [proto.graph.node[edge[0]].name or proto.graph.node[edge[0]].op_type for edge in nx.find_cycle(graph)]
        problems.add(f"the graph has a cycle: {' -> '.join([*cycle, cycle[0]])}; recurrence is not supported")
        return
    nodes = [proto.graph.node[index] for index in order]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _fix_batch(proto: onnx.ModelProto) -> None:
    """Batch 1, and no stale shapes that were written for another batch."""
    initial = {item.name for item in proto.graph.initializer}
    for item in proto.graph.input:
        if item.name not in initial:
            item.type.tensor_type.shape.dim[0].Clear()
            item.type.tensor_type.shape.dim[0].dim_value = 1
    del proto.graph.value_info[:]
    for item in proto.graph.output:
        item.type.tensor_type.ClearField("shape")


def _infer(proto: onnx.ModelProto, problems: Problems) -> onnx.ModelProto:
    try:
        return shape_inference.infer_shapes(proto, strict_mode=False, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        problems.add(f"shapes do not fit together: {error}")
        return proto


def _shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    found = {}
    for item in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        tensor = item.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            found[item.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return found


def _fold(
    proto: onnx.ModelProto, constants: dict[str, Constant], shapes: Mapping[str, tuple[int, ...]], problems: Problems
) -> tuple[Operation, ...]:
    """Evaluate whatever does not depend on the image; `Identity` of a constant, `Shape` of a known shape too."""
    left: list[Operation] = []
    counts: Counter[str] = Counter()
    for node in proto.graph.node:
        op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        counts[op] += 1
        name = node.name or f"{op}_{counts[op]}"
        if op == "Shape" and node.input[0] in shapes and len(node.attribute) == 0:
            constants[node.output[0]] = np.array(shapes[node.input[0]], np.int64)
        elif all(item in constants for item in node.input if item) and _is_small(node, constants):
            try:
                results = ReferenceEvaluator(_standalone(node, proto)).run(
                    None, {item: constants[item] for item in node.input if item}
                )
            except Exception as error:  # noqa: BLE001 - whatever the evaluator cannot do is the file's problem
                problems.add(f"node {name} ({op}) cannot be evaluated: {error}")
                continue
            constants.update((item, value) for item, value in zip(node.output, results, strict=False) if item)
        else:
            attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
            left.append(Operation(name, op, tuple(node.input), tuple(node.output), attributes))
    return tuple(left)


def _standalone(node: onnx.NodeProto, proto: onnx.ModelProto) -> onnx.ModelProto:
    inputs = [onnx.helper.make_value_info(item, onnx.TypeProto()) for item in node.input if item]
    outputs = [onnx.helper.make_value_info(item, onnx.TypeProto()) for item in node.output if item]
    graph = onnx.helper.make_graph([node], "fold", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=list(proto.opset_import), ir_version=proto.ir_version or 8)


def _is_small(node: onnx.NodeProto, constants: Mapping[str, Constant]) -> bool:
    return sum(constants[item].nbytes for item in node.input if item) <= LARGEST_FOLD


def _reachable(
    operations: tuple[Operation, ...], source: str, target: str, problems: Problems
) -> tuple[Operation, ...]:
    """Operations between image and output; parts that hang in the air are problems."""
    graph = nx.DiGraph()
    for item in operations:
        for name in item.inputs:
            graph.add_edge(("tensor", name), item.name)
        for name in item.outputs:
            graph.add_edge(item.name, ("tensor", name))
    start, stop = ("tensor", source), ("tensor", target)
    if start not in graph or stop not in graph or not nx.has_path(graph, start, stop):
        problems.add(f"output {target} does not depend on input {source}: the graph is disconnected")
        return operations
    after, before = nx.descendants(graph, start), nx.ancestors(graph, stop)
    kept = tuple(item for item in operations if item.name in after and item.name in before)
    for item in operations:
        if item not in kept and item.name not in after:
            problems.add(f"node {item.name} ({item.op}) does not depend on input {source}: the graph is disconnected")
        elif item not in kept:
            problems.add(f"node {item.name} ({item.op}) does not lead to output {target}; remove it from the model")
    return kept


def _check_constants(
    operations: tuple[Operation, ...], constants: Mapping[str, Constant], problems: Problems
) -> None:
    for item in operations:
        for name in item.inputs:
            value = constants.get(name)
            if value is not None and np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
                count = int((~np.isfinite(value)).sum())
                problems.add(f"node {item.name}: {count} of {value.size} values of {name} are NaN or infinite")
