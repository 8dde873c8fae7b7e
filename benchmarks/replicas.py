"""How much sooner copies of ResNet-18 at 32x32 train in processes of their own (`dagtrain train --replicas`).

    python benchmarks/replicas.py [--replicas 2] [--steps 20] [--batches 16 64] [--exchange central]

The same graph with so many copies of all layers, without normalisation: in one process on one core, in one process on
all cores, and in a process a copy.  Each trains alone, one after another.  Losses and the state in the end have the
same bits.  1 if the last is not 1.7 times as fast as the first, by medians.
Beside them the network without copies, in one process on all cores, whose losses have the same bits if copies
exchange exact sums; and what the machine itself allows: networks of their own in as many processes, a core and their
share of the frames each, that exchange nothing and train one after another, or all at once.
"""

from __future__ import annotations

import os

# as in all processes that train; threads of the BLAS would have several cores where one is meant
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import hashlib
import itertools
import multiprocessing
import statistics
import sys
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks import families
from benchmarks.emulator import DIGITS, prepared, random_images
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph
from dagtrain.passes.exchange import parse_exchange
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import replicate
from dagtrain.runs.local import LocalRunner
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import Emulator
from dagtrain.training.states import pack
from dagtrain.training.team import Team, address_towards
from hdl.recipe import Recipe

# what was asked for of two copies on two cores
WANTED = 1.7
# steps before those that are timed, in which kernels are compiled
UNTIMED = 4
IMAGES = (3, 32, 32)


class Plain(GraphBuilder):
    """Makes networks without normalisation, whose statistics would run from frame to frame."""

    def norm(self, x: str) -> str:
        """As it is."""
        return x


@dataclass(frozen=True)
class Trained:
    """What a program that trains alone came to."""

    # of each timed step
    seconds: list[float]
    # of each step, and of all that a checkpoint keeps in the end
    losses: list[float]
    digest: str


def main() -> int:
    """Prints milliseconds a step."""
    options = parse()
    good = [compared(options, batch) for batch in sorted(options.batches)]
    return 0 if all(good) else 1


def compared(options: argparse.Namespace, batch: int) -> bool:
    """Prints a table for batches of this size; whether processes are as quick as wanted, with the same bits."""
    several, every = options.replicas, f"{len(os.sched_getaffinity(0))} cores"
    ways = {
        "one process, one core": one_core,
        f"one process, {every}": one_process,
        f"{several} processes": processes,
        f"no copies, {every}": no_copies,
        f"{several} networks, in turn": in_turn,
        f"{several} networks at once": at_once,
    }
    print(f"ResNet-18 at 32x32, {several} copies, {options.exchange}, batches of {batch}: milliseconds a step")
    print(f"{'':24}  median   quartiles")
    found = []
    for name, way in ways.items():
        # a process of its own, as a user's training is: memory of others in it would slow it
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found.append(pool.submit(way, options, batch).result())
        first, median, third = (1e3 * each for each in statistics.quantiles(found[-1].seconds))
        print(f"{name:24}{median:8.0f}{first:8.0f}{third:8.0f}", flush=True)
    alone, _, team, _, turns, once = (statistics.median(each.seconds) for each in found)
    print(f"{alone / team:.2f} times as fast as one process on one core, wanted {WANTED}")
    print(f"the machine allows {turns / once:.2f}: so much faster are networks of their own at once than in turn")
    equal = all(each.losses == found[0].losses for each in found[:4])
    equal &= all(each.digest == found[0].digest for each in found[:3])
    print("the same losses and states, bit for bit\n" if equal else "OTHER BITS\n", flush=True)
    return equal and alone / team >= WANTED


