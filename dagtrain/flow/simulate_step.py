"""`dagtrain simulate`: how fast the cluster of the plan trains, without the values that it computes.

The exact level simulates the control of the files that `dagtrain emit` left, cycle for cycle as `dagtrain cosim` would;
the fast one the plan alone, by events of what layers declare.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagtrain.emission.links import NetworkModel
from dagtrain.files import write_text
from dagtrain.flow.cosim_network import FaultOptions
from dagtrain.flow.cosim_step import link_rates, load_emitted, memory_model, run_problems
from dagtrain.flow.emit_step import COMMAND, library, load_emitted_graph
from dagtrain.flow.placed import COMMAND as PLACE_COMMAND
from dagtrain.flow.placed import graph_of, load_placed_graph, load_plan, load_plan_cluster
from dagtrain.flow.records import SimulationRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.tools import SIMULATORS, require_tools
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.ir import Graph
from dagtrain.planning.choices import folded_graph
from dagtrain.planning.rate import wired
from dagtrain.progress import Progress
from dagtrain.schedule.wired import Wired
from dagtrain.simulate.exact import ExactOptions, simulate_exactly
from dagtrain.simulate.fast import simulate_fast
from dagtrain.simulate.result import HZ_PER_MHZ, Level, Simulation
from hdl.errors import DagtrainError
from hdl.simulate.models.link import LEAST_LATENCY
from placement.problem.cluster import Cluster
from placement.problem.plan import Plan

RESULT = "simulate.json"
# share of cycles in which hosts and network of the exact level stall, if nothing is said
STALL = 0.25
# boards that the summary names
SHOWN_BOARDS = 4
# drift of the pace, as a share, from which on it is told that more batches are wanted: stalls make some
STEADY_DRIFT = 0.01
# frames with every engine at work of which some that are late for once make the pace
FEW_FRAMES = 6


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(FaultOptions):
    """What the user said."""

    level: str = Level.EXACT.value
    batches: int = 4
    # instead, if fewer than a batch: the first so many; else at least so many, in whole batches
    frames: int | None = None
    # share of cycles in which hosts and network stall, of the exact level; None: `STALL` there
    stall: float | None = None
    latency_cycles: int = 200
    seed: int = 1


def run(workspace: Workspace, options: SimulateOptions, progress: Progress) -> StepResult:
    """Simulate unless nothing changed."""
    problems = run_problems(options.batches, options.stall or 0.0, options.latency_cycles)
    problems += options.network_problems()
    if options.level not in {*Level}:
        problems.append(f"--level must be one of {', '.join(Level)}, not {options.level}")
    if options.frames is not None and options.frames < 1:
        problems.append(f"--frames must be at least 1, not {options.frames}")
    fast = options.level == Level.FAST
    if fast and options.stall:
        problems.append(f"--stall {options.stall:g} is of --level exact: events know no stalls")
    if fast and options.said:
        problems.append(f"{', '.join(options.said)}: of --level exact, events know no frames")
    if problems:
        raise DagtrainError.listing("simulate", problems)
    if fast:
        workspace.require("place", PLACE_COMMAND)
        depends = {**graph_of(workspace), "place": workspace.fingerprint("place"), **asdict(options)}
    else:
        workspace.require("emit", COMMAND)
        depends = {"emit": workspace.fingerprint("emit"), **asdict(options)}
    done = workspace.run("simulate", depends, lambda folder: _work(folder, workspace, options, progress))
    folder = workspace.folder("simulate")
    meta = read_json(folder / RESULT, "dagtrain simulate", SimulationRecord)
    return StepResult("simulate", folder, done, _lines(meta), meta)


def _work(folder: Path, workspace: Workspace, options: SimulateOptions, progress: Progress) -> None:
    simulation = _simulated(folder, workspace, options, progress)
    write_text(
        folder / RESULT, json.dumps({"schema_version": SCHEMA_VERSION, **simulation.to_record()}, indent=1) + "\n"
    )


def _simulated(folder: Path, workspace: Workspace, options: SimulateOptions, progress: Progress) -> Simulation:
    if options.level == Level.FAST:
        return _by_events(workspace, options, progress)
    require_tools(*SIMULATORS["verilator"])
    delivered, cluster = load_emitted(workspace), load_plan_cluster(workspace)
    graph = folded_graph(load_emitted_graph(workspace), load_plan(workspace))
    stall_256 = round((STALL if options.stall is None else options.stall) * 256)
    exact = ExactOptions(
        batches=batches_of(options, graph.recipe.batch),
        results=first_of(options, graph.recipe.batch),
        network=NetworkModel(
            latency_cycles=options.latency_cycles,
            bits_per_s=link_rates(cluster),
            stall_256=stall_256,
            seed=options.seed,
            faults=options.faults(delivered),
        ),
        memory=memory_model(cluster, stall_256, options.seed),
        host_stall_256=stall_256,
        seed=options.seed,
    )
    return simulate_exactly(delivered, graph, library(), folder / "bench", exact, progress).simulation


def _by_events(workspace: Workspace, options: SimulateOptions, progress: Progress) -> Simulation:
    laid, clock_mhz = simulated(workspace, options.latency_cycles), load_plan_cluster(workspace).clock_hz / HZ_PER_MHZ
    batch = laid.graph.recipe.batch
    return simulate_fast(laid, batches_of(options, batch), clock_mhz, progress, frames=first_of(options, batch))


def simulated(workspace: Workspace, latency_cycles: int) -> Wired:
    """The plan as the fast level simulates it, with so many cycles from port to port."""
    placed = load_plan(workspace), load_placed_graph(workspace), load_plan_cluster(workspace)
    return plan_in_bench(*placed, latency_cycles)


def plan_in_bench(plan: Plan, graph: Graph, cluster: Cluster, latency_cycles: int) -> Wired:
    """A plan with the network of the exact level, so many cycles from port to port."""
    under_way = latency_cycles
    if cluster.routing is None:
        # through the switch, with the merges of most of its ways, as in the bench of the exact level
        under_way += LEAST_LATENCY + len({item.device for item in plan.items}) - 1
    return wired(plan, graph, cluster, under_way)


def batches_of(options: SimulateOptions, batch: int) -> int:
    """Whole batches that are simulated."""
    return options.batches if options.frames is None else -(-options.frames // batch)


def first_of(options: SimulateOptions, batch: int) -> int | None:
    """Frames of a batch that is not trained to its end; None where whole batches are."""
    return options.frames if options.frames is not None and options.frames < batch else None


def _unsteady(drift: float | None, batches: int) -> Iterator[str]:
    """That the pace is not what it will be."""
    if drift is not None and abs(drift) > STEADY_DRIFT:
        yield (
            f"the pace is not steady yet: the last batch took {abs(drift):.1%} {'more' if drift > 0 else 'less'} than "
            f"the one before, of the node that shows it most; `--batches {2 * batches}` tells more"
        )


def _full(meta: Mapping[str, Any]) -> Iterator[str]:
    """How it goes while every engine is at work, of a run that tells that."""
    full = meta["full"]
    if full is not None:
        first, frames = full["first_frame"] + 1, full["last_frame"] - full["first_frame"]
        fps = meta["clock_mhz"] * HZ_PER_MHZ / full["cycles_per_frame"]
        yield (
            f"with every engine at work, {frames} frames behind frame {first}: {fps:,.0f} frames/s, multipliers of all "
            f"boards idle {full['idle']:.1%}"
        )
        told, drift = len(meta["frame_cycles"]), full["drift"]
        if frames < FEW_FRAMES and told < meta["batch"]:
            yield f"of so few frames one that is late for once weighs much: `--frames {told + FEW_FRAMES}` tells more"
        if frames >= FEW_FRAMES and abs(drift) > STEADY_DRIFT:
            more = f"; `--frames {min(2 * told, meta['batch'])}` tells more" if told < meta["batch"] else ""
            yield (
                f"that pace is not steady: the later half of these frames came {abs(drift):.1%} "
                f"{'slower' if drift > 0 else 'faster'} than the earlier{more}"
            )
    elif len(meta["frame_cycles"]) < meta["batch"]:
        yield "no two frames came with every engine at work: more `--frames` tell that pace"


def _frames(meta: Mapping[str, Any]) -> str:
    count, batch = len(meta["frame_cycles"]), meta["batch"]
    return f"{count} frames in {len(meta['batches'])} batches" if count >= batch else f"{count} of {batch} frames"


def _filled(meta: Mapping[str, Any]) -> str:
    last = meta["batches"][-1]
    first = f"the last batch: {last['fill_cycles']:,} cycles to its first result"
    if len(meta["frame_cycles"]) < meta["batch"]:
        return first
    return f"{first}, {last['drain_cycles']:,} from its last to the last of the new weights"


def _lines(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """What a person wants to know."""
    frames, inside = meta["frames_per_second"], meta["frames_per_second_inside"]
    rates = [
        f"{frames:,.0f} frames/s in training" if frames else "one batch tells no interval between batches",
        *([f"{inside:,.0f} frames/s inside a batch"] if inside else []),
    ]
    binds = meta["binds"]
    # from batch to batch where there are several: a few of them fill and drain the pipeline for most of the time
    steady = len(meta["batches"]) > 1
    which = "in_training" if steady else "share"
    idle = sorted(meta["idle_by_device"], key=lambda one: -one[which])
    shown = [f"{one['device']} {one[which]:.1%}" for one in idle[:SHOWN_BOARDS]]
    return (
        f"{_frames(meta)}, {meta['cycles']:,} cycles of {meta['clock_mhz']:g} MHz, {meta['level']}; {'; '.join(rates)}",
        _filled(meta),
        *_unsteady(meta["drift"], len(meta["batches"])),
        *_full(meta),
        f"most at work: {binds['kind']} {binds['name']}, in {binds['share']:.1%} of all cycles",
        *(
            [
                f"multipliers idle{' from batch to batch' if steady else ''}: {', '.join(shown)}"
                f"{', …' if len(idle) > SHOWN_BOARDS else ''}"
            ]
            if idle
            else []
        ),
    )
