"""Weights, sums and optimiser state in stores, nodes of the graph: whole clusters train to the bits of the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, Role
from dagtrain.graph.storage import graph_from_json, graph_to_json
from dagtrain.graph.stores import first_images, owner_of
from dagtrain.passes.access_state import access_state
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.freeze_layers import freeze_layers
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import move_memories
from dagtrain.passes.remote_memory import has_store, remote_memory, storable, store_of
from dagtrain.progress import Silent
from dagtrain.schedule.buffers import PER_BATCH_BEATS, fifo_beats
from dagtrain.schedule.schedule import needed_staleness, schedule
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.errors import DagtrainError
from hdl.layers.storage import Home
from hdl.layers.store.ring_store import RingStore
from hdl.layers.store.weight_store import WeightStore
from hdl.recipe import Recipe
from hdl.tensor import Kind
from tests.cosim_support import (
    CYCLES,
    DEVICES,
    placement,
    residual_net,
    said_batch_cycles,
    simulate_design,
    tiny_net,
    tiny_placement,
)

LIBRARY = ModuleLibrary(cache_folder() / "modules")
NETWORK_CYCLES = 90
# of `tiny_net` with sums of gradients that come and go
TINY_CYCLES = 200
# of `tiny_net`, one of each kind
TINY = ("conv1", "conv2.error", "conv1.gradient", "conv2.w.update", "bias1.b.update")
BATCHES = 3


def names(graph: Graph) -> list[str]:
    return [node.name for node in storable(graph)]


def elsewhere(graph: Graph, placed: Mapping[str, str], devices: int) -> dict[str, str]:
    """Every store on another device than its engine."""
    found = dict(placed)
    for node in graph.nodes:
        if node.layer.is_store:
            found[node.name] = DEVICES[(DEVICES.index(placed[owner_of(graph, node).name]) + 1) % devices]
    return found


def tiny_remote(graph: Graph, **options: Any) -> ClusterDesign:
    placed = elsewhere(graph, tiny_placement(graph), 2)
    return design_cluster(graph, placed, DEVICES, TINY_CYCLES, LIBRARY, word_bits=64, **options)


def train(design: ClusterDesign, folder: Path, stall_256: int = 40, batches: int = BATCHES) -> ClusterRun:
    feeds = [synthetic_feeds(design.graph, design.graph.recipe.batch, 100 + index) for index in range(batches)]
    network = NetworkModel(
        latency_cycles=NETWORK_CYCLES, words=1, cycles=2 if stall_256 else 1, stall_256=stall_256, seed=3
    )
    return simulate_design(
        design, LIBRARY, feeds, folder, Simulator.VERILATOR, network, stall_256, 3, Silent(), optimise=False
    )


def ends_right(run: ClusterRun, frames: int) -> None:
    assert run.mismatches == ()
    assert len(run.losses) == frames


# ---- the pass


def test_each_memory_gets_the_store_that_suits_it() -> None:
    graph = tiny_net()
    found = remote_memory(graph, TINY)
    stores = {node.name: node for node in found.nodes if node.role is Role.STORE}
    assert set(stores) == {store_of(name) for name in TINY}
    for name in TINY:
        store, owner = stores[store_of(name)], found.by_name[name]
        assert owner_of(found, store).name == name
        assert (store.layer_of, store.whole) == (owner.layer_of, owner.whole)
        kind = {"conv1": Kind.REPLAY, "conv2.error": Kind.REPLAY, "conv1.gradient": Kind.SUMS}.get(name, Kind.STATE)
        assert store.layer.sources[0].tensor.kind is kind
        assert isinstance(store.layer, WeightStore if kind is Kind.REPLAY else RingStore)
    assert stores["conv1.store"].inputs["w"] == graph.by_name["conv1"].inputs["w"]
    assert {node.name for node in found.nodes if has_store(node)} == set(TINY)
    # it is there already
    assert remote_memory(found, TINY) == found
    assert {*names(found)} == {*names(graph)} - {*TINY}


def test_what_has_no_memory_and_what_is_no_node_are_one_message() -> None:
    with pytest.raises(DagtrainError) as caught:
        remote_memory(tiny_net(), ["relu1", "conv9", "conv1"])
    text = str(caught.value)
    assert "conv9: no such node" in text
    assert "relu1: has no memory that could lie in a store; leave it where it is" in text
    assert "conv1:" not in text


def test_a_graph_computes_as_the_one_with_its_memories_in_dram_does() -> None:
    graph = tiny_net()
    found, outside = remote_memory(graph, names(graph)), move_memories(graph, dict.fromkeys(names(graph), Home.DRAM))
    assert graph.computing is graph
    assert set(map(str, found.computing.nodes)) == set(map(str, outside.nodes))
    assert {node.name: node.layer for node in found.computing.nodes} == {
        node.name: node.layer for node in outside.nodes
    }


def test_the_emulator_has_the_bits_of_the_graph_without_stores() -> None:
    graph = tiny_net(2)
    plain, stored = Executor(graph), Executor(remote_memory(graph, names(graph)))
    for seed in range(3):
        feeds = synthetic_feeds(graph, graph.recipe.batch, seed)
        one, other = plain.step(feeds), stored.step(feeds)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert all(np.array_equal(plain.parameters()[key], value) for key, value in stored.parameters().items())


def test_a_graph_with_stores_is_the_same_from_a_file() -> None:
    found = remote_memory(tiny_net(), TINY)
    again = graph_from_json(graph_to_json(found), "here")
    assert list(map(str, again.nodes)) == list(map(str, found.nodes))
    assert [node.layer for node in again.nodes] == [node.layer for node in found.nodes]


def test_the_first_state_and_version_0_stand_in_the_image_of_the_store() -> None:
    graph = tiny_net()
    plain = fold_graph(move_memories(graph, dict.fromkeys(TINY, Home.DRAM)), TINY_CYCLES)
    found = fold_graph(remote_memory(graph, TINY), TINY_CYCLES)
    for name in TINY:
        store, owner = found.by_name[store_of(name)], plain.by_name[name]
        words = first_images(found, store)["held"]
        (memory,) = store.layer.memories()
        assert len(words) == memory.depth
        if name == "conv1.gradient":
            assert not any(words)
            continue
        beats = first_images(plain, owner)["w" if owner.layer.replayed else "state"]
        bits = sum(word << memory.width * at for at, word in enumerate(words))
        width = owner.layer.rings[0].back.payload_bits if owner.layer.rings else owner.layer.port("w").payload_bits
        assert bits == sum(beat << width * at for at, beat in enumerate(beats))
        # biases begin at 0
        assert bits or name == "bias1.b.update"


def test_new_weights_come_later_by_the_way_from_their_store() -> None:
    graph = fold_graph(remote_memory(tiny_net(), names(tiny_net())), TINY_CYCLES)
    near, far = ({"conv1.store": cycles, "conv1.kept": 0} for cycles in (0, 20 * TINY_CYCLES))
    plans = [schedule(graph, TINY_CYCLES, delays) for delays in (near, far)]
    least = [needed_staleness(graph, plan, delays) for plan, delays in zip(plans, (near, far), strict=True)]
    assert least[1] >= least[0] + 15
    plain = fold_graph(move_memories(tiny_net(), dict.fromkeys(names(tiny_net()), Home.DRAM)), TINY_CYCLES)
    assert least[0] == needed_staleness(plain, schedule(plain, TINY_CYCLES))
    depths = [fifo_beats(graph, plan) for plan in plans]
    edges = [edge for edge, *_, sink in graph.edges if sink.tensor.kind.of_store]
    assert {depths[0][edge] for edge in edges} == {PER_BATCH_BEATS}
    # a round trip of 40 frames: all of a tensor
    assert depths[1]["conv1.store"] == graph.producers["conv1.store"][1].beats + PER_BATCH_BEATS
    assert depths[0].keys() == {edge for edge, *_ in graph.edges}


def test_a_store_of_what_is_loaded_begins_with_nothing() -> None:
    graph = fold_graph(remote_memory(tiny_net(), TINY), TINY_CYCLES)
    loaded = access_state(graph)
    for name in TINY:
        before, after = (found.by_name[store_of(name)].layer for found in (graph, loaded))
        assert isinstance(before, WeightStore | RingStore)
        assert isinstance(after, WeightStore | RingStore)
        assert before.store.preload == (name != "conv1.gradient")
        assert after.store.preload == 0
        # a memory of its own kind, but for sums, which begin with nothing anyway
        assert (before.built == after.built) == (name == "conv1.gradient")
        assert not after.is_link
    frozen = replace(loaded.by_name["conv1.store"].layer, frozen=True)  # type: ignore[type-var]
    assert isinstance(frozen, WeightStore)
    assert frozen.store.preload == 1


# ---- whole clusters


def test_every_memory_in_a_store_on_another_device_changes_no_bit(tmp_path: Path) -> None:
    graph = remote_memory(tiny_net(), names(tiny_net()))
    design = tiny_remote(graph)
    assert not any(device.memories for device in design.devices)
    run = train(design, tmp_path)
    ends_right(run, BATCHES * graph.recipe.batch)


def swapped(graph: Graph, one: str, other: str) -> Graph:
    """Each of two nodes gets what the other keeps."""
    first, second = (store_of(name) for name in (one, other))
    turned = {first: second, second: first}
    nodes = tuple(
        replace(node, inputs={port: turned.get(edge, edge) for port, edge in node.inputs.items()})
        for node in graph.nodes
    )
    return graph.with_nodes(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", names(tiny_net()))
def test_each_memory_in_turn_in_a_store_changes_no_bit(name: str, tmp_path: Path) -> None:
    graph = remote_memory(tiny_net(), [name])
    ends_right(train(tiny_remote(graph), tmp_path), BATCHES * graph.recipe.batch)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
def test_links_of_a_word_change_no_bit(staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagtrain.emission.links.LEAST_LINK_WORDS", 1)
    graph = remote_memory(tiny_net(staleness), names(tiny_net()))
    edges = [edge for edge, *_, sink in graph.edges if sink.tensor.kind.of_store]
    design = tiny_remote(graph, fifo_override=dict.fromkeys(edges, 1))
    ends_right(train(design, tmp_path, stall_256=120), BATCHES * graph.recipe.batch)


@pytest.mark.slow
def test_frozen_weights_in_a_store_change_no_bit(tmp_path: Path) -> None:
    builder = GraphBuilder("frozen", Recipe(batch=2, staleness=1), seed=3)
    x = builder.relu(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1))
    x = builder.conv(x, 4, 3, padding=1)
    forward = builder.classify(builder.gemm(builder.global_average_pool(x), 3))
    training = differentiate(freeze_layers(forward, ["conv2"]))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, 2, seed) for seed in range(2)]))
    stored = remote_memory(graph, ["conv2", "conv2.error", "conv1"])
    assert stored.by_name["conv2.store"].inputs == {}
    placed = elsewhere(stored, placement(stored, "one"), 2)
    design = design_cluster(stored, placed, DEVICES, TINY_CYCLES, LIBRARY, word_bits=64)
    ends_right(train(design, tmp_path), BATCHES * graph.recipe.batch)


@pytest.mark.slow
def test_sums_that_come_back_to_another_node_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = residual_net(2)
    # their formats differ, which is seen at once
    monkeypatch.setattr("dagtrain.graph.ir._type_breaches", lambda *_: ())
    stored = remote_memory(graph, ["conv3.gradient", "conv4.gradient"])
    placed = elsewhere(stored, placement(stored, "one"), 2)
    wrong = design_cluster(
        swapped(stored, "conv3.gradient", "conv4.gradient"), placed, DEVICES, CYCLES, LIBRARY, word_bits=64
    )
    run = train(wrong, tmp_path)
    assert any("master" in text or "momentum" in text or "weights" in text for text in run.mismatches)


EVERY = pytest.mark.parametrize(("staleness", "kind"), [(0, "one"), (2, "branches apart"), (4, "dealt out")])


@pytest.mark.slow
@EVERY
def test_all_memories_of_a_residual_block_in_stores_change_no_bit(staleness: int, kind: str, tmp_path: Path) -> None:
    graph = residual_net(staleness)
    graph = remote_memory(graph, names(graph))
    assert len([node for node in graph.nodes if node.layer.is_store]) == 19
    placed = elsewhere(graph, placement(graph, kind), 3)
    design = design_cluster(graph, placed, DEVICES, CYCLES, LIBRARY, word_bits=64)
    ends_right(train(design, tmp_path), BATCHES * graph.recipe.batch)


@pytest.mark.slow
def test_batches_take_about_as_long_as_said(tmp_path: Path) -> None:
    """Streams to and from stores count at ports for the rate alone, not for who waits when."""
    graph = residual_net(2)
    graph = remote_memory(graph, names(graph))
    placed = elsewhere(graph, placement(graph, "one"), 2)
    design = design_cluster(graph, placed, DEVICES, CYCLES, LIBRARY, word_bits=64)
    run = train(design, tmp_path, stall_256=0, batches=5)
    assert run.mismatches == ()
    assert run.batch_cycles[-1] == pytest.approx(said_batch_cycles(design, NETWORK_CYCLES), rel=0.05)
