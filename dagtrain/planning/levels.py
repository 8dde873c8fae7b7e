"""Levels of T, cycles a frame, that are worth pricing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import fold_graph
from dagtrain.planning.choices import plan_choices
from dagtrain.planning.clocks import paces
from dagtrain.planning.priced import PricedLevel
from dagtrain.planning.problem import SLOWEST, Problem
from hdl.errors import FoldingError
from placement.problem.cluster import Board, Cluster
from placement.problem.instance import RESOURCES
from placement.problem.plan import Plan

# steps in which the T is looked for at which multipliers alone would fit
LADDER_STEP = 1.1
# two levels that differ by less are one
LEAST_RATIO = 1.005
# of more multipliers than this circuits are huge: those of a level take an hour to elaborate
HUGE_MULTIPLIERS = 100_000
# steps by which a placement may slow down to make room for its network ports
LINK_STEPS = 8
SLOWER_RATIO = 1.03
# and further ones to levels that were priced
FAR_RATIO = 1.2
# bits of operands, and such multipliers in a DSP block of Intel's parts: the most of any part
OPERANDS = (16, 16)
MULTIPLIERS_PER_DSP = 2


def least_cycles(problem: Problem) -> int:
    """The least T at which the multipliers of all engines fit the cluster.

    Raises `FoldingError` where layers can be folded for no T."""
    return _first_cycles(problem, _multipliers_there(problem))


def fastest_cycles(problem: Problem) -> int:
    """The least T at which all engines can be folded, but no faster than multipliers allow that never idle.

    Raises `FoldingError` where layers can be folded for no T."""
    return _first_cycles(problem, math.inf)


def _first_cycles(problem: Problem, most: float) -> int:
    """The least T in steps at which all engines can be folded with so many multipliers at most."""
    cycles = max(1, math.ceil(macs_per_frame(problem.graph) / max(1, _multipliers_there(problem))))
    while True:
        try:
            if multipliers(problem.graph, cycles) <= most:
                return cycles
        except FoldingError:
            if cycles > SLOWEST:
                raise
        if cycles > SLOWEST:
            return cycles
        cycles = math.ceil(cycles * LADDER_STEP)


def _multipliers_there(problem: Problem) -> float:
    """Multipliers that a plan may use, each as many as it is worth at the cluster's clock."""
    boards, clock_hz = {device.name: device.board for device in problem.cluster.devices}, problem.cluster.clock_hz
    return sum(
        _multipliers_in_block(boards[device.name]) * device.dsp * ((device.clock_hz or clock_hz) / clock_hz)
        for device in problem.devices
    )


def _multipliers_in_block(board: Board) -> int:
    """Of 16-bit operands, in a DSP block."""
    return MULTIPLIERS_PER_DSP // board.part.dsp_blocks({OPERANDS: MULTIPLIERS_PER_DSP})


def macs_per_frame(graph: Graph) -> float:
    """Multiplications of a frame of the training."""
    return float(sum(node.layer.macs * graph.busy(node.name) for node in graph.nodes))


def never_idle_fps(graph: Graph, plan: Plan, cluster: Cluster) -> float | None:
    """Frames/s of the training if every multiplier of 16-bit operands that a plan may use multiplied in every cycle of
    its device; None where nothing is multiplied."""
    boards = {device.name: device.board for device in cluster.devices}
    a_second = 0
    for use in plan.devices:
        board = boards[use.device]
        a_second += _multipliers_in_block(board) * use.dsp_capacity * board.clock_hz
    macs = macs_per_frame(graph)
    return a_second / macs if macs else None


def multipliers(graph: Graph, cycles: int) -> int:
    """Multipliers of all engines at one T: what no placement can do without.

    Raises `FoldingError` when it is too fast for a layer."""
    return sum(node.layer.multipliers for node in fold_graph.run(graph, cycles).nodes)


def predicted_cycles(slow: int, level: PricedLevel, problem: Problem) -> int:
    """About the T at which blocks run out, if what every node needs at least at the level ``slow``, priced at the
    cluster's clock, grows with its pace."""
    shares: list[float] = []
    for resource in RESOURCES:
        capacity = problem.capacity(resource)
        least = sum(
            min(int(getattr(c, resource)) for cs in parts.values() for c in cs) for parts in level.offers.values()
        )
        shares.append(least / max(1, capacity))
    return math.ceil(slow * min(1.0, max(shares)))


def slower(cycles: int, levels: Sequence[int]) -> list[int]:
    """``cycles``, the slower ones among ``levels``, small steps, and larger ones to the slowest of these levels."""
    steps = [math.ceil(cycles * SLOWER_RATIO**step) for step in range(LINK_STEPS)]
    while steps[-1] * FAR_RATIO < max(levels, default=0):
        steps.append(math.ceil(steps[-1] * FAR_RATIO))
    return sorted({*steps, *(level for level in levels if level > cycles)})


def between(low: int, high: int, count: int, known: Sequence[int] = ()) -> list[int]:
    """New levels from a bound to below a plan, evenly spaced in ratio; none below the slowest known to be faster, nor
    one that hardly differs from the plan."""
    below = max((level for level in known if level < high), default=low)
    low = max(low - 1, below, 1)
    if high - low <= 1 or high / low < LEAST_RATIO:
        return []
    step = (high / low) ** (1 / (count + 1))
    found = {round(low * step**index) for index in range(1, count + 1)}
    return sorted(level for level in found if low < level and level * LEAST_RATIO <= high)


def taken(levels: Sequence[int], plan: Plan, cluster: Cluster) -> list[int]:
    """Those that some node is folded for in a plan."""
    folded = {choice.cycles for choice in plan_choices(plan).values()}
    return [level for level in levels if not folded.isdisjoint(paces(cluster, level))]


def useful(levels: Sequence[int], best: Plan, cluster: Cluster) -> list[int]:
    """Those that a faster plan may take, and those that the plan takes: a search goes on from there."""
    own = taken(levels, best, cluster)
    return [level for level in levels if level <= best.cycles_per_frame or level in own]
