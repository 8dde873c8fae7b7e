"""Structural Verilog as plain data: modules that only instantiate, connect and tie off.

MyHDL flattens what it converts, so each circuit is converted alone and the hierarchy above is written here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hdl.errors import ConversionError


class Direction(Enum):
    """Which way a port carries data, seen from its module."""

    IN = "input"
    OUT = "output"
    # pins of vendors' IP alone
    BOTH = "inout"


@dataclass(frozen=True)
class PortDecl:
    """A port of ``width`` bits."""

    name: str
    width: int
    direction: Direction
    signed: bool = False


@dataclass(frozen=True)
class Wire:
    """An internal net of ``width`` bits."""

    name: str
    width: int = 1


@dataclass(frozen=True)
class Identifier:
    """A parameter value that names a parameter of the enclosing module."""

    name: str


Value = int | str | Identifier


@dataclass(frozen=True)
class Instance:
    """``module name (...)``; connections map port names to Verilog expressions ("" leaves one open)."""

    module: str
    name: str
    connections: Mapping[str, str]
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Module:
    """A structural module.  ``assigns`` are (net, expression), ``parameters`` map names to default values."""

    name: str
    ports: tuple[PortDecl, ...]
    wires: tuple[Wire, ...] = ()
    instances: tuple[Instance, ...] = ()
    assigns: tuple[tuple[str, str], ...] = ()
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    comment: str = ""
    # local parameters: name -> (bits, value)
    constants: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def to_verilog(self) -> str:
        """The same text for the same data.  Raises `ConversionError` for names that aren't declared once."""
        self.check()
        parts = [f"// {line}".rstrip() for line in self.comment.splitlines()]
        parts += [f"module {self.name}{_parameter_list(self.parameters)} ("]
        parts += [",\n".join(f"    {port.direction.value} wire {_declared(port)}" for port in self.ports)]
        parts += [");", ""]
        parts += [
            f"localparam {_range(bits)}{name} = {bits}'h{value:0{-(-bits // 4)}x};"
            for name, (bits, value) in self.constants.items()
        ]
        parts += [f"wire {_range(wire.width)}{wire.name};" for wire in self.wires]
        parts += [f"assign {net} = {expression};" for net, expression in self.assigns]
        parts += [_instance(instance) for instance in self.instances]
        parts += ["", "endmodule", ""]
        return "\n".join(parts)

    def check(self) -> None:
        """Every name declared once, every used name declared."""
        declared = [port.name for port in self.ports] + [wire.name for wire in self.wires]
        names = declared + [instance.name for instance in self.instances] + list(self.parameters) + list(self.constants)
        for name in names:
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ConversionError(f"module {self.name}: {name!r} is not a Verilog identifier")
            if name in VERILOG_KEYWORDS:
                raise ConversionError(f"module {self.name}: {name!r} is a Verilog keyword", "rename it")
            if names.count(name) > 1:
                raise ConversionError(f"module {self.name}: {name!r} is declared twice")
        known = set(declared) | set(self.parameters) | set(self.constants)
        for where, text in self._expressions():
            for used in identifiers(text):
                if used not in known:
                    raise ConversionError(f"module {self.name}: {where} uses {used!r}, which isn't declared")

    def _expressions(self) -> list[tuple[str, str]]:
        found = [(f"assign {net}", text) for pair in self.assigns for net, text in [pair, pair[::-1]]]
        for instance in self.instances:
            found += [(f"{instance.name}.{port}", text) for port, text in instance.connections.items()]
            found += [
                (f"{instance.name} #{name}", value.name)
                for name, value in instance.parameters.items()
                if isinstance(value, Identifier)
            ]
        return found


def instantiate(
    module: str,
    ports: tuple[PortDecl, ...],
    name: str,
    connections: Mapping[str, str],
    widths: Mapping[str, int],
    parameters: Mapping[str, Value] | None = None,
) -> Instance:
    """An instance whose connections are checked against the ports of its module.

    ``widths`` are the widths of the enclosing module's nets; a connection that is a plain name must have the
    width of its port.  Raises `ConversionError` for a missing or unknown port or another width.
    """
    expected = {port.name: port for port in ports}
    missing, unknown = set(expected) - set(connections), set(connections) - set(expected)
    if missing or unknown:
        raise ConversionError(
            f"instance {name} of {module}: unconnected ports {sorted(missing)}, unknown ports {sorted(unknown)}"
        )
    for port, text in connections.items():
        if text in widths and widths[text] != expected[port].width:
            raise ConversionError(
                f"instance {name} of {module}: port {port} has {expected[port].width} bits, "
                f"net {text} has {widths[text]}"
            )
    return Instance(module, name, dict(connections), dict(parameters or {}))


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""


def _declared(port: PortDecl) -> str:
    return f"{'signed ' if port.signed else ''}{_range(port.width)}{port.name}"


def _literal(value: Value) -> str:
    if isinstance(value, Identifier):
        return value.name
    return f'"{value}"' if isinstance(value, str) else str(value)


def _parameter_list(parameters: Mapping[str, int | str]) -> str:
    if not parameters:
        return ""
    lines = ",\n".join(f"    parameter {name} = {_literal(value)}" for name, value in parameters.items())
    return f" #(\n{lines}\n)"


def _instance(instance: Instance) -> str:
    parameters = ",\n".join(f"    .{n}({_literal(v)})" for n, v in instance.parameters.items())
    connections = ",\n".join(f"    .{port}({text})" for port, text in instance.connections.items())
    middle = f" #(\n{parameters}\n)" if parameters else ""
    return f"{instance.module}{middle} {instance.name} (\n{connections}\n);"


def identifiers(text: str) -> list[str]:
    """Names in a Verilog expression, based literals such as ``8'hff`` left out."""
    without_literals = re.sub(r"\d*'[sS]?[bBoOdDhH][0-9a-fA-FxXzZ_?]+|\"[^\"]*\"", " ", text)
    return [n for n in re.findall(r"(?<![\w$])[A-Za-z_]\w*", without_literals) if n not in VERILOG_KEYWORDS]


VERILOG_KEYWORDS = frozenset(
    """always and assign automatic begin buf bufif0 bufif1 case casex casez cell cmos config deassign default
    defparam design disable edge else end endcase endconfig endfunction endgenerate endmodule endprimitive
    endspecify endtable endtask event for force forever fork function generate genvar highz0 highz1 if ifnone
    incdir include initial inout input instance integer join large liblist library localparam macromodule medium
    module nand negedge nmos nor noshowcancelled not notif0 notif1 or output parameter pmos posedge primitive
    pull0 pull1 pulldown pullup pulsestyle_onevent pulsestyle_ondetect rcmos real realtime reg release repeat
    rnmos rpmos rtran rtranif0 rtranif1 scalared showcancelled signed small specify specparam strong0 strong1
    supply0 supply1 table task time tran tranif0 tranif1 tri tri0 tri1 triand trior trireg unsigned use uwire
    vectored wait wand weak0 weak1 while wire wor xnor xor
    alias always_comb always_ff always_latch assert assume before bind bins bit break byte chandle class
    clocking const constraint context continue cover covergroup cross dist do endclass endclocking endgroup
    endinterface endpackage endprogram endproperty endsequence enum expect export extends extern final
    first_match foreach forkjoin iff import inside int interface intersect join_any join_none local logic
    longint matches modport new null package packed priority program property protected pure rand randc randcase
    randsequence ref return sequence shortint shortreal solve static string struct super tagged this throughout
    timeprecision timeunit type typedef union unique var virtual void wait_order wildcard with within
    """.split()  # noqa: SIM905 - a list of this length is unreadable
)
