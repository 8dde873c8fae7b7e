"""Placing on chains, rings, meshes and other cables: against optima found by trying everything, and faults put in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from hdl.errors import DagtrainError, InfeasibleError
from hdl.tensor import Kind
from placement.annealing import anneal, encode
from placement.exact import literal, model
from placement.problem.flat import flatten
from placement.problem.instance import (
    Configuration,
    Device,
    Instance,
    Item,
    Link,
    instance_from_json,
    instance_to_json,
)
from placement.problem.plan import (
    Assignment,
    Bound,
    Plan,
    assignment_of,
    build_plan,
    plan_from_json,
    unequal_joins,
)
from placement.problem.routes import Cable, Routing, chain_cables, mesh_cables
from placement.problem.validate import Rule, violations
from placement.search.search import SearchOptions, Solver, find_plan, plan_from_assignment
from placement.search.whatif import growth, shadow_prices
from tests import bound_mutants as mutants
from tests.bound_instances import Known, Problem
from tests.cable_instances import CLOCK, TOPOLOGIES, drawn, least_of, optimum

SEEDS = range(6)
# every bound is held against so many optima of each topology
MANY = 12
# how often each bound reaches the optimum of those
TIGHT = {"cases": 4, "packing": 4, "cuts": 8, "neighbourhood": 3, "window": 12}


@cache
def known(topology: str, seed: int) -> Known:
    """For questions that are asked of problems over a switch too."""
    return known_of(drawn(topology, seed), seed)


def known_of(instance: Instance, seed: int) -> Known:
    least = least_of(instance).cycles
    assert least is not None, f"{instance.name}: the planted placement is one"
    return Known(Problem(seed, instance, (), ()), least, ())


# --- the table of optima -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_search_ends_at_the_optimum_and_knows_it(topology: str, seed: int) -> None:
    instance, least = drawn(topology, seed), optimum(topology, seed).cycles
    plan = find_plan(instance, SearchOptions(seed=seed))
    assert (plan.cycles_per_frame, plan.bound_cycles_per_frame) == (least, least), instance.name
    assert violations(instance, plan) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_annealing_and_bounds_alone_enclose_the_optimum(topology: str, seed: int) -> None:
    instance, least = drawn(topology, seed), optimum(topology, seed).cycles
    assert least is not None
    budgets = SearchOptions(seed=seed, exact_choices=0, anneal_moves=10_000, anneal_budget=100_000)
    plan = find_plan(instance, budgets)
    assert plan.bound_cycles_per_frame <= least <= plan.cycles_per_frame <= 1.25 * least, instance.name
    assert violations(instance, plan) == []


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_equations_as_written_enclose_the_optimum(topology: str) -> None:
    for seed in SEEDS:
        assert mutants.wrong_literal(known(topology, seed)) == "", f"{topology} {seed}"


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("question", ["single", *mutants.BOUNDS, "window, solver", "exact, below", "cuts, no answer",
                                      "cuts, nothing left"])  # fmt: skip
def test_no_bound_refutes_a_placement(question: str, topology: str) -> None:
    for seed in range(MANY if "window" not in question else MANY // 2):
        assert mutants.QUESTIONS[question](known(topology, seed)) == "", f"{topology} {seed}"


@pytest.mark.parametrize("bound", TIGHT)
def test_bounds_reach_optima(bound: str) -> None:
    cases = [known(topology, seed) for topology in TOPOLOGIES for seed in range(MANY)]
    reached = [case.problem.instance.name for case in cases
               if mutants.refuters(case.problem.instance)[bound](case.optimum - 1)]  # fmt: skip
    assert len(reached) >= TIGHT[bound], reached


def test_optima_are_bound_by_cables_too() -> None:
    bound = [
        f"{topology} {seed}"
        for topology in TOPOLOGIES
        for seed in range(MANY)
        if any("cable" in b.reason for b in find_plan(drawn(topology, seed), SearchOptions(seed=seed)).binding)
    ]
    assert len(bound) >= MANY, bound


# --- faults ------------------------------------------------------------------------------------------------------


def by_its_neighbour() -> Instance:
    """Four devices in a chain, two of them alike; the item that comes first belongs on the one that comes later."""
    names = tuple(f"d{n}" for n in range(4))
    routing = Routing(names, chain_cables(names, [9_000] * 4))
    instance = _of(routing, [90] * 4, [("i0", "i2", 900), ("i1", "i3", 900)], dsp=100)
    return instance.with_pins({"i3": "d3"})


def along_and_past() -> Instance:
    """Three items that fill a chain of three devices; by way of the middle there are as many cables as without."""
    names = tuple(f"d{n}" for n in range(3))
    routing = Routing(names, chain_cables(names, [9_000] * 3))
    instance = _of(routing, [90] * 3, [("i0", "i1", 9), ("i1", "i2", 9), ("i0", "i2", 9)], dsp=100)
    return replace(instance, links=tuple(replace(link, kind=Kind.ACTIVATION) for link in instance.links))


def over_the_slow_cable() -> Instance:
    """A ring in which the cable between two devices is slower than any other, and all words of these go over it."""
    cables = [replace(cable, bits_per_s=9_000) for cable in chain_cables(("d0", "d1", "d2"), [1] * 3, closed=True)]
    cables[1] = replace(cables[1], bits_per_s=10)
    routing = Routing(("d0", "d1", "d2"), tuple(cables))
    instance = _of(routing, [10, 10, 10], [("i1", "i2", 900)], dsp=100)
    return instance.with_pins({"i1": "d1", "i2": "d2"})


def _of(routing: Routing, costs: list[int], links: list[tuple[str, str, int]], *, dsp: int) -> Instance:
    """An item of 100 cycles and so many DSP blocks each, the first one on the first device."""
    menus = [{"P": (Configuration(label="c0", cycles_per_frame=100, dsp=cost),)} for cost in costs]
    items = [Item(name=f"i{i}", configurations=menu, layer=f"l{i}") for i, menu in enumerate(menus)]
    items[0] = replace(items[0], pinned="d0")
    return Instance(
        name="by hand", clock_hz=CLOCK, items=tuple(items),
        links=tuple(Link(source=a, target=b, kind=Kind.STASH, bits_per_frame=Fraction(bits)) for a, b, bits in links),
        devices=tuple(
            Device(name=name, part="P", dsp=dsp, m20k=0, alm=0, dram_bytes_per_s=0,
                   link_bits_per_s=routing.bits_per_s(n))
            for n, name in enumerate(routing.devices)
        ),
        cables=routing.cables, mesh_columns=routing.columns,
    )  # fmt: skip


BY_HAND = (by_its_neighbour, along_and_past, over_the_slow_cable)


@pytest.mark.parametrize("make", BY_HAND)
def test_cables_differ_where_devices_do_not(make: Callable[[], Instance]) -> None:
    case = known_of(make(), 0)
    assert mutants.wrong_plan(case) == ""
    plan = find_plan(case.problem.instance, SearchOptions(exact_choices=0, anneal_moves=2_000, anneal_budget=20_000))
    assert plan.cycles_per_frame == case.optimum


FAULTS: dict[str, tuple[mutants.Mutant, str]] = {
    "cuts 2 % too strong": (
        mutants.Mutant("cuts", "sum(load) <= rate * cycles *", "sum(load) <= rate * cycles * 98 // 100 *", ""), "cuts",
    ),
    "cuts with blocks of 2 % less": (
        mutants.Mutant("cuts", "model.add(used <= sum(device.capacities[r] for device in devices))",
                       "model.add(used <= sum(device.capacities[r] for device in devices) * 98 // 100)", ""), "cuts",
    ),
    "cuts whose budget is over": (
        mutants.Mutant("cuts", "if status == cp_model.INFEASIBLE:", "if status != cp_model.OPTIMAL:", ""),
        "cuts, no answer",
    ),
    "cuts with nothing left": (
        mutants.Mutant("cuts", "if self.seconds_left <= 0:\n                return False",
                       "if self.seconds_left <= 0:\n                return True", ""), "cuts, nothing left",
    ),
    "cuts whose pins are on the other half": (
        mutants.Mutant("cuts", "[item.pinned] < count))", "[item.pinned] >= count))", ""), "cuts",
    ),
    "hops near an item that count one": (
        mutants.Mutant("neighbourhood", "model.add(hops[pair] <= farthest * crosses)",
                       "model.add(hops[pair] <= crosses)", ""), "neighbourhood",
    ),
    "fat streams by the slowest cable": (
        mutants.Mutant("encode", "rate = max(instance.link_rates)", "rate = min(instance.link_rates)", ""), "packing",
    ),
    "wires 2 % too slow": (
        mutants.Mutant("model", "add(sum(load) <= budgets[w])", "add(sum(load) <= budgets[w] * 98 // 100)", ""),
        "exact",
    ),
    "ways in the wrong direction": (
        mutants.Mutant("model", "for sources, targets in rows:\n                here",
                       "for targets, sources in rows:\n                here", ""), "exact",
    ),
    "hops that count crossings": (
        mutants.Mutant("model", "model.hops[p] + walked(model, p, i)", "model.hops[p] + crossing(model, p, i)", ""),
        "exact",
    ),
    "hops of windows that count crossings": (
        mutants.Mutant("window", "sign * walked(model,", "sign * walked.__globals__['crossing'](model,", ""),
        "window, solver",
    ),
    "equal devices taken for one another": (
        mutants.Mutant("model", "groups.setdefault(instance.sorts[n], [])", "groups.setdefault(device.shape, [])", ""),
        "exact",
    ),
    "a slowest pace of devices": (
        mutants.Mutant("search", "for rate in instance.link_rates]",
                       "for rate in (device.word_bits_per_s for device in instance.devices)]", ""), "search",
    ),
    "equations with cables of half the rate": (
        mutants.Mutant("literal", "<= wire.bits_per_s * cycles", "<= wire.bits_per_s // 2 * cycles", ""), "literal",
    ),
    "equations that count crossings": (
        mutants.Mutant("literal", "sum(instance.distance[n][m] * both", "sum((n != m) * both", ""), "literal",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    mutant, question = FAULTS[name]
    mutant = replace(mutant, question=question)
    cases = [known(topology, seed) for topology in TOPOLOGIES for seed in range(MANY)]
    cases = [*(known_of(make(), -1) for make in BY_HAND), *cases]
    assert mutants.found_at(mutant, cases) is not None, f"{mutant.name} lives"


# --- plans and the validator -------------------------------------------------------------------------------------


def cluster_of(seed: int) -> tuple[Routing, random.Random]:
    """Up to ten devices on cables of any topology, of rates drawn."""
    rng = random.Random(seed)
    topology = TOPOLOGIES[seed % len(TOPOLOGIES)]
    count = rng.randint(3, 10)
    names = [f"d{n}" for n in range(count)]
    if topology == "mesh":
        columns = rng.randint(1, 4)
        names = [f"d{n}" for n in range(columns * rng.randint(2, 3))]
        cables, columns = mesh_cables(names, [1] * len(names), columns), columns
    elif topology != "cables":
        cables, columns = chain_cables(names, [1] * count, closed=topology == "ring"), 0
    else:
        pairs = {(rng.randrange(b), b) for b in range(1, count)}
        pairs |= {(min(pair), max(pair)) for pair in (rng.sample(range(count), 2) for _ in range(count))}
        free, columns, found = [0] * count, 0, []
        for a, b in rng.sample(sorted(pairs), len(pairs)):
            found.append(Cable(a=names[a], a_port=free[a], b=names[b], b_port=free[b], bits_per_s=1))
            free[a], free[b] = free[a] + 1, free[b] + 1
        cables = tuple(found)
    rated = tuple(replace(cable, bits_per_s=rng.randint(100, 5_000)) for cable in cables)
    return Routing(tuple(names), rated, columns), rng


def placed(seed: int) -> tuple[Instance, Assignment]:
    """A random acyclic graph, each item anywhere; streams that hops would forbid are stashes."""
    routing, rng = cluster_of(seed)
    count = rng.randint(3, 14)
    pairs = [(a, b) for b in range(1, count) for a in range(b) if a == b - 1 or rng.random() < 0.2]
    places = tuple(rng.randrange(len(routing.devices)) for _ in range(count))
    instance = _of(routing, [rng.randint(1, 9) for _ in range(count)],
                   [(f"i{a}", f"i{b}", rng.randint(0, 500)) for a, b in pairs], dsp=200)  # fmt: skip
    instance = replace(instance, items=tuple(replace(item, pinned=None) for item in instance.items))
    for k in range(len(pairs)):
        kind = rng.choice([Kind.ACTIVATION, Kind.ERROR, Kind.WEIGHT])
        back = Fraction(rng.randint(0, 40), rng.randint(1, 3))
        links = list(instance.links)
        links[k] = replace(links[k], kind=kind, credit_bits_per_frame=back)
        with_kind = replace(instance, links=tuple(links))
        instance = with_kind if not unequal_joins(with_kind, places) else instance
    return instance, Assignment(places, (0,) * count)


@pytest.mark.parametrize("seed", range(60))
def test_the_validator_agrees_with_any_plan(seed: int) -> None:
    instance, assignment = placed(seed)
    plan = build_plan(instance, assignment, Bound(1, "drawn"), seed=0)
    assert violations(instance, plan) == [], f"seed {seed}"
    assert plan_from_json(plan.to_json()) == plan
    assert assignment_of(instance, plan).devices == assignment.devices
    again = instance_from_json(instance_to_json(instance))
    assert again == instance
    assert instance_to_json(again) == instance_to_json(instance)
    assert again.routing == instance.routing


def in_a_row(bits: int = 900) -> tuple[Instance, Plan]:
    """Four devices in a chain, words from the first to the last one and back, at exactly what their cables carry."""
    names = tuple(f"d{n}" for n in range(4))
    routing = Routing(names, chain_cables(names, [9_000] * 4))
    instance = _of(routing, [50, 50], [("i0", "i1", bits), ("i1", "i0", 9)], dsp=60).with_pins({"i1": "d3"})
    return instance, build_plan(instance, Assignment((0, 3), (0, 0)), Bound(1, "none"), seed=0)


def _route(plan: Plan, **changes: object) -> Plan:
    first, *rest = plan.routes
    return replace(plan, routes=(replace(first, **changes), *rest))  # type: ignore[arg-type]


def _cable(plan: Plan, **changes: object) -> Plan:
    first, *rest = plan.cables
    return replace(plan, cables=(replace(first, **changes), *rest))  # type: ignore[arg-type]


SPOILERS: dict[str, tuple[Callable[[Plan], Plan], Rule, str]] = {
    "a circle": (
        lambda p: _route(p, through=("d1", "d2", "d1", "d2")), Rule.ROUTES, "the route goes in a circle by d1",
    ),
    "back to where it began": (
        lambda p: _route(p, through=("d1", "d0", "d1", "d2")), Rule.ROUTES, "the route goes in a circle by d0",
    ),
    "a way where no cable is": (lambda p: _route(p, through=("d2",)), Rule.ROUTES, "no cable joins d0 and d2"),
    "another way": (lambda p: _route(p, through=()), Rule.ROUTES, "goes through no other device, not d1, d2"),
    "a way forgotten": (lambda p: replace(p, routes=p.routes[1:]), Rule.ROUTES, "d0 to d3: the route is missing"),
    "a way twice": (lambda p: replace(p, routes=(*p.routes, p.routes[0])), Rule.ROUTES, "d0 to d3: a route again"),
    "a way of nobody": (lambda p: _route(p, from_device="d1"), Rule.ROUTES, "d1 to d3: a route again, or of devices"),
    "a lighter cable": (lambda p: _cable(p, bits_per_frame="1"), Rule.RECORD, "is '1' in the plan, '900'"),
    "a slower cable": (lambda p: _cable(p, bits_per_s=1), Rule.RECORD, "cable d0 -> d1: bits_per_s is 1 in the plan"),
    "a faster cable": (lambda p: _cable(p, capacity_bits_per_s=1), Rule.RECORD, "is 1 in the plan, 9000 in truth"),
    "a cable forgotten": (lambda p: replace(p, cables=p.cables[1:]), Rule.RECORD, "plan lists cables d1 -> d0"),
    "hops of a switch": (
        lambda p: replace(p, items=(p.items[0], replace(p.items[1], hops=1))), Rule.RECORD, "hops is 1 in the plan, 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILERS)
def test_a_spoilt_plan_is_rejected(name: str) -> None:
    instance, plan = in_a_row()
    links = (replace(instance.links[0], kind=Kind.ACTIVATION), instance.links[1])
    instance = replace(instance, links=links)
    plan = build_plan(instance, Assignment((0, 3), (0, 0)), Bound(1, "none"), seed=0)
    assert violations(instance, plan) == []
    spoil, rule, words = SPOILERS[name]
    found = violations(instance, spoil(plan))
    assert any(v.rule is rule and words in v.message for v in found), [str(v) for v in found]


def test_a_cable_with_one_bit_too_many_is_rejected_though_all_records_agree() -> None:
    _, plan = in_a_row()
    assert plan.cycles_per_frame == 100
    instance, longer = in_a_row(901)
    assert longer.cycles_per_frame == 101
    fields = {"cycles_per_frame": 100, "batch_cycles": 100, "steady_fps": 10.0, "throughput_fps": 10.0}
    hidden = replace(longer, **fields, gap=longer.gap, steady_gap=longer.steady_gap)  # type: ignore[arg-type]
    told = [v.message for v in violations(instance, hidden) if v.rule is Rule.NETWORK]
    ways = ("d0 -> d1", "d1 -> d2", "d2 -> d3")
    # the ends have no other cable
    assert told[-3:] == [f"cable {way}: 901 bits a frame × 1000 Hz / 100 cycles exceeds 9000 bits/s" for way in ways]


def test_a_route_over_a_switch_is_rejected() -> None:
    instance, plan = in_a_row()
    switched = replace(instance, cables=())
    assert "routes" not in build_plan(switched, Assignment((0, 3), (0, 0)), Bound(1, ""), seed=0).to_json()
    assert any(v.rule is Rule.ROUTES for v in violations(switched, replace(plan, instance_digest=_digest(switched))))


def _digest(instance: Instance) -> str:
    return build_plan(instance, Assignment((0, 3), (0, 0)), Bound(1, "none"), seed=0).instance_digest


def test_what_binds_names_the_cable_and_hops_count_them() -> None:
    instance, _ = in_a_row(1_800)
    plan = plan_from_assignment(instance, {"i0": "d0", "i1": "d3"})
    reasons = [binding.reason for binding in plan.binding]
    assert reasons[0] == "cable d0 -> d1: 1800 bits a frame at 9000 a second take 200 cycles a frame"
    assert len(reasons) == 3


# --- instances ---------------------------------------------------------------------------------------------------


def test_impossible_cables_are_told_at_once() -> None:
    instance, _ = in_a_row()
    good = instance.cables

    def told(*cables: Cable, columns: int = 0) -> list[str]:
        with pytest.raises(DagtrainError) as caught:
            replace(instance, cables=cables, mesh_columns=columns)
        return [problem.what for problem in caught.value.problems]

    assert told(replace(good[0], b="d9"), *good[1:]) == ["cable 'd0' - 'd9': no device named 'd9'"]
    assert told(replace(good[0], b="d0"), *good[1:])[0] == "cable 'd0' - 'd0': from a device to itself"
    assert told(replace(good[0], bits_per_s=0, a_port=-1), *good[1:]) == [
        "cable 'd0' - 'd1': a_port is -1", "cable 'd0' - 'd1': bits_per_s is 0",
    ]  # fmt: skip
    assert told(*good[:2], replace(good[2], a_port=0)) == ["port 0 of 'd2' has 2 cables"]
    assert told(*good, replace(good[0], a_port=7, b_port=7)) == ["d0 and d1 are joined 2 times"]
    assert told(*good[:2])[0] == "no cables lead to 'd3'"
    assert told(replace(good[0], bits_per_s=1), *good[1:]) == [
        "device 'd0': link_bits_per_s is 9000, its cables have 1",
        "device 'd1': link_bits_per_s is 18000, its cables have 9001",
    ]  # fmt: skip
    assert told(*good, columns=2) == ["cables are not those of a mesh of 4 devices in 2 columns"]
    assert told(columns=2) == ["a mesh of 2 columns with 0 cables"]
    assert replace(instance, mesh_columns=4).routing is not None


# --- the kernel --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_keeps_its_sums(seed: int) -> None:
    instance, assignment = placed(seed)
    encoded = encode.encode(instance, flatten(instance), 150, merge=False)
    assert encoded is not None, f"seed {seed}: nothing may be cut"
    problem = encoded.problem
    for moves in (1, 2, 7, 500):
        energy, state = anneal.anneal(problem, encode.start_from(encoded, instance, assignment), moves=moves, seed=seed)
        fresh = anneal._fresh(problem, state.device.copy(), state.tile.copy())
        told = anneal.HOP_ENERGY * fresh.skews[0] + fresh.energy.sum()
        assert energy == pytest.approx(told, abs=1e-9), f"seed {seed}, {moves} moves"


@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_counts_as_plans_do(seed: int) -> None:
    instance, assignment = placed(seed)
    encoded = encode.encode(instance, flatten(instance), 10**6, merge=False)
    assert encoded is not None
    devices = np.array(assignment.devices, dtype=np.int64)
    state = anneal._fresh(encoded.problem, devices[np.unique(encoded.problem.unit, return_index=True)[1]],
                          np.zeros(0, dtype=np.int64))  # fmt: skip
    loads = [Fraction(use.bits_per_frame)
             for use in build_plan(instance, assignment, Bound(1, ""), seed=0).cables]  # fmt: skip
    assert [Fraction(load) / instance.link_scale for load in state.carries.tolist()] == loads
    assert state.skews[0] == 0


# --- around the search -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_seed_gives_one_plan(topology: str) -> None:
    instance = drawn(topology, 1)
    budgets = SearchOptions(seed=2, exact_choices=0, anneal_moves=5_000, anneal_budget=20_000)
    for options in (SearchOptions(seed=2), budgets):
        assert find_plan(instance, options).to_json() == find_plan(instance, options).to_json()


def test_a_device_left_empty_passes_words_on() -> None:
    instance, _ = in_a_row()
    for solver in Solver:
        plan = find_plan(instance, SearchOptions(exclude=("d1", "d2"), solver=solver))
        assert {item.device for item in plan.items} == {"d0", "d3"}
        assert plan.routes[0].through == ("d1", "d2")
    unpinned = replace(instance, items=tuple(replace(item, pinned=None) for item in instance.items))
    for exclude in (("d0", "d1", "d2"), tuple(instance.device_index)):
        with pytest.raises(InfeasibleError):
            find_plan(unpinned, SearchOptions(exclude=exclude))


def test_ways_that_make_the_exact_model_large_are_left_to_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("descent", "window", "infeasible"):
        monkeypatch.setattr(mutants.module(name), "MOST_WIRE_TERMS", 0)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the exact model is built")

    monkeypatch.setattr(mutants.module("descent"), "build_model", never)
    monkeypatch.setattr(mutants.module("window"), "build_model", never)
    for topology in TOPOLOGIES:
        least = optimum(topology, 2).cycles
        options = SearchOptions(anneal_moves=5_000, anneal_budget=20_000, window_seconds=2.0)
        plan = find_plan(drawn(topology, 2), options)
        assert least is not None
        assert plan.bound_cycles_per_frame <= least <= plan.cycles_per_frame
        assert "exact" not in plan.bound_basis


def test_equations_of_too_many_products_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(literal, "MOST_PRODUCTS", 10)
    with pytest.raises(DagtrainError, match=r"on cables have 32 products .* more than 10; take the default solver"):
        find_plan(in_a_row()[0], SearchOptions(solver=Solver.LITERAL))


def test_cables_at_fault_are_named() -> None:
    instance, _ = in_a_row(1_800)
    with pytest.raises(InfeasibleError) as caught:
        find_plan(instance, SearchOptions(least_fps=6.0))
    text = str(caught.value)
    assert "link bandwidth" in text
    assert "link bandwidth of d2 -> d3" in text


def test_more_of_a_link_is_more_on_all_cables_of_a_device() -> None:
    instance, _ = in_a_row(1_800)
    plan = find_plan(instance)
    prices = {(price.device, price.resource): price.sure_gain for price in shadow_prices(instance, plan, more=1.0)}
    # the cables of no one device are all that bind
    assert {gain for (_, resource), gain in prices.items() if resource == "link_bits_per_s"} == {0.0}
    two = replace(instance, items=(instance.items[0], replace(instance.items[1], pinned="d1")))
    prices = {(price.device, price.resource): price.sure_gain
              for price in shadow_prices(two, find_plan(two), more=1.0)}  # fmt: skip
    assert prices["d0", "link_bits_per_s"] == prices["d1", "link_bits_per_s"] == 1.0
    with pytest.raises(DagtrainError, match="one more board would need cables"):
        growth(two, find_plan(two), moves=10)


def test_the_size_of_the_model_is_told() -> None:
    assert model.wire_terms(drawn("chain", 0)) > 0
    assert model.wire_terms(replace(drawn("chain", 0), cables=())) == 0
