"""`dagtrain train`: the hardware's exact arithmetic on a data set, in the fast emulator.

A training is known by its graph, data and seed; whoever asks for more epochs of the same one gets those that are
missing.  It goes on from what an interrupted run left, or from the result on disk, with the same bits as one run of all
epochs.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from dagtrain.files import write_text
from dagtrain.flow.placed import graph_of, load_current_graph
from dagtrain.flow.records import ImportRecord, TrainingRecord, TrainRecord
from dagtrain.flow.result import Interrupted, StepResult
from dagtrain.flow.trained import STATE
from dagtrain.flow.workspace import SCHEMA_VERSION, Workspace, program_hash, read_json
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph
from dagtrain.graph.storage import save_arrays
from dagtrain.progress import Progress
from dagtrain.runs.runner import Kind, RunnerOptions, runner_of
from dagtrain.training.curves import EVENTS, LINES, Curves
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import NO_METRICS, Emulator, Metrics
from dagtrain.training.feeds import check_dataset
from dagtrain.training.spec import DataChoice, choose_data
from hdl.errors import DagtrainError, Problem

# of an interrupted training, in the working folder
CHECKPOINT = ".train-checkpoint.npz"
# of what copies exchange, in curves: bits of elements to those of words
RATIO = "gradient_ratio"
# batches between checkpoints within an epoch
CHECKPOINT_BATCHES = 50
# curves of a training under way, in the working folder
LIVE = "train-live"
# where `dagtrain drive` writes its curves, in the working folder
DRIVEN = "drive"
# what a checkpoint says of its training
_RECORD = TypeAdapter(TrainingRecord)
NO_DATA = "train needs data: give --data FILE.npz (images, labels), here or to `dagtrain import`"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What the user said."""

    epochs: int = 8
    data: str | None = None
    # a fraction, or data of its own; None: as the data say
    held_out: str | None = None
    stratify: bool = False
    seed: int = 1
    # go on from what is there, or fail
    resume: bool = False
    # go on from this checkpoint of the same training, which `drive` left, or fail
    checkpoint: Path | None = None
    # write event files too
    tensorboard: bool = False
    # so many processes share the copies that the graph has of its layers; no bit depends on it
    replicas: int = 1
    # who runs them, and its scheduler, as `RunnerOptions` has them
    runner: str = Kind.LOCAL.value
    scheduler: str | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.epochs < 1:
            problems.append(Problem(f"--epochs must be at least 1, not {self.epochs}"))
        if self.replicas < 1:
            problems.append(Problem(f"--replicas must be at least 1, not {self.replicas}"))
        elif self.replicas == 1 and (self.runner, self.scheduler) != (Kind.LOCAL.value, None):
            problems.append(Problem("--runner and --scheduler are of several processes", "add --replicas, e.g. 2"))
        if problems:
            raise DagtrainError.listing("", problems)
        _ = self.spread

    @property
    def spread(self) -> RunnerOptions:
        """Who runs the processes of replicas.  Raises `DagtrainError`."""
        workers = self.replicas if self.scheduler is None else None
        return RunnerOptions(runner=self.runner, workers=workers, scheduler=self.scheduler)


@dataclass
class Training:
    """A training under way."""

    emulator: Emulator
    data: Dataset
    held_out: Dataset
    # by which its checkpoints are known
    identity: Mapping[str, Any]
    # those that are complete
    epochs: list[dict[str, float]]
    # of the batches of the next one that are done
    begun: Metrics
    checkpoint: Path
    # batches that the checkpoint has
    saved: int

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        record = {"identity": self.identity, "epochs": self.epochs, "begun": asdict(self.begun)}
        self.emulator.save(path, record)
        self.saved = self.emulator.executor.batches

    def epoch(self, seed: int, total: int, curves: Curves, progress: Progress) -> None:
        """The next epoch, or what is left of it."""
        number = len(self.epochs)
        best = f"; held out {self.epochs[-1]['held_out_accuracy']:.2%}" if self.epochs else ""

        def after_batch(batch: int, metrics: Metrics) -> None:
            self.begun += metrics
            progress.advance(note=f"epoch {number + 1} of {total}: {self.begun}{best}")
            figures = {"epoch": number + 1, "batch_loss": metrics.loss, "batch_accuracy": metrics.accuracy}
            if self.emulator.ratio is not None:
                figures[RATIO] = self.emulator.ratio
            curves.add(batch + 1, figures)
            if batch + 1 - self.saved >= CHECKPOINT_BATCHES:
                self.save(self.checkpoint)

        self.emulator.train_epoch(self.data, seed, number, after_batch)
        tested = self.emulator.evaluate(self.held_out)
        self.epochs.append(epoch_record(number, self.begun, tested))
        self.begun = NO_METRICS
        self.save(self.checkpoint)
        curves.add(self.saved, self.epochs[-1])


