"""Chains of layers on many equal boards, folded and placed by their multipliers alone.

The search of `dagtrain place` takes an hour for a network like VGG-16 on 100 boards, since it prices every circuit.
What FPDeep's mapping counts are multipliers, so to stand beside it a graph of ours needs no more:

1. For an interval of T cycles, every layer gets the way to be in parts, and the tile, with the fewest multipliers:
   whole, by rows (`dagtrain.passes.split_rows`), or by output channels (`dagtrain.passes.split_layers`) where the
   copies of its input take no more than `COPIES` of a board's link.
2. The least T is taken whose engines, the largest ones first, each into the fullest board that has room, stand on the
   boards.  Of ways with as few multipliers that of the fewest parts is taken, or of the most where those find no room.
   Engines of a part stand together where they find room together, and always if its weights take longer than T to pass
   a link: all of its engines would rest for that, once a batch.
3. What has no multipliers stands where most of its bits come from and go to.

Where it is said in what part of a frame's time the sums of a batch leave (`fastest`, ``update_frames``), T is the pace
of training: an engine that rests once a batch works on frames so much faster.

On a chain of boards step 2 takes engines in the order of the network instead (`in_row`), each on the board of the one
before it or on the next one, so that words go to boards nearby.

Memory is not counted: neither block memory nor DRAM, in which dense weights would lie (docs/fpdeep.md has what they
want).  So a placement is a bound with all circuits, FIFOs and links of a plan around its multipliers, not a plan.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from typing import Any

from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.fold import fold_graph, weight_tiles
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.narrow_sums import narrow_sums
from dagtrain.passes.ragged_tiles import ragged_tiles
from dagtrain.passes.split_layers import PART, Parts, by_rows, split_layers
from dagtrain.passes.split_rows import ROWS, row_parts, split_rows, why_not
from dagtrain.passes.spread_updates import spread_updates
from dagtrain.passes.widths import FIT, SUM, Widths
from hdl.errors import DagtrainError, ShapeError
from hdl.layers.capabilities import Tiled, rounded_apart, updating_within, with_ragged_tiles
from hdl.layers.conv.roles import GradientEngine
from hdl.parts.part import Part
from hdl.tensor import Tile

# parts of a layer at most: sums of more by rows are wider than 62 bits
MOST_ROWS, MOST_OUTPUTS = 14, 24
# share of a board's link that copies of a layer's input may take, which stands on one board before them
COPIES = 0.5
# shares of a board that an engine may take at most, the largest ones first: smaller ones pack better
LARGEST = (1.0, 0.67, 0.5, 0.34, 0.25, 0.2, 0.17, 0.125)
# rounds in which nodes without multipliers move to their neighbours
ROUNDS = 8
# of a frame's time at most, for which an engine rests in the mean of a batch
LONGEST_REST = 0.5
# cycles a frame in which any engine is fast enough
ANY_PACE = 1 << 40
# multipliers of the engines of each part, boards, multipliers of one -> board of each engine; None: there is no room
Packing = Callable[[Sequence[Sequence[int]], int, int], list[list[int]] | None]
WORKING = (Role.FORWARD, Role.ERROR, Role.GRADIENT)
# forward, error and gradient engine of a layer or of a part of it
Engines = tuple[Any, ...]


@dataclass(frozen=True)
class Board:
    """All are alike."""

    part: Part
    # multipliers that may be used; one each DSP block
    dsp: int
    # bits a cycle, each direction
    link_bits: float


@dataclass(frozen=True)
class Way:
    """A layer in parts."""

    how: Parts
    # of each part, in order: its engines, before folding
    parts: tuple[Engines, ...]
    # bits of its input that leave one board, a frame
    copied_bits: int
    # whether rests once a batch count
    rests: bool = False
    # cycles a frame -> the tiles of each part, where all have some
    _fits: dict[int, tuple[Fit, ...] | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def engines(self) -> int:
        """Of all parts."""
        return sum(map(len, self.parts))

    def together(self, cycles: int, board: Board) -> bool:
        """Whether the engines of a part must stand on one board: its weights take longer than a frame to pass a link.

        Parts by rows pass theirs on from one to the next anyway."""
        bits = max(engines[0].port("w").tensor.bits for engines in self.parts)
        return not self.how.by_rows and bits > board.link_bits * cycles

    def levels(self, least: float, most: float) -> Iterator[int]:
        """Cycles a frame of all tiles, rests included, between these limits."""
        for engines in {*self.parts}:
            for offer in _offers(engines, self.rests):
                if least * (1 - LONGEST_REST) <= offer.pace <= most and least <= offer.pace + offer.rest_cycles <= most:
                    yield offer.pace + offer.rest_cycles

    def chosen(self, cycles: int, most: float, together: bool) -> Chosen | None:
        """With the tiles that folding chooses; None where a part has none so fast, or of more multipliers.

        ``together``: whether all engines of a part have no more, instead of each."""
        if cycles not in self._fits:
            kinds = {engines: self._fit(engines, cycles) for engines in {*self.parts}}
            found = tuple(fit for engines in self.parts if (fit := kinds[engines]) is not None)
            self._fits[cycles] = found if len(found) == len(self.parts) else None
        fits = self._fits[cycles]
        engines = len(self.parts[0]) if together else 1
        if fits is None or max(fit.multipliers for fit in fits) * engines > most:
            return None
        return Chosen(self, fits, together)

    def _fit(self, engines: Engines, cycles: int) -> Fit | None:
        """The tile that folding chooses for a part."""
        offer = self._first(engines, cycles, alone=True)
        while offer is not None:
            rest = offer.rest_cycles
            offer = self._first(engines, cycles - rest)
            if offer is not None and offer.rest_cycles <= rest:
                return Fit(offer.multipliers, rest)
        return None

    def _first(self, engines: Engines, pace: int, alone: bool = False) -> Offer | None:
        """That of the fewest multipliers at a pace; ``alone``: its own rest is in that."""
        for offer in _offers(engines, self.rests):
            if offer.pace > pace or (alone and offer.pace + offer.rest_cycles > pace):
                continue
            if all(one.suits(offer.tile, pace) for one in engines):
                return offer
        return None


@dataclass(frozen=True)
class Offer:
    """A tile for all engines of a part."""

    # of an engine
    multipliers: int
    # cycles a frame inside a batch, of the slowest engine
    pace: int
    tile: Tile
    # engines whose rests count
    resting: tuple[GradientEngine, ...]

    @cached_property
    def rest_cycles(self) -> int:
        """Cycles a frame for which an engine rests, in the mean of a batch."""
        return max((_rest(engine, self.tile) for engine in self.resting), default=0)


@cache
def _offers(engines: Engines, rests: bool) -> tuple[Offer, ...]:
    """Of all tiles that every engine can have, the fewest multipliers first; of layers that are alike, once."""
    found, resting = [], tuple(engine for engine in engines if rests and isinstance(engine, GradientEngine))
    for tile in engines[0].tiles(ANY_PACE):
        paces = [engine.least_cycles(tile) for engine in engines]
        if None not in paces:
            found.append(Offer(tile.size, max(paces), tile, resting))
    return tuple(found)


def _rest(engine: GradientEngine, tile: Tile) -> int:
    pace = engine.least_cycles(tile)
    assert pace is not None
    return math.ceil(engine.fold(pace, tile).drain_cycles / engine.recipe.batch)


@dataclass(frozen=True)
class Fit:
    """A tile for all engines of a part, at an interval."""

    # of an engine
    multipliers: int
    # cycles a frame that these must leave for a rest
    rest_cycles: int


@dataclass(frozen=True)
class Chosen:
    """A layer at an interval."""

    way: Way
    # of each part
    fits: tuple[Fit, ...]
    # whether the engines of a part stand on one board
    together: bool

    @property
    def total(self) -> int:
        """Multipliers of all parts."""
        return sum(map(sum, self.groups))

    @property
    def groups(self) -> list[list[int]]:
        """Multipliers, part by part, of what a board must have room for."""
        parts = [[fit.multipliers] * len(engines) for fit, engines in zip(self.fits, self.way.parts, strict=True)]
        return [[sum(sizes)] if self.together else sizes for sizes in parts]


@dataclass(frozen=True)
class ByMultipliers:
    """A network in parts on boards, at an interval."""

    cycles: int
    boards: int
    board: Board
    chosen: Mapping[str, Chosen]
    packing: Packing
    # frames' time in which sums and new weights of a batch pass
    update_frames: float = 1.0

    def tile_cycles(self, node: Node) -> int:
        """Of a frame, for which the tile of a node is chosen."""
        if node.whole not in self.chosen:
            return self.cycles
        _, _, part = node.layer_of.rpartition(PART)
        return self.cycles - self.chosen[node.whole].fits[int(part) if part.isdecimal() else 0].rest_cycles


def ways(graph: Graph, update_frames: float | None = None) -> dict[str, list[Way]]:
    """Of every layer with multipliers of a training graph; see `fastest`."""
    nodes: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.role in WORKING and isinstance(node.layer, Tiled) and node.layer.macs:
            nodes[node.whole].append(node)
    rests = update_frames is not None
    return {
        whole: [*_ways([updating_within(node.layer, update_frames or 1.0) for node in found], rests)]
        for whole, found in nodes.items()
    }


def _ways(layers: Sequence[Any], rests: bool) -> Iterator[Way]:
    layers = [with_ragged_tiles(layer) for layer in layers]
    taken = layers[0].port("x").tensor
    yield Way(Parts(1), (tuple(layers),), 0, rests)
    for count in range(2, MOST_ROWS + 1):
        try:
            rows = [row_parts(layer, count) for layer in layers]
        except ShapeError:
            break
        if all(rows):
            largest = [max(parts or (), key=lambda part: part.layer.rows_made).layer for parts in rows]
            # they have one tile, since weights and sums pass on from part to part
            yield Way(Parts(count, by_rows=True), (tuple(rounded_apart(layer) for layer in largest),) * count, 0, rests)
    channels = Parts(2).channels(layers[0])
    for count in range(2, min(channels, MOST_OUTPUTS) + 1):
        how = Parts(count)
        sizes = how.sizes(channels)
        of = {size: tuple(replace(layer, filters=size) for layer in layers) for size in {*sizes}}
        # to the forward and to the gradient engine of each
        yield Way(how, tuple(of[size] for size in sizes), 2 * count * taken.bits, rests)


def choose(
    found: Mapping[str, Sequence[Way]], cycles: int, most: float, board: Board, many: bool = False
) -> dict[str, Chosen] | None:
    """For every layer the way with the fewest multipliers, then the fewest parts, or the most, then by rows; None where
    one has no way with so few in an engine."""
    chosen = {}
    for whole, options in found.items():
        row = []
        for way in options:
            together = way.together(cycles, board)
            one = way.chosen(cycles, board.dsp if together else most, together)
            if one and way.copied_bits <= COPIES * board.link_bits * cycles:
                row.append(one)
        if not row:
            return None
        sign = -1 if many else 1
        chosen[whole] = min(row, key=lambda one: (one.total, sign * one.way.how.count, not one.way.how.by_rows))
    return chosen


def packed(groups: Sequence[Sequence[int]], boards: int, dsp: int) -> list[list[int]] | None:
    """A board for every engine of every part, of so many multipliers; None where they find no room.

    The largest go first, each to the fullest board that has room: of those that have it for all engines of the part,
    and where that fails, of all."""
    return _packed(groups, boards, dsp, True) or _packed(groups, boards, dsp, False)


def _packed(groups: Sequence[Sequence[int]], boards: int, dsp: int, together: bool) -> list[list[int]] | None:
    free = [dsp] * boards
    found: list[list[int]] = [[] for _ in groups]
    for index in sorted(range(len(groups)), key=lambda index: -max(groups[index], default=0)):
        for place, size in enumerate(groups[index]):
            rest = sum(groups[index][place:])
            options = [board for board in range(boards) if free[board] >= size]
            if together:
                options = (
                    [board for board in found[index] if free[board] >= size]
                    or [board for board in options if free[board] >= rest]
                    or options
                )
            if not options:
                return None
            chosen = min(options, key=lambda board: (free[board], board not in found[index], board))
            free[chosen] -= size
            found[index].append(chosen)
    return found


def in_row(groups: Sequence[Sequence[int]], boards: int, dsp: int) -> list[list[int]] | None:
    """As `packed`, of parts in the order of the network: the next engine stands beside the one before it where there is
    room, else on the next board."""
    board, free = 0, dsp
    found: list[list[int]] = []
    for group in groups:
        found.append([])
        for size in group:
            if size > free:
                board, free = board + 1, dsp
            if board == boards or size > free:
                return None
            free -= size
            found[-1].append(board)
    return found


def fastest(
    graph: Graph, boards: int, board: Board, packing: Packing = packed, update_frames: float | None = None
) -> ByMultipliers:
    """At the least interval at which all engines of a training graph stand on so many boards.

    ``update_frames``: part of a frame's time in which sums and new weights of a batch pass, where lanes allow it; for
    batches as long as those of the graph the interval then counts that engines rest so long.  None: they pass in a
    frame's time, and the interval is that inside a batch.

    Raises `DagtrainError` where there is none up to four times what multipliers that never idle would take."""
    found = ways(graph, update_frames)
    bound = sum(node.layer.macs for node in graph.nodes) / (boards * board.dsp)
    levels = {level for options in found.values() for way in options for level in way.levels(bound, 4 * bound)}
    for cycles in sorted(levels):
        # parts pass less on the fewer they are, and find more room the more
        for share, many in product(LARGEST, (False, True)):
            chosen = choose(found, cycles, share * board.dsp, board, many)
            if chosen is None or sum(one.total for one in chosen.values()) > boards * board.dsp:
                continue
            groups = [group for one in chosen.values() for group in one.groups]
            if packing(groups, boards, board.dsp) is not None:
                return ByMultipliers(cycles, boards, board, chosen, packing, update_frames or 1.0)
    raise DagtrainError(f"{graph.name} on {boards} boards of {board.dsp} DSP blocks: no interval was found")


# ---- the graph


def trained(forward: Graph) -> Graph:
    """The training graph, whose sums of gradients have the bits of `dagtrain import --bits sum=fit`: parts by rows send
    them over links once a batch."""
    return narrow_sums(differentiate(forward), Widths({SUM: FIT}))


def in_parts(forward: Graph, chosen: ByMultipliers) -> Graph:
    """The folded graph, in its parts; what follows a layer in parts by rows is in as many, where it can be."""
    parts = {whole: one.way.how for whole, one in chosen.chosen.items() if one.way.how.count > 1}
    training = trained(split_layers(forward, parts))
    rows = by_rows(parts)
    nodes: dict[str, list[Node]] = defaultdict(list)
    for node in training.nodes:
        if node.role in WORKING and not node.layer.works_per_batch:
            nodes[node.whole].append(node)
    count = 1
    for node in forward.nodes:
        if node.name in chosen.chosen:
            count = rows.get(node.name, 1)
        elif count > 1 and all(why_not(one, count) is None for one in nodes[node.name]) and nodes[node.name]:
            rows[node.name] = count
    streaming = ragged_tiles.run(insert_forks(split_rows(training, rows)))
    streaming, built = spread_updates.run(streaming, chosen.update_frames), (chosen.board.part,)
    tiles = weight_tiles(streaming, {node.name: chosen.tile_cycles(node) for node in streaming.nodes}, built)
    return fold_graph(streaming, chosen.cycles, built, tiles)


def placed(folded: Graph, chosen: ByMultipliers, devices: Sequence[str]) -> dict[str, str]:
    """Node -> device."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in folded.nodes:
        if node.layer.multipliers and not node.layer.pinned_to_host:
            groups[node.layer_of].append(node)
    pinned = {node.name: 0 for node in folded.nodes if node.layer.pinned_to_host}
    sizes = []
    for group in groups.values():
        engines = [int(node.layer.multipliers) for node in group]
        sizes.append([sum(engines)] if chosen.chosen[group[0].whole].together else engines)
    boards = chosen.packing(sizes, chosen.boards, chosen.board.dsp)
    if boards is None:
        raise DagtrainError(f"{folded.name}: engines of unlike parts found no room on {chosen.boards} boards")
    where = dict(pinned)
    for group, found in zip(groups.values(), boards, strict=True):
        # one board for all of what stands together
        where |= dict(zip((node.name for node in group), found * (len(group) // len(found)), strict=True))
    where |= {node: where[engine] for node, engine in _handing_on(folded) if engine in where}
    _gather(folded, where, fixed=frozenset(where))
    return {node.name: devices[where.get(node.name, 0)] for node in folded.nodes}


def _handing_on(folded: Graph) -> Iterator[tuple[str, str]]:
    """What hands on what comes once a batch from a part of a layer to the next one -> the engine of its part: gathered
    they would all be drawn to one board, whose port would carry it as often as there are parts."""
    for node in folded.nodes:
        if ROWS in node.layer_of and node.layer.works_per_batch:
            if node.role is Role.SUM:
                yield node.name, folded.producers[node.inputs["g"]][0].name
            elif node.role is Role.FORK:
                yield node.name, node.layer_of


def _gather(folded: Graph, where: dict[str, int], fixed: frozenset[str]) -> None:
    """Moves all nodes that are not fixed, in rounds, to where most bits of a frame come from and go to."""
    beside: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for _edge, producer, source, consumer, _sink in folded.streams:
        tensor = source.tensor
        bits = tensor.bits / (folded.recipe.batch if tensor.kind.per_batch else 1)
        beside[producer.name].append((consumer.name, bits))
        beside[consumer.name].append((producer.name, bits))
    for _ in range(ROUNDS):
        before = dict(where)
        for node in folded.nodes:
            if node.name in fixed:
                continue
            pull: dict[int, float] = defaultdict(float)
            for other, bits in beside[node.name]:
                if other in where:
                    pull[where[other]] += bits
            if pull:
                # the one where it is, of equals
                where[node.name] = max(pull, key=lambda board: (pull[board], board == where.get(node.name), -board))
        if before == where:
            break
