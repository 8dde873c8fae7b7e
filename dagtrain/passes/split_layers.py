"""Layers in parts: each part is an engine of its own, which may stand on an FPGA of its own.

By output channels, each part sees the whole input; by input channels, the parts' outputs are summed:

    y = f(x; w)    becomes    y = (f(x; w[:n]), f(x; w[n:]))    or    y = f(x[:n]; w[:, :n]) + f(x[n:]; w[:, n:])

(By rows of its map, `dagtrain.passes.split_rows` splits a layer of a training graph.)

By outputs a part computes what the layer computed for its channels, and what the parts send back is summed, each
rounded to the error's format; by inputs that holds the other way round.  So a split network learns as the whole one
does, but not bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from dagtrain.graph.ir import Graph, GraphError, Node, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.split_rows import why_not
from hdl.errors import DagtrainError, Problem
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.layers.pointwise.add import Add
from hdl.layers.wiring.concat import Concat, Split

PART, JOIN, CUT, SUM = "_part", "_join", "_cut", "_sum"
INPUTS, ROWS = "inputs", "rows"


@dataclass(frozen=True)
class Parts:
    """How a layer is split."""

    count: int
    # by input channels, or by rows, else by output channels
    by_inputs: bool = False
    by_rows: bool = False

    def __str__(self) -> str:
        how = INPUTS if self.by_inputs else ROWS
        return f"{self.count}:{how}" if self.by_inputs or self.by_rows else str(self.count)

    @classmethod
    def parse(cls, text: str) -> Parts:
        """The inverse of `str`.  Raises `DagtrainError`."""
        count, colon, what = text.partition(":")
        if not count.isdecimal() or (colon and what not in (INPUTS, ROWS)):
            raise DagtrainError(f"{text!r} is no whole number of parts, nor N:{INPUTS}, nor N:{ROWS}")
        return cls(int(count), what == INPUTS, what == ROWS)

    def of(self, layer: Layer, channels: int) -> Layer | None:
        """A part of so many channels; None where the layer can't be split so."""
        return layer.summand(channels) if self.by_inputs else layer.narrowed(channels)

    def channels(self, layer: Layer) -> int:
        """The channels that are dealt out."""
        port = "x" if self.by_inputs else "y"
        return layer.port(port).tensor.shape[-1]

    def sizes(self, channels: int) -> list[int]:
        """Channels of each part, by channels: as equal as can be."""
        bounds = [channels * index // self.count for index in range(self.count + 1)]
        return [end - first for first, end in pairwise(bounds)]


@graph_pass(Stage.FORWARD, Stage.FORWARD)
def split_layers(graph: Graph, parts: Mapping[str, Parts]) -> Graph:
    """The forward graph with these layers in so many parts by channels, as equal as can be; those by rows are looked at
    alone, since it is the training graph that is split so (`dagtrain.passes.split_rows`).

    Raises `GraphError` with all that is wrong: unknown layers, layers that can't be split, too many parts."""
    nodes = {node.name: node for node in graph.nodes}
    problems = [problem for name, how in parts.items() if (problem := _problem(nodes, name, how))]
    if problems:
        raise GraphError.listing("split", problems)
    # edge of a layer -> edge of what joins its parts
    renamed: dict[str, str] = {}
    made: list[Node] = []
    parameters: dict[str, FloatArray] = dict(graph.parameters)
    for node in graph.nodes:
        node = replace(node, inputs={sink: renamed.get(edge, edge) for sink, edge in node.inputs.items()})
        if node.name not in parts or parts[node.name].by_rows:
            made.append(node)
            continue
        pieces, weights = _pieces(node, parts[node.name], graph.parameters)
        made += pieces
        for key in node.parameters.values():
            del parameters[key]
        parameters |= weights
        renamed[node.outputs["y"]] = pieces[-1].outputs["y"]
    return replace(graph, parameters=parameters).with_nodes(tuple(made))


def _problem(nodes: Mapping[str, Node], name: str, how: Parts) -> Problem | None:
    """Why a layer can't be split; None if it can."""
    if how.by_rows:
        if name in nodes:
            return why_not(nodes[name], how.count)
        splittable = ", ".join(other for other, node in nodes.items() if why_not(node, 2) is None)
        return Problem(f"no layer {name}", f"choose of {splittable}")
    if name not in nodes or how.of(nodes[name].layer, 1) is None:
        splittable = ", ".join(other for other, node in nodes.items() if how.of(node.layer, 1) is not None)
        what = f"{name} ({type(nodes[name].layer).__name__}) can't be split" if name in nodes else f"no layer {name}"
        return Problem(what, f"choose of {splittable}")
    channels = how.channels(nodes[name].layer)
    if not 2 <= how.count <= channels:
        kind = "input" if how.by_inputs else "output"
        cure = f"{how.count} parts are impossible, choose 2 to that many"
        return Problem(f"{name} has {channels} {kind} channels", cure)
    return None


def _pieces(node: Node, how: Parts, parameters: Mapping[str, FloatArray]) -> tuple[list[Node], dict[str, FloatArray]]:
    """The nodes in place of one, the last of which has the whole output, and their parameters."""
    bounds = [0, *accumulate(how.sizes(how.channels(node.layer)))]
    cuts = _cuts(node, bounds) if how.by_inputs else []
    inputs = [cut.outputs["a"] for cut in cuts] + [cuts[-1].outputs["b"]] if cuts else [node.inputs["x"]] * how.count
    engines: list[Node] = []
    weights: dict[str, FloatArray] = {}
    for index, (first, end) in enumerate(pairwise(bounds)):
        layer = how.of(node.layer, end - first)
        assert layer is not None
        keys = {sink: f"{key}.part{index}" for sink, key in node.parameters.items()}
        part = (slice(None), slice(first, end)) if how.by_inputs else slice(first, end)
        weights |= {keys[sink]: parameters[key][part] for sink, key in node.parameters.items()}
        name = f"{node.name}{PART}{index}"
        engines.append(
            Node(name, layer, {**node.inputs, "x": inputs[index]}, {"y": f"{name}.y"}, keys, whole=node.whole)
        )
    joins = _sums(node, engines) if how.by_inputs else _joins(node, engines, bounds)
    return [*cuts, *engines, *joins], weights


def _cuts(node: Node, bounds: list[int]) -> list[Node]:
    """The input's channels dealt out to the parts, one part after the other."""
    rest, (height, width, channels) = node.inputs["x"], node.layer.port("x").tensor.shape
    cuts: list[Node] = []
    for index, (first, end) in enumerate(pairwise(bounds[:-1])):
        layer = Split(height=height, width=width, a_channels=end - first, b_channels=channels - end)
        name = f"{node.name}{CUT}{index}"
        cuts.append(Node(name, layer, {"x": rest}, {"a": f"{name}.a", "b": f"{name}.b"}, whole=node.whole))
        rest = cuts[-1].outputs["b"]
    return cuts


def _sums(node: Node, engines: list[Node]) -> list[Node]:
    """The sum of the parts' outputs."""
    height, width, channels = node.layer.port("y").tensor.shape
    return _chain(node, engines, SUM, [Add(height=height, width=width, channels=channels)] * (len(engines) - 1))


def _joins(node: Node, engines: list[Node], bounds: list[int]) -> list[Node]:
    """The parts' outputs side by side."""
    height, width, _ = node.layer.port("y").tensor.shape
    layers = [
        Concat(height=height, width=width, a_channels=first, b_channels=end - first)
        for first, end in pairwise(bounds[1:])
    ]
    return _chain(node, engines, JOIN, layers)


def _chain(node: Node, engines: list[Node], mark: str, layers: Sequence[Layer]) -> list[Node]:
    """Layers of two sinks, a and b, that join one part after the other to those before."""
    joins: list[Node] = []
    whole = engines[0].outputs["y"]
    for index, (engine, layer) in enumerate(zip(engines[1:], layers, strict=True), start=1):
        name = f"{node.name}{mark}{index}"
        joins.append(Node(name, layer, {"a": whole, "b": engine.outputs["y"]}, {"y": f"{name}.y"}, whole=node.whole))
        whole = joins[-1].outputs["y"]
    return joins


def by_rows(parts: Mapping[str, Parts]) -> dict[str, int]:
    """Layer -> parts, of those by rows."""
    return {layer: how.count for layer, how in parts.items() if how.by_rows}
