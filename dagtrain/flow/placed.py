"""What `dagtrain place` leaves, for the steps that rest on it and for itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagtrain.emission.cables import cables_between
from dagtrain.files import write_text
from dagtrain.flow.import_step import IMPORT_COMMAND, load_training_graph, parts_from_json, parts_to_json, read_graph
from dagtrain.flow.records import PlaceRecord
from dagtrain.flow.workspace import COMMANDS, SCHEMA_VERSION, MissingStep, Workspace, read_json
from dagtrain.graph.ir import Graph
from dagtrain.graph.storage import save_graph
from dagtrain.passes.form import Form
from dagtrain.passes.replicate import NormSync, copies_from_json, copies_to_json
from dagtrain.planning.choices import Pace, folded_graph, plan_pace
from dagtrain.planning.former import FormedPlan
from dagtrain.planning.levels import never_idle_fps
from dagtrain.planning.queues import edges_that_wait, ends_of
from dagtrain.planning.rate import wired
from dagtrain.planning.results import Planned, Searched, Start
from dagtrain.rates import rate_text
from dagtrain.schedule.batch_time import busy_ports
from dagtrain.schedule.network import Output, PortEnd
from dagtrain.schedule.schedule import needed_staleness, schedule
from dagtrain.schedule.wired import Wired
from hdl.errors import DagtrainError
from hdl.records import first
from placement.problem.cluster import Cluster, read_cluster, with_mtu
from placement.problem.instance import Instance, instance_from_json, instance_to_json
from placement.problem.plan import Plan, plan_from_json
from placement.problem.validate import violations

COMMAND = COMMANDS["place"]
# the graph with layers in parts
GRAPH = "graph.json"
# the plan, and the instance that it speaks of
PLAN, INSTANCE = "plan.json", "instance.json"
# files of the search that found the plan
SEARCHED_PLAN, SEARCHED_INSTANCE = "searched-plan.json", "searched-instance.json"
# nodes up to which it is worked out what another staleness would bring: where ports of many boards are full that takes
# as long as the search
WORKED_OUT_NODES = 1000
# share of a frame's time from which on several ports that are busy slow a pipeline down (`benchmarks/full_ports.py`),
# and how many are named
FULL_PORT, SHOWN_PORTS = 0.95, 4


def load_plan(workspace: Workspace) -> Plan:
    """The plan that `place` left, valid for the instance beside it."""
    return _valid_plan(workspace.require("place", COMMAND), PLAN, INSTANCE)[0]


def load_searched(workspace: Workspace) -> Searched:
    """The search that found the plan: many levels, ports and memories as estimates."""
    folder = workspace.require("place", COMMAND)
    meta = read_json(folder / "place.json", COMMAND, PlaceRecord)
    plan, instance = _valid_plan(folder, SEARCHED_PLAN, SEARCHED_INSTANCE)
    return Searched(plan, instance, tuple(meta["levels"]), meta["finished"])


def _read_plan(folder: Path, plan_name: str, instance_name: str) -> tuple[Plan, Instance]:
    """A plan and its instance.  Raises `MissingStep` for what can't be read."""
    path = folder / plan_name
    try:
        plan = plan_from_json(path.read_text())
        path = folder / instance_name
        instance = instance_from_json(path.read_text())
    except OSError as error:
        raise MissingStep(f"{path} cannot be read: {error.strerror}", f"run `{COMMAND}` again") from error
    except (DagtrainError, UnicodeDecodeError) as error:
        raise MissingStep(f"{path} is damaged ({error})", f"run `{COMMAND}` again") from error
    return plan, instance


def _valid_plan(folder: Path, plan_name: str, instance_name: str) -> tuple[Plan, Instance]:
    """As `_read_plan`, and valid: no violation by its instance."""
    plan, instance = _read_plan(folder, plan_name, instance_name)
    problems = [str(violation) for violation in violations(instance, plan)]
    if problems:
        head = f"{folder / plan_name} is no plan of {instance_name}"
        raise MissingStep.listing(head, first(problems), f"run `{COMMAND}` again")
    return plan, instance


def load_plan_cluster(workspace: Workspace) -> Cluster:
    """The cluster that the plan is for."""
    cluster = read_cluster(workspace.require("place", COMMAND) / "cluster.toml")
    return with_mtu(cluster, load_plan(workspace).mtu) if cluster.network.chooses_mtu else cluster


def load_placed_graph(workspace: Workspace) -> Graph:
    """The training graph that the plan is for: the imported one, or one with layers in parts that `place` left."""
    if not workspace.holds("place"):
        workspace.require("import", IMPORT_COMMAND)
    own = workspace.require("place", COMMAND) / GRAPH
    return read_graph(own, COMMAND) if own.is_file() else load_training_graph(workspace)


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


def load_start(workspace: Workspace) -> Start | None:
    """The unfinished search on disk; None if it cannot be read."""
    folder = workspace.folder("place")
    try:
        meta = read_json(folder / "place.json", COMMAND, PlaceRecord)
        plan, instance = _valid_plan(folder, PLAN, INSTANCE)
        # whether the search can go on from its plan, the search itself tells
        searched, searched_on = _read_plan(folder, SEARCHED_PLAN, SEARCHED_INSTANCE)
        levels = tuple(meta["levels"])
        planned = Planned(plan, instance, Searched(searched, searched_on, levels, finished=False))
        parts, copies = parts_from_json(meta["splits"]), copies_from_json(meta["copies"])
        form = Form(parts, copies, NormSync(meta["norm_sync"]), frozenset(meta["remote"]))
        return Start(searched, levels, form, planned)
    except DagtrainError:
        return None


