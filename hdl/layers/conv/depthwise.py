"""Depthwise convolution: every channel has a kernel of its own.  Forward engine, error engine, gradient engine.

    y[r, c, n]  = sum over (i, j) of w[n, 0, i, j] * x[r*sh - top + i, c*sw - left + j, n]
    dx[h, v, n] = sum over (i, j) of w[n, 0, i, j] * e[r, c, n]      with h = r*sh - top + i, v = c*sw - left + j
    g[n, 0, i, j] = sum over frames and (r, c) of e[r, c, n] * x[r*sh - top + i, c*sw - left + j, n]

An engine multiplies one `Tile` of weights a cycle: ``po`` channels, ``pk`` taps of each (``pi`` is 1).  The three
engines share the tile, so weights and gradients stream in the order in which they are stored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np
from myhdl import block

from hdl.engine.arithmetic.mac import operand_bits, tree_levels
from hdl.engine.window.channelwise import ChannelShape, channel_convolution, channel_gradient
from hdl.engine.window.gradient import FLUSH, GradientShape
from hdl.engine.window.strips import WEIGHT_LATENCY, adapter_cycles, gradient_strips, result_strips
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import WeightSteps
from hdl.errors import FoldingError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack
from hdl.layers.conv.dense import PIPELINE, waiting_cycles
from hdl.layers.folding import divisors, lanes_for, weight_lanes
from hdl.layers.meaning import State, Tape
from hdl.layers.storage import Memory
from hdl.layers.versions import by_version
from hdl.layers.windowed import _Windowed
from hdl.parts.catalogue import DEFAULT_PARTS
from hdl.parts.part import Part, block_share
from hdl.random_bits import hash32, high_half, requantise_stochastically, tensor_key
from hdl.recipe import Recipe
from hdl.stream import Stream
from hdl.strips import Strips
from hdl.tensor import Kind, Port, Tensor, Tile

DATA = Fixed(16, 8)
WEIGHT = Fixed(16, 12)
ERROR = Fixed(16, 12)


@dataclass(frozen=True, kw_only=True)
class _DepthwiseEngine(_Windowed):
    """What the three engines share: dimensions and weight tile."""

    recipe: Recipe = field(default_factory=Recipe)
    # elements a beat of weights or gradients
    w_lanes: int = 1
    tile: Tile = field(default_factory=Tile)

    def __post_init__(self) -> None:
        self.check_shape()
        if not self._buildable(self.tile):
            raise FoldingError(
                f"{self.name}, stride {self.stride}: tile {self.tile} is impossible; po must divide the channels, "
                f"pi be 1, pk be one of {self._tap_groups()}"
            )
        if self.w_lanes < 1 or self.tile.size % self.w_lanes:
            raise FoldingError(f"{self.name}: {self.w_lanes} weight lanes do not divide a tile of {self.tile.size}")

    # ---- dimensions

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Shape of the weights, as ONNX writes it."""
        return (self.channels, 1, *self.kernel)

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.channels * self.window.taps

    @property
    def words(self) -> int:
        """Tiles in all weights."""
        return self.weights // self.tile.size

    @property
    def multipliers(self) -> int:
        """Multipliers built."""
        return self.tile.size

    @property
    def macs(self) -> int:
        """Multiplications a frame, those with padding counted."""
        return self.kernel_macs

    def stream_order(self, port: str) -> IntArray | None:
        """Weights and gradients flow tile by tile."""
        return self.tile.order(self.weight_shape) if self.port(port).tensor.kind.per_batch else None

    # ---- folding

    def _tap_groups(self) -> list[int]:
        return self.tap_groups(transposed=False)

    def _buildable(self, tile: Tile) -> bool:
        return tile.pi == 1 and tile.po > 0 and self.channels % tile.po == 0 and tile.pk in self._tap_groups()

    def walk_of(self, tile: Tile) -> Walk:
        """The order of work with that tile."""
        return self.channel_walk(tile.po, tile.pk, transposed=False)

    @property
    def walk(self) -> Walk:
        """The order of work."""
        return self.walk_of(self.tile)

    def _frame_ports(self) -> tuple[Port, ...]:
        return tuple(port for port in (*self.sinks, *self.sources) if not port.tensor.kind.per_batch)

    @property
    def cycles_per_frame(self) -> int:
        """One tile a cycle, but no faster than any port, nor than one word of the stored map a cycle."""
        walk = self.walk
        return max(walk.cycles, walk.words, *(port.beats for port in self._frame_ports()))

    def _row_beats(self, port: str) -> int:
        """Cycles in which a row of the stored map arrives."""
        found = self.port(port)
        return max(found.beats // found.tensor.shape[0], self.walk.row_words)

    def tiles(self, cycles: int, parts: Sequence[Part] = DEFAULT_PARTS) -> Iterator[Tile]:
        """Every tile with at most ``cycles`` a frame; fewest multipliers, then least memory."""
        return (tile for tile in self._ordered(parts) if self.suits(tile, cycles))

    def suits(self, tile: Tile, cycles: int) -> bool:
        """Whether a tile is one of `tiles`: neither it nor any port is slower."""
        slowest_port = max(port.tensor.elements // self.channels for port in self._frame_ports())
        return max(slowest_port, self._paces.get(tile, math.inf)) <= cycles

    def least_cycles(self, tile: Tile) -> int | None:
        """As its tile and its widest ports allow."""
        if tile not in self._paces:
            return None
        return max(self._paces[tile], *(port.tensor.elements // self.channels for port in self._frame_ports()))

    @cached_property
    def _paces(self) -> dict[Tile, int]:
        """Every tile -> cycles a frame with it if no port is slower."""
        found = {}
        for po in divisors(self.channels):
            for pk in self._tap_groups():
                tile = Tile(po, 1, pk)
                walk = self.walk_of(tile)
                found[tile] = max(walk.cycles, walk.words)
        return found

    @cached_property
    def _orders(self) -> dict[tuple[str, ...], list[Tile]]:
        """What `_ordered` found before, by names of parts."""
        return {}

    def _ordered(self, parts: Sequence[Part]) -> list[Tile]:
        """The tiles in the order of `tiles`."""
        names = tuple(part.name for part in parts)
        if names not in self._orders:
            ranks = [(tile.size, self._memory_share(tile, parts), tile) for tile in self._paces]
            self._orders[names] = [tile for *_, tile in sorted(ranks)]
        return self._orders[names]

    def _memory_share(self, tile: Tile, parts: Sequence[Part]) -> Fraction:
        """Memory blocks of the weights and of the ring, which every parallel tap reads a copy of."""
        ring = (self.kernel[0] + 1) * self.walk_of(tile).row_words
        weights = block_share(parts, 2 * (self.weights // tile.size), tile.size * 16)
        return weights + tile.pk * block_share(parts, ring, tile.po * 16)

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The variant with this tile and the fewest lanes for ``cycles`` a frame."""
        if tile is None:
            tile = next(self.tiles(cycles), None)
        lanes = {
            f"{port.name}_lanes": lanes_for(port.tensor.elements, self.channels, cycles) for port in self._frame_ports()
        }
        if tile is not None:
            w_lanes = weight_lanes(self.weights, tile.size, cycles)
            folded = dataclasses.replace(self, tile=tile, w_lanes=w_lanes, **lanes)  # type: ignore[arg-type]
            if folded.cycles_per_frame <= cycles:
                return folded
        raise FoldingError(
            f"{self.name}, stride {self.stride}: {tile or 'no tile'} manages {cycles} cycles a frame; allow more cycles"
        )

    @property
    def weight_cycles(self) -> int:
        """Through the width adapter into the buffer."""
        return WEIGHT_LATENCY + adapter_cycles(self.w_lanes, self.tile.size)

    def _result_strips(self, stored: str, source: str) -> Strips:
        """Strips of the forward or the error engine."""
        stores, gives = ({name: (self.port(name), self.tile.po)} for name in (stored, source))
        return result_strips(self.walk, stores, gives, 2 + tree_levels(self.tile.pk))

    # ---- weights

    def _weight_memory(self, fixed: Fixed) -> tuple[Memory, ...]:
        return (Memory("weights", 2 * self.words, self.tile.size * fixed.width),)

    def _weight_images(self, state: State, fixed: Fixed) -> dict[str, list[int]]:
        """Both halves of the weight buffer at the start: version 0, then nothing."""
        codes = state["initial"].reshape(-1)[self.tile.order(self.weight_shape)]
        return {"weights": pack(codes, fixed.width, self.tile.size) + [0] * self.words}

    def _channel_shape(self, stored: str, operand: Fixed, weight: Fixed, result: Fixed) -> ChannelShape:
        """What the forward and the error engine are built from; ``stored`` is the port of the stored map."""
        wide = self.kernel[1] // self.parallel_taps(self.tile.pk)[1]
        return ChannelShape(
            walk=self.walk,
            lanes=self.tile.po,
            operand=operand,
            weight=weight,
            weights=WeightSteps(repeat=self.window.taps // self.tile.pk, reduce=0, tap_row=wide, tap_column=1),
            words=self.words,
            ring_rows=self.walk.ring_rows(self._row_beats(stored), self.cycles_per_frame),
            shift=operand.fraction_bits + weight.fraction_bits - result.fraction_bits,
            result=result,
            recipe=self.recipe,
        )

    def _by_tap(self, weights: Any) -> Any:
        """Weights as (taps, channels)."""
        return weights.reshape(self.channels, self.window.taps).T


@dataclass(frozen=True, kw_only=True)
class DepthwiseConv(_DepthwiseEngine):
    """The forward engine: sinks ``x`` and ``w`` (channels, 1, kh, kw), source ``y``.

    Sums are exact, rounded once to nearest and saturated.  Holds a few rows of x and two versions of the weights."""

    x_lanes: int = 1
    y_lanes: int = 1
    # distinguishes the random bits of this layer's gradient from others
    tensor_id: int = 0
    x_fixed: Fixed = DATA
    w_fixed: Fixed = WEIGHT
    y_fixed: Fixed = DATA

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x, w."""
        return (
            Port("x", Tensor(self.input_shape, self.x_fixed, Kind.ACTIVATION), self.x_lanes),
            Port("w", Tensor(self.weight_shape, self.w_fixed, Kind.WEIGHT), self.w_lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """y."""
        return (Port("y", Tensor(self.output_shape, self.y_fixed, Kind.ACTIVATION), self.y_lanes),)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Work on an output row starts when all input rows that it needs are there."""
        del source
        return {"x": self.stored_required(self.walk, elements)}

    @property
    def pipeline_cycles(self) -> int:
        """The work of all rows that one input row may have held up, and the pipeline."""
        return waiting_cycles(self.walk) + PIPELINE

    @property
    def strips(self) -> Strips:
        """Rows of y."""
        return self._result_strips("x", "y")

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps the initial weights for the memory image."""
        return {"initial": self.w_fixed.encode(parameters["w"])}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sums, rounded once."""
        total = self._sums(state, inputs["x"], inputs["w"])
        return {"y": requantise(total, self.x_fixed.fraction_bits + self.w_fixed.fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        return {"y": self._sums(state, inputs["x"], inputs["w"])}

    def _sums(self, state: State, x: Any, w: Any) -> Any:
        result = np.empty((len(x), *self.output_shape), x.dtype)
        for part, version in by_version(state, w, self.recipe):
            result[part] = np.einsum("fhwtc,tc->fhwc", self.window.patches(x[part]), self._by_tap(version))
        return result

    def backward(self, tape: Tape) -> None:
        """Gradient engine on the stashed x, error engine on the updated weights."""
        shared = {name: getattr(self, name) for name in SHARED_FIELDS}
        error = tape.error("y")
        summing = DepthwiseConvGradient(**shared, x_fixed=self.x_fixed, tensor_id=self.tensor_id)
        weights = tape.learn("w", tape.add("gradient", summing, {"x": tape.value("x"), "e": error})["g"])
        if tape.needs_error("x"):
            engine = DepthwiseConvError(**shared, w_fixed=self.w_fixed)
            tape.give_error("x", tape.add("error", engine, {"e": error, "w": weights})["dx"])

    def memories(self) -> tuple[Memory, ...]:
        """Two versions of the weights."""
        return self._weight_memory(self.w_fixed)

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0 in the first half."""
        return self._weight_images(state, self.w_fixed)

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """See `hdl.engine.window.channelwise`."""
        shape = self._channel_shape("x", self.x_fixed, self.w_fixed, self.y_fixed)
        contents = (images or {}).get("weights")
        return depthwise_forward(clk, rst, streams["x"], streams["w"], streams["y"], shape=shape, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Kernels, strides, paddings, tiles and versions of weights."""
        return tuple(cls(**example, x_lanes=x, y_lanes=y) for example, x, y in example_fields())


@dataclass(frozen=True, kw_only=True)
class DepthwiseConvError(_DepthwiseEngine):
    """The error engine: sinks ``e`` and ``w``, source ``dx``.

    Visits only taps that exist for the pixel at hand; with a stride along an axis, its taps are not parallel."""

    e_lanes: int = 1
    dx_lanes: int = 1
    e_fixed: Fixed = ERROR
    w_fixed: Fixed = WEIGHT
    dx_fixed: Fixed = ERROR

    @property
    def sinks(self) -> tuple[Port, ...]:
        """e, w."""
        return (
            Port("e", Tensor(self.output_shape, self.e_fixed, Kind.ERROR), self.e_lanes),
            Port("w", Tensor(self.weight_shape, self.w_fixed, Kind.WEIGHT), self.w_lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """dx."""
        return (Port("dx", Tensor(self.input_shape, self.dx_fixed, Kind.ERROR), self.dx_lanes),)

    def _tap_groups(self) -> list[int]:
        return self.tap_groups(transposed=True)

    def walk_of(self, tile: Tile) -> Walk:
        """Pixels of dx."""
        return self.channel_walk(tile.po, tile.pk, transposed=True)

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Work on a row of dx starts when all rows of e that it needs are there."""
        del source
        return {"e": self.stored_required(self.walk, elements)}

    @property
    def pipeline_cycles(self) -> int:
        """The work of all rows that one row of e may have held up, and the pipeline."""
        return waiting_cycles(self.walk) + PIPELINE

    @property
    def strips(self) -> Strips:
        """Rows of dx."""
        return self._result_strips("e", "dx")

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps the initial weights for the memory image."""
        return {"initial": self.w_fixed.encode(parameters["w"])}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sums, rounded once."""
        total = self._sums(state, inputs["e"], inputs["w"])
        return {"dx": requantise(total, self.e_fixed.fraction_bits + self.w_fixed.fraction_bits, self.dx_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        return {"dx": self._sums(state, inputs["e"], inputs["w"])}

    def _sums(self, state: State, e: Any, w: Any) -> Any:
        result = np.empty((len(e), *self.input_shape), e.dtype)
        for part, version in by_version(state, w, self.recipe):
            result[part] = self.window.scatter(e[part][:, :, :, None] * self._by_tap(version))
        return result

    def memories(self) -> tuple[Memory, ...]:
        """Two versions of the weights."""
        return self._weight_memory(self.w_fixed)

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0 in the first half."""
        return self._weight_images(state, self.w_fixed)

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """See `hdl.engine.window.channelwise`."""
        shape = self._channel_shape("e", self.e_fixed, self.w_fixed, self.dx_fixed)
        contents = (images or {}).get("weights")
        return depthwise_error(clk, rst, streams["e"], streams["w"], streams["dx"], shape=shape, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of the forward engine, with taps in parallel only along axes without stride."""
        found = []
        for example, x, y in example_fields():
            if example.get("stride", (1, 1)) != (1, 1):
                example |= {"tile": Tile(example["tile"].po), "w_lanes": 1}
            found.append(cls(**example, e_lanes=y, dx_lanes=x))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class DepthwiseConvGradient(_DepthwiseEngine):
    """The gradient engine: sinks ``x`` and ``e`` a frame, source ``g`` once a batch.

    The sum over all frames of a batch is exact, then rounded stochastically (with the batch number as step) and
    saturated.  The engine rests for `drain_cycles` at the end of each batch while the sums leave."""

    x_lanes: int = 1
    e_lanes: int = 1
    # distinguishes the random bits of this tensor from others
    tensor_id: int = 0
    x_fixed: Fixed = DATA
    e_fixed: Fixed = ERROR
    g_fixed: Fixed = DATA

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x (waits as a stash for its error), e."""
        return (
            Port("x", Tensor(self.input_shape, self.x_fixed, Kind.STASH), self.x_lanes),
            Port("e", Tensor(self.output_shape, self.e_fixed, Kind.ERROR), self.e_lanes),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        """g."""
        return (Port("g", Tensor(self.weight_shape, self.g_fixed, Kind.GRADIENT), self.w_lanes),)

    @property
    def drain_cycles(self) -> int:
        """Cycles for which the engine rests after each batch while its sums leave, if ``g`` doesn't stall."""
        return FLUSH + 2 + (self.words - 1) * (self.tile.size // self.w_lanes)

    @property
    def pipeline_cycles(self) -> int:
        """From the last input of a batch to its first gradients: the work of a row, and the pipeline."""
        return waiting_cycles(self.walk) + PIPELINE

    @property
    def strips(self) -> Strips:
        """Rows of e; an error waits until its row is at work."""
        x, e, g = (self.port(name) for name in ("x", "e", "g"))
        lanes = self.tile.po
        return gradient_strips(self.walk, (x, lanes), (e, lanes), (g, self.tile.size), self.drain_cycles, self.words)

    @property
    def sum_bits(self) -> int:
        """Bits of an exact sum over a batch."""
        terms = self.recipe.batch * math.prod(self.window.output)
        return operand_bits(self.x_fixed) + operand_bits(self.e_fixed) + (terms - 1).bit_length()

    @property
    def key(self) -> int:
        """Key of the random bits."""
        return tensor_key(self.recipe.seed, self.tensor_id)

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Counts batches."""
        del parameters
        return {"batch": 0}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The exact sum over the batch, rounded stochastically."""
        index = np.arange(self.weights, dtype=np.int64).reshape(self.weight_shape)
        random = high_half(hash32(index, state["batch"], self.key))
        state["batch"] += 1
        fraction_bits = self.x_fixed.fraction_bits + self.e_fixed.fraction_bits
        return {"g": requantise_stochastically(self._sums(inputs), fraction_bits, self.g_fixed, random)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"g": self._sums(inputs)}

    def _sums(self, inputs: Mapping[str, Any]) -> Any:
        total = np.einsum("fhwtc,fhwc->ct", self.window.patches(inputs["x"]), inputs["e"])
        return total.reshape(self.weight_shape)

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """See `hdl.engine.window.channelwise`."""
        del images
        shape = GradientShape(
            walk=self.walk,
            tile=self.tile,
            weight_shape=self.weight_shape,
            words=self.words,
            ring_rows=self.walk.ring_rows(self._row_beats("x"), self.cycles_per_frame),
            x=self.x_fixed,
            e=self.e_fixed,
            g=self.g_fixed,
            sum_bits=self.sum_bits,
            shift=self.x_fixed.fraction_bits + self.e_fixed.fraction_bits - self.g_fixed.fraction_bits,
            batch=self.recipe.batch,
            lanes=self.w_lanes,
            key=self.key,
        )
        return depthwise_gradient(clk, rst, streams["x"], streams["e"], streams["g"], shape=shape)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of the forward engine."""
        return tuple(cls(**example, x_lanes=x, e_lanes=y, tensor_id=7) for example, x, y in example_fields())


@block
def depthwise_forward(
    clk: Any, rst: Any, x: Stream, w: Stream, y: Stream, *, shape: ChannelShape, contents: Sequence[int] | None
) -> Any:
    """The forward circuit."""
    return channel_convolution(clk, rst, x, w, y, shape=shape, contents=contents)


@block
def depthwise_error(
    clk: Any, rst: Any, e: Stream, w: Stream, dx: Stream, *, shape: ChannelShape, contents: Sequence[int] | None
) -> Any:
    """The error circuit."""
    return channel_convolution(clk, rst, e, w, dx, shape=shape, contents=contents)


@block
def depthwise_gradient(clk: Any, rst: Any, x: Stream, e: Stream, g: Stream, *, shape: GradientShape) -> Any:
    """The gradient circuit."""
    return channel_gradient(clk, rst, x, e, g, shape=shape)


# fields that mean the same in all engines of a depthwise convolution
SHARED_FIELDS = ("height", "width", "channels", "kernel", "stride", "padding", "recipe", "tile", "w_lanes")


def example_fields() -> list[tuple[dict[str, Any], int, int]]:
    """(fields, lanes of x, lanes of y) for the suite: kernels, strides, paddings, tiles, staleness."""
    plain, stale = Recipe(batch=2), Recipe(batch=2, staleness=1)
    same = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
    return [
        ({"height": 4, "width": 3, "channels": 2, **same, "recipe": plain, "tile": Tile()}, 1, 1),
        ({"height": 3, "width": 4, "channels": 4, **same, "recipe": stale, "tile": Tile(2, 1, 3), "w_lanes": 2}, 2, 4),
        ({"height": 5, "width": 5, "channels": 2, **same, "stride": (2, 2), "recipe": stale, "tile": Tile(2)}, 2, 1),
        ({"height": 3, "width": 3, "channels": 3, **same, "recipe": plain, "tile": Tile(1, 1, 9), "w_lanes": 3}, 1, 3),
        (
            {
                "height": 4,
                "width": 5,
                "channels": 2,
                "kernel": (2, 3),
                "stride": (1, 2),
                "padding": (0, 1, 1, 0),
                "recipe": plain,
                "tile": Tile(2, 1, 3),
                "w_lanes": 6,
            },
            1,
            2,
        ),
        ({"height": 1, "width": 1, "channels": 4, "kernel": (1, 1), "recipe": stale, "tile": Tile(4)}, 2, 4),
    ]
