"""Simulated annealing at a fixed T: moves groups of items between devices until no constraint is broken.

The state is a device for every unit (a light item merged into its neighbour, `contract`), a tile for every tile
group and a configuration for every item; the energy adds up what is over capacity, relative to the capacity, on every
device, and the differences of hops where branches join. Energy 0 is a placement. Failure proves nothing.

The kernel is compiled by numba, takes a number of moves and a seed, and never looks at the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hdl.tensor import Kind
from placement.instance import RESOURCES, Instance, hop_order
from placement.options import Options
from placement.plan import Assignment

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# an item is light, and goes with its neighbour, if it needs less than this share of every device's blocks
LIGHT_SHARE = 0.004
# tiles of a group that the heuristic considers, cheapest in DSP blocks first
MOST_TILES = 8
# energy of one hop of difference at a join; a device at twice its capacity of one resource costs 1
HOP_ENERGY = 0.03
# being over capacity at all costs this much, so that the last percent is worth repairing
OVER_ENERGY = 0.002
# weights of DSP, M20K, ALM, DRAM, egress, ingress in the energy
WEIGHTS = (1.0, 1.0, 1.0, 0.5, 0.5, 0.5)
HOTTEST, COLDEST = 0.05, 0.0003


class Problem(NamedTuple):
    """An instance at one T as flat arrays. Options are numbered through; a CSR pair is (`_start`, `_list`)."""

    # options: (count, 4) DSP, M20K, ALM, DRAM bytes a frame
    cost: Any
    # (item, part, tile slot) → first option and number of options
    first: Any
    count: Any
    # device → part; (device, 6) capacities in the order of WEIGHTS, ∞-free
    part: Any
    capacity: Any
    # item → unit, tile group (−1: none)
    unit: Any
    group: Any
    unit_start: Any
    unit_list: Any
    group_start: Any
    group_list: Any
    # tiles of each group
    tiles: Any
    # unit → device it is pinned to, −1: free
    pin: Any
    # links between units: ends, bits a frame (scaled to integers); and the links of each unit
    link_a: Any
    link_b: Any
    link_bits: Any
    unit_link_start: Any
    unit_link_list: Any
    # items with hop-matching predecessors in topological order, and the predecessors
    order: Any
    before_start: Any
    before_list: Any
    # units in topological order; units of each forward layer, layers in order
    line: Any
    layer_start: Any
    layer_list: Any


@dataclass(frozen=True)
class Decoder:
    """How to read options of a Problem back: option → position in the item's configurations."""

    position: tuple[int, ...]


@dataclass
class Start:
    """A state to anneal from: unit → device, item → option, group → tile slot."""

    device: Ints
    option: Ints
    tile: Ints


def light_items(instance: Instance, options: Options) -> list[bool]:
    """Whether each item, at its least, takes under LIGHT_SHARE of the blocks of every device that could hold it."""
    light = []
    for i, item in enumerate(instance.items):
        shares = [
            min(getattr(item.configurations[device.part][k], resource) for k in usable)
            / max(1, getattr(device, resource))
            for device in instance.devices
            if (usable := options.by_part[i].get(device.part, ()))
            for resource in RESOURCES
        ]
        light.append(max(shares, default=1.0) < LIGHT_SHARE)
    return light


def contract(instance: Instance, options: Options, *, merge: bool = True) -> list[int]:
    """Item → unit. Merged are coupled items; and if `merge`: the update with its gradient, a light item with its
    only hop-matching predecessor, else with its only successor. Pins are respected: no free heavy item is pinned."""
    count = len(instance.items)
    leader = list(range(count))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    pinned = [item.pinned for item in instance.items]
    coupled: dict[str, int] = {}
    for i, item in enumerate(instance.items):
        if item.same_device is not None:
            first = find(coupled.setdefault(item.same_device, i))
            pinned[first] = pinned[first] or item.pinned
            leader[find(i)] = first
    if merge:
        light = light_items(instance, options)
        for i, neighbour in _merges(instance, light):
            a, b = find(i), find(neighbour)
            if a != b and (pinned[a] == pinned[b] or pinned[a] is None):
                leader[a] = b
    roots = {root: unit for unit, root in enumerate(dict.fromkeys(find(i) for i in range(count)))}
    return [roots[find(i)] for i in range(count)]


