"""Some rows and columns of a map; backwards, zeros where the others were.

    slice: y[i, j, c] = x[rows[i], columns[j], c]        pad: dx[rows[i], columns[j], c] = e[i, j, c], 0 elsewhere

Adaptive pooling is a pool of stride 1 of which some windows are read.  No value changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from myhdl import Signal, always, always_comb, block, intbv

from hdl.engine.arithmetic.tables import look_up, signal_for
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.elementwise import ElementWise, OfMap, ToMap
from hdl.memory import address_width
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, m2s_pipe
from hdl.tensor import Kind, Port, Tensor

# rows and columns of the examples of both directions
EXAMPLES: tuple[dict[str, Any], ...] = (
    {"height": 4, "width": 5, "channels": 4, "lanes": 2, "rows": (0, 3), "columns": (1, 2, 4)},
    {"height": 3, "width": 2, "channels": 3, "rows": (1,), "columns": (0, 1)},
    {"height": 1, "width": 1, "channels": 2, "lanes": 2, "rows": (0,), "columns": (0,)},
)


@dataclass(frozen=True, kw_only=True)
class _Pixels(ElementWise):
    """What both directions share: which rows and columns of the whole, ascending."""

    rows: tuple[int, ...] = (0,)
    columns: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, places, size in (("rows", self.rows, self.height), ("columns", self.columns, self.width)):
            if not places or list(places) != sorted({*places}) or places[0] < 0 or places[-1] >= size:
                raise ShapeError(
                    f"{type(self).__name__}: {what} {places} do not ascend within 0 to {size - 1}",
                    f"choose {what} of the map in their order",
                )

    @property
    def part_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the part."""
        return len(self.rows), len(self.columns), self.channels

    def part_port(self, name: str, fixed: Fixed, kind: Kind) -> Port:
        """A port that carries the part."""
        return Port(name, Tensor(self.part_shape, fixed, kind), self.lanes)

    @property
    def places(self) -> tuple[IntArray, IntArray]:
        """Index of the part's pixels in stacked frames, behind that of the frames."""
        rows, columns = np.ix_(self.rows, self.columns)
        return rows, columns

    @property
    def masks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """1 where a row, a column is of the part."""
        return (
            tuple(int(row in self.rows) for row in range(self.height)),
            tuple(int(column in self.columns) for column in range(self.width)),
        )


