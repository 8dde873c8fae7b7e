"""Gives updates the bits of master and momentum that the user chose."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.widths import MASTER, MOMENTUM, WidthError, Widths
from hdl.errors import Problem
from hdl.layers.capabilities import Remembering, with_memory_of


@graph_pass(Stage.TRAINING, Stage.TRAINING)
def narrow_updates(graph: Graph, widths: Widths) -> Graph:
    """The training graph whose updates keep as many bits as ``widths`` says, as many as before where it says nothing.

    Binary points follow from the formats of weight and gradient, which calibration chose.  Raises `WidthError` with all
    that are too few."""
    problems: list[Problem] = []

    def narrowed(node: Node) -> Node:
        if not isinstance(node.layer, Remembering):
            return node
        bits = {}
        for what, least in ((MASTER, node.layer.least_master_width), (MOMENTUM, node.layer.least_momentum_width)):
            chosen = widths.chosen_beside(node.whole, what)
            if chosen is None:
                continue
            bits[f"{what}_width"] = chosen
            if chosen < least:
                said = f"a {what} of {chosen} bits is too narrow for the weights of {node.whole}"
                problems.append(Problem(said, f"choose {least} or more"))
        return replace(node, layer=with_memory_of(node.layer, **bits)) if bits and not problems else node

    nodes = tuple(map(narrowed, graph.nodes))
    if problems:
        raise WidthError.listing("--bits", problems)
    return graph.with_nodes(nodes)
