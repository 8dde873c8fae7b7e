"""What a layer keeps elsewhere and works on: sums of gradients under way, masters and momenta of an update.

    y(0), y(1), … = what stands here at the start, then x(0), x(1), …

FPDeep keeps partial sums and gradients in block memories of neighbours (Wang, Geng et al., IEEE TC 2020, section 3.4
and Fig. 6); this is the same contract as a ring in DRAM has (`hdl.dram.store.DramFifo`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from hdl.errors import ShapeError
from hdl.fixed import FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.beats import to_beats
from hdl.layers.meaning import State
from hdl.layers.store.base import Store
from hdl.layers.store.block_store import BlockStore, block_store
from hdl.recipe import LoadedRecipe, Recipe
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tile


@dataclass(frozen=True, kw_only=True)
class RingStore(Store):
    """Sink ``x``, source ``y``: tensors come back in the order in which they left.  A beat a cycle.

    Raises `ShapeError` where more stands there at the start than there is room for."""

    # STATE: once a batch; SUMS: once a frame
    kind: Kind = Kind.SUMS
    # tensors that there is room for, and that stand there at the start
    capacity: int = 2
    preload: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in (Kind.SUMS, Kind.STATE):
            raise ShapeError(f"{self.title} can't keep what is {self.kind.value}", "it keeps sums or state")
        if not 0 <= self.preload <= self.capacity or self.capacity < 1:
            raise ShapeError(f"{self.title}: room for {self.capacity} tensors can't start with {self.preload}")

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (self.kept_port("x", self.kind),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.kept_port("y", self.kind),)

    @property
    def built(self) -> Self:
        """Nor batches."""
        recipe = Recipe() if self.first_tensors == self.preload else LoadedRecipe.of(Recipe())
        return dataclasses.replace(super().built, recipe=recipe)

    @property
    def first_tensors(self) -> int:
        """That stand there at the start: none where state is loaded."""
        return 0 if self.recipe.loaded else self.preload

    @property
    def keeps_state(self) -> bool:
        """Sums are none: of a whole batch none are left."""
        return self.preload > 0

    @cached_property
    def store(self) -> BlockStore:
        """As chosen."""
        return BlockStore(beats=self.cycles_per_batch, tensors=self.capacity, preload=self.first_tensors)

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Zeros; in a graph, what the layer whose memory it is starts with (`dagtrain.graph.stores`)."""
        del parameters
        return {"held": [np.zeros(self.shape, np.int64)] * self.preload}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """Zeros."""
        return self.start(parameters)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The tensors before."""
        x = inputs["x"]
        came = [x] if self.once_a_batch else [*x]
        queue = [*state["held"], *came]
        leaving, state["held"] = queue[: len(came)], queue[len(came) :]
        return {"y": leaving[0] if self.once_a_batch else np.stack(leaving)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Likewise."""
        return self.golden(state, inputs)  # type: ignore[arg-type, return-value]

    @property
    def closeness(self) -> dict[str, float]:
        """Nothing is rounded."""
        return {"y": 0.5}

    # ---- hardware

    def images(self, state: State) -> dict[str, list[int]]:
        """What stands here, the next one to leave first."""
        held = state["held"]
        return self.holding(to_beats(self, "y", np.stack(held)) if held else [])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.layers.store.block_store`."""
        return block_store(domain, streams["x"], streams["y"], store=self.store, contents=(images or {}).get("held"))

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Sums and state, tiles, ragged ones too, a vector.

        One that starts with a tensor has it left after the traffic: tests/test_stores.py has those."""
        recipe = Recipe(batch=4, seed=3)
        return (
            cls(shape=(6, 4, 3, 3), tile=Tile(2, 2, 3), w_lanes=4, recipe=recipe),
            cls(shape=(5, 4, 1, 1), tile=Tile(2, 2), w_lanes=2, recipe=recipe, kind=Kind.STATE, capacity=1),
            cls(shape=(6,), recipe=Recipe(batch=2), capacity=1),
        )
