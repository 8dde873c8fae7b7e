"""Forward and error engine of one convolution with one weight memory between them: one circuit of two nodes.

Both engines read a word of weights in every cycle, each in the order of its own walk, through the two ports of one
memory (`hdl.engine.weights.shared`), so a version of the weights lies on chip once instead of twice.  What goes in and
out, and every bit, are those of the two engines apart: `hdl.layers.conv.dense.Conv`, `hdl.layers.conv.dense.ConvError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hdl.engine.window.convolution import convolution_pair
from hdl.engine.window.strips import WEIGHT_LATENCY, adapter_cycles
from hdl.errors import FoldingError
from hdl.fixed import Fixed, FloatArray, IntArray
from hdl.layers.conv.dense import Conv, ConvError, DenseEngine, engine_shape
from hdl.layers.conv.engine import Example
from hdl.layers.conv.roles import DATA, ERROR, WEIGHT
from hdl.layers.meaning import State
from hdl.layers.shape import RowPart
from hdl.layers.storage import Home, Memory
from hdl.parts.catalogue import DEFAULT_PARTS
from hdl.parts.part import Part
from hdl.signals import ClockReset, Instances
from hdl.stream import Stream
from hdl.tensor import Port, Tile

# cycles from a word of a new version at the memory to its write, of which there is one in two cycles
WRITE_LATENCY = 1
# examples of the engines that are there as pairs as well, and with one version of their weights: a tile of several
# taps, one tap with a stride, of few and of all frames stale, in groups
PAIRED_EXAMPLES = ((1, Home.ON_CHIP), (2, Home.ON_CHIP), (3, Home.PARKED), (8, Home.PARKED), (10, Home.ON_CHIP))


@dataclass(frozen=True, kw_only=True)
class ConvPair(DenseEngine):
    """Sinks ``x``, ``e`` and ``w``, sources ``y`` and ``dx``: as of `Conv` and `ConvError`, of one tile.

    Costs what the two cost less one of their weight memories; what is left of them takes blocks both of whose ports
    read.  Raises `FoldingError` where one of the two can't have the tile, or the weights lie outside."""

    x_lanes: int = 1
    e_lanes: int = 1
    y_lanes: int = 1
    dx_lanes: int = 1
    x_fixed: Fixed = DATA
    e_fixed: Fixed = ERROR
    w_fixed: Fixed = WEIGHT
    y_fixed: Fixed = DATA
    dx_fixed: Fixed = ERROR

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.streamed:
            raise FoldingError(f"{self.name}: weights that two engines share lie on chip", "keep them there")
        assert all(engine.words == self.words for engine in self.engines)

    @classmethod
    def of(cls, forward: Conv, error: ConvError) -> Self:
        """The two with one memory.  Raises `FoldingError` where they can't share."""
        given = {key: value for key, value in forward.shared.items() if error.shared[key] != value}
        # loaded through the one sink that there is, as wide as the forward engine has it
        given.pop("w_lanes", None)
        if given or error.weights not in (forward.weights, Home.LENT) or forward.frozen or error.frozen:
            raise FoldingError(f"{forward.name} and {error.name} can't share weights", "fold both for one tile")
        fields = {field.name for field in dataclasses.fields(cls)}
        ports = {
            name: getattr(engine, name)
            for engine in (error, forward)
            for field in dataclasses.fields(engine)
            if (name := field.name) in fields
        }
        return cls(**ports)

    # ---- the two

    @property
    def forward(self) -> Conv:
        """The forward engine."""
        return Conv(**self._fields_of(Conv))

    @property
    def error(self) -> ConvError:
        """The error engine."""
        return ConvError(**self._fields_of(ConvError))

    @property
    def engines(self) -> tuple[Conv, ConvError]:
        """Whose ports, meanings and cycles are those of the pair, port by port."""
        return self.forward, self.error

    @property
    def built(self) -> Self:
        """As each of them is."""
        return self.of(self.forward.built, self.error.built)

    def _fields_of(self, kind: type[DenseEngine]) -> dict[str, Any]:
        names = {field.name for field in dataclasses.fields(kind)}
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name in names}

    def _made_by(self, source: str) -> Conv | ConvError:
        return self.forward if source == "y" else self.error

    # ---- ports

    def row_part(self, first: int, end: int) -> RowPart | None:
        """None: parts are made of its engines, before these share a memory."""
        del first, end
        return None

    @property
    def sinks(self) -> tuple[Port, ...]:
        """x, e, w."""
        return (self.forward.stored, self.error.stored, *self.forward.weight_ports)

    @property
    def sources(self) -> tuple[Port, ...]:
        """y, dx."""
        return (*self.forward.sources, *self.error.sources)

    # ---- cycles and folding

    @property
    def multipliers(self) -> int:
        """Of both."""
        return 2 * self.tile.size

    @property
    def macs(self) -> int:
        """Of both."""
        return sum(engine.macs for engine in self.engines)

    @property
    def cycles_per_frame(self) -> int:
        """Of the slower one, if nothing else holds up the faster one."""
        return max(engine.cycles_per_frame for engine in self.engines)

    @property
    def words_along(self) -> Mapping[str, int]:
        """None: each engine keeps to its own strips."""
        return {}

    @property
    def pipeline_cycles(self) -> int:
        """Of the longer one."""
        return max(engine.pipeline_cycles for engine in self.engines)

    @property
    def weight_cycles(self) -> int:
        """Through the width adapter into the memory."""
        return WEIGHT_LATENCY + WRITE_LATENCY + adapter_cycles(self.w_lanes, self.tile.size)

    @property
    def stolen_cycles(self) -> int:
        """One for each word of a version that finds no other cycle."""
        return self.words

    @property
    def load_cycles(self) -> int:
        """Cycles for which an engine rests once a batch while the next version comes in place of the one before, after
        both are through with it, if ``w`` doesn't stall: a word comes in two cycles at best."""
        return super().load_cycles + self.words if self.home is Home.PARKED else 0

    def required(self, source: str, elements: int) -> dict[str, int]:
        """Each needs nothing of the other."""
        return {"x": 0, "e": 0} | self._made_by(source).required(source, elements)

    def tiles(self, cycles: int, parts: Sequence[Part] = DEFAULT_PARTS) -> Iterator[Tile]:
        """Of the forward engine, those that suit both."""
        return (tile for tile in self.forward.tiles(cycles, parts) if self.error.suits(tile, cycles))

    def suits(self, tile: Tile, cycles: int) -> bool:
        """Whether it suits both."""
        return all(engine.suits(tile, cycles) for engine in self.engines)

    def least_cycles(self, tile: Tile) -> int | None:
        """Of the slower one."""
        found = [engine.least_cycles(tile) for engine in self.engines]
        return None if None in found else max(cycles for cycles in found if cycles is not None)

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """Both folded."""
        tile = tile or next(self.tiles(cycles), None)
        if tile is None:
            raise FoldingError(f"{self.name}: no tile suits both at {cycles} cycles a frame", "allow more cycles")
        return self.of(self.forward.fold(cycles, tile), self.error.fold(cycles, tile))

    # ---- meaning

    def start(self, parameters: Mapping[str, FloatArray]) -> State:
        """Of both."""
        return {"engines": [engine.start(parameters) for engine in self.engines]}

    def start_reference(self, parameters: Mapping[str, FloatArray]) -> State:
        """Of both."""
        return {"engines": [engine.start_reference(parameters) for engine in self.engines]}

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Of both."""
        made = [engine.golden(part, inputs) for engine, part in zip(self.engines, state["engines"], strict=True)]
        return made[0] | made[1]

    def reference(self, state: State, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Of both."""
        made = [engine.reference(part, inputs) for engine, part in zip(self.engines, state["engines"], strict=True)]
        return made[0] | made[1]

    # ---- memories and circuit

    @property
    def parked(self) -> Mapping[str, int]:
        """w, if one version lives here."""
        return {"w": self.load_cycles} if self.home is Home.PARKED else {}

    def memories(self) -> tuple[Memory, ...]:
        """The versions of the weights."""
        return self.forward.memories()

    def images(self, state: State) -> dict[str, list[int]]:
        """Version 0."""
        return self.forward.images(state["engines"][0])

    def circuit(
        self, domain: ClockReset, streams: Mapping[str, Stream], images: Mapping[str, Sequence[int]] | None = None
    ) -> Instances:
        """See `hdl.engine.window.convolution.convolution_pair`."""
        ports = (streams[port.name] for port in (*self.sinks, *self.sources))
        forward, error = (engine_shape(engine) for engine in self.engines)
        return convolution_pair(domain, *ports, forward=forward, error=error, contents=(images or {}).get("weights"))

    @classmethod
    def example_fields(cls) -> list[Example]:
        """Those of `PAIRED_EXAMPLES`."""
        return [Conv.example_fields()[index] for index, _ in PAIRED_EXAMPLES]

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Tiles, a stride, groups, versions of weights."""
        pairs = ((ConvError.examples()[index], index, home) for index, home in PAIRED_EXAMPLES)
        return tuple(
            cls.of(
                dataclasses.replace(Conv.examples()[index], tile=error.tile, w_lanes=error.w_lanes, weights=home),
                dataclasses.replace(error, weights=home),
            )
            for error, index, home in pairs
        )
