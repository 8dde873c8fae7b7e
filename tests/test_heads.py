"""Auxiliary heads: losses beside the main one, whose errors count less and wait for the others where they meet."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.testbench import simulate_under_myhdl
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow import check_step, import_step
from dagtrain.flow.import_options import ImportOptions
from dagtrain.flow.import_step import RecipeError, load_training_graph
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.heads import main_loss
from dagtrain.graph.ir import Graph, GraphError, Role
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.progress import Silent
from dagtrain.schedule.schedule import schedule
from dagtrain.training.feeds import host_ports, synthetic_feeds
from hdl.cache import cache_folder
from hdl.errors import ImportProblem, ShapeError
from hdl.fixed import Fixed
from hdl.layers.loss.choice import loss_of
from hdl.layers.loss.mean_squared_error import MeanSquaredError
from hdl.layers.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.recipe import Loss, Recipe
from hdl.simulate.cosimulation import Engine
from hdl.tensor import Kind
from importers.onnx import import_with_notes
from importers.onnx.writing import write_model
from tests.cosim_support import DEVICES, deliver, simulate_design
from tests.import_support import evaluate, model, node, save

RECIPE = Recipe(batch=2, staleness=1, auxiliary=0.3)
# cycles a frame of `two_headed`
TWO_HEADED_CYCLES = 64
LIBRARY = ModuleLibrary(cache_folder() / "modules")
RNG = np.random.default_rng(71)


def two_headed(recipe: Recipe = RECIPE) -> Graph:
    """The streaming graph of a net with a head in its middle, small enough for Icarus."""
    net = GraphBuilder("heads", recipe, seed=3)
    x = net.relu(net.conv(net.input(4, 4, 1), 2, 3, padding=1))
    head = net.gemm(net.global_average_pool(net.conv(x, 2, 1)), 3)
    y = net.relu(net.conv(net.relu(net.conv(x, 2, 3, padding=1)), 2, 3, padding=1))
    training = differentiate(net.classify(net.gemm(net.global_average_pool(y), 3), head))
    return insert_forks(calibrate(training, [synthetic_feeds(training, recipe.batch, seed) for seed in range(2)]))


# ---- the graph


def test_the_error_of_a_head_waits_like_a_stash_for_those_that_it_meets() -> None:
    graph = two_headed()
    (add,) = (item for item in graph.nodes if item.role is Role.SUM)
    assert add.layer_of == "relu1"
    assert {port.name: port.tensor.kind for port in add.layer.sinks} == {"a": Kind.ERROR, "b": Kind.STASH}
    # of the short branch, which has nothing to match hops with
    assert graph.producers[add.inputs["b"]][0].layer_of == "conv2"
    taken, offered = schedule(graph, TWO_HEADED_CYCLES).taken, schedule(graph, TWO_HEADED_CYCLES).offered
    waits = {sink: taken[edge].first - offered[edge].first for sink, edge in add.inputs.items()}
    assert waits["a"] <= 4 < waits["b"]


def test_heads_share_the_labels_and_the_main_one_alone_tells_its_metrics() -> None:
    graph = two_headed()
    assert host_ports(graph) == ("input1", "loss1.label", "loss1.results")
    assert main_loss(graph).name == "loss1"
    assert graph.by_name["loss1.label.y.fork"].layer.kinds == (Kind.STASH, Kind.STASH)
    assert sorted(graph.by_name["head1"].outputs) == ["error"]


def test_errors_of_two_heads_on_one_map_are_summed_before_they_wait() -> None:
    net = GraphBuilder("three", replace(RECIPE, auxiliary=0.5), seed=4)
    x = net.relu(net.conv(net.input(3, 3, 1), 2, 3, padding=1))
    pooled = net.global_average_pool(x)
    main = net.gemm(net.global_average_pool(net.conv(x, 2, 1)), 3)
    graph = differentiate(net.classify(main, net.gemm(pooled, 3), net.gemm(pooled, 3)))
    sums = {item.layer_of: item.layer for item in graph.nodes if item.role is Role.SUM}
    assert [sums[name].port("b").tensor.kind for name in ("average1", "relu1")] == [Kind.ERROR, Kind.STASH]


def test_a_graph_without_heads_is_as_it_was() -> None:
    net = GraphBuilder("one", Recipe(), seed=4)
    graph = net.classify(net.gemm(net.input(2, 2, 3), 3))
    assert graph.nodes[-1].layer == SoftmaxCrossEntropy(classes=3)
    assert "auxiliary" not in f"{differentiate(graph)}"
    with pytest.raises(GraphError, match="sends results of nothing to the host"):
        main_loss(graph)


def test_a_graph_with_heads_survives_its_file(tmp_path: Path) -> None:
    graph = two_headed()
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json").nodes == graph.nodes


# ---- numbers


@pytest.mark.parametrize("weight", [0.01, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("loss", list(Loss))
def test_the_error_of_a_head_is_the_main_ones_times_its_weight(loss: Loss, weight: float) -> None:
    main, head = (loss_of(Recipe(loss=loss, auxiliary=weight), 5, auxiliary=which) for which in (False, True))
    x, labels = RNG.normal(size=(40, 1, 1, 5)) * 4, RNG.integers(0, 5, (40, 1, 1, 1))
    codes = {"x": main.port("x").tensor.fixed.encode(x), "label": labels}
    errors = [layer.port("error").tensor.fixed.decode(layer.golden({}, codes)["error"]) for layer in (main, head)]
    step = head.port("error").tensor.fixed.step
    assert np.abs(errors[1] - weight * errors[0]).max() <= step + weight * main.port("error").tensor.fixed.step
    assert np.abs(errors[1]).max() > 0.5 * weight * np.abs(errors[0]).max()
    values = {"x": x, "label": labels.astype(float)}
    wanted = weight * np.asarray(main.reference({}, values)["error"])
    np.testing.assert_allclose(np.asarray(head.reference({}, values)["error"]), wanted, rtol=1e-12)


@pytest.mark.parametrize("weight", [-0.3, 0.001, 1.5, float("nan"), float("inf")])
def test_weights_out_of_range_are_refused(weight: float) -> None:
    for layer in (SoftmaxCrossEntropy, MeanSquaredError):
        with pytest.raises(ShapeError, match=r"auxiliary must be 0 or lie in \[0.01, 1\]"):
            layer(classes=3, auxiliary=weight)
    with pytest.raises(ValueError, match=r"auxiliary must lie in \[0.01, 1\], or be 0 to drop heads"):
        Recipe(auxiliary=weight)


def test_a_finer_format_holds_what_is_left_of_a_small_error() -> None:
    layer = loss_of(Recipe(auxiliary=0.3), 3, auxiliary=True)
    assert layer.port("error").tensor.fixed == Fixed(16, 15)
    assert loss_of(Recipe(auxiliary=0.01), 3, auxiliary=True).port("error").tensor.fixed == Fixed(16, 20)


def test_a_net_learns_through_its_head_alone() -> None:
    """What lies behind the head's branching stands still at a rate of nothing; its error reaches what lies before."""
    heads = {}
    for weight in (0.3, 1.0):
        graph = two_headed(replace(RECIPE, auxiliary=weight))
        found: dict[str, np.ndarray] = {}
        Executor(graph).step(synthetic_feeds(graph, 2, 9), lambda edge, codes, found=found: found.update({edge: codes}))
        (edge,) = (item.inputs["g"] for item in graph.nodes if item.name == "gemm1.w.update")
        heads[weight] = graph.tensor(edge).fixed.decode(found[edge])
    # stochastic rounding of the sums
    np.testing.assert_allclose(heads[0.3], 0.3 * heads[1.0], atol=0.02 * np.abs(heads[1.0]).max())


