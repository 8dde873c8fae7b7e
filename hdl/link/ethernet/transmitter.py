"""Frames to the MAC: header, payload from the replay memory, check sequence, a beat a cycle without gaps.

While a payload leaves, the next frame is looked for and its header made, so frames of payloads that are not very short
follow one another at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv, modbv

from hdl.link.ethernet.crc import CRC_BITS, CRC_CYCLES, Crc32c, crc32c_beats
from hdl.link.ethernet.frame import (
    CRC_BYTES,
    ETH_BYTES,
    HEADER,
    HEADER_BYTES,
    IP_BYTES,
    Address,
    FrameFlag,
    FrameType,
    ip_checksum,
    pack_fields,
)
from hdl.link.ethernet.packer import Packer, constant_of, next_address
from hdl.link.ethernet.peers import KIND_BITS, SEQUENCE_BITS, Saying
from hdl.memory import address_width
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.fork_join import row_of

MAC_BITS, IP_BITS, NUMBER_BITS, LENGTH_BITS = 48, 32, 16, 16
EPOCH_BITS, DIGEST_BITS = HEADER["dtl.epoch"].bits, HEADER["dtl.digest"].bits
OWN_BITS = MAC_BITS + IP_BITS + NUMBER_BITS
# of a peer: checksum of the IPv4 header but for its length, device number, IP and MAC addresses
PEER_BITS = LENGTH_BITS + NUMBER_BITS + IP_BITS + MAC_BITS


def own_constant(own: Address) -> int:
    """What a port is told of itself: MAC address, IP address, device number, the last in the low bits."""
    return (own.mac << IP_BITS | own.ip) << NUMBER_BITS | own.number


def peer_constant(own: Address, peer: Address) -> int:
    """What a port is told of a peer: as `own_constant`, and below it the sum of the IPv4 header but for its length."""
    values = {
        **{label: 0 for label, field in HEADER.items() if field.constant is None},
        "ip.source": own.ip,
        "ip.target": peer.ip,
    }
    header = pack_fields(HEADER, values)[ETH_BYTES : ETH_BYTES + IP_BYTES]
    return own_constant(peer) << LENGTH_BITS | ip_checksum(header) ^ 0xFFFF


class Chosen:
    """A frame that is on its way: whose, of which kind and numbers; where its payload lies and how long it is."""

    def __init__(self, unit: Packer) -> None:
        self.peer: Bits = Signal(intbv(0)[address_width(unit.peers) :])
        self.kind: Bits = Signal(intbv(0)[KIND_BITS:])
        self.sequence: Bits = Signal(intbv(0)[SEQUENCE_BITS:])
        self.acknowledge: Bits = Signal(intbv(0)[SEQUENCE_BITS:])
        self.start: Bits = Signal(intbv(0)[unit.address_bits :])
        self.length: Bits = Signal(intbv(0)[unit.beats_bits :])


@block
def transmitter(
    domain: ClockReset,
    sayings: Sequence[Saying],
    said: Bits,
    starts: Bits,
    lengths: Bits,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    fetch: Bit,
    fetch_at: Bits,
    word: Bits,
    y: Stream,
    idle: Bit,
    *,
    unit: Packer,
) -> Instances:
    """Sends what the peers want to say, in turns.  Cost: the header's fields, `crc32c_beats`, and five beats of
    flip-flops behind the replay memory.  A beat a cycle; between frames whose payload is shorter than 8 beats, up to 8
    cycles without.

    Ports:
        sayings: in, of each peer.
        said: out, a bit a peer: its saying is on its way.
        starts: in, an address a peer, a cycle after ``said``: where the payload lies.
        lengths: in, ``unit.beats_bits`` bits a peer, with ``starts``.
        own: in, `OWN_BITS` bits, constant (`own_constant`).
        others: in, `PEER_BITS` bits a peer, constant (`peer_constant`).
        epoch: in, 16 bits.
        digest: in, 32 bits, constant.
        fetch: out, 1 bit.
        fetch_at: out, an address, with ``fetch``.
        word: in, ``unit.frames.word_bits`` bits, 1 cycle after ``fetch``, until the next.
        y: out, stream of beats, byte 0 in the low bits, and above that a bit that ends a frame, whose last beat has 4
            bytes, the check sequence; valid and payload from registers, and valid stays high from the first beat of a
            frame to its last.
        idle: out, 1 bit, from a register: nothing is sent, nor wants to be.
    """
    word_bits = unit.frames.word_bits
    chosen = Chosen(unit)
    planned, go, using, busy, advance = (Signal(bool(0)) for _ in range(5))
    header_beat = Signal(intbv(0)[word_bits:])
    marks = Marks()
    turn = next_saying(domain, sayings, starts, lengths, said, chosen, planned, go, using, idle, busy, unit=unit)
    steps = frame_steps(domain, chosen, planned, advance, go, busy, marks, fetch, fetch_at, unit=unit)
    header = header_beats(domain.clk, chosen, own, others, epoch, digest, advance, marks, using, header_beat, unit=unit)
    beats = frame_beats(domain, advance, marks, header_beat, word, y, unit=unit)
    return turn, steps, header, beats


class Marks:
    """Of the beat that is asked for: whether it is one of a frame, of the ``header`` and which ``place`` it has there,
    of the payload (``fetched``), the ``last`` one; whether the check sequence ``starts`` there, and ``counts`` it."""

    def __init__(self) -> None:
        self.valid: Bit = Signal(bool(0))
        self.header: Bit = Signal(bool(0))
        self.place: Bits = Signal(intbv(0)[3:])
        self.fetched: Bit = Signal(bool(0))
        self.last: Bit = Signal(bool(0))
        self.starts: Bit = Signal(bool(0))
        self.counts: Bit = Signal(bool(0))


@block
def next_saying(
    domain: ClockReset,
    sayings: Sequence[Saying],
    starts: Bits,
    lengths: Bits,
    said: Bits,
    chosen: Chosen,
    planned: Bit,
    go: Bit,
    using: Bit,
    idle: Bit,
    busy: Bit,
    *,
    unit: Packer,
) -> Instances:
    """In turns one of the peers that want to say something, and what.

    Ports:
        sayings: in, of each peer.
        starts, lengths: in, a field a peer, a cycle after ``said``.
        said: out, a bit a peer.
        chosen: out, from registers.
        planned: out, 1 bit, from a register: ``chosen``, and its header's sums.
        go: in, 1 bit: the last beat of the header is asked for.
        using: in, 1 bit: it is not made yet.
        idle: out, 1 bit, from a register.
        busy: in, 1 bit: a frame is being sent.
    """
    count, beats_bits, address_bits = unit.peers, unit.beats_bits, unit.address_bits
    data_kind, last = int(FrameType.DATA), unit.peers - 1
    wants = row_of([saying.wants for saying in sayings])
    kinds = row_of([saying.kind for saying in sayings])
    sequences = row_of([saying.sequence for saying in sayings])
    acknowledges = row_of([saying.acknowledge for saying in sayings])
    candidate = Signal(intbv(0)[address_width(count) :])
    wanted = Signal(intbv(0)[count:])
    there, take = (Signal(bool(0)) for _ in range(2))
    # cycles since it was taken: its payload's place, the lengths in the header, their sum, that sum folded
    since = Signal(intbv(0)[4:])

    @always_comb
    def watch() -> None:
        wanted.next = wants

    @always(domain.clk.posedge)
    def choose() -> None:
        there.next = wanted != 0 and not take and since == 0 and not planned and not using
        for i in range(count):
            if wanted[last - i]:
                candidate.next = last - i
        for i in range(count):
            if wanted[last - i] and last - i > chosen.peer:
                candidate.next = last - i

    @always_comb
    def accept() -> None:
        take.next = False
        said.next = 0
        for i in range(count):
            if there and candidate == i and wanted[i]:
                take.next = True
                said.next[i] = True

    @always(domain.clk.posedge)
    def hold() -> None:
        if take:
            chosen.peer.next = candidate
        for i in range(count):
            if take and candidate == i:
                chosen.kind.next = kinds[bits_of(i, KIND_BITS)]
                chosen.sequence.next = sequences[bits_of(i, SEQUENCE_BITS)]
                chosen.acknowledge.next = acknowledges[bits_of(i, SEQUENCE_BITS)]
            if since[0] and chosen.peer == i:
                chosen.start.next = starts[bits_of(i, address_bits)]
                chosen.length.next = lengths[bits_of(i, beats_bits)]
        if since[0] and chosen.kind != data_kind:
            chosen.length.next = 0
        if domain.rst:
            chosen.peer.next = 0

    @always(domain.clk.posedge)
    def plan() -> None:
        since.next[4:1] = since[3:]
        since.next[0] = take
        if since[3]:
            planned.next = True
        elif go:
            planned.next = False
        idle.next = wanted == 0 and since == 0 and not planned and not busy and not there
        if domain.rst:
            since.next = 0
            planned.next = False

    return watch, choose, accept, hold, plan


@block
def header_beats(
    clk: Clock,
    chosen: Chosen,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    advance: Bit,
    marks: Marks,
    using: Bit,
    beat: Bits,
    *,
    unit: Packer,
) -> Instances:
    """The beats of a header.

    Ports:
        chosen: in, from registers.
        own, others, epoch, digest: in, as in `transmitter`.
        advance: in, 1 bit.
        marks: in, ``header`` and ``place`` of the beat that is asked for.
        using: out, 1 bit, from a register: ``beat`` is one of the header.
        beat: out, ``unit.frames.word_bits`` bits, from the ``advance`` with ``marks`` to the next, not from registers.
    """
    count, word_bits = unit.peers, unit.frames.word_bits
    beats, total = HEADER_BYTES * 8 // word_bits, HEADER_BYTES * 8
    size, bare = unit.frames.word_bytes, unit.frames.frame_bytes(0) - ETH_BYTES
    # sums of what does not belong together yet may go round
    ip_length, udp_length, checksum = (Signal(modbv(0)[LENGTH_BITS:]) for _ in range(3))
    ip_bytes, length_bits, ones = IP_BYTES, LENGTH_BITS, (1 << LENGTH_BITS) - 1
    unfolded = Signal(intbv(0)[LENGTH_BITS + 1 :])
    beats_field = Signal(intbv(0)[HEADER["dtl.beats"].bits :])
    other = Signal(intbv(0)[PEER_BITS:])
    place = Signal(intbv(0)[3:])
    me, you = _address_in(own, 0), _address_in(other, LENGTH_BITS)
    number = header_of(
        {
            "eth.target": you["mac"],
            "eth.source": me["mac"],
            "ip.length": ip_length,
            "ip.checksum": checksum,
            "ip.source": me["ip"],
            "ip.target": you["ip"],
            "udp.length": udp_length,
            "dtl.type": chosen.kind,
            "dtl.source": me["number"],
            "dtl.target": you["number"],
            "dtl.epoch": epoch,
            "dtl.sequence": chosen.sequence,
            "dtl.acknowledge": chosen.acknowledge,
            "dtl.beats": beats_field,
            "dtl.digest": digest,
        },
        {"dtl.flags": int(FrameFlag(0) if unit.frames.key is None else FrameFlag.KEYED)},
    )
    top = HEADER_BYTES - 1
    swapped = Signal(intbv(0)[total:])

    @always_comb
    def choose_peer() -> None:
        other.next = others[PEER_BITS:]
        for i in range(1, count):
            if chosen.peer == i:
                other.next = others[bits_of(i, PEER_BITS)]

    @always_comb
    def length() -> None:
        beats_field.next = chosen.length

    @always(clk.posedge)
    def sums() -> None:
        ip_length.next = chosen.length * size + bare
        udp_length.next = ip_length - ip_bytes
        unfolded.next = ip_length + other[length_bits:]
        # the carry goes round
        checksum.next = (unfolded[length_bits:] + unfolded[length_bits]) ^ ones

    @always_comb
    def swap() -> None:
        for i in range(top + 1):
            swapped.next[bits_of(i, 8)] = number[bits_of(top - i, 8)]

    @always(clk.posedge)
    def step() -> None:
        if advance:
            place.next = marks.place
            using.next = marks.header

    @always_comb
    def out() -> None:
        beat.next = swapped[word_bits:]
        for i in range(1, beats):
            if place == i:
                beat.next = swapped[bits_of(i, word_bits)]

    return choose_peer, length, sums, swap, step, out


def _address_in(whole: Any, low: int) -> dict[str, Bits]:
    """The parts of `own_constant` that stand in a signal from bit ``low`` on: MyHDL's give bits when called."""
    found, at = {}, low
    for name, bits in (("number", NUMBER_BITS), ("ip", IP_BITS), ("mac", MAC_BITS)):
        found[name] = whole(at + bits, at)
        at += bits
    return found


