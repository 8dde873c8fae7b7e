"""Finds the least cycles a frame: a proven bound first, then placements from the bound upwards and back down.

The order of work is fixed and every budget is a count (deterministic solver time, iterations), so one seed gives
one plan on every machine. A heuristic failure only stops the search at that T; only a proof moves the bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hdl.errors import DagtrainError, InfeasibleError, OutOfTimeError
from placement import anneal, encode
from placement.bound import resource_bound
from placement.explain import binding_of, explain_infeasible
from placement.instance import Instance
from placement.model import (
    Answer,
    Effort,
    add_hint,
    build_model,
    cheapest_configurations,
    decide,
    fewest_crossings,
    order_equal_devices,
)
from placement.options import OptionTable
from placement.plan import Assignment, Bound, Plan, build_plan, cycles_needed, least_cycles, unequal_joins
from placement.validate import violations

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Budgets and goals of the search; the defaults suit up to a thousand items on a dozen devices."""

    seed: int = 0
    # slowest acceptable throughput, frames a second; None: any
    least_fps: float | None = None
    # CP-SAT's deterministic seconds for one decision about the exact model
    decision_seconds: float = 20.0
    # … and for one refutation of the bound
    refutation_seconds: float = 3.0
    # … and for finding fewer crossings at the T reached
    tidy_seconds: float = 10.0
    # the exact model is asked only up to this many (item, device, configuration) choices
    exact_choices: int = 2_500
    # moves of one annealing run, and runs at one T before it counts as a failure; 0 runs: no annealing
    anneal_moves: int = 1_000_000
    anneal_runs: int = 3
    # stop when no T between a failure and the best plan differs by more than this
    tolerance: float = 0.002
    # solver threads; like the seed, another number may give another plan
    workers: int = 2


@dataclass(frozen=True)
class Progress:
    """How far the search is, for a progress bar."""

    stage: str
    # best T so far, None before the first placement
    cycles_per_frame: int | None
    # proven lower bound on T
    bound_cycles_per_frame: int

    @property
    def gap(self) -> float | None:
        """(bound − throughput) / bound of the best placement so far."""
        if self.cycles_per_frame is None:
            return None
        return 1 - self.bound_cycles_per_frame / self.cycles_per_frame


OnProgress = Callable[[Progress], None]


def find_plan(instance: Instance, options: SearchOptions | None = None, on_progress: OnProgress | None = None) -> Plan:
    """The best plan found, judged by the validator.

    Raises:
        InfeasibleError: proven that there is none (at `least_fps`); names the constraint family to relax.
        OutOfTimeError: the budgets ended without a placement and without a proof.
    """
    options = options or SearchOptions()
    return _Search(instance, options, on_progress or (lambda _: None)).run()


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
    bits = sum(link.bits_per_frame for link in instance.links)
    bytes_ = sum(
        max(c.dram_bytes_per_frame for cs in item.configurations.values() for c in cs) for item in instance.items
    )
    rates = [cycles_needed(bits, device.link_bits_per_s, instance.clock_hz) for device in instance.devices]
    rates += [cycles_needed(bytes_, device.dram_bytes_per_s, instance.clock_hz) for device in instance.devices]
    return max(1, engines, *(rate or 0 for rate in rates))


