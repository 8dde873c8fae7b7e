"""What may be read and written when: the rule of a ring, and that of a replay."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.region import Replay
from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances


@block
def ring_rule(
    domain: ClockReset, slot: Bits, may_write: Bit, write_started: Bit, written: Bit,
    may_read: Bit, read_started: Bit, read_done: Bit, *, slots: int, preload: int,
) -> Instances:  # fmt: skip
    """A burst may be written where one was read, and read where one was written.

    Ports:
        slot: out, `address_width` ``(slots)`` bits, from a register: where the coming burst is read.
        may_write, may_read: out, 1 bit each, from registers: the coming burst may start.
        write_started, read_started: in, 1 bit each: it starts in this cycle, while it may.
        written, read_done: in, 1 bit each: a burst, in the order they started, has been written, or read.
    """
    room = Signal(intbv(0, min=0, max=slots + 1))
    filled = Signal(intbv(0, min=0, max=slots + 1))
    empty, last = slots - preload, slots - 1

    @always_comb
    def allow() -> None:
        may_write.next = room != 0
        may_read.next = filled != 0

    @always(domain.clk.posedge)
    def count() -> None:
        if read_done and not write_started:
            room.next = room + 1
        elif write_started and not read_done:
            room.next = room - 1
        if written and not read_started:
            filled.next = filled + 1
        elif read_started and not written:
            filled.next = filled - 1
        if read_started:
            if slot == last:
                slot.next = 0
            else:
                slot.next = slot + 1
        if domain.rst:
            room.next = empty
            filled.next = preload
            slot.next = 0

    return allow, count


@block
def replay_rule(
    domain: ClockReset, slot: Bits, may_write: Bit, write_first: Bit, write_started: Bit, tensor_written: Bit,
    may_read: Bit, read_last: Bit, read_started: Bit, tensor_read: Bit, *, unit: Replay,
) -> Instances:  # fmt: skip
    """A version may be written when the one before the last is out of use, and read when it is written.

    Ports:
        slot: out, `address_width` ``(ring_bursts)`` bits, from a register: where the coming burst is read.
        may_write: out, 1 bit, combinational in ``write_first``: the coming burst may be written.
        may_read: out, 1 bit, from registers: the coming burst may be read.
        write_first, read_last: in, 1 bit each, of the coming burst: it begins a tensor, ends one.
        write_started, read_started: in, 1 bit each: the coming burst starts in this cycle, while it may.
        tensor_written, tensor_read: in, 1 bit each: the last burst of a tensor has been written, or read.
    """
    bursts = unit.tensor_bursts
    later = unit.batch - 1
    first = unit.batch + unit.staleness - 1
    # frames still to start, and to end, with the version
    to_start, to_end = (Signal(intbv(0, min=0, max=first + 1)) for _ in range(2))
    room, versions = (Signal(intbv(0, min=0, max=3)) for _ in range(2))
    upper, fresh, retired, entered = (Signal(bool(0)) for _ in range(4))

    @always_comb
    def allow() -> None:
        may_write.next = not write_first or room != 0
        may_read.next = not fresh or versions != 0
        retired.next = tensor_read and to_end == 0
        entered.next = read_started and fresh

    @always(domain.clk.posedge)
    def count() -> None:
        if retired and not (write_started and write_first):
            room.next = room + 1
        elif write_started and write_first and not retired:
            room.next = room - 1
        if tensor_written and not entered:
            versions.next = versions + 1
        elif entered and not tensor_written:
            versions.next = versions - 1
        if domain.rst:
            room.next = 1
            versions.next = 1

    @always(domain.clk.posedge)
    def frames() -> None:
        if read_started:
            fresh.next = False
            if not read_last:
                slot.next = slot + 1
            elif to_start == 0:
                to_start.next = later
                fresh.next = True
                upper.next = not upper
                if upper:
                    slot.next = 0
                else:
                    slot.next = bursts
            else:
                to_start.next = to_start - 1
                if upper:
                    slot.next = bursts
                else:
                    slot.next = 0
        if tensor_read:
            if to_end == 0:
                to_end.next = later
            else:
                to_end.next = to_end - 1
        if domain.rst:
            to_start.next = first
            to_end.next = first
            slot.next = 0
            upper.next = False
            fresh.next = True

    return allow, count, frames


@block
def tensor_position(domain: ClockReset, step: Bit, first: Bit, last: Bit, *, bursts: int) -> Instances:
    """Counts bursts of a tensor.

    Ports:
        step: in, 1 bit: on to the next burst at this edge.
        first, last: out, 1 bit each, from a register: the coming burst begins a tensor, ends one.
    """
    final = bursts - 1
    position = Signal(intbv(0)[address_width(bursts) :])

    @always_comb
    def out() -> None:
        first.next = position == 0
        last.next = position == final

    @always(domain.clk.posedge)
    def count() -> None:
        if step:
            if position == final:
                position.next = 0
            else:
                position.next = position + 1
        if domain.rst:
            position.next = 0

    return out, count
