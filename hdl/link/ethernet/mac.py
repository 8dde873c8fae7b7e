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

from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.errors import ContractViolation
from hdl.link.ethernet.frame import FrameFormat
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of


@dataclass(frozen=True, kw_only=True)
class MacBeats:
    """Beats of frames at a MAC, of as many bits as a word, or any other power of two."""

    frames: FrameFormat
    bits: int
    # whether what comes from the MAC says which byte of a beat is its last, and not how many it has
    ends: bool = False

    @property
    def bytes(self) -> int:
        """Of a beat."""
        return self.bits // 8

    @property
    def words(self) -> int:
        """Words of a beat, if it has several."""
        return max(1, self.bits // self.frames.word_bits)

    @property
    def parts(self) -> int:
        """Beats of a word, if it has several."""
        return max(1, self.frames.word_bits // self.bits)

    @property
    def last_bytes(self) -> int:
        """Bytes of a frame's last word in the frame's last beat."""
        return (self.frames.last_bytes - 1) % self.bytes + 1

    @property
    def last_part(self) -> int:
        """Which beat of its last word is a frame's last."""
        return (self.frames.last_bytes - 1) // self.bytes

    @property
    def place_bits(self) -> int:
        """Bits of the place of a word in a beat; a beat of one has none."""
        return (self.words - 1).bit_length()

    @property
    def sent_bits(self) -> int:
        """Of a beat to the MAC: its data, byte 0 in the low bits; whether it is the last; where its last word is."""
        return self.bits + 1 + self.place_bits

    @property
    def given_bits(self) -> int:
        """Of a beat from the MAC: its data; whether it is the last; whether the MAC found the frame bad, with the last;
        bytes that it has, or the last of them."""
        return self.bits + 2 + (self.bytes - self.ends).bit_length()


@block
def axi_stream_transmit(
    x: Stream, tvalid: Bit, tready: Bit, tdata: Bits, tkeep: Bits, tlast: Bit, *, beats: MacBeats
) -> Instances:
    """Beats of frames to an AXI4-Stream MAC.  Cost: ``tkeep`` where a beat has several words; latency 0.

    Ports:
        x: in, stream of ``beats.sent_bits`` bits.
        tvalid, tlast: out, 1 bit, in the same cycle.
        tready: in, 1 bit.
        tdata: out, ``beats.bits`` bits, with ``tvalid``.
        tkeep: out, ``beats.bytes`` bits, with ``tvalid``.
    """
    word_bits, every, some = beats.bits, (1 << beats.bytes) - 1, (1 << beats.last_bytes) - 1
    if beats.words > 1:
        total, start = beats.sent_bits, beats.bits + 1
        words, size, full = beats.words, beats.frames.word_bytes, (1 << beats.frames.word_bytes) - 1

        @always_comb
        def connect_words() -> None:
            tvalid.next = x.valid
            tdata.next = x.payload[word_bits:]
            tlast.next = x.payload[word_bits]
            for i in range(words):
                tkeep.next[bits_of(i, size)] = full
                if x.payload[word_bits] and x.payload[total:start] == i:
                    tkeep.next[bits_of(i, size)] = some
                elif x.payload[word_bits] and x.payload[total:start] < i:
                    tkeep.next[bits_of(i, size)] = 0
            x.ready.next = tready

        return connect_words

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
    tvalid: Bit, tdata: Bits, tkeep: Bits, tlast: Bit, tuser: Bit, y: Stream, *, beats: MacBeats
) -> Instances:
    """Beats of an AXI4-Stream MAC to a receiver.  Cost: a table of ``tkeep``; latency 0.

    Ports:
        tvalid, tlast, tuser: in, 1 bit.
        tdata: in, ``beats.bits`` bits.
        tkeep: in, ``beats.bytes`` bits.
        y: out, stream of ``beats.given_bits`` bits; its ready is not looked at.
    """
    word_bits, size, total, first = beats.bits, beats.bytes, beats.given_bits, int(not beats.ends)
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
                y.payload.next[total:size_at] = i + first

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
    beats: MacBeats,
) -> Instances:
    """Beats of frames to an Avalon-ST MAC.  Cost: a flip-flop; latency 0.

    Ports:
        x: in, stream of ``beats.sent_bits`` bits, whose valid does not fall inside a frame.
        valid, startofpacket, endofpacket: out, 1 bit, in the same cycle.
        ready: in, 1 bit.
        data: out, ``beats.bits`` bits, with ``valid``.
        empty: out, bits for a number of bytes below ``beats.bytes``, with ``valid``.
    """
    word_bits, top = beats.bits, beats.bytes - 1
    missing = min(beats.bytes, beats.frames.word_bytes) - beats.last_bytes
    inside = Signal(bool(0))
    if beats.words > 1:
        total, start, size = beats.sent_bits, beats.bits + 1, len(empty)
        low, last_word = size - beats.place_bits, beats.words - 1

        @always_comb
        def count_words() -> None:
            empty.next = 0
            if x.payload[word_bits]:
                empty.next[size:low] = last_word - x.payload[total:start]
                empty.next[low:] = missing
    else:

        @always_comb
        def count_words() -> None:
            empty.next = 0
            if x.payload[word_bits]:
                empty.next = missing

    @always_comb
    def connect() -> None:
        valid.next = x.valid
        startofpacket.next = not inside
        endofpacket.next = x.payload[word_bits]
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

    return connect, count_words, swap, step


@block
def avalon_receive(
    valid: Bit, data: Bits, endofpacket: Bit, empty: Bits, error: Bit, y: Stream, *, beats: MacBeats
) -> Instances:
    """Beats of an Avalon-ST MAC to a receiver, which knows where a frame starts: behind the end of another.  No cost,
    latency 0.

    Ports:
        valid, endofpacket, error: in, 1 bit.
        data: in, ``beats.bits`` bits.
        empty: in, bits for a number of bytes below ``beats.bytes``.
        y: out, stream of ``beats.given_bits`` bits; its ready is not looked at.
    """
    word_bits, size, total = beats.bits, beats.bytes, beats.given_bits
    size_at, top = word_bits + 2, beats.bytes - 1
    turned, held = Signal(intbv(0)[word_bits:]), Signal(intbv(0)[total - size_at :])

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
        y.payload.next[total:size_at] = held

    if beats.ends:

        @always_comb
        def count() -> None:
            held.next = top
            if endofpacket:
                held.next = empty ^ top
    else:

        @always_comb
        def count() -> None:
            held.next = size
            if endofpacket:
                held.next = size - empty

    return swap, connect, count


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
