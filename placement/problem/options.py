"""Which configurations and tiles are worth considering at a given number of cycles a frame.

At T, a configuration is usable if it needs at most T cycles; among usable ones the cycles no longer matter, so
only the Pareto front over (DSP, M20K, ALM, DRAM) is kept. A tile of a group is usable if every item of the group
can be built with it, and is dropped if another tile offers, for every configuration of every item on every part,
one that costs no more of anything: dropping it loses no solution.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placement.problem.instance import Configuration, Instance, streams_fit

Costs = tuple[int, int, int, int]


@dataclass(frozen=True)
class Options:
    """What may be chosen at one T."""

    cycles_per_frame: int
    # per item: part → positions in item.configurations[part], Pareto at this T and of a kept tile
    by_part: tuple[dict[str, tuple[int, ...]], ...]
    # tile group → tiles worth considering; empty if no tile is usable
    tiles: dict[str, tuple[str, ...]]

    def without_choice(self) -> list[int]:
        """Items (positions) that cannot be built at this T on any part."""
        return [item for item, parts in enumerate(self.by_part) if not any(parts.values())]


class OptionTable:
    """Answers `at(T)` for one instance; fronts are cached, since few of them change from one T to the next."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._parts = sorted({device.part for device in instance.devices})
        # whether streams to DRAM are on channels of their device, so that each counts
        self._channels = any(device.dram_channels > 1 for device in instance.devices)
        self._fronts: dict[tuple[int, str, int], tuple[int, ...]] = {}
        self._sorted: dict[tuple[int, str], tuple[list[int], list[int]]] = {}
        for index, item in enumerate(instance.items):
            for part in self._parts:
                offered = item.configurations.get(part, ())
                order = sorted(range(len(offered)), key=lambda k, offered=offered: offered[k].cycles_per_frame)  # type: ignore[misc]
                self._sorted[index, part] = (order, [offered[k].cycles_per_frame for k in order])
        self._group_cache: dict[tuple[str, tuple[int, ...]], tuple[str, ...]] = {}

    def levels(self) -> list[int]:
        """Every cycle count at which some configuration becomes usable, ascending."""
        return sorted({cycles for _, sorted_cycles in self._sorted.values() for cycles in sorted_cycles})

    def at(self, cycles_per_frame: int) -> Options:
        """The options at T = `cycles_per_frame`."""
        fronts = [
            {part: self._front(index, part, cycles_per_frame) for part in self._parts}
            for index in range(len(self._instance.items))
        ]
        tiles: dict[str, tuple[str, ...]] = {}
        for group, members in self._instance.tile_groups.items():
            tiles[group] = self._tiles(group, members, fronts, cycles_per_frame)
            kept = set(tiles[group])
            for member in members:
                item = self._instance.items[member]
                fronts[member] = {
                    part: tuple(k for k in front if item.configurations[part][k].tile in kept)
                    for part, front in fronts[member].items()
                }
        return Options(cycles_per_frame, tuple(fronts), tiles)

    def _front(self, item: int, part: str, cycles: int) -> tuple[int, ...]:
        order, sorted_cycles = self._sorted[item, part]
        usable = bisect_right(sorted_cycles, cycles)
        key = (item, part, usable)
        if key not in self._fronts:
            offered = self._instance.items[item].configurations.get(part, ())
            self._fronts[key] = _front(offered, order[:usable], self._channels)
        return self._fronts[key]

    def _tiles(
        self, group: str, members: tuple[int, ...], fronts: list[dict[str, tuple[int, ...]]], cycles: int
    ) -> tuple[str, ...]:
        usable = tuple(
            bisect_right(self._sorted[member, part][1], cycles) for member in members for part in self._parts
        )
        key = (group, usable)
        if key not in self._group_cache:
            menus = [
                _by_tile(self._instance.items[m].configurations.get(part, ()), fronts[m][part])
                for m in members
                for part in self._parts
            ]
            per_item = [menus[i : i + len(self._parts)] for i in range(0, len(menus), len(self._parts))]
            common = sorted(set.intersection(*({tile for menu in item for tile in menu} for item in per_item)))
            # costs alone don't tell which streams to DRAM fit the channels of a device
            self._group_cache[key] = tuple(common) if self._channels else _undominated_tiles(common, menus)
        return self._group_cache[key]


def _front(offered: Sequence[Configuration], usable: list[int], channels: bool) -> tuple[int, ...]:
    """Positions of the usable configurations that none of the same tile beats in all costs; in order of label.

    ``channels``: streams to DRAM count one by one."""
    ordered = sorted(usable, key=lambda k: (offered[k].costs, offered[k].label))
    by_tile: dict[str | None, list[int]] = {}
    for k in ordered:
        kept = by_tile.setdefault(offered[k].tile, [])
        beaten = (
            _covers(offered[other].costs, offered[k].costs)
            and (not channels or streams_fit(offered[other], offered[k]))
            for other in kept
        )
        if not any(beaten):
            kept.append(k)
    return tuple(k for kept in by_tile.values() for k in kept)


def _covers(a: Costs, b: Costs) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a[2] <= b[2] and a[3] <= b[3]


def _by_tile(offered: Sequence[Configuration], front: tuple[int, ...]) -> dict[str, list[Costs]]:
    menu: dict[str, list[Costs]] = {}
    for k in front:
        menu.setdefault(offered[k].tile or "", []).append(offered[k].costs)
    return menu


def _undominated_tiles(tiles: list[str], menus: list[dict[str, list[Costs]]]) -> tuple[str, ...]:
    """Tiles such that no other kept one is at least as good everywhere (of equals the first stays)."""
    if not tiles:
        return ()
    floors = _floors(tiles, menus)
    order = sorted(range(len(tiles)), key=lambda t: (float(floors[t].sum()), tiles[t]))
    kept: list[int] = []
    for t in order:
        # only a tile whose cheapest costs are all no higher can dominate
        candidates = [k for k in kept if bool((floors[k] <= floors[t]).all())]
        if not any(_tile_covers(tiles[k], tiles[t], menus) for k in candidates):
            kept.append(t)
    return tuple(tiles[t] for t in sorted(kept))


def _floors(tiles: list[str], menus: list[dict[str, list[Costs]]]) -> NDArray[np.float64]:
    """Per tile: the least of each cost over each menu (∞ where the tile cannot be built)."""
    rows = [
        [min((costs[r] for costs in menu.get(tile, ())), default=np.inf) for menu in menus for r in range(4)]
        for tile in tiles
    ]
    return np.array(rows, dtype=np.float64)


def _tile_covers(a: str, b: str, menus: list[dict[str, list[Costs]]]) -> bool:
    return all(any(_covers(mine, theirs) for mine in menu.get(a, ())) for menu in menus for theirs in menu.get(b, ()))
