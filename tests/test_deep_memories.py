"""Memories of several blocks: a read goes through a register of its own behind the multiplexer, and no frame is slower.

Blocks of this test have one word, so that every memory has several of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hdl.costs.resources import count
from hdl.layers.base import Layer
from hdl.layers.conv.dense import ConvGradient
from hdl.layers.conv.depthwise import DepthwiseConvGradient
from hdl.layers.pool.global_average_pool import GlobalAveragePoolError
from hdl.memory import BLOCK_WORDS
from hdl.parts.catalogue import PARTS
from hdl.recipe import Recipe
from hdl.simulate import Backend, Run
from hdl.tensor import Tile
from tests.layer_support import (
    BATCHES,
    Case,
    assert_equal_bits,
    design_of,
    elaborate,
    frame_ends,
    frames_a_batch,
    make_case,
    simulate,
)
from tests.passage_support import said_and_measured
from tests.suites import quick

MAP: dict[str, Any] = {"height": 4, "width": 5, "kernel": (3, 3), "padding": (1, 1, 1, 1), "recipe": Recipe(batch=2)}
CONV: dict[str, Any] = {**MAP, "channels": 2, "filters": 4, "tile": Tile(2, 1), "w_lanes": 1}
# layers whose memory is read as a stream, and bits of its word; those that pass over the map are in test_conv.py
LAYERS: dict[str, tuple[Layer, int]] = {
    "sums of a batch": (gradient := ConvGradient(**CONV), 2 * gradient.sum_bits),
    "sums of a batch, a beat a tile": (dataclasses.replace(gradient, w_lanes=2), 2 * gradient.sum_bits),
    "sums of channels": (
        depthwise := DepthwiseConvGradient(**MAP, channels=4, tile=Tile(2, 1, 3), w_lanes=3),
        6 * depthwise.sum_bits,
    ),
    "error of a pixel": (GlobalAveragePoolError(height=3, width=5, channels=6, lanes=2), 2 * 16),
}


@pytest.fixture
def one_word_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdl.memory.BLOCK_WORDS", 1)


def unstalled(case: Case) -> Run:
    return simulate(case, design_of(case), Backend.VERILATOR, stall=0.0, seed=1)


@pytest.mark.usefixtures("one_word_a_block")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("backend", [Backend.MYHDL, Backend.VERILATOR])
def test_circuit_equals_the_golden_model_under_random_stalls(name: str, backend: Backend) -> None:
    case = make_case(LAYERS[name][0])
    assert_equal_bits(case, design_of(case), backend, seed=5)


@pytest.mark.parametrize("name", quick(2, LAYERS))
def test_what_is_read_goes_through_a_register_and_comes_a_cycle_later(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, bits = LAYERS[name]
    case, source = make_case(layer), layer.sources[0].name
    flat, at_once = count(elaborate(layer)[0]), unstalled(case).fire_cycles[source][0]
    monkeypatch.setattr("hdl.memory.BLOCK_WORDS", 1)
    deep, later = count(elaborate(layer)[0]), unstalled(case).fire_cycles[source][0]
    # with the bit that says that it holds a word
    assert deep.registers - flat.registers >= bits + 1
    assert deep.memories == flat.memories
    assert later == at_once + 1


@pytest.mark.usefixtures("one_word_a_block")
@pytest.mark.parametrize("name", quick(2, LAYERS))
def test_frames_take_no_longer_and_results_come_when_said(name: str) -> None:
    layer = LAYERS[name][0]
    if hasattr(layer, "recipe"):
        layer = dataclasses.replace(layer, recipe=Recipe(batch=6))  # type: ignore[call-arg]
    case, frames = make_case(layer), frames_a_batch(layer)
    run = unstalled(case)
    ports = [port for port in layer.sources if not port.tensor.kind.per_batch] or layer.sinks
    periods = [(frame_ends(run, port)[frames - 1] - frame_ends(run, port)[1]) / (frames - 2) for port in ports]
    assert max(periods) == layer.cycles_per_frame
    for source, first, last, *measured in said_and_measured(layer, run, BATCHES):
        assert (first, last) == pytest.approx(tuple(measured), abs=3), source


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("width", [1, 9, 10, 16, 37, 40, 72, 300])
def test_no_part_chooses_between_blocks_up_to_that_depth(part: Any, width: int) -> None:
    assert part.m20k_rows(BLOCK_WORDS, width) == 1
    assert part.m20k_rows(2 * BLOCK_WORDS + 1, width) > 1
