"""Tiles that do not divide the channels: the order of their streams, circuits of random shapes, whole devices."""

from __future__ import annotations

import dataclasses
import itertools
import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import DramUse
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow import walls_step
from dagtrain.flow.levers import levers_wanted
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.flow.placed import load_folded_graph, load_placed_graph
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.graph.storage import layer_from_json, layer_to_json
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import move_memories
from dagtrain.passes.ragged_tiles import ragged_tiles as with_ragged_tiles
from dagtrain.passes.share_weights import share_weights
from dagtrain.planning.choices import folded_graph
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.planner import Planner
from dagtrain.planning.prices import Prices
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.costs.estimate import Estimator
from hdl.dram.axi import AxiFormat
from hdl.errors import DagtrainError, FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.beats import from_beats, to_beats
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.layers.folding import RAGGED_SHARE, divisors, ragged_lanes
from hdl.layers.storage import Home
from hdl.layers.wiring.fork import Fork
from hdl.layers.wiring.update import Update
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import EMPTY, Kind, Tile
from placement.search.search import SearchOptions
from tests.conv_support import chooser, ragged_tiles, with_random_lanes
from tests.cosim_support import BATCH, DEVICES, simulate_design
from tests.flow_support import QuickEstimator, new_case, quick_costs
from tests.layer_support import assert_equal_bits, design_of, make_case
from tests.test_conv import ends, simulate
from tests.test_relays import small_cluster

ENGINES = (Conv, ConvError, ConvGradient)
# (channels, filters) none of whose numbers has many divisors
SHAPES = ((1, 5), (5, 1), (5, 3), (6, 4), (3, 7), (7, 5), (4, 10))


def random_engine(kind: type[Layer], seed: int, home: Home = Home.ON_CHIP) -> Any:
    """An engine of random shape, home and lanes with a ragged tile."""
    rng = np.random.default_rng(seed)
    pick = chooser(rng)
    while True:
        kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        channels, filters = pick(SHAPES)
        fields: dict[str, Any] = {
            "height": int(rng.integers(1, 6)),
            "width": int(rng.integers(1, 6)),
            "channels": channels,
            "filters": filters,
            "kernel": kernel,
            "stride": (int(rng.integers(1, 3)), int(rng.integers(1, 3))),
            "padding": tuple(int(rng.integers(0, kernel[side % 2] + 1)) for side in range(4)),
            "dilation": (pick((1, 1, 2)), 1),
            "recipe": Recipe(batch=2, staleness=int(rng.integers(0, 3))),
        }
        try:
            layer: Any = kind(**fields)
            layer = dataclasses.replace(layer, tile=pick(ragged_tiles(layer)), weights=home)
        except (ShapeError, FoldingError):
            continue
        return with_random_lanes(layer, pick, layer.tile)


def test_the_stream_of_a_ragged_tile_has_empty_places_where_channels_or_filters_end() -> None:
    # three filters of three channels in tiles of two by two
    order = [0, 1, 3, 4, 2, EMPTY, 5, EMPTY, 6, 7, EMPTY, EMPTY, 8, EMPTY, EMPTY, EMPTY]
    assert Tile(2, 2).order((3, 3, 1, 1)).tolist() == order
    layer = Conv(height=1, width=1, channels=3, filters=3, kernel=(1, 1), tile=Tile(2, 2), w_lanes=4)
    assert (layer.words, layer.port("w").padding, layer.port("w").beats) == (4, 7, 4)
    weights = np.arange(1, 19).reshape(2, 3, 3, 1, 1)
    beats = to_beats(layer, "w", weights)
    assert beats[0] == 1 | 2 << 16 | 4 << 32 | 5 << 48
    assert beats[1] == 3 | 6 << 32
    np.testing.assert_array_equal(from_beats(layer, "w", beats), weights)


@pytest.mark.parametrize("seed", range(8))
def test_every_weight_stands_once_in_the_stream_and_all_else_is_empty(seed: int) -> None:
    rng = np.random.default_rng(seed)
    filters, channels, taps = (int(rng.integers(1, 9)) for _ in range(3))
    tile = Tile(int(rng.integers(1, filters + 1)), int(rng.integers(1, channels + 1)))
    shape = (filters, channels, taps, 1)
    order = tile.order(shape)
    assert len(order) == np.prod(tile.counts(shape)) * tile.size == np.prod(shape) + tile.padding(shape)
    assert sorted(order[order != EMPTY].tolist()) == list(range(filters * channels * taps))
    # inside a tile as in a tile that divides: filter, channel, tap
    first = [row * channels * taps + column * taps for row in range(tile.po) for column in range(tile.pi)]
    assert order[: tile.size].tolist() == first


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", range(5))
def test_random_engines_agree_with_the_golden_model_in_every_bit(kind: type[Layer], seed: int) -> None:
    case = make_case(random_engine(kind, 600 + seed), seed=seed)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("seed", range(3))
