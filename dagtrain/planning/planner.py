"""From a training graph and a cluster to a plan: costs of every layer off its elaborated circuit, then the search.

The cost of a node at T cycles a frame (`dagtrain.planning.costs`) depends on what only a placement tells: which edges
cross the network, and, through the depths of FIFOs, which layers keep their memory in DRAM.  So planning goes in two
steps: search at a ladder of T with about what senders and receivers cost, as if streams took no time and all memories
lay on chip; then price the placement found with its links and homes until these stay what they are, and let the
validator judge that.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_relays import insert_relays, relay_of, relayed_edges, shortcuts
from dagtrain.passes.memory_home import move_memories
from dagtrain.planning.carry import carried_over, places_of, reserving
from dagtrain.planning.choices import Pace, memory_homes, plan_choices, plan_pace
from dagtrain.planning.foldings import Foldings
from dagtrain.planning.prices import ON_CHIP, PricedLevel, Prices, level_key
from dagtrain.planning.rate import plan_time, with_rate
from dagtrain.planning.results import Planned, Searched, Start, faster, with_any_bound, with_bound
from dagtrain.progress import Progress
from dagtrain.rates import rate_text, training_text
from hdl.costs.estimate import Estimator
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from hdl.layers.base import Home
from hdl.tensor import Kind
from placement.problem.cluster import Cluster
from placement.problem.deadline import Deadline, Ended
from placement.problem.instance import RESOURCES, Device, Instance
from placement.problem.plan import Bound, Plan
from placement.problem.validate import violations
from placement.search.search import Progress as SearchProgress
from placement.search.search import SearchOptions, Solver, find_plan, plan_from_assignment

# the level first priced is so much slower than what the multipliers allow: most networks have a plan there
SLOW_RATIO = 2.5
# where that takes more multipliers than this, whose circuits take minutes to elaborate, a plan is made first of small
# circuits, so much slower than multipliers allow
MANY_MULTIPLIERS, SMALL_RATIO = 5_000, 30
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
# a placement found is priced well before the time limit: what the slowest took so far, so many times
HOLDING_MARGIN = 2.0
# … and before the first one, a search has at most this share of what is left
FIRST_SHARE = 0.5
# one part in so many of the search's moves is what searches before the last one get
QUICK = 6
# shares of every device that are left free for what links and homes add, where the placement found has no room for it;
# how much slower a plan may become by them before the next one is tried
RESERVES = (Fraction(1, 100), Fraction(3, 100), Fraction(6, 100), Fraction(10, 100))
KEPT_RATIO = 1.02
# a placement found so much faster than the plan so far is made to hold at once, others when the search is done
WORTH_RATIO = 1.25
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
# nodes of a graph whose foldings are all known at once, in a second or two
QUICK_NODES = 100


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
    # when to end: whatever takes long asks it
    deadline: Deadline = field(default_factory=Deadline)
    # told of every plan that holds and is faster than the one before
    keep: Callable[[Planned], None] = lambda _: None
    # cycles a frame of training with another plan that there is of the network: slower ones are of no use
    known_cycles: Fraction | None = None
    # seconds by what they went into
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # the best plan that holds; the best placement found, with estimates for network ports, and the levels priced for it
    _best: Planned | None = field(default=None, init=False)
    _found: tuple[Plan, Sequence[int]] | None = field(default=None, init=False)
    # the placement found that was priced last, whether it held or not
    _priced: Plan | None = field(default=None, init=False)
    # what pricing a placement took at most, seconds
    _holding_seconds: float = field(default=0.0, init=False)
    # what a user should know of how the plan was found
    warnings: list[str] = field(default_factory=list, init=False)

    @cached_property
    def prices(self) -> Prices:
        """What the nodes cost."""
        return Prices(self.graph, self.cluster, self.estimator, self.pins, self.progress, self.spent)

    def run(self) -> Planned:
        """Search from a slow level to the fastest that may fit, refine, price with links; the best plan so far when
        the deadline ends that.

        Raises `InfeasibleError` naming what to relax, or `OutOfTimeError`, which is `Ended` at the deadline."""
        relayed = relayed_edges(self.graph, places_of(self.start.plan)) if self.start is not None else ()
        if relayed:
            return self._run_with(relayed)
        self._best = self.start.planned if self.start is not None else None
        try:
            self._improve()
        except Ended as end:
            self._close()
            if self._best is None:
                raise self._without_plan(end) from None
        except KeyboardInterrupt:
            # nobody listens to Ctrl-C, or it was pressed too often
            self.deadline.interrupt()
            if self._best is None:
                raise
        assert self._best is not None, "a search that ends has a plan"
        if not self._fast_enough(self._best.plan):
            raise self._too_slow(self._best.plan)
        return self._best

    def _fast_enough(self, plan: Plan) -> bool:
        """Whether training with a plan is as fast as the user wants it at least."""
        least = self.search.least_fps
        return least is None or Fraction(plan.clock_hz) / plan.training_cycles >= least

    def _too_slow(self, plan: Plan) -> InfeasibleError:
        return InfeasibleError(
            f"{plan.instance}: the best plan found trains {training_text(plan.throughput_fps)} frames/s in batches of "
            f"{plan.batch_frames} with staleness {plan.staleness_frames}, and {self.search.least_fps:g} are wanted; "
            f"inside a batch it has {rate_text(plan.steady_fps)}: raise the recipe's staleness or batch, or relax "
            "--least-fps"
        )

    def _run_with(self, relayed: Collection[str]) -> Planned:
        """Go on from a plan with these relays."""
        planner = replace(self, graph=insert_relays(self.graph, relayed))
        try:
            return planner.run()
        finally:
            self.warnings += planner.warnings

    def _improve(self) -> None:
        """One plan after the other, to the end."""
        steps = max(LEAST_STEPS, min(MOST_STEPS, PRICED_NODES // len(self.graph.nodes)))
        least = self._least_cycles()
        best, priced = self._resumed() or self._begun(least)
        self._hold(best, priced)
        slow = max(priced)
        fastest = min(slow, max(least, self._predicted_cycles(slow)))
        # engines divide their work evenly, so a plan is often faster than its level: slower levels are of no use to it
        faster_levels = [level for level in (fastest, *_between(fastest, slow, steps)) if level < best.cycles_per_frame]
        levels = sorted({*faster_levels, *priced})
        if faster_levels:
            best = self._better(best, levels)
        best, levels = self._faster(best, levels, least)
        self._hold(best, levels)
        for _ in range(REFINEMENT_ROUNDS):
            finer = self._finer(best, levels, max(LEAST_STEPS, steps // 2))
            if not finer:
                break
            levels = sorted({*levels, *finer})
            best = self._better(best, [level for level in levels if level <= best.cycles_per_frame] or levels)
        # at its goal already, it is tidied at least
        best = self._better(best, levels, self.search)
        planner, best = self._with_relays(best, levels) or (self, best)
        planned, self._priced = planner._with_links(best, levels), best
        searched = planner._searched(best, levels, finished=False)
        self._take(replace(planned, searched=searched))
        if self.known_cycles is None:
            self._on_fewer_devices(searched)
        assert self._best is not None, "a plan was taken"
        assert self._best.searched is not None, "the planner's own plans know their search"
        self._best = replace(self._best, searched=replace(self._best.searched, finished=not self._looking.over))

    def _on_fewer_devices(self, searched: Searched) -> None:
        """Plans on the cluster's first devices only, which may train faster: what waits for the weights of the batch
        before goes a shorter way.  ``searched`` is the search on all of them, whose bounds hold for fewer."""
        assert self._best is not None, "there is a plan on all devices"
        usable = [device.name for device in self._usable_devices]
        spread = self._best.plan
        if len({item.device for item in spread.items}) == 1:
            return
        # the plan's batch if nothing crossed the network: more is not to be gained
        alone = plan_time(spread, self.graph, self.cluster, together=True).cycles
        for count in range(1, len(usable)):
            rest = tuple(usable[count:])
            if set(self.pins.values()) & set(rest):
                continue
            fewer = self._without(rest, searched)
            slower = max(0, fewer._least_cycles() - spread.cycles_per_frame)
            promised = Fraction(alone, spread.batch_frames) + slower
            if promised * LEAST_RATIO >= self._best.plan.training_cycles:
                continue
            fewer.known_cycles = self._best.plan.training_cycles
            try:
                fewer._improve()
            except Ended:
                raise
            except (InfeasibleError, OutOfTimeError, FoldingError):
                continue

    def _without(self, devices: tuple[str, ...], searched: Searched) -> Planner:
        """A planner that leaves these devices empty too, with the same prices; its plans are taken as this one's."""

        def keep(planned: Planned) -> None:
            plan = replace(with_bound(planned.plan, searched.plan), binding=planned.plan.binding)
            self._take(Planned(plan, planned.instance, searched))

        search = replace(self.search, exclude=(*self.search.exclude, *devices), least_fps=None)
        fewer = replace(self, search=search, start=None, keep=keep)
        fewer.warnings = self.warnings
        fewer.__dict__.update(prices=self.prices, foldings=self.foldings, _any_bound=self._any_bound)
        return fewer

    def _begun(self, least: int) -> tuple[Plan, tuple[int, ...]]:
        """The first placement that is worth going on from, and its levels; if it will take long, a plan of small
        circuits is kept before."""
        slow = round(least * SLOW_RATIO)
        small = self._plan_of_small_circuits(least) if self._takes_long(slow) else None
        try:
            return self._first_plan(slow)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            if small is None:
                raise
            return small

    def _takes_long(self, cycles: int) -> bool:
        with suppress(FoldingError):
            return _multipliers(fold_graph(self.graph, cycles)) > MANY_MULTIPLIERS
        return False

    def _plan_of_small_circuits(self, least: int) -> tuple[Plan, tuple[int, ...]] | None:
        """A plan to have one soon, and its level; None if there is none there: others will say why."""
        cycles = round(least * SMALL_RATIO)
        wanted, there_is = self.search.least_fps, self._best is not None or self.known_cycles is not None
        if there_is or (wanted is not None and self.cluster.clock_hz < wanted * cycles):
            return None
        try:
            found = self._find([cycles], self._quick)
            self._hold(found, [cycles])
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return None
        finally:
            # those of a level so slow are of no other search
            self.prices.ported = None
        return found, (cycles,)

    # ---- what is found

    def _hold(self, found: Plan, levels: Sequence[int]) -> None:
        """Keep a placement found, links and homes priced in, if it holds and is faster than the plan so far; the first
        one at slower levels, if it must be."""
        self._found = found, levels
        known = self._best.plan.training_cycles if self._best is not None else self.known_cycles
        if found is self._priced or (known is not None and found.cycles_per_frame >= known):
            return
        planned = self._with_links(found, levels) if known is None else self._holding_faster(found, levels)
        self._priced = found
        if planned is not None:
            self._take(replace(planned, searched=self._searched(found, levels, finished=False)))

    def _holding_faster(self, found: Plan, levels: Sequence[int]) -> Planned | None:
        """A placement found, links and homes priced in, when there is a plan already: as it is, if it holds; made to
        hold where it is so much faster that the plan so far would be a poor one to be left with."""
        known = self._best.plan.cycles_per_frame if self._best is not None else self.known_cycles
        if known is None or found.cycles_per_frame * WORTH_RATIO > known:
            return self._holding(found, found)
        try:
            return self._with_links(found, levels)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return None

    def _take(self, planned: Planned) -> None:
        """Keep a plan that holds if it is faster than the one so far, or as fast and of a search that went further."""
        best = self._best
        if best is None or planned.plan.training_cycles <= best.plan.training_cycles:
            self._best = planned
        elif {item.item for item in planned.plan.items} == {item.item for item in best.plan.items}:
            self._best = replace(best, plan=with_bound(best.plan, planned.plan), searched=planned.searched)
        faster_than_best = best is None or planned.plan.training_cycles < best.plan.training_cycles
        if faster_than_best and self._fast_enough(planned.plan):
            self.keep(planned)

    def _close(self) -> None:
        """Hold what an ended search had found, in the time that was left for it, or until Ctrl-C comes once more."""
        whole, closing = self.deadline, self.deadline.closing()
        if self._found is None or closing.over:
            return
        self.deadline = closing
        try:
            self._hold(*self._found)
        except (Ended, InfeasibleError, FoldingError):
            return
        finally:
            self.deadline = whole

    def _without_plan(self, end: Ended) -> Ended:
        """What to say when the time was too short for any plan: what it went into, and what should do."""
        spent = ", ".join(f"{seconds:.1f} s went into {what}" for what, seconds in self.spent.items() if seconds > 0)
        known, wanted = self.prices.known_circuits, self.prices.wanted_circuits
        done = f" ({known} of {wanted} circuits of the first level elaborated)" if known < wanted else ""
        return Ended(
            f"{self.graph.name} on {self.cluster.name}: {end} before there was a plan: {spent or 'none of it was left'}"
            f"{done}; --time-limit {self._sufficient_seconds()} should do"
        )

    def _sufficient_seconds(self) -> int:
        """About the time limit that lets a first plan come about: what is left to elaborate at the pace so far, and as
        much again for the search and what pricing its placement takes, in tens."""
        known, wanted = self.prices.known_circuits, self.prices.wanted_circuits
        spent = self.deadline.spent_seconds
        rest = self.spent["circuits"] * (wanted - known) / max(1, known)
        return 10 * math.ceil((2 * (spent + rest)) / 10)

    def _faster(self, best: Plan, levels: Sequence[int], least: int) -> tuple[Plan, list[int]]:
        """Faster levels, as long as nothing but the fastest one priced keeps the plan from being faster.

        Memories hardly grow with the pace, so the prediction can be far too slow where they bind."""
        levels = list(levels)
        while best.bound_cycles_per_frame == best.cycles_per_frame:
            next_level = max(least, round(best.cycles_per_frame / FASTER_RATIO))
            if next_level >= levels[0]:
                break
            levels = [next_level, *levels]
            best = self._better(best, levels)
        return best, levels

    def _finer(self, best: Plan, levels: Sequence[int], count: int) -> list[int]:
        """New levels faster than a plan, above the fastest that is known to be too fast: steps of the staircase of
        multipliers, else evenly spaced above the bound at the levels priced."""
        low, high = best.any_bound_cycles_per_frame, best.cycles_per_frame
        below = max((level for level in levels if level < high), default=0)
        found = self.foldings.steps(max(low, below + 1), round(high / LEAST_RATIO), count)
        return found or _between(best.bound_cycles_per_frame, high, count, levels)

    def _resumed(self) -> tuple[Plan, tuple[int, ...]] | None:
        """Where an earlier search of the same problem ended, and the levels priced; None if there is none."""
        if self.start is None:
            return None
        instance = self.prices.instance(self.start.levels, self._looking)
        found = violations(instance, self.start.plan)
        if found:
            fps = rate_text(self.start.plan.throughput_fps)
            self.warnings.append(
                f"warning: the search starts over, its earlier plan of {fps} frames/s is not valid any more: {found[0]}"
            )
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
        few = len(self.cluster.devices) < LEAST_RELAY_DEVICES
        if not edges or few or self.search.solver is Solver.LITERAL:
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
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError):
            return None
        return (planner, plan) if plan.cycles_per_frame * LEAST_RATIO <= best.cycles_per_frame else None

    def _relayed(self, edges: Collection[str]) -> Planner:
        """The planner of the graph with relays on these edges, for a faster plan than there is."""
        planner = replace(self, graph=insert_relays(self.graph, edges), start=None)
        planner._best, planner._holding_seconds = self._best, self._holding_seconds
        return planner

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
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError):
            return False
        return found.cycles_per_frame * LEAST_RATIO <= best.cycles_per_frame

    # ---- another graph of the same network

    def promises_more(self, than: Searched, beside: Mapping[str, str]) -> bool:
        """Whether a search finds a faster placement of this planner's graph than that of another graph of the same
        network, at the levels priced there; then `run` goes on from it.

        ``beside``: devices to begin with of the nodes that the other graph doesn't have."""
        levels = tuple(level for level in than.levels if level <= than.plan.cycles_per_frame) or than.levels
        try:
            instance = self.prices.instance(levels, self._looking)
            start = carried_over(than.plan, instance, beside)
            found = self._search(
                instance, replace(self._untidied, start=start, near={**beside, **places_of(than.plan)})
            )
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return False
        self.start = Start(found, levels)
        return found.cycles_per_frame * LEAST_RATIO <= than.plan.cycles_per_frame

    # ---- levels

    @property
    def _usable_devices(self) -> list[Device]:
        """Devices that the search may use."""
        return [device for device in self.cluster.placement_devices() if device.name not in self.search.exclude]

    def _least_cycles(self) -> int:
        """The least T at which the multipliers of all engines fit the cluster."""
        macs = sum(node.layer.macs for node in self.graph.nodes)
        blocks = sum(device.dsp for device in self._usable_devices)
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
            except Ended:
                raise
            except (InfeasibleError, OutOfTimeError):
                growths += 1
                if growths > LADDER_GROWTHS:
                    return self._find([cycles], replace(self._quick, explain=True)), (cycles,)
                cycles = round(cycles * SLOW_RATIO)
                # ports are those of the slowest level, also where a later search goes on from here
                self.prices.ported = None

    def _predicted_cycles(self, slow: int) -> int:
        """About the level at which blocks run out, if what every node needs at least grows with its pace."""
        devices = self._usable_devices
        shares: list[float] = []
        for resource in RESOURCES:
            there = sum(int(getattr(device, resource)) for device in devices)
            offers = self.prices.level(slow).offers.values()
            least = sum(min(int(getattr(c, resource)) for cs in parts.values() for c in cs) for parts in offers)
            shares.append(least / max(1, there))
        return math.ceil(slow * min(1.0, max(shares)))

    def _better(self, best: Plan, levels: Sequence[int], search: SearchOptions | None = None) -> Plan:
        """The better one of a plan and what a search over these levels finds."""
        try:
            found = self._find(levels, search or self._quick, best)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError):
            # levels faster than the plan's own may have none
            return best
        better = found if found.cycles_per_frame <= best.cycles_per_frame else best
        self._found = better, levels
        return better

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
        instance = self.prices.instance(levels, self._looking)
        if best is not None:
            search = replace(search, start=carried_over(best, instance, beside or {}))
        return self._search(instance, search)

    def _search(self, instance: Instance, search: SearchOptions) -> Plan:
        """Find a plan, with progress, as long as there is time to price what it finds."""
        self.progress.begin("search")

        def report(state: SearchProgress) -> None:
            self.progress.advance(note=_standing(state))

        began, deadline = self.deadline.spent_seconds, self._looking
        if self._best is None and self.known_cycles is None:
            deadline = deadline.within(FIRST_SHARE * deadline.seconds_left)
        try:
            plan = find_plan(instance, search, report, deadline)
        finally:
            self.spent["search"] += self.deadline.spent_seconds - began
            self.progress.end()
        if self._best is None and self.known_cycles is None and len(self.graph.nodes) > QUICK_NODES:
            # the first plan does not wait for it
            return with_any_bound(plan, Bound(1, "nothing runs in less than one cycle"))
        # those of the plan speak of the levels priced, and of estimated ports
        if plan.cycles_per_frame < self._any_bound.cycles_per_frame:
            self.warnings.append(
                f"warning: a plan of {plan.cycles_per_frame:,} cycles a frame is below the bound of all foldings "
                f"({self._any_bound.cycles_per_frame:,}: {self._any_bound.basis}), which is therefore wrong: please "
                "report it"
            )
            self.__dict__["_any_bound"] = Bound(1, "none: one was found to be wrong")
        return with_any_bound(plan, self._any_bound)

    @cached_property
    def foldings(self) -> Foldings:
        """Whatever the nodes could be folded for."""
        return Foldings(self.prices)

    @cached_property
    def _any_bound(self) -> Bound:
        """Of all foldings."""
        return self.foldings.bound(self.search, self.deadline)

    @property
    def _looking(self) -> Deadline:
        """For what only looks for placements: it leaves the time that pricing one takes."""
        return self.deadline.leaving(HOLDING_MARGIN * self._holding_seconds)

    def _with_links(self, found: Plan, levels: Sequence[int]) -> Planned:
        """The placement found with its links and homes priced in, and others found with these homes and some reserve,
        where that costs throughput; the fastest.  If none holds: the last, with all folded for a slower level."""
        best = self._holding(found, found)
        last = placed = found
        try:
            for share in RESERVES:
                # larger reserves only make it slower once a placement keeps the pace it was found at
                kept = max(found.cycles_per_frame, placed.cycles_per_frame) * KEPT_RATIO
                if best is not None and best.plan.cycles_per_frame <= kept:
                    break
                found_with_reserve = self._with_reserve(last, levels, share)
                if found_with_reserve is None:
                    break
                last = placed = found_with_reserve
                best = faster(best, self._holding(placed, found))
        except Ended:
            # no time to look for others; what is left is for pricing
            if best is None and self.deadline.over:
                raise
        return best or self._at_slower_levels(last, levels, found)

    def _holding(self, plan: Plan, found: Plan) -> Planned | None:
        """The placement of a plan with its links and homes, engines folded as it says, if it holds."""
        choices, began = plan_choices(plan), self.deadline.spent_seconds
        try:
            return self.fixed(places_of(plan), plan_pace(plan).folds, memory_homes(choices), found, explain=False)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return None
        finally:
            self._holding_seconds = max(self._holding_seconds, self.deadline.spent_seconds - began)

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
        priced = []
        for cycles in levels:
            with suppress(FoldingError):
                priced.append(self.prices.level(cycles, homes, None, deadline=self._looking))
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

        ``folds``: node -> cycles a frame that it is folded for.
        ``homes``: where memories of nodes lie at first that aren't on chip; the plan may say otherwise.
        ``explain``: whether an `InfeasibleError` is to name the constraints at fault."""
        search = replace(self.search, time_limit_seconds=None, explain=explain)
        for free in [True] * HOME_ROUNDS + [False]:
            pace = Pace.of(move_memories(self.graph, homes), folds, self.prices.parts)
            level = self.prices.level(pace.interval, homes, assignment, free, folds, self.deadline)
            # network ports are in the prices of their nodes
            instance = self.prices.of_levels([level], self.prices.links())
            plan = plan_from_assignment(instance, assignment, search, self.deadline)
            wanted = memory_homes(plan_choices(plan))
            if wanted == homes:
                break
            homes = wanted
        self._check_memories(plan, level)
        self.deadline.check()
        return Planned(
            with_rate(plan if found is None else with_bound(plan, found), self.graph, self.cluster), instance
        )

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


def _standing(state: SearchProgress) -> str:
    """Where a search stands: the best plan so far, the bound, the gap between them."""
    bound = f"{rate_text(state.bound_fps)} fps"
    if state.throughput_fps is None or state.gap is None:
        return f"{state.stage}: no plan yet, at most {bound}"
    return f"{state.stage}: {rate_text(state.throughput_fps)} of at most {bound}, gap {state.gap:.2%}"


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
