"""Chooses a configuration for every item of a state that the annealing calls a placement.

The annealing lets every device mix two neighbouring exchange rates between M20K and DRAM; here each item gets one
configuration. On each device: the items that differ between the two rates change to the next one, those that save the
most DRAM for an M20K first, as long as M20K are left; if that rounds badly, CP-SAT decides the device exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from placement.annealing.anneal import exchange_level
from placement.annealing.encode import Encoded, Start
from placement.exact.model import Effort, solve
from placement.problem.flat import Flat, Ints
from placement.problem.instance import Instance
from placement.problem.plan import Assignment

# deterministic seconds of CP-SAT for one device
SETTLE_SECONDS = 0.5


def settle(encoded: Encoded, instance: Instance, state: Start, seed: int = 0) -> Assignment | list[int]:
    """The assignment of a state, with configurations that fit every device at T; else the devices for which there are
    none (found within its effort)."""
    problem = encoded.problem
    device_of = state.device[problem.unit]
    tile_of = np.where(problem.group >= 0, state.tile[problem.group], 0) if len(state.tile) else 0 * problem.group
    rows = problem.row_of[np.arange(len(problem.unit)), problem.part[device_of], tile_of]
    chosen = np.full(len(problem.unit), -1, dtype=np.int64)
    room = _room(instance, [int(d) for d in device_of], encoded.cycles_per_frame)
    full = []
    for d, limits in enumerate(room):
        items = np.flatnonzero(device_of == d)
        picks = _round(encoded, rows[items], limits)
        if picks is None:
            picks = _decide(encoded, rows[items], items, int(problem.part[d]), limits, seed)
        if picks is None:
            full.append(d)
        else:
            chosen[items] = encoded.flat.position[picks]
    return full or Assignment(tuple(int(d) for d in device_of), tuple(int(k) for k in chosen))


def _room(instance: Instance, places: Sequence[int], cycles: int) -> list[Ints]:
    """DSP, M20K, ALM and DRAM bytes a frame at T that every device has for items, its network port taken off."""
    room = [
        np.array(
            [*device.capacities, min(2**53, device.dram_bytes_per_s * cycles // instance.clock_hz)], dtype=np.int64
        )
        for device in instance.devices
    ]
    peers: list[set[int]] = [set() for _ in room]
    for link in instance.links:
        ends = [places[instance.item_index[name]] for name in (link.source, link.target)]
        if ends[0] != ends[1]:
            for d, other, blocks in zip(ends, reversed(ends), link.ends, strict=True):
                room[d][1:3] -= blocks
                peers[d].add(other)
    for left, met, device in zip(room, peers, instance.devices, strict=True):
        left[1:3] -= device.port_blocks(len(met))
    return room


def _round(encoded: Encoded, rows: Ints, limits: Ints) -> Ints | None:
    """Rows of Flat for the items of one device by greedy rounding; None if they do not fit."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    menu, costs = encoded.menu, encoded.flat.costs
    level, share = exchange_level(menu.costs[rows].sum(axis=0), float(limits[1]))
    picks: Ints = menu.picks[rows, level].copy()
    if share > 0.0:
        after = menu.picks[rows, level + 1]
        gain = costs[picks, 3] - costs[after, 3]
        price = np.maximum(costs[after, 1] - costs[picks, 1], 0)
        for k in np.argsort(-gain / (price + 1e-9), kind="stable"):
            if gain[k] > 0 and costs[picks, 1].sum() + price[k] <= limits[1]:
                picks[k] = after[k]
    return picks if bool((costs[picks].sum(axis=0) <= limits).all()) else None


