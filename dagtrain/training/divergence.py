"""Where the hardware's arithmetic leaves float64 over training: both train from the same start on the same batches.

The relative error of a tensor is the root mean square of the difference over that of the float64 numbers.  To the
float64 run it grows with training everywhere, even where every format fits, since whatever differs once is learnt from:
that tells how far two trainings went apart, and not why.  What a node adds itself is its error to what it makes in
float64 of the hardware's numbers.  Who diverges is who leaves a threshold by that first, in the order of epochs and
within one of the graph; batches alone don't count, since what begins at 0 is all rounding in the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dagtrain.graph.executor import Array, Executor, Mode
from dagtrain.graph.ir import Graph
from dagtrain.training.profile import Made, number_makers
from hdl.fixed import Fixed
from hdl.tensor import Kind


@dataclass(frozen=True)
class Divergence:
    """An edge over all epochs."""

    edge: str
    # layer of the model, and what its number is for
    layer: str
    kind: Kind
    fixed: Fixed
    # relative, of each epoch: to the float64 run, and to float64 on the hardware's numbers
    errors: tuple[float, ...]
    own_errors: tuple[float, ...]
    # epoch, from 1, whose own error is above the threshold first; None: none is
    left: int | None


@dataclass(frozen=True)
class TrainedBeside:
    """Training in both arithmetics."""

    epochs: int
    threshold: float
    # in the order of the graph
    tensors: tuple[Divergence, ...]


@dataclass
class _Sums:
    """Of squares."""

    signal: float = 0.0
    error: float = 0.0

    def add(self, other: _Sums) -> None:
        self.signal += other.signal
        self.error += other.error

    @property
    def relative(self) -> float:
        """Error; 0 of none, infinite where all should be 0."""
        if not self.error:
            return 0.0
        return math.sqrt(self.error / self.signal) if self.signal else math.inf


@dataclass
class _Seen:
    epochs: list[_Sums] = field(default_factory=list)
    own: list[_Sums] = field(default_factory=list)


def divergences(
    graph: Graph, epochs: Iterable[Iterable[Mapping[str, npt.ArrayLike]]], threshold: float
) -> tuple[Divergence, ...]:
    """Every edge that carries numbers, but for what the host is told, in the order of the graph, after training on
    batches (feeds of `Executor.step`) by epoch."""
    golden, reference, alone = (Executor(graph, mode) for mode in (Mode.GOLDEN, Mode.REFERENCE, Mode.REFERENCE))
    formats = {edge: graph.tensor(edge).fixed for edge in graph.producers}
    makers = {edge: made for edge, made in number_makers(graph).items() if not _told_to_the_host(graph, edge)}
    seen = {edge: _Seen() for edge in makers}
    for batches in epochs:
        for one in seen.values():
            one.epochs.append(_Sums())
            one.own.append(_Sums())
        for feeds in batches:
            codes: dict[str, Array] = {}
            values: dict[str, Array] = {}
            own: dict[str, Array] = {}
            golden.step(feeds, codes.__setitem__)
            exact = {edge: formats[edge].decode(array) for edge, array in codes.items()}
            reference.step(feeds, values.__setitem__)
            alone.step(feeds, own.__setitem__, exact)
            for edge, one in seen.items():
                meant = makers[edge].meant
                one.epochs[-1].add(_beside(exact[edge], meant(values[edge])))
                one.own[-1].add(_beside(exact[edge], meant(own[edge])))
    return tuple(
        _divergence(
            edge, makers[edge], [tuple(sums.relative for sums in of) for of in (one.epochs, one.own)], threshold
        )
        for edge, one in seen.items()
    )


def _divergence(edge: str, made: Made, errors: Sequence[tuple[float, ...]], threshold: float) -> Divergence:
    left = next((epoch for epoch, error in enumerate(errors[1], 1) if error > threshold), None)
    return Divergence(edge, made.layer, made.kind, made.fixed, errors[0], errors[1], left)


def first_to_leave(found: Sequence[Divergence]) -> Divergence | None:
    """The one that left the threshold first; None if all are within it."""
    left = [one for one in found if one.left is not None]
    return min(left, key=lambda one: one.left or 0, default=None)


def _told_to_the_host(graph: Graph, edge: str) -> bool:
    """Whether nobody else reads it: a record, of which not all are numbers of its format."""
    return all(not reader.layer.sources for reader, _ in graph.consumers[edge])


def _beside(exact: Array, values: Array) -> _Sums:
    return _Sums(float(np.square(values).sum()), float(np.square(exact - values).sum()))
