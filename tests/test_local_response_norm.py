"""Local response normalisation: how far its integers are from real numbers, its tables, what it refuses.

Bits and cycles of its circuits stand in tests/test_layer_conformance.py, its derivative in tests/test_autodiff.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hdl.engine.norm.local_response_numbers import ENTRY_EXTRA, POWER_BITS, PowerTable
from hdl.errors import ShapeError
from hdl.fixed import Fixed
from hdl.layers.norm.local_response_norm import STRENGTH, LocalResponseNorm, LocalResponseNormError, strength_for

MAP = {"height": 2, "width": 3, "channels": 16}
# of AlexNet, of GoogLeNet, and such as nobody trains with
NETWORKS = [
    {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 2.0},
    {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    {"size": 4, "alpha": 0.02, "beta": 0.5, "bias": 0.5, "strength_fixed": Fixed(16, 8, signed=False)},
    {"size": 33, "alpha": 1e-3, "beta": 1.5, "bias": 1.0, "x_fixed": Fixed(16, 10)},
]


@pytest.mark.parametrize("fields", NETWORKS, ids=str)
@pytest.mark.parametrize("spread", [100, 3_000, 30_000])
def test_y_and_strength_are_as_close_to_real_numbers_as_is_said(fields: dict[str, Any], spread: int) -> None:
    layer = LocalResponseNorm(**MAP, **fields)
    rng = np.random.default_rng([1, spread])
    codes = np.clip(np.round(rng.normal(0, spread, (20, *layer.shape))), layer.x_fixed.low, layer.x_fixed.high)
    x = codes.astype(np.int64)
    x[0], x[1] = 0, layer.x_fixed.low
    made, wanted = layer.golden({}, {"x": x}), layer.reference({}, {"x": layer.x_fixed.decode(x)})
    strength = wanted["strength"]
    assert layer.distance("strength", made["strength"], strength).max() <= layer.closeness["strength"]
    within = strength < layer.strength_fixed.high * layer.strength_fixed.step
    assert within.any()
    away = layer.distance("y", made["y"], wanted["y"])
    assert away[within].max() <= layer.closeness["y"]
    # in parts of itself; a strength has 13 bits below 1
    values = wanted["y"][within]
    tolerance = layer.numbers.power_off / layer.numbers.power.values(np.array(layer.strength_fixed.high * 1.0))
    assert (away[within] * layer.y_fixed.step <= layer.y_fixed.step / 2 + tolerance * np.abs(values) + 1e-9).all()


@pytest.mark.parametrize("strength", [STRENGTH, Fixed(16, 8, signed=False), Fixed(8, 5, signed=False)], ids=str)
@pytest.mark.parametrize(("bias", "exponent", "scale"), [(1.0, 0.75, 1.0), (2.0, 1.75, 3e-5), (0.5, 0.5, 1.0)])
def test_tables_are_chords_of_the_power(strength: Fixed, bias: float, exponent: float, scale: float) -> None:
    table = PowerTable(strength, bias, exponent, scale)
    codes = np.arange(round(bias / strength.step), strength.high + 1)
    exact, made = table.values(strength.decode(codes)), table.codes(codes)
    assert made.min() >= 0
    assert made.max() < 1 << (POWER_BITS - 1)
    # the largest takes all bits but one
    assert made.max() >= 1 << (POWER_BITS - 3)
    # half of what a chord is off at most, h^2 f'' / 16, and roundings of the entry, of the slope and of the power
    width = strength.step * (1 << table.between_bits)
    curve = scale * exponent * (exponent + 1) * bias ** (-exponent - 2) * width**2 / 16
    assert (
        np.abs(table.power.decode(made) - exact).max()
        <= curve * 1.02 + (0.5 + 3 / (1 << ENTRY_EXTRA)) * table.power.step
    )


@pytest.mark.parametrize("fields", NETWORKS[:2], ids=str)
def test_errors_are_as_close_to_real_numbers_as_is_said(fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    layer, forward = LocalResponseNormError(**MAP, **fields), LocalResponseNorm(**MAP, **fields)
    x = rng.integers(-30_000, 30_000, (5, *layer.shape))
    inputs = {"e": rng.integers(-20_000, 20_000, x.shape), "x": x, "strength": forward.golden({}, {"x": x})["strength"]}
    values = {name: layer.port(name).tensor.fixed.decode(codes) for name, codes in inputs.items()}
    away = layer.distance("dx", layer.golden({}, inputs)["dx"], layer.reference({}, values)["dx"])
    assert away.max() <= layer.closeness["dx"]
    # what it says is worth something
    assert layer.closeness["dx"] < 4


@pytest.mark.parametrize("kind", [LocalResponseNorm, LocalResponseNormError])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0.0; it must be positive and finite"),
        ({"beta": -0.75}, "beta is -0.75; it must be positive and finite"),
        ({"bias": 0.0}, "bias is 0.0; it must be positive and finite"),
        ({"size": 0}, "size is 0; it must be at least 1"),
        (
            {"bias": 9.0},
            "u16.13 does not hold strengths of 9.0 and more; give the strength an unsigned",
        ),
        ({"alpha": 1e-30}, r"alpha 1e-30 with codes s16.8 takes \d+ bits; normalise signed codes of fewer bits"),
    ],
    ids=str,
)
def test_what_it_can_not_do_is_refused(kind: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=f"{kind.__name__}: {message}"):
        kind(**MAP, **fields)


@pytest.mark.parametrize("bias", [1e-3, 1.0, 2.0, 4.0, 100.0, 16_000.0])
def test_strengths_begin_with_room_for_the_bias(bias: float) -> None:
    fixed = strength_for(bias)
    assert fixed.high * fixed.step >= 1.9 * bias
    assert LocalResponseNorm(**MAP, bias=bias, strength_fixed=fixed).numbers.offset > 0


def test_errors_of_too_many_bits_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"LocalResponseNormError: errors s44\.12 take \d+ bits, more than 62"):
        LocalResponseNormError(**MAP, e_fixed=Fixed(44, 12))
