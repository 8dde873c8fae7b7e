"""The control of a cluster alone takes, cycle for cycle, the time of the whole in co-simulation."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.cluster import simulate_cluster
from dagtrain.cosim.network import read_counts
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.stored import DramUse
from dagtrain.graph.builder import GraphBuilder
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.passes.split_layers import Parts, split_layers
from dagtrain.progress import Silent
from dagtrain.simulate import control
from dagtrain.simulate.control import DataDependentError
from dagtrain.simulate.exact import ExactOptions, ExactRun, simulate_exactly
from dagtrain.simulate.result import Bound, Level
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.convert.control import ControlSlicer, Solution
from hdl.recipe import Recipe
from hdl.simulate.models.ethernet import Faults
from tests.cosim_support import (
    BATCH,
    CYCLES,
    DEVICES,
    copied_net,
    deliver,
    inception_net,
    placement,
    residual_net,
    tiny_design,
    tiny_net,
)
from tests.test_cosim_dram import streaming, use
from tests.test_cosim_ethernet import OFTEN
from tests.test_ethernet_emission import ethernet

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCHES = 3
NO_FAULTS = Faults()


def options(seed: int, stall_256: int, batches: int = BATCHES, faults: Faults = NO_FAULTS) -> ExactOptions:
    """A network, hosts and memories that stall, and what befalls frames."""
    return ExactOptions(
        batches=batches,
        network=NetworkModel(latency_cycles=50, stall_256=stall_256, seed=seed, faults=faults),
        memory=MemoryModel(stall_256=stall_256, seed=seed),
        host_stall_256=stall_256,
        seed=seed,
    )


def exactly(delivered: Delivered, design: ClusterDesign, folder: Path, how: ExactOptions) -> ExactRun:
    """The control alone."""
    return simulate_exactly(delivered, design.graph, LIBRARY, folder / "exact", how, Silent(), optimise=False)


def check(design: ClusterDesign, folder: Path, *runs: tuple[int, int], faults: Faults = NO_FAULTS) -> ExactRun:
    """Every record comes in the cycle in which it comes in the whole, for each (seed, stalls in 256 cycles), and every
    frame of an Ethernet meets with the same."""
    delivered = deliver(design, LIBRARY, folder / "emit")
    graph = design.graph
    feeds = [synthetic_feeds(graph, graph.recipe.batch, 3 + batch) for batch in range(BATCHES)]
    for seed, stall_256 in runs:
        how = options(seed, stall_256, faults=faults)
        whole = simulate_cluster(
            delivered, graph, LIBRARY, feeds, folder / "bench", Simulator.VERILATOR, how.network, stall_256, seed,
            Silent(), optimise=False, memory=how.memory,
        )  # fmt: skip
        assert not whole.mismatches
        run = exactly(delivered, design, folder, how)
        assert run.log.frame_cycles == whole.frame_cycles, f"seed {seed}"
        assert run.log.cycles == whole.cycles, f"seed {seed}"
        assert (read_counts(folder / "exact") if whole.pairs else ()) == whole.pairs, f"seed {seed}"
    # of what carries data nothing is left
    for device in delivered.devices:
        left = run.control.device(device)
        assert {run.control.slicer.contents(part).multipliers for part in left.parts.values()} <= {0}
    return run


def test_a_tiny_cluster_s_records_come_in_the_same_cycles_with_stalls_and_dram(tmp_path: Path) -> None:
    seed = random.randrange(1 << 15)
    print(f"seed {seed}")
    design = tiny_design(LIBRARY)
    run = check(design, tmp_path, (seed, 64))
    told = run.simulation
    assert told.level is Level.EXACT
    assert told.frame_cycles[-1] == told.cycles == told.batches[-1].last_result
    assert len(told.frame_cycles) == BATCHES * design.graph.recipe.batch
    nodes = {node.node: node for node in told.nodes}
    assert {"conv1", "conv1.gradient", "conv2.w.update"} <= nodes.keys()
    # every frame went through the first layer, one after another
    spans = nodes["conv1"].spans
    assert len(spans) == len(told.frame_cycles)
    assert all(span.first <= span.last for span in spans)
    assert [span.last for span in spans] == sorted(span.last for span in spans)
    assert len(nodes["conv2.w.update"].spans) == BATCHES
    # an operation a cycle of every multiplier, for as many as there are in a frame
    layer = design.graph.by_name["conv1"].layer
    assert nodes["conv1"].busy_multiplier_cycles >= BATCHES * design.graph.recipe.batch * layer.macs
    assert nodes["conv1"].busy_multiplier_cycles <= layer.multipliers * run.log.cycles
    assert {(cable.source, cable.target) for cable in told.cables} == {("alpha", "beta"), ("beta", "alpha")}
    assert all(batch.fill_cycles > 0 and batch.drain_cycles > 0 for batch in told.batches)
    assert all(0 < one.share < 1 for one in told.idle_by_device)
    assert told.binds.kind in (Bound.ENGINE, Bound.CABLE)


def framed(*, host: bool, clocked: Mapping[str, tuple[float, int]] | None = None, **how: Any) -> ClusterDesign:
    """The tiny cluster on an Ethernet, on which its host is too, or at ports of its own."""
    told = replace(ethernet(host), clocked=clocked or {})
    return tiny_design(LIBRARY, net=tiny_net(), dram=DramUse(), ethernet=told, **how)


def test_over_a_bad_ethernet_frames_are_lost_and_records_come_in_the_same_cycles(tmp_path: Path) -> None:
    # by which the host loads the state as well
    seed = random.randrange(1 << 15)
    print(f"seed {seed}")
    run = check(framed(host=True, state_access=True), tmp_path, (seed, 16), faults=OFTEN)
    pairs = read_counts(tmp_path / "exact")
    for name in ("lost", "doubled", "reordered", "corrupted", "again"):
        assert sum(getattr(pair, name) for pair in pairs) > 0, name
    bits = {(cable.source, cable.target): cable.bits for cable in run.simulation.cables}
    assert bits.keys() >= {("alpha", "beta"), ("beta", "alpha"), ("host", "alpha")}
    assert sum(bits.values()) == 8 * sum(pair.sent_bytes for pair in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("faults", [NO_FAULTS, OFTEN], ids=["good", "bad"])
@pytest.mark.parametrize("host", [True, False], ids=["host on it", "host at ports"])
def test_over_an_ethernet_with_clocks_of_its_own_records_come_in_the_same_cycles(
    tmp_path: Path, host: bool, faults: Faults
) -> None:
    design = framed(host=host, clocked={"beta": (156.25, 128)}, periods={"beta": Fraction(200, 250)})
    run = check(design, tmp_path, (1, 0), (2, 64), faults=faults)
    nodes, layer = {node.node: node for node in run.simulation.nodes}, design.graph.by_name["conv2"].layer
    # of its clock, which is faster, in cycles of the network's
    assert nodes["conv2"].device == "beta"
    frames = BATCHES * design.graph.recipe.batch
    assert nodes["conv2"].busy_multiplier_cycles == round(frames * layer.walk.cycles * layer.multipliers * 4 / 5)


def test_state_is_loaded_by_ports_in_the_same_cycles(tmp_path: Path) -> None:
    seed = random.randrange(1 << 15)
    print(f"seed {seed}")
    check(tiny_design(LIBRARY, state_access=True), tmp_path, (seed, 64))


def test_a_layer_whose_control_reads_data_is_refused_with_the_way(tmp_path: Path) -> None:
    design = tiny_design(LIBRARY)
    delivered = deliver(design, LIBRARY, tmp_path / "emit")
    (path,) = (
        path
        for device in delivered.devices
        for path in device.sources
        if path.stem.startswith("relu_") and "error" not in path.stem
    )
    before = path.read_text()
    # beats of zeros are kept from its reader
    spoilt = before.replace("assign y_valid = ", "assign y_valid = (x_payload[3:0] != 0) && ", 1)
    assert spoilt != before
    path.write_text(spoilt)
    message = rf"^control depends on data, so [a-z ]*:\n +alpha: relu1 \({path.stem}\): y_valid <- x_payload$"
    with pytest.raises(DataDependentError, match=message):
        exactly(delivered, design, tmp_path, options(1, 0))


@pytest.mark.slow
def test_a_slice_that_loses_a_bit_that_control_needs_takes_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = tiny_design(LIBRARY)
    delivered = deliver(design, LIBRARY, tmp_path / "emit")
    right = exactly(delivered, design, tmp_path, options(1, 0)).log

    class Careless(ControlSlicer):
        def texts(self, solution: Solution, keep: bool = True) -> dict[str, str]:
            found = super().texts(solution, keep)
            # the flags of results of convolutions leave their line a cycle too early
            was, becomes = (f"leave_at_once0_delay_line0_stages[{place}];" for place in (1, 0))
            changed = {name: text.replace(was, becomes) for name, text in found.items()}
            assert changed != found
            return changed

    monkeypatch.setattr(control, "ControlSlicer", Careless)
    wrong = exactly(delivered, design, tmp_path, options(1, 0)).log
    assert len(wrong.frame_cycles) == len(right.frame_cycles)
    assert wrong.frame_cycles != right.frame_cycles


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "branches apart", "dealt out", "updates apart"])
def test_a_residual_block_takes_the_same_cycles_wherever_it_stands(kind: str, tmp_path: Path) -> None:
    graph = residual_net(staleness=3)
    design = design_cluster(graph, placement(graph, kind), DEVICES, CYCLES, LIBRARY, word_bits=64)
    check(design, tmp_path, (1, 0), (7, 64))


@pytest.mark.slow
def test_a_split_layer_takes_the_same_cycles(tmp_path: Path) -> None:
    builder = GraphBuilder("parts", Recipe(batch=BATCH, staleness=2), seed=3)
    x = builder.relu(builder.conv(builder.input(6, 6, 2), 5, 3, padding=1))
    whole = builder.classify(builder.gemm(builder.relu(builder.conv(x, 4, 3, padding=1, stride=2)), 3))
    training = differentiate(split_layers(whole, {"conv2": Parts(2, by_inputs=True)}))
    graph = insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(3)]))
    design = design_cluster(graph, placement(graph, "dealt out"), DEVICES, CYCLES, LIBRARY, word_bits=64)
    check(design, tmp_path, (4, 64))


@pytest.mark.slow
def test_copies_of_a_layer_take_the_same_cycles(tmp_path: Path) -> None:
    graph = copied_net(2, BATCH, {"conv1": 2, "relu1": 2})
    design = design_cluster(graph, placement(graph, "dealt out"), DEVICES, CYCLES, LIBRARY, word_bits=64)
    check(design, tmp_path, (3, 64))


@pytest.mark.slow
def test_branches_that_meet_side_by_side_take_the_same_cycles(tmp_path: Path) -> None:
    graph = inception_net(staleness=2)
    design = design_cluster(graph, placement(graph, "dealt out"), DEVICES, CYCLES, LIBRARY, word_bits=64)
    check(design, tmp_path, (5, 64))


@pytest.mark.slow
def test_devices_with_clocks_of_their_own_take_the_same_cycles(tmp_path: Path) -> None:
    design = tiny_design(LIBRARY, periods={DEVICES[1]: Fraction(200, 300)})
    check(design, tmp_path, (2, 64))


@pytest.mark.slow
def test_weights_sums_and_stashes_in_dram_take_the_same_cycles(tmp_path: Path) -> None:
    design = tiny_design(LIBRARY, net=streaming(tiny_net(), ["conv2"]), dram=use(frozenset(["norm1.normal"])))
    check(design, tmp_path, (6, 64))
