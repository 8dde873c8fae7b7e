"""The bound of all foldings, held against every plan found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagtrain.planning.foldings import Foldings
from dagtrain.planning.results import with_any_bound
from placement.problem.deadline import Deadline
from placement.problem.plan import Bound, Plan
from placement.search.search import SearchOptions


@dataclass
class AnyBound:
    """The bound of all foldings of one problem: proven when a plan is first held against it, as that may take a while,
    and given up when a plan is below it."""

    foldings: Foldings
    search: SearchOptions
    # None until it is proven
    bound: Bound | None = None

    def of(self, plan: Plan, deadline: Deadline, warn: Callable[[str], None]) -> Plan:
        """The plan of a search, whose own bounds speak of the levels priced and of estimated ports, with this bound;
        ``warn`` is told if that is wrong.

        Raises `Ended` at the deadline."""
        bound = self.proven(deadline)
        if plan.cycles_per_frame < bound.cycles_per_frame:
            warn(
                f"warning: a plan of {plan.cycles_per_frame:,} cycles a frame is below the bound of all foldings "
                f"({bound.cycles_per_frame:,}: {bound.basis}), which is therefore wrong: please report it"
            )
            bound = self.bound = Bound(1, "none: one was found to be wrong")
        return with_any_bound(plan, bound)

    def proven(self, deadline: Deadline) -> Bound:
        """The bound.  Raises `Ended` at the deadline."""
        if self.bound is None:
            self.bound = self.foldings.bound(self.search, deadline)
        return self.bound
