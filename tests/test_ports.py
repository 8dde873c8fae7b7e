"""Every public circuit says of each port its direction, its width and its timing."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always_comb, block
from myhdl._block import _Block
from myhdl._Signal import _Signal

import hdl
from hdl.dram.axi import AxiFormat, AxiMerge
from hdl.dram.store import DramFifo, DramReplay
from hdl.elaboration.ports import subblocks
from hdl.layers.registry import load_layers
from hdl.link.egress import Egress
from hdl.link.format import LinkFormat
from hdl.link.ingress import Ingress
from hdl.link.routing import Drain, Merge, Split
from hdl.memory import unsimulated
from hdl.signals import Bit, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import m2s_pipe
from hdl.unit import Unit
from tests.layer_support import elaborate

ROOT = Path(hdl.__file__).parent
# said once for all blocks, in hdl/signals.py
COMMON = {"clk", "rst", "domain"}
# of parameters that are decided before there is a circuit
NUMBERS = re.compile(
    r"^(int|bool|str|float|Fixed|.*\b(tuple|Sequence|Mapping|Callable)\b.*\b(int|str)\b.*)( \| None)?$"
)
LINE = re.compile(r"^ {4,}([\w, ]+): (in|out|in and out)[,;]? (.*)", re.MULTILINE)


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


FILES = sorted(path for path in ROOT.rglob("*.py") if "@block" in path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_port_is_told(path: Path) -> None:
    assert faults(path.read_text()) == []


def test_what_is_missing_is_found() -> None:
    text = '''
@block
def adder(domain: ClockReset, a: Bits, b: Any, y: Bits, *, width: int, table: tuple[int, ...]) -> Any:
    """Adds.

    Ports:
        a: in, ``width`` bits.
    """
'''
    assert faults(text) == [
        "adder: b is Any", "adder: nothing said of port b", "adder: nothing said of port y",
    ]  # fmt: skip


def driven(part: Any) -> set[int]:
    """Identities of the signals that a block or a process drives."""
    if isinstance(part, _Block):
        return {signal for sub in part.subs for signal in driven(sub)}
    names = [*part.outputs, *part.inouts]
    found = {id(part.sigdict[name]) for name in names if name in part.sigdict}
    return found | {id(signal) for name in names for signal in part.losdict.get(name, ())}


def direction(port: Any, inside: set[int]) -> str | None:
    """What a block that drives these signals makes of a port; None of a bundle, whose signals go both ways."""
    if isinstance(port, list | tuple):
        found = {direction(item, inside) for item in port}
        return found.pop() if len(found) == 1 else None
    if isinstance(port, _Signal):
        return "out" if id(port) in inside else "in"
    if not isinstance(port, Stream):
        return None
    drives = tuple(id(signal) in inside for signal in (port.valid, port.payload, port.ready))
    return {(True, True, False): "out", (False, False, True): "in", (False, False, False): "watched"}.get(drives, "")


def wrong_ways(circuit: Any) -> list[str]:
    """Ports of a block and of those inside whose direction is not the one told, and flags of more than a bit."""
    found = []
    for part in subblocks(circuit):
        signature = inspect.signature(part.func)
        given = signature.bind(*part.args, **part.kwargs).arguments
        text = part.func.__doc__ or ""
        told = {name.strip(): match for match in LINE.finditer(text) for name in match[1].split(",")}
        inside = driven(part) if "Ports:" in text else set()
        for name in told.keys() & given.keys() if "Ports:" in text else ():
            way = direction(given[name], inside)
            says = "watched" if "watched" in told[name][3] else told[name][2]
            if way is not None and way != says:
                found.append(f"{part.func.__name__}: {name} is said to be {says}, and is {way or 'both'}")
            if signature.parameters[name].annotation == "Bit" and len(given[name]) > 1:
                found.append(f"{part.func.__name__}: {name} is a vector")
    return found


def units() -> tuple[Unit, ...]:
    """Of every kind of circuit between layers."""
    link, axi = LinkFormat(word_bits=32, streams=5, devices=3), AxiFormat(data_bits=64, address_bits=12)
    ends = {"format": link, "element_bits": 5, "lanes": 3, "elements": 30}
    stored = {"format": axi, "element_bits": 8, "x_lanes": 4, "y_lanes": 2, "elements": 100, "burst": 4, "prefetch": 16}
    return (
        Egress(**ends, credits=7), Ingress(**ends, depth=7), Split(format=link), Merge(format=link), Drain(format=link),
        DramFifo(**stored, capacity=3), DramReplay(**stored, batch=4, staleness=2), AxiMerge(format=axi),
    )  # fmt: skip


@pytest.mark.parametrize("unit", units(), ids=lambda unit: type(unit).__name__)
def test_ports_of_units_go_the_way_that_is_told(unit: Unit) -> None:
    streams = {name: Stream(width) for name, width in unit.streams.items()}
    assert wrong_ways(unit.build(ClockReset(), streams)) == []


@pytest.mark.parametrize("kind", load_layers())
def test_ports_in_layers_go_the_way_that_is_told(kind: str) -> None:
    for example in load_layers()[kind].examples():
        with unsimulated():
            assert wrong_ways(elaborate(example)[0]) == []


@block
def backwards(domain: ClockReset, x: Stream, y: Stream, flag: Bit) -> Instances:
    """The wrong way round.

    Ports:
        x: out, stream of any width.
        y: in, stream of any width, watched.
        flag: in, 1 bit.
    """
    stage = m2s_pipe(domain, x, y)

    @always_comb
    def drive() -> None:
        flag.next = x.valid

    return stage, drive


def test_ports_that_go_another_way_are_found() -> None:
    circuit = backwards(ClockReset(), Stream(8), Stream(8), Signal(bool(0)))
    assert sorted(wrong_ways(circuit)) == [
        "backwards: flag is said to be in, and is out",
        "backwards: x is said to be out, and is in",
        "backwards: y is said to be watched, and is out",
    ]
