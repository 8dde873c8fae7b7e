"""Devices of unlike clocks: search, bounds, exact model and validator in time, against trying everything."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from hdl.errors import DagtrainError, InfeasibleError
from hdl.tensor import Kind
from placement.problem.clocks import in_time
from placement.problem.instance import (
    Configuration,
    Device,
    Instance,
    Item,
    Link,
    instance_from_json,
    instance_to_json,
    pareto,
)
from placement.problem.plan import Plan, plan_from_json
from placement.problem.settings import Solver
from placement.problem.validate import Rule, violations
from placement.search.search import SearchOptions, find_plan, plan_from_assignment, proven_bound
from tests.bound_mutants import Mutant, module, mutated

CLOCK = 600
# Hz: slower, faster, no ratio of small numbers
CLOCKS = (0, 200, 431, 599, 601, 900, 1800)


def random_instance(seed: int) -> Instance:
    """Few items and devices of unlike clocks, two of them of one part; the first item is pinned."""
    rng = random.Random(seed)
    names = "pqr"[: rng.randrange(2, 4)]

    def menu() -> tuple[Configuration, ...]:
        return pareto(
            Configuration(
                label=str(n), cycles_per_frame=rng.randrange(1, 30), dsp=rng.randrange(1, 5), alm=rng.randrange(0, 3),
                dram_bytes_per_frame=rng.choice([0, 0, 1, 7]),
            )
            for n in range(3)
        )  # fmt: skip

    devices = tuple(
        Device(
            name=f"d{n}", part=rng.choice("AB") if n else "A", dsp=rng.randrange(3, 8), m20k=0, alm=6,
            dram_bytes_per_s=rng.choice([200, 3000]), link_bits_per_s=rng.choice([300, 2000]),
            clock_hz=rng.choice(CLOCKS),
        )
        for n in range(rng.randrange(2, 4))
    )  # fmt: skip
    items = tuple(
        Item(name=name, configurations={"A": menu(), "B": menu()}, pinned="d0" if not i else None)
        for i, name in enumerate(names)
    )
    links = tuple(
        Link(source=a, target=b, kind=Kind.ACTIVATION, bits_per_frame=Fraction(rng.randrange(1, 9)))
        for a, b in itertools.pairwise(names)
    )
    return Instance(name=f"clocks {seed}", clock_hz=CLOCK, items=items, links=links, devices=devices)


def brute(problem: Instance) -> int | None:
    """The least T over all devices and configurations, in seconds until it is rounded up to cycles of the clock."""
    best: int | None = None
    for places in itertools.product(range(len(problem.devices)), repeat=len(problem.items)):
        if places[0]:
            continue
        menus = [item.configurations[problem.devices[n].part] for item, n in zip(problem.items, places, strict=True)]
        for picks in itertools.product(*menus):
            seconds = _seconds(problem, places, picks)
            if seconds is not None:
                cycles = max(1, -int(-seconds * problem.clock_hz // 1))
                best = cycles if best is None else min(best, cycles)
    return best


def _seconds(problem: Instance, places: tuple[int, ...], picks: tuple[Configuration, ...]) -> Fraction | None:
    """Of a frame; None where blocks run out."""
    seconds = Fraction(0)
    where = {item.name: n for item, n in zip(problem.items, places, strict=True)}
    for n, device in enumerate(problem.devices):
        here = [c for c, place in zip(picks, places, strict=True) if place == n]
        if sum(c.dsp for c in here) > device.dsp or sum(c.alm for c in here) > device.alm:
            return None
        own = device.clock_hz or problem.clock_hz
        sent = sum(link.bits_per_frame for link in problem.links if where[link.source] == n != where[link.target])
        got = sum(link.bits_per_frame for link in problem.links if where[link.target] == n != where[link.source])
        moved = sum(c.dram_bytes_per_frame for c in here)
        seconds = max(
            seconds,
            *(Fraction(c.cycles_per_frame, own) for c in here),
            Fraction(moved, device.dram_bytes_per_s),
            Fraction(sent) / device.link_bits_per_s,
            Fraction(got) / device.link_bits_per_s,
        )
    return seconds


OPTIONS = SearchOptions(seed=1, window_seconds=0.0, tidy_seconds=0.0, workers=1, anneal_budget=100_000)
SEEDS = tuple(range(24))


def found(problem: Instance, solver: Solver = Solver.FAST) -> int | None:
    try:
        return find_plan(problem, replace(OPTIONS, solver=solver)).cycles_per_frame
    except InfeasibleError:
        return None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_search_finds_what_trying_everything_finds(seed: int) -> None:
    problem, best = random_instance(seed), brute(random_instance(seed))
    assert found(problem) == best, f"seed {seed}"
    if best is not None:
        assert proven_bound(problem, OPTIONS).cycles_per_frame <= best, f"seed {seed}"


def test_clocks_matter_in_most_of_these() -> None:
    """With all devices at the instance's clock, the optimum is mostly another one."""
    problems = [random_instance(seed) for seed in SEEDS]
    alike = [replace(p, devices=tuple(replace(device, clock_hz=0) for device in p.devices)) for p in problems]
    differ = sum(brute(mine) != brute(other) for mine, other in zip(problems, alike, strict=True))
    assert differ > len(SEEDS) / 3, differ
    assert sum(brute(problem) is not None for problem in problems) > len(SEEDS) / 2


