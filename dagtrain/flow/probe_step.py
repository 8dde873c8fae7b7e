"""`dagtrain probe`: a tensor as the emulator, the float reference and the simulated hardware have it, side by side."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np

from dagtrain.cosim.trace import Element
from dagtrain.flow.cosim_step import CosimOptions, prepared
from dagtrain.flow.debug_step import COMMAND as DEBUG
from dagtrain.flow.debug_step import load_sent
from dagtrain.flow.records import DebugRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import State, Workspace, read_json
from dagtrain.graph.executor import Array, Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress
from hdl.errors import DagtrainError, Problem
from hdl.fixed import FloatArray, IntArray
from hdl.tensor import Port

AXES = ("row", "column", "channel")


@dataclass(frozen=True)
class ProbeOptions:
    """What the user said."""

    # an edge, or node.port
    what: str
    # counted from 1
    batch: int = 1
    frame: int = 1
    # of a map; None: all
    row: int | None = None
    column: int | None = None
    channel: int | None = None
    # elements that are shown
    limit: int = 24
    data: str | None = None
    seed: int = 1


def run(workspace: Workspace, options: ProbeOptions, progress: Progress) -> StepResult:
    """The tensor; writes nothing.

    Raises `DagtrainError` naming all that is wrong with the place."""
    ready = prepared(workspace, CosimOptions(batches=max(1, options.batch), data=options.data, seed=options.seed))
    graph = ready.graph
    edge = _edge(graph, options.what)
    node, port = graph.producers[edge]
    _check(port, options, graph.recipe.batch)
    progress.begin("emulator and float reference", 2 * options.batch)
    golden = _last(Executor(graph, Mode.GOLDEN), ready.feeds, edge, progress)
    reference = _last(Executor(graph, Mode.REFERENCE), ready.feeds, edge, progress)
    progress.end()
    shape, fixed = port.tensor.shape, port.tensor.fixed
    tensors = golden.reshape(-1, *shape)
    at = 0 if port.tensor.kind.per_batch else options.frame - 1
    codes, floats = tensors[at].astype(np.int64), reference.reshape(-1, *shape)[at].astype(np.float64)
    simulated, note = _simulated(workspace, options, edge, (options.batch - 1) * len(tensors) + at)
    chosen = _chosen(codes, floats, simulated, port, options)
    place = Element(options.batch - 1, None if port.tensor.kind.per_batch else at, ())
    errors = np.abs(fixed.decode(codes) - floats) / fixed.step
    ends = int((codes == fixed.high).sum() + (codes == fixed.low).sum())
    lines = [
        f"{edge} of {node.name} ({type(node.layer).__name__}), {place}: {'x'.join(map(str, shape))}, {fixed}",
        f"emulator beside float: {errors.max():.2f} steps of {fixed.step:g} at most, "
        f"{np.sqrt(np.mean(errors**2)):.2f} root mean square; {ends} of {codes.size} at an end of the format",
        note or f"simulation: {int((simulated != codes).sum())} of {codes.size} numbers differ from the emulator",
    ]
    if len(chosen) < _selected(shape, options).sum():
        lines.append(f"the {len(chosen)} that differ most; --row, --column, --channel and --limit choose others")
    elements = [_row(index, codes, floats, simulated, port) for index in chosen]
    rows = [("element", "code", "emulator", "float", "steps apart", "simulation"), *(_cells(one) for one in elements)]
    data = {"edge": edge, "node": node.name, "format": str(fixed), "note": note, "elements": elements}
    return StepResult("probe", workspace.root, False, tuple(lines), data, table=rows)


def _edge(graph: Graph, what: str) -> str:
    """The edge of that name, or of that port of a node."""
    if what in graph.producers:
        return what
    name, _, port = what.rpartition(".")
    if name in graph.by_name and port in graph.by_name[name].outputs:
        return graph.by_name[name].outputs[port]
    near = difflib.get_close_matches(what, list(graph.producers), 5, 0.3)
    raise DagtrainError(f"no tensor {what!r}", f"near it are {', '.join(near) or ', '.join(list(graph.producers)[:5])}")


def _check(port: Port, options: ProbeOptions, batch_frames: int) -> None:
    problems = []
    if options.batch < 1:
        problems.append(Problem(f"--batch must be at least 1, not {options.batch}"))
    if not port.tensor.kind.per_batch and not 1 <= options.frame <= batch_frames:
        problems.append(Problem(f"--frame must be one of 1 to {batch_frames}, not {options.frame}"))
    if options.limit < 1:
        problems.append(Problem(f"--limit must be at least 1, not {options.limit}"))
    for axis, (name, size) in enumerate(zip(AXES, _map_shape(port.tensor.shape), strict=False)):
        asked = (options.row, options.column, options.channel)[axis]
        if asked is not None and not 0 <= asked < size:
            problems.append(Problem(f"--{name} must be one of 0 to {size - 1}, not {asked}"))
    if problems:
        raise DagtrainError.listing("probe", problems)


def _map_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Rows, columns, channels; tensors of other ranks have rows alone."""
    return shape if len(shape) == len(AXES) else (int(np.prod(shape)), 1, 1)


