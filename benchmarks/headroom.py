"""By how much do peaks grow after calibration?  Octaves by kind of number, of one small network a family.

    python benchmarks/headroom.py [--families ResNet VGG] [--epochs 4] [--seed 1] [--unsettled]

The float64 reference trains on the digits.  Of every edge: the largest magnitude of the whole training over that of the
batches from which formats are chosen, all sixteen of them or the first alone, which is what a model without data has.
``--unsettled``: norms begin at mean 0 and variance 1.
"""

from __future__ import annotations

import os

# the matrices are small: threads of the BLAS cost more than they give
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks.families import FAMILIES, forward
from benchmarks.learning import DIGITS
from dagtrain.graph.executor import Array, Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import load_digits
from hdl.recipe import Recipe
from hdl.tensor import Kind

CALIBRATION_BATCHES = 16
SIZE = 8


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unsettled", action="store_true", help="norms begin at mean 0 and variance 1")
    options = parser.parse_args()
    print(f"{'family':14} {'kind':11} {'after 16 batches: median':>24} {'90 %':>5} {'most':>5}   after 1: the same")
    for family in options.families:
        first, sixteen, whole, kinds = peaks(family, options.epochs, options.seed, options.unsettled)
        for kind in (kind for kind in Kind if not kind.of_store):
            edges = [edge for edge, of in kinds.items() if of is kind and first[edge] > 0]
            after, more = (np.log2([whole[edge] / seen[edge] for edge in edges] or [1.0]) for seen in (sixteen, first))
            print(f"{family:14} {kind.value:11} {summary(after):>36}   {summary(more)}", flush=True)


def summary(octaves: Array) -> str:
    """Median, ninth decile, maximum."""
    return f"{np.median(octaves):.1f} {np.quantile(octaves, 0.9):5.1f} {octaves.max():5.1f}"


def peaks(
    family: str, epochs: int, seed: int, unsettled: bool
) -> tuple[dict[str, float], dict[str, float], dict[str, float], dict[str, Kind]]:
    """(largest magnitudes by edge in the first batch, the first 16, all; kinds of the edges)."""
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    training = differentiate(forward(family, replace(recipe, seed=seed, staleness=0), SIZE, seed))
    data, _ = load_digits().split(0.2, seed)
    order = list(data.batches(recipe.batch, seed, epoch=0))
    if not unsettled:
        training = settled(training, data.frames(order[0]), data.classes(order[0]))
    emulator = Emulator(training, Mode.REFERENCE)
    found = dict.fromkeys(training.producers, 0.0)

    def observe(edge: str, array: Array) -> None:
        found[edge] = max(found[edge], float(np.abs(array).max(initial=0.0)))

    seen = []
    for epoch in range(epochs):
        for index in data.batches(recipe.batch, seed, epoch):
            emulator.executor.step(emulator.feeds(data, index), observe)
            if emulator.executor.batches in (1, CALIBRATION_BATCHES):
                seen.append(dict(found))
    return seen[0], seen[1], found, {edge: training.tensor(edge).kind for edge in found}


def settled(training: Graph, images: Array, labels: Array) -> Graph:
    """The graph with norms that begin with the statistics of a batch."""
    emulator = Emulator(training, Mode.REFERENCE)
    feeds = {emulator.image: images, emulator.label: labels.reshape(-1, 1, 1, 1)}
    return replace(training, carried=calibrate(training, [feeds]).carried)


if __name__ == "__main__":
    main()
