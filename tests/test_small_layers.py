"""Relu, add, fork, bias, dropout, global average pool, host ports: their meaning, foldings and refusals.

Bits and cycles of their circuits stand in tests/test_layer_conformance.py, their derivatives in tests/test_autodiff.py.
"""

from __future__ import annotations

import dataclasses
from itertools import chain
from typing import Any

import numpy as np
import pytest

from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.folding import lanes_for
from hdl.layers.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.layers.norm.channel_norm import ChannelNorm, ChannelNormError
from hdl.layers.norm.local_response_norm import LocalResponseNorm, LocalResponseNormError
from hdl.layers.pointwise.add import Add
from hdl.layers.pointwise.bias import Bias, BiasGradient
from hdl.layers.pointwise.channel_affine import ChannelAffine
from hdl.layers.pointwise.derivative_error import DerivativeError
from hdl.layers.pointwise.dropout import Dropout, DropoutError
from hdl.layers.pointwise.elu import Elu
from hdl.layers.pointwise.gelu import Gelu
from hdl.layers.pointwise.hard_sigmoid import HardSigmoid
from hdl.layers.pointwise.hard_swish import HardSwish
from hdl.layers.pointwise.leaky_relu import LeakyRelu
from hdl.layers.pointwise.mul import Mul, Scale, ScaleSum
from hdl.layers.pointwise.relu import Relu, ReluError
from hdl.layers.pointwise.sigmoid import Sigmoid, SigmoidError
from hdl.layers.pointwise.silu import Silu
from hdl.layers.pointwise.slope_error import SlopeError
from hdl.layers.pointwise.stochastic_depth import StochasticDepth, StochasticDepthError
from hdl.layers.pointwise.tanh import Tanh
from hdl.layers.pool.global_average_pool import GlobalAveragePool, GlobalAveragePoolError
from hdl.layers.wiring.channel_shuffle import ChannelShuffle
from hdl.layers.wiring.channel_slice import ChannelPad, ChannelSlice
from hdl.layers.wiring.fork import Fork
from hdl.layers.wiring.host import HostInput, HostLabel, HostOutput
from hdl.layers.wiring.narrow import Narrow
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import Kind, Tile
from tests.layer_support import assert_equal_bits, design_of, make_case

SIZES = {"height": 6, "width": 5, "channels": 12}
MAPS = [
    Relu, ReluError, LeakyRelu, HardSigmoid, SlopeError, Sigmoid, SigmoidError, Add, Bias, BiasGradient, Dropout,
    DropoutError, GlobalAveragePool, GlobalAveragePoolError, Mul, Scale, ScaleSum, ChannelShuffle, ChannelNorm,
    ChannelNormError, LocalResponseNorm, LocalResponseNormError, Narrow,
    Silu, Gelu, HardSwish, Tanh, Elu, DerivativeError, StochasticDepth, StochasticDepthError,
    ChannelAffine,
]  # fmt: skip


def codes_of(values: list[int]) -> np.ndarray:
    """A map of one pixel."""
    return np.array(values).reshape(1, 1, 1, -1)


def flat(array: Any) -> list[int]:
    return [int(value) for value in np.asarray(array).reshape(-1)]


# ------------------------------------------------------------------------------------------------ relu


def test_relu_passes_errors_only_strictly_between_zero_and_its_ceiling() -> None:
    layer = Relu(height=1, width=1, channels=6, ceiling=6.0)
    six = 6 * 256
    made = layer.golden({}, {"x": codes_of([-5, 0, 1, six - 1, six, six + 1])})
    assert flat(made["y"]) == [0, 0, 1, six - 1, six, six]
    assert flat(made["mask"]) == [0, 0, 1, 1, 0, 0]


def test_a_ceiling_beyond_the_format_cuts_nothing_off() -> None:
    layer = Relu(height=1, width=1, channels=2, ceiling=6.0, x_fixed=Fixed(16, 14))
    made = layer.golden({}, {"x": codes_of([layer.x_fixed.high, layer.x_fixed.high - 1])})
    assert flat(made["y"]) == [layer.x_fixed.high, layer.x_fixed.high - 1]


def test_plain_relu_passes_errors_at_the_greatest_code() -> None:
    layer = Relu(height=1, width=1, channels=1)
    assert flat(layer.golden({}, {"x": codes_of([layer.x_fixed.high])})["mask"]) == [1]


