"""The MAC's side of an Ethernet port where the MAC has clocks and a width of its own.

Frames cross whole, so that they leave for the MAC without a gap whatever either clock does, and what the MAC gives
faster than the device takes is dropped whole and counted::

    tx ─▶ (words side by side) ─▶ crossing ─▶ (words in parts) ─▶ MAC        at the device's clock up to the crossing
    rx ◀─ (words one by one)  ◀─ crossing ◀─ (parts side by side) ◀─ MAC    at the device's clock from there on

What crosses is as wide as the wider one of word and beat, so that either side moves a beat a cycle.  The MAC's sides
are reset by the device's reset, which has to last until it has been seen there: 16 cycles, of clocks up to three times
as slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.link.clocks import DROPPED_BITS, TOLD_LATE, packet_crossing, synchroniser
from hdl.link.ethernet.adapter import (
    MAC_PREFIX,
    MacAdapter,
    MacWires,
    check_kind,
    mac_inputs,
    mac_outputs,
    mac_side,
)
from hdl.link.ethernet.mac import MacBeats
from hdl.link.ethernet.sink import LEAST_STORE, FrameSink
from hdl.memory import address_width
from hdl.signals import Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.unit import Unit

# clocks of the MAC, among its ports, and the counter among those of a device's network port
MAC_CLOCKS = (MAC_PREFIX + "tx_clk", MAC_PREFIX + "rx_clk")
OVERFLOW = "net_overflow"
# beats that pass until a frame that has begun to leave shows in the room that there is
SLACK_BEATS = 3 * TOLD_LATE


@dataclass(frozen=True, kw_only=True)
class ClockedMac(Unit):
    """`hdl.link.ethernet.adapter.MacAdapter` of a MAC that takes and gives beats of ``mac_bits`` at two clocks of its
    own; `OVERFLOW` counts frames that found no room.

    Raises:
        ValueError: on creation, of a MAC that there are no wires for.
    """

    sink: FrameSink
    # of `hdl.link.ethernet.adapter`
    kind: str
    mac_bits: int

    def __post_init__(self) -> None:
        check_kind(self.kind)

    @property
    def beats(self) -> MacBeats:
        """At the MAC."""
        return MacBeats(frames=self.sink.frames, bits=self.mac_bits, ends=True)

    @property
    def depth(self) -> int:
        """Of a crossing: a longest frame and what comes until it shows that it leaves."""
        frames = self.sink.frames
        wide = max(self.beats.bytes, frames.word_bytes)
        longest = -(-frames.frame_bytes(frames.payload_beats) // wide)
        return max(LEAST_STORE, 1 << (longest + SLACK_BEATS - 1).bit_length())

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"tx": self.sink.frames.word_bits + 1, "rx": self.sink.beat_bits}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants."""
        return dict.fromkeys(MAC_CLOCKS, 1) | mac_inputs(self.kind, self.beats)

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return mac_outputs(self.kind, self.beats) | {OVERFLOW: DROPPED_BITS}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        clocks, (overflow,) = self.signals(dict.fromkeys(MAC_CLOCKS, 1)), self.signals({OVERFLOW: DROPPED_BITS})
        wires = MacWires(self.kind, self.beats)
        return clocked_mac(domain, streams["tx"], streams["rx"], *clocks, wires, overflow, unit=self)


def mac_unit(sink: FrameSink, kind: str, mac_bits: int) -> MacAdapter | ClockedMac:
    """The MAC's side of a port; ``mac_bits`` of a MAC with clocks of its own, 0 of one at the device's."""
    if mac_bits:
        return ClockedMac(sink=sink, kind=kind, mac_bits=mac_bits)
    return MacAdapter(sink=sink, kind=kind)


@block
def clocked_mac(
    domain: ClockReset,
    tx: Stream,
    rx: Stream,
    mac_tx_clk: Clock,
    mac_rx_clk: Clock,
    mac: MacWires,
    net_overflow: Bits,
    *,
    unit: ClockedMac,
) -> Instances:
    """See `ClockedMac`.  Cost: the `mac_side`, `mac_crossings`.

    Ports:
        tx: in, stream of ``unit.sink.frames.word_bits + 1`` bits.
        rx: out, stream of ``unit.sink.beat_bits`` bits.
        mac_tx_clk, mac_rx_clk: in, 1 bit.
        mac: in and out, ports of the MAC: of what it takes at ``mac_tx_clk``, of what it gives at ``mac_rx_clk``.
        net_overflow: out, 16 bits, from registers.
    """
    beats = unit.beats
    sent, given, sender = Stream(beats.sent_bits), Stream(beats.given_bits), ClockReset(mac_tx_clk)
    crossings = mac_crossings(domain, sender, mac_rx_clk, tx, rx, sent, given, net_overflow, unit=unit)
    wires = mac_side(unit.kind)(sender, sent, given, mac, beats=beats)
    return crossings, wires


