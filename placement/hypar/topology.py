"""How accelerators are joined (6.1, 6.5.1; Figure 4 c and d): links, and the way from one to its mirror image in the
other group of a level.

Every link is one way; a cable has two.  An accelerator's number has a bit a level, that of H1 the highest, and its
mirror image at a level differs in that bit alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

LINK_BITS_PER_S = 1600e6


class Links(StrEnum):
    """What a pair of groups has between them, and what all pairs of a level have together."""

    # as many links a level: twice as many a pair a level up
    FAT = "fat"
    # as many links a pair
    CONSTANT = "constant"


class Layout(StrEnum):
    """Where an accelerator stands on the torus, which the paper leaves open."""

    # levels halve columns and rows by turns, as an H is drawn: H1 left and right, H2 top and bottom, …
    HALVES = "halves"
    # row by row, as numbers are read: the first levels halve rows, the last columns
    ROWS = "rows"


@dataclass(frozen=True)
class Topology(ABC):
    """Links between 2**levels accelerators."""

    levels: int

    @property
    def accelerators(self) -> int:
        """How many are simulated."""
        return 1 << self.levels

    @property
    @abstractmethod
    def rates(self) -> tuple[float, ...]:
        """Bits a second of every link."""

    def mirror(self, accelerator: int, level: int) -> int:
        """Whom it exchanges with at a level, H1 is level 0: itself where one stands for all."""
        return (accelerator ^ 1 << (self.levels - 1 - level)) % self.accelerators

    @abstractmethod
    def route(self, accelerator: int, level: int) -> tuple[int, ...]:
        """Links to its mirror image."""


@dataclass(frozen=True)
class HTree(Topology):
    """Accelerators are the leaves, switches the nodes above (6.5.1: "physically it is a fat-tree").

    The root is node 1, the children of node n are 2n and 2n + 1; each other node has a link up and one down."""

    links: Links = Links.FAT

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Up from nodes 2, 3, … and then down to them."""
        found = tuple(self._rate(node.bit_length() - 1) for node in range(2, 2 << self.levels))
        return found + found

    def _rate(self, depth: int) -> float:
        leaves = 1 << (self.levels - depth) if self.links is Links.FAT else 1
        return leaves * LINK_BITS_PER_S

    def route(self, accelerator: int, level: int) -> tuple[int, ...]:
        """Up to the switch that joins both groups, and down."""
        ends = accelerator, self.mirror(accelerator, level)
        up, down = ([((1 << self.levels) + end >> step) - 2 for step in range(self.levels - level)] for end in ends)
        return (*up, *(len(self.rates) // 2 + node for node in reversed(down)))

    @classmethod
    def of_one(cls, levels: int, links: Links = Links.FAT) -> Topology:
        """The same for what all accelerators do alike, and so at the same time, in one of them."""
        return OneLeaf(levels, links)


@dataclass(frozen=True)
class OneLeaf(HTree):
    """An accelerator's share of the links above it: what is sent to it meets as much as what it sends."""

    @property
    def accelerators(self) -> int:
        """One for all."""
        return 1

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """From the leaf to the root."""
        return tuple(self._rate(self.levels - step) / (1 << step) for step in range(self.levels))

    def route(self, accelerator: int, level: int) -> tuple[int, ...]:
        """Up."""
        assert accelerator == 0, "one stands for all"
        return tuple(range(self.levels - level))


@dataclass(frozen=True)
class Torus(Topology):
    """Rows and columns that close to rings, all links alike (6.5.1): 4 × 4 at four levels.

    Routes are ours, by dimension: along the row and then the column, the shorter way round, and up where both are as
    short."""

    layout: Layout = Layout.HALVES

    @property
    def sides(self) -> tuple[int, int]:
        """(columns, rows)."""
        return 1 << (self.levels + 1) // 2, 1 << self.levels // 2

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Of every accelerator to the right, left, down and up, with rows counted downwards."""
        return (LINK_BITS_PER_S,) * (4 * self.accelerators)

    def position(self, accelerator: int) -> tuple[int, int]:
        """(column, row)."""
        columns = self.sides[0]
        if self.layout is Layout.ROWS:
            return accelerator % columns, accelerator // columns
        place = [0, 0]
        for level in range(self.levels):
            place[level % 2] = 2 * place[level % 2] + (accelerator >> (self.levels - 1 - level) & 1)
        return place[0], place[1]

    def route(self, accelerator: int, level: int) -> tuple[int, ...]:
        """By dimension."""
        here, there = list(self.position(accelerator)), self.position(self.mirror(accelerator, level))
        taken = []
        for axis, side in enumerate(self.sides):
            ahead = (there[axis] - here[axis]) % side
            step, direction = (1, 0) if 2 * ahead <= side else (-1, 1)
            while here[axis] != there[axis]:
                taken.append(4 * (here[1] * self.sides[0] + here[0]) + 2 * axis + direction)
                here[axis] = (here[axis] + step) % side
        return tuple(taken)
