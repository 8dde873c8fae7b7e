"""Dropout: every element is zeroed with probability ``ratio`` or else scaled by 1 / (1 - ratio); backwards likewise.

    y = keep * x / (1 - ratio)        dx = keep * e / (1 - ratio)

``keep`` is a function of (element, frame, seed, tensor), so the error engine draws the same mask again and nothing is
stashed.  Both the probability and the factor are constants of 16 significant bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from myhdl import Signal, always, always_comb, block, intbv, modbv

from hdl.engine.arithmetic.rounding import round_stream, rounding_cycles, scale_cycles, scale_stream
from hdl.engine.random import HASH_LATENCY, hash32_pipeline
from hdl.engine.weights.access import Begin, counter_link
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.meaning import State
from hdl.layers.pointwise.elementwise import ElementWise, Unary, UnaryError
from hdl.memory import address_width
from hdl.random_bits import ROUNDING_BITS, WORD, hash32, high_half, tensor_key
from hdl.recipe import Dealt, Recipe
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream, bits_of
from hdl.streams import counter, join, m2s_pipe

# significant bits of the factor
FACTOR_BITS = 16


@dataclass(frozen=True, kw_only=True)
class _Masking(ElementWise):
    """What both directions share: the mask and the factor."""

    # probability of zero
    ratio: float = 0.5
    recipe: Recipe = field(default_factory=Recipe)
    # distinguishes the random bits of this layer from others; the same in both directions
    tensor_id: int = 0
    # batches of an earlier training, from which it counts on
    begun: int = field(default=0, metadata=QUIET)

    # whether one draw is for all elements of a frame (`hdl.layers.pointwise.stochastic_depth`)
    per_frame: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ratio < 1:
            raise ShapeError(f"{type(self).__name__}: ratio must lie in [0, 1), not {self.ratio}")

    @property
    def threshold(self) -> int:
        """An element is zeroed if its 16 random bits are less than this."""
        return min(round(self.ratio * (1 << ROUNDING_BITS)), (1 << ROUNDING_BITS) - 1)

    @property
    def factor(self) -> tuple[int, int]:
        """(factor, shift): ``factor * 2**-shift`` is 1 / (1 - ratio), rounded; odd, so powers of two cost nothing."""
        factor, shift = round(2 ** (FACTOR_BITS - 1) / (1 - self.ratio)), FACTOR_BITS - 1
        while factor % 2 == 0:
            factor, shift = factor // 2, shift - 1
        return factor, shift

    @property
    def key(self) -> int:
        """Key of the random bits."""
        return tensor_key(self.recipe.seed, self.tensor_id)

    def keep(self, first_frame: int, frames: int) -> IntArray:
        """The masks of so many frames, (frames, height, width, channels) or (frames, 1, 1, 1): 1 of what survives."""
        index = np.zeros((1, 1, 1, 1), np.int64) if self.per_frame else np.arange(self.elements).reshape(1, *self.shape)
        frame = np.array([self.recipe.frame(first_frame + index) for index in range(frames)], np.int64)
        frame = frame.reshape(-1, 1, 1, 1)
        random = hash32(np.broadcast_to(index, (frames, *index.shape[1:])), frame, self.key)
        return (high_half(random) >= self.threshold).astype(np.int64)

    def _cycles(self, source: Fixed, target: Fixed) -> int:
        """Mask, product and rounding."""
        factor, shift = self.factor
        cut = source.fraction_bits + shift - target.fraction_bits
        return 1 + scale_cycles(source.width, factor) + rounding_cycles(cut)

    @property
    def _drawn(self) -> dict[str, Any]:
        """What decides the masks."""
        return {"ratio": self.ratio, "recipe": self.recipe, "tensor_id": self.tensor_id, "begun": self.begun}

    @property
    def begun_frames(self) -> int:
        """Frames of an earlier training."""
        return self.begun * self.recipe.batch

    @property
    def accessed(self) -> bool:
        """The number of frames."""
        return self.recipe.loaded

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Counts frames."""
        del parameters
        return {"frame": self.begun_frames}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """As `start`."""
        return self.start(parameters)

    def _masks(self, state: State, frames: int) -> IntArray:
        state["frame"] += frames
        return self.keep(state["frame"] - frames, frames)

    def _scaled(self, state: State, codes: IntArray, fraction_bits: int, target: Fixed) -> IntArray:
        factor, shift = self.factor
        return requantise(codes * self._masks(state, len(codes)) * factor, fraction_bits + shift, target)

    def _scaled_values(self, state: State, values: FloatArray) -> FloatArray:
        return values * self._masks(state, len(values)) / (1 - self.ratio)