# ------------------------------------------------------------------------------------------------- add


def test_add_aligns_exactly_and_rounds_ties_up_once() -> None:
    layer = Add(height=1, width=1, channels=4, a_fixed=Fixed(16, 9), b_fixed=Fixed(16, 7), y_fixed=Fixed(16, 7))
    # in steps of 2**-9: 1 + 4, 2 + 4, -2 + 0, -3 + 0; rounded to steps of 2**-7
    assert flat(layer.golden({}, {"a": codes_of([1, 2, -2, -3]), "b": codes_of([1, 1, 0, 0])})["y"]) == [1, 2, 0, -1]


def test_add_saturates_on_both_sides() -> None:
    layer = Add(height=1, width=1, channels=2)
    ends = codes_of([layer.a_fixed.low, layer.a_fixed.high])
    assert flat(layer.golden({}, {"a": ends, "b": ends})["y"]) == [layer.y_fixed.low, layer.y_fixed.high]


# ------------------------------------------------------------------------------------------------- mul


def test_mul_is_exact_rounds_ties_up_once_and_saturates() -> None:
    layer = Mul(height=1, width=1, channels=6, a_fixed=Fixed(16, 9), b_fixed=Fixed(16, 2), y_fixed=Fixed(16, 10))
    a, b = codes_of([1, 1, 3, -3, -32768, -32768]), codes_of([1, -1, 1, 1, -32768, 32767])
    # in steps of 2**-11, rounded to steps of 2**-10
    assert flat(layer.golden({}, {"a": a, "b": b})["y"]) == [1, 0, 2, -1, 32767, -32768]


def test_scale_multiplies_every_pixel_of_a_frame_by_its_vector() -> None:
    layer = Scale(height=1, width=2, channels=2, x_fixed=Fixed(8, 0), s_fixed=Fixed(8, 0), y_fixed=Fixed(16, 0))
    x = np.array([[1, 2, 3, 4], [5, 6, 7, 8]]).reshape(2, 1, 2, 2)
    s = np.array([[10, -10], [3, 0]]).reshape(2, 1, 1, 2)
    assert flat(layer.golden({}, {"x": x, "s": s})["y"]) == [10, -20, 30, -40, 15, 0, 21, 0]


def test_the_error_of_a_vector_is_an_exact_sum_of_products_rounded_once() -> None:
    fixed = Fixed(16, 1)
    layer = ScaleSum(height=1, width=3, channels=1, e_fixed=fixed, x_fixed=fixed, ds_fixed=Fixed(16, 0))
    # quarters: 1 + 1 + 0 is a tie, which three products rounded by themselves would not reach
    e, x = np.array([1, 1, 0]).reshape(1, 1, 3, 1), np.array([1, 1, 5]).reshape(1, 1, 3, 1)
    assert flat(layer.golden({}, {"e": e, "x": x})["ds"]) == [1]
    assert flat(layer.golden({}, {"e": e, "x": -x})["ds"]) == [0]
    assert flat(layer.golden({}, {"e": 32767 * e, "x": 32767 * x})["ds"]) == [32767]


@pytest.mark.parametrize("kind", [Mul, Scale, ScaleSum, ChannelAffine])
def test_products_count_a_multiplier_a_lane_and_a_mac_an_element(kind: Any) -> None:
    layer = kind(**SIZES, lanes=4)
    assert (layer.multipliers, layer.macs) == (4, 360)


def test_products_that_need_more_bits_than_numpy_has_are_refused() -> None:
    wide = Fixed(32, 8)
    for make in (
        lambda: Mul(**SIZES, a_fixed=wide, b_fixed=wide),
        lambda: Scale(**SIZES, x_fixed=wide, s_fixed=wide),
        lambda: ChannelAffine(**SIZES, x_fixed=wide, scale_fixed=wide),
        lambda: ScaleSum(**SIZES, e_fixed=Fixed(29, 8), x_fixed=Fixed(29, 8)),
    ):
        with pytest.raises(ShapeError, match=r"^\w+: products take 6[345] bits, more than 62; give the factors fewer"):
            make()


# -------------------------------------------------------------------------------------- channel affine


