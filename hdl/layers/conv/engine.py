"""What the engines of convolutions share: a weight tile a cycle, its choice, and the way of weights and gradients.

An engine multiplies one `Tile` of weights a cycle: ``po`` filters, ``pi`` channels, ``pk`` taps of each.  The three
engines of one convolution share the tile, so weights and gradients stream in the order in which they are stored.

An engine is of a kind and has a role.  The kind (`hdl.layers.conv.dense`, `hdl.layers.conv.depthwise`) says which
weights there are, in which order an engine works, and its sums and circuits.  The role (`hdl.layers.conv.roles`:
forward, error, gradient) says which maps come and go, and what becomes of sums.  What is left is here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

from hdl.engine.window.frame_buffers import SHORTEST_PASS
from hdl.engine.window.strips import WEIGHT_LATENCY, adapter_cycles
from hdl.engine.window.walk import Walk
from hdl.errors import FoldingError
from hdl.fixed import Fixed
from hdl.layers.conv.narrow import Correlation
from hdl.layers.folding import divisors, lanes_for, weight_lanes
from hdl.layers.storage import Home
from hdl.layers.windowed import Windowed
from hdl.memory import LOGIC_MEMORY_WORDS
from hdl.parts.catalogue import DEFAULT_PARTS
from hdl.parts.part import Part, block_share
from hdl.recipe import Recipe
from hdl.spelling import QUIET
from hdl.tensor import Tile

# cycles from the last use of a version to the first use of the next one, beside those in which it comes, at most
LOAD_LATENCY = 16
# upper bound on the cycles of adapters, memories, multipliers, adder tree, rounding and output queue
PIPELINE = 64
# cycles of work on the shortest row that is stored, at least: enough for some rows to be on their way
SHORTEST_STRIP = 64
# bits of a weight or a sum that tiles of one size are compared at
SHARE_BITS = 16

# bits a cycle in which a version comes from DRAM at most: those of the port to a channel of 64-bit DDR4
MOST_PARKED_BITS = 512

# engines whose tiles are remembered: of all ways in which a large network shares weights
KEPT_ENGINES = 1 << 14

# fields of an example, lanes of its input map, lanes of its output map
Example = tuple[dict[str, Any], int, int]


@dataclass(frozen=True)
class KnownTiles:
    """The tiles that an engine may have, worked out when they are first asked for."""

    # tile -> cycles a frame with it if no port is slower; none: not yet
    paces: dict[Tile, int] = field(default_factory=dict)
    # names of parts -> the tiles, the best for these first
    orders: dict[tuple[str, ...], list[Tile]] = field(default_factory=dict)


@lru_cache(maxsize=KEPT_ENGINES)
def _known_tiles_of(_engine: WindowEngine) -> KnownTiles:
    """The same one for all engines alike: graphs of a plan are made anew again and again."""
    return KnownTiles()


@dataclass(frozen=True, kw_only=True)
class WindowEngine(Windowed):
    """An engine of a convolution, whatever its kind and its role."""

    recipe: Recipe = field(default_factory=Recipe)
    # elements a beat of weights or gradients
    w_lanes: int = 1
    tile: Tile = field(default_factory=Tile)
    # frames' time in which weights that are kept on chip come, and gradients go, once a batch
    update_frames: float = field(default=1, repr=False, metadata=QUIET)
    # whether folding looks for few block memories of maps as well, and kernels of one tap store parts of rows
    small_buffers: bool = field(default=False, metadata=QUIET)

    # which tiles can be built, for messages
    tile_rule: ClassVar[str]

    def __post_init__(self) -> None:
        self.check_shape()
        if not self._buildable(self.tile):
            raise FoldingError(
                f"{self.name}, stride {self.stride}: tile {self.tile} is impossible",
                f"{self.tile_rule}, pk be one of {self.tap_groups}"
                + (f", a pass over the map last {SHORTEST_PASS} cycles" if self.streamed else ""),
            )
        if self.w_lanes < 1 or self.tile.size % self.w_lanes:
            raise FoldingError(f"{self.name}: {self.w_lanes} weight lanes do not divide a tile of {self.tile.size}")

    # ---- what a kind says

    @property
    @abstractmethod
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Shape of the weights, as ONNX writes it: filters, channels of each, rows, columns."""

    @abstractmethod
    def walk_of(self, tile: Tile) -> Walk:
        """The order of work with that tile."""

    @abstractmethod
    def correlation(self, shift: int, target: Fixed) -> Correlation:
        """What makes results of narrow codes, by ``2**-shift`` into ``target``."""

    @abstractmethod
    def map_words_of(self, tile: Tile) -> tuple[int, int]:
        """Elements of the forward layer's input map and of its output map that it handles at a time with that tile."""

    @property
    def map_words(self) -> tuple[int, int]:
        """With its own."""
        return self.map_words_of(self.tile)

    @property
    def pads(self) -> bool:
        """Whether ragged tiles can be built."""
        return False

    @property
    def home(self) -> Home:
        """Where versions of the weights live, or the sums of their gradients."""
        return Home.ON_CHIP

    @classmethod
    @abstractmethod
    def example_fields(cls) -> list[Example]:
        """For the suite."""

    @property
    def shared(self) -> dict[str, Any]:
        """Fields that mean the same in all engines of a convolution."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(WindowEngine)}

    # ---- dimensions

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """Shape of the forward layer's output."""
        return (*self.window.output, self.weight_shape[0])

    @property
    def weight_count(self) -> int:
        """Number of weights."""
        return math.prod(self.weight_shape)

    @property
    def words(self) -> int:
        """Tiles in all weights."""
        return math.prod(self.tile.counts(self.weight_shape))

    @property
    def tiled_count(self) -> int:
        """Number of weights, empty places of tiles included."""
        return self.words * self.tile.size

    @property
    def ragged_words(self) -> tuple[int, int]:
        """Elements a pixel of the forward layer's input map and of its output map, where they are no whole number of
        `map_words`; else 0."""
        filters, channels = self.weight_shape[:2]
        return channels if channels % self.tile.pi else 0, filters if filters % self.tile.po else 0

    @property
    def multipliers(self) -> int:
        """Multipliers built."""
        return self.tile.size

    @property
    def macs(self) -> int:
        """Multiplications a frame, those with padding counted."""
        return math.prod(self.output_shape) * math.prod(self.weight_shape[1:])

    @property
    def tap_row_words(self) -> int:
        """Weight words from a row of taps to the next."""
        return self.kernel[1] // self.parallel_taps(self.tile.pk)[1]

    @cached_property
    def walk(self) -> Walk:
        """The order of work; with small buffers and a kernel that sees one pixel, over parts of rows."""
        walk = self.walk_of(self.tile)
        whole, length = walk.columns.stored, self._short_row(walk)
        return walk if length == whole else walk.in_short_rows(length)

    def _short_row(self, walk: Walk) -> int:
        """Pixels of a stored row: the fewest that divide those of the map's and keep the engine busy while a row comes
        or goes, and two rows of which are worth a block memory."""
        whole = walk.columns.stored
        pointwise = (*self.kernel, *self.stride) == (1, 1, 1, 1) and not any(self.padding)
        if not (self.small_buffers and pointwise) or walk.outer_repeat:
            return whole
        work = max(walk.cycles // walk.pixels, walk.groups)
        lengths = (
            length
            for length in divisors(whole)
            if length * work >= SHORTEST_STRIP and 2 * length * walk.groups > LOGIC_MEMORY_WORDS
        )
        return next(lengths, whole)

    def stream_tile(self, port: str) -> Tile | None:
        """Weights and gradients flow tile by tile, and sums of these."""
        return self.tile if self.port(port).tensor.kind.of_parameter else None

    # ---- weights outside

    @property
    def streamed(self) -> bool:
        """Whether weights come once a frame, or sums of gradients come and go."""
        return self.home in (Home.DRAM, Home.REMOTE)

    @property
    def load_cycles(self) -> int:
        """Cycles for which the engine rests once a batch while it takes the next version in place of the one before, if
        ``w`` doesn't stall."""
        return LOAD_LATENCY + self.tiled_count // self.w_lanes if self.home is Home.PARKED else 0

    @property
    def weight_cycles(self) -> int:
        """Through the width adapter into the buffer."""
        return WEIGHT_LATENCY + adapter_cycles(self.w_lanes, self.tile.size)

    # ---- cycles and folding

    @property
    def cycles_per_frame(self) -> int:
        """One tile a cycle, but no faster than any port, nor than one word of the stored map a cycle."""
        cycles = super().cycles_per_frame
        return max(cycles, self.tiled_count // self.w_lanes) if self.streamed else cycles

    @property
    def pipeline_cycles(self) -> int:
        """The work of all rows that one stored row may have held up, and the pipeline.

        Of a gradient: from the last input of a batch to its first gradients."""
        return self.walk.waiting_cycles + PIPELINE

    def _buildable(self, tile: Tile) -> bool:
        filters, channels = self.weight_shape[:2]
        if tile.po > filters or tile.pi > channels or tile.pk not in self.tap_groups:
            return False
        if not self.pads and not tile.divides(self.weight_shape):
            return False
        if not self.streamed:
            return True
        walk = self.walk_of(tile)
        return walk.cycles // walk.passes >= SHORTEST_PASS

    def tiles(self, cycles: int, parts: Sequence[Part] = DEFAULT_PARTS) -> Iterator[Tile]:
        """Every tile with at most ``cycles`` a frame; fewest multipliers, then least memory wasted by odd widths, then
        the least lanes of maps (each engine stores and reads one of them ``po`` or ``pi`` lanes wide).  With small
        buffers the least share of a part's blocks, of multipliers and memory together, comes first."""
        return (tile for tile in self._ordered(parts) if self.suits(tile, cycles))

    def has_tile(self, cycles: int) -> bool:
        """Whether any is so fast, in whatever order they come; the largest are tried first."""
        return any(self.suits(tile, cycles) for tile in reversed(self._paces))

    def suits(self, tile: Tile, cycles: int) -> bool:
        """Whether a tile is one of `tiles`: neither it nor any port is slower."""
        least = self.least_cycles(tile)
        if least is None or least > cycles:
            return False
        # other ports are as wide as need be; weights are no wider than the tile
        return not self.streamed or self._with(tile, cycles).cycles_per_frame <= cycles

    def least_cycles(self, tile: Tile) -> int | None:
        """As its tile and its widest ports allow."""
        pace = self._paces.get(tile) or self._pace(tile)
        return None if pace is None else max(pace, self._widest_port_cycles)

    @cached_property
    def _widest_port_cycles(self) -> int:
        """As the widest ports of maps allow."""
        return max(port.tensor.elements // port.tensor.shape[-1] for port in self.frame_ports)

    @cached_property
    def _known_tiles(self) -> KnownTiles:
        """What was worked out for an engine like this one, or is now."""
        return _known_tiles_of(self)

    @property
    def _paces(self) -> dict[Tile, int]:
        """Every tile that folding chooses among -> cycles a frame with it if no port is slower."""
        if not self._known_tiles.paces:
            for po, pi in self._lanes():
                for pk in self.tap_groups:
                    tile = Tile(po, pi, pk)
                    pace = self._pace(tile)
                    if pace is not None:
                        self._known_tiles.paces[tile] = pace
        return self._known_tiles.paces

    def _pace(self, tile: Tile) -> int | None:
        """Cycles a frame with a tile if no port is slower; None if it can't be built."""
        if not self._buildable(tile):
            return None
        walk = self.walk_of(tile)
        return max(walk.cycles, walk.words)

    def _lanes(self) -> Iterator[tuple[int, int]]:
        """Filters and channels of the tiles that folding chooses among."""
        return itertools.product(divisors(self.weight_shape[0]), divisors(self.weight_shape[1]))

    def _ordered(self, parts: Sequence[Part]) -> list[Tile]:
        """The tiles in the order of `tiles`."""
        names = tuple(part.name for part in parts)
        if names not in self._known_tiles.orders:
            ranks = [(self._rank(tile, parts), tile) for tile in self._paces]
            self._known_tiles.orders[names] = [tile for _, tile in sorted(ranks)]
        return self._known_tiles.orders[names]

    def _rank(self, tile: Tile, parts: Sequence[Part]) -> tuple[Fraction | int, ...]:
        """What `tiles` orders by: multipliers; with small buffers some more, where that saves more of the memory."""
        if not self.small_buffers:
            return tile.size, self._memory_share(tile, parts), tile.po + tile.pi
        factors = {(SHARE_BITS, SHARE_BITS): tile.size}
        multipliers = max(Fraction(part.dsp_blocks(factors), part.dsp) for part in parts)
        return multipliers + self._buffer_share(tile, parts), tile.size, tile.po + tile.pi

    def _buffer_share(self, tile: Tile, parts: Sequence[Part]) -> Fraction:
        """Memory blocks of an engine beside its multipliers."""
        return self._memory_share(tile, parts)

    def _memory_share(self, tile: Tile, parts: Sequence[Part]) -> Fraction:
        """Memory blocks of the weights (or their sums), to tell apart tiles of one size."""
        words = self._versions_told_apart * math.prod(tile.counts(self.weight_shape))
        return block_share(parts, words, tile.size * SHARE_BITS)

    @property
    def _versions_told_apart(self) -> int:
        """Versions of the weights (or their sums) by which tiles of one size are told apart."""
        return 2

    def fold(self, cycles: int, tile: Tile | None = None) -> Self:
        """The variant with this tile and the fewest lanes for ``cycles`` a frame."""
        if tile is None:
            tile = next(self.tiles(cycles), None)
        if tile is not None:
            folded = self._with(tile, cycles)
            rests = -(-folded.load_cycles // self.recipe.batch)
            if folded.cycles_per_frame + rests <= cycles and 2 * folded.load_cycles <= cycles:
                return folded
        paces = {least: each for each in self._paces if (least := self.least_cycles(each)) is not None}
        fastest = f": the fastest, {paces[min(paces)]}, takes {min(paces)}" if tile is None and paces else ""
        said = "no tile manages" if tile is None else f"{tile} does not manage"
        raise FoldingError(
            f"{self.name}, stride {self.stride}: {said} {cycles} cycles a frame",
            f"allow more cycles{fastest}",
        )

    def _with(self, tile: Tile, cycles: int) -> Self:
        """This engine with that tile and the lanes for ``cycles``."""
        lanes = {
            f"{port.name}_lanes": lanes_for(port.tensor.elements, port.tensor.shape[-1], cycles)
            for port in self.frame_ports
        }
        elements = self.weight_count + tile.padding(self.weight_shape)
        lanes["w_lanes"] = self._weight_lanes(elements, tile.size, self._passing_cycles(tile, cycles))
        return dataclasses.replace(self, tile=tile, **lanes).widened(cycles)  # type: ignore[arg-type]

    def _weight_lanes(self, elements: int, tile: int, cycles: int) -> int:
        """The fewest lanes for so many cycles; of versions that come from a memory port no more than it has."""
        lanes = weight_lanes(elements, tile, cycles)
        if self.home is Home.PARKED:
            most = max(1, MOST_PARKED_BITS // self.port("w").tensor.fixed.width)
            lanes = max(n for n in divisors(tile) if n <= min(lanes, most))
        return lanes

    def _passing_cycles(self, tile: Tile, cycles: int) -> int:
        """Cycles in which all weights should come, or gradients go, at that pace."""
        if self.home is Home.PARKED:
            return self._loading_cycles(cycles)
        # streamed weights of a pass must be there a few cycles before it, and its gradients leave a few cycles later
        if self.streamed:
            return cycles - 2 * SHORTEST_PASS * self.walk_of(tile).passes
        return int(cycles * self.update_frames)

    def _loading_cycles(self, cycles: int) -> int:
        """Cycles in which a version should be taken at that pace: the FIFO of the map holds two rows, and half of one
        is for what comes meanwhile."""
        frame = self.frame_ports[0].tensor.shape
        return max(1, cycles // (2 * frame[0]) - LOAD_LATENCY)
