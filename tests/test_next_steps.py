"""Steps just faster than a plan: they go on while the levels priced keep it at its pace, and no further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagtrain.flow.placed import load_plan
from dagtrain.planning import ladder, next_steps
from dagtrain.planning.ladder import Ladder
from dagtrain.planning.results import Found
from hdl.errors import FoldingError
from placement.problem.plan import Plan
from tests.flow_support import new_case, quick_costs


def placed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, huge: int, fail_below: int = 0
) -> tuple[Plan, list[tuple[int, int]]]:
    """A plan by a slow level alone and steps from there, and (pace, fastest level searched) of all searches."""
    better, asked = Ladder.better, list[tuple[int, int]]()

    def noted(self: Ladder, best: Plan, levels: Sequence[int], options: Any = None) -> Plan:
        asked.append((best.cycles_per_frame, min(levels)))
        if min(levels) < fail_below:
            raise FoldingError("a layer", "can't be faster")
        return better(self, best, levels, options)

    with monkeypatch.context() as patch:
        quick_costs(patch)
        patch.setattr(next_steps, "HUGE_MULTIPLIERS", huge)
        patch.setattr(ladder, "REFINEMENT_ROUNDS", 0)
        patch.setattr(Ladder, "_further", lambda _, first, *__: (first.plan, list(first.levels)))
        patch.setattr(Ladder, "faster", lambda _, best, levels, __: (best, levels))
        patch.setattr(Ladder, "better", noted)
        case = new_case(folder)
        assert case.step("import").code == 0
        outcome = case.step("place", "--first-fps", "20000")
        assert outcome.code == 0, outcome.error
    return load_plan(case.workspace), asked


def test_a_plan_of_huge_circuits_gets_faster_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, without = placed(tmp_path / "slow", monkeypatch, huge=1 << 40)
    fast, steps = placed(tmp_path / "fast", monkeypatch, huge=0)
    assert fast.cycles_per_frame < slow.cycles_per_frame
    assert len(steps) > len(without) + 2
    first = [(pace, level) for pace, level in steps if level == int(pace / 1.02)]
    assert len(first) >= 3
    # each from the plan behind the one before, until one brings nothing
    assert [pace for pace, _ in first] == sorted({pace for pace, _ in first}, reverse=True)


def test_steps_get_smaller_and_end_where_a_layer_can_be_no_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, steps = placed(tmp_path / "fast", monkeypatch, huge=0)
    slow = max(pace for pace, _ in steps)
    ended, tried = placed(tmp_path / "ended", monkeypatch, huge=0, fail_below=slow)
    assert ended.cycles_per_frame == slow > fast.cycles_per_frame
    assert tried[:2] == [(slow, int(slow / 1.02)), (slow, slow - 1)]
    # a cycle faster is allowed now, and brings the next foldings, which are no more than a step away
    finer, tried = placed(tmp_path / "finer", monkeypatch, huge=0, fail_below=slow - 1)
    assert tried[:2] == [(slow, int(slow / 1.02)), (slow, slow - 1)]
    assert fast.cycles_per_frame < finer.cycles_per_frame < slow
    assert tried[2] == (finer.cycles_per_frame, finer.cycles_per_frame - 1)


def test_what_something_else_keeps_at_its_pace_is_not_stepped_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound well below the plan says that levels are not all; as fast as any folding can be it has no faster step."""

    def never(*_: object) -> Plan:
        raise AssertionError("a step is searched")

    problem = SimpleNamespace(cluster=SimpleNamespace(devices=(), periods={}))
    still: Any = SimpleNamespace(
        better=never,
        hold=lambda _, **__: None,
        multipliers_at=lambda _: next_steps.HUGE_MULTIPLIERS + 1,
        searcher=SimpleNamespace(problem=problem),
    )
    plan, _ = placed(tmp_path / "one", monkeypatch, huge=1 << 40)
    below = replace(plan, bound_cycles_per_frame=round(plan.cycles_per_frame * 0.99))
    optimal = replace(
        plan, bound_cycles_per_frame=plan.cycles_per_frame, any_bound_cycles_per_frame=plan.cycles_per_frame
    )
    for kept in (below, optimal):
        assert next_steps.next_steps(still, Found(kept, (9,))).plan is kept
    # and where both don't hold it is
    worse = replace(plan, bound_cycles_per_frame=plan.cycles_per_frame, any_bound_cycles_per_frame=1)
    with pytest.raises(AssertionError, match="a step is searched"):
        next_steps.next_steps(still, Found(worse, (9,)))


@pytest.mark.parametrize(
    ("bound", "least", "wanted"),
    [
        # the plan comes to the fastest level; nearly, by a step of tiles; and not, whose search would go on there
        (100_000, 1, [[80_000, 99_000], [64_000, 80_000, 99_000]]),
        (98_000, 1, [[80_000, 99_000], [64_000, 80_000, 99_000]]),
        (97_000, 1, []),
        # no faster than multipliers allow, and no level twice
        (98_000, 90_000, [[90_000, 99_000]]),
        (98_000, 99_000, []),
    ],
)
def test_levels_faster_than_predicted_are_searched_from_plans_near_the_fastest_one(
    bound: int, least: int, wanted: list[list[int]]
) -> None:
    searched = list[list[int]]()

    def better(best: Any, levels: list[int]) -> Any:
        searched.append(levels)
        # what is faster than this is not placed, and its bound says that this is not for want of levels
        cycles = levels[0] if levels[0] > 70_000 else best.cycles_per_frame
        return SimpleNamespace(cycles_per_frame=cycles, bound_cycles_per_frame=levels[0])

    climbing: Any = SimpleNamespace(better=better)
    plan: Any = SimpleNamespace(cycles_per_frame=100_000, bound_cycles_per_frame=bound)
    _, levels = Ladder.faster(climbing, plan, [99_000], least)
    assert searched == wanted
    assert levels == (wanted[-1] if wanted else [99_000])


def test_levels_between_are_looked_for_before_those_that_are_faster_than_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels between may bring a plan near the fastest one that was not when that was priced."""
    asked: list[str] = []

    def noted(name: str) -> None:
        method = getattr(Ladder, name)
        monkeypatch.setattr(Ladder, name, lambda *words: asked.append(name) or method(*words))

    quick_costs(monkeypatch)
    noted("faster")
    noted("_finer")
    case = new_case(tmp_path)
    assert case.step("import").code == 0
    outcome = case.step("place")
    assert outcome.code == 0, outcome.error
    assert {"faster", "_finer"} == set(asked[1:])
    assert (asked[0], asked[-1]) == ("faster", "faster"), asked
