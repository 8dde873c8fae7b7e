"""From a training graph and a cluster to a plan: costs of every layer off its elaborated circuit, then the search.

The cost of a node at T cycles a frame (`dagtrain.planning.costs`) depends on what only a placement tells.  So planning
goes in two steps: search at a ladder of T with estimates (`dagtrain.planning.ladder`), then price the placement found
until it holds (`dagtrain.planning.realise`); with relays and on fewer devices where that may be faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from dagtrain.graph.ir import Graph
from dagtrain.planning.best import Best, GoalReached
from dagtrain.planning.carry import carried_over, places_of
from dagtrain.planning.choices import plan_choices, relayed
from dagtrain.planning.codec import with_codec_where_it_gains
from dagtrain.planning.fewer import on_fewer_devices
from dagtrain.planning.frame_sizes import with_best_mtu
from dagtrain.planning.huge import is_huge, thorough
from dagtrain.planning.ladder import Ladder, NoRoomError
from dagtrain.planning.levels import LEAST_RATIO, useful
from dagtrain.planning.nearer import with_updates_nearer
from dagtrain.planning.problem import Problem
from dagtrain.planning.realise import Realiser
from dagtrain.planning.relays import with_relays, without_idle_relays
from dagtrain.planning.resting import try_without_rests
from dagtrain.planning.results import Planned, Searched, Start
from dagtrain.planning.searcher import Searcher
from dagtrain.planning.timetable import Timetable
from dagtrain.planning.together import begun_together
from dagtrain.planning.whole_layers import try_whole_layers
from dagtrain.progress import Progress
from hdl.costs.estimate import Estimator
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from placement.problem.cluster import Cluster
from placement.problem.deadline import Deadline, Ended
from placement.search.search import SearchOptions


class Planner:
    """Plans one graph on one cluster."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        estimator: Estimator,
        search: SearchOptions,
        pins: Mapping[str, str],
        progress: Progress,
        deadline: Deadline | None = None,
        multiply: bool = False,
        deal: bool = False,
        choose_codec: bool = False,
        patient: bool = True,
        first_fps: float | None = None,
    ) -> None:
        self.problem = Problem(
            graph, cluster, search, pins, multiply, deal, choose_codec, patient=patient, first_fps=first_fps
        )
        # what a user should know of how plans were found
        self.warnings: list[str] = []
        time = Timetable(deadline or Deadline())
        self.searcher = Searcher.of(self.problem, estimator, progress, time, self.warnings.append)

    def run(
        self,
        start: Start | None = None,
        keep: Callable[[Planned], None] = lambda _: None,
        known_cycles: Fraction | None = None,
    ) -> Planned:
        """Search from a slow level to the fastest that may fit, refine, price with links; the best plan so far when
        the deadline ends that.

        ``start``: gone on from if it is of the same problem, else not looked at.
        ``keep``: told of every plan that holds and is faster than the one before.
        ``known_cycles``: cycles a frame of training with another plan that there is of the network: slower ones are of
        no use.

        Raises `InfeasibleError` naming what to relax (`NoRoomError` where slower levels are left to others), or
        `OutOfTimeError`, which is `Ended` at the deadline."""
        planned = start.planned if start is not None else None
        best = Best(self.problem.fast_enough, self.problem.reached, keep, known_cycles, planned)
        edges = relayed(plan_choices(start.plan)) if start is not None else ()
        searcher = replace(self.searcher.with_relays(edges) if edges else self.searcher, best=best)
        # the graph without relays is what is planned: they are of use to one plan or another
        searcher = thorough(searcher, begun=start is not None) if is_huge(searcher.problem) else searcher
        ladder = Ladder(searcher)
        try:
            improve(ladder, start)
        except Ended as end:
            ladder.close()
            if best.planned is None:
                raise _without_plan(searcher, end) from None
        except NoRoomError:
            # the user has another way, and this one's plan of small circuits is much slower
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError) as error:
            # the last placement found may hold at no level
            if best.planned is None:
                raise
            searcher.warn(f"warning: the search ends with an earlier plan: {error}")
        except KeyboardInterrupt:
            # nobody listens to Ctrl-C, or it was pressed too often
            searcher.time.deadline.interrupt()
            if best.planned is None:
                raise
        assert best.planned is not None, "a search that ends has a plan"
        if not self.problem.fast_enough(best.planned.plan):
            raise self.problem.too_slow(best.planned.plan)
        plan, missed = best.planned.plan, best.missed
        if missed is not None and missed.cycles_per_frame * LEAST_RATIO <= plan.cycles_per_frame:
            searcher.warn(missed.text(plan.clock_hz))
        planned = with_best_mtu(self.searcher, with_updates_nearer(self.searcher, best.planned))
        return with_codec_where_it_gains(self.searcher, planned) if self.problem.choose_codec else planned

    def promising(self, than: Searched, beside: Mapping[str, str], known_cycles: Fraction) -> Start | None:
        """Where `run` may go on from if a search finds a faster placement of this graph than that of another graph of
        the same network, at the levels priced there; None if it doesn't.

        ``beside``: devices to begin with of the nodes that the other graph doesn't have.
        ``known_cycles``: cycles a frame of training with the other graph's plan.

        Raises `Ended` at the deadline."""
        searcher = replace(self.searcher, best=Best(known_cycles=known_cycles))
        levels = tuple(useful(than.levels, than.plan, self.problem.cluster))
        try:
            instance = searcher.prices.instance(levels, searcher.time.looking)
            start = carried_over(than.plan, instance, beside)
            near = {**beside, **places_of(than.plan)}
            # it only tells whether to look
            found = searcher.search(instance, replace(searcher.glance, start=start, near=near), bounded=False)
        except Ended:
            raise
        except (InfeasibleError, OutOfTimeError, FoldingError):
            return None
        return Start(found, levels) if found.cycles_per_frame * LEAST_RATIO <= than.plan.cycles_per_frame else None

    def fixed(self, assignment: Mapping[str, str], folds: Mapping[str, int]) -> Planned:
        """The plan of a given placement, node -> device, of nodes folded for so many cycles a frame.

        Raises `InfeasibleError` where it does not hold, or `FoldingError`."""
        return Realiser(self.searcher).fixed(assignment, folds)


