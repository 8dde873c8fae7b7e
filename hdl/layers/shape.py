"""A layer from outside: its ports, their formats, the order of their streams."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Self

from hdl.fixed import Fixed, IntArray
from hdl.tensor import Kind, Port, Tile


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

    def stream_tile(self, port: str) -> Tile | None:
        """The tile in whose order the tensor of a port passes; None where it passes in its own order."""
        del port
        return None

    def stream_order(self, port: str) -> IntArray | None:
        """Stream position -> flat index in the tensor, or `hdl.tensor.EMPTY`; None where they are the same."""
        tile = self.stream_tile(port)
        return None if tile is None else tile.order(self.port(port).tensor.shape)
