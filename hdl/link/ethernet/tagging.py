"""Tags of frames, in clusters with a key: made behind the transmitter, checked in front of the receiver.

A tag covers a frame's header and check sequence (`hdl.link.ethernet.keyed`), so it is known `KeyedTag.latency_cycles`
after the last beat.  Frames wait for it in a queue; the next ones come into the queue meanwhile, so frames of that many
beats or more follow one another at once, and of shorter ones a port sends and checks one each so many cycles.

* `append_tags`: a frame leaves as soon as it is sure to leave without a gap.
* `check_tags`: all beats of a frame but the last go on, on which it depends what becomes of the frame.
"""

from __future__ import annotations

from typing import Any

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv

from hdl.link.ethernet.crc import CRC_BITS
from hdl.link.ethernet.frame import CRC_BYTES, DTL_START, HEADER_BYTES, TAG_BYTES, FrameFormat
from hdl.link.ethernet.sink import FrameSink
from hdl.link.ethernet.tag import COVERED_BYTES, KeyedTag, keyed_tag
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue
from hdl.streams.pipes import m2s_pipe

TAG_BITS, COVERED_BITS = 8 * TAG_BYTES, 8 * COVERED_BYTES
# frames in a queue at most
FRAMES = 32
# beats that wait to be sent, and those of a frame that are there when it starts: they last until its tag is made
SENT_BEATS = 64
START_BEATS = KeyedTag().latency_cycles + 15
# beats that wait to be judged: a block memory's; the last ones are for ends of frames
HEARD_BEATS, SPARE_BEATS = 512, FRAMES


@block
def append_tags(domain: ClockReset, key: Bits, x: Stream, y: Stream, *, frames: FrameFormat) -> Instances:
    """Frames with the tag behind the check sequence.  Cost: `keyed_tag`, a queue of `SENT_BEATS` beats, what tags
    cover.  Latency: `START_BEATS` and some 5 cycles; a beat a cycle.

    Ports:
        key: in, 64 bits, constant.
        x: in, stream of ``frames.word_bits + 1`` bits: beats and a bit that ends a frame, whose last beat has the check
            sequence.  Its ready comes from a register, and a frame has no gaps but for that.
        y: out, stream as wide; valid and payload from registers; valid stays high from the first beat of a frame to its
            last, which has ``frames.last_bytes`` bytes.
    """
    word_bits = frames.word_bits
    beat, waiting, leaving = (Stream(word_bits + 1) for _ in range(3))
    jobs, tags = Stream(COVERED_BITS), Stream(TAG_BITS)
    covered = Signal(intbv(0)[COVERED_BITS:])
    push, accepts = (Signal(bool(0)) for _ in range(2))
    # beats and ends of frames that are in the queue, frames whose tag has not left
    used = Signal(intbv(0, min=0, max=SENT_BEATS + 2))
    ends = Signal(intbv(0, min=0, max=SENT_BEATS + 2))
    going, begins, pop, ended = (Signal(bool(0)) for _ in range(4))
    watch = covered_bytes(domain, push, x.payload, covered, frames=frames)
    beats = queue(domain, beat, waiting, depth=SENT_BEATS)
    make = made_tags(domain, key, jobs, tags)
    insert = tag_inserter(domain, waiting, going, tags, leaving, frames=frames)
    stage = m2s_pipe(domain, leaving, y)
    start, least_room, most = START_BEATS, 4, FRAMES - 4
    depth = SENT_BEATS

    @always_comb
    def take() -> None:
        x.ready.next = accepts
        push.next = x.valid and accepts
        beat.valid.next = x.valid and accepts
        beat.payload.next = x.payload
        jobs.valid.next = x.valid and accepts and x.payload[word_bits]
        jobs.payload.next = covered

    @always_comb
    def begin() -> None:
        # the tag is there, or will be when it is needed
        begins.next = not going and waiting.valid and (tags.valid or (ends == 0 and used >= start))
        pop.next = waiting.valid and waiting.ready
        ended.next = pop and waiting.payload[word_bits]

    @always(domain.clk.posedge)
    def step() -> None:
        accepts.next = used < depth - least_room and ends < most
        if begins:
            going.next = True
        elif ended:
            going.next = False
        if push and not pop:
            used.next = used + 1
        elif pop and not push:
            used.next = used - 1
        if jobs.valid and not ended:
            ends.next = ends + 1
        elif ended and not jobs.valid:
            ends.next = ends - 1
        if domain.rst:
            accepts.next = False
            going.next = False
            used.next = 0
            ends.next = 0

    return watch, beats, make, insert, stage, take, begin, step


