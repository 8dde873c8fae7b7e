"""What blocks hold of a circuit, found by Yosys: products, sums and registers in its netlist of words.

Nothing here comes from `hdl.costs.blocks`.  Yosys 0.23 maps a product of Cyclone 10 GX to a bare multiplier, so its
mapped netlist tells nothing of that; this reads the one before, of cells for words, unused bits and copies gone.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdl.convert.tools import run_tool
from hdl.costs.synthesis import counted_text

_REGISTERS = ("$dff", "$dffe")
_SUMS = ("$add", "$sub")


@dataclass(frozen=True)
class Found:
    """What was found."""

    # operand bits of two products, wider first of each, that one sum takes and nothing else -> such sums
    sums: Mapping[tuple[int, ...], int]
    # products that a register takes
    products: int
    # bits of registers around these products: of operands that they alone read, their own, a second one behind
    registers: int
    # bits of registers that alone take what alone takes the words of a memory
    behind: int


def found_in(text: str, name: str) -> Found:
    """Of a Verilog module."""
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as folder_name:
        folder = Path(folder_name)
        (folder / "circuit.v").write_text(counted_text(text))
        script = (
            f"read_verilog circuit.v; hierarchy -top {name}; proc -norom; flatten; opt -full; wreduce; peepopt; "
            f"opt_clean; opt -full; wreduce; opt -full; clean; json -o words.json {name}"
        )
        run_tool(["yosys", "-q", "-p", script], folder, 600.0)
        return _Words(json.loads((folder / "words.json").read_text())["modules"][name]).found()


class _Words:
    """The netlist of one module."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        self.cells: Mapping[str, Any] = module["cells"]
        # bit -> (cell, port) of those who read it; ports of the module too
        self.readers: defaultdict[Any, set[tuple[str, str]]] = defaultdict(set)
        self.driver: dict[Any, str] = {}
        for port, data in module["ports"].items():
            if data["direction"] == "output":
                for bit in data["bits"]:
                    self.readers[bit].add(("", port))
        for name, cell in self.cells.items():
            for port, bits in cell["connections"].items():
                for bit in bits:
                    if cell["port_directions"][port] == "output":
                        self.driver[bit] = name
                    else:
                        self.readers[bit].add((name, port))

    def kind(self, name: str) -> str:
        """The type of a cell."""
        return str(self.cells[name]["type"]) if name else ""

    def bits(self, name: str, port: str) -> list[Any]:
        """What is at a port of a cell, constants left out."""
        return [bit for bit in self.cells[name]["connections"].get(port, ()) if isinstance(bit, int)]

    def width(self, name: str, port: str) -> int:
        """Bits of a port that differ: a sign is repeated above."""
        return len(dict.fromkeys(self.bits(name, port)))

    def only_reader(self, name: str, port: str) -> tuple[str, str]:
        """The one port that reads all that a cell gives there; names are empty where there are several."""
        found = set[tuple[str, str]]().union(*(self.readers[bit] for bit in self.bits(name, port)))
        return found.pop() if len(found) == 1 else ("", "")

    def source(self, name: str, port: str) -> str:
        """The one cell that gives all that is at a port."""
        found = {self.driver.get(bit, "") for bit in self.bits(name, port)}
        return found.pop() if len(found) == 1 else ""

    def register_of(self, name: str) -> str:
        """The register that alone takes what a cell gives."""
        taker, port = self.only_reader(name, "Y")
        return taker if port == "D" and self.kind(taker) in _REGISTERS else ""

    def enable(self, register: str) -> tuple[Any, ...]:
        """What tells a register to take something."""
        cell = self.cells[register]
        return (*self.bits(register, "EN"), cell["parameters"].get("EN_POLARITY"))

    def found(self) -> Found:
        """Look at every product of two values that vary."""
        multiplied = [name for name in self.cells if self.kind(name) == "$mul" and all(self._operands(name))]
        registers = {name: self.register_of(name) for name in multiplied}
        products = {name: register for name, register in registers.items() if register}
        # the register of a product -> it
        product_of = {register: name for name, register in products.items()}
        sums: Counter[tuple[int, ...]] = Counter()
        for name in self.cells:
            if self.kind(name) in _SUMS and self.register_of(name):
                terms = [self.source(name, port) for port in ("A", "B")]
                alone = all(
                    self.only_reader(term, "Q") == (name, at) for term, at in zip(terms, "AB", strict=True) if term
                )
                if all(term in product_of for term in terms) and alone and len({*map(self.enable, terms)}) == 1:
                    widths = [sorted(self._operands(product_of[term]), reverse=True) for term in terms]
                    sums[tuple(width for pair in widths for width in pair)] += 1
        behind = [self.behind(name) for name in self.cells if self.kind(name).startswith("$memrd")]
        around = set[str]().union(*(self._around(name, register) for name, register in products.items()))
        return Found(
            dict(sorted(sums.items())), len(products), sum(self.width(name, "Q") for name in around), sum(behind)
        )

    def behind(self, memory_read: str) -> int:
        """Bits of the register behind the one that takes the words of a memory."""
        first, port = self.only_reader(memory_read, "DATA")
        if port != "D":
            return 0
        second, port = self.only_reader(first, "Q")
        return self.width(second, "Q") if port == "D" and self.kind(second) in _REGISTERS else 0

    def _operands(self, product: str) -> tuple[int, int]:
        return self.width(product, "A"), self.width(product, "B")

    def _around(self, product: str, register: str) -> Iterator[str]:
        yield register
        for port in ("A", "B"):
            operand = self.source(product, port)
            if self.kind(operand) in _REGISTERS and self.only_reader(operand, "Q") == (product, port):
                yield operand
        behind, port = self.only_reader(register, "Q")
        if port == "D" and self.kind(behind) in _REGISTERS:
            yield behind
