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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from hdl.engine.norm.backward import norm_backward, norm_gradients
from hdl.engine.norm.forward import norm_forward
from hdl.engine.norm.numbers import INVERSE_BITS, NORMAL, BackwardNumbers, ForwardNumbers
from hdl.engine.norm.shapes import DX_AT, GRADIENT_SUMS_AT, NORMAL_AT, RESULTS, X_AT, Y_AT, BackwardShape, ForwardShape
from hdl.engine.random import ROUNDING_LATENCY
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack
from hdl.layers.folding import divisors, lanes_for, weight_lanes
from hdl.layers.meaning import State, Tape
from hdl.layers.storage import Memory
from hdl.random_bits import hash32, high_half, requantise_stochastically, stable_id, tensor_key
from hdl.recipe import Recipe
from hdl.signals import Bit, Clock, Instances
from hdl.stream import Stream
from hdl.streams import queue_latency
from hdl.tensor import Kind, Port, Tensor, Tile

DATA = Fixed(16, 8)
WEIGHT = Fixed(16, 12)
ERROR = Fixed(16, 12)
INVERSE = Fixed(INVERSE_BITS, 14, signed=False)
# cycles from rounded sums of gradients to the port
QUEUE_LATENCY = 2
# y can hold at least this magnitude: statistics start far from the data's, so a calibration sees y too small
LEAST_RANGE_BITS = 3


