"""Ways of words over cables: every pair of devices, tables held against rules of other code, no circle of waiting."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import networkx as nx
import pytest

from placement.problem.routes import Cable, Routing, chain_cables, mesh_cables, unreached

GBIT = 10**9


def names(count: int) -> tuple[str, ...]:
    return tuple(f"d{number}" for number in range(count))


def chain(count: int, *, closed: bool = False) -> Routing:
    return Routing(names(count), chain_cables(names(count), [GBIT] * count, closed=closed))


def mesh(rows: int, columns: int) -> Routing:
    devices = names(rows * columns)
    return Routing(devices, mesh_cables(devices, [GBIT] * len(devices), columns), columns)


def drawn(seed: int) -> Routing:
    """Any connected cables, in any order, of up to nine devices."""
    rng = random.Random(seed)
    count = rng.randint(2, 9)
    pairs = {(rng.randrange(b), b) for b in range(1, count)}
    pairs |= {
        pair for _ in range(rng.randint(0, 8)) if len(set(pair := tuple(sorted(rng.sample(range(count), 2))))) == 2
    }  # type: ignore[misc]
    free, cables = [0] * count, []
    for ends in rng.sample(sorted(pairs), len(pairs)):
        a, b = rng.sample(ends, 2)
        cables.append(Cable(a=f"d{a}", a_port=free[a], b=f"d{b}", b_port=free[b], bits_per_s=GBIT))
        free[a], free[b] = free[a] + 1, free[b] + 1
    return Routing(names(count), tuple(cables))


def legal_cables(routing: Routing, source: int, target: int) -> float:
    """Cables of the shortest way up and then down, by a search over (device, whether it has gone down)."""
    joined = nx.Graph((wire.source, wire.target) for wire in routing.wires)
    level = nx.single_source_shortest_path_length(joined, 0)
    steps = nx.DiGraph()
    for a, b in [*joined.edges, *(edge[::-1] for edge in joined.edges)]:
        if (level[b], b) < (level[a], a):
            steps.add_edge((a, False), (b, False))
        else:
            steps.add_edges_from(((a, gone), (b, True)) for gone in (False, True))
    far = nx.single_source_shortest_path_length(steps, (source, False))
    return min(far.get((target, gone), float("inf")) for gone in (False, True))


def walked(routing: Routing, source: int, target: int) -> list[int]:
    """Devices of a way, from the wires themselves."""
    at, found = source, [source]
    for number in routing.way(source, target):
        assert routing.wires[number].source == at
        at = routing.wires[number].target
        found.append(at)
    assert at == target
    return found


def pairs_of(routing: Routing) -> list[tuple[int, int]]:
    count = range(len(routing.devices))
    return [(source, target) for source in count for target in count]


def test_a_chain_is_walked_from_end_to_end() -> None:
    routing = chain(5)
    for source, target in pairs_of(routing):
        step = 1 if target >= source else -1
        assert walked(routing, source, target) == list(range(source, target + step, step))
    assert routing.through(1, 4) == (2, 3)
    assert [routing.bits_per_s(device) for device in range(5)] == [GBIT, 2 * GBIT, 2 * GBIT, 2 * GBIT, GBIT]


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9])
def test_nothing_passes_through_the_dateline_of_a_ring(count: int) -> None:
    routing = chain(count, closed=True)
    dateline = -(-count // 2)
    for source, target in pairs_of(routing):
        devices = walked(routing, source, target)
        assert dateline not in devices[1:-1]
        steps = (target - source) % count
        ways = (
            [(source + k) % count for k in range(steps + 1)],
            [(source - k) % count for k in range(count - steps + 1)],
        )
        open_ways = [way for way in ways if dateline not in way[1:-1]]
        assert len(devices) == min(map(len, open_ways)) or source == target
    assert not routing.circle()


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (2, 2), (3, 4), (4, 1)])
def test_a_mesh_goes_along_the_row_and_then_along_the_column(rows: int, columns: int) -> None:
    routing = mesh(rows, columns)
    for source, target in pairs_of(routing):
        (y, x), (to_y, to_x) = divmod(source, columns), divmod(target, columns)
        devices = [divmod(device, columns) for device in walked(routing, source, target)]
        assert len(devices) == abs(to_x - x) + abs(to_y - y) + 1
        turn = abs(to_x - x)
        assert all(row == y for row, _ in devices[: turn + 1])
        assert all(column == to_x for _, column in devices[turn:])
    assert not routing.circle()


@pytest.mark.parametrize("seed", range(40))
def test_any_cables_are_walked_up_and_then_down(seed: int) -> None:
    routing = drawn(seed)
    level = [rank for rank, _ in routing._ranks]
    shortest = 0
    for source, target in pairs_of(routing):
        ranks = [(level[at], at) for at in walked(routing, source, target)]
        falls = [later > earlier for earlier, later in itertools.pairwise(ranks)]
        assert falls == sorted(falls), f"seed {seed}: {source} to {target} goes up after it went down"
        least = legal_cables(routing, source, target)
        assert routing.distance[source][target] >= least
        shortest += routing.distance[source][target] == least
    assert not routing.circle(), f"seed {seed}"
    assert shortest >= 0.8 * len(pairs_of(routing)), f"seed {seed}"


def clockwise_ring() -> Routing:
    """Of four devices, all words of which go round in one direction."""
    routing = chain(4, closed=True)
    clockwise = tuple(
        tuple(-1 if at == target else next(w for w in routing.leaving[at] if routing.wires[w].target == (at + 1) % 4)
              for target in range(4))
        for at in range(4)
    )  # fmt: skip
    broken = replace(routing)
    broken.__dict__["next_wire"] = clockwise
    return broken


def test_a_circle_of_waiting_is_found() -> None:
    assert len(clockwise_ring().circle()) == 4


def test_devices_without_a_way_are_told() -> None:
    cables = chain_cables(names(3), [GBIT] * 3)
    assert unreached(names(5), cables) == ("d3", "d4")
    assert unreached(names(3), cables) == ()


def test_a_cable_is_as_fast_as_its_slower_end() -> None:
    cables = chain_cables(names(3), [4 * GBIT, GBIT, 2 * GBIT])
    assert [cable.bits_per_s for cable in cables] == [GBIT, GBIT]
    assert [(cable.a, cable.a_port, cable.b, cable.b_port) for cable in cables] == [
        ("d0", 0, "d1", 0),
        ("d1", 1, "d2", 0),
    ]
