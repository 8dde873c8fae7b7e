"""Bounds, against the optima of more than two hundred problems found by trying everything, and faults put into them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdl.errors import InfeasibleError
from placement.problem.instance import Configuration, Instance, Item
from placement.problem.plan import Assignment, Bound, Plan, build_plan, plan_from_json, with_bound
from placement.problem.validate import violations
from placement.search.search import SearchOptions, find_plan
from tests import bound_mutants as mutants
from tests.bound_instances import CLOCK, CREDITS, KINDS, STORE, Known, digest, optimum, stored
from tests.test_placement_search import brute_force

# of the stored instances, those looked at in every run
FEW: Sequence[Known] = stored()[::6]
# CP-SAT takes up to a second for the windows of one
FEWER: Sequence[Known] = stored()[::37]
# how often, of those, each bound reaches the optimum
TIGHT = {"single": 3, "aggregate": 10, "cases": 10, "packing": 10, "neighbourhood": 3}


def test_stored_instances_are_those_of_the_generator_and_all_constraints_bind_somewhere() -> None:
    record = json.loads(STORE.read_text())
    assert record["digest"] == digest([known.problem for known in stored()]), "run python -m tests.bound_instances"
    counts = Counter(kind for known in stored() for kind in known.binds)
    assert len(stored()) >= 200
    assert all(counts[kind] >= 10 for kind in KINDS), counts
    # devices of one part that are not alike
    unlike = sum(
        len({device.shape for device in known.problem.instance.devices})
        > len({device.part for device in known.problem.instance.devices})
        for known in stored()
    )
    assert unlike >= 10


def test_stored_optima_are_found_again_by_another_enumeration() -> None:
    for known in stored()[:24:2]:
        assert optimum(known.problem) == known.optimum, f"seed {known.problem.seed}"
    plain = [known for known in stored() if not known.problem.together and not known.problem.exclude]
    for known in plain[7:60:9]:
        assert brute_force(known.problem.instance) == known.optimum, f"seed {known.problem.seed}"


@pytest.mark.parametrize("question", [name for name in mutants.QUESTIONS if "window" not in name])
def test_nothing_is_wrong_at_instances_whose_optimum_is_known(question: str) -> None:
    for known in FEW:
        assert mutants.QUESTIONS[question](known) == "", f"seed {known.problem.seed}"


@pytest.mark.parametrize("question", [name for name in mutants.QUESTIONS if "window" in name])
def test_windows_refute_no_placement(question: str) -> None:
    for known in FEWER:
        assert mutants.QUESTIONS[question](known) == "", f"seed {known.problem.seed}"


@pytest.mark.slow
@pytest.mark.parametrize("question", mutants.QUESTIONS)
def test_nothing_is_wrong_at_any_instance_whose_optimum_is_known(question: str) -> None:
    for known in stored():
        assert mutants.QUESTIONS[question](known) == "", f"seed {known.problem.seed}"


@pytest.mark.parametrize("bound", TIGHT)
def test_bounds_reach_the_optimum_where_what_they_look_at_binds(bound: str) -> None:
    reached = []
    for known in FEW:
        instance = mutants.restricted(known)
        if bound == "single":
            tight = mutants.module("bound").single_bound(instance, 1 << 30).cycles_per_frame == known.optimum
        else:
            tight = mutants.refuters(instance)[bound](known.optimum - 1)
        if tight:
            reached.append(known.problem.seed)
    assert len(reached) >= TIGHT[bound], reached


def test_a_window_is_as_tight_as_its_network() -> None:
    by_hand = {known.problem.seed: known for known in stored()}
    for seed in (-6, -7):
        instance = mutants.restricted(by_hand[seed])
        assert mutants.refuters(instance)["window"](by_hand[seed].optimum - 1), f"seed {seed}"


def _refuting_credits(seed: int) -> set[str]:
    """Who knows that such an instance has no placement a cycle below its optimum."""
    known = next(known for known in stored() if known.problem.seed == seed)
    instance, cycles = mutants.restricted(known), known.optimum - 1
    flat, table = mutants.module("flat").flatten(instance), mutants.module("options").OptionTable(instance)
    literal, answer = mutants.module("literal"), mutants.module("model").Answer
    encode, anneal = mutants.module("encode"), mutants.module("anneal")
    found = {name for name in ("exact", "neighbourhood") if mutants.refuters(instance)[name](cycles)}
    if literal.decide(instance, table, cycles, mutants.effort(1.0))[0] is answer.INFEASIBLE:
        found.add("literal")
    problem = encode.encode(instance, flat, cycles, merge=False).problem
    energy, _ = anneal.anneal(problem, encode.mirror_start(problem, None), moves=5_000, seed=1)
    return found | ({"annealing"} if energy > 0.0 else set())


def test_credits_take_their_part_of_links_in_every_bound_and_search() -> None:
    assert _refuting_credits(-8) == {"exact", "neighbourhood", "literal", "annealing"}
    for seed in (-9, -10):
        assert _refuting_credits(seed) >= {"exact", "literal", "annealing"}, f"seed {seed}"


@pytest.mark.parametrize(
    ("module", "old", "new", "who"),
    [
        ("model", "a_frame in link.ways:", "a_frame in link.ways[:1]:", "exact"),
        ("neighbourhood", "bits in link.ways:", "bits in link.ways[:1]:", "neighbourhood"),
        ("literal", "F * apart[l, k, n] + C * apart[k, l, n]", "F * apart[l, k, n]", "literal"),
        ("literal", "F * apart[k, l, n] + C * apart[l, k, n]", "F * apart[k, l, n]", "literal"),
        ("encode", "leave, arrive = bits[side], bits[1 - side]", "leave, arrive = bits[0] * (1 - side), bits[0] * side",
         "annealing"),
    ],
)  # fmt: skip
def test_a_search_that_forgets_credits_is_found(module: str, old: str, new: str, who: str) -> None:
    with mutants.mutated(mutants.Mutant(module, old, new, "")):
        knows = [seed for seed in CREDITS if who in _refuting_credits(seed)]
    assert knows != [seed for seed in CREDITS if who in _refuting_credits(seed)]


def test_a_throughput_just_above_the_optimum_is_refused_as_impossible() -> None:
    for known in FEW[::3]:
        problem = known.problem
        options = SearchOptions(
            least_fps=CLOCK / (known.optimum - 1), exclude=problem.exclude, explain=False,
            same_device=(problem.together,) if problem.together else (),
        )  # fmt: skip
        with pytest.raises(InfeasibleError):
            find_plan(problem.instance, options)


# --- mutants -----------------------------------------------------------------------------------------------------


def _in_kernel(mutant: mutants.Mutant) -> bool:
    """Whether compiling the mutant takes seconds."""
    return mutant.module == "aggregate" and "[row" in mutant.old


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, marks=[pytest.mark.slow] if _in_kernel(m) else [], id=f"{m.module}{i}")
     for i, m in enumerate(mutants.MUTANTS)],
)  # fmt: skip
def test_a_fault_in_a_bound_is_found(mutant: mutants.Mutant) -> None:
    killers = json.loads(mutants.STORE.read_text())
    by_seed = {known.problem.seed: known for known in stored()}
    with mutants.mutated(mutant):
        found = mutants.wrong(mutant, by_seed[killers[mutant.name]])
    assert found, f"{mutant.name} is not found where it was; run python -m tests.bound_mutants"
    # … and not for another reason
    assert mutants.wrong(mutant, by_seed[killers[mutant.name]]) == ""


@pytest.mark.slow
def test_every_fault_is_found_somewhere_without_being_told_where() -> None:
    alive = [mutant.name for mutant in mutants.MUTANTS if mutants.found_at(mutant, stored()) is None]
    assert alive == []


# --- exact gaps --------------------------------------------------------------------------------------------------


def _plan_of(clock: int, cycles: int) -> tuple[Instance, Plan]:
    device = stored()[0].problem.instance.devices[0]
    item = Item(name="i", configurations={device.part: (Configuration(label="c", cycles_per_frame=cycles),)})
    instance = Instance(name="one", clock_hz=clock, items=(item,), links=(), devices=(device,))
    return instance, build_plan(instance, Assignment((0,), (0,)), Bound(1, "nothing is faster"), seed=0)


@given(st.integers(1, 10**9), st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 10**7))
@settings(max_examples=300, deadline=None)
def test_every_bound_put_into_a_plan_is_accepted_by_the_validator(
    clock: int, cycles: int, bound: int, any_bound: int
) -> None:
    instance, plan = _plan_of(clock, cycles)
    bounded = with_bound(plan, Bound(bound, "drawn"), Bound(any_bound, "drawn for all"))
    assert violations(instance, bounded) == []
    assert violations(instance, plan_from_json(bounded.to_json())) == []


@given(st.integers(0, len(stored()) - 1), st.integers(0, 5), st.floats(0.0, 0.5), st.booleans())
@settings(max_examples=12, deadline=None)
def test_going_on_from_a_plan_never_ends_worse(number: int, seed: int, gap: float, exact: bool) -> None:
    problem = stored()[number].problem
    options = SearchOptions(
        seed=seed, gap=gap, exclude=problem.exclude, explain=False, exact_choices=2_500 if exact else 0,
        same_device=(problem.together,) if problem.together else (), anneal_moves=2_000, anneal_budget=20_000,
        window_seconds=0.0,
    )  # fmt: skip
    first = find_plan(problem.instance, options)
    assert violations(problem.instance, first) == []
    assert first.gap <= gap or not exact
    again = find_plan(problem.instance, replace(options, gap=0.0, seed=seed + 1, start=plan_from_json(first.to_json())))
    assert violations(problem.instance, again) == []
    assert again.cycles_per_frame <= first.cycles_per_frame
