"""The loss that a recipe asks for."""

from __future__ import annotations

from hdl.engine.loss.numbers import finer_bits
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.loss.mean_squared_error import MeanSquaredError
from hdl.layers.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.recipe import Loss, Recipe


def loss_of(recipe: Recipe, classes: int, *, auxiliary: bool = False) -> Layer:
    """Over the scores of so many classes, of the main head or of an auxiliary one."""
    weight = recipe.auxiliary if auxiliary else 0.0
    if recipe.loss is Loss.MEAN_SQUARED_ERROR:
        return MeanSquaredError(classes=classes, auxiliary=weight)
    error = Fixed(16, 14 + finer_bits(weight or 1.0))
    return SoftmaxCrossEntropy(classes=classes, smoothing=recipe.label_smoothing, auxiliary=weight, e_fixed=error)
