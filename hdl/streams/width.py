"""From ``a`` elements a beat to ``b`` elements a beat, any ratio, with frames padded to whole beats."""

from __future__ import annotations

import math
from enum import Enum

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.memory import address_width
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.counter import counter
from hdl.streams.pipes import s2m_pipe, wire


class AdapterKind(Enum):
    """How a `width_adapter` is built."""

    # equal widths
    WIRE = "wire"
    # a divides b: beats are written side by side
    PACK = "pack"
    # b divides a: one beat is shifted out
    UNPACK = "unpack"
    # any other ratio: a shift register of a + b + min(a, b) elements with a moving insertion point
    GEARBOX = "gearbox"


def adapter_kind(a: int, b: int) -> AdapterKind:
    """The kind for ``a`` elements a beat in and ``b`` out."""
    if a == b:
        return AdapterKind.WIRE
    if b % a == 0:
        return AdapterKind.PACK
    return AdapterKind.UNPACK if a % b == 0 else AdapterKind.GEARBOX


def _elements(x: Stream, y: Stream, element_bits: int, frame: int) -> tuple[int, int]:
    for name, stream in (("x", x), ("y", y)):
        if element_bits < 1 or stream.width % element_bits:
            raise ValueError(f"width_adapter: {name} has {stream.width} bits, no whole elements of {element_bits} bits")
    a, b = x.width // element_bits, y.width // element_bits
    if frame < 0 or (frame % a and frame % b):
        raise ValueError(
            f"width_adapter: a frame of {frame} elements is a whole number of beats neither of {a} nor of {b} elements"
        )
    return a, b


