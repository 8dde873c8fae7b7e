"""The network port of a device: element streams to words of a link and back, with numbers and credits.

A *word* is one flat payload (`LinkFormat`): data, last, sequence number, stream number, a mark for credits, the device
it goes to.  At the port of the device it is an AXI4-Stream transfer: data = TDATA, last = TLAST, device = TDEST,
stream = TID, credit and sequence = TUSER.  Words of different streams may interleave; those of one stream stay in
order, which the receiver checks by sequence number.

One credit is the right to send one word.  A sender starts with as many as the receiver's FIFO holds, spends one a
word, and gets them back in credit words, which need none themselves.  So no receiver overflows, a network port never
waits for a layer, and no stream blocks another.

A device is wired of units with one element stream each, so that all are converted once and instantiated often::

    x ──▶ egress ──▶┐                    ┌──▶ split ──mine──▶ ingress ──▶ y
            ▲       merge ──▶ port ──▶ … │     rest             │credits
          credits ─▶┘         (switch)   └──▶ split … ──▶ drain └──▶ merge (of the receiving device)

Stream number and device are input ports of the units, tied to constants by the netlist.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.memory import address_width
from hdl.stream import Stream
from hdl.streams.fifo import queue, queue_latency
from hdl.streams.pipes import Policy, m2s_pipe, pipe, same_width
from hdl.streams.width import AdapterKind, adapter_kind, width_adapter
from hdl.unit import Unit


def elements_per_word(element_bits: int, word_bits: int) -> int:
    """Elements that a word carries: as many whole ones as fit.  Raises ValueError if none does."""
    if not 1 <= element_bits <= word_bits:
        raise ValueError(f"an element of {element_bits} bits does not fit a link word of {word_bits} bits")
    return word_bits // element_bits


def wire_words(elements: int, element_bits: int, word_bits: int) -> int:
    """Words on the wire for one tensor of ``elements``; the last word is filled up."""
    return -(-elements // elements_per_word(element_bits, word_bits))


@dataclass(frozen=True)
class Word:
    """The fields of a link word, as numbers."""

    data: int
    last: int
    sequence: int
    stream: int
    credit: int
    device: int


@dataclass(frozen=True, kw_only=True)
class LinkFormat:
    """How a word is laid out, lowest field first: data, last, sequence, stream, credit, device."""

    # bits of data, 8 or more
    word_bits: int
    # stream numbers in the cluster
    streams: int
    # devices in the cluster
    devices: int
    # bits of the sequence number
    sequence_bits: int = 8

    def __post_init__(self) -> None:
        if self.word_bits < 8 or self.streams < 1 or self.devices < 1 or self.sequence_bits < 1:
            raise ValueError(f"{self}: needs 8 data bits, and at least 1 stream, device and sequence bit")

    @cached_property
    def fields(self) -> Mapping[str, tuple[int, int]]:
        """Field name → (lowest bit, width)."""
        widths = {
            "data": self.word_bits,
            "last": 1,
            "sequence": self.sequence_bits,
            "stream": address_width(self.streams),
            "credit": 1,
            "device": address_width(self.devices),
        }
        found, low = {}, 0
        for name, width in widths.items():
            found[name] = (low, width)
            low += width
        return found

    @property
    def payload_bits(self) -> int:
        """Bits of a word with its header."""
        low, width = self.fields["device"]
        return low + width

    def width(self, field: str) -> int:
        """Bits of a field."""
        return self.fields[field][1]

    def encode(self, word: Word) -> int:
        """The payload of a word."""
        return sum(getattr(word, name) << low for name, (low, _) in self.fields.items())

    def decode(self, payload: int) -> Word:
        """The word of a payload."""
        return Word(**{name: payload >> low & ((1 << width) - 1) for name, (low, width) in self.fields.items()})

    def verilog_field(self, net: str, field: str) -> str:
        """A Verilog expression for a field of the payload ``net``."""
        low, width = self.fields[field]
        return f"{net}[{low + width - 1}:{low}]"


def credit_batch(depth: int) -> int:
    """Words that a receiver frees before it returns their credits in one credit word: half its FIFO."""
    return max(1, depth // 2)


def merges_passed(position: int, streams: int) -> int:
    """Merges, of a cycle each, on the way of one of so many streams through a balanced tree."""
    passed = 0
    while streams > 1:
        # the last of an odd number waits for the next level
        passed += position != streams - 1 or streams % 2 == 0
        position, streams = position // 2, -(-streams // 2)
    return passed


def _adapter_cycles(a: int, b: int) -> int:
    return int(adapter_kind(a, b) is not AdapterKind.WIRE)


# ------------------------------------------------------------------------------------------------- units


@dataclass(frozen=True, kw_only=True)
class LinkUnit(Unit, ABC):
    """A unit of the network port."""

    format: LinkFormat


@dataclass(frozen=True, kw_only=True)
class Egress(LinkUnit):
    """The sending end of one element stream: packs, numbers, and waits for credits.

    Streams: ``x`` elements in, ``credits`` credit words in, ``y`` words out.  Inputs: ``number`` of the stream,
    ``device`` it goes to.
    """

    # bits of one element
    element_bits: int
    # elements a beat of x
    lanes: int
    # elements of a tensor
    elements: int
    # words that the receiver's FIFO holds
    credits: int

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {
            "x": self.lanes * self.element_bits,
            "credits": self.format.payload_bits,
            "y": self.format.payload_bits,
        }

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"number": self.format.width("stream"), "device": self.format.width("device")}

    @property
    def latency_cycles(self) -> int:
        """From the last beat of a word to the word, if there is a credit."""
        return _adapter_cycles(self.lanes, elements_per_word(self.element_bits, self.format.word_bits)) + 1

    def build(self, clk: Any, rst: Any, streams: Mapping[str, Stream]) -> Any:
        """See the base class."""
        number, device = self.signals(self.inputs)
        return link_egress(clk, rst, number, device, streams["x"], streams["credits"], streams["y"], unit=self)


@dataclass(frozen=True, kw_only=True)
class Ingress(LinkUnit):
    """The receiving end of one element stream: FIFO, sequence check, unpacking, return of credits.

    Streams: ``x`` words in, ``y`` elements out, ``credits`` credit words out.  Inputs: ``number`` of the stream,
    ``device`` that sends it.  Output: ``error``, sticky: a word was lost, doubled, or came out of order, ``last``
    stood at the wrong place, or the sender spent credits that it did not have.
    """

    # bits of one element
    element_bits: int
    # elements a beat of y
    lanes: int
    # elements of a tensor
    elements: int
    # words that the FIFO holds: the credits of the sender
    depth: int

    def __post_init__(self) -> None:
        if not 2 <= self.depth < 1 << self.format.word_bits:
            raise ValueError(f"a link FIFO needs at least 2 words, and no more than a word can count, not {self.depth}")

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {
            "x": self.format.payload_bits,
            "y": self.lanes * self.element_bits,
            "credits": self.format.payload_bits,
        }

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"number": self.format.width("stream"), "device": self.format.width("device")}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"error": 1}

    @property
    def latency_cycles(self) -> int:
        """From a word to its first beat."""
        per_word = elements_per_word(self.element_bits, self.format.word_bits)
        return queue_latency(self.depth) + _adapter_cycles(per_word, self.lanes)

    def build(self, clk: Any, rst: Any, streams: Mapping[str, Stream]) -> Any:
        """See the base class."""
        number, device = self.signals(self.inputs)
        (error,) = self.signals(self.outputs)
        return link_ingress(clk, rst, number, device, streams["x"], streams["y"], streams["credits"], error, unit=self)


@dataclass(frozen=True, kw_only=True)
class Merge(LinkUnit):
    """Two word streams ``a`` and ``b`` into one, ``y``, in turns where both have words."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys(("a", "b", "y"), self.format.payload_bits)

    def build(self, clk: Any, rst: Any, streams: Mapping[str, Stream]) -> Any:
        """See the base class."""
        return merge(clk, rst, streams["a"], streams["b"], streams["y"])


