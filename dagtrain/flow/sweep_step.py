"""`dagtrain place --sweep`: throughput against the number of devices, a real plan for each size.

Sizes up to the cluster's own take its first devices; larger ones go through its devices again.  Chains and rings are
cut and made longer so, meshes by whole rows.  Every size is a result of its own, so an interrupted sweep goes on where
it was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from dagtrain.files import write_text
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import (
    PlaceOptions,
    parse_pins,
    read_options_cluster,
    search_options,
)
from dagtrain.flow.placed import COMMAND, load_placed_graph
from dagtrain.flow.records import PlaceRecord, PointRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, file_digest, program_hash, read_json
from dagtrain.graph.ir import Graph
from dagtrain.planning.planner import Planner
from dagtrain.planning.problem import DealStreams, MultiplyConstants
from dagtrain.progress import Progress, Silent
from dagtrain.rates import rate_text, training_text
from dagtrain.report.chart import line_chart
from dagtrain.runs.job import Job
from dagtrain.runs.runner import RunnerOptions, runner_of
from hdl.costs.estimate import Estimator
from hdl.errors import DagtrainError, FoldingError, InfeasibleError, OutOfTimeError, Problem
from placement.problem.cluster import Cluster, ClusterDevice
from placement.problem.deadline import Deadline
from placement.search.search import SearchOptions

# sizes up to this one are all planned; larger ones grow by half
EVERY_SIZE = 4
# the sweep goes to so many times the cluster
LARGEST = 2
# what a point tells of a plan
MEASURED = ("used_devices", "throughput_fps", "steady_fps", "bound_fps", "dsp", "dsp_capacity")
# a plan this close to its bound is good enough for a curve
GAP = 0.02


@dataclass(frozen=True)
class SweepOptions(PlaceOptions, RunnerOptions):
    """What the user said: of the plans, and of who makes them."""


def run(workspace: Workspace, options: SweepOptions, progress: Progress) -> StepResult:
    """Plan every size that is not known yet, several at once, and draw the curve; with the parts and copies of `place`.

    Every size that is planned is kept at once, whatever becomes of the others."""
    graph = load_placed_graph(workspace)
    cluster = read_options_cluster(options)
    if cluster.network.topology == "cables":
        raise DagtrainError(
            f"--sweep: devices of {options.devices} are on cables, and nothing says how more or fewer would be joined",
            'sweep with network.topology = "chain", "ring", "mesh" or "switch", or write a file for each size',
        )
    clusters = {
        size: resized(cluster, size) for size in sweep_sizes(len(cluster.devices), cluster.network.mesh_columns)
    }
    check_ports(clusters.values())
    search = search_options(options)
    search = replace(search, gap=max(search.gap, GAP))
    runner = runner_of(options, program_hash)
    placed = read_json(workspace.folder("place") / "place.json", COMMAND, PlaceRecord)
    depends = {
        "import": workspace.fingerprint("import"),
        "splits": placed["splits"],
        "copies": placed["copies"],
        "devices": file_digest(options.devices),
        **{field.name: getattr(options, field.name) for field in fields(PlaceOptions) if field.name != "devices"},
    }
    steps = {f"sweep/{size}-devices": size for size in clusters}
    missing = {step: size for step, size in steps.items() if not workspace.unchanged(step, depends)}
    jobs = [Job(step, _point, (graph, clusters[size], options, search)) for step, size in missing.items()]
    progress.begin("sweep", len(steps))
    progress.advance(len(steps) - len(jobs))
    failed: list[Problem] = []
    for outcome in runner.outcomes(jobs):
        if outcome.error is None:
            text = json.dumps(outcome.value, indent=1) + "\n"
            workspace.leave(outcome.job.name, depends, partial(_write, text))
            progress.advance(note=_line(outcome.value))
        else:
            failed.extend(outcome.error.problems)
    progress.end()
    if failed:
        raise DagtrainError.listing("", failed)
    points: list[dict[str, Any]] = []
    alone = _alone(options, cluster)
    for step in steps:
        point = dict(read_json(workspace.folder(step) / "point.json", f"{COMMAND} --sweep", PointRecord))
        points.append(point if alone else _no_slower(point, points))
    folder = workspace.folder("sweep")
    write_text(folder / "sweep.json", json.dumps({"schema_version": SCHEMA_VERSION, "points": points}, indent=1) + "\n")
    write_text(folder / "sweep.svg", _chart(graph, cluster, points))
    return StepResult("sweep", folder, bool(jobs), tuple(map(_line, points)), {"points": points})


def _write(text: str, folder: Path) -> None:
    write_text(folder / "point.json", text)


def sweep_sizes(devices: int, columns: int = 0) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16 … up to `LARGEST` times the cluster, the cluster's own size among them; of a mesh of so
    many columns those that are whole rows, or part of one."""
    most = LARGEST * devices
    steps = [*range(1, EVERY_SIZE + 1), *(size << shift for shift in range(most.bit_length()) for size in (6, 8))]
    sizes = {size for size in steps if size <= most} | {devices, most}
    return sorted(size for size in sizes if size <= columns or not columns or size % columns == 0)


