"""The data path of the backward circuit: errors to dx."""

from __future__ import annotations

from myhdl import Signal, block, intbv

from hdl.engine.arithmetic.lanes import (
    join_lanes,
    multiply_lanes,
    signed_lanes,
    split_lanes,
    split_word,
    subtract_lanes,
)
from hdl.engine.arithmetic.requantise import requantise_lanes
from hdl.engine.norm.shapes import OPERANDS_AT, SHAPED_AT, BackwardShape
from hdl.signals import Bits, Clock, Instances


@block
def error_path(
    clk: Clock,
    e: Bits,
    normal: Bits,
    scale: Bits,
    sigma: Bits,
    line: Bits,
    correlation: Bits,
    dx: Bits,
    *,
    shape: BackwardShape,
) -> Instances:
    """s = gamma e - control_v n and dx = s inverse - control_u; s n is their ``correlation``.

    Ports:
        e: in, ``lanes`` codes of ``shape.numbers.e``, as a beat is accepted.
        normal: in, ``lanes`` codes of ``shape.numbers.normal``, with ``e``.
        scale: in, ``lanes`` codes of ``shape.gamma``, 3 cycles later.
        sigma: in, ``lanes`` codes of ``shape.inverse``, 2 cycles later.
        line: in, ``lanes`` codes of ``shape.numbers.control_v`` and above them ``lanes`` of
            ``shape.numbers.control_u``, 2 cycles later.
        correlation: out, ``lanes`` signed codes as wide as ``shape.numbers.shaped`` and ``shape.numbers.normal``
            together, `SHAPED_AT` + 2 cycles later.
        dx: out, ``lanes`` codes of ``shape.numbers.dx``, `DX_AT` cycles later.
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
    first = shape_error(clk, e, normal, scale, line, shaped, shape=shape)
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
def shape_error(
    clk: Clock, e: Bits, normal: Bits, scale: Bits, line: Bits, shaped: Bits, *, shape: BackwardShape
) -> Instances:
    """s = gamma e - control_v n, rounded.

    Ports:
        e, normal, scale, line: in, as of `error_path`.
        shaped: out, ``lanes`` codes of ``shape.numbers.shaped``, `SHAPED_AT` cycles after ``e``.
    """
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
