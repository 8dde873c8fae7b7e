"""Engines whose kernel slides over each channel by itself: depthwise convolution, and what pooling shares with it.

The map lies in a ring of rows (`row_store`), a `walker` says what to read, results gather in a queue; in between the
pipeline runs freely, since an operation starts only when a place for its result is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.mac import adder_trees, operand_bits, operand_lanes, signed_signal, tree_levels, weight_lanes
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import accumulator, delay_line, requantise_lanes
from hdl.engine.weights.buffer import weight_buffer
from hdl.engine.window.convolution import RESULTS
from hdl.engine.window.map_reader import map_reader
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import Steps, WeightSteps
from hdl.fixed import Fixed
from hdl.recipe import Recipe
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import queue, width_adapter


@dataclass(frozen=True)
class ChannelShape:
    """Everything that a depthwise engine is built from."""

    walk: Walk
    # channels a cycle
    lanes: int
    operand: Fixed
    weight: Fixed
    weights: WeightSteps
    # weight words a version
    words: int
    ring_rows: int
    # bits of the sums that are cut off
    shift: int
    result: Fixed
    recipe: Recipe

    @property
    def taps(self) -> int:
        """Taps a cycle."""
        return self.walk.taps

    @property
    def product_bits(self) -> int:
        """Bits of a product."""
        return operand_bits(self.operand) + operand_bits(self.weight)


@block
def channel_convolution(
    domain: ClockReset,
    x: Stream,
    w: Stream | None,
    y: Stream,
    *,
    shape: ChannelShape,
    contents: Sequence[int] | None = None,
) -> Instances:
    """Reads a map and weight versions, writes results in the order of the walk; rates as `Walk.cycles` says.

    Costs ``lanes * taps`` multipliers with registered inputs and outputs, a registered adder tree a lane, the ring and
    two versions of the weights.

    Ports:
        x: in, stream of codes of ``shape.operand``, any number a beat.
        w: in, stream of codes of ``shape.weight``, any number a beat, in the stream order of the weights; None where
            they stay as they are.
        y: out, stream of codes of ``shape.result``, any number a beat.
    """
    walk, lanes = shape.walk, shape.lanes
    steps = Steps(walk, shape.ring_rows, shape.words)
    map_words = Stream(lanes * shape.operand.width)
    weight_words = Stream(lanes * shape.taps * shape.weight.width)
    words = [Signal(intbv(0)[map_words.width :]) for _ in range(shape.taps)]
    weight = Signal(intbv(0)[weight_words.width :])
    claim, claimable, may = (Signal(bool(0)) for _ in range(3))
    sums = [signed_signal(shape.product_bits + tree_levels(shape.taps)) for _ in range(lanes)]
    return (
        width_adapter(domain, x, map_words, element_bits=shape.operand.width),
        [] if w is None else width_adapter(domain, w, weight_words, element_bits=shape.weight.width),
        map_reader(domain, map_words, words, claim, claimable, may, steps, walk=walk, ring_rows=shape.ring_rows,
                   weights=shape.weights),
        weight_buffer(domain, None if w is None else weight_words, claim, claimable, steps.weight_read, steps.weight,
                      steps.weight_pass_last, weight, words=shape.words, recipe=shape.recipe, contents=contents),
        channel_products(domain.clk, weight, words, steps.inside, sums, operand=shape.operand, weight=shape.weight),
        summed_results(domain, steps, may, sums, y, latency=2 + tree_levels(shape.taps), operations=walk.operations,
                       shift=shape.shift, target=shape.result),
    )  # fmt: skip


@block
def always_claimable(rst: Bit, claimable: Bit) -> Instances:
    """For engines without weights: every frame may start.

    Ports:
        claimable: out, 1 bit: high unless ``rst``.
    """

    @always_comb
    def decide() -> None:
        claimable.next = not rst

    return decide


@block
def channel_products(
    clk: Clock,
    weight_word: Bits,
    words: Sequence[Bits],
    inside: Sequence[Bit],
    sums: Sequence[Bits],
    *,
    operand: Fixed,
    weight: Fixed,
) -> Instances:
    """Sums over the taps of a cycle, channel by channel.

    Ports:
        weight_word: in, ``len(sums) * len(words)`` codes of ``weight``, taps innermost, with the words.
        words: in, a vector a tap: ``len(sums)`` codes of ``operand``.
        inside: in, 1 bit a tap, with the words: whether the tap counts (else zeros).
        sums: out, a signed signal a channel, 2 cycles and the levels of the tree later.
    """
    taps, lanes = len(words), len(sums)
    operands = [signed_signal(operand_bits(operand)) for _ in range(taps * lanes)]
    weights = [signed_signal(operand_bits(weight)) for _ in range(taps * lanes)]
    product_bits = operand_bits(operand) + operand_bits(weight)
    products = sums if taps == 1 else [signed_signal(product_bits) for _ in range(taps * lanes)]
    split = operand_lanes(clk, words, inside, operands, fixed=operand)
    split_weights = weight_lanes(clk, weight_word, weights, fixed=weight)

    @always(clk.posedge)
    def multiply() -> None:
        for lane in range(lanes):
            for tap in range(taps):
                products[lane * taps + tap].next = weights[lane * taps + tap] * operands[tap * lanes + lane]

    if taps == 1:
        return split, split_weights, multiply
    tree = adder_trees(clk, products, sums, terms=taps)
    return split, split_weights, multiply, tree


@block
def summed_results(
    domain: ClockReset,
    steps: Steps,
    may: Bit,
    sums: Sequence[Bits],
    y: Stream,
    *,
    latency: int,
    operations: int,
    shift: int,
    target: Fixed,
) -> Instances:
    """Adds up the operations of each result, rounds, and lets results leave in order.

    Ports:
        steps: in, ``issue_last``, ``valid``, ``first`` and ``last`` alone.
        may: out, 1 bit, from registers: there is room for a result.
        sums: in, a signed signal a channel, of one operation, ``latency`` cycles after ``steps.valid``.
        y: out, stream of codes of ``target``, any number a beat.

    Args:
        operations: the most operations a result.
        shift: bits that are cut off.
    """
    lanes = len(sums)
    late = [Signal(bool(0)) for _ in range(3)]
    done = Signal(bool(0))
    totals = [signed_signal(len(sums[0]) + (operations - 1).bit_length()) for _ in range(lanes)]
    results, taken = (Stream(lanes * target.width) for _ in range(2))
    return (
        [
            delay_line(domain.clk, source, late[flag], cycles=latency)
            for flag, source in enumerate((steps.valid, steps.first, steps.last))
        ],
        accumulator(domain.clk, late[0], late[1], late[2], sums, totals, done),
        requantise_lanes(domain.clk, totals, results.payload, shift=shift, target=target),
        delay_line(domain.clk, done, results.valid, cycles=2),
        queue(domain, results, taken, depth=RESULTS),
        result_places(domain, steps.issue_last, taken, may, places=RESULTS),
        width_adapter(domain, taken, y, element_bits=target.width),
    )
