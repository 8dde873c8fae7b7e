"""Verilog under a MyHDL testbench: compiled by Verilator, or interpreted by Icarus over VPI.

    program = build_cosimulation(Engine.VERILATOR, "conv", ports, [Path("conv.v")], folder)
    verilog = program.attach({"clk": clk, "rst": rst, "x_valid": x.valid, ...})
    myhdl.Simulation(verilog, testbench).run()

Both engines speak the protocol of `myhdl.Cosimulation`, so a testbench can't tell them apart but by their speed:
Verilator takes its time to compile and then runs as fast as MyHDL drives it, some ten thousand cycles a second; Icarus
starts at once and slows down with the size of the circuit.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import myhdl

from hdl.convert.netlist import Direction, PortDecl
from hdl.convert.tools import run_tool
from hdl.errors import ToolError
from hdl.signals import Bits, Instances
from hdl.simulate.icarus import check_message_size, vpi_module
from hdl.simulate.verilator import compile_verilog

BRIDGE = Path(__file__).with_name("myhdl_bridge.cpp")


class Engine(Enum):
    """What runs the Verilog under a MyHDL testbench."""

    VERILATOR = "verilator"
    ICARUS = "icarus"


@dataclass(frozen=True)
class CosimulationProgram:
    """A built simulation that waits for MyHDL to start it."""

    # what `myhdl.Cosimulation` starts
    command: tuple[str, ...]
    # memory files are read from and written to here
    folder: Path
    ports: tuple[PortDecl, ...]

    def attach(self, signals: Mapping[str, Bits]) -> Instances:
        """Start it: a `myhdl.Cosimulation` for the arguments of `myhdl.Simulation`.

        ``signals`` holds a MyHDL signal for each of `ports`, by name.  Raises `ToolError` for a missing signal, or one
        of another width: MyHDL itself would cut or pad the value in silence."""
        problems = []
        for port in self.ports:
            signal = signals.get(port.name)
            width = None if signal is None else 1 if isinstance(signal.val, bool) else len(signal)
            if width != port.width:
                found = "no signal" if width is None else f"a signal of {width} bits"
                problems.append(f"port {port.name} of {port.width} bits has {found}")
        if problems:
            raise ToolError.listing("co-simulation", problems, "give each port a signal of its width")
        with _inside(self.folder):
            return myhdl.Cosimulation(list(self.command), **{port.name: signals[port.name] for port in self.ports})


def build_cosimulation(
    engine: Engine,
    module: str,
    ports: Sequence[PortDecl],
    sources: Sequence[Path],
    folder: Path,
    *,
    parameters: Mapping[str, str] | None = None,
    optimise: bool = True,
) -> CosimulationProgram:
    """Build ``module`` of ``sources`` into ``folder`` to be driven by MyHDL.

    Args:
        ports: all ports of the module.
        parameters: string parameters of the module, such as the files that its memories start with.
        optimise: False builds fast and runs slowly: right for some thousand cycles.

    Raises:
        ToolMissing: the simulator isn't installed.
        ToolError: it refuses the Verilog, or the ports need messages longer than MyHDL reads (about 16 kbit).
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    check_message_size(module, ports)
    files = [Path(source).resolve() for source in sources]
    bridge = _Bridge(module, tuple(ports), dict(parameters or {}))
    verilator = engine is Engine.VERILATOR
    command = _build_verilator(folder, bridge, files, optimise) if verilator else _build_icarus(folder, bridge, files)
    return CosimulationProgram(command, folder, bridge.ports)


@dataclass(frozen=True)
class _Bridge:
    """The module around the one that MyHDL drives.  Its own ports and nets are numbered, since a name that is legal in
    Verilog need not be one in C++."""

    module: str
    ports: tuple[PortDecl, ...]
    parameters: Mapping[str, str]

    def member(self, port: PortDecl) -> str:
        """The name of a port in Verilator's bridge."""
        return f"port{self.ports.index(port)}"

    def instance(self, names: Mapping[str, str]) -> str:
        """The instance ``dut``."""
        passed = ", ".join(f'.{name}("{value}")' for name, value in self.parameters.items())
        connected = ", ".join(f".{port.name}({names[port.name]})" for port in self.ports)
        return f"{self.module} {f'#({passed}) ' if passed else ''}dut ({connected});"


def _range(port: PortDecl) -> str:
    return f"[{port.width - 1}:0] " if port.width > 1 else ""


def _build_verilator(folder: Path, bridge: _Bridge, sources: Sequence[Path], optimise: bool) -> tuple[str, ...]:
    names = {port.name: bridge.member(port) for port in bridge.ports}
    declared = ",\n".join(f"    {port.direction.value} wire {_range(port)}{names[port.name]}" for port in bridge.ports)
    text = f"module bridge (\n{declared}\n);\n{bridge.instance(names)}\nendmodule\n"
    rows = [
        f'{"DRIVEN" if port.direction is Direction.IN else "READ"}({names[port.name]}, "{port.name}", {port.width})\n'
        for port in bridge.ports
    ]
    # what the compilers leave is of no use to anybody
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        work = Path(name)
        (work / "bridge.v").write_text(text)
        (work / "ports.inc").write_text("".join(rows))
        program = compile_verilog(work, "bridge", [work / "bridge.v", *sources], BRIDGE, optimise=optimise)
        shutil.copy2(program, folder / "bridge")
    return (str(folder / "bridge"),)


def _build_icarus(folder: Path, bridge: _Bridge, sources: Sequence[Path]) -> tuple[str, ...]:
    names = {port.name: port.name for port in bridge.ports}
    kinds = {Direction.IN: "reg", Direction.OUT: "wire"}
    declared = "".join(f"{kinds[port.direction]} {_range(port)}{port.name};\n" for port in bridge.ports)
    inward = ", ".join(port.name for port in bridge.ports if port.direction is Direction.IN)
    outward = ", ".join(port.name for port in bridge.ports if port.direction is Direction.OUT)
    (folder / "bridge.v").write_text(
        f"module bridge;\n{declared}{bridge.instance(names)}\n"
        f"initial begin\n    $from_myhdl({inward});\n    $to_myhdl({outward});\nend\nendmodule\n"
    )
    program = folder / "bridge.vvp"
    run_tool(["iverilog", "-g2005", "-o", program, "-s", "bridge", *sources, folder / "bridge.v"])
    vpi = vpi_module()
    return ("vvp", "-M", str(vpi.parent), "-m", vpi.stem, str(program))


@contextmanager
def one_core() -> Iterator[None]:
    """This thread, and what it starts, on one core: MyHDL and the simulation wait for one another at every step, and to
    wake the other one on another core takes longer than the step itself (seven times fewer cycles a second)."""
    allowed = os.sched_getaffinity(0)
    # several simulations at once don't crowd on the same one
    os.sched_setaffinity(0, {sorted(allowed)[os.getpid() % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Another working folder for a moment: a program that is started here stays there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
