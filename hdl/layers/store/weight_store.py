"""Weights that stand on another device than the engine that multiplies by them, or beside it in a node of their own.

    y(t) = w of version max(0, (t - staleness) // batch)

Two versions: one is written where the one before the last was, when the last frame has read that.  Frozen weights have
one version, which nobody writes.  As FPDeep keeps weights in block memories of neighbours (Wang, Geng et al., IEEE TC
2020, section 3.4); that they come once a frame is ours, as it is with weights in DRAM (`hdl.dram.store.DramReplay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hdl.fixed import FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.beats import pack
from hdl.layers.conv.versions import by_version
from hdl.layers.meaning import State
from hdl.layers.store.base import Store
from hdl.layers.store.block_store import BlockStore, block_store, constant_store
from hdl.recipe import Recipe
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tile, in_order


@dataclass(frozen=True, kw_only=True)
class WeightStore(Store):
    """Sink ``w`` (new weights, once a batch), source ``y`` (what a frame sees, once a frame), in the tile's order.

    Sends version 0, which stands in its image, from reset on, or where that is loaded, from when all of it has come.  A
    beat a cycle."""

    # whether the weights stay as they are: no sink ``w``, one version
    frozen: bool = field(default=False, metadata=QUIET)

    @property
    def weight(self) -> Port:
        """w, as a sink or held."""
        return self.kept_port("w", Kind.WEIGHT)

    @property
    def sinks(self) -> tuple[Port, ...]:
        """w, unless it is frozen."""
        return () if self.frozen else (self.weight,)

    @property
    def held_parameters(self) -> tuple[Port, ...]:
        """w, if it is frozen."""
        return (self.weight,) if self.frozen else ()

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.kept_port("y", Kind.REPLAY),)

    @property
    def keeps_state(self) -> bool:
        """Of weights that learn the update keeps it."""
        return self.frozen

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Nothing of the frame: all of it stands here."""
        del source, elements
        return {}

    @cached_property
    def store(self) -> BlockStore:
        """Two versions, or one."""
        beats, recipe = self.cycles_per_batch, self.recipe
        if self.frozen:
            return BlockStore(beats=beats, tensors=1, preload=1)
        preload = int(not recipe.loaded)
        return BlockStore(beats=beats, tensors=2, preload=preload, batch=recipe.batch, staleness=recipe.staleness)

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps the initial weights for the image."""
        return {"initial": self.fixed.encode(parameters["w"])}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """Likewise."""
        return {"initial": parameters["w"]}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The version that each frame sees."""
        batch = self.recipe.batch
        if self.frozen:
            return {"y": np.broadcast_to(state["initial"], (batch, *self.shape))}
        found = np.empty((batch, *self.shape), np.asarray(inputs["w"]).dtype)
        for frames, weights in by_version(state, inputs["w"], self.recipe):
            found[frames] = weights
        return {"y": found}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Likewise."""
        return self.golden(state, inputs)  # type: ignore[arg-type, return-value]

    # ---- hardware

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0, in the first place."""
        codes = in_order(state["initial"].reshape(-1), self.stream_order("y"))
        return self.holding(pack(codes, self.fixed.width, self.w_lanes))

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.layers.store.block_store`."""
        contents = (images or {}).get("held")
        if self.frozen:
            return constant_store(domain, streams["y"], store=self.store, contents=contents)
        return block_store(domain, streams["w"], streams["y"], store=self.store, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Tiles, ragged ones too, a vector, a tensor of one beat.

        Those with staleness offer frames of the version after the traffic, and frozen ones any number: they are tested
        in tests/test_stores.py."""
        recipe = Recipe(batch=4, seed=3)
        return (
            cls(shape=(6, 4, 3, 3), tile=Tile(2, 2, 3), w_lanes=4, recipe=recipe),
            cls(shape=(5, 4, 1, 1), tile=Tile(2, 2), w_lanes=2, recipe=recipe),
            cls(shape=(6,), w_lanes=2, recipe=Recipe(batch=1)),
            cls(shape=(4,), w_lanes=4, recipe=Recipe(batch=3)),
        )
