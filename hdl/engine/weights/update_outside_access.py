"""The circuit of `hdl.layers.wiring.update.Update` whose state lies outside and is loaded and dumped by streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.places import result_places
from hdl.engine.weights.access import Batches, Begin
from hdl.engine.weights.rate import RateState
from hdl.engine.weights.update import (
    PIPELINE,
    Beginning,
    OptimiserState,
    UpdateShape,
    outside_state,
    state_places,
    tensor_ends,
    update_step,
)
from hdl.engine.weights.update_access import state_words, training_limits
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import queue


@block
def update_outside_accessed(
    domain: ClockReset,
    g: Stream,
    state_in: Stream,
    w: Stream,
    state_out: Stream,
    load: Stream,
    dump: Stream,
    *,
    shape: UpdateShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """As `hdl.engine.weights.update.update_outside`, with state that is loaded; nothing stands outside before.

    What is loaded goes out like state of a batch, and its weights down ``w``.  From the second load on a beat of the
    state before is taken, and forgotten, with every beat that is loaded.  What is dumped is taken beat by beat, and
    goes out again.  Costs a link of the chain, what packs and unpacks words, a multiplexer of a beat, and counters.

    Ports:
        g: in, stream of ``lanes`` codes of ``shape.gradient``.
        state_in: in, stream of ``lanes`` elements of state: what went out, in that order.
        w: out, stream of ``lanes`` codes of ``shape.weight``; valid and payload from registers.
        state_out: out, stream as wide as ``state_in``; valid and payload from registers.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    lanes, beats = shape.lanes, shape.beats
    low, both = shape.master.width, shape.master.width + shape.momentum.width
    begin, batches = Begin(), Batches()
    fire, opened, may, room_w, room_state, shows, takes = (Signal(bool(0)) for _ in range(7))
    old_master, new_master, master = (Signal(intbv(0)[low * lanes :]) for _ in range(3))
    old_momentum, new_momentum = (Signal(intbv(0)[shape.momentum.width * lanes :]) for _ in range(2))
    loaded, saved, made, leaving = (Stream(state_in.width) for _ in range(4))
    ring = RingState()
    state = OptimiserState(old_master, old_momentum, new_master, new_momentum)
    rate = RateState(shape.rates) if shape.rates else None
    beginning = Beginning(begin.domain(domain), begin.batches, master, ring.writes, rate)
    link = state_words(domain, load, dump, loaded, saved, begin, batches, rate, shape=shape)
    limits = training_limits(domain, batches, fire, may, loaded, opened, beats=beats, pipeline=PIPELINE + shape.later)
    known = ring_state(domain, batches.giving, ring, beats=beats)
    way = outside_state(domain.clk, fire, state_in.payload, state, made, shape=shape)
    rates = (images or {}).get("rates")
    step = update_step(domain, fire, g.payload, state, w, shape=shape, rates=rates, beginning=beginning)
    hold = queue(domain, leaving, state_out, depth=shape.results)
    places_w = result_places(domain, shows, w, room_w, places=shape.results)
    places_state = state_places(domain, takes, state_out, room_state, shape=shape)

    @always_comb
    def train() -> None:
        may.next = room_w and room_state
        fire.next = opened and g.valid and state_in.valid
        g.ready.next = opened and state_in.valid

    @always_comb
    def take() -> None:
        loaded.ready.next = may and (state_in.valid or not ring.filled)
        ring.writes.next = loaded.valid and may and (state_in.valid or not ring.filled)

    @always_comb
    def give() -> None:
        saved.valid.next = ring.wanted and room_state and state_in.valid
        saved.payload.next = state_in.payload
        ring.copies.next = ring.wanted and room_state and state_in.valid and saved.ready

    # one of the three at a time
    @always_comb
    def answer() -> None:
        state_in.ready.next = (
            (opened and g.valid)
            or (ring.filled and may and loaded.valid)
            or (ring.wanted and room_state and saved.ready)
        )  # fmt: skip

    @always_comb
    def reserve() -> None:
        shows.next = fire or ring.writes
        takes.next = fire or ring.writes or ring.copies

    @always_comb
    def leave() -> None:
        leaving.valid.next = made.valid or ring.writes or ring.copies
        if ring.writes:
            leaving.payload.next = loaded.payload
        elif ring.copies:
            leaving.payload.next = state_in.payload
        else:
            leaving.payload.next = made.payload

    @always_comb
    def show() -> None:
        for lane in range(lanes):
            if ring.writes:
                master.next[bits_of(lane, low)] = loaded.payload[lane * both + low : lane * both]
            else:
                master.next[bits_of(lane, low)] = new_master[bits_of(lane, low)]

    parts = link, limits, known, way, step, hold, places_w, places_state
    return parts, train, take, give, answer, reserve, leave, show


class RingState:
    """What an update with state outside does beside training."""

    def __init__(self) -> None:
        # a beat that is loaded goes out at this edge; one that came back goes out as it is
        self.writes: Bit = Signal(bool(0))
        self.copies: Bit = Signal(bool(0))
        # from registers: state is outside; a beat of it is wanted for a dump
        self.filled: Bit = Signal(bool(0))
        self.wanted: Bit = Signal(bool(0))


@block
def ring_state(domain: ClockReset, giving: Bit, ring: RingState, *, beats: int) -> Instances:
    """Whether state lies outside, and how much of it is still to be dumped.

    Ports:
        giving: in, 1 bit, from a register: state is wanted.
        ring: in and out; takes ``writes`` and ``copies``, drives ``filled`` and ``wanted``.
    """
    ends = Signal(bool(0))
    copied = Signal(intbv(0, min=0, max=beats + 1))
    mark = tensor_ends(domain, ring.writes, ends, beats=beats)

    @always_comb
    def want() -> None:
        ring.wanted.next = giving and copied != beats

    @always(domain.clk.posedge)
    def count() -> None:
        if ends:
            ring.filled.next = True
        if ring.copies:
            copied.next = copied + 1
        elif not giving:
            copied.next = 0
        if domain.rst:
            ring.filled.next = False
            copied.next = 0

    return mark, want, count
