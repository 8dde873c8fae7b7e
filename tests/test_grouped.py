"""Convolution in groups: the same as a full one with blocks of zeros; tiles of groups; circuits of random shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hdl.engine.window.walk import SHARED_END, Walk
from hdl.errors import FoldingError, ShapeError
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.layers.storage import Home
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import Tile
from tests.conv_support import chooser, with_random_lanes
from tests.layer_support import assert_equal_bits, design_of, make_case, seeds
from tests.test_conv import ends, simulate

ENGINES = (Conv, ConvError, ConvGradient)


def random_engine(kind: type[Layer], seed: int, home: Home = Home.ON_CHIP) -> Any:
    """An engine in groups of random shape, home, tile and lanes."""
    rng = np.random.default_rng(seed)
    pick = chooser(rng)
    while True:
        kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        groups = pick((2, 3, 4))
        fields: dict[str, Any] = {
            "height": int(rng.integers(1, 7)),
            "width": int(rng.integers(1, 7)),
            "channels": groups * pick((1, 2, 4)),
            "filters": groups * pick((1, 2, 4)),
            "groups": groups,
            "kernel": kernel,
            "stride": (int(rng.integers(1, 3)), int(rng.integers(1, 3))),
            "padding": tuple(int(rng.integers(0, kernel[side % 2] + 1)) for side in range(4)),
            "recipe": Recipe(batch=2, staleness=int(rng.integers(0, 3))),
        }
        try:
            layer: Any = kind(**fields).at(home)
        except ShapeError:
            continue
        if layer is None:
            continue
        return with_random_lanes(layer, pick)


def blocks(layer: Any, w: np.ndarray) -> np.ndarray:
    """Weights of groups as those of a full convolution."""
    filters, channels = layer.filters // layer.groups, layer.channels // layer.groups
    full = np.zeros((layer.filters, layer.channels, *layer.kernel), w.dtype)
    for group in range(layer.groups):
        rows = slice(group * filters, (group + 1) * filters)
        full[rows, group * channels : (group + 1) * channels] = w[rows]
    return full


def twin(layer: Any) -> Any:
    """The full convolution of the same geometry."""
    return dataclasses.replace(layer, groups=1, tile=Tile(), w_lanes=1)


@pytest.mark.parametrize("seed", seeds(6))
def test_golden_models_are_those_of_a_convolution_with_blocks_of_zeros(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for layer, port in ((random_engine(Conv, seed), "x"), (random_engine(ConvError, seed), "e")):
        states: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for _ in range(3):
            maps, w = layer.sample(port, rng, 2), layer.sample("w", rng, 1)[0]
            given = layer.golden(states[0], {port: maps, "w": w})
            wanted = twin(layer).golden(states[1], {port: maps, "w": blocks(layer, w)})
            for name, codes in wanted.items():
                np.testing.assert_array_equal(given[name], codes, err_msg=f"{layer}, seed {seed}")


@pytest.mark.parametrize("seed", seeds(6))
def test_gradients_are_the_blocks_of_a_convolutions(seed: int) -> None:
    layer = random_engine(ConvGradient, seed)
    rng = np.random.default_rng(seed)
    inputs = {port.name: rng.normal(size=(2, *port.tensor.shape)) for port in layer.sinks}
    given, full = (engine.reference({}, inputs)["g"] for engine in (layer, twin(layer)))
    inside = blocks(layer, np.ones(layer.weight_shape)) == 1
    np.testing.assert_allclose(blocks(layer, given), np.where(inside, full, 0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", seeds(6))
def test_random_engines_agree_with_the_golden_model_in_every_bit(kind: type[Layer], seed: int) -> None:
    case = make_case(random_engine(kind, 200 + seed), seed=seed)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", seeds(4))
def test_weights_outside_give_the_same_bits(kind: type[Layer], seed: int) -> None:
    simulate(random_engine(kind, 300 + seed, Home.DRAM), 2, seed, 0.0 if seed % 2 else 0.4)


@pytest.mark.parametrize("kind", [Conv, ConvError])
@pytest.mark.parametrize("seed", range(3))
def test_one_version_of_weights_gives_the_same_bits(kind: type[Layer], seed: int) -> None:
    simulate(random_engine(kind, 400 + seed, Home.PARKED), 3, seed, 0.4)


@pytest.mark.parametrize("kind", [Conv, ConvError])
@pytest.mark.parametrize("seed", seeds(4))
def test_streamed_weights_cost_no_cycles(kind: type[Layer], seed: int) -> None:
    layer = dataclasses.replace(random_engine(kind, 500 + seed, Home.DRAM), recipe=Recipe(batch=14))
    layer = layer.fold(layer.cycles_per_frame, layer.tile)
    at = ends(layer, simulate(layer, 1, seed, 0.0), layer.sources[0].name)
    assert at[-1] - at[5] == 8 * layer.cycles_per_frame, (layer, at)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("home", [Home.ON_CHIP, Home.DRAM])
def test_a_tile_takes_from_one_weight_to_all_of_a_pixel(kind: type[Layer], home: Home) -> None:
    layer: Any = kind(height=14, width=14, channels=32, filters=64, groups=8, kernel=(3, 3)).at(home)  # type: ignore[call-arg]
    tiles = set(layer.tiles(10**7))
    # from DRAM, the error engine takes whole groups, and a pass over the map sums at least four tiles
    assert (Tile() in tiles) == (home is Home.ON_CHIP or kind is not ConvError)
    assert (Tile(64, 4, 9) in tiles) == (home is Home.ON_CHIP or kind is not ConvGradient)
    assert {Tile(8, 4), Tile(16, 4), Tile(64, 4)} <= tiles
    assert not {Tile(16, 2), Tile(64, 1)} & tiles
    assert all(tile.size <= layer.weight_count for tile in tiles)
    assert min(layer.least_cycles(tile) for tile in tiles) <= (196 if home is Home.ON_CHIP else 196 * 9)


def test_groups_multiply_only_what_meets() -> None:
    # the second convolution of AlexNet as published, and one of ResNeXt-50's third stage
    alex = Conv(height=27, width=27, channels=96, filters=256, groups=2, kernel=(5, 5), padding=(2, 2, 2, 2))
    assert alex.macs == 27 * 27 * 256 * 48 * 25
    next_50 = Conv(height=14, width=14, channels=512, filters=512, groups=32, kernel=(3, 3), padding=(1, 1, 1, 1))
    assert next_50.weight_shape == (512, 16, 3, 3)
    folded = next_50.fold(14 * 14 * 512 // 2)
    assert folded.multipliers == 2 * 16 * 9
    assert folded.cycles_per_frame == folded.macs // folded.multipliers


def test_shared_words_move_behind_the_last_result_that_reads_them() -> None:
    axes = Conv(height=2, width=2, channels=1, filters=1, kernel=(1, 1)).axes(1)
    walk = Walk(*axes, reduce=2, repeat=6, group_steps=(1, 2), sharing=3)
    assert walk.groups == 4
    words = [walk.address(0, 0, repeat, reduce, 0, 0, 0) for repeat in range(6) for reduce in range(2)]
    assert words == [0, 1] * 3 + [2, 3] * 3
    moves = walk.deltas(walk.address)
    assert (moves[2], moves[walk.repeat_level], moves[SHARED_END]) == (1, -1, 1)


def test_impossible_groups_are_refused() -> None:
    fields: dict[str, Any] = {"height": 4, "width": 4, "channels": 6, "filters": 4, "kernel": (3, 3)}
    with pytest.raises(
        ShapeError, match=r"6 -> 4 in 3 groups, kernel .*: there must be as many channels in each group"
    ):
        Conv(**fields, groups=3)
    with pytest.raises(
        FoldingError, match=r"tile Tile\(po=4, pi=1, pk=1\) is impossible; .* or po is those of several and pi all"
    ):
        Conv(**fields, groups=2, tile=Tile(4, 1))
    with pytest.raises(ShapeError, match="must be positive"):
        Conv(**fields, groups=0)
    whole = Conv(**fields, groups=2)
    assert whole.narrowed(2) is None
    assert whole.summand(3) is None
