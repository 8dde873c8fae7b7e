"""A constant times each channel, and another added: normalisation whose statistics and scale stay as they are.

    y[h, v, c] = scale[c] * x[h, v, c] + offset[c]        dx = scale * e

Both vectors are held: they come with the model and nothing trains them.  Sums are exact, rounded once to nearest, ties
up, and saturated; the way back is the same layer without the offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myhdl import Signal, block, instances, intbv

from hdl.engine.arithmetic.lanes import always_on
from hdl.engine.arithmetic.products import PRODUCT_CYCLES, check_bits, exact_product, product_stream
from hdl.engine.arithmetic.rounding import exact_sum, round_stream, rounding_cycles, sum_cycles, sum_stream
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.base import ElementWise
from hdl.layers.storage import Memory
from hdl.memory import address_width, read_only
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.streams import counter, fork, output_register, queue, read_stream, take_bits
from hdl.tensor import Kind, Port, Tensor

IMAGE = "constants"
ERROR = Fixed(16, 12)


@dataclass(frozen=True, kw_only=True)
class ChannelAffine(ElementWise):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits("ChannelAffine", self.exact.width)

    @property
    def product(self) -> Fixed:
        """Format of a product."""
        return exact_product(self.x_fixed, self.scale_fixed)

    @property
    def exact(self) -> Fixed:
        """Format of a result before it is rounded."""
        return exact_sum(self.product, self.offset_fixed) if self.shifted else self.product

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x."""
        return (Port("x", Tensor(self.shape, self.x_fixed, self.kind), self.lanes),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.shape, self.y_fixed, self.kind), self.lanes),)

    @property
    def held_parameters(self) -> tuple[Port, ...]:
        """scale, and offset if shifted."""
        scale = Port("scale", Tensor((self.channels,), self.scale_fixed, Kind.WEIGHT))
        return (scale, Port("offset", Tensor((self.channels,), self.offset_fixed, Kind.WEIGHT)))[: 1 + self.shifted]

    @property
    def multipliers(self) -> int:
        """One a lane."""
        return self.lanes

    @property
    def macs(self) -> int:
        """A product an element."""
        return self.elements

    @property
    def groups(self) -> int:
        """Beats a pixel, and words of the memory."""
        return self.channels // self.lanes

    @property
    def pipeline_cycles(self) -> int:
        """Product, sum and rounding."""
        if self.shifted:
            return PRODUCT_CYCLES + sum_cycles(self.product, self.offset_fixed, self.y_fixed)
        return PRODUCT_CYCLES + rounding_cycles(self.product.fraction_bits - self.y_fixed.fraction_bits)

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
        return (Memory(IMAGE, self.groups, self.word_bits),)

    def images(self, state: State) -> dict[str, list[int]]:
        """Scales in the low bits of a word, offsets above."""
        words = pack(state["scale"], self.scale_fixed.width, self.lanes)
        if self.shifted:
            offsets = pack(state["offset"], self.offset_fixed.width, self.lanes)
            above = self.lanes * self.scale_fixed.width
            words = [scale | offset << above for scale, offset in zip(words, offsets, strict=True)]
        return {IMAGE: words}

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
    constants = constant_stream(domain, words, groups=cfg.groups, contents=contents)
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
    lanes, cut = cfg.lanes, cfg.product.fraction_bits - cfg.y_fixed.fraction_bits
    scales, products = Stream(cfg.word_bits), Stream(lanes * cfg.product.width)
    constants = constant_stream(domain, scales, groups=cfg.groups, contents=contents)
    multiply = product_stream(domain, x, scales, products, lanes=lanes, a_fixed=cfg.x_fixed, b_fixed=cfg.scale_fixed)
    rounding = round_stream(domain, products, y, lanes=lanes, shift=cut, target=cfg.y_fixed)
    return instances()


@block
def constant_stream(
    domain: ClockReset, words: Stream, *, groups: int, contents: Sequence[int] | None = None
) -> Instances:
    """The ``groups`` words of a read-only memory, again and again; image "constants".

    Ports:
        words: out, stream of words; valid from a register, payload from the memory.
    """
    width = words.width
    at = Signal(intbv(0)[address_width(groups) :])
    word = Signal(intbv(0)[width:])
    read = Stream(width)
    fetch, wanted = Signal(bool(0)), Signal(bool(0))
    always_wanted = always_on(domain.clk, wanted)
    store = read_only(domain.clk, fetch, at, word, depth=groups, width=width, contents=contents, image=IMAGE)
    reads = read_stream(domain, wanted, fetch, word, read)
    leave = output_register(domain, read, words, depth=groups)
    move = counter(domain, fetch, at, count=groups)
    return always_wanted, store, reads, leave, move
