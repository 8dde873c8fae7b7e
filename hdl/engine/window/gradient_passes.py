"""The gradient engine of a convolution whose sums over a batch live outside: on chip it sums one frame, pass by pass.

A pass over the map sums the gradients of one group of filters in a tile memory.  While the next pass fills the other
of two such memories, these sums are added to those of the earlier frames of the batch, which come on ``acc_in``, and
leave on ``acc_out``, or after the batch's last frame rounded on ``g``.  The first frame of a batch reads no ``acc_in``,
the last one writes no ``acc_out``: what leaves on one comes back on the other one frame later, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.mac import operand_bits
from hdl.engine.weights.access import Begin, counter_link
from hdl.engine.weights.gradient_rounding import leaving
from hdl.engine.window.frame_buffers import reorder_frame
from hdl.engine.window.gradient import (
    GradientShape,
    add_cut_products,
    add_products,
    error_products,
    product_signals,
)
from hdl.engine.window.walker import Steps
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import counter, output_register, queue, read_stream, width_adapter

# cycles for which a pass holds a memory of sums, beyond its own work and the reading of its tiles
LEAVE_LATENCY = 10


def part_bits(shape: GradientShape) -> int:
    """Bits of a sum over one frame; no more than of a sum over a batch, to which it is added."""
    exact = operand_bits(shape.x) + operand_bits(shape.e) + (shape.walk.pixels - 1).bit_length()
    return min(exact - shape.cut, shape.sum_bits)


@block
def gradient_passes(
    domain: ClockReset,
    x: Stream,
    e: Stream,
    acc_in: Stream,
    g: Stream,
    acc_out: Stream,
    *,
    shape: GradientShape,
    error_frames: int,
    begin: Begin | None = None,
) -> Instances:
    """Reads maps, errors and sums, writes sums and gradients; rates as `Walk.cycles` says.

    Ports:
        x: in, stream of codes of ``shape.x``, any number a beat.
        e: in, stream of codes of ``shape.e``, any number a beat.
        acc_in: in, stream of ``lanes`` sums of ``shape.sum_bits`` bits, in the stream order of the weights.
        g: out, stream of ``shape.lanes`` codes of ``shape.g``, in that order.
        acc_out: out, stream as wide as ``acc_in``, in that order.
        begin: in, as of `gradient_rounding`.

    Args:
        error_frames: frames of errors that the store which reorders them must hold.
    """
    walk, tile = shape.walk, shape.tile
    bits, pixels = part_bits(shape), walk.pixels
    steps = Steps(walk, shape.ring_rows)
    error_words, gated, ordered = (Stream(tile.po * shape.e.width) for _ in range(3))
    adapt_e = width_adapter(domain, e, error_words, element_bits=shape.e.width, flush_every=shape.ragged_filters)
    started, room, blocked = (Signal(bool(0)) for _ in range(3))
    intake = frame_intake(domain, error_words, gated, room, started, words=pixels * walk.repeat)
    order = reorder_frame(domain, gated, ordered, started, room, pixels=walk.repeat, repeat=pixels, frames=error_frames)
    products = product_signals(shape)
    multiply = error_products(domain, x, ordered, blocked, steps, products, shape=shape)
    tiles, parts = Stream(tile.size * bits), Stream(shape.lanes * bits)
    sums = pass_sums(
        domain,
        products,
        steps,
        blocked,
        tiles,
        words=walk.reduce * tap_groups(shape),
        pixels=pixels,
        bits=bits,
        cut=shape.cut,
    )
    adapt_g = width_adapter(domain, tiles, parts, element_bits=bits)
    totals, kept = (Stream(shape.lanes * shape.sum_bits) for _ in range(2))
    add = add_parts(domain, parts, acc_in, totals, kept, shape=shape, bits=bits)
    hold_out = queue(domain, kept, acc_out, depth=2)
    rounding = leaving(shape.rounding, begin)(domain, totals, g)
    return adapt_e, intake, order, multiply, sums, adapt_g, add, hold_out, rounding


@block
def counted_gradient_passes(
    domain: ClockReset,
    x: Stream,
    e: Stream,
    acc_in: Stream,
    g: Stream,
    acc_out: Stream,
    load: Stream,
    dump: Stream,
    *,
    shape: GradientShape,
    error_frames: int,
) -> Instances:
    """`gradient_passes`, with a number of batches behind it that comes by a stream.

    Ports:
        x: in, stream as that of `gradient_passes`.
        e: in, stream as that of `gradient_passes`.
        acc_in: in, stream as that of `gradient_passes`.
        g: out, stream as that of `gradient_passes`.
        acc_out: out, stream as that of `gradient_passes`.
        load: in, stream of 65 bits.
        dump: out, stream as wide as ``load``.
    """
    begin = Begin()
    passes = gradient_passes(domain, x, e, acc_in, g, acc_out, shape=shape, error_frames=error_frames, begin=begin)
    return counter_link(domain, load, dump, begin), passes


def tap_groups(shape: GradientShape) -> int:
    """Cycles over the taps of a pixel."""
    return shape.weight_shape[2] * shape.weight_shape[3] // shape.tile.pk


@block
def frame_intake(domain: ClockReset, x: Stream, y: Stream, room: Bit, started: Bit, *, words: int) -> Instances:
    """Lets words through while there is ``room``; ``started`` with the last of each frame of ``words``.

    Ports:
        x: in, stream of any width; its ready is ``room``.
        y: out, stream as wide as ``x``, in the same cycle; taken whenever ``room``.
        room: in, 1 bit, from registers.
        started: out, 1 bit, combinational in ``x.valid`` and ``room``.
    """
    place = Signal(intbv(0)[address_width(words) :])
    fire = Signal(bool(0))
    counting = counter(domain, fire, place, count=words)
    final = words - 1

    @always_comb
    def decide() -> None:
        fire.next = x.valid and room

    @always_comb
    def pass_on() -> None:
        x.ready.next = room
        y.valid.next = fire
        y.payload.next = x.payload
        started.next = fire and place == final

    return decide, pass_on, counting


@block
def pass_sums(
    domain: ClockReset,
    products: Sequence[Bits],
    steps: Steps,
    blocked: Bit,
    tiles: Stream,
    *,
    words: int,
    pixels: int,
    bits: int,
    cut: int,
) -> Instances:
    """Two memories of one pass's sums: one is added to (read, register, add, write), the other one leaves on ``tiles``.

    ``words`` must be at least `hdl.engine.window.gradient.MEMORY_TILES`.

    Ports:
        products: in, signed signals, 2 cycles after ``steps.valid``.
        steps: in, ``valid`` and ``issue_pass_last`` alone.
        blocked: out, 1 bit, from registers: both are in use by earlier passes.
        tiles: out, stream of ``len(products)`` sums of ``bits`` bits.
    """
    size = len(products)
    width = size * bits
    final, last_pixel = words - 1, pixels - 1
    word, drain_at = (Signal(intbv(0)[address_width(words) :]) for _ in range(2))
    pixel = Signal(intbv(0)[address_width(pixels) :])
    places = [Signal(intbv(0)[address_width(words) :]) for _ in range(3)]
    flags, halves, ends = ([Signal(bool(0)) for _ in range(3)] for _ in range(3))
    fresh = Signal(bool(0))
    half, drain_half = Signal(bool(0)), Signal(bool(0))
    before, summed, low_word, high_word, drain_word = (Signal(intbv(0)[width:]) for _ in range(5))
    low_at, high_at = (Signal(intbv(0)[address_width(words) :]) for _ in range(2))
    low_read, high_read, low_write, high_write, may_read, fetch, last_fetched, released, complete = (
        Signal(bool(0)) for _ in range(9)
    )
    free, full = Signal(intbv(2, min=0, max=3)), Signal(intbv(0, min=0, max=3))
    write_at, read_tiles = places[2], Stream(width)
    reading = read_stream(domain, may_read, fetch, drain_word, read_tiles)
    leave = output_register(domain, read_tiles, tiles, depth=words)
    if cut:
        add = add_cut_products(domain.clk, before, products, summed, bits=bits, cut=cut)
    else:
        add = add_products(domain.clk, before, products, summed, bits=bits)
    low = simple_dual_port(
        domain.clk, low_write, write_at, summed, low_read, low_at, low_word, depth=words, width=width
    )
    high = simple_dual_port(
        domain.clk, high_write, write_at, summed, high_read, high_at, high_word, depth=words, width=width
    )

    @always_comb
    def decide() -> None:
        blocked.next = free == 0
        may_read.next = full != 0 and not last_fetched
        released.next = read_tiles.valid and read_tiles.ready and last_fetched
        complete.next = flags[2] and ends[2]

    @always_comb
    def ports() -> None:
        low_read.next = (steps.valid and not half) or (fetch and not drain_half)
        high_read.next = (steps.valid and half) or (fetch and drain_half)
        low_at.next = word
        high_at.next = word
        if fetch and not drain_half:
            low_at.next = drain_at
        if fetch and drain_half:
            high_at.next = drain_at
        low_write.next = flags[2] and not halves[2]
        high_write.next = flags[2] and halves[2]

    @always_comb
    def out() -> None:
        if drain_half:
            drain_word.next = high_word
        else:
            drain_word.next = low_word

    @always(domain.clk.posedge)
    def count() -> None:
        if steps.valid:
            if word != final:
                word.next = word + 1
            else:
                word.next = 0
                if pixel != last_pixel:
                    pixel.next = pixel + 1
                else:
                    pixel.next = 0
                    half.next = not half
        if domain.rst:
            word.next = 0
            pixel.next = 0
            half.next = False

    @always(domain.clk.posedge)
    def delay() -> None:
        flags[0].next = steps.valid and not domain.rst
        places[0].next = word
        halves[0].next = half
        ends[0].next = word == final and pixel == last_pixel
        fresh.next = pixel == 0
        for stage in range(2):
            flags[stage + 1].next = flags[stage] and not domain.rst
            places[stage + 1].next = places[stage]
            halves[stage + 1].next = halves[stage]
            ends[stage + 1].next = ends[stage]
        if fresh:
            before.next = 0
        elif halves[0]:
            before.next = high_word
        else:
            before.next = low_word

    @always(domain.clk.posedge)
    def drain() -> None:
        if fetch:
            if drain_at == final:
                drain_at.next = 0
                last_fetched.next = True
            else:
                drain_at.next = drain_at + 1
        if released:
            last_fetched.next = False
            drain_half.next = not drain_half
        if domain.rst:
            last_fetched.next = False
            drain_half.next = False
            drain_at.next = 0

    @always(domain.clk.posedge)
    def occupy() -> None:
        if complete and not released:
            full.next = full + 1
        elif released and not complete:
            full.next = full - 1
        if steps.issue_pass_last and not released:
            free.next = free - 1
        elif released and not steps.issue_pass_last:
            free.next = free + 1
        if domain.rst:
            full.next = 0
            free.next = 2

    return low, high, reading, leave, decide, ports, out, count, delay, add, drain, occupy


@block
def add_parts(
    domain: ClockReset,
    parts: Stream,
    acc_in: Stream,
    totals: Stream,
    kept: Stream,
    *,
    shape: GradientShape,
    bits: int,
) -> Instances:
    """Adds sums of a frame to those of the batch so far; complete ones leave on ``totals``, others on ``kept``.

    Ports:
        parts: in, stream of ``shape.lanes`` sums of ``bits`` bits.
        acc_in: in, stream of ``shape.lanes`` sums of ``shape.sum_bits`` bits; none in the first frame of a batch.
        totals: out, stream as wide as ``acc_in``, 1 cycle later; of the last frame of a batch.
        kept: out, stream as wide as ``acc_in``, 1 cycle later; of all other frames.
    """
    lanes, wide = shape.lanes, shape.sum_bits
    # cut sums wrap
    bound = 1 << (wide if shape.cut else wide - 1)
    final = shape.words * shape.tile.size // lanes - 1
    last_frame = shape.batch - 1
    beat = Signal(intbv(0)[address_width(final + 1) :])
    frame = Signal(intbv(0)[address_width(shape.batch) :])
    total = Signal(intbv(0)[totals.width :])
    first, valid, complete, enable, fire = (Signal(bool(0)) for _ in range(5))

    @always_comb
    def decide() -> None:
        first.next = frame == 0
        enable.next = not valid or (complete and totals.ready) or (not complete and kept.ready)

    @always_comb
    def handshake() -> None:
        fire.next = enable and parts.valid and (first or acc_in.valid)
        parts.ready.next = enable and (first or acc_in.valid)
        acc_in.ready.next = enable and not first and parts.valid

    @always_comb
    def out() -> None:
        totals.valid.next = valid and complete
        totals.payload.next = total
        kept.valid.next = valid and not complete
        kept.payload.next = total

    @always(domain.clk.posedge)
    def add() -> None:
        old = intbv(0, min=-bound, max=bound)
        part = intbv(0, min=-bound, max=bound)
        if fire:
            for lane in range(lanes):
                old[:] = acc_in.payload[bits_of(lane, wide)].signed()
                if first:
                    old[:] = 0
                part[:] = parts.payload[bits_of(lane, bits)].signed()
                part[:] = old + part
                total.next[bits_of(lane, wide)] = part[wide:]

    @always(domain.clk.posedge)
    def count() -> None:
        if enable:
            valid.next = fire
            complete.next = frame == last_frame
        if fire:
            if beat != final:
                beat.next = beat + 1
            else:
                beat.next = 0
                if frame == last_frame:
                    frame.next = 0
                else:
                    frame.next = frame + 1
        if domain.rst:
            valid.next = False
            complete.next = False
            beat.next = 0
            frame.next = 0

    return decide, handshake, out, add, count