def run(workspace: Workspace, options: TrainOptions, progress: Progress) -> StepResult:
    """Train unless nothing changed."""
    source = data_name(workspace, options.data)
    if source is None:
        raise DagtrainError(NO_DATA)
    choice = choose_data(source, options.held_out, options.stratify)
    steps = graph_of(workspace)
    identity = {"data": choice.digest, "seed": options.seed, "steps": steps}
    depends = {"data": choice.digest, "seed": options.seed, "epochs": options.epochs, **steps}
    done = workspace.run("train", depends, lambda folder: _work(folder, workspace, choice, options, identity, progress))
    folder = workspace.folder("train")
    meta = read_json(folder / "train.json", "dagtrain train", TrainRecord)
    last = meta["epochs"][-1]
    lines = (
        f"{len(meta['epochs'])} epoch{'s' if len(meta['epochs']) > 1 else ''} of {meta['train_frames']} frames: "
        "held-out accuracy "
        f"{last['held_out_accuracy']:.2%} of {meta['held_out_frames']}, loss {last['held_out_loss']:.4f}",
        *(
            f"{node}: {count:,} sums did not fit their bits and wrapped; import with more (`--bits sum=…`)"
            for node, count in meta.get("wrapped_sums", {}).items()
        ),
        *([_ratio_line(meta["gradient_ratio"])] if "gradient_ratio" in meta else []),
    )
    return StepResult("train", folder, done, lines, meta)


def left_out(workspace: Workspace, options: TrainOptions) -> StepResult | None:
    """What to say of a training that there is no data for; None where there is."""
    if data_name(workspace, options.data) is not None:
        return None
    folder = workspace.folder("train")
    return StepResult(
        "train", folder, False, ("there is no data: give --data, or `dagtrain train --data` now",), left_out=True
    )


def data_name(workspace: Workspace, given: str | None) -> str | None:
    """The data that a step is to use: its own option's, or those of `import`."""
    imported = read_json(
        workspace.require("import", "dagtrain import MODEL.onnx") / "import.json",
        "dagtrain import MODEL.onnx",
        ImportRecord,
    )
    return given or imported["data"]


def _work(
    folder: Path,
    workspace: Workspace,
    choice: DataChoice,
    options: TrainOptions,
    identity: Mapping[str, Any],
    progress: Progress,
) -> None:
    graph = load_current_graph(workspace)
    parts = choice.parts(options.seed)
    data, held_out = (check_dataset(graph, part, name) for part, name in zip(parts, choice.names, strict=True))
    with _executor(graph, options) as executor:
        training, earlier = _begin(workspace, Emulator(graph, executor=executor), data, held_out, options, identity)
        _train(folder, workspace, training, earlier, choice, options, progress)


@contextmanager
def _executor(graph: Graph, options: TrainOptions) -> Iterator[Executor]:
    """Of this process, or of as many as are wanted."""
    if options.replicas == 1:
        yield Executor(graph)
        return
    from dagtrain.training.team import Team, address_towards

    runner = runner_of(options.spread, program_hash)
    with Team(graph, options.replicas, runner, address_towards(options.scheduler)) as team:
        yield team


