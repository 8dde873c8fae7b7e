"""Updates on the devices of their gradient engines, where training is faster with them there.

A gradient engine rests until its sums have left, over a port that streams of frames keep busy.  New weights have fewer
bits than sums, and go only where an engine reads them.  A search weighs both alike, a batch's part of a frame, which is
next to nothing.  So a placement found is looked at once more: with the updates of large tensors beside their gradient
engines, where these have the room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.planning.carry import places_of
from dagtrain.planning.choices import memory_homes, plan_choices, plan_pace
from dagtrain.planning.levels import LEAST_RATIO
from dagtrain.planning.realise import Realiser
from dagtrain.planning.results import Planned, with_binding
from dagtrain.planning.searcher import Searcher
from hdl.errors import FoldingError, InfeasibleError, OutOfTimeError
from placement.problem.cluster import Cluster
from placement.problem.deadline import Ended
from placement.problem.plan import Plan
from placement.problem.settings import Solver

# part of a frame's time that sums take at least over the slower port, with nothing else there, to be worth a move
LEAST_FRAMES = Fraction(1, 4)
# placements that are priced and timed anew, at most
MOST_TRIES = 6


def with_updates_nearer(searcher: Searcher, planned: Planned) -> Planned:
    """The plan with updates where their gradient engines are, all that are far or some of them, if it trains faster;
    the literal solver's, a baseline, and one whose nodes are to stand together stay as they are.

    Bounds of the search hold for it as well."""
    plan, problem, deadline = planned.plan, searcher.problem, searcher.time.deadline
    literal = problem.search.solver is Solver.LITERAL
    if literal or problem.search.same_device or plan.cycles_per_frame * LEAST_RATIO > plan.training_cycles:
        return planned
    kept, moved = planned, list[Mapping[str, str]]()
    # the next one last
    groups = [far_updates(problem.graph, problem.cluster, plan, problem.pins)]
    for _ in range(MOST_TRIES):
        if not groups or not groups[-1] or deadline.over:
            break
        group = groups.pop()
        held = _held(searcher, plan, [*moved, *group])
        if held is not None and held.plan.training_cycles < kept.plan.training_cycles:
            kept, moved = replace(held, searched=planned.searched), [*moved, *group]
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    if moved:
        searcher.warn(
            f"{len(moved)} updates were moved to their gradient engines: training is "
            f"{float(plan.training_cycles / kept.plan.training_cycles - 1):.1%} faster for it"
        )
    return kept


def far_updates(graph: Graph, cluster: Cluster, plan: Plan, pins: Mapping[str, str]) -> list[Mapping[str, str]]:
    """An update, with the fork of its weights beside it, -> the device of its gradient engine, which is another one; of
    large tensors, the largest first."""
    places = places_of(plan)
    rates = {device.name: device.board.link_bits_per_s for device in cluster.devices}
    found: list[tuple[Fraction, dict[str, str]]] = []
    for _edge, producer, source, update, _sink in graph.streams:
        ends = places[producer.name], places[update.name]
        if producer.role is not Role.GRADIENT or update.role is not Role.UPDATE or ends[0] == ends[1]:
            continue
        frames = Fraction(source.tensor.bits * cluster.clock_hz) / min(rates[end] for end in ends)
        frames /= plan.cycles_per_frame
        nodes = [node for node in (update, *_forks(graph, update)) if places[node.name] == ends[1]]
        if frames >= LEAST_FRAMES and not any(node.name in pins for node in nodes):
            found.append((frames, {node.name: ends[0] for node in nodes}))
    found.sort(key=lambda each: (-each[0], *each[1]))
    return [moves for _, moves in found]


def _forks(graph: Graph, update: Node) -> list[Node]:
    """Those behind an update."""
    users = [user for edge in update.outputs.values() for user, _ in graph.consumers.get(edge, ())]
    return [user for user in users if user.role is Role.FORK]


def _held(searcher: Searcher, plan: Plan, moves: Sequence[Mapping[str, str]]) -> Planned | None:
    """The placement of a plan with these nodes elsewhere, priced and timed anew; None where it does not hold."""
    made, homes = searcher.of_plan(plan, searcher.problem), memory_homes(plan_choices(plan))
    places = places_of(plan)
    for move in moves:
        places |= move
    try:
        return with_binding(Realiser(made).fixed(places, plan_pace(plan).folds, homes, plan, explain=False), plan)
    except (Ended, InfeasibleError, OutOfTimeError, FoldingError):
        return None
