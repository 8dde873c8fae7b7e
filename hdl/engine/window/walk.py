"""The order in which an engine with a kernel visits its work: one geometry for the cycle counts and for the circuit.

A walk is a loop nest, outermost first: frame, output row, output column, repeat group (groups of results of one
pixel), reduce group (groups of stored channels that are summed), tap row, tap column.  With ``outer_repeat`` the repeat
groups come right inside the frame, so that each needs its weights once a frame.  One iteration of the innermost loop is
one cycle.  The stored map is read from a ring of rows (`hdl.engine.window.row_store`), so every position advances by a
constant that depends only on the loop that moves and on the phase of the pixel: that is what `deltas` tabulates.  Where
every ``sharing`` repeat groups read stored words of their own, the last of them moves by a constant of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Self

from hdl.engine.arithmetic.tables import GATE_BITS
from hdl.memory import address_width

# levels of loops, innermost first; an iteration "ticks" the outermost loop whose inner loops are all at their ends
TAP_COLUMN, TAP_ROW, REDUCE = range(3)
FRAME = 6
LEVELS = 7
# of `Walk.deltas`: a tick of the repeat loop behind which other stored words are read
SHARED_END = 7


@dataclass(frozen=True)
class Axis:
    """One spatial axis: which stored positions each output position reads.

    Plain: output ``o`` reads ``o * stride - before + tap * dilation``.  Transposed (errors): ``o`` reads
    ``(o + before - tap * dilation) / stride`` where that is whole; only such taps are visited, and which ones depends
    on the phase of ``o``.
    """

    # positions of the stored map
    stored: int
    # positions of the output map
    outputs: int
    kernel: int
    stride: int
    # padding before the forward layer's map
    before: int
    # taps a cycle: 1, or the whole kernel (then a transposed axis has stride 1)
    parallel: int = 1
    transposed: bool = False
    # distance of neighbouring taps
    dilation: int = 1

    @property
    def phases(self) -> int:
        """Classes of output positions with different taps."""
        return self.stride if self.transposed else 1

    @property
    def tap_distance(self) -> int:
        """How the stored position moves from one of the parallel taps to the next."""
        return -self.dilation if self.transposed else self.dilation

    @property
    def _shared(self) -> int:
        """What divides both stride and dilation: taps of a transposed phase are ``stride / _shared`` apart."""
        return math.gcd(self.stride, self.dilation) if self.transposed else 1

    def _first_tap(self, phase: int) -> int:
        """The first tap of a transposed phase, whether the kernel has it or not; 0 where no tap fits."""
        fits = (tap for tap in range(self.stride) if (tap * self.dilation - phase) % self.stride == 0)
        return next(fits, 0)

    def phase(self, output: int) -> int:
        """The class of an output position."""
        return (output + self.before) % self.stride if self.transposed else 0

    def count(self, phase: int) -> int:
        """Cycles spent on taps of this axis."""
        if self.parallel > 1:
            return self.kernel // self.parallel
        if not self.transposed:
            return self.kernel
        if phase % self._shared:
            return 0
        return -((self._first_tap(phase) - self.kernel) // (self.stride // self._shared))

    def position(self, output: int, step: int) -> int:
        """The stored position of the first of the parallel taps in cycle ``step``; may lie outside the map."""
        moved = step * self.parallel * self.dilation
        if self.transposed:
            first = output + self.before - self._first_tap(self.phase(output)) * self.dilation
            return first // self.stride - moved // self._shared
        return output * self.stride - self.before + moved

    def tap_group(self, phase: int, step: int) -> int:
        """The index of the group of parallel taps in cycle ``step``; 0 for a phase without taps."""
        if not self.count(phase):
            return 0
        return self._first_tap(phase) + step * (self.stride // self._shared) if self.transposed else step

    def needed(self, output: int) -> int:
        """Leading stored positions that must be there before this output can be computed."""
        taps = self.count(self.phase(output)) * self.parallel
        far = self.position(output, 0) + (0 if self.transposed else (taps - 1) * self.dilation)
        return min(max(far + 1, 0), self.stored) if taps > 0 else 0

    @cached_property
    def needs(self) -> list[int]:
        """`needed` by output position, made monotonic, and at least one, so that no frame starts before its input."""
        return list(itertools.accumulate((max(1, self.needed(output)) for output in range(self.outputs)), max))

    def freed(self) -> list[int]:
        """Leading stored positions that no later output reads, by output position; all after the last."""
        found = [self.stored] * self.outputs
        least = self.stored
        for output in range(self.outputs - 1, 0, -1):
            steps = max(self.count(self.phase(output)), 1) - 1
            near = self.position(output, steps if self.transposed else 0)
            if self.transposed:
                near -= (self.parallel - 1) * self.dilation
            least = min(least, max(0, near))
            found[output - 1] = least
        return found


@dataclass(frozen=True)
class SharedAxis(Axis):
    """An axis on which output ``o`` of n reads all that overlaps its n-th of the stored map: from position ``o * stored
    // n`` up to the one before ``(o + 1) * stored / n``, rounded up.

    That is its own transpose: a position is read by the outputs that overlap it.  Windows repeat, so that positions of
    outputs of a phase are affine."""

    @classmethod
    def of(cls, stored: int, outputs: int) -> Self:
        """With the kernel of the largest window."""
        kernel = max(-(-(at + 1) * stored // outputs) - at * stored // outputs for at in range(outputs))
        return cls(stored, outputs, kernel, stride=1, before=0)

    @property
    def phases(self) -> int:
        """Outputs until windows repeat."""
        return self.outputs // math.gcd(self.stored, self.outputs)

    def phase(self, output: int) -> int:
        """The place among those."""
        return output % self.phases

    def count(self, phase: int) -> int:
        """Positions of the window."""
        return -(-(phase + 1) * self.stored // self.outputs) - phase * self.stored // self.outputs

    def position(self, output: int, step: int) -> int:
        """One after another."""
        return output * self.stored // self.outputs + step


@dataclass(frozen=True)
class Walk:
    """The loop nest of an engine over a stored map of ``groups`` words a pixel."""

    rows: Axis
    columns: Axis
    # groups of stored channels summed into one result
    reduce: int = 1
    # groups of results a pixel
    repeat: int = 1
    # distance in stored words between reduce groups, between repeat groups
    group_steps: tuple[int, int] = (1, 0)
    # the repeat loop right inside the frame instead of inside the pixel
    outer_repeat: bool = False
    # each reduce group is a result of its own (whose parts of all repeats are summed elsewhere)
    sums_repeats: bool = False
    # successive repeat groups that read the same stored words, if ``group_steps`` moves behind them
    sharing: int = 1
    # whether rows are parts of those of the map (`in_short_rows`): each strip needs one more and frees one
    cut: bool = False

    def in_short_rows(self, length: int) -> Walk:
        """The same order of work over the same words, with rows of ``length`` pixels, which divides those of a row.

        Of one pass of a kernel of one tap without stride or padding: no result sees more than a pixel."""
        rows = self.rows.stored * self.columns.stored // length
        long = dataclasses.replace(self.rows, stored=rows, outputs=rows)
        short = dataclasses.replace(self.columns, stored=length, outputs=length)
        return dataclasses.replace(self, rows=long, columns=short, cut=True)

    @property
    def strips_told_apart(self) -> int:
        """Strips of a frame that tables tell apart: of rows that were cut all are alike, and two stand for them."""
        return 2 if self.cut else len(self.strip_needs)

    @property
    def freed_at_once(self) -> int:
        """Rows that end with a strip, at most."""
        return 1 if self.cut else self.rows.stored

    @property
    def levels(self) -> int:
        """Ways to move on: ticks of each loop, and `SHARED_END`."""
        return LEVELS if self.sharing == 1 else LEVELS + 1

    @property
    def result_level(self) -> int:
        """A tick of this level or above completes a result."""
        return REDUCE if self.sums_repeats else REDUCE + 1

    @property
    def repeat_level(self) -> int:
        """Level of the repeat loop."""
        return 5 if self.outer_repeat else 3

    @property
    def column_level(self) -> int:
        """Level of the loop over columns; a tick above it ends a strip."""
        return 3 if self.outer_repeat else 4

    @property
    def row_level(self) -> int:
        """Level of the loop over rows; a tick above it ends a pass over the map."""
        return 4 if self.outer_repeat else 5

    @property
    def passes(self) -> int:
        """Passes over the map a frame."""
        return self.repeat if self.outer_repeat else 1

    @property
    def strip_cycles(self) -> list[int]:
        """Cycles of each strip: the output rows of all passes of a frame."""
        return [cycles // self.passes for cycles in self.row_cycles] * self.passes

    @property
    def strip_needs(self) -> list[int]:
        """Stored rows that must be there for each strip."""
        return self.rows.needs + [self.rows.stored] * (self.rows.outputs * (self.passes - 1))

    @property
    def strip_frees(self) -> list[int]:
        """Stored rows that nobody reads after each strip."""
        return [0] * (self.rows.outputs * (self.passes - 1)) + self.rows.freed()

    @property
    def waiting_cycles(self) -> int:
        """The longest work on strips that all wait for the same stored row."""
        totals: dict[int, int] = {}
        for need, cycles in zip(self.strip_needs, self.strip_cycles, strict=True):
            totals[need] = totals.get(need, 0) + cycles
        return max(totals.values())

    @property
    def pixels(self) -> int:
        """Pixels of the output."""
        return self.rows.outputs * self.columns.outputs

    @property
    def operations(self) -> int:
        """The most operations a result."""
        return max(limit[0] * limit[1] * limit[2] for limit in map(self.limits, range(self.phases)))

    @property
    def groups(self) -> int:
        """Stored words a pixel."""
        return (self.reduce if self.group_steps[0] else 1) * (self.repeat // self.sharing if self.group_steps[1] else 1)

    @property
    def row_words(self) -> int:
        """Stored words a row."""
        return self.columns.stored * self.groups

    @property
    def words(self) -> int:
        """Stored words a frame."""
        return self.rows.stored * self.row_words

    @property
    def taps(self) -> int:
        """Taps a cycle."""
        return self.rows.parallel * self.columns.parallel

    @property
    def phases(self) -> int:
        """Classes of pixels."""
        return self.rows.phases * self.columns.phases

    @cached_property
    def many_phases(self) -> bool:
        """Whether tables by phase have more entries than one gate looks up, and rows and columns can be told apart: all
        of their phases have taps."""
        return self.phases > 1 << GATE_BITS and all(
            axis.count(phase) for axis in (self.rows, self.columns) for phase in range(axis.phases)
        )

    @property
    def column_phase_bits(self) -> int:
        """Of the index of one of `many_phases`: those of its column's, below those of its row's."""
        return address_width(self.columns.phases)

    @property
    def moves_a_level(self) -> int:
        """Indices of phases: as many as there are, or all that the bits of many can say."""
        if not self.many_phases:
            return self.phases
        return 1 << address_width(self.rows.phases) + self.column_phase_bits

    def phase_at(self, index: int) -> int:
        """The phase of an index; any one for an index that none has."""
        if not self.many_phases:
            return index
        row, column = index >> self.column_phase_bits, index & (1 << self.column_phase_bits) - 1
        return min(row, self.rows.phases - 1) * self.columns.phases + min(column, self.columns.phases - 1)

    @property
    def first_index(self) -> int:
        """Of the first pixel's phase."""
        row, column = self.rows.phase(0), self.columns.phase(0)
        return row << self.column_phase_bits | column if self.many_phases else row * self.columns.phases + column

    def limits(self, phase: int) -> tuple[int, int, int, bool]:
        """Cycles along (tap columns, tap rows, reduce groups) of a class of pixels, and whether it has any taps.

        A pixel without taps takes one cycle a result."""
        count_h = self.rows.count(phase // self.columns.phases)
        count_w = self.columns.count(phase % self.columns.phases)
        if count_h * count_w == 0:
            return 1, 1, self.reduce if self.sums_repeats else 1, False
        return count_w, count_h, self.reduce, True

    def _row_cycles(self, row_phase: int) -> int:
        def pixel(column: int) -> int:
            limits = self.limits(row_phase * self.columns.phases + self.columns.phase(column))
            return limits[0] * limits[1] * limits[2]

        whole, rest = divmod(self.columns.outputs, self.columns.phases)
        period = [pixel(column) for column in range(self.columns.phases)]
        return self.repeat * (whole * sum(period) + sum(period[:rest]))

    @cached_property
    def row_cycles(self) -> list[int]:
        """Cycles of each output row."""
        by_phase = [self._row_cycles(phase) for phase in range(self.rows.phases)]
        return [by_phase[self.rows.phase(row)] for row in range(self.rows.outputs)]

    @property
    def cycles(self) -> int:
        """Cycles a frame."""
        return sum(self.row_cycles)

    def deltas(self, value: Callable[[int, int, int, int, int, int, int], int]) -> tuple[int, ...]:
        """By ``level * moves_a_level + index``: how ``value(row, column, repeat, reduce, tap row, tap column, frame)``
        moves.

        ``index`` is that of the phase of the pixel before the move."""
        phases = [self.phase_at(index) for index in range(self.moves_a_level)]
        return tuple(self._delta(value, level, phase) for level in range(self.levels) for phase in phases)

    def _delta(self, value: Callable[..., int], level: int, phase: int) -> int:
        inner = ("tap_w", "tap_h", "reduce")
        middle = ("column", "row", "repeat") if self.outer_repeat else ("repeat", "column", "row")
        order = (*inner, *middle, "frame")
        limits = self.limits(phase)
        ends = {"repeat": self.repeat - 1, "row": self.rows.outputs - 1, "column": self.columns.outputs - 1}
        ends |= {name: limits[index] - 1 for index, name in enumerate(inner)}
        before = dict.fromkeys(order, 0)
        # a pixel of this phase; positions are affine in whole strides, so any one will do
        before["row"] = (phase // self.columns.phases - self.rows.before) % self.rows.phases
        before["column"] = (phase % self.columns.phases - self.columns.before) % self.columns.phases
        if level == SHARED_END:
            level, before["repeat"] = self.repeat_level, self.sharing - 1
        after = dict(before)
        for name in order[:level]:
            before[name], after[name] = ends[name], 0
        after[order[level]] += 1
        names = ("row", "column", "repeat", "reduce", "tap_h", "tap_w", "frame")
        return value(*(after[name] for name in names)) - value(*(before[name] for name in names))

    def address(self, row: int, column: int, repeat: int, reduce: int, tap_h: int, tap_w: int, frame: int) -> int:
        """Stored word of the first of the parallel taps, counted from the first frame's first word."""
        at = (self.rows.position(row, tap_h) + frame * self.rows.stored) * self.columns.stored
        at += self.columns.position(column, tap_w)
        return at * self.groups + reduce * self.group_steps[0] + repeat // self.sharing * self.group_steps[1]

    def tap_offsets(self) -> list[int]:
        """Distance in stored words of each parallel tap from the first; tap columns fastest."""
        return [
            (self.rows.tap_distance * row * self.columns.stored + self.columns.tap_distance * column) * self.groups
            for row in range(self.rows.parallel)
            for column in range(self.columns.parallel)
        ]

    def ring_rows(self, input_row: int, period: int, strip_cycles: tuple[int, ...]) -> int:
        """Rows that the ring must hold so that a frame takes ``period`` cycles when nothing else stalls.

        Args:
            input_row: cycles in which one stored row arrives.
            period: cycles a frame.
            strip_cycles: for which the engine is at each strip, if its rows are there.
        """
        return _ring_rows(
            tuple(self.strip_needs),
            tuple(self.strip_frees),
            strip_cycles,
            input_row,
            self.rows.stored,
            period,
        )


# cycles from the last word of a row to the start of work on it, and from the end of work to the freed row, at most
RING_LATENCY = 5


@lru_cache(maxsize=4096)
def _ring_rows(
    needs: tuple[int, ...], freed: tuple[int, ...], cycles: tuple[int, ...], input_row: int, stored: int, period: int
) -> int:
    held = max(need - before for need, before in zip(needs, (0, *freed[:-1]), strict=True))
    least, most = max(held, 1), max(2 * stored, held) + 1 + -(-2 * RING_LATENCY // input_row)
    while least < most:
        rows = (least + most) // 2
        if _ring_period(rows, needs, freed, cycles, input_row, stored) <= period:
            most = rows
        else:
            least = rows + 1
    return least


def _ring_period(
    rows: int, needs: tuple[int, ...], freed: tuple[int, ...], cycles: tuple[int, ...], input_row: int, stored: int
) -> int:
    """Cycles a frame in steady state with a ring of ``rows``, by simulating rows."""
    # the ring is full, if ever, after so many frames
    filling = 2 + 2 * -(-rows // stored)
    arrived: list[int] = []
    free_at: list[int] = []
    clock = 0
    ends = []
    writer = 0
    for frame in range(filling + 6):
        for row, work in enumerate(cycles):
            wanted = frame * stored + needs[row]
            while len(arrived) < wanted:
                before = len(arrived) - rows
                if before >= len(free_at):
                    return 1 << 60
                writer = (max(writer, free_at[before]) if before >= 0 else writer) + input_row
                arrived.append(writer + RING_LATENCY)
            clock = max(clock, arrived[wanted - 1] if wanted else 0) + work
            gone = frame * stored + freed[row]
            free_at.extend([clock + RING_LATENCY] * (gone - len(free_at)))
        ends.append(clock)
    return -(-(ends[-1] - ends[filling]) // (len(ends) - 1 - filling))
