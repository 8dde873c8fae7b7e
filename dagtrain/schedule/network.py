"""What streams over the network wait for: the ports that they share, and credits.

Analysis, not transformation.  A device sends and receives through one port, of a word or less a cycle in either
direction, so all streams that leave it, with the credits of those that it receives, take turns
(`dagtrain.schedule.ports`), and so do the devices that send to it.  Tensors are entered in pieces, in the order in
which these come.

Where cables join devices, what leaves a device takes turns besides at every output on its way (`Output`) with what else
leaves there: own streams and those that pass on.  That a word waits behind one with another way is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numba import njit

from dagtrain.schedule.ports import BINS_PER_FRAME, ONE_STREAM, Calendar, Merges
from hdl.fixed import FloatArray, IntArray
from hdl.layers.passage import LONG_AGO, Flow

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
    def through(self) -> bool:
        """Whether all pieces have arrived."""
        return bool(self.sent >= self.ends[-1])

    @property
    def flow(self) -> Flow | None:
        """How the tensor arrives, once all pieces have."""
        if not self.through:
            return None
        words, cycles = self.arrived[0]
        if len(self.arrived) > 1:
            words, cycles = (np.concatenate(part) for part in zip(*self.arrived, strict=True))
        return Flow(self.elements, np.interp(self.words, words, cycles))


class Network:
    """The ports of all devices.

    Args:
        hops: edges that cross -> their way, in the order in which ports have them.
        frame_cycles: of the slowest engine.
        turns: whether streams take turns at merges; if not, what is entered first goes first."""

    def __init__(self, hops: Mapping[str, Hop], frame_cycles: int, *, turns: bool) -> None:
        width = max(1, frame_cycles // BINS_PER_FRAME)
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

        # edge -> when the tensor that crosses was first offered
        self.crossing: dict[str, float] = {}

        def ports(merges: Callable[[str], Merges]) -> dict[str, Calendar]:
            return {
                device: Calendar(width, rate, merges(device) if turns else ONE_STREAM, self.crossing)
                for device, rate in rates.items()
            }

        def leaving(device: str) -> Merges:
            credits = sum(credit for _, credit in self.leaving[device])
            return Merges.of(len(self.leaving[device]) - credits, credits)

        self.sending, self.receiving = ports(leaving), ports(lambda device: Merges.of(len(self.coming[device])))
        # what passes words on where cables join devices
        self.outputs = {
            output: Calendar(width, output.rate, self._passing(output) if turns else ONE_STREAM, self.crossing)
            for output in dict.fromkeys(output for hop in hops.values() for output in (*hop.way, *hop.back))
            if output.contended
        }
        self.turns = turns
        # edge -> when its last word left
        self.last: dict[str, float] = {}

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

    def _send(self, device: str, edge: str, words: FloatArray, cycles: FloatArray, *, credit: bool) -> FloatArray:
        stream = self.leaving[device][edge, credit] if self.turns else 0
        return self.sending[device].enter(words, cycles, stream)

    def _receive(self, device: str, sender: str, words: FloatArray, cycles: FloatArray) -> FloatArray:
        return self.receiving[device].enter(words, cycles, self.coming[device][sender] if self.turns else 0)

    def _pass(self, edge: str, hop: Hop, words: FloatArray, left: FloatArray, *, credit: bool) -> FloatArray:
        """When words, or credits, that left one device come to the other."""
        source, target = (hop.target, hop.source) if credit else (hop.source, hop.target)
        way, cycles = (hop.back, hop.back_cycles) if credit else (hop.way, hop.cycles)
        if not way:
            return self._receive(target, source, words, left + cycles)
        own = self.leaving[source][edge, credit]
        for came, output in zip((source, *(output.device for output in way)), way, strict=False):
            if output.contended:
                left = self.outputs[output].enter(words, left, self._input(output, came, own) if self.turns else 0)
            left, cycles = left + output.cycles, cycles - output.cycles
        return left + cycles

    def begins(self, edge: str, transfer: Transfer) -> float:
        """When the next piece may leave."""
        return max(transfer.begins, self.last.get(edge, LONG_AGO))

    def carry(self, edge: str, transfer: Transfer) -> None:
        """The next piece of a tensor passes."""
        hop, sent = transfer.hop, transfer.sent
        self.crossing.setdefault(edge, float(transfer.offered[0]))
        end = transfer.ends[len(transfer.arrived)]
        counts, offered = transfer.counts, transfer.offered
        if len(transfer.ends) > 1 or counts[0] > 1:
            # not all of them, or the first word is in no mark
            inside = counts[(counts > sent + 1) & (counts < end)]
            counts = np.concatenate(([sent + 1] if sent + 1 < end else [], inside, [end]))
            offered = np.interp(counts, transfer.counts, offered)
        words = counts - sent
        ready = _no_faster(offered, words, hop.word_cycles, self.last.get(edge, LONG_AGO))
        left = self._send(hop.source, edge, words, ready, credit=False)
        there = self._pass(edge, hop, words, left, credit=False)
        back = words / hop.credit_batch
        self._send(hop.target, edge, back, there, credit=True)
        self._pass(edge, hop, back, there, credit=True)
        transfer.arrived.append((counts, there))
        transfer.sent, self.last[edge] = float(end), float(left[-1])
        if transfer.through:
            del self.crossing[edge]


@njit(cache=True)
def _no_faster(offered: FloatArray, words: FloatArray, word_cycles: float, last: float) -> FloatArray:
    """When so many words that are offered so may leave, behind a last one, with so many cycles from one to the next."""
    found = np.empty(len(words))
    for index in range(len(words)):
        passing = words[index] * word_cycles
        last = max(last, offered[index] - passing)
        found[index] = last + passing
    return found


def port_cycles_per_frame(tensors: Iterable[tuple[Hop, float]]) -> float:
    """Cycles a frame of the busiest direction of any port, or cable; of each stream, its words a frame."""
    found: dict[tuple[str, bool] | Output, float] = defaultdict(float)
    for hop, words in tensors:
        back = words / hop.credit_batch
        for way, passing in ((hop.way, words), (hop.back, back)):
            for output in way:
                found[output] += passing / output.rate
        found[hop.source, True] += words / hop.source_rate
        found[hop.target, False] += words / hop.target_rate
        found[hop.target, True] += back / hop.target_rate
        found[hop.source, False] += back / hop.source_rate
    return max(found.values(), default=0.0)
