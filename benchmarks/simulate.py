"""Exact simulation of a cluster's control beside its co-simulation: cycles a second in one run.

python benchmarks/simulate.py build/digits    # of a working folder in which `dagtrain emit` ran
python benchmarks/simulate.py --layers        # what is left of one example of each kind of layer

Both simulators are built with the same optimisation, run one after the other for the same batches and seed, and must
tell the same cycle of every record.  Seconds are those of the processor that the programs took, which other work on the
machine changes less; builds are not part of them.  Cells are those of Yosys before mapping, if it is installed: of a
circuit, and of its slice.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest import mock

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent.parent))

from dagtrain.cosim import cluster
from dagtrain.cosim.cluster import simulate_cluster
from dagtrain.cosim.simulator import RunLog, Simulator
from dagtrain.flow.cosim_step import CosimOptions, prepared
from dagtrain.flow.emit_step import library
from dagtrain.flow.workspace import Workspace
from dagtrain.progress import Silent
from dagtrain.simulate import exact
from dagtrain.simulate.exact import ExactOptions, simulate_exactly
from hdl.analysis.dataflow import EVERY_BIT
from hdl.convert.control import ControlSlicer
from hdl.convert.netlist import Direction
from hdl.convert.tools import run_tool
from hdl.layers.registry import load_layers

CLEANED = "opt -full -purge"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=Path("build/digits"))
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--stall", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.layers:
        layers()
    else:
        speeds(options.out, options.batches, options.stall, options.seed)


def speeds(out: Path, batches: int, stall: float, seed: int) -> None:
    """Cycles a second of both."""
    ready = prepared(Workspace(out), CosimOptions(batches=batches, stall=stall, seed=seed))
    delivered, graph, modules = ready.delivered, ready.graph, library()
    rows: list[tuple[str, RunLog, float]] = []
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        folder = Path(name)

        def whole() -> None:
            simulate_cluster(
                delivered, graph, modules, ready.feeds, folder / "cosim", Simulator.VERILATOR, ready.network,
                ready.stall_256, seed, Silent(), optimise=True, memory=ready.memory,
            )  # fmt: skip

        def control() -> None:
            how = ExactOptions(
                batches=batches, network=ready.network, memory=ready.memory, host_stall_256=ready.stall_256, seed=seed
            )
            simulate_exactly(delivered, graph, modules, folder / "simulate", how, Silent())

        for label, module, run in (("cosim", cluster, whole), ("simulate --level exact", exact, control)):
            rows.append((label, *timed(module, run)))
    (_, log, seconds), (_, found, quick) = rows
    print(f"{'':24}{'cycles':>12}{'CPU s':>10}{'cycles/s':>14}")
    for label, ran, took in rows:
        print(f"{label:24}{ran.cycles:12,}{took:10.2f}{ran.cycles / took:14,.0f}")
    equal = log.frame_cycles == found.frame_cycles and log.cycles == found.cycles
    print(f"{seconds / quick:.1f} times as fast; cycles of all records {'are equal' if equal else 'DIFFER'}")
    sys.exit(not equal)


def timed(module: ModuleType, run: Callable[[], None]) -> tuple[RunLog, float]:
    """The log of a simulation, and what its program took of the processor."""
    found: list[tuple[RunLog, float]] = []
    execute = module.execute

    def measured(*given: object, **more: object) -> RunLog:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        log: RunLog = execute(*given, **more)
        found.append((log, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before))
        return log

    with mock.patch.object(module, "execute", measured):
        run()
    return found[0]


def layers() -> None:
    """What is left of one example of each kind of layer."""
    yosys = shutil.which("yosys") is not None
    print(f"{'layer':26}{'statements':>20}{'multipliers':>14}{'bits of memory':>20}{'cells':>18}")
    for name, kind in sorted(load_layers().items()):
        layer = next((one for one in kind.examples() if one.sinks and one.sources), None)
        if layer is None:
            continue
        verilog = library().layer(layer).verilog
        slicer = ControlSlicer({verilog.name: verilog.text})
        ports = slicer.read(verilog.name).nets
        asked = [
            port
            for port in slicer.read(verilog.name).ports
            if ports[port].direction is Direction.OUT and not port.endswith("_payload")
        ]
        solution = slicer.solve(verilog.name, dict.fromkeys(asked, EVERY_BIT))
        before, after = slicer.contents(None, verilog.name), slicer.contents(solution)
        text = slicer.texts(solution)[verilog.name]
        counted = f"{cells(verilog.name, verilog.text):,} -> {cells(verilog.name, text):,}" if yosys else "-"
        print(
            f"{name:26}{f'{before.assignments} -> {after.assignments}':>20}"
            f"{f'{before.multipliers} -> {after.multipliers}':>14}"
            f"{f'{before.memory_bits:,} -> {after.memory_bits:,}':>20}{counted:>18}",
            flush=True,
        )


def cells(name: str, text: str) -> int:
    """Of a module, as Yosys counts them before it maps any."""
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as folder:
        (Path(folder) / "module.v").write_text(text)
        script = (
            f"read_verilog module.v; hierarchy -top {name}; proc; flatten; {CLEANED}; memory -nomap; {CLEANED}; stat"
        )
        told = run_tool(["yosys", "-p", script], Path(folder))
    return int(re.findall(r"Number of cells:\s+(\d+)", told)[-1])


if __name__ == "__main__":
    main()
