"""Large memories of layers in block memory elsewhere: parameter balancing, as FPDeep calls it.

FPDeep keeps weights and gradients of layers that have too few block memories in those of neighbours (Wang, Geng et al.,
IEEE TC 2020, section 3.4).  Here such a memory is a node of the graph, a store (`hdl.layers.store`), so that it stands
on any device, and whoever places, links, builds and simulates nodes needs no rule for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from hdl.errors import DagtrainError, Problem
from hdl.layers.capabilities import recipe_of
from hdl.layers.storage import Home, Ring
from hdl.layers.store.ring_store import RingStore
from hdl.layers.store.weight_store import WeightStore
from hdl.recipe import Recipe
from hdl.tensor import Kind, Port, Tile

# behind the name of a node, that of the store that has its memory, and the edges to it and from it
STORE, OUT = ".store", ".kept"


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def remote_memory(graph: Graph, names: Collection[str]) -> Graph:
    """The streaming graph in which these nodes keep their large memory in a store.

    1. What reads weights gets them from a `WeightStore`, which has the edge of new weights instead; frozen weights
       stand in the store for ever.
    2. Sums of gradients, and what an update remembers, go to a `RingStore` and come back from there.
    Nodes that have a store already stay as they are.

    Raises `DagtrainError` that lists names without a node, and nodes without such a memory."""
    wanted = sorted(set(names) - {node.name for node in graph.nodes if has_store(node)})
    problems = [Problem("no such node", where=name) for name in wanted if name not in graph.by_name]
    nodes: list[Node] = []
    for node in graph.nodes:
        moved = node.layer.at(Home.REMOTE) if node.name in wanted else None
        if node.name not in wanted:
            nodes.append(node)
        elif moved is None or node.layer.borrowed or node.name in graph.borrowers:
            problems.append(Problem("has no memory that could lie in a store", "leave it where it is", node.name))
        else:
            nodes += _with_store(replace(node, layer=moved), graph.recipe)
    if problems:
        raise DagtrainError.listing(f"graph {graph.name}", problems)
    return graph.with_nodes(tuple(nodes))


def has_store(node: Node) -> bool:
    """Whether its memory is in a store."""
    ports = (*node.layer.sinks, *node.layer.sources)
    return not node.layer.is_store and any(port.tensor.kind.of_store for port in ports)


def storable(graph: Graph) -> tuple[Node, ...]:
    """Nodes whose memory could lie in a store."""
    return tuple(
        node
        for node in graph.nodes
        if not (has_store(node) or node.layer.borrowed or node.layer.is_store or node.name in graph.borrowers)
        and node.layer.at(Home.REMOTE) is not None
    )


def store_of(name: str) -> str:
    """The store of a node."""
    return f"{name}{STORE}"


def _with_store(node: Node, recipe: Recipe) -> tuple[Node, Node]:
    """A node, with the layer that has its memory elsewhere, and that memory."""
    back = store_of(node.name)
    for ring in node.layer.remote:
        out = f"{node.name}{OUT}"
        kept = replace(
            node,
            inputs={**node.inputs, ring.back.name: back},
            outputs={**node.outputs, ring.out.name: out},
        )
        return kept, _store(node, _ring_store(node, ring, recipe), {"x": out})
    (port,) = (port for port in node.layer.sinks if port.tensor.kind is Kind.REPLAY)
    frozen = port.name not in node.inputs
    layer = WeightStore(
        shape=port.tensor.shape,
        fixed=port.tensor.fixed,
        tile=_tile(node, port),
        recipe=recipe_of(node.layer, recipe),
        frozen=frozen,
    )
    kept = replace(node, inputs={**node.inputs, port.name: back})
    if frozen:
        return kept, _store(node, layer, {}, {"w": node.parameters[port.name]})
    return kept, _store(node, layer, {"w": node.inputs[port.name]})


def _ring_store(node: Node, ring: Ring, recipe: Recipe) -> RingStore:
    tensor = ring.out.tensor
    return RingStore(
        shape=tensor.shape,
        fixed=tensor.fixed,
        kind=tensor.kind,
        tile=_tile(node, ring.out),
        recipe=recipe_of(node.layer, recipe),
        capacity=ring.capacity,
        preload=ring.preload,
    )


def _tile(node: Node, port: Port) -> Tile:
    return node.layer.stream_tile(port.name) or Tile()


def _store(
    node: Node, layer: WeightStore | RingStore, inputs: dict[str, str], parameters: dict[str, str] | None = None
) -> Node:
    name = store_of(node.name)
    return Node(name, layer, inputs, {"y": name}, parameters or {}, Role.STORE, node.layer_of, node.whole)
