"""The arithmetic of tiles that do not divide the channels."""

from __future__ import annotations

from benchmarks.padded_tiles import Convolution, blocks_at, convolutions, fit, paces
from hdl.layers.conv.dense import Conv, ConvError, ConvGradient
from hdl.layers.conv.engine import WindowEngine
from hdl.parts.catalogue import DEFAULT_PARTS
from tests.cosim_support import twelve_net

PART = DEFAULT_PARTS[0]
SHAPE = {"height": 7, "width": 6, "channels": 12, "kernel": (3, 3), "padding": (1, 1, 1, 1), "stride": (2, 2)}
ENGINES: tuple[WindowEngine, ...] = (
    Conv(**SHAPE, filters=10),
    ConvError(**SHAPE, filters=10),
    ConvGradient(**SHAPE, filters=10),
)


def test_any_tile_needs_no_more_blocks_and_sometimes_fewer() -> None:
    found = convolutions(twelve_net(1), PART)
    assert sum(found.values()) == 3
    fewer = 0
    for convolution in (*found, Convolution(ENGINES, PART)):
        for cycles in paces({convolution: 1}, padded=True):
            divided, padded = blocks_at(convolution.divided, cycles), blocks_at(convolution.padded, cycles)
            assert padded is not None
            assert divided is None or padded <= divided
            fewer += divided is not None and padded < divided
    assert fewer


def test_items_fit_where_they_can_be_put() -> None:
    assert fit([6, 5, 4, 3], [9, 9])
    assert fit([4, 4, 3, 3, 3, 3], [10, 10])
    assert not fit([5, 5, 5], [9, 9])
    assert not fit([6, 6], [11])
