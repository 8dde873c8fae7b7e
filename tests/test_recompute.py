"""Maps made again for the way back instead of waiting for it, in graphs, plans and clusters: they change no bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.stored import DramUse
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.flow.placed import load_placed_graph, load_plan
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, GraphError, Role, Stage, verify
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.freeze_layers import freeze_layers
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.narrow_stashes import narrow_stashes
from dagtrain.passes.recompute import kept_edge, kept_edges, recompute
from dagtrain.passes.widths import Widths
from dagtrain.planning.choices import chosen_graph, plan_choices
from dagtrain.planning.planner import Planner
from dagtrain.planning.problem import Problem
from dagtrain.planning.recomputing import Recompute, saved_blocks, with_recomputing
from dagtrain.progress import Silent
from dagtrain.schedule.buffers import fifo_beats
from dagtrain.schedule.schedule import schedule
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.dram.axi import AxiFormat
from hdl.errors import DagtrainError
from hdl.layers.norm.scale_and_shift import ScaleAndShift
from hdl.layers.pointwise.hard_swish import HardSwish
from hdl.layers.pointwise.relu import Relu
from hdl.layers.pointwise.silu import Silu
from hdl.layers.wiring.narrow import Narrow
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from hdl.tensor import Kind
from placement.problem.validate import violations
from placement.search.search import SearchOptions
from tests.cosim_support import (
    BATCH,
    CLOSE,
    CYCLES,
    DEVICES,
    inception_net,
    placement,
    residual_net,
    said_batch_cycles,
    simulate_design,
    squeezed_net,
)
from tests.flow_support import QuickEstimator, new_case, quick_costs
from tests.test_relays import small_cluster

LIBRARY = ModuleLibrary(cache_folder() / "modules")
SEEDS = range(8)


def made_again(graph: Graph) -> Graph:
    """All that can be."""
    return recompute(graph, tuple(kept_edges(graph)))


def bottleneck_net(staleness: int) -> Graph:
    """A streaming graph with blocks of MobileNetV2: depthwise with a stride, narrow without a relu; with a shortcut."""
    builder = GraphBuilder("bottleneck", Recipe(batch=BATCH, staleness=staleness), seed=21)
    x = builder.relu(builder.norm(builder.conv(builder.input(8, 8, 2), 4, 3, padding=1)), ceiling=6.0)
    x = builder.relu(builder.norm(builder.depthwise(x, 3, stride=2, padding=1)), ceiling=6.0)
    x = builder.norm(builder.conv(x, 2, 1))
    y = builder.relu(builder.norm(builder.conv(x, 4, 1)), ceiling=6.0)
    x = builder.add(x, builder.norm(builder.conv(y, 2, 3, padding=1)))
    return finished(builder, x)


def wide_net(staleness: int) -> Graph:
    """A streaming graph whose gradient engines want many rows ahead: windows of 7 x 7 with a stride, of 5 x 5."""
    builder = GraphBuilder("wide", Recipe(batch=BATCH, staleness=staleness), seed=23)
    x = builder.relu(builder.norm(builder.conv(builder.input(8, 8, 2), 4, 1)))
    x = builder.relu(builder.norm(builder.conv(x, 4, 7, stride=2, padding=3)))
    return finished(builder, builder.conv(x, 4, 5, padding=2))


def finished(builder: GraphBuilder, x: str) -> Graph:
    """The streaming graph of a builder whose map x is classified."""
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 3)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(2)]))


def random_net(seed: int) -> Graph:
    """Some layers by chance, most of them normalised, with shortcuts where shapes allow."""
    rng = np.random.default_rng(seed)
    recipe = Recipe(batch=BATCH, staleness=(0, 1, 2, BATCH)[seed % 4], norm_lag=int(rng.integers(1, 3)))
    builder = GraphBuilder(f"random {seed}", recipe, seed=seed)
    x = builder.conv(builder.input(6, 6, 2), 4, 3, padding=1)
    for _ in range(int(rng.integers(2, 5))):
        y = x
        for _ in range(int(rng.integers(1, 3))):
            kernel = int(rng.choice((1, 3)))
            if rng.random() < 0.3:
                y = builder.depthwise(y, kernel, padding=kernel // 2)
            else:
                y = builder.conv(y, 4, kernel, padding=kernel // 2)
            if rng.random() < 0.8:
                y = builder.norm(y)
            y = active(builder, y, int(rng.integers(0, 5)))
        join = rng.random()
        x = builder.add(x if join < 0.2 else builder.conv(x, 4, 1), y) if join < 0.6 else y
    return finished(builder, x)


def active(builder: GraphBuilder, x: str, which: int) -> str:
    """One of five activations, one of which is none."""
    if which < 2:
        return builder.relu(x, ceiling=(None, 6.0)[which])
    return x if which == 4 else builder.activation((HardSwish, Silu)[which - 2], x)


def trained(graph: Graph, batches: int = 3) -> dict[str, Any]:
    """Parameters after some batches, all steps of the emulator."""
    executor = Executor(graph)
    for seed in range(batches):
        executor.step(synthetic_feeds(graph, BATCH, seed))
    return executor.parameters()


def alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs train to the same parameters."""
    first, second = trained(one), trained(other)
    assert first.keys() == second.keys()
    return all(np.array_equal(first[key], second[key]) for key in first)


