"""How many lanes a port gets."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from functools import lru_cache

# share of the multipliers of a tile that divides filters and channels above which a ragged one of as many passes is not
# worth its empty places
RAGGED_SHARE = 0.85
# elements in a width adapter between beats and words of which neither is a multiple of the other, from which on it is
# too slow: 59 take less than 4 ns at 350 ps a net, 69 take 4.4 ns
GEARBOX_ELEMENTS = 64


def lanes_for(elements: int, channels: int, cycles: int) -> int:
    """The fewest lanes that divide ``channels`` and pass ``elements`` within ``cycles``; all channels if none do."""
    return next((n for n in divisors(channels) if elements // n <= cycles), channels)


def frame_lanes(elements: int, channels: int, cycles: int, row: int = 0) -> int:
    """As `lanes_for`; where all channels do not do, the fewest whole pixels that divide the map, or ``row`` pixels, and
    do; all of them if none do."""
    lanes = lanes_for(elements, channels, cycles)
    pixels = elements // channels
    return lanes if elements // lanes <= cycles else channels * lanes_for(pixels, row or pixels, cycles)


def weight_lanes(elements: int, tile: int, cycles: int) -> int:
    """The fewest lanes that divide ``tile`` (weights a tile) and pass all weights within ``cycles``, one frame's time.

    So an update reaches its users about one frame after the last gradient of its batch; all of the tile if none do."""
    return next((n for n in divisors(tile) if elements // n <= cycles), tile)


@lru_cache(maxsize=1024)
def ragged_lanes(filters: int, channels: int) -> tuple[tuple[int, int], ...]:
    """(filters, channels) of the ragged tiles that folding should choose among beside those that divide: of every
    number of passes the one of fewest lanes, if no tile of fewer passes has as few, and none that divides nearly so.

    Ragged in filters alone: in channels as well saves less than half a per cent more (docs/networks.md)."""
    front = _fewest(
        (-(-filters // po) * -(-channels // pi), po, pi) for po in divisors(filters) for pi in divisors(channels)
    )
    passes = [count for count, _, _ in front]

    def divided(count: int) -> int:
        """Lanes of a tile that divides, of so many passes at most."""
        at = bisect.bisect_right(passes, count) - 1
        return front[at][1] * front[at][2]

    sizes = {-(-filters // count) for count in range(1, filters + 1)} - set(divisors(filters))
    found = _fewest((-(-filters // po) * (channels // pi), po, pi) for po in sizes for pi in divisors(channels))
    return tuple((po, pi) for count, po, pi in found if po * pi <= RAGGED_SHARE * divided(count))


def may_be_ragged(filters: int, lanes: int) -> bool:
    """Whether a ragged tile of so many filters may meet a map of so many elements a beat: an adapter between them, if
    it is a gearbox (`hdl.streams.width_adapter`), is small enough."""
    return filters % lanes == 0 or filters + lanes + min(filters, lanes) < GEARBOX_ELEMENTS


def _fewest(tiles: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(passes, filters, channels) of tiles that have fewer lanes than any of as many or fewer passes, ascending in
    passes."""
    found: list[tuple[int, int, int]] = []
    least = math.inf
    for count, po, pi in sorted(tiles, key=lambda tile: (tile[0], tile[1] * tile[2], tile)):
        if po * pi < least:
            least = po * pi
            found.append((count, po, pi))
    return found


def divisors(number: int) -> list[int]:
    """Divisors, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]
