"""Where a stream's tensors lie in memory, and how their words look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hdl.dram.axi import AxiFormat
from hdl.recipe import first_frames
from hdl.streams.width import elements_per_word, wire_words


@dataclass(frozen=True, kw_only=True)
class Region(ABC):
    """Tensors of one stream in memory: what the stores have in common, as numbers."""

    format: AxiFormat
    # bits of one element
    element_bits: int
    # elements a beat of x
    x_lanes: int
    # elements a beat of y
    y_lanes: int
    # elements of a tensor
    elements: int
    # words a burst: a power of two
    burst: int = 16
    # words that may be under way or waiting behind the memory: its latency × the words a cycle, and two bursts
    prefetch: int = 128

    def __post_init__(self) -> None:
        if self.burst & (self.burst - 1) or not 1 <= self.burst <= self.format.max_burst:
            raise ValueError(f"a burst must be a power of two up to {self.format.max_burst} words, not {self.burst}")
        if self.prefetch < self.burst:
            raise ValueError(f"prefetch ({self.prefetch} words) must hold a burst ({self.burst} words)")
        if self.elements < 1 or self.elements % self.x_lanes or self.elements % self.y_lanes:
            lanes = f"{self.x_lanes} and {self.y_lanes}"
            raise ValueError(f"{lanes} lanes must divide a tensor of {self.elements} elements")

    @property
    @abstractmethod
    def ring_bursts(self) -> int:
        """Bursts that the region in memory holds."""

    @property
    @abstractmethod
    def preload_bursts(self) -> int:
        """Bursts that stand in memory at the start."""

    @property
    def tensor_words(self) -> int:
        """Words of a tensor."""
        return wire_words(self.elements, self.element_bits, self.format.data_bits)

    @property
    def tensor_bursts(self) -> int:
        """Bursts of a tensor."""
        return -(-self.tensor_words // self.burst)

    @property
    def region_words(self) -> int:
        """Words of memory from ``base``."""
        return self.ring_bursts * self.burst

    def words(self, beats: Sequence[int], lanes: int) -> list[int]:
        """Memory words of one tensor given as beats of ``lanes`` elements."""
        per_word = elements_per_word(self.element_bits, self.format.data_bits)
        return regroup(beats, self.element_bits * lanes, self.element_bits * per_word)

    def image(self, tensors: Sequence[Sequence[int]], lanes: int) -> list[int]:
        """Contents of the region that holds these tensors (beats of ``lanes`` elements) from its start on."""
        region = [0] * self.region_words
        for index, beats in enumerate(tensors):
            words = self.words(beats, lanes)
            at = index * self.tensor_bursts * self.burst
            region[at : at + len(words)] = words
        return region

    def beats(self, region: Sequence[int], index: int, lanes: int) -> list[int]:
        """Tensor ``index`` of a region, as beats of ``lanes`` elements: the inverse of `image`."""
        bits, mask = self.element_bits, (1 << self.element_bits) - 1
        per_word = elements_per_word(bits, self.format.data_bits)
        at = index * self.tensor_bursts * self.burst
        flat = [word >> (bits * i) & mask for word in region[at : at + self.tensor_words] for i in range(per_word)][
            : self.elements
        ]
        groups = [flat[at : at + lanes] for at in range(0, len(flat), lanes)]
        return [sum(element << (bits * i) for i, element in enumerate(group)) for group in groups]


@dataclass(frozen=True, kw_only=True)
class Ring(Region):
    """A FIFO of whole bursts.  With `preload` tensors in it at the start it is a ring of optimiser state."""

    # tensors that the region in memory holds
    capacity: int
    # tensors that stand in it at the start
    preload: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.preload <= self.capacity or self.capacity < 1:
            raise ValueError(f"a FIFO for {self.capacity} tensors can't start with {self.preload}")

    @property
    def ring_bursts(self) -> int:
        """See the base class."""
        return self.capacity * self.tensor_bursts

    @property
    def preload_bursts(self) -> int:
        """See the base class."""
        return self.preload * self.tensor_bursts


@dataclass(frozen=True, kw_only=True)
class Replay(Region):
    """A double-buffered tensor, read once a frame under the version rule of `hdl.recipe.Recipe`."""

    # frames a batch
    batch: int
    # frames, 0 … batch
    staleness: int
    # whether the first version comes by the stream, too, as `hdl.recipe.LoadedRecipe` has it
    loaded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.staleness <= self.batch or self.batch < 1:
            raise ValueError(f"staleness must lie in 0..batch = 0..{self.batch}, not {self.staleness}")

    @property
    def ring_bursts(self) -> int:
        """See the base class."""
        return 2 * self.tensor_bursts

    @property
    def preload_bursts(self) -> int:
        """See the base class."""
        return 0 if self.loaded else self.tensor_bursts

    @property
    def first_frames(self) -> int:
        """Frames that read the first version."""
        return first_frames(self.batch, self.staleness, self.loaded)


@dataclass(frozen=True, kw_only=True)
class Constant(Region):
    """A tensor that stands there from the start, and is read again and again; nothing comes in by ``x_lanes``."""

    @property
    def ring_bursts(self) -> int:
        """See the base class."""
        return self.tensor_bursts

    @property
    def preload_bursts(self) -> int:
        """See the base class."""
        return self.tensor_bursts


def regroup(beats: Sequence[int], beat_bits: int, word_bits: int) -> list[int]:
    """The same bits, low ones first, cut into words; the last is filled with zeros."""
    if beat_bits % 8 == word_bits % 8 == 0:
        text = b"".join(beat.to_bytes(beat_bits // 8, "little") for beat in beats)
        size = word_bits // 8
        return [int.from_bytes(text[at : at + size], "little") for at in range(0, len(text), size)]
    words, held, bits = [], 0, 0
    for beat in beats:
        held |= beat << bits
        bits += beat_bits
        while bits >= word_bits:
            words.append(held & ((1 << word_bits) - 1))
            held >>= word_bits
            bits -= word_bits
    return [*words, held] if bits else words
