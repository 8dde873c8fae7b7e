"""Long runs of the digits network in the emitted Verilog, bit for bit: an epoch, placements, staleness, DRAM."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.simulator import Simulator
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.stored import DramUse
from dagtrain.flow import cosim_step, emit_step, import_step, place_step
from dagtrain.flow.emit_step import library
from dagtrain.flow.import_options import ImportOptions
from dagtrain.flow.import_step import load_training_graph
from dagtrain.flow.place_options import PlaceOptions
from dagtrain.flow.placed import load_plan
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.ir import Graph, Role
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.memory_home import keep_in_dram, sharing_weights
from dagtrain.passes.multiply_constants import multiply_constants, multiplying_nodes
from dagtrain.passes.recompute import kept_edges, recompute
from dagtrain.passes.share_statistics import share_statistics
from dagtrain.passes.share_weights import share_weights, sharing_nodes
from dagtrain.passes.spread_updates import spread_updates
from dagtrain.planning.clocks import own_cycles
from dagtrain.progress import Silent
from dagtrain.training.feeds import feeds_of
from dagtrain.training.sources import load_digits
from hdl.dram.axi import AxiFormat
from hdl.tensor import Kind
from tests.cosim_support import CLOSE, said_batch_cycles, simulate_design

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits"
DEVICES = ("fpga0", "fpga1", "fpga2")
# cycles a frame: those of the demo's plan
CYCLES = 12_288
BATCHES = 4
NETWORK_CYCLES = 150
LIBRARY = library()


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The digits network, imported, placed on its three FPGAs and emitted."""
    space = Workspace(tmp_path_factory.mktemp("digits"))
    model = ImportOptions(model=EXAMPLE / "digits.onnx", recipe=EXAMPLE / "recipe.toml", data="digits")
    import_step.run(space, model, Silent())
    place_step.run(space, PlaceOptions(devices=EXAMPLE / "cluster.toml"), Silent())
    emit_step.run(space, emit_step.EmitOptions(), Silent())
    return space


@pytest.mark.slow
def test_the_digits_cluster_trains_four_batches_to_the_bits_of_the_emulator(emitted: Workspace) -> None:
    result = cosim_step.run(emitted, cosim_step.CosimOptions(batches=4), Silent())
    assert result.passed
    assert result.data["devices"] == 3
    assert result.data["compared_words"] > 20_000


