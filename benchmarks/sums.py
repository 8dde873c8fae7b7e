"""Sums of gradients in fewer bits than exact ones take: what they do to the sums, to learning, to block memories.

python benchmarks/sums.py error                         # of cut sums beside stochastic rounding, digits, by layer
python benchmarks/sums.py learn [--data mnist] [--seeds 5] [--epochs 10] [--bits sum=32 …]
python benchmarks/sums.py blocks [resnet18 …]           # block memories and ALMs of gradient engines
"""

from __future__ import annotations

import os

# the matrices are small: threads of the BLAS cost more than they give
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import dataclasses
import math
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph, Node
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import CalibrationOptions, calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.widths import Widths
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import load_digits
from dagtrain.training.spec import choose_data
from hdl.costs.estimate import Estimator
from hdl.costs.resources import Usage, fit
from hdl.costs.synthesis import FABRIC
from hdl.fixed import FloatArray
from hdl.layers.conv.roles import GradientEngine
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from importers.onnx import import_model

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
# batches of a calibration
BATCHES = 16
# bits of sums whose error is shown
SHOWN = (36, 32, 30, 28, 26, 24, 22)
# mean held-out accuracy may fall so far behind that of exact sums
MOST_LOSS = 0.002
# root mean square of stochastic rounding, steps
ROUNDING = 6**-0.5
# network -> model under examples/models, cycles a frame of a plan at 200 MHz
NETWORKS = {
    "resnet18": ("resnet18-dynamo-eval-norm", 100_352),
    "mobilenetv2": ("mobilenetv2-dynamo-eval-norm", 112_896),
}


@dataclass(frozen=True)
class Run:
    """One training."""

    data: str
    seed: int
    epochs: int
    # as `dagtrain import` takes them; empty for exact sums
    bits: str


def main() -> int:
    """What was asked for; 1 if cut sums learn worse than they may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("error")
    learn = actions.add_parser("learn")
    learn.add_argument("--data", choices=("digits", "mnist"), default="digits")
    learn.add_argument("--seeds", type=int, default=5)
    learn.add_argument("--epochs", type=int, default=10)
    learn.add_argument("--bits", nargs="+", default=["sum=fit"])
    learn.add_argument("--jobs", type=int, default=2, help="trainings at once")
    priced = actions.add_parser("blocks")
    priced.add_argument("networks", nargs="*", help=f"of {', '.join(NETWORKS)}; default: all")
    options = parser.parse_args()
    if options.action == "error":
        return errors()
    if options.action == "learn":
        return learning(options)
    unknown = [name for name in options.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; networks are {', '.join(NETWORKS)}")
    return blocks(options.networks or list(NETWORKS))


def errors() -> int:
    """Root mean square and mean of what cuts do to a sum, in steps of the gradient, early and late in training."""
    graph = prepared("digits", 1, ())
    emulator, (data, _) = Emulator(graph, Mode.GOLDEN), parts("digits", 1)
    nodes = [(node, node.layer) for node in graph.nodes if isinstance(node.layer, GradientEngine)]
    order = list(data.batches(graph.recipe.batch, 1, epoch=0))
    print(f"rounding a sum: {ROUNDING:.2f} steps, 0 on average")
    for epochs in (0, 4):
        for epoch in range(epochs):
            emulator.train_epoch(data, 1, epoch)
        print(f"\nafter {epochs} epochs\n| sums of | products | exact bits | fit | {' | '.join(map(str, SHOWN))} |")
        print("|" + " --- |" * (4 + len(SHOWN)))
        found = [observed(emulator, nodes, emulator.feeds(data, index)) for index in order[:3]]
        for at, (node, layer) in enumerate(nodes):
            off = [np.concatenate([one[at][bits] for one in found]) for bits in range(len(SHOWN))]
            cells = " | ".join(f"{np.sqrt(np.square(one).mean()):.3f} ({one.mean():+.3f})" for one in off)
            terms = layer.recipe.batch * math.prod(layer.window.output)
            print(f"| {node.whole} | {terms:,} | {layer.exact_sum_bits} | {layer.fitting_sum_width} | {cells} |")
    return 0


def observed(emulator: Emulator, nodes: list[tuple[Node, GradientEngine]], feeds: Any) -> list[list[FloatArray]]:
    """A batch's errors by node and bits, in steps of the gradient."""
    values: dict[str, Any] = {}
    emulator.executor.step(feeds, values.__setitem__)
    found = []
    for node, layer in nodes:
        x, e = (values[node.inputs[port]] for port in ("x", "e"))
        exact, step = layer.sums(x, e), 2.0 ** (layer.exact_fraction_bits - layer.g_fixed.fraction_bits)
        cut = [dataclasses.replace(layer, sum_width=bits) for bits in SHOWN]
        found.append([((one.sums(x, e) << one.cut) - exact).reshape(-1) / step for one in cut])
    return found


