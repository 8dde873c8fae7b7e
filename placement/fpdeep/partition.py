"""How a chain is shared out among boards (TC 3.2, equation (5); FPL III.A).

    inter-layer    all boards' DSPs go to layers in proportion to their operations, and the row of layers is cut into
                   boards; a layer stands on several boards, a board works for several layers
    intra-layer    each board of a layer gets some of its input channels (ICP), or, where there are fewer of them than
                   boards, of its output channels (OCP)

The coarse phase cuts between layers alone; the fine one is what is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import accumulate, pairwise

from hdl.errors import DagtrainError, Problem
from placement.fpdeep.chain import Chain, Layer


@dataclass(frozen=True)
class Segment:
    """A stretch of a layer on one board."""

    board: int
    # of a board's DSPs, as the operations have it
    share: Fraction


def allotted(operations: Sequence[int], blocks: int) -> tuple[Fraction, ...]:
    """Of so many blocks, strictly in proportion."""
    return tuple(Fraction(blocks * count, sum(operations)) for count in operations)


def segments(operations: Sequence[int], boards: int) -> list[list[Segment]]:
    """Of each layer, where so many boards stand in a row."""
    ends = list(accumulate(allotted(operations, boards)))
    found = []
    for start, end in pairwise([Fraction(0), *ends]):
        cuts = [start, *(Fraction(cut) for cut in range(math.floor(start) + 1, math.ceil(end))), end]
        found.append([Segment(math.floor(a), b - a) for a, b in pairwise(cuts) if b > a])
    return found


class Dealing(StrEnum):
    """How a layer's channels become whole numbers on its boards."""

    # whole boards get equally many, the nearest to their share; the first and the last, where they are no whole boards,
    # what is left.  FPL III.A: 256 over 4.8 boards are 53, 53, 53, 53, 44; 192 are 40, 40, 40, 40, 32
    PRINTED = "printed"
    # every border between two boards is the nearest, so that what is left doesn't add up over many boards
    NEAREST = "nearest"


def dealt(channels: int, shares: Sequence[Fraction], dealing: Dealing = Dealing.PRINTED) -> tuple[int, ...]:
    """Channels of each segment of a layer."""
    whole = [index for index, share in enumerate(shares) if share == 1]
    parts = [index for index, share in enumerate(shares) if share != 1]
    found = [0] * len(shares)
    if dealing is Dealing.PRINTED and whole and parts:
        nearest = math.floor(channels / sum(shares, Fraction(0)) + Fraction(1, 2))
        each = min(max(1, nearest), channels // len(whole))
        for index in whole:
            found[index] = each
        _share_out(found, parts, shares, channels - each * len(whole))
    else:
        _share_out(found, range(len(shares)), shares, channels)
    return tuple(found)


def _share_out(found: list[int], indices: Sequence[int], shares: Sequence[Fraction], channels: int) -> None:
    """In proportion; each border is the nearest."""
    total = sum((shares[index] for index in indices), Fraction(0))
    given, reached = 0, Fraction(0)
    for index in indices:
        reached += shares[index]
        border = math.floor(channels * reached / total + Fraction(1, 2))
        found[index], given = border - given, border


@dataclass(frozen=True)
class Part:
    """What one board has of one layer; forward, error and gradient of it stand there together."""

    layer: int
    board: int
    # of the layer, and those of the parts before it
    channels: int
    before: int
    # whether these are input channels
    by_inputs: bool


def parts(chain: Chain, boards: int, dealing: Dealing = Dealing.PRINTED) -> list[Part]:
    """The row of parts, board by board.

    Stretches too short for a channel are left to the layer's others.  Raises `DagtrainError` naming all layers that
    have too few channels for their boards, and fewer boards than 1."""
    if boards < 1:
        raise DagtrainError(f"{boards} boards", "there must be one at least")
    found: list[Part] = []
    problems = []
    rows = segments([layer.operations for layer in chain.layers], boards)
    for index, (layer, row) in enumerate(zip(chain.layers, rows, strict=True)):
        by_inputs = partitioned_by_inputs(layer, len(row))
        channels = layer.inputs if by_inputs else layer.outputs
        if channels < sum(segment.share == 1 for segment in row):
            what = f"{channels} output channels are fewer than the {len(row)} boards that its operations are worth"
            problems.append(Problem(what, "take fewer boards", layer.name))
            continue
        counts = dealt(channels, [segment.share for segment in row], dealing)
        found += _row(index, by_inputs, row, counts)
    if problems:
        raise DagtrainError.listing("", problems)
    return found


def _row(index: int, by_inputs: bool, row: Sequence[Segment], counts: Sequence[int]) -> Iterator[Part]:
    before = 0
    for segment, count in zip(row, counts, strict=True):
        if count:
            yield Part(index, segment.board, count, before, by_inputs)
        before += count


def partitioned_by_inputs(layer: Layer, boards: int) -> bool:
    """ICP, unless the input has too few channels for so many boards (TC 4.1)."""
    return layer.inputs >= boards


def coarse(chain: Chain, boards: int) -> list[int]:
    """Operations of every board where boards get whole layers that stand in a row, with the least `variance`.

    As the sum of all is given, that is the partition whose least board has the most.  Raises `DagtrainError` where
    there are more boards than layers."""
    counts = [layer.operations for layer in chain.layers]
    if not 1 <= boards <= len(counts):
        raise DagtrainError(f"{len(counts)} layers can't be cut into {boards} parts", "take from one to as many boards")
    sums = [0, *accumulate(counts)]
    # (most that the least board has, cut before the last board) of the first layers on the first boards
    best = [{end: (sums[end], 0) for end in range(1, len(sums))}]
    for board in range(1, boards):
        best.append({
            end: max((min(best[-1][cut][0], sums[end] - sums[cut]), cut) for cut in range(board, end))
            for end in range(board + 1, len(sums))
        })  # fmt: skip
    found, end = [], len(counts)
    for row in reversed(best):
        cut = row[end][1]
        found.append(sums[end] - sums[cut])
        end = cut
    return found[::-1]


def variance(operations: Sequence[int | Fraction]) -> float:
    """V of equation (5)."""
    least = min(operations)
    return float(sum((count - least) / Fraction(least) for count in operations))