def _last(executor: Executor, feeds: Any, edge: str, progress: Progress) -> Array:
    """An edge's array of the last batch."""
    kept: list[Array] = []

    def keep(name: str, array: Array) -> None:
        if name == edge:
            kept[:] = [array]

    for feed in feeds:
        executor.step(feed, keep)
        progress.advance()
    return kept[0]


def _simulated(workspace: Workspace, options: ProbeOptions, edge: str, tensor: int) -> tuple[IntArray | None, str]:
    """What the last `dagtrain debug` saw of it; else None and why."""
    if workspace.standing("debug").state is not State.HOLDS:
        return None, f"simulation: unknown, run `{DEBUG}` first"
    record = read_json(workspace.folder("debug") / "debug.json", DEBUG, DebugRecord)
    if (record["seed"], record["data"]) != (options.seed, options.data):
        return None, f"simulation: `{DEBUG}` was of other data or another seed"
    sent = load_sent(workspace).get(edge)
    if sent is None:
        return None, "simulation: it is no stream inside an FPGA"
    if tensor >= len(sent):
        return None, f"simulation: `{DEBUG}` saw {len(sent)} tensors of it; --batches of it is to be more"
    return sent[tensor], ""


def _selected(shape: tuple[int, ...], options: ProbeOptions) -> Any:
    """Of the tensor as rows, columns, channels: whether an element was asked for."""
    chosen = np.ones(_map_shape(shape), bool)
    for axis, asked in enumerate((options.row, options.column, options.channel)):
        if asked is not None:
            keep = np.zeros(chosen.shape[axis], bool)
            keep[asked] = True
            chosen &= np.expand_dims(keep, tuple(other for other in range(3) if other != axis))
    return chosen.reshape(shape)


def _chosen(
    codes: IntArray, floats: FloatArray, simulated: IntArray | None, port: Port, options: ProbeOptions
) -> list[tuple[int, ...]]:
    """Elements to show, in order; of too many, those that differ most, wrong ones first."""
    places = np.argwhere(_selected(port.tensor.shape, options))
    if len(places) > options.limit:
        fixed = port.tensor.fixed
        errors = np.abs(fixed.decode(codes) - floats)
        if simulated is not None:
            errors = np.where(simulated != codes, np.inf, errors)
        ranks = np.argsort(-errors[tuple(places.T)], kind="stable")[: options.limit]
        places = places[np.sort(ranks)]
    return [tuple(map(int, place)) for place in places]


def _row(
    index: tuple[int, ...], codes: IntArray, floats: FloatArray, simulated: IntArray | None, port: Port
) -> dict[str, Any]:
    fixed = port.tensor.fixed
    value, exact = float(codes[index]) * fixed.step, float(floats[index])
    return {
        "index": list(index),
        "code": int(codes[index]),
        "emulator": value,
        "float": exact,
        "steps": (value - exact) / fixed.step,
        "simulation": None if simulated is None else int(simulated[index]),
    }


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    simulated = one["simulation"]
    said = "" if simulated is None else "equal" if simulated == one["code"] else f"{simulated}"
    return (
        ", ".join(map(str, one["index"])),
        str(one["code"]),
        f"{one['emulator']:.6g}",
        f"{one['float']:.6g}",
        f"{one['steps']:+.2f}",
        said,
    )
