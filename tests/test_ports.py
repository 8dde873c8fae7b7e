"""Every public circuit says of each port its direction, its width and its timing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hdl

ROOT = Path(hdl.__file__).parent
# said once for all blocks, in hdl/signals.py
COMMON = {"clk", "rst"}
# of parameters that are decided before there is a circuit
NUMBERS = re.compile(
    r"^(int|bool|str|float|Fixed|.*\b(tuple|Sequence|Mapping|Callable)\b.*\b(int|str)\b.*)( \| None)?$"
)
LINE = re.compile(r"^ {4,}([\w, ]+): (in|out|in and out)[,;]? ", re.MULTILINE)


def circuits(source: str) -> Iterator[ast.FunctionDef]:
    """Functions under `myhdl.block`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(mark, ast.Name) and mark.id == "block" for mark in node.decorator_list
        ):
            yield node


def signals_of(circuit: ast.FunctionDef) -> dict[str, str]:
    """Parameter -> annotation, of those that are signals, streams or bundles of them."""
    given = [*circuit.args.args, *circuit.args.kwonlyargs]
    found = {arg.arg: ast.unparse(arg.annotation) if arg.annotation else "" for arg in given}
    # what comes by keyword are numbers, as far as they are no signals
    words = {arg.arg for arg in circuit.args.kwonlyargs}
    wires = re.compile(r"\b(Clock|Bit|Bits|Stream|Lanes|Steps|Axi|Any)\b")
    return {name: text for name, text in found.items() if name not in words or wires.search(text)}


def faults(source: str) -> list[str]:
    """What is missing in the circuits of a file."""
    found = []
    for circuit in circuits(source):
        said = {name.strip() for match in LINE.finditer(ast.get_docstring(circuit, clean=False) or "")
                for name in match[1].split(",")}  # fmt: skip
        for name, text in signals_of(circuit).items():
            if re.search(r"\bAny\b", text):
                found.append(f"{circuit.name}: {name} is {text}")
            wire = name not in COMMON and not NUMBERS.match(text)
            if wire and not circuit.name.startswith("_") and name not in said:
                found.append(f"{circuit.name}: nothing said of port {name}")
    return found


# rooms whose circuits do not tell their ports yet
SILENT = (
    "engine/loss", "engine/norm", "engine/window",
    "layers",
)  # fmt: skip
FILES = sorted(
    path
    for path in ROOT.rglob("*.py")
    if "@block" in path.read_text() and not str(path.relative_to(ROOT)).startswith(SILENT)
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_port_is_told(path: Path) -> None:
    assert faults(path.read_text()) == []


def test_what_is_missing_is_found() -> None:
    text = '''
@block
def adder(clk: Clock, rst: Bit, a: Bits, b: Any, y: Bits, *, width: int, table: tuple[int, ...]) -> Any:
    """Adds.

    Ports:
        a: in, ``width`` bits.
    """
'''
    assert faults(text) == [
        "adder: b is Any", "adder: nothing said of port b", "adder: nothing said of port y",
    ]  # fmt: skip
