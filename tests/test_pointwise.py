"""Activations: their corners, how slopes are rounded, the way back, what the base refuses.

Bits, cycles and Verilog stand in tests/test_layer_conformance.py, foldings in tests/test_small_layers.py, what ONNX
means in tests/test_import_operators.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain
from math import floor
from pathlib import Path
from statistics import NormalDist
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from myhdl import intbv

from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer, edge_codes
from hdl.layers.pointwise import leaky_relu
from hdl.layers.pointwise.affine import Affine
from hdl.layers.pointwise.base import EXAMPLE_MAPS, LaneBlock, Mask, Pointwise, PointwiseError
from hdl.layers.pointwise.derivative_error import SLOPE, DerivativeError
from hdl.layers.pointwise.elu import Elu
from hdl.layers.pointwise.gelu import Approximate, Gelu
from hdl.layers.pointwise.hard_sigmoid import HardSigmoid
from hdl.layers.pointwise.hard_swish import HardSwish
from hdl.layers.pointwise.leaky_relu import LeakyRelu
from hdl.layers.pointwise.relu import Relu, ReluError
from hdl.layers.pointwise.sigmoid import DERIVATIVE, Sigmoid, SigmoidError
from hdl.layers.pointwise.silu import Silu
from hdl.layers.pointwise.slope_error import SlopeError
from hdl.layers.pointwise.tabled import Tabled
from hdl.layers.pointwise.tanh import Tanh
from hdl.signals import ClockReset
from hdl.simulate import Backend
from hdl.stream import Stream
from importers.onnx.handlers import elementwise
from tests.layer_support import DirectTape, assert_equal_bits, design_of, make_case

ONE: dict[str, int] = {"height": 1, "width": 1, "channels": 1}
HALF = Fraction(1, 2)


def every_edge(fixed: Fixed) -> IntArray:
    """Edge codes and a thousand random ones, one pixel a frame."""
    codes = [*edge_codes(fixed), *np.random.default_rng(5).integers(fixed.low, fixed.high + 1, 1000).tolist()]
    return np.array(codes, np.int64).reshape(-1, 1, 1, 1)


def value(fixed: Fixed, code: int) -> Fraction:
    return Fraction(code) / Fraction(2) ** fixed.fraction_bits


def code(fixed: Fixed, exact: Fraction) -> int:
    """Nearest code, ties towards plus infinity, saturated."""
    return min(max(floor(exact * Fraction(2) ** fixed.fraction_bits + HALF), fixed.low), fixed.high)


def slope(alpha: float) -> Fraction:
    """The nearest number of 16 significant bits."""
    scale = Fraction(2) ** 15
    while scale * Fraction(alpha) < 2**15:
        scale *= 2
    return Fraction(floor(Fraction(alpha) * scale + HALF)) / scale


def flat(array: Any) -> list[int]:
    return [int(found) for found in np.asarray(array).reshape(-1)]


# ---------------------------------------------------------------------------------------------- leaky relu


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.25, 1 / 3, 0.99999999, 1.0, 2.0**-16])
@pytest.mark.parametrize("fixed", [Fixed(16, 8), Fixed(12, 15), Fixed(16, -3)], ids=str)
def test_leaky_relu_is_its_formula_with_a_slope_of_sixteen_bits(alpha: float, fixed: Fixed) -> None:
    layer = LeakyRelu(**ONE, alpha=alpha, x_fixed=fixed)
    x = every_edge(fixed)
    made = layer.golden({}, {"x": x})
    assert flat(made["y"]) == [at if at > 0 else code(fixed, value(fixed, at) * slope(alpha)) for at in flat(x)]
    assert flat(made["mask"]) == [int(at > 0) for at in flat(x)]


def test_leaky_relu_at_zero_ones_halves_and_both_ends() -> None:
    layer = LeakyRelu(**ONE, alpha=0.5)
    x = np.array([0, 1, -1, -2, -3, -4, 32767, -32768]).reshape(-1, 1, 1, 1)
    # -1/2 and -3/2 are ties: up
    assert flat(layer.golden({}, {"x": x})["y"]) == [0, 1, 0, -1, -1, -2, 32767, -16384]


# -------------------------------------------------------------------------------------------- hard sigmoid


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.5), (1 / 6, 0.5), (1.0, 0.0), (0.5, -3.25), (0.001, 40.0)])
@pytest.mark.parametrize(
    ("x_fixed", "y_fixed"),
    [
        (Fixed(16, 8), Fixed(16, 14)),
        (Fixed(16, 12), Fixed(16, 15)),
        (Fixed(12, -2), Fixed(8, 3)),
        (Fixed(16, 17), Fixed(16, 13)),
    ],
    ids=str,
)
def test_hard_sigmoid_is_its_formula_with_a_slope_of_sixteen_bits(
    alpha: float, beta: float, x_fixed: Fixed, y_fixed: Fixed
) -> None:
    layer = HardSigmoid(**ONE, alpha=alpha, beta=beta, x_fixed=x_fixed, y_fixed=y_fixed)
    x = every_edge(x_fixed)
    made = layer.golden({}, {"x": x})
    offset = value(layer.exact, code(Fixed(64, layer.exact.fraction_bits), Fraction(beta)))
    assert abs(offset - Fraction(beta)) <= Fraction(1, 2**17)
    ramp = [value(x_fixed, at) * slope(alpha) + offset for at in flat(x)]
    assert flat(made["y"]) == [code(y_fixed, min(max(at, Fraction(0)), Fraction(1))) for at in ramp]
    assert flat(made["mask"]) == [int(0 < at < 1) for at in ramp]


def test_hard_sigmoid_at_its_corners_and_both_ends() -> None:
    layer = HardSigmoid(**ONE, alpha=0.25, beta=0.5, y_fixed=Fixed(16, 14))
    two = 2 * 256
    x = np.array([0, 1, -1, -two, 1 - two, two, two - 1, 32767, -32768]).reshape(-1, 1, 1, 1)
    made = layer.golden({}, {"x": x})
    one, step = 1 << 14, 16
    assert flat(made["y"]) == [one // 2, one // 2 + step, one // 2 - step, 0, step, one, one - step, one, 0]
    assert flat(made["mask"]) == [1, 1, 1, 0, 1, 0, 1, 0, 0]


# ------------------------------------------------------------------------------------------------- sigmoid


def logistic(x: FloatArray) -> FloatArray:
    """By another way than the layer's."""
    return 0.5 + 0.5 * np.tanh(x / 2)


