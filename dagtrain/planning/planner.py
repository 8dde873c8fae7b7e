"""From a training graph and a cluster to a plan: costs of every layer off its elaborated circuit, then the search.

The cost of a node at T cycles a frame (`dagtrain.planning.costs`) depends on what only a placement tells: which edges
cross the network, and, through the depths of FIFOs, which layers keep their memory in DRAM.  So planning goes in two
steps: search at a ladder of T with about what senders and receivers cost, as if streams took no time and all memories
lay on chip; then price the placement found with its links and homes until these stay what they are, and let the
validator judge that.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from dagtrain.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_relays import insert_relays, relay_of, shortcuts
from dagtrain.passes.memory_home import move_memories
from dagtrain.planning.carry import carried_over, places_of, reserving
from dagtrain.planning.choices import Pace, memory_homes, plan_choices, plan_pace
from dagtrain.planning.prices import ON_CHIP, PricedLevel, Prices, level_key
from dagtrain.planning.results import Planned, Searched, Start, faster, with_bound
from dagtrain.progress import Progress
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from hdl.estimate import Estimator
from hdl.layers.base import Home
from hdl.tensor import Kind
from placement.cluster import Cluster
from placement.instance import RESOURCES, Instance
from placement.plan import Plan, instance_digest
from placement.search import INTERRUPTED, SearchOptions, Solver, find_plan, plan_from_assignment
from placement.search import Progress as SearchProgress
from placement.validate import violations

# the level first priced is so much slower than what the multipliers allow: most networks have a plan there
SLOW_RATIO = 2.5
# steps in which the T is looked for at which multipliers alone would fit
LADDER_STEP = 1.1
# cycles a frame that no network needs
SLOWEST = 1 << 40
# how often the first level may grow when it has no plan
LADDER_GROWTHS = 5
# levels priced between the fastest that may fit and the slow one: as many as make so many nodes, within limits
PRICED_NODES, LEAST_STEPS, MOST_STEPS = 900, 2, 5
# rounds in which levels are put between the proven bound and the plan found, if they differ by more than the ratio
REFINEMENT_ROUNDS = 2
LEAST_RATIO = 1.005
# steps to faster levels than predicted
FASTER_RATIO = 1.25
# a relay stands on neither end's device
LEAST_RELAY_DEVICES = 3
# a search that is begun goes on for so long
LEAST_SEARCH_SECONDS = 1.0
# one part in so many of the search's moves is what searches before the last one get
QUICK = 6
# shares of every device that are left free for what links and homes add, where the placement found has no room for it;
# how much slower a plan may become by them before the next one is tried
RESERVES = (Fraction(1, 100), Fraction(3, 100), Fraction(6, 100), Fraction(10, 100))
KEPT_RATIO = 1.02
# CP-SAT's deterministic seconds for a decision there: what annealing doesn't find soon is not worth waiting for
RESERVE_DECISION_SECONDS = 2.0
RESERVE_GAP = 0.01
# how often the home of memories may change what FIFOs cost, and that the homes, before they are kept
HOME_ROUNDS = 3
# steps by which a placement may slow down to make room for its network ports
LINK_STEPS = 8
SLOWER_RATIO = 1.03
# multipliers of 16-bit operands in a DSP block of every part
MULTIPLIERS_PER_DSP = 2


@dataclass
class Planner:
    """Plans one graph on one cluster."""

    graph: Graph
    cluster: Cluster
    estimator: Estimator
    search: SearchOptions
    pins: Mapping[str, str]
    progress: Progress
    # gone on from if it is of the same problem, else not looked at
    start: Start | None = None
    # when the search began, and whether Ctrl-C ended it
    _began: float = field(default=0.0, init=False)
    _interrupted: bool = field(default=False, init=False)

    @cached_property
    def prices(self) -> Prices:
        """What the nodes cost."""
        return Prices(self.graph, self.cluster, self.estimator, self.pins, self.progress)

    def run(self) -> Planned:
        """Search from a slow level to the fastest that may fit, refine, price with links.

        Raises `InfeasibleError` naming what to relax, or `OutOfTimeError`."""
        self._begin()
        steps = max(LEAST_STEPS, min(MOST_STEPS, PRICED_NODES // len(self.graph.nodes)))
        least = self._least_cycles()
        best, priced = self._resumed() or self._first_plan(round(least * SLOW_RATIO))
        slow = max(priced)
        fastest = min(slow, max(least, self._predicted_cycles(slow)))
        levels = sorted({*_between(fastest, slow, steps), fastest, *priced})
        best = self._better(best, levels)
        best, levels = self._faster(best, levels, least)
        for _ in range(REFINEMENT_ROUNDS):
            finer = _between(best.bound_cycles_per_frame, best.cycles_per_frame, steps // 2, levels)
            if not finer:
                break
            levels = sorted({*levels, *finer})
            best = self._better(best, [level for level in levels if level <= best.cycles_per_frame] or levels)
        # at its goal already, it is tidied at least
        best = self._better(best, levels, self.search)
        planner, best = self._with_relays(best, levels) or (self, best)
        finished = not self._interrupted and self._seconds_left() > 0
        planned = planner._with_links(best, levels)
        return replace(planned, searched=planner._searched(best, levels, finished))

    def _faster(self, best: Plan, levels: Sequence[int], least: int) -> tuple[Plan, list[int]]:
        """Faster levels, as long as nothing but the fastest one priced keeps the plan from being faster.

        Memories hardly grow with the pace, so the prediction can be far too slow where they bind."""
        levels = list(levels)
        while best.bound_cycles_per_frame == best.cycles_per_frame:
            next_level = max(least, round(best.cycles_per_frame / FASTER_RATIO))
            if next_level >= levels[0] or self.out_of_time:
                break
            levels = [next_level, *levels]
            best = self._better(best, levels)
        return best, levels

    def _resumed(self) -> tuple[Plan, tuple[int, ...]] | None:
        """Where an earlier search of the same problem ended, and the levels priced; None if there is none."""
        if self.start is None:
            return None
        instance = self.prices.instance(self.start.levels)
        if instance_digest(instance) != self.start.plan.instance_digest or violations(instance, self.start.plan):
            return None
        return self.start.plan, self.start.levels

    def _searched(self, best: Plan, levels: Iterable[int], finished: bool) -> Searched:
        """The best plan of the search as one of the instance with all levels that were priced."""
        priced = tuple(level for level in levels if level_key(level) in self.prices.known)
        instance = self.prices.instance(priced)
        whole = carried_over(best, instance)
        assert whole is not None, "a plan fits where more configurations are offered"
        return Searched(with_bound(whole, best), instance, priced, finished)

    # ---- relays

    def _with_relays(self, best: Plan, levels: Sequence[int]) -> tuple[Planner, Plan] | None:
        """A planner of the graph with relays on shortcuts, and its plan, where that is faster; else None.

        Relays cost ports and the time to price them, so they are tried only where free hops would help.  Bounds of
        ``best`` don't speak of them, so it doesn't matter how close it is to its own."""
        edges = shortcuts(self.graph)
        over = self.out_of_time
        if over or not edges or len(self.cluster.devices) < LEAST_RELAY_DEVICES or self.search.solver is Solver.LITERAL:
            return None
        if not self._hops_bind(best, levels, edges):
            return None
        places = places_of(best)
        beside = {relay_of(edge): places[self.graph.consumers[edge][0][0].name] for edge in edges}
        planner, plan = self._relayed(edges), best
        try:
            plan = planner._find(levels, self._quick, best, beside)
            # a relay on a device of either end adds no hop
            places = places_of(plan)
            ends = {edge: (producer.name, consumer.name) for edge, producer, _, consumer, _ in self.graph.edges}
            useful = [edge for edge in edges if places[relay_of(edge)] not in [places[end] for end in ends[edge]]]
            planner = self._relayed(useful)
            plan = planner._find(levels, self._quick, plan)
        except (InfeasibleError, OutOfTimeError):
            return None
        finally:
            self._interrupted = self._interrupted or planner._interrupted
        return (planner, plan) if plan.cycles_per_frame * LEAST_RATIO <= best.cycles_per_frame else None

    def _relayed(self, edges: Collection[str]) -> Planner:
        """The planner of the graph with relays on these edges."""
        return replace(self, graph=insert_relays(self.graph, edges), start=None).after(self)

    def _hops_bind(self, best: Plan, levels: Sequence[int], edges: Collection[str]) -> bool:
        """Whether a quick search finds a faster placement if shortcuts may cross as often as they like."""
        instance = self.prices.instance(levels)
        links = tuple(
            replace(link, kind=Kind.STASH) if edge in edges else link
            for link, (edge, *_) in zip(instance.links, self.graph.edges, strict=True)
        )
        relaxed = replace(instance, links=links)
        try:
            found = self._search(relaxed, replace(self._quick, start=carried_over(best, relaxed)))
        except (InfeasibleError, OutOfTimeError):
            return False
        return found.cycles_per_frame * LEAST_RATIO <= best.cycles_per_frame

    # ---- another graph of the same network

    def promises_more(self, than: Searched, beside: Mapping[str, str]) -> bool:
        """Whether a search finds a faster placement of this planner's graph than that of another graph of the same
        network, at the levels priced there; then `run` goes on from it.

        ``beside``: devices to begin with of the nodes that the other graph doesn't have."""
        self._begin()
        levels = tuple(level for level in than.levels if level <= than.plan.cycles_per_frame) or than.levels
        try:
            instance = self.prices.instance(levels)
            start = carried_over(than.plan, instance, beside)
            found = self._search(
                instance, replace(self._untidied, start=start, near={**beside, **places_of(than.plan)})
            )
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return False
        self.start = Start(found, levels)
        return found.cycles_per_frame * LEAST_RATIO <= than.plan.cycles_per_frame

    def after(self, other: Planner) -> Planner:
        """This planner, whose time began with the other's."""
        self._began = other._began
        return self

    def _begin(self) -> None:
        self._began = self._began or time.monotonic()

    @property
    def out_of_time(self) -> bool:
        """Ctrl-C or the time limit ended the search."""
        return self._interrupted or self._seconds_left() <= 0

    # ---- levels

    def _least_cycles(self) -> int:
        """The least T at which the multipliers of all engines fit the cluster."""
        macs = sum(node.layer.macs for node in self.graph.nodes)
        blocks = sum(device.dsp for device in self.cluster.placement_devices())
        cycles = max(1, math.ceil(macs / (MULTIPLIERS_PER_DSP * max(1, blocks))))
        while True:
            try:
                if _multipliers(fold_graph(self.graph, cycles)) <= MULTIPLIERS_PER_DSP * blocks:
                    return cycles
            except FoldingError:
                if cycles > SLOWEST:
                    raise
            if cycles > SLOWEST:
                return cycles
            cycles = math.ceil(cycles * LADDER_STEP)

    def _first_plan(self, cycles: int) -> tuple[Plan, tuple[int, ...]]:
        """A plan at a slow level, or at a slower one, and that level."""
        growths = 0
        while True:
            try:
                return self._find([cycles], self._quick), (cycles,)
            except FoldingError:
                # not monotonic: a little slower may do
                if cycles > SLOWEST:
                    raise
                cycles = math.ceil(cycles * SLOWER_RATIO)
            except (InfeasibleError, OutOfTimeError):
                growths += 1
                if growths > LADDER_GROWTHS or self._seconds_left() <= 0:
                    return self._find([cycles], replace(self._quick, explain=True)), (cycles,)
                cycles = round(cycles * SLOW_RATIO)

    def _predicted_cycles(self, slow: int) -> int:
        """About the level at which blocks run out, if what every node needs at least grows with its pace."""
        devices = self.cluster.placement_devices()
        shares: list[float] = []
        for resource in RESOURCES:
            there = sum(int(getattr(device, resource)) for device in devices)
            offers = self.prices.level(slow, ON_CHIP, None).offers.values()
            least = sum(min(int(getattr(c, resource)) for cs in parts.values() for c in cs) for parts in offers)
            shares.append(least / max(1, there))
        return math.ceil(slow * min(1.0, max(shares)))

    def _seconds_left(self) -> float:
        limit = self.search.time_limit_seconds
        return math.inf if limit is None else limit - (time.monotonic() - self._began)

    def _better(self, best: Plan, levels: Sequence[int], search: SearchOptions | None = None) -> Plan:
        """The better one of a plan and what a search over these levels finds, while there is time."""
        if self.out_of_time:
            return best
        try:
            found = self._find(levels, search or self._quick, best)
        except OutOfTimeError:
            return best
        return found if found.cycles_per_frame <= best.cycles_per_frame else best

    @property
    def _quick(self) -> SearchOptions:
        """For searches that only tell where to look."""
        return replace(self._untidied, anneal_budget=self.search.anneal_budget // QUICK)

    @property
    def _untidied(self) -> SearchOptions:
        """For searches whose plan is not yet the last, or that may find none."""
        return replace(self.search, tidy_seconds=0.0, joint_choices=0, explain=False)

    def _find(
        self,
        levels: Sequence[int],
        search: SearchOptions,
        best: Plan | None = None,
        beside: Mapping[str, str] | None = None,
    ) -> Plan:
        """The plan of a search over these levels that goes on from the devices of ``best``, and from those of
        ``beside`` for items that it doesn't have."""
        instance = self.prices.instance(levels)
        if best is not None:
            search = replace(search, start=carried_over(best, instance, beside or {}))
        return self._search(instance, search)

    def _search(self, instance: Instance, search: SearchOptions) -> Plan:
        """Find a plan, with progress, within the user's time."""
        self.progress.begin("search")
        if self.search.time_limit_seconds is not None:
            search = replace(search, time_limit_seconds=max(LEAST_SEARCH_SECONDS, self._seconds_left()))

        def report(state: SearchProgress) -> None:
            cycles = state.cycles_per_frame
            fps = f"{instance.clock_hz / cycles:,.1f} fps" if cycles else "no plan yet"
            gap = f", gap {state.gap:.2%}" if state.gap is not None else ""
            self.progress.advance(note=f"{state.stage}: {fps}{gap}")
            self._interrupted = self._interrupted or state.stage == INTERRUPTED

        plan = find_plan(instance, search, report)
        self.progress.end(note=f"{plan.throughput_fps:,.1f} fps, gap {plan.gap:.2%}")
        return plan

    def _with_links(self, found: Plan, levels: Sequence[int]) -> Planned:
        """The placement found with its links and homes priced in, and others found with these homes and some reserve,
        where that costs throughput; the fastest.  If none holds: the last, with all folded for a slower level."""
        best = self._holding(found, found)
        last = placed = found
        for share in RESERVES:
            # larger reserves only make it slower once a placement keeps the pace it was found at
            kept = max(found.cycles_per_frame, placed.cycles_per_frame) * KEPT_RATIO
            if (best is not None and best.plan.cycles_per_frame <= kept) or self.out_of_time:
                break
            found_with_reserve = self._with_reserve(last, levels, share)
            if found_with_reserve is None:
                break
            last = placed = found_with_reserve
            best = faster(best, self._holding(placed, found))
        return best or self._at_slower_levels(last, levels, found)

    def _holding(self, plan: Plan, found: Plan) -> Planned | None:
        """The placement of a plan with its links and homes, engines folded as it says, if it holds."""
        choices = plan_choices(plan)
        try:
            return self.fixed(places_of(plan), plan_pace(plan).folds, memory_homes(choices), found, explain=False)
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return None

    def _at_slower_levels(self, plan: Plan, levels: Sequence[int], found: Plan) -> Planned:
        places, homes = places_of(plan), memory_homes(plan_choices(plan))
        last: Mapping[str, int] | None = None
        for cycles in _slower(plan.cycles_per_frame, levels):
            folds = dict.fromkeys(self.graph.by_name, cycles)
            try:
                return self.fixed(places, folds, homes, found, explain=False)
            except InfeasibleError:
                last = folds
            except FoldingError:
                continue
        if last is not None:
            return self.fixed(places, last, homes, found)
        raise InfeasibleError(f"{self.graph.name}: the placement found has no room for its network ports")

    def _with_reserve(self, plan: Plan, levels: Sequence[int], share: Fraction) -> Plan | None:
        """A placement at these levels that leaves this share of every device, priced with the homes of ``plan``:
        engines whose weights come from DRAM make FIFOs deeper elsewhere."""
        homes = memory_homes(plan_choices(plan))
        self.progress.begin("costs", len(levels) * len(self.graph.nodes))
        priced = []
        for cycles in levels:
            try:
                priced.append(self.prices.level(cycles, homes, None))
            except FoldingError:
                self.progress.advance(len(self.graph.nodes))
        self.progress.end()
        if not priced:
            return None
        instance = self.prices.of_levels(priced, self.prices.ported or self.prices.links())
        search = replace(
            self._quick,
            tidy_seconds=self.search.tidy_seconds,
            decision_seconds=RESERVE_DECISION_SECONDS,
            gap=max(self.search.gap, RESERVE_GAP),
            near=places_of(plan),
        )
        try:
            return self._search(reserving(instance, share), search)
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

        ``folds``: node -> cycles a frame that it is folded for.
        ``homes``: where memories of nodes lie at first that aren't on chip; the plan may say otherwise.
        ``explain``: whether an `InfeasibleError` is to name the constraints at fault."""
        search = replace(self.search, time_limit_seconds=None, explain=explain)
        for free in [True] * HOME_ROUNDS + [False]:
            pace = Pace.of(move_memories(self.graph, homes), folds)
            level = self.prices.level(pace.interval, homes, assignment, free, folds)
            # network ports are in the prices of their nodes
            instance = self.prices.of_levels([level], self.prices.links())
            # what was found is always priced to its end
            plan = plan_from_assignment(instance, assignment, search)
            wanted = memory_homes(plan_choices(plan))
            if wanted == homes:
                break
            homes = wanted
        self._check_memories(plan, level)
        return Planned(plan if found is None else with_bound(plan, found), instance)

    def _check_memories(self, plan: Plan, level: PricedLevel) -> None:
        """Raises `InfeasibleError` when what lies in a device's DRAM is larger than it, or it has too few MLABs."""
        dram: Counter[str] = Counter()
        mlabs: Counter[str] = Counter()
        parts = {device.name: device.board.part for device in self.cluster.devices}
        for item in plan.items:
            dram[item.device] += level.dram_bytes[item.item, item.configuration]
            mlabs[item.device] += level.mlabs[item.item, item.configuration, parts[item.device].name]
        problems = [
            f"{device.name} would hold {dram[device.name]:,} bytes in DRAM and has {device.board.dram_bytes:,}; raise "
            "dram_gbyte or add devices"
            for device in self.cluster.devices
            if dram[device.name] > device.board.dram_bytes
        ]
        problems += [
            f"{name} would need {mlabs[name]:,} memories made of logic and has {part.lut_memory.blocks:,}; add devices"
            for name, part in parts.items()
            if mlabs[name] > part.lut_memory.blocks
        ]
        if problems:
            raise InfeasibleError(f"{plan.instance}: {'; '.join(problems)}")


def _multipliers(graph: Graph) -> int:
    """Multipliers of all engines: what no placement can do without."""
    return sum(node.layer.multipliers for node in graph.nodes)


def _slower(cycles: int, levels: Sequence[int]) -> list[int]:
    """``cycles``, the slower ones among ``levels``, and small steps."""
    steps = [math.ceil(cycles * SLOWER_RATIO**step) for step in range(LINK_STEPS)]
    return sorted({*steps, *(level for level in levels if level > cycles)})


def _between(low: int, high: int, count: int, known: Sequence[int] = ()) -> list[int]:
    """New levels from a bound to below a plan, evenly spaced in ratio; none below the slowest known to be faster."""
    below = max((level for level in known if level < high), default=low)
    low = max(low - 1, below, 1)
    if high - low <= 1 or high / low < LEAST_RATIO:
        return []
    step = (high / low) ** (1 / (count + 1))
    found = {round(low * step**index) for index in range(1, count + 1)}
    return sorted(level for level in found if low < level < high)
