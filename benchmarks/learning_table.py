"""Does every family of networks learn at 16 bits?  Held-out accuracy beside float, of several seeds, in one table.

    python benchmarks/learning.py --table [--only ResNet VGG] [--data digits] [--seeds 5] [--minutes 30]
    python benchmarks/learning.py --table --workers 4      # as many at once; --runner dask --scheduler URL: anywhere
    python benchmarks/learning.py --table --minutes 0      # what is known, without another run
    python benchmarks/learning.py --table --staleness 9    # of both columns: what is left is what bits make

Networks are those of `benchmarks.families`: small ones on images as they are; whole ones (ResNet-18 and MobileNetV2 in
their forms for 32x32) on images enlarged by a whole number, if they are smaller than half, and surrounded by 0.
16 bits is the integer emulator, staleness as in the recipe of the digits; float is plain mini-batch SGD at staleness 0,
of small networks in float64, of whole ones in float32.  The learning rate rises for an epoch, or a third of all batches
if that is less, then falls along a cosine to 0 at the last batch; the momentum is Nesterov's.  Each seed has its own
split (80 % / 20 %), order of images, random bits and initial weights.

Finished runs stand in benchmarks/learning.json under the digest of what they follow from, the calibrated graph with
its weights: a run goes on where another stopped, and what would have other bits is run anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.families import FAMILIES, WHOLE, forward
from dagtrain.files import write_text
from dagtrain.flow.workspace import program_hash
from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import CalibrationOptions, calibrate
from dagtrain.runs.job import Job
from dagtrain.runs.runner import Kind, RunnerOptions, runner_of
from dagtrain.training.data import Dataset, Preparation
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import BUILT_IN
from hdl.recipe import Recipe, Schedule

ROOT = Path(__file__).parents[1]
STORE = ROOT / "benchmarks" / "learning.json"
RECIPE = ROOT / "examples" / "digits" / "recipe.toml"
# images, and epochs on them; whole networks, of which an update takes a hundred times as long, see them less often: as
# often as they take to come to where float hardly learns more
DATA: Mapping[str, int] = {"digits": 5, "mnist5k": 3}
WHOLE_EPOCHS: Mapping[str, Mapping[str, int]] = {
    "ResNet-18, 32x32": {"digits": 2, "mnist5k": 1},
    "MobileNetV2, 32x32": {"digits": 5, "mnist5k": 3},
}
NETWORKS = (*FAMILIES, *WHOLE)
# what differs from the recipe of the digits: 0.999 remembers statistics for 60 batches, a quarter of all there are, and
# those of so many norms then lag behind the weights, in float as well
WHOLE_LEARNING_RATE, WHOLE_FORWARD_DECAY = 0.01, 0.99
# height of the images of whole networks
WHOLE_SIZE = 32
CALIBRATION_BATCHES, WHOLE_CALIBRATION_BATCHES = 16, 8
# at once, so that maps of whole networks stay small
EVALUATED_FRAMES = 32
HELD_OUT = 0.2
# by how much the mean at 16 bits may be below that of float
MOST_LOSS = 0.01
NOTHING = "–"


@dataclass(frozen=True)
class Run:
    """One training."""

    network: str
    data: str
    mode: Mode
    seed: int
    # None: that of the recipe at 16 bits, none in float
    staleness: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the network is one of `WHOLE`."""
        return self.network in WHOLE

    @property
    def arithmetic(self) -> Mode:
        """What stands for float."""
        return Mode.SINGLE if self.whole else Mode.REFERENCE

    @property
    def epochs(self) -> int:
        """How often each image is seen."""
        return WHOLE_EPOCHS.get(self.network, DATA)[self.data]

    @property
    def name(self) -> str:
        """For messages and the store."""
        known = "" if self.staleness is None else f", staleness {self.staleness}"
        return f"{self.network}, {self.data}, {self.mode.value}, seed {self.seed}{known}"

    def recipe(self, recipe: Recipe) -> Recipe:
        """That of the table, or one that differs."""
        return recipe

    def graph(self, data: Dataset) -> Graph:
        """What is trained; at 16 bits, in formats fitted to the first batches of the training part."""
        return prepared(self, data)


