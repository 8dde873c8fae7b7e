"""All configurations of an instance as flat arrays, and what they become at one T.

The heuristic and the aggregate bound look at the same arrays: one row a configuration, ordered by item, part and tile.
At one T the usable rows of an (item, part, tile) are thinned to `LEVELS` picks, one for each exchange rate between M20K
blocks and DRAM bytes: the configurations a device would choose at that rate (Lagrange's prices). A device then needs
one number, its rate, instead of one choice an item.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hdl.errors import DagtrainError
from placement.problem.instance import Instance

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# numbers up to here are exact as floats, and sums of thousands of them as 64-bit integers
LARGEST = 2**53
# tiles of a group that the heuristic considers
MOST_TILES = 8
# exchange rates between M20K and DRAM that a device may choose from
LEVELS = 20
# spread of the factors by which items differ in their exchange rates, so that equal ones do not all change at once
SPREAD = 1.2
# value of all DSP blocks and of all ALMs in the same unit: with one tile they hardly differ
DSP_VALUE, ALM_VALUE = 3.0, 0.2


@dataclass(frozen=True)
class Flat:
    """One row a configuration."""

    parts: tuple[str, ...]
    # row → cycles a frame; DSP, M20K, ALM, DRAM bytes a frame; tile of its group (0 without); place in the item's tuple
    cycles: Ints
    costs: Ints
    tile: Ints
    position: Ints
    # rows of (item, part) are start[item · parts + part] … start[… + 1]
    start: Ints
    # item → tile group or −1; group → its tiles by name, its items
    group: Ints
    tiles: tuple[tuple[str, ...], ...]
    members: tuple[tuple[int, ...], ...]


def flatten(instance: Instance) -> Flat:
    """The arrays of an instance.

    Raises:
        DagtrainError: numbers beyond 2⁵³, which 64-bit arithmetic could not add up.
    """
    check_magnitudes(instance)
    parts = tuple(sorted({device.part for device in instance.devices}))
    groups = list(instance.tile_groups)
    number = {name: g for g, name in enumerate(groups)}
    names = tuple(_tile_names(instance, group) for group in groups)
    indices = [{tile: t for t, tile in enumerate(tiles)} for tiles in names]
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    start = [0]
    for item in instance.items:
        index = indices[number[item.tile_group]] if item.tile_group is not None else {None: 0}
        for part in parts:
            offered = item.configurations.get(part, ())
            here = [(index[c.tile], c.cycles_per_frame, *c.costs, k) for k, c in enumerate(offered) if c.tile in index]  # type: ignore[index]
            rows += sorted(here)
            start.append(len(rows))
    table = np.array(rows, dtype=np.int64).reshape(-1, 7)
    return Flat(
        parts, table[:, 1].copy(), table[:, 2:6].copy(), table[:, 0].copy(), table[:, 6].copy(),
        np.array(start, dtype=np.int64),
        np.array([number.get(item.tile_group or "", -1) if item.tile_group is not None else -1
                  for item in instance.items], dtype=np.int64),
        names, tuple(instance.tile_groups[group] for group in groups),
    )  # fmt: skip


def _tile_names(instance: Instance, group: str) -> tuple[str, ...]:
    """Tiles that every item of the group offers on some part, by name."""
    offered = [
        {c.tile or "" for menu in instance.items[i].configurations.values() for c in menu}
        for i in instance.tile_groups[group]
    ]
    return tuple(sorted(set.intersection(*offered)))


def check_magnitudes(instance: Instance) -> None:
    """Refuse numbers whose sums 64-bit integers might not hold.

    Raises:
        DagtrainError: a configuration, device or link beyond 2⁵³ (all are listed, at most ten).
    """
    found: list[str] = []
    for item in instance.items:
        for part, menu in item.configurations.items():
            worst = max((max(c.cycles_per_frame, *c.costs) for c in menu), default=0)
            if worst > LARGEST:
                found.append(f"item {item.name!r} on {part} has a cost of {worst}")
    for device in instance.devices:
        worst = max(*device.capacities, device.dram_bytes_per_s, device.link_bits_per_s)
        if worst > LARGEST:
            found.append(f"device {device.name!r} has a capacity of {worst}")
    for link in instance.links:
        most = max(bits for *_, bits in link.ways)
        if most > LARGEST:
            found.append(f"link {link.source!r} → {link.target!r} has {float(most):.3g} bits a frame")
    if instance.clock_hz > LARGEST:
        found.append(f"clock_hz is {instance.clock_hz}")
    if found:
        cure = f"the planner adds up 64-bit integers and takes at most 2^53 = {LARGEST}: correct the cost model"
        raise DagtrainError.listing(f"placement instance {instance.name!r}", found[:10], cure)


def part_limits(instance: Instance, flat: Flat, cycles: int) -> Ints:
    """(part, 4): the most DSP, M20K, ALM and DRAM bytes a frame that any one device of the part has at this T."""
    limits = np.zeros((len(flat.parts), 4), dtype=np.int64)
    for device in instance.devices:
        p = flat.parts.index(device.part)
        dram = min(LARGEST, device.dram_bytes_per_s * cycles // instance.clock_hz)
        limits[p] = np.maximum(limits[p], [*device.capacities, dram])
    return limits


@dataclass(frozen=True)
class Menu:
    """What may be chosen at one T, thinned for the heuristic."""

    # (row, level, 4) costs and (row, level) → row of Flat
    costs: Floats
    picks: Ints
    # (item, part, tile slot) → row or −1
    row_of: Ints
    # group → names of the tiles of its slots
    slots: tuple[tuple[str, ...], ...]


def menu_at(instance: Instance, flat: Flat, cycles: int, seed: int = 0) -> Menu | None:
    """The menu at T; None if some item or tile group cannot be built on any part.

    Args:
        seed: of the factors by which items differ in their exchange rates.
    """
    limits = part_limits(instance, flat, cycles)
    factors = np.exp((np.random.default_rng(seed).random(len(flat.group)) - 0.5) * SPREAD)
    prices = _prices(limits, _rates(flat, cycles, limits, factors))
    slot_of, slots = _tile_slots(flat, cycles, limits, prices)
    if any(not names for names in slots):
        return None
    width = max([len(names) for names in slots], default=1)
    row_of, costs, picks = _thin(
        flat.cycles, flat.costs, flat.tile, flat.start, flat.group, factors, cycles, limits, prices, slot_of, width
    )
    if (row_of.max(axis=(1, 2)) < 0).any():
        return None
    return Menu(costs, picks, row_of, slots)


def _rates(flat: Flat, cycles: int, limits: Ints, factors: Floats) -> Floats:
    """Exchange rates: value of a device's whole DRAM bandwidth in units of all its M20K blocks, from "memory is all" to
    "DRAM is all". Between two of them items with about equal sums of M20K change their mind."""
    at, weight = _breakpoints(flat.cycles, flat.costs, flat.start, factors, cycles, limits)
    order = np.argsort(at, kind="stable")
    total = weight[order].cumsum()
    inner = np.array([2.0**e for e in range(1 - LEVELS // 2, LEVELS - 1 - LEVELS // 2)])
    if len(total) and total[-1] > 0:
        shares = (np.arange(LEVELS - 2) + 0.5) / (LEVELS - 2)
        inner = at[order][np.searchsorted(total, shares * total[-1])] * (1 + 1e-9)
    return np.array([0.0, *inner, 1e9])


@njit(cache=True, nogil=True)
def _breakpoints(
    cycles: Ints, costs: Ints, start: Ints, factors: Floats, T: int, limits: Ints
) -> tuple[Floats, Floats]:
    """Per item and part: the exchange rate from which on the item would rather use M20K than DRAM, and by how much of a
    device's M20K; both 0 where it has no choice."""
    parts = len(limits)
    at, weight = np.zeros(len(start) - 1), np.zeros(len(start) - 1)
    for k in range(len(start) - 1):
        p = k % parts
        lean, fast = -1, -1
        for row in range(start[k], start[k + 1]):
            if cycles[row] > T or (costs[row] > limits[p]).any():
                continue
            if lean < 0 or costs[row, 1] < costs[lean, 1]:
                lean = row
            if (
                fast < 0
                or costs[row, 3] < costs[fast, 3]
                or (costs[row, 3] == costs[fast, 3] and costs[row, 1] < costs[fast, 1])
            ):
                fast = row
        if lean >= 0 and costs[fast, 1] > costs[lean, 1] and costs[lean, 3] > costs[fast, 3]:
            memory = (costs[fast, 1] - costs[lean, 1]) / limits[p, 1]
            at[k] = memory / ((costs[lean, 3] - costs[fast, 3]) / limits[p, 3]) / factors[k // parts]
            weight[k] = memory
    return at, weight


def _prices(limits: Ints, rates: Floats) -> Floats:
    """(part, level, 4): what a unit of each resource counts at each exchange rate."""
    prices = np.zeros((len(limits), LEVELS, 4))
    safe = np.maximum(limits, 1).astype(np.float64)
    for level, rate in enumerate(rates):
        prices[:, level, :] = np.array([DSP_VALUE, 1.0, ALM_VALUE, rate]) / safe
    return prices


def _tile_slots(flat: Flat, cycles: int, limits: Ints, prices: Floats) -> tuple[Ints, tuple[tuple[str, ...], ...]]:
    """The most promising tiles of every group: (group, tile) → slot or −1, and their names; the first one is such that
    every item can be built on every part, if there is one, so that a search may begin anywhere."""
    if not flat.tiles:
        return np.zeros((1, 1), dtype=np.int64), ()
    most = max(len(names) for names in flat.tiles)
    slot_of = np.full((len(flat.tiles), max(1, most)), -1, dtype=np.int64)
    kept: list[tuple[str, ...]] = []
    for g, (names, members) in enumerate(zip(flat.tiles, flat.members, strict=True)):
        scores = _tile_scores(flat.cycles, flat.costs, flat.tile, flat.start, np.array(members), cycles, limits,
                              prices[:, (0, LEVELS // 2, LEVELS - 3), :].copy(), len(names))  # fmt: skip
        everywhere = _everywhere(
            flat.cycles, flat.costs, flat.tile, flat.start, np.array(members), cycles, limits, len(names)
        )
        slots = _with_first(_best_of_each(scores, MOST_TILES), np.where(everywhere, scores[1], np.inf))
        for slot, tile in enumerate(slots):
            slot_of[g, tile] = slot
        kept.append(tuple(names[tile] for tile in slots))
    return slot_of, tuple(kept)


def _best_of_each(scores: Floats, most: int) -> list[int]:
    """Columns with the least scores, taken from the rows in turn, those in the middle row first; ∞ never."""
    orders = [np.argsort(row, kind="stable") for row in (scores[1], scores[0], scores[2])]
    rows = (scores[1], scores[0], scores[2])
    chosen: list[int] = []
    for rank in range(scores.shape[1]):
        for order, row in zip(orders, rows, strict=True):
            tile = int(order[rank])
            if np.isfinite(row[tile]) and tile not in chosen and len(chosen) < most:
                chosen.append(tile)
    return chosen


def _with_first(chosen: list[int], scores: Floats) -> list[int]:
    """Of columns chosen one that has a score first, ∞ is none; one more where none of them has, in the last one's place
    where that would be too many."""
    if not np.isfinite(scores).any():
        return chosen
    first = next((column for column in chosen if np.isfinite(scores[column])), int(np.argmin(scores)))
    return [first, *(column for column in chosen if column != first)][:MOST_TILES]


@njit(cache=True, nogil=True)
def _everywhere(
    cycles: Ints, costs: Ints, tile: Ints, start: Ints, members: Ints, T: int, limits: Ints, tiles: int
) -> Bools:
    """Tiles with which all items of a group can be built on every part."""
    found = np.ones(tiles, dtype=np.bool_)
    for m in range(len(members)):
        for p in range(len(limits)):
            here = np.zeros(tiles, dtype=np.bool_)
            at = members[m] * len(limits) + p
            for row in range(start[at], start[at + 1]):
                if cycles[row] <= T and not (costs[row] > limits[p]).any():
                    here[tile[row]] = True
            found &= here
    return found


@njit(cache=True, nogil=True)
def _tile_scores(
    cycles: Ints, costs: Ints, tile: Ints, start: Ints, members: Ints, T: int, limits: Ints, prices: Floats, tiles: int
) -> Floats:
    """(price, tile): sum over the items of a group of their least priced cost over parts; ∞ where one has none."""
    parts, levels = prices.shape[0], prices.shape[1]
    scores = np.zeros((levels, tiles))
    best = np.empty((levels, tiles))
    for m in range(len(members)):
        best[:] = np.inf
        for p in range(parts):
            at = members[m] * parts + p
            for row in range(start[at], start[at + 1]):
                if cycles[row] > T or (costs[row] > limits[p]).any():
                    continue
                for level in range(levels):
                    value = 0.0
                    for r in range(4):
                        value += prices[p, level, r] * costs[row, r]
                    best[level, tile[row]] = min(best[level, tile[row]], value)
        scores += best
    return scores


@njit(cache=True, nogil=True)
def _thin(
    cycles: Ints, costs: Ints, tile: Ints, start: Ints, group: Ints, factors: Floats, T: int, limits: Ints,
    prices: Floats, slot_of: Ints, width: int,
) -> tuple[Ints, Floats, Ints]:  # fmt: skip
    """(item, part, slot) → menu row or −1; (row, level, 4) costs; (row, level) → row of Flat."""
    items, parts, levels = len(group), prices.shape[0], prices.shape[1]
    row_of = np.full((items, parts, width), -1, dtype=np.int64)
    count = 0
    for sweep in range(2):
        if sweep == 1:
            picks = np.zeros((count, levels), dtype=np.int64)
            values = np.full((count, levels), np.inf)
        for i in range(items):
            for p in range(parts):
                for row in range(start[i * parts + p], start[i * parts + p + 1]):
                    slot = 0 if group[i] < 0 else slot_of[group[i], tile[row]]
                    if slot < 0 or cycles[row] > T or (costs[row] > limits[p]).any():
                        continue
                    if row_of[i, p, slot] < 0:
                        row_of[i, p, slot] = count
                        count += 1
                    if sweep == 0:
                        continue
                    at = row_of[i, p, slot]
                    for level in range(levels):
                        value = factors[i] * prices[p, level, 3] * costs[row, 3]
                        for r in range(3):
                            value += prices[p, level, r] * costs[row, r]
                        if value < values[at, level]:
                            values[at, level] = value
                            picks[at, level] = row
    chosen = np.zeros((count, levels, 4))
    for at in range(count):
        for level in range(levels):
            for r in range(4):
                chosen[at, level, r] = costs[picks[at, level], r]
    return row_of, chosen, picks