@dataclass(frozen=True, kw_only=True)
class PixelSlice(_Pixels, OfMap):
    """Sink ``x``, source ``y`` (rows, columns, channels), in the format of x."""

    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.part_port("y", self.x_fixed, Kind.ACTIVATION),)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All that comes before."""
        del source
        pixel, beat = divmod(-(-elements // self.lanes) - 1, self.pixel_beats)
        row, column = divmod(pixel, len(self.columns))
        before = self.rows[row] * self.width + self.columns[column]
        return {"x": before * self.channels + (beat + 1) * self.lanes}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The pixels of the part."""
        del state
        return {"y": inputs["x"][:, *self.places]}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The pixels of the part."""
        del state
        return {"y": inputs["x"][:, *self.places]}

    def backward(self, tape: Tape) -> None:
        """The errors, among zeros."""
        if tape.needs_error("x"):
            engine = PixelPad(**self.map, rows=self.rows, columns=self.columns)
            tape.give_error("x", tape.add("error", engine, {"e": tape.error("y")})["dx"])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        return pixel_slice(domain, streams["x"], streams["y"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Some rows and columns, one row, one pixel."""
        return tuple(cls(**fields) for fields in EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class PixelPad(_Pixels, ToMap):
    """Sink ``e`` (rows, columns, channels), the errors of a `PixelSlice`; source ``dx``, in the format of e."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e."""
        return (self.part_port("e", self.e_fixed, Kind.ERROR),)

    @property
    def dx_fixed(self) -> Fixed:
        """As of e."""
        return self.e_fixed

    @property
    def pipeline_cycles(self) -> int:
        """Two registers."""
        return 2

    def required(self, source: str, elements: int) -> dict[str, int]:
        """What comes before; the first zeros of a frame wait for its first error."""
        del source
        pixel, beat = divmod(-(-elements // self.lanes) - 1, self.pixel_beats)
        row, column = divmod(pixel, self.width)
        whole = sum(place < row for place in self.rows) * len(self.columns)
        if row in self.rows:
            whole += sum(place < column for place in self.columns)
        inside = row in self.rows and column in self.columns
        return {"e": max(self.lanes, whole * self.channels + inside * (beat + 1) * self.lanes)}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The errors, among zeros."""
        del state
        dx = np.zeros((len(inputs["e"]), *self.shape), np.int64)
        dx[:, *self.places] = inputs["e"]
        return {"dx": dx}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The errors, among zeros."""
        del state
        dx = np.zeros((len(inputs["e"]), *self.shape))
        dx[:, *self.places] = inputs["e"]
        return {"dx": dx}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        return pixel_pad(domain, streams["e"], streams["dx"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of `PixelSlice`."""
        return tuple(cls(**fields) for fields in EXAMPLES)


@block
def pixel_slice(domain: ClockReset, x: Stream, y: Stream, *, cfg: PixelSlice) -> Instances:
    """Beats of other pixels are dropped.  Costs three counters, two small tables and a register.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        y: out, stream as wide, 1 cycle later, from registers.
    """
    kept = Stream(x.width)
    chosen, last, fire, ready = (Signal(bool(0)) for _ in range(4))
    where = place_in_frame(domain, fire, chosen, last, beats=cfg.pixel_beats, masks=cfg.masks)
    register = m2s_pipe(domain, kept, y)

    @always_comb
    def decide() -> None:
        ready.next = kept.ready or not chosen

    @always_comb
    def handshake() -> None:
        x.ready.next = ready
        kept.valid.next = x.valid and chosen
        kept.payload.next = x.payload
        fire.next = x.valid and ready

    return where, register, decide, handshake


@block
def pixel_pad(domain: ClockReset, e: Stream, dx: Stream, *, cfg: PixelPad) -> Instances:
    """Errors in their turn, zeros elsewhere, which wait for the first error of their frame.

    Costs three counters, two small tables, a gate a bit and two registers.

    Ports:
        e: in, stream of ``cfg.lanes`` codes of ``cfg.e_fixed``.
        dx: out, stream as wide, 2 cycles later, from registers.
    """
    held, filled = Stream(e.width), Stream(dx.width)
    chosen, last, fire, valid, begun = (Signal(bool(0)) for _ in range(5))
    where = place_in_frame(domain, fire, chosen, last, beats=cfg.pixel_beats, masks=cfg.masks)
    registers = m2s_pipe(domain, e, held), m2s_pipe(domain, filled, dx)

    @always_comb
    def decide() -> None:
        valid.next = held.valid or (begun and not chosen)

    @always_comb
    def handshake() -> None:
        held.ready.next = filled.ready and chosen
        filled.valid.next = valid
        fire.next = valid and filled.ready

    @always_comb
    def fill() -> None:
        filled.payload.next = 0
        if chosen:
            filled.payload.next = held.payload

    @always(domain.clk.posedge)
    def open_frame() -> None:
        if fire:
            begun.next = not last
        if domain.rst:
            begun.next = False

    return where, registers, decide, handshake, fill, open_frame


@block
def place_in_frame(
    domain: ClockReset, fire: Bit, chosen: Bit, last: Bit, *, beats: int, masks: tuple[tuple[int, ...], tuple[int, ...]]
) -> Instances:
    """Whether the next beat of a frame is of a row and a column that the masks name, and whether it is the last.

    Ports:
        fire: in, 1 bit: a beat passes.
        chosen, last: out, 1 bit each, from registers through a table.
    """
    rows, columns = masks
    beat, column, row = (Signal(intbv(0)[address_width(count) :]) for count in (beats, len(columns), len(rows)))
    of_row, of_column = signal_for(rows), signal_for(columns)
    ends_pixel, ends_row = Signal(bool(0)), Signal(bool(0))
    last_beat, last_column, last_row = beats - 1, len(columns) - 1, len(rows) - 1
    parts = (
        counter(domain, fire, beat, count=beats),
        counter(domain, ends_pixel, column, count=len(columns)),
        counter(domain, ends_row, row, count=len(rows)),
        look_up(row, of_row, table=rows),
        look_up(column, of_column, table=columns),
    )

    @always_comb
    def steps() -> None:
        ends_pixel.next = fire and beat == last_beat
        ends_row.next = fire and beat == last_beat and column == last_column

    @always_comb
    def judge() -> None:
        chosen.next = of_row != 0 and of_column != 0
        last.next = beat == last_beat and column == last_column and row == last_row

    return parts, steps, judge
