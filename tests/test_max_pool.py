"""Max pool: golden models against plain loops, ties, padding, folding, and circuits of random shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.folding import lanes_for
from hdl.layers.pool.max_pool import MaxPool, MaxPoolError
from hdl.simulate import Backend
from tests.layer_support import assert_equal_bits, design_of, make_case


def random_pool(kind: type[MaxPool] | type[MaxPoolError], seed: int) -> Any:
    """A pool of random shape and engine."""
    rng = np.random.default_rng(seed)
    while True:
        kernel = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        try:
            layer = kind(
                height=int(rng.integers(1, 7)),
                width=int(rng.integers(1, 7)),
                channels=int(rng.choice([1, 2, 3, 4])),
                kernel=kernel,
                stride=(int(rng.integers(1, 4)), int(rng.integers(1, 4))),
                padding=tuple(int(rng.integers(0, kernel[side % 2])) for side in range(4)),  # type: ignore[arg-type]
            )
            return layer.fold(int(rng.integers(1, 10)) * layer.height * layer.width)
        except (ShapeError, FoldingError):
            continue


def plain_pool(layer: MaxPool, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest value and first tap that has it, one window at a time."""
    rows, columns, channels = layer.output_shape
    y = np.zeros((len(x), rows, columns, channels), np.int64)
    index = np.zeros_like(y)
    for frame, row, column, channel in np.ndindex(y.shape):
        best = None
        for i, j in np.ndindex(layer.kernel):
            h, v = row * layer.stride[0] - layer.padding[0] + i, column * layer.stride[1] - layer.padding[1] + j
            inside = 0 <= h < layer.height and 0 <= v < layer.width
            if inside and (best is None or x[frame, h, v, channel] > best):
                best = x[frame, h, v, channel]
                index[frame, row, column, channel] = i * layer.kernel[1] + j
        assert best is not None
        y[frame, row, column, channel] = best
    return y, index


def plain_error(layer: MaxPoolError, e: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Every error added to the pixel its index points at."""
    dx = np.zeros((len(e), *layer.input_shape), np.int64)
    for frame, row, column, channel in np.ndindex(e.shape):
        i, j = divmod(int(index[frame, row, column, channel]), layer.kernel[1])
        h, v = row * layer.stride[0] - layer.padding[0] + i, column * layer.stride[1] - layer.padding[1] + j
        dx[frame, h, v, channel] += e[frame, row, column, channel]
    return dx


@pytest.mark.parametrize("seed", range(8))
def test_golden_model_is_the_plain_loop(seed: int) -> None:
    layer = random_pool(MaxPool, seed)
    # few different values, so that many are equal
    x = np.random.default_rng(seed).integers(-2, 2, (2, *layer.input_shape))
    made = layer.golden({}, {"x": x})
    y, index = plain_pool(layer, x)
    np.testing.assert_array_equal(made["y"], y, err_msg=str(layer))
    np.testing.assert_array_equal(made["index"], index, err_msg=str(layer))


@pytest.mark.parametrize("seed", range(8))
def test_golden_error_is_the_plain_loop_saturated(seed: int) -> None:
    layer = random_pool(MaxPoolError, seed)
    rng = np.random.default_rng(seed)
    e, index = layer.sample("e", rng, 3), layer.sample("index", rng, 3)
    wanted = layer.dx_fixed.saturate(plain_error(layer, e, index))
    np.testing.assert_array_equal(layer.golden({}, {"e": e, "index": index})["dx"], wanted, err_msg=str(layer))


def test_padding_never_wins_even_over_the_least_code() -> None:
    layer = MaxPool(height=3, width=3, channels=1, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1))
    x = np.full((1, 3, 3, 1), layer.x_fixed.low)
    made = layer.golden({}, {"x": x})
    assert (made["y"] == layer.x_fixed.low).all()
    assert made["index"].reshape(-1).tolist() == [4, 3, 1, 0]


def test_reference_of_the_error_is_not_saturated_but_golden_is() -> None:
    layer = MaxPoolError(height=3, width=3, channels=1, kernel=(3, 3), padding=(2, 2, 2, 2), dx_fixed=Fixed(16, 12))
    # all nine or fewer windows around the centre point at it
    index = np.zeros((1, 5, 5, 1), np.int64)
    for row, column in np.ndindex(5, 5):
        i, j = 1 + 2 - row, 1 + 2 - column
        index[0, row, column] = i * 3 + j if 0 <= i < 3 and 0 <= j < 3 else 8
    index[0, 0, 0] = 8
    e = np.zeros((1, 5, 5, 1), np.int64)
    e[0, 1:4, 1:4] = 30_000
    assert layer.golden({}, {"e": e, "index": index})["dx"][0, 1, 1, 0] == layer.dx_fixed.high
    assert layer.reference({}, {"e": e * 1.0, "index": index * 1.0})["dx"][0, 1, 1, 0] == 270_000


@pytest.mark.parametrize("kind", [MaxPool, MaxPoolError])
@pytest.mark.parametrize("seed", range(5))
def test_fold_keeps_its_promise(kind: Any, seed: int) -> None:
    layer = random_pool(kind, 50 + seed)
    pixels = max(port.tensor.elements // layer.channels for port in (*layer.sinks, *layer.sources))
    for cycles in (pixels, 3 * pixels, 40 * pixels):
        try:
            folded = layer.fold(cycles)
        except FoldingError:
            assert cycles == pixels
            continue
        assert folded.cycles_per_frame <= cycles
        for port in (*folded.sinks, *folded.sources):
            assert port.lanes == lanes_for(port.tensor.elements, port.tensor.shape[-1], cycles)


@pytest.mark.parametrize("kind", [MaxPool, MaxPoolError])
@pytest.mark.parametrize("seed", range(8))
def test_random_pools_agree_with_the_golden_model_in_every_bit(kind: Any, seed: int) -> None:
    case = make_case(random_pool(kind, 200 + seed), seed=seed)
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed)


def test_the_stem_of_resnet_folds_to_the_pace_of_its_neighbours() -> None:
    pool = MaxPool(height=112, width=112, channels=64, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1))
    assert pool.output_shape == (56, 56, 64)
    folded = pool.fold(200_000)
    assert (folded.engine_lanes, folded.engine_taps) == (16, 1)


def test_impossible_pools_are_refused() -> None:
    with pytest.raises(ShapeError, match="a window lies wholly in the padding; make"):
        MaxPool(height=4, width=4, channels=1, kernel=(2, 2), padding=(2, 0, 0, 0))
    with pytest.raises(ShapeError, match="a window lies wholly in the padding"):
        MaxPool(height=4, width=4, channels=1, kernel=(2, 2), stride=(2, 2), padding=(0, 0, 2, 0))
    with pytest.raises(FoldingError, match="3 engine lanes do not divide 4 channels"):
        MaxPool(height=4, width=4, channels=4, kernel=(2, 2), engine_lanes=3)
    with pytest.raises(FoldingError, match=r"2 taps a cycle are impossible; choose one of \[1\]"):
        MaxPoolError(height=4, width=4, channels=1, kernel=(2, 2), stride=(2, 2), engine_taps=2)
    with pytest.raises(FoldingError, match="can't be done in 10 cycles a frame; allow more cycles"):
        MaxPool(height=4, width=4, channels=1, kernel=(2, 2), stride=(2, 2)).fold(10)
