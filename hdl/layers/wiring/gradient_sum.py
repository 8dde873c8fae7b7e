"""The gradient of a parameter of which several engines have summed some frames each, or one engine all of them.

    g = round(s0 + s1 + …)

Engines that round their sums themselves do so with the random bits of (element, batch, tensor); here they are the same,
and sums of integers are the same in any order, also where they wrap.  So g has the same bits whoever summed which
frames of the batch: those of one engine that summed and rounded all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from myhdl import Signal, always_comb, block, intbv

from hdl.engine.arithmetic.rounding import exact_sum
from hdl.engine.weights.access import Begin, counter_link
from hdl.engine.weights.gradient_rounding import GRADIENT_ROUNDING_LATENCY, Rounding, gradient_rounding
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State
from hdl.layers.wiring.parameter import ParameterLayer
from hdl.random_bits import requantise_by_element, tensor_key
from hdl.recipe import LoadedRecipe, Recipe
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream, bits_of
from hdl.streams import join, m2s_pipe
from hdl.tensor import Kind, Port, Tensor, Tile

# widest sum of the golden model (int64)
WIDEST = 62


@dataclass(frozen=True, kw_only=True)
class GradientSum(ParameterLayer):
    """Sinks ``s0``, ``s1``, … (sums over frames of a batch, exact), source ``g``, all once a batch in the tile's order.

    ``tensor_id`` is that of the engine which would round all sums itself.  One beat a cycle.
    Raises `ShapeError` for sums that would be wider than 62 bits."""

    # engines that share the batch
    copies: int = 1
    # of the widest sum
    s_fixed: Fixed = Fixed(28, 16)  # noqa: RUF009 - frozen
    # bits of each engine's sum, where engines that sum fewer frames have narrower ones
    widths: tuple[int, ...] = field(default=(), metadata=QUIET)
    # whether the sum of all sums wraps as each of them does, instead of growing
    wraps: bool = field(default=False, metadata=QUIET)
    g_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    # batches of an earlier training, from which it counts on
    begun: int = field(default=0, metadata=QUIET)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.copies < 1:
            raise ShapeError(f"{self.title}: there is nothing to sum of {self.copies} engines", "take at least 1")
        if self.widths and (len(self.widths) != self.copies or max(self.widths) != self.s_fixed.width):
            raise ShapeError(
                f"{self.title}: widths {self.widths} of {self.copies} sums, the widest of {self.s_fixed.width} bits",
                "give one for each engine, none wider",
            )
        if self.wraps and len({*self.formats}) > 1:
            raise ShapeError(
                f"{self.title}: sums of {', '.join(map(str, self.widths))} bits that wrap", "give all the same bits"
            )
        if self.total.width > WIDEST:
            raise ShapeError(
                f"{self.title}: {self.copies} sums of {self.s_fixed.width} bits take {self.total.width} bits, "
                f"more than {WIDEST}",
                "take fewer copies, or fewer frames a batch",
            )

    @property
    def sinks(self) -> tuple[Port, ...]:
        """s0, s1, …"""
        return tuple(
            self.parameter_port(f"s{copy}", Tensor(self.shape, fixed, Kind.GRADIENT))
            for copy, fixed in enumerate(self.formats)
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """g."""
        return (self.parameter_port("g", Tensor(self.shape, self.g_fixed, Kind.GRADIENT)),)

    @property
    def accessed(self) -> bool:
        """The number of batches."""
        return self.recipe.loaded

    @property
    def formats(self) -> tuple[Fixed, ...]:
        """Of each sum."""
        widths = self.widths or (self.s_fixed.width,) * self.copies
        return tuple(Fixed(width, self.s_fixed.fraction_bits) for width in widths)

    @property
    def total(self) -> Fixed:
        """Of the sum of all sums."""
        return self.partial(self.copies)

    def partial(self, copies: int) -> Fixed:
        """Of the sum of the first so many sums."""
        return self.s_fixed if self.wraps else reduce(exact_sum, self.formats[:copies])

    @property
    def pipeline_cycles(self) -> int:
        """An adder after another, and the rounding."""
        return self.copies - 1 + GRADIENT_ROUNDING_LATENCY

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Counts batches, which the random bits depend on, and sums that did not fit where they wrap."""
        del parameters
        return {"batch": self.begun, "wrapped": 0} if self.wraps else {"batch": self.begun}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The exact sum, rounded stochastically."""
        # one after another: an array of all of them would be as large again
        batch, total = state["batch"], reduce(np.add, (inputs[port.name] for port in self.sinks))
        if self.wraps:
            total = wrapped(state, total, self.total)
        state["batch"] += 1
        fraction_bits, key = self.s_fixed.fraction_bits, self.rounding.key
        return {"g": requantise_by_element(total, fraction_bits, self.g_fixed, batch, key)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The sum."""
        del state
        return {"g": np.sum([inputs[port.name] for port in self.sinks], axis=0)}

    @property
    def closeness(self) -> dict[str, float]:
        """A stochastic rounding."""
        return {"g": 1.0}

    # ---- hardware

    @property
    def rounding(self) -> Rounding:
        """Of the sum of all sums."""
        shift = self.s_fixed.fraction_bits - self.g_fixed.fraction_bits
        key = tensor_key(self.recipe.seed, self.tensor_id)
        tile = self.tile if len(self.shape) > 1 else Tile()
        return Rounding(self.shape, tile, self.w_lanes, shift, self.g_fixed, key, self.begun)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """Adders, then the rounding that gradient engines have."""
        del images
        sums, g = [streams[port.name] for port in self.sinks], streams["g"]
        if self.accessed:
            return counted_gradient_sum(domain, sums, g, streams["load"], streams["dump"], cfg=self)
        return gradient_sum(domain, sums, g, cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """One to three engines, tiles that don't divide the parameter, a vector, sums coarser than gradients."""
        recipe = Recipe(batch=3, seed=5)
        return (
            cls(shape=(5, 4, 1, 1), tile=Tile(2, 2), w_lanes=2, recipe=recipe, tensor_id=5, copies=2),
            cls(shape=(6,), w_lanes=2, recipe=Recipe(batch=1), copies=3, s_fixed=Fixed(20, 6), widths=(20, 19, 19)),
            cls(shape=(4,), recipe=LoadedRecipe(batch=2, seed=4), begun=3),
            cls(shape=(4,), w_lanes=2, recipe=recipe, copies=3, s_fixed=Fixed(20, 8), wraps=True),
        )


def wrapped(state: State, total: IntArray, fixed: Fixed) -> IntArray:
    """A sum that wraps; ``state`` counts those of its elements that did not fit."""
    kept = fixed.wrap(total)
    state["wrapped"] += int(np.count_nonzero(kept != total))
    return kept


@block
def gradient_sum(
    domain: ClockReset, sums: Sequence[Stream], g: Stream, *, cfg: GradientSum, begin: Begin | None = None
) -> Instances:
    """Costs an adder a lane for every engine but the first, and the rounding.

    Ports:
        sums: in, streams of ``cfg.w_lanes`` codes, each stream as wide as its format.
        g: out, stream of ``cfg.w_lanes`` codes of ``cfg.g_fixed``; valid and payload from registers.
        begin: in, as of `gradient_rounding`.
    """
    # adders that take sums before there are random bits would let go of them later than said
    gated, begins = Stream(sums[0].width), Signal(bool(0))
    total, adders, first = gated, [], sums[0]
    for copy in range(1, cfg.copies):
        added = Stream(cfg.w_lanes * cfg.partial(copy + 1).width)
        adders.append(add_stream(domain, total, sums[copy], added, lanes=cfg.w_lanes))
        total = added
    rounds = gradient_rounding(domain, total, g, rounding=cfg.rounding, begin=begin, begins=begins)

    @always_comb
    def gate() -> None:
        gated.valid.next = first.valid and begins
        gated.payload.next = first.payload
        first.ready.next = gated.ready and begins

    return adders, rounds, gate


@block
def add_stream(domain: ClockReset, a: Stream, b: Stream, y: Stream, *, lanes: int) -> Instances:
    """Sums of codes with the same binary point: nothing to round or to cut off.  Costs an adder and a register a lane;
    one beat a cycle.

    Ports:
        a, b: in, streams of ``lanes`` signed codes of any widths, taken together.
        y: out, stream of ``lanes`` signed codes, 1 cycle later, from registers; exact where they are at least a bit
            wider than both, else they wrap.
    """
    width, a_width, b_width, b_start = y.width // lanes, a.width // lanes, b.width // lanes, a.width
    bound = 1 << (width - 1 if width > max(a_width, b_width) else width)
    both, computed = Stream(a.width + b.width), Stream(y.width)
    joined, register = join(domain, [a, b], both), m2s_pipe(domain, computed, y)

    @always_comb
    def add() -> None:
        left = intbv(0, min=-bound, max=bound)
        right = intbv(0, min=-bound, max=bound)
        for lane in range(lanes):
            left[:] = both.payload[bits_of(lane, a_width)].signed()
            right[:] = both.payload[bits_of(lane, b_width, b_start)].signed()
            left[:] = left + right
            computed.payload.next[bits_of(lane, width)] = left[width:]

    @always_comb
    def handshake() -> None:
        computed.valid.next = both.valid
        both.ready.next = computed.ready

    return joined, register, add, handshake


@block
def counted_gradient_sum(
    domain: ClockReset, sums: Sequence[Stream], g: Stream, load: Stream, dump: Stream, *, cfg: GradientSum
) -> Instances:
    """`gradient_sum`, with a number of batches behind it that comes by a stream.

    Ports:
        sums: in, streams as those of `gradient_sum`.
        g: out, stream as that of `gradient_sum`.
        load: in, stream of 65 bits.
        dump: out, stream as wide as ``load``.
    """
    begin = Begin()
    return counter_link(domain, load, dump, begin), gradient_sum(domain, sums, g, cfg=cfg, begin=begin)