# ---- hardware


def designed(split: bool) -> ClusterDesign:
    """On one device; or the main branch, and what follows it, on another, so that the head takes no hop."""
    graph = two_headed()
    away = {"conv3", "relu2", "conv4", "relu3", "average2", "gemm2"} if split else set()
    where = {item.name: DEVICES[int(item.layer_of in away and not item.layer.pinned_to_host)] for item in graph.nodes}
    return design_cluster(graph, where, DEVICES, TWO_HEADED_CYCLES, LIBRARY, word_bits=64)


def trained(simulator: Simulator, folder: Path) -> ClusterRun:
    """Three batches on two devices under stalls."""
    design = designed(split=True)
    feeds = [synthetic_feeds(design.graph, 2, 100 + index) for index in range(3)]
    network = NetworkModel(latency_cycles=40, stall_256=30)
    return simulate_design(design, LIBRARY, feeds, folder, simulator, network, 64, 1, Silent(), optimise=False)


@pytest.mark.slow
@pytest.mark.parametrize("simulator", [Simulator.VERILATOR, Simulator.ICARUS])
def test_two_heads_train_to_the_bits_of_the_emulator(simulator: Simulator, tmp_path: Path) -> None:
    run = trained(simulator, tmp_path)
    assert run.mismatches == ()
    assert run.compared_words > 50


