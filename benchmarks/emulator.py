"""How fast the emulator trains, beside PyTorch on the CPU in float32 at the same batch size and with all cores.

    python benchmarks/emulator.py [digits] [resnet18] [--torch-python PATH] [--steps 150] [--rounds 3] [--profile]
    OPENBLAS_NUM_THREADS=1 python benchmarks/emulator.py --cpu         # CPU seconds of one thread each

Rounds of both are taken in turn, so that other load on the machine meets both; with ``--cpu`` it counts for little.
PyTorch is optional: it runs in its
own process, in this interpreter or in the one that ``--torch-python`` names; without it only the emulator is timed.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks import families
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import Emulator
from dagtrain.training.sources import load_digits
from hdl.recipe import Recipe
from importers.onnx import import_model

HERE = Path(__file__).parent
DIGITS = HERE.parent / "examples" / "digits"


@dataclass(frozen=True)
class Net:
    """What is timed."""

    # the forward graph
    build: Callable[[Recipe], Graph]
    # (channels, height, width) of random images; None for the digits
    images: tuple[int, int, int] | None
    # steps a round
    steps: int
    # the emulator may take this many times as long as PyTorch
    allowed: float


def digits(recipe: Recipe) -> Graph:
    """The net of examples/digits."""
    return import_model(DIGITS / "digits.onnx", recipe=recipe)


def resnet18(recipe: Recipe) -> Graph:
    """ResNet-18 in its form for images of 32x32."""
    net = GraphBuilder("resnet18", recipe, seed=1)
    return net.classify(families.resnet18(net, net.input(32, 32, 3)))


NETS = {"digits": Net(digits, None, 150, 1.3), "resnet18": Net(resnet18, (3, 32, 32), 6, 3.0)}


def main() -> int:
    """Prints milliseconds a step; 1 if the emulator is too slow."""
    options = parse()
    results = [timed(name, options) for name in options.nets or sorted(NETS)]
    return 0 if all(results) else 1


def timed(name: str, options: argparse.Namespace) -> bool:
    """Prints the times of one net; whether the emulator is fast enough."""
    net = NETS[name]
    count = options.steps or net.steps
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    data = load_digits() if net.images is None else random_images(net.images, 4 * recipe.batch)
    emulator = prepared(net.build(recipe), data)
    # compiles kernels and warms caches
    steps(emulator, data, 2)
    if options.profile:
        profile(emulator, data, count)
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(steps(emulator, data, count, options.cpu))
        theirs.append(torch_step(options.torch_python, name, recipe.batch, count, options.cpu))
    found = [seconds for seconds in theirs if seconds is not None]
    kind = "CPU milliseconds" if options.cpu else "milliseconds"
    print(f"{name}, batch {recipe.batch}, staleness {recipe.staleness}: {kind} a training step (median a round)")
    print("emulator, 16 bits  " + " ".join(f"{1e3 * seconds:8.2f}" for seconds in ours))
    if not found:
        print("PyTorch is not installed in this interpreter; name one that has it with --torch-python")
        return True
    print("PyTorch, float32   " + " ".join(f"{1e3 * seconds:8.2f}" for seconds in found))
    ratio = min(ours) / min(found)
    print(f"ratio of the fastest rounds {ratio:.2f}, allowed {net.allowed:.1f}", flush=True)
    return ratio <= net.allowed


def random_images(shape: tuple[int, int, int], count: int) -> Dataset:
    """Noise of unit variance with labels of ten classes."""
    rng = np.random.default_rng(1)
    return Dataset(rng.standard_normal((count, *shape)).astype(np.float32), rng.integers(0, 10, count))


def prepared(forward: Graph, data: Dataset) -> Emulator:
    """The emulator of a net, calibrated."""
    graph = differentiate(forward)
    feeds = Emulator(graph, Mode.REFERENCE).feeds
    batches = itertools.islice(data.batches(graph.recipe.batch, 0, 0), 2)
    return Emulator(calibrate(graph, [feeds(data, index) for index in batches]))


def steps(emulator: Emulator, data: Dataset, count: int, cpu: bool = False) -> float:
    """Median seconds of ``count`` training steps; ``cpu``: of the CPU."""
    clock = time.process_time if cpu else time.perf_counter
    seconds = []
    batch = emulator.graph.recipe.batch
    endless = (index for epoch in itertools.count() for index in data.batches(batch, 1, epoch))
    for index in itertools.islice(endless, count):
        start = clock()
        emulator.train_batch(data, index)
        seconds.append(clock() - start)
    return statistics.median(seconds)


def torch_step(python: str, name: str, batch: int, count: int, cpu: bool) -> float | None:
    """Median seconds of a PyTorch step, ``cpu``: of the CPU, one thread; None where there is no PyTorch."""
    if shutil.which(python) is None:
        raise SystemExit(f"--torch-python {python}: no such interpreter")
    probe = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    if probe.returncode:
        return None
    command = [python, str(HERE / "torch_step.py"), name, str(batch), str(count), *(["cpu"] if cpu else [])]
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
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {sorted(NETS)}; default: all")
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter that has PyTorch")
    parser.add_argument("--steps", type=int, help="steps a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="compare CPU seconds of one thread each")
    parser.add_argument("--profile", action="store_true", help="show where the emulator's time goes")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
