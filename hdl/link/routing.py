"""Words on their way inside an FPGA: merged, split by destination, drained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv

from hdl.link.format import COUNT_BITS, LinkFormat, LinkUnit
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue
from hdl.streams.merge import MOST_MERGED, merge
from hdl.streams.pipes import Policy, pipe

# streams that are taken out of words behind one stage of registers
MOST_TAPS = 8


@dataclass(frozen=True, kw_only=True)
class Merge(LinkUnit):
    """Word streams ``xs0``, ``xs1`` … into one, ``y``, in turns where two have words, or two pairs of streams."""

    # of streams
    sides: int = MOST_MERGED
    # one keeps its turn for as many words as it has, up to so many, so that they can share a descriptor in a frame
    longest: int = 1
    # whether what is merged are credits on their way to the port, and no words yet
    returned: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the streams that come in."""
        return tuple(f"xs{side}" for side in range(self.sides))

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys(
            (*self.names, "y"), self.format.returned_bits if self.returned else self.format.payload_bits
        )

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return merge(domain, [streams[name] for name in self.names], streams["y"], longest=self.longest)


@dataclass(frozen=True, kw_only=True)
class CreditWord(LinkUnit):
    """Credits on their way to the port become words of it: ``x`` to ``y``, in the same cycle."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": self.format.returned_bits, "y": self.format.payload_bits}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return credit_word(streams["x"], streams["y"], unit=self)


@dataclass(frozen=True, kw_only=True)
class BurstStage(LinkUnit):
    """Words of one stream that wait for the port, as many as may leave in a row: ``x`` to ``y``."""

    words: int

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys("xy", self.format.payload_bits)

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return queue(domain, streams["x"], streams["y"], depth=self.words)


@dataclass(frozen=True, kw_only=True)
class Taking(LinkUnit, ABC):
    """Takes the words of some streams out of ``x`` into ``ys0``, ``ys1`` …; others go to ``rest``.

    Input, the first stream's lowest: ``numbers`` of the streams.
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """Of streams that are taken out."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the streams that are taken out."""
        return tuple(f"ys{at}" for at in range(self.count))

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys(("x", *self.names, "rest"), self.format.payload_bits)

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"numbers": self.count * self.format.width("stream")}


@dataclass(frozen=True, kw_only=True)
class Split(Taking):
    """See `Taking`: of each stream its data or its credits.  Further input, a bit each: ``credits``, 1 to take
    these."""

    # streams that are taken out
    taps: int = MOST_TAPS

    @property
    def count(self) -> int:
        """See the base class."""
        return self.taps

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {**super().inputs, "credits": self.taps}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        # vectors even of one bit
        numbers, credits = (Signal(intbv(0)[width:]) for width in self.inputs.values())
        ys = [streams[name] for name in self.names]
        return link_split(domain, numbers, credits, streams["x"], ys, streams["rest"], unit=self)


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

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (error,) = self.signals(self.outputs)
        return link_drain(domain, streams["x"], error)


@block
def credit_word(x: Stream, y: Stream, *, unit: CreditWord) -> Instances:
    """See `CreditWord`.  Cost: none.

    Ports:
        x: in, stream of `LinkFormat.returned_bits` bits.
        y: out, stream of `LinkFormat.payload_bits` bits, in the same cycle.
    """
    form = unit.format
    data_bits = form.word_bits
    last_at, sequence_at, stream_at, credit_at, device_at = form.header
    total, count_bits, stream_end, end = form.payload_bits, COUNT_BITS, COUNT_BITS + form.width("stream"), x.width

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        x.ready.next = y.ready

    @always_comb
    def widen() -> None:
        y.payload.next[data_bits:0] = x.payload[count_bits:]
        y.payload.next[last_at] = True
        y.payload.next[stream_at:sequence_at] = 0
        y.payload.next[credit_at:stream_at] = x.payload[stream_end:count_bits]
        y.payload.next[credit_at] = True
        y.payload.next[total:device_at] = x.payload[end:stream_end]

    return connect, widen


@block
def link_split(
    domain: ClockReset,
    numbers: Bits,
    credits: Bits,
    x: Stream,
    ys: Sequence[Stream],
    rest: Stream,
    *,
    unit: Split,
) -> Instances:
    """See `Split`.  Cost: two words of flip-flops, a multiplexer a bit, a comparison for each stream that is taken out.
    Latency: 1.  All outputs come from one stage of registers, and ready of ``x`` from one, too.

    Ports:
        numbers: in, for each of ``ys`` as wide as the field "stream", constant.
        credits: in, ``unit.taps`` bits, constant.
        x: in, stream of `LinkFormat.payload_bits` bits.
        ys, rest: out, streams as wide as ``x``, 1 cycle later.
    """
    held = Stream(unit.format.payload_bits)
    stage = pipe(domain, x, held, policy=Policy.FULL)
    hits, takes = ([Signal(bool(0)) for _ in ys] for _ in range(2))
    each = enumerate(zip(ys, hits, takes, strict=True))
    taps = [link_tap(numbers, credits, held, *ends, at=at, form=unit.format) for at, ends in each]
    # vectors even of one tap
    hit, taken = (ConcatSignal(*bits, bits[0]) for bits in (hits, takes))

    @always_comb
    def pass_on() -> None:
        rest.valid.next = held.valid and hit == 0
        rest.payload.next = held.payload
        held.ready.next = taken != 0 or (rest.ready and hit == 0)

    return stage, taps, pass_on


@block
def link_tap(
    numbers: Bits, credits: Bits, x: Stream, y: Stream, hit: Bit, taken: Bit, *, at: int, form: LinkFormat
) -> Instances:
    """One stream that is taken out of words that others look at, too.

    Ports:
        numbers: in, vector of several as wide as the field "stream", constant; that ``at`` is its own.
        credits: in, vector of as many bits, constant.
        x: in, stream of `LinkFormat.payload_bits` bits, watched.
        y: out, stream as wide, in the same cycle.
        hit, taken: out, 1 bit: the word is one of this stream, and is taken.
    """
    found = Signal(bool(0))
    (stream_at, bits), (credit_at, _) = form.fields["stream"], form.fields["credit"]
    low, high, own = at * bits, (at + 1) * bits, at

    @always_comb
    def match() -> None:
        found.next = x.payload[credit_at:stream_at] == numbers[high:low] and x.payload[credit_at] == credits[own]

    @always_comb
    def out() -> None:
        y.valid.next = x.valid and found
        y.payload.next = x.payload
        hit.next = found
        taken.next = found and y.ready

    return match, out


@block
def link_drain(domain: ClockReset, x: Stream, error: Bit) -> Instances:
    """See `Drain`.

    Ports:
        x: in, stream of any width, always ready.
        error: out, 1 bit, from the cycle after a word until ``rst``.
    """
    bad = Signal(bool(0))

    @always_comb
    def out() -> None:
        x.ready.next = True
        error.next = bad

    @always(domain.clk.posedge)
    def step() -> None:
        bad.next = x.valid or bad
        if domain.rst:
            bad.next = False

    return out, step
