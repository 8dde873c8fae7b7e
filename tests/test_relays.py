"""Relays on shortcuts: where they go, that they change no bit, that the planner takes them where they pay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.insert_relays import insert_relays, relay_of, remove_relays, shortcuts, with_relays_on
from dagtrain.passes.replicate import replicate
from dagtrain.planning.best import Best
from dagtrain.planning.choices import chosen_graph, plan_choices, relayed
from dagtrain.planning.huge import DESCENT_LENGTH, MOVES, is_huge, thorough
from dagtrain.planning.planner import Planner
from dagtrain.planning.results import Found, Planned
from dagtrain.planning.searcher import Searcher
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.recipe import Recipe
from placement.problem.cluster import Cluster, parse_cluster
from placement.problem.validate import violations
from placement.search.descent import Descent
from placement.search.search import SearchOptions
from tests.cosim_support import simulate_design
from tests.flow_support import CLUSTER, QuickEstimator

CHANNELS = 16


def residual(length: int, copies: int = 1) -> Graph:
    """A stem, and a shortcut beside so many convolutions; so many copies of all layers."""
    build = GraphBuilder("residual", Recipe(batch=2, staleness=2), seed=3)
    x = build.relu(build.conv(build.input(6, 6, 1), CHANNELS, 1))
    y = x
    for _ in range(length):
        y = build.relu(build.conv(y, CHANNELS, 3, padding=1))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(build.add(y, x)), 3)))
    calibrated = calibrate(training, [synthetic_feeds(training, 2, seed) for seed in range(2)])
    return insert_forks(replicate(calibrated, {"*": copies}) if copies > 1 else calibrated)


def small_cluster(devices: int, dsp: int) -> Cluster:
    """Devices with so many multipliers' blocks each, and room for everything else."""
    cluster = parse_cluster(CLUSTER)
    board = replace(cluster.devices[0].board, dsp=dsp)
    return replace(
        cluster, devices=tuple(replace(cluster.devices[0], name=f"d{n}", board=board) for n in range(devices))
    )


def plan(graph: Graph, devices: int, dsp: int) -> Planned:
    estimator: Any = QuickEstimator()
    return Planner(graph, small_cluster(devices, dsp), estimator, SearchOptions(seed=1), {}, Silent()).run()


def test_shortcuts_are_the_edges_beside_a_longer_way() -> None:
    graph = residual(2)
    found = {(graph.producers[edge][0].name, graph.consumers[edge][0][0].name) for edge in shortcuts(graph)}
    # the activation past the convolutions, the error past them on the way back; no stash
    assert found == {("relu1.y.fork", "add1"), ("average1.error.dx.fork", "relu1.y.sum0")}
    chain = GraphBuilder("chain", Recipe(batch=2), seed=3)
    head = chain.classify(chain.gemm(chain.global_average_pool(chain.relu(chain.conv(chain.input(6, 6, 1), 4, 1))), 3))
    training = differentiate(head)
    assert shortcuts(insert_forks(calibrate(training, [synthetic_feeds(training, 2, 1)]))) == ()


def test_relays_change_no_bit() -> None:
    graph = residual(2)
    widened = insert_relays(graph, shortcuts(graph))
    assert len(widened.nodes) == len(graph.nodes) + 2
    relays = [node for node in widened.nodes if node.role is Role.RELAY]
    assert sorted(node.inputs["x"] for node in relays) == sorted(shortcuts(graph))
    assert {node.layer_of for node in relays} == {"relu1", "average1"}
    assert insert_relays(graph, ()) is graph
    assert remove_relays(widened, shortcuts(graph)).nodes == graph.nodes
    assert with_relays_on(widened, shortcuts(graph)[1:]).nodes == insert_relays(graph, shortcuts(graph)[1:]).nodes
    assert with_relays_on(graph, shortcuts(graph)).nodes == widened.nodes
    assert remove_relays(widened, shortcuts(graph)[:1]).nodes == insert_relays(graph, shortcuts(graph)[1:]).nodes
    plain, other = Executor(graph), Executor(widened)
    for seed in range(3):
        feeds = synthetic_feeds(graph, 2, seed)
        np.testing.assert_equal(plain.step(feeds), other.step(feeds))
    np.testing.assert_equal(plain.parameters(), other.parameters())


@pytest.mark.slow
def test_the_planner_takes_relays_where_they_pay_and_the_plan_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = residual(3)
    # at the fast level a convolution fills a device, so its branch crosses twice
    planned = plan(graph, 10, 8)
    choices = plan_choices(planned.plan)
    assert relayed(choices) == shortcuts(graph)
    assert [name for name, choice in choices.items() if choice.relay_on] == [relay_of(e) for e in shortcuts(graph)]
    assert violations(planned.instance, planned.plan) == []
    where = {item.item: item.device for item in planned.plan.items}
    chosen = chosen_graph(graph, choices)
    assert set(chosen.by_name) == set(where)
    for edge in shortcuts(graph):
        ends = {where[graph.producers[edge][0].name], where[graph.consumers[edge][0][0].name]}
        assert where[relay_of(edge)] not in ends
    monkeypatch.setattr("dagtrain.planning.planner.with_relays", lambda *_: None)
    assert plan(graph, 10, 8).plan.cycles_per_frame >= 2 * planned.plan.cycles_per_frame


