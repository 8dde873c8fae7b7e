"""Simulated annealing at a fixed T: moves groups of items between devices until no constraint is broken.

The state is a device for every unit and a tile for every tile group. Configurations are implicit: each device chooses
the exchange rate between M20K and DRAM at which it is least overfull (`placement.problem.flat`), so the state of a
device is the sum of its items' costs at every rate. The energy adds up what is over capacity, relative to the capacity,
on every device, and the unequal hops around every cycle. Energy 0 is a placement up to the rounding of configurations
(`placement.annealing.settle`). Failure proves nothing.

Over a switch a cut link takes of both its ends' devices. On cables it also takes of every wire on its way, whose
overload is an energy of its own, and bends its cycles by as many hops as the way has cables.

The kernel is compiled by numba, takes a number of moves and a seed, and never looks at the clock. It stands in one
file: numba keeps compiled code as long as the file of its function is the same, and would not see a change of what a
function takes in from another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hdl.compiled import inlined, kernel
from placement.annealing.encode import Problem, Start
from placement.problem.flat import Floats, Ints

# energy of one hop of difference around a cycle; a device at twice its capacity of one resource costs 1
HOP_ENERGY = 0.03
# being over capacity at all costs this much, so that the last percent is worth repairing
OVER_ENERGY = 0.002
# weights of DSP, M20K, ALM, DRAM, egress, ingress in the energy; that of a wire
WEIGHTS = (1.0, 1.0, 1.0, 0.5, 0.5, 0.5)
WIRE_WEIGHT = 0.5
HOTTEST, COLDEST = 0.05, 0.0003
# units of one move, at most
LONGEST_MOVE = 400


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
    working = _fresh(problem, state.device, state.tile)
    energy = _anneal(problem, working, moves, seed, hottest, coldest, flag)
    return float(energy), state


def broken_units(problem: Problem, state: Start) -> Ints:
    """Units on devices over capacity, those at links of cycles with unequal hops, and those at links through overfull
    wires, in order."""
    working = _fresh(problem, state.device.copy(), state.tile.copy())
    broken = working.energy[state.device] > 0.0
    overfull = working.energy[len(problem.part) :] > 0.0
    for link in range(len(problem.link_a)):
        cycles = problem.cycle_list[problem.cycle_start[link] : problem.cycle_start[link + 1]]
        if working.skew[cycles].any() or (overfull.any() and _meets(problem, state, link, overfull)):
            broken[problem.link_a[link]] = broken[problem.link_b[link]] = True
    found: Ints = np.flatnonzero(broken)
    return found


def _meets(problem: Problem, state: Start, link: int, overfull: Any) -> bool:
    """Whether words of a link go through one of these wires."""
    ends = int(state.device[problem.link_a[link]]), int(state.device[problem.link_b[link]])
    for at, target in (ends, ends[::-1]):
        while at != target:
            wire = problem.next_wire[at, target]
            if overfull[wire]:
                return True
            at = problem.wire_target[wire]
    return False


# --- the compiled kernel -----------------------------------------------------------------------------------------


class State(NamedTuple):
    """Working arrays of the kernel."""

    device: Any
    tile: Any
    # (unit, part, level, 4): costs of a unit with its groups' tiles; (unit, part): items that cannot be built
    cost: Any
    blocked: Any
    # (device, level, 4) in use; (device, 4) egress, ingress, M20K and ALMs of the network port
    # cycle → difference of hops; [sum of |differences|]
    load: Any
    net: Any
    # (device, device): links between units on the one and on the other; device → others that it has such links to
    between: Any
    peers: Any
    skew: Any
    skews: Any
    # wire → bits a frame through it
    carries: Any
    # device, then wire → its energy; the same before the move, for those touched by it; stamps and list of those
    energy: Any
    before: Any
    stamp: Any
    touched: Any
    # [unused, number of the move, devices and wires touched]
    count: Any
    # rows (unit, device) of the move being tried
    wish: Any


@inlined
def _over(use: float, capacity: float, weight: float) -> float:
    if use <= capacity:
        return 0.0
    return weight * ((use - capacity) / max(capacity, 1.0) + OVER_ENERGY)


@kernel
def exchange_level(load: Floats, memory: float) -> tuple[int, float]:
    """The rate at which a device uses all its M20K: (level, share of the way to the next level).

    Args:
        load: (level, 4) sums of costs; M20K grow with the level and DRAM bytes fall.
        memory: M20K blocks to be filled.
    """
    return _level(load, load, 0.0, memory)


@inlined
def _level(load: Floats, cost: Floats, sign: float, memory: float) -> tuple[int, float]:
    """`exchange_level` of load + sign · cost."""
    if load[0, 1] + sign * cost[0, 1] > memory:
        return 0, 0.0
    level, last = 0, len(load) - 1
    high = last
    while level < high:
        middle = (level + high + 1) // 2
        if load[middle, 1] + sign * cost[middle, 1] > memory:
            high = middle - 1
        else:
            level = middle
    if level == last:
        return last, 0.0
    here = load[level, 1] + sign * cost[level, 1]
    return level, (memory - here) / (load[level + 1, 1] + sign * cost[level + 1, 1] - here)


@inlined
def _energy(
    problem: Problem, d: int, load: Floats, cost: Floats, sign: float, net: tuple[float, float, float, float]
) -> float:
    """What a device is over capacity with load + sign · cost and this network port."""
    capacity = problem.capacity[d]
    level, share = _level(load, cost, sign, capacity[1] - net[2])
    share *= problem.mixes[d]
    energy = 0.0
    for r in range(4):
        use = load[level, r] + sign * cost[level, r]
        if share > 0.0:
            use += share * (load[level + 1, r] + sign * cost[level + 1, r] - use)
        if r == 1 or r == 2:
            use += net[r + 1]
        if r != 1 or level == 0:
            energy += _over(use, capacity[r], WEIGHTS[r])
    energy += _over(net[0], capacity[4], WEIGHTS[4])
    energy += _over(net[1], capacity[5], WEIGHTS[5])
    return energy


@inlined
def _device_energy(problem: Problem, state: State, d: int) -> float:
    net = state.net[d]
    m20k, alm = net[2], net[3]
    if problem.port.shape[1] > 0:
        blocks = problem.port[d, state.peers[d]]
        m20k, alm = m20k + blocks[0], alm + blocks[1]
    return _energy(problem, d, state.load[d], state.load[d], 0.0, (net[0], net[1], m20k, alm))


@inlined
def _energy_of(problem: Problem, state: State, n: int) -> float:
    """Of a device, or of the wire that stands behind all devices."""
    devices = len(problem.part)
    if n < devices:
        energy: float = _device_energy(problem, state, n)
        return energy
    return _over(state.carries[n - devices], problem.wire_capacity[n - devices], WIRE_WEIGHT)


@inlined
def _port(
    problem: Problem, net: tuple[float, float, float, float], link: int, side: int, sign: float
) -> tuple[float, float, float, float]:
    """A network port with one end of a link more or less."""
    loads = problem.link_loads[link, side]
    return (
        net[0] + sign * loads[0], net[1] + sign * loads[1], net[2] + sign * loads[2], net[3] + sign * loads[3]
    )  # fmt: skip


@inlined
def _touch(state: State, d: int) -> None:
    """Remember the energy of a device, or of a wire behind them, before the move."""
    if state.stamp[d] != state.count[1]:
        state.stamp[d] = state.count[1]
        n = state.count[2]
        state.count[2] = n + 1
        state.touched[n] = d
        state.before[d] = state.energy[d]


@inlined
def _end(problem: Problem, state: State, d: int, link: int, side: int, sign: float) -> None:
    """One end of a link that is cut is on this device (side 0: sends), or, with sign -1, no longer."""
    for k in range(4):
        state.net[d, k] += sign * problem.link_loads[link, side, k]


@inlined
def _meet(state: State, d: int, other: int, change: int) -> None:
    """A link more or less between two devices: whether they are peers."""
    before = state.between[d, other]
    state.between[d, other] = state.between[other, d] = before + change
    if before == 0 or before + change == 0:
        _touch(state, d)
        _touch(state, other)
        state.peers[d] += change
        state.peers[other] += change


@inlined
def _carry(problem: Problem, state: State, link: int, a: int, b: int, sign: float) -> None:
    """The words of a link go from one device to another over wires, and its credits back, or, with sign -1, no
    longer."""
    for side in range(2):
        at, target = (a, b) if side == 0 else (b, a)
        bits = sign * problem.link_loads[link, side, 0]
        while bits != 0.0 and at != target:
            wire = problem.next_wire[at, target]
            _touch(state, len(problem.part) + wire)
            state.carries[wire] += bits
            at = problem.wire_target[wire]


@inlined
def _shift(problem: Problem, state: State, u: int, d: int) -> None:
    """Move a unit to a device: its costs, its links' loads, and the cycles through links that are cut or joined."""
    old = state.device[u]
    _touch(state, old)
    _touch(state, d)
    p, q = problem.part[old], problem.part[d]
    for level in range(state.load.shape[1]):
        for r in range(4):
            state.load[old, level, r] -= state.cost[u, p, level, r]
            state.load[d, level, r] += state.cost[u, q, level, r]
    for k in range(problem.unit_link_start[u], problem.unit_link_start[u + 1]):
        link = problem.unit_link_list[k]
        sends = problem.link_a[link] == u
        other = state.device[problem.link_b[link] if sends else problem.link_a[link]]
        mine = 0 if sends else 1
        # a third device sends or receives the same as before
        if other != old:
            _end(problem, state, old, link, mine, -1.0)
        else:
            _end(problem, state, other, link, 1 - mine, 1.0)
        if other != d:
            _end(problem, state, d, link, mine, 1.0)
        else:
            _end(problem, state, other, link, 1 - mine, -1.0)
        if sends:
            bend = problem.distance[d, other] - problem.distance[old, other]
        else:
            bend = problem.distance[other, d] - problem.distance[other, old]
        if bend != 0:
            _bend(problem, state, link, bend)
        if len(problem.wire_target) > 0:
            _carry(problem, state, link, old if sends else other, other if sends else old, -1.0)
            _carry(problem, state, link, d if sends else other, other if sends else d, 1.0)
        if problem.port.shape[1] > 0:
            if other != old:
                _meet(state, old, other, -1)
            if other != d:
                _meet(state, d, other, 1)
    state.device[u] = d


