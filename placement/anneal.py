"""Simulated annealing at a fixed T: moves groups of items between devices until no constraint is broken.

The state is a device for every unit and a tile for every tile group. Configurations are implicit: each device chooses
the exchange rate between M20K and DRAM at which it is least overfull (`placement.flat`), so the state of a device is
the sum of its items' costs at every rate. The energy adds up what is over capacity, relative to the capacity, on every
device, and the unequal hops around every cycle. Energy 0 is a placement up to the rounding of configurations
(`placement.settle`). Failure proves nothing.

The kernel is compiled by numba, takes a number of moves and a seed, and never looks at the clock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from placement.encode import Problem, Start
from placement.flat import Floats, Ints

# energy of one hop of difference around a cycle; a device at twice its capacity of one resource costs 1
HOP_ENERGY = 0.03
# being over capacity at all costs this much, so that the last percent is worth repairing
OVER_ENERGY = 0.002
# weights of DSP, M20K, ALM, DRAM, egress, ingress in the energy
WEIGHTS = (1.0, 1.0, 1.0, 0.5, 0.5, 0.5)
HOTTEST, COLDEST = 0.05, 0.0003


def anneal(
    problem: Problem,
    start: Start,
    *,
    moves: int,
    seed: int,
    hottest: float = HOTTEST,
    coldest: float = COLDEST,
    stop: Ints | None = None,
) -> tuple[float, Start]:
    """Anneal for up to `moves` moves: (energy, 0 exactly for a placement; the last state). Once another thread sets
    `stop`, an array of one, it ends at once."""
    state = start.copy()
    flag = np.zeros(1, dtype=np.int64) if stop is None else stop
    energy = _anneal(problem, state.device, state.tile, moves, seed, hottest, coldest, flag)
    return float(energy), state


# --- the compiled kernel -----------------------------------------------------------------------------------------


class State(NamedTuple):
    """Working arrays of the kernel."""

    device: Any
    tile: Any
    # (unit, part, level, 4): costs of a unit with its groups' tiles; (unit, part): items that cannot be built
    cost: Any
    blocked: Any
    # (device, level, 4) in use; (device, 2) egress and ingress; cycle → difference of hops; [sum of |differences|]
    load: Any
    net: Any
    skew: Any
    skews: Any
    # device → its energy; the same before the move, for the devices touched by it; stamps and list of those
    energy: Any
    before: Any
    stamp: Any
    touched: Any
    # undo log: rows (0, unit, old device), (1, group, old tile); row 0 holds the length and the number of the move
    log: Any


@njit(cache=True, nogil=True)
def _over(use: float, capacity: float, weight: float) -> float:
    if use <= capacity:
        return 0.0
    return weight * ((use - capacity) / max(capacity, 1.0) + OVER_ENERGY)


@njit(cache=True, nogil=True)
def exchange_level(load: Floats, memory: float) -> tuple[int, float]:
    """The rate at which a device uses all its M20K: (level, share of the way to the next level).

    Args:
        load: (level, 4) sums of costs; M20K grow with the level and DRAM bytes fall.
        memory: M20K blocks to be filled.
    """
    last = len(load) - 1
    if load[0, 1] > memory:
        return 0, 0.0
    level = last
    while load[level, 1] > memory:
        level -= 1
    if level == last:
        return last, 0.0
    return level, (memory - load[level, 1]) / (load[level + 1, 1] - load[level, 1])


@njit(cache=True, nogil=True)
def _device_energy(problem: Problem, state: State, d: int) -> float:
    load, capacity = state.load[d], problem.capacity[d]
    level, share = exchange_level(load, capacity[1])
    energy = 0.0
    for r in range(4):
        use = load[level, r]
        if share > 0.0:
            use += share * (load[level + 1, r] - use)
        if r != 1 or level == 0:
            energy += _over(use, capacity[r], WEIGHTS[r])
    energy += _over(state.net[d, 0], capacity[4], WEIGHTS[4])
    energy += _over(state.net[d, 1], capacity[5], WEIGHTS[5])
    return energy


@njit(cache=True, nogil=True)
def _touch(state: State, d: int) -> None:
    if state.stamp[d] != state.log[0, 1]:
        state.stamp[d] = state.log[0, 1]
        n = state.touched[0] + 1
        state.touched[0] = n
        state.touched[n] = d
        state.before[d] = state.energy[d]


@njit(cache=True, nogil=True)
def _shift(problem: Problem, state: State, u: int, d: int) -> None:
    """Move a unit to a device: its costs, its links' loads, and the cycles through links that are cut or joined."""
    old = state.device[u]
    _touch(state, old)
    _touch(state, d)
    here, there = state.cost[u, problem.part[old]], state.cost[u, problem.part[d]]
    a, b = state.load[old], state.load[d]
    for level in range(a.shape[0]):
        for r in range(4):
            a[level, r] -= here[level, r]
            b[level, r] += there[level, r]
    for k in range(problem.unit_link_start[u], problem.unit_link_start[u + 1]):
        link = problem.unit_link_list[k]
        bits = problem.link_bits[link]
        sends = problem.link_a[link] == u
        other = state.device[problem.link_b[link] if sends else problem.link_a[link]]
        mine, theirs = (0, 1) if sends else (1, 0)
        if other != old:
            state.net[old, mine] -= bits
            state.net[other, theirs] -= bits
        if other != d:
            state.net[d, mine] += bits
            state.net[other, theirs] += bits
        _touch(state, other)
        if (other != old) != (other != d):
            change = 1 if other != d else -1
            for c in range(problem.cycle_start[link], problem.cycle_start[link + 1]):
                cycle = problem.cycle_list[c]
                skew = state.skew[cycle]
                after = skew + change * problem.cycle_sign[c]
                state.skew[cycle] = after
                state.skews[0] += abs(after) - abs(skew)
    state.device[u] = d


