"""Proven bounds: cycles a frame below which no placement exists, by relaxations that CP-SAT refutes exactly.

Each relaxation drops constraints, so what is infeasible there is infeasible altogether, for its T and for every
smaller one (feasibility is monotone in T). Only INFEASIBLE counts: a solver that ran out of budget refutes nothing.
All arithmetic is integer, so a bound does not hang on floating-point tolerances.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ortools.sat.python import cp_model

from placement.instance import RESOURCES, Device, Instance
from placement.model import Answer, Effort, Family, build_model, decide, solve
from placement.options import OptionTable
from placement.plan import Bound

Refutes = Callable[[int], bool]


def resource_bound(instance: Instance, table: OptionTable, ceiling: int, effort: Effort) -> Bound:
    """Best of the bounds that look at resources only; links and hops are dropped.

    Args:
        table: the option table of `instance`.
        ceiling: a T to stop at; a bound of `ceiling + 1` says that T = ceiling itself is refuted.
        effort: budget of each single refutation.

    1. *single*: each item alone on the best device (pins kept): engines, blocks and DRAM.
    2. *merged*: all devices of a part melted into one, pins dropped, configurations and tiles kept.
    3. *packing*: items of equal least costs counted, counts packed into devices (blocks only).
    """
    single = max(
        (_single_item_cycles(instance, item, ceiling), instance.items[item].name) for item in range(len(instance.items))
    )
    best = Bound(max(1, single[0]), f"item {single[1]!r} alone needs {single[0]} cycles a frame on its best device")
    levels = table.levels()
    merged = merge_devices(instance)
    merged_table = OptionTable(merged)
    tests: tuple[tuple[Refutes, str], ...] = (
        (
            lambda cycles: _refuted_merged(merged, merged_table, cycles, effort),
            "all devices of a part merged into one; links, hops and pins dropped",
        ),
        (
            lambda cycles: _refuted_packing(instance, table, cycles, effort),
            "packing the least costs of every item into the devices; DRAM, links, hops, tiles and pins dropped",
        ),
    )
    for refutes, basis in tests:
        cycles = least_unrefuted(refutes, best.cycles_per_frame, ceiling, levels)
        if cycles > best.cycles_per_frame:
            best = Bound(cycles, f"{basis}: infeasible at {cycles - 1} cycles a frame")
    return best


def least_unrefuted(refutes: Refutes, floor: int, ceiling: int, levels: list[int]) -> int:
    """One more than the largest T in [floor, ceiling] that was refuted (floor if none was).

    Looks at T = level − 1 first, for the levels where configurations change, and between two of them only if DRAM,
    whose demand changes with every T, leaves something to find there.
    """
    if floor > ceiling or not refutes(floor):
        return floor
    low, high = floor, ceiling + 1  # low is refuted, high is not (or lies outside)
    steps = [level for level in levels if floor < level <= ceiling]
    while steps:
        middle = steps[len(steps) // 2]
        if refutes(middle):
            low = middle
        else:
            high = middle
        steps = [level for level in steps if low < level < high]
    while high - low > 1:
        # from `low` to `high` no configuration changes: usually the last T before `high` is refuted as well
        probe = high - 1 if refutes(high - 1) else (low + high) // 2
        if probe == high - 1 or refutes(probe):
            low = probe
        else:
            high = probe
    return low + 1


def merge_devices(instance: Instance) -> Instance:
    """The relaxation in which all devices of a part are one device with their summed capacities, without links,
    pins and couplings."""
    parts = sorted({device.part for device in instance.devices})
    devices = []
    for part in parts:
        same = [device for device in instance.devices if device.part == part]
        devices.append(
            Device(
                name=part,
                part=part,
                dsp=sum(device.dsp for device in same),
                m20k=sum(device.m20k for device in same),
                alm=sum(device.alm for device in same),
                dram_bytes_per_s=sum(device.dram_bytes_per_s for device in same),
                link_bits_per_s=sum(device.link_bits_per_s for device in same),
            )
        )
    items = tuple(replace(item, pinned=None, same_device=None) for item in instance.items)
    return replace(instance, name=f"{instance.name} merged", devices=tuple(devices), items=items, links=())


def demand_at(instance: Instance, table: OptionTable, cycles_per_frame: int) -> dict[str, tuple[int, int]]:
    """Per resource: (the sum over items of the least each could need at T, what the whole cluster has)."""
    options = table.at(cycles_per_frame)
    demand = {}
    for r, resource in enumerate(RESOURCES):
        least = 0
        for i in range(len(instance.items)):
            costs = _least_costs(instance, options.by_part[i], i)
            least += min((cost[r] for cost in costs.values()), default=0)
        demand[resource] = (least, sum(getattr(device, resource) for device in instance.devices))
    return demand


def _refuted_merged(merged: Instance, table: OptionTable, cycles: int, effort: Effort) -> bool:
    options = table.at(cycles)
    if options.without_choice():
        return True
    model = build_model(merged, options, without=frozenset({Family.LINKS, Family.HOPS}))
    return decide(model, effort)[0] is Answer.INFEASIBLE


def _refuted_packing(instance: Instance, table: OptionTable, cycles: int, effort: Effort) -> bool:
    """Whether items, each at its least cost per resource and part, cannot be packed into the devices."""
    options = table.at(cycles)
    if options.without_choice():
        return True
    classes: Counter[tuple[tuple[str, tuple[int, ...]], ...]] = Counter()
    for i in range(len(instance.items)):
        costs = _least_costs(instance, options.by_part[i], i)
        if any(any(cost) for cost in costs.values()) or len(costs) < len({d.part for d in instance.devices}):
            classes[tuple(sorted(costs.items()))] += 1
    model = cp_model.CpModel()
    counts: dict[tuple[int, int], cp_model.IntVar] = {}
    menus = [dict(key) for key in classes]
    for c, (menu, total) in enumerate(zip(menus, classes.values(), strict=True)):
        for n, device in enumerate(instance.devices):
            counts[c, n] = model.new_int_var(0, total if device.part in menu else 0, "")
        model.add(sum(counts[c, n] for n in range(len(instance.devices))) == total)
    for n, device in enumerate(instance.devices):
        for r, capacity in enumerate(device.capacities):
            costs_here = [(menu[device.part][r], counts[c, n]) for c, menu in enumerate(menus) if device.part in menu]
            model.add(sum(cost * count for cost, count in costs_here) <= capacity)
    _order_by_load(instance, model, menus, counts)
    return bool(solve(model, effort)[1] == cp_model.INFEASIBLE)


def _order_by_load(
    instance: Instance,
    model: cp_model.CpModel,
    menus: list[dict[str, tuple[int, ...]]],
    counts: dict[tuple[int, int], cp_model.IntVar],
) -> None:
    """Redundant up to renaming: of equal devices an earlier one carries at least as many DSP blocks."""
    for n, device in enumerate(instance.devices):
        for later in range(n + 1, len(instance.devices)):
            if instance.devices[later].shape == device.shape:
                load = [
                    sum(menu[device.part][0] * counts[c, d] for c, menu in enumerate(menus) if device.part in menu)
                    for d in (n, later)
                ]
                model.add(load[0] >= load[1])
                break


def _least_costs(instance: Instance, by_part: dict[str, tuple[int, ...]], item: int) -> dict[str, tuple[int, ...]]:
    """Part → the least DSP, M20K and ALM (each for itself) of an item over its usable configurations."""
    offered = instance.items[item].configurations
    return {
        part: tuple(min(getattr(offered[part][k], resource) for k in usable) for resource in RESOURCES)
        for part, usable in by_part.items()
        if usable
    }


def _single_item_cycles(instance: Instance, index: int, ceiling: int) -> int:
    """Least T at which the item alone fits some device it may stand on; ceiling + 1 if there is none."""
    item = instance.items[index]
    best = ceiling + 1
    for n, device in enumerate(instance.devices):
        if item.pinned not in (None, device.name):
            continue
        offered = [
            c for c in instance.configurations(index, n)
            if all(getattr(c, resource) <= getattr(device, resource) for resource in RESOURCES)
            and (c.dram_bytes_per_frame == 0 or device.dram_bytes_per_s)
        ]  # fmt: skip
        for c in offered:
            stream = c.dram_bytes_per_frame * instance.clock_hz
            dram = -(-stream // device.dram_bytes_per_s) if stream else 0
            best = min(best, max(c.cycles_per_frame, dram))
    return best


def next_level_below(levels: list[int], cycles: int) -> int | None:
    """The largest level below T, where configurations are next faster; None if T is the smallest."""
    position = bisect_right(levels, cycles - 1)
    return levels[position - 1] if position else None
