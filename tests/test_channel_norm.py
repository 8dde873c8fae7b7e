"""Layer normalisation over channels: how far its integers are from real numbers, its table, what it refuses.

Bits and cycles of its circuits stand in tests/test_layer_conformance.py, its derivative in tests/test_autodiff.py.
"""

from __future__ import annotations

from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest

from hdl.engine.norm.channel_numbers import (
    BETWEEN_BITS,
    ENTRY_BITS,
    ENTRY_EXTRA,
    INDEX_BITS,
    ROOT_BITS,
    SLOPE_BITS,
    ChannelErrorNumbers,
    ChannelNumbers,
    root_table,
)
from hdl.errors import ShapeError
from hdl.fixed import Fixed, IntArray
from hdl.layers.norm.channel_norm import INVERSE, ChannelNorm, ChannelNormError

X, NORMAL = Fixed(16, 8), Fixed(16, 12)
CHANNELS = [2, 3, 4, 12, 96, 768, 1024, 2048]


def pixels(channels: int, seed: int) -> IntArray:
    """Codes around 0 and around a large mean, that differ by little and by much; all equal, one apart, both ends."""
    rng = np.random.default_rng([seed, channels])
    found = []
    for deviation in (0.3, 1, 5, 100, 3_000, 20_000):
        for mean in (0, 20_000):
            found.append(rng.normal(mean, deviation, (20, channels)))
    special = np.zeros((6, channels))
    special[1] = 5
    special[2, 0] = 1
    special[3] = X.low
    special[4] = np.where(np.arange(channels) % 2, X.low, X.high)
    special[5, 1:] = X.high
    return np.clip(np.round(np.concatenate([*found, special])), X.low, X.high).astype(np.int64)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("y_fixed", [Fixed(16, 8), NORMAL, Fixed(16, 14)], ids=str)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
def test_y_and_inverse_are_as_close_to_real_numbers_as_is_said(channels: int, y_fixed: Fixed, epsilon: float) -> None:
    layer = ChannelNorm(height=1, width=1, channels=channels, y_fixed=y_fixed, epsilon=epsilon)
    codes = pixels(channels, 1)[:, None, None, :]
    made, wanted = layer.golden({}, {"x": codes}), layer.reference({}, {"x": X.decode(codes)})
    for port, steps in layer.closeness.items():
        # a step for y, a step and a half for the inverse at most, whatever the number of channels
        assert steps < 1.6
        assert layer.distance(port, made[port], wanted[port]).max() <= steps, port


@pytest.mark.parametrize("channels", CHANNELS)
def test_no_sum_leaves_its_bits(channels: int) -> None:
    numbers = ChannelNumbers(X, NORMAL, INVERSE, channels, 1e-6)
    codes = pixels(channels, 2)
    sums, squares = codes.sum(-1, keepdims=True), (codes * codes).sum(-1, keepdims=True)
    assert np.abs(sums).max() <= 1 << (numbers.sum_bits - 1)
    assert squares.max() < 1 << (numbers.square_bits - 1)
    roots, raised = numbers.roots(sums, squares)
    assert roots.min() >= 1 << (ROOT_BITS - 1)
    assert roots.max() < 1 << ROOT_BITS
    assert raised.min() >= 0
    assert raised.max() <= numbers.top
    assert np.abs((channels * codes - sums) << raised).max() < 1 << (numbers.distance_bits - 1)


def test_roots_are_within_what_is_said_of_them_everywhere_between_1_and_4() -> None:
    numbers = ChannelNumbers(X, NORMAL, INVERSE, 1024, 1e-6)
    variance = np.unique(np.geomspace(1, 4, 200_001, endpoint=False) * 2**40).astype(np.int64)
    # sums for which C Q - S**2 is this variance
    squares = variance // 1024
    roots, raised = numbers.roots(np.zeros_like(squares), squares)
    exact = np.sqrt((1024.0 * squares) * 2.0**numbers.guard + numbers.epsilon_code)
    relative = roots * 2.0**-ROOT_BITS * 2.0 ** (raised - numbers.top) * exact - 1
    assert np.abs(relative).max() <= numbers.off
    # rounded, not cut off
    assert abs(relative.mean()) < 2.0 ** -(ROOT_BITS + 2)


