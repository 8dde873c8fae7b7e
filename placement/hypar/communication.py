"""What choices of parallelism make accelerators communicate: Tables 1 and 2 between two groups, summed over the levels.

At level H1 the whole array is two groups, at the next one each of them is two, and so on; a tensor that a choice has
halved is half as large for the levels below.  Amounts are elements of 32 bits, a step of training, all accelerators.
They are halves and quarters of integers and so exact in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.hypar.convention import Convention, Halving, Pooling
from placement.hypar.network import Layer, Net

Amounts = npt.NDArray[np.float64]
# by choice before and behind a border
Table = tuple[tuple[float, float], tuple[float, float]]

BYTES = 4
DP, MP = 0, 1
# Table 2 by choice before and behind a border, as shares of a map: of F and of E, which are equally large
TABLE_2: Table = ((0.0, 0.25 + 0.25), (0.5, 0.5))
# where maps meet nothing is multiplied: equal choices have equal shapes on both sides (Figure 2's R beside R)
INTO_JOIN: Table = ((0.0, 0.25 + 0.25), (0.5, 0.0))
# what of both is F's, on the way forward; the rest is E's, on the way back (3.3)
FORWARD: Table = ((0.0, 0.25), (0.0, 0.0))


@dataclass(frozen=True)
class Above:
    """How often a layer was chosen dp and mp at the levels above one."""

    dp: int = 0
    mp: int = 0

    def below(self, choice: int) -> Above:
        """The same for the next level."""
        return Above(self.dp + (choice == DP), self.mp + (choice == MP))


# layer -> choice at H1, H2, …
Choices = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Counting:
    """Amounts of a batch in a convention."""

    batch: int
    convention: Convention

    def map(self, layer: Layer) -> int:
        """F that a layer makes, of the batch."""
        elements = layer.pooled if self.convention.pooling is Pooling.AFTER else layer.output
        return self.batch * elements

    def weights_share(self, above: Above) -> float:
        """What is left of W."""
        return 1.0 if self.convention.halving is Halving.NONE else 2.0**-above.mp

    def map_share(self, above: Above) -> float:
        """What is left of the F that a layer makes."""
        return 1.0 if self.convention.halving is Halving.NONE else 2.0**-above.dp

    def border_share(self, maker: Above, taker: Above) -> float:
        """What is left of a map where it goes from one layer to another."""
        by_model = {Halving.MAKER: maker.mp, Halving.TAKER: taker.mp}.get(self.convention.halving, 0)
        return self.map_share(maker) * 2.0**-by_model

    def intra(self, layer: Layer, above: Above, choice: int) -> float:
        """Table 1, between two groups."""
        if layer.is_join:
            return 0.0
        of_weights = layer.weights * self.weights_share(above)
        of_map = self.map(layer) * self.map_share(above)
        return self.convention.intra_ways * (of_weights if choice == DP else of_map)

    def inter(self, maker: Layer, taker: Layer, above: tuple[Above, Above], choices: tuple[int, int]) -> float:
        """Table 2, between two groups."""
        return sum(self.inter_parts(maker, taker, above, choices))

    def inter_parts(
        self, maker: Layer, taker: Layer, above: tuple[Above, Above], choices: tuple[int, int]
    ) -> tuple[float, float]:
        """The same as (F, E)."""
        (before, behind), table = choices, INTO_JOIN if taker.is_join else TABLE_2
        crossing = self.convention.inter_ways * self.border_share(*above) * self.map(maker)
        forward = FORWARD[before][behind]
        return forward * crossing, (table[before][behind] - forward) * crossing


def amounts(net: Net, choices: Choices, counting: Counting) -> tuple[float, ...]:
    """What each level communicates, all its pairs of groups together: H1 has one pair, H2 two, …"""
    levels = len(next(iter(choices.values())))
    above = {layer.name: Above() for layer in net.layers}
    found = []
    for level in range(levels):
        now = {name: column[level] for name, column in choices.items()}
        between = sum(counting.intra(layer, above[layer.name], now[layer.name]) for layer in net.layers)
        for maker, taker in net.borders:
            ends = maker.name, taker.name
            between += counting.inter(maker, taker, (above[ends[0]], above[ends[1]]), (now[ends[0]], now[ends[1]]))
        found.append(2**level * between)
        above = {name: above[name].below(now[name]) for name in above}
    return tuple(found)


def total(net: Net, choices: Choices, counting: Counting) -> float:
    """Algorithm 2's ``com``: `amounts` of all levels."""
    return sum(amounts(net, choices, counting))


# ---- by column: the choices of one layer at all levels, as a number whose highest bit is H1


def column(number: int, levels: int) -> tuple[int, ...]:
    """The choices of a column, H1 first."""
    return tuple(number >> (levels - 1 - level) & 1 for level in range(levels))


@dataclass(frozen=True)
class Columns:
    """Amounts of columns: a layer costs by its own, a border by those of its two ends."""

    counting: Counting
    levels: int

    def of_layer(self, layer: Layer) -> Amounts:
        """By column."""
        return np.array([sum(self._levels(layer, number)) for number in range(2**self.levels)])

    def _levels(self, layer: Layer, number: int) -> Sequence[float]:
        chosen = column(number, self.levels)
        return [2**h * self.counting.intra(layer, _above(chosen, h), choice) for h, choice in enumerate(chosen)]

    def of_border(self, maker: Layer, taker: Layer) -> Amounts:
        """By column of maker and taker."""
        every = [column(number, self.levels) for number in range(2**self.levels)]
        chosen = np.array(every)
        mp_above = np.cumsum(chosen, axis=1) - chosen
        dp_above = np.arange(self.levels) - mp_above
        table = np.array(INTO_JOIN if taker.is_join else TABLE_2)
        found = np.zeros((2**self.levels, 2**self.levels))
        for h in range(self.levels):
            share = self._shares(dp_above[:, h], mp_above[:, h])
            found += 2**h * table[chosen[:, None, h], chosen[None, :, h]] * share
        return self.counting.convention.inter_ways * self.counting.map(maker) * found

    def _shares(self, dp: npt.NDArray[np.int64], mp: npt.NDArray[np.int64]) -> Amounts:
        """`Counting.border_share` of all pairs of columns at one level."""
        ends = [Above(int(d), int(m)) for d, m in zip(dp, mp, strict=True)]
        kinds = sorted(set(ends), key=lambda above: above.dp)
        index = np.array([kinds.index(above) for above in ends])
        shares = np.array([[self.counting.border_share(maker, taker) for taker in kinds] for maker in kinds])
        found: Amounts = shares[np.ix_(index, index)]
        return found


def _above(chosen: Sequence[int], level: int) -> Above:
    mp = sum(chosen[:level])
    return Above(level - mp, mp)
