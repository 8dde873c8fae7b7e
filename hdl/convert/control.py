"""The control of Verilog without its arithmetic: a slice of modules, backwards from signals that somebody asks for.

A statement stays if a bit that it writes matters, bit for bit as `hdl.analysis.dataflow` tells it, and stays as it
was; all others go, with nets, memories and ports of which nothing is left.  What a remaining statement reads of nets
that don't matter is zero: it reads none of their bits that could (M. Weiser, "Program Slicing", IEEE Trans. Software
Engineering 10(4), 1984, of circuits).  So the slice has in every cycle the values of the whole for all that was asked
for, by construction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from hdl.analysis.dataflow import Node, Op, demand_bits
from hdl.convert.netlist import Direction
from hdl.convert.reader import Net, Part, ReadModule, read_module
from hdl.errors import ConversionError

# bits by name: of nets of a module and, behind dots, of instances below
Bits = Mapping[str, int]
_NAME = re.compile(r"(?<![\w$'.])[A-Za-z_]\w*")


@dataclass(frozen=True)
class Contents:
    """What arithmetic a module has."""

    # that write anything
    assignments: int
    # of two values that vary
    multipliers: int
    # of all memories
    memory_bits: int


@dataclass(frozen=True)
class Solution:
    """What matters of an instance."""

    module: str
    # what was asked for
    asked: Bits
    # of its nets, those that matter
    live: Bits
    # instance below -> the same of it
    parts: Mapping[str, Solution]

    @cached_property
    def key(self) -> tuple[str, frozenset[tuple[str, int]]]:
        """Of instances with the same slice."""
        return self.module, frozenset(self.asked.items())


class ControlSlicer:
    """Slices of a design.

    ``texts``: module -> its Verilog.
    ``cuts``: module -> (instance in it, port) of which nothing is to be read: zeros come there instead.
    ``data``: nets of a module whose values are nothing but data: what they come from does not matter."""

    def __init__(
        self,
        texts: Mapping[str, str],
        cuts: Mapping[str, Collection[tuple[str, str]]] | None = None,
        data: Callable[[ReadModule], Iterable[str]] = lambda _: (),
    ) -> None:
        self._texts = texts
        self._cuts = cuts or {}
        self._data = data
        self._modules: dict[str, ReadModule] = {}
        self._solutions: dict[tuple[str, frozenset[tuple[str, int]]], Solution] = {}
        self._names: dict[tuple[str, frozenset[tuple[str, int]]], str] = {}
        # text without its name -> the module that has it
        self._same: dict[str, str] = {}

    def read(self, name: str) -> ReadModule:
        """A module.  Raises `ConversionError` where there is none."""
        if name not in self._modules:
            if name not in self._texts:
                raise ConversionError(f"there is no module {name}")
            module = self._modules[name] = read_module(self._texts[name])
            for net in self._data(module):
                module.nets[net].node.flows.clear()
        return self._modules[name]

    def solve(self, name: str, asked: Bits) -> Solution:
        """What matters of a module of which these bits are asked for."""
        module = self.read(name)
        asked = {net: bits & self._mask(module, net) for net, bits in asked.items()}
        key = name, frozenset(asked.items())
        if key not in self._solutions:
            self._solutions[key] = self._solved(module, asked)
        return self._solutions[key]

    def _mask(self, module: ReadModule, path: str) -> int:
        """All bits of a net."""
        instance, _, rest = path.partition(".")
        if rest:
            part = next((part for part in module.parts if part.name == instance), None)
            if part is None:
                raise ConversionError(f"module {module.name} has no instance {instance}")
            return self._mask(self.read(part.module), rest)
        if path not in module.nets:
            raise ConversionError(f"module {module.name} has no net {path}")
        return module.nets[path].mask

    def _solved(self, module: ReadModule, asked: Bits) -> Solution:
        self._begin(module, asked)
        below: dict[str, dict[str, int]] = {part.name: {} for part in module.parts}
        for path, bits in asked.items():
            instance, _, rest = path.partition(".")
            if rest:
                below[instance][rest] = bits
        solved: dict[str, Solution] = {}
        changed = True
        while changed:
            changed = False
            for part in module.parts:
                wanted = below[part.name]
                self._ask_outputs(part, wanted)
                wanted = {net: bits for net, bits in wanted.items() if bits}
                known = solved.get(part.name)
                if wanted and (known is None or known.asked != wanted):
                    solved[part.name] = self.solve(part.module, wanted)
                    self._feed(module, part, solved[part.name])
                    changed = True
        live = {name: net.node.live & net.mask for name, net in module.nets.items()}
        return Solution(module.name, asked, live, solved)

    def _begin(self, module: ReadModule, asked: Bits, askers: dict[Node, Node] | None = None) -> None:
        for node in module.nodes:
            node.live = 0
        demand_bits({module.nets[net].node: bits for net, bits in asked.items() if "." not in net}, askers)

    def _ask_outputs(self, part: Part, wanted: dict[str, int]) -> None:
        """Add what matters of the nets that an instance drives."""
        nets = self.read(part.module).nets
        for port, (text, value) in part.connections.items():
            if nets[port].direction is Direction.OUT and value is not None:
                if value.net is None:
                    raise ConversionError(f"{part.name}: {text!r} at output {port} is no net")
                wanted[port] = wanted.get(port, 0) | value.net.node.live & nets[port].mask

    def _feed(self, module: ReadModule, part: Part, solution: Solution) -> None:
        """Ask for what an instance needs."""
        nets, cut = self.read(part.module).nets, self._cuts.get(module.name, ())
        needed: dict[Node, int] = {}
        for port, (_, value) in part.connections.items():
            if nets[port].direction is Direction.IN and value is not None and (part.name, port) not in cut:
                bits = solution.live[port]
                if bits:
                    needed[value.node] = needed.get(value.node, 0) | bits
        demand_bits(needed)

    def why(self, solution: Solution, net: str) -> list[str]:
        """Nets over which what was asked for reads ``net`` of a module, from the asked one to that, inside the module
        alone; empty if it does not."""
        module, askers = self.read(solution.module), dict[Node, Node]()
        wanted = {module.nets[name].node: bits for name, bits in solution.asked.items() if "." not in name}
        self._begin(module, solution.asked, askers)
        names = {found.node: name for name, found in module.nets.items()}
        node = module.nets[net].node
        if not node.live:
            return []
        path = [net]
        while node not in wanted and node in askers:
            node = askers[node]
            if node in names:
                path.append(names[node])
        return path[::-1]

    # ---- text

    def texts(self, solution: Solution, keep: bool = True) -> dict[str, str]:
        """Module -> the Verilog of its slice, of all that an instance consists of.  ``keep``: the outermost one keeps
        its name; a module of which several slices are needed has them under several names."""
        found: dict[str, str] = {}
        self._names, self._same = {}, {}
        self._emit(solution, solution.module if keep else None, found)
        return found

    def _emit(self, solution: Solution, name: str | None, found: dict[str, str]) -> str:
        """Returns the name of its module: layers that differ in values alone have one control, and one module."""
        if solution.key not in self._names:
            names = {part: self._emit(below, None, found) for part, below in solution.parts.items()}
            taken = Counter(module for module, _ in self._names)[solution.module]
            own = name or f"{solution.module}{f'__{taken}' if taken else ''}"
            body = self._text("", solution, names)
            self._names[solution.key] = self._same.setdefault(body, own)
            if self._names[solution.key] == own:
                found[own] = body.replace("module ", f"module {own}", 1)
        return self._names[solution.key]

    def _text(self, own: str, solution: Solution, names: Mapping[str, str]) -> str:
        """Of one module; ``names`` are those of its instances' modules."""
        module = self.read(solution.module)
        self._mark(module, solution)
        edits = [(*module.head, "")]
        for process in module.processes:
            if not any(one.matters for one in process.assignments):
                edits.append((process.begin, process.end, ""))
            else:
                edits += [(one.begin, one.end, ";") for one in process.assignments if not one.matters]
        kept = {name for name in module.ports if self._stays(module.nets[name], solution)}
        for name, net in module.nets.items():
            for begin, end in net.spans:
                port = module.text.startswith(("input", "output"), begin)
                if begin >= module.head[1] and (not solution.live[name] or (port and name not in kept)):
                    edits.append((begin, end, ""))
            edits += [(begin, end, "") for begin, end in net.starts if not solution.live[name]]
        for part in module.parts:
            text = (
                self._part_text(module, part, solution.parts[part.name], names[part.name]) if part.name in names else ""
            )
            edits.append((part.begin, part.end, text))
        body = _edited(module.text, edits)
        used = set(_NAME.findall(body))
        declared = [_zero(net) for net in module.nets.values() if net.name in used and not solution.live[net.name]]
        declared += [
            f"wire {_range(net)}{net.name};"
            for net in module.nets.values()
            if net.name in used and self._in_head(module, net) and net.name not in kept and solution.live[net.name]
        ]
        parameters = [name for name in module.parameters if name in used]
        head = self._head(own, module, parameters, [name for name in module.ports if name in kept])
        return _packed(re.sub(r"\n{3,}", "\n\n", "\n".join((head, *declared, body)).strip()) + "\n")

    def _mark(self, module: ReadModule, solution: Solution) -> None:
        self._begin(module, solution.asked)
        for part in module.parts:
            if part.name in solution.parts:
                self._feed(module, part, solution.parts[part.name])

    @staticmethod
    def _stays(net: Net, solution: Solution) -> bool:
        """Whether a port does."""
        if net.direction is Direction.OUT:
            return bool(solution.asked.get(net.name))
        return bool(solution.live[net.name])

    @staticmethod
    def _in_head(module: ReadModule, net: Net) -> bool:
        """Whether a net is a port that is declared in the list of ports."""
        return any(begin < module.head[1] for begin, _ in net.spans)

    def _head(self, own: str, module: ReadModule, parameters: Collection[str], ports: Collection[str]) -> str:
        values = ",\n".join(f"    parameter {name} = {module.parameters[name]}" for name in parameters)
        listed = ",\n".join(
            f"    {net.direction.value} {net.kind} {_range(net)}{name}"
            if net.direction and self._in_head(module, net)
            else f"    {name}"
            for name, net in ((name, module.nets[name]) for name in ports)
        )
        return f"module {own}{f' #({chr(10)}{values}{chr(10)})' if values else ''} (\n{listed}\n);\n"

    def _part_text(self, module: ReadModule, part: Part, solution: Solution, name: str) -> str:
        child, cut = self.read(part.module), self._cuts.get(module.name, ())
        pins = []
        for port, (text, _) in part.connections.items():
            if self._stays(child.nets[port], solution):
                zero = (part.name, port) in cut
                pins.append(f"    .{port}({f'{child.nets[port].width}' + chr(39) + 'd0' if zero else text})")
        used = self._parameters_used(solution)
        values = [f"    .{key}({text})" for key, text in part.parameters.items() if key in used]
        middle = f" #(\n{f',{chr(10)}'.join(values)}\n)" if values else ""
        return f"{name}{middle} {part.name} (\n{f',{chr(10)}'.join(pins)}\n);"

    def _parameters_used(self, solution: Solution) -> set[str]:
        """Parameters that are left of a module."""
        module = self.read(solution.module)
        found: set[str] = set()
        for name, net in module.nets.items():
            if solution.live[name]:
                for begin, end in net.starts:
                    found.update(_NAME.findall(module.text[begin:end]))
        for part in module.parts:
            if part.name in solution.parts:
                below = self._parameters_used(solution.parts[part.name])
                found.update(text for key, text in part.parameters.items() if key in below)
        return found & module.parameters.keys()

    # ---- what is left

    def contents(self, solution: Solution | None, name: str = "") -> Contents:
        """Of one module's slice, without its instances; of the whole module ``name`` without a solution."""
        module = self.read(solution.module if solution else name)
        if solution:
            self._mark(module, solution)
        whole = solution is None
        assignments = [one for process in module.processes for one in process.assignments]
        return Contents(
            sum(whole or one.matters for one in assignments),
            sum((whole or bool(node.live)) and _multiplies(node) for node in module.nodes),
            sum(net.depth * net.width for net in module.nets.values() if whole or net.node.live),
        )


