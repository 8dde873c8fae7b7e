"""What every node of a training graph is: a `Layer`, one frozen dataclass that stands whole in one file.

A layer file reads top to bottom: parameters, shape rule (`sinks`, `sources`), cycles and folding, golden
model, float reference, backward rule, circuit.  The forward layer, its error engine, its gradient engine all
stand in the same file.  No pass keeps lists of layers: it asks the layer.

Time: golden model and reference are called once a batch, in order, with all frames of that batch stacked in
axis 0 of every per-frame input.  Because layers talk through streams only and read them in a fixed order, this
gives the same bits as any timing of the hardware.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.parts.part import DEFAULT_PARTS, Part
from hdl.stream import Stream
from hdl.strips import Strips
from hdl.tensor import Kind, Port

State = dict[str, Any]
# of sampled codes, those at the edges
EDGE_SHARE = 0.25
# codes that `pack` handles at a time
PACKED_CODES = 1 << 18


@dataclass(frozen=True)
class Memory:
    """A memory of a circuit whose contents matter from outside: an initial image, or training state."""

    # name of the image; `DEPTH x WIDTH` words
    name: str
    depth: int
    # bits a word
    width: int
    # training state, compared at the end of a co-simulation (weights, momenta, normalisation state)
    is_state: bool = False


class Home(Enum):
    """Where a layer's large memory lives: weights, sums of gradients, optimiser state."""

    ON_CHIP = "on_chip"
    # what is in use on chip, what comes next waits outside (`Layer.parked`)
    PARKED = "parked"
    DRAM = "dram"


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Data that a layer keeps outside: it sends them out, and gets them back in the same order, tensor by tensor.

    Its two ports stand beside those of the graph; between them belongs a FIFO of at least ``capacity`` tensors, such
    as a `hdl.dram.store.DramFifo`."""

    # of the memory image, if it starts with contents
    name: str
    # sink: what comes back
    back: Port
    # source: what goes out
    out: Port
    capacity: int
    # tensors in it at the start, and whenever the layer rests: training state, `Layer.images` gives its beats at `back`
    preload: int = 0
    # tensors a frame, each way
    per_frame: Fraction


@dataclass(frozen=True, order=True)
class Tile:
    """The weights that a MAC engine multiplies in one cycle: ``po * pi * pk`` of them.

    For a weight tensor of shape (filters, channels, taps) the stream carries tiles in the order (filter group,
    channel group, tap group), the last fastest; inside a tile the order is (filter, channel, tap), likewise."""

    # filter (output-channel) lanes
    po: int = 1
    # input-channel lanes
    pi: int = 1
    # kernel taps in parallel
    pk: int = 1

    @property
    def size(self) -> int:
        """Weights of a tile."""
        return self.po * self.pi * self.pk

    def order(self, shape: tuple[int, ...]) -> IntArray:
        """Stream position -> flat index of a weight tensor of ``shape`` (filters, channels, kernel …)."""
        filters, channels, taps = shape[0], shape[1], math.prod(shape[2:])
        index = np.arange(filters * channels * taps, dtype=np.int64)
        split = index.reshape(filters // self.po, self.po, channels // self.pi, self.pi, taps // self.pk, self.pk)
        return split.transpose(0, 2, 4, 1, 3, 5).reshape(-1)


class Tape(Protocol):
    """What a layer may ask of reverse-mode differentiation while it adds its own backward nodes."""

    def value(self, port: str) -> str:
        """The forward edge at a sink or source of this layer; using it as a stash is free to the layer."""

    def error(self, port: str) -> str:
        """The error edge that arrives at a source of this layer."""

    def needs_error(self, port: str) -> bool:
        """Whether anything upstream of this sink learns."""

    def add(self, suffix: str, layer: Layer, inputs: Mapping[str, str]) -> dict[str, str]:
        """Add a node ``<this node>.<suffix>``; returns its output edges by source port."""

    def give_error(self, port: str, edge: str) -> None:
        """Hand over the error edge of a sink of this layer."""

    def learn(self, sink: str, gradient: str) -> str:
        """Add the update of the parameter at weight sink ``sink`` from its gradient edge.

        Connects the updated weights to this layer's sink; returns the weight edge for other users of it."""

    def weight(self, sink: str) -> str:
        """The edge that `learn` will return for ``sink``, for a node that uses the weight and makes its gradient."""

    def connect(self, node_edge_sink: str, edge: str) -> None:
        """Connect a sink of this (forward) layer that had no edge in the forward graph."""


