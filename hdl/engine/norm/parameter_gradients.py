"""Gradients of scale and shift, over each batch."""

from __future__ import annotations

from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

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
from hdl.engine.norm.shapes import GRADIENT_SUMS_AT, BackwardShape
from hdl.engine.norm.sums import channel_sums
from hdl.engine.random import ROUNDING_LATENCY, hash32_pipeline, round_stochastically, stream_indices
from hdl.fixed import Fixed
from hdl.memory import address_width
from hdl.stream import Stream, bits_of
from hdl.streams import queue, width_adapter
from hdl.tensor import Tile


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
