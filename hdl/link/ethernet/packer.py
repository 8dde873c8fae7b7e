"""Words of many streams into payloads of frames, in the replay memory.

The words of each peer come in a stream of their own.  A frame is one peer's: a peer keeps the packer until its frame is
full, or until it has no word while nothing else is on its way to the MAC or for a while.  So frames are short in an
idle network and long in a busy one.

Words are written where they will be sent from.  The beat of descriptors in front of them is left out until its group is
complete, and written then: that takes the cycle that it takes on the cable, so words come in as fast as they leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.link.ethernet.frame import DESCRIPTOR, DESCRIPTOR_BITS, MOST_WORDS, DescriptorFlag, FrameFormat
from hdl.link.format import LinkFormat
from hdl.memory import address_width
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.fork_join import side_by_side
from hdl.unit import Unit

# cycles without a word after which a frame is closed though the MAC is busy
FLUSH_CYCLES = 64


@dataclass(frozen=True, kw_only=True)
class Packer(Unit):
    """Words ``xs0`` … of the peers into payloads in the replay memory.

    Inputs: ``room``, a bit a peer: a longest payload finds room in its region; ``heads``, an address a peer: where its
    next payload begins; ``idle``: nothing waits to be sent.  Outputs: ``write``, ``write_at``, ``write_data`` of the
    memory; ``made`` with ``made_peer``, ``made_beats``, ``made_end``: a payload is complete, so long, and the next one
    of the peer begins there.
    """

    frames: FrameFormat
    form: LinkFormat
    # beats of the replay memory that belong to each peer
    regions: tuple[int, ...]
    flush_cycles: int = FLUSH_CYCLES

    def __post_init__(self) -> None:
        if self.form.word_bits != self.frames.word_bits or self.form.sequence_bits != 8:
            raise ValueError(
                f"frames of {self.frames.word_bits} bits take words as wide, numbered in 8 bits, not {self.form}"
            )
        if not self.regions or min(self.regions) < 2 * self.frames.payload_beats:
            raise ValueError(
                f"regions of {self.regions} beats: a peer needs two payloads of {self.frames.payload_beats}"
            )

    @property
    def peers(self) -> int:
        """Devices that frames go to."""
        return len(self.regions)

    @property
    def depth(self) -> int:
        """Beats of the replay memory."""
        return sum(self.regions)

    @property
    def starts(self) -> tuple[int, ...]:
        """First address of each region."""
        return tuple(sum(self.regions[:peer]) for peer in range(self.peers))

    @property
    def address_bits(self) -> int:
        """Bits of an address of the replay memory."""
        return address_width(self.depth)

    @property
    def beats_bits(self) -> int:
        """Bits of the length of a payload."""
        return self.frames.payload_beats.bit_length()

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {f"xs{peer}": self.form.payload_bits for peer in range(self.peers)}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants."""
        return {"room": self.peers, "heads": self.peers * self.address_bits, "idle": 1}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {
            "write": 1,
            "write_at": self.address_bits,
            "write_data": self.frames.word_bits,
            "made": 1,
            "made_peer": address_width(self.peers),
            "made_beats": self.beats_bits,
            "made_end": self.address_bits,
        }

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        xs = [streams[name] for name in self.streams]
        return packer(domain, xs, *self.signals(self.inputs), *self.signals(self.outputs), unit=self)


