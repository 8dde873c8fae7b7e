"""`dagtrain profile`: what flows on every edge in training, beside its format, as a table, a page and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy.typing as npt

from dagtrain.files import write_text
from dagtrain.flow.import_step import data_digest
from dagtrain.flow.placed import graph_of, load_current_graph
from dagtrain.flow.records import ImportRecord, ProfileRecord
from dagtrain.flow.result import StepResult
from dagtrain.flow.workspace import COMMANDS, SCHEMA_VERSION, Workspace, read_json
from dagtrain.graph.ir import Graph
from dagtrain.progress import Progress
from dagtrain.report.profile_page import remark, render_profile
from dagtrain.training.feeds import check_dataset, feeds_of, synthetic_feeds
from dagtrain.training.profile import TensorProfile, profile
from dagtrain.training.spec import choose_data
from hdl.errors import DagtrainError

COMMAND = "dagtrain profile"
PAGE = "profile.html"
# tensors that stand out, named one by one
SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What the user said."""

    batches: int = 16
    data: str | None = None
    seed: int = 1


def run(workspace: Workspace, options: ProfileOptions, progress: Progress) -> StepResult:
    """Profile unless nothing changed."""
    if options.batches < 1:
        raise DagtrainError(f"--batches must be at least 1, not {options.batches}")
    imported = read_json(
        workspace.require("import", COMMANDS["import"]) / "import.json", COMMANDS["import"], ImportRecord
    )
    source = options.data or imported["data"]
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
        f"{folder / PAGE} (one page, opens in any browser)",
    )
    return StepResult("profile", folder, done, lines, meta)


def _work(folder: Path, workspace: Workspace, options: ProfileOptions, source: str | None, progress: Progress) -> None:
    graph = load_current_graph(workspace)
    progress.begin("profile", options.batches)
    profiles = profile(graph, _fed(graph, source, options, progress))
    progress.end()
    frames, fed = options.batches * graph.recipe.batch, source or "random images"
    write_text(folder / PAGE, render_profile(graph.name, profiles, frames, fed))
    meta = {
        "schema_version": SCHEMA_VERSION,
        "frames": frames,
        "source": fed,
        "tensors": [_record(one) for one in profiles],
    }
    write_text(folder / "profile.json", json.dumps(meta, indent=1) + "\n")


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
