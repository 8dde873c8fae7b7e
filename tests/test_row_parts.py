"""Parts of a layer by rows of its map make the bits that the layer makes of those rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hdl.errors import FoldingError, ShapeError
from hdl.fixed import IntArray
from hdl.layers.base import Layer
from hdl.layers.capabilities import RoundedApart, of_copy, rounded_apart
from hdl.layers.conv.dense import ConvGradient
from hdl.layers.conv.roles import GradientEngine
from hdl.layers.registry import load_layers
from hdl.layers.shape import RowPart
from hdl.layers.wiring.row_deal import RowDeal
from hdl.layers.wiring.row_gather import RowGather
from hdl.recipe import Recipe
from hdl.tensor import Kind
from tests.layer_support import all_examples, frames_a_batch

BATCHES, SEED = 2, 7
# of a map, where it has so many rows
COUNTS = (2, 3)


def in_parts(layer: Layer, count: int) -> list[RowPart] | None:
    """As equal as can be; None where the layer has none such."""
    bounds = [layer.rows_made * part // count for part in range(count + 1)]
    try:
        found = [layer.row_part(bounds[part], bounds[part + 1]) for part in range(count)]
    except (ShapeError, FoldingError):
        return None
    return [part for part in found if part is not None] or None


def dealt() -> dict[str, tuple[Layer, list[RowPart]]]:
    """Examples whose rows can be dealt out."""
    found = {}
    for name, layer in all_examples(load_layers().values()).items():
        if layer.works_per_batch or (isinstance(layer, RoundedApart) and layer.exact):
            continue
        for count in COUNTS:
            parts = in_parts(layer, count) if layer.rows_made >= count else None
            if parts is not None:
                found[f"{name}/{count}"] = (layer, parts)
    return found


DEALT = dealt()


@pytest.mark.parametrize("name", sorted(DEALT))
def test_parts_make_the_bits_of_the_whole(name: str) -> None:
    whole, parts = DEALT[name]
    rng, layers = np.random.default_rng(SEED), [rounded_apart(part.layer) for part in parts]
    ports = (*whole.sinks, *whole.held_parameters)
    initial = {port.name: rng.normal(size=port.tensor.shape) for port in ports}
    state, *states = (layer.start(initial) for layer in (whole, *layers))
    sums = whole.roundings if isinstance(whole, RoundedApart) else {}
    behind = {source: replace(one, copies=len(parts)) for source, one in sums.items()}  # type: ignore[type-var]
    counting = {source: one.start({}) for source, one in behind.items()}
    for _ in range(BATCHES):
        inputs = {
            port.name: whole.sample(port.name, rng, 1 if port.tensor.kind.per_batch else frames_a_batch(whole))
            for port in whole.sinks
        }
        inputs = {n: codes[0] if whole.port(n).tensor.kind.per_batch else codes for n, codes in inputs.items()}
        wanted = whole.golden(state, inputs)
        made: list[dict[str, IntArray]] = []
        for part, layer, own in zip(parts, layers, states, strict=True):
            given = {n: codes[:, slice(*part.needs[n])] if n in part.needs else codes for n, codes in inputs.items()}
            assert {n: codes.shape[1:] for n, codes in given.items() if n in part.needs} == {
                n: layer.port(n).tensor.shape for n in part.needs
            }
            made.append(layer.golden(own, given))
        for port in whole.sources:
            if port.tensor.kind is Kind.GRADIENT:
                several = {f"s{index}": one[port.name] for index, one in enumerate(made)}
                found = behind[port.name].golden(counting[port.name], several)["g"]
            else:
                found = np.concatenate([one[port.name] for one in made], axis=1)
            assert np.array_equal(found, wanted[port.name]), f"{port.name}, seed {SEED}"


def test_convolutions_pools_and_activations_have_parts_by_rows() -> None:
    kinds = {name.partition("-")[0] for name in DEALT}
    for kind in ("Conv", "ConvError", "ConvGradient", "DepthwiseConv", "DepthwiseConvError", "DepthwiseConvGradient",
                 "MaxPool", "MaxPoolError", "AveragePool", "AveragePoolError", "Relu", "ReluError", "Bias",
                 "BiasGradient", "Add", "Narrow"):  # fmt: skip
        assert kind in kinds, kind
    # sums of all that products make, of few bits of each, and of so few that they wrap
    gradients = [(whole, parts) for whole, parts in DEALT.values() if isinstance(whole, GradientEngine)]
    for some in (lambda engine: not engine.cut, lambda engine: engine.cut > 0, lambda engine: engine.wraps):
        assert any(some(whole) for whole, _ in gradients)
    # bits that depend on the place in the map, or on all of it
    assert not kinds & {"Dropout", "DropoutError", "GlobalAveragePool", "OnlineNorm", "SoftmaxCrossEntropy"}


def test_parts_cut_as_much_of_products_as_the_whole_whatever_the_width_of_sums() -> None:
    layer = ConvGradient(height=7, width=3, channels=4, filters=2, kernel=(1, 1), recipe=Recipe(batch=8))
    wrapped = apart = 0
    for width in range(layer.least_sum_width, layer.exact_sum_bits + 2):
        whole = replace(layer, sum_width=width)
        parts = [rounded_apart(part.layer) for part in in_parts(whole, 3) or ()]
        # of copies too, and of parts of parts
        parts += [of_copy(part, 1, 2) for part in parts]
        parts += [rounded_apart(part.layer) for part in in_parts(parts[2], 2) or ()]
        assert len(parts) == 8
        assert {part.cut for part in parts} == {whole.cut}
        assert {part.wraps for part in parts} == {whole.wraps}
        assert not whole.wraps or {part.sum_bits for part in parts} == {width}
        wrapped += whole.wraps
        # a layer of so many rows would add all of its products
        apart += not replace(parts[0], summed_rows=0, exact=False).cut and whole.cut > 0
    assert wrapped > 8
    assert apart
    # where nothing is cut, a part is the same circuit whoever has the other rows
    first = (in_parts(layer, 3) or ())[0].layer
    assert isinstance(first, ConvGradient)
    assert first.built == replace(first, summed_rows=0).built
    few = replace(first, sum_width=layer.least_sum_width)
    assert few.built != replace(few, summed_rows=0).built


def test_rows_that_are_none_of_a_map_are_refused() -> None:
    shape = {"height": 4, "width": 1, "channels": 1}
    for starts, ends in (((), ()), ((0,), (5,)), ((0, 2), (2,)), ((2, 0), (3, 4)), ((0, 1), (4, 3)), ((1,), (1,))):
        with pytest.raises(ShapeError, match="do not ascend within 4 rows"):
            RowDeal(**shape, starts=starts, ends=ends)
    for rows in ((), (4, 0), (2, 3)):
        with pytest.raises(ShapeError, match="are no map of 4 rows"):
            RowGather(**shape, rows=rows)
    with pytest.raises(ShapeError, match="there is no part 2 among 2"):
        RowGather(**shape, rows=(2, 2), in_step=2)
    for layer in (RowDeal, RowGather):
        with pytest.raises(ShapeError, match="comes once a batch"):
            layer(**shape, **({"rows": (4,)} if layer is RowGather else {}), kind=Kind.WEIGHT)
