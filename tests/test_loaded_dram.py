"""Masters, momenta and weights of every frame in DRAM or stores, loaded and dumped by streams: devices against the
emulator."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.state import restored
from dagtrain.flow.placed import load_plan
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.ir import Graph
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.memory_home import keep_in_dram
from dagtrain.passes.remote_memory import remote_memory
from dagtrain.progress import Silent
from dagtrain.training.emulator import Emulator
from dagtrain.training.feeds import synthetic_feeds
from hdl.dram.store import LoadedReplay
from hdl.recipe import Recipe
from tests.cosim_support import DEVICES, TINY_DRAM, deliver, placement, simulate_design
from tests.flow_support import new_case, with_few_dsp
from tests.import_support import model, node, save
from tests.test_state_access import BATCH, BEHIND, LIBRARY, Cluster, feeds_of, state_of

# weights that engines read once a frame, sums under way, masters with momenta
OUTSIDE = ("conv1", "conv1.w.update", "conv2", "conv2.error", "conv2.gradient", "conv2.w.update")

# a frame
CYCLES = 128


def outside_design(staleness: int, outside: Callable[[Graph, Collection[str]], Graph]) -> ClusterDesign:
    """Two convolutions with all that they keep outside, the rest on chip; a learning rate that changes."""
    recipe = Recipe(batch=BATCH, staleness=staleness, weight_decay=1e-3, learning_rate=0.1, warm_up=20)
    builder = GraphBuilder("outside", recipe, seed=3)
    x = builder.relu(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1))
    x = builder.relu(builder.conv(x, 3, 3, padding=1))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 3)))
    feeds = [synthetic_feeds(training, BATCH, seed) for seed in range(2)]
    graph = outside(insert_forks(calibrate(training, feeds)), OUTSIDE)
    return design_cluster(
        graph, placement(graph, "updates apart"), DEVICES, CYCLES, LIBRARY, word_bits=64, dram=TINY_DRAM,
        state_access=True,
    )  # fmt: skip


def test_nothing_stands_in_dram_before_state_is_loaded() -> None:
    design = outside_design(1, keep_in_dram)
    regions = [region for device in design.devices for memory in device.memories for region in memory.regions]
    assert sum(isinstance(region.holds.unit, LoadedReplay) for region in regions if region.holds) == 3
    assert sum(region.holds.is_state for region in regions if region.holds) == 2
    assert not any(region.contents for region in regions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outside", "staleness"),
    [
        pytest.param(outside, staleness, id=f"{where}-{staleness}")
        for where, outside in (("dram", keep_in_dram), ("stores", remote_memory))
        for staleness in (1, 0)
    ],
)
def test_devices_train_on_from_a_checkpoint_with_masters_and_weights_outside(
    outside: Callable[[Graph, Collection[str]], Graph], staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = outside_design(staleness, outside)
    cluster = Cluster(design, deliver(design, LIBRARY, tmp_path / "emit"), tmp_path)
    graph = cluster.graph
    emulator = Emulator(graph)
    golden = emulator.executor
    for batch in range(BEHIND):
        golden.step(feeds_of(graph, batch))
    emulator.save(tmp_path / "state.npz")
    checkpoint = Emulator(graph)
    checkpoint.load(tmp_path / "state.npz")
    states = []
    for batch in range(BEHIND, BEHIND + 3):
        golden.step(feeds_of(graph, batch))
        states.append(state_of(golden))
    first = cluster.train(checkpoint.executor, [BEHIND, BEHIND + 1], 5, monkeypatch)
    assert first.states == states[:2]

    # reset, and on from what they dumped
    begin = restored(design.graph, first.states[1], first.states[0])
    second = cluster.train(begin, [BEHIND + 2], 6, monkeypatch)
    assert second.states == states[2:]


@pytest.mark.slow
@pytest.mark.parametrize("outside", [keep_in_dram, remote_memory], ids=["dram", "stores"])
def test_co_simulation_loads_and_compares_what_lies_outside(
    outside: Callable[[Graph, Collection[str]], Graph], tmp_path: Path
) -> None:
    design = outside_design(1, outside)
    feeds = [feeds_of(design.graph, batch) for batch in range(2)]
    run = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.ICARUS, NetworkModel(latency_cycles=20), 32, 3, Silent(),
        hold_cycles=32,
    )  # fmt: skip
    assert run.mismatches == ()


# two boards with so few block memories that masters of the dense layer don't stay on chip, over Ethernet
FEW_MEMORIES = """
[network]
kind = "ethernet"
host_rtt_us = 10
host_mac = "02:00:00:00:ff:ff"
"""


@pytest.mark.slow
def test_the_commands_plan_emit_and_train_with_masters_in_dram(tmp_path: Path) -> None:
    text = with_few_dsp(0.02).replace("clock_mhz = 200", "clock_mhz = 200\nlink_word_bits = 64")
    case = new_case(tmp_path, text.replace("link_gbit_per_s = 100", "link_gbit_per_s = 12.8") + FEW_MEMORIES)
    rng = np.random.default_rng(1)
    constants = {
        "k": rng.standard_normal((4, 2, 3, 3)) / 4,
        "v": rng.standard_normal((160, 144)) / 12,
        "w": rng.standard_normal((3, 160)) / 12,
    }
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Flatten", "r", "f"),
        node("Gemm", "f v", "g", transB=1),
        node("Relu", "g", "h"),
        node("Gemm", "h w", "y", transB=1),
    ]
    save(model(nodes, constants), tmp_path)
    recipe = case.write("recipe.toml", "batch = 4\nstaleness = 4\n")
    for words in (
        ("import", "--recipe", recipe, "--data", case.data()),
        ("place", "--cap", "m20k=0.012", "--gap", 0.3),
        ("emit", "--state-access", "ports"),
        ("cosim", "--batches", 2, "--loss", 0.01),
    ):
        outcome = case.step(*words)
        assert outcome.code == 0, outcome.error
        if words[0] == "place":
            outside = [item.item for item in load_plan(case.workspace).items if "DRAM: memory" in item.configuration]
            assert any(name.endswith(".update") for name in outside)
    assert "every bit equal" in outcome.out
