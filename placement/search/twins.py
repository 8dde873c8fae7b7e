"""Copies of a whole network, each on devices of its own: where chains of all copies may start.

Twice the devices hold the same pipeline twice, with half of the frames each.  A chain that moves a few of thousands of
items at a time hardly gets there.  So the first copies are placed on their part of the devices, as if there were no
others, and all copies start as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from placement.annealing.heuristic import Annealer
from placement.problem.deadline import Deadline
from placement.problem.flat import flatten
from placement.problem.instance import Device, Instance
from placement.problem.plan import Assignment
from placement.problem.settings import SearchOptions


@dataclass(frozen=True)
class Twins:
    """An instance with copies, and the part of it that the first ones are."""

    # of all copies, and of the first ones on their devices, with all that there are no copies of
    instance: Instance
    first: Instance
    annealer: Annealer
    # item of the instance -> the one of the first copies that stands for it, and which copy it is
    like: tuple[tuple[int, int], ...]
    # copy -> device of the first copies -> the device that stands for it
    devices: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, instance: Instance, options: SearchOptions) -> Self | None:
        """None without copies, or where not all have like devices of their own: over cables none are alike."""
        groups = like_groups(instance.devices, max((len(names) for names in options.copies), default=1))
        if len(groups) < 2 or instance.cables:
            return None
        stands_for = {name: names for names in options.copies for name in names if name}
        numbers = {name: number for names in options.copies for number, name in enumerate(names)}
        firsts = {item.name: _first(stands_for.get(item.name, (item.name,))) for item in instance.items}
        kept = set(firsts.values())
        own = {instance.devices[at].name for at in groups[0]}
        items = tuple(item for item in instance.items if item.name in kept)
        if any(item.pinned is not None and item.pinned not in own for item in instance.items):
            return None
        first = replace(
            instance,
            items=items,
            links=tuple(link for link in instance.links if link.source in kept and link.target in kept),
            devices=tuple(instance.devices[at] for at in groups[0]),
            exchanges=tuple(exchange for exchange in instance.exchanges if exchange.item in kept),
        )
        annealer = Annealer(first, flatten(first), seed=options.seed, workers=options.workers)
        like = tuple((first.item_index[firsts[item.name]], numbers.get(item.name, 0)) for item in instance.items)
        return cls(instance, first, annealer, like, groups)

    def placed(self, cycles: int, moves: int, deadline: Deadline) -> Assignment | None:
        """All copies at T as a chain of so many moves places the first ones, which need not fit; None if it doesn't."""
        with deadline.ending(self.annealer.end):
            found = self.annealer.attempt(cycles, moves, None)
        if found is None:
            return None
        devices = tuple(self.devices[copy][found.devices[first]] for first, copy in self.like)
        return Assignment(devices, tuple(found.configurations[first] for first, _ in self.like))


def _first(names: Sequence[str]) -> str:
    return next(name for name in names if name)


def like_groups(devices: Sequence[Device], count: int) -> tuple[tuple[int, ...], ...]:
    """So many groups of devices (positions) with equally many of each shape, in the same order, as large as can be;
    none where that is none."""
    shapes: dict[object, list[int]] = {}
    for position, device in enumerate(devices):
        shapes.setdefault(device.shape, []).append(position)
    sizes: Mapping[object, int] = {shape: len(found) // count for shape, found in shapes.items()}
    if not any(sizes.values()):
        return ()
    return tuple(
        tuple(at for shape, found in shapes.items() for at in found[copy * sizes[shape] : (copy + 1) * sizes[shape]])
        for copy in range(count)
    )
