"""Simulation of the emitted Verilog in Verilator, driven by a self-contained C++ harness.

A built simulator is kept in the cache folder under the hash of all that went into it; memory images are read
from files at run time, so other weights need no new build.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

from hdl.cache import cache_folder
from hdl.convert.images import write_image
from hdl.convert.netlist import Direction
from hdl.convert.tools import VERILATOR_UNROLL, WAIVERS, run_tool
from hdl.convert.verilog import VerilogModule
from hdl.errors import ContractViolation, DeadlockError, ToolError
from hdl.simulate.design import Design, Run, StreamPort
from hdl.simulate.drivers import deadlock

_HARNESS = Path(__file__).with_name("harness.cpp")
# seconds a build may take
BUILD_TIMEOUT_S = 1800.0
# statements a function: the compiler's time grows faster than a function
SPLIT = ("--output-split-cfuncs", "1000")
# bits of a signal and words of an array up to which they are recorded
TRACE = ("--trace", "--trace-max-width", "4096", "--trace-max-array", "1024")
# bytes of C++ beyond which two cores pay for reading the headers twice
LARGE_BYTES = 2_000_000
# of a unit of it: the compiler takes a hundred times as much memory
MOST_UNIT_BYTES = 8_000_000
# Verilator's message where a loop over registers is too long for its default limit on unrolling; without the limit,
# which few designs need, it takes longer
NOT_UNROLLED = "BLKLOOPINIT"


def run_verilator(
    design: Design,
    inputs: Mapping[str, Sequence[int]],
    expected: Mapping[str, int],
    *,
    seed: int,
    stall: float,
    max_cycles: int,
    drain: int,
) -> Run:
    """See `hdl.simulate.run_streams`, which has checked the arguments by making a `Bench`."""
    module = design.verilog
    beats = sum(map(len, inputs.values())) + sum(expected.values())
    executable = build(design, module, SHORT if beats > LONG_RUN else ONCE)
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        folder = Path(name)
        for port in design.inputs:
            (folder / f"in_{port.name}.bin").write_bytes(pack(inputs[port.name], port.width))
        (folder / "expected.txt").write_text("".join(f"{k} {v}\n" for k, v in expected.items()))
        for image, words in design.images.items():
            write_image(folder / f"image_{image}.hex", words, module.images[image].width)
        arguments = [str(number) for number in (seed % 2**63, int(stall * 2**32), max_cycles, drain)]
        run_tool([executable, *arguments], folder)
        status, _, message = (folder / "result.txt").read_text().strip().partition(" ")
        if status == "deadlock":
            raise DeadlockError(deadlock(design.name, max_cycles, [message]))
        if status != "ok":
            raise ContractViolation(f"{design.name}: {message}")
        outputs = {p.name: unpack((folder / f"out_{p.name}.bin").read_bytes(), p.width) for p in design.outputs}
        fires = {
            p.name: np.fromfile(folder / f"fires_{p.name}.bin", dtype="<u8").tolist()
            for p in (*design.inputs, *design.outputs)
        }
    return Run(outputs, fires, int(message))


def pack(beats: Sequence[int], width: int) -> bytes:
    """Payloads as whole little-endian 32-bit words."""
    size = 4 * ((width + 31) // 32)
    return b"".join(int(beat).to_bytes(size, "little") for beat in beats)


def unpack(data: bytes, width: int) -> list[int]:
    """The inverse of `pack`."""
    size = 4 * ((width + 31) // 32)
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


# Verilator's C++ needs no later standard, whose headers take longer to read.  The memory, in kB, is what the compiler
# takes before it looks for what it no longer needs: a circuit's C++ takes less
_COMPILE = ("g++", "-std=c++14", "-w", "-pthread", "--param", "ggc-min-heapsize=600000")
# GNU's quicker linker where it is installed: a third of the time of the default one, which links the same program
_LINKER = ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()
# how well C++ is optimised: what a long run spends its time in, what runs as long as it takes to compile, what runs
# once or for few cycles
LONG, SHORT, ONCE = "-O2", "-O1", "-O0"
# beats of a run of one circuit from which on optimised code gains more than it takes to compile
LONG_RUN = 20_000


def build(design: Design, module: VerilogModule, level: str) -> Path:
    """The executable simulator of a module at a ``level`` of optimisation, from the cache if it is there.

    Compiled as one unit and linked with a kept runtime and harness: several times faster than Verilator's own
    ``--build``.
    """
    source = _circuit(design, module)
    flags = [
        "--cc", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--noassert", "-Wno-fatal", *VERILATOR_UNROLL,
        *(f"-Wno-{code}" for code in WAIVERS), "--top-module", module.name, "--prefix", "Vdut",
        *(f'-G{module.images[name].parameter}="image_{name}.hex"' for name in design.images),
    ]  # fmt: skip
    version = _verilator(shutil.which("verilator"), "--version")
    kept = _kept(module.name, version, module.text, source, _harness_text(), *flags, level, *_COMPILE)
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        folder = Path(name)
        module.write(folder)
        run_tool(["verilator", *flags, f"{module.name}.v", "-Mdir", "obj"], folder)
        _keep(compile_units(folder, source, level, [_HARNESS]), kept)
    return kept


def compile_verilog(
    folder: Path, top: str, sources: Sequence[Path], main: Path, *, optimise: bool = True, tracing: Sequence[str] = ()
) -> Path:
    """The program of the Verilog module ``top`` of ``sources``, driven by the C++ file ``main``, in ``folder``.

    The class of the module is ``V<top>``; ``*.inc`` in ``folder`` can be included.
    ``tracing``: lines of Verilator's configuration that say which signals ``main`` can record; none: it can't.
    ``optimise`` False builds fast and runs slowly.  A program that was built of the same texts is kept.

    Raises `ToolMissing` without Verilator, `ToolError` with its output when it fails."""
    # of an earlier build
    shutil.rmtree(folder / "obj", ignore_errors=True)
    level = LONG if optimise else ONCE
    version = _verilator(shutil.which("verilator"), "--version")
    texts = (f"{path.name}\0{path.read_text()}" for path in (*sources, main, *sorted(folder.glob("*.inc"))))
    trace = TRACE if tracing else ()
    kept = _kept(top, version, level, *SPLIT, *VERILATOR_UNROLL, *_COMPILE, *trace, *tracing, _harness_text(), *texts)
    if kept.exists():
        return kept
    # A class for each module with a file of its name: less C++ than one class for all, quicker to compile and to run
    # (docs/benchmarks.md).  Modules that share a file are small and many, and become part of what instantiates them.
    classes = (f'no_inline -module "{path.stem}"\n' for path in sources)
    (folder / "classes.vlt").write_text("`verilator_config\n" + "".join([*classes, *(f"{line}\n" for line in tracing)]))
    command: list[str | Path] = [
        "verilator", "--cc", "-O3", *SPLIT, "--x-assign", "fast", "--x-initial", "fast", "-Wno-fatal", "-Wno-lint",
        "--top-module", top, "--prefix", f"V{top}", "-Mdir", "obj", *trace, "classes.vlt",
    ]  # fmt: skip
    # Verilator looks for modules that it misses where it runs
    command += sources
    try:
        run_tool(command, folder, timeout=BUILD_TIMEOUT_S)
    except ToolError as error:
        if NOT_UNROLLED not in str(error):
            raise
        run_tool([*command, *VERILATOR_UNROLL], folder, timeout=BUILD_TIMEOUT_S)
    tracer = [_root() / "include" / "verilated_vcd_c.cpp"] if tracing else []
    _keep(compile_units(folder, main.read_text(), level, tracer), kept)
    return kept


def compile_units(folder: Path, source: str, level: str, beside: Sequence[Path] = ()) -> Path:
    """The program of ``<folder>/obj``, where Verilator left its C++, and of ``source``, in as few units as keep the
    cores busy: each one reads all headers.

    ``level``: of optimisation.  ``beside`` are C++ files that are compiled once and kept, as Verilator's runtime is."""
    cores = len(os.sched_getaffinity(0))
    (folder / "obj" / "main.cpp").write_text(source)
    version = _verilator(shutil.which("verilator"), "--version")
    objects, include = _runtime(version, beside)
    units = [
        (f"obj/unit{number}", names, ["-include", _header(version, which), which, *include, "-I.", "-Iobj"])
        for number, (which, names) in enumerate(_units(folder / "obj", level, cores))
    ]

    def compiled(unit: tuple[str, Sequence[str], Sequence[str | Path]]) -> Path:
        stem, names, options = unit
        (folder / f"{stem}.cc").write_text("".join(f'#include "{name}"\n' for name in names))
        run_tool([*_COMPILE, *options, "-c", f"{stem}.cc", "-o", f"{stem}.o"], folder, timeout=BUILD_TIMEOUT_S)
        return Path(f"{stem}.o")

    with ThreadPoolExecutor(cores) as pool:
        made = list(pool.map(compiled, units))
    run_tool([*_COMPILE, *_LINKER, *made, *objects, "-latomic", "-s", "-o", "sim"], folder)
    return folder / "sim"


