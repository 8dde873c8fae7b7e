"""`dagtrain estimate`: what every layer is made of, read off its circuit; with --check, beside synthesis by Yosys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagtrain.files import write_text
from dagtrain.flow.emit_step import library
from dagtrain.flow.place_step import graph_of, load_current_graph, load_plan
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, digest, read_json
from dagtrain.ir import Graph, Node
from dagtrain.passes.fold import fold_graph
from dagtrain.planning.choices import Pace, chosen_graph, plan_choices, plan_pace
from dagtrain.progress import Progress
from hdl.errors import DagtrainError
from hdl.estimate import Estimator
from hdl.parts import part
from hdl.resources import fit
from hdl.synthesis import FABRIC, compare, longest_path, synthesise

# cycles a frame where neither the user nor a plan says how to fold
DEFAULT_CYCLES = 4096
# error beside synthesis that is called close
CLOSE = 0.02


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """What the user said."""

    check: bool = False
    # node names; all distinct circuits if empty
    layers: tuple[str, ...] = ()
    cycles: int | None = None


def run(workspace: Workspace, options: EstimateOptions, progress: Progress) -> StepResult:
    """Estimate unless nothing changed."""
    if options.cycles is not None and options.cycles < 1:
        raise DagtrainError(f"--cycles must be at least 1, not {options.cycles}")
    graph = load_current_graph(workspace)
    if options.cycles is None and workspace.holds("place"):
        plan = load_plan(workspace)
        pace, graph = plan_pace(plan), chosen_graph(graph, plan_choices(plan))
    else:
        pace = Pace.of(graph, dict.fromkeys(graph.by_name, options.cycles or DEFAULT_CYCLES))
    cycles = pace.interval
    nodes = _chosen(fold_graph(graph, pace.folds), options.layers)
    # a plan of the same interval may fold nodes otherwise, or keep their memories elsewhere
    circuits = digest({node.name: repr(node.layer) for node in nodes})
    depends = {**graph_of(workspace), **asdict(options), "cycles": cycles, "circuits": circuits}
    done = workspace.run("estimate", depends, lambda folder: _work(folder, nodes, cycles, options, progress))
    folder = workspace.folder("estimate")
    meta = read_json(folder / "estimate.json", "dagtrain estimate")
    return StepResult("estimate", folder, done, _table(meta, options.check), meta)


def _chosen(graph: Graph, names: tuple[str, ...]) -> list[Node]:
    """The nodes asked for, or one of each distinct circuit."""
    unknown = [name for name in names if name not in graph.by_name]
    if unknown:
        raise DagtrainError(f"no node named {', '.join(unknown)}; nodes are {', '.join(graph.by_name)}")
    if names:
        return [graph.by_name[name] for name in names]
    distinct: dict[str, Node] = {}
    for node in graph.nodes:
        if node.layer.sinks and node.layer.sources:
            distinct.setdefault(repr(node.layer), node)
    return list(distinct.values())


def _work(folder: Path, nodes: list[Node], cycles: int, options: EstimateOptions, progress: Progress) -> None:
    estimator, modules, fabric = Estimator(), library(), part(FABRIC)
    progress.begin("estimate and synthesise" if options.check else "estimate", len(nodes))
    rows: list[Mapping[str, Any]] = []
    for node in nodes:
        resources = estimator.layer(node.layer)
        usage = fit(resources, fabric)
        row: dict[str, Any] = {
            "node": node.name,
            "layer": type(node.layer).__name__,
            "cycles_per_frame": node.layer.cycles_per_frame,
            "multipliers": resources.multiplier_count,
            **asdict(usage),
        }
        if options.check:
            module = modules.layer(node.layer).verilog
            row["check"] = [
                {"quantity": item.quantity, "estimate": item.estimate, "synthesis": item.synthesis, "error": item.error}
                for item in compare(resources, synthesise(module))
            ]
            row["longest_path_cells"] = longest_path(module)
        rows.append(row)
        progress.advance(note=node.name)
    progress.end()
    meta = {"schema_version": SCHEMA_VERSION, "part": FABRIC, "cycles_per_frame": cycles, "layers": rows}
    write_text(folder / "estimate.json", json.dumps(meta, indent=1, default=str) + "\n")


def _table(meta: Mapping[str, Any], check: bool) -> tuple[str, ...]:
    head = f"{'node':<34}{'layer':<22}{'cycles':>9}{'DSP':>6}{'M20K':>6}{'MLAB':>6}{'regs':>8}{'ALM':>8}"
    lines = [f"on {meta['part']}, for {meta['cycles_per_frame']:,} cycles a frame", head]
    for row in meta["layers"]:
        lines.append(
            f"{row['node']:<34}{row['layer']:<22}{row['cycles_per_frame']:>9,}{row['dsp']:>6}{row['m20k']:>6}"
            f"{row['mlab']:>6}{row['registers']:>8,}{row['alm']:>8,}"
        )
        if check:
            lines += [
                f"    {item['quantity']:<12} estimate {item['estimate']:>8,}  synthesis {item['synthesis']:>8,}  "
                f"error {item['error']:+.1%}"
                for item in row["check"]
            ]
            lines.append(f"    longest path between registers: {row['longest_path_cells']} word-level cells")
    if check:
        lines += _agreement([item for row in meta["layers"] for item in row["check"]])
    return tuple(lines)


def _agreement(items: list[Mapping[str, Any]]) -> list[str]:
    """How often each quantity of all layers agrees with synthesis."""
    lines = []
    for quantity in dict.fromkeys(item["quantity"] for item in items):
        errors = [abs(item["error"]) for item in items if item["quantity"] == quantity]
        exact, close = sum(error == 0 for error in errors), sum(error <= CLOSE for error in errors)
        share = f"exact in {exact} of {len(errors)}, within {CLOSE:.0%} in {close}"
        lines.append(f"{quantity}: {share}, at most {max(errors):.1%} off")
    return lines
