"""What every file must fulfil: well-formed, one image in, class scores out, sane weights.

What doesn't lead to the class scores is dropped and checked by nobody.  What is wrong stays in the model as a node
`LOST`, so that all that doesn't depend on it is still looked at.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from importers.onnx.model import LOST, Array, OnnxModel, OnnxNode, leading_to, sort_nodes
from importers.onnx.names import module_of
from importers.onnx.problems import Problems, some
from importers.onnx.results import TRAINED, choose_result
from importers.onnx.schema import schema_problems, type_name

OLDEST_OPSET = 9
# stands for a batch of any size; not 1, so that a reshape that mixes frames is noticed
DYNAMIC_BATCH = 2
FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# they read a tensor's type or shape, not its values
ONLY_LOOK = {"Shape", "Size", "CastLike"}
# what the sizes of an image mean, by how many there are
AXES = {
    4: ("batch", "channels", "height", "width"),
    3: ("batch", "height", "width"),
    2: ("batch", "features"),
}
SHAPES = "export with the shape (N, channels, height, width), or (N, features)"
# what stands for a size that is not known, where no layers are made but idioms are still looked for, and another such
# size: what is wrong with both of them is wrong with any
GUESS, OTHER_GUESS = 224, 192
# elements
LARGEST_IMAGE = 1 << 26
UNSIZED = (DYNAMIC_BATCH, 3, GUESS, GUESS)


@dataclass(frozen=True)
class Checked:
    """A file in plain Python."""

    # nodes sorted, those alone that lead to the class scores
    model: OnnxModel
    # whether sizes and operators mean what they say; if not, no layers can be made of it
    sound: bool
    # the same with other sizes in place of those that are not known, if that is all that keeps it from being sound
    other: OnnxModel | None = None


def check_model(proto: ModelProto, path: Path, problems: Problems, auxiliary: float = 0.0) -> Checked:
    """What is wrong goes to ``problems``; ``auxiliary`` as of the recipe."""
    opset, known_opset = _opset(proto, problems)
    protos = _named(proto)
    given = {tensor.name for tensor in proto.graph.initializer}
    nodes = tuple(OnnxNode.from_proto(item, name, module) for name, module, item in protos)
    _made_once(nodes, problems)
    outputs = [item.name for item in proto.graph.output]
    inputs = [item.name for item in proto.graph.input if item.name not in given]
    result = choose_result(outputs, nodes, inputs, given, problems, auxiliary)
    live = leading_to(result.tensors, nodes)
    notes = [*result.notes, *_dropped(proto, result.tensor, nodes, live)]
    read = {name for node in live for name in node.inputs if name} | {*result.tensors}
    constants, damaged = _constants(proto, read, problems)
    image, shape, other = _image(proto, given, read, problems)
    live = _well_formed(live, {name: item for name, _, item in protos}, opset, problems)
    # further inputs have a problem of their own
    damaged = (*damaged, *(name for name in inputs if name in read and name != image))
    lost = _references(live, {*constants, *damaged, image}, result.tensors, problems)
    live = (*(OnnxNode(f"lost {name}", LOST, (), (name,)) for name in (*damaged, *lost)), *live)
    ordered, cycle = sort_nodes(live)
    if cycle:
        problems.add("", f"the graph has a cycle: {cycle}", "remove one of these edges; ONNX graphs are acyclic")
    name = re.sub(r"\W+", "_", path.stem).strip("_") or "model"
    model = OnnxModel(
        name, str(path), opset, ordered, constants, image, shape, result.tensor, tuple(notes), result.heads
    )
    sound = known_opset and not cycle and bool(result.tensor)
    if not sound or other is None or other == shape:
        return Checked(model, sound and other is not None)
    return Checked(model, False, replace(model, image_shape=other))


def _opset(proto: ModelProto, problems: Problems) -> tuple[int, bool]:
    """(the version of ONNX's operators, the newest where the file's is not supported; whether it is)."""
    newest = onnx.defs.onnx_opset_version()
    versions = [item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")]
    if not versions:
        problems.add("", "names no version of ONNX's operators", f"export with an opset in {OLDEST_OPSET}..{newest}")
        return newest, False
    if not OLDEST_OPSET <= versions[0] <= newest:
        cure = f"export with an opset in {OLDEST_OPSET}..{newest}, or use onnx.version_converter"
        problems.add("", f"opset {versions[0]} is not supported", cure)
        return newest, False
    return int(versions[0]), True


def _named(proto: ModelProto) -> list[tuple[str, str, NodeProto]]:
    """(unique name, module, node) of every node."""
    counts = Counter(node.name for node in proto.graph.node)
    uses = Counter(name for node in proto.graph.node if node.op_type not in ONLY_LOOK for name in node.input)
    named = []
    for index, item in enumerate(proto.graph.node):
        first = next((name for name in item.output if name), f"{item.op_type}_{index}")
        name = item.name if item.name and counts[item.name] == 1 else first
        named.append((name, _module(item, name, uses), item))
    return named


def _module(item: NodeProto, name: str, uses: Counter[str]) -> str:
    """The module that a node is, told by its weights or, where those were merged or renamed, by its own name."""
    weight = item.input[1] if len(item.input) > 1 else ""
    # exporters merge equal vectors, whose name then speaks of one of several modules
    if uses[weight] == 1 and module_of(weight):
        return module_of(weight)
    scope, _, last = name.rpartition("/")
    return scope if item.op_type in TRAINED and last == item.op_type else ""


def _dropped(proto: ModelProto, result: str, nodes: Sequence[OnnxNode], live: Sequence[OnnxNode]) -> list[str]:
    """A note if nodes lead to no result of the file.  (Those that lead to another result went with it.)"""
    ends = leading_to([result, *(item.name for item in proto.graph.output)], nodes)
    needed = {node.name for node in (*ends, *live)}
    dead = [str(node) for node in nodes if node.name not in needed and node.op != "Constant"]
    if not dead:
        return []
    many = f"{len(dead)} nodes that do not lead to the output {result} were"
    one = f"1 node that does not lead to the output {result} was"
    return [f"{one if len(dead) == 1 else many} dropped: {some(dead)}"]


def _well_formed(
    nodes: tuple[OnnxNode, ...], protos: Mapping[str, NodeProto], opset: int, problems: Problems
) -> tuple[OnnxNode, ...]:
    """The nodes, with `LOST` in place of those that ONNX's own definition of their operator does not allow."""
    found = []
    for node in nodes:
        wrong = list(schema_problems(protos[node.name], opset))
        for what, cure in wrong:
            problems.add(str(node), what, cure)
        found.append(replace(node, op=LOST, attributes={}) if wrong else node)
    return tuple(found)