def changed(graph: Graph, name: str, **fields: Any) -> Graph:
    return replace(graph, nodes=tuple(replace(n, **fields) if n.name == name else n for n in graph.nodes))


# ---- graphs


def test_one_map_waits_for_all_that_follows_from_it() -> None:
    graph = residual_net(1)
    kept = kept_edges(graph)
    readers = {("norm1.backward", "normal"), ("conv2.gradient", "x"), ("conv4.gradient", "x"), ("relu1.error", "mask")}
    masked = {("conv3.gradient", "x"), ("relu2.error", "mask")}
    assert {edge: set(sinks) for edge, sinks in kept.items()} == {"norm1.normal": readers, "relu2.y": masked}
    found = recompute(graph, ["norm1.normal"])
    added = {node.name for node in found.nodes if node.role is Role.RECOMPUTE}
    assert added == {"norm1.normal.kept", "norm1.again", "relu1.again", "relu1.again.y.fork"}
    assert {kept_edge(found, found.by_name[name].inputs[sink]) for name, sink in readers} == {"norm1.normal"}
    # the map goes on, and neither it nor its mask waits
    assert "mask" not in found.by_name["relu1"].outputs
    kinds = {port.tensor.kind for edge in ("relu1.y",) for _, port in found.consumers[edge]}
    assert kinds == {Kind.ACTIVATION}
    # both are there, and the vectors of the frame's version
    again = found.by_name["norm1.again"]
    forward = found.by_name["norm1"]
    assert isinstance(again.layer, ScaleAndShift)
    for name in ("gamma", "beta"):
        assert again.parameters[name] == forward.parameters[name]
        fork = found.producers[again.inputs[name]][0]
        assert fork is found.producers[forward.inputs[name]][0]
        assert fork.name == f"norm1.{name}.update.w.fork"
    # a relu's mask follows from what it gave
    both = made_again(graph)
    assert {node.name for node in both.nodes} - {node.name for node in found.nodes} == {"relu2.y.kept", "relu2.again"}
    assert both.by_name["relu2.again"].outputs == {"mask": "relu2.again.mask"}
    # what has been done is not done twice, and nothing is done that is not wanted
    assert kept_edges(found) == {"relu2.y": kept["relu2.y"]}
    assert kept_edges(both) == {}
    assert recompute(graph, ()) == graph


