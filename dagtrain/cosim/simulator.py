"""Builds and runs a self-contained Verilog bench in Verilator or Icarus."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path

from dagtrain.cosim.clocks import CLUSTER_CLOCK
from dagtrain.cosim.connection import Answer, BenchConnection
from dagtrain.cosim.inside import tracing
from dagtrain.cosim.network import MacPort, SwitchHost, answer_bench, write_macs
from dagtrain.cosim.outermost import STREAMS_FILE, WATCH_FILE
from dagtrain.cosim.windows import LanePort, write_lanes
from dagtrain.progress import Progress
from hdl.convert.tools import run_tool
from hdl.errors import DagtrainError, ToolError
from hdl.simulate.verilator import BUILD_TIMEOUT_S, compile_verilog

MAIN = Path(__file__).with_name("bench_main.cpp")

# where C++ finds the clocks of the bench, if there are several
CLOCKS_FILE = "clocks.inc"
# its presence tells C++ that signals inside circuits can be recorded; its text, of which
INSIDE = "inside.inc"
# of a time step of the bench, if there are several clocks: femtoseconds
STEPS_PER_US = 10**9
PS_PER_US = 10**6

# cycles of a run from which on it pays to optimise: the tests' clusters take two to three times as long to compile, and
# run some 40 000 cycles a second without it
LONG_RUN_CYCLES = 300_000

# after so many the bench tells where it is, as in bench_main.cpp: often where it is fast, every ten seconds where slow
TOLD_CYCLES = 1 << 13

# the clock of the bench where no C++ drives it
ICARUS_MAIN = """module dagtrain_bench_main;
reg clk = 0;
reg rst = 1;
CLOCKS
wire finished, stuck, network_error, memory_error;
wire [31:0] progress;
reg [31:0] shown = 0, cycles = 0;
dagtrain_bench bench (.clk(clk), .rst(rst), .finished(finished), .stuck(stuck), .progress(progress),
    .network_error(network_error), .memory_error(memory_error)PINS);
always #HALF clk = !clk;
always @(posedge clk) begin
    cycles <= cycles + 1;
    if (cycles == 16) rst <= 0;
    if (progress != shown) begin
        shown <= progress;
        $display("frames %0d %0d", progress, cycles);
    end
    if (cycles != 0 && cycles % TOLD_CYCLES == 0) $display("at %0d", cycles);
    if (finished || stuck || (network_error || memory_error) && !rst) begin
        $display("%0s %0d", finished ? "cycles" : stuck ? "stuck" : memory_error ? "memory error" : "network error",
            cycles);
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

    def __init__(self, what: str, *, nets: Mapping[tuple[str, str], tuple[bool, bool]] | None = None) -> None:
        super().__init__(what)
        # (top module, net) -> valid and ready when nothing moved
        self.nets = nets or {}


class BrokenError(DagtrainError):
    """A watcher saw a fault inside an FPGA."""

    def __init__(self, number: int, beat: int, what: str) -> None:
        super().__init__(what)
        # of the watcher, and of the beat, from 0
        self.number, self.beat = number, beat


@dataclass(frozen=True)
class BenchClock:
    """A clock of the bench."""

    # of the bench's module
    name: str
    mhz: float
    # of its first edge, as a part of its cycle
    phase: float = 0.0

    @property
    def period(self) -> int:
        """In time steps."""
        return round(STEPS_PER_US / self.mhz)


@dataclass(frozen=True)
class RunLog:
    """What a bench told while it ran."""

    cycles: int
    # cycle at which each frame's metrics had arrived
    frame_cycles: tuple[int, ...]
    # watchers to which traffic did all that it should
    seen: frozenset[int] = frozenset()


def is_long(cycles: int) -> bool:
    """Whether optimised code gains more in so many cycles than it takes to compile, for a cluster of any size: both
    times grow with it."""
    return cycles >= LONG_RUN_CYCLES


