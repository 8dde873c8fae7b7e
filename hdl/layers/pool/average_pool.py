"""Average pool: the mean of each window and channel; backwards, every pixel gathers its shares of the errors.

    y[r, c, n]  = 1 / k(r, c) * sum over (i, j) of x[r*sh - top + i*dh, c*sw - left + j*dw, n]
    dx[h, v, n] = sum over the windows (r, c) and taps that see (h, v) of e[r, c, n] / k(r, c)

``k(r, c)`` is how many taps of the window lie in the map, or in the part of its padding that is ``counted``; outside
the map are zeros.  1 / k is a fixed-point factor: where all windows count alike a constant of `RECIPROCAL_BITS`
significant bits (exact if k is a power of two), else one of several of up to `NARROW_FACTOR` or `WIDE_FACTOR` bits, by
one multiplier a lane.  Sums and products are exact, and rounded once.

Of windows of one element whose padding counts, that is a map with zeros around it; negative padding cuts rows and
columns off.

With ``shares`` there is no stride: window r of n rows reads all that overlaps the r-th of n equal shares of the map,

    x[floor(r * height / n)], … x[ceil((r + 1) * height / n) - 1]

and columns likewise (PyTorch's AdaptiveAvgPool2d, whatever its size divides).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from myhdl import block

from hdl.engine.arithmetic.mac import WIDEST_OF_PAIR, operand_bits
from hdl.engine.arithmetic.rounding import rounding_cycles, scale_cycles
from hdl.engine.window.average import WEIGH_CYCLES, AverageShape, Factors, average, sum_bits
from hdl.engine.window.walk import Axis, SharedAxis
from hdl.errors import ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pool.base import ERROR, WINDOW_FIELDS, PoolOfMap, WindowPool, WindowPoolError
from hdl.layers.shape import RowPart
from hdl.layers.window import Kernel, SharedWindow, Window
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.strips import Strips
from hdl.tensor import Kind, Port, Tensor, Tile

DATA = Fixed(16, 8)
# significant bits of a constant factor
RECIPROCAL_BITS = 16
# bits of the greatest of several factors, or one less: with a sign bit it fits a multiplier of a pair, or is too wide
# for one as what it multiplies is
NARROW_FACTOR, WIDE_FACTOR = WIDEST_OF_PAIR - 1, WIDEST_OF_PAIR + 2


@dataclass(frozen=True, kw_only=True)
class _AveragePool(WindowPool):
    """What both directions share."""

    # top, left, bottom, right: rows and columns of the padding that count, as zeros
    counted: tuple[int, int, int, int] = (0, 0, 0, 0)
    # rows and columns of windows that overlap equal shares of the map; the kernel is the largest of them
    shares: tuple[int, int] | None = field(default=None, metadata=QUIET)

    cuts: ClassVar[bool] = True

    @classmethod
    def sharing(cls, height: int, width: int, shares: tuple[int, int], **others: Any) -> Self:
        """With windows that overlap equal shares."""
        kernel = SharedWindow.over(height, width, shares).kernel
        return cls(height=height, width=width, kernel=kernel, shares=shares, **others)

    def check_shape(self) -> None:
        """What counts is padding; shares have none."""
        if self.shares is not None and min(*self.input_shape, *self.shares) < 1:
            raise ShapeError(f"{self.name} of {self.shares} windows: dimensions and shares must be positive")
        super().check_shape()
        said = Kernel(self.kernel, self.stride, self.padding, self.dilation)
        if self.shares is not None and said != Kernel(self.window.kernel):
            raise ShapeError(
                f"{self.name}: windows of {self.shares} equal shares have a size of their own, no stride and no padding"
            )
        if not all(0 <= some <= max(every, 0) for some, every in zip(self.counted, self.padding, strict=True)):
            raise ShapeError(f"{self.name}: of padding {self.padding}, {self.counted} can't count")

    @property
    def covered(self) -> bool:
        """Or a tap that counts."""
        return bool(self.counts.min())

    # ---- windows

    @cached_property
    def window(self) -> Window:
        """Of shares, where they are."""
        if self.shares is None:
            return super().window
        return SharedWindow.over(self.height, self.width, self.shares)

    @property
    def tap_groups(self) -> list[int]:
        """Of shares one tap a cycle."""
        return super().tap_groups if self.shares is None else [1]

    def axes(self, taps: int) -> tuple[Axis, Axis]:
        """Of shares, which are their own transpose."""
        if self.shares is None:
            return super().axes(taps)
        sizes = zip((self.height, self.width), self.shares, strict=True)
        rows, columns = (reversed(each) if self.transposed else each for each in sizes)
        return SharedAxis.of(*rows), SharedAxis.of(*columns)

    def row_part(self, first: int, end: int) -> RowPart | None:
        """Where every tap counts, so that all parts have the one factor."""
        alike = self.counted == tuple(max(0, some) for some in self.padding)
        return super().row_part(first, end) if alike and self.shares is None else None

    def _with_rows(self, height: int, top: int, bottom: int) -> dict[str, Any]:
        """Rows of other parts count as padding does."""
        fields = super()._with_rows(height, top, bottom)
        return fields | {"counted": tuple(max(0, some) for some in fields["padding"])}

    # ---- factors

    def _counts(self, axis: int) -> IntArray:
        """Taps of each row (axis 0) or column of windows that count."""
        if isinstance(self.window, SharedWindow):
            return np.array(self.window.lengths(axis), np.int64)
        size, before = (self.height, self.width)[axis], self.padding[axis]
        at = np.arange(self.window.output[axis])[:, None] * self.stride[axis] - before
        at = at + np.arange(self.kernel[axis]) * self.dilation[axis]
        low, high = -self.counted[axis], size + self.counted[axis + 2]
        return np.asarray(((at >= low) & (at < high)).sum(axis=1), np.int64)

    @property
    def counts(self) -> IntArray:
        """Taps of each window that count: (rows, columns)."""
        return self._counts(0)[:, None] * self._counts(1)

    @property
    def factor_shift(self) -> int:
        """Fraction bits of factors."""
        least, most = int(self.counts.min()), int(self.counts.max())
        if least < most:
            bits = NARROW_FACTOR if self.multiplied_bits <= WIDEST_OF_PAIR else WIDE_FACTOR
            return bits - 2 + least.bit_length()
        magnitude = (most - 1).bit_length()
        return magnitude if most == 1 << magnitude else magnitude + RECIPROCAL_BITS - 1

    @property
    @abstractmethod
    def multiplied_bits(self) -> int:
        """Of what a factor of its own multiplies."""

    @property
    def factor_codes(self) -> IntArray:
        """1 / k, rounded, with `factor_shift` fraction bits: (rows, columns, 1)."""
        counts = self.counts[:, :, None]
        return ((1 << self.factor_shift) + counts // 2) // counts

    @property
    def _factor(self) -> int | Factors:
        """For the engine."""
        codes = self.factor_codes[:, :, 0]
        if codes.min() == codes.max():
            return int(codes[0, 0])
        (rows, row_kinds), (columns, column_kinds) = (
            np.unique(self._counts(axis), return_index=True) for axis in range(2)
        )
        return Factors(
            rows=tuple(np.searchsorted(rows, self._counts(0)).tolist()),
            columns=tuple(np.searchsorted(columns, self._counts(1)).tolist()),
            table=tuple(tuple(codes[row, column_kinds].tolist()) for row in row_kinds),
        )

    # ---- cost

    @property
    def multipliers(self) -> int:
        """One a lane where the factor is not the same everywhere."""
        return self.engine_lanes if isinstance(self._factor, Factors) else 0

    @property
    def macs(self) -> int:
        """A product a window where the factor is not the same everywhere; sums are no products."""
        return self.counts.size * self.channels if self.multipliers else 0

    def _shape(self, ring_rows: int) -> AverageShape:
        """What the engine is built from, with so many rows of the stored map."""
        operand, result = self.sinks[0].tensor.fixed, self.sources[0].tensor.fixed
        return AverageShape(
            walk=self.walk,
            lanes=self.engine_lanes,
            groups=self.channels // self.engine_lanes,
            ring_rows=ring_rows,
            operand=operand,
            result=result,
            factor=self._factor,
            shift=operand.fraction_bits + self.factor_shift - result.fraction_bits,
            transposed=self.transposed,
        )

    @property
    def _engine(self) -> AverageShape:
        """Of this direction."""
        return self._shape(self.ring_rows(self.sinks[0].name))

    @property
    def rounding_cycles(self) -> int:
        """Product, if it comes after the sum, and rounding."""
        # any number of rows: it is asked how many there must be
        shape = self._shape(1)
        if shape.before:
            scaling = 1
        elif isinstance(shape.factor, Factors):
            scaling = WEIGH_CYCLES
        else:
            scaling = scale_cycles(shape.sum_bits, shape.factor)
        return scaling + rounding_cycles(shape.shift)

    @property
    def result_places(self) -> int:
        """Behind the queue, every stage of product and rounding holds one as well."""
        return super().result_places + self.rounding_cycles

    @property
    def strips(self) -> Strips:
        """Rows of the result; products before the sum."""
        found = super().strips
        if self._engine.before is None:
            return found
        return replace(found, begin_cycles=found.begin_cycles + WEIGH_CYCLES)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Work on a row starts when all stored rows that it needs are there."""
        stored = self.sinks[0].name
        return {stored: self.rows_required(stored, source, elements)}

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest additions a cycle."""
        del tile
        lanes = {f"{port.name}_lanes": port.tensor.shape for port in (*self.sinks, *self.sources)}
        return self.fold_with(cycles, {name: (h, w, c) for name, (h, w, c) in lanes.items()})

    # ---- meaning

    @property
    def _off(self) -> FloatArray:
        """By how much each factor is not 1 / k: (1, rows, columns, 1)."""
        return np.abs(
            np.ldexp(self.factor_codes.astype(np.float64), -self.factor_shift)[None] - 1 / self.counts[..., None]
        )

    def _closeness(self, off: FloatArray) -> dict[str, float]:
        """``off``: of results, for codes of 1."""
        operand, result = self.sinks[0].tensor.fixed, self.sources[0]
        greatest = max(-operand.low, operand.high) * operand.step
        return {result.name: 0.5 + float(off.max()) * greatest / result.tensor.fixed.step}


@dataclass(frozen=True, kw_only=True)
class AveragePool(_AveragePool, PoolOfMap):
    """Sink ``x``, source ``y``."""

    x_lanes: int = 1
    y_lanes: int = 1
    x_fixed: Fixed = DATA
    y_fixed: Fixed = DATA

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.output_shape, self.y_fixed, Kind.ACTIVATION), self.y_lanes),)

    @property
    def closeness(self) -> dict[str, float]:
        """What factors are off, times the greatest sum, and half a step."""
        return self._closeness(self._off[0, :, :, 0] * self.counts)

    @property
    def multiplied_bits(self) -> int:
        """Of a sum."""
        return sum_bits(self.x_fixed, self.window.taps)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sums, times the factors, rounded once."""
        del state
        total = self.window.patches(inputs["x"]).sum(axis=3) * self.factor_codes
        return {"y": requantise(total, self.x_fixed.fraction_bits + self.factor_shift, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"y": self.window.patches(inputs["x"]).sum(axis=3) / self.counts[:, :, None]}

    def backward(self, tape: Tape) -> None:
        """Gather the errors."""
        if tape.needs_error("x"):
            names = ("height", "width", "channels", *WINDOW_FIELDS, "counted", "shares")
            engine = AveragePoolError(**{name: getattr(self, name) for name in names})
            tape.give_error("x", tape.add("error", engine, {"e": tape.error("y")})["dx"])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.average`."""
        del images
        return average_pool(domain, streams["x"], streams["y"], shape=self._engine)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Windows side by side and overlapping, padding that counts, in part or not, lanes, taps in parallel."""
        found = (cls(**example, engine_taps=taps, x_lanes=x, y_lanes=y) for example, taps, x, y in example_fields())
        return (*found, *(cls.sharing(**example, x_lanes=x, y_lanes=y) for example, x, y in shared_fields()))


@dataclass(frozen=True, kw_only=True)
class AveragePoolError(WindowPoolError, _AveragePool):
    """Sink ``e``, source ``dx``."""

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e."""
        return (Port("e", Tensor(self.output_shape, self.e_fixed, Kind.ERROR), self.e_lanes),)

    @property
    def closeness(self) -> dict[str, float]:
        """What factors are off, of all windows that see a pixel, times the greatest error, and half a step."""
        return self._closeness(self._gathered(self._off))

    @property
    def multiplied_bits(self) -> int:
        """Of an error."""
        return operand_bits(self.e_fixed)

    def _gathered(self, shares: Any) -> Any:
        """Of what each window gives to all of its taps, what every pixel gets."""
        spread = np.broadcast_to(shares[:, :, :, None], (*shares.shape[:3], self.window.taps, shares.shape[3]))
        return self.window.scatter(spread)

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact products and sums, rounded once."""
        del state
        total = self._gathered(inputs["e"] * self.factor_codes)
        return {"dx": requantise(total, self.e_fixed.fraction_bits + self.factor_shift, self.dx_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"dx": self._gathered(inputs["e"] / self.counts[:, :, None])}

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.average`."""
        del images
        return average_pool_error(domain, streams["e"], streams["dx"], shape=self._engine)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As forwards, with taps in parallel only along axes without stride; finer steps."""
        found = []
        for number, (example, taps, x, y) in enumerate(example_fields()):
            taps = taps if example["stride"] == (1, 1) else 1
            dx = Fixed(16, 14) if number == 1 else ERROR
            found.append(cls(**example, engine_taps=taps, e_lanes=y, dx_lanes=x, dx_fixed=dx))
        return (*found, *(cls.sharing(**example, e_lanes=y, dx_lanes=x) for example, x, y in shared_fields()))


@block
def average_pool(domain: ClockReset, x: Stream, y: Stream, *, shape: AverageShape) -> Instances:
    """The forward circuit.

    Ports:
        x: in, stream of codes of ``shape.operand``, any number a beat.
        y: out, stream of codes of ``shape.result``, any number a beat.
    """
    return average(domain, x, y, shape=shape)


@block
def average_pool_error(domain: ClockReset, e: Stream, dx: Stream, *, shape: AverageShape) -> Instances:
    """The error circuit.

    Ports:
        e: in, stream of codes of ``shape.operand``, any number a beat.
        dx: out, stream of codes of ``shape.result``, any number a beat.
    """
    return average(domain, e, dx, shape=shape)


def example_fields() -> list[tuple[dict[str, Any], int, int, int]]:
    """(fields, taps a cycle, lanes of x, lanes of y) for the suite."""
    same = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
    cut = {"padding": (-2, 1, 3, -1), "counted": (0, 1, 3, 0)}
    around = {"padding": (2, 1, 0, 3), "counted": (2, 1, 0, 3)}
    return [
        ({"height": 4, "width": 4, "channels": 2, "kernel": (2, 2), "stride": (2, 2)}, 1, 1, 1),
        ({"height": 5, "width": 4, "channels": 4, **same, "stride": (2, 2), "engine_lanes": 2}, 3, 2, 1),
        ({"height": 3, "width": 4, "channels": 2, **same, "stride": (1, 1), "counted": (1, 1, 1, 1)}, 9, 1, 2),
        ({"height": 4, "width": 5, "channels": 3, **same, "stride": (1, 1), "engine_lanes": 3}, 3, 3, 1),
        ({"height": 1, "width": 1, "channels": 1, "kernel": (1, 1), "stride": (1, 1)}, 1, 1, 1),
        ({"height": 3, "width": 2, "channels": 2, "kernel": (1, 1), "stride": (1, 1), **around}, 1, 2, 1),
        ({"height": 5, "width": 6, "channels": 2, "kernel": (1, 1), "stride": (1, 1), **cut}, 1, 1, 2),
    ]


def shared_fields() -> list[tuple[dict[str, Any], int, int]]:
    """(fields, lanes of x, lanes of y) of windows that overlap equal shares: unlike sizes, more windows than pixels;
    many phases."""
    return [
        ({"height": 9, "width": 5, "channels": 2, "shares": (7, 3)}, 1, 2),
        ({"height": 3, "width": 4, "channels": 4, "shares": (5, 4), "engine_lanes": 2}, 2, 1),
        ({"height": 9, "width": 9, "channels": 1, "shares": (7, 7)}, 1, 1),
    ]
