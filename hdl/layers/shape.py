"""A layer from outside: its ports, their formats, the order of their streams."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from hdl.engine.codec.coding import Coding
from hdl.fixed import Fixed, IntArray
from hdl.tensor import Kind, Port, Tile

if TYPE_CHECKING:
    from hdl.layers.base import Layer


@dataclass(frozen=True)
class RowPart:
    """A layer for some rows of its map."""

    layer: Layer
    # sink of frames -> first row that it takes, and the row behind the last
    needs: Mapping[str, tuple[int, int]]


class Shape(ABC):
    """Ports.  Number formats are fields of the layer named ``<port>_fixed``."""

    @property
    @abstractmethod
    def sinks(self) -> tuple[Port, ...]:
        """Input ports; weight sinks included."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Port, ...]:
        """Output ports; stash outputs (mask, index …) included."""

    @property
    def held_parameters(self) -> tuple[Port, ...]:
        """Frozen parameters, as ports that the circuit has not: their first values stand in its images for ever."""
        return ()

    def port(self, name: str) -> Port:
        """The port of that name, or what is held under it."""
        return self._ports[name]

    @cached_property
    def _ports(self) -> dict[str, Port]:
        """By name: passes ask for each many times."""
        return {port.name: port for port in (*self.held_parameters, *self.sources, *self.sinks)}

    def trained(self) -> tuple[str, ...]:
        """Weight sinks."""
        return tuple(port.name for port in self.sinks if port.tensor.kind is Kind.WEIGHT)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of parameters, trained and held, by weight sink, as ONNX writes them."""
        return {
            name: self.port(name).tensor.shape
            for name in (*self.trained(), *(port.name for port in self.held_parameters))
        }

    def with_formats(self, formats: Mapping[str, Fixed]) -> Self:
        """This layer with other number formats; ports whose format follows from others are left alone."""
        names = {field.name for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        chosen = {f"{port}_fixed": fixed for port, fixed in formats.items() if f"{port}_fixed" in names}
        return dataclasses.replace(self, **chosen)  # type: ignore[type-var]

    def narrowed(self, filters: int) -> Self | None:
        """This layer with so many channels of its source ``y``, before folding; None where it can't be split.

        Its parameters are slices of this layer's along their first axis, and its channels those of that slice."""
        del filters
        return None

    def summand(self, channels: int) -> Self | None:
        """One of several layers, over so many channels of sink ``x``, that sum to this one; None where it is no sum.

        Its parameters are slices of this layer's along their second axis, and its channels those of that slice."""
        del channels
        return None

    @property
    def rows_made(self) -> int:
        """Rows that `row_part` deals out: of what is made with every frame, or else of the error that is summed."""
        per_frame = [[port for port in ports if not port.tensor.kind.per_batch] for ports in (self.sources, self.sinks)]
        made, taken = per_frame
        return made[0].tensor.shape[0] if made else taken[-1].tensor.shape[0]

    def row_part(self, first: int, end: int) -> RowPart | None:
        """What makes the rows from ``first`` to before ``end``, of `rows_made`, to the bits that this layer makes of
        them, before folding; None where rows can't be made apart.

        Of gradients: the sums over these rows of errors.  Raises `ShapeError` where so few rows can't."""
        del first, end
        return None

    def coding(self, source: str) -> Coding | None:
        """How what leaves at a source is coded where it crosses the network; None: as it is."""
        del source
        return None

    def passed_on(self, source: str) -> str | None:
        """The sink whose tensors leave at a source as they came; None where none does."""
        del source
        return None

    def stream_tile(self, port: str) -> Tile | None:
        """The tile in whose order the tensor of a port passes; None where it passes in its own order."""
        del port
        return None

    def stream_order(self, port: str) -> IntArray | None:
        """Stream position -> flat index in the tensor, or `hdl.tensor.EMPTY`; None where they are the same."""
        tile = self.stream_tile(port)
        return None if tile is None else tile.order(self.port(port).tensor.shape)
