"""One weight memory for the forward and the error engine of a layer, which stand on one device then."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Stage
from dagtrain.passes.apply import graph_pass
from hdl.errors import DagtrainError, Problem
from hdl.layers.storage import Home
from hdl.layers.wiring.fork import Fork


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def share_weights(graph: Graph, names: Collection[str]) -> Graph:
    """The streaming graph in which the nodes ``names`` read their weights in the memory of the node beside them behind
    one fork that can lend it (`Layer.lending`).

    Nodes that do so already stay as they are.

    1. The node takes the variant that borrows (`Home.LENT`), and reads the edge of its lender.
    2. The fork loses that branch; one with a single branch left goes, and its reader reads what came to it.
    Raises `DagtrainError` that lists names without a node, and nodes that nobody lends a memory."""
    wanted = [name for name in names if name not in graph.lenders]
    problems = [Problem("no such node", where=name) for name in sorted(set(wanted) - set(graph.by_name))]
    lenders = dict(sharing_nodes(graph))
    problems += [
        Problem("has no node beside it whose weights it could read", "leave it its own", name)
        for name in sorted(set(wanted) & set(graph.by_name))
        if name not in lenders
    ]
    if problems:
        raise DagtrainError.listing(f"graph {graph.name}", problems)
    nodes = {node.name: node for node in graph.nodes}
    for name in wanted:
        fork, lender = lenders[name]
        _share(nodes, nodes[name], fork, lender)
    kept = tuple(nodes[node.name] for node in graph.nodes if node.name in nodes)
    return graph.with_nodes(kept)


def sharing_nodes(graph: Graph) -> Iterator[tuple[str, tuple[str, str]]]:
    """(node that could borrow weights, (the fork that they come from, the node that would lend them))."""
    for fork in graph.nodes:
        if not isinstance(fork.layer, Fork) or not fork.layer.per_batch:
            continue
        users = [user for edge in fork.outputs.values() for user, _ in graph.consumers[edge]]
        for user in users:
            borrowing = user.layer.at(Home.LENT)
            if borrowing is None or user.layer.borrowed:
                continue
            lender = next((other for other in users if other.layer.lending(borrowing) is not None), None)
            if lender is not None:
                yield user.name, (fork.name, lender.name)


def _share(nodes: dict[str, Node], borrower: Node, fork_name: str, lender_name: str) -> None:
    """Changes ``nodes``: one pair."""
    fork = nodes[fork_name]
    layer = borrower.layer.at(Home.LENT)
    assert layer is not None
    assert isinstance(fork.layer, Fork)
    (sink,) = layer.borrowed
    gone = borrower.inputs[sink]
    kept = [(port, edge) for port, edge in fork.outputs.items() if edge != gone]
    nodes[borrower.name] = replace(
        borrower, layer=layer, inputs={**borrower.inputs, sink: nodes[lender_name].inputs[sink]}
    )
    if len(kept) > 1:
        kinds = tuple(
            kind for (port, edge), kind in zip(fork.outputs.items(), fork.layer.kinds, strict=True) if edge != gone
        )
        outputs = {f"y{index}": edge for index, (_, edge) in enumerate(kept)}
        nodes[fork_name] = replace(fork, layer=replace(fork.layer, kinds=kinds), outputs=outputs)
        return
    del nodes[fork_name]
    (edge,) = (edge for _, edge in kept)
    for name, node in nodes.items():
        inputs = {port: fork.inputs["x"] if used == edge else used for port, used in node.inputs.items()}
        nodes[name] = replace(node, inputs=inputs)