@block
def width_adapter(domain: ClockReset, x: Stream, y: Stream, *, element_bits: int, flush_every: int = 0) -> Instances:
    """Elements of ``element_bits`` bits in order, a beat of ``x`` holding a, one of ``y`` holding b of them.

    With ``flush_every`` = E elements a frame, a frame is ⌈E/a⌉ beats of ``x`` and ⌈E/b⌉ of ``y``: the last beat of
    ``y`` is filled with zeros, what fills the last beat of ``x`` is dropped.  a or b must divide E.  0: one endless
    frame.

    Moves one beat a cycle on the side with the fewer elements a beat.  Costs and latency by `adapter_kind`:
    WIRE none, 0; PACK b elements, 1 cycle after the last beat of a word, ready passes through one gate; UNPACK a
    elements, 1 cycle, likewise; GEARBOX a + b + min(a, b) elements (and less than b for the padding) with a moving
    insertion point (one multiplexer input for each multiple of gcd(a, b)), 1 cycle, ready from registers.

    Ports:
        x: in, stream of a × ``element_bits`` bits.
        y: out, stream of b × ``element_bits`` bits.
    """
    a, b = _elements(x, y, element_bits, flush_every)
    kind = adapter_kind(a, b)
    frame = flush_every if flush_every % a or flush_every % b else 0
    if kind is AdapterKind.WIRE:
        inside = wire(domain, x, y)
    elif kind is AdapterKind.PACK:
        fire, last = (Signal(bool(0)) for _ in range(2))
        frames = _frame_end(domain, fire, last, beats=frame // a)
        inside = frames, pack_beats(domain, x, y, fire, last)
    elif kind is AdapterKind.UNPACK:
        inside = _unpack(domain, x, y, ratio=a // b, beats=-(-frame // a), last_beats=frame // b % (a // b))
    else:
        inside = _gearbox(domain, x, y, element_bits=element_bits, a=a, b=b, frame=frame)
    return inside


@block
def bordering_adapter(domain: ClockReset, x: Stream, y: Stream, *, element_bits: int) -> Instances:
    """`width_adapter` between two modules: ``x.ready`` does not depend on ``y.ready`` in the same cycle.

    Cost and latency: as there, and an `s2m_pipe` on the side with the narrower beats.

    Ports:
        x: in, stream of a × ``element_bits`` bits.
        y: out, stream of b × ``element_bits`` bits.
    """
    kind = adapter_kind(*_elements(x, y, element_bits, 0))
    inner = Stream(min(x.width, y.width))
    if kind is AdapterKind.PACK:
        stage = s2m_pipe(domain, x, inner)
        adapter = width_adapter(domain, inner, y, element_bits=element_bits)
        return stage, adapter
    if kind is AdapterKind.UNPACK:
        adapter = width_adapter(domain, x, inner, element_bits=element_bits)
        stage = s2m_pipe(domain, inner, y)
        return stage, adapter
    return width_adapter(domain, x, y, element_bits=element_bits)


@block
def _frame_end(domain: ClockReset, fire: Bit, last: Bit, *, beats: int) -> Instances:
    """``last`` is high with every ``beats``-th ``fire``; never for 0."""
    if beats <= 1:
        each = beats == 1

        @always_comb
        def constant() -> None:
            last.next = fire and each

        return constant
    final = beats - 1
    count = Signal(intbv(0)[address_width(beats) :])
    place = counter(domain, fire, count, count=beats)

    @always_comb
    def out() -> None:
        last.next = count == final

    return place, out


@block
def pack_beats(domain: ClockReset, x: Stream, y: Stream, fire: Bit, last: Bit) -> Instances:
    """Beats of x side by side, a word when it is full or with the last beat of a frame; above that beat are zeros.

    Ports:
        x: in, stream of any width; its ready passes through one gate.
        y: out, stream of a multiple of that, 1 cycle after the last beat of a word, from registers.
        fire: out, 1 bit: a beat is taken at this edge.
        last: in, 1 bit, with ``fire``: it ends its frame.
    """
    width, ratio = x.width, y.width // x.width
    top = ratio - 1
    word = Signal(intbv(0)[y.width :])
    place = Signal(intbv(0)[address_width(ratio) :])
    valid, take = (Signal(bool(0)) for _ in range(2))

    @always_comb
    def accept() -> None:
        take.next = y.ready or not valid

    @always_comb
    def handshake() -> None:
        fire.next = x.valid and take

    @always_comb
    def out() -> None:
        x.ready.next = take
        y.valid.next = valid
        y.payload.next = word

    @always(domain.clk.posedge)
    def store() -> None:
        if fire:
            if place == 0:
                word.next = 0
            for i in range(ratio):
                if place == i:
                    word.next[bits_of(i, width)] = x.payload

    @always(domain.clk.posedge)
    def step() -> None:
        if fire:
            if last or place == top:
                place.next = 0
                valid.next = True
            else:
                place.next = place + 1
                valid.next = False
        elif y.ready:
            valid.next = False
        if domain.rst:
            place.next = 0
            valid.next = False

    return accept, handshake, out, store, step


@block
def _unpack(domain: ClockReset, x: Stream, y: Stream, *, ratio: int, beats: int, last_beats: int) -> Instances:
    """``ratio`` beats out of one; of every ``beats``-th (0: none) only the first ``last_beats``."""
    width = y.width
    wide = x.width
    word = Signal(intbv(0)[wide:])
    left = Signal(intbv(0, min=0, max=ratio + 1))
    take, fire, last = (Signal(bool(0)) for _ in range(3))
    frames = _frame_end(domain, fire, last, beats=beats)

    @always_comb
    def accept() -> None:
        take.next = left == 0 or (left == 1 and y.ready)

    @always_comb
    def handshake() -> None:
        fire.next = x.valid and take

    @always_comb
    def out() -> None:
        x.ready.next = take
        y.valid.next = left != 0
        y.payload.next = word[width:]

    @always(domain.clk.posedge)
    def step() -> None:
        if fire:
            word.next = x.payload
            if last:
                left.next = last_beats
            else:
                left.next = ratio
        elif y.ready and left != 0:
            word.next = word[wide:width]
            left.next = left - 1
        if domain.rst:
            left.next = 0

    return frames, accept, handshake, out, step


@block
def _gearbox(domain: ClockReset, x: Stream, y: Stream, *, element_bits: int, a: int, b: int, frame: int) -> Instances:
    """A shift register with a moving insertion point; all above the fill level is zero."""
    group = math.gcd(a, b, frame) if frame else math.gcd(a, b)
    # bits of a group, and everything below in groups
    bits = element_bits * group
    into, outof = a // group, b // group
    padding = -frame % b // group if frame else 0
    dropped = -frame % a // group if frame else 0
    capacity = into + outof + min(into, outof) + padding
    room = capacity - into - padding
    places = room + 1
    word = Signal(intbv(0)[capacity * bits :])
    rest, inserted = (Signal(intbv(0)[capacity * bits :]) for _ in range(2))
    beat = Signal(intbv(0)[x.width :])
    level = Signal(intbv(0, min=0, max=capacity + 1))
    # the level after a beat went, came, or both, where that is one: all at once, the choice is late
    size = len(level)
    less, more, same, more_last, same_last = (Signal(modbv(0)[size:]) for _ in range(5))
    ready, valid, fire, gone, last = (Signal(bool(0)) for _ in range(5))
    width_in, width_out, total = x.width, y.width, capacity * bits
    kept = width_in - dropped * bits
    step_last = into + padding - dropped
    step_same, step_same_last = into - outof, step_last - outof
    frames = _frame_end(domain, fire, last, beats=-(-frame // a))

    @always_comb
    def handshake() -> None:
        fire.next = x.valid and ready
        gone.next = y.ready and valid

    @always_comb
    def out() -> None:
        x.ready.next = ready
        y.valid.next = valid
        y.payload.next = word[width_out:]

    @always_comb
    def taken() -> None:
        if gone:
            rest.next = word[total:width_out]
        else:
            rest.next = word

    @always_comb
    def mask() -> None:
        beat.next = x.payload
        if last:
            beat.next = x.payload[kept:]

    @always_comb
    def insert() -> None:
        inserted.next = rest
        for i in range(places):
            if fire and ((gone and level == i + outof) or (not gone and level == i)):
                inserted.next[i * bits + width_in : i * bits] = beat

    @always_comb
    def judge() -> None:
        ready.next = level <= room
        valid.next = level >= outof

    @always_comb
    def count() -> None:
        less.next = level - outof
        more.next = level + into
        more_last.next = level + step_last
        same.next = level + step_same
        same_last.next = level + step_same_last

    @always(domain.clk.posedge)
    def step() -> None:
        word.next = inserted
        if fire and gone:
            if last:
                level.next = same_last
            else:
                level.next = same
        elif fire:
            if last:
                level.next = more_last
            else:
                level.next = more
        elif gone:
            level.next = less
        if domain.rst:
            level.next = 0
            word.next = 0

    return frames, handshake, out, taken, mask, insert, judge, count, step


def elements_per_word(element_bits: int, word_bits: int) -> int:
    """Elements that a word carries: as many whole ones as fit.  Raises ValueError if none does."""
    if not 1 <= element_bits <= word_bits:
        raise ValueError(f"an element of {element_bits} bits does not fit a link word of {word_bits} bits")
    return word_bits // element_bits


def wire_words(elements: int, element_bits: int, word_bits: int) -> int:
    """Words on the wire for one tensor of ``elements``; the last word is filled up."""
    return -(-elements // elements_per_word(element_bits, word_bits))