def test_the_literal_model_knows_clocks() -> None:
    for seed in SEEDS[:6]:
        best, literal = brute(random_instance(seed)), found(random_instance(seed), Solver.LITERAL)
        if best is None:
            assert literal is None, f"seed {seed}"
        else:
            # bisection ends at 5 %
            assert literal is not None, f"seed {seed}"
            assert best <= literal <= 1.05 * best + 1, f"seed {seed}: {literal} cycles, {best} is the best"


def test_a_given_placement_runs_at_the_clocks_of_its_devices() -> None:
    problem = pair((3, 3), clocks=(0, 300))
    plan = plan_from_assignment(problem, {"a": "d0", "b": "d1"}, OPTIONS)
    # three cycles at 300 Hz last as long as six at 600 Hz
    assert plan.cycles_per_frame == 6
    assert [item.cycles_per_frame for item in plan.items] == [3, 3]
    assert [device.clock_hz for device in plan.devices] == [0, 300]
    assert plan.steady_fps == 100.0
    faster = plan_from_assignment(pair((3, 3), clocks=(0, 800)), {"a": "d1", "b": "d1"}, OPTIONS)
    # 2.25 cycles, of which T has three
    assert faster.cycles_per_frame == 3


def pair(cycles: tuple[int, int], clocks: tuple[int, int]) -> Instance:
    """Two items on two devices."""
    items = tuple(
        Item(name=name, configurations={"P": (Configuration(label="c", cycles_per_frame=count, dsp=1),)})
        for name, count in zip("ab", cycles, strict=True)
    )
    devices = tuple(
        Device(name=f"d{n}", part="P", dsp=2, m20k=0, alm=0, dram_bytes_per_s=0, link_bits_per_s=10**6, clock_hz=clock)
        for n, clock in enumerate(clocks)
    )
    link = Link(source="a", target="b", kind=Kind.ACTIVATION, bits_per_frame=Fraction(1))
    return Instance(name="pair", clock_hz=CLOCK, items=items, links=(link,), devices=devices)


def test_one_clock_is_no_other_problem_and_no_other_text() -> None:
    problem = pair((3, 3), clocks=(0, 0))
    assert in_time(problem) is problem
    assert "clock_hz" not in instance_to_json(problem).partition("\n")[2].partition("devices")[2]
    plan = find_plan(problem, OPTIONS)
    assert '"clock_hz": 600' in plan.to_json()
    assert plan.to_json().count("clock_hz") == 1


