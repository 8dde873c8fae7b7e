"""What every file must fulfil: well-formed, one image in, one tensor out, operators that are known, sane weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from importers.onnx.model import Array, OnnxModel, OnnxNode, sort_nodes
from importers.onnx.names import module_of
from importers.onnx.problems import Problems
from importers.onnx.schema import schema_problems, type_name

OLDEST_OPSET = 9
# stands for a batch of any size; not 1, so that a reshape that mixes frames is noticed
DYNAMIC_BATCH = 2
FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# they read a tensor's type or shape, not its values
ONLY_LOOK = {"Shape", "Size", "CastLike"}
# each such node is a module by itself
TRAINED = {"Conv", "Gemm", "MatMul", "BatchNormalization"}


def check_model(proto: ModelProto, path: Path, known: Collection[str], problems: Problems) -> OnnxModel:
    """The model in plain Python, nodes sorted; what is wrong, and operators not ``known``, go to ``problems``."""
    opset = _opset(proto, problems)
    nodes = _nodes(proto, opset, problems)
    constants = _constants(proto, problems)
    image, shape = _image(proto, constants, problems)
    outputs = _outputs(proto, nodes, problems)
    _references(nodes, constants, image, outputs, problems)
    ordered, cycle = sort_nodes(nodes)
    if cycle:
        problems.add("", f"the graph has a cycle: {cycle}", "remove one of these edges; ONNX graphs are acyclic")
    _operators(ordered, constants, known, problems)
    name = re.sub(r"\W+", "_", path.stem).strip("_") or "model"
    return OnnxModel(name, str(path), opset, ordered, constants, image, shape, outputs)


def _opset(proto: ModelProto, problems: Problems) -> int:
    """The version of ONNX's operators; the newest where the file's is not supported."""
    newest = onnx.defs.onnx_opset_version()
    versions = [item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")]
    if not versions:
        problems.add("", "names no version of ONNX's operators", f"export with an opset in {OLDEST_OPSET}..{newest}")
        return newest
    if not OLDEST_OPSET <= versions[0] <= newest:
        cure = f"export with an opset in {OLDEST_OPSET}..{newest}, or use onnx.version_converter"
        problems.add("", f"opset {versions[0]} is not supported", cure)
        return newest
    return int(versions[0])


def _nodes(proto: ModelProto, opset: int, problems: Problems) -> tuple[OnnxNode, ...]:
    counts = Counter(node.name for node in proto.graph.node)
    uses = Counter(name for node in proto.graph.node if node.op_type not in ONLY_LOOK for name in node.input)
    nodes = []
    made: dict[str, str] = {}
    for index, item in enumerate(proto.graph.node):
        first = next((name for name in item.output if name), f"{item.op_type}_{index}")
        name = item.name if item.name and counts[item.name] == 1 else first
        where = f"node {name} ({item.op_type})"
        for what, cure in schema_problems(item, opset):
            problems.add(where, what, cure)
        node = OnnxNode.from_proto(item, name, _module(item, name, uses))
        for name in node.outputs:
            if name and name in made:
                problems.add(str(node), f"makes tensor {name}, which {made[name]} makes too", "give it another name")
            made[name] = node.name
        nodes.append(node)
    return tuple(nodes)


def _module(item: NodeProto, name: str, uses: Counter[str]) -> str:
    """The module that a node is, told by its weights or, where those were merged or renamed, by its own name."""
    weight = item.input[1] if len(item.input) > 1 else ""
    # exporters merge equal vectors, whose name then speaks of one of several modules
    if uses[weight] == 1 and module_of(weight):
        return module_of(weight)
    scope, _, last = name.rpartition("/")
    return scope if item.op_type in TRAINED and last == item.op_type else ""


def _constants(proto: ModelProto, problems: Problems) -> dict[str, Array]:
    constants: dict[str, Array] = {}
    for tensor in proto.graph.initializer:
        where = f"weights {tensor.name}"
        if tensor.name in constants:
            problems.add(where, "are given twice", "remove one of the initialisers")
        try:
            value = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError, OverflowError, MemoryError, AttributeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            cure = "the file is damaged: export or download it again"
            if tensor.data_type not in TensorProto.DataType.values():
                problems.add(where, f"are of type {type_name(tensor.data_type)}", cure)
            else:
                problems.add(where, f"their data do not fit the shape {_shown(tensor.dims)}: {reason}", cure)
            continue
        if tensor.data_type in FLOATS:
            value = value.astype(np.float32) if tensor.data_type != TensorProto.DOUBLE else value
            _finite(where, value, problems)
        constants[tensor.name] = value
    for sparse in proto.graph.sparse_initializer:
        problems.add(f"weights {sparse.values.name}", "are sparse", "store them as a dense initialiser")
    return constants


def _shown(dims: Sequence[int], most: int = 8) -> str:
    """A shape, cut where it is long."""
    return f"{list(dims[:most])}" if len(dims) <= most else f"{list(dims[:most])[:-1]} … ({len(dims)} dimensions)"


def _finite(where: str, value: Array, problems: Problems) -> None:
    bad = ~np.isfinite(value)
    if bad.any():
        position = tuple(int(axis) for axis in np.argwhere(bad)[0])
        what = f"{int(bad.sum())} of {value.size} are not finite, the first is {value[position]} at {list(position)}"
        problems.add(where, what, "the training diverged: export from an earlier checkpoint")


def _image(proto: ModelProto, constants: dict[str, Array], problems: Problems) -> tuple[str, tuple[int, int, int, int]]:
    """Name and shape of the one input that is no initialiser."""
    inputs = [item for item in proto.graph.input if item.name not in constants]
    initialisers = {tensor.name for tensor in proto.graph.initializer}
    inputs = [item for item in inputs if item.name not in initialisers]
    if len(inputs) != 1:
        names = ", ".join(item.name for item in inputs) or "none"
        problems.add("", f"has {len(inputs)} inputs ({names})", "export a model with one input, the image")
    if not inputs:
        return "", (1, 1, 1, 1)
    return inputs[0].name, _image_shape(inputs[0], problems)


def _image_shape(item: ValueInfoProto, problems: Problems) -> tuple[int, int, int, int]:
    where = f"input {item.name}"
    given = (1, 1, 1, 1)
    if not item.type.HasField("tensor_type"):
        problems.add(where, "is no tensor", "export a model whose input is one image tensor")
        return given
    kind = item.type.tensor_type
    if kind.elem_type not in FLOATS:
        cure = "export with float images; conversion from bytes is the host's work"
        problems.add(where, f"has type {type_name(kind.elem_type)}", cure)
    if not kind.HasField("shape"):
        problems.add(where, "has no shape", "export with the shape (N, channels, height, width)")
        return given
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    shown = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim]
    text = "[" + ", ".join(map(str, shown)) + "]"
    if len(sizes) != 4:
        problems.add(where, f"has shape {text}", "export with the shape (N, channels, height, width)")
        return given
    names = ("batch", "channels", "height", "width")
    dynamic = [names[axis] for axis in (1, 2, 3) if sizes[axis] is None]
    if dynamic:
        cure = "export with fixed " + ", ".join(dynamic) + "; only the batch may be dynamic"
        problems.add(where, f"has shape {text} with dynamic {', '.join(dynamic)}", cure)
    if any(size is not None and size < 1 for size in sizes):
        problems.add(where, f"has shape {text}", "all sizes must be positive")
    batch, channels, height, width = (size or 1 for size in sizes)
    return (DYNAMIC_BATCH if sizes[0] is None else batch, channels, height, width)


def _outputs(proto: ModelProto, nodes: tuple[OnnxNode, ...], problems: Problems) -> tuple[str, ...]:
    """Names of results; running statistics, which some exporters list as results, are none."""
    statistics = {name for node in nodes if node.op == "BatchNormalization" for name in node.outputs[1:]}
    outputs = tuple(item.name for item in proto.graph.output if item.name not in statistics)
    if len(outputs) != 1:
        cure = "export a model with one output, the class scores"
        problems.add("", f"has {len(outputs)} outputs ({', '.join(outputs) or 'none'})", cure)
    return outputs


def _operators(
    nodes: tuple[OnnxNode, ...], constants: dict[str, Array], known: Collection[str], problems: Problems
) -> None:
    """Operators on the way of the image that nobody can handle, all in one problem.

    What works on constants and shapes alone will be folded, so it may be any operator of ONNX."""
    fixed = set(constants)
    unknown: dict[str, list[str]] = {}
    for node in nodes:
        inputs = node.inputs[:1] if node.op == "CastLike" else node.inputs
        is_onnx = "." not in node.op
        if is_onnx and (node.op in ("Shape", "Size") or all(name in fixed for name in inputs if name)):
            fixed.update(node.outputs)
        elif node.op not in known:
            unknown.setdefault(node.op, []).append(node.name)
    if unknown:
        listed = ", ".join(f"{op} ({len(names)}, first at {names[0]})" for op, names in sorted(unknown.items()))
        cure = "supported are " + ", ".join(sorted(known))
        problems.add("", f"uses operators that are not supported: {listed}", cure)


def _references(
    nodes: tuple[OnnxNode, ...],
    constants: dict[str, Array],
    image: str,
    outputs: tuple[str, ...],
    problems: Problems,
) -> None:
    """Every tensor that is read is made by something."""
    made = {image, *constants, *(name for node in nodes for name in node.outputs)}
    damaged = {problem.where for problem in problems}
    for node in nodes:
        for name in node.inputs:
            if name and name not in made and f"weights {name}" not in damaged:
                cure = "the file is damaged or was cut: export it again"
                problems.add(str(node), f"reads tensor {name}, which nothing makes", cure)
    for name in outputs:
        if name not in made:
            problems.add(f"output {name}", "is made by nothing", "the file is damaged or was cut: export it again")
