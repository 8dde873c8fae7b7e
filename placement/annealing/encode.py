"""An instance at one T as arrays for the annealing kernel, what may be merged in it, and states to start from.

Items that go together are one *unit*. Equal hops are encoded by a cycle basis of the activation and error links: hops
match everywhere if, around every cycle, those along the one way equal those along the other. A move then changes only
the cycles through the links it cuts, joins or, on cables, lengthens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hdl.tensor import Kind
from placement.problem.flat import LEVELS, Flat, Floats, Ints, Menu, menu_at
from placement.problem.instance import Instance, hop_order
from placement.problem.plan import Assignment

# an item is light, and goes with its neighbour, if it needs less than this share of every device's blocks
LIGHT_SHARE = 0.004


class Problem(NamedTuple):
    """An instance at one T as flat arrays; a CSR pair is (`_start`, `_list`)."""

    # (menu row, level, 4): DSP, M20K, ALM, DRAM bytes a frame
    costs: Any
    # (item, part, tile slot) → menu row, −1: cannot be built
    row_of: Any
    # device → part; (device, 6) capacities: DSP, M20K, ALM, and at this T DRAM, egress, ingress a frame
    part: Any
    capacity: Any
    # device → 1 if it may mix two exchange rates, else 0
    mixes: Any
    # item → unit, tile group (−1: none)
    unit: Any
    group: Any
    unit_start: Any
    unit_list: Any
    group_start: Any
    group_list: Any
    # tiles of each group
    slots: Any
    # unit → device it is pinned to, −1: free
    pin: Any
    # links between units: ends; (link, 2, 4): bits a frame (scaled) that leave and that arrive, M20K and ALMs of the
    # port at either end; the links of each unit; the cycles of each link, with signs
    link_a: Any
    link_b: Any
    link_loads: Any
    # (device, peers, 2): M20K and ALMs of its port with so many other devices; without frames no row, and nobody counts
    port: Any
    # (device, device) → hops from the one to the other
    distance: Any
    # of devices on cables, else without rows: (device, device) → the wire by which words leave the one for the other,
    # −1: to itself; wire → the device it leads to, and its capacity, bits a frame (scaled)
    next_wire: Any
    wire_target: Any
    wire_capacity: Any
    unit_link_start: Any
    unit_link_list: Any
    cycle_start: Any
    cycle_list: Any
    cycle_sign: Any
    # number of cycles, as an array of one
    cycles: Any
    # units in topological order; units of each forward layer, layers in order
    line: Any
    layer_start: Any
    layer_list: Any
    # units, links and tile groups that moves begin with
    free: Any
    free_links: Any
    free_groups: Any


@dataclass
class Start:
    """A state to anneal from: unit → device, group → tile slot."""

    device: Ints
    tile: Ints

    def copy(self) -> Start:
        return Start(self.device.copy(), self.tile.copy())


@dataclass(frozen=True)
class Encoded:
    """A problem and how to read its solutions back."""

    problem: Problem
    menu: Menu
    flat: Flat
    cycles_per_frame: int


def light_items(instance: Instance, menu: Menu, flat: Flat, cycles: int) -> list[bool]:
    """Whether each item, at its best exchange rate, takes under LIGHT_SHARE of the DSP, M20K, ALMs and DRAM bandwidth
    of every device that could hold it."""
    shares = np.zeros(len(instance.items))
    for device in instance.devices:
        rows = menu.row_of[:, flat.parts.index(device.part), :]
        dram = device.dram_bytes_per_s * cycles // instance.clock_hz
        limits = np.maximum([*device.capacities, dram], 1)
        best = (menu.costs / limits).max(axis=2).min(axis=1)
        least = np.where(rows >= 0, best[rows], np.inf).min(axis=1)
        shares = np.maximum(shares, np.where(np.isfinite(least), least, 0.0))
    return [bool(share < LIGHT_SHARE) for share in shares]


class _Union:
    """Sets of items that go together, each with the pin it carries; sets with differing pins are never joined."""

    def __init__(self, pins: list[str | None]) -> None:
        self.leader, self.pins = list(range(len(pins))), pins

    def find(self, i: int) -> int:
        while self.leader[i] != i:
            self.leader[i] = self.leader[self.leader[i]]
            i = self.leader[i]
        return i

    def join(self, i: int, j: int, *, take_pin: bool) -> bool:
        """Join i's set to j's; a pin of j's is taken over by a free i, one of i's by a free j only with `take_pin`.
        False if they must not be joined."""
        a, b = self.find(i), self.find(j)
        if a == b:
            return True
        mine, theirs = self.pins[a], self.pins[b]
        if mine != theirs and mine is not None and (theirs is not None or not take_pin):
            return False
        self.leader[a] = b
        self.pins[b] = theirs if theirs is not None else mine
        return True


def fat_pairs(instance: Instance, cycles: int) -> list[tuple[int, int]]:
    """Pairs of items whose links together exceed what any device can send and any other receive at this T, or any cable
    carry: no placement cuts them, for all words of a pair go one way. One device alone cuts nothing."""
    rate = max(instance.link_rates)
    bits: dict[tuple[int, int], Any] = {}
    for link in instance.links:
        for start, end, amount in link.ways:
            pair = (instance.item_index[start], instance.item_index[end])
            if pair[0] != pair[1]:
                bits[pair] = bits.get(pair, 0) + amount
    return [pair for pair, amount in bits.items() if amount * instance.clock_hz > rate * cycles]


def contract(instance: Instance, cycles: int, light: Sequence[bool] | None) -> list[int] | None:
    """Item → unit, or None if items that must go together are pinned apart.

    Together are always coupled items and the ends of links that no device can carry: that loses no placement. With
    `light` also the update and its gradient, and a light item with its only hop-matching predecessor, else its only
    successor; that may lose some. No free heavy item is pinned by a light one.
    """
    union = _Union([item.pinned for item in instance.items])
    coupled: dict[str, int] = {}
    for i, item in enumerate(instance.items):
        if item.same_device is not None and not union.join(i, coupled.setdefault(item.same_device, i), take_pin=True):
            return None
    for i, j in fat_pairs(instance, cycles):
        if not union.join(i, j, take_pin=True):
            return None
    if light is not None:
        for i, neighbour in _merges(instance, light):
            union.join(i, neighbour, take_pin=False)
    leaders = [union.find(i) for i in range(len(instance.items))]
    roots = {root: unit for unit, root in enumerate(dict.fromkeys(leaders))}
    return [roots[leader] for leader in leaders]


def _merges(instance: Instance, light: Sequence[bool]) -> list[tuple[int, int]]:
    """(item, neighbour it may join) in a fixed order.  What only hands on where branches meet, as relays do, joins
    none: it is there for the hop that it adds where it stands apart."""
    before: list[list[int]] = [[] for _ in instance.items]
    after: list[list[int]] = [[] for _ in instance.items]
    degree = [0] * len(instance.items)
    merges = []
    for link in instance.links:
        source, target = instance.item_index[link.source], instance.item_index[link.target]
        degree[source] += 1
        degree[target] += 1
        if link.kind.hops_must_match:
            before[target].append(source)
            after[source].append(target)
        elif link.kind is Kind.GRADIENT:
            merges.append((target, source))
    meeting = {i for cycle in hop_cycles(instance, grounded=False) for edge in cycle for i in edge}
    for i, is_light in enumerate(light):
        if i in meeting and degree[i] == 2 and len(before[i]) == len(after[i]) == 1:
            continue
        if is_light and len(before[i]) == 1:
            merges.append((i, before[i][0]))
        elif is_light and len(after[i]) == 1:
            merges.append((i, after[i][0]))
    return merges


def encode(
    instance: Instance,
    flat: Flat,
    cycles: int,
    *,
    merge: bool = True,
    mixes: bool = True,
    grounded: bool = True,
    seed: int = 0,
) -> Encoded | None:
    """The instance at T as arrays; None if some item, group or unit has nowhere to go.

    Args:
        grounded: items without hop-matching predecessors are at hop 0 (`hop_cycles`).
        merge: also merge what is light (`contract`).
        mixes: devices may mix two neighbouring exchange rates (rounded later), or must take one.
        seed: of the menu (`placement.problem.flat.menu_at`).
    """
    menu = menu_at(instance, flat, cycles, seed)
    if menu is None:
        return None
    units = contract(instance, cycles, light_items(instance, menu, flat, cycles) if merge else None)
    if units is None:
        return None
    pins = [-1] * (max(units) + 1)
    for i, item in enumerate(instance.items):
        if item.pinned is not None:
            pins[units[i]] = instance.device_index[item.pinned]
    pairs, link_loads, scale = _unit_links(instance, units)
    at_unit: list[list[int]] = [[] for _ in pins]
    for link, (a, b) in enumerate(pairs):
        at_unit[a].append(link)
        at_unit[b].append(link)
    line = list(dict.fromkeys(units[i] for i in hop_order(instance)))
    problem = Problem(
        menu.costs, menu.row_of,
        np.array([flat.parts.index(device.part) for device in instance.devices], dtype=np.int64),
        _capacities(instance, cycles, scale), np.full(len(instance.devices), int(mixes), dtype=np.int64),
        np.array(units, dtype=np.int64), flat.group,
        *_csr(_rows(units, len(pins))), *_csr(flat.members),
        np.array([len(names) for names in menu.slots], dtype=np.int64),
        np.array(pins, dtype=np.int64),
        np.array([a for a, _ in pairs], dtype=np.int64), np.array([b for _, b in pairs], dtype=np.int64), link_loads,
        _port_blocks(instance), np.array(instance.distance, dtype=np.int64), *_wires(instance, cycles, scale),
        *_csr(at_unit), *_cycle_arrays(hop_cycles(instance, grounded=grounded), units, pairs),
        np.array(line, dtype=np.int64), *_csr(_layers(instance, units)),
        *(np.arange(count, dtype=np.int64) for count in (len(pins), len(pairs), len(flat.members))),
    )  # fmt: skip
    encoded = Encoded(problem, menu, flat, cycles)
    return encoded if all(homes_of(problem, unit) for unit in range(len(pins))) else None


def homes_of(problem: Problem, unit: int, tiles: Ints | None = None) -> list[int]:
    """Devices on which every item of a unit can be built, in order; ``tiles``: of the groups, None: the first ones."""
    items = problem.unit_list[problem.unit_start[unit] : problem.unit_start[unit + 1]]
    slots = np.zeros(len(items), dtype=np.int64) if tiles is None else _slots_of(problem, tiles)[items]
    parts = (problem.row_of[items, :, slots] >= 0).all(axis=0)
    if problem.pin[unit] >= 0:
        return [int(problem.pin[unit])] if parts[problem.part[problem.pin[unit]]] else []
    return [d for d, p in enumerate(problem.part) if parts[p]]


def _slots_of(problem: Problem, tiles: Ints) -> Ints:
    """Item → slot of its group's tile; of one without a group its only one."""
    found: Ints = np.where(problem.group >= 0, np.append(tiles, 0)[problem.group], 0)
    return found


