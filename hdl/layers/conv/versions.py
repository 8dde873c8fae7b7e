"""Which frames of a batch see which version of the weights, for golden models and references."""

from __future__ import annotations

from typing import Any

from hdl.layers.meaning import State
from hdl.recipe import Recipe

# frames of a batch, and the weights that they see
Versions = list[tuple[slice, Any]]


def by_version(state: State, weights: Any, recipe: Recipe) -> Versions:
    """(frames, weights) of the batch at hand: the first ``staleness`` frames see the version before.

    Keeps ``weights`` in ``state["previous"]`` for the next batch."""
    previous = state.get("previous")
    state["previous"] = weights
    if previous is None or recipe.staleness == 0:
        return [(slice(0, None), weights)]
    return [(slice(0, recipe.staleness), previous), (slice(recipe.staleness, None), weights)]
