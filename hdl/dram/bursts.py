"""Bursts of words to and from an AXI4 port."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.region import Region
from hdl.dram.rules import tensor_position
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue


@block
def burst_writer(
    domain: ClockReset, base: Bits, x: Stream, aw: Stream, w: Stream, b: Stream,
    may_start: Bit, first: Bit, started: Bit, written: Bit, tensor_written: Bit, error: Bit, *, unit: Region,
) -> Instances:  # fmt: skip
    """Collects a burst, then sends it; answers are counted, nothing waits for them but the rule.

    Ports:
        base: in, ``format.address_bits`` bits, constant: word address of the region.
        x: in, stream of words: the whole elements that fit ``format.data_bits``.
        aw, w: out, streams of `AxiFormat.widths` bits; aw from registers.
        b: in, stream of 2 bits, always ready.
        may_start: in, 1 bit: the coming burst may be written.
        first: out, 1 bit, from a register: the coming burst begins a tensor.
        started: out, 1 bit, combinational in ``may_start``: it starts in this cycle.
        written: out, 1 bit, with each beat of ``b``: the next burst in order is in memory.
        tensor_written: out, 1 bit, with ``written``: it was the last of its tensor.
        error: out, 1 bit, with ``written``: the memory refused it.
    """
    burst, data_bits = unit.burst, x.width
    last_length = unit.tensor_words - (unit.tensor_bursts - 1) * burst
    final_slot, first_slot = unit.ring_bursts - 1, unit.preload_bursts % unit.ring_bursts
    waiting = Stream(data_bits)
    store = queue(domain, x, waiting, depth=2 * burst)
    last, answered_first, answered_last = (Signal(bool(0)) for _ in range(3))
    position = tensor_position(domain, started, first, last, bursts=unit.tensor_bursts)
    answers = tensor_position(domain, written, answered_first, answered_last, bursts=unit.tensor_bursts)
    slot = Signal(intbv(0)[address_width(unit.ring_bursts) :])
    # words of the coming burst, and one less
    length = Signal(intbv(0, min=0, max=burst + 1))
    shorter = Signal(intbv(0, min=0, max=burst))
    collected = Signal(intbv(0, min=0, max=2 * burst + 1))
    left = Signal(intbv(0, min=0, max=burst + 1))
    address = Signal(intbv(0)[unit.format.address_bits :])
    beats = Signal(intbv(0, min=0, max=burst))
    request, came, sent = (Signal(bool(0)) for _ in range(3))
    address_bits, total_bits = unit.format.address_bits, unit.format.data_bits
    request_bits, shift = aw.width, burst.bit_length() - 1

    @always_comb
    def next_burst() -> None:
        if last:
            length.next = last_length
            shorter.next = last_length - 1
        else:
            length.next = burst
            shorter.next = burst - 1

    @always_comb
    def start() -> None:
        started.next = may_start and left == 0 and not request and collected >= length

    @always_comb
    def out() -> None:
        aw.valid.next = request
        aw.payload.next[address_bits:] = address
        aw.payload.next[request_bits:address_bits] = beats
        w.valid.next = waiting.valid and left != 0
        w.payload.next[total_bits:] = waiting.payload
        w.payload.next[total_bits] = left == 1
        waiting.ready.next = w.ready and left != 0
        b.ready.next = True

    @always_comb
    def observe() -> None:
        came.next = x.valid and x.ready
        sent.next = waiting.valid and w.ready and left != 0
        written.next = b.valid
        error.next = b.valid and b.payload != 0
        tensor_written.next = b.valid and answered_last

    @always(domain.clk.posedge)
    def collect() -> None:
        if started and came:
            collected.next = collected - shorter
        elif started:
            collected.next = collected - length
        elif came:
            collected.next = collected + 1
        if domain.rst:
            collected.next = 0

    @always(domain.clk.posedge)
    def send() -> None:
        if request and aw.ready:
            request.next = False
        if sent:
            left.next = left - 1
        if started:
            request.next = True
            left.next = length
            beats.next = shorter
            address.next = base + (slot << shift)
            if slot == final_slot:
                slot.next = 0
            else:
                slot.next = slot + 1
        if domain.rst:
            request.next = False
            left.next = 0
            slot.next = first_slot

    return store, position, answers, next_burst, start, out, observe, collect, send


@block
def burst_reader(
    domain: ClockReset, base: Bits, slot: Bits, ar: Stream, r: Stream, y: Stream, popped: Bit,
    may_start: Bit, first: Bit, last: Bit, started: Bit, done: Bit, tensor_done: Bit, error: Bit, *, unit: Region,
) -> Instances:  # fmt: skip
    """Asks for a burst when all of it has room in the queue behind.

    Ports:
        base: in, ``format.address_bits`` bits, constant: word address of the region.
        slot: in, `address_width` ``(ring_bursts)`` bits, with ``started``: which burst of the region.
        ar: out, stream of `AxiFormat.widths` bits, from registers, 1 cycle after ``started``.
        r: in, stream of `AxiFormat.widths` bits.
        y: out, stream of words, in the cycle of ``r``, to a queue of ``prefetch`` words.
        popped: in, 1 bit: a word leaves that queue at this edge.
        may_start: in, 1 bit: the coming burst may be read.
        first, last: out, 1 bit each, from a register: the coming burst begins a tensor, ends one.
        started: out, 1 bit, combinational in ``may_start`` and ``ar.ready``: it starts in this cycle.
        done: out, 1 bit, with the last word of the next burst in order.
        tensor_done: out, 1 bit, with ``done``: it was the last of its tensor.
        error: out, 1 bit, with a word of ``r``: the memory refused it.
    """
    burst, data_bits = unit.burst, y.width
    last_length = unit.tensor_words - (unit.tensor_bursts - 1) * burst
    room_at_start = unit.prefetch
    done_first, done_last = Signal(bool(0)), Signal(bool(0))
    position = tensor_position(domain, started, first, last, bursts=unit.tensor_bursts)
    answers = tensor_position(domain, done, done_first, done_last, bursts=unit.tensor_bursts)
    room = Signal(intbv(0, min=0, max=unit.prefetch + 1))
    # words of the coming burst, and one less
    length = Signal(intbv(0, min=0, max=burst + 1))
    shorter = Signal(intbv(0, min=0, max=burst))
    address = Signal(intbv(0)[unit.format.address_bits :])
    beats = Signal(intbv(0, min=0, max=burst))
    request = Signal(bool(0))
    address_bits, total_bits = unit.format.address_bits, unit.format.data_bits
    request_bits, shift = ar.width, burst.bit_length() - 1
    last_at = r.width - 1

    @always_comb
    def next_burst() -> None:
        if last:
            length.next = last_length
            shorter.next = last_length - 1
        else:
            length.next = burst
            shorter.next = burst - 1

    @always_comb
    def start() -> None:
        started.next = may_start and room >= length and (not request or ar.ready)

    @always_comb
    def out() -> None:
        ar.valid.next = request
        ar.payload.next[address_bits:] = address
        ar.payload.next[request_bits:address_bits] = beats
        y.valid.next = r.valid
        y.payload.next = r.payload[data_bits:]
        r.ready.next = y.ready

    @always_comb
    def observe() -> None:
        done.next = r.valid and y.ready and r.payload[last_at]
        error.next = r.valid and r.payload[last_at:total_bits] != 0
        tensor_done.next = r.valid and y.ready and r.payload[last_at] and done_last

    @always(domain.clk.posedge)
    def ask() -> None:
        if started and popped:
            room.next = room - shorter
        elif started:
            room.next = room - length
        elif popped:
            room.next = room + 1
        if started:
            request.next = True
            address.next = base + (slot << shift)
            beats.next = shorter
        elif ar.ready:
            request.next = False
        if domain.rst:
            request.next = False
            room.next = room_at_start

    return position, answers, next_burst, start, out, observe, ask
