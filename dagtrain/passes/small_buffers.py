"""Small buffers of maps in the engines of convolutions."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Stage
from dagtrain.passes.apply import graph_pass
from hdl.layers.capabilities import with_small_buffers


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def small_buffers(graph: Graph) -> Graph:
    """The streaming graph whose engines are folded for few block memories of the maps that they store, and store parts
    of rows where no result sees more than a pixel."""
    return graph.with_nodes(tuple(replace(node, layer=with_small_buffers(node.layer)) for node in graph.nodes))
