"""Global average pool: the mean of each channel over the map; backwards, every pixel gets its share of the error.

    y[c] = 1 / (H W) * sum over pixels of x[h, v, c]        dx[h, v, c] = e[c] / (H W)

1 / (H W) is a fixed-point constant of `RECIPROCAL_BITS` significant bits (exact where H W is a power of two).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from myhdl import Signal, always, always_comb, block, instances, intbv

from hdl.engine.arithmetic.rounding import round_stream, rounding_cycles, scale_cycles, scale_stream
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.meaning import State
from hdl.layers.pointwise.elementwise import BesideVector, Unary, UnaryError
from hdl.memory import address_width, simple_dual_port
from hdl.signals import Bit, Bits, Clock, ClockReset, Instances
from hdl.stream import Stream, bits_of
from hdl.streams import m2s_pipe, output_register, output_register_latency, queue, queue_latency, width_adapter
from hdl.tensor import Kind, Port, Tensor

RECIPROCAL_BITS = 16
# cycles from a beat of the last pixel to its sum
SUM_LATENCY = 3
# beats of a pixel from which on sums lie in a memory: it takes three cycles from the read of a sum to having written it
MEMORY_GROUPS = 3


@dataclass(frozen=True, kw_only=True)
class _Averaging(BesideVector):
    """What both directions share: the constant, and a vector at one end."""

    # elements a beat of the vector, y or e
    vector_lanes: int = 1

    @property
    def reciprocal(self) -> tuple[int, int]:
        """(factor, shift): ``factor * 2**-shift`` is 1 / (H W), rounded."""
        magnitude = (self.pixels - 1).bit_length()
        if self.pixels == 1 << magnitude:
            return 1, magnitude
        shift = magnitude + RECIPROCAL_BITS - 1
        return ((1 << shift) + self.pixels // 2) // self.pixels, shift

    @property
    def closeness(self) -> dict[str, float]:
        """The constant is off by 2**-17 of itself, the greatest code by a quarter of a step, before it is rounded."""
        return {port.name: 0.75 for port in self.sources}

    def _cycles(self, width: int, source: Fixed, target: Fixed) -> int:
        """Scaling of codes of ``width`` bits, rounding, and the width adapter."""
        factor, shift = self.reciprocal
        scaling = scale_cycles(width, factor) + rounding_cycles(source.fraction_bits + shift - target.fraction_bits)
        return scaling + int(len({port.lanes for port in (*self.sinks, *self.sources)}) > 1)


@dataclass(frozen=True, kw_only=True)
class GlobalAveragePool(Unary, _Averaging):
    """Sink ``x``, source ``y`` (1, 1, channels).  Keeps one exact sum a channel."""

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor((1, 1, self.channels), self.y_fixed, Kind.ACTIVATION), self.vector_lanes),)

    @property
    def sum_bits(self) -> int:
        """Bits of an exact sum."""
        return self.x_fixed.width + (self.pixels - 1).bit_length()

    @property
    def pipeline_cycles(self) -> int:
        """Sum, mean, and the gathering or spreading of lanes."""
        return self.latency_cycles("y") + self.pixel_beats + 1

    def latency_cycles(self, source: str) -> int:
        """Sum, mean, width adapter."""
        del source
        return SUM_LATENCY + self._cycles(self.sum_bits, self.x_fixed, self.y_fixed)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All pixels but the channels of the last that come later."""
        del source
        return {"x": self.elements - self.channels + -(-elements // self.lanes) * self.lanes}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sum, times the constant, rounded once."""
        del state
        factor, shift = self.reciprocal
        total = inputs["x"].sum(axis=(1, 2), keepdims=True) * factor
        return {"y": requantise(total, self.x_fixed.fraction_bits + shift, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The mean."""
        del state
        return {"y": inputs["x"].mean(axis=(1, 2), keepdims=True)}

    def error(self) -> GlobalAveragePoolError:
        """Spread the error."""
        return GlobalAveragePoolError(**self.map)

    def engine(self, domain: ClockReset, given: Stream, made: Stream) -> Instances:
        """One beat a cycle."""
        return global_average_pool(domain, given, made, cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Maps of a power of two and not, one and several beats a pixel, a map of one pixel."""
        return (
            cls(height=2, width=2, channels=4, lanes=2, vector_lanes=2),
            cls(height=3, width=5, channels=6, lanes=2, y_fixed=Fixed(16, 11)),
            cls(height=3, width=2, channels=3, lanes=3, vector_lanes=1),
            cls(height=1, width=1, channels=2),
        )


@dataclass(frozen=True, kw_only=True)
class GlobalAveragePoolError(UnaryError, _Averaging):
    """Sink ``e`` (1, 1, channels), source ``dx``.  Keeps one error a channel while it spreads it."""

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e."""
        return (Port("e", Tensor((1, 1, self.channels), self.e_fixed, Kind.ERROR), self.vector_lanes),)

    @property
    def pipeline_cycles(self) -> int:
        """Share, the gathering or spreading of lanes, memory."""
        return self.latency_cycles("dx") + self.pixel_beats + 1

    def latency_cycles(self, source: str) -> int:
        """A register, share, width adapter, queue, memory."""
        del source
        memory = queue_latency(self.pixel_beats) + 1 + output_register_latency(self.pixel_beats)
        return 1 + self._cycles(self.e_fixed.width, self.e_fixed, self.dx_fixed) + memory

    def required(self, source: str, elements: int) -> dict[str, int]:
        """The channels of the first pixel as they come; afterwards all."""
        del source
        return {"e": min(elements, self.channels)}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Times the constant, rounded once, to every pixel."""
        del state
        factor, shift = self.reciprocal
        share = requantise(inputs["e"] * factor, self.e_fixed.fraction_bits + shift, self.dx_fixed)
        return {"dx": np.broadcast_to(share, (len(share), *self.shape)).copy()}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        share = inputs["e"] / self.pixels
        return {"dx": np.broadcast_to(share, (len(share), *self.shape)).copy()}

    def engine(self, domain: ClockReset, given: Stream, made: Stream) -> Instances:
        """One beat a cycle."""
        return global_average_pool_error(domain, given, made, cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As forwards."""
        return (
            cls(height=2, width=2, channels=4, lanes=2, vector_lanes=2),
            cls(height=3, width=5, channels=6, lanes=2, dx_fixed=Fixed(16, 14)),
            cls(height=3, width=2, channels=3, lanes=3, vector_lanes=1),
            cls(height=1, width=1, channels=2),
        )


@block
def global_average_pool(domain: ClockReset, x: Stream, y: Stream, *, cfg: GlobalAveragePool) -> Instances:
    """Sums in a memory with one word a beat of a pixel; the finished sums are scaled and rounded as a stream.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        y: out, stream of ``cfg.vector_lanes`` codes of ``cfg.y_fixed``.
    """
    lanes, width, sum_bits = cfg.lanes, cfg.x_fixed.width, cfg.sum_bits
    factor, shift = cfg.reciprocal
    scaled_bits = sum_bits + factor.bit_length()
    sums, scaled, rounded = Stream(lanes * sum_bits), Stream(lanes * scaled_bits), Stream(lanes * cfg.y_fixed.width)
    collect = sum_pixels(domain, x, sums, lanes=lanes, width=width, sum_bits=sum_bits, groups=cfg.pixel_beats,
                         pixels=cfg.pixels)  # fmt: skip
    scale = scale_stream(domain, sums, scaled, lanes=lanes, factor=factor)
    cut = cfg.x_fixed.fraction_bits + shift - cfg.y_fixed.fraction_bits
    rounding = round_stream(domain, scaled, rounded, lanes=lanes, shift=cut, target=cfg.y_fixed)
    adapt = width_adapter(domain, rounded, y, element_bits=cfg.y_fixed.width)
    return instances()


@block
def sum_pixels(
    domain: ClockReset, x: Stream, sums: Stream, *, lanes: int, width: int, sum_bits: int, groups: int, pixels: int
) -> Instances:
    """Adds up ``pixels`` pixels of ``groups`` beats; with the last pixel, the sums leave beat by beat.

    Three stages: read the old sum, register it, add and write back; nothing but the adder stands in the last one.  With
    fewer beats a pixel than that takes, the sums are a ring of registers.

    Ports:
        x: in, stream of ``lanes`` signed codes of ``width`` bits; its ready is combinational in that of ``sums``.
        sums: out, stream of ``lanes`` signed sums of ``sum_bits`` bits, `SUM_LATENCY` cycles later, from registers.
    """
    word_bits = lanes * sum_bits
    # one bit more than any sum: between frames, an operand may meet the finished sum for nothing
    bound = 1 << sum_bits
    last_group, last_pixel = groups - 1, pixels - 1
    group = Signal(intbv(0)[address_width(groups) :])
    pixel = Signal(intbv(0)[address_width(pixels) :])
    # of the beat whose sum is read, and of that which is added
    places = [Signal(intbv(0)[len(group) :]) for _ in range(2)]
    operands = [Signal(intbv(0)[lanes * width :]) for _ in range(2)]
    valid, last = ([Signal(bool(0)) for _ in range(2)] for _ in range(2))
    first, fire, go, store, sums_valid = (Signal(bool(0)) for _ in range(5))
    old, total = Signal(intbv(0)[word_bits:]), Signal(intbv(0)[word_bits:])
    result = Signal(intbv(0)[word_bits:])
    keep = memory_of_sums if groups >= MEMORY_GROUPS else ring_of_sums
    kept = keep(domain.clk, fire, group, first, go, old, store, places[1], total, groups=groups)

    @always_comb
    def handshake() -> None:
        go.next = sums.ready or not sums_valid
        sums.valid.next = sums_valid
        sums.payload.next = result

    @always_comb
    def accept() -> None:
        fire.next = x.valid and go
        store.next = valid[1] and go
        x.ready.next = go

    @always(domain.clk.posedge)
    def count() -> None:
        if fire:
            if group == last_group:
                group.next = 0
                if pixel == last_pixel:
                    pixel.next = 0
                else:
                    pixel.next = pixel + 1
            else:
                group.next = group + 1
        if domain.rst:
            group.next = 0
            pixel.next = 0

    @always(domain.clk.posedge)
    def step() -> None:
        if go:
            valid[0].next = x.valid
            operands[0].next = x.payload
            places[0].next = group
            first.next = pixel == 0
            last[0].next = pixel == last_pixel
            valid[1].next = valid[0]
            operands[1].next = operands[0]
            places[1].next = places[0]
            last[1].next = last[0]
        if domain.rst:
            valid[0].next = False
            valid[1].next = False

    @always_comb
    def add() -> None:
        lane_sum = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            lane_sum[:] = operands[1][bits_of(lane, width)].signed()
            lane_sum[:] = lane_sum + old[bits_of(lane, sum_bits)].signed()
            total.next[bits_of(lane, sum_bits)] = lane_sum[sum_bits:]

    @always(domain.clk.posedge)
    def leave() -> None:
        if go:
            sums_valid.next = valid[1] and last[1]
            result.next = total
        if domain.rst:
            sums_valid.next = False

    return kept, handshake, accept, count, step, add, leave


@block
def memory_of_sums(
    clk: Clock,
    fire: Bit,
    group: Bits,
    first: Bit,
    go: Bit,
    old: Bits,
    store: Bit,
    place: Bits,
    total: Bits,
    *,
    groups: int,
) -> Instances:
    """The sums of `sum_pixels` in a memory.

    Ports:
        fire: in, 1 bit: the sum of a beat is read at this edge.
        group: in, `address_width` ``(groups)`` bits, with ``fire``: which beat of its pixel.
        first: in, 1 bit, the cycle after ``fire``: the beat is of a first pixel.
        go: in, 1 bit: the pipeline moves.
        old: out, as wide as ``total``, 2 moves after ``fire``: the sum so far; 0 for a first pixel.
        store: in, 1 bit, with ``old``: the sum is written at this edge.
        place: in, as wide as ``group``, with ``store``.
        total: in, of any width, with ``store``: the sum with the beat.
    """
    width = len(total)
    word = Signal(intbv(0)[width:])
    memory = simple_dual_port(clk, store, place, total, fire, group, word, depth=groups, width=width)

    @always(clk.posedge)
    def register() -> None:
        if go:
            if first:
                old.next = 0
            else:
                old.next = word

    return memory, register


@block
def ring_of_sums(
    clk: Clock,
    fire: Bit,
    group: Bits,
    first: Bit,
    go: Bit,
    old: Bits,
    store: Bit,
    place: Bits,
    total: Bits,
    *,
    groups: int,
) -> Instances:
    """`memory_of_sums` in ``groups`` registers: the oldest is that of the beat at work.

    Ports:
        fire, group, place: in, of `memory_of_sums`; not used.
        first, go, store, total: in, of `memory_of_sums`.
        old: out, of `memory_of_sums`.
    """
    del fire, group, place
    width, final = len(total), groups - 1
    ring = [Signal(intbv(0)[width:]) for _ in range(groups)]
    fresh = Signal(bool(0))

    @always(clk.posedge)
    def turn() -> None:
        if go:
            fresh.next = first
        if store:
            ring[0].next = total
            for place_of in range(final):
                ring[place_of + 1].next = ring[place_of]

    @always_comb
    def out() -> None:
        old.next = ring[final]
        if fresh:
            old.next = 0

    return turn, out


@block
def global_average_pool_error(domain: ClockReset, e: Stream, dx: Stream, *, cfg: GlobalAveragePoolError) -> Instances:
    """The vector is scaled and rounded as it comes, leaves as the first pixel, and is replayed for the others.

    Ports:
        e: in, stream of ``cfg.vector_lanes`` codes of ``cfg.e_fixed``.
        dx: out, stream of ``cfg.lanes`` codes of ``cfg.dx_fixed``.
    """
    lanes, width, out_width = cfg.vector_lanes, cfg.e_fixed.width, cfg.dx_fixed.width
    factor, shift = cfg.reciprocal
    scaled_bits = width + factor.bit_length()
    scaled, rounded, word = Stream(lanes * scaled_bits), Stream(lanes * out_width), Stream(cfg.lanes * out_width)
    taken = Stream(e.width)
    take = m2s_pipe(domain, e, taken)
    scale = scale_stream(domain, taken, scaled, lanes=lanes, factor=factor)
    cut = cfg.e_fixed.fraction_bits + shift - cfg.dx_fixed.fraction_bits
    rounding = round_stream(domain, scaled, rounded, lanes=lanes, shift=cut, target=cfg.dx_fixed)
    early = Stream(cfg.lanes * out_width)
    adapt = width_adapter(domain, rounded, early, element_bits=out_width)
    # the next frame's vector gathers while this one's is spread
    gather = queue(domain, early, word, depth=cfg.pixel_beats)
    spread = repeat_pixel(domain, word, dx, groups=cfg.pixel_beats, pixels=cfg.pixels)
    return instances()


@block
def repeat_pixel(domain: ClockReset, x: Stream, y: Stream, *, groups: int, pixels: int) -> Instances:
    """Each vector of ``groups`` beats leaves ``pixels`` times.

    The first time it passes through and is written to a memory, from which the other times are read.

    Ports:
        x: in, stream of any width; its ready is high at most while a first pixel passes.
        y: out, stream as wide as ``x``, 1 cycle later and that of an `output_register`; valid from a register.
    """
    width = x.width
    last_group, last_pixel = groups - 1, pixels - 1
    group = Signal(intbv(0)[address_width(groups) :])
    pixel = Signal(intbv(0)[address_width(pixels) :])
    fresh, stored = Signal(intbv(0)[width:]), Signal(intbv(0)[width:])
    go, issue, valid, from_input, write = (Signal(bool(0)) for _ in range(5))
    words = Stream(width)
    leave = output_register(domain, words, y, depth=groups)
    memory = simple_dual_port(domain.clk, write, group, x.payload, issue, group, stored, depth=groups, width=width)

    @always_comb
    def decide() -> None:
        go.next = words.ready or not valid

    @always_comb
    def accept() -> None:
        x.ready.next = go and pixel == 0
        write.next = go and pixel == 0 and x.valid
        issue.next = go and (pixel != 0 or x.valid)

    @always(domain.clk.posedge)
    def step() -> None:
        if go:
            valid.next = issue
        if issue:
            fresh.next = x.payload
            from_input.next = pixel == 0
            if group == last_group:
                group.next = 0
                if pixel == last_pixel:
                    pixel.next = 0
                else:
                    pixel.next = pixel + 1
            else:
                group.next = group + 1
        if domain.rst:
            valid.next = False
            group.next = 0
            pixel.next = 0

    @always_comb
    def out() -> None:
        words.valid.next = valid
        if from_input:
            words.payload.next = fresh
        else:
            words.payload.next = stored

    return memory, leave, decide, accept, step, out