def improve(ladder: Ladder, start: Start | None) -> None:
    """One plan after the other, to the end; the searcher's best plan is kept as it goes.

    Raises as `Ladder.climb` does."""
    searcher = last = ladder.searcher
    try:
        found = ladder.climb(start or begun_together(ladder))
        last, found = without_idle_relays(*(with_relays(searcher, found) or (searcher, found)))
        searched = ladder.hold_last(last, found)
    except GoalReached:
        # whole layers and fewer devices are of use all the same: training may be faster there
        searched = searcher.best.searched
    for attempt in (try_whole_layers, try_without_rests):
        with suppress(GoalReached):
            attempt(last, searched)
    if searcher.best.known_cycles is None:
        for fewer in on_fewer_devices(searcher, searched):
            try:
                improve(Ladder(fewer), None)
            except Ended:
                raise
            except (InfeasibleError, OutOfTimeError, FoldingError):
                continue
    searcher.best.conclude(finished=not searcher.time.looking.over)


def _without_plan(searcher: Searcher, end: Ended) -> Ended:
    """What to say when the time was too short for any plan: what it went into, and what should do."""
    problem, prices, time = searcher.problem, searcher.prices, searcher.time
    spent = ", ".join(f"{seconds:.1f} s went into {what}" for what, seconds in time.spent.items() if seconds > 0)
    known, wanted = prices.known_circuits, prices.wanted_circuits
    done = f" ({known} of {wanted} circuits of the first level elaborated)" if known < wanted else ""
    # about what lets a first plan come about: what is left to elaborate at the pace so far, and twice as much again
    # for network ports, the search and pricing its placement, in tens
    rest = time.spent.get("circuits", 0.0) * (wanted - known) / max(1, known)
    sufficient = 10 * math.ceil((3 * (time.deadline.spent_seconds + rest)) / 10)
    return Ended(
        f"{problem.graph.name} on {problem.cluster.name}: {end} before there was a plan: "
        f"{spent or 'none of it was left'}{done}",
        f"--time-limit {sufficient} should do",
    )
