"""Examples of convolutions for the suite: (fields, lanes of the input map, lanes of the output map)."""

from __future__ import annotations

from typing import Any

from hdl.layers.conv.engine import Example
from hdl.recipe import Recipe
from hdl.tensor import Tile

PLAIN, STALE = Recipe(batch=2), Recipe(batch=2, staleness=1)
# a kernel that keeps the size of the map
SAME: dict[str, Any] = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
# those of `dense_examples` that are there with one version of weights as well: staleness none, some, a batch
PARKED_EXAMPLES = (2, 3, 8)


def dense_examples() -> list[Example]:
    """Kernels, strides, paddings, tiles, staleness."""

    def fields(height: int, width: int, channels: int, filters: int, **others: Any) -> dict[str, Any]:
        return {"height": height, "width": width, "channels": channels, "filters": filters, **others}

    wide: dict[str, Any] = {"kernel": (7, 7), "stride": (2, 2), "padding": (3, 3, 3, 3)}
    odd: dict[str, Any] = {"kernel": (2, 3), "stride": (2, 1), "padding": (0, 1, 1, 0)}
    return [
        (fields(4, 4, 2, 2, **SAME, recipe=PLAIN, tile=Tile()), 1, 1),
        (fields(5, 3, 4, 4, **SAME, recipe=STALE, tile=Tile(2, 2, 3), w_lanes=3), 2, 4),
        (fields(5, 6, 2, 4, **SAME, stride=(2, 2), recipe=PLAIN, tile=Tile(2, 1, 3)), 2, 1),
        (fields(3, 4, 6, 6, kernel=(1, 1), recipe=STALE, tile=Tile(2, 3)), 2, 3),
        (fields(4, 5, 4, 2, kernel=(1, 1), stride=(2, 2), recipe=PLAIN, tile=Tile(2, 4), w_lanes=4), 4, 2),
        (fields(5, 4, 1, 2, **wide, recipe=PLAIN, tile=Tile(1, 1, 7), w_lanes=7), 1, 1),
        (fields(3, 2, 2, 4, kernel=(3, 2), recipe=STALE, tile=Tile(4, 1, 2), w_lanes=8), 1, 2),
        (fields(1, 1, 4, 3, kernel=(1, 1), recipe=Recipe(batch=8), tile=Tile(3, 4), w_lanes=6), 4, 3),
        (fields(3, 4, 2, 2, **SAME, recipe=Recipe(batch=2, staleness=2), tile=Tile(2, 2, 9), w_lanes=4), 1, 2),
        (fields(6, 3, 3, 2, **odd, recipe=PLAIN, tile=Tile(1, 3, 3)), 1, 1),
        # in groups: a tile in one of them, one of two of them, all filters of a channel
        (fields(3, 4, 4, 8, **SAME, groups=2, recipe=STALE, tile=Tile(2, 1, 3), w_lanes=2), 1, 4),
        (fields(4, 3, 12, 8, **SAME, groups=4, recipe=PLAIN, tile=Tile(4, 3), w_lanes=4), 2, 1),
        (fields(5, 3, 2, 6, **SAME, stride=(2, 1), groups=2, recipe=PLAIN, tile=Tile(6, 1, 3)), 1, 2),
        # taps apart: beside one another in a cycle, and with strides that have a divisor in common with the distance
        (fields(6, 5, 2, 2, **SAME, dilation=(2, 1), recipe=STALE, tile=Tile(2, 1, 9), w_lanes=3), 1, 1),
        (fields(7, 6, 2, 2, **SAME, stride=(2, 2), dilation=(2, 3), recipe=PLAIN, tile=Tile(1, 2)), 2, 1),
        # ragged tiles: both ways, lanes that are part of a tile's, and such as go across the ends of its words
        (fields(3, 4, 5, 3, **SAME, recipe=STALE, tile=Tile(2, 3, 3), w_lanes=3), 1, 3),
        (fields(4, 3, 6, 10, kernel=(1, 1), stride=(2, 1), recipe=PLAIN, tile=Tile(4, 4), w_lanes=8), 2, 5),
        # a fully connected layer over a map
        (fields(3, 2, 4, 4, kernel=(3, 2), stride=(3, 2), recipe=STALE, tile=Tile(4, 2), w_lanes=4), 2, 4),
    ]


def depthwise_examples() -> list[Example]:
    """Kernels, strides, paddings, tiles, staleness."""

    def fields(height: int, width: int, channels: int, **others: Any) -> dict[str, Any]:
        return {"height": height, "width": width, "channels": channels, **others}

    odd: dict[str, Any] = {"kernel": (2, 3), "stride": (1, 2), "padding": (0, 1, 1, 0)}
    return [
        (fields(4, 3, 2, **SAME, recipe=PLAIN, tile=Tile()), 1, 1),
        (fields(3, 4, 4, **SAME, recipe=STALE, tile=Tile(2, 1, 3), w_lanes=2), 2, 4),
        (fields(5, 5, 2, **SAME, stride=(2, 2), recipe=STALE, tile=Tile(2)), 2, 1),
        (fields(3, 3, 3, **SAME, recipe=PLAIN, tile=Tile(1, 1, 9), w_lanes=3), 1, 3),
        (fields(4, 5, 2, **odd, recipe=PLAIN, tile=Tile(2, 1, 3), w_lanes=6), 1, 2),
        (fields(1, 1, 4, kernel=(1, 1), recipe=STALE, tile=Tile(4)), 2, 4),
        (fields(7, 6, 2, **SAME, stride=(2, 1), dilation=(2, 2), recipe=PLAIN, tile=Tile(1, 1, 3)), 1, 1),
    ]