@inlined
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
                for level in range(state.load.shape[1]):
                    for r in range(4):
                        state.cost[u, p, level, r] += sign * problem.costs[row, level, r]
                        if p == problem.part[d]:
                            state.load[d, level, r] += sign * problem.costs[row, level, r]
    state.tile[g] = tile


@inlined
def _below(n: int) -> int:
    return int(np.random.random() * n)


@inlined
def _within(longest: int, reach: float) -> int:
    """The longest move while this share of the cooling is left: far ones come early."""
    return max(1, int(longest * reach))


@inlined
def _wish(wish: Ints, n: int, u: int, d: int) -> int:
    """Write down a wanted move of unit u to device d; the new number of wishes."""
    if n < len(wish):
        wish[n, 0], wish[n, 1] = u, d
        return n + 1
    return n


@inlined
def _neighbour(problem: Problem, device: Ints, u: int) -> int:
    """A device to move a unit to: mostly that of a unit it has a link with, else any."""
    degree = problem.unit_link_start[u + 1] - problem.unit_link_start[u]
    if degree > 0 and np.random.random() < (0.3 if len(problem.part) <= 16 else 0.7):
        link = problem.unit_link_list[problem.unit_link_start[u] + _below(degree)]
        near: int = device[problem.link_b[link] if problem.link_a[link] == u else problem.link_a[link]]
        return near
    return _below(len(problem.part))


