"""Some channels of a map, side by side; backwards, zeros where the others were.

    slice: y[h, v, c] = x[h, v, first + c]        pad: dx[h, v, first + c] = e[h, v, c], 0 in all other channels

Errors of several slices of one map are summed as those of any other readers.  No value changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from myhdl import Signal, always_comb, block, intbv

from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.elementwise import ElementWise, OfMap, ToMap
from hdl.memory import address_width
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, m2s_pipe, queue, queue_latency, take_bits, width_adapter
from hdl.tensor import Kind, Port, Tensor, Tile

# beats that a queue holds beyond what its rates ask for: its own latency
SLACK = 4
# registers from the last beat that a pixel needs to its first one out
PIPELINE = 6


@dataclass(frozen=True, kw_only=True)
class _Part(ElementWise):
    """What both directions share: which channels of the whole, and their lanes.  `lanes` are those of the whole."""

    # the first channel of the part, and how many it has
    first: int = 0
    part: int = 1
    part_lanes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < 0 or self.part < 1 or self.first + self.part > self.channels:
            raise ShapeError(
                f"{type(self).__name__}: {self.part} channels from {self.first} on are not all among {self.channels}",
                "choose channels within the map",
            )
        if self.part_lanes < 1 or self.part % self.part_lanes:
            raise FoldingError(f"{type(self).__name__}: {self.part_lanes} lanes do not divide {self.part} channels")

    @property
    def part_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the part."""
        return self.height, self.width, self.part

    @property
    def span(self) -> tuple[int, int] | None:
        """Beats [start, end) of a pixel of the whole that are of the part; None where a beat holds both."""
        if self.first % self.lanes or self.part % self.lanes:
            return None
        return self.first // self.lanes, (self.first + self.part) // self.lanes

    @property
    def waiting_beats(self) -> int:
        """Beats of the part that wait in a queue, so that it moves all the time and the whole does too: of B beats, P
        of them of the part, as many of P as pass in P cycles on one side and do not in B on the other."""
        start, end = self.span or (0, 0)
        part = end - start
        return -(-part * (self.pixel_beats - part) // self.pixel_beats) + SLACK

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle, of the whole and of the part."""
        return self.most_beats

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest lanes that pass the whole, and the fewest that pass the part, in time."""
        del tile
        return self.with_lanes(cycles, lanes=self.shape, part_lanes=self.part_shape)

    @property
    def pipeline_cycles(self) -> int:
        """All beats of a pixel, at the port where it has most, and registers."""
        return max(self.pixel_beats, self.part // self.part_lanes) + PIPELINE


@dataclass(frozen=True, kw_only=True)
class ChannelSlice(_Part, OfMap):
    """Sink ``x``, source ``y``, in the format of x."""

    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.part_shape, self.x_fixed, Kind.ACTIVATION), self.part_lanes),)

    def latency_cycles(self, source: str) -> int:
        """The queue and the adapter behind it; or the gathering of a pixel, and its spreading."""
        del source
        if self.span:
            return queue_latency(self.waiting_beats) + int(self.part_lanes != self.lanes)
        return int(self.lanes != self.channels) + int(self.part_lanes != self.part)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All that comes before, in whole beats of x; whole pixels where a beat holds other channels too."""
        del source
        if not self.span:
            return {"x": -(-elements // self.part) * self.channels}
        pixel, beat = divmod(-(-elements // self.lanes) - 1, self.part // self.lanes)
        return {"x": pixel * self.channels + self.first + (beat + 1) * self.lanes}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The channels of the part."""
        del state
        return {"y": inputs["x"][..., self.first : self.first + self.part]}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The channels of the part."""
        del state
        return {"y": inputs["x"][..., self.first : self.first + self.part]}

    def backward(self, tape: Tape) -> None:
        """The errors, among zeros."""
        if tape.needs_error("x"):
            engine = ChannelPad(**self.map, first=self.first, part=self.part)
            tape.give_error("x", tape.add("error", engine, {"e": tape.error("y")})["dx"])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        return channel_slice(domain, streams["x"], streams["y"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Beats of the part alone, and of others too; the first channels, the last, some between, all; one pixel."""
        return (
            cls(height=2, width=3, channels=8, lanes=2, first=2, part=4),
            cls(height=2, width=2, channels=5, lanes=5, first=1, part=3, part_lanes=3, x_fixed=Fixed(12, 3)),
            cls(height=3, width=2, channels=12, lanes=3, first=5, part=4, part_lanes=2),
            cls(height=2, width=2, channels=32, lanes=4, first=16, part=16, part_lanes=2),
            cls(height=1, width=1, channels=2),
            cls(height=2, width=1, channels=4, lanes=2, part=4, part_lanes=2),
        )


