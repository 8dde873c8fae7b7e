"""`dagtrain place --time-limit` on an injected clock: it covers everything, and says what it went into."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dagtrain.flow import place_step
from dagtrain.flow.workspace import Workspace
from dagtrain.planning import ladder, realise, searcher
from dagtrain.planning.costs import LevelCosts
from dagtrain.planning.prices import Prices
from dagtrain.planning.realise import Realiser
from dagtrain.planning.timetable import HOLDING_MARGIN
from hdl.costs.estimate import Circuit
from placement.problem.deadline import Deadline
from tests.flow_support import Case, Clock, QuickEstimator, new_case, quick_costs

OPTIONS = ("--cap", "dsp=0.001")


class SlowEstimator(QuickEstimator):
    """Takes a second of the clock for every circuit that it doesn't know yet."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.known = clock, set[str]()

    def prepare(self, wanted: Mapping[str, Circuit], on_done: Callable[[int], None] = lambda _: None) -> None:
        """One after the other."""
        for key in wanted:
            self.clock.now += 0.0 if key in self.known else 1.0
            self.known.add(key)
            on_done(1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Case:
    quick_costs(monkeypatch)
    made = new_case(tmp_path / "case")
    assert made.step("import").code == 0
    monkeypatch.setattr(place_step, "Estimator", lambda: SlowEstimator(clock))
    monkeypatch.setattr(place_step, "Deadline", lambda limit, _clock: Deadline(limit, clock))
    return made


def test_too_short_a_limit_says_what_it_went_into_and_which_one_does(case: Case, clock: Clock) -> None:
    began = clock.now
    outcome = case.step("place", *OPTIONS, "--time-limit", "5")
    assert outcome.code == 1
    assert clock.now == began + 5, "pricing stops at the limit"
    told = re.search(
        r"the time limit of 5 s is over before there was a plan: 5.0 s went into circuits \(5 of (\d+) circuits of the "
        r"first level elaborated\); --time-limit (\d+) should do",
        outcome.error,
    )
    assert told, outcome.error
    assert "no placement" not in outcome.error
    assert not (case.out / "place").exists()
    circuits, sufficient = map(int, told.groups())
    assert sufficient >= 2 * circuits
    assert case.step("place", *OPTIONS, "--time-limit", sufficient).code == 0


def test_no_limit_is_overrun_and_a_longer_one_is_no_worse(case: Case, clock: Clock) -> None:
    rates = []
    for limit in (100, 150, 250, 1000):
        began = clock.now
        outcome = case.step("place", "--time-limit", limit, "--seed", str(limit))
        assert outcome.code == 0, outcome.error
        assert clock.now <= began + limit
        rates.append(json.loads((case.out / "place" / "plan.json").read_text())["throughput_fps"])
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    assert "goes on" not in outcome.out


def test_a_search_leaves_the_time_that_pricing_its_placement_takes(
    case: Case, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed, priced = Realiser.fixed, list[float]()

    def slow(realiser: Realiser, *words: Any, **options: Any) -> Any:
        for _ in range(10):
            clock.now += 1.0
            realiser.searcher.time.deadline.check()
        priced.append(clock.now)
        return fixed(realiser, *words, **options)

    searched = list[float]()
    search = searcher.find_plan

    def forever(*words: Any) -> Any:
        plan = search(*words)
        deadline = words[3]
        if priced:
            # as long as it may
            clock.now += deadline.seconds_left
            searched.append(clock.now)
        return plan

    monkeypatch.setattr(place_step, "Estimator", QuickEstimator)
    monkeypatch.setattr(Realiser, "fixed", slow)
    monkeypatch.setattr(searcher, "find_plan", forever)
    began = clock.now
    outcome = case.step("place", "--time-limit", "200")
    assert outcome.code == 0, outcome.error
    assert searched, "a search after the first plan"
    assert searched[0] <= began + 200 - 10 * HOLDING_MARGIN
    assert len(priced) > 1, "what it found is priced"
    assert clock.now <= began + 200


def test_without_time_for_other_placements_the_one_found_is_priced_at_slower_levels(
    case: Case, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def holding(realiser: Realiser, *_: Any) -> None:
        # it takes so long that no search may begin after it
        time = realiser.searcher.time
        clock.now += 60.0 if time.holding_seconds == 0.0 else 0.0
        time.holding_seconds = 60.0

    monkeypatch.setattr(Realiser, "holding", holding)
    outcome = case.step("place", "--time-limit", "150")
    assert outcome.code == 0, outcome.error
    assert json.loads((case.out / "place" / "plan.json").read_text())["throughput_fps"] > 0


def _levels_and_plans(monkeypatch: pytest.MonkeyPatch, on_plan: Callable[[], None] = lambda: None) -> list[int | str]:
    """What a search does from now on: cycles a frame of a level that is elaborated, "plan" when one is written."""
    events: list[int | str] = []
    elaborate, leave = Prices._elaborate, Workspace.leave

    def watched(prices: Prices, level: LevelCosts, deadline: Deadline) -> None:
        # not of the circuits that a placement has
        if level.folds is None:
            events.append(level.cycles)
        elaborate(prices, level, deadline)

    def left(workspace: Workspace, *words: Any) -> None:
        leave(workspace, *words)
        events.append("plan")
        on_plan()

    monkeypatch.setattr(Prices, "_elaborate", watched)
    monkeypatch.setattr(Workspace, "leave", left)
    return events


@pytest.mark.slow
def test_where_circuits_are_large_a_plan_of_small_ones_comes_first_and_changes_no_other(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = _levels_and_plans(monkeypatch)
    assert case.step("place", *OPTIONS).code == 0
    without, plan = [*events], (case.out / "place" / "plan.json").read_bytes()
    events.clear()
    monkeypatch.setattr(ladder, "MANY_MULTIPLIERS", 0)
    monkeypatch.setattr(ladder, "MANY_A_NODE", 0)
    assert case.step("place", *OPTIONS, "--time-limit", "100000").code == 0
    first, slow = events[0], without[0]
    assert isinstance(first, int)
    assert isinstance(slow, int)
    assert first > 10 * slow
    assert "plan" in events[: events.index(slow)], "it is on disk before any other level is elaborated"
    assert (case.out / "place" / "plan.json").read_bytes() == plan
    # a least rate that it can't have is no reason to look there, nor are circuits that are many rather than large
    twice_as_fast = 2 * json.loads(plan)["clock_hz"] / first
    for a_node, *options in ((0, "--least-fps", f"{twice_as_fast:.0f}"), (10**6, "--seed", "2")):
        events.clear()
        monkeypatch.setattr(ladder, "MANY_A_NODE", a_node)
        assert case.step("place", *OPTIONS, *options, "--gap", 0.9).code == 0
        assert events[0] == slow


def test_a_placement_that_does_not_hold_is_made_to_before_faster_levels_are_elaborated(
    case: Case, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left() -> None:
        # the rest is another test's
        clock.now += 100_000 if "crowded" in events else 0

    events, holding = _levels_and_plans(monkeypatch, left), Realiser.holding

    def crowded(realiser: Realiser, plan: Any, found: Any) -> Any:
        # what is found has no room for its ports, but where a share was left free
        events.append("crowded" if plan is found and realiser.searcher.best.planned is not None else "holds")
        return None if events[-1] == "crowded" else holding(realiser, plan, found)

    monkeypatch.setattr(ladder, "MANY_MULTIPLIERS", 0)
    monkeypatch.setattr(ladder, "MANY_A_NODE", 0)
    monkeypatch.setattr(realise, "KEPT_RATIO", 1e9)
    monkeypatch.setattr(Realiser, "holding", crowded)
    assert case.step("place", *OPTIONS, "--time-limit", "100000").code == 0
    # the small plan, then the first of large circuits
    small = events.index("plan")
    refused = events.index("crowded", small)
    made = events.index("plan", refused)
    slow = next(event for event in events[small:] if isinstance(event, int))
    faster = [event for event in events[refused:made] if isinstance(event, int) and event < slow / 1.25]
    assert not faster, f"levels {faster} were elaborated before there was a plan"
