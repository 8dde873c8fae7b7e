"""`dagtrain debug`: every beat inside the FPGAs beside the emulator, down to the first wrong word and who made it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dagtrain.cosim.circuits import Circuit, circuits
from dagtrain.cosim.cluster import simulate_cluster
from dagtrain.cosim.emitted import emitted_layer
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.trace import Traced, Traces, Wrong, traced_streams
from dagtrain.cosim.viewers import write_views
from dagtrain.cosim.waves import WaveKind, Window, chosen_waves, read_waves, write_waves
from dagtrain.files import open_archive, uninterrupted, write_text
from dagtrain.flow.cosim_step import (
    VIEWS,
    WAVES,
    CosimOptions,
    Prepared,
    clock_period_ps,
    inner_signals,
    prepared,
    run_problems,
)
from dagtrain.flow.emit_step import COMMAND as EMIT
from dagtrain.flow.emit_step import library
from dagtrain.flow.placed import load_plan
from dagtrain.flow.records import DebugRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.tools import SIMULATORS, require_tools
from dagtrain.flow.workspace import COMMANDS, SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress
from hdl.errors import DagtrainError
from hdl.fixed import IntArray

COMMAND = COMMANDS["debug"]
# codes of every tensor, as the simulated hardware sent them: edge -> (tensors, *shape)
SENT = "sent.npz"
# cycles of the waveform around the first wrong word
CYCLES_BEFORE, CYCLES_AFTER = 200, 50
# further streams that a message names
SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """What the user said."""

    batches: int = 2
    # share of cycles in which hosts and network stall
    stall: float = 0.25
    latency_cycles: int = 200
    # verilator or icarus
    simulator: str = "verilator"
    data: str | None = None
    weights: Path | None = None
    seed: int = 1
    # of the waveform around the first wrong word: vcd or fst
    waves: str = "vcd"
    # with all signals inside the circuit that made it, in Verilator
    wave_inside: bool = True

    @property
    def cosim(self) -> CosimOptions:
        """The co-simulation that is looked into."""
        return CosimOptions(**{**asdict(self), "waves": None, "wave_inside": False}, efficiency=False)


def run(workspace: Workspace, options: DebugOptions, progress: Progress) -> StepResult:
    """Look into a co-simulation unless nothing changed."""
    check(options)
    workspace.require("emit", EMIT)
    depends = {"emit": workspace.fingerprint("emit"), **asdict(options)}
    done = workspace.run("debug", depends, lambda folder: _work(folder, workspace, options, progress))
    folder = workspace.folder("debug")
    meta = read_json(folder / "debug.json", COMMAND, DebugRecord)
    return StepResult("debug", folder, done, tuple(meta["lines"]), meta, passed=meta["equal"])


def check(options: DebugOptions) -> None:
    """Raises `DagtrainError` naming all options that can't be."""
    problems = run_problems(options.batches, options.stall, options.latency_cycles)
    kinds = [kind.value for kind in WaveKind]
    if options.waves not in kinds:
        problems.append(f"--waves must be one of {', '.join(kinds)}, not {options.waves}")
    known = [simulator.value for simulator in Simulator]
    if options.simulator not in known:
        problems.append(f"--simulator must be one of {', '.join(known)}, not {options.simulator}")
    if problems:
        raise DagtrainError.listing("debug", problems)


def load_sent(workspace: Workspace) -> dict[str, IntArray]:
    """Edge -> codes of every tensor that the simulated hardware sent, of the last `dagtrain debug`."""
    folder = workspace.require("debug", COMMAND)
    with open_archive(folder / SENT) as file:
        return {edge: np.asarray(file[edge], np.int64) for edge in file.files}


def _work(folder: Path, workspace: Workspace, options: DebugOptions, progress: Progress) -> None:
    require_tools(*SIMULATORS[options.simulator])
    ready = prepared(workspace, options.cosim)
    bench = folder / "bench"
    traces, ended = _traced(ready, options, bench, Window(1, 0), progress)
    lines = []
    if traces.wrong:
        first = traces.wrong[0]
        around = Window(max(0, first.cycle - CYCLES_BEFORE), first.cycle + CYCLES_AFTER)
        inside = _maker(ready, first) if options.wave_inside and options.simulator == "verilator" else ()
        _traced(ready, options, bench, around, progress, inside)
        waves = read_waves(bench, traced_streams(ready.delivered.devices, ready.graph), ready.graph)
        near = chosen_waves(waves, sorted(_beside(ready.graph, first)), None, around)
        plan = load_plan(workspace)
        inner = inner_signals(bench, ready, options.seed, plan, inside, near)
        period_ps = clock_period_ps(plan)
        file = write_waves(folder / WAVES, near, WaveKind(options.waves), period_ps, inner)
        write_views(file, near, inner, first.cycle * period_ps)
        result = workspace.folder("debug") / file.name
        lines = [
            f"{result} shows {len(near)} streams around cycle {first.cycle:,}"
            + "".join(f", and {len(inner)} signals inside {one.nodes[0]}" for one in inside),
            f"beside it {VIEWS}",
        ]
    with uninterrupted():
        np.savez_compressed(folder / SENT, allow_pickle=False, **dict(traces.sent))
    meta = _meta(workspace, ready, traces, ended)
    meta |= {"seed": options.seed, "data": options.data, "lines": [*meta["lines"], *lines]}
    write_text(folder / "debug.json", json.dumps(meta, indent=1) + "\n")


