"""Gives gradient engines the bits of a sum that the user chose."""

from __future__ import annotations

from dataclasses import replace

from dagtrain.graph.ir import Graph, Node, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.widths import FIT, SUM, WidthError, Widths
from hdl.errors import Problem
from hdl.layers.capabilities import Summing, with_sums_of


@graph_pass(Stage.TRAINING, Stage.TRAINING)
def narrow_sums(graph: Graph, widths: Widths) -> Graph:
    """The training graph whose sums of gradients have as many bits as ``widths`` says; exact where it says nothing.

    The binary point follows from the gradient's format, which calibration chose.  Raises `WidthError` with all layers
    whose gradients leave no room in so few bits."""
    problems: list[Problem] = []

    def narrowed(node: Node) -> Node:
        bits = widths.chosen_beside(node.whole, SUM)
        if bits is None or not isinstance(node.layer, Summing):
            return node
        bits = node.layer.fitting_sum_width if bits == FIT else bits
        if bits < node.layer.least_sum_width:
            what = f"sums of {bits} bits can't hold the gradients of {node.whole}"
            problems.append(Problem(what, f"choose {node.layer.least_sum_width} or more, or fewer for gradients"))
            return node
        return replace(node, layer=with_sums_of(node.layer, bits))

    nodes = tuple(map(narrowed, graph.nodes))
    if problems:
        raise WidthError.listing("--bits", problems)
    return graph.with_nodes(nodes)
