"""Executor and emulator: weight versions, evaluation, checkpoints, learning."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor, Mode
from dagtrain.graph.ir import Graph, GraphError, Node
from dagtrain.graph.storage import StorageError
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.training.data import Dataset
from dagtrain.training.emulator import Emulator, Metrics
from hdl import threads
from hdl.fixed import Fixed, IntArray
from hdl.layers.base import Layer
from hdl.layers.meaning import State
from hdl.layers.wiring.host import HostInput
from hdl.recipe import Recipe
from hdl.tensor import Kind, Port, Tensor, Tile

WHOLE = Fixed(16, 0)


# ---- weight versions, with toy layers that count ---------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Toy(Layer):
    """Not in the registry: for this file only."""

    @property
    def cycles_per_frame(self) -> int:
        return 1

    def fold(self, cycles: int, tile: Tile | None = None) -> Any:
        del cycles, tile
        return self

    def reference(self, state: State, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return self.golden(state, inputs)

    def circuit(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def examples(cls) -> tuple[Layer, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class _ToyEngine(_Toy):
    """Says for every frame which version of the weight it has, as every layer with weights does."""

    recipe: Recipe
    source: Kind = Kind.ACTIVATION

    @property
    def sinks(self) -> tuple[Port, ...]:
        return (
            Port("x", Tensor((1, 1, 1), WHOLE, Kind.ACTIVATION)),
            Port("w", Tensor((1,), WHOLE, Kind.WEIGHT)),
        )

    @property
    def sources(self) -> tuple[Port, ...]:
        return (
            Port("y", Tensor((1, 1, 1), WHOLE, Kind.ACTIVATION)),
            Port("g", Tensor((1,), WHOLE, Kind.GRADIENT)),
        )

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        from hdl.layers.conv.versions import by_version

        y = np.empty_like(inputs["x"])
        for part, weight in by_version(state, inputs["w"], self.recipe):
            y[part] = weight
        return {"y": y, "g": np.array([1])}


@dataclass(frozen=True, kw_only=True)
class _ToyUpdate(_Toy):
    """Counts versions."""

    @property
    def sinks(self) -> tuple[Port, ...]:
        return (Port("g", Tensor((1,), WHOLE, Kind.GRADIENT)),)

    @property
    def sources(self) -> tuple[Port, ...]:
        return (Port("w", Tensor((1,), WHOLE, Kind.WEIGHT)),)

    def start(self, parameters: Mapping[str, Any]) -> State:
        return {"version": WHOLE.encode(parameters["w"])}

    start_reference = start

    def golden(self, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        state["version"] = state["version"] + inputs["g"]
        return {"w": state["version"]}


def toy_graph(recipe: Recipe) -> Graph:
    nodes = (
        Node("input", HostInput(height=1, width=1, channels=1, y_fixed=WHOLE), {}, {"y": "x"}),
        Node("engine", _ToyEngine(recipe=recipe), {"x": "x", "w": "w"}, {"y": "y", "g": "g"}, {"w": "key"}),
        Node("update", _ToyUpdate(), {"g": "g"}, {"w": "w"}, {"w": "key"}),
    )
    return Graph("toy", nodes, recipe, {"key": np.zeros(1)}).with_nodes(nodes)


@pytest.mark.parametrize("staleness", range(5))
@pytest.mark.parametrize("mode", Mode)
def test_frame_t_sees_the_weights_after_floor_of_t_minus_d_over_b_updates(staleness: int, mode: Mode) -> None:
    recipe = Recipe(batch=4, staleness=staleness)
    executor = Executor(toy_graph(recipe), mode)
    seen: list[float] = []

    def observe(edge: str, array: Any) -> None:
        if edge == "y":
            seen.extend(array.ravel())

    for _ in range(5):
        executor.step({"input": np.zeros((4, 1, 1, 1))}, observe)
    assert seen == [recipe.version(frame) for frame in range(20)]


# ---- the emulator ----------------------------------------------------------------------------------------


def blobs(count: int, seed: int) -> Dataset:
    """Three classes, each a bright quarter of a noisy image."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    images = rng.normal(0, 0.2, (count, 1, 6, 6))
    for image, label in zip(images, labels, strict=True):
        image[0, 3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 1
    return Dataset(images.astype(np.float32), labels.astype(np.int64))


def graph_of(recipe: Recipe) -> Graph:
    net = GraphBuilder("blobs", recipe, seed=5)
    x = net.relu(net.norm(net.conv(net.input(6, 6, 1), 4, kernel=3, padding=1)))
    x = net.relu(net.norm(net.conv(x, 8, kernel=3, stride=2, padding=1)))
    graph = differentiate(net.classify(net.gemm(x, 3)))
    data = blobs(64, seed=1)
    feeds = Emulator(graph, Mode.REFERENCE).feeds
    return calibrate(graph, [feeds(data, index) for index in data.batches(recipe.batch, 0, 0)])


RECIPE = Recipe(batch=8, staleness=2, learning_rate=0.02)


def state_of(emulator: Emulator) -> dict[str, Any]:
    """All states, flat; without weights of the batch before and of the start."""
    states = [(name, *item) for name, state in emulator.executor.states.items() for item in state.items()]
    return {f"{name}.{key}": np.array(value) for name, key, value in states if key not in ("previous", "initial")}


def test_it_learns_and_evaluation_changes_nothing() -> None:
    emulator = Emulator(graph_of(RECIPE))
    data, held_out = blobs(96, seed=2), blobs(40, seed=3)
    before = emulator.evaluate(held_out)
    for epoch in range(4):
        emulator.train_epoch(data, seed=0, epoch=epoch)
    kept = state_of(emulator)
    after = emulator.evaluate(held_out)
    np.testing.assert_equal(state_of(emulator), kept)
    assert after.frames == 40
    assert after.loss < before.loss / 2
    assert after.accuracy > 0.9


def test_evaluation_does_not_depend_on_how_many_frames_are_done_at_once() -> None:
    emulator = Emulator(graph_of(RECIPE))
    emulator.train_epoch(blobs(32, seed=2), seed=0, epoch=0)
    held_out = blobs(21, seed=3)
    one, all_at_once = emulator.evaluate(held_out, frames=1), emulator.evaluate(held_out, frames=64)
    assert one.accuracy == pytest.approx(all_at_once.accuracy)
    assert one.loss == pytest.approx(all_at_once.loss)


@pytest.mark.parametrize("mode", Mode)
def test_training_resumed_from_a_checkpoint_gives_the_same_bits(tmp_path: Path, mode: Mode) -> None:
    graph, data = graph_of(RECIPE), blobs(48, seed=2)
    straight = Emulator(graph, mode)
    for epoch in range(2):
        straight.train_epoch(data, seed=4, epoch=epoch)

    class Interrupted(Exception):
        pass

    def stop(number: int, metrics: Metrics) -> None:
        del metrics
        if number == 3:
            raise Interrupted

    first = Emulator(graph, mode)
    with pytest.raises(Interrupted):
        first.train_epoch(data, seed=4, epoch=0, after_batch=stop)
    first.save(tmp_path / "checkpoint.npz")
    second = Emulator(graph, mode)
    second.load(tmp_path / "checkpoint.npz")
    for epoch in range(2):
        second.train_epoch(data, seed=4, epoch=epoch)
    np.testing.assert_equal(state_of(second), state_of(straight))
    np.testing.assert_equal(second.executor.parameters(), straight.executor.parameters())
    assert second.executor.batches == straight.executor.batches == 12


def test_two_trainings_of_one_seed_are_equal_and_of_two_seeds_are_not() -> None:
    graph, data = graph_of(RECIPE), blobs(48, seed=2)
    runs = []
    for seed in (1, 1, 2):
        emulator = Emulator(graph)
        emulator.train_epoch(data, seed=seed, epoch=0)
        runs.append(emulator.executor.parameters())
    np.testing.assert_equal(runs[0], runs[1])
    assert any(not np.array_equal(runs[0][key], runs[2][key]) for key in runs[0])


def test_however_many_threads_share_the_work_of_a_node_they_make_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, data = graph_of(RECIPE), blobs(48, seed=2)
    runs = []
    for cores, least in ((1, threads.LEAST_ELEMENTS), (3, 1)):
        monkeypatch.setattr(threads, "LEAST_ELEMENTS", least)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores))
        emulator = Emulator(graph)
        emulator.train_epoch(data, seed=1, epoch=0)
        runs.append(emulator)
    assert len(threading.enumerate()) > 1
    np.testing.assert_equal(*(run.executor.parameters() for run in runs))
    np.testing.assert_equal(*map(state_of, runs))


