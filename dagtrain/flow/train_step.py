"""`dagtrain train`: the hardware's exact arithmetic on a data set, in the fast emulator, resumable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagtrain.files import write_text
from dagtrain.flow.import_step import data_digest
from dagtrain.flow.placed import graph_of, load_current_graph
from dagtrain.flow.records import ImportRecord, TrainRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph
from dagtrain.graph.storage import save_arrays
from dagtrain.progress import Progress
from dagtrain.training.data import Dataset, load_dataset
from dagtrain.training.emulator import Emulator, Metrics
from dagtrain.training.feeds import check_dataset
from hdl.errors import DagtrainError

# of an interrupted training, in the working folder
CHECKPOINT = ".train-checkpoint.npz"
# of the images, held out of training
HELD_OUT = 0.2


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What the user said."""

    epochs: int = 8
    data: str | None = None
    seed: int = 1


def run(workspace: Workspace, options: TrainOptions, progress: Progress) -> StepResult:
    """Train unless nothing changed."""
    if options.epochs < 1:
        raise DagtrainError(f"--epochs must be at least 1, not {options.epochs}")
    imported = read_json(
        workspace.require("import", "dagtrain import MODEL.onnx") / "import.json",
        "dagtrain import MODEL.onnx",
        ImportRecord,
    )
    source = options.data or imported["data"]
    if source is None:
        raise DagtrainError("train needs data: give --data FILE.npz (images, labels), here or to `dagtrain import`")
    depends = {**asdict(options), "data": data_digest(source), **graph_of(workspace)}
    done = workspace.run("train", depends, lambda folder: _work(folder, workspace, source, options, depends, progress))
    folder = workspace.folder("train")
    meta = read_json(folder / "train.json", "dagtrain train", TrainRecord)
    last = meta["epochs"][-1]
    lines = (
        f"{len(meta['epochs'])} epochs of {meta['train_frames']} frames: held-out accuracy "
        f"{last['held_out_accuracy']:.2%} of {meta['held_out_frames']}, loss {last['held_out_loss']:.4f}",
    )
    return StepResult("train", folder, done, lines, meta)


def _work(
    folder: Path,
    workspace: Workspace,
    source: str,
    options: TrainOptions,
    depends: Mapping[str, Any],
    progress: Progress,
) -> None:
    graph = load_current_graph(workspace)
    data, held_out = check_dataset(graph, load_dataset(source), source).split(HELD_OUT, options.seed)
    emulator = Emulator(graph)
    checkpoint = workspace.root / CHECKPOINT
    epochs = _resume(emulator, checkpoint, depends)
    progress.begin("train", options.epochs * (len(data) // graph.recipe.batch))
    progress.advance(emulator.executor.batches)
    for epoch in range(len(epochs), options.epochs):
        trained = emulator.train_epoch(data, options.seed, epoch, lambda _n, m: progress.advance(note=str(m)))
        tested = emulator.evaluate(held_out)
        epochs.append(_record(epoch, trained, tested))
        emulator.save(checkpoint, {"depends": depends, "epochs": epochs})
    progress.end(note=f"held out {epochs[-1]['held_out_accuracy']:.2%}")
    _write(folder, graph, emulator, data, held_out, epochs)
    checkpoint.unlink(missing_ok=True)


def _resume(emulator: Emulator, checkpoint: Path, depends: Mapping[str, Any]) -> list[dict[str, float]]:
    """Epochs that an interrupted run of the same training has behind it; its state is taken up."""
    if not checkpoint.exists():
        return []
    fresh = emulator.executor
    try:
        record = emulator.load(checkpoint)
        if record["depends"] == json.loads(json.dumps(depends)):
            epochs: list[dict[str, float]] = record["epochs"]
            return epochs
    except (KeyError, TypeError, DagtrainError):
        # damaged, or of another training: this one begins anew
        pass
    emulator.executor = Executor(fresh.graph, fresh.mode)
    return []


def _record(epoch: int, trained: Metrics, tested: Metrics) -> dict[str, float]:
    return {
        "epoch": epoch + 1,
        "train_loss": trained.loss,
        "train_accuracy": trained.accuracy,
        "held_out_loss": tested.loss,
        "held_out_accuracy": tested.accuracy,
    }


def _write(
    folder: Path, graph: Graph, emulator: Emulator, data: Dataset, held_out: Dataset, epochs: list[dict[str, float]]
) -> None:
    save_arrays(folder / "weights.npz", emulator.executor.parameters())
    meta = {
        "schema_version": SCHEMA_VERSION,
        "graph": graph.name,
        "recipe": asdict(graph.recipe),
        "train_frames": len(data),
        "held_out_frames": len(held_out),
        "epochs": epochs,
    }
    write_text(folder / "train.json", json.dumps(meta, indent=1) + "\n")
