"""Simulated annealing at a fixed T: moves groups of items between devices until no constraint is broken.

The state is a device for every unit (a light item merged into its neighbour, `placement.encode.contract`), a tile for
every tile group and a configuration for every item; the energy adds up what is over capacity, relative to the capacity,
on every device, and the differences of hops where branches join. Energy 0 is a placement. Failure proves nothing.

The kernel is compiled by numba, takes a number of moves and a seed, and never looks at the clock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from placement.encode import Decoder, Ints, Problem, Start
from placement.plan import Assignment

# energy of one hop of difference at a join; a device at twice its capacity of one resource costs 1
HOP_ENERGY = 0.03
# being over capacity at all costs this much, so that the last percent is worth repairing
OVER_ENERGY = 0.002
# weights of DSP, M20K, ALM, DRAM, egress, ingress in the energy
WEIGHTS = (1.0, 1.0, 1.0, 0.5, 0.5, 0.5)
HOTTEST, COLDEST = 0.05, 0.0003


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
