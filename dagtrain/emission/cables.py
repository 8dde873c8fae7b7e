"""The cables of devices where there is no switch: ports, what is passed on from one to another, how long that takes.

Which way words go is the cluster's (`placement.problem.routes`); a device has of it a table, and a merge for each port
of those inputs alone whose words leave by it (`hdl.link.forward`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from dagtrain.schedule.network import Output
from hdl.link.format import LinkFormat
from hdl.link.forward import LEAST_PASSED, MINE, OWN, Forward, passed_cycles
from placement.problem.routes import Routing


@dataclass(frozen=True)
class CablePort:
    """A port of a device with a cable in it."""

    number: int
    # the device and the port at the other end
    peer: str
    peer_port: int
    bits_per_s: int

    @property
    def sends(self) -> str:
        """Prefix of the AXI4-Stream port that words leave by."""
        return f"net_tx_{self.number}"

    @property
    def receives(self) -> str:
        """Prefix of the one that words come by."""
        return f"net_rx_{self.number}"


@dataclass(frozen=True)
class DeviceCables:
    """The cables of a device, and what passes words on between them."""

    # in the order of the unit's rx<k> and tx<k>
    ports: tuple[CablePort, ...]
    unit: Forward


def cabled_devices(routing: Routing, placed: Set[str]) -> tuple[str, ...]:
    """Devices that hold something, and those that pass on words between these."""
    holding = [at for at, name in enumerate(routing.devices) if name in placed]
    found = {*holding, *(at for a in holding for b in holding for at in routing.through(a, b))}
    return tuple(routing.devices[at] for at in sorted(found))


def device_cables(routing: Routing, devices: Sequence[str], name: str, form: LinkFormat) -> DeviceCables:
    """What device ``name`` has of cables between ``devices``, those of the format (`cabled_devices`)."""
    passing, at = _passing(routing, tuple(devices)), routing.devices.index(name)
    wires = passing.wires[at]
    onward = [routing.next_wire[at][routing.devices.index(device)] for device in devices]
    table = tuple(MINE if wire < 0 else 1 + wires.index(wire) for wire in onward)
    ends = [routing.wires[wire] for wire in wires]
    ports = (CablePort(end.source_port, routing.devices[end.target], end.target_port, end.bits_per_s) for end in ends)
    return DeviceCables(tuple(ports), Forward(format=form, table=table, merged=passing.merged[at]))


def cables_between(a: str, b: str, routing: Routing | None) -> int:
    """Cables on the way of words, or on that of their credits if that is longer; 1 where all hang on one switch."""
    if routing is None:
        return 1
    one, other = routing.devices.index(a), routing.devices.index(b)
    return max(routing.distance[one][other], routing.distance[other][one])


def way_cycles(source: str, target: str, network_cycles: int, routing: Routing | None, devices: Sequence[str]) -> int:
    """Cycles of the network from one device's trees of merges to another's splits, if nothing else is on the way.

    Args:
        network_cycles: over the switch, or over one cable.
        devices: those with a network port."""
    if routing is None:
        return network_cycles
    one, other = routing.devices.index(source), routing.devices.index(target)
    return network_cycles * routing.distance[one][other] + _passing(routing, tuple(devices)).cycles[one, other]


@lru_cache(maxsize=1024)
def way_outputs(
    source: str,
    target: str,
    network_cycles: int,
    routing: Routing | None,
    devices: tuple[str, ...],
    rates: tuple[Fraction, ...] = (),
) -> tuple[Output, ...]:
    """What words pass from one device to another; nothing over a switch.  Arguments as of `way_cycles`.

    Args:
        rates: wire -> words a cycle that it carries; none: each carries one."""
    if routing is None:
        return ()
    passing, ends = _passing(routing, devices), map(routing.devices.index, (source, target))
    found = []
    for at, _, out in _steps(routing, passing.wires, *ends):
        wire = None if out == MINE else passing.wires[at][out - 1]
        froms = [at, *(routing.wires[wire].target for wire in passing.wires[at])]
        found.append(
            Output(
                device=routing.devices[at],
                target=routing.devices[at if wire is None else routing.wires[wire].target],
                merged=tuple(routing.devices[froms[way]] for way in passing.merged[at][out]),
                rate=1.0 if wire is None or not rates else float(rates[wire]),
                cycles=0 if wire is None else network_cycles + LEAST_PASSED,
            )
        )
    return tuple(found)


def wire_rates(routing: Routing, word_bits: int, clock_hz: int) -> tuple[Fraction, ...]:
    """Wire -> words a cycle that it carries, one at most."""
    return tuple(cable_rate(wire.bits_per_s, word_bits, clock_hz) for wire in routing.wires)


def cable_rate(bits_per_s: int, word_bits: int, clock_hz: int) -> Fraction:
    """Words a cycle that a cable carries in each direction, one at most."""
    return min(Fraction(1), Fraction(bits_per_s, word_bits * clock_hz))


@dataclass(frozen=True)
class _Passing:
    """What all devices pass on, by their positions."""

    # that leave for another device, by port
    wires: Mapping[int, tuple[int, ...]]
    # output of its `Forward` -> inputs whose words leave by it
    merged: Mapping[int, tuple[tuple[int, ...], ...]]
    # (from, to) -> cycles in all on the way
    cycles: Mapping[tuple[int, int], int]


@lru_cache(maxsize=64)
def _passing(routing: Routing, devices: tuple[str, ...]) -> _Passing:
    """Of words between these devices."""
    places = [routing.devices.index(device) for device in devices]
    wires = {at: tuple(wire for wire in routing.leaving[at] if routing.wires[wire].target in places) for at in places}
    merged: dict[int, list[set[int]]] = {at: [set() for _ in range(len(wires[at]) + 1)] for at in places}
    ways = {pair: _steps(routing, wires, *pair) for pair in itertools.permutations(places, 2)}
    for at, way, out in itertools.chain.from_iterable(ways.values()):
        merged[at][out].add(way)
    ordered = {at: tuple(tuple(sorted(inputs)) for inputs in found) for at, found in merged.items()}
    cycles = {pair: sum(passed_cycles(ordered[at][out], way) for at, way, out in ways[pair]) for pair in ways}
    return _Passing(wires, ordered, cycles)


def _steps(
    routing: Routing, wires: Mapping[int, tuple[int, ...]], source: int, target: int
) -> list[tuple[int, int, int]]:
    """(device, input and output of its `Forward`) of all devices on a way, both ends among them."""
    found, at, way = [], source, OWN
    for wire in routing.way(source, target):
        found.append((at, way, 1 + wires[at].index(wire)))
        at = routing.wires[wire].target
        # the two wires of a cable differ in the last bit
        way = 1 + wires[at].index(wire ^ 1)
    return [*found, (at, way, MINE)]
