"""What a graph promises at each stage: one graph broken on purpose for every rule, and passes that are held to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph, GraphError, Node, PlacedGraph, Role, Stage, verify
from dagtrain.passes.apply import apply, graph_pass
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.insert_relays import insert_relays, shortcuts
from dagtrain.passes.memory_home import move_memories
from dagtrain.passes.place import place
from dagtrain.passes.remote_memory import remote_memory
from dagtrain.passes.split_layers import Parts, split_layers
from hdl.fixed import Fixed
from hdl.layers.storage import Home
from hdl.recipe import Recipe
from hdl.tensor import Kind, Tile

DEVICES = ("alpha", "beta")
CYCLES = 300


@cache
def forward() -> Graph:
    """Two convolutions of four channels with a shortcut round the second."""
    build = GraphBuilder("net", Recipe(batch=2), seed=3)
    x = build.relu(build.conv(build.input(6, 6, 2), 4, kernel=3, padding=1))
    x = build.relu(build.add(build.conv(x, 4, kernel=3, padding=1), x))
    return build.classify(build.gemm(build.global_average_pool(x), 3))


@cache
def at(stage: Stage) -> Graph:
    """That network at a stage, legal."""
    if stage is Stage.FORWARD:
        return forward()
    if stage is Stage.TRAINING:
        return differentiate(forward())
    if stage is Stage.STREAMING:
        return insert_forks(at(Stage.TRAINING))
    folded = fold_graph(at(Stage.STREAMING), CYCLES)
    if stage is Stage.FOLDED:
        return folded
    second = {"conv2", "conv2.error"}
    return place(folded, {node.name: DEVICES[node.name in second] for node in folded.nodes}, DEVICES)


def changed(graph: Graph, name: str, **fields: Any) -> Graph:
    """The graph with other fields of one node."""
    nodes = tuple(replace(node, **fields) if node.name == name else node for node in graph.nodes)
    return replace(graph, nodes=nodes)


def rewired(graph: Graph, name: str, **edges: str) -> Graph:
    """The graph with other edges at some sinks of one node."""
    return changed(graph, name, inputs={**graph.by_name[name].inputs, **edges})


def relaid(graph: Graph, name: str, **settings: Any) -> Graph:
    """The graph with other settings of one node's layer."""
    layer: Any = graph.by_name[name].layer
    return changed(graph, name, layer=replace(layer, **settings))


def without(mapping: Mapping[str, str], key: str) -> dict[str, str]:
    """The mapping without a key."""
    return {name: value for name, value in mapping.items() if name != key}


def unconnected(graph: Graph, name: str, sink: str) -> Graph:
    """The graph in which a sink has no edge."""
    return changed(graph, name, inputs=without(graph.by_name[name].inputs, sink))


def unread(graph: Graph, edge: str) -> Graph:
    """The graph without the nodes that read an edge, and all that depends on them."""
    gone = {edge}
    nodes: list[Node] = []
    for node in graph.nodes:
        if gone & set(node.inputs.values()):
            gone.update(node.outputs.values())
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def on(graph: Graph, name: str, device: str | None) -> Graph:
    """The placed graph with one node elsewhere, or nowhere."""
    assert isinstance(graph, PlacedGraph)
    rest = without(graph.placed, name)
    return replace(graph, placed=rest if device is None else {**rest, name: device})


def breaches(graph: Graph, stage: Stage) -> str:
    """What `verify` says of a graph; "" of a legal one."""
    try:
        verify(graph, stage)
    except GraphError as error:
        return str(error)
    return ""


