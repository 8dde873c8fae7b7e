"""Multipliers and adder trees: the products of one weight tile with its operands, summed per result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.fixed import Fixed


def operand_bits(fixed: Fixed) -> int:
    """Bits of a code as a signed multiplier operand."""
    return fixed.width + (not fixed.signed)


def signed_signal(bits: int) -> Any:
    """A two's-complement signal."""
    return Signal(intbv(0, min=-(1 << (bits - 1)), max=1 << (bits - 1)))


def tree_levels(terms: int) -> int:
    """Registered levels of a tree of two-input adders."""
    return (terms - 1).bit_length()


@dataclass(frozen=True)
class MacShape:
    """``results`` sums of ``summed * taps`` products a cycle.

    The weight of (result, summed lane, tap) is lane ``result * weight_result + summed * weight_summed + tap`` of the
    weight word; its operand is lane ``summed`` of the operand word of ``tap``."""

    results: int
    # operand lanes that are summed
    summed: int
    taps: int
    weight_result: int
    weight_summed: int
    operand: Fixed
    weight: Fixed

    @property
    def terms(self) -> int:
        """Products a result."""
        return self.summed * self.taps

    @property
    def product_bits(self) -> int:
        """Bits of a product."""
        return operand_bits(self.operand) + operand_bits(self.weight)

    @property
    def sum_bits(self) -> int:
        """Bits of the sum of one cycle."""
        return self.product_bits + tree_levels(self.terms)

    @property
    def latency(self) -> int:
        """Cycles from the words to the sums: operand registers, product registers, tree."""
        return 2 + tree_levels(self.terms)


@block
def unpack_lanes(clk: Any, word: Any, lanes: Any, *, fixed: Fixed) -> Any:
    """Registers the lanes of a word as signed numbers."""
    width, count = fixed.width, len(lanes)

    if fixed.signed:

        @always(clk.posedge)
        def split() -> None:
            for lane in range(count):
                lanes[lane].next = word[lane * width + width : lane * width].signed()

        return split

    @always(clk.posedge)
    def widen() -> None:
        for lane in range(count):
            lanes[lane].next = word[lane * width + width : lane * width]

    return widen


@block
def gated_word(word: Any, inside: Any, gated: Any) -> Any:
    """The word, or zeros where padding is; combinational."""

    @always_comb
    def gate() -> None:
        if inside:
            gated.next = word
        else:
            gated.next = 0

    return gate


@block
def mac_array(clk: Any, weight_word: Any, words: Any, inside: Any, sums: Any, *, shape: MacShape) -> Any:
    """``sums[r]``, ``shape.latency`` cycles after the words; runs freely.

    Costs ``results * summed * taps`` multipliers with registered inputs and outputs, and a registered adder tree.

    Args:
        weight_word: one tile of weights.
        words, inside: for each tap the operand word, and whether it counts (else zeros).
        sums: list of ``results`` signals of ``shape.sum_bits`` bits.
    """
    results, summed, taps = shape.results, shape.summed, shape.taps
    by_result, by_summed = shape.weight_result, shape.weight_summed
    weights = [signed_signal(operand_bits(shape.weight)) for _ in range(results * shape.terms)]
    operands = [signed_signal(operand_bits(shape.operand)) for _ in range(shape.terms)]
    products = [signed_signal(shape.product_bits) for _ in range(results * shape.terms)]
    gated = [Signal(intbv(0)[len(words[0]) :]) for _ in range(taps)]
    gates = [gated_word(words[tap], inside[tap], gated[tap]) for tap in range(taps)]
    splits = [
        unpack_lanes(clk, gated[tap], operands[tap * summed : (tap + 1) * summed], fixed=shape.operand)
        for tap in range(taps)
    ]
    split_weights = unpack_lanes(clk, weight_word, weights, fixed=shape.weight)
    terms = shape.terms

    @always(clk.posedge)
    def multiply() -> None:
        for result in range(results):
            for lane in range(summed):
                for tap in range(taps):
                    products[result * terms + lane * taps + tap].next = (
                        weights[result * by_result + lane * by_summed + tap] * operands[tap * summed + lane]
                    )

    trees = [
        adder_tree(clk, products[result * terms : (result + 1) * terms], sums[result]) for result in range(results)
    ]
    return gates, splits, split_weights, multiply, trees


@block
def adder_tree(clk: Any, terms: Any, total: Any) -> Any:
    """The sum of signed ``terms``, `tree_levels` cycles later; each level is registered and one bit wider."""
    count = len(terms)
    if count == 1:
        single = terms[0]

        @always_comb
        def pass_on() -> None:
            total.next = single

        return pass_on
    width = len(terms[0]) + 1
    half = count // 2
    level = [signed_signal(width) for _ in range(count - half)]
    if count % 2:
        odd = terms[count - 1]
        carried = level[half]

        @always(clk.posedge)
        def carry() -> None:
            carried.next = odd

        extra = carry
    else:
        extra = ()

    @always(clk.posedge)
    def add() -> None:
        for i in range(half):
            level[i].next = terms[2 * i] + terms[2 * i + 1]

    rest = adder_tree(clk, level, total)
    return add, extra, rest
