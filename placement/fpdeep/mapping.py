"""FPDeep's mapping with its engines, and how fast it is (TC 3.4.2, equations (7) and (11); 5.3 to 5.5).

Each part has an engine a phase, of tiles of K × K DSPs; a tile does a K × K convolution a cycle.  A board's DSPs go,
tile by tile, to the slowest of its engines, so that what idles is what rounding to K × K leaves (TC 6.3.3), and what
whole channels do.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from hdl.errors import DagtrainError, Problem
from placement.fpdeep.chain import Chain, Layer, Phase
from placement.fpdeep.partition import Dealing, Part, parts


@dataclass(frozen=True)
class Engine:
    """Of one phase of a part."""

    part: Part
    phase: Phase
    # multiplications a frame
    macs: Fraction
    # K × K
    taps: int
    # of channels, at each pixel, that its tiles share: more tiles than pairs are of no use
    pairs: int
    tiles: int = 1

    @property
    def dsp(self) -> int:
        """Multipliers built."""
        return self.taps * self.tiles

    @property
    def cycles(self) -> Fraction:
        """A frame, no tile ever idle."""
        return self.macs / (self.taps * min(self.tiles, self.pairs))

    @property
    def whole_cycles(self) -> Fraction:
        """A frame, where all tiles begin a pixel together and the last pass over its pairs may leave some idle."""
        return self.macs / (self.taps * self.pairs) * math.ceil(Fraction(self.pairs, self.tiles))


@dataclass(frozen=True)
class Cut:
    """What crosses from a board to the next one, a frame."""

    # the board before it
    board: int
    # layer that it cuts, or before which it stands
    layer: str
    inside: bool
    # elements
    forward: int
    backward: int

    @property
    def both(self) -> int:
        """Elements of both directions."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Mapping:
    """A chain on equal boards."""

    chain: Chain
    boards: int
    # of every board that may be used
    dsp: int
    dealing: Dealing
    engines: tuple[Engine, ...]

    @property
    def parts(self) -> list[Part]:
        """In the order of the chain."""
        return list(dict.fromkeys(engine.part for engine in self.engines))

    @cached_property
    def cycles(self) -> Fraction:
        """A frame: those of the slowest engine, equation (7)."""
        return max(engine.cycles for engine in self.engines)

    @cached_property
    def whole_cycles(self) -> Fraction:
        """The same with whole passes over the channels of a pixel."""
        return max(engine.whole_cycles for engine in self.engines)

    def on(self, board: int) -> list[Engine]:
        """Engines of a board."""
        return [engine for engine in self.engines if engine.part.board == board]

    def dsp_of(self, board: int) -> int:
        """Multipliers built on a board."""
        return sum(engine.dsp for engine in self.on(board))

    def layer(self, part: Part) -> Layer:
        """That it is of."""
        return self.chain.layers[part.layer]

    def operations_of(self, board: int) -> Fraction:
        """A frame."""
        return 2 * sum((engine.macs for engine in self.on(board)), Fraction(0))

    def idle(self, cycles: Fraction, board: int | None = None) -> float:
        """Share of the cycles of the multipliers built, of a board or of all, in which they have nothing to do."""
        engines = self.engines if board is None else self.on(board)
        built = sum(engine.dsp for engine in engines)
        return float(1 - sum((engine.macs for engine in engines), Fraction(0)) / (built * cycles)) if built else 0.0

    def weights(self, board: int, off_chip: bool = False) -> int:
        """Weights that a board keeps on its chip, or off it."""
        found = 0
        for part in self.parts:
            layer = self.layer(part)
            if part.board == board and layer.off_chip is off_chip:
                found += layer.weights * part.channels // _channels(layer, part)
        return found

    @property
    def cuts(self) -> list[Cut]:
        """Between every board and the next (TC 5.1, datapaths 1 to 4)."""
        row = self.parts
        return [_cut(self.chain, a, b) for a, b in itertools.pairwise(row) if a.board != b.board]


def _channels(layer: Layer, part: Part) -> int:
    return layer.inputs if part.by_inputs else layer.outputs


def _cut(chain: Chain, before: Part, after: Part) -> Cut:
    """Between two parts that follow one another."""
    layer = chain.layers[after.layer]
    if before.layer != after.layer:
        words = layer.input_words
        return Cut(before.board, layer.name, False, words, words if layer.error_macs else 0)
    taught = layer.input_words if layer.error_macs else 0
    done = Fraction(after.before, _channels(layer, after))
    if after.by_inputs:
        # channels that others take, and partial sums of all output channels; back all errors, and those made of them
        rest = 1 - done
        forward = rest * layer.input_words + layer.output_words
        backward = layer.output_words + rest * taught
    else:
        # the whole input, and the output channels that are made; back their errors, and partial sums of what follows
        made = done * chain.passed_words(after.layer)
        forward, backward = layer.input_words + made, made + taught
    return Cut(before.board, layer.name, True, math.ceil(forward), math.ceil(backward))


