"""A stream dealt out over several memory channels, and collected again::

    x ─▶ Deal ─▶ ys0 ─▶ store ─▶ xs0 ─▶ Collect ─▶ y
             ╰─▶ ys1 ─▶ store ─▶ xs1 ─╯

``turn`` beats go to part 0, the next ones to part 1, and so on; after the last part it is part 0's turn again.
Collected in the same turns, all beats are where they were.  Where beats of ``x`` and of ``y`` hold unlike numbers of
elements, turns are of as many elements: `elements_a_turn`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myhdl import Signal, always_comb, block, intbv

from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.counter import counter
from hdl.streams.fork_join import side_by_side
from hdl.streams.pipes import same_width
from hdl.unit import Unit


def elements_a_turn(x_lanes: int, y_lanes: int) -> int:
    """The fewest elements that are whole beats of so many of them on either side."""
    return math.lcm(x_lanes, y_lanes)


@dataclass(frozen=True, kw_only=True)
class _InTurns(Unit):
    """What both ends share."""

    # bits of a beat
    payload_bits: int
    parts: int
    # beats that go to one part before it is the next one's turn
    turn: int = 1

    def __post_init__(self) -> None:
        if self.parts < 2 or self.turn < 1:
            raise ValueError(f"turns of {self.turn} beats for {self.parts} parts: at least 1 beat, 2 parts")


@dataclass(frozen=True, kw_only=True)
class Deal(_InTurns):
    """``x`` dealt out over ``ys0`` …"""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": self.payload_bits, **{f"ys{part}": self.payload_bits for part in range(self.parts)}}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        ys = [streams[f"ys{part}"] for part in range(self.parts)]
        return deal(domain, streams["x"], ys, turn=self.turn)


@dataclass(frozen=True, kw_only=True)
class Collect(_InTurns):
    """``xs0`` … collected in ``y``."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {**{f"xs{part}": self.payload_bits for part in range(self.parts)}, "y": self.payload_bits}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        xs = [streams[f"xs{part}"] for part in range(self.parts)]
        return collect(domain, xs, streams["y"], turn=self.turn)


@block
def deal(domain: ClockReset, x: Stream, ys: Sequence[Stream], *, turn: int) -> Instances:
    """``turn`` beats to ``ys[0]``, then as many to the next one, and again.

    Cost: counters of parts and of the beats of a turn, a multiplexer of ready.  Latency: 0.

    Ports:
        x: in, stream of any width; its ready is that of the one whose turn it is.
        ys: out, streams as wide as ``x``, in the same cycle.
    """
    count = len(ys)
    ready = side_by_side([y.ready for y in ys])
    part = Signal(intbv(0)[address_width(count) :])
    fire, taken = (Signal(bool(0)) for _ in range(2))
    order = _turns(domain, fire, part, parts=count, turn=turn)
    outputs = [_dealt(x, ys[i], part, i) for i in range(count)]

    @always_comb
    def choose() -> None:
        taken.next = False
        for i in range(count):
            if part == i:
                taken.next = ready[i]

    @always_comb
    def handshake() -> None:
        x.ready.next = taken
        fire.next = x.valid and taken

    return order, outputs, choose, handshake


@block
def _dealt(x: Stream, y: Stream, part: Bits, index: int) -> Instances:
    same_width("deal", x, y)

    @always_comb
    def out() -> None:
        y.valid.next = x.valid and part == index
        y.payload.next = x.payload

    return out


@block
def collect(domain: ClockReset, xs: Sequence[Stream], y: Stream, *, turn: int) -> Instances:
    """``turn`` beats of ``xs[0]``, then as many of the next one, and again.

    Cost: counters of parts and of the beats of a turn, a multiplexer.  Latency: 0.

    Ports:
        xs: in, streams of one width; the one whose turn it is has the ready of ``y``.
        y: out, stream as wide as ``xs[0]``, in the same cycle.
    """
    count, width = len(xs), y.width
    valid = side_by_side([x.valid for x in xs])
    payload = side_by_side([x.payload for x in xs])
    part = Signal(intbv(0)[address_width(count) :])
    fire, offered = (Signal(bool(0)) for _ in range(2))
    order = _turns(domain, fire, part, parts=count, turn=turn)
    inputs = [_collected(xs[i], y, part, i) for i in range(count)]

    @always_comb
    def choose() -> None:
        offered.next = False
        y.payload.next = 0
        for i in range(count):
            if part == i:
                offered.next = valid[i]
                y.payload.next = payload[bits_of(i, width)]

    @always_comb
    def handshake() -> None:
        y.valid.next = offered
        fire.next = offered and y.ready

    return order, inputs, choose, handshake


@block
def _collected(x: Stream, y: Stream, part: Bits, index: int) -> Instances:
    same_width("collect", x, y)

    @always_comb
    def out() -> None:
        x.ready.next = y.ready and part == index

    return out


@block
def _turns(domain: ClockReset, fire: Bit, part: Bits, *, parts: int, turn: int) -> Instances:
    """Whose turn it is: part 0 for ``turn`` fires, then the next one, and again."""
    if turn == 1:
        return counter(domain, fire, part, count=parts)
    over = Signal(bool(0))
    beat = Signal(intbv(0)[address_width(turn) :])
    last = turn - 1
    beats = counter(domain, fire, beat, count=turn)
    order = counter(domain, over, part, count=parts)

    @always_comb
    def judge() -> None:
        over.next = fire and beat == last

    return beats, order, judge
