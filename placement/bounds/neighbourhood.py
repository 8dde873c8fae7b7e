"""The neighbourhood bound: an item that no single device can hold at T together with any company it likes.

Whoever places item i puts some set S of items on i's device. S needs blocks, and the links that S cuts must fit what
the device sends and receives. If no S that contains i does, T is impossible, with however many devices: this bound
looks at one device alone, so it holds and stays sharp on clusters of a hundred. Blocks are each item's least, resource
by resource; DRAM, tiles, pins and what the other devices do are dropped, and hops are equal as far as links touch the
device.

A device on cables sends and receives no more than all of them carry; what it passes on would only take of that. A link
that leaves it has one hop at least, and as many at most as the longest way has cables.
"""

from __future__ import annotations

from collections.abc import Callable

from ortools.sat.python import cp_model

from placement.annealing.encode import contract, hop_cycles
from placement.bounds.packing import Size, unit_sizes
from placement.exact.model import Effort, solve
from placement.problem.flat import Flat, part_limits
from placement.problem.instance import Device, Instance

# links an item's company may be away from it; items farther away are ignored
RADIUS = 12
# units looked at, those with the most bits a frame first; of units with like links and sizes, one
MOST_UNITS = 24
# deterministic seconds for one unit on one sort of device
UNIT_SECONDS = 1.0


class Neighbourhoods:
    """Asks the question for the units of an instance; remembers which one refuted last."""

    def __init__(self, instance: Instance, flat: Flat, effort: Callable[[float], Effort], seconds: float) -> None:
        self.instance, self.flat, self.effort, self.seconds_left = instance, flat, effort, seconds
        self.last = ""
        # first item of a unit → how promising it is: T at which it was refuted, or minus the T it was placed at
        self.promise: dict[int, int] = {}

    @property
    def basis(self) -> str:
        """What a refutation rests on."""
        return f"item {self.last!r} fits no single device with any company, by blocks and links"

    def refuted(self, cycles: int) -> bool:
        """Whether some item is proven to fit no device at T."""
        units = contract(self.instance, cycles, None)
        if units is None:
            return True
        graph = _Graph(self.instance, self.flat, units, cycles)
        heads = [graph.members[unit][0] for unit in graph.busiest()]
        for head in sorted(heads, key=lambda i: -self.promise.get(i, 0)):
            if self.promise.get(head, 0) >= cycles or self._refuted(graph, units[head], cycles):
                self.promise[head] = cycles
                self.last = self.instance.items[head].name
                return True
            self.promise[head] = -cycles
        return False

    def _refuted(self, graph: _Graph, unit: int, cycles: int) -> bool:
        near = graph.near(unit)
        seen = set()
        for device in self.instance.devices:
            if device.shape in seen:
                continue
            seen.add(device.shape)
            if self.seconds_left <= 0:
                return False
            model = graph.model(unit, near, device, cycles)
            effort = self.effort(min(UNIT_SECONDS, self.seconds_left))
            solver, status = solve(model, effort)
            self.seconds_left -= solver.response_proto.deterministic_time
            if status != cp_model.INFEASIBLE:
                return False
        return True


