"""Devices of unlike clocks: what so many cycles of the cluster's clock are at each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from placement.problem.cluster import Cluster
from placement.problem.plan import Plan


def own_cycles(cycles: int, period: Fraction | None) -> int:
    """Cycles that last as long as so many of the cluster's clock, at most, of a device whose cycle lasts ``period`` of
    those; None: one."""
    return cycles if period is None else max(1, int(cycles / period))


def periods_of(cluster: Cluster, placed: Mapping[str, str]) -> dict[str, Fraction]:
    """Node -> what a cycle of its device lasts in cycles of the cluster's clock, of nodes on devices of another clock;
    ``placed``: node -> device."""
    return {node: cluster.periods[device] for node, device in placed.items() if device in cluster.periods}


def plan_periods(plan: Plan) -> dict[str, Fraction]:
    """The same of a plan."""
    clocks = {device.device: device.clock_hz for device in plan.devices if device.clock_hz}
    return {item.item: Fraction(plan.clock_hz, clocks[item.device]) for item in plan.items if item.device in clocks}


def paces(cluster: Cluster, cycles: int) -> tuple[int, ...]:
    """Cycles a frame that last as long as so many of the cluster's clock, at each clock that devices have."""
    periods = (cluster.periods.get(device.name) for device in cluster.devices)
    return tuple(dict.fromkeys(own_cycles(cycles, period) for period in periods))


def folds_at(cluster: Cluster, cycles: int, assignment: Mapping[str, str], nodes: Iterable[str]) -> dict[str, int]:
    """Node -> cycles a frame of its device that last as long as so many of the cluster's clock."""
    return {node: own_cycles(cycles, cluster.periods.get(assignment[node])) for node in nodes}