def _units(folder: Path, level: str, cores: int) -> list[tuple[str, list[str]]]:
    """(level of optimisation, files) of each unit, of all C++ files in a folder."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.cpp"))}
    if sum(sizes.values()) < LARGE_BYTES:
        return [(level, list(sizes))]
    # what runs once, which Verilator marks
    rare = {name for name in sizes if level == ONCE or "__Slow" in name or name.endswith("__Syms.cpp")}
    often = _even({name: size for name, size in sizes.items() if name not in rare}, cores)
    once = _even({name: sizes[name] for name in sizes if name in rare}, 1)
    return [*((level, unit) for unit in often), *((ONCE, unit) for unit in once)]


def _even(sizes: Mapping[str, int], least: int) -> list[list[str]]:
    """Files in so many units of about equal bytes, or in more where they would be large."""
    count = max(least, -(-sum(sizes.values()) // MOST_UNIT_BYTES))
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return [unit for unit in (names[first::count] for first in range(count)) if unit]


@cache
def _verilator(program: str | None, *words: str) -> str:
    """What Verilator says of itself, asked once for each program."""
    del program
    return run_tool(["verilator", *words])


def _runtime(version: str, beside: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Object files of Verilator's own runtime and of ``beside``, compiled once, and the options to find headers."""
    root = _root()
    include = [f"-I{root / 'include'}", f"-I{root / 'include' / 'vltstd'}", f"-I{_HARNESS.parent}"]
    sources = (root / "include" / "verilated.cpp", root / "include" / "verilated_threads.cpp", *beside)
    return [_compiled(source, ".o", version, [SHORT, *include, "-c"]) for source in sources], include