@pytest.mark.slow
@pytest.mark.parametrize("engine", list(Engine), ids=lambda engine: engine.value)
def test_two_heads_train_to_the_bits_of_the_emulator_under_a_myhdl_testbench(engine: Engine, tmp_path: Path) -> None:
    design = designed(split=False)
    feeds = [synthetic_feeds(design.graph, 2, 100 + index) for index in range(2)]
    delivered = deliver(design, LIBRARY, tmp_path / "emit")
    rest = tmp_path / "bench", NetworkModel(), MemoryModel(), 0.3, 5, engine
    run = simulate_under_myhdl(delivered, design.graph, LIBRARY, feeds, *rest, optimise=False)
    assert run.mismatches == ()


# ---- files


def googlenet_like(classes: int = 3, auxiliary: int = 3) -> ModelProto:
    """Two heads, as outputs of an export in training mode."""
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "side"),
        node("Flatten", "side", "side_flat"),
        node("Gemm", "side_flat v", "aux1", transB=1),
        node("Conv", "r j", "d"),
        node("GlobalAveragePool", "d", "pooled"),
        node("Flatten", "pooled", "flat"),
        node("Gemm", "flat w", "y", transB=1),
        node("Softmax", "y", "probabilities"),
    ]
    weights = {
        "k": RNG.standard_normal((4, 2, 3, 3)),
        "j": RNG.standard_normal((4, 4, 1, 1)),
        "v": RNG.standard_normal((auxiliary, 4)),
        "w": RNG.standard_normal((classes, 4)),
    }
    return model(nodes, weights, outputs=["aux1", "probabilities"])


def test_an_import_with_aux_trains_both_heads_and_says_so(tmp_path: Path) -> None:
    path = save(googlenet_like(), tmp_path)
    result = import_step.run(Workspace(tmp_path / "out"), ImportOptions(model=path, aux=0.3, norm="none"), Silent())
    graph = load_training_graph(Workspace(tmp_path / "out"))
    assert "output aux1 is an auxiliary head, trained beside probabilities: its loss counts 0.3" in result.lines
    assert graph.recipe.auxiliary == 0.3
    losses = {item.name: item.layer.auxiliary for item in graph.nodes if isinstance(item.layer, SoftmaxCrossEntropy)}
    assert losses == {"loss": 0.0, "loss_aux1": 0.3}
    assert {"side_flat.w.update", "aux1_node.w.update"} & {item.name for item in graph.nodes} == {"aux1_node.w.update"}


def test_a_recipe_says_it_too_and_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("auxiliary = 0.4\n")
    options = ImportOptions(model=Path("model.onnx"), recipe=recipe)
    assert import_step.chosen_recipe(options).auxiliary == 0.4
    assert import_step.chosen_recipe(replace(options, aux=0.0)).auxiliary == 0.0
    with pytest.raises(RecipeError, match=re.escape("--aux 7: auxiliary must lie in [0.01, 1], or be 0 to drop heads")):
        import_step.chosen_recipe(replace(options, aux=7.0))


def test_a_check_counts_the_layers_of_all_heads(tmp_path: Path) -> None:
    path = save(googlenet_like(), tmp_path)
    one, both = (check_step.run(ImportOptions(model=path, aux=aux)).data["layers"] for aux in (None, 0.3))
    # a mean, a product and a loss
    assert both == one + 3


def test_what_can_not_be_trained_beside_is_one_message(tmp_path: Path) -> None:
    other = "output aux1: tells 7 classes, the main head 3; leave out --aux: auxiliary heads share the labels"
    with pytest.raises(ImportProblem, match=re.escape(other)):
        import_with_notes(save(googlenet_like(auxiliary=7), tmp_path), recipe=RECIPE)
    alone = googlenet_like()
    del alone.graph.output[0]
    with pytest.raises(ImportProblem, match=r"has no auxiliary head whose loss could count 0\.3; leave out --aux"):
        import_with_notes(save(alone, tmp_path), recipe=RECIPE)


def test_an_export_holds_the_main_head_alone(tmp_path: Path) -> None:
    proto = googlenet_like()
    graph = differentiate(import_with_notes(save(proto, tmp_path), recipe=RECIPE).graph)
    executor = Executor(graph)
    made = write_model(graph, graph.parameters, executor.states, {})
    assert [value.name for value in made.graph.output] == ["scores"]
    del proto.graph.output[0]
    image = RNG.standard_normal((2, 2, 6, 6))
    np.testing.assert_allclose(evaluate(made, image), evaluate(proto, image), rtol=1e-4)
