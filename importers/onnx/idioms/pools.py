"""Pooling in other words.

AveragePool, MaxPool of 1x1 and stride 1                            -> nothing
ReduceMean over rows of ReduceMean over columns                     -> one ReduceMean
GlobalMaxPool, ReduceMax over the map                               -> MaxPool
Transpose, GatherND, Transpose, ReduceMean: adaptive pooling        -> AveragePool, Gather, if its windows are all of
                                                                       one size; or if the map is one pixel
Transpose, GatherND, Transpose, Where, sum of Gathers, Div          -> AveragePool with padding that doesn't count,
                                                                       Gather, if only those at the edges are smaller;
                                                                       else dagtrain.AdaptiveAveragePool
MatMul of a constant and (MatMul of a map and a constant)           -> dagtrain.AdaptiveAveragePool
Pad before Conv, MaxPool, AveragePool                               -> their pads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hdl.layers.window import SharedWindow
from importers.onnx.idioms.idiom import Idiom, Rewrite, Step, in_place
from importers.onnx.idioms.pattern import Constant, Op, Scene, Tensor, first_match
from importers.onnx.model import Array, OnnxNode

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


def _axes(node: OnnxNode, scene: Scene, rank: int) -> list[int] | None:
    known = scene.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    axes: Sequence[int] = np.atleast_1d(known).tolist() if known is not None else node.attributes.get("axes", [])
    return sorted(int(axis) % rank for axis in axes) or None


def _mean_of_means(node: OnnxNode, scene: Scene) -> Rewrite | None:
    inner = scene.producer(node.inputs[0])
    shape = scene.shape(inner.inputs[0]) if inner is not None and inner.op == "ReduceMean" else None
    if inner is None or shape is None or len(shape) != 4:
        return None
    keeps, keeps_inner = (bool(item.attributes.get("keepdims", 1)) for item in (node, inner))
    first = _axes(inner, scene, 4)
    second = _axes(node, scene, 4 if keeps_inner else 3)
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
    if node.op == "ReduceMax" and _axes(node, scene, 4) != [2, 3]:
        return None
    attributes = {"kernel_shape": list(shape[2:])}
    if node.op == "GlobalMaxPool" or node.attributes.get("keepdims", 1):
        return Rewrite((in_place(node, "MaxPool", node.inputs[0], attributes=attributes),))
    pooled = f"{node.name}//pooled"
    pool = OnnxNode(f"{node.name}//pool", "MaxPool", node.inputs[:1], (pooled,), attributes)
    return Rewrite((pool, in_place(node, "Flatten", pooled)))


# ---- adaptive pooling


@dataclass(frozen=True)
class Windows:
    """Those of a pool along an axis."""

    kernel: int
    stride: int
    # padding at both ends
    before: int
    after: int
    # which of them; None: all
    places: Array | None = None


WINDOWS = Op(
    "Transpose",
    Op("GatherND", Op("Transpose", Tensor("x"), name="pixels"), Constant("indices")),
    name="windows",
)


def _adaptive(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """Rows and columns of every window stand in ``indices`` (rows, of a window, columns, of a window, 2)."""
    found = first_match(WINDOWS, node.inputs[0], scene)
    shape = scene.shape(found["x"]) if found is not None else None
    indices = scene.constant(found["indices"]) if found is not None else None
    if found is None or shape is None or indices is None or indices.ndim != 5 or indices.shape[-1] != 2:
        return None
    orders = [scene.made(found, name).attributes.get("perm") for name in ("pixels", "windows")]
    if orders != [[2, 3, 0, 1], [4, 5, 0, 1, 2, 3]] or _axes(node, scene, 6) != [3, 5]:
        return None
    if node.attributes.get("keepdims", 1) or scene.made(found, "windows").op != "Transpose":
        return None
    if shape[2:] == (1, 1) and indices.size == 2 * indices.shape[0] * indices.shape[2]:
        # windows of that one pixel: all else in a window of the result's size is padding, which does not count
        size = [indices.shape[0], indices.shape[2]]
        attributes = {"kernel_shape": size, "pads": [side - 1 for side in size] * 2}
        return Rewrite((in_place(node, "AveragePool", found["x"], attributes=attributes),))
    return _pool(node, found["x"], [_windows(windows, size) for windows, size in _sides(indices, shape)])


def _sides(indices: Array, shape: tuple[int, ...]) -> list[tuple[Array, int]]:
    """(windows (number, of pixels), size of the map) of both axes, of the indices that GatherND reads of ``shape``."""
    return [(indices[:, :, 0, 0, 0], shape[2]), (indices[0, 0, :, :, 1], shape[3])]


def _pool(node: OnnxNode, x: str, axes: Sequence[Windows | None]) -> Rewrite | None:
    """The mean of every window of both axes, if there is a pool that has them."""
    known = [axis for axis in axes if axis is not None]
    if len(known) < len(axes):
        return None
    pads = [axis.before for axis in known] + [axis.after for axis in known]
    attributes: dict[str, list[int]] = {
        "kernel_shape": [axis.kernel for axis in known],
        "strides": [axis.stride for axis in known],
        **({"pads": pads} if any(pads) else {}),
    }
    # of windows that are not all one distance apart: those of a pool of every one
    picks = [(number, axis.places) for number, axis in enumerate(known, 2) if axis.places is not None]
    names = [f"{node.name}//{number}" for number, _ in picks]
    nodes = [OnnxNode(f"{node.name}//pool", "AveragePool", (x,), (f"{node.name}//pool",), attributes)]
    for (axis, _), name in zip(picks, names, strict=True):
        nodes.append(OnnxNode(name, "Gather", (nodes[-1].outputs[0], f"{name} places"), (name,), {"axis": axis}))
    nodes[-1] = replace(nodes[-1], name=node.name, outputs=node.outputs[:1])
    return Rewrite(tuple(nodes), {f"{name} places": chosen for name, (_, chosen) in zip(names, picks, strict=True)})


def _windows(windows: Array, size: int, there: Array | None = None) -> Windows | None:
    """The windows (number, of pixels) over ``size``, of whose pixels only those are read that are ``there``."""
    windows = windows % size
    lengths = np.full(len(windows), windows.shape[1]) if there is None else there.sum(axis=1)
    starts, kernel = windows[:, 0], int(lengths.max())
    steps = np.arange(windows.shape[1])
    read = steps < lengths[:, None]
    if there is not None and not np.array_equal(there, read):
        return None
    if (windows != starts[:, None] + steps)[read].any() or (np.diff(starts) < 1).any():
        return None
    # a smaller window at an edge is a whole one of which some is padding, which does not count
    missing = kernel - lengths
    before = int(missing[0]) if starts[0] == 0 else 0
    after = int(missing[-1]) if starts[-1] + lengths[-1] == size and len(starts) > 1 else 0
    if missing.sum() != before + after:
        return None
    # from the beginning of the padding
    starts = starts + before
    starts[0] -= before
    stride = int(starts[1] - starts[0]) if len(starts) > 1 else size
    fitting = (size + before + after - kernel) // stride + 1
    if np.array_equal(starts, np.arange(len(starts)) * stride) and fitting == len(starts):
        return Windows(kernel, stride, before, after)
    return Windows(kernel, 1, before, after, starts)


def _unlike(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """Windows of fewer pixels than others are filled up, and what fills them becomes 0 before each window is summed up
    pixel by pixel, and divided by how many it has."""
    masked = _masked(node, scene)
    if masked is None:
        return None
    tensor, counts, there = masked
    found = first_match(WINDOWS, tensor, scene)
    shape = scene.shape(found["x"]) if found is not None else None
    indices = scene.constant(found["indices"]) if found is not None else None
    if found is None or shape is None or indices is None or indices.shape != (*there.shape, 2):
        return None
    orders = [scene.made(found, name).attributes.get("perm") for name in ("pixels", "windows")]
    rows, columns = np.asarray(there.any(axis=(2, 3))), np.asarray(there.any(axis=(0, 1)))
    if orders != [[2, 3, 0, 1], [4, 5, 0, 1, 2, 3]] or (there != rows[:, :, None, None] & columns).any():
        return None
    pixels = rows.sum(axis=1)[:, None] * columns.sum(axis=1)
    if counts.ndim > 2 or not np.allclose(np.broadcast_to(counts, pixels.shape), pixels, rtol=1e-6):
        return None
    sides = [(*side, some) for side, some in zip(_sides(indices, shape), (rows, columns), strict=True)]
    pool = _pool(node, found["x"], [_windows(*side) for side in sides])
    return pool or _shared(node, found["x"], sides)


def _shared(node: OnnxNode, x: str, sides: Sequence[tuple[Array, int, Array]]) -> Rewrite | None:
    """Windows (number, of pixels) over a size, of whose pixels those are read that are there, of both axes, if they are
    those that overlap equal shares of the map."""
    for windows, size, there in sides:
        number = np.arange(len(windows))
        starts, ends = number * size // len(windows), -(-(number + 1) * size // len(windows))
        pixels = starts[:, None] + np.arange(windows.shape[1])
        read = pixels < ends[:, None]
        if ends.max() > size or not np.array_equal(there, read) or (windows % size != pixels)[read].any():
            return None
        if (there.sum(axis=1) != ends - starts).any():
            return None
    attributes = {"size": [len(windows) for windows, _, _ in sides]}
    return Rewrite((in_place(node, "dagtrain.AdaptiveAveragePool", x, attributes=attributes),))


def _by_matrices(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """A matrix times (a map times another one), which give the means over equal shares of rows and columns: what we
    write of it ourselves."""
    rows, inner = scene.constant(node.inputs[0]), scene.producer(node.inputs[1])
    columns = scene.constant(inner.inputs[1]) if inner is not None and inner.op == "MatMul" else None
    shape = scene.shape(inner.inputs[0]) if inner is not None else None
    if rows is None or inner is None or columns is None or shape is None or len(shape) != 4:
        return None
    if rows.ndim != 2 or columns.ndim != 2 or (rows.shape[1], columns.shape[0]) != shape[2:]:
        return None
    size = len(rows), columns.shape[1]
    window = SharedWindow.over(*shape[2:], size)
    if not all(np.allclose(given, window.means(axis), atol=1e-6) for axis, given in enumerate((rows, columns.T))):
        return None
    attributes = {"size": list(size)}
    return Rewrite((in_place(node, "dagtrain.AdaptiveAveragePool", inner.inputs[0], attributes=attributes),))


def _masked(node: OnnxNode, scene: Scene) -> tuple[str, Array, Array] | None:
    """(windows, what their sums are divided by, which pixels of them are summed up: (rows, of a window, columns, of a
    window)) of adaptive pooling whose last node this is."""
    known = [scene.constant(name) for name in node.inputs]
    if len(known) != 2 or known[0] is not None or known[1] is None or known[1].dtype.kind != "f":
        return None
    taps, tensor = _summed(node.inputs[0], scene)
    shape = scene.shape(tensor)
    if shape is None or len(shape) != 6 or sorted(taps) != list(np.ndindex(shape[3], shape[5])):
        return None
    there = np.ones(shape[2:], bool)
    while (where := scene.producer(tensor)) is not None and where.op == "Where":
        mask, zero = scene.constant(where.inputs[0]), scene.number(where.inputs[1])
        if mask is None or zero != 0 or mask.ndim > 4:
            return None
        there &= ~np.broadcast_to(mask, there.shape)
        tensor = where.inputs[2]
    return tensor, known[1] if node.op == "Div" else 1 / known[1], there


def _summed(tensor: str, scene: Scene) -> tuple[list[tuple[int, int]], str]:
    """(the pixels that are added up, by row and column in a window; of which tensor); none if it is no such sum."""
    taps, sources, left = [], set(), [tensor]
    while left:
        producer = scene.producer(left.pop())
        if producer is not None and producer.op == "Add":
            left += producer.inputs
            continue
        places = []
        for axis in (4, 3):
            place = scene.number(producer.inputs[1]) if producer is not None and producer.op == "Gather" else None
            if producer is None or place is None or producer.attributes.get("axis") != axis:
                return [], ""
            places.append(int(place))
            sources.add(producer.inputs[0]) if axis == 3 else None
            producer = scene.producer(producer.inputs[0])
        taps.append((places[1], places[0]))
    return (taps, sources.pop()) if len(sources) == 1 else ([], "")


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


def _why(_node: OnnxNode, _scene: Scene) -> str:
    return "its windows are not all of one size, as they are where the map's size is a multiple"


TURN = Step(("Transpose",), "a Transpose")
AVERAGE = Step(
    ("ReduceMean",),
    "a mean over windows that overlap equal shares of the map",
)
POOLS = (
    Idiom("a pool of one pixel", ("AveragePool", "MaxPool"), _single),
    Idiom("mean over the map", ("ReduceMean",), _mean_of_means),
    Idiom("largest of the map", ("GlobalMaxPool", "ReduceMax"), _global_max),
    Idiom("adaptive pooling", ("ReduceMean",), _adaptive, ("GatherND",), (TURN, AVERAGE), _why),
    Idiom("adaptive pooling", ("Div", "Mul"), _unlike),
    Idiom("adaptive pooling", ("MatMul",), _by_matrices),
    Idiom("padding", ("Conv", "MaxPool", "AveragePool"), _padded),
)
