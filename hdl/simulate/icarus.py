"""Simulation of the emitted Verilog in Icarus: over VPI under the MyHDL bench, and alone to look for X.

MyHDL's VPI reads X as a value, hence the second way.  Compiled as Verilog-2005: with ``-g2012`` Icarus 11 does
not evaluate ``always @(list)`` at time 0 when the registers have initial values.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import myhdl

from hdl.cache import cache_folder
from hdl.convert.images import write_image
from hdl.convert.netlist import Direction, PortDecl
from hdl.convert.tools import run_tool
from hdl.convert.verilog import VerilogModule
from hdl.errors import ContractViolation, DeadlockError, ToolError, ToolMissing
from hdl.signals import Bits, Instances
from hdl.simulate.design import Design, Run
from hdl.simulate.drivers import Bench, check_names, deadlock
from hdl.simulate.myhdl_run import fresh_simulator, simulate

# characters of one message of MyHDL's VPI, in one direction; a longer one is cut and crashes
VPI_MESSAGE = 4096


def run_icarus(design: Design, bench: Bench) -> Run:
    """The emitted Verilog under the MyHDL bench; see `hdl.simulate.run_streams`."""
    module = design.verilog
    check_message_size(module.name, module.ports)
    vpi = vpi_module()
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name, fresh_simulator():
        folder = Path(name)
        program = _compile(design, module, _cosimulation_top(module), folder)
        signals = design.signals(design.factory(design.images))
        ports = {port.name: signals[port.name] for port in module.ports}

        def attach(_signals: Mapping[str, Bits]) -> Instances:
            return myhdl.Cosimulation(f"vvp -M {vpi.parent} -m {vpi.stem} {program}", **ports)

        here = Path.cwd()
        os.chdir(folder)
        try:
            simulate(signals, design.constants, bench, attach)
        finally:
            os.chdir(here)
    return bench.result()


def check_message_size(name: str, declared: Sequence[PortDecl]) -> None:
    """Raises `ToolError` if the ports of a module make messages that MyHDL's VPI would cut."""
    for direction in Direction:
        ports = [port for port in declared if port.direction is direction]
        to_dut = sum((port.width + 3) // 4 + 1 for port in ports)
        names = sum(len(port.name) + 1 for port in ports)
        size = 32 + to_dut + names + 8 * len(ports)
        if size > VPI_MESSAGE:
            bits = sum(port.width for port in ports)
            raise ToolError(
                f"{name} has {bits} bits of {direction.value} ports, which make messages of {size} characters",
                f"MyHDL's VPI takes {VPI_MESSAGE} (about 16 kbit). Use Backend.VERILATOR for this circuit",
            )


def vpi_module() -> Path:
    """MyHDL's VPI for Icarus, built once from the sources of its wheel."""
    sources = Path(sysconfig.get_path("data")) / "share" / "myhdl" / "cosimulation" / "icarus"
    if not (sources / "myhdl.c").exists():
        raise ToolError(f"the MyHDL package has no VPI sources at {sources}", "reinstall it with `make setup`")
    texts = [(sources / name).read_bytes() for name in ("myhdl.c", "myhdl_table.c")]
    version = run_tool(["iverilog", "-V"]).splitlines()[0]
    key = hashlib.sha256(b"\0".join([version.encode(), *texts])).hexdigest()[:16]
    kept = cache_folder() / "vpi" / key / "myhdl.vpi"
    if kept.exists():
        return kept
    if shutil.which("iverilog-vpi") is None:
        raise ToolMissing("iverilog-vpi")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        for source in ("myhdl.c", "myhdl_table.c"):
            shutil.copy2(sources / source, name)
        run_tool(["iverilog-vpi", "--name=myhdl", "myhdl.c", "myhdl_table.c"], Path(name))
        scratch = kept.with_suffix(f".{os.getpid()}")
        shutil.copy2(Path(name) / "myhdl.vpi", scratch)
        scratch.replace(kept)
    return kept


def _compile(design: Design, module: VerilogModule, top: str, folder: Path) -> Path:
    path = module.write(folder)
    (folder / "top.v").write_text(top)
    for image, words in design.images.items():
        write_image(folder / f"image_{image}.hex", words, module.images[image].width)
    parameters = [
        f'-Ptop.{image.parameter}="{folder / f"image_{image.name}.hex"}"'
        for image in module.images.values()
        if image.name in design.images
    ]
    program = folder / "top.vvp"
    run_tool(["iverilog", "-g2005", "-o", program, "-s", "top", *parameters, path, folder / "top.v"])
    return program


def _instance(module: VerilogModule) -> tuple[str, str]:
    """Parameter declarations of the top, and the instance of the circuit with all ports by name."""
    images = list(module.images.values())
    declared = "".join(f'parameter {image.parameter} = "";\n' for image in images)
    passed = ", ".join(f".{image.parameter}({image.parameter})" for image in images)
    ports = ", ".join(f".{port.name}({port.name})" for port in module.ports)
    return declared, f"{module.name} {f'#({passed}) ' if passed else ''}dut ({ports});\n"


def _declarations(module: VerilogModule) -> str:
    kinds = {Direction.IN: "reg", Direction.OUT: "wire"}
    return "".join(f"{kinds[p.direction]} [{p.width - 1}:0] {p.name};\n" for p in module.ports)


def _cosimulation_top(module: VerilogModule) -> str:
    declared, instance = _instance(module)
    inward = ", ".join(p.name for p in module.ports if p.direction is Direction.IN)
    outward = ", ".join(p.name for p in module.ports if p.direction is Direction.OUT)
    return (
        f"module top;\n{declared}{_declarations(module)}{instance}"
        f"initial begin\n  $from_myhdl({inward});\n  $to_myhdl({outward});\nend\nendmodule\n"
    )


# ------------------------------------------------------------------------------------------ X, natively


def check_no_x(
    design: Design,
    inputs: Mapping[str, Sequence[int]],
    expected_counts: Mapping[str, int],
    *,
    seed: int,
    stall_probability: float = 0.25,
    max_cycles: int = 100_000,
) -> None:
    """Run the Verilog in Icarus with X on every payload that isn't valid, and look for X at the outputs.

    Raises `ContractViolation` if an X shows on ``valid`` or ``ready`` after reset, or on a payload while it is
    valid, and `DeadlockError` if the expected beats don't come.
    """
    check_names(design, inputs, expected_counts)
    module = design.verilog
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        folder = Path(name)
        for port in design.inputs:
            digits = (port.width + 3) // 4
            text = "".join(f"{beat:0{digits}x}\n" for beat in inputs[port.name])
            (folder / f"in_{port.name}.hex").write_text(text or f"{0:0{digits}x}\n")
        counts = {port: len(beats) for port, beats in inputs.items()}
        top = _x_top(design, module, counts, expected_counts, seed, stall_probability, max_cycles)
        program = _compile(design, module, top, folder)
        printed = run_tool(["vvp", program], folder)
    lines = [line for line in printed.splitlines() if line.startswith(("X ", "OK", "STUCK"))]
    if not lines:
        raise ToolError(f"{design.name}: Icarus ended without a verdict:\n{printed[-2000:]}")
    if lines[0].startswith("X "):
        raise ContractViolation(f"{design.name}: {lines[0][2:]}")
    if lines[0].startswith("STUCK"):
        raise DeadlockError(deadlock(design.name, max_cycles, [lines[0][6:]]))


def _x_top(
    design: Design,
    module: VerilogModule,
    counts: Mapping[str, int],
    expected: Mapping[str, int],
    seed: int,
    stall: float,
    max_cycles: int,
) -> str:
    declared, instance = _instance(module)
    stalls = f"($random(seed) & 1023) < {int(stall * 1024)}"
    body, checks, drives, stuck = "", "", "", []
    for port in design.inputs:
        n, size = port.name, max(1, counts[port.name])
        body += f"reg [{port.width - 1}:0] beats_{n} [0:{size - 1}];\ninteger at_{n} = 0;\n"
        body += f'initial $readmemh("in_{n}.hex", beats_{n});\n'
        checks += f'      if ({n}_ready === 1\'bx) report("{n}_ready is X");\n'
        checks += f"      if ({n}_valid && {n}_ready) begin at_{n} = at_{n} + 1; {n}_valid <= 0; end\n"
        drives += (
            f"      if (!{n}_valid || {n}_ready) begin\n"
            f"        if (at_{n} < {counts[n]} && !({stalls})) begin\n"
            f"          {n}_valid <= 1; {n}_payload <= beats_{n}[at_{n}];\n"
            f"        end else begin {n}_valid <= 0; {n}_payload <= {{{port.width}{{1'bx}}}}; end\n"
            f"      end\n"
        )
        stuck.append(f'" {n}: %0d of {counts[n]} beats taken;", at_{n}')
    for port in design.outputs:
        n = port.name
        body += f"integer got_{n} = 0;\n"
        checks += f'      if ({n}_valid === 1\'bx) report("{n}_valid is X");\n'
        checks += f'      if ({n}_valid && ^{n}_payload === 1\'bx) report("{n}_payload has X while valid");\n'
        checks += f"      if ({n}_valid && {n}_ready) got_{n} = got_{n} + 1;\n"
        drives += f"      {n}_ready <= !({stalls});\n"
        stuck.append(f'" {n}: %0d of {expected.get(n, "any")} beats;", got_{n}')
    done = " && ".join(f"got_{name} >= {count}" for name, count in expected.items())
    start = "".join(f"  {p.name}_valid = 0;\n" for p in design.inputs)
    start += "".join(f"  {p.name}_ready = 0;\n" for p in design.outputs)
    widths = {port.name: port.width for port in module.ports}
    start += "".join(f"  {n} = {widths[n]}'h{v & ((1 << widths[n]) - 1):x};\n" for n, v in design.constants.items())
    writes = "\n".join(f"      $write({text});" for text in stuck)
    return f"""`timescale 1ns/1ps
module top;
{declared}{_declarations(module)}{instance}{body}
integer seed = {seed % 2**31};
integer cycle = 0;
reg stopped = 0;
task report(input [8*256-1:0] what);
  if (!stopped) begin $display("X cycle %0d: %0s", cycle, what); stopped = 1; $finish; end
endtask
initial begin
  clk = 0; rst = 1;
{start}  repeat (4) begin #1 clk = 1; #1 clk = 0; end
  rst = 0;
  forever begin #1 clk = 1; #1 clk = 0; end
end
always @(posedge clk) begin
  if (!rst && !stopped) begin
{checks}{drives}      cycle = cycle + 1;
      if (!stopped && {done}) begin $display("OK"); stopped = 1; $finish; end
      if (!stopped && cycle >= {max_cycles}) begin
      $write("STUCK");
{writes}
      $display(""); stopped = 1; $finish;
      end
  end
end
endmodule
"""
