"""Lets norms advance the statistics of few channels at a time, by a unit that the others wait for."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Stage
from dagtrain.passes.apply import graph_pass
from hdl.layers.capabilities import sharing_statistics


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def share_statistics(graph: Graph) -> Graph:
    """The streaming graph whose norms are folded for the fewest channels at a time in the unit that works once a frame
    and channel, as far as their pace leaves time for."""
    return graph.with_nodes(tuple(replace(node, layer=sharing_statistics(node.layer)) for node in graph.nodes))
