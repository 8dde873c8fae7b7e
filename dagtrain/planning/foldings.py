"""What every node needs at least in any folding, known without elaborating a circuit: what a bound over all foldings
rests on, and where the steps of the multipliers' staircase lie.

A plan chooses among the levels that were priced, and its search proves a bound for these.  Here stands every way in
which a node could be folded, at the least that it can cost: a tile's multipliers exactly, the memory of its weights as
blocks, or, where that may lie outside, the bytes that then move; everything else is free.  Links carry their words and
the credits that receivers of any depth return at least.  What has no placement with that has none with circuits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dagtrain.graph.ir import Node
from dagtrain.passes.fold import weight_groups
from dagtrain.passes.memory_home import own_homes
from dagtrain.planning.link_costs import most_credit_words
from dagtrain.planning.priced import PricedLevel
from dagtrain.planning.prices import Prices
from hdl.costs.resources import Resources, fit
from hdl.errors import FoldingError
from hdl.layers.base import Layer
from hdl.layers.capabilities import as_first_copy, with_random_bits_of
from hdl.layers.folding import divisors
from hdl.layers.storage import Home
from hdl.layers.store.base import widths_of
from hdl.parts.part import Part
from hdl.tensor import Tile
from placement.problem.clocks import in_time
from placement.problem.deadline import Deadline
from placement.problem.instance import Configuration, Instance
from placement.problem.plan import Bound
from placement.search.search import SearchOptions, proven_bound

# cycles a frame at which any tile is slow enough
ANY_PACE = 1 << 40


@dataclass
class Foldings:
    """All foldings of the nodes of one graph on one cluster."""

    prices: Prices

    @cached_property
    def instance(self) -> Instance:
        """The placement problem in which every node may be folded in any way, and costs the least it can."""
        groups = weight_groups(self.prices.graph)
        offers: dict[str, Mapping[str, Sequence[Configuration]]] = {}
        tiled: set[str] = set()
        known: dict[tuple[tuple[Layer, Fraction], ...], dict[str, Mapping[str, Sequence[Configuration]]]] = {}
        for group in groups:
            # layers of equal dimensions are as often the same as not
            like = tuple(map(self._like, group))
            if like not in known:
                known[like] = self._group(group)
            found = {node.name: menu for node, menu in zip(group, known[like].values(), strict=bool(known[like]))}
            offers |= found
            tiled |= found.keys()
        for node in self.prices.graph.nodes:
            if node.name not in offers:
                like = (self._like(node),)
                if like not in known:
                    known[like] = self._group((node,))
                (menu,) = known[like].values() or (None,)
                offers[node.name] = self._alone(node) if menu is None else _untied(menu)
        level = PricedLevel(offers, frozenset(tiled), {}, {})
        cluster = self.prices.cluster
        credit_words = most_credit_words(self.prices.graph, cluster.link_word_bits, cluster.most_network_cycles)
        return self.prices.of_levels([level], self.prices.links(credit_words))

    @cached_property
    def _timed(self) -> Instance:
        """The same in cycles of the cluster's clock."""
        return in_time(self.instance)

    def bound(self, search: SearchOptions, deadline: Deadline) -> Bound:
        """Cycles a frame below which there is no placement, however the nodes are folded."""
        found = proven_bound(self.instance, search, deadline)
        return Bound(found.cycles_per_frame, f"multipliers, weights, DRAM and links of all foldings: {found.basis}")

    @cached_property
    def staircase(self) -> list[tuple[int, int]]:
        """(cycles a frame, least DSP blocks of all nodes there), ascending in cycles: every T that is the least for its
        number of blocks."""
        totals: dict[int, int] = {}
        menus = [self._least_dsp(members) for members in self._choosing()]
        paces = sorted({int(pace) for menu in menus for pace, _ in menu})
        need = np.zeros(len(paces), dtype=np.int64)
        for menu in menus:
            # blocks from each pace on; none that fast: infinitely many
            best, blocks = np.full(len(paces), 2**40, dtype=np.int64), 2**40
            for (pace, cost), following in zip(menu, [*menu[1:], (paces[-1] + 1, 0)], strict=True):
                blocks = min(blocks, cost)
                begin, end = (int(at) for at in np.searchsorted(paces, [pace, following[0]]))
                best[begin:end] = blocks
            need += best
        for pace, total in zip(paces, need, strict=True):
            totals.setdefault(int(total), pace)
        return sorted((pace, total) for total, pace in totals.items() if total < 2**40)

    def steps(self, low: int, high: int, count: int) -> list[int]:
        """At most so many steps of the staircase in [low, high) at which the DSP blocks of the cluster suffice, the
        fastest among them, the others spread evenly."""
        blocks = sum(device.dsp for device in self._timed.devices)
        fits = [pace for pace, need in self.staircase if low <= pace < high and need <= blocks]
        if len(fits) <= count:
            return fits
        return sorted({fits[round(i * (len(fits) - 1) / max(1, count))] for i in range(count)})

    def _choosing(self) -> Iterator[list[int]]:
        """Positions of items that choose a tile together, or alone."""
        seen: set[int] = set()
        for members in self._timed.tile_groups.values():
            seen |= set(members)
            yield list(members)
        yield from ([i] for i in range(len(self._timed.items)) if i not in seen)

    def _least_dsp(self, members: Sequence[int]) -> list[tuple[int, int]]:
        """(pace, DSP blocks) of every tile, ascending in pace, on the part that needs fewest."""
        by_tile: dict[str | None, dict[int, tuple[int, int]]] = {}
        for i in members:
            for menu in self._timed.items[i].configurations.values():
                for c in menu:
                    found = by_tile.setdefault(c.tile, {})
                    pace, dsp = found.get(i, (ANY_PACE, ANY_PACE))
                    found[i] = min(pace, c.cycles_per_frame), min(dsp, c.dsp)
        if len(members) == 1:
            menus = self._timed.items[members[0]].configurations.values()
            return sorted((c.cycles_per_frame, c.dsp) for menu in menus for c in menu)
        whole = [found.values() for found in by_tile.values() if len(found) == len(members)]
        return sorted((max(pace for pace, _ in each), sum(dsp for _, dsp in each)) for each in whole)

    # ---- nodes

    def _group(self, group: Sequence[Node]) -> dict[str, Mapping[str, Sequence[Configuration]]]:
        """Configurations of a weight group's nodes, by part, for every tile; none where they have no tile."""
        parts = self.prices.parts
        lead = next((node for node in group if node.layer.has_tile(ANY_PACE)), None)
        if lead is None:
            return {}
        likes = {node.name: self._like(node) for node in group}
        # of copies of a layer one speaks for all
        homes = {likes[node.name]: _homes(node.layer) for node in group}
        tiled = (
            {like: self._with(homes[like], tile, like[1]) for like in homes} for tile in lead.layer.tiles(ANY_PACE)
        )
        best = list(_best([{name: way[like] for name, like in likes.items()} for way in tiled if all(way.values())]))
        return {
            node.name: {part.name: [c for way in best for c in way[node.name][part.name]] for part in parts}
            for node in group
        }

    def _busy(self, node: Node) -> Fraction:
        """Share of all frames that a node works on."""
        return self.prices.graph.busy(node.name)

    def _like(self, node: Node) -> tuple[Layer, Fraction]:
        """What is the same of nodes of equal needs: a layer but for its random bits and which copy it is."""
        return as_first_copy(with_random_bits_of(node.layer, 0)), self._busy(node)

    def _with(self, homes: Mapping[Home, Layer], tile: Tile, busy: Fraction) -> dict[str, list[Configuration]]:
        """A node of a weight group with that tile, its memory at any home; nothing where it can't have the tile.

        ``busy``: share of all frames that it works on."""
        label = f"{tile.po}x{tile.pi}x{tile.pk}"
        if not homes:
            # it follows the engines
            free = [Configuration(label=label, cycles_per_frame=1, tile=label)]
            return {part.name: free for part in self.prices.parts}
        folded: dict[Home, Layer] = {}
        paces = []
        for home, variant in homes.items():
            pace = variant.least_cycles(tile)
            if pace is not None:
                paces.append(pace)
                with suppress(FoldingError):
                    folded[home] = variant.fold(ANY_PACE, tile)
        if not folded:
            return {}
        multipliers = min(variant.multipliers for variant in folded.values())
        width = min(port.tensor.fixed.width for layer in homes.values() for port in (*layer.sinks, *layer.sources))
        return {
            part.name: [
                Configuration(
                    label=f"{label} {home.value}", cycles_per_frame=math.ceil(min(paces) * busy), tile=label,
                    payload=home.value,
                    dsp=part.dsp_blocks({(width, width): multipliers}), m20k=_blocks(variant, part),
                    dram_bytes_per_frame=math.floor(_moved_bytes(variant, self.prices.cluster.dram_apart) * busy),
                )
                for home, variant in folded.items()
            ]
            for part in self.prices.parts
        }  # fmt: skip

    def _alone(self, node: Node) -> dict[str, list[Configuration]]:
        """A node without weights in tiles: every number of lanes."""
        found = ((variant.cycles_per_frame, variant.multipliers) for variant in _variants(node.layer))
        variants = {(math.ceil(pace * self._busy(node)), multipliers) for pace, multipliers in found}
        return {
            part.name: [
                Configuration(
                    label=f"{multipliers} multipliers, {pace} cycles", cycles_per_frame=pace,
                    dsp=part.dsp_blocks({(1, 1): multipliers}),
                )
                for pace, multipliers in sorted(variants)
            ]
            for part in self.prices.parts
        }  # fmt: skip


