"""What lies where in the payloads between the stages of compressor and decompressor, and what a codec adds to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.element_codec import TAG_BITS
from hdl.engine.codec.stages import Fields, fields, granule_bits
from hdl.memory import address_width
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream

# a circuit between two streams, and the payload bits of the second one
Stage: TypeAlias = tuple[Callable[[ClockReset, Stream, Stream], Instances], int]


@dataclass(frozen=True)
class Packing:
    """What lies where in the payloads between stages."""

    bursts: Bursts

    def gathered(self, level: int) -> list[Fields]:
        """Codes side by side, granules of each, tags; where there is a mark whether elements are sent as they are."""
        nodes, width = self.bursts.lanes >> level, self.bursts.codec.width << level
        codes, sizes = (width, nodes), (granule_bits(self.bursts, 1 << level), nodes)
        return fields(codes, sizes, (TAG_BITS, self.bursts.lanes), *[(1, 1)] * self.bursts.codec.has_mark)

    @property
    def burst_bits(self) -> int:
        """Of the longest burst."""
        return self.bursts.most_granules * self.bursts.granule

    @property
    def joined(self) -> list[Fields]:
        """A burst, its granules."""
        return fields((self.burst_bits, 1), (self.bursts.most_granules.bit_length(), 1))

    @property
    def place_bits(self) -> int:
        """Of a granule of a word."""
        return address_width(self.bursts.word_granules)

    @property
    def first_places(self) -> int:
        """Bits of a place by which the first stage shifts, of `place_bits`."""
        return (self.place_bits + 1) // 2

    def placed(self, places: int) -> list[Fields]:
        """A burst that was shifted by the low so many bits of its place; the place, whether it ends a word, or two, or
        three, which without a mark may be."""
        most = min((1 << places) - 1, self.bursts.word_granules - 1) * self.bursts.granule
        ends = 2 if self.bursts.codec.has_mark else 3
        return fields((self.burst_bits + most, 1), (self.place_bits, 1), *[(1, 1)] * ends)


@dataclass(frozen=True)
class Unpacking:
    """What lies where in the payloads between stages."""

    bursts: Bursts

    @property
    def granule_tags(self) -> int:
        """Tags in a granule."""
        return self.bursts.granule // TAG_BITS

    @property
    def straddling(self) -> int:
        """Granules at the end of a word from which tags go on in the next one."""
        return self.bursts.tag_granules - 1

    @property
    def behind_bits(self) -> int:
        """Of a granule counted from the beginning of a word on, in this word or the next one."""
        return (2 * self.bursts.word_granules).bit_length()

    @property
    def place_bits(self) -> int:
        """Of the place where a burst begins, or of the end of a word."""
        return self.bursts.word_granules.bit_length()

    @property
    def late_places(self) -> int:
        """Bits of a place by which the second stage shifts: the low ones."""
        return self.place_bits // 2

    @property
    def measured(self) -> list[Fields]:
        """A word, sizes by its granules if these are tags, whether they are marks if there are any."""
        count, sizes = self.bursts.word_granules, granule_bits(self.bursts, self.granule_tags)
        return fields((self.bursts.burst_bits, 1), (sizes, count), *[(1, count)] * self.bursts.codec.has_mark)

    @property
    def ahead(self) -> tuple[int, int]:
        """Fields of the sizes of the first granule, the first two, …: what they add to tags in the word before."""
        return granule_bits(self.bursts, self.granule_tags * self.straddling), self.straddling

    @property
    def sized(self) -> list[Fields]:
        """A word; sizes of codes by the granule where a burst begins, without what the next word adds; `alone`;
        `ahead`."""
        sizes = granule_bits(self.bursts, self.bursts.lanes), self.bursts.word_granules
        return fields((self.bursts.burst_bits, 1), sizes, *self.alone, self.ahead)

    @property
    def alone(self) -> list[tuple[int, int]]:
        """Field of whether the next word adds nothing, by the straddling granules; without marks there is none."""
        return [(1, self.straddling)] * self.bursts.codec.has_mark

    @property
    def ended(self) -> list[Fields]:
        """A word; by the granule where a burst begins, where the next one does, whether that is not in this word, and
        whether this one isn't all in this word; then as `sized`."""
        count = self.bursts.word_granules
        places = (self.place_bits, count), (1, count), (1, count)
        return fields((self.bursts.burst_bits, 1), *places, *self.alone, self.ahead)

    @property
    def burst_bits(self) -> int:
        """Of the longest burst."""
        return self.bursts.most_granules * self.bursts.granule

    @property
    def buffered(self) -> list[Fields]:
        """A burst from below the low bits of its place on, these bits; without marks whether its tags are all the last
        one."""
        late = ((1 << self.late_places) - 1) * self.bursts.granule
        whole = [(1, 1)] * (not self.bursts.codec.has_mark)
        return fields((self.burst_bits + late, 1), (self.late_places, 1), *whole)

    @property
    def split(self) -> list[Fields]:
        """Codes side by side, tags."""
        return fields((self.bursts.burst_bits, 1), (TAG_BITS, self.bursts.lanes))

    def parted(self, level: int) -> list[Fields]:
        """Codes of so many lanes each, the first ones in the low bits; sizes of the lower halves; tags."""
        nodes = self.bursts.lanes >> level
        return fields(
            (self.bursts.codec.width << level, nodes),
            (granule_bits(self.bursts, (1 << level) // 2), nodes),
            (TAG_BITS, self.bursts.lanes),
        )

    @property
    def apart(self) -> list[Fields]:
        """A code a lane, tags."""
        return fields((self.bursts.codec.width, self.bursts.lanes), (TAG_BITS, self.bursts.lanes))
