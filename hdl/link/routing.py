"""Words on their way inside an FPGA: merged, split by destination, drained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block

from hdl.link.format import LinkUnit
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.fifo import queue
from hdl.streams.merge import burst_merge, merge
from hdl.streams.pipes import Policy, m2s_pipe, pipe


@dataclass(frozen=True, kw_only=True)
class Merge(LinkUnit):
    """Two word streams ``a`` and ``b`` into one, ``y``, in turns where both have words."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys(("a", "b", "y"), self.format.payload_bits)

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return merge(domain, streams["a"], streams["b"], streams["y"])


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
class BurstMerge(LinkUnit):
    """As `Merge`, for words that go in frames, where those of one stream in a row share a descriptor: a side keeps its
    turn for as many words as it has, up to ``longest``."""

    longest: int

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys(("a", "b", "y"), self.format.payload_bits)

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return burst_merge(domain, streams["a"], streams["b"], streams["y"], longest=self.longest)


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

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        number, credit = self.signals(self.inputs)
        return link_split(domain, number, credit, streams["x"], streams["mine"], streams["rest"], unit=self)


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
def link_split(
    domain: ClockReset, number: Bits, credit: Bit, x: Stream, mine: Stream, rest: Stream, *, unit: Split
) -> Instances:
    """See `Split`.  Cost: three words of flip-flops.  Latency: 1.  Both outputs come from registers, and ready of
    ``rest`` is cut.

    Ports:
        number: in, as wide as the field "stream", constant.
        credit: in, 1 bit, constant.
        x: in, stream of `LinkFormat.payload_bits` bits; its ready is combinational in its payload and ``mine.ready``.
        mine, rest: out, streams as wide as ``x``, 1 cycle later.
    """
    form = unit.format
    taken, passed = Stream(form.payload_bits), Stream(form.payload_bits)
    keep = m2s_pipe(domain, taken, mine)
    stage = pipe(domain, passed, rest, policy=Policy.FULL)
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
