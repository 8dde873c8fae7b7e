"""What copies that exchange coded gradients learn: held-out accuracy, of several seeds, in one table.

    python benchmarks/exchange.py [--data digits mnist5k] [--copies 2 4 8] [--bounds 10 8 6] [--seeds 5]
    python benchmarks/exchange.py --minutes 30 --workers 2 --write   # so long, and the table into docs/inceptionn.md
    python benchmarks/exchange.py --minutes 0                        # what is known, without another run

The network is the family "ResNet" of docs/learning.md at 16 bits, trained as it is there.  All layers but norms have
copies, each with its share of a batch of 16, which pass their gradients round as ``dagtrain import --copy --exchange
ring --compress bounded:BITS[,feedback]`` builds it: exactly, or cut off below 2^-BITS of the format's range, with what
is cut off added to the next batch's or not.  Bits are those of the hardware.  The ratio is that of a last batch.

Finished runs stand in benchmarks/exchange.json, kept and found again as those of benchmarks/learning_table.py.
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

from benchmarks.learning_table import DATA, NOTHING, Run, Store, fill_store, parse, spread, write_between
from dagtrain.graph.executor import Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.exchange import NO_CODEC, parse_exchange
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import replicate
from dagtrain.training.data import Dataset
from hdl.engine.codec.collective import Collective
from hdl.layers.base import Layer
from hdl.layers.capabilities import Advancing, RoundedApart

ROOT = Path(__file__).parents[1]
STORE = ROOT / "benchmarks" / "exchange.json"
DOCS = ROOT / "docs" / "inceptionn.md"
BEGIN, END = "<!-- begin: benchmarks/exchange.py -->", "<!-- end: benchmarks/exchange.py -->"
NETWORK = "ResNet"
# by how much the mean of `PROMISED` may be below that without a codec
PROMISED, MOST_LOSS = "bounded:10,feedback", 0.003


@dataclass(frozen=True)
class Copied(Run):
    """A training with copies."""

    copies: int = 1
    # as of ``--compress``
    compress: str = NO_CODEC

    @property
    def name(self) -> str:
        """For messages and the store."""
        return f"{super().name}, {self.copies} copies, {self.compress}"

    def graph(self, data: Dataset) -> Graph:
        """With its copies."""
        graph = super().graph(data)
        if self.copies == 1:
            return graph
        counts = {node.whole: self.copies for node in graph.nodes if _exchanges(node.layer)}
        return insert_forks(replicate(graph, counts, parse_exchange(Collective.RING.value, self.compress)))


def _exchanges(layer: Layer) -> bool:
    """Whether copies of it have gradients to exchange: norms stay single ones."""
    return isinstance(layer, RoundedApart) and not isinstance(layer, Advancing)


def forms(options: argparse.Namespace) -> Iterator[tuple[int, str]]:
    """(copies, codec) of all rows; without a codec any number of copies has the bits of one."""
    yield 1, NO_CODEC
    for copies in options.copies:
        for bits in options.bounds:
            yield copies, f"bounded:{bits}"
            yield copies, f"bounded:{bits},feedback"


def runs(options: argparse.Namespace) -> Iterator[Copied]:
    """All that the table wants: a seed of all rows before the next."""
    for seed in range(1, options.seeds + 1):
        for data in options.data:
            for copies, compress in forms(options):
                yield _run(data, seed, copies, compress)


def _run(data: str, seed: int, copies: int, compress: str) -> Copied:
    return Copied(NETWORK, data, Mode.GOLDEN, seed, copies=copies, compress=compress)


def table(store: Store, options: argparse.Namespace) -> tuple[list[str], bool]:
    """(Markdown lines; whether a promise is broken).  Differences are those of the seeds that both rows have."""
    lines = [
        "| data | copies | codec | seeds | held-out accuracy % | beside none | ratio | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    broken = False
    for data in options.data:
        for copies, compress in forms(options):
            every = [_run(data, seed, copies, compress) for seed in range(1, options.seeds + 1)]
            plain = [_run(data, seed, 1, NO_CODEC) for seed in range(1, options.seeds + 1)]
            found = [value for run in every if (value := store.last(run)) is not None]
            if not found:
                continue
            pairs = [
                (value, beside)
                for run, other in zip(every, plain, strict=True)
                if (value := store.last(run)) is not None and (beside := store.last(other)) is not None
            ]
            # of accuracies with five digits
            loss = round(float(np.mean([beside - value for value, beside in pairs])), 6) if pairs else 0.0
            ratios = [ratio for run in every if (ratio := store.ratio(run)) is not None]
            verdict = NOTHING
            if compress == PROMISED and len(pairs) == options.seeds:
                verdict = "holds" if loss <= MOST_LOSS else "**broken**"
                broken |= loss > MOST_LOSS
            lines.append(
                f"| {data} | {copies} | {compress} | {len(found)} | {spread(found)} | "
                f"{NOTHING if compress == NO_CODEC or not pairs else f'{-100 * loss:+.2f}'} | "
                f"{f'{np.mean(ratios):.2f} ×' if ratios else NOTHING} | {verdict} |"
            )
    return lines, broken


def main() -> int:
    """Runs what is missing and prints the table; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--copies", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--bounds", type=int, nargs="+", default=[10, 8, 6], help="b of 2^-b")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="the table into docs/inceptionn.md")
    options = parse(parser, sys.argv[1:])
    store = Store(STORE)
    fill_store(store, runs(options), options)
    lines, broken = table(store, options)
    print("\n".join(lines))
    if options.write:
        write_between(DOCS, BEGIN, END, lines)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