# rule -> the stage from which on it holds, a graph that breaks it, a breach that is told
BROKEN: dict[str, tuple[Stage, Callable[[Graph], Graph], str]] = {
    "names are unique": (
        Stage.FORWARD,
        lambda g: replace(g, nodes=(*g.nodes, g.by_name["relu1"])),
        "two nodes are named relu1",
    ),
    "edges have one producer": (
        Stage.FORWARD,
        lambda g: changed(g, "relu2", outputs={**g.by_name["relu2"].outputs, "y": "relu1.y"}),
        "edge relu1.y has two producers, one is relu2",
    ),
    "a node has its layer's sinks": (
        Stage.FORWARD,
        lambda g: rewired(g, "relu1", z="conv1.y"),
        "relu1 has no sink z",
    ),
    "a node has its layer's sources": (
        Stage.FORWARD,
        lambda g: changed(g, "conv1", outputs={**g.by_name["conv1"].outputs, "z": "conv1.z"}),
        "conv1 has no source z",
    ),
    "parameters are of ports": (
        Stage.FORWARD,
        lambda g: changed(g, "conv1", parameters={**g.by_name["conv1"].parameters, "v": "conv1.w"}),
        "conv1 has no port v for a parameter",
    ),
    "nodes stand behind what they read": (
        Stage.FORWARD,
        lambda g: replace(g, nodes=g.nodes[::-1]),
        "relu2 stands before add1, whose edge add1.y it reads",
    ),
    "every source has an edge": (
        Stage.FORWARD,
        lambda g: changed(g, "conv1", outputs={}),
        "source conv1.y has no edge",
    ),
    "activations are connected": (
        Stage.FORWARD,
        lambda g: unconnected(g, "relu1", "x"),
        "sink relu1.x is not connected",
    ),
    "edges are produced": (
        Stage.FORWARD,
        lambda g: rewired(g, "relu1", x="nowhere"),
        "sink relu1.x reads edge nowhere, which nobody produces",
    ),
    "shapes agree": (
        Stage.FORWARD,
        lambda g: rewired(g, "relu2", x="input1.y"),
        "input1.y -> relu2.x: shape (6, 6, 2) meets (6, 6, 4)",
    ),
    "formats agree": (
        Stage.FORWARD,
        lambda g: relaid(g, "relu1", x_fixed=Fixed(16, 3)),
        "conv1.y -> relu1.x: format s16.8 meets s16.3",
    ),
    "parameters have values": (
        Stage.FORWARD,
        lambda g: changed(g, "conv1", parameters={"w": "conv9.w"}),
        "conv1 needs parameter conv9.w, which has no initial value",
    ),
    "a node serves a forward node": (
        Stage.FORWARD,
        lambda g: changed(g, "relu1", layer_of="relu9"),
        "relu1 is of layer relu9, which is no forward node",
    ),
    "a node is of what its layer is a part of": (
        Stage.TRAINING,
        lambda g: changed(g, "conv2.error", whole="conv1"),
        "conv2.error is of conv1, its layer conv2 of conv2",
    ),
    "a forward node has the role": (
        Stage.FORWARD,
        lambda g: changed(g, "relu1", role=Role.ERROR),
        "relu1 of layer relu1 can't have the role error",
    ),
    "what serves a layer is none": (
        Stage.TRAINING,
        lambda g: changed(g, "conv2.error", role=Role.FORWARD),
        "conv2.error of layer conv2 can't have the role forward",
    ),
    "weights are connected": (
        Stage.TRAINING,
        lambda g: unconnected(g, "conv1", "w"),
        "sink conv1.w is not connected",
    ),
    "edges are read": (
        Stage.TRAINING,
        lambda g: unread(g, "conv2.gradient.g"),
        "edge conv2.gradient.g has no consumer",
    ),
    "once a frame is not once a batch": (
        Stage.FORWARD,
        lambda g: relaid(g, "add1", kind=Kind.GRADIENT),
        "conv2.y -> add1.a: activation meets gradient",
    ),
    "an edge has one reader": (
        Stage.STREAMING,
        lambda g: rewired(g, "conv2", x="relu1.y.fork.y1"),
        "edge relu1.y.fork.y1 has 2 consumers; a fork is missing",
    ),
    "kinds agree": (
        Stage.STREAMING,
        lambda g: relaid(g, "relu1.y.fork", kinds=(Kind.STASH, Kind.ACTIVATION, Kind.STASH)),
        "edge relu1.y.fork.y0: kind stash meets activation at conv2.x",
    ),
    "weights have one order": (
        Stage.FOLDED,
        lambda g: relaid(g, "conv2.w.update", tile=Tile(po=4), w_lanes=1),
        "edge conv2.w.update.w, conv2.w.update.w -> conv2.w.update.w.fork.x: tile Tile(po=4, pi=1, pk=1) meets ",
    ),
    "a beat is of one pixel or of whole ones": (
        Stage.FOLDED,
        lambda g: relaid(g, "relu1.y.fork", lanes=6),
        "edge relu1.y: 6 lanes of relu1.y.fork.x do not divide its 4 channels, nor are they whole pixels",
    ),
    "every node has a device": (
        Stage.PLACED,
        lambda g: on(g, "conv2", None),
        "conv2 stands on no device",
    ),
    "devices are of the cluster": (
        Stage.PLACED,
        lambda g: on(g, "conv2", "gamma"),
        "conv2 stands on gamma, which is none of alpha, beta",
    ),
    "what is placed is a node": (
        Stage.PLACED,
        lambda g: on(g, "conv9", "beta"),
        "conv9 is placed on beta, but there is no such node",
    ),
    "the host has its device": (
        Stage.PLACED,
        lambda g: on(g, "input1", "beta"),
        "input1 talks to the host and stands on beta; the host's device is alpha",
    ),
    "a placed graph has devices": (
        Stage.PLACED,
        lambda g: Graph(g.name, g.nodes, g.recipe, g.parameters),
        "it has no devices; place it",
    ),
}


