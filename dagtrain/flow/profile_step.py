"""`dagtrain profile`: what flows on every edge in training, beside its format, as a table, a page and JSON; and with
--train, who leaves float64 first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy.typing as npt

from dagtrain.files import write_text
from dagtrain.flow.import_step import data_digest
from dagtrain.flow.placed import graph_of, load_current_graph
from dagtrain.flow.records import ImportRecord, ProfileRecord, TrainedBesideRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import COMMANDS, SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress
from dagtrain.report.profile_page import error_text, remark, render_profile
from dagtrain.training.divergence import TrainedBeside, divergences, first_to_leave
from dagtrain.training.feeds import check_dataset, feeds_of, synthetic_feeds
from dagtrain.training.profile import TensorProfile, profile
from dagtrain.training.spec import choose_data
from hdl.errors import DagtrainError

COMMAND = "dagtrain profile"
PAGE = "profile.html"
# tensors that stand out, named one by one
SHOWN = 8
# of --train, where nothing is said: epochs, and relative error that a tensor may have of its own
EPOCHS, THRESHOLD = 3, 0.05


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What the user said."""

    batches: int = 16
    data: str | None = None
    seed: int = 1
    # also train in both arithmetics from the same start
    train: bool = False
    # of that; None: `EPOCHS`, `THRESHOLD`
    epochs: int | None = None
    threshold: float | None = None


def run(workspace: Workspace, options: ProfileOptions, progress: Progress) -> StepResult:
    """Profile unless nothing changed."""
    imported = read_json(
        workspace.require("import", COMMANDS["import"]) / "import.json", COMMANDS["import"], ImportRecord
    )
    source = options.data or imported["data"]
    problems = _problems(options, source)
    if problems:
        raise DagtrainError.listing("profile", problems)
    depends = {**asdict(options), "data": data_digest(source), **graph_of(workspace)}
    done = workspace.run("profile", depends, lambda folder: _work(folder, workspace, options, source, progress))
    folder = workspace.folder("profile")
    meta = read_json(folder / "profile.json", COMMAND, ProfileRecord)
    remarks = [f"{one['edge']} ({one['format']}): {one['remark']}" for one in meta["tensors"] if one["remark"]]
    more = [f"and {len(remarks) - SHOWN} more"] if len(remarks) > SHOWN else []
    lines = (
        f"{len(meta['tensors'])} tensors over {meta['frames']} frames of {meta['source']}: "
        + (f"{len(remarks)} formats stand out" if remarks else "every format fits"),
        *remarks[:SHOWN],
        *more,
        *(_told(meta["training"]) if "training" in meta else ()),
        f"{folder / PAGE} (one page, opens in any browser)",
    )
    return StepResult("profile", folder, done, lines, meta)


def _problems(options: ProfileOptions, source: str | None) -> list[str]:
    problems = []
    if options.batches < 1:
        problems.append(f"--batches must be at least 1, not {options.batches}")
    if options.train:
        if options.epochs is not None and options.epochs < 1:
            problems.append(f"--epochs must be at least 1, not {options.epochs}")
        if options.threshold is not None and not (math.isfinite(options.threshold) and options.threshold > 0):
            problems.append(f"--threshold must be above 0, not {options.threshold}")
        if source is None:
            problems.append("--train needs data: give --data FILE.npz (images, labels), here or to `dagtrain import`")
    elif options.epochs is not None or options.threshold is not None:
        problems.append("--epochs and --threshold go with --train")
    return problems


def _told(training: TrainedBesideRecord) -> list[str]:
    """Which layer diverges, and the own errors of tensors that leave the threshold, the first ones first."""
    tensors = {one["edge"]: one for one in training["tensors"]}
    epochs, most = f"{training['epochs']} epochs beside float64", f"{training['threshold']:.0%}"
    if training["first"] is None:
        return [f"{epochs}: no layer is off by more than {most} by itself"]
    first = tensors[training["first"]]
    left = sorted((one for one in training["tensors"] if one["left"]), key=lambda one: one["left"] or 0)
    wide = max(len(one["edge"]) for one in left[:SHOWN])
    return [
        f"{epochs}: layer {first['layer']} diverges: {first['edge']} ({first['format']}) is the first to be off by "
        f"more than {most} by itself, in epoch {first['left']}; {len(left)} of {len(tensors)} tensors are, by epoch:",
        *(f"  {one['edge']:{wide}}  {'  '.join(map(error_text, one['own_errors']))}" for one in left[:SHOWN]),
    ]


