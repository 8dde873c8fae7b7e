"""Copies of layers, to which frames are dealt out, give the bits of one layer that gets them all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learning import DIGITS
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.state import held, restored
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, GraphError, Node
from dagtrain.graph.storage import load_graph, save_graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import CalibrationOptions, calibrate
from dagtrain.passes.exchange import COPY, parse_exchange
from dagtrain.passes.fold import fold_graph, weight_groups
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import keep_in_dram
from dagtrain.passes.replicate import (
    Copies,
    copies_from_json,
    copies_to_json,
    dealt_shares,
    most_copies,
    parse_copies,
    replicate,
)
from dagtrain.passes.widths import Widths
from dagtrain.planning.link_costs import network_links
from dagtrain.progress import Silent
from dagtrain.schedule.buffers import fifo_beats
from dagtrain.schedule.schedule import schedule
from dagtrain.training.emulator import Emulator
from dagtrain.training.feeds import feeds_of, synthetic_feeds
from dagtrain.training.sources import load_digits
from hdl.cache import cache_folder
from hdl.errors import DagtrainError, FoldingError, ShapeError
from hdl.layers.capabilities import is_engine
from hdl.layers.folding import frame_lanes
from hdl.layers.wiring.deal import Collect, Deal
from hdl.layers.wiring.host import METRICS
from hdl.recipe import Dealt, Recipe, turns_of
from hdl.tensor import Kind
from importers.onnx import NormMode, import_model
from tests.cosim_support import DEVICES, TINY_DRAM, simulate_design
from tests.flow_support import CLUSTER, Case, new_case, quick_costs, with_few_dsp

BATCHES = 4
# cycles a frame of circuits, and of some of a copy that is slow on purpose
CYCLES, SLOW = 300, 700
# a frame in less cycles than it has pixels
FAST = 24
# a layer, a stretch with dropout, all, unlike numbers side by side, all within the block; the same of unlike shares
SETS: Mapping[str, Mapping[str, Copies]] = {
    "a convolution": {"conv2": 2},
    "a stretch": {"conv2": 3, "bias1": 3, "relu2": 3, "dropout1": 3},
    "two of all": {"*": 2},
    "three of all": {"*": 3},
    "unlike numbers": {"conv1": 2, "relu1": 2, "conv2": 3, "add1": 2, "gemm1": 4},
    "two of unlike shares": {"*": (2, 1)},
    "unlike shares": {"conv1": (3, 2), "relu1": 2, "conv2": (1, 2, 1), "dropout1": (3, 1), "add1": (2, 3), "gemm1": 4},
}
# frames a batch and staleness: drained, some frames stale, a whole batch; batches that copies divide and don't
RECIPES = [pytest.param(4, 0, marks=pytest.mark.slow), (5, 3), pytest.param(6, 6, marks=pytest.mark.slow)]


@cache
def net(batch: int, staleness: int, sums: str = "") -> Graph:
    """A training graph with a residual join, a bias, dropout and a pool; ``sums``: bits of sums of gradients."""
    build = GraphBuilder("net", Recipe(batch=batch, staleness=staleness, learning_rate=0.1), seed=5)
    x = build.relu(build.conv(build.input(4, 4, 2), 3, 3, padding=1))
    y = build.dropout(build.relu(build.bias(build.conv(x, 3, 3, padding=1))), 0.3)
    x = build.max_pool(build.add(y, x), 2, 2)
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    options = CalibrationOptions(width=Widths.parse((f"sum={sums}",) if sums else ()))
    return calibrate(training, [synthetic_feeds(training, batch, seed) for seed in range(2)], options)


def trained(graph: Graph, batches: int = BATCHES) -> tuple[Executor, list[np.ndarray]]:
    """After some batches, with what the host got."""
    executor = Executor(graph)
    results = [executor.step(synthetic_feeds(graph, graph.recipe.batch, 100 + n)) for n in range(batches)]
    return executor, [array for result in results for array in result.values()]


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


@cache
def of_one(batch: int, staleness: int, sums: str = "") -> tuple[Executor, list[np.ndarray]]:
    return trained(insert_forks(net(batch, staleness, sums)))


@pytest.mark.parametrize(("batch", "staleness"), RECIPES)
@pytest.mark.parametrize("name", SETS)
def test_copies_train_to_the_bits_of_one(name: str, batch: int, staleness: int) -> None:
    graph = insert_forks(replicate(net(batch, staleness), SETS[name]))
    one, wanted = of_one(batch, staleness)
    several, results = trained(graph)
    assert same(results, wanted)
    weights, wanted_weights = several.parameters(), one.parameters()
    assert weights.keys() == wanted_weights.keys()
    assert all(np.array_equal(weights[key], wanted_weights[key]) for key in weights)
    # of fewer frames than copies, too
    feeds = synthetic_feeds(graph, 1, 7)
    assert same([*several.evaluate(feeds).values()], [*one.evaluate(feeds).values()])


# of batches of 7 frames
SHARES = [(1, 1), (1, 1, 1), (1, 1, 1, 1, 1), (3, 2), (1, 2), (2, 3, 2), (5, 1), (4, 3, 1)]


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("staleness", [0, 1, 4, 7])
def test_each_frame_of_a_copy_has_the_version_that_it_has_in_one(shares: tuple[int, ...], staleness: int) -> None:
    recipe, frames, copies = Recipe(batch=7, staleness=staleness), 70, len(shares)
    found: dict[int, int] = {}
    for copy in range(copies):
        own = recipe.of_copy(copy, copies, shares)
        for index in range(own.batch * frames // recipe.batch):
            assert own.version(index) == recipe.version(own.frame(index))
            found[own.frame(index)] = copy
    turns = turns_of(shares)
    assert found == {frame: turns[frame % recipe.batch % len(turns)] for frame in range(frames)}
    assert max(shares) > 1 or turns == tuple(range(copies))


@pytest.mark.parametrize(
    ("shares", "turns"),
    [((3, 2), (0, 1, 0, 1, 0)), ((1, 2), (1, 0, 1)), ((5, 1), (0, 0, 0, 1, 0, 0)), ((1, 4, 2), (1, 2, 1, 0, 1, 2, 1))],
)
def test_turns_of_unlike_shares_are_as_even_as_can_be(shares: tuple[int, ...], turns: tuple[int, ...]) -> None:
    assert turns_of(shares) == turns
    for copy, share in enumerate(shares):
        # by any frame a copy has had as many as its share of them, to less than one
        assert all(abs(turns[:end].count(copy) - Fraction(end * share, sum(shares))) < 1 for end in range(len(turns)))


@pytest.mark.parametrize("shares", SHARES)
def test_turns_are_told_apart(shares: tuple[int, ...]) -> None:
    turns, copies = turns_of(shares), len(shares)
    for batch in range(max(turns.index(copy) for copy in range(copies)) + 1, 12):
        dealt = [
            Dealt(copy=copy, copies=copies, batch=batch, staleness=0, shares=dealt_shares(shares))
            for copy in range(copies)
        ]
        for frame in range(3 * batch):
            (turn,) = (one for one in dealt if one.frame(one.index(frame)) == frame)
            assert turn.copy == turns[frame % batch % len(turns)]
            assert [one.gets(frame) for one in dealt] == [one is turn for one in dealt]
            assert all(one.index(frame + 1) - one.index(frame) == (one is turn) for one in dealt)
            later = turn.frame(turn.index(frame) + 1)
            assert turn.ends_batch(frame) == (later // batch > frame // batch)
        for one in dealt:
            alike = [other for other in dealt if shares[other.copy] == shares[one.copy]]
            assert max(other.share(batch) for other in alike) == one.busy * batch
            assert one.as_first is not one
            assert (one.as_first.copy, one.as_first.busy) == (alike[0].copy, one.busy)
        frames = [frame for frame in range(3 * batch) if dealt[-1].gets(frame)]
        apart = {later - earlier for earlier, later in pairwise(frames)}
        assert dealt[-1].are_uneven or len(apart) == 1


def test_copies_have_as_many_times_longer_for_a_frame() -> None:
    one = fold_graph(insert_forks(net(6, 6)), CYCLES)
    two = fold_graph(insert_forks(replicate(net(6, 6), SETS["two of all"])), CYCLES)
    assert all(two.cycles_per_frame(node) <= CYCLES for node in two.nodes)
    assert max(node.layer.cycles_per_frame for node in two.nodes) > 1.4 * CYCLES
    # but for the ends of the host, what serves both, and parameters, all frames are dealt out
    alone = {node.name for node in two.nodes} - two.dealt.keys()
    assert all(COPY not in name for name in alone)
    assert {two.busy(name) for name in two.dealt} == {Fraction(1, 2)}
    # half as many multipliers each, where there are enough of them to halve
    for name, node in one.by_name.items():
        if is_engine(node.layer) and node.layer.multipliers > 1:
            assert two.by_name[f"{name}@0"].layer.multipliers <= math.ceil(node.layer.multipliers / 2) + 1
    unlike = fold_graph(insert_forks(replicate(net(6, 6), SETS["two of unlike shares"])), FAST)
    assert all(unlike.cycles_per_frame(node) <= FAST for node in unlike.nodes)
    assert {unlike.busy(name) for name in unlike.dealt} == {Fraction(1, 3), Fraction(2, 3)}
    # the one with fewer frames has more time for each
    lasting = {node.name: node.layer.cycles_per_frame for node in unlike.nodes if node.name in unlike.dealt}
    pairs = [(cycles, lasting[f"{name[:-2]}@1"]) for name, cycles in lasting.items() if name.endswith("@0")]
    assert all(more <= fewer for more, fewer in pairs)
    assert sum(more < fewer for more, fewer in pairs) > len(pairs) / 2
    uneven = insert_forks(replicate(net(5, 3), SETS["two of all"]))
    assert {uneven.busy(name) for name in uneven.dealt} == {Fraction(3, 5)}
    assert {uneven.turns_are_uneven(edge) for edge in uneven.dealt_edges} == {True}


@pytest.mark.parametrize("shares", [(1, 2), (2, 1), (1, 3, 2)])
@pytest.mark.parametrize("cycles", [100, 200, 300])
def test_copies_of_unlike_shares_get_the_tile_of_the_one_with_the_least_time(
    shares: tuple[int, ...], cycles: int
) -> None:
    graph = fold_graph(insert_forks(replicate(net(6, 6), {"conv1": shares})), cycles)
    assert all(graph.cycles_per_frame(node) <= cycles for node in graph.nodes)
    tiles = {node.layer.tile for node in graph.nodes if node.name.startswith("conv1@")}
    assert len(tiles) == 1
    # and no more multipliers than one layer with that share of the frames
    least = fold_graph(insert_forks(net(6, 6)), math.floor(cycles * sum(shares) / max(shares)))
    assert graph.by_name["conv1@0"].layer.tile == least.by_name["conv1"].layer.tile


@pytest.mark.parametrize(
    ("shares", "batch", "late"),
    [
        ((1, 1), 4, (0, 0)), ((2, 1), 6, (Fraction(1, 2), 0)), ((3, 2), 10, (Fraction(2, 3), Fraction(1, 2))),
        # three of five, a turn sooner behind each batch
        ((1, 1), 5, (Fraction(2, 3), 0)),
    ],
)  # fmt: skip
def test_frames_that_come_sooner_wait_for_those_before(
    shares: tuple[int, ...], batch: int, late: tuple[Fraction | int, ...]
) -> None:
    for copy, most in enumerate(late):
        dealt = Dealt(copy=copy, copies=len(shares), batch=batch, staleness=0, shares=dealt_shares(shares))
        assert dealt.late == most


def test_what_passes_copies_is_what_passes_one() -> None:
    """Links and DRAM of all copies carry the bits a frame that those of one carry."""
    one, two = insert_forks(net(6, 6)), insert_forks(replicate(net(6, 6), SETS["a convolution"]))
    bits = {link.target: link.bits_per_frame for link in network_links(one, 64) if not link.kind.per_batch}
    for name in ("conv2", "conv2.error"):
        ends = [link for link in network_links(two, 64) if link.target in (f"{name}@0", f"{name}@1")]
        frames = [link.bits_per_frame for link in ends if not link.kind.per_batch]
        assert sum(frames) == bits[name] > 0


def test_a_frame_of_a_copy_waits_as_long_as_it_takes() -> None:
    """Deal gives in one interval, copies take in two; Collect takes in one what copies give in two."""
    graph = fold_graph(insert_forks(replicate(net(6, 6), SETS["a convolution"])), CYCLES)
    times = schedule(graph, CYCLES)
    waits = fifo_beats(graph, times)
    for edge, producer, _, consumer, sink in graph.streams:
        if isinstance(producer.layer, Deal):
            assert times.offered[edge].last - times.offered[edge].first >= 1.9 * CYCLES * (1 - 1 / sink.beats)
            assert producer.layer.waiting_beats >= producer.layer.cycles_per_frame / 2
        if isinstance(consumer.layer, Collect):
            assert times.taken[edge].last - times.taken[edge].first <= CYCLES
            # of a frame that goes in one interval, what has come before it begins to go
            assert 0.2 <= times.frames_waiting(edge) <= 0.6
            assert waits[edge] >= times.frames_waiting(edge) * sink.beats


def test_copies_keep_hardly_more_frames_for_the_way_back_than_one() -> None:
    """Each keeps its own, which come half as often, and is at work twice as long."""
    kept = []
    for sets in (None, SETS["a convolution"]):
        graph = fold_graph(insert_forks(replicate(net(6, 6), sets) if sets else net(6, 6)), 100)
        times = schedule(graph, 100)
        stashes = [edge for edge, _, _, user, sink in graph.streams if sink.tensor.kind is Kind.STASH and
                   user.name.startswith("conv2.gradient")]  # fmt: skip
        kept.append(sum(map(times.frames_waiting, stashes)))
    assert kept[0] < kept[1] < 1.5 * kept[0]


def test_copies_without_a_frame_are_refused() -> None:
    with pytest.raises(ValueError, match="copy 3 of 4 in batches of 3: each copy needs a frame of every batch"):
        Recipe(batch=3).of_copy(3, 4)
    unlike = r"copy 0 of 2, which get \(1, 5\) of 6 frames, in batches of 2: each copy needs a frame"
    with pytest.raises(ValueError, match=unlike):
        Recipe(batch=2).of_copy(0, 2, (1, 5))
    with pytest.raises(ShapeError, match=r"Deal: copy 0 of 2, .*; take shares that are nearer"):
        Deal(shape=(1, 1, 2), recipe=Recipe(batch=2), shares=(1, 5))
    for shares in ((1, 2, 3), (2, 0)):
        with pytest.raises(ValueError, match="shares of 2 copies"):
            Recipe(batch=7).of_copy(1, 2, shares)
    with pytest.raises(ValueError, match="copy 2 of 2"):
        Dealt(copy=2, copies=2, batch=4, staleness=0)
    for kind in (Deal, Collect):
        with pytest.raises(ShapeError, match=f"{kind.__name__}: 3 frames a batch can't be dealt out to 4 copies"):
            kind(shape=(1, 1, 2), copies=4, recipe=Recipe(batch=3))


def test_all_that_is_wrong_with_copies_is_said_at_once() -> None:
    build = GraphBuilder("net", Recipe(batch=4), seed=5)
    x = build.relu(build.norm(build.conv(build.input(4, 4, 1), 2, 3, padding=1)))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    with pytest.raises(GraphError) as raised:
        replicate(
            training,
            {"conv1": 5, "input1": 2, "loss1": 2, "norm1": 2, "convx": 2, "gemm?": 2, "gemm1": (3, 2), "relu1": (9, 1)},
        )
    for part in (
        r"5 copies of conv1: a batch has 4 frames, and each copy needs one; choose 4 or fewer",
        "input1 (HostInput) serves the host's streams, of which there is one; leave it",
        "loss1 (SoftmaxCrossEntropy) serves the host's streams",
        "norm1 (OnlineNorm) runs statistics from frame to frame, of which there is one for all frames; leave it, or",
        "no layer matches 'convx'; names are like conv1",
        "gemm1 is to have 2 copies, and 3:2; choose one number",
        "9:1 copies of relu1: of 4 frames a batch some copy gets none; choose shares that are nearer to one another",
    ):
        assert part in str(raised.value), part


# sums of so many bits wrap
NARROW = ("24", "20")


@pytest.mark.parametrize("sums", NARROW)
@pytest.mark.parametrize("way", ["central", "chain", "ring"])
def test_sums_of_copies_that_wrap_are_those_of_one(way: str, sums: str) -> None:
    one, wanted = of_one(5, 3, sums)
    assert sum(getattr(node.layer, "wraps", False) for node in one.graph.nodes) > 1
    graph = replicate(net(5, 3, sums), SETS["three of all"], parse_exchange(way, "none"))
    several, results = trained(insert_forks(graph))
    assert same(results, wanted)
    weights, wanted_weights = several.parameters(), one.parameters()
    assert all(np.array_equal(weights[key], wanted_weights[key]) for key in wanted_weights)


def test_options_that_name_no_copies_are_refused() -> None:
    assert parse_copies(("conv2=2", "layer1*=3", "x=3:2")) == {"conv2": 2, "layer1*": 3, "x": (3, 2)}
    # what is equal, or larger than it need be
    found = parse_copies(("a=2:2:2", "b=6:4", "c=5", "d=1"))
    assert found == {"a": 3, "b": (3, 2), "c": 5, "d": 1}
    assert copies_from_json(json.loads(json.dumps(copies_to_json(found)))) == found
    with pytest.raises(DagtrainError) as raised:
        parse_copies(("=2", "conv=", "conv=two", "conv=0", "a=2", "a=3", "b=3:0", "c=3:"))
    said = str(raised.value)
    for part in (
        "'=2' is not LAYER=COPIES: no layer", "'' is no number", "'two' is", "'0' is", "names a twice", "'3:0' is",
        "'3:' is", "write e.g. 2, or 3:2 for two copies of which one gets 3 of 5 frames",
    ):  # fmt: skip
        assert part in said, part


def test_one_copy_is_the_layer_itself() -> None:
    graph = net(4, 0)
    assert replicate(graph, {"conv2": 1}) == graph


@pytest.mark.parametrize("name", ["unlike numbers", "unlike shares"])
def test_graphs_with_copies_are_kept_in_files(name: str, tmp_path: Path) -> None:
    graph = insert_forks(replicate(net(5, 3), SETS[name]))
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json").nodes == graph.nodes
    assert json.loads((tmp_path / "graph.json").read_text())["recipe"]["dealt"] is None


def test_a_checkpoint_of_two_copies_goes_on_with_one() -> None:
    one = fold_graph(insert_forks(net(4, 0)), CYCLES)
    # each copy of as many multipliers, whose state is in the same order
    two = fold_graph(insert_forks(replicate(net(4, 0), SETS["two of all"])), CYCLES // 2)
    several, _ = trained(two, 2)
    further = restored(one, held(several))
    wanted, _ = trained(one, 2)
    feeds = synthetic_feeds(one, 4, 300)
    assert same([*further.step(feeds).values()], [*wanted.step(feeds).values()])
    assert all(np.array_equal(further.parameters()[key], values) for key, values in wanted.parameters().items())


def test_import_makes_copies_and_says_what_is_wrong(tmp_path: Path) -> None:
    case = new_case(tmp_path)
    assert case.step("import", "--copy", "c*=2").code == 0
    assert case.step("import", "--copy", "c*=2").out.startswith("import: unchanged")
    record = json.loads((tmp_path / "build" / "import" / "import.json").read_text())
    assert record["copies"] == {"c*": 2}
    assert "c_node@1" in (tmp_path / "build" / "import" / "graph.json").read_text()
    assert case.step("import", "--copy", "c*=3:2").code == 0
    record = json.loads((tmp_path / "build" / "import" / "import.json").read_text())
    assert record["copies"] == {"c*": "3:2"}
    bad = case.step("import", "--copy", "k=2")
    assert (bad.code, "no layer matches 'k'" in bad.error) == (1, True)


def small_devices(count: int) -> str:
    """A cluster of devices of four DSP blocks, which a layer's update and its engines fill."""
    more = "".join(f'[[device]]\nname = "f{n}"\nboard = "agilex"\n' for n in range(count - 2))
    return with_few_dsp(0.001, CLUSTER) + more


