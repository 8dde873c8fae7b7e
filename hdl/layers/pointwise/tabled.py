"""What activations that are read from a table share: the table's range, its entries, the address of a code.

A table of ``2**table_bits`` entries covers -2**(range_bits - 1) to 2**(range_bits - 1); beyond, its ends are read.  An
entry holds y and the derivative at the middle of the codes of x that it stands for.  With ``beside_relu`` it holds
y - max(x, 0), which is small where y is not, and max(x, 0) is added to what was read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from myhdl import intbv

from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.pointwise.base import LaneBlock, Mask, Pointwise
from hdl.layers.pointwise.table import Table
from hdl.stream import Stream, bits_of

# shorter ones are of no use; in longer ones the entries would be closer than the ends
SHORTEST, LONGEST = 4, 11
# a code of x in steps of the table
WIDEST_INDEX = 48
# far beyond any table, below and above
FAR = np.array([-1000.0, 1000.0])
# bits that sums of an entry and max(x, 0) have more than y, so that y is rounded but once
GUARD_BITS = 2


@dataclass(frozen=True, kw_only=True)
class Tabled(Pointwise):
    """A read-only memory a lane, of y and its derivative; with ``beside_relu`` an adder a lane too.

    A subclass states fields ``x_fixed`` and ``y_fixed``, `values`, which returns y and the derivative, the class
    variables, and `error`."""

    table_bits: int = 10

    # the table covers -2**(range_bits - 1) to 2**(range_bits - 1)
    range_bits: ClassVar[int]
    # the steepest that what the table holds of y, and of the derivative, is between two jumps at ends of entries
    steepest: ClassVar[tuple[float, float]]
    # whether the table holds y - max(x, 0)
    beside_relu: ClassVar[bool] = False
    # whether its first and its last entry hold what comes of an x far beyond them, not of their middles
    far_ends: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if not SHORTEST <= self.table_bits <= LONGEST:
            raise ShapeError(
                f"{name}: table_bits is {self.table_bits}", f"it must lie between {SHORTEST} and {LONGEST}"
            )
        if self.x_fixed.width - self.dropped > WIDEST_INDEX:
            raise ShapeError(f"{name}: steps of {self.x_fixed} are too coarse", "give x more fraction bits")

    @property
    @abstractmethod
    def y_fixed(self) -> Fixed:
        """Format of y: a field of the subclass."""

    @abstractmethod
    def values(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """y and the derivative in float64, without any rounding."""

    @property
    def dropped(self) -> int:
        """Low bits of a code of x that the table does not see; below 0, bits that it sees and x has not."""
        return self.x_fixed.fraction_bits + self.range_bits - self.table_bits

    @property
    def exact(self) -> Fixed:
        """A format that holds every sum of an entry, at most 1 either way, and max(x, 0)."""
        if not self.beside_relu:
            return self.y_fixed
        fraction_bits = max(self.x_fixed.fraction_bits, self.y_fixed.fraction_bits + GUARD_BITS)
        return Fixed(
            max(self.x_fixed.width + fraction_bits - self.x_fixed.fraction_bits, fraction_bits + 2, 2) + 1,
            fraction_bits,
        )

    @property
    def table(self) -> Table:
        return _table(dataclasses.replace(self, height=1, width=1, channels=1, lanes=1))

    @property
    def closeness(self) -> dict[str, float]:
        """The middle of an entry, or the end of the table, then one rounding; beside relu one more of the entry."""
        found = {}
        half_entry = math.ldexp(0.5, self.range_bits - self.table_bits)
        ends = np.ldexp(np.array([-1.0, 1.0]), self.range_bits - 1)
        held, far = (np.array([self.held(x), self.values(x)[1]]) for x in (ends, FAR))
        for which, (port, steps) in enumerate({"y": self.y_fixed, "mask": self.mask_fixed}.items()):
            off = half_entry * self.steepest[which]
            if self.far_ends:
                off += float(np.abs(held - far)[which].max())
            found[port] = 0.5 + off / steps.step
        if self.beside_relu:
            found["y"] += self.exact.step / 2 / self.y_fixed.step
        return found

    def held(self, x: FloatArray) -> FloatArray:
        """What the table holds of y."""
        y, _ = self.values(x)
        return y - np.maximum(x, 0) if self.beside_relu else y

    def codes(self, x: IntArray) -> tuple[IntArray, Mask]:
        half, table = 1 << (self.table_bits - 1), self.table
        index = np.clip(x >> self.dropped if self.dropped > 0 else x << -self.dropped, -half, half - 1)
        y = np.array(table.y)[index]
        if self.beside_relu:
            y = y + (np.maximum(x, 0) << table.grow)
        return y, np.array(table.mask)[index]

    def lane_block(self, taken: Stream, computed: Stream) -> LaneBlock:
        lanes, width, bits = self.lanes, self.x_fixed.width, self.table_bits
        right, left, half = max(self.dropped, 0), max(-self.dropped, 0), 1 << (self.table_bits - 1)
        bound = 1 << max(width + left - 1, bits)
        if self.beside_relu:
            codes, positive = lanes * bits, width - 1

            def clip() -> None:
                value = intbv(0, min=-bound, max=bound)
                for lane in range(lanes):
                    value[:] = taken.payload[bits_of(lane, width)].signed()
                    computed.payload.next[bits_of(lane, positive, codes)] = 0
                    if value > 0:
                        computed.payload.next[bits_of(lane, positive, codes)] = value[positive:]
                    value[:] = value << left
                    value[:] = value >> right
                    if value < -half:
                        value[:] = -half
                    elif value >= half:
                        value[:] = half - 1
                    computed.payload.next[bits_of(lane, bits)] = value[bits:]

        else:

            def clip() -> None:
                value = intbv(0, min=-bound, max=bound)
                for lane in range(lanes):
                    value[:] = taken.payload[bits_of(lane, width)].signed()
                    value[:] = value << left
                    value[:] = value >> right
                    if value < -half:
                        value[:] = -half
                    elif value >= half:
                        value[:] = half - 1
                    computed.payload.next[bits_of(lane, bits)] = value[bits:]

        return clip


@functools.lru_cache(maxsize=64)
def _table(layer: Tabled) -> Table:
    """By the index as two's complement, each in the middle of the codes of an entry."""
    bits, half = layer.table_bits, 1 << (layer.table_bits - 1)
    index = np.arange(1 << bits)
    steps = np.where(index < half, index, index - (1 << bits)) + (0.5 - 0.5 / (1 << max(layer.dropped, 0)))
    x = np.ldexp(steps, layer.range_bits - bits)
    held, derivative = layer.held(x), layer.values(x)[1]
    if layer.far_ends:
        ends = [half, half - 1]
        held[ends], derivative[ends] = layer.held(FAR), layer.values(FAR)[1]
    beside = {}
    if layer.beside_relu:
        grow = layer.exact.fraction_bits - layer.x_fixed.fraction_bits
        beside = {"added_bits": layer.x_fixed.width - 1, "grow": grow}
    y_codes, masks = layer.exact.encode(held).tolist(), layer.mask_fixed.encode(derivative).tolist()
    return Table(tuple(y_codes), tuple(masks), **beside)
