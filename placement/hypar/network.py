"""A network as the search sees it: weighted layers and joins with the sizes of their tensors.

F, E and W are the paper's names for feature maps, errors and weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A weighted layer, or where several maps meet (a sum, a concatenation), which has no weights.

    Maps are counted in elements a sample."""

    name: str
    # elements; 0 of a join
    weights: int
    # multiplications a sample, forward
    macs: int
    # of its kernel: rows × columns; a dense layer has one
    taps: int = 1
    # what it takes
    input: int
    # what it makes, before and behind the pools that follow it
    output: int
    pooled: int
    # layers and joins before it; none of what takes the network's input
    inputs: tuple[str, ...] = ()

    @property
    def is_join(self) -> bool:
        """Whether it has no weights."""
        return not self.weights

    @property
    def is_dense(self) -> bool:
        """Whether every weight multiplies once a sample: fully connected."""
        return self.macs == self.weights > 0


@dataclass(frozen=True)
class Net:
    """Layers and joins, each behind those that feed it."""

    name: str
    layers: tuple[Layer, ...]

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """Layers and joins by name."""
        return {layer.name: layer for layer in self.layers}

    @property
    def weighted(self) -> tuple[Layer, ...]:
        """Without the joins."""
        return tuple(layer for layer in self.layers if not layer.is_join)

    @property
    def borders(self) -> Iterator[tuple[Layer, Layer]]:
        """(maker, taker) of every map between two of them."""
        for taker in self.layers:
            for name in taker.inputs:
                yield self.by_name[name], taker
