"""Engines of max pooling: the largest of each window with its tap, and the gathering of errors by tap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.lanes import delay_vector
from hdl.engine.arithmetic.mac import adder_trees, signed_signal, tree_levels
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import delay_line
from hdl.engine.window.channelwise import always_claimable, summed_results
from hdl.engine.window.convolution import RESULTS
from hdl.engine.window.map_reader import map_reader
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import DATA_AFTER, Steps, WeightSteps
from hdl.fixed import Fixed
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import fork, join, queue, take_bits, width_adapter

# cycles from a `Steps.weight` to the words of its operation
TAP_AHEAD = DATA_AFTER - 2


@dataclass(frozen=True)
class PoolShape:
    """Everything that an engine of either direction is built from."""

    walk: Walk
    # channels a cycle
    lanes: int
    # taps and tap columns of the kernel
    kernel_taps: int
    kernel_columns: int
    ring_rows: int
    # of the stored map
    operand: Fixed
    index: Fixed
    # of the result, and bits of the sums that are cut off
    result: Fixed
    shift: int = 0

    @property
    def tap_steps(self) -> WeightSteps:
        """The walker's "weight word" counts the first of the parallel taps."""
        return WeightSteps(repeat=0, reduce=0, tap_row=self.kernel_columns, tap_column=1)


@block
def pool(domain: ClockReset, x: Stream, y: Stream, index: Stream, *, shape: PoolShape) -> Instances:
    """The first of the largest values of each window, and its tap; rates as `Walk.cycles` says.

    Costs a comparison a lane and tap, and the ring.

    Ports:
        x: in, stream of codes of ``shape.operand``, any number a beat.
        y: out, stream of codes of ``shape.operand``, any number a beat.
        index: out, stream of codes of ``shape.index``, any number a beat.
    """
    walk, lanes, width, index_width = shape.walk, shape.lanes, shape.operand.width, shape.index.width
    steps = Steps(walk, shape.ring_rows, shape.kernel_taps)
    levels = tree_levels(walk.taps)
    map_words = Stream(lanes * width)
    words = [Signal(intbv(0)[map_words.width :]) for _ in range(walk.taps)]
    claim, claimable, may, done = (Signal(bool(0)) for _ in range(4))
    late = [Signal(bool(0)) for _ in range(3)]
    # one bit more than the operand, so that what lies outside the map is less than any code; see `largest_tap`
    values = [Signal(intbv(0)[width + 1 :]) for _ in range(lanes)]
    offsets = [Signal(intbv(0)[index_width:]) for _ in range(lanes)]
    tap = Signal(intbv(0)[len(steps.weight) :])
    results, taken = (Stream(lanes * (width + index_width)) for _ in range(2))
    parts = [Stream(taken.width) for _ in range(2)]
    y_words, index_words = Stream(lanes * width), Stream(lanes * index_width)
    return (
        width_adapter(domain, x, map_words, element_bits=width),
        always_claimable(domain.rst, claimable),
        map_reader(domain, map_words, words, claim, claimable, may, steps, walk=walk, ring_rows=shape.ring_rows,
                   weights=shape.tap_steps),
        largest_tap(domain.clk, words, steps.inside, values, offsets, fixed=shape.operand),
        [
            delay_line(domain.clk, source, late[flag], cycles=1 + levels)
            for flag, source in enumerate((steps.valid, steps.first, steps.last))
        ],
        delay_vector(domain.clk, steps.weight, tap, cycles=TAP_AHEAD + 1 + levels),
        keep_largest(
            domain.clk, late[0], late[1], late[2], tap, values, offsets, results.payload, done, fixed=shape.operand
        ),
        mark_valid(domain.clk, done, results.valid),
        queue(domain, results, taken, depth=RESULTS),
        result_places(domain, steps.issue_last, taken, may, places=RESULTS),
        fork(domain, taken, parts),
        take_bits(parts[0], y_words, low=0),
        take_bits(parts[1], index_words, low=lanes * width),
        width_adapter(domain, y_words, y, element_bits=width),
        width_adapter(domain, index_words, index, element_bits=index_width),
    )  # fmt: skip


@block
def mark_valid(clk: Clock, done: Bit, results_valid: Bit) -> Instances:
    """Results, whose payload is registered, are there in the cycle of ``done``.

    Ports:
        done: in, 1 bit.
        results_valid: out, 1 bit, in the same cycle.
    """

    @always_comb
    def connect() -> None:
        results_valid.next = done

    return connect


