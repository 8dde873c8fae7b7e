"""Streams from one clock to another: asynchronous FIFOs, of words and of whole packets.

Either side counts the words that went through it, and the other side sees the count two cycles late.  Counts cross in
Gray code: one bit of it changes at a time, so whatever a flip-flop makes of a bit that changes while it is sampled,
what it holds is the count from before or the one from after.  A side that sees an old count believes in less room, or
in fewer words, than there are, which costs time and nothing else (Cummings, "Simulation and Synthesis Techniques for
Asynchronous FIFO Design", SNUG 2002, style 1).

Nothing but time depends on the clocks: words leave as they came, in order.

Of packets the reader sees how many are whole, and begins none before; so a packet leaves without a gap whatever either
clock does, and the writer can take back one that it has begun to write.
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
# words of a crossing of packets that stay free: more than are written until it shows how much room there is
TOLD_LATE = 8
# of a counter of packets
DROPPED_BITS = 16
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


@block
def packet_crossing(
    write_clk: Clock,
    write_rst: Bit,
    read_clk: Clock,
    read_rst: Bit,
    x: Stream,
    y: Stream,
    dropped: Bits | None,
    *,
    depth: int,
    last_bit: int,
) -> Instances:
    """An asynchronous FIFO of packets of 1 to ``depth - TOLD_LATE`` beats, ``depth`` a power of two from 32 on.

    A packet leaves when it is whole, a beat a cycle of ``read_clk`` and without a gap but for ``y.ready``; packets of
    two beats or more follow one another without a gap.  With ``dropped`` ``x`` never waits: a packet that finds no room
    is dropped whole, and counted.  Cost: a memory of depth × payload bits, counts of words and packets at either side.
    Valid and ready come from registers, payload from the memory's output.

    Ports:
        write_clk: in, 1 bit.
        write_rst: in, 1 bit, synchronous to ``write_clk``, high.
        read_clk: in, 1 bit.
        read_rst: in, 1 bit, synchronous to ``read_clk``, high.
        x: in, stream of any width, at ``write_clk``; bit ``last_bit`` marks the last beat of a packet.
        y: out, stream as wide as ``x``, at ``read_clk``.
        dropped: out, `DROPPED_BITS` bits, from registers of ``read_clk``: packets; stays at the greatest number.
    """
    width = same_width("packet_crossing", x, y)
    if depth < 32 or depth & (depth - 1):
        raise ValueError(f"a crossing of packets holds a power of two of beats, at least 32, not {depth}")
    bits = address_width(depth)
    # words written and taken, packets that are whole and that the reader has begun, modulo twice the depth; as the
    # other side sees two of these, in Gray code
    written, whole_code, whole_seen, taken_code, taken_seen = (Signal(intbv(0)[bits + 1 :]) for _ in range(5))
    taken, begun = (Signal(intbv(0)[bits + 1 :]) for _ in range(2))
    write_at, read_at = (Signal(intbv(0)[bits:]) for _ in range(2))
    word = Signal(intbv(0)[width:])
    push, whole, room, fetch, starts, goes_on, more, valid = (Signal(bool(0)) for _ in range(8))
    mask = 2 * depth - 1
    store = dual_clock(write_clk, push, write_at, x.payload, read_clk, fetch, read_at, word, depth=depth, width=width)
    to_reader = synchroniser(read_clk, whole_code, whole_seen)
    to_writer = synchroniser(write_clk, taken_code, taken_seen)
    left = packet_room(write_clk, write_rst, written, taken_seen, room, depth=depth)
    counts = gray_counter(write_clk, write_rst, whole, whole_code, stops=False)
    if dropped is None:
        writer = waiting_writer(write_clk, write_rst, x, room, push, written, whole, last_bit=last_bit)
    else:
        lost = Signal(bool(0))
        drops = dropping_writer(write_clk, write_rst, x, room, push, written, whole, lost, last_bit=last_bit)
        writer = drops, event_count(write_clk, write_rst, lost, read_clk, dropped)

    @always_comb
    def handshake() -> None:
        goes_on.next = valid and not word[last_bit]
        y.valid.next = valid
        y.payload.next = word
        write_at.next = written[bits:]
        read_at.next = taken[bits:]

    @always_comb
    def advance() -> None:
        fetch.next = (y.ready or not valid) and (goes_on or more)
        starts.next = (y.ready or not valid) and more and not goes_on

    @always(read_clk.posedge)
    def read_side() -> None:
        if fetch:
            taken.next = (taken + 1) & mask
            valid.next = True
        elif y.ready:
            valid.next = False
        taken_code.next = taken ^ (taken >> 1)
        if starts:
            begun.next = (begun + 1) & mask
        # the count is a cycle late
        more.next = (begun ^ (begun >> 1)) != whole_seen and not starts
        if read_rst:
            taken.next = 0
            taken_code.next = 0
            begun.next = 0
            more.next = False
            valid.next = False

    return store, to_reader, to_writer, left, counts, writer, handshake, advance, read_side


@block
def packet_room(clk: Clock, rst: Bit, written: Bits, taken_seen: Bits, room: Bit, *, depth: int) -> Instances:
    """Whether `TOLD_LATE` words and one more were free three cycles ago, or later.

    Ports:
        clk: in, 1 bit.
        rst: in, 1 bit.
        written: in, `address_width` ``(depth) + 1`` bits.
        taken_seen: in, as wide as ``written``, Gray code.
        room: out, 1 bit, from a register.
    """
    size, limit, mask = len(written), depth - TOLD_LATE, 2 * depth - 1
    decoded, taken, held = (Signal(intbv(0)[size:]) for _ in range(3))
    decode = gray_decoded(taken_seen, decoded)

    @always(clk.posedge)
    def step() -> None:
        taken.next = decoded
        held.next = (written - taken) & mask
        room.next = held < limit
        if rst:
            room.next = False

    return decode, step


@block
def waiting_writer(
    clk: Clock, rst: Bit, x: Stream, room: Bit, push: Bit, written: Bits, whole: Bit, *, last_bit: int
) -> Instances:
    """Packets wait for room.

    Ports:
        clk: in, 1 bit.
        rst: in, 1 bit.
        x: in, stream of any width.
        room: in, 1 bit.
        push: out, 1 bit: the beat is stored.
        written: out, any number of bits, from registers: beats stored.
        whole: out, 1 bit: with it, a packet is.
    """
    mask = (1 << len(written)) - 1

    @always_comb
    def accept() -> None:
        x.ready.next = room
        push.next = x.valid and room
        whole.next = x.valid and room and x.payload[last_bit]

    @always(clk.posedge)
    def step() -> None:
        if push:
            written.next = (written + 1) & mask
        if rst:
            written.next = 0

    return accept, step


@block
def dropping_writer(
    clk: Clock, rst: Bit, x: Stream, room: Bit, push: Bit, written: Bits, whole: Bit, lost: Bit, *, last_bit: int
) -> Instances:
    """Packets that find no room are taken back, and the rest of them is not stored.

    Ports:
        clk: in, 1 bit.
        rst: in, 1 bit.
        x: in, stream of any width, always ready.
        room: in, 1 bit.
        push: out, 1 bit: the beat is stored.
        written: out, any number of bits, from registers: beats stored.
        whole: out, 1 bit: with it, a packet is.
        lost: out, 1 bit, from a register: a packet is dropped.
    """
    mask = (1 << len(written)) - 1
    first = Signal(intbv(0)[len(written) :])
    cut, over = (Signal(bool(0)) for _ in range(2))

    @always_comb
    def accept() -> None:
        x.ready.next = True
        push.next = x.valid and room and not cut
        whole.next = x.valid and room and not cut and x.payload[last_bit]
        over.next = x.valid and not room and not cut

    @always(clk.posedge)
    def step() -> None:
        lost.next = over
        if over:
            written.next = first
        elif push:
            written.next = (written + 1) & mask
        if whole:
            first.next = (written + 1) & mask
        if x.valid:
            cut.next = (cut or over) and not x.payload[last_bit]
        if rst:
            lost.next = False
            written.next = 0
            first.next = 0
            cut.next = False

    return accept, step


@block
def gray_counter(clk: Clock, rst: Bit, event: Bit, code: Bits, *, stops: bool) -> Instances:
    """Counts what happens at a clock, for another one; goes round, or stays at the greatest number.

    Ports:
        clk: in, 1 bit.
        rst: in, 1 bit.
        event: in, 1 bit.
        code: out, any number of bits, from registers: the count, a cycle late, in Gray code.
    """
    most = (1 << len(code)) - 1
    count = Signal(intbv(0)[len(code) :])

    @always(clk.posedge)
    def step() -> None:
        if event and not (stops and count == most):
            count.next = (count + 1) & most
        code.next = count ^ (count >> 1)
        if rst:
            count.next = 0
            code.next = 0

    return step


@block
def event_count(clk: Clock, rst: Bit, event: Bit, read_clk: Clock, count: Bits) -> Instances:
    """Shows at one clock how often something has happened at another one.

    Ports:
        clk: in, 1 bit.
        rst: in, 1 bit, synchronous to ``clk``.
        event: in, 1 bit, at ``clk``.
        read_clk: in, 1 bit.
        count: out, any number of bits up to 16, from registers of ``read_clk``; stays at the greatest number.
    """
    code, seen, decoded = (Signal(intbv(0)[len(count) :]) for _ in range(3))
    counter = gray_counter(clk, rst, event, code, stops=True)
    crosses = synchroniser(read_clk, code, seen)
    decode = gray_decoded(seen, decoded)

    @always(read_clk.posedge)
    def show() -> None:
        count.next = decoded

    return counter, crosses, decode, show


@block
def gray_decoded(x: Bits, y: Bits) -> Instances:
    """The number of a Gray code: each bit is the sum of all from there up.

    Ports:
        x: in, any number of bits up to 16.
        y: out, as wide as ``x``, in the same cycle.
    """
    two, four, eight = (Signal(intbv(0)[len(x) :]) for _ in range(3))

    @always_comb
    def decode() -> None:
        two.next = x ^ (x >> 1)
        four.next = two ^ (two >> 2)
        eight.next = four ^ (four >> 4)
        y.next = eight ^ (eight >> 8)

    return decode
