"""Puts counters behind chosen sources, which tell while training goes on how often a format was too small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from dagtrain.graph.ir import Graph, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.formats import free_sources
from dagtrain.passes.widths import near
from hdl.errors import DagtrainError, Problem
from hdl.layers.wiring.saturation_counter import SaturationCounter


class CounterError(DagtrainError):
    """Tensors to count that are not there."""


@graph_pass(Stage.TRAINING, Stage.TRAINING)
def count_saturations(graph: Graph, patterns: Sequence[str]) -> Graph:
    """The training graph with a counter ``<edge>.saturations`` behind each edge whose name fits a pattern.

    Edges are those whose format is chosen (`free_sources`): where the format follows from another edge, nothing is cut
    off that was not before.  All readers read behind the counter.  Raises `CounterError` for a pattern that fits no
    such edge."""
    edges = [node.outputs[port] for node in graph.nodes for port in free_sources(node.layer) if port in node.outputs]
    chosen = [edge for edge in edges if any(fnmatchcase(edge, pattern) for pattern in patterns)]
    problems = [
        Problem(
            f"--count-saturations {pattern}: no tensor with a format of its own has such a name", near(pattern, edges)
        )
        for pattern in patterns
        if not any(fnmatchcase(edge, pattern) for edge in edges)
    ]
    if problems:
        raise CounterError.listing("", problems)
    counters = {edge: _counter(graph, edge) for edge in chosen}
    behind = {edge: node.outputs["y0"] for edge, node in counters.items()}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = {sink: behind.get(edge, edge) for sink, edge in node.inputs.items()}
        nodes.append(replace(node, inputs=inputs))
        nodes.extend(counters[edge] for edge in node.outputs.values() if edge in counters)
    return graph.with_nodes(tuple(nodes))


def _counter(graph: Graph, edge: str) -> Node:
    maker, port = graph.producers[edge]
    layer = SaturationCounter(shape=port.tensor.shape, x_fixed=port.tensor.fixed, kinds=(port.tensor.kind,))
    name = f"{edge}.saturations"
    role = Role.COUNTER
    return Node(name, layer, {"x": edge}, {"y0": f"{name}.y0"}, {}, role, maker.layer_of, maker.whole)