@block
def mac_crossings(
    domain: ClockReset,
    sender: ClockReset,
    rx_clk: Clock,
    tx: Stream,
    rx: Stream,
    sent: Stream,
    given: Stream,
    overflow: Bits,
    *,
    unit: ClockedMac,
) -> Instances:
    """Both ways between the clocks of a device and its MAC.  Cost: two `packet_crossing`, words side by side where a
    beat has several, and a beat or a word side by side behind the MAC.

    Ports:
        sender: out, the reset at the clock at which the MAC takes beats.
        rx_clk: in, 1 bit, at which it gives some.
        tx: in, stream of ``unit.sink.frames.word_bits + 1`` bits.
        rx: out, stream of ``unit.sink.beat_bits`` bits.
        sent: out, stream of ``unit.beats.sent_bits`` bits, at ``sender``.
        given: in, stream of ``unit.beats.given_bits`` bits, at ``rx_clk``, always ready.
        overflow: out, 16 bits, from registers: frames that found no room.
    """
    beats, depth, word_bits = unit.beats, unit.depth, unit.sink.frames.word_bits
    getter = ClockReset(rx_clk)
    resets = synchroniser(sender.clk, domain.rst, sender.rst), synchroniser(rx_clk, domain.rst, getter.rst)
    sides = (domain.clk, domain.rst), (sender.clk, sender.rst), (getter.clk, getter.rst)
    if beats.words > 1:
        packed = Stream(beats.sent_bits)
        packs = words_to_beats(domain, tx, packed, beats=beats)
        leaves = packet_crossing(*sides[0], *sides[1], packed, sent, None, depth=depth, last_bit=beats.bits)
        sends = packs, leaves
    else:
        words = Stream(word_bits + 1)
        leaves = packet_crossing(*sides[0], *sides[1], tx, words, None, depth=depth, last_bit=word_bits)
        sends = leaves, words_in_parts(sender, words, sent, beats=beats)
    wide = max(beats.bits, word_bits)
    found, arrived = (Stream(wide + 2 + address_width(wide // 8)) for _ in range(2))
    gathers = beats_side_by_side(getter, given, found, beats=beats)
    comes = packet_crossing(*sides[2], *sides[0], found, arrived, overflow, depth=depth, last_bit=wide)
    deals = words_one_by_one(domain, arrived, rx, beats=beats)
    return resets, sends, gathers, comes, deals


@block
def words_to_beats(domain: ClockReset, x: Stream, y: Stream, *, beats: MacBeats) -> Instances:
    """Words of a frame side by side, for a MAC that takes several at once.  Cost: a beat; 1 cycle behind its last word.

    Ports:
        x: in, stream of ``beats.frames.word_bits + 1`` bits; its ready passes through one gate.
        y: out, stream of ``beats.sent_bits`` bits, from registers.
    """
    size, total, words, top = beats.frames.word_bits, beats.bits, beats.words, beats.words - 1
    data = Signal(intbv(0)[total:])
    place, filled = (Signal(intbv(0)[beats.place_bits :]) for _ in range(2))
    valid, last, take = (Signal(bool(0)) for _ in range(3))
    high, low = beats.sent_bits, beats.bits + 1

    @always_comb
    def connect() -> None:
        take.next = y.ready or not valid
        x.ready.next = y.ready or not valid
        y.valid.next = valid
        y.payload.next[total:] = data
        y.payload.next[total] = last
        y.payload.next[high:low] = filled

    @always(domain.clk.posedge)
    def step() -> None:
        if take:
            valid.next = x.valid and (place == top or x.payload[size])
        if take and x.valid:
            last.next = x.payload[size]
            filled.next = place
            for i in range(words):
                if place == i:
                    data.next[bits_of(i, size)] = x.payload[size:]
            if place == top or x.payload[size]:
                place.next = 0
            else:
                place.next = place + 1
        if domain.rst:
            valid.next = False
            place.next = 0

    return connect, step


@block
def words_in_parts(domain: ClockReset, x: Stream, y: Stream, *, beats: MacBeats) -> Instances:
    """Each word in as many beats as it has.  Cost: a choice of a part; latency 0.

    Ports:
        x: in, stream of ``beats.frames.word_bits + 1`` bits; its ready passes through one gate.
        y: out, stream of ``beats.sent_bits`` bits; valid while ``x.valid`` is.
    """
    size, total, parts = beats.bits, beats.frames.word_bits, beats.parts
    top, last_part = beats.parts - 1, beats.last_part
    place = Signal(intbv(0)[address_width(parts) :])
    ends, final = (Signal(bool(0)) for _ in range(2))

    @always_comb
    def find() -> None:
        final.next = x.payload[total] and place == last_part
        ends.next = place == top or (x.payload[total] and place == last_part)

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready and ends
        y.payload.next[size] = final
        y.payload.next[size:] = x.payload[size:]
        for i in range(parts):
            if place == i:
                y.payload.next[size:] = x.payload[bits_of(i, size)]

    @always(domain.clk.posedge)
    def step() -> None:
        if x.valid and y.ready:
            if ends:
                place.next = 0
            else:
                place.next = place + 1
        if domain.rst:
            place.next = 0

    return find, connect, step


@block
def beats_side_by_side(domain: ClockReset, x: Stream, y: Stream, *, beats: MacBeats) -> Instances:
    """Beats of a MAC side by side in a word, where a word has several.  Cost: a word or a beat; 1 cycle behind its last
    beat.

    Ports:
        x: in, stream of ``beats.given_bits`` bits, always ready.
        y: out, stream of any width, from registers, of the wider one of word and beat: its data, whether it is the last
            of its frame, whether the frame is bad, which byte is its last; its ready is not looked at.
    """
    size, parts, top = beats.bits, beats.parts, beats.parts - 1
    total, high, low = beats.bits * beats.parts, beats.given_bits, beats.bits + 2
    data = Signal(intbv(0)[total:])
    place = Signal(intbv(0)[address_width(parts) :])
    # which byte of which beat is the last
    byte = Signal(intbv(0)[address_width(beats.bytes) :])
    part = Signal(intbv(0)[address_width(parts) :])
    valid, last, bad, ends = (Signal(bool(0)) for _ in range(4))
    end = Signal(intbv(0)[address_width(total // 8) :])
    end_at, start_at = len(y.payload), total + 2

    if parts > 1:

        @always_comb
        def find() -> None:
            end.next = concat(part, byte)
    else:

        @always_comb
        def find() -> None:
            end.next = byte

    @always_comb
    def connect() -> None:
        x.ready.next = True
        ends.next = place == top or x.payload[size]
        y.valid.next = valid
        y.payload.next[total:] = data
        y.payload.next[total] = last
        y.payload.next[total + 1] = bad
        y.payload.next[end_at:start_at] = end

    @always(domain.clk.posedge)
    def step() -> None:
        valid.next = x.valid and ends
        if x.valid:
            last.next = x.payload[size]
            bad.next = x.payload[size + 1]
            byte.next = x.payload[high:low]
            part.next = place
            for i in range(parts):
                if place == i:
                    data.next[bits_of(i, size)] = x.payload[size:]
            if ends:
                place.next = 0
            else:
                place.next = place + 1
        if domain.rst:
            valid.next = False
            place.next = 0

    return find, connect, step


@block
def words_one_by_one(domain: ClockReset, x: Stream, y: Stream, *, beats: MacBeats) -> Instances:
    """Words of a beat one behind the other, where a beat has several.  Cost: a choice of a word; latency 0.

    Ports:
        x: in, stream of any width, as `beats_side_by_side` gives them; its ready passes through one gate.
        y: out, stream of any width: of each word its data, whether it is the last of its frame, whether the frame is
            bad, bytes that it has.
    """
    size, words, word_bytes = beats.frames.word_bits, beats.words, beats.frames.word_bytes
    wide, top = size * words, words - 1
    byte_bits, all_bits, start_at = address_width(word_bytes), len(x.payload), wide + 2
    middle, high, low = wide + 2 + byte_bits, len(y.payload), size + 2
    place = Signal(intbv(0)[address_width(words) :])
    final, ends = (Signal(bool(0)) for _ in range(2))
    if words > 1:

        @always_comb
        def find() -> None:
            final.next = x.payload[wide] and place == x.payload[all_bits:middle]
            ends.next = place == top or (x.payload[wide] and place == x.payload[all_bits:middle])
    else:

        @always_comb
        def find() -> None:
            final.next = x.payload[wide]
            ends.next = True

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready and ends
        y.payload.next[size:] = x.payload[size:]
        for i in range(words):
            if place == i:
                y.payload.next[size:] = x.payload[bits_of(i, size)]
        y.payload.next[size] = final
        y.payload.next[size + 1] = final and x.payload[wide + 1]
        y.payload.next[high:low] = word_bytes
        if final:
            y.payload.next[high:low] = x.payload[middle:start_at] + 1

    @always(domain.clk.posedge)
    def step() -> None:
        if x.valid and y.ready:
            if ends:
                place.next = 0
            else:
                place.next = place + 1
        if domain.rst:
            place.next = 0

    return find, connect, step