def _made_once(nodes: Sequence[OnnxNode], problems: Problems) -> None:
    made: dict[str, str] = {}
    for node in nodes:
        for name in node.outputs:
            if name and name in made:
                problems.add(str(node), f"makes tensor {name}, which {made[name]} makes too", "give it another name")
            made[name] = node.name


def _constants(proto: ModelProto, read: set[str], problems: Problems) -> tuple[dict[str, Array], tuple[str, ...]]:
    """(values of initialisers that somebody reads; names of those that can't be used)."""
    constants: dict[str, Array] = {}
    damaged: list[str] = []
    for tensor in proto.graph.initializer:
        if tensor.name not in read:
            continue
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
            damaged.append(tensor.name)
            continue
        if tensor.data_type in FLOATS:
            value = value if tensor.data_type == TensorProto.DOUBLE else value.astype(np.float32, copy=False)
            value = _finite(where, value, problems)
        constants[tensor.name] = value
    for sparse in proto.graph.sparse_initializer:
        problems.add(f"weights {sparse.values.name}", "are sparse", "store them as a dense initialiser")
        damaged.append(sparse.values.name)
    return constants, tuple(damaged)


def _shown(dims: Sequence[int], most: int = 8) -> str:
    """A shape, cut where it is long."""
    return f"{list(dims[:most])}" if len(dims) <= most else f"{list(dims[:most])[:-1]} … ({len(dims)} dimensions)"