def test_weights_outside_give_the_same_bits(kind: type[Layer], seed: int) -> None:
    simulate(random_engine(kind, 700 + seed, Home.DRAM), 2, seed, 0.0 if seed % 2 else 0.4)


@pytest.mark.parametrize("kind", [Conv, ConvError])
@pytest.mark.parametrize("seed", range(2))
def test_one_version_of_weights_gives_the_same_bits(kind: type[Layer], seed: int) -> None:
    simulate(random_engine(kind, 800 + seed, Home.PARKED), 3, seed, 0.4)


@pytest.mark.parametrize("kind", [Conv, ConvError])
@pytest.mark.parametrize("home", [Home.ON_CHIP, Home.DRAM])
@pytest.mark.parametrize("seed", range(2))
def test_they_keep_the_pace_that_they_say(kind: type[Layer], home: Home, seed: int) -> None:
    layer = dataclasses.replace(random_engine(kind, 900 + seed, home), recipe=Recipe(batch=14))
    layer = layer.fold(layer.cycles_per_frame, layer.tile)
    at = ends(layer, simulate(layer, 1, seed, 0.0), layer.sources[0].name)
    assert at[-1] - at[5] == 8 * layer.cycles_per_frame, (layer, at)


def test_a_ragged_tile_takes_the_cycles_of_whole_tiles() -> None:
    fields: dict[str, Any] = {"height": 7, "width": 6, "kernel": (3, 3), "padding": (1, 1, 1, 1), "stride": (2, 2)}
    # 10 filters in tiles of 4, 12 channels in tiles of 5: as 12 and 15
    for kind in ENGINES:
        ragged: Any = kind(**fields, channels=12, filters=10, tile=Tile(4, 5))
        whole: Any = kind(**fields, channels=15, filters=12, tile=Tile(4, 5))
        assert (ragged.walk, ragged.words) == (whole.walk, whole.words)
        assert ragged.least_cycles(ragged.tile) == whole.least_cycles(whole.tile)


def test_tiles_larger_than_a_layer_and_ragged_ones_of_groups_are_refused() -> None:
    fields: dict[str, Any] = {"height": 2, "width": 2, "channels": 4, "filters": 6, "kernel": (1, 1)}
    for tile in (Tile(7, 1), Tile(1, 5)):
        with pytest.raises(FoldingError, match="po must be at most the filters, pi the channels"):
            Conv(**fields, tile=tile)
    for tile in (Tile(2, 1), Tile(4, 2)):
        with pytest.raises(FoldingError, match="is impossible"):
            Conv(**fields, groups=2, tile=tile)


@pytest.mark.parametrize("state", [Home.ON_CHIP, Home.DRAM])
def test_an_update_keeps_empty_places_at_zero(state: Home) -> None:
    recipe = Recipe(batch=2, weight_decay=0.1, momentum=0.9, nesterov=True, seed=4)
    layer = Update(shape=(3, 5, 1, 2), tile=Tile(2, 3, 2), w_lanes=3, recipe=recipe, tensor_id=3, state=state)
    case = make_case(layer, batches=4)
    assert len(case.outputs["w"]) == 4 * layer.port("w").beats == 4 * 4 * 4
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed=3)
    # the same weights as with any other tile
    whole = make_case(dataclasses.replace(layer, tile=Tile(), w_lanes=1), batches=4)
    for one, other in zip(case.tensors["w"], whole.tensors["w"], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fork_passes_empty_places_too() -> None:
    layer = Fork(shape=(3, 5, 1, 2), kinds=(Kind.WEIGHT,) * 2, x_fixed=Fixed(16, 12)).fold(100, Tile(2, 3, 2))
    assert layer.port("x").padding == layer.port("y1").padding == 48 - 30
    case = make_case(layer)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed=3)


# ---- which ones, in graphs and plans


