"""The ways of words from device to device where cables join them, and no switch.

Every device passes words on by a table: for each other device the cable that is next.  Two rules fill the tables.

* A **mesh** has dimension order: along the row first, then along the column.
* Whatever else cables make, a chain and a ring among them, has **up*/down***: each cable has an upper end, that nearer
  to the first device, and of two that are as near the one that comes first in the file.  Words go up, then down, and
  never up again; where they can go down all the way, they do, so that a table need not know where they come from
  (Schroeder et al., "Autonet: a high-speed, self-configuring local area network using point-to-point links", 1991).
  In a chain that is the one way there is, in a ring the shortest one of those that don't pass through the device
  farthest from the first one, its dateline.

By either rule no words that wait for a cable wait for one another in a circle, so they never wait for ever (Dally and
Seitz, "Deadlock-free message routing in multiprocessor interconnection networks", 1987): `circle` looks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from hdl.records import exact

# devices that a ring has at least: two would be joined twice
LEAST_RING = 3


@exact
@dataclass(frozen=True, kw_only=True)
class Cable:
    """A cable between ports of two devices."""

    a: str
    a_port: int
    b: str
    b_port: int
    # each direction
    bits_per_s: int


@dataclass(frozen=True)
class Wire:
    """One direction of a cable."""

    # positions of devices, and ports there
    source: int
    source_port: int
    target: int
    target_port: int
    bits_per_s: int


@dataclass(frozen=True)
class Routing:
    """The tables of all devices, each of which reaches every other one (`unreached`)."""

    # names, the first one with the host
    devices: tuple[str, ...]
    cables: tuple[Cable, ...]
    # of a mesh, whose devices stand row by row; 0: there is none
    columns: int = 0

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """Cable k's from a to b is wire 2k, that from b to a wire 2k + 1."""
        return tuple(_wires(self.devices, self.cables))

    @cached_property
    def leaving(self) -> tuple[tuple[int, ...], ...]:
        """Device -> wires that leave it, by port."""
        return self._by_port(lambda wire: (wire.source, wire.source_port))

    @cached_property
    def arriving(self) -> tuple[tuple[int, ...], ...]:
        """Device -> wires that arrive there, by port."""
        return self._by_port(lambda wire: (wire.target, wire.target_port))

    @cached_property
    def next_wire(self) -> tuple[tuple[int, ...], ...]:
        """next_wire[at][target]: the wire that words for ``target`` leave ``at`` by; -1 where they are there."""
        count = len(self.devices)
        by_target = [self._in_mesh(t) if self.columns else self._up_down(t) for t in range(count)]
        return tuple(tuple(by_target[target][at] for target in range(count)) for at in range(count))

    def way(self, source: int, target: int) -> tuple[int, ...]:
        """The wires from one device to another in turn; none to itself."""
        found = []
        while source != target:
            found.append(self.next_wire[source][target])
            source = self.wires[found[-1]].target
        return tuple(found)

    @cached_property
    def distance(self) -> tuple[tuple[int, ...], ...]:
        """distance[source][target]: cables on the way, 0 to itself."""
        count = range(len(self.devices))
        far = [[0] * len(count) for _ in count]
        for target in count:
            known = {target: 0}
            for source in count:
                way = []
                while source not in known:
                    way.append(source)
                    source = self.wires[self.next_wire[source][target]].target
                known |= {at: known[source] + cables for cables, at in enumerate(reversed(way), 1)}
            for source, cables in known.items():
                far[source][target] = cables
        return tuple(map(tuple, far))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of wires: "fpga-2 -> fpga-3"."""
        return tuple(f"{self.devices[wire.source]} -> {self.devices[wire.target]}" for wire in self.wires)

    def through(self, source: int, target: int) -> tuple[int, ...]:
        """The devices that pass on words from one to another."""
        return tuple(self.wires[wire].source for wire in self.way(source, target)[1:])

    @cached_property
    def carried(self) -> tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], ...]:
        """Wire -> rows (sources, targets): it is on the ways from each of the sources to each of the targets, and on no
        others."""
        sources: list[dict[int, list[int]]] = [{} for _ in self.wires]
        count = range(len(self.devices))
        for source, target in ((source, target) for source in count for target in count):
            for wire in self.way(source, target):
                sources[wire].setdefault(target, []).append(source)
        found = []
        for by_target in sources:
            rows: dict[tuple[int, ...], list[int]] = {}
            for target, group in by_target.items():
                rows.setdefault(tuple(group), []).append(target)
            found.append(tuple((group, tuple(targets)) for group, targets in rows.items()))
        return tuple(found)

    def bits_per_s(self, device: int) -> int:
        """Of all cables of a device, each direction."""
        return sum(self.wires[wire].bits_per_s for wire in self.leaving[device])

    def circle(self) -> tuple[int, ...]:
        """Wires in whose buffers words could wait for one another in a circle; none if tables are as they should be."""
        waits = nx.DiGraph()
        count = range(len(self.devices))
        for way in (self.way(source, target) for source in count for target in count):
            nx.add_path(waits, way)
        try:
            return tuple(wire for wire, _ in nx.find_cycle(waits))
        except nx.NetworkXNoCycle:
            return ()

    def _by_port(self, end: Callable[[Wire], tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.devices]
        for number in sorted(range(len(self.wires)), key=lambda number: end(self.wires[number])):
            found[end(self.wires[number])[0]].append(number)
        return tuple(map(tuple, found))

    def _in_mesh(self, target: int) -> list[int]:
        """Device -> its next wire to this one, by dimension order."""
        row, column = divmod(target, self.columns)
        found = []
        for at in range(len(self.devices)):
            y, x = divmod(at, self.columns)
            step = (x < column) - (x > column) if x != column else self.columns * ((y < row) - (y > row))
            found.append(next((w for w in self.leaving[at] if self.wires[w].target == at + step), -1))
        return found

    def _up_down(self, target: int) -> list[int]:
        """Device -> its next wire to this one: down all the way where that is possible, else up."""
        ranks = self._ranks
        found = [-1] * len(ranks)
        # cables to it, of devices whose way is known: first of those above it, each behind all that are lower
        cables = {target: 0}
        downwards = sorted(range(len(ranks)), key=ranks.__getitem__)
        for at in reversed(downwards):
            ways = [(cables[end] + 1, w) for w, end in self._ends(at) if ranks[end] > ranks[at] and end in cables]
            if at != target and ways:
                cables[at], found[at] = min(ways)
        # then of all others, each behind all that are higher
        for at in downwards:
            if at not in cables:
                ways = [(cables[end] + 1, w) for w, end in self._ends(at) if ranks[end] < ranks[at]]
                cables[at], found[at] = min(ways)
        return found

    def _ends(self, at: int) -> Iterator[tuple[int, int]]:
        """(wire, device at its other end) of all that leave a device."""
        return ((wire, self.wires[wire].target) for wire in self.leaving[at])

    @cached_property
    def _ranks(self) -> list[tuple[int, int]]:
        """Device -> cables to the first one, its position: a cable's upper end has the lower of two."""
        level = nx.single_source_shortest_path_length(_joined(len(self.devices), self.wires), 0)
        return [(level[at], at) for at in range(len(self.devices))]


