"""Restrictions that come with a search and not with the instance: items kept together, devices left empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hdl.errors import DagtrainError, InfeasibleError
from placement.problem.instance import RESOURCES, Device, Instance, Item
from placement.problem.plan import Assignment

# of every resource of a device, what items that are alike may take where they stand together: more leaves nothing for
# ports, and gaps beside them
TOGETHER = Fraction(3, 4)


@dataclass(frozen=True)
class Restricted:
    """An instance with restrictions, and the way back."""

    original: Instance
    instance: Instance
    # for the bound's basis: what the bound takes for granted; empty without restrictions
    note: str

    def widened(self, assignment: Assignment) -> Assignment:
        """An assignment of the restricted instance as one of the original."""
        index = [self.original.device_index[device.name] for device in self.instance.devices]
        return replace(assignment, devices=tuple(index[n] for n in assignment.devices))


def restrict(
    instance: Instance,
    same_device: Sequence[Sequence[str]],
    exclude: Sequence[str],
    alike: Sequence[Sequence[str]] = (),
) -> Restricted:
    """The instance without the devices of `exclude`, which on cables are still there but hold nothing, and with the
    items of each group of `same_device` (names of items or layers) coupled, and of each group of `alike` (names of
    items that are built alike) as many at a time as find room together.

    Raises:
        DagtrainError: unknown names.
        InfeasibleError: an item is pinned to an excluded device, nothing is left, or coupled items are pinned apart.
    """
    if not same_device and not exclude and not alike:
        return Restricted(instance, instance, "")
    unknown = [f"no device named {name!r} to exclude" for name in exclude if name not in instance.device_index]
    layers: dict[str, list[int]] = {}
    for i, item in enumerate(instance.items):
        layers.setdefault(item.layer, []).append(i)
        layers.setdefault(item.name, []).append(i)
    unknown += [f"no item or layer named {name!r}" for group in same_device for name in group if name not in layers]
    if unknown:
        raise DagtrainError.listing(f"placement instance {instance.name!r}", unknown)
    stuck = [f"item {item.name!r} is pinned to {item.pinned!r}" for item in instance.items if item.pinned in exclude]
    if stuck:
        raise InfeasibleError(
            f"placement instance {instance.name!r}: {'; '.join(stuck)}, which is excluded",
            "pin it elsewhere or do not exclude the device",
        )
    devices = tuple(_left_empty(device) if device.name in exclude else device for device in instance.devices)
    if not instance.cables:
        devices = tuple(device for device in instance.devices if device.name not in exclude)
    if set(instance.device_index) <= set(exclude):
        raise InfeasibleError(f"placement instance {instance.name!r}: all devices are excluded", "leave at least one")
    groups = [sorted({i for name in group for i in layers[name]}) for group in same_device]
    together = [part for group in alike for part in _with_room(instance, [instance.item_index[name] for name in group])]
    groups += together
    keys = _coupled(instance, groups)
    pins: dict[str, dict[str, str]] = {}
    for item, key in zip(instance.items, keys, strict=True):
        if key is not None and item.pinned is not None:
            pins.setdefault(key, {})[item.pinned] = item.name
    for apart in pins.values():
        if len(apart) > 1:
            raise InfeasibleError(
                f"placement instance {instance.name!r}: items to stand on one device are pinned apart: "
                + ", ".join(f"{item!r} to {device!r}" for device, item in apart.items()),
                "remove a pin or the coupling",
            )
    items = tuple(replace(item, same_device=key) for item, key in zip(instance.items, keys, strict=True))
    notes = [f"without {', '.join(exclude)}"] if exclude else []
    notes += [f"with {' and '.join(group)} on one device" for group in same_device]
    notes += [f"with all items of each of {len(together)} groups on one device"] if together else []
    note = ", ".join(notes) + ": " if notes else ""
    return Restricted(instance, replace(instance, items=items, devices=devices), note)


def _left_empty(device: Device) -> Device:
    """A device that passes words on and can hold nothing."""
    return replace(device, part=f"{device.part} left empty", dsp=0, m20k=0, alm=0, dram_bytes_per_s=0)


def _with_room(instance: Instance, group: Sequence[int]) -> list[list[int]]:
    """Items that are alike in parts of equally many, the fewest parts that find room on a device each, with what each
    item is coupled to; none where that takes a part an item."""
    first = instance.items[group[0]]
    coupled = [
        item
        for item in instance.items
        if item is first or (first.same_device and item.same_device == first.same_device)
    ]
    for count in range(1, len(group)):
        size = -(-len(group) // count)
        if any(_has_room(device, coupled, size) for device in instance.devices):
            return [list(group[begin : begin + size]) for begin in range(0, len(group), size)]
    return []


def _has_room(device: Device, coupled: Sequence[Item], times: int) -> bool:
    """Whether items, so many times over, take no more than their share of a device, of each resource alone."""
    menus = [item.configurations.get(device.part, ()) for item in coupled]
    return all(menus) and all(
        times * sum(min(getattr(configuration, resource) for configuration in menu) for menu in menus)
        <= TOGETHER * getattr(device, resource)
        for resource in RESOURCES
    )


def _coupled(instance: Instance, groups: list[list[int]]) -> list[str | None]:
    """Coupling key of every item: its own, joined with those of the groups that share an item with it."""
    keys = [item.same_device for item in instance.items]
    for number, group in enumerate(groups):
        joined = {keys[i] for i in group if keys[i] is not None}
        name = f"same device {number}"
        for i, key in enumerate(keys):
            if i in group or (key is not None and key in joined):
                keys[i] = name
    return keys
