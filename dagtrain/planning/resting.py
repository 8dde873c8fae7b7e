"""Placements without engines that rest for weights which they share, which may train faster.

A forward engine that lends its weights to the error engine, and keeps a single version of them (`Home.PARKED`), rests
once a batch until the error engine is through with the last frame of the version before: as long as frames take from
one to the other.  A search looks at the pace inside a batch alone, where a version less is so many block memories less.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from dagtrain.planning.carry import places_of
from dagtrain.planning.choices import plan_choices
from dagtrain.planning.levels import LEAST_RATIO, taken
from dagtrain.planning.rate import plan_time
from dagtrain.planning.realise import Realiser
from dagtrain.planning.results import Found, Searched, with_bound
from dagtrain.planning.searcher import Searcher
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from hdl.layers.storage import Home
from placement.problem.deadline import Ended
from placement.problem.plan import Plan
from placement.search.search import Solver


def resting(searcher: Searcher, plan: Plan) -> bool:
    """Whether an engine of a plan lends weights of which it keeps a single version."""
    lenders = searcher.problem.graph.borrowers
    return any(choice.memory is Home.PARKED and name in lenders for name, choice in plan_choices(plan).items())


def try_without_rests(searcher: Searcher, searched: Searched) -> None:
    """Keep a placement with two versions on chip of all weights that engines share, at the levels that the best plan
    takes, from which it is searched, if it holds and trains faster.

    ``searched`` is the search without that, whose bounds hold for it.  Raises `Ended` at the deadline, or
    `GoalReached`."""
    problem, planned = searcher.problem, searcher.best.planned
    literal = problem.search.solver is Solver.LITERAL
    if planned is None or literal or not resting(searcher, planned.plan):
        return
    # those that the plan takes: no faster pace is wanted
    levels = tuple(taken(searched.levels, planned.plan, problem.cluster))
    known = planned.plan.training_cycles
    if not levels or planned.plan.cycles_per_frame * LEAST_RATIO > known:
        return
    try:
        made = searcher.lending_two(known)
        instance = made.prices.instance(levels, made.time.looking)
        plan = made.search(instance, replace(made.quick, near=places_of(planned.plan)), bounded=False)
        time = plan_time(plan, problem.graph, problem.cluster)
        if Fraction(time.cycles, time.batch) * LEAST_RATIO <= known:
            found = Found(with_bound(plan, searched.plan), levels)
            # memories are fuller than those of the best plan: it may hold with some of every device left free
            held = Realiser(made).with_links(found)
            searcher.best.take(replace(held, searched=made.searched(found)))
    except Ended:
        raise
    except (InfeasibleError, OutOfTimeError, FoldingError):
        # two versions of all of them may find no room
        return
