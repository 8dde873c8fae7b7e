"""Depthwise convolution: every channel has a kernel of its own.  Forward engine, error engine, gradient engine.

    y[r, c, n]  = sum over (i, j) of w[n, 0, i, j] * x[r*sh - top + i*dh, c*sw - left + j*dw, n]
    dx[h, v, n] = sum over (i, j) of w[n, 0, i, j] * e[r, c, n]      with h = r*sh - top + i*dh, v = c*sw - left + j*dw
    g[n, 0, i, j] = sum over frames and (r, c) of e[r, c, n] * x[r*sh - top + i*dh, c*sw - left + j*dw, n]

A tile has ``po`` channels and ``pk`` taps of each; ``pi`` is 1.  Ports, meaning and the choice of a tile are those of
every convolution: `hdl.layers.conv.engine`, `hdl.layers.conv.roles`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from myhdl import block

from hdl.engine.window.channelwise import ChannelShape, channel_convolution
from hdl.engine.window.gradient import counted_gradient, gradient
from hdl.engine.window.walk import Walk
from hdl.engine.window.walker import WeightSteps
from hdl.fixed import Fixed, cut_product
from hdl.layers.conv import narrow
from hdl.layers.conv.engine import SHARE_BITS, Example, WindowEngine
from hdl.layers.conv.examples import depthwise_examples
from hdl.layers.conv.roles import ErrorEngine, ForwardEngine, GradientEngine, WeightedEngine
from hdl.layers.meaning import Tape
from hdl.layers.window import Geometry
from hdl.parts.part import Part, block_share
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.tensor import Tile
from hdl.threads import in_ranges

Kernel = Callable[[int, int, Any, Any, Geometry, Any], None]


@dataclass(frozen=True, kw_only=True)
class _DepthwiseEngine(WindowEngine):
    """What the three engines share: weights, order of work, memory."""

    tile_rule: ClassVar[str] = "po must divide the channels, pi be 1"

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """(channels, 1, rows, columns)."""
        return (self.channels, 1, *self.kernel)

    def map_words_of(self, tile: Tile) -> tuple[int, int]:
        """Each channel meets only its own."""
        return tile.po, tile.po

    def walk_of(self, tile: Tile) -> Walk:
        """Pixel, group of channels, taps."""
        return self.channel_walk(tile.po, tile.pk)

    def _memory_share(self, tile: Tile, parts: Sequence[Part]) -> Fraction:
        """Memory blocks of the weights and of the ring, which every parallel tap reads a copy of."""
        ring = (self.window.extent[0] + 1) * self.walk_of(tile).row_words
        return super()._memory_share(tile, parts) + tile.pk * block_share(parts, ring, tile.po * SHARE_BITS)

    def correlation(self, shift: int, target: Fixed) -> narrow.Correlation:
        """A kernel a channel."""
        return narrow.ChannelCorrelation(self.window, 1, self.channels, shift, target, self.transposed)

    def _by_frame(self, kernel: Kernel, maps: Any, weights: Any, shape: tuple[int, int, int]) -> Any:
        """Sums of products of maps and weights, ``shape`` a frame, by one of `hdl.layers.conv.depthwise_kernel`."""
        by_tap = np.ascontiguousarray(weights.reshape(self.channels, self.window.taps).T)
        given, found = np.ascontiguousarray(maps), np.zeros((len(maps), *shape), np.result_type(maps, weights))

        def work(first: int, end: int) -> None:
            kernel(first, end, given, by_tap, self.window.geometry, found)

        in_ranges(work, len(maps), self.window.taps * math.prod(shape))
        return found

    @classmethod
    def example_fields(cls) -> list[Example]:
        """Kernels, strides, paddings, tiles, staleness."""
        return depthwise_examples()


def _channel_shape(engine: WeightedEngine) -> ChannelShape:
    """What the forward and the error engine are built from."""
    walk, tile = engine.walk, engine.tile
    stored, result = engine.stored.tensor.fixed, engine.result.tensor.fixed
    return ChannelShape(
        walk=walk,
        lanes=tile.po,
        operand=stored,
        weight=engine.w_format,
        weights=WeightSteps(repeat=engine.window.taps // tile.pk, reduce=0, tap_row=engine.tap_row_words, tap_column=1),
        words=engine.words,
        ring_rows=engine.ring_rows(engine.stored.name),
        shift=stored.fraction_bits + engine.w_format.fraction_bits - result.fraction_bits,
        result=result,
        recipe=engine.recipe,
    )


@dataclass(frozen=True, kw_only=True)
class DepthwiseConv(ForwardEngine, _DepthwiseEngine):
    """The forward engine; formula in the module's docstring."""

    def sums(self, x: Any, w: Any) -> Any:
        """y, exactly."""
        from hdl.layers.conv.depthwise_kernel import forward

        return self._by_frame(forward, x, w, (*self.window.output, self.channels))

    def backward(self, tape: Tape) -> None:
        """Gradient engine and error engine."""
        self.learn(tape, DepthwiseConvGradient, DepthwiseConvError)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.channelwise`."""
        contents = (images or {}).get("weights")
        ports = (streams[port.name] for port in (*self.sinks, *self.sources))
        make = frozen_depthwise_forward if self.frozen else depthwise_forward
        return make(domain, *ports, shape=_channel_shape(self), contents=contents)


@dataclass(frozen=True, kw_only=True)
class DepthwiseConvError(ErrorEngine, _DepthwiseEngine):
    """The error engine; formula in the module's docstring."""

    def sums(self, e: Any, w: Any) -> Any:
        """dx, exactly."""
        from hdl.layers.conv.depthwise_kernel import error

        return self._by_frame(error, e, w, (self.window.height, self.window.width, self.channels))

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.channelwise`."""
        contents = (images or {}).get("weights")
        ports = (streams[port.name] for port in (*self.sinks, *self.sources))
        make = frozen_depthwise_error if self.frozen else depthwise_error
        return make(domain, *ports, shape=_channel_shape(self), contents=contents)


@dataclass(frozen=True, kw_only=True)
class DepthwiseConvGradient(GradientEngine, _DepthwiseEngine):
    """The gradient engine; formula in the module's docstring."""

    def sums(self, x: Any, e: Any) -> Any:
        """g, exactly; of codes sums of cut products."""
        if not self.cut and x.dtype == np.int64 and narrow.is_narrow(self.x_fixed, self.e_fixed):
            return narrow.channel_gradient(self.window, x, e)
        if self.cut and x.dtype == np.int64:
            products = cut_product(self.window.patches(x) * e[:, :, :, None], self.cut)
            return products.sum((0, 1, 2)).T.reshape(self.weight_shape)
        from hdl.layers.conv.depthwise_kernel import gradient as add_gradient

        found = np.zeros((self.window.taps, self.channels), np.result_type(x, e))
        add_gradient(np.ascontiguousarray(x), np.ascontiguousarray(e), self.window.geometry, found)
        return found.T.reshape(self.weight_shape)

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.channelwise`."""
        del images
        ports = (streams[port.name] for port in (*self.sinks, *self.sources, *self.beside))
        make = counted_gradient if self.accessed else gradient
        return make(domain, *ports, shape=self.shape, by_channel=True)


@block
def depthwise_forward(
    domain: ClockReset, x: Stream, w: Stream, y: Stream, *, shape: ChannelShape, contents: Sequence[int] | None
) -> Instances:
    """The forward circuit.

    Ports:
        x: in, stream of codes of ``shape.operand``, any number a beat.
        w: in, stream of codes of ``shape.weight``, any number a beat, in the stream order of the weights.
        y: out, stream of codes of ``shape.result``, any number a beat.
    """
    return channel_convolution(domain, x, w, y, shape=shape, contents=contents)


@block
def frozen_depthwise_forward(
    domain: ClockReset, x: Stream, y: Stream, *, shape: ChannelShape, contents: Sequence[int] | None
) -> Instances:
    """The forward circuit whose weights stay as they are.

    Ports:
        x: in, stream as that of `depthwise_forward`.
        y: out, stream as that of `depthwise_forward`.
    """
    return channel_convolution(domain, x, None, y, shape=shape, contents=contents)


@block
def depthwise_error(
    domain: ClockReset, e: Stream, w: Stream, dx: Stream, *, shape: ChannelShape, contents: Sequence[int] | None
) -> Instances:
    """The error circuit.

    Ports:
        e: in, stream of codes of ``shape.operand``, any number a beat.
        w: in, stream of codes of ``shape.weight``, any number a beat, in the stream order of the weights.
        dx: out, stream of codes of ``shape.result``, any number a beat.
    """
    return channel_convolution(domain, e, w, dx, shape=shape, contents=contents)


@block
def frozen_depthwise_error(
    domain: ClockReset, e: Stream, dx: Stream, *, shape: ChannelShape, contents: Sequence[int] | None
) -> Instances:
    """The error circuit whose weights stay as they are.

    Ports:
        e: in, stream as that of `depthwise_error`.
        dx: out, stream as that of `depthwise_error`.
    """
    return channel_convolution(domain, e, None, dx, shape=shape, contents=contents)
