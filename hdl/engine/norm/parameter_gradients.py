"""Gradients of scale and shift, over each batch."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import (
    always_on,
    delay_vector,
    join_lanes,
    multiply_lanes,
    round_lanes,
    signed_lanes,
    split_word,
)
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line
from hdl.engine.norm.bundles import BackwardRoom, BatchBeat, FrameSums, GradientSteps
from hdl.engine.norm.shapes import BackwardShape
from hdl.engine.norm.sums import channel_sums, part_sums
from hdl.engine.random import ROUNDING_LATENCY, hash32_pipeline, round_stochastically, stream_indices
from hdl.engine.weights.access import Begin
from hdl.engine.weights.gradient_rounding import Rounding, leaving
from hdl.fixed import Fixed
from hdl.memory import address_width
from hdl.random_bits import WORD
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import fork, queue, width_adapter
from hdl.tensor import Tile


@block
def parameter_gradients(
    domain: ClockReset,
    beat: BatchBeat,
    e: Bits,
    normal: Bits,
    g_gamma: Stream,
    g_beta: Stream,
    room: BackwardRoom,
    begin: Begin | None = None,
    *,
    shape: BackwardShape,
) -> Instances:
    """Sums e n and e over each batch, rounds them stochastically unless they leave as they are, sends them on.

    Ports:
        beat: in, all of it but ``group``.
        e: in, ``lanes`` codes of ``shape.numbers.e``, as a beat is accepted.
        normal: in, ``lanes`` codes of ``shape.numbers.normal``, with ``e``.
        g_gamma, g_beta: out, streams of codes of ``shape.g_gamma``, of ``shape.g_beta``, from queues that take them
            `GRADIENT_SUMS_AT` + `ROUNDING_LATENCY` cycles after a group's last beat of the batch, exact sums after the
            former.
        room: out, all of it but ``dx``.
        begin: in, as of `gradient_rounding`.
    """
    counting = domain if begin is None else begin.domain(domain)
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    growth = (numbers.pixels * shape.recipe.batch - 1).bit_length()
    product_width = numbers.e.width + numbers.normal.width
    values_at = shape.gradient_sums_at - 1
    es, later = signed_lanes(lanes, numbers.e.width), signed_lanes(lanes, numbers.e.width)
    normals, products = signed_lanes(lanes, numbers.normal.width), signed_lanes(lanes, product_width)
    gamma_sums, beta_sums = signed_lanes(lanes, product_width + growth), signed_lanes(lanes, numbers.e.width + growth)
    first, last, draw, early, early_first, early_last, complete, same = (Signal(bool(0)) for _ in range(8))
    index = Signal(intbv(0)[32 * lanes :])
    step = Signal(intbv(0)[32:])
    drawn = Signal(intbv(0)[address_width(groups) :])
    last_group = groups - 1
    begun = shape.begun % (1 << WORD) if begin is None else begin.batches
    operands = [
        split_word(domain.clk, e, es, width=numbers.e.width, signed=True, base=0, cycles=values_at - 1),
        split_word(domain.clk, normal, normals, width=numbers.normal.width, signed=True, base=0, cycles=values_at - 1),
        multiply_lanes(domain.clk, es, normals, products),
        round_lanes(domain.clk, es, later, shift=0),
    ]
    timing = [
        delay_vector(domain.clk, beat.fire, early, cycles=values_at - 2),
        delay_vector(domain.clk, first, early_first, cycles=values_at - 2),
        delay_vector(domain.clk, last, early_last, cycles=values_at - 2),
    ]
    sums = [
        channel_sums(domain, early, early_first, early_last, products, gamma_sums, complete, groups=groups),
        channel_sums(domain, early, early_first, early_last, later, beta_sums, same, groups=groups),
    ]

    @always_comb
    def outer() -> None:
        first.next = beat.first_pixel and beat.first_frame
        last.next = beat.last_pixel and beat.last_frame

    gamma_bits = numbers.e.fraction_bits + numbers.normal.fraction_bits
    if shape.slow.lanes < lanes:
        found = FrameSums(gamma_sums, beta_sums, complete)
        divided = divided_gradients(
            domain, beat.fire, last, found, g_gamma, g_beta, room, begin, shape=shape, bits=gamma_bits
        )
        return operands, timing, sums, divided, outer

    if shape.exact:
        pairs = [(gamma_sums, complete, g_gamma, room.g_gamma), (beta_sums, same, g_beta, room.g_beta)]
        given = [sums_out(domain, beat.fire, last, *pair, depth=shape.gradient_depth) for pair in pairs]
        return operands, timing, sums, given, outer

    indices = stream_indices(domain, draw, index, shape=(groups * lanes,), tile=Tile(), lanes=lanes)
    steps = GradientSteps(beat.fire, last, index, step)
    out_gamma = gradient_out(
        domain,
        steps,
        gamma_sums,
        complete,
        g_gamma,
        room.g_gamma,
        key=shape.key_gamma,
        fraction_bits=gamma_bits,
        target=shape.g_gamma,
        depth=shape.gradient_depth,
    )
    out_beta = gradient_out(
        domain,
        steps,
        beta_sums,
        same,
        g_beta,
        room.g_beta,
        key=shape.key_beta,
        fraction_bits=numbers.e.fraction_bits,
        target=shape.g_beta,
        depth=shape.gradient_depth,
    )

    @always(domain.clk.posedge)
    def count_batches() -> None:
        draw.next = beat.fire and last
        if draw:
            if drawn == last_group:
                drawn.next = 0
                if step == 0xFFFFFFFF:
                    step.next = 0
                else:
                    step.next = step + 1
            else:
                drawn.next = drawn + 1
        if counting.rst:
            draw.next = False
            drawn.next = 0
            step.next = begun

    return operands, timing, sums, indices, out_gamma, out_beta, outer, count_batches


@block
def divided_gradients(
    domain: ClockReset,
    fire: Bit,
    last: Bit,
    found: FrameSums,
    g_gamma: Stream,
    g_beta: Stream,
    room: BackwardRoom,
    begin: Begin | None = None,
    *,
    shape: BackwardShape,
    bits: int,
) -> Instances:
    """Sums of all lanes wait in a queue; those of some lanes a cycle are rounded and leave.

    Ports:
        fire: in, 1 bit: a beat is accepted at this edge.
        last: in, 1 bit, with ``fire``: it is of the last pixel of its batch.
        found: in, all of it: sums of e n, of e.
        g_gamma, g_beta: out, as of `parameter_gradients`.
        room: out, all of it but ``dx``.
        begin: in, as of `gradient_rounding`.

    Args:
        bits: fraction bits of sums of e n.
    """
    lanes, chosen, e = shape.lanes, shape.slow.lanes, shape.numbers.e
    widths = len(found.v[0]), len(found.u[0])
    base, top = chosen * widths[0], chosen * sum(widths)
    low, high = Signal(intbv(0)[lanes * widths[0] :]), Signal(intbv(0)[lanes * widths[1] :])
    made, sums, parts = (Stream(lanes * sum(widths)) for _ in range(3))
    few, for_gamma, for_beta = (Stream(top) for _ in range(3))
    gamma_sums, beta_sums = Stream(base), Stream(top - base)
    gammas, betas = Stream(chosen * shape.g_gamma.width), Stream(chosen * shape.g_beta.width)
    reserve, may = Signal(bool(0)), Signal(bool(0))
    complete = found.complete

    def rounding(fraction_bits: int, target: Fixed, key: int) -> Rounding | None:
        if shape.exact:
            return None
        shift = fraction_bits - target.fraction_bits
        return Rounding((lanes * shape.groups,), Tile(), chosen, shift, target, key, shape.begun)

    queued = [
        join_lanes(found.v, low),
        join_lanes(found.u, high),
        queue(domain, made, sums, depth=shape.gradient_depth),
        result_places(domain, reserve, sums, may, places=shape.gradient_depth),
        part_sums(sums, parts, lanes=lanes, chosen=chosen, widths=widths),
        width_adapter(domain, parts, few, element_bits=top),
        fork(domain, few, [for_gamma, for_beta]),
    ]
    rounded = [
        leaving(rounding(bits, shape.g_gamma, shape.key_gamma), begin)(domain, gamma_sums, gammas),
        leaving(rounding(e.fraction_bits, shape.g_beta, shape.key_beta), begin)(domain, beta_sums, betas),
        width_adapter(domain, gammas, g_gamma, element_bits=shape.g_gamma.width),
        width_adapter(domain, betas, g_beta, element_bits=shape.g_beta.width),
    ]

    @always_comb
    def give() -> None:
        reserve.next = fire and last
        made.valid.next = complete
        made.payload.next = concat(high, low)

    @always_comb
    def part() -> None:
        gamma_sums.valid.next = for_gamma.valid
        gamma_sums.payload.next = for_gamma.payload[base:]
        for_gamma.ready.next = gamma_sums.ready
        beta_sums.valid.next = for_beta.valid
        beta_sums.payload.next = for_beta.payload[top:base]
        for_beta.ready.next = beta_sums.ready

    @always_comb
    def free() -> None:
        room.g_gamma.next = may
        room.g_beta.next = may

    return queued, rounded, give, part, free


@block
def sums_out(
    domain: ClockReset, fire: Bit, last: Bit, sums: Sequence[Bits], complete: Bit, g: Stream, may: Bit, *, depth: int
) -> Instances:
    """Complete sums wait in a queue of ``depth`` beats for ``g``.

    Ports:
        fire: in, 1 bit: a beat is accepted at this edge.
        last: in, 1 bit, with ``fire``: it is of the last pixel of its batch.
        sums: in, signed signals of one width.
        complete: in, 1 bit: ``sums`` are complete.
        g: out, stream of them.
        may: out, 1 bit, from registers: there is a place in the queue.
    """
    lanes, width = len(sums), len(sums[0])
    made, results = Stream(lanes * width), Stream(lanes * width)
    reserve = Signal(bool(0))
    parts = [
        join_lanes(sums, made.payload),
        queue(domain, made, results, depth=depth),
        result_places(domain, reserve, results, may, places=depth),
        width_adapter(domain, results, g, element_bits=width),
    ]

    @always_comb
    def take() -> None:
        reserve.next = fire and last
        made.valid.next = complete

    return parts, take


@block
def gradient_out(
    domain: ClockReset,
    steps: GradientSteps,
    sums: Sequence[Bits],
    complete: Bit,
    g: Stream,
    may: Bit,
    *,
    key: int,
    fraction_bits: int,
    target: Fixed,
    depth: int,
) -> Instances:
    """Rounds complete sums stochastically; they wait in a queue of ``depth`` beats for ``g``.

    Ports:
        steps: in, all of it.
        sums: in, signed signals of one width with ``fraction_bits``, `HASH_LATENCY` cycles after their ``steps.index``.
        complete: in, 1 bit: ``sums`` are complete.
        g: out, stream of codes of ``target``, from a queue that takes them `ROUNDING_LATENCY` cycles after ``sums``.
        may: out, 1 bit, from registers: there is a place in the queue.

    Args:
        key: of the random bits.
    """
    lanes = len(sums)
    words, total = Signal(intbv(0)[32 * lanes :]), Signal(intbv(0)[lanes * len(sums[0]) :])
    random = Signal(intbv(0)[16 * lanes :])
    enable, reserve = Signal(bool(1)), Signal(bool(0))
    made, results = Stream(lanes * target.width), Stream(lanes * target.width)
    parts = [
        hash32_pipeline(domain.clk, enable, steps.index, steps.step, key, words),
        join_lanes(sums, total),
        round_stochastically(
            domain.clk,
            enable,
            total,
            random,
            made.payload,
            lanes=lanes,
            shift=fraction_bits - target.fraction_bits,
            target=target,
        ),
        delay_line(domain.clk, complete, made.valid, cycles=ROUNDING_LATENCY),
        queue(domain, made, results, depth=depth),
        result_places(domain, reserve, results, may, places=depth),
        width_adapter(domain, results, g, element_bits=target.width),
        always_on(domain.clk, enable),
    ]

    @always_comb
    def take() -> None:
        reserve.next = steps.fire and steps.last
        for lane in range(lanes):
            random.next[bits_of(lane, 16)] = words[lane * 32 + 32 : lane * 32 + 16]

    return parts, take
