"""Types of what flows along an edge: its kind, its shape and its number format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hdl.errors import FoldingError
from hdl.fixed import Fixed, IntArray


class Kind(Enum):
    """What an edge of the training graph carries; every rule about edges speaks of kinds."""

    ACTIVATION = "activation"
    ERROR = "error"
    # an activation, mask, index or label that waits for the backward pass
    STASH = "stash"
    WEIGHT = "weight"
    GRADIENT = "gradient"

    @property
    def hops_must_match(self) -> bool:
        """Whether branches of this kind must have taken equal numbers of network hops where they join."""
        return self in (Kind.ACTIVATION, Kind.ERROR)

    @property
    def per_batch(self) -> bool:
        """Whether the edge carries one tensor a batch; the others carry one a frame."""
        return self in (Kind.WEIGHT, Kind.GRADIENT)


@dataclass(frozen=True)
class Tensor:
    """One tensor of an edge: per frame ``(height, width, channels)`` in raster order, channels innermost.

    Per batch (weights, gradients) the shape is the parameter's own, as ONNX writes it.
    """

    shape: tuple[int, ...]
    fixed: Fixed
    kind: Kind

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Bits of one tensor."""
        return self.elements * self.fixed.width


@dataclass(frozen=True)
class Port:
    """A stream port of a layer: ``lanes`` elements a beat; lane 0 in the low bits of the payload."""

    name: str
    tensor: Tensor
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.tensor.elements % self.lanes:
            raise ValueError(f"port {self.name}: {self.lanes} lanes do not divide {self.tensor.elements} elements")

    @property
    def payload_bits(self) -> int:
        """Width of the stream's payload."""
        return self.lanes * self.tensor.fixed.width

    @property
    def beats(self) -> int:
        """Beats of one tensor."""
        return self.tensor.elements // self.lanes


@dataclass(frozen=True, order=True)
class Tile:
    """The weights that a MAC engine multiplies in one cycle: ``po * pi * pk`` of them.

    For a weight tensor of shape (filters, channels, taps) the stream carries tiles in the order (filter group,
    channel group, tap group), the last fastest; inside a tile the order is (filter, channel, tap), likewise."""

    # filter (output-channel) lanes
    po: int = 1
    # input-channel lanes
    pi: int = 1
    # kernel taps in parallel
    pk: int = 1

    def __post_init__(self) -> None:
        if min(self.po, self.pi, self.pk) < 1:
            raise FoldingError(f"a tile has at least one lane of each kind, unlike {self}")

    @property
    def size(self) -> int:
        """Weights of a tile."""
        return self.po * self.pi * self.pk

    def order(self, shape: tuple[int, ...]) -> IntArray:
        """Stream position -> flat index of a weight tensor of ``shape`` (filters, channels, kernel …)."""
        filters, channels, taps = shape[0], shape[1], math.prod(shape[2:])
        index = np.arange(filters * channels * taps, dtype=np.int64)
        split = index.reshape(filters // self.po, self.po, channels // self.pi, self.pi, taps // self.pk, self.pk)
        return split.transpose(0, 2, 4, 1, 3, 5).reshape(-1)
