"""One memory for the words that wait at all receivers of a port."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from myhdl import Signal, always, always_comb, block, intbv

from hdl.link.format import LinkFormat
from hdl.link.routing import Taking
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue, queue_latency
from hdl.streams.fork_join import row_of
from hdl.streams.merge import take_turns
from hdl.streams.pipes import Policy, pipe

# words in front of a receiver: registers, or as many as go into memories made of logic
NARROW_STAGE, WIDE_STAGE = 2, 16
# registers between a place's number and the memory, the first of which chooses among a part of all streams
CHOICES = 2
# a stream has a turn every other cycle at most
WORD_CYCLES = 2


def turn_cycles(stage: int) -> int:
    """From the turn of a stream to the next one that its stage has room for behind a word that leaves it at once."""
    return CHOICES + 4 + queue_latency(stage)


def stage_words(bits_per_cycle: int, word_bits: int) -> int:
    """Words in front of a receiver that takes so many bits a cycle, so that it waits for no turn of its own."""
    narrow = bits_per_cycle * turn_cycles(NARROW_STAGE) <= NARROW_STAGE * word_bits
    return NARROW_STAGE if narrow else WIDE_STAGE


@dataclass(frozen=True, kw_only=True)
class ReceivePool(Taking):
    """Words that wait for their receivers, a region of one memory for each stream, and in front of every receiver a
    stage of few words.  See `Taking`; credits go to ``rest``.

    No stream waits for another one's receiver: what is read of the memory has room in its stage.  Output: ``error``,
    sticky: a stream had more words than its region.
    """

    # words of each stream's region: the credits of its sender
    regions: tuple[int, ...]
    # … and of its stage
    stages: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.regions or min(self.regions) < 2 or len(self.stages) != len(self.regions):
            raise ValueError(f"a pool needs a region of 2 words or more, and a stage, for every stream, not {self}")

    @property
    def count(self) -> int:
        """See the base class."""
        return len(self.regions)

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"error": 1}

    @property
    def depth(self) -> int:
        """Words of the memory."""
        return sum(self.regions)

    @property
    def kept_bits(self) -> int:
        """Bits of a word in it: data, last, sequence; its place says whose it is."""
        return self.format.fields["stream"][0]

    def latency_cycles(self, stream: int) -> int:
        """From a word to its receiver, if nothing else is on its way."""
        return CHOICES + 6 + queue_latency(self.stages[stream])

    @property
    def rest_cycles(self) -> int:
        """From a word to ``rest``."""
        return 1

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        # a vector even of one bit
        (numbers,) = (Signal(intbv(0)[width:]) for width in self.inputs.values())
        (error,) = self.signals(self.outputs)
        ys = [streams[name] for name in self.names]
        return receive_pool(domain, numbers, streams["x"], ys, streams["rest"], error, unit=self)


@block
def receive_pool(
    domain: ClockReset, numbers: Bits, x: Stream, ys: Sequence[Stream], rest: Stream, error: Bit, *, unit: ReceivePool
) -> Instances:
    """See `ReceivePool`.  Cost: a memory of ``unit.depth`` words, three words of flip-flops in front of it and one for
    each of its choices of a place, and of each stream a comparison, four counters, its turn, its part of two choices of
    a place, and its stage.  Latency: `ReceivePool.latency_cycles`.  A word a cycle comes and goes.

    Ports:
        numbers: in, for each of ``ys`` as wide as the field "stream", constant.
        x: in, stream of `LinkFormat.payload_bits` bits; always ready for words of ``ys``.
        ys: out, streams as wide; valid from a register.
        rest: out, stream as wide, 1 cycle later.
        error: out, 1 bit, from some cycles after the fault until ``rst``.
    """
    kept, firsts = unit.kept_bits, [0, *accumulate(unit.regions)]
    held = Stream(unit.format.payload_bits)
    door = pipe(domain, x, held, policy=Policy.FULL)
    hits, came, requests, grants, over = ([Signal(bool(0)) for _ in ys] for _ in range(5))
    address_bits = address_width(unit.depth)
    write_ats, read_ats = ([Signal(intbv(first)[address_bits:]) for first in firsts[:-1]] for _ in range(2))
    chosen, written, out = (Signal(intbv(0)[kept:]) for _ in range(3))
    write, read = Signal(bool(0)), Signal(bool(0))
    write_at, read_at = (Signal(intbv(0)[address_bits:]) for _ in range(2))
    put = choose_place(domain, came, write_ats, write, write_at)
    turns = turns_of_all(domain, requests, grants)
    get = choose_place(domain, grants, read_ats, read, read_at)
    memory = simple_dual_port(
        domain.clk, write, write_at, written, read, read_at, out,
        depth=unit.depth, width=kept, output_register=True,
    )  # fmt: skip
    regions = []
    for at, y in enumerate(ys):
        room = Signal(bool(0))
        regions += [
            match_stream(numbers, held, hits[at], at=at, form=unit.format),
            pool_region(
                domain, held.valid, hits[at], came[at], room, requests[at], grants[at], write_ats[at], read_ats[at],
                over[at], first=firsts[at], words=unit.regions[at],
            ),
            pool_stage(domain, grants[at], out, y, room, words=unit.stages[at]),
        ]  # fmt: skip
    # vectors even of one stream
    hit, lost = row_of([*hits, hits[0]]), row_of([*over, over[0]])
    bad = Signal(bool(0))
    word = Signal(intbv(0)[kept:])

    @always_comb
    def pass_on() -> None:
        rest.valid.next = held.valid and hit == 0
        rest.payload.next = held.payload
        held.ready.next = hit != 0 or rest.ready
        error.next = bad

    @always(domain.clk.posedge)
    def keep() -> None:
        word.next = held.payload[kept:]
        # as long as its place is chosen
        chosen.next = word
        written.next = chosen
        bad.next = bad or lost != 0
        if domain.rst:
            bad.next = False

    return door, put, turns, get, memory, regions, pass_on, keep


@block
def match_stream(numbers: Bits, x: Stream, hit: Bit, *, at: int, form: LinkFormat) -> Instances:
    """Whether a word is one of a stream's data.

    Ports:
        numbers: in, vector of several as wide as the field "stream", constant; that ``at`` is its own.
        x: in, stream of `LinkFormat.payload_bits` bits, watched.
        hit: out, 1 bit, whether there is a word or not.
    """
    (stream_at, bits), (credit_at, _) = form.fields["stream"], form.fields["credit"]
    low, high = at * bits, (at + 1) * bits

    @always_comb
    def match() -> None:
        hit.next = x.payload[credit_at:stream_at] == numbers[high:low] and not x.payload[credit_at]

    return match


@block
def pool_region(
    domain: ClockReset,
    there: Bit,
    hit: Bit,
    came: Bit,
    room: Bit,
    request: Bit,
    grant: Bit,
    write_at: Bits,
    read_at: Bits,
    over: Bit,
    *,
    first: int,
    words: int,
) -> Instances:
    """The places of a stream.

    Ports:
        there, hit: in, 1 bit: there is a word, and it is one of this stream.
        came: out, 1 bit, a cycle later, from a register.
        room: in, 1 bit, from registers, low behind ``grant``: its stage has room for a word.
        request: out, 1 bit, from a register: there is a word, and room for it.
        grant: in, 1 bit, only with ``request``: a word goes.
        write_at, read_at: out, from registers that are ``first`` at power-up, with ``came`` and ``grant``: its place.
        over: out, 1 bit, from a register: a word came that had no place.
    """
    last = first + words - 1
    count = Signal(intbv(0, min=0, max=words + 1))

    @always(domain.clk.posedge)
    def enter() -> None:
        came.next = there and hit
        over.next = came and count == words and not grant
        if came:
            if write_at == last:
                write_at.next = first
            else:
                write_at.next = write_at + 1
        if domain.rst:
            came.next = False
            over.next = False
            write_at.next = first

    @always(domain.clk.posedge)
    def leave() -> None:
        request.next = count != 0 and room and not grant
        if grant:
            if read_at == last:
                read_at.next = first
            else:
                read_at.next = read_at + 1
        if domain.rst:
            request.next = False
            read_at.next = first

    @always(domain.clk.posedge)
    def hold() -> None:
        if came and not grant and count != words:
            count.next = count + 1
        elif grant and not came:
            count.next = count - 1
        if domain.rst:
            count.next = 0

    return enter, leave, hold


@block
def pool_stage(domain: ClockReset, grant: Bit, out: Bits, y: Stream, room: Bit, *, words: int) -> Instances:
    """The few words of a stream that are on their way out of the memory, or stand in front of its receiver.

    Ports:
        grant: in, 1 bit, only with ``room``: a word is read.
        out: in, a word, `CHOICES` + 2 cycles later.
        y: out, stream as wide or wider, valid from a register.
        room: out, 1 bit, from registers: another word may be read.
    """
    kept = len(out)
    arriving, waiting = Stream(kept), Stream(kept)
    stage = queue(domain, arriving, waiting, depth=words)
    under_way = Signal(intbv(0)[CHOICES + 2 :])
    free = Signal(intbv(words, min=0, max=words + 1))
    arrives, fire = CHOICES + 1, Signal(bool(0))

    @always_comb
    def enter() -> None:
        arriving.valid.next = under_way[arrives]
        arriving.payload.next = out

    @always_comb
    def leave() -> None:
        y.valid.next = waiting.valid
        y.payload.next = waiting.payload
        waiting.ready.next = y.ready
        fire.next = waiting.valid and y.ready
        room.next = free != 0

    @always(domain.clk.posedge)
    def step() -> None:
        under_way.next = under_way[arrives:] << 1
        under_way.next[0] = grant
        if grant and not fire:
            free.next = free - 1
        elif fire and not grant:
            free.next = free + 1
        if domain.rst:
            under_way.next = 0
            free.next = words

    return stage, enter, leave, step


@block
def choose_place(
    domain: ClockReset, wanted: Sequence[Bit], places: Sequence[Bits], some: Bit, place: Bits
) -> Instances:
    """The place of the one that is wanted.

    Ports:
        wanted: in, 1 bit each, one of them at most.
        places: in, as many vectors of one width.
        some: out, 1 bit, `CHOICES` cycles later, from a register: one is.
        place: out, as wide as all ``places``, with ``some``, from a register.
    """
    each = math.isqrt(len(wanted) - 1) + 1
    groups = range(0, len(wanted), each)
    somes = [Signal(bool(0)) for _ in groups]
    ats = [Signal(intbv(0)[len(place) :]) for _ in groups]
    first = [
        choose_of_few(domain, wanted[at : at + each], places[at : at + each], somes[group], ats[group])
        for group, at in enumerate(groups)
    ]
    return first, choose_of_few(domain, somes, ats, some, place)


@block
def choose_of_few(
    domain: ClockReset, wanted: Sequence[Bit], places: Sequence[Bits], some: Bit, place: Bits
) -> Instances:
    """The place of the one that is wanted of a few.

    Ports:
        wanted: in, 1 bit each, one of them at most.
        places: in, as many vectors of one width.
        some: out, 1 bit, 1 cycle later, from a register: one is.
        place: out, as wide as all ``places``, with ``some``, from a register.
    """
    any_wanted = row_of([*wanted, wanted[0]])
    chosen = [*wanted]
    ways = [*places]
    count = len(ways)

    @always(domain.clk.posedge)
    def step() -> None:
        some.next = any_wanted != 0
        for way in range(count):
            if chosen[way]:
                place.next = ways[way]
        if domain.rst:
            some.next = False

    return step


@block
def turns_of_all(domain: ClockReset, requests: Sequence[Bit], grants: Sequence[Bit]) -> Instances:
    """One of those that have a request, by turns of two in a balanced tree.

    Ports:
        requests: in, 1 bit each.
        grants: out, 1 bit each, in the same cycle; one of them where there is a request.
    """
    if len(requests) == 1:
        (request,), (grant,) = requests, grants

        @always_comb
        def alone() -> None:
            grant.next = request

        return alone
    half = (len(requests) + 1) // 2
    some_a, some_b, may_a, may_b, fire = (Signal(bool(0)) for _ in range(5))
    turns = take_turns(domain, some_a, some_b, fire, may_a, may_b)
    a = turns_of_some(domain, requests[:half], grants[:half], some_a, may_a)
    b = turns_of_some(domain, requests[half:], grants[half:], some_b, may_b)

    @always_comb
    def go() -> None:
        fire.next = some_a or some_b

    return turns, a, b, go


@block
def turns_of_some(domain: ClockReset, requests: Sequence[Bit], grants: Sequence[Bit], some: Bit, may: Bit) -> Instances:
    """Part of that tree.

    Ports:
        requests: in, 1 bit each.
        grants: out, 1 bit each, in the same cycle; one of them where there is a request and ``may``.
        some: out, 1 bit, in the same cycle: there is a request.
        may: in, 1 bit.
    """
    if len(requests) == 1:
        (request,), (grant,) = requests, grants

        @always_comb
        def alone() -> None:
            some.next = request
            grant.next = request and may

        return alone
    half = (len(requests) + 1) // 2
    some_a, some_b, turn_a, turn_b, may_a, may_b, fire = (Signal(bool(0)) for _ in range(7))
    turns = take_turns(domain, some_a, some_b, fire, turn_a, turn_b)
    a = turns_of_some(domain, requests[:half], grants[:half], some_a, may_a)
    b = turns_of_some(domain, requests[half:], grants[half:], some_b, may_b)

    @always_comb
    def go() -> None:
        some.next = some_a or some_b
        fire.next = (some_a or some_b) and may
        may_a.next = turn_a and may
        may_b.next = turn_b and may

    return turns, a, b, go
