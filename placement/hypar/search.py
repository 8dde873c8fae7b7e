"""Which layers go by data and which by model at every level: as the paper searches, exactly, and what it is beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.exact.model import Effort
from placement.hypar import bounded, elimination
from placement.hypar.bounded import Found, Pair, Table
from placement.hypar.communication import DP, MP, Above, Choices, Columns, Counting, column, total
from placement.hypar.elimination import TooClose
from placement.hypar.network import Layer, Net

# of CP-SAT, where layers are joined so closely that elimination's tables are too large
EFFORT = Effort(deterministic_seconds=300)


@dataclass(frozen=True)
class Optimum:
    """Choices, and elements that no choices communicate less than."""

    choices: dict[str, tuple[int, ...]]
    bound: float


def greedy(net: Net, levels: int, counting: Counting) -> dict[str, tuple[int, ...]]:
    """Algorithm 2: Algorithm 1 between two groups, then the same within each, whose tensors are halved."""
    chosen: dict[str, tuple[int, ...]] = {layer.name: () for layer in net.layers}
    above = {layer.name: Above() for layer in net.layers}
    for _ in range(levels):
        found = between_two(net, above, counting)
        chosen = {name: (*column, found[name]) for name, column in chosen.items()}
        above = {name: above[name].below(found[name]) for name in above}
    return chosen


def between_two(net: Net, above: dict[str, Above], counting: Counting) -> dict[str, int]:
    """Algorithm 1: the choices of one level that communicate least there."""
    both = (DP, MP)
    single = {
        layer.name: np.array([counting.intra(layer, above[layer.name], choice) for choice in both])
        for layer in net.layers
    }
    pairs = []
    for maker, taker in net.borders:
        ends = above[maker.name], above[taker.name]
        table = [[counting.inter(maker, taker, ends, (a, b)) for b in both] for a in both]
        pairs.append((maker.name, taker.name, np.array(table)))
    return _least(single, pairs, EFFORT).labels


def exact(net: Net, levels: int, counting: Counting) -> dict[str, tuple[int, ...]]:
    """The choices of `optimum`."""
    return optimum(net, levels, counting).choices


def optimum(net: Net, levels: int, counting: Counting, effort: Effort = EFFORT) -> Optimum:
    """The choices that communicate least over all levels together; where ``effort`` is too small to prove that, the
    best that were found, no worse than Algorithm 2's.

    What a layer costs depends on its column alone, a border on two, so that columns are labels of `_least`."""
    columns = Columns(counting, levels)
    single = {layer.name: columns.of_layer(layer) for layer in net.layers}
    pairs = [(maker.name, taker.name, columns.of_border(maker, taker)) for maker, taker in net.borders]
    found = _least(single, pairs, effort)
    choices = {name: column(number, levels) for name, number in found.labels.items()}
    if found.bound < found.cost:
        choices = min(choices, greedy(net, levels, counting), key=lambda some: total(net, some, counting))
    return Optimum(choices, found.bound)


def _least(single: Mapping[str, Table], pairs: Sequence[Pair], effort: Effort) -> Found:
    """By elimination, or where its tables are too large by CP-SAT."""
    try:
        cost, labels = elimination.least(single, pairs)
    except TooClose:
        return bounded.least(single, pairs, effort)
    return Found(cost, labels, cost)


# ---- what the paper compares with


def everywhere(choose: Callable[[Layer], int]) -> Callable[[Net, int], Choices]:
    """The same choice at all levels, by layer."""
    return lambda net, levels: {layer.name: (choose(layer),) * levels for layer in net.layers}


data_parallelism = everywhere(lambda _: DP)
model_parallelism = everywhere(lambda _: MP)
# Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014
weird_trick = everywhere(lambda layer: MP if layer.is_dense else DP)
