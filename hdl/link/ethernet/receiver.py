"""Frames from the MAC: checked, stored until they are known to be whole, unpacked to words.

The MAC can't be made to wait.  A frame's payload goes into the store as it comes, and a record behind it says whether
it counts.  Words leave as fast as they come in, so a store of a longest frame and a little more is enough while
whoever takes the words is ready, which credits see to; a frame that finds no room is dropped and counted as any other.

What is wrong with a frame is known `VERDICT_CYCLES` after its last beat.  The first cause in the order of
`hdl.link.ethernet.frame.Drop` is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.link.ethernet.crc import CRC_BITS, CRC_CYCLES, Crc32c, crc32c_beats
from hdl.link.ethernet.frame import (
    CRC_BYTES,
    DESCRIPTOR,
    DESCRIPTOR_BITS,
    ETH_BYTES,
    HEADER,
    HEADER_BYTES,
    IP_BYTES,
    VERSION,
    DescriptorFlag,
    FrameFormat,
    FrameType,
)
from hdl.link.ethernet.peers import KIND_BITS, SEQUENCE_BITS, Heard
from hdl.link.ethernet.transmitter import IP_BITS, LENGTH_BITS, MAC_BITS, NUMBER_BITS, PEER_BITS, row_of
from hdl.link.format import LinkFormat
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.fifo import queue
from hdl.streams.pipes import m2s_pipe
from hdl.streams.reads import read_stream

# from the last beat of a frame at the port to what becomes of it, without the register at the port
VERDICT_CYCLES = 5
# words of a block memory at least: a store of fewer takes as many blocks
LEAST_STORE = 512
# payloads in the store, at most
RECORDS = 64
COUNTER_BITS = 16


class Cause(IntEnum):
    """Places of the counters: `hdl.link.ethernet.frame.Drop` as far as a circuit tells them apart, and no room."""

    SHORT = 0
    FOREIGN = 1
    CHECKSUM = 2
    VERSION = 3
    LENGTH = 4
    CRC = 5
    ADDRESS = 6
    EPOCH = 7
    DIGEST = 8
    OVERRUN = 9
    DUPLICATE = 10
    GAP = 11


@dataclass(frozen=True, kw_only=True)
class FrameSink:
    """Sizes of a receiver."""

    frames: FrameFormat
    form: LinkFormat
    peers: int

    @property
    def store(self) -> int:
        """Beats that are stored, a power of two: a longest payload and what comes until it is known to be whole."""
        return max(LEAST_STORE, 1 << (self.frames.payload_beats + 3 * VERDICT_CYCLES - 1).bit_length())

    @property
    def size_bits(self) -> int:
        """Bits of the number of bytes of a beat."""
        return self.frames.word_bytes.bit_length()

    @property
    def beat_bits(self) -> int:
        """Bits of a beat from the MAC: its data, byte 0 in the low bits; whether it is the last of its frame; whether
        the MAC found the frame bad, with the last; bytes that it has."""
        return self.frames.word_bits + 2 + self.size_bits

    @property
    def header_beats(self) -> int:
        """Beats of the headers."""
        return HEADER_BYTES // self.frames.word_bytes


class Ending:
    """Of a frame, `VERDICT_CYCLES` after its last beat: ``valid`` for one cycle; what its length, its check sequence
    and the store say of it.  ``beats`` are there a cycle before."""

    def __init__(self, sink: FrameSink) -> None:
        self.valid: Bit = Signal(bool(0))
        self.short: Bit = Signal(bool(0))
        self.uneven: Bit = Signal(bool(0))
        self.beats: Bits = Signal(intbv(0)[HEADER["dtl.beats"].bits :])
        self.corrupt: Bit = Signal(bool(0))
        self.overrun: Bit = Signal(bool(0))
        self.stored: Bits = Signal(intbv(0)[address_width(sink.store) + 1 :])


class Claims:
    """What the header of a frame says, `VERDICT_CYCLES` later: whether it is one of ours, whose, of which kind.
    ``beats`` are there a cycle before."""

    def __init__(self, sink: FrameSink) -> None:
        self.foreign: Bit = Signal(bool(0))
        self.checksum: Bit = Signal(bool(0))
        self.version: Bit = Signal(bool(0))
        self.length: Bit = Signal(bool(0))
        self.address: Bit = Signal(bool(0))
        self.epoch: Bit = Signal(bool(0))
        self.digest: Bit = Signal(bool(0))
        self.beats: Bits = Signal(intbv(0)[HEADER["dtl.beats"].bits :])
        self.kind: Bits = Signal(intbv(0)[KIND_BITS:])
        self.acknowledge: Bits = Signal(intbv(0)[SEQUENCE_BITS:])
        # a bit a peer
        self.source: Bits = Signal(intbv(0)[sink.peers :])
        # DATA that is expected, or came before
        self.expected: Bit = Signal(bool(0))
        self.stale: Bit = Signal(bool(0))


@block
def receiver(
    domain: ClockReset,
    x: Stream,
    expected: Bits,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    heard: Sequence[Heard],
    y: Stream,
    dropped: Bits,
    malformed: Bit,
    *,
    sink: FrameSink,
) -> Instances:
    """Takes frames, tells peers what was heard, gives words.  Cost: the header and what is looked at of it in each of
    `VERDICT_CYCLES`, `crc32c_beats`, the store, a beat behind it, a group's descriptors.

    Ports:
        x: in, stream of ``sink.beat_bits`` bits, always ready.
        expected: in, 32 bits a peer: the only sequence number that is taken.
        own, others: in, constant, as in `hdl.link.ethernet.transmitter`.
        epoch: in, 16 bits.
        digest: in, 32 bits, constant.
        heard: out, of each peer, combinational in registers.
        y: out, stream of `LinkFormat.payload_bits` bits, device 0.
        dropped: out, `COUNTER_BITS` bits a `Cause`, from registers: frames that were not heard; they stop at the last.
        malformed: out, 1 bit, from a register until reset: a frame that is whole announces other words than it has.
    """
    ending, claims = Ending(sink), Claims(sink)
    header = Signal(intbv(0)[HEADER_BYTES * 8 :])
    keep, good = (Signal(bool(0)) for _ in range(2))
    room = Signal(bool(0))
    store_data = Signal(intbv(0)[sink.frames.word_bits :])
    write = Signal(bool(0))
    causes = Signal(intbv(0)[len(Cause) :])
    front = frame_front(domain, x, header, write, store_data, room, ending, sink=sink)
    looks = header_claims(domain.clk, header, expected, own, others, epoch, digest, claims, sink=sink)
    verdict = frame_verdict(domain.clk, ending, claims, heard, keep, good, causes, sink=sink)
    count = drop_counters(domain, causes, dropped)
    beats = Stream(sink.frames.word_bits + 1)
    store = frame_store(domain, write, store_data, room, keep, good, ending, beats, sink=sink)
    words = unpack_words(domain, beats, y, malformed, form=sink.form)
    return front, looks, verdict, count, store, words


@block
def frame_front(
    domain: ClockReset,
    x: Stream,
    header: Bits,
    write: Bit,
    data: Bits,
    room: Bit,
    ending: Ending,
    *,
    sink: FrameSink,
) -> Instances:
    """Takes beats apart: header, payload, check sequence.

    Ports:
        x: in, stream of ``sink.beat_bits`` bits, always ready.
        header: out, 512 bits, the first byte lowest, from registers, from two cycles after its last beat.
        write: out, 1 bit: a beat of payload for the store, a cycle after it came.
        data: out, ``sink.frames.word_bits`` bits, from registers.
        room: in, 1 bit: the store takes it.
        ending: out, from registers.
    """
    word_bits, headers, most = sink.frames.word_bits, sink.header_beats, sink.frames.payload_beats
    check = Crc32c(word_bits=word_bits)
    start_beat, size_bits, count_bits = check.start_beat, sink.size_bits, len(ending.beats)
    last_at, bad_at, size_at = word_bits, word_bits + 1, word_bits + 2
    total, trailer_size, top = sink.beat_bits, CRC_BYTES, CRC_BYTES - 1
    crc, told = (Signal(intbv(0)[CRC_BITS:]) for _ in range(2))
    # of the beat that came
    valid, last, bad, starts, counts, body, ends = (Signal(bool(0)) for _ in range(7))
    size = Signal(intbv(0)[size_bits:])
    place = Signal(intbv(0, min=0, max=headers + 1))
    beats = Signal(intbv(0)[count_bits:])
    stored = Signal(intbv(0)[len(ending.stored) :])
    # frames that ended lately
    tails = [Signal(intbv(0)[CRC_BITS + count_bits + len(ending.stored) + 4 :]) for _ in range(VERDICT_CYCLES)]
    valids = Signal(intbv(0)[VERDICT_CYCLES:])
    short, uneven, overrun, always_on = (Signal(bool(0)) for _ in range(4))
    crcs = crc32c_beats(domain, always_on, starts, counts, data, crc, skip=check.skip)
    tail_bits, stored_bits = len(tails[0]), len(ending.stored)
    beats_at = CRC_BITS
    stored_at, flags_at = beats_at + count_bits, beats_at + count_bits + stored_bits
    before, final = CRC_CYCLES, VERDICT_CYCLES - 1

    @always(domain.clk.posedge)
    def take() -> None:
        valid.next = x.valid
        data.next = x.payload[word_bits:]
        last.next = x.payload[last_at]
        bad.next = x.payload[bad_at]
        size.next = x.payload[total:size_at]
        if domain.rst:
            valid.next = False

    @always_comb
    def sort() -> None:
        x.ready.next = True
        always_on.next = True
        starts.next = valid and place == start_beat
        counts.next = valid and not last and place >= start_beat
        body.next = valid and not last and place == headers
        ends.next = valid and last

    @always_comb
    def judge() -> None:
        write.next = body and room and not overrun and beats != most
        short.next = place != headers or (beats == 0 and size < trailer_size)
        uneven.next = size != trailer_size or beats > most

    @always(domain.clk.posedge)
    def count() -> None:
        if ends:
            place.next = 0
            beats.next = 0
            stored.next = 0
            overrun.next = False
        elif valid and place != headers:
            place.next = place + 1
        elif body:
            if beats != most + 1:
                beats.next = beats + 1
            if write:
                stored.next = stored + 1
            elif not room:
                overrun.next = True
        if domain.rst:
            place.next = 0
            beats.next = 0
            stored.next = 0
            overrun.next = False

    @always(domain.clk.posedge)
    def capture() -> None:
        for i in range(headers):
            if valid and place == i:
                header.next[bits_of(i, word_bits)] = data

    @always_comb
    def trailer() -> None:
        for i in range(top + 1):
            told.next[bits_of(i, 8)] = data[bits_of(top - i, 8)]

    @always(domain.clk.posedge)
    def delay() -> None:
        tails[0].next[beats_at:] = told
        tails[0].next[stored_at:beats_at] = beats
        tails[0].next[flags_at:stored_at] = stored
        tails[0].next[flags_at] = short
        tails[0].next[flags_at + 1] = uneven
        tails[0].next[flags_at + 2] = bad
        tails[0].next[flags_at + 3] = overrun
        for i in range(final):
            tails[i + 1].next = tails[i]
        valids.next[VERDICT_CYCLES:1] = valids[final:]
        valids.next[0] = ends
        # the check sequence is there: a cycle before the verdict
        ending.corrupt.next = tails[before - 1][beats_at:] != crc or tails[before - 1][flags_at + 2]
        if domain.rst:
            valids.next = 0

    @always_comb
    def out() -> None:
        ending.valid.next = valids[final]
        ending.beats.next = tails[final - 1][stored_at:beats_at]
        ending.stored.next = tails[final][flags_at:stored_at]
        ending.short.next = tails[final][flags_at]
        ending.uneven.next = tails[final][flags_at + 1]
        ending.overrun.next = tails[final][flags_at + 3]

    return crcs, take, sort, judge, count, capture, trailer, delay, out


@block
def header_claims(
    clk: Clock,
    header: Bits,
    expected: Bits,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    claims: Claims,
    *,
    sink: FrameSink,
) -> Instances:
    """What the header of a frame says; stages that move in every cycle.

    Ports:
        header: in, 512 bits, the first byte lowest.
        expected: in, 32 bits a peer, as of two cycles before ``claims``.
        own, others, epoch, digest: in, as in `receiver`.
        claims: out, `VERDICT_CYCLES` - 1 cycles after ``header``, from registers; ``checksum`` a cycle later.
    """
    top = HEADER_BYTES - 1
    number = Signal(intbv(0)[HEADER_BYTES * 8 :])
    first = Claims(sink)
    sequence = Signal(intbv(0)[SEQUENCE_BITS:])
    fixed = fixed_fields(clk, number, first.foreign, first.version)
    sums = ip_sums(clk, number, claims.checksum)
    lengths = told_lengths(clk, number, first.length, sink=sink)
    places = address_fields(clk, number, own, others, epoch, digest, first, sink=sink)
    kept = late_claims(clk, first, sequence, expected, claims, sink=sink)
    kind_at, sequence_at, acknowledge_at, beats_at = (
        HEADER[f"dtl.{name}"].low for name in ("type", "sequence", "acknowledge", "beats")
    )
    kind_end, sequence_end = kind_at + KIND_BITS, sequence_at + SEQUENCE_BITS
    acknowledge_end, beats_end = acknowledge_at + SEQUENCE_BITS, beats_at + len(first.beats)

    @always_comb
    def swap() -> None:
        for i in range(top + 1):
            number.next[bits_of(i, 8)] = header[bits_of(top - i, 8)]

    @always(clk.posedge)
    def hold() -> None:
        first.kind.next = number[kind_end:kind_at]
        first.acknowledge.next = number[acknowledge_end:acknowledge_at]
        first.beats.next = number[beats_end:beats_at]
        sequence.next = number[sequence_end:sequence_at]

    return fixed, sums, lengths, places, kept, swap, hold


@block
def fixed_fields(clk: Clock, number: Bits, foreign: Bit, version: Bit) -> Instances:
    """Whether fields that must have one value have another one.

    Ports:
        number: in, a header, the first byte highest.
        foreign: out, 1 bit, 1 cycle later: in Ethernet, IPv4 or UDP.
        version: out, 1 bit, 1 cycle later: there is no such version, type or flag.
    """
    fields = [field for field in HEADER.values() if field.required and field.layer != "dtl"]
    mask = sum(((1 << field.bits) - 1) << field.low for field in fields)
    value = sum((field.constant or 0) << field.low for field in fields)
    wide = len(number)
    different = Signal(intbv(0)[wide:])
    version_at, kind_at, flags_at = (HEADER[f"dtl.{name}"].low for name in ("version", "type", "flags"))
    version_end, kind_end, flags_end = version_at + 4, kind_at + KIND_BITS, flags_at + 8
    only, most = VERSION, max(FrameType)

    @always_comb
    def compare() -> None:
        different.next = (number ^ intbv(value)[512:]) & intbv(mask)[512:]

    @always(clk.posedge)
    def judge() -> None:
        foreign.next = different != 0
        version.next = (
            number[version_end:version_at] != only
            or number[kind_end:kind_at] == 0
            or number[kind_end:kind_at] > most
            or number[flags_end:flags_at] != 0
        )

    return compare, judge


@block
def ip_sums(clk: Clock, number: Bits, wrong: Bit) -> Instances:
    """Whether the IPv4 header's checksum is wrong.

    Ports:
        number: in, a header, the first byte highest.
        wrong: out, 1 bit, 5 cycles later.
    """
    low = (HEADER_BYTES - ETH_BYTES - IP_BYTES) * 8
    pairs = [Signal(intbv(0)[17:]) for _ in range(5)]
    more = [Signal(intbv(0)[18:]) for _ in range(3)]
    most = Signal(intbv(0)[19:])
    rest = Signal(intbv(0)[17:])
    total = Signal(intbv(0)[20:])
    folded = Signal(intbv(0)[17:])

    @always(clk.posedge)
    def add_words() -> None:
        for i in range(5):
            pairs[i].next = number[bits_of(2 * i, 16, low)] + number[bits_of(2 * i + 1, 16, low)]

    @always(clk.posedge)
    def add_pairs() -> None:
        more[0].next = pairs[0] + pairs[1]
        more[1].next = pairs[2] + pairs[3]
        more[2].next = pairs[4]

    @always(clk.posedge)
    def add_all() -> None:
        most.next = more[0] + more[1]
        rest.next = more[2]
        total.next = most + rest

    @always_comb
    def fold() -> None:
        folded.next = total[16:] + total[20:16]

    @always(clk.posedge)
    def judge() -> None:
        wrong.next = folded != 0xFFFF

    return add_words, add_pairs, add_all, fold, judge


@block
def told_lengths(clk: Clock, number: Bits, wrong: Bit, *, sink: FrameSink) -> Instances:
    """Whether lengths of IPv4, UDP and DTL disagree, or a type of frame has a payload that it can't have.

    Ports:
        number: in, a header, the first byte highest.
        wrong: out, 1 bit, 1 cycle later, not from a register.
    """
    ip_at, udp_at, beats_at, kind_at = (
        HEADER[name].low for name in ("ip.length", "udp.length", "dtl.beats", "dtl.type")
    )
    ip_end, udp_end, beats_end, kind_end = ip_at + 16, udp_at + 16, beats_at + 16, kind_at + KIND_BITS
    size, bare, ip_bytes = sink.frames.word_bytes, sink.frames.frame_bytes(0) - ETH_BYTES, IP_BYTES
    data_kind, control_kind = int(FrameType.DATA), int(FrameType.CONTROL)
    told, whole = (Signal(intbv(0)[16 + size.bit_length() :]) for _ in range(2))
    length = Signal(intbv(0)[16:])
    empty, data, bare_kind = (Signal(bool(0)) for _ in range(3))

    @always(clk.posedge)
    def add() -> None:
        told.next = number[beats_end:beats_at] * size + bare
        whole.next = number[udp_end:udp_at] + ip_bytes
        length.next = number[ip_end:ip_at]
        empty.next = number[beats_end:beats_at] == 0
        data.next = number[kind_end:kind_at] == data_kind
        bare_kind.next = number[kind_end:kind_at] != data_kind and number[kind_end:kind_at] != control_kind

    @always_comb
    def judge() -> None:
        wrong.next = told != length or whole != length or (data and empty) or (bare_kind and not empty)

    return add, judge


@block
def address_fields(
    clk: Clock,
    number: Bits,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    claims: Claims,
    *,
    sink: FrameSink,
) -> Instances:
    """Whether a frame is for this device, and which peer's.

    Ports:
        number: in, a header, the first byte highest.
        own, others, epoch, digest: in, as in `receiver`.
        claims: out, ``address`` (to another device), ``epoch``, ``digest`` and ``source``, 1 cycle later.
    """
    count = sink.peers
    mac_at, target_at, source_at = (HEADER[name].low for name in ("eth.target", "ip.target", "ip.source"))
    to_at, from_at, epoch_at, digest_at = (
        HEADER[f"dtl.{name}"].low for name in ("target", "source", "epoch", "digest")
    )
    mac_end, target_end, source_end = mac_at + MAC_BITS, target_at + IP_BITS, source_at + IP_BITS
    to_end, from_end, epoch_end, digest_end = to_at + 16, from_at + 16, epoch_at + 16, digest_at + 32
    ip_low, mac_low, own_top = NUMBER_BITS, NUMBER_BITS + IP_BITS, NUMBER_BITS + IP_BITS + MAC_BITS
    # device number and IP address of a peer, behind its sum
    told = Signal(intbv(0)[NUMBER_BITS + IP_BITS :])
    low, half = LENGTH_BITS, NUMBER_BITS + IP_BITS

    @always_comb
    def source() -> None:
        told.next[ip_low:] = number[from_end:from_at]
        told.next[half:ip_low] = number[source_end:source_at]

    @always(clk.posedge)
    def judge() -> None:
        claims.address.next = (
            number[mac_end:mac_at] != own[own_top:mac_low]
            or number[target_end:target_at] != own[mac_low:ip_low]
            or number[to_end:to_at] != own[ip_low:]
        )
        claims.epoch.next = number[epoch_end:epoch_at] != epoch
        claims.digest.next = number[digest_end:digest_at] != digest
        for i in range(count):
            claims.source.next[i] = told == others[bits_of(0, half, i * PEER_BITS + low)]

    return source, judge


@block
def late_claims(
    clk: Clock, first: Claims, sequence: Bits, expected: Bits, claims: Claims, *, sink: FrameSink
) -> Instances:
    """Claims in the cycle of the verdict, and where the sequence number stands.

    Ports:
        first: in, but for ``checksum``, ``expected`` and ``stale``.
        sequence: in, 32 bits, with ``first``.
        expected: in, 32 bits a peer, two cycles before ``claims``.
        claims: out, but for ``checksum``, 3 cycles after ``first``, ``beats`` a cycle earlier, from registers.
    """
    count, half = sink.peers, 1 << (SEQUENCE_BITS - 1)
    second, third = Claims(sink), Claims(sink)
    later, wanted = (Signal(intbv(0)[SEQUENCE_BITS:]) for _ in range(2))
    beats = Signal(intbv(0)[len(first.beats) :])
    ahead = Signal(modbv(0)[SEQUENCE_BITS:])
    holds = [_hold_claims(clk, a, b) for a, b in ((first, second), (second, third), (third, claims))]

    @always_comb
    def choose() -> None:
        wanted.next = expected[SEQUENCE_BITS:]
        for i in range(1, count):
            if second.source[i]:
                wanted.next = expected[bits_of(i, SEQUENCE_BITS)]

    @always(clk.posedge)
    def compare() -> None:
        later.next = sequence
        beats.next = first.beats
        claims.beats.next = beats
        ahead.next = wanted - later
        claims.expected.next = ahead == 0
        claims.stale.next = ahead != 0 and ahead <= half

    return holds, choose, compare


@block
def _hold_claims(clk: Clock, x: Claims, y: Claims) -> Instances:
    @always(clk.posedge)
    def hold() -> None:
        y.foreign.next = x.foreign
        y.version.next = x.version
        y.length.next = x.length
        y.address.next = x.address
        y.epoch.next = x.epoch
        y.digest.next = x.digest
        y.kind.next = x.kind
        y.acknowledge.next = x.acknowledge
        y.source.next = x.source

    return hold


@block
def frame_verdict(
    clk: Clock,
    ending: Ending,
    claims: Claims,
    heard: Sequence[Heard],
    keep: Bit,
    good: Bit,
    causes: Bits,
    *,
    sink: FrameSink,
) -> Instances:
    """What becomes of a frame.

    Ports:
        ending, claims: in, of the same frame.
        heard: out, of each peer, in the same cycle.
        keep: out, 1 bit: the frame has something in the store.
        good: out, 1 bit, with ``keep``: which is to be delivered.
        causes: out, a bit a `Cause`: the frame is dropped for it.
    """
    data_kind, reset_kind = int(FrameType.DATA), int(FrameType.RESET)
    short, foreign, checksum, version, length, crc, address, of_epoch, of_digest, no_room, duplicate, gap = map(
        int, Cause
    )
    found = Signal(intbv(0)[len(Cause) :])
    heeded, taken, differs = (Signal(bool(0)) for _ in range(3))
    judged = len(Cause)
    tells = [_heard(heard[i], ending, claims, heeded, found, i) for i in range(sink.peers)]

    @always(clk.posedge)
    def compare() -> None:
        differs.next = claims.beats != ending.beats

    @always_comb
    def find() -> None:
        found.next[short] = ending.short
        found.next[foreign] = claims.foreign
        found.next[checksum] = claims.checksum
        found.next[version] = claims.version
        found.next[length] = ending.uneven or claims.length or differs
        found.next[crc] = ending.corrupt
        found.next[address] = claims.address or claims.source == 0 or claims.kind == reset_kind
        found.next[of_epoch] = claims.epoch
        found.next[of_digest] = claims.digest
        found.next[no_room] = ending.overrun
        found.next[duplicate] = claims.kind == data_kind and claims.stale
        found.next[gap] = claims.kind == data_kind and not claims.stale and not claims.expected

    @always_comb
    def heed() -> None:
        heeded.next = ending.valid and found[duplicate:] == 0
        taken.next = ending.valid and found == 0 and claims.kind == data_kind

    @always_comb
    def out() -> None:
        keep.next = ending.valid and ending.stored != 0
        good.next = taken

    @always_comb
    def first() -> None:
        causes.next = 0
        for i in range(judged):
            if ending.valid and found[judged - 1 - i]:
                causes.next = 1 << (judged - 1 - i)

    return tells, compare, find, heed, out, first


@block
def _heard(heard: Heard, ending: Ending, claims: Claims, heeded: Bit, found: Bits, index: int) -> Instances:
    """What one peer is told."""
    data_kind, digest = int(FrameType.DATA), int(Cause.DIGEST)

    @always_comb
    def tell() -> None:
        heard.valid.next = heeded and claims.source[index]
        heard.kind.next = claims.kind
        heard.acknowledge.next = claims.acknowledge
        heard.taken.next = heeded and claims.source[index] and claims.kind == data_kind and claims.expected
        heard.stale.next = heeded and claims.source[index] and claims.kind == data_kind and claims.stale
        heard.gap.next = (
            heeded and claims.source[index] and claims.kind == data_kind and not claims.stale and not claims.expected
        )
        heard.stranger.next = ending.valid and found[digest:] == 0 and found[digest] and claims.source[index]

    return tell


@block
def drop_counters(domain: ClockReset, causes: Bits, dropped: Bits) -> Instances:
    """Counts frames by cause; a counter stays at its greatest number.

    Ports:
        causes: in, any number of bits, at most one of them high.
        dropped: out, `COUNTER_BITS` bits for each, from registers.
    """
    counters = [Signal(intbv(0)[COUNTER_BITS:]) for _ in range(len(causes))]
    flat = row_of(counters)
    counts = [_drop_counter(domain, causes, counters[i], i) for i in range(len(causes))]

    @always_comb
    def out() -> None:
        dropped.next = flat

    return counts, out


@block
def _drop_counter(domain: ClockReset, causes: Bits, counter: Bits, index: int) -> Instances:
    most = (1 << COUNTER_BITS) - 1

    @always(domain.clk.posedge)
    def count() -> None:
        if causes[index] and counter != most:
            counter.next = counter + 1
        if domain.rst:
            counter.next = 0

    return count


@block
def frame_store(
    domain: ClockReset,
    write: Bit,
    data: Bits,
    room: Bit,
    keep: Bit,
    good: Bit,
    ending: Ending,
    y: Stream,
    *,
    sink: FrameSink,
) -> Instances:
    """Payloads until they are known to be whole; what is not is passed over.

    Ports:
        write: in, 1 bit: a beat of a payload comes.
        data: in, ``sink.frames.word_bits`` bits, with ``write``.
        room: out, 1 bit, from a register: one more is taken.
        keep: in, 1 bit: the oldest payload without a record is complete.
        good: in, 1 bit, with ``keep``: it is delivered.
        ending: in, ``stored`` beats of it, with ``keep``.
        y: out, stream of beats of payloads and a bit above that ends one; valid and payload from registers.
    """
    depth, word_bits = sink.store, sink.frames.word_bits
    bits, count_bits = address_width(sink.store), len(ending.stored)
    # places with a bit more, so that full and empty differ
    write_at, read_at = (Signal(modbv(0)[bits + 1 :]) for _ in range(2))
    used = Signal(modbv(0)[bits + 1 :])
    left = Signal(intbv(0)[count_bits:])
    record, entry = Stream(count_bits + 1), Stream(count_bits + 1)
    records = queue(domain, record, entry, depth=RECORDS)
    word = Signal(intbv(0)[word_bits:])
    write_place, read_place = (Signal(intbv(0)[bits:]) for _ in range(2))
    wanted, fetch, final, pop = (Signal(bool(0)) for _ in range(4))
    fetched, beat = Stream(word_bits), Stream(word_bits + 1)
    held = Signal(intbv(0, min=0, max=RECORDS + 1))
    memory = simple_dual_port(
        domain.clk, write, write_place, data, fetch, read_place, word, depth=depth, width=word_bits
    )
    reads = read_stream(domain, wanted, fetch, word, fetched)
    stage = m2s_pipe(domain, beat, y)
    # beats that may be on their way to the store, and records to the queue
    spare_beats, spare_records = 4, RECORDS - VERDICT_CYCLES - 1

    @always_comb
    def places() -> None:
        write_place.next = write_at[bits:]
        read_place.next = read_at[bits:]
        wanted.next = left != 0
        pop.next = entry.valid and left == 0

    @always_comb
    def push() -> None:
        record.valid.next = keep
        record.payload.next[count_bits:] = ending.stored
        record.payload.next[count_bits] = good
        entry.ready.next = left == 0

    @always_comb
    def pass_on() -> None:
        beat.valid.next = fetched.valid
        beat.payload.next[word_bits:] = fetched.payload
        beat.payload.next[word_bits] = final
        fetched.ready.next = beat.ready

    @always(domain.clk.posedge)
    def step() -> None:
        if write:
            write_at.next = write_at + 1
        if pop and not entry.payload[count_bits]:
            read_at.next = read_at + entry.payload[count_bits:]
        elif fetch:
            read_at.next = read_at + 1
        if pop and entry.payload[count_bits]:
            left.next = entry.payload[count_bits:]
        elif fetch:
            left.next = left - 1
            final.next = left == 1
        used.next = write_at - read_at
        if keep and not pop:
            held.next = held + 1
        elif pop and not keep:
            held.next = held - 1
        room.next = used < depth - spare_beats and held < spare_records
        if domain.rst:
            write_at.next = 0
            read_at.next = 0
            left.next = 0
            used.next = 0
            held.next = 0
            room.next = False

    return records, memory, reads, stage, places, push, pass_on, step


@block
def unpack_words(domain: ClockReset, x: Stream, y: Stream, malformed: Bit, *, form: LinkFormat) -> Instances:
    """Words and credits of payloads.

    Ports:
        x: in, stream of ``form.word_bits + 1`` bits: beats of payloads, and a bit that ends one.
        y: out, stream of `LinkFormat.payload_bits` bits; a cycle for each word, credit and beat of descriptors.
        malformed: out, 1 bit, from a register until reset: descriptors announce other words than there are.
    """
    word_bits, slots = form.word_bits, form.word_bits // DESCRIPTOR_BITS
    group = Signal(intbv(0)[word_bits:])
    current, after = (Signal(intbv(0)[DESCRIPTOR_BITS:]) for _ in range(2))
    word = Stream(form.payload_bits)
    stage = m2s_pipe(domain, word, y)
    # words of the descriptor that went, and one more
    done, following = (Signal(modbv(0)[8:]) for _ in range(2))
    sequence = Signal(modbv(0)[8:])
    there, over, credit, counts, more, final, fire, ends, data = (Signal(bool(0)) for _ in range(9))
    last_at, sequence_at, stream_at, credit_at, device_at = form.header
    total, stream_bits, top = form.payload_bits, credit_at - stream_at, DESCRIPTOR_BITS // 8 - 1
    stream_low, words_low, sequence_low, flags_low, credits_low = (field.low for field in DESCRIPTOR.values())
    stream_end, words_end, sequence_end = stream_low + stream_bits, words_low + 8, sequence_low + 8
    last_flag, credit_flag = (
        flags_low + flag.bit_length() - 1 for flag in (DescriptorFlag.LAST, DescriptorFlag.CREDIT)
    )
    credit_bits = DESCRIPTOR["descriptor.credits"].bits
    credits_end, next_low = credits_low + credit_bits, DESCRIPTOR_BITS if slots > 1 else 0

    @always_comb
    def swap() -> None:
        for i in range(top + 1):
            current.next[bits_of(i, 8)] = group[bits_of(top - i, 8)]
            after.next[bits_of(i, 8)] = group[bits_of(top - i, 8, next_low)]

    @always_comb
    def look() -> None:
        credit.next = there and current[credit_flag]
        counts.next = current[words_end:words_low] != 0
        final.next = current[credit_flag] or following == current[words_end:words_low]
        more.next = slots > 1 and (after[words_end:words_low] != 0 or after[credit_flag])
        sequence.next = current[sequence_end:sequence_low] + done

    @always_comb
    def judge() -> None:
        # what the descriptor announces is still to come
        data.next = there and not credit and counts and not over

    @always_comb
    def handshake() -> None:
        word.valid.next = credit or (data and x.valid)
        x.ready.next = not there or (data and word.ready)
        fire.next = word.ready and (credit or (data and x.valid))
        ends.next = data and x.valid and word.ready and x.payload[word_bits]

    @always_comb
    def out() -> None:
        word.payload.next[word_bits:0] = x.payload[word_bits:]
        word.payload.next[last_at] = final and current[last_flag]
        word.payload.next[stream_at:sequence_at] = sequence
        if credit:
            word.payload.next[word_bits:0] = current[credits_end:credits_low]
            word.payload.next[last_at] = True
            word.payload.next[stream_at:sequence_at] = 0
        word.payload.next[credit_at:stream_at] = current[stream_end:stream_low]
        word.payload.next[credit_at] = credit
        word.payload.next[total:device_at] = 0

    @always(domain.clk.posedge)
    def step() -> None:
        if not there:
            # descriptors; those behind which the payload ends announce credits at most
            group.next = x.payload[word_bits:]
            over.next = x.payload[word_bits]
            there.next = x.valid
            done.next = 0
            following.next = 1
        elif fire:
            if final:
                group.next = group >> next_low
                there.next = more
                done.next = 0
                following.next = 1
            else:
                done.next = following
                following.next = following + 1
        elif not credit and not data:
            there.next = False
            malformed.next = True
        if ends:
            over.next = True
            if not final:
                there.next = False
                malformed.next = True
        if domain.rst:
            there.next = False
            malformed.next = False

    return stage, swap, look, judge, handshake, out, step
