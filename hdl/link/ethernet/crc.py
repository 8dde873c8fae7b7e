"""CRC-32C of the beats of a frame, one a cycle, however wide.

`hdl.link.ethernet.frame.crc32c` says which sum.  Of each byte the lowest bit comes first, and byte 0 stands in the low
bits of a beat, so bit i of a beat is the i-th bit of the message.

A beat d moves the register s of 32 bits to A s + B d over GF(2), which are 32 sums of about half of all bits each.
`xor_matrix` shares their parts: of five sums no more than 31 combinations of bits are wanted, and each bit is in one of
these (Arlazarov, Dinic, Kronrod and Faradzev, "On economical construction of the transitive closure of a directed
graph", 1970).  That takes two stages; the register moves in a third one.

A frame has a whole number of beats behind its headers, and the check sequence stands at the start of the last one, so
no beat ends early.  The first one begins in its midst: what comes before in it counts as zeros, and the register starts
with what such zeros turn into all ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from myhdl import ConcatSignal, Signal, always, always_comb, block, intbv

from hdl.link.ethernet.frame import ALL_ONES, CRC_POLYNOMIAL, DTL_START
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream
from hdl.unit import Unit

CRC_BITS = 32
# from a beat to the sum with it
CRC_CYCLES = 4
# sums whose parts are shared
SHARED_ROWS = 5


def moved(register: int, data: int, bits: int) -> int:
    """The register after so many bits, the lowest first."""
    for place in range(bits):
        odd = (register ^ data >> place) & 1
        register = register >> 1 ^ (CRC_POLYNOMIAL if odd else 0)
    return register


def start_before(zeros: int) -> int:
    """The register that is all ones after so many bits that are 0."""
    register = ALL_ONES
    for _ in range(zeros):
        odd = register >> (CRC_BITS - 1)
        register = ((register ^ (CRC_POLYNOMIAL if odd else 0)) << 1 | odd) & ALL_ONES
    return register


@cache
def beat_rows(bits: int) -> tuple[int, ...]:
    """Row k of B: the bits of a beat that are in bit k of the register after it."""
    return _rows([moved(0, 1 << place, bits) for place in range(bits)])


@cache
def register_rows(bits: int) -> tuple[int, ...]:
    """Row k of A: the bits of the register that are in its bit k after a beat of so many bits."""
    return _rows([moved(1 << place, 0, bits) for place in range(CRC_BITS)])


def _rows(columns: Sequence[int]) -> tuple[int, ...]:
    return tuple(sum((column >> row & 1) << place for place, column in enumerate(columns)) for row in range(CRC_BITS))


@dataclass(frozen=True, kw_only=True)
class Crc32c(Unit):
    """The check sequence of frames.

    Inputs: ``advance``, ``start``, ``counts``, a ``data`` beat.  Output: ``crc``.  See `crc32c_beats`.
    """

    # of a beat
    word_bits: int

    @property
    def start_beat(self) -> int:
        """The beat of a frame in which DTL begins."""
        return DTL_START * 8 // self.word_bits

    @property
    def skip(self) -> int:
        """Bits of that beat that come before."""
        return DTL_START * 8 % self.word_bits

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants."""
        return {"advance": 1, "start": 1, "counts": 1, "data": self.word_bits}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"crc": CRC_BITS}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        return crc32c_beats(domain, *self.signals(self.inputs), *self.signals(self.outputs), skip=self.skip)


