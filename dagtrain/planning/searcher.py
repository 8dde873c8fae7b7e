"""Searches for placements of one problem over levels that are priced for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.passes.queue_words import Room, queue_words
from dagtrain.passes.replicate import copies_of_nodes
from dagtrain.planning.any_bound import AnyBound
from dagtrain.planning.best import Best
from dagtrain.planning.carry import carried_over
from dagtrain.planning.choices import plan_choices, relayed
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.prices import Prices
from dagtrain.planning.problem import Problem
from dagtrain.planning.results import Found, Searched, with_any_bound, with_bound
from dagtrain.planning.timetable import Timetable, spending
from dagtrain.progress import Progress
from dagtrain.rates import rate_text
from hdl.costs.estimate import Estimator
from hdl.layers.storage import Home
from placement.problem.instance import Instance
from placement.problem.plan import Bound, Plan
from placement.search.search import Progress as SearchProgress
from placement.search.search import SearchOptions, find_plan

# one part in so many of the search's moves is what searches get: those that only tell whether to look further, those
# before the last one, and the last one, which goes on from them over levels that they know
GLANCE, QUICK, LAST = 12, 6, 3
# CP-SAT's deterministic seconds for a decision of the first of these
GLANCE_DECISION_SECONDS = 2.0
# nodes of a graph whose foldings are all known at once, in a second or two
QUICK_NODES = 100


@dataclass(frozen=True)
class Searcher:
    """One problem with its prices and what its searches share; what changes is kept by those parts."""

    problem: Problem
    prices: Prices
    any_bound: AnyBound
    best: Best
    time: Timetable
    progress: Progress
    # told what a user should know
    warn: Callable[[str], None]

    @classmethod
    def of(
        cls,
        problem: Problem,
        estimator: Estimator,
        progress: Progress,
        time: Timetable,
        warn: Callable[[str], None],
    ) -> Searcher:
        """Of a problem of which nothing is known."""
        prices = Prices(
            problem.graph, problem.cluster, estimator, problem.pins, progress, time.spent,
            multiply=problem.multiply, deal=problem.deal, lend_two=problem.lend_two,
        )  # fmt: skip
        return cls(problem, prices, AnyBound(Foldings(prices), problem.search), Best(), time, progress, warn)

    def with_relays(self, edges: Collection[str]) -> Searcher:
        """Of the graph with relays on these edges, priced anew, for a faster plan than there is."""
        return self._anew(self.problem.with_relays(edges))

    def without_relays(self, edges: Collection[str]) -> Searcher:
        """Of the graph without the relays on these edges, likewise."""
        return self._anew(self.problem.without_relays(edges))

    def queueing(self, sources: Mapping[str, Collection[Room]]) -> Searcher:
        """Of the graph in which so many words of these sources, by node, may wait at their senders, likewise."""
        return self._anew(replace(self.problem, graph=queue_words.run(self.problem.graph, sources)))

    def _anew(self, problem: Problem) -> Searcher:
        """One that prices a problem anew, for the same best plan."""
        made = Searcher.of(problem, self.prices.estimator, self.progress, replace(self.time), self.warn)
        return replace(made, best=self.best)

    def without(self, devices: Collection[str], best: Best, slowest: Fraction) -> Searcher:
        """One that leaves these devices empty too, with the same prices and bound, at a pace of at most ``slowest``
        cycles a frame; its plans are for ``best``."""
        problem = self.problem.without(devices, slowest)
        return replace(self, problem=problem, best=best, time=replace(self.time, holding_seconds=0.0))

    def with_layers_whole(self, layers: Iterable[str], slowest: Fraction) -> Searcher:
        """One that puts each of these layers on one device, with the same prices, bound and best plan, at a pace of at
        most ``slowest`` cycles a frame."""
        problem = self.problem.with_layers_whole(layers, slowest)
        return replace(self, problem=problem, time=replace(self.time, holding_seconds=0.0))

    def with_copies_together(self, alike: Iterable[tuple[str, ...]], best: Best, *, patient: bool) -> Searcher:
        """One that puts all copies of a node on one device, of each of these nodes, with the same prices and bound; its
        plans are for ``best``.  ``patient``: as in `Problem.with_copies_together`."""
        return replace(self, problem=self.problem.with_copies_together(alike, patient=patient), best=best)

    def lending_two(self, slowest: Fraction) -> Searcher:
        """One of the same graph, priced anew with two versions on chip of weights that engines share, with the same
        best plan, at a pace of at most ``slowest`` cycles a frame."""
        problem, time = self.problem.lending_two(slowest), replace(self.time, holding_seconds=0.0)
        made = Searcher.of(problem, self.prices.estimator, self.progress, time, self.warn)
        return replace(made, best=self.best)

    def of_plan(self, plan: Plan, problem: Problem) -> Searcher:
        """One that prices a plan's placement anew for another problem of the same network: with the relays that it has,
        and with two versions of all weights that engines share if it has no less."""
        choices = plan_choices(plan)
        homes = {choices[name].memory for name in problem.graph.borrowers}
        own = replace(problem, lend_two=bool(homes) and Home.PARKED not in homes)
        made = Searcher.of(own, self.prices.estimator, self.progress, replace(self.time), self.warn)
        edges = relayed(choices)
        return made.with_relays(edges) if edges else made

    # ---- searches

    @property
    def glance(self) -> SearchOptions:
        """For searches that only tell whether another graph is worth a climb."""
        budget = self.problem.search.anneal_budget // GLANCE
        return replace(self.quick, anneal_budget=budget, decision_seconds=GLANCE_DECISION_SECONDS)

    @property
    def quick(self) -> SearchOptions:
        """For searches that only tell where to look: nobody reads their bounds."""
        return replace(self.untidied, anneal_budget=self.problem.search.anneal_budget // QUICK, proves=False)

    @property
    def last(self) -> SearchOptions:
        """For the search whose bound is told, and whose plan is tidied."""
        return replace(self.problem.search, anneal_budget=self.problem.search.anneal_budget // LAST)

    @property
    def untidied(self) -> SearchOptions:
        """For searches whose plan is not yet the last, or that may find none."""
        return replace(self.problem.search, tidy_seconds=0.0, joint_choices=0, explain=False)

    def find(
        self,
        levels: Sequence[int],
        options: SearchOptions,
        best: Plan | None = None,
        beside: Mapping[str, str] | None = None,
    ) -> Plan:
        """The plan of a search over these levels that goes on from the devices of ``best``, and from those of
        ``beside`` for items that it doesn't have; or from those of the plan that holds, where that is faster."""
        instance = self.prices.instance(levels, self.time.looking)
        if best is not None:
            held = self.best.planned.plan if self.best.planned is not None else best
            begun = [best, held] if held.cycles_per_frame < best.cycles_per_frame else [best]
            carried = [plan for each in begun if (plan := carried_over(each, instance, beside or {})) is not None]
            start = min(carried, key=lambda plan: plan.cycles_per_frame, default=None)
            options = replace(options, start=start)
        return self.search(instance, options)

    def search(self, instance: Instance, options: SearchOptions, bounded: bool = True) -> Plan:
        """Find a plan, with progress, as long as there is time to price what it finds.

        ``bounded``: whether to hold it against the bound of all foldings."""
        self.progress.begin("search")

        def report(state: SearchProgress) -> None:
            self.progress.advance(note=_standing(state))

        first = not self.best.there_is_one
        if not options.alike:
            options = replace(options, copies=copies_of_nodes(self.problem.graph))
        try:
            with spending(self.time.spent, "search", self.time.deadline):
                plan = find_plan(instance, options, report, self.time.looking_first if first else self.time.looking)
        finally:
            self.progress.end()
        if not bounded or (first and len(self.problem.graph.nodes) > QUICK_NODES):
            # the first plan does not wait for it
            return with_any_bound(plan, Bound(1, "nothing runs in less than one cycle"))
        return self.bounded(plan)

    def bounded(self, plan: Plan) -> Plan:
        """A plan held against the bound of all foldings.  Raises `Ended` at the deadline."""
        return self.any_bound.of(plan, self.time.deadline, self.warn)

    def searched(self, found: Found) -> Searched:
        """The best plan of a search that may go on, as one of the instance with all levels that were priced."""
        priced = tuple(level for level in found.levels if self.prices.knows(level))
        instance = self.prices.instance(priced)
        whole = carried_over(found.plan, instance)
        assert whole is not None, "a plan fits where more configurations are offered"
        whole = replace(with_bound(whole, found.plan), binding=found.plan.binding)
        return Searched(whole, instance, priced, finished=False)


def _standing(state: SearchProgress) -> str:
    """Where a search stands: the best plan so far, the bound, the gap between them."""
    bound = f"{rate_text(state.bound_fps)} fps"
    if state.throughput_fps is None or state.gap is None:
        return f"{state.stage}: no plan yet, at most {bound}"
    return f"{state.stage}: {rate_text(state.throughput_fps)} of at most {bound}, gap {state.gap:.2%}"
