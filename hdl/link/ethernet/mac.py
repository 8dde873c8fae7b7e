"""Beats of frames as vendors' MACs take and give them; wires, and a counter of no bits.

* AXI4-Stream, as verilog-ethernet and Corundum have it: byte 0 in the low bits of ``tdata``, ``tkeep`` contiguous from
  there, ``tuser`` with ``tlast`` of a frame that the MAC found bad.  There is no ready to the MAC's receiver.
* Avalon-ST, as Intel's E-tile and F-tile have it: byte 0 in the high bits of ``data``, ``startofpacket`` with the first
  beat, ``empty`` bytes at the end of the last, ``error``; ``valid`` does not fall inside a packet, which is what a
  transmitter that stores frames first sees to.  The MAC's ready counts in its own cycle.

`MacChecker` watches either contract.  Padding and FCS are the MAC's.  No frame is given up while it is sent, so what
says so to the MAC is low for ever.
"""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.errors import ContractViolation
from hdl.link.ethernet.frame import FrameFormat
from hdl.link.ethernet.sink import FrameSink
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of


@block
def axi_stream_transmit(
    x: Stream, tvalid: Bit, tready: Bit, tdata: Bits, tkeep: Bits, tlast: Bit, *, frames: FrameFormat
) -> Instances:
    """Beats of a transmitter to an AXI4-Stream MAC.  No cost, latency 0.

    Ports:
        x: in, stream of ``frames.word_bits + 1`` bits.
        tvalid, tlast: out, 1 bit, in the same cycle.
        tready: in, 1 bit.
        tdata: out, ``frames.word_bits`` bits, with ``tvalid``.
        tkeep: out, ``frames.word_bytes`` bits, with ``tvalid``.
    """
    word_bits, every, some = frames.word_bits, (1 << frames.word_bytes) - 1, (1 << frames.last_bytes) - 1

    @always_comb
    def connect() -> None:
        tvalid.next = x.valid
        tdata.next = x.payload[word_bits:]
        tlast.next = x.payload[word_bits]
        tkeep.next = every
        if x.payload[word_bits]:
            tkeep.next = some
        x.ready.next = tready

    return connect


@block
def axi_stream_receive(
    tvalid: Bit, tdata: Bits, tkeep: Bits, tlast: Bit, tuser: Bit, y: Stream, *, sink: FrameSink
) -> Instances:
    """Beats of an AXI4-Stream MAC to a receiver.  Cost: a table of ``tkeep``; latency 0.

    Ports:
        tvalid, tlast, tuser: in, 1 bit.
        tdata: in, ``sink.frames.word_bits`` bits.
        tkeep: in, ``sink.frames.word_bytes`` bits.
        y: out, stream of ``sink.beat_bits`` bits; its ready is not looked at.
    """
    word_bits, size, total = sink.frames.word_bits, sink.frames.word_bytes, sink.beat_bits
    size_at = word_bits + 2

    @always_comb
    def connect() -> None:
        y.valid.next = tvalid
        y.payload.next[word_bits:] = tdata
        y.payload.next[word_bits] = tlast
        y.payload.next[word_bits + 1] = tuser
        y.payload.next[total:size_at] = 0
        for i in range(size):
            if tkeep[i]:
                y.payload.next[total:size_at] = i + 1

    return connect


