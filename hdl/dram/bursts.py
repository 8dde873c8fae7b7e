"""Bursts of words to and from an AXI4 port."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.axi import Axi
from hdl.dram.region import Region
from hdl.dram.rules import Bursts, tensor_position
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue


@block
def burst_length(last: Bit, length: Bits, shorter: Bits, *, unit: Region) -> Instances:
    """The words of a burst: fewer where it ends a tensor.

    Ports:
        last: in, 1 bit: it ends a tensor.
        length: out, a number up to ``unit.burst``, combinational: its words.
        shorter: out, a number below ``unit.burst``, combinational: one less.
    """
    burst = unit.burst
    last_length = unit.tensor_words - (unit.tensor_bursts - 1) * burst

    @always_comb
    def choose() -> None:
        if last:
            length.next = last_length
            shorter.next = last_length - 1
        else:
            length.next = burst
            shorter.next = burst - 1

    return choose


@block
def burst_writer(domain: ClockReset, base: Bits, x: Stream, m: Axi, bursts: Bursts, *, unit: Region) -> Instances:
    """Collects a burst, then sends it; answers are counted, nothing waits for them but the rule.

    A burst is asked for while the one before it leaves, so that its turn has passed all arbiters when that is out.

    Ports:
        base: in, ``unit.format.address_bits`` bits, constant: word address of the region.
        x: in, stream of words: the whole elements that fit ``unit.format.data_bits``.
        m: in and out; drives ``aw``, from registers, and ``w``, takes ``b``, always ready.
        bursts: in and out, all of it; ``done``, ``tensor_done`` and ``error`` are combinational in ``m.b``.
    """
    burst, data_bits = unit.burst, x.width
    final_slot, first_slot = unit.ring_bursts - 1, unit.preload_bursts % unit.ring_bursts
    waiting = Stream(data_bits)
    store = queue(domain, x, waiting, depth=2 * burst)
    answered_first, answered_last = Signal(bool(0)), Signal(bool(0))
    position = tensor_position(domain, bursts.started, bursts.first, bursts.last, bursts=unit.tensor_bursts)
    answers = tensor_position(domain, bursts.done, answered_first, answered_last, bursts=unit.tensor_bursts)
    slot = Signal(intbv(0)[address_width(unit.ring_bursts) :])
    # words of the coming burst, and one less
    length, shorter = Signal(intbv(0, min=0, max=burst + 1)), Signal(intbv(0, min=0, max=burst))
    lengths = burst_length(bursts.last, length, shorter, unit=unit)
    collected = Signal(intbv(0, min=0, max=2 * burst + 1))
    left = Signal(intbv(0, min=0, max=burst + 1))
    address = Signal(intbv(0)[unit.format.address_bits :])
    beats = Signal(intbv(0, min=0, max=burst))
    # of the burst behind it, while that is asked for
    coming = Signal(intbv(0, min=0, max=burst + 1))
    request, came, sent, ahead = (Signal(bool(0)) for _ in range(4))
    address_bits, total_bits = unit.format.address_bits, unit.format.data_bits
    request_bits, shift = m.aw.width, burst.bit_length() - 1

    @always_comb
    def start() -> None:
        bursts.started.next = bursts.may_start and not ahead and not request and collected >= length

    @always_comb
    def out() -> None:
        m.aw.valid.next = request
        m.aw.payload.next[address_bits:] = address
        m.aw.payload.next[request_bits:address_bits] = beats
        m.w.valid.next = waiting.valid and left != 0
        m.w.payload.next[total_bits:] = waiting.payload
        m.w.payload.next[total_bits] = left == 1
        waiting.ready.next = m.w.ready and left != 0
        m.b.ready.next = True

    @always_comb
    def observe() -> None:
        came.next = x.valid and x.ready
        sent.next = waiting.valid and m.w.ready and left != 0
        bursts.done.next = m.b.valid
        bursts.error.next = m.b.valid and m.b.payload != 0
        bursts.tensor_done.next = m.b.valid and answered_last

    @always(domain.clk.posedge)
    def collect() -> None:
        if bursts.started and came:
            collected.next = collected - shorter
        elif bursts.started:
            collected.next = collected - length
        elif came:
            collected.next = collected + 1
        if domain.rst:
            collected.next = 0

    @always(domain.clk.posedge)
    def send() -> None:
        if request and m.aw.ready:
            request.next = False
        if left == 0 or (sent and left == 1):
            if bursts.started:
                left.next = length
            else:
                left.next = coming
            coming.next = 0
            ahead.next = False
        else:
            if sent:
                left.next = left - 1
            if bursts.started:
                coming.next = length
                ahead.next = True
        if bursts.started:
            request.next = True
            beats.next = shorter
            address.next = base + (slot << shift)
            if slot == final_slot:
                slot.next = 0
            else:
                slot.next = slot + 1
        if domain.rst:
            request.next = False
            ahead.next = False
            coming.next = 0
            left.next = 0
            slot.next = first_slot

    return store, position, answers, lengths, start, out, observe, collect, send


@block
def burst_reader(
    domain: ClockReset, base: Bits, slot: Bits, m: Axi, y: Stream, popped: Bit, bursts: Bursts, *, unit: Region
) -> Instances:
    """Asks for a burst when all of it has room in the queue behind.

    Ports:
        base: in, ``unit.format.address_bits`` bits, constant: word address of the region.
        slot: in, `address_width` ``(unit.ring_bursts)`` bits, with ``bursts.started``: which burst of the region.
        m: in and out; drives ``ar``, from registers, 1 cycle after ``bursts.started``, and takes ``r``.
        y: out, stream of words, in the cycle of ``m.r``, to a queue of ``unit.prefetch`` words.
        popped: in, 1 bit: a word leaves that queue at this edge.
        bursts: in and out, all of it; ``started`` is combinational in ``m.ar.ready`` too, ``done``, ``tensor_done`` and
            ``error`` in ``m.r``.
    """
    burst, data_bits = unit.burst, y.width
    room_at_start = unit.prefetch
    done_first, done_last = Signal(bool(0)), Signal(bool(0))
    position = tensor_position(domain, bursts.started, bursts.first, bursts.last, bursts=unit.tensor_bursts)
    answers = tensor_position(domain, bursts.done, done_first, done_last, bursts=unit.tensor_bursts)
    room = Signal(intbv(0, min=0, max=unit.prefetch + 1))
    # words of the coming burst, and one less
    length, shorter = Signal(intbv(0, min=0, max=burst + 1)), Signal(intbv(0, min=0, max=burst))
    lengths = burst_length(bursts.last, length, shorter, unit=unit)
    address = Signal(intbv(0)[unit.format.address_bits :])
    beats = Signal(intbv(0, min=0, max=burst))
    request = Signal(bool(0))
    address_bits, total_bits = unit.format.address_bits, unit.format.data_bits
    request_bits, shift = m.ar.width, burst.bit_length() - 1
    last_at = m.r.width - 1

    @always_comb
    def start() -> None:
        bursts.started.next = bursts.may_start and room >= length and (not request or m.ar.ready)

    @always_comb
    def out() -> None:
        m.ar.valid.next = request
        m.ar.payload.next[address_bits:] = address
        m.ar.payload.next[request_bits:address_bits] = beats
        y.valid.next = m.r.valid
        y.payload.next = m.r.payload[data_bits:]
        m.r.ready.next = y.ready

    @always_comb
    def observe() -> None:
        bursts.done.next = m.r.valid and y.ready and m.r.payload[last_at]
        bursts.error.next = m.r.valid and m.r.payload[last_at:total_bits] != 0
        bursts.tensor_done.next = m.r.valid and y.ready and m.r.payload[last_at] and done_last

    @always(domain.clk.posedge)
    def ask() -> None:
        if bursts.started and popped:
            room.next = room - shorter
        elif bursts.started:
            room.next = room - length
        elif popped:
            room.next = room + 1
        if bursts.started:
            request.next = True
            address.next = base + (slot << shift)
            beats.next = shorter
        elif m.ar.ready:
            request.next = False
        if domain.rst:
            request.next = False
            room.next = room_at_start

    return position, answers, lengths, start, out, observe, ask
