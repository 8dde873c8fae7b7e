"""Frames dealt out to copies of a layer, and collected again::

    x ─▶ Deal ─▶ y0 ─▶ layer@0 ─▶ x0 ─▶ Collect ─▶ y
             ╰─▶ y1 ─▶ layer@1 ─▶ x1 ─╯

Of each batch the first frame goes to copy 0, the next one to copy 1, and so on; so a copy gets as many of every batch
(`hdl.recipe.Dealt`).  Collected in the same turns, all frames are where they were.

A copy has as many times longer for a frame as there are copies, and may take fewer lanes a beat for that.  What comes
faster than it goes waits behind `Deal`; in front of `Collect` it waits in the FIFO that every sink has.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from myhdl import block

from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.folding import frame_lanes
from hdl.layers.meaning import State
from hdl.recipe import Dealt, Recipe
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import collect, deal, queue, queue_latency
from hdl.tensor import Kind, Port, Tensor, Tile

# beats that wait at a copy beside those that its pace makes
SLACK = 4


@dataclass(frozen=True, kw_only=True)
class _InTurns(Layer):
    """What both ends share.  Raises `ShapeError` for copies that get no frame of a batch."""

    # of the map, as its edge has it
    shape: tuple[int, ...]
    copies: int = 2
    kind: Kind = Kind.ACTIVATION
    # whose batches are dealt
    recipe: Recipe = field(default_factory=Recipe)
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    lanes: int = 1

    def __post_init__(self) -> None:
        if not 2 <= self.copies <= self.recipe.batch:
            raise ShapeError(
                f"{type(self).__name__}: {self.recipe.batch} frames a batch can't be dealt out to {self.copies} copies",
                f"take 2 to {self.recipe.batch}",
            )
        if self.kind.per_batch:
            raise ShapeError(f"{type(self).__name__}: a tensor of kind {self.kind.value} comes once a batch, not dealt")

    def _port(self, name: str) -> Port:
        return Port(name, Tensor(self.shape, self.x_fixed, self.kind), self.lanes)

    def _ports_of_copies(self, name: str) -> tuple[Port, ...]:
        return tuple(self._port(f"{name}{copy}") for copy in range(self.copies))

    def _of_copy(self, copy: int) -> Dealt:
        """The frames of a copy."""
        return Dealt(copy=copy, copies=self.copies, batch=self.recipe.batch, staleness=self.recipe.staleness)

    @property
    def elements(self) -> int:
        """Elements of a map."""
        return math.prod(self.shape)

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle."""
        return self.elements // self.lanes

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """As many lanes as its neighbours have by the same rule; several pixels a beat where copies are faster together
        than the pixel a cycle that each of them takes at most."""
        del tile
        return dataclasses.replace(self, lanes=frame_lanes(self.elements, self.shape[-1], cycles))

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Copies that divide a batch and that don't, of one frame each; a beat a frame; two pixels a beat."""
        return (
            cls(shape=(2, 2, 4), recipe=Recipe(batch=4), lanes=2),
            cls(shape=(1, 3, 2), copies=3, kind=Kind.ERROR, recipe=Recipe(batch=5)),
            cls(shape=(1, 1, 4), copies=3, kind=Kind.STASH, recipe=Recipe(batch=3), lanes=4),
            cls(shape=(2, 3, 2), recipe=Recipe(batch=3), lanes=4),
        )


@dataclass(frozen=True, kw_only=True)
class Deal(_InTurns):
    """Sink ``x``; sources ``y0``, ``y1``, …, each with its copy's frames.

    Costs counters, a multiplexer of ready, and a queue for most of a frame of each copy."""

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (self._port("x"),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y0, y1, …"""
        return self._ports_of_copies("y")

    def dealt(self, port: str) -> Dealt | None:
        """Of a source its copy's."""
        return None if port == "x" else self._of_copy(int(port[1:]))

    @property
    def waiting_beats(self) -> int:
        """Beats of a copy's frame that wait, so that it comes in one interval and goes in as many as there are
        copies."""
        beats = self.cycles_per_frame
        return beats - beats // self.copies + SLACK

    @property
    def pipeline_cycles(self) -> int:
        """The queue's."""
        return queue_latency(self.waiting_beats)

    def waiting(self, source: str) -> int:
        """What the queue holds."""
        del source
        return self.waiting_beats

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Every so many frames to each."""
        del state
        return {f"y{copy}": inputs["x"][copy :: self.copies] for copy in range(self.copies)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Every so many frames to each."""
        del state
        return {f"y{copy}": inputs["x"][copy :: self.copies] for copy in range(self.copies)}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.streams.deal`."""
        del images
        return deal_frames(domain, streams["x"], [streams[port.name] for port in self.sources], cfg=self)


@dataclass(frozen=True, kw_only=True)
class Collect(_InTurns):
    """Sinks ``x0``, ``x1``, …, each with its copy's frames; source ``y``.

    Costs counters and a multiplexer, and no cycle."""

    @property
    def pipeline_cycles(self) -> int:
        """None."""
        return 0

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x0, x1, …"""
        return self._ports_of_copies("x")

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self._port("y"),)

    def dealt(self, port: str) -> Dealt | None:
        """Of a sink its copy's."""
        return None if port == "y" else self._of_copy(int(port[1:]))

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """One frame of each in turn."""
        del state
        return {"y": _in_turn([inputs[port.name] for port in self.sinks])}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """One frame of each in turn."""
        del state
        return {"y": _in_turn([inputs[port.name] for port in self.sinks])}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.streams.collect`."""
        del images
        xs = [streams[port.name] for port in self.sinks]
        return collect(domain, xs, streams["y"], turn=self.cycles_per_frame, turns=self.recipe.batch)


@block
def deal_frames(domain: ClockReset, x: Stream, ys: Sequence[Stream], *, cfg: Deal) -> Instances:
    """See `hdl.streams.deal`; a queue in front of each copy.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        ys: out, streams as wide as ``x``.
    """
    dealt = [Stream(x.width) for _ in ys]
    turns = deal(domain, x, dealt, turn=cfg.cycles_per_frame, turns=cfg.recipe.batch)
    waits = [queue(domain, dealt[i], ys[i], depth=cfg.waiting_beats) for i in range(len(ys))]
    return turns, waits


def _in_turn(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Frames of all parts, one of each in turn."""
    frames = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for copy, part in enumerate(parts):
        frames[copy :: len(parts)] = part
    return frames
