"""Softmax with cross-entropy: the loss, its error, and whether the guess was right.

    p[i] = exp(x[i] - m) / s      m = max x,   s = sum of exp(x[i] - m)
    error[i] = p[i] - (i == label)
    loss = ln s + m - x[label]    (nats)

Everything is an integer function of the codes (`SoftmaxNumbers`); against float64, probabilities err by less than
2**-14 and the loss by less than 2**-10 (plus the rounding of the formats), see tests/test_softmax_cross_entropy.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise, round_shift
from hdl.layers.base import Layer, State, Tape, Tile
from hdl.layers.host import METRICS, HostLabel, HostOutput
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor

# bits of the fraction of an exponent (to base 2), looked up in two tables of half as many bits
EXPONENT_BITS = 14
HALF_BITS = EXPONENT_BITS // 2
# fraction bits of the tables' entries
TABLE_BITS = 17
# fraction bits of exp(x - m); 1 is the largest value
VALUE_BITS = 24
# significant bits of log2(e)
SCALE_BITS = 17
# bits of the mantissa of s that index the table of logarithms, whose entries have as many fraction bits as METRICS
LOG_BITS = 10
# bits of a quotient 1 / s beyond those that tell the number of classes
QUOTIENT_BITS = 17


@dataclass(frozen=True)
class SoftmaxNumbers:
    """The arithmetic, step by step; the circuit does exactly this."""

    x: Fixed
    classes: int

    @property
    def exponent_shift(self) -> int:
        """Bits to cut off from ``distance * scale`` to get an exponent with `EXPONENT_BITS` fraction bits."""
        return self.x.fraction_bits + SCALE_BITS - 1 - EXPONENT_BITS

    @property
    def scale(self) -> int:
        """log2(e) with `SCALE_BITS` - 1 fraction bits."""
        return round(math.log2(math.e) * (1 << (SCALE_BITS - 1)))

    @property
    def distance_bits(self) -> int:
        """Bits of m - x."""
        return self.x.width

    @cached_property
    def coarse(self) -> tuple[int, ...]:
        """2**-(i / 2**HALF_BITS)."""
        return tuple(round(2 ** (TABLE_BITS - i / 2**HALF_BITS)) for i in range(2**HALF_BITS))

    @cached_property
    def fine(self) -> tuple[int, ...]:
        """2**-(i / 2**EXPONENT_BITS)."""
        return tuple(round(2 ** (TABLE_BITS - i / 2**EXPONENT_BITS)) for i in range(2**HALF_BITS))

    @property
    def sum_bits(self) -> int:
        """Bits of s, whose terms are at most 1."""
        return VALUE_BITS + 1 + (self.classes - 1).bit_length()

    @property
    def quotient_shift(self) -> int:
        """The reciprocal is 2**(VALUE_BITS + quotient_shift) // s: at most `quotient_shift` + 1 bits."""
        return QUOTIENT_BITS + (self.classes - 1).bit_length()

    @cached_property
    def log_of_exponent(self) -> tuple[int, ...]:
        """ln 2**i, for the power of two in s."""
        return tuple(round(i * math.log(2) * 2**METRICS.fraction_bits) for i in range(self.sum_bits - VALUE_BITS))

    @cached_property
    def log_of_mantissa(self) -> tuple[int, ...]:
        """ln of the middle of each interval of the mantissa; exactly 0 in the first, which a sure guess falls into."""
        steps = 2**LOG_BITS
        middles = [math.log(1 + (i + 0.5) / steps) for i in range(steps)]
        return (0, *(round(value * 2**METRICS.fraction_bits) for value in middles[1:]))

    def exponentials(self, distance: IntArray) -> IntArray:
        """exp(-distance), `VALUE_BITS` fraction bits."""
        exponent = round_shift(distance * self.scale, self.exponent_shift)
        whole = np.minimum(exponent >> EXPONENT_BITS, VALUE_BITS + 2)
        part = exponent & ((1 << EXPONENT_BITS) - 1)
        product = np.array(self.coarse)[part >> HALF_BITS] * np.array(self.fine)[part & ((1 << HALF_BITS) - 1)]
        kept = product >> (2 * TABLE_BITS - VALUE_BITS - 1)
        return np.asarray(((kept >> whole) + 1) >> 1)

    def reciprocal(self, total: IntArray) -> IntArray:
        """1 / s, cut off, with `VALUE_BITS` + `quotient_shift` fraction bits less those of s."""
        return (1 << (VALUE_BITS + self.quotient_shift)) // total

    def logarithm(self, total: IntArray) -> IntArray:
        """ln s, with as many fraction bits as METRICS."""
        power = np.frexp(total.astype(np.float64))[1].astype(np.int64) - 1
        mantissa = (total >> (power - LOG_BITS)) - (1 << LOG_BITS)
        powers, mantissas = np.array(self.log_of_exponent), np.array(self.log_of_mantissa)
        return np.asarray(powers[power - VALUE_BITS] + mantissas[mantissa])


