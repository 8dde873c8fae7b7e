"""Gradients of copies, added up from copy to copy, exactly or as a codec leaves them on the way::

    own sums ─▶ g ┐              own sums ─▶ g ┐                  own sums ─▶ g ┐
              Exchange@0 ─ ring_out ─▶ ring_in Exchange@1 ─ … ─▶ ring_in Exchange@r-1 ─▶ g_sum ─▶ to all copies

Source: `hdl.engine.codec.collective` (`Collective.CHAIN`), after Li, Park et al., "A Network-Centric
Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural Networks", MICRO 2018.

Without a codec the exact sum goes from copy to copy, and the last one rounds it, with the random bits of a single
engine: so the bits are those of one pipeline, whoever summed what.  With one each copy rounds its own sum, adds it,
saturated, to what came, and hands on what is decoded of the code of that (`IntegerCodec`).  So all copies get the
decoded form, the last one as well, and their weights stay equal.

Where all copies send to one place (`Collective.CENTRAL`), each rounds and codes its own sum alone, and a `GradientSum`
there adds what is decoded::

    own sums ─▶ g Exchange@0 ─ g_out ─╮
    own sums ─▶ g Exchange@1 ─ g_out ─┴─▶ GradientSum ─▶ one update

No tensor is stored: an element leaves as soon as it came from the copy before and from the own engine.  With feedback
each copy keeps what the codec took of each element, and adds it to the next batch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from typing import Any, Self

import numpy as np
from myhdl import block

from hdl.engine.arithmetic.rounding import exact_sum, sum_cycles, sum_stream
from hdl.engine.codec.coding import Coding
from hdl.engine.codec.cut import CUT_CYCLES, cut_stream
from hdl.engine.codec.feedback import (
    RESIDUAL,
    ResidualState,
    ResidualStreams,
    feedback_cycles,
    feedback_stream,
    loop_cycles,
    residual_fixed,
)
from hdl.engine.codec.integer_codec import Cut, IntegerCodec, with_feedback
from hdl.engine.codec.residuals_access import accessed_residuals
from hdl.engine.weights.access import Batches, Begin, counter_link, state_link
from hdl.engine.weights.gradient_rounding import GRADIENT_ROUNDING_LATENCY, Rounding, gradient_rounding
from hdl.engine.weights.noise import element_noise
from hdl.engine.weights.records import WORD_BITS
from hdl.engine.weights.sections import MemoryAccess, joined_words, pieces_of, split_words, state_sections
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.beats import pack, unpack
from hdl.layers.meaning import State
from hdl.layers.storage import Home, Memory, Ring
from hdl.layers.wiring.gradient_sum import GradientSum, add_stream, gradient_sum, wrapped
from hdl.layers.wiring.parameter import ParameterLayer
from hdl.random_bits import hash32, high_half, requantise_by_element, stable_id, tensor_key
from hdl.recipe import Recipe
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.streams import join, queue, queue_latency
from hdl.tensor import Kind, Port, Tensor, Tile, from_order, in_order

# places of the queue at the end
DEPTH = 2


@dataclass(frozen=True, kw_only=True)
class Exchange(ParameterLayer):
    """Sinks ``g`` (own sum over frames of a batch, exact) and, but for the first copy, ``ring_in``; source
    ``ring_out``, or of the last copy ``g_sum``; all once a batch in the tile's order.  One beat a cycle.  Of sums that
    are ``gathered`` in one place: sink ``g``, source ``g_out``.

    ``tensor_id`` is that of the engine which would round all sums itself.
    Raises `ShapeError` for a copy that is none, sums that are too wide, or a codec of another width."""

    copy: int = 0
    # that share the batch
    copies: int = 2
    # bits of the copies' own sums, all with the same binary point
    widths: tuple[int, ...] = (28, 28)
    # whether sums of copies wrap as each of these does, instead of growing
    wraps: bool = field(default=False, metadata=QUIET)
    fraction_bits: int = 16
    g_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    # of what is handed on; None: exact sums
    codec: IntegerCodec | None = None
    # whether what that takes of an element is kept, and added to the next batch's
    feedback: bool = field(default=False, metadata=QUIET)
    # whether what it makes is added in one place, to what all other copies make, instead of going from copy to copy
    gathered: bool = field(default=False, metadata=QUIET)
    # bits of what is handed on, in percent of those of its words, that plans count on; 0: nobody said
    ratio_percent: int = field(default=0, metadata=QUIET)
    # whether links carry what it makes as it is, though a codec has left few bits of it
    plain: bool = field(default=False, metadata=QUIET)
    # batches of an earlier training, from which it counts on
    begun: int = field(default=0, metadata=QUIET)
    # where residuals lie
    residuals: Home = field(default=Home.ON_CHIP, metadata=QUIET)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.copy < self.copies or len(self.widths) != self.copies:
            raise ShapeError(
                f"{self.title}: copy {self.copy} of {self.copies}, with sums of {len(self.widths)} copies",
                "give the sums of all copies, and one of these",
            )
        if self.codec is not None and self.codec.width != self.g_fixed.width:
            raise ShapeError(
                f"{self.title}: a codec of {self.codec.width} bits for gradients of {self.g_fixed.width}",
                "take one of their width",
            )
        if self.feedback and (self.codec is None or not self.codec.drop):
            raise ShapeError(
                f"{self.title}: feedback of what no codec takes", "take one that drops bits, or no feedback"
            )
        if self.gathered and self.codec is None:
            raise ShapeError(
                f"{self.title}: exact sums that are added in one place need no exchange", "add them as they are"
            )
        if self.residuals is not Home.ON_CHIP and not self.feedback:
            raise ShapeError(f"{self.title}: no residuals that could lie outside", "leave them on chip, or keep some")
        if self.codec is None and self.is_last:
            # says what is wrong with sums of all copies
            _ = self.rounded

    @classmethod
    def of(cls, rounded: GradientSum, widths: Sequence[int], copy: int, **coded: Any) -> Self:
        """One of those that stand for what would round the sum of a single engine; ``widths`` of each copy's sums."""
        return cls(
            shape=rounded.shape,
            recipe=rounded.recipe,
            tile=rounded.tile,
            w_lanes=rounded.w_lanes,
            tensor_id=rounded.tensor_id,
            copy=copy,
            copies=len(widths),
            widths=tuple(widths),
            wraps=rounded.wraps,
            fraction_bits=rounded.s_fixed.fraction_bits,
            g_fixed=rounded.g_fixed,
            begun=rounded.begun,
            **coded,
        )

    # ---- ports

    @property
    def is_last(self) -> bool:
        """Whether it has the sum of all copies."""
        return self.copy == self.copies - 1 and not self.gathered

    @property
    def adds(self) -> bool:
        """Whether the copy before hands a sum on to it."""
        return self.copy > 0 and not self.gathered

    @property
    def own(self) -> Fixed:
        """Of the own sum."""
        return Fixed(self.widths[self.copy], self.fraction_bits)

    def handed_on(self, copies: int) -> Fixed:
        """Of the sum of the first so many copies on the way to the next one."""
        if self.codec is not None:
            return self.g_fixed
        if self.wraps:
            return self.own
        return reduce(exact_sum, (Fixed(width, self.fraction_bits) for width in self.widths[:copies]))

    @property
    def sinks(self) -> tuple[Port, ...]:
        """g, ring_in; residuals from a store."""
        came = [self._port("ring_in", self.handed_on(self.copy))] if self.adds else []
        return (self._port("g", self.own), *came, *(ring.back for ring in self.remote))

    @property
    def sources(self) -> tuple[Port, ...]:
        """ring_out, g_sum, or g_out; residuals to a store."""
        name = "g_out" if self.gathered else "g_sum" if self.is_last else "ring_out"
        fixed = self.g_fixed if self.is_last else self.handed_on(self.copy + 1)
        return (self._port(name, fixed), *(ring.out for ring in self.remote))

    def coding(self, source: str) -> Coding | None:
        """The codec's values are handed on in words of few bits."""
        if self.codec is None or self.plain or source != self.sources[0].name:
            return None
        return Coding(self.codec, Fraction(self.ratio_percent, 100) if self.ratio_percent else None)

    def _port(self, name: str, fixed: Fixed, kind: Kind = Kind.GRADIENT) -> Port:
        return self.parameter_port(name, Tensor(self.shape, fixed, kind))

    def at(self, home: Home) -> Self | None:
        """Residuals there, if it keeps some."""
        if home in (Home.PARKED, Home.LENT) or not self.feedback:
            return self if home is Home.ON_CHIP else None
        return replace(self, residuals=home)

    @property
    def rings(self) -> tuple[Ring, ...]:
        """Residuals that lie in DRAM."""
        return self._outside(Kind.GRADIENT) if self.residuals is Home.DRAM else ()

    @property
    def remote(self) -> tuple[Ring, ...]:
        """Residuals that lie in a store."""
        return self._outside(Kind.STATE) if self.residuals is Home.REMOTE else ()

    def _outside(self, kind: Kind) -> tuple[Ring, ...]:
        """Ports ``residual_in`` and ``residual_out``."""
        assert self.codec is not None
        fixed = residual_fixed(self.codec, self.g_fixed)
        back, out = (self._port(f"{RESIDUAL}_{way}", fixed, kind) for way in ("in", "out"))
        per_frame = Fraction(1, self.recipe.batch)
        return (
            Ring(
                name=RESIDUAL, back=back, out=out, capacity=1, preload=1, loaded=self.accessed, per_frame=per_frame
            ),
        )  # fmt: skip

    @property
    def rounded(self) -> GradientSum:
        """What adds the exact sum of all other copies to the last one's, and rounds."""
        came = self.handed_on(self.copies - 1)
        return GradientSum(
            shape=self.shape,
            recipe=self.recipe,
            tile=self.tile,
            w_lanes=self.w_lanes,
            tensor_id=self.tensor_id,
            copies=2,
            s_fixed=max(came, self.own, key=lambda fixed: fixed.width),
            widths=(came.width, self.own.width),
            wraps=self.wraps,
            g_fixed=self.g_fixed,
            begun=self.begun,
        )

    @property
    def pipeline_cycles(self) -> int:
        """A queue behind an adder; or rounding, adder and codec before it."""
        if self.codec is None and self.is_last:
            return self.rounded.pipeline_cycles
        if self.codec is None:
            return int(self.adds) + queue_latency(DEPTH)
        adder = sum_cycles(self.g_fixed, self.g_fixed, self.g_fixed) if self.adds else 0
        cut = feedback_cycles(self.codec, self.g_fixed) if self.feedback else CUT_CYCLES
        return GRADIENT_ROUNDING_LATENCY + adder + cut + queue_latency(DEPTH)

    @property
    def cycles_per_batch(self) -> int:
        """A beat a cycle; with feedback a residual must have been written before it is read again."""
        beats = super().cycles_per_batch
        if self.codec is None or not self.feedback or self.residuals is not Home.ON_CHIP:
            return beats
        return max(beats, loop_cycles(self.codec, self.g_fixed, beats))

    @property
    def accessed(self) -> bool:
        """The number of batches, and residuals."""
        return self.recipe.loaded

    def state_words(self, state: State) -> list[int]:
        """Residuals in stream order, those of a beat together, wherever they lie."""
        images = self.images(state)
        return split_words(images[RESIDUAL], self.beat_bits) if self.feedback else []

    def with_state_words(self, state: State, words: Sequence[int]) -> None:
        """Residuals."""
        if not self.feedback:
            return
        assert self.codec is not None
        kept = unpack(joined_words(words, self.beat_bits), residual_fixed(self.codec, self.g_fixed), self.w_lanes)
        state[RESIDUAL] = from_order(kept, self.stream_order("g")).reshape(self.shape)

    @property
    def beats(self) -> int:
        """Of a tensor."""
        return self.tiled_elements // self.w_lanes

    @property
    def beat_bits(self) -> int:
        """Of the residuals of a beat, where there is feedback."""
        assert self.codec is not None
        return self.w_lanes * residual_fixed(self.codec, self.g_fixed).width

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """The number of batches behind it, for random bits; nothing was taken yet, unless it is carried over; exact
        sums that did not fit where they wrap."""
        if not self.feedback:
            counts = {"batch": self.begun}
            return {**counts, "wrapped": 0} if self.wraps and self.codec is None else counts
        residual = np.zeros(self.shape, np.int64)
        if RESIDUAL in parameters:
            residual = np.rint(parameters[RESIDUAL] / self.g_fixed.step).astype(np.int64).reshape(self.shape)
        return {"batch": self.begun, RESIDUAL: residual}

    def carried(self, state: State) -> dict[str, FloatArray]:
        """Residuals."""
        return {RESIDUAL: self.g_fixed.decode(state[RESIDUAL])} if self.feedback else {}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """A hop of the chain, or what is sent to the one place."""
        batch, source = state["batch"], self.sources[0].name
        state["batch"] += 1
        own, came = inputs["g"], inputs.get("ring_in", np.zeros(self.shape, np.int64))
        if self.codec is None:
            total = own + came
            if self.wraps:
                total = wrapped(state, total, self.own)
            if not self.is_last:
                return {source: total}
            return {source: requantise_by_element(total, self.fraction_bits, self.g_fixed, batch, self.sum_key)}
        rounded = requantise_by_element(own, self.fraction_bits, self.g_fixed, batch, self.key("copy"))
        noise = high_half(hash32(np.arange(own.size).reshape(self.shape), batch, self.key("hop")))
        total = self.g_fixed.saturate(rounded + came)
        if not self.feedback:
            return {source: self.codec.decode(*self.codec.encode(total, noise))}
        tags, codes, state[RESIDUAL] = with_feedback(self.codec, total, state[RESIDUAL], noise)
        return {source: self.codec.decode(tags, codes)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The sum."""
        del state
        return {self.sources[0].name: np.sum(list(inputs.values()), axis=0)}

    @property
    def closeness(self) -> dict[str, float]:
        """Exact, a stochastic rounding, or that and what the codec cuts off."""
        if self.codec is not None:
            return {self.sources[0].name: 1.0 + (1 + self.feedback) * self.codec.worst_error}
        return {self.sources[0].name: float(self.is_last)}

    @property
    def sum_key(self) -> int:
        """Of the random bits by which the sum of all copies is rounded."""
        return tensor_key(self.recipe.seed, self.tensor_id)

    def key(self, what: str) -> int:
        """Of random bits that are this copy's alone: ``copy``, of its own rounding, or ``hop``, of the codec's."""
        return tensor_key(self.recipe.seed, self.tensor_id ^ stable_id(f"{what} {self.copy}"))

    # ---- hardware

    @property
    def order(self) -> Tile:
        """Of the stream: a vector has its own."""
        return self.tile if len(self.shape) > 1 else Tile()

    def memories(self) -> tuple[Memory, ...]:
        """Residuals."""
        if self.codec is None or not self.feedback or self.residuals is not Home.ON_CHIP:
            return ()
        return (Memory(RESIDUAL, self.beats, self.beat_bits, is_state=True),)

    def images(self, state: State) -> dict[str, list[int]]:
        """Residuals in stream order."""
        if self.codec is None or not self.feedback:
            return {}
        flat = in_order(state[RESIDUAL].reshape(-1), self.stream_order("g"))
        return {RESIDUAL: pack(flat, residual_fixed(self.codec, self.g_fixed).width, self.w_lanes)}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """Adders alone, or rounding, an adder and the codec."""
        own, came, out = streams["g"], streams.get("ring_in"), streams[self.sources[0].name]
        contents = (images or {}).get(RESIDUAL)
        outside = [
            ResidualStreams(streams[ring.back.name], streams[ring.out.name]) for ring in (*self.rings, *self.remote)
        ]
        if self.accessed:
            chain = streams["load"], streams["dump"]
            return accessed_hop(domain, own, came, out, *chain, *outside, cfg=self, contents=contents)
        return hop(domain, own, came, out, *outside, cfg=self, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Ends and middle of a chain, exact and with each rounding of a codec; one that is added elsewhere; ragged
        tiles."""
        recipe = Recipe(batch=3, seed=5)
        wide: dict[str, Any] = {
            "shape": (5, 4, 1, 1),
            "tile": Tile(2, 2),
            "w_lanes": 2,
            "recipe": recipe,
            "tensor_id": 5,
        }
        three: dict[str, Any] = {"copies": 3, "widths": (20, 19, 19), "fraction_bits": 12}
        codecs = [IntegerCodec(5, cut=cut) for cut in Cut]
        return (
            cls(shape=(6,), w_lanes=2, recipe=Recipe(batch=2)),
            cls(copy=1, **wide, **three),
            cls(copy=2, **wide, **three),
            cls(copy=0, codec=codecs[0], **wide, **three),
            cls(copy=1, codec=codecs[2], feedback=True, **wide, **three),
            cls(copy=1, codec=codecs[2], **wide, **three),
            cls(copy=1, codec=codecs[1], feedback=True, gathered=True, **wide, **three),
            cls(shape=(4,), copy=1, recipe=Recipe(batch=1), codec=codecs[1], begun=3),
            cls(shape=(3,), widths=(18, 18), recipe=Recipe(batch=1), codec=IntegerCodec(4), feedback=True),
            cls(copy=1, codec=codecs[2], feedback=True, residuals=Home.DRAM, **wide, **three),
            cls(shape=(3,), recipe=Recipe(batch=1), codec=IntegerCodec(4), feedback=True, residuals=Home.REMOTE),
            *(cls(copy=copy, **wide, **three | {"widths": (20, 20, 20)}, wraps=True) for copy in (1, 2)),
        )


@block
def accessed_hop(
    domain: ClockReset,
    own: Stream,
    came: Stream | None,
    y: Stream,
    load: Stream,
    dump: Stream,
    outside: ResidualStreams | None = None,
    *,
    cfg: Exchange,
    contents: Sequence[int] | None,
) -> Instances:
    """`hop`, with a number of batches behind it, and residuals, that come by a stream and go out by one.

    Ports:
        own, came: in, streams as those of `hop`.
        y: out, stream as that of `hop`.
        load: in, stream of 65 bits.
        dump: out, stream of 65 bits; valid and payload from registers.
        outside: in and out, where residuals don't lie here.
    """
    begin, batches = Begin(), Batches()
    if not cfg.feedback:
        return counter_link(domain, load, dump, begin), hop(domain, own, came, y, cfg=cfg, contents=None, begin=begin)
    taken, given = Stream(WORD_BITS), Stream(WORD_BITS)
    beats, bits = cfg.beats, cfg.beat_bits
    link = state_link(domain, load, dump, taken, given, begin, batches, words=beats * pieces_of(bits))
    if outside is not None:
        residuals = ResidualStreams(Stream(bits), Stream(bits))
        ring = accessed_residuals(domain, outside, residuals, taken, given, batches, beats=beats)
        return link, ring, hop(domain, own, came, y, residuals, cfg=cfg, contents=None, begin=begin)
    state = ResidualState(batches, MemoryAccess(beats, bits))
    sections = state_sections(domain, taken, given, state.batches.giving, [state.memory], order=(0,))
    return link, sections, hop(domain, own, came, y, cfg=cfg, contents=contents, begin=begin, state=state)


@block
def hop(
    domain: ClockReset,
    own: Stream,
    came: Stream | None,
    y: Stream,
    outside: ResidualStreams | None = None,
    *,
    cfg: Exchange,
    contents: Sequence[int] | None,
    begin: Begin | None = None,
    state: ResidualState | None = None,
) -> Instances:
    """What a copy makes of its own sum and of what came: `coded_hop`, `gradient_sum` at the end of exact sums, or
    `exact_hop`.

    Ports:
        own: in, stream of ``cfg.w_lanes`` codes of ``cfg.own``.
        came: in, stream of as many codes as the copy before hands on; None at the first copy.
        y: out, stream of as many codes of the one source; valid and payload from registers.
        outside, state: in and out, as of `feedback_stream`.
        begin: in, as of `gradient_rounding`.
    """
    if cfg.codec is not None:
        return coded_hop(domain, own, came, y, outside, cfg=cfg, contents=contents, begin=begin, state=state)
    if came is None:
        return queue(domain, own, y, depth=DEPTH)
    if cfg.is_last:
        return gradient_sum(domain, [came, own], y, cfg=cfg.rounded, begin=begin)
    return exact_hop(domain, own, came, y, lanes=cfg.w_lanes)


@block
def exact_hop(domain: ClockReset, own: Stream, came: Stream, y: Stream, *, lanes: int) -> Instances:
    """Sums of codes with the same binary point.  Costs an adder and three registers a lane; one beat a cycle.

    Ports:
        own, came: in, streams of ``lanes`` signed codes of any widths, taken together.
        y: out, stream of ``lanes`` signed codes, as of `add_stream`; valid, payload and ready of the others from
            registers.
    """
    total = Stream(y.width)
    return add_stream(domain, came, own, total, lanes=lanes), queue(domain, total, y, depth=DEPTH)


@block
def coded_hop(
    domain: ClockReset,
    own: Stream,
    came: Stream | None,
    y: Stream,
    outside: ResidualStreams | None = None,
    *,
    cfg: Exchange,
    contents: Sequence[int] | None = None,
    begin: Begin | None = None,
    state: ResidualState | None = None,
) -> Instances:
    """Rounds the own sum, adds it to what came, and gives what a codec leaves of it.

    Costs the rounding (`gradient_rounding`), an adder a lane, and the codec (`cut_stream`, or `feedback_stream` whose
    residuals begin as ``contents``); one beat a cycle.

    Ports:
        own: in, stream of ``cfg.w_lanes`` codes of ``cfg.own``.
        came: in, stream of ``cfg.w_lanes`` codes of ``cfg.g_fixed``; None at the first copy.
        y: out, stream of ``cfg.w_lanes`` codes of ``cfg.g_fixed``; valid and payload from registers.
        outside, state: in and out, as of `feedback_stream`.
        begin: in, as of `gradient_rounding`.
    """
    assert cfg.codec is not None
    lanes, g_fixed, order, codec = cfg.w_lanes, cfg.g_fixed, cfg.order, cfg.codec
    shift = cfg.fraction_bits - g_fixed.fraction_bits
    rounding = Rounding(cfg.shape, order, lanes, shift, g_fixed, cfg.key("copy"), cfg.begun)
    rounded, left = Stream(y.width), Stream(y.width)
    total, inside = rounded, [gradient_rounding(domain, own, rounded, rounding=rounding, begin=begin)]
    if came is not None:
        total = Stream(y.width)
        adder = sum_stream(domain, came, rounded, total, lanes=lanes, a_fixed=g_fixed, b_fixed=g_fixed, target=g_fixed)
        inside.append(adder)
    noise: Stream | None = None
    if codec.cut is Cut.STOCHASTIC:
        noise = Stream(16 * lanes)
        key, begun = cfg.key("hop"), cfg.begun
        drawn = element_noise(
            domain, noise, shape=cfg.shape, tile=order, lanes=lanes, key=key, begun=begun, begin=begin
        )
        inside.append(drawn)
    if cfg.feedback:
        coding = feedback_stream(
            domain, total, noise, left, codec=codec, element=g_fixed, lanes=lanes, beats=cfg.beats, contents=contents,
            state=state, outside=outside,
        )  # fmt: skip
        return *inside, coding, queue(domain, left, y, depth=DEPTH)
    cut = total
    if noise is not None:
        cut = Stream(y.width + 16 * lanes)
        inside.append(join(domain, [total, noise], cut))
    return *inside, cut_stream(domain, cut, left, codec=codec, lanes=lanes), queue(domain, left, y, depth=DEPTH)