@pytest.mark.slow
def test_an_epoch_in_verilog_equals_the_emulator_in_every_bit(
    emitted: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = json.loads((emitted.folder("import") / "graph.json").read_text())["recipe"]["batch"]
    batches = int(len(load_digits()) * 0.8) // batch
    began = time.monotonic()
    options = cosim_step.CosimOptions(batches=batches, stall=0.05, efficiency=False)
    result = cosim_step.run(emitted, options, Silent())
    assert result.passed
    assert result.data["frames"] == batches * batch
    with capsys.disabled():
        print("\n", *result.lines, f"{time.monotonic() - began:,.0f} s", sep="\n")


def training_graph(folder: Path, staleness: int) -> Graph:
    """The digits network with another staleness than the example's."""
    text = (EXAMPLE / "recipe.toml").read_text().replace("staleness = 9", f"staleness = {staleness}")
    recipe = folder / "recipe.toml"
    recipe.write_text(text)
    space = Workspace(folder / "build")
    model = ImportOptions(model=EXAMPLE / "digits.onnx", recipe=recipe, data="digits")
    import_step.run(space, model, Silent())
    graph = load_training_graph(space)
    assert graph.recipe.staleness == staleness
    return graph


def placement(graph: Graph, kind: str) -> dict[str, str]:
    """Node -> device: both residual blocks' branches apart; layers dealt out in turn; all on one."""
    layers = list(dict.fromkeys(node.layer_of for node in graph.nodes))
    apart = {name: 1 for name in layers if name.startswith(("block1_conv", "block1_relu1", "block2_conv"))}
    apart |= {name: 2 for name in layers if name.startswith(("block2_project", "block3_"))}
    where = {
        "branches apart": {name: DEVICES[apart.get(name, 0)] for name in layers},
        "dealt out": {name: DEVICES[index % 3] for index, name in enumerate(layers)},
        "one": dict.fromkeys(layers, DEVICES[0]),
    }[kind]
    return {node.name: DEVICES[0] if node.layer.pinned_to_host else where[node.layer_of] for node in graph.nodes}


@pytest.mark.slow
def test_batches_of_the_digits_take_the_cycles_that_the_plan_says(emitted: Workspace) -> None:
    # the rests of gradient engines are felt when the FIFOs are full
    options = cosim_step.CosimOptions(batches=18, stall=0.0, efficiency=False)
    result = cosim_step.run(emitted, options, Silent())
    assert result.passed
    assert result.data["batch_cycles"][-1] == pytest.approx(load_plan(emitted).batch_cycles, rel=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "staleness", "periods"),
    [
        ("one", 0, {}),
        ("branches apart", 3, {}),
        ("dealt out", 16, {}),
        # the second board at 300 MHz, the third at 150 MHz
        ("branches apart", 0, {"fpga1": Fraction(200, 300), "fpga2": Fraction(200, 150)}),
    ],
)
def test_batches_of_the_digits_take_the_cycles_that_are_said(
    kind: str, staleness: int, periods: dict[str, Fraction], tmp_path: Path
) -> None:
    graph = training_graph(tmp_path, staleness)
    placed = placement(graph, kind)
    folds = {node: own_cycles(CYCLES, periods.get(device)) for node, device in placed.items()}
    design = design_cluster(graph, placed, DEVICES, CYCLES, LIBRARY, word_bits=64, folds=folds, periods=periods)
    digits = load_digits()
    # with staleness, FIFOs must be full until the rests of gradient engines are felt
    order = list(digits.batches(graph.recipe.batch, 1, 0))[: 8 if staleness else 3]
    feeds = [feeds_of(design.graph, digits, frames) for frames in order]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, stall_256=0)
    run = simulate_design(design, LIBRARY, feeds, tmp_path, Simulator.VERILATOR, network, 0, 1, Silent())
    assert run.mismatches == ()
    assert said_batch_cycles(design, NETWORK_CYCLES) == pytest.approx(run.batch_cycles[-1], rel=CLOSE)


def train(design: ClusterDesign, folder: Path) -> ClusterRun:
    digits, batch = load_digits(), design.graph.recipe.batch
    order = list(digits.batches(batch, 1, 0))
    feeds = [feeds_of(design.graph, digits, order[index]) for index in range(BATCHES)]
    network = NetworkModel(latency_cycles=NETWORK_CYCLES, words=2, cycles=3, stall_256=40, seed=5)
    memory = MemoryModel(latency_cycles=60, words=3, cycles=4, stall_256=40, seed=6)
    return simulate_design(design, LIBRARY, feeds, folder, Simulator.VERILATOR, network, 40, 7, Silent(), memory=memory)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "staleness"), [("one", 0), ("branches apart", 3), ("dealt out", 16)])
