"""Pseudo-random words over a link: who sends them, and who counts what came otherwise.

Their bits are those of PRBS31 (ITU-T O.150: x³¹ + x²⁸ + 1, here not inverted), a word's lowest bit first: each is the
XOR of those 28 and 31 before it.  The same holds of those 28 · 2ᵏ and 31 · 2ᵏ before it, so a word of 32 · 2ᵏ bits
follows from the one before it by an XOR of two or three of its bits each.

Both ends begin with the same word after reset, and go on by what they know, not by what came: one wrong bit counts as
one, and a word that is lost makes all behind it wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.unit import Unit

# taps of the polynomial, and its order
NEAR, FAR = 28, 31
WORD_BITS = (32, 64, 128, 256, 512)
COUNT_BITS = 32
# of an order to send: how many words, and above that whether the first has its lowest bit turned over
ORDER_BITS = COUNT_BITS + 1


def prbs_words(seed: int, word_bits: int) -> Iterator[int]:
    """The words of a link, bit by bit from the polynomial; ``seed``: the first 31 bits, not all 0."""
    bits = [seed >> at & 1 for at in range(FAR)]
    while True:
        while len(bits) < word_bits + FAR:
            bits.append(bits[-NEAR] ^ bits[-FAR])
        yield sum(bit << at for at, bit in enumerate(bits[:word_bits]))
        bits = bits[word_bits:]


def first_word(seed: int, word_bits: int) -> int:
    """The word that both ends begin with.

    Raises `ValueError` for a seed that makes no sequence."""
    if not 0 < seed < 1 << FAR:
        raise ValueError(f"a seed is a number of {FAR} bits, not 0, and not {seed}")
    return next(prbs_words(seed, word_bits))


@dataclass(frozen=True, kw_only=True)
class _PrbsEnd(Unit):
    word_bits: int

    def __post_init__(self) -> None:
        if self.word_bits not in WORD_BITS:
            raise ValueError(f"words have {', '.join(map(str, WORD_BITS))} bits, not {self.word_bits}")

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"first": self.word_bits}


@dataclass(frozen=True, kw_only=True)
class PrbsSource(_PrbsEnd):
    """Sends as many words ``y`` as an order ``x`` says; ``first``: `first_word`.  Output: ``sent``, words so far."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": ORDER_BITS, "y": self.word_bits}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"sent": COUNT_BITS}

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (first,), (sent,) = self.signals(self.inputs), self.signals(self.outputs)
        return prbs_source(domain, first, streams["x"], streams["y"], sent)


@dataclass(frozen=True, kw_only=True)
class PrbsCheck(_PrbsEnd):
    """Takes words ``x`` and counts.  Outputs: ``words`` that came, ``wrong_words`` and ``wrong_bits`` of them, all of
    which stop at their last."""

    @property
    def streams(self) -> Mapping[str, int]:
        """See the base class."""
        return {"x": self.word_bits}

    @property
    def outputs(self) -> Mapping[str, int]:
        """See the base class."""
        return dict.fromkeys(("words", "wrong_words", "wrong_bits"), COUNT_BITS)

    def build(self, domain: ClockReset, streams: Mapping[str, Stream]) -> Instances:
        """See the base class."""
        (first,), outputs = self.signals(self.inputs), self.signals(self.outputs)
        return prbs_check(domain, first, streams["x"], *outputs)


@block
def prbs_source(domain: ClockReset, first: Bits, x: Stream, y: Stream, sent: Bits) -> Instances:
    """See `PrbsSource`.  Cost: a word and three counters; a word a cycle, from the cycle after the order on.

    Ports:
        first: in, as wide as ``y``, constant.
        x: in, stream of 33 bits: how many words, and above that whether the first has its lowest bit turned over; it
            is taken while nothing is left to send.
        y: out, stream of 32 to 512 bits, a power of two; valid from a register.
        sent: out, 32 bits, from registers; begins anew behind its last.
    """
    bits = len(y.payload)
    word, following = (Signal(intbv(0)[bits:]) for _ in range(2))
    left = Signal(intbv(0)[COUNT_BITS:])
    count = Signal(modbv(0)[COUNT_BITS:])
    running, turned = (Signal(bool(0)) for _ in range(2))
    goes_on = prbs_step(word, following)

    @always_comb
    def connect() -> None:
        x.ready.next = not running
        y.valid.next = running
        y.payload.next = word
        y.payload.next[0] = word[0] != turned
        sent.next = count

    @always(domain.clk.posedge)
    def step() -> None:
        if running:
            if y.ready:
                word.next = following
                left.next = left - 1
                count.next = count + 1
                turned.next = False
                running.next = left != 1
        elif x.valid:
            left.next = x.payload[COUNT_BITS:]
            turned.next = x.payload[COUNT_BITS]
            running.next = x.payload[COUNT_BITS:] != 0
        if domain.rst:
            word.next = first
            running.next = False
            count.next = 0

    return goes_on, connect, step