def _traced(
    ready: Prepared,
    options: DebugOptions,
    bench: Path,
    window: Window,
    progress: Progress,
    inside: Sequence[Circuit] = (),
) -> tuple[Traces, str]:
    """All beats beside the emulator, and why the simulation ended early, if it did."""
    found: list[Traces] = []
    ended = ""
    try:
        simulate_cluster(
            ready.delivered, ready.graph, library(), ready.feeds, bench, Simulator(options.simulator),
            ready.network, ready.stall_256, options.seed, progress, optimise=False, memory=ready.memory,
            on_traces=found.append, waves=window.arguments, inside=inside,
        )  # fmt: skip
    except DagtrainError as error:
        # what was seen until then is what is asked for
        if not found:
            raise
        ended = str(error)
    (traces,) = found
    return traces, ended


def _maker(ready: Prepared, wrong: Wrong) -> tuple[Circuit, ...]:
    """The circuit that made a wrong word; none where one that was sent right got wrong behind it."""
    if not wrong.traced.produced:
        return ()
    return tuple(one for one in circuits(ready.delivered.devices, ready.graph) if wrong.traced.node in one.nodes)


def _beside(graph: Graph, wrong: Wrong) -> set[str]:
    """The node of a wrong word, and those that it reads from."""
    node = graph.by_name[wrong.traced.node]
    return {node.name, *(graph.producers[edge][0].name for edge in node.inputs.values() if edge in graph.producers)}


def _meta(workspace: Workspace, ready: Prepared, traces: Traces, ended: str) -> dict[str, Any]:
    short = traces.short if ended else ()
    return {
        "schema_version": SCHEMA_VERSION,
        "equal": not traces.wrong and not ended,
        "batches": len(ready.feeds),
        "streams": traces.streams,
        "compared_words": traces.words,
        "ended": ended,
        "first_wrong": _as_data(traces.wrong[0]) if traces.wrong else None,
        "also_wrong": [_as_data(wrong) for wrong in traces.wrong[1:]],
        "lines": [
            *_verdict(workspace, ready.graph, traces),
            *([f"the simulation ended early: {ended}"] if ended else ()),
            *(
                f"{_named(one)}: {got:,} of {wanted:,} beats came"
                for one, got, wanted in sorted(short, key=lambda each: each[1] / each[2])[:SHOWN]
            ),
        ],
    }


def _verdict(workspace: Workspace, graph: Graph, traces: Traces) -> list[str]:
    count = f"{traces.words:,} words of {traces.streams} streams inside the FPGAs"
    if not traces.wrong:
        return [f"{count}: every bit as the emulator has it"]
    first, *others = traces.wrong
    lines = [f"first wrong: {_named(first.traced)}: {first.element}: {first.numbers}, in cycle {first.cycle:,}"]
    lines += _cause(workspace, graph, first, others)
    if others:
        names = list(dict.fromkeys(wrong.traced.node for wrong in others if wrong.traced.node != first.traced.node))
        more = f" and {len(names) - SHOWN} more nodes" if len(names) > SHOWN else ""
        lines.append(f"later wrong too, {len(others)} streams: {', '.join(names[:SHOWN]) or first.traced.node}{more}")
    return [*lines, f"{count} were compared; `dagtrain probe {first.traced.edge}` shows the tensor"]


def _cause(workspace: Workspace, graph: Graph, first: Wrong, others: list[Wrong]) -> list[str]:
    """Who made the word, and whether what it was made of was right."""
    one = first.traced
    node = graph.by_name[one.node]
    if not one.produced:
        producer = graph.producers[one.edge][0].name
        return [f"{producer} sent it right, so it changed between {producer} and {one.node}: fork, FIFO, DRAM or link"]
    inputs = set(node.inputs.values())
    late = sorted({wrong.traced.edge for wrong in others if wrong.traced.edge in inputs})
    read = f"{', '.join(late)} wrong only later" if late else "all that it reads is right throughout"
    try:
        module = emitted_layer(workspace.folder("emit"), node.name)
        where = f"its circuit is {module.sources[0]}"
    except DagtrainError as error:
        where = error.what
    return [f"{node.name} ({type(node.layer).__name__}, {node.role.value}) made it, {read}; {where}"]


def _named(one: Traced) -> str:
    place = f"from {one.node}" if one.produced else f"as {one.node} gets it"
    return f"{one.edge} {place} on {one.device}"


def _as_data(wrong: Wrong) -> dict[str, Any]:
    one, element = wrong.traced, wrong.element
    return {
        "edge": one.edge,
        "node": one.node,
        "port": one.port,
        "device": one.device,
        "sent": one.produced,
        # counted from 0; None: as loaded
        "batch": element.batch,
        "frame": element.frame,
        "index": list(element.index),
        "found": wrong.found,
        "expected": wrong.expected,
        "format": str(wrong.fixed),
        "cycle": wrong.cycle,
    }
