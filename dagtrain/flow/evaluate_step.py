"""`dagtrain evaluate`: accuracy, loss and confusion of a checkpoint or of an ONNX file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

from dagtrain.files import write_text
from dagtrain.flow.placed import graph_of
from dagtrain.flow.records import EvaluateRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.trained import STATE, load_checkpoint, load_trained, train_record
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, file_digest, read_json
from dagtrain.progress import Progress
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import Metrics
from dagtrain.training.feeds import check_dataset
from dagtrain.training.spec import DataChoice, choose_data
from hdl.errors import DagtrainError
from hdl.fixed import FloatArray
from importers.onnx.load import load_proto

Array = npt.NDArray[Any]

# frames at once
FRAMES = 256
# pairs of classes that the summary names
SHOWN_PAIRS = 3


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What the user said."""

    # an ONNX file, a checkpoint, or a folder that has one; None: what was trained last
    what: Path | None = None
    # all of it is judged by; None: what training held out
    data: str | None = None


@dataclass(frozen=True)
class Judged:
    """Data to judge by."""

    choice: DataChoice
    # what to call it
    name: str
    # of the training that held a part out, which is judged by; None: all of it
    seed: int | None = None

    def load(self) -> Dataset:
        """The images."""
        return self.choice.load() if self.seed is None else self.choice.parts(self.seed)[1]


def run(workspace: Workspace, options: EvaluateOptions, progress: Progress) -> StepResult:
    """Evaluate unless nothing changed."""
    path = _path(options.what)
    judged = _judged(workspace, options.data)
    depends: dict[str, Any] = {"what": str(path), "data": judged.choice.digest}
    if path is not None:
        depends["bytes"] = file_digest(path)
    if path is None or options.data is None:
        workspace.require("train", "dagtrain train")
        depends["train"] = workspace.fingerprint("train")
    if path is not None and path.suffix != ".onnx":
        depends |= graph_of(workspace)
    done = workspace.run("evaluate", depends, lambda folder: _work(folder, workspace, path, judged, progress))
    folder = workspace.folder("evaluate")
    meta = read_json(folder / "evaluate.json", "dagtrain evaluate", EvaluateRecord)
    lines = (
        f"{meta['what']} on {meta['data']}: accuracy {meta['accuracy']:.2%} of {meta['frames']}, "
        f"loss {meta['loss']:.4f}",
        *_worst(np.array(meta["confusion"], np.int64)),
    )
    return StepResult("evaluate", folder, done, lines, meta)


def _path(what: Path | None) -> Path | None:
    """The file that is evaluated; None: of the working folder."""
    if what is None:
        return None
    path = what / STATE if what.is_dir() else what
    if not path.is_file():
        raise DagtrainError(f"{path} does not exist", "give an ONNX file, or a checkpoint that `dagtrain train` left")
    if path.suffix not in (".onnx", ".npz"):
        raise DagtrainError(f"{path} is neither .onnx nor .npz", "give an ONNX file or a checkpoint")
    return path


def _work(folder: Path, workspace: Workspace, path: Path | None, judged: Judged, progress: Progress) -> None:
    data, told = judged.load(), judged.name
    if path is not None and path.suffix == ".onnx":
        metrics, scores, data, how = _run_onnx(path, data, told, progress)
    else:
        how = "emulator"
        emulator = load_trained(workspace) if path is None else load_checkpoint(workspace, path)
        data = check_dataset(emulator.graph, data, told)
        progress.begin("evaluate", 1)
        metrics, scores = emulator.judge(data, FRAMES)
    confusion = np.zeros((scores.shape[1], scores.shape[1]), np.int64)
    np.add.at(confusion, (data.classes(), scores.argmax(1)), 1)
    meta = {
        "schema_version": SCHEMA_VERSION,
        "what": str(path or workspace.folder("train")),
        "with": how,
        "data": told,
        "frames": metrics.frames,
        "accuracy": metrics.accuracy,
        "loss": metrics.loss,
        "confusion": confusion.tolist(),
    }
    write_text(folder / "evaluate.json", json.dumps(meta) + "\n")
    progress.end(note=str(metrics))


