"""How fast the emulator trains the digits net, beside PyTorch on the CPU in float32 at the same batch size.

    python benchmarks/emulator.py [--torch-python PATH] [--steps 150] [--rounds 3] [--profile]

Rounds of both are taken in turn, so that other load on the machine meets both.  PyTorch is optional: it runs in its
own process, in this interpreter or in the one that ``--torch-python`` names; without it only the emulator is timed.
"""

from __future__ import annotations

import os

# the matrices are small: threads of the BLAS cost more than they give
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import cProfile
import itertools
import pstats
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from dagtrain.graph.executor import Mode
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import load_digits
from hdl.recipe import Recipe
from importers.onnx import import_model

HERE = Path(__file__).parent
DIGITS = HERE.parent / "examples" / "digits"
# the emulator may take this many times as long as PyTorch
ALLOWED = 5.0


def main() -> int:
    """Prints milliseconds a step; 1 if the emulator is too slow."""
    options = parse()
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    data = load_digits()
    emulator = prepared(recipe, data)
    # compiles kernels and warms caches
    steps(emulator, data, 10)
    if options.profile:
        profile(emulator, data, options.steps)
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(steps(emulator, data, options.steps))
        theirs.append(torch_step(options.torch_python, recipe.batch, options.steps))
    found = [seconds for seconds in theirs if seconds is not None]
    print(f"digits, batch {recipe.batch}, staleness {recipe.staleness}: milliseconds a training step (median a round)")
    print("emulator, 16 bits  " + " ".join(f"{1e3 * seconds:8.2f}" for seconds in ours))
    if not found:
        print("PyTorch is not installed in this interpreter; name one that has it with --torch-python")
        return 0
    print("PyTorch, float32   " + " ".join(f"{1e3 * seconds:8.2f}" for seconds in found))
    ratio = min(ours) / min(found)
    print(f"ratio of the fastest rounds {ratio:.2f}, allowed {ALLOWED:.1f}")
    return 0 if ratio <= ALLOWED else 1


def prepared(recipe: Recipe, data: Dataset) -> Emulator:
    """The emulator of the digits net, calibrated."""
    graph = differentiate(import_model(DIGITS / "digits.onnx", recipe=recipe))
    feeds = Emulator(graph, Mode.REFERENCE).feeds
    batches = itertools.islice(data.batches(recipe.batch, 0, 0), 8)
    return Emulator(calibrate(graph, [feeds(data, index) for index in batches]))


def steps(emulator: Emulator, data: Dataset, count: int) -> float:
    """Median seconds of ``count`` training steps."""
    seconds = []
    batch = emulator.graph.recipe.batch
    endless = (index for epoch in itertools.count() for index in data.batches(batch, 1, epoch))
    for index in itertools.islice(endless, count):
        start = time.perf_counter()
        emulator.train_batch(data, index)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def torch_step(python: str, batch: int, count: int) -> float | None:
    """Median seconds of a PyTorch step; None where there is no PyTorch."""
    probe = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    if probe.returncode:
        return None
    command = [python, str(HERE / "torch_digits.py"), str(batch), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def profile(emulator: Emulator, data: Dataset, count: int) -> None:
    """Prints where the time goes."""
    profiler = cProfile.Profile()
    profiler.runcall(steps, emulator, data, count)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter that has PyTorch")
    parser.add_argument("--steps", type=int, default=150, help="steps a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="show where the emulator's time goes")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
