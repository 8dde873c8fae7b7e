"""Small placement problems on chains, rings, meshes and other cables, and their optima by trying everything.

The least cycles a frame are told by what a placement needs, item by item and cable by cable; nothing here shares code
with the search, its bounds or its solvers, but for the tables of ways, which `tests/test_routes.py` and the validator
hold against other code.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np

from hdl.tensor import Kind
from placement.problem.instance import Configuration, Device, Instance, Item, Link
from placement.problem.routes import Cable, Routing, chain_cables, mesh_cables

CLOCK = 1000
TOPOLOGIES = ("chain", "ring", "mesh", "cables")


@dataclass(frozen=True)
class Optimum:
    """Least cycles a frame, one placement that has it, and placements with equal hops."""

    cycles: int | None
    places: tuple[int, ...]
    tried: int


def routing_of(topology: str, count: int, rng: np.random.Generator) -> Routing:
    """Cables of a topology between so many devices, at no rate in particular."""
    names, rates = [f"d{n}" for n in range(count)], [1] * count
    if topology == "mesh":
        return Routing(tuple(names), mesh_cables(names, rates, 2), 2)
    if topology != "cables":
        return Routing(tuple(names), chain_cables(names, rates, closed=topology == "ring"))
    pairs = {(int(rng.integers(b)), b) for b in range(1, count)}
    pairs |= {(int(a), int(b)) for a, b in (sorted(rng.choice(count, 2, replace=False)) for _ in range(2))}
    free: Counter[int] = Counter()
    cables = []
    for a, b in (sorted(pairs)[k] for k in rng.permutation(len(pairs))):
        cables.append(Cable(a=names[a], a_port=free[a], b=names[b], b_port=free[b], bits_per_s=1))
        free.update((a, b))
    return Routing(tuple(names), tuple(cables))


@cache
def drawn(topology: str, seed: int) -> Instance:
    """Four to six items on three or four devices.  Capacities are a little above what a placement drawn first takes,
    and some cables a little slower than it wants, so that ways, hops and blocks bind by turns."""
    rng = np.random.default_rng([2027, TOPOLOGIES.index(topology), seed])
    count, machines = int(rng.integers(4, 7)), 4 if topology == "mesh" else int(rng.integers(3, 5))
    routing = routing_of(topology, machines, rng)
    links = _links(rng, count)
    places = _planted(rng, count, routing, links)
    items = []
    for i in range(count):
        work, slow = int(rng.integers(20, 90)), int(rng.integers(400, 700))
        menu = tuple(
            Configuration(label=f"c{k}", cycles_per_frame=cycles, dsp=dsp, m20k=int(rng.integers(1, 9)))
            for k, (cycles, dsp) in enumerate(((int(rng.integers(200, 330)), work), (slow, work // 2)))
        )
        pinned = f"d{places[i]}" if i == 0 or (i == count - 1 and seed % 3 == 0) else None
        items.append(Item(name=f"i{i}", configurations={"P": menu}, layer=f"l{i // 2}", pinned=pinned))
    picks = [int(k) for k in rng.integers(0, 2, count)]
    used: Counter[int] = Counter()
    for item, n, k in zip(items, places, picks, strict=True):
        used[n] += item.configurations["P"][k].dsp
    loads: Counter[int] = Counter()
    for link in links:
        for start, end, bits in link.ways:
            for wire in routing.way(places[int(start[1:])], places[int(end[1:])]):
                loads[wire] += bits  # type: ignore[assignment]
    pace = max(item.configurations["P"][k].cycles_per_frame for item, k in zip(items, picks, strict=True))
    cables = []
    for k, cable in enumerate(routing.cables):
        most = max(loads[2 * k], loads[2 * k + 1])
        rate = math.ceil(most * CLOCK / pace * float(rng.uniform(0.7, 1.3))) or int(rng.integers(100, 3000))
        cables.append(replace(cable, bits_per_s=rate))
    routing = replace(routing, cables=tuple(cables))
    roomy = bool(rng.integers(2))
    devices = tuple(
        Device(
            name=name, part="P", dsp=int(max(used[n], 30) * float(rng.uniform(1.0, 2.0 if roomy else 1.1))),
            m20k=int(rng.integers(18, 40)), alm=0, dram_bytes_per_s=0, link_bits_per_s=routing.bits_per_s(n),
        )
        for n, name in enumerate(routing.devices)
    )  # fmt: skip
    return Instance(
        name=f"{topology} {seed}", clock_hz=CLOCK, items=tuple(items), links=links, devices=devices,
        cables=routing.cables, mesh_columns=routing.columns,
    )  # fmt: skip


def _links(rng: np.random.Generator, count: int) -> tuple[Link, ...]:
    links = []
    for i, j in itertools.combinations(range(count), 2):
        if j != i + 1 and rng.random() > 0.3:
            continue
        kinds = (Kind.ACTIVATION, Kind.ERROR) if rng.random() < 0.6 else (Kind.STASH, Kind.WEIGHT, Kind.GRADIENT)
        back = Fraction(int(rng.integers(1, 60))) if rng.random() < 0.4 else Fraction(0)
        links.append(
            Link(
                source=f"i{i}", target=f"i{j}", kind=kinds[int(rng.integers(len(kinds)))],
                bits_per_frame=Fraction(int(rng.integers(50, 900)), int(rng.integers(1, 3))),
                credit_bits_per_frame=back, sender_m20k=int(rng.integers(3)), receiver_m20k=int(rng.integers(3)),
            )
        )  # fmt: skip
    return tuple(links)


def _planted(rng: np.random.Generator, count: int, routing: Routing, links: Sequence[Link]) -> tuple[int, ...]:
    """A placement with equal hops, on as many devices as of some drawn."""
    found = (0,) * count
    for _ in range(200):
        places = tuple(int(n) for n in rng.integers(0, len(routing.devices), count))
        if len(set(places)) > len(set(found)) and equal_hops(routing, links, places):
            found = places
    return found


def equal_hops(routing: Routing, links: Sequence[Link], places: Sequence[int]) -> bool:
    """Whether all that arrives at an item has gone over as many cables."""
    level: dict[int, int] = {}
    for i in range(len(places)):
        into = [int(link.source[1:]) for link in links if link.target == f"i{i}" and link.kind.hops_must_match]
        hops = {level[s] + len(routing.way(places[s], places[i])) for s in into} or {0}
        if len(hops) > 1:
            return False
        level[i] = hops.pop()
    return True


@cache
def optimum(topology: str, seed: int) -> Optimum:
    return least_of(drawn(topology, seed))


def least_of(instance: Instance) -> Optimum:
    """The least cycles a frame over all placements and all configurations."""
    routing, best, tried = instance.routing, None, 0
    assert routing is not None
    where: tuple[int, ...] = ()
    menus = [item.configurations["P"] for item in instance.items]
    choices = np.array(list(itertools.product(*(range(len(menu)) for menu in menus))))
    cycles, dsp, m20k = (
        np.array([[getattr(menu[k], name) for menu, k in zip(menus, row, strict=True)] for row in choices])
        for name in ("cycles_per_frame", "dsp", "m20k")
    )
    homes = [
        [n for n, device in enumerate(instance.devices) if item.pinned in (None, device.name)]
        for item in instance.items
    ]
    for places in itertools.product(*homes):
        if not equal_hops(routing, instance.links, places):
            continue
        tried += 1
        loads = [Fraction(0)] * len(routing.wires)
        ports: Counter[int] = Counter()
        for link in instance.links:
            a, b = places[int(link.source[1:])], places[int(link.target[1:])]
            for wire in routing.way(a, b):
                loads[wire] += link.bits_per_frame
            for wire in routing.way(b, a):
                loads[wire] += link.credit_bits_per_frame
            if a != b:
                ports.update({a: link.sender_m20k})
                ports.update({b: link.receiver_m20k})
        least = max(math.ceil(load * CLOCK / wire.bits_per_s) for load, wire in zip(loads, routing.wires, strict=True))
        fits = np.ones(len(choices), dtype=bool)
        for n, device in enumerate(instance.devices):
            here = np.array(places) == n
            fits &= dsp[:, here].sum(1) <= device.dsp
            fits &= m20k[:, here].sum(1) + ports[n] <= device.m20k
        if fits.any():
            found = max(least, int(cycles.max(1)[fits].min()))
            if best is None or found < best:
                best, where = found, places
    return Optimum(best, where, tried)
