"""The engine of average pooling, either way: sums of windows, times a constant or a factor a pixel, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.mac import adder_trees, operand_bits, signed_signal, tree_levels
from hdl.engine.arithmetic.places import result_places
from hdl.engine.arithmetic.requantise import accumulator, delay_line
from hdl.engine.arithmetic.rounding import round_stream, scale_stream
from hdl.engine.arithmetic.tables import look_up, signal_for
from hdl.engine.window.channelwise import always_claimable
from hdl.engine.window.convolution import RESULTS
from hdl.engine.window.map_reader import map_reader
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import Steps
from hdl.fixed import Fixed
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import m2s_pipe, queue, width_adapter

# cycles of `weigh`
WEIGH_CYCLES = 2


@dataclass(frozen=True)
class Factors:
    """A positive factor a pixel of a map: by its row's kind and its column's."""

    # kind of each row, of each column
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    # by kind of row, then of column
    table: tuple[tuple[int, ...], ...]

    @property
    def bits(self) -> int:
        """Of the greatest."""
        return max(map(max, self.table)).bit_length()


@dataclass(frozen=True)
class AverageShape:
    """Everything that an engine of either direction is built from."""

    walk: Walk
    # channels a cycle
    lanes: int
    # groups of channels a pixel
    groups: int
    ring_rows: int
    operand: Fixed
    result: Fixed
    # of every sum; or of each pixel of the smaller map: results forwards, what is stored backwards
    factor: int | Factors
    # bits of the products that are cut off
    shift: int
    # whether errors come: what is stored is the smaller map
    transposed: bool

    @property
    def before(self) -> Factors | None:
        """By which elements are multiplied before they are stored."""
        return self.factor if isinstance(self.factor, Factors) and self.transposed else None

    @property
    def stored(self) -> Fixed:
        """Of what lies in the ring."""
        if self.before is None:
            return self.operand
        return Fixed(operand_bits(self.operand) + self.before.bits, 0)

    @property
    def sum_bits(self) -> int:
        """Bits of a sum of so many, however many taps are added in a cycle."""
        return sum_bits(self.stored, self.walk.rows.kernel * self.walk.columns.kernel)


def sum_bits(stored: Fixed, taps: int) -> int:
    """Bits of sums of ``taps`` codes: of parallel taps, then of operations."""
    return operand_bits(stored) + (taps - 1).bit_length() + 1


@block
def average(domain: ClockReset, x: Stream, y: Stream, *, shape: AverageShape) -> Instances:
    """Reads a map, writes means (or the errors of means) in the order of the walk; rates as `Walk.cycles` says.

    Costs the ring, an adder tree a lane, and a product with a constant a lane; a multiplier a lane where the factor is
    not the same everywhere.

    Ports:
        x: in, stream of codes of ``shape.operand``, any number a beat.
        y: out, stream of codes of ``shape.result``, any number a beat.
    """
    walk, lanes, stored, total_bits = shape.walk, shape.lanes, shape.stored, shape.sum_bits
    steps = Steps(walk, shape.ring_rows)
    given, map_words = Stream(lanes * shape.operand.width), Stream(lanes * stored.width)
    words = [Signal(intbv(0)[map_words.width :]) for _ in range(walk.taps)]
    claim, claimable, may = (Signal(bool(0)) for _ in range(3))
    sums = [signed_signal(operand_bits(stored) + tree_levels(walk.taps)) for _ in range(lanes)]
    bits = shape.factor.bits if isinstance(shape.factor, Factors) else shape.factor.bit_length()
    scaled_bits = total_bits if shape.before else total_bits + bits
    totals, scaled, rounded = (Stream(lanes * width) for width in (total_bits, scaled_bits, shape.result.width))
    taken = given if shape.before else map_words
    parts = [
        width_adapter(domain, x, taken, element_bits=shape.operand.width),
        always_claimable(domain.rst, claimable),
        map_reader(domain, map_words, words, claim, claimable, may, steps, walk=walk, ring_rows=shape.ring_rows,
                   weights=None),
        tap_sums(domain.clk, words, steps.inside, sums, fixed=stored),
        exact_results(domain, steps, may, sums, totals, latency=1 + tree_levels(walk.taps)),
        round_stream(domain, scaled, rounded, lanes=lanes, shift=shape.shift, target=shape.result),
        width_adapter(domain, rounded, y, element_bits=shape.result.width),
    ]  # fmt: skip
    if shape.before:
        parts.append(weigh(domain, given, map_words, fixed=shape.operand, factors=shape.before, groups=shape.groups))
        parts.append(m2s_pipe(domain, totals, scaled))
    elif isinstance(shape.factor, Factors):
        exact = Fixed(total_bits, 0)
        parts.append(weigh(domain, totals, scaled, fixed=exact, factors=shape.factor, groups=shape.groups))
    else:
        parts.append(scale_stream(domain, totals, scaled, lanes=lanes, factor=shape.factor))
    return parts


@block
def tap_sums(
    clk: Clock, words: Sequence[Bits], inside: Sequence[Bit], sums: Sequence[Bits], *, fixed: Fixed
) -> Instances:
    """Sums over the taps of a cycle, channel by channel.

    Ports:
        words: in, a vector a tap: ``len(sums)`` codes of ``fixed``.
        inside: in, 1 bit a tap, with the words: whether the tap counts.
        sums: out, a signed signal a channel, 1 cycle and the levels of the tree later.
    """
    taps, lanes, width = len(words), len(sums), fixed.width
    chosen = sums if taps == 1 else [signed_signal(operand_bits(fixed)) for _ in range(taps * lanes)]

    if fixed.signed:

        @always(clk.posedge)
        def choose() -> None:
            for lane in range(lanes):
                for tap in range(taps):
                    if inside[tap]:
                        chosen[lane * taps + tap].next = words[tap][bits_of(lane, width)].signed()
                    else:
                        chosen[lane * taps + tap].next = 0

    else:

        @always(clk.posedge)
        def choose() -> None:
            for lane in range(lanes):
                for tap in range(taps):
                    if inside[tap]:
                        chosen[lane * taps + tap].next = words[tap][bits_of(lane, width)]
                    else:
                        chosen[lane * taps + tap].next = 0

    if taps == 1:
        return choose
    tree = adder_trees(clk, chosen, sums, terms=taps)
    return choose, tree


@block
def exact_results(
    domain: ClockReset, steps: Steps, may: Bit, sums: Sequence[Bits], y: Stream, *, latency: int
) -> Instances:
    """Adds up the operations of each result, and lets results leave in order.

    Ports:
        steps: in, ``issue_last``, ``valid``, ``first`` and ``last`` alone.
        may: out, 1 bit, from registers: there is room for a result.
        sums: in, a signed signal a channel, of one operation, ``latency`` cycles after ``steps.valid``.
        y: out, stream of a signed sum a channel, wide enough for every result, from a queue.
    """
    lanes = len(sums)
    width = y.width // lanes
    late = [Signal(bool(0)) for _ in range(3)]
    totals = [signed_signal(width) for _ in range(lanes)]
    results = Stream(y.width)
    done = results.valid
    flags = [
        delay_line(domain.clk, source, late[flag], cycles=latency)
        for flag, source in enumerate((steps.valid, steps.first, steps.last))
    ]
    add = accumulator(domain.clk, late[0], late[1], late[2], sums, totals, done)
    hold = queue(domain, results, y, depth=RESULTS)
    places = result_places(domain, steps.issue_last, y, may, places=RESULTS)

    @always_comb
    def pack() -> None:
        for lane in range(lanes):
            results.payload.next[bits_of(lane, width)] = totals[lane][width:]

    return flags, add, hold, places, pack


@block
def weigh(domain: ClockReset, x: Stream, y: Stream, *, fixed: Fixed, factors: Factors, groups: int) -> Instances:
    """Each code times the factor of its pixel, exactly; frames follow one another.

    Costs a multiplier a lane with registers on both sides; `WEIGH_CYCLES`, one beat a cycle.

    Ports:
        x: in, stream of codes of ``fixed`` in raster order, ``groups`` beats a pixel.
        y: out, stream of signed products, as wide as a signed code and the factor together, from registers.
    """
    lanes = x.width // fixed.width
    width, factor_bits, signed = fixed.width, factors.bits, operand_bits(fixed)
    y_width = y.width // lanes
    kinds = len(factors.table[0])
    # a factor has a sign bit as well, and so is no unsigned operand of a signed product
    codes, factor_bound, product_bound = x.width, 1 << factor_bits, 1 << (y_width - 1)
    code_bound = 1 << (signed - 1)
    last_group, last_column, last_row = groups - 1, len(factors.columns) - 1, len(factors.rows) - 1
    group, column, row = (signal_for([last]) for last in (last_group, last_column, last_row))
    row_kind, column_kind = signal_for(factors.rows), signal_for(factors.columns)
    index, factor = signal_for([len(factors.table) * kinds - 1]), Signal(intbv(0)[factor_bits:])
    table = tuple(factors.table[row][column] for row, column in product(range(len(factors.table)), range(kinds)))
    roms = [
        look_up(row, row_kind, table=factors.rows),
        look_up(column, column_kind, table=factors.columns),
        look_up(index, factor, table=table),
    ]
    beside, held, computed = Stream(x.width + factor_bits), Stream(x.width + factor_bits), Stream(y.width)
    fire = Signal(bool(0))
    first, second = m2s_pipe(domain, beside, held), m2s_pipe(domain, computed, y)

    @always_comb
    def place() -> None:
        index.next = row_kind * kinds + column_kind

    @always_comb
    def take() -> None:
        beside.valid.next = x.valid
        x.ready.next = beside.ready
        fire.next = x.valid and beside.ready
        beside.payload.next[codes:] = x.payload
        beside.payload.next[codes + factor_bits : codes] = factor

    @always(domain.clk.posedge)
    def count() -> None:
        if fire:
            if group != last_group:
                group.next = group + 1
            else:
                group.next = 0
                if column != last_column:
                    column.next = column + 1
                else:
                    column.next = 0
                    if row != last_row:
                        row.next = row + 1
                    else:
                        row.next = 0
        if domain.rst:
            group.next = 0
            column.next = 0
            row.next = 0

    @always_comb
    def hand_on() -> None:
        computed.valid.next = held.valid
        held.ready.next = computed.ready

    if fixed.signed:

        @always_comb
        def multiply() -> None:
            code = intbv(0, min=-code_bound, max=code_bound)
            by = intbv(0, min=-factor_bound, max=factor_bound)
            result = intbv(0, min=-product_bound, max=product_bound)
            by[:] = held.payload[codes + factor_bits : codes]
            for lane in range(lanes):
                code[:] = held.payload[bits_of(lane, width)].signed()
                result[:] = code * by
                computed.payload.next[bits_of(lane, y_width)] = result[y_width:]

    else:

        @always_comb
        def multiply() -> None:
            code = intbv(0, min=-code_bound, max=code_bound)
            by = intbv(0, min=-factor_bound, max=factor_bound)
            result = intbv(0, min=-product_bound, max=product_bound)
            by[:] = held.payload[codes + factor_bits : codes]
            for lane in range(lanes):
                code[:] = held.payload[bits_of(lane, width)]
                result[:] = code * by
                computed.payload.next[bits_of(lane, y_width)] = result[y_width:]

    return roms, first, second, place, take, count, hand_on, multiply