def _merges(instance: Instance, light: Sequence[bool]) -> list[tuple[int, int]]:
    """(item, neighbour it may join) in a fixed order."""
    before: list[list[int]] = [[] for _ in instance.items]
    after: list[list[int]] = [[] for _ in instance.items]
    merges = []
    for link in instance.links:
        source, target = instance.item_index[link.source], instance.item_index[link.target]
        if link.kind.hops_must_match:
            before[target].append(source)
            after[source].append(target)
        elif link.kind is Kind.GRADIENT:
            merges.append((target, source))
    for i, is_light in enumerate(light):
        if is_light and len(before[i]) == 1:
            merges.append((i, before[i][0]))
        elif is_light and len(after[i]) == 1:
            merges.append((i, after[i][0]))
    return merges


def encode(instance: Instance, options: Options, units: Sequence[int]) -> tuple[Problem, Decoder] | None:
    """The instance at the T of `options` as arrays; None if some unit has nowhere to go: pins that differ, a pinned
    device or no device at all that can be built on with the cheapest tile."""
    parts = sorted({device.part for device in instance.devices})
    tiles = {group: _cheapest_tiles(instance, options, group) for group in instance.tile_groups}
    if options.without_choice() or not all(tiles.values()):
        return None
    slots = max([len(kept) for kept in tiles.values()], default=1)
    cost: list[tuple[int, int, int, int]] = []
    position: list[int] = []
    first = np.zeros((len(instance.items), len(parts), slots), dtype=np.int64)
    count = np.zeros_like(first)
    for i, item in enumerate(instance.items):
        names = tiles[item.tile_group] if item.tile_group is not None else (None,)
        for p, part in enumerate(parts):
            for slot, name in enumerate(names):
                usable = [k for k in options.by_part[i].get(part, ()) if item.configurations[part][k].tile == name]
                first[i, p, slot], count[i, p, slot] = len(cost), len(usable)
                cost += [item.configurations[part][k].costs for k in usable]
                position += usable
    pins = _unit_pins(instance, units)
    if pins is None:
        return None
    unit_count = max(units) + 1
    groups = list(instance.tile_groups)
    group = [groups.index(item.tile_group) if item.tile_group is not None else -1 for item in instance.items]
    link_a, link_b, link_bits, scale = _unit_links(instance, units)
    problem = Problem(
        np.array(cost, dtype=np.float64), first, count,
        np.array([parts.index(device.part) for device in instance.devices], dtype=np.int64),
        _capacities(instance, options.cycles_per_frame, scale),
        np.array(units, dtype=np.int64), np.array(group, dtype=np.int64),
        *_csr([[i for i, u in enumerate(units) if u == unit] for unit in range(unit_count)]),
        *_csr([list(members) for members in instance.tile_groups.values()]),
        np.array([len(tiles[name]) for name in groups], dtype=np.int64),
        np.array(pins, dtype=np.int64), link_a, link_b, link_bits,
        *_csr([[k for k in range(len(link_a)) if unit in (link_a[k], link_b[k])] for unit in range(unit_count)]),
        *_hop_arrays(instance), *_lines(instance, units),
    )  # fmt: skip
    for unit, pin in enumerate(pins):
        if not any(_can_hold(problem, unit, d) for d in ([pin] if pin >= 0 else range(len(instance.devices)))):
            return None
    return problem, Decoder(tuple(position))


def _cheapest_tiles(instance: Instance, options: Options, group: str) -> tuple[str, ...]:
    """The MOST_TILES tiles of a group with the fewest DSP blocks over its items, then M20K."""

    def total(tile: str) -> tuple[int, int, str]:
        dsp = m20k = 0
        for i in instance.tile_groups[group]:
            configurations = instance.items[i].configurations
            costs = [
                configurations[part][k].costs
                for part, usable in options.by_part[i].items()
                for k in usable
                if configurations[part][k].tile == tile
            ]
            dsp += min(c[0] for c in costs)
            m20k += min(c[1] for c in costs)
        return dsp, m20k, tile

    return tuple(sorted(options.tiles[group], key=total)[:MOST_TILES])


def _unit_pins(instance: Instance, units: Sequence[int]) -> list[int] | None:
    pins = [-1] * (max(units) + 1)
    for i, item in enumerate(instance.items):
        if item.pinned is not None:
            device = instance.device_index[item.pinned]
            if pins[units[i]] not in (-1, device):
                return None
            pins[units[i]] = device
    return pins


