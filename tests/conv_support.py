"""Convolution engines of random shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hdl.layers.folding import divisors

Pick = Callable[[Sequence[Any]], Any]


def chooser(rng: np.random.Generator) -> Pick:
    """One of the options, all as likely; as Python objects, which NumPy's own choice does not return."""
    return lambda options: options[int(rng.integers(len(options)))]


def with_random_lanes(layer: Any, pick: Pick) -> Any:
    """An engine with one of its tiles and any lanes that it can have."""
    tile = pick(tuple(layer.tiles(10**6)))
    lanes = {"w_lanes": pick(divisors(tile.size))}
    for port in layer.frame_ports:
        lanes[f"{port.name}_lanes"] = pick(divisors(port.tensor.shape[-1]))
    return dataclasses.replace(layer, tile=tile, **lanes)