def unreached(devices: Sequence[str], cables: Sequence[Cable]) -> tuple[str, ...]:
    """Devices that no cables lead to from the first one."""
    near = nx.node_connected_component(_joined(len(devices), tuple(_wires(devices, cables))), 0)
    return tuple(name for at, name in enumerate(devices) if at not in near)


def chain_cables(devices: Sequence[str], rates: Sequence[int], *, closed: bool = False) -> tuple[Cable, ...]:
    """Each device joined to the next one, in a ring the last one to the first.

    Args:
        rates: of each device's ports; a cable has the lower one of its two ends."""
    pairs = [(at, at + 1) for at in range(len(devices) - 1)]
    return _joining(devices, rates, pairs + ([(len(devices) - 1, 0)] if closed else []))


def mesh_cables(devices: Sequence[str], rates: Sequence[int], columns: int) -> tuple[Cable, ...]:
    """Devices row by row, each joined to its neighbours in row and column; rates as of `chain_cables`."""
    return _joining(devices, rates, _grid(len(devices), columns))


def topology_cables(topology: str, devices: Sequence[str], rates: Sequence[int], columns: int) -> tuple[Cable, ...]:
    """Those that a chain, a ring or a mesh of these devices stands for; a ring of two is a chain.

    Args:
        rates: as of `chain_cables`.
        columns: of a mesh, whose last row is full or its only one."""
    if topology == "mesh":
        return mesh_cables(devices, rates, columns)
    return chain_cables(devices, rates, closed=topology == "ring" and len(devices) >= LEAST_RING)


def neighbours(devices: Sequence[str], columns: int) -> list[tuple[str, str]]:
    """Of a mesh, whose devices stand row by row."""
    return [(devices[a], devices[b]) for a, b in _grid(len(devices), columns)]


def _grid(devices: int, columns: int) -> list[tuple[int, int]]:
    right = [(at, at + 1) for at in range(devices) if (at + 1) % columns and at + 1 < devices]
    below = [(at, at + columns) for at in range(devices - columns)]
    return sorted(right + below)


def _joining(devices: Sequence[str], rates: Sequence[int], pairs: Sequence[tuple[int, int]]) -> tuple[Cable, ...]:
    """Cables between these, each at the first free port of both."""
    free = [0] * len(devices)
    found = []
    for a, b in pairs:
        ports = free[a], free[b]
        free[a], free[b] = free[a] + 1, free[b] + 1
        rate = min(rates[a], rates[b])
        found.append(Cable(a=devices[a], a_port=ports[0], b=devices[b], b_port=ports[1], bits_per_s=rate))
    return tuple(found)


def _wires(devices: Sequence[str], cables: Sequence[Cable]) -> Iterator[Wire]:
    index = {name: at for at, name in enumerate(devices)}
    for cable in cables:
        a, b = (index[cable.a], cable.a_port), (index[cable.b], cable.b_port)
        yield Wire(*a, *b, cable.bits_per_s)
        yield Wire(*b, *a, cable.bits_per_s)


def _joined(devices: int, wires: Sequence[Wire]) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(devices))
    graph.add_edges_from((wire.source, wire.target) for wire in wires)
    return graph
