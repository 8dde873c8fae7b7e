"""Plans carried over to instances of other levels, graphs or devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from placement.problem.instance import Configuration, Instance
from placement.problem.plan import Assignment, Bound, PlacedItem, Plan, build_plan
from placement.problem.validate import violations


def places_of(plan: Plan) -> dict[str, str]:
    """Node -> device."""
    return {item.item: item.device for item in plan.items}


def reserving(instance: Instance, share: Fraction) -> Instance:
    """The instance with a share less of the memories, ALMs, DRAM and network bandwidth of every device."""
    kept = 1 - share
    cables = tuple(replace(cable, bits_per_s=int(cable.bits_per_s * kept)) for cable in instance.cables)
    cabled = Counter[str]()
    for cable in cables:
        cabled.update({cable.a: cable.bits_per_s, cable.b: cable.bits_per_s})
    devices = tuple(
        replace(
            device,
            m20k=int(device.m20k * kept),
            alm=int(device.alm * kept),
            dram_bytes_per_s=int(device.dram_bytes_per_s * kept),
            link_bits_per_s=cabled[device.name] if cables else int(device.link_bits_per_s * kept),
        )
        for device in instance.devices
    )
    return replace(instance, devices=devices, cables=cables)


def taking_more(instance: Instance, blocks: Mapping[str, int]) -> Instance:
    """The instance in which these items take so many block memories more, wherever they are."""
    items = tuple(
        replace(
            item,
            configurations={
                part: tuple(replace(c, m20k=c.m20k + blocks[item.name]) for c in menu)
                for part, menu in item.configurations.items()
            },
        )
        if blocks.get(item.name)
        else item
        for item in instance.items
    )
    return replace(instance, items=items)


def carried_over(plan: Plan, instance: Instance, beside: Mapping[str, str] | None = None) -> Plan | None:
    """The plan of another instance in this one: every item where it stands, with a configuration that costs no more,
    or, if the plan has none of it, on its device of ``beside`` with one that is fast enough; None if some item is on
    neither or has none, or if the whole does not fit."""
    places = {**(beside or {}), **places_of(plan)}
    before = {placed.item: placed for placed in plan.items}
    devices, configurations = [], []
    for item in instance.items:
        if item.name not in places:
            return None
        device = instance.device_index[places[item.name]]
        menu = item.configurations.get(instance.devices[device].part, ())
        own = instance.devices[device].clock_hz or instance.clock_hz
        found = _stand_in(menu, before.get(item.name), plan.cycles_per_frame * own // instance.clock_hz)
        if found is None:
            return None
        devices.append(device)
        configurations.append(found)
    bound = Bound(1, "nothing runs in less than one cycle")
    made = build_plan(instance, Assignment(tuple(devices), tuple(configurations)), bound, seed=0, binding=())
    return None if violations(instance, made) else made


def _stand_in(menu: Sequence[Configuration], placed: PlacedItem | None, cycles: int) -> int | None:
    """The position of a configuration for what a plan placed; for what it doesn't have, of the cheapest that is fast
    enough."""
    if placed is not None:
        return next((position for position, c in enumerate(menu) if _costs_no_more(c, placed)), None)
    fast = [position for position, c in enumerate(menu) if c.cycles_per_frame <= cycles]
    return min(fast, key=lambda position: menu[position].costs, default=None)


def _costs_no_more(c: Configuration, placed: PlacedItem) -> bool:
    """Whether a configuration can stand in for the one of a plan."""
    costs = (placed.cycles_per_frame, placed.dsp, placed.m20k, placed.alm, placed.dram_bytes_per_frame)
    now = (c.cycles_per_frame, *c.costs)
    return c.tile == placed.tile and all(new <= old for new, old in zip(now, costs, strict=True))
