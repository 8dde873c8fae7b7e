"""Heads of a network, where class scores meet a loss: the main one, and auxiliary ones that help to train it."""

from __future__ import annotations

from dagtrain.graph.ir import Graph, GraphError, Node
from hdl.layers.loss.choice import loss_of
from hdl.recipe import Recipe
from hdl.tensor import Kind


def loss_node(name: str, recipe: Recipe, scores: str, classes: int, *, auxiliary: bool = False) -> Node:
    """The loss on an edge of class scores; what an auxiliary one tells of itself has no edge, since nobody reads it."""
    loss = loss_of(recipe, classes, auxiliary=auxiliary)
    kept = [port.name for port in loss.sources if not (auxiliary and port.tensor.kind is Kind.STASH)]
    return Node(name, loss, {"x": scores}, {port: f"{name}.{port}" for port in kept})


def main_loss(graph: Graph) -> Node:
    """The loss of the main head in a training graph: the one whose results the host gets.

    Raises `GraphError` unless there is one such."""
    served = [node.layer_of for node in graph.nodes if not node.layer.sources]
    if len(served) != 1:
        raise GraphError(f"graph {graph.name} sends results of {served or 'nothing'} to the host", "one loss must")
    return graph.by_name[served[0]]
