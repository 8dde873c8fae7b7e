"""Mean squared error of a classifier's scores against 1 for the label's class and 0 for all others.

    d[i] = x[i] - (i == label)
    error[i] = 2 / classes * d[i]
    loss = 1 / classes * sum of d[i]**2

An auxiliary head's error is multiplied by the weight of its loss, too, which is a part of the factor 2 / classes.
Differences, squares and their sum are exact; 2 / classes and 1 / classes have 17 significant bits, and both products
are rounded once, to nearest, and saturated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from hdl.engine.arithmetic.rounding import rounding_cycles, scale_cycles
from hdl.engine.loss.numbers import METRICS
from hdl.engine.loss.squares import SquaredShape, mean_squared_error
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.wiring.host import HostLabel, HostOutput
from hdl.recipe import LEAST_WEIGHT
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor, Tile

# widest code of the golden model (int64)
WIDEST = 63
# cycles of pipelines between the last code of a frame and its first error, its loss, scaling and rounding aside
ERROR_LATENCY, METRICS_LATENCY = 2, 6


@dataclass(frozen=True, kw_only=True)
class MeanSquaredError(Layer):
    """Sinks ``x`` (1, 1, classes), ``label`` (1, 1, 1); sources ``error`` (1, 1, classes), ``metrics`` (1, 1, 2).

    ``metrics`` are two words: the loss in u32.16, and 1 (the word, not the value) if the first largest x is the
    label's, else 0.  One class a cycle."""

    pinned_to_host = True
    multipliers = 1

    classes: int
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    error_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen
    # weight of the loss of an auxiliary head, whose metrics nobody reads; 0: the main head's, which counts whole
    auxiliary: float = field(default=0.0, metadata=QUIET)

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ShapeError(f"MeanSquaredError needs at least 2 classes, not {self.classes}")
        if self.auxiliary and not LEAST_WEIGHT <= self.auxiliary <= 1:
            what = f"MeanSquaredError: auxiliary must be 0 or lie in [{LEAST_WEIGHT}, 1], not {self.auxiliary}"
            raise ShapeError(what)
        if not self.x_fixed.signed:
            raise ShapeError(f"MeanSquaredError takes signed scores, not {self.x_fixed}")
        if self.shape.loss_factor.bits(self.shape.sum_bits) > WIDEST:
            raise ShapeError(f"MeanSquaredError of {self.classes} classes: sums of scores {self.x_fixed} are too wide")

    @cached_property
    def shape(self) -> SquaredShape:
        """What the circuit is built from."""
        return SquaredShape(self.classes, self.x_fixed, self.error_fixed, self.auxiliary or 1.0)

    # ---- shape rule

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x, label."""
        return (
            Port("x", Tensor((1, 1, self.classes), self.x_fixed, Kind.ACTIVATION)),
            Port("label", HostLabel(classes=self.classes).sources[0].tensor),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """error, metrics."""
        return (
            Port("error", Tensor((1, 1, self.classes), self.error_fixed, Kind.ERROR)),
            Port("metrics", HostOutput().sinks[0].tensor),
        )

    # ---- cycles and folding

    @property
    def cycles_per_frame(self) -> int:
        """A class a cycle."""
        return self.classes

    @property
    def macs(self) -> int:
        """A square a class."""
        return self.classes

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """There is one variant."""
        del tile
        if self.cycles_per_frame > cycles:
            raise FoldingError(
                f"MeanSquaredError of {self.classes} classes takes {self.cycles_per_frame} cycles a frame, "
                f"more than {cycles}",
                "allow more cycles",
            )
        return self

    def required(self, source: str, elements: int) -> dict[str, int]:
        """An error needs its x and the label, the loss all of x."""
        return {"x": elements if source == "error" else self.classes, "label": 1}

    @property
    def pipeline_cycles(self) -> int:
        """To the loss."""
        return self.classes + self.latency_cycles("metrics")

    def latency_cycles(self, source: str) -> int:
        """Registers, scaling and rounding."""
        shape = self.shape
        if source == "error":
            scalar, bits, most = shape.error_factor, shape.difference_bits, ERROR_LATENCY
        else:
            scalar, bits, most = shape.loss_factor, shape.sum_bits, METRICS_LATENCY
        return most + scale_cycles(bits, scalar.mantissa) + rounding_cycles(scalar.shift)

    # ---- meaning

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact differences, squares and sums; two roundings."""
        del state
        shape = self.shape
        x, label = inputs["x"][:, 0, 0, :], inputs["label"][:, 0, 0, :]
        hot = (np.arange(self.classes) == label).astype(np.int64)
        difference = (x << shape.grow) - (hot << shape.fraction_bits)
        error = self.error_fixed.saturate(shape.error_factor.rounded(difference))
        total = (difference**2).sum(axis=1, keepdims=True)
        loss = METRICS.saturate(shape.loss_factor.rounded(total))
        right = (x.argmax(axis=1, keepdims=True) == label).astype(np.int64)
        metrics = np.concatenate([loss, right], axis=1)
        return {"error": error[:, None, None, :], "metrics": metrics[:, None, None, :]}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formulas."""
        del state
        x, label = inputs["x"][:, 0, 0, :], inputs["label"][:, 0, 0, :].astype(np.int64)
        difference = x - (np.arange(self.classes) == label)
        loss = (difference**2).mean(axis=1, keepdims=True)
        right = (x.argmax(axis=1, keepdims=True) == label).astype(np.float64)
        metrics = np.concatenate([loss, right], axis=1)
        error = 2 / self.classes * (self.auxiliary or 1.0) * difference
        return {"error": error[:, None, None, :], "metrics": metrics[:, None, None, :]}

    @property
    def closeness(self) -> dict[str, float]:
        """Constants of 17 bits, times the largest code of an error; of the loss see `distance`."""
        return {"error": 0.75, "metrics": 1.0}

    def distance(self, port: str, codes: IntArray, values: FloatArray) -> FloatArray:
        """Of the metrics the loss alone is a fraction, off by a constant's 2**-17 of itself; the other is right or
        wrong."""
        if port != "metrics":
            return super().distance(port, codes, values)
        steps = np.minimum(values[..., :1] / METRICS.step, METRICS.high)
        loss = np.abs(codes[..., :1] - steps) / (0.5 + steps * 2.0**-17)
        wrong = np.where(codes[..., 1:] == values[..., 1:], 0.0, np.inf)
        return np.concatenate([loss, wrong], axis=-1)

    def backward(self, tape: Tape) -> None:
        """Its own error; the label comes from the host, the main head's metrics go there."""
        tape.connect("label", tape.share("label", HostLabel(classes=self.classes))["y"])
        if not self.auxiliary:
            tape.add("results", HostOutput(), {"x": tape.value("metrics")})
        tape.give_error("x", tape.value("error"), early=self.auxiliary > 0)

    def sample(self, port: str, rng: np.random.Generator, count: int) -> IntArray:
        """Labels are classes; scores of a frame are often equal."""
        if port == "label":
            return rng.integers(0, self.classes, (count, 1, 1, 1), dtype=np.int64)
        codes = super().sample(port, rng, count)
        return np.where(rng.random((count, 1, 1, 1)) < 0.3, codes[..., :1], codes)

    # ---- hardware

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.loss.squares`."""
        del images
        ports = (streams[name] for name in ("x", "label", "error", "metrics"))
        return mean_squared_error(domain, *ports, shape=self.shape)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Numbers of classes that are powers of two and not, binary points on both sides of a word, an auxiliary
        head's."""
        return (
            cls(classes=10),
            cls(classes=2, x_fixed=Fixed(16, 12), error_fixed=Fixed(16, 14)),
            cls(classes=5, x_fixed=Fixed(12, -2), error_fixed=Fixed(16, 0)),
            cls(classes=33, x_fixed=Fixed(16, 15), error_fixed=Fixed(16, 17)),
            cls(classes=4, auxiliary=0.3),
        )