def planned(case: Case, copies: tuple[str, ...], *options: str) -> dict[str, Any]:
    """The plan with these copies."""
    assert case.step("import", *copies).code == 0
    outcome = case.step("place", *options)
    assert outcome.code == 0, outcome.error
    found: dict[str, Any] = json.loads((case.out / "place" / "plan.json").read_text())
    return found


@pytest.mark.slow
def test_copies_are_faster_than_any_plan_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    one, three = (
        planned(new_case(tmp_path / str(len(copies)), small_devices(11)), copies) for copies in ((), ("--copy", "*=3"))
    )
    assert (one["status"], three["status"]) == ("optimal", "optimal")
    assert three["cycles_per_frame"] < one["any_bound_cycles_per_frame"] == one["cycles_per_frame"]


@pytest.mark.slow
def test_explain_names_the_copies_that_a_faster_plan_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path, small_devices(13))
    one = planned(case, (), "--no-split", "--explain")
    found = json.loads((case.out / "explain" / "explain.json").read_text())
    assert found["slow"] == [{"layer": "y_node", "cycles_per_frame": one["cycles_per_frame"], "copies": 2}]
    assert "; copies are fast enough: dagtrain place --copy y_node=2" in found["lines"][3]
    two = planned(case, ("--copy", "y_node=2"), "--no-split", "--explain")
    assert 2 * two["cycles_per_frame"] == one["cycles_per_frame"] == one["any_bound_cycles_per_frame"]
    # the copies are in the way of the next level, too, and so more of them are named than there are
    found = json.loads((case.out / "explain" / "explain.json").read_text())
    assert [(layer["layer"], layer["copies"]) for layer in found["slow"]] == [("y_node", 4)]