def _unit_links(instance: Instance, units: Sequence[int]) -> tuple[Ints, Ints, Floats, int]:
    scale = lcm(*(link.bits_per_frame.denominator for link in instance.links)) if instance.links else 1
    bits: dict[tuple[int, int], int] = {}
    for link in instance.links:
        a, b = units[instance.item_index[link.source]], units[instance.item_index[link.target]]
        if a != b:
            bits[a, b] = bits.get((a, b), 0) + int(link.bits_per_frame * scale)
    ends = list(bits)
    return (
        np.array([a for a, _ in ends], dtype=np.int64),
        np.array([b for _, b in ends], dtype=np.int64),
        np.array([bits[pair] for pair in ends], dtype=np.float64),
        scale,
    )


def _capacities(instance: Instance, cycles: int, scale: int) -> Floats:
    rows = []
    for device in instance.devices:
        dram = device.dram_bytes_per_s * cycles // instance.clock_hz
        link = device.link_bits_per_s * cycles * scale // instance.clock_hz
        rows.append([*device.capacities, dram, link, link])
    return np.array(rows, dtype=np.float64)


def _csr(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    start = np.cumsum([0] + [len(row) for row in rows]).astype(np.int64)
    return start, np.array([value for row in rows for value in row], dtype=np.int64)


def _hop_arrays(instance: Instance) -> tuple[Ints, Ints, Ints]:
    before: list[list[int]] = [[] for _ in instance.items]
    for link in instance.links:
        if link.kind.hops_must_match:
            before[instance.item_index[link.target]].append(instance.item_index[link.source])
    order = [i for i in hop_order(instance) if before[i]]
    start, flat = _csr([before[i] for i in order])
    return np.array(order, dtype=np.int64), start, flat


def _lines(instance: Instance, units: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    line = list(dict.fromkeys(units[i] for i in hop_order(instance)))
    layers: dict[str, list[int]] = {}
    seen: set[int] = set()
    for i, item in enumerate(instance.items):
        if units[i] not in seen:
            seen.add(units[i])
            layers.setdefault(item.layer or item.name, []).append(units[i])
    start, flat = _csr(list(layers.values()))
    return np.array(line, dtype=np.int64), start, flat


def mirror_start(problem: Problem, rng: np.random.Generator | None) -> Start:
    """Contiguous ranges of layers on one device after another, forward, error and gradient of a layer together, each
    device filled in proportion to its share of the cluster. With `rng` the devices come in a random order."""
    devices = len(problem.part)
    ranks = list(range(devices)) if rng is None else [int(d) for d in rng.permutation(devices)]
    option = np.zeros(len(problem.unit), dtype=np.int64)
    start = Start(np.zeros(len(problem.pin), dtype=np.int64), option, np.zeros(len(problem.tiles), dtype=np.int64))
    blocks = problem.capacity[:, :3].sum(axis=0)
    need = np.zeros((len(problem.pin), 3))
    for i, unit in enumerate(problem.unit):
        held = next(p for p in range(problem.first.shape[1]) if problem.count[i, p, 0])
        need[unit] += problem.cost[problem.first[i, held, 0], :3]
    scarce = int(np.argmax(need.sum(axis=0) / np.maximum(blocks, 1)))
    share = min(1.0, 1.02 * float(need[:, scarce].sum() / max(1.0, float(blocks[scarce]))))
    left = problem.capacity[:, scarce] * share
    rank = 0
    for layer in range(len(problem.layer_start) - 1):
        units = problem.layer_list[problem.layer_start[layer] : problem.layer_start[layer + 1]]
        while rank < devices - 1 and left[ranks[rank]] < 0.5 * need[units, scarce].sum():
            rank += 1
        for unit in units:
            device = ranks[rank] if problem.pin[unit] < 0 else int(problem.pin[unit])
            if not _can_hold(problem, int(unit), device):
                device = next(d for d in range(devices) if _can_hold(problem, int(unit), d))
            start.device[unit] = device
            left[device] -= need[unit, scarce]
    for i, unit in enumerate(problem.unit):
        option[i] = problem.first[i, problem.part[start.device[unit]], 0]
    return start


def _can_hold(problem: Problem, unit: int, device: int) -> bool:
    items = problem.unit_list[problem.unit_start[unit] : problem.unit_start[unit + 1]]
    return bool((problem.count[items, problem.part[device], 0] > 0).all())


def start_from(problem: Problem, decoder: Decoder, assignment: Assignment) -> Start:
    """The state nearest to an assignment: its devices (a unit goes where its first item is), the cheapest tiles, and
    of their configurations the same ones where they still exist."""
    start = mirror_start(problem, None)
    for unit in range(len(problem.pin)):
        device = assignment.devices[int(problem.unit_list[problem.unit_start[unit]])]
        if _can_hold(problem, unit, device):
            start.device[unit] = device
    for i, unit in enumerate(problem.unit):
        part = problem.part[start.device[unit]]
        options = range(int(problem.first[i, part, 0]), int(problem.first[i, part, 0] + problem.count[i, part, 0]))
        same = [k for k in options if decoder.position[k] == assignment.configurations[i]]
        start.option[i] = same[0] if same else options[0]
    return start


def anneal(
    problem: Problem, decoder: Decoder, start: Start, *, moves: int, seed: int, hottest: float = HOTTEST
) -> tuple[Assignment | None, Start]:
    """Anneal for up to `moves` moves: (a placement or None, the last state)."""
    device, option, tile = start.device.copy(), start.option.copy(), start.tile.copy()
    energy = _anneal(problem, device, option, tile, moves, seed, hottest, COLDEST)
    state = Start(device, option, tile)
    if energy > 0.0:
        return None, state
    chosen = [decoder.position[k] for k in option]
    return Assignment(tuple(int(device[u]) for u in problem.unit), tuple(chosen)), state


# --- the compiled kernel -----------------------------------------------------------------------------------------


class State(NamedTuple):
    """Working arrays of the kernel."""

    device: Any
    option: Any
    tile: Any
    # (device, 6): DSP, M20K, ALM, DRAM, egress, ingress in use
    use: Any
    hops: Any
    # undo log: rows (0, item, old option), (1, unit, old device), (2, group, old tile); row 0 holds the length
    log: Any


@njit(cache=True)
def _over(use: float, capacity: float, weight: float) -> float:
    if use <= capacity:
        return 0.0
    return weight * ((use - capacity) / max(capacity, 1.0) + OVER_ENERGY)


@njit(cache=True)
def _device_energy(problem: Problem, state: State, d: int) -> float:
    energy = 0.0
    for r in range(6):
        energy += _over(state.use[d, r], problem.capacity[d, r], WEIGHTS[r])
    return energy


@njit(cache=True)
def _hop_differences(problem: Problem, state: State) -> int:
    """Recompute hops of all items; the sum over joins of (most − least) hops arriving."""
    differences = 0
    for k in range(len(problem.order)):
        item = problem.order[k]
        here = state.device[problem.unit[item]]
        most, least = -1, 1 << 30
        for b in range(problem.before_start[k], problem.before_start[k + 1]):
            p = problem.before_list[b]
            arrive = state.hops[p] + (1 if state.device[problem.unit[p]] != here else 0)
            most = max(most, arrive)
            least = min(least, arrive)
        state.hops[item] = most
        differences += most - least
    return differences


@njit(cache=True)
def _energy(problem: Problem, state: State) -> float:
    energy = HOP_ENERGY * _hop_differences(problem, state)
    for d in range(len(problem.part)):
        energy += _device_energy(problem, state, d)
    return energy


@njit(cache=True)
def _set_option(problem: Problem, state: State, item: int, option: int) -> None:
    d = state.device[problem.unit[item]]
    old = state.option[item]
    for r in range(4):
        state.use[d, r] += problem.cost[option, r] - problem.cost[old, r]
    state.option[item] = option


@njit(cache=True)
def _shift(problem: Problem, state: State, u: int, d: int) -> None:
    """Move a unit to a device with the options it has, and its links' loads."""
    old = state.device[u]
    for k in range(problem.unit_start[u], problem.unit_start[u + 1]):
        option = state.option[problem.unit_list[k]]
        for r in range(4):
            state.use[old, r] -= problem.cost[option, r]
            state.use[d, r] += problem.cost[option, r]
    for k in range(problem.unit_link_start[u], problem.unit_link_start[u + 1]):
        link = problem.unit_link_list[k]
        bits = problem.link_bits[link]
        sends = problem.link_a[link] == u
        other = state.device[problem.link_b[link] if sends else problem.link_a[link]]
        mine, theirs = (4, 5) if sends else (5, 4)
        if other != old:
            state.use[old, mine] -= bits
            state.use[other, theirs] -= bits
        if other != d:
            state.use[d, mine] += bits
            state.use[other, theirs] += bits
    state.device[u] = d


@njit(cache=True)
def _note(state: State, kind: int, index: int, old: int) -> None:
    n = state.log[0, 0] + 1
    state.log[0, 0] = n
    state.log[n, 0], state.log[n, 1], state.log[n, 2] = kind, index, old


@njit(cache=True)
def _undo(problem: Problem, state: State) -> None:
    for n in range(state.log[0, 0], 0, -1):
        kind, index, old = state.log[n, 0], state.log[n, 1], state.log[n, 2]
        if kind == 0:
            _set_option(problem, state, index, old)
        elif kind == 1:
            _shift(problem, state, index, old)
        else:
            state.tile[index] = old
    state.log[0, 0] = 0


@njit(cache=True)
def _slot(problem: Problem, state: State, item: int) -> int:
    g = problem.group[item]
    if g < 0:
        return 0
    slot: int = state.tile[g]
    return slot


@njit(cache=True)
def _best_option(problem: Problem, state: State, item: int, d: int) -> int:
    """The option of an item that hurts device d least, given all else there; ties go to what is less scarce."""
    part, slot = problem.part[d], _slot(problem, state, item)
    begin = problem.first[item, part, slot]
    best: int = begin
    best_hurt = 1e300
    current = state.option[item]
    for option in range(begin, begin + problem.count[item, part, slot]):
        hurt = 0.0
        for r in range(4):
            use = state.use[d, r] - problem.cost[current, r] + problem.cost[option, r]
            capacity = problem.capacity[d, r]
            share = use / max(capacity, 1.0)
            hurt += _over(use, capacity, WEIGHTS[r]) + 0.01 * share * share
        if hurt < best_hurt:
            best, best_hurt = option, hurt
    return best


@njit(cache=True)
def _rechoose(problem: Problem, state: State, item: int) -> None:
    option = _best_option(problem, state, item, state.device[problem.unit[item]])
    if option != state.option[item]:
        _note(state, 0, item, state.option[item])
        _set_option(problem, state, item, option)


@njit(cache=True)
def _move(problem: Problem, state: State, u: int, d: int) -> None:
    """Move a unit and choose its options anew; nothing happens if it is pinned elsewhere or cannot be built there."""
    old = state.device[u]
    if old == d or (problem.pin[u] >= 0 and problem.pin[u] != d):
        return
    part = problem.part[d]
    for k in range(problem.unit_start[u], problem.unit_start[u + 1]):
        item = problem.unit_list[k]
        if problem.count[item, part, _slot(problem, state, item)] == 0:
            return
    _note(state, 1, u, old)
    _shift(problem, state, u, d)
    for k in range(problem.unit_start[u], problem.unit_start[u + 1]):
        item = problem.unit_list[k]
        if part != problem.part[old] or problem.count[item, part, _slot(problem, state, item)] > 1:
            # options are numbered by part: on another part the old one does not exist
            _note(state, 0, item, state.option[item])
            _set_option(problem, state, item, _best_option(problem, state, item, d))


@njit(cache=True)
def _retile(problem: Problem, state: State, g: int, tile: int) -> None:
    """Give a group another tile and choose its items' options anew; nothing if some item cannot be built so."""
    for k in range(problem.group_start[g], problem.group_start[g + 1]):
        item = problem.group_list[k]
        if problem.count[item, problem.part[state.device[problem.unit[item]]], tile] == 0:
            return
    _note(state, 2, g, state.tile[g])
    state.tile[g] = tile
    for k in range(problem.group_start[g], problem.group_start[g + 1]):
        _rechoose(problem, state, problem.group_list[k])


@njit(cache=True)
def _below(n: int) -> int:
    index: int = int(np.random.random() * n)
    return index


@njit(cache=True)
def _propose(problem: Problem, state: State) -> None:
    """Make one random change, noted in the log."""
    units, devices = len(problem.pin), len(problem.part)
    layers, line, links = len(problem.layer_start) - 1, len(problem.line), len(problem.link_a)
    r = np.random.random()
    if r < 0.25:  # relabel one unit: anywhere, or to where a neighbour is
        u = _below(units)
        d = _below(devices)
        degree = problem.unit_link_start[u + 1] - problem.unit_link_start[u]
        if degree > 0 and np.random.random() < 0.3:
            link = problem.unit_link_list[problem.unit_link_start[u] + _below(degree)]
            d = state.device[problem.link_b[link] if problem.link_a[link] == u else problem.link_a[link]]
        _move(problem, state, u, d)
    elif r < 0.42:  # swap two units
        u, v = _below(units), _below(units)
        du, dv = state.device[u], state.device[v]
        _move(problem, state, u, dv)
        _move(problem, state, v, du)
    elif r < 0.54:  # shift a boundary along the stream
        at = _below(line)
        d = state.device[problem.line[at]]
        length = 1 + _below(3 if np.random.random() < 0.5 else 12)
        step = 1 if np.random.random() < 0.5 else -1
        for k in range(1, length + 1):
            if 0 <= at + step * k < line:
                _move(problem, state, problem.line[at + step * k], d)
    elif r < 0.62:  # a window of the stream to any device
        at, d = _below(line), _below(devices)
        for k in range(at, min(line, at + 1 + _below(4 if np.random.random() < 0.5 else 16))):
            _move(problem, state, problem.line[k], d)
    elif r < 0.74:  # a few layers, engines of all directions, to a neighbouring layer's or any device
        at = _below(layers)
        end = min(layers, at + 1 + _below(2 if np.random.random() < 0.6 else 8))
        d = _below(devices)
        if np.random.random() < 0.6:
            near = max(0, at - 1) if np.random.random() < 0.5 else min(layers - 1, end)
            begin, stop = problem.layer_start[near], problem.layer_start[near + 1]
            d = state.device[problem.layer_list[begin + _below(stop - begin)]]
        for k in range(problem.layer_start[at], problem.layer_start[end]):
            _move(problem, state, problem.layer_list[k], d)
    elif r < 0.79:  # exchange two devices over a range of layers
        at = _below(layers)
        end = min(layers, at + 2 + _below(max(1, layers // 2)))
        d = state.device[problem.layer_list[problem.layer_start[at]]]
        other = _below(devices)
        for k in range(problem.layer_start[at], problem.layer_start[end]):
            u = problem.layer_list[k]
            here = state.device[u]
            if here == d:
                _move(problem, state, u, other)
            elif here == other:
                _move(problem, state, u, d)
    elif r < 0.88:  # pull one end of a cut link to the other
        if links:
            link = _below(links)
            a, b = problem.link_a[link], problem.link_b[link]
            if np.random.random() < 0.5:
                _move(problem, state, a, state.device[b])
            else:
                _move(problem, state, b, state.device[a])
    elif r < 0.97 or len(problem.tiles) == 0:  # another configuration: the best now, or any
        item = _below(len(problem.unit))
        part, slot = problem.part[state.device[problem.unit[item]]], _slot(problem, state, item)
        if problem.count[item, part, slot] > 1:
            if np.random.random() < 0.5:
                _rechoose(problem, state, item)
            else:
                _note(state, 0, item, state.option[item])
                option = problem.first[item, part, slot] + _below(problem.count[item, part, slot])
                _set_option(problem, state, item, option)
    else:  # another tile for a group
        g = _below(len(problem.tiles))
        if problem.tiles[g] > 1:
            _retile(problem, state, g, _below(problem.tiles[g]))


@njit(cache=True)
def _anneal(
    problem: Problem, device: Ints, option: Ints, tile: Ints, moves: int, seed: int, hottest: float, coldest: float
) -> float:
    """Anneal in place; the final energy, which is exactly 0 for a placement."""
    np.random.seed(seed)
    items, devices = len(problem.unit), len(problem.part)
    # a move notes at most: every unit twice, every item twice, one tile
    log = np.zeros((2 * len(problem.pin) + 2 * items + 4, 3), dtype=np.int64)
    state = State(device, option, tile, np.zeros((devices, 6)), np.zeros(items, dtype=np.int64), log)
    for i in range(items):
        for r in range(4):
            state.use[device[problem.unit[i]], r] += problem.cost[option[i], r]
    for k in range(len(problem.link_a)):
        a, b = device[problem.link_a[k]], device[problem.link_b[k]]
        if a != b:
            state.use[a, 4] += problem.link_bits[k]
            state.use[b, 5] += problem.link_bits[k]
    energy = _energy(problem, state)
    cooling = np.log(coldest / hottest)
    temperature = hottest
    for n in range(moves):
        if energy <= 0.0:
            break
        if n % 256 == 0:
            temperature = hottest * np.exp(cooling * n / moves)
        _propose(problem, state)
        if log[0, 0] == 0:
            continue
        after = _energy(problem, state)
        if after <= energy or np.random.random() < np.exp((energy - after) / temperature):
            energy = after
            log[0, 0] = 0
        else:
            _undo(problem, state)
    return energy