def affine_state(layer: ChannelAffine, scale: list[float], offset: list[float]) -> Any:
    given = {"scale": np.array(scale), "offset": np.array(offset)}
    return layer.start({port.name: given[port.name] for port in layer.held_parameters})


def test_a_channel_affine_is_exact_rounds_ties_up_once_and_saturates() -> None:
    fixed = Fixed(16, 1)
    formats = {"x_fixed": fixed, "scale_fixed": fixed, "offset_fixed": Fixed(16, 3), "y_fixed": Fixed(16, 1)}
    layer = ChannelAffine(height=1, width=1, channels=5, **formats)
    state = affine_state(layer, [0.5, 0.5, -0.5, 100.0, -100.0], [0.0, 0.125, -0.125, 0.0, 0.0])
    # in eighths: 2, 2 + 1, -2 - 1, rounded to halves; of 2/8 and -3/8 only the first is a tie
    assert flat(layer.golden(state, {"x": codes_of([1, 1, 1, 32767, 32767])})["y"]) == [1, 1, -1, 32767, -32768]


def test_the_way_back_of_a_channel_affine_has_its_scale_and_no_offset() -> None:
    layer = ChannelAffine(height=1, width=1, channels=2)
    assert [port.name for port in layer.held_parameters] == ["scale", "offset"]
    assert layer.trained() == ()
    back = dataclasses.replace(layer, kind=Kind.ERROR, shifted=False, x_fixed=Fixed(16, 12), y_fixed=Fixed(16, 12))
    state = affine_state(back, [0.5, -2.0], [])
    assert flat(back.golden(state, {"x": codes_of([100, 100])})["y"]) == [50, -200]


def test_words_of_a_channel_affine_are_scales_below_offsets() -> None:
    layer = ChannelAffine(height=1, width=1, channels=4, lanes=2, scale_fixed=Fixed(4, 0), offset_fixed=Fixed(8, 0))
    state = affine_state(layer, [1, 2, 3, -1], [16, 32, -1, 0])
    assert layer.images(state) == {"constants": [0x2010_21, 0x00FF_F3]}
    assert layer.memories()[0].width == 24


# ------------------------------------------------------------------------------------------------ fork


def test_a_fork_carries_weights_in_the_order_of_their_tile() -> None:
    layer = Fork(shape=(4, 2, 3, 3), kinds=(Kind.WEIGHT, Kind.WEIGHT)).fold(6, Tile(2, 2, 3))
    assert (layer.tile, layer.lanes) == (Tile(2, 2, 3), 12)
    order = layer.stream_order("y1")
    assert order is not None
    np.testing.assert_array_equal(order, Tile(2, 2, 3).order((4, 2, 3, 3)))
    case = make_case(layer)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed=1)


def test_a_fork_of_a_stash_and_an_activation_counts_hops_as_the_activation() -> None:
    layer = Fork(shape=(1, 1, 2), kinds=(Kind.STASH, Kind.ACTIVATION))
    assert layer.sinks[0].tensor.kind is Kind.ACTIVATION
    assert [port.tensor.kind for port in layer.sources] == [Kind.STASH, Kind.ACTIVATION]


# ------------------------------------------------------------------------------------------------ bias


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_first_frames_of_a_batch_see_the_bias_before(staleness: int) -> None:
    layer = Bias(height=1, width=1, channels=1, b_fixed=Fixed(16, 8), recipe=Recipe(batch=3, staleness=staleness))
    state = layer.start({"b": np.zeros(1)})
    x = np.zeros((3, 1, 1, 1), np.int64)
    made = [flat(layer.golden(state, {"x": x, "b": np.array([version])})["y"]) for version in (10, 20, 30)]
    recipe = layer.recipe
    assert list(chain(*made)) == [10 * (1 + recipe.version(frame)) for frame in range(9)]


def test_bias_gradients_are_exact_sums_rounded_without_bias() -> None:
    layer = BiasGradient(height=3, width=3, channels=500, recipe=Recipe(batch=2), g_fixed=Fixed(24, 7))
    rng = np.random.default_rng(1)
    e = layer.sample("e", rng, 2)
    state = layer.start({})
    exact = layer.reference({}, {"e": layer.e_fixed.decode(e)})["g"]
    first, second = (layer.g_fixed.decode(layer.golden(state, {"e": e})["g"]) for _ in range(2))
    off = (first - exact) / layer.g_fixed.step
    assert np.abs(off).max() < 1
    assert abs(off.mean()) < 4 * 0.5 / np.sqrt(off.size)
    # other random bits in the next batch
    assert (first != second).any()


