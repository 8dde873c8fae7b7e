"""Products with constants on multipliers instead of adders, in graphs, plans and whole clusters: they change no bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.multiply_constants import multiply_constants, multiplying_nodes
from dagtrain.planning.choices import chosen_graph, folded_graph, multiplying, plan_choices
from dagtrain.planning.planner import Planner
from dagtrain.planning.prices import Prices
from dagtrain.planning.rate import wired
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import fit
from hdl.engine.arithmetic.lanes import constant_multipliers
from hdl.errors import DagtrainError
from hdl.layers.capabilities import Scaling, multiplies
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.norm.online_norm_backward import OnlineNormBackward
from hdl.layers.wiring.update import Update
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from placement.problem.cluster import Cluster
from placement.problem.validate import violations
from placement.search.search import SearchOptions
from tests.cosim_support import BATCH, CYCLES, DEVICES, placement, residual_net, simulate_design
from tests.flow_support import QuickEstimator
from tests.test_relays import small_cluster

LIBRARY = ModuleLibrary(cache_folder() / "modules")


def multiplied(staleness: int) -> Graph:
    graph = residual_net(staleness)
    return multiply_constants(graph, tuple(multiplying_nodes(graph)))


def test_norms_and_updates_take_multipliers_and_nothing_else_does() -> None:
    graph, found = residual_net(1), multiplied(1)
    named = set(multiplying_nodes(graph))
    kinds = OnlineNorm, OnlineNormBackward, Update
    assert named == {node.name for node in graph.nodes if isinstance(node.layer, kinds)}
    for before, after in zip(graph.nodes, found.nodes, strict=True):
        assert multiplies(after.layer) == (after.name in named)
        assert before.inputs == after.inputs
        assert before.layer.sinks == after.layer.sinks
        assert after.name in named or before == after
    # those that do so already stay as they are
    assert multiply_constants(found, tuple(multiplying_nodes(found))) == found


def test_nodes_that_multiply_by_no_constant_are_told_all_at_once() -> None:
    with pytest.raises(DagtrainError) as raised:
        multiply_constants(residual_net(1), ["conv1", "norm9", "relu1", "norm1"])
    assert str(raised.value) == (
        "graph residual: norm9: no such node; conv1: multiplies by no constant; leave it as it is; "
        "relu1: multiplies by no constant; leave it as it is"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("staleness", "kind"), [(2, "one"), (0, "dealt out")])
def test_a_cluster_that_multiplies_constants_trains_to_the_bits_of_the_emulator(
    staleness: int, kind: str, tmp_path: Path
) -> None:
    graph = multiplied(staleness)
    design = design_cluster(graph, placement(graph, kind), DEVICES, CYCLES, LIBRARY, word_bits=64)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(4)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=3)
    run = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 64, 3, Silent(), optimise=False
    )
    assert run.mismatches == ()
    assert len(run.losses) == 4 * BATCH


RECIPE = Recipe(batch=256, staleness=48, weight_decay=4e-5)
# of MobileNetV2, with the share of ALMs that is left at most
LAYERS = [
    (OnlineNorm(height=14, width=14, channels=576, recipe=RECIPE), 0.5),
    (OnlineNorm(height=56, width=56, channels=144, lanes=2, recipe=RECIPE), 0.45),
    (OnlineNormBackward(height=14, width=14, channels=576, recipe=RECIPE), 0.65),
    (Update(shape=(576,), recipe=RECIPE, decay=False), 0.7),
]


@pytest.mark.parametrize(("layer", "share"), LAYERS, ids=lambda value: type(value).__name__)
def test_multipliers_save_the_adders_of_products_at_the_same_pace(layer: OnlineNorm | Update, share: float) -> None:
    other = replace(layer, multiplied=True)
    assert isinstance(other, Scaling)
    estimator, target = Estimator(), part("AGFB014")
    adders, multipliers = (fit(estimator.layer(each), target) for each in (layer, other))
    assert multipliers.alm <= share * adders.alm
    assert multipliers.dsp > adders.dsp
    assert multipliers.m20k == adders.m20k
    assert not estimator.layer(other).constant_adder_bits
    assert other.cycles_per_frame == layer.cycles_per_frame


@pytest.mark.parametrize(
    ("bits", "factor", "found"),
    [(16, 0, 0), (16, 1, 0), (16, 1 << 16, 0), (16, 7, 0), (16, 11, 1), (27, 117_965, 1), (28, 117_965, 2)],
)
def test_a_constant_of_few_bits_or_one_digit_takes_no_multiplier(bits: int, factor: int, found: int) -> None:
    assert constant_multipliers(bits, factor) == found


def planner(graph: Graph, cluster: Cluster, *, multiply: bool) -> Planner:
    return Planner(graph, cluster, Estimator(), SearchOptions(seed=1), {}, Silent(), multiply=multiply)


@pytest.mark.slow
def test_a_plan_takes_multipliers_where_alms_are_scarce_and_leaves_them_where_dsp_blocks_are() -> None:
    graph = residual_net(1)
    few = small_cluster(1, 400)
    level = Prices(graph, few, Estimator(), {}, Silent(), multiply=True).level(400)
    choices = {choice for _, choice in level.dram_bytes}
    assert {choice.multiplied for choice in choices} == {False, True}
    assert not any(
        choice.multiplied for _, choice in Prices(graph, few, Estimator(), {}, Silent()).level(400).dram_bytes
    )
    (device,) = few.devices
    # as many ALMs as a plan at that pace takes with adders, less a tenth
    folded = fold_graph(graph, 400)
    estimator, target = Estimator(), device.board.part
    engines = sum(fit(estimator.layer(node.layer), target).alm for node in folded.nodes)
    tight = replace(few, devices=(replace(device, board=replace(device.board, alm=int(1.0 * engines))),))
    with_multipliers, without = (planner(graph, tight, multiply=multiply).run() for multiply in (True, False))
    taken = multiplying(plan_choices(with_multipliers.plan))
    assert taken
    assert with_multipliers.plan.cycles_per_frame < without.plan.cycles_per_frame
    assert not multiplying(plan_choices(without.plan))
    assert not violations(with_multipliers.instance, with_multipliers.plan)
    chosen = chosen_graph(graph, plan_choices(with_multipliers.plan))
    assert [node.name for node in chosen.nodes if multiplies(node.layer)] == [
        node.name for node in graph.nodes if node.name in taken
    ]


def test_an_unknown_way_to_multiply_is_refused() -> None:
    with pytest.raises(DagtrainError, match="--multiply-constants often: no such way; one of auto, always, never"):
        levers_wanted(PlaceOptions(devices=Path("cluster.toml"), multiply_constants="often"))


def test_a_rate_is_that_of_the_circuits_which_the_plan_builds() -> None:
    graph, cluster = residual_net(1), small_cluster(1, 400)
    plan = (
        Planner(graph, cluster, QuickEstimator(), SearchOptions(seed=1), {}, Silent())
        .fixed(dict.fromkeys(graph.by_name, cluster.devices[0].name), dict.fromkeys(graph.by_name, 400))
        .plan
    )
    names = {*multiplying_nodes(graph)}
    choices = {name: replace(choice, multiplied=name in names) for name, choice in plan_choices(plan).items()}
    chosen = replace(plan, items=tuple(replace(item, payload=choices[item.item].to_payload()) for item in plan.items))
    assert wired(chosen, graph, cluster).graph.nodes == folded_graph(graph, chosen).nodes
    assert wired(chosen, graph, cluster).graph.nodes != wired(plan, graph, cluster).graph.nodes
