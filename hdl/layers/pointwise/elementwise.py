"""Layers whose ports carry one map of (height, width, channels), ``lanes`` elements a beat, one beat a cycle.

`ElementWise` is any such layer, `OfMap` one of an activation ``x``, `ToMap` one that makes an error ``dx``.  `Unary`
has one sink and one source and keeps nothing for the way back, `UnaryError` is its way back.  `Multiplying` rounds
products, `BesideVector` a port with one number a channel.  All are abstract.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from hdl.engine.arithmetic.products import check_bits
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.folding import frame_lanes
from hdl.layers.meaning import Tape
from hdl.layers.shape import RowPart
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor, Tile


@dataclass(frozen=True, kw_only=True)
class ElementWise(Layer):
    """A layer whose ports all carry the same map, unless a subclass says otherwise of one."""

    height: int
    width: int
    channels: int
    # elements a beat
    lanes: int = 1

    # of two values that vary, an element
    products: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.channels) < 1:
            raise ShapeError(f"{type(self).__name__}: dimensions {self.shape} must be positive")
        if self.lanes < 1 or not self.has_beats(self.lanes):
            raise FoldingError(f"{type(self).__name__}: {self.lanes} lanes do not divide {self.channels} channels")

    def has_beats(self, lanes: int) -> bool:
        """Whether a beat may have so many elements."""
        return self.channels % lanes == 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.height, self.width, self.channels

    @property
    def map(self) -> dict[str, Any]:
        """height, width, channels, as fields of another layer."""
        return {"height": self.height, "width": self.width, "channels": self.channels}

    @property
    def elements(self) -> int:
        """Elements of a frame."""
        return self.height * self.width * self.channels

    @property
    def pixel_beats(self) -> int:
        """Beats a pixel."""
        return self.channels // self.lanes

    def map_port(self, name: str, kind: Kind) -> Port:
        """A port that carries the map, in the format of the field ``<name>_fixed``."""
        return Port(name, Tensor(self.shape, getattr(self, f"{name}_fixed"), kind), self.lanes)

    @property
    def multipliers(self) -> int:
        """One a product and lane."""
        return self.products * self.lanes

    @property
    def macs(self) -> int:
        """Every product of a frame."""
        return self.products * self.elements

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle."""
        return self.elements // self.lanes

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest lanes that pass a frame in time."""
        del tile
        return self.with_lanes(cycles, lanes=self.shape)

    @property
    def pipeline_cycles(self) -> int:
        """One register."""
        return 1

    def rows_alone(self, first: int, end: int) -> RowPart:
        """`row_part` of a layer to which rows are nothing to one another."""
        taken = (port.name for port in self.sinks if not port.tensor.kind.per_batch)
        return RowPart(dataclasses.replace(self, height=end - first), dict.fromkeys(taken, (first, end)))


@dataclass(frozen=True, kw_only=True)
class OfRows(ElementWise):
    """A layer to which a row is so many beats, whatever they hold: a part of a pixel, or several of them."""

    def has_beats(self, lanes: int) -> bool:
        """Also whole pixels that divide a row."""
        pixels, part = divmod(lanes, self.channels)
        return super().has_beats(lanes) or (part == 0 and self.width % pixels == 0)

    @property
    def row_beats(self) -> int:
        """Beats a row."""
        return self.width * self.channels // self.lanes

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest lanes that pass a frame in time: of several pixels where parts of the map are faster together than
        the pixel a cycle that each of them takes at most.  Raises `FoldingError`."""
        del tile
        lanes = frame_lanes(self.elements, self.channels, cycles, self.width)
        return dataclasses.replace(self, lanes=lanes).in_time(cycles, f"{self.shape}: all pixels of a row")


@dataclass(frozen=True, kw_only=True)
class OfMap(ElementWise):
    """Sink ``x``, an activation unless a subclass has a field ``kind``."""

    @property
    @abstractmethod
    def x_fixed(self) -> Fixed:
        """Format of x: a field of the subclass."""

    @property
    def kind(self) -> Kind:
        """What x is."""
        return Kind.ACTIVATION

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (self.map_port("x", self.kind),)


@dataclass(frozen=True, kw_only=True)
class ToMap(ElementWise):
    """Source ``dx``, the error of an activation."""

    @property
    @abstractmethod
    def dx_fixed(self) -> Fixed:
        """Format of dx: a field of the subclass."""

    @property
    def sources(self) -> tuple[Port, ...]:
        """dx."""
        return (self.map_port("dx", Kind.ERROR),)


@dataclass(frozen=True, kw_only=True)
class Multiplying(ElementWise):
    """A product an element; results are exact, then rounded once into the format of the one source."""

    products: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(type(self).__name__, self.exact.width)

    @property
    @abstractmethod
    def exact(self) -> Fixed:
        """Format of a result before it is rounded."""

    @property
    def cut(self) -> int:
        """Bits that the rounding takes off a result."""
        (source,) = self.sources
        return self.exact.fraction_bits - source.tensor.fixed.fraction_bits


@dataclass(frozen=True, kw_only=True)
class BesideVector(ElementWise):
    """A map, and a vector of (1, 1, channels) whose lanes are the field ``vector_lanes`` of the subclass."""

    @property
    def pixels(self) -> int:
        """Pixels of the map."""
        return self.height * self.width

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle, of the map and of the vector."""
        return self.most_beats

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest lanes that pass the map, and the fewest that pass the vector, in time."""
        del tile
        return self.with_lanes(cycles, lanes=self.shape, vector_lanes=(1, 1, self.channels))


@dataclass(frozen=True, kw_only=True)
class _OneToOne(ElementWise):
    """One stream in, one out.  A subclass states `engine`."""

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """`engine`."""
        del images
        (sink,), (source,) = self.sinks, self.sources
        return self.engine(domain, streams[sink.name], streams[source.name])

    @abstractmethod
    def engine(self, domain: ClockReset, given: Stream, made: Stream) -> Instances:
        """The circuit from the one stream to the other, a `myhdl.block`."""


@dataclass(frozen=True, kw_only=True)
class Unary(_OneToOne, OfMap):
    """Sink ``x``, source ``y``, of one map unless a subclass says otherwise; keeps nothing for the way back.

    A subclass states its parameters, `golden`, `reference`, `error` and `engine`."""

    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.map_port("y", Kind.ACTIVATION),)

    def backward(self, tape: Tape) -> None:
        """The error through `error`."""
        if tape.needs_error("x"):
            tape.give_error("x", tape.add("error", self.error(), {"e": tape.error("y")})["dx"])

    @abstractmethod
    def error(self) -> UnaryError:
        """The layer that turns the error of y into that of x."""


@dataclass(frozen=True, kw_only=True)
class UnaryError(_OneToOne, ToMap):
    """The way back: sink ``e``, source ``dx``, of one map unless a subclass says otherwise.

    A subclass states its parameters, `golden`, `reference` and `engine`."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    dx_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e."""
        return (self.map_port("e", Kind.ERROR),)
