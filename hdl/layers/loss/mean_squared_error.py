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
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hdl.engine.arithmetic.rounding import rounding_cycles, scale_cycles
from hdl.engine.loss.numbers import METRICS
from hdl.engine.loss.squares import SquaredShape, mean_squared_error
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.loss.base import ClassifierLoss
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream

# widest code of the golden model (int64)
WIDEST = 63
# cycles of pipelines between the last code of a frame and its first error, its loss, scaling and rounding aside
ERROR_LATENCY, METRICS_LATENCY = 2, 6


@dataclass(frozen=True, kw_only=True)
class MeanSquaredError(ClassifierLoss):
    """See `ClassifierLoss`; one multiplier."""

    multipliers = 1

    error_fixed: Fixed = Fixed(16, 12)  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape.loss_factor.bits(self.shape.sum_bits) > WIDEST:
            raise ShapeError(f"MeanSquaredError of {self.classes} classes: sums of scores {self.x_fixed} are too wide")

    @property
    def error_format(self) -> Fixed:
        """As calibrated."""
        return self.error_fixed

    @cached_property
    def shape(self) -> SquaredShape:
        """What the circuit is built from."""
        return SquaredShape(self.classes, self.x_fixed, self.error_fixed, self.weight)

    # ---- cycles

    @property
    def cycles_per_frame(self) -> int:
        """A class a cycle."""
        return self.classes

    @property
    def macs(self) -> int:
        """A square a class."""
        return self.classes

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

    def codes(self, x: IntArray, label: IntArray) -> tuple[IntArray, IntArray]:
        """Exact differences, squares and sums; two roundings."""
        shape = self.shape
        hot = (np.arange(self.classes) == label).astype(np.int64)
        difference = (x << shape.grow) - (hot << shape.fraction_bits)
        error = self.error_fixed.saturate(shape.error_factor.rounded(difference))
        return error, shape.loss_factor.rounded((difference**2).sum(axis=1, keepdims=True))

    def values(self, x: FloatArray, label: IntArray) -> tuple[FloatArray, FloatArray]:
        """The formulas."""
        difference = x - (np.arange(self.classes) == label)
        return 2 / self.classes * self.weight * difference, (difference**2).mean(axis=1, keepdims=True)

    @property
    def closeness(self) -> dict[str, float]:
        """Constants of 17 bits, times the largest code of an error; of the loss see `loss_distance`."""
        return {"error": 0.75, "metrics": 1.0}

    def loss_distance(self, codes: IntArray, values: FloatArray) -> FloatArray:
        """Off by a constant's 2**-17 of itself."""
        steps = np.minimum(values / METRICS.step, METRICS.high)
        return np.abs(codes - steps) / (0.5 + steps * 2.0**-17)

    def scores(self, codes: IntArray, rng: np.random.Generator) -> IntArray:
        """Those of a frame are often equal."""
        return np.where(rng.random((len(codes), 1, 1, 1)) < 0.3, codes[..., :1], codes)

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
