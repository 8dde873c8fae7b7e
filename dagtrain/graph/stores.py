"""What stands in the memories of a graph's nodes: of a store, what the layer whose memory it is says of it."""

from __future__ import annotations

from collections.abc import Mapping

from dagtrain.graph.ir import Graph, Node
from hdl.dram.region import regroup
from hdl.layers.meaning import State
from hdl.layers.store.base import Store


def owner_of(graph: Graph, store: Node) -> Node:
    """The node whose memory a store is."""
    (edge,) = store.outputs.values()
    ((owner, _),) = graph.consumers[edge]
    return owner


def first_images(graph: Graph, node: Node) -> dict[str, list[int]]:
    """The contents of a node's memories, rings, replayed sinks and fetched ports before the first frame."""
    owner = computing_node(graph, node)
    return images_of(graph, node, {owner.name: owner.layer.start(graph.initial(owner))})


def images_of(graph: Graph, node: Node, states: Mapping[str, State]) -> dict[str, list[int]]:
    """`Layer.images` of a node where the graph stands at these golden states, by node; stores have none."""
    owner = computing_node(graph, node)
    images = owner.layer.images(states[owner.name])
    if not isinstance(node.layer, Store):
        return images
    rings = {ring.name: ring.back for ring in owner.layer.rings}
    weights = [owner.layer.port(name) for name in owner.layer.replayed]
    found = {**rings, **{port.name: port for port in (*weights, *owner.layer.fetched)}}
    ((name, port),) = found.items()
    (source,) = node.layer.sources
    return node.layer.holding(regroup(images.get(name, []), port.payload_bits, source.payload_bits))


def computing_node(graph: Graph, node: Node) -> Node:
    """The node of `Graph.computing` whose golden state says what stands in a node's memories."""
    name = owner_of(graph, node).name if node.layer.is_store else node.name
    return graph.computing.by_name[name]
