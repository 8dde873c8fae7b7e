"""What may be read and written when: the rule of a ring, and that of a replay."""

from __future__ import annotations

from typing import Any

from myhdl import Signal, always, always_comb, block, intbv

from hdl.dram.region import Replay
from hdl.memory import address_width


@block
def ring_rule(
    clk: Any, rst: Any, slot: Any, may_write: Any, write_started: Any, written: Any,
    may_read: Any, read_started: Any, read_done: Any, *, slots: int, preload: int,
) -> Any:  # fmt: skip
    """A burst may be written where one was read, and read where one was written."""
    room = Signal(intbv(0, min=0, max=slots + 1))
    filled = Signal(intbv(0, min=0, max=slots + 1))
    empty, last = slots - preload, slots - 1

    @always_comb
    def allow() -> None:
        may_write.next = room != 0
        may_read.next = filled != 0

    @always(clk.posedge)
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
        if rst:
            room.next = empty
            filled.next = preload
            slot.next = 0

    return allow, count


@block
def replay_rule(
    clk: Any, rst: Any, slot: Any, may_write: Any, write_first: Any, write_started: Any, tensor_written: Any,
    may_read: Any, read_last: Any, read_started: Any, tensor_read: Any, *, unit: Replay,
) -> Any:  # fmt: skip
    """A version may be written when the one before the last is out of use, and read when it is written."""
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

    @always(clk.posedge)
    def count() -> None:
        if retired and not (write_started and write_first):
            room.next = room + 1
        elif write_started and write_first and not retired:
            room.next = room - 1
        if tensor_written and not entered:
            versions.next = versions + 1
        elif entered and not tensor_written:
            versions.next = versions - 1
        if rst:
            room.next = 1
            versions.next = 1

    @always(clk.posedge)
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
        if rst:
            to_start.next = first
            to_end.next = first
            slot.next = 0
            upper.next = False
            fresh.next = True

    return allow, count, frames


@block
def tensor_position(clk: Any, rst: Any, step: Any, first: Any, last: Any, *, bursts: int) -> Any:
    """Counts bursts: ``first`` and ``last`` say whether the coming one begins or ends a tensor."""
    final = bursts - 1
    position = Signal(intbv(0)[address_width(bursts) :])

    @always_comb
    def out() -> None:
        first.next = position == 0
        last.next = position == final

    @always(clk.posedge)
    def count() -> None:
        if step:
            if position == final:
                position.next = 0
            else:
                position.next = position + 1
        if rst:
            position.next = 0

    return out, count
