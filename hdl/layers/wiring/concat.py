"""Two maps side by side, and a map cut in two: the channels of one part, then those of the other.

    concat: y[h, v] = (a[h, v], b[h, v])        split: a[h, v], b[h, v] = x[h, v]

Each is the other's error engine.  Values are rounded where y has another binary point than its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from myhdl import Signal, always, always_comb, block, instances, intbv

from hdl.engine.arithmetic.lanes import always_on
from hdl.engine.arithmetic.rounding import round_stream, rounding_cycles
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.memory import address_width
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, join, m2s_pipe, queue, queue_latency, width_adapter
from hdl.tensor import Kind, Port, Tensor, Tile

# beats that a queue holds beyond what its rates ask for: its own latency
SLACK = 4
# registers from the last beat that a pixel needs to its first one out
PIPELINE = 10


@dataclass(frozen=True, kw_only=True)
class _SideBySide(Layer):
    """What both directions share: the shapes of the parts, and of the whole, with the lanes of each."""

    height: int
    width: int
    a_channels: int
    b_channels: int
    a_lanes: int = 1
    b_lanes: int = 1
    # of the whole
    lanes: int = 1
    kind: Kind = Kind.ACTIVATION

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.a_channels, self.b_channels) < 1:
            raise ShapeError(
                f"{type(self).__name__}: {self.height}x{self.width} pixels of {self.a_channels} and {self.b_channels} "
                "channels: all must be positive"
            )
        for lanes, channels in zip((self.a_lanes, self.b_lanes, self.lanes), self.all_channels, strict=True):
            if lanes < 1 or channels % lanes:
                raise FoldingError(f"{type(self).__name__}: {lanes} lanes do not divide {channels} channels")

    @property
    def channels(self) -> int:
        """Of the whole."""
        return self.a_channels + self.b_channels

    @property
    def all_channels(self) -> tuple[int, int, int]:
        """Of a, of b, of the whole."""
        return self.a_channels, self.b_channels, self.channels

    @property
    def pixels(self) -> int:
        """Pixels of a map."""
        return self.height * self.width

    @property
    def beats(self) -> tuple[int, int] | None:
        """Beats of the whole, in a pixel, that are of a and of b; None where one beat holds channels of both."""
        if self.a_channels % self.lanes or self.b_channels % self.lanes:
            return None
        return self.a_channels // self.lanes, self.b_channels // self.lanes

    @property
    def waiting_beats(self) -> int:
        """Beats that wait in a queue for their turn, so that the part moves all the time and the whole does too.

        A part of A beats beside one of B moves A beats in A + B cycles on its own side and in A on the other."""
        a, b = self.beats or (1, 1)
        return -(-a * b // (a + b)) + SLACK

    def shape(self, channels: int) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.height, self.width, channels

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle at the slowest port."""
        return self.most_beats

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest lanes that pass each map in time."""
        del tile
        a, b, whole = map(self.shape, self.all_channels)
        return self.with_lanes(cycles, a_lanes=a, b_lanes=b, lanes=whole)

    @property
    def pipeline_cycles(self) -> int:
        """All beats of a pixel, at the port where it has most, and the registers."""
        lanes = (self.a_lanes, self.b_lanes, self.lanes)
        return max(channels // n for channels, n in zip(self.all_channels, lanes, strict=True)) + PIPELINE

    def turns(self, port: str) -> tuple[int, ...]:
        """The whole goes on with b."""
        return (self.a_channels,) if self.beats and self.port(port).tensor.shape[-1] == self.channels else ()

    def _gathering_cycles(self, lanes: int, part: int) -> int:
        """From ``lanes`` elements to a beat of one part, and to its turn; or to a whole pixel of ``part`` channels."""
        if self.beats:
            return int(lanes != self.lanes) + queue_latency(self.waiting_beats)
        return int(lanes != part)

    def _part_of(self, beat: int) -> tuple[int, bool, int]:
        """(pixel, whether it is of a, number within the part) of a beat of the whole; where `beats` are of one part."""
        of_a, of_b = self.beats or (1, 1)
        pixel, within = divmod(beat, of_a + of_b)
        return (pixel, True, within) if within < of_a else (pixel, False, within - of_a)


@dataclass(frozen=True, kw_only=True)
class Concat(_SideBySide):
    """Sinks ``a`` and ``b``, source ``y``."""

    a_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    b_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """a, b."""
        return (
            Port("a", Tensor(self.shape(self.a_channels), self.a_fixed, self.kind), self.a_lanes),
            Port("b", Tensor(self.shape(self.b_channels), self.b_fixed, self.kind), self.b_lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.shape(self.channels), self.y_fixed, self.kind), self.lanes),)

    @property
    def pipeline_cycles(self) -> int:
        """As of `Split`, and one where bits are rounded away."""
        finest = max(port.tensor.fixed.fraction_bits for port in self.sinks)
        return super().pipeline_cycles + rounding_cycles(finest - self.y_fixed.fraction_bits) - 1

    def latency_cycles(self, source: str) -> int:
        """Rounding, beats or pixels, and the register or the adapter behind them."""
        del source
        rounding = rounding_cycles(self.a_fixed.fraction_bits - self.y_fixed.fraction_bits)
        behind = int(bool(self.beats) or self.lanes != self.channels)
        return rounding + self._gathering_cycles(self.a_lanes, self.a_channels) + behind

    def required(self, source: str, elements: int) -> dict[str, int]:
        """The channels of one part that come before, or whole pixels of both where a beat holds channels of both."""
        del source
        if not self.beats:
            pixels = -(-elements // self.channels)
            return {"a": pixels * self.a_channels, "b": pixels * self.b_channels}
        pixel, of_a, number = self._part_of(-(-elements // self.lanes) - 1)
        part = (number + 1) * self.lanes
        if of_a:
            return {"a": pixel * self.a_channels + part, "b": pixel * self.b_channels}
        return {"a": (pixel + 1) * self.a_channels, "b": pixel * self.b_channels + part}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Both parts, each rounded once."""
        del state
        parts = [requantise(inputs[port.name], port.tensor.fixed.fraction_bits, self.y_fixed) for port in self.sinks]
        return {"y": np.concatenate(parts, axis=-1)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Both parts."""
        del state
        return {"y": np.concatenate([inputs["a"], inputs["b"]], axis=-1)}

    def backward(self, tape: Tape) -> None:
        """To each part its own error."""
        kept = tuple(sink for sink in ("a", "b") if tape.needs_error(sink))
        if kept:
            engine = Split(
                height=self.height, width=self.width, a_channels=self.a_channels, b_channels=self.b_channels,
                kept=kept, kind=Kind.ERROR,
            )  # fmt: skip
            made = tape.add("error", engine, {"x": tape.error("y")})
            for sink in kept:
                tape.give_error(sink, made[sink])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """A beat a cycle."""
        del images
        return concat(domain, streams["a"], streams["b"], streams["y"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Beats of one part each, of both; equal and unequal parts and lanes, binary points, one pixel."""
        return (
            cls(height=2, width=3, a_channels=4, b_channels=8, a_lanes=1, b_lanes=2, lanes=2, b_fixed=Fixed(16, 11)),
            cls(height=3, width=2, a_channels=3, b_channels=5, a_lanes=3, b_lanes=1, lanes=2, a_fixed=Fixed(12, 3)),
            cls(height=2, width=2, a_channels=12, b_channels=12, a_lanes=4, b_lanes=6, lanes=6),
            cls(height=2, width=2, a_channels=32, b_channels=16, lanes=1),
            cls(height=2, width=2, a_channels=2, b_channels=2, a_lanes=2, b_lanes=2, lanes=4),
            # the queues must hold more than the rates ask for
            cls(height=2, width=2, a_channels=64, b_channels=64, a_lanes=2, b_lanes=2, lanes=4),
            cls(height=1, width=1, a_channels=1, b_channels=1, y_fixed=Fixed(16, 5), kind=Kind.ERROR),
        )


@dataclass(frozen=True, kw_only=True)
class Split(_SideBySide):
    """Sink ``x``; sources ``a`` and ``b``, or the one of them that is wanted, in the format of x."""

    # of "a", "b"; of errors, what nobody learns from is left out
    kept: tuple[str, ...] = ("a", "b")
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (Port("x", Tensor(self.shape(self.channels), self.x_fixed, self.kind), self.lanes),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """a, b."""
        parts = {"a": (self.a_channels, self.a_lanes), "b": (self.b_channels, self.b_lanes)}
        return tuple(
            Port(part, Tensor(self.shape(parts[part][0]), self.x_fixed, self.kind), parts[part][1])
            for part in self.kept
        )

    def latency_cycles(self, source: str) -> int:
        """Beats or pixels, and the adapter behind them."""
        port = self.port(source)
        if self.beats:
            return self._gathering_cycles(port.lanes, port.tensor.shape[-1])
        return int(self.lanes != self.channels) + int(port.lanes != port.tensor.shape[-1])

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All that comes before, in whole beats of x; whole pixels where a beat holds channels of both."""
        channels = self.port(source).tensor.shape[-1]
        if not self.beats:
            return {"x": -(-elements // channels) * self.channels}
        pixel, beat = divmod(-(-elements // self.lanes) - 1, channels // self.lanes)
        skipped = 0 if source == "a" else self.a_channels
        return {"x": pixel * self.channels + skipped + (beat + 1) * self.lanes}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The channels of each."""
        del state
        return self._parts(inputs["x"])

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The channels of each."""
        del state
        return self._parts(inputs["x"])

    def _parts(self, whole: Any) -> dict[str, Any]:
        parts = {"a": whole[..., : self.a_channels], "b": whole[..., self.a_channels :]}
        return {port.name: parts[port.name] for port in self.sources}

    def backward(self, tape: Tape) -> None:
        """The errors of both side by side."""
        if tape.needs_error("x"):
            engine = Concat(
                height=self.height, width=self.width, a_channels=self.a_channels, b_channels=self.b_channels,
                kind=Kind.ERROR,
            )  # fmt: skip
            made = tape.add("error", engine, {part: tape.error(part) for part in ("a", "b")})
            tape.give_error("x", made["y"])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """A beat a cycle."""
        del images
        return split(domain, streams["x"], streams.get("a"), streams.get("b"), cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of `Concat`, and with one part only."""
        return (
            cls(height=2, width=3, a_channels=4, b_channels=8, a_lanes=1, b_lanes=2, lanes=2),
            cls(height=3, width=2, a_channels=3, b_channels=5, a_lanes=3, b_lanes=1, lanes=2),
            cls(height=2, width=2, a_channels=12, b_channels=12, a_lanes=4, b_lanes=6, lanes=6),
            cls(height=2, width=2, a_channels=32, b_channels=16, lanes=1),
            cls(height=2, width=2, a_channels=4, b_channels=2, lanes=2, kept=("a",), kind=Kind.ERROR),
            cls(
                height=2,
                width=2,
                a_channels=2,
                b_channels=3,
                lanes=1,
                kept=("b",),
                kind=Kind.ERROR,
                x_fixed=Fixed(12, 8),
            ),
            cls(height=1, width=1, a_channels=1, b_channels=1, kind=Kind.ERROR),
        )


@block
def concat(domain: ClockReset, a: Stream, b: Stream, y: Stream, *, cfg: Concat) -> Instances:
    """Parts rounded, gathered into beats of y and taken in turn; whole pixels where a beat holds channels of both.

    Ports:
        a, b: in, streams of ``cfg.a_lanes`` codes of ``cfg.a_fixed``, of ``cfg.b_lanes`` codes of ``cfg.b_fixed``.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``.
    """
    bits = cfg.y_fixed.width
    beats = cfg.beats
    insides = []
    gathered = []
    for part, fixed, lanes, channels in (
        (a, cfg.a_fixed, cfg.a_lanes, cfg.a_channels),
        (b, cfg.b_fixed, cfg.b_lanes, cfg.b_channels),
    ):
        rounded = Stream(lanes * bits)
        shift = fixed.fraction_bits - cfg.y_fixed.fraction_bits
        insides.append(round_stream(domain, part, rounded, lanes=lanes, shift=shift, target=cfg.y_fixed))
        words = Stream((cfg.lanes if beats else channels) * bits)
        insides.append(width_adapter(domain, rounded, words, element_bits=bits))
        if beats:
            queued = Stream(words.width)
            insides.append(queue(domain, words, queued, depth=cfg.waiting_beats))
            gathered.append(queued)
        else:
            gathered.append(words)
    whole = Stream(gathered[0].width if beats else cfg.channels * bits)
    if beats:
        insides.append(take_in_turn(domain, gathered[0], gathered[1], whole, beats[0], beats[1]))
        insides.append(m2s_pipe(domain, whole, y))
    else:
        insides.append(join(domain, gathered, whole))
        insides.append(width_adapter(domain, whole, y, element_bits=bits))
    return insides


@block
def split(domain: ClockReset, x: Stream, a: Stream | None, b: Stream | None, *, cfg: Split) -> Instances:
    """Beats of x dealt out in turn, and spread over the lanes of the parts; what nobody wants is dropped.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        a, b: out, streams of ``cfg.a_lanes``, of ``cfg.b_lanes`` codes of ``cfg.x_fixed``; None where not kept.
    """
    bits = cfg.x_fixed.width
    beats = cfg.beats
    insides = []
    dealt = [Stream((cfg.lanes if beats else channels) * bits) for channels in (cfg.a_channels, cfg.b_channels)]
    if beats:
        insides.append(give_in_turn(domain, x, dealt[0], dealt[1], beats[0], beats[1]))
    else:
        pixel = Stream(cfg.channels * bits)
        insides.append(width_adapter(domain, x, pixel, element_bits=bits))
        insides.append(cut_in_two(domain, pixel, dealt[0], dealt[1]))
    for words, part in zip(dealt, (a, b), strict=True):
        if part is None:
            insides.append(always_on(domain.clk, words.ready))
        elif beats:
            queued = Stream(words.width)
            insides.append(queue(domain, words, queued, depth=cfg.waiting_beats))
            insides.append(width_adapter(domain, queued, part, element_bits=bits))
        else:
            insides.append(width_adapter(domain, words, part, element_bits=bits))
    return insides


@block
def turns(domain: ClockReset, fire: Bit, first: Bit, *, a: int, b: int) -> Instances:
    """``first`` during ``a`` fires, then not during ``b``, and again.

    Ports:
        fire: in, 1 bit.
        first: out, 1 bit, from registers.
    """
    switch = a
    count = Signal(intbv(0)[address_width(a + b) :])
    stepping = counter(domain, fire, count, count=a + b)

    @always_comb
    def out() -> None:
        first.next = count < switch

    return out, stepping


@block
def take_in_turn(domain: ClockReset, a: Stream, b: Stream, y: Stream, a_beats: int, b_beats: int) -> Instances:
    """``a_beats`` of a, then ``b_beats`` of b, and again.  Costs a counter; no latency.

    Ports:
        a, b: in, streams of one width; the one whose turn it is has the ready of ``y``.
        y: out, stream as wide as ``a``, in the same cycle.
    """
    first, fire, valid = Signal(bool(1)), Signal(bool(0)), Signal(bool(0))
    order = turns(domain, fire, first, a=a_beats, b=b_beats)

    @always_comb
    def choose() -> None:
        if first:
            valid.next = a.valid
            y.payload.next = a.payload
        else:
            valid.next = b.valid
            y.payload.next = b.payload

    @always_comb
    def handshake() -> None:
        y.valid.next = valid
        a.ready.next = y.ready and first
        b.ready.next = y.ready and not first
        fire.next = valid and y.ready

    return instances()


@block
def give_in_turn(domain: ClockReset, x: Stream, a: Stream, b: Stream, a_beats: int, b_beats: int) -> Instances:
    """``a_beats`` to a, then ``b_beats`` to b, and again.  Costs a counter; no latency.

    Ports:
        x: in, stream of any width; its ready is that of the one whose turn it is.
        a, b: out, streams as wide as ``x``, in the same cycle.
    """
    first, fire, ready = Signal(bool(1)), Signal(bool(0)), Signal(bool(0))
    order = turns(domain, fire, first, a=a_beats, b=b_beats)

    @always_comb
    def choose() -> None:
        if first:
            ready.next = a.ready
        else:
            ready.next = b.ready

    @always_comb
    def handshake() -> None:
        x.ready.next = ready
        a.valid.next = x.valid and first
        b.valid.next = x.valid and not first
        a.payload.next = x.payload
        b.payload.next = x.payload
        fire.next = x.valid and ready

    return instances()


@block
def cut_in_two(domain: ClockReset, x: Stream, a: Stream, b: Stream) -> Instances:
    """The low bits to a and the high bits to b, to each as soon as it is ready.  Costs two flip-flops; no latency.

    Ports:
        x: in, stream as wide as both together; ready with the last of both.
        a, b: out, streams of any widths, in the same cycle.
    """
    done_a, done_b, ready = Signal(bool(0)), Signal(bool(0)), Signal(bool(0))
    low, high = a.width, x.width

    @always_comb
    def payloads() -> None:
        a.payload.next = x.payload[low:]
        b.payload.next = x.payload[high:low]

    @always_comb
    def judge() -> None:
        ready.next = (done_a or a.ready) and (done_b or b.ready)

    @always_comb
    def handshake() -> None:
        x.ready.next = ready
        a.valid.next = x.valid and not done_a
        b.valid.next = x.valid and not done_b

    @always(domain.clk.posedge)
    def step() -> None:
        if x.valid:
            if ready:
                done_a.next = False
                done_b.next = False
            else:
                done_a.next = done_a or a.ready
                done_b.next = done_b or b.ready
        if domain.rst:
            done_a.next = False
            done_b.next = False

    return instances()
