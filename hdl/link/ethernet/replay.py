"""The replay memory of a port: payloads from when their words come until they are acknowledged.

One memory, cut into a ring for each peer; `replay_ring` keeps the books of one.
"""

from __future__ import annotations

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.link.ethernet.peers import Timing
from hdl.memory import simple_dual_port
from hdl.signals import Bit, Bits, ClockReset, Instances


@block
def replay_ring(
    domain: ClockReset,
    made: Bit,
    beats: Bits,
    end: Bits,
    freed: Bits,
    lost: Bit,
    read: Bit,
    slot: Bits,
    room: Bit,
    head: Bits,
    start: Bits,
    length: Bits,
    *,
    first: int,
    region: int,
    most: int,
    timing: Timing,
) -> Instances:
    """What of a peer's ring is taken, and where each payload lies.  Cost: two small memories, counters.

    Ports:
        made: in, 1 bit: one more payload is complete.
        beats: in, any width: its length, with ``made``.
        end: in, an address, with ``made``: where the next one begins.
        freed: in, ``timing.slot_bits + 1`` bits: so many more payloads are acknowledged.
        lost: in, 1 bit: nothing more is sent.
        read: in, 1 bit: the payload of a slot is sent.
        slot: in, ``timing.slot_bits`` bits, with ``read``.
        room: out, 1 bit, combinational in registers: one of ``most`` beats finds room.
        head: out, as wide as ``end``, from registers: where the next payload begins.
        start: out, as wide as ``end``, 1 cycle after ``read``, until the next: where the payload of that slot begins.
        length: out, as wide as ``beats``, with ``start``.

    Args:
        first: address of the ring.
        region: beats of it.
        most: beats of the longest payload.
    """
    window, slot_bits = timing.window, timing.slot_bits
    bits, size = len(end), len(beats)
    taken = Signal(intbv(0, min=0, max=region + 1))
    held, waiting = (Signal(intbv(0, min=0, max=window + 1)) for _ in range(2))
    made_slot, free_slot = (Signal(modbv(0)[slot_bits:]) for _ in range(2))
    entry, found = (Signal(intbv(0)[bits + size :]) for _ in range(2))
    going = Signal(intbv(0)[size:])
    fetch, gone = (Signal(bool(0)) for _ in range(2))
    limit = region - most
    places = simple_dual_port(domain.clk, made, made_slot, entry, read, slot, found, depth=window, width=bits + size)
    lengths = simple_dual_port(domain.clk, made, made_slot, beats, fetch, free_slot, going, depth=window, width=size)

    @always_comb
    def record() -> None:
        entry.next[size:] = beats
        entry.next[bits + size : size] = head
        start.next = found[bits + size : size]
        length.next = found[size:]

    @always_comb
    def judge() -> None:
        room.next = taken <= limit and held != window and not lost
        fetch.next = waiting != 0 and not gone

    @always(domain.clk.posedge)
    def keep() -> None:
        gone.next = fetch
        if made:
            head.next = end
            made_slot.next = made_slot + 1
        if gone:
            free_slot.next = free_slot + 1
        if made and gone:
            taken.next = taken + beats - going
        elif made:
            taken.next = taken + beats
            held.next = held + 1
        elif gone:
            taken.next = taken - going
            held.next = held - 1
        if gone:
            waiting.next = waiting + freed - 1
        else:
            waiting.next = waiting + freed
        if domain.rst:
            gone.next = False
            head.next = first
            made_slot.next = 0
            free_slot.next = 0
            taken.next = 0
            held.next = 0
            waiting.next = 0

    return places, lengths, record, judge, keep
