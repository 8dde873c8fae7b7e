"""What copies learn whose norms keep statistics apart: held-out accuracy, of several seeds, in one table.

    python benchmarks/norm_sync.py [--only ResNet VGG] [--data digits] [--copies 1 2 4] [--seeds 5]
    python benchmarks/norm_sync.py --minutes 30 --workers 2 --write   # so long, and the table into docs/learning.md
    python benchmarks/norm_sync.py --minutes 0                        # what is known, without another run

Networks are the families of docs/learning.md at 16 bits, trained as they are there.  All layers have copies, each with
its share of a batch of 16, as ``dagtrain import --copy '*=2' --norm-sync apart`` makes them: each copy of a norm has
the statistics of its own frames, and judges those of the held-out images that it is dealt.  Bits are those of the
hardware.  Of one copy, and so of any number with ``--norm-sync together``, bits are those of a network without.

Finished runs stand in benchmarks/norm_sync.json, kept and found again as those of benchmarks/learning_table.py.
"""

from __future__ import annotations

import os

# the matrices are small: threads of the BLAS cost more than they give
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks.families import FAMILIES
from benchmarks.learning_table import DATA, NOTHING, Run, Store, fill_store, parse, spread, write_between
from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import NormSync, replicate
from dagtrain.training.data import Dataset

ROOT = Path(__file__).parents[1]
STORE = ROOT / "benchmarks" / "norm_sync.json"
DOCS = ROOT / "docs" / "learning.md"
BEGIN, END = "<!-- begin: benchmarks/norm_sync.py -->", "<!-- end: benchmarks/norm_sync.py -->"


@dataclass(frozen=True)
class Apart(Run):
    """A training with copies of all layers, and statistics of each."""

    copies: int = 1

    @property
    def name(self) -> str:
        """For messages and the store."""
        return f"{super().name}, {self.copies} copies"

    def graph(self, data: Dataset) -> Graph:
        """With its copies."""
        return insert_forks(replicate(super().graph(data), {"*": self.copies}, norm_sync=NormSync.APART))


def _every(network: str, data: str, copies: int, seeds: int) -> list[Apart]:
    """Runs of a row, by seed."""
    return [Apart(network, data, Mode.GOLDEN, seed, copies=copies) for seed in range(1, seeds + 1)]


def runs(options: argparse.Namespace) -> Iterator[Apart]:
    """All that the table wants: a seed of all rows before the next."""
    rows = [
        _every(network, data, copies, options.seeds)
        for data in options.data
        for network in options.only
        for copies in options.copies
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
            one = [store.last(run) for run in _every(network, data, 1, options.seeds)]
            for copies in options.copies:
                found = [store.last(run) for run in _every(network, data, copies, options.seeds)]
                known = [value for value in found if value is not None]
                away = [
                    100 * (value - beside)
                    for value, beside in zip(found, one, strict=True)
                    if value is not None and beside is not None
                ]
                if known:
                    beside = f"{np.mean(away):+.2f} | {min(away):+.1f} to {max(away):+.1f}"
                    lines.append(
                        f"| {network} | {data} | {copies} | {len(known)} | {spread(known)} | "
                        f"{beside if copies > 1 and away else f'{NOTHING} | {NOTHING}'} |"
                    )
    return lines


def main() -> int:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES))
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
