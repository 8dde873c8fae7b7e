"""From a placement found to a plan that holds: its links and homes of memories priced in.

What a node costs depends on what only a placement tells: which edges cross the network, and, through the depths of
FIFOs, which layers keep their memory in DRAM.  So a placement is priced with these until they stay what they are, and
the validator judges that; where it has no room for them, others are looked for in which every node is reckoned with the
block memories that it was found to take, and that leave some of every device free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.memory_home import move_memories
from dagtrain.planning.carry import places_of, reserving, taking_more
from dagtrain.planning.choices import Pace, memory_homes, plan_choices, plan_pace
from dagtrain.planning.clocks import folds_at, paces, periods_of
from dagtrain.planning.levels import LEAST_RATIO, slower
from dagtrain.planning.priced import ON_CHIP, PricedLevel, check_memories
from dagtrain.planning.queues import differ_in_room_alone, edges_that_wait, sources_of, with_room
from dagtrain.planning.rate import wired, with_rate
from dagtrain.planning.results import Found, Planned, faster, with_binding, with_bound
from dagtrain.planning.searcher import Searcher
from hdl.errors import DagtrainError, FoldingError, InfeasibleError, OutOfTimeError
from hdl.layers.storage import Home
from placement.problem.deadline import Ended
from placement.problem.instance import Configuration, Link
from placement.problem.plan import PlacedItem, Plan
from placement.search.search import plan_from_assignment

# shares of every device that are left free, where the placement found has no room for what links and homes add, beside
# what they were found to add; how much slower a plan may become by them before the next one is tried
RESERVES = (Fraction(0), Fraction(1, 100), Fraction(3, 100), Fraction(6, 100), Fraction(10, 100))
KEPT_RATIO = 1.02
# CP-SAT's deterministic seconds for a decision there: what annealing doesn't find soon is not worth waiting for
RESERVE_DECISION_SECONDS = 2.0
RESERVE_GAP = 0.01
# levels slower than a placement at which others are looked for that leave a reserve
NEAR_LEVELS = 2
# how often the home of memories may change what FIFOs cost, and that the homes, before they are kept
HOME_ROUNDS = 3


@dataclass(frozen=True)
class Realiser:
    """Makes the placements that a searcher finds hold."""

    searcher: Searcher

    def with_links(self, found: Found) -> Planned:
        """The placement found with its links and homes priced in, and others found with these homes and some reserve,
        where that costs throughput; the fastest.  If none holds: the last, with all folded for a slower level.

        Raises `InfeasibleError` where it holds at no level, or `Ended`."""
        plan, deadline = found.plan, self.searcher.time.deadline
        best = self.holding(plan, plan)
        last, missed = plan, Counter[str]()
        try:
            for share in RESERVES:
                # larger reserves only make it slower once a placement keeps the pace it was found at; but what ports
                # were reckoned with too little of is known now
                kept = max(plan.cycles_per_frame, last.cycles_per_frame) * KEPT_RATIO
                once_more = best is not None and not share and _is_slowed_by_ports(best.plan, plan)
                if best is not None and best.plan.cycles_per_frame <= kept and not once_more:
                    break
                missed |= self.missed(last, found.levels)
                found_with_reserve = self.with_reserve(last, found.levels, share, missed)
                if found_with_reserve is None:
                    break
                last = found_with_reserve
                best = faster(best, self.holding(last, plan))
        except Ended:
            # no time to look for others; what is left is for pricing
            if best is None and deadline.over:
                raise
        return best or self.at_slower_levels(last, found)

    def holding(self, plan: Plan, found: Plan) -> Planned | None:
        """The placement of a plan with its links and homes, engines folded as it says, if it holds, with the bounds of
        ``found``."""
        homes, folds = memory_homes(plan_choices(plan)), plan_pace(plan).folds
        with self.searcher.time.holding():
            try:
                return with_binding(self.fixed(places_of(plan), folds, homes, found, explain=False), plan)
            except Ended:
                raise
            except (InfeasibleError, OutOfTimeError, FoldingError) as error:
                self.searcher.best.miss(plan, f"with its network ports and memories it has no room: {_first(error)}")
                return None

    def at_slower_levels(self, plan: Plan, found: Found) -> Planned:
        """The placement of a plan with all nodes folded for the fastest level at which it holds, if that is faster than
        the best plan there is.

        Raises `InfeasibleError` where there is none."""
        places, homes = places_of(plan), memory_homes(plan_choices(plan))
        graph = self.searcher.problem.graph
        last, known = None, self.searcher.best.cycles_per_frame
        for cycles in slower(plan.cycles_per_frame, found.levels):
            if known is not None and cycles >= known:
                raise InfeasibleError(f"{graph.name}: the placement found holds at no pace faster than the best plan's")
            folds = folds_at(self.searcher.problem.cluster, cycles, places, graph.by_name)
            try:
                return with_binding(self.fixed(places, folds, homes, found.plan, explain=False), plan)
            except InfeasibleError:
                last = folds
            except FoldingError:
                continue
        if last is not None:
            return with_binding(self.fixed(places, last, homes, found.plan), plan)
        raise InfeasibleError(f"{graph.name}: the placement found has no room for its network ports")

    def missed(self, plan: Plan, levels: Sequence[int]) -> Counter[str]:
        """Node -> block memories that it takes where a plan has it, beyond what searches at these levels reckon with:
        FIFOs are the deeper the longer the way round is, on whatever devices that may lie."""
        homes, places, folds = memory_homes(plan_choices(plan)), places_of(plan), plan_pace(plan).folds
        problem = self.searcher.problem
        reckoned = self._priced(homes, levels)
        try:
            level = self._placed(places, folds, homes, free=True)
        except FoldingError:
            return Counter()
        parts = {device.name: device.board.part.name for device in problem.cluster.devices}
        found: Counter[str] = Counter()
        for item in plan.items:
            part = parts[item.device]
            now, *then = (_built(each, item, part) for each in (level, *reckoned))
            known = [configuration.m20k for configuration in then if configuration is not None]
            if now is not None and known:
                found[item.item] = max(0, now.m20k - known[0])
        return +found

    def with_reserve(
        self, plan: Plan, levels: Sequence[int], share: Fraction, missed: Mapping[str, int]
    ) -> Plan | None:
        """A placement at these levels that leaves this share of every device, priced with the homes of ``plan``, since
        engines whose weights come from DRAM make FIFOs deeper elsewhere, with the block memories ``missed``, and with
        as many credits of what crosses the network as it was found to have."""
        searcher = self.searcher
        prices, quick = searcher.prices, searcher.quick
        far = sorted(level for level in levels if level > plan.cycles_per_frame)[NEAR_LEVELS:]
        homes, folds = memory_homes(plan_choices(plan)), plan_pace(plan).folds
        priced = self._priced(homes, [level for level in levels if level not in far])
        try:
            # its own circuits: with memories at these homes some layer may keep no level, which then has no circuits
            own = prices.level(plan.cycles_per_frame, homes, None, folds=folds, deadline=searcher.time.looking)
            priced.append(own.told_apart("as found"))
        except FoldingError:
            if not priced:
                return None
        instance = prices.of_levels(priced, self._links(plan))
        options = replace(
            quick,
            tidy_seconds=searcher.problem.search.tidy_seconds,
            decision_seconds=RESERVE_DECISION_SECONDS,
            gap=max(quick.gap, RESERVE_GAP),
            mended=plan,
        )
        try:
            return searcher.search(reserving(taking_more(instance, missed), share), options)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError):
            return None

    def _links(self, plan: Plan) -> list[Link]:
        """Links as searches price them, those that cross the network in a plan with the credits that they have there:
        before there is a placement, of some nothing is known (`LinkCosts.credit_words`)."""
        prices, homes, folds = self.searcher.prices, memory_homes(plan_choices(plan)), plan_pace(plan).folds
        priced = list(prices.ported or prices.links())
        try:
            level = self._placed(places_of(plan), folds, homes, free=True)
        except FoldingError:
            return priced
        placed = prices.links(level.credit_words, self._folded(homes, folds))
        return [
            replace(link, credit_bits_per_frame=max(link.credit_bits_per_frame, there.credit_bits_per_frame))
            for link, there in zip(priced, placed, strict=True)
        ]

    def _folded(self, homes: Mapping[str, Home], folds: Mapping[str, int]) -> Graph:
        """The graph with memories at these homes, its nodes folded for so many cycles a frame."""
        problem = self.searcher.problem
        return fold_graph.run(move_memories.run(problem.graph, homes), folds, self.searcher.prices.parts)

    def _priced(self, homes: Mapping[str, Home], levels: Sequence[int]) -> list[PricedLevel]:
        """Those of these levels for which all nodes can be folded, with memories at these homes."""
        prices, found = self.searcher.prices, []
        for cycles in (own for level in levels for own in paces(self.searcher.problem.cluster, level)):
            with suppress(FoldingError):
                found.append(prices.level(cycles, homes, None, deadline=self.searcher.time.looking))
        return found

    def _placed(
        self, assignment: Mapping[str, str], folds: Mapping[str, int], homes: Mapping[str, Home], *, free: bool
    ) -> PricedLevel:
        """What nodes cost where they are, folded so, with memories at these homes, or at others too where ``free``."""
        problem, prices = self.searcher.problem, self.searcher.prices
        moved = move_memories.run(problem.graph, homes)
        pace = Pace.of(moved, folds, prices.parts, periods_of(problem.cluster, assignment))
        return prices.level(pace.interval, homes, assignment, free, folds, self.searcher.time.deadline)

    def fixed(
        self,
        assignment: Mapping[str, str],
        folds: Mapping[str, int],
        homes: Mapping[str, Home] = ON_CHIP,
        found: Plan | None = None,
        explain: bool = True,
    ) -> Planned:
        """The plan of a given placement with links priced in, and room for words at senders where ports are full; the
        bound of ``found`` is kept.

        ``folds``: node -> cycles a frame of its device that it is folded for.
        ``homes``: where memories of nodes lie at first that aren't on chip; the plan may say otherwise.
        ``explain``: whether an `InfeasibleError` is to name the constraints at fault."""
        problem = self.searcher.problem
        held = self._with_room(self._without_room(assignment, folds, homes, explain=explain))
        self.searcher.time.deadline.check()
        bounded = held.plan if found is None else with_bound(held.plan, found)
        return replace(held, plan=with_rate(bounded, problem.graph, problem.cluster))

    def _with_room(self, held: Planned) -> Planned:
        """The placement with room for words at senders where it needs that, as far as what it leaves free allows."""
        plan, problem = held.plan, self.searcher.problem
        laid = wired(plan, problem.graph, problem.cluster)
        waiting = edges_that_wait(laid, plan.cycles_per_frame)
        rooms = with_room(waiting, laid, plan, self.searcher.prices.estimator)
        places, folds, homes = places_of(plan), plan_pace(plan).folds, memory_homes(plan_choices(plan))
        while rooms:
            searcher = self.searcher.queueing(sources_of(rooms, problem.graph))
            try:
                made = Realiser(searcher)._without_room(places, folds, homes, explain=False)
            except Ended:
                break
            except (InfeasibleError, OutOfTimeError, FoldingError):
                made = None
            if made is not None and differ_in_room_alone(made.plan, plan):
                return made
            # packed together, circuits may take a little more than one by one
            rooms = dict([*rooms.items()][: len(rooms) // 2])
        return held

    def _without_room(
        self, assignment: Mapping[str, str], folds: Mapping[str, int], homes: Mapping[str, Home], *, explain: bool
    ) -> Planned:
        """As `fixed`, of the graph as it is; without the rate of training."""
        problem, prices, deadline = self.searcher.problem, self.searcher.prices, self.searcher.time.deadline
        options = replace(problem.search, time_limit_seconds=None, explain=explain)
        for free in [True] * HOME_ROUNDS + [False]:
            level = self._placed(assignment, folds, homes, free=free)
            # network ports are in the prices of their nodes
            folded = self._folded(homes, folds)
            instance = prices.of_levels([level], prices.links(level.credit_words, folded), assignment)
            plan = plan_from_assignment(instance, assignment, options, deadline)
            wanted = memory_homes(plan_choices(plan))
            if wanted == homes:
                break
            homes = wanted
        check_memories(plan, level, problem.cluster)
        return Planned(plan, instance)


def _first(error: DagtrainError) -> str:
    """The first of the problems that an error lists, without cures, and how many more there are."""
    more = len(error.problems) - 1
    return error.problems[0].what + (f" (and {more:,} more)" if more else "")


def _is_slowed_by_ports(plan: Plan, found: Plan) -> bool:
    """Whether a plan is slower than the placement found for what its network ports carry."""
    slower = plan.cycles_per_frame >= found.cycles_per_frame * LEAST_RATIO
    return slower and any(own.kind == "links" for own in plan.binding)


def _built(level: PricedLevel, item: PlacedItem, part: str) -> Configuration | None:
    """What is built of an item, as it costs at a level."""
    menu = level.offers[item.item].get(part, ())
    return next((configuration for configuration in menu if configuration.payload == item.payload), None)