def _untied(menu: Mapping[str, Sequence[Configuration]]) -> dict[str, list[Configuration]]:
    """Configurations of an engine that shares its tile with no other."""
    return {part: [replace(configuration, tile=None) for configuration in found] for part, found in menu.items()}


def _homes(layer: Layer) -> dict[Home, Layer]:
    """A layer with its memory at every home it can have; nothing for one that follows the tile of others."""
    if not layer.has_tile(ANY_PACE) and not layer.is_store:
        return {}
    return {Home.LENT: layer} if layer.borrowed else own_homes(layer)


def _best(ways: Sequence[dict[str, dict[str, list[Configuration]]]]) -> Iterator[dict[str, Any]]:
    """Of a group's tiles those that no other beats or equals at every node, part and home in pace and costs."""
    rows = np.array(
        [
            [
                value
                for name in sorted(way)
                for part in sorted(way[name])
                for home in Home
                for value in _numbers(way[name][part], home)
            ]
            for way in ways
        ]
    )  # fmt: skip
    kept: list[int] = []
    for at in np.lexsort(rows.T[::-1]):
        if not any((rows[other] <= rows[at]).all() for other in kept):
            kept.append(int(at))
    return (ways[at] for at in sorted(kept))


def _numbers(menu: Sequence[Configuration], home: Home) -> tuple[int, ...]:
    found = next((c for c in menu if c.payload == home.value), menu[0])
    return (found.cycles_per_frame, *found.costs)