def resized(cluster: Cluster, size: int) -> Cluster:
    """The cluster with its first ``size`` devices, or with further ones like its devices in order."""
    devices = list(cluster.devices[:size])
    names = {device.name for device in cluster.devices}
    for index in range(len(devices), size):
        like = cluster.devices[index % len(cluster.devices)]
        name = next(name for k in range(2, size + 2) if (name := f"{like.name}-{k}") not in names)
        names.add(name)
        devices.append(ClusterDevice(name=name, board=like.board))
    names_now, rates = zip(*((device.name, device.board.link_bits_per_s) for device in devices), strict=True)
    return replace(cluster, devices=tuple(devices), network=cluster.network.joining(names_now, rates))


def check_ports(clusters: Iterable[Cluster]) -> None:
    """Raises `DagtrainError` naming all boards of these that have fewer ports than there are cables at a device."""
    # by name: (ports, those that it needs, devices that there are then)
    needed: dict[str, tuple[int, int, int]] = {}
    for cluster in clusters:
        boards = {device.name: device.board for device in cluster.devices}
        ends = Counter(end for cable in cluster.network.cables for end in (cable.a, cable.b))
        for device, cables in ends.items():
            board = boards[device]
            if cables > max(board.ports, needed.get(board.name, (0, 0, 0))[1]):
                needed[board.name] = board.ports, cables, len(cluster.devices)
    if needed:
        raise DagtrainError.listing(
            "--sweep",
            [
                Problem(f"board {name!r} has ports = {ports}, and with {devices} devices it needs {cables}",
                        f"write ports = {cables} if it has them")
                for name, (ports, cables, devices) in needed.items()
            ],
        )  # fmt: skip


def _point(graph: Graph, cluster: Cluster, options: PlaceOptions, search: SearchOptions) -> dict[str, Any]:
    """The plan of one size, within the time limit; without a plan, why."""
    names = {device.name for device in cluster.devices}
    there = tuple(pin for pin in options.pins if pin.partition("=")[2] in names)
    search = replace(search, exclude=tuple(name for name in search.exclude if name in names))
    base = {"schema_version": SCHEMA_VERSION, "devices": len(cluster.devices)}
    try:
        deadline = Deadline(search.time_limit_seconds)
        pins = parse_pins(there, graph, cluster)
        levers = levers_wanted(options)
        multiply, deal = levers.multiply_constants is MultiplyConstants.AUTO, levers.deal_streams is DealStreams.AUTO
        planner = Planner(graph, cluster, Estimator(), search, pins, Silent(), deadline, multiply, deal)
        plan = planner.run().plan
        if deadline.interrupted:
            # a point is of a search that went to its end
            raise KeyboardInterrupt
    except (InfeasibleError, OutOfTimeError, FoldingError) as error:
        return {**base, **dict.fromkeys(MEASURED), "why": str(error)}
    return {
        **base,
        "used_devices": len({item.device for item in plan.items}),
        "throughput_fps": plan.throughput_fps,
        "steady_fps": plan.steady_fps,
        "bound_fps": plan.bound_fps,
        "dsp": sum(use.dsp for use in plan.devices),
        "dsp_capacity": sum(use.dsp_capacity for use in plan.devices),
        "why": "; ".join(f"{binding.kind}: {binding.reason}" for binding in plan.binding),
    }


def _alone(options: PlaceOptions, cluster: Cluster) -> bool:
    """Whether a plan stands for its own number of devices only: those of more can't keep its pins, or have other ways
    between the same devices."""
    return bool(options.pins) or cluster.network.topology == "ring"


def _no_slower(point: dict[str, Any], fewer: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The point of one size, with the plan of a smaller one where that trains faster: it is one of this size too, whose
    further devices are empty."""
    planned = [entry for entry in fewer if entry["throughput_fps"] is not None]
    best = max(planned, key=lambda entry: float(entry["throughput_fps"]), default=None)
    if best is None or (point["throughput_fps"] or 0.0) >= best["throughput_fps"]:
        return point
    kept = {name: best[name] for name in ("used_devices", "throughput_fps", "steady_fps", "dsp", "why")}
    # of the levels that either search priced
    return {**point, **kept, "bound_fps": max(point["bound_fps"] or 0.0, best["bound_fps"])}


def _line(point: dict[str, Any]) -> str:
    if point["throughput_fps"] is None:
        return f"{point['devices']} devices: no plan: {point['why']}"
    empty = point["devices"] - point["used_devices"]
    return (
        f"{point['devices']} devices{f', {empty} of them empty' if empty else ''}: "
        f"{training_text(point['throughput_fps'])} frames/s in training, {rate_text(point['steady_fps'])} inside a "
        f"batch, where at most {rate_text(point['bound_fps'])} are possible at the levels priced, "
        f"{point['dsp'] / max(1, point['dsp_capacity']):.0%} of the DSP blocks"
    )


def _chart(graph: Graph, cluster: Cluster, points: list[dict[str, Any]]) -> str:
    planned = [point for point in points if point["throughput_fps"] is not None]
    series = {
        "training": [(point["devices"], point["throughput_fps"]) for point in planned],
        "inside a batch": [(point["devices"], point["steady_fps"]) for point in planned],
        "most inside a batch, levels priced": [(point["devices"], point["bound_fps"]) for point in planned],
    }
    return line_chart(f"{graph.name} on {cluster.name}, more or fewer of it", "devices", "frames/s", series)
