"""The cut bound: the devices of a cluster in two halves, and no more words between them than its cables carry.

Whatever set A of devices is looked at, a stream from an item on one of A to an item on one of the others goes through
a cable that leads out of A, once at least.  So all devices of A are melted into one, all others into another, and
between the two there is one link with the rates of all cables that join them: where that has no placement at T, the
cluster has none.  Each unit takes its least of every resource over the parts of its half; pins to a half are kept,
DRAM, hops, tiles and what happens within a half are dropped.

Sets are the first one device, the first two and so on, as the file has them: in a chain that is every cable, in a ring
the dateline's side, in a mesh row by row.  It is for clusters on cables: a switch has no narrow place in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortools.sat.python import cp_model

from placement.annealing.encode import contract
from placement.bounds.packing import Size, unit_sizes
from placement.exact.model import Effort, solve
from placement.problem.flat import Flat, part_limits
from placement.problem.instance import Instance
from placement.problem.routes import Routing

# deterministic seconds for one cut at one T
CUT_SECONDS = 0.5


class Cuts:
    """The cuts of an instance; remembers which one refuted last."""

    def __init__(self, instance: Instance, flat: Flat, effort: Callable[[float], Effort], seconds: float) -> None:
        self.instance, self.flat, self.effort, self.seconds_left = instance, flat, effort, seconds
        # devices in the first half
        self.last = 0

    @property
    def basis(self) -> str:
        """What a refutation rests on, with the cut that gave the last one."""
        names = [device.name for device in self.instance.devices]
        return f"the devices up to {names[self.last - 1]} melted into one, and those from {names[self.last]} on"

    def refuted(self, cycles: int) -> bool:
        """Whether some cut is proven to leave no placement at T."""
        routing = self.instance.routing
        if routing is None:
            return False
        units = contract(self.instance, cycles, None)
        if units is None:
            return True
        sizes = unit_sizes(self.flat, units, part_limits(self.instance, self.flat, cycles), cycles)
        if any(not any(size) for size in sizes):
            return True
        counts = range(1, len(self.instance.devices))
        for count in sorted(counts, key=lambda count: count != self.last):
            if self.seconds_left <= 0:
                return False
            model = self._model(routing, units, sizes, count, cycles)
            solver, status = solve(model, self.effort(min(CUT_SECONDS, self.seconds_left)))
            self.seconds_left -= solver.response_proto.deterministic_time
            if status == cp_model.INFEASIBLE:
                self.last = count
                return True
        return False

    def _model(
        self, routing: Routing, units: Sequence[int], sizes: Sequence[Size], count: int, cycles: int
    ) -> cp_model.CpModel:
        """Whether the units fit the first so many devices and the others at T."""
        instance, model = self.instance, cp_model.CpModel()
        first = [model.new_bool_var("") for _ in sizes]
        for i, item in enumerate(instance.items):
            if item.pinned is not None:
                model.add(first[units[i]] == int(instance.device_index[item.pinned] < count))
        for devices, inside in ((instance.devices[:count], 1), (instance.devices[count:], 0)):
            here = [x if inside else x.negated() for x in first]
            least = [_least(size, {self.flat.parts.index(device.part) for device in devices}) for size in sizes]
            for x, costs in zip(here, least, strict=True):
                if costs is None:
                    model.add(x == 0)
            for r in range(3):
                used = sum(costs[r] * x for x, costs in zip(here, least, strict=True) if costs is not None)
                model.add(used <= sum(device.capacities[r] for device in devices))
        there, back = [], []
        for (a, b), bits in self._bits(units).items():
            out, into = model.new_bool_var(""), model.new_bool_var("")
            model.add_bool_or([first[a].negated(), first[b], out])
            model.add_bool_or([first[b].negated(), first[a], into])
            there.append(bits * out)
            back.append(bits * into)
        for load, inside in ((there, True), (back, False)):
            rate = sum(
                wire.bits_per_s
                for wire in routing.wires
                if (wire.source < count) != (wire.target < count) and (wire.source < count) == inside
            )
            model.add(sum(load) <= rate * cycles * instance.link_scale // instance.clock_hz)
        return model

    def _bits(self, units: Sequence[int]) -> dict[tuple[int, int], int]:
        """(unit, unit) → bits a frame from the one to the other, scaled."""
        found: dict[tuple[int, int], int] = {}
        for link in self.instance.links:
            for start, end, bits in link.ways:
                pair = (units[self.instance.item_index[start]], units[self.instance.item_index[end]])
                if pair[0] != pair[1] and bits:
                    found[pair] = found.get(pair, 0) + int(bits * self.instance.link_scale)
        return found


def _least(size: Size, parts: set[int]) -> tuple[int, int, int] | None:
    """The least of every resource over some parts; None where none of these can build it."""
    offered = [costs for p, costs in enumerate(size) if p in parts and costs is not None]
    if not offered:
        return None
    dsp, m20k, alm = (min(costs[r] for costs in offered) for r in range(3))
    return dsp, m20k, alm