def logistic_slope(x: FloatArray) -> FloatArray:
    """The closed derivative."""
    return 1 / (2 + np.exp(x) + np.exp(-x))


def off(fixed: Fixed, codes: IntArray, wanted: FloatArray) -> float:
    """Largest distance in steps."""
    steps = np.ldexp(wanted, fixed.fraction_bits).clip(fixed.low, fixed.high)
    return float(np.abs(codes - steps).max())


@pytest.mark.parametrize("bits", range(4, 12))
@pytest.mark.parametrize(
    ("x_fixed", "y_fixed"),
    [
        (Fixed(16, 8), Fixed(16, 8)),
        (Fixed(16, 12), Fixed(16, 14)),
        (Fixed(12, 13), Fixed(16, 15)),
        (Fixed(8, 2), Fixed(8, 6)),
        (Fixed(16, -3), Fixed(16, 0)),
    ],
    ids=str,
)
def test_every_code_of_a_sigmoid_is_as_close_as_its_docstring_says(bits: int, x_fixed: Fixed, y_fixed: Fixed) -> None:
    layer = Sigmoid(**ONE, table_bits=bits, x_fixed=x_fixed, y_fixed=y_fixed)
    codes = np.arange(x_fixed.low, x_fixed.high + 1).reshape(-1, 1, 1, 1)
    x = np.clip(x_fixed.decode(codes), -500, 500)
    made = layer.golden({}, {"x": codes})
    step = 2.0**-y_fixed.fraction_bits
    assert off(y_fixed, made["y"], logistic(x)) * step <= 2.0 ** (1 - bits) + step / 2
    assert off(DERIVATIVE, made["mask"], logistic_slope(x)) <= 0.5 + 2.0 ** (DERIVATIVE.fraction_bits - bits)
    assert np.all(np.diff(made["y"].reshape(-1)) >= 0)


def test_a_sigmoid_at_zero_and_both_ends() -> None:
    layer = Sigmoid(**ONE)
    made = layer.golden({}, {"x": np.array([0, 2047, 2048, 32767, -2048, -2049, -32768]).reshape(-1, 1, 1, 1)})
    # an entry is four codes of x: 0 lies one and a half below the middle of its own
    assert flat(made["y"]) == [128, 256, 256, 256, 0, 0, 0]
    assert flat(made["mask"]) == [256, 0, 0, 0, 0, 0, 0]
    assert layer.closeness["y"] == 1.0


