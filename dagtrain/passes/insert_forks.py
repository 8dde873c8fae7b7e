"""Makes copies explicit: a stream has one reader, so an edge with several consumers passes through a fork."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from hdl.layers.wiring.fork import Fork
from hdl.tensor import Kind


@graph_pass(Stage.TRAINING, Stage.STREAMING)
def insert_forks(graph: Graph) -> Graph:
    """The streaming graph of a training graph.

    1. An edge with several consumers gets the fork ``<edge>.fork``; its source ``y<i>``, edge
       ``<edge>.fork.y<i>``, goes to the i-th consumer in the order of nodes and has that consumer's kind.
    2. Every other edge stays."""
    forks: dict[str, Node] = {}
    inputs = {node.name: dict(node.inputs) for node in graph.nodes}
    for edge, uses in graph.consumers.items():
        if len(uses) < 2:
            continue
        forks[edge] = _fork(edge, graph, tuple(sink.tensor.kind for _, sink in uses))
        for index, (node, sink) in enumerate(uses):
            inputs[node.name][sink.name] = forks[edge].outputs[f"y{index}"]
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(replace(node, inputs=inputs[node.name]))
        nodes.extend(forks[edge] for edge in node.outputs.values() if edge in forks)
    return graph.with_nodes(tuple(nodes))


def _fork(edge: str, graph: Graph, kinds: tuple[Kind, ...]) -> Node:
    tensor = graph.tensor(edge)
    name, maker = f"{edge}.fork", graph.producers[edge][0]
    layer = Fork(shape=tensor.shape, x_fixed=tensor.fixed, kinds=kinds)
    outputs = {f"y{index}": f"{name}.y{index}" for index in range(len(kinds))}
    return Node(name, layer, {"x": edge}, outputs, role=Role.FORK, layer_of=maker.layer_of, whole=maker.whole)
