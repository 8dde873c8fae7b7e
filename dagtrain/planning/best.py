"""The best plan so far, and who is told of a better one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.planning.results import Planned, Searched, with_bound
from dagtrain.rates import rate_text
from placement.problem.deadline import Ended
from placement.problem.plan import Plan


class GoalReached(Ended):
    """The plan is as good as the user wants it: nothing more is looked for."""


@dataclass(frozen=True)
class Missed:
    """A placement that was found, and why it is not the plan."""

    cycles_per_frame: Fraction | int
    why: str

    def text(self, clock_hz: int) -> str:
        """What a user is told."""
        rate = rate_text(float(clock_hz / self.cycles_per_frame))
        return f"a placement of {rate} frames/s inside a batch was found and not kept: {self.why}"


@dataclass
class Best:
    """The best plan that holds of one search."""

    # whether the user is content with a plan
    fast_enough: Callable[[Plan], bool] = lambda _: True
    # whether no faster pace is wanted
    reached: Callable[[Plan], bool] = lambda _: False
    # told of every plan that holds, is fast enough and faster than the one before
    keep: Callable[[Planned], None] = lambda _: None
    # cycles a frame of training with another plan that there is of the network: slower ones are of no use
    known_cycles: Fraction | None = None
    planned: Planned | None = None
    # the fastest placement that was found and not kept
    missed: Missed | None = None

    @property
    def training_cycles(self) -> Fraction | None:
        """Cycles a frame of training with the best plan there is, another one's included; None without any."""
        return self.planned.plan.training_cycles if self.planned is not None else self.known_cycles

    @property
    def cycles_per_frame(self) -> Fraction | int | None:
        """The same inside a batch; of another plan only those of training are known, which are no fewer."""
        return self.planned.plan.cycles_per_frame if self.planned is not None else self.known_cycles

    @property
    def there_is_one(self) -> bool:
        """Whether there is any plan of the network."""
        return self.planned is not None or self.known_cycles is not None

    @property
    def searched(self) -> Searched:
        """The search behind the best plan."""
        assert self.planned is not None, "a plan was taken"
        assert self.planned.searched is not None, "the planner's own plans know their search"
        return self.planned.searched

    def take(self, planned: Planned) -> None:
        """Keep a plan that holds if it is faster than the one so far, or as fast and of a search that went further.

        Raises `GoalReached` with the first one than which no faster pace is wanted."""
        best = self.planned
        if best is None or planned.plan.training_cycles <= best.plan.training_cycles:
            self.planned = planned
        else:
            rate, kept = (rate_text(float(plan.clock_hz / plan.training_cycles)) for plan in (planned.plan, best.plan))
            self.miss(planned.plan, f"training gets {rate} frames/s with it, and {kept} with the plan of then")
            self.learn(planned.plan, planned.searched)
        is_faster = best is None or planned.plan.training_cycles < best.plan.training_cycles
        if is_faster and self.fast_enough(planned.plan):
            self.keep(planned)
            self._check_goal(planned.plan)

    def miss(self, plan: Plan, why: str) -> None:
        """Note that a placement found is not kept."""
        if self.missed is None or plan.cycles_per_frame < self.missed.cycles_per_frame:
            self.missed = Missed(plan.cycles_per_frame, why)

    def learn(self, plan: Plan, searched: Searched | None) -> None:
        """Note what a search that brought nothing faster proved, if its plan is of the same nodes."""
        best = self.planned
        if best is not None and {item.item for item in plan.items} == {item.item for item in best.plan.items}:
            self.planned = replace(best, plan=with_bound(best.plan, plan), searched=searched)

    def go_on(self, bounded: Callable[[Plan], Plan]) -> None:
        """Hold the plan that there is, if there is one, against the bound of all foldings: that of an earlier search,
        or the first one, which did not wait for it.

        Raises `GoalReached` if no faster pace is wanted."""
        if self.planned is None:
            return
        before, self.planned = self.planned.plan, replace(self.planned, plan=bounded(self.planned.plan))
        if self.planned.plan != before and self.fast_enough(before):
            self.keep(self.planned)
        self._check_goal(self.planned.plan)

    def _check_goal(self, plan: Plan) -> None:
        if self.reached(plan):
            raise GoalReached("the plan is within the gap of the bound of all foldings")

    def conclude(self, finished: bool) -> None:
        """Note whether the search of the plan went to its end."""
        searched = replace(self.searched, finished=finished)
        assert self.planned is not None
        self.planned = replace(self.planned, searched=searched)