class Layer(ABC):
    """Base of all layers; subclasses are ``@dataclass(frozen=True, kw_only=True)``.

    Number formats are fields named ``<port>_fixed``; parallelism are plain integer fields, 1 by default.
    """

    # engines that work only once a batch or carry no arithmetic may have no multipliers; others state them
    multipliers: Any = 0

    # must stand on the device that carries the host interface (equation (5) of the poster)
    pinned_to_host: ClassVar[bool] = False

    @classmethod
    def concrete(cls) -> tuple[type[Self], ...]:
        """Every concrete layer among the subclasses that were imported, whatever it inherits."""
        found: list[type[Self]] = []
        for kind in cls.__subclasses__():
            if not inspect.isabstract(kind) and not kind.__name__.startswith("_"):
                found.append(kind)
            found += kind.concrete()
        return tuple(dict.fromkeys(found))

    # ---- shape rule -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def sinks(self) -> tuple[Port, ...]:
        """Input ports; weight sinks included."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Port, ...]:
        """Output ports; stash outputs (mask, index …) included."""

    def port(self, name: str) -> Port:
        """The port of that name."""
        return next(port for port in (*self.sinks, *self.sources) if port.name == name)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of trained parameters by weight sink, as ONNX writes them."""
        return {port.name: port.tensor.shape for port in self.sinks if port.tensor.kind is Kind.WEIGHT}

    def with_formats(self, formats: Mapping[str, Fixed]) -> Self:
        """This layer with other number formats; ports whose format follows from others are left alone."""
        names = {field.name for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        chosen = {f"{port}_fixed": fixed for port, fixed in formats.items() if f"{port}_fixed" in names}
        return dataclasses.replace(self, **chosen)  # type: ignore[type-var]

    def narrowed(self, filters: int) -> Self | None:
        """This layer with so many channels of its source ``y``, before folding; None where it can't be split.

        Its parameters are slices of this layer's along their first axis, and its channels those of that slice."""
        del filters
        return None

    def summand(self, channels: int) -> Self | None:
        """One of several layers, over so many channels of sink ``x``, that sum to this one; None where it is no sum.

        Its parameters are slices of this layer's along their second axis, and its channels those of that slice."""
        del channels
        return None

    # ---- cycles and folding -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def cycles_per_frame(self) -> int:
        """Initiation interval: cycles between frames in steady state when nothing stalls (measured = declared).

        A layer that works once a batch gives its cycles a batch divided by the batch size, rounded up."""

    @property
    def macs(self) -> int:
        """Multiplications a frame that the algorithm needs (padding counted, as is usual)."""
        return 0

    def tiles(self, cycles: int, parts: Sequence[Part] = DEFAULT_PARTS) -> Iterator[Tile]:
        """Weight tiles with which this layer needs at most ``cycles`` a frame, fewest multipliers first; of as many,
        those whose memories take the fewest blocks of these parts.

        All engines that share a weight tensor (forward, error, gradient, update) share one tile, because the
        tile fixes the order in which weights and gradients stream.  Layers without such a tensor have none."""
        del cycles, parts
        return iter(())

    def suits(self, tile: Tile, cycles: int) -> bool:
        """Whether a tile is one of `tiles`."""
        return tile in self.tiles(cycles)

    def least_cycles(self, tile: Tile) -> int | None:
        """Cycles a frame that this layer needs at least with a tile, whatever its lanes; None if it can't have it."""
        del tile
        return None

    @abstractmethod
    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The variant with the fewest multipliers, then the fewest lanes, that needs at most ``cycles`` a frame.

        ``tile`` is one of `tiles` (default: the first).  Lanes of every per-frame port are `lanes_for` of its
        tensor and ``cycles``, so both ends of an edge agree; lanes of per-batch ports are `weight_lanes`.
        Raises `FoldingError` when even the widest variant is slower."""

    def at(self, home: Home) -> Self | None:
        """This layer with its large memory there; None where it has none that could be.  ON_CHIP gives the layer as it
        is in the training graph."""
        return self if home is Home.ON_CHIP else None

    @property
    def rings(self) -> tuple[Ring, ...]:
        """What the layer keeps outside and works on."""
        return ()

    @property
    def replayed(self) -> tuple[str, ...]:
        """Per-batch sinks that want the version of each frame once a frame (see `hdl.dram.store.DramReplay`)."""
        return ()

    @property
    def parked(self) -> Mapping[str, int]:
        """Per-batch sinks whose next tensor waits outside until the layer takes all of it at once, and the cycles in
        which it wants to have taken it: it rests for so long once a batch."""
        return {}

    # ---- order of streams -------------------------------------------------------------------------------

    def stream_order(self, port: str) -> IntArray | None:
        """Stream position -> flat index in the tensor; None where they are the same."""
        del port
        return None

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Elements of each per-frame sink that must have entered before ``elements`` of ``source`` can leave.

        Counted within one frame (0 < elements <= the frame's).  The FIFO analysis rests on it.  The default is
        an element-wise layer."""
        total = self.port(source).tensor.elements
        return {
            port.name: math.ceil(elements * port.tensor.elements / total)
            for port in self.sinks
            if not port.tensor.kind.per_batch
        }

    def turns(self, port: str) -> tuple[int, ...]:
        """Channels of a pixel after which the port goes on with what other ports give or take."""
        del port
        return ()

    @property
    def pipeline_cycles(self) -> int:
        """Cycles from an accepted last-needed input beat to the output beat it completes, unstalled (upper bound)."""
        return 4

    def latency_cycles(self, source: str) -> int:
        """As `pipeline_cycles`, but of one source and what it takes, not at most: `hdl.layers.passage` rests on it.

        Of a source that gives a tensor a batch, from the last input of the batch to the first beat."""
        del source
        return self.pipeline_cycles

    @property
    def strips(self) -> Strips | None:
        """How an engine goes through a frame that works strip by strip; None of a layer that hands on what it gets."""
        return None

    @property
    def weight_cycles(self) -> int:
        """Cycles from the last beat of a version of the weights to the first operation with it."""
        return 0

    @property
    def works_per_batch(self) -> bool:
        """Whether nothing that passes its ports passes once a frame."""
        return all(port.tensor.kind.per_batch for port in (*self.sinks, *self.sources))

    # ---- meaning ----------------------------------------------------------------------------------------

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Golden state before the first frame.

        ``parameters`` are initial weights by weight sink (for an update: by its source), values that are exact
        in that port's format, in the parameter's own shape."""
        del parameters
        return {}

    @abstractmethod
    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """One batch, exactly: codes in, codes out; per-frame arrays are ``(frames, height, width, channels)``.

        A weight sink at batch ``n`` gets version ``n`` (version 0: the initial weights).  May change ``state``."""

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """As `start`, for `reference`."""
        del parameters
        return {}

    @abstractmethod
    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """As `golden`, in float64 without any rounding or saturation of formats."""

    @property
    def closeness(self) -> dict[str, float]:
        """Source -> steps of its format that `golden` may be away from `reference`, where nothing saturates.

        The default is one rounding to nearest, and of per-batch sources one stochastic rounding."""
        return {port.name: 1.0 if port.tensor.kind.per_batch else 0.5 for port in self.sources}

    def distance(self, port: str, codes: IntArray, values: FloatArray) -> FloatArray:
        """Steps between what `golden` and `reference` say of a source."""
        fixed = self.port(port).tensor.fixed
        return np.abs(codes - np.clip(values / fixed.step, fixed.low, fixed.high))

    def evaluating(self, state: State, frames: int) -> tuple[Layer, State]:
        """This layer and a state, both free to be used up, with which `golden` evaluates ``frames`` frames.

        Evaluation learns nothing: statistics stay as they are, nothing is dropped.  The default suits layers whose
        golden model depends on no frame before; it is called on a layer whose recipe has staleness 0."""
        del frames
        return self, dict(state)

    def backward(self, tape: Tape) -> None:
        """Add this forward layer's backward nodes.  Layers of the backward pass have no backward of their own."""
        del tape
        raise TypeError(f"{type(self).__name__} has no backward pass")

    # ---- hardware ---------------------------------------------------------------------------------------

    def memories(self) -> tuple[Memory, ...]:
        """Memories with an image; their names are the `image` names in the circuit."""
        return ()

    def images(self, state: State) -> dict[str, list[int]]:
        """Contents (unsigned words) of `memories` that represent a golden state, and beats of preloaded `rings` by
        their name and of `replayed` sinks (version 0).

        Of the start state: the initial images.  Of a final state: what state memories and rings must hold then."""
        del state
        return {}

    @abstractmethod
    def circuit(
        self, clk: Any, rst: Any, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Any:
        """The elaborated MyHDL block between ``streams`` (one a port); ``images`` fill memories in simulation."""

    # ---- tests ------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def examples(cls) -> tuple[Layer, ...]:
        """Small instances, degenerate ones included, over which the conformance suite runs."""

    def sample(self, port: str, rng: np.random.Generator, count: int) -> IntArray:
        """Random legal codes for ``count`` tensors at a sink, ``(count, *shape)``; a quarter are `edge_codes`."""
        tensor = self.port(port).tensor
        codes = rng.integers(tensor.fixed.low, tensor.fixed.high + 1, (count, *tensor.shape), dtype=np.int64)
        edges = np.array(edge_codes(tensor.fixed))
        return np.where(rng.random(codes.shape) < EDGE_SHARE, rng.choice(edges, codes.shape), codes)


def edge_codes(fixed: Fixed) -> list[int]:
    """Codes at which a comparison, a rounding or a saturation that is off by one shows: 0, both ends, ±1, powers of two
    (half-way between codes of a coarser format) and their neighbours.  0 and the ends thrice."""
    powers = [sign << bit for bit in range(fixed.width) for sign in (1, -1)]
    near = [power + step for power in powers for step in (-1, 0, 1)]
    return [code for code in (*([0, fixed.low, fixed.high] * 3), *near) if fixed.low <= code <= fixed.high]


def lanes_for(elements: int, channels: int, cycles: int) -> int:
    """The fewest lanes that divide ``channels`` and pass ``elements`` within ``cycles``; all channels if none do."""
    return next((n for n in divisors(channels) if elements // n <= cycles), channels)


def weight_lanes(elements: int, tile: int, cycles: int) -> int:
    """The fewest lanes that divide ``tile`` (weights a tile) and pass all weights within ``cycles``, one frame's time.

    So an update reaches its users about one frame after the last gradient of its batch; all of the tile if none do."""
    return next((n for n in divisors(tile) if elements // n <= cycles), tile)


def divisors(number: int) -> list[int]:
    """Divisors, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def pack(codes: IntArray, width: int, lanes: int) -> list[int]:
    """Beats (unsigned payloads) of a flat code array in stream order; lane 0 in the low bits."""
    beats = codes.reshape(-1, lanes)
    found: list[int] = []
    for at in range(0, len(beats), max(1, PACKED_CODES // lanes)):
        part = np.ascontiguousarray(beats[at : at + max(1, PACKED_CODES // lanes)], dtype="<i8")
        raw = part.view(np.uint8).reshape(*part.shape, 8)
        if width % 8:
            bits = np.unpackbits(raw, axis=-1, count=width, bitorder="little").reshape(len(part), lanes * width)
            rows = np.packbits(bits, axis=-1, bitorder="little")
        else:
            rows = raw[:, :, : width // 8].reshape(len(part), lanes * width // 8)
        size, text = rows.shape[1], rows.tobytes()
        found += [int.from_bytes(text[i : i + size], "little") for i in range(0, len(text), size)]
    return found


def unpack(beats: Sequence[int], fixed: Fixed, lanes: int) -> IntArray:
    """Inverse of `pack`."""
    mask = (1 << fixed.width) - 1
    flat = [(beat >> (fixed.width * lane)) & mask for beat in beats for lane in range(lanes)]
    codes = np.array(flat, np.int64)
    return np.where(codes > fixed.high, codes - (1 << fixed.width), codes) if fixed.signed else codes


def to_beats(layer: Layer, port_name: str, tensors: IntArray) -> list[int]:
    """Beats of stacked tensors ``(count, *shape)`` at a port, in that port's stream order."""
    port = layer.port(port_name)
    flat = tensors.reshape(len(tensors), -1)
    order = layer.stream_order(port_name)
    return pack(flat if order is None else flat[:, order], port.tensor.fixed.width, port.lanes)


def from_beats(layer: Layer, port_name: str, beats: Sequence[int]) -> IntArray:
    """Inverse of `to_beats`."""
    port = layer.port(port_name)
    flat = unpack(beats, port.tensor.fixed, port.lanes).reshape(-1, port.tensor.elements)
    order = layer.stream_order(port_name)
    if order is not None:
        canonical = np.empty_like(flat)
        canonical[:, order] = flat
        flat = canonical
    return flat.reshape(-1, *port.tensor.shape)
