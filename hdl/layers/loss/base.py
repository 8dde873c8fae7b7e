"""What losses of a classifier share: ports, folding, the guess, where labels come from and metrics go."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from hdl.engine.loss.numbers import METRICS
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.wiring.host import HostLabel, HostOutput
from hdl.recipe import LEAST_WEIGHT
from hdl.spelling import QUIET
from hdl.tensor import Kind, Port, Tensor, Tile


@dataclass(frozen=True, kw_only=True)
class ClassifierLoss(Layer):
    """Sinks ``x`` (1, 1, classes), ``label`` (1, 1, 1); sources ``error`` (1, 1, classes), ``metrics`` (1, 1, 2).

    ``metrics`` are two words: the loss in u32.16, and 1 (the word, not the value) if the first largest x is the
    label's, else 0.  One class a cycle.

    A subclass states the format of its error, `codes`, `values`, `loss_distance`, `scores`, cycles and circuit."""

    pinned_to_host = True

    classes: int
    x_fixed: Fixed = Fixed(16, 8)  # noqa: RUF009 - frozen
    # weight of the loss of an auxiliary head, whose metrics nobody reads; 0: the main head's, which counts whole
    auxiliary: float = field(default=0.0, metadata=QUIET)

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ShapeError(f"{type(self).__name__} needs at least 2 classes, not {self.classes}")
        if self.auxiliary and not LEAST_WEIGHT <= self.auxiliary <= 1:
            what = f"{type(self).__name__}: auxiliary must be 0 or lie in [{LEAST_WEIGHT}, 1], not {self.auxiliary}"
            raise ShapeError(what)
        if not self.x_fixed.signed:
            raise ShapeError(f"{type(self).__name__} takes signed scores, not {self.x_fixed}")

    @property
    def weight(self) -> float:
        """Of the loss, by which its error is multiplied."""
        return self.auxiliary or 1.0

    @property
    @abstractmethod
    def error_format(self) -> Fixed:
        """Of the codes of ``error``."""

    @abstractmethod
    def codes(self, x: IntArray, label: IntArray) -> tuple[IntArray, IntArray]:
        """Of scores (frames, classes) and labels (frames, 1): codes of ``error`` (frames, classes), and of the loss
        (frames, 1) with the fraction bits of `METRICS`, not saturated."""

    @abstractmethod
    def values(self, x: FloatArray, label: IntArray) -> tuple[FloatArray, FloatArray]:
        """The same by the formulas, in float64."""

    @abstractmethod
    def loss_distance(self, codes: IntArray, values: FloatArray) -> FloatArray:
        """Steps between codes of the loss and its values."""

    @abstractmethod
    def scores(self, codes: IntArray, rng: np.random.Generator) -> IntArray:
        """Of random codes (frames, 1, 1, classes), scores as tests want them."""

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
            Port("error", Tensor((1, 1, self.classes), self.error_format, Kind.ERROR)),
            Port("metrics", HostOutput().sinks[0].tensor),
        )

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """There is one variant."""
        del tile
        if self.cycles_per_frame > cycles:
            raise FoldingError(
                f"{type(self).__name__} of {self.classes} classes takes {self.cycles_per_frame} cycles a frame, "
                f"more than {cycles}",
                "allow more cycles",
            )
        return self

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """`codes`, and whether the guess is right."""
        del state
        x, label = inputs["x"][:, 0, 0, :], inputs["label"][:, 0, 0, :]
        error, loss = self.codes(x, label)
        metrics = np.concatenate([METRICS.saturate(loss), _right(x, label)], axis=1)
        return {"error": error[:, None, None, :], "metrics": metrics[:, None, None, :]}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """`values`, and whether the guess is right."""
        del state
        x, label = inputs["x"][:, 0, 0, :], inputs["label"][:, 0, 0, :].astype(np.int64)
        error, loss = self.values(x, label)
        metrics = np.concatenate([loss, _right(x, label)], axis=1)
        return {"error": error[:, None, None, :], "metrics": metrics[:, None, None, :]}

    def distance(self, port: str, codes: IntArray, values: FloatArray) -> FloatArray:
        """Of the metrics the loss alone is a fraction; the other is right or wrong."""
        if port != "metrics":
            return super().distance(port, codes, values)
        wrong = np.where(codes[..., 1:] == values[..., 1:], 0.0, np.inf)
        return np.concatenate([self.loss_distance(codes[..., :1], values[..., :1]), wrong], axis=-1)

    def backward(self, tape: Tape) -> None:
        """Its own error; the label comes from the host, the main head's metrics go there."""
        tape.connect("label", tape.share("label", HostLabel(classes=self.classes))["y"])
        if not self.auxiliary:
            tape.add("results", HostOutput(), {"x": tape.value("metrics")})
        tape.give_error("x", tape.value("error"), early=self.auxiliary > 0)

    def sample(self, port: str, rng: np.random.Generator, count: int) -> IntArray:
        """Labels are classes; `scores`."""
        if port == "label":
            return rng.integers(0, self.classes, (count, 1, 1, 1), dtype=np.int64)
        return self.scores(super().sample(port, rng, count), rng)


def _right(x: IntArray | FloatArray, label: IntArray) -> IntArray:
    """(frames, 1): 1 where the first largest score is the label's."""
    return np.asarray(x.argmax(axis=1, keepdims=True) == label, np.int64)
