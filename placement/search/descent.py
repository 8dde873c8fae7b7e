"""Where the search stands, and the loops that improve it: bounds from below, placements from above.

The order of work is fixed and every budget is a count, so one seed gives one plan on every machine. A heuristic failure
only ends the search at that T; only a proof moves the bound.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from math import inf

from hdl.errors import OutOfTimeError
from placement.annealing.heuristic import Annealer
from placement.bounds.aggregate import Aggregate
from placement.bounds.bound import aggregate_bound, bisect_unrefuted, least_unrefuted, single_bound
from placement.bounds.cases import refuted_by_cases
from placement.bounds.cuts import Cuts
from placement.bounds.neighbourhood import Neighbourhoods
from placement.bounds.packing import refuted_packing
from placement.bounds.window import Windows
from placement.exact.model import (
    MOST_WIRE_TERMS,
    Answer,
    Effort,
    add_hint,
    build_model,
    decide,
    order_equal_devices,
    wire_terms,
)
from placement.problem.deadline import Deadline, Ended
from placement.problem.flat import flatten
from placement.problem.instance import Instance
from placement.problem.options import OptionTable
from placement.problem.plan import Assignment, Bound, least_cycles
from placement.problem.ports import with_all_peers
from placement.problem.settings import OnProgress, Progress, SearchOptions
from placement.search.twins import Twins

log = logging.getLogger(__name__)

# (item, device, configuration) choices up to which the exact model is asked when annealing finds no first placement
LAST_RESORT_CHOICES = 10_000
# the first placement is looked for at these multiples of the bound, in per cent
FIRST_STEPS = (100, 103, 110, 125, 150, 220, 400, 1000)
# what is near is mended at its own T, or so much slower, in thousandths
MENDED_SLOWER = (0, 5, 10, 15, 20, 30, 40)
# deterministic seconds for the exact model beside it
FIRST_SECONDS = 1.0
# the exact model comes before annealing up to this many (item, device, configuration) choices
TINY = 200
# … and up to this many where all items stand on one device: then it has only their configurations to choose
ALONE = 100_000
# chains grow up to this many times their first length
LONGEST = 16


class Descent:
    """The search for one instance."""

    def __init__(
        self,
        instance: Instance,
        options: SearchOptions,
        on_progress: OnProgress,
        ceiling: int,
        deadline: Deadline | None = None,
    ) -> None:
        self.instance, self.options, self.on_progress, self.ceiling = instance, options, on_progress, ceiling
        self.deadline = deadline or Deadline(options.time_limit_seconds)
        self.flat = flatten(instance)
        self.table = OptionTable(instance)
        self.aggregate = Aggregate(instance, self.flat)
        # what is looked at first: what has a placement there has one in the instance
        self.simpler = with_all_peers(instance)
        self.annealer = Annealer(self.simpler, self.flat, seed=options.seed, workers=options.workers)
        self.twins = Twins.of(self.simpler, options)
        self.neighbourhoods = Neighbourhoods(instance, self.flat, self.effort, options.window_seconds / 2)
        self.levels: list[int] = sorted({int(cycles) for cycles in self.flat.cycles})
        self.bound = Bound(1, "nothing runs in less than one cycle")
        self.best: Assignment | None = None
        # where chains start while there is no best one
        self.near: Assignment | None = None
        # the T at which what is broken of that is mended first; None: it is not
        self.mended_cycles: int | None = None
        self.best_cycles = ceiling + 1
        # moves of a chain now, and of the longest ones
        self.slice = options.anneal_moves * (1 + len(instance.items) // 1000)
        self.longest = options.anneal_moves * (1 + len(instance.items) // 250) * LONGEST

    # ---- what holds so far

    def accept(self, assignment: Assignment) -> int:
        """Keep an assignment if it is the fastest so far; stop if the goal is reached.  Its T, which may be more than
        what was asked for: placements are searched with the memory channels of a device melted into one."""
        cycles = least_cycles(self.instance, assignment)
        assert cycles is not None, "a placement that met its rates has a finite least T"
        if cycles < self.best_cycles:
            self.best, self.best_cycles = assignment, cycles
        return cycles

    def raise_bound(self, bound: Bound) -> None:
        """Keep a bound if it is the highest so far."""
        if bound.cycles_per_frame > self.bound.cycles_per_frame:
            self.bound = bound

    def report(self, stage: str) -> None:
        """Say where the search stands; stop if the goal is reached or time is over."""
        cycles = None if self.best is None else self.best_cycles
        progress = Progress(stage, cycles, self.bound.cycles_per_frame, self.bound.basis, self.instance.clock_hz)
        log.info("%s: best %s bound %s", stage, cycles, self.bound.cycles_per_frame)
        self.on_progress(progress)
        self.check_goal()

    def check_goal(self) -> None:
        """Raises `Ended` if the plan is good enough or the search is to end."""
        above = self.best_cycles - self.bound.cycles_per_frame
        if self.best is not None and above <= Fraction(self.options.gap) * self.best_cycles:
            raise Ended("the goal is reached")
        self.deadline.check()

    def effort(self, seconds: float) -> Effort:
        """A deterministic budget; time limit and Ctrl-C can only cut it short."""
        return Effort(
            deterministic_seconds=seconds,
            seed=self.options.seed,
            workers=self.options.workers,
            deadline=self.deadline,
        )

    # ---- bounds

    def find_bound(self) -> None:
        """The bounds that take milliseconds."""
        self.raise_bound(single_bound(self.instance, self.ceiling))
        if self.bound.cycles_per_frame <= self.ceiling:
            self.raise_bound(aggregate_bound(self.aggregate, self.bound, self.ceiling))
        # where all items are placed, every device is a pool of its own already
        if self.bound.cycles_per_frame <= self.ceiling and not self.placed:
            self._refute_cases()

    def _refute_cases(self) -> None:
        floor = self.bound.cycles_per_frame
        cycles = bisect_unrefuted(lambda t: refuted_by_cases(self.instance, self.flat, t), floor, self.ceiling)
        basis = "the devices of the largest items apart, wherever they stand; links, hops and the rest melted together"
        self.raise_bound(Bound(cycles, f"{basis}: infeasible at {cycles - 1} cycles a frame"))

    def tighten_bound(self) -> None:
        """The bounds by CP-SAT, for what lies between the bound and the best placement, if they are wanted."""
        if not self.options.proves:
            return
        self._refute_up(
            "packing",
            lambda cycles: refuted_packing(
                self.instance, self.flat, cycles, self.effort(self.options.refutation_seconds)
            ),
            lambda: (
                "packing the least costs of every item into the devices; DRAM, most links, hops, tiles and pins dropped"
            ),
        )
        if self.options.window_seconds > 0:
            self._refute_cuts()
            self._refute_neighbourhoods()
            windows = Windows(self.instance, self.flat, self.options.seed, self.options.window_seconds, self.effort)
            self._refute_up("network windows", windows.refuted, lambda: windows.basis)

    def _refute_cuts(self) -> None:
        if self.instance.cables:
            cuts = Cuts(self.instance, self.flat, self.effort, self.options.window_seconds / 2)
            self._refute_up("cuts of the cluster", cuts.refuted, lambda: cuts.basis)

    def _refute_neighbourhoods(self) -> None:
        if self.options.proves and self.options.window_seconds > 0:
            self._refute_up("neighbourhoods", self.neighbourhoods.refuted, lambda: self.neighbourhoods.basis)

    def _refute_up(self, stage: str, refutes: Callable[[int], bool], basis: Callable[[], str]) -> None:
        self.check_goal()
        floor = self.bound.cycles_per_frame
        cycles = least_unrefuted(refutes, floor, self.best_cycles - 1, self.levels)
        if cycles > floor:
            self.raise_bound(Bound(cycles, f"{basis()}: infeasible at {cycles - 1} cycles a frame"))
        self.report(stage)

    # ---- placements

    def first_placement(self) -> Answer:
        """What there is near, mended; else jump to the bound's T and back off in growing steps up to the slowest; there
        with longer chains until the moves are spent, if no slower one is wanted."""
        if self._mend():
            return Answer.FEASIBLE
        floor = self.bound.cycles_per_frame
        steps = [-(-floor * percent // 100) for percent in FIRST_STEPS]
        answer = Answer.UNKNOWN
        for number, cycles in enumerate([*(step for step in steps if step < self.ceiling), self.ceiling]):
            if cycles < self.bound.cycles_per_frame:
                continue
            answer = self.attempt(cycles, FIRST_SECONDS)
            if answer is Answer.FEASIBLE:
                return answer
            if number == 0:
                self._refute_neighbourhoods()
        # somewhat larger ones too: it may still find one, or prove that there is none
        resort = self.choices(self.ceiling) <= LAST_RESORT_CHOICES and self._ways_are_few
        if answer is Answer.UNKNOWN and resort:
            answer = self.exact(self.ceiling)
        while answer is Answer.UNKNOWN and self.options.least_fps and self.annealer.moves < self.options.anneal_budget:
            self.slice = min(2 * self.slice, self.longest)
            answer = self.attempt(self.ceiling)
        return answer if self.best is None else Answer.FEASIBLE

    def _mend(self) -> bool:
        """Whether what is broken of the placement near could be mended at its T, or at a somewhat slower one."""
        if self.near is None or self.mended_cycles is None:
            return False
        for slower in MENDED_SLOWER:
            cycles = -(-self.mended_cycles * (1000 + slower) // 1000)
            if cycles > self.ceiling:
                break
            with self.deadline.ending(self.annealer.end):
                found = self.annealer.mended(cycles, self.near)
            mended = found is not None and self.accept(found) <= cycles
            self.report(f"mended at T = {cycles}: {'feasible' if mended else 'unknown'}")
            if mended:
                return True
        return False

    def lengthen(self) -> None:
        """Longer chains, for the descent from the first placement: long enough to cool slowly, by the size."""
        units = min(8, 1 + len(self.instance.items) // 250)
        self.slice = max(self.slice, units * self.options.anneal_moves * self.options.descent_length)

    def descend(self, budget: int) -> None:
        """Bisect between what failed and the best placement, about as finely as it is from the bound; then start over
        with chains twice as long, at the bound itself, until the moves are spent."""
        failed = self.bound.cycles_per_frame - 1
        end = self.annealer.moves + budget
        longest = False
        while self.best_cycles > self.bound.cycles_per_frame:
            failed = max(failed, self.bound.cycles_per_frame - 1)
            probe = self._probe(failed)
            if probe is None:
                if longest or self.annealer.moves >= end:
                    return
                failed = self.bound.cycles_per_frame - 1
                longest = self.slice >= self.longest
                self.slice = min(self.slice * 2, self.longest)
                probe = self.bound.cycles_per_frame
            if self.attempt(probe) is not Answer.FEASIBLE:
                failed = probe
            if self.annealer.moves >= end and not self.exact_is_small(self.best_cycles - 1):
                return

    def _probe(self, failed: int) -> int | None:
        """The next T to try: the middle, then up to where the next configurations begin, so that rates are easiest."""
        if self.best_cycles - failed <= 1:
            return None
        exact = self.exact_is_small(self.best_cycles - 1)
        far = self.best_cycles - self.bound.cycles_per_frame
        if not exact and self.best_cycles - failed <= max(self.options.tolerance * self.best_cycles, far / 4):
            return None
        middle = (failed + self.best_cycles) // 2
        between = [level - 1 for level in self.levels if middle < level < self.best_cycles]
        return between[0] if between else (self.best_cycles - 1 if exact else middle)

    def attempt(self, cycles: int, exact_seconds: float = inf) -> Answer:
        """Look for a placement at T by annealing, and where it is small by the exact model, tiny ones and those on one
        device at once.

        Args:
            exact_seconds: deterministic seconds for the exact model after chains that found nothing.
        """
        answer = Answer.UNKNOWN
        anneals = self.options.anneal_budget > 0
        first = self.exact_comes_first(cycles)
        if not anneals or first:
            answer = self.exact(cycles) if self.exact_is_small(cycles) else answer
            anneals = anneals and answer is Answer.UNKNOWN
        if anneals:
            answer = Answer.FEASIBLE if self.anneal(cycles) else Answer.UNKNOWN
            if answer is Answer.UNKNOWN and not first and self.exact_is_small(cycles):
                answer = self.exact(cycles, exact_seconds)
        self.report(f"T = {cycles}: {answer.value}")
        return answer

    def exact_is_small(self, cycles: int) -> bool:
        """Whether the exact model at T is within `exact_choices`, or easy; not where ways over cables make it large."""
        return self.choices(cycles) <= self._exact_choices and self._ways_are_few

    def exact_comes_first(self, cycles: int) -> bool:
        """Whether the exact model is asked before annealing."""
        return self.choices(cycles) <= (self._exact_choices if self.alone else TINY)

    @property
    def alone(self) -> bool:
        """Whether there is one device for all items, others only passing words on."""
        cabled = bool(self.instance.cables)
        return sum(not cabled or any(device.capacities) for device in self.instance.devices) == 1

    @property
    def placed(self) -> bool:
        """Whether every item can be built on one device alone: only configurations are to be chosen."""
        parts = Counter(device.part for device in self.instance.devices)
        return all(
            sum(parts[part] for part, menu in item.configurations.items() if menu) == 1 for item in self.instance.items
        )

    @cached_property
    def _ways_are_few(self) -> bool:
        """Whether the exact model is small as far as ways over cables go."""
        return self.placed or wire_terms(self.instance) <= MOST_WIRE_TERMS

    @property
    def _exact_choices(self) -> int:
        """Choices up to which the exact model is asked; 0: never."""
        limit = self.options.exact_choices
        return max(limit, ALONE) if limit and self.alone else limit

    def choices(self, cycles: int) -> int:
        """(item, device, configuration) choices of the exact model at T; a lower bound where it is surely too large."""
        least = len(self.instance.items) * len(self.instance.devices)
        if least > self._exact_choices:
            return least
        options = self.table.at(cycles)
        return sum(len(by_part.get(device.part, ())) for by_part in options.by_part for device in self.instance.devices)

    def exact(self, cycles: int, seconds: float = inf) -> Answer:
        """Ask the exact model; a refutation raises the bound."""
        self.check_goal()
        options = self.table.at(cycles)
        if options.without_choice() or not all(options.tiles.values()):
            answer, assignment = Answer.INFEASIBLE, None
        else:
            answer, assignment = self._decide(self.simpler, cycles, seconds)
            if answer is Answer.INFEASIBLE and self.simpler is not self.instance:
                answer, assignment = self._decide(self.instance, cycles, seconds)
        if answer is Answer.INFEASIBLE:
            self.raise_bound(Bound(cycles + 1, f"the exact model is infeasible at {cycles} cycles a frame"))
        if assignment is not None:
            self.accept(assignment)
        return answer

    def _decide(self, instance: Instance, cycles: int, seconds: float) -> tuple[Answer, Assignment | None]:
        """What the exact model of an instance says."""
        model = build_model(instance, self.table.at(cycles))
        if self.best is None:
            order_equal_devices(model)
        else:
            add_hint(model, self.best)
        return decide(model, self.effort(min(seconds, self.options.decision_seconds)))

    def anneal(self, cycles: int) -> bool:
        """Anneal at T, from where copies stand as the first ones do, if there are any, and then from the best one."""
        twins = self.twins and self.twins.placed(cycles, self.slice, self.deadline)
        for start in (twins, self.best or self.near) if twins else (self.best or self.near,):
            with self.deadline.ending(self.annealer.end):
                found = self.annealer.attempt(
                    cycles, self.slice, start, given=self.best is None, every=start is twins and twins is not None
                )
            if found is not None and self.accept(found) <= cycles:
                return True
            self.deadline.check()
        return False


def out_of_time(instance: Instance, cycles: int) -> OutOfTimeError:
    """The error for a search that ended without a placement and without a proof."""
    return OutOfTimeError(
        f"no placement of {instance.name!r} found, and none excluded, at {cycles} cycles a frame",
        "allow a longer search, more devices, or higher utilisation caps",
    )
