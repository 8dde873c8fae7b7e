"""The least sum of costs of nodes and of pairs of nodes, exactly: nodes are eliminated one by one, those with the
fewest neighbours first.

Eliminating a node makes one table over its neighbours: the least cost of all that hangs on it alone, for every label of
theirs.  Along a chain that is dynamic programming from the first layer to the last; along residual branches tables have
two or three neighbours.  (Bertelè and Brioschi, "Nonserial Dynamic Programming", 1972.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdl.errors import DagtrainError

Table = npt.NDArray[np.float64]
# entries of a table: 128 MiB
MOST_ENTRIES = 1 << 24


class TooClose(DagtrainError):
    """Nodes so closely joined that a table over their neighbours is too large."""


@dataclass(frozen=True)
class Factor:
    """Costs by the labels of some nodes."""

    nodes: tuple[str, ...]
    table: Table


def least(single: Mapping[str, Table], pairs: Sequence[tuple[str, str, Table]]) -> tuple[float, dict[str, int]]:
    """(least cost, label of every node); of equal costs that with the lower label of the node eliminated first.

    Raises `TooClose`."""
    factors = [Factor((name,), table) for name, table in single.items()]
    factors += [Factor((a, b), table) for a, b, table in pairs]
    labels = {name: len(table) for name, table in single.items()}
    chosen: list[tuple[str, tuple[str, ...], npt.NDArray[np.int64]]] = []
    cost = 0.0
    for name, neighbours in _order(labels, [(a, b) for a, b, _ in pairs]):
        mine = [factor for factor in factors if name in factor.nodes]
        factors = [factor for factor in factors if name not in factor.nodes]
        table = sum((_spread(factor, (*neighbours, name)) for factor in mine), np.zeros(1))
        table = np.broadcast_to(table, [labels[node] for node in (*neighbours, name)])
        chosen.append((name, neighbours, table.argmin(axis=-1)))
        rest = table.min(axis=-1)
        if neighbours:
            factors.append(Factor(neighbours, rest))
        else:
            cost += float(rest)
    found: dict[str, int] = {}
    for name, neighbours, best in reversed(chosen):
        found[name] = int(best[tuple(found[node] for node in neighbours)])
    return cost, {name: found[name] for name in single}


def _order(labels: Mapping[str, int], pairs: Sequence[tuple[str, str]]) -> list[tuple[str, tuple[str, ...]]]:
    """Nodes as they are eliminated, the one with the fewest neighbours first, the first of several; and those."""
    around: dict[str, set[str]] = {name: set() for name in labels}
    for a, b in pairs:
        around[a].add(b)
        around[b].add(a)
    found = []
    while around:
        name = min(around, key=lambda node: len(around[node]))
        mine = around.pop(name)
        neighbours = tuple(node for node in around if node in mine)
        _check(neighbours, labels, name)
        for node in neighbours:
            around[node] = (around[node] | mine) - {node, name}
        found.append((name, neighbours))
    return found


def _check(neighbours: Sequence[str], labels: Mapping[str, int], name: str) -> None:
    entries = labels[name]
    for node in neighbours:
        entries *= labels[node]
    if entries > MOST_ENTRIES:
        raise TooClose(
            f"{name} depends on {len(neighbours)} others at once ({', '.join(neighbours[:4])}, …): a table of "
            f"{entries:,} entries, at most {MOST_ENTRIES:,} are made",
            "ask for fewer levels",
        )


def _spread(factor: Factor, nodes: tuple[str, ...]) -> Table:
    """The table with its axes where ``nodes`` has them."""
    places = [nodes.index(name) for name in factor.nodes]
    ordered = np.transpose(factor.table, np.argsort(places))
    shape = [1] * len(nodes)
    for place, size in zip(sorted(places), ordered.shape, strict=True):
        shape[place] = size
    return ordered.reshape(shape)
