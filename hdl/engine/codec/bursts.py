"""How tensors lie in bursts when they are compressed: the words that compressor and decompressor exchange.

Which elements take few bits is the codec's: of integers nothing is lost here, what was cut before takes few bits, any
other takes all of its own; the codec of float32 cuts here, as the paper does.

    burst of ``lanes`` elements, from the low bits on:   tags, a pair of bits an element │ codes, in the elements' order

Source: Li, Park et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep
Neural Networks", MICRO 2018, Figures 9 and 10.  The paper leaves the order of both open.  Bursts follow one another
without a gap in words as wide as an uncompressed burst; a tensor begins a word, and zeros fill its last one.

Ours: a burst that would be longer than its elements and a mark is sent as these, behind a mark of `Bursts.granule` bits
whose low two are the tag that no element has.  So incompressible tensors take 1/32 more words, not 1/8.  The codec of
float32 has no tag left for a mark: there all bursts have tags, and incompressible tensors take 1/16 more words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdl.engine.codec.element_codec import TAG_BITS, ElementCodec, TagArray
from hdl.fixed import IntArray

# in place of the first tag: no tags, but elements as they are
ESCAPE = 3
# granules of the tags of a burst that may be longer than its elements by more than a mark: then the only burst that
# reaches a third word is one of such elements alone that begins at the last granule of a word
LONG_TAGS = 2


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Of tensors of so many ``elements``, ``lanes`` a burst.

    Raises ValueError for elements of an odd number of bits, or for lanes that are no power of two, or too many."""

    codec: ElementCodec
    elements: int
    lanes: int = 16

    def __post_init__(self) -> None:
        if self.codec.width % 2:
            raise ValueError(f"elements of {self.codec.width} bits can't lie in bursts; take an even number")
        if self.lanes < 2 or self.lanes & self.lanes - 1:
            raise ValueError(f"a burst of {self.lanes} elements is impossible; take a power of two from 2 on")
        if not self.codec.has_mark and self.tag_granules > LONG_TAGS:
            most = LONG_TAGS * math.gcd(*self.codec.sizes) // TAG_BITS
            raise ValueError(f"a burst of {self.lanes} elements is impossible; take at most {most}")
        if self.elements < 1:
            raise ValueError(f"a tensor of {self.elements} elements has no burst; take at least 1")

    @property
    def burst_bits(self) -> int:
        """Of an uncompressed burst, and of a word."""
        return self.lanes * self.codec.width

    @property
    def count(self) -> int:
        """Bursts of a tensor; what fills the last one is 0."""
        return -(-self.elements // self.lanes)

    @property
    def levels(self) -> int:
        """Of a binary tree over all lanes."""
        return self.lanes.bit_length() - 1

    @property
    def tag_bits(self) -> int:
        """Of all elements of a burst."""
        return TAG_BITS * self.lanes

    @property
    def granule(self) -> int:
        """Bits of which tags, codes and words are whole multiples: a power of two, at most half of the tags."""
        return math.gcd(*self.codec.sizes, self.lanes)

    @property
    def granules(self) -> tuple[int, ...]:
        """Of a code of each tag."""
        return tuple(size // self.granule for size in self.codec.sizes)

    @property
    def word_granules(self) -> int:
        """Of a word."""
        return self.burst_bits // self.granule

    @property
    def tag_granules(self) -> int:
        """Of the tags of a burst."""
        return self.tag_bits // self.granule

    @property
    def most_granules(self) -> int:
        """Of the longest burst: a mark and the elements, or tags and elements where there is no mark."""
        return self.word_granules + (1 if self.codec.has_mark else self.tag_granules)

    @property
    def most_words(self) -> int:
        """Of an incompressible tensor."""
        return -(-self.count * self.most_granules // self.word_granules)

    def padded(self, elements: IntArray) -> IntArray:
        """Elements of one tensor by burst, filled with zeros: (count, lanes)."""
        filled = np.zeros(self.count * self.lanes, np.int64)
        filled[: self.elements] = np.ravel(elements)
        return filled.reshape(self.count, self.lanes)

    def beats(self, elements: IntArray) -> list[int]:
        """Uncompressed bursts of one tensor, as the circuits take and give them."""
        mask = (1 << self.codec.width) - 1
        return [_row([int(element) & mask for element in burst], self.codec.width) for burst in self.padded(elements)]

    def pack(self, elements: IntArray) -> list[int]:
        """Words of one tensor."""
        tags, codes = self.coded(elements)
        bits = at = 0
        for burst, raws in zip(self._rows(tags, codes), self.beats(elements), strict=True):
            value, length = burst
            if length > self.most_granules * self.granule:
                value, length = raws << self.granule | ESCAPE, self.most_granules * self.granule
            bits |= value << at
            at += length
        mask = (1 << self.burst_bits) - 1
        return [bits >> start & mask for start in range(0, at, self.burst_bits)]

    def words(self, elements: IntArray) -> int:
        """Of one tensor: as many as `pack` gives."""
        tags, _ = self.coded(elements)
        sizes = np.array(self.granules)[tags].sum(axis=1) + self.tag_granules
        return -(-int(np.minimum(sizes, self.most_granules).sum()) // self.word_granules)

    def coded(self, elements: IntArray) -> tuple[TagArray, IntArray]:
        """Tags and codes by burst."""
        return self.codec.coded(self.padded(elements))

    def _rows(self, tags: TagArray, codes: IntArray) -> list[tuple[int, int]]:
        """(tags and codes, bits of them) of each burst."""
        found = []
        for burst_tags, burst_codes in zip(tags.tolist(), codes.tolist(), strict=True):
            value, length = _row(burst_tags, TAG_BITS), self.tag_bits
            for tag, code in zip(burst_tags, burst_codes, strict=True):
                value |= code << length
                length += self.granules[tag] * self.granule
            found.append((value, length))
        return found

    def unpack(self, words: Sequence[int]) -> IntArray:
        """Elements of one tensor; raises ValueError for words that are not its own."""
        bits, at = sum(word << index * self.burst_bits for index, word in enumerate(words)), 0
        bursts = []
        for _ in range(self.count):
            burst, at = self._unpacked(bits, at)
            bursts.append(burst)
        if -(-at // self.burst_bits) != len(words) or bits >> at:
            raise ValueError(f"{len(words)} words are not those of a tensor of {at} bits")
        return np.concatenate(bursts)[: self.elements]

    def _unpacked(self, bits: int, at: int) -> tuple[IntArray, int]:
        """A burst from a bit on, and where the next one begins."""
        tags = [bits >> at + TAG_BITS * lane & ESCAPE for lane in range(self.lanes)]
        last = self.codec.last_tag
        if self.codec.has_mark and tags[0] == ESCAPE:
            tags, at = [last] * self.lanes, at + self.granule
        else:
            at += self.tag_bits
        codes = []
        for tag in tags:
            # what is no tag is as long as an element, here and in the circuit; decoding refuses it
            length = self.granules[min(tag, last)] * self.granule
            codes.append(bits >> at & (1 << length) - 1)
            at += length
        return self.codec.restored(np.array(tags, np.uint8), np.array(codes, np.int64)), at


def _row(values: Sequence[int], width: int) -> int:
    """Side by side, the first in the low bits."""
    return sum(value << index * width for index, value in enumerate(values))
