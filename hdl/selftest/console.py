"""What the host says to a board under test, and how the board answers: words of 64 bits each way.

    order:   what (8 bits, high) | of which (8) | flags (16) | number (32)
    report:  one word for each value that is told, in their order

`Order.REPORT` has all values told once.  `RUN` has a link send ``number`` words, the first with its lowest bit turned
over where bit 0 of the flags is set; `MARCH` has a memory channel marched through for ``number`` bursts.  An order
waits until the one before it for the same link or channel has been taken; one that nobody takes is counted as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.memory import address_width
from hdl.selftest.march import COUNT_BITS
from hdl.selftest.prbs import ORDER_BITS
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams.fork_join import row_of
from hdl.streams.pipes import m2s_pipe
from hdl.unit import Unit

WORD_BITS = 64
WHICH_BITS, FLAG_BITS = 8, 16
CYCLE_BITS = 64
# values of which one is chosen in a cycle
GROUP = 8


class Order(IntEnum):
    """What an order asks for."""

    REPORT = 0
    RUN = 1
    MARCH = 2


REPORT, RUN, MARCH = (int(what) for what in Order)


def order(what: Order, which: int = 0, number: int = 0, flags: int = 0) -> int:
    """The word of an order."""
    return ((what << WHICH_BITS | which) << FLAG_BITS | flags) << COUNT_BITS | number


@dataclass(frozen=True, kw_only=True)
class Console(Unit):
    """Takes orders ``x``, gives reports ``y``, hands orders on to links ``run0`` … and channels ``march0`` ….

    Input: ``values``, of 64 bits each, the first in the low bits; before them a report tells two of its own: cycles
    since reset, and orders that nobody took."""

    links: int
    channels: int
    # that are told
    values: int

    def __post_init__(self) -> None:
        if not 0 <= max(self.links, self.channels) <= 1 << WHICH_BITS or self.values < 1:
            raise ValueError(
                f"{self}: an order has {WHICH_BITS} bits for one of all links or channels, a report a value"
            )

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        runs = {f"run{link}": ORDER_BITS for link in range(self.links)}
        return {"x": WORD_BITS, "y": WORD_BITS, **runs, **{f"march{at}": COUNT_BITS for at in range(self.channels)}}

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class; no constants."""
        return {"values": self.values * WORD_BITS}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (values,) = self.signals(self.inputs)
        runs = [streams[f"run{link}"] for link in range(self.links)]
        walks = [streams[f"march{at}"] for at in range(self.channels)]
        return console(domain, streams["x"], streams["y"], runs, walks, values)


@block
def console(
    domain: ClockReset, x: Stream, y: Stream, run: Sequence[Stream], march: Sequence[Stream], values: Bits
) -> Instances:
    """See `Console`.  Cost: an eighth of all values, the choice of one of them, two counters.  A report
    takes five cycles a value.

    Ports:
        x: in, stream of 64 bits.
        y: out, stream of 64 bits, from registers.
        run: out, streams of 33 bits.
        march: out, streams of 32 bits.
        values: in, any number of bits, 64 a value.
    """
    count = len(values) // WORD_BITS
    last, groups = count + 1, max(2, -(-(count + 2) // GROUP))
    size, low = groups * GROUP * WORD_BITS, 2 * WORD_BITS
    at = Signal(intbv(0)[address_width(groups * GROUP) :])
    at_bits, group_bits = len(at), address_width(GROUP)
    cycles = Signal(modbv(0)[CYCLE_BITS:])
    unknown = Signal(modbv(0)[COUNT_BITS:])
    held = Stream(WORD_BITS)
    takes = m2s_pipe(domain, x, held)
    full, mine, ends, tells = (Signal(bool(0)) for _ in range(4))
    # all that is told; of each group the value at this place, of these the one of this group, and the one that is told
    every, picked = Signal(intbv(0)[size:]), Signal(intbv(0)[groups * WORD_BITS :])
    chosen, word = (Signal(intbv(0)[WORD_BITS:]) for _ in range(2))
    settled = Signal(intbv(0, min=0, max=4))
    ends_of = [(RUN, link, stream) for link, stream in enumerate(run)]
    ends_of += [(MARCH, channel, stream) for channel, stream in enumerate(march)]
    # whom the order means, and who would take one
    means = [Signal(bool(0)) for _ in ends_of] or [Signal(bool(0))]
    hands = [_hand(held, y, means[at], what=what, which=which) for at, (what, which, y) in enumerate(ends_of)]
    meant, takers = row_of(means), row_of([y.ready for _, _, y in ends_of] or means)
    what_at = COUNT_BITS + FLAG_BITS + WHICH_BITS

    @always_comb
    def choose() -> None:
        mine.next = meant != 0
        tells.next = held.payload[WORD_BITS:what_at] == REPORT
        ends.next = full and y.ready and at == last

    @always_comb
    def connect() -> None:
        if held.payload[WORD_BITS:what_at] == REPORT:
            held.ready.next = ends
        elif meant != 0:
            held.ready.next = (meant & takers) != 0
        else:
            held.ready.next = True
        y.valid.next = full
        y.payload.next = word

    @always_comb
    def gather() -> None:
        every.next = 0
        every.next[CYCLE_BITS:] = cycles
        every.next[COUNT_BITS + WORD_BITS : WORD_BITS] = unknown
        for value in range(count):
            every.next[bits_of(value, WORD_BITS, low)] = values[bits_of(value, WORD_BITS)]

    @always(domain.clk.posedge)
    def pick() -> None:
        for group in range(groups):
            for place in range(GROUP):
                if at[group_bits:] == place:
                    picked.next[bits_of(group, WORD_BITS)] = every[bits_of(group * GROUP + place, WORD_BITS)]
            if at[at_bits:group_bits] == group:
                chosen.next = picked[bits_of(group, WORD_BITS)]

    @always(domain.clk.posedge)
    def tell() -> None:
        if full:
            if y.ready:
                full.next = False
                settled.next = 0
                if at == last:
                    at.next = 0
                else:
                    at.next = at + 1
        elif held.valid and tells:
            if settled == 3:
                full.next = True
                word.next = chosen
            else:
                settled.next = settled + 1
        if domain.rst:
            full.next = False
            settled.next = 0
            at.next = 0

    @always(domain.clk.posedge)
    def count_up() -> None:
        cycles.next = cycles + 1
        if held.valid and not tells and not mine:
            unknown.next = unknown + 1
        if domain.rst:
            cycles.next = 0
            unknown.next = 0

    return takes, hands, choose, connect, gather, pick, tell, count_up


@block
def _hand(x: Stream, y: Stream, means: Bit, *, what: int, which: int) -> Instances:
    """An order to whom it is meant for: its number, and of a link the lowest flag."""
    bits, which_at = y.width, COUNT_BITS + FLAG_BITS
    what_at = which_at + WHICH_BITS

    @always_comb
    def choose() -> None:
        means.next = x.payload[WORD_BITS:what_at] == what and x.payload[what_at:which_at] == which

    @always_comb
    def out() -> None:
        y.valid.next = x.valid and means
        y.payload.next = x.payload[bits:]

    return choose, out
