"""Where normalisation stands: put back, folded away, or left, on ONNX's own level.

* `NormMode.ONLINE`: wherever the file normalises, or did before an exporter folded normalisation into convolutions,
  which is decided for each convolution (`_decide`).  One that was folded gets a BatchNormalization after it with
  scale 1 and its bias as shift (exporters drop biases of 0), mean 0 and variance 1, so at first the network computes
  what the file does, with the folded scale in the weights; from there on it adapts.  Statistics into which no data went
  (`is_fresh`) are left to calibration.  A bias directly before a BatchNormalization vanishes: the mean that is
  subtracted holds it.
* `NormMode.NONE`: BatchNormalization becomes part of the convolution before it, by its running statistics, which leaves
  a bias; where none is before it, a depthwise 1x1 convolution.
* `NormMode.AS_IS`: normalisation and biases stay where the file has them.
* `NormMode.FROZEN`: every BatchNormalization becomes a `dagtrain.ChannelAffine`, by its running statistics, its scale
  and its shift, which training leaves alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from importers.onnx.model import Array, OnnxModel, OnnxNode
from importers.onnx.names import safe

NORM = "BatchNormalization"
OTHER_NORMS = {"dagtrain.LayerNorm", "LayerNormalization", "InstanceNormalization", "GroupNormalization", "LRN"}
# what may stand between a convolution and its normalisation, of which no exporter folds the latter then
STRAIGHT = {
    "Add", "Sum", "Concat", "Slice", "Split", "Pad", "MaxPool", "AveragePool", "Dropout", "dagtrain.ChannelShuffle",
    "dagtrain.StochasticDepth",
}  # fmt: skip
# x, scale and offset of each channel, which nothing trains
AFFINE = "dagtrain.ChannelAffine"


class NormMode(Enum):
    """What `--norm` says."""

    ONLINE = "online"
    NONE = "none"
    AS_IS = "as-is"
    FROZEN = "frozen"


class Fate(Enum):
    """What becomes of the normalisation of a convolution."""

    KEPT = "kept"
    PUT_BACK = "put back"
    LEFT = "left"
    FOLDED = "folded"
    FROZEN = "frozen"


@dataclass(frozen=True)
class NormChoice:
    """What becomes of normalisation at one node, and why."""

    # a convolution, or a BatchNormalization that no convolution has, as its layer is named
    node: str
    fate: Fate
    why: str


def place_norm(model: OnnxModel, mode: NormMode) -> tuple[OnnxModel, tuple[NormChoice, ...]]:
    """(the model with BatchNormalization exactly where online normalisation is wanted; what was decided)."""
    if mode is NormMode.AS_IS:
        return model, tuple(NormChoice(safe(node.label), Fate.KEPT, "as the file has it") for node in _norms(model))
    if mode is NormMode.NONE:
        return fold_norm(model)
    if mode is NormMode.FROZEN:
        return freeze_norm(model)
    choices = _decide(model)
    model = drop_lost_biases(
        restore_norm(model, {name for name, choice in choices.items() if choice[0] is Fate.PUT_BACK})
    )
    by_name = {node.name: node for node in model.nodes}
    return model, tuple(NormChoice(safe(by_name[name].label), *choice) for name, choice in choices.items())


def _norms(model: OnnxModel) -> list[OnnxNode]:
    return [node for node in model.nodes if node.op == NORM]


def _decide(model: OnnxModel) -> dict[str, tuple[Fate, str]]:
    """Name -> (fate, why) of every convolution, and of every BatchNormalization that no convolution has.

    Exporters fold all that they can, so a file in which a BatchNormalization follows a convolution was not folded."""
    norms, others = _norms(model), sorted({node.op for node in model.nodes} & OTHER_NORMS)
    final, pooled = _before_result(model), _pooled(model)
    followed = {node.inputs[0] for node in norms if model.uses[node.inputs[0]] == 1}
    convs = [node for node in model.nodes if node.op == "Conv" and _is_sound(node, model.constants)]
    is_apart = any(node.outputs[0] in followed for node in convs)
    found: dict[str, tuple[Fate, str]] = {}
    for node in convs:
        if node.outputs[0] in followed:
            choice = (Fate.KEPT, "a BatchNormalization follows it")
        elif node.name in final:
            choice = (Fate.LEFT, "it makes the class scores")
        elif node.inputs[0] in pooled:
            choice = (Fate.LEFT, "it works on averages over the map, as in squeeze-and-excitation")
        elif not norms and others:
            choice = (Fate.LEFT, f"the file normalises by {others[0].removeprefix('dagtrain.')}")
        elif not norms:
            choice = (Fate.PUT_BACK, "the file has no BatchNormalization: it was folded")
        elif is_apart:
            choice = (Fate.LEFT, "the file keeps BatchNormalization apart and has none here")
        elif any(reader.op == NORM for reader in model.readers(node.outputs[0])):
            choice = (Fate.LEFT, "a BatchNormalization reads it beside others")
        elif not _has_bias(node) and _meets_norm(node.outputs[0], model):
            choice = (Fate.LEFT, "it has no bias, and a BatchNormalization comes before the next weights")
        elif _meets_norm(node.outputs[0], model, STRAIGHT):
            choice = (Fate.LEFT, "a BatchNormalization comes before any activation")
        else:
            choice = (Fate.PUT_BACK, "no BatchNormalization in the file follows a convolution: they were folded")
        found[node.name] = choice
    made = {node.outputs[0] for node in convs} & followed
    for node in norms:
        if node.inputs[0] not in made:
            found[node.name] = (Fate.KEPT, "it normalises what no single convolution makes")
    return found


def _is_sound(node: OnnxNode, constants: Mapping[str, Array]) -> bool:
    """Whether weights are known as a convolution's, and the bias, if there is one, has a number for each filter."""
    known = _is_known(node, constants) and constants[node.inputs[1]].ndim == 4
    return known and (not _has_bias(node) or constants[node.inputs[2]].size == constants[node.inputs[1]].shape[0])