def _header(version: str, level: str) -> Path:
    """Verilator's header, precompiled for a level of optimisation: else the compiler spends most of its time on it."""
    text = _root() / "include" / "verilated.h"
    header = _compiled(text, ".h.gch", version, [level, "-x", "c++-header"])
    # the compiler takes NAME.h.gch for NAME.h, and NAME.h itself should it be another version
    plain = header.with_suffix("")
    if not plain.exists():
        _keep(text, plain)
    return plain


def _root() -> Path:
    return Path(_verilator(shutil.which("verilator"), "--getenv", "VERILATOR_ROOT").strip() or "/usr/share/verilator")


def _compiled(source: Path, suffix: str, version: str, options: Sequence[str]) -> Path:
    kept = _kept(source.stem, version, _harness_text(), *options, *_COMPILE)
    kept = kept.with_name(kept.name + suffix)
    if not kept.exists():
        with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
            run_tool([*_COMPILE, *options, source, "-o", "part"], Path(name))
            _keep(Path(name) / "part", kept)
    return kept


def _harness_text() -> str:
    return _HARNESS.read_text() + _HARNESS.with_suffix(".h").read_text()


def _kept(name: str, *content: str) -> Path:
    key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:24]
    return cache_folder() / "verilator" / f"{name}-{key}"


def _keep(made: Path, kept: Path) -> None:
    """Move into the cache in one step, so that a second process or thread never sees half a file."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    scratch = kept.with_name(f"{kept.name}.{os.getpid()}.{threading.get_ident()}")
    shutil.copy2(made, scratch)
    scratch.replace(kept)


def _circuit(design: Design, module: VerilogModule) -> str:
    """What harness.h declares, for this circuit."""
    rows = ",\n".join(_accessor(port) for port in design.streams)
    widths = {port.name: port.width for port in module.ports}
    constants = "\n".join(_set(f"dut->{name}", widths[name], value) for name, value in design.constants.items())
    return f"""#include "Vdut.h"
#include "harness.h"
#include <cstring>
struct Dut : Vdut {{}};
const Port STREAMS[] = {{
{rows}
}};
const int STREAM_COUNT = {len(design.streams)};
Dut& make_dut() {{
    Dut* dut = new Dut;
{constants}
    return *dut;
}}
void set_reset(Dut& dut, bool value) {{ dut.rst = value; }}
void set_clock(Dut& dut, bool value) {{
    dut.clk = value;
    dut.eval();
}}
void finish_dut(Dut& dut) {{ dut.final(); }}
"""


def _accessor(port: StreamPort) -> str:
    payload, words = f"dut.{port.name}_payload", (port.width + 31) // 32
    if port.width <= 32:
        put, get = f"{payload} = w[0];", f"w[0] = {payload};"
    elif port.width <= 64:
        put = f"{payload} = uint64_t(w[0]) | uint64_t(w[1]) << 32;"
        get = f"w[0] = uint32_t({payload}); w[1] = uint32_t({payload} >> 32);"
    else:
        put, get = f"std::memcpy(&{payload}[0], w, {4 * words});", f"std::memcpy(w, &{payload}[0], {4 * words});"
    inward = port.direction is Direction.IN
    nothing = "nullptr"
    return (
        f'{{"{port.name}", {str(inward).lower()}, {port.width}, {words},\n'
        + (f" [](Dut& dut, bool v) {{ dut.{port.name}_valid = v; }}" if inward else f" {nothing}")
        + (f",\n {nothing}" if inward else f",\n [](Dut& dut, bool v) {{ dut.{port.name}_ready = v; }}")
        + f",\n [](Dut& dut) -> bool {{ return dut.{port.name}_valid; }}"
        + f",\n [](Dut& dut) -> bool {{ return dut.{port.name}_ready; }}"
        + (f",\n [](Dut& dut, const uint32_t* w) {{ {put} }}" if inward else f",\n {nothing}")
        + f",\n [](Dut& dut, uint32_t* w) {{ {get} }}}}"
    )


def _set(target: str, width: int, value: int) -> str:
    value &= (1 << width) - 1
    if width <= 64:
        return f"    {target} = {value:#x}ull;"
    words = [(value >> (32 * i)) & 0xFFFFFFFF for i in range((width + 31) // 32)]
    return "\n".join(f"    {target}[{i}] = {word:#x}u;" for i, word in enumerate(words))
