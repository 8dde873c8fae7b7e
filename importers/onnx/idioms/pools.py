"""Pooling in other words.

AveragePool, MaxPool of 1x1 and stride 1                            -> nothing
ReduceMean over rows of ReduceMean over columns                     -> one ReduceMean
GlobalMaxPool, ReduceMax over the map                               -> MaxPool
Adaptive pooling                                                    -> see `adaptive`
Pad before Conv, MaxPool, AveragePool                               -> their pads
"""

from __future__ import annotations

import numpy as np

from importers.onnx.idioms.adaptive import ADAPTIVE, mean_axes
from importers.onnx.idioms.idiom import Idiom, Rewrite, in_place
from importers.onnx.idioms.pattern import Scene
from importers.onnx.model import OnnxNode

# what makes no number below 0
POSITIVE = {"Relu", "Sigmoid", "HardSigmoid", "Softplus"}
# they keep what is not below 0 so
KEEPING = {"MaxPool", "AveragePool", "GlobalAveragePool", "Dropout", "Reshape", "Transpose", "Slice"}


def _single(node: OnnxNode, _scene: Scene) -> Rewrite | None:
    given = node.attributes
    size, strides, pads = given.get("kernel_shape", []), given.get("strides", []), given.get("pads", [])
    if set(size) != {1} or set(strides) - {1} or any(pads):
        return None
    return Rewrite((in_place(node, "Identity", node.inputs[0]),))


# ---- means and maxima over the map


def _mean_of_means(node: OnnxNode, scene: Scene) -> Rewrite | None:
    inner = scene.producer(node.inputs[0])
    shape = scene.shape(inner.inputs[0]) if inner is not None and inner.op == "ReduceMean" else None
    if inner is None or shape is None or len(shape) != 4:
        return None
    keeps, keeps_inner = (bool(item.attributes.get("keepdims", 1)) for item in (node, inner))
    first = mean_axes(inner, scene, 4)
    second = mean_axes(node, scene, 4 if keeps_inner else 3)
    # without its axis, the later axes of a tensor have moved up
    both = {(2, 2): keeps_inner is False, (3, 2): True, (2, 3): keeps_inner}
    if first is None or second is None or len(first) != 1 or len(second) != 1 or keeps != keeps_inner:
        return None
    if not both.get((first[0], second[0]), False):
        return None
    if scene.model.opset < 18:
        attributes = {"axes": [2, 3], "keepdims": int(keeps)}
        return Rewrite((in_place(node, "ReduceMean", inner.inputs[0], attributes=attributes),))
    name = f"{node.name}//axes"
    made = in_place(node, "ReduceMean", inner.inputs[0], name, attributes={"keepdims": int(keeps)})
    return Rewrite((made,), {name: np.array([2, 3])})


def _global_max(node: OnnxNode, scene: Scene) -> Rewrite | None:
    shape = scene.shape(node.inputs[0])
    if shape is None or len(shape) != 4:
        return None
    if node.op == "ReduceMax" and mean_axes(node, scene, 4) != [2, 3]:
        return None
    attributes = {"kernel_shape": list(shape[2:])}
    if node.op == "GlobalMaxPool" or node.attributes.get("keepdims", 1):
        return Rewrite((in_place(node, "MaxPool", node.inputs[0], attributes=attributes),))
    pooled = f"{node.name}//pooled"
    pool = OnnxNode(f"{node.name}//pool", "MaxPool", node.inputs[:1], (pooled,), attributes)
    return Rewrite((pool, in_place(node, "Flatten", pooled)))


# ---- padding


def _padded(node: OnnxNode, scene: Scene) -> Rewrite | None:
    pad = scene.producer(node.inputs[0])
    window = (
        pad is not None and pad.op == "Pad" and node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID", "")
    )
    if pad is None or not window or pad.attributes.get("mode", "constant") != "constant":
        return None
    pads = _pads(pad, scene)
    if pads is None or len(pads) != 8 or min(pads) < 0 or any(pads[axis] for axis in (0, 1, 4, 5)):
        return None
    own = list(node.attributes.get("pads", [0] * 4))
    if len(own) != 4 or not _same_as_padding(node, pad, own, scene):
        return None
    together = [one + other for one, other in zip(own, (*pads[2:4], *pads[6:8]), strict=True)]
    attributes = {name: value for name, value in node.attributes.items() if name != "auto_pad"}
    attributes["pads"] = together
    if node.op == "AveragePool":
        attributes["count_include_pad"] = 1
    made = in_place(node, node.op, pad.inputs[0], *node.inputs[1:], attributes=attributes, module=node.module)
    return Rewrite((made,))


def _pads(pad: OnnxNode, scene: Scene) -> list[int] | None:
    """At the start of every axis, then at the end of every axis; only those of ``axes`` are given since opset 18."""
    if len(pad.inputs) < 2:
        return list(pad.attributes.get("pads", [])) or None
    given = scene.constant(pad.inputs[1])
    if given is None or len(pad.inputs) < 4 or not pad.inputs[3]:
        return None if given is None else [int(size) for size in given]
    axes = scene.constant(pad.inputs[3])
    if axes is None or given.size != 2 * axes.size:
        return None
    pads = np.zeros((2, 4), int)
    pads[:, axes % 4] = given.reshape(2, -1)
    return [int(size) for size in pads.reshape(-1)]


def _same_as_padding(node: OnnxNode, pad: OnnxNode, own: list[int], scene: Scene) -> bool:
    """Whether what Pad puts around the map is what the node's own padding would put there."""
    value = pad.attributes.get("value", 0.0)
    if len(pad.inputs) > 2 and pad.inputs[2]:
        known = scene.number(pad.inputs[2])
        if known is None:
            return False
        value = known
    if node.op == "MaxPool":
        # its padding never wins; zeros never win either where nothing is below 0
        return value <= -1e30 or (value == 0 and _positive(pad.inputs[0], scene))
    if node.op == "AveragePool" and any(own) and not node.attributes.get("count_include_pad", 0):
        return False
    # rounded up, windows reach beyond the padding and count less there
    return value == 0 and not (node.op == "AveragePool" and node.attributes.get("ceil_mode", 0))


def _positive(tensor: str, scene: Scene) -> bool:
    node = scene.producer(tensor)
    while node is not None and node.op in KEEPING:
        node = scene.producer(node.inputs[0])
    if node is None:
        return False
    low = node.attributes.get("min", -1.0)
    if node.op == "Clip" and len(node.inputs) > 1 and node.inputs[1]:
        low = scene.number(node.inputs[1])
    return node.op in POSITIVE or (node.op == "Clip" and low is not None and low >= 0)


POOLS = (
    Idiom("a pool of one pixel", ("AveragePool", "MaxPool"), _single),
    Idiom("mean over the map", ("ReduceMean",), _mean_of_means),
    Idiom("largest of the map", ("GlobalMaxPool", "ReduceMax"), _global_max),
    *ADAPTIVE,
    Idiom("padding", ("Conv", "MaxPool", "AveragePool"), _padded),
)
