"""The MTU of a plan, where the cluster file leaves it to the planner.

A larger one leaves more of a cable to words.  A smaller one makes the way shorter: two full frames each way, so FIFOs,
credits and replay memories are smaller, and less staleness is needed.
"""

from __future__ import annotations

from dataclasses import replace

from dagtrain.planning.carry import places_of
from dagtrain.planning.choices import memory_homes, plan_choices, plan_pace
from dagtrain.planning.realise import Realiser
from dagtrain.planning.results import Planned, with_binding
from dagtrain.planning.searcher import Searcher
from dagtrain.rates import training_text
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from placement.problem.cluster import with_mtu
from placement.problem.deadline import Ended
from placement.problem.network import MTUS
from placement.problem.plan import with_bound


def with_best_mtu(searcher: Searcher, planned: Planned) -> Planned:
    """The placement with the MTU at which it trains fastest; of those that are as fast, that with the fewest block
    memories.  What was found is told.

    A plan of another MTU than it was searched with has the bound of all foldings for its own."""
    cluster = searcher.problem.cluster
    if not cluster.network.chooses_mtu:
        return planned
    found = {planned.plan.mtu: planned}
    for mtu in MTUS:
        if mtu not in found:
            other = _at(searcher, planned, mtu)
            found |= {mtu: other} if other is not None else {}
    best = min(found, key=lambda mtu: (found[mtu].plan.training_cycles, _memories(found[mtu]), mtu))
    rates = ", ".join(
        f"{mtu}: {training_text(each.plan.throughput_fps)} frames/s with {_memories(each)} block memories"
        for mtu, each in sorted(found.items())
    )
    searcher.warn(f"network.mtu = {best}, chosen from {rates}")
    return found[best]


def _at(searcher: Searcher, planned: Planned, mtu: int) -> Planned | None:
    """The same placement with another MTU; None where it does not hold, or there is no time to tell."""
    plan = planned.plan
    problem = replace(searcher.problem, cluster=with_mtu(searcher.problem.cluster, mtu))
    made = searcher.of_plan(plan, problem)
    try:
        held = Realiser(made).fixed(
            places_of(plan), plan_pace(plan).folds, memory_homes(plan_choices(plan)), explain=False
        )
        bound = made.any_bound.foldings.bound(problem.search, searcher.time.deadline)
    except (Ended, InfeasibleError, OutOfTimeError, FoldingError):
        return None
    held = replace(held, plan=with_bound(held.plan, bound, bound), searched=planned.searched)
    return with_binding(held, plan)


def _memories(planned: Planned) -> int:
    return sum(use.m20k for use in planned.plan.devices)