@dataclass(frozen=True, kw_only=True)
class SoftmaxCrossEntropy(Layer):
    """Sinks ``x`` (1, 1, classes), ``label`` (1, 1, 1); sources ``error`` (1, 1, classes), ``metrics`` (1, 1, 2).

    ``metrics`` are two words: the loss in u32.16, and 1 (the word, not the value) if the first largest x is the
    label's, else 0.  One class a cycle; four stages work on successive frames: maximum, exponentials and their sum,
    reciprocal, products."""

    pinned_to_host = True

    classes: int
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    # of the error, which lies in [-1, 1]
    e_fixed: Fixed = Fixed(16, 14)  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ShapeError(f"SoftmaxCrossEntropy needs at least 2 classes, not {self.classes}")

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
            Port("error", Tensor((1, 1, self.classes), self.e_fixed, Kind.ERROR)),
            Port("metrics", HostOutput().sinks[0].tensor),
        )

    @cached_property
    def numbers(self) -> SoftmaxNumbers:
        """The arithmetic."""
        return SoftmaxNumbers(self.x_fixed, self.classes)

    # ---- cycles and folding

    @property
    def cycles_per_frame(self) -> int:
        """A class a cycle, or a bit of the quotient a cycle, whichever takes longer."""
        return max(self.classes, self.numbers.quotient_shift + 3)

    @property
    def multipliers(self) -> int:
        """Coarse by fine table, exponential by reciprocal."""
        return 2

    @property
    def macs(self) -> int:
        """As `multipliers`, a class."""
        return 2 * self.classes

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """There is one variant."""
        del tile
        if self.cycles_per_frame > cycles:
            raise FoldingError(
                f"SoftmaxCrossEntropy of {self.classes} classes takes {self.cycles_per_frame} cycles a frame, "
                f"more than {cycles}; allow more cycles"
            )
        return self

    def required(self, source: str, elements: int) -> dict[str, int]:
        """All of x, the label."""
        del source, elements
        return {"x": self.classes, "label": 1}

    @property
    def pipeline_cycles(self) -> int:
        """Twice over all classes, once through the divider, and pipelines."""
        return 2 * self.classes + self.numbers.quotient_shift + 32

    # ---- meaning

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """See `SoftmaxNumbers`."""
        del state
        numbers = self.numbers
        x, label = inputs["x"][:, 0, 0, :], inputs["label"][:, 0, 0, :]
        distance = x.max(axis=1, keepdims=True) - x
        values = numbers.exponentials(distance)
        total = values.sum(axis=1, keepdims=True)
        fraction_bits = VALUE_BITS + numbers.quotient_shift
        hot = (np.arange(self.classes) == label).astype(np.int64)
        error = requantise(values * numbers.reciprocal(total) - (hot << fraction_bits), fraction_bits, self.e_fixed)
        away = np.take_along_axis(distance, label, axis=1)
        loss = numbers.logarithm(total) + round_shift(away, self.x_fixed.fraction_bits - METRICS.fraction_bits)
        right = (x.argmax(axis=1, keepdims=True) == label).astype(np.int64)
        metrics = np.concatenate([METRICS.saturate(loss), right], axis=1)
        return {"error": error[:, None, None, :], "metrics": metrics[:, None, None, :]}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formulas."""
        del state
        x, label = inputs["x"][:, 0, 0, :], inputs["label"][:, 0, 0, :].astype(np.int64)
        away = x - x.max(axis=1, keepdims=True)
        total = np.exp(away).sum(axis=1, keepdims=True)
        error = np.exp(away) / total - (np.arange(self.classes) == label)
        loss = np.log(total) - np.take_along_axis(away, label, axis=1)
        right = (x.argmax(axis=1, keepdims=True) == label).astype(np.float64)
        metrics = np.concatenate([loss, right], axis=1)
        return {"error": error[:, None, None, :], "metrics": metrics[:, None, None, :]}

    def backward(self, tape: Tape) -> None:
        """Its own error; the label comes from the host, the metrics go there."""
        label = tape.add("label", HostLabel(classes=self.classes), {})["y"]
        tape.connect("label", label)
        tape.add("results", HostOutput(), {"x": tape.value("metrics")})
        tape.give_error("x", tape.value("error"))

    def sample(self, port: str, rng: np.random.Generator, count: int) -> IntArray:
        """Labels are classes."""
        if port == "label":
            return rng.integers(0, self.classes, (count, 1, 1, 1), dtype=np.int64)
        return super().sample(port, rng, count)

    # ---- hardware

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """See `hdl.engine.softmax`."""
        raise NotImplementedError

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Few and many classes, more classes than bits of a quotient, binary points on both sides of the metrics'."""
        return (
            cls(classes=10),
            cls(classes=2, x_fixed=Fixed(16, 12)),
            cls(classes=40, x_fixed=Fixed(16, 5), e_fixed=Fixed(16, 15)),
            cls(classes=5, x_fixed=Fixed(18, 17), e_fixed=Fixed(16, 12)),
        )