@block
def crc32c_beats(
    domain: ClockReset, advance: Bit, start: Bit, counts: Bit, data: Bits, crc: Bits, *, skip: int
) -> Instances:
    """CRC-32C of the beats from the last one with ``start`` on, which has ``skip`` bits in front that are left out.

    Cost: a beat of flip-flops, some 200 for what sums share, 64; tables for about a seventh of the 16 inputs a bit
    that the sums have.  Latency: `CRC_CYCLES`, counted in cycles with ``advance``; one beat a cycle.

    Ports:
        advance: in, 1 bit: everything moves on at this edge.
        start: in, 1 bit, with ``data``; the beat counts.
        counts: in, 1 bit, with ``data``: 0 for a beat that is left out.
        data: in, a beat of any number of bytes, byte 0 in the low bits.
        crc: out, 32 bits, `CRC_CYCLES` after the last beat that counts and until the next one, from registers but for
            its inversion.
    """
    bits = len(data)
    held = Signal(intbv(0)[bits:])
    more, rest, register, kept = (Signal(intbv(0)[CRC_BITS:]) for _ in range(4))
    first, second, third, counts_first, counts_second, counts_third = (Signal(bool(0)) for _ in range(6))
    clk = domain.clk
    added = xor_matrix(clk, advance, held, more, rows=beat_rows(bits))
    returned = xor_rows(register, kept, rows=register_rows(bits))
    begun = moved(start_before(skip), 0, bits)

    @always(clk.posedge)
    def hold() -> None:
        if advance:
            held.next = data
            if start:
                held.next[skip:] = 0
            first.next = start
            second.next = first
            third.next = second
            counts_first.next = counts
            counts_second.next = counts_first
            counts_third.next = counts_second

    @always_comb
    def keep() -> None:
        rest.next = kept
        if third:
            rest.next = begun

    @always(clk.posedge)
    def move() -> None:
        if advance and counts_third:
            register.next = rest ^ more

    @always_comb
    def out() -> None:
        crc.next = ~register

    return added, returned, hold, keep, move, out


@block
def xor_matrix(clk: Clock, advance: Bit, x: Bits, y: Bits, *, rows: Sequence[int]) -> Instances:
    """Bit k of ``y`` is the sum over GF(2) of the bits of ``x`` that are in ``rows[k]``, two cycles later.

    Ports:
        advance: in, 1 bit: everything moves on at this edge.
        x: in, of any width.
        y: out, ``len(rows)`` bits, 2 cycles with ``advance`` later.
    """
    groups, chosen = shared_sums(rows, len(x))
    sums, held = (Signal(intbv(0)[len(groups) :]) for _ in range(2))
    total = Signal(intbv(0)[len(rows) :])
    parts = xor_rows(x, sums, rows=groups)
    whole = xor_rows(held, total, rows=chosen)

    @always(clk.posedge)
    def hold() -> None:
        if advance:
            held.next = sums
            y.next = total

    return parts, whole, hold


def shared_sums(rows: Sequence[int], bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sums of bits, and which of these sums each row is the sum of: bits that are in the same ones of `SHARED_ROWS`
    rows are summed once."""
    groups: list[int] = []
    chosen = [0] * len(rows)
    parts = -(-len(rows) // SHARED_ROWS)
    for part in range(parts):
        some = range(part * len(rows) // parts, (part + 1) * len(rows) // parts)
        found: dict[tuple[int, ...], int] = {}
        for place in range(bits):
            among = tuple(row for row in some if rows[row] >> place & 1)
            if among:
                found[among] = found.get(among, 0) | 1 << place
        for among, mask in found.items():
            for row in among:
                chosen[row] |= 1 << len(groups)
            groups.append(mask)
    return tuple(groups), tuple(chosen)


@block
def xor_rows(x: Bits, y: Bits, *, rows: Sequence[int]) -> Instances:
    """Bit k of ``y`` is the sum over GF(2) of the bits of ``x`` that are in ``rows[k]``; balanced trees.

    Ports:
        x: in, of any width.
        y: out, ``len(rows)`` bits, in the same cycle.
    """
    # MyHDL's signals give a bit of theirs when they are called
    whole: Any = x
    single = [whole(place) for place in range(len(x))]
    wanted = [[single[place] for place in range(len(x)) if row >> place & 1] for row in rows]
    most, width = max(map(len, wanted)), len(rows)
    # word j: of each row the j-th bit that it has
    flat = ConcatSignal(*reversed([row[j] if j < len(row) else "0" for j in range(most) for row in wanted]))
    total, levels = len(flat), (most - 1).bit_length()

    @always_comb
    def fold() -> None:
        left = intbv(0)[total:]
        left[:] = flat
        for level in range(levels):
            left[:] = left ^ (left >> (width << (levels - 1 - level)))
        y.next = left[width:]

    return fold
