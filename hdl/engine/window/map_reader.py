"""A map as a kernel sees it: a ring of its last rows, and the walk through it."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, block

from hdl.engine.window.row_store import row_store
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import Steps, WeightSteps, walker
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream


@block
def map_reader(
    domain: ClockReset,
    map_words: Stream,
    words: Sequence[Bits],
    claim: Bit,
    claimable: Bit,
    may: Bit,
    steps: Steps,
    *,
    walk: Walk,
    ring_rows: int,
    weights: WeightSteps | None,
) -> Instances:
    """The ring of rows and the walk through it.

    Ports:
        map_words: in, stream of words of any width in raster order, of `row_store`.
        words: out, a vector a tap, as wide as ``map_words``, with ``steps.valid``.
        claim: out, 1 bit, of `walker`.
        claimable, may: in, 1 bit each, of `walker`.
        steps: out, when as said there.

    Args:
        ring_rows, weights: of `walker`.
    """
    row_written = Signal(bool(0))
    rows = row_store(domain, map_words, row_written, *steps.reads, words, rows=ring_rows, row_words=walk.row_words)
    walking = walker(domain, row_written, claim, claimable, may, steps, walk=walk, ring_rows=ring_rows, weights=weights)
    return rows, walking
