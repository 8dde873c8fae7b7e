"""Shares of frames for copies on boards of unlike clocks or memory: each as large as its board is fast.

All copies of a layer have one tile of weights, since their gradients are added element by element in its order.  So
boards that differ in multipliers alone take equally long for a frame with it, and equal shares are best.  A board of
two thirds of the clock takes half as long again: of five frames it should get two (HyPar's halves, unlike groups).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from placement.bounds.bound import paces_on
from placement.problem.instance import Instance

# frames after which the turns of copies come again, at most: what waits at a collector grows with them
MOST_TURNS = 16


def by_speed(times: Sequence[int | Fraction], most_turns: int = MOST_TURNS) -> tuple[int, ...]:
    """Of as many frames as they add up to, at most so many, those of each copy, with which all are worked on soonest:
    the fewest of these.  ``times``: that each copy takes for a frame; no more of them than turns.

    For so many frames in all, each next one goes to the copy that ends it first, as no way to deal them is sooner."""
    shares = [1] * len(times)
    best, least = tuple(shares), busiest(times, shares)
    for _ in range(len(times), most_turns):
        soonest = min(range(len(times)), key=lambda copy: (shares[copy] + 1) * times[copy])
        shares[soonest] += 1
        if (pace := busiest(times, shares)) < least:
            best, least = tuple(shares), pace
    return best


def busiest(times: Sequence[int | Fraction], shares: Sequence[int]) -> Fraction:
    """Time a frame of a layer whose copies take ``times`` each and get these shares: that of the copy that ends
    last."""
    return max(Fraction(time * share, sum(shares)) for time, share in zip(times, shares, strict=True))


@dataclass(frozen=True)
class Engines:
    """Of a layer, or of each of its copies: those that want a device each at some pace."""

    # the slowest
    item: str
    # of all frames it works on
    busy: Fraction
    count: int = 1


def unlike_shares(instance: Instance, engines: Engines, cycles: Fraction, most_copies: int) -> tuple[int, ...] | None:
    """Shares of copies, each on devices of its own, with which a layer takes no longer than so many cycles a frame:
    of the fewest copies, at most so many, that do; where none do, those that are soonest.  None where equal shares are
    as good.

    ``instance``: in time."""
    ways = [
        (busiest(times[:copies], shares), shares)
        # copies take their devices in the order of how fast these are, and each is as fast as its last one
        for all_times in _times(instance, instance.item_index[engines.item], engines.busy).values()
        for times in [sorted(all_times)[engines.count - 1 :: engines.count]]
        for copies in range(2, min(len(times), most_copies, MOST_TURNS) + 1)
        for shares in [by_speed(times[:copies], min(most_copies, MOST_TURNS))]
    ]
    enough = [(len(shares), pace, shares) for pace, shares in ways if pace <= cycles]
    found = min(enough)[2] if enough else min(ways, default=(0, ()))[1]
    return found if len({*found}) > 1 else None


def _times(instance: Instance, index: int, busy: Fraction) -> Mapping[str | None, Sequence[Fraction]]:
    """Tile -> for a whole frame with it, on each device that has room for it."""
    found: dict[str | None, dict[int, Fraction]] = {}
    for number in range(len(instance.devices)):
        for configuration, cycles in paces_on(instance, index, number):
            times, time = found.setdefault(configuration.tile, {}), cycles / busy
            times[number] = min(times.get(number, time), time)
    return {tile: [*times.values()] for tile, times in found.items()}


def shares_of_groups(clocks: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Shares of so many copies of all layers, each on a group of devices of its own: these in the order of their
    clocks, in groups of as many each as can be.  None where equal shares are as good, or there are fewer devices.

    Only where clocks differ: devices of equal ones hold equal parts of any number of copies."""
    if len({*clocks}) == 1 or not 2 <= count <= min(len(clocks), MOST_TURNS):
        return None
    fastest = sorted(clocks, reverse=True)
    cuts = [-(-len(clocks) * copy // count) for copy in range(count + 1)]
    shares = by_speed([Fraction(1, sum(fastest[begin:end])) for begin, end in pairwise(cuts)])
    return shares if len({*shares}) > 1 else None