@block
def packer(
    domain: ClockReset,
    xs: Sequence[Stream],
    room: Bits,
    heads: Bits,
    idle: Bit,
    write: Bit,
    write_at: Bits,
    write_data: Bits,
    made: Bit,
    made_peer: Bits,
    made_beats: Bits,
    made_end: Bits,
    *,
    unit: Packer,
) -> Instances:
    """See `Packer`.  Cost: a multiplexer of words among peers, a beat of flip-flops for descriptors and one in front of
    the memory.  A cycle for each word and each beat of descriptors, and one between frames of two peers, two between
    those of one.

    Ports:
        xs: in, streams of `LinkFormat.payload_bits` bits, valid and payload from registers; their ready is
            combinational in their payloads.
        room: in, ``unit.peers`` bits; may fall only after ``made`` of the peer.
        heads: in, ``unit.peers * unit.address_bits`` bits.
        idle: in, 1 bit.
        write: out, 1 bit, from a register.
        write_at: out, ``unit.address_bits`` bits, from registers, with ``write``.
        write_data: out, ``unit.frames.word_bits`` bits, from registers, with ``write``.
        made: out, 1 bit, a cycle before the last ``write`` of the payload.
        made_peer: out, `address_width` ``(unit.peers)`` bits, with ``made``.
        made_beats: out, ``unit.beats_bits`` bits, with ``made``.
        made_end: out, ``unit.address_bits`` bits, with ``made``.
    """
    form, peers = unit.form, unit.peers
    bits, most, slots, flush = unit.address_bits, unit.frames.payload_beats, unit.frames.descriptors, unit.flush_cycles
    word = Stream(form.payload_bits)
    peer, candidate = (Signal(intbv(0)[address_width(peers) :]) for _ in range(2))
    at, hole = (Signal(intbv(0)[bits:]) for _ in range(2))
    used = Signal(intbv(0)[unit.beats_bits :])
    filled = Signal(intbv(0, min=0, max=slots + 1))
    run_stream = Signal(intbv(0)[form.width("stream") :])
    run_words = Signal(modbv(0)[8:])
    waited = Signal(intbv(0, min=0, max=flush + 1))
    there, enter, running, full, almost = (Signal(bool(0)) for _ in range(5))
    credit, same, extend, fresh, accept, regroup, close, store = (Signal(bool(0)) for _ in range(8))
    data = Signal(intbv(0)[form.word_bits :])
    beat = Signal(intbv(0)[form.word_bits :])
    opened = Signal(bool(0))
    choice = next_peer(domain.clk, xs, room, opened, peer, candidate, there)
    inputs = choose_words(xs, peer, accept, word)
    place = payload_place(domain.clk, candidate, heads, enter, store, regroup, at, hole, used, full, almost, unit=unit)
    descriptors = descriptor_beat(domain, word, filled, run_words, fresh, accept, regroup, close, beat, form=form)
    stream_at, credit_at = form.fields["stream"][0], form.fields["credit"][0]
    word_bits = form.word_bits

    @always_comb
    def fields() -> None:
        credit.next = word.payload[credit_at]
        data.next = word.payload[word_bits:]
        same.next = running and word.payload[credit_at:stream_at] == run_stream and not word.payload[credit_at]

    @always_comb
    def decide() -> None:
        extend.next = same and not full
        fresh.next = not same and filled != slots and (credit or not full)

    @always_comb
    def act() -> None:
        accept.next = opened and (extend or fresh)
        store.next = opened and word.valid and not credit and (extend or fresh)
        regroup.next = opened and word.valid and not same and filled == slots and not full and (credit or not almost)

    @always_comb
    def end() -> None:
        close.next = opened and (
            (word.valid and not accept and not regroup) or (not word.valid and (idle or waited == flush))
        )
        enter.next = not opened and there

    @always_comb
    def out() -> None:
        made.next = close
        made_peer.next = peer
        made_beats.next = used
        made_end.next = at

    @always(domain.clk.posedge)
    def memory_port() -> None:
        write.next = store or regroup or close
        if store:
            write_at.next = at
            write_data.next = data
        else:
            write_at.next = hole
            write_data.next = beat
        if domain.rst:
            write.next = False

    @always(domain.clk.posedge)
    def group() -> None:
        if regroup or enter:
            filled.next = 0
        elif word.valid and accept and fresh:
            filled.next = filled + 1
        if regroup or close:
            running.next = False
        elif word.valid and accept:
            running.next = not credit and not word.payload[word_bits] and not (extend and run_words == MOST_WORDS - 1)
            run_stream.next = word.payload[credit_at:stream_at]
            if fresh:
                run_words.next = 1
            else:
                run_words.next = run_words + 1
        if domain.rst:
            running.next = False

    @always(domain.clk.posedge)
    def frame() -> None:
        if enter:
            opened.next = True
            peer.next = candidate
        elif close:
            opened.next = False
        if word.valid or not opened:
            waited.next = 0
        elif waited != flush:
            waited.next = waited + 1
        if domain.rst:
            opened.next = False
            peer.next = 0

    return choice, inputs, place, descriptors, fields, decide, act, end, out, memory_port, group, frame


@block
def next_peer(
    clk: Clock, xs: Sequence[Stream], room: Bits, opened: Bit, peer: Bits, candidate: Bits, there: Bit
) -> Instances:
    """In turns one of the peers that have words and room, but for the one whose frame is open.

    Ports:
        xs: in, streams of one width.
        room: in, a bit a peer.
        opened: in, 1 bit.
        peer: in, `address_width` ``(len(xs))`` bits.
        candidate: out, as wide, 1 cycle later.
        there: out, 1 bit, with ``candidate``.
    """
    count, last = len(xs), len(xs) - 1
    if count == 1:
        x = xs[0]

        @always(clk.posedge)
        def one() -> None:
            candidate.next = 0
            there.next = x.valid and room and not opened

        return one
    valid = side_by_side([x.valid for x in xs])

    @always(clk.posedge)
    def choose() -> None:
        there.next = False
        # from the last in the turn to the first one, which is that behind the last one that had it
        for i in range(count):
            if valid[last - i] and room[last - i] and not (opened and peer == last - i):
                candidate.next = last - i
                there.next = True
        for i in range(count):
            if valid[last - i] and room[last - i] and last - i > peer:
                candidate.next = last - i

    return choose