def write_placed(folder: Path, found: FormedPlan, imported: Graph, devices: Path, notes: Mapping[str, Any]) -> None:
    """The files of a plan: its own graph too where that is not the imported one; ``devices``: the cluster file."""
    if found.graph is not imported:
        save_graph(found.graph, folder / GRAPH)
    planned, searched = found.planned, found.planned.searched
    assert searched is not None
    write_text(folder / PLAN, planned.plan.to_json())
    write_text(folder / INSTANCE, instance_to_json(planned.instance))
    write_text(folder / SEARCHED_PLAN, searched.plan.to_json())
    write_text(folder / SEARCHED_INSTANCE, instance_to_json(searched.instance))
    shutil.copyfile(devices, folder / "cluster.toml")
    cluster = with_mtu(read_cluster(devices), planned.plan.mtu)
    form = {"splits": parts_to_json(found.form.parts), "copies": copies_to_json(found.form.copies)}
    form |= {"norm_sync": found.form.norm_sync.value}
    form |= {"remote": sorted(found.form.remote), "share_without_stores": found.share_without_stores}
    meta = {**_meta(found, planned, searched, cluster), **form, **notes}
    write_text(folder / "place.json", json.dumps(meta, indent=1) + "\n")


def _meta(found: FormedPlan, planned: Planned, searched: Searched, cluster: Cluster) -> dict[str, object]:
    laid = wired(planned.plan, found.graph, cluster)
    staleness = _needed_staleness(laid, plan_pace(planned.plan), cluster)
    return {
        "schema_version": SCHEMA_VERSION,
        "needed_staleness": staleness,
        "never_idle_fps": never_idle_fps(found.graph, planned.plan, cluster),
        "warnings": [*found.warnings, *_warnings(laid, planned.plan, staleness)],
        "levels": list(searched.levels),
        "finished": searched.finished,
    }


def _needed_staleness(laid: Wired, pace: Pace, cluster: Cluster) -> int:
    ways = {edge: cables_between(hop.source, hop.target, cluster.routing) for edge, hop in laid.hops.items()}
    delays = {edge: cluster.network_cycles * cables for edge, cables in ways.items()}
    return needed_staleness(laid.graph, schedule(laid.graph, pace.interval, delays, pace.periods), delays)


def _warnings(laid: Wired, plan: Plan, needed: int) -> list[str]:
    """What a user should know about the plan beside its numbers."""
    return [*_impatient(laid, plan, needed), *_full_ports(laid, plan.cycles_per_frame)]


def _full_ports(laid: Wired, frame_cycles: float) -> Iterator[str]:
    """That turns at ports may cost what a pace of so many cycles does not know of: of streams whose words have no room
    to wait."""
    graph, hops = laid.graph, laid.hops
    waiting = [edge for edge in edges_that_wait(laid, frame_cycles) if edge not in graph.queued]
    passed = {end for edge in waiting for end in ends_of(hops[edge])}
    shares = {end: cycles / frame_cycles for end, cycles in busy_ports(graph, hops).items() if end in passed}
    full = sorted((end for end, share in shares.items() if share > FULL_PORT), key=lambda end: (-shares[end], str(end)))
    if len(full) > 1:
        shown = ", ".join(f"{_port_name(end)} {shares[end]:.1%}" for end in full[:SHOWN_PORTS])
        yield (
            f"warning: {len(full)} ports have words in over {FULL_PORT:.0%} of a frame's time ({shown}"
            f"{', …' if len(full) > SHOWN_PORTS else ''}): streams wait for one another there, memories have no room "
            f"for the words of {len(waiting)} of them, and training may be some per cent slower than told; "
            "`dagtrain simulate --level fast` says how fast it is"
        )


def _port_name(end: PortEnd) -> str:
    if isinstance(end, Output):
        return f"{end.device} -> {end.target}"
    device, sends = end
    return f"{device} {'sending' if sends else 'receiving'}"


def _impatient(laid: Wired, plan: Plan, needed: int) -> list[str]:
    """That batches wait for weights, and what would help."""
    recipe = laid.graph.recipe
    if recipe.staleness >= needed:
        return []
    most, lost = min(needed, recipe.batch), 1 - plan.throughput_fps / plan.steady_fps
    cure = f"a staleness of up to {most} may cost less (not worked out for so many nodes)"
    if len(laid.graph.nodes) <= WORKED_OUT_NODES:
        patient = replace(laid, graph=replace(laid.graph, recipe=replace(recipe, staleness=most))).batch_time
        with_needed = plan.clock_hz / max(float(patient.cycles_per_frame), plan.cycles_per_frame)
        cure = f"with a staleness of {most} it would get {rate_text(with_needed)}"
    return [
        f"warning: the placed pipeline is {needed} frames deep, the recipe's staleness is {recipe.staleness}: each "
        f"batch of {recipe.batch} waits for its weights, and training gets {lost:.0%} less than the "
        f"{rate_text(plan.steady_fps)} frames/s inside a batch; {cure}, and larger batches wait less often"
    ]