def test_a_map_that_two_layers_keep_waits_once() -> None:
    graph = inception_net(1)
    kept = kept_edges(graph)
    assert {edge: set(sinks) for edge, sinks in kept.items()} == {
        "relu1.y": {("conv2.gradient", "x"), ("conv3.gradient", "x"), ("relu1.error", "mask")}
    }
    found = made_again(graph)
    fork = found.by_name["relu1.y.kept"]
    readers = {found.consumers[edge][0][0].name for edge in fork.outputs.values()}
    assert readers == {"conv2.gradient", "conv3.gradient", "relu1.again"}
    assert alike(graph, found)


def test_edges_from_which_nothing_follows_are_told_all_at_once() -> None:
    with pytest.raises(DagtrainError) as raised:
        recompute(residual_net(1), ["norm1.normal", "relu1.y", "no edge"])
    assert str(raised.value) == (
        "graph residual: no edge: nothing follows from it; leave it out; relu1.y: nothing follows from it; leave it out"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bit_of_the_emulator_changes(seed: int) -> None:
    graph = random_net(seed)
    found = made_again(graph)
    assert alike(graph, found), seed
    # what is made again is what was kept, at every sink of every frame
    edges: dict[str, Any] = {}
    other: dict[str, Any] = {}
    Executor(graph).step(synthetic_feeds(graph, BATCH, seed), edges.__setitem__)
    Executor(found).step(synthetic_feeds(found, BATCH, seed), other.__setitem__)
    for sinks in kept_edges(graph).values():
        for name, sink in sinks:
            was, now = graph.by_name[name].inputs[sink], found.by_name[name].inputs[sink]
            assert np.array_equal(edges[was], other[now]), (seed, name, sink)


def test_chance_makes_nets_of_every_kind() -> None:
    graphs = [random_net(seed) for seed in SEEDS]
    kept = [kept_edges(graph) for graph in graphs]
    assert sum(map(bool, kept)) >= len(SEEDS) - 2
    makers = {edge.partition(".")[0].rstrip("0123456789") for found in kept for edge in found}
    assert makers >= {"norm", "add"}, makers
    # activations whose way back needs more than a bit
    assert any(isinstance(node.layer, HardSwish | Silu) for graph in graphs for node in made_again(graph).nodes)


@pytest.mark.parametrize("relu", [layer for layer in Relu.examples() if isinstance(layer, Relu)])
def test_the_mask_of_a_relu_follows_from_what_it_gave(relu: Relu) -> None:
    x = relu.sample("x", np.random.default_rng(3), 200)
    y, mask = relu.codes(x)
    again, seen = relu.codes(y)
    assert np.array_equal(again, y)
    assert np.array_equal(seen, mask)
    assert 0 < mask.sum() < mask.size


def test_what_waits_narrow_waits_narrow_or_not_at_all() -> None:
    builder = GraphBuilder("narrow", Recipe(batch=BATCH, staleness=1), seed=8)
    x = builder.relu(builder.conv(builder.input(6, 6, 2), 4, 3, padding=1))
    x = builder.relu(builder.norm(builder.conv(x, 4, 3, padding=1)))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(builder.conv(x, 4, 1)), 3)))
    calibrated = calibrate(training, [synthetic_feeds(training, BATCH, 0)])
    graph = insert_forks(narrow_stashes(calibrated, Widths.parse(("stash=8",))))
    kept = kept_edges(graph)
    readers = {("norm1.backward", "normal"), ("conv3.gradient", "x"), ("relu2.error", "mask")}
    # the mask of the first relu does not follow from 8 bits
    assert {edge: set(sinks) for edge, sinks in kept.items()} == {"norm1.normal": readers}
    found = made_again(graph)
    assert {"relu1.y.narrow", "relu2.y.narrow"} <= graph.by_name.keys()
    assert "relu2.y.narrow" not in found.by_name
    assert "relu1.y.narrow" in found.by_name
    assert isinstance(found.by_name["relu2.y.narrow.again"].layer, Narrow)
    assert alike(graph, found)


