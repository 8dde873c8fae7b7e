"""Programs that read Verilog."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hdl.errors import ToolError, ToolMissing, ToolTimeout

# Verilator warnings that are accepted, and why
WAIVERS: Mapping[str, str] = {
    "WIDTH": "MyHDL writes constants without a size; hdl.convert.lint proves that every operand is wide enough",
    "UNUSED": "a port of the stream contract may carry nothing for a given configuration",
    "UNDRIVEN": "bits of a memory or vector that no configuration reads",
    "DECLFILENAME": "several modules may share a file",
    "BLKSEQ": "local variables of a clocked process are blocking by design",
    "VARHIDDEN": "loop variables of separate processes share names",
}
# Verilator can assign to arrays of registers only in loops that it unrolls; its default ends at 64 rounds.  Such loops
# go over lanes, rows or taps of a circuit, never so many; one that clears a large memory stays a loop: unrolled, half
# a million words take 36 CPU seconds and 3 GB
VERILATOR_UNROLL = ("--unroll-count", "4096", "--unroll-stmts", "100000000")


def run_tool(command: Sequence[str | Path], folder: Path | None = None, timeout: float = 600.0) -> str:
    """Run a tool to its end and return what it printed.

    Raises `ToolMissing` if it isn't installed and `ToolError` with its output if it fails.
    """
    if shutil.which(str(command[0])) is None:
        raise ToolMissing(str(command[0]))
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            _direct(words), cwd=folder, env={ALLOCATION_VARIABLE: ALLOCATION, **os.environ}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ToolTimeout(f"{words[0]} did not finish in {timeout:.0f} s: {' '.join(words)[:500]}") from error
    if done.returncode:
        raise ToolError(f"{words[0]} failed with {done.returncode}: {' '.join(words)[:500]}\n{done.stdout[-4000:]}")
    return done.stdout


LINT = ("verilator", "--lint-only", "-Wall", *VERILATOR_UNROLL, *(f"-Wno-{code}" for code in WAIVERS))


# glibc's allocator keeps what is freed for the next of its size, and takes huge pages: a third of the time of Verilator
# and of Yosys is that of millions of small nodes, made, followed through memory and freed; other C libraries read no
# such variable
ALLOCATION_VARIABLE = "GLIBC_TUNABLES"
ALLOCATION = "glibc.malloc.tcache_count=60000:glibc.malloc.hugetlb=1"


def _direct(words: list[str]) -> list[str]:
    """Verilator's own program where the command is its Perl script, which takes ten times as long to start as that
    takes for a small module.  As the script does, without a limit on the stack."""
    script = shutil.which(words[0]) or ""
    program = Path(script).with_name("verilator_bin")
    if words[0] != "verilator" or not program.exists():
        return words
    return ["sh", "-c", 'ulimit -s unlimited 2>/dev/null; exec "$0" "$@"', str(program), *words[1:]]


def lint_verilog(files: Sequence[Path], top: str) -> None:
    """Verilator's full lint; raises `ToolError` listing every warning that isn't in `WAIVERS`."""
    run_tool([*LINT, "--top-module", top, *files])


def compile_icarus(files: Sequence[Path], top: str) -> None:
    """Compile with Icarus as Verilog-2005; raises `ToolError` on an error or a warning."""
    printed = run_tool(["iverilog", "-g2005", "-Wall", "-Wno-timescale", "-t", "null", "-s", top, *files])
    if printed.strip():
        raise ToolError(f"iverilog warns about {top}:\n{printed[-4000:]}")


def check_yosys(files: Sequence[Path], top: str) -> None:
    """Read, elaborate and check with Yosys; raises `ToolError` on an error, a failed check or a latch."""
    read = " ".join(f'"{path}"' for path in files)
    script = f"read_verilog {read}; hierarchy -check -top {top}; proc; flatten; opt_clean; check -assert; "
    script += "select -assert-none t:$dlatch t:$adlatch"
    run_tool(["yosys", "-q", "-p", script])
