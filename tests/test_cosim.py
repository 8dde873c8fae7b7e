"""The emitted Verilog of whole clusters trains, and equals the emulator in every bit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import TOLD_CYCLES, Simulator, build, execute
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.graph.ir import Graph
from dagtrain.passes.fold import weight_groups
from dagtrain.progress import Silent
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.layers.capabilities import is_engine
from hdl.simulate import verilator
from tests.cosim_support import (
    BATCH,
    CLOSE,
    CYCLES,
    DEVICES,
    TINY_CYCLES,
    alexnet,
    convnext_net,
    inception_net,
    placement,
    residual_net,
    said_batch_cycles,
    shuffle_net,
    simulate_design,
    squeezed_net,
    tiny_design,
)

# between the ports of two devices
NETWORK_CYCLES = 90


def design(graph: Graph, kind: str, folds: Mapping[str, int] | None = None) -> tuple[ClusterDesign, ModuleLibrary]:
    library = ModuleLibrary(cache_folder() / "modules")
    placed = placement(graph, kind)
    return design_cluster(graph, placed, DEVICES, CYCLES, library, word_bits=64, folds=folds), library


def train(
    graph: Graph, kind: str, folder: Path, simulator: Simulator = Simulator.VERILATOR, seed: int = 1
) -> ClusterRun:
    made, library = design(graph, kind)
    return run(made, library, graph, folder, simulator, seed)


def check_timeline(made: ClusterDesign, run: ClusterRun) -> None:
    """Every engine works in a batch, and no FIFO holds more than it can."""
    assert run.timeline is not None
    engines = {engine.node: engine for engine in run.timeline.engines}
    assert {node.name for node in made.graph.nodes if is_engine(node.layer)} <= set(engines)
    for engine in engines.values():
        assert sum(engine.busy) > 0, engine.node
        assert min(*engine.busy, *engine.starved, *engine.blocked) >= 0, engine.node
    depths = {}
    for fifo in run.timeline.fifos:
        assert 0 <= max(fifo.highest) <= fifo.depth, fifo
        depths[fifo.device, fifo.name] = fifo.depth, max(fifo.highest) > 0
    wanted = {(c.target_device, f"receiver of {c.edge}"): c.edge for device in made.devices for c in device.ingress}
    words = {edge: words for device in made.devices for edge, words in device.link_words.items()}
    assert {key: depths[key] for key in wanted} == {key: (words[edge], True) for key, edge in wanted.items()}


def run(
    made: ClusterDesign,
    library: ModuleLibrary,
    graph: Graph,
    folder: Path,
    simulator: Simulator = Simulator.VERILATOR,
    seed: int = 1,
) -> ClusterRun:
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(4)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, words=1, cycles=2, stall_256=40, seed=seed)
    run = simulate_design(
        made, library, feeds, folder, simulator, network, 64, seed, Silent(), optimise=False, stretch_cycles=CYCLES
    )
    check_timeline(made, run)
    # stalls only cost
    assert run.batch_cycles[-1] > (1 - CLOSE) * said_batch_cycles(made, NETWORK_CYCLES)
    return run


# with 2 stale frames this network is in tests/test_cosim_dram.py
@pytest.mark.parametrize("staleness", [0, *(pytest.param(stale, marks=pytest.mark.slow) for stale in (2, BATCH))])
@pytest.mark.parametrize("kind", ["branches apart"])
def test_a_cluster_trains_to_the_bits_of_the_emulator_at_every_staleness(
    staleness: int, kind: str, tmp_path: Path
) -> None:
    trained = train(residual_net(staleness), kind, tmp_path)
    assert trained.mismatches == ()
    assert trained.compared_words > 300
    assert len(trained.losses) == 4 * BATCH


# one device, and branches apart, are those of the test above
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "dealt out"])
def test_placement_changes_no_bit(kind: str, tmp_path: Path) -> None:
    assert train(residual_net(2), kind, tmp_path, seed=7).mismatches == ()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("one", 1), ("dealt out", 2)])
def test_engines_folded_for_different_paces_train_to_the_bits_of_the_emulator(
    kind: str, seed: int, tmp_path: Path
) -> None:
    graph, rng = residual_net(2), np.random.default_rng(seed)
    # members of a weight group share its tile
    group = {node.name: members[0].name for members in weight_groups(graph) for node in members}
    paces = {name: int(rng.choice([60, 200, CYCLES])) for name in graph.by_name}
    folds = {name: paces[group.get(name, name)] for name in graph.by_name}
    made, library = design(graph, kind, folds)
    differing = [edge for edge, _, source, _, sink in made.graph.edges if source.lanes != sink.lanes]
    assert len(differing) > 3, f"seed {seed}"
    assert run(made, library, graph, tmp_path, seed=seed).mismatches == (), f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "dealt out"])
def test_branches_side_by_side_train_to_the_bits_of_the_emulator(kind: str, tmp_path: Path) -> None:
    trained = train(inception_net(1), kind, tmp_path, seed=3)
    assert trained.mismatches == ()
    assert trained.compared_words > 100


@pytest.mark.parametrize(("kind", "staleness"), [("one", 2), ("dealt out", 0)])
@pytest.mark.slow
def test_squeeze_and_excitation_trains_to_the_bits_of_the_emulator(kind: str, staleness: int, tmp_path: Path) -> None:
    trained = train(squeezed_net(staleness), kind, tmp_path, seed=5)
    assert trained.mismatches == ()
    assert trained.compared_words > 100
    assert len(trained.losses) == 4 * BATCH


# their circuits alone: tests/test_layer_conformance.py
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "dealt out"])
def test_channels_split_shuffled_and_sliced_train_to_the_bits_of_the_emulator(kind: str, tmp_path: Path) -> None:
    trained = train(shuffle_net(1), kind, tmp_path, seed=4)
    assert trained.mismatches == ()
    assert trained.compared_words > 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "dealt out"])
def test_normalisation_over_channels_trains_to_the_bits_of_the_emulator(kind: str, tmp_path: Path) -> None:
    trained = train(convnext_net(1), kind, tmp_path, seed=6)
    assert trained.mismatches == ()
    assert trained.compared_words > 100


# their circuits alone: tests/test_layer_conformance.py
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "dealt out"])
def test_local_response_normalisation_trains_to_the_bits_of_the_emulator(kind: str, tmp_path: Path) -> None:
    trained = train(alexnet(1), kind, tmp_path, seed=8)
    assert trained.mismatches == ()
    assert trained.compared_words > 100


@pytest.mark.slow
def test_icarus_agrees_with_verilator(tmp_path: Path) -> None:
    assert train(residual_net(2), "one", tmp_path, Simulator.ICARUS).mismatches == ()


@pytest.mark.slow
def test_another_seed_of_rounding_is_seen_as_a_mismatch(tmp_path: Path) -> None:
    graph = residual_net(2)
    made, library = design(graph, "one")
    recipe = replace(graph.recipe, seed=graph.recipe.seed + 1)
    nodes = tuple(
        replace(node, layer=replace(node.layer, recipe=recipe)) if hasattr(node.layer, "recipe") else node
        for node in made.graph.nodes
    )
    other = replace(made, graph=replace(made.graph, nodes=nodes))
    feeds = [synthetic_feeds(graph, BATCH, 100 + index) for index in range(3)]
    run = simulate_design(
        other, library, feeds, tmp_path, Simulator.VERILATOR, NetworkModel(), 0, 1, Silent(), optimise=False
    )
    # nothing stalls here
    assert run.batch_cycles[-1] == pytest.approx(said_batch_cycles(made, NETWORK_CYCLES), rel=CLOSE)
    assert any("master" in mismatch for mismatch in run.mismatches)


def test_a_run_is_optimised_from_the_cycles_on_where_that_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleLibrary(cache_folder() / "modules")
    made = tiny_design(library)
    asked = []

    def no_build(_folder: Path, _sources: object, _simulator: Simulator, optimise: bool, *_: object) -> Path:
        asked.append(optimise)
        raise InterruptedError

    monkeypatch.setattr("dagtrain.cosim.cluster.build", no_build)
    monkeypatch.setattr("dagtrain.cosim.simulator.LONG_RUN_CYCLES", 2 * made.graph.recipe.batch * TINY_CYCLES)
    for batches in (1, 2):
        feeds = [synthetic_feeds(made.graph, made.graph.recipe.batch, index) for index in range(batches)]
        with pytest.raises(InterruptedError):
            simulate_design(
                made, library, feeds, tmp_path / f"{batches}", Simulator.VERILATOR, NetworkModel(), 0, 1, Silent()
            )
    assert asked == [False, True]


@pytest.mark.parametrize("simulator", Simulator)
def test_a_run_tells_where_it_is_before_the_first_frame(simulator: Simulator, tmp_path: Path) -> None:
    bench = tmp_path / "bench.v"
    bench.write_text(
        "module dagtrain_bench(input clk, input rst, output finished, stuck, output [31:0] progress,\n"
        "    output network_error, memory_error);\n"
        "reg [31:0] count = 0;\n"
        "always @(posedge clk) count <= count + 1;\n"
        "assign progress = 0, stuck = 0, network_error = 0, memory_error = 0;\n"
        f"assign finished = count >= {3 * TOLD_CYCLES + 9};\nendmodule\n"
    )
    program, told = build(tmp_path / "sim", [bench], simulator), list[int]()
    execute(program, tmp_path, lambda _: None, on_cycle=told.append)
    assert told == [TOLD_CYCLES, 2 * TOLD_CYCLES, 3 * TOLD_CYCLES]


@pytest.mark.parametrize("units", [1, 3, "as many as files"])
def test_a_loop_longer_than_verilator_unrolls_by_itself_is_built(
    units: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of C++: what runs often in one for each core, what runs once in the last, and none of them is large
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0, 1})
    monkeypatch.setattr(verilator, "LARGE_BYTES", 10**9 if units == 1 else 0)
    if isinstance(units, str):
        monkeypatch.setattr(verilator, "MOST_UNIT_BYTES", 1)
    bench = tmp_path / "bench.v"
    bench.write_text(
        "module dagtrain_bench(input clk, input rst, output finished, stuck, output [31:0] progress,\n"
        "    output network_error, memory_error);\n"
        "reg [31:0] counts [0:99]; integer i;\n"
        "always @(posedge clk) for (i = 0; i < 100; i = i + 1) counts[i] <= counts[i] + 1;\n"
        "assign progress = counts[99], finished = counts[99] >= 10, stuck = 0, network_error = 0, memory_error = 0;\n"
        # a text that was never built
        f"endmodule // {time.time_ns()}\n"
    )
    program = build(tmp_path / "sim", [bench], Simulator.VERILATOR)
    obj = tmp_path / "sim" / "obj"
    files = len(list(obj.glob("*.cpp")))
    assert files > 3
    assert len(list(obj.glob("unit*.o"))) == (files if isinstance(units, str) else units)
    assert execute(program, tmp_path, lambda _: None).frame_cycles == tuple(range(1, 11))
    # the same texts elsewhere are not built again, others are
    assert build(tmp_path / "again", [bench], Simulator.VERILATOR) == program
    assert not (tmp_path / "again" / "obj").exists()
    assert build(tmp_path / "again", [bench], Simulator.VERILATOR, optimise=False) != program
    bench.write_text(bench.read_text().replace(">= 10", ">= 7"))
    other = build(tmp_path / "other", [bench], Simulator.VERILATOR)
    assert execute(other, tmp_path, lambda _: None).frame_cycles == tuple(range(1, 8))
