"""Engines with small buffers: maps in parts of rows where a kernel sees one pixel, tiles whose taps read few copies."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.graph.builder import GraphBuilder
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.small_buffers import small_buffers
from dagtrain.progress import Silent
from dagtrain.schedule.schedule import schedule
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.costs.resources import fit
from hdl.errors import DagtrainError, FoldingError, ShapeError
from hdl.layers.base import Layer
from hdl.layers.conv import engine as conv_engine
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.layers.conv.depthwise import DepthwiseConv
from hdl.layers.storage import Home
from hdl.parts.catalogue import part
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import Tile
from tests.clock_support import Layers
from tests.conv_support import chooser, with_random_lanes
from tests.cosim_support import BATCH, CLOSE, DEVICES, placement, said_batch_cycles, simulate_design
from tests.layer_support import assert_equal_bits, design_of, make_case
from tests.test_conv import ends, simulate

ENGINES = (Conv, ConvError, ConvGradient)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as short as they can be, whatever they are worth."""
    monkeypatch.setattr(conv_engine, "SHORTEST_STRIP", 1)
    monkeypatch.setattr(conv_engine, "LOGIC_MEMORY_WORDS", 0)


def short_engine(kind: type[Layer], seed: int, home: Home = Home.ON_CHIP) -> Any:
    """An engine of random shape and lanes that sees one pixel, and stores rows of one."""
    rng = np.random.default_rng(seed)
    pick = chooser(rng)
    while True:
        fields: dict[str, Any] = {
            "height": int(rng.integers(1, 5)),
            "width": int(rng.integers(2, 6)),
            "channels": pick((1, 2, 4, 6)),
            "filters": pick((1, 3, 4, 6)),
            "kernel": (1, 1),
            "recipe": Recipe(batch=2, staleness=int(rng.integers(0, 3))),
            "small_buffers": True,
        }
        try:
            layer: Any = with_random_lanes(kind(**fields), pick)
            layer = dataclasses.replace(layer, weights=home)
        except (ShapeError, FoldingError):
            continue
        assert layer.walk.cut
        assert layer.walk.rows.stored == layer.height * layer.width
        return layer


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", range(4))
def test_engines_that_store_single_pixels_agree_with_the_golden_model(kind: type[Layer], seed: int) -> None:
    case = make_case(short_engine(kind, 40 + seed), seed=seed)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("kind", [Conv, ConvError])
def test_one_version_of_weights_gives_the_same_bits(kind: type[Layer]) -> None:
    simulate(short_engine(kind, 50, Home.PARKED), 3, 1, 0.4)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("kind", [Conv, ConvError])
@pytest.mark.parametrize("seed", range(3))
def test_they_keep_the_pace_that_they_say(kind: type[Layer], seed: int) -> None:
    layer = dataclasses.replace(short_engine(kind, 60 + seed), recipe=Recipe(batch=14))
    layer = layer.fold(layer.cycles_per_frame, layer.tile)
    at = ends(layer, simulate(layer, 1, seed, 0.0), layer.sources[0].name)
    assert at[-1] - at[5] == 8 * layer.cycles_per_frame, (layer, at)


def wide(kind: type[Layer], **others: Any) -> Any:
    """A convolution of MobileNetV2 that sees one pixel, and stores the map of more channels."""
    sizes = {"channels": 96, "filters": 576} if kind is ConvError else {"channels": 576, "filters": 96}
    return kind(height=14, width=14, **sizes, kernel=(1, 1), **others)


def test_rows_are_as_short_as_is_worth_it() -> None:
    whole, short = (wide(Conv, small_buffers=small, tile=Tile(8, 8), x_lanes=8) for small in (False, True))
    assert (whole.walk.rows.stored, whole.walk.row_words, whole.walk.cut) == (14, 14 * 72, False)
    # 864 cycles a pixel, of 72 words
    assert (short.walk.rows.stored, short.walk.row_words, short.walk.cut) == (196, 72, True)
    assert short.walk.cycles == whole.walk.cycles
    # one word a pixel: two rows would not be worth a block memory
    assert not wide(Conv, small_buffers=True, tile=Tile(1, 576)).walk.cut
    # neither where neighbours are seen, pixels left out, or a frame is read again and again
    fields: dict[str, Any] = {"height": 14, "width": 14, "channels": 64, "filters": 64, "small_buffers": True}
    assert not Conv(**fields, kernel=(3, 3), padding=(1, 1, 1, 1)).walk.cut
    assert not Conv(**fields, kernel=(1, 1), stride=(2, 2)).walk.cut
    assert not Conv(**fields, kernel=(1, 1), padding=(0, 0, 1, 1)).walk.cut
    assert not Conv(**fields, kernel=(1, 1), weights=Home.DRAM).walk.cut


