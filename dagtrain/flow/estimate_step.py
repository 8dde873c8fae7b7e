"""`dagtrain estimate`: what every layer is made of, read off its circuit; with --check, beside synthesis by Yosys."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dagtrain.files import write_text
from dagtrain.flow.emit_step import library
from dagtrain.flow.placed import graph_of, load_current_graph, load_plan
from dagtrain.flow.records import EstimateRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, digest, read_json
from dagtrain.graph.ir import Graph, Node
from dagtrain.planning.choices import Pace, chosen_graph, plan_choices, plan_pace
from dagtrain.progress import Progress
from hdl.convert.verilog import VerilogModule
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Resources, fit
from hdl.costs.synthesis import FABRIC, compare, longest_path, synthesis_digest, synthesise
from hdl.errors import DagtrainError, ToolError, ToolMissing, ToolTimeout
from hdl.parts.catalogue import part

# cycles a frame where neither the user nor a plan says how to fold
DEFAULT_CYCLES = 4096
# error beside synthesis that is called close
CLOSE = 0.02
# circuits of more ALMs are judged together, by the share that is so near
LARGE_ALM, NEAR_ALM = 200, 0.12
# time for one circuit's synthesis
SYNTHESIS_LIMIT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """What the user said."""

    check: bool = False
    # node names; all distinct circuits if empty
    layers: tuple[str, ...] = ()
    cycles: int | None = None
    # this many circuits drawn by seed, of all kinds of layers; all if None
    sample: int | None = None
    seed: int = 1
    # whose blocks are counted
    part: str = FABRIC


def run(workspace: Workspace, options: EstimateOptions, progress: Progress) -> StepResult:
    """Estimate unless nothing changed."""
    if options.cycles is not None and options.cycles < 1:
        raise DagtrainError(f"--cycles must be at least 1, not {options.cycles}")
    if options.sample is not None and (options.sample < 1 or options.layers):
        raise DagtrainError(f"--sample {options.sample}: a number of circuits, at least 1, and no --layer beside it")
    part(options.part)
    if options.check and options.part != FABRIC:
        raise DagtrainError(
            f"--check with --part {options.part}: synthesis is for {FABRIC}", "leave out --check, or --part"
        )
    graph = load_current_graph(workspace)
    if options.cycles is None and workspace.holds("place"):
        plan = load_plan(workspace)
        pace, graph = plan_pace(plan), chosen_graph(graph, plan_choices(plan))
    else:
        pace = Pace.of(graph, dict.fromkeys(graph.by_name, options.cycles or DEFAULT_CYCLES))
    cycles = pace.interval
    nodes = _chosen(pace.fold(graph), options.layers)
    if options.sample is not None:
        nodes = sampled(nodes, options.sample, options.seed)
    # a plan of the same interval may fold nodes otherwise, or keep their memories elsewhere
    circuits = digest({node.name: repr(node.layer) for node in nodes})
    depends = {**graph_of(workspace), **asdict(options), "cycles": cycles, "circuits": circuits}
    done = workspace.run("estimate", depends, lambda folder: _work(folder, nodes, cycles, options, progress))
    folder = workspace.folder("estimate")
    meta = read_json(folder / "estimate.json", "dagtrain estimate", EstimateRecord)
    return StepResult("estimate", folder, done, _table(meta, options.check), meta)


def _chosen(graph: Graph, names: tuple[str, ...]) -> list[Node]:
    """The nodes asked for, or one of each distinct circuit."""
    unknown = [name for name in names if name not in graph.by_name]
    if unknown:
        raise DagtrainError(f"no node named {', '.join(unknown)}", f"nodes are {', '.join(graph.by_name)}")
    if names:
        return [graph.by_name[name] for name in names]
    distinct: dict[str, Node] = {}
    for node in graph.circuits:
        if node.layer.sinks and node.layer.sources:
            distinct.setdefault(repr(node.layer), node)
    return list(distinct.values())


def sampled(nodes: Sequence[Node], number: int, seed: int) -> list[Node]:
    """``number`` of the nodes, drawn by ``seed``: one of each kind of layer, as far as it goes, then any."""
    draw = random.Random(seed)
    kinds: dict[str, list[Node]] = {}
    for node in nodes:
        kinds.setdefault(type(node.layer).__name__, []).append(node)
    first = [draw.choice(kinds[kind]) for kind in draw.sample(sorted(kinds), len(kinds))]
    names = {node.name for node in first}
    rest = [node for node in nodes if node.name not in names]
    return [*first, *draw.sample(rest, len(rest))][:number]


def _work(folder: Path, nodes: list[Node], cycles: int, options: EstimateOptions, progress: Progress) -> None:
    estimator, modules, target = Estimator(), library(), part(options.part)
    progress.begin("estimate and synthesise" if options.check else "estimate", len(nodes))
    rows: list[Mapping[str, Any]] = []
    for node in nodes:
        resources = estimator.layer(node.layer)
        usage = fit(resources, target)
        row: dict[str, Any] = {
            "node": node.name,
            "layer": type(node.layer).__name__,
            "cycles_per_frame": node.layer.cycles_per_frame,
            "multipliers": resources.multiplier_count,
            **asdict(usage),
        }
        if options.check:
            row.update(_check(modules.layer(node.layer).verilog, resources, sampled=options.sample is not None))
        rows.append(row)
        progress.advance(note=node.name)
    progress.end()
    meta = {"schema_version": SCHEMA_VERSION, "part": options.part, "cycles_per_frame": cycles, "layers": rows}
    write_text(folder / "estimate.json", json.dumps(meta, indent=1, default=str) + "\n")


def _check(module: VerilogModule, resources: Resources, *, sampled: bool) -> dict[str, Any]:
    """A circuit beside its synthesis; of a sample without the longest path, and where synthesis takes too long or gives
    up, that is told and the others go on."""
    try:
        found = compare(resources, synthesise(module, SYNTHESIS_LIMIT_S))
    except ToolTimeout:
        return {"unchecked": f"synthesis not finished in {SYNTHESIS_LIMIT_S:,.0f} s"}
    except ToolMissing:
        raise
    except ToolError as error:
        if not sampled:
            raise
        return {"unchecked": f"Yosys gave up: {_last_words(str(error))}"}
    row: dict[str, Any] = {
        "check": [
            {"quantity": item.quantity, "estimate": item.estimate, "synthesis": item.synthesis, "error": item.error}
            for item in found
        ],
        # under which the netlist is kept
        "digest": synthesis_digest(module),
    }
    return row if sampled else {**row, "longest_path_cells": longest_path(module)}


def _last_words(message: str) -> str:
    """What a tool said of its end, without its warnings."""
    lines = [line.strip() for line in message.splitlines()]
    told = [line for line in lines if line.startswith(("what():", "ERROR"))]
    return (told or lines[:1])[0].removeprefix("what():").strip()[:200]


def _table(meta: Mapping[str, Any], check: bool) -> tuple[str, ...]:
    target = part(meta["part"])
    memory, small, cell = target.block_memory, target.lut_memory.name, target.logic_cell.name
    head = f"{'node':<34}{'layer':<22}{'cycles':>9}{'DSP':>6}{memory:>8}{small:>8}{'regs':>8}{cell:>8}"
    lines = [f"on {meta['part']}, for {meta['cycles_per_frame']:,} cycles a frame", head]
    for row in meta["layers"]:
        lines.append(
            f"{row['node']:<34}{row['layer']:<22}{row['cycles_per_frame']:>9,}{row['dsp']:>6}{row['m20k']:>8}"
            f"{row['mlab']:>8}{row['registers']:>8,}{row['alm']:>8,}"
        )
        if "unchecked" in row:
            lines.append(f"    {row['unchecked']}")
        elif check:
            lines += [
                f"    {item['quantity']:<12} estimate {item['estimate']:>8,}  synthesis {item['synthesis']:>8,}  "
                f"error {item['error']:+.1%}"
                for item in row["check"]
            ]
        if "longest_path_cells" in row:
            lines.append(f"    longest path between registers: {row['longest_path_cells']} word-level cells")
    if check:
        lines += _agreement([item for row in meta["layers"] for item in row.get("check", ())])
    return tuple(lines)


def _agreement(items: list[Mapping[str, Any]]) -> list[str]:
    """How well each quantity of all layers agrees with synthesis."""
    lines = []
    for quantity in dict.fromkeys(item["quantity"] for item in items):
        errors = [item["error"] for item in items if item["quantity"] == quantity]
        sizes = [abs(error) for error in errors]
        exact, close = sum(size == 0 for size in sizes), sum(size <= CLOSE for size in sizes)
        share = f"exact in {exact} of {len(sizes)}, within {CLOSE:.0%} in {close}"
        lines.append(f"{quantity}: {share}, at most {max(sizes):.1%} off")
    large = [item["error"] for item in items if item["quantity"] == "alm" and item["synthesis"] > LARGE_ALM]
    if large:
        near = sum(abs(error) <= NEAR_ALM for error in large)
        lines.append(
            f"alm of {len(large)} circuits above {LARGE_ALM}: within {NEAR_ALM:.0%} in {near / len(large):.0%}, "
            f"mean size of the error {fmean(map(abs, large)):.1%}, mean error {fmean(large):+.1%}"
        )
    return lines