@block
def tag_inserter(
    domain: ClockReset, x: Stream, going: Bit, tags: Stream, y: Stream, *, frames: FrameFormat
) -> Instances:
    """The tag into the last beat, or into that and one more.

    Ports:
        x: in, stream of ``frames.word_bits + 1`` bits.
        going: in, 1 bit: its beats may leave.
        tags: in, stream of `TAG_BITS` bits: of the frames, in their order.
        y: out, stream as wide as ``x``, in the same cycle.
    """
    word_bits, low, crc_bits = frames.word_bits, frames.word_bits - CRC_BITS, CRC_BITS
    parted = low < TAG_BITS
    second = Signal(bool(0))
    top = min(word_bits, crc_bits + TAG_BITS)
    held = top - crc_bits

    if not parted:

        @always_comb
        def whole() -> None:
            y.valid.next = x.valid and going and (tags.valid or not x.payload[word_bits])
            y.payload.next = x.payload
            if x.payload[word_bits]:
                y.payload.next[top:crc_bits] = tags.payload
            x.ready.next = going and y.ready and (tags.valid or not x.payload[word_bits])
            tags.ready.next = x.valid and going and y.ready and x.payload[word_bits]

        return whole

    @always_comb
    def parts() -> None:
        y.valid.next = x.valid and going and (tags.valid or not x.payload[word_bits])
        y.payload.next = x.payload
        if x.payload[word_bits]:
            y.payload.next[top:crc_bits] = tags.payload[held:]
            if second:
                y.payload.next[word_bits:] = tags.payload[TAG_BITS:held]
        y.payload.next[word_bits] = x.payload[word_bits] and second
        x.ready.next = going and y.ready and (not x.payload[word_bits] or (tags.valid and second))
        tags.ready.next = x.valid and going and y.ready and x.payload[word_bits] and second

    @always(domain.clk.posedge)
    def step() -> None:
        if x.valid and going and y.ready and tags.valid and x.payload[word_bits]:
            second.next = not second
        if domain.rst:
            second.next = False

    return parts, step


@block
def covered_bytes(domain: ClockReset, push: Bit, beat: Bits, covered: Bits, *, frames: FrameFormat) -> Instances:
    """What the tag of a frame covers, with its last beat.  Cost: the header's last bytes.

    Ports:
        push: in, 1 bit: a beat comes.
        beat: in, ``frames.word_bits`` bits and above these one that ends a frame; any more.
        covered: out, `COVERED_BITS` bits, with the beat that ends a frame, combinational in its check sequence.
    """
    word_bits, size = frames.word_bits, frames.word_bytes
    headers, crc_bits = HEADER_BYTES // frames.word_bytes, CRC_BITS
    place = Signal(intbv(0, min=0, max=headers + 1))
    firsts = [max(0, DTL_START - at * size) for at in range(headers)]
    parts = [Signal(intbv(0)[8 * (size - first) :]) for first in firsts if first < size]
    keeps = [
        _header_part(domain.clk, push, beat, place, part, index=headers - len(parts) + at, word_bits=word_bits)
        for at, part in enumerate(parts)
    ]
    crc = Signal(intbv(0)[CRC_BITS:])
    whole = ConcatSignal(crc, *reversed(parts))

    @always_comb
    def out() -> None:
        crc.next = beat[crc_bits:]
        covered.next = whole

    @always(domain.clk.posedge)
    def step() -> None:
        if push and beat[word_bits]:
            place.next = 0
        elif push and place != headers:
            place.next = place + 1
        if domain.rst:
            place.next = 0

    return keeps, out, step


@block
def _header_part(
    clk: Clock, push: Bit, beat: Bits, place: Bits, part: Bits, *, index: int, word_bits: int
) -> Instances:
    """The highest bits of one beat of a frame."""
    low = word_bits - len(part)

    @always(clk.posedge)
    def keep() -> None:
        if push and place == index:
            part.next = beat[word_bits:low]

    return keep


