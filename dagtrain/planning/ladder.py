"""Up the levels of T: from a slow one, where there mostly is a plan, to the fastest that may fit, then between them.

Searches know about what network ports cost, as if streams took no time and all memories lay on chip; a placement found
that is worth it is made to hold at once (`dagtrain.planning.realise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil

from dagtrain.planning.levels import (
    HUGE_MULTIPLIERS,
    LEAST_RATIO,
    SLOWER_RATIO,
    between,
    least_cycles,
    multipliers,
    predicted_cycles,
    useful,
)
from dagtrain.planning.next_steps import next_steps
from dagtrain.planning.problem import SLOWEST
from dagtrain.planning.realise import Realiser
from dagtrain.planning.results import Found, Planned, Searched, Start
from dagtrain.planning.searcher import Searcher
from dagtrain.rates import rate_text
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError, TooLargeError
from placement.problem.deadline import Ended
from placement.problem.plan import Plan
from placement.problem.validate import violations
from placement.search.search import SearchOptions

# the level first priced is so much slower than what the multipliers allow: most networks have a plan there
SLOW_RATIO = 2.5
# where that takes more multipliers than this, whose circuits take minutes to elaborate, a plan is made first of small
# circuits, so much slower than multipliers allow; but not of circuits that are many rather than large, with fewer
# multipliers a node: small ones would take as long again
MANY_MULTIPLIERS, MANY_A_NODE, SMALL_RATIO = 5_000, 20, 30
# where the fastest level has huge circuits, faster levels come one by one, each so much faster than the plan, before it
LEAP_RATIO = 1.5
# how often the first level may grow when it has no plan
LADDER_GROWTHS = 5
# levels priced between the fastest that may fit and the slow one: as many as make so many nodes, within limits
PRICED_NODES, LEAST_STEPS, MOST_STEPS = 900, 2, 5
# rounds in which levels are put between the proven bound and the plan found
REFINEMENT_ROUNDS = 2
# between a plan and a level so little faster none is looked for, where that brought nothing, but beyond it one is
NEAR_RATIO = 1.03
# steps to faster levels than predicted
FASTER_RATIO = 1.25
# a placement found so much faster than the plan so far is made to hold at once, others when the search is done
WORTH_RATIO = 1.25


class NoRoomError(InfeasibleError):
    """There is no plan at the first level, and slower ones were not tried (`Problem.patient`)."""


@dataclass
class Ladder:
    """The climb of one searcher."""

    searcher: Searcher
    # the best placement found, which is what there is to hold when the climb is ended
    found: Found | None = field(default=None, init=False)
    # the placement found that was priced last, whether it held or not
    priced: Plan | None = field(default=None, init=False)

    def climb(self, start: Start | None) -> Found:
        """The best placement that searches find, and all levels priced; they go on from ``start``.

        Raises `InfeasibleError` naming what to relax, `FoldingError`, or `OutOfTimeError`, which is `Ended` at the
        deadline."""
        problem = self.searcher.problem
        steps = max(LEAST_STEPS, min(MOST_STEPS, PRICED_NODES // len(problem.graph.nodes)))
        least = least_cycles(problem)
        first = self.resumed(start) or self.begun()
        self.hold(first, at_any_cost=start is not None)
        self.searcher.best.go_on(self.searcher.bounded)
        slow = max(first.levels)
        fastest = min(slow, max(least, predicted_cycles(slow, self.searcher.prices.level(slow), problem)))
        first = next_steps(self, first) if problem.first_fps is not None else first
        best, levels = self._further(first, fastest, steps)
        best, levels = self.faster(best, levels, least)
        self.hold(Found(best, tuple(levels)))
        for _ in range(REFINEMENT_ROUNDS):
            if not (finer := self._finer(best, levels, max(LEAST_STEPS, steps // 2))):
                break
            levels = sorted({*levels, *finer})
            before, nearest = best.cycles_per_frame, max(level for level in levels if level < best.cycles_per_frame)
            best = self.better(best, useful(levels, best, problem.cluster))
            if best.cycles_per_frame == before < nearest * NEAR_RATIO:
                break
        best, levels = self.faster(best, levels, least)
        found = next_steps(self, Found(best, tuple(levels)))
        return Found(self.better(found.plan, found.levels, self.searcher.last), found.levels)

    def better(self, best: Plan, levels: Sequence[int], options: SearchOptions | None = None) -> Plan:
        """The better one of a plan and what a search over these levels finds."""
        try:
            plan = self.searcher.find(levels, options or self.searcher.quick, best)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError):
            # levels faster than the plan's own may have none
            return best
        better = plan if plan.cycles_per_frame <= best.cycles_per_frame else best
        self.found = Found(better, tuple(levels))
        return better

    # ---- the first placement

    def resumed(self, start: Start | None) -> Found | None:
        """Where an earlier search of the same problem ended; None if there is none.

        Raises `GoalReached` where its plan is as good as the user wants it now."""
        if start is None:
            return None
        problems = violations(self.searcher.prices.instance(start.levels, self.searcher.time.looking), start.plan)
        if problems:
            earlier = f"its earlier plan of {rate_text(start.plan.throughput_fps)} frames/s"
            self.searcher.warn(f"warning: the search starts over, {earlier} is not valid any more: {problems[0]}")
            return None
        best = self.searcher.best
        best.go_on(self.searcher.bounded)
        if best.cycles_per_frame is not None and best.cycles_per_frame <= start.plan.cycles_per_frame:
            self.priced = start.plan
        return Found(start.plan, start.levels)

    def begun(self) -> Found:
        """The first placement that is worth going on from; if it will take long, and the user doesn't say where to
        begin, a plan of small circuits is kept before."""
        problem = self.searcher.problem
        least = least_cycles(problem)
        slow = problem.first_cycles(least, SLOW_RATIO)
        small = self._of_small_circuits(least) if problem.first_fps is None and self._takes_long(slow) else None
        try:
            return self.first(slow)
        except (Ended, NoRoomError):
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            if small is None:
                raise
            return small

    def _takes_long(self, cycles: int) -> bool:
        return self.multipliers_at(cycles) > max(MANY_MULTIPLIERS, MANY_A_NODE * len(self.searcher.problem.graph.nodes))

    def multipliers_at(self, cycles: int) -> int:
        """Of all engines at one level; 0 where it is too fast for a layer."""
        with suppress(FoldingError):
            return multipliers(self.searcher.problem.graph, cycles)
        return 0

    def _of_small_circuits(self, least: int) -> Found | None:
        """A placement to have a plan soon; None if there is none there: others will say why."""
        problem, cycles = self.searcher.problem, round(least * SMALL_RATIO)
        wanted = problem.search.least_fps
        too_slow = wanted is not None and problem.cluster.clock_hz < wanted * cycles
        if self.searcher.best.there_is_one or too_slow:
            return None
        try:
            found = Found(self.searcher.find([cycles], self.searcher.quick), (cycles,))
            self.hold(found)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return None
        finally:
            # those of a level so slow are of no other search
            self.searcher.prices.forget_ports()
        return found

    def first(self, cycles: int) -> Found:
        """A placement at a slow level, or at a slower one, if it is not slower than what is wanted."""
        searcher, growths = self.searcher, 0
        slowest = searcher.problem.slowest_cycles
        while True:
            try:
                return Found(searcher.find([cycles], searcher.quick), (cycles,))
            except FoldingError:
                # not monotonic: a little slower may do
                if cycles > SLOWEST:
                    raise
                cycles = ceil(cycles * SLOWER_RATIO)
            except Ended:
                raise
            except (InfeasibleError, OutOfTimeError) as error:
                if not searcher.problem.patient and not isinstance(error, TooLargeError):
                    raise NoRoomError(error.what, error.cure) from error
                growths += 1
                if growths > LADDER_GROWTHS or cycles >= slowest:
                    return Found(searcher.find([cycles], replace(searcher.quick, explain=True, proves=True)), (cycles,))
                cycles = min(round(cycles * SLOW_RATIO), slowest)
                # ports are those of the slowest level, also where a later search goes on from here
                searcher.prices.forget_ports()

    # ---- further levels

    def _further(self, first: Found, fastest: int, steps: int) -> tuple[Plan, list[int]]:
        """The best plan with the fastest level that may fit; where it has no room at that pace, with one in the middle
        between that and the plan, by way of which there may be; then with so many between it and the first ones; and
        all these levels."""
        best, levels, slow = *self._by_leaps(first, fastest), max(first.levels)
        for count in (0, 1, steps):
            high = slow if count > 1 else best.cycles_per_frame
            # engines divide their work evenly, so a plan is often faster than its level: slower levels are of no use
            further = between(fastest, high, count) if count else [fastest]
            new = [level for level in further if level < best.cycles_per_frame]
            if not new or (count and best.cycles_per_frame <= fastest):
                break
            levels = sorted({*levels, *new})
            best = self.better(best, levels)
        return best, levels

    def _by_leaps(self, first: Found, fastest: int) -> tuple[Plan, list[int]]:
        """The best plan by way of levels on the way to the fastest that may fit, and all levels, if its circuits are so
        large that the time may be over before they are elaborated; each plan is kept."""
        best, levels = first.plan, list(first.levels)
        while best.cycles_per_frame > fastest * LEAP_RATIO and self.multipliers_at(fastest) > HUGE_MULTIPLIERS:
            before = best.cycles_per_frame
            levels = sorted({*levels, round(best.cycles_per_frame / LEAP_RATIO)})
            best = self.better(best, levels)
            if best.cycles_per_frame == before:
                break
            self.hold(Found(best, tuple(levels)))
        return best, levels

    def faster(self, best: Plan, levels: Sequence[int], least: int) -> tuple[Plan, list[int]]:
        """Faster levels, as long as the plan is near the fastest one priced: memories hardly grow with the pace, so the
        prediction can be far too slow where they bind."""
        while best.bound_cycles_per_frame * NEAR_RATIO >= best.cycles_per_frame:
            next_level = max(least, round(best.cycles_per_frame / FASTER_RATIO))
            if next_level >= levels[0]:
                break
            levels = [next_level, *levels]
            best = self.better(best, levels)
        return best, list(levels)

    def _finer(self, best: Plan, levels: Sequence[int], count: int) -> list[int]:
        """New levels faster than a plan, above the fastest that is known to be too fast: steps of the staircase of
        multipliers, else evenly spaced above the bound at the levels priced."""
        low, high = best.any_bound_cycles_per_frame, best.cycles_per_frame
        below = max((level for level in levels if level < high), default=0)
        steps = self.searcher.any_bound.foldings.steps(max(low, below + 1), round(high / LEAST_RATIO), count)
        return steps or between(best.bound_cycles_per_frame, high, count, levels)

    # ---- what is found

    def hold(self, found: Found, *, at_any_cost: bool = False) -> None:
        """Keep a placement found, links and homes priced in, if it holds and is faster than the plan so far; the first
        one at slower levels, if it must be.  ``at_any_cost``: it is mended where it doesn't, or another looked for."""
        self.found = found
        known = self.searcher.best.training_cycles
        if found.plan is self.priced or (known is not None and found.plan.cycles_per_frame >= known):
            return
        realiser = Realiser(self.searcher)
        planned = realiser.with_links(found) if known is None else self._holding_faster(realiser, found, at_any_cost)
        self.priced = found.plan
        if planned is not None:
            self.searcher.best.take(replace(planned, searched=self.searcher.searched(found)))

    def _holding_faster(self, realiser: Realiser, found: Found, at_any_cost: bool) -> Planned | None:
        """A placement found, links and homes priced in, when there is a plan already: as it is, if it holds; made to
        hold ``at_any_cost``, or where it is so much faster that the plan so far would be a poor one to be left with."""
        known = self.searcher.best.cycles_per_frame
        if not at_any_cost and (known is None or found.plan.cycles_per_frame * WORTH_RATIO > known):
            return realiser.holding(found.plan, found.plan)
        try:
            return realiser.with_links(found)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return None

    def hold_last(self, searcher: Searcher, found: Found) -> Searched:
        """The end of the climb: keep the last placement, which ``searcher`` found, at slower levels if it must be; the
        search behind it.

        Raises `InfeasibleError` where it holds at none, and there is no plan."""
        best, searched, self.priced = self.searcher.best, searcher.searched(found), found.plan
        try:
            best.take(replace(Realiser(searcher).with_links(found), searched=searched))
        except (InfeasibleError, FoldingError):
            if best.planned is None:
                raise
            best.learn(found.plan, searched)
        return searched

    def close(self) -> None:
        """Hold what the ended climb had found, in the time that was left for it, or until Ctrl-C comes once more."""
        with self.searcher.time.closing() as closing:
            if self.found is None or closing.over:
                return
            with suppress(Ended, InfeasibleError, FoldingError):
                self.hold(self.found, at_any_cost=True)
