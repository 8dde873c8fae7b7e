"""What engines do over a batch in co-simulation: busy, starved and blocked by known shares, and how full FIFOs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagtrain.cosim.activity import Handshakes, activities
from dagtrain.cosim.simulator import Simulator
from dagtrain.cosim.timeline import (
    COUNTS_FILE,
    PASSIVE,
    Engine,
    EngineShares,
    Level,
    Probes,
    Timeline,
    read_timeline,
)
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.builder import GraphBuilder
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.layers.capabilities import is_engine
from hdl.recipe import Recipe
from tests.cosim_support import DEVICES, simulate_design

BATCH, BATCHES = 4, 5
# cycles a frame that layers are folded for
SLOW, FAST = 600, 150
STRETCH = 60


def share(engine: EngineShares, what: str) -> float:
    """Of the engine's cycles."""
    parts: dict[str, tuple[int, ...]] = vars(engine)
    return sum(parts[what]) / sum(sum(parts[part]) for part in ("busy", "starved", "blocked"))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClusterDesign, Timeline]:
    """A fast convolution, a slow one and a fast one, the last with a norm, which never wait for weights; hosts that
    never stall."""
    builder = GraphBuilder("row", Recipe(batch=BATCH, staleness=BATCH), seed=2)
    x = builder.input(6, 6, 2)
    for last in (False, False, True):
        x = builder.conv(x, 2, 3, padding=1)
        x = builder.relu(builder.norm(x) if last else x)
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 3)))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(2)]))
    library = ModuleLibrary(cache_folder() / "modules")
    folds = {node.name: SLOW if node.layer_of == "conv2" else FAST for node in graph.nodes}
    placed = dict.fromkeys(folds, DEVICES[0])
    design = design_cluster(graph, placed, DEVICES, SLOW, library, word_bits=64, folds=folds)
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(BATCHES)]
    run = simulate_design(
        design, library, feeds, tmp_path_factory.mktemp("timeline"), Simulator.VERILATOR, NetworkModel(stall_256=0),
        0, 1, Silent(), optimise=False, stretch_cycles=STRETCH,
    )  # fmt: skip
    assert run.mismatches == ()
    assert run.timeline is not None
    return design, run.timeline


def test_engines_wait_by_known_shares(counted: tuple[ClusterDesign, Timeline]) -> None:
    design, timeline = counted
    layers: dict[str, Any] = {node.name: node.layer for node in design.graph.nodes if is_engine(node.layer)}
    found = {engine.node: engine for engine in timeline.engines}
    passive = {node.name for node in design.graph.nodes if node.role in PASSIVE}
    assert set(found) == {node.name for node in design.graph.nodes} - passive
    slowest = max(layer.cycles_per_frame for layer in layers.values())
    assert layers["conv2"].cycles_per_frame == slowest
    for name, layer in layers.items():
        wanted = layer.macs / layer.multipliers / slowest
        assert share(found[name], "busy") == pytest.approx(wanted, abs=0.05), name
    assert share(found["conv2"], "busy") > 0.9
    # before the slow engine nobody takes what is made, behind it nothing comes
    rest = 1 - layers["conv1"].macs / layers["conv1"].multipliers / slowest
    assert rest > 0.5
    assert share(found["conv1"], "blocked") == pytest.approx(rest, abs=0.05)
    assert share(found["conv3"], "starved") == pytest.approx(rest, abs=0.05)
    # so is what has no multipliers, which is busy while it reads
    for name in ("relu1", "relu2", "norm1", "relu3"):
        reads = design.graph.by_name[name].layer.sinks[0].beats / slowest
        assert share(found[name], "busy") == pytest.approx(reads, abs=0.05), name
        waits = "blocked" if name == "relu1" else "starved"
        assert share(found[name], waits) == pytest.approx(1 - reads, abs=0.05), name


def test_fifos_fill_before_the_slow_engine_and_never_hold_more_than_they_can(
    counted: tuple[ClusterDesign, Timeline],
) -> None:
    _, timeline = counted
    assert len(timeline.fifos) > 10
    for fifo in timeline.fifos:
        assert len(fifo.highest) == len(timeline.engines[0].busy)
        assert 0 <= min(fifo.highest) <= max(fifo.highest) <= fifo.depth, fifo
    highest = {fifo.name: (max(fifo.highest), fifo.depth) for fifo in timeline.fifos}
    # the slow convolution is given all that fits
    full = highest["FIFO of relu1.y.fork.y0"]
    assert full[0] == full[1]


