"""Frames dealt out to copies of a layer, and collected again::

    x ─▶ Deal ─▶ y0 ─▶ layer@0 ─▶ x0 ─▶ Collect ─▶ y
             ╰─▶ y1 ─▶ layer@1 ─▶ x1 ─╯

Of each batch the first frame goes to copy 0, the next one to copy 1, and so on, or by shares of unlike size to each as
evenly as can be; so a copy gets as many of every batch (`hdl.recipe.Dealt`).  Collected in the same turns, all frames
are where they were.

A copy has so much longer for a frame as others get frames in between, and may take fewer lanes a beat for that.  What
comes faster than it goes waits behind `Deal`; in front of `Collect` it waits in the FIFO that every sink has.
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
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.streams import collect, deal, queue, queue_latency
from hdl.tensor import Kind, Port, Tensor, Tile

# beats that wait at a copy beside those that its pace makes
SLACK = 4


@dataclass(frozen=True, kw_only=True)
class _InTurns(Layer):
    """What both ends have in common.  Raises `ShapeError` for copies that get no frame of a batch."""

    # of the map, as its edge has it
    shape: tuple[int, ...]
    copies: int = 2
    kind: Kind = Kind.ACTIVATION
    # whose batches are dealt
    recipe: Recipe = field(default_factory=Recipe)
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    lanes: int = 1
    # of as many frames as they add up to, those of each copy; none: one each
    shares: tuple[int, ...] = field(default=(), metadata=QUIET)

    def __post_init__(self) -> None:
        if not 2 <= self.copies <= self.recipe.batch:
            raise ShapeError(
                f"{type(self).__name__}: {self.recipe.batch} frames a batch can't be dealt out to {self.copies} copies",
                f"take 2 to {self.recipe.batch}",
            )
        try:
            self._of_copy(0)
        except ValueError as error:
            raise ShapeError(f"{type(self).__name__}: {error}", "take shares that are nearer to one another") from None
        if self.kind.per_batch:
            raise ShapeError(f"{type(self).__name__}: a tensor of kind {self.kind.value} comes once a batch, not dealt")

    def _port(self, name: str) -> Port:
        return Port(name, Tensor(self.shape, self.x_fixed, self.kind), self.lanes)

    def _ports_of_copies(self, name: str) -> tuple[Port, ...]:
        return tuple(self._port(f"{name}{copy}") for copy in range(self.copies))

    def _of_copy(self, copy: int) -> Dealt:
        """The frames of a copy."""
        batch, staleness = self.recipe.batch, self.recipe.staleness
        return Dealt(copy=copy, copies=self.copies, batch=batch, staleness=staleness, shares=self.shares)

    @property
    def round_of_turns(self) -> tuple[int, ...]:
        """Which copy gets each frame of a batch; after these they come again."""
        return self._of_copy(0).turns

    def _places(self, frames: int) -> list[IntArray]:
        """Of each copy, which of so many frames from the first one of a batch on are its own."""
        order = np.resize(np.resize(np.array(self.round_of_turns), self.recipe.batch), frames)
        return [np.flatnonzero(order == copy) for copy in range(self.copies)]

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
        """Copies that divide a batch and that don't, of one frame each; a beat a frame; two pixels a beat; shares of
        unlike size that fill batches and that don't."""
        return (
            cls(shape=(2, 2, 4), recipe=Recipe(batch=4), lanes=2),
            cls(shape=(1, 3, 2), copies=3, kind=Kind.ERROR, recipe=Recipe(batch=5)),
            cls(shape=(1, 1, 4), copies=3, kind=Kind.STASH, recipe=Recipe(batch=3), lanes=4),
            cls(shape=(2, 3, 2), recipe=Recipe(batch=3), lanes=4),
            cls(shape=(1, 3, 2), recipe=Recipe(batch=5), shares=(3, 2)),
            cls(shape=(1, 1, 2), copies=3, recipe=Recipe(batch=8), lanes=2, shares=(1, 4, 2)),
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
        """Beats of a copy's frames that wait, the most of any copy, so that they come in an interval each, and go as
        evenly as it gets a share of all."""
        beats, turns = self.cycles_per_frame, self.round_of_turns
        most = 0
        for copy in range(self.copies):
            own, count = [place for place, one in enumerate(turns * 2) if one == copy], turns.count(copy)
            # from the first of some frames that come on to the last one
            spans = ((last, own[first + last] - own[first] + 1) for first in range(count) for last in range(count))
            most = max(most, *((last + 1) * beats - span * count * beats // len(turns) for last, span in spans))
        return most + SLACK

    @property
    def pipeline_cycles(self) -> int:
        """The queue's."""
        return queue_latency(self.waiting_beats)

    def waiting(self, source: str) -> int:
        """What the queue holds."""
        del source
        return self.waiting_beats

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Its frames to each."""
        del state
        return {f"y{copy}": inputs["x"][own] for copy, own in enumerate(self._places(len(inputs["x"])))}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Its frames to each."""
        del state
        return {f"y{copy}": inputs["x"][own] for copy, own in enumerate(self._places(len(inputs["x"])))}

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
        return {"y": self._in_turn([inputs[port.name] for port in self.sinks])}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """One frame of each in turn."""
        del state
        return {"y": self._in_turn([inputs[port.name] for port in self.sinks])}

    def _in_turn(self, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Frames of all copies, each where it was."""
        frames = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
        for own, part in zip(self._places(len(frames)), parts, strict=True):
            frames[own] = part
        return frames

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.streams.collect`."""
        del images
        xs = [streams[port.name] for port in self.sinks]
        return collect(
            domain, xs, streams["y"], turn=self.cycles_per_frame, turns=self.recipe.batch, taking=self.round_of_turns
        )


@block
def deal_frames(domain: ClockReset, x: Stream, ys: Sequence[Stream], *, cfg: Deal) -> Instances:
    """See `hdl.streams.deal`; a queue in front of each copy.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        ys: out, streams as wide as ``x``.
    """
    dealt = [Stream(x.width) for _ in ys]
    turns = deal(domain, x, dealt, turn=cfg.cycles_per_frame, turns=cfg.recipe.batch, taking=cfg.round_of_turns)
    waits = [queue(domain, dealt[i], ys[i], depth=cfg.waiting_beats) for i in range(len(ys))]
    return turns, waits
