"""The literal solver, the fast one and brute force agree on what is feasible, on hundreds of small random instances."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.synthetic import devices, instance_of, small_residual
from hdl.errors import InfeasibleError, OutOfTimeError
from hdl.tensor import Kind
from placement.exact import literal
from placement.exact.model import Answer, Effort
from placement.problem.instance import Configuration, Device, Instance, Item, Link
from placement.problem.options import OptionTable
from placement.problem.plan import Plan, least_cycles, unequal_joins
from placement.problem.validate import violations
from placement.search.search import SearchOptions, Solver, find_plan, plan_from_assignment
from tests.suites import quick

CLOCK = 1000
EFFORT = Effort(deterministic_seconds=5.0)


def small_instance(seed: int) -> Instance:
    """Three to six items on one to three devices: branches, both directions, stashes, DRAM, pins, couplings, tiles."""
    rng = np.random.default_rng(seed)
    machines = tuple(
        Device(
            name=f"d{n}", part="PQ"[int(rng.integers(2))], dsp=int(rng.integers(3, 12)), m20k=int(rng.integers(3, 9)),
            alm=int(rng.integers(10, 40)), dram_bytes_per_s=int(rng.integers(0, 3)) * 500,
            link_bits_per_s=int(rng.integers(0, 4)) * 700,
        )
        for n in range(int(rng.integers(1, 4)))
    )  # fmt: skip
    count = int(rng.integers(3, 7))
    tiled = seed % 3 == 0
    items = []
    for i in range(count):
        menu = {
            part: tuple(
                Configuration(
                    label=f"c{k}", cycles_per_frame=int(rng.integers(5, 60)), dsp=int(rng.integers(0, 5)),
                    m20k=int(rng.integers(0, 4)), alm=int(rng.integers(0, 9)),
                    dram_bytes_per_frame=int(rng.integers(0, 2)) * int(rng.integers(1, 20)),
                    tile="ab"[k] if tiled and i in (1, 2) else None,
                )
                for k in range(2)
            )
            for part in "PQ"
        }  # fmt: skip
        items.append(
            Item(
                name=f"i{i}", configurations=menu, tile_group="g" if tiled and i in (1, 2) else None,
                pinned="d0" if i == 0 else None, same_device="s" if seed % 7 == 0 and i in (1, 2) else None,
            )
        )  # fmt: skip
    kinds = (Kind.ACTIVATION, Kind.ERROR, Kind.STASH, Kind.WEIGHT)
    links = [
        Link(source=f"i{i}", target=f"i{j}", kind=kinds[int(rng.integers(4))],
             bits_per_frame=Fraction(int(rng.integers(0, 50)), int(rng.integers(1, 4))),
             sender_m20k=int(rng.integers(2)), receiver_alm=int(rng.integers(3)))
        for i, j in itertools.combinations(range(count), 2)
        if j == i + 1 or rng.random() < 0.3
    ]  # fmt: skip
    return Instance(name=f"small {seed}", clock_hz=CLOCK, items=tuple(items), links=tuple(links), devices=machines)


def _plan(instance: Instance, options: SearchOptions) -> Plan | None:
    try:
        return find_plan(instance, options)
    except InfeasibleError:
        return None


# twenty instances each
@pytest.mark.parametrize("block", quick(2, range(10)))
def test_literal_and_fast_solver_agree_on_what_is_feasible(block: int) -> None:
    feasible = 0
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        instance = small_instance(seed)
        fast = _plan(instance, SearchOptions())
        slow = _plan(instance, SearchOptions(solver=Solver.LITERAL))
        assert (fast is None) == (slow is None), f"seed {seed}"
        if fast is None or slow is None:
            continue
        feasible += 1
        assert violations(instance, slow) == [], f"seed {seed}"
        assert fast.cycles_per_frame <= slow.cycles_per_frame, f"seed {seed}"
        assert slow.throughput_fps * 1.06 >= fast.throughput_fps, f"seed {seed}: literal stops within 5 % of the best"
        table = OptionTable(instance)
        cycles = fast.cycles_per_frame
        assert literal.decide(instance, table, cycles, EFFORT)[0] is Answer.FEASIBLE, f"seed {seed}"
        assert literal.decide(instance, table, cycles - 1, EFFORT)[0] is Answer.INFEASIBLE, f"seed {seed}"
    assert 2 <= feasible <= 19, "instances of both sorts"


def _brute_force(instance: Instance, cycles: int) -> bool:
    """Whether any devices and configurations at all make a valid plan at T; the judge is the validator."""
    for places in itertools.product(range(len(instance.devices)), repeat=len(instance.items)):
        names = {item.name: instance.devices[n].name for item, n in zip(instance.items, places, strict=True)}
        if unequal_joins(instance, places):
            continue
        try:
            plan = plan_from_assignment(instance, names, SearchOptions(least_fps=CLOCK / cycles))
        except (InfeasibleError, OutOfTimeError):
            continue
        assert plan.cycles_per_frame <= cycles
        return True
    return False


@pytest.mark.parametrize("seed", range(2000, 2012))
def test_literal_decisions_are_those_of_brute_force(seed: int) -> None:
    instance = small_instance(seed)
    instance = replace(instance, items=instance.items[:4], links=tuple(
        link for link in instance.links if max(int(link.source[1:]), int(link.target[1:])) < 4))  # fmt: skip
    table = OptionTable(instance)
    for cycles in (20, 45, 80):
        answer, assignment = literal.decide(instance, table, cycles, EFFORT)
        assert (answer is Answer.FEASIBLE) == _brute_force(instance, cycles), f"T = {cycles}"
        if assignment is not None:
            least = least_cycles(instance, assignment)
            assert least is not None
            assert least <= cycles


def test_literal_solver_plans_a_training_graph_within_its_precision_and_says_what_its_bound_is() -> None:
    instance = instance_of("small", small_residual, devices((2, "10AX115")))
    fast = find_plan(instance)
    plan = find_plan(instance, SearchOptions(solver=Solver.LITERAL))
    assert fast.cycles_per_frame <= plan.cycles_per_frame <= 1.06 * fast.cycles_per_frame
    assert plan.bound_cycles_per_frame <= fast.cycles_per_frame
    assert plan.bound_basis.startswith("equations (1)–(6) refuted at ")


def test_literal_solver_tells_infeasible_from_out_of_time() -> None:
    instance = instance_of("small", small_residual, devices((2, "10AX115")))
    with pytest.raises(InfeasibleError, match=r"by equations \(1\)–\(6\)"):
        find_plan(instance, SearchOptions(solver=Solver.LITERAL, least_fps=100_000_000.0))
    with pytest.raises(OutOfTimeError, match="none excluded; allow more time"):
        find_plan(instance, SearchOptions(solver=Solver.LITERAL, decision_seconds=1e-6))