@dataclass(frozen=True, kw_only=True)
class Dropout(Unary, _Masking):
    """Sink ``x``, source ``y``."""

    @property
    def pipeline_cycles(self) -> int:
        """Mask, product and rounding."""
        return self._cycles(self.x_fixed, self.y_fixed)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Masked, times the factor, rounded once."""
        return {"y": self._scaled(state, inputs["x"], self.x_fixed.fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula with the same mask."""
        return {"y": self._scaled_values(state, inputs["x"])}

    def evaluating(self, state: State, frames: int) -> tuple[Layer, State]:
        """Nothing is dropped."""
        del frames
        return dataclasses.replace(self, ratio=0.0), dict(state)

    def error(self) -> DropoutError:
        """The same mask on the error."""
        return DropoutError(**self.map, **self._drawn)

    def engine(self, domain: ClockReset, given: Stream, made: Stream) -> Instances:
        """One beat a cycle."""
        return dropout(domain, given, made, cfg=self)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        if not self.accessed:
            return super().circuit(domain, streams, images)
        return counted_dropout(domain, streams["x"], streams["y"], streams["load"], streams["dump"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """A factor of a power of two and not, nothing dropped, several lanes, other formats."""
        return (
            cls(height=2, width=3, channels=4, lanes=2, tensor_id=3),
            cls(height=2, width=2, channels=3, lanes=3, ratio=0.2, y_fixed=Fixed(16, 7)),
            cls(height=1, width=1, channels=5, ratio=0.0, recipe=Recipe(seed=9)),
            cls(height=1, width=2, channels=2, lanes=2, recipe=Recipe(batch=5).of_copy(1, 3)),
            cls(height=1, width=1, channels=3, recipe=Recipe(batch=4).of_copy(1, 2), begun=3),
            cls(height=1, width=1, channels=2, recipe=Recipe(batch=8).of_copy(1, 3, (1, 4, 2))),
        )


@dataclass(frozen=True, kw_only=True)
class DropoutError(UnaryError, _Masking):
    """Sink ``e``, source ``dx``."""

    @property
    def pipeline_cycles(self) -> int:
        """Mask, product and rounding."""
        return self._cycles(self.e_fixed, self.dx_fixed)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Masked, times the factor, rounded once."""
        return {"dx": self._scaled(state, inputs["e"], self.e_fixed.fraction_bits, self.dx_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula with the same mask."""
        return {"dx": self._scaled_values(state, inputs["e"])}

    def engine(self, domain: ClockReset, given: Stream, made: Stream) -> Instances:
        """One beat a cycle."""
        return dropout_error(domain, given, made, cfg=self)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        if not self.accessed:
            return super().circuit(domain, streams, images)
        return counted_dropout_error(domain, streams["e"], streams["dx"], streams["load"], streams["dump"], cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As forwards."""
        return (
            cls(height=2, width=3, channels=4, lanes=2, tensor_id=3),
            cls(height=2, width=2, channels=3, lanes=1, ratio=0.75, dx_fixed=Fixed(16, 10)),
        )


@block
def dropout(domain: ClockReset, x: Stream, y: Stream, *, cfg: Dropout) -> Instances:
    """The forward circuit.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``, ``cfg.pipeline_cycles`` later, from registers.
    """
    return masking(domain, x, y, cfg=cfg, source=cfg.x_fixed, target=cfg.y_fixed)


@block
def dropout_error(domain: ClockReset, e: Stream, dx: Stream, *, cfg: DropoutError) -> Instances:
    """The error circuit.

    Ports:
        e: in, stream of ``cfg.lanes`` codes of ``cfg.e_fixed``.
        dx: out, stream of ``cfg.lanes`` codes of ``cfg.dx_fixed``, ``cfg.pipeline_cycles`` later, from registers.
    """
    return masking(domain, e, dx, cfg=cfg, source=cfg.e_fixed, target=cfg.dx_fixed)


@block
def counted_dropout(domain: ClockReset, x: Stream, y: Stream, load: Stream, dump: Stream, *, cfg: Dropout) -> Instances:
    """`dropout`, with a number of frames behind it that comes by a stream.

    Ports:
        x: in, stream as that of `dropout`.
        y: out, stream as that of `dropout`.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    begin = Begin()
    link = counter_link(domain, load, dump, begin)
    return link, masking(domain, x, y, cfg=cfg, source=cfg.x_fixed, target=cfg.y_fixed, begin=begin)


@block
def counted_dropout_error(
    domain: ClockReset, e: Stream, dx: Stream, load: Stream, dump: Stream, *, cfg: DropoutError
) -> Instances:
    """`dropout_error`, with a number of frames behind it that comes by a stream.

    Ports:
        e: in, stream as that of `dropout_error`.
        dx: out, stream as that of `dropout_error`.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
    """
    begin = Begin()
    link = counter_link(domain, load, dump, begin)
    return link, masking(domain, e, dx, cfg=cfg, source=cfg.e_fixed, target=cfg.dx_fixed, begin=begin)


@block
def masking(
    domain: ClockReset,
    x: Stream,
    y: Stream,
    *,
    cfg: _Masking,
    source: Fixed,
    target: Fixed,
    begin: Begin | None = None,
) -> Instances:
    """Mask, factor, rounding, a register a lane each, and the hash for the mask.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``source``.
        y: out, stream of ``cfg.lanes`` codes of ``target``, ``cfg.pipeline_cycles`` later, from registers.
        begin: in, as of `mask_stream`.
    """
    lanes, width = cfg.lanes, source.width
    factor, shift = cfg.factor
    mask, both = Stream(lanes), Stream(lanes * (width + 1))
    selected, masked, scaled = Stream(x.width), Stream(x.width), Stream(lanes * (width + factor.bit_length()))
    draw = frame_mask_stream if cfg.per_frame else mask_stream
    masks = draw(
        domain, mask, lanes=lanes, elements=cfg.elements, threshold=cfg.threshold, key=cfg.key,
        begun=cfg.recipe.frame(cfg.begun_frames), begin=begin, dealt=cfg.recipe.dealt,
    )  # fmt: skip
    joined = join(domain, [x, mask], both)
    register = m2s_pipe(domain, selected, masked)
    scale = scale_stream(domain, masked, scaled, lanes=lanes, factor=factor)
    cut = source.fraction_bits + shift - target.fraction_bits
    rounding = round_stream(domain, scaled, y, lanes=lanes, shift=cut, target=target)
    start, ones = lanes * width, (1 << width) - 1

    # a gate in front of the register, not a clear, which the registers of a multiplier don't have
    @always_comb
    def select() -> None:
        mask = intbv(0)[width:]
        code = intbv(0)[width:]
        for lane in range(lanes):
            mask[:] = 0
            if both.payload[start + lane]:
                mask[:] = intbv(ones)[width:]
            code[:] = both.payload[bits_of(lane, width)]
            code[:] = code & mask
            selected.payload.next[bits_of(lane, width)] = code

    @always_comb
    def handshake() -> None:
        selected.valid.next = both.valid
        both.ready.next = selected.ready

    return masks, joined, register, scale, rounding, select, handshake


@block
def mask_stream(
    domain: ClockReset,
    mask: Stream,
    *,
    lanes: int,
    elements: int,
    threshold: int,
    key: int,
    begun: int,
    begin: Begin | None = None,
    dealt: Dealt | None = None,
) -> Instances:
    """`_Masking.keep`, ``lanes`` elements a beat, frame after frame from ``begun`` on, made ahead of its use.

    Ports:
        mask: out, stream of ``lanes`` bits: 1 where an element is kept; valid from a register.
        begin: in, ``held`` and ``frames`` alone: frames are counted from there on, and none has a mask before; None:
            from ``begun`` on.
        dealt: which frames these are, from the first of a batch on; None: all.
    """
    last = elements - lanes
    begun_frames = begun % (1 << WORD) if begin is None else begin.frames
    stride: Any = dealt.copies if dealt else 1
    parts: list[Instances] = []
    counting = domain if begin is None else begin.domain(domain)
    # carries into bit 16 from the threshold on
    offset = (1 << ROUNDING_BITS) - threshold
    index, hashed = (Signal(intbv(0)[WORD * lanes :]) for _ in range(2))
    first = Signal(intbv(0)[address_width(elements) :])
    frame = Signal(modbv(0)[WORD:])
    filled = [Signal(bool(0)) for _ in range(HASH_LATENCY)]
    known = filled[HASH_LATENCY - 1]
    advance = Signal(bool(0))
    hashing = hash32_pipeline(domain.clk, advance, index, frame, key, hashed)
    if begin is not None and dealt:
        begun_frames = Signal(modbv(0)[WORD:])
        parts.append(_first_frame(begin.frames, begun_frames, first_own=dealt.frame(0)))
    if dealt and dealt.are_uneven:
        over, stride = Signal(bool(0)), Signal(intbv(0, min=0, max=len(dealt.turns) * 2))
        parts += [_ends(advance, first, over, last=last), _strides(counting, over, stride, dealt=dealt)]

    @always_comb
    def decide() -> None:
        advance.next = mask.ready or not known

    @always_comb
    def indices() -> None:
        element = intbv(0)[WORD:]
        for lane in range(lanes):
            element[:] = first + lane
            index.next[bits_of(lane, 32)] = element

    @always_comb
    def out() -> None:
        bits = intbv(0)[17:]
        mask.valid.next = known
        for lane in range(lanes):
            bits[:] = hashed[lane * 32 + 32 : lane * 32 + 16]
            bits[:] = bits + offset
            mask.payload.next[lane] = bits[16]

    @always(domain.clk.posedge)
    def count() -> None:
        if advance:
            filled[0].next = True
            for stage in range(1, HASH_LATENCY):
                filled[stage].next = filled[stage - 1]
            if first == last:
                first.next = 0
                frame.next = frame + stride
            else:
                first.next = first + lanes
        if counting.rst:
            for stage in range(HASH_LATENCY):
                filled[stage].next = False
            first.next = 0
            frame.next = begun_frames

    return hashing, parts, decide, indices, out, count


@block
def _first_frame(behind: Bits, first: Bits, *, first_own: int) -> Instances:
    """The first frame of a copy behind so many of the training, which end a batch.

    Ports:
        behind: in, of any width.
        first: out, as wide, combinational in ``behind``.
    """

    @always_comb
    def add() -> None:
        total = modbv(0)[WORD:]
        total[:] = behind
        first.next = total + first_own

    return add


@block
def _ends(advance: Bit, first: Bits, over: Bit, *, last: int) -> Instances:
    @always_comb
    def judge() -> None:
        over.next = advance and first == last

    return judge


@block
def _strides(domain: ClockReset, over: Bit, stride: Bits, *, dealt: Dealt) -> Instances:
    """From one of a copy's frames to the next one, which is nearer or farther at the end of a batch, or everywhere.

    Ports:
        over: in, 1 bit: the next frame from this edge on.
        stride: out, combinational in a register.
    """
    frames = dealt.share(dealt.batch)
    steps = tuple(dealt.frame(frame + 1) - dealt.frame(frame) for frame in range(frames))
    last, within, across = frames - 1, steps[0] if frames > 1 else len(dealt.turns), steps[-1]
    place = Signal(intbv(0)[address_width(frames) :])
    places = counter(domain, over, place, count=frames)

    if len({*steps[:-1]}) > 1:

        @always_comb
        def look() -> None:
            stride.next = steps[int(place)]

        return places, look

    @always_comb
    def choose() -> None:
        stride.next = within
        if place == last:
            stride.next = across

    return places, choose


@block
def frame_mask_stream(
    domain: ClockReset,
    mask: Stream,
    *,
    lanes: int,
    elements: int,
    threshold: int,
    key: int,
    begun: int,
    begin: Begin | None = None,
    dealt: Dealt | None = None,
) -> Instances:
    """`mask_stream` of one bit a frame, which stays for all of its beats.

    Ports:
        mask: out, stream of ``lanes`` equal bits: 1 where the frame is kept; valid from a register.
        begin, dealt: as of `mask_stream`.
    """
    last, ones = elements // lanes - 1, (1 << lanes) - 1
    bit = Stream(1)
    beat = Signal(intbv(0)[address_width(elements // lanes) :])
    step = Signal(bool(0))
    beats = counter(domain, step, beat, count=elements // lanes)
    draws = mask_stream(
        domain, bit, lanes=1, elements=1, threshold=threshold, key=key, begun=begun, begin=begin, dealt=dealt
    )

    @always_comb
    def out() -> None:
        mask.valid.next = bit.valid
        mask.payload.next = 0
        if bit.payload == 1:
            mask.payload.next = intbv(ones)[lanes:]
        bit.ready.next = mask.ready and beat == last
        step.next = bit.valid and mask.ready

    return draws, beats, out