@dataclass(frozen=True, kw_only=True)
class ChannelPad(_Part, ToMap):
    """Sink ``e``, the errors of a `ChannelSlice`; source ``dx``, in the format of e."""

    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e."""
        return (Port("e", Tensor(self.part_shape, self.e_fixed, Kind.ERROR), self.part_lanes),)

    @property
    def dx_fixed(self) -> Fixed:
        """As of e."""
        return self.e_fixed

    def latency_cycles(self, source: str) -> int:
        """The adapter, the queue and a register; or the gathering of a pixel, and its spreading."""
        del source
        if self.span:
            return int(self.part_lanes != self.lanes) + queue_latency(self.waiting_beats) + 1
        return int(self.part_lanes != self.part) + int(self.lanes != self.channels)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """What comes before, in whole beats of dx, with the first zeros that which follows them; whole pixels where a
        beat holds zeros and errors."""
        del source
        pixel, beat = divmod(-(-elements // self.lanes) - 1, self.pixel_beats)
        if not self.span:
            return {"e": (pixel + 1) * self.part}
        start, _ = self.span
        within = min(max(beat - start + 1, 1) * self.lanes, self.part)
        return {"e": pixel * self.part + within}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The errors, among zeros."""
        del state
        return {"dx": np.pad(inputs["e"], self._padding)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The errors, among zeros."""
        del state
        return {"dx": np.pad(inputs["e"], self._padding)}

    @property
    def _padding(self) -> tuple[tuple[int, int], ...]:
        """Before and after each axis of stacked frames."""
        return (0, 0), (0, 0), (0, 0), (self.first, self.channels - self.first - self.part)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        return channel_pad(domain, streams["e"], streams["dx"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of `ChannelSlice`."""
        return (
            cls(height=2, width=3, channels=8, lanes=2, first=2, part=4),
            cls(height=2, width=2, channels=5, lanes=5, first=1, part=3, part_lanes=3, e_fixed=Fixed(12, 3)),
            cls(height=3, width=2, channels=12, lanes=3, first=5, part=4, part_lanes=2),
            cls(height=2, width=2, channels=32, lanes=4, first=16, part=16, part_lanes=2),
            cls(height=1, width=1, channels=2),
            cls(height=2, width=1, channels=4, lanes=2, part=4, part_lanes=2),
        )


@block
def channel_slice(domain: ClockReset, x: Stream, y: Stream, *, cfg: ChannelSlice) -> Instances:
    """Beats of the part wait in a queue, others are dropped; or whole pixels are gathered and cut.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        y: out, stream of ``cfg.part_lanes`` codes of ``cfg.x_fixed``.
    """
    bits = cfg.x_fixed.width
    if cfg.span:
        words, queued = Stream(x.width), Stream(x.width)
        choose = pass_span(domain, x, words, beats=cfg.pixel_beats, start=cfg.span[0], end=cfg.span[1])
        wait = queue(domain, words, queued, depth=cfg.waiting_beats)
        adapt = width_adapter(domain, queued, y, element_bits=bits)
        return choose, wait, adapt
    pixel, part = Stream(cfg.channels * bits), Stream(cfg.part * bits)
    gather = width_adapter(domain, x, pixel, element_bits=bits)
    cut = take_bits(pixel, part, low=cfg.first * bits)
    spread = width_adapter(domain, part, y, element_bits=bits)
    return gather, cut, spread


@block
def channel_pad(domain: ClockReset, e: Stream, dx: Stream, *, cfg: ChannelPad) -> Instances:
    """Beats of the part in their turn, zeros in the others; or whole pixels are gathered and filled up.

    Ports:
        e: in, stream of ``cfg.part_lanes`` codes of ``cfg.e_fixed``.
        dx: out, stream of ``cfg.lanes`` codes of ``cfg.e_fixed``.
    """
    bits = cfg.e_fixed.width
    if cfg.span:
        words, queued, filled = (Stream(dx.width) for _ in range(3))
        adapt = width_adapter(domain, e, words, element_bits=bits)
        wait = queue(domain, words, queued, depth=cfg.waiting_beats)
        fill = fill_span(domain, queued, filled, beats=cfg.pixel_beats, start=cfg.span[0], end=cfg.span[1])
        return adapt, wait, fill, m2s_pipe(domain, filled, dx)
    part, pixel = Stream(cfg.part * bits), Stream(cfg.channels * bits)
    gather = width_adapter(domain, e, part, element_bits=bits)
    pad = pad_pixel(part, pixel, low=cfg.first * bits)
    spread = width_adapter(domain, pixel, dx, element_bits=bits)
    return gather, pad, spread


@block
def span_of_pixel(
    domain: ClockReset, fire: Bit, inside: Bit, after: Bit, *, beats: int, start: int, end: int
) -> Instances:
    """Where in a pixel of ``beats`` fires the next one stands: within [start, end), or from there on.

    Ports:
        fire: in, 1 bit.
        inside, after: out, 1 bit each, from registers.
    """
    count = Signal(intbv(0)[address_width(beats + 1) :])
    step = counter(domain, fire, count, count=beats)

    @always_comb
    def pass_end() -> None:
        after.next = count >= end

    if start == 0:

        @always_comb
        def judge() -> None:
            inside.next = count < end

    else:

        @always_comb
        def judge() -> None:
            inside.next = count >= start and count < end

    return step, pass_end, judge


@block
def pass_span(domain: ClockReset, x: Stream, y: Stream, *, beats: int, start: int, end: int) -> Instances:
    """Of every ``beats`` beats those of [start, end); others are dropped.  Costs a counter; no latency.

    Ports:
        x: in, stream of any width.
        y: out, stream as wide as ``x``, in the same cycle.
    """
    inside, after, fire, ready = (Signal(bool(0)) for _ in range(4))
    where = span_of_pixel(domain, fire, inside, after, beats=beats, start=start, end=end)

    @always_comb
    def decide() -> None:
        ready.next = y.ready or not inside

    @always_comb
    def handshake() -> None:
        x.ready.next = ready
        y.valid.next = x.valid and inside
        y.payload.next = x.payload
        fire.next = x.valid and ready

    return where, decide, handshake


@block
def fill_span(domain: ClockReset, x: Stream, y: Stream, *, beats: int, start: int, end: int) -> Instances:
    """Of every ``beats`` beats those of [start, end) are of x, the others 0; those before wait for the first of x.

    Costs a counter and a gate a bit; no latency.

    Ports:
        x: in, stream of any width.
        y: out, stream as wide as ``x``, in the same cycle.
    """
    inside, after, fire, valid = (Signal(bool(0)) for _ in range(4))
    where = span_of_pixel(domain, fire, inside, after, beats=beats, start=start, end=end)

    @always_comb
    def decide() -> None:
        valid.next = x.valid or after

    @always_comb
    def handshake() -> None:
        x.ready.next = y.ready and inside
        y.valid.next = valid
        fire.next = valid and y.ready

    @always_comb
    def fill() -> None:
        y.payload.next = 0
        if inside:
            y.payload.next = x.payload

    return where, decide, handshake, fill


@block
def pad_pixel(x: Stream, y: Stream, *, low: int) -> Instances:
    """A payload from bit ``low`` of a longer one on, among zeros; no cost.

    Ports:
        x: in, stream of any width.
        y: out, stream of at least ``low`` bits more, in the same cycle.
    """
    high = low + x.width

    @always_comb
    def connect() -> None:
        y.valid.next = x.valid
        y.payload.next = 0
        y.payload.next[high:low] = x.payload
        x.ready.next = y.ready

    return connect
