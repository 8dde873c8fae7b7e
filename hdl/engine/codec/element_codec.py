"""What bursts and their circuits know of a codec: its tags, and how long the code of each is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from hdl.fixed import IntArray

TagArray = npt.NDArray[np.uint8]
TAG_BITS = 2


class ElementCodec(ABC):
    """A tag of `TAG_BITS` bits and a code for each element; the code of the last tag is the element itself."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Bits of an element."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Bits of a code on the wire, by its tag."""

    @property
    def last_tag(self) -> int:
        """That of elements which are kept as they are."""
        return len(self.sizes) - 1

    @property
    def has_mark(self) -> bool:
        """Whether a tag is left that no element has, which can say that a burst is sent as it is."""
        return len(self.sizes) < 1 << TAG_BITS

    @abstractmethod
    def coded(self, elements: IntArray) -> tuple[TagArray, IntArray]:
        """Tags and codes that the compressor makes."""

    @abstractmethod
    def restored(self, tags: TagArray, codes: IntArray) -> IntArray:
        """Elements that the decompressor makes of them; raises ValueError for a tag that is none."""
