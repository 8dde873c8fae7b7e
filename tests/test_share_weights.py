"""Forward and error engines with one weight memory, in graphs, plans and whole clusters: they change no bit."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import DramUse, MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, GraphError, Stage, verify
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.memory_home import move_memories
from dagtrain.passes.place import place
from dagtrain.passes.share_weights import share_weights, sharing_nodes
from dagtrain.planning.best import Best
from dagtrain.planning.choices import Choice, borrowing, chosen_graph, memory_homes, plan_choices
from dagtrain.planning.planner import Planner
from dagtrain.planning.problem import Problem
from dagtrain.planning.resting import resting, try_without_rests
from dagtrain.planning.results import Planned, Searched
from dagtrain.planning.sharing import (
    ShareWeights,
    largest_weights,
    saved_blocks,
    weight_bits,
    with_shared_weights,
)
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.dram.axi import AxiFormat
from hdl.errors import DagtrainError
from hdl.layers.conv.engine import MOST_PARKED_BITS
from hdl.layers.conv.pair import ConvPair
from hdl.layers.storage import Home
from hdl.parts.catalogue import part
from placement.problem.cluster import without_dram
from placement.problem.instance import Configuration
from placement.problem.plan import Plan, with_batch
from placement.problem.validate import violations
from placement.search.search import SearchOptions, plan_from_assignment
from tests.cosim_support import (
    BATCH,
    CLOSE,
    CYCLES,
    DEVICES,
    placement,
    residual_net,
    said_batch_cycles,
    simulate_design,
)
from tests.flow_support import QuickEstimator
from tests.test_relays import residual, small_cluster

LIBRARY = ModuleLibrary(cache_folder() / "modules")
# the first layer sends no error back
PAIRS = {"conv2.error": "conv2", "conv3.error": "conv3", "conv4.error": "conv4", "gemm1.error": "gemm1"}


def shared(staleness: int) -> Graph:
    return share_weights(residual_net(staleness), tuple(PAIRS))


def test_the_fork_between_two_engines_goes_and_both_read_one_edge() -> None:
    graph, found = residual_net(1), shared(1)
    assert {name: lender for name, (_, lender) in sharing_nodes(graph)} == PAIRS
    assert {name: node.name for name, node in found.lenders.items()} == PAIRS
    gone = {node.name for node in graph.nodes} - {node.name for node in found.nodes}
    assert gone == {f"{lender}.w.update.w.fork" for lender in PAIRS.values()}
    for name, lender in PAIRS.items():
        assert found.by_name[name].inputs["w"] == found.by_name[lender].inputs["w"] == f"{lender}.w.update.w"
    circuits = {node.name: node.layer for node in found.circuits}
    assert circuits.keys() == {node.name for node in found.nodes} - PAIRS.keys()
    assert {name for name, layer in circuits.items() if isinstance(layer, ConvPair)} == set(PAIRS.values())
    streams = {(consumer.name, sink.name) for *_, consumer, sink in found.streams}
    assert {(consumer.name, sink.name) for *_, consumer, sink in found.edges} - streams == {(n, "w") for n in PAIRS}
    # those that share already stay as they are
    assert share_weights(found, tuple(PAIRS)) == found
    assert [name for name, _ in sharing_nodes(found)] == []


def test_sharing_changes_no_bit_of_the_emulator() -> None:
    states = []
    for graph in (residual_net(1), shared(1)):
        executor = Executor(graph)
        for seed in range(3):
            executor.step(synthetic_feeds(graph, BATCH, seed))
        states.append(executor.parameters())
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])


def test_nodes_that_nobody_lends_a_memory_are_told_all_at_once() -> None:
    with pytest.raises(DagtrainError) as raised:
        share_weights(residual_net(1), ["conv1", "conv9.error", "relu1"])
    assert str(raised.value) == (
        "graph residual: conv9.error: no such node; "
        "conv1: has no node beside it whose weights it could read; leave it its own; "
        "relu1: has no node beside it whose weights it could read; leave it its own"
    )


def changed(graph: Graph, name: str, **fields: Any) -> Graph:
    return replace(graph, nodes=tuple(replace(n, **fields) if n.name == name else n for n in graph.nodes))


def test_a_graph_in_which_nobody_can_lend_is_refused() -> None:
    graph = shared(1)
    lender = graph.by_name["conv2"]
    outside = changed(graph, "conv2", layer=lender.layer.at(Home.DRAM))
    with pytest.raises(GraphError, match=r"conv2\.error borrows a memory, and none of those that read its edge can"):
        verify(outside, Stage.STREAMING)
    # a second stream from one edge is none that sharing allows
    both = changed(graph, "conv2.error", layer=graph.by_name["conv2.error"].layer.at(Home.ON_CHIP))
    with pytest.raises(GraphError, match=re.escape("edge conv2.w.update.w has 2 consumers; a fork is missing")):
        verify(both, Stage.STREAMING)
    twice = replace(
        graph, nodes=(*graph.nodes, replace(graph.by_name["conv2.error"], name="other", outputs={"dx": "z"}))
    )
    with pytest.raises(GraphError, match=r"other borrows the memory of conv2, as conv2\.error does"):
        verify(twice, Stage.FORWARD)
    folded = fold_graph(graph, CYCLES)
    placed = dict.fromkeys(folded.by_name, "alpha") | {"conv2.error": "beta"}
    with pytest.raises(GraphError, match=r"conv2\.error stands on beta and reads the memory of conv2, which"):
        place(folded, placed, DEVICES)


# staleness, placement, whether the next version waits outside; the last has all frames of a batch stale
CASES = [
    (2, "branches apart", False),
    pytest.param(0, "one", False, marks=pytest.mark.slow),
    pytest.param(1, "dealt out", True, marks=pytest.mark.slow),
    pytest.param(BATCH, "one", True, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("staleness", "kind", "parked"), CASES)
def test_a_cluster_that_shares_weights_trains_to_the_bits_of_the_emulator(
    staleness: int, kind: str, parked: bool, tmp_path: Path
) -> None:
    graph = shared(staleness)
    if parked:
        graph = move_memories(graph, dict.fromkeys(PAIRS.values(), Home.PARKED))
    dram = DramUse(format=AxiFormat(data_bits=64, address_bits=16), burst=8, prefetch=32)
    design = design_cluster(graph, placement(graph, kind), DEVICES, CYCLES, LIBRARY, word_bits=64, dram=dram)
    images = {
        image.node: image.path for device in design.devices for image in device.images if image.image == "weights"
    }
    assert not PAIRS.keys() & images.keys()
    assert all("true_dual_port" in images[lender] for lender in PAIRS.values())
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(4)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=3)
    run = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 64, 3, Silent(), optimise=False
    )
    assert run.mismatches == ()
    assert len(run.losses) == 4 * BATCH


# the last: a weight a cycle, so that engines rest far longer than the FIFOs in front of them hold maps for
@pytest.mark.slow
@pytest.mark.parametrize(("parked", "port_bits"), [(False, MOST_PARKED_BITS), (True, MOST_PARKED_BITS), (True, 16)])
def test_a_batch_takes_as_long_as_said(
    parked: bool, port_bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one place the forward engine rests until the error engine is through, once a batch."""
    monkeypatch.setattr("hdl.layers.conv.engine.MOST_PARKED_BITS", port_bits)
    graph = shared(1)
    if parked:
        graph = move_memories(graph, dict.fromkeys(PAIRS.values(), Home.PARKED))
    dram = DramUse(format=AxiFormat(data_bits=64, address_bits=16), burst=8, prefetch=32)
    design = design_cluster(graph, placement(graph, "one"), DEVICES, CYCLES, LIBRARY, word_bits=64, dram=dram)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(6)]
    run = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, NetworkModel(stall_256=0), 0, 3, Silent(),
        optimise=False, memory=MemoryModel(latency_cycles=10, stall_256=0),
    )  # fmt: skip
    assert run.mismatches == ()
    said = said_batch_cycles(design, NetworkModel().latency_cycles)
    assert run.batch_cycles[-1] == pytest.approx(said, rel=CLOSE)
    # the round trip is what one place costs
    assert (said > BATCH * CYCLES) == parked


