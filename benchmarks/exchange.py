"""Held-out accuracy of the digits network whose copies exchange coded gradients, in the emulator, over seeds.

    python benchmarks/exchange.py --copies 4 --epochs 4            # a row takes five trainings of half a CPU minute
    python benchmarks/exchange.py --copies 4 --bounds 6 --seeds 1  # and no codec beside it

Each copy sums the gradients of its frames exactly, rounds the sum stochastically to the gradient's format, and
exchanges it with the others (`hdl.engine.codec.collective`); all update with what they decode.  Statistics of norms run
over all frames, and their parameters' gradients are not exchanged.  A bound of 2^-b is of the format's range.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pool
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks.beside_paper import print_table
from benchmarks.learning import DIGITS, Run, prepared
from dagtrain.graph.executor import Array, Mode
from dagtrain.graph.ir import Graph, Node
from dagtrain.passes.replicate import replicate
from dagtrain.training.data import Dataset, Draw
from dagtrain.training.emulator import Emulator, Metrics
from dagtrain.training.sources import load_digits
from hdl.engine.codec.collective import AllReduce, Collective
from hdl.engine.codec.integer_codec import Cut, IntegerCodec
from hdl.fixed import IntArray
from hdl.layers.base import Layer
from hdl.layers.capabilities import Advancing, RoundedApart
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.random_bits import hash32, high_half, requantise_by_element, tensor_key
from hdl.recipe import Recipe

CALIBRATED_BATCHES = 16


@dataclass(frozen=True)
class Form:
    """How gradients are exchanged; no ``bound_bits``: as they are."""

    copies: int
    bound_bits: int | None = None
    feedback: bool = False
    collective: Collective = Collective.RING
    cut: Cut = Cut.TRUNCATE

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        codec = "none" if self.bound_bits is None else f"2^-{self.bound_bits}, {self.cut.value}"
        return str(self.copies), self.collective.value, codec, "yes" if self.feedback else "no"

    def exchange(self) -> AllReduce:
        """Of one tensor."""
        codec = None if self.bound_bits is None else IntegerCodec.relative(self.bound_bits, cut=self.cut)
        return AllReduce(self.collective, codec, self.feedback)


class Exchanging(Emulator):
    """An emulator of copies whose exact sums of gradients are not added, but rounded apart and exchanged."""

    def __init__(self, graph: Graph, form: Form) -> None:
        super().__init__(graph)
        self.sums = {edge: node for edge, (node, _) in graph.producers.items() if isinstance(node.layer, GradientSum)}
        assert self.sums, "no layer has copies"
        self.summed = {edge for node in self.sums.values() for edge in node.inputs.values()}
        self.exchanges = {edge: form.exchange() for edge in self.sums}

    def train_batch(self, data: Dataset, index: IntArray, draw: Draw | None = None) -> Metrics:
        """As of any emulator."""
        kept: dict[str, Array] = {}
        # readers of a sum get what copies decode
        decoded: dict[str, Array] = {}

        def watch(edge: str, array: Array) -> None:
            if edge in self.summed:
                kept[edge] = array
            if edge in self.sums:
                decoded[edge] = self._exchanged(edge, kept)

        return self._metrics(self.executor.step(self.feeds(data, index, draw), watch, decoded))

    def _exchanged(self, edge: str, kept: Mapping[str, Array]) -> IntArray:
        node = self.sums[edge]
        layer, batch = _layer(node), self.executor.batches

        def key(copy: int) -> int:
            return tensor_key(layer.recipe.seed, layer.tensor_id) << 32 | copy

        def rounded(copy: int, sink: str) -> IntArray:
            codes = kept[node.inputs[sink]].astype(np.int64)
            return requantise_by_element(codes, layer.s_fixed.fraction_bits, layer.g_fixed, batch, key(copy))

        def noise(copy: int, first: int, end: int) -> IntArray:
            return high_half(hash32(np.arange(first, end), batch, ~key(copy)))

        parts = [rounded(copy, port.name) for copy, port in enumerate(layer.sinks)]
        return self.exchanges[edge].run(parts, noise)

    @property
    def saved(self) -> float:
        """Of bits without a codec to those that were sent, of all tensors."""
        whole = sum(exchange.sent_elements * exchange.width for exchange in self.exchanges.values())
        return whole / sum(exchange.sent_bits for exchange in self.exchanges.values())


def _exchanges(layer: Layer) -> bool:
    """Whether copies of it have gradients to exchange: norms stay single ones, as `replicate` says."""
    return isinstance(layer, RoundedApart) and not isinstance(layer, Advancing)


def _layer(node: Node) -> GradientSum:
    assert isinstance(node.layer, GradientSum)
    return node.layer


def train(work: tuple[Form, Run]) -> tuple[float, float]:
    """Held-out accuracy at the end, and the ratio of compression."""
    form, run = work
    data, held_out = load_digits().split(0.2, run.seed)
    graph = prepared(run)
    engines = {node.whole: form.copies for node in graph.nodes if _exchanges(node.layer)}
    emulator = Exchanging(replicate(graph, engines), form)
    for epoch in range(run.epochs):
        emulator.train_epoch(data, run.seed, epoch)
    return emulator.evaluate(held_out).accuracy, emulator.saved


def main() -> None:
    """Print the table."""
    options = parse()
    recipe = Recipe(**tomllib.loads((DIGITS / "recipe.toml").read_text()))
    form = partial(Form, collective=Collective(options.collective), cut=Cut(options.cut))
    forms = [
        form(copies, bound, feedback)
        for copies in options.copies
        for bound in (None, *options.bounds)
        for feedback in ((False,) if bound is None else (False, True))
    ]
    runs = [
        Run(seed, Mode.GOLDEN, replace(recipe, seed=seed), options.epochs, CALIBRATED_BATCHES)
        for seed in range(1, options.seeds + 1)
    ]
    rows = []
    with Pool(options.jobs) as pool:
        found = pool.imap(train, [(form, run) for form in forms for run in runs])
        for each in forms:
            accuracies, ratios = zip(*(next(found) for _ in runs), strict=True)
            cells = f"{100 * np.mean(accuracies):.2f}", f"{100 * min(accuracies):.2f}", f"{np.mean(ratios):.2f}"
            rows.append((*each.cells, *cells))
            print(*rows[-1], file=sys.stderr, flush=True)
    print_table(("copies", "collective", "codec", "feedback", "mean %", "worst %", "ratio"), rows)


def parse() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--bounds", type=int, nargs="+", default=[10, 8, 6], help="b of 2^-b")
    parser.add_argument("--collective", choices=[each.value for each in Collective], default="ring")
    parser.add_argument("--cut", choices=[each.value for each in Cut], default="truncate")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
