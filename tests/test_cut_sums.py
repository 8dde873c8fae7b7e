"""Sums of gradients in fewer bits than exact ones take: products cut before they are added, sums that wrap.

The definition stands beside Python's fractions, the engines beside plain loops and in every simulator, what cuts do to
a sum beside what its rounding does.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import CalibrationOptions, calibrate
from dagtrain.passes.widths import WidthError, Widths
from dagtrain.training.feeds import synthetic_feeds
from hdl.errors import ShapeError
from hdl.fixed import Fixed, cut_product
from hdl.fixed_kernel import add_cut_products
from hdl.layers.capabilities import Remembering, Summing
from hdl.layers.conv.dense import ConvGradient
from hdl.layers.conv.depthwise import DepthwiseConvGradient
from hdl.layers.conv.roles import SUM_GUARD, GradientEngine
from hdl.layers.storage import Home
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import Tile
from tests.test_conv import random_engine, simulate

KERNEL: dict[str, Any] = {"kernel": (3, 3), "padding": (1, 1, 1, 1), "recipe": Recipe(batch=3)}
SMALL = ConvGradient(height=4, width=3, channels=4, filters=2, **KERNEL, tile=Tile(2, 2), w_lanes=2, sum_width=26)
DEPTHWISE = DepthwiseConvGradient(height=4, width=3, channels=4, **KERNEL, tile=Tile(2, 1, 3), w_lanes=3, sum_width=24)
GROUPED = dataclasses.replace(SMALL, groups=2, tile=Tile(2, 2), sum_width=25)


def some_codes(rng: np.random.Generator, count: int, bits: int) -> np.ndarray:
    """Random, zero, ±1, halves, both ends."""
    edge = 1 << (bits - 1)
    corners = [0, 1, -1, 2, 3, -edge, edge - 1, *(sign << bit for bit in range(bits - 1) for sign in (1, -1))]
    drawn = rng.integers(-edge, edge, count)
    return np.where(rng.random(count) < 0.4, rng.choice(corners, count), drawn)


@pytest.mark.parametrize("cut", [0, 1, 2, 7, 16, 30])
def test_a_product_is_cut_to_nearest_and_ties_to_even(cut: int) -> None:
    codes = np.concatenate([some_codes(np.random.default_rng(cut), 200, 32), np.arange(-40, 40), [3 << 29, -(3 << 29)]])
    # Python rounds fractions to nearest, ties to even
    assert cut_product(codes, cut).tolist() == [round(Fraction(int(code), 1 << cut)) for code in codes]
    assert cut_product(np.zeros(1, np.int64), cut) == 0


def test_what_is_cut_has_no_mean_where_a_tie_up_has_one() -> None:
    codes, cut = np.arange(-(1 << 12), 1 << 12), 3
    assert (cut_product(codes, cut) * 8 - codes).sum() == 0
    assert (((codes + 4) >> cut) * 8 - codes).sum() > 0


@pytest.mark.parametrize(("kind", "bits"), [(np.int32, 16), (np.int64, 18)])
@pytest.mark.parametrize("cut", [1, 2, 9])
def test_the_kernel_adds_cut_products(kind: Any, bits: int, cut: int) -> None:
    rng = np.random.default_rng(cut)
    left, right = (some_codes(rng, 7 * n, bits).reshape(7, n) for n in (3, 5))
    # longer than the kernel takes at a time, and all of it at one end
    left, right = np.vstack([left, np.full((9, 3), -(1 << (bits - 1)))]), np.vstack([right, right, right[:2]])
    right[-9:] = -(1 << (bits - 1))
    total = np.ones((3, 5), np.int64)
    add_cut_products(left.astype(kind), right.astype(kind), cut, total)
    assert np.array_equal(total, 1 + cut_product(left[:, :, None] * right[:, None, :], cut).sum(0))


def plain_sums(layer: Any, x: np.ndarray, e: np.ndarray) -> np.ndarray:
    """By definition, product by product."""
    top, left, _, _ = layer.padding
    total = np.zeros(layer.weight_shape, np.int64)
    depthwise, groups = isinstance(layer, DepthwiseConvGradient), getattr(layer, "groups", 1)
    for index in np.ndindex(*layer.weight_shape):
        m, n, i, j = index
        channel = m if depthwise else m // (layer.weight_shape[0] // groups) * layer.weight_shape[1] + n
        for frame, r, c in np.ndindex(len(x), *layer.output_shape[:2]):
            h, v = r * layer.stride[0] - top + i, c * layer.stride[1] - left + j
            if 0 <= h < layer.height and 0 <= v < layer.width:
                product = Fraction(int(x[frame, h, v, channel]) * int(e[frame, r, c, m]), 1 << layer.cut)
                total[index] += round(product)
    return total


@pytest.mark.parametrize("layer", [SMALL, DEPTHWISE, GROUPED], ids=["dense", "depthwise", "grouped"])
def test_sums_are_those_of_a_plain_loop_in_any_order_of_frames(layer: Any) -> None:
    rng = np.random.default_rng(3)
    x, e = layer.sample("x", rng, 3), layer.sample("e", rng, 3)
    sums = layer.sums(x, e)
    assert layer.cut > 1
    assert np.array_equal(sums, plain_sums(layer, x, e))
    assert np.array_equal(sums, layer.sums(x[::-1], e[::-1]))
    # the same sums as before: unlike exact ones, but as near as their bits say
    exact = dataclasses.replace(layer, sum_width=0).sums(x, e)
    assert not np.array_equal(sums << layer.cut, exact)
    assert np.abs((sums << layer.cut) - exact).max() <= 3 * 12 << (layer.cut - 1)


def test_bits_of_a_sum_follow_from_the_gradient_s_format() -> None:
    layer = dataclasses.replace(SMALL, x_fixed=Fixed(16, 10), e_fixed=Fixed(16, 18), g_fixed=Fixed(16, 11))
    exact = dataclasses.replace(layer, sum_width=0)
    assert (exact.sum_bits, exact.sum_fraction_bits, exact.cut, exact.wraps) == (38, 28, 0, False)
    # 26 bits: 16 of the gradient, the guard, 6 below
    assert (layer.sum_bits, layer.sum_fraction_bits, layer.cut, layer.wraps) == (26, 11 + 6, 11, True)
    assert layer.least_sum_width == 16 + SUM_GUARD
    # as many as an exact one takes, or more: an exact one
    wide = dataclasses.replace(layer, sum_width=38)
    assert (wide.sum_bits, wide.cut, wide.wraps) == (38, 0, False)
    # of a coarse gradient so much is cut that none can pass the bits
    coarse = dataclasses.replace(layer, g_fixed=Fixed(16, 1))
    assert (coarse.cut, coarse.sum_bits, coarse.wraps) == (21, 38 - 21, False)
    with pytest.raises(ShapeError, match="sums of 19 bits for gradients of 16; give them 20 or more"):
        dataclasses.replace(layer, sum_width=19)


@pytest.mark.parametrize("height", [1, 7, 14, 56])
def test_fitting_bits_keep_the_error_of_cuts_a_quarter_of_that_of_rounding(height: int) -> None:
    layer = ConvGradient(height=height, width=height, channels=4, filters=4, kernel=(1, 1), recipe=Recipe(batch=16),
                         x_fixed=Fixed(16, 10), e_fixed=Fixed(16, 18), g_fixed=Fixed(16, 10))  # fmt: skip
    layer = dataclasses.replace(layer, sum_width=layer.fitting_sum_width)
    rng = np.random.default_rng(height)
    x, e = layer.sample("x", rng, 16), np.round(rng.normal(0, 3000, (16, height, height, 4))).astype(np.int64)
    error = (layer.sums(x, e) << layer.cut) - dataclasses.replace(layer, sum_width=0).sums(x, e)
    steps = error / 2.0 ** (layer.exact_fraction_bits - layer.g_fixed.fraction_bits)
    # of rounding a number between two steps up or down: 1 / sqrt(6)
    assert layer.cut > 1
    assert np.sqrt(np.square(steps).mean()) <= 6**-0.5 / 4
    # no more than a few times fewer: not wider than need be
    assert np.sqrt(np.square(steps).mean()) > 6**-0.5 / 32


@pytest.mark.parametrize(
    ("layer", "backend"),
    [
        (SMALL, Backend.VERILATOR),
        (dataclasses.replace(SMALL, tile=Tile(1, 4, 3), w_lanes=1), Backend.MYHDL),
        (SMALL.at(Home.DRAM), Backend.VERILATOR),
        (GROUPED, Backend.ICARUS),
        (DEPTHWISE, Backend.MYHDL),
    ],
    ids=["memory", "another tile", "outside", "grouped", "depthwise"],
)
def test_circuits_equal_the_golden_model_under_random_stalls(layer: Any, backend: Backend) -> None:
    assert layer.wraps
    simulate(layer, batches=2, seed=4, stall=0.3, backend=backend)


@pytest.mark.parametrize("seed", range(4))
def test_random_engines_with_sums_of_any_width(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    layer = random_engine(ConvGradient, 70 + seed)
    width = int(rng.integers(layer.least_sum_width, max(layer.least_sum_width + 1, layer.exact_sum_bits)))
    simulate(dataclasses.replace(layer, sum_width=width), batches=2, seed=seed, stall=0.2)


def balanced(layer: GradientEngine, last: int) -> dict[str, np.ndarray]:
    """Three frames: the largest products, their opposites, and one product of ``last``."""
    x = np.full((3, *layer.input_shape), 32767)
    e = np.zeros((3, *layer.output_shape), np.int64)
    e[0], e[1] = 32767, -32767
    x[2], e[2, 0, 0, 0] = 256, last
    return {"x": x, "e": e}


def test_only_the_sum_of_a_batch_must_fit_whatever_sums_on_the_way_were() -> None:
    layer = ConvGradient(height=4, width=4, channels=1, filters=1, kernel=(1, 1), recipe=Recipe(batch=3), sum_width=22,
                         g_fixed=Fixed(16, 16))  # fmt: skip
    exact = dataclasses.replace(layer, sum_width=0)
    inputs = balanced(layer, 1 << 10)
    half = 1 << (layer.sum_bits - 1)
    assert np.abs(layer.sums(inputs["x"][:1], inputs["e"][:1])).max() > half, "a sum on the way does not fit"
    state, plain = layer.start({}), exact.start({})
    assert layer.golden(state, inputs)["g"].reshape(-1) == exact.golden(plain, inputs)["g"].reshape(-1)
    assert state["wrapped"] == 0
    # and one that does not fit in the end is counted
    inputs["e"][1] = 0
    layer.golden(state, inputs)
    assert state["wrapped"] == 1


def net(*bits: str) -> Graph:
    """A calibrated training graph with dense, depthwise and fully connected layers."""
    build = GraphBuilder("net", Recipe(batch=4), seed=3)
    x = build.relu(build.norm(build.conv(build.input(6, 6, 2), 4, kernel=3, padding=1)))
    x = build.relu(build.conv(x, 4, kernel=3, padding=1))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    feeds = [synthetic_feeds(training, 4, seed) for seed in range(2)]
    return calibrate(training, feeds, CalibrationOptions(width=Widths.parse(bits)))


def widths_of(graph: Graph) -> dict[str, int]:
    """Of sums, by layer of the model."""
    return {node.whole: node.layer.sum_width for node in graph.nodes if isinstance(node.layer, Summing)}


def test_sums_have_the_bits_that_were_asked_for() -> None:
    assert set(widths_of(net()).values()) == {0}
    assert widths_of(net("sum=28", "gemm*:sum=24")) == {"conv1": 28, "conv2": 28, "gemm1": 24}
    # 144 products, and 4
    assert widths_of(net("sum=fit")) == {"conv1": 26, "conv2": 26, "gemm1": 23}


def test_updates_keep_the_bits_that_were_asked_for() -> None:
    kept = {
        node.whole: (node.layer.master_width, node.layer.momentum_width)
        for node in net("master=22,momentum=18", "conv2:master=20").nodes
        if isinstance(node.layer, Remembering)
    }
    assert (kept["conv1"], kept["conv2"], kept["gemm1"]) == ((22, 18), (20, 18), (22, 18))
    with pytest.raises(WidthError) as caught:
        net("master=17", "conv1:momentum=8")
    assert "a master of 17 bits is too narrow for the weights of conv1; choose 18 or more" in str(caught.value)


def test_bits_that_can_t_be_had_are_said_at_once() -> None:
    with pytest.raises(WidthError) as caught:
        Widths.parse(("sum=11", "sum=49", "error=fit"))
    for part in ("sum of 11 bits", "choose 12 to 48, or fit", "sum of 49 bits", "error of fit bits"):
        assert part in str(caught.value)
    with pytest.raises(WidthError) as caught:
        net("sum=19", "gemm1:sum=18")
    for part in ("19 bits can't hold the gradients of conv1; choose 20 or more", "of conv2", "18 bits", "of gemm1"):
        assert part in str(caught.value)


def test_a_network_with_cut_sums_trains_and_its_gradients_are_near_exact_ones() -> None:
    found = []
    for graph in (net(), net("sum=fit")):
        values: dict[str, np.ndarray] = {}
        Executor(graph, Mode.GOLDEN).step(synthetic_feeds(graph, 4, 7), values.__setitem__)
        found.append({edge: codes for edge, codes in values.items() if edge.endswith("gradient.g")})
    assert len(found[0]) >= 3
    for edge, codes in found[0].items():
        assert np.abs(codes - found[1][edge]).max() <= 1, edge
