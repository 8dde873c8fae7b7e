"""Which wall stops a network on a cluster, and what each lever would bring: the program of `placement.diagnosis.walls`
over what nodes cost, today and as `dagtrain.planning.levers` would change it.

All levers work on the offers that the planner prices, so what they bring is a ratio between two programs over the same
circuits: what a cluster of one large device would gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dagtrain.planning.levels import SLOWER_RATIO, between, fastest_cycles
from dagtrain.planning.levers import LEVERS
from dagtrain.planning.menus import Lever, Menu
from dagtrain.planning.priced import PricedLevel
from dagtrain.planning.prices import Prices
from dagtrain.planning.problem import Problem
from hdl.errors import FoldingError, InfeasibleError
from placement.diagnosis.walls import WALLS, Fallen, Standing, Walls
from placement.problem.deadline import Deadline
from placement.problem.instance import Configuration, Instance
from placement.problem.restrict import restrict

# the slowest level priced at first, in terms of the fastest at which all layers can be folded, and levels between
# them; slower ones follow in the same steps until all nodes have room
SLOW_RATIO, BETWEEN = 2.5, 2
STEP_RATIO = SLOW_RATIO ** (1 / (BETWEEN + 1))
MOST_LEVELS = 10


@dataclass(frozen=True)
class Row:
    """The program with some levers."""

    levers: tuple[Lever, ...]
    # the walls one after the other
    falling: tuple[Fallen, ...]

    @property
    def cycles_per_frame(self) -> float:
        """At which the first wall stands; infinite if there is no room at any pace."""
        return self.falling[0].cycles_per_frame if self.falling else math.inf


@dataclass(frozen=True)
class Outlook:
    """What binds, and what would bring how much."""

    clock_hz: int
    # cycles a frame that were priced
    levels: tuple[int, ...]
    today: Row
    # today's first wall with what is in use there; None if there is no room at any pace
    standing: Standing | None
    # wall -> where it stands alone; None if there is no room at any pace
    alone: dict[str, Standing | None]
    # each lever alone, in order
    rows: tuple[Row, ...]
    together: Row
    # streams, and those of them that carry more bits than the slowest port at today's first wall, and at the one with
    # all levers
    streams: int
    too_wide: tuple[int, int]
    # the item that is slowest with its fastest circuit
    slowest_item: str
    # levers that have been taken already, by name
    taken: frozenset[str]


@dataclass(frozen=True)
class Outlooker:
    """Asks about one problem."""

    problem: Problem
    prices: Prices
    levers: tuple[Lever, ...] = LEVERS

    def look(self, deadline: Deadline) -> Outlook:
        """All answers.

        Raises `Ended` at the deadline, `FoldingError` if layers can be folded for no pace, `InfeasibleError` if there
        is no room at any pace that was priced."""
        levels, menus, today = self._priced(deadline)
        problem, walls = self.problem, Walls(today)

        def row(*levers: Lever) -> Row:
            deadline.check()
            self.prices.progress.advance(note=", ".join(lever.name for lever in levers) if len(levers) == 1 else "")
            return Row(levers, tuple(Walls(self._instance(menus, levers)).falling()))

        self.prices.progress.begin("walls", len(self.levers) + 1)
        rows = tuple(row(lever) for lever in self.levers)
        together = row(*self.levers)
        self.prices.progress.end()
        now = Row((), tuple(walls.falling()))
        return Outlook(
            clock_hz=problem.cluster.clock_hz,
            levels=tuple(levels),
            today=now,
            standing=walls.standing(),
            alone={wall: walls.standing([wall]) for wall in WALLS},
            rows=rows,
            together=together,
            streams=len(today.links),
            too_wide=(_too_wide(today, now.cycles_per_frame), _too_wide(today, together.cycles_per_frame)),
            slowest_item=walls.slowest_item[1],
            taken=frozenset(
                lever.name for lever in self.levers if lever in self._offered or lever.in_force(menus[0].situation)
            ),
        )

    @property
    def _offered(self) -> tuple[Lever, ...]:
        """Levers that the planner offers, if it is to."""
        return tuple(lever for lever in self.levers if lever.taken is not None and lever.offered(self.problem))

    def _priced(self, deadline: Deadline) -> tuple[list[int], list[Menu], Instance]:
        """Levels, what they offer, and today's problem, with room at the slowest of them at least."""
        fastest = fastest_cycles(self.problem)
        slow = round(fastest * SLOW_RATIO)
        levels: list[int] = []
        menus: list[Menu] = []
        for cycles in (fastest, *between(fastest, slow, BETWEEN), slow):
            self._price(cycles, levels, menus, deadline)
        while True:
            today = self._instance(menus, ())
            standing = Walls(today).standing()
            # the slowest level is of use where the bound lies below it
            if standing is not None and standing.cycles_per_frame < levels[-1]:
                return levels, menus, today
            if len(levels) >= MOST_LEVELS:
                raise InfeasibleError(
                    f"{self.problem.graph.name} has no room on {self.problem.cluster.name}, all devices in one, at "
                    f"{levels[-1]:,} cycles a frame",
                    "add devices or raise the caps",
                )
            self._price(round(levels[-1] * STEP_RATIO), levels, menus, deadline)

    def _price(self, cycles: int, levels: list[int], menus: list[Menu], deadline: Deadline) -> None:
        """Price a level, or one that is a little slower where a layer can't be folded so."""
        for _ in range(MOST_LEVELS):
            try:
                costs = self.prices.costs(cycles, deadline=deadline)
            except FoldingError:
                cycles = math.ceil(cycles * SLOWER_RATIO)
                continue
            levels.append(cycles)
            menus.append(Menu.of(costs, self.levers))
            return
        self.prices.costs(cycles, deadline=deadline)

    def _instance(self, menus: Sequence[Menu], levers: Sequence[Lever]) -> Instance:
        """The placement problem with what the menus offer and some levers."""
        taken = tuple(dict.fromkeys((*levers, *self._offered)))
        instance = self.prices.of_levels([self._level(menu, taken) for menu in menus], self.prices.links())
        return restrict(instance, (), self.problem.search.exclude).instance

    def _level(self, menu: Menu, levers: Sequence[Lever]) -> PricedLevel:
        offers: dict[str, dict[str, list[Configuration]]] = {
            node.name: {part.name: [] for part in menu.parts} for node in menu.situation.graph.nodes
        }
        for node, offer in menu.with_levers(levers):
            for part in menu.parts:
                found = offers[node.name][part.name]
                tile = offer.tile
                dsp, m20k, alm = menu.costs(offer, part)
                found.append(
                    Configuration(
                        label=f"{offer.choice.label} {len(found)}", cycles_per_frame=offer.cycles_per_frame, dsp=dsp,
                        m20k=m20k, alm=alm, tile=f"{tile.po}x{tile.pi}x{tile.pk}" if tile else None,
                        dram_bytes_per_frame=offer.bytes_told(self.prices.has_channels),
                        dram_streams=offer.streams_told(self.prices.has_channels),
                    )
                )  # fmt: skip
        return PricedLevel(offers, frozenset(menu.situation.costs.tiles), {}, {}, tells_streams=True)


def _too_wide(instance: Instance, cycles: float) -> int:
    """Streams that the slowest port or cable can't carry at that pace: their ends must stand together, or at faster
    ones."""
    slowest = min(instance.link_rates, default=0)
    return sum(link.bits_per_frame * instance.clock_hz > slowest * cycles for link in instance.links)
