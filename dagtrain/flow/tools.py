"""External tools that a step will need, looked for before it begins to work."""

from __future__ import annotations

import shutil

from hdl.errors import ToolMissing

# what `dagtrain cosim` runs, by simulator
SIMULATORS = {
    "verilator": ("verilator", "make", "g++"),
    "icarus": ("iverilog", "vvp"),
    "myhdl": ("iverilog", "iverilog-vpi", "vvp"),
}


def require_tools(*names: str) -> None:
    """Raises `ToolMissing` naming every tool that is not on the PATH."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise ToolMissing(", ".join(missing))