def test_layers_that_have_to_be_single_ones_have_no_copies() -> None:
    graph = insert_forks(net(6, 6))
    most = most_copies(graph)
    assert {name for name, count in most.items() if count == 1} == {"input1", "loss1"}
    assert set(most.values()) == {1, 6}
    assert most_copies(insert_forks(replicate(net(6, 6), SETS["two of all"]))) == most
    normed = most_copies(differentiate(import_model(DIGITS / "digits.onnx", norm=NormMode.ONLINE, recipe=Recipe())))
    assert normed["stem_bn"] == 1 < normed["stem"]


@pytest.mark.slow
def test_copies_are_placed_apart_and_split_as_one_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    case = new_case(tmp_path)
    assert case.step("import", "--copy", "c*=2", "--split", "c_node=2").code == 0
    outcome = case.step("place", "--pin", "c_node_part0@0=head", "--pin", "c_node_part1@1=worker")
    assert outcome.code == 0, outcome.error
    plan = json.loads((tmp_path / "build" / "place" / "plan.json").read_text())
    where = {item["item"]: item["device"] for item in plan["items"]}
    assert (where["c_node_part0@0"], where["c_node_part1@1"]) == ("head", "worker")


# ---- circuits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch", "staleness"),
    [
        ("a stretch", 4, 0),
        ("two of all", 5, 3),
        ("unlike numbers", 6, 6),
        ("two of unlike shares", 5, 3),
        ("unlike shares", 6, 6),
    ],
)
def test_circuits_of_copies_on_slow_links_train_to_the_bits_of_one(
    name: str, batch: int, staleness: int, tmp_path: Path
) -> None:
    graph = insert_forks(replicate(net(batch, staleness), SETS[name]))
    check_circuits(graph, batch, staleness, tmp_path)


