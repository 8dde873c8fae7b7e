"""An instance at one T as flat arrays for the annealing kernel, what may be merged in it, and states to start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any, NamedTuple

import numpy as np
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


class Problem(NamedTuple):
    """An instance at one T as flat arrays. Options are numbered through; a CSR pair is (`_start`, `_list`)."""

    # options: (count, 4) DSP, M20K, ALM, DRAM bytes a frame
    cost: Any
    # (item, part, tile slot) → first option and number of options
    first: Any
    count: Any
    # device → part; (device, 6) capacities: DSP, M20K, ALM, and at this T DRAM, egress, ingress a frame
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