@inlined
def _propose_units(problem: Problem, device: Ints, wish: Ints, r: float) -> int:
    """One or two units: to a neighbour's device, exchanged, or pulled together along a link."""
    u = problem.free[_below(len(problem.free))]
    if r < 0.28:
        return _wish(wish, 0, u, _neighbour(problem, device, u))
    if r < 0.46:
        v = problem.free[_below(len(problem.free))]
        if len(problem.part) > 16 and np.random.random() < 0.5:
            v = min(len(problem.pin) - 1, max(0, u + _below(41) - 20))
        if device[u] == device[v]:
            return 0
        return _wish(wish, _wish(wish, 0, u, device[v]), v, device[u])
    if len(problem.free_links) == 0:
        return 0
    link = problem.free_links[_below(len(problem.free_links))]
    a, b = problem.link_a[link], problem.link_b[link]
    if np.random.random() < 0.5:
        return _wish(wish, 0, a, device[b])
    return _wish(wish, 0, b, device[a])


@inlined
def _propose_stretch(problem: Problem, device: Ints, wish: Ints, r: float, reach: float) -> int:
    """A stretch of the stream: units follow one to its device, go to another, or two devices exchange them."""
    line, n = len(problem.line), 0
    at = _below(line)
    d = device[problem.line[at]]
    if r < 0.12 / 0.25:
        length = 1 + _below(3 if np.random.random() < 0.5 else _within(12, reach))
        step = 1 if np.random.random() < 0.5 else -1
        for k in range(1, length + 1):
            if 0 <= at + step * k < line:
                n = _wish(wish, n, problem.line[at + step * k], d)
        return n
    other = _neighbour(problem, device, problem.line[at])
    if r < 0.21 / 0.25:
        for k in range(at, min(line, at + 1 + _below(4 if np.random.random() < 0.5 else _within(16, reach)))):
            n = _wish(wish, n, problem.line[k], other)
        return n
    return _propose_exchange(device, wish, problem.line, at, min(line, at + 2 + _below(_within(20, reach))), d, other)


