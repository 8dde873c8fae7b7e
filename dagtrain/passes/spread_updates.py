"""Gives the gradients and new weights of a batch more frames' time, so that updates have fewer lanes, or less than a
frame's, so that gradient engines rest less."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Stage
from dagtrain.passes.apply import graph_pass
from hdl.errors import DagtrainError
from hdl.layers.capabilities import updating_within


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def spread_updates(graph: Graph, frames: float) -> Graph:
    """The streaming graph whose gradients and new weights take the time of so many frames of a batch on their way,
    or of a part of one.

    Gradient engines rest while their sums leave, which `dagtrain.schedule.batch_time` counts.  Raises `DagtrainError`
    unless that is some time, and a batch has so many frames."""
    if not 0 < frames <= graph.recipe.batch:
        raise DagtrainError(
            f"updates can't take the time of {frames:g} frames",
            f"give them at most {graph.recipe.batch}, the frames of a batch, and more than 0",
        )
    return graph.with_nodes(tuple(replace(node, layer=updating_within(node.layer, frames)) for node in graph.nodes))
