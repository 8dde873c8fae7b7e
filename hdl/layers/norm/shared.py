"""What the forward and the backward layer of online normalisation share."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from hdl.engine.norm.numbers import INVERSE_BITS
from hdl.engine.norm.shapes import BackwardShape, ForwardShape
from hdl.engine.weights.sections import joined_words, pieces_of, split_words
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.beats import unpack
from hdl.layers.folding import divisors, lanes_for, weight_lanes
from hdl.layers.meaning import State
from hdl.layers.storage import Memory
from hdl.recipe import Recipe
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor, Tile

DATA = Fixed(16, 8)
WEIGHT = Fixed(16, 12)
ERROR = Fixed(16, 12)
INVERSE = Fixed(INVERSE_BITS, 14, signed=False)


@dataclass(frozen=True, kw_only=True)
class NormLayer(Layer):
    """What both engines share."""

    # whether scale and shift stay as they are: no sinks for them, a memory that nobody writes, no gradients; statistics
    # and the control of errors go on
    frozen: bool = field(default=False, metadata=QUIET)
    height: int
    width: int
    channels: int
    recipe: Recipe = field(default_factory=Recipe)
    # channels a beat of maps
    lanes: int = 1
    # channels a cycle inside, a multiple of `lanes`; 0: as lanes
    core_lanes: int = 0
    # channels a beat of the inverses
    inverse_lanes: int = 1
    # elements a beat of weights or gradients
    w_lanes: int = 1
    # distinguishes the random bits of this layer's gradients from others
    tensor_id: int = 0
    # added to the variance
    epsilon: float = 1e-5
    # whether products with constants, and squares, are made by multipliers instead of adders
    multiplied: bool = field(default=False, metadata=QUIET)
    # whether what is done once a frame and channel is done for as few channels at a time as the pace leaves time for
    statistics_shared: bool = field(default=False, repr=False, metadata=QUIET)
    # channels for which it is done at a time; 0: all of a cycle
    statistic_lanes: int = field(default=0, metadata=QUIET)

    def __post_init__(self) -> None:
        name = f"{type(self).__name__} {self.height}x{self.width}x{self.channels}"
        if min(self.height, self.width, self.channels) < 1:
            raise ShapeError(f"{name}: all dimensions must be positive")
        if self.lanes < 1 or self.channels % self.lanes:
            raise FoldingError(f"{name}: {self.lanes} lanes do not divide {self.channels} channels")
        if self.core % self.lanes or self.channels % self.core:
            raise FoldingError(
                f"{name}: {self.core} core lanes must be a multiple of {self.lanes} lanes and divide {self.channels} "
                "channels"
            )
        if self.w_lanes < 1 or self.core % self.w_lanes:
            raise FoldingError(f"{name}: {self.w_lanes} weight lanes do not divide {self.core} core lanes")
        if self.statistic_lanes < 0 or self.core % (self.statistic_lanes or self.core):
            raise FoldingError(
                f"{name}: statistics of {self.statistic_lanes} channels at a time do not divide {self.core} core lanes"
            )
        if self.inverse_lanes < 1 or self.channels % self.inverse_lanes:
            raise FoldingError(f"{name}: {self.inverse_lanes} inverse lanes do not divide {self.channels} channels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the map."""
        return self.height, self.width, self.channels

    @property
    def pixels(self) -> int:
        """Elements over which statistics of one frame are taken."""
        return self.height * self.width

    @property
    def groups(self) -> int:
        """Cycles a pixel."""
        return self.channels // self.core

    @property
    def core(self) -> int:
        """Channels a cycle inside."""
        return self.core_lanes or self.lanes

    @property
    def adapter_cycles(self) -> int:
        """Of width adapters at both ends."""
        return 2 if self.core != self.lanes else 0

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle, but no faster than the statistics or the control process (see `engine`)."""
        return max(self.engine.cycles, self.pixels * self.channels // self.lanes)

    @property
    @abstractmethod
    def engine(self) -> ForwardShape | BackwardShape:
        """What the circuit is built from."""

    @property
    def engine_fields(self) -> dict[str, Any]:
        """Fields of `engine` of either direction."""
        return {
            "recipe": self.recipe,
            "groups": self.groups,
            "lanes": self.core,
            "beat_cycles": self.core // self.lanes,
            "multiplied": self.multiplied,
            "statistic_lanes": self.statistic_lanes,
        }

    @property
    @abstractmethod
    def block(self) -> Callable[..., Instances]:
        """The `myhdl.block` between all ports, in their order."""

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """`block` of `engine`."""
        ports = [streams[port.name] for port in (*self.sinks, *self.sources, *self.beside)]
        return self.block(domain, *ports, shape=self.engine, images=images)

    @property
    def pair_shape(self) -> tuple[int, int, int]:
        """Of what has one number a channel and frame."""
        return 1, 1, self.channels

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """Lanes of the ports by `lanes_for`, so that both ends agree; inside as many as the once-a-frame work needs."""
        del tile
        lanes = lanes_for(self.pixels * self.channels, self.channels, cycles)
        inverse_lanes = lanes_for(self.channels, self.channels, cycles)
        w_lanes = weight_lanes(self.channels, 1, cycles)
        for core in divisors(self.channels):
            if core % lanes == 0:
                folded = self.with_core(core, cycles, lanes=lanes, inverse_lanes=inverse_lanes, w_lanes=w_lanes)
                if folded.cycles_per_frame <= cycles:
                    return folded
        raise FoldingError(
            f"{type(self).__name__} {self.shape} needs {folded.cycles_per_frame} cycles a frame with {folded.core} "
            f"lanes, more than {cycles}",
            "allow more cycles or raise the recipe's norm_lag",
        )

    def with_core(self, core: int, cycles: int, **ports: int) -> Self:
        """With so many channels a cycle inside, and, if so chosen, statistics of the fewest at a time that keep to the
        pace."""
        folded = dataclasses.replace(self, core_lanes=core, statistic_lanes=0, **ports)  # type: ignore[arg-type]
        if not self.statistics_shared:
            return folded
        variants = (dataclasses.replace(folded, statistic_lanes=lanes) for lanes in divisors(core))
        return next((each for each in variants if each.cycles_per_frame <= cycles), folded)

    @property
    @abstractmethod
    def weight_ports(self) -> tuple[Port, ...]:
        """What comes once a batch, as sinks or held."""

    @property
    def held_parameters(self) -> tuple[Port, ...]:
        """Scale and shift, if they are frozen."""
        return self.weight_ports if self.frozen else ()

    def _vector(self, name: str, fixed: Fixed) -> Port:
        """A weight a channel."""
        return Port(name, Tensor((self.channels,), fixed, Kind.WEIGHT), self.w_lanes)

    # ---- state that is loaded and dumped

    @property
    def accessed(self) -> bool:
        """What advances once a frame."""
        return self.recipe.loaded

    def state_words(self, state: State) -> list[int]:
        """All memories but that of the weights, the table last, words in pieces of 64 bits."""
        images = self.images(state)
        return [word for memory in self._loaded for word in split_words(images[memory.name], memory.width)]

    def _memory_words(self, words: Sequence[int]) -> dict[str, list[int]]:
        """By name, what memories hold of a state."""
        found, at = {}, 0
        for memory in self._loaded:
            size = memory.depth * pieces_of(memory.width)
            found[memory.name] = joined_words(words[at : at + size], memory.width)
            at += size
        return found

    @property
    def _loaded(self) -> list[Memory]:
        return [memory for memory in self.memories() if memory.name != "weights"]

    def _table(self, words: Sequence[int], low: Fixed, high: Fixed) -> list[tuple[IntArray, IntArray]]:
        """Numbers of ``low`` and ``high`` of each frame of the table, by channel."""
        bits = self.core * low.width
        lows = unpack([word & (1 << bits) - 1 for word in words], low, self.core).reshape(-1, self.channels)
        highs = unpack([word >> bits for word in words], high, self.core).reshape(-1, self.channels)
        return list(zip(lows, highs, strict=True))

    @property
    def versions(self) -> int:
        """Of scale and shift, on chip."""
        return 1 if self.frozen else 2

    def _weights(self, state: State, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Of the batch, in the order of `weight_ports`."""
        given = state["held"] if self.frozen else inputs
        return tuple(given[port.name] for port in self.weight_ports)

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps frozen weights."""
        return {"held": parameters} if self.frozen else {}

    def _split(self, state: State, frames: int, weights: Sequence[Any]) -> list[tuple[int, Any]]:
        """(frame, weights) for each frame of the batch: the first ``staleness`` frames see the version before."""
        previous = state.get("previous", weights)
        state["previous"] = tuple(weights)
        return [(t, previous if t < self.recipe.staleness else weights) for t in range(frames)]

    def keep_stale(self, state: State, weights: Mapping[str, IntArray]) -> None:
        """In the order of `weight_ports`."""
        state["previous"] = tuple(weights[port.name] for port in self.weight_ports)

    def _versions(self, state: State, weights: tuple[IntArray, ...]) -> list[list[IntArray]]:
        """The version before and the newest of all weights; what `_split` does, for kernels."""
        previous = state.get("previous", weights)
        state["previous"] = weights
        return [[np.ascontiguousarray(weight) for weight in version] for version in (previous, weights)]

    def _unrolled(self, state: State, frames: int) -> tuple[IntArray, IntArray]:
        """Both tables by frame: those that are known, and room for the ones that ``frames`` frames make."""
        known = state["tables"]
        tables = np.empty((2, len(known) + frames, self.channels), np.int64)
        for t, pair in enumerate(known):
            tables[:, t] = pair
        return tables[0], tables[1]


LANES = ("lanes", "core_lanes", "inverse_lanes", "w_lanes")
# fields that mean the same in both engines
SHARED_FIELDS = ("frozen", "height", "width", "channels", "recipe", "tensor_id", "epsilon", *LANES)


def example_fields() -> list[dict[str, Any]]:
    """Fields of examples of both engines."""
    recipe = Recipe(batch=3, staleness=1, seed=5)
    return [
        {"height": 3, "width": 3, "channels": 4, "lanes": 2, "w_lanes": 2, "recipe": recipe, "tensor_id": 9},
        {"height": 4, "width": 2, "channels": 8, "lanes": 2, "core_lanes": 4, "inverse_lanes": 2, "recipe": recipe},
        {"height": 2, "width": 2, "channels": 6, "recipe": Recipe(batch=2)},
        {"height": 4, "width": 4, "channels": 2, "recipe": Recipe(batch=2, norm_lag=0)},
        {"height": 1, "width": 1, "channels": 3, "recipe": Recipe(batch=2)},
        {"height": 1, "width": 1, "channels": 1, "recipe": Recipe(batch=1, norm_lag=2)},
        {
            "height": 8,
            "width": 8,
            "channels": 2,
            "lanes": 2,
            "inverse_lanes": 2,
            "recipe": Recipe(batch=2, staleness=2),
        },
        {"height": 1, "width": 1, "channels": 2, "recipe": Recipe(batch=4, norm_lag=4)},
        {
            "height": 5,
            "width": 2,
            "channels": 2,
            "x_fixed": Fixed(12, 9),
            "recipe": Recipe(batch=2, norm_forward_decay=0.9, norm_backward_decay=0.8),
        },
    ]