# --------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_keeps_the_mean(ratio: float) -> None:
    layer = Dropout(height=20, width=20, channels=25, ratio=ratio, tensor_id=5)
    keep = layer.keep(0, 4)
    spread = np.sqrt(ratio * (1 - ratio) / keep.size)
    assert abs(keep.mean() - (1 - ratio)) <= 4 * spread
    x = np.full((4, *layer.shape), 1.0)
    assert layer.reference(layer.start_reference({}), {"x": x})["y"].mean() == pytest.approx(1, abs=0.05)


def test_masks_differ_by_frame_tensor_and_seed_but_not_by_lanes() -> None:
    layer = Dropout(height=4, width=4, channels=8)
    mask = layer.keep(0, 2)
    assert (mask[0] != mask[1]).any()
    for other in ({"tensor_id": 1}, {"recipe": Recipe(seed=2)}):
        assert (dataclasses.replace(layer, **other).keep(0, 2) != mask).any()
    np.testing.assert_array_equal(dataclasses.replace(layer, lanes=4).keep(0, 2), mask)


def test_the_error_engine_draws_the_forward_engines_mask_batch_after_batch() -> None:
    fields: dict[str, Any] = {"height": 3, "width": 3, "channels": 4, "ratio": 0.5, "tensor_id": 9}
    forward, error = Dropout(**fields), DropoutError(**fields)
    states = forward.start({}), error.start({})
    for _ in range(3):
        ones = np.full((2, 3, 3, 4), 100)
        y = forward.golden(states[0], {"x": ones})["y"]
        dx = error.golden(states[1], {"e": ones})["dx"]
        np.testing.assert_array_equal(y, dx)
        assert sorted(set(flat(y))) == [0, 200]


def test_dropout_drops_nothing_when_evaluated() -> None:
    layer = Dropout(height=2, width=2, channels=2, ratio=0.75)
    state = layer.start({})
    evaluated, its_state = layer.evaluating(state, 3)
    x = layer.sample("x", np.random.default_rng(1), 3)
    np.testing.assert_array_equal(evaluated.golden(its_state, {"x": x})["y"], x)
    assert state == layer.start({})


@pytest.mark.parametrize("ratio", [0.05, 0.3, 1 / 3, 0.99])
def test_the_factor_is_exact_to_sixteen_bits(ratio: float) -> None:
    factor, shift = Dropout(height=1, width=1, channels=1, ratio=ratio).factor
    assert factor * 2.0**-shift == pytest.approx(1 / (1 - ratio), rel=2.0**-15)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.9])
def test_stochastic_depth_drops_its_share_of_frames_whole_and_keeps_the_mean(ratio: float) -> None:
    layer = StochasticDepth(height=2, width=3, channels=4, ratio=ratio, tensor_id=5)
    frames = 4000
    y = layer.reference(layer.start_reference({}), {"x": np.full((frames, *layer.shape), 2.0)})["y"]
    of_frame = y.reshape(frames, -1)
    np.testing.assert_array_equal(of_frame, np.broadcast_to(of_frame[:, :1], of_frame.shape))
    assert set(np.round(np.unique(of_frame), 9)) == {0.0, round(2 / (1 - ratio), 9)} - ({0.0} if ratio == 0 else set())
    kept = float((of_frame[:, 0] > 0).mean())
    assert abs(kept - (1 - ratio)) <= 4 * np.sqrt(ratio * (1 - ratio) / frames)


def test_draws_of_stochastic_depth_differ_by_tensor_and_seed_and_go_on_over_batches() -> None:
    layer = StochasticDepth(height=4, width=4, channels=8)
    draws = layer.keep(0, 64)
    assert draws.shape == (64, 1, 1, 1)
    for other in ({"tensor_id": 1}, {"recipe": Recipe(seed=2)}):
        assert (dataclasses.replace(layer, **other).keep(0, 64) != draws).any()
    np.testing.assert_array_equal(np.concatenate([layer.keep(0, 30), layer.keep(30, 34)]), draws)


