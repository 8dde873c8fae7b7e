"""The last step of online normalisation once more, for the way back: what the norm gave, of the normalised map it kept.

    y[h, v, c] = gamma[c] * normal[h, v, c] + beta[c]

A map that only the way back still wants need not wait beside the normalised one, of which it follows: every frame sees
the versions of scale and shift that it saw on its way forward, and y is the same in every bit
(`dagtrain.passes.recompute`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from myhdl import block, instances

from hdl.engine.arithmetic.products import PRODUCT_CYCLES, exact_product, product_stream
from hdl.engine.arithmetic.rounding import exact_sum, sum_cycles, sum_stream
from hdl.engine.norm.numbers import NORMAL
from hdl.engine.weights.stream import weight_stream
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack_pairs
from hdl.layers.meaning import State
from hdl.layers.norm.shared import DATA, WEIGHT
from hdl.layers.pointwise.elementwise import Multiplying
from hdl.layers.storage import Memory
from hdl.recipe import Recipe
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.streams import fork, join, queue, take_bits, width_adapter
from hdl.tensor import Kind, Port, Tensor


@dataclass(frozen=True, kw_only=True)
class ScaleAndShift(Multiplying):
    """Sinks ``normal``, ``gamma`` and ``beta`` (channels,), source ``y``, both maps stashes.

    The sum is exact, rounded once, saturated.  A multiplier and an adder a lane, two versions of both vectors."""

    # whether the vectors stay as they are: no sinks for them, and a memory that nobody writes
    frozen: bool = field(default=False, metadata=QUIET)
    recipe: Recipe = field(default_factory=Recipe)
    normal_fixed: Fixed = NORMAL
    gamma_fixed: Fixed = WEIGHT
    beta_fixed: Fixed = WEIGHT
    y_fixed: Fixed = DATA

    @property
    def product(self) -> Fixed:
        """Format of a product."""
        return exact_product(self.normal_fixed, self.gamma_fixed)

    @property
    def exact(self) -> Fixed:
        """Format of a result before it is rounded."""
        return exact_sum(self.product, self.beta_fixed)

    @property
    def vectors(self) -> tuple[Port, ...]:
        """gamma, beta; an element a beat."""
        return tuple(
            Port(name, Tensor((self.channels,), fixed, Kind.WEIGHT))
            for name, fixed in (("gamma", self.gamma_fixed), ("beta", self.beta_fixed))
        )

    @property
    def sinks(self) -> tuple[Port, ...]:
        """normal, the vectors unless they are frozen."""
        normal = self.map_port("normal", Kind.STASH)
        return (normal,) if self.frozen else (normal, *self.vectors)

    @property
    def held_parameters(self) -> tuple[Port, ...]:
        """The vectors, if they are frozen."""
        return self.vectors if self.frozen else ()

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (self.map_port("y", Kind.STASH),)

    @property
    def pipeline_cycles(self) -> int:
        """Product, sum and rounding."""
        return PRODUCT_CYCLES + sum_cycles(self.product, self.beta_fixed, self.y_fixed)

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps the initial vectors for the memory image."""
        return {"initial": [port.tensor.fixed.encode(parameters[port.name]) for port in self.vectors]}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps frozen vectors."""
        return {"initial": [parameters[port.name] for port in self.vectors]} if self.frozen else {}

    def _per_frame(self, state: State, inputs: Mapping[str, Any], frames: int) -> list[Any]:
        """gamma and beta of each frame of the batch: the versions before for the first ``staleness`` ones."""
        newest: list[Any] = state["initial"] if self.frozen else [inputs[port.name] for port in self.vectors]
        previous: list[Any] = state.get("previous", newest)
        state["previous"] = newest
        stale = min(self.recipe.staleness, frames)
        return [
            np.stack([before] * stale + [now] * (frames - stale)).reshape(frames, 1, 1, self.channels)
            for before, now in zip(previous, newest, strict=True)
        ]

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sum, rounded once: as `hdl.layers.norm.online_norm.OnlineNorm.definition` has it."""
        normal = inputs["normal"]
        gamma, beta = self._per_frame(state, inputs, len(normal))
        bits = self.exact.fraction_bits
        scaled = gamma * normal << (bits - self.product.fraction_bits)
        return {"y": requantise(scaled + (beta << (bits - self.beta_fixed.fraction_bits)), bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        normal = inputs["normal"]
        gamma, beta = self._per_frame(state, inputs, len(normal))
        return {"y": gamma * normal + beta}

    # ---- hardware

    @property
    def versions(self) -> int:
        """Of the vectors, on chip."""
        return 1 if self.frozen else 2

    @property
    def word_bits(self) -> int:
        """Bits of the elements of both vectors for a beat."""
        return self.lanes * (self.gamma_fixed.width + self.beta_fixed.width)

    def memories(self) -> tuple[Memory, ...]:
        """The versions of both vectors, a word a beat of a pixel."""
        return (Memory("weights", self.versions * self.pixel_beats, self.word_bits, is_state=self.frozen),)

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0 in front: gamma in the low bits of a word, beta above."""
        gamma, beta = state["initial"]
        first = pack_pairs(gamma, beta, (self.gamma_fixed.width, self.beta_fixed.width), self.lanes)
        return {"weights": first + [0] * (self.versions - 1) * self.pixel_beats}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """One beat a cycle."""
        contents = images["weights"] if images else None
        ports = (streams[port.name] for port in (*self.sinks, *self.sources))
        make = frozen_scale_and_shift if self.frozen else scale_and_shift
        return make(domain, *ports, cfg=self, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Several lanes, staleness, one pixel, all lanes, formats in which either summand is the finer one, frozen."""
        return (
            cls(height=2, width=3, channels=4, lanes=2, recipe=Recipe(batch=3, staleness=1)),
            cls(height=1, width=1, channels=5, recipe=Recipe(batch=4), beta_fixed=Fixed(12, 26)),
            cls(height=2, width=1, channels=3, lanes=3, recipe=Recipe(batch=2, staleness=2), y_fixed=Fixed(16, 12)),
            cls(height=2, width=3, channels=4, lanes=2, recipe=Recipe(batch=3, staleness=1), frozen=True),
        )


@block
def scale_and_shift(
    domain: ClockReset,
    normal: Stream,
    gamma: Stream | None,
    beta: Stream | None,
    y: Stream,
    *,
    cfg: ScaleAndShift,
    contents: Sequence[int] | None = None,
) -> Instances:
    """Products with gamma, then sums with beta, which waits meanwhile.

    Ports:
        normal: in, stream of ``cfg.lanes`` codes of ``cfg.normal_fixed``.
        gamma: in, stream of one code of ``cfg.gamma_fixed``, a vector a batch.
        beta: in, stream of one code of ``cfg.beta_fixed``, a vector a batch; both None where they stay as they are.
        y: out, stream of ``cfg.lanes`` codes of ``cfg.y_fixed``, ``cfg.pipeline_cycles`` later, from registers.
    """
    lanes, gamma_bits = cfg.lanes, cfg.lanes * cfg.gamma_fixed.width
    gammas, betas = Stream(gamma_bits), Stream(cfg.word_bits - gamma_bits)
    pairs, words = Stream(cfg.word_bits), Stream(cfg.word_bits)
    parts = [Stream(cfg.word_bits) for _ in range(2)]
    scales, early, shifts = Stream(gamma_bits), Stream(betas.width), Stream(betas.width)
    products = Stream(lanes * cfg.product.width)
    adapt_gamma = [] if gamma is None else width_adapter(domain, gamma, gammas, element_bits=cfg.gamma_fixed.width)
    adapt_beta = [] if beta is None else width_adapter(domain, beta, betas, element_bits=cfg.beta_fixed.width)
    meet = [] if gamma is None else join(domain, [gammas, betas], pairs)
    versions = weight_stream(
        domain, None if gamma is None else pairs, words, element_bits=cfg.word_bits, words=cfg.pixel_beats,
        repeats=cfg.height * cfg.width, recipe=cfg.recipe, contents=contents,
    )  # fmt: skip
    split = fork(domain, words, parts)
    to_scales = take_bits(parts[0], scales, low=0)
    to_shifts = take_bits(parts[1], early, low=gamma_bits)
    factors = {"a_fixed": cfg.normal_fixed, "b_fixed": cfg.gamma_fixed}
    multiply = product_stream(domain, normal, scales, products, lanes=lanes, **factors)
    wait = queue(domain, early, shifts, depth=PRODUCT_CYCLES + 1)
    formats = {"a_fixed": cfg.product, "b_fixed": cfg.beta_fixed, "target": cfg.y_fixed}
    add = sum_stream(domain, products, shifts, y, lanes=lanes, **formats)
    return instances()


@block
def frozen_scale_and_shift(
    domain: ClockReset, normal: Stream, y: Stream, *, cfg: ScaleAndShift, contents: Sequence[int] | None = None
) -> Instances:
    """`scale_and_shift` whose vectors stay as they are.

    Ports:
        normal: in, stream as that of `scale_and_shift`.
        y: out, stream as that of `scale_and_shift`.
    """
    return scale_and_shift(domain, normal, None, None, y, cfg=cfg, contents=contents)
