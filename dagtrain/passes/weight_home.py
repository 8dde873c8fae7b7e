"""Weights in DRAM: chosen convolutions get engines that stream their weights and the sums of their gradients."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dagtrain.ir import Graph, Node
from dagtrain.passes.fold import weight_groups
from hdl.errors import DagtrainError
from hdl.layers.conv import Conv, ConvError, ConvGradient, WeightHome


def stream_weights(graph: Graph, names: Collection[str]) -> Graph:
    """The training graph in which all engines of the forward convolutions ``names`` have `WeightHome.DRAM`.

    1. The forward and error engine of a named weight group take their weights once a frame.
    2. Its gradient engine keeps its sums outside.
    3. Its update, forks and all other nodes stay as they are.
    Raises `DagtrainError` that lists names that are no convolutions."""
    wrong = sorted(name for name in names if name not in graph.by_name or not _is_forward(graph, name))
    if wrong:
        raise DagtrainError(f"graph {graph.name}: {', '.join(wrong)} can't keep weights in DRAM; name convolutions")
    chosen = {
        node.name
        for group in weight_groups(graph)
        if any(node.name in names for node in group)
        for node in group
        if isinstance(node.layer, Conv | ConvError | ConvGradient)
    }
    return replace(graph, nodes=tuple(_streaming(node) if node.name in chosen else node for node in graph.nodes))


def _streaming(node: Node) -> Node:
    layer = node.layer
    assert isinstance(layer, Conv | ConvError | ConvGradient)
    return replace(node, layer=replace(layer, weights=WeightHome.DRAM))


def _is_forward(graph: Graph, name: str) -> bool:
    return isinstance(graph.by_name[name].layer, Conv)
