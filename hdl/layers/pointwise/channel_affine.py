"""A constant times each channel, and another added: normalisation whose statistics and scale stay as they are.

    y[h, v, c] = scale[c] * x[h, v, c] + offset[c]        dx = scale * e

Both vectors are held: they come with the model and nothing trains them.  Sums are exact, rounded once to nearest, ties
up, and saturated; the way back is the same layer without the offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myhdl import block, instances

from hdl.engine.arithmetic.constants import constant_stream
from hdl.engine.arithmetic.products import PRODUCT_CYCLES, exact_product, product_stream
from hdl.engine.arithmetic.rounding import exact_sum, round_stream, rounding_cycles, sum_cycles, sum_stream
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack, pack_pairs
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.elementwise import Multiplying, OfMap
from hdl.layers.storage import Memory
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import fork, queue, take_bits
from hdl.tensor import Kind, Port, Tensor

IMAGE = "constants"
ERROR = Fixed(16, 12)


@dataclass(frozen=True, kw_only=True)
class ChannelAffine(Multiplying, OfMap):
    """Sink ``x``, source ``y``; holds ``scale`` and, if ``shifted``, ``offset``, each (channels,).

    A multiplier a lane, an adder too if shifted, and a read-only memory of both vectors."""

    # ACTIVATION forwards, ERROR backwards
    kind: Kind = Kind.ACTIVATION
    # whether there is an offset
    shifted: bool = True
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    scale_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    offset_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def product(self) -> Fixed:
        """Format of a product."""
        return exact_product(self.x_fixed, self.scale_fixed)

    @property
    def exact(self) -> Fixed:
        """Format of a result before it is rounded."""
        return exact_sum(self.product, self.offset_fixed) if self.shifted else self.product

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.map_port("y", self.kind),)

    @property
    def held_parameters(self) -> tuple[Port, ...]:
        """scale, and offset if shifted."""
        scale = Port("scale", Tensor((self.channels,), self.scale_fixed, Kind.WEIGHT))
        return (scale, Port("offset", Tensor((self.channels,), self.offset_fixed, Kind.WEIGHT)))[: 1 + self.shifted]

    @property
    def pipeline_cycles(self) -> int:
        """Product, sum and rounding."""
        if self.shifted:
            return PRODUCT_CYCLES + sum_cycles(self.product, self.offset_fixed, self.y_fixed)
        return PRODUCT_CYCLES + rounding_cycles(self.cut)

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Codes of the constants."""
        return {port.name: port.tensor.fixed.encode(parameters[port.name]) for port in self.held_parameters}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """The constants."""
        return {port.name: parameters[port.name] for port in self.held_parameters}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sum, rounded once."""
        fraction_bits = self.exact.fraction_bits
        total = (inputs["x"] * state["scale"]) << (fraction_bits - self.product.fraction_bits)
        if self.shifted:
            total = total + (state["offset"] << (fraction_bits - self.offset_fixed.fraction_bits))
        return {"y": requantise(total, fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        return {"y": inputs["x"] * state["scale"] + (state["offset"] if self.shifted else 0.0)}

    def backward(self, tape: Tape) -> None:
        """The error times the scale."""
        if tape.needs_error("x"):
            engine = ChannelAffine(**self.map, kind=Kind.ERROR, shifted=False, x_fixed=ERROR, y_fixed=ERROR)
            tape.give_error("x", tape.add("error", engine, {"x": tape.error("y")})["y"])

    @property
    def word_bits(self) -> int:
        """Bits of the constants of a beat."""
        return self.lanes * sum(port.tensor.fixed.width for port in self.held_parameters)

    def memories(self) -> tuple[Memory, ...]:
        """The constants, a word a beat of a pixel."""
        return (Memory(IMAGE, self.pixel_beats, self.word_bits),)

    def images(self, state: State) -> dict[str, list[int]]:
        """Scales in the low bits of a word, offsets above."""
        widths = self.scale_fixed.width, self.offset_fixed.width
        if self.shifted:
            return {IMAGE: pack_pairs(state["scale"], state["offset"], widths, self.lanes)}
        return {IMAGE: pack(state["scale"], widths[0], self.lanes)}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        contents = images[IMAGE] if images else None
        make = affine_map if self.shifted else scaled_map
        return make(domain, streams["x"], streams["y"], cfg=self, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Forwards and backwards, with and without an offset, one word of constants, other formats."""
        back: dict[str, Any] = {"kind": Kind.ERROR, "shifted": False, "x_fixed": ERROR, "y_fixed": ERROR}
        return (
            cls(height=2, width=3, channels=4, lanes=2),
            cls(height=2, width=2, channels=6, lanes=2, **back),
            cls(height=2, width=2, channels=3, lanes=3, offset_fixed=Fixed(12, 22), y_fixed=Fixed(16, 6)),
            cls(height=1, width=1, channels=5, scale_fixed=Fixed(8, 3), offset_fixed=Fixed(16, 4)),
        )


@block
def affine_map(
    domain: ClockReset, x: Stream, y: Stream, *, cfg: ChannelAffine, contents: Sequence[int] | None = None
) -> Instances:
    """Products with the scales, then sums with the offsets, which wait meanwhile.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``, ``cfg.pipeline_cycles`` later, from registers.
    """
    lanes, scales_width = cfg.lanes, cfg.lanes * cfg.scale_fixed.width
    words, scales, early = Stream(cfg.word_bits), Stream(scales_width), Stream(cfg.word_bits - scales_width)
    parts = [Stream(cfg.word_bits) for _ in range(2)]
    offsets, products = Stream(early.width), Stream(lanes * cfg.product.width)
    constants = constant_stream(domain, words, depth=cfg.pixel_beats, public=IMAGE, contents=contents)
    split = fork(domain, words, parts)
    to_scales = take_bits(parts[0], scales, low=0)
    to_offsets = take_bits(parts[1], early, low=scales_width)
    multiply = product_stream(domain, x, scales, products, lanes=lanes, a_fixed=cfg.x_fixed, b_fixed=cfg.scale_fixed)
    wait = queue(domain, early, offsets, depth=PRODUCT_CYCLES + 1)
    formats = {"a_fixed": cfg.product, "b_fixed": cfg.offset_fixed, "target": cfg.y_fixed}
    add = sum_stream(domain, products, offsets, y, lanes=lanes, **formats)
    return instances()


@block
def scaled_map(
    domain: ClockReset, x: Stream, y: Stream, *, cfg: ChannelAffine, contents: Sequence[int] | None = None
) -> Instances:
    """Products with the scales alone.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``, ``cfg.pipeline_cycles`` later, from registers.
    """
    lanes = cfg.lanes
    scales, products = Stream(cfg.word_bits), Stream(lanes * cfg.product.width)
    constants = constant_stream(domain, scales, depth=cfg.pixel_beats, public=IMAGE, contents=contents)
    multiply = product_stream(domain, x, scales, products, lanes=lanes, a_fixed=cfg.x_fixed, b_fixed=cfg.scale_fixed)
    rounding = round_stream(domain, products, y, lanes=lanes, shift=cfg.cut, target=cfg.y_fixed)
    return instances()
