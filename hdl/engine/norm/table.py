"""The table between what happens once a frame and the data path: a line a group, for each frame of lag."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.norm.bundles import Beat, LineWrite, NormState
from hdl.engine.weights.access import state_link
from hdl.engine.weights.records import WORD_BITS
from hdl.engine.weights.sections import MemoryAccess, pieces_of, state_sections
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter


@block
def line_table(
    domain: ClockReset,
    beat: Beat,
    line: Bits,
    written: LineWrite,
    *,
    groups: int,
    banks: int,
    contents: Sequence[int] | None,
) -> Instances:
    """What the data path needs of the statistics, a line a group, for each of ``banks`` frames.

    Ports:
        beat: in, all of it but ``first_pixel``.
        line: out, of any width, 2 cycles after a beat is accepted.
        written: in, all of it but ``done``; groups in order, frames in order.
    """
    depth, last_group = groups * banks, groups - 1
    last_base = depth - groups
    base, write_base = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    read_at, write_at = (Signal(intbv(0)[address_width(depth) :]) for _ in range(2))
    store = simple_dual_port(
        domain.clk,
        written.enable,
        write_at,
        written.line,
        beat.fire,
        read_at,
        line,
        depth=depth,
        width=len(line),
        contents=contents,
        output_register=True,
        image="table",
    )

    @always_comb
    def address() -> None:
        read_at.next = base + beat.group
        write_at.next = write_base + written.group

    @always(domain.clk.posedge)
    def turn() -> None:
        if beat.fire and beat.last_pixel and beat.group == last_group:
            if base == last_base:
                base.next = 0
            else:
                base.next = base + groups
        if written.enable and written.group == last_group:
            if write_base == last_base:
                write_base.next = 0
            else:
                write_base.next = write_base + groups
        if domain.rst:
            base.next = 0
            write_base.next = 0

    return store, address, turn


@block
def table_ways(
    beat: Beat, written: LineWrite, line: Bits, access: MemoryAccess, both: Beat, either: LineWrite
) -> Instances:
    """A second way to a `line_table`: frames of lines that are read and written as those of beats and statistics are.

    Ports:
        beat: in, ``fire``, ``group`` and ``last_pixel``, never while ``access`` reads.
        written: in, all of it but ``done``, never while ``access`` writes.
        line: in, what the table gives.
        access: in and out; drives ``held``.
        both: out, ``fire``, ``group`` and ``last_pixel``.
        either: out, all of it but ``done``.
    """

    @always_comb
    def read() -> None:
        both.fire.next = beat.fire or access.read
        both.last_pixel.next = beat.last_pixel or access.read
        access.held.next = line
        if access.read:
            both.group.next = access.at
        else:
            both.group.next = beat.group

    @always_comb
    def write() -> None:
        either.enable.next = written.enable or access.write
        if access.write:
            either.group.next = access.at
            either.line.next = access.word
        else:
            either.group.next = written.group
            either.line.next = written.line

    return read, write


def second_ways(line: Bits, groups: int) -> tuple[Beat, LineWrite]:
    """Signals for `table_ways` to a table of such lines."""
    bits = address_width(groups)
    beat = Beat(Signal(bool(0)), Signal(intbv(0)[bits:]), Signal(bool(0)), Signal(bool(0)))
    return beat, LineWrite(Signal(bool(0)), Signal(intbv(0)[bits:]), Signal(intbv(0)[len(line) :]), Signal(bool(0)))


@block
def norm_link(domain: ClockReset, load: Stream, dump: Stream, state: NormState, *, banks: int) -> Instances:
    """The link of a norm in the chain of state: its memories, the table last, a frame after the other.

    Ports:
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
        state: in and out; drives all of it but what memories hold and ``batches.rests``.
    """
    taken, given = Stream(WORD_BITS), Stream(WORD_BITS)
    memories = list(state.memories.values())
    order = (*range(len(memories) - 1), *[len(memories) - 1] * banks)
    words = sum(memories[index].depth * pieces_of(memories[index].width) for index in order)
    link = state_link(domain, load, dump, taken, given, state.begin, state.batches, words=words)
    sections = state_sections(domain, taken, given, state.batches.giving, memories, order=order)
    return link, sections


@block
def collect_lines(
    domain: ClockReset, lines: LineWrite, written: LineWrite, *, lanes: int, parts: int, widths: tuple[int, int]
) -> Instances:
    """Lines of ``lanes`` lanes side by side: ``parts`` of them are written at once, with the last one.

    Costs registers for the others, and a counter.

    Ports:
        lines: in, ``lanes`` codes of the first width and above them as many of the second.
        written: out, combinational in ``lines``: the same of ``parts`` times as many lanes.
    """
    low, high = (lanes * width for width in widths)
    width, lows, before = low + high, parts * low, parts - 1
    held = [Signal(intbv(0)[width:]) for _ in range(before)]
    index = Signal(intbv(0)[address_width(parts) :])
    group = Signal(intbv(0)[len(written.group) :])
    counting = counter(domain, lines.enable, index, count=parts)

    @always(domain.clk.posedge)
    def hold() -> None:
        if lines.enable:
            held[before - 1].next = lines.line
            for place in range(before - 1):
                held[place].next = held[place + 1]
            if index == before:
                if lines.done:
                    group.next = 0
                else:
                    group.next = group + 1
        if domain.rst:
            group.next = 0

    @always_comb
    def out() -> None:
        written.enable.next = lines.enable and index == before
        written.done.next = lines.done
        written.group.next = group
        for place in range(before):
            written.line.next[place * low + low : place * low] = held[place][low:]
            written.line.next[lows + place * high + high : lows + place * high] = held[place][width:low]
        written.line.next[before * low + low : before * low] = lines.line[low:]
        written.line.next[lows + before * high + high : lows + before * high] = lines.line[width:low]

    return counting, hold, out
