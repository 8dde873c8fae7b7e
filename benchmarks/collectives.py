"""INCEPTIONN's ways to exchange gradients, simulated: what workers that exchange take longer than such that need not.

    python benchmarks/collectives.py --write    # all points, some minutes of a core, into docs/inceptionn.md

A worker is a copy of a network of dense layers of one size, on a board of its own; with an aggregator, one board more
has sums, updates and nothing else.  Engines have all multipliers that they can use, so that little but the exchange
counts: a batch has a frame a worker, and no frame is stale.  The fast level simulates the cluster, and the same with
everything on one board; the difference is what the exchange takes.  It is told in units of n beta, the time in which a
link carries one gradient, and stands beside the words that follow one another over the busiest port:

    aggregator  one gradient from each worker in, the weights for each worker out, both at once
    ring        (p - 1) / p of a gradient out on the way to sums, and again when they are told

"coded" plans with words that are so many times fewer.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import simulate_fast
from benchmarks.beside_paper import print_table, with_table
from benchmarks.fpdeep import CLOCK_HZ, PART, Bare
from dagtrain.files import write_text
from dagtrain.graph.ir import Graph, Node
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.exchange import COPY, Exchanging
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.plain_links import plain_links
from dagtrain.passes.replicate import replicate
from dagtrain.passes.share_weights import share_weights, sharing_nodes
from dagtrain.planning.choices import cluster_dram
from dagtrain.planning.rate import wired_graph
from dagtrain.progress import Silent
from dagtrain.simulate.fast import simulate_fast as simulated
from dagtrain.simulate.result import HZ_PER_MHZ
from hdl.engine.codec.collective import Collective
from hdl.engine.codec.integer_codec import Cut
from hdl.layers.exchange.exchange import Exchange
from hdl.recipe import Recipe

ROOT = Path(__file__).parents[1]
STORE = ROOT / "benchmarks" / "collectives.json"
DOCS = ROOT / "docs" / "inceptionn.md"
MARKS = "<!-- begin: benchmarks/collectives.py -->", "<!-- end: benchmarks/collectives.py -->"
# dense layers, so many that rings of all sizes have even blocks; elements of a vector; bits of a gradient's element
LAYERS, WIDE, BITS = 24, 2048, 16
WORKERS, GBPS = (4, 6, 8), (10.0, 100.0)
# by which gradients of the digits network get smaller in four copies at bounded:10 (benchmarks/exchange.py)
RATIO_PERCENT = 350
# cycles a frame, for which engines have all the multipliers that they can use
CYCLES = 2048
BATCHES = 3
# runs of beats in which a tensor passes
RUNS = 256
# bits that the codec drops of small elements: links carry its values as they are, unless they are coded
DROP, WINDOW = 1, 7


@dataclass(frozen=True)
class Point:
    """What one way of exchange takes."""

    collective: str
    workers: int
    link_gbps: float
    coded: bool
    # more than without a network, for a batch, in units of n beta
    simulated: float

    @property
    def words(self) -> float:
        """The same by words over the busiest port."""
        return words_in_a_row(Collective(self.collective), self.workers, RATIO_PERCENT / 100 if self.coded else 1.0)

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        where = "aggregator" if self.collective == Collective.CENTRAL.value else self.collective
        title = f"{where}, coded {RATIO_PERCENT / 100:g} times smaller" if self.coded else where
        quotient = f"{self.simulated / self.words:.3f}"
        return str(self.workers), title, f"{self.link_gbps:g}", f"{self.words:.3f}", f"{self.simulated:.3f}", quotient


HEADS = ("workers", "exchange", "Gb/s", "words in a row", "simulated", "quotient")


def words_in_a_row(collective: Collective, workers: int, ratio: float = 1.0) -> float:
    """Over the busiest port for each word of the model; weights come back from an aggregator as they are."""
    if collective is Collective.CENTRAL:
        return float(workers)
    return 2 * (workers - 1) / workers / ratio


def dense(layers: int, wide: int, recipe: Recipe) -> Graph:
    """The forward graph of dense layers of one size."""
    build = Bare("dense", recipe)
    x = build.input(1, 1, wide)
    for _ in range(layers):
        x = build.gemm(x, wide, bias=False)
    return build.classify(x)


def batch_cycles(
    way: Exchanging, workers: int, link_gbps: float, layers: int = LAYERS, wide: int = WIDE, *, apart: bool = True
) -> float:
    """Cycles from batch to batch, in steady state; ``apart``: each worker on its board, else all on one."""
    training = differentiate(dense(layers, wide, Recipe(batch=workers, staleness=0)))
    graph = insert_forks(replicate(training, {"*": workers}, way))
    if not way.ratio_percent:
        graph = plain_links.run(graph, [node.name for node in graph.nodes if isinstance(node.layer, Exchange)])
    # a board that gets weights gets them once
    graph = share_weights.run(graph, [name for name, _ in sharing_nodes(graph)])
    folded = fold_graph(graph, CYCLES, (PART,))
    cluster = simulate_fast.cluster_of(workers + 1, link_gbps)
    devices = [device.name for device in cluster.devices]
    where = {node.name: devices[_board(node, workers) if apart else 0] for node in folded.nodes}
    wired = wired_graph(folded, where, cluster, CYCLES, cluster_dram(cluster, CYCLES))
    *_, before, last = simulated(wired, BATCHES, CLOCK_HZ / HZ_PER_MHZ, Silent(), runs=RUNS).batches
    return float(last.last_result - before.last_result)


@cache
def _alone(way: Exchanging, workers: int, layers: int, wide: int) -> float:
    """Cycles from batch to batch without a network."""
    return batch_cycles(way, workers, GBPS[0], layers, wide, apart=False)


def _board(node: Node, workers: int) -> int:
    """Of a node: that of its copy, or the last one for what serves all copies; the host is beside the first."""
    if node.layer.pinned_to_host:
        return 0
    copy = node.name.partition(COPY)[2].partition(".")[0]
    return int(copy) if copy else workers


def exchanged(
    collective: Collective, workers: int, link_gbps: float, coded: bool, layers: int = LAYERS, wide: int = WIDE
) -> Point:
    """One point, simulated."""
    way = Exchanging(collective, (DROP, WINDOW, Cut.TRUNCATE), ratio_percent=RATIO_PERCENT if coded else 0)
    more = batch_cycles(way, workers, link_gbps, layers, wide)
    more -= _alone(replace(way, ratio_percent=0), workers, layers, wide)
    beta = layers * wide * wide * BITS / (link_gbps * 1e9 / CLOCK_HZ)
    return Point(collective.value, workers, link_gbps, coded, more / beta)


def points() -> Iterator[Point]:
    """All that the table has, as they are simulated."""
    for workers in WORKERS:
        for collective in (Collective.CENTRAL, Collective.RING):
            for link_gbps in GBPS:
                yield exchanged(collective, workers, link_gbps, coded=False)
            if workers == WORKERS[0]:
                yield exchanged(collective, workers, GBPS[0], coded=True)


def known() -> list[Point]:
    """Those of the last run."""
    return [Point(**row) for row in json.loads(STORE.read_text())]


def main(words: Sequence[str] | None = None) -> None:
    """Simulate all points, or print those of the last run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"simulate all, keep it in {STORE.name} and in the docs")
    options = parser.parse_args(words)
    found = []
    for point in points() if options.write else known():
        found.append(point)
        print(" | ".join(point.cells), file=sys.stderr, flush=True)
    if options.write:
        write_text(STORE, json.dumps([asdict(point) for point in found], indent=1) + "\n")
        page = with_table(DOCS.read_text(), DOCS, MARKS, HEADS, [point.cells for point in found])
        write_text(DOCS, page)
    print_table(HEADS, [point.cells for point in found])


if __name__ == "__main__":
    main()