def test_frozen_scale_and_shift_are_those_of_the_norm() -> None:
    builder = GraphBuilder("frozen", Recipe(batch=BATCH, staleness=1), seed=4)
    x = builder.relu(builder.norm(builder.conv(builder.input(6, 6, 2), 4, 3, padding=1)))
    forward = builder.classify(builder.gemm(builder.global_average_pool(builder.conv(x, 4, 3, padding=1)), 3))
    training = differentiate(freeze_layers(forward, ["norm1"]))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, 0)]))
    found = made_again(graph)
    again = found.by_name["norm1.again"]
    assert again.layer.held_parameters
    assert again.parameters == found.by_name["norm1"].parameters
    assert alike(graph, found)


def test_a_graph_with_maps_made_again_survives_its_file(tmp_path: Path) -> None:
    found = made_again(bottleneck_net(1))
    save_graph(found, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json").nodes == found.nodes


def test_what_is_made_again_does_not_move_in_step() -> None:
    found = made_again(residual_net(1))
    again = found.by_name["relu1.again"]
    assert isinstance(again.layer, Relu)
    wrong = changed(found, "relu1.again", layer=replace(again.layer, kind=Kind.ACTIVATION))
    with pytest.raises(GraphError, match=r"relu1\.again makes again what waits, but y moves in step, as activation"):
        verify(wrong, Stage.STREAMING)


def test_a_wrong_version_and_a_wrong_map_show() -> None:
    graph = chain_net(2)
    found = made_again(graph)
    again = found.by_name["norm1.again"]
    assert isinstance(again.layer, ScaleAndShift)
    assert alike(graph, found)
    for staleness in (0, 1, 3):
        recipe = replace(graph.recipe, staleness=staleness)
        assert not alike(graph, changed(found, "norm1.again", layer=replace(again.layer, recipe=recipe))), staleness
    swapped = {**again.inputs, "gamma": again.inputs["beta"], "beta": again.inputs["gamma"]}
    with pytest.raises(GraphError, match=r"copies of norm1\.gamma differ after batch 1"):
        alike(graph, changed(found, "norm1.again", inputs=swapped))
    # each mask for the other's error
    one, other = (found.by_name[f"relu{number}.error"] for number in (1, 2))
    mask, its = one.inputs["mask"], other.inputs["mask"]
    crossed = changed(found, one.name, inputs={**one.inputs, "mask": its})
    crossed = changed(crossed, other.name, inputs={**other.inputs, "mask": mask})
    assert not alike(graph, verify(crossed, Stage.STREAMING))
    # a mask of the map before it is scaled
    relu = found.by_name["relu1.again"]
    early = changed(found, "norm1.again", layer=replace(again.layer, y_fixed=replace(again.layer.y_fixed, width=15)))
    with pytest.raises(GraphError, match=r"norm1\.again\.y -> relu1\.again\.x: format s15"):
        verify(early, Stage.STREAMING)
    assert relu.inputs == {"x": "norm1.again.y"}


def chain_net(staleness: int) -> Graph:
    """A streaming graph of three convolutions, two of them normalised, with maps of one shape."""
    builder = GraphBuilder("chain", Recipe(batch=BATCH, staleness=staleness, learning_rate=0.5), seed=8)
    x = builder.input(6, 6, 2)
    for _ in range(2):
        x = builder.relu(builder.norm(builder.conv(x, 4, 3, padding=1)))
    return finished(builder, builder.conv(x, 4, 3, padding=1))


# ---- circuits


def run(
    graph: Graph, kind: str, folder: Path, batches: int = 4, by: Simulator = Simulator.VERILATOR, **options: Any
) -> ClusterRun:
    """Train on a cluster in Verilog beside the emulator, with stalls."""
    design = design_cluster(graph, placement(graph, kind), DEVICES, CYCLES, LIBRARY, word_bits=64, **options)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(batches)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=3)
    return simulate_design(design, LIBRARY, feeds, folder, by, network, 40, 3, Silent(), optimise=False)


