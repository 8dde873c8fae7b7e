"""Relays on shortcuts, where free hops would make a faster plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Role
from dagtrain.passes.insert_relays import relay_of, shortcuts
from dagtrain.planning.carry import carried_over, places_of
from dagtrain.planning.levels import LEAST_RATIO
from dagtrain.planning.problem import Problem
from dagtrain.planning.results import Found
from dagtrain.planning.searcher import Searcher
from hdl.errors import InfeasibleError, OutOfTimeError
from hdl.tensor import Kind
from placement.problem.deadline import Ended
from placement.problem.plan import Plan
from placement.search.search import Solver

# a relay stands on neither end's device
LEAST_RELAY_DEVICES = 3


def places_for_relays(problem: Problem) -> tuple[str, ...]:
    """The edges on which relays may be of use: shortcuts, where there are devices enough."""
    few = len(problem.cluster.devices) < LEAST_RELAY_DEVICES
    return () if few or problem.search.solver is Solver.LITERAL else shortcuts(problem.graph)


def with_relays(searcher: Searcher, found: Found) -> tuple[Searcher, Found] | None:
    """A searcher of the graph with relays on shortcuts, and what it finds, where that is faster; else None.

    Relays cost ports and the time to price them, so they are tried only where free hops would help.  Bounds of
    ``found`` don't speak of them, so it doesn't matter how close it is to its own."""
    graph, levels = searcher.problem.graph, found.levels
    edges = places_for_relays(searcher.problem)
    if not edges:
        return None
    if not _hops_bind(searcher, found, edges):
        return None
    places = places_of(found.plan)
    beside = {relay_of(edge): places[graph.consumers[edge][0][0].name] for edge in edges}
    try:
        relayed = searcher.with_relays(edges)
        plan = relayed.find(levels, searcher.quick, found.plan, beside)
        plan = (relayed := _without_idle(relayed, plan)).find(levels, searcher.quick, plan)
    except Ended:
        raise
    except (InfeasibleError, OutOfTimeError):
        return None
    faster = plan.cycles_per_frame * LEAST_RATIO <= found.plan.cycles_per_frame
    return (relayed, replace(found, plan=plan)) if faster else None


def without_idle_relays(searcher: Searcher, found: Found) -> tuple[Searcher, Found]:
    """A searcher without the relays that add no hop in a placement found, and what it finds, if that is no slower."""
    fewer = _without_idle(searcher, found.plan)
    if fewer is searcher:
        return searcher, found
    try:
        plan = fewer.find(found.levels, fewer.glance, found.plan)
    except Ended:
        raise
    except (InfeasibleError, OutOfTimeError):
        return searcher, found
    slower = plan.cycles_per_frame > found.plan.cycles_per_frame
    return (searcher, found) if slower else (fewer, replace(found, plan=plan))


def _without_idle(searcher: Searcher, plan: Plan) -> Searcher:
    """One of the graph without the relays that stand on a device of either of their ends: they add no hop."""
    graph, places = searcher.problem.graph, places_of(plan)
    idle = [
        node.inputs["x"]
        for node in graph.nodes
        if node.role is Role.RELAY and places[node.name] in {places[end] for end in _ends(graph, node)}
    ]
    return searcher.without_relays(idle) if idle else searcher


def _ends(graph: Graph, relay: Node) -> tuple[str, str]:
    """The nodes that a relay gets its beats from, and hands them on to."""
    ((consumer, _),) = graph.consumers[relay.outputs["y0"]]
    return graph.producers[relay.inputs["x"]][0].name, consumer.name


def _hops_bind(searcher: Searcher, found: Found, edges: Collection[str]) -> bool:
    """Whether a quick search finds a faster placement if shortcuts may cross as often as they like."""
    instance = searcher.prices.instance(found.levels)
    links = tuple(
        replace(link, kind=Kind.STASH) if edge in edges else link
        for link, (edge, *_) in zip(instance.links, searcher.problem.graph.streams, strict=True)
    )
    relaxed = replace(instance, links=links)
    try:
        plan = searcher.search(relaxed, replace(searcher.glance, start=carried_over(found.plan, relaxed)))
    except Ended:
        raise
    except (InfeasibleError, OutOfTimeError):
        return False
    return plan.cycles_per_frame * LEAST_RATIO <= found.plan.cycles_per_frame
