"""What flows on every edge while a network trains, beside the format that it flows in: range, resolution, saturation.

Exact arithmetic and float64 reference train side by side on the same batches.  Magnitudes are counted by powers of
two, as those of hls4ml's profiling are drawn (Duarte et al., "Fast inference of deep neural networks in FPGAs for
particle physics", 2018): a format covers the octaves from its step to its range.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph, Node, Role
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.base import Layer
from hdl.layers.capabilities import Summing
from hdl.layers.wiring.saturation_counter import at_an_end
from hdl.tensor import Kind

# nodes whose results are those of others
COPIES = (Role.FORK, Role.RELAY, Role.DEAL, Role.COUNTER)
# magnitudes below 2**-64 and above 2**64 are counted there
FURTHEST = 64


@dataclass(frozen=True)
class TensorProfile:
    """An edge over all batches."""

    edge: str
    # layer of the model, and what its number is for
    layer: str
    kind: Kind
    fixed: Fixed
    numbers: int
    # of the hardware: numbers at an end of the format, and numbers that are 0
    saturated: int
    zeros: int
    # whether a number at an end is one that the recipe clips
    clipped: bool
    # of the reference: numbers that are not 0 and closer to it than half a step, which the format can't tell from 0
    below_step: int
    # numbers of the reference with a magnitude in [2**n, 2**(n + 1)), by n; 0 in none
    octaves: Mapping[int, int]
    # the largest magnitude of the reference
    peak: float
    # signal to error of the first batch, where both have the same weights, in decibels; infinite without any error
    signal_to_error_db: float
    # what the layer adds itself: root mean square, in steps, of what it makes of the hardware's numbers beside what
    # float64 makes of the same
    own_error_steps: float
    # bits of the sums over a batch that the numbers are rounded from, and how many of those sums wrapped; 0 where none
    # are narrower than exact ones
    sum_bits: int = 0
    wrapped_sums: int = 0

    @property
    def saturation(self) -> float:
        """Share of numbers at an end of the format."""
        return self.saturated / self.numbers

    @property
    def lost(self) -> float:
        """Share of the numbers that aren't 0 which are too small to be told from it."""
        return self.below_step / max(1, sum(self.octaves.values()))


@dataclass(frozen=True)
class Made:
    """The numbers on an edge."""

    # layer of the model, and its node that makes them
    layer: str
    node: Node
    kind: Kind
    fixed: Fixed
    # whether the recipe clips them, so that what lies beyond the format's ends is meant to be cut off
    clipped: bool

    def meant(self, values: FloatArray) -> FloatArray:
        """What the hardware would have without rounding."""
        low, high = self.fixed.low * self.fixed.step, self.fixed.high * self.fixed.step
        return np.clip(values, low, high) if self.clipped else values


def number_makers(graph: Graph) -> dict[str, Made]:
    """Edges that carry numbers which are not those of another edge, in the order of the graph."""
    found = {
        edge: Made(node.whole, node, kind, graph.tensor(edge).fixed, kind is Kind.GRADIENT and graph.recipe.clip > 0)
        for node in graph.nodes
        if node.role not in COPIES
        for port, edge in node.outputs.items()
        for kind in [node.layer.port(port).tensor.kind]
    }
    return {edge: made for edge, made in found.items() if carries_numbers(made.fixed)}