def test_folding_and_forks_do_not_change_a_bit_of_the_training() -> None:
    graph, data = graph_of(RECIPE), blobs(48, seed=2)
    plain, folded = Emulator(graph), Emulator(fold_graph(insert_forks(graph), 400))
    for emulator in (plain, folded):
        emulator.train_epoch(data, seed=0, epoch=0)
    np.testing.assert_equal(plain.executor.parameters(), folded.executor.parameters())
    common = state_of(plain).keys() & state_of(folded).keys()
    assert {"conv1.w.update.master", "norm1.mean"} <= common
    for key in common:
        np.testing.assert_array_equal(state_of(plain)[key], state_of(folded)[key], err_msg=key)


def test_staleness_changes_what_is_learnt() -> None:
    data = blobs(48, seed=2)
    runs = []
    for staleness in (0, 2, 8):
        emulator = Emulator(graph_of(Recipe(batch=8, staleness=staleness)))
        emulator.train_epoch(data, seed=0, epoch=0)
        runs.append(emulator.executor.parameters()["conv1.w"])
    assert not np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[1], runs[2])


def test_a_checkpoint_of_another_graph_is_rejected(tmp_path: Path) -> None:
    emulator = Emulator(graph_of(RECIPE))
    emulator.save(tmp_path / "checkpoint.npz")
    net = GraphBuilder("other", RECIPE)
    other = Emulator(differentiate(net.classify(net.gemm(net.input(6, 6, 1), 3))))
    with pytest.raises(StorageError, match="is of graph blobs, not other; train from the beginning"):
        other.load(tmp_path / "checkpoint.npz")
    wider = GraphBuilder("blobs", RECIPE)
    same_name = Emulator(differentiate(wider.classify(wider.gemm(wider.input(6, 6, 1), 3))))
    with pytest.raises(StorageError, match="is of another version of graph blobs"):
        same_name.load(tmp_path / "checkpoint.npz")
    with pytest.raises(StorageError, match="is of mode golden, not reference"):
        Emulator(emulator.graph, Mode.REFERENCE).load(tmp_path / "checkpoint.npz")


def test_a_file_that_is_no_checkpoint_is_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "checkpoint.npz", images=np.zeros(3))
    with pytest.raises(StorageError, match="is not a checkpoint; it holds images"):
        Emulator(graph_of(RECIPE)).load(tmp_path / "checkpoint.npz")


def test_a_batch_of_another_size_is_rejected() -> None:
    with pytest.raises(GraphError, match="a batch of this recipe has 8 frames, not 3"):
        Emulator(graph_of(RECIPE)).train_batch(blobs(9, seed=1), np.arange(3))


def test_feeds_are_checked_and_all_problems_are_named() -> None:
    emulator = Emulator(graph_of(RECIPE))
    with pytest.raises(GraphError, match=r"unknown host input frames; no values for host input") as caught:
        emulator.executor.step({emulator.image: np.zeros((8, 6, 5, 1)), "frames": np.zeros(3)})
    assert f"host input {emulator.image} takes (frames, *(6, 6, 1)), not (8, 6, 5, 1)" in str(caught.value)


def test_metrics_are_weighted_by_frames() -> None:
    total = Metrics(2, 1.0, 0.5) + Metrics(6, 2.0, 1.0)
    assert total == Metrics(8, 1.75, 0.875)
