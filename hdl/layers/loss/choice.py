"""The loss that a recipe asks for."""

from __future__ import annotations

from hdl.layers.base import Layer
from hdl.layers.loss.mean_squared_error import MeanSquaredError
from hdl.layers.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from hdl.recipe import Loss, Recipe


def loss_of(recipe: Recipe, classes: int) -> Layer:
    """Over the scores of so many classes."""
    if recipe.loss is Loss.MEAN_SQUARED_ERROR:
        return MeanSquaredError(classes=classes)
    return SoftmaxCrossEntropy(classes=classes, smoothing=recipe.label_smoothing)
