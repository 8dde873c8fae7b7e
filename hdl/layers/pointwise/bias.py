"""A learnt number a channel, added; backwards it needs only its own gradient, since the error passes unchanged.

y[h, v, c] = x[h, v, c] + b[c]        g[c] = sum over frames and pixels of e[h, v, c]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from myhdl import block, instances

from hdl.engine.arithmetic.rounding import exact_sum, sum_cycles, sum_stream
from hdl.engine.weights.access import Begin, counter_link
from hdl.engine.weights.gradient_rounding import Rounding, leave_cycles, leaving
from hdl.engine.weights.stream import weight_stream
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack
from hdl.layers.meaning import State, Tape
from hdl.layers.pointwise.elementwise import ElementWise
from hdl.layers.pool.global_average_pool import SUM_LATENCY, sum_pixels
from hdl.layers.shape import RowPart
from hdl.layers.storage import Memory
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.random_bits import requantise_by_element, tensor_key
from hdl.recipe import LoadedRecipe, Recipe
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.streams import width_adapter
from hdl.tensor import Kind, Port, Tensor, Tile


@dataclass(frozen=True, kw_only=True)
class Bias(ElementWise):
    """Sinks ``x`` and ``b`` (channels,), source ``y``.  Sums are exact, rounded once, saturated."""

    # whether the vector stays as it is: no sink ``b``, and a memory that nobody writes
    frozen: bool = field(default=False, metadata=QUIET)
    recipe: Recipe = field(default_factory=Recipe)
    # distinguishes the random bits of this layer's gradient from others
    tensor_id: int = 0
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    b_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    y_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x, b unless it is frozen; the vector comes an element a beat."""
        x = self.map_port("x", Kind.ACTIVATION)
        return (x,) if self.frozen else (x, self._vector)

    @property
    def held_parameters(self) -> tuple[Port, ...]:
        """b, if it is frozen."""
        return (self._vector,) if self.frozen else ()

    @property
    def _vector(self) -> Port:
        return Port("b", Tensor((self.channels,), self.b_fixed, Kind.WEIGHT))

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.map_port("y", Kind.ACTIVATION),)

    @property
    def pipeline_cycles(self) -> int:
        """Sum and rounding."""
        return sum_cycles(self.x_fixed, self.b_fixed, self.y_fixed)

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps the initial vector for the memory image."""
        return {"initial": self.b_fixed.encode(parameters["b"])}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps a frozen vector."""
        return {"initial": parameters["b"]} if self.frozen else {}

    def _per_frame(self, state: State, inputs: Mapping[str, Any], frames: int) -> Any:
        """The vector of each frame of the batch: the version before for the first ``staleness`` ones."""
        b: Any = state["initial"] if self.frozen else inputs["b"]
        previous = state.get("previous", b)
        state["previous"] = b
        rows = np.empty((frames, 1, 1, self.channels), b.dtype)
        rows[: self.recipe.staleness] = previous
        rows[self.recipe.staleness :] = b
        return rows

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sum, rounded once."""
        x = inputs["x"]
        b = self._per_frame(state, inputs, len(x))
        total = exact_sum(self.x_fixed, self.b_fixed)
        summed = (x << (total.fraction_bits - self.x_fixed.fraction_bits)) + (
            b << (total.fraction_bits - self.b_fixed.fraction_bits)
        )
        return {"y": requantise(summed, total.fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        x = inputs["x"]
        return {"y": x + self._per_frame(state, inputs, len(x))}

    def row_part(self, first: int, end: int) -> RowPart | None:
        """Of these rows alone."""
        return self.rows_alone(first, end)

    def backward(self, tape: Tape) -> None:
        """The gradient, unless it is frozen; the error goes on as it is."""
        error = tape.error("y")
        if tape.needs_error("x"):
            tape.give_error("x", error)
        if self.frozen:
            return
        engine = BiasGradient(
            height=self.height, width=self.width, channels=self.channels, recipe=self.recipe, tensor_id=self.tensor_id
        )
        tape.learn("b", tape.add("gradient", engine, {"e": error})["g"])

    @property
    def versions(self) -> int:
        """Of the vector, on chip."""
        return 1 if self.frozen else 2

    def memories(self) -> tuple[Memory, ...]:
        """The versions of the vector."""
        return (
            Memory("weights", self.versions * self.pixel_beats, self.lanes * self.b_fixed.width, is_state=self.frozen),
        )

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0 in front."""
        first = pack(state["initial"].reshape(-1), self.b_fixed.width, self.lanes)
        return {"weights": first + [0] * (self.versions - 1) * self.pixel_beats}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        contents = images["weights"] if images else None
        ports = (streams[port.name] for port in (*self.sinks, *self.sources))
        make = frozen_bias if self.frozen else bias
        return make(domain, *ports, cfg=self, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Several lanes, staleness, one pixel."""
        return (
            cls(height=2, width=3, channels=4, lanes=2, recipe=Recipe(batch=3, staleness=1)),
            cls(height=1, width=1, channels=5, recipe=Recipe(batch=4)),
            cls(height=2, width=1, channels=3, lanes=3, recipe=Recipe(batch=2, staleness=2), y_fixed=Fixed(16, 6)),
            cls(height=2, width=3, channels=4, lanes=2, recipe=Recipe(batch=3, staleness=1), frozen=True),
        )


@dataclass(frozen=True, kw_only=True)
class BiasGradient(ElementWise):
    """Sink ``e``, source ``g`` (channels,) once a batch: exact sums, rounded stochastically unless ``exact``."""

    recipe: Recipe = field(default_factory=Recipe)
    tensor_id: int = 0
    e_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    g_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    # batches of an earlier training, from which it counts on
    begun: int = field(default=0, metadata=QUIET)
    # whether g is the sum itself, which a `GradientSum` rounds
    exact: bool = field(default=False, metadata=QUIET)

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e."""
        return (self.map_port("e", Kind.ERROR),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """g; an element a beat."""
        return (Port("g", Tensor((self.channels,), self.sent, Kind.GRADIENT)),)

    @property
    def sent(self) -> Fixed:
        """Of what leaves on g."""
        return self.sum_fixed if self.exact else self.g_fixed

    @property
    def sum_fixed(self) -> Fixed:
        """Of an exact sum."""
        return Fixed(self.sum_bits, self.e_fixed.fraction_bits)

    @property
    def roundings(self) -> dict[str, GradientSum]:
        """Of g."""
        return {
            "g": GradientSum(
                shape=(self.channels,),
                recipe=self.recipe,
                tensor_id=self.tensor_id,
                s_fixed=self.sum_fixed,
                g_fixed=self.g_fixed,
                begun=self.begun,
            )
        }

    @property
    def accessed(self) -> bool:
        """The number of batches."""
        return self.recipe.loaded

    def row_part(self, first: int, end: int) -> RowPart | None:
        """Of these rows alone."""
        return self.rows_alone(first, end)

    @property
    def pixels(self) -> int:
        """Pixels that are summed."""
        return self.recipe.batch * self.height * self.width

    @property
    def sum_bits(self) -> int:
        """Bits of an exact sum over the batch."""
        return self.e_fixed.width + (self.pixels - 1).bit_length()

    def latency_cycles(self, source: str) -> int:
        """The first sums are complete when the last pixel begins; from there through the queue or the rounding."""
        del source
        return SUM_LATENCY + leave_cycles(exact=self.exact) + 1 - self.pixel_beats + (self.lanes > 1)

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Counts batches, which the random bits depend on."""
        del parameters
        return {"batch": self.begun}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sums, rounded stochastically unless they leave as they are."""
        sums = inputs["e"].sum(axis=(0, 1, 2))
        state["batch"] += 1
        if self.rounding is None:
            return {"g": sums}
        return {
            "g": requantise_by_element(
                sums, self.e_fixed.fraction_bits, self.g_fixed, state["batch"] - 1, self.rounding.key
            )
        }

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"g": inputs["e"].sum(axis=(0, 1, 2))}

    @property
    def rounding(self) -> Rounding | None:
        """Of the sums; None where they leave as they are."""
        if self.exact:
            return None
        cut = self.e_fixed.fraction_bits - self.g_fixed.fraction_bits
        return Rounding((self.channels,), Tile(), 1, cut, self.g_fixed, self.key, self.begun)

    @property
    def key(self) -> int:
        """Key of the random bits."""
        return tensor_key(self.recipe.seed, self.tensor_id)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        del images
        ports = (streams[port.name] for port in (*self.sinks, *self.sources, *self.beside))
        return (counted_bias_gradient if self.accessed else bias_gradient)(domain, *ports, cfg=self)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Several lanes, one pixel, a batch of one, exact sums."""
        return (
            cls(height=2, width=3, channels=4, lanes=2, recipe=Recipe(batch=3), tensor_id=9),
            cls(height=1, width=1, channels=5, recipe=Recipe(batch=4), g_fixed=Fixed(16, 13)),
            cls(height=2, width=2, channels=3, lanes=3, recipe=Recipe(batch=2, seed=4)),
            cls(height=1, width=2, channels=3, recipe=LoadedRecipe(batch=2, seed=4)),
            cls(height=1, width=2, channels=4, lanes=2, recipe=Recipe(batch=2), exact=True),
        )


@block
def bias(
    domain: ClockReset, x: Stream, b: Stream | None, y: Stream, *, cfg: Bias, contents: Sequence[int] | None = None
) -> Instances:
    """The vector as a stream beside x, and their sum.

    Ports:
        x: in, stream of ``cfg.lanes`` codes of ``cfg.x_fixed``.
        b: in, stream of one code of ``cfg.b_fixed``, a vector a batch; None where it stays as it is.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``, `sum_cycles` later, from registers.
    """
    words = Stream(cfg.lanes * cfg.b_fixed.width)
    weights = weight_stream(
        domain, b, words, element_bits=cfg.b_fixed.width, words=cfg.pixel_beats, repeats=cfg.height * cfg.width,
        recipe=cfg.recipe, contents=contents,
    )  # fmt: skip
    formats = {"a_fixed": cfg.x_fixed, "b_fixed": cfg.b_fixed, "target": cfg.y_fixed}
    add = sum_stream(domain, x, words, y, lanes=cfg.lanes, **formats)
    return weights, add


@block
def frozen_bias(
    domain: ClockReset, x: Stream, y: Stream, *, cfg: Bias, contents: Sequence[int] | None = None
) -> Instances:
    """`bias` whose vector stays as it is.

    Ports:
        x: in, stream as that of `bias`.
        y: out, stream as that of `bias`.
    """
    return bias(domain, x, None, y, cfg=cfg, contents=contents)


@block
def bias_gradient(
    domain: ClockReset, e: Stream, g: Stream, *, cfg: BiasGradient, begin: Begin | None = None
) -> Instances:
    """Sums over the pixels of a whole batch, an element at a time through the stochastic rounding.

    Ports:
        e: in, stream of ``cfg.lanes`` codes of ``cfg.e_fixed``.
        g: out, stream of one code of ``cfg.sent``, a vector a batch; valid and payload from registers.
        begin: in, as of `gradient_rounding`.
    """
    lanes, width, sum_bits = cfg.lanes, cfg.e_fixed.width, cfg.sum_bits
    sums, elements = Stream(lanes * sum_bits), Stream(sum_bits)
    collect = sum_pixels(
        domain, e, sums, lanes=lanes, width=width, sum_bits=sum_bits, groups=cfg.channels // lanes, pixels=cfg.pixels
    )
    adapt = width_adapter(domain, sums, elements, element_bits=sum_bits)
    rounds = leaving(cfg.rounding, begin)(domain, elements, g)
    return instances()


@block
def counted_bias_gradient(
    domain: ClockReset, e: Stream, g: Stream, load: Stream, dump: Stream, *, cfg: BiasGradient
) -> Instances:
    """`bias_gradient`, with a number of batches behind it that comes by a stream.

    Ports:
        e: in, stream as that of `bias_gradient`.
        g: out, stream as that of `bias_gradient`.
        load: in, stream of 65 bits.
        dump: out, stream as wide as ``load``.
    """
    begin = Begin()
    return counter_link(domain, load, dump, begin), bias_gradient(domain, e, g, cfg=cfg, begin=begin)
