"""Adaptive pooling spelt out: means of windows that overlap equal shares of a map.

Transpose, GatherND, Transpose, ReduceMean                          -> AveragePool, Gather, if its windows are all of
                                                                       one size; or if the map is one pixel
Transpose, GatherND, Transpose, Where, sum of Gathers, Div          -> AveragePool with padding that doesn't count,
                                                                       Gather, if only those at the edges are smaller;
                                                                       else dagtrain.AdaptiveAveragePool
Concat of Concats of means of Slices                                -> the same
MatMul of a constant and (MatMul of a map and a constant)           -> dagtrain.AdaptiveAveragePool
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hdl.layers.window import SharedWindow
from importers.onnx.idioms.idiom import Idiom, Rewrite, Step, in_place
from importers.onnx.idioms.pattern import Constant, Op, Scene, Tensor, first_match
from importers.onnx.model import Array, OnnxNode


def mean_axes(node: OnnxNode, scene: Scene, rank: int) -> list[int] | None:
    """The axes that a ReduceMean or ReduceMax of so many goes over; None: they are not known, or all."""
    known = scene.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    axes: Sequence[int] = np.atleast_1d(known).tolist() if known is not None else node.attributes.get("axes", [])
    return sorted(int(axis) % rank for axis in axes) or None


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
    if orders != [[2, 3, 0, 1], [4, 5, 0, 1, 2, 3]] or mean_axes(node, scene, 6) != [3, 5]:
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
            if axis == 3:
                sources.add(producer.inputs[0])
            producer = scene.producer(producer.inputs[0])
        taps.append((places[1], places[0]))
    return (taps, sources.pop()) if len(sources) == 1 else ([], "")


# ---- by Slices


def _by_slices(node: OnnxNode, scene: Scene) -> Rewrite | None:
    """Means of rectangles, joined along one axis after the other, in any order; along one alone of a single row."""
    axis = node.attributes.get("axis", 0) % 4
    if axis not in (2, 3) or len(scene.shape(node.outputs[0]) or ()) != 4:
        return None
    lines = [_line(name, 5 - axis, scene) for name in node.inputs]
    means = [[_mean_of(name, scene) for name in line] for line in lines]
    known = [[mean for mean in line if mean is not None] for line in means]
    x = known[0][0][0] if known[0] else ""
    shape = scene.shape(x)
    if shape is None or len(shape) != 4 or [len(line) for line in known] != [len(line) for line in means]:
        return None
    if len({len(line) for line in known}) != 1 or any(mean[0] != x for line in known for mean in line):
        return None
    grid = np.array([[mean[1:] for mean in line] for line in known])
    grid = grid if axis == 2 else grid.swapaxes(0, 1)
    rows, columns = grid[:, 0, :2], grid[0, :, 2:]
    if (grid[..., :2] != rows[:, None]).any() or (grid[..., 2:] != columns).any():
        return None
    sides = [(*_pixels(bounds), size) for bounds, size in ((rows, shape[2]), (columns, shape[3]))]
    pool = _pool(node, x, [_windows(windows, size, there) for windows, there, size in sides])
    return pool or _shared(node, x, [(windows, size, there) for windows, there, size in sides])


def _line(tensor: str, axis: int, scene: Scene) -> Sequence[str]:
    """What was joined along an axis; the tensor alone where nothing was."""
    node = scene.producer(tensor)
    is_joined = node is not None and node.op == "Concat" and node.attributes.get("axis", 0) % 4 == axis
    return node.inputs if node is not None and is_joined else (tensor,)


def _mean_of(tensor: str, scene: Scene) -> tuple[str, int, int, int, int] | None:
    """(map, top, bottom, left, right) of the rectangle whose mean a tensor is."""
    node, shape = scene.producer(tensor), scene.shape(tensor)
    if node is None or shape is None or shape[2:] != (1, 1):
        return None
    inside = scene.shape(node.inputs[0])
    match node.op:
        case "GlobalAveragePool":
            tensor = node.inputs[0]
        case "ReduceMean" if mean_axes(node, scene, 4) == [2, 3]:
            tensor = node.inputs[0]
        case "AveragePool" if inside is not None and tuple(node.attributes.get("kernel_shape", ())) == inside[2:]:
            if any(node.attributes.get("pads", ())):
                return None
            tensor = node.inputs[0]
    return _rectangle(tensor, scene)


def _rectangle(tensor: str, scene: Scene) -> tuple[str, int, int, int, int] | None:
    """(map, top, bottom, left, right) of what Slices cut out of a map."""
    shape, node = scene.shape(tensor), scene.producer(tensor)
    if shape is None or len(shape) != 4:
        return None
    bounds = {2: (0, shape[2]), 3: (0, shape[3])}
    is_cut = False
    while node is not None and node.op == "Slice" and (cut := _cut(node, scene)) is not None:
        for axis, (start, end) in cut.items():
            first, last = bounds[axis]
            bounds[axis] = (first + start, min(last, end - start) + start)
        tensor, node, is_cut = node.inputs[0], scene.producer(node.inputs[0]), True
    return (tensor, *bounds[2], *bounds[3]) if is_cut else None


def _cut(node: OnnxNode, scene: Scene) -> dict[int, tuple[int, int]] | None:
    """Axis -> (first, behind the last) row or column that a Slice takes, if it does nothing else."""
    shape = scene.shape(node.inputs[0])
    given = {name: node.attributes.get(name) for name in ("starts", "ends", "axes", "steps")}
    for name, tensor in zip(given, node.inputs[1:], strict=False):
        value = scene.constant(tensor)
        given[name] = None if value is None else value.reshape(-1).tolist()
    if shape is None or len(shape) != 4 or given["starts"] is None or given["ends"] is None:
        return None
    axes = given["axes"] or range(len(given["starts"]))
    found = {}
    for axis, start, end, step in zip(
        axes, given["starts"], given["ends"], given["steps"] or [1] * len(axes), strict=False
    ):
        first, last, stride = slice(start, end, step).indices(shape[axis])
        if axis % 4 in (2, 3) and stride == 1 and first < last:
            found[axis % 4] = (first, last)
        elif (first, last, stride) != (0, shape[axis], 1):
            return None
    return found


def _pixels(bounds: Array) -> tuple[Array, Array]:
    """(windows (number, of pixels), which of these pixels are there) between bounds (number, 2)."""
    steps = np.arange((bounds[:, 1] - bounds[:, 0]).max())
    windows = bounds[:, :1] + steps
    return windows, windows < bounds[:, 1:]


def _why(_node: OnnxNode, _scene: Scene) -> str:
    return "its windows are not all of one size, as they are where the map's size is a multiple"


TURN = Step(("Transpose",), "a Transpose")
AVERAGE = Step(
    ("ReduceMean",),
    "a mean over windows that overlap equal shares of the map",
)
ADAPTIVE = (
    Idiom("adaptive pooling", ("ReduceMean",), _adaptive, ("GatherND",), (TURN, AVERAGE), _why),
    Idiom("adaptive pooling", ("Div", "Mul"), _unlike),
    Idiom("adaptive pooling", ("Concat",), _by_slices),
    Idiom("adaptive pooling", ("MatMul",), _by_matrices),
)
