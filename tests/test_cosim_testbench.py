"""MyHDL testbenches drive the emitted Verilog of a device and of a cluster, compiled and over VPI, bit for bit."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dagtrain.cosim.compare import ClusterRun
from dagtrain.cosim.emitted import EmittedModule
from dagtrain.cosim.simulator import BrokenError, StuckError
from dagtrain.cosim.testbench import simulate_under_myhdl
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.design import ClusterDesign, design_cluster
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.stored import DramUse
from dagtrain.passes.memory_home import keep_in_dram
from dagtrain.training.feeds import synthetic_feeds
from hdl.cache import cache_folder
from hdl.dram.axi import AxiFormat
from hdl.simulate.cosimulation import CosimulationProgram, Engine
from tests.cosim_support import BATCH, CYCLES, DEVICES, deliver, placement, residual_net, tiny_design

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


@dataclass
class Faulty:
    """Two FPGAs with faults in their Verilog, compiled once; a file says which one is at work."""

    design: ClusterDesign
    delivered: Delivered
    folder: Path
    # for which streams are held up
    hold_cycles: int = 0
    program: CosimulationProgram | None = None

    def train(self, fault: int, patch: pytest.MonkeyPatch) -> ClusterRun:
        """One batch with a fault at work; 0: none."""
        build = EmittedModule.build

        def build_once(module: EmittedModule, *arguments: Any, **options: Any) -> CosimulationProgram:
            self.program = self.program or build(module, *arguments, **options)
            return self.program

        patch.setattr(EmittedModule, "build", build_once)
        self.folder.mkdir(exist_ok=True)
        (self.folder / "fault.mem").write_text(f"{fault:x}\n")
        graph, network = self.design.graph, NetworkModel(latency_cycles=20, stall_256=40)
        feeds = [synthetic_feeds(graph, graph.recipe.batch, 100)]
        return simulate_under_myhdl(
            self.delivered, graph, LIBRARY, feeds, self.folder, network, MemoryModel(), 0.3, 5, optimise=False,
            hold_cycles=self.hold_cycles,
        )  # fmt: skip


# of new weights, of a link
WRONG_WEIGHTS, FEW_CREDITS = 1, 2


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    folder, design = tmp_path_factory.mktemp("faulty"), tiny_design(LIBRARY)
    delivered = deliver(design, LIBRARY, folder / "emit")
    beta = folder / "emit" / "beta" / "rtl"
    top = (beta / "beta.v").read_text()
    (update,) = re.findall(r"^(update_\w+) (?:#\([^;]*?\) )?u_norm1_beta_update \($", top, re.MULTILINE)
    (sender,) = beta.glob("link_egress_*.v")
    put_fault(beta / f"{update}.v", r"(assign w_payload = )(\w+);", rf"\1\2 ^ (fault[0] == {WRONG_WEIGHTS});")
    put_fault(sender, r"\bcredit <= (\d+);", rf"credit <= fault[0] == {FEW_CREDITS} ? 1 : \1;")
    return Faulty(design, delivered, folder / "bench")


def put_fault(path: Path, old: str, new: str) -> None:
    text, count = re.subn(old, new, path.read_text())
    assert count == 1, path
    switch = 'reg [7:0] fault [0:0];\ninitial $readmemh("fault.mem", fault);\n'
    path.write_text(text.replace(");\n", f");\n{switch}", 1))


@pytest.mark.xdist_group("faulty under MyHDL")
def test_a_cluster_of_two_under_a_myhdl_testbench_trains_to_the_bits_of_the_emulator(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = faulty.train(0, monkeypatch)
    assert run.mismatches == ()
    assert len(run.losses) == faulty.design.graph.recipe.batch
    # images at the start, metrics, weights, and state, of which some lies in DRAM
    assert run.compared_words > 250


@pytest.mark.xdist_group("faulty under MyHDL")
def test_new_weights_that_no_frame_has_used_yet_are_compared_under_a_myhdl_testbench(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = faulty.train(WRONG_WEIGHTS, monkeypatch).mismatches
    assert re.fullmatch(
        r"beta: weights of norm1\.beta\.update sent after batch 1: 2 of 2 elements differ, "
        r"first norm1\.beta\.update\.w\[0\]: -?0x\w+, not -?0x\w+",
        found,
    ), found


@pytest.mark.xdist_group("faulty under MyHDL")
def test_a_deadlock_under_a_myhdl_testbench_tells_who_waits_for_whom(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StuckError) as stuck:
        faulty.train(FEW_CREDITS, monkeypatch)
    assert re.fullmatch(
        r"nothing moved any more, seen in cycle \d+ after 0 records: the pipeline has deadlocked; "
        r"the host waits for frame 1 of batch 1; these wait for one another in a circle:\n"
        r"  sender of (\S+) \(beta\) waits for receiver of \1 \(alpha\): it has no credits left\n"
        r"  receiver of (\S+) \(alpha\) waits for sender of \2 \(beta\): no word has come",
        str(stuck.value),
    ), str(stuck.value)


@pytest.mark.slow
@pytest.mark.xdist_group("faulty under MyHDL")
def test_watchers_find_and_name_a_fault_under_a_myhdl_testbench(
    faulty: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = replace(faulty, folder=tmp_path / "held", hold_cycles=20, program=None)
    run = held.train(0, monkeypatch)
    assert run.mismatches == ()
    assert re.match(r"held up inside: \d+ of \d\d FIFOs were full and empty", run.traffic), run.traffic
    with pytest.raises(BrokenError) as broken:
        held.train(FEW_CREDITS, monkeypatch)
    assert re.fullmatch(
        r"beta: link of \S+ to alpha, beat 2: the sender waits with 1 of \d+ credits spent", str(broken.value)
    ), str(broken.value)


@pytest.mark.slow
@pytest.mark.parametrize("engine", list(Engine), ids=lambda engine: engine.value)
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