class _Graph:
    """Units and the links between them at one T."""

    def __init__(self, instance: Instance, flat: Flat, units: list[int], cycles: int) -> None:
        self.instance, self.flat = instance, flat
        self.sizes: list[Size] = unit_sizes(flat, units, part_limits(instance, flat, cycles), cycles)
        self.members: list[list[int]] = [[] for _ in self.sizes]
        for i, unit in enumerate(units):
            self.members[unit].append(i)
        self.bits: dict[tuple[int, int], int] = {}
        for link in instance.links:
            for start, end, bits in link.ways:
                pair = (units[instance.item_index[start]], units[instance.item_index[end]])
                # whole bits, rounded down: a little less load than in truth
                if pair[0] != pair[1] and bits >= 1:
                    self.bits[pair] = self.bits.get(pair, 0) + int(bits)
        self.cycles: list[dict[tuple[int, int], int]] = []
        for cycle in hop_cycles(instance):
            signs: dict[tuple[int, int], int] = {}
            for (source, target), sign in cycle.items():
                if units[source] != units[target]:
                    pair = (units[source], units[target])
                    signs[pair] = signs.get(pair, 0) + sign
            self.cycles.append({pair: sign for pair, sign in signs.items() if sign})
        self.neighbours: list[list[int]] = [[] for _ in self.sizes]
        for a, b in self.bits:
            if (b, a) not in self.bits or a < b:
                self.neighbours[a].append(b)
                self.neighbours[b].append(a)

    def busiest(self) -> list[int]:
        """Units with the most bits a frame over their links, none twice for the same numbers."""
        load = [0] * len(self.sizes)
        for (a, b), bits in self.bits.items():
            load[a] += bits
            load[b] += bits
        like: dict[object, int] = {}
        for u in sorted(range(len(load)), key=lambda u: (-load[u], u)):
            streams = [(self.bits[u, v], 0, self.sizes[v]) for v in self.neighbours[u] if (u, v) in self.bits]
            streams += [(self.bits[v, u], 1, self.sizes[v]) for v in self.neighbours[u] if (v, u) in self.bits]
            like.setdefault((self.sizes[u], str(sorted(streams, key=str))), u)
            if len(like) == MOST_UNITS:
                break
        return list(like.values())

    def near(self, unit: int) -> list[int]:
        """Units at most RADIUS links away, the nearest first."""
        reached = {unit: None}
        frontier = [unit]
        for _ in range(RADIUS):
            frontier = [n for u in frontier for n in self.neighbours[u]]
            frontier = [n for n in dict.fromkeys(frontier) if n not in reached]
            reached |= dict.fromkeys(frontier)
        return list(reached)

    def model(self, unit: int, near: list[int], device: Device, cycles: int) -> cp_model.CpModel:
        """Whether `unit` and any of `near` fit the device; links to units farther away cost nothing."""
        model = cp_model.CpModel()
        part = self.flat.parts.index(device.part)
        here = {u: model.new_bool_var("") for u in near}
        model.add(here[unit] == 1)
        for u in near:
            if self.sizes[u][part] is None:
                model.add(here[u] == 0)
        for r in range(3):
            costs = [((self.sizes[u][part] or (0, 0, 0))[r], here[u]) for u in near]
            model.add(sum(cost * x for cost, x in costs) <= device.capacities[r])
        sent, received = [], []
        for a in near:
            for b in self.neighbours[a]:
                bits = self.bits.get((a, b))
                if b not in here or bits is None:
                    continue
                leaves, arrives = model.new_bool_var(""), model.new_bool_var("")
                model.add_bool_or([here[a].negated(), here[b], leaves])
                model.add_bool_or([here[b].negated(), here[a], arrives])
                sent.append(bits * leaves)
                received.append(bits * arrives)
        budget = device.word_bits_per_s * cycles // self.instance.clock_hz
        model.add(sum(sent) <= budget)
        model.add(sum(received) <= budget)
        self._equal_hops(model, here)
        return model

    def _equal_hops(self, model: cp_model.CpModel, here: dict[int, cp_model.IntVar]) -> None:
        """Hops around every cycle that lies near cancel; links between units that are both elsewhere may have any."""
        farthest = max(1, *map(max, self.instance.distance))
        hops: dict[tuple[int, int], cp_model.IntVar] = {}
        for cycle in self.cycles:
            if any(a not in here or b not in here for a, b in cycle):
                continue
            for a, b in cycle:
                pair = self._hop_of(a, b)
                if pair not in hops:
                    crosses = model.new_bool_var("")
                    model.add_bool_or([here[a].negated(), here[b], crosses])
                    model.add_bool_or([here[b].negated(), here[a], crosses])
                    model.add_bool_or([here[a].negated(), here[b].negated(), crosses.negated()])
                    hops[pair] = crosses
                    if farthest > 1:
                        hops[pair] = model.new_int_var(0, farthest, "")
                        model.add(hops[pair] >= crosses)
                        model.add(hops[pair] <= farthest * crosses)
            model.add(sum(sign * hops[self._hop_of(a, b)] for (a, b), sign in cycle.items()) == 0)

    def _hop_of(self, a: int, b: int) -> tuple[int, int]:
        """Units whose hops are one: over a switch there and back are as many."""
        return (a, b) if self.instance.cables else (min(a, b), max(a, b))
