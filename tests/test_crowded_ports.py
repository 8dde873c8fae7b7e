"""Placements whose network ports are fuller than they were reckoned with: another is looked for that knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dagtrain.flow.import_step import load_training_graph
from dagtrain.planning.best import Best
from dagtrain.planning.ladder import Ladder
from dagtrain.planning.planner import Planner
from dagtrain.planning.realise import Realiser
from dagtrain.planning.results import Found, Planned
from dagtrain.planning.searcher import Searcher
from dagtrain.progress import Silent
from hdl.costs.estimate import Estimator
from hdl.errors import InfeasibleError
from placement.problem.cluster import read_cluster
from placement.problem.instance import Instance, Link
from placement.problem.plan import Binding, Plan
from placement.search.search import SearchOptions
from tests.flow_support import CLUSTER, new_case, quick_costs, with_few_dsp

LEVEL = 500


@dataclass
class Case:
    searcher: Searcher
    found: Found

    @property
    def realiser(self) -> Realiser:
        return Realiser(self.searcher)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    quick_costs(monkeypatch)
    made = new_case(tmp_path, with_few_dsp(0.003, CLUSTER))
    assert made.step("import").code == 0
    graph, cluster = load_training_graph(made.workspace), read_cluster(made.cluster)
    # something crosses
    layers = [node.name for node in graph.nodes if not node.layer.pinned_to_host]
    pins = {name: ("head", "worker")[number % 2] for number, name in enumerate(layers)}
    searcher = Planner(graph, cluster, Estimator(), SearchOptions(), pins, Silent()).searcher
    return Case(searcher, Found(searcher.find([LEVEL], searcher.quick), (LEVEL,)))


def credits_of(links: tuple[Link, ...] | list[Link]) -> dict[tuple[str, str, Any], Any]:
    return {(link.source, link.target, link.kind): link.credit_bits_per_frame for link in links}


def test_links_are_reckoned_with_the_credits_that_a_placement_was_found_to_have(case: Case) -> None:
    plan = case.found.plan
    planned = case.realiser.holding(plan, plan)
    assert planned is not None
    ported = case.searcher.prices.ported
    assert ported is not None
    there, before = credits_of(planned.instance.links), credits_of(ported)
    reckoned = credits_of(case.realiser._links(plan))
    crossing = {name for name, bits in there.items() if bits}
    more = {name for name in crossing if there[name] > before[name]}
    assert more, "all credits were known before"
    assert crossing != before.keys(), "all cross"
    assert all(
        reckoned[name] == (max(there[name], bits) if name in crossing else bits) for name, bits in before.items()
    )


@pytest.mark.parametrize(
    ("slower", "binds", "more"),
    [
        pytest.param((101, 100), "links", True, id="ports"),
        pytest.param((101, 100), "granularity", False, id="something else"),
        pytest.param((1004, 1000), "links", False, id="hardly slower"),
    ],
)
def test_others_are_looked_for_once_where_ports_make_a_placement_slower(
    slower: tuple[int, int], binds: str, more: bool, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(case.found.plan, cycles_per_frame=100_000)
    shares, searched = list[Any](), list[Instance]()
    planned = case.realiser.holding(case.found.plan, case.found.plan)
    assert planned is not None
    by, of = slower
    held = replace(
        planned,
        plan=replace(planned.plan, cycles_per_frame=100_000 * by // of, binding=(Binding(kind=binds, reason=""),)),
    )
    reserve = Realiser.with_reserve

    def reserving(realiser: Realiser, _: Plan, levels: Any, share: Any, missed: Any) -> Plan | None:
        shares.append(share)
        # as slow as before
        return reserve(realiser, case.found.plan, levels, share, missed) and plan

    def search(_: Searcher, instance: Instance, *__: Any, **___: Any) -> Plan:
        searched.append(instance)
        return case.found.plan

    monkeypatch.setattr(Realiser, "holding", lambda *_: held)
    monkeypatch.setattr(Realiser, "with_reserve", reserving)
    monkeypatch.setattr(Searcher, "search", search)
    assert case.realiser.with_links(Found(plan, case.found.levels)) == held
    assert shares == ([0] if more else [])
    wanted = credits_of(case.realiser._links(case.found.plan))
    assert [credits_of(instance.links) for instance in searched] == ([wanted] if more else [])


def test_without_another_placement_the_first_one_stays(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = case.found.plan
    planned = case.realiser.holding(plan, plan)
    assert planned is not None
    slow = replace(planned.plan, cycles_per_frame=2 * plan.cycles_per_frame)

    def search(*_: Any, **__: Any) -> Plan:
        raise InfeasibleError("no room")

    monkeypatch.setattr(Realiser, "holding", lambda *_: replace(planned, plan=slow))
    monkeypatch.setattr(Searcher, "search", search)
    found: Planned = case.realiser.with_links(case.found)
    assert found.plan == slow


@pytest.mark.parametrize(("ahead", "tried"), [(100, 0), (104, 2), (None, 8)])
def test_slower_levels_are_tried_as_far_as_they_are_faster_than_the_plan_there_is(
    ahead: int | None, tried: int, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(case.found, plan=replace(case.found.plan, cycles_per_frame=100_000), levels=(LEVEL,))
    planned = case.realiser.holding(case.found.plan, case.found.plan)
    assert planned is not None
    there = replace(planned.plan, cycles_per_frame=1000 * ahead) if ahead else None
    best = Best(planned=replace(planned, plan=there) if there else None)
    priced: list[int] = []

    def fixed(_: Realiser, __: object, folds: dict[str, int], *___: object, **____: object) -> Planned:
        priced.append(max(folds.values()))
        raise InfeasibleError("no room for ports")

    monkeypatch.setattr(Realiser, "fixed", fixed)
    monkeypatch.setattr(Realiser, "with_reserve", lambda *_: None)
    with pytest.raises(InfeasibleError, match="faster than the best plan's" if there else "no room for ports"):
        Realiser(replace(case.searcher, best=best)).with_links(found)
    assert best.missed is not None
    assert best.missed.why == "with its network ports and memories it has no room: no room for ports"
    # as it was found, then slower ones; the last one of all again, to tell why
    slow = priced[1 : 1 + tried]
    assert slow == sorted({*slow})
    assert len(priced) == 1 + tried + (not there)
    assert there is None or all(cycles < there.cycles_per_frame for cycles in slow)
    assert not slow or slow[0] == 100_000


def test_a_last_placement_that_does_not_hold_ends_a_climb_with_the_plan_there_is(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder = Ladder(case.searcher)
    ladder.hold(case.found)
    before = case.searcher.best.planned
    assert before is not None

    def with_links(*_: object) -> Planned:
        raise InfeasibleError("no room")

    monkeypatch.setattr(Realiser, "with_links", with_links)
    proven = before.plan.cycles_per_frame
    case.searcher.best.planned = replace(before, plan=replace(before.plan, bound_cycles_per_frame=1))
    slow = replace(case.found.plan, bound_cycles_per_frame=proven, bound_basis="of this search")
    searched = ladder.hold_last(case.searcher, replace(case.found, plan=slow))
    after = case.searcher.best.planned
    assert after is not None
    assert after.searched is searched
    assert after.plan.items == before.plan.items
    assert (after.plan.bound_cycles_per_frame, after.plan.bound_basis) == (proven, "of this search")
    # without one there is no end
    empty = Ladder(replace(case.searcher, best=Best()))
    with pytest.raises(InfeasibleError, match="no room"):
        empty.hold_last(empty.searcher, case.found)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        pytest.param(lambda ladder, found: ladder.hold(found), False, id="as it is"),
        pytest.param(lambda ladder, found: ladder.hold(found, at_any_cost=True), True, id="at any cost"),
        pytest.param(lambda ladder, _: ladder.close(), True, id="when the time is over"),
    ],
)
def test_a_placement_that_is_a_little_faster_and_has_no_room_is_made_to_hold(
    how: Any, kept: bool, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder, searcher = Ladder(case.searcher), case.searcher
    ladder.hold(case.found)
    before = searcher.best.planned
    assert before is not None
    faster = replace(case.found.plan, cycles_per_frame=before.plan.cycles_per_frame - 1)
    made = replace(before, plan=replace(before.plan, batch_cycles=before.plan.batch_cycles - 1))
    monkeypatch.setattr(Realiser, "holding", lambda *_: None)
    monkeypatch.setattr(Realiser, "with_links", lambda *_: made)
    ladder.found = replace(case.found, plan=faster)
    how(ladder, ladder.found)
    after = searcher.best.planned
    assert after is not None
    assert (after.plan == made.plan) == kept