def test_a_sigmoid_of_coarse_steps_is_its_formula_to_half_a_step() -> None:
    x_fixed, y_fixed = Fixed(16, 6), Fixed(16, 10)
    codes = np.arange(-511, 512).reshape(-1, 1, 1, 1)
    made = Sigmoid(**ONE, x_fixed=x_fixed, y_fixed=y_fixed).golden({}, {"x": codes})
    assert off(y_fixed, made["y"], logistic(x_fixed.decode(codes))) <= 0.5 + 1e-9


def test_the_error_of_a_sigmoid_is_e_times_the_closed_derivative() -> None:
    x = np.array([-800.0, -7.0, -1.0, -0.5, 0.0, 1e-9, 1.0, 3.0, 100.0]).reshape(-1, 1, 1, 1)
    tape = DirectTape(Sigmoid(**ONE), {"x": x}, np.random.default_rng(2))
    Sigmoid(**ONE).backward(tape)
    wanted = tape.errors["y"] * logistic_slope(x.clip(-500, 500))
    np.testing.assert_allclose(tape.derivatives["x"], wanted, rtol=1e-12, atol=1e-40)


def test_the_error_of_a_sigmoid_is_a_product_rounded_once() -> None:
    layer = SigmoidError(**ONE, dx_fixed=Fixed(16, 13))
    e = every_edge(layer.e_fixed)
    mask = np.random.default_rng(3).integers(0, 257, e.shape)
    pairs = zip(flat(e), flat(mask), strict=True)
    wanted = [code(layer.dx_fixed, value(layer.e_fixed, at) * value(DERIVATIVE, by)) for at, by in pairs]
    assert flat(layer.golden({}, {"e": e, "mask": mask})["dx"]) == wanted
    assert (layer.multipliers, layer.macs) == (1, 1)
    wide = SigmoidError(height=2, width=3, channels=4, lanes=2)
    assert (wide.multipliers, wide.macs) == (2, 24)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"table_bits": 3}, r"^Sigmoid: table_bits is 3; it must lie between 4 and 11$"),
        ({"table_bits": 12}, r"^Sigmoid: table_bits is 12; it must lie between 4 and 11$"),
        ({"x_fixed": Fixed(16, -27)}, r"^Sigmoid: steps of s16\.-27 are too coarse; give x more fraction bits$"),
    ],
    ids=str,
)
def test_sigmoids_that_no_table_holds_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Sigmoid(**ONE, **parameters)


# ---------------------------------------------------------------------------------- others from tables


@dataclass(frozen=True)
class Said:
    """A function by another way than the layer's, and how far the layer's docstring says that y and the derivative may
    be off, beside roundings: (times an entry, beyond the table) of each."""

    layer: Callable[..., Tabled]
    function: Callable[[FloatArray], FloatArray]
    y: tuple[float, float]
    slope: tuple[float, float]
    # entries of 2**(entry - table_bits)
    entry: int


