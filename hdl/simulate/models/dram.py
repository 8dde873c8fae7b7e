"""A memory behind an AXI4 port with limited bandwidth and latency, for simulation: it converts to Verilog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.axi import Axi, AxiFormat
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.simulate.models.host import stalls
from hdl.simulate.models.link import link_wire
from hdl.stream import Stream
from hdl.streams.fifo import queue

# requests, and words to write, that the model takes before it serves them
_REQUESTS = 8


@dataclass(frozen=True, kw_only=True)
class StuckBit:
    """A cell of a memory that is broken."""

    word: int
    bit: int
    value: bool


@block
def dram_model(
    domain: ClockReset,
    m: Axi,
    *,
    form: AxiFormat,
    depth: int,
    latency: int = 20,
    words: int = 1,
    cycles: int = 1,
    stall_256: int = 0,
    seed: int = 1,
    contents: Sequence[int] | None = None,
    stuck: StuckBit | None = None,
) -> Instances:
    """``depth`` words from the image "dram"; reads and writes share ``words`` words in ``cycles`` cycles, and each has
    a word a cycle at most.

    Serves reads beside writes, of each one burst right after another, with no word in a random ``stall_256`` of 256
    cycles; answers take ``latency`` cycles after the memory.  Where there is one word for both, they take turns.  A
    write is answered when all of it lies there.  An address past ``depth`` is answered with an error.
    ``stuck``: a bit that keeps no other value, whatever is written.

    Ports:
        m: in and out, port of ``form`` that a master drives.
    """
    data_bits = form.data_bits
    aw, ar, w = (Stream(form.widths[channel]) for channel in ("aw", "ar", "w"))
    queues = [
        queue(domain, m.aw, aw, depth=_REQUESTS),
        queue(domain, m.ar, ar, depth=_REQUESTS),
        queue(domain, m.w, w, depth=_REQUESTS),
    ]
    answer, data = Stream(form.widths["b"]), Stream(form.widths["r"])
    answer_wire = link_wire(domain, answer, m.b, latency=latency)
    data_wire = link_wire(domain, data, m.r, latency=latency)
    go, have, have_last, have_bad, answering, answer_bad = (Signal(bool(0)) for _ in range(6))
    gate = stalls(domain, go, probability_256=stall_256, seed=seed)
    reads, writes = (_Burst(form) for _ in range(2))
    bursts = [_burst(domain, ar, reads, depth=depth), _burst(domain, aw, writes, depth=depth)]
    place, target = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    word, incoming = Signal(intbv(0)[data_bits:]), Signal(intbv(0)[data_bits:])
    fetch, put = Signal(bool(0)), Signal(bool(0))
    last_at, place_bits = form.widths["r"] - 1, len(place)
    kept = incoming if stuck is None else Signal(intbv(0)[data_bits:])
    faults = [] if stuck is None else [stuck_cell(target, incoming, kept, stuck=stuck)]
    store = simple_dual_port(
        domain.clk,
        put,
        target,
        kept,
        fetch,
        place,
        word,
        depth=depth,
        width=data_bits,
        contents=contents,
        image="dram",
    )
    may_read, may_write = Signal(bool(0)), Signal(bool(0))
    shares = _shares(domain, may_read, may_write, reads.step, writes.step, words=words, cycles=cycles)

    @always_comb
    def want() -> None:
        may_read.next = reads.busy and go and (not have or data.ready)
        may_write.next = writes.busy and go and w.valid and (not writes.ends or not answering or answer.ready)

    @always_comb
    def serve() -> None:
        fetch.next = reads.step and not reads.bad
        put.next = writes.step and not writes.bad
        w.ready.next = writes.step
        incoming.next = w.payload[data_bits:]

    @always_comb
    def find() -> None:
        place.next = 0
        target.next = 0
        if not reads.bad:
            place.next = reads.address[place_bits:]
        if not writes.bad:
            target.next = writes.address[place_bits:]

    @always_comb
    def out() -> None:
        data.valid.next = have
        data.payload.next[data_bits:] = word
        data.payload.next[last_at:data_bits] = 0
        if have_bad:
            data.payload.next[last_at:data_bits] = 2
        data.payload.next[last_at] = have_last
        answer.valid.next = answering
        answer.payload.next = 0
        if answer_bad:
            answer.payload.next = 2

    @always(domain.clk.posedge)
    def step() -> None:
        if writes.step and writes.ends:
            answering.next = True
            answer_bad.next = writes.bad
        elif answer.ready:
            answering.next = False
        if reads.step:
            have.next = True
            have_last.next = reads.ends
            have_bad.next = reads.bad
        elif data.ready:
            have.next = False
        if domain.rst:
            answering.next = False
            have.next = False

    return queues, answer_wire, data_wire, gate, bursts, faults, store, shares, want, serve, find, out, step


class _Burst:
    """A burst under way."""

    def __init__(self, form: AxiFormat) -> None:
        self.busy, self.ends, self.bad = (Signal(bool(0)) for _ in range(3))
        # a word of it passes
        self.step = Signal(bool(0))
        # of the next word
        self.address: Bits = Signal(intbv(0)[form.address_bits + 1 :])


@block
def _burst(domain: ClockReset, request: Stream, burst: _Burst, *, depth: int) -> Instances:
    """Takes requests, one right after another.

    Ports:
        request: in, stream of an address and, above it, one less than the words.
        burst: all but ``step`` out; ``step`` in.
    """
    address_bits, request_bits = len(burst.address) - 1, request.width
    last = Signal(intbv(0)[address_bits + 1 :])
    first_now, last_now = (Signal(intbv(0)[address_bits + 1 :]) for _ in range(2))
    take = Signal(bool(0))

    @always_comb
    def places() -> None:
        first_now.next = request.payload[address_bits:]
        last_now.next = request.payload[address_bits:] + request.payload[request_bits:address_bits]

    @always_comb
    def accept() -> None:
        burst.ends.next = burst.address == last
        take.next = request.valid and (not burst.busy or (burst.step and burst.address == last))
        request.ready.next = not burst.busy or (burst.step and burst.address == last)

    @always(domain.clk.posedge)
    def move() -> None:
        if take:
            burst.busy.next = True
            burst.address.next = first_now
            last.next = last_now
            burst.bad.next = last_now >= depth
        elif burst.step:
            if burst.address == last:
                burst.busy.next = False
            else:
                burst.address.next = burst.address + 1
        if domain.rst:
            burst.busy.next = False

    return places, accept, move


@block
def _shares(
    domain: ClockReset, wants_read: Bit, wants_write: Bit, read: Bit, write: Bit, *, words: int, cycles: int
) -> Instances:
    """Lets ``words`` words in ``cycles`` cycles pass, of two that take turns.

    Ports:
        wants_read, wants_write: in, 1 bit each.
        read, write: out, 1 bit each: the word passes.
    """
    most, both = 2 * cycles + words, 2 * cycles
    # from which on there is more than can be saved
    full, full_one, full_both = most - words, most - words + cycles, most - words + both
    budget = Signal(intbv(both, min=0, max=most + 1))
    prefer_write, one, two = (Signal(bool(0)) for _ in range(3))

    @always_comb
    def can() -> None:
        one.next = budget >= cycles
        two.next = budget >= both

    @always_comb
    def choose() -> None:
        read.next = wants_read and one and (two or not wants_write or not prefer_write)
        write.next = wants_write and one and (two or not wants_read or prefer_write)

    @always(domain.clk.posedge)
    def spend() -> None:
        if read and write:
            if budget < full_both:
                budget.next = budget + words - both
            else:
                budget.next = most
        elif read or write:
            prefer_write.next = read
            if budget < full_one:
                budget.next = budget + words - cycles
            else:
                budget.next = most
        elif budget < full:
            budget.next = budget + words
        else:
            budget.next = most
        if domain.rst:
            budget.next = both
            prefer_write.next = False

    return can, choose, spend


@block
def stuck_cell(place: Bits, word: Bits, kept: Bits, *, stuck: StuckBit) -> Instances:
    """What a memory keeps of a word whose place has a stuck bit.

    Ports:
        place: in, any number of bits.
        word: in, any number of bits.
        kept: out, as wide as ``word``, in the same cycle.
    """
    broken, bit, value = stuck.word, stuck.bit, stuck.value

    @always_comb
    def keep() -> None:
        kept.next = word
        if place == broken:
            kept.next[bit] = value

    return keep
