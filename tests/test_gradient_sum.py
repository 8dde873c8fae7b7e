"""Gradients have the same bits whoever sums which frames of a batch, and wherever the sums are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hdl.errors import ShapeError
from hdl.fixed import Fixed, IntArray
from hdl.layers.base import Layer
from hdl.layers.capabilities import RoundedApart, of_copy, rounded_apart
from hdl.layers.conv.dense import ConvGradient
from hdl.layers.registry import load_layers
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.recipe import Recipe
from hdl.tensor import Port
from tests.layer_support import all_examples, frames_a_batch

BATCHES = 2


def summing() -> dict[str, Layer]:
    """Examples of all engines that sum gradients over a batch and round them themselves."""
    found = all_examples(load_layers().values())
    return {
        name: layer
        for name, layer in found.items()
        if isinstance(layer, RoundedApart) and not layer.exact and layer.roundings
    }


SUMMING = summing()


def started(layer: Layer) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return layer.start(
        {port.name: rng.normal(size=port.tensor.shape) for port in (*layer.sinks, *layer.held_parameters)}
    )


def dealt(layer: Layer, inputs: dict[str, IntArray], copy: int, copies: int) -> dict[str, IntArray]:
    """What one of several copies gets: every so many frames, all weights."""
    return {
        port.name: inputs[port.name] if port.tensor.kind.per_batch else inputs[port.name][copy::copies]
        for port in layer.sinks
    }


def _formats(ports: Sequence[Port]) -> dict[str, Any]:
    """Of the sums of several engines."""
    formats = [port.tensor.fixed for port in ports]
    widths = tuple(fixed.width for fixed in formats)
    assert len({fixed.fraction_bits for fixed in formats}) == 1, "all copies cut as much"
    return {
        "s_fixed": max(formats, key=lambda fixed: fixed.width),
        "widths": widths if len({*widths}) > 1 else (),
    }


def gradients_of_copies(layer: Layer, copies: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Gradients of one engine that rounds, and of copies whose sums are rounded apart, batch by batch."""
    assert isinstance(layer, RoundedApart)
    rng = np.random.default_rng(seed)
    engines = [rounded_apart(of_copy(layer, copy, copies)) for copy in range(copies)]
    sums = {
        source: replace(one, copies=copies, **_formats([engine.port(source) for engine in engines]))  # type: ignore[type-var]
        for source, one in layer.roundings.items()
    }
    whole, parts = started(layer), [started(engine) for engine in engines]
    behind = {source: one.start({}) for source, one in sums.items()}
    together, apart = [], []
    for _ in range(BATCHES):
        inputs = {
            port.name: layer.sample(port.name, rng, 1)[0]
            if port.tensor.kind.per_batch
            else layer.sample(port.name, rng, frames_a_batch(layer))
            for port in layer.sinks
        }
        made = layer.golden(whole, inputs)
        sent = [
            engine.golden(part, dealt(layer, inputs, copy, copies))
            for copy, (engine, part) in enumerate(zip(engines, parts, strict=True))
        ]
        together += [made[source] for source in sums]
        apart += [
            one.golden(behind[source], {f"s{copy}": sent[copy][source] for copy in range(copies)})["g"]
            for source, one in sums.items()
        ]
    return together, apart


@pytest.mark.parametrize("name", sorted(SUMMING))
def test_sums_of_copies_that_are_rounded_apart_give_the_bits_of_one_engine(name: str) -> None:
    layer = SUMMING[name]
    for copies in range(1, min(3, frames_a_batch(layer)) + 1):
        together, apart = gradients_of_copies(layer, copies, seed=copies)
        assert all(map(np.array_equal, together, apart)), f"{copies} copies"


@pytest.mark.parametrize("name", sorted(SUMMING))
def test_exact_sums_are_what_the_rounding_takes(name: str) -> None:
    layer = SUMMING[name]
    # of one copy that gets all frames
    exact = rounded_apart(of_copy(layer, 0, 1))
    assert isinstance(layer, RoundedApart)
    for source, one in layer.roundings.items():
        sent, taken, given = exact.port(source), one.port("s0"), one.port("g")
        assert (sent.tensor, sent.lanes, sent.padding) == (taken.tensor, taken.lanes, taken.padding)
        assert given == replace(layer.port(source), name="g")
        assert exact.stream_order(source) is one.stream_order("s0") is None or np.array_equal(
            exact.stream_order(source), one.stream_order("s0")
        )


def test_sums_that_wrap_are_rounded_where_they_are_made_but_for_those_of_copies() -> None:
    wrapping = next(layer for layer in ConvGradient.examples() if layer.wraps and not layer.exact)
    with pytest.raises(ShapeError, match="bits wrap"):
        rounded_apart(wrapping)
    rounded_apart(of_copy(wrapping, 0, 2))


def test_copies_cut_as_much_of_products_as_one_engine_whatever_the_width_of_sums() -> None:
    layer = ConvGradient(height=4, width=3, channels=4, filters=2, kernel=(1, 1), recipe=Recipe(batch=8))
    wrapped = 0
    for width in range(layer.least_sum_width, layer.exact_sum_bits + 2):
        chosen = replace(layer, sum_width=width)
        copies = [rounded_apart(of_copy(chosen, copy, 3)) for copy in range(3)]
        assert {copy.cut for copy in copies} == {chosen.cut}
        assert {copy.wraps for copy in copies} == {chosen.wraps}
        assert not chosen.wraps or {copy.sum_bits for copy in copies} == {width}
        wrapped += chosen.wraps
    assert wrapped > 8


def test_sums_that_wrap_on_the_way_are_right_in_the_end_and_those_that_do_not_fit_are_counted() -> None:
    one = GradientSum(shape=(3,), copies=3, s_fixed=Fixed(8, 0), g_fixed=Fixed(8, 0), wraps=True)
    state = one.start({})
    sums = {"s0": np.array([100, -100, 127]), "s1": np.array([100, -100, 1]), "s2": np.array([-110, 80, 0])}
    assert one.golden(state, sums)["g"].tolist() == [90, -120, -128]
    assert state["wrapped"] == 1
    with pytest.raises(ShapeError, match="sums of 8, 7 bits that wrap; give all the same bits"):
        GradientSum(shape=(3,), copies=2, s_fixed=Fixed(8, 0), widths=(8, 7), wraps=True)


def test_impossible_sums_are_named() -> None:
    with pytest.raises(ShapeError, match="nothing to sum of 0 engines"):
        GradientSum(shape=(3,), copies=0)
    with pytest.raises(ShapeError, match="4 sums of 60 bits take 63 bits, more than 62"):
        GradientSum(shape=(3,), copies=4, s_fixed=Fixed(60, 20))