def _work(folder: Path, workspace: Workspace, options: ProfileOptions, source: str | None, progress: Progress) -> None:
    graph = load_current_graph(workspace)
    progress.begin("profile", options.batches)
    profiles = profile(graph, _fed(graph, source, options, progress))
    progress.end()
    frames, fed = options.batches * graph.recipe.batch, source or "random images"
    training = _trained(graph, source, options, progress) if options.train and source else None
    write_text(folder / PAGE, render_profile(graph.name, profiles, frames, fed, training))
    meta: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "frames": frames,
        "source": fed,
        "tensors": [_record(one) for one in profiles],
    }
    if training is not None:
        meta["training"] = _training_record(training)
    write_text(folder / "profile.json", json.dumps(meta, indent=1) + "\n")


def _trained(graph: Graph, source: str, options: ProfileOptions, progress: Progress) -> TrainedBeside:
    """All epochs in both arithmetics, as `dagtrain train` has their batches."""
    dataset = check_dataset(graph, choose_data(source).parts(options.seed)[0], source)
    epochs, threshold = options.epochs or EPOCHS, options.threshold or THRESHOLD
    size = graph.recipe.batch
    count = len(dataset) // size
    progress.begin("training beside float64", epochs * count)

    def batches(epoch: int) -> Iterator[Mapping[str, npt.ArrayLike]]:
        for number, index in enumerate(dataset.batches(size, options.seed, epoch), epoch * count):
            yield feeds_of(graph, dataset, index, (epoch, number))
            progress.advance(note=f"epoch {epoch + 1} of {epochs}")

    found = divergences(graph, map(batches, range(epochs)), threshold)
    progress.end()
    return TrainedBeside(epochs, threshold, found)


def _training_record(training: TrainedBeside) -> dict[str, object]:
    first = first_to_leave(training.tensors)
    tensors = [
        {
            "edge": one.edge,
            "layer": one.layer,
            "kind": one.kind.value,
            "format": str(one.fixed),
            "errors": _finite(one.errors),
            "own_errors": _finite(one.own_errors),
            "left": one.left,
        }
        for one in training.tensors
    ]
    return {
        "epochs": training.epochs,
        "threshold": training.threshold,
        "first": first.edge if first else None,
        "tensors": tensors,
    }


def _finite(errors: Sequence[float]) -> list[float | None]:
    """JSON knows no infinity."""
    return [error if math.isfinite(error) else None for error in errors]


def _fed(
    graph: Graph, source: str | None, options: ProfileOptions, progress: Progress
) -> Iterator[Mapping[str, npt.ArrayLike]]:
    """Batches in the order of the first epochs of training."""
    for feeds in islice(_batches(graph, source, options.seed), options.batches):
        yield feeds
        progress.advance()


def _batches(graph: Graph, source: str | None, seed: int) -> Iterator[Mapping[str, npt.ArrayLike]]:
    """Without end: of the data set, epoch after epoch, or random images."""
    dataset = None if source is None else check_dataset(graph, choose_data(source).load(), source)
    epoch = 0
    while True:
        if dataset is None:
            yield synthetic_feeds(graph, graph.recipe.batch, seed + epoch)
        else:
            for index in dataset.batches(graph.recipe.batch, seed, epoch):
                yield feeds_of(graph, dataset, index)
        epoch += 1


def _record(one: TensorProfile) -> dict[str, object]:
    decibels = one.signal_to_error_db
    return {
        "edge": one.edge,
        "layer": one.layer,
        "kind": one.kind.value,
        "format": str(one.fixed),
        "numbers": one.numbers,
        "peak": one.peak,
        "saturated": one.saturated,
        "zeros": one.zeros,
        "lost": one.lost,
        "octaves": {str(octave): count for octave, count in one.octaves.items()},
        "own_error_steps": one.own_error_steps,
        **({"sum_bits": one.sum_bits, "wrapped_sums": one.wrapped_sums} if one.sum_bits else {}),
        # JSON knows no infinity
        "signal_to_error_db": decibels if math.isfinite(decibels) else None,
        "remark": remark(one),
    }
