"""Max pool: the largest value of each window and channel, and the index of the tap it came from for the way back.

    y[r, c, n]     = max over (i, j) of x[r*sh - top + i*dh, c*sw - left + j*dw, n]
    index[r, c, n] = the first (i, j), as i * kw + j, that attains it
    dx[h, v, n]    = sum of e[r, c, n] over the windows (r, c) whose index points at (h, v)

Taps outside the map don't take part.  Backwards every pixel gathers the errors of the windows that cover it, so nothing
but a few rows is kept and overlapping windows sum exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from myhdl import block

from hdl.engine.arithmetic.requantise import REQUANTISE_LATENCY
from hdl.engine.window.pool import PoolShape, pool, pool_error
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.meaning import State, Tape
from hdl.layers.pool.base import ERROR, WINDOW_FIELDS, PoolOfMap, WindowPool, WindowPoolError
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor, Tile

DATA = Fixed(16, 8)


@dataclass(frozen=True, kw_only=True)
class _MaxPool(WindowPool):
    """What both directions share."""

    @property
    def index_fixed(self) -> Fixed:
        """Format of the index."""
        return Fixed(max(1, (self.window.taps - 1).bit_length()), 0, signed=False)

    def _pool_shape(self, stored: str, operand: Fixed, result: Fixed) -> PoolShape:
        """What the engine is built from; ``stored`` is the port of the stored map."""
        return PoolShape(
            walk=self.walk,
            lanes=self.engine_lanes,
            kernel_taps=self.window.taps,
            kernel_columns=self.kernel[1],
            ring_rows=self.ring_rows(stored),
            operand=operand,
            index=self.index_fixed,
            result=result,
            shift=operand.fraction_bits - result.fraction_bits,
        )


@dataclass(frozen=True, kw_only=True)
class MaxPool(_MaxPool, PoolOfMap):
    """Sink ``x``; sources ``y`` in the format of x, and the stash ``index``."""

    x_lanes: int = 1
    # of y and index
    y_lanes: int = 1
    x_fixed: Fixed = DATA

    @property
    def rounding_cycles(self) -> int:
        """The largest value is one of those compared."""
        return 0

    @property
    def sources(self) -> tuple[Port, ...]:
        """y, index."""
        return (
            Port("y", Tensor(self.output_shape, self.x_fixed, Kind.ACTIVATION), self.y_lanes),
            Port("index", Tensor(self.output_shape, self.index_fixed, Kind.STASH), self.y_lanes),
        )

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest comparisons a cycle."""
        del tile
        return self.fold_with(cycles, {"x_lanes": self.input_shape, "y_lanes": self.output_shape})

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Work on an output row starts when all input rows that it needs are there."""
        return {"x": self.rows_required("x", source, elements)}

    def sample(self, port: str, rng: np.random.Generator, count: int) -> IntArray:
        """Many equal values, and windows of nothing but the least code."""
        codes = super().sample(port, rng, count)
        few = rng.integers(0, 2, codes.shape) + rng.choice([self.x_fixed.low, 0], (count, *codes.shape[1:3], 1))
        return np.where(rng.random((count, 1, 1, 1)) < 0.5, codes, np.where(rng.random() < 0.5, few, few.min()))

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The first of the largest."""
        del state
        return self._pool(inputs["x"], self.x_fixed.low - 1)

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return self._pool(inputs["x"], -np.inf)

    def _pool(self, x: Any, outside: float) -> dict[str, Any]:
        patches = self.window.patches(x)
        if self._outside is not None:
            patches = np.where(self._outside, outside, patches).astype(x.dtype)
        return {"y": patches.max(axis=3), "index": patches.argmax(axis=3).astype(x.dtype)}

    @cached_property
    def _outside(self) -> Any:
        """Where patches lie outside the map; None if nowhere."""
        outside = self.window.patches(np.ones((1, *self.input_shape), np.int64)) == 0
        return outside if outside.any() else None

    def backward(self, tape: Tape) -> None:
        """Gather the errors."""
        if tape.needs_error("x"):
            shared = {name: getattr(self, name) for name in ("height", "width", "channels", *WINDOW_FIELDS)}
            inputs = {"e": tape.error("y"), "index": tape.value("index")}
            tape.give_error("x", tape.add("error", MaxPoolError(**shared), inputs)["dx"])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.pool`."""
        del images
        shape = self._pool_shape("x", self.x_fixed, self.x_fixed)
        return max_pool(domain, streams["x"], streams["y"], streams["index"], shape=shape)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Windows side by side and overlapping, padding, lanes, taps in parallel, the whole map."""
        return tuple(cls(**example, engine_taps=taps, x_lanes=x, y_lanes=y) for example, taps, x, y in example_fields())


@dataclass(frozen=True, kw_only=True)
class MaxPoolError(WindowPoolError, _MaxPool):
    """Sinks ``e`` and ``index``, source ``dx``: exact sums over overlapping windows, rounded once, saturated."""

    @property
    def rounding_cycles(self) -> int:
        """Of sums."""
        return REQUANTISE_LATENCY

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, index."""
        return (
            Port("e", Tensor(self.output_shape, self.e_fixed, Kind.ERROR), self.e_lanes),
            Port("index", Tensor(self.output_shape, self.index_fixed, Kind.STASH), self.e_lanes),
        )

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The fewest additions a cycle."""
        del tile
        return self.fold_with(cycles, {"e_lanes": self.output_shape, "dx_lanes": self.input_shape})

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Work on a row of dx starts when all rows of e and index that it needs are there."""
        needed = self.rows_required("e", source, elements)
        return {"e": needed, "index": needed}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sums, rounded once."""
        del state
        return {"dx": requantise(self._gather(inputs), self.e_fixed.fraction_bits, self.dx_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"dx": self._gather(inputs)}

    def _gather(self, inputs: Mapping[str, Any]) -> Any:
        taps = np.arange(self.window.taps)[:, None]
        chosen = inputs["index"][:, :, :, None] == taps
        return self.window.scatter(np.where(chosen, inputs["e"][:, :, :, None], 0))

    def sample(self, port: str, rng: np.random.Generator, count: int) -> IntArray:
        """Indices point at taps inside the map, as the forward engine's do."""
        if port != "index":
            return super().sample(port, rng, count)
        inside = self.window.patches(np.ones((1, *self.input_shape), np.int64))
        return np.asarray((rng.random((count, *inside.shape[1:])) * inside).argmax(axis=3), np.int64)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.pool`."""
        del images
        shape = self._pool_shape("e", self.e_fixed, self.dx_fixed)
        return max_pool_error(domain, streams["e"], streams["index"], streams["dx"], shape=shape)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As forwards, with taps in parallel only along axes without stride; rounding."""
        found = []
        for number, (example, taps, x, y) in enumerate(example_fields()):
            taps = taps if example["stride"] == (1, 1) else 1
            dx = Fixed(16, 10) if number == 1 else ERROR
            found.append(cls(**example, engine_taps=taps, e_lanes=y, dx_lanes=x, dx_fixed=dx))
        return tuple(found)


