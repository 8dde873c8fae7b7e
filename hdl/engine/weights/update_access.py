"""The circuit of `hdl.layers.wiring.update.Update` whose state is loaded and dumped by streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import delay_vector
from hdl.engine.arithmetic.places import result_places
from hdl.engine.weights.access import Batches, Begin, batches_left, state_link
from hdl.engine.weights.rate import LINE_BITS, RATE_PLACE_AT, RATE_WORDS, RateState
from hdl.engine.weights.records import COUNTER_BITS, WORD_BITS
from hdl.engine.weights.update import (
    MASTER_AT,
    MOMENTUM_AT,
    PIPELINE,
    Beginning,
    OptimiserState,
    UpdateShape,
    gradient_gate,
    join_state,
    part_state,
    tensor_ends,
    update_step,
)
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, take_bits, width_adapter


@dataclass(frozen=True)
class Port:
    """A way to state beside that of gradients, a beat's elements at a time."""

    # what stands at ``read_at`` is read at this edge
    read: Bit
    read_at: Bits
    # ``word`` is written to ``write_at`` at this edge
    write: Bit
    write_at: Bits


@block
def update_accessed(
    domain: ClockReset,
    g: Stream,
    w: Stream,
    load: Stream,
    dump: Stream,
    *,
    shape: UpdateShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """As `hdl.engine.weights.update.update`, with state that is loaded; its weights are sent like any others.

    An element of state is a word: its master in the low bits, its momentum above.  Costs a link of the chain, what
    packs and unpacks words, a multiplexer at the write ports of both memories, and counters.

    Ports:
        g: in, stream of ``lanes`` codes of ``shape.gradient``; ready from registers.
        w: out, stream of ``lanes`` codes of ``shape.weight``; valid and payload from registers.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    contents = images or {}
    lanes, beats, pipeline = shape.lanes, shape.beats, PIPELINE + shape.later
    begin, batches = Begin(), Batches()
    fire, may, opened, room = (Signal(bool(0)) for _ in range(4))
    place = Signal(intbv(0)[address_width(beats) :])
    old_master, new_master, loaded_master, master = (Signal(intbv(0)[shape.master.width * lanes :]) for _ in range(4))
    old_momentum, new_momentum, loaded_momentum, momentum = (
        Signal(intbv(0)[shape.momentum.width * lanes :]) for _ in range(4)
    )
    both = (shape.master.width + shape.momentum.width) * lanes
    loaded, saved = Stream(both), Stream(both)
    port = Port(Signal(bool(0)), Signal(intbv(0)[len(place) :]), Signal(bool(0)), Signal(intbv(0)[len(place) :]))
    state = OptimiserState(old_master, old_momentum, new_master, new_momentum)
    rate = RateState(shape.rates) if shape.rates else None
    beginning = Beginning(begin.domain(domain), begin.batches, master, port.write, rate)
    link = state_words(domain, load, dump, loaded, saved, begin, batches, rate, shape=shape)
    parts = part_state(loaded.payload, loaded_master, loaded_momentum, shape=shape)
    whole = join_state(old_master, old_momentum, saved.payload, shape=shape)
    accept = gradient_gate(domain, g, opened, fire, place, beats=beats, pipeline=pipeline)
    limits = training_limits(domain, batches, fire, may, loaded, opened, beats=beats, pipeline=pipeline)
    at = counter(domain, port.write, port.write_at, count=beats)
    give = state_reader(domain, batches.giving, saved.ready, saved.valid, port, beats=beats)
    masters = shared_memory(
        domain.clk, fire, place, old_master, new_master, loaded_master, master, port,
        depth=beats, write_delay=MASTER_AT + shape.later, contents=contents.get("master"), public="master",
    )  # fmt: skip
    momenta = shared_memory(
        domain.clk, fire, place, old_momentum, new_momentum, loaded_momentum, momentum, port,
        depth=beats, write_delay=MOMENTUM_AT, contents=contents.get("momentum"), public="momentum",
    )  # fmt: skip
    step = update_step(domain, fire, g.payload, state, w, shape=shape, rates=contents.get("rates"), beginning=beginning)
    places = result_places(domain, room, w, may, places=shape.results)

    @always_comb
    def take() -> None:
        loaded.ready.next = may
        port.write.next = loaded.valid and may

    @always_comb
    def reserve() -> None:
        room.next = fire or port.write

    return link, parts, whole, accept, limits, at, give, masters, momenta, step, places, take, reserve


@block
def state_words(
    domain: ClockReset,
    load: Stream,
    dump: Stream,
    loaded: Stream,
    saved: Stream,
    begin: Begin,
    batches: Batches,
    rate: RateState | None,
    *,
    shape: UpdateShape,
) -> Instances:
    """The link of the chain, with the elements of a beat side by side.

    Ports:
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits.
        loaded: out, stream of ``lanes`` elements of state.
        saved: in, stream as wide, while ``batches.giving``.
        begin: out, all of it.
        batches: out, all of it but ``rests``, which is in.
        rate: in and out, whose words stand in front of the elements; or None.
    """
    bits = loaded.width // shape.lanes
    taken, given, narrow, unpacked = Stream(WORD_BITS), Stream(WORD_BITS), Stream(bits), Stream(bits)
    elements = shape.beats * shape.lanes
    if rate is None:
        link = state_link(domain, load, dump, taken, given, begin, batches, words=elements)
    else:
        all_taken, all_given, words = Stream(WORD_BITS), Stream(WORD_BITS), elements + RATE_WORDS
        link = (
            state_link(domain, load, dump, all_taken, all_given, begin, batches, words=words),
            rate_taken(domain, all_taken, taken, rate, words=words),
            rate_given(domain, all_given, given, batches.giving, rate, words=words),
        )
    cut = take_bits(taken, narrow, low=0)
    pack = width_adapter(domain, narrow, loaded, element_bits=bits)
    unpack = width_adapter(domain, saved, unpacked, element_bits=bits)

    @always_comb
    def widen() -> None:
        given.valid.next = unpacked.valid
        given.payload.next = unpacked.payload
        unpacked.ready.next = given.ready

    return link, cut, pack, unpack, widen


@block
def rate_taken(domain: ClockReset, taken: Stream, elements: Stream, rate: RateState, *, words: int) -> Instances:
    """Keeps the first words of a state, and hands on the others.

    Ports:
        taken: in, stream of `WORD_BITS` bits, ``words`` of them a state.
        elements: out, stream of `WORD_BITS` bits, in the same cycle.
        rate: out, ``held`` and what it begins with.
    """
    index = Signal(intbv(0)[address_width(words) :])
    passes, known = Signal(bool(0)), Signal(bool(0))
    counting = counter(domain, passes, index, count=words)
    line_bits, batch_bits, place_end = LINE_BITS, len(rate.first_batch), RATE_PLACE_AT + len(rate.first_place)
    last = RATE_WORDS - 1

    @always_comb
    def route() -> None:
        elements.payload.next = taken.payload
        elements.valid.next = taken.valid and index >= RATE_WORDS

    @always_comb
    def answer() -> None:
        taken.ready.next = elements.ready or index < RATE_WORDS

    @always_comb
    def count() -> None:
        passes.next = taken.valid and (elements.ready or index < RATE_WORDS)

    @always(domain.clk.posedge)
    def keep() -> None:
        if taken.valid:
            if index == 0:
                rate.first_line.next = taken.payload[line_bits:].signed()
                known.next = False
            if index == 1:
                rate.first_slope.next = taken.payload[line_bits:].signed()
            if index == last:
                rate.first_batch.next = taken.payload[batch_bits:]
                rate.first_place.next = taken.payload[place_end:RATE_PLACE_AT]
                known.next = True
        rate.held.next = not known
        if domain.rst:
            known.next = False
            rate.held.next = True

    return counting, route, answer, count, keep


@block
def rate_given(
    domain: ClockReset, given: Stream, elements: Stream, giving: Bit, rate: RateState, *, words: int
) -> Instances:
    """Puts the words of a rate in front of the elements of a state.

    Ports:
        given: out, stream of `WORD_BITS` bits, ``words`` of them a state.
        elements: in, stream of `WORD_BITS` bits.
        giving: in, 1 bit: state is wanted.
        rate: in, where it stands.
    """
    index = Signal(intbv(0)[address_width(words) :])
    passes = Signal(bool(0))
    batch = Signal(intbv(0)[RATE_PLACE_AT:])
    counting = counter(domain, passes, index, count=words)
    line_bits, last = LINE_BITS, RATE_WORDS - 1

    @always_comb
    def route() -> None:
        if index == 0:
            given.valid.next = giving
            given.payload.next = rate.line[line_bits:]
        elif index == 1:
            given.valid.next = giving
            given.payload.next = rate.slope[line_bits:]
        elif index == last:
            given.valid.next = giving
            given.payload.next = concat(rate.place, batch)
        else:
            given.valid.next = elements.valid
            given.payload.next = elements.payload

    @always_comb
    def answer() -> None:
        elements.ready.next = given.ready and index >= RATE_WORDS

    @always_comb
    def count() -> None:
        passes.next = given.valid and given.ready

    @always_comb
    def widen() -> None:
        batch.next = rate.batch

    return counting, route, answer, count, widen


@block
def training_limits(
    domain: ClockReset,
    batches: Batches,
    fire: Bit,
    may: Bit,
    loaded: Stream,
    opened: Bit,
    *,
    beats: int,
    pipeline: int,
) -> Instances:
    """Gradients are taken of as many batches as are said; between them it rests.  A cycle passes behind each batch
    before the next one's first gradient, so that the count of batches is behind a register.

    Ports:
        batches: in and out; drives ``rests``, from registers.
        fire: in, 1 bit: a gradient is taken at this edge.
        may: in, 1 bit, from registers: there is room for a weight.
        loaded: in, stream of any width, watched: what is loaded goes first.
        opened: out, 1 bit: a gradient may be taken.

    Args:
        pipeline: cycles from a gradient until all its state is written.
    """
    left = Signal(intbv(0)[COUNTER_BITS:])
    trained = Signal(bool(0))
    # the last gradient of a batch was taken a cycle ago
    ended = Signal(bool(0))
    # cycles until the last state is written
    writing = Signal(intbv(0, min=0, max=pipeline + 1))
    ends = tensor_ends(domain, fire, trained, beats=beats)
    count = batches_left(domain, batches, ended, left)

    @always_comb
    def decide() -> None:
        opened.next = may and left != 0 and not ended and not loaded.valid
        batches.rests.next = left == 0 and writing == 0 and not loaded.valid and not batches.more

    @always(domain.clk.posedge)
    def settle() -> None:
        ended.next = trained
        if fire:
            writing.next = pipeline
        elif writing != 0:
            writing.next = writing - 1
        if domain.rst:
            ended.next = False
            writing.next = 0

    return ends, count, decide, settle


@block
def state_reader(domain: ClockReset, giving: Bit, out: Bit, there: Bit, port: Port, *, beats: int) -> Instances:
    """Reads state beat by beat, each when the one before is out.

    Ports:
        giving: in, 1 bit: state is wanted.
        out: in, 1 bit: a beat that is there leaves at this edge.
        there: out, 1 bit, from a register 2 cycles after ``port.read``: what was read is there, and stays.
        port: out, ``read`` and ``read_at`` alone.
    """
    coming, held = Signal(bool(0)), Signal(bool(0))
    at = Signal(intbv(0, min=0, max=beats + 1))

    @always_comb
    def read() -> None:
        port.read.next = giving and not coming and not held and at != beats
        there.next = held

    @always_comb
    def address() -> None:
        port.read_at.next = 0
        if at != beats:
            port.read_at.next = at

    @always(domain.clk.posedge)
    def step() -> None:
        coming.next = port.read
        if coming:
            held.next = True
        elif held and out:
            held.next = False
        if port.read:
            at.next = at + 1
        elif not giving:
            at.next = 0
        if domain.rst:
            coming.next = False
            held.next = False
            at.next = 0

    return read, address, step


@block
def shared_memory(
    clk: Clock,
    fire: Bit,
    place: Bits,
    old: Bits,
    new: Bits,
    loaded: Bits,
    written: Bits,
    port: Port,
    *,
    depth: int,
    write_delay: int,
    contents: Sequence[int] | None,
    public: str,
) -> Instances:
    """A word of state a beat, as `hdl.engine.weights.update.state_memory`, with a second way to it.

    Ports:
        fire: in, 1 bit, never while ``port`` reads or writes.
        place: in, `address_width` ``(depth)`` bits, with ``fire``.
        old: out, a word of any width, 2 cycles after ``fire`` or ``port.read``.
        new: in, as wide as ``old``, ``write_delay`` cycles after ``fire``.
        loaded: in, as wide as ``old``, with ``port.write``.
        written: out, as wide as ``old``: ``loaded`` with ``port.write``, else ``new``.
        port: in, all of it.
    """
    late, read, write = (Signal(bool(0)) for _ in range(3))
    late_at, read_at, write_at = (Signal(intbv(0)[len(place) :]) for _ in range(3))
    wait = delay_vector(clk, fire, late, cycles=write_delay)
    wait_at = delay_vector(clk, place, late_at, cycles=write_delay)
    store = simple_dual_port(
        clk, write, write_at, written, read, read_at, old,
        depth=depth, width=len(old), contents=contents, output_register=True, image=public,
    )  # fmt: skip

    @always_comb
    def choose() -> None:
        read.next = fire or port.read
        write.next = late or port.write
        if port.read:
            read_at.next = port.read_at
        else:
            read_at.next = place
        if port.write:
            write_at.next = port.write_at
            written.next = loaded
        else:
            write_at.next = late_at
            written.next = new

    return wait, wait_at, store, choose