def test_every_placement_and_staleness_of_the_digits_trains_to_the_bits_of_the_emulator(
    kind: str, staleness: int, tmp_path: Path
) -> None:
    graph = training_graph(tmp_path, staleness)
    design = design_cluster(graph, placement(graph, kind), DEVICES, CYCLES, LIBRARY, word_bits=64)
    assert len(design.devices) == (1 if kind == "one" else 3)
    run = train(design, tmp_path / "bench")
    assert run.mismatches == ()
    assert run.compared_words > 15_000
    assert len(run.losses) == BATCHES * graph.recipe.batch


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 2])
def test_layers_of_the_digits_forced_into_dram_train_to_the_same_bits(channels: int, tmp_path: Path) -> None:
    """On one wide port, and with narrow units on two."""
    graph = training_graph(tmp_path, 9)
    convolutions = ["block1_conv2", "block2_conv2", "block3_expand"]
    engines = sharing_weights(graph, convolutions)
    assert len(engines) == 4 * len(convolutions)
    stashes = frozenset(
        edge
        for edge, _producer, _source, _consumer, sink in graph.edges
        if sink.tensor.kind is Kind.STASH and sink.tensor.elements * sink.tensor.fixed.width >= 8192
    )
    assert len(stashes) > 5
    use = DramUse(edges=stashes, format=AxiFormat(data_bits=128, address_bits=20), burst=8, prefetch=32)
    if channels > 1:
        use = replace(
            use,
            format=AxiFormat(data_bits=512, address_bits=18),
            unit_bits=64,
            channels=dict.fromkeys(DEVICES, channels),
            channel_of={edge: index % channels for index, edge in enumerate(sorted(stashes))},
        )
    outside = keep_in_dram(graph, engines)
    placed = placement(graph, "branches apart")
    design = design_cluster(outside, placed, DEVICES, 2 * CYCLES, LIBRARY, word_bits=64, dram=use)
    assert sum(bool(device.memories) for device in design.devices) == 3
    assert max(len(device.memories) for device in design.devices) == channels
    run = train(design, tmp_path / "bench")
    assert run.mismatches == ()
    assert run.compared_words > 15_000


@pytest.mark.slow
def test_engines_of_the_digits_that_share_their_weights_train_to_the_same_bits(tmp_path: Path) -> None:
    graph = training_graph(tmp_path, 9)
    borrowers = [name for name, _ in sharing_nodes(graph)]
    assert len(borrowers) == 8
    shared = share_weights(graph, borrowers)
    placed = placement(shared, "branches apart")
    design = design_cluster(shared, placed, DEVICES, CYCLES, LIBRARY, word_bits=64)
    paths = [image.path for device in design.devices for image in device.images if image.image == "weights"]
    assert sum("true_dual_port" in path for path in paths) == len(borrowers)
    run = train(design, tmp_path / "bench")
    assert run.mismatches == ()
    assert run.compared_words > 15_000


@pytest.mark.slow
@pytest.mark.parametrize("dram", [False, True])
def test_maps_of_the_digits_that_are_made_again_train_to_the_same_bits(dram: bool, tmp_path: Path) -> None:
    """On chip; and what waits in DRAM, with weights shared and at the pace that they are said to have."""
    graph = training_graph(tmp_path, 9)
    kept = kept_edges(graph)
    again = recompute(graph, tuple(kept))
    norms = [edge for edge in kept if edge.endswith(".normal")]
    assert len(norms) >= 5
    use = None
    if dram:
        again = share_weights(again, [name for name, _ in sharing_nodes(again)])
        use = DramUse(edges=frozenset(norms), format=AxiFormat(data_bits=128, address_bits=20), burst=8, prefetch=32)
    placed = placement(again, "branches apart")
    design = design_cluster(again, placed, DEVICES, CYCLES * (1 + dram), LIBRARY, word_bits=64, dram=use)
    run = train(design, tmp_path / "bench")
    assert run.mismatches == ()
    assert run.compared_words > 15_000


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [9, 0])
def test_digits_with_slow_updates_divided_norms_and_multiplied_constants_train_to_the_same_bits(
    staleness: int, tmp_path: Path
) -> None:
    """At an eighth of the demo's cycles, where updates would have several lanes and norms work on several channels."""
    graph = training_graph(tmp_path, staleness)
    fast = fold_graph(graph, CYCLES // 8)
    slow = share_statistics(spread_updates(graph, 4))
    slow = multiply_constants(slow, tuple(multiplying_nodes(slow)))
    design = design_cluster(slow, placement(slow, "branches apart"), DEVICES, CYCLES // 8, LIBRARY, word_bits=64)
    lanes = [sum(n.layer.port("g").lanes for n in g.nodes if n.role is Role.UPDATE) for g in (fast, design.graph)]
    assert lanes[1] < lanes[0]
    assert any(getattr(node.layer, "statistic_lanes", 0) for node in design.graph.nodes)
    run = train(design, tmp_path / "bench")
    assert run.mismatches == ()
    assert run.compared_words > 15_000
