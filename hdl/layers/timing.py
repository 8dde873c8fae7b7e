"""When a layer takes and gives: cycles a frame, the fold that meets them, latencies, what must come before what."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Self

from hdl.errors import FoldingError
from hdl.layers.folding import lanes_for
from hdl.layers.shape import Shape
from hdl.parts.catalogue import DEFAULT_PARTS
from hdl.parts.part import Part
from hdl.recipe import Dealt
from hdl.strips import Strips
from hdl.tensor import Tile


class Timing(Shape):
    """Pace and latency; parallelism are plain integer fields of the layer, 1 by default."""

    # engines that work only once a batch or carry no arithmetic may have no multipliers; others state them
    multipliers: Any = 0

    @property
    @abstractmethod
    def cycles_per_frame(self) -> int:
        """Initiation interval: cycles between frames in steady state when nothing stalls (measured = declared).

        A layer that works once a batch gives its cycles a batch divided by the batch size, rounded up."""

    @property
    def macs(self) -> int:
        """Multiplications a frame that the algorithm needs (padding counted, as is usual)."""
        return 0

    def tiles(self, cycles: int, parts: Sequence[Part] = DEFAULT_PARTS) -> Iterator[Tile]:
        """Weight tiles with which this layer needs at most ``cycles`` a frame, fewest multipliers first; of as many,
        those whose memories take the fewest blocks of these parts.

        All engines that share a weight tensor (forward, error, gradient, update) share one tile, because the
        tile fixes the order in which weights and gradients stream.  Layers without such a tensor have none."""
        del cycles, parts
        return iter(())

    def has_tile(self, cycles: int) -> bool:
        """Whether there is any of `tiles`."""
        return next(self.tiles(cycles), None) is not None

    def suits(self, tile: Tile, cycles: int) -> bool:
        """Whether a tile is one of `tiles`."""
        return tile in self.tiles(cycles)

    def least_cycles(self, tile: Tile) -> int | None:
        """Cycles a frame that this layer needs at least with a tile, whatever its lanes; None if it can't have it."""
        del tile
        return None

    @abstractmethod
    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The variant with the fewest multipliers, then the fewest lanes, that needs at most ``cycles`` a frame.

        ``tile`` is one of `tiles` (default: the first).  Lanes of every per-frame port are `lanes_for` of its
        tensor and ``cycles``, so both ends of an edge agree; lanes of per-batch ports are `weight_lanes`.
        Raises `FoldingError` when even the widest variant is slower."""

    def with_lanes(self, cycles: int, **maps: Sequence[int]) -> Self:
        """With the fewest lanes that pass each map within ``cycles``.

        ``maps`` are shapes (height, width, channels) by the fields of their lanes, ``lanes`` among them.  Raises
        `FoldingError` where even all channels a beat are too slow."""
        lanes = {field: lanes_for(math.prod(shape), shape[-1], cycles) for field, shape in maps.items()}
        folded: Self = dataclasses.replace(self, **lanes)  # type: ignore[type-var]
        return folded.in_time(cycles, f"{tuple(maps['lanes'])}: all channels")

    def in_time(self, cycles: int, most: str) -> Self:
        """This layer, which passes ``most`` of a map a beat.  Raises `FoldingError` where even that is too slow."""
        if self.cycles_per_frame > cycles:
            raise FoldingError(
                f"{type(self).__name__} {most} a beat still take {self.cycles_per_frame} cycles a frame, more than "
                f"{cycles}",
                "allow more cycles",
            )
        return self

    def frames_at(self, port: str, frames: int) -> int:
        """How many of the first frames of a batch pass a port."""
        dealt = self.dealt(port)
        return frames if dealt is None else dealt.share(frames)

    def dealt(self, port: str) -> Dealt | None:
        """Which of the frames that the layer gets pass a port; None: all of them."""
        del port
        return None

    def frame_share(self, port: str) -> tuple[Fraction, Fraction] | None:
        """From which to which share of the time of a frame a port's tensor passes; None: all the time.

        Of a layer with one sink, whose time is that of the sink, or one source."""
        del port
        return None

    @property
    def most_beats(self) -> int:
        """Beats of a frame at the port that has most."""
        return max(port.beats for port in (*self.sinks, *self.sources))

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Elements of each per-frame sink that must have entered before ``elements`` of ``source`` can leave.

        Counted within one frame (0 < elements <= the frame's).  The FIFO analysis rests on it.  The default is
        an element-wise layer."""
        total = self.port(source).tensor.elements
        return {
            port.name: math.ceil(elements * port.tensor.elements / total)
            for port in self.sinks
            if not port.tensor.kind.per_batch
        }

    def turns(self, port: str) -> tuple[int, ...]:
        """Channels of a pixel after which the port goes on with what other ports give or take."""
        del port
        return ()

    @property
    def pipeline_cycles(self) -> int:
        """Cycles from an accepted last-needed input beat to the output beat it completes, unstalled (upper bound)."""
        return 4

    def latency_cycles(self, source: str) -> int:
        """As `pipeline_cycles`, but of one source and what it takes, not at most: `hdl.layers.passage` rests on it.

        Of a source that gives a tensor a batch, from the last input of the batch to the first beat."""
        del source
        return self.pipeline_cycles

    def waiting(self, source: str) -> int:
        """Beats of a source of frames that wait inside a layer without `strips` while nobody takes them; 0 of one that
        hands on what stands before it."""
        del source
        return self.pipeline_cycles

    def taken_ahead(self, sink: str) -> tuple[int, int]:
        """Elements of a sink of a layer without `strips` that wait behind it before they are needed, and how many of
        them go on from there at once; (0, 0) where each beat is taken as it is needed."""
        del sink
        return 0, 0

    @property
    def strips(self) -> Strips | None:
        """How an engine goes through a frame that works strip by strip; None of a layer that hands on what it gets."""
        return None

    @property
    def weight_cycles(self) -> int:
        """Cycles from the last beat of a version of the weights to the first operation with it."""
        return 0

    @property
    def stolen_cycles(self) -> int:
        """Cycles a batch in which an engine pauses for what is written into its memory, at most; what is said elsewhere
        of its pace and its results is without them."""
        return 0

    @property
    def works_per_batch(self) -> bool:
        """Whether nothing that passes its ports passes once a frame."""
        return all(port.tensor.kind.per_batch for port in (*self.sinks, *self.sources))