def planner(graph: Graph, devices: int = 2, dsp: int = 40) -> Planner:
    estimator: Any = QuickEstimator()
    return Planner(graph, small_cluster(devices, dsp), estimator, SearchOptions(seed=1), {}, Silent())


def test_a_plan_keeps_engines_that_share_on_one_device_and_says_so() -> None:
    graph = residual(1)
    problem = Problem(graph, small_cluster(2, 40), SearchOptions(seed=1), {})
    assert with_shared_weights(problem, ShareWeights.NEVER) is graph
    found = with_shared_weights(problem, ShareWeights.ALWAYS)
    pairs = {name: lender.name for name, lender in found.lenders.items()}
    assert pairs == {"conv2.error": "conv2", "gemm1.error": "gemm1"}
    planned = planner(found).run()
    places = {item.item: item.device for item in planned.plan.items}
    assert all(places[name] == places[lender] for name, lender in pairs.items())
    choices = plan_choices(planned.plan)
    assert set(borrowing(choices)) == pairs.keys()
    assert not pairs.keys() & memory_homes(choices).keys()
    assert not violations(planned.instance, planned.plan)
    # what the plan says makes the same graph of the imported one
    assert chosen_graph(graph, choices).nodes == chosen_graph(found, choices).nodes
    # a borrower on another device is caught
    name = next(iter(pairs))
    other = next(device.name for device in planned.instance.devices if device.name != places[name])
    items = tuple(replace(item, device=other) if item.item == name else item for item in planned.plan.items)
    caught = [str(problem) for problem in violations(planned.instance, replace(planned.plan, items=items))]
    assert any("same" in line and pairs[name] in line for line in caught), caught


def test_engines_pinned_apart_do_not_share() -> None:
    graph = residual(1)
    pins = {"conv2": "d0", "conv2.error": "d1"}
    problem = Problem(graph, small_cluster(2, 40), SearchOptions(seed=1), pins)
    assert set(with_shared_weights(problem, ShareWeights.ALWAYS).lenders) == {"gemm1.error"}