@dataclass
class _Seen:
    """Of one edge so far."""

    numbers: int = 0
    saturated: int = 0
    zeros: int = 0
    below_step: int = 0
    octaves: Counter[int] = field(default_factory=Counter)
    peak: float = 0.0
    # sums of squares in the first batch
    signal: float = 0.0
    error: float = 0.0
    # of all batches, in steps
    own: float = 0.0

    def exact(self, codes: IntArray, fixed: Fixed) -> None:
        """What the hardware has."""
        self.numbers += codes.size
        self.saturated += at_an_end(codes, fixed)
        self.zeros += int(codes.size - np.count_nonzero(codes))

    def reference(self, values: FloatArray, fixed: Fixed) -> None:
        """What float64 has."""
        magnitudes = np.abs(values[values != 0])
        self.peak = max(self.peak, float(magnitudes.max(initial=0.0)))
        self.below_step += int(np.count_nonzero(magnitudes < fixed.step / 2))
        # frexp: a magnitude is m * 2**e with m in [0.5, 1)
        octaves, counts = np.unique(np.clip(np.frexp(magnitudes)[1] - 1, -FURTHEST, FURTHEST), return_counts=True)
        self.octaves.update(dict(zip(octaves.tolist(), counts.tolist(), strict=True)))

    def beside(self, codes: IntArray, values: FloatArray, fixed: Fixed) -> None:
        """Both, of the same weights."""
        self.signal += float(np.square(values).sum())
        self.error += float(np.square(fixed.decode(codes) - values).sum())

    def alone(self, codes: IntArray, values: FloatArray, fixed: Fixed) -> None:
        """Both, of the same inputs; what the format can't hold is no error of the layer."""
        self.own += float(np.square(codes - np.clip(values / fixed.step, fixed.low, fixed.high)).sum())

    @property
    def own_error_steps(self) -> float:
        """Root mean square."""
        return math.sqrt(self.own / self.numbers)

    @property
    def signal_to_error_db(self) -> float:
        """Power of the reference over that of the difference."""
        if not self.error:
            return math.inf
        return 10 * math.log10(self.signal / self.error) if self.signal else -math.inf


def profile(graph: Graph, batches: Iterable[Mapping[str, npt.ArrayLike]]) -> tuple[TensorProfile, ...]:
    """Every edge that carries numbers, in the graph's order, after training on ``batches`` (feeds of `Executor.step`).

    Masks, indices and labels are none.  Without any batch the result is empty."""
    golden, reference = Executor(graph, Mode.GOLDEN), Executor(graph, Mode.REFERENCE)
    # each layer in float64, on what the hardware gives it
    alone = Executor(graph, Mode.REFERENCE)
    makers = number_makers(graph)
    formats = {edge: graph.tensor(edge).fixed for edge in graph.producers}
    seen = {edge: _Seen() for edge in makers}
    for feeds in batches:
        exact: dict[str, IntArray] = {}
        values: dict[str, FloatArray] = {}
        own: dict[str, FloatArray] = {}
        golden.step(feeds, exact.__setitem__)
        reference.step(feeds, values.__setitem__)
        alone.step(feeds, own.__setitem__, {edge: formats[edge].decode(codes) for edge, codes in exact.items()})
        for edge, made in makers.items():
            fixed = made.fixed
            seen[edge].exact(exact[edge], fixed)
            seen[edge].reference(values[edge], fixed)
            seen[edge].alone(exact[edge], own[edge], fixed)
            if golden.batches == 1:
                seen[edge].beside(exact[edge], made.meant(values[edge]), fixed)
    return tuple(
        TensorProfile(
            edge=edge,
            layer=made.layer,
            kind=made.kind,
            fixed=made.fixed,
            numbers=found.numbers,
            saturated=found.saturated,
            zeros=found.zeros,
            clipped=made.clipped,
            below_step=found.below_step,
            octaves=dict(sorted(found.octaves.items())),
            peak=found.peak,
            signal_to_error_db=found.signal_to_error_db,
            own_error_steps=found.own_error_steps,
            sum_bits=_sum_bits(made.node.layer),
            wrapped_sums=golden.states[made.node.name].get("wrapped", 0),
        )
        for edge, made in makers.items()
        if (found := seen[edge]).numbers
    )


def _sum_bits(layer: Layer) -> int:
    """Chosen for a layer's sums."""
    return layer.sum_bits if isinstance(layer, Summing) and layer.sum_width else 0


def carries_numbers(fixed: Fixed) -> bool:
    """Whether a format is one of numbers, not of a mask, an index or a label."""
    return fixed.signed or fixed.fraction_bits != 0
