"""Words on their way from cable to cable: what a device sends, what is for it, and what it passes on for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv

from hdl.link.format import LinkFormat, LinkUnit, merge_tree, merges_passed
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.merge import merge
from hdl.streams.pipes import Policy, pipe

# of inputs and outputs: what the device itself sends, and what is for it
OWN = MINE = 0
# cycles from an input to an output at least, and words that an input holds
LEAST_PASSED, INPUT_WORDS = 2, 2


@dataclass(frozen=True, kw_only=True)
class Forward(LinkUnit):
    """The words that a device with cables sends, ``own``, and those that come by its cables, ``rx0``, ``rx1`` …, to
    where the table says: ``mine``, or on by ``tx0``, ``tx1`` ….  Output: ``error``, sticky: one came by an input from
    which no words go where the table says; it is taken and lost.

    Words for one device that come by one input stay in order.  Each input and each output holds two words beside those
    of merges in between."""

    # device -> output by which words for it leave: 0: they are here, 1 + k: tx<k>
    table: tuple[int, ...]
    # output -> inputs, 0: own, 1 + k: rx<k>, some of whose words leave by it
    merged: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        outs = len(self.merged)
        if len(self.table) != self.format.devices or not all(0 <= out < outs for out in self.table):
            raise ValueError(f"{self}: needs one of {outs} outputs for each of {self.format.devices} devices")
        if not all(self.merged) or {way for ways in self.merged for way in ways} != set(range(outs)):
            raise ValueError(f"{self}: each of {outs} outputs has inputs, and each of as many inputs leads to some")

    @cached_property
    def outputs_of(self) -> tuple[tuple[int, ...], ...]:
        """Input -> outputs by which some of its words leave."""
        count = range(len(self.merged))
        return tuple(tuple(out for out in count if way in self.merged[out]) for way in count)

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        cables = range(len(self.merged) - 1)
        names = ("own", *(f"rx{at}" for at in cables), "mine", *(f"tx{at}" for at in cables))
        return dict.fromkeys(names, self.format.payload_bits)

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"error": 1}

    def latency_cycles(self, way: int, out: int) -> int:
        """Of a word from an input to an output, if nothing else is on its way."""
        return passed_cycles(self.merged[out], way)

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (error,) = self.signals(self.outputs)
        cables = range(len(self.merged) - 1)
        rx, tx = [streams[f"rx{at}"] for at in cables], [streams[f"tx{at}"] for at in cables]
        return forward(domain, streams["own"], rx, streams["mine"], tx, error, unit=self)


def passed_cycles(ways: Sequence[int], way: int) -> int:
    """Cycles from an input to an output with these: a stage, then merges, or a stage."""
    return 1 + max(1, merges_passed(ways.index(way), len(ways)))


@block
def forward(
    domain: ClockReset,
    own: Stream,
    rx: Sequence[Stream],
    mine: Stream,
    tx: Sequence[Stream],
    error: Bit,
    *,
    unit: Forward,
) -> Instances:
    """See `Forward`.  Cost: two words of flip-flops an input, a table of devices, and for each output a stage as large,
    or merges.  Latency: `Forward.latency_cycles`.  A word a cycle leaves by each output.  All outputs come from
    registers, and so does ready of inputs.

    Ports:
        own: in, stream of `LinkFormat.payload_bits` bits.
        rx: in, streams as wide as ``own``.
        mine: out, stream as wide as ``own``.
        tx: out, as many streams as ``rx``, as wide.
        error: out, 1 bit, from the cycle after a word that goes nowhere until ``rst``.
    """
    xs, ys = [own, *rx], [mine, *tx]
    lanes = {(way, out): Stream(own.width) for out, ways in enumerate(unit.merged) for way in ways}
    strays = [Signal(bool(0)) for _ in xs]
    dealt = [
        deal_words(domain, x, [lanes[way, out] for out in outs], stray, chosen=_choices(unit, outs), form=unit.format)
        for way, (outs, x, stray) in enumerate(zip(unit.outputs_of, xs, strays, strict=True))
    ]
    joined = [
        join_words(domain, [lanes[way, out] for way in ways], y)
        for out, (ways, y) in enumerate(zip(unit.merged, ys, strict=True))
    ]
    lost = ConcatSignal(*strays)
    bad = Signal(bool(0))

    @always_comb
    def tell() -> None:
        error.next = bad

    @always(domain.clk.posedge)
    def step() -> None:
        bad.next = bad or lost != 0
        if domain.rst:
            bad.next = False

    return dealt, joined, tell, step


def _choices(unit: Forward, outs: Sequence[int]) -> tuple[int, ...]:
    """Device -> the bit of its output among these, and one behind them for those that go nowhere."""
    width = unit.format.width("device")
    found = [1 << (outs.index(out) if out in outs else len(outs)) for out in unit.table]
    return (*found, *[1 << len(outs)] * ((1 << width) - len(found)))


@block
def deal_words(
    domain: ClockReset, x: Stream, ys: Sequence[Stream], stray: Bit, *, chosen: tuple[int, ...], form: LinkFormat
) -> Instances:
    """Words of one input, dealt out by the device that they are for.  Latency: 1.

    Ports:
        x: in, stream of `LinkFormat.payload_bits` bits; its ready from a register.
        ys: out, streams as wide, 1 cycle later.
        stray: out, 1 bit: a word goes nowhere.
    """
    held = Stream(form.payload_bits)
    stage = pipe(domain, x, held, policy=Policy.FULL)
    count = len(ys)
    hits, device = Signal(intbv(0)[count + 1 :]), Signal(intbv(0)[form.width("device") :])
    takes = [Signal(bool(0)) for _ in ys]
    taps = [deal_tap(hits, held, y, taken, at=at) for at, (y, taken) in enumerate(zip(ys, takes, strict=True))]
    # a vector even of one tap
    taken = ConcatSignal(*takes, takes[0])
    low, bits = form.fields["device"]
    high = low + bits

    @always_comb
    def address() -> None:
        device.next = held.payload[high:low]

    @always_comb
    def look_up() -> None:
        hits.next = chosen[device]

    @always_comb
    def answer() -> None:
        held.ready.next = taken != 0 or hits[count]
        stray.next = held.valid and hits[count]

    return stage, taps, address, look_up, answer


@block
def deal_tap(hits: Bits, x: Stream, y: Stream, taken: Bit, *, at: int) -> Instances:
    """One of the outputs to which words are dealt out.

    Ports:
        hits: in, more than ``at`` bits; the bit ``at`` is its own.
        x: in, stream of any width, watched.
        y: out, stream as wide as ``x``, in the same cycle.
        taken: out, 1 bit: the word is this output's, and would be taken.
    """

    @always_comb
    def out() -> None:
        y.valid.next = x.valid and hits[at]
        y.payload.next = x.payload
        taken.next = hits[at] and y.ready

    return out


@block
def join_words(domain: ClockReset, xs: Sequence[Stream], y: Stream) -> Instances:
    """Words for one output, by a tree of merges; of one input alone, by a stage.

    Ports:
        xs: in, 1 or more streams of one width.
        y: out, stream as wide, as many cycles later as merges are passed, 1 at least; from registers.
    """
    if len(xs) == 1:
        return pipe(domain, xs[0], y, policy=Policy.FULL)
    tree = merge_tree(len(xs))
    nets = [*xs, *(Stream(y.width) for _ in tree[1:]), y]
    return [merge(domain, [nets[side] for side in sides], nets[len(xs) + at]) for at, sides in enumerate(tree)]
