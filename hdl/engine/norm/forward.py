"""The circuit of `hdl.layers.norm.online_norm.OnlineNorm`.

A data path of one beat a cycle multiplies by what stands in the table; sums of each channel leave it with the last
pixel of a frame and wait in a queue for the sequential unit, which advances the statistics and writes the table for
the frame after next (lag 1).  The data path runs freely: a beat enters only when there is room for all its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from myhdl import Signal, always_comb, block, intbv

from hdl.engine.arithmetic.places import result_places
from hdl.engine.norm.bundles import Beat, ForwardRoom, LineWrite, NormState
from hdl.engine.norm.data_path import data_path, data_sums
from hdl.engine.norm.frames import beat_counter, frame_weights
from hdl.engine.norm.numbers import NORMAL
from hdl.engine.norm.sequence import divided_unit, sequential_unit
from hdl.engine.norm.shapes import ForwardShape, sum_widths
from hdl.engine.norm.table import line_table, norm_link, second_ways, table_ways
from hdl.engine.weights.access import Batches, Begin
from hdl.engine.weights.sections import MemoryAccess
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import join, queue, width_adapter


@block
def norm_forward(
    domain: ClockReset,
    x: Stream,
    gamma: Stream | None,
    beta: Stream | None,
    y: Stream,
    normal: Stream,
    inverse: Stream,
    *,
    shape: ForwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
    state: NormState | None = None,
) -> Instances:
    """Rates as `OnlineNorm.cycles_per_frame` says; latency `Y_AT` cycles and a queue.

    Costs three multipliers a lane, two large serial dividers a lane, and memories of a few words a channel.

    Ports:
        x: in, stream of codes of ``shape.numbers.x``.
        gamma: in, stream of codes of ``shape.gamma``, a code a channel and batch.
        beta: in, stream of codes of ``shape.beta``, a code a channel and batch; both None where they stay as they are.
        y: out, stream of codes of ``shape.y``, one of ``x`` each, from a queue that takes them `Y_AT` cycles later.
        normal: out, stream of codes of `NORMAL`, one of ``x`` each, from a queue that takes them `NORMAL_AT` cycles
            later.
        inverse: out, stream of codes of ``shape.numbers.inverse``, a code a channel and frame, from a queue that takes
            them 2 cycles after the frame's first pixel.
        state: in and out; drives ``batches.rests`` and what memories hold; or None.
    """
    contents = images or {}
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    xs, ys, normals, inverses = (Stream(lanes * fixed.width) for fixed in (numbers.x, shape.y, NORMAL, numbers.inverse))
    adapters = [
        width_adapter(domain, x, xs, element_bits=numbers.x.width),
        width_adapter(domain, ys, y, element_bits=shape.y.width),
        width_adapter(domain, normals, normal, element_bits=NORMAL.width),
        width_adapter(domain, inverses, inverse, element_bits=numbers.inverse.width),
    ]
    fire, first_pixel, last_pixel, done = (Signal(bool(0)) for _ in range(4))
    group = Signal(intbv(0, min=0, max=max(2, groups)))
    pair = Signal(intbv(0)[lanes * (shape.gamma.width + shape.beta.width) :])
    line = Signal(intbv(0)[lanes * (numbers.centre.width + numbers.inverse.width) :])
    write = Signal(bool(0))
    write_group = Signal(intbv(0)[address_width(groups) :])
    write_line = Signal(intbv(0)[len(line) :])
    sum_bits = sum_widths(shape)
    sums_made, sums = Stream(lanes * sum(sum_bits)), Stream(lanes * sum(sum_bits))
    beat, written = Beat(fire, group, first_pixel, last_pixel), LineWrite(write, write_group, write_line, done)
    room = ForwardRoom(*(Signal(bool(0)) for _ in range(4)))

    batches, memories = (None, None) if state is None else (state.batches, state.memories)
    begin = frames(
        domain, xs, gamma, beta, room, done, beat, pair, shape=shape, contents=contents.get("weights"), batches=batches
    )
    counter = beat_counter(domain, beat, pixels=numbers.pixels, groups=groups)
    if memories is None:
        ways, read, made = [], beat, written
    else:
        read, made = second_ways(line, groups)
        ways = table_ways(beat, written, line, memories["table"], read, made)
    table = line_table(domain, read, line, made, groups=groups, banks=shape.banks, contents=contents.get("table"))
    path = data_path(domain, xs.payload, line, pair, beat, ys, normals, inverses, room, shape=shape)
    add = data_sums(domain, xs.payload, beat, sums_made, shape=shape)
    hold = queue(domain, sums_made, sums, depth=shape.sums_depth)
    reserve = Signal(bool(0))
    places = result_places(domain, reserve, sums, room.sums, places=shape.sums_depth)
    advance = sequential_unit if shape.slow.lanes == lanes else divided_unit
    statistics = advance(domain, sums, written, shape=shape, contents=contents, access=memories)

    @always_comb
    def reserve_sums() -> None:
        reserve.next = fire and last_pixel

    if memories is None:
        return adapters, begin, counter, table, path, add, hold, places, statistics, reserve_sums
    return adapters, begin, counter, ways, table, path, add, hold, places, statistics, reserve_sums


@block
def accessed_norm_forward(
    domain: ClockReset,
    x: Stream,
    gamma: Stream | None,
    beta: Stream | None,
    y: Stream,
    normal: Stream,
    inverse: Stream,
    load: Stream,
    dump: Stream,
    *,
    shape: ForwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """`norm_forward` with statistics that are loaded and dumped: the running mean and variance, and what the next
    frames of lag are normalised with.

    Ports:
        x: in, stream as that of `norm_forward`.
        gamma, beta: in, streams as those of `norm_forward`.
        y, normal, inverse: out, streams as those of `norm_forward`.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    slow, numbers = shape.slow, shape.numbers
    memories = {
        "mean": MemoryAccess(slow.groups, slow.lanes * numbers.mean.width),
        "variance": MemoryAccess(slow.groups, slow.lanes * numbers.variance.width),
        "table": MemoryAccess(shape.groups, shape.lanes * (numbers.centre.width + numbers.inverse.width)),
    }
    state = NormState(Begin(), Batches(), memories)
    link = norm_link(domain, load, dump, state, banks=shape.banks)
    engine = norm_forward(domain, x, gamma, beta, y, normal, inverse, shape=shape, images=images, state=state)
    return link, engine


