"""How many lanes a port gets."""

from __future__ import annotations

import math


def lanes_for(elements: int, channels: int, cycles: int) -> int:
    """The fewest lanes that divide ``channels`` and pass ``elements`` within ``cycles``; all channels if none do."""
    return next((n for n in divisors(channels) if elements // n <= cycles), channels)


def weight_lanes(elements: int, tile: int, cycles: int) -> int:
    """The fewest lanes that divide ``tile`` (weights a tile) and pass all weights within ``cycles``, one frame's time.

    So an update reaches its users about one frame after the last gradient of its batch; all of the tile if none do."""
    return next((n for n in divisors(tile) if elements // n <= cycles), tile)


def divisors(number: int) -> list[int]:
    """Divisors, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]
