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
    # between a layer and a store of block memory elsewhere (`hdl.layers.store`): the weights of a frame, once a frame;
    # sums of a batch under way, out and back once a frame; what an update remembers, out and back once a batch
    REPLAY = "replay"
    SUMS = "sums"
    STATE = "state"

    @property
    def hops_must_match(self) -> bool:
        """Whether branches of this kind must have taken equal numbers of network hops where they join."""
        return self in (Kind.ACTIVATION, Kind.ERROR)

    @property
    def per_batch(self) -> bool:
        """Whether the edge carries one tensor a batch; the others carry one a frame."""
        return self in (Kind.WEIGHT, Kind.GRADIENT, Kind.STATE)

    @property
    def of_store(self) -> bool:
        """Whether a store elsewhere is at one end: an edge without meaning of its own, whose two ends are one layer."""
        return self in (Kind.REPLAY, Kind.SUMS, Kind.STATE)

    @property
    def of_parameter(self) -> bool:
        """Whether the tensor has the shape of a parameter, and passes in the order of its tile."""
        return self.per_batch or self.of_store


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
    # zeros that pass with each tensor: the empty places of tiles of weights (`Tile.order`)
    padding: int = 0

    def __post_init__(self) -> None:
        # one lane divides any number, which is not counted then: most ports of unfolded graphs have one
        if self.lanes != 1 and (self.lanes < 1 or self.elements % self.lanes):
            raise ValueError(f"port {self.name}: {self.lanes} lanes do not divide {self.elements} elements")

    @property
    def elements(self) -> int:
        """Elements that pass with one tensor, empty places included."""
        return self.tensor.elements + self.padding

    @property
    def payload_bits(self) -> int:
        """Width of the stream's payload."""
        return self.lanes * self.tensor.fixed.width

    @property
    def beats(self) -> int:
        """Beats of one tensor."""
        return self.elements // self.lanes


# what `Tile.order` says of an empty place
EMPTY = -1


@dataclass(frozen=True, order=True)
class Tile:
    """The weights that a MAC engine multiplies in one cycle: ``po * pi * pk`` of them.

    For a weight tensor of shape (filters, channels, taps) the stream carries tiles in the order (filter group,
    channel group, tap group), the last fastest; inside a tile the order is (filter, channel, tap), likewise.  Where
    ``po`` does not divide the filters, or ``pi`` the channels, the last tiles have empty places, which pass as zeros:
    a *ragged* tile."""

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

    def counts(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Tiles along the filters, the channels and the taps of a weight tensor of ``shape`` (filters, channels,
        kernel …)."""
        return -(-shape[0] // self.po), -(-shape[1] // self.pi), math.prod(shape[2:]) // self.pk

    def padding(self, shape: tuple[int, ...]) -> int:
        """Empty places of all tiles of such a tensor; a vector has none."""
        return math.prod(self.counts(shape)) * self.size - math.prod(shape) if len(shape) > 1 else 0

    def divides(self, shape: tuple[int, ...]) -> bool:
        """Whether there are none."""
        return self.padding(shape) == 0

    def order(self, shape: tuple[int, ...]) -> IntArray:
        """Stream position -> flat index of such a tensor, or `EMPTY`."""
        filters, channels, taps = shape[0], shape[1], math.prod(shape[2:])
        rows, columns, tap_groups = self.counts(shape)
        index = np.full((rows * self.po, columns * self.pi, taps), EMPTY, dtype=np.int64)
        index[:filters, :channels] = np.arange(filters * channels * taps).reshape(filters, channels, taps)
        split = index.reshape(rows, self.po, columns, self.pi, tap_groups, self.pk)
        return split.transpose(0, 2, 4, 1, 3, 5).reshape(-1)


def in_order(flat: IntArray, order: IntArray | None) -> IntArray:
    """Elements, on the last axis, as a stream has them: by `Tile.order`, zeros in empty places; None: as they are."""
    if order is None:
        return flat
    return np.where(order == EMPTY, 0, flat[..., order])


def from_order(stream: IntArray, order: IntArray | None) -> IntArray:
    """The inverse of `in_order`; what stands in empty places is dropped."""
    if order is None:
        return stream
    full = order != EMPTY
    found = np.empty((*stream.shape[:-1], int(full.sum())), stream.dtype)
    found[..., order[full]] = stream[..., full]
    return found