@dataclass(frozen=True, kw_only=True)
class _Norm(Layer):
    """What both engines share."""

    height: int
    width: int
    channels: int
    recipe: Recipe = field(default_factory=Recipe)
    # channels a beat of maps
    lanes: int = 1
    # channels a cycle inside, a multiple of `lanes`; 0: as lanes
    core_lanes: int = 0
    # channels a beat of the inverses
    inverse_lanes: int = 1
    # elements a beat of weights or gradients
    w_lanes: int = 1
    # distinguishes the random bits of this layer's gradients from others
    tensor_id: int = 0
    # added to the variance
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        name = f"{type(self).__name__} {self.height}x{self.width}x{self.channels}"
        if min(self.height, self.width, self.channels) < 1:
            raise ShapeError(f"{name}: all dimensions must be positive")
        if self.lanes < 1 or self.channels % self.lanes:
            raise FoldingError(f"{name}: {self.lanes} lanes do not divide {self.channels} channels")
        if self.core % self.lanes or self.channels % self.core:
            raise FoldingError(
                f"{name}: {self.core} core lanes must be a multiple of {self.lanes} lanes and divide {self.channels} "
                "channels"
            )
        if self.w_lanes < 1 or self.core % self.w_lanes:
            raise FoldingError(f"{name}: {self.w_lanes} weight lanes do not divide {self.core} core lanes")
        if self.inverse_lanes < 1 or self.channels % self.inverse_lanes:
            raise FoldingError(f"{name}: {self.inverse_lanes} inverse lanes do not divide {self.channels} channels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the map."""
        return self.height, self.width, self.channels

    @property
    def pixels(self) -> int:
        """Elements over which statistics of one frame are taken."""
        return self.height * self.width

    @property
    def groups(self) -> int:
        """Cycles a pixel."""
        return self.channels // self.core

    @property
    def core(self) -> int:
        """Channels a cycle inside."""
        return self.core_lanes or self.lanes

    @property
    def adapter_cycles(self) -> int:
        """Of width adapters at both ends."""
        return 2 if self.core != self.lanes else 0

    @property
    def cycles_per_frame(self) -> int:
        """A beat a cycle, but no faster than the statistics or the control process (see `engine`)."""
        return max(self.engine.cycles, self.pixels * self.channels // self.lanes)

    @property
    def engine(self) -> ForwardShape | BackwardShape:
        """What the circuit is built from."""
        raise NotImplementedError

    @property
    def pair_shape(self) -> tuple[int, int, int]:
        """Of what has one number a channel and frame."""
        return 1, 1, self.channels

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """Lanes of the ports by `lanes_for`, so that both ends agree; inside as many as the once-a-frame work needs."""
        del tile
        lanes = lanes_for(self.pixels * self.channels, self.channels, cycles)
        inverse_lanes = lanes_for(self.channels, self.channels, cycles)
        w_lanes = weight_lanes(self.channels, 1, cycles)
        for core in divisors(self.channels):
            if core % lanes == 0:
                folded = dataclasses.replace(
                    self, lanes=lanes, core_lanes=core, inverse_lanes=inverse_lanes, w_lanes=w_lanes
                )
                if folded.cycles_per_frame <= cycles:
                    return folded
        raise FoldingError(
            f"{type(self).__name__} {self.shape} needs {folded.cycles_per_frame} cycles a frame with {folded.core} "
            f"lanes, more than {cycles}",
            "allow more cycles or raise the recipe's norm_lag",
        )

    def _split(self, state: State, frames: int, weights: Sequence[Any]) -> list[tuple[int, Any]]:
        """(frame, weights) for each frame of the batch: the first ``staleness`` frames see the version before."""
        previous = state.get("previous", weights)
        state["previous"] = tuple(weights)
        return [(t, previous if t < self.recipe.staleness else weights) for t in range(frames)]

    def _versions(self, state: State, weights: tuple[IntArray, ...]) -> list[IntArray]:
        """Of each weight the version before and the newest, stacked; what `_split` does, for kernels."""
        previous = state.get("previous", weights)
        state["previous"] = weights
        return [np.stack(pair) for pair in zip(previous, weights, strict=True)]

    def _unrolled(self, state: State, frames: int) -> tuple[IntArray, IntArray]:
        """Both tables by frame: those that are known, and room for the ones that ``frames`` frames make."""
        known = state["tables"]
        tables = np.empty((2, len(known) + frames, self.channels), np.int64)
        for t, pair in enumerate(known):
            tables[:, t] = pair
        return tables[0], tables[1]


@dataclass(frozen=True, kw_only=True)
class OnlineNorm(_Norm):
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
        """x, gamma, beta."""
        return (
            Port("x", Tensor(self.shape, self.x_fixed, Kind.ACTIVATION), self.lanes),
            Port("gamma", Tensor((self.channels,), self.gamma_fixed, Kind.WEIGHT), self.w_lanes),
            Port("beta", Tensor((self.channels,), self.beta_fixed, Kind.WEIGHT), self.w_lanes),
        )

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
        """As `macs`, a lane."""
        return 3 * self.core

    @property
    def engine(self) -> ForwardShape:
        """What the circuit is built from."""
        if self.beta_fixed.fraction_bits > self.gamma_fixed.fraction_bits + NORMAL.fraction_bits:
            raise FoldingError(
                f"OnlineNorm {self.shape}: beta {self.beta_fixed} is finer than gamma {self.gamma_fixed} times the "
                f"normalised map {NORMAL}",
                "give beta fewer fraction bits",
            )
        return ForwardShape(
            numbers=self.numbers,
            recipe=self.recipe,
            groups=self.groups,
            lanes=self.core,
            beat_cycles=self.core // self.lanes,
            gamma=self.gamma_fixed,
            beta=self.beta_fixed,
            y=self.y_fixed,
        )

    @property
    def pipeline_cycles(self) -> int:
        """From x to y, queue and adapters included."""
        return Y_AT + queue_latency(RESULTS) + 2 + 2 * self.core // self.lanes

    def latency_cycles(self, source: str) -> int:
        """Through the data path as far as the source, the queue, and the width adapters."""
        made = {"y": Y_AT, "normal": NORMAL_AT, "inverse": X_AT}[source]
        return made + queue_latency(RESULTS) + self.adapter_cycles

    def required(self, source: str, elements: int) -> dict[str, int]:
        """A word of the inside after another; ``inverse`` leaves with the first pixel."""
        del source
        return {"x": -(-elements // self.core) * self.core}

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Mean 0, variance 1."""
        mean, variance = self.numbers.start(self.channels)
        initial = {name: self.port(name).tensor.fixed.encode(parameters[name]) for name in ("gamma", "beta")}
        tables = deque([self.numbers.table(mean, variance)] * (self.recipe.norm_lag + 1))
        return {"mean": mean, "variance": variance, "tables": tables, "initial": initial}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """`definition`, compiled."""
        from hdl.layers.norm import kernel as norm_kernel

        x = np.ascontiguousarray(inputs["x"]).reshape(len(inputs["x"]), self.pixels, self.channels)
        y, normal = np.empty_like(x), np.empty_like(x)
        constants = norm_kernel.forward_constants(self.numbers, self.gamma_fixed, self.beta_fixed, self.y_fixed)
        gamma, beta = self._versions(state, (inputs["gamma"], inputs["beta"]))
        centre, inverse = self._unrolled(state, len(x))
        state["mean"], state["variance"] = state["mean"].copy(), state["variance"].copy()
        norm_kernel.forward_batch(
            x,
            gamma,
            beta,
            self.recipe.staleness,
            centre,
            inverse,
            state["mean"],
            state["variance"],
            constants,
            y,
            normal,
        )
        state["tables"] = deque(zip(centre[len(x) :], inverse[len(x) :], strict=True))
        shape = (len(x), *self.shape)
        inverse = inverse[: len(x)].reshape(-1, *self.pair_shape)
        return {"y": y.reshape(shape), "normal": normal.reshape(shape), "inverse": inverse}

    def definition(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """What `golden` computes: every product exact, n rounded once, y rounded once."""
        x, numbers = inputs["x"], self.numbers
        y, normal, inverse = np.empty_like(x), np.empty_like(x), np.empty((len(x), *self.pair_shape), np.int64)
        normal_bits = numbers.centre.fraction_bits + numbers.inverse.fraction_bits
        scaled_bits = self.gamma_fixed.fraction_bits + NORMAL.fraction_bits
        sum_bits = max(scaled_bits, self.beta_fixed.fraction_bits)
        for t, (gamma, beta) in self._split(state, len(x), (inputs["gamma"], inputs["beta"])):
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
        """The inverse comes of a table; its error times an activation of many deviations, and the state's roundings."""
        return {"y": 3.0, "normal": 6.0, "inverse": 1.0}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """As `start`."""
        del parameters
        initial = (np.zeros(self.channels), np.ones(self.channels))
        return {"history": deque([initial] * (self.recipe.norm_lag + 1))}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The published equations."""
        x, a, history = inputs["x"], self.recipe.norm_forward_decay, state["history"]
        y, normal, inverse = np.empty_like(x), np.empty_like(x), np.empty((len(x), *self.pair_shape))
        for t, (gamma, beta) in self._split(state, len(x), (inputs["gamma"], inputs["beta"])):
            used_mean, used_variance = history[0]
            inverse[t] = 1.0 / np.sqrt(used_variance + self.epsilon)
            normal[t] = (x[t] - used_mean) * inverse[t]
            y[t] = gamma * normal[t] + beta
            mean, variance = history[-1]
            away = x[t].mean((0, 1)) - mean
            variance = a * variance + (1 - a) * x[t].var((0, 1)) + a * (1 - a) * away**2
            history.append((mean + (1 - a) * away, variance))
            history.popleft()
        return {"y": y, "normal": normal, "inverse": inverse}

    def evaluating(self, state: State, frames: int) -> tuple[Layer, State]:
        """All frames with the statistics that the next frame would meet."""
        name = "tables" if "tables" in state else "history"
        return self, {**state, name: deque([state[name][0]] * (frames + 1))}

    def backward(self, tape: Tape) -> None:
        """One backward engine, which makes both gradients too, on the stashed ``normal`` and ``inverse``."""
        shared = {name: getattr(self, name) for name in SHARED_FIELDS}
        engine = OnlineNormBackward(
            **shared,
            needs_dx=tape.needs_error("x"),
            gamma_fixed=self.gamma_fixed,
            normal_fixed=NORMAL,
            inverse_fixed=self.numbers.inverse,
        )
        made = tape.add(
            "backward",
            engine,
            {
                "e": tape.error("y"),
                "gamma": tape.weight("gamma"),
                "normal": tape.value("normal"),
                "inverse": tape.value("inverse"),
            },
        )
        tape.learn("gamma", made["g_gamma"])
        tape.learn("beta", made["g_beta"])
        if engine.needs_dx:
            tape.give_error("x", made["dx"])

    # ---- hardware

    def memories(self) -> tuple[Memory, ...]:
        """Scale above shift, two versions; mean above variance; centre above inverse, for each frame of lag."""
        numbers = self.numbers
        pair = self.gamma_fixed.width + self.beta_fixed.width
        table = numbers.centre.width + numbers.inverse.width
        return (
            Memory("weights", 2 * self.groups, self.core * pair),
            Memory("mean", self.groups, self.core * numbers.mean.width, is_state=True),
            Memory("variance", self.groups, self.core * numbers.variance.width, is_state=True),
            Memory("table", (self.recipe.norm_lag + 1) * self.groups, self.core * table),
        )

    def images(self, state: State) -> dict[str, list[int]]:
        """Statistics now; weights and tables as at the start."""
        numbers, lanes = self.numbers, self.core
        initial = state["initial"]
        beta, gamma = (pack(initial[name], getattr(self, f"{name}_fixed").width, lanes) for name in ("beta", "gamma"))
        shift = lanes * self.beta_fixed.width
        weights = [low | high << shift for low, high in zip(beta, gamma, strict=True)]
        centre, inverse = numbers.table(*numbers.start(self.channels))
        shift = lanes * numbers.inverse.width
        pairs = zip(pack(inverse, numbers.inverse.width, lanes), pack(centre, numbers.centre.width, lanes), strict=True)
        return {
            "weights": weights + [0] * self.groups,
            "mean": pack(state["mean"], numbers.mean.width, lanes),
            "variance": pack(state["variance"], numbers.variance.width, lanes),
            "table": [low | high << shift for low, high in pairs] * (self.recipe.norm_lag + 1),
        }

    def circuit(
        self, clk: Clock, rst: Bit, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.norm.forward`."""
        ports = [streams[port.name] for port in (*self.sinks, *self.sources)]
        return norm_forward(clk, rst, *ports, shape=self.engine, images=images)

    # ---- tests

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Lanes, single pixels, single channels, lags, staleness, formats, odd numbers of pixels."""
        return tuple(cls(**example) for example in example_fields())


@dataclass(frozen=True, kw_only=True)
class OnlineNormBackward(_Norm):
    """The backward engine: sinks ``e``, ``gamma``, ``normal``, ``inverse``; sources ``dx``, ``g_gamma``, ``g_beta``.

    Gradients are exact sums over the batch, rounded stochastically with the batch number as step.
    """

    # whether anything upstream learns; without, there is no source ``dx``
    needs_dx: bool = True
    e_fixed: Fixed = ERROR
    gamma_fixed: Fixed = WEIGHT
    normal_fixed: Fixed = NORMAL
    inverse_fixed: Fixed = INVERSE
    dx_fixed: Fixed = ERROR
    g_gamma_fixed: Fixed = DATA
    g_beta_fixed: Fixed = DATA

    @cached_property
    def numbers(self) -> BackwardNumbers:
        """Arithmetic of the control process."""
        decay = self.recipe.norm_backward_decay
        return BackwardNumbers(self.e_fixed, self.dx_fixed, self.normal_fixed, self.pixels, decay)

    # ---- shape rule

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, gamma, normal, inverse."""
        return (
            Port("e", Tensor(self.shape, self.e_fixed, Kind.ERROR), self.lanes),
            Port("gamma", Tensor((self.channels,), self.gamma_fixed, Kind.WEIGHT), self.w_lanes),
            Port("normal", Tensor(self.shape, self.normal_fixed, Kind.STASH), self.lanes),
            Port("inverse", Tensor(self.pair_shape, self.inverse_fixed, Kind.STASH), self.inverse_lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """dx if anybody needs it, g_gamma, g_beta."""
        gradients = (
            Port("g_gamma", Tensor((self.channels,), self.g_gamma_fixed, Kind.GRADIENT), self.w_lanes),
            Port("g_beta", Tensor((self.channels,), self.g_beta_fixed, Kind.GRADIENT), self.w_lanes),
        )
        if not self.needs_dx:
            return gradients
        return (Port("dx", Tensor(self.shape, self.dx_fixed, Kind.ERROR), self.lanes), *gradients)

    # ---- cycles and folding

    @property
    def macs(self) -> int:
        """e gamma, e n, v n, s n, s times inverse."""
        return 5 * self.pixels * self.channels

    @property
    def multipliers(self) -> int:
        """As `macs`, a lane; only that of gamma's gradient where nothing upstream learns."""
        return (5 if self.needs_dx else 1) * self.core

    @property
    def engine(self) -> BackwardShape:
        """What the circuit is built from."""
        return BackwardShape(
            numbers=self.numbers,
            recipe=self.recipe,
            groups=self.groups,
            lanes=self.core,
            beat_cycles=self.core // self.lanes,
            gamma=self.gamma_fixed,
            inverse=self.inverse_fixed,
            g_gamma=self.g_gamma_fixed,
            g_beta=self.g_beta_fixed,
            key_gamma=self.key("gamma"),
            key_beta=self.key("beta"),
        )

    @property
    def pipeline_cycles(self) -> int:
        """From e to dx, queue and adapters included."""
        return DX_AT + queue_latency(RESULTS) + 2 + 2 * self.core // self.lanes

    def latency_cycles(self, source: str) -> int:
        """Through the data path, the queue, and the width adapters; the first sums of a batch are complete when its
        last pixel begins."""
        if source == "dx":
            return DX_AT + queue_latency(RESULTS) + self.adapter_cycles
        return GRADIENT_SUMS_AT + ROUNDING_LATENCY + QUEUE_LATENCY - self.groups

    def required(self, source: str, elements: int) -> dict[str, int]:
        """A word of the inside after another; ``inverse`` is needed with the first pixel."""
        elements = self.pixels * self.channels if source != "dx" else -(-elements // self.core) * self.core
        return {"e": elements, "normal": elements, "inverse": min(elements, self.channels)}

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """The control process starts at rest."""
        v, u = np.zeros(self.channels, np.int64), np.zeros(self.channels, np.int64)
        tables = deque([self.numbers.table(v, u)] * (self.recipe.norm_lag + 1))
        initial = self.gamma_fixed.encode(parameters["gamma"])
        return {"v": v, "u": u, "tables": tables, "batch": 0, "initial": initial}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """`definition`, compiled."""
        from hdl.layers.norm import kernel as norm_kernel

        frames = len(inputs["e"])
        flat = (frames, self.pixels, self.channels)
        e, normal = (np.ascontiguousarray(inputs[name]).reshape(flat) for name in ("e", "normal"))
        dx = np.empty_like(e)
        constants = norm_kernel.backward_constants(self.numbers, self.gamma_fixed, self.inverse_fixed)
        (gamma,) = self._versions(state, (inputs["gamma"],))
        control_v, control_u = self._unrolled(state, frames)
        state["v"], state["u"] = state["v"].copy(), state["u"].copy()
        norm_kernel.backward_batch(
            e,
            normal,
            np.ascontiguousarray(inputs["inverse"]).reshape(frames, self.channels),
            gamma,
            self.recipe.staleness,
            control_v,
            control_u,
            state["v"],
            state["u"],
            constants,
            dx,
        )
        state["tables"] = deque(zip(control_v[frames:], control_u[frames:], strict=True))
        state["batch"] += 1
        gradients = self._gradients(state["batch"] - 1, (e * normal).sum((0, 1)), e.sum((0, 1)))
        return self._needed({"dx": dx.reshape(frames, *self.shape)} | gradients)

    def definition(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """What `golden` computes: every product exact; s rounded once, dx rounded once."""
        e, normal, inverse, numbers = inputs["e"], inputs["normal"], inputs["inverse"], self.numbers
        dx = np.empty_like(e)
        for t, (gamma,) in self._split(state, len(e), (inputs["gamma"],)):
            control_v, control_u = state["tables"].popleft()
            shaped = self._shaped(e[t], gamma, normal[t], control_v)
            dx[t] = self._controlled(shaped, inverse[t], control_u)
            sums = (shaped * normal[t]).sum((0, 1)), dx[t].sum((0, 1))
            state["v"], state["u"] = numbers.step(state["v"], state["u"], *sums)
            state["tables"].append(numbers.table(state["v"], state["u"]))
        state["batch"] += 1
        gradients = self._gradients(state["batch"] - 1, (e * normal).sum((0, 1, 2)), e.sum((0, 1, 2)))
        return self._needed({"dx": dx} | gradients)

    def _needed(self, made: dict[str, Any]) -> dict[str, Any]:
        """What has a source."""
        return {port.name: made[port.name] for port in self.sources}

    def _shaped(self, e: IntArray, gamma: IntArray, normal: IntArray, control: IntArray) -> IntArray:
        """s = gamma e - control n."""
        scaled_bits = self.gamma_fixed.fraction_bits + self.e_fixed.fraction_bits
        control_bits = self.numbers.control_v.fraction_bits + self.normal_fixed.fraction_bits
        bits = max(scaled_bits, control_bits)
        total = (gamma * e << (bits - scaled_bits)) - (control * normal << (bits - control_bits))
        return requantise(total, bits, self.numbers.shaped)

    def _controlled(self, shaped: IntArray, inverse: IntArray, control: IntArray) -> IntArray:
        """dx = s inverse - control."""
        product_bits = self.numbers.shaped.fraction_bits + self.inverse_fixed.fraction_bits
        control_bits = self.numbers.control_u.fraction_bits
        bits = max(product_bits, control_bits)
        total = (shaped * inverse << (bits - product_bits)) - (control << (bits - control_bits))
        return requantise(total, bits, self.dx_fixed)

    def _gradients(self, batch: int, gamma: IntArray, beta: IntArray) -> dict[str, IntArray]:
        index = np.arange(self.channels, dtype=np.int64)
        bits = {
            "gamma": self.e_fixed.fraction_bits + self.normal_fixed.fraction_bits,
            "beta": self.e_fixed.fraction_bits,
        }
        made = {}
        for name, total in (("gamma", gamma), ("beta", beta)):
            random = high_half(hash32(index, batch, self.key(name)))
            target: Fixed = getattr(self, f"g_{name}_fixed")
            made[f"g_{name}"] = requantise_stochastically(total, bits[name], target, random)
        return made

    def key(self, parameter: str) -> int:
        """Key of the random bits of a parameter's gradient."""
        return tensor_key(self.recipe.seed, self.tensor_id ^ stable_id(parameter))

    @property
    def closeness(self) -> dict[str, float]:
        """The error: what its state is rounded by, times the inverse deviation, up to 4.  Gradients: stochastic."""
        return {port.name: 1.0 if port.tensor.kind.per_batch else 2.0 for port in self.sources}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """As `start`."""
        del parameters
        rest = (np.zeros(self.channels), np.zeros(self.channels))
        return {"history": deque([rest] * (self.recipe.norm_lag + 1))}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The published equations."""
        e, normal, inverse, history = inputs["e"], inputs["normal"], inputs["inverse"], state["history"]
        leak = 1 - self.recipe.norm_backward_decay
        dx = np.empty_like(e)
        for t, (gamma,) in self._split(state, len(e), (inputs["gamma"],)):
            used_v, used_u = history.popleft()
            shaped = gamma * e[t] - leak * used_v * normal[t]
            dx[t] = shaped * inverse[t] - leak * used_u
            v, u = history[-1] if history else (used_v, used_u)
            history.append((v + (shaped * normal[t]).mean((0, 1)), u + dx[t].mean((0, 1))))
        return self._needed({"dx": dx, "g_gamma": (e * normal).sum((0, 1, 2)), "g_beta": e.sum((0, 1, 2))})

    # ---- hardware

    def memories(self) -> tuple[Memory, ...]:
        """Scale, two versions; v and u; their controls, for each frame of lag."""
        numbers = self.numbers
        table = numbers.control_v.width + numbers.control_u.width
        return (
            Memory("weights", 2 * self.groups, self.core * self.gamma_fixed.width),
            Memory("v", self.groups, self.core * numbers.state_v.width, is_state=True),
            Memory("u", self.groups, self.core * numbers.state_u.width, is_state=True),
            Memory("table", (self.recipe.norm_lag + 1) * self.groups, self.core * table),
        )

    def images(self, state: State) -> dict[str, list[int]]:
        """The control process now; weights and table as at the start."""
        numbers, lanes = self.numbers, self.core
        return {
            "weights": pack(state["initial"], self.gamma_fixed.width, lanes) + [0] * self.groups,
            "v": pack(state["v"], numbers.state_v.width, lanes),
            "u": pack(state["u"], numbers.state_u.width, lanes),
            "table": [0] * (self.recipe.norm_lag + 1) * self.groups,
        }

    def circuit(
        self, clk: Clock, rst: Bit, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.norm.backward`."""
        ports = [streams[port.name] for port in (*self.sinks, *self.sources)]
        make = norm_backward if self.needs_dx else norm_gradients
        return make(clk, rst, *ports, shape=self.engine, images=images)

    # ---- tests

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of the forward engine, and one at the foot of a network."""
        examples = [{name: value for name, value in fields.items() if name != "x_fixed"} for fields in example_fields()]
        return (*(cls(**fields) for fields in examples), cls(**examples[0], needs_dx=False))


LANES = ("lanes", "core_lanes", "inverse_lanes", "w_lanes")
# fields that mean the same in both engines
SHARED_FIELDS = ("height", "width", "channels", "recipe", "tensor_id", "epsilon", *LANES)


def example_fields() -> list[dict[str, Any]]:
    """Fields of examples of both engines."""
    recipe = Recipe(batch=3, staleness=1, seed=5)
    return [
        {"height": 3, "width": 3, "channels": 4, "lanes": 2, "w_lanes": 2, "recipe": recipe, "tensor_id": 9},
        {"height": 4, "width": 2, "channels": 8, "lanes": 2, "core_lanes": 4, "inverse_lanes": 2, "recipe": recipe},
        {"height": 2, "width": 2, "channels": 6, "recipe": Recipe(batch=2)},
        {"height": 4, "width": 4, "channels": 2, "recipe": Recipe(batch=2, norm_lag=0)},
        {"height": 1, "width": 1, "channels": 3, "recipe": Recipe(batch=2)},
        {"height": 1, "width": 1, "channels": 1, "recipe": Recipe(batch=1, norm_lag=2)},
        {
            "height": 8,
            "width": 8,
            "channels": 2,
            "lanes": 2,
            "inverse_lanes": 2,
            "recipe": Recipe(batch=2, staleness=2),
        },
        {"height": 1, "width": 1, "channels": 2, "recipe": Recipe(batch=4, norm_lag=4)},
        {
            "height": 5,
            "width": 2,
            "channels": 2,
            "x_fixed": Fixed(12, 9),
            "recipe": Recipe(batch=2, norm_forward_decay=0.9, norm_backward_decay=0.8),
        },
    ]
