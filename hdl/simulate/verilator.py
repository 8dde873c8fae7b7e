"""Simulation of the emitted Verilog in Verilator, driven by a self-contained C++ harness.

A built simulator is kept in the cache folder under the hash of all that went into it; memory images are read
from files at run time, so other weights need no new build.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hdl.errors import ContractViolation, DeadlockError
from hdl.netlist import Direction
from hdl.simulate.design import Design, Run, StreamPort, cache_folder
from hdl.simulate.drivers import deadlock
from hdl.verilog import WAIVERS, VerilogModule, run_tool, write_image

_HARNESS = Path(__file__).with_name("harness.cpp")


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
    module = design.convert()
    executable = build(design, module)
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        folder = Path(name)
        for port in design.inputs:
            (folder / f"in_{port.name}.bin").write_bytes(pack(inputs[port.name], port.width))
        (folder / "expected.txt").write_text("".join(f"{k} {v}\n" for k, v in expected.items()))
        for image, words in design.images.items():
            write_image(folder / f"image_{image}.hex", words, module.images[image].width)
        run_tool([executable, seed % 2**63, int(stall * 2**32), max_cycles, drain], folder)
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


def build(design: Design, module: VerilogModule) -> Path:
    """The executable simulator of a module, from the cache if it is there."""
    source = _accessors(design, module) + _HARNESS.read_text()
    flags = [
        "--cc", "--exe", "--build", "-O3", "-CFLAGS", "-O1 -std=c++17", "--x-assign", "fast",
        "--x-initial", "fast", "--noassert", "-Wno-fatal", *(f"-Wno-{code}" for code in WAIVERS),
        "--top-module", module.name, "--prefix", "Vdut",
        *(f'-G{image.parameter}="image_{image.name}.hex"' for image in module.images.values() if image.name in design.images),
    ]  # fmt: skip
    version = run_tool(["verilator", "--version"])
    key = hashlib.sha256("\0".join([version, module.text, source, *flags]).encode()).hexdigest()[:24]
    kept = cache_folder() / "verilator" / f"{module.name}-{key}"
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        folder = Path(name)
        module.write(folder)
        (folder / "harness.cpp").write_text(source)
        run_tool(["verilator", *flags, f"{module.name}.v", "harness.cpp", "-Mdir", "obj", "-o", "sim"], folder)
        scratch = kept.with_name(f"{kept.name}.{os.getpid()}")
        shutil.copy2(folder / "obj" / "sim", scratch)
        scratch.replace(kept)
    return kept


def _accessors(design: Design, module: VerilogModule) -> str:
    """The generated head of the harness: how to reach each port of this circuit."""
    rows = ",\n".join(_accessor(port) for port in design.streams)
    widths = {port.name: port.width for port in module.ports}
    constants = "\n".join(_set(f"dut.{name}", widths[name], value) for name, value in design.constants.items())
    return f"""#include "Vdut.h"
#include <cstdint>
#include <cstring>
#include <string>
typedef Vdut Dut;
struct Port {{
    const char* name;
    bool input;
    int width, words;
    void (*set_valid)(Dut&, bool);
    void (*set_ready)(Dut&, bool);
    bool (*get_valid)(Dut&);
    bool (*get_ready)(Dut&);
    void (*set_payload)(Dut&, const uint32_t*);
    void (*get_payload)(Dut&, uint32_t*);
}};
static const Port STREAMS[] = {{
{rows}
}};
static void set_constants(Dut& dut) {{
    (void)dut;
{constants}
}}
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
