"""Says in words and numbers why no placement exists: the smallest set of constraints at fault, and a cure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hdl.errors import InfeasibleError, Problem, TooLargeError
from placement.bounds.bound import demand_at
from placement.exact.model import MOST_WIRE_TERMS, Answer, Effort, Family, build_model, decide, wire_terms
from placement.problem.instance import PORT_RESOURCES, RESOURCES, Instance
from placement.problem.options import OptionTable

CURES = {
    Family.DSP: "add devices, raise the DSP utilisation cap, or accept a lower throughput",
    Family.M20K: "add devices, raise the utilisation cap m20k, or give devices DRAM",
    Family.ALM: "add devices or raise the utilisation cap alm",
    Family.DRAM: "give devices more DRAM bandwidth, or accept a lower throughput",
    Family.LINKS: "give devices faster links, or accept a lower throughput",
    Family.HOPS: "use fewer devices or larger ones, so that fewer branches are cut",
    Family.PINS: "pin fewer items, or pin them to other devices",
    Family.TILES: "offer more tile shapes",
    Family.SAME_DEVICE: "couple fewer items",
}


# beyond this many (item, device, configuration) choices no exact model is asked for the constraints at fault
MOST_CHOICES = 20_000
# single constraints that are tried one by one; of more, only the families are named
MOST_SINGLE = 40

# items that fit no device, and devices that lack the same, that are told one by one
MOST_TOLD, MOST_ALIKE = 5, 3

# where it is no single constraint's fault
FEWER_FRAMES = "add devices or accept a lower throughput"

# one constraint: its family, and the device, item or group it speaks of
Constraint = tuple[Family, str]


def too_large(instance: Instance, cycles: int) -> TooLargeError | None:
    """What names the items that fit no device at T = `cycles`; None if there are none."""
    found = _items_too_large(instance, cycles)
    if not found:
        return None
    cure = "use larger devices, or split the layer (dagtrain import --split)"
    lines = list(found.values())[:MOST_TOLD]
    lines += [f"and {len(found) - MOST_TOLD} more"] if len(found) > MOST_TOLD else []
    return TooLargeError("\n  ".join([f"{_where(instance, cycles)}:", *lines]), cure, tuple(found))


def overfull(instance: Instance, places: Sequence[int]) -> list[Problem]:
    """Devices that lack room at any pace for what stands on them, by item: for the least of each of its items, for the
    network ports of its links, and for its own with its peers; the fullest first."""
    takes = [Counter[str]() for _ in instance.devices]
    peers: list[set[int]] = [set() for _ in instance.devices]
    for item, n in zip(instance.items, places, strict=True):
        menu = item.configurations.get(instance.devices[n].part, ())
        takes[n].update({name: min((getattr(c, name) for c in menu), default=0) for name in RESOURCES})
    for link in instance.links:
        a, b = (places[instance.item_index[name]] for name in (link.source, link.target))
        if a != b:
            for n, other, blocks in zip((a, b), (b, a), link.ends, strict=True):
                takes[n].update(dict(zip(PORT_RESOURCES, blocks, strict=True)))
                peers[n].add(other)
    found = []
    for device, took, met in zip(instance.devices, takes, peers, strict=True):
        took.update(dict(zip(PORT_RESOURCES, device.port_blocks(len(met)), strict=True)))
        for name in RESOURCES:
            if took[name] > (room := getattr(device, name)):
                what = f"{device.name} would take at least {took[name]:,} {name} of {room:,}"
                found.append((took[name] / max(room, 1), Problem(what, CURES[Family[name.upper()]])))
    return [problem for _, problem in sorted(found, key=lambda pair: -pair[0])]


def explain_infeasible(
    instance: Instance, table: OptionTable, cycles: int, effort: Effort, basis: str = ""
) -> InfeasibleError:
    """Why there is no placement at T = `cycles`, and what to relax, where every item fits some device. It is already
    proven that there is none, by what `basis` says."""
    where = _where(instance, cycles)
    demand = demand_at(instance, table, cycles)
    short = [
        Problem(
            f"{resource} of at least {need} needed, all devices together have {have}", CURES[Family[resource.upper()]]
        )
        for resource, (need, have) in demand.items()
        if need > have
    ]
    if short:
        return InfeasibleError.listing(where, short)
    options = table.at(cycles)
    choices = sum(len(menu.get(device.part, ())) for menu in options.by_part for device in instance.devices)
    if options.without_choice() or choices > MOST_CHOICES or wire_terms(instance) > MOST_WIRE_TERMS:
        return InfeasibleError(f"{where}: {basis or 'the constraints exclude it together'}", FEWER_FRAMES)
    helpful = _helpful_relaxations(instance, table, cycles, effort)
    fault = smallest_fault(instance, table, cycles, effort)
    together = f"; at fault together: {_listed(fault)}" if fault else ""
    if helpful:
        relaxed = "; or ".join(f"{family.value} ({CURES[family]})" for family in helpful)
        return InfeasibleError(f"{where}: it becomes possible by relaxing {relaxed}{together}")
    return InfeasibleError(f"{where}: no single constraint is to blame", f"{FEWER_FRAMES}{together}")


def _where(instance: Instance, cycles: int) -> str:
    return f"no placement of {instance.name!r} at {cycles} cycles a frame ({instance.clock_hz / cycles:.6g} frames/s)"


def smallest_fault(instance: Instance, table: OptionTable, cycles: int, effort: Effort) -> list[Constraint]:
    """Constraints that are infeasible together at T, none of which could be left out (within the effort): a deletion
    filter, first over whole families, then over the single constraints of those that are left.

    A family with too many constraints is named as a whole, with an empty name.
    """
    options = table.at(cycles)

    def infeasible(kept: list[Constraint], candidates: list[Constraint]) -> bool:
        whole = {family for family, name in kept if not name}
        some = {family for family, name in kept if name}
        without = frozenset(family for family in Family if family not in whole | some)
        relaxed = frozenset(c for c in candidates if c not in kept and c[0] in some)
        model = build_model(instance, options, without, relaxed)
        return decide(model, effort)[0] is Answer.INFEASIBLE

    families: list[Constraint] = [(family, "") for family in Family]
    if not infeasible(families, []):
        return []  # the budget is too small to see it again
    kept = _filtered(families, lambda rest: infeasible(rest, []))
    singles = [single for family, _ in kept for single in _singles(instance, family)]
    if not singles or len(singles) > MOST_SINGLE or not infeasible(singles, singles):
        return kept
    return _filtered(singles, lambda rest: infeasible(rest, singles))


def _filtered(constraints: list[Constraint], infeasible: Callable[[list[Constraint]], bool]) -> list[Constraint]:
    """Leave out one after the other as long as the rest is infeasible."""
    kept = list(constraints)
    for constraint in constraints:
        rest = [other for other in kept if other != constraint]
        if infeasible(rest):
            kept = rest
    return kept


def _singles(instance: Instance, family: Family) -> list[Constraint]:
    """The single constraints of a family; one without a name where they come only together."""
    if family is Family.LINKS and instance.routing is not None:
        return [(family, name) for name in instance.routing.names]
    if family in (Family.DSP, Family.M20K, Family.ALM, Family.DRAM, Family.LINKS):
        return [(family, device.name) for device in instance.devices]
    if family is Family.PINS:
        return [(family, item.name) for item in instance.items if item.pinned is not None]
    if family is Family.HOPS:
        arriving = Counter(link.target for link in instance.links if link.kind.hops_must_match)
        return [(family, item.name) for item in instance.items if arriving[item.name] > 1]
    if family is Family.SAME_DEVICE:
        return [(family, item.name) for item in instance.items if item.same_device is not None]
    return [(family, "")]


def _listed(constraints: list[Constraint]) -> str:
    """Constraints in words, by family."""
    names: dict[Family, list[str]] = {}
    for family, name in constraints:
        names.setdefault(family, []).append(name)
    words = {Family.PINS: "of", Family.HOPS: "at", Family.SAME_DEVICE: "of"}
    return ", ".join(
        f"{family.value} {words.get(family, 'of')} {', '.join(listed)}" if all(listed) else family.value
        for family, listed in names.items()
    )


def _items_too_large(instance: Instance, cycles: int) -> dict[str, str]:
    """For every item that fits no device it may stand on: its closest configuration, and what is missing where."""
    found: dict[str, str] = {}
    for i, item in enumerate(instance.items):
        # what is missing -> the devices that lack it
        shortages: dict[str, list[str]] = {}
        for n, device in enumerate(instance.devices):
            if item.pinned not in (None, device.name):
                continue
            lacks = [_lacks(instance, i, n, k, cycles) for k in range(len(instance.configurations(i, n)))]
            if not all(lacks):
                shortages = {}
                break
            least = min(lacks, key=lambda lack: (len(lack), lack))[0] if lacks else "it has no configuration"
            shortages.setdefault(least, []).append(device.name)
        if shortages:
            pin = f", pinned to {item.pinned!r}," if item.pinned else ""
            told = ", ".join(f"on {_few(devices)} {lack}" for lack, devices in shortages.items())
            found[item.name] = f"item {item.name!r}{pin} fits no device: {told}"
    return found


def _few(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - MOST_ALIKE
    return " and ".join([", ".join(names[:MOST_ALIKE]), *([f"{more} more"] if more > 0 else [])])


def _lacks(instance: Instance, item: int, device: int, configuration: int, cycles: int) -> list[str]:
    """What keeps one configuration from running alone on a device at T, with numbers; empty if nothing does."""
    c, d = instance.configurations(item, device)[configuration], instance.devices[device]
    lacks = [
        f"{c.label!r} needs {getattr(c, resource)} {resource} of {getattr(d, resource)}"
        for resource in RESOURCES
        if getattr(c, resource) > getattr(d, resource)
    ]
    largest = max(c.streams, default=0)
    if c.dram_bytes_per_frame * instance.clock_hz > d.dram_bytes_per_s * cycles:
        lacks.append(
            f"{c.label!r} needs {-(-c.dram_bytes_per_frame * instance.clock_hz // cycles)} bytes/s of DRAM "
            f"of {d.dram_bytes_per_s}"
        )
    elif largest * d.dram_channels * instance.clock_hz > d.dram_bytes_per_s * cycles:
        lacks.append(
            f"{c.label!r} needs {-(-largest * instance.clock_hz // cycles)} bytes/s of one memory channel, 1 of "
            f"{d.dram_channels}, which share {d.dram_bytes_per_s}"
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