@block
def made_tags(domain: ClockReset, key: Bits, x: Stream, y: Stream) -> Instances:
    """Tags of frames in their order, of up to `FRAMES` that wait.

    Ports:
        key: in, 64 bits, constant.
        x: in, stream of `COVERED_BITS` bits; no more than `FRAMES` are in here.
        y: out, stream of `TAG_BITS` bits; valid and payload from registers.
    """
    job, tag = Stream(COVERED_BITS), Stream(TAG_BITS)
    return (
        queue(domain, x, job, depth=FRAMES),
        keyed_tag(domain, key, job, tag),
        queue(domain, tag, y, depth=2),
    )


@block
def check_tags(domain: ClockReset, key: Bits, x: Stream, y: Stream, *, sink: FrameSink) -> Instances:
    """Beats of frames, and with the last whether its tag is wrong.  Frames for which there is no room, or that come
    faster than tags are made for long, are marked as bad, as the MAC marks them.

    Cost: `keyed_tag`, a queue of `HEARD_BEATS` beats, one of `FRAMES` of what tags cover.  Latency: 3 cycles; of the
    last beat of a frame 33.

    Ports:
        key: in, 64 bits, constant.
        x: in, stream of ``sink.beat_bits`` bits, always ready.
        y: out, stream of ``sink.judged_bits`` bits, to what is always ready.  The last beat begins with the check
            sequence and has as many bytes as come from there on.
    """
    word_bits, total = sink.frames.word_bits, sink.beat_bits
    whole = Stream(total + TAG_BITS - CRC_BITS)
    beat, waiting = Stream(total), Stream(total)
    job, checked = Stream(COVERED_BITS + TAG_BITS), Stream(COVERED_BITS + TAG_BITS)
    wrong = Stream(1)
    told = Signal(intbv(0)[TAG_BITS:])
    covered = Signal(intbv(0)[COVERED_BITS:])
    used = Signal(intbv(0, min=0, max=HEARD_BEATS + 1))
    asked = Signal(intbv(0, min=0, max=FRAMES + 1))
    push, pop, cut, roomy, judges, freed, counts = (Signal(bool(0)) for _ in range(7))
    join = whole_trailer(domain, x, whole, sink=sink)
    watch = covered_bytes(domain, counts, whole.payload, covered, frames=sink.frames)
    beats = queue(domain, beat, waiting, depth=HEARD_BEATS)
    jobs = queue(domain, job, checked, depth=FRAMES)
    judge = tag_judge(domain, key, checked, wrong)
    last_at, bad_at, tag_low, spare, depth, frames_most = (
        word_bits,
        word_bits + 1,
        CRC_BITS,
        SPARE_BEATS,
        HEARD_BEATS,
        FRAMES,
    )
    tag_end = CRC_BITS + TAG_BITS
    # where a beat has fewer bytes, the rest of the tag is what was joined to it
    payload: Any = whole.payload
    read = (
        payload(tag_end, tag_low)
        if word_bits >= tag_end
        else ConcatSignal(payload(total + tag_end - word_bits, total), payload(word_bits, tag_low))
    )

    @always_comb
    def tag() -> None:
        told.next = read
        counts.next = whole.valid

    @always_comb
    def take() -> None:
        judges.next = (
            whole.valid
            and whole.payload[last_at]
            and not whole.payload[bad_at]
            and not cut
            and roomy
            and asked != frames_most
        )
        push.next = whole.valid and beat.ready and (whole.payload[last_at] or (roomy and not cut))
        whole.ready.next = True

    @always_comb
    def enter() -> None:
        beat.valid.next = push
        beat.payload.next = whole.payload[total:]
        beat.payload.next[bad_at] = whole.payload[last_at] and not judges
        job.valid.next = judges
        job.payload.next[COVERED_BITS:] = covered
        job.payload.next[COVERED_BITS + TAG_BITS : COVERED_BITS] = told

    @always_comb
    def leave() -> None:
        freed.next = waiting.valid and waiting.payload[last_at] and not waiting.payload[bad_at] and wrong.valid
        pop.next = waiting.valid and (not waiting.payload[last_at] or waiting.payload[bad_at] or wrong.valid)

    @always_comb
    def out() -> None:
        waiting.ready.next = pop
        wrong.ready.next = freed
        y.valid.next = pop
        y.payload.next[total:] = waiting.payload
        y.payload.next[total] = freed and wrong.payload[0]

    @always(domain.clk.posedge)
    def step() -> None:
        roomy.next = used < depth - spare
        if push and not pop:
            used.next = used + 1
        elif pop and not push:
            used.next = used - 1
        if judges and not freed:
            asked.next = asked + 1
        elif freed and not judges:
            asked.next = asked - 1
        if whole.valid and not push:
            # what comes until the end of a frame is no frame
            cut.next = True
        elif push and whole.payload[last_at]:
            cut.next = False
        if domain.rst:
            roomy.next = False
            used.next = 0
            asked.next = 0
            cut.next = False

    return join, watch, beats, jobs, judge, tag, take, enter, leave, out, step


