"""The walls of a problem: which resource of the whole cluster binds first, and which stands close behind.

All devices are melted into one, links and hops are dropped, and an item may be built in shares of its configurations:
half of it as one says and half as another has the mean of their paces and of their costs.  What is left is a linear
program,

    maximise S    so that of every item the shares add up to 1 (items of a tile group: the same shares of every tile),
                  Σ shares · frames a cycle ≥ S for every item,
                  Σ shares · costs ≤ capacity for DSP blocks, M20K blocks, ALMs,
                  S · Σ shares · bytes a frame ≤ DRAM bandwidth,

but for the last line, which is one for any S that is put in front of the sum: the S at which the program gives that S
back is looked for.  Every plan is among its solutions, so no plan of these configurations is faster, and
`placement.bounds.aggregate` is never below it in cycles.  Between two configurations it promises what nobody can build,
and of paces that were not priced it knows nothing: it is of use for ratios, of one wall to the next and of one menu to
another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ortools.linear_solver import pywraplp

from placement.problem.channels import in_channels
from placement.problem.clocks import in_time
from placement.problem.instance import Configuration, Instance, pareto

# what a wall is made of, in the order of `Configuration.costs`
WALLS = ("dsp", "m20k", "alm", "dram")
# no resource binds, but the fastest configuration of an item
PACE = "pace"
# rates are frames in so many cycles
SPAN = 10**6
# the relative error of a rate, and rounds after which DRAM's is as good as it gets
TOLERANCE, ROUNDS = 1e-5, 40
# what is fuller than this binds
FULL = 1 - 1e-4


@dataclass(frozen=True)
class Standing:
    """Where some walls stop the cluster."""

    # cycles a frame
    cycles_per_frame: float
    # what binds: the wall whose fall would gain most, or `PACE`
    binding: str
    # wall -> share of it that is in use
    use: dict[str, float]


@dataclass(frozen=True)
class Fallen:
    """A wall that binds, and where it does."""

    wall: str
    cycles_per_frame: float


class Walls:
    """The program of one instance; of devices of unlike clocks, with all of their blocks at the fastest clock that an
    item may have.  Memory channels of a device are one, but no stream is faster than its own."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance = in_channels(in_time(instance))
        capacities = [sum(getattr(device, name) for device in instance.devices) for name in ("dsp", "m20k", "alm")]
        bandwidth = sum(device.dram_bytes_per_s for device in instance.devices) * SPAN / instance.clock_hz
        # of DRAM: bytes in a span of cycles
        self.capacities = dict(zip(WALLS, [*map(float, capacities), bandwidth], strict=True))
        self._known: dict[frozenset[str], Standing | None] = {}

    @cached_property
    def slowest_item(self) -> tuple[float, str]:
        """(rate, name) of the item whose fastest configuration is the slowest."""
        fastest = [max(map(_rate, menu)) for menu in self._menus]
        return min(zip(fastest, (item.name for item in self.instance.items), strict=True))

    @cached_property
    def _menus(self) -> list[tuple[Configuration, ...]]:
        """Of every item, the configurations of all parts."""
        parts = sorted({device.part for device in self.instance.devices})
        return [pareto(c for part in parts for c in item.configurations.get(part, ())) for item in self.instance.items]

    def standing(self, walls: Collection[str] = WALLS) -> Standing | None:
        """How fast the cluster is if only these walls stand; None if what stands has no room at any pace."""
        there = frozenset(walls)
        if there not in self._known:
            self._known[there] = self._solved(there)
        return self._known[there]

    def falling(self) -> list[Fallen]:
        """The walls one after the other, each where it binds after those before it are gone; the last is `PACE`, unless
        there is no room at any pace."""
        rest, found = set(WALLS), list[Fallen]()
        while (standing := self.standing(rest)) is not None:
            found.append(Fallen(standing.binding, standing.cycles_per_frame))
            if standing.binding == PACE:
                break
            rest.remove(standing.binding)
        return found

    def _solved(self, walls: frozenset[str]) -> Standing | None:
        program = _Program(self, walls)
        found = program.fastest()
        if found is None:
            return None
        rate, use = found
        full = [wall for wall in WALLS if use[wall] >= FULL and wall in walls]
        if not full or rate >= self.slowest_item[0] * FULL:
            return Standing(SPAN / rate, PACE, use)
        gains = {wall: _Program(self, walls - {wall}).fastest() if len(full) > 1 else None for wall in full}
        binding = max(full, key=lambda wall: gain[0] if (gain := gains[wall]) else 0.0)
        return Standing(SPAN / rate, binding, use)


