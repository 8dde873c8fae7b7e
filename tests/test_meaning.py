"""What stands behind the golden models: float references, high-precision tables, samples in which a mutant shows."""

from __future__ import annotations

from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hdl.engine.loss.numbers import EXPONENT_BITS, HALF_BITS, LOG_BITS, TABLE_BITS, SoftmaxNumbers
from hdl.fixed import Fixed, IntArray
from hdl.layers.base import Layer, edge_codes
from hdl.layers.pointwise.relu import Relu
from hdl.layers.pool.global_average_pool import RECIPROCAL_BITS, GlobalAveragePool
from hdl.layers.registry import load_layers
from hdl.tensor import Kind, Port
from tests.layer_support import all_examples, frames_a_batch, reads_frames

BATCHES = 3
# of the outputs of an example, at least so many must lie inside their format, or the comparison says little
INSIDE = 0.2
EXAMPLES = all_examples(load_layers().values())


def moderate(port: Port, codes: IntArray) -> IntArray:
    """Values at which nothing saturates within a layer; labels, masks and indices as they are."""
    fixed = port.tensor.fixed
    return codes >> (5 if fixed.signed else 2) if fixed.width > 8 else codes


def distances(layer: Layer, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """(largest distance between golden model and float reference, share inside the format) by source."""
    rng = np.random.default_rng(seed)
    delayed = {port.name for port in layer.sinks if port.tensor.kind is Kind.WEIGHT} if reads_frames(layer) else set()
    versions = {name: layer.sample(name, rng, BATCHES) for name in sorted(delayed)}
    initial = {name: layer.port(name).tensor.fixed.decode(codes[0]) for name, codes in versions.items()}
    for port in layer.held_parameters:
        initial[port.name] = port.tensor.fixed.decode(moderate(port, layer.sample(port.name, rng, 1)[0]))
    for port in layer.sources:
        if port.tensor.kind is Kind.WEIGHT and not any(sink.tensor.kind is Kind.WEIGHT for sink in layer.sinks):
            fixed = port.tensor.fixed
            initial[port.name] = fixed.decode(
                moderate(port, rng.integers(fixed.low, fixed.high + 1, port.tensor.shape))
            )
    exact, reference = layer.start(initial), layer.start_reference(initial)
    worst: dict[str, list[float]] = {}
    inside: dict[str, list[float]] = {}
    for batch in range(BATCHES):
        inputs: dict[str, IntArray] = {}
        for port in layer.sinks:
            if port.name in delayed:
                inputs[port.name] = versions[port.name][batch]
            elif port.tensor.kind.per_batch:
                inputs[port.name] = moderate(port, layer.sample(port.name, rng, 1)[0])
            else:
                frames = layer.frames_at(port.name, frames_a_batch(layer))
                inputs[port.name] = moderate(port, layer.sample(port.name, rng, frames))
        values = {name: layer.port(name).tensor.fixed.decode(codes) for name, codes in inputs.items()}
        made, wanted = layer.golden(exact, inputs), layer.reference(reference, values)
        for name, codes in made.items():
            fixed = layer.port(name).tensor.fixed
            worst.setdefault(name, []).append(float(layer.distance(name, codes, wanted[name]).max()))
            within = (codes > fixed.low) & (codes < fixed.high) if fixed.width > 1 else np.ones(1)
            inside.setdefault(name, []).append(float(within.mean()))
    return {n: max(found) for n, found in worst.items()}, {n: float(np.mean(found)) for n, found in inside.items()}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.parametrize("seed", [1, 2])
def test_the_golden_model_is_as_close_to_the_float_reference_as_the_layer_says(name: str, seed: int) -> None:
    layer = EXAMPLES[name]
    worst, inside = distances(layer, seed)
    for port, steps in worst.items():
        assert steps <= layer.closeness[port] + 1e-6, f"{name}.{port}, seed {seed}: {steps} steps away"
        assert inside[port] > INSIDE, f"{name}.{port}, seed {seed}: only {inside[port]:.0%} inside the format"


def test_a_rounding_that_cuts_off_is_farther_from_the_reference_than_the_layer_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut(codes: IntArray, fraction_bits: int, target: Fixed) -> IntArray:
        return target.saturate(codes >> max(fraction_bits - target.fraction_bits, 0))

    monkeypatch.setattr("hdl.layers.pool.global_average_pool.requantise", cut)
    layer = GlobalAveragePool(height=3, width=3, channels=4)
    assert distances(layer, 1)[0]["y"] > layer.closeness["y"]


# ---- tables that golden model and circuit share


def test_tables_of_the_softmax_are_the_rounded_values_of_high_precision() -> None:
    getcontext().prec = 60
    numbers, one = SoftmaxNumbers(Fixed(16, 8), 10), Decimal(2**TABLE_BITS)

    def rounded(value: Decimal) -> int:
        return int((value + Decimal("0.5")).to_integral_value("ROUND_FLOOR"))

    for index, entry in enumerate(numbers.coarse):
        assert entry == rounded(one * Decimal(2) ** -(Decimal(index) / 2**HALF_BITS)), index
    for index, entry in enumerate(numbers.fine):
        assert entry == rounded(one * Decimal(2) ** -(Decimal(index) / 2**EXPONENT_BITS)), index
    for index, entry in enumerate(numbers.log_of_exponent):
        assert entry == rounded(index * Decimal(2).ln() * 2**16), index
    for index, entry in enumerate(numbers.log_of_mantissa):
        middle = 1 + (Decimal(index) + Decimal("0.5")) / 2**LOG_BITS
        assert entry == (rounded(middle.ln() * 2**16) if index else 0), index
    # log2(e), sixteen fraction bits: 1.4426950408889634 (OEIS A007525)
    assert numbers.scale == rounded(Decimal("1.44269504088896340735992468100189") * 2**16)


@pytest.mark.parametrize("pixels", [1, 2, 3, 7, 16, 49, 50, 64, 196, 12_544])
def test_the_reciprocal_of_an_average_is_the_closest_of_its_bits(pixels: int) -> None:
    factor, shift = GlobalAveragePool(height=1, width=pixels, channels=1).reciprocal
    error = abs(Fraction(factor, 2**shift) - Fraction(1, pixels))
    assert error <= Fraction(1, 2 ** (shift + 1))
    assert factor == 1 or factor.bit_length() >= RECIPROCAL_BITS


# ---- samples


def test_samples_hold_zero_ones_both_ends_and_halves() -> None:
    layer = Relu(height=16, width=16, channels=4, ceiling=6.0)
    codes = layer.sample("x", np.random.default_rng(3), 4)
    fixed = layer.x_fixed
    assert set(edge_codes(fixed)) <= set(codes.ravel().tolist())
    assert {0, 1, -1, fixed.low, fixed.high, 1 << 7, -(1 << 7), layer.ceiling_code} <= set(edge_codes(fixed)) | {
        layer.ceiling_code
    }
    for value in (0, fixed.low, fixed.high):
        assert np.count_nonzero(codes == value) >= 10


@pytest.mark.parametrize("name", ["Relu-0", "Relu-1"])
def test_a_mask_that_counts_zero_as_positive_is_seen_by_the_conformance_samples(name: str) -> None:
    layer: Any = EXAMPLES[name]
    codes = layer.sample("x", np.random.default_rng(1), BATCHES * 3)
    wrong = ((codes >= 0) & (codes < layer.ceiling_code)).astype(np.int64)
    assert (wrong != layer.golden({}, {"x": codes})["mask"]).any()


# ---- registration


def test_a_layer_that_inherits_its_ports_is_registered() -> None:
    class Inheriting(Relu):
        """Relu, word for word."""

    try:
        assert Inheriting in Layer.concrete()
        assert "Inheriting" not in load_layers()
    finally:
        # subclasses are known as long as they live
        del Inheriting


def test_abstract_layers_and_bases_are_not_registered() -> None:
    # and not those of modules into which a test has seeded a fault (tests/mutated.py)
    kinds = [kind for kind in Layer.concrete() if kind.__module__.startswith("hdl.layers.")]
    assert kinds
    assert not [kind.__name__ for kind in kinds if kind.__name__.startswith("_") or kind.__abstractmethods__]
    assert len({kind.__name__ for kind in kinds}) == len(kinds)
