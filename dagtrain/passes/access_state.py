"""State that is loaded and dumped by streams instead of standing in images of memories."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from hdl.errors import DagtrainError, Problem
from hdl.layers.base import Layer
from hdl.layers.capabilities import Batched, Counting, with_loaded_state


@graph_pass(Stage.FOLDED, Stage.FOLDED)
def access_state(graph: Graph) -> Graph:
    """The folded graph whose layers get version 0 of weights and all state by streams (docs/state.md).

    Counts of saturations begin anew.  Raises `DagtrainError` that lists every node whose state can't be loaded."""
    problems: list[Problem] = []
    nodes: list[Node] = []
    for node in graph.nodes:
        layer = with_loaded_state(node.layer)
        why = "" if node.role is Role.COUNTER else _kept_back(layer)
        if why:
            problems.append(Problem(why, where=node.name))
        nodes.append(replace(node, layer=layer))
    if problems:
        raise DagtrainError.listing(
            f"graph {graph.name} has state that cannot be loaded by a stream", problems, lines=True
        )
    return replace(graph, nodes=tuple(nodes))


def _kept_back(layer: Layer) -> str:
    """Why a layer's state can't be loaded; "" if it can, or if there is none."""
    dealt = layer.recipe.dealt if isinstance(layer, Batched) else None
    if dealt is not None and dealt.staleness and not dealt.all_get_some(dealt.staleness):
        # a copy without stale frames would read no frame with the first of the two versions that are loaded
        return (
            f"is one of {dealt.copies} copies, some of which get none of a batch's {dealt.staleness} stale frames; "
            f"give the recipe a staleness of 0, or of {dealt.copies} or more"
        )
    if layer.is_store:
        # what comes there comes from an update, which loads it; frozen weights stay those of the image, as on chip
        return ""
    if layer.not_accessed:
        return layer.not_accessed
    keeps = any(memory.is_state for memory in layer.memories()) and not layer.held_parameters
    if layer.accessed or not (keeps or any(ring.preload for ring in layer.rings) or isinstance(layer, Counting)):
        return ""
    return f"a {type(layer).__name__} has no port for what it keeps from batch to batch"