def header_of(values: Mapping[str, Bits], constants: Mapping[str, int]) -> Bits:
    """The header, the first byte highest: constants of `HEADER`, ``values`` and ``constants`` by label."""
    parts: list[Any] = []
    for label, field in HEADER.items():
        value = values.get(label)
        assert value is None or len(value) == field.bits, f"{label} has {field.bits} bits"
        constant = constants.get(label, field.constant) or 0
        parts.append(format(constant, f"0{field.bits}b") if value is None else value)
    header: Bits = ConcatSignal(*parts)
    return header


@block
def frame_steps(
    domain: ClockReset,
    chosen: Chosen,
    planned: Bit,
    advance: Bit,
    go: Bit,
    busy: Bit,
    marks: Marks,
    fetch: Bit,
    fetch_at: Bits,
    *,
    unit: Packer,
) -> Instances:
    """Asks for the beats of a frame, one after another.

    Ports:
        chosen: in, from registers.
        planned: in, 1 bit: it is complete.
        advance: in, 1 bit: the beat that is asked for is taken at this edge.
        go: out, 1 bit: it is the last one of the header.
        busy: out, 1 bit, from a register: a frame has begun.
        marks: out, from registers.
        fetch: out, 1 bit: a word of the payload is read at this edge.
        fetch_at: out, ``unit.address_bits`` bits, from registers.
    """
    bits, check = unit.address_bits, Crc32c(word_bits=unit.frames.word_bits)
    last_header, start_beat = HEADER_BYTES // unit.frames.word_bytes - 1, check.start_beat
    lasts = tuple(start + size - 1 for start, size in zip(unit.starts, unit.regions, strict=True))
    first, last, following = (Signal(intbv(0)[bits:]) for _ in range(3))
    at = Signal(intbv(0)[bits:])
    place = Signal(intbv(0)[3:])
    left = Signal(intbv(0)[unit.beats_bits :])
    header, fetched, trailer, enter = (Signal(bool(0)) for _ in range(4))
    low, high = constant_of(chosen.peer, first, table=unit.starts), constant_of(chosen.peer, last, table=lasts)
    # of the frame whose payload is read
    first_held, last_held = (Signal(intbv(0)[bits:]) for _ in range(2))
    ahead = next_address(at, first_held, last_held, following)

    @always_comb
    def out() -> None:
        marks.valid.next = header or fetched or trailer
        marks.header.next = header
        marks.place.next = place
        marks.fetched.next = fetched
        marks.last.next = trailer
        marks.starts.next = header and place == start_beat
        marks.counts.next = (header and place + 1 > start_beat) or fetched

    @always_comb
    def ask() -> None:
        busy.next = header or fetched or trailer
        go.next = advance and header and place == last_header
        enter.next = advance and planned and not header and not fetched
        fetch.next = advance and fetched
        fetch_at.next = at

    @always(domain.clk.posedge)
    def step() -> None:
        if enter:
            header.next = True
            trailer.next = False
            place.next = 0
            at.next = chosen.start
            left.next = chosen.length
            first_held.next = first
            last_held.next = last
        elif advance:
            trailer.next = False
            if header:
                if place == last_header:
                    place.next = 0
                    header.next = False
                    fetched.next = left != 0
                    trailer.next = left == 0
                else:
                    place.next = place + 1
            elif fetched:
                at.next = following
                left.next = left - 1
                if left == 1:
                    fetched.next = False
                    trailer.next = True
        if domain.rst:
            header.next = False
            fetched.next = False
            trailer.next = False

    return low, high, ahead, out, ask, step


