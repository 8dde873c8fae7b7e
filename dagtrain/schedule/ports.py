"""Network ports that many streams share: who waits for whom.

Analysis, not transformation.  A `Calendar` keeps what one direction of a port has to carry, in bins of some cycles; a
stream's words take the first room that is left when they come, by the service curve of network calculus: with A(k)
words come and F(k) room by the end of bin k, min over j <= k of A(j) + F(k) - F(j) have passed (Le Boudec and Thiran,
"Network Calculus", 2001, chapter 1).

Streams meet in twos (`hdl.link.format.turns_taken`; a merge of four is three such twos), and where both sides have
words they take turns.  That is generalized processor sharing at every two of a tree, with equal shares (Bennett and
Zhang, "Hierarchical packet fair queueing algorithms", 1996): what a stream is sure of in a bin is half of its merge's
share, and more where the other side wants less.  A stream that finds less room than that takes it from those that have
more than theirs, whose words then take their turns in the bins behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numba import njit

from hdl.fixed import FloatArray, IntArray
from hdl.link.format import turns_taken

# bins of a calendar in a frame
BINS_PER_FRAME = 256
# frames for which words in turns may still come, after others that came later and with those of tensors that still
# cross: what is before is forgotten, and of long tensors what would take more bytes
KEPT_FRAMES = 16
KEPT_BYTES = 1 << 25
# below which part of a word nothing is left to send
NO_WORD = 1e-6
# … and nothing differs
EXACT = 1e-9


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


@dataclass
class Calendar:
    """One direction of a port."""

    # cycles of a bin
    width: int
    # words a cycle
    rate: float
    merges: Merges = ONE_STREAM
    # stream -> when the tensor that crosses was first offered: what its consumer makes of it comes from then on
    crossing: Mapping[str, float] = field(default_factory=dict)
    # the first bin that is kept; words of each stream and through each merge in it and those behind
    first: int = 0
    used: FloatArray = field(init=False)
    # behind which all bins are empty
    end: int = 0

    def __post_init__(self) -> None:
        self.used = np.zeros((BINS_PER_FRAME, len(self.merges.beside)))

    def enter(self, words: FloatArray, cycles: FloatArray, stream: int = 0) -> FloatArray:
        """When these words have passed: ``words``, ascending counts, of which so many have come by ``cycles``."""
        room = self.width * self.rate
        cycles = np.maximum(cycles, self.first * self.width)
        begin = max(self.first, int((cycles[0] - words[0]) // self.width))
        # by then all has passed: bins behind the end, or behind the last word's coming, have nothing else to carry
        last = max(self.end, int(cycles[-1] // self.width)) + int(words[-1] / room) + 4
        if last >= self.first + len(self.used):
            self._reach(begin, last)
        passed = np.zeros(len(words))
        end = _serve(
            self.used, self.first, self.width, room, self.merges.ways, self.merges.lengths, self.merges.beside,
            self.merges.sides, stream, words, cycles, passed,
        )  # fmt: skip
        self.end = max(self.end, end)
        return passed

    def _reach(self, begin: int, last: int) -> None:
        """Makes bins up to the last one.  Of streams in turns, tensors come about in the order of time."""
        since = min([begin, *(int(cycle // self.width) for cycle in self.crossing.values())])
        most = KEPT_BYTES // (self.used.itemsize * self.used.shape[1])
        past = max(since, min(begin, last - most)) - KEPT_FRAMES * BINS_PER_FRAME - self.first
        if self.merges is not ONE_STREAM and 2 * past > len(self.used):
            self.used = self.used[past:].copy()
            self.first += past
        more = max(len(self.used), last + 1 - self.first - len(self.used))
        self.used = np.concatenate([self.used, np.zeros((more, self.used.shape[1]))])


@njit(cache=True)
def _serve(
    used: FloatArray,
    first: int,
    width: int,
    room: float,
    ways: IntArray,
    lengths: IntArray,
    beside: IntArray,
    sides: IntArray,
    stream: int,
    words: FloatArray,
    cycles: FloatArray,
    passed_by: FloatArray,
) -> int:
    """Enters words of a stream that come so, and says by when they have passed; the bin behind the last one that is
    used."""
    count = len(words)
    came = np.empty(count)
    # words that were given back and have had no turn yet, by stream, and of all
    again, waiting = np.zeros(len(lengths)), 0.0
    way = ways[stream, : lengths[stream]]
    come, gone = 0.0, 0.0
    at, coming, going = 0, 0, 0
    bin = max(0, int((cycles[0] - words[0]) // width) - first)
    last, alone = bin, len(lengths) == 1
    while going < count or waiting > EXACT:
        if waiting > 0.0 and _serve_again(used[bin], ways, lengths, beside, sides, room, again):
            last, waiting = max(last, bin), again.sum()
        if going == count:
            bin += 1
            continue
        begin, end = float((first + bin) * width), float((first + bin + 1) * width)
        # by the end of the bin
        while at < count and cycles[at] <= end:
            at += 1
        if at == count:
            now = words[count - 1]
        elif at == 0:
            now = max(0.0, words[0] - (cycles[0] - end))
        else:
            share = (end - cycles[at - 1]) / (cycles[at] - cycles[at - 1])
            now = words[at - 1] + share * (words[at] - words[at - 1])
        passed = 0.0
        if alone:
            passed = max(0.0, min(room - used[bin, 0], now - gone))
            used[bin, 0] += passed
            last = bin
        elif now > gone:
            passed = max(0.0, min(_sure(used[bin], way, beside, room), now - gone))
            if passed > 0.0:
                if _take(used[bin], way, passed, beside, sides, room, again):
                    waiting = again.sum()
                last = max(last, bin)
        while coming < count and now >= words[coming] - NO_WORD:
            came[coming] = begin + min(1.0, max(0.0, (words[coming] - come) / max(now - come, NO_WORD))) * width
            coming += 1
        while going < coming and gone + passed >= words[going] - NO_WORD:
            left = begin + min(1.0, max(0.0, (words[going] - gone) / max(passed, NO_WORD))) * width
            passed_by[going] = cycles[going] + max(0.0, left - came[going])
            if going > 0:
                passed_by[going] = max(passed_by[going], passed_by[going - 1])
            going += 1
        come, gone = now, gone + passed
        bin += 1
    return first + last + 1


@njit(cache=True)
def _sure(used: FloatArray, way: IntArray, beside: IntArray, room: float) -> float:
    """Words more of a stream that a bin has room for: what others leave, or half at every merge."""
    for node in way[1:]:
        room = max(room - used[beside[node]], room / 2)
    return float(room - used[way[-1]])


@njit(cache=True)
def _take(
    used: FloatArray, way: IntArray, words: float, beside: IntArray, sides: IntArray, room: float, again: FloatArray
) -> bool:
    """A stream has words more in a bin; others that have more than they are sure of give theirs back: ``again``, by
    stream; whether any do."""
    for node in way:
        used[node] += words
    if used[way[0]] <= room + EXACT:
        return False
    for node in way[1:]:
        other = beside[node]
        over = min(used[other] - room / 2, used[node] + used[other] - room)
        if over > 0.0:
            _give_back(used, other, over, sides, again)
        room = max(room - used[other], room / 2)
    for node in way[-2::-1]:
        used[node] = used[sides[node, 0]] + used[sides[node, 1]]
    return True


@njit(cache=True)
def _give_back(used: FloatArray, node: int, words: float, sides: IntArray, again: FloatArray) -> None:
    """So many words less of a merge or stream in a bin, of the side first that has more."""
    used[node] -= words
    if sides[node, 0] < 0:
        again[node] += words
        return
    more, less = sides[node, 0], sides[node, 1]
    if used[more] < used[less]:
        more, less = less, more
    first = min(words, used[more] - used[less])
    both = (words - first) / 2
    if first + both > 0.0:
        _give_back(used, more, first + both, sides, again)
    if both > 0.0:
        _give_back(used, less, both, sides, again)


@njit(cache=True)
def _serve_again(
    used: FloatArray, ways: IntArray, lengths: IntArray, beside: IntArray, sides: IntArray, room: float,
    again: FloatArray,
) -> bool:  # fmt: skip
    """Words that were given back in bins before take their turns in this one; whether any do."""
    found = False
    for stream in range(len(again)):
        if again[stream] > 0.0:
            way = ways[stream, : lengths[stream]]
            words = min(again[stream], _sure(used, way, beside, room))
            if words > 0.0:
                again[stream] -= words
                _take(used, way, words, beside, sides, room, again)
                found = True
    return found
