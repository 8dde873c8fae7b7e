"""`dagtrain place` plans for what training gets: whole batches with the recipe's staleness."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest

from dagtrain.emission.links import link_words
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.cosim_step import _batches
from dagtrain.flow.emit_step import planned_design
from dagtrain.flow.placed import load_placed_graph, load_plan, load_plan_cluster
from dagtrain.graph.ir import Role
from dagtrain.planning import nearer
from dagtrain.planning.best import Best
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.nearer import with_updates_nearer
from dagtrain.planning.planner import Planner
from dagtrain.planning.rate import plan_time
from dagtrain.planning.results import Planned, Searched
from dagtrain.planning.searcher import Searcher
from dagtrain.planning.whole_layers import try_whole_layers
from dagtrain.progress import Silent
from dagtrain.rates import rate_text, training_text
from hdl.cache import cache_folder
from hdl.link.format import credit_batch
from placement.problem.deadline import Deadline
from placement.problem.plan import Bound, Plan
from placement.problem.settings import SearchOptions, Solver
from placement.problem.validate import violations
from placement.search.search import plan_from_assignment
from tests.flow_support import CLUSTER, Case, QuickEstimator, new_case, quick_costs
from tests.test_relays import residual, small_cluster

# of each board so much that both are needed for the fastest pace, and one is enough for half of it
TIGHT = CLUSTER.replace("link_gbit_per_s = 100", "link_gbit_per_s = 100\nutilisation = { dsp = 0.02 }")
# cycles a frame of a slow level of the small residual net
PACE = 4608
# bits a second of links over which gradients take longer than a frame
SLOW_LINK = 5 * 10**8


def placed(root: Path, recipe: str, *words: str) -> Case:
    """The tiny network placed on two tight boards."""
    case = new_case(root)
    case.write("cluster.toml", TIGHT)
    imported = case.step("import", "--recipe", case.write("recipe.toml", recipe))
    assert imported.code == 0, imported.error
    outcome = case.step("place", *words)
    assert outcome.code == 0, outcome.error
    return case


def used(case: Case) -> set[str]:
    return {item.device for item in load_plan(case.workspace).items}


def test_one_device_is_chosen_where_batches_are_short_and_none_may_be_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    short = placed(tmp_path / "short", "batch = 4\n")
    assert used(short) == {"head"}
    stale = placed(tmp_path / "stale", "batch = 64\nstaleness = 64\n")
    assert used(stale) == {"head", "worker"}
    slow, fast = load_plan(short.workspace), load_plan(stale.workspace)
    assert slow.steady_fps < fast.steady_fps
    # the other way round, it would be slower: both at the pace of the two, with what batches cost there
    both = load_plan(placed(tmp_path / "both", "batch = 4\n", "--pin", "y_node=worker").workspace)
    assert both.throughput_fps < slow.throughput_fps


def test_whole_layers_are_looked_for_and_taken_where_training_is_faster_for_it() -> None:
    """Beside a plan that tears every layer apart, said to train half as fast, or faster than its pace."""
    graph, cluster, estimator = residual(1), small_cluster(2, 40), cast("Any", QuickEstimator())
    planner = Planner(graph, cluster, estimator, SearchOptions(anneal_budget=1_200_000), {}, Silent())
    torn = {node.name: "d1" if node.role in (Role.GRADIENT, Role.UPDATE) else "d0" for node in graph.nodes}
    instance = planner.searcher.prices.instance([PACE])
    searched = Searched(plan_from_assignment(instance, torn), instance, (PACE,))
    planned = planner.fixed(torn, dict.fromkeys(torn, PACE))

    def best(share: Fraction) -> tuple[Plan, list[Planned]]:
        """Where the plan so far takes so many times as long for a batch."""
        told: list[Planned] = []
        cycles = int(planned.plan.batch_cycles * share)
        known = Best(keep=told.append, planned=replace(planned, plan=replace(planned.plan, batch_cycles=cycles)))
        try_whole_layers(replace(planner.searcher, best=known), searched)
        assert known.planned is not None
        return known.planned.plan, told

    found, told = best(Fraction(2))
    assert [each.plan for each in told] == [found]
    assert not violations(told[0].instance, found)
    assert found.bound_cycles_per_frame == searched.plan.bound_cycles_per_frame
    stands = {(graph.by_name[item.item].layer_of, item.device) for item in found.items}
    assert len(stands) == len({layer for layer, _ in stands})
    assert {device for _, device in stands} == {"d0", "d1"}
    kept, told = best(Fraction(PACE * graph.recipe.batch, planned.plan.batch_cycles))
    assert not told
    assert {item.item: item.device for item in kept.items} == torn


def test_updates_are_moved_to_their_gradient_engines_where_training_is_faster_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dagtrain.planning.nearer.LEAST_FRAMES", Fraction(0))
    graph = residual(1)
    told: list[str] = []

    def moved(pins: Mapping[str, str], solver: Solver = Solver.FAST) -> tuple[Planned, Planned]:
        """A plan with all updates away from all else, over slow links, and what becomes of it."""
        fast = small_cluster(2, 100)
        devices = (replace(each, board=replace(each.board, link_bits_per_s=SLOW_LINK)) for each in fast.devices)
        cluster, estimator = replace(fast, devices=tuple(devices)), cast("Any", QuickEstimator())
        planner = Planner(graph, cluster, estimator, SearchOptions(), pins, Silent())
        away = {node.name: "d1" if node.role is Role.UPDATE else "d0" for node in graph.nodes}
        planned = planner.fixed(away, dict.fromkeys(away, PACE))
        problem = replace(planner.problem, search=replace(planner.problem.search, solver=solver))
        found = with_updates_nearer(replace(planner.searcher, problem=problem, warn=told.append), planned)
        assert found.plan.cycles_per_frame <= planned.plan.cycles_per_frame
        assert not violations(found.instance, found.plan)
        return planned, found

    def updates(planned: Planned) -> set[str]:
        return {item.item for item in planned.plan.items if item.device == "d1"}

    planned, found = moved({})
    assert not updates(found)
    assert found.plan.training_cycles < planned.plan.training_cycles
    (line,) = told
    gain = float(planned.plan.training_cycles / found.plan.training_cycles - 1)
    assert (
        line
        == f"{len(updates(planned))} updates were moved to their gradient engines: training is {gain:.1%} faster for it"
    )
    # what is pinned stays
    pinned = next(iter(sorted(updates(planned))))
    assert updates(moved({pinned: "d1"})[1]) == {pinned}
    # a baseline is what it is
    planned, found = moved({}, Solver.LITERAL)
    assert found is planned
    # where one finds no room the others are moved all the same
    price = nearer._held

    def with_no_room(searcher: Searcher, plan: Plan, moves: Sequence[Mapping[str, str]]) -> Planned | None:
        return None if any(pinned in move for move in moves) else price(searcher, plan, moves)

    monkeypatch.setattr(nearer, "_held", with_no_room)
    planned, found = moved({})
    assert {pinned} <= updates(found) < updates(planned)


def test_fewer_devices_are_searched_only_where_their_bound_leaves_something_to_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    proven, asked = Foldings.bound, set()

    def slower(self: Foldings, search: SearchOptions, deadline: Deadline) -> Bound:
        asked.add(search.exclude)
        bound = proven(self, search, deadline)
        return replace(bound, cycles_per_frame=10**6) if search.exclude else bound

    monkeypatch.setattr(Foldings, "bound", slower)
    assert used(placed(tmp_path, "batch = 4\n")) == {"head", "worker"}
    assert asked == {(), ("worker",)}


def test_what_a_plan_says_of_training_follows_from_graph_and_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = placed(tmp_path, "batch = 8\nstaleness = 2\n")
    plan, cluster = load_plan(case.workspace), load_plan_cluster(case.workspace)
    time = plan_time(plan, load_placed_graph(case.workspace), cluster)
    assert (plan.batch_frames, plan.staleness_frames, plan.batch_cycles) == (8, 2, time.cycles)
    assert plan.training_cycles == Fraction(time.cycles, 8) > plan.cycles_per_frame
    assert plan.throughput_fps == plan.clock_hz * 8 / time.cycles
    assert plan.steady_fps == plan.clock_hz / plan.cycles_per_frame
    shown = case.step("place").out
    assert (
        f"{training_text(plan.throughput_fps)} frames/s in training: a batch of 8 frames with staleness 2 takes "
        f"{plan.batch_cycles:,} cycles\n" in shown
    )
    assert f"{rate_text(plan.steady_fps)} frames/s inside a batch: {plan.cycles_per_frame:,} cycles a frame" in shown
    assert f"gap inside a batch {plan.steady_gap:.2%}, in training {plan.gap:.2%}" in shown
    record = json.loads((case.out / "place" / "plan.json").read_text())
    assert record["throughput_fps"] < record["steady_fps"] <= record["bound_fps"]


def test_links_of_a_plan_carry_the_words_of_its_circuits_and_their_credits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    case = placed(tmp_path, "batch = 4\n", "--pin", "y_node=worker")
    plan, cluster = load_plan(case.workspace), load_plan_cluster(case.workspace)
    graph, modules = load_placed_graph(case.workspace), ModuleLibrary(cache_folder() / "modules")
    design = planned_design(graph, plan, cluster, modules)
    bits = cluster.link_word_bits
    sent: dict[str, Fraction] = defaultdict(Fraction)
    arrived: dict[str, Fraction] = defaultdict(Fraction)
    for crossing in design.crossings:
        frames = graph.recipe.batch if crossing.source.tensor.kind.per_batch else 1
        words = Fraction(crossing.words(bits), frames)
        back = words / credit_batch(link_words(crossing, design.receiver_beats[crossing.edge], bits))
        sent[crossing.source_device] += bits * words
        arrived[crossing.target_device] += bits * words
        sent[crossing.target_device] += bits * back
        arrived[crossing.source_device] += bits * back
    assert len(design.crossings) == 3
    for use in plan.devices:
        for planned, built in ((use.egress_bits_per_frame, sent), (use.ingress_bits_per_frame, arrived)):
            # credits of each stream are rounded up to whole bits
            more = Fraction(planned) - built[use.device]
            assert 0 <= more < len(design.crossings), use.device


def test_what_there_is_may_be_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much slower the level is at which a search without that wish begins."""
    quick_costs(monkeypatch)
    case = placed(tmp_path, "batch = 64\nstaleness = 64\n")
    plan = load_plan(case.workspace)
    assert plan.throughput_fps > 0.9 * plan.steady_fps
    shutil.rmtree(case.out / "place")
    outcome = case.step("place", "--least-fps", f"{0.97 * plan.throughput_fps:.0f}")
    assert outcome.code == 0, outcome.error
    assert load_plan(case.workspace).throughput_fps >= 0.97 * plan.throughput_fps


