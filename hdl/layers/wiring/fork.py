"""One stream to several users, or to one by way of another device (a relay).

Backwards, the errors of the users are summed (see add.py)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.folding import lanes_for, weight_lanes
from hdl.layers.meaning import State
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.streams import fork
from hdl.tensor import Kind, Port, Tensor, Tile


@dataclass(frozen=True, kw_only=True)
class Fork(Layer):
    """Sink ``x``; sources ``y0``, ``y1``, … of the kinds of their users.  Eager: no user waits for another's beat.

    Costs a flip-flop a user and no cycle."""

    # of the tensor, as its edge has it
    shape: tuple[int, ...]
    kinds: tuple[Kind, ...]
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    lanes: int = 1
    # of the weights, where the tensor is a weight
    tile: Tile = Tile()  # noqa: RUF009 - frozen
    # frames' time in which the tensor should pass, where it passes once a batch
    update_frames: float = field(default=1, repr=False, metadata=QUIET)

    @property
    def per_batch(self) -> bool:
        """Whether the tensor passes once a batch."""
        return self.kinds[0].per_batch

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x; of the first user's kind that moves in step with the pipeline."""
        kind = next((kind for kind in self.kinds if kind.hops_must_match), self.kinds[0])
        return (self._port("x", kind),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y0, y1, …"""
        return tuple(self._port(f"y{index}", kind) for index, kind in enumerate(self.kinds))

    def _port(self, name: str, kind: Kind) -> Port:
        padding = self.tile.padding(self.shape) if self.per_batch else 0
        return Port(name, Tensor(self.shape, self.x_fixed, kind), self.lanes, padding)

    @property
    def elements(self) -> int:
        """Elements of a tensor."""
        return math.prod(self.shape)

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle; a tensor that passes once a batch may take the time of a frame."""
        return self.elements // self.lanes if not self.per_batch else 1

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """As many lanes as its neighbours have by the same rule."""
        if not self.per_batch:
            return dataclasses.replace(self, lanes=lanes_for(self.elements, self.shape[-1], cycles))
        chosen = tile or self.tile
        size = chosen.size if len(self.shape) > 1 else 1
        elements, cycles = self.elements + chosen.padding(self.shape), int(cycles * self.update_frames)
        return dataclasses.replace(self, tile=chosen, lanes=weight_lanes(elements, size, cycles))

    def passed_on(self, source: str) -> str | None:
        """x, to all."""
        del source
        return "x"

    def stream_tile(self, port: str) -> Tile | None:
        """Weights pass in their tile's order; a vector in its own."""
        del port
        return self.tile if self.per_batch and len(self.shape) > 1 else None

    @property
    def pipeline_cycles(self) -> int:
        """None."""
        return 0

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The same to all."""
        del state
        return {port.name: inputs["x"] for port in self.sources}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The same to all."""
        del state
        return {port.name: inputs["x"] for port in self.sources}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.streams.fork`."""
        del images
        return fork(domain, streams["x"], [streams[port.name] for port in self.sources])

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Two and three users, activations and errors; a relay."""
        return (
            cls(shape=(2, 2, 4), kinds=(Kind.ACTIVATION, Kind.STASH), lanes=2),
            cls(shape=(1, 3, 2), kinds=(Kind.ERROR, Kind.ERROR, Kind.ERROR)),
            cls(shape=(2, 2, 4), kinds=(Kind.ERROR,), lanes=2),
        )
