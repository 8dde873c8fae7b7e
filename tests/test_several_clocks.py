"""Clusters whose devices have clocks of their own, in the delivered Verilog: every bit as with one clock, in the time
that is told."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import pytest

from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.flow.emit_step import load_emitted_graph
from dagtrain.flow.placed import load_plan
from dagtrain.graph.ir import Graph
from dagtrain.planning.choices import folded_graph
from dagtrain.planning.clocks import own_cycles
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.layers.capabilities import is_engine
from tests.cosim_support import (
    CLOSE,
    DEVICES,
    placement,
    residual_net,
    said_batch_cycles,
    simulate_design,
)
from tests.flow_support import CLUSTER, Case, new_case, quick_costs

LIBRARY = ModuleLibrary(cache_folder() / "modules")
NETWORK_CYCLES = 90
# what a cycle lasts, in cycles of the network's 200 MHz: devices at 200, 300 and 150 MHz; all at others than that
UNLIKE = {"beta": Fraction(200, 300), "gamma": Fraction(200, 150)}
ALL_UNLIKE = {"alpha": Fraction(200, 190), "beta": Fraction(200, 600), "gamma": Fraction(200, 67)}


def design_at(graph: Graph, placed: Mapping[str, str], cycles: int, periods: Mapping[str, Fraction]) -> ClusterDesign:
    """Engines as fast as one another in time."""
    folds = {node: own_cycles(cycles, periods.get(device)) for node, device in placed.items()}
    return design_cluster(graph, placed, DEVICES, cycles, LIBRARY, word_bits=64, folds=folds, periods=periods)


# two devices that each have room for about half of the tiny model's multipliers
TWO = CLUSTER.replace(
    """[[device]]
name = "head"
board = "agilex"
""",
    """[[board]]
name = "fast"
part = "AGFB014"
clock_mhz = 300
dram_gb_per_s = 0
dram_gbyte = 0
link_gbit_per_s = 100
utilisation = { dsp = 0.003 }

[[device]]
name = "head"
board = "fast"
""",
).replace(
    "link_gbit_per_s = 100\n\n[[board]]",
    "link_gbit_per_s = 75\nclock_mhz = 150\nutilisation = { dsp = 0.003 }\n\n[[board]]",
)


@pytest.fixture
def unlike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The tiny net emitted for two boards of unlike clocks."""
    quick_costs(monkeypatch)
    case = new_case(tmp_path)
    case.write("cluster.toml", TWO)
    return case.must("import", "place", "emit")


def test_the_commands_take_boards_of_unlike_clocks(unlike: Case) -> None:
    case = unlike
    plan = load_plan(case.workspace)
    assert {use.device: (use.clock_hz, use.items > 3) for use in plan.devices} == {
        "head": (300_000_000, True),
        "worker": (150_000_000, True),
    }
    assert plan.clock_hz == 200_000_000
    # clearing a memory is a loop, of which Quartus refuses those of more than 5 000 rounds by itself
    project = (case.out / "emit" / "head" / "head.qsf").read_text()
    assert "set_global_assignment -name VERILOG_CONSTANT_LOOP_LIMIT 268435456\n" in project
    constraints = (case.out / "emit" / "head" / "head.sdc").read_text()
    assert "create_clock -name clk -period 3.333 [get_ports clk]\n" in constraints
    assert "create_clock -name net_clk -period 5.000 [get_ports net_clk]\n" in constraints
    assert "set_clock_groups -asynchronous -group {clk} -group {net_clk}\n" in constraints
    assert case.step("cosim", "--stall", "0", "--no-efficiency", "--batches", "5").code == 0
    engines_are_busy_for_the_steps_of_their_walks(case)


@pytest.mark.slow
def test_a_myhdl_testbench_holds_up_boards_of_unlike_clocks_and_counts_alike(unlike: Case) -> None:
    held = unlike.step("cosim", "--simulator", "myhdl", "--hold", "20", "--no-efficiency", "--batches", "3")
    assert held.code == 0, held.error
    assert "every bit equal" in held.out
    assert re.search(r"held up inside: [1-9]\d* of \d+ FIFOs were full and empty", held.out), held.out
    engines_are_busy_for_the_steps_of_their_walks(unlike)


def engines_are_busy_for_the_steps_of_their_walks(case: Case) -> None:
    """As counted in co-simulation, of the graph as it is placed."""
    plan, found = load_plan(case.workspace), shares(case)
    # however long a batch takes, an engine is busy for as many cycles of its clock as its walk has steps, and what has
    # none as long as it reads
    graph = folded_graph(load_emitted_graph(case.workspace), plan)
    wanted = {node.name: node.layer.walk.cycles for node in graph.nodes if is_engine(node.layer)}
    assert len(wanted) == 5
    wanted |= {name: graph.by_name[name].layer.sinks[0].beats for name in ("r_node", "r_node.error")}
    assert {"loss", "c_node.w.update", "y_node.bias"} & found.keys() == {"loss", "c_node.w.update"}
    for name, cycles in wanted.items():
        assert found[name]["busy"] == pytest.approx(graph.recipe.batch * cycles, rel=0.1), (name, found[name])


def shares(case: Case) -> dict[str, dict[str, int]]:
    """Node -> cycles of the batch in which it was busy, starved, blocked."""
    timeline = json.loads((case.out / "cosim" / "timeline.json").read_text())
    return {one["node"]: {key: sum(one[key]) for key in ("busy", "starved", "blocked")} for one in timeline["engines"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("periods", "staleness", "batches", "batch"), [(UNLIKE, 9, 5, 16), (ALL_UNLIKE, 0, 3, 4)], ids=["two", "all"]
)
def test_devices_of_unlike_clocks_train_bit_for_bit_in_the_time_that_is_told(
    periods: Mapping[str, Fraction], staleness: int, batches: int, batch: int, tmp_path: Path
) -> None:
    graph = residual_net(staleness, batch)
    design = design_at(graph, placement(graph, "dealt out"), 700, periods)
    feeds = [synthetic_feeds(graph, batch, 100 + index) for index in range(batches)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, stall_256=0)
    run = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 0, 1, Silent(), optimise=False
    )
    assert run.mismatches == ()
    measured = fmean(run.batch_cycles[len(run.batch_cycles) // 2 :])
    assert said_batch_cycles(design, NETWORK_CYCLES) == pytest.approx(measured, rel=CLOSE)


@pytest.mark.slow
def test_streams_of_devices_of_unlike_clocks_are_held_up_and_watched(tmp_path: Path) -> None:
    graph = residual_net(0, 4)
    design = design_at(graph, placement(graph, "dealt out"), 700, ALL_UNLIKE)
    feeds = [synthetic_feeds(graph, 4, 100 + index) for index in range(12)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES)
    run = simulate_design(
        design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 64, 1, Silent(), optimise=False, hold_cycles=60
    )
    assert run.mismatches == ()
    told = re.search(r"(\d+) of (\d+) FIFOs were full and empty, .* \d+ of (\d+) links were out", run.traffic)
    assert told, run.traffic
    full, fifos, links = map(int, told.groups())
    assert (full > 5, fifos > 30, links > 5) == (True, True, True), run.traffic
