"""What both stores are: a tensor of parameters, so many times, in a memory of beats."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.folding import divisors
from hdl.layers.storage import Memory
from hdl.layers.store.block_store import IMAGE, BlockStore
from hdl.layers.wiring.parameter import ParameterLayer
from hdl.tensor import Kind, Port, Tensor, Tile


@dataclass(frozen=True, kw_only=True)
class Store(ParameterLayer):
    """Ports of the layer whose memory it is, which gives and takes what stands here in the order of its tile."""

    fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    @property
    def is_store(self) -> bool:
        """It is."""
        return True

    @cached_property
    @abstractmethod
    def store(self) -> BlockStore:
        """The memory."""

    @property
    def built(self) -> Self:
        """The memory knows no binary point."""
        return dataclasses.replace(self, fixed=Fixed(self.fixed.width, 0))

    @property
    def once_a_batch(self) -> bool:
        """Whether what it gives passes once a batch."""
        return self.sources[0].tensor.kind.per_batch

    @property
    def frames_to_pass(self) -> float:
        """As chosen; one for what passes once a frame."""
        return super().frames_to_pass if self.once_a_batch else 1

    def kept_port(self, name: str, kind: Kind) -> Port:
        """A port that passes the tensor."""
        return self.parameter_port(name, Tensor(self.shape, self.fixed, kind))

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle; of what passes once a batch its share of one."""
        return super().cycles_per_frame if self.once_a_batch else self.cycles_per_batch

    def widths(self) -> Iterator[Self]:
        """This store with every number of lanes."""
        size = self.elements if len(self.shape) == 1 else self.tile.size
        return (dataclasses.replace(self, w_lanes=lanes) for lanes in divisors(size))

    def least_cycles(self, tile: Tile) -> int | None:
        """A tile a beat."""
        if not all(self.shape[axis] >= lanes for axis, lanes in enumerate((tile.po, tile.pi)[: len(self.shape)])):
            return None
        return dataclasses.replace(self, tile=tile, w_lanes=tile.size).cycles_per_frame

    @property
    def pipeline_cycles(self) -> int:
        """From a beat in to the same beat out."""
        return self.store.latency

    def memories(self) -> tuple[Memory, ...]:
        """What stands here."""
        return (Memory(IMAGE, self.store.depth, self.w_lanes * self.fixed.width, is_state=self.keeps_state),)

    @property
    @abstractmethod
    def keeps_state(self) -> bool:
        """Whether what stands here at the end of a batch is state of the training."""

    def holding(self, beats: Sequence[int]) -> dict[str, list[int]]:
        """`images` with these beats of the source from its first word on."""
        words = [int(beat) for beat in beats]
        return {IMAGE: words + [0] * (self.store.depth - len(words))}


def widths_of(layer: Layer) -> Iterable[Layer]:
    """A store with every number of lanes; of another layer itself."""
    return layer.widths() if isinstance(layer, Store) else (layer,)