def _finite(where: str, value: Array, problems: Problems) -> Array:
    """The value, with zeros for what is no number, so that all else can still be looked at."""
    # one number is a limit, as of Clip and Pad, rather than a weight
    bad = np.isnan(value) if value.size == 1 else ~np.isfinite(value)
    if bad.any():
        position = tuple(int(axis) for axis in np.argwhere(bad)[0])
        what = f"{int(bad.sum())} of {value.size} are not finite, the first is {value[position]} at {list(position)}"
        problems.add(where, what, "the training diverged: export from an earlier checkpoint")
        return np.where(bad, 0, value)
    return value


def _image(
    proto: ModelProto, given: set[str], read: set[str], problems: Problems
) -> tuple[str, tuple[int, ...], tuple[int, ...] | None]:
    """Name and shape of the one input that is read and no initialiser; another shape that it might have, which is the
    same if the shape is known, and None if not even the axes are."""
    inputs = [item for item in proto.graph.input if item.name not in given]
    # labels that only the loss reads are gone with it
    inputs = [item for item in inputs if item.name in read] or inputs
    if len(inputs) != 1:
        names = ", ".join(item.name for item in inputs) or "none"
        labels = "; if the others are labels that a loss reads, without the loss" if inputs else ""
        problems.add("", f"has {len(inputs)} inputs ({names})", f"export a model with one input, the image{labels}")
    if not inputs:
        return "", UNSIZED, None
    return inputs[0].name, *_image_shape(inputs[0], problems)


def _image_shape(item: ValueInfoProto, problems: Problems) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    where = f"input {item.name}"
    if not item.type.HasField("tensor_type"):
        problems.add(where, "is no tensor", "export a model whose input is one image tensor")
        return UNSIZED, None
    kind = item.type.tensor_type
    if kind.elem_type not in FLOATS:
        cure = "export with float images; conversion from bytes is the host's work"
        problems.add(where, f"has type {type_name(kind.elem_type)}", cure)
    if not kind.HasField("shape"):
        problems.add(where, "has no shape", SHAPES)
        return UNSIZED, None
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    shown = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim]
    text = "[" + ", ".join(map(str, shown)) + "]"
    names = AXES.get(len(sizes))
    if names is None:
        problems.add(where, f"has shape {text}", SHAPES)
        return UNSIZED, None
    dynamic = [name for name, size in zip(names, sizes, strict=True) if size is None and name != "batch"]
    if dynamic:
        cure = "export with fixed " + ", ".join(dynamic) + "; only the batch may be dynamic"
        problems.add(where, f"has shape {text} with dynamic {', '.join(dynamic)}", cure)
    if any(size is not None and size < 1 for size in sizes):
        problems.add(where, f"has shape {text}", "all sizes must be positive")
        return UNSIZED, None
    if math.prod(size or 1 for size in sizes[1:]) > LARGEST_IMAGE:
        problems.add(
            where, f"has shape {text}", f"an image may have {LARGEST_IMAGE:,} elements: export for smaller images"
        )
        return UNSIZED, None
    shape, other = (
        tuple(guesses.get(name, guess) if size is None else size for name, size in zip(names, sizes, strict=True))
        for guess, guesses in (
            (GUESS, {"batch": DYNAMIC_BATCH, "channels": 3}),
            (OTHER_GUESS, {"batch": DYNAMIC_BATCH, "channels": 4}),
        )
    )
    return shape, other


def _references(
    nodes: tuple[OnnxNode, ...], known: set[str], results: Sequence[str], problems: Problems
) -> tuple[str, ...]:
    """Every tensor that is read is made by something; returns those that are not."""
    made = known | {name for node in nodes for name in node.outputs}
    lost: dict[str, None] = {}
    for node in nodes:
        for name in node.inputs:
            if name and name not in made:
                cure = "the file is damaged or was cut: export it again"
                problems.add(str(node), f"reads tensor {name}, which nothing makes", cure)
                lost[name] = None
    for name in results:
        if name and name not in made:
            cure = "the file is damaged or was cut: export it again"
            problems.add(f"output {name}", "is made by nothing", cure)
            lost[name] = None
    return tuple(lost)
