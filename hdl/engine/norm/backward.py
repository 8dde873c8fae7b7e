"""The circuit of `hdl.layers.norm.online_norm.OnlineNormBackward`.

One pipeline from errors to dx, gradients and the control process; it runs freely: a beat enters only when there is room
for all its results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import (
    WIDE_PRODUCT_LATENCY,
    add_lanes,
    always_on,
    delay_vector,
    join_lanes,
    multiply_constant,
    multiply_lanes,
    round_lanes,
    signed_lanes,
    split_lanes,
    subtract_lanes,
)
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import REQUANTISE_LATENCY, delay_line, requantise_lanes
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.norm.common import (
    MEAN_LATENCY,
    beat_counter,
    channel_sums,
    frame_gate,
    line_table,
    mean_lanes,
    shortest_frame,
    split_word,
)
from hdl.engine.norm.numbers import BackwardNumbers, Mean
from hdl.engine.random import HASH_LATENCY, ROUNDING_LATENCY, hash32_pipeline, round_stochastically, stream_indices
from hdl.engine.weights.buffer import weight_buffer
from hdl.fixed import Fixed
from hdl.memory import address_width, simple_dual_port
from hdl.recipe import Recipe
from hdl.stream import Stream, bits_of
from hdl.streams import queue, width_adapter
from hdl.tensor import Tile

# beats that may be on their way; more than the latency of data path and queue, so that it never limits the rate
RESULTS = 32
# cycles, counted from that in which a beat is accepted, in which a signal shows what belongs to it
OPERANDS_AT = 4
SHAPED_AT = 8
DX_AT = 13
GRADIENT_SUMS_AT = HASH_LATENCY + 1
CONTROL_SUMS_AT = DX_AT + 2
STATE_AT = CONTROL_SUMS_AT + MEAN_LATENCY + 1 + REQUANTISE_LATENCY
TABLE_AT = STATE_AT + 1 + WIDE_PRODUCT_LATENCY + REQUANTISE_LATENCY


@dataclass(frozen=True)
class BackwardShape:
    """Everything that the circuit is built from."""

    numbers: BackwardNumbers
    recipe: Recipe
    groups: int
    # channels a cycle
    lanes: int
    # cycles between beats of the data path, as the ports deliver them
    beat_cycles: int
    gamma: Fixed
    inverse: Fixed
    g_gamma: Fixed
    g_beta: Fixed
    # of the random bits
    key_gamma: int
    key_beta: int

    @property
    def beats(self) -> int:
        """Beats a frame."""
        return self.numbers.pixels * self.groups

    @property
    def cycles(self) -> int:
        """Cycles a frame."""
        loop = math.ceil(self.loop_cycles / (self.recipe.norm_lag + 1))
        return max(shortest_frame(self.beats), loop)

    @property
    def gradient_depth(self) -> int:
        """Places of each queue of gradients."""
        return max(4, self.groups)

    @property
    def loop_cycles(self) -> int:
        """From the first beat of a frame, unstalled, to the first beat of the frame that uses its control."""
        return (self.beats - 1) * self.beat_cycles + TABLE_AT + 2


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
def batch_counter(
    clk: Any,
    rst: Any,
    fire: Any,
    group: Any,
    last_pixel: Any,
    first_frame: Any,
    last_frame: Any,
    *,
    groups: int,
    batch: int,
) -> Any:
    """Whether the next beat is of the first or of the last frame of a batch."""
    last_group, final = groups - 1, batch - 1
    before_final = max(batch - 2, 0)
    single = 1 if batch == 1 else 0
    frame = Signal(intbv(0, min=0, max=max(2, batch)))

    @always(clk.posedge)
    def count() -> None:
        if fire and last_pixel and group == last_group:
            if frame == final:
                frame.next = 0
                first_frame.next = True
                last_frame.next = single == 1
            else:
                frame.next = frame + 1
                first_frame.next = False
                last_frame.next = frame == before_final
        if rst:
            frame.next = 0
            first_frame.next = True
            last_frame.next = single == 1

    return count


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


@block
def error_path(
    clk: Any, e: Any, normal: Any, scale: Any, sigma: Any, line: Any, correlation: Any, dx: Any, shape: BackwardShape
) -> Any:
    """s = gamma e - control_v n and dx = s inverse - control_u, at `DX_AT`; s n (``correlation``) two cycles before.

    Args:
        e, normal: with the acceptance.  sigma, line: two cycles later.  scale: three cycles later.
    """
    numbers, lanes = shape.numbers, shape.lanes
    shaped = Signal(intbv(0)[lanes * numbers.shaped.width :])
    normals = signed_lanes(lanes, numbers.normal.width)
    shapeds, inverses = signed_lanes(lanes, numbers.shaped.width), signed_lanes(lanes, shape.inverse.width + 1)
    control = signed_lanes(lanes, numbers.control_u.width)
    product_width = numbers.shaped.width + shape.inverse.width
    products = signed_lanes(lanes, product_width)
    product_bits = numbers.shaped.fraction_bits + shape.inverse.fraction_bits
    bits = max(product_bits, numbers.control_u.fraction_bits)
    align, align_control = bits - product_bits, bits - numbers.control_u.fraction_bits
    width = max(product_width + align, numbers.control_u.width + align_control) + 1
    totals = signed_lanes(lanes, width)
    correlations = signed_lanes(lanes, numbers.shaped.width + numbers.normal.width)
    first = shape_error(clk, e, normal, scale, line, shaped, shape)
    operand_at = SHAPED_AT + 1
    control_base = lanes * numbers.control_v.width
    second = [
        split_lanes(clk, shaped, shapeds, width=numbers.shaped.width),
        split_word(
            clk, sigma, inverses, width=shape.inverse.width, signed=shape.inverse.signed, base=0, cycles=operand_at - 2
        ),
        split_word(
            clk, normal, normals, width=numbers.normal.width, signed=numbers.normal.signed, base=0, cycles=operand_at
        ),
        split_word(
            clk,
            line,
            control,
            width=numbers.control_u.width,
            signed=True,
            base=control_base,
            cycles=operand_at + 1 - 2,
        ),
        multiply_lanes(clk, shapeds, inverses, products),
        multiply_lanes(clk, shapeds, normals, correlations),
        subtract_lanes(clk, products, control, totals, a_shift=align, b_shift=align_control),
        requantise_lanes(clk, totals, dx, shift=bits - numbers.dx.fraction_bits, target=numbers.dx),
        join_lanes(correlations, correlation),
    ]
    return first, second


@block
def shape_error(clk: Any, e: Any, normal: Any, scale: Any, line: Any, shaped: Any, shape: BackwardShape) -> Any:
    """s = gamma e - control_v n, rounded, at `SHAPED_AT`."""
    numbers, lanes = shape.numbers, shape.lanes
    es, normals = signed_lanes(lanes, numbers.e.width), signed_lanes(lanes, numbers.normal.width)
    gammas, control = signed_lanes(lanes, shape.gamma.width), signed_lanes(lanes, numbers.control_v.width)
    scaled_width, control_width = numbers.e.width + shape.gamma.width, numbers.normal.width + numbers.control_v.width
    scaled_bits = shape.gamma.fraction_bits + numbers.e.fraction_bits
    control_bits = numbers.control_v.fraction_bits + numbers.normal.fraction_bits
    bits = max(scaled_bits, control_bits)
    width = max(scaled_width + bits - scaled_bits, control_width + bits - control_bits) + 1
    scaled, controlled = signed_lanes(lanes, scaled_width), signed_lanes(lanes, control_width)
    totals = signed_lanes(lanes, width)
    return [
        split_word(clk, e, es, width=numbers.e.width, signed=True, base=0, cycles=OPERANDS_AT),
        split_word(clk, normal, normals, width=numbers.normal.width, signed=True, base=0, cycles=OPERANDS_AT),
        split_word(clk, scale, gammas, width=shape.gamma.width, signed=True, base=0, cycles=OPERANDS_AT - 3),
        split_word(clk, line, control, width=numbers.control_v.width, signed=True, base=0, cycles=OPERANDS_AT - 2),
        multiply_lanes(clk, es, gammas, scaled),
        multiply_lanes(clk, normals, control, controlled),
        subtract_lanes(clk, scaled, controlled, totals, a_shift=bits - scaled_bits, b_shift=bits - control_bits),
        requantise_lanes(clk, totals, shaped, shift=bits - numbers.shaped.fraction_bits, target=numbers.shaped),
    ]


@block
def control_process(
    clk: Any,
    rst: Any,
    fire: Any,
    first_pixel: Any,
    last_pixel: Any,
    correlation: Any,
    dx: Any,
    write: Any,
    write_group: Any,
    write_line: Any,
    done: Any,
    shape: BackwardShape,
    contents: Mapping[str, Sequence[int]],
) -> Any:
    """Sums s n and dx over each frame, advances v and u, and writes their controls into the table."""
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    growth = (numbers.pixels - 1).bit_length()
    v_width, u_width = numbers.shaped.width + numbers.normal.width, numbers.dx.width
    v_values, u_values = signed_lanes(lanes, v_width), signed_lanes(lanes, u_width)
    v_sums, u_sums = signed_lanes(lanes, v_width + growth), signed_lanes(lanes, u_width + growth)
    early, first, last, complete, same = (Signal(bool(0)) for _ in range(5))
    place = Signal(intbv(0)[address_width(groups) :])
    write_state = Signal(bool(0))
    write_place = Signal(intbv(0)[len(place) :])
    controls_v = Signal(intbv(0)[lanes * numbers.control_v.width :])
    controls_u = Signal(intbv(0)[lanes * numbers.control_u.width :])
    last_group = groups - 1
    values_at = CONTROL_SUMS_AT - 1
    correlation_at = SHAPED_AT + 2
    sums = [
        split_word(clk, correlation, v_values, width=v_width, signed=True, base=0, cycles=values_at - correlation_at),
        split_word(clk, dx, u_values, width=u_width, signed=True, base=0, cycles=values_at - DX_AT),
        delay_vector(clk, fire, early, cycles=values_at - 2),
        delay_vector(clk, first_pixel, first, cycles=values_at - 2),
        delay_vector(clk, last_pixel, last, cycles=values_at - 2),
        channel_sums(clk, rst, early, first, last, v_values, v_sums, complete, groups=groups),
        channel_sums(clk, rst, early, first, last, u_values, u_sums, same, groups=groups),
    ]
    timing = [
        delay_vector(clk, complete, write_state, cycles=STATE_AT - CONTROL_SUMS_AT),
        delay_vector(clk, place, write_place, cycles=STATE_AT - CONTROL_SUMS_AT),
        delay_vector(clk, write_state, write, cycles=TABLE_AT - STATE_AT),
        delay_vector(clk, write_place, write_group, cycles=TABLE_AT - STATE_AT),
    ]
    v_path = control_state(
        clk,
        v_sums,
        complete,
        place,
        write_state,
        write_place,
        controls_v,
        numbers.mean_v,
        numbers.gain_v,
        (numbers.state_v, numbers.control_v),
        groups,
        contents.get("v"),
        "v",
    )
    u_path = control_state(
        clk,
        u_sums,
        complete,
        place,
        write_state,
        write_place,
        controls_u,
        numbers.mean_u,
        numbers.gain_u,
        (numbers.state_u, numbers.control_u),
        groups,
        contents.get("u"),
        "u",
    )

    @always(clk.posedge)
    def count() -> None:
        if complete:
            if place == last_group:
                place.next = 0
            else:
                place.next = place + 1
        if rst:
            place.next = 0

    @always_comb
    def out() -> None:
        write_line.next = concat(controls_u, controls_v)
        done.next = write and write_group == last_group

    return sums, timing, v_path, u_path, count, out


@block
def control_state(
    clk: Any,
    sums: Any,
    read: Any,
    place: Any,
    write: Any,
    write_place: Any,
    controls: Any,
    mean: Mean,
    gain: Scalar,
    formats: tuple[Fixed, Fixed],
    groups: int,
    contents: Sequence[int] | None,
    public: str,
) -> Any:
    """``state += mean of sums``, at `STATE_AT`; ``controls = gain * state``, at `TABLE_AT`; both saturated.

    Args:
        read: with ``sums``, for group ``place``.
        write: when the new state stands, for group ``write_place``.
        formats: of state and control.
    """
    state, control = formats
    lanes = len(sums)
    old, new = (Signal(intbv(0)[lanes * state.width :]) for _ in range(2))
    olds, news = signed_lanes(lanes, state.width), signed_lanes(lanes, state.width)
    mean_width = max(len(sums[0]) - mean.pre, 2) + 1
    means = signed_lanes(lanes, mean_width)
    totals = signed_lanes(lanes, max(mean_width, state.width) + 1)
    products = signed_lanes(lanes, gain.product_bits(state.width) + 1)
    store = simple_dual_port(
        clk,
        write,
        write_place,
        new,
        read,
        place,
        old,
        depth=groups,
        width=len(old),
        contents=contents,
        output_register=True,
        image=public,
    )
    steps = [
        mean_lanes(clk, sums, means, mean=mean),
        # two cycles of the memory
        split_word(clk, old, olds, width=state.width, signed=True, base=0, cycles=MEAN_LATENCY - 2),
        add_lanes(clk, olds, means, totals),
        requantise_lanes(clk, totals, new, shift=0, target=state),
        split_lanes(clk, new, news, width=state.width),
        multiply_constant(clk, news, products, factor=gain.mantissa, cycles=WIDE_PRODUCT_LATENCY),
        requantise_lanes(clk, products, controls, shift=gain.shift, target=control),
    ]
    return store, steps


@block
def parameter_gradients(
    clk: Any,
    rst: Any,
    fire: Any,
    flags: tuple[Any, Any, Any, Any],
    e: Any,
    normal: Any,
    g_gamma: Stream,
    g_beta: Stream,
    may_gamma: Any,
    may_beta: Any,
    shape: BackwardShape,
) -> Any:
    """Sums e n and e over each batch, rounds them stochastically, sends them on.

    Args:
        flags: first pixel, last pixel, first frame of the batch, last frame.
    """
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    first_pixel, last_pixel, first_frame, last_frame = flags
    growth = (numbers.pixels * shape.recipe.batch - 1).bit_length()
    product_width = numbers.e.width + numbers.normal.width
    values_at = GRADIENT_SUMS_AT - 1
    es, later = signed_lanes(lanes, numbers.e.width), signed_lanes(lanes, numbers.e.width)
    normals, products = signed_lanes(lanes, numbers.normal.width), signed_lanes(lanes, product_width)
    gamma_sums, beta_sums = signed_lanes(lanes, product_width + growth), signed_lanes(lanes, numbers.e.width + growth)
    first, last, draw, early, early_first, early_last, complete, same = (Signal(bool(0)) for _ in range(8))
    index = Signal(intbv(0)[32 * lanes :])
    step = Signal(intbv(0)[32:])
    drawn = Signal(intbv(0)[address_width(groups) :])
    last_group = groups - 1
    operands = [
        split_word(clk, e, es, width=numbers.e.width, signed=True, base=0, cycles=values_at - 1),
        split_word(clk, normal, normals, width=numbers.normal.width, signed=True, base=0, cycles=values_at - 1),
        multiply_lanes(clk, es, normals, products),
        round_lanes(clk, es, later, shift=0),
    ]
    timing = [
        delay_vector(clk, fire, early, cycles=values_at - 2),
        delay_vector(clk, first, early_first, cycles=values_at - 2),
        delay_vector(clk, last, early_last, cycles=values_at - 2),
    ]
    sums = [
        channel_sums(clk, rst, early, early_first, early_last, products, gamma_sums, complete, groups=groups),
        channel_sums(clk, rst, early, early_first, early_last, later, beta_sums, same, groups=groups),
    ]
    indices = stream_indices(clk, rst, draw, index, shape=(groups * lanes,), tile=Tile(), lanes=lanes)
    gamma_bits = numbers.e.fraction_bits + numbers.normal.fraction_bits
    out_gamma = gradient_out(
        clk,
        rst,
        last,
        fire,
        gamma_sums,
        complete,
        index,
        step,
        g_gamma,
        may_gamma,
        shape.key_gamma,
        gamma_bits,
        shape.g_gamma,
        shape.gradient_depth,
    )
    out_beta = gradient_out(
        clk,
        rst,
        last,
        fire,
        beta_sums,
        same,
        index,
        step,
        g_beta,
        may_beta,
        shape.key_beta,
        numbers.e.fraction_bits,
        shape.g_beta,
        shape.gradient_depth,
    )

    @always_comb
    def outer() -> None:
        first.next = first_pixel and first_frame
        last.next = last_pixel and last_frame

    @always(clk.posedge)
    def count_batches() -> None:
        draw.next = fire and last
        if draw:
            if drawn == last_group:
                drawn.next = 0
                if step == 0xFFFFFFFF:
                    step.next = 0
                else:
                    step.next = step + 1
            else:
                drawn.next = drawn + 1
        if rst:
            draw.next = False
            drawn.next = 0
            step.next = 0

    return operands, timing, sums, indices, out_gamma, out_beta, outer, count_batches


@block
def gradient_out(
    clk: Any,
    rst: Any,
    last: Any,
    fire: Any,
    sums: Any,
    complete: Any,
    index: Any,
    step: Any,
    g: Stream,
    may: Any,
    key: int,
    fraction_bits: int,
    target: Fixed,
    depth: int,
) -> Any:
    """Rounds complete sums stochastically; they wait in a queue for ``g``.

    The random words of ``index`` come `HASH_LATENCY` cycles later, together with the sums."""
    lanes = len(sums)
    words, total = Signal(intbv(0)[32 * lanes :]), Signal(intbv(0)[lanes * len(sums[0]) :])
    random = Signal(intbv(0)[16 * lanes :])
    enable, reserve = Signal(bool(1)), Signal(bool(0))
    made, results = Stream(lanes * target.width), Stream(lanes * target.width)
    steps = [
        hash32_pipeline(clk, enable, index, step, key, words),
        join_lanes(sums, total),
        round_stochastically(
            clk,
            enable,
            total,
            random,
            made.payload,
            lanes=lanes,
            shift=fraction_bits - target.fraction_bits,
            target=target,
        ),
        delay_line(clk, complete, made.valid, cycles=ROUNDING_LATENCY),
        queue(clk, rst, made, results, depth=depth),
        result_places(clk, rst, reserve, results, may, places=depth),
        width_adapter(clk, rst, results, g, element_bits=target.width),
        always_on(clk, enable),
    ]

    @always_comb
    def take() -> None:
        reserve.next = fire and last
        for lane in range(lanes):
            random.next[bits_of(lane, 16)] = words[lane * 32 + 32 : lane * 32 + 16]

    return steps, take
