"""The sequential unit of the forward circuit: a frame's sums to the line of the table, a group after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from myhdl import Signal, always, always_comb, block, concat, intbv

from hdl.engine.arithmetic.lanes import join_lanes, signed_lanes, started
from hdl.engine.arithmetic.requantise import delay_line, requantise_lanes
from hdl.engine.arithmetic.serial import serial_reciprocal, serial_root, unsigned_lanes
from hdl.engine.norm.bundles import LineWrite
from hdl.engine.norm.numbers import ROOT_EXTRA, ForwardNumbers
from hdl.engine.norm.shapes import ForwardShape, sum_widths
from hdl.engine.norm.statistics import new_statistics
from hdl.engine.norm.sums import part_sums
from hdl.engine.norm.table import collect_lines
from hdl.engine.weights.sections import MemoryAccess
from hdl.memory import address_width
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import width_adapter


@block
def divided_unit(
    domain: ClockReset,
    sums: Stream,
    written: LineWrite,
    *,
    shape: ForwardShape,
    contents: Mapping[str, Sequence[int]],
    access: Mapping[str, MemoryAccess] | None = None,
) -> Instances:
    """`sequential_unit` on some lanes of a group after others.

    Costs a word of sums and a line of the table more, and saves all the other lanes.

    Ports:
        sums: in, stream as `data_sums` makes it, a beat a group.
        written: out, as of `sequential_unit`.
        access: in and out, as of `sequential_unit`.
    """
    slow = shape.slow
    numbers, sum_bits = shape.numbers, sum_widths(shape)
    parts, few = Stream(sums.width), Stream(slow.lanes * sum(sum_bits))
    lines = LineWrite(
        Signal(bool(0)),
        Signal(intbv(0)[address_width(slow.groups) :]),
        Signal(intbv(0)[slow.lanes * (numbers.centre.width + numbers.inverse.width) :]),
        Signal(bool(0)),
    )
    part = part_sums(sums, parts, lanes=shape.lanes, chosen=slow.lanes, widths=sum_bits)
    adapt = width_adapter(domain, parts, few, element_bits=few.width)
    unit = sequential_unit(domain, few, lines, shape=slow, contents=contents, access=access)
    widths = numbers.inverse.width, numbers.centre.width
    collect = collect_lines(domain, lines, written, lanes=slow.lanes, parts=shape.lanes // slow.lanes, widths=widths)
    return part, adapt, unit, collect


@block
def sequential_unit(
    domain: ClockReset,
    sums: Stream,
    written: LineWrite,
    *,
    shape: ForwardShape,
    contents: Mapping[str, Sequence[int]],
    access: Mapping[str, MemoryAccess] | None = None,
) -> Instances:
    """Advances the statistics of a group every `ForwardShape.cycles_a_group` cycles and writes its line of the table.

    Three parts in a row, each on a group of its own: statistics, root, reciprocal.  What a part works on is held, so
    nothing in it need be aligned.

    Ports:
        sums: in, stream as `data_sums` makes it, a beat a group; ready from registers.
        written: out, ``shape.table_at`` cycles after the sums of a group: ``lanes`` codes of ``shape.numbers.inverse``
            and above them ``lanes`` of ``shape.numbers.centre``.
        access: in and out, of `new_statistics`.
    """
    numbers, lanes, groups = shape.numbers, shape.lanes, shape.groups
    start, settled, rooted = (Signal(bool(0)) for _ in range(3))
    load_root = Signal(bool(0))
    place = Signal(intbv(0)[address_width(groups) :])
    word = Signal(intbv(0)[sums.width :])
    means, variances = signed_lanes(lanes, numbers.mean.width), unsigned_lanes(lanes, numbers.variance.width)
    control = sequence(domain, sums, start, place, word, groups=groups, spacing=shape.cycles_a_group)
    ready = Signal(bool(0)) if shape.multiplied else None
    begin = [] if ready is None else started(domain, ready)
    advance = new_statistics(
        domain.clk, start, settled, place, word, means, variances, ready, shape=shape, contents=contents, access=access
    )
    pulses = [
        delay_line(domain.clk, start, settled, cycles=shape.statistics_at),
        delay_line(domain.clk, settled, load_root, cycles=1),
        delay_line(domain.clk, settled, rooted, cycles=shape.root_at - shape.statistics_at),
        delay_line(domain.clk, rooted, written.enable, cycles=shape.table_at - shape.root_at),
    ]
    radicands = unsigned_lanes(lanes, 2 * numbers.root_bits)
    roots, quotients = unsigned_lanes(lanes, numbers.root_bits), unsigned_lanes(lanes, numbers.inverse.width)
    mean_root, mean_table = signed_lanes(lanes, numbers.mean.width), signed_lanes(lanes, numbers.mean.width)
    group_root = Signal(intbv(0)[len(place) :])
    centres = Signal(intbv(0)[lanes * numbers.centre.width :])
    inverses = Signal(intbv(0)[lanes * numbers.inverse.width :])
    prepare = root_operands(domain.clk, settled, variances, radicands, numbers=numbers)
    root = serial_root(domain.clk, load_root, radicands, roots, bits=numbers.root_bits)
    divide = serial_reciprocal(domain.clk, rooted, roots, quotients, exponent=numbers.numerator_bits)
    carry = [hold_lanes(domain.clk, settled, means, mean_root), hold_lanes(domain.clk, rooted, mean_root, mean_table)]
    shift = numbers.mean.fraction_bits - numbers.centre.fraction_bits
    centre = requantise_lanes(domain.clk, mean_table, centres, shift=shift, target=numbers.centre)
    collect = join_lanes(quotients, inverses)
    last_group = groups - 1

    @always(domain.clk.posedge)
    def carry_group() -> None:
        if settled:
            group_root.next = place
        if rooted:
            written.group.next = group_root

    @always_comb
    def out() -> None:
        written.line.next = concat(centres, inverses)
        written.done.next = written.enable and written.group == last_group

    return control, begin, advance, pulses, prepare, root, divide, carry, centre, collect, carry_group, out


@block
def sequence(
    domain: ClockReset, sums: Stream, start: Bit, place: Bits, word: Bits, *, groups: int, spacing: int
) -> Instances:
    """Takes a word of sums at most every ``spacing`` cycles, holds it and the number of its group.

    Ports:
        sums: in, stream of any width, a beat a group; ready from registers.
        start: out, 1 bit, in the same cycle: a word is taken at this edge.
        place: out, `address_width` ``(groups)`` bits, 1 cycle later, until the next word.
        word: out, as wide as ``sums``, 1 cycle later, until the next.
    """
    rest, last_group = spacing - 1, groups - 1
    resting = Signal(intbv(0, min=0, max=rest + 1))
    next_place = Signal(intbv(0)[len(place) :])

    @always_comb
    def handshake() -> None:
        sums.ready.next = resting == 0
        start.next = resting == 0 and sums.valid

    @always(domain.clk.posedge)
    def count() -> None:
        if start:
            resting.next = rest
            word.next = sums.payload
            place.next = next_place
            if next_place == last_group:
                next_place.next = 0
            else:
                next_place.next = next_place + 1
        elif resting != 0:
            resting.next = resting - 1
        if domain.rst:
            resting.next = 0
            next_place.next = 0

    return handshake, count


@block
def root_operands(
    clk: Clock, take: Bit, variances: Sequence[Bits], radicands: Sequence[Bits], *, numbers: ForwardNumbers
) -> Instances:
    """``radicands = (variances + epsilon) * 2**ROOT_EXTRA`` when ``take``.

    Ports:
        take: in, 1 bit: variances are taken at this edge.
        variances: in, unsigned codes of ``numbers.variance``, with ``take``.
        radicands: out, unsigned signals of `ROOT_EXTRA` bits more at least, 1 cycle later, until the next.
    """
    count, bits = len(variances), len(radicands[0])
    epsilon = numbers.epsilon_code

    @always(clk.posedge)
    def add() -> None:
        number = intbv(0)[bits:]
        constant = intbv(0)[bits - ROOT_EXTRA :]
        constant[:] = intbv(epsilon)[bits - ROOT_EXTRA :]
        for lane in range(count):
            if take:
                number[:] = variances[lane]
                number[:] = number + constant
                radicands[lane].next = number << ROOT_EXTRA

    return add


@block
def hold_lanes(clk: Clock, take: Bit, a: Sequence[Bits], b: Sequence[Bits]) -> Instances:
    """``b = a`` when ``take``.

    Ports:
        take: in, 1 bit: ``a`` is taken at this edge.
        a: in, signals of any width, with ``take``.
        b: out, signals as wide, 1 cycle later, until the next.
    """
    count = len(a)

    @always(clk.posedge)
    def hold() -> None:
        for lane in range(count):
            if take:
                b[lane].next = a[lane]

    return hold