@pytest.mark.parametrize("stage", Stage)
def test_a_graph_keeps_the_promises_of_its_stage_and_of_those_before(stage: Stage) -> None:
    graph = at(stage)
    for other in Stage:
        if stage.promises(other) and (other is not Stage.FORWARD or stage is other):
            assert verify(graph, other) is graph


@pytest.mark.parametrize(
    ("rule", "stage"),
    [(rule, stage) for rule, (first, _, _) in BROKEN.items() for stage in Stage if stage.promises(first)],
)
def test_a_broken_graph_is_refused_from_the_stage_on_that_promises_the_rule(rule: str, stage: Stage) -> None:
    _, spoil, told = BROKEN[rule]
    said = rf"^graph net is not a legal {stage.value} graph:\n(.*\n)*  {re.escape(told)}"
    with pytest.raises(GraphError, match=said):
        verify(spoil(at(stage)), stage)


@pytest.mark.parametrize("rule", [rule for rule, (first, _, _) in BROKEN.items() if first is not Stage.FORWARD])
def test_stages_between_do_not_promise_the_rule(rule: str) -> None:
    first, spoil, told = BROKEN[rule]
    graph = spoil(at(first))
    assert told in breaches(graph, first)
    before = [stage for stage in Stage if stage is not Stage.FORWARD and not stage.promises(first)]
    assert not [stage for stage in before if told in breaches(graph, stage)]


def test_a_pass_is_held_to_what_it_requires_and_to_what_it_ensures() -> None:
    @graph_pass(Stage.TRAINING, Stage.STREAMING)
    def forget_forks(graph: Graph) -> Graph:
        return graph

    with pytest.raises(GraphError, match=r"net is not a legal training graph:\n  sink conv1.w is not connected"):
        apply(forget_forks, forward())
    with pytest.raises(GraphError, match=r"net is not a legal streaming graph:\n.* consumers; a fork is missing"):
        forget_forks(at(Stage.TRAINING))
    assert forget_forks.run(forward()) is forward()


def test_passes_refuse_graphs_of_an_earlier_stage() -> None:
    for call, stage in (
        (lambda g: insert_forks(g), Stage.FORWARD),
        (lambda g: insert_relays(g, ()), Stage.TRAINING),
        (lambda g: move_memories(g, {}), Stage.TRAINING),
        (lambda g: remote_memory(g, ()), Stage.TRAINING),
        (lambda g: fold_graph(g, CYCLES), Stage.TRAINING),
    ):
        with pytest.raises(GraphError, match="is not a legal"):
            call(at(stage))


