"""Says in words and numbers why no placement exists: the smallest set of constraints at fault, and a cure."""

from __future__ import annotations

from placement.bound import demand_at
from placement.instance import RESOURCES, Instance
from placement.model import Answer, Effort, Family, build_model, decide
from placement.options import OptionTable

CURES = {
    Family.DSP: "add devices, raise the DSP utilisation cap, or accept a lower throughput",
    Family.M20K: "add devices, raise the M20K utilisation cap, or give devices DRAM",
    Family.ALM: "add devices or raise the ALM utilisation cap",
    Family.DRAM: "give devices more DRAM bandwidth, or accept a lower throughput",
    Family.LINKS: "give devices faster links, or accept a lower throughput",
    Family.HOPS: "use fewer devices or larger ones, so that fewer branches are cut",
    Family.PINS: "pin fewer items, or pin them to other devices",
    Family.TILES: "offer more tile shapes",
    Family.SAME_DEVICE: "couple fewer items",
}


def explain_infeasible(instance: Instance, table: OptionTable, cycles: int, effort: Effort) -> str:
    """Why there is no placement at T = `cycles`, and what to relax. It is already proven that there is none."""
    where = f"no placement of {instance.name!r} at {cycles} cycles a frame ({instance.clock_hz / cycles:.6g} frames/s)"
    too_large = _items_too_large(instance, cycles)
    if too_large:
        return f"{where}: " + "; ".join(too_large)
    demand = demand_at(instance, table, cycles)
    short = [
        f"{resource} of at least {need} needed, all devices together have {have}; {CURES[Family[resource.upper()]]}"
        for resource, (need, have) in demand.items()
        if need > have
    ]
    if short:
        return f"{where}: " + "; ".join(short)
    helpful = _helpful_relaxations(instance, table, cycles, effort)
    if helpful:
        return f"{where}: it becomes possible by relaxing " + "; or ".join(
            f"{family.value} ({CURES[family]})" for family in helpful
        )
    return f"{where}: no single constraint is to blame; add devices or accept a lower throughput"


def _items_too_large(instance: Instance, cycles: int) -> list[str]:
    """For every item that fits no device it may stand on: its closest configuration, and what is missing where."""
    found = []
    for i, item in enumerate(instance.items):
        shortages: list[str] = []
        for n, device in enumerate(instance.devices):
            if item.pinned not in (None, device.name):
                continue
            lacks = [_lacks(instance, i, n, k, cycles) for k in range(len(instance.configurations(i, n)))]
            if not all(lacks):
                shortages = []
                break
            if lacks:
                shortages.append(f"on {device.name} {min(lacks, key=lambda lack: (len(lack), lack))[0]}")
            else:
                shortages.append(f"on {device.name} it has no configuration")
        if shortages:
            pin = f", pinned to {item.pinned!r}," if item.pinned else ""
            found.append(f"item {item.name!r}{pin} fits no device: " + ", ".join(dict.fromkeys(shortages)))
    return found


def _lacks(instance: Instance, item: int, device: int, configuration: int, cycles: int) -> list[str]:
    """What keeps one configuration from running alone on a device at T, with numbers; empty if nothing does."""
    c, d = instance.configurations(item, device)[configuration], instance.devices[device]
    lacks = [
        f"{c.label!r} needs {getattr(c, resource)} {resource} of {getattr(d, resource)}"
        for resource in RESOURCES
        if getattr(c, resource) > getattr(d, resource)
    ]
    if c.dram_bytes_per_frame * instance.clock_hz > d.dram_bytes_per_s * cycles:
        lacks.append(
            f"{c.label!r} needs {-(-c.dram_bytes_per_frame * instance.clock_hz // cycles)} bytes/s of DRAM "
            f"of {d.dram_bytes_per_s}"
        )
    if c.cycles_per_frame > cycles:
        lacks.append(f"{c.label!r} needs {c.cycles_per_frame} cycles a frame")
    return lacks


def _helpful_relaxations(instance: Instance, table: OptionTable, cycles: int, effort: Effort) -> list[Family]:
    """Families whose absence alone makes the exact model feasible (within the budget)."""
    options = table.at(cycles)
    helpful = []
    for family in Family:
        if family is Family.TILES and not instance.tile_groups:
            continue
        if options.without_choice():
            continue
        model = build_model(instance, options, without=frozenset({family}))
        if decide(model, effort)[0] is Answer.FEASIBLE:
            helpful.append(family)
    return helpful
