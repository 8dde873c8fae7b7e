"""Where the large memories of layers live: chosen nodes keep weights, sums of gradients or optimiser state in DRAM."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dagtrain.ir import Graph, Node
from dagtrain.passes.fold import weight_groups
from hdl.errors import DagtrainError


def keep_in_dram(graph: Graph, names: Collection[str]) -> Graph:
    """The training graph in which the nodes ``names`` keep their large memory outside (`Layer.in_dram`).

    Raises `DagtrainError` that lists names without a node, and nodes without such a memory."""
    problems = [f"{name}: no such node" for name in sorted(set(names) - set(graph.by_name))]
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in names:
            outside = node.layer.in_dram()
            if outside is None:
                problems.append(f"{node.name}: has no memory that could lie in DRAM; leave it on chip")
            else:
                node = replace(node, layer=outside)
        nodes.append(node)
    if problems:
        raise DagtrainError(f"graph {graph.name}: " + "; ".join(problems))
    return replace(graph, nodes=tuple(nodes))


def sharing_weights(graph: Graph, names: Collection[str]) -> frozenset[str]:
    """All nodes of the weight groups of ``names`` that could keep a memory in DRAM."""
    return frozenset(
        node.name
        for group in weight_groups(graph)
        if any(node.name in names for node in group)
        for node in group
        if node.layer.in_dram() is not None
    )
