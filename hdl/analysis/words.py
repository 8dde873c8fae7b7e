"""Values as runs of bits: parts, extensions, constants."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter

from hdl.analysis.gates import ONE, ZERO, Run, constant_run, new_run

_width_of = itemgetter(3)
# numbers whose words are remembered
KEPT_CONSTANTS = 1 << 12


class Word:
    """Bits of a value, lowest first; above them zeros, or the highest bit again if it is signed.  Never changed."""

    __slots__ = ("_ends", "runs", "signed", "width")

    def __init__(self, runs: tuple[Run, ...], signed: bool = False) -> None:
        self.runs = runs
        self.signed = signed
        self.width = runs[0][3] if len(runs) == 1 else sum(map(_width_of, runs))
        # bit after each run, once it is asked for
        self._ends: list[int] | None = None

    @property
    def ends(self) -> list[int]:
        """The bit after each run."""
        ends = self._ends
        if ends is None:
            ends = self._ends = list(accumulate(map(_width_of, self.runs)))
        return ends

    def extended(self, width: int) -> tuple[Run, ...]:
        """Cut or filled to ``width`` bits."""
        known = self.width
        if width <= known:
            return self.runs if width == known else self.part(0, width).runs
        missing = width - known
        if not self.signed or not self.runs:
            return joined((*self.runs, constant_run(ZERO, missing)))
        top = self.runs[-1]
        sign = top.part(top.width - 1, 1)
        return joined((*self.runs, Run(sign.gate, sign.offset, 0, missing)))

    def part(self, low: int, width: int) -> Word:
        """Bits ``low`` to ``low + width``, unsigned."""
        if low == 0 and width == self.width:
            return Word(self.runs) if self.signed else self
        stop, known = low + width, self.width
        found = self._between(low, min(stop, known))
        if stop <= known:
            return Word(found)
        fill = constant_run(ZERO, stop - max(low, known))
        if self.signed and self.runs:
            sign = last(self.runs[-1])
            fill = Run(sign.gate, sign.offset, 0, fill.width)
        return Word(joined((*found, fill)))

    def first_of(self, low: int, width: int) -> Run:
        """The first run of ``part(low, width)``."""
        if low + width > self.width:
            return self.part(low, width).runs[0]
        if len(self.runs) == 1:
            return self.runs[0].part(low, width)
        index = bisect_right(self.ends, low)
        run, end = self.runs[index], self.ends[index]
        return run.part(low - end + run.width, min(width, end - low))

    def _between(self, low: int, stop: int) -> tuple[Run, ...]:
        """The runs of bits that are there."""
        if low >= stop:
            return ()
        runs = self.runs
        if len(runs) == 1:
            return (runs[0].part(low, stop - low),)
        ends = self.ends
        first, final = bisect_right(ends, low), bisect_left(ends, stop)
        head, tail = runs[first], runs[final]
        begin = ends[first] - head[3]
        if first == final:
            return (head.part(low - begin, stop - low),)
        rest = tail.part(0, stop - ends[final] + tail[3])
        return (head.part(low - begin, ends[first] - low), *runs[first + 1 : final], rest)

    def trimmed(self) -> Word:
        """Without upper bits that are known from those below."""
        if self._is_trimmed():
            return self
        runs = list(self.runs)
        if not self.signed:
            while runs and runs[-1].constant == 0:
                runs.pop()
            return Word(tuple(runs))
        while runs and runs[-1].constant == 0 and len(runs) > 1 and runs[-1].width > 1:
            runs[-1] = runs[-1].part(0, 1)
        if runs and runs[-1].constant == 0:
            return Word(tuple(runs[:-1])).trimmed()
        if runs and runs[-1].stride == 0 and runs[-1].width > 1:
            runs[-1] = runs[-1].part(0, 1)
        while len(runs) > 1 and runs[-1].width == 1 and last(runs[-2]) == runs[-1]:
            runs.pop()
        return Word(tuple(runs), True)

    def _is_trimmed(self) -> bool:
        if not self.runs:
            return True
        top = self.runs[-1]
        if not self.signed or top[0] == ZERO:
            return top[0] != ZERO
        repeats = top.width == 1 and len(self.runs) > 1 and last(self.runs[-2]) == top
        return not repeats and (top.stride != 0 or top.width == 1)

    @property
    def constant(self) -> int | None:
        """The value if it is known."""
        value, at = 0, 0
        for gate, _, _, width in self.runs:
            if gate > ONE:
                return None
            value |= (((1 << width) - 1) if gate else 0) << at
            at += width
        return value - (1 << at) if self.signed and at and value >> (at - 1) else value

    def bits(self) -> list[Run]:
        """Each bit alone."""
        return [bit for run in self.runs for bit in single_bits(run)]


def single_bits(run: Run) -> list[Run]:
    """Each bit of a run alone."""
    gate, offset, stride, width = run
    if not stride:
        return [run.part(0, 1)] * width
    return [new_run(Run, (gate, bit, 0, 1)) for bit in range(offset, offset + stride * width, stride)]


def last(run: Run) -> Run:
    """Its highest bit."""
    return run.part(run.width - 1, 1)


def joined(runs: tuple[Run, ...] | list[Run]) -> tuple[Run, ...]:
    """Neighbours that are one run put together."""
    if len(runs) == 1 and runs[0][3]:
        return (runs[0],)
    found: list[Run] = []
    before = -1
    for run in runs:
        gate, offset, stride, width = run
        if width == 0:
            continue
        if gate == before:
            _, start, step, known = found[-1]
            repeats = offset == start and step == 0 and stride == 0
            follows = offset == start + known and (step == 1 or known == 1) and (stride == 1 or width == 1)
            if repeats or follows:
                found[-1] = new_run(Run, (gate, start, 0 if repeats else 1, known + width))
                continue
        before = gate
        found.append(run)
    return tuple(found)


@lru_cache(maxsize=KEPT_CONSTANTS)
def constant_word(value: int) -> Word:
    """A known number."""
    width = max(1, value.bit_length() if value >= 0 else (-value - 1).bit_length() + 1)
    raw = value & ((1 << width) - 1)
    return Word(joined([constant_run(raw >> bit & 1, 1) for bit in range(width)]), value < 0)


def aligned(left: tuple[Run, ...], right: tuple[Run, ...]) -> Iterable[tuple[Run, Run]]:
    """Two words of one width, cut into runs of equal widths."""
    if len(left) == len(right) and list(map(_width_of, left)) == list(map(_width_of, right)):
        return zip(left, right, strict=True)
    return _cut(left, right)


def _cut(left: tuple[Run, ...], right: tuple[Run, ...]) -> list[tuple[Run, Run]]:
    found: list[tuple[Run, Run]] = []
    ours, theirs = iter(left), iter(right)
    a, b = next(ours, None), next(theirs, None)
    while a is not None and b is not None:
        width, other = a[3], b[3]
        if width == other:
            found.append((a, b))
            a, b = next(ours, None), next(theirs, None)
        elif width > other:
            found.append((a.part(0, other), b))
            a, b = a.part(other, width - other), next(theirs, None)
        else:
            found.append((a, b.part(0, width)))
            a, b = next(ours, None), b.part(width, other - width)
    return found