@pytest.mark.parametrize(("filters", "channels"), [(1, 4), (7, 2), (12, 12), (64, 3), (30, 16), (128, 64)])
def test_ragged_tiles_worth_having_are_those_with_fewer_multipliers(filters: int, channels: int) -> None:
    def passes(po: int, pi: int) -> int:
        return -(-filters // po) * -(-channels // pi)

    whole = list(itertools.product(divisors(filters), divisors(channels)))
    offered = ragged_lanes(filters, channels)
    for po, pi in offered:
        assert filters % po
        assert channels % pi == 0
        alike = [a * b for a, b in whole if passes(a, b) <= passes(po, pi)]
        assert po * pi <= RAGGED_SHARE * min(alike), (po, pi)
    for po, pi in itertools.product(range(1, filters + 1), divisors(channels)):
        alike = [a * b for a, b in (*whole, *offered) if passes(a, b) <= passes(po, pi)]
        assert RAGGED_SHARE * min(alike) <= po * pi, (po, pi)


def test_only_engines_that_may_have_them_are_folded_for_ragged_tiles() -> None:
    fields: dict[str, Any] = {"height": 6, "width": 6, "channels": 2, "filters": 7, "kernel": (1, 1)}
    engine, grouped = Conv(**fields), Conv(**{**fields, "filters": 8}, groups=2, ragged=True)
    ragged: Any = dataclasses.replace(engine, ragged=True)
    assert (engine.fold(36 * 4).tile, ragged.fold(36 * 4).tile) == (Tile(7, 1), Tile(2, 2))
    # of 8 passes those of four filters, which divide none, are as many as of two that do
    assert ragged.fold(36 * 7).tile == engine.fold(36 * 7).tile == Tile(1, 2)
    assert all(tile.divides(grouped.weight_shape) for tile in grouped.tiles(10**6))
    # it names no other circuit, and files keep it
    assert repr(ragged) == repr(engine)
    assert layer_from_json(layer_to_json(ragged), "here") == ragged != engine


def test_no_engine_is_folded_for_a_ragged_tile_whose_width_adapter_is_slow() -> None:
    fields: dict[str, Any] = {"height": 16, "width": 16, "channels": 2, "filters": 128, "kernel": (3, 3)}
    fields |= {"padding": (1, 1, 1, 1), "ragged": True}
    for cycles, lanes in ((20_000, 2), (8_192, 4), (4_096, 8), (2_048, 16)):
        tiles = [tile for tile in Conv(**fields).tiles(cycles) if tile.po * tile.pi * tile.pk < 128 * 18]
        ragged = [tile for tile in tiles if 128 % tile.po]
        assert Conv(**fields).fold(cycles).y_lanes == ConvError(**fields).fold(cycles, tiles[0]).e_lanes == lanes
        assert all(tile.po % lanes == 0 or tile.po + lanes + min(tile.po, lanes) < 64 for tile in ragged)
        assert (Tile(43, 2, 9) in ragged) == (lanes <= 8), (cycles, ragged)
    # built they can be
    assert Conv(**fields, tile=Tile(43, 2, 9), y_lanes=8).words == 3


# cycles a frame at which both convolutions of `seven_net` have ragged tiles
CYCLES = 200


@cache
def seven_net() -> Graph:
    """A streaming graph whose layers have 7 and 5 filters."""
    builder = GraphBuilder("seven", Recipe(batch=BATCH, staleness=1), seed=21)
    x = builder.relu(builder.conv(builder.input(6, 6, 2), 7, 3, padding=1))
    y = builder.relu(builder.conv(x, 5, 3, padding=1, stride=2))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(y), 5)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in ("dealt out", "in DRAM", "one memory")]
)
def test_clusters_with_ragged_tiles_train_to_the_bits_of_the_emulator(kind: str, tmp_path: Path) -> None:
    graph, dram, cycles, layers = with_ragged_tiles(seven_net()), DramUse(), CYCLES, ["conv1", "conv2"]
    placed = dict.fromkeys(graph.by_name, DEVICES[0])
    if kind == "dealt out":
        placed |= {
            node.name: DEVICES[index % 2] for index, node in enumerate(graph.nodes) if not node.layer.pinned_to_host
        }
    elif kind == "in DRAM":
        outside = ("conv2", "conv2.error", "conv2.gradient", "conv2.w.update")
        graph, cycles, layers = move_memories(graph, dict.fromkeys(outside, Home.DRAM)), 400, ["conv2"]
        dram = DramUse(format=AxiFormat(data_bits=128, address_bits=20))
    else:
        graph = share_weights(graph, ("conv2.error",))
        placed = {node.name: DEVICES[0] for node in graph.nodes}
    by_name = fold_graph(graph, cycles).by_name
    for name in (f"{layer}{role}" for layer in layers for role in ("", ".gradient", ".w.update")):
        layer = by_name[name].layer
        assert any(port.padding for port in (*layer.sinks, *layer.sources)), name
    library = ModuleLibrary(cache_folder() / "modules")
    design = design_cluster(graph, placed, DEVICES, cycles, library, word_bits=64, dram=dram)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(3)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=2)
    found = simulate_design(
        design, library, feeds, tmp_path, Simulator.VERILATOR, network, 64, 2, Silent(), optimise=False
    )
    assert found.mismatches == ()
    assert len(found.losses) == 3 * BATCH


