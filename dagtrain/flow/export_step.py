"""`dagtrain export`: the trained network as an ONNX file, for any program that runs such."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dagtrain.files import write_bytes, write_text
from dagtrain.flow.import_step import IMPORT_COMMAND
from dagtrain.flow.placed import graph_of
from dagtrain.flow.records import ExportRecord, ImportRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.trained import STATE, load_checkpoint, load_trained, train_record
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, file_digest, read_json
from dagtrain.passes.replicate import advancing
from dagtrain.progress import Progress
from dagtrain.training.emulator import Emulator
from hdl.errors import DagtrainError
from importers.onnx.writing import IMAGE, SCORES, write_model


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What the user said."""

    # a checkpoint, or a folder that has one, of `train` or `drive`; None: what was trained last
    weights: Path | None = None


def run(workspace: Workspace, options: ExportOptions, progress: Progress) -> StepResult:
    """Export unless nothing changed."""
    file = options.weights
    if file is None:
        last = train_record(workspace)["epochs"][-1]
        notes = {"epochs": str(last["epoch"]), "held_out_accuracy": f"{last['held_out_accuracy']:.4f}"}
        emulate = partial(load_trained, workspace)
        depends = {step: workspace.fingerprint(step) for step in ("import", "train")}
    else:
        file = file / STATE if file.is_dir() else file
        if not file.is_file():
            raise DagtrainError(f"{file} does not exist", "give a checkpoint that `dagtrain train` or `drive` left")
        emulate, notes = partial(load_checkpoint, workspace, file), {}
        depends = {**graph_of(workspace), "weights": file_digest(file)}
    done = workspace.run("export", depends, lambda folder: _work(folder, workspace, emulate, notes, progress))
    folder = workspace.folder("export")
    meta = read_json(folder / "export.json", "dagtrain export", ExportRecord)
    lines = (
        f"{folder / meta['file']}: {meta['nodes']} operators, {meta['weights']:,} weights",
        f"input {meta['image']} (N, channels, height, width), prepared as for training; result {meta['scores']} "
        "(N, classes)",
    )
    return StepResult("export", folder, done, lines, {**meta, "path": str(folder / meta["file"])})


def _work(
    folder: Path,
    workspace: Workspace,
    emulate: Callable[[], Emulator],
    notes: Mapping[str, str],
    progress: Progress,
) -> None:
    progress.begin("export", 1)
    imported = read_json(workspace.folder("import") / "import.json", IMPORT_COMMAND, ImportRecord)
    emulator = emulate()
    values = emulator.executor.parameters()
    told = {"batches": str(emulator.executor.batches), **notes}
    if (copies := max(advancing(emulator.graph).values(), default=1)) > 1:
        # one model can't have the statistics of all; with those of one its scores are that copy's to the last bit
        told["statistics"] = f"of copy 0 of {copies}, over its frames; each copy of a norm keeps its own"
    model = write_model(emulator.graph, values, emulator.executor.states, told)
    file = f"{imported['name']}.onnx"
    write_bytes(folder / file, model.SerializeToString(deterministic=True))
    meta: Mapping[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "file": file,
        "image": IMAGE,
        "scores": SCORES,
        "nodes": len(model.graph.node),
        "weights": sum(value.size for value in values.values()),
    }
    write_text(folder / "export.json", json.dumps(meta, indent=1) + "\n")
    progress.end(note=file)