@njit(cache=True, nogil=True)
def _note(state: State, kind: int, index: int, old: int) -> None:
    n = state.log[0, 0] + 1
    state.log[0, 0] = n
    state.log[n, 0], state.log[n, 1], state.log[n, 2] = kind, index, old


@njit(cache=True, nogil=True)
def _move(problem: Problem, state: State, u: int, d: int) -> None:
    """Move a unit; nothing happens if it is pinned elsewhere, cannot be built there, or the log is full."""
    old = state.device[u]
    if old == d or (problem.pin[u] >= 0 and problem.pin[u] != d) or state.blocked[u, problem.part[d]] > 0:
        return
    if state.log[0, 0] >= len(state.log) - 2:
        return
    _note(state, 0, u, old)
    _shift(problem, state, u, d)


@njit(cache=True, nogil=True)
def _set_tile(problem: Problem, state: State, g: int, tile: int) -> None:
    """Give a group another tile: the costs of its items' units on every part, and of the devices they are on."""
    old = state.tile[g]
    parts = problem.row_of.shape[1]
    for k in range(problem.group_start[g], problem.group_start[g + 1]):
        item = problem.group_list[k]
        u = problem.unit[item]
        d = state.device[u]
        _touch(state, d)
        for p in range(parts):
            for sign, slot in ((-1.0, old), (1.0, tile)):
                row = problem.row_of[item, p, slot]
                if row < 0:
                    state.blocked[u, p] += -1 if sign < 0 else 1
                    continue
                state.cost[u, p] += sign * problem.costs[row]
                if p == problem.part[d]:
                    state.load[d] += sign * problem.costs[row]
    state.tile[g] = tile


@njit(cache=True, nogil=True)
def _retile(problem: Problem, state: State, g: int, tile: int) -> None:
    """Give a group another tile; nothing happens if some item could not be built where it is."""
    for k in range(problem.group_start[g], problem.group_start[g + 1]):
        item = problem.group_list[k]
        if problem.row_of[item, problem.part[state.device[problem.unit[item]]], tile] < 0:
            return
    _note(state, 1, g, state.tile[g])
    _set_tile(problem, state, g, tile)


@njit(cache=True, nogil=True)
def _undo(problem: Problem, state: State) -> None:
    for n in range(state.log[0, 0], 0, -1):
        kind, index, old = state.log[n, 0], state.log[n, 1], state.log[n, 2]
        if kind == 0:
            _shift(problem, state, index, old)
        else:
            _set_tile(problem, state, index, old)
    for k in range(1, state.touched[0] + 1):
        d = state.touched[k]
        state.energy[d] = state.before[d]


@njit(cache=True, nogil=True)
def _below(n: int) -> int:
    return int(np.random.random() * n)


