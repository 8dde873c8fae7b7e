"""The circuit of `hdl.layers.norm.online_norm_backward.OnlineNormBackward`.

One pipeline from errors to dx, gradients and the control process; it runs freely: a beat enters only when there is room
for all its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.lanes import always_on
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line
from hdl.engine.norm.bundles import BackwardRoom, BatchBeat, Beat, LineWrite, NormState
from hdl.engine.norm.control import control_process
from hdl.engine.norm.error_path import error_path
from hdl.engine.norm.frames import batch_counter, beat_counter, frame_weights
from hdl.engine.norm.parameter_gradients import parameter_gradients
from hdl.engine.norm.shapes import DX_AT, RESULTS, BackwardShape
from hdl.engine.norm.table import collect_lines, line_table, norm_link, second_ways, table_ways
from hdl.engine.weights.access import Batches, Begin
from hdl.engine.weights.sections import MemoryAccess
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import queue, width_adapter


@block
def norm_backward(
    domain: ClockReset,
    e: Stream,
    gamma: Stream | None,
    normal: Stream,
    inverse: Stream,
    dx: Stream,
    g_gamma: Stream | None,
    g_beta: Stream | None,
    *,
    shape: BackwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
    state: NormState | None = None,
) -> Instances:
    """Rates as `OnlineNormBackward.cycles_per_frame` says; latency `DX_AT` cycles and a queue.

    Costs five multipliers a lane and memories of a few words a channel.

    Ports:
        e: in, stream of codes of ``shape.numbers.e``.
        gamma: in, stream of codes of ``shape.gamma``, a code a channel and batch; None where it stays as it is, and
            ``g_gamma`` and ``g_beta`` with it.
        normal: in, stream of codes of ``shape.numbers.normal``, one of ``e`` each.
        inverse: in, stream of codes of ``shape.inverse``, a code a channel and frame.
        dx: out, stream of codes of ``shape.numbers.dx``, one of ``e`` each, from a queue that takes them `DX_AT` cycles
            later.
        g_gamma: out, stream of codes of ``shape.g_gamma``, a code a channel and batch, from a queue that takes them
            `GRADIENT_SUMS_AT` + `ROUNDING_LATENCY` cycles after the batch's last pixel.
        g_beta: out, stream of codes of ``shape.g_beta``, likewise.
        state: in and out; drives ``batches.rests`` and what memories hold; or None.
    """
    contents = images or {}
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    es, normals, inverses = (Stream(lanes * fixed.width) for fixed in (numbers.e, numbers.normal, shape.inverse))
    early_inverses = Stream(inverses.width)
    results, dxs = Stream(lanes * numbers.dx.width), Stream(lanes * numbers.dx.width)
    adapters = [
        width_adapter(domain, e, es, element_bits=numbers.e.width),
        width_adapter(domain, normal, normals, element_bits=numbers.normal.width),
        width_adapter(domain, inverse, early_inverses, element_bits=shape.inverse.width),
        # all inverses of a frame are needed with its first pixel and may arrive as slowly as a frame
        queue(domain, early_inverses, inverses, depth=max(2, groups)),
        width_adapter(domain, dxs, dx, element_bits=numbers.dx.width),
    ]
    fire, first_pixel, last_pixel, first_frame, last_frame, done = (Signal(bool(0)) for _ in range(6))
    may_dx, may_gamma, may_beta = (Signal(bool(0)) for _ in range(3))
    group = Signal(intbv(0, min=0, max=max(2, groups)))
    scale = Signal(intbv(0)[lanes * shape.gamma.width :])
    sigma = Signal(intbv(0)[inverses.width :])
    line = Signal(intbv(0)[lanes * (numbers.control_v.width + numbers.control_u.width) :])
    write_line = Signal(intbv(0)[len(line) :])
    write = Signal(bool(0))
    write_group = Signal(intbv(0)[address_width(groups) :])

    beat = BatchBeat(fire, group, first_pixel, last_pixel, first_frame, last_frame)
    may_control = Signal(bool(0)) if shape.slow.lanes < lanes else None
    room = BackwardRoom(may_dx, may_gamma, may_beta, may_control)
    written = LineWrite(write, write_group, write_line, done)
    if may_control is None:
        lines, collect = None, []
    else:
        slow, widths = shape.slow, (numbers.control_v.width, numbers.control_u.width)
        lines = LineWrite(
            Signal(bool(0)),
            Signal(intbv(0)[address_width(slow.groups) :]),
            Signal(intbv(0)[slow.lanes * sum(widths) :]),
            Signal(bool(0)),
        )
        collect = collect_lines(domain, lines, written, lanes=slow.lanes, parts=lanes // slow.lanes, widths=widths)

    counter = beat_counter(domain, beat, pixels=numbers.pixels, groups=groups)
    frame_counter = batch_counter(domain, beat, groups=groups, batch=shape.recipe.batch)
    batches, counters, memories = (None, None, None) if state is None else (state.batches, state.begin, state.memories)
    begin = accept_errors(
        domain, es, normals, inverses, gamma, beat, room, done, scale, batches, shape=shape,
        contents=contents.get("weights"),
    )  # fmt: skip
    sigmas = kept_inverses(domain.clk, beat, inverses.payload, sigma, groups=groups)
    read: Beat = beat
    if memories is None:
        ways, made = [], written
    else:
        read, made = second_ways(line, groups)
        ways = table_ways(beat, written, line, memories["table"], read, made)
    table = line_table(domain, read, line, made, groups=groups, banks=shape.banks, contents=contents.get("table"))
    correlation = Signal(intbv(0)[lanes * (numbers.shaped.width + numbers.normal.width) :])
    path = error_path(
        domain.clk, es.payload, normals.payload, scale, sigma, line, correlation, results.payload, shape=shape
    )
    mark = delay_line(domain.clk, fire, results.valid, cycles=DX_AT)
    hold = queue(domain, results, dxs, depth=RESULTS)
    places = result_places(domain, fire, dxs, may_dx, places=RESULTS)
    control = control_process(
        domain, beat, correlation, results.payload, lines or written, may_control, shape=shape, contents=contents,
        access=memories,
    )  # fmt: skip
    if g_gamma is None or g_beta is None:
        gradients = [always_on(domain.clk, may_gamma), always_on(domain.clk, may_beta)]
    else:
        gradients = parameter_gradients(
            domain, beat, es.payload, normals.payload, g_gamma, g_beta, room, counters, shape=shape
        )
    parts = (
        adapters,
        counter,
        frame_counter,
        begin,
        sigmas,
        table,
        path,
        mark,
        hold,
        places,
        control,
        collect,
        gradients,
    )
    return parts if memories is None else (*parts, ways)


@block
def accessed_norm_backward(
    domain: ClockReset,
    e: Stream,
    gamma: Stream | None,
    normal: Stream,
    inverse: Stream,
    dx: Stream,
    g_gamma: Stream | None,
    g_beta: Stream | None,
    load: Stream,
    dump: Stream,
    *,
    shape: BackwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """`norm_backward` with a control process that is loaded and dumped: its states, and the controls of the next frames
    of lag.

    Ports:
        e, gamma, normal, inverse: in, streams as those of `norm_backward`.
        dx, g_gamma, g_beta: out, streams as those of `norm_backward`.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    slow, numbers = shape.slow, shape.numbers
    memories = {
        "v": MemoryAccess(slow.groups, slow.lanes * numbers.state_v.width),
        "u": MemoryAccess(slow.groups, slow.lanes * numbers.state_u.width),
        "table": MemoryAccess(shape.groups, shape.lanes * (numbers.control_v.width + numbers.control_u.width)),
    }
    state = NormState(Begin(), Batches(), memories)
    link = norm_link(domain, load, dump, state, banks=shape.banks)
    engine = norm_backward(
        domain, e, gamma, normal, inverse, dx, g_gamma, g_beta, shape=shape, images=images, state=state
    )
    return link, engine


