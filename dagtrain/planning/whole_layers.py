"""Placements with every layer on one device, which may train faster.

A search looks at the pace inside a batch alone, and of placements of one pace it takes the first.  Where batches wait
for their weights, the way there and back counts.  It is short where no layer is torn apart: error, gradient and update
then stand where the forward engine does, and ports take less, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from dagtrain.planning.ladder import Ladder
from dagtrain.planning.levels import LEAST_RATIO
from dagtrain.planning.rate import plan_time
from dagtrain.planning.results import Found, Searched, with_bound
from dagtrain.planning.searcher import Searcher
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from placement.problem.deadline import Ended
from placement.problem.instance import Instance
from placement.search.search import Solver


def try_whole_layers(searcher: Searcher, searched: Searched) -> None:
    """Keep a placement with every layer on one device, at the levels priced, if it holds and trains faster than the
    best plan.

    ``searched`` is the search without that, whose bounds hold for it.  Raises `Ended` at the deadline, or
    `GoalReached`."""
    problem, known = searcher.problem, searcher.best.training_cycles
    alone = len({item.device for item in searched.plan.items}) == 1
    literal = problem.search.solver is Solver.LITERAL
    if known is None or alone or literal or searched.plan.cycles_per_frame * LEAST_RATIO > known:
        return
    whole = searcher.with_layers_whole(_layers(searched.instance), known)
    try:
        plan = whole.search(searched.instance, whole.glance, bounded=False)
        time = plan_time(plan, problem.graph, problem.cluster)
        if Fraction(time.cycles, time.batch) * LEAST_RATIO <= known:
            Ladder(whole).hold(Found(with_bound(plan, searched.plan), searched.levels))
    except Ended:
        raise
    except (InfeasibleError, OutOfTimeError, FoldingError):
        # some layer may fit no device
        return


def _layers(instance: Instance) -> Iterator[str]:
    """Those of several items that are not pinned apart."""
    pins: dict[str, list[str | None]] = defaultdict(list)
    for item in instance.items:
        pins[item.layer].append(item.pinned)
    yield from (layer for layer, found in pins.items() if len(found) > 1 and len({*found} - {None}) < 2)
