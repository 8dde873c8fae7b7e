"""Residuals of error feedback that lie outside (`hdl.engine.codec.feedback`), loaded and dumped by streams::

    outside.back ─┬▶ residuals.back ─▶ feedback ─▶ residuals.out ─┬▶ outside.out
                  ├▶ dumped words                                 │
                  ╰──────────────▶ as it came ────────────────────┤
                                                  loaded words ───╯

There is one tensor of them, outside or on its way from one end to the other.
"""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.codec.feedback import ResidualStreams, tensors_left
from hdl.engine.weights.access import Batches
from hdl.engine.weights.records import WORD_BITS
from hdl.engine.weights.sections import pieces_of
from hdl.engine.weights.update_outside_access import RingState, ring_state
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import queue, take_bits, width_adapter


@block
def accessed_residuals(
    domain: ClockReset,
    outside: ResidualStreams,
    residuals: ResidualStreams,
    taken: Stream,
    given: Stream,
    batches: Batches,
    *,
    beats: int,
) -> Instances:
    """Hands residuals on both ways, of as many batches as are said; nothing stands outside before it is loaded.

    What is loaded goes out like residuals of a batch; from the second load on a beat of those before is taken, and
    forgotten, with every beat.  What is dumped is taken beat by beat, and goes out again.  Costs what packs and unpacks
    words, a multiplexer of a beat, a queue of two, and counters.

    Ports:
        outside: in and out; takes ``back``, drives ``out``: streams of a beat of residuals, ``beats`` a tensor; the
            latter's valid and payload from registers.
        residuals: in and out; drives ``back``, takes ``out``: streams as wide, of who adds residuals.
        taken: in, stream of `WORD_BITS` bits: a beat in pieces, low bits first.
        given: out, stream as wide: the same, while ``batches.giving``.
        batches: in and out; drives ``rests``, from registers.
    """
    came, left, back, made = outside.back, outside.out, residuals.back, residuals.out
    size = pieces_of(came.width)
    pieces, loaded, saved, whole = (
        Stream(size * WORD_BITS), Stream(came.width), Stream(came.width), Stream(size * WORD_BITS),
    )  # fmt: skip
    leaving = Stream(came.width)
    most = beats
    fetch, opened, may, forgets = (Signal(bool(0)) for _ in range(4))
    # residuals that were read and did not leave anew
    out = Signal(intbv(0, min=0, max=beats + 1))
    ring = RingState()
    limits = tensors_left(domain, batches, fetch, out, opened, beats=beats)
    known = ring_state(domain, batches.giving, ring, beats=beats)
    hold = queue(domain, leaving, left, depth=2)
    pack = width_adapter(domain, taken, pieces, element_bits=WORD_BITS)
    cut = take_bits(pieces, loaded, low=0)
    unpack = width_adapter(domain, whole, given, element_bits=WORD_BITS)

    @always_comb
    def widen() -> None:
        whole.valid.next = saved.valid
        whole.payload.next = saved.payload
        saved.ready.next = whole.ready

    # what is loaded goes first; there is one tensor of residuals
    @always_comb
    def decide() -> None:
        may.next = opened and not loaded.valid and out != most

    @always_comb
    def hand_on() -> None:
        back.valid.next = came.valid and may
        back.payload.next = came.payload
        fetch.next = came.valid and may and back.ready

    @always_comb
    def take() -> None:
        ring.writes.next = loaded.valid and leaving.ready and (came.valid or not ring.filled)
        loaded.ready.next = leaving.ready and (came.valid or not ring.filled)
        forgets.next = ring.filled and loaded.valid and leaving.ready

    @always_comb
    def give() -> None:
        saved.valid.next = ring.wanted and leaving.ready and came.valid
        saved.payload.next = came.payload
        ring.copies.next = ring.wanted and leaving.ready and came.valid and saved.ready

    # one of the three at a time
    @always_comb
    def answer() -> None:
        came.ready.next = (may and back.ready) or forgets or (ring.wanted and leaving.ready and saved.ready)

    @always_comb
    def leave() -> None:
        made.ready.next = leaving.ready and not loaded.valid
        if loaded.valid:
            leaving.valid.next = came.valid or not ring.filled
            leaving.payload.next = loaded.payload
        elif ring.wanted:
            leaving.valid.next = came.valid and saved.ready
            leaving.payload.next = came.payload
        else:
            leaving.valid.next = made.valid
            leaving.payload.next = made.payload

    @always(domain.clk.posedge)
    def count() -> None:
        if fetch and not (made.valid and made.ready):
            out.next = out + 1
        elif made.valid and made.ready and not fetch:
            out.next = out - 1
        if domain.rst:
            out.next = 0

    return limits, known, hold, pack, cut, unpack, widen, decide, hand_on, take, give, answer, leave, count