below = np.vectorize(NormalDist().cdf)
SAID = {
    "silu": Said(Silu, lambda x: x * (0.5 + 0.5 * np.tanh(x / 2)), (1 / 4, 0.0027), (1 / 4, 0.0024), 4),
    "gelu": Said(Gelu, lambda x: x * below(x), (1 / 4, 0.0002), (0.4, 0.0006), 3),
    "gelu by tanh": Said(
        partial(Gelu, approximate=Approximate.TANH),
        lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        (1 / 4, 0.0002),
        (0.4, 0.0006),
        3,
    ),
    "hard swish": Said(HardSwish, lambda x: x * np.clip(x + 3, 0, 6) / 6, (1 / 4, 0.0), (1 / 6, 0.0), 3),
    "tanh": Said(Tanh, lambda x: 2 / (1 + np.exp(-2 * x)) - 1, (1 / 2, 0.0007), (0.4, 0.0014), 3),
    "elu": Said(Elu, lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)) - 1, x), (1 / 2, 0.0004), (1 / 2, 0.0004), 4),
    "gentle elu": Said(
        partial(Elu, alpha=0.25),
        lambda x: np.where(x < 0, (np.exp(np.minimum(x, 0)) - 1) / 4, x),
        (1 / 8, 0.0001),
        (1 / 8, 0.0001),
        4,
    ),
}


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("bits", [4, 7, 10, 11])
@pytest.mark.parametrize(
    ("x_fixed", "y_fixed"),
    [
        (Fixed(16, 8), Fixed(16, 8)),
        (Fixed(14, 10), Fixed(16, 12)),
        (Fixed(12, 13), Fixed(16, 15)),
        (Fixed(8, 2), Fixed(8, 1)),
        (Fixed(12, 10), Fixed(12, 5)),
    ],
    ids=str,
)
def test_every_code_of_a_table_is_as_close_as_its_docstring_says(
    name: str, bits: int, x_fixed: Fixed, y_fixed: Fixed
) -> None:
    said = SAID[name]
    layer = said.layer(**ONE, table_bits=bits, x_fixed=x_fixed, y_fixed=y_fixed)
    codes = np.arange(x_fixed.low, x_fixed.high + 1).reshape(-1, 1, 1, 1)
    # beyond, all are flat or straight, and a formula's powers have no room
    x = np.clip(x_fixed.decode(codes), -20, 20)
    y = said.function(x) + x_fixed.decode(codes) - x if layer.beside_relu else said.function(x)
    y = np.where(x_fixed.decode(codes) < -20, said.function(x), y)
    made, entry = layer.golden({}, {"x": codes}), 2.0 ** (said.entry - bits)
    roundings = 0.625 if layer.beside_relu else 0.5
    assert off(y_fixed, made["y"], y) * y_fixed.step <= said.y[0] * entry + said.y[1] + roundings * y_fixed.step
    # on the right, where it jumps
    slope = (said.function(x + 1e-7) - said.function(x)) / 1e-7
    assert off(SLOPE, made["mask"], slope) * SLOPE.step <= said.slope[0] * entry + said.slope[1] + SLOPE.step / 2 + 1e-6


@pytest.mark.parametrize("name", SAID)
def test_a_table_at_zero_and_both_ends(name: str) -> None:
    layer = SAID[name].layer(**ONE)
    made = layer.golden({}, {"x": np.array([0, 32767, -32768]).reshape(-1, 1, 1, 1)})
    high, low = (256, -256) if name == "tanh" else (32767, {"elu": -256, "gentle elu": -64}.get(name, 0))
    assert flat(made["y"])[1:] == [high, low]
    assert abs(flat(made["y"])[0]) <= 1
    assert flat(made["mask"])[1:] == [0 if name == "tanh" else 256, 0]


@pytest.mark.parametrize("name", SAID)
def test_the_error_of_a_table_is_e_times_the_derivative(name: str) -> None:
    said = SAID[name]
    x = np.array([-7.0, -3.5, -1.0, -0.5, -1e-3, 1e-3, 1.0, 2.5, 3.5, 6.0]).reshape(-1, 1, 1, 1)
    layer = said.layer(**ONE)
    tape = DirectTape(layer, {"x": x}, np.random.default_rng(2))
    layer.backward(tape)
    slope = (said.function(x + 1e-6) - said.function(x - 1e-6)) / 2e-6
    np.testing.assert_allclose(tape.derivatives["x"], tape.errors["y"] * slope, rtol=1e-6, atol=1e-8)


def test_functions_are_finite_however_large_x_is() -> None:
    x = np.array([-1e6, 1e6])
    for said in SAID.values():
        y, slope = said.layer(**ONE).values(x)
        assert np.isfinite([y, slope]).all()
        assert slope[0] == 0


def test_what_is_added_to_an_entry_is_as_wide_as_codes_of_x_need() -> None:
    layer = Silu(**ONE, x_fixed=Fixed(16, 4), y_fixed=Fixed(16, 12))
    table = layer.table
    assert (table.added_bits, table.grow, layer.exact.fraction_bits) == (15, 10, 14)
    assert layer.exact.high >= (layer.x_fixed.high << table.grow) + max(table.y)
    assert layer.latency_cycles("mask") == Sigmoid(**ONE).latency_cycles("mask") + 1


def test_the_error_of_a_derivative_is_a_product_of_signed_codes_rounded_once() -> None:
    layer = DerivativeError(**ONE, dx_fixed=Fixed(16, 11))
    e = every_edge(layer.e_fixed)
    mask = np.random.default_rng(3).integers(SLOPE.low, SLOPE.high + 1, e.shape)
    pairs = zip(flat(e), flat(mask), strict=True)
    wanted = [code(layer.dx_fixed, value(layer.e_fixed, at) * value(SLOPE, by)) for at, by in pairs]
    assert flat(layer.golden({}, {"e": e, "mask": mask})["dx"]) == wanted
    assert (layer.multipliers, layer.macs) == (1, 1)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.5, float("nan")])