def test_sharing_is_taken_where_it_saves_block_memories() -> None:
    graph = residual(1)
    pairs = {"conv2.error": "conv2", "gemm1.error": "gemm1"}
    # 16 x 16 x 9 weights: 2 304 words of one, 1 024 blocks deep where both ports read; few of many: logic
    assert saved_blocks(graph, pairs, 100_000, [part("AGFB014")])["conv2.error"] > 0
    assert saved_blocks(graph, pairs, 40, [part("AGFB014")]) == {"conv2.error": 0, "gemm1.error": 0}
    problem = Problem(graph, small_cluster(2, 40), SearchOptions(seed=1), {})
    # too few blocks to be worth a constraint
    assert with_shared_weights(problem, ShareWeights.AUTO).lenders == {}


def test_the_largest_weights_of_many_pass_by(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(residual(1), small_cluster(2, 40), SearchOptions(seed=1), {})
    pairs = {"conv2.error": "conv2", "gemm1.error": "gemm1"}
    bits = {name: weight_bits(problem.graph.by_name[lender].layer) for name, lender in pairs.items()}
    assert bits["conv2.error"] > bits["gemm1.error"] > 0
    memory = sum(device.board.m20k * device.board.part.m20k_bits for device in problem.cluster.devices)
    # room for both, for the smaller one, for neither
    for room, found in (
        (sum(bits.values()), []),
        (sum(bits.values()) - 1, ["conv2.error"]),
        (bits["gemm1.error"], ["conv2.error"]),
        (bits["gemm1.error"] - 1, ["conv2.error", "gemm1.error"]),
    ):
        monkeypatch.setattr("dagtrain.planning.sharing.MOST_WEIGHTS", Fraction(room, memory))
        assert largest_weights(problem, pairs, 100_000) == found
    # too fast for them to come once a frame
    assert largest_weights(problem, pairs, 1) == []
    without = replace(problem, cluster=without_dram(problem.cluster))
    assert largest_weights(without, pairs, 100_000) == []


def test_an_unknown_way_to_share_is_refused() -> None:
    with pytest.raises(DagtrainError, match="--share-weights often: no such way; one of auto, always, never"):
        levers_wanted(PlaceOptions(devices=Path("cluster.toml"), share_weights="often"))


def test_nobody_is_offered_a_memory_that_the_graph_does_not_lend(monkeypatch: pytest.MonkeyPatch) -> None:
    # all homes are priced, however small the weights are
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 0)
    made = planner(residual(1)).searcher.prices.level(2048)
    assert {choice.memory for _, choice in made.dram_bytes} == {Home.ON_CHIP, Home.PARKED, Home.DRAM}


def test_two_versions_of_shared_weights_are_looked_for_where_training_is_faster_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside a plan whose lenders keep one version, said to train half as fast, or faster than its pace."""
    # all homes are priced, however small the weights are
    monkeypatch.setattr("dagtrain.planning.costs.LEAST_DRAM_BLOCKS", 0)
    graph, pace = share_weights(residual(1), ("conv2.error",)), 2048
    searching = planner(graph, dsp=400)
    prices = searching.searcher.prices
    instance, offers = prices.instance([pace]), prices.level(pace).offers["conv2"]

    def one_version(configuration: Configuration) -> bool:
        return Choice.from_payload(configuration.payload).memory is Home.PARKED

    alone = {name: tuple(filter(one_version, found)) for name, found in offers.items()}
    items = tuple(replace(item, configurations=alone) if item.name == "conv2" else item for item in instance.items)
    places = dict.fromkeys((node.name for node in graph.nodes), "d0")
    parked = plan_from_assignment(replace(instance, items=items), places)
    assert resting(searching.searcher, parked)
    recipe = graph.recipe

    def best(plan: Plan, share: Fraction) -> list[Plan]:
        """Where that is the plan so far, and a batch takes so many times as long as at its pace."""
        told: list[Planned] = []
        cycles = int(plan.cycles_per_frame * recipe.batch * share)
        slow = with_batch(plan, recipe.batch, recipe.staleness, cycles)
        known = Best(keep=told.append, planned=Planned(slow, instance))
        try_without_rests(replace(searching.searcher, best=known), Searched(parked, instance, (pace,)))
        return [each.plan for each in told]

    (found,) = best(parked, Fraction(4))
    assert plan_choices(found)["conv2"].memory is Home.ON_CHIP
    assert set(borrowing(plan_choices(found))) == {"conv2.error"}
    assert found.bound_cycles_per_frame == parked.bound_cycles_per_frame
    # those alone that lend have no single version
    offered = searching.searcher.lending_two(Fraction(pace)).prices.level(pace).dram_bytes
    single = {name for name, choice in offered if choice.memory is Home.PARKED}
    assert single
    assert single == {name for name, choice in prices.level(pace).dram_bytes if choice.memory is Home.PARKED} - {
        "conv2"
    }
    # where training is as fast as the pace, or nothing rests, nothing is looked for
    assert not best(parked, Fraction(1))
    assert not resting(searching.searcher, found)
    assert not best(found, Fraction(4))