def plan_from_assignment(
    instance: Instance, assignment: Mapping[str, str], options: SearchOptions | None = None
) -> Plan:
    """The plan in which every item stands on the given device: least T, then the cheapest configurations.

    Args:
        assignment: item name → device name, for every item of the instance.

    The plan's bound speaks of this assignment only, and says so.

    Raises:
        InfeasibleError: the assignment breaks a pin or equal hops (each named), or does not fit.
        OutOfTimeError: the budget ended before a placement was found or excluded.
        DagtrainError: an unknown item or device, or an item without a device.
    """
    wrong = [f"item {item.name!r} is given no device" for item in instance.items if item.name not in assignment]
    wrong += [f"no item named {name!r}" for name in assignment if name not in instance.item_index]
    wrong += [f"no device named {name!r}" for name in assignment.values() if name not in instance.device_index]
    if wrong:
        raise DagtrainError(f"assignment for {instance.name!r}: " + "; ".join(dict.fromkeys(wrong)))
    places = tuple(instance.device_index[assignment[item.name]] for item in instance.items)
    broken = [
        f"item {item.name!r} is pinned to {item.pinned!r} but assigned to {assignment[item.name]!r}"
        for item in instance.items
        if item.pinned not in (None, assignment[item.name])
    ]
    broken += [f"branches join with unequal hops {join}" for join in unequal_joins(instance, places)]
    if broken:
        raise InfeasibleError(f"assignment for {instance.name!r}: " + "; ".join(broken))
    options = replace(options or SearchOptions(), exact_choices=2**62, anneal_runs=0)
    forced = _Search(instance.with_pins(assignment), options, lambda _: None)
    best = forced.best_assignment()
    basis = f"with every item on its given device: {forced.bound.basis}"
    binding = binding_of(forced.instance, forced.table, best, forced.bound)
    bound = Bound(forced.bound.cycles_per_frame, basis)
    return judged(instance, build_plan(instance, best, bound, seed=options.seed, binding=binding))


