"""What an activation reads from a table: y and mask of an element at the address that its lane block made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myhdl import Signal, always_comb, block, intbv

from hdl.layers.storage import Memory
from hdl.memory import address_width, read_only
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import fork, join, m2s_pipe, read_stream, take_bits

# cycles of `read_tables`: the address, then the word
TABLE_CYCLES = 2


@dataclass(frozen=True)
class Table:
    """Codes of y in the format `exact`, and of mask, by address; at most `hdl.memory.BLOCK_WORDS` of each.

    An element of a beat has a read-only memory of both, whose image is named for its lane; of y it holds as many bits
    as the largest code has."""

    y: Sequence[int]
    mask: Sequence[int]
    # of an unsigned code of each element that is added to what was read of y; 0 for none
    added_bits: int = 0
    # bits by which that code is shifted left to be one of y
    grow: int = 0

    @property
    def address_bits(self) -> int:
        """Bits of an address, which is unsigned."""
        return address_width(len(self.y))

    @property
    def y_bits(self) -> int:
        """Of a code of y in a word, with its sign."""
        return 1 + max(code.bit_length() if code >= 0 else (~code).bit_length() for code in self.y)

    @property
    def cycles(self) -> int:
        """Cycles of `read_tables`, or of `read_and_add`."""
        return TABLE_CYCLES + (1 if self.added_bits else 0)

    def memories(self, lanes: int, mask_bits: int) -> tuple[Memory, ...]:
        """One a lane."""
        return tuple(Memory(f"table{lane}", len(self.y), self.y_bits + mask_bits) for lane in range(lanes))

    def words(self, mask_bits: int) -> list[int]:
        """Mask below y."""
        y_mask, low = (1 << self.y_bits) - 1, (1 << mask_bits) - 1
        return [(y & y_mask) << mask_bits | mask & low for y, mask in zip(self.y, self.mask, strict=True)]


@block
def read_tables(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    *,
    lanes: int,
    table: Table,
    y_width: int,
    mask_bits: int,
    images: Mapping[str, Sequence[int]] | None,
) -> Instances:
    """A word of the table for each of ``lanes`` addresses of a beat; one beat a cycle.

    Costs a read-only memory a lane, and a register for each address.

    Ports:
        x: in, stream of ``lanes`` addresses of `Table.address_bits`.
        y: out, stream of ``lanes`` signed codes of ``y_width`` bits, then ``lanes`` masks, `TABLE_CYCLES` later.
    """
    bits, y_bits, masks = table.address_bits, table.y_bits, lanes * y_width
    word_bits, bound = y_bits + mask_bits, 1 << (y_width - 1)
    at = Stream(x.width)
    addresses = [Signal(intbv(0)[bits:]) for _ in range(lanes)]
    words = [Signal(intbv(0)[word_bits:]) for _ in range(lanes)]
    fetch = Signal(bool(0))
    results = Signal(intbv(0)[y.width :])
    memories = table.memories(lanes, mask_bits)
    register = m2s_pipe(domain, x, at)
    stores = [
        read_only(
            domain.clk,
            fetch,
            addresses[lane],
            words[lane],
            depth=memory.depth,
            width=memory.width,
            contents=images[memory.name] if images else None,
            image=memory.name,
        )
        for lane, memory in enumerate(memories)
    ]
    reads = read_stream(domain, at.valid, fetch, results, y)

    @always_comb
    def address() -> None:
        for lane in range(lanes):
            addresses[lane].next = at.payload[bits_of(lane, bits)]

    @always_comb
    def take() -> None:
        at.ready.next = y.ready or not y.valid

    @always_comb
    def part() -> None:
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            code[:] = words[lane][word_bits:mask_bits].signed()
            results.next[bits_of(lane, y_width)] = code[y_width:]
            results.next[bits_of(lane, mask_bits, masks)] = words[lane][mask_bits:]

    return register, stores, reads, address, take, part


@block
def read_and_add(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    *,
    lanes: int,
    table: Table,
    y_width: int,
    mask_bits: int,
    images: Mapping[str, Sequence[int]] | None,
) -> Instances:
    """`read_tables`, and a code of each element added to what was read of y.

    Costs beside it an adder a lane, registers for the codes that are added, and for sums and masks.

    Ports:
        x: in, stream of ``lanes`` addresses of `Table.address_bits`, then ``lanes`` codes of `Table.added_bits`.
        y: out, stream of ``lanes`` signed codes of ``y_width`` bits, then ``lanes`` masks, `Table.cycles` later.
    """
    bits, grow, added_bits, bound = lanes * table.address_bits, table.grow, table.added_bits, 1 << (y_width - 1)
    pair, added = lanes * (y_width + mask_bits), lanes * table.added_bits
    parts = [Stream(x.width) for _ in range(2)]
    addresses, read, both, computed = Stream(bits), Stream(pair), Stream(pair + added), Stream(pair)
    waiting = [Stream(added) for _ in range(TABLE_CYCLES + 1)]
    split = fork(domain, x, parts)
    to_table = take_bits(parts[0], addresses, low=0)
    to_wait = take_bits(parts[1], waiting[0], low=bits)
    tables = read_tables(
        domain, addresses, read, lanes=lanes, table=table, y_width=y_width, mask_bits=mask_bits, images=images
    )
    wait = [m2s_pipe(domain, waiting[stage], waiting[stage + 1]) for stage in range(TABLE_CYCLES)]
    joined = join(domain, [read, waiting[TABLE_CYCLES]], both)
    register = m2s_pipe(domain, computed, y)
    codes = lanes * y_width

    @always_comb
    def add() -> None:
        total = intbv(0, min=-bound, max=bound)
        code = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            total[:] = both.payload[bits_of(lane, y_width)].signed()
            code[:] = both.payload[bits_of(lane, added_bits, pair)]
            code[:] = code << grow
            total[:] = total + code
            computed.payload.next[bits_of(lane, y_width)] = total[y_width:]
        computed.payload.next[pair:codes] = both.payload[pair:codes]

    @always_comb
    def handshake() -> None:
        computed.valid.next = both.valid
        both.ready.next = computed.ready

    return split, to_table, to_wait, tables, wait, joined, register, add, handshake