@dataclass(frozen=True, kw_only=True)
class Split(LinkUnit):
    """Takes the words of one stream, its data or its credits, out of ``x`` into ``mine``; others go to ``rest``.

    Inputs: ``number`` of the stream; ``credit``: 0 to take data, 1 to take credits.
    """

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys(("x", "mine", "rest"), self.format.payload_bits)

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"number": self.format.width("stream"), "credit": 1}

    def build(self, clk: Any, rst: Any, streams: Mapping[str, Stream]) -> Any:
        """See the base class."""
        number, credit = self.signals(self.inputs)
        return link_split(clk, rst, number, credit, streams["x"], streams["mine"], streams["rest"], unit=self)


@dataclass(frozen=True, kw_only=True)
class Drain(LinkUnit):
    """The end of a chain of splits: takes all words ``x``.  Output: ``error``, sticky: one came."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": self.format.payload_bits}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"error": 1}

    def build(self, clk: Any, rst: Any, streams: Mapping[str, Stream]) -> Any:
        """See the base class."""
        (error,) = self.signals(self.outputs)
        return link_drain(clk, rst, streams["x"], error)


# ------------------------------------------------------------------------------------------------ blocks


@block
def link_egress(
    clk: Any, rst: Any, number: Any, device: Any, x: Stream, credits: Stream, y: Stream, *, unit: Egress
) -> Any:
    """See `Egress`.  Cost: the width adapter, a stage of a word, one of a word or of a beat of ``x`` if that is less,
    counters.  Latency: that of the adapter + 1.  ``x.ready`` does not depend on ``y.ready`` in the same cycle."""
    form = unit.format
    per_word = elements_per_word(unit.element_bits, form.word_bits)
    entered, packed = Stream(x.width), Stream(per_word * unit.element_bits)
    word = Stream(form.payload_bits)
    # ready is cut where that takes the fewest registers
    early = x.width <= form.payload_bits
    door = pipe(clk, rst, x, entered, policy=Policy.S2M if early else Policy.NONE)
    adapter = width_adapter(clk, rst, entered, packed, element_bits=unit.element_bits, flush_every=unit.elements)
    stage = pipe(clk, rst, word, y, policy=Policy.M2S if early else Policy.FULL)
    words = wire_words(unit.elements, unit.element_bits, form.word_bits)
    final, most = words - 1, unit.credits
    position = Signal(intbv(0)[address_width(words) :])
    order = Signal(intbv(0)[form.sequence_bits :])
    credit = Signal(intbv(0, min=0, max=unit.credits + 1))
    # credits that came in the cycle before, and one less
    counted = len(credit)
    returned, gained = (Signal(modbv(0)[counted:]) for _ in range(2))
    came, may_send, fire, last = (Signal(bool(0)) for _ in range(4))
    top_sequence = (1 << form.sequence_bits) - 1
    last_at, sequence_at = form.fields["last"][0], form.fields["sequence"][0]
    stream_at, credit_at, device_at = (form.fields[name][0] for name in ("stream", "credit", "device"))
    total, data_bits = form.payload_bits, form.word_bits

    @always_comb
    def header() -> None:
        word.payload.next[data_bits:0] = packed.payload
        word.payload.next[last_at] = last
        word.payload.next[stream_at:sequence_at] = order
        word.payload.next[credit_at:stream_at] = number
        word.payload.next[credit_at] = False
        word.payload.next[total:device_at] = device

    @always_comb
    def gate() -> None:
        credits.ready.next = True
        may_send.next = credit != 0
        last.next = position == final

    @always_comb
    def handshake() -> None:
        word.valid.next = packed.valid and may_send
        packed.ready.next = word.ready and may_send
        fire.next = packed.valid and word.ready and may_send

    @always(clk.posedge)
    def credit_in() -> None:
        came.next = credits.valid
        returned.next = credits.payload[counted:]
        gained.next = credits.payload[counted:] - 1
        if rst:
            came.next = False

    @always(clk.posedge)
    def step() -> None:
        if fire:
            if last:
                position.next = 0
            else:
                position.next = position + 1
            if order == top_sequence:
                order.next = 0
            else:
                order.next = order + 1
        if fire and came:
            credit.next = credit + gained
        elif fire:
            credit.next = credit - 1
        elif came:
            credit.next = credit + returned
        if rst:
            position.next = 0
            order.next = 0
            credit.next = most

    return door, adapter, stage, header, gate, handshake, credit_in, step


@block
def link_ingress(
    clk: Any, rst: Any, number: Any, device: Any, x: Stream, y: Stream, credits: Stream, error: Any, *, unit: Ingress
) -> Any:
    """See `Ingress`.  Cost: a queue of ``depth`` words, the width adapter, counters.  Latency: of both.

    Credits go back half a FIFO at a time (`credit_batch`), so one word in ``depth / 2`` is a credit word."""
    form = unit.format
    per_word = elements_per_word(unit.element_bits, form.word_bits)
    used = per_word * unit.element_bits
    arriving, waiting = Stream(used), Stream(used)
    fifo = queue(clk, rst, arriving, waiting, depth=unit.depth)
    taken = Stream(used)
    adapter = width_adapter(clk, rst, taken, y, element_bits=unit.element_bits, flush_every=unit.elements)
    words = wire_words(unit.elements, unit.element_bits, form.word_bits)
    final, batch, depth = words - 1, credit_batch(unit.depth), unit.depth
    others = batch - 1
    # freed words whose credits have not gone back; never above depth while the sender spends only what it has
    freed = Signal(intbv(0, min=0, max=unit.depth + 1))
    position = Signal(intbv(0)[address_width(words) :])
    order = Signal(intbv(0)[form.sequence_bits :])
    seen_order = Signal(intbv(0)[form.sequence_bits :])
    seen_last, bad, wrong, fire, free, offer, send = (Signal(bool(0)) for _ in range(7))
    top_sequence = (1 << form.sequence_bits) - 1
    last_at, sequence_at = form.fields["last"][0], form.fields["sequence"][0]
    stream_at, credit_at, device_at = (form.fields[name][0] for name in ("stream", "credit", "device"))
    total, data_bits = form.payload_bits, form.word_bits

    @always_comb
    def enter() -> None:
        x.ready.next = arriving.ready
        arriving.valid.next = x.valid
        arriving.payload.next = x.payload[used:]
        fire.next = x.valid and arriving.ready
        seen_order.next = x.payload[stream_at:sequence_at]
        seen_last.next = x.payload[last_at]

    @always_comb
    def judge() -> None:
        wrong.next = seen_order != order or seen_last != (position == final)

    @always_comb
    def leave() -> None:
        taken.valid.next = waiting.valid
        taken.payload.next = waiting.payload
        waiting.ready.next = taken.ready
        free.next = waiting.valid and taken.ready

    @always_comb
    def out() -> None:
        error.next = bad
        credits.valid.next = offer
        send.next = offer and credits.ready

    @always_comb
    def credit_word() -> None:
        credits.payload.next[data_bits:0] = batch
        credits.payload.next[last_at] = True
        credits.payload.next[stream_at:sequence_at] = 0
        credits.payload.next[credit_at:stream_at] = number
        credits.payload.next[credit_at] = True
        credits.payload.next[total:device_at] = device

    @always(clk.posedge)
    def check() -> None:
        if fire:
            if wrong:
                bad.next = True
            if position == final:
                position.next = 0
            else:
                position.next = position + 1
            if order == top_sequence:
                order.next = 0
            else:
                order.next = order + 1
        # a sender with credit never finds the FIFO full
        if x.valid and not arriving.ready:
            bad.next = True
        if rst:
            bad.next = False
            position.next = 0
            order.next = 0

    @always(clk.posedge)
    def count() -> None:
        if send and free:
            freed.next = freed - others
        elif send:
            freed.next = freed - batch
        elif free and freed != depth:
            freed.next = freed + 1
        if send:
            offer.next = False
        elif not offer:
            offer.next = freed >= batch
        if rst:
            freed.next = 0
            offer.next = False

    return fifo, adapter, enter, judge, leave, out, credit_word, check, count


@block
def merge(clk: Any, rst: Any, a: Stream, b: Stream, y: Stream) -> Any:
    """Two streams into one; where both have beats they take turns.

    Cost: 2 payload + 3 flip-flops and two multiplexers a payload bit.  Latency: 1 cycle.  No ready depends on
    ``y.ready`` in the same cycle, so merges make trees of any height.  Not deterministic in the order of the two: use
    it where the beats say what they are.
    """
    width = same_width("merge", a, y)
    same_width("merge", b, y)
    chosen = Stream(width)
    stage = pipe(clk, rst, chosen, y, policy=Policy.FULL)
    turn, from_a, from_b = (Signal(bool(0)) for _ in range(3))

    @always_comb
    def choose() -> None:
        from_a.next = not turn or not b.valid
        from_b.next = turn or not a.valid

    @always_comb
    def out() -> None:
        a.ready.next = chosen.ready and from_a
        b.ready.next = chosen.ready and from_b
        chosen.valid.next = a.valid or b.valid
        if from_a and a.valid:
            chosen.payload.next = a.payload
        else:
            chosen.payload.next = b.payload

    @always(clk.posedge)
    def step() -> None:
        if chosen.ready:
            if from_a and a.valid:
                turn.next = True
            elif from_b and b.valid:
                turn.next = False
        if rst:
            turn.next = False

    return stage, choose, out, step


@block
def link_split(
    clk: Any, rst: Any, number: Any, credit: Any, x: Stream, mine: Stream, rest: Stream, *, unit: Split
) -> Any:
    """See `Split`.  Cost: three words of flip-flops.  Latency: 1.  Both outputs come from registers, and ready of
    ``rest`` is cut."""
    form = unit.format
    taken, passed = Stream(form.payload_bits), Stream(form.payload_bits)
    keep = m2s_pipe(clk, rst, taken, mine)
    stage = pipe(clk, rst, passed, rest, policy=Policy.FULL)
    hit = Signal(bool(0))
    stream_at, credit_at = form.fields["stream"][0], form.fields["credit"][0]

    @always_comb
    def match() -> None:
        hit.next = x.payload[credit_at:stream_at] == number and x.payload[credit_at] == credit

    @always_comb
    def route() -> None:
        taken.valid.next = x.valid and hit
        passed.valid.next = x.valid and not hit
        taken.payload.next = x.payload
        passed.payload.next = x.payload
        if hit:
            x.ready.next = taken.ready
        else:
            x.ready.next = passed.ready

    return keep, stage, match, route


@block
def link_drain(clk: Any, rst: Any, x: Stream, error: Any) -> Any:
    """See `Drain`."""
    bad = Signal(bool(0))

    @always_comb
    def out() -> None:
        x.ready.next = True
        error.next = bad

    @always(clk.posedge)
    def step() -> None:
        bad.next = x.valid or bad
        if rst:
            bad.next = False

    return out, step
