"""Masters with narrow words behind an AXI4 port with wide ones.

A narrow burst becomes a wide one of the same bytes, its last word filled up with zeros.  A wide port is not held up by
narrow words: a burst to write is sent when all of it has been gathered, a burst to read is asked for when all of it
has room.  Regions of narrow masters begin, and their bursts are, multiples of a wide word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.axi import RESPONSE_BITS, Axi, AxiFormat
from hdl.memory import address_width
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.fifo import queue
from hdl.streams.pipes import Policy, pipe
from hdl.streams.width import pack_beats
from hdl.unit import Unit

# requests to write that wait for their data, and bursts asked for and not yet read
_WRITES, _READS = 2, 16


@dataclass(frozen=True, kw_only=True)
class AxiWiden(Unit):
    """The port ``a`` of a master with narrow words on the port ``m``, whose words are ``2**k`` times as wide."""

    narrow: AxiFormat
    wide: AxiFormat
    # wide words of the longest burst
    burst: int
    # wide words that wait to be written, at least two bursts
    writes: int = 32
    # wide words that are under way or wait to be read, at least a burst
    reads: int = 32

    def __post_init__(self) -> None:
        if self.narrow != self.wide.narrowed(self.narrow.data_bits):
            raise ValueError(f"a port of {self.wide} has no narrow masters of {self.narrow}")
        if self.burst < 1 or self.writes < 2 * self.burst or self.reads < self.burst:
            raise ValueError(
                f"bursts of {self.burst} words need room for two to be written and one to be read, not {self.writes} "
                f"and {self.reads} words"
            )

    @property
    def ratio(self) -> int:
        """Narrow words of a wide one."""
        return self.wide.data_bits // self.narrow.data_bits

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {**self.narrow.ports("a"), **self.wide.ports("m")}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return axi_widen(domain, Axi.of(streams, "a"), Axi.of(streams, "m"), unit=self)


@block
def axi_widen(domain: ClockReset, a: Axi, m: Axi, *, unit: AxiWiden) -> Instances:
    """See `AxiWiden`.  Cost: two queues of wide words, a wide word, a narrow multiplexer, counters.

    Latency: to write, until the burst has come, and 6 cycles; to read, 1 cycle for the request and 5 for data; a narrow
    word a cycle.  No ready depends on another port's in the same cycle.

    Ports:
        a: in and out, port of ``unit.narrow`` that a master drives.
        m: in and out, port of ``unit.wide`` that this block drives.
    """
    answers = pipe(domain, m.b, a.b, policy=Policy.FULL)
    writing = _widen_writes(domain, a.aw, a.w, m.aw, m.w, unit=unit)
    reading = _widen_reads(domain, a.ar, a.r, m.ar, m.r, unit=unit)
    return answers, writing, reading


@block
def _widen_writes(
    domain: ClockReset, requests: Stream, data: Stream, aw: Stream, w: Stream, *, unit: AxiWiden
) -> Instances:
    """Gathers bursts; ``aw`` of a burst is offered when its last word has been gathered, its words after that."""
    gathered, waiting = Stream(w.width), Stream(w.width)
    request = Stream(requests.width)
    gather = _gather(domain, data, gathered)
    store = queue(domain, gathered, waiting, depth=unit.writes)
    asked = queue(domain, requests, request, depth=_WRITES)
    # bursts that are gathered and not asked for; that are asked for and not sent
    whole, under_way = (Signal(intbv(0, min=0, max=unit.writes + 1)) for _ in range(2))
    came, asks, sent = (Signal(bool(0)) for _ in range(3))
    shift, narrow_address, address_bits = unit.ratio.bit_length() - 1, unit.narrow.address_bits, unit.wide.address_bits
    narrow_bits, request_bits, last_at = requests.width, aw.width, w.width - 1

    @always_comb
    def out() -> None:
        aw.valid.next = request.valid and whole != 0
        aw.payload.next[address_bits:] = request.payload[narrow_address:shift]
        aw.payload.next[request_bits:address_bits] = request.payload[narrow_bits:narrow_address] >> shift
        request.ready.next = aw.ready and whole != 0
        w.valid.next = waiting.valid and under_way != 0
        w.payload.next = waiting.payload
        waiting.ready.next = w.ready and under_way != 0

    @always_comb
    def observe() -> None:
        came.next = gathered.valid and gathered.ready and gathered.payload[last_at]
        asks.next = request.valid and aw.ready and whole != 0
        sent.next = waiting.valid and w.ready and under_way != 0 and waiting.payload[last_at]

    @always(domain.clk.posedge)
    def count() -> None:
        if came and not asks:
            whole.next = whole + 1
        elif asks and not came:
            whole.next = whole - 1
        if asks and not sent:
            under_way.next = under_way + 1
        elif sent and not asks:
            under_way.next = under_way - 1
        if domain.rst:
            whole.next = 0
            under_way.next = 0

    return gather, store, asked, out, observe, count


@block
def _gather(domain: ClockReset, x: Stream, y: Stream) -> Instances:
    """Words of ``x`` side by side, a word of ``y``, which is full or ends with a burst: the top bit of either."""
    narrow, wide = x.width - 1, y.width - 1
    beat, word = Stream(narrow), Stream(wide)
    fire, last, ends = (Signal(bool(0)) for _ in range(3))
    inside = pack_beats(domain, beat, word, fire, last)

    @always_comb
    def enter() -> None:
        beat.valid.next = x.valid
        beat.payload.next = x.payload[narrow:]
        x.ready.next = beat.ready
        last.next = x.payload[narrow]

    @always_comb
    def out() -> None:
        y.valid.next = word.valid
        y.payload.next[wide:] = word.payload
        y.payload.next[wide] = ends
        word.ready.next = y.ready

    @always(domain.clk.posedge)
    def keep() -> None:
        if fire:
            ends.next = last

    return inside, enter, out, keep


@block
def _widen_reads(
    domain: ClockReset, requests: Stream, data: Stream, ar: Stream, r: Stream, *, unit: AxiWiden
) -> Instances:
    """Asks for a burst when all of it has room in a queue of wide words, from which it hands out narrow ones."""
    shift, narrow_address, address_bits = unit.ratio.bit_length() - 1, unit.narrow.address_bits, unit.wide.address_bits
    narrow_bits, request_bits, room_at_start, burst = requests.width, ar.width, unit.reads, unit.burst
    # of each burst asked for: narrow words of its last wide one, less one
    tail_in, tail = Stream(shift), Stream(shift)
    tails = queue(domain, tail_in, tail, depth=_READS)
    waiting = Stream(r.width)
    store = queue(domain, r, waiting, depth=unit.reads)
    room = Signal(intbv(0, min=0, max=unit.reads + 1))
    words = Signal(intbv(0)[request_bits - address_bits :])
    request, may_start, started, taken = (Signal(bool(0)) for _ in range(4))
    asked = Signal(intbv(0)[request_bits:])
    hand = _hand_out(domain, waiting, tail, data, taken, unit=unit)

    @always_comb
    def allow() -> None:
        may_start.next = room >= burst and tail_in.ready and not request

    @always_comb
    def accept() -> None:
        started.next = requests.valid and may_start
        requests.ready.next = may_start
        tail_in.valid.next = requests.valid and room >= burst and not request
        tail_in.payload.next = requests.payload[narrow_address + shift : narrow_address]
        words.next = requests.payload[narrow_bits:narrow_address] >> shift

    @always_comb
    def out() -> None:
        ar.valid.next = request
        ar.payload.next = asked

    @always(domain.clk.posedge)
    def ask() -> None:
        if started and taken:
            room.next = room - words
        elif started:
            room.next = room - words - 1
        elif taken:
            room.next = room + 1
        if started:
            request.next = True
            asked.next[address_bits:] = requests.payload[narrow_address:shift]
            asked.next[request_bits:address_bits] = words
        elif ar.ready:
            request.next = False
        if domain.rst:
            request.next = False
            room.next = room_at_start

    return tails, store, hand, allow, accept, out, ask


@block
def _hand_out(
    domain: ClockReset, waiting: Stream, tail: Stream, data: Stream, taken: Bit, *, unit: AxiWiden
) -> Instances:
    """Narrow words of the wide ones in ``waiting``; ``taken`` is high where one of these is done with."""
    ratio, narrow, wide = unit.ratio, unit.narrow.data_bits, unit.wide.data_bits
    top, wide_last, narrow_last = ratio - 1, wide + RESPONSE_BITS, narrow + RESPONSE_BITS
    word = Stream(data.width)
    stage = pipe(domain, word, data, policy=Policy.FULL)
    place = Signal(intbv(0)[address_width(ratio) :])
    ends, done, fire = (Signal(bool(0)) for _ in range(3))
    chosen = Signal(intbv(0)[narrow:])

    @always_comb
    def choose() -> None:
        chosen.next = 0
        for i in range(ratio):
            if place == i:
                chosen.next = waiting.payload[bits_of(i, narrow)]

    @always_comb
    def judge() -> None:
        ends.next = waiting.payload[wide_last] and place == tail.payload
        done.next = place == top or (waiting.payload[wide_last] and place == tail.payload)
        fire.next = waiting.valid and tail.valid and word.ready

    @always_comb
    def out() -> None:
        word.valid.next = waiting.valid and tail.valid
        word.payload.next[narrow:] = chosen
        word.payload.next[narrow_last:narrow] = waiting.payload[wide_last:wide]
        word.payload.next[narrow_last] = ends
        waiting.ready.next = tail.valid and word.ready and done
        tail.ready.next = waiting.valid and word.ready and ends
        taken.next = fire and done

    @always(domain.clk.posedge)
    def step() -> None:
        if fire:
            if done:
                place.next = 0
            else:
                place.next = place + 1
        if domain.rst:
            place.next = 0

    return stage, choose, judge, out, step