def _variants(layer: Layer) -> Iterator[Layer]:
    """A layer in every way that it can be folded without a tile.

    Lanes of ports change at these paces only. Between two of them what is inside may still change, in steps: from the
    slowest pace on, each variant is as fast as the next one need not be."""
    frame = [port.tensor for port in (*layer.sinks, *layer.sources)]
    ends = {tensor.elements // lanes for tensor in frame for lanes in divisors(tensor.shape[-1])}
    for high, low in pairwise([ANY_PACE, *sorted(ends, reverse=True), 0]):
        pace = high - 1 if high < ANY_PACE else high
        while pace >= max(1, low):
            try:
                variant = layer.fold(pace)
            except FoldingError:
                break
            if variant.cycles_per_frame > pace:
                # as fast as it gets, and doesn't say so
                yield variant
                break
            yield variant
            pace = variant.cycles_per_frame - 1


def _blocks(layer: Layer, part: Part) -> int:
    """Block memories of the images of an engine, whose shapes no lanes change; of a store those of the best lanes."""
    found = ([(image.depth, image.width) for image in each.memories()] for each in widths_of(layer))
    return min(sum(fit(Resources(memories={shape: 1}), part).m20k for shape in shapes) for shapes in found)


def _moved_bytes(layer: Layer, apart: bool) -> int:
    """Bytes a frame that at least go to and from DRAM: twice the larger of reads and writes of what is replayed, is
    fetched or lies in rings; where they count apart, what is replayed is hardly ever written, what is fetched never."""
    read = (*layer.replayed, *(port.name for port in layer.fetched))
    bits = sum((1 if apart else 2) * _bits(layer, name) for name in read)
    for ring in layer.rings:
        bits += int(2 * ring.out.elements * ring.out.tensor.fixed.width * ring.per_frame)
    return bits // 8


def _bits(layer: Layer, port: str) -> int:
    found = layer.port(port)
    return found.elements * found.tensor.fixed.width