def test_the_way_back_of_stochastic_depth_drops_the_same_frames() -> None:
    fields: dict[str, Any] = {"height": 3, "width": 3, "channels": 4, "ratio": 0.5, "tensor_id": 9}
    forward = StochasticDepth(**fields)
    error = forward.error()
    states = forward.start({}), error.start({})
    seen = set()
    for _ in range(3):
        ones = np.full((4, 3, 3, 4), 100)
        y = forward.golden(states[0], {"x": ones})["y"]
        np.testing.assert_array_equal(y, error.golden(states[1], {"e": ones})["dx"])
        seen |= set(flat(y))
    assert seen == {0, 200}


def test_stochastic_depth_drops_nothing_when_evaluated() -> None:
    layer = StochasticDepth(height=2, width=2, channels=2, ratio=0.75)
    evaluated, its_state = layer.evaluating(layer.start({}), 3)
    x = layer.sample("x", np.random.default_rng(1), 3)
    np.testing.assert_array_equal(evaluated.golden(its_state, {"x": x})["y"], x)


# ------------------------------------------------------------------------------------- global average pool


@pytest.mark.parametrize("size", [(1, 1), (2, 4), (7, 7), (8, 8), (3, 11)])
def test_the_mean_is_off_by_at_most_half_a_step_and_the_constant(size: tuple[int, int]) -> None:
    layer = GlobalAveragePool(height=size[0], width=size[1], channels=30, y_fixed=Fixed(20, 12))
    x = layer.sample("x", np.random.default_rng(2), 3)
    made = layer.y_fixed.decode(layer.golden({}, {"x": x})["y"])
    mean = layer.x_fixed.decode(x).mean(axis=(1, 2), keepdims=True)
    assert (np.abs(made - mean) <= layer.y_fixed.step / 2 + np.abs(mean) * 2.0**-15).all()


def test_a_mean_over_a_power_of_two_is_rounded_once() -> None:
    layer = GlobalAveragePool(height=2, width=2, channels=1)
    x = np.array([1, 0, 0, 1]).reshape(1, 2, 2, 1)
    assert layer.reciprocal == (1, 2)
    assert flat(layer.golden({}, {"x": x})["y"]) == [1]
    assert flat(layer.golden({}, {"x": -x})["y"]) == [0]


# ------------------------------------------------------------------------------------ shuffles and slices


def test_a_shuffle_takes_a_channel_of_each_group_in_turn() -> None:
    layer = ChannelShuffle(height=1, width=1, channels=6, groups=2)
    assert flat(layer.golden({}, {"x": codes_of([0, 1, 2, 3, 4, 5])})["y"]) == [0, 3, 1, 4, 2, 5]
    assert layer.order.tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(("channels", "groups", "lanes"), [(116, 2, 1), (116, 2, 4), (116, 58, 4), (24, 3, 4)])
