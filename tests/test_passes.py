"""Forks, formats, calibration and folding."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph, Stage, verify
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import CalibrationError, CalibrationOptions, calibrate, fitting
from dagtrain.passes.fold import fold_graph, weight_groups, weight_tiles
from dagtrain.passes.formats import free_sources, propagate_formats
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.widths import Widths
from hdl.errors import DagtrainError, FoldingError
from hdl.fixed import Fixed, FloatArray
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.pointwise.hard_sigmoid import HardSigmoid
from hdl.layers.wiring.update import Update
from hdl.recipe import Recipe
from hdl.tensor import Kind
from importers.onnx import import_model
from tests.cosim_support import twelve_net

EXAMPLES = Path(__file__).parents[1] / "examples"
RECIPE = Recipe(batch=4)


def net(recipe: Recipe = RECIPE) -> Graph:
    """A residual block with normalisation between a stem and the classifier."""
    build = GraphBuilder("net", recipe, seed=3)
    x = build.relu(build.norm(build.conv(build.input(6, 6, 2), 4, kernel=3, padding=1)))
    x = build.relu(build.add(build.norm(build.conv(x, 4, kernel=3, padding=1)), x))
    return build.classify(build.gemm(build.global_average_pool(x), 3))


def batches(graph: Graph, count: int = 3, scale: float = 1.0) -> list[dict[str, FloatArray]]:
    """Random images and labels."""
    rng = np.random.default_rng(8)
    inputs = [node for node in graph.nodes if not node.layer.sinks]
    (image,) = (node for node in inputs if node.layer.sources[0].tensor.kind is Kind.ACTIVATION)
    (label,) = (node for node in inputs if node.layer.sources[0].tensor.kind is Kind.STASH)
    shape = (graph.recipe.batch, *image.layer.sources[0].tensor.shape)
    return [
        {
            image.name: scale * rng.normal(size=shape),
            label.name: rng.integers(0, 3, (graph.recipe.batch, 1, 1, 1)).astype(np.float64),
        }
        for _ in range(count)
    ]


# ---- forks ----------------------------------------------------------------------------------------------


def test_after_fork_insertion_every_edge_has_one_consumer_of_its_kind() -> None:
    graph = insert_forks(differentiate(net()))
    verify(graph, Stage.STREAMING)
    assert all(len(uses) == 1 for uses in graph.consumers.values())


def test_a_fork_has_the_kinds_of_its_consumers() -> None:
    graph = insert_forks(differentiate(net()))
    fork = graph.by_name["relu1.y.fork"]
    consumers = [graph.consumers[edge][0] for edge in fork.outputs.values()]
    assert [node.name for node, _ in consumers] == ["conv2", "add1", "conv2.gradient"]
    assert [port.tensor.kind for port in fork.layer.sources] == [Kind.ACTIVATION, Kind.ACTIVATION, Kind.STASH]


def test_new_weights_fork_to_forward_and_error_engine() -> None:
    graph = insert_forks(differentiate(net()))
    fork = graph.by_name["conv2.w.update.w.fork"]
    assert {graph.consumers[edge][0][0].name for edge in fork.outputs.values()} == {"conv2", "conv2.error"}


def test_forks_do_not_change_a_bit() -> None:
    plain = calibrate(differentiate(net(Recipe(batch=4, staleness=3))), batches(differentiate(net())))
    forked = insert_forks(plain)
    one, two = Executor(plain), Executor(forked)
    for feeds in batches(plain):
        np.testing.assert_equal(one.step(feeds), two.step(feeds))
    np.testing.assert_equal(one.parameters(), two.parameters())


# ---- formats and calibration ----------------------------------------------------------------------------


def test_a_chosen_format_reaches_all_that_follow_from_it() -> None:
    graph = differentiate(net())
    chosen = Fixed(16, 5)
    changed = propagate_formats(graph, {"norm1.y": chosen})
    verify(changed, Stage.TRAINING)
    for edge in ("norm1.y", "relu1.y"):
        assert changed.tensor(edge).fixed == chosen
    assert changed.by_name["conv2.gradient"].layer.port("x").tensor.fixed == chosen


def test_formats_that_follow_from_a_sink_are_not_free() -> None:
    graph = differentiate(net())
    assert free_sources(graph.by_name["relu1"].layer) == ()
    assert free_sources(graph.by_name["conv1"].layer) == ("y",)


def test_formats_of_weights_reach_their_delayed_readers() -> None:
    graph = propagate_formats(differentiate(net()), {"conv2.w.update.w": Fixed(16, 14)})
    for name in ("conv2", "conv2.error"):
        assert graph.by_name[name].layer.port("w").tensor.fixed == Fixed(16, 14)


@pytest.mark.parametrize(
    ("peak", "expected"), [(1.0, Fixed(16, 14)), (0.99, Fixed(16, 15)), (5.0, Fixed(16, 12)), (2.0**-9, Fixed(16, 23))]
)
def test_the_finest_format_that_holds_the_peak_is_chosen(peak: float, expected: Fixed) -> None:
    assert fitting(peak, 16, 0, signed=True) == expected
    assert abs(peak - expected.decode(expected.encode(peak))) < expected.step


def test_nothing_saturates_on_the_calibration_data() -> None:
    graph = calibrate(differentiate(net()), batches(differentiate(net()), scale=3.0))
    saturated: list[str] = []

    def observe(edge: str, codes: FloatArray) -> None:
        tensor = graph.tensor(edge)
        # normalised maps are clamped on purpose
        if tensor.kind is not Kind.STASH and (codes.max() == tensor.fixed.high or codes.min() == tensor.fixed.low):
            saturated.append(edge)

    executor = Executor(graph)
    for feeds in batches(graph, scale=3.0):
        executor.step(feeds, observe)
    assert saturated == []


def test_gradients_that_are_clipped_have_bits_for_what_is_left_of_them() -> None:
    recipe = Recipe(batch=4, learning_rate=0.1, momentum=0.5, clip=1e-4)
    clipped, whole, wrapping = (
        calibrate(graph, batches(graph, scale=3.0), CalibrationOptions(width=Widths.parse(bits)))
        for graph, bits in (
            (differentiate(net(recipe)), ()),
            (differentiate(net(replace(recipe, clip=0.0))), ()),
            # such a sum holds 16 times what the gradient does: more must not come near
            (differentiate(net(recipe)), ("sum=32",)),
        )
    )
    edges = [edge for edge in clipped.producers if edge.endswith("conv2.gradient.g")]
    assert edges
    for edge in edges:
        fine, coarse = clipped.tensor(edge).fixed, whole.tensor(edge).fixed
        assert 4 * recipe.clip <= fine.high * fine.step < 16 * recipe.clip
        assert coarse.step > 4 * recipe.clip, "the clip would have been less than a step"
        assert wrapping.tensor(edge).fixed == coarse
    golden, reference = Executor(clipped), Executor(clipped, Mode.REFERENCE)
    for feeds in batches(clipped, scale=3.0):
        golden.step(feeds)
        reference.step(feeds)
    for key, value in reference.parameters().items():
        moved = np.abs(value - clipped.parameters[key]).max()
        np.testing.assert_allclose(golden.parameters()[key], value, atol=0.3 * moved + 2.0**-13, err_msg=key)


@pytest.mark.parametrize(
    "recipe", [Recipe(batch=4, clip=1e-3, momentum=0.99), Recipe(batch=4, clip=1e-4, weight_decay=0.01)]
)
def test_a_momentum_holds_what_clipped_gradients_and_decay_come_to(recipe: Recipe) -> None:
    graph = calibrate(differentiate(net(recipe)), batches(differentiate(net())))
    updates = [node for node in graph.nodes if isinstance(node.layer, Update)]
    for node in updates:
        layer = node.layer
        assert isinstance(layer, Update)
        weight = 2 * max(1.0, float(np.abs(graph.parameters[node.parameters["w"]]).max()))
        decay = layer.recipe.weight_decay * weight
        assert layer.momentum_fixed.high * layer.momentum_fixed.step >= 4 * (recipe.clip + decay) / (
            1 - recipe.momentum
        )


def test_golden_training_stays_close_to_the_reference() -> None:
    graph = calibrate(differentiate(net()), batches(differentiate(net())))
    golden, reference = Executor(graph, Mode.GOLDEN), Executor(graph, Mode.REFERENCE)
    for feeds in batches(graph):
        golden.step(feeds)
        reference.step(feeds)
    for key, value in reference.parameters().items():
        np.testing.assert_allclose(golden.parameters()[key], value, atol=3e-3, err_msg=key)


def test_initial_weights_lie_on_the_grid_of_their_format() -> None:
    graph = calibrate(differentiate(net()), batches(differentiate(net())))
    for node in graph.nodes:
        for port, key in node.parameters.items():
            fixed = node.layer.port(port).tensor.fixed
            np.testing.assert_array_equal(fixed.decode(fixed.encode(graph.parameters[key])), graph.parameters[key])


def test_a_calibration_in_float32_is_one_throughout_and_chooses_the_same_formats() -> None:
    training = differentiate(net())
    small = replace(training, parameters={key: np.float32(value) for key, value in training.parameters.items()})
    seen: dict[str, npt.DTypeLike] = {}
    executor = Executor(small, Mode.SINGLE)
    for feeds in batches(training):
        executor.step(feeds, lambda edge, array: seen.update({edge: array.dtype}))
    assert seen.keys() == training.producers.keys()
    # masks take a byte
    masks = {edge for edge in seen if edge.endswith(".mask")}
    assert masks
    assert {edge: dtype for edge, dtype in seen.items() if dtype != (np.uint8 if edge in masks else np.float32)} == {}
    assert {array.dtype.name for array in (*executor.weights.values(), *small.parameters.values())} == {"float32"}
    exact = calibrate(small, batches(training))
    quick = calibrate(small, batches(training), CalibrationOptions(mode=Mode.SINGLE))
    assert {node.name: node.layer for node in quick.nodes} == {node.name: node.layer for node in exact.nodes}
    np.testing.assert_equal(dict(quick.parameters), dict(exact.parameters))
    assert {value.dtype.name for value in quick.parameters.values()} == {"float32"}


def test_calibration_keeps_head_room_as_asked() -> None:
    graph = differentiate(net())
    tight = CalibrationOptions(headroom=dict.fromkeys(Kind, 0))
    roomy = CalibrationOptions(headroom=dict.fromkeys(Kind, 3))
    one, two = (calibrate(graph, batches(graph), options).tensor("conv2.y").fixed for options in (tight, roomy))
    assert one.fraction_bits - two.fraction_bits == 3


def test_statistics_of_norms_begin_with_those_that_onnx_takes_from_the_first_batch() -> None:
    """Its reference evaluator in training mode; a momentum of 0 gives the batch's own."""
    proto = onnx.load(EXAMPLES / "digits" / "digits.onnx")
    names = {}
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.extend([helper.make_attribute("training_mode", 1), helper.make_attribute("momentum", 0.0)])
            node.output.extend([f"{node.name}.mean", f"{node.name}.variance"])
            names[node.name] = node.output[1:]
    flat = [name for outputs in names.values() for name in outputs]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in flat)
    training = differentiate(
        import_model(EXAMPLES / "digits" / "digits.onnx", recipe=Recipe(norm_forward_decay=0.99999))
    )
    rng = np.random.default_rng(20)
    feeds = {"image": rng.standard_normal((32, 8, 8, 1)) * 3 + 2, "loss.label": rng.integers(0, 10, (32, 1, 1, 1))}
    image = feeds["image"].transpose(0, 3, 1, 2).astype(np.float32)
    found = dict(zip(flat, ReferenceEvaluator(proto).run(flat, {"image": image}), strict=True))
    carried = calibrate(training, [feeds]).carried
    assert carried.keys() == names.keys()
    for name, (mean, variance) in names.items():
        # of 128 values and more, a 16th is of all channels together
        deviation = np.sqrt(found[variance])
        np.testing.assert_allclose(carried[name]["mean"] / deviation, found[mean] / deviation, atol=0.05, err_msg=name)
        np.testing.assert_allclose(carried[name]["variance"], found[variance], rtol=0.1, err_msg=name)