def test_a_batch_has_as_many_stretches_as_it_lasts(counted: tuple[ClusterDesign, Timeline]) -> None:
    design, timeline = counted
    assert (timeline.batch, timeline.stretch_cycles) == (BATCHES - 1, STRETCH)
    slowest = max(node.layer.cycles_per_frame for node in design.graph.nodes)
    stretches = len(timeline.engines[0].busy)
    assert stretches * STRETCH == pytest.approx(BATCH * slowest, abs=3 * STRETCH)
    for engine in timeline.engines:
        totals = np.sum([engine.busy, engine.starved, engine.blocked], axis=0)
        assert totals.tolist() == [STRETCH] * stretches


def test_counters_become_stretches_at_the_clock_of_each_device(tmp_path: Path) -> None:
    found = Probes(
        (Engine("a", "one", "clk", "dut.a", "dut.b"), Engine("b", "two", "clk_two", "dut.c", "dut.d")),
        (Level("FIFO of x", "two", "clk_two", 7, "dut.in", "dut.out", per_word=4),),
        cycles=10,
    )
    # cycles of both clocks, busy and starved of both engines, the highest level; a line a stretch
    lines = ["10 20 1 2 3 4 5", "20 40 4 5 6 9 20", "30 60 9 5 7 19 25", "40 80 9 5 7 19 0"]
    (tmp_path / COUNTS_FILE).write_text("".join(f"{line} \n" for line in lines))
    timeline = read_timeline(tmp_path, found, [4, 12, 29, 38])
    assert timeline is not None
    assert (timeline.batch, timeline.first_cycle, timeline.stretch_cycles) == (3, 10, 10)
    assert timeline.engines == (
        EngineShares("a", "one", (3, 5), (3, 0), (4, 5)),
        EngineShares("b", "two", (3, 1), (5, 10), (12, 9)),
    )
    assert [(fifo.name, fifo.highest) for fifo in timeline.fifos] == [("FIFO of x", (5, 7))]
    # no batch has another one before and behind it
    assert read_timeline(tmp_path, found, [12, 29]) is None


def test_a_gradient_engine_that_waits_for_errors_is_starved() -> None:
    text = "wire a_walker0_token;\nwire a_walker0_loop_nest0_issue;\nreg [3:0] a_error_gate0_waiting = 0;\n"
    (found,) = activities(text)
    assert found.busy("u") == "u.a_walker0_loop_nest0_issue"
    assert found.starved("u") == (
        "!u.a_walker0_loop_nest0_issue && (!u.a_walker0_token || u.a_error_gate0_waiting == 0)"
    )
    assert activities("wire token;") == ()


@pytest.mark.parametrize(
    ("high", "wanted"),
    [
        ({"a_valid", "a_ready"}, "busy"),
        # a beat enters, whatever waits behind
        ({"a_valid", "a_ready", "y_valid"}, "busy"),
        ({"y_valid"}, "blocked"),
        ({"a_valid", "b_valid", "y_valid"}, "blocked"),
        # one of two maps has no beat
        ({"a_valid", "y_ready"}, "starved"),
        (set(), "starved"),
        # weights for which it waits have not come, or have
        ({"a_valid", "b_valid", "w_ready"}, "starved"),
        ({"a_valid", "b_valid", "w_valid"}, "busy"),
        # it computes what it has got
        ({"a_valid", "b_valid"}, "busy"),
    ],
)
def test_a_circuit_without_a_walk_is_told_by_its_streams(high: set[str], wanted: str) -> None:
    told = Handshakes(maps=("a", "b"), weights=("w",), sent=("y",))
    names = {f"{net}_{end}" for net in "abwy" for end in ("valid", "ready")}

    def holds(expression: str) -> bool:
        text = expression.replace("&&", " and ").replace("||", " or ").replace("!", " not ")
        return bool(eval(text, {}, {name: name in high for name in names}))

    states = {"busy": holds(told.busy), "starved": holds(told.starved)}
    assert states == {"busy": wanted == "busy", "starved": wanted == "starved"}
