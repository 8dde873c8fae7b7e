"""Verilog as this project writes it, MyHDL's text and netlists alike, read back as data flow: what is assigned, from
what, under which conditions, and where in the text.

Only what stands there is known: statements of any other kind are errors, never skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from hdl.analysis.dataflow import Logic, Node, Op
from hdl.convert.netlist import VERILOG_KEYWORDS, Direction
from hdl.errors import ConversionError

_TOKEN = re.compile(
    r"//[^\n]*|\s+|(\(\*.*?\*\)|\"[^\"]*\"|\d*'[sS]?[bdhoBDHO][0-9a-fA-F_]+|\d+|\$?[A-Za-z_]\w*"
    r"|>>>|<<<|<=|>=|==|!=|&&|\|\||<<|>>|\+:|[^\w\s])"
)
_BASES = {"b": 2, "o": 8, "d": 10, "h": 16}
# bits of a number without a size
_INTEGER_BITS = 32


@dataclass(eq=False)
class Net:
    """A signal, a variable of a process or a memory of a module."""

    name: str
    width: int
    signed: bool
    # of whatever is written to it
    node: Node
    # a port's
    direction: Direction | None = None
    # words of a memory; 0: none
    depth: int = 0
    # "reg" or "wire"
    kind: str = "wire"
    # declarations, as parts of the text
    spans: list[tuple[int, int]] = field(default_factory=list)
    # of its words when a run begins, where it is a memory
    starts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def mask(self) -> int:
        """All its bits."""
        return (1 << self.width) - 1


@dataclass(frozen=True)
class Assignment:
    """A statement that writes bits of a net."""

    net: Net
    mask: int
    value: Node
    begin: int
    end: int

    @property
    def matters(self) -> bool:
        """Whether any of these bits do."""
        return bool(self.net.node.live & self.mask)


@dataclass(frozen=True)
class Process:
    """An ``always`` with all its assignments, or an ``assign``."""

    begin: int
    end: int
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class Part:
    """An instance."""

    module: str
    name: str
    # port -> (text, what it says)
    connections: Mapping[str, tuple[str, Value | None]]
    # parameter -> text
    parameters: Mapping[str, str]
    begin: int
    end: int


@dataclass(frozen=True)
class Value:
    """An expression."""

    node: Node
    # of its own; None where what stands around it decides
    width: int | None = None
    constant: int | None = None
    # the net that it is, all of it
    net: Net | None = None


@dataclass(frozen=True)
class ReadModule:
    """A module."""

    name: str
    text: str
    nets: Mapping[str, Net]
    # in their order
    ports: tuple[str, ...]
    parameters: Mapping[str, str]
    processes: tuple[Process, ...]
    parts: tuple[Part, ...]
    # of the text between ``module`` and the first item
    head: tuple[int, int]
    # all values there are
    nodes: tuple[Node, ...]


def read_module(text: str) -> ReadModule:
    """The one module of a text.  Raises `ConversionError` for what this project does not write."""
    return _Reader(text).module()


# operator -> how tightly it binds
_TIGHTNESS = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, "<=": 7, ">": 7, ">=": 7,
    "<<": 8, ">>": 8, "<<<": 8, ">>>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_SUMS = {"+": Op.ADD, "-": Op.SUBTRACT, "*": Op.MULTIPLY}
_BITWISE = {"&": Logic.AND, "|": Logic.OR, "^": Logic.XOR}
_CONSTANTS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._starts: list[int] = []
        for found in _TOKEN.finditer(text):
            if found[1] is not None:
                self._tokens.append(found[1])
                self._starts.append(found.start(1))
        self._tokens.append("")
        self._starts.append(len(text))
        self._at = 0
        self._name = ""
        self._nets: dict[str, Net] = {}
        self._locals: dict[str, Net] = {}
        self._conditions: tuple[Node, ...] = ()
        self._assignments: list[Assignment] = []
        self._processes: list[Process] = []
        self._parts: list[Part] = []
        self._parameters: dict[str, str] = {}
        self._constants: dict[str, Value] = {}
        self._nodes: list[Node] = []

    # ---- tokens

    def _next(self) -> str:
        token = self._tokens[self._at]
        self._at += 1
        return token

    @property
    def _peek(self) -> str:
        return self._tokens[self._at]

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            if self._next() != token:
                self._at -= 1
                raise self._error(f"{token!r} is missing")

    def _accept(self, token: str) -> bool:
        if self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _end(self) -> int:
        """Where the last token ends."""
        return self._starts[self._at - 1] + len(self._tokens[self._at - 1])

    def _error(self, what: str) -> ConversionError:
        place = self._starts[min(self._at, len(self._starts) - 1)]
        line = self._text.count("\n", 0, place) + 1
        return ConversionError(f"module {self._name}, line {line}: {what}, before {self._text[place : place + 40]!r}")

    def _node(self, op: Op, inputs: tuple[Node, ...] = (), amount: int = 0) -> Node:
        node = Node(op, inputs, amount)
        self._nodes.append(node)
        return node

    # ---- items

    def module(self) -> ReadModule:
        """All of it."""
        self._expect("module")
        self._name = self._next()
        if self._accept("#"):
            self._parameter_list()
        ports = self._port_list()
        head = 0, self._end()
        rules = {
            "input": self._declaration, "output": self._declaration, "wire": self._declaration,
            "reg": self._declaration, "assign": self._assign, "always": self._always, "initial": self._initial,
            "localparam": self._localparam,
        }  # fmt: skip
        while not self._accept("endmodule"):
            begin = self._starts[self._at]
            if self._peek.startswith("(*"):
                self._at += 1
            rule = rules.get(self._peek)
            if rule is not None:
                rule(begin)
            elif self._peek in VERILOG_KEYWORDS or not re.fullmatch(r"[A-Za-z_]\w*", self._peek):
                raise self._error(f"{self._peek!r} begins nothing that is known")
            else:
                self._instance(begin)
        return ReadModule(
            self._name, self._text, self._nets, tuple(ports), self._parameters,
            tuple(self._processes), tuple(self._parts), head, tuple(self._nodes),
        )  # fmt: skip

    def _parameter_list(self) -> None:
        self._expect("(")
        while not self._accept(")"):
            self._expect("parameter")
            name = self._next()
            self._expect("=")
            self._parameters[name] = self._next()
            self._accept(",")

    def _port_list(self) -> list[str]:
        """Names alone, or declarations."""
        ports = []
        self._expect("(")
        while not self._accept(")"):
            if self._peek in ("input", "output"):
                begin = self._starts[self._at]
                ports.append(self._declared(begin, in_head=True).name)
            else:
                ports.append(self._next())
            self._accept(",")
        self._expect(";")
        return ports

    def _declaration(self, begin: int) -> None:
        net = self._declared(begin)
        if self._accept("="):
            self._expression()
        self._expect(";")
        net.spans.append((begin, self._end()))

    def _declared(self, begin: int, in_head: bool = False) -> Net:
        """A net, up to its name and depth."""
        direction, kind, signed = None, "wire", False
        while self._peek in ("input", "output", "wire", "reg", "signed"):
            word = self._next()
            if word in ("input", "output"):
                direction = Direction(word)
            elif word == "signed":
                signed = True
            else:
                kind = word
        width = self._range()
        name = self._next()
        net = self._nets.get(name)
        if net is None:
            net = self._nets[name] = self._fresh(name, width, signed)
        net.direction = direction or net.direction
        net.kind, net.signed = kind, net.signed or signed
        if self._accept("["):
            first, last = self._bounds()
            net.depth = last - first + 1
            net.node.memory = True
        if in_head:
            net.spans.append((begin, self._end()))
        return net

    def _fresh(self, name: str, width: int, signed: bool) -> Net:
        return Net(name, width, signed, self._node(Op.STORE, amount=width))

    def _range(self) -> int:
        """Bits of a declaration."""
        if not self._accept("["):
            return 1
        high, low = self._bounds()
        return high - low + 1

    def _bounds(self) -> tuple[int, int]:
        left = self._constant()
        self._expect(":")
        right = self._constant()
        self._expect("]")
        return left, right

    def _constant(self) -> int:
        value = self._expression().constant
        if value is None:
            raise self._error("a constant is needed")
        return value

    def _localparam(self, begin: int) -> None:
        self._expect("localparam")
        width = self._range()
        name = self._next()
        self._expect("=")
        found = self._expression()
        self._expect(";")
        self._constants[name] = Value(found.node, width, found.constant)

    def _assign(self, begin: int) -> None:
        self._expect("assign")
        self._assignment(begin)
        self._processes.append(Process(begin, self._end(), tuple(self._assignments)))
        self._assignments = []

    def _always(self, begin: int) -> None:
        self._expect("always", "@", "(")
        clocked = self._accept("posedge")
        read = [self._expression().node]
        while self._accept(","):
            self._expression()
        self._expect(")")
        with self._under(*(read if clocked else ())):
            self._statement()
        self._processes.append(Process(begin, self._end(), tuple(self._assignments)))
        self._assignments, self._locals = [], {}

    def _initial(self, begin: int) -> None:
        """What memories start with."""
        self._expect("initial")
        depth, named = 0, None
        while True:
            token = self._next()
            if token == "begin":
                depth += 1
            elif token == "end":
                depth -= 1
            elif named is None and token in self._nets:
                named = self._nets[token]
            if not token:
                raise self._error("an initial block does not end")
            if depth == 0 and token in ("end", ";"):
                break
        if named is None or not named.depth:
            raise self._error("an initial block is of no memory")
        named.starts.append((begin, self._end()))

    def _instance(self, begin: int) -> None:
        module, parameters = self._next(), {}
        if self._accept("#"):
            parameters = {name: text for name, text, _ in self._pins()}
        name = self._next()
        connections = {port: (text, value) for port, text, value in self._pins()}
        self._expect(";")
        self._parts.append(Part(module, name, connections, parameters, begin, self._end()))

    def _pins(self) -> Iterator[tuple[str, str, Value | None]]:
        self._expect("(")
        while not self._accept(")"):
            self._expect(".")
            name = self._next()
            self._expect("(")
            begin, value = self._starts[self._at], None
            if self._peek.startswith('"') or self._peek in self._parameters:
                self._next()
            elif self._peek != ")":
                value = self._expression()
            text = self._text[begin : self._end()] if begin < self._starts[self._at] else ""
            self._expect(")")
            self._accept(",")
            yield name, text, value

    # ---- statements

    @contextmanager
    def _under(self, *conditions: Node) -> Iterator[None]:
        outer = self._conditions
        self._conditions = (*outer, *conditions)
        yield
        self._conditions = outer

    def _statement(self) -> None:
        token = self._peek
        if token == "begin":
            self._block()
        elif token == "if":
            self._if()
        elif token == "case":
            self._case()
        elif token == "for":
            self._for()
        elif token in ("integer", "reg"):
            self._local()
        elif not self._accept(";"):
            self._assignment(self._starts[self._at])

    def _block(self) -> None:
        self._expect("begin")
        if self._accept(":"):
            self._next()
        while not self._accept("end"):
            self._statement()

    def _local(self) -> None:
        integer = self._next() == "integer"
        signed = self._accept("signed") or integer
        width = _INTEGER_BITS if integer else self._range()
        name = self._next()
        self._locals[name] = self._fresh(name, width, signed)
        self._expect(";")

    def _if(self) -> None:
        self._expect("if", "(")
        test = self._expression().node
        self._expect(")")
        with self._under(test):
            self._statement()
            if self._accept("else"):
                self._statement()

    def _case(self) -> None:
        self._expect("case", "(")
        test = self._expression().node
        self._expect(")")
        with self._under(test):
            while not self._accept("endcase"):
                if not self._accept("default"):
                    self._expression()
                    while self._accept(","):
                        self._expression()
                self._expect(":")
                self._statement()

    def _for(self) -> None:
        """Its variable has one value after another, whatever else happens."""
        self._expect("for", "(")
        variable = self._locals.get(self._next())
        if variable is None:
            raise self._error("a loop counts no variable of its process")
        self._expect("=")
        bounds = [self._expression()]
        self._expect(";")
        bounds.append(self._expression())
        self._expect(";", variable.name, "=")
        bounds.append(self._expression())
        self._expect(")")
        with self._under(*(bound.node for bound in bounds if bound.constant is None)):
            self._statement()

    def _assignment(self, begin: int) -> None:
        net, low, width, extra = self._target()
        if not self._accept("="):
            self._expect("<=")
        value = self._expression().node
        self._expect(";")
        if low is None:
            # any of its bits
            value, low = self._node(Op.MIX, (value,)), 0
        net.node.flows.append((value, low, width, (*self._conditions, *extra)))
        self._assignments.append(Assignment(net, ((1 << width) - 1) << low, value, begin, self._end()))

    def _target(self) -> tuple[Net, int | None, int, list[Node]]:
        """(net, lowest bit, bits, what else decides where); None: it varies."""
        net = self._net(self._next())
        if net is None:
            self._at -= 1
            raise self._error("what is written is not declared")
        extra: list[Node] = []
        if net.depth:
            self._expect("[")
            extra.append(self._expression().node)
            self._expect("]")
        if not self._accept("["):
            return net, 0, net.width, extra
        index, low, width = self._select()
        if low is None:
            return net, None, net.width, [*extra, index.node]
        return net, low, width, extra

    def _net(self, name: str) -> Net | None:
        return self._locals.get(name) or self._nets.get(name)

    def _select(self) -> tuple[Value, int | None, int]:
        """Inside brackets: (lowest bit as it stands, the same where it is constant, bits)."""
        first = self._expression()
        if self._accept(":"):
            low = self._expression()
            self._expect("]")
            if first.constant is None or low.constant is None:
                raise self._error("a slice has bounds that vary")
            return low, low.constant, first.constant - low.constant + 1
        width = 1
        if self._accept("+:"):
            width = self._constant()
        self._expect("]")
        return first, first.constant, width

    # ---- expressions

    def _expression(self, least: int = 0) -> Value:
        left = self._unary()
        while True:
            operator = self._peek
            tightness = _TIGHTNESS.get(operator)
            if tightness is None or tightness <= least:
                break
            self._at += 1
            left = self._binary(operator, left, self._expression(tightness))
        if least == 0 and self._accept("?"):
            chosen = self._expression()
            self._expect(":")
            other = self._expression()
            return Value(self._node(Op.CHOOSE, (left.node, chosen.node, other.node)))
        return left

    def _binary(self, operator: str, left: Value, right: Value) -> Value:
        if left.constant is not None and right.constant is not None and operator in _CONSTANTS:
            return self._number(_CONSTANTS[operator](left.constant, right.constant))
        both = left.node, right.node
        if operator in _SUMS:
            return Value(self._node(_SUMS[operator], both))
        if operator in _BITWISE:
            return Value(self._node(Op.BITWISE, both, _BITWISE[operator]))
        if operator in ("<<", "<<<", ">>", ">>>"):
            to_left = operator.startswith("<")
            if right.constant is not None:
                return Value(self._node(Op.SHIFT, (left.node,), right.constant if to_left else -right.constant))
            return Value(self._node(Op.SHIFT_BY, both, int(to_left)))
        # comparisons, truths and what is rare: every bit decides
        return Value(self._node(Op.MIX, both), 1)

    def _number(self, value: int, width: int | None = None) -> Value:
        return Value(self._node(Op.CONSTANT, amount=value), width, value)

    def _unary(self) -> Value:
        token = self._next()
        if token == "(":
            inner = self._expression()
            self._expect(")")
            return inner
        if token == "{":
            return self._concat()
        if token in ("!", "|", "&", "^"):
            return Value(self._node(Op.MIX, (self._unary().node,)), 1)
        if token == "~":
            inner = self._unary()
            return Value(self._node(Op.BITWISE, (inner.node,), Logic.NOT), inner.width)
        if token == "-":
            inner = self._unary()
            if inner.constant is not None:
                return self._number(-inner.constant, inner.width)
            return Value(self._node(Op.SUBTRACT, (self._node(Op.CONSTANT), inner.node)))
        if token in ("$signed", "$unsigned"):
            return self._signed(token)
        if token[:1].isdigit() or token.startswith("'"):
            return self._literal(token)
        return self._named(token)

    def _literal(self, token: str) -> Value:
        size, quote, rest = token.partition("'")
        if not quote:
            return self._number(int(token))
        rest = rest.lstrip("sS")
        return self._number(int(rest[1:], _BASES[rest[0].lower()]), int(size) if size else None)

    def _signed(self, token: str) -> Value:
        self._expect("(")
        inner = self._expression()
        self._expect(")")
        if token == "$unsigned" or inner.constant is not None:
            return inner
        # of what has no width of its own the bits above are not known
        width = inner.width
        node = self._node(Op.MIX, (inner.node,)) if width is None else self._node(Op.EXTEND, (inner.node,), width)
        return Value(node, width)

    def _concat(self) -> Value:
        parts = [self._expression()]
        if self._accept("{"):
            again, count = self._concat(), parts[0].constant
            self._expect("}")
            if count is None or again.width is None:
                raise self._error("a replication has no constant count")
            copies = [self._node(Op.SHIFT, (again.node,), at * again.width) for at in range(count)]
            return Value(self._node(Op.JOIN, tuple(copies)), count * again.width)
        while self._accept(","):
            parts.append(self._expression())
        self._expect("}")
        found, low = [], 0
        for part in reversed(parts):
            if part.width is None:
                raise self._error("a part of a concatenation has no width of its own")
            cut = self._node(Op.CUT, (part.node,), part.width)
            found.append(self._node(Op.SHIFT, (cut,), low))
            low += part.width
        return Value(self._node(Op.JOIN, tuple(found)), low)

    def _named(self, name: str) -> Value:
        if name in self._constants:
            return self._constants[name]
        net = self._net(name)
        if net is None:
            self._at -= 1
            raise self._error(f"{name!r} is not declared")
        value = self._node(Op.EXTEND, (net.node,), net.width) if net.signed else net.node
        whole: Net | None = net
        if net.depth:
            self._expect("[")
            index = self._expression()
            self._expect("]")
            value, whole = self._node(Op.CHOOSE, (index.node, value)), None
        if not self._accept("["):
            return Value(value, net.width, net=whole)
        place, low, width = self._select()
        if low is None:
            return Value(self._node(Op.SELECT, (value, place.node), width), width)
        return Value(self._node(Op.CUT, (self._node(Op.SHIFT, (value,), -low),), width), width)
