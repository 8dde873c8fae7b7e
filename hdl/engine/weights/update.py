"""The circuit of `hdl.layers.wiring.update.Update`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.lanes import (
    WIDE_SCALE_LATENCY,
    add_lanes,
    always_on,
    delay_vector,
    join_lanes,
    part_lanes,
    register_lanes,
    scale_lanes,
    signed_lanes,
    split_lanes,
    subtract_lanes,
)
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line, requantise_lanes
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.random import HASH_LATENCY, hash32_pipeline, round_stochastically, stream_indices
from hdl.fixed import Fixed
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import queue
from hdl.tensor import Tile

# cycles, counted from that in which a gradient is accepted, in which a signal shows what belongs to it
MASTER_READ_AT = 2
MOMENTUM_DELAY = 0
MOMENTUM_SUM_AT = 8
MOMENTUM_AT = 10
MASTER_SUM_AT = 15
MASTER_AT = 17
VIEW_AT = 20
# a tensor takes at least so many cycles, so that its elements have been written when they are read again
PIPELINE = MASTER_AT + 1
# new weights that may be on their way; more than the latency of pipeline and queue, so that it never limits the rate
RESULTS = 32


@dataclass(frozen=True)
class UpdateShape:
    """Everything that the circuit is built from."""

    shape: tuple[int, ...]
    tile: Tile
    lanes: int
    # of the random bits
    key: int
    gradient: Fixed
    weight: Fixed
    momentum: Fixed
    master: Fixed
    # into the momentum's sum; into the master's sum
    momentum_factor: Scalar
    gradient_factor: Scalar
    decay_factor: Scalar
    rate_factor: Scalar
    # bits of the sums, and how many of them lie below the last bit of the result
    momentum_sum_bits: int
    master_sum_bits: int
    guard: int

    @property
    def beats(self) -> int:
        """Beats of a tensor."""
        return math.prod(self.shape) // self.lanes


@dataclass(frozen=True)
class OptimiserState:
    """What the optimiser keeps of the elements of a beat, ``lanes`` codes each, before and after their gradient."""

    # of `UpdateShape.master`, `MASTER_READ_AT` cycles after the gradient is accepted
    old_master: Bits
    # of `UpdateShape.momentum`, `MOMENTUM_DELAY` cycles after `old_master`
    old_momentum: Bits
    # of `UpdateShape.master`, `MASTER_AT` cycles after the gradient is accepted
    new_master: Bits
    # of `UpdateShape.momentum`, `MOMENTUM_AT` cycles after it
    new_momentum: Bits


@block
def update(
    domain: ClockReset,
    g: Stream,
    w: Stream,
    *,
    shape: UpdateShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """One beat a cycle from gradients to weights, `VIEW_AT` cycles and a queue later.

    The pipeline runs freely: a gradient is accepted only when there is room for its weight.  Costs two memories, and a
    lane: four products by constants, three wide adders, two stochastic roundings and a hash pipeline.

    Ports:
        g: in, stream of ``lanes`` codes of ``shape.gradient``; ready from registers.
        w: out, stream of ``lanes`` codes of ``shape.weight``; valid and payload from registers.
    """
    contents = images or {}
    lanes = shape.lanes
    fire, may = Signal(bool(0)), Signal(bool(0))
    place = Signal(intbv(0)[address_width(shape.beats) :])
    old_master, new_master = (Signal(intbv(0)[shape.master.width * lanes :]) for _ in range(2))
    old_momentum, new_momentum = (Signal(intbv(0)[shape.momentum.width * lanes :]) for _ in range(2))
    accept = gradient_gate(domain, g, may, fire, place, beats=shape.beats)
    master_words = state_memory(
        domain.clk,
        fire,
        place,
        old_master,
        new_master,
        depth=shape.beats,
        read_delay=0,
        write_delay=MASTER_AT,
        contents=contents.get("master"),
        public="master",
    )
    momentum_words = state_memory(
        domain.clk,
        fire,
        place,
        old_momentum,
        new_momentum,
        depth=shape.beats,
        read_delay=MOMENTUM_DELAY,
        write_delay=MOMENTUM_AT,
        contents=contents.get("momentum"),
        public="momentum",
    )
    state = OptimiserState(old_master, old_momentum, new_master, new_momentum)
    step = update_step(domain, fire, g.payload, state, w, shape=shape)
    places = result_places(domain, fire, w, may, places=RESULTS)
    return accept, master_words, momentum_words, step, places


@block
def update_outside(
    domain: ClockReset, g: Stream, state_in: Stream, w: Stream, state_out: Stream, *, shape: UpdateShape
) -> Instances:
    """As `update`, with state that comes with each gradient and leaves with each weight.

    An element of state is its master (low bits) and its momentum.

    Ports:
        g: in, stream of ``lanes`` codes of ``shape.gradient``.
        state_in: in, stream of ``lanes`` elements of state, taken together with ``g``.
        w: out, stream of ``lanes`` codes of ``shape.weight``; valid and payload from registers.
        state_out: out, stream as wide as ``state_in``; valid and payload from registers.
    """
    lanes = shape.lanes
    fire, room_w, room_state = (Signal(bool(0)) for _ in range(3))
    masters, old_master, new_master = (Signal(intbv(0)[shape.master.width * lanes :]) for _ in range(3))
    momenta, old_momentum, new_momentum, late_momentum = (
        Signal(intbv(0)[shape.momentum.width * lanes :]) for _ in range(4)
    )
    made = Stream(state_out.width)

    @always_comb
    def take_together() -> None:
        fire.next = g.valid and state_in.valid and room_w and room_state
        g.ready.next = state_in.valid and room_w and room_state
        state_in.ready.next = g.valid and room_w and room_state

    parts = part_state(state_in.payload, masters, momenta, shape=shape)
    read_master = delay_vector(domain.clk, masters, old_master, cycles=MASTER_READ_AT)
    read_momentum = delay_vector(domain.clk, momenta, old_momentum, cycles=MASTER_READ_AT + MOMENTUM_DELAY)
    state = OptimiserState(old_master, old_momentum, new_master, new_momentum)
    step = update_step(domain, fire, g.payload, state, w, shape=shape)
    wait = delay_vector(domain.clk, new_momentum, late_momentum, cycles=MASTER_AT - MOMENTUM_AT)
    whole = join_state(new_master, late_momentum, made.payload, shape=shape)
    mark = delay_line(domain.clk, fire, made.valid, cycles=MASTER_AT)
    hold = queue(domain, made, state_out, depth=RESULTS)
    places_w = result_places(domain, fire, w, room_w, places=RESULTS)
    places_state = result_places(domain, fire, state_out, room_state, places=RESULTS)
    return take_together, parts, read_master, read_momentum, step, wait, whole, mark, hold, places_w, places_state


@block
def part_state(state: Bits, masters: Bits, momenta: Bits, *, shape: UpdateShape) -> Instances:
    """Masters and momenta of all lanes of a beat of state.

    Ports:
        state: in, ``lanes`` elements of state.
        masters: out, ``lanes`` codes of ``shape.master``, in the same cycle.
        momenta: out, ``lanes`` codes of ``shape.momentum``, in the same cycle.
    """
    lanes, low, high = shape.lanes, shape.master.width, shape.momentum.width
    both = low + high

    @always_comb
    def part() -> None:
        for lane in range(lanes):
            masters.next[bits_of(lane, low)] = state[lane * both + low : lane * both]
            momenta.next[bits_of(lane, high)] = state[lane * both + both : lane * both + low]

    return part


@block
def join_state(masters: Bits, momenta: Bits, state: Bits, *, shape: UpdateShape) -> Instances:
    """The inverse of `part_state`.

    Ports:
        masters: in, ``lanes`` codes of ``shape.master``.
        momenta: in, ``lanes`` codes of ``shape.momentum``.
        state: out, ``lanes`` elements of state, in the same cycle.
    """
    lanes, low, high = shape.lanes, shape.master.width, shape.momentum.width
    both = low + high

    @always_comb
    def join() -> None:
        for lane in range(lanes):
            state.next[lane * both + low : lane * both] = masters[bits_of(lane, low)]
            state.next[lane * both + both : lane * both + low] = momenta[bits_of(lane, high)]

    return join


@block
def update_step(
    domain: ClockReset,
    fire: Bit,
    g: Bits,
    state: OptimiserState,
    w: Stream,
    *,
    shape: UpdateShape,
) -> Instances:
    """The arithmetic of a beat whose gradient is taken with ``fire``, and the queue of its weights.

    Ports:
        fire: in, 1 bit: a gradient is taken at this edge.
        g: in, ``lanes`` codes of ``shape.gradient``, with ``fire``.
        state: in and out; drives what is new.
        w: out, stream of ``lanes`` codes of ``shape.weight``, from a queue that takes
            them `VIEW_AT` cycles later.
    """
    high, low = (Signal(intbv(0)[16 * shape.lanes :]) for _ in range(2))
    made = Stream(w.width)
    draw = random_halves(domain, fire, high, low, shape=shape)
    momentum_path = next_momentum(domain.clk, g, state, high, shape=shape)
    master_path = next_master(domain.clk, state, low, made.payload, shape=shape)
    mark = delay_line(domain.clk, fire, made.valid, cycles=VIEW_AT)
    hold = queue(domain, made, w, depth=RESULTS)
    return draw, momentum_path, master_path, mark, hold


@block
def gradient_gate(domain: ClockReset, g: Stream, may: Bit, fire: Bit, place: Bits, *, beats: int) -> Instances:
    """Accepts a beat of ``g`` while ``may``; after the last beat of a tensor rests until all its state is written.

    Ports:
        g: in, stream of any width; its ready from registers.
        may: in, 1 bit, from registers.
        fire: out, 1 bit, combinational in ``may`` and ``g.valid``: a beat is taken at this edge.
        place: out, `address_width` ``(beats)`` bits, from a register: which beat of the tensor.
    """
    last = beats - 1
    rest = max(0, PIPELINE - beats)
    resting = Signal(intbv(0, min=0, max=rest + 2))

    @always_comb
    def handshake() -> None:
        g.ready.next = may and resting == 0
        fire.next = may and resting == 0 and g.valid

    @always(domain.clk.posedge)
    def count() -> None:
        if fire:
            if place == last:
                place.next = 0
                resting.next = rest
            else:
                place.next = place + 1
        elif resting != 0:
            resting.next = resting - 1
        if domain.rst:
            place.next = 0
            resting.next = 0

    return handshake, count


@block
def random_halves(domain: ClockReset, fire: Bit, high: Bits, low: Bits, *, shape: UpdateShape) -> Instances:
    """The random bits of each element: ``high`` with the momentum's sum, ``low`` with the master's.

    Ports:
        fire: in, 1 bit: a gradient is taken at this edge.
        high: out, ``16 * lanes`` bits, `MOMENTUM_SUM_AT` cycles later.
        low: out, ``16 * lanes`` bits, `MASTER_SUM_AT` cycles later.
    """
    lanes, last = shape.lanes, shape.beats - 1
    index, words, late = (Signal(intbv(0)[32 * lanes :]) for _ in range(3))
    low_now = Signal(intbv(0)[16 * lanes :])
    step = Signal(intbv(0)[32:])
    place = Signal(intbv(0)[address_width(shape.beats) :])
    enable = Signal(bool(1))
    indices = stream_indices(domain, fire, index, shape=shape.shape, tile=shape.tile, lanes=lanes)
    pipeline = hash32_pipeline(domain.clk, enable, index, step, shape.key, words)
    wait = delay_vector(domain.clk, words, late, cycles=MOMENTUM_SUM_AT - HASH_LATENCY)
    wait_low = delay_vector(domain.clk, low_now, low, cycles=MASTER_SUM_AT - MOMENTUM_SUM_AT)

    @always(domain.clk.posedge)
    def count_batches() -> None:
        if fire:
            if place == last:
                place.next = 0
                if step == 0xFFFFFFFF:
                    step.next = 0
                else:
                    step.next = step + 1
            else:
                place.next = place + 1
        if domain.rst:
            place.next = 0
            step.next = 0

    @always_comb
    def halve() -> None:
        for lane in range(lanes):
            high.next[bits_of(lane, 16)] = late[lane * 32 + 32 : lane * 32 + 16]
            low_now.next[bits_of(lane, 16)] = late[lane * 32 + 16 : lane * 32]

    keep = always_on(domain.clk, enable)
    return indices, pipeline, wait, wait_low, count_batches, halve, keep


@block
def state_memory(
    clk: Clock,
    fire: Bit,
    place: Bits,
    old: Bits,
    new: Bits,
    *,
    depth: int,
    read_delay: int,
    write_delay: int,
    contents: Sequence[int] | None,
    public: str,
) -> Instances:
    """A word of state a beat: read ``read_delay`` cycles after ``fire`` (and 2 more to ``old``), written after more.

    Ports:
        fire: in, 1 bit.
        place: in, `address_width` ``(depth)`` bits, with ``fire``.
        old: out, a word of any width, ``read_delay`` + 2 cycles later.
        new: in, as wide as ``old``, ``write_delay`` cycles after ``fire``.
    """
    read, write = Signal(bool(0)), Signal(bool(0))
    read_at, write_at = (Signal(intbv(0)[len(place) :]) for _ in range(2))
    store = simple_dual_port(
        clk,
        write,
        write_at,
        new,
        read,
        read_at,
        old,
        depth=depth,
        width=len(old),
        contents=contents,
        output_register=True,
        image=public,
    )
    wait_read = delay_vector(clk, fire, read, cycles=read_delay)
    wait_read_at = delay_vector(clk, place, read_at, cycles=read_delay)
    wait_write = delay_vector(clk, read, write, cycles=write_delay - read_delay)
    wait_write_at = delay_vector(clk, read_at, write_at, cycles=write_delay - read_delay)
    return store, wait_read, wait_read_at, wait_write, wait_write_at


@block
def next_momentum(clk: Clock, g: Bits, state: OptimiserState, random: Bits, *, shape: UpdateShape) -> Instances:
    """``momentum = round(factor * momentum + g + decay * w)``.

    Ports:
        g: in, ``lanes`` codes of ``shape.gradient``.
        state: in and out; takes what is old, drives ``new_momentum``.
        random: in, ``16 * lanes`` bits, `MOMENTUM_SUM_AT` cycles later.
    """
    lanes, bits = shape.lanes, shape.momentum_sum_bits
    enable = Signal(bool(1))
    gradient = Signal(intbv(0)[len(g) :])
    gradients, olds = signed_lanes(lanes, shape.gradient.width), signed_lanes(lanes, shape.momentum.width)
    kept, fresh, sums, totals = (signed_lanes(lanes, bits) for _ in range(4))
    total = Signal(intbv(0)[bits * lanes :])
    wait = delay_vector(clk, g, gradient, cycles=MASTER_READ_AT + MOMENTUM_DELAY)
    split = split_lanes(clk, gradient, gradients, width=shape.gradient.width, signed=shape.gradient.signed)
    split_old = split_lanes(clk, state.old_momentum, olds, width=shape.momentum.width)
    scale = scale_lanes(clk, olds, kept, scalar=shape.momentum_factor, cycles=WIDE_SCALE_LATENCY)
    align = scale_lanes(clk, gradients, fresh, scalar=shape.gradient_factor, cycles=WIDE_SCALE_LATENCY)
    add = add_lanes(clk, kept, fresh, sums)
    if shape.decay_factor.mantissa:
        decays = signed_lanes(lanes, bits)
        decay = weight_decay(clk, state.old_master, decays, shape=shape)
        finish = add_lanes(clk, sums, decays, totals)
    else:
        decay = []
        finish = register_lanes(clk, sums, totals)
    join = join_lanes(totals, total)
    rounding = round_stochastically(
        clk, enable, total, random, state.new_momentum, lanes=lanes, shift=shape.guard, target=shape.momentum
    )
    keep = always_on(clk, enable)
    return wait, split, split_old, scale, align, add, decay, finish, join, rounding, keep


@block
def weight_decay(clk: Clock, master: Bits, decays: Sequence[Bits], *, shape: UpdateShape) -> Instances:
    """``decays = factor * w`` with w as engines see it.

    Ports:
        master: in, ``lanes`` codes of ``shape.master``.
        decays: out, signed signals of ``shape.momentum_sum_bits`` bits, 5 cycles later.
    """
    lanes = shape.lanes
    masters, weights = signed_lanes(lanes, shape.master.width), signed_lanes(lanes, shape.weight.width)
    view = Signal(intbv(0)[shape.weight.width * lanes :])
    part = part_lanes(master, masters, width=shape.master.width)
    shift = shape.master.fraction_bits - shape.weight.fraction_bits
    rounding = requantise_lanes(clk, masters, view, shift=shift, target=shape.weight)
    split_view = split_lanes(clk, view, weights, width=shape.weight.width, signed=shape.weight.signed)
    scale = scale_lanes(clk, weights, decays, scalar=shape.decay_factor)
    return part, rounding, split_view, scale


@block
def next_master(clk: Clock, state: OptimiserState, random: Bits, view: Bits, *, shape: UpdateShape) -> Instances:
    """``master = round(master - rate * momentum)``, and the weights that engines see of it.

    Ports:
        state: in and out; takes ``old_master`` and ``new_momentum``, drives ``new_master``.
        random: in, ``16 * lanes`` bits, `MASTER_SUM_AT` cycles after the gradient is accepted.
        view: out, ``lanes`` codes of ``shape.weight``, `VIEW_AT` cycles after it.
    """
    lanes, bits = shape.lanes, shape.master_sum_bits
    enable = Signal(bool(1))
    late = Signal(intbv(0)[len(state.old_master) :])
    momenta, olds = signed_lanes(lanes, shape.momentum.width), signed_lanes(lanes, shape.master.width)
    steps, aligned, totals = (signed_lanes(lanes, bits) for _ in range(3))
    total = Signal(intbv(0)[bits * lanes :])
    wait = delay_vector(clk, state.old_master, late, cycles=MOMENTUM_AT - MASTER_READ_AT)
    split = split_lanes(clk, state.new_momentum, momenta, width=shape.momentum.width)
    split_old = split_lanes(clk, late, olds, width=shape.master.width)
    scale = scale_lanes(clk, momenta, steps, scalar=shape.rate_factor, cycles=WIDE_SCALE_LATENCY)
    align = scale_lanes(clk, olds, aligned, scalar=Scalar(1, -shape.guard), cycles=WIDE_SCALE_LATENCY)
    subtract = subtract_lanes(clk, aligned, steps, totals)
    join = join_lanes(totals, total)
    rounding = round_stochastically(
        clk, enable, total, random, state.new_master, lanes=lanes, shift=shape.guard, target=shape.master
    )
    news = signed_lanes(lanes, shape.master.width)
    split_new = split_lanes(clk, state.new_master, news, width=shape.master.width)
    shift = shape.master.fraction_bits - shape.weight.fraction_bits
    see = requantise_lanes(clk, news, view, shift=shift, target=shape.weight)
    keep = always_on(clk, enable)
    return wait, split, split_old, scale, align, subtract, join, rounding, split_new, see, keep