@block
def largest_tap(
    clk: Clock,
    words: Sequence[Bits],
    inside: Sequence[Bit],
    values: Sequence[Bits],
    offsets: Sequence[Bits],
    *,
    fixed: Fixed,
) -> Instances:
    """The first of the largest of the parallel taps, lane by lane.

    Values are ``2**width + code - fixed.low``, and 0 outside the map: unsigned, which takes a gate less to compare.

    Ports:
        words: in, a vector a tap: a code of ``fixed`` a lane.
        inside: in, 1 bit a tap, with the words: whether it lies in the map.
        values: out, ``fixed.width`` + 1 bits a lane, 1 cycle and the levels of a tree later.
        offsets: out, a vector a lane, with ``values``: which of the taps.
    """
    taps, lanes, width = len(words), len(values), fixed.width
    offset = 1 << width | unsigned_offset(fixed)
    codes = values if taps == 1 else [Signal(intbv(0)[width + 1 :]) for _ in range(taps * lanes)]
    places = offsets if taps == 1 else [Signal(intbv(0)[len(offsets[0]) :]) for _ in range(taps * lanes)]

    @always(clk.posedge)
    def split() -> None:
        value = intbv(0)[width + 1 :]
        for lane in range(lanes):
            for tap in range(taps):
                places[lane * taps + tap].next = tap
                value[:] = words[tap][lane * width + width : lane * width]
                value[:] = value ^ offset
                if inside[tap]:
                    codes[lane * taps + tap].next = value
                else:
                    codes[lane * taps + tap].next = 0

    if taps == 1:
        return split
    tree = largest_trees(clk, codes, places, values, offsets, terms=taps)
    return split, tree


def unsigned_offset(fixed: Fixed) -> int:
    """What turns codes, as raw bits, into unsigned numbers in the same order, and back, by XOR."""
    return 1 << (fixed.width - 1) if fixed.signed else 0


@block
def largest_trees(
    clk: Clock,
    codes: Sequence[Bits],
    places: Sequence[Bits],
    values: Sequence[Bits],
    offsets: Sequence[Bits],
    *,
    terms: int,
) -> Instances:
    """The largest of each ``terms`` (at least 2) neighbours and its place, the first of equals; a cycle a level.

    Ports:
        codes: in, ``terms * len(values)`` unsigned vectors of one width.
        places: in, as many vectors of one width, each with its code.
        values: out, as wide as ``codes``, `tree_levels` cycles later.
        offsets: out, as wide as ``places``, with ``values``.
    """
    half, odd = terms // 2, terms % 2
    kept = half + odd
    results = len(values)
    level = values if kept == 1 else [Signal(intbv(0)[len(values[0]) :]) for _ in range(results * kept)]
    found = offsets if kept == 1 else [Signal(intbv(0)[len(offsets[0]) :]) for _ in range(results * kept)]

    @always(clk.posedge)
    def compare() -> None:
        for result in range(results):
            for i in range(half):
                if codes[result * terms + 2 * i + 1] > codes[result * terms + 2 * i]:
                    level[result * kept + i].next = codes[result * terms + 2 * i + 1]
                    found[result * kept + i].next = places[result * terms + 2 * i + 1]
                else:
                    level[result * kept + i].next = codes[result * terms + 2 * i]
                    found[result * kept + i].next = places[result * terms + 2 * i]
            if odd == 1:
                level[result * kept + half].next = codes[result * terms + terms - 1]
                found[result * kept + half].next = places[result * terms + terms - 1]

    if kept == 1:
        return compare
    rest = largest_trees(clk, level, found, values, offsets, terms=kept)
    return compare, rest


