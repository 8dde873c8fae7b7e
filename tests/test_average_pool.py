"""Average pool: against plain loops; its way back is the transpose; folding; circuits of random shapes."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hdl.engine.window.average import Factors
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.folding import divisors
from hdl.layers.pool.average_pool import AveragePool, AveragePoolError
from hdl.simulate import Backend
from tests.layer_support import assert_equal_bits, design_of, make_case


def random_pool(kind: type[Layer], seed: int) -> Any:
    """A pool of random shape, padding that counts in part, or cuts, lanes and formats."""
    rng = np.random.default_rng(seed)
    while True:
        kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 5)))
        padding = tuple(int(rng.integers(-1, kernel[side % 2])) for side in range(4))
        fields: dict[str, Any] = {
            "height": int(rng.integers(1, 7)),
            "width": int(rng.integers(1, 7)),
            "channels": int(rng.choice([1, 2, 4])),
            "kernel": kernel,
            "stride": (int(rng.integers(1, 3)), int(rng.integers(1, 3))),
            "dilation": (int(rng.integers(1, 3)), 1),
            "padding": padding,
            "counted": tuple(int(rng.integers(0, max(side, 0) + 1)) for side in padding)
            if rng.random() < 0.7
            else (0,) * 4,
        }
        try:
            layer: Any = kind(**fields)
        except ShapeError:
            continue
        lanes = {f"{p.name}_lanes": int(rng.choice(divisors(layer.channels))) for p in layer.frame_ports}
        formats = {f"{layer.sinks[0].name}_fixed": Fixed(int(rng.integers(8, 19)), int(rng.integers(2, 12)))}
        return dataclasses.replace(
            layer,
            engine_lanes=int(rng.choice(divisors(layer.channels))),
            engine_taps=int(rng.choice(layer.tap_groups)),
            **lanes,
            **formats,
        )


def windows(layer: Any) -> Any:
    """(window, taps that lie in the map, taps that count) of each window, by definition."""
    top, left = layer.padding[:2]
    for row, column in np.ndindex(*layer.window.output):
        taps = [
            (
                row * layer.stride[0] - top + i * layer.dilation[0],
                column * layer.stride[1] - left + j * layer.dilation[1],
            )
            for i, j in np.ndindex(*layer.kernel)
        ]
        low, start, high, end = layer.counted
        counted = [-low <= h < layer.height + high and -start <= v < layer.width + end for h, v in taps]
        inside = [(h, v) for h, v in taps if 0 <= h < layer.height and 0 <= v < layer.width]
        yield (row, column), inside, sum(counted)


@pytest.mark.parametrize("seed", range(8))
def test_every_window_is_divided_by_what_counts(seed: int) -> None:
    layer = random_pool(AveragePool, seed)
    rng = np.random.default_rng(seed)
    x = layer.sample("x", rng, 2)
    codes, values = layer.golden({}, {"x": x})["y"], layer.reference({}, {"x": layer.x_fixed.decode(x)})["y"]
    for (row, column), inside, count in windows(layer):
        total = sum(x[:, h, v] for h, v in inside)
        np.testing.assert_allclose(values[:, row, column], total * layer.x_fixed.step / count, rtol=1e-12, atol=1e-12)
        # a factor is 1 / k to within half its last bit, and the product is rounded once
        factor = Fraction(int(layer.factor_codes[row, column, 0]), 1 << layer.factor_shift)
        assert abs(factor - Fraction(1, count)) <= Fraction(1, 2 << layer.factor_shift)
        for frame, channel in np.ndindex(*total.shape):
            exact = Fraction(int(total[frame, channel])) * factor / (1 << layer.x_fixed.fraction_bits)
            wanted = (exact * (1 << layer.y_fixed.fraction_bits) * 2 + 1) // 2
            assert codes[frame, row, column, channel] == min(max(wanted, layer.y_fixed.low), layer.y_fixed.high)


@pytest.mark.parametrize("seed", range(8))
def test_the_way_back_is_the_transpose(seed: int) -> None:
    error = random_pool(AveragePoolError, seed)
    forward = AveragePool(**{name: getattr(error, name) for name in (
        "height", "width", "channels", "kernel", "stride", "padding", "dilation", "counted")})  # fmt: skip
    rng = np.random.default_rng(seed)
    x, e = rng.normal(size=(1, *forward.input_shape)), rng.normal(size=(1, *forward.output_shape))
    y, dx = forward.reference({}, {"x": x})["y"], error.reference({}, {"e": e})["dx"]
    assert (y * e).sum() == pytest.approx((x * dx).sum(), rel=1e-12)


@pytest.mark.parametrize("kind", [AveragePool, AveragePoolError])
@pytest.mark.parametrize("seed", range(8))
def test_random_pools_agree_with_the_golden_model_in_every_bit(kind: type[Layer], seed: int) -> None:
    case = make_case(random_pool(kind, 100 + seed), seed=seed)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed)


def shared_pool(kind: type[Layer], seed: int) -> Any:
    """Windows over equal shares of a map of random size, more of them than pixels too."""
    rng = np.random.default_rng(500 + seed)
    height, width, rows, columns = (int(size) for size in rng.integers(1, 12, 4))
    channels = int(rng.choice([1, 2, 4]))
    layer: Any = kind.sharing(height, width, (rows, columns), channels=channels)  # type: ignore[attr-defined]
    lanes = {f"{p.name}_lanes": int(rng.choice(divisors(channels))) for p in layer.frame_ports}
    return dataclasses.replace(layer, engine_lanes=int(rng.choice(divisors(channels))), **lanes)


@pytest.mark.parametrize("seed", range(8))
def test_windows_over_equal_shares_are_all_that_overlaps_them(seed: int) -> None:
    layer = shared_pool(AveragePool, seed)
    error = AveragePoolError.sharing(layer.height, layer.width, layer.shares, channels=layer.channels)
    rng = np.random.default_rng(seed)
    x, e = rng.normal(size=(2, *layer.input_shape)), rng.normal(size=(2, *layer.output_shape))
    y, dx = layer.reference({}, {"x": x})["y"], np.zeros_like(x)
    for row, column in np.ndindex(*layer.shares):
        (top, bottom), (left, right) = (
            (at * size // number, -(-(at + 1) * size // number))
            for at, size, number in zip((row, column), layer.input_shape, layer.shares, strict=False)
        )
        window = slice(None), slice(top, bottom), slice(left, right)
        np.testing.assert_allclose(y[:, row, column], x[window].mean((1, 2)), rtol=1e-12, atol=1e-12)
        dx[window] += e[:, row, None, column, None] / ((bottom - top) * (right - left))
    np.testing.assert_allclose(error.reference({}, {"e": e})["dx"], dx, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [AveragePool, AveragePoolError])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 24))])
def test_shared_windows_agree_with_the_golden_model_in_every_bit(kind: type[Layer], seed: int) -> None:
    case = make_case(shared_pool(kind, 100 + seed), seed=seed)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed)


def test_only_factors_that_differ_take_multipliers() -> None:
    # in Inception v3 the padding counts; Keras leaves it out
    fields: dict[str, Any] = {"height": 35, "width": 35, "channels": 192, "kernel": (3, 3), "padding": (1, 1, 1, 1)}
    alike, apart = AveragePool(**fields, counted=(1, 1, 1, 1)), AveragePool(**fields)
    assert (alike.multipliers, apart.multipliers) == (0, 1)
    assert apart.macs == 35 * 35 * 192
    factor = apart._factor
    assert isinstance(factor, Factors)
    assert factor.rows == factor.columns == (0, *[1] * 33, 0)
    folded = apart.fold(500_000)
    assert folded.cycles_per_frame <= 500_000
    assert folded.multipliers == folded.engine_lanes < 192
    with pytest.raises(FoldingError, match="allow more cycles"):
        apart.fold(1000)


def test_impossible_pools_are_refused() -> None:
    fields: dict[str, Any] = {"height": 4, "width": 4, "channels": 2, "kernel": (2, 2)}
    with pytest.raises(ShapeError, match=r"of padding \(1, 0, 0, 0\), \(0, 1, 0, 0\) can't count"):
        AveragePool(**fields, padding=(1, 0, 0, 0), counted=(0, 1, 0, 0))
    with pytest.raises(ShapeError, match=r"windows of \(3, 3\) equal shares have a size of their own, no stride"):
        AveragePool(**fields, shares=(3, 3), padding=(1, 0, 0, 0))
    with pytest.raises(ShapeError, match=r"of \(0, 3\) windows: dimensions and shares must be positive"):
        AveragePool(**fields, shares=(0, 3))
    with pytest.raises(ShapeError, match="a window lies wholly in the padding; make the padding smaller"):
        AveragePool(**fields, padding=(2, 0, 0, 0))
