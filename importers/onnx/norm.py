"""Where normalisation stands: put back, folded away, or left, on ONNX's own level.

* `NormMode.ONLINE`: wherever the file normalises, or did before an exporter folded normalisation into convolutions.
  A file without any BatchNormalization is taken for folded: each convolution gets a BatchNormalization after it with
  scale 1 and its bias as shift (exporters drop biases of 0), except the one that makes the class scores.  Online
  statistics begin at mean 0 and variance 1, so at first the network computes what the file does, with the folded
  scale in the weights; from there on it adapts.  A bias directly before a BatchNormalization vanishes: the mean that is
  subtracted holds it.
* `NormMode.NONE`: BatchNormalization becomes part of the convolution before it, by its running statistics, which leaves
  a bias; where none is before it, a depthwise 1x1 convolution.
* `NormMode.AS_IS`: normalisation and biases stay where the file has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

import numpy as np

from importers.onnx.model import Array, OnnxModel, OnnxNode

NORM = "BatchNormalization"


class NormMode(Enum):
    """What `--norm` says."""

    ONLINE = "online"
    NONE = "none"
    AS_IS = "as-is"


def place_norm(model: OnnxModel, mode: NormMode) -> OnnxModel:
    """The model with BatchNormalization exactly where online normalisation is wanted."""
    if mode is NormMode.AS_IS:
        return model
    if mode is NormMode.NONE:
        return fold_norm(model)
    if any(node.op == NORM for node in model.nodes):
        return drop_lost_biases(model)
    return restore_norm(model)


def restore_norm(model: OnnxModel) -> OnnxModel:
    """Puts a BatchNormalization after every convolution but the one that makes the class scores."""
    final = _before_result(model)
    constants = dict(model.constants)
    nodes: list[OnnxNode] = []
    for node in model.nodes:
        if node.op == "Conv" and node.name not in final and all(name in constants for name in node.inputs[1:] if name):
            nodes += _normalised(node, constants)
        else:
            nodes.append(node)
    count = len(nodes) - len(model.nodes)
    if not count:
        return model
    note = f"normalisation was put back after {count} convolutions, as the file has none; `--norm as-is` leaves them"
    return replace(model, nodes=tuple(nodes), constants=constants, notes=(*model.notes, note))


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
    """Convolutions between which and the result nothing else is trained: they make the class scores."""
    found: set[str] = set()
    waiting = [model.output]
    while waiting:
        node = model.producers.get(waiting.pop())
        if node is None or node.op in ("Gemm", "MatMul"):
            continue
        if node.op == "Conv":
            found.add(node.name)
        else:
            waiting.extend(name for name in node.inputs if name)
    return found


def drop_lost_biases(model: OnnxModel) -> OnnxModel:
    """Biases of convolutions that only a BatchNormalization reads vanish."""
    nodes = []
    lost = 0
    for node in model.nodes:
        readers = model.readers(node.outputs[0])
        if node.op == "Conv" and _has_bias(node) and [reader.op for reader in readers] == [NORM]:
            lost += 1
            node = replace(node, inputs=node.inputs[:2])
        nodes.append(node)
    if not lost:
        return model
    note = f"{lost} biases directly before a BatchNormalization were dropped: subtracting the mean cancels them"
    return replace(model, nodes=tuple(nodes), notes=(*model.notes, note))


def fold_norm(model: OnnxModel) -> OnnxModel:
    """Every BatchNormalization, by its running statistics, becomes weights and bias of the convolution before it."""
    constants = dict(model.constants)
    nodes: dict[str, OnnxNode] = {node.name: node for node in model.nodes}
    folded = 0
    for node in model.nodes:
        if node.op != NORM or any(name not in constants for name in node.inputs[1:]):
            continue
        folded += 1
        scale, shift = _affine(node, constants)
        before = model.producers.get(node.inputs[0])
        bias = f"{node.name}__bias"
        weight = f"{node.name}__weight"
        if before is None or not _can_take(before, model, constants, scale.size):
            constants[weight], constants[bias] = scale.reshape(-1, 1, 1, 1), shift
            inputs = (node.inputs[0], weight, bias)
            group = {"group": int(scale.size)}
            nodes[node.name] = replace(node, op="Conv", inputs=inputs, outputs=node.outputs[:1], attributes=group)
            continue
        old = constants[before.inputs[2]].astype(np.float64) if _has_bias(before) else 0.0
        constants[weight] = constants[before.inputs[1]].astype(np.float64) * scale.reshape(-1, 1, 1, 1)
        constants[bias] = scale * old + shift
        nodes[before.name] = replace(before, inputs=(before.inputs[0], weight, bias), outputs=node.outputs[:1])
        del nodes[node.name]
    if not folded:
        return model
    note = f"{folded} BatchNormalization nodes were folded into weights, by their running statistics"
    return replace(model, nodes=tuple(nodes.values()), constants=constants, notes=(*model.notes, note))


def _can_take(before: OnnxNode, model: OnnxModel, constants: Mapping[str, Array], channels: int) -> bool:
    """Whether the node before is a convolution with known weights that nobody else reads."""
    known = all(name in constants for name in before.inputs[1:] if name)
    if before.op != "Conv" or not known or model.uses[before.outputs[0]] != 1:
        return False
    return constants[before.inputs[1]].ndim == 4 and constants[before.inputs[1]].shape[0] == channels


def _affine(node: OnnxNode, constants: Mapping[str, Array]) -> tuple[Array, Array]:
    """(scale, shift) of the normalisation in float64."""
    gamma, beta, mean, variance = (constants[name].astype(np.float64) for name in node.inputs[1:5])
    scale = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return scale, beta - mean * scale
