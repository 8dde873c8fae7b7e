"""Engines whose pixels are of more kinds than a gate looks up: limits by row and by column give the same bits."""

from __future__ import annotations

import dataclasses

import pytest

from hdl.engine.window.walk import Axis, Walk
from hdl.layers.conv.dense import ConvError
from hdl.recipe import Recipe
from hdl.simulate import Backend
from hdl.tensor import Tile
from tests.layer_support import assert_equal_bits, design_of, make_case
from tests.suites import quick


@pytest.mark.parametrize("padding", quick(1, [4, 0]))
def test_pixels_of_many_phases_of_a_strided_engine_get_their_errors(padding: int) -> None:
    field = {"kernel": (9, 9), "stride": (9, 9), "padding": (padding,) * 4, "recipe": Recipe(batch=2)}
    layer = ConvError(height=18, width=18, channels=1, filters=1, tile=Tile(1, 1), **field)  # type: ignore[arg-type]
    assert layer.walk.many_phases
    case = make_case(layer, 2)
    assert_equal_bits(case, design_of(case), Backend.VERILATOR, seed=1)


def test_phases_without_taps_are_looked_up_in_one_table() -> None:
    axis = Axis(stored=2, outputs=18, kernel=9, stride=9, before=0, transposed=True)
    assert Walk(axis, axis).many_phases
    assert not Walk(axis, dataclasses.replace(axis, kernel=8)).many_phases