@block
def choose_words(xs: Sequence[Stream], peer: Bits, accept: Bit, word: Stream) -> Instances:
    """One of the streams.

    Ports:
        xs: in, streams of one width.
        peer: in, `address_width` ``(len(xs))`` bits: which one.
        accept: in, 1 bit: the ready of that one.
        word: out, stream as wide, in the same cycle; its ready is not looked at.
    """
    count, width = len(xs), word.width
    if count == 1:
        x = xs[0]

        @always_comb
        def connect() -> None:
            x.ready.next = accept
            word.valid.next = x.valid
            word.payload.next = x.payload

        return connect
    valid = side_by_side([x.valid for x in xs])
    payload = side_by_side([x.payload for x in xs])
    inputs = [_ready_of(xs[i], peer, accept, i) for i in range(count)]

    @always_comb
    def choose() -> None:
        word.valid.next = False
        word.payload.next = 0
        for i in range(count):
            if peer == i:
                word.valid.next = valid[i]
                word.payload.next = payload[bits_of(i, width)]

    return inputs, choose


@block
def _ready_of(x: Stream, peer: Bits, accept: Bit, index: int) -> Instances:
    @always_comb
    def out() -> None:
        x.ready.next = accept and peer == index

    return out


@block
def payload_place(
    clk: Clock,
    candidate: Bits,
    heads: Bits,
    enter: Bit,
    store: Bit,
    regroup: Bit,
    at: Bits,
    hole: Bits,
    used: Bits,
    full: Bit,
    almost: Bit,
    *,
    unit: Packer,
) -> Instances:
    """Where the words of a payload go, and where the descriptors of its group.

    Ports:
        candidate: in, `address_width` ``(unit.peers)`` bits: whose payload is next.
        heads: in, ``unit.peers * unit.address_bits`` bits.
        enter: in, 1 bit: it begins at this edge.
        store: in, 1 bit: a word is written at ``at``.
        regroup: in, 1 bit: a group begins.
        at, hole: out, ``unit.address_bits`` bits, from registers: of the next word, of the group's descriptors.
        used: out, ``unit.beats_bits`` bits, from registers: beats of the payload until now.
        full, almost: out, 1 bit, from a register: no beat is left, or one.
    """
    bits, most = unit.address_bits, unit.frames.payload_beats
    head, after_head, following = (Signal(intbv(0)[bits:]) for _ in range(3))
    first, last, first_held, last_held = (Signal(intbv(0)[bits:]) for _ in range(4))
    region = region_of(candidate, heads, head, first, last, unit=unit)
    entered = next_address(head, first, last, after_head)
    ahead = next_address(at, first_held, last_held, following)

    @always(clk.posedge)
    def move() -> None:
        if enter:
            hole.next = head
            at.next = after_head
            first_held.next = first
            last_held.next = last
            used.next = 1
            full.next = False
            almost.next = most == 2
        elif store or regroup:
            at.next = following
            used.next = used + 1
            full.next = used == most - 1
            almost.next = used == most - 2
            if regroup:
                hole.next = at

    return region, entered, ahead, move


@block
def region_of(peer: Bits, heads: Bits, head: Bits, first: Bits, last: Bits, *, unit: Packer) -> Instances:
    """The region of a peer.

    Ports:
        peer: in, `address_width` ``(unit.peers)`` bits.
        heads: in, ``unit.peers * unit.address_bits`` bits.
        head: out, ``unit.address_bits`` bits, in the same cycle.
        first, last: out, as wide, in the same cycle: addresses of the region.
    """
    count, bits = unit.peers, unit.address_bits
    lasts = tuple(start + size - 1 for start, size in zip(unit.starts, unit.regions, strict=True))
    low, high = constant_of(peer, first, table=unit.starts), constant_of(peer, last, table=lasts)

    @always_comb
    def choose() -> None:
        head.next = heads[bits:]
        for i in range(1, count):
            if peer == i:
                head.next = heads[bits_of(i, bits)]

    return low, high, choose


@block
def constant_of(index: Bits, value: Bits, *, table: Sequence[int]) -> Instances:
    """``value = table[index]``.

    Ports:
        index: in, unsigned, of any width.
        value: out, as wide as the greatest value, in the same cycle.
    """
    # an index has a bit even of one entry
    entries = (*table, table[-1])

    @always_comb
    def read() -> None:
        value.next = entries[int(index)]

    return read


