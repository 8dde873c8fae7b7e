"""Layers split by their output channels: each part is an engine of its own, which may stand on an FPGA of its own.

    y = f(x; w)    becomes    y = (f(x; w[:n]), f(x; w[n:m]), …)

A part computes what the layer computed for its channels.  Backwards, differentiation deals the error out to the parts
and sums what they send back, each rounded to the error's format; so a split network learns as the whole one does, but
not bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

from dagtrain.ir import Graph, GraphError, Node, Stage, verify
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.layers.concat import Concat

PART, JOIN = "_part", "_join"


def split_layers(graph: Graph, parts: Mapping[str, int]) -> Graph:
    """The forward graph with these layers in so many parts, as equal as can be.

    Raises `GraphError` with all that is wrong: unknown layers, layers that can't be split, too many parts."""
    nodes = {node.name: node for node in graph.nodes}
    problems = [problem for name, count in parts.items() if (problem := _problem(nodes, name, count))]
    if problems:
        raise GraphError("split: " + "; ".join(problems))
    # edge of a layer -> edge of its parts' join
    renamed: dict[str, str] = {}
    made: list[Node] = []
    parameters: dict[str, FloatArray] = dict(graph.parameters)
    for node in graph.nodes:
        if node.name not in parts:
            made.append(node)
            continue
        pieces, weights = _parts(node, parts[node.name], graph.parameters)
        made += pieces
        for key in node.parameters.values():
            del parameters[key]
        parameters |= weights
        renamed[node.outputs["y"]] = pieces[-1].outputs["y"]
    nodes_made = tuple(
        replace(node, inputs={sink: renamed.get(edge, edge) for sink, edge in node.inputs.items()}) for node in made
    )
    return verify(replace(graph, parameters=parameters).with_nodes(nodes_made), Stage.FORWARD)


def whole_layer(name: str, split: Collection[str]) -> str:
    """The layer, among these that were split, of which ``name`` is a part or a join; any other name itself."""
    for mark in (PART, JOIN):
        whole, found, index = name.rpartition(mark)
        if found and index.isdecimal() and whole in split:
            return whole
    return name


def _problem(nodes: Mapping[str, Node], name: str, count: int) -> str:
    """Why a layer can't be split; "" if it can."""
    if name not in nodes or nodes[name].layer.narrowed(1) is None:
        splittable = ", ".join(other for other, node in nodes.items() if node.layer.narrowed(1) is not None)
        what = f"{name} ({type(nodes[name].layer).__name__}) can't be split" if name in nodes else f"no layer {name}"
        return f"{what}; choose of {splittable}"
    layer = nodes[name].layer
    if not 2 <= count <= _channels(layer):
        return f"{name} has {_channels(layer)} output channels; {count} parts are impossible, choose 2 to that many"
    return ""


def _parts(node: Node, count: int, parameters: Mapping[str, FloatArray]) -> tuple[list[Node], dict[str, FloatArray]]:
    """The nodes in place of one, the last of which has the whole output, and their parameters."""
    channels = _channels(node.layer)
    bounds = [channels * index // count for index in range(count + 1)]
    pieces: list[Node] = []
    weights: dict[str, FloatArray] = {}
    for index, (first, end) in enumerate(pairwise(bounds)):
        layer = node.layer.narrowed(end - first)
        assert layer is not None
        keys = {sink: f"{key}.part{index}" for sink, key in node.parameters.items()}
        weights |= {keys[sink]: parameters[key][first:end] for sink, key in node.parameters.items()}
        name = f"{node.name}{PART}{index}"
        pieces.append(Node(name, layer, dict(node.inputs), {"y": f"{name}.y"}, keys))
    joins: list[Node] = []
    whole, height, width = pieces[0].outputs["y"], *pieces[0].layer.port("y").tensor.shape[:2]
    for index, piece in enumerate(pieces[1:], start=1):
        layer = Concat(
            height=height, width=width, a_channels=bounds[index], b_channels=bounds[index + 1] - bounds[index]
        )
        name = f"{node.name}{JOIN}{index}"
        joins.append(Node(name, layer, {"a": whole, "b": piece.outputs["y"]}, {"y": f"{name}.y"}))
        whole = joins[-1].outputs["y"]
    return [*pieces, *joins], weights


def _channels(layer: Layer) -> int:
    return layer.port("y").tensor.shape[-1]
