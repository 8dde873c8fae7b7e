"""Depthwise convolution: the same as a full convolution with a diagonal kernel; folding; circuits of random shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.layers.conv.depthwise import DepthwiseConv, DepthwiseConvError, DepthwiseConvGradient
from hdl.layers.folding import lanes_for, weight_lanes
from hdl.parts.catalogue import PARTS
from hdl.parts.part import Part
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import Tile
from tests.layer_support import assert_equal_bits, design_of, make_case

ENGINES = (DepthwiseConv, DepthwiseConvError, DepthwiseConvGradient)
GEOMETRY = ("height", "width", "channels", "kernel", "stride", "padding", "recipe")


def random_engine(kind: type[Layer], seed: int) -> Any:
    """An engine of random shape, tile and lanes."""
    rng = np.random.default_rng(seed)
    while True:
        kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        fields = {
            "height": int(rng.integers(1, 7)),
            "width": int(rng.integers(1, 7)),
            "channels": int(rng.choice([1, 2, 3, 4, 6])),
            "kernel": kernel,
            "stride": (int(rng.integers(1, 3)), int(rng.integers(1, 3))),
            "padding": tuple(int(rng.integers(0, kernel[side % 2] + 1)) for side in range(4)),
            "recipe": Recipe(batch=2, staleness=int(rng.integers(0, 3))),
        }
        try:
            layer = kind(**fields)  # type: ignore[call-arg]
        except ShapeError:
            continue
        cycles = int(rng.integers(1, 60)) * max(port.tensor.elements // fields["channels"] for port in layer.sinks)
        tiles = tuple(layer.tiles(cycles))
        if tiles:
            return layer.fold(cycles, tiles[int(rng.integers(len(tiles)))])


def diagonal(w: np.ndarray) -> np.ndarray:
    """A depthwise kernel as that of a full convolution."""
    return np.einsum("cm,mijk->cmjk", np.eye(len(w), dtype=w.dtype), w)


def twin(layer: Any, kind: type[Layer], **formats: Fixed) -> Any:
    """The full convolution of the same geometry."""
    fields = {name: getattr(layer, name) for name in GEOMETRY}
    return kind(**fields, filters=layer.channels, **formats)  # type: ignore[call-arg]


@pytest.mark.parametrize("seed", range(6))
def test_golden_models_are_those_of_a_convolution_with_a_diagonal_kernel(seed: int) -> None:
    rng = np.random.default_rng(seed)
    forward, error = random_engine(DepthwiseConv, seed), random_engine(DepthwiseConvError, seed)
    for layer, full, port in ((forward, twin(forward, Conv), "x"), (error, twin(error, ConvError), "e")):
        states: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for _ in range(3):
            maps, w = layer.sample(port, rng, 2), layer.sample("w", rng, 1)[0]
            given = layer.golden(states[0], {port: maps, "w": w})
            wanted = full.golden(states[1], {port: maps, "w": diagonal(w)})
            for name, codes in wanted.items():
                np.testing.assert_array_equal(given[name], codes, err_msg=f"{layer}, seed {seed}")


@pytest.mark.parametrize("seed", range(6))
def test_gradient_is_the_diagonal_of_a_convolutions(seed: int) -> None:
    layer = random_engine(DepthwiseConvGradient, seed)
    rng = np.random.default_rng(seed)
    inputs = {port.name: rng.normal(size=(2, *port.tensor.shape)) for port in layer.sinks}
    given = layer.reference({}, inputs)["g"]
    full = twin(layer, ConvGradient).reference({}, inputs)["g"]
    np.testing.assert_allclose(given[:, 0], np.einsum("ccij->cij", full), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_sums_are_those_of_patches_and_the_same_on_every_core(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    shape: dict[str, Any] = {"height": 13, "width": 12, "channels": 40, "kernel": (3, 2), "padding": (1, 0, 2, 1)}
    forward, error, gradient = (kind(**shape, dilation=(2, 1), stride=(2, 1)) for kind in ENGINES)
    rng, window = np.random.default_rng(8), forward.window
    x, e = (rng.normal(size=(9, *size, 40)) * 99 for size in ((13, 12), window.output))
    x, e, w = (values.astype(dtype) for values in (x, e, rng.normal(size=(40, 1, 3, 2)) * 9))
    taps, patches = w.reshape(40, 6).T, window.patches(x)
    wanted = (
        (patches * taps).sum(3),
        window.scatter(e[:, :, :, None] * taps),
        (patches * e[:, :, :, None]).sum((0, 1, 2)).T.reshape(w.shape),
    )
    found = []
    for cores in ({0}, {0, 1, 2, 3}):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: cores)
        found.append((forward.sums(x, w), error.sums(e, w), gradient.sums(x, e)))
    close = 1e-4 if dtype is np.float32 else 1e-12
    for one, many, right in zip(*found, wanted, strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one, many)
        np.testing.assert_allclose(one, right, rtol=close, atol=close * np.abs(right).max())


def test_golden_gradient_is_rounded_by_less_than_a_step_without_bias() -> None:
    layer = DepthwiseConvGradient(
        height=6, width=6, channels=64, kernel=(3, 3), recipe=Recipe(batch=2), g_fixed=Fixed(24, 12)
    )
    rng = np.random.default_rng(5)
    codes = {port.name: rng.integers(-800, 800, (2, *port.tensor.shape)) for port in layer.sinks}
    exact = layer.reference({}, {name: layer.port(name).tensor.fixed.decode(c) for name, c in codes.items()})["g"]
    off = (layer.g_fixed.decode(layer.golden(layer.start({}), codes)["g"]) - exact) / layer.g_fixed.step
    assert np.abs(off).max() < 1
    # 576 roundings, each of variance at most 1/4
    assert abs(off.mean()) < 4 * 0.5 / np.sqrt(off.size)
    assert np.abs(off).max() > 0.5


def test_two_batches_of_equal_data_draw_different_bits() -> None:
    layer = DepthwiseConvGradient(height=4, width=4, channels=16, kernel=(3, 3), g_fixed=Fixed(16, 2))
    rng = np.random.default_rng(6)
    codes = {port.name: rng.integers(-800, 800, (2, *port.tensor.shape)) for port in layer.sinks}
    state = layer.start({})
    assert (layer.golden(state, codes)["g"] != layer.golden(state, codes)["g"]).any()


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", range(4))
def test_fold_keeps_its_promise_with_every_tile(kind: type[Layer], seed: int) -> None:
    layer = random_engine(kind, 100 + seed)
    slowest = dataclasses.replace(layer, tile=Tile(), w_lanes=1).walk.cycles
    for cycles in (slowest, slowest // 2, slowest // 7):
        for tile in layer.tiles(cycles):
            folded = layer.fold(cycles, tile)
            assert folded.cycles_per_frame <= cycles
            assert folded.tile == tile
            assert folded.w_lanes == weight_lanes(folded.weight_count, tile.size, cycles)
            for port in (*folded.sinks, *folded.sources):
                if not port.tensor.kind.per_batch:
                    assert port.lanes == lanes_for(port.tensor.elements, port.tensor.shape[-1], cycles)
        sizes = [tile.size for tile in layer.tiles(cycles)]
        assert sizes == sorted(sizes)


def test_of_tiles_of_one_size_the_one_of_the_fewest_blocks_of_the_part_comes_first() -> None:
    layer = DepthwiseConv(height=14, width=14, channels=96, kernel=(3, 3), padding=(1, 1, 1, 1))
    first = {}
    for name, part in PARTS.items():

        def blocks(tile: Tile, part: Part = part) -> int:
            """Halves: of M20Ks always two, of a RAMB36 its RAMB18s."""
            ring = part.m20k_halves(4 * layer.walk_of(tile).row_words, 16 * tile.po)
            return part.m20k_halves(2 * layer.weight_count // tile.size, 16 * tile.size) + tile.pk * ring

        tiles = tuple(layer.tiles(2000, [part]))
        first[name] = tiles[0]
        assert blocks(tiles[0]) == min(blocks(tile) for tile in tiles if tile.size == tiles[0].size)
    # weights take as much with both; of the rings, three of 512 bits take 78 halves of M20Ks or 45 RAMB18s, one of 1536
    # bits 78 or 43
    assert first == {
        "10AX115": Tile(32, 1, 3),
        "AGFB014": Tile(32, 1, 3),
        "AGFB027": Tile(32, 1, 3),
        "XC7VX690T": Tile(96),
    }


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", range(6))
def test_random_engines_agree_with_the_golden_model_in_every_bit(kind: type[Layer], seed: int) -> None:
    case = make_case(random_engine(kind, 200 + seed), seed=seed)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed)


def test_a_mobile_net_layer_needs_as_many_multiplications_as_published() -> None:
    # the last depthwise layer of MobileNetV2 at 224x224: 7x7x960, 3x3
    layer = DepthwiseConv(height=7, width=7, channels=960, kernel=(3, 3), padding=(1, 1, 1, 1))
    assert layer.macs == 7 * 7 * 960 * 9
    assert layer.fold(50_000).multipliers == 9


def test_impossible_engines_are_refused() -> None:
    with pytest.raises(FoldingError, match=r"tile Tile\(po=4, pi=1, pk=1\) is impossible; po must divide the channels"):
        DepthwiseConv(height=4, width=4, channels=6, kernel=(3, 3), tile=Tile(4))
    with pytest.raises(FoldingError, match=r"pk be one of \[1\]"):
        DepthwiseConvError(height=5, width=5, channels=2, kernel=(3, 3), stride=(2, 2), tile=Tile(1, 1, 3))
    with pytest.raises(FoldingError, match="2 weight lanes do not divide a tile of 3"):
        DepthwiseConv(height=4, width=4, channels=3, kernel=(3, 3), tile=Tile(3), w_lanes=2)
    with pytest.raises(FoldingError, match="no tile manages 3 cycles a frame; allow more cycles"):
        DepthwiseConv(height=4, width=4, channels=3, kernel=(3, 3)).fold(3)
    with pytest.raises(ShapeError, match="does not fit the map; make the padding"):
        DepthwiseConv(height=2, width=4, channels=3, kernel=(3, 3))