@block
def next_address(at: Bits, first: Bits, last: Bits, following: Bits) -> Instances:
    """The address behind one, in a ring.

    Ports:
        at: in, an address.
        first, last: in, as wide: those of the ring.
        following: out, as wide, in the same cycle.
    """

    @always_comb
    def step() -> None:
        if at == last:
            following.next = first
        else:
            following.next = at + 1

    return step


@block
def descriptor_beat(
    domain: ClockReset,
    word: Stream,
    filled: Bits,
    run_words: Bits,
    fresh: Bit,
    accept: Bit,
    regroup: Bit,
    close: Bit,
    beat: Bits,
    *,
    form: LinkFormat,
) -> Instances:
    """The descriptors of a group.

    Ports:
        word: in, stream of `LinkFormat.payload_bits` bits, watched.
        filled: in, how many there are.
        run_words: in, 8 bits: words of the last one.
        fresh: in, 1 bit: the word needs a new one.
        accept: in, 1 bit: the word is taken.
        regroup, close: in, 1 bit: all are forgotten at this edge.
        beat: out, ``form.word_bits`` bits, from registers.
    """
    slots = form.word_bits // DESCRIPTOR_BITS
    words = Signal(modbv(0)[8:])
    descriptors = [Signal(intbv(0)[DESCRIPTOR_BITS:]) for _ in range(slots)]
    keeps = [
        descriptor_slot(domain, word, filled, words, fresh, accept, regroup, close, descriptors[slot],
                        form=form, slot=slot)
        for slot in range(slots)
    ]  # fmt: skip
    flat = side_by_side(descriptors) if slots > 1 else descriptors[0]
    last = DESCRIPTOR_BITS // 8 - 1

    @always_comb
    def count() -> None:
        if fresh:
            words.next = 1
        else:
            words.next = run_words + 1

    @always_comb
    def out() -> None:
        for slot in range(slots):
            for i in range(8):
                beat.next[bits_of(i, 8, slot * 64)] = flat[bits_of(last - i, 8, slot * 64)]

    return keeps, count, out


@block
def descriptor_slot(
    domain: ClockReset,
    word: Stream,
    filled: Bits,
    words: Bits,
    fresh: Bit,
    accept: Bit,
    regroup: Bit,
    close: Bit,
    descriptor: Bits,
    *,
    form: LinkFormat,
    slot: int,
) -> Instances:
    """One of the descriptors of a group; `hdl.link.ethernet.frame.DESCRIPTOR` says what stands where.

    Ports:
        word: in, stream of `LinkFormat.payload_bits` bits, watched.
        filled: in, how many there are.
        words: in, 8 bits: words of the last one with this one.
        fresh: in, 1 bit: the word needs a new one.
        accept: in, 1 bit: the word is taken.
        regroup, close: in, 1 bit: all are forgotten at this edge.
        descriptor: out, `DESCRIPTOR_BITS` bits, the first byte highest, from registers.
    """
    last_at, sequence_at, stream_at, credit_at, _ = form.header
    stream_bits = credit_at - stream_at
    stream_low, words_low, sequence_low, flags_low, _ = (field.low for field in DESCRIPTOR.values())
    credit_bits = min(form.word_bits, DESCRIPTOR["descriptor.credits"].bits)
    last_flag, credit_flag = (
        flags_low + flag.bit_length() - 1 for flag in (DescriptorFlag.LAST, DescriptorFlag.CREDIT)
    )
    loads, counts = (Signal(bool(0)) for _ in range(2))
    stream_high = stream_low + stream_bits

    @always_comb
    def mine() -> None:
        loads.next = word.valid and accept and fresh and filled == slot
        counts.next = word.valid and accept and not fresh and filled == slot + 1

    @always(domain.clk.posedge)
    def keep() -> None:
        if loads:
            descriptor.next[stream_high:stream_low] = word.payload[credit_at:stream_at]
            descriptor.next[last_flag] = word.payload[last_at] and not word.payload[credit_at]
            descriptor.next[credit_flag] = word.payload[credit_at]
            if word.payload[credit_at]:
                descriptor.next[credit_bits:] = word.payload[credit_bits:]
            else:
                descriptor.next[words_low + 8 : words_low] = 1
                descriptor.next[sequence_low + 8 : sequence_low] = word.payload[stream_at:sequence_at]
        elif counts:
            descriptor.next[words_low + 8 : words_low] = words
            descriptor.next[last_flag] = word.payload[last_at]
        if regroup or close or domain.rst:
            descriptor.next = 0

    return mine, keep
