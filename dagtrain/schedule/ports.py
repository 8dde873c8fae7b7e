"""Network ports that many streams share: who waits for whom.

Analysis, not transformation.  A calendar keeps what one direction of a port has to carry, in bins of some cycles; a
stream's words take the first room that is left when they come, by the service curve of network calculus: with A(k)
words come and F(k) room by the end of bin k, min over j <= k of A(j) + F(k) - F(j) have passed (Le Boudec and Thiran,
"Network Calculus", 2001, chapter 1).

Streams meet in twos (`hdl.link.format.turns_taken`; a merge of four is three such twos), and where both sides have
words they take turns.  That is generalized processor sharing at every two of a tree, with equal shares (Bennett and
Zhang, "Hierarchical packet fair queueing algorithms", 1996): what a stream is sure of in a bin is half of its merge's
share, and more where the other side wants less.  A stream that finds less room than that takes it from those that have
more than theirs, whose words then take their turns in the bins behind.

Here are the trees and the tables; words are entered by `dagtrain.schedule.batch_kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dagtrain.rows import Rows, rows_of
from dagtrain.schedule.batch_kernel import CALENDAR
from dagtrain.schedule.pools import Pool
from hdl.fixed import FloatArray, IntArray
from hdl.link.format import turns_taken

# bins of a calendar in a frame
BINS_PER_FRAME = 256
# frames for which words in turns may still come, after others that came later and with those of tensors that still
# cross: what is before is forgotten, and of long tensors what would take more bytes
KEPT_FRAMES = 16
KEPT_BYTES = 1 << 25


@dataclass(frozen=True, eq=False)
class Merges:
    """A tree of merges before a port: streams by number, then merges, the last of which is the port."""

    # that with which a stream or merge takes turns; -1 for the port
    beside: IntArray
    # merge -> its two sides; -1 for streams
    sides: IntArray
    # stream -> from the port to itself, and how many these are
    ways: IntArray
    lengths: IntArray

    @classmethod
    def of(cls, words: int, credits: int = 0) -> Merges:
        """The balanced tree of so many streams of words, and that of so many of credits behind them, which meet before
        the port."""
        streams = words + credits
        return cls._of(streams, _pairs(words, credits, streams)[0])

    @classmethod
    def passing(cls, words: int, credits: int, inputs: int, own: int | None) -> Merges:
        """That of so many inputs before an output where cables join devices, of which the one in this place is the tree
        of the device's own streams (`of`), None: none is.  Others are streams behind these."""
        others = inputs - (own is not None)
        streams = words + credits + others
        pairs, root = _pairs(words, credits, streams) if own is not None else ([], -1)
        leaves = list(range(words + credits, streams))
        if own is not None:
            leaves.insert(own, root)
        first = streams + len(pairs)
        pairs += [
            (*(leaves[side] if side < inputs else side - inputs + first for side in pair),)
            for pair in turns_taken(inputs)
        ]
        return cls._of(streams, pairs)

    @classmethod
    def _of(cls, streams: int, pairs: Sequence[tuple[int, ...]]) -> Merges:
        count = streams + len(pairs)
        beside, into = np.full(count, -1), np.full(count, -1)
        sides = np.full((count, 2), -1)
        for merge, (a, b) in enumerate(pairs, streams):
            sides[merge] = a, b
            beside[a], beside[b] = b, a
            into[a] = into[b] = merge
        ways = [_way(into.tolist(), stream) for stream in range(streams)]
        lengths = [len(way) for way in ways]
        padded = [way + [-1] * (max(lengths) - len(way)) for way in ways]
        return cls(beside, sides, np.array(padded), np.array(lengths))


def _pairs(words: int, credits: int, merges: int) -> tuple[list[tuple[int, ...]], int]:
    """The twos of the trees of so many streams of words and of credits, whose merges are numbered from there, and the
    last of them, or the only stream."""
    pairs = [*_numbered(turns_taken(words), words, 0, merges)]
    last = merges + len(pairs) - 1 if words > 1 else 0
    of_credits = [*_numbered(turns_taken(credits), credits, words, merges + len(pairs))]
    pairs += of_credits
    if not credits:
        return pairs, last
    credit = merges + len(pairs) - 1 if credits > 1 else words
    if not words:
        return pairs, credit
    return [*pairs, (last, credit)], merges + len(pairs)


def _numbered(pairs: Sequence[tuple[int, int]], streams: int, first: int, merges: int) -> Iterator[tuple[int, ...]]:
    """The twos of a tree whose streams are numbered from ``first``, and its merges from ``merges``."""
    for pair in pairs:
        a, b = (side + first if side < streams else side - streams + merges for side in pair)
        yield a, b


def _way(into: Sequence[int], stream: int) -> list[int]:
    way = [stream]
    while into[way[-1]] >= 0:
        way.append(into[way[-1]])
    return way[::-1]


# all that pass are one, and what is entered first goes first
ONE_STREAM = Merges.of(1)


class Calendars:
    """The directions of ports, and outputs towards cables: rows of `batch_kernel`."""

    def __init__(self, integers: Pool, width: int) -> None:
        """``width``: cycles of a bin."""
        self.integers, self.width = integers, width
        self._rows: list[dict[str, float]] = []

    def add(self, rate: float, merges: Merges = ONE_STREAM) -> int:
        """Of one that carries so many words a cycle."""
        columns, at = len(merges.beside), sum(int(row["space"] * row["columns"]) for row in self._rows[-1:])
        self._rows.append(
            {
                "at": at + (self._rows[-1]["at"] if self._rows else 0),
                "bins": BINS_PER_FRAME,
                "space": BINS_PER_FRAME,
                "columns": columns,
                "most": KEPT_BYTES // (np.dtype(np.float64).itemsize * columns),
                "forgets": merges is not ONE_STREAM,
                "width": self.width,
                "words": self.width * rate,
                "streams": len(merges.lengths),
                "ways_at": self.integers.at(merges.ways),
                "longest": merges.ways.shape[1],
                "lengths_at": self.integers.at(merges.lengths),
                "beside_at": self.integers.at(merges.beside),
                "sides_at": self.integers.at(merges.sides),
            }
        )
        return len(self._rows) - 1

    @property
    def rows(self) -> Rows:
        """Of all."""
        return rows_of(CALENDAR, self._rows)

    @property
    def words(self) -> FloatArray:
        """In all their bins: none."""
        return np.zeros(sum(int(row["space"] * row["columns"]) for row in self._rows))