def _decide(encoded: Encoded, rows: Ints, items: Ints, part: int, limits: Ints, seed: int) -> Ints | None:
    """The same by CP-SAT over all usable configurations of the tiles chosen."""
    flat = encoded.flat
    model = cp_model.CpModel()
    use: list[list[tuple[int, cp_model.IntVar]]] = [[] for _ in range(4)]
    picks: list[tuple[int, int, cp_model.IntVar]] = []
    for slot, (row, item) in enumerate(zip(rows, items, strict=True)):
        tile = flat.tile[encoded.menu.picks[row, 0]]
        at = int(item) * len(flat.parts) + part
        here_rows = [k for k in range(int(flat.start[at]), int(flat.start[at + 1])) if flat.tile[k] == tile]
        offered = undominated(flat, here_rows, encoded.cycles_per_frame)
        here = [model.new_bool_var("") for _ in offered]
        model.add_exactly_one(here)
        for k, pick in zip(offered, here, strict=True):
            picks.append((slot, k, pick))
            for r in range(4):
                if flat.costs[k, r]:
                    use[r].append((int(flat.costs[k, r]), pick))
    for r in range(4):
        model.add(sum(cost * pick for cost, pick in use[r]) <= int(limits[r]))
    solver, status = solve(model, Effort(deterministic_seconds=SETTLE_SECONDS, seed=seed, workers=1))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    chosen = np.zeros(len(rows), dtype=np.int64)
    for slot, k, pick in picks:
        if solver.value(pick):
            chosen[slot] = k
    return chosen


def undominated(flat: Flat, offered: list[int], cycles: int) -> list[int]:
    """Rows of Flat usable at T that no other one beats or equals in all costs; of equals the first."""
    usable = sorted((k for k in offered if flat.cycles[k] <= cycles), key=lambda k: tuple(flat.costs[k]))
    kept: list[int] = []
    for k in usable:
        if not any(bool((flat.costs[other] <= flat.costs[k]).all()) for other in kept):
            kept.append(k)
    return kept


def cheapest_on_devices(instance: Instance, flat: Flat, assignment: Assignment, cycles: int, seed: int) -> Assignment:
    """The same devices and tiles with the configurations that take the smallest sum of shares of each device's DSP,
    M20K, ALM and DRAM at T, device by device; as they were where CP-SAT finds none better."""
    chosen = list(assignment.configurations)
    for d, limits in enumerate(_room(instance, assignment.devices, cycles)):
        items = [i for i, place in enumerate(assignment.devices) if place == d]
        if not items:
            continue
        part = flat.parts.index(instance.devices[d].part)
        for i, k in _cheapest_here(instance, flat, assignment, items, part, limits, cycles, seed).items():
            chosen[i] = k
    return Assignment(assignment.devices, tuple(chosen))


def _cheapest_here(
    instance: Instance, flat: Flat, assignment: Assignment, items: list[int], part: int, limits: Ints, cycles: int,
    seed: int,
) -> dict[int, int]:  # fmt: skip
    """Item → configuration on one device."""
    model = cp_model.CpModel()
    use: list[list[tuple[int, cp_model.IntVar]]] = [[] for _ in range(4)]
    picks: list[tuple[int, int, cp_model.IntVar]] = []
    terms = []
    for i in items:
        now = instance.configurations(i, assignment.devices[i])[assignment.configurations[i]]
        at = i * len(flat.parts) + part
        offered = [
            k
            for k in range(int(flat.start[at]), int(flat.start[at + 1]))
            if instance.items[i].configurations[flat.parts[part]][int(flat.position[k])].tile == now.tile
        ]
        here = []
        for k in undominated(flat, offered, cycles):
            pick = model.new_bool_var("")
            here.append(pick)
            picks.append((i, int(flat.position[k]), pick))
            model.add_hint(pick, int(flat.position[k] == assignment.configurations[i]))
            # in millionths of the device, so that coefficients are integers
            shares = (flat.costs[k].astype(object) * 1_000_000 // np.maximum(limits, 1)).sum()
            terms.append(min(int(shares), 10**9) * pick)
            for r in range(4):
                use[r].append((int(flat.costs[k, r]), pick))
        model.add_exactly_one(here)
    for r in range(4):
        model.add(sum(cost * pick for cost, pick in use[r]) <= int(limits[r]))
    model.minimize(sum(terms))
    solver, status = solve(model, Effort(deterministic_seconds=SETTLE_SECONDS, seed=seed, workers=1), hinted=True)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return {}
    return {i: k for i, k, pick in picks if solver.value(pick)}