@block
def max_pool(domain: ClockReset, x: Stream, y: Stream, index: Stream, *, shape: PoolShape) -> Instances:
    """The forward circuit.

    Ports:
        x: in, stream of codes of ``shape.operand``, any number a beat.
        y: out, stream of codes of ``shape.operand``, any number a beat.
        index: out, stream of codes of ``shape.index``, as many a beat.
    """
    return pool(domain, x, y, index, shape=shape)


@block
def max_pool_error(domain: ClockReset, e: Stream, index: Stream, dx: Stream, *, shape: PoolShape) -> Instances:
    """The error circuit.

    Ports:
        e: in, stream of codes of ``shape.operand``, any number a beat.
        index: in, stream of codes of ``shape.index``, as many a beat.
        dx: out, stream of codes of ``shape.result``, any number a beat.
    """
    return pool_error(domain, e, index, dx, shape=shape)


def example_fields() -> list[tuple[dict[str, Any], int, int, int]]:
    """(fields, taps a cycle, lanes of x, lanes of y) for the suite."""
    same = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
    return [
        ({"height": 4, "width": 4, "channels": 2, "kernel": (2, 2), "stride": (2, 2)}, 1, 1, 1),
        ({"height": 5, "width": 4, "channels": 4, **same, "stride": (2, 2), "engine_lanes": 2}, 3, 2, 1),
        ({"height": 3, "width": 4, "channels": 2, **same, "stride": (1, 1), "engine_lanes": 2}, 9, 1, 2),
        ({"height": 3, "width": 5, "channels": 3, "kernel": (2, 3), "stride": (1, 1), "engine_lanes": 3}, 3, 3, 1),
        ({"height": 2, "width": 3, "channels": 2, "kernel": (2, 3), "stride": (1, 1)}, 6, 1, 2),
        ({"height": 1, "width": 1, "channels": 1, "kernel": (1, 1), "stride": (1, 1)}, 1, 1, 1),
        ({"height": 5, "width": 5, "channels": 1, "kernel": (2, 2), "stride": (3, 3)}, 2, 1, 1),
        ({"height": 5, "width": 6, "channels": 2, **same, "stride": (1, 2), "dilation": (2, 1)}, 3, 1, 2),
    ]
