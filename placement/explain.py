"""Says in words and numbers why no placement exists, and what keeps a placement from being faster."""

from __future__ import annotations

from placement.bound import demand_at, next_level_below
from placement.instance import RESOURCES, Instance
from placement.model import Answer, Effort, Family, build_model, decide
from placement.options import OptionTable
from placement.plan import Assignment, Binding, Bound, chosen, cycles_needed, least_cycles, loads_of

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


def binding_of(instance: Instance, table: OptionTable, assignment: Assignment, bound: Bound) -> tuple[Binding, ...]:
    """What stands in the way of a lower T: first what this placement runs against, then what the cluster lacks."""
    cycles = least_cycles(instance, assignment)
    assert cycles is not None
    found = _rates_at_limit(instance, assignment, cycles)
    slow = [
        item.name
        for item, c in zip(instance.items, chosen(instance, assignment), strict=True)
        if c.cycles_per_frame == cycles
    ]
    below = next_level_below(table.levels(), cycles)
    if below is None:
        return (*found, Binding(kind="configurations", reason="every item has its fastest configuration"))
    if not slow:
        return tuple(found)
    demand = demand_at(instance, table, below)
    if table.at(below).without_choice():
        stuck = [instance.items[i].name for i in table.at(below).without_choice()]
        names = ", ".join(stuck[:4]) + (" …" if len(stuck) > 4 else "")
        found.append(Binding(kind="configurations", reason=f"no configuration below {cycles} cycles: {names}"))
    lacking = [(resource, need, have) for resource, (need, have) in demand.items() if need > have]
    for resource, need, have in lacking:
        found.append(
            Binding(
                kind=resource,
                reason=f"{below} cycles a frame need at least {need} {resource} in all, there are {have}",
            )
        )
    if not lacking and not found:
        names = ", ".join(slow[:4]) + (" …" if len(slow) > 4 else "")
        need, have = demand["dsp"]
        found.append(
            Binding(
                kind="granularity",
                reason=f"{names} at {cycles} cycles a frame; the next faster step, {below} cycles, needs at least "
                f"{need} of {have} DSP blocks in all but was not placed (bound: {bound.basis})",
            )
        )
    return tuple(found)


def _rates_at_limit(instance: Instance, assignment: Assignment, cycles: int) -> list[Binding]:
    """Links and DRAM whose load would not fit at T − 1."""
    loads, clock = loads_of(instance, assignment), instance.clock_hz
    found = []
    for n, device in enumerate(instance.devices):
        rates = (
            ("dram", "DRAM bytes", loads.dram[n], device.dram_bytes_per_s),
            ("links", "egress bits", loads.egress[n], device.link_bits_per_s),
            ("links", "ingress bits", loads.ingress[n], device.link_bits_per_s),
        )
        for kind, unit, demand, capacity in rates:
            if cycles_needed(demand, capacity, clock) == cycles:
                reason = f"{device.name}: {demand} {unit} a frame at {capacity} a second take {cycles} cycles a frame"
                found.append(Binding(kind=kind, reason=reason))
    return found
