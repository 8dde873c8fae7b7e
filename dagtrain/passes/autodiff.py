"""Reverse-mode differentiation: a forward graph becomes a training graph.

The pass knows no layer.  It walks the forward nodes from the loss to the input and lets each layer put its own
backward nodes on a `hdl.layers.meaning.Tape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dagtrain.graph.ir import Graph, GraphError, Node, Role, Stage
from dagtrain.passes.apply import graph_pass
from dagtrain.passes.formats import propagate_formats
from hdl.layers.base import Layer
from hdl.layers.capabilities import with_random_bits_of
from hdl.layers.pointwise.add import Add
from hdl.layers.wiring.update import Update
from hdl.random_bits import stable_id
from hdl.recipe import Recipe
from hdl.tensor import Kind


@graph_pass(Stage.FORWARD, Stage.TRAINING)
def differentiate(graph: Graph) -> Graph:
    """The training graph of a forward graph; names are deterministic.

    1. A node whose sources got errors, or that makes errors itself (a loss), lays its backward nodes
       ``<node>.<suffix>`` with edges ``<node>.<suffix>.<port>``.
    2. Errors of several consumers of an edge are summed by ``<producer>.<port>.sum<i>``, an `Add` of kind ERROR; those
       of an auxiliary head last, which wait for the others like a stash (`Tape.give_error`).
    3. A sink with nothing trained upstream gets no error (the first convolution has no error engine), and what a layer
       there would keep for the way back has no edge.
    4. A weight gets ``<node>.<sink>.update``; its edge reaches every engine that multiplies by it, one batch later.
    5. What a layer holds (`Shape.held_parameters`) has no gradient and no update; backward nodes hold it too.
    6. A layer that draws random bits gets a `tensor_id` from its name; an update, from its parameter's key.

    Raises `GraphError` when there is no loss, nothing learns, a parameter is used twice, or an error is missing."""
    return _Differentiation(graph).run()


@dataclass
class _Differentiation:
    """The state of one walk."""

    graph: Graph
    # forward nodes, whose inputs grow by weight and label edges
    forward: dict[str, Node] = field(default_factory=dict)
    backward: dict[str, Node] = field(default_factory=dict)
    # forward edge -> error edges handed over by its consumers, not summed yet
    errors: dict[str, list[str]] = field(default_factory=dict)
    # error edges that come of auxiliary heads alone
    early: set[str] = field(default_factory=set)
    # what `Tape.share` has made
    shared: dict[Layer, dict[str, str]] = field(default_factory=dict)
    # forward edges with something trained upstream
    learns: set[str] = field(default_factory=set)
    # weight edge -> key of its parameter
    weights: dict[str, str] = field(default_factory=dict)

    def run(self) -> Graph:
        """Walk all nodes in reverse; returns the training graph."""
        self._check_parameters()
        self.forward = {node.name: _with_own_random_bits(node) for node in self.graph.nodes}
        for node in self.graph.nodes:
            if node.layer.trained() or any(edge in self.learns for edge in node.inputs.values()):
                self.learns.update(node.outputs.values())
        if not any(map(_is_loss, self.graph.nodes)):
            raise GraphError(f"graph {self.graph.name} has no loss layer, so nothing says what to learn", "add one")
        if not self.learns:
            raise GraphError(f"graph {self.graph.name} has no weights that learn", "freeze fewer layers")
        for node in reversed(self.graph.nodes):
            if _is_loss(node) or any(edge in self.errors for edge in node.outputs.values()):
                self.forward[node.name].layer.backward(_NodeTape(self, node.name))
        nodes = self._without_idle_stashes((*self.forward.values(), *self.backward.values()))
        return propagate_formats.run(self.graph.with_nodes(nodes))

    def error(self, edge: str) -> str:
        """The one error edge of a forward edge, summing contributions in the order in which they were given."""
        parts = sorted(self.errors.get(edge, []), key=self.early.__contains__)
        if not parts:
            raise GraphError(f"no error reaches edge {edge}: nothing between it and the loss is differentiable")
        total = parts[0]
        for index, part in enumerate(parts[1:]):
            producer, port = self.graph.producers[edge]
            height, width, channels = port.tensor.shape
            early, waits = total in self.early, part in self.early
            adder = Add(height=height, width=width, channels=channels, kind=Kind.ERROR, early=waits and not early)
            name = f"{producer.name}.{port.name}.sum{index}"
            total = self.add(producer, name, adder, {"a": total, "b": part}, Role.SUM)["y"]
            if early:
                self.early.add(total)
        self.errors[edge] = [total]
        return total

    def add(
        self, of: Node, name: str, layer: Layer, inputs: Mapping[str, str], role: Role | None = None
    ) -> dict[str, str]:
        """Add a backward node of a forward one; its users of weight edges share the weight's parameter key."""
        if name in self.forward or name in self.backward:
            raise GraphError(f"differentiation needs the node name {name}, which is taken", "rename that node")
        outputs = {port.name: f"{name}.{port.name}" for port in layer.sources}
        parameters = {port: self.weights[edge] for port, edge in inputs.items() if edge in self.weights}
        parameters |= {port.name: of.parameters[port.name] for port in layer.held_parameters}
        role = role or Role.backward(layer)
        self.backward[name] = Node(name, layer, dict(inputs), outputs, parameters, role, of.name, of.whole)
        return outputs

    def _without_idle_stashes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes without edges of what is kept for the way back before the first layer that learns."""
        used = {edge for node in nodes for edge in node.inputs.values()}
        idle = {
            node.outputs[port.name]
            for node in self.forward.values()
            for port in node.layer.sources
            if port.tensor.kind is Kind.STASH and port.name in node.outputs
        } - (self.learns | used)
        return tuple(
            replace(node, outputs={port: edge for port, edge in node.outputs.items() if edge not in idle})
            for node in nodes
        )

    def _check_parameters(self) -> None:
        """Every weight sink names a parameter of its own."""
        users: dict[str, str] = {}
        for node in self.graph.nodes:
            for sink in node.layer.parameter_shapes():
                key = node.parameters.get(sink)
                if key is None:
                    raise GraphError(f"{node.name}.{sink} names no parameter", "put its key into the node's parameters")
                if key in users:
                    raise GraphError(
                        f"parameter {key} is used by {users[key]} and {node.name}",
                        "tied weights can't be trained, give each layer its own copy",
                    )
                users[key] = node.name


class _NodeTape:
    """The `Tape` of one forward node."""

    def __init__(self, walk: _Differentiation, name: str) -> None:
        self.walk = walk
        self.name = name

    @property
    def node(self) -> Node:
        """The forward node as it stands now."""
        return self.walk.forward[self.name]

    def value(self, port: str) -> str:
        edge = self.node.inputs.get(port) or self.node.outputs.get(port)
        if edge is None:
            raise GraphError(f"{self.name}.{port} has no edge")
        return edge

    def error(self, port: str) -> str:
        return self.walk.error(self.node.outputs[port])

    def needs_error(self, port: str) -> bool:
        return self.node.inputs[port] in self.walk.learns

    def add(self, suffix: str, layer: Layer, inputs: Mapping[str, str]) -> dict[str, str]:
        return self.walk.add(self.node, f"{self.name}.{suffix}", layer, inputs)

    def share(self, suffix: str, layer: Layer) -> dict[str, str]:
        if layer not in self.walk.shared:
            self.walk.shared[layer] = self.add(suffix, layer, {})
        return self.walk.shared[layer]

    def give_error(self, port: str, edge: str, *, early: bool = False) -> None:
        arrived = [part for made in self.node.outputs.values() for part in self.walk.errors.get(made, [])]
        if early or (arrived and self.walk.early.issuperset(arrived)):
            self.walk.early.add(edge)
        self.walk.errors.setdefault(self.node.inputs[port], []).append(edge)

    def learn(self, sink: str, gradient: str) -> str:
        node = self.node
        key = node.parameters[sink]
        layer = _update(node.layer, sink, self.walk.graph.recipe, key)
        name = f"{self.name}.{sink}.update"
        self.walk.add(node, name, layer, {"g": gradient})
        self.walk.backward[name] = replace(self.walk.backward[name], parameters={"w": key})
        edge = self.weight(sink)
        self.connect(sink, edge)
        return edge

    def weight(self, sink: str) -> str:
        edge = f"{self.name}.{sink}.update.w"
        self.walk.weights[edge] = self.node.parameters[sink]
        return edge

    def connect(self, node_edge_sink: str, edge: str) -> None:
        node = self.node
        if node_edge_sink in node.inputs:
            raise GraphError(f"{self.name}.{node_edge_sink} is connected to {node.inputs[node_edge_sink]} already")
        self.walk.forward[self.name] = replace(node, inputs={**node.inputs, node_edge_sink: edge})


def _update(layer: Layer, sink: str, recipe: Recipe, key: str) -> Update:
    """The update of one parameter; weight decay spares vectors (scales, shifts, biases), as is usual, but no kernel,
    even where that holds a scale a channel."""
    tensor = layer.port(sink).tensor
    return Update(
        shape=tensor.shape,
        recipe=recipe,
        tensor_id=stable_id(key),
        decay=len(tensor.shape) > 1,
        w_fixed=tensor.fixed,
    )


def _with_own_random_bits(node: Node) -> Node:
    """The node with a `tensor_id` of its own, if its layer draws random bits."""
    return replace(node, layer=with_random_bits_of(node.layer, stable_id(node.name)))


def _is_loss(node: Node) -> bool:
    """Whether a forward layer makes errors."""
    return any(port.tensor.kind is Kind.ERROR for port in node.layer.sources)
