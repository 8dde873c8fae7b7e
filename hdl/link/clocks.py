"""A stream from one clock to another: an asynchronous FIFO.

Either side counts the words that went through it, and the other side sees the count two cycles late.  Counts cross in
Gray code: one bit of it changes at a time, so whatever a flip-flop makes of a bit that changes while it is sampled,
what it holds is the count from before or the one from after.  A side that sees an old count believes in less room, or
in fewer words, than there are, which costs time and nothing else (Cummings, "Simulation and Synthesis Techniques for
Asynchronous FIFO Design", SNUG 2002, style 1).

Nothing but time depends on the clocks: words leave as they came, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.memory import address_width, dual_clock
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import same_width
from hdl.unit import Unit

# words that a crossing holds: more than pass in a round trip of the counts, so that it passes one a cycle of the slower
# clock
CROSSING_WORDS = 16
# cycles of the reading clock until a word that came leaves an empty crossing, at most: one until the edge, two
# flip-flops, the comparison, the memory
CROSSING_CYCLES = 5


@dataclass(frozen=True, kw_only=True)
class ClockCrossing(Unit):
    """Takes a stream from one clock to another.

    Streams: ``x`` in at ``write_clk``, ``y`` out at ``read_clk``.  Inputs: both clocks, and a reset of each,
    synchronous to it; both sides are reset together, before the first word."""

    payload_bits: int
    # words, a power of two
    depth: int = CROSSING_WORDS

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": self.payload_bits, "y": self.payload_bits}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants, but clocks and resets."""
        return dict.fromkeys(("write_clk", "write_rst", "read_clk", "read_rst"), 1)

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class; ``domain`` is not used, since either side has its own."""
        del domain
        write_clk, write_rst, read_clk, read_rst = self.signals(self.inputs)
        return clock_crossing(write_clk, write_rst, read_clk, read_rst, streams["x"], streams["y"], depth=self.depth)


@block
def clock_crossing(
    write_clk: Clock,
    write_rst: Bit,
    read_clk: Clock,
    read_rst: Bit,
    x: Stream,
    y: Stream,
    *,
    depth: int = CROSSING_WORDS,
) -> Instances:
    """An asynchronous FIFO of ``depth`` words, a power of two from 4 on, and one more in front of ``y``.

    Passes a word a cycle of the slower clock.  Latency: 4 to `CROSSING_CYCLES` cycles of ``read_clk``.  Cost: a memory
    of depth × payload bits, two counts of log2(depth) + 1 bits, each binary, in Gray code and twice at the other side.
    Ready, valid and payload come from registers.

    Ports:
        write_clk: in, 1 bit.
        write_rst: in, 1 bit, synchronous to ``write_clk``, high.
        read_clk: in, 1 bit.
        read_rst: in, 1 bit, synchronous to ``read_clk``, high.
        x: in, stream of any width, at ``write_clk``.
        y: out, stream as wide as ``x``, at ``read_clk``.
    """
    width = same_width("clock_crossing", x, y)
    if depth < 4 or depth & (depth - 1):
        raise ValueError(f"a clock crossing holds a power of two of words, at least 4, not {depth}")
    bits = address_width(depth)
    # words that went in and out, modulo twice the depth; the same in Gray code; as the other side sees that
    written, written_next, written_code, written_code_next, written_seen = (
        Signal(intbv(0)[bits + 1 :]) for _ in range(5)
    )
    taken, taken_next, taken_code, taken_code_next, taken_seen = (Signal(intbv(0)[bits + 1 :]) for _ in range(5))
    full_code = Signal(intbv(0)[bits + 1 :])
    write_at, read_at = (Signal(intbv(0)[bits:]) for _ in range(2))
    word = Signal(intbv(0)[width:])
    ready, push, filled, fetch, valid = (Signal(bool(0)) for _ in range(5))
    mask, depth_apart = 2 * depth - 1, 3 << (bits - 1)
    store = dual_clock(write_clk, push, write_at, x.payload, read_clk, fetch, read_at, word, depth=depth, width=width)
    to_reader = synchroniser(read_clk, written_code, written_seen)
    to_writer = synchroniser(write_clk, taken_code, taken_seen)

    @always_comb
    def handshake() -> None:
        push.next = x.valid and ready
        fetch.next = filled and (y.ready or not valid)
        x.ready.next = ready
        y.valid.next = valid
        y.payload.next = word

    @always_comb
    def count() -> None:
        if push:
            written_next.next = (written + 1) & mask
        else:
            written_next.next = written
        if fetch:
            taken_next.next = (taken + 1) & mask
        else:
            taken_next.next = taken

    @always_comb
    def encode() -> None:
        written_code_next.next = written_next ^ (written_next >> 1)
        taken_code_next.next = taken_next ^ (taken_next >> 1)
        # the code of a count that is `depth` further on
        full_code.next = taken_seen ^ depth_apart

    @always_comb
    def addresses() -> None:
        write_at.next = written[bits:]
        read_at.next = taken[bits:]

    @always(write_clk.posedge)
    def write_side() -> None:
        written.next = written_next
        written_code.next = written_code_next
        ready.next = written_code_next != full_code
        if write_rst:
            written.next = 0
            written_code.next = 0
            ready.next = False

    @always(read_clk.posedge)
    def read_side() -> None:
        taken.next = taken_next
        taken_code.next = taken_code_next
        filled.next = taken_code_next != written_seen
        if fetch:
            valid.next = True
        elif y.ready:
            valid.next = False
        if read_rst:
            taken.next = 0
            taken_code.next = 0
            filled.next = False
            valid.next = False

    return store, to_reader, to_writer, handshake, count, encode, addresses, write_side, read_side


@block
def synchroniser(clk: Clock, x: Bits, y: Bits) -> Instances:
    """Two flip-flops a bit, for what changes at another clock: the first may sample a bit that is changing, and has a
    cycle to settle.  Only where one bit of ``x`` changes at a time is ``y`` always a value that ``x`` had.

    Ports:
        x: in, any width, registers of another clock.
        y: out, as wide as ``x``, 2 edges of ``clk`` later.
    """
    first = Signal(intbv(0)[len(x) :])

    @always(clk.posedge)
    def sample() -> None:
        first.next = x
        y.next = first

    return sample