def blocks(networks: list[str]) -> int:
    """M20K, ALMs, DSP blocks of all gradient engines of networks: exact sums, of 32 bits, of those that fit."""
    fabric, estimator = part(FABRIC), Estimator()
    print("| network | cycles a frame | bits of sums | M20K | ALM | DSP |\n|" + " --- |" * 6, flush=True)
    for name in networks:
        model, cycles = NETWORKS[name]
        path = ROOT / "build" / "models" / f"{model}.onnx"
        if not path.exists():
            subprocess.run([sys.executable, "examples/models/fill.py", model], cwd=ROOT, check=True, stdout=sys.stderr)
        graph = insert_forks(differentiate(import_model(path, recipe=Recipe(batch=256))))
        engines = [node.layer for node in fold_graph(graph, cycles).nodes if isinstance(node.layer, GradientEngine)]
        for label in ("exact", "32", "fit"):
            used, bits = Usage(), 0
            for engine in engines:
                width = {"exact": 0, "32": 32, "fit": engine.fitting_sum_width}[label]
                chosen = dataclasses.replace(engine, sum_width=width)
                used, bits = used + fit(estimator.layer(chosen), fabric), bits + chosen.sum_bits * chosen.weight_count
            mean = bits / sum(engine.weight_count for engine in engines)
            print(
                f"| {name} | {cycles:,} | {label}, {mean:.1f} a weight | {used.m20k:,} | {used.alm:,} | {used.dsp:,} |",
                flush=True,
            )
    return 0


def learning(options: argparse.Namespace) -> int:
    """The table of held-out accuracies."""
    columns = ["", *options.bits]
    runs = [Run(options.data, seed, options.epochs, bits) for seed in range(1, options.seeds + 1) for bits in columns]
    with Pool(options.jobs) as pool:
        found = dict(zip(runs, pool.map(train, runs, chunksize=1), strict=True))
    table = {
        bits: [found[Run(options.data, seed, options.epochs, bits)] for seed in range(1, options.seeds + 1)]
        for bits in columns
    }
    print(f"{options.data}, {options.epochs} epochs, held-out accuracy")
    print("| seed | " + " | ".join(bits or "exact" for bits in columns) + " |\n|" + " --- |" * (1 + len(columns)))
    for row, seed in enumerate(range(1, options.seeds + 1)):
        print(f"| {seed} | " + " | ".join(f"{table[bits][row]:.2%}" for bits in columns) + " |")
    means = {bits: float(np.mean(values)) for bits, values in table.items()}
    print("| mean | " + " | ".join(f"{means[bits]:.2%}" for bits in columns) + " |")
    broken = [bits for bits in options.bits if means[""] - means[bits] > MOST_LOSS]
    print(f"more than {MOST_LOSS:.1%} behind exact sums: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


def train(run: Run) -> float:
    """Held-out accuracy after the last epoch."""
    data, held_out = parts(run.data, run.seed)
    graph = prepared(run.data, run.seed, (run.bits,) if run.bits else ())
    emulator = Emulator(graph, Mode.GOLDEN)
    start = time.perf_counter()
    for epoch in range(run.epochs):
        emulator.train_epoch(data, run.seed, epoch)
    accuracy = emulator.evaluate(held_out).accuracy
    wrapped = sum(state.get("wrapped", 0) for state in emulator.executor.states.values())
    seconds = time.perf_counter() - start
    print(f"seed {run.seed}, {run.bits or 'exact'}: {accuracy:.2%}, {wrapped} wrapped ({seconds:.0f} s)", flush=True)
    return accuracy


def parts(name: str, seed: int) -> tuple[Dataset, Dataset]:
    """To train on, held out."""
    if name == "digits":
        return load_digits().split(0.2, seed)
    train, held_out = choose_data(str(EXAMPLES / "mnist" / "data.toml")).parts(seed)
    return train, held_out


def prepared(name: str, seed: int, bits: tuple[str, ...]) -> Graph:
    """The training graph of an example, in formats fitted to the first batches."""
    folder = EXAMPLES / name
    recipe = dataclasses.replace(Recipe(**tomllib.loads((folder / "recipe.toml").read_text())), seed=seed)
    graph = differentiate(import_model(folder / f"{name}.onnx", recipe=recipe))
    data, _ = parts(name, seed)
    feeds = Emulator(graph, Mode.REFERENCE).feeds
    order = list(data.batches(recipe.batch, seed, epoch=0))[:BATCHES]
    return calibrate(graph, [feeds(data, index) for index in order], CalibrationOptions(width=Widths.parse(bits)))


if __name__ == "__main__":
    raise SystemExit(main())
