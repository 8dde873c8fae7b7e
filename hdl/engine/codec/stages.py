"""Pipeline stages of the codec's circuits: what is computed of a payload goes into registers with its valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myhdl import Signal, always_comb, block, intbv

from hdl.engine.codec.bursts import Bursts
from hdl.signals import Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import m2s_pipe
from hdl.unit import Unit


@dataclass(frozen=True, kw_only=True)
class BurstUnit(Unit):
    """A circuit from ``x`` to ``y``, both as wide as a burst."""

    bursts: Bursts

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys(("x", "y"), self.bursts.burst_bits)


@dataclass(frozen=True)
class Fields:
    """Where values lie in a payload: ``count`` fields of ``width`` bits from bit ``start`` on."""

    start: int
    width: int
    count: int = 1

    @property
    def end(self) -> int:
        """The bit behind the last one."""
        return self.start + self.width * self.count


def fields(*sizes: tuple[int, int]) -> list[Fields]:
    """Of (width, count) each, one behind another from bit 0 on."""
    found: list[Fields] = []
    for width, count in sizes:
        found.append(Fields(found[-1].end if found else 0, width, count))
    return found


def bits_in(layout: Sequence[Fields]) -> int:
    """Of a whole payload."""
    return layout[-1].end


@block
def next_stage(domain: ClockReset, x: Stream, value: Bits, y: Stream) -> Instances:
    """Registers what another circuit makes of the payload of ``x``.  Cost and latency: those of `m2s_pipe`.

    Ports:
        x: in, stream of any width, of which only valid is read.
        value: in, as wide as a payload of ``y``; it follows that of ``x`` in the same cycle.
        y: out, stream of any width, 1 cycle later, from registers.
    """
    computed = Stream(y.width)
    register = m2s_pipe(domain, computed, y)

    @always_comb
    def connect() -> None:
        computed.valid.next = x.valid
        computed.payload.next = value
        x.ready.next = computed.ready

    return register, connect


def granule_bits(bursts: Bursts, lanes: int) -> int:
    """Of the granules that the codes of so many lanes take."""
    return (lanes * bursts.granules[-1]).bit_length()


@block
def tag_sums(tags: Bits, sums: Bits, *, bursts: Bursts, start: int, every: int, lanes: int) -> Instances:
    """Granules of the codes of the first ``lanes`` of every so many lanes, a power of two.  Costs a tree of adders; no
    cycle.

    Ports:
        tags: in, any bits, from ``start`` on two a lane; what is no tag is as long as an element.
        sums: out, fields of ``granule_bits(bursts, lanes)`` bits, in the same cycle.
    """
    sizes = Signal(intbv(0)[len(sums) // granule_bits(bursts, lanes) * lanes * granule_bits(bursts, 1) :])
    count, bits = len(sizes) // granule_bits(bursts, 1), granule_bits(bursts, 1)
    small, raw = bursts.granules[1], bursts.granules[-1]
    # without a mark there is a tag between these
    large = bursts.granules[-2]
    levels, added, adders = lanes.bit_length() - 1, sizes, []
    for level in range(levels):
        total = (
            sums if level == levels - 1 else Signal(intbv(0)[(count >> level + 1) * granule_bits(bursts, 2 << level) :])
        )
        adders.append(add_pairs(added, total, width=granule_bits(bursts, 1 << level)))
        added = total
    groups = count // lanes

    measured: Instances
    if bursts.codec.has_mark:

        @always_comb
        def measure() -> None:
            size = intbv(0)[bits:]
            for group in range(groups):
                for lane in range(lanes):
                    size[:] = 0
                    if tags[start + 2 * (group * every + lane) + 1]:
                        size[:] = raw
                    elif tags[start + 2 * (group * every + lane)]:
                        size[:] = small
                    sizes.next[bits_of(group * lanes + lane, bits)] = size

        measured = measure

    else:

        @always_comb
        def measure_four() -> None:
            size = intbv(0)[bits:]
            tag = intbv(0)[2:]
            for group in range(groups):
                for lane in range(lanes):
                    tag[:] = tags[bits_of(group * every + lane, 2, start)]
                    size[:] = 0
                    if tag == 3:
                        size[:] = raw
                    elif tag == 2:
                        size[:] = large
                    elif tag == 1:
                        size[:] = small
                    sizes.next[bits_of(group * lanes + lane, bits)] = size

        measured = measure_four

    if levels:
        return measured, adders

    @always_comb
    def connect() -> None:
        sums.next = sizes

    return measured, connect


@block
def add_pairs(terms: Bits, sums: Bits, *, width: int) -> Instances:
    """Fields of ``width`` bits, two and two.  Costs their adders; no cycle.

    Ports:
        terms: in, fields of ``width`` bits.
        sums: out, half as many fields, at most a bit wider, in the same cycle.
    """
    count = len(terms) // width // 2
    sum_bits = len(sums) // count

    @always_comb
    def add() -> None:
        total = intbv(0)[sum_bits:]
        for pair in range(count):
            total[:] = terms[bits_of(2 * pair, width)]
            total[:] = total + terms[bits_of(2 * pair + 1, width)]
            sums.next[bits_of(pair, sum_bits)] = total

    return add