# flags that move on a place a cycle, as `hdl.engine.arithmetic` has them
_LINE = re.compile(
    r"^reg (?P<line>\w+) \[0:(?P<count>\d+)-1\];\n\n"
    r"initial begin: \w+\n    integer i;\n    for\(i=0; i<(?P=count); i=i\+1\) begin\n"
    r"        (?P=line)\[i\] = 0;\n    end\nend\n",
    re.MULTILINE,
)


def _packed(text: str) -> str:
    """The text with each line of flags as one vector, which a simulator moves at once."""
    for found in reversed([*_LINE.finditer(text)]):
        line, count = found["line"], int(found["count"])
        move = re.compile(
            rf"^    {line}\[0\] <= (\w+);\n    for \((\w+)=1; \2<{count}; \2=\2\+1\) begin\n"
            rf"        {line}\[\2\] <= {line}\[\(\2 - 1\)\];\n    end\n",
            re.MULTILINE,
        )
        moved = rf"    {line} <= {{{line}[{count - 2}:0], \1}};\n"
        changed, moves = move.subn(moved, text)
        if count > 1 and moves == 1:
            text = changed.replace(found[0], f"reg [{count - 1}:0] {line} = 0;\n", 1)
    return text


def _multiplies(node: Node) -> bool:
    """Two values that vary: neither a constant, nor counted by a loop."""
    return node.op is Op.MULTIPLY and all(_varies(factor) for factor in node.inputs)


def _varies(node: Node) -> bool:
    if node.op is Op.STORE:
        return bool(node.flows) or node.memory
    return node.op is not Op.CONSTANT and any(_varies(source) for source in node.inputs)


def _range(net: Net) -> str:
    signed = "signed " if net.signed else ""
    return signed if net.width == 1 and not net.signed else f"{signed}[{net.width - 1}:0] "


def _zero(net: Net) -> str:
    """The declaration of what is read, but no bit of it that matters."""
    if net.depth:
        return f"reg {_range(net)}{net.name} [0:{net.depth - 1}];"
    return f"wire {_range(net)}{net.name} = 0;"


def _edited(text: str, edits: Collection[tuple[int, int, str]]) -> str:
    """The text with parts of it replaced, of which none overlap but the same."""
    pieces, at = [], 0
    for begin, end, replacement in sorted(set(edits)):
        if begin < at:
            continue
        pieces += [text[at:begin], replacement]
        at = end
    return "".join((*pieces, text[at:]))
