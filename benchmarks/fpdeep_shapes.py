"""1-D beside 2-D over real cables (TC 4.2, Figure 10): FPDeep's mapping on a chain and on grids of boards, by the ways
that `placement.problem.routes` gives words.

Every order of the boards on a shape is tried, and both ways to sum: partial sums go from board to board (`Sums.ROW`, as
in 5.1), or the last board of a layer has all of them (`Sums.CENTRE`, as 4.2 has it for 2-D).  What is compared is the
fullest direction of a cable, words a frame and port.  A board deals its ports out equally to its cables, as the paper
does, or as many to each as the words on it want.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import cache

import numpy as np

from benchmarks.fpdeep_designs import FIGURE_10, PORTS, Flows, flows, middle
from hdl.fixed import FloatArray, IntArray
from placement.fpdeep.chain import Chain
from placement.fpdeep.mapping import fastest
from placement.problem.routes import Routing, chain_cables, mesh_cables

# halvings by which the fewest words a port are found where ports are dealt out as wanted: to a thousandth of a word
HALVINGS = 32
# of a port, below which more words are no more
ROUNDING = 1e-9


class Sums(Enum):
    """Where partial sums of a layer meet."""

    ROW = "passed on"
    CENTRE = "on one board"


@dataclass(frozen=True)
class Shape:
    """Boards and their cables."""

    # "chain", or rows × columns
    name: str
    routing: Routing

    @property
    def ports(self) -> list[int]:
        """Of each wire, where boards deal them out equally: what its end with more cables has for it."""
        cables = [len(leaving) for leaving in self.routing.leaving]
        return [PORTS // max(cables[wire.source], cables[wire.target]) for wire in self.routing.wires]


@dataclass(frozen=True)
class Fullest:
    """The fullest direction of a cable where boards stand in the best order."""

    shape: str
    sums: Sums
    # a frame and port
    words: float
    # boards at its ends, as the mapping counts them, from 1
    source: int
    target: int
    # what passes it
    layers: tuple[str, ...]
    ports: int
    # the least of all orders where ports are dealt out as wanted, a frame and port
    wanted: float


def shapes(boards: int) -> Iterator[Shape]:
    """The chain, then every grid of so many boards; the last row of some has fewer."""
    names = tuple(str(board + 1) for board in range(boards))
    rates = [1] * boards
    yield Shape("chain", Routing(names, chain_cables(names, rates)))
    for columns in range(2, math.ceil(boards / 2) + 1):
        # dimension order wants full rows
        full = columns if boards % columns == 0 else 0
        yield Shape(
            f"{math.ceil(boards / columns)} × {columns}", Routing(names, mesh_cables(names, rates, columns), full)
        )


def between(chain: Chain, dsp: int, boards: int, sums: Sums) -> Flows:
    """What boards of the mapping send each other."""
    if sums is Sums.CENTRE:
        return flows(chain, dsp, boards)
    found: Flows = {}
    for cut in fastest(chain, boards, dsp).cuts:
        here, there = cut.board, cut.board + 1
        found[here, there] = {cut.layer: Fraction(cut.forward)}
        found[there, here] = {cut.layer: Fraction(cut.backward)}
    return found


def orders(boards: int) -> IntArray:
    """All of them: place of each board."""
    return np.array(list(itertools.permutations(range(boards))))


def loads(routing: Routing, sent: Mapping[tuple[int, int], float], places: IntArray) -> FloatArray:
    """Words on every wire, of each order."""
    boards = range(len(routing.devices))
    passes = np.zeros((len(boards), len(boards), len(routing.wires)))
    for source, target in itertools.product(boards, boards):
        passes[source, target, list(routing.way(source, target))] = 1
    found = np.zeros((len(places), len(routing.wires)))
    for (a, b), words in sent.items():
        found += words * passes[places[:, a], places[:, b]]
    return found


def as_wanted(routing: Routing, on_wires: FloatArray) -> FloatArray:
    """The fewest words a port, of each order, where each board deals out its ports as the words on its cables want."""
    cables = np.maximum(on_wires[:, 0::2], on_wires[:, 1::2])
    ends = np.zeros((len(routing.cables), len(routing.devices)))
    for number, wire in enumerate(routing.wires[::2]):
        ends[number, [wire.source, wire.target]] = 1
    least, most = np.zeros(len(cables)), cables.max(axis=1, initial=0)
    for _ in range(HALVINGS):
        words = (least + most) / 2
        enough = (np.ceil(cables / words[:, None] - ROUNDING) @ ends <= PORTS).all(axis=1)
        least[~enough], most[enough] = words[~enough], words[enough]
    return np.asarray(most, np.float64)


def fullest(shape: Shape, between_boards: Flows, sums: Sums, places: IntArray) -> Fullest:
    """At the best order of the boards, of equals the first one."""
    on_wires = loads(shape.routing, {way: float(sum(of.values())) for way, of in between_boards.items()}, places)
    of_port = on_wires / shape.ports
    order = int(of_port.max(axis=1).argmin())
    wire = int(of_port[order].argmax())
    board_at = {int(place): board for board, place in enumerate(places[order])}
    passing = [
        layer
        for (a, b), of in between_boards.items()
        if wire in shape.routing.way(int(places[order, a]), int(places[order, b]))
        for layer in of
    ]
    ends = shape.routing.wires[wire]
    return Fullest(
        shape=shape.name,
        sums=sums,
        words=float(of_port[order, wire]),
        source=board_at[ends.source] + 1,
        target=board_at[ends.target] + 1,
        layers=tuple(dict.fromkeys(passing)),
        ports=shape.ports[wire],
        wanted=float(as_wanted(shape.routing, on_wires).min()),
    )


@dataclass(frozen=True)
class Compared:
    """So many boards."""

    boards: int
    # the better way to sum; of grids the best one
    chain: Fullest
    grid: Fullest
    # of all grids and ways to sum, where ports are dealt out as wanted
    grid_wanted: float

    @property
    def better(self) -> str:
        """The shape whose fullest cable has fewer words a port."""
        return _better(self.chain.words, self.grid.words)

    @property
    def better_wanted(self) -> str:
        """The same where ports are dealt out as wanted."""
        return _better(self.chain.wanted, self.grid_wanted)


def _better(row: float, square: float) -> str:
    # by far less than a word differs what is searched for
    return "equal" if math.isclose(row, square, rel_tol=1e-6) else "1-D" if row < square else "2-D"


@cache
def compared(chain: Chain, dsp: int) -> tuple[Compared, ...]:
    """CONV3 to CONV5 on the boards of Figure 10."""
    stages, found = middle(chain), []
    for boards in FIGURE_10:
        places = orders(boards)
        sent = {sums: between(stages, dsp, boards, sums) for sums in Sums}
        row, *grids = ([fullest(shape, sent[sums], sums, places) for sums in Sums] for shape in shapes(boards))
        squares = [one for grid in grids for one in grid]
        best_row, best = (min(of, key=lambda one: one.words) for of in (row, squares))
        least = min(one.wanted for one in row)
        found.append(Compared(boards, replace(best_row, wanted=least), best, min(one.wanted for one in squares)))
    return tuple(found)


def crossover(chain: Chain, dsp: int) -> str:
    """Above how many boards 1-D is better at all sizes; or that there is no such size."""
    rows = compared(chain, dsp)
    others = [one.boards for one in rows if one.better != "1-D"]
    if not others:
        return "all"
    return str(others[-1]) if others[-1] < rows[-1].boards else "none"


HEADS = (
    "boards", "chain", "fullest cable", "grid", "of it", "fullest cable", "better", "ports as wanted: chain", "grid",
    "better",
)  # fmt: skip


def rows(chain: Chain, dsp: int) -> Iterator[Sequence[str]]:
    """As text, M words."""
    for one in compared(chain, dsp):
        yield (
            str(one.boards), _words(one.chain.words), _cable(one.chain), _words(one.grid.words), one.grid.shape,
            _cable(one.grid), one.better, _words(one.chain.wanted), _words(one.grid_wanted), one.better_wanted,
        )  # fmt: skip


def _words(words: float) -> str:
    return f"{words / 1e6:.3f}"


def _cable(of: Fullest) -> str:
    return f"{of.source} to {of.target}: {', '.join(of.layers)}, sums {of.sums.value}, {of.ports} ports"
