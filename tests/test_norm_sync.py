"""Online normalisation among copies of layers: one for all frames, or one a copy with statistics of its own."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dagtrain.cosim.cluster import Feeds
from dagtrain.emission.state import held, restored
from dagtrain.flow.placed import load_placed_graph
from dagtrain.flow.trained import load_trained
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Array, Executor
from dagtrain.graph.ir import Graph, GraphError, Node
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.passes.access_state import access_state
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.exchange import CENTRAL, Exchanging
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.replicate import NormSync, advancing, most_copies, parse_norm_sync, replicate, told
from dagtrain.training.emulator import Emulator
from dagtrain.training.feeds import synthetic_feeds
from dagtrain.training.team import Team
from hdl.engine.codec.collective import Collective
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.layers.meaning import State
from hdl.layers.norm.online_norm import OnlineNorm
from hdl.layers.norm.online_norm_backward import OnlineNormBackward
from hdl.layers.norm.shared import NormLayer
from hdl.layers.wiring.deal import Collect, Deal
from hdl.recipe import Recipe
from tests.flow_support import Case, new_case, quick_costs
from tests.import_support import model, node, save
from tests.suites import quick
from tests.test_copies import CYCLES, check_circuits, same, trained
from tests.test_team import HERE, Threads

APART, TOGETHER = NormSync.APART, NormSync.TOGETHER
# batches of a training, long enough that statistics of copies differ
BATCHES = 4
ALL: Mapping[str, Mapping[str, int]] = {
    "two of all": {"*": 2},
    "three of all": {"*": 3},
    "unlike numbers": {"conv1": 2, "relu?": 3, "conv2": 4},
}
RECIPES = [(4, 0), (5, 3), (6, 6)]
# recipes, what has copies, and how many: first some in which all differ
EVERY = [(5, 3, "*", 2), (6, 6, "norm1", 4), (4, 0, "*", 3), (5, 3, "norm1", 3), (6, 6, "*", 4)]
EVERY += sorted({(*recipe, *more) for recipe in RECIPES for more in product(("*", "norm1"), (2, 3, 4))} - {*EVERY})


@cache
def net(batch: int, staleness: int, lag: int = 1) -> Graph:
    """A training graph with two norms, of which one is on a branch with a residual join."""
    # statistics that forget soon, so that copies differ at once
    recipe = Recipe(
        batch=batch, staleness=staleness, learning_rate=0.1, norm_lag=lag, norm_forward_decay=0.9,
        norm_backward_decay=0.9,
    )  # fmt: skip
    build = GraphBuilder("net", recipe, seed=5)
    x = build.relu(build.norm(build.conv(build.input(4, 4, 2), 4, 3, padding=1)))
    y = build.relu(build.norm(build.conv(x, 4, 3, padding=1)))
    x = build.max_pool(build.add(y, x), 2, 2)
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    return calibrate(training, [synthetic_feeds(training, batch, seed) for seed in range(2)])


def copied(
    copies: Mapping[str, int], norm_sync: NormSync, batch: int = 5, staleness: int = 3, way: Exchanging = CENTRAL
) -> Graph:
    return insert_forks(replicate(net(batch, staleness), copies, way, norm_sync))


def norms(graph: Graph, of: type[OnlineNorm | OnlineNormBackward], whole: str = "norm1") -> list[Node]:
    """Of one layer, all copies in their order."""
    found = [node for node in graph.nodes if isinstance(node.layer, of) and node.whole == whole]
    return sorted(found, key=lambda node: node.name)


def norm_of(node: Node) -> NormLayer:
    assert isinstance(node.layer, NormLayer)
    return node.layer


# ---- together


@pytest.mark.parametrize(("batch", "staleness"), RECIPES)
@pytest.mark.parametrize("name", ALL)
def test_copies_around_one_norm_train_to_the_bits_of_one(name: str, batch: int, staleness: int) -> None:
    graph = copied(ALL[name], TOGETHER, batch, staleness)
    assert set(advancing(graph).values()) == {1}
    one, wanted = trained(insert_forks(net(batch, staleness)))
    several, results = trained(graph)
    assert same(results, wanted)
    weights, wanted_weights = several.parameters(), one.parameters()
    assert weights.keys() == wanted_weights.keys()
    assert all(np.array_equal(weights[key], wanted_weights[key]) for key in weights)
    for name, state in one.states.items():
        if isinstance(one.graph.by_name[name].layer, (OnlineNorm, OnlineNormBackward)):
            kept, others = one.graph.by_name[name].layer.carried(state), several.states[name]
            assert all(np.array_equal(kept[key], one.graph.by_name[name].layer.carried(others)[key]) for key in kept)
    # of fewer frames than copies, too
    feeds = synthetic_feeds(graph, 1, 7)
    assert same([*several.evaluate(feeds).values()], [*one.evaluate(feeds).values()])


@pytest.mark.parametrize("way", [Collective.CHAIN, Collective.RING])
def test_copies_around_one_norm_exchange_to_the_bits_of_one(way: Collective) -> None:
    assert same(
        trained(copied({"*": 3}, TOGETHER, way=Exchanging(way)))[1], trained(insert_forks(net(5, 3)))[1]
    )  # fmt: skip


def test_one_norm_stands_between_ends_of_copies() -> None:
    graph = copied({"*": 2}, TOGETHER)
    (norm,) = norms(graph, OnlineNorm)
    before, _ = graph.producers[norm.inputs["x"]]
    assert isinstance(before.layer, Collect)
    readers = {type(node.layer) for node, _ in graph.consumers[norm.outputs["y"]]}
    assert readers == {Deal}
    # it takes all frames, at the pace of the whole
    assert norm_of(norm).recipe.dealt is None
    assert graph.busy(norm.name) == 1


# ---- apart


@dataclasses.dataclass
class Apart:
    """Norms of several copies by the equations alone: each frame of the training goes to the copy that the spec says,
    with the weights of its version, one after another; nothing here knows recipes of copies."""

    graph: Graph
    copies: int
    whole: str = "norm1"

    def __post_init__(self) -> None:
        self.recipe = self.graph.recipe
        self.forward = [self._alone(node) for node in norms(self.graph, OnlineNorm, self.whole)]
        self.backward = [self._alone(node) for node in norms(self.graph, OnlineNormBackward, self.whole)]
        assert len(self.forward) == len(self.backward) == self.copies
        # whether y and dx were found to depend on the copy
        self.differed = False

    def _alone(self, node: Node) -> tuple[OnlineNorm | OnlineNormBackward, State]:
        """A layer of a batch of one frame that is never stale, and how it starts, from the whole graph's start."""
        assert isinstance(node.layer, (OnlineNorm, OnlineNormBackward))
        layer = replace(node.layer, recipe=replace(self.recipe, batch=1, staleness=0))
        return layer, layer.start(self.graph.initial(node))

    def check(self, executor: Executor, batch: int, feeds: Feeds, history: list[dict[str, Array]]) -> None:
        """A step of the executor, beside this."""
        seen: dict[str, IntArray] = {}
        history.append({slot: array.copy() for slot, array in executor.weights.items()})
        executor.step(feeds, seen.__setitem__)
        sums = dict.fromkeys(("g_gamma", "g_beta"), np.zeros((), np.int64))
        frames = self.recipe.batch
        copies = norms(self.graph, OnlineNorm, self.whole), norms(self.graph, OnlineNormBackward, self.whole)
        for place in range(frames):
            copy, own = place % self.copies, place // self.copies
            version = history[self.recipe.version(batch * frames + place)]
            for norm, (layer, state) in (
                (copies[0][copy], self.forward[copy]),
                (copies[1][copy], self.backward[copy]),
            ):
                inputs = {}
                for port in layer.sinks:
                    edge = norm.inputs[port.name]
                    # what is dealt out, before it was dealt
                    inputs[port.name] = version[edge] if port.tensor.kind.per_batch else self._frame(seen, edge, place)
                made = layer.definition(state, inputs)
                for name, value in made.items():
                    if name in sums:
                        sums[name] = sums[name] + value
                    elif name in norm.outputs:
                        found = seen[norm.outputs[name]][own : own + 1]
                        assert np.array_equal(found, value), f"{norm.name}.{name} of frame {place} of batch {batch}"
        one = norms(net(self.recipe.batch, self.recipe.staleness), OnlineNormBackward, self.whole)[0]
        for name, total in sums.items():
            assert isinstance(one.layer, OnlineNormBackward)
            rounded = one.layer.roundings[name]
            state = rounded.start({}) | {"batch": batch}
            assert np.array_equal(seen[one.outputs[name]], rounded.golden(state, {"s0": total})["g"]), name
        self.differed |= not np.array_equal(self.forward[0][1]["mean"], self.forward[1][1]["mean"])

    def _frame(self, seen: Mapping[str, IntArray], edge: str, place: int) -> IntArray:
        maker, _ = self.graph.producers[edge]
        while isinstance(maker.layer, Deal) or maker.role.value == "fork":
            dealt = isinstance(maker.layer, Deal)
            edge = maker.inputs["x"]
            if dealt:
                return seen[edge][place : place + 1]
            maker, _ = self.graph.producers[edge]
        return seen[edge][place // self.copies : place // self.copies + 1]


def checked(graph: Graph, copies: int, whole: str = "norm1", batches: int = BATCHES) -> Apart:
    """Trains a graph beside the equations."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    beside, executor = Apart(graph, copies, whole), Executor(graph)
    history: list[dict[str, Array]] = []
    for batch in range(batches):
        beside.check(executor, batch, synthetic_feeds(graph, graph.recipe.batch, seed + batch), history)
    assert beside.differed
    return beside


@pytest.mark.parametrize(("batch", "staleness", "pattern", "copies"), quick(5, EVERY))
def test_each_copy_has_the_statistics_of_its_own_frames(pattern: str, copies: int, batch: int, staleness: int) -> None:
    checked(copied({pattern: copies}, APART, batch, staleness), copies)


@pytest.mark.parametrize("lag", [0, 2])
def test_lag_counts_the_frames_of_a_copy(lag: int) -> None:
    graph = insert_forks(replicate(net(5, 3, lag), {"*": 2}, norm_sync=APART))
    checked(graph, 2)
    (forward, _) = norms(graph, OnlineNorm)
    assert norm_of(forward).recipe.norm_lag == lag
    assert len(forward.layer.start(graph.initial(forward))["tables"]) == lag + 1


@pytest.mark.parametrize("way", [Collective.CHAIN, Collective.RING])
def test_copies_apart_exchange_to_the_bits_of_a_sum_in_one_place(way: Collective) -> None:
    central, wanted = trained(copied({"*": 3}, APART))
    several, results = trained(copied({"*": 3}, APART, way=Exchanging(way)))
    assert same(results, wanted)
    assert all(np.array_equal(several.parameters()[key], value) for key, value in central.parameters().items())


def test_copies_apart_have_other_bits_than_one_and_than_other_numbers() -> None:
    losses = [trained(insert_forks(net(5, 3)))[1], *(trained(copied({"*": n}, APART))[1] for n in (2, 3))]
    assert not any(same(losses[a], losses[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    # without norms among them there is no difference
    assert same(trained(copied({"conv?": 2, "gemm1": 3}, APART))[1], losses[0])


def test_all_copies_begin_with_the_statistics_of_data() -> None:
    whole, graph = net(5, 3), copied({"*": 3}, APART)
    assert {name.partition("@")[0] for name in graph.carried} == set(whole.carried) == {"norm1", "norm2"}
    for name, kept in graph.carried.items():
        assert all(np.array_equal(kept[key], value) for key, value in whole.carried[name.partition("@")[0]].items())


def with_norm(graph: Graph, copy: int, staleness: int) -> Graph:
    """The graph with another staleness of a copy of the first norm."""
    (name,) = [node.name for node in norms(graph, OnlineNorm) if node.name.endswith(f"@{copy}")]
    nodes = [
        replace(each, layer=replace(norm_of(each), recipe=replace(norm_of(each).recipe, staleness=staleness)))
        if each.name == name
        else each
        for each in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def test_statistics_of_another_copy_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Executor._start

    def shared(executor: Executor, action: Any) -> None:
        start(executor, action)
        if action.node.name == "norm1@1":
            executor.states["norm1@1"] = executor.states["norm1@0"]

    monkeypatch.setattr(Executor, "_start", shared)
    with pytest.raises(AssertionError, match=r"norm1@\d\.\w+ of frame \d of batch"):
        checked(copied({"*": 2}, APART), 2)


def test_versions_by_the_frames_of_the_training_are_found() -> None:
    graph = copied({"*": 2}, APART, 6, 3)
    assert norm_of(norms(graph, OnlineNorm)[0]).recipe.staleness == 2
    with pytest.raises(AssertionError, match=r"norm1@0\.y of frame 4 of batch 1"):
        checked(with_norm(graph, 0, staleness=3), 2)


@pytest.mark.parametrize("both", [False, True], ids=["dealt", "dealt and collected"])
def test_frames_dealt_to_another_copy_are_found(both: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    deal, collect = Deal.golden, Collect.golden

    def others(layer: Deal, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        made = deal(layer, state, inputs)
        return {"y0": made["y1"], "y1": made["y0"]}

    def back(layer: Collect, state: State, inputs: Mapping[str, IntArray]) -> dict[str, IntArray]:
        return collect(layer, state, {"x0": inputs["x1"], "x1": inputs["x0"]})

    monkeypatch.setattr(Deal, "golden", others)
    if both:
        monkeypatch.setattr(Collect, "golden", back)
    with pytest.raises(AssertionError, match=r"norm1@0\.\w+ of frame 0 of batch 0"):
        checked(copied({"norm1": 2}, APART, 6, 0), 2)


# ---- state of copies


def test_each_copy_keeps_its_statistics_in_checkpoints(tmp_path: Path) -> None:
    graph = copied({"*": 2}, APART)
    executor, _ = trained(graph, 2)
    emulator, again = Emulator(graph, executor=executor), Emulator(graph)
    emulator.save(tmp_path / "state.npz")
    again.load(tmp_path / "state.npz")
    for name in ("norm1@0", "norm1@1", "norm1.backward@0", "norm1.backward@1"):
        layer = graph.by_name[name].layer
        kept = layer.carried(executor.states[name])
        assert all(np.array_equal(layer.carried(again.executor.states[name])[key], kept[key]) for key in kept)
    first, second = (executor.states[f"norm1@{copy}"]["mean"] for copy in range(2))
    assert not np.array_equal(first, second)
    feeds = synthetic_feeds(graph, 5, 300)
    assert same([*again.executor.step(feeds).values()], [*executor.step(feeds).values()])


def test_dumps_of_devices_hold_the_statistics_of_each_copy() -> None:
    graph = access_state(fold_graph(copied({"*": 2}, APART, 6, 2), CYCLES))
    executor, _ = trained(graph, 2)
    found = held(executor)
    assert {"norm1@0", "norm1@1", "norm1.backward@0", "norm1.backward@1"} <= found.words.keys()
    assert found.words["norm1@0"] != found.words["norm1@1"]
    again = restored(graph, found)
    for name in ("norm1@0", "norm1@1"):
        assert all(np.array_equal(again.states[name][key], executor.states[name][key]) for key in ("mean", "variance"))
    # a number of copies is part of what is trained
    one = fold_graph(insert_forks(net(6, 2)), CYCLES)
    with pytest.raises(DagtrainError, match=r"a checkpoint lacks the state of .*norm1"):
        restored(one, found)


def test_graphs_with_norms_apart_are_kept_in_files(tmp_path: Path) -> None:
    graph = copied({"*": 3}, APART)
    save_graph(graph, tmp_path / "graph.json")
    loaded = load_graph(tmp_path / "graph.json")
    assert loaded.nodes == graph.nodes
    assert same(trained(loaded, 2)[1], trained(graph, 2)[1])


def test_processes_train_norms_apart_to_the_bits_of_one() -> None:
    graph = copied({"*": 2}, APART)
    one = Executor(graph)
    with Team(graph, 2, Threads(), HERE) as team:
        for batch in range(2):
            feeds = synthetic_feeds(graph, 5, batch)
            assert same([*team.step(feeds).values()], [*one.step(feeds).values()])
        states, _ = team.snapshot()
        assert all(
            np.array_equal(states[f"norm1@{copy}"]["mean"], one.states[f"norm1@{copy}"]["mean"]) for copy in "01"
        )


# ---- what users say and read


def test_what_has_one_copy_is_told_with_the_cure() -> None:
    whole = net(4, 0)
    with pytest.raises(GraphError) as raised:
        replicate(whole, {"norm1": 2, "norm?": 3, "norm1*": 2}, norm_sync=TOGETHER)
    said = str(raised.value)
    for norm in ("norm1", "norm2"):
        what = (
            f"{norm} (OnlineNorm) runs statistics from frame to frame, of which there is one for all frames; leave it,"
        )
        assert f"{what} or import with --norm-sync apart for statistics of each copy" in said
    assert most_copies(whole)["norm1"] == 1 < most_copies(whole, APART)["norm1"] == 4
    for sync in NormSync:
        assert most_copies(replicate(whole, {"*": 2}, norm_sync=sync), sync) == most_copies(whole, sync)


def test_words_that_are_none_are_refused() -> None:
    assert [parse_norm_sync(text) for text in ("together", "apart")] == [TOGETHER, APART]
    with pytest.raises(DagtrainError, match="--norm-sync both is unknown; choose together or apart"):
        parse_norm_sync("both")


def test_what_becomes_of_statistics_is_told() -> None:
    build = GraphBuilder("net", Recipe(batch=4), seed=5)
    plain = differentiate(build.classify(build.gemm(build.global_average_pool(build.input(2, 2, 1)), 3)))
    assert told(plain, TOGETHER) == told(net(4, 0), TOGETHER) == []
    assert told(plain, APART) == [
        "--norm-sync apart changes nothing: no layer has statistics that run from frame to frame"
    ]
    assert told(net(4, 0), APART) == [
        "--norm-sync apart changes nothing yet: none of 2 layers with statistics of frames has copies"
    ]
    assert told(copied({"*": 2}, TOGETHER), TOGETHER) == [
        "statistics together: one each of norm1, norm2 for the frames of all copies; the bits of one"
    ]
    assert told(copied({"*": 2}, APART), APART) == [
        "statistics apart: each copy of norm1=2, norm2=2 keeps its own, over its frames; bits, and what is learnt, "
        "depend on the number of copies"
    ]


def normed_case(root: Path) -> Case:
    """A convolution, normalisation, a matrix product."""
    case = new_case(root)
    rng = np.random.default_rng(1)
    constants = {"k": rng.standard_normal((4, 2, 3, 3)) / 4, "w": rng.standard_normal((3, 144)) / 12}
    constants |= {"scale": np.ones(4), "shift": np.zeros(4), "mean": np.zeros(4), "variance": np.ones(4)}
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c scale shift mean variance", "n"),
        node("Relu", "n", "r"),
        node("Flatten", "r", "f"),
        node("Gemm", "f w", "y", transB=1),
    ]
    save(model(nodes, constants), root)
    return case


def imported(case: Case, *words: str) -> dict[str, Any]:
    """What `import` noted."""
    outcome = case.step("import", "--norm", "online", "--data", case.data(), *words)
    assert outcome.code == 0, outcome.error
    found: dict[str, Any] = json.loads((case.out / "import" / "import.json").read_text())
    assert all(note in outcome.out for note in found["notes"])
    return found


def test_commands_say_whose_statistics_these_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = normed_case(tmp_path)
    found = imported(case, "--copy", "*=2")
    assert found["norm_sync"] == "together"
    assert found["notes"][-1].startswith("statistics together: one each of n_node")
    # copies that place adds have what import was told
    found = imported(case, "--norm-sync", "apart")
    assert found["norm_sync"] == "apart"
    assert found["notes"][-1].startswith("--norm-sync apart changes nothing yet")
    outcome = case.step("place", "--copy", "*=2", "--no-split")
    assert outcome.code == 0, outcome.error
    assert "statistics apart: each copy of n_node=2 keeps its own" in outcome.out
    placed = json.loads((case.out / "place" / "place.json").read_text())
    assert (placed["norm_sync"], placed["copies"]) == ("apart", {"*": 2})
    assert advancing(load_placed_graph(case.workspace)) == {"n_node": 2}
    outcome = case.step("train", "--epochs", 1)
    assert outcome.code == 0, outcome.error
    outcome = case.step("export")
    assert outcome.code == 0, outcome.error
    written = onnx.load(case.out / "export" / "net.onnx")
    notes = {item.key: item.value for item in written.metadata_props}
    assert notes["statistics"] == "of copy 0 of 2, over its frames; each copy of a norm keeps its own"
    values = {item.name: onnx.numpy_helper.to_array(item) for item in written.graph.initializer}
    trained_to = load_trained(case.workspace)
    first = trained_to.graph.by_name["n_node@0"].layer
    assert isinstance(first, OnlineNorm)
    (mean, _) = first.statistics(trained_to.executor.states["n_node@0"])
    (name,) = [name for name in values if name.endswith("mean")]
    np.testing.assert_array_equal(values[name], mean.astype(np.float32))
    bad = case.step("import", "--norm-sync", "both")
    assert (bad.code, "--norm-sync both is unknown" in bad.error) == (1, True)


# ---- circuits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("copies", "batch", "staleness", "sync"),
    [
        ({"*": 2}, 5, 3, TOGETHER),
        ({"conv1": 2, "relu?": 3, "conv2": 4}, 6, 6, TOGETHER),
        ({"*": 2}, 5, 3, APART),
        ({"norm1": 3}, 4, 0, APART),
        ({"*": 3}, 6, 6, APART),
    ],
    ids=str,
)
def test_circuits_on_slow_links_train_to_the_bits_of_the_emulator(
    copies: Mapping[str, int], batch: int, staleness: int, sync: NormSync, tmp_path: Path
) -> None:
    graph = copied(copies, sync, batch, staleness)
    wanted = trained(insert_forks(net(batch, staleness)) if sync is TOGETHER else graph)[1]
    check_circuits(graph, batch, staleness, tmp_path, wanted)


@pytest.mark.slow
def test_circuits_of_one_copy_with_versions_by_the_frames_of_the_training_are_found(tmp_path: Path) -> None:
    graph = copied({"*": 2}, APART, 6, 3)
    wanted = trained(graph)[1]
    with pytest.raises(AssertionError):
        check_circuits(with_norm(graph, 0, staleness=3), 6, 3, tmp_path, wanted)