def test_elus_that_their_derivative_has_no_room_for_are_refused(alpha: float) -> None:
    with pytest.raises(ShapeError, match=rf"^Elu: alpha is {alpha}; it must lie above 0 and be at most 1$"):
        Elu(**ONE, alpha=alpha)


# --------------------------------------------------------------------------------------------- way back


@pytest.mark.parametrize(
    ("layer", "derivative"),
    [
        (Relu(**ONE, ceiling=6.0), lambda x: float(0 < x < 6)),
        (LeakyRelu(**ONE, alpha=0.2), lambda x: 1.0 if x > 0 else 0.2),
        (HardSigmoid(**ONE, alpha=0.25, beta=0.5), lambda x: 0.25 if -2 < x < 2 else 0.0),
    ],
    ids=lambda found: type(found).__name__,
)
def test_the_error_is_that_of_y_times_the_derivative(layer: Layer, derivative: Callable[[float], float]) -> None:
    x = np.array([-7.0, -1.0, -0.5, -1e-9, 0.0, 1e-9, 1.0, 3.0, 5.999, 6.0, 100.0]).reshape(-1, 1, 1, 1)
    tape = DirectTape(layer, {"x": x}, np.random.default_rng(2))
    layer.backward(tape)
    wanted = [float(e) * derivative(float(at)) for e, at in zip(tape.errors["y"].flat, x.flat, strict=True)]
    np.testing.assert_array_equal(tape.derivatives["x"].reshape(-1), wanted)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("rest", [0, 1])
def test_the_error_of_two_slopes_is_its_formula_with_a_slope_of_sixteen_bits(where: int, rest: int) -> None:
    layer = SlopeError(**ONE, slope=0.01, where=where, rest=rest, dx_fixed=Fixed(16, 13))
    e = every_edge(layer.e_fixed)
    mask = np.random.default_rng(3).integers(0, 2, e.shape)
    slopes = [slope(0.01) if at == where else Fraction(rest) for at in flat(mask)]
    wanted = [code(layer.dx_fixed, value(layer.e_fixed, at) * by) for at, by in zip(flat(e), slopes, strict=True)]
    assert flat(layer.golden({}, {"e": e, "mask": mask})["dx"]) == wanted


# ------------------------------------------------------------------------------------------------- base


@pytest.mark.parametrize("kind", [LeakyRelu, HardSigmoid])
@pytest.mark.parametrize("alpha", [0.0, -0.5, 1.5, 2.0**-17, float("nan"), float("inf")])
def test_slopes_that_no_constant_can_hold_are_refused(kind: Any, alpha: float) -> None:
    with pytest.raises(ShapeError, match=rf"^{kind.__name__}: slope is {alpha}; it must lie between 1\.5.*e-05 and 1$"):
        kind(**ONE, alpha=alpha)


@pytest.mark.parametrize("beta", [-65537.0, float("nan"), float("inf")])
def test_offsets_beyond_the_largest_are_refused(beta: float) -> None:
    with pytest.raises(ShapeError, match=rf"^HardSigmoid: offset is {beta}; it must lie between -65536 and 65536$"):
        HardSigmoid(**ONE, beta=beta)


def test_sums_that_need_more_bits_than_numpy_has_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"^HardSigmoid: sums of s16\.40 take \d+ bits.*; give x "):
        HardSigmoid(**ONE, beta=64.0, x_fixed=Fixed(16, 40))


def test_masks_of_an_error_are_a_bit() -> None:
    with pytest.raises(ShapeError, match=r"^SlopeError: where is 2 and rest 0; each must be 0 or 1$"):
        SlopeError(**ONE, where=2)


def test_every_variant_is_an_example_and_every_map_too() -> None:
    found = Relu.examples()
    assert [(layer.height, layer.width, layer.channels, layer.lanes) for layer in found] == [
        tuple(example_map.values()) for example_map in EXAMPLE_MAPS
    ]
    assert [layer.ceiling for layer in found] == [None, 6.0, 6.0]
    assert len(ReluError.examples()) == len(EXAMPLE_MAPS)


