"""One step faster than a plan, and another one, while nothing but the levels priced keeps it from being faster.

Levels of large circuits are percents apart.  A level little faster than a plan has other foldings of those engines
alone that keep it near its pace, so its circuits are soon elaborated, and the search goes on from nearly the same
placement.  Steps are of two per cent until one brings nothing, then of a cycle: the next foldings there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from dagtrain.planning.levels import HUGE_MULTIPLIERS, LEAST_RATIO, taken
from dagtrain.planning.results import Found
from dagtrain.planning.searcher import Searcher
from hdl.errors import FoldingError
from placement.problem.plan import Plan

# steps at most; how much faster the level of one is, at least a cycle
MOST_STEPS, STEP_RATIOS = 16, (1.02, 1.0)


class Climb(Protocol):
    """What steps are asked of: `dagtrain.planning.ladder.Ladder`."""

    @property
    def searcher(self) -> Searcher:
        """Whose problem it is."""

    def better(self, best: Plan, levels: Sequence[int]) -> Plan:
        """The better one of a plan and what a search over these levels finds."""

    def hold(self, found: Found, *, at_any_cost: bool = False) -> None:
        """Keep a placement found if it holds, or one like it."""

    def multipliers_at(self, cycles: int) -> int:
        """Of all engines at one level."""


def next_steps(ladder: Climb, found: Found) -> Found:
    """The placement behind the last step that brought one, made to hold, and all levels priced; the one found where
    circuits are not large, of which levels nearby are looked at anyway."""
    cluster = ladder.searcher.problem.cluster
    best, levels = found.plan, found.levels
    if ladder.multipliers_at(best.cycles_per_frame) <= HUGE_MULTIPLIERS:
        return found
    ratios = list(STEP_RATIOS)
    for _ in range(MOST_STEPS):
        before = best.cycles_per_frame
        # credits of streams that are only estimated may keep it a little slower than its levels do
        bound = best.bound_cycles_per_frame
        if bound * LEAST_RATIO < before or best.any_bound_cycles_per_frame >= bound:
            break
        step = min(bound - 1, int(bound / ratios[0]))
        # some layer may not be so fast
        with suppress(FoldingError):
            best = ladder.better(best, sorted({*taken(levels, best, cluster), step}))
            levels = tuple(sorted({*levels, step}))
        if best.cycles_per_frame == before:
            del ratios[0]
        if not ratios:
            break
    stepped = Found(best, levels)
    # a step is little faster, and there may be no time for another
    ladder.hold(stepped, at_any_cost=True)
    return stepped
