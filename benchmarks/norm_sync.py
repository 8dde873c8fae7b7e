"""What copies learn whose norms keep statistics apart: held-out accuracy, of several seeds, in one table.

    python benchmarks/norm_sync.py [--only ResNet DenseNet] [--data digits] [--copies 1 2 4] [--seeds 5]
    python benchmarks/norm_sync.py --minutes 30 --workers 2 --write   # so long, and the table into docs/learning.md
    python benchmarks/norm_sync.py --minutes 0                        # what is known, without another run

Networks are the families of docs/learning.md that have online normalisation, at 16 bits, trained as they are there.
All layers have copies, each with its share of a batch of 16, as ``dagtrain import --copy '*=2' --norm-sync apart``
makes them: each copy of a norm has the statistics of its own frames, and judges those of the held-out images that it is
dealt.  Bits are those of the hardware.  Of one copy, and so of any number with ``--norm-sync together``, bits are those
of a network without.

A copy of r counts its own frames, so with the recipe's decays its statistics remember r times as many of a training.
Rows of "memory of one" have decays to the power of r, with which they remember as many as one norm does.

Finished runs stand in benchmarks/norm_sync.json, kept and found again as those of benchmarks/learning_table.py.
"""

from __future__ import annotations

import os

# the matrices are small: threads of the BLAS cost more than they give
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks.families import FAMILIES, SMALL, forward
from benchmarks.learning_table import DATA, NOTHING, Run, Store, fill_store, parse, spread, write_between
from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import NormSync, advancing, replicate
from dagtrain.training.data import Dataset
from hdl.recipe import Recipe

ROOT = Path(__file__).parents[1]
STORE = ROOT / "benchmarks" / "norm_sync.json"
DOCS = ROOT / "docs" / "learning.md"
MATCHED = ", memory of one"
NORMED = [name for name in FAMILIES if advancing(forward(name, Recipe(), SMALL, 1))]
BEGIN, END = "<!-- begin: benchmarks/norm_sync.py -->", "<!-- end: benchmarks/norm_sync.py -->"


@dataclass(frozen=True)
class Apart(Run):
    """A training with copies of all layers, and statistics of each."""

    copies: int = 1
    # whether statistics remember as many frames of the training as those of one norm
    matched: bool = False

    @property
    def name(self) -> str:
        """For messages and the store."""
        return f"{super().name}, {_row(self.copies, self.matched)}"

    def recipe(self, recipe: Recipe) -> Recipe:
        """With the decays of a copy."""
        if not self.matched:
            return recipe
        decays = recipe.norm_forward_decay**self.copies, recipe.norm_backward_decay**self.copies
        return replace(recipe, norm_forward_decay=decays[0], norm_backward_decay=decays[1])

    def graph(self, data: Dataset) -> Graph:
        """With its copies."""
        return insert_forks(replicate(super().graph(data), {"*": self.copies}, norm_sync=NormSync.APART))


def _row(copies: int, matched: bool) -> str:
    """What a row is called, beside network and data."""
    return f"{copies} copies{MATCHED if matched else ''}"


def forms(options: argparse.Namespace) -> list[tuple[int, bool]]:
    """(copies, whether they remember as one does) of all rows."""
    return [(copies, matched) for copies in options.copies for matched in (False, True)[: 1 + (copies > 1)]]


def _every(network: str, data: str, form: tuple[int, bool], seeds: int) -> list[Apart]:
    """Runs of a row, by seed."""
    copies, matched = form
    return [Apart(network, data, Mode.GOLDEN, seed, copies=copies, matched=matched) for seed in range(1, seeds + 1)]


def runs(options: argparse.Namespace) -> Iterator[Apart]:
    """All that the table wants: a seed of all rows before the next."""
    rows = [
        _every(network, data, form, options.seeds)
        for data in options.data
        for network in options.only
        for form in forms(options)
    ]
    for of_seed in zip(*rows, strict=True):
        yield from of_seed


def table(store: Store, options: argparse.Namespace) -> list[str]:
    """Markdown lines; differences are those of the seeds that both rows have."""
    lines = [
        "| network | data | copies | seeds | held-out accuracy % | beside one | of single seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for data in options.data:
        for network in options.only:
            one = [store.last(run) for run in _every(network, data, (1, False), options.seeds)]
            for copies, matched in forms(options):
                found = [store.last(run) for run in _every(network, data, (copies, matched), options.seeds)]
                known = [value for value in found if value is not None]
                away = [
                    100 * (value - beside)
                    for value, beside in zip(found, one, strict=True)
                    if value is not None and beside is not None
                ]
                if known:
                    beside = f"{np.mean(away):+.2f} | {min(away):+.1f} to {max(away):+.1f}"
                    row = f"{copies}{MATCHED if matched else ''}"
                    lines.append(
                        f"| {network} | {data} | {row} | {len(known)} | {spread(known)} | "
                        f"{beside if copies > 1 and away else f'{NOTHING} | {NOTHING}'} |"
                    )
    return lines


def main() -> int:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NORMED, default=NORMED)
    parser.add_argument("--data", nargs="+", choices=DATA, default=["digits"])
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="the table into docs/learning.md")
    options = parse(parser, sys.argv[1:])
    store = Store(STORE)
    fill_store(store, runs(options), options)
    lines = table(store, options)
    print("\n".join(lines))
    if options.write:
        write_between(DOCS, BEGIN, END, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