@block
def frame_beats(
    domain: ClockReset, advance: Bit, marks: Marks, header: Bits, word: Bits, y: Stream, *, unit: Packer
) -> Instances:
    """Beats of frames with their check sequence.

    Ports:
        advance: out, 1 bit, combinational in ``y.ready``: everything moves on at this edge.
        marks: in, of the beat that is asked for.
        header: in, ``unit.frames.word_bits`` bits, after the ``advance`` with ``marks``.
        word: in, as wide, likewise.
        y: out, stream of ``unit.frames.word_bits + 1`` bits, `CRC_CYCLES` + 2 cycles with ``advance`` after ``marks``.
    """
    word_bits, stages = unit.frames.word_bits, CRC_CYCLES
    crc = Signal(intbv(0)[CRC_BITS:])
    data = Signal(intbv(0)[word_bits:])
    later = [Signal(intbv(0)[word_bits:]) for _ in range(stages - 1)]
    leaving = Signal(intbv(0)[word_bits + 1 :])
    # of the beat in `header` or `word`, and in `data`
    fetched, starts_first, counts_first, starts, counts, ended = (Signal(bool(0)) for _ in range(6))
    valid, lasts = (Signal(intbv(0)[stages + 1 :]) for _ in range(2))
    move = Signal(bool(0))
    check = crc32c_beats(domain, move, starts, counts, data, crc, skip=Crc32c(word_bits=word_bits).skip)
    last_byte, top = CRC_BYTES - 1, stages - 2

    @always_comb
    def go() -> None:
        move.next = y.ready or not ended

    @always_comb
    def out() -> None:
        advance.next = move
        y.valid.next = ended
        y.payload.next = leaving

    @always(domain.clk.posedge)
    def carry() -> None:
        if move:
            fetched.next = marks.fetched
            starts_first.next = marks.starts
            counts_first.next = marks.counts
            starts.next = starts_first
            counts.next = counts_first
            if fetched:
                data.next = word
            else:
                data.next = header
            later[0].next = data
            for i in range(top):
                later[i + 1].next = later[i]

    @always(domain.clk.posedge)
    def leave() -> None:
        if move:
            leaving.next[word_bits:] = later[top]
            leaving.next[word_bits] = lasts[stages]
            if lasts[stages]:
                for i in range(last_byte + 1):
                    leaving.next[bits_of(i, 8)] = crc[bits_of(last_byte - i, 8)]

    @always(domain.clk.posedge)
    def follow() -> None:
        if move:
            valid.next[stages + 1 : 1] = valid[stages:]
            valid.next[0] = marks.valid
            lasts.next[stages + 1 : 1] = lasts[stages:]
            lasts.next[0] = marks.last
            ended.next = valid[stages]
        if domain.rst:
            valid.next = 0
            ended.next = False

    return check, go, out, carry, leave, follow
