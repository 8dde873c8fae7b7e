"""Frames from the MAC: checked, stored until they are known to be whole, unpacked to words.

The MAC can't be made to wait.  A frame's payload goes into the store as it comes, and a record behind it says whether
it counts.  Words leave as fast as they come in, so a store of a longest frame and a little more is enough while
whoever takes the words is ready, which credits see to; a frame that finds no room is dropped and counted as any other.

What is wrong with a frame is known `VERDICT_CYCLES` after its last beat.  The first cause in the order of
`hdl.link.ethernet.frame.Drop` is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.link.ethernet.claims import Claims, header_claims
from hdl.link.ethernet.crc import CRC_BITS, CRC_CYCLES, Crc32c, crc32c_beats
from hdl.link.ethernet.frame import CRC_BYTES, HEADER, HEADER_BYTES, FrameType
from hdl.link.ethernet.peers import Heard
from hdl.link.ethernet.sink import VERDICT_CYCLES, FrameSink
from hdl.link.ethernet.unpack import unpack_words
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.fifo import queue
from hdl.streams.fork_join import row_of
from hdl.streams.pipes import m2s_pipe
from hdl.streams.reads import read_stream

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
    TAG = 6
    ADDRESS = 7
    EPOCH = 8
    DIGEST = 9
    OVERRUN = 10
    DUPLICATE = 11
    GAP = 12


class Ending:
    """Of a frame, `VERDICT_CYCLES` after its last beat: ``valid`` for one cycle; what its length, its check sequence
    and the store say of it.  ``beats`` are there a cycle before."""

    def __init__(self, sink: FrameSink) -> None:
        self.valid: Bit = Signal(bool(0))
        self.short: Bit = Signal(bool(0))
        self.uneven: Bit = Signal(bool(0))
        self.beats: Bits = Signal(intbv(0)[HEADER["dtl.beats"].bits :])
        self.corrupt: Bit = Signal(bool(0))
        # the tag is wrong
        self.untagged: Bit = Signal(bool(0))
        self.overrun: Bit = Signal(bool(0))
        self.stored: Bits = Signal(intbv(0)[address_width(sink.store) + 1 :])


@block
def receiver(
    domain: ClockReset,
    anew: ClockReset,
    x: Stream,
    expected: Bits,
    own: Bits,
    others: Bits,
    epoch: Bits,
    digest: Bits,
    heard: Sequence[Heard],
    resets: Bit,
    told: Bits,
    y: Stream,
    dropped: Bits,
    malformed: Bit,
    *,
    sink: FrameSink,
) -> Instances:
    """Takes frames, tells peers what was heard, gives words.  Cost: the header and what is looked at of it in each of
    `VERDICT_CYCLES`, `crc32c_beats`, the store, a beat behind it, a group's descriptors.

    Ports:
        anew: in, clock and reset, which the host's word resets too: payloads that are stored are forgotten, and so is
            one whose frame goes on.
        x: in, stream of ``sink.judged_bits`` bits, always ready.
        expected: in, 32 bits a peer: the only sequence number that is taken.
        own, others: in, constant, as in `hdl.link.ethernet.transmitter`.
        epoch: in, 16 bits.
        digest: in, 32 bits, constant.
        heard: out, of each peer, combinational in registers.
        resets: out, 1 bit, combinational in registers, for one cycle: the host wants all to begin anew.
        told: out, 16 bits, from registers, with ``resets``: in this epoch.
        y: out, stream of `LinkFormat.payload_bits` bits, device 0.
        dropped: out, `COUNTER_BITS` bits a `Cause`, from registers: frames that were not heard; they stop at the last.
        malformed: out, 1 bit, from a register until reset: a frame that is whole announces other words than it has.
    """
    ending, claims = Ending(sink), Claims(sink.peers)
    header = Signal(intbv(0)[HEADER_BYTES * 8 :])
    keep, good = (Signal(bool(0)) for _ in range(2))
    room = Signal(bool(0))
    store_data = Signal(intbv(0)[sink.frames.word_bits :])
    write = Signal(bool(0))
    causes = Signal(intbv(0)[len(Cause) :])
    front = frame_front(domain, anew.rst, x, header, write, store_data, room, ending, sink=sink)
    looks = header_claims(
        domain.clk, header, expected, own, others, epoch, digest, claims, frames=sink.frames, peers=sink.peers
    )
    verdict = frame_verdict(domain.clk, ending, claims, heard, resets, keep, good, causes, sink=sink)
    count = drop_counters(domain, causes, dropped)
    beats = Stream(sink.frames.word_bits + 1)
    store = frame_store(anew, write, store_data, room, keep, good, ending, beats, sink=sink)
    words = unpack_words(anew, beats, y, malformed, form=sink.form)

    @always_comb
    def out() -> None:
        told.next = claims.told

    return front, looks, verdict, count, store, words, out


@block
def frame_front(
    domain: ClockReset,
    clears: Bit,
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
        clears: in, 1 bit: the store forgets what it has.
        x: in, stream of ``sink.judged_bits`` bits, always ready.
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
    total, trailer_size, least, top = sink.beat_bits, sink.frames.trailer_bytes, CRC_BYTES, CRC_BYTES - 1
    crc, told = (Signal(intbv(0)[CRC_BITS:]) for _ in range(2))
    # of the beat that came
    valid, last, bad, starts, counts, body, ends = (Signal(bool(0)) for _ in range(7))
    size = Signal(intbv(0)[size_bits:])
    place = Signal(intbv(0, min=0, max=headers + 1))
    beats = Signal(intbv(0)[count_bits:])
    stored = Signal(intbv(0)[len(ending.stored) :])
    # frames that ended lately
    flags = 4 + sink.judged_bits - sink.beat_bits
    tails = [Signal(intbv(0)[CRC_BITS + count_bits + len(ending.stored) + flags :]) for _ in range(VERDICT_CYCLES)]
    valids = Signal(intbv(0)[VERDICT_CYCLES:])
    short, uneven, overrun, wrong, always_on = (Signal(bool(0)) for _ in range(5))
    crcs = crc32c_beats(domain, always_on, starts, counts, data, crc, skip=check.skip)
    tail_bits, stored_bits = len(tails[0]), len(ending.stored)
    beats_at = CRC_BITS
    stored_at, flags_at = beats_at + count_bits, beats_at + count_bits + stored_bits
    before, final, keyed = CRC_CYCLES, VERDICT_CYCLES - 1, sink.frames.key is not None
    # without a key nothing stands there, and the last bit that there is is not looked at
    wrong_at, last_flag = sink.judged_bits - 1, flags_at + flags - 1

    @always(domain.clk.posedge)
    def take() -> None:
        valid.next = x.valid
        data.next = x.payload[word_bits:]
        last.next = x.payload[last_at]
        bad.next = x.payload[bad_at]
        size.next = x.payload[total:size_at]
        if keyed:
            wrong.next = x.payload[wrong_at]
        if domain.rst:
            valid.next = False

    @always_comb
    def sort() -> None:
        x.ready.next = True
        always_on.next = True
        starts.next = valid and place == start_beat
        counts.next = valid and not last and place + 1 > start_beat
        body.next = valid and not last and place == headers
        ends.next = valid and last

    @always_comb
    def judge() -> None:
        write.next = body and room and not overrun and beats != most
        short.next = place != headers or (beats == 0 and size < least)
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
        if clears and stored != 0:
            # the rest of the frame alone is no payload
            stored.next = 0
            overrun.next = not ends
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
        if keyed:
            tails[0].next[last_flag] = wrong
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
        ending.untagged.next = False
        if keyed:
            ending.untagged.next = tails[final][last_flag]

    return crcs, take, sort, judge, count, capture, trailer, delay, out


@block
def frame_verdict(
    clk: Clock,
    ending: Ending,
    claims: Claims,
    heard: Sequence[Heard],
    resets: Bit,
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
        resets: out, 1 bit, in the same cycle: it is the host's, and all begins anew.
        keep: out, 1 bit: the frame has something in the store.
        good: out, 1 bit, with ``keep``: which is to be delivered.
        causes: out, a bit a `Cause`: the frame is dropped for it.
    """
    data_kind, reset_kind = int(FrameType.DATA), int(FrameType.RESET)
    short, foreign, checksum, version, length, crc, tag, address, of_epoch, of_digest, no_room, duplicate, gap = map(
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
        # without what the length and the check sequence are to be
        found.next[length] = not claims.unkeyed and (ending.uneven or claims.length or differs)
        found.next[crc] = not claims.unkeyed and ending.corrupt
        found.next[tag] = claims.unkeyed or ending.untagged
        found.next[address] = claims.address or claims.source == 0
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
        resets.next = heeded and claims.kind == reset_kind

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
