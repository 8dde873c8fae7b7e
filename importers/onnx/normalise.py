"""Clean-up on ONNX's own level: the same function, written with fewer and plainer operators.

Passes, in order: `drop_identities`, `fold_constants` (constants, shapes and the arithmetic on them), `drop_identities`
again, as branches of an If end in them, `drop_float_casts`, `drop_final_softmax`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from importers.onnx.model import LOST, Array, OnnxModel, OnnxNode
from importers.onnx.problems import Problems

log = logging.getLogger(__name__)

# larger constants enter shape inference by their shape alone
SMALL = 64
# elements of a constant that folding may make: more than the weights of any network that this tool is for
LARGEST_CONSTANT = 1 << 28
# what inference of shapes raises for damaged nodes
CANT_INFER = (shape_inference.InferenceError, RuntimeError, ValueError, TypeError)
# never folded, though all inputs are known
RANDOM = {
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
}

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# of floats they make something else: truth values, positions, sizes
ASKING = {
    "Shape", "Size", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN", "IsInf", "ArgMax", "ArgMin",
    "NonZero", "Cast", "CastLike",
}  # fmt: skip
# what idioms may become at opsets that don't have it
NEWER = {"Gelu", "HardSwish", "LayerNormalization"}


def normalise(model: OnnxModel, problems: Problems) -> OnnxModel:
    """The model after all passes; a result that does not depend on the image goes to ``problems``."""
    for clean in PASSES:
        model = clean(model)
    model = model.live()
    reached = {model.image}
    for node in model.nodes:
        if node.op == LOST or reached.intersection(node.inputs):
            reached.update(node.outputs)
    for name in model.results:
        if name not in reached:
            cure = "the graph is cut in two: export the model again"
            problems.add(f"output {name}", f"does not depend on the input {model.image}", cure)
    return model


def drop_identities(model: OnnxModel) -> OnnxModel:
    """Identity nodes vanish; their readers read what they read."""
    return without(model, {node.name for node in model.nodes if node.op == "Identity" and len(node.inputs) == 1})


def without(model: OnnxModel, names: Collection[str]) -> OnnxModel:
    """The model without these nodes, whose readers read their first inputs instead."""
    if not names:
        return model
    renamed: dict[str, str] = {}
    kept = []
    for node in model.nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        if node.name in names:
            renamed[node.outputs[0]] = inputs[0]
        else:
            kept.append(replace(node, inputs=inputs) if inputs != node.inputs else node)
    output, *heads = (renamed.get(name, name) for name in model.results)
    return replace(model, nodes=tuple(kept), output=output, heads=tuple(heads))


def drop_float_casts(model: OnnxModel) -> OnnxModel:
    """Casts of floats to floats vanish: number formats are chosen later."""
    floats = {model.image} | {name for name, value in model.constants.items() if value.dtype.kind == "f"}
    gone = set()
    for node in model.nodes:
        to_float = node.op == "Cast" and node.attributes.get("to") in FLOATS
        if to_float and node.inputs[0] in floats:
            gone.add(node.name)
        # of two inputs that are floats already, every other operator makes floats or asks something of them
        if to_float or (node.op not in ASKING and floats.intersection(node.inputs)):
            floats.update(node.outputs)
    return without(model, gone)


def fold_constants(model: OnnxModel) -> OnnxModel:
    """Nodes whose inputs are all known become constants, and so do shapes of tensors whose shape follows; of an If
    whose condition is known one branch stays.

    The batch counts as known (`image_shape`).  Repeats until nothing changes, since a reshape by a folded shape lets
    further shapes follow."""
    while True:
        folded = _fold_once(model)
        if folded.nodes == model.nodes:
            return folded
        model = folded


def _fold_once(model: OnnxModel) -> OnnxModel:
    shapes = infer_shapes(model) if any(node.op in ("Shape", "Size") for node in model.nodes) else {}
    constants = dict(model.constants)
    kept = []
    for node in model.nodes:
        values = _evaluate(node, constants, shapes, model.opset)
        if values is not None:
            constants.update((name, value) for name, value in zip(node.outputs, values, strict=False) if name)
        elif node.op == "If" and node.inputs[0] in constants and constants[node.inputs[0]].size == 1:
            kept += _branch(node, bool(constants[node.inputs[0]].reshape(())), constants) or [node]
        else:
            kept.append(node)
    return replace(model, nodes=tuple(kept), constants=constants)


def _branch(node: OnnxNode, chosen: bool, constants: dict[str, Array]) -> list[OnnxNode]:
    """The nodes of the branch of an If that is taken; its constants go to ``constants``.  None of a damaged branch."""
    graph = node.attributes["then_branch" if chosen else "else_branch"]
    if len(graph.output) != len(node.outputs):
        return []
    inside = {tensor.name for tensor in graph.initializer} | {name for item in graph.node for name in item.output}
    # names inside a branch may stand in the other one, and in other graphs, too
    local = {name: f"{node.name}/{name}" for name in inside}
    constants.update((local[tensor.name], numpy_helper.to_array(tensor)) for tensor in graph.initializer)
    nodes = []
    for index, item in enumerate(graph.node):
        bare = OnnxNode.from_proto(item, f"{node.name}/{item.name or index}")
        inputs = tuple(local.get(name, name) for name in bare.inputs)
        nodes.append(replace(bare, inputs=inputs, outputs=tuple(local.get(name, name) for name in bare.outputs)))
    for name, result in zip(node.outputs, graph.output, strict=True):
        nodes.append(OnnxNode(f"{node.name}/{name}", "Identity", (local.get(result.name, result.name),), (name,)))
    return nodes


def _evaluate(
    node: OnnxNode, constants: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], opset: int
) -> list[Array] | None:
    """Values of a node's outputs; None if they don't follow from what is known."""
    if node.op == "Shape" and node.inputs[0] in shapes:
        size = shapes[node.inputs[0]]
        chosen = size[node.attributes.get("start", 0) : node.attributes.get("end", len(size))]
        return [np.array(chosen, np.int64)]
    if node.op == "Size" and node.inputs[0] in shapes:
        return [np.array(np.prod(shapes[node.inputs[0]]), np.int64)]
    if node.op == "CastLike" and node.inputs[0] in constants and node.inputs[1] not in constants:
        # only tensors of the network are unknown, and they are floats
        return [constants[node.inputs[0]].astype(np.float32)]
    if node.op in RANDOM or "." in node.op or any(name and name not in constants for name in node.inputs):
        return None
    if any(isinstance(value, onnx.GraphProto) for value in node.attributes.values()):
        return None
    read = sorted({name for name in node.inputs if name})
    infos = [helper.make_tensor_value_info(name, _type(constants[name]), constants[name].shape) for name in read]
    results = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    graph = helper.make_graph([node.to_proto()], "fold", infos, results)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    if _would_make(proto, {name: constants[name] for name in read}) > LARGEST_CONSTANT:
        log.debug("%s would make a constant of more than %d elements", node, LARGEST_CONSTANT)
        return None
    try:
        made = ReferenceEvaluator(proto).run(None, {name: constants[name] for name in read})
    except Exception as error:
        log.debug("%s can't be folded: %s", node, error)
        return None
    values = iter(made)
    return [np.asarray(next(values)) if name else np.zeros(0) for name in node.outputs]


def _would_make(proto: onnx.ModelProto, given: Mapping[str, Array]) -> int:
    """Elements of the largest result of a model of one node, as far as ONNX's inference tells; made of nothing."""
    sized = onnx.ModelProto()
    sized.CopyFrom(proto)
    sized.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in given.items() if v.size <= SMALL)
    try:
        results = shape_inference.infer_shapes(sized, data_prop=True).graph.output
    except CANT_INFER:
        return 0
    shapes = [[dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in results]
    return max((math.prod(shape) for shape in shapes), default=0)


def _type(value: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


def infer_shapes(model: OnnxModel) -> dict[str, tuple[int, ...]]:
    """Shapes of tensors as far as ONNX's inference finds them; large weights take part by their shape only."""
    small = [numpy_helper.from_array(value, name) for name, value in model.constants.items() if value.size <= SMALL]
    inputs = [
        helper.make_tensor_value_info(name, _type(value), value.shape)
        for name, value in model.constants.items()
        if value.size > SMALL
    ]
    lost = {node.outputs[0]: node.attributes["shape"] for node in model.nodes if node.op == LOST and node.attributes}
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in {model.image: model.image_shape, **lost}.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(model.results)]
    nodes = [_stand_in(node, model.opset).to_proto() for node in model.nodes if "." not in node.op or is_ours(node)]
    graph = helper.make_graph(nodes, "shapes", inputs, outputs, small)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", model.opset)])
    try:
        inferred = shape_inference.infer_shapes(proto, data_prop=True).graph
    except CANT_INFER as error:
        log.debug("shapes of %s can't be inferred: %s", model.name, error)
        inferred = graph
    found = {model.image: tuple(model.image_shape)} | {name: tuple(shape) for name, shape in lost.items()}
    found |= {name: value.shape for name, value in model.constants.items()}
    for item in (*inferred.value_info, *inferred.output):
        kind = item.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            found[item.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return found


def is_ours(node: OnnxNode) -> bool:
    """Whether an operator is one of our own, all of which keep the shape of their first input."""
    return node.op.startswith("dagtrain.") and node.op != LOST


def _stand_in(node: OnnxNode, opset: int) -> OnnxNode:
    """For inference of shapes: what ONNX does not know at this opset, though it stands in the model, keeps shapes."""
    if not is_ours(node) and (node.op not in NEWER or onnx.defs.has(node.op, opset)):
        return node
    return OnnxNode(node.name, "Identity", node.inputs[:1], node.outputs[:1])


def drop_final_softmax(model: OnnxModel) -> OnnxModel:
    """A Softmax, LogSoftmax, or Log of a Softmax that makes a result vanishes: the loss holds it."""
    for name in model.results:
        last = model.producers.get(name)
        dropped = [] if last is None else [last]
        if last is not None and last.op == "Log" and model.uses[last.inputs[0]] == 1:
            last = model.producers.get(last.inputs[0])
            dropped += [] if last is None or last.op != "Softmax" else [last]
        if last is None or last.op not in ("Softmax", "LogSoftmax") or last.attributes.get("axis", -1) not in (-1, 1):
            continue
        note = f"{dropped[0]} at the end was dropped: the loss (softmax with cross-entropy) holds it"
        model = without(model, {node.name for node in dropped}).noted(note)
    return model


PASSES: tuple[Callable[[OnnxModel], OnnxModel], ...] = (
    drop_identities,
    fold_constants,
    drop_identities,
    drop_float_casts,
    drop_final_softmax,
)
