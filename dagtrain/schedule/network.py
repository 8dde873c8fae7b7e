"""What streams over the network wait for: the ports that they share, and credits.

Analysis, not transformation.  A device sends and receives through one port, of a word or less a cycle in either
direction, so all streams that leave it, with the credits of those that it receives, take turns.  A `Calendar` keeps
what one direction of a port has to carry, in bins of some cycles; a stream's words take the first room that is left
when they come, by the service curve of network calculus: with A(k) words come and F(k) room by the end of bin k,
min over j <= k of A(j) + F(k) - F(j) have passed (Le Boudec and Thiran, "Network Calculus", 2001, chapter 1).  Arbiters
serve streams in turns, so what comes first goes first: tensors are entered in pieces, in the order in which these
come, and later ones fill what earlier ones leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numba import njit

from hdl.fixed import FloatArray, IntArray
from hdl.layers.passage import LONG_AGO, Flow

# bins of a calendar in a frame
BINS_PER_FRAME = 256
# below which part of a word nothing is left to send
NO_WORD = 1e-6
# tensors whose words are remembered
KEPT_WORDS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Hop:
    """The way of a stream from one device to another."""

    source: str
    target: str
    # from the sender's input to the receiver's output, if nothing else is on its way
    cycles: int
    # elements that go together, once the last of them is there
    word: int
    # words that the receiver holds, and how many it frees before it returns their credits
    credits: int
    credit_batch: int
    # words a cycle that the ports at both ends carry
    source_rate: float = 1.0
    target_rate: float = 1.0

    @property
    def word_cycles(self) -> float:
        """From one word to the next at least: as many as there are credits for in a round trip."""
        return max(1.0, (2 * self.cycles + self.credit_batch) / self.credits)


@dataclass
class Calendar:
    """One direction of a port."""

    # cycles of a bin
    width: int
    # words a cycle
    rate: float
    # words in each bin, from cycle 0 on
    used: FloatArray = field(default_factory=lambda: np.zeros(0))

    def enter(self, words: FloatArray, cycles: FloatArray) -> FloatArray:
        """When these words have passed: ``words``, ascending counts, of which so many have come by ``cycles``."""
        delays = np.zeros(len(words))
        while not _serve(self.used, self.width, self.rate, words, cycles, delays, False):
            more = max(BINS_PER_FRAME, len(self.used), int(cycles[-1] // self.width) + 1 - len(self.used))
            self.used = np.concatenate([self.used, np.zeros(more)])
        _serve(self.used, self.width, self.rate, words, cycles, delays, True)
        return np.asarray(np.maximum.accumulate(cycles + delays), np.float64)


@njit(cache=True)
def _serve(
    used: FloatArray, width: int, rate: float, words: FloatArray, cycles: FloatArray, delays: FloatArray, keeps: bool
) -> bool:
    """What words that come so wait; with ``keeps`` they are added to the bins; False where bins don't reach."""
    count = len(words)
    came = np.empty(count)
    come, gone = 0.0, 0.0
    at, coming, going = 0, 0, 0
    bin = max(0, int((cycles[0] - words[0]) // width))
    while going < count:
        if bin >= len(used):
            return False
        begin, end = float(bin * width), float((bin + 1) * width)
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
        passed = min(width * rate - used[bin], now - gone)
        if keeps:
            used[bin] += passed
        while coming < count and now >= words[coming] - NO_WORD:
            came[coming] = begin + min(1.0, max(0.0, (words[coming] - come) / max(now - come, NO_WORD))) * width
            coming += 1
        while going < coming and gone + passed >= words[going] - NO_WORD:
            left = begin + min(1.0, max(0.0, (words[going] - gone) / max(passed, NO_WORD))) * width
            delays[going] = max(0.0, left - came[going])
            going += 1
        come, gone = now, gone + passed
        bin += 1
    return True


class _Same:
    """An array, told from others by being the same object."""

    def __init__(self, array: FloatArray) -> None:
        self.array = array

    def __hash__(self) -> int:
        return id(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.array is self.array


@dataclass(frozen=True)
class _Words:
    """The words of a tensor, whenever it passes."""

    # in which so many elements are; ascending counts of words, and the last mark of each
    words: FloatArray
    counts: FloatArray
    last: IntArray
    # elements in as many words as each mark is in
    whole: FloatArray
    # the last word of every piece
    ends: FloatArray


@lru_cache(maxsize=KEPT_WORDS)
def _words(marks: _Same, word: int, pieces: int) -> _Words:
    """Of so many elements a word, in so many pieces at most."""
    words = np.ceil(marks.array / word)
    counts, first = np.unique(words, return_index=True)
    last = np.append(first[1:], len(words)) - 1
    ends = np.unique(np.ceil(np.linspace(0.0, words[-1], pieces + 1)[1:]))
    return _Words(words, counts, last, np.minimum(words * word, marks.array[-1]), ends)


@dataclass
class Transfer:
    """A tensor on its way through two ports, piece by piece."""

    hop: Hop
    # marks of the tensor, and the words in which so many elements are
    elements: FloatArray
    words: FloatArray
    # words, ascending, and the cycles by which so many are offered
    counts: FloatArray
    offered: FloatArray
    # the last word of every piece
    ends: FloatArray
    # words that have left, and the pieces: words in them, ascending, and when so many arrived
    sent: float = 0.0
    arrived: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)

    @classmethod
    def of(cls, hop: Hop, flow: Flow, pieces: int) -> Transfer:
        """Of a tensor that is offered so at the sender, in so many pieces at most."""
        found = _words(_Same(flow.elements), hop.word, pieces)
        offered = np.maximum.accumulate(flow.at(found.whole))[found.last]
        return cls(hop, flow.elements, found.words, found.counts, offered, found.ends)

    @property
    def begins(self) -> float:
        """The cycle at which the first word of the next piece is offered."""
        return float(np.interp(self.sent + 1, self.counts, self.offered))

    @property
    def flow(self) -> Flow | None:
        """How the tensor arrives, once all pieces have."""
        if self.sent < self.ends[-1]:
            return None
        words, cycles = (np.concatenate(part) for part in zip(*self.arrived, strict=True))
        return Flow(self.elements, np.interp(self.words, words, cycles))


class Network:
    """The ports of all devices."""

    def __init__(self, hops: Iterable[Hop], frame_cycles: int) -> None:
        width = max(1, frame_cycles // BINS_PER_FRAME)
        self.sending: dict[str, Calendar] = {}
        self.receiving: dict[str, Calendar] = {}
        for hop in hops:
            for device, rate in ((hop.source, hop.source_rate), (hop.target, hop.target_rate)):
                self.sending.setdefault(device, Calendar(width, rate))
                self.receiving.setdefault(device, Calendar(width, rate))
        # edge -> when its last word left
        self.last: dict[str, float] = {}

    def begins(self, edge: str, transfer: Transfer) -> float:
        """When the next piece may leave."""
        return max(transfer.begins, self.last.get(edge, LONG_AGO))

    def carry(self, edge: str, transfer: Transfer) -> None:
        """The next piece of a tensor passes."""
        hop, sent = transfer.hop, transfer.sent
        end = transfer.ends[len(transfer.arrived)]
        inside = transfer.counts[(transfer.counts > sent + 1) & (transfer.counts < end)]
        counts = np.concatenate(([sent + 1] if sent + 1 < end else [], inside, [end]))
        words = counts - sent
        offered = np.interp(counts, transfer.counts, transfer.offered) - words * hop.word_cycles
        begins = np.maximum.accumulate(np.maximum(offered, self.last.get(edge, LONG_AGO)))
        left = self.sending[hop.source].enter(words, begins + words * hop.word_cycles)
        there = self.receiving[hop.target].enter(words, left + hop.cycles)
        back = words / hop.credit_batch
        self.sending[hop.target].enter(back, there)
        self.receiving[hop.source].enter(back, there + hop.cycles)
        transfer.arrived.append((counts, there))
        transfer.sent, self.last[edge] = float(end), float(left[-1])


def port_cycles_per_frame(tensors: Iterable[tuple[Hop, float]]) -> float:
    """Cycles a frame of the busiest direction of any port; of each stream, its words a frame."""
    found: dict[tuple[str, bool], float] = defaultdict(float)
    for hop, words in tensors:
        back = words / hop.credit_batch
        found[hop.source, True] += words / hop.source_rate
        found[hop.target, False] += words / hop.target_rate
        found[hop.target, True] += back / hop.target_rate
        found[hop.source, False] += back / hop.source_rate
    return max(found.values(), default=0.0)
