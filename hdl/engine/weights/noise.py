"""Random bits for the elements of a parameter, as a stream beside theirs."""

from __future__ import annotations

import math

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.engine.random import HASH_LATENCY, hash32_pipeline, stream_indices
from hdl.engine.weights.access import Begin
from hdl.random_bits import WORD
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.tensor import Tile


@block
def element_noise(
    domain: ClockReset,
    y: Stream,
    *,
    shape: tuple[int, ...],
    tile: Tile,
    lanes: int,
    key: int,
    begun: int,
    begin: Begin | None = None,
) -> Instances:
    """16 random bits of (element, batch, ``key``) for each element of a parameter, batch after batch, made ahead.

    Costs the hash of ``lanes`` elements (`hdl.random_bits`).

    Ports:
        y: out, stream of ``16 * lanes`` bits, in the stream order of ``tile``.
        begin: in, ``held`` and ``batches`` alone: batches are counted from there on, and none has bits before; None:
            from ``begun`` on.
    """
    final = (math.prod(shape) + tile.padding(shape)) // lanes - 1
    index, hashed = (Signal(intbv(0)[WORD * lanes :]) for _ in range(2))
    batch = Signal(modbv(begun)[WORD:])
    beat = Signal(intbv(0)[max(1, final.bit_length()) :])
    # words under way; the last one is offered
    filled = Signal(intbv(0)[HASH_LATENCY:])
    advance = Signal(bool(0))
    oldest = HASH_LATENCY - 1
    first = begun % (1 << WORD) if begin is None else begin.batches
    counting = domain if begin is None else begin.domain(domain)
    indices = stream_indices(counting, advance, index, shape=shape, tile=tile, lanes=lanes)
    hashing = hash32_pipeline(domain.clk, advance, index, batch, key, hashed)

    @always_comb
    def move_on() -> None:
        advance.next = y.ready or not filled[oldest]

    @always_comb
    def offer() -> None:
        y.valid.next = filled[oldest]
        for lane in range(lanes):
            y.payload.next[bits_of(lane, 16)] = hashed[lane * 32 + 32 : lane * 32 + 16]

    @always(domain.clk.posedge)
    def step() -> None:
        if advance:
            filled.next[0] = True
            filled.next[HASH_LATENCY:1] = filled[oldest:]
            if beat == final:
                beat.next = 0
                batch.next = batch + 1
            else:
                beat.next = beat + 1
        if counting.rst:
            filled.next = 0
            beat.next = 0
            batch.next = first

    return indices, hashing, move_on, offer, step
