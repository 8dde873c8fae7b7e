"""The learning rate of a schedule, batch by batch: its numbers, shared with the golden model, and its circuit.

A rate is a mantissa of 17 bits and a shift that all batches share.  The mantissa runs along straight lines between the
bends of the schedule: to that of the last bend it adds a slope with every batch, in `FRACTION_BITS` bits more, which
are cut off where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.scalar import MANTISSA_BITS, Scalar
from hdl.memory import address_width, read_only
from hdl.recipe import Recipe
from hdl.signals import Bit, Bits, ClockReset, Instances

# bits of the line below the last one of the mantissa: slopes are cut off there, so after a segment of n batches the
# mantissa is off by n / 2**FRACTION_BITS at most
FRACTION_BITS = 24
# the line: 0 to the largest mantissa, and its fraction; signed, as its slopes are
LINE_BITS = MANTISSA_BITS + FRACTION_BITS + 2
# words of a `RateState`, and the bit from which the last one has the place
RATE_WORDS, RATE_PLACE_AT = 3, 32
# a batch takes so many cycles at least, in which the next line is fetched
LEAST_CYCLES = 8


@dataclass(frozen=True)
class Line:
    """From a bend to the next one."""

    # the first batch
    batch: int
    # mantissa there, and what each batch adds, with `FRACTION_BITS` more bits
    value: int
    slope: int


@dataclass(frozen=True)
class RateLines:
    """The schedule of a recipe as factors from codes with ``source_fraction`` bits to ``target_fraction`` bits."""

    recipe: Recipe
    source_fraction: int
    target_fraction: int

    @cached_property
    def largest(self) -> Scalar:
        """Of the full learning rate over the frames of a batch; its mantissa has `MANTISSA_BITS` bits."""
        fraction, exponent = math.frexp(self.recipe.learning_rate / self.recipe.batch)
        mantissa = round(fraction * 2**MANTISSA_BITS)
        shift = MANTISSA_BITS - exponent + self.source_fraction - self.target_fraction
        return Scalar(mantissa, shift) if mantissa < 2**MANTISSA_BITS else Scalar(mantissa // 2, shift - 1)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """In the order of batches."""
        bends = self.recipe.bends
        values = [round(self.recipe.share(batch) * self.largest.mantissa * 2**FRACTION_BITS) for batch in bends]
        found = []
        for index, (batch, value) in enumerate(zip(bends, values, strict=True)):
            slope = 0
            if index + 1 < len(bends):
                # towards zero, so that a line never passes its end
                rise, batches = values[index + 1] - value, bends[index + 1] - batch
                slope = rise // batches if rise >= 0 else -(-rise // batches)
            found.append(Line(batch, value, slope))
        return tuple(found)

    def mantissa(self, batch: int) -> int:
        """Of the update after batch ``batch``."""
        return self.at(batch).value >> FRACTION_BITS

    def place(self, batch: int) -> int:
        """Which of `lines` the rate runs along at ``batch``."""
        return max(index for index, line in enumerate(self.lines) if line.batch <= batch)

    def at(self, batch: int) -> Line:
        """That line from ``batch`` on."""
        line = self.lines[self.place(batch)]
        return Line(batch, line.value + line.slope * (batch - line.batch), line.slope)

    def state_words(self, batch: int) -> list[int]:
        """Where the rate stands at ``batch``, as a `RateState` is loaded: value, slope, and batch with place above."""
        line, mask = self.at(batch), (1 << LINE_BITS) - 1
        begun = min(batch + 1, self.lines[-1].batch + 1)
        return [line.value & mask, line.slope & mask, begun | self.place(batch) << RATE_PLACE_AT]

    def factor(self, batch: int) -> Scalar:
        """Of the update after batch ``batch``."""
        return Scalar(self.mantissa(batch), self.largest.shift)

    # ---- hardware

    @property
    def batch_bits(self) -> int:
        """Of a counter of batches that stops behind the last bend."""
        return (self.lines[-1].batch + 1).bit_length()

    @property
    def word_bits(self) -> int:
        """Of a word: the batch of a bend, above it the value, above it the slope."""
        return self.batch_bits + 2 * LINE_BITS

    @property
    def words(self) -> list[int]:
        """The lines but the first, then one that never comes: no batch has its number again."""
        last = self.lines[-1]
        ahead = (*self.lines[1:], Line(0, last.value, 0))
        mask = (1 << LINE_BITS) - 1
        return [
            line.batch | line.value << self.batch_bits | (line.slope & mask) << (self.batch_bits + LINE_BITS)
            for line in ahead
        ]


class RateState:
    """Where a rate stands on its lines: what it begins with, where that comes by a stream, and what it is now."""

    def __init__(self, lines: RateLines) -> None:
        bound, places = 1 << (LINE_BITS - 1), address_width(len(lines.words))
        # high until it has come, from a register: the rate takes it meanwhile
        self.held: Bit = Signal(bool(1))
        self.first_line, self.first_slope, self.line, self.slope = (
            Signal(intbv(0, min=-bound, max=bound)) for _ in range(4)
        )
        self.first_place, self.place = (Signal(intbv(0)[places:]) for _ in range(2))
        self.first_batch, self.batch = (Signal(intbv(0)[lines.batch_bits :]) for _ in range(2))


@block
def scheduled_rate(
    domain: ClockReset,
    turn: Bit,
    mantissa: Bits,
    *,
    lines: RateLines,
    begun: int = 0,
    contents: Sequence[int] | None = None,
    state: RateState | None = None,
) -> Instances:
    """The mantissa of the learning rate, batch after batch, from batch ``begun`` on.

    Costs a memory of a word a bend, an adder and a counter.

    Ports:
        turn: in, 1 bit: the last use for a batch is in the next cycle; at most every `LEAST_CYCLES` cycles.
        mantissa: out, `MANTISSA_BITS` + 1 bits, signed, from registers: of the batch at hand.
        state: in and out; drives ``line``, ``slope``, ``place`` and ``batch``, and begins with the others; None: with
            batch ``begun``.
    """
    first, depth, batch_bits, word_bits = lines.at(begun), len(lines.words), lines.batch_bits, lines.word_bits
    bound, last, value_at, slope_at = 1 << (LINE_BITS - 1), depth - 1, batch_bits, batch_bits + LINE_BITS
    stop = lines.lines[-1].batch + 1
    bits = MANTISSA_BITS
    line_bits, mask = LINE_BITS, (1 << LINE_BITS) - 1
    first_value, first_slope = first.value, first.slope & mask
    first_place, first_batch = lines.place(begun), min(begun + 1, stop)
    line, slope, ahead = (Signal(intbv(0, min=-bound, max=bound)) for _ in range(3))
    # batches begun; whether the next one is that of the bend ahead
    batch = Signal(intbv(1)[batch_bits:])
    bends = Signal(bool(0))
    place = Signal(intbv(0)[address_width(depth) :])
    word = Signal(intbv(0)[word_bits:])
    enable = Signal(bool(1))
    store = read_only(
        domain.clk, enable, place, word, depth=depth, width=word_bits, contents=contents, output_register=True,
        image="rates",
    )  # fmt: skip

    # a register of its own: that of a multiplier's operand has no clear
    @always(domain.clk.posedge)
    def out() -> None:
        mantissa.next = line[bits + FRACTION_BITS : FRACTION_BITS]

    @always(domain.clk.posedge)
    def prepare() -> None:
        enable.next = True
        ahead.next = line + slope
        bends.next = word[batch_bits:] == batch

    if state is None:

        @always(domain.clk.posedge)
        def go_on() -> None:
            if turn:
                if bends:
                    line.next = word[slope_at:value_at].signed()
                    slope.next = word[word_bits:slope_at].signed()
                    if place != last:
                        place.next = place + 1
                else:
                    line.next = ahead
                if batch != stop:
                    batch.next = batch + 1
            if domain.rst:
                line.next = intbv(first_value)[line_bits:].signed()
                slope.next = intbv(first_slope)[line_bits:].signed()
                batch.next = first_batch
                place.next = first_place

        return store, out, prepare, go_on

    # as above, and in reset what has come
    @always(domain.clk.posedge)
    def go_on_from() -> None:
        if turn and bends:
            line.next = word[slope_at:value_at].signed()
            slope.next = word[word_bits:slope_at].signed()
            if place != last:
                place.next = place + 1
        elif turn:
            line.next = ahead
        if turn and batch != stop:
            batch.next = batch + 1
        if state.held:
            line.next = state.first_line
            slope.next = state.first_slope
            batch.next = state.first_batch
            place.next = state.first_place

    @always_comb
    def tell() -> None:
        state.line.next = line
        state.slope.next = slope
        state.batch.next = batch
        state.place.next = place

    return store, out, prepare, go_on_from, tell
