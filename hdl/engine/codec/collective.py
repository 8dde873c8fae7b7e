"""What copies of a network make of their gradients when they exchange them coded: golden models of three collectives.

Source: Li, Park et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep
Neural Networks", MICRO 2018: Algorithm 1 is `Collective.RING`, its baseline `Collective.CENTRAL`.  `Collective.CHAIN`
is ours.

Handed on from copy to copy, a sum is decoded, grows by a copy's own gradient, and is coded again.  So its bits depend
on the order, which is the hardware's.  **All copies take what is decoded of the last code**, the one that made it as
well: so their weights stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from hdl.engine.codec.element_codec import TagArray
from hdl.engine.codec.integer_codec import IntegerCodec, with_feedback
from hdl.fixed import IntArray

# (copy, first element, the one behind the last) -> 16 random bits an element
Noise = Callable[[int, int, int], IntArray]


class Collective(Enum):
    """Who adds what to which sum."""

    # blocks, one a copy, each handed on round all of them: from copy b on for block b
    RING = "ring"
    # the whole from the first copy to the last
    CHAIN = "chain"
    # each to one place, where they are added; the sum comes back as it is
    CENTRAL = "central"


@dataclass
class AllReduce:
    """Between copies, batch after batch.

    ``codec``: None hands sums on as they are, in ``width`` bits.  ``feedback``: copies keep what coding took of each
    element, and add it to the next batch's.  ``ends``: where the blocks of a ring end, one a copy; by default they are
    even.  Raises ValueError for a codec of another width."""

    collective: Collective
    codec: IntegerCodec | None = None
    feedback: bool = False
    width: int = 16
    ends: tuple[int, ...] = ()
    # of each copy, while there is feedback
    residuals: list[IntArray] = field(default_factory=list)
    # of all elements that were sent, coded
    sent_elements: int = 0
    sent_bits: int = 0

    def __post_init__(self) -> None:
        if self.codec is not None and self.codec.width != self.width:
            raise ValueError(f"a codec of {self.codec.width} bits can't code sums of {self.width}; take one width")

    def run(self, gradients: Sequence[IntArray], noise: Noise | None = None) -> IntArray:
        """What all copies decode: the sum of their gradients, in ``width`` bits, saturated wherever it is sent.

        Raises ValueError for gradients of unlike shapes."""
        shapes = {gradient.shape for gradient in gradients}
        if len(shapes) != 1:
            raise ValueError(f"gradients of one shape are exchanged, not of {sorted(shapes)}")
        if not self.residuals:
            self.residuals = [np.zeros(gradients[0].size, np.int64) for _ in gradients]
        flat = [np.ravel(gradient) for gradient in gradients]
        made = np.empty_like(flat[0])
        for order, first, end in self._hops(len(flat), made.size):
            block = np.zeros(end - first, np.int64)
            for copy in order:
                own = flat[copy][first:end]
                if self.collective is Collective.CENTRAL:
                    block = block + self._coded(copy, first, own, noise)
                else:
                    block = self._coded(copy, first, self._saturated(block + own), noise)
            made[first:end] = self._saturated(block)
        return made.reshape(gradients[0].shape)

    def _hops(self, copies: int, elements: int) -> list[tuple[list[int], int, int]]:
        """(copies in the order in which they add theirs, first element, the one behind the last) of each block."""
        everyone = list(range(copies))
        if self.collective is not Collective.RING:
            return [(everyone, 0, elements)]
        ends = [0, *self.ends] if self.ends else [elements * block // copies for block in range(copies + 1)]
        if len(ends) != copies + 1 or ends != sorted(ends) or ends[-1] != elements:
            raise ValueError(f"blocks that end at {ends[1:]} are not those of {copies} copies of {elements} elements")
        return [(everyone[block:] + everyone[:block], ends[block], ends[block + 1]) for block in everyone]

    def _saturated(self, elements: IntArray) -> IntArray:
        limit = 1 << self.width - 1
        return np.clip(elements, -limit, limit - 1)

    def _coded(self, copy: int, first: int, elements: IntArray, noise: Noise | None) -> IntArray:
        """What is decoded of what a copy sends."""
        end = first + elements.size
        self.sent_elements += elements.size
        if self.codec is None:
            self.sent_bits += elements.size * self.width
            return elements
        random16 = noise(copy, first, end) if noise else None
        residual = self.residuals[copy][first:end]
        tags, codes, left = with_feedback(self.codec, elements, residual, random16)
        if self.feedback:
            residual[:] = left
        self._count(tags)
        return self.codec.decode(tags, codes)

    def _count(self, tags: TagArray) -> None:
        assert self.codec is not None
        self.sent_bits += self.codec.bits(tags)

    @property
    def ratio(self) -> float:
        """Of bits without a codec to those that were sent."""
        return self.sent_elements * self.width / self.sent_bits