@block
def keep_largest(
    clk: Clock,
    valid: Bit,
    first: Bit,
    last: Bit,
    tap: Bits,
    values: Sequence[Bits],
    offsets: Sequence[Bits],
    result: Bits,
    done: Bit,
    *,
    fixed: Fixed,
) -> Instances:
    """The largest over the operations of a result.

    Ports:
        valid: in, 1 bit: an operation.
        first, last: in, 1 bit each, with ``valid``: it begins a result, ends one.
        tap: in, unsigned, with ``valid``: the first of the parallel taps.
        values, offsets: in, of `largest_tap`, with ``valid``.
        result: out, a code of ``fixed`` a lane, and above them all a tap a lane, as wide as ``offsets``; 1 cycle later.
        done: out, 1 bit, 1 cycle later: ``result`` is complete.
    """
    lanes, index_width, width, offset = len(values), len(offsets[0]), fixed.width, unsigned_offset(fixed)
    best = [Signal(intbv(0)[width + 1 :]) for _ in range(lanes)]
    best_tap = [Signal(intbv(0)[index_width:]) for _ in range(lanes)]
    start = lanes * width

    @always(clk.posedge)
    def keep() -> None:
        place = intbv(0)[index_width + 1 :]
        if valid:
            for lane in range(lanes):
                if first or values[lane] > best[lane]:
                    place[:] = tap + offsets[lane]
                    best[lane].next = values[lane]
                    best_tap[lane].next = place[index_width:]
        done.next = valid and last

    @always_comb
    def out() -> None:
        code = intbv(0)[width:]
        for lane in range(lanes):
            code[:] = best[lane][width:]
            code[:] = code ^ offset
            result.next[lane * width + width : lane * width] = code
            result.next[start + lane * index_width + index_width : start + lane * index_width] = best_tap[lane]

    return keep, out


@block
def pool_error(domain: ClockReset, e: Stream, index: Stream, dx: Stream, *, shape: PoolShape) -> Instances:
    """Every pixel gathers the errors of the windows whose index points at it; rates as `Walk.cycles` says.

    Error and index lie side by side in the ring.  Costs a comparison a lane and tap, and an adder tree a lane.

    Ports:
        e: in, stream of codes of ``shape.operand``, any number a beat.
        index: in, stream of codes of ``shape.index``, as many a beat.
        dx: out, stream of codes of ``shape.result``, any number a beat.
    """
    walk, lanes, width, index_width = shape.walk, shape.lanes, shape.operand.width, shape.index.width
    steps = Steps(walk, shape.ring_rows, shape.kernel_taps)
    error_words, index_words = Stream(lanes * width), Stream(lanes * index_width)
    map_words = Stream(error_words.width + index_words.width)
    words = [Signal(intbv(0)[map_words.width :]) for _ in range(walk.taps)]
    claim, claimable, may = (Signal(bool(0)) for _ in range(3))
    sums = [signed_signal(width + tree_levels(walk.taps)) for _ in range(lanes)]
    tap = Signal(intbv(0)[len(steps.weight) :])
    return (
        width_adapter(domain, e, error_words, element_bits=width),
        width_adapter(domain, index, index_words, element_bits=index_width),
        join(domain, [error_words, index_words], map_words),
        always_claimable(domain.rst, claimable),
        map_reader(domain, map_words, words, claim, claimable, may, steps, walk=walk, ring_rows=shape.ring_rows,
                   weights=shape.tap_steps),
        delay_vector(domain.clk, steps.weight, tap, cycles=TAP_AHEAD),
        chosen_errors(domain.clk, words, steps.inside, tap, sums, width=width, index_width=index_width),
        summed_results(domain, steps, may, sums, dx, latency=1 + tree_levels(walk.taps),
                       operations=walk.operations, shift=shape.shift, target=shape.result),
    )  # fmt: skip


@block
def chosen_errors(
    clk: Clock,
    words: Sequence[Bits],
    inside: Sequence[Bit],
    tap: Bits,
    sums: Sequence[Bits],
    *,
    width: int,
    index_width: int,
) -> Instances:
    """Sums of the errors whose index is the tap by which they are seen.

    Ports:
        words: in, a vector a tap: an error of ``width`` bits a lane, above them an index of ``index_width`` a lane.
        inside: in, 1 bit a tap, with the words: whether it lies in the map.
        tap: in, unsigned, with the words: the first of the parallel taps.
        sums: out, a signed signal a lane, 1 cycle and the levels of the tree later.
    """
    taps, lanes = len(words), len(sums)
    start = lanes * width
    chosen = sums if taps == 1 else [signed_signal(width) for _ in range(taps * lanes)]

    @always(clk.posedge)
    def choose() -> None:
        place = intbv(0)[index_width + 1 :]
        wanted = intbv(0)[index_width + 1 :]
        for lane in range(lanes):
            for k in range(taps):
                place[:] = tap + k
                wanted[:] = words[k][start + lane * index_width + index_width : start + lane * index_width]
                if inside[k] and place == wanted:
                    chosen[lane * taps + k].next = words[k][lane * width + width : lane * width].signed()
                else:
                    chosen[lane * taps + k].next = 0

    if taps == 1:
        return choose
    tree = adder_trees(clk, chosen, sums, terms=taps)
    return choose, tree
