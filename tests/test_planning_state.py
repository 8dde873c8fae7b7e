"""What changes while a plan is made has one owner each, the best plan, the time, the bound of all foldings, and asking
where a search would go on changes nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from dagtrain.planning import fewer, ladder
from dagtrain.planning.any_bound import AnyBound
from dagtrain.planning.best import Best
from dagtrain.planning.choices import plan_choices
from dagtrain.planning.ladder import Ladder
from dagtrain.planning.levels import between, slower, useful
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import RATES, Found, Planned, Start, with_binding
from dagtrain.planning.timetable import CIRCUITS, FIRST_SHARE, HOLDING_MARGIN, RENEWED, Timetable, spending
from dagtrain.progress import Silent
from placement.problem.deadline import Deadline, Ended
from placement.problem.plan import Binding, Bound, Plan
from placement.search.descent import Descent
from placement.search.search import SearchOptions, find_plan
from tests.flow_support import Clock, QuickEstimator
from tests.test_relays import residual, small_cluster


def planner() -> Planner:
    estimator: Any = QuickEstimator()
    return Planner(residual(1), small_cluster(2, 40), estimator, SearchOptions(seed=1), {}, Silent())


@cache
def planned() -> Planned:
    return planner().run()


def at(cycles: int, item: str | None = None) -> Planned:
    """The plan, as if it trained a frame in so many cycles; with ``item``, as if of another graph."""
    plan = planned().plan
    items = plan.items if item is None else tuple(replace(placed, item=item + placed.item) for placed in plan.items)
    return replace(planned(), plan=replace(plan, batch_cycles=cycles * plan.batch_frames, items=items))


# ---- the best plan


def test_only_faster_plans_that_are_fast_enough_are_told() -> None:
    told: list[Planned] = []
    best = Best(fast_enough=lambda plan: plan.training_cycles <= 200, keep=told.append)
    for cycles in (300, 200, 250, 200, 100):
        best.take(at(cycles))
    assert told == [at(200), at(100)]
    assert best.planned == at(100)
    assert best.training_cycles == 100


def test_a_slower_plan_of_the_same_graph_leaves_its_bounds_and_its_search() -> None:
    best = Best()
    best.take(at(100))
    further = at(150)
    assert further.searched is not None
    further = replace(further, searched=replace(further.searched, levels=(1, 2, 3)))
    best.take(further)
    assert best.planned is not None
    assert best.planned.plan.training_cycles == 100
    assert best.planned.searched == further.searched
    best.take(replace(at(150, "relayed_"), searched=None))
    assert best.planned.searched == further.searched


def test_a_plan_says_what_binds_it_and_not_what_bound_a_search() -> None:
    best, other = Best(), (Binding(kind="dsp", reason="of another plan"),)
    best.take(at(100))
    assert best.planned is not None
    slower_one = at(150)
    best.take(replace(slower_one, plan=replace(slower_one.plan, binding=other)))
    assert best.planned.plan.binding == at(100).plan.binding
    plan = planned().plan
    found = replace(plan, binding=other)
    assert with_binding(planned(), found).plan.binding == other
    missed = with_binding(planned(), replace(found, cycles_per_frame=found.cycles_per_frame - 1)).plan.binding
    assert missed != other
    assert all(binding.kind in RATES or f"{plan.cycles_per_frame:,}" in binding.reason for binding in missed)


def test_another_plan_of_the_network_counts_as_one_but_is_not_taken() -> None:
    best = Best(known_cycles=Fraction(7, 2))
    assert best.there_is_one
    assert best.planned is None
    assert best.training_cycles == Fraction(7, 2)
    assert not Best().there_is_one
    assert Best().training_cycles is None


def test_the_fastest_placement_that_is_not_kept_is_known_and_why() -> None:
    best = Best()
    best.take(at(100))
    assert best.missed is None
    pace = planned().plan.cycles_per_frame
    slower_to_train = at(200)
    best.take(replace(slower_to_train, plan=replace(slower_to_train.plan, cycles_per_frame=pace - 3)))
    assert best.missed is not None
    assert best.missed.cycles_per_frame == pace - 3
    text = best.missed.text(planned().plan.clock_hz)
    assert text.endswith("training gets 1,000,000 frames/s with it, and 2,000,000 with the plan of then"), text
    best.miss(replace(planned().plan, cycles_per_frame=pace - 1), "slower than that")
    assert best.missed.cycles_per_frame == pace - 3
    best.miss(replace(planned().plan, cycles_per_frame=pace - 4), "no room")
    assert best.missed.why == "no room"


@pytest.mark.parametrize(("quotient", "said"), [(Fraction(1, 2), 1), (Fraction(1), 0), (Fraction(999, 1000), 0)])
def test_a_user_is_told_of_a_faster_placement_that_was_not_kept(
    quotient: Fraction, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Best.take

    def take_and_miss(best: Best, found: Planned) -> None:
        take(best, found)
        best.miss(replace(found.plan, cycles_per_frame=found.plan.cycles_per_frame * quotient), "no room for it")

    monkeypatch.setattr(Best, "take", take_and_miss)
    made = planner()
    made.run()
    assert [warning.endswith("was found and not kept: no room for it") for warning in made.warnings] == [True] * said


# ---- the time


def test_time_is_left_for_pricing_and_the_deadline_is_back_after_closing() -> None:
    clock = Clock()
    time = Timetable(Deadline(100, clock))
    assert time.looking.seconds_left == 100
    with time.holding():
        clock.now += 10
    with time.holding():
        clock.now += 5
    assert time.holding_seconds == 10
    assert time.looking.seconds_left == 85 - HOLDING_MARGIN * 10
    assert time.looking_first.seconds_left == FIRST_SHARE * time.looking.seconds_left
    # circuits are known then, but for some that the next placement has anew
    with time.holding(), spending(time.spent, CIRCUITS, time.deadline):
        clock.now += 8
    assert time.holding_seconds == 10
    with time.holding(), spending(time.spent, CIRCUITS, time.deadline):
        clock.now += 16 / RENEWED
    assert time.holding_seconds == 16
    whole = time.deadline
    whole.interrupt()
    assert time.looking.over
    with suppress(Ended), time.closing() as closing:
        assert time.deadline is closing
        assert not closing.over
        closing.interrupt()
        closing.check()
    assert whole.interrupted
    assert time.deadline is whole


def test_seconds_are_noted_also_where_work_is_ended() -> None:
    clock, spent = Clock(), Timetable().spent
    deadline = Deadline(None, clock)
    for _ in range(2):
        with suppress(Ended), spending(spent, "circuits", deadline):
            clock.now += 3
            raise Ended("over")
    assert spent == {"circuits": 6}


# ---- the bound of all foldings


def test_the_bound_is_proven_once_and_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plan, proven, warnings = planner(), planned().plan, list[int](), list[str]()

    def prove(*_: object) -> Bound:
        proven.append(plan.cycles_per_frame)
        return Bound(plan.cycles_per_frame, "foldings")

    foldings = made.searcher.any_bound.foldings
    monkeypatch.setattr(type(foldings), "bound", prove)
    bound = AnyBound(foldings, made.problem.search)
    assert proven == []
    for _ in range(2):
        assert bound.of(plan, Deadline(), warnings.append).any_bound_cycles_per_frame == plan.cycles_per_frame
    assert (proven, warnings) == ([plan.cycles_per_frame], [])
    below = replace(plan, cycles_per_frame=plan.cycles_per_frame - 1)
    for _ in range(2):
        assert bound.of(below, Deadline(), warnings.append).any_bound_cycles_per_frame < below.cycles_per_frame
    assert len(proven) == len(warnings) == 1
    shared = made.searcher.without(["d1"], Best(), Fraction(100))
    assert shared.any_bound is made.searcher.any_bound
    assert shared.prices is made.searcher.prices


# ---- fewer devices


@pytest.mark.parametrize(
    ("two", "full", "faster_on", "tried"),
    [
        # the bound promises nothing on one device; the way is shortest on two
        (110, 1, {}, [2, 3, 4]),
        # a plan there leaves nothing for more devices
        (110, 1, {2: 130}, [2]),
        # two are in vain, and three are not
        (110, 1, {3: 130}, [2, 3]),
        # three promise most and are in vain: two are left out, and four are not
        (140, 1, {}, [3, 4]),
        # two promise nothing
        (200, 1, {3: 191}, [3]),
        # 19 of 20 block memories are taken: four devices would be a quarter slower, which is 210 cycles
        (110, 19, {}, []),
    ],
)
def test_where_fewer_devices_are_in_vain_more_are_still_tried(
    monkeypatch: pytest.MonkeyPatch, two: int, full: int, faster_on: dict[int, int], tried: list[int]
) -> None:
    names = [f"d{number}" for number in range(5)]
    plan = SimpleNamespace(
        items=[SimpleNamespace(device=name) for name in names], batch_frames=1, cycles_per_frame=100,
        training_cycles=Fraction(200), any_bound_cycles_per_frame=100,
        devices=[
            SimpleNamespace(device=name, dsp=1, dsp_capacity=9, m20k=full, m20k_capacity=20, alm=0, alm_capacity=9)
            for name in names
        ],
    )  # fmt: skip
    best = SimpleNamespace(planned=SimpleNamespace(plan=plan), training_cycles=Fraction(200))
    # cycles a frame that no plan on so many devices can do without
    bounds = {1: 300, 2: two, 3: 110, 4: 110}
    searcher: Any = SimpleNamespace(
        problem=SimpleNamespace(devices=[SimpleNamespace(name=name) for name in names], pins={}, graph=0, cluster=0),
        best=best, time=SimpleNamespace(looking=None),
        without=lambda rest, _best, _slowest: SimpleNamespace(problem=SimpleNamespace(search=5 - len(rest))),
        any_bound=SimpleNamespace(
            foldings=SimpleNamespace(bound=lambda count, _: SimpleNamespace(cycles_per_frame=bounds[count]))
        ),
    )  # fmt: skip
    monkeypatch.setattr(fewer, "plan_time", lambda *_, **__: SimpleNamespace(cycles=120))
    found = []
    for one in fewer.on_fewer_devices(searcher, searcher):
        found.append(one.problem.search)
        best.training_cycles = min(best.training_cycles, Fraction(faster_on.get(found[-1], 1000)))
    assert found == tried


# ---- where a search would go on


def test_asking_whether_a_graph_promises_more_changes_no_plan() -> None:
    than, asked = planned().searched, planner()
    assert than is not None
    slow = replace(than, plan=replace(than.plan, cycles_per_frame=10 * than.plan.cycles_per_frame))
    known = planned().plan.training_cycles
    assert asked.promising(than, {}, known) is None, "the same graph is no faster"
    found = asked.promising(slow, {}, known)
    assert found is not None
    assert found.planned is None
    assert asked.run().plan.to_json() == planned().plan.to_json()


# ---- levels


def test_levels_lie_between_what_is_known_and_what_is_wanted() -> None:
    assert between(100, 100, 3) == []
    assert between(100, 1600, 3) == [200, 400, 800]
    assert between(100, 1600, 3, known=[400, 2000]) == [566, 800, 1131]
    small = [100, 103, 107, 110, 113, 116, 120, 123]
    assert slower(100, []) == slower(100, [90]) == small
    # no pace is left out where the next level priced is far
    assert slower(100, [90, 150]) == [*small, 148, 150]
    assert slower(100, [90, 300, 150]) == [*small, 148, 150, 178, 214, 257, 300]
    # what hardly differs from the plan is not worth pricing
    assert between(9_960, 10_000, 3) == []
    assert between(9_900, 10_000, 1) == [9950]
    assert between(9_940, 10_000, 3) == []


@pytest.mark.parametrize(
    ("paces", "priced"),
    [
        # the fastest level has room: nothing else is priced
        ([100], [100]),
        # it has none, and one in the middle between it and the plan shows the way
        ([160, 100], [100, 126]),
        # then three at most, none slower than the plan
        ([160, 150, 120], [100, 126, 141]),
    ],
)
def test_a_level_is_priced_only_where_those_before_have_no_room(
    monkeypatch: pytest.MonkeyPatch, paces: list[int], priced: list[int]
) -> None:
    first = replace(planned().plan, cycles_per_frame=400)
    asked: list[list[int]] = []

    def better(_: Ladder, best: Plan, levels: list[int]) -> Plan:
        asked.append(levels)
        return replace(best, cycles_per_frame=paces[len(asked) - 1])

    monkeypatch.setattr(Ladder, "better", better)
    best, levels = Ladder(planner().searcher)._further(Found(first, (400,)), 100, 3)
    assert best.cycles_per_frame == paces[-1]
    assert levels == sorted({400, *priced})
    assert [new for before, after in pairwise([[400], *asked]) for new in after if new not in before] == priced


@pytest.mark.parametrize(
    ("paces", "priced", "kept"),
    [
        # two thirds of the time each, kept, until the fastest is as near
        ([260, 170, 140, 100], [267, 173, 113, 100], [260, 170, 140]),
        # one that brings nothing is the last of them, nor is it kept
        ([260, 260, 100], [267, 173, 100], [260]),
        # too fast already for a level between
        ([150, 100], [267, 100], [150]),
    ],
)
def test_where_circuits_are_huge_nearer_levels_come_before_the_fastest(
    monkeypatch: pytest.MonkeyPatch, paces: list[int], priced: list[int], kept: list[int]
) -> None:
    first = replace(planned().plan, cycles_per_frame=400)
    asked: list[list[int]] = []
    held: list[int] = []

    def better(_: Ladder, best: Plan, levels: list[int]) -> Plan:
        asked.append(levels)
        return replace(best, cycles_per_frame=paces[len(asked) - 1])

    monkeypatch.setattr(Ladder, "better", better)
    monkeypatch.setattr(Ladder, "hold", lambda _, found: held.append(found.plan.cycles_per_frame))
    monkeypatch.setattr(ladder, "HUGE_MULTIPLIERS", 0)
    best, _levels = Ladder(planner().searcher)._further(Found(first, (400,)), 100, 3)
    assert best.cycles_per_frame == paces[-1]
    assert [new for before, after in pairwise([[400], *asked]) for new in after if new not in before] == priced
    assert held == kept


def test_what_an_earlier_search_had_found_is_mended_where_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = planner().run().searched
    assert searched is not None
    mended: list[bool] = []

    def hold(_: Ladder, __: Found, *, at_any_cost: bool = False) -> None:
        mended.append(at_any_cost)
        raise Ended("enough is seen")

    monkeypatch.setattr(Ladder, "hold", hold)
    for start in (Start(searched.plan, searched.levels), None):
        with pytest.raises(Ended, match="enough is seen"):
            Ladder(planner().searcher).climb(start)
    assert mended == [True, False]


def test_a_search_goes_on_with_the_levels_that_its_plan_takes() -> None:
    made = planner()
    found = made.run().searched
    assert found is not None
    taken = {choice.cycles for choice in plan_choices(found.plan).values()}
    # engines divide their work evenly: a plan may be faster than all levels that it takes
    plan = replace(found.plan, cycles_per_frame=min(taken) - 1)
    kept = useful([1, *found.levels, max(found.levels) + 1], plan, made.problem.cluster)
    assert set(kept) == {1, *taken, *(level for level in found.levels if level < min(taken))}


def test_searches_that_tell_where_to_look_prove_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher, stages = planner().searcher, list[str]()
    monkeypatch.setattr(Descent, "_refute_up", lambda _search, stage, *_: stages.append(stage))
    instance = searcher.prices.instance([planned().plan.cycles_per_frame])
    for options in (searcher.glance, searcher.quick):
        find_plan(instance, replace(options, exact_choices=0, gap=0))
        assert stages == []
    assert searcher.last.proves