def test_lanes_of_a_shuffle_keep_few_lanes_of_its_input(channels: int, groups: int, lanes: int) -> None:
    layer = ChannelShuffle(height=1, width=1, channels=channels, groups=groups, lanes=lanes)
    most = max(len(read.lanes) for read in layer.reads)
    assert most <= min(groups, channels // groups, lanes)
    one = [channel // lanes for channel in layer.order]
    assert [read.beats[beat] for beat in range(layer.pixel_beats) for read in layer.reads] == one


@pytest.mark.parametrize("groups", [0, 5, -1])
def test_groups_that_do_not_divide_the_channels_are_refused(groups: int) -> None:
    with pytest.raises(ShapeError, match=rf"ChannelShuffle: {groups} groups do not divide 12 channels; choose"):
        ChannelShuffle(**SIZES, groups=groups)


@pytest.mark.parametrize("kind", [ChannelSlice, ChannelPad])
@pytest.mark.parametrize(("first", "part"), [(-1, 2), (0, 0), (0, 13), (11, 2)])
def test_channels_that_are_not_there_are_refused(kind: Any, first: int, part: int) -> None:
    with pytest.raises(ShapeError, match=f"{part} channels from {first} on are not all among 12; choose"):
        kind(**SIZES, first=first, part=part)


@pytest.mark.parametrize("kind", [ChannelSlice, ChannelPad])
@pytest.mark.parametrize("cycles", [30, 60, 120, 240, 360])
def test_fold_gives_a_part_lanes_of_its_own(kind: Any, cycles: int) -> None:
    folded = kind(**SIZES, first=3, part=8).fold(cycles)
    assert folded.cycles_per_frame <= cycles
    assert (folded.lanes, folded.part_lanes) == (lanes_for(360, 12, cycles), lanes_for(240, 8, cycles))
    with pytest.raises(FoldingError, match=rf"{kind.__name__} .*more than 29; allow more cycles"):
        kind(**SIZES, first=3, part=8).fold(29)


@pytest.mark.parametrize("kind", [ChannelSlice, ChannelPad])
@pytest.mark.parametrize(("lanes", "part_lanes"), [(1, 4), (2, 2), (3, 2), (12, 1), (6, 4)])
def test_lanes_of_a_part_change_no_bit(kind: Any, lanes: int, part_lanes: int) -> None:
    fields = SIZES | {"height": 2, "width": 1, "first": 4, "part": 4}
    case, one = make_case(kind(**fields, lanes=lanes, part_lanes=part_lanes)), make_case(kind(**fields))
    for port in one.layer.sources:
        np.testing.assert_array_equal(case.tensors[port.name], one.tensors[port.name])
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed=lanes)


# ---------------------------------------------------------------------------------------------- folding


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("cycles", [30, 31, 60, 100, 359, 360, 100_000])
def test_fold_takes_the_fewest_lanes_that_are_fast_enough(kind: Any, cycles: int) -> None:
    folded = kind(**SIZES).fold(cycles)
    assert folded.cycles_per_frame <= cycles
    for port in (*folded.sinks, *folded.sources):
        if not port.tensor.kind.per_batch:
            assert port.lanes == lanes_for(port.tensor.elements, port.tensor.shape[-1], cycles)


@pytest.mark.parametrize("kind", MAPS)
def test_fold_refuses_fewer_cycles_than_pixels(kind: Any) -> None:
    with pytest.raises(FoldingError, match=rf"{kind.__name__} .*more than 29; allow more cycles"):
        kind(**SIZES).fold(29)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("lanes", [3, 12])
def test_lanes_change_no_bit(kind: Any, lanes: int) -> None:
    layer: Layer = kind(**SIZES | {"height": 2, "width": 1}, lanes=lanes)
    one: Layer = kind(**SIZES | {"height": 2, "width": 1})
    cases = make_case(layer), make_case(one)
    for port in layer.sources:
        for left, right in zip(cases[0].tensors[port.name], cases[1].tensors[port.name], strict=True):
            np.testing.assert_array_equal(left, right)
    assert_equal_bits(cases[0], design_of(cases[0]), Backend.MYHDL, seed=lanes)


@pytest.mark.parametrize("kind", MAPS)
def test_lanes_that_do_not_divide_the_channels_are_refused(kind: Any) -> None:
    with pytest.raises(FoldingError, match=f"{kind.__name__}: 5 lanes do not divide 12 channels"):
        kind(**SIZES, lanes=5)


@pytest.mark.parametrize("kind", MAPS)
def test_empty_maps_are_refused(kind: Any) -> None:
    with pytest.raises(ShapeError, match=rf"{kind.__name__}: dimensions \(0, 5, 12\) must be positive"):
        kind(**SIZES | {"height": 0})


def test_a_ratio_outside_zero_to_one_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"Dropout: ratio must lie in \[0, 1\), not 1"):
        Dropout(**SIZES, ratio=1.0)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- host


def test_host_ports_and_the_loss_stay_on_the_first_device() -> None:
    pinned = [HostInput, HostLabel, HostOutput, SoftmaxCrossEntropy]
    assert all(kind.pinned_to_host for kind in pinned)
    assert not any(kind.pinned_to_host for kind in (*MAPS, Fork))


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (10, 4), (16, 4), (17, 5), (1000, 10)])
def test_a_label_has_as_many_bits_as_its_classes_need(classes: int, width: int) -> None:
    assert HostLabel(classes=classes).sources[0].tensor.fixed == Fixed(width, 0, signed=False)


def test_a_host_input_feeds_a_frame_in_time() -> None:
    port = HostInput(height=8, width=8, channels=3).fold(64).sources[0]
    assert port.lanes == 3
    assert HostInput(height=8, width=8, channels=3).fold(192).cycles_per_frame == 192
