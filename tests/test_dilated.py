"""Dilated convolutions: the same as ones whose larger kernels have zeros in between; circuits of random shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hdl.errors import ShapeError
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.layers.conv.depthwise import DepthwiseConv, DepthwiseConvError, DepthwiseConvGradient
from hdl.layers.pool.max_pool import MaxPool
from hdl.layers.storage import Home
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import Tile
from tests.conv_support import chooser, with_random_lanes
from tests.layer_support import assert_equal_bits, design_of, make_case
from tests.suites import quick
from tests.test_conv import simulate

KINDS = (Conv, ConvError, ConvGradient, DepthwiseConv, DepthwiseConvError, DepthwiseConvGradient)


def random_engine(kind: type[Layer], seed: int, home: Home = Home.ON_CHIP) -> Any:
    """A dilated engine of random shape, groups, tile and lanes."""
    rng = np.random.default_rng(seed)
    pick = chooser(rng)
    while True:
        kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        fields: dict[str, Any] = {
            "height": int(rng.integers(1, 9)),
            "width": int(rng.integers(1, 9)),
            "channels": 4,
            "kernel": kernel,
            "stride": (int(rng.integers(1, 5)), int(rng.integers(1, 4))),
            "dilation": (int(rng.integers(1, 5)), int(rng.integers(2, 4))),
            "padding": tuple(int(rng.integers(0, 5)) for _ in range(4)),
            "recipe": Recipe(batch=2, staleness=int(rng.integers(0, 3))),
        }
        if kind in KINDS[:3]:
            fields |= {"filters": pick((2, 4)), "groups": pick((1, 1, 2))}
        try:
            layer: Any = kind(**fields).at(home)
        except ShapeError:
            continue
        if layer is None or layer.walk.cycles > 2000:
            continue
        return with_random_lanes(layer, pick)


def spread(layer: Any, w: np.ndarray) -> np.ndarray:
    """Weights with zeros in between."""
    wide = np.zeros((*w.shape[:2], *layer.window.extent), w.dtype)
    wide[:, :, :: layer.dilation[0], :: layer.dilation[1]] = w
    return wide


def twin(layer: Any) -> Any:
    """The engine of the larger kernel."""
    return dataclasses.replace(layer, kernel=layer.window.extent, dilation=(1, 1), tile=Tile(), w_lanes=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_engines_are_those_of_a_larger_kernel_with_zeros(kind: type[Layer], seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = random_engine(kind, seed)
    other = twin(layer)
    assert other.output_shape == layer.output_shape
    inputs = {port.name: rng.normal(size=(2, *port.tensor.shape)) for port in layer.frame_ports if port in layer.sinks}
    if "w" in [port.name for port in layer.sinks]:
        w = rng.normal(size=layer.weight_shape)
        (given,), (wanted,) = (
            engine.reference({}, {**inputs, "w": weights}).values()
            for engine, weights in ((layer, w), (other, spread(layer, w)))
        )
    else:
        given = layer.reference({}, inputs)["g"]
        wanted = other.reference({}, inputs)["g"][:, :, :: layer.dilation[0], :: layer.dilation[1]]
    np.testing.assert_allclose(given, wanted, rtol=1e-12, atol=1e-12, err_msg=f"{layer}, seed {seed}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", quick(2, range(4)))
def test_random_engines_agree_with_the_golden_model_in_every_bit(kind: type[Layer], seed: int) -> None:
    case = make_case(random_engine(kind, 200 + seed), seed=seed)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed)


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("seed", range(2))
def test_weights_outside_give_the_same_bits(kind: type[Layer], seed: int) -> None:
    simulate(random_engine(kind, 300 + seed, Home.DRAM), 2, seed, 0.0 if seed % 2 else 0.4)


def test_only_rows_of_taps_are_multiplied() -> None:
    fields: dict[str, Any] = {"height": 33, "width": 33, "channels": 8, "filters": 8, "kernel": (3, 3)}
    dilated, plain = (Conv(**fields, padding=(d,) * 4, dilation=(d, d)) for d in (12, 1))
    assert dilated.output_shape == plain.output_shape
    assert dilated.macs == plain.macs
    assert dilated.walk.cycles == plain.walk.cycles
    assert dilated.ring_rows("x") > 24


def test_impossible_dilations_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"stride \(1, 1\), dilation \(0, 1\) must be positive"):
        DepthwiseConv(height=4, width=4, channels=2, kernel=(1, 1), dilation=(0, 1))
    with pytest.raises(ShapeError, match="does not fit the map"):
        DepthwiseConv(height=4, width=4, channels=2, kernel=(3, 3), dilation=(2, 1))
    with pytest.raises(ShapeError, match="a window lies wholly in the padding"):
        MaxPool(height=1, width=1, channels=2, kernel=(2, 1), padding=(1, 0, 1, 0), dilation=(2, 1))