def test_a_sum_has_the_bits_that_its_formula_needs() -> None:
    for x_fixed in (Fixed(6, 2), Fixed(6, 9), Fixed(6, -4)):
        for alpha in (0.01, 0.5, 0.9, 1.0):
            for beta in (None, 0.0, 0.4, -3.0, 100.0):
                affine = Affine(x_fixed, alpha, beta)
                x = np.arange(x_fixed.low, x_fixed.high + 1)
                held = [affine.sums(x), x << affine.shift if beta is None else 1 << affine.exact.fraction_bits]
                assert affine.exact.low <= np.min(held[0]) <= np.max(held[0]) <= affine.exact.high, affine
                assert affine.exact.low <= np.min(held[1]) <= np.max(held[1]) <= affine.exact.high, affine
                assert np.max(np.abs(held[0])) < 1 << affine.word_bits - 1, affine


def test_a_lane_block_that_names_its_streams_otherwise_is_told_so() -> None:
    class Misnamed(Relu):
        def lane_block(self, x: Stream, y: Stream) -> LaneBlock:  # type: ignore[override]
            def copy() -> None:
                y.payload.next = x.payload

            return copy

    streams = {"x": Stream(16), "y": Stream(16), "mask": Stream(1)}
    with pytest.raises(TypeError, match=r"Misnamed.* calls a stream '[xy]'; its streams are taken, computed$"):
        Misnamed(**ONE).circuit(ClockReset(), streams)


TWO_BITS = Fixed(2, 0, signed=False)


def test_masks_of_several_bits_pass_the_base() -> None:
    """Clip to what y has bits for, which keeps on which side of it x lies: -1, 0 or 1 as a code of two bits."""

    @dataclass(frozen=True, kw_only=True)
    class Sides(Pointwise):
        x_fixed: Fixed = Fixed(8, 2)  # noqa: RUF009 - frozen
        y_fixed: Fixed = Fixed(6, 2)  # noqa: RUF009 - frozen
        mask_fixed = TWO_BITS

        def codes(self, x: IntArray) -> tuple[IntArray, Mask]:
            return self.y_fixed.saturate(x), (x > self.y_fixed.high) + 3 * (x < self.y_fixed.low)

        def values(self, x: FloatArray) -> tuple[FloatArray, Mask]:
            raise NotImplementedError

        def error(self) -> PointwiseError:
            raise NotImplementedError

        def lane_block(self, taken: Stream, computed: Stream) -> LaneBlock:
            lanes, low, high = self.lanes, self.y_fixed.low, self.y_fixed.high
            masks = lanes * 6

            def saturate() -> None:
                value = intbv(0, min=-128, max=128)
                for lane in range(lanes):
                    value[:] = taken.payload[lane * 8 + 8 : lane * 8].signed()
                    computed.payload.next[masks + lane * 2 + 2 : masks + lane * 2] = 0
                    if value > high:
                        value[:] = high
                        computed.payload.next[masks + lane * 2 + 2 : masks + lane * 2] = 1
                    elif value < low:
                        value[:] = low
                        computed.payload.next[masks + lane * 2 + 2 : masks + lane * 2] = 3
                    computed.payload.next[lane * 6 + 6 : lane * 6] = value[6:]

            return saturate

    case = make_case(Sides(height=4, width=4, channels=6, lanes=3))
    assert {beat & 3 for beat in case.outputs["mask"]} == {0, 1, 3}
    for backend in (Backend.MYHDL, Backend.ICARUS):
        assert_equal_bits(case, design_of(case), backend, seed=7)


PAGE = Path(__file__).parent.parent / "docs" / "adding-a-layer.md"


def test_the_page_that_tells_how_to_add_a_layer_shows_its_file() -> None:
    """Its blocks of code stand so in the layer or its handler, indentation aside; nothing of the layer is left out."""
    page = PAGE.read_text()
    blocks = [block.splitlines() for block in re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)]
    files = [inspect.getsource(module).splitlines() for module in (leaky_relu, elementwise)]
    for block in blocks:
        places = [file[at : at + len(block)] for file in files for at in range(len(file))]
        assert any(dedent("\n".join(place)).splitlines() == block for place in places), block
    shown = {line.strip() for line in chain(*blocks)}
    assert [line for line in files[0] if line.strip() not in {"", *shown}] == []
    assert f"leaky_relu.py), {len(files[0])} lines" in page


def test_the_base_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Pointwise(**ONE)  # type: ignore[abstract]
