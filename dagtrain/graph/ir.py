"""The graph: typed nodes, named edges.  One node type, one edge type, one executable notion of legality.

An edge has exactly one producing port; in a streaming graph it also has exactly one consumer (forks are nodes).
Shapes, formats and kinds are asked of the producing port, so they stand in one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import Self, TypeVar

import networkx as nx

from hdl.engine.codec.coding import Coding
from hdl.errors import DagtrainError, Problem
from hdl.fixed import FloatArray
from hdl.layers.base import Layer
from hdl.layers.capabilities import Counting
from hdl.layers.storage import Home
from hdl.recipe import Dealt, Recipe
from hdl.tensor import Kind, Port, Tensor


class Stage(Enum):
    """What a graph promises; each stage promises what the one before does, and more, but that only the first has none
    but forward nodes.

    `verify` checks it before and after every pass (`dagtrain.passes.apply`)."""

    # forward layers only; weight and label sinks unconnected, stash sources unconsumed
    FORWARD = "forward"
    # after differentiate: every sink connected, edges may have several consumers
    TRAINING = "training"
    # after insert_forks: exactly one consumer an edge, of its kind, or a stash
    STREAMING = "streaming"
    # after fold_graph: weights and gradients in one order at both ends, no beat in two pixels
    FOLDED = "folded"
    # after place: a device for every node, the host's for what talks to it
    PLACED = "placed"

    def promises(self, other: Stage) -> bool:
        """Whether a graph of this stage keeps what one of the other stage promises."""
        order = list(Stage)
        return order.index(self) >= order.index(other)


class Role(Enum):
    """What a node is for; the layer that it serves is `Node.layer_of`."""

    # a layer of the forward graph
    FORWARD = "forward"
    # a stream from the host, or to it
    HOST = "host"
    # takes errors on towards the input, and may make gradients beside
    ERROR = "error"
    # sums errors of several consumers of one edge, or gradients of several copies of a layer
    SUM = "sum"
    # deals frames out to copies of a layer, or collects them
    DEAL = "deal"
    # makes gradients of weights
    GRADIENT = "gradient"
    # makes new weights of gradients
    UPDATE = "update"
    # one stream to several users
    FORK = "fork"
    # one stream to one user by way of another device
    RELAY = "relay"
    # looks at a stream that passes
    COUNTER = "counter"
    # a map that waits in fewer bits
    NARROW = "narrow"
    # makes for the way back, when that wants it, what was not kept, of what was
    RECOMPUTE = "recompute"
    # has the memory of another node
    STORE = "store"

    @classmethod
    def forward(cls, layer: Layer) -> Role:
        """Of a layer of a forward graph."""
        return cls.FORWARD if layer.sinks and layer.sources else cls.HOST

    @classmethod
    def backward(cls, layer: Layer) -> Role:
        """Of a layer that differentiation adds; what it makes tells."""
        kinds = {port.tensor.kind for port in layer.sources}
        if not (layer.sinks and layer.sources):
            return cls.HOST
        if Kind.WEIGHT in kinds:
            return cls.UPDATE
        return cls.ERROR if Kind.ERROR in kinds else cls.GRADIENT


class GraphError(DagtrainError):
    """A graph that breaks the promise of its stage; the message lists all breaches."""


@dataclass(frozen=True)
class Node:
    """One layer of the graph with the edges at its ports."""

    name: str
    layer: Layer
    # sink port -> edge
    inputs: Mapping[str, str] = field(default_factory=dict)
    # source port -> edge; a stash that nobody reads has none
    outputs: Mapping[str, str] = field(default_factory=dict)
    # the layer's parameter name (weight sink, what it holds, or an update's source) -> key in `Graph.parameters`
    parameters: Mapping[str, str] = field(default_factory=dict)
    role: Role = Role.FORWARD
    # the forward node that it serves: itself, if it is one
    layer_of: str = ""
    # the layer of the model that `layer_of` is, or is a part of
    whole: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_of", self.layer_of or self.name)
        object.__setattr__(self, "whole", self.whole or self.layer_of)

    @property
    def is_layer(self) -> bool:
        """Whether it is a forward node."""
        return self.layer_of == self.name

    def __str__(self) -> str:
        ins = ", ".join(f"{port}={edge}" for port, edge in self.inputs.items())
        outs = ", ".join(self.outputs.values())
        return f"{outs} = {type(self.layer).__name__}[{self.name}]({ins})"


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order along every edge but the delayed ones (see `is_delayed`)."""

    name: str
    nodes: tuple[Node, ...]
    recipe: Recipe
    # initial values, in the parameter's own shape as ONNX writes it; float64, or float32 where that holds them
    parameters: Mapping[str, FloatArray] = field(default_factory=dict)
    # what an earlier training left beside the weights, by node and name (`Meaning.carried`)
    carried: Mapping[str, Mapping[str, FloatArray]] = field(default_factory=dict)
    # edge -> words that may wait at its sender, where it crosses the network
    queued: Mapping[str, int] = field(default_factory=dict)

    def initial(self, node: Node) -> dict[str, FloatArray]:
        """What `Meaning.start` takes for a node."""
        weights = {name: self.parameters[key] for name, key in node.parameters.items()}
        return {**weights, **self.carried.get(node.name, {})}

    @property
    def begun(self) -> int:
        """Batches of an earlier training behind it."""
        return max((node.layer.begun for node in self.nodes if isinstance(node.layer, Counting)), default=0)

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def producers(self) -> dict[str, tuple[Node, Port]]:
        """Edge -> (node, source port); ports that a layer doesn't have are left to `verify`."""
        found: dict[str, tuple[Node, Port]] = {}
        for node in self.nodes:
            ports = {port.name: port for port in node.layer.sources}
            found.update((edge, (node, ports[source])) for source, edge in node.outputs.items() if source in ports)
        return found

    @cached_property
    def consumers(self) -> dict[str, tuple[tuple[Node, Port], ...]]:
        """Edge -> ((node, sink port), …); edges that nobody consumes have an empty tuple."""
        found: dict[str, list[tuple[Node, Port]]] = {edge: [] for edge in self.producers}
        for node in self.nodes:
            ports = {port.name: port for port in node.layer.sinks}
            for sink, edge in node.inputs.items():
                if sink in ports:
                    found.setdefault(edge, []).append((node, ports[sink]))
        return {edge: tuple(uses) for edge, uses in found.items()}

    @cached_property
    def dealt(self) -> dict[str, Dealt]:
        """Node that not all frames go to -> which of every batch do."""
        return self._dealt[0]

    @cached_property
    def dealt_edges(self) -> dict[str, Dealt]:
        """Edge of frames that not all pass -> which of every batch do."""
        return self._dealt[1]

    @cached_property
    def _dealt(self) -> tuple[dict[str, Dealt], dict[str, Dealt]]:
        nodes: dict[str, Dealt] = {}
        edges: dict[str, Dealt] = {}
        for node in self.nodes:
            for sink, edge in node.inputs.items():
                if edge in edges and node.layer.dealt(sink) is None:
                    nodes[node.name] = edges[edge]
            for port in node.layer.sources:
                frames = node.layer.dealt(port.name) or nodes.get(node.name)
                if frames is not None and port.name in node.outputs and not port.tensor.kind.per_batch:
                    edges[node.outputs[port.name]] = frames
        return nodes, edges

    @cached_property
    def bursts(self) -> frozenset[str]:
        """Edges whose tensors come in a part of a frame's time: rows dealt out to parts, until an engine has them."""
        found: set[str] = set()
        for node in self.nodes:
            layer = node.layer
            comes = any(edge in found and layer.frame_share(sink) is None for sink, edge in node.inputs.items())
            for port in layer.sources:
                goes = layer.frame_share(port.name) is not None or (comes and layer.strips is None)
                if goes and port.name in node.outputs and not port.tensor.kind.per_batch:
                    found.add(node.outputs[port.name])
        return frozenset(found)

    def busy(self, node: str) -> Fraction:
        """Share of all frames that a node works on; of several copies, that of the busiest."""
        return self.dealt[node].busy if node in self.dealt else Fraction(1)

    def passing(self, edge: str) -> Fraction:
        """Share of all frames that pass an edge; of those of several copies, that of the busiest."""
        return self.dealt_edges[edge].busy if edge in self.dealt_edges else Fraction(1)

    def turns_are_uneven(self, edge: str) -> bool:
        """Whether the frames that pass an edge come sooner after one another here than there."""
        frames = self.dealt_edges.get(edge)
        return frames is not None and frames.are_uneven

    def cycles_per_frame(self, node: Node) -> int:
        """Of the engine, of all frames: those that go to other copies are none of its time."""
        return math.ceil(node.layer.cycles_per_frame * self.busy(node.name))

    def cycles_for(self, node: str, cycles: int) -> int:
        """How long a frame of its own may take a node, where all frames come at ``cycles`` a frame."""
        return math.floor(cycles / self.busy(node))

    def coding(self, edge: str) -> Coding | None:
        """How an edge is coded where it crosses the network, as the layer says that made what passes; None: as it
        is."""
        node, source = self.maker(edge)
        return node.layer.coding(source.name)

    def maker(self, edge: str) -> tuple[Node, Port]:
        """The node, and its source, that made what passes an edge: before all that only hand it on."""
        node, source = self.producers[edge]
        sink = node.layer.passed_on(source.name)
        return (node, source) if sink is None else self.maker(node.inputs[sink])

    def tensor(self, edge: str) -> Tensor:
        """The type of an edge: its producer's."""
        return self.producers[edge][1].tensor

    @property
    def edges(self) -> Iterator[tuple[str, Node, Port, Node, Port]]:
        """(edge, producer, source port, consumer, sink port), in order of nodes; one a consumer."""
        for edge, (node, port) in self.producers.items():
            for consumer, sink in self.consumers[edge]:
                yield edge, node, port, consumer, sink

    @property
    def streams(self) -> Iterator[tuple[str, Node, Port, Node, Port]]:
        """Of `edges`, those that are streams: not what a node reads in the memory of another one."""
        for edge, producer, source, consumer, sink in self.edges:
            if sink.name not in consumer.layer.borrowed:
                yield edge, producer, source, consumer, sink

    @cached_property
    def lenders(self) -> dict[str, Node]:
        """Node that borrows a memory -> the node in whose memory it reads: the other one that reads the edge."""
        found: dict[str, Node] = {}
        for node in self.nodes:
            for sink in node.layer.borrowed:
                uses = self.consumers.get(node.inputs.get(sink, ""), ())
                others = [user for user, port in uses if port.name not in user.layer.borrowed]
                if len(others) == 1:
                    found[node.name] = others[0]
        return found

    @cached_property
    def borrowers(self) -> dict[str, Node]:
        """The inverse of `lenders`."""
        return {lender.name: self.by_name[name] for name, lender in self.lenders.items()}

    @property
    def circuits(self) -> Iterator[Node]:
        """A node for each circuit: those that borrow a memory are part of their lenders', whose layer is that of both
        (`Layer.lending`)."""
        for node in self.nodes:
            circuit = self.circuit_of(node, node.layer)
            if circuit is not None:
                yield node if circuit is node.layer else replace(node, layer=circuit)

    def circuit_of(self, node: Node, layer: Layer) -> Layer | None:
        """The circuit of a node that is built as ``layer``: that of two where it lends its memory.

        None where it borrows one, and is part of its lender's circuit, or where it can't lend it so."""
        if layer.borrowed:
            return None
        borrower = self.borrowers.get(node.name)
        return layer if borrower is None else layer.lending(borrower.layer)

    @cached_property
    def computing(self) -> Self:
        """The graph as it computes: without stores.  The layers whose memory they are have ports beside the graph, as
        where that lies in DRAM, and read new weights where their store did."""
        stores = {edge: node for node in self.nodes if node.layer.is_store for edge in node.outputs.values()}
        if not stores:
            return self
        kept = {edge for node in stores.values() for name, edge in node.inputs.items() if name != "w"}
        nodes = []
        for node in self.nodes:
            if node.layer.is_store:
                continue
            inputs = {port: edge for port, edge in node.inputs.items() if edge not in stores}
            read = {port: stores[edge].inputs.get("w") for port, edge in node.inputs.items() if edge in stores}
            outputs = {port: edge for port, edge in node.outputs.items() if edge not in kept}
            if read:
                layer = node.layer.at(Home.DRAM)
                assert layer is not None, f"{node.name} has a store and no memory outside"
                inputs |= {port: edge for port, edge in read.items() if edge is not None}
                node = replace(node, layer=layer, inputs=inputs, outputs=outputs)
            nodes.append(node)
        return replace(self, nodes=tuple(nodes))

    def with_nodes(self, nodes: tuple[Node, ...]) -> Graph:
        """This graph with other nodes, sorted topologically (ties in the given order)."""
        return replace(self, nodes=topological(nodes))

    def __str__(self) -> str:
        return "\n".join(map(str, self.nodes))


