"""Delays of the cells that Yosys maps to (`hdl.costs.synthesis`), in ps, read from the models that Yosys itself ships.

``share/yosys/intel_alm/common`` holds a Verilog model of every cell with a ``specify`` block for each family.  Those of
Cyclone 10 GX have its own figures for LUTs, carry chains and flip-flops.  For multipliers and MLABs they repeat those
of Cyclone V, and say so; for block memories they say nothing, so `M20K_LIKE` of Cyclone V stands in.  All three are of
an older and slower process.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hdl.convert.tools import run_tool
from hdl.errors import ToolError

FAMILY = "cyclone10gx"
# the block memory whose delays stand in for those of an M20K, and its family
M20K_LIKE, M20K_FAMILY = "MISTRAL_M10K", "cyclonev"
FLIP_FLOP, BLOCK_MEMORY = "MISTRAL_FF", "altsyncram"
# ports of `BLOCK_MEMORY` and of the model that stands in
_MEMORY_PORTS = {"address_a": "A1ADDR", "data_a": "A1DATA", "wren_a": "A1EN", "address_b": "B1ADDR", "q_b": "B1DATA"}
_MODELS = ("alm_sim", "dff_sim", "dsp_sim", "mem_sim")

# a bit of a port; None: every bit
Pin = tuple[str, int | None]


@dataclass(frozen=True)
class CellDelays:
    """Of one kind of cell; pins that stand nowhere have no path through the cell."""

    # (input pin, output pin) -> ps
    through: Mapping[tuple[Pin, Pin], int] = field(default_factory=dict)
    # output pin -> ps from the clock edge
    launch: Mapping[Pin, int] = field(default_factory=dict)
    # input pin -> ps before the clock edge
    setup: Mapping[Pin, int] = field(default_factory=dict)


@cache
def cell_delays() -> Mapping[str, CellDelays]:
    """All cells of `FAMILY` by name.  Raises `ToolError` where the installed Yosys has no delays for one."""
    found = {
        name: CellDelays(*_specified(module))
        for name, module in _models(FAMILY).items()
        if name.startswith("MISTRAL_") and not module["attributes"].get("no_timing")
    }
    memory = CellDelays(*_specified(_models(M20K_FAMILY)[M20K_LIKE]))
    found[BLOCK_MEMORY] = CellDelays(
        launch={(port, None): memory.launch[like, None] for port, like in _MEMORY_PORTS.items() if port == "q_b"},
        setup={(port, None): memory.setup[like, None] for port, like in _MEMORY_PORTS.items() if port != "q_b"},
    )
    if not found[FLIP_FLOP].launch or not found[FLIP_FLOP].setup:
        raise ToolError(f"this Yosys has no delays of {FLIP_FLOP} for {FAMILY}", "dagtrain reads those of Yosys 0.23")
    return found


def _models(family: str) -> Mapping[str, Any]:
    """Yosys' cell models with their specify blocks, as its JSON."""
    reads = "; ".join(f"read_verilog -specify -lib -D {family} +/intel_alm/common/{name}.v" for name in _MODELS)
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        run_tool(["yosys", "-q", "-p", f"{reads}; proc; write_json models.json"], Path(name))
        modules: Mapping[str, Any] = json.loads((Path(name) / "models.json").read_text())["modules"]
    return modules


def _specified(
    module: Mapping[str, Any],
) -> tuple[dict[tuple[Pin, Pin], int], dict[Pin, int], dict[Pin, int]]:
    """Delays through a cell, from its clock, and setup times."""
    pins = {
        bit: (port, index if len(data["bits"]) > 1 else None)
        for port, data in module["ports"].items()
        for index, bit in enumerate(data["bits"])
    }
    widths = {port: len(data["bits"]) for port, data in module["ports"].items()}
    clocks = {port for port in widths if port.startswith("CLK")}
    through: dict[tuple[Pin, Pin], int] = {}
    launch: dict[Pin, int] = {}
    setup: dict[Pin, int] = {}
    for cell in module["cells"].values():
        if not cell["type"].startswith("$spec"):
            continue
        sources = list(_pins(cell["connections"]["SRC"], pins, widths))
        targets = list(_pins(cell["connections"]["DST"], pins, widths))
        if cell["type"] == "$specrule":
            limit = int(cell["parameters"]["T_LIMIT_MAX"], 2)
            setup.update({pin: max(limit, setup.get(pin, 0)) for pin in sources})
            continue
        delay = int(cell["parameters"]["T_RISE_MAX"], 2)
        for source in sources:
            for target in targets:
                if source[0] in clocks:
                    launch[target] = max(delay, launch.get(target, 0))
                elif source[0] != "ACLR":
                    through[source, target] = max(delay, through.get((source, target), 0))
    return through, launch, setup


def _pins(bits: list[Any], pins: Mapping[Any, Pin], widths: Mapping[str, int]) -> Iterator[Pin]:
    """The pins of these bits; a port whose bits are all among them is one."""
    found = [pins[bit] for bit in bits]
    ports = dict.fromkeys(port for port, _ in found)
    for port in ports:
        of_port = [pin for pin in found if pin[0] == port]
        yield from [(port, None)] if len(of_port) == widths[port] else of_port
