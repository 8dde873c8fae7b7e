"""Finds the least cycles a frame: a proven bound first, then placements from the bound upwards and back down.

    integer T         least cycles a frame; costs are staircases in T, rates fit when bits · clock ≤ capacity · T
    quick bounds      `placement.bounds.bound`, `placement.bounds.aggregate`, `placement.bounds.cases`: milliseconds
    placements        `placement.annealing.heuristic` at the bound's T, backing off while it fails; then bisection
    slower bounds     `placement.bounds.packing`, `placement.bounds.window`, for the gap that is left
    small instances   the exact model (`placement.exact.model`) instead, to proven optimality

Anytime: `Progress` is reported after every step, a goal, a time limit or Ctrl-C ends the search with the best plan so
far, and a plan found earlier can be continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil

from hdl.errors import DagtrainError, InfeasibleError
from placement.annealing.settle import cheapest_on_devices
from placement.diagnosis.explain import binding_of
from placement.diagnosis.infeasible import explain_infeasible, overfull, too_large
from placement.exact.literal import literal_plan
from placement.exact.model import Answer, cheapest_configurations, fewest_crossings
from placement.problem.channels import in_channels
from placement.problem.clocks import in_time
from placement.problem.deadline import Deadline, Ended
from placement.problem.instance import Instance
from placement.problem.plan import (
    Assignment,
    Bound,
    Plan,
    assignment_of,
    build_plan,
    cycles_needed,
    least_cycles,
    unequal_joins,
)
from placement.problem.ports import beside_ports
from placement.problem.restrict import Restricted, restrict
from placement.problem.settings import OnProgress, Progress, SearchOptions, Solver
from placement.problem.validate import violations
from placement.search.descent import Descent, out_of_time

__all__ = ["OnProgress", "Progress", "SearchOptions", "Solver", "find_plan", "judged", "plan_from_assignment",
           "slowest_cycles"]  # fmt: skip


# chains at most before the slower bounds
FIRST_CHAINS = 16


def find_plan(
    instance: Instance,
    options: SearchOptions | None = None,
    on_progress: OnProgress | None = None,
    deadline: Deadline | None = None,
) -> Plan:
    """The best plan found, judged by the validator; ``deadline``: when to end, instead of after the time limit.

    Raises:
        InfeasibleError: proven that there is none (at `least_fps`); names the constraints at fault and a cure.
        OutOfTimeError: the budgets ended without a placement and without a proof; `Ended` if the deadline did.
        KeyboardInterrupt: Ctrl-C before the first placement, unless the deadline listens to it; later it returns the
            best plan so far.
        DagtrainError: contradictory options, numbers too large, a `start` plan that is not valid.
    """
    options = options or SearchOptions()
    report = on_progress or (lambda _: None)
    problem = _problem(instance, options)
    if options.solver is Solver.LITERAL:
        return judged(instance, literal_plan(problem, options, report, deadline))
    slowest = slowest_cycles(problem.instance, options.least_fps)
    search = Descent(problem.instance, options, report, slowest, deadline)
    if options.start is not None:
        search.accept(_started(instance, problem.instance, options))
    elif options.mended is not None:
        placed = options.mended.items
        tiles = {item.item: item.tile for item in placed}
        search.near = _near(problem.instance, {item.item: item.device for item in placed}, tiles)
        search.mended_cycles = ceil(options.mended.cycles_per_frame)
    elif options.near is not None:
        search.near = _near(problem.instance, options.near, {})
    best = _search(search)
    binding = binding_of(search.instance, search.table, best, search.bound)
    bound = Bound(search.bound.cycles_per_frame, problem.note + search.bound.basis)
    assignment = problem.widened(best)
    return judged(instance, build_plan(instance, assignment, bound, seed=options.seed, binding=binding))


def _problem(instance: Instance, options: SearchOptions) -> Restricted:
    """What is searched: the instance in time, with the restrictions of the options, beside its ports, its streams to
    DRAM in channels."""
    problem = restrict(in_time(instance), options.same_device, options.exclude, options.alike)
    return replace(problem, original=instance, instance=in_channels(beside_ports(problem.instance)))


def proven_bound(instance: Instance, options: SearchOptions, deadline: Deadline | None = None) -> Bound:
    """The bounds that take milliseconds, without a search."""
    problem = _problem(instance, options)
    search = Descent(problem.instance, options, lambda _: None, slowest_cycles(problem.instance), deadline)
    search.find_bound()
    return Bound(search.bound.cycles_per_frame, problem.note + search.bound.basis)


def _started(instance: Instance, restricted: Instance, options: SearchOptions) -> Assignment:
    """The assignment of the plan to continue from, in the restricted instance.

    Raises:
        DagtrainError: the plan is not valid for this instance or these options.
    """
    assert options.start is not None
    found = violations(instance, options.start)
    if found:
        raise DagtrainError(
            f"the plan of {options.start.instance!r} to continue from is not valid here: {found[0]}",
            "search without it",
        )
    places = {item.item: item.device for item in options.start.items}
    for item in restricted.items:
        if places[item.name] not in restricted.device_index:
            raise DagtrainError(
                f"the plan to continue from uses device {places[item.name]!r}, which is excluded", "search without it"
            )
    assignment = assignment_of(restricted, options.start)
    coupled: dict[str, str] = {}
    for item in restricted.items:
        if item.same_device and coupled.setdefault(item.same_device, places[item.name]) != places[item.name]:
            raise DagtrainError(
                f"the plan to continue from puts {item.name!r} apart from items of its group", "search without it"
            )
    return assignment


def _near(instance: Instance, near: Mapping[str, str], tiles: Mapping[str, str | None]) -> Assignment | None:
    """Items on these devices, with these tiles where they are still offered, else with any configuration; None if some
    item can't be built on its device."""
    devices = [instance.device_index.get(near[item.name], -1) for item in instance.items]
    menus = [instance.configurations(i, device) if device >= 0 else () for i, device in enumerate(devices)]
    if not all(menus):
        return None
    chosen = (
        next((position for position, c in enumerate(menu) if c.tile == tiles.get(item.name)), 0)
        for menu, item in zip(menus, instance.items, strict=True)
    )
    return Assignment(tuple(devices), tuple(chosen))


