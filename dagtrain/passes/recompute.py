"""Maps that the way back makes again instead of keeping them, and one place for each map that is kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from dagtrain.graph.ir import Graph, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.insert_forks import insert_forks
from hdl.errors import DagtrainError, Problem
from hdl.layers.base import Layer
from hdl.layers.meaning import Again
from hdl.layers.wiring.fork import Fork
from hdl.tensor import Kind, Port

# (node, sink)
Sink = tuple[str, str]


@graph_pass(Stage.STREAMING, Stage.STREAMING)
def recompute(graph: Graph, edges: Collection[str]) -> Graph:
    """The streaming graph in which the edges ``edges`` alone wait for the way back, of all that `kept_edges` finds to
    follow from them.

    1. Behind such an edge its fork ``<edge>.kept`` parts what waited, for all that read the map on the way back.
    2. A map that followed from it is made again by ``<node>.again`` of each node that made it (`Meaning.again`), with
       the weights of the frame's version.
    3. What a node kept for the way back alone and nobody reads any more has no edge, and nothing narrows it.
    All these have the role `Role.RECOMPUTE`, and work when somebody wants what they make
    (`dagtrain.schedule.schedule`).  It comes before `share_weights`.

    Raises `DagtrainError` that lists edges from which nothing follows."""
    whole = _Whole(_unforked(graph))
    kept = whole.kept
    problems = [Problem("nothing follows from it", "leave it out", edge) for edge in sorted(set(edges) - set(kept))]
    if problems:
        raise DagtrainError.listing(f"graph {graph.name}", problems)
    found = _Rewriting(whole)
    for edge in (edge for edge in kept if edge in set(edges)):
        found.keep(edge, kept[edge])
    return insert_forks.run(found.graph())


def kept_edges(graph: Graph) -> dict[str, tuple[Sink, ...]]:
    """Edge of a map that waits for the way back anyway -> all sinks whose maps are that one, or follow from it element
    by element; where that are two sinks at least."""
    return _Whole(_unforked(graph)).kept


def kept_edge(graph: Graph, edge: str) -> str:
    """The edge whose map waits for one that reads ``edge``, in a graph with or without `recompute`."""
    while True:
        node, _ = graph.producers[edge]
        if node.role not in (Role.RECOMPUTE, Role.FORK):
            return edge
        edge = node.inputs[map_sink(node.layer)]


@dataclass(frozen=True)
class _Whole:
    """A graph without forks."""

    graph: Graph
    # what `way` has found
    ways: dict[str, tuple[Again, str] | None] = field(default_factory=dict)

    @cached_property
    def stashes(self) -> dict[str, list[Sink]]:
        """Edge -> sinks of the way back that it waits for; in front of what narrows it nothing waits."""
        found: dict[str, list[Sink]] = {}
        for edge, uses in self.graph.consumers.items():
            # and rows that wait for those of other parts go on with them
            waits = [(node, port) for node, port in uses if node.role not in (Role.NARROW, Role.DEAL)]
            sinks = [(node.name, port.name) for node, port in waits if port.tensor.kind is Kind.STASH]
            if sinks:
                found[edge] = sinks
        return found

    @cached_property
    def kept(self) -> dict[str, tuple[Sink, ...]]:
        """See `kept_edges`."""
        found: dict[str, list[Sink]] = {}
        for edge, sinks in self.stashes.items():
            found.setdefault(self.origin(edge), []).extend(sinks)
        return {edge: tuple(sinks) for edge, sinks in found.items() if len(sinks) > 1}

    def origin(self, edge: str) -> str:
        """The edge that waits anyway and that a map follows from, itself if there is none."""
        way = self.way(edge)
        return edge if way is None else self.origin(way[1])

    def way(self, edge: str) -> tuple[Again, str] | None:
        """What makes a map again, and the edge of which, where that waits anyway or follows from one that does."""
        if edge not in self.ways:
            self.ways[edge] = self._way(edge)
        return self.ways[edge]

    def _way(self, edge: str) -> tuple[Again, str] | None:
        node, port = self.graph.producers[edge]
        for again in node.layer.again() if node.role is not Role.RECOMPUTE else ():
            if port.name in {source.name for source in again.layer.sources}:
                name = again.ports[map_sink(again.layer)]
                before = node.inputs.get(name) or node.outputs.get(name)
                if before not in (None, edge) and (before in self.stashes or self.way(before) is not None):
                    return again, before
        return None


def map_sink(layer: Layer) -> str:
    """The one sink of a layer at which something comes every frame."""
    (name,) = (sink.name for sink in layer.sinks if not sink.tensor.kind.per_batch)
    return name


@dataclass
class _Rewriting:
    """A graph without forks that changes."""

    whole: _Whole
    # what is added, by name
    added: dict[str, Node] = field(default_factory=dict)
    # where sinks read instead
    moved: dict[Sink, str] = field(default_factory=dict)

    def keep(self, edge: str, sinks: Collection[Sink]) -> None:
        """Makes all maps that ``sinks`` read of ``edge``."""
        of_edges = {read: found for read, found in self.whole.stashes.items() if set(found) & set(sinks)}
        wanted: dict[str, list[Sink]] = {edge: list(of_edges.pop(edge, ()))}
        for read, readers in of_edges.items():
            wanted.setdefault(self._again(read, edge, wanted), []).extend(readers)
        for made, readers in wanted.items():
            self._read(made, readers, f"{made}.kept" if made == edge else f"{made}.fork")

    def _again(self, edge: str, origin: str, wanted: dict[str, list[Sink]]) -> str:
        """The edge that carries once more what ``edge`` does, made of ``origin``; enters what is read on the way."""
        if edge == origin:
            return origin
        node, port = self.whole.graph.producers[edge]
        way, name = self.whole.way(edge), f"{node.name}.again"
        assert way is not None
        again, before = way
        made = f"{name}.{port.name}"
        if name not in self.added:
            sink = map_sink(again.layer)
            others = {mine: its for mine, its in again.ports.items() if mine != sink}
            inputs = {mine: node.inputs[its] for mine, its in others.items() if its in node.inputs}
            parameters = {mine: node.parameters[its] for mine, its in others.items() if its in node.parameters}
            wanted.setdefault(self._again(before, origin, wanted), []).append((name, sink))
            self.added[name] = Node(
                name, again.layer, inputs, {}, parameters, Role.RECOMPUTE, node.layer_of, node.whole
            )
        found = self.added[name]
        self.added[name] = replace(found, outputs={**found.outputs, port.name: made})
        return made

    def _read(self, edge: str, readers: Collection[Sink], fork: str) -> None:
        """``readers`` read ``edge``, behind a fork where they are several."""
        if len(readers) == 1:
            self.moved.update(dict.fromkeys(readers, edge))
            return
        maker, port = self._maker(edge)
        layer = Fork(shape=port.tensor.shape, x_fixed=port.tensor.fixed, kinds=(Kind.STASH,) * len(readers))
        outputs = {f"y{index}": f"{fork}.y{index}" for index in range(len(readers))}
        self.added[fork] = Node(fork, layer, {"x": edge}, outputs, {}, Role.RECOMPUTE, maker.layer_of, maker.whole)
        self.moved.update(zip(readers, outputs.values(), strict=True))

    def _maker(self, edge: str) -> tuple[Node, Port]:
        if edge in self.whole.graph.producers:
            return self.whole.graph.producers[edge]
        return next(
            (node, node.layer.port(port))
            for node in self.added.values()
            for port, made in node.outputs.items()
            if made == edge
        )

    def graph(self) -> Graph:
        """The graph with all that was kept."""
        nodes = [
            replace(node, inputs={**node.inputs, **self._moved(node)})
            for node in (*self.whole.graph.nodes, *self.added.values())
        ]
        read = {edge for node in nodes for edge in node.inputs.values()}
        kept = [replace(node, outputs=_kept(node, read)) for node in nodes]
        return self.whole.graph.with_nodes(tuple(node for node in kept if node.role is not Role.NARROW or node.outputs))

    def _moved(self, node: Node) -> dict[str, str]:
        ports = (port.name for port in node.layer.sinks)
        return {port: self.moved[node.name, port] for port in ports if (node.name, port) in self.moved}


def _kept(node: Node, read: Collection[str]) -> dict[str, str]:
    """Of a node's outputs, those that somebody reads or that are no stash."""
    stashes = {port.name for port in node.layer.sources if port.tensor.kind is Kind.STASH}
    return {port: edge for port, edge in node.outputs.items() if port not in stashes or edge in read}


def _unforked(graph: Graph) -> Graph:
    """The graph with as many readers of an edge as there are."""
    whole: dict[str, str] = {}
    for node in graph.nodes:
        if node.role is Role.FORK:
            edge = node.inputs["x"]
            whole.update(dict.fromkeys(node.outputs.values(), whole.get(edge, edge)))
    nodes = (node for node in graph.nodes if node.role is not Role.FORK)
    return graph.with_nodes(
        tuple(
            replace(node, inputs={port: whole.get(edge, edge) for port, edge in node.inputs.items()}) for node in nodes
        )
    )
