"""Convolution: forward engine, error engine, gradient engine.

    y[r, c, m]  = sum over (n, i, j) of w[m, n, i, j] * x[r*sh - top + i, c*sw - left + j, n]
    dx[h, v, n] = sum over (m, i, j) of w[m, n, i, j] * e[r, c, m]   with h = r*sh - top + i, v = c*sw - left + j
    g[m, n, i, j] = sum over frames and (r, c) of e[r, c, m] * x[r*sh - top + i, c*sw - left + j, n]

An engine multiplies one `Tile` of weights a cycle: ``po * pi * pk`` products of filters, channels and taps.  The three
engines of one convolution share the tile, so weights and gradients stream in the order in which they are stored.
Weights lie on chip, double-buffered; a fully connected layer is the case whose kernel covers the map (see gemm.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from myhdl import block

from hdl.engine.arithmetic.mac import MacShape, operand_bits, tree_levels
from hdl.engine.window.convolution import EngineShape, convolution
from hdl.engine.window.frame_buffers import REORDER_LATENCY, SHORTEST_PASS, reorder_frames
from hdl.engine.window.gradient import ERRORS, FLUSH, MEMORY_TILES, GradientShape, gradient
from hdl.engine.window.gradient_passes import LEAVE_LATENCY, gradient_passes
from hdl.engine.window.strips import PLACE_FREE, WEIGHT_LATENCY, adapter_cycles, gradient_strips, result_strips
from hdl.engine.window.walk import Axis, Walk
from hdl.engine.window.walker import WeightSteps
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed, FloatArray, IntArray, requantise
from hdl.layers.base import Layer
from hdl.layers.beats import pack
from hdl.layers.conv.patches import Window, correlate, correlate_error, correlate_gradient
from hdl.layers.folding import divisors, lanes_for, weight_lanes
from hdl.layers.meaning import State, Tape
from hdl.layers.storage import Home, Memory, Ring
from hdl.layers.versions import by_version
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
class _ConvEngine(Layer):
    """What the three engines of a convolution share: its dimensions and its weight tile."""

    # of the forward layer's input map
    height: int
    width: int
    channels: int
    filters: int
    # rows, columns
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    # top, left, bottom, right
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    recipe: Recipe = field(default_factory=Recipe)
    # elements a beat of weights or gradients
    w_lanes: int = 1
    tile: Tile = field(default_factory=Tile)
    # of weights (two versions), or of the sums of their gradients; PARKED: one version is here, and the next one comes
    # when it is out of use; from DRAM, ``w`` brings each frame's version once a frame, in the same stream order
    weights: Home = Home.ON_CHIP

    def __post_init__(self) -> None:
        name = f"{type(self).__name__} {self.height}x{self.width}x{self.channels} -> {self.filters}"
        if min(self.height, self.width, self.channels, self.filters, *self.kernel, *self.stride) < 1:
            raise ShapeError(f"{name}: dimensions, kernel {self.kernel} and stride {self.stride} must be positive")
        if min(self.padding) < 0 or min(self.window.output) < 1:
            raise ShapeError(
                f"{name}: kernel {self.kernel} with padding {self.padding} does not fit the map; "
                "make the padding (none negative) or the map larger"
            )
        if not self._buildable(self.tile):
            raise FoldingError(
                f"{name}, kernel {self.kernel}, stride {self.stride}: tile {self.tile} is impossible; "
                f"po must divide the filters, pi the channels, pk be one of {self._tap_groups()}"
                + (f", a pass over the map last {SHORTEST_PASS} cycles" if self.streamed else "")
            )
        if self.tile.size % self.w_lanes:
            raise FoldingError(f"{name}: {self.w_lanes} weight lanes do not divide a tile of {self.tile.size} weights")

    # ---- dimensions

    @property
    def window(self) -> Window:
        """The kernel on the forward layer's input map."""
        return Window(self.height, self.width, self.kernel, self.stride, self.padding)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of the forward layer's input."""
        return self.height, self.width, self.channels

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Shape of the forward layer's output."""
        return (*self.window.output, self.filters)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Shape of the weights, as ONNX writes it."""
        return (self.filters, self.channels, *self.kernel)

    @property
    def weight_count(self) -> int:
        """Number of weights."""
        return math.prod(self.weight_shape)

    @property
    def words(self) -> int:
        """Tiles in all weights."""
        return self.weight_count // self.tile.size

    @property
    def multipliers(self) -> int:
        """Multipliers built."""
        return self.tile.size

    @property
    def macs(self) -> int:
        """Multiplications a frame, those with padding counted."""
        return math.prod(self.output_shape) * self.channels * self.window.taps

    def stream_order(self, port: str) -> IntArray | None:
        """Weights and gradients flow tile by tile."""
        return self.tile.order(self.weight_shape) if self.port(port).tensor.kind.per_batch else None

    @property
    def streamed(self) -> bool:
        """Whether weights come once a frame."""
        return self.weights is Home.DRAM

    def at(self, home: Home) -> Self | None:
        """Weights, or sums of gradients, there; DRAM needs a tile that leaves a pass over the map long enough."""
        try:
            return dataclasses.replace(self, weights=home)
        except FoldingError:
            return None

    @property
    def versions(self) -> int:
        """Versions of the weights on chip, unless they come once a frame."""
        return 1 if self.weights is Home.PARKED else 2

    @property
    def load_cycles(self) -> int:
        """Cycles for which the engine rests once a batch while it takes the next version in place of the one before, if
        ``w`` doesn't stall."""
        return LOAD_LATENCY + self.weight_count // self.w_lanes if self.weights is Home.PARKED else 0

    @property
    def pass_words(self) -> int:
        """Weight words that the engine uses between two claims of weights."""
        return self.words // (self.filters // self.tile.po) if self.streamed else self.words

    def _slots(self) -> int:
        """Passes for which the weight buffer must have room so that weights never wait for one another."""
        if not self.streamed:
            return self.versions
        # in frames times passes, so that nothing is rounded
        passes = self.filters // self.tile.po
        arrive = self.weight_count // self.w_lanes
        return reorder_frames(self.walk.cycles, arrive, PASS_LATENCY * passes, self.cycles_per_frame)

    # ---- folding

    def _tap_groups(self) -> list[int]:
        return sorted({1, self.kernel[1], self.window.taps})

    def _buildable(self, tile: Tile) -> bool:
        fits = self.filters % tile.po == 0 and self.channels % tile.pi == 0
        if not fits or min(tile.po, tile.pi) < 1 or tile.pk not in self._tap_groups():
            return False
        return not self.streamed or self.walk_of(tile).cycles // (self.filters // tile.po) >= SHORTEST_PASS

    def _parallel_taps(self, tile: Tile) -> tuple[int, int]:
        if tile.pk == self.window.taps:
            return self.kernel
        return 1, tile.pk

    def walk_of(self, tile: Tile) -> Walk:
        """The order of work with that tile."""
        raise NotImplementedError

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
        """Every tile with at most ``cycles`` a frame; fewest multipliers, then least memory wasted by odd widths, then
        the least lanes of maps (each engine stores and reads one of them ``po`` or ``pi`` lanes wide)."""
        return (tile for tile in self._ordered(parts) if self.suits(tile, cycles))

    def suits(self, tile: Tile, cycles: int) -> bool:
        """Whether a tile is one of `tiles`: neither it nor any port is slower."""
        if self._paces.get(tile, math.inf) > cycles:
            return False
        if any(port.tensor.elements // port.tensor.shape[-1] > cycles for port in self._frame_ports()):
            return False
        return self._with(tile, cycles).cycles_per_frame <= cycles

    def least_cycles(self, tile: Tile) -> int | None:
        """As its tile and its widest ports allow."""
        if tile not in self._paces:
            return None
        return max(self._paces[tile], *(port.tensor.elements // port.tensor.shape[-1] for port in self._frame_ports()))

    @cached_property
    def _paces(self) -> dict[Tile, int]:
        """Every tile that can be built -> cycles a frame with it if no port is slower."""
        found = {}
        for po in divisors(self.filters):
            for pi in divisors(self.channels):
                for pk in self._tap_groups():
                    tile = Tile(po, pi, pk)
                    if self._buildable(tile):
                        walk = self.walk_of(tile)
                        pace = max(walk.cycles, walk.words)
                        found[tile] = pace
        return found

    @cached_property
    def _orders(self) -> dict[tuple[str, ...], list[Tile]]:
        """What `_ordered` found before, by names of parts."""
        return {}

    def _ordered(self, parts: Sequence[Part]) -> list[Tile]:
        """The tiles in the order of `tiles`."""
        names = tuple(part.name for part in parts)
        if names not in self._orders:
            ranks = [(tile.size, self._memory_share(tile, parts), tile.po + tile.pi, tile) for tile in self._paces]
            self._orders[names] = [tile for *_, tile in sorted(ranks)]
        return self._orders[names]

    def _with(self, tile: Tile, cycles: int) -> Self:
        """This engine with that tile and the lanes for ``cycles``."""
        lanes = {
            f"{port.name}_lanes": lanes_for(port.tensor.elements, port.tensor.shape[-1], cycles)
            for port in self._frame_ports()
        }
        # streamed weights of a pass must be there a few cycles before it, and its gradients leave a few cycles later
        slack = 2 * SHORTEST_PASS * (self.filters // tile.po) if self.streamed else 0
        wanted = self._loading_cycles(cycles) if self.weights is Home.PARKED else cycles - slack
        lanes["w_lanes"] = weight_lanes(self.weight_count, tile.size, wanted)
        return dataclasses.replace(self, tile=tile, **lanes)  # type: ignore[arg-type]

    def _loading_cycles(self, cycles: int) -> int:
        """Cycles in which a version should be taken at that pace: the FIFO of the map holds two rows, and half of one
        is for what comes meanwhile."""
        frame = self._frame_ports()[0].tensor.shape
        return max(1, cycles // (2 * frame[0]) - LOAD_LATENCY)

    def _memory_share(self, tile: Tile, parts: Sequence[Part]) -> Fraction:
        """Memory blocks of the weights (or their sums), to tell apart tiles of one size."""
        return block_share(parts, 2 * (self.weight_count // tile.size), tile.size * 16)

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The variant with this tile and the fewest lanes for ``cycles`` a frame."""
        if tile is None:
            tile = next(self.tiles(cycles), None)
        if tile is not None:
            folded = self._with(tile, cycles)
            rests = -(-folded.load_cycles // self.recipe.batch)
            bridged = folded.load_cycles <= 2 * self._loading_cycles(cycles)
            if folded.cycles_per_frame + rests <= cycles and (bridged or not rests):
                return folded
        raise FoldingError(
            f"{type(self).__name__} {self.input_shape} -> {self.output_shape}, kernel {self.kernel}: "
            f"{tile or 'no tile'} manages {cycles} cycles a frame; allow more cycles"
        )

    @property
    def weight_cycles(self) -> int:
        """Through the width adapter into the buffer."""
        return WEIGHT_LATENCY + adapter_cycles(self.w_lanes, self.tile.size)

    def _result_strips(self, stored: str, stored_word: int, source: str, word: int, frames: int = 0) -> Strips:
        """Strips of an engine with these elements a cycle of the map that it stores, and of its results.

        ``frames``: of results that are put in order."""
        terms = self.tile.size // word
        return result_strips(
            self.walk,
            {stored: (self.port(stored), stored_word)},
            {source: (self.port(source), word)},
            2 + tree_levels(terms),
            load_cycles=self._switch_cycles,
            reordered_words=frames * self.port(source).tensor.elements // word,
        )

    @property
    def _switch_cycles(self) -> int:
        """Between the last operation with a version and the first with the next, of those that lie in one place, if the
        next one waits: its first word stands in front of the place, the others follow through the adapter."""
        if self.weights is not Home.PARKED:
            return 0
        word_cycles = max(Fraction(1), Fraction(self.tile.size, self.w_lanes))
        return PLACE_FREE - 1 + math.ceil((self.words - 1) * word_cycles) + WEIGHT_LATENCY

    # ---- weights by version

    def _weight_images(self, state: State, fixed: Fixed) -> dict[str, list[int]]:
        """Version 0: as beats of ``w`` if weights live outside, else in the first half of the weight buffer."""
        codes = state["initial"].reshape(-1)[self.tile.order(self.weight_shape)]
        if self.streamed:
            return {"w": pack(codes, fixed.width, self.w_lanes)}
        return {"weights": pack(codes, fixed.width, self.tile.size) + [0] * (self.versions - 1) * self.words}

    def _weight_memories(self, fixed: Fixed) -> tuple[Memory, ...]:
        """The versions of the weights, if they live here."""
        if self.streamed:
            return ()
        return (Memory("weights", self.versions * self.words, self.tile.size * fixed.width),)

    @property
    def parked(self) -> Mapping[str, int]:
        """w, if one version lives here."""
        return {"w": self.load_cycles} if self.weights is Home.PARKED else {}


@dataclass(frozen=True, kw_only=True)
class Conv(_ConvEngine):
    """The forward engine: sinks ``x`` and ``w``, source ``y``; formula in the module's docstring.

    Sums are exact, rounded once to nearest and saturated.  Holds a few rows of x (never the whole map unless the kernel
    needs it) and two versions of the weights.
    """

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

    def narrowed(self, filters: int) -> Self:
        """A convolution of fewer filters."""
        return dataclasses.replace(self, filters=filters)

    def summand(self, channels: int) -> Self:
        """A convolution over fewer channels."""
        return dataclasses.replace(self, channels=channels)

    def walk_of(self, tile: Tile) -> Walk:
        """Pixel, filter group, channel group, taps; filter group outermost when weights come once a frame."""
        rows, columns = forward_axes(self, tile)
        return Walk(rows, columns, self.channels // tile.pi, self.filters // tile.po, outer_repeat=self.streamed)

    @property
    def cycles_per_frame(self) -> int:
        """As of every engine; streamed weights must have time too."""
        cycles = super().cycles_per_frame
        return max(cycles, self.port("w").beats) if self.streamed else cycles

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Work on an output row starts when all input rows that it needs are there."""
        del source
        if self.streamed:
            return {"x": math.prod(self.input_shape)}
        return {"x": rows_required(self.walk, elements, self.output_shape, self.input_shape)}

    @property
    def pipeline_cycles(self) -> int:
        """The work of all rows that one input row may have held up, and the pipeline."""
        return waiting_cycles(self.walk) + PIPELINE

    @property
    def strips(self) -> Strips:
        """Rows of y."""
        return self._result_strips("x", self.tile.pi, "y", self.tile.po, self._reordered_frames)

    @property
    def _reordered_frames(self) -> int:
        """Frames of results that streamed weights put in order at a time."""
        leave = max(math.prod(self.output_shape) // self.tile.po, self.port("y").beats)
        latency = REORDER_LATENCY + tree_levels(self.tile.pi * self.tile.pk)
        return reorder_frames(self.walk.cycles, leave, latency, self.cycles_per_frame)

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps the initial weights for the memory image."""
        return {"initial": self.w_fixed.encode(parameters["w"])}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sums, rounded once."""
        x = inputs["x"]
        bound = self.channels * self.window.taps << (self.x_fixed.width + self.w_fixed.width - 1)
        parts = [correlate(self.window, x[part], w, bound) for part, w in by_version(state, inputs["w"], self.recipe)]
        fraction_bits = self.x_fixed.fraction_bits + self.w_fixed.fraction_bits
        return {"y": requantise(np.concatenate(parts), fraction_bits, self.y_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        x = inputs["x"]
        parts = [correlate(self.window, x[part], w) for part, w in by_version(state, inputs["w"], self.recipe)]
        return {"y": np.concatenate(parts)}

    def backward(self, tape: Tape) -> None:
        """Gradient engine on the stashed x, error engine on the updated weights."""
        shared = {name: getattr(self, name) for name in SHARED_FIELDS}
        error = tape.error("y")
        summing = ConvGradient(**shared, x_fixed=self.x_fixed, tensor_id=self.tensor_id)
        summed = tape.add("gradient", summing, {"x": tape.value("x"), "e": error})["g"]
        weights = tape.learn("w", summed)
        if tape.needs_error("x"):
            engine = ConvError(**shared, w_fixed=self.w_fixed)
            tape.give_error("x", tape.add("error", engine, {"e": error, "w": weights})["dx"])

    @property
    def replayed(self) -> tuple[str, ...]:
        """w, if the weights live outside."""
        return ("w",) if self.streamed else ()

    def memories(self) -> tuple[Memory, ...]:
        """The versions of the weights, if they live here."""
        return self._weight_memories(self.w_fixed)

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0: in the first half of the memory, or for ``w``."""
        return self._weight_images(state, self.w_fixed)

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """See `hdl.engine.window.convolution`."""
        tile = self.tile
        walk = self.walk
        shape = EngineShape(
            walk=walk,
            mac=MacShape(tile.po, tile.pi, tile.pk, tile.pi * tile.pk, tile.pk, self.x_fixed, self.w_fixed),
            weights=weight_steps(self, walk),
            words=self.pass_words,
            ring_rows=walk.ring_rows(self._row_beats("x"), self.cycles_per_frame),
            shift=self.x_fixed.fraction_bits + self.w_fixed.fraction_bits - self.y_fixed.fraction_bits,
            result=self.y_fixed,
            recipe=self.recipe,
            slots=self._slots(),
            frames=self._reordered_frames,
        )
        contents = (images or {}).get("weights")
        return conv_forward(clk, rst, streams["x"], streams["w"], streams["y"], shape=shape, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Kernels, strides, paddings, tiles and versions of weights."""
        found = [cls(**example, x_lanes=x, y_lanes=y) for example, x, y in example_fields()]
        return (*found, *_parked_too(found))


@dataclass(frozen=True, kw_only=True)
class ConvError(_ConvEngine):
    """The error engine: sinks ``e`` and ``w``, source ``dx``; formula in the module's docstring.

    Visits only taps that exist for the pixel at hand, so a stride costs no multiplications by inserted zeros; a pixel
    that no output saw costs one cycle.  With a stride along an axis, taps are not parallel along that axis.
    """

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
        groups = {1}
        if self.stride[1] == 1:
            groups.add(self.kernel[1])
            if self.stride[0] == 1:
                groups.add(self.window.taps)
        return sorted(groups)

    def walk_of(self, tile: Tile) -> Walk:
        """Pixel, channel group, filter group, taps; filter group outermost when weights come once a frame."""
        rows, columns = error_axes(self, tile)
        filters, channels = self.filters // tile.po, self.channels // tile.pi
        if self.streamed:
            return Walk(rows, columns, channels, filters, (0, 1), outer_repeat=True, sums_repeats=True)
        return Walk(rows, columns, filters, channels)

    @property
    def cycles_per_frame(self) -> int:
        """As of every engine."""
        cycles = super().cycles_per_frame
        return max(cycles, self.port("w").beats) if self.streamed else cycles

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Work on a row of dx starts when all rows of e that it needs are there."""
        del source
        if self.streamed:
            return {"e": math.prod(self.output_shape)}
        return {"e": rows_required(self.walk, elements, self.input_shape, self.output_shape)}

    @property
    def pipeline_cycles(self) -> int:
        """The work of all rows that one row of e may have held up, and the pipeline."""
        return waiting_cycles(self.walk) + PIPELINE

    @property
    def strips(self) -> Strips:
        """Rows of dx."""
        return self._result_strips("e", self.tile.po, "dx", self.tile.pi)

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Keeps the initial weights for the memory image."""
        return {"initial": self.w_fixed.encode(parameters["w"])}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Exact sums, rounded once."""
        e = inputs["e"]
        bound = self.filters * self.window.taps << (self.e_fixed.width + self.w_fixed.width - 1)
        parts = [
            correlate_error(self.window, e[part], w, bound) for part, w in by_version(state, inputs["w"], self.recipe)
        ]
        fraction_bits = self.e_fixed.fraction_bits + self.w_fixed.fraction_bits
        return {"dx": requantise(np.concatenate(parts), fraction_bits, self.dx_fixed)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        e = inputs["e"]
        parts = [correlate_error(self.window, e[part], w) for part, w in by_version(state, inputs["w"], self.recipe)]
        return {"dx": np.concatenate(parts)}

    @property
    def replayed(self) -> tuple[str, ...]:
        """w, if the weights live outside."""
        return ("w",) if self.streamed else ()

    def memories(self) -> tuple[Memory, ...]:
        """The versions of the weights, if they live here."""
        return self._weight_memories(self.w_fixed)

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0: in the first half of the memory, or for ``w``."""
        return self._weight_images(state, self.w_fixed)

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """See `hdl.engine.window.convolution`."""
        tile = self.tile
        walk = self.walk
        shape = EngineShape(
            walk=walk,
            mac=MacShape(tile.pi, tile.po, tile.pk, tile.pk, tile.pi * tile.pk, self.e_fixed, self.w_fixed),
            weights=weight_steps(self, walk),
            words=self.pass_words,
            ring_rows=walk.ring_rows(self._row_beats("e"), self.cycles_per_frame),
            shift=self.e_fixed.fraction_bits + self.w_fixed.fraction_bits - self.dx_fixed.fraction_bits,
            result=self.dx_fixed,
            recipe=self.recipe,
            slots=self._slots(),
        )
        contents = (images or {}).get("weights")
        return conv_error(clk, rst, streams["e"], streams["w"], streams["dx"], shape=shape, contents=contents)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of the forward engine, with taps in parallel only along axes without stride."""
        found = []
        for example, x, y in example_fields():
            tile = example["tile"]
            if example.get("stride", (1, 1)) != (1, 1):
                example["tile"] = Tile(tile.po, tile.pi, 1)
                example["w_lanes"] = 1
            found.append(cls(**example, e_lanes=y, dx_lanes=x))
        return (*found, *_parked_too(found))


@dataclass(frozen=True, kw_only=True)
class ConvGradient(_ConvEngine):
    """The gradient engine: sinks ``x`` and ``e`` a frame, source ``g`` once a batch; formula in the module's docstring.

    The sum over all frames of a batch is exact, then rounded stochastically (with the batch number as step) and
    saturated.  The engine rests for `drain_cycles` at the end of each batch while the sums leave.
    """

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

    def walk_of(self, tile: Tile) -> Walk:
        """Pixel, filter group, channel group, taps: the forward engine's."""
        rows, columns = forward_axes(self, tile)
        return Walk(rows, columns, self.channels // tile.pi, self.filters // tile.po, outer_repeat=self.streamed)

    def at(self, home: Home) -> Self | None:
        """There is one version of sums: none could wait outside."""
        return None if home is Home.PARKED else super().at(home)

    def _buildable(self, tile: Tile) -> bool:
        if not super()._buildable(tile):
            return False
        return not self.streamed or self.channels // tile.pi * (self.window.taps // tile.pk) >= MEMORY_TILES

    @property
    def rings(self) -> tuple[Ring, ...]:
        """Sums that live outside, ports ``acc_in`` and ``acc_out``: batch - 1 tensors a batch."""
        if not self.streamed:
            return ()
        fixed = Fixed(self.sum_bits, self.x_fixed.fraction_bits + self.e_fixed.fraction_bits)
        tensor = Tensor(self.weight_shape, fixed, Kind.GRADIENT)
        back, out = Port("acc_in", tensor, self.w_lanes), Port("acc_out", tensor, self.w_lanes)
        batch = self.recipe.batch
        per_frame = Fraction(batch - 1, batch)
        return (Ring(name="sums", back=back, out=out, capacity=SUMS_CAPACITY, per_frame=per_frame),)

    @property
    def cycles_per_frame(self) -> int:
        """Between frames of one batch; between batches, `drain_cycles` more."""
        tile_words = math.prod(self.output_shape) // self.tile.po
        cycles = max(super().cycles_per_frame, tile_words)
        if not self.streamed:
            return cycles
        passes = self.filters // self.tile.po
        leave = (self.words // passes - 1) * (self.tile.size // self.w_lanes)
        # sums of a pass leave while the next pass is summed, and both memories are busy
        busy = self.walk.cycles + passes * (leave + LEAVE_LATENCY)
        return max(cycles, self.weight_count // self.w_lanes, -(-busy // 2))

    @property
    def drain_cycles(self) -> int:
        """Cycles for which the engine rests after each batch while its sums leave, if ``g`` doesn't stall."""
        if self.streamed:
            return 0
        return FLUSH + 2 + (self.words - 1) * (self.tile.size // self.w_lanes)

    @property
    def pipeline_cycles(self) -> int:
        """From the last input of a batch to its first gradients: the work of a row, and the pipeline."""
        return waiting_cycles(self.walk) + PIPELINE

    @property
    def strips(self) -> Strips:
        """Rows of e; an error waits until its row is at work."""
        x, e, g = (self.port(name) for name in ("x", "e", "g"))
        tile = self.tile
        return gradient_strips(self.walk, (x, tile.pi), (e, tile.po), (g, tile.size), self.drain_cycles, self.words)

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
        x, e = inputs["x"], inputs["e"]
        terms = len(x) * math.prod(self.window.output)
        total = correlate_gradient(self.window, x, e, terms << (self.x_fixed.width + self.e_fixed.width - 1))
        index = np.arange(self.weight_count, dtype=np.int64).reshape(self.weight_shape)
        random = high_half(hash32(index, state["batch"], self.key))
        state["batch"] += 1
        fraction_bits = self.x_fixed.fraction_bits + self.e_fixed.fraction_bits
        return {"g": requantise_stochastically(total, fraction_bits, self.g_fixed, random)}

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """The formula."""
        del state
        return {"g": correlate_gradient(self.window, inputs["x"], inputs["e"])}

    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """See `hdl.engine.window.gradient`."""
        del images
        walk = self.walk
        shape = GradientShape(
            walk=walk,
            tile=self.tile,
            weight_shape=self.weight_shape,
            words=self.words,
            ring_rows=walk.ring_rows(self._row_beats("x"), self.cycles_per_frame),
            x=self.x_fixed,
            e=self.e_fixed,
            g=self.g_fixed,
            sum_bits=self.sum_bits,
            shift=self.x_fixed.fraction_bits + self.e_fixed.fraction_bits - self.g_fixed.fraction_bits,
            batch=self.recipe.batch,
            lanes=self.w_lanes,
            key=self.key,
        )
        ports = [streams[name] for name in ("x", "e", "g")]
        if not self.streamed:
            return conv_gradient(clk, rst, *ports, shape=shape)
        errors = max(math.prod(self.output_shape) // self.tile.po, self.port("e").beats)
        frames = reorder_frames(errors, walk.cycles, REORDER_LATENCY + ERRORS, self.cycles_per_frame)
        ports[2:2] = [streams["acc_in"]]
        return conv_gradient_passes(clk, rst, *ports, streams["acc_out"], shape=shape, error_frames=frames)

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        """As of the forward engine."""
        return tuple(cls(**example, x_lanes=x, e_lanes=y, tensor_id=7) for example, x, y in example_fields())


Engine = TypeVar("Engine", bound=_ConvEngine)
# tensors of sums in a ring: the one under way, and one for what waits around it
SUMS_CAPACITY = 2
# fields that mean the same in all engines of a convolution
SHARED_FIELDS = ("height", "width", "channels", "filters", "kernel", "stride", "padding", "recipe", "tile", "w_lanes")
# examples that are there with one version of weights as well: staleness none, some, a batch
PARKED_EXAMPLES = (2, 3, 8)
# cycles from the last use of a version to the first use of the next one, beside those in which it comes, at most
LOAD_LATENCY = 16
# cycles, beyond work and arrival, for which the weights of a pass hold their place, at most
PASS_LATENCY = 12
# upper bound on the cycles of adapters, memories, multipliers, adder tree, rounding and output queue
PIPELINE = 64


def forward_axes(engine: _ConvEngine, tile: Tile) -> tuple[Axis, Axis]:
    """Rows and columns of x as the forward and the gradient engine read them."""
    (out_height, out_width), (taps_h, taps_w) = engine.window.output, engine._parallel_taps(tile)
    return (
        Axis(engine.height, out_height, engine.kernel[0], engine.stride[0], engine.padding[0], taps_h),
        Axis(engine.width, out_width, engine.kernel[1], engine.stride[1], engine.padding[1], taps_w),
    )


def error_axes(engine: _ConvEngine, tile: Tile) -> tuple[Axis, Axis]:
    """Rows and columns of e as the error engine reads them."""
    (out_height, out_width), (taps_h, taps_w) = engine.window.output, engine._parallel_taps(tile)
    return (
        Axis(out_height, engine.height, engine.kernel[0], engine.stride[0], engine.padding[0], taps_h, True),
        Axis(out_width, engine.width, engine.kernel[1], engine.stride[1], engine.padding[1], taps_w, True),
    )


def weight_steps(engine: _ConvEngine, walk: Walk) -> WeightSteps:
    """How the weight word moves with the loops of the forward (plain) or error (transposed) walk."""
    tile = engine.tile
    wide_taps = engine._parallel_taps(tile)[1]
    wide = engine.kernel[1] // wide_taps
    tap_groups = engine.window.taps // tile.pk
    by_channel, by_filter = tap_groups, engine.channels // tile.pi * tap_groups
    if walk.outer_repeat:
        return WeightSteps(repeat=0, reduce=by_channel, tap_row=wide, tap_column=1)
    if walk.rows.transposed:
        return WeightSteps(repeat=by_channel, reduce=by_filter, tap_row=wide, tap_column=1)
    return WeightSteps(repeat=by_filter, reduce=by_channel, tap_row=wide, tap_column=1)


def rows_required(walk: Walk, elements: int, output: tuple[int, ...], stored: tuple[int, ...]) -> int:
    """Stored elements that must be there for ``elements`` of the output: whole rows."""
    row = (elements - 1) // (output[1] * output[2])
    return walk.rows.needs()[row] * stored[1] * stored[2]


def waiting_cycles(walk: Walk) -> int:
    """The longest work on output rows that all wait for the same stored row."""
    totals: dict[int, int] = {}
    for need, cycles in zip(walk.strip_needs, walk.strip_cycles, strict=True):
        totals[need] = totals.get(need, 0) + cycles
    return max(totals.values())


@block
def conv_forward(
    clk: Any, rst: Any, x: Stream, w: Stream, y: Stream, *, shape: EngineShape, contents: Sequence[int] | None
) -> Any:
    """The forward circuit."""
    return convolution(clk, rst, x, w, y, shape=shape, contents=contents)


@block
def conv_error(
    clk: Any, rst: Any, e: Stream, w: Stream, dx: Stream, *, shape: EngineShape, contents: Sequence[int] | None
) -> Any:
    """The error circuit."""
    return convolution(clk, rst, e, w, dx, shape=shape, contents=contents)


@block
def conv_gradient(clk: Any, rst: Any, x: Stream, e: Stream, g: Stream, *, shape: GradientShape) -> Any:
    """The gradient circuit."""
    return gradient(clk, rst, x, e, g, shape=shape)


@block
def conv_gradient_passes(
    clk: Any,
    rst: Any,
    x: Stream,
    e: Stream,
    acc_in: Stream,
    g: Stream,
    acc_out: Stream,
    *,
    shape: GradientShape,
    error_frames: int,
) -> Any:
    """The gradient circuit whose sums live outside."""
    return gradient_passes(clk, rst, x, e, acc_in, g, acc_out, shape=shape, error_frames=error_frames)


def _parked_too(found: Sequence[Engine]) -> list[Engine]:
    """Some of the examples with one version of their weights on chip, for all kinds of staleness."""
    return [dataclasses.replace(found[index], weights=Home.PARKED) for index in PARKED_EXAMPLES]


def example_fields() -> list[tuple[dict[str, Any], int, int]]:
    """(fields, lanes of x, lanes of y) for the suite: kernels, strides, paddings, tiles, staleness."""
    plain, stale = Recipe(batch=2), Recipe(batch=2, staleness=1)
    three = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
    return [
        ({"height": 4, "width": 4, "channels": 2, "filters": 2, **three, "recipe": plain, "tile": Tile()}, 1, 1),
        (
            {
                "height": 5,
                "width": 3,
                "channels": 4,
                "filters": 4,
                **three,
                "recipe": stale,
                "tile": Tile(2, 2, 3),
                "w_lanes": 3,
            },
            2,
            4,
        ),
        (
            {
                "height": 5,
                "width": 6,
                "channels": 2,
                "filters": 4,
                **three,
                "stride": (2, 2),
                "recipe": plain,
                "tile": Tile(2, 1, 3),
            },
            2,
            1,
        ),
        (
            {
                "height": 3,
                "width": 4,
                "channels": 6,
                "filters": 6,
                "kernel": (1, 1),
                "recipe": stale,
                "tile": Tile(2, 3),
            },
            2,
            3,
        ),
        (
            {
                "height": 4,
                "width": 5,
                "channels": 4,
                "filters": 2,
                "kernel": (1, 1),
                "stride": (2, 2),
                "recipe": plain,
                "tile": Tile(2, 4),
                "w_lanes": 4,
            },
            4,
            2,
        ),
        (
            {
                "height": 5,
                "width": 4,
                "channels": 1,
                "filters": 2,
                "kernel": (7, 7),
                "stride": (2, 2),
                "padding": (3, 3, 3, 3),
                "recipe": plain,
                "tile": Tile(1, 1, 7),
                "w_lanes": 7,
            },
            1,
            1,
        ),
        (
            {
                "height": 3,
                "width": 2,
                "channels": 2,
                "filters": 4,
                "kernel": (3, 2),
                "recipe": stale,
                "tile": Tile(4, 1, 2),
                "w_lanes": 8,
            },
            1,
            2,
        ),
        (
            {
                "height": 1,
                "width": 1,
                "channels": 4,
                "filters": 3,
                "kernel": (1, 1),
                "recipe": Recipe(batch=8),
                "tile": Tile(3, 4),
                "w_lanes": 6,
            },
            4,
            3,
        ),
        (
            {
                "height": 3,
                "width": 4,
                "channels": 2,
                "filters": 2,
                **three,
                "recipe": Recipe(batch=2, staleness=2),
                "tile": Tile(2, 2, 9),
                "w_lanes": 4,
            },
            1,
            2,
        ),
        (
            {
                "height": 6,
                "width": 3,
                "channels": 3,
                "filters": 2,
                "kernel": (2, 3),
                "stride": (2, 1),
                "padding": (0, 1, 1, 0),
                "recipe": plain,
                "tile": Tile(1, 3, 3),
            },
            1,
            1,
        ),
    ]