def _rows(keys: Sequence[int], count: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(count)]
    for i, key in enumerate(keys):
        rows[key].append(i)
    return rows


def _unit_links(instance: Instance, units: Sequence[int]) -> tuple[list[tuple[int, int]], Floats, int]:
    """Pairs of units with links from the first to the second; at either end the bits a frame that leave and that
    arrive, credits among them, and the M20K and ALMs of the port; what the bits are scaled by."""
    scale = instance.link_scale
    loads: dict[tuple[int, int], list[list[int]]] = {}
    for link in instance.links:
        a, b = units[instance.item_index[link.source]], units[instance.item_index[link.target]]
        if a != b:
            sums = loads.setdefault((a, b), [[0, 0, 0, 0], [0, 0, 0, 0]])
            bits = (int(link.bits_per_frame * scale), int(link.credit_bits_per_frame * scale))
            for side, (m20k, alm) in enumerate(link.ends):
                leave, arrive = bits[side], bits[1 - side]
                for k, amount in enumerate((leave, arrive, m20k, alm)):
                    sums[side][k] += amount
    return list(loads), np.array(list(loads.values()), dtype=np.float64).reshape(-1, 2, 4), scale


def _capacities(instance: Instance, cycles: int, scale: int) -> Floats:
    rows = []
    for device in instance.devices:
        dram = device.dram_bytes_per_s * cycles // instance.clock_hz
        link = device.word_bits_per_s * cycles * scale // instance.clock_hz
        rows.append([*device.capacities, dram, *(link - bits * scale for bits in device.host_bits)])
    return np.array(rows, dtype=np.float64)