def test_statistics_that_are_carried_are_not_taken_anew() -> None:
    graph = differentiate(net())
    kept = {"norm1": {"mean": np.full(4, 0.5), "variance": np.full(4, 7.0)}}
    calibrated = calibrate(replace(graph, carried=kept), batches(graph))
    assert calibrated.carried.keys() == {"norm1", "norm2"}
    assert calibrated.carried["norm1"] is kept["norm1"]
    layer = calibrated.by_name["norm1"].layer
    assert isinstance(layer, OnlineNorm)
    begun = layer.carried(Executor(calibrated).states["norm1"])
    np.testing.assert_allclose(begun["variance"], 7.0, rtol=1e-4)


def test_maps_that_vanish_keep_a_format_in_which_sums_with_a_constant_fit() -> None:
    build = GraphBuilder("faint", RECIPE, seed=4)
    x = build.conv(build.input(6, 6, 2), 4, kernel=3, padding=1)
    build.parameters["conv1.w"] *= 1e-11
    y = build.mul(x, build.activation(HardSigmoid, build.gemm(build.global_average_pool(x), 4)))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(y), 3)))
    graph = calibrate(training, batches(training, count=1))
    assert graph.tensor("conv1.y").fixed == fitting(2.0**-16, 16, 3, signed=True)
    with pytest.raises(DagtrainError, match=r"sums of s16.* bits, more than 62"):
        calibrate(training, batches(training, count=1), CalibrationOptions(least_activation=0.0))


