"""Copies of a whole network: where the search for their plan begins.

Copies of a layer exchange gradients, or send them to one update and get its weights back, every tensor a stream of its
own.  Across the network each has ports at both ends, whatever little it carries.  So a placement is looked for first in
which all copies of a node stand on one device, as far apart as those of one pipeline on as many boards: there are no
more places to choose than one pipeline has, and the search of all nodes goes on from it.  Where that has no room at the
first level, and copies apart have, theirs is the beginning: layers of all copies may be larger than a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from dagtrain.graph.ir import Graph
from dagtrain.passes.replicate import copies_of_nodes
from dagtrain.planning.ladder import SLOW_RATIO, Ladder, NoRoomError
from dagtrain.planning.levels import least_cycles
from dagtrain.planning.results import Planned, Start
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
    that is much faster, as ports are too slow for maps of all copies then, or the only one at the first level.

    None without such copies, on one device, or where there is no such placement.  Raises `Ended` at the deadline, or
    `GoalReached`."""
    searcher = ladder.searcher
    problem, alike = searcher.problem, together(searcher.problem.graph)
    if not alike or len(problem.devices) == 1 or problem.search.solver is Solver.LITERAL:
        return None
    best = replace(searcher.best, keep=lambda planned: searcher.best.take(_without_bound(planned)))
    coupled = Ladder(searcher.with_copies_together(alike, best, patient=False))
    try:
        try:
            first = coupled.begun()
        except NoRoomError:
            # at the level that copies together had none at, which is slower where layers can't be folded for the first
            hasty = replace(searcher, problem=replace(problem, patient=False))
            with suppress(NoRoomError):
                found = Ladder(hasty).first(problem.first_cycles(least_cycles(problem), SLOW_RATIO))
                return Start(found.plan, found.levels)
            if not problem.patient:
                return None
            coupled = Ladder(searcher.with_copies_together(alike, best, patient=True))
            first = coupled.begun()
        apart = _apart(searcher, first.levels)
        if apart is not None and apart.plan.cycles_per_frame * APART_RATIO < first.plan.cycles_per_frame:
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


def _apart(searcher: Searcher, levels: Sequence[int]) -> Start | None:
    """A placement at these levels with copies anywhere; None if none is found.

    Raises `Ended` at the deadline."""
    try:
        return Start(searcher.find(levels, searcher.quick), tuple(levels))
    except Ended:
        raise
    except (InfeasibleError, OutOfTimeError):
        return None


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
