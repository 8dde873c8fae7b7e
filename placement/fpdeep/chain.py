"""What FPDeep's mapping knows of a network: layers with weights, one after the other, as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from hdl.errors import DagtrainError, Problem


class Phase(StrEnum):
    """Of training (TC 2.1)."""

    FORWARD = "FP"
    ERROR = "EB"
    GRADIENT = "PG"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A convolution or a dense layer; maps and multiplications are those of one frame."""

    name: str
    # channels
    inputs: int
    outputs: int
    # K × K; 1 of a dense layer
    taps: int
    # elements of its input map, and of its output map before any pool
    input_words: int
    output_words: int
    # multiplications by phase; 0 where the network has no need of it
    forward_macs: int
    error_macs: int
    gradient_macs: int
    groups: int = 1
    # whether weights and gradients are kept off the chip, as those of dense layers are
    off_chip: bool = False

    @property
    def macs(self) -> dict[Phase, int]:
        """Multiplications a frame, of the phases that there are."""
        both = zip(Phase, (self.forward_macs, self.error_macs, self.gradient_macs), strict=True)
        return {phase: macs for phase, macs in both if macs}

    @property
    def operations(self) -> int:
        """A frame: a multiplication and an addition are two."""
        return 2 * (self.forward_macs + self.error_macs + self.gradient_macs)

    @property
    def weights(self) -> int:
        """How many."""
        return self.taps * self.inputs * self.outputs // self.groups


@dataclass(frozen=True)
class Chain:
    """A network."""

    name: str
    # in their order
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        problems = [] if self.layers else [Problem("there is no layer with weights", where=self.name)]
        for layer in self.layers:
            sizes = (layer.inputs, layer.outputs, layer.taps, layer.groups, layer.input_words, layer.output_words)
            if min(sizes) < 1 or layer.forward_macs < 1:
                problems.append(Problem("a size or the number of multiplications is below 1", where=layer.name))
            if min(layer.error_macs, layer.gradient_macs) < 0:
                problems.append(Problem("a number of multiplications is negative", where=layer.name))
        if problems:
            raise DagtrainError.listing("", problems)

    @cached_property
    def operations(self) -> int:
        """Of all layers, a frame."""
        return sum(layer.operations for layer in self.layers)

    def passed_words(self, index: int) -> int:
        """Elements of what leaves a layer for the next one, behind a pool if there is one."""
        last = index + 1 == len(self.layers)
        return self.layers[index].output_words if last else self.layers[index + 1].input_words
