"""What passes a tensor of parameters once a batch, in the order of a weight tile."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Self

from hdl.errors import FoldingError, ShapeError
from hdl.layers.base import Layer
from hdl.layers.folding import weight_lanes
from hdl.recipe import Recipe
from hdl.spelling import QUIET
from hdl.tensor import Port, Tensor, Tile


@dataclass(frozen=True, kw_only=True)
class ParameterLayer(Layer):
    """Ports for the parameter's shape, once a batch, ``w_lanes`` elements a beat.

    Raises `FoldingError` when the lanes fit neither tile nor vector."""

    # of the parameter, as ONNX writes it
    shape: tuple[int, ...]
    recipe: Recipe = field(default_factory=Recipe)
    # that of the engines that use the weight; a vector has its natural order whatever the tile
    tile: Tile = field(default_factory=Tile)
    # elements a beat of all ports alike
    w_lanes: int = 1
    # frames' time in which the tensor should pass, where it passes once a batch
    update_frames: float = field(default=1, repr=False, metadata=QUIET)
    # distinguishes the random bits of this tensor from others
    tensor_id: int = 0

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise ShapeError(f"{self.title}: a parameter needs at least one dimension, all of them positive")
        if len(self.shape) == 1:
            if self.elements % self.w_lanes:
                raise FoldingError(f"{self.title}: {self.w_lanes} lanes do not divide {self.elements} elements")
            return
        taps = math.prod(self.shape[2:])
        if self.tile.po > self.shape[0] or self.tile.pi > self.shape[1] or taps % self.tile.pk:
            raise FoldingError(f"{self.title}: {self.tile} does not fit it")
        if self.tile.size % self.w_lanes:
            raise FoldingError(f"{self.title}: {self.w_lanes} lanes do not divide a tile of {self.tile.size} weights")

    @property
    def title(self) -> str:
        """As errors call it."""
        return f"{type(self).__name__} of {self.shape}"

    @property
    def elements(self) -> int:
        """Elements of the parameter."""
        return math.prod(self.shape)

    @property
    def tiled_elements(self) -> int:
        """Elements, empty places of tiles included; these stay zeros whatever the random bits are."""
        return self.elements + self.tile.padding(self.shape)

    def parameter_port(self, name: str, tensor: Tensor) -> Port:
        """A port that passes the parameter's shape."""
        return Port(name, tensor, self.w_lanes, self.tile.padding(self.shape))

    def stream_tile(self, port: str) -> Tile | None:
        """The tile's order; a vector's own."""
        del port
        return None if len(self.shape) == 1 else self.tile

    # ---- cycles and folding

    @property
    def frames_to_pass(self) -> float:
        """Frames' time in which the tensor should pass."""
        return self.update_frames

    @property
    def cycles_per_batch(self) -> int:
        """A beat a cycle."""
        return self.tiled_elements // self.w_lanes

    @property
    def cycles_per_frame(self) -> int:
        """Cycles a batch over the frames of a batch."""
        return math.ceil(self.cycles_per_batch / self.recipe.batch)

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """Lanes so that the tensor passes within the time of `frames_to_pass`, or as many as a tile has."""
        chosen = tile or self.tile
        size = 1 if len(self.shape) == 1 else chosen.size
        elements = self.elements + chosen.padding(self.shape)
        lanes = weight_lanes(elements, size, int(cycles * self.frames_to_pass))
        folded = dataclasses.replace(self, tile=chosen, w_lanes=lanes)
        if folded.cycles_per_frame > cycles:
            raise FoldingError(
                f"{self.title} needs {folded.cycles_per_frame} cycles a frame with {folded.w_lanes} lanes, "
                f"more than {cycles}",
                "allow more cycles or give the engines a larger weight tile",
            )
        return folded