def test_relays_and_memories_outside_leave_a_streaming_graph() -> None:
    graph = at(Stage.STREAMING)
    relayed = insert_relays(graph, shortcuts(graph))
    assert len(relayed.nodes) > len(graph.nodes)
    verify(move_memories(relayed, {"conv2.w.update": Home.DRAM}), Stage.STREAMING)
    verify(remote_memory(relayed, ["conv2.w.update", "conv2"]), Stage.STREAMING)


def test_crossing_edges_are_those_between_devices() -> None:
    graph = at(Stage.PLACED)
    assert isinstance(graph, PlacedGraph)
    ends = {(producer.name, consumer.name) for _edge, producer, _source, consumer, _sink in graph.crossing}
    assert ("relu1.y.fork", "conv2") in ends
    assert not ends & {("conv2.w.update", "conv2.w.update.w.fork"), ("conv2", "conv2.error")}
    assert len(list(graph.crossing)) == len(ends) == 6
    assert all(graph.placed[p.name] != graph.placed[c.name] for _e, p, _s, c, _k in graph.crossing)


def test_roles_and_layers_of_a_streaming_graph() -> None:
    graph = insert_relays(at(Stage.STREAMING), shortcuts(at(Stage.STREAMING)))
    graph = remote_memory(graph, ["conv2.error"])
    found: dict[Role, dict[str, list[str]]] = {role: {} for role in Role}
    for node in graph.nodes:
        found[node.role].setdefault(node.layer_of, []).append(node.name)
    layers = ("conv1", "relu1", "conv2", "add1", "relu2", "average1", "gemm1", "bias1", "loss1")
    assert found == {
        Role.FORWARD: {name: [name] for name in layers},
        Role.HOST: {"input1": ["input1"], "loss1": ["loss1.label", "loss1.results"]},
        Role.ERROR: {name: [f"{name}.error"] for name in ("gemm1", "average1", "relu2", "conv2", "relu1")},
        Role.SUM: {"relu1": ["relu1.y.sum0"]},
        Role.GRADIENT: {name: [f"{name}.gradient"] for name in ("bias1", "gemm1", "conv2", "conv1")},
        Role.UPDATE: {name: [f"{name}.{'b' if name == 'bias1' else 'w'}.update"] for name in found[Role.GRADIENT]},
        Role.FORK: {
            "input1": ["input1.y.fork"],
            "relu1": ["relu1.y.fork"],
            "average1": ["average1.y.fork"],
            "loss1": ["loss1.error.fork"],
            "relu2": ["relu2.error.dx.fork"],
            "conv2": ["conv2.w.update.w.fork"],
            "gemm1": ["gemm1.w.update.w.fork"],
        },
        Role.RELAY: {"relu1": ["relu1.y.fork.y1.relay"], "relu2": ["relu2.error.dx.fork.y2.relay"]},
        # of chosen numbers alone (tests/test_chosen_numbers.py)
        Role.COUNTER: {},
        # of copies (tests/test_copies.py)
        Role.DEAL: {},
        Role.NARROW: {},
        # tests/test_recompute.py
        Role.RECOMPUTE: {},
        Role.STORE: {"conv2": ["conv2.error.store"]},
    }


def test_forward_graphs_have_forward_nodes_only() -> None:
    with pytest.raises(GraphError, match=r"not a legal forward graph:\n(.*\n)*  conv2\.error is no forward node"):
        verify(at(Stage.TRAINING), Stage.FORWARD)


def test_parts_of_a_layer_know_it_and_so_does_what_serves_them() -> None:
    graph = insert_forks(differentiate(split_layers(forward(), {"conv2": Parts(2)})))
    parts = {node.name for node in graph.nodes if node.is_layer and node.whole == "conv2"}
    assert parts == {"conv2_part0", "conv2_part1", "conv2_join1"}
    assert {node.layer_of for node in graph.nodes if node.whole == "conv2"} == parts
    assert all(node.whole == node.layer_of for node in graph.nodes if node.layer_of not in parts)
