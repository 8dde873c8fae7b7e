"""Builds and runs a self-contained Verilog bench in Verilator or Icarus."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hdl.errors import DagtrainError, ToolError
from hdl.simulate.verilator import BUILD_TIMEOUT_S, compile_verilog
from hdl.verilog import run_tool

# threads of a simulation that runs long; they wait spinning, so they are much faster than one on two idle cores, and
# slower beside other work
THREADS = 2

MAIN = Path(__file__).with_name("bench_main.cpp")

# the clock of the bench where no C++ drives it
ICARUS_MAIN = """module dagtrain_bench_main;
reg clk = 0;
reg rst = 1;
wire finished, network_error;
wire [31:0] progress, activity;
reg [31:0] shown = 0, cycles = 0, seen = 0, idle = 0, limit = 0;
// 1: the streams are printed, 2: they have been
reg [1:0] stuck = 0;
initial if (!$value$plusargs("stuck=%d", limit)) limit = 0;
dagtrain_bench bench (.clk(clk), .rst(rst), .report(stuck[0]), .finished(finished), .progress(progress),
    .activity(activity), .network_error(network_error));
always #1 clk = !clk;
always @(posedge clk) begin
    cycles <= cycles + 1;
    if (cycles == 16) rst <= 0;
    if (progress != shown) begin
        shown <= progress;
        $display("frames %0d %0d", progress, cycles);
    end
    seen <= activity;
    idle <= activity == seen ? idle + 1 : 0;
    if (limit != 0 && idle == limit) stuck <= 1;
    if (stuck == 1) stuck <= 2;
    if (stuck == 2) begin
        $display("stuck %0d", cycles);
        $finish;
    end
    if (network_error && !rst) begin
        $display("network error %0d", cycles);
        $finish;
    end
    if (finished) begin
        $display("cycles %0d", cycles);
        $finish;
    end
end
endmodule
"""


class Simulator(Enum):
    """What runs the bench."""

    VERILATOR = "verilator"
    ICARUS = "icarus"


class StuckError(DagtrainError):
    """The simulated cluster stopped making progress: a deadlock."""

    def __init__(self, message: str, nets: Mapping[tuple[str, str], tuple[bool, bool]] | None = None) -> None:
        super().__init__(message)
        # (top module, net) -> valid and ready when nothing moved
        self.nets = nets or {}


class BrokenError(DagtrainError):
    """A watcher saw a fault inside an FPGA."""

    def __init__(self, number: int, beat: int, what: str) -> None:
        super().__init__(what)
        # of the watcher, and of the beat, from 0
        self.number, self.beat = number, beat


@dataclass(frozen=True)
class RunLog:
    """What a bench told while it ran."""

    cycles: int
    # cycle at which each frame's metrics had arrived
    frame_cycles: tuple[int, ...]
    # watchers to which traffic did all that it should
    seen: frozenset[int] = frozenset()


def build(folder: Path, sources: Sequence[Path], simulator: Simulator, optimise: bool = True) -> Path:
    """Build the simulation of module `dagtrain_bench`, made of ``sources`` alone, into ``folder``; returns the program.

    ``optimise``: for a long run, which then takes two cores.
    Raises `ToolMissing` without the simulator, `ToolError` with its output when it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    if simulator is Simulator.ICARUS:
        main = folder / "dagtrain_bench_main.v"
        main.write_text(ICARUS_MAIN)
        program = folder / "bench.vvp"
        run_tool(
            ["iverilog", "-g2005", "-s", "dagtrain_bench_main", "-o", program, main, *sources], timeout=BUILD_TIMEOUT_S
        )
        return program
    threads = THREADS if optimise and len(os.sched_getaffinity(0)) >= THREADS else 1
    return compile_verilog(folder, "dagtrain_bench", sources, MAIN, optimise=optimise, threads=threads)


def execute(
    program: Path,
    folder: Path,
    on_frame: Callable[[int], None],
    stuck_after_cycles: int = 200_000,
    timeout_s: float | None = None,
    arguments: Sequence[str] = (),
) -> RunLog:
    """Run a built bench in ``folder``, where its memory files lie; ``on_frame`` gets the number of frames done.

    ``arguments`` are plusargs for the Verilog.

    Raises `StuckError` when nothing moves for ``stuck_after_cycles``, `BrokenError` for what a watcher saw."""
    icarus = ["vvp", "-n", str(program), f"+stuck={stuck_after_cycles}"]
    command = [*(icarus if program.suffix == ".vvp" else [str(program), str(stuck_after_cycles)]), *arguments]
    nets: dict[tuple[str, str], tuple[bool, bool]] = {}
    frame_cycles: list[int] = []
    seen: set[int] = set()
    cycles = None
    tail: list[str] = []
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            words = line.split()
            if words[:1] == ["frames"]:
                frame_cycles.append(int(words[2]))
                on_frame(int(words[1]))
            elif words[:1] == ["cycles"]:
                cycles = int(words[1])
            elif words[:1] == ["net"]:
                nets[words[1], words[2]] = words[3] == "1", words[4] == "1"
            elif words[:1] == ["seen"]:
                seen.add(int(words[1]))
            elif words[:1] == ["broken"]:
                raise BrokenError(int(words[1]), int(words[2].rstrip(":")), " ".join(words[3:]))
            elif words[:1] == ["stuck"]:
                raise StuckError(
                    f"nothing moved for {stuck_after_cycles} cycles, at cycle {words[1]}, after {len(frame_cycles)} "
                    "records: the pipeline has deadlocked",
                    nets,
                )
            elif words[:2] == ["network", "error"]:
                raise StuckError(f"a receiver lost or reordered words of a stream before cycle {words[2]}")
            elif words[:2] == ["memory", "error"]:
                raise ToolError(f"a memory refused an address after {words[2]} records")
            else:
                tail.append(line)
        process.wait(timeout=timeout_s)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    if cycles is None:
        raise ToolError(f"the simulation {program.name} ended early:\n{''.join(tail[-40:])}")
    return RunLog(cycles, tuple(frame_cycles), frozenset(seen))


def read_memory(path: Path) -> list[int]:
    """Words of a file written by `$writememh` (addresses and comments skipped)."""
    words: list[int] = []
    for line in path.read_text().splitlines():
        text = line.split("//", 1)[0].strip()
        if text and not text.startswith("@"):
            words += [int(word, 16) for word in text.split()]
    return words
