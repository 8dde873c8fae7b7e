"""Where frames, labels and results enter and leave: ports of the first FPGA that belong to the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from hdl.engine.loss.numbers import METRICS
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.folding import frame_lanes
from hdl.layers.meaning import State
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor, Tile


@dataclass(frozen=True, kw_only=True)
class _Host(Layer):
    """A port of the device top: no circuit of its own, one beat a cycle."""

    pinned_to_host = True

    @property
    def cycles_per_frame(self) -> int:
        """One beat a cycle."""
        return (*self.sinks, *self.sources)[0].beats

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """As many lanes as the frame needs."""
        del cycles, tile
        return self

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The host's, not ours: the executor feeds and reads these edges itself."""
        raise TypeError(f"{type(self).__name__} has no arithmetic")

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """As `golden`."""
        raise TypeError(f"{type(self).__name__} has no arithmetic")

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """None: the device top connects the stream to its own port."""
        raise TypeError(f"{type(self).__name__} is a port of the device top, not a circuit")

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Nothing to conform to."""
        return ()


@dataclass(frozen=True, kw_only=True)
class HostInput(_Host):
    """The images: source ``y`` (height, width, channels)."""

    height: int
    width: int
    channels: int
    lanes: int = 1
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """None."""
        return ()

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        shape = (self.height, self.width, self.channels)
        return (Port("y", Tensor(shape, self.y_fixed, Kind.ACTIVATION), self.lanes),)

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest lanes that pass a frame in time."""
        del tile
        lanes = frame_lanes(self.height * self.width * self.channels, self.channels, cycles)
        return dataclasses.replace(self, lanes=lanes)


@dataclass(frozen=True, kw_only=True)
class HostLabel(_Host):
    """The labels: source ``y`` (1, 1, 1), the class number.  A stash edge: it waits for the network's output."""

    classes: int

    @property
    def sinks(self) -> tuple[Port, ...]:
        """None."""
        return ()

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        width = max(1, (self.classes - 1).bit_length())
        return (Port("y", Tensor((1, 1, 1), Fixed(width, 0, signed=False), Kind.STASH)),)


@dataclass(frozen=True, kw_only=True)
class HostOutput(_Host):
    """The results: sink ``x`` (1, 1, 2), loss and correctness of each frame."""

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (Port("x", Tensor((1, 1, 2), METRICS, Kind.STASH)),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """None."""
        return ()
