"""What layers declare of when results leave, given when their inputs come, at some elements of each tensor.

A flow says when each element of a tensor passes a port, kept at the first and the last beat of every row (`marks`).
`passage` asks a layer once for all that the flows of its sources follow from, frame after frame: `Layer.required` and
`Layer.latency_cycles`, or of an engine that works strip by strip its `Strips`.  The recurrence itself is compiled
(`dagtrain.schedule.batch_kernel`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.strips import Strips
from hdl.tensor import Port, Tensor

# before everything
LONG_AGO = -1e18
# ports whose marks, and layers whose needs and passages, are remembered
KEPT_MARKS, KEPT_LAYERS = 1 << 12, 1 << 12


@lru_cache(maxsize=KEPT_MARKS)
def marks(tensor: Tensor, lanes: int, turns: tuple[int, ...] = (), padding: int = 0) -> FloatArray:
    """The elements at which a flow is kept: the ends of the first beat, of the first pixel and of the last beat of
    every row, and those in its last pixel after which another part follows (`Layer.turns`); ports alike have the same
    array, which is never changed."""
    if tensor.kind.of_parameter:
        elements = tensor.elements + padding
        rows, within = 1, {min(lanes, elements), elements}
    else:
        rows, columns, channels = tensor.shape
        within = {min(lanes, columns * channels), channels, columns * channels}
        within |= {(columns - 1) * channels + turn for turn in turns}
    row = tensor.elements // rows
    found = np.array([start * row + count for start in range(rows) for count in sorted(within)], np.float64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=KEPT_LAYERS)
def needs(layer: Layer) -> Mapping[str, Mapping[str, FloatArray]]:
    """Source of frames -> sink -> elements that must have come for those at the source's marks; layers alike have the
    same arrays, which are never changed."""
    found: dict[str, dict[str, FloatArray]] = {}
    for port in layer.sources:
        if not port.tensor.kind.per_batch:
            at = marks(port.tensor, port.lanes, layer.turns(port.name), port.padding)
            wanted = [layer.required(port.name, int(count)) for count in at]
            found[port.name] = {sink: np.array([need[sink] for need in wanted], np.float64) for sink in wanted[0]}
            for counts in found[port.name].values():
                counts.flags.writeable = False
    return found


@lru_cache(maxsize=KEPT_MARKS)
def _even(port: Port, turns: tuple[int, ...], beat_cycles: int) -> FloatArray:
    """Cycles from the first beat to those of a port's marks at full rate."""
    return (np.ceil(marks(port.tensor, port.lanes, turns, port.padding) / port.lanes) - 1) * beat_cycles


@dataclass(frozen=True, eq=False)
class PortPassage:
    """A port, and when its marks pass."""

    port: Port
    # elements, ascending, and the cycles from the first beat to each of them at full rate
    marks: FloatArray
    even: FloatArray
    # that a beat holds the port
    beat_cycles: int
    # of sources: cycles from its elements' inputs, or its engine's begin, until they leave
    latency_cycles: int = 0
    # of sources of strips, for each mark: the strip that it is of, the share of it that is over, and beats that are
    # left of a word
    strip: FloatArray | None = None
    share: FloatArray | None = None
    left: FloatArray | None = None

    @property
    def per_batch(self) -> bool:
        """Whether a tensor passes once a batch."""
        return self.port.tensor.kind.per_batch


@dataclass(frozen=True, eq=False)
class Along:
    """How an engine takes a sink along."""

    # elements that must be there when each strip begins, and those used up by its end
    before: FloatArray
    through: FloatArray
    # from the engine's begin to the marks that don't wait inside till then; of the others, long before
    behind: FloatArray
    # it passes in more cycles than the engine works: what the engine holds up is not made up for
    slow: bool


@dataclass(frozen=True, eq=False)
class LayerPassage:
    """All that the flows of a layer's sources follow from."""

    layer: Layer
    sinks: tuple[PortPassage, ...]
    sources: tuple[PortPassage, ...]
    # of an engine: how it works, cycles of the work on each strip, and how it takes sinks along
    strips: Strips | None
    cycles: FloatArray
    along: Mapping[str, Along]
    # from its weights to the first element, and at least between two frames
    weight_cycles: int
    cycles_per_frame: int
    works_per_batch: bool

    @property
    def needs(self) -> Mapping[str, Mapping[str, FloatArray]]:
        """See `needs`."""
        return needs(self.layer)


@lru_cache(maxsize=KEPT_LAYERS)
def passage(layer: Layer) -> LayerPassage:
    """Of a layer; layers alike have the same one."""
    strips = layer.strips
    sinks = tuple(_port(layer, port, strips) for port in layer.sinks)
    return LayerPassage(
        layer=layer,
        sinks=sinks,
        sources=tuple(_source(layer, port, strips) for port in layer.sources),
        strips=strips,
        cycles=np.array(strips.cycles if strips else (), np.float64),
        along={sink.port.name: _along(sink, strips) for sink in sinks if strips and sink.port.name in strips.along},
        weight_cycles=layer.weight_cycles,
        cycles_per_frame=layer.cycles_per_frame,
        works_per_batch=layer.works_per_batch,
    )


def _port(layer: Layer, port: Port, strips: Strips | None) -> PortPassage:
    inside = strips.words.get(port.name, port.lanes) if strips else port.lanes
    beat_cycles, turns = max(1, port.lanes // inside), layer.turns(port.name)
    at = marks(port.tensor, port.lanes, turns, port.padding)
    return PortPassage(port, at, _even(port, turns, beat_cycles), beat_cycles)


def _source(layer: Layer, port: Port, strips: Strips | None) -> PortPassage:
    found, latency = _port(layer, port, strips), layer.latency_cycles(port.name)
    made = PortPassage(port, found.marks, found.even, found.beat_cycles, latency)
    if not strips or strips.reordered or found.per_batch:
        return made
    strip, share, left = _results(strips, port, found.marks)
    return replace(made, strip=strip, share=share, left=left)


def _along(sink: PortPassage, strips: Strips) -> Along:
    word, through = strips.words[sink.port.name], strips.along[sink.port.name]
    behind = sink.marks - strips.along_words * word
    return Along(
        before=np.concatenate([[0.0], through[:-1]]) + word,
        through=np.asarray(through, np.float64),
        behind=np.where(behind > 0, behind / sink.port.lanes * sink.beat_cycles, -np.inf),
        slow=bool(sink.even[-1] >= sum(strips.cycles)),
    )


def _results(strips: Strips, port: Port, at: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each mark of a result: the strip that it is of, the share of it that is over when it is made, and the beats
    that are left of its last word when the first one has left."""
    channels = port.tensor.shape[-1]
    word, rows = strips.words.get(port.name, port.lanes), strips.parts or port.tensor.shape[0]
    # in elements, the last word of a pixel as long as the others
    pixel = -(-channels // word) * word
    elements = port.tensor.elements // rows
    row = elements // channels * pixel
    strip = np.ceil(at / elements) - 1
    within = at - strip * elements
    made = within // channels * pixel + np.ceil(within % channels / word) * word
    left = max(0, math.ceil((channels % word or word) / port.lanes) - 1)
    first = 0 if strips.parts else len(strips.cycles) - rows
    return strip + first, np.minimum(row, made) / row, left * (within == elements)
