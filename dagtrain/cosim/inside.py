"""Signals inside circuits: what Verilator records of the instances of chosen nodes, names as in their Verilog.

A signal stands at the time of a rising edge as it was before it, as streams do (`dagtrain.cosim.waves`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vcd.reader import TokenKind, VarDecl, tokenize

from dagtrain.cosim.circuits import Circuit, instances
from dagtrain.cosim.parts import BENCH

# what the bench writes, in its own folder
INSIDE_FILE = "inside.vcd"
TOP = "TOP"


@dataclass(frozen=True)
class Inner:
    """A signal inside the circuit of a node."""

    device: str
    node: str
    # instances in the circuit, and the name as the Verilog has it
    scope: tuple[str, ...]
    name: str
    bits: int
    # (picoseconds, value from then on); None: unknown
    changes: tuple[tuple[int, int | None], ...]

    @property
    def is_element(self) -> bool:
        """Whether it is a word of an array."""
        return self.name.endswith("]")

    def within(self, first: int, last: int) -> Inner:
        """Over a stretch of time, both ends among them; what holds at its beginning first."""
        held = [(first, value) for time, value in self.changes if time < first][-1:]
        inside = [change for change in self.changes if first <= change[0] <= last]
        changes = (*(held if not inside or inside[0][0] > first else ()), *inside)
        return Inner(self.device, self.node, self.scope, self.name, self.bits, changes)


@dataclass
class _Open:
    """A signal whose changes are being read."""

    circuit: Circuit
    scope: tuple[str, ...]
    declared: VarDecl
    changes: list[tuple[int, int | None]] = field(default_factory=list)

    def closed(self) -> Inner:
        one, name = self.declared, self.declared.reference
        if isinstance(one.bit_index, int):
            name = f"{name}[{one.bit_index}]"
        return Inner(self.circuit.device, self.circuit.nodes[0], self.scope, name, one.size, tuple(self.changes))


def tracing(sources: Sequence[Path], paths: Sequence[str]) -> tuple[str, ...]:
    """Lines of Verilator's configuration by which it can record instances below the bench, and nothing else.

    Signals are told by the file that declares them, instances by their line and those of all that they stand in."""
    if not paths:
        return ()
    files = {path.stem: path for path in sources}
    lines = ['tracing_off -file "*"']
    for path in paths:
        module = BENCH
        for instance in path.split("."):
            text = files[module].read_text()
            head = rf"^module {module}\b|^(?:\)|\w+) {instance} \($"
            at = [number for number, line in enumerate(text.splitlines(), 1) if re.match(head, line)]
            lines += [f'tracing_on -file "*/{module}.v" -lines {number}' for number in at]
            module = instances(text)[instance]
        lines.append(f'tracing_on -file "*/{module}.v"')
    return tuple(dict.fromkeys(lines))


def read_inside(folder: Path, recorded: Sequence[Circuit], time_ps: Callable[[int], int]) -> list[Inner]:
    """What the bench recorded of circuits; ``time_ps`` tells the time of a step of the simulation."""
    # Verilator puts a scope of its own around the bench
    paths = {(TOP, BENCH, *one.path.split(".")): one for one in recorded}
    # several signals that are always equal have one code
    signals: dict[str, list[_Open]] = {}
    scopes: list[str] = []
    head, end, body = (folder / INSIDE_FILE).read_bytes().partition(b"$enddefinitions $end")
    for token in tokenize(io.BytesIO(head + end)):
        kind = token.kind
        if kind is TokenKind.SCOPE:
            scopes.append(token.scope.ident)
        elif kind is TokenKind.UPSCOPE:
            scopes.pop()
        elif kind is TokenKind.VAR:
            own = [path for path in paths if tuple(scopes[: len(path)]) == path]
            for path in own:
                one = _Open(paths[path], tuple(scopes[len(path) :]), token.var)
                signals.setdefault(token.var.id_code, []).append(one)
    now = 0
    # a line each, as Verilator writes them; the library, which takes any layout, takes thirty times as long
    for line in body.decode().splitlines():
        if line.startswith("#"):
            now = time_ps(int(line[1:]))
        elif line:
            digits, code = line[1:].split() if line.startswith("b") else (line[0], line[1:])
            for one in signals.get(code, ()):
                one.changes.append((now, _number(digits)))
    found = (one.closed() for each in signals.values() for one in each)
    # a clock that is about to rise is always low
    return sorted((one for one in found if one.name != "clk"), key=lambda one: (one.node, one.scope, one.name))


def _number(digits: str) -> int | None:
    """Of binary digits; None of unknown ones."""
    return int(digits, 2) if set(digits) <= {"0", "1"} else None
