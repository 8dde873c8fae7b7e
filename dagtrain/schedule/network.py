"""What streams over the network wait for: the ports that they share, and credits.

Analysis, not transformation.  A device sends and receives through one port, of a word or less a cycle in either
direction, so all streams that leave it, with the credits of those that it receives, take turns.  A `Calendar` keeps
what one direction of a port has to carry, in bins of some cycles; a stream's words take the first room that is left
when they come, by the service curve of network calculus: with A(k) words come and F(k) room by the end of bin k,
min over j <= k of A(j) + F(k) - F(j) have passed (Le Boudec and Thiran, "Network Calculus", 2001, chapter 1).  Tensors
are entered frame by frame, so earlier frames go before later ones and later ones fill what they leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hdl.fixed import FloatArray
from hdl.layers.passage import LONG_AGO, Flow

# bins of a calendar in a frame
BINS_PER_FRAME = 256
# below which part of a word nothing is left to send
NO_WORD = 1e-6


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
        first = max(0, int((cycles[0] - words[0]) // self.width))
        span = int(cycles[-1] // self.width) + 1 - first
        while True:
            last = first + span
            if len(self.used) < last:
                self.used = np.concatenate([self.used, np.zeros(last)])
            room = np.cumsum(self.width * self.rate - self.used[first:last])
            edges = np.arange(first, last + 1, dtype=np.float64) * self.width
            come = np.interp(edges[1:], cycles, words)
            early = edges[1:] < cycles[0]
            come[early] = np.maximum(0.0, words[0] - (cycles[0] - edges[1:][early]))
            gone = room + np.minimum.accumulate(np.minimum(come - room, 0.0))
            if gone[-1] >= words[-1] - NO_WORD:
                break
            span *= 2
        self.used[first:last] += np.diff(gone, prepend=0.0)
        passed, entered = (np.asarray(counts, np.float64) for counts in (gone, come))
        delays = _reached(passed, words, edges) - _reached(entered, words, edges)
        return np.asarray(np.maximum.accumulate(cycles + np.maximum(delays, 0.0)), np.float64)


def _reached(passed: FloatArray, words: FloatArray, edges: FloatArray) -> FloatArray:
    """When so many words have passed, of counts at the end of every bin."""
    before = np.concatenate([[0.0], passed])
    at = np.minimum(np.searchsorted(passed, words - NO_WORD), len(passed) - 1)
    share = (words - before[at]) / np.maximum(passed[at] - before[at], NO_WORD)
    return np.asarray(edges[at] + np.clip(share, 0.0, 1.0) * (edges[at + 1] - edges[at]), np.float64)


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
        # edge -> when the last word of the tensor before left
        self.last: dict[str, float] = {}

    def passing(self, edge: str, hop: Hop, flow: Flow) -> Flow:
        """How a tensor arrives that is offered so at the sender."""
        words = np.ceil(flow.elements / hop.word)
        cycles = flow.at(np.minimum(words * hop.word, flow.elements[-1]))
        start = np.maximum(cycles - (words - 1) * hop.word_cycles, self.last.get(edge, LONG_AGO) + hop.word_cycles)
        cycles = np.maximum.accumulate(start) + (words - 1) * hop.word_cycles
        self.last[edge] = float(cycles[-1])
        left = self.sending[hop.source].enter(words, cycles)
        there = self.receiving[hop.target].enter(words, left + hop.cycles)
        back = words / hop.credit_batch
        self.sending[hop.target].enter(back, there)
        self.receiving[hop.source].enter(back, there + hop.cycles)
        return Flow(flow.elements, there)


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
