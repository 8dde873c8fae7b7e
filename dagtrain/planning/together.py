"""Copies of a whole network: where the search for their plan begins.

Copies of a layer exchange gradients, or send them to one update and get its weights back, every tensor a stream of its
own.  Across the network each has ports at both ends, whatever little it carries.  So a placement is looked for first in
which all copies of a node stand on one device, as far apart as those of one pipeline on as many boards: there are no
more places to choose than one pipeline has, and the search of all nodes goes on from it.
"""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph
from dagtrain.passes.replicate import copies_of_nodes
from dagtrain.planning.ladder import Ladder
from dagtrain.planning.results import Found, Planned, Start
from dagtrain.planning.searcher import Searcher
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from placement.problem.deadline import Ended
from placement.problem.plan import Bound, Plan, with_bound
from placement.search.search import Solver

# copies stand apart from the beginning where that is so much faster
APART_RATIO = 1.1


def begun_together(ladder: Ladder) -> Start | None:
    """Where a climb with copies of a whole network begins: with the best placement that has all copies of each node on
    one device.  Plans that hold on the way there are kept.  With the first one of copies that stand anywhere, where
    that is much faster: ports are too slow for maps of all copies then.

    None without such copies, on one device, or where there is no such placement.  Raises `Ended` at the deadline, or
    `GoalReached`."""
    searcher = ladder.searcher
    problem, alike = searcher.problem, together(searcher.problem.graph)
    if not alike or len(problem.devices) == 1 or problem.search.solver is Solver.LITERAL:
        return None
    best = replace(searcher.best, keep=lambda planned: searcher.best.take(_without_bound(planned)))
    coupled = Ladder(searcher.with_copies_together(alike, best))
    try:
        first = coupled.begun()
        apart = _faster_apart(searcher, first)
        if apart is not None:
            return apart
        found = coupled.climb(Start(first.plan, first.levels))
    except Ended:
        raise
    except (InfeasibleError, OutOfTimeError, FoldingError):
        return None
    finally:
        # to be held when the deadline ends the climb
        ladder.found = coupled.found
    return Start(_unbounded(found.plan), found.levels)


def _faster_apart(searcher: Searcher, together: Found) -> Start | None:
    """A placement at the levels of one with copies together that is much faster without that; None if there is none.

    Raises `Ended` at the deadline."""
    try:
        plan = searcher.find(together.levels, searcher.quick)
    except Ended:
        raise
    except (InfeasibleError, OutOfTimeError):
        return None
    return (
        Start(plan, together.levels) if plan.cycles_per_frame * APART_RATIO < together.plan.cycles_per_frame else None
    )


def _without_bound(planned: Planned) -> Planned:
    """A plan with the bound of all foldings alone: that of its levels speaks of copies that stand together."""
    assert planned.searched is not None, "a ladder's plans know their search"
    searched = replace(planned.searched, plan=_unbounded(planned.searched.plan))
    return replace(planned, plan=_unbounded(planned.plan), searched=searched)


def _unbounded(plan: Plan) -> Plan:
    any_bound = Bound(plan.any_bound_cycles_per_frame, plan.any_bound_basis)
    return with_bound(plan, any_bound, any_bound)


def together(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """The copies of each node that has several."""
    found = (tuple(filter(None, names)) for names in copies_of_nodes(graph))
    return tuple(names for names in found if len(names) > 1)
