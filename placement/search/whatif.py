"""What would change the throughput: the next level and what it needs, more of a resource, one more board.

Two numbers stand side by side everywhere. *Sure*: what the plan's own placement gains without being moved. *Possible*:
by how much the aggregate bound moves; no plan can gain more than from where it is to that bound. The truth lies between
them; `growth` and `shadow_prices` can search for it, from the plan onwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hdl.errors import DagtrainError
from placement.bounds.aggregate import Aggregate
from placement.bounds.bound import aggregate_bound, demand_at, next_level_below, single_bound
from placement.problem.clocks import in_time
from placement.problem.deadline import Ended
from placement.problem.flat import flatten
from placement.problem.instance import RESOURCES, Device, Instance
from placement.problem.options import OptionTable
from placement.problem.plan import Assignment, Plan, assignment_of, least_cycles
from placement.problem.settings import SearchOptions
from placement.search.descent import Descent

OnAnswer = Callable[[str], None]

# field of a device → what it is called
CAPACITIES = {
    "dsp": "DSP blocks",
    "m20k": "block memories",
    "alm": "logic cells",
    "dram_bytes_per_s": "DRAM bandwidth",
    "link_bits_per_s": "link bandwidth",
}


@dataclass(frozen=True, kw_only=True)
class NextLevel:
    """The next faster step of the configurations."""

    cycles_per_frame: int
    throughput_fps: float
    # resource → (least that all items together need there, what all devices have)
    demand: dict[str, tuple[int, int]]
    # items without any configuration that fast
    missing: tuple[str, ...]
    # whether a bound proves it impossible on this cluster
    refuted: bool


@dataclass(frozen=True, kw_only=True)
class ShadowPrice:
    """What more of one resource of one device is worth."""

    device: str
    # a key of CAPACITIES
    resource: str
    # how much more: 0.1 is 10 %
    more: float
    # throughput gained as a share: by the plan's placement as it stands; by the bound; by a search (None: not searched)
    sure_gain: float
    possible_gain: float
    searched_gain: float | None

    def __str__(self) -> str:
        gains = f"{self.sure_gain:+.1%} fps as placed, bound {self.possible_gain:+.1%}"
        searched = "" if self.searched_gain is None else f", {self.searched_gain:+.1%} found"
        return f"{self.more:+.0%} {CAPACITIES[self.resource]} on {self.device} → {gains}{searched}"


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What one more board of a sort would bring."""

    # the device it is a copy of
    like: str
    part: str
    # throughput found by searching on from the plan, and the bound, frames a second
    throughput_fps: float
    bound_fps: float


def next_level(instance: Instance, plan: Plan) -> NextLevel | None:
    """The next faster level and what it needs; None if every configuration is at its fastest."""
    instance = in_time(instance)
    table = OptionTable(instance)
    cycles = next_level_below(table.levels(), plan.cycles_per_frame)
    if cycles is None:
        return None
    aggregate = Aggregate(instance, flatten(instance))
    missing = tuple(instance.items[i].name for i in table.at(cycles).without_choice())
    return NextLevel(
        cycles_per_frame=cycles,
        throughput_fps=instance.clock_hz / cycles,
        demand=demand_at(instance, table, cycles),
        missing=missing,
        refuted=bool(missing) or cycles < plan.bound_cycles_per_frame or aggregate.refute(cycles) is not None,
    )


def shadow_prices(
    instance: Instance, plan: Plan, *, more: float = 0.1, moves: int = 0, seed: int = 0,
    on_answer: OnAnswer = lambda _: None,
) -> tuple[ShadowPrice, ...]:  # fmt: skip
    """What `more` of every resource of every device is worth, the most valuable first.

    Args:
        more: share by which a capacity grows.
        moves: annealing moves to search for the gain of each (of equal devices only the first is tried); 0: none.
        on_answer: called with a word on every answer, for a progress bar.
    """
    instance = in_time(instance)
    assignment = assignment_of(instance, plan)
    bound = quick_bound(instance)
    known: dict[tuple[object, str], tuple[float, float | None]] = {}
    prices = []
    for n, device in enumerate(instance.devices):
        for resource in CAPACITIES:
            grown = _grown(instance, n, resource, more)
            pinned = any(item.pinned == device.name for item in instance.items)
            key = (device.name if pinned else instance.sorts[n], resource)
            if key not in known:
                searched = _searched(grown, assignment, moves, seed) if moves else None
                gain = None if searched is None else plan.cycles_per_frame / searched - 1
                known[key] = (bound / quick_bound(grown) - 1, gain)
            on_answer(f"{CAPACITIES[resource]} of {device.name}")
            sure = least_cycles(grown, assignment) or plan.cycles_per_frame
            prices.append(
                ShadowPrice(
                    device=device.name, resource=resource, more=more,
                    sure_gain=plan.cycles_per_frame / sure - 1,
                    possible_gain=known[key][0], searched_gain=known[key][1],
                )
            )  # fmt: skip
    return tuple(sorted(prices, key=lambda p: (-(p.searched_gain or 0), -p.sure_gain, -p.possible_gain)))


