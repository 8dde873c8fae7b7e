"""Update: stochastic gradient descent with momentum and weight decay on a wide master copy of one parameter.

    M' = round(momentum * M + g + batch * weight_decay * w)
    W' = round(W - rate / batch * M')
    w' = W' rounded to nearest

``rate`` is the recipe's of the batch at hand (`RateLines` of a schedule).  With ``clip``, g is cut off at batch * clip
first.  With ``nesterov``, the step goes along momentum * M' + g + batch * weight_decay * w, rounded to nearest.

g is the gradient's sum over the batch, W the master (twice the bits of w), w what the engines multiply by.  ``round``
is stochastic and saturates; both roundings of an element take the halves of one random word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from hdl.engine.arithmetic.mac import WIDEST_FACTOR
from hdl.engine.arithmetic.scalar import Scalar
from hdl.engine.weights.rate import LEAST_CYCLES, RATE_WORDS, RateLines
from hdl.engine.weights.update import PIPELINE, VIEW_AT, UpdateShape, update, update_outside
from hdl.engine.weights.update_access import update_accessed
from hdl.engine.weights.update_outside_access import update_outside_accessed
from hdl.errors import FoldingError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack, unpack
from hdl.layers.meaning import State
from hdl.layers.storage import DUMP, LOAD, Home, Memory, Ring
from hdl.layers.wiring.parameter import ParameterLayer
from hdl.random_bits import (
    ROUNDING_BITS,
    UintArray,
    hash32,
    high_half,
    key_words,
    low_half,
    requantise_stochastically,
    stable_id,
    tensor_key,
)
from hdl.recipe import LoadedRecipe, Recipe, Schedule
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.streams import queue_latency
from hdl.tensor import Kind, Port, Tensor, Tile, from_order, in_order
from hdl.threads import in_ranges

if TYPE_CHECKING:
    from hdl.layers.wiring.update_kernel import Numbers

GRADIENT = Fixed(16, 8)
WEIGHT = Fixed(16, 12)
# bits by which the master is finer than the weights if nobody chose its bits, and at least
MASTER_EXTRA, LEAST_MASTER_EXTRA = 16, 2
# integer bits of the momentum beyond the gradient's: it grows to g / (1 - momentum)
MOMENTUM_HEADROOM = 4
# sums are kept to this many bits below the last bit of what they are rounded to, all of which meet random bits
GUARD = ROUNDING_BITS
# widest number of the golden model (int64) and of the circuit's adders
WIDEST = 62
# the update's random bits differ from those of the gradient of the same tensor
UPDATE_SALT = stable_id("update")


@dataclass(frozen=True, kw_only=True)
class Update(ParameterLayer):
    """Sink ``g`` (gradient sum over a batch), source ``w`` (new weights), both once a batch in the tile's order.

    Sends nothing before the first gradient: version 0 stands in the images of its users.  One beat a cycle.
    The state is the master and the momentum, `Memory` words of ``w_lanes`` elements in stream order.
    Raises `FoldingError` when the lanes fit neither tile nor vector, or when sums would be wider than 62 bits.
    """

    # whether the recipe's weight decay applies to this parameter
    decay: bool = True
    g_fixed: Fixed = GRADIENT
    w_fixed: Fixed = WEIGHT
    # bits of the momentum
    momentum_width: int = 24
    # of master and momentum; from DRAM or a store, they come with each gradient and leave with each weight
    state: Home = Home.ON_CHIP
    # bits of the master; 0: `MASTER_EXTRA` more than w has
    master_width: int = field(default=0, metadata=QUIET)
    # whether products with constants are made by multipliers instead of adders
    multiplied: bool = field(default=False, metadata=QUIET)
    # batches of an earlier training, from which it counts on
    begun: int = field(default=0, metadata=QUIET)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.title
        if self.rates is not None and self.momentum_width > WIDEST_FACTOR:
            raise FoldingError(
                f"{name}: a momentum of {self.momentum_width} bits is too wide to be multiplied by a scheduled rate",
                f"take at most {WIDEST_FACTOR} bits",
            )
        for what, bits, least in (
            ("master", self.master_fixed.width, self.least_master_width),
            ("momentum", self.momentum_width, self.least_momentum_width),
        ):
            if bits < least:
                raise FoldingError(f"{name}: a {what} of {bits} bits is too narrow", f"take at least {least} bits")
        widest = max(self.momentum_sum_bits, self.master_sum_bits)
        if widest > WIDEST:
            raise FoldingError(
                f"{name}: formats g {self.g_fixed}, w {self.w_fixed}, momentum {self.momentum_fixed} and the recipe "
                f"need sums of {widest} bits, more than {WIDEST}",
                "narrow the momentum or bring the formats closer",
            )

    # ---- formats

    @property
    def least_master_width(self) -> int:
        """The fewest bits that can be chosen for the master."""
        return self.w_fixed.width + LEAST_MASTER_EXTRA

    @property
    def least_momentum_width(self) -> int:
        """The fewest bits that can be chosen for the momentum: those above g's range, and as many of g's."""
        return 2 * MOMENTUM_HEADROOM

    @property
    def master_extra(self) -> int:
        """Bits by which the master is finer than w."""
        return self.master_width - self.w_fixed.width if self.master_width else MASTER_EXTRA

    @property
    def master_fixed(self) -> Fixed:
        """The range of w, finer by `master_extra` bits."""
        return Fixed(self.w_fixed.width + self.master_extra, self.w_fixed.fraction_bits + self.master_extra)

    @property
    def momentum_fixed(self) -> Fixed:
        """The range of g times 2**`MOMENTUM_HEADROOM`."""
        extra = self.momentum_width - self.g_fixed.width - MOMENTUM_HEADROOM
        return Fixed(self.momentum_width, self.g_fixed.fraction_bits + extra)

    @property
    def momentum_sum_fraction(self) -> int:
        """Fraction bits of the momentum's sum before rounding."""
        return self.momentum_fixed.fraction_bits + GUARD

    @property
    def master_sum_fraction(self) -> int:
        """Fraction bits of the master's sum before rounding."""
        return self.master_fixed.fraction_bits + GUARD

    @property
    def momentum_factor(self) -> Scalar:
        """M into the momentum's sum."""
        return Scalar.of(self.recipe.momentum, self.momentum_fixed.fraction_bits, self.momentum_sum_fraction)

    @property
    def decay_factor(self) -> Scalar:
        """w into the momentum's sum."""
        value = self.recipe.batch * self.recipe.weight_decay if self.decay else 0.0
        return Scalar.of(value, self.w_fixed.fraction_bits, self.momentum_sum_fraction)

    @property
    def gradient_factor(self) -> Scalar:
        """g into the momentum's sum."""
        return Scalar.of(1.0, self.g_fixed.fraction_bits, self.momentum_sum_fraction)

    @property
    def rate_factor(self) -> Scalar:
        """M' into the master's sum, at the full learning rate."""
        if self.rates is not None:
            return self.rates.largest
        value = self.recipe.learning_rate / self.recipe.batch
        return Scalar.of(value, self.momentum_fixed.fraction_bits, self.master_sum_fraction)

    @cached_property
    def rates(self) -> RateLines | None:
        """What takes the place of `rate_factor` where the learning rate depends on the batch."""
        if not self.recipe.is_scheduled:
            return None
        return RateLines(self.recipe, self.momentum_fixed.fraction_bits, self.master_sum_fraction)

    @property
    def clip_code(self) -> int | None:
        """The largest magnitude of a gradient that is taken as it is, at least a step; None where all are."""
        code = max(1, round(self.recipe.clip * self.recipe.batch / self.g_fixed.step))
        return None if self.recipe.clip == 0 or code >= -self.g_fixed.low else code

    @property
    def momentum_sum_bits(self) -> int:
        """Bits of the momentum's sum, products included."""
        parts = (
            self.momentum_factor.bits(self.momentum_width),
            self.gradient_factor.bits(self.g_fixed.width),
            self.decay_factor.bits(self.w_fixed.width),
        )
        return max(parts) + 2

    @property
    def master_sum_bits(self) -> int:
        """Bits of the master's sum, product included."""
        return max(self.rate_factor.bits(self.momentum_width), self.master_fixed.width + GUARD) + 1

    @property
    def state_fixed(self) -> Fixed:
        """An element of state outside: the master in the low bits, the momentum above; no number."""
        return Fixed(self.master_fixed.width + self.momentum_width, 0, signed=False)

    # ---- shape rule

    @property
    def sinks(self) -> tuple[Port, ...]:
        """g; master and momentum from a store."""
        g = self.parameter_port("g", Tensor(self.shape, self.g_fixed, Kind.GRADIENT))
        return (g, *(ring.back for ring in self.remote))

    @property
    def sources(self) -> tuple[Port, ...]:
        """w; master and momentum to a store."""
        w = self.parameter_port("w", Tensor(self.shape, self.w_fixed, Kind.WEIGHT))
        return (w, *(ring.out for ring in self.remote))

    def at(self, home: Home) -> Self | None:
        """Master and momentum there; outside unless they are too wide for one code."""
        if home in (Home.PARKED, Home.LENT) or (home is not Home.ON_CHIP and self.state_fixed.width > WIDEST):
            return None
        return dataclasses.replace(self, state=home)

    @property
    def accessed(self) -> bool:
        """Its masters and momenta."""
        return self.recipe.loaded and not self.not_accessed

    @property
    def not_accessed(self) -> str:
        """What of it does not come by a stream."""
        if self.state_fixed.width > WIDEST:
            return f"master and momentum together have {self.state_fixed.width} bits, more than {WIDEST}"
        return ""

    def state_words(self, state: State) -> list[int]:
        """Where a scheduled rate stands; an element a word, in stream order: master in the low bits, momentum above."""
        rate = [] if self.rates is None else self.rates.state_words(state["batch"])
        return rate + pack(self._state_codes(state), self.state_fixed.width, 1)

    def with_state_words(self, state: State, words: Sequence[int]) -> None:
        """Master and momentum."""
        order, low = self.stream_order("w"), self.master_fixed.width
        words = words if self.rates is None else words[RATE_WORDS:]
        for name, fixed, at in (("master", self.master_fixed, 0), ("momentum", self.momentum_fixed, low)):
            codes = unpack([word >> at & (1 << fixed.width) - 1 for word in words], fixed, 1)
            state[name] = from_order(codes, order).reshape(self.shape)

    def shown(self, state: State) -> dict[str, IntArray]:
        """w."""
        return {"w": self.view(state["master"])}

    @property
    def rings(self) -> tuple[Ring, ...]:
        """State that lives in DRAM."""
        return self._state(Kind.GRADIENT) if self.state is Home.DRAM else ()

    @property
    def remote(self) -> tuple[Ring, ...]:
        """State that lives in a store."""
        return self._state(Kind.STATE) if self.state is Home.REMOTE else ()

    def _state(self, kind: Kind) -> tuple[Ring, ...]:
        """Ports ``state_in`` and ``state_out``."""
        tensor = Tensor(self.shape, self.state_fixed, kind)
        back, out = self.parameter_port("state_in", tensor), self.parameter_port("state_out", tensor)
        return (
            Ring(
                name="state", back=back, out=out, capacity=1, preload=1, loaded=self.accessed,
                per_frame=Fraction(1, self.recipe.batch),
            ),
        )  # fmt: skip

    # ---- cycles and folding

    @property
    def cycles_per_batch(self) -> int:
        """A beat a cycle, but on chip an element must have been written before it is read again, and the rate of a
        schedule must be known; where batches are counted, a cycle between two."""
        beats = self.tiled_elements // self.w_lanes
        if self.state is Home.ON_CHIP:
            return max(beats, PIPELINE + self.circuit_shape.later)
        return max(beats + self.accessed, LEAST_CYCLES if self.rates is not None else 0)

    @property
    def pipeline_cycles(self) -> int:
        """From a gradient to its new weight."""
        return VIEW_AT + self.circuit_shape.later + queue_latency(self.circuit_shape.results)

    @property
    def multipliers(self) -> int:
        """Those of a scheduled rate; of constant factors if so chosen."""
        scheduled = 0 if self.rates is None else self.w_lanes
        return scheduled + self.multiplied * self.w_lanes * self.circuit_shape.multipliers

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """The master is the initial weight, and there is no momentum, unless both are carried over."""
        master = self.w_fixed.encode(parameters["w"]) << self.master_extra
        momentum = np.zeros(self.shape, np.int64)
        if "master" in parameters:
            master = self.master_fixed.encode(parameters["master"])
            momentum = self.momentum_fixed.encode(parameters["momentum"])
        return {"master": master.reshape(self.shape), "momentum": momentum.reshape(self.shape), "batch": self.begun}

    def carried(self, state: State) -> dict[str, FloatArray]:
        """Master and momentum."""
        formats = {"master": self.master_fixed, "momentum": self.momentum_fixed}
        return {name: fixed.decode(state[name]) for name, fixed in formats.items()}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """`definition`, compiled."""
        from hdl.layers.wiring import update_kernel

        held = inputs["g"], state["momentum"], state["master"]
        g, momentum_before, master_before = (np.ascontiguousarray(array).reshape(-1) for array in held)
        momentum, master, weight = (np.empty(self.shape, np.int64) for _ in range(3))
        numbers, words, batch = self._numbers, self._words, state["batch"] & 0xFFFFFFFF
        if self.rates is not None:
            numbers = numbers._replace(rate=update_kernel.factor(self.rates.factor(state["batch"])))
        given = g, momentum_before, master_before, tuple(numbers), words, batch
        made = momentum.reshape(-1), master.reshape(-1), weight.reshape(-1)
        in_ranges(lambda first, end: update_kernel.step(first, end, *given, *made), self.elements)
        state.update(master=master, momentum=momentum, batch=state["batch"] + 1)
        return {"w": weight}

    @cached_property
    def _numbers(self) -> Numbers:
        """Constants of `golden`, at the full learning rate."""
        from hdl.layers.wiring.update_kernel import Numbers, factor, rounding

        return Numbers(
            clip=-self.g_fixed.low if self.clip_code is None else self.clip_code,
            momentum_factor=factor(self.momentum_factor),
            gradient_factor=factor(self.gradient_factor),
            decay_factor=factor(self.decay_factor),
            rate=factor(self.rate_factor),
            momentum=rounding(self.momentum_sum_fraction, self.momentum_fixed),
            master=rounding(self.master_sum_fraction, self.master_fixed),
            weight=rounding(self.master_fixed.fraction_bits, self.w_fixed),
            guard=GUARD,
            nesterov=self.recipe.nesterov,
        )

    def definition(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """What `golden` computes: the formula, every rounding as in the circuit."""
        index = np.arange(self.elements, dtype=np.int64).reshape(self.shape)
        random = hash32(index, state["batch"], self.key)
        master, momentum, gradient = state["master"], state["momentum"], inputs["g"]
        if self.clip_code is not None:
            gradient = np.clip(gradient, -self.clip_code, self.clip_code)
        push = self.gradient_factor.times(gradient) + self.decay_factor.times(self.view(master))
        total = self.momentum_factor.times(momentum) + push
        momentum = requantise_stochastically(total, self.momentum_sum_fraction, self.momentum_fixed, high_half(random))
        step = momentum
        if self.recipe.nesterov:
            step = requantise(
                self.momentum_factor.times(momentum) + push, self.momentum_sum_fraction, self.momentum_fixed
            )
        rate = self.rate_factor if self.rates is None else self.rates.factor(state["batch"])
        total = (master << GUARD) - rate.times(step)
        master = requantise_stochastically(total, self.master_sum_fraction, self.master_fixed, low_half(random))
        state.update(master=master, momentum=momentum, batch=state["batch"] + 1)
        return {"w": self.view(master)}

    def view(self, master: IntArray) -> IntArray:
        """The weights that engines see of a master."""
        return requantise(master, self.master_fixed.fraction_bits, self.w_fixed)

    @cached_property
    def _words(self) -> UintArray:
        """Of the random bits, for compiled loops."""
        return key_words(self.key)

    @property
    def key(self) -> int:
        """Key of the random bits."""
        return tensor_key(self.recipe.seed, self.tensor_id ^ UPDATE_SALT)

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """As `start`."""
        # nothing changes them in place: the weights are those that are given, and zeros take no room
        weights = np.asarray(parameters["w"]).reshape(self.shape)
        momentum = np.broadcast_to(np.zeros((), weights.dtype), self.shape)
        return {"w": weights, "momentum": momentum, "batch": self.begun}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula in float64."""
        recipe = self.recipe
        # in place where it may be, since there are no larger arrays than these
        push = inputs["g"]
        if recipe.clip:
            push = np.clip(push, -recipe.clip * recipe.batch, recipe.clip * recipe.batch)
        if self.decay and recipe.weight_decay:
            decay = recipe.batch * recipe.weight_decay * state["w"]
            push = np.add(push, decay, out=decay)
            del decay
        momentum = recipe.momentum * state["momentum"]
        momentum += push
        step = recipe.momentum * momentum + push if recipe.nesterov else momentum
        del push
        weights = recipe.rate(state["batch"]) / recipe.batch * step
        np.subtract(state["w"], weights, out=weights)
        state.update(w=weights, momentum=momentum, batch=state["batch"] + 1)
        return {"w": weights}

    # ---- hardware

    def memories(self) -> tuple[Memory, ...]:
        """Master and momentum, if they live here; the lines of a schedule."""
        rates = self.rates
        table = () if rates is None else (Memory("rates", len(rates.words), rates.word_bits),)
        if self.state is not Home.ON_CHIP:
            return table
        words = self.tiled_elements // self.w_lanes
        return (
            *table,
            Memory("master", words, self.w_lanes * self.master_fixed.width, is_state=True),
            Memory("momentum", words, self.w_lanes * self.momentum_width, is_state=True),
        )

    def images(self, state: State) -> dict[str, list[int]]:
        """Master and momentum in stream order."""
        table = {} if self.rates is None else {"rates": self.rates.words}
        if self.state is not Home.ON_CHIP:
            return {"state": pack(self._state_codes(state), self.state_fixed.width, self.w_lanes), **table}
        master, momentum = self._in_order(state)
        return {
            **table,
            "master": pack(master, self.master_fixed.width, self.w_lanes),
            "momentum": pack(momentum, self.momentum_width, self.w_lanes),
        }

    def _in_order(self, state: State) -> tuple[IntArray, IntArray]:
        """Master and momentum as a stream has them."""
        order = self.stream_order("w")
        return in_order(state["master"].reshape(-1), order), in_order(state["momentum"].reshape(-1), order)

    def _state_codes(self, state: State) -> IntArray:
        """Elements of `state_fixed` in stream order."""
        master, momentum = self._in_order(state)
        low = master & ((1 << self.master_fixed.width) - 1)
        codes: IntArray = low | (momentum & ((1 << self.momentum_width) - 1)) << self.master_fixed.width
        return codes

    @cached_property
    def circuit_shape(self) -> UpdateShape:
        """What the circuit is built from."""
        return UpdateShape(
            shape=self.shape,
            tile=self.tile,
            lanes=self.w_lanes,
            key=self.key,
            gradient=self.g_fixed,
            weight=self.w_fixed,
            momentum=self.momentum_fixed,
            master=self.master_fixed,
            momentum_factor=self.momentum_factor,
            gradient_factor=self.gradient_factor,
            decay_factor=self.decay_factor,
            rate_factor=self.rate_factor,
            momentum_sum_bits=self.momentum_sum_bits,
            master_sum_bits=self.master_sum_bits,
            guard=GUARD,
            clip=self.clip_code,
            nesterov=self.recipe.nesterov,
            rates=self.rates,
            multiplied=self.multiplied,
            begun=self.begun,
        )

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.weights.update`."""
        g, w, shape = streams["g"], streams["w"], self.circuit_shape
        chain = [streams[port.name] for port in (LOAD, DUMP) if self.accessed]
        if self.state is Home.ON_CHIP:
            return (update_accessed if chain else update)(domain, g, w, *chain, shape=shape, images=images)
        outside = g, streams["state_in"], w, streams["state_out"]
        make = update_outside_accessed if chain else update_outside
        return make(domain, *outside, *chain, shape=shape, images=images)

    # ---- tests

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Vectors, tiles, decay, no momentum, lanes, tensors shorter than the pipeline; schedules, looking ahead,
        clipped gradients, each with state on chip and outside; constants on multipliers."""
        recipe = Recipe(batch=4, weight_decay=1e-3, seed=3)
        cosine = dataclasses.replace(recipe, schedule=Schedule.COSINE, period=4, warm_up=2)
        ahead = dataclasses.replace(recipe, nesterov=True, clip=4.0)
        loaded = LoadedRecipe.of(dataclasses.replace(recipe, staleness=1))
        steps = dataclasses.replace(ahead, schedule=Schedule.STEP, period=2, step_factor=0.5, weight_decay=0.0)
        return (
            cls(shape=(6, 4, 3, 3), tile=Tile(2, 2, 3), w_lanes=4, recipe=recipe, tensor_id=5),
            cls(shape=(40,), w_lanes=2, recipe=recipe, decay=False),
            cls(shape=(3,), recipe=Recipe(batch=2, momentum=0.0, learning_rate=1.0, weight_decay=0.1)),
            cls(shape=(8, 3, 1, 1), w_lanes=1, recipe=Recipe(batch=1, momentum=0.3), momentum_width=32),
            cls(shape=(5, 7), recipe=recipe, g_fixed=Fixed(16, 3), w_fixed=Fixed(12, 10)),
            cls(shape=(6, 4, 3, 3), tile=Tile(2, 2, 3), w_lanes=4, recipe=recipe, tensor_id=5, state=Home.DRAM),
            cls(shape=(3,), recipe=recipe, state=Home.DRAM),
            cls(shape=(4, 2, 1, 1), tile=Tile(2, 2), w_lanes=2, recipe=cosine, tensor_id=5),
            cls(shape=(3,), recipe=ahead),
            cls(shape=(24,), w_lanes=2, recipe=steps, tensor_id=7),
            cls(shape=(2,), w_lanes=2, recipe=steps, state=Home.DRAM),
            cls(shape=(6, 4, 1, 1), tile=Tile(2, 2), w_lanes=2, recipe=recipe, momentum_width=21, master_width=21),
            cls(shape=(6, 4, 3, 3), tile=Tile(2, 2, 3), w_lanes=4, recipe=recipe, tensor_id=5, multiplied=True),
            cls(shape=(3,), recipe=ahead, momentum_width=32, state=Home.DRAM, multiplied=True),
            cls(shape=(5, 4, 1, 1), tile=Tile(2, 2), w_lanes=2, recipe=loaded, tensor_id=5, begun=3),
            cls(shape=(5, 4, 1, 1), tile=Tile(2, 2), w_lanes=2, recipe=loaded, tensor_id=5, begun=3, state=Home.DRAM),
        )
