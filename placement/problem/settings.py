"""Goals and budgets of the search, and how it reports its progress."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hdl.errors import DagtrainError
from placement.problem.plan import Plan


class Solver(enum.Enum):
    """How a plan is looked for."""

    # bounds, annealing, CP-SAT (`placement.search.search`)
    FAST = "fast"
    # equations (1)–(6) as written, bisection on throughput (`placement.exact.literal`)
    LITERAL = "literal"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Budgets and goals of the search. All budgets but `time_limit_seconds` are counts, so one seed gives one plan on
    every machine; the time limit only decides when to stop and take the best plan so far."""

    seed: int = 0
    solver: Solver = Solver.FAST
    # slowest acceptable throughput, frames a second; None: any
    least_fps: float | None = None
    # stop when (bound − throughput) / bound is at most this; 0: only at a proven optimum
    gap: float = 0.0
    # wall clock, seconds; None: until the budgets below are spent
    time_limit_seconds: float | None = None
    # a plan of the same instance to continue from; the result is never slower
    start: Plan | None = None
    # item → device, for every item: chains start there too while there is no plan, though it may not fit
    near: Mapping[str, str] | None = None
    # a plan of an instance like this, which may not fit here: at its own pace, what is broken of it moves first, and
    # as little else as may be
    mended: Plan | None = None
    # groups of item or layer names; the items of each group stand on one device
    same_device: tuple[tuple[str, ...], ...] = ()
    # the same of items alone, which a layer may have its name of
    alike: tuple[tuple[str, ...], ...] = ()
    # items of which each is a copy of the others, by the copy that they belong to, "" where that has none: chains start
    # too where each copy of everything stands as the first one does, on devices of its own
    copies: tuple[tuple[str, ...], ...] = ()
    # names of devices to leave empty
    exclude: tuple[str, ...] = ()
    # where there is no placement, find the smallest set of constraints at fault, which may take longer than the proof
    explain: bool = True
    # whether bounds are looked for that take seconds: of use to whoever is told the bound
    proves: bool = True
    # CP-SAT's deterministic seconds for one decision about the exact model
    decision_seconds: float = 20.0
    # … for one refutation of the bound
    refutation_seconds: float = 3.0
    # … for all windows of the network bound together
    window_seconds: float = 20.0
    # … for finding fewer crossings at the T reached
    tidy_seconds: float = 0.5
    # configurations of all devices are chosen together up to this many choices, else device by device
    joint_choices: int = 600
    # the exact model is asked only up to this many (item, device, configuration) choices
    exact_choices: int = 2_500
    # moves of the first annealing chains at one T for every 1000 items; later ones are up to 16 times as long
    anneal_moves: int = 400_000
    # how many times as long chains are once there is a placement
    descent_length: int = 1
    # moves of all chains of a worker together; 0: no annealing
    anneal_budget: int = 96_000_000
    # a longer chain is tried when no T between a failure and the best plan differs by more than this
    tolerance: float = 0.001
    # solver threads and annealing chains; like the seed, another number may give another plan
    workers: int = 2

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.gap < 1:
            problems.append(f"gap is {self.gap}, must be at least 0 and below 1: 0.05 is 5 %")
        if self.time_limit_seconds is not None and not self.time_limit_seconds > 0:
            problems.append(f"time limit is {self.time_limit_seconds} s, must be positive")
        if self.workers < 1:
            problems.append(f"workers is {self.workers}, must be at least 1")
        if problems:
            raise DagtrainError.listing("search options", problems)


@dataclass(frozen=True)
class Progress:
    """How far the search is, for a progress bar."""

    stage: str
    # best T so far, None before the first placement
    cycles_per_frame: int | None
    # proven lower bound on T
    bound_cycles_per_frame: int
    # what the bound rests on: what binds, as far as is known
    bound_basis: str = ""
    clock_hz: int = 0

    @property
    def gap(self) -> float | None:
        """(bound − throughput) / bound of the best placement so far."""
        if self.cycles_per_frame is None:
            return None
        return 1 - self.bound_cycles_per_frame / self.cycles_per_frame

    @property
    def throughput_fps(self) -> float | None:
        """Frames a second of the best placement so far."""
        return None if self.cycles_per_frame is None else self.clock_hz / self.cycles_per_frame

    @property
    def bound_fps(self) -> float:
        """Frames a second that no placement exceeds."""
        return self.clock_hz / self.bound_cycles_per_frame


OnProgress = Callable[[Progress], None]
