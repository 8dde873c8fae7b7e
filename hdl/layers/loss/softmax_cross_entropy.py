"""Softmax with cross-entropy: the loss, its error, and whether the guess was right.

    p[i] = exp(x[i] - m) / s      m = max x,   s = sum of exp(x[i] - m)
    error[i] = p[i] - t[i]        t[i] = (1 - smoothing) * (i == label) + smoothing / classes
    loss = ln s + m - x[label]    (nats)

An auxiliary head's error is multiplied by the weight of its loss: the dividend of 1 / s and the target are, which costs
nothing.
With label smoothing the error is that of cross-entropy against t; the loss that is told stays the one of the label
alone, so that trainings with and without can be compared.
Everything is an integer function of the codes (`SoftmaxNumbers`); against float64, probabilities err by less than
2**-14 and the loss by less than 2**-10 (plus the rounding of the formats), see tests/test_softmax_cross_entropy.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hdl.engine.loss.numbers import METRICS, VALUE_BITS, SoftmaxNumbers
from hdl.engine.loss.softmax import DIVIDER_EXTRA, product_cycles, softmax_cross_entropy
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise, round_shift
from hdl.layers.base import Layer
from hdl.layers.loss.base import ClassifierLoss
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream

# cycles of pipelines and queues between the last code of a frame and its first error, its loss
ERROR_LATENCY, METRICS_LATENCY = 17, 14


@dataclass(frozen=True, kw_only=True)
class SoftmaxCrossEntropy(ClassifierLoss):
    """See `ClassifierLoss`; four stages work on successive frames: maximum, exponentials and their sum, reciprocal,
    products."""

    # of the error, which lies in [-1, 1]
    e_fixed: Fixed = Fixed(16, 14)  # noqa: RUF009 - frozen
    # share of the target that all classes have alike
    smoothing: float = field(default=0.0, metadata=QUIET)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise ShapeError(f"SoftmaxCrossEntropy: smoothing must lie in [0, 1), not {self.smoothing}")

    @property
    def error_format(self) -> Fixed:
        """No other is calibrated."""
        return self.e_fixed

    @cached_property
    def numbers(self) -> SoftmaxNumbers:
        """The arithmetic."""
        return SoftmaxNumbers(self.x_fixed, self.classes, self.smoothing, self.weight)

    # ---- cycles

    @property
    def cycles_per_frame(self) -> int:
        """A class a cycle, or a bit of the quotient a cycle, whichever takes longer."""
        return max(self.classes, self.numbers.quotient_shift + DIVIDER_EXTRA)

    @property
    def multipliers(self) -> int:
        """Coarse by fine table, exponential by reciprocal, which may take two."""
        return 1 + product_cycles(self.numbers)

    @property
    def macs(self) -> int:
        """Two products a class."""
        return 2 * self.classes

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All of x, the label."""
        del source, elements
        return {"x": self.classes, "label": 1}

    @property
    def pipeline_cycles(self) -> int:
        """Twice over all classes, once through the divider, and pipelines."""
        return 2 * self.classes + self.numbers.quotient_shift + 32

    def latency_cycles(self, source: str) -> int:
        """From the last of x: exponentials of all classes, the divider, and pipelines; the loss needs no product."""
        smooth = int(self.numbers.cold > 0)
        ends = METRICS_LATENCY if source == "metrics" else ERROR_LATENCY + product_cycles(self.numbers) + smooth
        return self.classes + self.numbers.quotient_shift + ends

    # ---- meaning

    def codes(self, x: IntArray, label: IntArray) -> tuple[IntArray, IntArray]:
        """See `SoftmaxNumbers`."""
        numbers = self.numbers
        distance = x.max(axis=1, keepdims=True) - x
        values = numbers.exponentials(distance)
        total = values.sum(axis=1, keepdims=True)
        fraction_bits = VALUE_BITS + numbers.quotient_shift
        target = np.where(np.arange(self.classes) == label, numbers.hot, numbers.cold)
        error = requantise(values * numbers.reciprocal(total) - target, fraction_bits, self.e_fixed)
        away = np.take_along_axis(distance, label, axis=1)
        return error, numbers.logarithm(total) + round_shift(away, self.x_fixed.fraction_bits - METRICS.fraction_bits)

    def values(self, x: FloatArray, label: IntArray) -> tuple[FloatArray, FloatArray]:
        """The formulas."""
        away = x - x.max(axis=1, keepdims=True)
        total = np.exp(away).sum(axis=1, keepdims=True)
        target = (1 - self.smoothing) * (np.arange(self.classes) == label) + self.smoothing / self.classes
        error = (np.exp(away) / total - target) * self.weight
        return error, np.log(total) - np.take_along_axis(away, label, axis=1)

    @property
    def closeness(self) -> dict[str, float]:
        """The error: tables of 17 bits before it is rounded.  The loss: half an interval of the table of logarithms."""
        return {"error": 0.55, "metrics": 33.0}

    def loss_distance(self, codes: IntArray, values: FloatArray) -> FloatArray:
        """As of any number."""
        return np.abs(codes - values / METRICS.step)

    def scores(self, codes: IntArray, rng: np.random.Generator) -> IntArray:
        """Those of a frame differ by little or much, and some are equal."""
        frames = (len(codes), 1, 1, 1)
        spread = rng.choice([0, 1, 2.0**self.x_fixed.fraction_bits, 2.0 ** (self.x_fixed.width - 1)], frames)
        close = np.clip(rng.normal(0, 1, codes.shape) * spread, self.x_fixed.low, self.x_fixed.high).astype(np.int64)
        return np.where(rng.random(frames) < 0.2, codes, close)

    # ---- hardware

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.loss.softmax`."""
        del images
        ports = (streams[name] for name in ("x", "label", "error", "metrics"))
        return softmax_cross_entropy(domain, *ports, numbers=self.numbers, target=self.e_fixed)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Few and many classes, more classes than bits of a quotient, binary points on both sides of the metrics', a
        product of two multipliers, smooth labels, an auxiliary head's."""
        return (
            cls(classes=10),
            cls(classes=2, x_fixed=Fixed(16, 12)),
            cls(classes=40, x_fixed=Fixed(16, 5), e_fixed=Fixed(16, 15)),
            cls(classes=5, x_fixed=Fixed(18, 17), e_fixed=Fixed(16, 12)),
            cls(classes=520),
            cls(classes=7, smoothing=0.1),
            cls(classes=6, auxiliary=0.3, e_fixed=Fixed(16, 15)),
        )
