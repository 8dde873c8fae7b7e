"""What streams over the network wait for: the ports that they share, and credits.

Analysis, not transformation.  A device sends and receives through one port, of a word or less a cycle in either
direction, so all streams that leave it, with the credits of those that it receives, take turns
(`dagtrain.schedule.ports`), and so do the devices that send to it.  Tensors are entered in pieces, in the order in
which these come.  Here are the ways and the tables; tensors cross in `dagtrain.schedule.batch_kernel`.

Where cables join devices, what leaves a device takes turns besides at every output on its way (`Output`) with what else
leaves there: own streams and those that pass on.  That a word waits behind one with another way is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dagtrain.rows import Rows, rows_of
from dagtrain.schedule.batch_kernel import HOP, STOP
from dagtrain.schedule.pools import Pool
from dagtrain.schedule.ports import BINS_PER_FRAME, ONE_STREAM, Calendars, Merges
from hdl.fixed import FloatArray, IntArray

# words that a sender holds beside the one that leaves (`hdl.link.egress`)
SENDER_WORDS = 2
# tensors whose words are remembered
KEPT_WORDS = 1 << 10


def round_trip_words(credits: int, credit_batch: int) -> int:
    """Words whose credits come back in a round trip: whole batches."""
    return credits // credit_batch * credit_batch


@dataclass(frozen=True, kw_only=True)
class Output:
    """An output of what passes words on at a device where cables join devices (`hdl.link.forward`)."""

    device: str
    # the device at the other end of its cable; the device itself: words for it leave here
    target: str
    # whose words leave by it, in the order of its merges: the device's own, those that come by its cables
    merged: tuple[str, ...]
    # words a cycle
    rate: float = 1.0
    # to the next device's output
    cycles: int = 0

    @property
    def arrives(self) -> bool:
        """Whether words are where they go."""
        return self.target == self.device

    @property
    def contended(self) -> bool:
        """Whether anything may wait here: it has more inputs, or is slower, than the one that words come by."""
        return len(self.merged) > 1 or self.rate < 1


@dataclass(frozen=True, kw_only=True)
class Hop:
    """The way of a stream from one device to another."""

    source: str
    target: str
    # from the sender's input to the receiver's output, if nothing else is on its way
    cycles: int
    # from a word that the receiver frees to the sender, which may take another one in then
    back_cycles: int
    # elements that go together, once the last of them is there
    word: int
    # words that the receiver holds, and how many it frees before it returns their credits
    credits: int
    credit_batch: int
    # words that find room in front of the sender's port, beside the one that leaves
    sender_words: int = SENDER_WORDS
    # words a cycle that the ports at both ends carry
    source_rate: float = 1.0
    target_rate: float = 1.0
    # from one word to the next at the receiver
    least_word_cycles: float = 1.0
    # where cables join devices, the outputs that words pass, and their credits; none: all hang on one switch
    way: tuple[Output, ...] = ()
    back: tuple[Output, ...] = ()

    @property
    def word_cycles(self) -> float:
        """From one word to the next at least: as many as there are credits for in a round trip."""
        return max(self.least_word_cycles, (self.cycles + self.back_cycles + self.credit_batch) / self.round_trip_words)

    @property
    def round_trip_words(self) -> int:
        """Words whose credits come back in a round trip."""
        return round_trip_words(self.credits, self.credit_batch)

    @property
    def ahead(self) -> float:
        """Words that the sender is ahead of those whose credits were given back, in the mean: the receiver has freed
        others, fewer than a batch."""
        return self.credits - (self.credit_batch - 1) / 2


class _Same:
    """An array, told from others by being the same object."""

    def __init__(self, array: FloatArray) -> None:
        self.array = array

    def __hash__(self) -> int:
        return id(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.array is self.array


@dataclass(frozen=True, eq=False)
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


class Network:
    """The ports of all devices, and the ways through them.

    Args:
        hops: edges that cross -> their way, in the order in which ports have them.
        frame_cycles: of the slowest engine.
        numbers, integers: where tables lie.
        turns: whether streams take turns at merges; if not, what is entered first goes first."""

    def __init__(
        self, hops: Mapping[str, Hop], frame_cycles: int, numbers: Pool, integers: Pool, *, turns: bool
    ) -> None:
        self.hops, self.numbers, self.turns = hops, numbers, turns
        self.calendars = Calendars(integers, max(1, frame_cycles // BINS_PER_FRAME))
        rates: dict[str, float] = {}
        # device -> what leaves it, each with its position: streams, then credits of those that it receives; and the
        # devices from which words come
        self.leaving: dict[str, dict[tuple[str, bool], int]] = defaultdict(dict)
        self.coming: dict[str, dict[str, int]] = defaultdict(dict)
        for edge, hop in hops.items():
            rates |= {hop.source: hop.source_rate, hop.target: hop.target_rate}
            self.leaving[hop.source][edge, False] = len(self.leaving[hop.source])
            for one, other in ((hop.source, hop.target), (hop.target, hop.source)):
                self.coming[one].setdefault(other, len(self.coming[one]))
        for edge, hop in hops.items():
            self.leaving[hop.target][edge, True] = len(self.leaving[hop.target])
        self.sending = {device: self._add(rate, self._own(device)) for device, rate in rates.items()}
        self.receiving = {
            device: self._add(rate, Merges.of(len(self.coming[device]))) for device, rate in rates.items()
        }
        # what passes words on where cables join devices
        self.outputs = {
            output: self._add(output.rate, self._passing(output))
            for output in dict.fromkeys(output for hop in hops.values() for output in (*hop.way, *hop.back))
            if output.contended
        }
        self._ways: list[dict[str, float]] = []
        self._stops: list[dict[str, float]] = []

    def _add(self, rate: float, merges: Merges) -> int:
        return self.calendars.add(rate, merges if self.turns else ONE_STREAM)

    def _own(self, device: str) -> Merges:
        """The merges of what leaves a device."""
        credits = sum(credit for _, credit in self.leaving[device])
        return Merges.of(len(self.leaving[device]) - credits, credits)

    def _passing(self, output: Output) -> Merges:
        """The merges before an output: those of the device itself and what comes by cables."""
        leaving = self.leaving[output.device]
        credits = sum(credit for _, credit in leaving)
        own = output.merged.index(output.device) if output.device in output.merged else None
        # a device that sends nothing has a stream without words
        return Merges.passing(len(leaving) - credits or int(not credits), credits, len(output.merged), own)

    def _input(self, output: Output, came: str, stream: int) -> int:
        """The stream in these of what comes from a device; ``stream``: of its own."""
        if came == output.device:
            return stream
        own = len(self.leaving[output.device]) or 1
        return own + [each for each in output.merged if each != output.device].index(came)

    def _stop(self, calendar: int, stream: int, cycles: float, *, credits: bool = False) -> None:
        self._stops.append(
            {"calendar": calendar, "stream": stream if self.turns else 0, "cycles": cycles, "credits": credits}
        )

    def _pass(self, edge: str, *, credit: bool) -> None:
        """Notes where words, or credits, wait from one device to the other."""
        hop = self.hops[edge]
        source, target = (hop.target, hop.source) if credit else (hop.source, hop.target)
        way, cycles = (hop.back, hop.back_cycles) if credit else (hop.way, hop.cycles)
        own = self.leaving[source][edge, credit]
        self._stop(self.sending[source], own, 0 if way else cycles, credits=credit)
        if not way:
            self._stop(self.receiving[target], self.coming[target][source], 0)
            return
        for came, output in zip((source, *(output.device for output in way)), way, strict=False):
            stream = self._input(output, came, own) if output.contended else 0
            self._stop(self.outputs.get(output, -1), stream, output.cycles)
        self._stop(-1, 0, cycles - sum(output.cycles for output in way))

    def way(self, edge: str, marks: FloatArray, pieces: int) -> tuple[int, Mapping[str, float]]:
        """The way of an edge whose tensors are kept at these marks and cross in so many pieces at most: its number, and
        its row."""
        hop, at = self.hops[edge], self.numbers.at
        words, stops = _words(_Same(marks), hop.word, pieces), len(self._stops)
        self._pass(edge, credit=False)
        back = len(self._stops)
        self._pass(edge, credit=True)
        self._ways.append(
            {
                "word_cycles": hop.word_cycles,
                "credit_batch": hop.credit_batch,
                "words_at": at(words.words),
                "counts_at": at(words.counts),
                "counts": len(words.counts),
                "last_at": at(words.last),
                "whole_at": at(words.whole),
                "ends_at": at(words.ends),
                "pieces": len(words.ends),
                "arrivals": len(words.counts) + 2 * len(words.ends),
                "stops_at": stops,
                "back_at": back,
                "back_end": len(self._stops),
            }
        )
        return len(self._ways) - 1, self._ways[-1]

    @property
    def ways(self) -> Rows:
        """Of all edges."""
        return rows_of(HOP, self._ways)

    @property
    def stops(self) -> Rows:
        """Of all ways."""
        return rows_of(STOP, self._stops)


# a device and whether words leave it; where cables join devices, what passes words on
PortEnd = tuple[str, bool] | Output


def port_cycles_per_frame(tensors: Iterable[tuple[Hop, float]]) -> dict[PortEnd, float]:
    """Cycles a frame of each direction of every port, and cable; of each stream, its words a frame."""
    found: dict[PortEnd, float] = defaultdict(float)
    for hop, words in tensors:
        back = words / hop.credit_batch
        for way, passing in ((hop.way, words), (hop.back, back)):
            for output in way:
                found[output] += passing / output.rate
        found[hop.source, True] += words / hop.source_rate
        found[hop.target, False] += words / hop.target_rate
        found[hop.target, True] += back / hop.target_rate
        found[hop.source, False] += back / hop.source_rate
    return found
