"""`dagtrain report`: what the steps left -> one self-contained HTML page, and the placed graph as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagtrain.emission.manifest import MANIFEST, read_manifest
from dagtrain.files import write_text
from dagtrain.flow.cosim_step import TIMELINE
from dagtrain.flow.placed import load_placed_graph, load_plan
from dagtrain.flow.records import (
    CosimRecord,
    EfficiencyRecord,
    EmitRecord,
    ImportRecord,
    PlaceRecord,
    SimulationRecord,
    TimelineRecord,
    TimingRecord,
    TrainRecord,
)
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import COMMANDS, Workspace, read_json
from dagtrain.graph.summary import summarise
from dagtrain.planning.choices import plan_pace
from dagtrain.progress import Progress
from dagtrain.report.contents import Contents
from dagtrain.report.page import picture, render

PAGE = "report.html"
PICTURE = "graph.svg"
# steps whose results there must be
NEEDED = ("import", "place", "emit")
# steps whose results are shown if they are there and still hold
OPTIONAL: Mapping[str, type[Any]] = {"cosim": CosimRecord, "timing": TimingRecord, "train": TrainRecord}
# as these, but nobody is told that they are not there: few plans are simulated so
EXTRA: Mapping[str, type[Any]] = {"simulate": SimulationRecord}
SHOWN = {**OPTIONAL, **EXTRA}


def run(workspace: Workspace, progress: Progress) -> StepResult:
    """Write the report unless nothing changed."""
    shown = {step: workspace.holds(step) for step in SHOWN}
    contents = gather(workspace)
    depends = {
        **{step: workspace.fingerprint(step) for step in NEEDED},
        **{step: workspace.fingerprint(step) for step in shown if shown[step]},
        "commands": contents.commands,
    }
    done = workspace.run("report", depends, lambda folder: _work(folder, contents, progress))
    folder = workspace.folder("report")
    notes = tuple(note for note in (contents.cosim_note, contents.timing_note, contents.train_note) if note)
    lines = (f"{folder / PAGE} (one page, opens in any browser)", f"{folder / PICTURE} (the placed graph)", *notes)
    return StepResult("report", folder, done, lines, {"page": str(folder / PAGE), "picture": str(folder / PICTURE)})


def gather(workspace: Workspace) -> Contents:
    """What the steps left; raises `MissingStep` where one that a report needs is missing."""
    graph = load_placed_graph(workspace)
    place = workspace.require("place", COMMANDS["place"])
    emit = workspace.require("emit", COMMANDS["emit"])
    cosim, cosim_note = _optional(workspace, "cosim")
    timing, timing_note = _optional(workspace, "timing")
    train, train_note = _optional(workspace, "train")
    plan = load_plan(workspace)
    pace = plan_pace(plan)
    emitted = read_json(emit / "emit.json", COMMANDS["emit"], EmitRecord)
    return Contents(
        graph=graph,
        summary=summarise(graph),
        imported=read_json(workspace.folder("import") / "import.json", COMMANDS["import"], ImportRecord),
        plan=plan,
        folds=pace.folds,
        parts=pace.parts,
        placing=read_json(place / "place.json", COMMANDS["place"], PlaceRecord),
        emitted=emitted,
        manifests=[read_manifest(emit / device["name"] / MANIFEST) for device in emitted["devices"]],
        cosim=cosim,
        cosim_note=cosim_note,
        timing=timing,
        timing_note=timing_note,
        train=train,
        train_note=train_note,
        simulation=_optional(workspace, "simulate")[0],
        measured=_measured(workspace) if cosim else None,
        timeline=_timeline(workspace) if cosim else None,
        commands=_commands(workspace),
    )


def _commands(workspace: Workspace) -> tuple[str, ...]:
    """The commands that left what is shown, in the order of their steps."""
    steps = [step for step in COMMANDS if step in NEEDED or (step in SHOWN and workspace.holds(step))]
    return tuple(dict.fromkeys(workspace.made_by(step) for step in steps))


def _optional(workspace: Workspace, step: str) -> tuple[Mapping[str, Any] | None, str]:
    """What an optional step left; or None and the reason."""
    if not workspace.fingerprint(step):
        return None, f"`dagtrain {step}` has not been run; the report has no results of it"
    if not workspace.holds(step):
        return None, f"`dagtrain {step}` ran before an earlier step was run anew; run it again to see its results"
    return read_json(workspace.require(step, COMMANDS[step]) / f"{step}.json", COMMANDS[step], SHOWN[step]), ""


def _measured(workspace: Workspace) -> Sequence[Mapping[str, Any]] | None:
    path = workspace.folder("cosim") / "efficiency.json"
    if not path.exists():
        return None
    return read_json(path, COMMANDS["cosim"], EfficiencyRecord)["engines"]


def _timeline(workspace: Workspace) -> Mapping[str, Any] | None:
    path = workspace.folder("cosim") / TIMELINE
    return read_json(path, COMMANDS["cosim"], TimelineRecord) if path.exists() else None


def _work(folder: Path, contents: Contents, progress: Progress) -> None:
    progress.begin("report", 2)
    write_text(folder / PICTURE, picture(contents))
    progress.advance(note=PICTURE)
    write_text(folder / PAGE, render(contents))
    progress.end(note=PAGE)
