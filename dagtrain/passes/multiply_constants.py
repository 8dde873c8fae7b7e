"""Products with constants on multipliers instead of adders, of the nodes that are told."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from dagtrain.graph.ir import Graph, Stage
from dagtrain.passes.apply import graph_pass
from hdl.errors import DagtrainError, Problem
from hdl.layers.capabilities import on_multipliers


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def multiply_constants(graph: Graph, names: Collection[str]) -> Graph:
    """The streaming graph in which the nodes ``names`` multiply by constants on multipliers (`Scaling`).

    Nodes that do so already stay as they are.  Raises `DagtrainError` that lists names without a node, and nodes that
    multiply by no constant."""
    problems = [Problem("no such node", where=name) for name in sorted(set(names) - set(graph.by_name))]
    nodes = {node.name: node for node in graph.nodes}
    for name in sorted(set(names) & set(nodes)):
        layer = on_multipliers(nodes[name].layer)
        if layer is None:
            problems.append(Problem("multiplies by no constant", "leave it as it is", name))
        else:
            nodes[name] = replace(nodes[name], layer=layer)
    if problems:
        raise DagtrainError.listing(f"graph {graph.name}", problems)
    return graph.with_nodes(tuple(nodes.values()))


def multiplying_nodes(graph: Graph) -> Iterator[str]:
    """Nodes that multiply by constants."""
    return (node.name for node in graph.nodes if on_multipliers(node.layer) is not None)
