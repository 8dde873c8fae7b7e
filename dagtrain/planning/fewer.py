"""The cluster's first devices only, which may train faster than all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction

from dagtrain.planning.best import Best
from dagtrain.planning.levels import LEAST_RATIO
from dagtrain.planning.rate import plan_time
from dagtrain.planning.results import Planned, Searched, with_bound
from dagtrain.planning.searcher import Searcher
from placement.problem.instance import RESOURCES
from placement.problem.plan import Plan

# share of their scarcest blocks that devices can be filled to, if a plan does not fill them further
FULL = Fraction(9, 10)


def on_fewer_devices(searcher: Searcher, searched: Searched) -> Iterator[Searcher]:
    """Searchers on fewer devices, where a plan may train faster than the best one then: what waits for the weights of
    the batch before goes a shorter way.  The numbers of devices that promise most come first, those that promise
    nothing are left out; where one brings nothing, fewer are.  Their plans are taken as those of ``searcher``.

    ``searched`` is the search on all devices, whose bounds hold for fewer."""
    problem, best = searcher.problem, searcher.best
    assert best.planned is not None, "there is a plan on all devices"
    usable = [device.name for device in problem.devices]
    spread = best.planned.plan
    used = len({item.device for item in spread.items})
    if used == 1:
        return
    # the plan's batch if nothing crossed the network: more is not to be gained
    alone = Fraction(plan_time(spread, problem.graph, problem.cluster, together=True).cycles, spread.batch_frames)

    def keep(planned: Planned) -> None:
        best.take(Planned(with_bound(planned.plan, searched.plan), planned.instance, searched))

    def on(count: int) -> Searcher:
        known = best.training_cycles
        assert known is not None, "there is a plan on all devices"
        return searcher.without(usable[count:], Best(keep=keep, known_cycles=known), known)

    def promises(cycles: Fraction) -> bool:
        known = best.training_cycles
        return known is not None and cycles * LEAST_RATIO < known

    # devices -> cycles a frame of training with them, as far as is known
    expected: dict[int, Fraction] = {}
    # the way is about as much shorter as there are fewer devices on it, and all engines as much slower as the bound, or
    # as what they take would be too much
    way = (spread.training_cycles - alone) / (used - 1)
    for count in range(len(usable) - 1, 0, -1):
        if set(problem.pins.values()) & set(usable[count:]):
            break
        bound = searcher.any_bound.foldings.bound(on(count).problem.search, searcher.time.looking).cycles_per_frame
        if not promises(alone + max(0, bound - spread.cycles_per_frame)):
            # a proof, and for fewer still
            break
        slower = max(Fraction(bound, spread.any_bound_cycles_per_frame), _too_full(spread, usable[:count]))
        expected[count] = alone * slower + way * (min(count, used) - 1)
    in_vain = 0
    for count in sorted(expected, key=lambda count: (expected[count], count)):
        known = best.training_cycles
        if count > in_vain and promises(expected[count]):
            yield on(count)
            if best.training_cycles == known:
                in_vain = count


def _too_full(plan: Plan, devices: Collection[str]) -> Fraction:
    """How many times as much as fits these devices would be the blocks of a plan, of the sort that is scarcest; 1 if
    they fit.  What it fills more of its own devices, of these can be filled too."""

    def fullest(of: Collection[str]) -> Fraction:
        shares = (
            Fraction(
                sum(int(getattr(use, resource)) for use in plan.devices),
                max(1, sum(int(getattr(use, f"{resource}_capacity")) for use in plan.devices if use.device in of)),
            )
            for resource in RESOURCES
        )
        return max(shares)

    return max(Fraction(1), fullest(devices) / max(FULL, fullest([use.device for use in plan.devices])))
