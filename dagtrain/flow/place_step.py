"""`dagtrain place`: training graph and cluster file -> `plan.json`, judged by the validator."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from dagtrain.emission.links import NETWORK_CYCLES
from dagtrain.files import write_text
from dagtrain.flow.import_step import (
    IMPORT_COMMAND,
    import_again,
    load_training_graph,
    parts_from_json,
    parts_to_json,
)
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import (
    COMMANDS,
    SCHEMA_VERSION,
    MissingStep,
    Workspace,
    digest,
    file_digest,
    program_hash,
    read_json,
)
from dagtrain.graph.ir import Graph
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.graph.summary import base_layer
from dagtrain.passes.insert_relays import relayed_edges
from dagtrain.passes.split_layers import Parts, whole_layer
from dagtrain.planning.choices import folded_graph, plan_pace
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Planned, Searched, Start
from dagtrain.planning.splitting import PartsMissingError, SplitPlan, Splitter
from dagtrain.progress import Progress
from dagtrain.rates import rate_text, training_text
from dagtrain.schedule.schedule import needed_staleness, schedule
from hdl.costs.estimate import Estimator
from hdl.errors import DagtrainError
from placement.problem.cluster import CAPPED, Cluster, read_cluster, with_caps
from placement.problem.deadline import Deadline, Ended
from placement.problem.instance import instance_from_json, instance_to_json
from placement.problem.plan import Plan, plan_from_json
from placement.problem.validate import violations
from placement.search.search import SearchOptions, Solver

COMMAND = COMMANDS["place"]
# the graph with layers in parts
GRAPH = "graph.json"
# the plan, and the instance that it speaks of
PLAN, INSTANCE = "plan.json", "instance.json"
# files of the search that found the plan
SEARCHED_PLAN, SEARCHED_INSTANCE = "searched-plan.json", "searched-instance.json"
# options that say how long to search and not what for: an unfinished search goes on under others
EFFORT = ("gap", "time_limit_seconds")


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
    # "dsp=0.9": the share of a resource that a plan may fill on every board, instead of the cluster file's
    caps: tuple[str, ...] = ()
    # slowest acceptable throughput, frames a second
    least_fps: float | None = None
    # share of the bound at which to stop
    gap: float = 0.0
    time_limit_seconds: float | None = None
    # of `placement.problem.settings.Solver`
    solver: str = "fast"
    seed: int = 1
    # whether layers may be made in parts
    split: bool = True


def run(
    workspace: Workspace, options: PlaceOptions, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> StepResult:
    """Plan unless nothing changed.  Plans are written as they are found, the best one last.

    Raises `KeyboardInterrupt` when Ctrl-C came before the first plan."""
    cluster, search, estimator = read_options_cluster(options), search_options(options), Estimator()
    deadline = Deadline(search.time_limit_seconds, clock)
    graph = load_training_graph(workspace)

    def planner_of(graph: Graph) -> Planner:
        pins = parse_pins(options.pins, graph, cluster)
        return Planner(graph, cluster, estimator, search, pins, progress, deadline=deadline)

    # wrong pins and words are told before anything is done
    whole = planner_of(graph)
    check_words(graph, cluster, options.devices)
    problem = {
        "import": workspace.fingerprint("import"),
        "devices": file_digest(options.devices),
        "program": program_hash(),
        **{name: value for name, value in asdict(options).items() if name not in ("devices", *EFFORT)},
    }
    earlier = _earlier(workspace, digest(problem))
    unfinished = None
    if earlier is not None and not earlier["finished"]:
        # the unfinished search is an input of the one that goes on from it
        begun_from, unfinished = workspace.fingerprint("place"), _start(workspace)
    else:
        begun_from = earlier["begun_from"] if earlier is not None else ""
    damaged = bool(workspace.fingerprint("place")) and not workspace.intact("place")
    lost = damaged or (earlier is not None and not earlier["finished"] and unfinished is None)
    depends = {**problem, **{name: getattr(options, name) for name in EFFORT}, "begun_from": begun_from}
    notes = {"problem": digest(problem), "begun_from": begun_from}

    def leave(found: SplitPlan) -> None:
        def write(folder: Path) -> None:
            if found.graph is not graph:
                save_graph(found.graph, folder / GRAPH)
            seconds = round(deadline.spent_seconds, 1)
            _write(folder, found, options.devices, {**notes, "seconds": seconds})

        workspace.leave("place", depends, write)

    done = not workspace.unchanged("place", depends)
    if done:
        with deadline.listening():
            found = _plan(workspace, whole, planner_of, options, unfinished, deadline, leave)
            if lost:
                warning = f"warning: the search starts over, {workspace.folder('place')} of the earlier one is damaged"
                found = replace(found, warnings=(warning, *found.warnings))
            leave(found)
    folder = workspace.folder("place")
    plan = load_plan(workspace)
    meta = read_json(folder / "place.json", COMMAND)
    lines = (
        f"{training_text(plan.throughput_fps)} frames/s in training: a batch of {plan.batch_frames} frames with "
        f"staleness {plan.staleness_frames} takes {plan.batch_cycles:,} cycles",
        f"{rate_text(plan.steady_fps)} frames/s inside a batch: {plan.cycles_per_frame:,} cycles a frame "
        f"({plan.status}); no plan has more than {rate_text(plan.bound_fps)} there at the levels priced, nor than "
        f"{rate_text(plan.any_bound_fps)} with any folding (proven), and training is no faster than that; gap inside a "
        f"batch {plan.steady_gap:.2%}, in training {plan.gap:.2%}",
        *(f"binds: {binding.kind}: {binding.reason}" for binding in plan.binding),
        *(
            f"{use.device} ({use.part}): {use.items} nodes, {use.dsp}/{use.dsp_capacity} DSP, "
            f"{use.m20k}/{use.m20k_capacity} M20K, {use.alm}/{use.alm_capacity} ALM"
            for use in plan.devices
        ),
        *_splits(meta["splits"]),
        *_relays(load_placed_graph(workspace) if meta["splits"] else graph, plan),
        *meta["warnings"],
        *(() if meta["finished"] else ("the search was ended early: the same command goes on from this plan",)),
    )
    # beside the plan, whose bytes depend on its inputs alone
    measured = {name: meta[name] for name in ("seconds", "finished", "splits")}
    return StepResult("place", folder, done, lines, {**json.loads(plan.to_json()), **measured})


def _plan(
    workspace: Workspace,
    whole: Planner,
    planner_of: Callable[[Graph], Planner],
    options: PlaceOptions,
    unfinished: Start | None,
    deadline: Deadline,
    keep: Callable[[SplitPlan], None],
) -> SplitPlan:
    """The best plan, with layers in parts where that pays, on top of those split by `import`; ``keep`` is told of
    those before it."""
    imported = _imported_splits(workspace)
    try:
        if options.split and Solver(options.solver) is not Solver.LITERAL:
            return _split(workspace, whole, planner_of, options, unfinished, deadline, keep)
        graph = whole.problem.graph
        planned = whole.run(unfinished, lambda planned: keep(SplitPlan(planned, graph, imported)))
        return SplitPlan(planned, graph, imported, tuple(whole.warnings))
    except Ended:
        if deadline.interrupted:
            raise KeyboardInterrupt from None
        raise


def _split(
    workspace: Workspace,
    whole: Planner,
    planner_of: Callable[[Graph], Planner],
    options: PlaceOptions,
    unfinished: Start | None,
    deadline: Deadline,
    keep: Callable[[SplitPlan], None],
) -> SplitPlan:
    imported = _imported_splits(workspace)
    named = {name.partition("=")[0] for name in options.pins} | {
        name.strip() for group in options.same_device for name in group.split(",")
    }

    def in_parts(parts: Mapping[str, Parts]) -> Planner:
        try:
            return planner_of(import_again(workspace, {**imported, **parts}))
        except MissingStep as error:
            raise PartsMissingError(str(error)) from error

    splitter = Splitter(
        planner=in_parts,
        untouched={whole_layer(base_layer(name), imported) for name in named},
        deadline=deadline,
        keep=keep,
    )
    planner, parts = whole, imported
    if unfinished is not None and unfinished.parts != imported:
        planner, parts = planner_of(load_placed_graph(workspace)), dict(unfinished.parts)
    return splitter.run(parts, planner, unfinished)


def _imported_splits(workspace: Workspace) -> dict[str, Parts]:
    return parts_from_json(read_json(workspace.folder("import") / "import.json", IMPORT_COMMAND)["splits"])


def load_placed_graph(workspace: Workspace) -> Graph:
    """The training graph that the plan is for: the imported one, or one with layers in parts that `place` left."""
    if not workspace.holds("place"):
        workspace.require("import", IMPORT_COMMAND)
    own = workspace.require("place", COMMAND) / GRAPH
    return load_graph(own) if own.is_file() else load_training_graph(workspace)


def load_folded_graph(workspace: Workspace) -> Graph:
    """The placed graph as the plan builds it: every layer as wide as its circuit is."""
    return folded_graph(load_placed_graph(workspace), load_plan(workspace))


def load_current_graph(workspace: Workspace) -> Graph:
    """The training graph of the plan if there is one that holds, else the imported one."""
    return load_placed_graph(workspace) if workspace.holds("place") else load_training_graph(workspace)


def graph_of(workspace: Workspace) -> dict[str, str]:
    """The steps that `load_current_graph` rests on, with their fingerprints."""
    own = workspace.holds("place") and (workspace.folder("place") / GRAPH).is_file()
    return {step: workspace.fingerprint(step) for step in (("import", "place") if own else ("import",))}


def _splits(parts: Mapping[str, str]) -> list[str]:
    """What a user should know of layers in parts."""
    if not parts:
        return []
    return [f"in parts: {', '.join(f'{layer}={count}' for layer, count in parts.items())} (as `import --split` does)"]


def _relays(graph: Graph, plan: Plan) -> list[str]:
    """What a user should know of relays."""
    edges = relayed_edges(graph, (item.item for item in plan.items))
    return [f"relays: so that hops are equal, {', '.join(edges)} go by way of another device"] if edges else []


def _earlier(workspace: Workspace, problem: str) -> Mapping[str, Any] | None:
    """What the last `place` noted of itself, if it was asked the same problem."""
    if not workspace.intact("place"):
        return None
    try:
        meta: Mapping[str, Any] = read_json(workspace.folder("place") / "place.json", COMMAND)
        return meta if meta["problem"] == problem else None
    except MissingStep:
        return None


def _start(workspace: Workspace) -> Start | None:
    """The unfinished search on disk; None if it cannot be read."""
    folder = workspace.folder("place")
    try:
        meta = read_json(folder / "place.json", COMMAND)
        searched, plan = (plan_from_json((folder / name).read_text()) for name in (SEARCHED_PLAN, PLAN))
        searched_on, instance = (
            instance_from_json((folder / name).read_text()) for name in (SEARCHED_INSTANCE, INSTANCE)
        )
        if violations(instance, plan):
            return None
        levels = tuple(meta["levels"])
        planned = Planned(plan, instance, Searched(searched, searched_on, levels, finished=False))
        return Start(searched, levels, parts_from_json(meta["splits"]), planned)
    except (OSError, UnicodeDecodeError, DagtrainError):
        return None


def read_options_cluster(options: PlaceOptions) -> Cluster:
    """The cluster with the caps of the command line.  Raises `DagtrainError` naming all that is wrong."""
    problems: list[str] = []
    shares: dict[str, Decimal] = {}
    for cap in options.caps:
        resource, _, text = cap.partition("=")
        try:
            share = Decimal(text)
        except InvalidOperation:
            share = Decimal("NaN")
        if resource not in CAPPED:
            problems.append(f"--cap {cap}: no resource {resource!r}; one of {', '.join(CAPPED)}")
        elif not (share.is_finite() and 0 < share <= 1):
            problems.append(f"--cap {cap}: {text!r} is no share above 0 and at most 1; write e.g. {resource}=0.9")
        elif shares.setdefault(resource, share) != share:
            problems.append(f"--cap {cap}: {resource} is already capped at {shares[resource]}; give it once")
    if problems:
        raise DagtrainError("; ".join(problems))
    return with_caps(read_cluster(options.devices), shares)


def check_words(graph: Graph, cluster: Cluster, file: Path) -> None:
    """Raises `DagtrainError` where words of the network are narrower than what may have to cross it."""
    bits = {f"{node.name}.{port.name}": port.tensor.fixed.width for node in graph.nodes for port in node.layer.sources}
    widest = max(bits, key=lambda name: bits[name])
    if len(cluster.devices) > 1 and cluster.link_word_bits < bits[widest]:
        fitting = -(-bits[widest] // 8) * 8
        raise DagtrainError(
            f"{file}: cluster.link_word_bits = {cluster.link_word_bits}: elements of {widest} have {bits[widest]} "
            f"bits, and a word carries whole elements; write at least {fitting}, or leave it out"
        )


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
    path = workspace.require("place", COMMAND) / "plan.json"
    try:
        return plan_from_json(path.read_text())
    except OSError as error:
        raise MissingStep(f"{path} cannot be read: {error.strerror}; run `{COMMAND}` again") from error
    except (DagtrainError, UnicodeDecodeError) as error:
        raise MissingStep(f"{path} is damaged ({error}); run `{COMMAND}` again") from error


def load_searched(workspace: Workspace) -> Searched:
    """The search that found the plan: many levels, ports and memories as estimates."""
    folder = workspace.require("place", COMMAND)
    meta = read_json(folder / "place.json", COMMAND)
    try:
        plan = plan_from_json((folder / SEARCHED_PLAN).read_text())
        instance = instance_from_json((folder / SEARCHED_INSTANCE).read_text())
    except OSError as error:
        raise MissingStep(f"{error.filename} cannot be read: {error.strerror}; run `{COMMAND}` again") from error
    except (DagtrainError, UnicodeDecodeError) as error:
        raise MissingStep(f"{folder} is damaged ({error}); run `{COMMAND}` again") from error
    return Searched(plan, instance, tuple(meta["levels"]), meta["finished"])


def load_plan_cluster(workspace: Workspace) -> Cluster:
    """The cluster that the plan is for."""
    return read_cluster(workspace.require("place", COMMAND) / "cluster.toml")


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


def _write(folder: Path, found: SplitPlan, devices: Path, notes: Mapping[str, Any]) -> None:
    planned, searched = found.planned, found.planned.searched
    assert searched is not None
    write_text(folder / PLAN, planned.plan.to_json())
    write_text(folder / INSTANCE, instance_to_json(planned.instance))
    write_text(folder / SEARCHED_PLAN, searched.plan.to_json())
    write_text(folder / SEARCHED_INSTANCE, instance_to_json(searched.instance))
    shutil.copyfile(devices, folder / "cluster.toml")
    meta = {**_meta(found, planned, searched), "splits": parts_to_json(found.parts), **notes}
    write_text(folder / "place.json", json.dumps(meta, indent=1) + "\n")


def _meta(found: SplitPlan, planned: Planned, searched: Searched) -> dict[str, object]:
    graph = found.graph
    staleness = _needed_staleness(graph, planned.plan)
    return {
        "schema_version": SCHEMA_VERSION,
        "needed_staleness": staleness,
        "warnings": [*found.warnings, *_warnings(graph, planned.plan, staleness)],
        "levels": list(searched.levels),
        "finished": searched.finished,
    }


def _needed_staleness(graph: Graph, plan: Plan) -> int:
    placed = {item.item: item.device for item in plan.items}
    folded = folded_graph(graph, plan)
    delays = {
        edge: NETWORK_CYCLES
        for edge, producer, _source, consumer, _sink in folded.edges
        if placed[producer.name] != placed[consumer.name]
    }
    return needed_staleness(folded, schedule(folded, plan_pace(plan).interval, delays), delays)


def _warnings(graph: Graph, plan: Plan, needed: int) -> list[str]:
    """What a user should know about the plan beside its numbers."""
    recipe = graph.recipe
    if recipe.staleness >= needed:
        return []
    lost = 1 - plan.throughput_fps / plan.steady_fps
    return [
        f"warning: the placed pipeline is {needed} frames deep, the recipe's staleness is {recipe.staleness}: each "
        f"batch of {recipe.batch} waits for its weights, and training gets {lost:.0%} less than the "
        f"{rate_text(plan.steady_fps)} frames/s inside a batch; raise the recipe's staleness or batch"
    ]
