"""MyHDL testbenches drive the emitted Verilog of a device and of a cluster, compiled and over VPI, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.testbench import simulate_under_myhdl
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import DramUse, MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.feeds import synthetic_feeds
from dagtrain.passes.memory_home import keep_in_dram
from hdl.axi import AxiFormat
from hdl.simulate.cosimulation import Engine
from hdl.simulate.design import cache_folder
from tests.cosim_support import BATCH, CYCLES, DEVICES, deliver, placement, residual_net

LIBRARY = ModuleLibrary(cache_folder() / "modules")


def designed(kind: str, in_dram: tuple[str, ...] = ()) -> ClusterDesign:
    graph = residual_net(2)
    use = DramUse(format=AxiFormat(data_bits=64, address_bits=16), burst=8, prefetch=32)
    outside = keep_in_dram(graph, in_dram)
    return design_cluster(outside, placement(graph, kind), DEVICES, CYCLES, LIBRARY, word_bits=64, dram=use)


def train(design: ClusterDesign, folder: Path, batches: int = 2, engine: Engine = Engine.VERILATOR) -> ClusterRun:
    feeds = [synthetic_feeds(design.graph, BATCH, 100 + index) for index in range(batches)]
    network = NetworkModel(latency_cycles=90, words=1, cycles=2, stall_256=40, seed=3)
    delivered = deliver(design, LIBRARY, folder / "emit")
    return simulate_under_myhdl(
        delivered,
        design.graph,
        LIBRARY,
        feeds,
        folder / "bench",
        network,
        MemoryModel(),
        0.3,
        5,
        engine,
        optimise=False,
    )


@pytest.mark.parametrize(
    "engine", [Engine.VERILATOR, pytest.param(Engine.ICARUS, marks=pytest.mark.slow)], ids=lambda engine: engine.value
)
def test_a_device_under_a_myhdl_testbench_trains_to_the_bits_of_the_emulator(engine: Engine, tmp_path: Path) -> None:
    design = designed("one", ("conv2.w.update",))
    assert len(design.devices) == 1
    run = train(design, tmp_path, batches=1, engine=engine)
    assert run.mismatches == ()
    assert len(run.losses) == BATCH
    # master and momentum in DRAM, and those of all others
    assert run.compared_words > 300


@pytest.mark.slow
def test_a_cluster_under_a_myhdl_testbench_trains_to_the_bits_of_the_emulator(tmp_path: Path) -> None:
    design = designed("branches apart")
    assert len(design.devices) == 3
    run = train(design, tmp_path)
    assert run.mismatches == ()
    assert len(run.losses) == 2 * BATCH


@pytest.mark.slow
def test_a_wrong_first_weight_is_seen_under_a_myhdl_testbench(tmp_path: Path) -> None:
    design = designed("one")
    (device,) = design.devices
    images = tuple(
        replace(image, words=(image.words[0] ^ 0x400, *image.words[1:]))
        if (image.node, image.image) == ("conv2", "weights")
        else image
        for image in device.images
    )
    wrong = replace(design, devices=(replace(device, images=images),))
    assert train(wrong, tmp_path, batches=1).mismatches
