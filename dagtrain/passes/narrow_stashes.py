"""Puts what rounds before what waits: maps kept for the way back in fewer bits than the forward pass has."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.formats import propagate_formats
from dagtrain.passes.widths import Widths
from hdl.fixed import Fixed
from hdl.layers.wiring.narrow import Narrow
from hdl.tensor import Kind


@graph_pass(Stage.TRAINING, Stage.TRAINING)
def narrow_stashes(graph: Graph, widths: Widths) -> Graph:
    """The training graph in which activations wait in as many bits as ``widths`` says of stashes.

    1. An activation that stashes read, and for whose maker somebody chose fewer bits than it has, gets the node
       ``<edge>.narrow``, from which they read.  It keeps the integer bits, and so the range.
    2. What is made for the way back alone (masks, indices, normalised maps) keeps the format of its layer."""
    narrowed: dict[str, Node] = {}
    inputs = {node.name: dict(node.inputs) for node in graph.nodes}
    for edge, uses in graph.consumers.items():
        maker, port = graph.producers[edge]
        fixed = port.tensor.fixed
        bits = widths.chosen(maker.whole, Kind.STASH)
        kept = [(node, sink) for node, sink in uses if sink.tensor.kind is Kind.STASH]
        if port.tensor.kind is not Kind.ACTIVATION or not kept or bits is None or bits >= fixed.width:
            continue
        narrowed[edge] = _narrow(maker, edge, fixed, bits, port.tensor.shape)
        for node, sink in kept:
            inputs[node.name][sink.name] = narrowed[edge].outputs["y"]
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(replace(node, inputs=inputs[node.name]))
        nodes.extend(narrowed[edge] for edge in node.outputs.values() if edge in narrowed)
    return propagate_formats.run(graph.with_nodes(tuple(nodes)))


def _narrow(maker: Node, edge: str, fixed: Fixed, bits: int, shape: tuple[int, ...]) -> Node:
    height, width, channels = shape
    fewer = Fixed(bits, fixed.fraction_bits - (fixed.width - bits), fixed.signed)
    layer = Narrow(height=height, width=width, channels=channels, x_fixed=fixed, y_fixed=fewer)
    name = f"{edge}.narrow"
    return Node(name, layer, {"x": edge}, {"y": f"{name}.y"}, {}, Role.NARROW, maker.layer_of, maker.whole)
