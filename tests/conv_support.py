"""Convolution engines of random shapes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hdl.layers.folding import divisors
from hdl.tensor import Tile

Pick = Callable[[Sequence[Any]], Any]


def chooser(rng: np.random.Generator) -> Pick:
    """One of the options, all as likely; as Python objects, which NumPy's own choice does not return."""
    return lambda options: options[int(rng.integers(len(options)))]


def ragged_tiles(layer: Any) -> tuple[Tile, ...]:
    """Tiles that do not divide the channels of an engine, or not its filters."""
    filters, channels = layer.weight_shape[:2]
    shapes = itertools.product(range(1, filters + 1), range(1, channels + 1), layer.tap_groups)
    return tuple(tile for tile in itertools.starmap(Tile, shapes) if not tile.divides(layer.weight_shape))


def with_random_lanes(layer: Any, pick: Pick, tile: Tile | None = None) -> Any:
    """An engine with that tile, or one of its own, and any lanes that it can have."""
    tile = tile or pick(tuple(layer.tiles(10**6)))
    lanes = {"w_lanes": pick(divisors(tile.size))}
    for port in layer.frame_ports:
        lanes[f"{port.name}_lanes"] = pick(divisors(port.tensor.shape[-1]))
    return dataclasses.replace(layer, tile=tile, **lanes)
