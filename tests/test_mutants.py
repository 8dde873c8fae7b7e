"""Co-simulation with ports shut for long stretches changes no bit; a bench for faults put into the delivered Verilog.

All mutants are built at once: which of them is at work is told when the simulation starts.  Only the one without a
fault runs so far: of the faults some are not found yet (docs/cosimulation.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dagtrain.cosim.bench import BENCH, BenchOptions, design_bench
from dagtrain.cosim.cluster import emulate, write_inputs, write_sources
from dagtrain.cosim.compare import compare, compare_start
from dagtrain.cosim.deadlock import explain
from dagtrain.cosim.simulator import Simulator, StuckError, build, execute
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.executor import Executor, Mode
from dagtrain.feeds import synthetic_feeds
from dagtrain.ir import Graph
from dagtrain.passes.buffers import deadlock_beats
from hdl.errors import DagtrainError
from hdl.fixed import IntArray
from hdl.simulate.design import cache_folder
from tests.cosim_support import deliver, tiny_design

LIBRARY = ModuleLibrary(cache_folder() / "modules")
BATCHES = 6
# cycles for which a port stays shut or open
HOLD_CYCLES = 150
STUCK_CYCLES = 20_000

# kind of module -> kind of fault -> (what is replaced, by what); M is 1 when the mutant is at work
FAULTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "fork": {"forgets a branch": (r"assign ready\[(\d)\] = (\w+);", r"assign ready[\1] = \2 | M;")},
    "queue": {
        "takes one too many": (
            r"_ready <= \((\w+_count) != (\d+)\);\n(\s+end\n\s+else if)",
            r"_ready <= (\1 != \2 + M);\n\3",
        )
    },
    "link_egress": {
        "a credit too many for every word": (r"\(credit \+ returned\) - 1\)", r"(credit + returned) - 1 + M)"),
        "a credit lost with every word": (r"\(credit \+ returned\) - 1\)", r"(credit + returned) - 1 - M)"),
        "a credit too many at the start": (r"\bcredit <= (\d+);", r"credit <= \1 + M;"),
    },
    "link_ingress": {
        "a credit lost with every return": (r"freed <= \(freed - (\d+)\);", r"freed <= (freed - \1 - M);")
    },
}


def tight_design() -> ClusterDesign:
    """The tiny network with the least FIFOs at which it moves, so that all of them fill."""
    loose = tiny_design(LIBRARY)
    depths = {
        edge: max(2, deadlock_beats(loose.graph, edge))
        for edge, _, source, _, _ in loose.graph.edges
        if not source.tensor.kind.per_batch
    }
    return tiny_design(LIBRARY, network_cycles=8, fifo_override=depths)


@dataclass
class Mutants:
    """The numbers of all faults, from 1 on."""

    names: list[str] = field(default_factory=list)

    def put_into(self, path: Path) -> None:
        """Every fault that a module can have, each at every place where it can be."""
        kind = next((kind for kind in FAULTS if path.name.startswith(f"{kind}_")), "")
        text = path.read_text()
        for fault, (old, new) in FAULTS.get(kind, {}).items():
            text = self._places(path.stem, fault, old, new, text)
        path.write_text(text)

    def _places(self, module: str, fault: str, old: str, new: str, text: str) -> str:
        def change(found: re.Match[str]) -> str:
            self.names.append(f"{module}: {fault}, place {found.start()}")
            return found.expand(new).replace("M", f"({BENCH}.mutant == {len(self.names)})")

        return re.sub(old, change, text)


@dataclass
class Built:
    """A simulation with all mutants in it."""

    folder: Path
    program: Path
    mutants: Mutants
    delivered: Delivered
    graph: Graph

    def outcome(self, mutant: int) -> str:
        """What co-simulation says with a mutant at work; "" if every bit is equal."""
        graph, batch = self.graph, self.graph.recipe.batch
        golden = Executor(graph, Mode.GOLDEN)
        start = compare_start(self.delivered, golden)
        feeds = [synthetic_feeds(graph, batch, 7 + index) for index in range(BATCHES)]
        bench = design_bench(self.delivered.devices, LIBRARY, options(graph), self.folder)
        sent: dict[str, list[IntArray]] = {log.edge: [] for log in bench.weights}
        expected = emulate(golden, feeds, sent)
        write_inputs(graph, bench, feeds, self.folder)
        try:
            log = execute(
                self.program, self.folder, lambda _: None, STUCK_CYCLES, arguments=[f"+mutant={mutant}"], timeout_s=60
            )
        except StuckError as error:
            return f"{error} {explain(self.delivered, error.nets)}" if error.nets else str(error)
        except DagtrainError as error:
            return str(error)
        run = compare(bench, golden, expected, self.folder, log, BATCHES * batch, start, sent)
        return "; ".join(run.mismatches)


def options(graph: Graph) -> BenchOptions:
    """Long stretches with ports shut, beside random stalls."""
    batch = graph.recipe.batch
    network = NetworkModel(latency_cycles=20, stall_256=40)
    return BenchOptions(frames=BATCHES * batch, batch=batch, network=network, hold_cycles=HOLD_CYCLES)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder, design, mutants = tmp_path_factory.mktemp("mutants"), tight_design(), Mutants()
    delivered = deliver(design, LIBRARY, folder / "emit")
    files = delivered.modules()
    for path in files.values():
        mutants.put_into(path)
    # the other device's copies are the same
    for device in delivered.devices:
        for path in device.sources:
            path.write_bytes(files[path.stem].read_bytes())
    bench_folder = folder / "bench"
    bench = design_bench(delivered.devices, LIBRARY, options(design.graph), bench_folder)
    sources = write_sources(delivered, bench, LIBRARY, bench_folder)
    text = bench_folder / "rtl" / f"{BENCH}.v"
    switch = 'integer mutant;\ninitial if (!$value$plusargs("mutant=%d", mutant)) mutant = 0;\n'
    text.write_text(text.read_text().replace("wire [31:0] recorded;\n", f"wire [31:0] recorded;\n{switch}", 1))
    program = build(bench_folder / "sim", sources, Simulator.VERILATOR, optimise=False)
    return Built(bench_folder, program.resolve(), mutants, delivered, design.graph)


def test_without_a_fault_every_bit_is_equal_when_ports_are_shut_for_long(built: Built) -> None:
    assert built.outcome(0) == ""
