"""Ragged tiles among those that folding chooses from."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Stage
from dagtrain.passes.apply import graph_pass
from hdl.layers.capabilities import with_ragged_tiles


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def ragged_tiles(graph: Graph) -> Graph:
    """The streaming graph whose engines may be folded for tiles that do not divide their filters, where they have such:
    `hdl.layers.folding.ragged_lanes` says which ones are worth it."""
    return graph.with_nodes(tuple(replace(node, layer=with_ragged_tiles(node.layer)) for node in graph.nodes))
