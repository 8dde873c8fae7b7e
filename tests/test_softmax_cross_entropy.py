"""Softmax with cross-entropy: how exact the integers are, ties, extremes, and the derivative."""

from __future__ import annotations

import numpy as np
import pytest

from hdl.engine.loss.numbers import METRICS
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.simulate import Backend
from tests.layer_support import assert_equal_bits, design_of, make_case

# as the module's docstring says
PROBABILITY_ERROR = 2.0**-14
LOSS_ERROR = 2.0**-10


def logits(layer: SoftmaxCrossEntropy, spread: float, rng: np.random.Generator, frames: int) -> np.ndarray:
    return layer.x_fixed.encode(rng.normal(0, spread, (frames, 1, 1, layer.classes)))


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("fraction_bits", [5, 10, 15])
def test_probabilities_and_loss_are_as_exact_as_promised(classes: int, fraction_bits: int) -> None:
    layer = SoftmaxCrossEntropy(classes=classes, x_fixed=Fixed(16, fraction_bits), e_fixed=Fixed(40, 36))
    rng = np.random.default_rng(classes + fraction_bits)
    for spread in (0.001, 0.1, 1, 10):
        x, label = logits(layer, spread, rng, 50), layer.sample("label", rng, 50)
        codes = layer.golden({}, {"x": x, "label": label})
        values = layer.reference({}, {"x": layer.x_fixed.decode(x), "label": label.astype(float)})
        error = layer.e_fixed.decode(codes["error"]) - values["error"]
        assert np.abs(error).max() < PROBABILITY_ERROR
        loss = METRICS.decode(codes["metrics"][..., 0]) - values["metrics"][..., 0]
        assert np.abs(loss).max() < LOSS_ERROR
        np.testing.assert_array_equal(codes["metrics"][..., 1], values["metrics"][..., 1])


def test_error_is_the_derivative_of_the_loss() -> None:
    layer = SoftmaxCrossEntropy(classes=7)
    rng = np.random.default_rng(3)
    x, label = rng.normal(0, 2, (4, 1, 1, 7)), layer.sample("label", rng, 4).astype(float)
    error = layer.reference({}, {"x": x, "label": label})["error"]
    step = 1e-6
    for at in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[at] = step
        losses = [
            layer.reference({}, {"x": x + sign * moved, "label": label})["metrics"][..., 0].sum() for sign in (1, -1)
        ]
        assert error[at] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5, abs=1e-8)


def test_among_equal_logits_the_first_is_the_guess() -> None:
    layer = SoftmaxCrossEntropy(classes=4)
    x = np.array([0, 5, 5, 1]).reshape(1, 1, 1, 4).repeat(2, axis=0)
    label = np.array([1, 2]).reshape(2, 1, 1, 1)
    assert layer.golden({}, {"x": x, "label": label})["metrics"][..., 1].reshape(-1).tolist() == [1, 0]


def test_a_sure_right_guess_costs_nothing_and_has_no_error() -> None:
    layer = SoftmaxCrossEntropy(classes=10)
    x = np.full((1, 1, 1, 10), layer.x_fixed.low)
    x[..., 3] = layer.x_fixed.high
    made = layer.golden({}, {"x": x, "label": np.full((1, 1, 1, 1), 3)})
    assert made["metrics"].reshape(-1).tolist() == [0, 1]
    assert (made["error"] == 0).all()


def test_a_sure_wrong_guess_costs_the_distance() -> None:
    layer = SoftmaxCrossEntropy(classes=10)
    x = np.full((1, 1, 1, 10), layer.x_fixed.low)
    x[..., 3] = layer.x_fixed.high
    made = layer.golden({}, {"x": x, "label": np.full((1, 1, 1, 1), 5)})
    assert METRICS.decode(made["metrics"][0, 0, 0, 0]) == pytest.approx(256, abs=0.01)
    error = layer.e_fixed.decode(made["error"]).reshape(-1)
    assert error[3] == 1
    assert error[5] == -1
    assert (np.delete(error, [3, 5]) == 0).all()


def test_loss_beyond_its_format_saturates_in_golden_and_circuit() -> None:
    layer = SoftmaxCrossEntropy(classes=3, x_fixed=Fixed(16, -4))
    case = make_case(layer, batches=10, seed=2)
    losses = np.concatenate([np.asarray(tensor)[..., 0].reshape(-1) for tensor in case.tensors["metrics"]])
    assert losses.max() == METRICS.high
    assert_equal_bits(case, design_of(case), Backend.MYHDL, seed=2)


def test_errors_of_a_frame_sum_to_almost_nothing() -> None:
    layer = SoftmaxCrossEntropy(classes=100, e_fixed=Fixed(32, 28))
    rng = np.random.default_rng(4)
    made = layer.golden({}, {"x": logits(layer, 2, rng, 50), "label": layer.sample("label", rng, 50)})
    assert np.abs(layer.e_fixed.decode(made["error"]).sum(axis=-1)).max() < 2.0**-14


def test_one_class_and_too_few_cycles_and_unsigned_logits_are_refused() -> None:
    with pytest.raises(ShapeError, match="needs at least 2 classes, not 1"):
        SoftmaxCrossEntropy(classes=1)
    with pytest.raises(ShapeError, match=r"takes signed scores, not u16\.8"):
        SoftmaxCrossEntropy(classes=3, x_fixed=Fixed(16, 8, signed=False))
    with pytest.raises(FoldingError, match="1000 classes takes 1000 cycles a frame, more than 999; allow more cycles"):
        SoftmaxCrossEntropy(classes=1000).fold(999)
    assert SoftmaxCrossEntropy(classes=1000).fold(1000).cycles_per_frame == 1000
