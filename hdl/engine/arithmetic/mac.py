"""Multipliers and adder trees: the products of one weight tile with its operands, summed per result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always, block, intbv

from hdl.fixed import Fixed
from hdl.signals import Bit, Bits, Clock, Instances
from hdl.stream import bits_of

# bits of the widest signed factor that one multiplier takes
WIDEST_FACTOR = 27
# the same of a multiplier of which a DSP block has two
WIDEST_OF_PAIR = 18


def operand_bits(fixed: Fixed) -> int:
    """Bits of a code as a signed multiplier operand."""
    return fixed.width + (not fixed.signed)


def signed_signal(bits: int) -> Bits:
    """A two's-complement signal."""
    signal: Bits = Signal(intbv(0, min=-(1 << (bits - 1)), max=1 << (bits - 1)))
    return signal


def tree_levels(terms: int) -> int:
    """Registered levels of a tree of two-input adders."""
    return (terms - 1).bit_length()


@dataclass(frozen=True)
class MacShape:
    """``results`` sums of ``summed * taps`` products a cycle, in each of ``groups``.

    The weight of (result, summed lane, tap) is lane ``result * weight_result + summed * weight_summed + tap`` of the
    weight word; its operand is lane ``summed`` of the operand word of ``tap``.  Weights, operands and results of one
    group follow those of the one before."""

    # of a group
    results: int
    # operand lanes of a group, which are summed
    summed: int
    taps: int
    weight_result: int
    weight_summed: int
    operand: Fixed
    weight: Fixed
    groups: int = 1

    @property
    def operands(self) -> int:
        """Operand lanes of a tap."""
        return self.groups * self.summed

    @property
    def sums(self) -> int:
        """Results of all groups."""
        return self.groups * self.results

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
def weight_lanes(clk: Clock, word: Bits, lanes: Sequence[Bits], *, fixed: Fixed) -> Instances:
    """Registers the lanes of a word as signed numbers.

    Ports:
        word: in, ``len(lanes)`` codes of ``fixed``, lane 0 in the low bits.
        lanes: out, signed signals of `operand_bits`, 1 cycle later.
    """
    width, count = fixed.width, len(lanes)

    if fixed.signed:

        @always(clk.posedge)
        def split() -> None:
            for lane in range(count):
                lanes[lane].next = word[bits_of(lane, width)].signed()

        return split

    @always(clk.posedge)
    def widen() -> None:
        for lane in range(count):
            lanes[lane].next = word[bits_of(lane, width)]

    return widen


@block
def operand_lanes(
    clk: Clock, words: Sequence[Bits], inside: Sequence[Bit], lanes: Sequence[Bits], *, fixed: Fixed
) -> Instances:
    """Registers the lanes of one word a tap as signed numbers, zeros where padding is.

    Ports:
        words: in, a vector a tap: ``len(lanes) / len(words)`` codes of ``fixed``, lane 0 in the low bits.
        inside: in, 1 bit a tap, with its word: where low, the tap is in the padding.
        lanes: out, signed signals of `operand_bits`, those of a tap side by side, 1 cycle later.
    """
    width, taps = fixed.width, len(words)
    count = len(lanes) // taps
    ones = (1 << width) - 1

    # a gate in front of the register, not a clear, which the registers of a multiplier don't have
    if fixed.signed:

        @always(clk.posedge)
        def split() -> None:
            mask = intbv(0)[width:]
            word = intbv(0)[width:]
            for tap in range(taps):
                mask[:] = 0
                if inside[tap]:
                    mask[:] = intbv(ones)[width:]
                for lane in range(count):
                    word[:] = words[tap][bits_of(lane, width)]
                    word[:] = word & mask
                    lanes[tap * count + lane].next = word.signed()

        return split

    @always(clk.posedge)
    def widen() -> None:
        mask = intbv(0)[width:]
        word = intbv(0)[width:]
        for tap in range(taps):
            mask[:] = 0
            if inside[tap]:
                mask[:] = intbv(ones)[width:]
            for lane in range(count):
                word[:] = words[tap][bits_of(lane, width)]
                lanes[tap * count + lane].next = word & mask

    return widen


@block
def mac_array(
    clk: Clock,
    weight_word: Bits,
    words: Sequence[Bits],
    inside: Sequence[Bit],
    sums: Sequence[Bits],
    *,
    shape: MacShape,
) -> Instances:
    """``sums[r]``, ``shape.latency`` cycles after the words; runs freely.

    Costs a multiplier with registered inputs and outputs for each weight, and registered adder trees.

    Ports:
        weight_word: in, with the words: one tile of weights, ``shape.sums * shape.terms`` codes of ``shape.weight``.
        words: in, a vector a tap: ``shape.operands`` codes of ``shape.operand``.
        inside: in, 1 bit a tap, with the words: whether the tap counts (else zeros).
        sums: out, ``shape.sums`` signed signals of ``shape.sum_bits`` bits, ``shape.latency`` cycles later.
    """
    results, summed, taps, terms = shape.results, shape.summed, shape.taps, shape.terms
    by_result, by_summed = shape.weight_result, shape.weight_summed
    groups, every, size = shape.groups, shape.operands, shape.results * shape.terms
    weights = [signed_signal(operand_bits(shape.weight)) for _ in range(groups * size)]
    operands = [signed_signal(operand_bits(shape.operand)) for _ in range(every * taps)]
    products = sums if terms == 1 else [signed_signal(shape.product_bits) for _ in range(groups * size)]
    split = operand_lanes(clk, words, inside, operands, fixed=shape.operand)
    split_weights = weight_lanes(clk, weight_word, weights, fixed=shape.weight)

    if groups == 1:

        @always(clk.posedge)
        def multiply() -> None:
            for result in range(results):
                for lane in range(summed):
                    for tap in range(taps):
                        products[result * terms + lane * taps + tap].next = (
                            weights[result * by_result + lane * by_summed + tap] * operands[tap * summed + lane]
                        )

    else:

        @always(clk.posedge)
        def multiply() -> None:
            for group in range(groups):
                for result in range(results):
                    for lane in range(summed):
                        for tap in range(taps):
                            products[group * size + result * terms + lane * taps + tap].next = (
                                weights[group * size + result * by_result + lane * by_summed + tap]
                                * operands[tap * every + group * summed + lane]
                            )

    if terms == 1:
        return split, split_weights, multiply
    tree = adder_trees(clk, products, sums, terms=terms)
    return split, split_weights, multiply, tree


@block
def adder_trees(clk: Clock, terms_in: Sequence[Bits], sums: Sequence[Bits], *, terms: int) -> Instances:
    """Sums of each ``terms`` (at least 2) neighbours, `tree_levels` cycles later.

    Each level is registered and one bit wider than the one before; an odd term is carried along.

    Ports:
        terms_in: in, ``terms * len(sums)`` signed signals of one width.
        sums: out, signed signals `tree_levels` bits wider, `tree_levels` cycles later.
    """
    half, odd = terms // 2, terms % 2
    kept = half + odd
    results = len(sums)
    level = sums if kept == 1 else [signed_signal(len(terms_in[0]) + 1) for _ in range(results * kept)]

    @always(clk.posedge)
    def add() -> None:
        for result in range(results):
            for i in range(half):
                level[result * kept + i].next = terms_in[result * terms + 2 * i] + terms_in[result * terms + 2 * i + 1]
            if odd == 1:
                level[result * kept + half].next = terms_in[result * terms + terms - 1]

    if kept == 1:
        return add
    rest = adder_trees(clk, level, sums, terms=kept)
    return add, rest
