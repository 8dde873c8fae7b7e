"""The least that every folding costs is never more than what a folding costs, and the bound that rests on it is never
above a plan."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from dagtrain.passes.fold import fold_graph, weight_groups, weight_tiles
from dagtrain.planning.choices import cluster_dram
from dagtrain.planning.costs import LevelCosts
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.ladder import SLOW_RATIO, Ladder
from dagtrain.planning.levels import least_cycles
from dagtrain.planning.link_costs import most_credit_words, network_links
from dagtrain.planning.planner import Planner
from dagtrain.planning.prices import Prices
from dagtrain.planning.results import Found
from dagtrain.progress import Silent
from hdl.costs.estimate import Estimator
from hdl.errors import DagtrainError, FoldingError, InfeasibleError, OutOfTimeError
from hdl.layers.capabilities import Batched, as_first_copy, of_copy
from hdl.layers.registry import load_layers
from hdl.recipe import Recipe
from placement.problem.plan import Bound
from placement.problem.routes import chain_cables
from placement.problem.validate import violations
from placement.search.search import SearchOptions
from tests.cosim_support import inception_net
from tests.flow_support import QuickEstimator
from tests.suites import quick
from tests.test_relays import residual, small_cluster


@cache
def foldings(name: str) -> Foldings:
    """Of a small network on two parts' worth of devices."""
    graph = {"residual": lambda: residual(2), "inception": lambda: inception_net(1)}[name]()
    return Foldings(Prices(graph, small_cluster(3, 40), Estimator(), {}, Silent()))


def first_found(planner: Planner) -> Found:
    """The placement at the first level."""
    return Ladder(planner.searcher).first(round(least_cycles(planner.problem) * SLOW_RATIO))


NETS = ("residual", "inception")


@pytest.mark.parametrize("net", NETS)
def test_no_folding_is_faster_or_has_fewer_multipliers_than_the_least(net: str) -> None:
    found = foldings(net)
    graph, part = found.prices.graph, found.prices.parts[0]
    menus = {item.name: item.configurations[part.name] for item in found.instance.items}
    seen = 0
    for seed in range(60):
        rng = random.Random(seed)
        cycles = round(2 ** rng.uniform(5, 14))
        try:
            tiles, folded = weight_tiles(graph, cycles), fold_graph(graph, cycles)
        except FoldingError:
            continue
        seen += 1
        for node in folded.nodes:
            tile = tiles.get(node.name)
            label = f"{tile.po}x{tile.pi}x{tile.pk}" if tile else None
            pace, dsp = node.layer.cycles_per_frame, part.dsp_blocks({(16, 16): node.layer.multipliers})
            # some way to fold it is as fast with no more of anything; tiles that others beat are left out
            assert any(c.cycles_per_frame <= pace and c.dsp <= dsp for c in menus[node.name]), (
                f"seed {seed}: {node.name} with tile {label} at {pace} cycles, {dsp} DSP blocks"
            )
    assert seen >= 20


