"""Where the large memories of layers live: weights, sums of gradients, optimiser state on chip, in DRAM or in both."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.fold import weight_groups
from hdl.errors import DagtrainError, Problem
from hdl.layers.base import Layer
from hdl.layers.storage import Home

# where a memory may lie that no other node has
OWN = (Home.ON_CHIP, Home.PARKED, Home.DRAM)


def own_homes(layer: Layer) -> dict[Home, Layer]:
    """A layer with its memory at every home that needs no other node; as it is, where it has a node for that."""
    if layer.is_store or any(port.tensor.kind.of_store for port in (*layer.sinks, *layer.sources)):
        return {Home.ON_CHIP: layer}
    return {home: variant for home in OWN if (variant := layer.at(home)) is not None}


def keep_in_dram(graph: Graph, names: Collection[str]) -> Graph:
    """The streaming graph in which the nodes ``names`` keep their large memory in DRAM; see `move_memories`."""
    return move_memories(graph, dict.fromkeys(names, Home.DRAM))


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def move_memories(graph: Graph, homes: Mapping[str, Home]) -> Graph:
    """The streaming graph in which the large memories of these nodes live where ``homes`` says (`Layer.at`).

    Raises `DagtrainError` that lists names without a node, and nodes without such a memory."""
    problems = [Problem("no such node", where=name) for name in sorted(set(homes) - set(graph.by_name))]
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in homes:
            moved = node.layer.at(homes[node.name])
            if moved is None:
                problems.append(Problem("has no memory that could lie in DRAM", "leave it on chip", node.name))
            else:
                node = replace(node, layer=moved)
        nodes.append(node)
    if problems:
        raise DagtrainError.listing(f"graph {graph.name}", problems)
    return replace(graph, nodes=tuple(nodes))


def sharing_weights(graph: Graph, names: Collection[str]) -> frozenset[str]:
    """All nodes of the weight groups of ``names`` that could keep a memory in DRAM."""
    return frozenset(
        node.name
        for group in weight_groups(graph)
        if any(node.name in names for node in group)
        for node in group
        if node.layer.at(Home.DRAM) is not None
    )
