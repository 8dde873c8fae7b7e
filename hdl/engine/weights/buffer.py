"""Two versions of a layer's weights: one in use, the next one arriving."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.weights.versions import VersionRule, version_reader, version_writer
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
    rule = VersionRule(words, slots, batch=1, first=0) if streamed else VersionRule.of(recipe, words, slots)
    base, read_at = (Signal(intbv(0)[address_width(rule.depth) :]) for _ in range(2))
    write_at = Signal(intbv(rule.starts_at)[address_width(rule.depth) :])
    read, room, fire, complete = (Signal(bool(0)) for _ in range(4))
    store = simple_dual_port(
        domain.clk,
        fire,
        write_at,
        w.payload,
        read,
        read_at,
        word,
        depth=rule.depth,
        width=width,
        contents=contents,
        output_register=True,
        image=None if streamed else "weights",
    )
    writer = version_writer(domain, fire, write_at, complete, rule=rule)
    reader = version_reader(domain, claim, claimable, advance, frame_last, complete, room, base, rule=rule)

    @always_comb
    def handshake() -> None:
        fire.next = w.valid and room
        w.ready.next = room

    @always(domain.clk.posedge)
    def address() -> None:
        read.next = advance
        read_at.next = base + offset

    return store, writer, reader, handshake, address


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
