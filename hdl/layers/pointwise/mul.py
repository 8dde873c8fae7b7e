"""Products of two maps, and of a map with one number a channel, as squeeze-and-excitation has them.

    Mul:    y[h, v, c] = a[h, v, c] * b[h, v, c]        da = e * b        db = e * a
    Scale:  y[h, v, c] = x[h, v, c] * s[c]              dx = e * s        ds[c] = sum over pixels of e * x (`ScaleSum`)

Both factors are kept for the way back, which multiplies by the same circuits.  Products and sums are exact, rounded
once to nearest, ties up, and saturated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myhdl import block, instances

from hdl.engine.arithmetic.products import PRODUCT_CYCLES, exact_product, product_stream
from hdl.engine.arithmetic.rounding import round_stream, rounding_cycles
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.elementwise import BesideVector, Multiplying
from hdl.layers.pool.global_average_pool import SUM_LATENCY, repeat_pixel, sum_pixels
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import output_register_latency, queue, queue_latency, width_adapter
from hdl.tensor import Kind, Port, Tensor

ERROR = Fixed(16, 12)


@dataclass(frozen=True, kw_only=True)
class Mul(Multiplying):
    """Sinks ``a`` and ``b``, source ``y``; a multiplier a lane.

    Backwards, ``a`` is an error and ``b`` the other factor, from a stash."""

    # of a and y: ACTIVATION forwards, ERROR backwards
    kind: Kind = Kind.ACTIVATION
    # of b: ACTIVATION forwards, STASH backwards
    b_kind: Kind = Kind.ACTIVATION
    a_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    b_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def exact(self) -> Fixed:
        """Format of a product."""
        return exact_product(self.a_fixed, self.b_fixed)

    @property
    def sinks(self) -> tuple[Port, ...]:
        """a, b."""
        return self.map_port("a", self.kind), self.map_port("b", self.b_kind)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.map_port("y", self.kind),)

    @property
    def pipeline_cycles(self) -> int:
        """Product and rounding."""
        return PRODUCT_CYCLES + rounding_cycles(self.cut)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact product, rounded once."""
        del state
        return {"y": requantise(inputs["a"] * inputs["b"], self.exact.fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"y": inputs["a"] * inputs["b"]}

    def backward(self, tape: Tape) -> None:
        """To each factor the error times the other."""
        for sink, other in (("a", "b"), ("b", "a")):
            if tape.needs_error(sink):
                engine = Mul(**self.map, kind=Kind.ERROR, b_kind=Kind.STASH, a_fixed=ERROR, y_fixed=ERROR)
                made = tape.add(f"{sink}_error", engine, {"a": tape.error("y"), "b": tape.value(other)})
                tape.give_error(sink, made["y"])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        return mul(domain, streams["a"], streams["b"], streams["y"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Forwards and backwards, other formats, one pixel, nothing to round."""
        back: dict[str, Any] = {"kind": Kind.ERROR, "b_kind": Kind.STASH}
        return (
            cls(height=2, width=3, channels=4, lanes=2),
            cls(height=2, width=2, channels=3, lanes=3, a_fixed=ERROR, y_fixed=ERROR, b_fixed=Fixed(12, 3), **back),
            cls(height=1, width=1, channels=5, a_fixed=Fixed(8, 3), b_fixed=Fixed(8, 2), y_fixed=Fixed(16, 5)),
        )


@dataclass(frozen=True, kw_only=True)
class Scale(Multiplying, BesideVector):
    """Sinks ``x`` and ``s`` (1, 1, channels), source ``y``; a multiplier a lane.

    A frame's s is kept while its map passes, and the next one gathers meanwhile.  Where s is made of the whole of x,
    the map waits in front of this layer, in a FIFO as deep as a frame.  Backwards, ``x`` is an error, ``s`` a stash."""

    # of x and y: ACTIVATION forwards, ERROR backwards
    kind: Kind = Kind.ACTIVATION
    # of s: ACTIVATION forwards, STASH backwards
    s_kind: Kind = Kind.ACTIVATION
    # elements a beat of s
    vector_lanes: int = 1
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    s_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def exact(self) -> Fixed:
        """Format of a product."""
        return exact_product(self.x_fixed, self.s_fixed)

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x, s."""
        return (
            self.map_port("x", self.kind),
            Port("s", Tensor((1, 1, self.channels), self.s_fixed, self.s_kind), self.vector_lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.map_port("y", self.kind),)

    @property
    def pipeline_cycles(self) -> int:
        """Gathering or spreading of the vector's lanes, its queue and memory, product and rounding."""
        return self.latency_cycles("y") + self.pixel_beats + 1

    def latency_cycles(self, source: str) -> int:
        """Adapter, queue and memory of the vector, product and rounding."""
        del source
        memory = queue_latency(self.pixel_beats) + 1 + output_register_latency(self.pixel_beats)
        return int(self.vector_lanes != self.lanes) + memory + PRODUCT_CYCLES + rounding_cycles(self.cut)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """As much of x, and the channels of s as they come; from the second pixel on all."""
        del source
        return {"x": elements, "s": min(elements, self.channels)}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact product, rounded once."""
        del state
        return {"y": requantise(inputs["x"] * inputs["s"], self.exact.fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"y": inputs["x"] * inputs["s"]}

    def backward(self, tape: Tape) -> None:
        """To the map the error times the vector; to the vector the sum of error times map."""
        if tape.needs_error("x"):
            engine = Scale(**self.map, kind=Kind.ERROR, s_kind=Kind.STASH, x_fixed=ERROR, y_fixed=ERROR)
            made = tape.add("x_error", engine, {"x": tape.error("y"), "s": tape.value("s")})
            tape.give_error("x", made["y"])
        if tape.needs_error("s"):
            made = tape.add("s_error", ScaleSum(**self.map), {"e": tape.error("y"), "x": tape.value("x")})
            tape.give_error("s", made["ds"])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        return scale(domain, streams["x"], streams["s"], streams["y"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Equal and unequal lanes, forwards and backwards, one and several beats a pixel, one pixel."""
        back: dict[str, Any] = {"kind": Kind.ERROR, "s_kind": Kind.STASH, "x_fixed": ERROR, "y_fixed": ERROR}
        return (
            cls(height=2, width=3, channels=4, lanes=2, vector_lanes=1, s_fixed=Fixed(16, 14)),
            cls(height=2, width=2, channels=6, lanes=2, vector_lanes=3, **back),
            cls(height=3, width=2, channels=3, lanes=3, vector_lanes=3, y_fixed=Fixed(12, 5)),
            cls(height=1, width=1, channels=2),
        )


@dataclass(frozen=True, kw_only=True)
class ScaleSum(Multiplying, BesideVector):
    """Sinks ``e`` and ``x``, source ``ds`` (1, 1, channels); a multiplier a lane, and one exact sum a channel."""

    # elements a beat of ds
    vector_lanes: int = 1
    e_fixed: Fixed = ERROR
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    ds_fixed: Fixed = ERROR

    @property
    def exact(self) -> Fixed:
        """Format of a sum."""
        product = exact_product(self.e_fixed, self.x_fixed)
        return Fixed(product.width + (self.pixels - 1).bit_length(), product.fraction_bits)

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, x."""
        return self.map_port("e", Kind.ERROR), self.map_port("x", Kind.STASH)

    @property
    def sources(self) -> tuple[Port, ...]:
        """ds."""
        return (Port("ds", Tensor((1, 1, self.channels), self.ds_fixed, Kind.ERROR), self.vector_lanes),)

    @property
    def pipeline_cycles(self) -> int:
        """Product, sum, rounding, and the gathering or spreading of lanes."""
        return self.latency_cycles("ds") + self.pixel_beats + 1

    def latency_cycles(self, source: str) -> int:
        """Product, sum, rounding, width adapter."""
        del source
        return PRODUCT_CYCLES + SUM_LATENCY + rounding_cycles(self.cut) + int(self.vector_lanes != self.lanes)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All pixels but the channels of the last that come later."""
        del source
        needed = self.elements - self.channels + -(-elements // self.lanes) * self.lanes
        return {"e": needed, "x": needed}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sum, rounded once."""
        del state
        total = (inputs["e"] * inputs["x"]).sum(axis=(1, 2), keepdims=True)
        return {"ds": requantise(total, self.exact.fraction_bits, self.ds_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"ds": (inputs["e"] * inputs["x"]).sum(axis=(1, 2), keepdims=True)}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        return scale_sum(domain, streams["e"], streams["x"], streams["ds"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Sums in registers and in a memory, equal and unequal lanes, one pixel."""
        return (
            cls(height=2, width=2, channels=4, lanes=2, vector_lanes=1, ds_fixed=Fixed(16, 10)),
            cls(height=3, width=2, channels=6, lanes=2, vector_lanes=3, x_fixed=Fixed(12, 5)),
            cls(height=2, width=3, channels=3, lanes=3, vector_lanes=3),
            cls(height=1, width=1, channels=2),
        )


@block
def mul(domain: ClockReset, a: Stream, b: Stream, y: Stream, *, cfg: Mul) -> Instances:
    """The product of two streams.

    Ports:
        a, b: in, streams of ``cfg.lanes`` codes of ``cfg.a_fixed``, of ``cfg.b_fixed``; taken together.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``, ``cfg.pipeline_cycles`` later, from registers.
    """
    products = Stream(cfg.lanes * cfg.exact.width)
    multiply = product_stream(domain, a, b, products, lanes=cfg.lanes, a_fixed=cfg.a_fixed, b_fixed=cfg.b_fixed)
    rounding = round_stream(domain, products, y, lanes=cfg.lanes, shift=cfg.cut, target=cfg.y_fixed)
    return multiply, rounding


@block
def scale(domain: ClockReset, x: Stream, s: Stream, y: Stream, *, cfg: Scale) -> Instances:
    """The vector is gathered, repeated for every pixel, and multiplied by.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``; waits for the vector.
        s: in, stream of ``cfg.vector_lanes`` codes of ``cfg.s_fixed``; a frame ahead at most.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``, from registers.
    """
    lanes, width = cfg.lanes, cfg.s_fixed.width
    early, word, factor = (Stream(lanes * width) for _ in range(3))
    products = Stream(lanes * cfg.exact.width)
    adapt = width_adapter(domain, s, early, element_bits=width)
    # the next frame's vector gathers while this one's is in use
    gather = queue(domain, early, word, depth=cfg.pixel_beats)
    repeat = repeat_pixel(domain, word, factor, groups=cfg.pixel_beats, pixels=cfg.pixels)
    multiply = product_stream(domain, x, factor, products, lanes=lanes, a_fixed=cfg.x_fixed, b_fixed=cfg.s_fixed)
    rounding = round_stream(domain, products, y, lanes=lanes, shift=cfg.cut, target=cfg.y_fixed)
    return instances()


@block
def scale_sum(domain: ClockReset, e: Stream, x: Stream, ds: Stream, *, cfg: ScaleSum) -> Instances:
    """Products, summed over the pixels of a frame; the finished sums are rounded as a stream.

    Ports:
        e, x: in, streams of ``cfg.lanes`` codes of ``cfg.e_fixed``, of ``cfg.x_fixed``; taken together.
        ds: out, stream of ``cfg.vector_lanes`` codes of ``cfg.ds_fixed``.
    """
    lanes, width, sum_bits = cfg.lanes, cfg.e_fixed.width + cfg.x_fixed.width, cfg.exact.width
    products, sums = Stream(lanes * width), Stream(lanes * sum_bits)
    rounded = Stream(lanes * cfg.ds_fixed.width)
    multiply = product_stream(domain, e, x, products, lanes=lanes, a_fixed=cfg.e_fixed, b_fixed=cfg.x_fixed)
    collect = sum_pixels(
        domain, products, sums, lanes=lanes, width=width, sum_bits=sum_bits, groups=cfg.pixel_beats, pixels=cfg.pixels
    )
    rounding = round_stream(domain, sums, rounded, lanes=lanes, shift=cfg.cut, target=cfg.ds_fixed)
    adapt = width_adapter(domain, rounded, ds, element_bits=cfg.ds_fixed.width)
    return instances()
