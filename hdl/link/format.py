"""What words of the network look like, and what a circuit at its ends is."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from hdl.memory import address_width
from hdl.streams.merge import MOST_MERGED
from hdl.streams.width import AdapterKind, adapter_kind, elements_per_word, wire_words
from hdl.unit import Unit

# a credit word stands for such a part of a small FIFO, for so many words of a larger one, for such a part of a deep one
SHALLOW_PART, CREDIT_WORDS, DEEP_PART = 4, 32, 16
# of how many words have room again, where that is on its way to the port
COUNT_BITS = 16
# words whose credits one credit word returns at most
MOST_RETURNED = (1 << COUNT_BITS) - 1


@dataclass(frozen=True)
class Word:
    """The fields of a link word, as numbers."""

    data: int
    last: int
    sequence: int
    stream: int
    credit: int
    device: int


@dataclass(frozen=True, kw_only=True)
class LinkFormat:
    """How a word is laid out, lowest field first: data, last, sequence, stream, credit, device."""

    # bits of data, 8 or more
    word_bits: int
    # stream numbers in the cluster
    streams: int
    # devices in the cluster
    devices: int
    # bits of the sequence number
    sequence_bits: int = 8
    # whether all receivers of a port have one memory (`hdl.link.pool`); the word is the same, and so are units that
    # know nothing of it
    pooled: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.word_bits < 8 or self.streams < 1 or self.devices < 1 or self.sequence_bits < 1:
            raise ValueError(f"{self}: needs 8 data bits, and at least 1 stream, device and sequence bit")

    @cached_property
    def fields(self) -> Mapping[str, tuple[int, int]]:
        """Field name → (lowest bit, width)."""
        widths = {
            "data": self.word_bits,
            "last": 1,
            "sequence": self.sequence_bits,
            "stream": address_width(self.streams),
            "credit": 1,
            "device": address_width(self.devices),
        }
        found, low = {}, 0
        for name, width in widths.items():
            found[name] = (low, width)
            low += width
        return found

    @property
    def header(self) -> tuple[int, ...]:
        """The lowest bits of the fields behind the data: last, sequence, stream, credit and device."""
        return tuple(self.fields[name][0] for name in ("last", "sequence", "stream", "credit", "device"))

    @property
    def payload_bits(self) -> int:
        """Bits of a word with its header."""
        low, width = self.fields["device"]
        return low + width

    @property
    def returned_bits(self) -> int:
        """Bits of what a receiver says to its port: credits, lowest, and the stream and the device that they go to."""
        return COUNT_BITS + self.width("stream") + self.width("device")

    def width(self, field: str) -> int:
        """Bits of a field."""
        return self.fields[field][1]

    def encode(self, word: Word) -> int:
        """The payload of a word."""
        return sum(getattr(word, name) << low for name, (low, _) in self.fields.items())

    def decode(self, payload: int) -> Word:
        """The word of a payload."""
        return Word(**{name: payload >> low & ((1 << width) - 1) for name, (low, width) in self.fields.items()})

    def verilog_field(self, net: str, field: str) -> str:
        """A Verilog expression for a field of the payload ``net``."""
        low, width = self.fields[field]
        return f"{net}[{low + width - 1}:{low}]"


def credit_batch(depth: int) -> int:
    """Words that a receiver frees before it returns their credits in one credit word.

    Until then the sender knows nothing of their room: few beside the depth, yet many for each credit word."""
    return max(1, min(depth // SHALLOW_PART, max(CREDIT_WORDS, depth // DEEP_PART), MOST_RETURNED))


def depth_for(words: int) -> int:
    """Words that a receiver's FIFO holds, 2 or more, whose sender may always have so many there or under way."""
    # at most credit_batch - 1 of the depth are free without the sender's knowing
    small, larger = -(-(words - 1) * SHALLOW_PART // (SHALLOW_PART - 1)), words + CREDIT_WORDS - 1
    deep = -(-(words - 1) * DEEP_PART // (DEEP_PART - 1))
    return max(2, min(small, larger), min(deep, words + MOST_RETURNED - 1))


@lru_cache
def merge_tree(streams: int) -> tuple[tuple[int, ...], ...]:
    """The merges of a balanced tree of so many streams, each with its `MOST_MERGED` sides or fewer: streams by number,
    then merges."""
    merges: list[tuple[int, ...]] = []
    level = list(range(streams))
    while len(level) > 1:
        groups = [tuple(level[at : at + MOST_MERGED]) for at in range(0, len(level), MOST_MERGED)]
        joined = [group for group in groups if len(group) > 1]
        # what is left alone waits for the next level
        alone = [group[0] for group in groups if len(group) == 1]
        level = [*range(streams + len(merges), streams + len(merges) + len(joined)), *alone]
        merges += joined
    return tuple(merges)


@lru_cache
def turns_taken(streams: int) -> tuple[tuple[int, int], ...]:
    """The twos that take turns in that tree: streams by number, then what two have in common."""
    pairs: list[tuple[int, int]] = []
    level = list(range(streams))
    while len(level) > 1:
        joined = list(zip(level[::2], level[1::2], strict=False))
        level = [*range(streams + len(pairs), streams + len(pairs) + len(joined)), *level[2 * len(joined) :]]
        pairs += joined
    return tuple(pairs)


def merges_passed(position: int, streams: int) -> int:
    """Merges, of a cycle each, on the way of one of so many streams through a balanced tree."""
    passed, at = 0, position
    for merge, sides in enumerate(merge_tree(streams), streams):
        if at in sides:
            passed, at = passed + 1, merge
    return passed


def adapter_cycles(a: int, b: int) -> int:
    return int(adapter_kind(a, b) is not AdapterKind.WIRE)


@dataclass(frozen=True, kw_only=True)
class LinkUnit(Unit, ABC):
    """A unit of the network port."""

    format: LinkFormat


@dataclass(frozen=True, kw_only=True)
class LinkEnd(LinkUnit, ABC):
    """Either end of one element stream.  Inputs: ``number`` of the stream, ``device`` at the other end."""

    # bits of one element
    element_bits: int
    # elements a beat of the stream at this end
    lanes: int
    # elements of a tensor; 0: there are no tensors, and each word holds one element
    elements: int

    @property
    def inputs(self) -> Mapping[str, int]:
        """See the base class."""
        return {"number": self.format.width("stream"), "device": self.format.width("device")}

    @property
    def per_word(self) -> int:
        """Elements of a word."""
        return elements_per_word(self.element_bits, self.format.word_bits) if self.elements else 1

    @property
    def words(self) -> int:
        """Words of a tensor; 1 where there are none."""
        return wire_words(self.elements, self.element_bits, self.format.word_bits) if self.elements else 1

    @property
    def final(self) -> int:
        """Position of the word that ends a tensor; one that no word has where there are none."""
        return self.words - 1 if self.elements else self.words