@block
def accessed_norm_gradients(
    domain: ClockReset,
    e: Stream,
    gamma: Stream,
    normal: Stream,
    inverse: Stream,
    g_gamma: Stream,
    g_beta: Stream,
    load: Stream,
    dump: Stream,
    *,
    shape: BackwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """`accessed_norm_backward` whose dx nobody wants.

    Ports:
        e, gamma, normal, inverse: in, streams as those of `norm_backward`.
        g_gamma, g_beta: out, streams as those of `norm_backward`.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    dx = Stream(shape.lanes // shape.beat_cycles * shape.numbers.dx.width)
    engine = accessed_norm_backward(
        domain, e, gamma, normal, inverse, dx, g_gamma, g_beta, load, dump, shape=shape, images=images
    )
    drain = always_on(domain.clk, dx.ready)
    return engine, drain


@block
def norm_gradients(
    domain: ClockReset,
    e: Stream,
    gamma: Stream,
    normal: Stream,
    inverse: Stream,
    g_gamma: Stream,
    g_beta: Stream,
    *,
    shape: BackwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """`norm_backward` whose dx nobody wants.

    Ports:
        e, gamma, normal, inverse: in, streams as those of `norm_backward`.
        g_gamma, g_beta: out, streams as those of `norm_backward`.
    """
    dx = Stream(shape.lanes // shape.beat_cycles * shape.numbers.dx.width)
    engine = norm_backward(domain, e, gamma, normal, inverse, dx, g_gamma, g_beta, shape=shape, images=images)
    drain = always_on(domain.clk, dx.ready)
    return engine, drain


@block
def norm_errors(
    domain: ClockReset,
    e: Stream,
    normal: Stream,
    inverse: Stream,
    dx: Stream,
    *,
    shape: BackwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """`norm_backward` whose scale stays as it is, without gradients.

    Ports:
        e, normal, inverse: in, streams as those of `norm_backward`.
        dx: out, stream as that of `norm_backward`.
    """
    return norm_backward(domain, e, None, normal, inverse, dx, None, None, shape=shape, images=images)


@block
def accessed_norm_errors(
    domain: ClockReset,
    e: Stream,
    normal: Stream,
    inverse: Stream,
    dx: Stream,
    load: Stream,
    dump: Stream,
    *,
    shape: BackwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Instances:
    """`accessed_norm_backward` whose scale stays as it is, without gradients.

    Ports:
        e, normal, inverse: in, streams as those of `norm_backward`.
        dx: out, stream as that of `norm_backward`.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    return accessed_norm_backward(
        domain, e, None, normal, inverse, dx, None, None, load, dump, shape=shape, images=images
    )


@block
def accept_errors(
    domain: ClockReset,
    e: Stream,
    normal: Stream,
    inverse: Stream,
    gamma: Stream | None,
    beat: BatchBeat,
    room: BackwardRoom,
    done: Bit,
    scale: Bits,
    batches: Batches | None = None,
    *,
    shape: BackwardShape,
    contents: Sequence[int] | None,
) -> Instances:
    """Accepts beats of e and normal together, in a frame's first pixel with inverse; reads ``scale`` for them.

    Ports:
        e, normal, inverse: in, streams of ``lanes`` codes; ready of each combinational in the others' valid.
        gamma: in, stream of codes of ``shape.gamma``, or None.
        beat: in and out; drives ``fire``, takes the others but ``first_frame``.
        room: in, all of it.
        done: in, 1 bit: the control after the next frame (in order) is in the table at this edge.
        scale: out, ``lanes`` codes of ``shape.gamma``, `READ_LATENCY` cycles after a beat is accepted.
        batches: in and out, as of `frame_weights`.
    """
    may, open_, there = (Signal(bool(0)) for _ in range(3))
    gammas = Stream(shape.lanes * shape.gamma.width)
    adapt = [] if gamma is None else width_adapter(domain, gamma, gammas, element_bits=shape.gamma.width)
    versions = None if gamma is None else gammas
    weights = frame_weights(domain, versions, beat, done, may, scale, shape=shape, contents=contents, batches=batches)

    control = room.control

    if control is None:

        @always_comb
        def decide() -> None:
            open_.next = (
                may and room.dx and ((room.g_gamma and room.g_beta) or not beat.last_pixel or not beat.last_frame)
            )
            there.next = e.valid and normal.valid and (inverse.valid or not beat.first_pixel)

    else:

        @always_comb
        def decide() -> None:
            open_.next = (
                may
                and room.dx
                and ((room.g_gamma and room.g_beta) or not beat.last_pixel or not beat.last_frame)
                and (control or not beat.last_pixel)
            )
            there.next = e.valid and normal.valid and (inverse.valid or not beat.first_pixel)

    @always_comb
    def handshake() -> None:
        beat.fire.next = open_ and there

    @always_comb
    def ready() -> None:
        e.ready.next = open_ and normal.valid and (inverse.valid or not beat.first_pixel)
        normal.ready.next = open_ and e.valid and (inverse.valid or not beat.first_pixel)
        inverse.ready.next = open_ and e.valid and normal.valid and beat.first_pixel

    return adapt, weights, decide, handshake, ready


@block
def kept_inverses(clk: Clock, beat: Beat, given: Bits, sigma: Bits, *, groups: int) -> Instances:
    """The inverses of the frame: ``given`` with its first pixel, kept for the others.

    Ports:
        beat: in; takes ``fire``, ``group``, ``first_pixel``.
        given: in, of any width, as a beat of a frame's first pixel is accepted.
        sigma: out, as wide as ``given``, 2 cycles after any beat is accepted.
    """
    write, was_first, is_first = (Signal(bool(0)) for _ in range(3))
    kept, once, twice = (Signal(intbv(0)[len(given) :]) for _ in range(3))
    place = Signal(intbv(0)[address_width(groups) :])
    store = simple_dual_port(
        clk, write, place, given, beat.fire, place, kept, depth=groups, width=len(given), output_register=True
    )

    @always_comb
    def decide() -> None:
        write.next = beat.fire and beat.first_pixel
        place.next = beat.group

    @always(clk.posedge)
    def bypass() -> None:
        once.next = given
        twice.next = once
        was_first.next = beat.first_pixel
        is_first.next = was_first

    @always_comb
    def choose() -> None:
        if is_first:
            sigma.next = twice
        else:
            sigma.next = kept

    return store, decide, bypass, choose