def _judged(workspace: Workspace, source: str | None) -> Judged:
    """The data that the options name."""
    if source is not None:
        return Judged(choose_data(source), source)
    record = train_record(workspace)["data"]
    choice = choose_data(record["name"], record["held_out"], record["stratify"])
    if choice.digest != record["digest"]:
        what = f"{record['name']} is not what `dagtrain train` was given any more"
        raise DagtrainError(what, "train again, or say by which data to judge: --data")
    return Judged(choice, f"what was held out of {record['name']}", record["seed"])


def _run_onnx(path: Path, data: Dataset, told: str, progress: Progress) -> tuple[Metrics, FloatArray, Dataset, str]:
    """(metrics, scores, data as the model takes them, what ran it) of an ONNX file; the loss is cross-entropy."""
    model = load_proto(path)
    initial = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initial]
    shapes = [[size.dim_value for size in value.type.tensor_type.shape.dim] for value in inputs]
    if len(inputs) != 1 or len(shapes[0]) != 4 or min(shapes[0][1:]) < 1:
        told_shapes = ", ".join(f"{value.name} {shape}" for value, shape in zip(inputs, shapes, strict=True))
        raise DagtrainError(
            f"{path} takes {told_shapes or 'nothing'}", "give a model of one image (N, channels, height, width)"
        )
    _, channels, height, width = shapes[0]
    try:
        data = data.fitted((height, width, channels))
    except DagtrainError as error:
        raise DagtrainError.listing(f"data {told} does not fit {path}", error.problems) from None
    call, how = _runner(path, model)
    progress.begin("evaluate", len(data))
    found: list[FloatArray] = []
    for start in range(0, len(data), FRAMES):
        index = np.arange(start, min(start + FRAMES, len(data)))
        images = data.frames(index).transpose(0, 3, 1, 2).astype(np.float32)
        found.append(call({inputs[0].name: images}).reshape(len(index), -1))
        progress.advance(len(index))
    scores, labels = np.concatenate(found).astype(np.float64), data.classes()
    if labels.max() >= scores.shape[1]:
        what = f"data {told} does not fit {path}: its labels go up to {labels.max()}"
        raise DagtrainError(f"{what}, the model tells {scores.shape[1]} classes", "give other data")
    top = scores.max(1)
    losses = np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[np.arange(len(scores)), labels]
    right = scores.argmax(1) == labels
    return Metrics(len(scores), float(losses.mean()), float(right.mean())), scores, data, how


def _runner(path: Path, model: onnx.ModelProto) -> tuple[Callable[[Mapping[str, Array]], Array], str]:
    """(images -> scores, what runs it): onnxruntime where it is installed, else ONNX's own evaluator, which is slow."""
    try:
        from onnxruntime import InferenceSession
    except ImportError:
        evaluator: Any = ReferenceEvaluator(model)
        return lambda feeds: np.asarray(evaluator.run(None, dict(feeds))[0]), "onnx.reference"
    try:
        session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise DagtrainError(f"onnxruntime can't run {path}: {error}", "export it again") from None
    return lambda feeds: np.asarray(session.run(None, dict(feeds))[0]), "onnxruntime"


def _worst(confusion: Array) -> tuple[str, ...]:
    """The pairs of classes that are confused most, in one line; none where all is right."""
    wrong = confusion * ~np.eye(len(confusion), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:SHOWN_PAIRS]
    pairs = [divmod(int(place), len(wrong)) for place in order]
    shown = [f"{true} for {guess} ({wrong[true, guess]})" for true, guess in pairs if wrong[true, guess]]
    return (f"most often taken: {', '.join(shown)}",) if shown else ()
