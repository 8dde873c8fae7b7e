"""Copies of a whole network: their search begins with all copies of a node on one device."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dagtrain.flow.placed import load_placed_graph
from dagtrain.passes.replicate import NUMBER, copies_of_nodes
from dagtrain.planning import planner as planning
from dagtrain.planning import searcher as searching
from dagtrain.planning.ladder import Ladder
from dagtrain.planning.results import Found, Planned, Start
from dagtrain.planning.searcher import Searcher
from dagtrain.planning.together import begun_together, together
from hdl.errors import DagtrainError, FoldingError, InfeasibleError, OutOfTimeError
from placement.problem.deadline import Ended
from placement.problem.instance import Instance
from placement.problem.plan import Plan
from placement.search.search import SearchOptions
from tests.flow_support import CLUSTER, Case, new_case, quick_costs, with_few_dsp
from tests.suites import quick

TWICE = ("--replicas", "2")
# leaves the first device
ALONE = ("--exclude", "worker", "--exclude", "f0", "--exclude", "f1")


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    quick_costs(monkeypatch)
    more = "".join(f'[[device]]\nname = "f{n}"\nboard = "agilex"\n' for n in range(2))
    made = new_case(tmp_path, with_few_dsp(0.003, CLUSTER) + more)
    assert made.step("import", "--exchange", "chain").code == 0
    return made


@dataclass
class Climbs:
    """What a planner did."""

    # items that were to stand on one device, of each search
    searches: list[tuple[tuple[str, ...], ...]] = field(default_factory=list)
    # where climbs began, and the best plan then
    begun: list[tuple[Start | None, Planned | None]] = field(default_factory=list)


@pytest.fixture
def climbs(monkeypatch: pytest.MonkeyPatch) -> Climbs:
    found = Climbs()
    search = Searcher.search

    def searched(self: Searcher, instance: Instance, options: SearchOptions, bounded: bool = True) -> Plan:
        found.searches.append(options.alike)
        return search(self, instance, options, bounded)

    def begun(ladder: Ladder) -> Start | None:
        start = begun_together(ladder)
        found.begun.append((start, ladder.searcher.best.planned))
        return start

    monkeypatch.setattr(Searcher, "search", searched)
    monkeypatch.setattr(planning, "begun_together", begun)
    return found


def placed(case: Case, *options: str) -> dict[str, Any]:
    """The plan that a search leaves."""
    outcome = case.step("place", "--no-split", "--no-remote", *options)
    assert outcome.code == 0, outcome.error
    plan: dict[str, Any] = json.loads((case.out / "place" / "plan.json").read_text())
    return plan


def test_copies_of_each_node_begin_on_one_device(case: Case, climbs: Climbs) -> None:
    plan = placed(case, *TWICE)
    alike = together(load_placed_graph(case.workspace))
    assert len(alike) > 12
    assert {len(names) for names in alike} == {2}
    assert all(len({NUMBER.sub("", name) for name in names}) == 1 for names in alike)
    # then free ones go on from there
    # a first placement with them, one without, and all others with them
    coupled = climbs.searches.count(alike)
    assert coupled > 1
    assert climbs.searches[:2] == [alike, ()]
    assert climbs.searches[2 : coupled + 1] == [alike] * (coupled - 1)
    assert climbs.searches[coupled + 1] == ()
    start, _ = climbs.begun[0]
    assert start is not None
    places = {item.item: item.device for item in start.plan.items}
    assert len({*places.values()}) > 1
    assert all(len({places[name] for name in names}) == 1 for names in alike)
    assert plan["cycles_per_frame"] <= start.plan.cycles_per_frame


def test_searches_know_which_nodes_are_copies_but_where_they_stand_together(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[bool, tuple[tuple[str, ...], ...]]] = []
    find = searching.find_plan

    def finding(instance: Instance, options: SearchOptions, *more: Any) -> Plan:
        found.append((bool(options.alike), options.copies))
        return find(instance, options, *more)

    monkeypatch.setattr(searching, "find_plan", finding)
    placed(case, *TWICE)
    graph = load_placed_graph(case.workspace)
    # the sum goes from the first copy to the second, which alone has a hop
    assert any("" in names for names in copies_of_nodes(graph))
    assert {*found} == {(True, ()), (False, copies_of_nodes(graph))}


def test_plans_with_copies_together_claim_the_bound_of_all_foldings_alone(case: Case, climbs: Climbs) -> None:
    placed(case, *TWICE)
    start, planned = climbs.begun[0]
    # it holds already
    assert start is not None
    assert planned is not None
    assert planned.searched is not None
    for plan in (start.plan, planned.plan, planned.searched.plan):
        assert plan.bound_cycles_per_frame == plan.any_bound_cycles_per_frame < plan.cycles_per_frame
        assert "on one device" not in plan.bound_basis


@pytest.mark.parametrize("why", quick(1, [InfeasibleError, FoldingError, OutOfTimeError]))
def test_where_copies_have_no_place_together_the_search_begins_anywhere(
    why: type[DagtrainError], case: Case, climbs: Climbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Ladder.begun

    def apart(self: Ladder) -> Found:
        if self.searcher.problem.search.alike:
            raise why("no room")
        return begun(self)

    monkeypatch.setattr(Ladder, "begun", apart)
    placed(case, *TWICE)
    assert climbs.begun[0] == (None, None)
    assert climbs.searches[0] == ()


def test_copies_begin_apart_where_they_are_much_faster_so(
    case: Case, climbs: Climbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = searching.find_plan

    def finding(instance: Instance, options: SearchOptions, *more: Any) -> Plan:
        plan = find(instance, options, *more)
        return replace(plan, cycles_per_frame=slower * plan.cycles_per_frame) if options.alike else plan

    monkeypatch.setattr(searching, "find_plan", finding)
    slower = 2
    placed(case, *TWICE)
    start, planned = climbs.begun[0]
    assert start is not None
    assert planned is None, "no placement with copies together was priced"
    assert [bool(groups) for groups in climbs.searches[:3]] == [True, False, False]
    assert climbs.searches.count(()) == len(climbs.searches) - 1


def _without_room(monkeypatch: pytest.MonkeyPatch, has_none: Callable[[Instance, bool], bool]) -> None:
    """Searches find nothing where ``has_none`` of an instance, and of whether copies stand together in it."""
    find = searching.find_plan

    def finding(instance: Instance, options: SearchOptions, *more: Any) -> Plan:
        if has_none(instance, bool(options.alike)):
            raise OutOfTimeError("no placement found")
        return find(instance, options, *more)

    monkeypatch.setattr(searching, "find_plan", finding)


def _slowest(instance: Instance) -> int:
    return max(c.cycles_per_frame for item in instance.items for menu in item.configurations.values() for c in menu)


def test_copies_begin_apart_where_they_have_no_place_together_at_the_first_level(
    case: Case, climbs: Climbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowest: list[int] = []

    def has_none(instance: Instance, together: bool) -> bool:
        slowest.append(_slowest(instance))
        return together

    _without_room(monkeypatch, has_none)
    placed(case, *TWICE)
    start, planned = climbs.begun[0]
    assert start is not None
    assert planned is None
    # once together, then no more
    assert [bool(groups) for groups in climbs.searches].count(True) == 1
    assert slowest[0] == slowest[1] == max(slowest), "no slower level was priced"


def test_copies_stand_together_at_a_slower_level_where_there_is_no_place_apart_either(
    case: Case, climbs: Climbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[int] = []

    def has_none(instance: Instance, together: bool) -> bool:
        first.append(_slowest(instance))
        return not together or first[-1] == first[0]

    _without_room(monkeypatch, has_none)
    assert "no placement found" not in case.step("place", "--no-split", "--no-remote", *TWICE).error
    assert [bool(groups) for groups in climbs.searches[:4]] == [True, False, True, True]
    assert first[0] == first[1] == first[2] < first[3]
    start, _ = climbs.begun[0]
    assert start is not None
    assert max(start.levels) > first[0]


def test_what_is_found_together_is_held_at_the_deadline(
    case: Case, climbs: Climbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    climb, hold = Ladder.climb, Ladder.hold
    found: list[Found] = []

    def ended(self: Ladder, start: Start | None) -> Found:
        monkeypatch.setattr(Ladder, "hold", lambda *_, **__: None)
        found.append(climb(self, start))
        monkeypatch.setattr(Ladder, "hold", hold)
        raise Ended("the time is over")

    monkeypatch.setattr(Ladder, "climb", ended)
    plan = placed(case, *TWICE)
    assert climbs.begun == []
    assert plan["cycles_per_frame"] == found[0].plan.cycles_per_frame


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="no copies"),
        pytest.param(("--copy", "c_node=2"), id="copies of one layer"),
        pytest.param((*TWICE, *ALONE), id="one device"),
        pytest.param((*TWICE, "--solver", "literal"), id="equations as written"),
    ],
)
def test_nothing_stands_together_without_copies_of_all_or_on_one_device(
    options: tuple[str, ...], case: Case, climbs: Climbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    climbed: list[tuple[tuple[str, ...], ...]] = []

    def nothing(self: Ladder, _: Start | None) -> Found:
        climbed.append(self.searcher.problem.search.alike)
        raise InfeasibleError("nothing is planned")

    monkeypatch.setattr(Ladder, "climb", nothing)
    assert "nothing is planned" in case.step("place", "--no-split", "--no-remote", *options).error
    assert climbs.begun == [(None, None)]
    assert climbed == [()]