@block
def avalon_transmit(
    domain: ClockReset,
    x: Stream,
    valid: Bit,
    ready: Bit,
    data: Bits,
    startofpacket: Bit,
    endofpacket: Bit,
    empty: Bits,
    *,
    frames: FrameFormat,
) -> Instances:
    """Beats of a transmitter to an Avalon-ST MAC.  Cost: a flip-flop; latency 0.

    Ports:
        x: in, stream of ``frames.word_bits + 1`` bits, whose valid does not fall inside a frame.
        valid, startofpacket, endofpacket: out, 1 bit, in the same cycle.
        ready: in, 1 bit.
        data: out, ``frames.word_bits`` bits, with ``valid``.
        empty: out, bits for a number of bytes below ``frames.word_bytes``, with ``valid``.
    """
    word_bits, top = frames.word_bits, frames.word_bytes - 1
    missing = frames.word_bytes - frames.last_bytes
    inside = Signal(bool(0))

    @always_comb
    def connect() -> None:
        valid.next = x.valid
        startofpacket.next = not inside
        endofpacket.next = x.payload[word_bits]
        empty.next = 0
        if x.payload[word_bits]:
            empty.next = missing
        x.ready.next = ready

    @always_comb
    def swap() -> None:
        for i in range(top + 1):
            data.next[bits_of(i, 8)] = x.payload[bits_of(top - i, 8)]

    @always(domain.clk.posedge)
    def step() -> None:
        if x.valid and ready:
            inside.next = not x.payload[word_bits]
        if domain.rst:
            inside.next = False

    return connect, swap, step


@block
def avalon_receive(
    valid: Bit, data: Bits, endofpacket: Bit, empty: Bits, error: Bit, y: Stream, *, sink: FrameSink
) -> Instances:
    """Beats of an Avalon-ST MAC to a receiver, which knows where a frame starts: behind the end of another.  No cost,
    latency 0.

    Ports:
        valid, endofpacket, error: in, 1 bit.
        data: in, ``sink.frames.word_bits`` bits.
        empty: in, bits for a number of bytes below ``sink.frames.word_bytes``.
        y: out, stream of ``sink.beat_bits`` bits; its ready is not looked at.
    """
    word_bits, size, total = sink.frames.word_bits, sink.frames.word_bytes, sink.beat_bits
    size_at, top = word_bits + 2, sink.frames.word_bytes - 1
    turned = Signal(intbv(0)[word_bits:])

    @always_comb
    def swap() -> None:
        for i in range(top + 1):
            turned.next[bits_of(i, 8)] = data[bits_of(top - i, 8)]

    @always_comb
    def connect() -> None:
        y.valid.next = valid
        y.payload.next[word_bits:] = turned
        y.payload.next[word_bits] = endofpacket
        y.payload.next[word_bits + 1] = error
        y.payload.next[total:size_at] = size
        if endofpacket:
            y.payload.next[total:size_at] = size - empty

    return swap, connect


class MacChecker:
    """Watches the beats that go to a MAC: call `observe` with the values just before each rising edge.

    A beat is (data, first, last, bytes), data as a number whose low byte is the first one; ``first`` is None where the
    contract has no mark for it.  `frames` holds what the MAC got."""

    def __init__(self, name: str, word_bytes: int) -> None:
        self.name, self.word_bytes = name, word_bytes
        self.frames: list[bytes] = []
        self._frame = bytearray()
        self._waiting: tuple[int, bool | None, bool, int] | None = None

    def observe(self, cycle: int, valid: bool, ready: bool, beat: tuple[int, bool | None, bool, int]) -> None:
        """Check one cycle.  Raises `ContractViolation`."""
        where = f"MAC {self.name}, cycle {cycle}"
        if not valid:
            if self._frame or self._waiting is not None:
                raise ContractViolation(f"{where}: valid fell inside a frame")
            return
        if self._waiting is not None and beat != self._waiting:
            raise ContractViolation(f"{where}: a beat changed while it waited")
        data, first, last, size = beat
        if first is not None and first != (not self._frame):
            raise ContractViolation(f"{where}: the mark of a frame's first beat is {first}")
        if not 1 <= size <= self.word_bytes or (size < self.word_bytes and not last):
            raise ContractViolation(f"{where}: {size} bytes in a beat that is {'' if last else 'not '}the last")
        self._waiting = None if ready else beat
        if ready:
            self._frame += data.to_bytes(self.word_bytes, "little")[:size]
            if last:
                self.frames.append(bytes(self._frame))
                self._frame.clear()
