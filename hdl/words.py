"""Values as runs of bits: parts, extensions, constants."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from hdl.gates import ZERO, Run, constant_run


@dataclass(frozen=True, slots=True)
class Word:
    """Bits of a value, lowest first; above them zeros, or the highest bit again if it is signed."""

    runs: tuple[Run, ...]
    signed: bool = False
    # bit after each run
    ends: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", tuple(accumulate([run.width for run in self.runs])))

    @property
    def width(self) -> int:
        """Bits."""
        return self.ends[-1] if self.ends else 0

    def extended(self, width: int) -> tuple[Run, ...]:
        """Cut or filled to ``width`` bits."""
        known = self.width
        if width <= known:
            return self.part(0, width).runs
        missing = width - known
        if not self.signed or not self.runs:
            return joined((*self.runs, constant_run(ZERO, missing)))
        top = self.runs[-1]
        sign = top.part(top.width - 1, 1)
        return joined((*self.runs, Run(sign.gate, sign.offset, 0, missing)))

    def part(self, low: int, width: int) -> Word:
        """Bits ``low`` to ``low + width``, unsigned."""
        stop, known = low + width, self.width
        found = self._between(low, min(stop, known))
        if stop <= known:
            return Word(found)
        fill = constant_run(ZERO, stop - max(low, known))
        if self.signed and self.runs:
            sign = last(self.runs[-1])
            fill = Run(sign.gate, sign.offset, 0, fill.width)
        return Word(joined((*found, fill)))

    def _between(self, low: int, stop: int) -> tuple[Run, ...]:
        """The runs of bits that are there."""
        if low >= stop:
            return ()
        first, final = bisect_right(self.ends, low), bisect_left(self.ends, stop)
        head, tail = self.runs[first], self.runs[final]
        begin = self.ends[first] - head.width
        if first == final:
            return (head.part(low - begin, stop - low),)
        rest = tail.part(0, stop - self.ends[final] + tail.width)
        return (head.part(low - begin, self.ends[first] - low), *self.runs[first + 1 : final], rest)

    def trimmed(self) -> Word:
        """Without upper bits that are known from those below."""
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

    @property
    def constant(self) -> int | None:
        """The value if it is known."""
        value, at = 0, 0
        for run in self.runs:
            if run.constant is None:
                return None
            value |= (((1 << run.width) - 1) if run.constant else 0) << at
            at += run.width
        return value - (1 << at) if self.signed and at and value >> (at - 1) else value

    def bits(self) -> list[Run]:
        """Each bit alone."""
        return [run.part(bit, 1) for run in self.runs for bit in range(run.width)]


def last(run: Run) -> Run:
    """Its highest bit."""
    return run.part(run.width - 1, 1)


def joined(runs: tuple[Run, ...] | list[Run]) -> tuple[Run, ...]:
    """Neighbours that are one run put together."""
    found: list[Run] = []
    for run in runs:
        if run.width == 0:
            continue
        if found:
            last = found[-1]
            if last.gate == run.gate:
                repeats = run.offset == last.offset and (last.stride == 0 and run.stride == 0)
                follows = (
                    run.offset == last.offset + last.width
                    and (last.stride == 1 or last.width == 1)
                    and (run.stride == 1 or run.width == 1)
                )
                if repeats or follows:
                    found[-1] = Run(last.gate, last.offset, 0 if repeats else 1, last.width + run.width)
                    continue
        found.append(run)
    return tuple(found)


def constant_word(value: int) -> Word:
    """A known number."""
    width = max(1, value.bit_length() if value >= 0 else (-value - 1).bit_length() + 1)
    raw = value & ((1 << width) - 1)
    return Word(joined([constant_run(raw >> bit & 1, 1) for bit in range(width)]), value < 0)


def aligned(left: tuple[Run, ...], right: tuple[Run, ...]) -> Iterator[tuple[Run, Run]]:
    """Two words of one width, cut into runs of equal widths."""
    ours, theirs = list(reversed(left)), list(reversed(right))
    while ours and theirs:
        a, b = ours.pop(), theirs.pop()
        if a.width > b.width:
            ours.append(a.part(b.width, a.width - b.width))
            a = a.part(0, b.width)
        elif b.width > a.width:
            theirs.append(b.part(a.width, b.width - a.width))
            b = b.part(0, a.width)
        yield a, b
