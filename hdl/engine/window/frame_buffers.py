"""Whole output frames on chip, for engines that pass over the map once for each group of weights."""

from __future__ import annotations

from collections.abc import Sequence

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.mac import signed_signal
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import output_register, queue, read_stream

# cycles of a pass, at least: a sum is read, registered, added to and written before the next pass reads it
SHORTEST_PASS = 8
# cycles from the start of a frame's last operation to the read of its first result, and from the read of its last
# result to the start of an operation, together, besides the levels of the adder tree, at most
REORDER_LATENCY = 16


def reorder_frames(write_cycles: int, read_cycles: int, latency: int, period: int) -> int:
    """Frames that `reorder_frame` must hold so that a frame can start every ``period`` cycles."""
    return max(2, -(-(write_cycles + read_cycles + latency) // period))


@block
def reorder_frame(
    domain: ClockReset, x: Stream, y: Stream, started: Bit, may: Bit, *, pixels: int, repeat: int, frames: int
) -> Instances:
    """Results come as (repeat group, pixel) and leave as (pixel, repeat group), a word a cycle.

    Costs ``frames`` frames of memory: one is read while the next ones are written.

    Ports:
        x: in, stream of any width, always taken: its sender must start a frame only while ``may``.
        y: out, stream as wide as ``x``, from a queue.
        started: in, 1 bit: the last operation of a frame starts.
        may: out, 1 bit, from registers: there is room for the frame at work.
    """
    words = pixels * repeat
    width = x.width
    write_at, read_at = (Signal(intbv(0)[address_width(frames * words) :]) for _ in range(2))
    pixel, group = Signal(intbv(0)[address_width(pixels) :]), Signal(intbv(0)[address_width(repeat) :])
    place = Signal(intbv(0)[address_width(words) :])
    base = Signal(intbv(0)[address_width(frames * words) :])
    free, full = Signal(intbv(frames, min=0, max=frames + 1)), Signal(intbv(0, min=0, max=frames + 1))
    word = Signal(intbv(0)[width:])
    may_read, fetch, complete, emptied = (Signal(bool(0)) for _ in range(4))
    last_pixel, last_group, last_word, last_address = pixels - 1, repeat - 1, words - 1, frames * words - 1
    last_base = (frames - 1) * words
    read_words, out = Stream(width), Stream(width)
    store = simple_dual_port(
        domain.clk, x.valid, write_at, x.payload, fetch, read_at, word, depth=frames * words, width=width
    )
    reading = read_stream(domain, may_read, fetch, word, read_words)
    leave = output_register(domain, read_words, out, depth=frames * words)
    hold = queue(domain, out, y, depth=2)

    @always_comb
    def decide() -> None:
        may.next = free != 0
        may_read.next = full != 0
        complete.next = x.valid and pixel == last_pixel and group == last_group

    @always_comb
    def finish() -> None:
        emptied.next = fetch and place == last_word
        x.ready.next = not domain.rst

    @always(domain.clk.posedge)
    def write() -> None:
        if x.valid:
            if pixel != last_pixel:
                pixel.next = pixel + 1
                write_at.next = write_at + repeat
            else:
                pixel.next = 0
                if group != last_group:
                    group.next = group + 1
                    write_at.next = base + group + 1
                else:
                    group.next = 0
                    if base == last_base:
                        base.next = 0
                        write_at.next = 0
                    else:
                        base.next = base + words
                        write_at.next = base + words
        if domain.rst:
            pixel.next = 0
            group.next = 0
            base.next = 0
            write_at.next = 0

    @always(domain.clk.posedge)
    def read() -> None:
        if fetch:
            if read_at == last_address:
                read_at.next = 0
            else:
                read_at.next = read_at + 1
            if place == last_word:
                place.next = 0
            else:
                place.next = place + 1
        if domain.rst:
            read_at.next = 0
            place.next = 0

    @always(domain.clk.posedge)
    def count() -> None:
        if complete and not emptied:
            full.next = full + 1
        elif emptied and not complete:
            full.next = full - 1
        if started and not emptied:
            free.next = free - 1
        elif emptied and not started:
            free.next = free + 1
        if domain.rst:
            full.next = 0
            free.next = frames

    return store, reading, leave, hold, decide, finish, write, read, count


@block
def frame_sums(
    domain: ClockReset,
    parts: Sequence[Bits],
    valid: Bit,
    totals: Sequence[Bits],
    done: Bit,
    *,
    words: int,
    passes: int,
) -> Instances:
    """Sums over ``passes`` passes of ``words`` words each.

    A pass must last at least `SHORTEST_PASS` cycles.  Costs one frame of sums in memory.

    Ports:
        parts: in, signed signals of one width.
        valid: in, 1 bit, with ``parts``.
        totals: out, signed signals wide enough for all passes, 3 cycles later.
        done: out, 1 bit, with ``totals``: they are those of the last pass, and complete.
    """
    lanes, bits = len(totals), len(totals[0])
    width, bound = lanes * bits, 1 << (len(totals[0]) - 1)
    last_word, last_pass = words - 1, passes - 1
    at = Signal(intbv(0)[address_width(words) :])
    number = Signal(intbv(0)[address_width(passes) :])
    read_word, before, summed = (Signal(intbv(0)[width:]) for _ in range(3))
    late = [signed_signal(len(parts[0])) for _ in range(lanes)]
    later = [signed_signal(len(parts[0])) for _ in range(lanes)]
    flags = [Signal(bool(0)) for _ in range(3)]
    fresh, final = ([Signal(bool(0)) for _ in range(2)] for _ in range(2))
    places = [Signal(intbv(0)[address_width(words) :]) for _ in range(3)]
    write, write_at = flags[2], places[2]
    store = simple_dual_port(domain.clk, write, write_at, summed, valid, at, read_word, depth=words, width=width)

    @always(domain.clk.posedge)
    def count() -> None:
        if valid:
            if at != last_word:
                at.next = at + 1
            else:
                at.next = 0
                if number != last_pass:
                    number.next = number + 1
                else:
                    number.next = 0
        if domain.rst:
            at.next = 0
            number.next = 0

    @always(domain.clk.posedge)
    def delay() -> None:
        flags[0].next = valid and not domain.rst
        places[0].next = at
        fresh[0].next = number == 0
        final[0].next = number == last_pass
        for stage in range(2):
            flags[stage + 1].next = flags[stage] and not domain.rst
            places[stage + 1].next = places[stage]
        fresh[1].next = fresh[0]
        final[1].next = final[0]
        before.next = read_word
        done.next = flags[1] and final[1]

    @always(domain.clk.posedge)
    def carry() -> None:
        for lane in range(lanes):
            late[lane].next = parts[lane]
            later[lane].next = late[lane]

    @always(domain.clk.posedge)
    def add() -> None:
        old = intbv(0, min=-bound, max=bound)
        total = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            old[:] = before[bits_of(lane, bits)].signed()
            if fresh[1]:
                old[:] = 0
            total[:] = old + later[lane]
            summed.next[bits_of(lane, bits)] = total[bits:]
            totals[lane].next = total

    return store, count, delay, carry, add
