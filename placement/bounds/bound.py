"""Proven bounds: cycles a frame below which no placement exists, by relaxations that are refuted exactly.

Each relaxation drops constraints, so what is infeasible there is infeasible altogether, for its T and for every
smaller one (feasibility is monotone in T). Only INFEASIBLE counts: a solver that ran out of budget refutes nothing.
All arithmetic is integer, so a bound does not hang on floating-point tolerances.

Cheapest first: `single_bound`, `aggregate_bound`, `placement.bounds.cases`, `placement.bounds.packing`,
`placement.bounds.cuts`, `placement.bounds.neighbourhood`, `placement.bounds.window`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence

from placement.bounds.aggregate import Aggregate
from placement.problem.instance import RESOURCES, Configuration, Instance
from placement.problem.options import OptionTable
from placement.problem.plan import Bound

Refutes = Callable[[int], bool]


def single_bound(instance: Instance, ceiling: int) -> Bound:
    """Each item alone on the best device (pins kept): engines, blocks and DRAM. `ceiling` + 1 says that some item fits
    no device at T = `ceiling` either."""
    cycles, name = max((cycles, name) for name, cycles in alone(instance, ceiling).items())
    return Bound(max(1, cycles), f"item {name!r} alone needs {cycles} cycles a frame on its best device")


def alone(instance: Instance, ceiling: int) -> dict[str, int]:
    """Item -> cycles a frame that it needs with the best device to itself; `ceiling` + 1 where that is not
    enough."""
    return {item.name: _single_item_cycles(instance, index, ceiling) for index, item in enumerate(instance.items)}


def aggregate_bound(aggregate: Aggregate, bound: Bound, ceiling: int) -> Bound:
    """The bound raised to the least T that `placement.bounds.aggregate` cannot refute, at most `ceiling` + 1."""
    cycles = bisect_unrefuted(lambda t: aggregate.refute(t) is not None, bound.cycles_per_frame, ceiling)
    if cycles == bound.cycles_per_frame:
        return bound
    basis = "all devices of a part merged into one; links, hops and pins to a device dropped"
    return Bound(cycles, f"{basis}: infeasible at {cycles - 1} cycles a frame")


def bisect_unrefuted(refutes: Refutes, floor: int, ceiling: int) -> int:
    """The least T in [floor, ceiling] that is not refuted, by bisection; ceiling + 1 if all are. Where `refutes` is
    not monotone (budgets), one more than some refuted T."""
    low, high = floor, ceiling + 1
    # most bounds lie close to the floor: gallop first
    step = max(1, floor // 64)
    while low < high:
        probe = min(low + step - 1, high - 1)
        if not refutes(probe):
            high = probe
            break
        low, step = probe + 1, step * 4
    while low < high:
        middle = (low + high) // 2
        if refutes(middle):
            low = middle + 1
        else:
            high = middle
    return low


def least_unrefuted(refutes: Refutes, floor: int, ceiling: int, levels: Sequence[int]) -> int:
    """One more than the largest T in [floor, ceiling] that was refuted (floor if none was), trying few values.

    Looks at T = level − 1 for the levels where configurations change, largest steps first: bisection over the levels,
    then just below the one that could not be refuted.
    """
    if floor > ceiling or not refutes(floor):
        return floor
    low, high = floor, ceiling + 1  # low is refuted, high is not (or lies outside)
    steps = [level - 1 for level in levels if floor < level - 1 <= ceiling]
    while steps:
        middle = steps[len(steps) // 2]
        if refutes(middle):
            low = middle
        else:
            high = middle
        steps = [level for level in steps if low < level < high]
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low + 1


def demand_at(instance: Instance, table: OptionTable, cycles_per_frame: int) -> dict[str, tuple[int, int]]:
    """Per resource: (the sum over items of the least each could need at T, what the whole cluster has)."""
    options = table.at(cycles_per_frame)
    demand = {}
    for r, resource in enumerate(RESOURCES):
        least = 0
        for i in range(len(instance.items)):
            costs = least_costs(instance, options.by_part[i], i)
            least += min((cost[r] for cost in costs.values()), default=0)
        demand[resource] = (least, sum(getattr(device, resource) for device in instance.devices))
    return demand


def least_costs(instance: Instance, by_part: dict[str, tuple[int, ...]], item: int) -> dict[str, tuple[int, ...]]:
    """Part → the least DSP, M20K and ALM (each for itself) of an item over its usable configurations."""
    offered = instance.items[item].configurations
    return {
        part: tuple(min(getattr(offered[part][k], resource) for k in usable) for resource in RESOURCES)
        for part, usable in by_part.items()
        if usable
    }


def paces_on(instance: Instance, index: int, number: int) -> Iterator[tuple[Configuration, int]]:
    """Configurations of an item that fit a device by themselves, each with the cycles a frame that it needs there: of
    engines and of DRAM.  Empty where the item may not stand there."""
    item, device = instance.items[index], instance.devices[number]
    if item.pinned not in (None, device.name):
        return
    for c in instance.configurations(index, number):
        if c.dsp > device.dsp or c.m20k > device.m20k or c.alm > device.alm:
            continue
        # what goes through the fullest channel, at least: an equal part of all, and all of the largest stream
        fullest = max(c.dram_bytes_per_frame, device.dram_channels * max(c.streams, default=0))
        stream = fullest * instance.clock_hz
        if not stream:
            yield c, c.cycles_per_frame
        elif device.dram_bytes_per_s:
            yield c, max(c.cycles_per_frame, -(-stream // device.dram_bytes_per_s))


def _single_item_cycles(instance: Instance, index: int, ceiling: int) -> int:
    """Least T at which the item alone fits some device it may stand on; ceiling + 1 if there is none."""
    # one device of each shape speaks for all where the item may stand
    shapes: dict[Hashable, int] = {}
    for n, device in enumerate(instance.devices):
        if instance.items[index].pinned in (None, device.name):
            shapes.setdefault(device.shape, n)
    paces = (cycles for n in shapes.values() for _, cycles in paces_on(instance, index, n))
    return min((*paces, ceiling + 1))


def next_level_below(levels: Sequence[int], cycles: int) -> int | None:
    """The largest level below T, where configurations are next faster; None if T is the smallest."""
    position = bisect_right(levels, cycles - 1)
    return levels[position - 1] if position else None
