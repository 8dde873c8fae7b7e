"""Weights as a stream: the words of the version that each frame uses, again and again."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.weights.buffer import READ_LATENCY, weight_buffer
from hdl.memory import address_width
from hdl.recipe import Recipe
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import queue, width_adapter

# words read ahead of their use: covers the latency of the buffer at one word a cycle
AHEAD = READ_LATENCY + 5


@block
def weight_stream(
    domain: ClockReset,
    w: Stream | None,
    y: Stream,
    *,
    element_bits: int,
    words: int,
    repeats: int,
    recipe: Recipe,
    contents: Sequence[int] | None = None,
) -> Instances:
    """For each frame, ``repeats`` times all ``words`` words of the version it uses (`Recipe.version`), or of the only
    one, where there is no ``w``.

    Image "weights".  One word a cycle.  Costs the buffer of two
    versions and a queue of `AHEAD` words.

    Ports:
        w: in, stream of any number of elements of ``element_bits`` bits: new versions, once a batch.
        y: out, stream of any number of elements, a word a beat; valid and payload from registers.
    """
    loaded, read = Stream(y.width), Stream(y.width)
    adapt = [] if w is None else width_adapter(domain, w, loaded, element_bits=element_bits)
    last_word, last_repeat = words - 1, repeats - 1
    offset = Signal(intbv(0)[address_width(words) :])
    turn = Signal(intbv(0)[address_width(repeats) :])
    word = Signal(intbv(0)[y.width :])
    # words asked for and not yet taken by the user
    ahead = Signal(intbv(0, min=0, max=AHEAD + 1))
    claim, claimable, advance, frame_last, running, taken, done = (Signal(bool(0)) for _ in range(7))
    buffer = weight_buffer(
        domain, None if w is None else loaded, claim, claimable, advance, offset, frame_last, word,
        words=words, recipe=recipe, contents=contents,
    )  # fmt: skip
    hold = queue(domain, read, y, depth=AHEAD)
    coming = [Signal(bool(0)) for _ in range(READ_LATENCY)]
    final = coming[READ_LATENCY - 1]

    @always(domain.clk.posedge)
    def arrival() -> None:
        coming[0].next = advance
        for stage in range(1, READ_LATENCY):
            coming[stage].next = coming[stage - 1]
        if domain.rst:
            for stage in range(READ_LATENCY):
                coming[stage].next = False

    @always_comb
    def decide() -> None:
        advance.next = running and ahead != AHEAD
        frame_last.next = offset == last_word and turn == last_repeat
        taken.next = y.valid and y.ready

    @always_comb
    def next_frame() -> None:
        done.next = advance and frame_last
        claim.next = claimable and (not running or (advance and frame_last))

    @always_comb
    def push() -> None:
        read.valid.next = final
        read.payload.next = word

    @always(domain.clk.posedge)
    def step() -> None:
        if claim:
            running.next = True
        elif done:
            running.next = False
        if advance:
            if offset == last_word:
                offset.next = 0
                if turn == last_repeat:
                    turn.next = 0
                else:
                    turn.next = turn + 1
            else:
                offset.next = offset + 1
        if advance and not taken:
            ahead.next = ahead + 1
        elif taken and not advance:
            ahead.next = ahead - 1
        if domain.rst:
            running.next = False
            offset.next = 0
            turn.next = 0
            ahead.next = 0

    return adapt, buffer, hold, arrival, decide, next_frame, push, step
