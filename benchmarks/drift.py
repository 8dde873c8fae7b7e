"""How far do scores of the integer network drift from those of float64, with a norm and without, learning and not?

    python benchmarks/drift.py [--batches 20]

Both train on the same batches of the digits from the same weights.  Where nothing is learnt the difference is what the
layers' roundings make of one frame; where weights move, trainings with other stochastic roundings go their own ways.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

# the matrices are small: threads of the BLAS cost more than they give
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from dagtrain.graph.executor import Array, Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.training.feeds import feeds_of
from dagtrain.training.sources import load_digits
from hdl.layers.capabilities import Batched
from hdl.recipe import Recipe
from importers.onnx import NormMode, import_model

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
# the edge that the loss reads
SCORES = "classify_bias.y"
# learning rates: of the recipe, and one at which no weight moves
RATES = (0.02, 1e-9)
CALIBRATION_BATCHES = 16


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20)
    batches = parser.parse_args().batches
    print(f"{'norm':8} {'lag':>3} {'rate':>7} {'largest difference':>19} {'largest score':>14}   of batch {batches}")
    for norm, lag in ((NormMode.NONE, 1), (NormMode.ONLINE, 0), (NormMode.ONLINE, 1), (NormMode.ONLINE, 2)):
        for rate in RATES:
            difference, score = drift(norm, lag, rate, batches)
            print(f"{norm.value:8} {lag:3} {rate:7g} {difference:19.4f} {score:14.2f}", flush=True)


def drift(norm: NormMode, lag: int, rate: float, batches: int) -> tuple[float, float]:
    """The largest difference of a score, and the largest score, of the last of so many batches."""
    table = tomllib.loads((DIGITS / "recipe.toml").read_text())
    recipe = Recipe(**(table | {"norm_lag": lag, "staleness": 0}))
    training = differentiate(import_model(DIGITS / "digits.onnx", norm=norm, recipe=recipe))
    data = load_digits()
    feeds = [feeds_of(training, data, index) for index in data.batches(recipe.batch, 1, 0)][:batches]
    graph = at_rate(calibrate(training, feeds[:CALIBRATION_BATCHES]), rate)
    scores: dict[Mode, Array] = {}
    executors = {mode: Executor(graph, mode) for mode in Mode}

    def keep(mode: Mode, edge: str, array: Array) -> None:
        if edge == SCORES:
            scores[mode] = array

    for given in feeds:
        for mode, executor in executors.items():
            executor.step(given, partial(keep, mode))
    exact = graph.tensor(SCORES).fixed.decode(scores[Mode.GOLDEN])
    difference = np.abs(exact - scores[Mode.REFERENCE]).max()
    return float(difference), float(np.abs(scores[Mode.REFERENCE]).max())


def at_rate(graph: Graph, rate: float) -> Graph:
    """The graph, calibrated as it was, with another learning rate."""
    recipe = replace(graph.recipe, learning_rate=rate)
    nodes = [
        replace(node, layer=replace(node.layer, recipe=recipe))  # type: ignore[type-var]
        if isinstance(node.layer, Batched)
        else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes), recipe=recipe)


if __name__ == "__main__":
    main()