def fpdeep(chain: Chain, boards: int, dsp: int, dealing: Dealing = Dealing.PRINTED) -> Mapping:
    """A chain on so many boards with so many usable DSPs each.

    Raises `DagtrainError` where a board's engines need more DSPs, or a layer has too few channels."""
    engines: list[Engine] = []
    problems = []
    rows: dict[int, list[Engine]] = {}
    for part in parts(chain, boards, dealing):
        rows.setdefault(part.board, []).extend(_engines(chain.layers[part.layer], part))
    for board in range(boards):
        row = rows.get(board, [])
        needed = sum(engine.dsp for engine in row)
        if not row:
            what = "its share of any layer is less than a channel"
            problems.append(Problem(what, "take fewer boards", f"board {board + 1}"))
        elif needed > dsp:
            names = ", ".join(dict.fromkeys(chain.layers[engine.part.layer].name for engine in row))
            what = f"a tile for each engine of {names} takes {needed} DSPs of {dsp}"
            problems.append(Problem(what, "take more boards or larger ones", f"board {board + 1}"))
        else:
            engines += filled(row, dsp)
    if problems:
        raise DagtrainError.listing("FPDeep's mapping", problems)
    return Mapping(chain, boards, dsp, dealing, tuple(engines))


def fastest(chain: Chain, boards: int, dsp: int) -> Mapping:
    """The faster one of both dealings of channels.  Raises as `fpdeep` does, where neither has room."""
    found = []
    for dealing in Dealing:
        try:
            found.append(fpdeep(chain, boards, dsp, dealing))
        except DagtrainError as error:
            problem = error
    if not found:
        raise problem
    return min(found, key=lambda mapping: mapping.cycles)


def rounded(chain: Chain, dsp: int) -> float:
    """Idle share where so many DSPs of all boards go to whole layers in multiples of K × K, and nothing else is
    rounded: what TC 6.3.3 explains idle stages by.  Raises `DagtrainError` where they are too few."""
    row = [
        Engine(Part(index, 0, layer.inputs, 0, True), Phase.FORWARD, Fraction(layer.operations, 2), layer.taps, dsp)
        for index, layer in enumerate(chain.layers)
    ]
    if (needed := sum(engine.dsp for engine in row)) > dsp:
        raise DagtrainError(f"a tile for each layer of {chain.name} takes {needed} DSPs of {dsp}", "take more boards")
    mapping = Mapping(chain, 1, dsp, Dealing.PRINTED, tuple(filled(row, dsp)))
    return mapping.idle(mapping.cycles)


def _engines(layer: Layer, part: Part) -> list[Engine]:
    share = Fraction(part.channels, _channels(layer, part))
    pairs = max(1, layer.inputs * layer.outputs // layer.groups * part.channels // _channels(layer, part))
    return [Engine(part, phase, macs * share, layer.taps, pairs) for phase, macs in layer.macs.items()]


def filled(engines: Sequence[Engine], dsp: int) -> list[Engine]:
    """As many tiles as there is room for, each to the engine that is slowest then, while it has work for them."""
    tiles = _begun(engines, dsp)
    free = dsp - sum(engine.taps * count for engine, count in zip(engines, tiles, strict=True))
    slowest = [(-engine.macs / (engine.taps * tiles[index]), index) for index, engine in enumerate(engines)]
    heapq.heapify(slowest)
    while slowest:
        index = slowest[0][1]
        engine = engines[index]
        if engine.taps > free or tiles[index] >= engine.pairs:
            break
        tiles[index] += 1
        free -= engine.taps
        heapq.heapreplace(slowest, (-engine.macs / (engine.taps * tiles[index]), index))
    return [
        Engine(engine.part, engine.phase, engine.macs, engine.taps, engine.pairs, count)
        for engine, count in zip(engines, tiles, strict=True)
    ]


def _begun(engines: Sequence[Engine], dsp: int) -> list[int]:
    """Tiles that they get in any case: those for a pace at which all fit even if each had one more than its share."""
    spare = dsp - sum(engine.taps for engine in engines)
    if spare <= 0:
        return [1] * len(engines)
    pace = max(
        sum((engine.macs for engine in engines), Fraction(0)) / spare,
        max(engine.macs / (engine.taps * engine.pairs) for engine in engines),
    )
    return [max(1, math.ceil(engine.macs / (engine.taps * pace))) for engine in engines]
