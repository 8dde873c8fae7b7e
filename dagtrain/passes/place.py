"""Placing: every node gets a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagtrain.graph.ir import Graph, PlacedGraph, Stage
from dagtrain.passes.apply import graph_pass


@graph_pass(Stage.FOLDED, Stage.PLACED)
def place(graph: Graph, placed: Mapping[str, str], devices: Sequence[str]) -> PlacedGraph:
    """The folded graph on ``devices``, of which the first has the host's port; ``placed`` maps every node to one."""
    return PlacedGraph(
        graph.name,
        graph.nodes,
        graph.recipe,
        graph.parameters,
        graph.carried,
        graph.queued,
        tuple(devices),
        dict(placed),
    )
