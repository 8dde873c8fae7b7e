"""Where planning ends: plans with the instances they speak of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dagtrain.passes.form import Form
from placement.problem.instance import Instance
from placement.problem.plan import Binding, Bound, Plan
from placement.problem.plan import with_bound as bounded_plan

# kinds of bindings that are read off a plan alone
RATES = ("dram", "links")


@dataclass(frozen=True)
class Searched:
    """Where a search over many levels ended: what a later one goes on from, and what what-if questions are asked of.

    Network ports are priced as estimates in it, memories of other nodes as if they lay on chip."""

    # of `instance`
    plan: Plan
    instance: Instance
    # cycles a frame that were priced
    levels: tuple[int, ...]
    # False if Ctrl-C or the time limit ended it before its goal
    finished: bool = True


@dataclass(frozen=True)
class Planned:
    """A plan and the instance that it speaks of (what its validator needs)."""

    plan: Plan
    instance: Instance
    # the search that found the placement; None for a given placement
    searched: Searched | None = None


@dataclass(frozen=True)
class Found:
    """A placement found, with estimates for network ports, and the levels that it was found at."""

    plan: Plan
    # cycles a frame
    levels: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """An unfinished search to go on from."""

    # the placement found, with estimates for network ports
    plan: Plan
    levels: tuple[int, ...]
    # of its graph
    form: Form = field(default_factory=Form)
    # the plan that holds
    planned: Planned | None = None


def faster(best: Planned | None, other: Planned | None) -> Planned | None:
    """The one that trains faster; the first of equal ones."""
    if best is None or other is None:
        return best or other
    return min(best, other, key=lambda planned: planned.plan.training_cycles)


def with_bound(plan: Plan, found: Plan) -> Plan:
    """The plan with the bounds of the search that found it: the forced one's own bound speaks of its placement only."""
    bound = Bound(found.bound_cycles_per_frame, found.bound_basis)
    return bounded_plan(plan, bound, Bound(found.any_bound_cycles_per_frame, found.any_bound_basis))


def with_binding(planned: Planned, placed: Plan) -> Planned:
    """The plan with what keeps it at its pace: what kept the search there that found its placement, if that is the pace
    it has with its links and homes priced in; else the rates that it runs against, or that it was found for another."""
    plan = planned.plan
    binding = placed.binding
    if plan.cycles_per_frame != placed.cycles_per_frame:
        reason = (
            f"with its network ports and memories the placement found runs at {plan.cycles_per_frame:,} cycles a "
            f"frame; without them it was to run at {placed.cycles_per_frame:,}"
        )
        rates = tuple(own for own in plan.binding if own.kind in RATES)
        binding = rates or (Binding(kind="granularity", reason=reason),)
    return replace(planned, plan=replace(plan, binding=binding))


def with_any_bound(plan: Plan, any_bound: Bound) -> Plan:
    """The plan of a search at some levels with the bound of all foldings."""
    return bounded_plan(plan, Bound(plan.bound_cycles_per_frame, plan.bound_basis), any_bound)