def test_calibration_without_data_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="can't be calibrated without data; give at least one batch"):
        calibrate(differentiate(net()), [])


def test_calibration_names_the_edge_that_is_not_finite() -> None:
    graph = differentiate(net())
    (feeds, *_) = batches(graph)
    feeds = {name: np.where(values > 1.5, np.nan, values) for name, values in feeds.items()}
    with pytest.raises(CalibrationError, match=r"edge input1\.y is not finite in batch 0"):
        calibrate(graph, [feeds])


# ---- folding --------------------------------------------------------------------------------------------


def test_weight_groups_hold_all_engines_of_a_weight() -> None:
    graph = insert_forks(differentiate(net()))
    groups = [{node.name for node in group} for group in weight_groups(graph)]
    expected = {"conv2", "conv2.gradient", "conv2.w.update", "conv2.w.update.w.fork", "conv2.error"}
    assert expected in groups
    assert all(len(group) > 1 for group in groups)


@pytest.mark.parametrize("cycles", [2000, 700, 300, 170])
def test_folding_keeps_the_graph_legal_and_fast_enough(cycles: int) -> None:
    graph = fold_graph(insert_forks(differentiate(net())), cycles)
    verify(graph, Stage.STREAMING)
    assert all(node.layer.cycles_per_frame <= cycles for node in graph.nodes)
    for edge, _, source, consumer, sink in graph.edges:
        assert source.lanes == sink.lanes, f"{edge} at {consumer.name}"


