"""The circuit of `hdl.layers.norm.online_norm.OnlineNormBackward`.

One pipeline from errors to dx, gradients and the control process; it runs freely: a beat enters only when there is room
for all its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.lanes import always_on
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line
from hdl.engine.norm.control import control_process
from hdl.engine.norm.error_path import error_path
from hdl.engine.norm.frames import batch_counter, beat_counter, frame_gate
from hdl.engine.norm.parameter_gradients import parameter_gradients
from hdl.engine.norm.shapes import DX_AT, RESULTS, BackwardShape
from hdl.engine.norm.table import line_table
from hdl.engine.weights.buffer import weight_buffer
from hdl.memory import address_width, simple_dual_port
from hdl.stream import Stream
from hdl.streams import queue, width_adapter


@block
def norm_backward(
    clk: Any,
    rst: Any,
    e: Stream,
    gamma: Stream,
    normal: Stream,
    inverse: Stream,
    dx: Stream,
    g_gamma: Stream,
    g_beta: Stream,
    *,
    shape: BackwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Any:
    """Rates as `OnlineNormBackward.cycles_per_frame` says; latency `DX_AT` cycles and a queue.

    Costs five multipliers a lane and memories of a few words a channel."""
    contents = images or {}
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    es, normals, inverses = (Stream(lanes * fixed.width) for fixed in (numbers.e, numbers.normal, shape.inverse))
    early_inverses = Stream(inverses.width)
    results, dxs = Stream(lanes * numbers.dx.width), Stream(lanes * numbers.dx.width)
    adapters = [
        width_adapter(clk, rst, e, es, element_bits=numbers.e.width),
        width_adapter(clk, rst, normal, normals, element_bits=numbers.normal.width),
        width_adapter(clk, rst, inverse, early_inverses, element_bits=shape.inverse.width),
        # all inverses of a frame are needed with its first pixel and may arrive as slowly as a frame
        queue(clk, rst, early_inverses, inverses, depth=max(2, groups)),
        width_adapter(clk, rst, dxs, dx, element_bits=numbers.dx.width),
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

    counter = beat_counter(clk, rst, fire, group, first_pixel, last_pixel, pixels=numbers.pixels, groups=groups)
    frame_counter = batch_counter(
        clk, rst, fire, group, last_pixel, first_frame, last_frame, groups=groups, batch=shape.recipe.batch
    )
    begin = accept_errors(
        clk,
        rst,
        es,
        normals,
        inverses,
        gamma,
        done,
        (may_dx, may_gamma, may_beta),
        fire,
        group,
        first_pixel,
        last_pixel,
        last_frame,
        scale,
        shape,
        contents.get("weights"),
    )
    sigmas = kept_inverses(clk, fire, first_pixel, group, inverses.payload, sigma, groups=groups)
    table = line_table(
        clk, rst, fire, group, last_pixel, line, write, write_group, write_line, shape, contents.get("table")
    )
    correlation = Signal(intbv(0)[lanes * (numbers.shaped.width + numbers.normal.width) :])
    path = error_path(clk, es.payload, normals.payload, scale, sigma, line, correlation, results.payload, shape)
    mark = delay_line(clk, fire, results.valid, cycles=DX_AT)
    hold = queue(clk, rst, results, dxs, depth=RESULTS)
    places = result_places(clk, rst, fire, dxs, may_dx, places=RESULTS)
    control = control_process(
        clk,
        rst,
        fire,
        first_pixel,
        last_pixel,
        correlation,
        results.payload,
        write,
        write_group,
        write_line,
        done,
        shape,
        contents,
    )
    gradients = parameter_gradients(
        clk,
        rst,
        fire,
        (first_pixel, last_pixel, first_frame, last_frame),
        es.payload,
        normals.payload,
        g_gamma,
        g_beta,
        may_gamma,
        may_beta,
        shape,
    )
    return (
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
        gradients,
    )


@block
def norm_gradients(
    clk: Any,
    rst: Any,
    e: Stream,
    gamma: Stream,
    normal: Stream,
    inverse: Stream,
    g_gamma: Stream,
    g_beta: Stream,
    *,
    shape: BackwardShape,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Any:
    """`norm_backward` whose dx nobody wants."""
    dx = Stream(shape.lanes // shape.beat_cycles * shape.numbers.dx.width)
    engine = norm_backward(clk, rst, e, gamma, normal, inverse, dx, g_gamma, g_beta, shape=shape, images=images)
    drain = always_on(clk, dx.ready)
    return engine, drain


@block
def accept_errors(
    clk: Any,
    rst: Any,
    e: Stream,
    normal: Stream,
    inverse: Stream,
    gamma: Stream,
    done: Any,
    may: tuple[Any, Any, Any],
    fire: Any,
    group: Any,
    first_pixel: Any,
    last_pixel: Any,
    last_frame: Any,
    scale: Any,
    shape: BackwardShape,
    contents: Sequence[int] | None,
) -> Any:
    """Accepts beats of e and normal together, in a frame's first pixel with inverse; reads ``scale`` for them.

    Args:
        may: room for dx, for gradients of gamma, of beta.
    """
    groups, last_group = shape.groups, shape.groups - 1
    permit, claim, claimable, start, finish, frame_last, open_, there = (Signal(bool(0)) for _ in range(8))
    gammas = Stream(shape.lanes * shape.gamma.width)
    place = Signal(intbv(0)[address_width(groups) :])
    may_dx, may_gamma, may_beta = may
    adapt = width_adapter(clk, rst, gamma, gammas, element_bits=shape.gamma.width)
    versions = weight_buffer(
        clk,
        rst,
        gammas,
        claim,
        claimable,
        fire,
        place,
        frame_last,
        scale,
        words=groups,
        recipe=shape.recipe,
        contents=contents,
    )
    gate = frame_gate(
        clk,
        rst,
        claimable,
        done,
        start,
        claim,
        permit,
        finish,
        credits=shape.recipe.norm_lag + 1,
        spacing=shape.cycles,
        beats=shape.beats,
    )

    @always_comb
    def decide() -> None:
        open_.next = (
            may_dx
            and ((may_gamma and may_beta) or not last_pixel or not last_frame)
            and (permit or not first_pixel or group != 0)
        )
        there.next = e.valid and normal.valid and (inverse.valid or not first_pixel)

    @always_comb
    def handshake() -> None:
        fire.next = open_ and there
        start.next = open_ and there and first_pixel and group == 0
        finish.next = open_ and there and last_pixel and group == last_group
        frame_last.next = last_pixel and group == last_group
        place.next = group

    @always_comb
    def ready() -> None:
        e.ready.next = open_ and normal.valid and (inverse.valid or not first_pixel)
        normal.ready.next = open_ and e.valid and (inverse.valid or not first_pixel)
        inverse.ready.next = open_ and e.valid and normal.valid and first_pixel

    return adapt, versions, gate, decide, handshake, ready


@block
def kept_inverses(clk: Any, fire: Any, first_pixel: Any, group: Any, given: Any, sigma: Any, *, groups: int) -> Any:
    """The inverses of the frame: ``given`` with its first pixel, kept for the others; ``sigma`` two cycles later."""
    write, was_first, is_first = (Signal(bool(0)) for _ in range(3))
    kept, once, twice = (Signal(intbv(0)[len(given) :]) for _ in range(3))
    place = Signal(intbv(0)[address_width(groups) :])
    store = simple_dual_port(
        clk, write, place, given, fire, place, kept, depth=groups, width=len(given), output_register=True
    )

    @always_comb
    def decide() -> None:
        write.next = fire and first_pixel
        place.next = group

    @always(clk.posedge)
    def bypass() -> None:
        once.next = given
        twice.next = once
        was_first.next = first_pixel
        is_first.next = was_first

    @always_comb
    def choose() -> None:
        if is_first:
            sigma.next = twice
        else:
            sigma.next = kept

    return store, decide, bypass, choose
