"""The way back through `hdl.layers.norm.online_norm`, where the equations stand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hdl.engine.norm.backward import (
    accessed_norm_backward,
    accessed_norm_errors,
    accessed_norm_gradients,
    norm_backward,
    norm_errors,
    norm_gradients,
)
from hdl.engine.norm.numbers import NORMAL, BackwardNumbers
from hdl.engine.norm.shapes import DX_AT, RESULTS, BackwardShape
from hdl.engine.random import ROUNDING_LATENCY
from hdl.engine.weights.gradient_rounding import leave_cycles
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack, pack_pairs, unpack
from hdl.layers.meaning import State
from hdl.layers.norm.shared import DATA, ERROR, INVERSE, WEIGHT, NormLayer, example_fields
from hdl.layers.storage import Memory
from hdl.layers.wiring.gradient_sum import GradientSum
from hdl.random_bits import requantise_by_element, stable_id, tensor_key
from hdl.recipe import Recipe
from hdl.signals import Instances
from hdl.spelling import QUIET
from hdl.streams import queue_latency
from hdl.tensor import Kind, Port, Tensor
from hdl.threads import in_ranges

if TYPE_CHECKING:
    from hdl.layers.norm.kernel import Plain

# cycles from rounded sums of gradients to the port
QUEUE_LATENCY = 2


@dataclass(frozen=True, kw_only=True)
class OnlineNormBackward(NormLayer):
    """The backward engine: sinks ``e``, ``gamma``, ``normal``, ``inverse``; sources ``dx``, ``g_gamma``, ``g_beta``.

    Gradients are exact sums over the batch, rounded stochastically with the batch number as step unless ``exact``.
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
    # batches of an earlier training, from which it counts on
    begun: int = field(default=0, metadata=QUIET)
    # whether gradients are the sums themselves, which a `GradientSum` each rounds
    exact: bool = field(default=False, metadata=QUIET)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frozen and not self.needs_dx:
            raise ShapeError(f"OnlineNormBackward {self.shape}: frozen weights and no error leave nothing to make")

    @cached_property
    def numbers(self) -> BackwardNumbers:
        """Arithmetic of the control process."""
        decay = self.recipe.norm_backward_decay
        return BackwardNumbers(self.e_fixed, self.dx_fixed, self.normal_fixed, self.pixels, decay)

    # ---- shape rule

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, gamma unless it is frozen, normal, inverse."""
        return (
            Port("e", Tensor(self.shape, self.e_fixed, Kind.ERROR), self.lanes),
            *(() if self.frozen else self.weight_ports),
            Port("normal", Tensor(self.shape, self.normal_fixed, Kind.STASH), self.lanes),
            Port("inverse", Tensor(self.pair_shape, self.inverse_fixed, Kind.STASH), self.inverse_lanes),
        )

    @cached_property
    def weight_ports(self) -> tuple[Port, ...]:
        """gamma."""
        return (self._vector("gamma", self.gamma_fixed),)

    @property
    def sources(self) -> tuple[Port, ...]:
        """dx if anybody needs it, g_gamma and g_beta unless they are frozen."""
        dx = (Port("dx", Tensor(self.shape, self.dx_fixed, Kind.ERROR), self.lanes),) if self.needs_dx else ()
        gradients = (
            ()
            if self.frozen
            else (
                Port("g_gamma", Tensor((self.channels,), self.gradient_fixed("gamma"), Kind.GRADIENT), self.w_lanes),
                Port("g_beta", Tensor((self.channels,), self.gradient_fixed("beta"), Kind.GRADIENT), self.w_lanes),
            )
        )
        return (*dx, *gradients)

    def sum_fixed(self, parameter: str) -> Fixed:
        """Of an exact sum over a batch: of e n for gamma, of e for beta."""
        e, growth = self.e_fixed, (self.pixels * self.recipe.batch - 1).bit_length()
        if parameter == "beta":
            return Fixed(e.width + growth, e.fraction_bits)
        return Fixed(e.width + self.normal_fixed.width + growth, e.fraction_bits + self.normal_fixed.fraction_bits)

    def gradient_fixed(self, parameter: str) -> Fixed:
        """Of a gradient as it leaves."""
        rounded: Fixed = getattr(self, f"g_{parameter}_fixed")
        return self.sum_fixed(parameter) if self.exact else rounded

    @property
    def roundings(self) -> dict[str, GradientSum]:
        """Of the gradients of scale and shift, unless these are frozen."""
        parameters = () if self.frozen else ("gamma", "beta")
        return {
            f"g_{parameter}": GradientSum(
                shape=(self.channels,),
                recipe=self.recipe,
                w_lanes=self.w_lanes,
                tensor_id=self.tensor_id ^ stable_id(parameter),
                s_fixed=self.sum_fixed(parameter),
                g_fixed=getattr(self, f"g_{parameter}_fixed"),
                begun=self.begun,
            )
            for parameter in parameters
        }

    # ---- cycles and folding

    @property
    def macs(self) -> int:
        """e gamma, e n for its gradient, v n, s n, s times inverse."""
        return (4 if self.frozen else 5) * self.pixels * self.channels

    @property
    def multipliers(self) -> int:
        """As `macs`, a lane; only that of gamma's gradient where nothing upstream learns.  Those of the control, if so
        chosen."""
        if not self.needs_dx:
            return self.core
        control = self.multiplied * self.engine.multipliers * self.engine.slow.lanes
        return (4 if self.frozen else 5) * self.core + control

    @property
    def engine(self) -> BackwardShape:
        """What the circuit is built from."""
        return BackwardShape(
            numbers=self.numbers,
            **self.engine_fields,
            gamma=self.gamma_fixed,
            inverse=self.inverse_fixed,
            g_gamma=self.gradient_fixed("gamma"),
            g_beta=self.gradient_fixed("beta"),
            key_gamma=self.key("gamma"),
            key_beta=self.key("beta"),
            begun=self.begun,
            exact=self.exact,
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
        rounded = QUEUE_LATENCY + (0 if self.exact else ROUNDING_LATENCY)
        slow = self.engine.slow.lanes
        if slow < self.core:
            # through the queue of sums, two width adapters and the rounding
            pack = -(-self.w_lanes // slow) if self.w_lanes != slow else 0
            rounded = queue_latency(self.engine.gradient_depth) + 1 + leave_cycles(exact=self.exact) + pack
        return self.engine.gradient_sums_at + rounded - self.groups

    def taken_ahead(self, sink: str) -> tuple[int, int]:
        """All inverses of a frame may come as slowly as the one before it."""
        return (max(2, self.groups) * self.core, self.core) if sink == "inverse" else super().taken_ahead(sink)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """A word of the inside after another; ``inverse`` is needed with the first pixel."""
        elements = self.pixels * self.channels if source != "dx" else -(-elements // self.core) * self.core
        return {"e": elements, "normal": elements, "inverse": min(elements, self.channels)}

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """The control process starts at rest, unless it is carried over; for all frames of lag."""
        v, u = np.zeros(self.channels, np.int64), np.zeros(self.channels, np.int64)
        if "v" in parameters:
            v, u = self.numbers.state_v.encode(parameters["v"]), self.numbers.state_u.encode(parameters["u"])
        tables = deque([self.numbers.table(v, u)] * (self.recipe.norm_lag + 1))
        initial = self.gamma_fixed.encode(parameters["gamma"])
        held = {"held": {"gamma": initial}} if self.frozen else {}
        return {"v": v, "u": u, "tables": tables, "batch": self.begun, "initial": initial, **held}

    def carried(self, state: State) -> dict[str, FloatArray]:
        """The control process."""
        formats = {"v": self.numbers.state_v, "u": self.numbers.state_u}
        return {name: fixed.decode(state[name]) for name, fixed in formats.items()}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """`definition`, compiled."""
        from hdl.layers.norm import kernel as norm_kernel

        frames = len(inputs["e"])
        flat = (frames, self.pixels, self.channels)
        e, normal = (np.ascontiguousarray(inputs[name]).reshape(flat) for name in ("e", "normal"))
        dx = np.empty_like(e)
        (stale,), (fresh,) = self._versions(state, self._weights(state, inputs))
        control_v, control_u = self._unrolled(state, frames)
        state["v"], state["u"] = state["v"].copy(), state["u"].copy()
        sums = np.zeros((2, self.channels), np.int64)
        arrays = (
            e,
            normal,
            np.ascontiguousarray(inputs["inverse"]).reshape(frames, self.channels),
            stale,
            fresh,
            self.recipe.staleness,
            control_v,
            control_u,
            state["v"],
            state["u"],
            self._constants,
            dx,
            *sums,
        )
        in_ranges(
            lambda first, end: norm_kernel.backward_batch(first, end, *arrays), self.channels, frames * self.pixels
        )
        state["tables"] = deque(zip(control_v[frames:], control_u[frames:], strict=True))
        state["batch"] += 1
        gradients = self._gradients(state["batch"] - 1, *sums)
        return self._needed({"dx": dx.reshape(frames, *self.shape)} | gradients)

    @cached_property
    def _constants(self) -> Plain:
        """Of `golden`."""
        from hdl.layers.norm.kernel import backward_constants

        return backward_constants(self.numbers, self.gamma_fixed, self.inverse_fixed)

    def definition(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """What `golden` computes: every product exact; s rounded once, dx rounded once."""
        e, normal, inverse, numbers = inputs["e"], inputs["normal"], inputs["inverse"], self.numbers
        dx = np.empty_like(e)
        for t, (gamma,) in self._split(state, len(e), self._weights(state, inputs)):
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
        return {name: made[name] for name in self._ports if name in made}

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
        totals = {"gamma": gamma, "beta": beta}
        if self.exact:
            return {f"g_{name}": total for name, total in totals.items()}
        return {
            f"g_{name}": requantise_by_element(totals[name], fraction_bits, fixed, batch, key)
            for name, (fraction_bits, fixed, key) in self._gradient_roundings.items()
        }

    @cached_property
    def _gradient_roundings(self) -> dict[str, tuple[int, Fixed, int]]:
        """By parameter, what `requantise_by_element` takes beside sums and batch."""
        return {
            name: (self.sum_fixed(name).fraction_bits, self.gradient_fixed(name), self.key(name))
            for name in ("gamma", "beta")
        }

    def key(self, parameter: str) -> int:
        """Key of the random bits of a parameter's gradient."""
        return tensor_key(self.recipe.seed, self.tensor_id ^ stable_id(parameter))

    @property
    def closeness(self) -> dict[str, float]:
        """The error: what its state is rounded by, times the inverse deviation, up to 4.  Gradients: stochastic."""
        return {port.name: 1.0 if port.tensor.kind.per_batch else 2.0 for port in self.sources}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """As `start`."""
        rest = (np.zeros(self.channels), np.zeros(self.channels))
        return {"history": deque([rest] * (self.recipe.norm_lag + 1)), **super().start_reference(parameters)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The published equations."""
        e, normal, inverse, history = inputs["e"], inputs["normal"], inputs["inverse"], state["history"]
        leak = 1 - self.recipe.norm_backward_decay
        dx = np.empty_like(e)
        for t, (gamma,) in self._split(state, len(e), self._weights(state, inputs)):
            used_v, used_u = history.popleft()
            shaped = gamma * e[t] - (leak * used_v).astype(e.dtype) * normal[t]
            np.multiply(shaped, inverse[t], out=dx[t])
            dx[t] -= (leak * used_u).astype(e.dtype)
            v, u = history[-1] if history else (used_v, used_u)
            history.append((v + (shaped * normal[t]).mean((0, 1)), u + dx[t].mean((0, 1))))
        return self._needed({"dx": dx, "g_gamma": (e * normal).sum((0, 1, 2)), "g_beta": e.sum((0, 1, 2))})

    # ---- hardware

    def memories(self) -> tuple[Memory, ...]:
        """Scale, all versions; v and u; their controls, for each frame of lag."""
        numbers, slow = self.numbers, self.engine.slow
        table = numbers.control_v.width + numbers.control_u.width
        return (
            Memory("weights", self.versions * self.groups, self.core * self.gamma_fixed.width, is_state=self.frozen),
            Memory("v", slow.groups, slow.lanes * numbers.state_v.width, is_state=True),
            Memory("u", slow.groups, slow.lanes * numbers.state_u.width, is_state=True),
            Memory("table", (self.recipe.norm_lag + 1) * self.groups, self.core * table),
        )

    def images(self, state: State) -> dict[str, list[int]]:
        """The control process and its table now; weights as at the start."""
        numbers, lanes, slow = self.numbers, self.core, self.engine.slow.lanes
        widths = numbers.control_v.width, numbers.control_u.width
        table = [word for v, u in state["tables"] for word in pack_pairs(v, u, widths, lanes)]
        return {
            "weights": pack(state["initial"], self.gamma_fixed.width, lanes) + [0] * (self.versions - 1) * self.groups,
            "v": pack(state["v"], numbers.state_v.width, slow),
            "u": pack(state["u"], numbers.state_u.width, slow),
            "table": table,
        }

    def with_state_words(self, state: State, words: Sequence[int]) -> None:
        """The control process, and its table of all frames of lag."""
        found, numbers, lanes = self._memory_words(words), self.numbers, self.engine.slow.lanes
        state["v"] = unpack(found["v"], numbers.state_v, lanes)
        state["u"] = unpack(found["u"], numbers.state_u, lanes)
        state["tables"] = deque(self._table(found["table"], numbers.control_v, numbers.control_u))

    @property
    def block(self) -> Callable[..., Instances]:
        """See `hdl.engine.norm.backward`."""
        make: Callable[..., Instances]
        make = norm_errors if self.frozen else norm_backward if self.needs_dx else norm_gradients
        if self.accessed:
            make = accessed_norm_backward if self.needs_dx else accessed_norm_gradients
            make = accessed_norm_errors if self.frozen else make
        return make

    # ---- tests

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of the forward engine, one at the foot of a network, one whose weights stay, one with constants on
        multipliers, controls of some lanes after others, exact sums of gradients."""
        examples = [{name: value for name, value in fields.items() if name != "x_fixed"} for fields in example_fields()]
        others = (
            cls(**examples[0], needs_dx=False),
            cls(**examples[0], frozen=True),
            cls(**examples[0], multiplied=True),
            cls(**examples[0], exact=True),
            cls(**examples[0], statistic_lanes=1, multiplied=True),
            cls(**examples[1], statistic_lanes=2, exact=True),
            cls(**{**examples[0], "recipe": Recipe(batch=2, norm_lag=0)}, statistic_lanes=1),
            cls(
                height=1,
                width=1,
                channels=12,
                lanes=6,
                inverse_lanes=2,
                statistic_lanes=2,
                recipe=Recipe(batch=2, norm_lag=3),
            ),
        )
        return (*(cls(**fields) for fields in examples), *others)
