"""`dagtrain export`: the trained network as an ONNX file, for any program that runs such."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dagtrain.files import write_bytes, write_text
from dagtrain.flow.import_step import IMPORT_COMMAND
from dagtrain.flow.records import ExportRecord, ImportRecord, TrainRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.trained import load_trained, train_record
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, read_json
from dagtrain.progress import Progress
from importers.onnx.writing import IMAGE, SCORES, write_model


def run(workspace: Workspace, progress: Progress) -> StepResult:
    """Export unless nothing changed."""
    trained = train_record(workspace)
    depends = {step: workspace.fingerprint(step) for step in ("import", "train")}
    done = workspace.run("export", depends, lambda folder: _work(folder, workspace, trained, progress))
    folder = workspace.folder("export")
    meta = read_json(folder / "export.json", "dagtrain export", ExportRecord)
    lines = (
        f"{folder / meta['file']}: {meta['nodes']} operators, {meta['weights']:,} weights",
        f"input {meta['image']} (N, channels, height, width), prepared as for training; result {meta['scores']} "
        "(N, classes)",
    )
    return StepResult("export", folder, done, lines, {**meta, "path": str(folder / meta["file"])})


def _work(folder: Path, workspace: Workspace, trained: TrainRecord, progress: Progress) -> None:
    progress.begin("export", 1)
    imported = read_json(workspace.folder("import") / "import.json", IMPORT_COMMAND, ImportRecord)
    emulator = load_trained(workspace)
    values = emulator.executor.parameters()
    last = trained["epochs"][-1]
    notes = {"epochs": str(last["epoch"]), "held_out_accuracy": f"{last['held_out_accuracy']:.4f}"}
    model = write_model(emulator.graph, values, emulator.executor.states, notes)
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
