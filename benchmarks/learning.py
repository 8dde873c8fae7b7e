"""Does the 16-bit pipeline learn?  Held-out accuracy of the digits net, beside float training without staleness.

    python benchmarks/learning.py [--seeds 5] [--epochs 10] [--staleness D] [--batches 16] [--out table.json]
    python benchmarks/learning.py --schedule cosine --warm-up-epochs 1 --nesterov --smoothing 0.1
    python benchmarks/learning.py --table                  # all families of networks: benchmarks/learning_table.py

A schedule ends with the last epoch; steps divide the training behind the warm-up into three parts.

Each seed has its own split (80 % / 20 %), order of images and random bits of rounding; the initial weights are the
ONNX file's.  The float column is the float64 reference of the same graph with the same hyper-parameters at
staleness 0: plain mini-batch SGD.
"""

from __future__ import annotations

import os

# the matrices are small: threads of the BLAS cost more than they give
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
import time
import tomllib
from dataclasses import dataclass, replace
from multiprocessing import Pool
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import load_digits
from hdl.recipe import Loss, Recipe, Schedule
from importers.onnx import import_model

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
# what issue and docs promise
LEAST_MEAN, LEAST_WORST, MOST_LOSS = 0.98, 0.97, 0.01
# images of a training part, and of how many equal parts of the training steps begin a new one
TRAIN_FRAMES, STEP_PARTS = 1438, 3


@dataclass(frozen=True)
class Run:
    """One training."""

    seed: int
    mode: Mode
    recipe: Recipe
    epochs: int
    # of the calibration
    batches: int


def main() -> int:
    """Prints the table; 1 if a promise is broken."""
    options = parse()
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    recipe = replace(recipe, **{name: value for name, value in changed(options).items() if value is not None})
    recipe = scheduled(recipe, options)
    staleness = recipe.staleness if options.staleness is None else options.staleness
    runs = []
    for seed in range(1, options.seeds + 1):
        own = replace(recipe, seed=seed)
        runs.append(Run(seed, Mode.REFERENCE, replace(own, staleness=0), options.epochs, options.batches))
        runs.append(Run(seed, Mode.GOLDEN, replace(own, staleness=staleness), options.epochs, options.batches))
    with Pool(options.jobs) as pool:
        curves = pool.map(train, runs, chunksize=1)
    exact = [curve[-1] for run, curve in zip(runs, curves, strict=True) if run.mode is Mode.GOLDEN]
    plain = [curve[-1] for run, curve in zip(runs, curves, strict=True) if run.mode is Mode.REFERENCE]
    print(
        f"batch {recipe.batch}, learning rate {recipe.learning_rate}, momentum {recipe.momentum}, "
        f"weight decay {recipe.weight_decay}, {options.epochs} epochs{said(recipe)}; held-out accuracy"
    )
    print(f"{'seed':>6} {'float, D=0':>12} {f'16 bits, D={staleness}':>14}")
    for seed, (a, b) in enumerate(zip(plain, exact, strict=True), 1):
        print(f"{seed:6} {a:12.2%} {b:14.2%}")
    print(f"{'mean':>6} {np.mean(plain):12.2%} {np.mean(exact):14.2%}")
    print(f"{'worst':>6} {min(plain):12.2%} {min(exact):14.2%}")
    if options.out:
        rows = [{"seed": r.seed, "mode": r.mode.value, "accuracy": c} for r, c in zip(runs, curves, strict=True)]
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    broken = judge(plain, exact)
    print("\n".join(broken) or "all promises hold")
    return 1 if broken else 0


def changed(options: argparse.Namespace) -> dict[str, Any]:
    """Hyper-parameters said on the command line, None where the recipe's hold."""
    return {
        "batch": options.batch,
        "learning_rate": options.rate,
        "momentum": options.momentum,
        "weight_decay": options.decay,
        "nesterov": options.nesterov,
        "clip": options.clip,
        "loss": Loss(options.loss),
        "label_smoothing": options.smoothing,
    }


