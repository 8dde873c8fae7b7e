"""`dagtrain place`: training graph and cluster file -> `plan.json`, judged by the validator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dagtrain.emission.links import NETWORK_CYCLES
from dagtrain.files import write_text
from dagtrain.flow.choices import chosen_graph, plan_choices
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.planning import Planner
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, MissingStep, Workspace, file_digest, read_json
from dagtrain.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.schedule import needed_staleness, schedule
from dagtrain.progress import Progress
from dagtrain.summary import base_layer
from hdl.errors import DagtrainError
from hdl.estimate import Estimator
from placement.cluster import Cluster, read_cluster
from placement.instance import instance_to_json
from placement.plan import Plan, plan_from_json
from placement.search import SearchOptions, Solver


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """What the user said."""

    devices: Path
    # "layer=device"
    pins: tuple[str, ...] = ()
    # "a,b": layers or nodes that stand on one device
    same_device: tuple[str, ...] = ()
    # devices to leave empty
    exclude: tuple[str, ...] = ()
    # slowest acceptable throughput, frames a second
    least_fps: float | None = None
    # share of the bound at which to stop
    gap: float = 0.0
    time_limit_seconds: float | None = None
    # of `placement.settings.Solver`
    solver: str = "fast"
    seed: int = 1


def run(workspace: Workspace, options: PlaceOptions, progress: Progress) -> StepResult:
    """Plan unless nothing changed."""
    graph = load_training_graph(workspace)
    cluster = read_cluster(options.devices)
    pins = parse_pins(options.pins, graph, cluster)
    depends = {
        "import": workspace.fingerprint("import"),
        "devices": file_digest(options.devices),
        **{name: value for name, value in asdict(options).items() if name != "devices"},
    }
    search = search_options(options)
    done = workspace.run(
        "place", depends, lambda folder: _work(folder, graph, cluster, pins, search, options.devices, progress)
    )
    folder = workspace.folder("place")
    plan = load_plan(workspace)
    meta = read_json(folder / "place.json", "dagtrain place --devices CLUSTER.toml")
    lines = (
        f"{plan.throughput_fps:,.1f} frames/s at {plan.cycles_per_frame:,} cycles a frame; proven bound "
        f"{plan.bound_fps:,.1f}, gap {plan.gap:.2%} ({plan.status})",
        *(f"binds: {binding.kind}: {binding.reason}" for binding in plan.binding),
        *(
            f"{use.device} ({use.part}): {use.items} nodes, {use.dsp}/{use.dsp_capacity} DSP, "
            f"{use.m20k}/{use.m20k_capacity} M20K, {use.alm}/{use.alm_capacity} ALM"
            for use in plan.devices
        ),
        *meta["warnings"],
    )
    return StepResult("place", folder, done, lines, json.loads(plan.to_json()))


def search_options(options: PlaceOptions) -> SearchOptions:
    """The search that the user wants.  Raises `DagtrainError`."""
    solvers = [solver.value for solver in Solver]
    if options.solver not in solvers:
        raise DagtrainError(f"--solver {options.solver}: no such solver; one of {', '.join(solvers)}")
    groups = tuple(tuple(name.strip() for name in group.split(",")) for group in options.same_device)
    alone = [group for group, names in zip(options.same_device, groups, strict=True) if len(names) < 2]
    if alone:
        raise DagtrainError(f"--same-device {', '.join(alone)}: name two layers at least, as a,b")
    return SearchOptions(
        seed=options.seed,
        least_fps=options.least_fps,
        gap=options.gap,
        time_limit_seconds=options.time_limit_seconds,
        same_device=groups,
        exclude=options.exclude,
        solver=Solver(options.solver),
    )


def load_plan(workspace: Workspace) -> Plan:
    """The plan that `place` left."""
    command = "dagtrain place --devices CLUSTER.toml"
    path = workspace.require("place", command) / "plan.json"
    try:
        return plan_from_json(path.read_text())
    except OSError as error:
        raise MissingStep(f"{path} cannot be read: {error.strerror}; run `{command}` again") from error
    except (DagtrainError, UnicodeDecodeError) as error:
        raise MissingStep(f"{path} is damaged ({error}); run `{command}` again") from error


def load_plan_cluster(workspace: Workspace) -> Cluster:
    """The cluster that the plan is for."""
    return read_cluster(workspace.require("place", "dagtrain place --devices CLUSTER.toml") / "cluster.toml")


def parse_pins(pins: tuple[str, ...], graph: Graph, cluster: Cluster) -> dict[str, str]:
    """Node -> device, from ``layer=device``: a layer's name stands for all nodes that serve it."""
    problems: list[str] = []
    found: dict[str, str] = {}
    devices = {device.name for device in cluster.devices}
    for pin in pins:
        layer, _, device = pin.partition("=")
        nodes = [node.name for node in graph.nodes if layer in (node.name, base_layer(node.name))]
        if not device:
            problems.append(f"--pin {pin} is not of the form layer=device")
        elif device not in devices:
            problems.append(f"--pin {pin}: no device {device}; the cluster has {', '.join(sorted(devices))}")
        elif not nodes:
            problems.append(f"--pin {pin}: no layer {layer}; `dagtrain show` lists them")
        for node in nodes:
            if found.setdefault(node, device) != device:
                problems.append(f"--pin {pin}: {node} is already pinned to {found[node]}")
    if problems:
        raise DagtrainError("; ".join(problems))
    return found


def _work(
    folder: Path,
    graph: Graph,
    cluster: Cluster,
    pins: Mapping[str, str],
    search: SearchOptions,
    devices: Path,
    progress: Progress,
) -> None:
    planned = Planner(graph, cluster, Estimator(), search, pins, progress).run()
    write_text(folder / "plan.json", planned.plan.to_json())
    write_text(folder / "instance.json", instance_to_json(planned.instance))
    shutil.copyfile(devices, folder / "cluster.toml")
    staleness = _needed_staleness(graph, planned.plan, planned.fold_cycles)
    meta = {
        "schema_version": SCHEMA_VERSION,
        "fold_cycles": planned.fold_cycles,
        "needed_staleness": staleness,
        "warnings": _warnings(graph, planned.plan, staleness),
    }
    write_text(folder / "place.json", json.dumps(meta, indent=1) + "\n")


def _needed_staleness(graph: Graph, plan: Plan, cycles: int) -> int:
    placed = {item.item: item.device for item in plan.items}
    folded = fold_graph(chosen_graph(graph, plan_choices(plan)), cycles)
    delays = {
        edge: NETWORK_CYCLES
        for edge, producer, _source, consumer, _sink in folded.edges
        if placed[producer.name] != placed[consumer.name]
    }
    return needed_staleness(folded, schedule(folded, cycles, delays), delays)


def _warnings(graph: Graph, plan: Plan, needed: int) -> list[str]:
    """What a user should know about the plan beside its numbers."""
    recipe = graph.recipe
    if recipe.staleness >= needed:
        return []
    lost = (needed - recipe.staleness) / recipe.batch
    return [
        f"warning: the placed pipeline is {needed} frames deep, the recipe's staleness is {recipe.staleness}: it waits "
        f"about {needed - recipe.staleness} frames in every batch of {recipe.batch}, which costs about "
        f"{lost / (1 + lost):.0%} of {plan.throughput_fps:,.1f} frames/s; raise the recipe's staleness or batch"
    ]
