"""Exact gradient sums to gradients: stochastic rounding of a stream in tile order, of the sums of one engine or of
several."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.engine.random import HASH_LATENCY, hash32_pipeline, round_stochastically, stream_indices
from hdl.engine.weights.access import Begin
from hdl.fixed import Fixed
from hdl.random_bits import WORD
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import queue, queue_latency
from hdl.tensor import Tile

# places of the queue in front of ``g``
DEPTH = 2
# cycles of `gradient_rounding`
GRADIENT_ROUNDING_LATENCY = 3


def leave_cycles(*, exact: bool) -> int:
    """Cycles of what `leaving` gives."""
    return queue_latency(DEPTH) if exact else GRADIENT_ROUNDING_LATENCY


@dataclass(frozen=True)
class Rounding:
    """Whose sums become which gradients."""

    # of the parameter
    shape: tuple[int, ...]
    tile: Tile
    # sums a beat
    lanes: int
    # bits of them that are cut off
    shift: int
    target: Fixed
    # of the random bits
    key: int
    # batches of an earlier training
    begun: int = 0


def leaving(rounding: Rounding | None, begin: Begin | None = None) -> Callable[[ClockReset, Stream, Stream], Instances]:
    """The circuit (domain, sums, g) through which sums over a batch leave: `gradient_rounding`, or without ``rounding``
    a queue."""
    if rounding is None:
        return partial(queue, depth=DEPTH)
    return partial(gradient_rounding, rounding=rounding, begin=begin)


@block
def gradient_rounding(
    domain: ClockReset,
    sums: Stream,
    g: Stream,
    *,
    rounding: Rounding,
    begin: Begin | None = None,
    begins: Bit | None = None,
) -> Instances:
    """Rounds the sums of a whole parameter, batch after batch, with the random bits of (element, batch, ``key``).

    One beat a cycle; latency 3 cycles.  Random bits are made ahead of the sums, so a batch starts without delay.
    Costs the hash and the rounding of ``lanes`` elements (see `hdl.random_bits`).

    Ports:
        sums: in, stream of ``lanes`` signed sums of any width, in the stream order of ``tile``.
        g: out, stream of ``lanes`` codes of ``target``, 3 cycles later; valid and payload from registers.
        begin: in, ``held`` and ``batches`` alone: batches are counted from there on, and none is rounded before; None:
            from ``rounding.begun`` on.
        begins: out, 1 bit: there are random bits, so that sums are taken; stays high.
    """
    tile, lanes, shift, target, key = rounding.tile, rounding.lanes, rounding.shift, rounding.target, rounding.key
    begun = rounding.begun % (1 << WORD) if begin is None else begin.batches
    counting = domain if begin is None else begin.domain(domain)
    beats = (math.prod(rounding.shape) + tile.padding(rounding.shape)) // lanes
    final = beats - 1
    index, hashed = (Signal(intbv(0)[WORD * lanes :]) for _ in range(2))
    random = Signal(intbv(0)[16 * lanes :])
    step = Signal(modbv(0)[WORD:])
    beat = Signal(intbv(0)[max(1, final.bit_length()) :])
    filled = [Signal(bool(0)) for _ in range(HASH_LATENCY)]
    known = filled[HASH_LATENCY - 1]
    advance, enable, fire, first, second = (Signal(bool(0)) for _ in range(5))
    rounded = Stream(g.width)
    indices = stream_indices(counting, advance, index, shape=rounding.shape, tile=tile, lanes=lanes)
    hashing = hash32_pipeline(domain.clk, advance, index, step, key, hashed)
    rounds = round_stochastically(
        domain.clk, enable, sums.payload, random, rounded.payload, lanes=lanes, shift=shift, target=target
    )
    hold = queue(domain, rounded, g, depth=DEPTH)

    @always_comb
    def take() -> None:
        enable.next = rounded.ready or not second

    @always_comb
    def handshake() -> None:
        fire.next = sums.valid and known and enable
        sums.ready.next = known and enable
        advance.next = not known or (sums.valid and enable)

    @always_comb
    def high_halves() -> None:
        for lane in range(lanes):
            random.next[bits_of(lane, 16)] = hashed[lane * 32 + 32 : lane * 32 + 16]

    @always_comb
    def out() -> None:
        rounded.valid.next = second

    @always(domain.clk.posedge)
    def count() -> None:
        if advance:
            filled[0].next = True
            for stage in range(1, HASH_LATENCY):
                filled[stage].next = filled[stage - 1]
            if beat == final:
                beat.next = 0
                step.next = step + 1
            else:
                beat.next = beat + 1
        if counting.rst:
            for stage in range(HASH_LATENCY):
                filled[stage].next = False
            beat.next = 0
            step.next = begun

    @always(domain.clk.posedge)
    def flags() -> None:
        if enable:
            first.next = fire
            second.next = first
        if domain.rst:
            first.next = False
            second.next = False

    parts = indices, hashing, rounds, hold, take, handshake, high_halves, out, count, flags
    if begins is None:
        return parts

    @always_comb
    def tell() -> None:
        begins.next = known

    return *parts, tell
