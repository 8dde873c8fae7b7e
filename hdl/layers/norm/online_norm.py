"""Online normalisation with scale and shift: normalisation for one sample at a time, without a batch.

Chiley et al., "Online Normalization for Training Neural Networks", NeurIPS 2019.  Per channel, over the pixels of
frame t:

    n = (x - mu) / sqrt(var + epsilon)                            mu, var after frame t - 1 - lag
    var' = a var + (1 - a) var(x) + a (1 - a) (mean(x) - mu)^2    a = recipe.norm_forward_decay
    mu'  = a mu + (1 - a) mean(x)
    y = gamma n + beta

and backward, with b = recipe.norm_backward_decay and v, u after frame t - 1 - lag:

    s  = gamma e - (1 - b) v n              v' = v + mean(s n)
    dx = s / sqrt(var + epsilon) - (1 - b) u     u' = u + mean(dx)
    g_gamma = sum of e n,   g_beta = sum of e    over pixels and the frames of a batch

The published equations have lag 0; lag 1 lets a sequential unit compute roots and quotients while the next frame flows.
The normalised map saturates at 8 standard deviations, which stands for the paper's activation clamping.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from hdl.engine.norm.forward import (
    accessed_frozen_norm_forward,
    accessed_norm_forward,
    frozen_norm_forward,
    norm_forward,
)
from hdl.engine.norm.numbers import NORMAL, ForwardNumbers
from hdl.engine.norm.shapes import NORMAL_AT, RESULTS, X_AT, Y_AT, ForwardShape
from hdl.errors import FoldingError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack, pack_pairs, unpack
from hdl.layers.meaning import Again, State, Tape
from hdl.layers.norm.online_norm_backward import OnlineNormBackward
from hdl.layers.norm.scale_and_shift import ScaleAndShift
from hdl.layers.norm.shared import DATA, SHARED_FIELDS, WEIGHT, NormLayer, example_fields
from hdl.layers.storage import Memory
from hdl.recipe import Recipe
from hdl.signals import Instances
from hdl.streams import queue_latency
from hdl.tensor import Kind, Port, Tensor
from hdl.threads import in_ranges

if TYPE_CHECKING:
    from hdl.layers.norm.kernel import Plain

# y can hold at least this magnitude: statistics start far from the data's, so a calibration sees y too small
LEAST_RANGE_BITS = 3
# bits of gamma n + beta that golden models hold, one to spare
WIDEST_SUM = 62
# values of a common channel that join each channel's own where statistics are taken from a first batch
PRIOR_SAMPLES = 8


@dataclass(frozen=True, kw_only=True)
class OnlineNorm(NormLayer):
    """The forward engine: sinks ``x``, ``gamma``, ``beta``; source ``y``, stash sources ``normal`` and ``inverse``.

    ``normal`` is n rounded, ``inverse`` the 1 / sigma that this frame was multiplied by, one number a channel.
    Formats of both are fixed by the data's, because calibration sees them before the statistics have settled.
    """

    x_fixed: Fixed = DATA
    gamma_fixed: Fixed = WEIGHT
    beta_fixed: Fixed = WEIGHT
    y_fixed: Fixed = DATA

    def with_formats(self, formats: Mapping[str, Fixed]) -> Self:
        """As for every layer, but y keeps a range of at least 2**`LEAST_RANGE_BITS`."""
        chosen = dict(formats)
        if "y" in chosen:
            y = chosen["y"]
            most = y.width - y.signed - LEAST_RANGE_BITS
            chosen["y"] = dataclasses.replace(y, fraction_bits=min(y.fraction_bits, most))
        return super().with_formats(chosen)

    @cached_property
    def numbers(self) -> ForwardNumbers:
        """Arithmetic of the statistics."""
        return ForwardNumbers(self.x_fixed, self.pixels, self.recipe.norm_forward_decay, self.epsilon)

    # ---- shape rule

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x, gamma and beta unless they are frozen."""
        x = Port("x", Tensor(self.shape, self.x_fixed, Kind.ACTIVATION), self.lanes)
        return (x,) if self.frozen else (x, *self.weight_ports)

    @cached_property
    def weight_ports(self) -> tuple[Port, ...]:
        """gamma, beta."""
        return self._vector("gamma", self.gamma_fixed), self._vector("beta", self.beta_fixed)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y, normal, inverse."""
        return (
            Port("y", Tensor(self.shape, self.y_fixed, Kind.ACTIVATION), self.lanes),
            Port("normal", Tensor(self.shape, NORMAL, Kind.STASH), self.lanes),
            Port("inverse", Tensor(self.pair_shape, self.numbers.inverse, Kind.STASH), self.inverse_lanes),
        )

    # ---- cycles and folding

    @property
    def macs(self) -> int:
        """x squared, times inverse, times gamma."""
        return 3 * self.pixels * self.channels

    @property
    def multipliers(self) -> int:
        """As `macs`, a lane; those of the statistics, if so chosen."""
        return 3 * self.core + self.multiplied * self.engine.multipliers * self.engine.slow.lanes

    @property
    def engine(self) -> ForwardShape:
        """What the circuit is built from."""
        shape = ForwardShape(
            numbers=self.numbers,
            **self.engine_fields,
            gamma=self.gamma_fixed,
            beta=self.beta_fixed,
            y=self.y_fixed,
        )
        if shape.sum_width > WIDEST_SUM:
            raise FoldingError(
                f"OnlineNorm {self.shape}: beta {self.beta_fixed} added to gamma {self.gamma_fixed} times the "
                f"normalised map {NORMAL} takes {shape.sum_width} bits, more than {WIDEST_SUM}",
                "give gamma and beta nearer binary points",
            )
        return shape

    @property
    def pipeline_cycles(self) -> int:
        """From x to y, queue and adapters included."""
        return Y_AT + queue_latency(RESULTS) + 2 + 2 * self.core // self.lanes

    def latency_cycles(self, source: str) -> int:
        """Through the data path as far as the source, the queue, and the width adapters."""
        made = {"y": Y_AT, "normal": NORMAL_AT, "inverse": X_AT}[source]
        return made + queue_latency(RESULTS) + self.adapter_cycles

    def waiting(self, source: str) -> int:
        """All inverses of a frame may leave as slowly as it."""
        if source == "inverse":
            return max(RESULTS, self.groups) * self.core // self.inverse_lanes
        return super().waiting(source)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """A word of the inside after another; ``inverse`` leaves with the first pixel."""
        del source
        return {"x": -(-elements // self.core) * self.core}

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Mean 0, variance 1, unless they are carried over; of all frames of lag."""
        mean, variance = self.numbers.start(self.channels)
        if "mean" in parameters:
            mean = self.numbers.mean.encode(parameters["mean"])
            variance = self.numbers.variance.encode(parameters["variance"])
        initial = {name: self.port(name).tensor.fixed.encode(parameters[name]) for name in ("gamma", "beta")}
        tables = deque([self.numbers.table(mean, variance)] * (self.recipe.norm_lag + 1))
        held = {"held": initial} if self.frozen else {}
        return {"mean": mean, "variance": variance, "tables": tables, "initial": initial, **held}

    def carried(self, state: State) -> dict[str, FloatArray]:
        """The running statistics."""
        formats = {"mean": self.numbers.mean, "variance": self.numbers.variance}
        return {name: fixed.decode(state[name]) for name, fixed in formats.items()}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """`definition`, compiled."""
        from hdl.layers.norm import kernel as norm_kernel

        x = np.ascontiguousarray(inputs["x"]).reshape(len(inputs["x"]), self.pixels, self.channels)
        y, normal = np.empty_like(x), np.empty_like(x)
        (gamma, beta), (fresh_gamma, fresh_beta) = self._versions(state, self._weights(state, inputs))
        centre, inverse = self._unrolled(state, len(x))
        state["mean"], state["variance"] = state["mean"].copy(), state["variance"].copy()
        arrays = (
            x,
            (gamma, beta),
            (fresh_gamma, fresh_beta),
            self.recipe.staleness,
            centre,
            inverse,
            state["mean"],
            state["variance"],
            self._constants,
            y,
            normal,
        )
        in_ranges(
            lambda first, end: norm_kernel.forward_batch(first, end, *arrays), self.channels, len(x) * self.pixels
        )
        state["tables"] = deque(zip(centre[len(x) :], inverse[len(x) :], strict=True))
        shape = (len(x), *self.shape)
        inverse = inverse[: len(x)].reshape(-1, *self.pair_shape)
        return {"y": y.reshape(shape), "normal": normal.reshape(shape), "inverse": inverse}

    @cached_property
    def _constants(self) -> Plain:
        """Of `golden`."""
        from hdl.layers.norm.kernel import forward_constants

        return forward_constants(self.numbers, self.gamma_fixed, self.beta_fixed, self.y_fixed)

    def definition(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """What `golden` computes: every product exact, n rounded once, y rounded once."""
        x, numbers = inputs["x"], self.numbers
        y, normal, inverse = np.empty_like(x), np.empty_like(x), np.empty((len(x), *self.pair_shape), np.int64)
        normal_bits = numbers.centre.fraction_bits + numbers.inverse.fraction_bits
        scaled_bits = self.gamma_fixed.fraction_bits + NORMAL.fraction_bits
        sum_bits = max(scaled_bits, self.beta_fixed.fraction_bits)
        for t, (gamma, beta) in self._split(state, len(x), self._weights(state, inputs)):
            centre, inverse[t] = state["tables"].popleft()
            normal[t] = requantise(((x[t] << 1) - centre) * inverse[t], normal_bits, NORMAL)
            scaled = gamma * normal[t] << (sum_bits - scaled_bits)
            y[t] = requantise(scaled + (beta << (sum_bits - self.beta_fixed.fraction_bits)), sum_bits, self.y_fixed)
            state["mean"], state["variance"] = numbers.step(
                state["mean"], state["variance"], x[t].sum((0, 1)), (x[t] ** 2).sum((0, 1))
            )
            state["tables"].append(numbers.table(state["mean"], state["variance"]))
        return {"y": y, "normal": normal, "inverse": inverse}

    @property
    def closeness(self) -> dict[str, float]:
        """The inverse is rounded before it multiplies: its error counts an activation of many deviations times."""
        return {"y": 3.0, "normal": 5.0, "inverse": 0.95}

    def settled(self, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Mean and variance of each channel over frames and pixels.

        A batch may be small, and a channel constant in it: all channels together count as `PRIOR_SAMPLES` more."""
        if "x" not in inputs:
            return {}
        x = inputs["x"]
        mean = x.mean((0, 1, 2), np.float64, keepdims=True)
        variance = x.var((0, 1, 2), np.float64, mean=mean)
        samples = x.size // self.channels
        variance = (samples * variance + PRIOR_SAMPLES * variance.mean()) / (samples + PRIOR_SAMPLES)
        return {"mean": mean.reshape(-1), "variance": variance} if variance.min() > 0 else {}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """As `start`."""
        initial = (np.zeros(self.channels), np.ones(self.channels))
        if "mean" in parameters:
            initial = (parameters["mean"], parameters["variance"])
        return {"history": deque([initial] * (self.recipe.norm_lag + 1)), **super().start_reference(parameters)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The published equations."""
        x, a, history = inputs["x"], self.recipe.norm_forward_decay, state["history"]
        y, normal, inverse = np.empty_like(x), np.empty_like(x), np.empty((len(x), *self.pair_shape), x.dtype)
        for t, (gamma, beta) in self._split(state, len(x), self._weights(state, inputs)):
            used_mean, used_variance = history[0]
            inverse[t] = 1.0 / np.sqrt(used_variance + self.epsilon)
            # in place and of the maps' type, since they are large
            np.subtract(x[t], used_mean.astype(x.dtype), out=normal[t])
            normal[t] *= inverse[t]
            np.multiply(normal[t], gamma, out=y[t])
            y[t] += beta
            mean, variance = history[-1]
            own = x[t].mean((0, 1), keepdims=True)
            away = own[0, 0] - mean
            variance = a * variance + (1 - a) * x[t].var((0, 1), mean=own) + a * (1 - a) * away**2
            history.append((mean + (1 - a) * away, variance))
            history.popleft()
        return {"y": y, "normal": normal, "inverse": inverse}

    def evaluating(self, state: State, frames: int) -> tuple[Layer, State]:
        """All frames with the statistics that the next frame would meet."""
        name = "tables" if "tables" in state else "history"
        return self, {**state, name: deque([state[name][0]] * (frames + 1))}

    def statistics(self, state: State) -> tuple[FloatArray, FloatArray]:
        """(mean, 1 / sigma) that the next frame would be normalised with, values by channel, of a golden state."""
        centre, inverse = state["tables"][0]
        return self.numbers.centre.decode(centre), self.numbers.inverse.decode(inverse)

    def again(self) -> tuple[Again, ...]:
        """y of the normalised map, with the scale and shift of its frame."""
        names = ("frozen", "height", "width", "channels", "recipe", "gamma_fixed", "beta_fixed", "y_fixed")
        layer = ScaleAndShift(**{name: getattr(self, name) for name in names})
        return (Again(layer, {name: name for name in ("normal", "gamma", "beta")}),)

    def backward(self, tape: Tape) -> None:
        """One backward engine, which makes both gradients too, on the stashed ``normal`` and ``inverse``.

        Frozen, it makes errors alone, and where nobody wants those there is none."""
        if self.frozen and not tape.needs_error("x"):
            return
        shared = {name: getattr(self, name) for name in SHARED_FIELDS}
        engine = OnlineNormBackward(
            **shared,
            needs_dx=tape.needs_error("x"),
            gamma_fixed=self.gamma_fixed,
            normal_fixed=NORMAL,
            inverse_fixed=self.numbers.inverse,
        )
        scale = {} if self.frozen else {"gamma": tape.weight("gamma")}
        maps = {"normal": tape.value("normal"), "inverse": tape.value("inverse")}
        made = tape.add("backward", engine, {"e": tape.error("y"), **scale, **maps})
        if not self.frozen:
            tape.learn("gamma", made["g_gamma"])
            tape.learn("beta", made["g_beta"])
        if engine.needs_dx:
            tape.give_error("x", made["dx"])

    # ---- hardware

    def memories(self) -> tuple[Memory, ...]:
        """Scale above shift, all versions; mean above variance; centre above inverse, for each frame of lag."""
        numbers, slow = self.numbers, self.engine.slow
        pair = self.gamma_fixed.width + self.beta_fixed.width
        table = numbers.centre.width + numbers.inverse.width
        return (
            Memory("weights", self.versions * self.groups, self.core * pair, is_state=self.frozen),
            Memory("mean", slow.groups, slow.lanes * numbers.mean.width, is_state=True),
            Memory("variance", slow.groups, slow.lanes * numbers.variance.width, is_state=True),
            Memory("table", (self.recipe.norm_lag + 1) * self.groups, self.core * table),
        )

    def images(self, state: State) -> dict[str, list[int]]:
        """Statistics and tables now; weights as at the start."""
        numbers, lanes, slow = self.numbers, self.core, self.engine.slow.lanes
        initial, widths = state["initial"], (self.beta_fixed.width, self.gamma_fixed.width)
        weights = pack_pairs(initial["beta"], initial["gamma"], widths, lanes)
        widths = numbers.inverse.width, numbers.centre.width
        table = [word for centre, inverse in state["tables"] for word in pack_pairs(inverse, centre, widths, lanes)]
        return {
            "weights": weights + [0] * (self.versions - 1) * self.groups,
            "mean": pack(state["mean"], numbers.mean.width, slow),
            "variance": pack(state["variance"], numbers.variance.width, slow),
            "table": table,
        }

    def with_state_words(self, state: State, words: Sequence[int]) -> None:
        """Statistics, and tables of all frames of lag."""
        found, numbers, lanes = self._memory_words(words), self.numbers, self.engine.slow.lanes
        state["mean"] = unpack(found["mean"], numbers.mean, lanes)
        state["variance"] = unpack(found["variance"], numbers.variance, lanes)
        lines = self._table(found["table"], numbers.inverse, numbers.centre)
        state["tables"] = deque((centre, inverse) for inverse, centre in lines)

    @property
    def block(self) -> Callable[..., Instances]:
        """See `hdl.engine.norm.forward`."""
        make: Callable[..., Instances]
        make = frozen_norm_forward if self.frozen else norm_forward
        if self.accessed:
            make = accessed_frozen_norm_forward if self.frozen else accessed_norm_forward
        return make

    # ---- tests

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Lanes, single pixels, single channels, lags, staleness, formats, odd numbers of pixels, frozen, constants on
        multipliers, statistics of some lanes after others, beta finer than what it is added to."""
        examples = example_fields()
        others = (
            cls(**examples[0], frozen=True),
            cls(**examples[0], multiplied=True),
            cls(**examples[0], statistic_lanes=1),
            cls(**examples[1], statistic_lanes=2, multiplied=True),
            cls(height=1, width=1, channels=12, lanes=6, statistic_lanes=2, recipe=Recipe(batch=2, norm_lag=3)),
            cls(**examples[0], gamma_fixed=Fixed(6, 1), beta_fixed=Fixed(16, 15), y_fixed=Fixed(16, 7)),
        )
        return (*(cls(**example) for example in examples), *others)
