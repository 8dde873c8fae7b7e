"""Gradients have the same bits whoever sums which frames of a batch, and wherever the sums are rounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hdl.errors import ShapeError
from hdl.fixed import Fixed, IntArray
from hdl.layers.base import Layer
from hdl.layers.capabilities import RoundedApart, rounded_apart
from hdl.layers.conv.dense import ConvGradient
from hdl.layers.registry import load_layers
from hdl.layers.wiring.gradient_sum import GradientSum
from tests.layer_support import all_examples, frames_a_batch

BATCHES = 2


def summing() -> dict[str, Layer]:
    """Examples of all engines that sum gradients over a batch and round them themselves."""
    found = all_examples(load_layers().values())
    return {
        name: layer
        for name, layer in found.items()
        if isinstance(layer, RoundedApart)
        and not layer.exact
        and layer.roundings
        and not getattr(layer, "wraps", False)
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


def gradients_of_copies(layer: Layer, copies: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Gradients of one engine that rounds, and of copies whose sums are rounded apart, batch by batch."""
    assert isinstance(layer, RoundedApart)
    rng, exact = np.random.default_rng(seed), rounded_apart(layer)
    sums = {source: replace(one, copies=copies) for source, one in layer.roundings.items()}  # type: ignore[type-var]
    whole, parts = started(layer), [started(exact) for _ in range(copies)]
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
        sent = [exact.golden(part, dealt(layer, inputs, copy, copies)) for copy, part in enumerate(parts)]
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
    layer, exact = SUMMING[name], rounded_apart(SUMMING[name])
    assert isinstance(layer, RoundedApart)
    for source, one in layer.roundings.items():
        sent, taken, given = exact.port(source), one.port("s0"), one.port("g")
        assert (sent.tensor, sent.lanes, sent.padding) == (taken.tensor, taken.lanes, taken.padding)
        assert given == replace(layer.port(source), name="g")
        assert exact.stream_order(source) is one.stream_order("s0") is None or np.array_equal(
            exact.stream_order(source), one.stream_order("s0")
        )


def test_sums_that_wrap_are_rounded_where_they_are_made() -> None:
    wrapping = next(layer for layer in ConvGradient.examples() if layer.wraps)
    with pytest.raises(ShapeError, match="bits wrap"):
        rounded_apart(wrapping)


def test_impossible_sums_are_named() -> None:
    with pytest.raises(ShapeError, match="nothing to sum of 0 engines"):
        GradientSum(shape=(3,), copies=0)
    with pytest.raises(ShapeError, match="4 sums of 60 bits take 63 bits, more than 62"):
        GradientSum(shape=(3,), copies=4, s_fixed=Fixed(60, 20))