def test_all_members_of_a_weight_group_stream_in_one_order() -> None:
    graph = fold_graph(insert_forks(differentiate(net())), 300)
    for edge, producer, source, consumer, sink in graph.edges:
        if source.tensor.kind.per_batch:
            np.testing.assert_equal(
                producer.layer.stream_order(source.name), consumer.layer.stream_order(sink.name), err_msg=edge
            )


def test_nodes_folded_for_cycles_of_their_own_are_as_if_all_were() -> None:
    graph = insert_forks(differentiate(net()))
    evenly = {cycles: fold_graph(graph, cycles) for cycles in (300, 700)}
    group = {node.name: members[0].name for members in weight_groups(graph) for node in members}
    folds = {name: 300 if "conv1" in group.get(name, name) else 700 for name in graph.by_name}
    mixed = fold_graph(graph, folds)
    assert all(node.layer == evenly[folds[node.name]].by_name[node.name].layer for node in mixed.nodes)
    assert mixed.nodes not in [even.nodes for even in evenly.values()]
    # all of a weight group have the tile of its first engine, whatever their own pace
    slow = {**folds, "conv1.error": 700, "conv1.gradient": 700}
    tiles = weight_tiles(graph, slow)
    assert tiles == weight_tiles(graph, folds)
    with pytest.raises(FoldingError, match="can't be folded for 5 or 700 cycles"):
        fold_graph(graph, {**folds, **{name: 5 if folds[name] == 300 else 700 for name in folds}})


def test_fewer_cycles_never_take_fewer_multipliers() -> None:
    graph = insert_forks(differentiate(net()))
    counts = [sum(node.layer.multipliers for node in fold_graph(graph, cycles).nodes) for cycles in (2000, 700, 300)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_folding_for_too_few_cycles_lists_the_layers() -> None:
    with pytest.raises(FoldingError, match=r"can't be folded for 5 cycles|no weight tile"):
        fold_graph(insert_forks(differentiate(net())), 5)


def test_an_engine_that_no_tile_makes_fast_enough_says_so_and_how_fast_it_gets() -> None:
    graph = twelve_net(1)
    with pytest.raises(FoldingError) as refused:
        fold_graph(graph, 60)
    (line,) = (line for line in str(refused.value).splitlines() if "conv2.error: " in line)
    wanted = r"stride \(2, 2\): no tile manages 60 cycles a frame; allow more cycles: the fastest, .*, takes 81"
    assert re.search(wanted, line)
    assert "impossible" not in str(refused.value)
    engine = graph.by_name["conv2.error"].layer
    assert engine.fold(81).cycles_per_frame == 81
    with pytest.raises(FoldingError, match="takes 81"):
        engine.fold(80)


def test_the_tile_suits_every_engine_of_the_group() -> None:
    graph = insert_forks(differentiate(net()))
    tiles = weight_tiles(graph, 300)
    for group in weight_groups(graph):
        for node in group:
            offered = tuple(node.layer.tiles(300))
            assert not offered or tiles[node.name] in offered


def test_folding_does_not_change_a_bit() -> None:
    graph = calibrate(differentiate(net(Recipe(batch=4, staleness=2))), batches(differentiate(net())))
    streaming = insert_forks(graph)
    plain, folded = Executor(streaming), Executor(fold_graph(streaming, 300))
    for feeds in batches(graph):
        np.testing.assert_equal(plain.step(feeds), folded.step(feeds))
    np.testing.assert_equal(plain.parameters(), folded.parameters())
    assert replace(streaming, nodes=()) == replace(folded.graph, nodes=())