def one_core(options: argparse.Namespace, batch: int) -> Trained:
    """All copies in one process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    return one_process(options, batch)


def one_process(options: argparse.Namespace, batch: int) -> Trained:
    """All copies in one process, on the cores that it has."""
    data, _, copied = prepared_for(options, batch)
    return trained(Executor(copied), data, batch, options.steps)


def no_copies(options: argparse.Namespace, batch: int) -> Trained:
    """The network itself in one process."""
    data, plain, _ = prepared_for(options, batch)
    return trained(Executor(insert_forks(plain)), data, batch, options.steps)


def processes(options: argparse.Namespace, batch: int) -> Trained:
    """A process a copy."""
    data, _, copied = prepared_for(options, batch)
    with Team(copied, options.replicas, LocalRunner(options.replicas), address_towards(None)) as team:
        return trained(team, data, batch, options.steps)


def in_turn(options: argparse.Namespace, batch: int) -> Trained:
    """Networks of their own, a process each, that take a step one after another."""
    return apart(options, batch, lambda pipes: [asked(pipe)() for pipe in pipes])


def at_once(options: argparse.Namespace, batch: int) -> Trained:
    """The same networks, which take a step at the same time."""
    return apart(options, batch, lambda pipes: [answer() for answer in [asked(pipe) for pipe in pipes]])


def asked(pipe: Connection) -> Callable[[], None]:
    """Ask for a step; what waits until it is taken."""
    pipe.send(None)
    return pipe.recv


def apart(options: argparse.Namespace, batch: int, step: Callable[[list[Connection]], object]) -> Trained:
    """Networks without copies, a process, a core and their share of the frames each."""
    cores, spawn = sorted(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")
    pairs = [spawn.Pipe() for _ in range(options.replicas)]
    children = [
        spawn.Process(target=train, args=(there, cores[index % len(cores)], options, batch // options.replicas))
        for index, (_, there) in enumerate(pairs)
    ]
    pipes = [here for here, _ in pairs]
    for child, (_, there) in zip(children, pairs, strict=True):
        child.start()
        # so that one that ends is told, not waited for
        there.close()
    try:
        for pipe in pipes:
            pipe.recv()
        seconds = []
        for _ in range(UNTIMED + options.steps):
            start = time.perf_counter()
            step(pipes)
            seconds.append(time.perf_counter() - start)
        return Trained(seconds[UNTIMED:], [], "")
    finally:
        for child in children:
            child.terminate()
            child.join()


def train(pipe: Connection, core: int, options: argparse.Namespace, batch: int) -> None:
    """Take a step whenever it is asked for."""
    os.sched_setaffinity(0, {core})
    data, plain, _ = prepared_for(options, batch)
    executor = Executor(insert_forks(plain))
    emulator = Emulator(executor.graph, executor=executor)
    pipe.send(None)
    for index in itertools.cycle(data.batches(batch, 1, 0)):
        pipe.recv()
        emulator.train_batch(data, index)
        pipe.send(None)


def trained(executor: Executor, data: Dataset, batch: int, steps: int) -> Trained:
    """Steps one after another."""
    emulator = Emulator(executor.graph, executor=executor)
    seconds, losses = [], []
    for index in itertools.islice(itertools.cycle(data.batches(batch, 1, 0)), UNTIMED + steps):
        start = time.perf_counter()
        losses.append(emulator.train_batch(data, index).loss)
        seconds.append(time.perf_counter() - start)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    text = repr(pack(executor.snapshot(), arrays)).encode()
    digest = hashlib.sha256(b"\0".join([text, *(array.tobytes() for array in arrays.values())])).hexdigest()
    return Trained(seconds[UNTIMED:], losses, digest)


def prepared_for(options: argparse.Namespace, batch: int) -> tuple[Dataset, Graph, Graph]:
    """Images, and training graphs without copies and with them."""
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    recipe = replace(recipe, batch=batch, staleness=min(recipe.staleness, batch))
    data = random_images(IMAGES, 4 * batch)
    plain = training(recipe, data)
    copied = replicate(plain, {"*": options.replicas}, parse_exchange(options.exchange, "none"))
    return data, plain, insert_forks(copied)


def training(recipe: Recipe, data: Dataset) -> Graph:
    """The training graph without copies."""
    net = Plain("resnet18", recipe, seed=1)
    forward = net.classify(families.resnet18(net, net.input(IMAGES[1], IMAGES[2], IMAGES[0])))
    return prepared(forward, data).graph


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64], help="frames in a batch")
    parser.add_argument("--exchange", choices=("central", "chain", "ring"), default="central")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
