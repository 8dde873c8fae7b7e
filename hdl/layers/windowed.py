"""What layers share whose kernel slides over a map: convolution, depthwise convolution, pooling."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

from hdl.engine.window.convolution import RESULTS
from hdl.engine.window.pace import even_shares, unlike_strips, word_beats
from hdl.engine.window.walk import Axis, Walk
from hdl.errors import ShapeError
from hdl.layers.base import Layer
from hdl.layers.folding import divisors
from hdl.layers.shape import RowPart
from hdl.layers.window import Window
from hdl.spelling import QUIET
from hdl.streams import queue_latency
from hdl.tensor import Port


@dataclass(frozen=True, kw_only=True)
class InputMap(Layer):
    """The forward layer's input map."""

    height: int
    width: int
    channels: int

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of the forward layer's input."""
        return self.height, self.width, self.channels


@dataclass(frozen=True, kw_only=True)
class Windowed(InputMap):
    """A kernel on a map, and an engine that stores some rows of a map and works in the order of a `Walk`."""

    # rows, columns
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    # top, left, bottom, right
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    # distance of neighbouring taps along rows, columns
    dilation: tuple[int, int] = field(default=(1, 1), metadata=QUIET)

    # whether the engine stores the forward layer's output map and makes its input map
    transposed: ClassVar[bool] = False
    # whether padding may be negative, and cuts rows and columns off
    cuts: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """For messages."""
        return f"{type(self).__name__} {self.height}x{self.width}x{self.channels}, kernel {self.kernel}"

    def check_shape(self) -> None:
        """Raises `ShapeError`."""
        if min(*self.sizes, *self.kernel, *self.stride, *self.dilation) < 1:
            apart = "" if self.dilation == (1, 1) else f", dilation {self.dilation}"
            raise ShapeError(f"{self.name}: dimensions, kernel and stride {self.stride}{apart} must be positive")
        if (min(self.padding) < 0 and not self.cuts) or min(self.window.output) < 1:
            raise ShapeError(
                f"{self.name} with padding {self.padding} does not fit the map",
                "make the padding (none negative) or the map larger",
            )

    # ---- dimensions

    @property
    def sizes(self) -> tuple[int, ...]:
        """What must be positive, besides kernel and stride."""
        return self.input_shape

    @cached_property
    def window(self) -> Window:
        """The kernel on the forward layer's input map."""
        return Window(self.kernel, self.stride, self.padding, self.dilation, height=self.height, width=self.width)

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Shape of the forward layer's output."""
        return (*self.window.output, self.channels)

    @property
    def frame_ports(self) -> tuple[Port, ...]:
        """Ports of maps."""
        return tuple(port for port in (*self.sinks, *self.sources) if not port.tensor.kind.of_parameter)

    # ---- rows

    def row_part(self, first: int, end: int) -> RowPart | None:
        """With the rows of the stored map that these rows see, and of its padding what they see."""
        read, fields = self._rows_reading(first, end) if self.transposed else self._rows_read(first, end)
        stored = (port for port in self.sinks if not port.tensor.kind.per_batch)
        return RowPart(dataclasses.replace(self, **fields), {port.name: read for port in stored})

    def _rows_read(self, first: int, end: int) -> tuple[tuple[int, int], dict[str, Any]]:
        """Of the input map, rows that these output rows read; and fields of a layer that makes them of those alone."""
        start = first * self.stride[0] - self.padding[0]
        stop = (end - 1) * self.stride[0] - self.padding[0] + self.window.extent[0]
        low, high = max(0, start), min(self.height, stop)
        if high <= low:
            raise ShapeError(f"{self.name}: output rows {first} to {end - 1} see padding alone", "take fewer parts")
        return (low, high), self._with_rows(high - low, low - start, stop - high)

    def _rows_reading(self, first: int, end: int) -> tuple[tuple[int, int], dict[str, Any]]:
        """Output rows that read these input rows; and fields of a layer whose whole input they are."""
        (extent, _), stride, top = self.window.extent, self.stride[0], self.padding[0]
        low = max(0, -((extent - 1 - top - first) // stride))
        high = min(self.window.output[0], (end - 1 + top) // stride + 1)
        if high <= low:
            raise ShapeError(f"{self.name}: no window reads input rows {first} to {end - 1}", "take fewer parts")
        bottom = (high - 1) * stride + extent - top - end
        # rows behind the last window, fewer than a stride
        return (low, high), self._with_rows(end - first, top + first - low * stride, max(0, bottom))

    def _with_rows(self, height: int, top: int, bottom: int) -> dict[str, Any]:
        """Fields of a layer of so many input rows."""
        return {"height": height, "padding": (top, self.padding[1], bottom, self.padding[3])}

    # ---- order of work

    @property
    def tap_groups(self) -> list[int]:
        """How many taps a cycle are possible; parallel taps of an error engine need stride 1 along their axis."""
        groups = {1}
        if self.stride[1] == 1 or not self.transposed:
            groups.add(self.kernel[1])
            if self.stride[0] == 1 or not self.transposed:
                groups.add(self.window.taps)
        return sorted(groups)

    def parallel_taps(self, taps: int) -> tuple[int, int]:
        """Tap rows and columns of a cycle with so many taps."""
        return self.kernel if taps == self.window.taps else (1, taps)

    def axes(self, taps: int) -> tuple[Axis, Axis]:
        """Rows and columns of the stored map as an engine with ``taps`` taps a cycle reads them."""
        inputs, outputs, parallel = (self.height, self.width), self.window.output, self.parallel_taps(taps)
        stored, made = (outputs, inputs) if self.transposed else (inputs, outputs)

        def axis(at: int) -> Axis:
            before, dilation = self.padding[at], self.dilation[at]
            sizes = stored[at], made[at], self.kernel[at], self.stride[at]
            return Axis(*sizes, before, parallel[at], self.transposed, dilation)

        return axis(0), axis(1)

    def channel_walk(self, lanes: int, taps: int) -> Walk:
        """Pixel, group of ``lanes`` channels, taps: of an engine whose kernel slides over each channel by itself."""
        return Walk(*self.axes(taps), reduce=1, repeat=self.channels // lanes, group_steps=(0, 1))

    @property
    @abstractmethod
    def walk(self) -> Walk:
        """The order of work."""

    # ---- cycles and rows

    @property
    def cycles_per_frame(self) -> int:
        """Work, but no faster than any port, nor than one word of the stored map a cycle, nor than results of strips of
        unlike work leave."""
        return max(sum(self.strip_cycles), self.walk.words, *(port.beats for port in self.frame_ports))

    @property
    @abstractmethod
    def words_along(self) -> Mapping[str, int]:
        """Ports of maps that pass while their rows are at work: elements a word inside."""

    @property
    def made_cycles(self) -> int:
        """From the last operation on a result to the queue from which it leaves; asked of engines whose results differ
        in work."""
        raise NotImplementedError(f"{type(self).__name__}.made_cycles")

    @property
    def result_places(self) -> int:
        """Results on which work has ended and that have not left, at most."""
        return RESULTS

    @cached_property
    def strip_cycles(self) -> tuple[int, ...]:
        """Cycles of each strip in steady state: those of its work, or those in which what passes with it does."""
        walk, ports = self.walk, [(self.port(name), word) for name, word in self.words_along.items()]
        if not ports or walk.passes > 1:
            return tuple(walk.strip_cycles)
        if walk.phases == 1:
            beats = even_shares(max(port.beats for port, _ in ports), walk.rows.outputs)
            return tuple(max(pair) for pair in zip(walk.strip_cycles, beats, strict=True))
        # it leaves in the cycle after that in which it can first
        latency = self.made_cycles + queue_latency(RESULTS) + 1
        leaving = (word_beats(port.tensor.shape[-1], word, port.lanes) for port, word in ports)
        holds = tuple(max(beats) for beats in zip(*leaving, strict=True))
        return unlike_strips(walk, holds, latency, self.result_places)

    def widened(self, cycles: int) -> Self:
        """With more lanes for what passes while its rows are at work, if strips of unlike work take more than so many
        cycles with as few as the frame needs."""
        found = self
        if (
            self.walk.phases == 1
            and self.walk.cycles + sum(self.port(name).beats for name in self.words_along) <= cycles
        ):
            # no strip takes longer than its work and what passes with it after one another
            return self
        while sum(found.strip_cycles) > cycles >= found.walk.cycles:
            narrow = min((found.port(name) for name in found.words_along), key=lambda port: port.lanes)
            wider = [lanes for lanes in divisors(narrow.tensor.shape[-1]) if lanes > narrow.lanes]
            if not wider:
                break
            found = dataclasses.replace(found, **{f"{narrow.name}_lanes": wider[0]})  # type: ignore[arg-type]
        return found

    def ring_rows(self, stored: str) -> int:
        """Rows of the map at port ``stored`` that the engine holds, so that it keeps to its cycles."""
        port, walk = self.port(stored), self.walk
        row_beats = max(port.beats // walk.rows.stored, walk.row_words)
        return walk.ring_rows(row_beats, self.cycles_per_frame, self.strip_cycles)

    def rows_required(self, stored: str, source: str, elements: int) -> int:
        """Elements at port ``stored`` that must be there for ``elements`` of ``source``: whole rows."""
        rows = self.walk.rows
        row = (elements - 1) // (self.port(source).tensor.elements // rows.outputs)
        return rows.needs[row] * (self.port(stored).tensor.elements // rows.stored)