def scheduled(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    """The recipe with the schedule that was asked for, which ends with the last epoch."""
    epoch = TRAIN_FRAMES // recipe.batch
    warm_up = round(options.warm_up_epochs * epoch)
    left = options.epochs * epoch - warm_up
    schedule = Schedule(options.schedule)
    period = {Schedule.CONSTANT: 0, Schedule.STEP: max(1, left // STEP_PARTS), Schedule.COSINE: left}[schedule]
    return replace(recipe, schedule=schedule, warm_up=warm_up, period=period)


def said(recipe: Recipe) -> str:
    """What the recipe has beside the usual."""
    parts = {
        f"{recipe.schedule} schedule over {recipe.period} batches": recipe.period,
        f"warm-up of {recipe.warm_up} batches": recipe.warm_up,
        "Nesterov": recipe.nesterov,
        f"clip {recipe.clip}": recipe.clip,
        f"{recipe.loss}": recipe.loss is not Loss.CROSS_ENTROPY,
        f"label smoothing {recipe.label_smoothing}": recipe.label_smoothing,
    }
    return "".join(f", {part}" for part, there in parts.items() if there)


def judge(plain: list[float], exact: list[float]) -> list[str]:
    """Promises that do not hold."""
    broken = []
    if np.mean(exact) < LEAST_MEAN:
        broken.append(f"mean {np.mean(exact):.2%} is below {LEAST_MEAN:.0%}")
    if min(exact) < LEAST_WORST:
        broken.append(f"worst {min(exact):.2%} is below {LEAST_WORST:.0%}")
    if np.mean(plain) - np.mean(exact) > MOST_LOSS:
        broken.append(f"mean is {np.mean(plain) - np.mean(exact):.2%} below float's, more than {MOST_LOSS:.0%}")
    return broken


def train(run: Run) -> list[float]:
    """Held-out accuracy after each epoch."""
    data, held_out = load_digits().split(0.2, run.seed)
    graph = prepared(run)
    emulator = Emulator(graph, run.mode)
    curve = []
    start = time.perf_counter()
    for epoch in range(run.epochs):
        emulator.train_epoch(data, run.seed, epoch)
        curve.append(emulator.evaluate(held_out).accuracy)
    seconds = time.perf_counter() - start
    print(
        f"seed {run.seed}, {run.mode.value}, D={run.recipe.staleness}: "
        + " ".join(f"{accuracy:.1%}" for accuracy in curve)
        + f"  ({seconds:.0f} s)",
        flush=True,
    )
    return curve


def prepared(run: Run) -> Graph:
    """The training graph, in formats fitted to the first batches of the training part."""
    graph = differentiate(import_model(DIGITS / "digits.onnx", recipe=run.recipe))
    if run.mode is Mode.REFERENCE:
        return graph
    data, _ = load_digits().split(0.2, run.seed)
    feeds = Emulator(graph, Mode.REFERENCE).feeds
    order = list(data.batches(run.recipe.batch, run.seed, epoch=0))[: run.batches]
    return calibrate(graph, [feeds(data, index) for index in order])


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--staleness", type=int, help="frames of the 16-bit column, if not the recipe's")
    parser.add_argument("--batch", type=int, help="frames a batch, if not the recipe's")
    parser.add_argument("--rate", type=float, help="learning rate, if not the recipe's")
    parser.add_argument("--momentum", type=float, help="if not the recipe's")
    parser.add_argument("--decay", type=float, help="weight decay, if not the recipe's")
    parser.add_argument("--schedule", choices=list(map(str, Schedule)), default="constant")
    parser.add_argument("--warm-up-epochs", type=float, default=0.0, help="epochs in which the learning rate rises")
    parser.add_argument("--nesterov", action="store_true", default=None, help="a momentum that looks ahead")
    parser.add_argument("--clip", type=float, help="largest magnitude of a mean gradient")
    parser.add_argument("--loss", choices=list(map(str, Loss)), default=str(Loss.CROSS_ENTROPY))
    parser.add_argument("--smoothing", type=float, help="share of the target that all classes have alike")
    parser.add_argument("--batches", type=int, default=16, help="batches of the calibration")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at once")
    parser.add_argument("--out", type=Path, help="JSON file for the curves")
    return parser.parse_args()


if __name__ == "__main__":
    if "--table" in sys.argv:
        from benchmarks import learning_table

        raise SystemExit(learning_table.main([word for word in sys.argv[1:] if word != "--table"]))
    raise SystemExit(main())