class _Search:
    def __init__(self, instance: Instance, options: SearchOptions, on_progress: OnProgress) -> None:
        self.instance, self.options, self.on_progress = instance, options, on_progress
        self.table = OptionTable(instance)
        self.ceiling = slowest_cycles(instance, options.least_fps)
        self.bound = Bound(1, "nothing runs in less than one cycle")
        self.best: Assignment | None = None
        self.best_cycles = self.ceiling + 1

    def run(self) -> Plan:
        best = self.best_assignment()
        binding = binding_of(self.instance, self.table, best, self.bound)
        plan = build_plan(self.instance, best, self.bound, seed=self.options.seed, binding=binding)
        return judged(self.instance, plan)

    def best_assignment(self) -> Assignment:
        """Bound, first placement, descent, and the cheapest configurations at the T reached."""
        self._report("bound")
        effort = self._effort(self.options.refutation_seconds)
        self.bound = resource_bound(self.instance, self.table, self.ceiling, effort)
        if self.bound.cycles_per_frame > self.ceiling:
            raise InfeasibleError(explain_infeasible(self.instance, self.table, self.ceiling, effort))
        self._first_placement(effort)
        self._descend()
        assert self.best is not None
        options = self.table.at(self.best_cycles)
        if self._exact_is_small(self.best_cycles) and self.options.tidy_seconds > 0:
            self._report("fewest crossings")
            self.best = fewest_crossings(self.instance, options, self.best, self._effort(self.options.tidy_seconds))
        self._report("cheapest configurations")
        return cheapest_configurations(self.instance, options, self.best, effort)

    def _effort(self, seconds: float) -> Effort:
        return Effort(deterministic_seconds=seconds, seed=self.options.seed, workers=self.options.workers)

    def _first_placement(self, effort: Effort) -> None:
        """Jump to the bound's T and back off in growing steps up to the slowest."""
        floor = self.bound.cycles_per_frame
        steps = (-(-floor * percent // 100) for percent in (100, 105, 120, 150, 220, 400, 1000))
        for cycles in [*(step for step in steps if step < self.ceiling), self.ceiling]:
            answer = self._attempt(cycles)
            if answer is Answer.FEASIBLE:
                return
        if answer is Answer.UNKNOWN:  # however large: it may still find one, or prove that there is none
            answer = self._exact(self.ceiling)
        if answer is Answer.FEASIBLE:
            return
        if answer is Answer.INFEASIBLE:
            raise InfeasibleError(explain_infeasible(self.instance, self.table, self.ceiling, effort))
        raise OutOfTimeError(
            f"no placement of {self.instance.name!r} found, and none excluded, at {self.ceiling} cycles a frame; "
            "allow a longer search, more devices, or higher utilisation caps"
        )

    def _descend(self) -> None:
        """Bisect the levels between what failed and the best placement; each success tightens to its least T."""
        failed = self.bound.cycles_per_frame - 1
        levels = self.table.levels()
        while (probe := self._next_probe(failed, levels)) is not None:
            if self._attempt(probe) is not Answer.FEASIBLE:
                failed = probe

    def _next_probe(self, failed: int, levels: list[int]) -> int | None:
        failed = max(failed, self.bound.cycles_per_frame - 1)
        if self.best_cycles - failed <= 1:
            return None
        exact = self._exact_is_small(self.best_cycles - 1)
        if not exact and (self.best_cycles - failed) <= self.options.tolerance * self.best_cycles:
            return None
        between = [level for level in levels if failed < level < self.best_cycles]
        if not between:
            return self.best_cycles - 1
        return between[len(between) // 2]

    def _attempt(self, cycles: int) -> Answer:
        """Look for a placement at T: by the exact model where it is small enough, else or then by annealing."""
        answer = Answer.UNKNOWN
        if self._exact_is_small(cycles):
            answer = self._exact(cycles)
        if answer is Answer.UNKNOWN and self._anneal(cycles):
            answer = Answer.FEASIBLE
        self._report(f"T = {cycles}: {answer.value}")
        return answer

    def _exact_is_small(self, cycles: int) -> bool:
        options = self.table.at(cycles)
        choices = sum(
            len(by_part.get(device.part, ())) for by_part in options.by_part for device in self.instance.devices
        )
        return choices <= self.options.exact_choices

    def _exact(self, cycles: int) -> Answer:
        options = self.table.at(cycles)
        if options.without_choice() or not all(options.tiles.values()):
            answer, assignment = Answer.INFEASIBLE, None
        else:
            model = build_model(self.instance, options)
            if self.best is None:
                order_equal_devices(model)
            else:
                add_hint(model, self.best)
            answer, assignment = decide(model, self._effort(self.options.decision_seconds))
        if answer is Answer.INFEASIBLE:
            self.bound = Bound(cycles + 1, f"the exact model is infeasible at {cycles} cycles a frame")
        if assignment is not None:
            self._accept(assignment)
        return answer

    def _anneal(self, cycles: int) -> bool:
        """Annealing runs at T: from the best placement (warm) and from mirror starts; the last run moves every item
        by itself, in case merging them excluded the placement."""
        options = self.table.at(cycles)
        for run in range(self.options.anneal_runs):
            merge = run + 1 < max(2, self.options.anneal_runs)
            encoded = encode.encode(self.instance, options, encode.contract(self.instance, options, merge=merge))
            if encoded is None:
                continue
            seed = (self.options.seed * 1_000_003 + cycles * 31 + run) % 2**31
            warm = self.best is not None and run != 1
            if warm and self.best is not None:
                start = encode.start_from(*encoded, self.best)
            else:
                start = encode.mirror_start(encoded[0], np.random.default_rng(seed) if run else None)
            hottest = anneal.HOTTEST * (0.4 if warm else 1.0)
            found, _ = anneal.anneal(*encoded, start, moves=self.options.anneal_moves, seed=seed, hottest=hottest)
            if found is not None:
                self._accept(found)
                return True
        return False

    def _accept(self, assignment: Assignment) -> None:
        cycles = least_cycles(self.instance, assignment)
        assert cycles is not None, "a placement that met its rates has a finite least T"
        if cycles < self.best_cycles:
            self.best, self.best_cycles = assignment, cycles

    def _report(self, stage: str) -> None:
        progress = Progress(stage, None if self.best is None else self.best_cycles, self.bound.cycles_per_frame)
        log.info("%s best %s bound %s", stage, progress.cycles_per_frame, progress.bound_cycles_per_frame)
        self.on_progress(progress)


def judged(instance: Instance, plan: Plan) -> Plan:
    """The plan itself, if the independent validator has nothing against it.

    Raises:
        DagtrainError: it has; every violation is listed. This is a bug of the search, never of the input.
    """
    found = violations(instance, plan)
    if found:
        raise DagtrainError(
            f"plan of {instance.name!r} is rejected by the validator, which is a bug of the search: "
            + "; ".join(str(violation) for violation in found[:10])
        )
    return plan