def test_where_free_hops_would_not_help_there_are_no_relays() -> None:
    assert relayed(plan_choices(plan(residual(3), 4, 40).plan)) == ()


@pytest.mark.parametrize(("devices", "dsp", "needed"), [(10, 8, True), (8, 12, False)])
def test_huge_circuits_have_relays_from_the_beginning_and_keep_those_that_add_hops(
    devices: int, dsp: int, needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = residual(3)
    tried = []

    def none(searcher: Searcher, _: Found) -> None:
        tried.append({node.name for node in searcher.problem.graph.nodes if node.role is Role.RELAY})

    # none are put in behind the climb
    monkeypatch.setattr("dagtrain.planning.planner.with_relays", none)
    monkeypatch.setattr("dagtrain.planning.huge.HUGE_MULTIPLIERS", 10)
    monkeypatch.setattr("dagtrain.planning.huge.MOVES", 1)
    planned = plan(graph, devices, dsp)
    assert tried[0] == {relay_of(edge) for edge in shortcuts(graph)}
    assert violations(planned.instance, planned.plan) == []
    places = {item.item: item.device for item in planned.plan.items}
    edges = relayed(plan_choices(planned.plan))
    assert edges or not needed
    for edge in edges:
        ends = {places[graph.producers[edge][0].name], places[graph.consumers[edge][0][0].name]}
        assert places[relay_of(edge)] not in ends


def test_chains_for_huge_circuits_are_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator: Any = QuickEstimator()
    planner = Planner(residual(2), small_cluster(2, 8), estimator, SearchOptions(), {}, Silent())
    assert not is_huge(planner.problem)
    monkeypatch.setattr("dagtrain.planning.huge.HUGE_MULTIPLIERS", 10)
    assert is_huge(planner.problem)
    longer = thorough(planner.searcher, begun=False)
    assert longer.quick.anneal_budget == MOVES * planner.searcher.quick.anneal_budget
    assert longer.last.anneal_moves == MOVES * planner.searcher.last.anneal_moves
    instance = planner.searcher.prices.instance([20_000])
    slices = []
    for options in (planner.searcher.quick, longer.quick):
        descent = Descent(instance, options, lambda _: None, 20_000)
        descent.lengthen()
        slices.append(descent.slice)
    assert slices[1] == MOVES * DESCENT_LENGTH * slices[0]
    at_once = Planner(residual(2), small_cluster(3, 8), estimator, SearchOptions(), {}, Silent()).searcher
    assert len(thorough(at_once, begun=False).problem.graph.nodes) == len(at_once.problem.graph.nodes) + 2
    assert thorough(at_once, begun=True).problem.graph is at_once.problem.graph
    # a relay stands on neither end's device, and there are only two
    assert longer.problem.graph is planner.problem.graph


@pytest.mark.slow
def test_a_shortcut_by_way_of_a_third_device_trains_to_the_same_bits(tmp_path: Path) -> None:
    graph = residual(2)
    edges = shortcuts(graph)
    widened = insert_relays(graph, edges)
    # the branch crosses at each of its convolutions, the shortcut by way of a device that is otherwise empty
    devices = ("one", "two", "three", "four")
    moved = {"conv2": "two", "relu2": "two", "conv3": "three", "relu3": "three", "add1": "three"}
    where = {node.name: moved.get(node.layer_of, "one") for node in widened.nodes}
    where |= dict.fromkeys(map(relay_of, edges), "four")
    library = ModuleLibrary(cache_folder() / "modules")
    made = design_cluster(widened, where, devices, 9000, library, word_bits=64)
    assert [device.name for device in made.devices] == list(devices)
    assert len(made.devices[3].nodes) == len(edges)
    feeds = [synthetic_feeds(graph, 2, 50 + index) for index in range(2)]
    network = NetworkModel(latency_cycles=30, stall_256=30, seed=4)
    run = simulate_design(made, library, feeds, tmp_path, Simulator.VERILATOR, network, 40, 9, Silent(), optimise=False)
    assert run.mismatches == ()
    assert run.compared_words > 5_000


def test_a_search_goes_on_from_the_plan_that_holds_where_that_is_faster() -> None:
    estimator: Any = QuickEstimator()
    planner = Planner(residual(2), small_cluster(3, 40), estimator, SearchOptions(seed=1), {}, Silent())
    planned, searcher = planner.run(), planner.searcher
    fast = planned.plan.cycles_per_frame
    slow = searcher.find([4 * fast], searcher.quick)
    assert slow.cycles_per_frame > 2 * fast
    # it finds nothing itself
    idle = replace(searcher.quick, anneal_budget=0, exact_choices=0)
    levels = sorted({choice.cycles for choice in plan_choices(planned.plan).values()} | {4 * fast})
    assert searcher.find(levels, idle, slow).cycles_per_frame == slow.cycles_per_frame
    knowing = replace(searcher, best=Best(planned=planned))
    assert knowing.find(levels, idle, slow).cycles_per_frame <= fast
    # that one has no relays to go on from
    with_more = knowing.with_relays(shortcuts(planner.problem.graph))
    slow = with_more.find([4 * fast], with_more.quick)
    assert with_more.find(levels, idle, slow).cycles_per_frame == slow.cycles_per_frame