@inlined
def _propose_layers(problem: Problem, device: Ints, wish: Ints, r: float, reach: float) -> int:
    """A few layers, engines of all directions, to a neighbouring layer's or any device; or an exchange of them."""
    layers, n = len(problem.layer_start) - 1, 0
    at = _below(layers)
    begin = problem.layer_start[at]
    if r < 0.12:
        end = min(layers, at + 2 + _below(_within(layers // 2, reach)))
        d = device[problem.layer_list[begin]]
        return _propose_exchange(
            device, wish, problem.layer_list, begin, problem.layer_start[end], d, _below(len(problem.part))
        )
    end = min(layers, at + 1 + _below(2 if np.random.random() < 0.6 else _within(8, reach)))
    d = _below(len(problem.part))
    if np.random.random() < (0.6 if len(problem.part) <= 16 else 0.85):
        near = max(0, at - 1) if np.random.random() < 0.5 else min(layers - 1, end)
        first = problem.layer_start[near]
        d = device[problem.layer_list[first + _below(problem.layer_start[near + 1] - first)]]
    for k in range(begin, problem.layer_start[end]):
        n = _wish(wish, n, problem.layer_list[k], d)
    return n


@inlined
def _propose_exchange(device: Ints, wish: Ints, units: Ints, begin: int, end: int, d: int, other: int) -> int:
    """Two devices exchange what they have among `units` from `begin` to `end`."""
    n = 0
    for k in range(begin, end):
        u = units[k]
        if device[u] == d:
            n = _wish(wish, n, u, other)
        elif device[u] == other:
            n = _wish(wish, n, u, d)
    return n


@inlined
def _propose(problem: Problem, device: Ints, wish: Ints, reach: float) -> int:
    """Wish for one random change: rows (unit, device) of `wish`; how many."""
    r = np.random.random()
    if r < 0.62:
        return _propose_units(problem, device, wish, r / 0.62)
    if r < 0.87:
        return _propose_stretch(problem, device, wish, (r - 0.62) / 0.25, reach)
    return _propose_layers(problem, device, wish, (r - 0.87) / 0.13, reach)


def _fresh(problem: Problem, device: Ints, tile: Ints) -> State:
    """The working arrays of a state."""
    parts, levels = problem.row_of.shape[1], problem.costs.shape[1]
    devices, units, wires = len(problem.part), len(problem.pin), len(problem.wire_target)
    state = State(
        device, tile, np.zeros((units, parts, levels, 4)), np.zeros((units, parts), dtype=np.int64),
        np.zeros((devices, levels, 4)), np.zeros((devices, 4)), np.zeros((devices, devices), dtype=np.int64),
        np.zeros(devices, dtype=np.int64), np.zeros(problem.cycles[0], dtype=np.int64),
        np.zeros(1, dtype=np.int64), np.zeros(wires), np.zeros(devices + wires), np.zeros(devices + wires),
        np.full(devices + wires, -1, dtype=np.int64), np.zeros(devices + wires, dtype=np.int64),
        np.zeros(3, dtype=np.int64),
        np.zeros((min(units, LONGEST_MOVE), 2), dtype=np.int64),
    )  # fmt: skip
    _fill(problem, state)
    return state


@kernel
def _fill(problem: Problem, state: State) -> None:
    """Add up what stands where, in arrays that are zero."""
    parts, levels = problem.row_of.shape[1], problem.costs.shape[1]
    for i in range(problem.row_of.shape[0]):
        u = problem.unit[i]
        slot = 0 if problem.group[i] < 0 else state.tile[problem.group[i]]
        for p in range(parts):
            row = problem.row_of[i, p, slot]
            if row < 0:
                state.blocked[u, p] += 1
                continue
            for level in range(levels):
                for r in range(4):
                    state.cost[u, p, level, r] += problem.costs[row, level, r]
    for u in range(len(problem.pin)):
        d = state.device[u]
        for level in range(levels):
            for r in range(4):
                state.load[d, level, r] += state.cost[u, problem.part[d], level, r]
    for k in range(len(problem.link_a)):
        a, b = state.device[problem.link_a[k]], state.device[problem.link_b[k]]
        if a != b:
            _end(problem, state, a, k, 0, 1.0)
            _end(problem, state, b, k, 1, 1.0)
            if problem.port.shape[1] > 0:
                _meet(state, a, b, 1)
            if len(problem.wire_target) > 0:
                _carry(problem, state, k, a, b, 1.0)
            for c in range(problem.cycle_start[k], problem.cycle_start[k + 1]):
                state.skew[problem.cycle_list[c]] += problem.distance[a, b] * problem.cycle_sign[c]
    for cycle in range(len(state.skew)):
        state.skews[0] += abs(state.skew[cycle])
    for n in range(len(state.energy)):
        state.energy[n] = _energy_of(problem, state, n)
    # no move has touched wires yet
    for n in range(len(problem.part), len(state.stamp)):
        state.stamp[n] = -1


@inlined
def _rise(problem: Problem, state: State, skews: int) -> float:
    """By how much the move raised the energy; the energies of devices and wires are brought up to date."""
    rise: float = HOP_ENERGY * (state.skews[0] - skews)
    for k in range(state.count[2]):
        d = state.touched[k]
        state.energy[d] = _energy_of(problem, state, d)
        rise += state.energy[d] - state.before[d]
    return rise


@inlined
def _restore(state: State) -> None:
    for k in range(state.count[2]):
        d = state.touched[k]
        state.energy[d] = state.before[d]


@inlined
def _try_units(problem: Problem, state: State, temperature: float, reach: float) -> float:
    """Move units at random; the rise in energy, 0 if the move was taken back or there was none."""
    wishes = _propose(problem, state.device, state.wish, reach)
    # where peers count, a move touches other devices than two, and on cables wires beside
    if wishes == 1 and problem.port.shape[1] == 0 and len(problem.wire_target) == 0:
        return _try_unit(problem, state, state.wish[0, 0], state.wish[0, 1], temperature)
    skews = state.skews[0]
    # granted wishes become (unit, where it was), so that going over them again takes them back
    granted = 0
    for n in range(wishes):
        u, d = state.wish[n, 0], state.wish[n, 1]
        pin = problem.pin[u]
        if d != state.device[u] and (pin < 0 or pin == d) and state.blocked[u, problem.part[d]] == 0:
            state.wish[granted, 0], state.wish[granted, 1] = u, d
            granted += 1
    for sweep in range(2):
        for n in range(granted):
            u, d = state.wish[n, 0], state.wish[n, 1]
            state.wish[n, 1] = state.device[u]
            _shift(problem, state, u, d)
        if granted == 0 or sweep == 1:
            break
        rise = _rise(problem, state, skews)
        if rise <= 0.0 or np.random.random() < np.exp(-rise / temperature):
            return rise
    _restore(state)
    return 0.0


@inlined
def _bend(problem: Problem, state: State, link: int, change: int) -> None:
    """A link is cut (1) or joined (−1), or has so many hops more on cables: the cycles through it."""
    for c in range(problem.cycle_start[link], problem.cycle_start[link + 1]):
        cycle = problem.cycle_list[c]
        skew = state.skew[cycle]
        after = skew + change * problem.cycle_sign[c]
        state.skew[cycle] = after
        state.skews[0] += abs(after) - abs(skew)


@inlined
def _try_unit(problem: Problem, state: State, u: int, d: int, temperature: float) -> float:
    """Move one unit, judged before anything but the skews is written; the rise in energy, 0 if it was not made."""
    pin, old = problem.pin[u], state.device[u]
    if d == old or (pin >= 0 and pin != d) or state.blocked[u, problem.part[d]] != 0:
        return 0.0
    skews = state.skews[0]
    left, here = state.net[old], state.net[d]
    from_net, to_net = (left[0], left[1], left[2], left[3]), (here[0], here[1], here[2], here[3])
    for k in range(problem.unit_link_start[u], problem.unit_link_start[u + 1]):
        link = problem.unit_link_list[k]
        sends = problem.link_a[link] == u
        other = state.device[problem.link_b[link] if sends else problem.link_a[link]]
        mine = 0 if sends else 1
        if other == old:
            from_net = _port(problem, from_net, link, 1 - mine, 1.0)
            to_net = _port(problem, to_net, link, mine, 1.0)
            _bend(problem, state, link, 1)
        elif other == d:
            from_net = _port(problem, from_net, link, mine, -1.0)
            to_net = _port(problem, to_net, link, 1 - mine, -1.0)
            _bend(problem, state, link, -1)
        else:
            from_net = _port(problem, from_net, link, mine, -1.0)
            to_net = _port(problem, to_net, link, mine, 1.0)
    less, more = state.cost[u, problem.part[old]], state.cost[u, problem.part[d]]
    from_energy = _energy(problem, old, state.load[old], less, -1.0, from_net)
    to_energy = _energy(problem, d, state.load[d], more, 1.0, to_net)
    rise: float = HOP_ENERGY * (state.skews[0] - skews)
    rise += from_energy - state.energy[old] + to_energy - state.energy[d]
    if rise <= 0.0 or np.random.random() < np.exp(-rise / temperature):
        for level in range(state.load.shape[1]):
            for r in range(4):
                state.load[old, level, r] -= less[level, r]
                state.load[d, level, r] += more[level, r]
        for k in range(4):
            state.net[old, k], state.net[d, k] = from_net[k], to_net[k]
        state.energy[old], state.energy[d] = from_energy, to_energy
        state.device[u] = d
        return rise
    if len(problem.cycle_list) > 0:
        for k in range(problem.unit_link_start[u], problem.unit_link_start[u + 1]):
            link = problem.unit_link_list[k]
            other = state.device[problem.link_b[link] if problem.link_a[link] == u else problem.link_a[link]]
            if other == old:
                _bend(problem, state, link, -1)
            elif other == d:
                _bend(problem, state, link, 1)
    return 0.0


@inlined
def _try_tile(problem: Problem, state: State, temperature: float) -> float:
    """Give a random group another tile; the rise in energy, 0 if that was taken back or impossible."""
    g = problem.free_groups[_below(len(problem.free_groups))]
    old, tile = state.tile[g], _below(problem.slots[g])
    if tile == old:
        return 0.0
    for k in range(problem.group_start[g], problem.group_start[g + 1]):
        item = problem.group_list[k]
        if problem.row_of[item, problem.part[state.device[problem.unit[item]]], tile] < 0:
            return 0.0
    _set_tile(problem, state, g, tile)
    rise = _rise(problem, state, state.skews[0])
    if rise <= 0.0 or np.random.random() < np.exp(-rise / temperature):
        return rise
    _set_tile(problem, state, g, old)
    _restore(state)
    return 0.0


@inlined
def _fits(state: State) -> bool:
    """Whether nothing is broken."""
    energy = 0.0
    for d in range(len(state.energy)):
        energy += state.energy[d]
    return state.skews[0] == 0 and energy <= 0.0


@kernel
def _anneal(problem: Problem, state: State, moves: int, seed: int, hottest: float, coldest: float, stop: Ints) -> float:
    """Anneal in place; the final energy, which is exactly 0 for a placement."""
    np.random.seed(seed)
    cooling = np.log(coldest / hottest)
    temperature, reach = hottest, 1.0
    for n in range(moves):
        if n % 256 == 0:
            if stop[0] or _fits(state):
                break
            temperature = hottest * np.exp(cooling * n / moves)
            reach = 1.0 - n / moves
        state.count[1], state.count[2] = n, 0
        if len(problem.free_groups) > 0 and np.random.random() < 0.05:
            rise = _try_tile(problem, state, temperature)
        else:
            rise = _try_units(problem, state, temperature, reach)
        if rise < 0.0 and _fits(state):
            break
    energy: float = HOP_ENERGY * state.skews[0]
    for d in range(len(state.energy)):
        energy += state.energy[d]
    return energy