@pytest.mark.parametrize("kind", ENGINES)
def test_they_take_fewer_block_memories_and_hardly_more_logic(kind: type[Layer]) -> None:
    estimator, target = Estimator(), part("10AX115")
    before, after = (
        fit(estimator.layer(wide(kind, small_buffers=small).fold(200_000, Tile(8, 8))), target)
        for small in (False, True)
    )
    assert after.dsp == before.dsp
    assert before.m20k - after.m20k >= 4
    assert after.alm <= 1.02 * before.alm


def test_depthwise_tiles_take_some_multipliers_more_where_that_saves_more_memory() -> None:
    fields: dict[str, Any] = {"height": 112, "width": 112, "channels": 32, "kernel": (3, 3), "padding": (1, 1, 1, 1)}
    few, small = (DepthwiseConv(**fields, small_buffers=each).fold(62_720) for each in (False, True))
    assert (few.tile, small.tile) == (Tile(8, 1, 9), Tile(32, 1, 3))
    estimator, target = Estimator(), part("AGFB014")
    before, after = (fit(estimator.layer(layer), target) for layer in (few, small))
    assert before.m20k - after.m20k > 50
    assert after.dsp - before.dsp == 12


def test_dense_tiles_take_some_multipliers_more_where_that_saves_more_memory() -> None:
    """A convolution of ResNet-50: all taps in a cycle would each read a copy of a whole map, with weights in DRAM."""
    fields: dict[str, Any] = {"height": 14, "width": 14, "channels": 256, "filters": 256, "kernel": (3, 3)}
    fields |= {"padding": (1, 1, 1, 1), "ragged": True}
    parts, estimator = [part("AGFB014"), part("10AX115")], Estimator()
    few, small = (Conv(**fields, small_buffers=each) for each in (False, True))
    tiles = [next(each.tiles(333_333, parts)) for each in (few, small)]
    assert tiles == [Tile(5, 8, 9), Tile(3, 128, 1)]
    before, after = (
        fit(estimator.layer(dataclasses.replace(each, weights=Home.DRAM).fold(333_333, tile)), parts[0])
        for each, tile in zip((few, small), tiles, strict=True)
    )
    assert 0 < after.dsp - before.dsp < before.dsp / 8
    assert before.m20k - after.m20k > 50


def test_results_leave_part_by_part() -> None:
    """Hardly later than the last pixel that they see came, where a row came first before."""
    first = []
    for small in (False, True):
        layer = wide(Conv, small_buffers=small).fold(200_000, Tile(8, 8))
        x = layer.port("x").tensor.elements
        offered = np.array([1.0, float(x)]), np.array([0.0, 200_000.0])
        made = Layers(layer).frame(0, {"x": offered}, ends_batch=False)["y"]
        first.append(made[0])
        assert made[-1] <= 200_000 + made[0] + layer.walk.strip_cycles[0]
    assert first[1] < first[0] / 5


def test_maps_wait_less_in_a_graph_of_them() -> None:
    builder = GraphBuilder("points", Recipe(batch=2), seed=5)
    x = builder.input(8, 8, 8)
    for _ in range(4):
        x = builder.conv(x, 32, 1)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 5)))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, 2, seed) for seed in range(2)]))
    waiting = []
    for each in (graph, small_buffers(graph)):
        folded = fold_graph(each, 40_000)
        plan = schedule(folded, 40_000)
        waiting.append(
            sum(
                plan.frames_waiting(edge) * source.tensor.elements
                for edge, _, source, *_ in folded.edges
                if not source.tensor.kind.per_batch
            )
        )
    assert waiting[1] < 0.9 * waiting[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "dealt out"])
def test_a_cluster_with_small_buffers_trains_to_the_bits_of_the_emulator(kind: str, tmp_path: Path) -> None:
    """An inverted residual; the engines that see one pixel work on parts of rows."""
    builder = GraphBuilder("inverted", Recipe(batch=BATCH, staleness=2), seed=7)
    first = builder.relu(builder.norm(builder.conv(builder.input(8, 8, 1), 16, 3, padding=1)))
    x = builder.relu(builder.norm(builder.conv(first, 32, 1)))
    x = builder.relu(builder.norm(builder.depthwise(x, 3, padding=1)))
    x = builder.add(builder.norm(builder.conv(x, 16, 1)), first)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 5)))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))
    library = ModuleLibrary(cache_folder() / "modules")
    graph = small_buffers(graph)
    design = design_cluster(graph, placement(graph, kind), DEVICES, 33_000, library, word_bits=64)
    cut = [n.name for n in design.graph.nodes if isinstance(n.layer, ENGINES) and n.layer.walk.cut]
    assert len(cut) >= 5, cut
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(3)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=0, seed=3)
    run = simulate_design(
        design, library, feeds, tmp_path, Simulator.VERILATOR, network, 0, 3, Silent(), optimise=False
    )
    assert run.mismatches == ()
    assert len(run.losses) == 3 * BATCH
    assert run.batch_cycles[-1] == pytest.approx(said_batch_cycles(design, 90), rel=CLOSE)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(DagtrainError, match="--small-buffers always: no such way; one of auto, never"):
        levers_wanted(PlaceOptions(Path("cluster.toml"), small_buffers="always"))