class _Program:
    """The program with some walls, in the solver's terms."""

    def __init__(self, walls: Walls, there: frozenset[str]) -> None:
        self.walls, self.there = walls, there
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self.rate = self.solver.NumVar(0.0, walls.slowest_item[0], "")
        self.rows = {wall: self.solver.Constraint(0.0, self._room(wall)) for wall in WALLS}
        instance = walls.instance
        shares: dict[str, dict[str | None, Any]] = {}
        for group, members in instance.tile_groups.items():
            tiles = [{c.tile for c in walls._menus[i]} for i in members]
            common = sorted(set.intersection(*tiles), key=str)
            shares[group] = {tile: self.solver.NumVar(0.0, 1.0, "") for tile in common}
            self.solver.Add(sum(shares[group].values()) == 1.0)
        whole: dict[str | None, Any] = {None: 1.0}
        for item, menu in zip(instance.items, walls._menus, strict=True):
            self._add(menu, whole if item.tile_group is None else shares[item.tile_group])
        self.solver.Maximize(self.rate)

    def _room(self, wall: str) -> float:
        """How full a wall's row may be; where there is none of a resource, nothing may need it."""
        if wall not in self.there:
            return float(self.solver.infinity())
        return 1.0 if self.walls.capacities[wall] else 0.0

    def _add(self, menu: Sequence[Configuration], shares: dict[str | None, Any]) -> None:
        """An item: shares of its configurations, those of a tile as many as the tile has."""
        slowest = self.walls.slowest_item[0]
        usable = [c for c in menu if c.tile in shares]
        pace = None
        if any(_rate(c) < slowest for c in usable):
            pace = self.solver.Constraint(0.0, self.solver.infinity())
            pace.SetCoefficient(self.rate, -1.0)
        for tile, share in shares.items():
            sums = self.solver.Constraint(0.0, 0.0) if tile is not None else self.solver.Constraint(1.0, 1.0)
            if tile is not None:
                sums.SetCoefficient(share, -1.0)
            for c in (c for c in usable if c.tile == tile):
                x = self.solver.NumVar(0.0, 1.0, "")
                sums.SetCoefficient(x, 1.0)
                if pace is not None:
                    pace.SetCoefficient(x, _rate(c))
                for wall, cost in zip(WALLS, c.costs, strict=True):
                    if cost:
                        self.rows[wall].SetCoefficient(x, cost / (self.walls.capacities[wall] or 1.0))

    def fastest(self) -> tuple[float, dict[str, float]] | None:
        """(rate, share in use of every wall); None if there is no room at any rate."""
        high = self._at(None)
        if high is None or "dram" not in self.there or self._dram(high) <= 1.0:
            return None if high is None else (high, self._use(high))
        # the more frames DRAM is to serve, the slower the rest becomes
        low, top = 0.0, high
        best: tuple[float, dict[str, float]] | None = None
        for _ in range(ROUNDS):
            if top - low <= TOLERANCE * top and best is not None:
                break
            middle = (low + top) / 2
            got = self._at(middle)
            if got is not None and got >= middle:
                low, best = middle, (middle, self._use(middle))
            else:
                top = middle
        # the upper end, so that what is found is never below what is possible
        return None if best is None else (top, best[1])

    def _at(self, frames: float | None) -> float | None:
        """The rate if DRAM is to serve ``frames`` in a span; None: as if there were no end to it."""
        unlimited = frames is None or "dram" not in self.there
        room = self.solver.infinity() if unlimited or frames is None else self._room("dram") / max(frames, 1e-9)
        self.rows["dram"].SetBounds(0.0, room)
        status = self.solver.Solve()
        return float(self.rate.solution_value()) if status == pywraplp.Solver.OPTIMAL else None

    def _use(self, rate: float) -> dict[str, float]:
        """Share in use of every wall, dropped ones included."""
        activity = dict(zip(WALLS, self._activities(), strict=True))
        return {**activity, "dram": activity["dram"] * rate}

    def _dram(self, rate: float) -> float:
        return self._use(rate)["dram"]

    def _activities(self) -> list[float]:
        values = self.solver.ComputeConstraintActivities()
        return [float(values[self.rows[wall].index()]) for wall in WALLS]


def _rate(c: Configuration) -> float:
    """Frames in a span of cycles."""
    return SPAN / max(1, c.cycles_per_frame)
