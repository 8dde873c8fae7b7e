"""The bound by cases: wherever the largest items stand, the rest does not fit.

An item that takes most of a device leaves a remainder that the aggregate bound, with all devices melted together, hands
to everyone: DRAM bandwidth beside memory that is full is of little use. So the largest items are put on devices, one
after another, and a device that holds one is a pool of its own in `placement.bounds.aggregate`. T is impossible if
every way of putting them is refuted. Equal devices that hold none yet are one case, on cables too: where a device
stands is dropped with links and hops.
"""

from __future__ import annotations

from collections.abc import Mapping

from placement.annealing.encode import contract
from placement.bounds.aggregate import Aggregate
from placement.bounds.packing import unit_sizes
from placement.problem.flat import Flat, part_limits
from placement.problem.instance import Instance

# an item is put on devices if it takes at least this share of every device's DSP blocks, M20K or ALMs …
LARGE_SHARE = 0.25
# … at most so many of them, the largest first, and so many cases for one T
MOST_LARGE, MOST_CASES = 6, 60


def refuted_by_cases(instance: Instance, flat: Flat, cycles: int) -> bool:
    """Whether T is proven impossible wherever the largest items stand."""
    units = contract(instance, cycles, None)
    if units is None:
        return True
    return _Cases(instance, flat, units, cycles).refuted({}, 0)


class _Cases:
    """The cases at one T."""

    def __init__(self, instance: Instance, flat: Flat, units: list[int], cycles: int) -> None:
        self.instance, self.flat, self.cycles = instance, flat, cycles
        limits = part_limits(instance, flat, cycles)
        share: dict[int, float] = {}
        for unit, size in enumerate(unit_sizes(flat, units, limits, cycles)):
            shares = [
                max(costs[r] / max(1, limits[p, r]) for r in range(3))
                for p, costs in enumerate(size)
                if costs is not None
            ]
            # what fits no device is refuted by any case
            share[unit] = min(shares, default=2.0)
        ranked = sorted((unit for unit in share if share[unit] >= LARGE_SHARE), key=lambda unit: (-share[unit], unit))
        members: dict[int, list[int]] = {unit: [] for unit in ranked[:MOST_LARGE]}
        for i, unit in enumerate(units):
            if unit in members:
                members[unit].append(i)
        self.large = list(members.values())
        self.left = MOST_CASES

    def refuted(self, apart: Mapping[int, int], placed: int) -> bool:
        """Whether nothing fits with the first so many large items on their devices (item → device)."""
        self.left -= 1
        if Aggregate(self.instance, self.flat, apart).refute(self.cycles) is not None:
            return True
        if placed == len(self.large):
            return False
        items = self.large[placed]
        return all(
            self.left > 0 and self.refuted({**apart, **dict.fromkeys(items, device)}, placed + 1)
            for device in self._homes(items, apart)
        )

    def _homes(self, items: list[int], apart: Mapping[int, int]) -> list[int]:
        """Devices for these items: all that hold a large one, and of the others one of each sort."""
        pins = {self.instance.items[i].pinned for i in items} - {None}
        used, pinned = set(apart.values()), {item.pinned for item in self.instance.items}
        sorts: dict[object, int] = {}
        for n, device in enumerate(self.instance.devices):
            if not pins or pins == {device.name}:
                # a device that items are pinned to is like no other
                known = device.name if n in used or device.name in pinned else device.shape
                sorts.setdefault(known, n)
        return list(sorts.values())