@block
def whole_trailer(domain: ClockReset, x: Stream, y: Stream, *, sink: FrameSink) -> Instances:
    """Brings check sequence and tag into one beat, the last, where a beat has fewer bytes: that takes one held back.

    Ports:
        x: in, stream of ``sink.beat_bits`` bits, always ready.
        y: out, stream of ``sink.beat_bits`` and 32 more bits, those of a beat joined to it; always taken.
    """
    word_bits, total, extra = sink.frames.word_bits, sink.beat_bits, TAG_BITS - CRC_BITS
    last_at, size_at, headers, size = word_bits, word_bits + 2, sink.header_beats, sink.frames.word_bytes
    end, most, sink_bits = sink.beat_bits + extra, (1 << sink.size_bits) - 1, sink.size_bits

    if size >= CRC_BYTES + TAG_BYTES:

        @always_comb
        def connect() -> None:
            x.ready.next = True
            y.valid.next = x.valid
            y.payload.next = x.payload

        return connect

    held = Signal(intbv(0)[total + extra :])
    there, joins, moves = (Signal(bool(0)) for _ in range(3))
    place = Signal(intbv(0, min=0, max=headers + 2))
    bytes_both = Signal(intbv(0)[sink.size_bits + 1 :])

    @always_comb
    def decide() -> None:
        # of a beat behind the header, and the last of the frame
        joins.next = there and not held[last_at] and x.valid and x.payload[last_at] and place > headers
        moves.next = there and (held[last_at] or (x.valid and not (x.payload[last_at] and place > headers)))
        bytes_both.next = x.payload[total:size_at] + size

    @always_comb
    def out() -> None:
        x.ready.next = True
        y.valid.next = moves
        y.payload.next = held

    @always(domain.clk.posedge)
    def step() -> None:
        if joins:
            held.next[end:total] = x.payload[extra:]
            held.next[size_at:last_at] = x.payload[size_at:last_at]
            held.next[total:size_at] = most
            if bytes_both < most:
                held.next[total:size_at] = bytes_both[sink_bits:]
        elif x.valid:
            held.next = x.payload
            there.next = True
        elif moves:
            there.next = False
        if x.valid and x.payload[last_at]:
            place.next = 0
        elif x.valid and place <= headers:
            place.next = place + 1
        if domain.rst:
            there.next = False
            place.next = 0

    return decide, out, step


@block
def tag_judge(domain: ClockReset, key: Bits, x: Stream, y: Stream) -> Instances:
    """Whether tags are wrong.

    Ports:
        key: in, 64 bits, constant.
        x: in, stream of `COVERED_BITS` bits that are covered and `TAG_BITS` that are told.
        y: out, stream of 1 bit; no more than `FRAMES` are in here.
    """
    job, tag, found = Stream(COVERED_BITS), Stream(TAG_BITS), Stream(1)
    make = keyed_tag(domain, key, job, tag)
    results = queue(domain, found, y, depth=FRAMES)
    started = Signal(bool(0))
    end = COVERED_BITS + TAG_BITS

    @always_comb
    def connect() -> None:
        job.valid.next = x.valid and not started
        job.payload.next = x.payload[COVERED_BITS:]
        tag.ready.next = True
        x.ready.next = tag.valid

    @always_comb
    def compare() -> None:
        found.valid.next = tag.valid
        found.payload.next = tag.payload != x.payload[end:COVERED_BITS]

    @always(domain.clk.posedge)
    def step() -> None:
        if tag.valid:
            started.next = False
        elif x.valid and job.ready:
            started.next = True
        if domain.rst:
            started.next = False

    return make, results, connect, compare, step
