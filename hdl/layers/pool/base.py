"""What pools share whose window is smaller than the map: lanes and taps of the engine, its order of work, folding."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from hdl.engine.arithmetic.mac import tree_levels
from hdl.engine.window.strips import made_cycles, result_strips
from hdl.engine.window.walk import Walk
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.folding import divisors, lanes_for
from hdl.layers.windowed import Windowed
from hdl.strips import Strips
from hdl.tensor import Kind, Port, Tensor

# upper bound on the cycles of adapters, memories, comparisons, sums, products, rounding and output queue
PIPELINE = 48
ERROR = Fixed(16, 12)
# fields of the window
WINDOW_FIELDS = ("kernel", "stride", "padding", "dilation")


@dataclass(frozen=True, kw_only=True)
class WindowPool(Windowed):
    """A pool of either direction."""

    # channels and taps that the engine handles a cycle
    engine_lanes: int = 1
    engine_taps: int = 1

    def __post_init__(self) -> None:
        self.check_shape()
        if not self.covered:
            raise ShapeError(
                f"{self.name}, stride {self.stride}, padding {self.padding}: a window lies wholly in the padding",
                "make the padding smaller than the kernel",
            )
        if self.engine_lanes < 1 or self.channels % self.engine_lanes:
            raise FoldingError(f"{self.name}: {self.engine_lanes} engine lanes do not divide {self.channels} channels")
        if self.engine_taps not in self.tap_groups:
            raise FoldingError(
                f"{self.name}, stride {self.stride}: {self.engine_taps} taps a cycle are impossible",
                f"choose one of {self.tap_groups}",
            )

    @property
    def covered(self) -> bool:
        """Whether every window has something to say: a tap in the map."""
        return bool(self.window.patches(np.ones((1, *self.input_shape[:2], 1), np.int64)).any(axis=3).all())

    @property
    def walk(self) -> Walk:
        """The order of work."""
        return self.channel_walk(self.engine_lanes, self.engine_taps)

    def fold_with(self, cycles: int, lanes: Mapping[str, tuple[int, int, int]]) -> Self:
        """With the cheapest engine; ``lanes`` maps fields to shapes of maps."""
        fields = {name: lanes_for(h * w * c, c, cycles) for name, (h, w, c) in lanes.items()}
        engines = [
            (width * taps, taps, width)
            for width in divisors(self.channels)
            for taps in self.tap_groups
            if max((walk := self.channel_walk(width, taps)).cycles, walk.words) <= cycles
        ]
        if engines:
            _, taps, width = min(engines)
            folded = dataclasses.replace(self, engine_lanes=width, engine_taps=taps, **fields)  # type: ignore[arg-type]
            folded = folded.widened(cycles)
            if folded.cycles_per_frame <= cycles:
                return folded
        raise FoldingError(f"{self.name} can't be done in {cycles} cycles a frame", "allow more cycles")

    @property
    def pipeline_cycles(self) -> int:
        """The work of all rows that one stored row may have held up, and the pipeline."""
        return self.walk.waiting_cycles + PIPELINE

    @property
    def strips(self) -> Strips:
        """Rows of the result."""
        stores, gives = (
            {port.name: (port, self.engine_lanes) for port in ports} for ports in (self.sinks, self.sources)
        )
        rings = {name: self.ring_rows(name) for name in stores}
        return result_strips(self.walk, stores, gives, rings, self._sum_cycles, self.rounding_cycles)

    @property
    def _sum_cycles(self) -> int:
        """From the words of the ring to what one operation finds."""
        return 1 + tree_levels(self.walk.taps)

    @property
    def words_along(self) -> Mapping[str, int]:
        """Of the results."""
        return {port.name: self.engine_lanes for port in self.sources}

    @property
    def made_cycles(self) -> int:
        """As `strips` has it."""
        return made_cycles(self._sum_cycles, self.rounding_cycles)

    @property
    @abstractmethod
    def rounding_cycles(self) -> int:
        """Cycles from an exact result to a rounded one."""


@dataclass(frozen=True, kw_only=True)
class PoolOfMap(WindowPool):
    """The way forward: sink ``x``, an activation."""

    @property
    @abstractmethod
    def x_fixed(self) -> Fixed:
        """Format of x: a field of the subclass."""

    @property
    @abstractmethod
    def x_lanes(self) -> int:
        """Elements of x a beat: a field of the subclass."""

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (Port("x", Tensor(self.input_shape, self.x_fixed, Kind.ACTIVATION), self.x_lanes),)


@dataclass(frozen=True, kw_only=True)
class WindowPoolError(WindowPool):
    """The way back: source ``dx``, as large as the map that was pooled."""

    transposed: ClassVar[bool] = True

    # of all sinks
    e_lanes: int = 1
    dx_lanes: int = 1
    e_fixed: Fixed = ERROR
    dx_fixed: Fixed = ERROR

    @property
    def sources(self) -> tuple[Port, ...]:
        """dx."""
        return (Port("dx", Tensor(self.input_shape, self.dx_fixed, Kind.ERROR), self.dx_lanes),)