@njit(cache=True, nogil=True)
def _neighbour(problem: Problem, state: State, u: int) -> int:
    """A device to move a unit to: mostly that of a unit it has a link with, else any."""
    degree = problem.unit_link_start[u + 1] - problem.unit_link_start[u]
    if degree > 0 and np.random.random() < (0.3 if len(problem.part) <= 16 else 0.7):
        link = problem.unit_link_list[problem.unit_link_start[u] + _below(degree)]
        near: int = state.device[problem.link_b[link] if problem.link_a[link] == u else problem.link_a[link]]
        return near
    return _below(len(problem.part))


@njit(cache=True, nogil=True)
def _swap(problem: Problem, state: State) -> None:
    units = len(problem.pin)
    u = _below(units)
    v = _below(units)
    if len(problem.part) > 16 and np.random.random() < 0.5:
        v = min(units - 1, max(0, u + _below(41) - 20))
    du, dv = state.device[u], state.device[v]
    if du != dv:
        _move(problem, state, u, dv)
        _move(problem, state, v, du)


@njit(cache=True, nogil=True)
def _shift_boundary(problem: Problem, state: State) -> None:
    """Units next in the stream follow one to its device."""
    line = len(problem.line)
    at = _below(line)
    d = state.device[problem.line[at]]
    length = 1 + _below(3 if np.random.random() < 0.5 else 12)
    step = 1 if np.random.random() < 0.5 else -1
    for k in range(1, length + 1):
        if 0 <= at + step * k < line:
            _move(problem, state, problem.line[at + step * k], d)


@njit(cache=True, nogil=True)
def _move_window(problem: Problem, state: State) -> None:
    """A window of the stream goes to one device."""
    line = len(problem.line)
    at = _below(line)
    d = _neighbour(problem, state, problem.line[at])
    for k in range(at, min(line, at + 1 + _below(4 if np.random.random() < 0.5 else 16))):
        _move(problem, state, problem.line[k], d)


@njit(cache=True, nogil=True)
def _exchange_window(problem: Problem, state: State) -> None:
    """Two devices exchange what they have in a window of the stream."""
    line = len(problem.line)
    at = _below(line)
    d = state.device[problem.line[at]]
    other = _neighbour(problem, state, problem.line[at])
    for k in range(at, min(line, at + 2 + _below(20))):
        u = problem.line[k]
        if state.device[u] == d:
            _move(problem, state, u, other)
        elif state.device[u] == other:
            _move(problem, state, u, d)


@njit(cache=True, nogil=True)
def _move_layers(problem: Problem, state: State) -> None:
    """A few layers, engines of all directions, go to a neighbouring layer's or any device."""
    layers = len(problem.layer_start) - 1
    at = _below(layers)
    end = min(layers, at + 1 + _below(2 if np.random.random() < 0.6 else 8))
    d = _below(len(problem.part))
    if np.random.random() < (0.6 if len(problem.part) <= 16 else 0.85):
        near = max(0, at - 1) if np.random.random() < 0.5 else min(layers - 1, end)
        begin, stop = problem.layer_start[near], problem.layer_start[near + 1]
        d = state.device[problem.layer_list[begin + _below(stop - begin)]]
    for k in range(problem.layer_start[at], problem.layer_start[end]):
        _move(problem, state, problem.layer_list[k], d)