def build(
    folder: Path,
    sources: Sequence[Path],
    simulator: Simulator,
    optimise: bool = True,
    clocks: Sequence[BenchClock] = (),
    inside: Sequence[str] = (),
    macs: Sequence[MacPort] = (),
    lanes: Sequence[LanePort] | None = None,
) -> Path:
    """Build the simulation of module `dagtrain_bench`, made of ``sources`` alone, into ``folder``; returns the program.

    ``clocks``: all clocks of the bench, `clk` first, if there are several.
    ``inside``: instances below the bench of which Verilator can record all signals.
    ``macs``: MACs at ports of the bench, in the order of the switch's ports, which C++ alone drives.
    ``lanes``: to and from the rest of the cluster, of a bench that has a part of it; None: it has all.
    ``optimise`` False builds fast and runs slowly.
    Raises `ToolMissing` without the simulator, `ToolError` with its output when it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    if simulator is Simulator.ICARUS:
        main = folder / "dagtrain_bench_main.v"
        main.write_text(_icarus_main(clocks))
        program = folder / "bench.vvp"
        run_tool(
            ["iverilog", "-g2005", "-s", "dagtrain_bench_main", "-o", program, main, *sources], timeout=BUILD_TIMEOUT_S
        )
        return program
    for name in (CLOCKS_FILE, INSIDE):
        (folder / name).unlink(missing_ok=True)
    write_macs(folder, macs, [clock.name for clock in clocks] or [CLUSTER_CLOCK])
    write_lanes(folder, lanes)
    if inside:
        (folder / INSIDE).write_text("".join(f"// {path}\n" for path in inside))
    if clocks:
        rows = [f"    {{&bench.{c.name}, {c.period}ull, {round(c.phase * c.period)}ull}},\n" for c in clocks]
        (folder / CLOCKS_FILE).write_text("".join(rows))
    return compile_verilog(folder, "dagtrain_bench", sources, MAIN, optimise=optimise, tracing=tracing(sources, inside))


def step_ps(step: int, clocks: Sequence[BenchClock], period_ps: int) -> int:
    """The time at which waveforms show a step of C++ in which a clock rises; the bench counts cycles from 1."""
    if clocks:
        return step * PS_PER_US // STEPS_PER_US + period_ps
    return (step + 1) // 2 * period_ps


def _icarus_main(clocks: Sequence[BenchClock]) -> str:
    """The outermost module with all clocks; one of them alone toggles in every time step."""
    half = clocks[0].period // 2 if clocks else 1
    made = "\n".join(
        f"reg {c.name} = 0;\ninitial begin #{1 + round(c.phase * c.period)}; forever begin "
        f"{c.name} = 1; #{c.period // 2}; {c.name} = 0; #{c.period - c.period // 2}; end end"
        for c in clocks[1:]
    )
    pins = "".join(f", .{c.name}({c.name})" for c in clocks[1:])
    filled = {"CLOCKS\n": made and made + "\n", "PINS": pins, "HALF": str(half), "TOLD_CYCLES": str(TOLD_CYCLES)}
    text = ICARUS_MAIN
    for hole, filling in filled.items():
        text = text.replace(hole, filling)
    return text


def execute(
    program: Path,
    folder: Path,
    on_frame: Callable[[int], None],
    timeout_s: float | None = None,
    arguments: Sequence[str] = (),
    host: SwitchHost | None = None,
    on_cycle: Callable[[int], None] = lambda _: None,
) -> RunLog:
    """Run a built bench in ``folder``, where its memory files lie; ``on_frame`` gets the number of frames done,
    ``on_cycle`` now and then the cycle.

    ``arguments`` are plusargs for the Verilog.
    ``host`` is at the host's port of the switch of a bench with MACs; what it raises ends the run.

    Raises `StuckError` when nothing moves, `BrokenError` for what a watcher saw, `ToolError` for what a memory did."""
    return judged(folder, run_bench(program, folder, on_frame, timeout_s, arguments, answers_of(host), on_cycle))


@dataclass
class Listener:
    """What `execute` tells goes on to ``progress``: of all ``records`` a share of the ``frames``."""

    progress: Progress
    frames: int
    records: int
    seen: int = 0

    def on_frame(self, records: int) -> None:
        """So many records have come."""
        done = records * self.frames // self.records
        self.progress.advance(done - self.seen)
        self.seen = done

    def on_cycle(self, cycle: int) -> None:
        """The cycle."""
        self.progress.advance(0, note=f"cycle {cycle:,}")


def answers_of(host: SwitchHost | None) -> dict[str, Answer]:
    """Who answers a bench, by the name under which it is told of the socket."""
    return {} if host is None else {"host": lambda connection: answer_bench(connection, host)}


class Ended(StrEnum):
    """How a bench ended, as it says so itself."""

    FINISHED = "cycles"
    STUCK = "stuck"
    MEMORY = "memory error"
    NETWORK = "network error"
    # another one with the rest of the cluster could not go on
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class BenchEnd:
    """What a bench said while it ran, and at the end."""

    how: Ended
    cycle: int
    # as in `RunLog`
    frame_cycles: tuple[int, ...]


def judged(folder: Path, end: BenchEnd) -> RunLog:
    """The log of a bench that ran in ``folder``.  Raises as `execute`."""
    if end.how is Ended.STUCK:
        raise stuck_error(folder, end.cycle, len(end.frame_cycles))
    if end.how in (Ended.MEMORY, Ended.NETWORK):
        raise refusal(folder, end.how.split()[0], end.cycle)
    return RunLog(end.cycle, end.frame_cycles, seen_by_watchers(folder))


def run_bench(
    program: Path,
    folder: Path,
    on_frame: Callable[[int], None],
    timeout_s: float | None,
    arguments: Sequence[str],
    answers: Mapping[str, Answer],
    on_cycle: Callable[[int], None] = lambda _: None,
) -> BenchEnd:
    """See `execute`; what ``answers`` raise, by the names of their sockets, ends the run.

    Raises `ToolError` where the bench does not say how it has ended."""
    command = [*(["vvp", "-n"] if program.suffix == ".vvp" else []), str(program), *arguments]
    (folder / WATCH_FILE).unlink(missing_ok=True)
    frame_cycles: list[int] = []
    end = None
    tail: list[str] = []
    with ExitStack() as stack:
        connections = [stack.enter_context(BenchConnection(name, answer)) for name, answer in answers.items()]
        process = subprocess.Popen(
            [*command, *(connection.argument for connection in connections)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[connection.descriptor for connection in connections],
            # Ctrl-C is for those who answer, who end the bench
            process_group=0 if connections else None,
        )
        for connection in connections:
            connection.begin()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                how, _, number = line.rstrip("\n").rpartition(" ")
                if how in {*Ended}:
                    end = Ended(how), int(number)
                    break
                if how.startswith("frames "):
                    records = int(how.split()[1])
                    # of a device whose clock is faster than the bench's, several may come at once
                    frame_cycles += [int(number)] * (records - len(frame_cycles))
                    on_frame(records)
                elif how == "at":
                    on_cycle(int(number))
                else:
                    tail.append(line)
            process.wait(timeout=timeout_s)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()
    if end is None:
        raise ToolError(f"the simulation {program.name} ended early:\n{''.join(tail[-40:])}")
    return BenchEnd(*end, tuple(frame_cycles))


def seen_by_watchers(folder: Path) -> frozenset[int]:
    """The watchers, in a bench that ran in ``folder``, to which traffic did all that it should."""
    return frozenset(int(words[1]) for words in _watched(folder) if words[0] == "seen")


def _watched(folder: Path) -> list[list[str]]:
    """The words of each line that watchers wrote; none where there were none."""
    path = folder / WATCH_FILE
    return [line.split() for line in path.read_text().splitlines()] if path.is_file() else []


def stuck_error(folder: Path, cycle: int, records: int) -> StuckError:
    """What a bench that ran in ``folder`` found when nothing moved, in a cycle, after so many records."""
    lines = [line.split() for line in (folder / STREAMS_FILE).read_text().splitlines()]
    nets = {(top, net): (valid == "1", ready == "1") for top, net, valid, ready in lines}
    return StuckError(
        f"nothing moved any more, seen in cycle {cycle} after {records} records: the pipeline has deadlocked",
        nets=nets,
    )


def refusal(folder: Path, of: str, cycle: int) -> DagtrainError:
    """What is wrong when ``<of>_error`` of a bench that runs in ``folder`` is high."""
    for words in _watched(folder):
        if words[0] == "broken":
            return BrokenError(int(words[1]), int(words[2].rstrip(":")), " ".join(words[3:]))
    if of == "memory":
        return ToolError(f"a memory refused an address before cycle {cycle}")
    return StuckError(f"a receiver lost or reordered words of a stream before cycle {cycle}")


def read_memory(path: Path) -> list[int]:
    """Words of a file written by `$writememh` (addresses and comments skipped).

    Raises `ToolError` for a word with bits that nobody has written."""
    words: list[int] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.split("//", 1)[0].strip()
        if not text or text.startswith("@"):
            continue
        try:
            words += [int(word, 16) for word in text.split()]
        except ValueError:
            raise ToolError(f"{path.name}, line {number}: Verilog has left bits unknown: {text}") from None
    return words