def _train(
    folder: Path,
    workspace: Workspace,
    training: Training,
    earlier: Path,
    choice: DataChoice,
    options: TrainOptions,
    progress: Progress,
) -> None:
    """The epochs that are missing; ``earlier``: the folder of curves so far."""
    emulator = training.emulator
    batches = options.epochs * (len(training.data) // emulator.graph.recipe.batch)
    live = workspace.root / LIVE
    curves = Curves(live, earlier, emulator.executor.batches, options.tensorboard)
    try:
        progress.begin("train", batches)
        progress.advance(emulator.executor.batches)
        while len(training.epochs) < options.epochs:
            training.epoch(options.seed, options.epochs, curves, progress)
    except KeyboardInterrupt:
        if not training.checkpoint.exists():
            raise
        raise Interrupted(
            f"interrupted in epoch {len(training.epochs) + 1} of {options.epochs}; the same command goes on from batch "
            f"{training.saved} of {batches}"
        ) from None
    finally:
        curves.close()
        if not training.checkpoint.exists():
            shutil.rmtree(live, ignore_errors=True)
    progress.end(note=f"held out {training.epochs[-1]['held_out_accuracy']:.2%}")
    shutil.copyfile(live / LINES, folder / LINES)
    _write(folder, training, choice, options)
    if options.tensorboard:
        shutil.copytree(live / EVENTS, folder / EVENTS)
    training.checkpoint.unlink(missing_ok=True)
    shutil.rmtree(live, ignore_errors=True)


def _begin(
    workspace: Workspace,
    emulator: Emulator,
    data: Dataset,
    held_out: Dataset,
    options: TrainOptions,
    identity: Mapping[str, Any],
) -> tuple[Training, Path]:
    """The training as far as it has come, and the folder of its curves so far."""
    checkpoint = workspace.root / CHECKPOINT
    reasons = []
    left = [
        (checkpoint, workspace.root / LIVE),
        (workspace.folder("train") / STATE, workspace.folder("train")),
    ]
    for path, curves in left if options.checkpoint is None else [(options.checkpoint, workspace.root / DRIVEN)]:
        found = _take_up(emulator, path, identity, options.epochs)
        if not isinstance(found, str):
            epochs, begun = found
            batches = emulator.executor.batches
            return Training(emulator, data, held_out, identity, epochs, begun, checkpoint, batches), curves
        reasons.append(found)
    if options.resume or options.checkpoint:
        cure = f"leave {'--resume' if options.checkpoint is None else '--checkpoint'} out to begin anew"
        raise DagtrainError.listing("nothing to go on from", reasons, cure)
    return Training(emulator, data, held_out, identity, [], NO_METRICS, checkpoint, 0), workspace.root / LIVE


def _take_up(
    emulator: Emulator, path: Path, identity: Mapping[str, Any], epochs: int
) -> tuple[list[dict[str, float]], Metrics] | str:
    """(complete epochs, metrics of the one begun) of a checkpoint whose state is taken up; or why it is not."""
    if not path.exists():
        return f"{path} does not exist"
    try:
        found = emulator.read(path)
        known, done, begun = training_of(found.record, path)
    except DagtrainError as error:
        return f"{path} is no checkpoint of this training: {error}"
    if other := other_keys(known, identity):
        return f"{path} is of a training with other {other}"
    if len(done) + bool(begun.frames) > epochs:
        return f"{path} has {len(done)} epochs and {begun.frames} frames behind it, more than --epochs {epochs}"
    emulator.take_up(found)
    return done, begun


def training_of(record: Any, path: Path) -> tuple[Mapping[str, Any], list[dict[str, float]], Metrics]:
    """(identity, complete epochs, metrics of the one begun) in the record of a checkpoint.

    Raises `DagtrainError` where it is of another kind."""
    try:
        told = _RECORD.validate_python(record)
    except ValidationError:
        raise DagtrainError(f"{path} has no record of a training", "leave --resume out to begin anew") from None
    return told["identity"], cast(list[dict[str, float]], told["epochs"]), Metrics(**told["begun"])


def other_keys(known: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """In what a checkpoint's training differs from this one; "" if in nothing."""
    wanted = json.loads(json.dumps(identity))
    return ", ".join(key for key in wanted if known.get(key) != wanted[key])


def epoch_record(epoch: int, trained: Metrics, tested: Metrics) -> dict[str, float]:
    """What is kept of an epoch, counted from 0."""
    return {
        "epoch": epoch + 1,
        "train_loss": trained.loss,
        "train_accuracy": trained.accuracy,
        "held_out_loss": tested.loss,
        "held_out_accuracy": tested.accuracy,
    }


def _ratio_line(ratio: float) -> str:
    measured = f"gradients between copies take {ratio:.2f} times fewer bits or fewer still in three batches of four"
    if ratio <= 1:
        return f"{measured}: --compress gains no bits"
    return f"{measured}; plan links for that: `dagtrain import --compress …,ratio={ratio:.2f}`"


def lower_quartile(numbers: Sequence[float]) -> float:
    """What three of four are above, to two decimals, rounded down."""
    return math.floor(100 * sorted(numbers)[len(numbers) // 4]) / 100


def _write(folder: Path, training: Training, choice: DataChoice, options: TrainOptions) -> None:
    emulator = training.emulator
    save_arrays(folder / "weights.npz", emulator.executor.parameters())
    training.save(folder / STATE)
    states = emulator.executor.snapshot()[0].items()
    wrapped = {node: state["wrapped"] for node, state in states if state.get("wrapped")}
    batches = map(json.loads, (folder / LINES).read_text().splitlines())
    ratios = [batch[RATIO] for batch in batches if RATIO in batch]
    meta = {
        "schema_version": SCHEMA_VERSION,
        "graph": emulator.graph.name,
        "recipe": asdict(emulator.graph.recipe),
        "data": {
            "name": choice.name,
            "held_out": options.held_out,
            "stratify": options.stratify,
            "seed": options.seed,
            "digest": choice.digest,
        },
        "train_frames": len(training.data),
        "held_out_frames": len(training.held_out),
        "epochs": training.epochs,
        **({"wrapped_sums": wrapped} if wrapped else {}),
        **({"gradient_ratio": lower_quartile(ratios)} if ratios else {}),
    }
    write_text(folder / "train.json", json.dumps(meta, indent=1) + "\n")