def test_the_least_rate_that_is_wanted_is_one_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = placed(tmp_path, "batch = 2\n")
    plan = load_plan(case.workspace)
    wanted = (plan.throughput_fps + plan.steady_fps) / 2
    assert plan.throughput_fps < wanted < plan.steady_fps
    before = case.snapshot()
    outcome = case.step("place", "--least-fps", f"{wanted:.0f}")
    assert outcome.code == 1
    assert re.search(
        r"the best plan found trains [\d,]+ frames/s in batches of 2 with staleness 0, and .* are wanted; inside",
        outcome.error,
    )
    assert case.snapshot() == before


def test_cosim_sets_measured_batches_beside_planned_ones() -> None:
    meta = {"planned_batch_cycles": 2_000, "batch_cycles": [2_500, 2_010], "stall": 0.25}
    assert _batches(meta) == (
        "the last batch took 2,010 with stalls in 25% of cycles; planned 2,000 cycles a batch without stalls"
    )
    assert _batches({**meta, "batch_cycles": []}).startswith("one batch tells no interval between batches")


@pytest.mark.parametrize(
    ("rate", "text"),
    [(16_937.4, "16,940"), (62.443, "62.44"), (0.03123, "0.03123"), (999.96, "1,000"), (8.0, "8.000"), (0.0, "0")],
)
def test_rates_are_printed_with_four_digits(rate: float, text: str) -> None:
    assert rate_text(rate) == text


def test_rates_of_training_are_printed_with_three_digits() -> None:
    assert [training_text(rate) for rate in (16_937.4, 62.44, 0.9996)] == ["16,900", "62.4", "1.00"]
