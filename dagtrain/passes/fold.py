"""Folding: every layer gets the parallelism that a given number of cycles a frame needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import networkx as nx

from dagtrain.graph.ir import Graph, Node, Stage
from dagtrain.passes.apply import graph_pass
from hdl.errors import FoldingError, Problem
from hdl.layers.capabilities import is_engine
from hdl.parts.catalogue import DEFAULT_PARTS
from hdl.parts.part import Part
from hdl.tensor import Tile


@graph_pass(Stage.STREAMING, Stage.FOLDED)
def fold_graph(
    graph: Graph,
    cycles: int | Mapping[str, int],
    parts: Sequence[Part] = DEFAULT_PARTS,
    tiles: Mapping[str, Tile] | None = None,
) -> Graph:
    """The graph with every layer folded for at most ``cycles`` a frame, of all or of each node, the fewest multipliers
    first; ``parts`` are those that it will stand on, ``tiles`` its `weight_tiles`, where they are known.

    Frames are those of the training: one of several copies, to which it deals them out, has as many times longer.

    1. Nodes of one weight group (`weight_groups`) get one tile, because it orders weights and gradients in streams.
    2. All others are folded alone.
    Raises `FoldingError` that lists every layer that can't be so fast."""
    if tiles is None:
        tiles = weight_tiles(graph, cycles, parts)
    of = _cycles_of(graph, cycles)
    nodes: list[Node] = []
    problems: list[Problem] = []
    for node in graph.nodes:
        try:
            nodes.append(replace(node, layer=node.layer.fold(of[node.name], tiles.get(node.name))))
        except FoldingError as error:
            problems.append(Problem(error.what, error.cure, node.name))
    if problems:
        wanted = " or ".join(str(count) for count in sorted(set(of.values())))
        raise FoldingError.listing(
            f"graph {graph.name} can't be folded for {wanted} cycles a frame", problems, lines=True
        )
    return replace(graph, nodes=tuple(nodes))


def _cycles_of(graph: Graph, cycles: int | Mapping[str, int]) -> Mapping[str, int]:
    """Node -> the cycles that a frame of its own may take it."""
    wanted = dict.fromkeys(graph.by_name, cycles) if isinstance(cycles, int) else cycles
    return {name: graph.cycles_for(name, wanted[name]) for name in graph.by_name}


def weight_groups(graph: Graph) -> tuple[tuple[Node, ...], ...]:
    """Nodes that exchange weights and gradients with one another, forks between them included.

    Each group is in the order of nodes, so the forward engine comes first; groups are in the order of their first
    nodes.  Nodes without a weight or gradient port are in no group."""
    rank = {node.name: index for index, node in enumerate(graph.nodes)}
    links = nx.Graph()
    for node in graph.nodes:
        if any(port.tensor.kind.of_parameter for port in (*node.layer.sinks, *node.layer.sources)):
            links.add_node(node.name)
    for _, producer, port, consumer, _ in graph.edges:
        if port.tensor.kind.of_parameter:
            links.add_edge(producer.name, consumer.name)
    groups = [sorted(members, key=rank.__getitem__) for members in nx.connected_components(links)]
    groups.sort(key=lambda members: rank[members[0]])
    return tuple(tuple(graph.by_name[name] for name in members) for members in groups)


def weight_tiles(
    graph: Graph, cycles: int | Mapping[str, int], parts: Sequence[Part] = DEFAULT_PARTS
) -> dict[str, Tile]:
    """Node -> the tile of its weight group: the first of the forward engine's that suits all members at its cycles,
    and engines at their own; of several copies of that, the one that has least time.

    Members whose weights are vectors have no tile, nor have engines that no tile makes so fast."""
    chosen: dict[str, Tile] = {}
    of = _cycles_of(graph, cycles)
    for group in weight_groups(graph):
        lead = next((node for node in group if node.layer.has_tile(of[node.name])), None)
        if lead is None:
            continue
        lead = min((node for node in group if type(node.layer) is type(lead.layer)), key=lambda node: of[node.name])
        pace = of[lead.name]
        paces = {node.name: of[node.name] if is_engine(node.layer) else pace for node in group}
        tiled = [node for node in group if node.layer.has_tile(paces[node.name])]
        offered = lead.layer.tiles(pace, parts)
        others = [node for node in tiled if node is not lead]
        tile = next((tile for tile in offered if all(n.layer.suits(tile, paces[n.name]) for n in others)), None)
        if tile is None:
            names = ", ".join(node.name for node in tiled)
            raise FoldingError(f"no weight tile suits all of {names} at {pace} cycles a frame", "allow more cycles")
        chosen.update((node.name, tile) for node in group if not _is_too_slow(node, of[node.name]))
    return chosen


def _is_too_slow(node: Node, cycles: int) -> bool:
    """Whether it is an engine that no tile makes so fast; folded without one, it says so."""
    return is_engine(node.layer) and not node.layer.has_tile(cycles)
