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
    constant_multipliers,
    delay_vector,
    join_lanes,
    part_lanes,
    register_lanes,
    scale_lanes,
    signed_lanes,
    split_lanes,
    started,
    subtract_lanes,
)
from hdl.engine.arithmetic.mac import signed_signal
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line, requantise_lanes
from hdl.engine.arithmetic.scalar import MANTISSA_BITS, Scalar
from hdl.engine.random import HASH_LATENCY, hash32_pipeline, round_stochastically, stream_indices
from hdl.engine.weights.rate import LEAST_CYCLES, RateLines, RateState, scheduled_rate
from hdl.fixed import Fixed
from hdl.memory import address_width, simple_dual_port
from hdl.random_bits import WORD
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter, queue
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
# cycles that a momentum which looks ahead takes longer
LOOK_AHEAD_CYCLES = 7
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
    # largest magnitude of a gradient that is taken as it is
    clip: int | None = None
    # whether the momentum looks ahead
    nesterov: bool = False
    # what takes the place of `rate_factor`, if that depends on the batch
    rates: RateLines | None = None
    # whether products with constants are made by multipliers
    multiplied: bool = False
    # batches of an earlier training
    begun: int = 0

    @property
    def multipliers(self) -> int:
        """Those that `multiplied` takes, a lane."""
        momentum = constant_multipliers(self.momentum.width, self.momentum_factor.mantissa)
        rate = 0 if self.rates else constant_multipliers(self.momentum.width, self.rate_factor.mantissa)
        decay = constant_multipliers(self.weight.width, self.decay_factor.mantissa)
        return (2 if self.nesterov else 1) * momentum + rate + decay

    @property
    def beats(self) -> int:
        """Beats of a tensor."""
        return (math.prod(self.shape) + self.tile.padding(self.shape)) // self.lanes

    @property
    def later(self) -> int:
        """Cycles by which everything behind the momentum is later than the constants above say."""
        return LOOK_AHEAD_CYCLES if self.nesterov else 0

    @property
    def results(self) -> int:
        """See `RESULTS`."""
        return RESULTS + 2 * self.later


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
    accept = gradient_gate(domain, g, may, fire, place, beats=shape.beats, pipeline=PIPELINE + shape.later)
    master_words = state_memory(
        domain.clk,
        fire,
        place,
        old_master,
        new_master,
        depth=shape.beats,
        read_delay=0,
        write_delay=MASTER_AT + shape.later,
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
    step = update_step(domain, fire, g.payload, state, w, shape=shape, rates=contents.get("rates"))
    places = result_places(domain, fire, w, may, places=shape.results)
    return accept, master_words, momentum_words, step, places


@block
def update_outside(
    domain: ClockReset,
    g: Stream,
    state_in: Stream,
    w: Stream,
    state_out: Stream,
    *,
    shape: UpdateShape,
    images: Mapping[str, Sequence[int]] | None = None,
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
    old_master, new_master = (Signal(intbv(0)[shape.master.width * lanes :]) for _ in range(2))
    old_momentum, new_momentum = (Signal(intbv(0)[shape.momentum.width * lanes :]) for _ in range(2))
    made = Stream(state_out.width)

    @always_comb
    def take_together() -> None:
        fire.next = g.valid and state_in.valid and room_w and room_state
        g.ready.next = state_in.valid and room_w and room_state
        state_in.ready.next = g.valid and room_w and room_state

    state = OptimiserState(old_master, old_momentum, new_master, new_momentum)
    way = outside_state(domain.clk, fire, state_in.payload, state, made, shape=shape)
    step = update_step(domain, fire, g.payload, state, w, shape=shape, rates=(images or {}).get("rates"))
    hold = queue(domain, made, state_out, depth=shape.results)
    places_w = result_places(domain, fire, w, room_w, places=shape.results)
    places_state = state_places(domain, fire, state_out, room_state, shape=shape)
    return take_together, way, step, hold, places_w, places_state


@block
def outside_state(
    clk: Clock, fire: Bit, came: Bits, state: OptimiserState, made: Stream, *, shape: UpdateShape
) -> Instances:
    """The state of a beat from where it comes in to where it is new.

    Ports:
        fire: in, 1 bit: a gradient is taken at this edge.
        came: in, ``lanes`` elements of state, with ``fire``.
        state: in and out; drives what is old, takes what is new.
        made: out, stream of ``lanes`` elements of state, which can't wait: `MASTER_AT` + ``shape.later`` cycles later.
    """
    masters = Signal(intbv(0)[len(state.old_master) :])
    momenta, late_momentum = (Signal(intbv(0)[len(state.old_momentum) :]) for _ in range(2))
    parts = part_state(came, masters, momenta, shape=shape)
    read_master = delay_vector(clk, masters, state.old_master, cycles=MASTER_READ_AT)
    read_momentum = delay_vector(clk, momenta, state.old_momentum, cycles=MASTER_READ_AT + MOMENTUM_DELAY)
    wait = delay_vector(clk, state.new_momentum, late_momentum, cycles=MASTER_AT + shape.later - MOMENTUM_AT)
    whole = join_state(state.new_master, late_momentum, made.payload, shape=shape)
    mark = delay_line(clk, fire, made.valid, cycles=MASTER_AT + shape.later)
    return parts, read_master, read_momentum, wait, whole, mark


@block
def state_places(domain: ClockReset, take: Bit, state_out: Stream, room: Bit, *, shape: UpdateShape) -> Instances:
    """`result_places` of state that goes outside, with a rest between tensors where the rate follows a schedule.

    Ports:
        take: in, 1 bit: a beat is taken at this edge.
        state_out: in, stream of any width, of which places are counted, watched.
        room: out, 1 bit, from registers.
    """
    if shape.rates is None:
        return result_places(domain, take, state_out, room, places=shape.results)
    return rested_places(domain, take, state_out, room, shape=shape)


@block
def rested_places(domain: ClockReset, fire: Bit, state_out: Stream, room: Bit, *, shape: UpdateShape) -> Instances:
    """`result_places` with a rest between tensors, so that each takes `LEAST_CYCLES`.

    Ports:
        fire: in, 1 bit: a beat is taken at this edge.
        state_out: in, stream of any width, of which places are counted, watched.
        room: out, 1 bit, from registers: there is a place, and the last tensor began long enough ago.
    """
    rest = max(0, LEAST_CYCLES - shape.beats)
    ends, place_free = Signal(bool(0)), Signal(bool(0))
    resting = Signal(intbv(0, min=0, max=rest + 2))
    places = result_places(domain, fire, state_out, place_free, places=shape.results)
    mark = tensor_ends(domain, fire, ends, beats=shape.beats)

    @always_comb
    def both() -> None:
        room.next = place_free and resting == 0

    @always(domain.clk.posedge)
    def count() -> None:
        if ends:
            resting.next = rest
        elif resting != 0:
            resting.next = resting - 1
        if domain.rst:
            resting.next = 0

    return places, mark, both, count


@block
def tensor_ends(domain: ClockReset, fire: Bit, ends: Bit, *, beats: int) -> Instances:
    """Which beat is a tensor's last.

    Ports:
        fire: in, 1 bit: a beat is taken at this edge.
        ends: out, 1 bit, combinational: it is the last one.
    """
    last = beats - 1
    place = Signal(intbv(0)[address_width(beats) :])
    counting = counter(domain, fire, place, count=beats)

    @always_comb
    def decide() -> None:
        ends.next = fire and place == last

    return decide, counting


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


@dataclass(frozen=True)
class Beginning:
    """What an update begins with, where that comes by a stream."""

    # in reset until it has come; random bits are of no batch before
    domain: ClockReset
    # batches behind it, `WORD` bits, from a register
    batches: Bits
    # of `UpdateShape.master`, which becomes weights in place of `OptimiserState.new_master`
    masters: Bits
    # 1 bit: masters that are loaded are there
    loaded: Bit
    # of a scheduled rate; None where the rate is constant
    rate: RateState | None = None


@block
def update_step(
    domain: ClockReset,
    fire: Bit,
    g: Bits,
    state: OptimiserState,
    w: Stream,
    *,
    shape: UpdateShape,
    rates: Sequence[int] | None = None,
    beginning: Beginning | None = None,
) -> Instances:
    """The arithmetic of a beat whose gradient is taken with ``fire``, and the queue of its weights.

    Ports:
        fire: in, 1 bit: a gradient is taken at this edge.
        g: in, ``lanes`` codes of ``shape.gradient``, with ``fire``.
        state: in and out; drives what is new.
        beginning: in, all of it; None: batches are those of ``shape``, and masters the new ones.
        w: out, stream of ``lanes`` codes of ``shape.weight``, from a queue that takes
            them `VIEW_AT` + ``shape.later`` cycles later.

    Args:
        rates: the image of `scheduled_rate`, if there is one.
    """
    high, low = (Signal(intbv(0)[16 * shape.lanes :]) for _ in range(2))
    made = Stream(w.width)
    if beginning is None:
        draw = random_halves(domain, fire, high, low, shape=shape)
    else:
        draw = random_halves(beginning.domain, fire, high, low, shape=shape, batches=beginning.batches)
    ahead = Signal(intbv(0)[len(state.new_momentum) :]) if shape.nesterov else None
    mantissa = None if shape.rates is None else signed_signal(MANTISSA_BITS + 1)
    ready = Signal(bool(0)) if shape.multiplied else None
    begin = [] if ready is None else started(domain, ready)
    momentum_path = next_momentum(domain.clk, g, state, high, ahead, ready, shape=shape)
    masters = None if beginning is None else beginning.masters
    master_path = next_master(domain.clk, state, low, made.payload, ahead, mantissa, ready, masters, shape=shape)
    if beginning is None:
        mark = delay_line(domain.clk, fire, made.valid, cycles=VIEW_AT + shape.later)
    else:
        mark = mark_either(domain.clk, fire, beginning.loaded, made.valid, shape=shape)
    hold = queue(domain, made, w, depth=shape.results)
    parts = draw, begin, momentum_path, master_path, mark, hold
    if mantissa is None:
        return parts
    rate = None if beginning is None else beginning.rate
    return parts, rate_in_time(domain, fire, mantissa, rate, shape=shape, rates=rates)


@block
def mark_either(clk: Clock, fire: Bit, loaded: Bit, made: Bit, *, shape: UpdateShape) -> Instances:
    """When weights are made, of gradients or of masters that are loaded.

    Ports:
        fire: in, 1 bit: a gradient is taken at this edge.
        loaded: in, 1 bit: masters are loaded at this edge.
        made: out, 1 bit: weights are there.
    """
    stepped, seen = Signal(bool(0)), Signal(bool(0))
    wait = delay_line(clk, fire, stepped, cycles=VIEW_AT + shape.later)
    wait_loaded = delay_line(clk, loaded, seen, cycles=VIEW_AT - MASTER_AT)

    @always_comb
    def either() -> None:
        made.next = stepped or seen

    return wait, wait_loaded, either


@block
def rate_in_time(
    domain: ClockReset,
    fire: Bit,
    mantissa: Bits,
    state: RateState | None = None,
    *,
    shape: UpdateShape,
    rates: Sequence[int] | None,
) -> Instances:
    """The learning rate's mantissa as the momentum of a beat meets it.

    Ports:
        fire: in, 1 bit: a gradient is taken at this edge.
        mantissa: out, as of `scheduled_rate`, for that gradient `MOMENTUM_AT` + 1 + ``shape.later`` cycles later.
        state: in and out, as of `scheduled_rate`.
    """
    assert shape.rates is not None
    ends, turn = Signal(bool(0)), Signal(bool(0))
    mark = tensor_ends(domain, fire, ends, beats=shape.beats)
    wait = delay_line(domain.clk, ends, turn, cycles=MOMENTUM_AT + shape.later)
    rate = scheduled_rate(domain, turn, mantissa, lines=shape.rates, begun=shape.begun, contents=rates, state=state)
    return mark, wait, rate


@block
def gradient_gate(
    domain: ClockReset, g: Stream, may: Bit, fire: Bit, place: Bits, *, beats: int, pipeline: int
) -> Instances:
    """Accepts a beat of ``g`` while ``may``; after the last beat of a tensor rests until all its state is written.

    Ports:
        g: in, stream of any width; its ready from registers.
        may: in, 1 bit, from registers.
        fire: out, 1 bit, combinational in ``may`` and ``g.valid``: a beat is taken at this edge.
        place: out, `address_width` ``(beats)`` bits, from a register: which beat of the tensor.

    Args:
        pipeline: cycles that a tensor takes at least.
    """
    last = beats - 1
    rest = max(0, pipeline - beats)
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
def random_halves(
    domain: ClockReset, fire: Bit, high: Bits, low: Bits, *, shape: UpdateShape, batches: Bits | None = None
) -> Instances:
    """The random bits of each element: ``high`` with the momentum's sum, ``low`` with the master's.

    Ports:
        fire: in, 1 bit: a gradient is taken at this edge.
        high: out, ``16 * lanes`` bits, `MOMENTUM_SUM_AT` cycles later.
        low: out, ``16 * lanes`` bits, `MASTER_SUM_AT` + ``shape.later`` cycles later.
        batches: in, `WORD` bits: batches behind it, in reset; None: ``shape.begun``.
    """
    lanes, last = shape.lanes, shape.beats - 1
    begun = shape.begun % (1 << WORD) if batches is None else batches
    index, words, late = (Signal(intbv(0)[32 * lanes :]) for _ in range(3))
    low_now = Signal(intbv(0)[16 * lanes :])
    step = Signal(intbv(0)[32:])
    place = Signal(intbv(0)[address_width(shape.beats) :])
    enable = Signal(bool(1))
    indices = stream_indices(domain, fire, index, shape=shape.shape, tile=shape.tile, lanes=lanes)
    pipeline = hash32_pipeline(domain.clk, enable, index, step, shape.key, words)
    wait = delay_vector(domain.clk, words, late, cycles=MOMENTUM_SUM_AT - HASH_LATENCY)
    wait_low = delay_vector(domain.clk, low_now, low, cycles=MASTER_SUM_AT + shape.later - MOMENTUM_SUM_AT)

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
            step.next = begun

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
def next_momentum(
    clk: Clock,
    g: Bits,
    state: OptimiserState,
    random: Bits,
    ahead: Bits | None,
    ready: Bit | None,
    *,
    shape: UpdateShape,
) -> Instances:
    """``momentum = round(factor * momentum + g + decay * w)``, and where it looks ahead, that once more of the result.

    Ports:
        g: in, ``lanes`` codes of ``shape.gradient``.
        state: in and out; takes what is old, drives ``new_momentum``.
        random: in, ``16 * lanes`` bits, `MOMENTUM_SUM_AT` cycles later.
        ahead: out, ``lanes`` codes of ``shape.momentum``, `MOMENTUM_AT` + `LOOK_AHEAD_CYCLES` cycles later; None where
            the momentum does not look ahead.
        ready: in, as of `hdl.engine.arithmetic.lanes.multiply_constant`.
    """
    lanes, bits = shape.lanes, shape.momentum_sum_bits
    enable = Signal(bool(1))
    gradient = Signal(intbv(0)[len(g) :])
    gradients, olds = signed_lanes(lanes, shape.gradient.width), signed_lanes(lanes, shape.momentum.width)
    kept, fresh, sums, totals = (signed_lanes(lanes, bits) for _ in range(4))
    total = Signal(intbv(0)[bits * lanes :])
    if shape.clip is None:
        wait = delay_vector(clk, g, gradient, cycles=MASTER_READ_AT + MOMENTUM_DELAY)
    else:
        wait = clipped_gradients(clk, g, gradient, shape=shape, cycles=MASTER_READ_AT + MOMENTUM_DELAY)
    split = split_lanes(clk, gradient, gradients, width=shape.gradient.width, signed=shape.gradient.signed)
    split_old = split_lanes(clk, state.old_momentum, olds, width=shape.momentum.width)
    scale = scale_lanes(clk, olds, kept, scalar=shape.momentum_factor, cycles=WIDE_SCALE_LATENCY, ready=ready)
    align = scale_lanes(clk, gradients, fresh, scalar=shape.gradient_factor, cycles=WIDE_SCALE_LATENCY)
    add = add_lanes(clk, kept, fresh, sums)
    if shape.decay_factor.mantissa:
        decays = signed_lanes(lanes, bits)
        decay = weight_decay(clk, state.old_master, decays, ready, shape=shape)
        finish = add_lanes(clk, sums, decays, totals)
    else:
        decays, decay = None, []
        finish = register_lanes(clk, sums, totals)
    join = join_lanes(totals, total)
    rounding = round_stochastically(
        clk, enable, total, random, state.new_momentum, lanes=lanes, shift=shape.guard, target=shape.momentum
    )
    keep = always_on(clk, enable)
    parts = wait, split, split_old, scale, align, add, decay, finish, join, rounding, keep
    if ahead is None:
        return parts
    return parts, look_ahead(clk, state.new_momentum, fresh, decays, ahead, ready, shape=shape)


@block
def clipped_gradients(clk: Clock, g: Bits, clipped: Bits, *, shape: UpdateShape, cycles: int) -> Instances:
    """Gradients within ``shape.clip``, saturated.

    Ports:
        g: in, ``lanes`` codes of ``shape.gradient``.
        clipped: out, likewise, ``cycles`` later.
    """
    lanes, width, limit = shape.lanes, shape.gradient.width, shape.clip or 0
    bound, lowest = 1 << (width - 1), -limit & ((1 << width) - 1)
    early = Signal(intbv(0)[len(g) :])
    wait = delay_vector(clk, early, clipped, cycles=cycles - 1)

    @always(clk.posedge)
    def clip() -> None:
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            code[:] = g[bits_of(lane, width)].signed()
            if code > limit:
                early.next[bits_of(lane, width)] = limit
            elif code < -limit:
                early.next[bits_of(lane, width)] = lowest
            else:
                early.next[bits_of(lane, width)] = g[bits_of(lane, width)]

    return wait, clip


@block
def look_ahead(
    clk: Clock,
    momentum: Bits,
    fresh: Sequence[Bits],
    decays: Sequence[Bits] | None,
    ahead: Bits,
    ready: Bit | None,
    *,
    shape: UpdateShape,
) -> Instances:
    """``ahead = factor * momentum + g + decay * w``, rounded to nearest.

    Ports:
        momentum: in, ``lanes`` codes of ``shape.momentum``.
        fresh: in, lanes of g, 4 cycles before ``momentum``.
        decays: in, lanes of the decay, 3 cycles before it, or None.
        ahead: out, ``lanes`` codes of ``shape.momentum``, `LOOK_AHEAD_CYCLES` after it.
        ready: in, as of `hdl.engine.arithmetic.lanes.multiply_constant`.
    """
    lanes, bits = shape.lanes, shape.momentum_sum_bits
    momenta = signed_lanes(lanes, shape.momentum.width)
    later, pushed, waited, kept, totals = (signed_lanes(lanes, bits) for _ in range(5))
    flat, late = (Signal(intbv(0)[bits * lanes :]) for _ in range(2))
    settle = register_lanes(clk, fresh, later)
    push = register_lanes(clk, later, pushed) if decays is None else add_lanes(clk, later, decays, pushed)
    join = join_lanes(pushed, flat)
    # what is pushed is there 2 cycles before the momentum, and wanted 4 after it
    wait = delay_vector(clk, flat, late, cycles=2 + 1 + WIDE_SCALE_LATENCY)
    part = part_lanes(late, waited, width=bits)
    split = split_lanes(clk, momentum, momenta, width=shape.momentum.width)
    scale = scale_lanes(clk, momenta, kept, scalar=shape.momentum_factor, cycles=WIDE_SCALE_LATENCY, ready=ready)
    add = add_lanes(clk, kept, waited, totals)
    rounding = requantise_lanes(clk, totals, ahead, shift=shape.guard, target=shape.momentum)
    return settle, push, join, wait, part, split, scale, add, rounding


@block
def weight_decay(
    clk: Clock, master: Bits, decays: Sequence[Bits], ready: Bit | None, *, shape: UpdateShape
) -> Instances:
    """``decays = factor * w`` with w as engines see it.

    Ports:
        master: in, ``lanes`` codes of ``shape.master``.
        decays: out, signed signals of ``shape.momentum_sum_bits`` bits, 5 cycles later.
        ready: in, as of `hdl.engine.arithmetic.lanes.multiply_constant`.
    """
    lanes = shape.lanes
    masters, weights = signed_lanes(lanes, shape.master.width), signed_lanes(lanes, shape.weight.width)
    view = Signal(intbv(0)[shape.weight.width * lanes :])
    part = part_lanes(master, masters, width=shape.master.width)
    shift = shape.master.fraction_bits - shape.weight.fraction_bits
    rounding = requantise_lanes(clk, masters, view, shift=shift, target=shape.weight)
    split_view = split_lanes(clk, view, weights, width=shape.weight.width, signed=shape.weight.signed)
    scale = scale_lanes(clk, weights, decays, scalar=shape.decay_factor, ready=ready)
    return part, rounding, split_view, scale


@block
def next_master(
    clk: Clock,
    state: OptimiserState,
    random: Bits,
    view: Bits,
    ahead: Bits | None,
    mantissa: Bits | None,
    ready: Bit | None,
    shown: Bits | None = None,
    *,
    shape: UpdateShape,
) -> Instances:
    """``master = round(master - rate * momentum)``, and the weights that engines see of it.

    All but ``mantissa`` is later by ``shape.later``.

    Ports:
        state: in and out; takes ``old_master`` and ``new_momentum``, drives ``new_master``.
        random: in, ``16 * lanes`` bits, `MASTER_SUM_AT` cycles after the gradient is accepted.
        view: out, ``lanes`` codes of ``shape.weight``, `VIEW_AT` cycles after it.
        ahead: in, what `next_momentum` makes, in place of ``new_momentum``; or None.
        mantissa: in, what `rate_in_time` makes, in place of a constant; or None.
        ready: in, as of `hdl.engine.arithmetic.lanes.multiply_constant`.
        shown: in, ``lanes`` codes of ``shape.master``: masters whose weights are seen; None: ``new_master``.
    """
    lanes, bits = shape.lanes, shape.master_sum_bits
    enable = Signal(bool(1))
    late = Signal(intbv(0)[len(state.old_master) :])
    momenta, olds = signed_lanes(lanes, shape.momentum.width), signed_lanes(lanes, shape.master.width)
    steps, aligned, totals = (signed_lanes(lanes, bits) for _ in range(3))
    total = Signal(intbv(0)[bits * lanes :])
    wait = delay_vector(clk, state.old_master, late, cycles=MOMENTUM_AT + shape.later - MASTER_READ_AT)
    split = split_lanes(clk, state.new_momentum if ahead is None else ahead, momenta, width=shape.momentum.width)
    split_old = split_lanes(clk, late, olds, width=shape.master.width)
    if mantissa is None:
        scale = scale_lanes(clk, momenta, steps, scalar=shape.rate_factor, cycles=WIDE_SCALE_LATENCY, ready=ready)
    else:
        scale = scale_by_rate(clk, momenta, mantissa, steps, shift=shape.rate_factor.shift)
    align = scale_lanes(clk, olds, aligned, scalar=Scalar(1, -shape.guard), cycles=WIDE_SCALE_LATENCY)
    subtract = subtract_lanes(clk, aligned, steps, totals)
    join = join_lanes(totals, total)
    rounding = round_stochastically(
        clk, enable, total, random, state.new_master, lanes=lanes, shift=shape.guard, target=shape.master
    )
    news = signed_lanes(lanes, shape.master.width)
    split_new = split_lanes(clk, state.new_master if shown is None else shown, news, width=shape.master.width)
    shift = shape.master.fraction_bits - shape.weight.fraction_bits
    see = requantise_lanes(clk, news, view, shift=shift, target=shape.weight)
    keep = always_on(clk, enable)
    return wait, split, split_old, scale, align, subtract, join, rounding, split_new, see, keep


@block
def scale_by_rate(
    clk: Clock, momenta: Sequence[Bits], mantissa: Bits, steps: Sequence[Bits], *, shift: int
) -> Instances:
    """``steps = floor(momenta * mantissa / 2**shift)``, `WIDE_SCALE_LATENCY` cycles; one multiplier a lane.

    Ports:
        momenta: in, signed lanes that fit a multiplier.
        mantissa: in, signed, that fits one too.
        steps: out, signed lanes, wide enough for product and result.
    """
    count = len(momenta)
    bound = 1 << (len(steps[0]) - 1)
    right, left = max(shift, 0), max(-shift, 0)
    products, kept = (signed_lanes(count, len(momenta[0]) + len(mantissa)) for _ in range(2))
    settle = register_lanes(clk, products, kept)

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(count):
            products[lane].next = momenta[lane] * mantissa

    @always(clk.posedge)
    def shift_products() -> None:
        number = intbv(0, min=-bound, max=bound)
        for lane in range(count):
            number[:] = kept[lane]
            number[:] = number << left
            steps[lane].next = number >> right

    return settle, multiply, shift_products
