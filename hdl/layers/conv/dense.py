"""Convolution: forward engine, error engine, gradient engine.

    y[r, c, m]  = sum over (n, i, j) of w[m, n, i, j] * x[r*sh - top + i*dh, c*sw - left + j*dw, n]
    dx[h, v, n] = sum over (m, i, j) of w[m, n, i, j] * e[r, c, m]   with h = r*sh - top + i*dh, v = c*sw - left + j*dw
    g[m, n, i, j] = sum over frames and (r, c) of e[r, c, m] * x[r*sh - top + i*dh, c*sw - left + j*dw, n]

A tile has ``po`` filters, ``pi`` channels and ``pk`` taps; a fully connected layer is the case whose kernel covers the
map (see gemm.py).

With ``groups`` the channels and the filters fall into as many parts, and the filters of each see only its channels:
``n`` and ``m`` above run over one part, and weights have ``channels / groups`` channels.  A tile lies in one group, or
takes several whole ones at once, all their channels and filters, up to all weights of a pixel.

Ports, meaning and the choice of a tile are those of every convolution: `hdl.layers.conv.engine`,
`hdl.layers.conv.roles`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from myhdl import block

from hdl.engine.arithmetic.mac import MacShape, tree_levels
from hdl.engine.window.convolution import EngineShape, convolution
from hdl.engine.window.frame_buffers import REORDER_LATENCY, reorder_frames
from hdl.engine.window.gradient import ERRORS, MEMORY_TILES, GradientShape, counted_gradient, gradient
from hdl.engine.window.gradient_passes import LEAVE_LATENCY, counted_gradient_passes, gradient_passes
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import WeightSteps
from hdl.errors import FoldingError, ShapeError
from hdl.fixed import Fixed
from hdl.layers.base import Layer
from hdl.layers.conv import narrow
from hdl.layers.conv.correlate import (
    by_group,
    correlate,
    correlate_cut_gradient,
    correlate_error,
    correlate_gradient,
    joined,
)
from hdl.layers.conv.engine import SHARE_BITS, Example, WindowEngine
from hdl.layers.conv.examples import PARKED_EXAMPLES, dense_examples
from hdl.layers.conv.roles import ErrorEngine, ForwardEngine, GradientEngine, WeightedEngine, words_of
from hdl.layers.folding import lanes_for, may_be_ragged, ragged_lanes
from hdl.layers.meaning import Tape
from hdl.layers.storage import DUMP, LOAD, Home, Ring
from hdl.layers.windowed import InputMap
from hdl.parts.part import Part, block_share
from hdl.signals import ClockReset, Instances
from hdl.spelling import QUIET
from hdl.stream import Stream
from hdl.tensor import Kind, Port, Tensor, Tile

# tensors of sums in a ring: the one under way, and one for what waits around it
SUMS_CAPACITY = 2
# words of weights that wait for their pass, or of sums on their way, and bits of a sum, by which tiles are compared
PASSING_WORDS, SUM_BITS = 64, 30
# cycles, beyond work and arrival, for which the weights of a pass hold their place, at most
PASS_LATENCY = 12


@dataclass(frozen=True, kw_only=True)
class _Filters(InputMap):
    """A map, and how many filters see it."""

    filters: int
    # parts of the channels and of the filters that meet only one another
    groups: int = field(default=1, metadata=QUIET)


# the order of bases is that of the fields, from the last one on: the map, filters, the kernel, the tile
@dataclass(frozen=True, kw_only=True)
class DenseEngine(WindowEngine, _Filters):
    """What the three engines share: weights and their home, order of work."""

    # of weights (two versions), or of the sums of their gradients; PARKED: one version is here, and the next one comes
    # when it is out of use; from DRAM or a store, ``w`` brings each frame's version once a frame, in the same order
    weights: Home = Home.ON_CHIP
    # whether folding may choose a ragged tile; nothing of the circuit, which the tile alone makes
    ragged: bool = field(default=False, repr=False, metadata=QUIET)

    tile_rule: ClassVar[str] = (
        "po must be at most the filters, pi the channels (with groups: they divide those of one, or po is those of "
        "several and pi all)"
    )

    @property
    def name(self) -> str:
        """For messages."""
        size = f"{self.height}x{self.width}x{self.channels} -> {self.filters}"
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{type(self).__name__} {size}{groups}, kernel {self.kernel}"

    def check_shape(self) -> None:
        """Groups as well."""
        super().check_shape()
        if self.channels % self.groups or self.filters % self.groups:
            raise ShapeError(f"{self.name}: there must be as many channels in each group, and as many filters")

    @property
    def pads(self) -> bool:
        """Without groups."""
        return self.groups == 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the map, the filters, the groups."""
        return (*self.input_shape, self.filters, self.groups)

    @property
    def shared(self) -> dict[str, Any]:
        """Filters and groups as well."""
        return {**super().shared, "filters": self.filters, "groups": self.groups}

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """(filters, channels of a group, rows, columns)."""
        return (self.filters, self.channels // self.groups, *self.kernel)

    def correlation(self, shift: int, target: Fixed) -> narrow.Correlation:
        """Of all groups."""
        sizes = self.filters // self.groups, self.channels // self.groups
        return narrow.Correlation(self.window, *sizes, shift, target, self.transposed, self.groups)

    def groups_of(self, tile: Tile) -> int:
        """Groups that a tile takes at once."""
        return max(1, tile.po * self.groups // self.filters)

    def map_words_of(self, tile: Tile) -> tuple[int, int]:
        """Channels of x; filters."""
        return tile.pi * self.groups_of(tile), tile.po

    def _buildable(self, tile: Tile) -> bool:
        """With groups also: it lies in one of them, or takes whole ones."""
        group = self.filters // self.groups
        whole = tile.po % group == 0 and tile.pi == self.channels // self.groups
        within = group % tile.po == 0 and not (self.streamed and self.transposed)
        return (self.groups == 1 or whole or within) and super()._buildable(tile)

    def walk_of(self, tile: Tile) -> Walk:
        """Pixel, group of results, group of what is summed, taps; filter group outermost when weights come once a
        frame."""
        axes = self.axes(tile.pk)
        filters, channels, _ = tile.counts(self.weight_shape)
        if self.groups > 1:
            # tiles of weights, and what of them one group has
            times = self.groups // self.groups_of(tile)
            made, summed = filters // times, channels
            if self.transposed:
                made, summed = summed, made
            return Walk(*axes, summed, times * made, (1, summed), outer_repeat=self.streamed, sharing=made)
        if not self.transposed:
            return Walk(*axes, channels, filters, outer_repeat=self.streamed)
        if self.streamed:
            return Walk(*axes, channels, filters, (0, 1), outer_repeat=True, sums_repeats=True)
        return Walk(*axes, filters, channels)

    def _lanes(self) -> Iterator[tuple[int, int]]:
        """Ragged ones as well, if wanted."""
        yield from super()._lanes()
        if self.ragged and self.pads:
            yield from ragged_lanes(*self.weight_shape[:2])

    def suits(self, tile: Tile, cycles: int) -> bool:
        """A ragged one also if the map of the filters has few enough lanes at that pace."""
        if not super().suits(tile, cycles):
            return False
        lanes = lanes_for(math.prod(self.output_shape), self.filters, cycles)
        return tile.divides(self.weight_shape) or may_be_ragged(tile.po, lanes)

    def _buffer_share(self, tile: Tile, parts: Sequence[Part]) -> Fraction:
        """A third of what the engines of all three directions take, about: with weights and sums here, or with them
        outside, where whole maps are stored."""
        walk, weights = self.walk_of(tile), self._memory_share(tile, parts)
        rows = self.window.extent[0] + 1
        x, e = self._map_shares(tile, parts, rows * self._short_row(walk))
        here = 3 * weights + tile.pk * (2 * x + e)
        x, e = self._map_shares(tile, parts, walk.rows.stored * walk.columns.stored)
        passing = 2 * block_share(parts, PASSING_WORDS, tile.size * SHARE_BITS)
        passing += 2 * block_share(parts, PASSING_WORDS, tile.size * SUM_BITS)
        return min(here, passing + tile.pk * (2 * x + e) + x + 2 * e) / 3

    def _map_shares(self, tile: Tile, parts: Sequence[Part], pixels: int) -> tuple[Fraction, Fraction]:
        """Memory blocks of so many pixels of x and e; the forward and the gradient engine store x, the error engine e,
        and of those every parallel tap reads a copy."""
        x, e = (
            block_share(parts, pixels * -(-channels // word), word * SHARE_BITS)
            for channels, word in zip((self.channels, self.weight_shape[0]), self.map_words_of(tile), strict=True)
        )
        return x, e

    @property
    def home(self) -> Home:
        """As chosen."""
        return self.weights

    def at(self, home: Home) -> Self | None:
        """Weights, or sums of gradients, there; DRAM needs a tile that leaves a pass over the map long enough, and of
        groups one that takes a whole one.  Frozen weights are never parked, and only error engines borrow weights."""
        if home is Home.LENT:
            return None
        tiles = [self.tile]
        if self.groups > 1:
            tiles.append(Tile(self.filters // self.groups, self.channels // self.groups))
        for tile in tiles:
            try:
                return dataclasses.replace(self, weights=home, tile=tile)
            except FoldingError:
                continue
        return None

    @classmethod
    def example_fields(cls) -> list[Example]:
        """Kernels, strides, paddings, tiles, staleness."""
        return dense_examples()


def _weight_steps(engine: WeightedEngine, walk: Walk) -> WeightSteps:
    """How the weight word moves with the loops of the forward (plain) or error (transposed) walk."""
    tile, row = engine.tile, engine.tap_row_words
    _, channels, by_channel = tile.counts(engine.weight_shape)
    by_filter = channels * by_channel
    if walk.outer_repeat:
        return WeightSteps(repeat=0, reduce=by_channel, tap_row=row, tap_column=1)
    if walk.rows.transposed:
        # behind the channels of a group comes the first filter of the next one
        shared = (walk.reduce - 1) * by_filter if walk.group_steps[1] else 0
        return WeightSteps(repeat=by_channel, reduce=by_filter, tap_row=row, tap_column=1, shared=shared)
    return WeightSteps(repeat=by_filter, reduce=by_channel, tap_row=row, tap_column=1)


def _slots(engine: WeightedEngine) -> int:
    """Versions, or streamed passes, for which the weight buffer must have room so that weights never wait for one
    another."""
    if not engine.streamed:
        return engine.versions
    # in frames times passes, so that nothing is rounded
    arrive, walk = engine.tiled_count // engine.w_lanes, engine.walk
    return reorder_frames(walk.cycles, arrive, PASS_LATENCY * walk.passes, engine.cycles_per_frame)


def engine_shape(engine: WeightedEngine) -> EngineShape:
    """What the forward and the error engine are built from."""
    walk, tile = engine.walk, engine.tile
    stored, weight, result = engine.stored.tensor.fixed, engine.w_format, engine.result.tensor.fixed
    by_filter, by_channel = tile.pi * tile.pk, tile.pk
    groups = engine.map_words[0] // tile.pi
    filters = tile.po // groups
    pixel_channels, pixel_filters = engine.ragged_words
    if engine.transposed:
        mac = MacShape(tile.pi, filters, tile.pk, by_channel, by_filter, stored, weight, groups)
    else:
        mac = MacShape(filters, tile.pi, tile.pk, by_filter, by_channel, stored, weight, groups)
    return EngineShape(
        walk=walk,
        mac=mac,
        weights=_weight_steps(engine, walk),
        words=engine.words // walk.passes,
        ring_rows=engine.ring_rows(engine.stored.name),
        shift=stored.fraction_bits + weight.fraction_bits - result.fraction_bits,
        result=result,
        recipe=engine.recipe,
        slots=_slots(engine),
        frames=engine.reordered_frames,
        stored_pixel=pixel_filters if engine.transposed else pixel_channels,
        result_pixel=pixel_channels if engine.transposed else pixel_filters,
    )


def _reordered_frames(engine: WeightedEngine, word: int) -> int:
    """Frames of results, of ``word`` at a time, that streamed weights put in order at a time."""
    leave = max(words_of(engine.result, word), engine.result.beats)
    latency = REORDER_LATENCY + tree_levels(engine.tile.size // word)
    return reorder_frames(engine.walk.cycles, leave, latency, engine.cycles_per_frame)


@dataclass(frozen=True, kw_only=True)
class Conv(ForwardEngine, DenseEngine):
    """The forward engine; formula in the module's docstring."""

    def narrowed(self, filters: int) -> Self | None:
        """A convolution of fewer filters, over all channels."""
        return dataclasses.replace(self, filters=filters) if self.groups == 1 else None

    def summand(self, channels: int) -> Self | None:
        """A convolution over fewer channels, of all filters."""
        return dataclasses.replace(self, channels=channels) if self.groups == 1 else None

    @property
    def reordered_frames(self) -> int:
        """Frames of results that streamed weights put in order at a time."""
        return _reordered_frames(self, self.tile.po)

    def lending(self, other: Layer) -> Layer | None:
        """To the error engine of the same convolution and tile, unless the weights lie outside."""
        from hdl.layers.conv.pair import ConvPair

        if not isinstance(other, ConvError) or not other.borrowed or self.streamed:
            return None
        try:
            return ConvPair.of(self, other)
        except FoldingError:
            return None

    def sums(self, x: Any, w: Any) -> Any:
        """y, exactly."""
        bound = math.prod(self.weight_shape[1:]) << (self.x_fixed.width + self.w_fixed.width - 1)
        parts = by_group(self.groups, (x, 3), (w, 0))
        return joined([correlate(self.window, first, second, bound) for first, second in parts], 3)

    def backward(self, tape: Tape) -> None:
        """Gradient engine and error engine."""
        self.learn(tape, ConvGradient, ConvError)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.convolution`."""
        contents = (images or {}).get("weights")
        ports = (streams[port.name] for port in (*self.sinks, *self.fetched, *self.sources))
        make = frozen_conv_forward if self.frozen and not self.streamed else conv_forward
        return make(domain, *ports, shape=engine_shape(self), contents=contents)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Some with one version of the weights as well, and with frozen ones outside."""
        return _fetched_too(_parked_too(super().examples()))


@dataclass(frozen=True, kw_only=True)
class ConvError(ErrorEngine, DenseEngine):
    """The error engine; formula in the module's docstring.

    Streamed weights bring all filters of a group before those of the next one, so a tile takes whole groups then."""

    def at(self, home: Home) -> Self | None:
        """Or those of the forward engine."""
        if home is Home.LENT:
            return None if self.frozen else dataclasses.replace(self, weights=home)
        return super().at(home)

    @property
    def borrowed(self) -> tuple[str, ...]:
        """w, if it lies with the forward engine."""
        return ("w",) if self.home is Home.LENT else ()

    @property
    def reordered_frames(self) -> int:
        """Frames of results of groups that streamed weights put in order at a time; without groups they are sums."""
        return _reordered_frames(self, self.map_words[0]) if self.groups > 1 else 0

    def sums(self, e: Any, w: Any) -> Any:
        """dx, exactly."""
        terms = self.filters // self.groups * self.window.taps
        bound = terms << (self.e_fixed.width + self.w_fixed.width - 1)
        parts = by_group(self.groups, (e, 3), (w, 0))
        return joined([correlate_error(self.window, first, second, bound) for first, second in parts], 3)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.convolution`."""
        contents = (images or {}).get("weights")
        ports = (streams[port.name] for port in (*self.sinks, *self.fetched, *self.sources))
        make = frozen_conv_error if self.frozen and not self.streamed else conv_error
        return make(domain, *ports, shape=engine_shape(self), contents=contents)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Some with one version of the weights as well, and with frozen ones outside."""
        return _fetched_too(_parked_too(super().examples()))


@dataclass(frozen=True, kw_only=True)
class ConvGradient(GradientEngine, DenseEngine):
    """The gradient engine; formula in the module's docstring."""

    def at(self, home: Home) -> Self | None:
        """There is one version of sums: none could wait outside."""
        return None if home is Home.PARKED else super().at(home)

    def _buildable(self, tile: Tile) -> bool:
        if not super()._buildable(tile):
            return False
        return not self.streamed or math.prod(tile.counts(self.weight_shape)[1:]) >= MEMORY_TILES

    @property
    def rings(self) -> tuple[Ring, ...]:
        """Sums that live in DRAM."""
        return self._sums(Kind.GRADIENT) if self.home is Home.DRAM else ()

    @property
    def remote(self) -> tuple[Ring, ...]:
        """Sums that live in a store."""
        return self._sums(Kind.SUMS) if self.home is Home.REMOTE else ()

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x, e; sums from a store."""
        return (*super().sinks, *(ring.back for ring in self.remote))

    @property
    def sources(self) -> tuple[Port, ...]:
        """g; sums to a store."""
        return (*super().sources, *(ring.out for ring in self.remote))

    def _sums(self, kind: Kind) -> tuple[Ring, ...]:
        """Ports ``acc_in`` and ``acc_out``: batch - 1 tensors a batch."""
        tensor = Tensor(self.weight_shape, self.sum_fixed, kind)
        back, out = (
            Port(name, tensor, self.w_lanes, self.tile.padding(self.weight_shape)) for name in ("acc_in", "acc_out")
        )
        batch = self.recipe.batch
        per_frame = Fraction(batch - 1, batch)
        # beat by beat no sum is sent before the one in its place has come back; bursts wait for one another
        capacity = 1 if kind is Kind.SUMS else SUMS_CAPACITY
        return (Ring(name="sums", back=back, out=out, capacity=capacity, per_frame=per_frame),)

    @property
    def cycles_per_frame(self) -> int:
        """Between frames of one batch; between batches, `drain_cycles` more."""
        cycles = super().cycles_per_frame
        if not self.streamed:
            return cycles
        walk = self.walk
        leave = (self.words // walk.passes - 1) * (self.tile.size // self.w_lanes)
        # sums of a pass leave while the next pass is summed, and both memories are busy
        busy = walk.cycles + walk.passes * (leave + LEAVE_LATENCY)
        return max(cycles, -(-busy // 2))

    @property
    def error_frames(self) -> int:
        """Frames of errors that sums outside put in order at a time."""
        if not self.streamed:
            return 0
        errors = max(words_of(self.port("e"), self.tile.po), self.port("e").beats)
        return reorder_frames(errors, self.walk.cycles, REORDER_LATENCY + ERRORS, self.cycles_per_frame)

    def sums(self, x: Any, e: Any) -> Any:
        """g, exactly; of codes sums of cut products."""
        if self.cut and x.dtype == np.int64:
            parts = by_group(self.groups, (x, 3), (e, 3))
            cut = self.product_bits, self.cut
            return joined([correlate_cut_gradient(self.window, first, second, *cut) for first, second in parts], 0)
        parts = by_group(self.groups, (x, 3), (e, 3))
        if x.dtype == np.int64 and narrow.is_narrow(self.x_fixed, self.e_fixed):
            return joined([narrow.gradient(self.window, first, second) for first, second in parts], 0)
        bound = len(x) * math.prod(self.window.output) << (self.x_fixed.width + self.e_fixed.width - 1)
        return joined([correlate_gradient(self.window, first, second, bound) for first, second in parts], 0)

    @property
    def shape(self) -> GradientShape:
        """Several groups of a tile."""
        return dataclasses.replace(super().shape, groups=self.groups_of(self.tile))

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.gradient`, and of sums that live outside `hdl.engine.window.gradient_passes`."""
        del images
        x, e, g = (streams[name] for name in ("x", "e", "g"))
        chain = [streams[port.name] for port in (LOAD, DUMP) if self.accessed]
        if not self.streamed:
            return (counted_gradient if chain else gradient)(domain, x, e, g, *chain, shape=self.shape)
        sums = streams["acc_in"], g, streams["acc_out"]
        make = counted_gradient_passes if chain else gradient_passes
        return make(domain, x, e, *sums, *chain, shape=self.shape, error_frames=self.error_frames)


@block
def conv_forward(
    domain: ClockReset, x: Stream, w: Stream, y: Stream, *, shape: EngineShape, contents: Sequence[int] | None
) -> Instances:
    """The forward circuit.

    Ports:
        x: in, stream of codes of ``shape.mac.operand``, any number a beat.
        w: in, stream of codes of ``shape.mac.weight``, any number a beat, in the stream order of the weights.
        y: out, stream of codes of ``shape.result``, any number a beat.
    """
    return convolution(domain, x, w, y, shape=shape, contents=contents)


@block
def frozen_conv_forward(
    domain: ClockReset, x: Stream, y: Stream, *, shape: EngineShape, contents: Sequence[int] | None
) -> Instances:
    """The forward circuit whose weights stay as they are.

    Ports:
        x: in, stream as that of `conv_forward`.
        y: out, stream as that of `conv_forward`.
    """
    return convolution(domain, x, None, y, shape=shape, contents=contents)


@block
def conv_error(
    domain: ClockReset, e: Stream, w: Stream, dx: Stream, *, shape: EngineShape, contents: Sequence[int] | None
) -> Instances:
    """The error circuit.

    Ports:
        e: in, stream of codes of ``shape.mac.operand``, any number a beat.
        w: in, stream of codes of ``shape.mac.weight``, any number a beat, in the stream order of the weights.
        dx: out, stream of codes of ``shape.result``, any number a beat.
    """
    return convolution(domain, e, w, dx, shape=shape, contents=contents)


@block
def frozen_conv_error(
    domain: ClockReset, e: Stream, dx: Stream, *, shape: EngineShape, contents: Sequence[int] | None
) -> Instances:
    """The error circuit whose weights stay as they are.

    Ports:
        e: in, stream as that of `conv_error`.
        dx: out, stream as that of `conv_error`.
    """
    return convolution(domain, e, None, dx, shape=shape, contents=contents)


Engine = TypeVar("Engine", bound=DenseEngine)


def _parked_too(found: tuple[Engine, ...]) -> tuple[Engine, ...]:
    """Some of the examples with one version of their weights on chip, for all kinds of staleness."""
    return (*found, *(dataclasses.replace(found[index], weights=Home.PARKED) for index in PARKED_EXAMPLES))


def _fetched_too(found: tuple[Engine, ...]) -> tuple[Engine, ...]:
    """Those of the examples with frozen weights that can, with these in DRAM."""
    outside = (layer.at(Home.DRAM) for layer in found if layer.held_parameters)
    return (*found, *(layer for layer in outside if layer is not None))
