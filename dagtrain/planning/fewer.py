"""The cluster's first devices only, which may train faster than all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from dagtrain.planning.best import Best
from dagtrain.planning.levels import LEAST_RATIO, least_cycles
from dagtrain.planning.rate import plan_time
from dagtrain.planning.results import Planned, Searched, with_bound
from dagtrain.planning.searcher import Searcher


def on_fewer_devices(searcher: Searcher, searched: Searched) -> Iterator[Searcher]:
    """Searchers on one device, on two, ..., as long as a plan there may train faster than the best one then: what waits
    for the weights of the batch before goes a shorter way.  Their plans are taken as those of ``searcher``.

    ``searched`` is the search on all devices, whose bounds hold for fewer."""
    problem, best = searcher.problem, searcher.best
    assert best.planned is not None, "there is a plan on all devices"
    usable = [device.name for device in problem.devices]
    spread = best.planned.plan
    if len({item.device for item in spread.items}) == 1:
        return
    # the plan's batch if nothing crossed the network: more is not to be gained
    alone = plan_time(spread, problem.graph, problem.cluster, together=True).cycles

    def keep(planned: Planned) -> None:
        plan = replace(with_bound(planned.plan, searched.plan), binding=planned.plan.binding)
        best.take(Planned(plan, planned.instance, searched))

    for count in range(1, len(usable)):
        rest = tuple(usable[count:])
        if set(problem.pins.values()) & set(rest):
            continue
        fewer = searcher.without(rest, Best(keep=keep, known_cycles=best.training_cycles))
        slower = max(0, least_cycles(fewer.problem) - spread.cycles_per_frame)
        promised = Fraction(alone, spread.batch_frames) + slower
        if promised * LEAST_RATIO < best.planned.plan.training_cycles:
            yield fewer
