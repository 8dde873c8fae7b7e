"""Links that carry as they are what a codec has left few bits of."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from dagtrain.graph.ir import Graph, Stage
from dagtrain.passes.apply import graph_pass
from hdl.errors import DagtrainError, Problem
from hdl.layers.capabilities import is_plain, sent_plain


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def plain_links(graph: Graph, names: Collection[str]) -> Graph:
    """The streaming graph in which links carry as it is what the nodes ``names`` make, and all that only hands it on
    (`Compressing`); of others that a codec has left few bits of, in few words.  The values are the same.

    Raises `DagtrainError` that lists names without a node, and nodes that no codec has left few bits of."""
    problems = [Problem("no such node", where=name) for name in sorted(set(names) - set(graph.by_name))]
    found = []
    for node in graph.nodes:
        layer = sent_plain(node.layer, node.name in names)
        if layer is None and node.name in names:
            problems.append(Problem("hands on nothing of a codec", "leave it as it is", node.name))
        found.append(node if layer is None or layer == node.layer else replace(node, layer=layer))
    if problems:
        raise DagtrainError.listing(f"graph {graph.name}", problems)
    return graph.with_nodes(tuple(found))


def plain_nodes(graph: Graph) -> Iterator[str]:
    """Nodes whose values links carry as they are, though a codec has left few bits of them."""
    return (node.name for node in graph.nodes if is_plain(node.layer))
