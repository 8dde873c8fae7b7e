"""What element-wise layers share: a map of (height, width, channels), ``lanes`` elements a beat, one beat a cycle."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from hdl.errors import FoldingError, ShapeError
from hdl.layers.base import Layer
from hdl.layers.folding import lanes_for
from hdl.tensor import Tile


@dataclass(frozen=True, kw_only=True)
class ElementWise(Layer):
    """A layer whose ports all carry the same map.  (Not registered: it is abstract.)"""

    height: int
    width: int
    channels: int
    # elements a beat
    lanes: int = 1

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.channels) < 1:
            raise ShapeError(f"{type(self).__name__}: dimensions {self.shape} must be positive")
        if self.lanes < 1 or self.channels % self.lanes:
            raise FoldingError(f"{type(self).__name__}: {self.lanes} lanes do not divide {self.channels} channels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.height, self.width, self.channels

    @property
    def elements(self) -> int:
        """Elements of a frame."""
        return self.height * self.width * self.channels

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle."""
        return self.elements // self.lanes

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest lanes that pass a frame in time."""
        del tile
        folded = dataclasses.replace(self, lanes=lanes_for(self.elements, self.channels, cycles))
        if folded.cycles_per_frame > cycles:
            raise FoldingError(
                f"{type(self).__name__} {self.shape}: all {self.channels} channels a beat still take "
                f"{folded.cycles_per_frame} cycles a frame, more than {cycles}; allow more cycles"
            )
        return folded

    @property
    def pipeline_cycles(self) -> int:
        """One register."""
        return 1