def tiny_net(staleness: int) -> Graph:
    """A streaming graph of one map that is made again."""
    builder = GraphBuilder("tiny", Recipe(batch=BATCH, staleness=staleness), seed=8)
    x = builder.relu(builder.norm(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1)))
    return finished(builder, builder.conv(x, 2, 3, padding=1))


# net, staleness, placement
CLUSTERS = [
    pytest.param(tiny_net, 2, "dealt out", marks=pytest.mark.slow),
    pytest.param(bottleneck_net, 2, "dealt out", marks=pytest.mark.slow),
    pytest.param(residual_net, 0, "branches apart", marks=pytest.mark.slow),
    pytest.param(residual_net, BATCH, "one", marks=pytest.mark.slow),
    pytest.param(squeezed_net, 1, "dealt out", marks=pytest.mark.slow),
    pytest.param(inception_net, 1, "dealt out", marks=pytest.mark.slow),
    pytest.param(wide_net, 3, "one", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("net", "staleness", "kind"), CLUSTERS)
def test_a_cluster_that_makes_maps_again_trains_to_the_bits_of_the_emulator(
    net: Callable[[int], Graph], staleness: int, kind: str, tmp_path: Path
) -> None:
    found = run(made_again(net(staleness)), kind, tmp_path)
    assert found.mismatches == ()
    assert len(found.losses) == 4 * BATCH


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_batch_takes_as_long_as_said(staleness: int, tmp_path: Path) -> None:
    graph = made_again(chain_net(staleness))
    design = design_cluster(graph, placement(graph, "one"), DEVICES, CYCLES, LIBRARY, word_bits=64)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(6)]
    network = NetworkModel(stall_256=0)
    found = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 0, 3, Silent(), optimise=False
    )
    assert found.mismatches == ()
    said = said_batch_cycles(design, network.latency_cycles)
    assert found.batch_cycles[-1] == pytest.approx(said, rel=CLOSE)


# of the engines of the net below, which need all of it
TIGHT = 1800


@pytest.mark.slow
def test_maps_that_are_made_again_keep_the_pace(tmp_path: Path) -> None:
    builder = GraphBuilder("tight", Recipe(batch=8, staleness=8), seed=5)
    x = builder.input(10, 10, 2)
    for filters, stride in ((4, 1), (8, 2), (8, 1)):
        x = builder.relu(builder.norm(builder.conv(x, filters, 3, padding=1, stride=stride)))
    graph = made_again(finished(builder, builder.conv(x, 16, 3, stride=2, padding=1)))
    engines = [node.layer.cycles_per_frame for node in fold_graph(graph, TIGHT).nodes]
    assert engines.count(TIGHT) >= 6
    where = dict.fromkeys(graph.by_name, "one")
    design = design_cluster(graph, where, ("one",), TIGHT, LIBRARY, word_bits=64)
    feeds = [synthetic_feeds(graph, 8, 100 + index) for index in range(8)]
    found = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, NetworkModel(), 0, 1, Silent(), optimise=False
    )
    assert found.mismatches == ()
    assert found.cycles_per_frame <= 1.005 * TIGHT


@pytest.mark.slow
def test_icarus_makes_maps_again_alike(tmp_path: Path) -> None:
    assert run(made_again(tiny_net(1)), "one", tmp_path, 2, Simulator.ICARUS).mismatches == ()


@pytest.mark.slow
def test_a_map_in_dram_is_made_again_of(tmp_path: Path) -> None:
    graph = made_again(tiny_net(BATCH))
    dram = DramUse(
        format=AxiFormat(data_bits=64, address_bits=16), burst=8, prefetch=32, edges=frozenset({"norm1.normal"})
    )
    found = run(graph, "one", tmp_path, dram=dram)
    assert found.mismatches == ()


def test_what_waits_is_one_map_and_a_few_rows() -> None:
    for net in (bottleneck_net, residual_net, squeezed_net):
        graph = net(1)
        before, after = (waiting_bits(g) for g in (graph, made_again(graph)))
        norms = [edge for edge in kept_edges(graph) if edge.endswith(".normal")]
        assert norms
        for edge in norms:
            assert after[edge] < before[edge], (net.__name__, edge)