@pytest.mark.slow
def test_circuits_of_copies_with_weights_in_dram_train_to_the_bits_of_one(tmp_path: Path) -> None:
    graph = insert_forks(replicate(net(5, 3), SETS["a convolution"]))
    check_circuits(keep_in_dram(graph, ["conv2@0", "conv2.error@1", "conv2.gradient@1"]), 5, 3, tmp_path)


@cache
def large_images() -> Graph:
    """A training graph whose images have 36 pixels."""
    build = GraphBuilder("large", Recipe(batch=4, staleness=2, learning_rate=0.1), seed=5)
    x = build.relu(build.conv(build.input(6, 6, 2), 3, 3, padding=1))
    training = differentiate(build.classify(build.gemm(build.global_average_pool(x), 3)))
    return calibrate(training, [synthetic_feeds(training, 4, seed) for seed in range(2)])


def test_copies_take_several_pixels_a_cycle_together() -> None:
    graph = insert_forks(replicate(large_images(), {"*": 2}))
    folded = fold_graph(graph, FAST)
    lanes = {node.name: node.layer.lanes for node in folded.nodes if isinstance(node.layer, Deal)}
    assert lanes == {"input1.y.deal2": 4, "loss1.error.deal2": 1}
    assert folded.by_name["input1"].layer.lanes == 4
    with pytest.raises(FoldingError, match="relu1"):
        fold_graph(insert_forks(large_images()), FAST)
    # whole pixels that divide the map, the fewest; never more than all of it
    assert [frame_lanes(72, 2, cycles) for cycles in (72, 36, 35, 18, 17, 12, 1, 0)] == [1, 2, 4, 4, 6, 6, 72, 72]


