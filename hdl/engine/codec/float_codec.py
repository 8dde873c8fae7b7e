"""INCEPTIONN's codec of float32 gradients, as printed and with a bound that holds.

Source: Li, Park et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep
Neural Networks", MICRO 2018, Algorithms 2 and 3.  An element becomes a tag of 2 bits and a code of 0, 8, 16 or 32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np
import numpy.typing as npt

from hdl.engine.codec.element_codec import TAG_BITS, ElementCodec, TagArray
from hdl.fixed import IntArray

UintArray = npt.NDArray[np.uint32]
# of IEEE 754 single precision
EXPONENT_BIAS, MANTISSA_BITS = 127, 23
ONE = np.uint32(EXPONENT_BIAS << MANTISSA_BITS)
# bits of a code's magnitude
SMALL_BITS, LARGE_BITS = 7, 15


class Tag(IntEnum):
    """How an element is kept."""

    # below the bound: nothing
    ZERO = 0b00
    # a sign and 7 bits
    SMALL = 0b01
    # a sign and 15 bits
    LARGE = 0b10
    # 1 and more, infinities and NaN: all 32 bits
    RAW = 0b11

    @property
    def code_bits(self) -> int:
        """Beside the tag."""
        return (0, 8, 16, 32)[self]


class Kind(Enum):
    """What 8-bit codes count in."""

    # Algorithm 2 as printed: in 2**-7, however small the bound
    LITERAL = "literal"
    # in the bound itself, so that an element is off by less than the bound
    BOUNDED = "bounded"


@dataclass(frozen=True)
class FloatCodec(ElementCodec):
    """Error bound 2**-``bound_bits``; raises ValueError where 16-bit codes could not keep it.

    LITERAL breaks its bound from 2**-8 on: 8-bit codes are off by up to 2**-7, and what is below that becomes 0."""

    bound_bits: int
    kind: Kind

    def __post_init__(self) -> None:
        if not 1 <= self.bound_bits <= LARGE_BITS:
            raise ValueError(f"an error bound of 2^-{self.bound_bits} is impossible; take 1 to {LARGE_BITS}")

    @property
    def width(self) -> int:
        """See the base class."""
        return Tag.RAW.code_bits

    @property
    def sizes(self) -> tuple[int, ...]:
        """See the base class."""
        return tuple(tag.code_bits for tag in Tag)

    @property
    def small_place(self) -> int:
        """An 8-bit code counts in 2**-this."""
        return SMALL_BITS if self.kind is Kind.LITERAL else self.bound_bits

    @property
    def large_from(self) -> int:
        """The least exponent field of elements that take 16 bits, or are raw."""
        least = EXPONENT_BIAS - self.bound_bits
        if self.kind is Kind.LITERAL:
            return least + math.ceil(self.bound_bits / 2)
        return min(least + SMALL_BITS, EXPONENT_BIAS)

    def encode(self, words: UintArray) -> tuple[TagArray, UintArray]:
        """Tags and codes of the bits of float32 elements; a code has its sign above its magnitude."""
        exponents = (words >> MANTISSA_BITS) & 0xFF
        tags = np.full(words.shape, Tag.SMALL, np.uint8)
        tags[exponents >= self.large_from] = Tag.LARGE
        tags[exponents >= EXPONENT_BIAS] = Tag.RAW
        tags[exponents < EXPONENT_BIAS - self.bound_bits] = Tag.ZERO
        mantissas = words & ((1 << MANTISSA_BITS) - 1) | (1 << MANTISSA_BITS)
        codes = np.where(tags == Tag.RAW, words, np.uint32(0))
        for tag, place, bits in self._kept:
            kept = tags == tag
            shifts = MANTISSA_BITS - place + EXPONENT_BIAS - exponents[kept]
            codes[kept] = (mantissas[kept] >> shifts) | (words[kept] >> 31) << bits
        return tags, codes.astype(np.uint32)

    def decode(self, tags: TagArray, codes: UintArray) -> UintArray:
        """Bits of float32 elements; a magnitude of 0, for which Algorithm 3 has no first 1, is 0."""
        words = np.where(tags == Tag.RAW, codes, np.uint32(0))
        for tag, place, bits in self._kept:
            kept = tags == tag
            magnitudes = codes[kept] & ((1 << bits) - 1)
            values = np.ldexp(magnitudes.astype(np.float32), -place)
            words[kept] = values.view(np.uint32) | ((codes[kept] >> bits) & (magnitudes > 0)) << 31
        return words.astype(np.uint32)

    def coded(self, elements: IntArray) -> tuple[TagArray, IntArray]:
        """See the base class; elements are the bits of float32, and lose here what they lose."""
        tags, codes = self.encode(elements.astype(np.uint32))
        return tags, codes.astype(np.int64)

    def restored(self, tags: TagArray, codes: IntArray) -> IntArray:
        """See the base class."""
        return self.decode(tags, codes.astype(np.uint32)).astype(np.int64)

    @property
    def _kept(self) -> tuple[tuple[Tag, int, int], ...]:
        """(tag, place of the last bit, bits of the magnitude) of elements that lose bits but not all."""
        return (Tag.SMALL, self.small_place, SMALL_BITS), (Tag.LARGE, LARGE_BITS, LARGE_BITS)


def mean_bits(shares: dict[Tag, float]) -> float:
    """Bits an element, its tag included, where each tag has a share of all elements."""
    return sum(share * (TAG_BITS + tag.code_bits) for tag, share in shares.items())