def waiting_bits(graph: Graph) -> Counter[str]:
    """Bits of FIFOs of the way back, by the map that waits in the graph where it waits alone."""
    folded = fold_graph(graph, CYCLES)
    depths, found = fifo_beats(folded, schedule(folded, CYCLES)), Counter[str]()
    origins = {sink: edge for edge, sinks in kept_edges(graph).items() for sink in sinks}
    for edge, _producer, _source, consumer, sink in folded.edges:
        if sink.tensor.kind is Kind.STASH:
            origin = origins.get((consumer.name, sink.name)) or kept_edge(folded, edge)
            found[origin] += depths[edge] * sink.payload_bits
    return found


# ---- plans


def problem(graph: Graph) -> Problem:
    return Problem(graph, small_cluster(2, 60), SearchOptions(seed=1), {})


def test_a_plan_holds_with_maps_made_again() -> None:
    graph = residual_net(1)
    assert with_recomputing(problem(graph), Recompute.NEVER) is graph
    # too few blocks
    assert with_recomputing(problem(graph), Recompute.AUTO) is graph
    found = with_recomputing(problem(graph), Recompute.ALWAYS)
    assert found.nodes == made_again(graph).nodes
    estimator: Any = QuickEstimator()
    planned = Planner(found, small_cluster(2, 60), estimator, SearchOptions(seed=1), {}, Silent()).run()
    assert not violations(planned.instance, planned.plan)
    assert {item.item for item in planned.plan.items} == set(found.by_name)
    assert chosen_graph(found, plan_choices(planned.plan)).by_name.keys() >= found.by_name.keys()


def test_maps_are_made_again_where_that_saves_block_memories() -> None:
    graph, parts = large_net(), [part("AGFB014")]
    edges = tuple(kept_edges(graph))
    saved = saved_blocks(graph, edges, 40_000, parts)
    assert saved.keys() == set(edges)
    assert saved["norm1.normal"] >= 8 > saved["norm3.normal"]
    assert saved_blocks(graph, edges, 10, parts) == dict.fromkeys(edges, 0)
    found = with_recomputing(problem(graph), Recompute.AUTO)
    assert "norm1.again" in found.by_name
    assert "norm3.again" not in found.by_name


def large_net() -> Graph:
    """Maps of 32 x 32 at first, of 8 x 8 at last."""
    builder = GraphBuilder("large", Recipe(batch=BATCH, staleness=1), seed=2)
    x = builder.input(32, 32, 3)
    for stride in (1, 2, 2):
        x = builder.relu(builder.norm(builder.conv(x, 8, 3, padding=1, stride=stride)))
    return finished(builder, builder.conv(x, 8, 3, padding=1))


def test_an_unknown_way_to_recompute_is_refused() -> None:
    with pytest.raises(DagtrainError, match="--recompute often: no such way; one of auto, always, never"):
        levers_wanted(PlaceOptions(devices=Path("cluster.toml"), recompute="often"))


def test_place_makes_maps_again_and_emission_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path / "case").must("import")
    assert case.step("place", "--recompute", "always").code == 0
    graph = load_placed_graph(Workspace(case.out))
    assert {node.name for node in graph.nodes if node.role is Role.RECOMPUTE} == {"r_node.again", "r_node.y.kept"}
    assert {item.item for item in load_plan(Workspace(case.out)).items} == set(graph.by_name)
    case.must("emit")
    tops = "".join(path.read_text() for path in (case.out / "emit").glob("*/rtl/*.v"))
    assert "r_node_again" in tops
    # the same question has its answer, another one has another
    assert "r_node.again" in case.step("place", "--recompute", "always", "--json").out
    assert case.step("place").code == 0
    assert not any(node.role is Role.RECOMPUTE for node in load_placed_graph(Workspace(case.out)).nodes)