@njit(cache=True, nogil=True)
def _exchange_layers(problem: Problem, state: State) -> None:
    """Two devices exchange what they have in a range of layers."""
    layers = len(problem.layer_start) - 1
    at = _below(layers)
    end = min(layers, at + 2 + _below(max(1, layers // 2)))
    d = state.device[problem.layer_list[problem.layer_start[at]]]
    other = _below(len(problem.part))
    for k in range(problem.layer_start[at], problem.layer_start[end]):
        u = problem.layer_list[k]
        if state.device[u] == d:
            _move(problem, state, u, other)
        elif state.device[u] == other:
            _move(problem, state, u, d)


@njit(cache=True, nogil=True)
def _pull(problem: Problem, state: State) -> None:
    """One end of a cut link goes to the other's device."""
    if len(problem.link_a) == 0:
        return
    link = _below(len(problem.link_a))
    a, b = problem.link_a[link], problem.link_b[link]
    if np.random.random() < 0.5:
        _move(problem, state, a, state.device[b])
    else:
        _move(problem, state, b, state.device[a])


@njit(cache=True, nogil=True)
def _propose(problem: Problem, state: State) -> None:
    """Make one random change, noted in the log."""
    r = np.random.random()
    if r < 0.28:
        u = _below(len(problem.pin))
        _move(problem, state, u, _neighbour(problem, state, u))
    elif r < 0.46:
        _swap(problem, state)
    elif r < 0.58:
        _shift_boundary(problem, state)
    elif r < 0.67:
        _move_window(problem, state)
    elif r < 0.71:
        _exchange_window(problem, state)
    elif r < 0.81:
        _move_layers(problem, state)
    elif r < 0.85:
        _exchange_layers(problem, state)
    elif r < 0.95 or len(problem.slots) == 0:
        _pull(problem, state)
    else:
        g = _below(len(problem.slots))
        if problem.slots[g] > 1:
            tile = _below(problem.slots[g])
            if tile != state.tile[g]:
                _retile(problem, state, g, tile)


@njit(cache=True, nogil=True)
def _fresh(problem: Problem, device: Ints, tile: Ints) -> State:
    """The working arrays of a state."""
    items, parts = problem.row_of.shape[0], problem.row_of.shape[1]
    levels, devices, units = problem.costs.shape[1], len(problem.part), len(problem.pin)
    cost = np.zeros((units, parts, levels, 4))
    blocked = np.zeros((units, parts), dtype=np.int64)
    load = np.zeros((devices, levels, 4))
    for i in range(items):
        u = problem.unit[i]
        slot = 0 if problem.group[i] < 0 else tile[problem.group[i]]
        for p in range(parts):
            row = problem.row_of[i, p, slot]
            if row < 0:
                blocked[u, p] += 1
            else:
                cost[u, p] += problem.costs[row]
    for u in range(units):
        load[device[u]] += cost[u, problem.part[device[u]]]
    net = np.zeros((devices, 2))
    skew = np.zeros(problem.cycles[0], dtype=np.int64)
    for k in range(len(problem.link_a)):
        a, b = device[problem.link_a[k]], device[problem.link_b[k]]
        if a != b:
            net[a, 0] += problem.link_bits[k]
            net[b, 1] += problem.link_bits[k]
            for c in range(problem.cycle_start[k], problem.cycle_start[k + 1]):
                skew[problem.cycle_list[c]] += problem.cycle_sign[c]
    skews = np.array([np.abs(skew).sum()])
    # a move notes at most every unit twice, and one tile
    log = np.zeros((2 * units + 4, 3), dtype=np.int64)
    energy = np.zeros(devices)
    state = State(
        device, tile, cost, blocked, load, net, skew, skews, energy, np.zeros(devices),
        np.full(devices, -1), np.zeros(devices + 1, dtype=np.int64), log,
    )  # fmt: skip
    for d in range(devices):
        energy[d] = _device_energy(problem, state, d)
    return state


@njit(cache=True, nogil=True)
def _anneal(
    problem: Problem, device: Ints, tile: Ints, moves: int, seed: int, hottest: float, coldest: float, stop: Ints
) -> float:
    """Anneal in place; the final energy, which is exactly 0 for a placement."""
    np.random.seed(seed)
    state = _fresh(problem, device, tile)
    log, touched = state.log, state.touched
    cooling = np.log(coldest / hottest)
    temperature = hottest
    for n in range(moves):
        if n % 256 == 0:
            if stop[0] or (state.skews[0] == 0 and state.energy.max() <= 0.0):
                break
            temperature = hottest * np.exp(cooling * n / moves)
        log[0, 0], log[0, 1], touched[0] = 0, n, 0
        skews = state.skews[0]
        _propose(problem, state)
        if log[0, 0] == 0:
            continue
        rise = HOP_ENERGY * (state.skews[0] - skews)
        for k in range(1, touched[0] + 1):
            d = touched[k]
            state.energy[d] = _device_energy(problem, state, d)
            rise += state.energy[d] - state.before[d]
        if rise > 0.0 and np.random.random() >= np.exp(-rise / temperature):
            _undo(problem, state)
        elif rise < 0.0 and state.skews[0] == 0 and state.energy.max() <= 0.0:
            break
    energy: float = HOP_ENERGY * state.skews[0] + state.energy.sum()
    return energy
