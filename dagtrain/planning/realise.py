"""From a placement found to a plan that holds: its links and homes of memories priced in.

What a node costs depends on what only a placement tells: which edges cross the network, and, through the depths of
FIFOs, which layers keep their memory in DRAM.  So a placement is priced with these until they stay what they are, and
the validator judges that; where it has no room for them, others are looked for that leave some of every device free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from dagtrain.passes.fold import fold_graph
from dagtrain.passes.memory_home import move_memories
from dagtrain.planning.carry import places_of, reserving
from dagtrain.planning.choices import Pace, memory_homes, plan_choices, plan_pace
from dagtrain.planning.clocks import folds_at, paces, periods_of
from dagtrain.planning.levels import slower
from dagtrain.planning.priced import ON_CHIP, PricedLevel
from dagtrain.planning.rate import with_rate
from dagtrain.planning.results import Found, Planned, faster, with_bound
from dagtrain.planning.searcher import Searcher
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError, Problem
from hdl.layers.storage import Home
from placement.problem.cluster import Cluster
from placement.problem.deadline import Ended
from placement.problem.plan import Plan
from placement.search.search import plan_from_assignment

# shares of every device that are left free for what links and homes add, where the placement found has no room for it;
# how much slower a plan may become by them before the next one is tried
RESERVES = (Fraction(1, 100), Fraction(3, 100), Fraction(6, 100), Fraction(10, 100))
KEPT_RATIO = 1.02
# CP-SAT's deterministic seconds for a decision there: what annealing doesn't find soon is not worth waiting for
RESERVE_DECISION_SECONDS = 2.0
RESERVE_GAP = 0.01
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
        last = plan
        try:
            for share in RESERVES:
                # larger reserves only make it slower once a placement keeps the pace it was found at
                kept = max(plan.cycles_per_frame, last.cycles_per_frame) * KEPT_RATIO
                if best is not None and best.plan.cycles_per_frame <= kept:
                    break
                found_with_reserve = self.with_reserve(last, found.levels, share)
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
        choices = plan_choices(plan)
        with self.searcher.time.holding():
            try:
                return self.fixed(places_of(plan), plan_pace(plan).folds, memory_homes(choices), found, explain=False)
            except Ended:
                raise
            except (InfeasibleError, OutOfTimeError, FoldingError):
                return None

    def at_slower_levels(self, plan: Plan, found: Found) -> Planned:
        """The placement of a plan with all nodes folded for the fastest level at which it holds."""
        places, homes = places_of(plan), memory_homes(plan_choices(plan))
        graph = self.searcher.problem.graph
        last: Mapping[str, int] | None = None
        for cycles in slower(plan.cycles_per_frame, found.levels):
            folds = folds_at(self.searcher.problem.cluster, cycles, places, graph.by_name)
            try:
                return self.fixed(places, folds, homes, found.plan, explain=False)
            except InfeasibleError:
                last = folds
            except FoldingError:
                continue
        if last is not None:
            return self.fixed(places, last, homes, found.plan)
        raise InfeasibleError(f"{graph.name}: the placement found has no room for its network ports")

    def with_reserve(self, plan: Plan, levels: Sequence[int], share: Fraction) -> Plan | None:
        """A placement at these levels that leaves this share of every device, priced with the homes of ``plan``:
        engines whose weights come from DRAM make FIFOs deeper elsewhere."""
        searcher = self.searcher
        prices, quick = searcher.prices, searcher.quick
        homes = memory_homes(plan_choices(plan))
        priced = []
        for cycles in (own for level in levels for own in paces(searcher.problem.cluster, level)):
            with suppress(FoldingError):
                priced.append(prices.level(cycles, homes, None, deadline=searcher.time.looking))
        if not priced:
            return None
        instance = prices.of_levels(priced, prices.ported or prices.links())
        options = replace(
            quick,
            tidy_seconds=searcher.problem.search.tidy_seconds,
            decision_seconds=RESERVE_DECISION_SECONDS,
            gap=max(quick.gap, RESERVE_GAP),
            near=places_of(plan),
        )
        try:
            return searcher.search(reserving(instance, share), options)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError):
            return None

    def fixed(
        self,
        assignment: Mapping[str, str],
        folds: Mapping[str, int],
        homes: Mapping[str, Home] = ON_CHIP,
        found: Plan | None = None,
        explain: bool = True,
    ) -> Planned:
        """The plan of a given placement with links priced in; the bound of ``found`` is kept.

        ``folds``: node -> cycles a frame of its device that it is folded for.
        ``homes``: where memories of nodes lie at first that aren't on chip; the plan may say otherwise.
        ``explain``: whether an `InfeasibleError` is to name the constraints at fault."""
        problem, prices, deadline = self.searcher.problem, self.searcher.prices, self.searcher.time.deadline
        options = replace(problem.search, time_limit_seconds=None, explain=explain)
        for free in [True] * HOME_ROUNDS + [False]:
            moved = move_memories.run(problem.graph, homes)
            pace = Pace.of(moved, folds, prices.parts, periods_of(problem.cluster, assignment))
            level = prices.level(pace.interval, homes, assignment, free, folds, deadline)
            # network ports are in the prices of their nodes
            folded = fold_graph.run(moved, folds, prices.parts)
            instance = prices.of_levels([level], prices.links(level.credit_words, folded))
            plan = plan_from_assignment(instance, assignment, options, deadline)
            wanted = memory_homes(plan_choices(plan))
            if wanted == homes:
                break
            homes = wanted
        _check_memories(plan, level, problem.cluster)
        deadline.check()
        bounded = plan if found is None else with_bound(plan, found)
        return Planned(with_rate(bounded, problem.graph, problem.cluster), instance)


def _check_memories(plan: Plan, level: PricedLevel, cluster: Cluster) -> None:
    """Raises `InfeasibleError` when what lies in a device's DRAM is larger than it, or it has too few MLABs."""
    # by device and channel
    dram: Counter[tuple[str, int]] = Counter()
    mlabs: Counter[str] = Counter()
    parts = {device.name: device.board.part for device in cluster.devices}
    for device in cluster.devices:
        mlabs[device.name] = device.board.dram_channels * level.reserved[device.board.part.name].mlab
    choices = plan_choices(plan)
    for item in plan.items:
        sizes = level.dram_bytes[item.item, choices[item.item]]
        for channel, size in zip(item.dram_channels or [0] * len(sizes), sizes, strict=True):
            dram[item.device, channel] += size
        mlabs[item.device] += level.mlabs[item.item, choices[item.item], parts[item.device].name]
    problems = [
        Problem(
            f"{device.name} would hold {size:,} bytes in DRAM{where} and has {room:,}",
            "raise dram_gbyte or add devices",
        )
        for device in cluster.devices
        for channel in range(device.board.dram_channels)
        for room in [device.board.dram_bytes // device.board.dram_channels]
        for size in [dram[device.name, channel]]
        for where in [f" channel {channel}" if device.board.dram_channels > 1 else ""]
        if size > room
    ]
    problems += [
        Problem(
            f"{name} would need {mlabs[name]:,} memories made of logic and has {part.lut_memory.blocks:,}",
            "add devices",
        )
        for name, part in parts.items()
        if mlabs[name] > part.lut_memory.blocks
    ]
    if problems:
        raise InfeasibleError.listing(plan.instance, problems)