@block
def frozen_norm_forward(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    normal: Stream,
    inverse: Stream,
    *,
    shape: ForwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """`norm_forward` whose scale and shift stay as they are.

    Ports:
        x: in, stream as that of `norm_forward`.
        y, normal, inverse: out, streams as those of `norm_forward`.
    """
    return norm_forward(domain, x, None, None, y, normal, inverse, shape=shape, images=images)


@block
def accessed_frozen_norm_forward(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    normal: Stream,
    inverse: Stream,
    load: Stream,
    dump: Stream,
    *,
    shape: ForwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """`accessed_norm_forward` whose scale and shift stay as they are.

    Ports:
        x: in, stream as that of `norm_forward`.
        y, normal, inverse: out, streams as those of `norm_forward`.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    return accessed_norm_forward(domain, x, None, None, y, normal, inverse, load, dump, shape=shape, images=images)


@block
def frames(
    domain: ClockReset,
    x: Stream,
    gamma: Stream | None,
    beta: Stream | None,
    room: ForwardRoom,
    done: Bit,
    beat: Beat,
    pair: Bits,
    *,
    shape: ForwardShape,
    contents: Sequence[int] | None,
    batches: Batches | None = None,
) -> Instances:
    """Accepts beats of ``x`` and reads scale and shift for them.

    Ports:
        x: in, stream of ``lanes`` codes of ``shape.numbers.x``; ready from registers.
        gamma, beta: in, streams of codes of ``shape.gamma``, of ``shape.beta``, or both None.
        room: in, all of it.
        done: in, 1 bit: the statistics after the next frame (in order) are in the table at this edge.
        beat: in and out; drives ``fire``, takes the others.
        pair: out, ``lanes`` codes of ``shape.beta`` and above them ``lanes`` of ``shape.gamma``, `READ_LATENCY` cycles
            after a beat is accepted.
        batches: in and out, as of `frame_weights`.
    """
    may, ready = Signal(bool(0)), Signal(bool(0))
    gammas = Stream(shape.lanes * shape.gamma.width)
    betas = Stream(shape.lanes * shape.beta.width)
    pairs = Stream(gammas.width + betas.width)
    adapt_gamma = [] if gamma is None else width_adapter(domain, gamma, gammas, element_bits=shape.gamma.width)
    adapt_beta = [] if beta is None else width_adapter(domain, beta, betas, element_bits=shape.beta.width)
    meet = [] if gamma is None else join(domain, [betas, gammas], pairs)
    versions = None if gamma is None else pairs
    weights = frame_weights(domain, versions, beat, done, may, pair, shape=shape, contents=contents, batches=batches)

    @always_comb
    def decide() -> None:
        ready.next = (
            may
            and room.y
            and room.normal
            and (room.inverse or not beat.first_pixel)
            and (room.sums or not beat.last_pixel)
        )

    @always_comb
    def handshake() -> None:
        x.ready.next = ready
        beat.fire.next = ready and x.valid

    return adapt_gamma, adapt_beta, meet, weights, decide, handshake
