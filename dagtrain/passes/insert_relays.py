"""Relays: a shortcut may go by way of a device that none of its ends is on, so that branches meet after equal hops.

Activations and errors that join must have crossed the network equally often.  A shortcut beside a long branch has no
layer of its own that could stand in between, so it crosses once at most, and so does the branch beside it.  A relay is
a layer that hands on every beat; placed elsewhere, the shortcut crosses twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import networkx as nx

from dagtrain.graph.ir import Graph, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from hdl.layers.wiring.fork import Fork


def shortcuts(graph: Graph) -> tuple[str, ...]:
    """Edges of a streaming graph beside which a longer way leads from their producer to their consumer, along streams
    whose hops must match."""
    order = nx.DiGraph()
    for _edge, producer, _source, consumer, sink in graph.edges:
        if sink.tensor.kind.hops_must_match:
            order.add_edge(producer.name, consumer.name)
    found = []
    for edge, producer, _source, consumer, sink in graph.edges:
        if not sink.tensor.kind.hops_must_match or order.in_degree(consumer.name) < 2:
            continue
        others = (node for node in order.predecessors(consumer.name) if node != producer.name)
        if any(nx.has_path(order, producer.name, other) for other in others):
            found.append(edge)
    return tuple(found)


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def insert_relays(graph: Graph, edges: Collection[str]) -> Graph:
    """The streaming graph with a relay `relay_of(edge)` on each of these edges."""
    if not edges:
        return graph
    relays = {edge: _relay(graph, edge) for edge in edges}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = {sink: relays[edge].outputs["y0"] if edge in relays else edge for sink, edge in node.inputs.items()}
        nodes.append(replace(node, inputs=inputs))
        nodes.extend(relays[edge] for edge in node.outputs.values() if edge in relays)
    return graph.with_nodes(tuple(nodes))


def remove_relays(graph: Graph, edges: Collection[str]) -> Graph:
    """The streaming graph without the relays on these edges."""
    if not edges:
        return graph
    names = {relay_of(edge): edge for edge in edges}
    ends = {node.outputs["y0"]: names[node.name] for node in graph.nodes if node.name in names}
    return graph.with_nodes(
        tuple(
            replace(node, inputs={sink: ends.get(edge, edge) for sink, edge in node.inputs.items()})
            for node in graph.nodes
            if node.name not in names
        )
    )


def with_relays_on(graph: Graph, edges: Collection[str]) -> Graph:
    """The streaming graph with relays on these edges and on no others, whichever it has."""
    there = {node.inputs["x"] for node in graph.nodes if node.role is Role.RELAY}
    kept = remove_relays(graph, there.difference(edges))
    return insert_relays.run(kept, [edge for edge in edges if edge not in there])


def relay_of(edge: str) -> str:
    """The name that the relay on an edge gets."""
    return f"{edge}.relay"


def _relay(graph: Graph, edge: str) -> Node:
    ((_consumer, sink),) = graph.consumers[edge]
    tensor = sink.tensor
    name, maker = relay_of(edge), graph.producers[edge][0]
    layer = Fork(shape=tensor.shape, x_fixed=tensor.fixed, kinds=(tensor.kind,))
    outputs = {"y0": f"{name}.y0"}
    return Node(name, layer, {"x": edge}, outputs, role=Role.RELAY, layer_of=maker.layer_of, whole=maker.whole)