def test_the_table_holds_chords_of_the_root_lowered_by_half_of_what_they_are_above_it() -> None:
    getcontext().prec = 50
    size = 1 << (INDEX_BITS - 1)
    assert len(root_table()) == 2 * size
    for index, (entry, slope) in enumerate(root_table()):
        start = Decimal(1 + index // size) * (1 + Decimal(index % size) / size)
        end = Decimal(1 + index // size) * (1 + Decimal(index % size + 1) / size)
        first, last, middle = (1 / value.sqrt() for value in (start, end, (start + end) / 2))
        assert 0 <= slope < 1 << SLOPE_BITS
        assert 0 <= entry < 1 << ENTRY_BITS
        assert abs(Decimal(slope) / (1 << ENTRY_BITS) - (first - last)) <= Decimal("0.5") / (1 << ENTRY_BITS)
        lowered = first - ((first + last) / 2 - middle) / 2
        rounded = Decimal(entry - (1 << (ENTRY_EXTRA - 1))) / (1 << ENTRY_BITS)
        # at 1 what is cut to fit is a quarter of a step of the root
        assert abs(rounded - lowered) <= Decimal(0.51 if index else 10) / (1 << ENTRY_BITS)
        # the least that it can be is half of the largest
        assert entry - (slope * ((1 << BETWEEN_BITS) - 1) >> BETWEEN_BITS) >= 1 << (ENTRY_BITS - 1)


@pytest.mark.parametrize("channels", [2, 12, 768])
def test_errors_of_normalised_maps_are_as_close_to_real_numbers_as_is_said(channels: int) -> None:
    layer = ChannelNormError(height=1, width=1, channels=channels, normal_fixed=NORMAL)
    rng = np.random.default_rng(channels)
    forward = ChannelNorm(height=1, width=1, channels=channels, y_fixed=NORMAL)
    codes = pixels(channels, 3)[:, None, None, :]
    normal = forward.golden({}, {"x": codes})
    inputs = {
        "e": rng.integers(-3_000, 3_000, codes.shape),
        "normal": normal["y"],
        "inverse": np.minimum(normal["inverse"], 1 << 12),
    }
    values = {name: layer.port(name).tensor.fixed.decode(array) for name, array in inputs.items()}
    made, wanted = layer.golden({}, inputs)["dx"], layer.reference({}, values)["dx"]
    assert layer.distance("dx", made, wanted).max() <= layer.closeness["dx"]
    # of inverses up to 1, half a step and what both means are off
    assert layer.distance("dx", made, wanted).max() <= 0.5 + layer.numbers.off


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"channels": 1}, "one channel has no variance; leave the normalisation out"),
        ({"channels": 4096}, "sums take 28 bits, signed, more than 27; normalise fewer channels"),
        ({"x_fixed": Fixed(8, 4, signed=False)}, "sums take 12 bits, signed, .*; normalise fewer channels, or signed"),
        ({"epsilon": -1.0}, "epsilon is -1.0; it must be small beside the largest variance"),
        ({"epsilon": 1e12}, "epsilon is 1000000000000.0; it must be small beside the largest variance"),
        ({"y_fixed": Fixed(16, 40)}, r"s16.40 is too fine for what is normalised; give y fewer fraction bits"),
    ],
    ids=str,
)
def test_what_it_can_not_do_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=rf"ChannelNorm of .*: {message}"):
        ChannelNorm(**{"height": 1, "width": 1, "channels": 16} | fields)


def test_ways_back_of_formats_that_take_too_many_bits_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"errors s24\.12 times s16\.12 take too many bits; give them fewer bits"):
        ChannelErrorNumbers(Fixed(24, 12), NORMAL, INVERSE, 8)
    with pytest.raises(ShapeError, match="unsigned inverses, not"):
        ChannelErrorNumbers(Fixed(16, 12), NORMAL, Fixed(16, 12), 8)