@block
def prbs_check(
    domain: ClockReset, first: Bits, x: Stream, words: Bits, wrong_words: Bits, wrong_bits: Bits
) -> Instances:
    """See `PrbsCheck`.  Cost: two words, a tree of sums, three counters; a word a cycle.

    Ports:
        first: in, as wide as ``x``, constant.
        x: in, stream of 32 to 512 bits, a power of two, always ready.
        words, wrong_words, wrong_bits: out, 32 bits, from registers, at most 8 cycles behind.
    """
    bits = len(x.payload)
    word, following, difference = (Signal(intbv(0)[bits:]) for _ in range(3))
    goes_on = prbs_step(word, following)
    total, came, counted = Signal(intbv(0)[sum_bits(bits) :]), Signal(bool(0)), Signal(bool(0))
    sums = ones(domain, came, difference, counted, total)
    all_words, bad_words, bad_bits = (Signal(intbv(0)[COUNT_BITS:]) for _ in range(3))
    most = (1 << COUNT_BITS) - 1

    @always_comb
    def connect() -> None:
        x.ready.next = True
        words.next = all_words
        wrong_words.next = bad_words
        wrong_bits.next = bad_bits

    @always(domain.clk.posedge)
    def compare() -> None:
        came.next = x.valid
        if x.valid:
            difference.next = x.payload ^ word
            word.next = following
        if domain.rst:
            word.next = first
            came.next = False

    @always(domain.clk.posedge)
    def add() -> None:
        more = intbv(0)[COUNT_BITS + 1 :]
        more[:] = bad_bits + total
        if counted:
            if all_words != most:
                all_words.next = all_words + 1
            if total != 0 and bad_words != most:
                bad_words.next = bad_words + 1
            if more[COUNT_BITS]:
                bad_bits.next = most
            else:
                bad_bits.next = more[COUNT_BITS:]
        if domain.rst:
            all_words.next = 0
            bad_words.next = 0
            bad_bits.next = 0

    return goes_on, sums, connect, compare, add


@block
def prbs_step(word: Bits, following: Bits) -> Instances:
    """The word behind a word.  Cost: XORs of two or three bits.

    Ports:
        word: in, 32 to 512 bits, a power of two.
        following: out, as wide as ``word``, in the same cycle.
    """
    bits = len(word)
    # a 32nd of a word: bits are 28 and 31 of these apart from what they follow from
    unit = bits // 32
    near, far = NEAR * unit, FAR * unit
    one, two, four, seven, eight, behind = unit, 2 * unit, 4 * unit, 7 * unit, 8 * unit, 29 * unit

    @always_comb
    def step() -> None:
        following.next[near:] = word[bits:four] ^ word[behind:one]
        following.next[far:near] = word[seven:four] ^ word[four:one] ^ word[bits:behind]
        following.next[bits:far] = word[eight:seven] ^ word[two:one]

    return step


def _sums(bits: int) -> Iterator[tuple[int, int, int]]:
    """Levels of a tree that adds bits: lanes that go in, how many are added at once, bits of a sum."""
    lanes, size, group = bits, 1, 8
    while lanes > 1:
        group = min(group, lanes)
        size = size + 3 if size == 1 else size + group.bit_length() - 1
        yield lanes, group, size
        lanes, group = lanes // group, 4


def sum_bits(bits: int) -> int:
    """Bits of the sum of so many bits."""
    return [size for _, _, size in _sums(bits)][-1]


@block
def ones(domain: ClockReset, came: Bit, bits: Bits, counted: Bit, total: Bits) -> Instances:
    """How many bits are 1.  Cost: a tree that adds eight bits, then four sums at once, each behind registers.

    Ports:
        came: in, 1 bit: there are bits to count.
        bits: in, any number of bits, a power of two of at least 8.
        counted: out, 1 bit, from a register: ``total`` is that of the oldest bits that are still to be counted.
        total: out, as many bits as `sum_bits` says, from registers.
    """
    levels = list(_sums(len(bits)))
    rows = [bits, *(Signal(intbv(0)[lanes // group * size :]) for lanes, group, size in levels[:-1]), total]
    marks = [came, *(Signal(bool(0)) for _ in levels[:-1]), counted]
    return [
        add_lanes(domain, marks[at], rows[at], marks[at + 1], rows[at + 1], lanes=lanes, group=group)
        for at, (lanes, group, _) in enumerate(levels)
    ]


@block
def add_lanes(domain: ClockReset, came: Bit, x: Bits, added: Bit, y: Bits, *, lanes: int, group: int) -> Instances:
    """Lanes side by side are added.  Cost: the sums, and their registers.

    Ports:
        came: in, 1 bit.
        x: in, any number of bits, ``lanes`` unsigned numbers.
        added: out, 1 bit, ``came`` a cycle before.
        y: out, any number of bits, ``lanes // group`` unsigned numbers, from registers.
    """
    sums = lanes // group
    size, wide = len(x) // lanes, len(y) // sums

    @always(domain.clk.posedge)
    def add() -> None:
        amount = intbv(0)[wide:]
        added.next = came
        for lane in range(sums):
            amount[:] = 0
            for part in range(group):
                amount[:] = amount + x[bits_of(lane * group + part, size)]
            y.next[bits_of(lane, wide)] = amount
        if domain.rst:
            added.next = False

    return add