@pytest.mark.slow
def test_circuits_of_copies_that_take_several_pixels_a_cycle_train_to_the_bits_of_one(tmp_path: Path) -> None:
    graph = insert_forks(replicate(large_images(), {"*": 2}))
    check_circuits(graph, 4, 2, tmp_path, trained(insert_forks(large_images()))[1], FAST)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["central", "ring"])
def test_circuits_of_copies_whose_sums_wrap_train_to_the_bits_of_one(way: str, tmp_path: Path) -> None:
    graph = insert_forks(replicate(net(5, 3, NARROW[-1]), SETS["three of all"], parse_exchange(way, "none")))
    check_circuits(graph, 5, 3, tmp_path, of_one(5, 3, NARROW[-1])[1])


def check_circuits(
    graph: Graph,
    batch: int,
    staleness: int,
    folder: Path,
    results: list[np.ndarray] | None = None,
    pace: int = CYCLES,
) -> None:
    """Copies stand on devices of their own, behind a network that stalls; what has no weights is slower in the last.

    ``results``: what the host gets; by default, of one copy.  ``pace``: cycles a frame."""
    group = {node.name: members[0].name for members in weight_groups(graph) for node in members}
    cycles = {node.name: SLOW if copy_of(node) == 1 and node.name not in group else pace for node in graph.nodes}
    placed = {node.name: DEVICES[(copy_of(node) + 1) % 3] for node in graph.nodes}
    library = ModuleLibrary(cache_folder() / "modules")
    design = design_cluster(graph, placed, DEVICES, SLOW, library, word_bits=64, folds=cycles, dram=TINY_DRAM)
    feeds = [synthetic_feeds(graph, batch, 100 + n) for n in range(BATCHES)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=2)
    run = simulate_design(design, library, feeds, folder, Simulator.VERILATOR, network, 64, 2, Silent(), optimise=False)
    assert run.mismatches == ()
    assert run.compared_words > 100
    records = np.concatenate([each.reshape(-1, 2) for each in results or of_one(batch, staleness)[1]])
    assert np.array_equal(run.losses, METRICS.decode(records[:, 0]))


def copy_of(node: Node) -> int:
    """Which copy a node is; -1 of what there is one of."""
    number = node.name.rpartition(COPY)[2].partition(".")[0] if COPY in node.name else "-1"
    return int(number)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [{"stem": 2}, {"block2_*": 3}, {"*": 2}], ids=str)
def test_copies_of_the_digits_network_learn_the_bits_of_one(copies: Mapping[str, int]) -> None:
    data = load_digits()
    recipe = Recipe(staleness=9)
    training = differentiate(import_model(DIGITS / "digits.onnx", norm=NormMode.NONE, recipe=recipe))
    batches = list(islice(data.batches(recipe.batch, 1, 0), BATCHES))
    graph = calibrate(training, [feeds_of(training, data, index) for index in batches])
    one, several = Emulator(insert_forks(graph)), Emulator(insert_forks(replicate(graph, copies)))
    for index in batches:
        assert one.train_batch(data, index) == several.train_batch(data, index)
    wanted, weights = one.executor.parameters(), several.executor.parameters()
    assert all(np.array_equal(weights[key], wanted[key]) for key in wanted)
