"""Says in words and numbers what keeps a placement from being faster."""

from __future__ import annotations

from fractions import Fraction

from placement.bounds.bound import demand_at, next_level_below
from placement.problem.instance import Instance
from placement.problem.options import OptionTable
from placement.problem.plan import Assignment, Binding, Bound, chosen, cycles_needed, least_cycles, loads_of


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
    loads, clock, routing = loads_of(instance, assignment), instance.clock_hz, instance.routing
    found = []
    for n, device in enumerate(instance.devices):
        # a channel has its part of the bandwidth
        fullest = max(loads.channels[n]) * device.dram_channels
        rates = [("dram", device.name, "DRAM bytes", Fraction(fullest), Fraction(device.dram_bytes_per_s))]
        if routing is None:
            rates.append(("links", device.name, "egress bits", loads.egress[n], device.word_bits_per_s))
            rates.append(("links", device.name, "ingress bits", loads.ingress[n], device.word_bits_per_s))
        else:
            rates += [
                ("links", f"cable {routing.names[k]}", "bits", loads.wires[k], Fraction(routing.wires[k].bits_per_s))
                for k in routing.leaving[n]
            ]
        for kind, where, unit, demand, capacity in rates:
            if cycles_needed(demand, capacity, clock) == cycles:
                reason = f"{where}: {demand} {unit} a frame at {capacity} a second take {cycles} cycles a frame"
                found.append(Binding(kind=kind, reason=reason))
    return found
