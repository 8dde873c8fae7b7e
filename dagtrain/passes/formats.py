"""Number formats along edges: an edge has its producer's format, and both of its ends must know it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Stage
from dagtrain.passes.apply import graph_pass
from hdl.fixed import Fixed
from hdl.layers.base import Layer


def free_sources(layer: Layer) -> tuple[str, ...]:
    """Source ports whose format is a field of the layer, so that calibration may choose it.

    The others follow from a sink (relu, fork, max pool) or are fixed (masks, indices)."""
    names = {item.name for item in dataclasses.fields(layer)}  # type: ignore[arg-type]
    return tuple(port.name for port in layer.sources if f"{port.name}_fixed" in names)


@graph_pass(Stage.TRAINING, Stage.TRAINING)
def propagate_formats(graph: Graph, chosen: Mapping[str, Fixed] | None = None) -> Graph:
    """The graph with ``chosen`` formats (by edge, of free sources only) and every sink in its producer's format.

    1. A free source takes the chosen format, or keeps its own.
    2. A sink takes its producer's format; formats that follow from it change with it.
    3. A sink without an edge (weights of a forward graph) keeps its own."""
    picked = chosen or {}
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        wanted = {
            port: picked[node.outputs[port]] for port in free_sources(node.layer) if node.outputs.get(port) in picked
        }
        nodes[node.name] = replace(node, layer=node.layer.with_formats(wanted)) if wanted else node
    formats: dict[str, Fixed] = {}
    for node in nodes.values():
        formats.update(_made(node))
    while _propagate_once(nodes, formats):
        pass
    return replace(graph, nodes=tuple(nodes.values()))


def _propagate_once(nodes: dict[str, Node], formats: dict[str, Fixed]) -> bool:
    """One sweep in topological order, with ``formats`` by edge; whether anything changed (a second sweep serves delayed
    weight edges)."""
    changed = False
    for name, node in list(nodes.items()):
        wanted = {sink: formats[edge] for sink, edge in node.inputs.items()}
        if all(node.layer.port(sink).tensor.fixed == fixed for sink, fixed in wanted.items()):
            continue
        layer = node.layer.with_formats(wanted)
        if layer != node.layer:
            nodes[name] = replace(node, layer=layer)
            formats.update(_made(nodes[name]))
            changed = True
    return changed


def _made(node: Node) -> dict[str, Fixed]:
    """Formats by edge of what a node makes."""
    return {node.outputs[port.name]: port.tensor.fixed for port in node.layer.sources if port.name in node.outputs}