def _search(search: Descent) -> Assignment:
    """Bounds, placements, slower bounds and longer searches, until the goal, the budgets or the time."""
    try:
        search.report("start")
        search.find_bound()
        _check_bound(search)
        search.report("bound")
        if search.best is None:
            _first(search)
        search.lengthen()
        search.descend(min(search.options.anneal_budget // 6, FIRST_CHAINS * search.slice))
        search.tighten_bound()
        search.descend(search.options.anneal_budget - search.annealer.moves)
    except Ended as end:
        if search.best is None:
            raise Ended(f"{end}: {out_of_time(search.instance, search.ceiling)}") from None
    except KeyboardInterrupt:
        if search.best is None:
            raise
        search.deadline.interrupt()
        return search.best
    return _tidied(search)


def _check_bound(search: Descent) -> None:
    if search.bound.cycles_per_frame > search.ceiling:
        raise _infeasible(search)


def _infeasible(search: Descent) -> InfeasibleError:
    large = too_large(search.instance, search.ceiling)
    if large is not None:
        return large
    if not search.options.explain:
        return InfeasibleError(f"no placement of {search.instance.name!r}: {search.bound.basis}")
    effort = search.effort(search.options.refutation_seconds)
    return explain_infeasible(search.instance, search.table, search.ceiling, effort, search.bound.basis)


def _first(search: Descent) -> None:
    answer = search.first_placement()
    if answer is Answer.INFEASIBLE:
        raise _infeasible(search)
    if answer is Answer.UNKNOWN:
        raise out_of_time(search.instance, search.ceiling)


def _tidied(search: Descent) -> Assignment:
    """At the T reached: fewer crossings where the exact model is small, and the cheapest configurations."""
    assert search.best is not None
    options, best, instance = search.options, search.best, search.instance
    if not search.exact_is_small(search.best_cycles):
        return _cheapest_on_devices(search, best)
    table = search.table.at(search.best_cycles)
    effort = search.effort(options.tidy_seconds)
    if options.tidy_seconds > 0 and not search.alone:
        best = fewest_crossings(instance, table, best, effort)
    if search.choices(search.best_cycles) > options.joint_choices:
        return _cheapest_on_devices(search, best)
    return cheapest_configurations(instance, table, best, search.effort(options.refutation_seconds))


def _cheapest_on_devices(search: Descent, best: Assignment) -> Assignment:
    """Cheaper configurations of each device, where its memory channels carry them as fast."""
    found = cheapest_on_devices(search.instance, search.flat, best, search.best_cycles, seed=search.options.seed)
    cycles = least_cycles(search.instance, found)
    return found if cycles is not None and cycles <= search.best_cycles else best


def slowest_cycles(instance: Instance, least_fps: float | None = None) -> int:
    """A T at which neither engines nor rates bind any more, or the T of the least acceptable throughput.

    Raises:
        DagtrainError: `least_fps` is not positive or faster than the clock.
    """
    if least_fps is not None:
        if not 0 < least_fps <= instance.clock_hz:
            raise DagtrainError(f"least throughput of {least_fps} frames/s must lie above 0 and not above the clock")
        return int(instance.clock_hz // least_fps)
    engines = max(c.cycles_per_frame for item in instance.items for cs in item.configurations.values() for c in cs)
    bits = sum((bits for link in instance.links for *_, bits in link.ways), Fraction(0))
    bits += sum((host for device in instance.devices for host in device.host_bits), Fraction(0))
    bytes_ = sum(
        max(c.dram_bytes_per_frame for cs in item.configurations.values() for c in cs) for item in instance.items
    )
    rates = [cycles_needed(bits, rate, instance.clock_hz) for rate in instance.link_rates]
    # all of it through one channel, at worst
    rates += [
        cycles_needed(bytes_ * device.dram_channels, device.dram_bytes_per_s, instance.clock_hz)
        for device in instance.devices
    ]
    return max(1, engines, *(rate or 0 for rate in rates))


def plan_from_assignment(
    instance: Instance,
    assignment: Mapping[str, str],
    options: SearchOptions | None = None,
    deadline: Deadline | None = None,
) -> Plan:
    """The plan in which every item stands on the given device: least T, then the cheapest configurations.

    Args:
        assignment: item name → device name, for every item of the instance.

    The plan's bound speaks of this assignment only, and says so.

    Raises:
        InfeasibleError: the assignment breaks a pin or equal hops, or a device has no room at any pace (each named), or
            it does not fit.
        OutOfTimeError: the budget ended before a placement was found or excluded.
        DagtrainError: an unknown item or device, or an item without a device.
    """
    options = options or SearchOptions()
    places, same = _places(instance, assignment), beside_ports(in_time(instance))
    if full := overfull(instance, places):
        raise InfeasibleError.listing(f"assignment for {instance.name!r}", full)
    fixed = in_channels(fixed_instance(same, places))
    options = replace(options, exact_choices=2**62, anneal_budget=0, tidy_seconds=0.0, window_seconds=0.0)
    search = Descent(fixed, options, lambda _: None, slowest_cycles(same, options.least_fps), deadline)
    best = _search(search)
    bound = Bound(search.bound.cycles_per_frame, f"with every item on its given device: {search.bound.basis}")
    binding = binding_of(fixed, search.table, best, search.bound)
    return judged(instance, build_plan(instance, best, bound, seed=options.seed, binding=binding))


def _places(instance: Instance, assignment: Mapping[str, str]) -> tuple[int, ...]:
    """Device positions of an assignment by names, checked."""
    wrong = [f"item {item.name!r} is given no device" for item in instance.items if item.name not in assignment]
    wrong += [f"no item named {name!r}" for name in assignment if name not in instance.item_index]
    wrong += [f"no device named {name!r}" for name in assignment.values() if name not in instance.device_index]
    if wrong:
        raise DagtrainError.listing(f"assignment for {instance.name!r}", dict.fromkeys(wrong))
    places = tuple(instance.device_index[assignment[item.name]] for item in instance.items)
    broken = [
        f"item {item.name!r} is pinned to {item.pinned!r} but assigned to {assignment[item.name]!r}"
        for item in instance.items
        if item.pinned not in (None, assignment[item.name])
    ]
    broken += [f"branches join with unequal hops {join}" for join in unequal_joins(instance, places)]
    if broken:
        raise InfeasibleError.listing(f"assignment for {instance.name!r}", broken)
    return places


def fixed_instance(instance: Instance, places: tuple[int, ...]) -> Instance:
    """The instance in which every item can be built on its given device alone: each device is a part of its own."""
    parts = {device.name: f"{device.part} of {device.name}" for device in instance.devices}
    items = tuple(
        replace(
            item, pinned=None,
            configurations={parts[instance.devices[n].name]: item.configurations.get(instance.devices[n].part, ())},
        )
        for item, n in zip(instance.items, places, strict=True)
    )  # fmt: skip
    missing = [item.name for item in items if not any(item.configurations.values())]
    if missing:
        raise InfeasibleError(
            f"assignment for {instance.name!r}: no configuration on the given device for {', '.join(missing[:8])}"
        )
    devices = tuple(replace(device, part=parts[device.name]) for device in instance.devices)
    return replace(instance, items=items, devices=devices)


def judged(instance: Instance, plan: Plan) -> Plan:
    """The plan itself, if the independent validator has nothing against it.

    Raises:
        DagtrainError: it has; every violation is listed. This is a bug of the search, never of the input.
    """
    found = violations(instance, plan)
    if found:
        head = f"plan of {instance.name!r} is rejected by the validator, which is a bug of the search"
        raise DagtrainError.listing(head, map(str, found[:10]))
    return plan
