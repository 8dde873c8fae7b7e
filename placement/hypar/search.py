"""Which layers go by data and which by model at every level: as the paper searches, exactly, and what it is beside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placement.hypar.communication import DP, MP, Above, Choices, Columns, Counting, column
from placement.hypar.elimination import least
from placement.hypar.network import Layer, Net


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
    return least(single, pairs)[1]


def exact(net: Net, levels: int, counting: Counting) -> dict[str, tuple[int, ...]]:
    """The choices that communicate least over all levels together.

    What a layer costs depends on its column alone, a border on two, so that columns are labels of `least`."""
    columns = Columns(counting, levels)
    single = {layer.name: columns.of_layer(layer) for layer in net.layers}
    pairs = [(maker.name, taker.name, columns.of_border(maker, taker)) for maker, taker in net.borders]
    return {name: column(number, levels) for name, number in least(single, pairs)[1].items()}


# ---- what the paper compares with


def everywhere(choose: Callable[[Layer], int]) -> Callable[[Net, int], Choices]:
    """The same choice at all levels, by layer."""
    return lambda net, levels: {layer.name: (choose(layer),) * levels for layer in net.layers}


data_parallelism = everywhere(lambda _: DP)
model_parallelism = everywhere(lambda _: MP)
# Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014
weird_trick = everywhere(lambda layer: MP if layer.is_dense else DP)