def _wires(instance: Instance, cycles: int, scale: int) -> tuple[Ints, Ints, Floats]:
    """See `Problem.next_wire`, and what follows there."""
    routing = instance.routing
    if routing is None:
        return np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    rates = [wire.bits_per_s * cycles * scale // instance.clock_hz for wire in routing.wires]
    targets = [wire.target for wire in routing.wires]
    return (
        np.array(routing.next_wire, dtype=np.int64),
        np.array(targets, dtype=np.int64),
        np.array(rates, dtype=np.float64),
    )


def _port_blocks(instance: Instance) -> Floats:
    """See `Problem.port`; no rows either where peers add nothing."""
    peers = range(len(instance.devices))
    rows = [[device.port_blocks(count) for count in peers] for device in instance.devices]
    if all(row == [(0, 0)] * len(peers) for row in rows):
        return np.zeros((len(rows), 0, 2))
    return np.array(rows, dtype=np.float64)


def _csr(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    start = np.cumsum([0] + [len(row) for row in rows]).astype(np.int64)
    return start, np.array([value for row in rows for value in row], dtype=np.int64)


def _lists(start: Ints, members: Ints) -> list[Ints]:
    """The rows of a CSR pair."""
    return [members[begin:end] for begin, end in pairwise(start)]


def hop_cycles(instance: Instance, *, grounded: bool = True) -> list[dict[tuple[int, int], int]]:
    """A cycle basis of the hop-matching links: per cycle, (source, target) → +1 or −1 (sums cancel to what is left).

    Every item hangs on its first predecessor, and items without one on a common root (they are all at hop 0); each
    further predecessor closes a cycle through the nearest common ancestor. Not `grounded`: there is no root, hops of
    items without predecessors are free, and what closes no cycle is left out.
    """
    before: list[list[int]] = [[] for _ in instance.items]
    for link in instance.links:
        if link.kind.hops_must_match:
            before[instance.item_index[link.target]].append(instance.item_index[link.source])
    depth = [0] * len(before)
    parent = [-1] * len(before)
    found: list[dict[tuple[int, int], int]] = []
    for i in hop_order(instance):
        if before[i]:
            parent[i] = before[i][0]
            depth[i] = depth[parent[i]] + 1
        for p in dict.fromkeys(before[i][1:]):
            cycle: dict[tuple[int, int], int] = {}
            low, high = i, p
            _add(cycle, (p, i), 1)
            while low != high and (parent[low] >= 0 or parent[high] >= 0):
                if depth[low] >= depth[high]:
                    _add(cycle, (parent[low], low), -1)
                    low = parent[low]
                else:
                    _add(cycle, (parent[high], high), 1)
                    high = parent[high]
            if grounded or low == high:
                found.append({edge: sign for edge, sign in cycle.items() if sign})
    return [cycle for cycle in found if cycle]


def _add(cycle: dict[tuple[int, int], int], edge: tuple[int, int], sign: int) -> None:
    cycle[edge] = cycle.get(edge, 0) + sign


def _cycle_arrays(
    cycles: list[dict[tuple[int, int], int]], units: Sequence[int], pairs: list[tuple[int, int]]
) -> tuple[Ints, Ints, Ints, Ints]:
    """The cycles that go through each link between units, with the sum of their signs; and how many there are."""
    index = {pair: link for link, pair in enumerate(pairs)}
    through: list[dict[int, int]] = [{} for _ in pairs]
    count = 0
    for cycle in cycles:
        signs: dict[int, int] = {}
        for (source, target), sign in cycle.items():
            if units[source] != units[target]:
                link = index[units[source], units[target]]
                signs[link] = signs.get(link, 0) + sign
        if any(signs.values()):
            for link, sign in signs.items():
                if sign:
                    through[link][count] = sign
            count += 1
    start, members = _csr([list(entry) for entry in through])
    signs_flat = np.array([sign for entry in through for sign in entry.values()], dtype=np.int64)
    return start, members, signs_flat, np.array([count], dtype=np.int64)


def _layers(instance: Instance, units: Sequence[int]) -> list[list[int]]:
    layers: dict[str, list[int]] = {}
    seen: set[int] = set()
    for i, item in enumerate(instance.items):
        if units[i] not in seen:
            seen.add(units[i])
            layers.setdefault(item.layer or item.name, []).append(units[i])
    return list(layers.values())


def mirror_start(problem: Problem, rng: np.random.Generator | None) -> Start:
    """Contiguous ranges of layers on one device after another, forward, error and gradient of a layer together, each
    device filled in proportion to its share of the cluster. With `rng` the devices come in a random order."""
    devices = len(problem.part)
    ranks = list(range(devices)) if rng is None else [int(d) for d in rng.permutation(devices)]
    start = Start(np.zeros(len(problem.pin), dtype=np.int64), np.zeros(len(problem.slots), dtype=np.int64))
    held = problem.row_of[:, :, 0].max(axis=1)
    need = np.zeros((len(problem.pin), 3))
    np.add.at(need, problem.unit, problem.costs[held, LEVELS // 2, :3])
    blocks = problem.capacity[:, :3].sum(axis=0)
    scarce = int(np.argmax(need.sum(axis=0) / np.maximum(blocks, 1)))
    share = min(1.0, 1.02 * float(need[:, scarce].sum() / max(1.0, float(blocks[scarce]))))
    left = problem.capacity[:, scarce] * share
    rank = 0
    for layer in range(len(problem.layer_start) - 1):
        units = problem.layer_list[problem.layer_start[layer] : problem.layer_start[layer + 1]]
        while rank < devices - 1 and left[ranks[rank]] < 0.5 * need[units, scarce].sum():
            rank += 1
        for unit in units:
            homes = homes_of(problem, int(unit))
            device = ranks[rank] if ranks[rank] in homes else homes[0]
            start.device[unit] = device
            left[device] -= need[unit, scarce]
    return start


def start_from(encoded: Encoded, instance: Instance, assignment: Assignment) -> Start:
    """The state nearest to an assignment: its devices (a unit goes where its first item is) and its tiles, where they
    still exist, else others that can be built there."""
    problem, menu = encoded.problem, encoded.menu
    start = mirror_start(problem, None)
    devices = np.array(assignment.devices, dtype=np.int64)
    for g, members in enumerate(encoded.flat.members):
        member = members[0]
        tile = instance.configurations(member, assignment.devices[member])[assignment.configurations[member]].tile
        usable = (problem.row_of[members, problem.part[devices[list(members)]], :] >= 0).all(axis=0)
        others = np.flatnonzero(usable)
        wanted = menu.slots[g].index(tile) if tile in menu.slots[g] else 0
        start.tile[g] = wanted if usable[wanted] or not len(others) else others[0]
    for unit in range(len(problem.pin)):
        items = problem.unit_list[problem.unit_start[unit] : problem.unit_start[unit + 1]]
        device = assignment.devices[int(items[0])]
        if device in homes_of(problem, unit, start.tile):
            start.device[unit] = device
    return repaired(problem, start)


def repaired(problem: Problem, start: Start) -> Start:
    """The state with tiles set back to the first one wherever some item could not be built, and with units elsewhere
    that can't be built where they are so."""
    while True:
        slots = _slots_of(problem, start.tile)
        items = np.arange(len(slots))
        lost = items[problem.row_of[items, problem.part[start.device[problem.unit]], slots] < 0]
        groups = np.unique(problem.group[lost])
        groups = groups[groups >= 0]
        if start.tile[groups].any():
            start.tile[groups] = 0
            continue
        moved = False
        for unit in np.unique(problem.unit[lost]):
            homes = homes_of(problem, int(unit), start.tile)
            if homes:
                start.device[unit], moved = homes[0], True
        if not moved:
            return start


def tightened(problem: Problem, m20k: int, dram_share: float) -> Problem:
    """The problem on devices with fewer M20K, by at most a hundredth, and less DRAM bandwidth."""
    capacity = problem.capacity.copy()
    capacity[:, 1] -= np.minimum(m20k, capacity[:, 1] // 100)
    capacity[:, 3] *= 1 - dram_share
    return problem._replace(capacity=capacity)


def unmixed_at(problem: Problem, devices: Sequence[int]) -> Problem:
    """The problem in which these devices take one exchange rate: what fits them so can be rounded."""
    mixes = problem.mixes.copy()
    mixes[list(devices)] = 0
    return problem._replace(mixes=mixes)


def tightened_at(problem: Problem, devices: Sequence[int], share: float) -> Problem:
    """The problem with so much less of all resources but network ports on these devices."""
    capacity = problem.capacity.copy()
    capacity[list(devices), :4] *= 1 - share
    return problem._replace(capacity=capacity)


def focused(problem: Problem, start: Start, units: Ints, count: int) -> Problem:
    """The problem in which only these units may move and those nearest to them by links, about `count` in all."""
    free = np.zeros(len(problem.pin), dtype=bool)
    free[units] = True
    while free.sum() < count:
        ends = free[problem.link_a] | free[problem.link_b]
        grown = free.copy()
        grown[problem.link_a[ends]] = grown[problem.link_b[ends]] = True
        if grown.sum() == free.sum():
            break
        free = grown
    groups = [problem.unit[row] for row in _lists(problem.group_start, problem.group_list)]
    layers = [row for row in _lists(problem.layer_start, problem.layer_list) if free[row].any()]
    layer_start, layer_list = _csr([row.tolist() for row in layers])
    return problem._replace(
        pin=np.where(free, problem.pin, start.device),
        free=np.flatnonzero(free),
        free_links=np.flatnonzero(free[problem.link_a] | free[problem.link_b]),
        free_groups=np.array([g for g, row in enumerate(groups) if free[row].all()], dtype=np.int64),
        line=problem.line[free[problem.line]],
        layer_start=layer_start,
        layer_list=layer_list,
    )