@pytest.mark.parametrize("net", NETS)
def test_circuits_cost_at_least_what_their_folding_is_said_to(net: str) -> None:
    """Against elaborated circuits: a whole level, homes of memories included, is dominated by the least."""
    found = foldings(net)
    cycles = found.staircase[len(found.staircase) // 2][0]
    for pace in (round(cycles * 1.5), 2 * cycles):
        level = found.prices.level(pace)
        for item in found.instance.items:
            for part, menu in level.offers[item.name].items():
                for built in menu:
                    assert any(
                        least.cycles_per_frame <= built.cycles_per_frame
                        and all(a <= b for a, b in zip(least.costs, built.costs, strict=True))
                        for least in item.configurations[part]
                    ), f"{item.name} {built.label}: {built.costs} at {built.cycles_per_frame} cycles"


@pytest.mark.parametrize("net", NETS)
def test_no_folding_or_placement_has_fewer_bits_on_a_link_than_the_least(net: str) -> None:
    """Words and credits, each node folded for a pace of its own: on no device yet, and dealt out by chance."""
    found = foldings(net)
    prices, bits = found.prices, found.prices.cluster.link_word_bits
    devices = [device.name for device in prices.cluster.devices]
    seen, reached = 0, set()
    for seed in range(24):
        rng = random.Random(seed)
        cycles = round(2 ** rng.uniform(7, 14))
        folds = {node.name: max(1, round(cycles * rng.uniform(0.1, 1))) for node in prices.graph.nodes}
        for group in weight_groups(prices.graph):
            folds |= dict.fromkeys((node.name for node in group), folds[group[0].name])
        placed = {node.name: rng.choice(devices) for node in prices.graph.nodes} if seed % 2 else None
        try:
            level = LevelCosts(
                prices.graph, cycles, {}, cluster_dram(prices.cluster, cycles), prices.parts, prices.estimator, placed,
                devices, bits, folds=folds,
            )  # fmt: skip
        except FoldingError:
            continue
        credit_words = level.credit_words
        edges = [edge for edge, *_ in level.folded.streams]
        links = network_links(level.folded, bits, credit_words)
        for edge, least, link in zip(edges, found.instance.links, links, strict=True):
            frames = prices.graph.recipe.batch if link.kind.per_batch else 1
            # what a port carries at this pace, where it crosses
            if edge in credit_words and link.bits_per_frame * frames <= cycles * bits:
                where = f"seed {seed}: {edge} with {link}"
                assert least.bits_per_frame <= link.bits_per_frame, where
                assert least.credit_bits_per_frame <= link.credit_bits_per_frame, where
                seen += 1
                if least.credit_bits_per_frame * Fraction(51, 50) > link.credit_bits_per_frame:
                    reached.add((edge, placed is None))
    assert seen > 500
    # anything more would be too much
    assert len(reached) > 5, reached


def test_credits_of_far_boards_in_a_chain_stand_for_no_more_words_than_the_most() -> None:
    """At both ends of eight boards, in fast frames: more words are under way than over a single cable."""
    graph, cluster = residual(2), small_cluster(8, 40)
    names, rates = zip(*((device.name, device.board.link_bits_per_s) for device in cluster.devices), strict=True)
    cluster = replace(cluster, network=replace(cluster.network, cables=chain_cables(names, rates)))
    assert cluster.most_network_cycles == 7 * cluster.network_cycles
    found = Foldings(Prices(graph, cluster, Estimator(), {}, Silent()))
    near = most_credit_words(graph, cluster.link_word_bits, cluster.network_cycles)
    links = [link.credit_bits_per_frame for link in found.instance.links]
    beyond = 0
    for seed in range(16):
        rng = random.Random(seed)
        cycles, ends = round(2 ** rng.uniform(5, 7)), (names[0], names[-1])
        placed = {node.name: rng.choice(ends) for node in graph.nodes}
        try:
            level = LevelCosts(
                graph, cycles, {}, cluster_dram(cluster, cycles), found.prices.parts, found.prices.estimator, placed,
                names, cluster.link_word_bits, routing=cluster.routing,
            )  # fmt: skip
        except FoldingError:
            continue
        built = network_links(level.folded, cluster.link_word_bits, level.credit_words)
        for (edge, *_), least, link in zip(level.folded.streams, links, built, strict=True):
            if edge in level.credit_words and edge in near:
                assert least <= link.credit_bits_per_frame, f"seed {seed}: {edge}"
                beyond += level.credit_words[edge] > near[edge]
    assert beyond > 5


def test_the_staircase_says_what_folding_at_its_steps_costs() -> None:
    found = foldings("residual")
    graph, part = found.prices.graph, found.prices.parts[0]
    assert len(found.staircase) > 10
    assert all(a < b and more > less for (a, more), (b, less) in pairwise(found.staircase))
    for pace, blocks in found.staircase:
        try:
            folded = fold_graph(graph, pace)
        except FoldingError:
            continue
        need = sum(part.dsp_blocks({(16, 16): node.layer.multipliers}) for node in folded.nodes)
        # softmax multiplies narrower operands, and shares blocks
        assert blocks <= need <= blocks + 4, f"at {pace} cycles"
    # those that fit the cluster's 120 blocks, the fastest first
    fits = [pace for pace, blocks in found.staircase if blocks <= 120]
    assert found.steps(1, 1 << 40, 1) == fits[:1]
    assert len(found.steps(1, 1 << 40, 4)) == 4
    assert found.steps(1, 1 << 40, 1000) == fits


@pytest.mark.parametrize(("devices", "dsp"), quick(1, [(2, 16), (3, 12), (1, 30), (3, 40)]))
def test_the_bound_of_all_foldings_is_below_every_plan_and_first_levels_are_not_called_optimal(
    devices: int, dsp: int
) -> None:
    estimator: Any = QuickEstimator()
    planner = Planner(residual(2), small_cluster(devices, dsp), estimator, SearchOptions(seed=1), {}, Silent())
    first = first_found(planner).plan
    final = planner.run()
    assert planner.warnings == [], "no plan is below the bound of all foldings"
    assert final.plan.any_bound_cycles_per_frame == first.any_bound_cycles_per_frame <= final.plan.cycles_per_frame
    assert violations(final.instance, final.plan) == []
    # the bound at one level is reached there, and beaten at others
    assert first.bound_cycles_per_frame > final.plan.cycles_per_frame
    assert first.status != "optimal"


def test_no_level_slower_than_the_first_plan_is_priced_after_it() -> None:
    estimator: Any = QuickEstimator()
    planner = Planner(residual(1), small_cluster(1, 12), estimator, SearchOptions(seed=1), {}, Silent())
    found = first_found(planner)
    first, priced = found.plan, found.levels
    assert max(priced) > first.cycles_per_frame, "else the levels between them don't show"
    searched = planner.run().searched
    assert searched is not None
    assert [level for level in searched.levels if first.cycles_per_frame <= level] == sorted(priced)


@pytest.mark.parametrize("error", [InfeasibleError, FoldingError, OutOfTimeError])
def test_a_plan_stays_where_the_last_placement_found_holds_nowhere(
    error: type[DagtrainError], monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator: Any = QuickEstimator()

    def planner() -> Planner:
        return Planner(residual(1), small_cluster(1, 12), estimator, SearchOptions(seed=1), {}, Silent())

    def holds_nowhere(*_: object) -> None:
        raise error("it holds at no level")

    monkeypatch.setattr(Ladder, "hold_last", holds_nowhere)
    searching = planner()
    assert searching.run().plan.throughput_fps > 0
    assert searching.warnings == ["warning: the search ends with an earlier plan: it holds at no level"]
    # without a plan from before, what is wrong is said
    monkeypatch.setattr(Ladder, "hold", lambda *_, **__: None)
    with pytest.raises(error, match="at no level"):
        planner().run()


def test_a_bound_that_a_plan_beats_is_reported_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator: Any = QuickEstimator()
    planner = Planner(residual(1), small_cluster(2, 40), estimator, SearchOptions(seed=1), {}, Silent())
    monkeypatch.setattr(Foldings, "bound", lambda *_: Bound(1 << 30, "wrong"))
    planned = planner.run()
    assert planned.plan.any_bound_cycles_per_frame == 1
    assert "is below the bound of all foldings (1,073,741,824: wrong), which is therefore wrong" in planner.warnings[0]


def test_copies_that_get_as_many_frames_are_alike_and_others_not() -> None:
    examples = (layer for kind in load_layers().values() for layer in kind.examples())
    engine = next(layer for layer in examples if layer.macs and isinstance(layer, Batched))
    even, uneven = (replace(engine, recipe=Recipe(batch=batch)) for batch in (4, 5))  # type: ignore[type-var]
    assert as_first_copy(engine) is engine
    assert as_first_copy(of_copy(even, 1, 2)) == of_copy(even, 0, 2) != of_copy(even, 1, 2)
    # of five frames one gets three
    assert as_first_copy(of_copy(uneven, 1, 2)) != of_copy(uneven, 0, 2)
