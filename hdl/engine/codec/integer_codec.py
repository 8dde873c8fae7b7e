"""A codec of signed integers for gradients that are exchanged: INCEPTIONN's tags and sizes without its float32.

An element becomes a tag of 2 bits and nothing, a sign and ``window`` bits that count in 2**``drop``, or all its bits:

    q = round(|c| / 2**drop)        ZERO if q = 0, SMALL if it fits the window, else RAW

After Li, Park et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep
Neural Networks", MICRO 2018, which cuts off (`Cut.TRUNCATE`).  Magnitudes are rounded, so a sign changes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum

import numpy as np

from hdl.engine.codec.element_codec import TAG_BITS, ElementCodec, TagArray
from hdl.fixed import IntArray
from hdl.random_bits import ROUNDING_BITS

# of a small code, beside its sign
WINDOW_BITS = 7


class IntegerTag(IntEnum):
    """How an element is kept; 3 is no tag."""

    ZERO = 0
    SMALL = 1
    RAW = 2


class Cut(Enum):
    """What becomes of the bits that a small code has no room for."""

    # towards 0, as the paper does
    TRUNCATE = "truncate"
    # the nearest; from the middle away from 0
    NEAREST = "nearest"
    # away from 0 with the probability of what is cut off: right on average
    STOCHASTIC = "stochastic"


@dataclass(frozen=True)
class IntegerCodec(ElementCodec):
    """Of integers of ``width`` bits with a sign.

    Raises ValueError where a window would keep more than a code has, or where there is nothing to keep."""

    drop: int
    width: int = 16
    window: int = WINDOW_BITS
    cut: Cut = Cut.TRUNCATE

    def __post_init__(self) -> None:
        if self.drop < 0 or self.window < 1 or self.drop + self.window > self.width - 1:
            raise ValueError(
                f"of {self.width} bits with a sign a window of {self.window} behind {self.drop} that are dropped is "
                f"impossible; take at least 1, and both together at most {self.width - 1}"
            )

    @classmethod
    def relative(cls, bound_bits: int, width: int = 16, cut: Cut = Cut.TRUNCATE) -> IntegerCodec:
        """With errors below 2**-``bound_bits`` of the greatest magnitude; raises ValueError where that is none."""
        if not 1 <= bound_bits < width:
            raise ValueError(f"an error bound of 2^-{bound_bits} of {width} bits is impossible; take 1 to {width - 1}")
        return cls(width - 1 - bound_bits, width, min(WINDOW_BITS, bound_bits), cut)

    @property
    def small_bits(self) -> int:
        """Of a small code: sign and window."""
        return 1 + self.window

    @property
    def raw_from(self) -> int:
        """The least magnitude that is kept whole: rounded up, the ones below still fit the window."""
        if self.cut is Cut.TRUNCATE:
            return 1 << self.drop + self.window
        return ((1 << self.window) - 1 << self.drop) + 1

    @property
    def worst_error(self) -> int:
        """The greatest that an element may be off by."""
        if self.cut is Cut.NEAREST:
            return (1 << self.drop) // 2
        return (1 << self.drop) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """See the base class: even numbers, so that there is room for tags beside them."""
        return 0, self.small_bits + self.small_bits % 2, self.width

    def code_bits(self, tag: IntegerTag) -> int:
        """Beside the tag."""
        return (0, self.small_bits, self.width)[tag]

    def bits(self, tags: TagArray) -> int:
        """Of so many elements, with their tags."""
        return sum(int((tags == tag).sum()) * (TAG_BITS + self.code_bits(tag)) for tag in IntegerTag)

    def encode(self, elements: IntArray, random16: IntArray | None = None) -> tuple[TagArray, IntArray]:
        """Tags and codes of elements in ``width`` bits; a small code has its sign above its magnitude.

        ``random16``: 16 random bits an element, which `Cut.STOCHASTIC` takes the upper ``drop`` of."""
        magnitudes: IntArray = np.abs(elements)
        raw = magnitudes >= self.raw_from
        counted = (magnitudes + self._added(random16)) >> self.drop
        tags = np.where(raw, IntegerTag.RAW, np.where(counted == 0, IntegerTag.ZERO, IntegerTag.SMALL))
        small = counted | (elements < 0).astype(np.int64) << self.window
        codes = np.where(raw, elements & (1 << self.width) - 1, np.where(tags == IntegerTag.SMALL, small, 0))
        return tags.astype(np.uint8), codes.astype(np.int64)

    def decode(self, tags: TagArray, codes: IntArray) -> IntArray:
        """Elements; raises ValueError for a tag that is none."""
        if (tags > IntegerTag.RAW).any():
            raise ValueError(f"{int((tags > IntegerTag.RAW).sum())} of {tags.size} tags are {max(IntegerTag) + 1}")
        magnitudes = (codes & (1 << self.window) - 1) << self.drop
        small = np.where(codes >> self.window & 1, -magnitudes, magnitudes)
        sign = 1 << self.width - 1
        raw = (codes ^ sign) - sign
        return np.where(tags == IntegerTag.RAW, raw, np.where(tags == IntegerTag.SMALL, small, 0)).astype(np.int64)

    def coded(self, elements: IntArray) -> tuple[TagArray, IntArray]:
        """See the base class: those of `encode` where these are all of an element, which is kept whole elsewhere."""
        cuts = replace(self, cut=Cut.TRUNCATE)
        tags, codes = cuts.encode(elements)
        lost = cuts.decode(tags, codes) != elements
        codes = np.where(lost, elements & (1 << self.width) - 1, codes)
        return np.where(lost, IntegerTag.RAW, tags).astype(np.uint8), codes

    def restored(self, tags: TagArray, codes: IntArray) -> IntArray:
        """See the base class."""
        return self.decode(tags, codes)

    def _added(self, random16: IntArray | None) -> IntArray | int:
        """To a magnitude, before bits are cut off."""
        if self.cut is Cut.TRUNCATE:
            return 0
        if self.cut is Cut.NEAREST:
            return (1 << self.drop) >> 1
        if random16 is None:
            raise ValueError(f"{self.cut.value} rounding needs random bits")
        return random16 >> ROUNDING_BITS - self.drop


def with_feedback(
    codec: IntegerCodec, elements: IntArray, residual: IntArray, random16: IntArray | None = None
) -> tuple[TagArray, IntArray, IntArray]:
    """Tags and codes of what is sent, and the residual that is added to the next elements: what coding took.

    ``elements`` and ``residual`` are added in ``width`` bits; what does not fit them is lost, as in every sum that is
    saturated.  So a residual is never more than `IntegerCodec.worst_error`, however long it is carried on."""
    limit = 1 << codec.width - 1
    wanted = np.clip(elements + residual, -limit, limit - 1)
    tags, codes = codec.encode(wanted, random16)
    return tags, codes, wanted - codec.decode(tags, codes)