@cache
def images(data: str, whole: bool) -> Dataset:
    """The data set; for whole networks enlarged, if need be, and surrounded by 0."""
    found = BUILT_IN[data]()
    if not whole:
        return found
    times = WHOLE_SIZE // found.images.shape[2]
    stored = found.images.repeat(times, axis=2).repeat(times, axis=3)
    around = [(WHOLE_SIZE - size) // 2 for size in stored.shape[2:]]
    stored = np.pad(stored, ((0, 0), (0, 0), *((by, by) for by in around)))
    return Dataset(stored, found.labels, Preparation(scale=found.prepare.scale))


def split(run: Run) -> tuple[Dataset, Dataset]:
    """(training part, held-out part)."""
    return images(run.data, run.whole).split(HELD_OUT, run.seed)


def prepared(run: Run, data: Dataset) -> Graph:
    """The training graph; at 16 bits, in formats fitted to the first batches."""
    recipe = Recipe(**tomllib.loads(RECIPE.read_text()))
    epoch = len(data) // recipe.batch
    warm_up = min(epoch, run.epochs * epoch // 3)
    recipe = replace(recipe, schedule=Schedule.COSINE, warm_up=warm_up, period=run.epochs * epoch - warm_up)
    usual = recipe.staleness if run.mode is Mode.GOLDEN else 0
    staleness = usual if run.staleness is None else run.staleness
    recipe = replace(recipe, seed=run.seed, nesterov=True, staleness=staleness)
    if run.whole:
        recipe = replace(recipe, learning_rate=WHOLE_LEARNING_RATE, norm_forward_decay=WHOLE_FORWARD_DECAY)
    graph = differentiate(forward(run.network, run.recipe(recipe), data.images.shape[2], run.seed))
    emulator = Emulator(graph, run.arithmetic)
    count = WHOLE_CALIBRATION_BATCHES if run.whole else CALIBRATION_BATCHES
    order = list(data.batches(recipe.batch, run.seed, epoch=0))[:count]
    options = CalibrationOptions(mode=run.arithmetic)
    calibrated = calibrate(graph, [emulator.feeds(data, index) for index in order], options)
    # float begins with the same statistics, and with weights that nothing rounded
    return calibrated if run.mode is Mode.GOLDEN else replace(graph, carried=calibrated.carried)


def digest(run: Run, graph: Graph) -> str:
    """Of what a training follows from."""
    found = hashlib.sha256(f"{run.epochs} {graph.recipe}".encode())
    for node in graph.nodes:
        found.update(f"{node.name} {node.layer!r} {dict(node.inputs)}".encode())
    for values in (graph.parameters, *graph.carried.values()):
        for key, value in values.items():
            found.update(key.encode() + np.ascontiguousarray(value).tobytes())
    return found.hexdigest()[:16]


def train(run: Run, graph: Graph, data: Dataset, held_out: Dataset) -> tuple[list[float], float | None]:
    """Held-out accuracy after each epoch; `Emulator.ratio` at the end."""
    emulator = Emulator(graph, run.mode if run.mode is Mode.GOLDEN else run.arithmetic)
    curve = []
    for epoch in range(run.epochs):
        emulator.train_epoch(data, run.seed, epoch)
        curve.append(round(emulator.evaluate(held_out, EVALUATED_FRAMES).accuracy, 5))
    return curve, emulator.ratio


@dataclass(frozen=True)
class Done:
    """A run, done."""

    digest: str
    # accuracy after each epoch
    curve: list[float]
    # of a CPU
    seconds: float
    ratio: float | None


class Store:
    """Curves of finished runs, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def last(self, run: Run) -> float | None:
        """Accuracy after the last epoch, if the run was finished."""
        row = self.rows.get(run.name)
        return None if row is None else float(row["accuracy"][-1])

    def ratio(self, run: Run) -> float | None:
        """Of compression, as far as anything was coded."""
        return self.rows.get(run.name, {}).get("ratio")

    def note(self, run: Run, done: Done) -> None:
        """Keep a curve."""
        row = {"digest": done.digest, "accuracy": done.curve, "seconds": round(done.seconds)}
        self.rows[run.name] = row if done.ratio is None else {**row, "ratio": round(done.ratio, 4)}
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(self.rows.items()))
        write_text(self.path, "{\n" + rows + "\n}\n")


def runs(options: argparse.Namespace) -> Iterator[Run]:
    """All that the table wants: small networks before large ones, a seed of all before the next."""
    for networks in (tuple(FAMILIES), tuple(WHOLE)):
        for data in options.data:
            for seed in range(1, options.seeds + 1):
                for network in networks:
                    if network in options.only:
                        for mode in (Mode.REFERENCE, Mode.GOLDEN):
                            yield Run(network, data, mode, seed, options.staleness)


def finished(run: Run, known: str | None, end: float) -> Done | None:
    """A run, whoever does it; None where it has been ``known`` by this digest, and from the time ``end`` on."""
    if time.time() >= end:
        return None
    data, held_out = split(run)
    graph = run.graph(data)
    what = digest(run, graph)
    if known == what:
        return None
    start = time.process_time()
    curve, ratio = train(run, graph, data, held_out)
    return Done(what, curve, time.process_time() - start, ratio)


def fill_store(store: Store, every: Iterable[Run], options: argparse.Namespace) -> None:
    """Have those runs done that are not known, until the time is over; each is kept as it ends."""
    end = time.time() + 60 * options.minutes
    where = RunnerOptions(runner=options.runner, workers=options.workers, scheduler=options.scheduler)
    wanted = {run.name: run for run in every}
    jobs = [Job(name, finished, (run, store.rows.get(name, {}).get("digest"), end)) for name, run in wanted.items()]
    for outcome in runner_of(where, program_hash).outcomes(jobs):
        if outcome.value is not None:
            store.note(wanted[outcome.job.name], outcome.value)
            print(f"{outcome.job.name}: {' '.join(f'{value:.1%}' for value in outcome.value.curve)}", flush=True)


def verdict(plain: list[float], exact: list[float], seeds: int) -> str:
    """Whether 16 bits are as good as float; nothing before all seeds are there."""
    if min(len(plain), len(exact)) < seeds:
        return NOTHING
    return "holds" if np.mean(plain) - np.mean(exact) <= MOST_LOSS else "**broken**"


def table(store: Store, options: argparse.Namespace) -> tuple[list[str], bool]:
    """(Markdown lines; whether a verdict is bad)."""
    lines = ["| network | data | seeds | float | 16 bits | difference | verdict |", "|---|---|---|---|---|---|---|"]
    verdicts = []
    for network in options.only:
        for data in options.data:
            found: dict[Mode, list[float]] = {}
            for mode in (Mode.REFERENCE, Mode.GOLDEN):
                every = (Run(network, data, mode, seed, options.staleness) for seed in range(1, options.seeds + 1))
                found[mode] = [value for run in every if (value := store.last(run)) is not None]
            plain, exact = found[Mode.REFERENCE], found[Mode.GOLDEN]
            verdicts.append(verdict(plain, exact, options.seeds))
            both = min(len(plain), len(exact))
            difference = f"{100 * (np.mean(exact) - np.mean(plain)):+.2f}" if plain and exact else NOTHING
            lines.append(
                f"| {network} | {data} | {both} | {spread(plain)} | {spread(exact)} | {difference} | {verdicts[-1]} |"
            )
    return lines, any(one not in ("holds", NOTHING) for one in verdicts)


def spread(values: list[float]) -> str:
    """Mean, least and greatest, in per cent."""
    if not values:
        return NOTHING
    return f"{100 * np.mean(values):.2f} ({100 * min(values):.1f}–{100 * max(values):.1f})"


def write_between(page: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Put lines, in place of what is there, between two marks of a page."""
    before, rest = page.read_text().split(begin)
    write_text(page, "\n".join([before + begin, *lines, end + rest.split(end, 1)[1]]))


def main(words: list[str]) -> int:
    """Runs what is missing and prints the table; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="learning.py --table", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--staleness", type=int, help="frames, at 16 bits and in float; default: the recipe's, and 0")
    options = parse(parser, words)
    store = Store(STORE)
    fill_store(store, runs(options), options)
    lines, broken = table(store, options)
    print("\n".join(lines))
    return 1 if broken else 0


def parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Options of a parser, beside those that say who does the runs."""
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after that")
    parser.add_argument("--runner", default=Kind.LOCAL.value, choices=[kind.value for kind in Kind])
    parser.add_argument("--workers", type=int, help="runs at once; default: 1 here, all those of a scheduler")
    parser.add_argument("--scheduler", help="address of a Dask scheduler")
    options = parser.parse_args(words)
    if options.workers is None and options.scheduler is None:
        options.workers = 1
    return options
