"""What every node of a training graph is: a `Layer`, one frozen dataclass that stands whole in one file.

A layer file reads top to bottom: parameters, shape rule (`sinks`, `sources`), cycles and folding, golden
model, float reference, backward rule, circuit.  The forward layer, its error engine, its gradient engine all
stand in the same file.  No pass keeps lists of layers: it asks the layer.

A layer has four facets, each stated in a file of its own: `Meaning` (golden model, reference, backward rule), `Timing`
(cycles, folding, latency), `Storage` (memories and where they live), and here its circuit and the examples that
circuit and meaning are compared on.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from hdl.fixed import Fixed, IntArray
from hdl.layers.meaning import Meaning
from hdl.layers.storage import Storage
from hdl.layers.timing import Timing
from hdl.signals import ClockReset, Instances
from hdl.spelling import spelt
from hdl.stream import Stream

# of sampled codes, those at the edges
EDGE_SHARE = 0.25


class Layer(Meaning, Timing, Storage):
    """Base of all layers; subclasses are ``@dataclass(frozen=True, kw_only=True)``."""

    # must stand on the device that carries the host interface (equation (5) of the poster)
    pinned_to_host: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        """The text of a layer determines its circuit, and names its module: a dataclass keeps this ``__repr__``."""
        super().__init_subclass__(**keywords)
        cls.__repr__ = spelt  # type: ignore[method-assign]

    @classmethod
    def concrete(cls) -> tuple[type[Self], ...]:
        """Every concrete layer among the subclasses that were imported, whatever it inherits."""
        found: list[type[Self]] = []
        for kind in cls.__subclasses__():
            if not inspect.isabstract(kind) and not kind.__name__.startswith("_"):
                found.append(kind)
            found += kind.concrete()
        return tuple(dict.fromkeys(found))

    @abstractmethod
    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """The elaborated MyHDL block between ``streams`` (one a port); ``images`` fill memories in simulation."""

    @property
    def built(self) -> Layer:
        """A layer of the same circuit, one for all that differ only in what other layers are made of."""
        return self

    @classmethod
    @abstractmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Small instances, degenerate ones included, over which the conformance suite runs."""

    def sample(self, port: str, rng: np.random.Generator, count: int) -> IntArray:
        """Random legal codes for ``count`` tensors at a sink, ``(count, *shape)``; a quarter are `edge_codes`."""
        tensor = self.port(port).tensor
        codes = rng.integers(tensor.fixed.low, tensor.fixed.high + 1, (count, *tensor.shape), dtype=np.int64)
        edges = np.array(edge_codes(tensor.fixed))
        return np.where(rng.random(codes.shape) < EDGE_SHARE, rng.choice(edges, codes.shape), codes)


def edge_codes(fixed: Fixed) -> list[int]:
    """Codes at which a comparison, a rounding or a saturation that is off by one shows: 0, both ends, ±1, powers of two
    (half-way between codes of a coarser format) and their neighbours.  0 and the ends thrice."""
    powers = [sign << bit for bit in range(fixed.width) for sign in (1, -1)]
    near = [power + step for power in powers for step in (-1, 0, 1)]
    return [code for code in (*([0, fixed.low, fixed.high] * 3), *near) if fixed.low <= code <= fixed.high]
