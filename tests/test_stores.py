"""Stores of weights, sums and state in block memory, beyond the conformance suite: what they hold at the start,
versions under staleness, what nobody writes, and two ways to be wrong."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from myhdl import block

from hdl.errors import ShapeError
from hdl.layers.base import Layer
from hdl.layers.store import block_store
from hdl.layers.store.ring_store import RingStore
from hdl.layers.store.weight_store import WeightStore
from hdl.recipe import LoadedRecipe, Recipe
from hdl.signals import ClockReset
from hdl.simulate import Backend, run_streams
from hdl.streams import counter
from hdl.tensor import Kind, Tile
from tests.layer_support import Case, assert_equal_bits, design_of

# versions of weights that come, beyond the image
VERSIONS = 4
SHAPE = {"shape": (3, 4, 1, 1), "tile": Tile(2, 2), "w_lanes": 2}


def random_beats(layer: Any, count: int, seed: int) -> list[list[int]]:
    """So many tensors."""
    rng = random.Random(seed)
    port = layer.port("y")
    return [[rng.randrange(1 << port.payload_bits) for _ in range(port.beats)] for _ in range(count)]


def case(layer: Layer, sink: str, came: Sequence[Sequence[int]], held: Sequence[int], left: list[int]) -> Case:
    assert layer.is_store
    images = layer.holding(held)  # type: ignore[attr-defined]
    return Case(layer, {sink: list(itertools.chain(*came))}, {"y": left}, images, {})


def replay_case(batch: int, staleness: int, seed: int, loaded: bool = False) -> Case:
    """All frames that can be given, by the recipe alone; where state is loaded the image is never read."""
    plain = Recipe(batch=batch, staleness=staleness)
    recipe = LoadedRecipe.of(plain)
    layer = WeightStore(**SHAPE, recipe=recipe if loaded else plain)  # type: ignore[arg-type]
    image, *versions = random_beats(layer, 1 + VERSIONS, seed)
    version = recipe.loaded_version if loaded else plain.version
    given = versions if loaded else [image, *versions]
    frames = itertools.takewhile(lambda frame: version(frame) < len(given), itertools.count())
    return case(layer, "w", versions, image, [beat for frame in frames for beat in given[version(frame)]])


def ring_case(capacity: int, preload: int, seed: int, tensors: int = 6, loaded: bool = False) -> Case:
    """What stands there at the start, and then what comes; where state is loaded that alone."""
    recipe = LoadedRecipe() if loaded else Recipe()
    layer = RingStore(**SHAPE, kind=Kind.STATE, capacity=capacity, preload=preload, recipe=recipe)  # type: ignore[arg-type]
    beats = random_beats(layer, preload + tensors, seed)
    held = list(itertools.chain(*beats[:preload]))
    return case(layer, "x", beats[preload:], held, list(itertools.chain(*beats[preload * loaded :])))


REPLAYS = [(1, 0), (1, 1), (3, 0), (3, 2), (4, 4)]
RINGS = [(1, 0), (1, 1), (3, 2)]


@pytest.mark.parametrize(("batch", "staleness"), REPLAYS)
@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("loaded", [False, True], ids=["", "loaded"])
def test_every_frame_gets_the_weights_of_its_version(batch: int, staleness: int, stall: float, loaded: bool) -> None:
    found = replay_case(batch, staleness, 51, loaded)
    assert_equal_bits(found, design_of(found), Backend.MYHDL, 52, stall)


@pytest.mark.parametrize("loaded", [False, True], ids=["", "loaded"])
@pytest.mark.parametrize("backend", [Backend.ICARUS, Backend.VERILATOR])
def test_the_verilog_of_a_replay_behaves_alike(backend: Backend, loaded: bool) -> None:
    found = replay_case(3, 2, 53, loaded)
    assert_equal_bits(found, design_of(found), backend, 54)


@pytest.mark.parametrize(("capacity", "preload"), RINGS)
@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_a_ring_first_yields_what_stands_there_then_what_was_written_back(
    capacity: int, preload: int, stall: float
) -> None:
    found = ring_case(capacity, preload, seed=55)
    assert_equal_bits(found, design_of(found), Backend.MYHDL, 56, stall)


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_a_ring_whose_state_is_loaded_yields_nothing_else(stall: float) -> None:
    found = ring_case(1, 1, seed=64, loaded=True)
    assert_equal_bits(found, design_of(found), Backend.MYHDL, 65, stall)


def test_the_verilog_of_a_ring_behaves_alike() -> None:
    found = ring_case(1, 1, seed=57)
    assert_equal_bits(found, design_of(found), Backend.VERILATOR, 58)


@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.VERILATOR])
def test_frozen_weights_come_again_and_again(backend: Backend) -> None:
    layer = WeightStore(**SHAPE, frozen=True)  # type: ignore[arg-type]
    (held,) = random_beats(layer, 1, 59)
    found = Case(layer, {}, {"y": 5 * held}, layer.holding(held), {})
    design = design_of(found)
    run = run_streams(
        backend, design, {}, {design.names["y"]: len(5 * held)}, seed=60, stall_probability=0.3, drain_cycles=0
    )
    assert run.outputs[design.names["y"]][: len(5 * held)] == 5 * held
    assert (layer.sinks, layer.store.tensors) == ((), 1)


def test_a_beat_a_cycle_goes_in_and_out() -> None:
    found = replay_case(3, 0, seed=61)
    design = design_of(found)
    inputs = {design.names["w"]: found.inputs["w"]}
    run = run_streams(
        Backend.MYHDL, design, inputs, {design.names["y"]: len(found.outputs["y"])}, seed=1, stall_probability=0.0
    )
    fires = run.fire_cycles[design.names["y"]]
    assert fires[-1] - fires[0] == len(fires) - 1


def test_a_version_that_is_swapped_early_is_seen() -> None:
    found = replay_case(3, 2, seed=62)
    early = dataclasses.replace(found.layer, recipe=Recipe(batch=3, staleness=1))  # type: ignore[call-arg]
    wrong = dataclasses.replace(found, layer=early, outputs={"y": found.outputs["y"][: -early.port("y").beats]})
    with pytest.raises(AssertionError, match="beats of y differ"):
        assert_equal_bits(wrong, design_of(wrong), Backend.MYHDL, 63, 0.0)


@block
def one_further(domain: ClockReset, step: Any, place: Any, *, count: int, start: int = 0) -> Any:
    """A `counter` that is one ahead."""
    return counter(domain, step, place, count=count, start=(start + 1) % count)


def test_an_order_that_is_off_by_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_store, "counter", one_further)
    found = ring_case(1, 1, seed=64)
    with pytest.raises(AssertionError, match="beats of y differ"):
        assert_equal_bits(found, design_of(found), Backend.MYHDL, 65, 0.0)


def test_a_ring_refuses_what_it_can_not_keep() -> None:
    with pytest.raises(ShapeError, match="room for 1 tensors can't start with 2"):
        RingStore(**SHAPE, capacity=1, preload=2)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="can't keep what is activation; it keeps sums or state"):
        RingStore(**SHAPE, kind=Kind.ACTIVATION)  # type: ignore[arg-type]
