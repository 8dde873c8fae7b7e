"""What a layer computes: exactly, in floating point, and how its errors go back.

Golden model and reference are called once a batch, in order, with all frames of that batch stacked in axis 0 of every
per-frame input.  Because layers talk through streams only and read them in a fixed order, this gives the same bits as
any timing of the hardware.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hdl.fixed import FloatArray, IntArray
from hdl.layers.shape import Shape
from hdl.tensor import Kind

if TYPE_CHECKING:
    from hdl.layers.base import Layer

State = dict[str, Any]


@dataclass(frozen=True)
class Again:
    """A layer that makes once more, for the way back, what a forward layer made: its sources, as stashes."""

    layer: Layer
    # sink, or what is held -> port of the forward layer, or what that holds, under which the same passes
    ports: Mapping[str, str]


class Tape(Protocol):
    """What a layer may ask of reverse-mode differentiation while it adds its own backward nodes."""

    def value(self, port: str) -> str:
        """The forward edge at a sink or source of this layer; using it as a stash is free to the layer."""

    def error(self, port: str) -> str:
        """The error edge that arrives at a source of this layer."""

    def needs_error(self, port: str) -> bool:
        """Whether anything upstream of this sink learns."""

    def add(self, suffix: str, layer: Layer, inputs: Mapping[str, str]) -> dict[str, str]:
        """Add a node ``<this node>.<suffix>``; returns its output edges by source port."""

    def share(self, suffix: str, layer: Layer) -> dict[str, str]:
        """As `add` of a layer without sinks; all who ask for an equal one get the edges of the first."""

    def give_error(self, port: str, edge: str, *, early: bool = False) -> None:
        """Hand over the error edge of a sink of this layer.

        ``early``: it comes long before the errors with which it will be summed, as that of a head in the middle of a
        network does, and waits for them like a stash.  What follows from early errors alone is early, too."""

    def learn(self, sink: str, gradient: str) -> str:
        """Add the update of the parameter at weight sink ``sink`` from its gradient edge.

        Connects the updated weights to this layer's sink; returns the weight edge for other users of it."""

    def weight(self, sink: str) -> str:
        """The edge that `learn` will return for ``sink``, for a node that uses the weight and makes its gradient."""

    def connect(self, node_edge_sink: str, edge: str) -> None:
        """Connect a sink of this (forward) layer that had no edge in the forward graph."""


class Meaning(Shape):
    """The functions that a circuit is held against."""

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Golden state before the first frame.

        ``parameters`` are initial weights by weight sink (for an update: by its source), values that are exact
        in that port's format, in the parameter's own shape; and what an earlier training `carried`, if any."""
        del parameters
        return {}

    def carried(self, state: State) -> dict[str, FloatArray]:
        """What of a golden state a training takes over that begins from it, beside the weights: values by name.

        `start` and `start_reference` take them among their parameters.  What counts batches or frames goes on from a
        field of its layer (`hdl.layers.capabilities.Counting`); versions of weights begin anew."""
        del state
        return {}

    def stale(self, state: State) -> dict[str, Any]:
        """By weight sink, what a state keeps of the batch before: the first frames of the next one read it where
        staleness is above 0.  Empty before the first batch."""
        kept = state.get("previous", ())
        arrays = kept if isinstance(kept, tuple | list) else (kept,)
        sinks = [port.name for port in self.sinks if port.tensor.kind is Kind.WEIGHT]
        return dict(zip(sinks, arrays, strict=True)) if sinks and arrays else {}

    def keep_stale(self, state: State, weights: Mapping[str, IntArray]) -> None:
        """The inverse of `stale`, of all weight sinks."""
        kept = [weights[port.name] for port in self.sinks if port.tensor.kind is Kind.WEIGHT]
        state["previous"] = kept[0] if len(kept) == 1 else kept

    def settled(self, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """What a layer takes from the first data that it meets, so as to treat it as it will treat what comes: values
        for `start`, by names of `carried`; ``inputs`` is the first batch at one of its sinks."""
        del inputs
        return {}

    @abstractmethod
    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """One batch, exactly: codes in, codes out; per-frame arrays are ``(frames, height, width, channels)``.

        A weight sink at batch ``n`` gets version ``n`` (version 0: the initial weights).  May change ``state``."""

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """As `start`, for `reference`."""
        del parameters
        return {}

    @abstractmethod
    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """As `golden`, in float64 without any rounding or saturation of formats."""

    @property
    def closeness(self) -> dict[str, float]:
        """Source -> steps of its format that `golden` may be away from `reference`, where nothing saturates.

        The default is one rounding to nearest, and of per-batch sources one stochastic rounding."""
        return {port.name: 1.0 if port.tensor.kind.per_batch else 0.5 for port in self.sources}

    def distance(self, port: str, codes: IntArray, values: FloatArray) -> FloatArray:
        """Steps between what `golden` and `reference` say of a source."""
        fixed = self.port(port).tensor.fixed
        return np.abs(codes - np.clip(values / fixed.step, fixed.low, fixed.high))

    def evaluating(self, state: State, frames: int) -> tuple[Meaning, State]:
        """This layer and a state, both free to be used up, with which `golden` evaluates ``frames`` frames.

        Evaluation learns nothing: statistics stay as they are, nothing is dropped.  The default suits layers whose
        golden model depends on no frame before; it is called on a layer whose recipe has staleness 0."""
        del frames
        return self, dict(state)

    def again(self) -> tuple[Again, ...]:
        """What makes maps that this layer gives once more, later and in every bit, each element by element of one map
        that it takes, keeps or gives; the first one for which that map waits is used."""
        return ()

    def backward(self, tape: Tape) -> None:
        """Add this forward layer's backward nodes.  Layers of the backward pass have no backward of their own."""
        del tape
        raise TypeError(f"{type(self).__name__} has no backward pass")