def _is_known(node: OnnxNode, constants: Mapping[str, Array]) -> bool:
    return all(name in constants for name in node.inputs[1:] if name)


def _pooled(model: OnnxModel) -> set[str]:
    """Tensors that follow from averages over the map alone."""
    found: set[str] = set()
    for node in model.nodes:
        computed = [name for name in node.inputs if name and name not in model.constants]
        if node.op in ("GlobalAveragePool", "ReduceMean") or (computed and all(name in found for name in computed)):
            found.update(node.outputs)
    return found


def _meets_norm(tensor: str, model: OnnxModel, through: Collection[str] | None = None) -> bool:
    """Whether a BatchNormalization comes before the next weights and the result, whatever way a tensor goes; with
    ``through``, before all other operators."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        name = waiting.pop()
        if name in model.results:
            return False
        for node in model.readers(name):
            other = through is not None and node.op not in (NORM, *through)
            if other or node.op in ("Conv", "Gemm", "MatMul"):
                return False
            if node.op != NORM and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                waiting.append(node.outputs[0])
    return True


def restore_norm(model: OnnxModel, names: Collection[str]) -> OnnxModel:
    """Puts a BatchNormalization after each of these convolutions."""
    if not names:
        return model
    constants = dict(model.constants)
    nodes: list[OnnxNode] = []
    for node in model.nodes:
        nodes += _normalised(node, constants) if node.name in names else [node]
    return replace(model, nodes=tuple(nodes), constants=constants)


def _normalised(node: OnnxNode, constants: dict[str, Array]) -> list[OnnxNode]:
    """The convolution without its bias, and a normalisation that holds it; new vectors go to ``constants``."""
    filters = constants[node.inputs[1]].shape[0]
    raw = f"{node.outputs[0]}__unnormalised"
    values = {"scale": 1, "shift": 0, "mean": 0, "variance": 1}
    vectors = {what: f"{node.name}__{what}" for what in values}
    constants.update((vectors[what], np.full(filters, value, np.float32)) for what, value in values.items())
    if _has_bias(node):
        vectors["shift"] = node.inputs[2]
    module = f"{node.module}_norm" if node.module else ""
    norm = OnnxNode(f"{node.name}_norm", NORM, (raw, *vectors.values()), node.outputs[:1], module=module)
    return [replace(node, inputs=node.inputs[:2], outputs=(raw,)), norm]


def _has_bias(node: OnnxNode) -> bool:
    return len(node.inputs) > 2 and node.inputs[2] != ""


def _before_result(model: OnnxModel) -> set[str]:
    """Convolutions between which and a result nothing else is trained: they make the class scores."""
    found: set[str] = set()
    waiting = list(model.results)
    while waiting:
        node = model.producers.get(waiting.pop())
        if node is None or node.op in ("Gemm", "MatMul"):
            continue
        if node.op == "Conv":
            found.add(node.name)
        else:
            waiting.extend(name for name in node.inputs if name)
    return found


def is_fresh(node: OnnxNode, constants: Mapping[str, Array]) -> bool:
    """Whether a BatchNormalization with known inputs is as it is made: no data has gone into its statistics."""
    shift, mean, variance = (constants[name] for name in node.inputs[2:5])
    return not shift.any() and not mean.any() and bool((variance == 1).all())


def drop_lost_biases(model: OnnxModel) -> OnnxModel:
    """Biases of convolutions that only a BatchNormalization reads vanish, also from its mean."""
    nodes = {node.name: node for node in model.nodes}
    constants = dict(model.constants)
    lost = 0
    for node in model.nodes:
        readers = model.readers(node.outputs[0])
        if node.op != "Conv" or not _has_bias(node) or [reader.op for reader in readers] != [NORM]:
            continue
        lost += 1
        nodes[node.name] = replace(node, inputs=node.inputs[:2])
        norm = readers[0]
        if {node.inputs[2], *norm.inputs[1:5]} <= constants.keys() and not is_fresh(norm, constants):
            mean = f"{norm.name}__mean"
            constants[mean] = constants[norm.inputs[3]].astype(np.float64) - constants[node.inputs[2]]
            nodes[norm.name] = replace(norm, inputs=(*norm.inputs[:3], mean, *norm.inputs[4:]))
    if not lost:
        return model
    what = "1 bias directly before a BatchNormalization was dropped: subtracting the mean cancels it"
    many = f"{lost} biases directly before a BatchNormalization were dropped: subtracting the mean cancels them"
    note = what if lost == 1 else many
    return replace(model, nodes=tuple(nodes.values()), constants=constants).noted(note)


def fold_norm(model: OnnxModel) -> tuple[OnnxModel, tuple[NormChoice, ...]]:
    """(the model in which every BatchNormalization, by its running statistics, is weights and bias of the convolution
    before it; what was folded)."""
    constants = dict(model.constants)
    nodes: dict[str, OnnxNode] = {node.name: node for node in model.nodes}
    choices: list[NormChoice] = []
    for node in model.nodes:
        if node.op != NORM or any(name not in constants for name in node.inputs[1:]):
            continue
        scale, shift = _affine(node, constants)
        before = model.producers.get(node.inputs[0])
        bias = f"{node.name}__bias"
        weight = f"{node.name}__weight"
        if before is None or not _can_take(before, model, constants, scale.size):
            constants[weight], constants[bias] = scale.reshape(-1, 1, 1, 1), shift
            inputs = (node.inputs[0], weight, bias)
            group = {"group": int(scale.size)}
            nodes[node.name] = replace(node, op="Conv", inputs=inputs, outputs=node.outputs[:1], attributes=group)
            choices.append(
                NormChoice(safe(node.label), Fate.FOLDED, "no single convolution makes what it normalises: it is one")
            )
            continue
        old = constants[before.inputs[2]].astype(np.float64) if _has_bias(before) else 0.0
        attributes = dict(before.attributes)
        if before.op == "Gemm":
            old = np.reshape(old * attributes.pop("beta", 1.0), -1)
        by_filter = [1] * constants[before.inputs[1]].ndim
        by_filter[_filter_axis(before)] = -1
        constants[weight] = constants[before.inputs[1]].astype(np.float64) * scale.reshape(by_filter)
        constants[bias] = scale * old + shift
        inputs = (before.inputs[0], weight, bias)
        nodes[before.name] = replace(before, inputs=inputs, outputs=node.outputs[:1], attributes=attributes)
        del nodes[node.name]
        choices.append(NormChoice(safe(before.label), Fate.FOLDED, "by its running statistics"))
    return replace(model, nodes=tuple(nodes.values()), constants=constants), tuple(choices)


def freeze_norm(model: OnnxModel) -> tuple[OnnxModel, tuple[NormChoice, ...]]:
    """(the model in which every BatchNormalization, by its running statistics, is two constants a channel; which)."""
    constants = dict(model.constants)
    nodes: list[OnnxNode] = []
    choices: list[NormChoice] = []
    for node in model.nodes:
        if node.op == NORM and _is_known(node, constants):
            scale, offset = f"{node.name}__scale", f"{node.name}__offset"
            constants[scale], constants[offset] = _affine(node, constants)
            inputs = (node.inputs[0], scale, offset)
            choices.append(NormChoice(safe(node.label), Fate.FROZEN, "by its running statistics"))
            node = replace(node, op=AFFINE, inputs=inputs, outputs=node.outputs[:1], attributes={})
        nodes.append(node)
    is_one = len(choices) == 1
    many = f"{len(choices)} BatchNormalization nodes stay as they are"
    stay = "1 BatchNormalization node stays as it is" if is_one else many
    note = f"{stay}, by {'its' if is_one else 'their'} running statistics; nothing trains {'it' if is_one else 'them'}"
    if not choices:
        note = "the file has no BatchNormalization that could stay as it is; exporters fold them in evaluation mode"
    return replace(model, nodes=tuple(nodes), constants=constants).noted(note), tuple(choices)


def _can_take(before: OnnxNode, model: OnnxModel, constants: Mapping[str, Array], channels: int) -> bool:
    """Whether the node before is a convolution or a Gemm with known weights that nobody else reads."""
    axes = {"Conv": 4, "Gemm": 2}.get(before.op)
    if axes is None or not _is_known(before, constants) or model.uses[before.outputs[0]] != 1:
        return False
    weight = constants[before.inputs[1]]
    bias = constants[before.inputs[2]].size if _has_bias(before) else channels
    return weight.ndim == axes and weight.shape[_filter_axis(before)] == channels and bias in (1, channels)


def _filter_axis(node: OnnxNode) -> int:
    """Which axis of its weights goes over its filters, or outputs."""
    return 1 if node.op == "Gemm" and not node.attributes.get("transB", 0) else 0


def _affine(node: OnnxNode, constants: Mapping[str, Array]) -> tuple[Array, Array]:
    """(scale, shift) of the normalisation in float64."""
    gamma, beta, mean, variance = (constants[name].astype(np.float64) for name in node.inputs[1:5])
    scale = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return scale, beta - mean * scale
