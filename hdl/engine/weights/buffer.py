"""Two versions of a layer's weights: one in use, the next one arriving."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.memory import address_width, read_only, simple_dual_port
from hdl.recipe import Recipe
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream

# cycles from `advance` to the word
READ_LATENCY = 3


@block
def weight_buffer(
    domain: ClockReset,
    w: Stream | None,
    claim: Bit,
    claimable: Bit,
    advance: Bit,
    offset: Bits,
    frame_last: Bit,
    word: Bits,
    *,
    words: int,
    recipe: Recipe,
    contents: Sequence[int] | None = None,
    streamed: bool = False,
    slots: int = 2,
) -> Instances:
    """A memory of ``slots * words`` words with the image "weights"; version 0 is its first place at power-up.

    Frame ``t`` (0, 1, …) reads version ``recipe.version(t)``.  Version 1, 2, … arrive on ``w``, ``words`` words each,
    into a place that is not in use, and wait there.  Of a single place the next version takes possession after the
    last read of the one before; until all of it is there no frame starts.  Costs the memory and a few counters.

    With ``streamed`` there is no image and no rule: every "frame" reads the next ``words`` words of ``w``.

    Without ``w`` version 0 is the only one, for all frames: see `held_weights`.

    Ports:
        w: in, stream of any width, a word a beat; ready from registers.
        claim: in, 1 bit, only while ``claimable``: the next frame (in order) starts.
        claimable: out, 1 bit, from registers: the version of the next frame to claim is there.
        advance: in, 1 bit: read a word of the frame that is being computed (frames in order, each claimed before).
        offset: in, `address_width` ``(words)`` bits, with ``advance``: which word of the version.
        frame_last: in, 1 bit, with ``advance``: this is the last read of its frame.
        word: out, as wide as ``w``, `READ_LATENCY` cycles after ``advance``.
    """
    if w is None:
        return held_weights(domain, claimable, advance, offset, word, words=words, contents=contents)
    width = w.width
    batch = 1 if streamed else recipe.batch
    first_claims = 0 if streamed else recipe.batch + recipe.staleness
    first_reads = max(batch, first_claims)
    first_write = 0 if streamed or slots == 1 else words
    first_ahead = -1 if streamed else 0
    last_word = words - 1
    final, last_base = slots * words - 1, (slots - 1) * words
    last_slot = slots - 1
    # frames that may still be claimed, and are still to be read, with the version at hand
    to_claim = Signal(intbv(first_claims, min=0, max=first_reads + 1))
    to_read = Signal(intbv(first_reads, min=0, max=first_reads + 1))
    # versions that arrived and weren't claimed; versions that arrived less versions switched to
    waiting = Signal(intbv(0, min=0, max=slots + 1))
    ahead = Signal(intbv(first_ahead, min=-1, max=slots))
    base = Signal(intbv(0)[address_width(slots * words) :])
    read_at = Signal(intbv(0)[address_width(slots * words) :])
    write_at = Signal(intbv(first_write)[address_width(slots * words) :])
    place = Signal(intbv(0)[address_width(words) :])
    read, room, fire, complete, switch, renew = (Signal(bool(0)) for _ in range(6))
    store = simple_dual_port(
        domain.clk,
        fire,
        write_at,
        w.payload,
        read,
        read_at,
        word,
        depth=slots * words,
        width=width,
        contents=contents,
        output_register=True,
        image=None if streamed else "weights",
    )

    @always_comb
    def decide() -> None:
        claimable.next = to_claim != 0 or waiting != 0
        renew.next = claim and to_claim == 0
        switch.next = advance and frame_last and to_read == 1
        room.next = ahead < last_slot

    @always_comb
    def handshake() -> None:
        fire.next = w.valid and room
        complete.next = w.valid and room and place == last_word
        w.ready.next = room

    @always(domain.clk.posedge)
    def load() -> None:
        if fire:
            if place == last_word:
                place.next = 0
            else:
                place.next = place + 1
            if write_at == final:
                write_at.next = 0
            else:
                write_at.next = write_at + 1
        if domain.rst:
            place.next = 0
            write_at.next = first_write

    @always(domain.clk.posedge)
    def versions() -> None:
        if complete and not renew:
            waiting.next = waiting + 1
        elif renew and not complete:
            waiting.next = waiting - 1
        if complete and not switch:
            ahead.next = ahead + 1
        elif switch and not complete:
            ahead.next = ahead - 1
        if domain.rst:
            waiting.next = 0
            ahead.next = first_ahead

    @always(domain.clk.posedge)
    def frames() -> None:
        if renew:
            to_claim.next = batch - 1
        elif claim:
            to_claim.next = to_claim - 1
        if switch:
            to_read.next = batch
            if base == last_base:
                base.next = 0
            else:
                base.next = base + words
        elif advance and frame_last:
            to_read.next = to_read - 1
        if domain.rst:
            to_claim.next = first_claims
            to_read.next = first_reads
            base.next = 0

    @always(domain.clk.posedge)
    def address() -> None:
        read.next = advance
        read_at.next = base + offset

    return store, decide, handshake, load, versions, frames, address


@block
def held_weights(
    domain: ClockReset,
    claimable: Bit,
    advance: Bit,
    offset: Bits,
    word: Bits,
    *,
    words: int,
    contents: Sequence[int] | None = None,
) -> Instances:
    """A memory of ``words`` words with the image "weights", which nobody writes.  Costs that memory alone.

    Ports:
        claimable: out, 1 bit: high unless in reset.
        advance: in, 1 bit, as of `weight_buffer`.
        offset: in, `address_width` ``(words)`` bits, with ``advance``: which word.
        word: out, of any width, `READ_LATENCY` cycles after ``advance``.
    """
    read = Signal(bool(0))
    read_at = Signal(intbv(0)[address_width(words) :])
    store = read_only(
        domain.clk,
        read,
        read_at,
        word,
        depth=words,
        width=len(word),
        contents=contents,
        output_register=True,
        image="weights",
    )
    rst = domain.rst

    @always_comb
    def decide() -> None:
        claimable.next = not rst

    @always(domain.clk.posedge)
    def address() -> None:
        read.next = advance
        read_at.next = offset

    return store, decide, address