def test_clocks_survive_files() -> None:
    problem = pair((3, 5), clocks=(0, 431))
    assert instance_from_json(instance_to_json(problem)) == problem
    plan = find_plan(problem, OPTIONS)
    assert plan_from_json(plan.to_json()) == plan


def test_a_clock_below_zero_is_refused() -> None:
    with pytest.raises(DagtrainError, match=r"device 'd1': clock_hz is -5"):
        pair((1, 1), clocks=(0, -5))


# --------------------------------------------------------------------------------------- faults put in


@cache
def split() -> tuple[Instance, Plan]:
    """One engine on each of two devices, of which the second is slower."""
    problem = pair((4, 4), clocks=(0, 300))
    return problem, plan_from_assignment(problem, {"a": "d0", "b": "d1"}, OPTIONS)


SPOILT: dict[str, tuple[Callable[[Plan], Plan], Rule, str]] = {
    "as if all had one clock": (
        lambda plan: replace(
            plan, cycles_per_frame=4, batch_cycles=4, steady_fps=150.0, throughput_fps=150.0, bound_fps=150.0,
            bound_cycles_per_frame=4, any_bound_cycles_per_frame=4, any_bound_fps=150.0,
        ),
        Rule.OBJECTIVE,
        "plan says 4 cycles a frame, its engines, DRAM and links need 8.000",
    ),
    "another clock of a device": (
        lambda plan: replace(plan, devices=(plan.devices[0], replace(plan.devices[1], clock_hz=600))),
        Rule.RECORD,
        "clock_hz is 600 in the plan, 300 in truth",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_the_validator_rejects_wrong_clocks(name: str) -> None:
    problem, plan = split()
    spoil, rule, message = SPOILT[name]
    assert violations(problem, plan) == []
    assert any(v.rule is rule and message in v.message for v in violations(problem, spoil(plan)))


def bound_wrong() -> bool:
    """Whether a bound is above, or far below, the optimum of a problem that one engine alone binds."""
    wrong = False
    for clocks, least in (((300, 300), 8), ((1200, 1200), 2), ((300, 1200), 2)):
        problem = pair((4, 1), clocks)
        wrong |= module("search").proven_bound(problem, OPTIONS).cycles_per_frame != least
    return wrong


def search_wrong() -> bool:
    """Whether the search ends elsewhere than at the optimum, or with a plan that the validator rejects."""
    for seed in SEEDS[:6]:
        try:
            cycles = module("search").find_plan(random_instance(seed), OPTIONS).cycles_per_frame
        except InfeasibleError:
            cycles = None
        except DagtrainError:
            return True
        if cycles != brute(random_instance(seed)):
            return True
    return False


def validator_wrong() -> bool:
    """Whether the validator lets a wrong plan pass, or a right one not."""
    problem, plan = split()
    told = module("validate").violations
    return bool(told(problem, plan)) or any(
        not any(message in v.message for v in told(problem, spoil(plan))) for spoil, _rule, message in SPOILT.values()
    )


FAULTS: list[tuple[Mutant, Callable[[], bool]]] = [
    (Mutant("search", "restrict(in_time(instance), ", "restrict(instance, ", ""), bound_wrong),
    (Mutant("clocks", "instance.clock_hz, device.clock_hz)", "device.clock_hz, instance.clock_hz)", ""), bound_wrong),
    (
        Mutant("plan", "ticks(c.cycles_per_frame, instance.clock_hz, ", "ticks(c.cycles_per_frame, 0, ", ""),
        search_wrong,
    ),
    (Mutant("validate", "cycles_per_frame * clock, own or clock)", "cycles_per_frame)", ""), validator_wrong),
    (Mutant("validate", ', "clock_hz": device.clock_hz}', "}", ""), validator_wrong),
]


@pytest.mark.parametrize(("mutant", "question"), FAULTS, ids=[f"{m.name} {q.__name__}" for m, q in FAULTS])
def test_a_fault_in_what_knows_clocks_is_found(mutant: Mutant, question: Callable[[], bool]) -> None:
    assert not question()
    with mutated(mutant):
        assert question()
