"""A march through DRAM: every word is written and read with either value, upwards and downwards.

The march is March C- (van de Goor, 1991), whose cells are bursts here: ⇑(w0); ⇑(r0, w1); ⇑(r1, w0); ⇓(r0, w1);
⇓(r1, w0); ⇑(r0).  What is called 0 is a word made of its own address, 1 its complement, so that no two words are alike:
a stuck or shorted address line shows like a stuck bit.  A burst is read before it is written, and answered before the
next one is touched; so nothing here is fast, and the memory's latency counts four times a burst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from myhdl import ConcatSignal, Signal, always, always_comb, block, concat, intbv, modbv

from hdl.dram.axi import RESPONSE_BITS, Axi, AxiFormat
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.unit import Unit

# of the march: what is read, what is written, whether downwards; None: nothing, else whether complemented
ELEMENTS: tuple[tuple[bool | None, bool | None, bool], ...] = (
    (None, False, False),
    (False, True, False),
    (True, False, False),
    (False, True, True),
    (True, False, True),
    (False, None, False),
)
COUNT_BITS = 32
ELEMENT_BITS = 3
# of a lane of a word, which has the address turned by twice the lane's number
LANE_BITS = 32
# fewest and most bits of a word
MARCHED_BITS = 2 * LANE_BITS, LANE_BITS * LANE_BITS // 2


def _elements(what: Callable[[bool | None, bool | None, bool], bool]) -> tuple[int, ...]:
    """Of each number that an element can have, what holds of it; of those that none has, 0."""
    found = [int(what(*element)) for element in ELEMENTS]
    return (*found, *[0] * ((1 << ELEMENT_BITS) - len(found)))


# of each element
READS = _elements(lambda read, _write, _down: read is not None)
WRITES = _elements(lambda _read, write, _down: write is not None)
READS_TURNED = _elements(lambda read, _write, _down: bool(read))
WRITES_TURNED = _elements(lambda _read, write, _down: bool(write))
DOWN = _elements(lambda _read, _write, down: down)
# and of the one behind it
THEN_DOWN = (*DOWN[1:], 0)


def pattern(address: int, data_bits: int) -> int:
    """The word called 0 at an address: the address in lanes of 32 bits, each turned by two bits more."""
    low = address % (1 << LANE_BITS)
    word = 0
    for lane in range(data_bits // LANE_BITS):
        turned = (low << 2 * lane | low >> LANE_BITS - 2 * lane) % (1 << LANE_BITS)
        word |= turned << LANE_BITS * lane
    return word


@dataclass(frozen=True)
class Found:
    """What a march came to."""

    wrong_words: int = 0
    # address of the first wrong word, and the element that found it
    first: int = 0
    element: int = 0
    # bits that differed anywhere
    bits: int = 0


def march(
    words: int, burst: int, data_bits: int, write: Callable[[int, int], None], read: Callable[[int], int]
) -> Found:
    """The golden model: marches through a memory of so many words, whole bursts."""
    found, full = Found(), (1 << data_bits) - 1
    for element, (reads, writes, down) in enumerate(ELEMENTS):
        starts = range(0, words, burst)
        for start in reversed(starts) if down else starts:
            for address in range(start, start + burst) if reads is not None else ():
                wanted = pattern(address, data_bits) ^ (full if reads else 0)
                if difference := read(address) ^ wanted:
                    first = (found.first, found.element) if found.wrong_words else (address, element)
                    found = Found(found.wrong_words + 1, *first, found.bits | difference)
            for address in range(start, start + burst) if writes is not None else ():
                write(address, pattern(address, data_bits) ^ (full if writes else 0))
    return found


@dataclass(frozen=True, kw_only=True)
class March(Unit):
    """Marches through as many bursts from address 0 on as a beat ``x`` says, at the AXI port ``m``.

    Outputs: ``busy``; ``done``, marches that have ended; of the march that runs, or ran last, what `Found` has
    (``wrong``, ``first``, ``element``, ``bits``), and ``refused``, requests that the memory answered with an error."""

    format: AxiFormat
    # words; a power of two
    burst: int

    def __post_init__(self) -> None:
        if self.burst & (self.burst - 1) or not 1 <= self.burst <= self.format.max_burst:
            raise ValueError(f"a burst must be a power of two up to {self.format.max_burst} words, not {self.burst}")
        if not MARCHED_BITS[0] <= self.format.data_bits <= MARCHED_BITS[1]:
            raise ValueError("words have {} to {} bits, not {}".format(*MARCHED_BITS, self.format.data_bits))
        if self.format.address_bits - self.burst.bit_length() + 1 > COUNT_BITS:
            raise ValueError(f"a march goes through 2**{COUNT_BITS} bursts of {self.burst} words at most")

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": COUNT_BITS, **self.format.ports("m")}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {
            "busy": 1,
            "done": COUNT_BITS,
            "wrong": COUNT_BITS,
            "first": self.format.address_bits,
            "element": ELEMENT_BITS,
            "refused": COUNT_BITS,
            "bits": self.format.data_bits,
        }

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return march_unit(domain, streams["x"], Axi.of(streams, "m"), *self.signals(self.outputs), unit=self)


@block
def march_unit(
    domain: ClockReset,
    x: Stream,
    m: Axi,
    busy: Bit,
    done: Bits,
    wrong: Bits,
    first: Bits,
    element: Bits,
    refused: Bits,
    bits: Bits,
    *,
    unit: March,
) -> Instances:
    """See `March`.  Cost: two words, counters and addresses.  A burst takes its words and the memory's time to answer
    once for reading, once for writing, and four cycles.

    Ports:
        x: in, stream of 32 bits: bursts; taken while nothing marches, and nothing marches for none.
        m: in and out, port of ``unit.format`` that this block drives; requests from registers, b and r always ready.
        busy: out, 1 bit.
        done, refused: out, 32 bits, from registers; begin anew behind their last.
        wrong: out, 32 bits, from registers; stops at its last.
        first: out, ``unit.format.address_bits`` bits, from registers.
        element: out, 3 bits, from registers.
        bits: out, ``unit.format.data_bits`` bits, from registers.
    """
    burst, data_bits, address_bits = unit.burst, unit.format.data_bits, unit.format.address_bits
    shift, last_word, last_element, request_bits = burst.bit_length() - 1, burst - 1, len(ELEMENTS) - 1, m.aw.width
    idle, begin, reading, writing, answering, after, resting = range(7)
    burst_bits = address_bits - shift
    state = Signal(intbv(idle, min=0, max=8))
    at = Signal(intbv(0)[ELEMENT_BITS:])
    # of the burst, of the last one, of the word
    start, last_start, place = (Signal(modbv(0)[address_bits:]) for _ in range(3))
    index = Signal(modbv(0)[address_width(max(4, burst)) :])
    asking, requesting, complement, ends, moves, turns = (Signal(bool(0)) for _ in range(6))
    # of the element, and whether the next one goes downwards
    reads, writes, reads_turned, writes_turned, down, then_down = (Signal(bool(0)) for _ in range(6))
    word = Signal(intbv(0)[data_bits:])
    marches = Signal(modbv(0)[COUNT_BITS:])
    clear, compares = (Signal(bool(0)) for _ in range(2))
    makes = address_pattern(place, complement, word)
    refusals = march_refusals(domain, clear, m.b, m.r, refused)
    judges = march_judge(domain, clear, compares, m.r, word, place, at, wrong, first, element, bits)

    @always_comb
    def look_up() -> None:
        reads.next = READS[int(at)]
        writes.next = WRITES[int(at)]
        reads_turned.next = READS_TURNED[int(at)]
        writes_turned.next = WRITES_TURNED[int(at)]
        down.next = DOWN[int(at)]
        then_down.next = THEN_DOWN[int(at)]

    @always_comb
    def choose() -> None:
        complement.next = (state == reading and reads_turned) or (state == writing and writes_turned)
        ends.next = index == last_word
        turns.next = start == last_start
        clear.next = state == idle and x.valid
        compares.next = state == reading and m.r.valid
        moves.next = (state == reading and m.r.valid) or (state == writing and m.w.ready)

    @always_comb
    def connect() -> None:
        x.ready.next = state == idle
        m.ar.valid.next = asking
        m.ar.payload.next[address_bits:] = start
        m.ar.payload.next[request_bits:address_bits] = last_word
        m.aw.valid.next = requesting
        m.aw.payload.next[address_bits:] = start
        m.aw.payload.next[request_bits:address_bits] = last_word
        m.w.valid.next = state == writing
        m.w.payload.next[data_bits:] = word
        m.w.payload.next[data_bits] = ends
        m.b.ready.next = True
        m.r.ready.next = True
        busy.next = state != idle
        done.next = marches

    @always(domain.clk.posedge)
    def walk() -> None:
        bursts = intbv(0)[COUNT_BITS:]
        if asking and m.ar.ready:
            asking.next = False
        if requesting and m.aw.ready:
            requesting.next = False
        if moves and ends:
            place.next = start
            index.next = 0
        elif moves:
            place.next = place + 1
            index.next = index + 1
        if state == idle:
            at.next = 0
            start.next = 0
            if x.valid and x.payload != 0:
                bursts[:] = x.payload - 1
                last_start.next[address_bits:shift] = bursts[burst_bits:]
                state.next = begin
        elif state == begin:
            place.next = start
            if reads:
                asking.next = True
                state.next = reading
            else:
                requesting.next = True
                state.next = writing
        elif state == reading and moves and ends:
            if writes:
                requesting.next = True
                state.next = writing
            else:
                state.next = after
        elif state == writing and moves and ends:
            state.next = answering
        elif state == answering and m.b.valid:
            state.next = after
        elif state == after:
            state.next = begin
            if down and start != 0:
                start.next = start - burst
            elif not down and not turns:
                start.next = start + burst
            elif at == last_element:
                state.next = resting
            else:
                at.next = at + 1
                start.next = 0
                if then_down:
                    start.next = last_start
        elif state == resting:
            index.next = index + 1
            if index == 3:
                index.next = 0
                marches.next = marches + 1
                state.next = idle
        if domain.rst:
            state.next = idle
            index.next = 0
            asking.next = False
            requesting.next = False
            marches.next = 0

    return makes, judges, refusals, look_up, choose, connect, walk


@block
def march_refusals(domain: ClockReset, clear: Bit, b: Stream, r: Stream, refused: Bits) -> Instances:
    """Counts requests that were answered with an error.  Cost: a counter.

    Ports:
        clear: in, 1 bit: a march begins.
        b, r: in, streams of AXI's answers and read data, watched, always ready.
        refused: out, 32 bits, from registers; begins anew behind its last.
    """
    last = r.width - 1
    data_bits = last - RESPONSE_BITS
    count = Signal(modbv(0)[COUNT_BITS:])

    @always_comb
    def connect() -> None:
        refused.next = count

    @always(domain.clk.posedge)
    def step() -> None:
        if (b.valid and b.payload != 0) or (r.valid and r.payload[last] and r.payload[last:data_bits] != 0):
            count.next = count + 1
        if clear or domain.rst:
            count.next = 0

    return connect, step


@block
def address_pattern(place: Bits, complement: Bit, word: Bits) -> Instances:
    """The circuit of `pattern`.  Cost: an XOR a bit.

    Ports:
        place: in, any number of bits: an address, of which the low 32 bits count.
        complement: in, 1 bit: all bits turned over.
        word: out, any number of bits, in the same cycle.
    """
    lanes = len(word) // LANE_BITS
    low = Signal(intbv(0)[LANE_BITS:])
    turned = [Signal(intbv(0)[LANE_BITS:]) for _ in range(lanes)]
    rotates = [_turned(low, turned[lane], by=2 * lane) for lane in range(lanes)]
    row = ConcatSignal(*reversed(turned))
    address_bits = min(LANE_BITS, len(place))

    @always_comb
    def widen() -> None:
        low.next = place[address_bits:]

    @always_comb
    def out() -> None:
        if complement:
            word.next = ~row
        else:
            word.next = row

    return rotates, widen, out


@block
def _turned(x: Bits, y: Bits, *, by: int) -> Instances:
    bits = len(x)
    keep = bits - by
    if by == 0:

        @always_comb
        def turn() -> None:
            y.next = x
    else:

        @always_comb
        def turn() -> None:
            y.next = concat(x[keep:], x[bits:keep])

    return turn


@block
def march_judge(
    domain: ClockReset,
    clear: Bit,
    compares: Bit,
    r: Stream,
    word: Bits,
    place: Bits,
    at: Bits,
    wrong: Bits,
    first: Bits,
    element: Bits,
    bits: Bits,
) -> Instances:
    """Holds what is read against what was written.  Cost: two words, two addresses.

    Ports:
        clear: in, 1 bit: a march begins, at which nothing is on its way here.
        compares: in, 1 bit: ``r`` has a word, which should be ``word``.
        r: in, stream of AXI's read data, in its low bits as wide as ``word``, watched.
        word: in, any number of bits.
        place: in, any number of bits: address of the word.
        at: in, 3 bits: element of the march.
        wrong: out, 32 bits, from registers; three cycles behind, as all others.
        first: out, as wide as ``place``, from registers.
        element: out, 3 bits, from registers.
        bits: out, as wide as ``word``, from registers.
    """
    data_bits, most = len(word), (1 << COUNT_BITS) - 1
    difference, differed = (Signal(intbv(0)[data_bits:]) for _ in range(2))
    places = [Signal(intbv(0)[len(place) :]) for _ in range(3)]
    elements = [Signal(intbv(0)[ELEMENT_BITS:]) for _ in range(3)]
    came, bad = (Signal(bool(0)) for _ in range(2))
    count = Signal(intbv(0)[COUNT_BITS:])
    place_then, place_found, place_first = places
    at_then, at_found, at_first = elements

    @always_comb
    def connect() -> None:
        wrong.next = count
        first.next = place_first
        element.next = at_first
        bits.next = differed

    @always(domain.clk.posedge)
    def compare() -> None:
        came.next = compares
        difference.next = r.payload[data_bits:] ^ word
        place_then.next = place
        at_then.next = at
        bad.next = came and difference != 0
        place_found.next = place_then
        at_found.next = at_then
        if came:
            differed.next = differed | difference
        if bad and count != most:
            count.next = count + 1
        if bad and count == 0:
            place_first.next = place_found
            at_first.next = at_found
        if clear or domain.rst:
            came.next = False
            bad.next = False
            differed.next = 0
            count.next = 0
            place_first.next = 0
            at_first.next = 0

    return connect, compare
