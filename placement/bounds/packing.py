"""The packing bound: items of equal least costs are counted, and the counts packed into the devices.

Dropped are DRAM, links (but for those that nothing can carry: their ends are one item), hops, tiles and pins, and each
resource takes its least configuration for itself. Large items keep their size; small ones are poured like sand. What is
left says whether, say, two engines of 761 DSP blocks can share a device of 1 518.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from ortools.sat.python import cp_model

from placement.annealing.encode import contract
from placement.exact.model import Effort, solve
from placement.problem.flat import Flat, Ints, part_limits
from placement.problem.instance import Instance

# an item is large if it takes at least this share of the smallest device's DSP blocks, M20K or ALMs
LARGE_SHARE = 0.1
# more classes of large items than this are not packed: the smallest become sand
MOST_CLASSES = 40

Size = tuple[tuple[int, int, int] | None, ...]


def refuted_packing(instance: Instance, flat: Flat, cycles: int, effort: Effort) -> bool:
    """Whether the packing is proven impossible at T."""
    units = contract(instance, cycles, None)
    if units is None:
        return True
    sizes = unit_sizes(flat, units, part_limits(instance, flat, cycles), cycles)
    if any(not any(size) for size in sizes):
        return True
    large, sand = _split(instance, sizes)
    model = cp_model.CpModel()
    places: dict[tuple[int, int], cp_model.IntVar] = {}
    for c, (size, total) in enumerate(large):
        for n, device in enumerate(instance.devices):
            fits = size[flat.parts.index(device.part)] is not None
            places[c, n] = model.new_int_var(0, total if fits else 0, "")
        model.add(sum(places[c, n] for n in range(len(instance.devices))) == total)
    for r in range(3):
        poured = []
        for n, device in enumerate(instance.devices):
            part = flat.parts.index(device.part)
            used = sum((size[part] or (0, 0, 0))[r] * places[c, n] for c, (size, _) in enumerate(large))
            poured.append(model.new_int_var(0, device.capacities[r], ""))
            model.add(used + poured[n] <= device.capacities[r])
        model.add(sum(poured) >= sand[r])
    _order_by_load(instance, flat, model, large, places)
    return bool(solve(model, effort)[1] == cp_model.INFEASIBLE)


def unit_sizes(flat: Flat, units: list[int], limits: Ints, cycles: int) -> list[Size]:
    """Per unit and part: the least DSP, M20K and ALM, each for itself; None where some item cannot be built."""
    parts = len(flat.parts)
    sums = np.zeros((max(units) + 1, parts, 3), dtype=np.int64)
    builds = np.ones((max(units) + 1, parts), dtype=bool)
    for i, unit in enumerate(units):
        for p in range(parts):
            rows = slice(int(flat.start[i * parts + p]), int(flat.start[i * parts + p + 1]))
            usable = (flat.cycles[rows] <= cycles) & (flat.costs[rows] <= limits[p]).all(axis=1)
            if usable.any():
                sums[unit, p] += flat.costs[rows][usable][:, :3].min(axis=0)
            else:
                builds[unit, p] = False
    builds &= (sums <= limits[None, :, :3]).all(axis=2)
    return [
        tuple(tuple(int(x) for x in sums[unit, p]) if builds[unit, p] else None for p in range(parts))  # type: ignore[misc]
        for unit in range(len(sums))
    ]


def _split(instance: Instance, sizes: list[Size]) -> tuple[list[tuple[Size, int]], tuple[int, int, int]]:
    """(large sizes with their counts, largest first; the sum of the rest, each at its least over parts)."""
    used = [device for device in instance.devices if any(device.capacities)] or instance.devices
    least = [max(1, min(device.capacities[r] for device in used)) for r in range(3)]

    def share(size: Size) -> float:
        return max(max(costs[r] / least[r] for r in range(3)) for costs in size if costs is not None)

    counts = Counter(size for size in sizes if share(size) >= LARGE_SHARE or None in size)
    ranked = sorted(counts.items(), key=lambda entry: (-share(entry[0]), str(entry[0])))
    large = ranked[:MOST_CLASSES]
    kept = {size for size, _ in large}
    rest = [size for size in sizes if size not in kept]
    sand = tuple(sum(min(costs[r] for costs in size if costs is not None) for size in rest) for r in range(3))
    return large, (sand[0], sand[1], sand[2])


def _order_by_load(
    instance: Instance, flat: Flat, model: cp_model.CpModel, large: list[tuple[Size, int]],
    places: dict[tuple[int, int], cp_model.IntVar],
) -> None:  # fmt: skip
    """Redundant up to renaming: of equal devices an earlier one carries at least as many DSP blocks of large items.  On
    cables too, for where a device stands is dropped."""
    latest: dict[object, int] = {}
    for n, device in enumerate(instance.devices):
        earlier = latest.get(device.shape)
        if earlier is not None:
            part = flat.parts.index(device.part)
            load = [
                sum((size[part] or (0, 0, 0))[0] * places[c, d] for c, (size, _) in enumerate(large))
                for d in (earlier, n)
            ]
            model.add(load[0] >= load[1])
        latest[device.shape] = n