def growth(
    instance: Instance, plan: Plan, *, moves: int = 1_000_000, seed: int = 0, on_answer: OnAnswer = lambda _: None
) -> tuple[Growth, ...]:
    """What one more board of each sort would bring: searched from the plan for `moves` moves, and the bound.

    Raises:
        DagtrainError: devices are on cables, and nothing says where those of one more would go.
    """
    if instance.cables:
        raise DagtrainError(
            f"placement instance {instance.name!r}: one more board would need cables, and nothing says to which others",
            "write the larger cluster into a file of its own and place on that",
        )
    instance = in_time(instance)
    assignment = assignment_of(instance, plan)
    found = []
    seen = set()
    for device in instance.devices:
        if device.shape in seen:
            continue
        seen.add(device.shape)
        extra = replace(device, name=_free_name(instance, device))
        grown = replace(instance, devices=(*instance.devices, extra))
        cycles = _searched(grown, assignment, moves, seed)
        on_answer(f"one more {device.part}")
        found.append(
            Growth(
                like=device.name, part=device.part, throughput_fps=instance.clock_hz / cycles,
                bound_fps=instance.clock_hz / min(cycles, quick_bound(grown)),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda g: (-g.throughput_fps, -g.bound_fps, g.like)))


def quick_bound(instance: Instance) -> int:
    """The bounds that take milliseconds, in cycles a frame."""
    ceiling = 1 << 50
    return aggregate_bound(
        Aggregate(instance, flatten(instance)), single_bound(instance, ceiling), ceiling
    ).cycles_per_frame


def _grown(instance: Instance, device: int, resource: str, more: float) -> Instance:
    """The instance with more of one resource on one device; where devices share a part, only this one changes.  On
    cables, more of links is more on all cables of the device, and so at their other ends too."""
    if resource == "link_bits_per_s" and instance.cables:
        return _on_faster_cables(instance, instance.devices[device].name, more)
    devices = list(instance.devices)
    capacity = getattr(devices[device], resource)
    larger: dict[str, Any] = {resource: int(capacity * (1 + Fraction(more)))}
    devices[device] = replace(devices[device], **larger)
    return replace(instance, devices=tuple(devices))


def _on_faster_cables(instance: Instance, device: str, more: float) -> Instance:
    cables = tuple(
        replace(cable, bits_per_s=int(cable.bits_per_s * (1 + Fraction(more))))
        if device in (cable.a, cable.b)
        else cable
        for cable in instance.cables
    )
    rates: Counter[str] = Counter()
    for cable in cables:
        rates.update({cable.a: cable.bits_per_s, cable.b: cable.bits_per_s})
    devices = tuple(replace(other, link_bits_per_s=rates[other.name]) for other in instance.devices)
    return replace(instance, devices=devices, cables=cables)


def _searched(instance: Instance, assignment: Assignment, moves: int, seed: int) -> int:
    """The least T found from an assignment within some moves."""
    options = SearchOptions(seed=seed, anneal_budget=max(1, moves), window_seconds=0.0)
    start = least_cycles(instance, assignment)
    assert start is not None, "a plan's placement has a finite T"
    search = Descent(instance, options, lambda _: None, start)
    search.accept(assignment)
    try:
        search.find_bound()
        if moves:
            search.descend(moves)
    except Ended:
        pass
    return search.best_cycles


def _free_name(instance: Instance, device: Device) -> str:
    taken = {other.name for other in instance.devices}
    return next(name for k in range(len(taken) + 1) if (name := f"{device.part}-more-{k}") not in taken)


def scarcity(instance: Instance, plan: Plan) -> dict[str, dict[str, float]]:
    """Part → resource → share of the cluster's worth at the prices that make the plan's bound tight: what is scarce
    costs most, what costs nothing is not binding anywhere."""
    instance = in_time(instance)
    flat = flatten(instance)
    prices = Aggregate(instance, flat).prices(max(1, plan.bound_cycles_per_frame - 1))
    names = (*RESOURCES, "dram_bytes_per_s")
    return {part: dict(zip(names, map(float, row), strict=True)) for part, row in zip(flat.parts, prices, strict=True)}
