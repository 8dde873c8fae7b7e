"""One stream to several in turns, and several to one in the same turns: the order of beats is what it was."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.counter import counter
from hdl.streams.fork_join import side_by_side
from hdl.streams.pipes import same_width


@block
def deal(
    domain: ClockReset, x: Stream, ys: Sequence[Stream], *, turn: int, turns: int = 0, taking: Sequence[int] = ()
) -> Instances:
    """``turn`` beats to ``ys[0]``, then as many to the next one, or as ``taking`` has them, and again; after every
    ``turns`` turns it begins anew in any case, unless that is 0.

    Cost: counters of parts, of the beats of a turn and of turns, a multiplexer of ready.  Latency: 0.

    Ports:
        x: in, stream of any width; its ready is that of the one whose turn it is.
        ys: out, streams as wide as ``x``, in the same cycle.
    """
    count = len(ys)
    ready = side_by_side([y.ready for y in ys])
    part = Signal(intbv(0)[address_width(count) :])
    fire, taken = (Signal(bool(0)) for _ in range(2))
    if _is_each_once(taking, count):
        order = _turns(domain, fire, part, parts=count, turn=turn, turns=turns)
    else:
        order = _turns_of(domain, fire, part, turn=turn, turns=turns, taking=tuple(taking))
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
def collect(
    domain: ClockReset, xs: Sequence[Stream], y: Stream, *, turn: int, turns: int = 0, taking: Sequence[int] = ()
) -> Instances:
    """``turn`` beats of ``xs[0]``, then as many of the next one, and again, as `deal` has it.

    Cost: counters of parts, of the beats of a turn and of turns, a multiplexer.  Latency: 0.

    Ports:
        xs: in, streams of one width; the one whose turn it is has the ready of ``y``.
        y: out, stream as wide as ``xs[0]``, in the same cycle.
    """
    count, width = len(xs), y.width
    valid = side_by_side([x.valid for x in xs])
    payload = side_by_side([x.payload for x in xs])
    part = Signal(intbv(0)[address_width(count) :])
    fire, offered = (Signal(bool(0)) for _ in range(2))
    if _is_each_once(taking, count):
        order = _turns(domain, fire, part, parts=count, turn=turn, turns=turns)
    else:
        order = _turns_of(domain, fire, part, turn=turn, turns=turns, taking=tuple(taking))
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


def _is_each_once(taking: Sequence[int], parts: int) -> bool:
    """Whether all parts take their turns one after the other."""
    return tuple(taking) in ((), tuple(range(parts)))


@block
def _turns_of(
    domain: ClockReset, fire: Bit, part: Bits, *, turn: int, turns: int, taking: tuple[int, ...]
) -> Instances:
    """Whose turn it is, by a table: for ``turn`` fires each, and again."""
    place = Signal(intbv(0)[address_width(len(taking)) :])
    places = _turns(domain, fire, place, parts=len(taking), turn=turn, turns=turns)

    @always_comb
    def look() -> None:
        part.next = taking[int(place)]

    return places, look


@block
def _turns(domain: ClockReset, fire: Bit, part: Bits, *, parts: int, turn: int, turns: int) -> Instances:
    """Whose turn it is: part 0 for ``turn`` fires, then the next one, and again."""
    if turn == 1:
        if turns % parts:
            return _rounds(domain, fire, part, parts=parts, turns=turns)
        return counter(domain, fire, part, count=parts)
    over = Signal(bool(0))
    beat = Signal(intbv(0)[address_width(turn) :])
    last = turn - 1
    beats = counter(domain, fire, beat, count=turn)
    if turns % parts:
        order = _rounds(domain, over, part, parts=parts, turns=turns)
    else:
        order = counter(domain, over, part, count=parts)

    @always_comb
    def judge() -> None:
        over.next = fire and beat == last

    return beats, order, judge


@block
def _rounds(domain: ClockReset, over: Bit, part: Bits, *, parts: int, turns: int) -> Instances:
    """Part after part, and from part 0 on again after so many turns, which are no whole number of rounds."""
    last, final = parts - 1, turns - 1
    place = Signal(intbv(0)[address_width(turns) :])
    places = counter(domain, over, place, count=turns)

    @always(domain.clk.posedge)
    def move() -> None:
        if over:
            if part == last or place == final:
                part.next = 0
            else:
                part.next = part + 1
        if domain.rst:
            part.next = 0

    return places, move