@dataclass(frozen=True)
class PlacedGraph(Graph):
    """A folded graph on the devices of a cluster."""

    # of the cluster; the first has the host's port
    devices: tuple[str, ...] = ()
    # node -> device
    placed: Mapping[str, str] = field(default_factory=dict)

    @property
    def crossing(self) -> Iterator[tuple[str, Node, Port, Node, Port]]:
        """Of `streams`, those between devices."""
        for edge, producer, source, consumer, sink in self.streams:
            if self.placed[producer.name] != self.placed[consumer.name]:
                yield edge, producer, source, consumer, sink


G = TypeVar("G", bound=Graph)


def is_delayed(consumer: Layer, sink: Port) -> bool:
    """Whether an edge into this sink is read later than written: new weights into a per-frame engine, a batch later,
    and what a store gives back."""
    if sink.tensor.kind.of_store:
        # what went into a store comes back later
        return consumer.is_store
    ports = (*consumer.sinks, *consumer.sources)
    return sink.tensor.kind is Kind.WEIGHT and any(not port.tensor.kind.per_batch for port in ports)


def topological(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Nodes sorted along undelayed edges, ties in the given order; a cycle is an error that shows it."""
    order = nx.DiGraph()
    by_name = {node.name: node for node in nodes}
    rank = {node.name: index for index, node in enumerate(nodes)}
    producer = {edge: node.name for node in nodes for edge in node.outputs.values()}
    order.add_nodes_from(rank)
    for node in nodes:
        for port, edge in node.inputs.items():
            if edge in producer and not is_delayed(node.layer, node.layer.port(port)):
                order.add_edge(producer[edge], node.name)
    try:
        return tuple(by_name[name] for name in nx.lexicographical_topological_sort(order, key=rank.__getitem__))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(edge[0] for edge in nx.find_cycle(order))
        raise GraphError(f"the graph has a cycle: {cycle}", "remove one of these edges") from None


def verify(graph: G, stage: Stage) -> G:
    """The graph itself, if it keeps the promise of its stage; else `GraphError` with all breaches."""
    problems: list[Problem | str] = [*_name_breaches(graph), *_port_breaches(graph)]
    if not problems:
        # without ports that are there, edges have no meaning
        problems = [*_edge_breaches(graph, stage), *_order_breaches(graph), *_consumer_breaches(graph, stage)]
        problems += _role_breaches(graph, stage)
        problems += _lending_breaches(graph)
        if stage.promises(Stage.FOLDED):
            problems += _folding_breaches(graph)
        if stage.promises(Stage.PLACED):
            problems += _place_breaches(graph)
    if problems:
        raise GraphError.listing(f"graph {graph.name} is not a legal {stage.value} graph", problems, lines=True)
    return graph


def _name_breaches(graph: Graph) -> Iterator[str]:
    seen: set[str] = set()
    for node in graph.nodes:
        if node.name in seen:
            yield f"two nodes are named {node.name}"
        seen.add(node.name)
    made: set[str] = set()
    for node in graph.nodes:
        for edge in node.outputs.values():
            if edge in made:
                yield f"edge {edge} has two producers, one is {node.name}"
            made.add(edge)


def _port_breaches(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        sinks, sources = ({port.name for port in ports} for ports in (node.layer.sinks, node.layer.sources))
        for name in sorted(node.inputs.keys() - sinks):
            yield f"{node.name} has no sink {name}"
        for name in sorted(node.outputs.keys() - sources):
            yield f"{node.name} has no source {name}"
        held = {port.name for port in node.layer.held_parameters}
        for name in sorted(held - node.parameters.keys()):
            yield f"{node.name} holds {name}, and names no parameter for it"
        for name in sorted(node.parameters.keys() - sinks - sources - held):
            yield f"{node.name} has no port {name} for a parameter"
        # a stash that nobody reads has no edge: what was kept for a way back that ends later
        streams = {port.name for port in node.layer.sources if port.tensor.kind is not Kind.STASH}
        for name in sorted(streams - node.outputs.keys()):
            yield f"source {node.name}.{name} has no edge"


def _role_breaches(graph: Graph, stage: Stage) -> Iterator[str]:
    layers = {node.name: node for node in graph.nodes if node.is_layer}
    for node in graph.nodes:
        if node.layer_of not in layers:
            yield f"{node.name} is of layer {node.layer_of}, which is no forward node"
        elif node.whole != layers[node.layer_of].whole:
            yield f"{node.name} is of {node.whole}, its layer {node.layer_of} of {layers[node.layer_of].whole}"
        roles = (Role.FORWARD, Role.HOST) if node.is_layer else tuple(role for role in Role if role is not Role.FORWARD)
        if node.role not in roles:
            yield f"{node.name} of layer {node.layer_of} can't have the role {node.role.value}"
        if node.role is Role.RECOMPUTE:
            ports = (*node.layer.sinks, *node.layer.sources)
            for port in (port for port in ports if port.tensor.kind.hops_must_match):
                yield f"{node.name} makes again what waits, but {port.name} moves in step, as {port.tensor.kind.value}"
        if stage is Stage.FORWARD and not node.is_layer:
            yield f"{node.name} is no forward node"


def _order_breaches(graph: Graph) -> Iterator[str]:
    """Nodes that stand before one that makes what they read, delayed edges aside."""
    made: set[str] = set()
    for node in graph.nodes:
        for name, edge in node.inputs.items():
            if edge not in made and edge in graph.producers and not is_delayed(node.layer, node.layer.port(name)):
                yield f"{node.name} stands before {graph.producers[edge][0].name}, whose edge {edge} it reads"
        made.update(node.outputs.values())


def _edge_breaches(graph: Graph, stage: Stage) -> Iterator[str]:
    for node in graph.nodes:
        sinks = {port.name: port for port in node.layer.sinks}
        for name, port in sinks.items():
            edge = node.inputs.get(name)
            if edge is None:
                if stage.promises(Stage.TRAINING) or port.tensor.kind in (Kind.ACTIVATION, Kind.ERROR):
                    yield f"sink {node.name}.{name} is not connected"
            elif edge not in graph.producers:
                yield f"sink {node.name}.{name} reads edge {edge}, which nobody produces"
            else:
                yield from _type_breaches(graph.tensor(edge), port.tensor, f"{edge} -> {node.name}.{name}")
        for key in node.parameters.values():
            if key not in graph.parameters:
                yield f"{node.name} needs parameter {key}, which has no initial value"


def _type_breaches(given: Tensor, wanted: Tensor, where: str) -> Iterator[str]:
    if given.shape != wanted.shape:
        yield f"{where}: shape {given.shape} meets {wanted.shape}"
    if given.fixed != wanted.fixed:
        yield f"{where}: format {given.fixed} meets {wanted.fixed}"
    if given.kind.per_batch != wanted.kind.per_batch:
        yield f"{where}: {given.kind.value} meets {wanted.kind.value}"


def _lending_breaches(graph: Graph) -> Iterator[Problem | str]:
    """Nodes that borrow a memory which nobody lends them, or which somebody else borrows too."""
    borrowed: dict[str, str] = {}
    for node in graph.nodes:
        if not node.layer.borrowed:
            continue
        lender = graph.lenders.get(node.name)
        if lender is None or lender.layer.lending(node.layer) is None:
            yield Problem(f"{node.name} borrows a memory, and none of those that read its edge can lend it", "keep two")
        elif lender.name in borrowed:
            yield f"{node.name} borrows the memory of {lender.name}, as {borrowed[lender.name]} does"
        else:
            borrowed[lender.name] = node.name


def _consumer_breaches(graph: Graph, stage: Stage) -> Iterator[Problem | str]:
    for edge, uses in graph.consumers.items():
        if edge not in graph.producers:
            continue
        if not uses and stage.promises(Stage.TRAINING):
            yield f"edge {edge} has no consumer"
        if len(uses) > 1 and stage.promises(Stage.STREAMING):
            streams = [node for node, sink in uses if sink.name not in node.layer.borrowed]
            if len(streams) > 1:
                yield Problem(f"edge {edge} has {len(streams)} consumers", "a fork is missing")
        if stage.promises(Stage.STREAMING):
            source = graph.producers[edge][1]
            for node, sink in uses:
                # what moves in step may wait for a reader
                waits = source.tensor.kind.hops_must_match and sink.tensor.kind is Kind.STASH
                if source.tensor.kind is not sink.tensor.kind and not waits:
                    yield (
                        f"edge {edge}: kind {source.tensor.kind.value} meets {sink.tensor.kind.value} "
                        f"at {node.name}.{sink.name}"
                    )


def _folding_breaches(graph: Graph) -> Iterator[Problem | str]:
    """Lanes of the two ends of an edge may differ, since a width adapter stands between them; what the adapter can't
    mend is another order, and a beat with parts of two pixels."""
    for edge, producer, source, consumer, sink in graph.edges:
        ends = f"{producer.name}.{source.name} -> {consumer.name}.{sink.name}"
        if source.tensor.kind.of_parameter:
            given, wanted = producer.layer.stream_tile(source.name), consumer.layer.stream_tile(sink.name)
            if given != wanted:
                what = f"edge {edge}, {ends}: tile {given} meets {wanted}"
                yield Problem(what, "fold all nodes of a weight group for one tile")
        else:
            for node, port in ((producer, source), (consumer, sink)):
                channels = port.tensor.shape[-1]
                if channels % port.lanes and port.lanes % channels:
                    yield (
                        f"edge {edge}: {port.lanes} lanes of {node.name}.{port.name} do not divide its {channels} "
                        "channels, nor are they whole pixels"
                    )


def _place_breaches(graph: Graph) -> Iterator[Problem | str]:
    if not isinstance(graph, PlacedGraph):
        yield Problem("it has no devices", "place it")
        return
    for name in sorted(graph.placed.keys() - graph.by_name.keys()):
        yield f"{name} is placed on {graph.placed[name]}, but there is no such node"
    for node in graph.nodes:
        device = graph.placed.get(node.name)
        if device is None:
            yield f"{node.name} stands on no device"
        elif node.name in graph.lenders and device != graph.placed.get(graph.lenders[node.name].name):
            lender = graph.lenders[node.name].name
            what = f"{node.name} stands on {device} and reads the memory of {lender}, which stands elsewhere"
            yield Problem(what, "place both on one device")
        elif device not in graph.devices:
            yield f"{node.name} stands on {device}, which is none of {', '.join(graph.devices)}"
        elif node.layer.pinned_to_host and device != graph.devices[0]:
            what = f"{node.name} talks to the host and stands on {device}"
            yield Problem(what, f"the host's device is {graph.devices[0]}")
