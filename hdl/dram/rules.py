"""What may be read and written when: the rule of a ring, and that of a replay."""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv

from hdl.memory import address_width
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.streams import counter


class Bursts:
    """Bursts one way, as a rule and what carries them out tell each other of them."""

    def __init__(self) -> None:
        # of the rule: the coming burst may start
        self.may_start: Bit = Signal(bool(0))
        # what carries bursts out drives the rest.  From a register: the coming burst begins a tensor, ends one
        self.first: Bit = Signal(bool(0))
        self.last: Bit = Signal(bool(0))
        # combinational in ``may_start``: it starts in this cycle
        self.started: Bit = Signal(bool(0))
        # the next burst, in the order they started, has been written or read; it was the last of its tensor
        self.done: Bit = Signal(bool(0))
        self.tensor_done: Bit = Signal(bool(0))
        # the memory answers with an error
        self.error: Bit = Signal(bool(0))


@block
def ring_rule(domain: ClockReset, slot: Bits, writes: Bursts, reads: Bursts, *, slots: int, preload: int) -> Instances:
    """A burst may be written where one was read, and read where one was written.

    Ports:
        slot: out, `address_width` ``(slots)`` bits, from a register: where the coming burst is read.
        writes, reads: in and out; drives ``may_start`` of both, from registers, takes ``started`` and ``done``.
    """
    room = Signal(intbv(0, min=0, max=slots + 1))
    filled = Signal(intbv(0, min=0, max=slots + 1))
    empty, last = slots - preload, slots - 1

    @always_comb
    def allow() -> None:
        writes.may_start.next = room != 0
        reads.may_start.next = filled != 0

    @always(domain.clk.posedge)
    def count() -> None:
        if reads.done and not writes.started:
            room.next = room + 1
        elif writes.started and not reads.done:
            room.next = room - 1
        if writes.done and not reads.started:
            filled.next = filled + 1
        elif reads.started and not writes.done:
            filled.next = filled - 1
        if reads.started:
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
    domain: ClockReset, slot: Bits, writes: Bursts, reads: Bursts, *, bursts: int, batch: int, first: int, preload: int
) -> Instances:
    """A version may be written when the one before the last is out of use, and read when it is written.

    Ports:
        slot: out, `address_width` ``(2 * bursts)`` bits, from a register: where the coming burst is read.
        writes: in and out; drives ``may_start``, combinational in ``first``, takes ``started`` and ``tensor_done``.
        reads: in and out; drives ``may_start``, from registers, takes ``last``, ``started`` and ``tensor_done``.

    Args:
        bursts: of a version.
        batch: frames that read a version.
        first: frames that read the first one.
        preload: versions that stand there at the start, 0 or 1.
    """
    later, begun = batch - 1, first - 1
    empty = 2 - preload
    # frames still to start, and to end, with the version
    to_start, to_end = (Signal(intbv(0, min=0, max=max(batch, first))) for _ in range(2))
    room, versions = (Signal(intbv(0, min=0, max=3)) for _ in range(2))
    upper, fresh, retired, entered = (Signal(bool(0)) for _ in range(4))

    @always_comb
    def allow() -> None:
        writes.may_start.next = not writes.first or room != 0
        reads.may_start.next = not fresh or versions != 0
        retired.next = reads.tensor_done and to_end == 0
        entered.next = reads.started and fresh

    @always(domain.clk.posedge)
    def count() -> None:
        if retired and not (writes.started and writes.first):
            room.next = room + 1
        elif writes.started and writes.first and not retired:
            room.next = room - 1
        if writes.tensor_done and not entered:
            versions.next = versions + 1
        elif entered and not writes.tensor_done:
            versions.next = versions - 1
        if domain.rst:
            room.next = empty
            versions.next = preload

    @always(domain.clk.posedge)
    def frames() -> None:
        if reads.started:
            fresh.next = False
            if not reads.last:
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
        if reads.tensor_done:
            if to_end == 0:
                to_end.next = later
            else:
                to_end.next = to_end - 1
        if domain.rst:
            to_start.next = begun
            to_end.next = begun
            slot.next = 0
            upper.next = False
            fresh.next = True

    return allow, count, frames


@block
def constant_rule(domain: ClockReset, slot: Bits, reads: Bursts, *, bursts: int) -> Instances:
    """Burst after burst may be read, from the first one again behind the last.

    Ports:
        slot: out, `address_width` ``(bursts)`` bits, from a register: where the coming burst is read.
        reads: in and out; drives ``may_start``, combinational in ``rst``, takes ``started``.
    """
    rst = domain.rst
    following = counter(domain, reads.started, slot, count=bursts)

    @always_comb
    def allow() -> None:
        reads.may_start.next = not rst

    return following, allow


@block
def tensor_position(domain: ClockReset, step: Bit, first: Bit, last: Bit, *, bursts: int) -> Instances:
    """Counts bursts of a tensor.

    Ports:
        step: in, 1 bit: on to the next burst at this edge.
        first, last: out, 1 bit each, from a register: the coming burst begins a tensor, ends one.
    """
    final = bursts - 1
    position = Signal(intbv(0)[address_width(bursts) :])
    counting = counter(domain, step, position, count=bursts)

    @always_comb
    def out() -> None:
        first.next = position == 0
        last.next = position == final

    return out, counting