def test_a_plan_with_ragged_tiles_holds_and_is_above_the_bound_of_all_foldings() -> None:
    graph, cluster, options = with_ragged_tiles(seven_net()), small_cluster(2, 40), SearchOptions(seed=1)
    estimator: Any = QuickEstimator()
    planned = Planner(graph, cluster, estimator, options, {}, Silent()).run().plan
    folded = folded_graph(graph, planned)
    assert any(port.padding for node in folded.nodes for port in node.layer.sinks)
    # they are cheaper than they would be
    usual: Any = QuickEstimator()
    without = Planner(seven_net(), cluster, usual, options, {}, Silent()).run().plan
    assert planned.cycles_per_frame < without.cycles_per_frame
    assert planned.any_bound_cycles_per_frame <= planned.cycles_per_frame
    assert planned.any_bound_cycles_per_frame <= without.any_bound_cycles_per_frame


def test_links_are_priced_with_empty_places() -> None:
    graph = with_ragged_tiles(seven_net())
    prices, folded = Prices(graph, small_cluster(2, 40), Estimator(), {}, Silent()), fold_graph(graph, CYCLES)
    word, padded = prices.cluster.link_word_bits, 0
    for link, least, (*_, sink) in zip(prices.links(folded=folded), prices.links(), folded.streams, strict=True):
        padded += sink.padding > 0
        assert link.bits_per_frame >= least.bits_per_frame, link
        frames = BATCH if sink.tensor.kind.per_batch else 1
        assert link.bits_per_frame == Fraction(-(-sink.elements // (word // sink.tensor.fixed.width)) * word, frames)
    assert padded == 6


def test_circuits_of_ragged_tiles_cost_at_least_what_their_folding_is_said_to() -> None:
    graph = with_ragged_tiles(seven_net())
    foldings = Foldings(Prices(graph, small_cluster(2, 40), Estimator(), {}, Silent()))
    level = foldings.prices.level(CYCLES)
    for item in foldings.instance.items:
        for part, menu in level.offers[item.name].items():
            for built in menu:
                assert any(
                    least.cycles_per_frame <= built.cycles_per_frame
                    and all(a <= b for a, b in zip(least.costs, built.costs, strict=True))
                    for least in item.configurations[part]
                ), f"{item.name} {built.label}: {built.costs} at {built.cycles_per_frame} cycles"


def test_an_unknown_way_of_ragged_tiles_is_refused() -> None:
    with pytest.raises(DagtrainError, match="--ragged-tiles always: no such way; one of auto, never"):
        levers_wanted(PlaceOptions(Path("cluster.toml"), ragged_tiles="always"))


def test_the_command_leaves_a_graph_that_later_steps_fold_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr(walls_step, "Estimator", QuickEstimator)
    case = new_case(tmp_path / "case").must("import")
    outcome = case.step("place", "--walls", "--ragged-tiles", "auto", "--json")
    assert outcome.code == 0, outcome.error
    walls, placed = json.loads(outcome.out)
    assert [row["lever"] for row in walls["levers"] if row["taken"]] == ["ragged tiles"]
    graph, folded = load_placed_graph(case.workspace), load_folded_graph(case.workspace)
    engines = [node.layer for node in graph.nodes if isinstance(node.layer, ENGINES)]
    assert engines
    assert all(engine.ragged for engine in engines)
    paces = {item["item"]: item["cycles_per_frame"] for item in placed["items"]}
    assert paces == {node.name: node.layer.cycles_per_frame for node in folded.nodes}
    wrong = case.step("place", "--ragged-tiles", "always")
    assert wrong.code != 0
    assert "--ragged-tiles always: no such way; one of auto, never" in wrong.error
