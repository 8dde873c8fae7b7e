"""Interval analysis of elaborated MyHDL blocks: what every expression of every generator can be.

`analyse` walks a block hierarchy, unrolls loops, folds constants, leaves dead branches out, and hands an
`Event` to a visitor for each operation, register, wire and memory access, with exact intervals:

    class Multipliers(Visitor):
        def event(self, event: Event) -> None:
            if event.kind is Kind.MULTIPLY and not event.constant_operand:
                self.sizes.append(tuple(operand.width for operand in event.operands))

    analyse(block, Multipliers())

The range of a signal is its declared one, which MyHDL enforces when it simulates.  An expression that occurs
twice in one generator with the same values of its variables is reported once (`Event.repeated` marks the
others), as synthesis would share it.  A construct that isn't understood raises `UnknownConstruct`.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from myhdl import EnumType, concat, downrange, intbv, modbv
from myhdl._always import _Always
from myhdl._always_comb import _AlwaysComb
from myhdl._block import _Block
from myhdl._enum import EnumItemType
from myhdl._instance import _Instantiator
from myhdl._resolverefs import _AttrRefTransformer
from myhdl._Signal import _isListOfSigs, _Signal

from hdl.elaboration import LinearForm
from hdl.errors import ConversionError


class UnknownConstruct(ConversionError):
    """The analysis met something it has no rule for; the message has file and line."""


# --------------------------------------------------------------------------------------------- intervals


@dataclass(frozen=True)
class Interval:
    """All integers from ``low`` to ``high``, both included."""

    low: int
    high: int

    @property
    def width(self) -> int:
        """Bits of the narrowest vector that holds every value (two's complement if any is negative)."""
        if self.low >= 0:
            return max(1, self.high.bit_length())
        return max((-self.low - 1).bit_length(), self.high.bit_length() if self.high > 0 else 0) + 1

    @property
    def signed(self) -> bool:
        """Some value is negative."""
        return self.low < 0

    @property
    def constant(self) -> int | None:
        """The only value, or None if there are several."""
        return self.low if self.low == self.high else None

    def join(self, other: Interval) -> Interval:
        """The smallest interval that has both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def fits(self, width: int, signed: bool) -> bool:
        """Every value is represented exactly by ``width`` bits."""
        space = signed_range(width) if signed else unsigned_range(width)
        return space.low <= self.low and self.high <= space.high


BIT = Interval(0, 1)


def unsigned_range(width: int) -> Interval:
    """0 … 2**width - 1."""
    return Interval(0, (1 << width) - 1)


def signed_range(width: int) -> Interval:
    """-2**(width-1) … 2**(width-1) - 1."""
    return Interval(-(1 << (width - 1)), (1 << (width - 1)) - 1)


def _hull(values: list[int]) -> Interval:
    return Interval(min(values), max(values))


def combine(op: ast.operator, a: Interval, b: Interval) -> Interval:
    """The interval of ``a op b`` in Python's arithmetic.  Raises KeyError for an unknown operator."""
    result: Interval = _OPERATIONS[type(op)](a, b)
    return result


def _bitwise(a: Interval, b: Interval) -> Interval:
    width = max(a.width + (b.signed and not a.signed), b.width + (a.signed and not b.signed))
    return signed_range(width) if a.signed or b.signed else unsigned_range(width)


def _and(a: Interval, b: Interval) -> Interval:
    limits = [x.high for x in (a, b) if not x.signed]
    return Interval(0, min(limits)) if limits else _bitwise(a, b)


def _divide(a: Interval, b: Interval) -> Interval:
    divisors = [x for x in (b.low, b.high, -1, 1) if b.low <= x <= b.high and x]
    if not divisors:
        raise ZeroDivisionError("division by a constant 0")
    return _hull([x // y for x in (a.low, a.high) for y in divisors])


def _modulo(a: Interval, b: Interval) -> Interval:
    if b.low > 0 and a.low >= 0:
        return a if a.high < b.low else Interval(0, min(a.high, b.high - 1))
    return Interval(min(0, b.low + 1), max(0, b.high - 1))


def _left(a: Interval, b: Interval) -> Interval:
    counts = (max(0, b.low), max(0, b.high))
    return _hull([x << n for x in (a.low, a.high) for n in counts])


def _right(a: Interval, b: Interval) -> Interval:
    counts = (max(0, b.low), max(0, b.high))
    return _hull([x >> n for x in (a.low, a.high) for n in counts])


def _power(a: Interval, b: Interval) -> Interval:
    if a.constant is None or b.constant is None or b.low < 0:
        raise KeyError("**")
    return Interval(a.low**b.low, a.low**b.low)


_OPERATIONS: Mapping[type[ast.operator], Any] = {
    ast.Add: lambda a, b: Interval(a.low + b.low, a.high + b.high),
    ast.Sub: lambda a, b: Interval(a.low - b.high, a.high - b.low),
    ast.Mult: lambda a, b: _hull([x * y for x in (a.low, a.high) for y in (b.low, b.high)]),
    ast.FloorDiv: _divide,
    ast.Mod: _modulo,
    ast.LShift: _left,
    ast.RShift: _right,
    ast.BitAnd: _and,
    ast.BitOr: _bitwise,
    ast.BitXor: _bitwise,
    ast.Pow: _power,
}


# ------------------------------------------------------------------------------------------------ events


class Kind(Enum):
    """What an event is about."""

    ADD = auto()  # + and -, and unary minus as 0 - x
    MULTIPLY = auto()
    DIVIDE = auto()  # // and %
    SHIFT = auto()
    LOGIC = auto()  # & | ^ ~ and or not
    COMPARE = auto()
    MUX = auto()  # x if c else y; operands are (test, x, y)
    SELECT = auto()  # a bit or slice of a vector at a varying index; operands are (vector, index)
    REGISTER_WRITE = auto()  # bits of a signal written by a clocked generator
    WIRE_WRITE = auto()  # bits of a signal written by a combinational generator
    MEMORY_READ = auto()  # element of a list of signals at a varying index
    MEMORY_WRITE = auto()
    ROM_READ = auto()  # element of a tuple at a varying index


@dataclass(frozen=True)
class Event:
    """One operation of a generator."""

    kind: Kind
    node: ast.AST
    operands: tuple[Interval, ...]
    result: Interval
    # the signal written, the list of signals or the tuple accessed
    target: Any = None
    # bits of the target written: [high, low), None for all
    bits: tuple[int, int] | None = None
    # the same expression with the same values has been reported before
    repeated: bool = False
    # every operand is constant: nothing is built
    constant: bool = False
    # conditions under which a statement runs (tests of the enclosing ifs), outermost first
    depth: int = 0

    @property
    def constant_operand(self) -> bool:
        """Some operand is constant, such as the factor of a multiplication."""
        return any(operand.constant is not None for operand in self.operands)


class Visitor:
    """Receives what `analyse` finds; override what matters."""

    def generator(self, analysis: GeneratorAnalysis) -> None:
        """A generator begins; its events follow."""

    def event(self, event: Event) -> None:
        """An operation."""


def generators(block: Any) -> Iterator[tuple[Any, Any]]:
    """(block, generator) for every generator of the hierarchy."""
    for sub in block.subs:
        if isinstance(sub, _Block):
            yield from generators(sub)
        elif isinstance(sub, _Instantiator):
            yield block, sub


def analyse(block: Any, visitor: Visitor) -> None:
    """Walk an elaborated block and everything below it."""
    for owner, generator in generators(block):
        analysis = GeneratorAnalysis(owner, generator, visitor)
        visitor.generator(analysis)
        analysis.run()


# ---------------------------------------------------------------------------------------------- analysis


def _written(target: ast.expr, value: Interval, declared: Interval) -> Interval:
    """What a sized local can be after a write: ``name[:] = value`` has the value, a write of a part leaves anything."""
    assert isinstance(target, ast.Subscript)
    whole = isinstance(target.slice, ast.Slice) and target.slice.lower is None and target.slice.upper is None
    low, high = max(value.low, declared.low), min(value.high, declared.high)
    return Interval(low, high) if whole and low <= high else declared


@dataclass(frozen=True)
class Declaration:
    """How MyHDL declares a variable in Verilog.  A Python int becomes an ``integer``: 32 bits, signed."""

    width: int
    signed: bool
    # an intbv: its length is known to Python too
    sized: bool = False
    # MyHDL believes that it may be negative, and leaves it as it is in signed expressions
    negative: bool = False


# a number that MyHDL takes for possibly negative, and one that it takes for not negative
INTEGER = Declaration(32, True, negative=True)
NATURAL = Declaration(32, True)
ONE_BIT = Declaration(1, False)


@dataclass
class Local:
    """A local variable: what it is in Verilog, and what it can be now."""

    declaration: Declaration
    interval: Interval
    # length of the intbv it is now, None for a Python number
    bits: int | None = None
    # range of the intbv it was made as; what any write keeps within
    declared: Interval | None = None
    # counts assignments, so that equal names with different contents aren't taken for equal
    version: int = 0
    loop: bool = False


@dataclass(frozen=True)
class Value:
    """An evaluated expression; ``bits`` is the length of an intbv, None for a Python number."""

    interval: Interval
    bits: int | None = None


def declared_range(item: Any) -> Value | None:
    """Range of a signal, an intbv, an enum item or a number; None for anything else."""
    if isinstance(item, _Signal):
        if item._type is bool:
            return Value(BIT)
        if isinstance(item._init, EnumItemType):
            return Value(unsigned_range(item._nrbits), item._nrbits)
        return Value(_bounds(item._min, item._max, item._nrbits), item._nrbits)
    if isinstance(item, intbv):
        if not item._nrbits:
            return None
        return Value(_bounds(item._min, item._max, item._nrbits), item._nrbits)
    if isinstance(item, EnumItemType):
        return Value(unsigned_range(item._nrbits), item._nrbits)
    if isinstance(item, bool | int):
        return Value(Interval(int(item), int(item)))
    return None


def _bounds(low: int | None, high: int | None, width: int) -> Interval:
    if low is None or high is None:
        return unsigned_range(width)
    return Interval(low, high - 1)


def declaration_of(item: Any) -> Declaration:
    """How MyHDL declares a local that is assigned this object."""
    found = declared_range(item)
    if found is None:
        return INTEGER
    if found.bits is None:
        if isinstance(item, int) and not isinstance(item, bool):
            return INTEGER if item < 0 else NATURAL
        return ONE_BIT
    return Declaration(found.bits, found.interval.signed, sized=True, negative=found.interval.signed)


@dataclass
class GeneratorAnalysis:
    """One generator: its syntax tree, its names, and the walk over its statements."""

    block: Any
    generator: Any
    visitor: Visitor
    locals: dict[str, Local] = field(default_factory=dict)

    def __post_init__(self) -> None:
        function = self.generator.funcobj
        self.symbols: dict[str, Any] = dict(function.__globals__)
        if function.__closure__:
            cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
            self.symbols.update({name: cell.cell_contents for name, cell in cells})
        self.tree: Any = self.generator.ast
        self.tree.symdict = self.symbols
        _AttrRefTransformer(self.tree).visit(self.tree)
        self.clocked = not isinstance(self.generator, _AlwaysComb)
        self.name = self.generator.funcobj.__name__
        self._seen: set[Any] = set()
        self._silent = False
        # by id; the node is kept, so that its id isn't used again
        self._dumps: dict[int, tuple[ast.AST, str, tuple[str, ...]]] = {}
        self._depth = 0

    # ---- reporting

    def where(self, node: ast.AST) -> str:
        """``file:line`` of a node."""
        return f"{self.tree.sourcefile}:{self.tree.lineoffset + getattr(node, 'lineno', 0)}"

    def unknown(self, node: ast.AST, why: str) -> UnknownConstruct:
        """The error for a construct without a rule."""
        source = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else type(node).__name__
        return UnknownConstruct(f"{self.where(node)}: {self.name}: {why}: {source[:120]}")

    def _emit(self, kind: Kind, node: ast.AST, operands: tuple[Interval, ...], result: Interval, **more: Any) -> None:
        if self._silent:
            return
        key = (kind, self._key(node))
        event = Event(
            kind,
            node,
            operands,
            result,
            repeated=key in self._seen,
            constant=all(x.constant is not None for x in operands),
            depth=self._depth,
            **more,
        )
        self._seen.add(key)
        self.visitor.event(event)

    def _key(self, node: ast.AST) -> Any:
        if id(node) not in self._dumps:
            names = tuple(sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)}))
            self._dumps[id(node)] = (node, ast.dump(node), names)
        _, text, names = self._dumps[id(node)]
        known = self.locals
        return text, tuple((known[n].interval, known[n].version) for n in names if n in known)

    # ---- statements

    def run(self) -> None:
        """Walk the whole generator."""
        if not isinstance(self.generator, _Always):
            raise self.unknown(self.tree.body[0], "only @always and @always_comb are understood, not @instance")
        for statement in self.tree.body[0].body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Dispatch on the kind of statement."""
        method = getattr(self, f"on_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.unknown(node, "no rule for this statement")
        method(node)

    def on_pass(self, node: ast.Pass) -> None:
        """Nothing."""

    def on_expr(self, node: ast.Expr) -> None:
        """A docstring."""
        if not isinstance(node.value, ast.Constant):
            raise self.unknown(node, "no rule for an expression as a statement")

    def on_if(self, node: ast.If) -> None:
        """Both branches, unless the test is constant; locals are joined."""
        test = self.value(node.test).interval
        if test.low > 0 or test.high < 0:
            self._body(node.body)
        elif test.constant == 0:
            self._body(node.orelse)
        else:
            self._branches([node.body, node.orelse])

    def _branches(self, bodies: list[list[ast.stmt]]) -> None:
        before = dict(self.locals)
        after: list[dict[str, Local]] = []
        self._depth += 1
        for body in bodies:
            self.locals = {name: Local(**vars(local)) for name, local in before.items()}
            self._body(body)
            after.append(self.locals)
        self._depth -= 1
        self.locals = {}
        for name in {name for found in after for name in found}:
            versions = [found[name] for found in after if name in found]
            joined = Local(**vars(versions[0]))
            for other in versions[1:]:
                joined.interval = joined.interval.join(other.interval)
                if joined.declaration != other.declaration:
                    joined.declaration, joined.bits, joined.declared = INTEGER, None, None
                joined.version = max(joined.version, other.version) + 1
            self.locals[name] = joined

    def _body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def on_match(self, node: ast.Match) -> None:
        """``match`` over constants; a body for each case."""
        self.value(node.subject)
        for case in node.cases:
            if case.guard is not None:
                raise self.unknown(node, "no rule for a guard in match")
            if isinstance(case.pattern, ast.MatchValue):
                self.value(case.pattern.value)
            elif not (isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None):
                raise self.unknown(node, "no rule for this pattern of match")
        self._branches([case.body for case in node.cases])

    def on_for(self, node: ast.For) -> None:
        """Unrolled; the bounds must be constant."""
        if node.orelse or not isinstance(node.target, ast.Name):
            raise self.unknown(node, "no rule for this kind of loop")
        name = node.target.id
        for number in self.iterations(node):
            self.locals[name] = Local(INTEGER, Interval(number, number), loop=True)
            self._body(node.body)
        # Python and Verilog leave different values behind
        self.locals.pop(name, None)

    def iterations(self, node: ast.For) -> range:
        """The values of a loop variable."""
        call = node.iter
        function = self.object(call.func) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or function not in (range, downrange):
            raise self.unknown(node, "loops run over range or downrange only")
        bounds = []
        for argument in call.args:
            constant = self.value(argument).interval.constant
            if constant is None:
                raise self.unknown(node, "the bounds of a loop must be constant")
            bounds.append(constant)
        if function is range:
            return range(*bounds)
        start, stop, step = (*bounds, *(0, 1)[len(bounds) - 1 :])
        return range(start - 1, stop - 1, -step)

    def on_assign(self, node: ast.Assign) -> None:
        """A signal, part of a signal, or a local."""
        if len(node.targets) != 1:
            raise self.unknown(node, "no rule for several targets")
        self.assign(node.targets[0], node.value, node)

    def assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
        """``target = value``."""
        if isinstance(target, ast.Name):
            self.assign_local(target, value, node)
            return
        result = self.value(value)
        signal, bits = self.destination(target)
        if isinstance(signal, Local):
            signal.version += 1
            if signal.declared is not None:
                signal.interval = _written(target, result.interval, signal.declared)
            return
        if isinstance(signal, list):
            self._emit(Kind.MEMORY_WRITE, target, (result.interval,), result.interval, target=signal)
            return
        kind = Kind.REGISTER_WRITE if self.clocked else Kind.WIRE_WRITE
        self._emit(kind, target, (result.interval,), result.interval, target=signal, bits=bits)

    def assign_local(self, target: ast.Name, value: ast.expr, node: ast.stmt) -> None:
        """``name = value``: the first assignment declares."""
        result = self.value(value)
        declaration = self.declaration(value)
        old = self.locals.get(target.id)
        if old is not None and old.loop:
            raise self.unknown(node, "a loop variable is assigned inside its loop")
        if old is not None and old.declaration.sized and not declaration.sized:
            raise self.unknown(node, "a sized local is rebound to a number; write name[:] = value")
        if old is not None and not (old.declaration == ONE_BIT and declaration in (INTEGER, NATURAL)):
            declaration = old.declaration
        declared = self._made_as(value)
        interval = declared or result.interval
        version = old.version + 1 if old else 0
        self.locals[target.id] = Local(declaration, interval, result.bits, declared, version)

    def _made_as(self, value: ast.expr) -> Interval | None:
        """The range of ``intbv(…, min, max)`` or ``intbv(…)[n:]``, None for other expressions."""
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            inner = value.value
            if isinstance(inner, ast.Call) and self.object(inner.func) in (intbv, modbv):
                bits = self._quiet(value).bits
                return unsigned_range(bits) if bits else None
        if isinstance(value, ast.Call) and self.object(value.func) in (intbv, modbv):
            made = self._quiet(value)
            return made.interval if made.bits else None
        return None

    def declaration(self, value: ast.expr) -> Declaration:
        """How MyHDL declares a local that is first assigned ``value``: its own inference, step by step."""
        if isinstance(value, ast.Constant):
            return ONE_BIT if value.value in (0, 1) else NATURAL
        if isinstance(value, ast.Compare | ast.BoolOp):
            return ONE_BIT
        if isinstance(value, ast.UnaryOp):
            if isinstance(value.op, ast.Not):
                return ONE_BIT
            return self.declaration(value.operand) if isinstance(value.op, ast.Invert) else INTEGER
        if isinstance(value, ast.Name):
            if value.id in self.locals:
                return self.locals[value.id].declaration
            return declaration_of(self.object(value))
        if isinstance(value, ast.Subscript):
            return self._declaration_of_subscript(value)
        if isinstance(value, ast.Call):
            return self._declaration_of_call(value)
        return INTEGER

    def _declaration_of_subscript(self, value: ast.Subscript) -> Declaration:
        if isinstance(value.slice, ast.Slice):
            inner = value.value
            # MyHDL takes a slice of a signal as wide as the whole signal
            if isinstance(inner, ast.Name) and inner.id not in self.locals:
                return declaration_of(self.object(inner))
            if isinstance(inner, ast.Subscript) and _isListOfSigs(self.object(inner.value)):
                return declaration_of(self.object(inner.value)[0])
            return Declaration(self._quiet(value).bits or 32, False, sized=True)
        base = self.object(value.value)
        if _isListOfSigs(base):
            return declaration_of(base[0])
        return INTEGER if isinstance(base, tuple) else ONE_BIT

    def _declaration_of_call(self, value: ast.Call) -> Declaration:
        if isinstance(value.func, ast.Attribute) and value.func.attr == "signed":
            return Declaration(self.declaration(value.func.value).width, True, sized=True, negative=True)
        function = self.object(value.func)
        if function is bool:
            return ONE_BIT
        if function is concat or function in (intbv, modbv):
            made = self._quiet(value)
            signed = made.interval.signed
            return Declaration(made.bits, signed, sized=True, negative=signed) if made.bits else INTEGER
        return NATURAL if function is len else INTEGER

    def on_augassign(self, node: ast.AugAssign) -> None:
        """``local op= value``."""
        if not isinstance(node.target, ast.Name) or node.target.id not in self.locals:
            raise self.unknown(node, "augmented assignment is for locals only")
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        result = self.value(ast.copy_location(ast.BinOp(read, node.op, node.value), node)).interval
        local = self.locals[node.target.id]
        if local.loop:
            raise self.unknown(node, "a loop variable is assigned inside its loop")
        local.version += 1
        if local.declaration.sized:
            local.interval = local.declared or local.interval.join(result)
        else:
            local.declaration, local.interval = INTEGER, result

    def destination(self, target: ast.expr) -> tuple[Any, tuple[int, int] | None]:
        """What a target writes: a signal, a list of signals (varying index) or a `Local`, and which bits."""
        if isinstance(target, ast.Subscript):
            base: Any = target.value
            if isinstance(base, ast.Name) and base.id in self.locals:
                self._slice_bits(target, self.value(base))
                return self.locals[base.id], None
            if isinstance(base, ast.Attribute) and base.attr == "next":
                signal, _ = self.destination(base)
                if isinstance(signal, list):
                    raise self.unknown(target, "part of a memory word can't be written")
                width = declared_range(signal)
                assert width is not None
                return signal, self._slice_bits(target, width)
        if isinstance(target, ast.Attribute) and target.attr == "next":
            base = target.value
            if isinstance(base, ast.Subscript) and _isListOfSigs(self.object(base.value)):
                members, index = self.object(base.value), self.value(base.slice).interval
                if index.constant is None:
                    return members, None
                if not 0 <= index.low < len(members):
                    raise self.unknown(target, f"index {index.low} of a list of {len(members)}")
                return members[index.low], None
            signal = self.object(base)
            if isinstance(signal, _Signal):
                return signal, None
        raise self.unknown(target, "no rule for this target")

    def _slice_bits(self, node: ast.Subscript, vector: Value) -> tuple[int, int] | None:
        """Constant bounds [high, low) of the bits a subscript takes, None if they vary."""
        if isinstance(node.slice, ast.Slice):
            high, low = node.slice.lower, node.slice.upper
            top = self.value(high).interval.constant if high is not None else vector.bits or 1
            bottom = self.value(low).interval.constant if low is not None else 0
            return None if top is None or bottom is None else (top, bottom)
        index = self.value(node.slice).interval.constant
        return None if index is None else (index + 1, index)

    # ---- expressions

    def object(self, node: ast.expr) -> Any:
        """The Python object that a name or attribute stands for, None if it is none."""
        if isinstance(node, ast.Name):
            if node.id in self.symbols:
                return self.symbols[node.id]
            return getattr(builtins, node.id, None)
        if isinstance(node, ast.Attribute):
            return getattr(self.object(node.value), node.attr, None)
        if isinstance(node, ast.Subscript):
            members = self.object(node.value)
            if _isListOfSigs(members) and not isinstance(node.slice, ast.Slice):
                return members[0]
        return None

    def value(self, node: ast.expr) -> Value:
        """Evaluate; reports the operations inside."""
        method = getattr(self, f"of_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.unknown(node, "no rule for this expression")
        result = method(node)
        assert isinstance(result, Value)
        return result

    def of_constant(self, node: ast.Constant) -> Value:
        """Numbers; strings of 0 and 1 in concat."""
        if isinstance(node.value, int):
            return Value(Interval(int(node.value), int(node.value)))
        if isinstance(node.value, str) and set(node.value) <= {"0", "1"} and node.value:
            number = int(node.value, 2)
            return Value(Interval(number, number), len(node.value))
        raise self.unknown(node, "no rule for this constant")

    def of_name(self, node: ast.Name) -> Value:
        """Locals, signals, constants."""
        if node.id in self.locals:
            local = self.locals[node.id]
            return Value(local.interval, local.bits)
        found = declared_range(self.object(node))
        if found is None:
            raise self.unknown(node, "neither a signal nor a number nor a local assigned before")
        return found

    def of_attribute(self, node: ast.Attribute) -> Value:
        """``x.val``, ``x.max``, enum items."""
        base = self.object(node.value)
        if node.attr in ("val", "next"):
            return self.value(node.value)
        if node.attr in ("min", "max") and isinstance(base, _Signal | intbv):
            number = int(getattr(base, node.attr))
            return Value(Interval(number, number))
        if isinstance(base, EnumType):
            found = declared_range(getattr(base, node.attr))
            assert found is not None
            return found
        raise self.unknown(node, "no rule for this attribute")

    def of_subscript(self, node: ast.Subscript) -> Value:
        """A list element, a tuple element, a bit or a slice."""
        base = self.object(node.value)
        if isinstance(base, tuple) and not isinstance(node.slice, ast.Slice):
            return self._rom(node, base)
        if _isListOfSigs(base) and not isinstance(node.slice, ast.Slice):
            return self._element(node, base)
        vector = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            return self._slice(node, vector)
        index = self.value(node.slice).interval
        if index.constant is None:
            self._emit(Kind.SELECT, node, (vector.interval, index), BIT)
        elif vector.interval.constant is not None and index.low >= 0:
            bit = vector.interval.low >> index.low & 1
            return Value(Interval(bit, bit))
        return Value(BIT)

    def _rom(self, node: ast.Subscript, base: tuple[Any, ...]) -> Value:
        if not base or not all(isinstance(item, int) for item in base):
            raise self.unknown(node, "a table must be a tuple of ints")
        index = self.value(node.slice).interval
        if index.constant is not None and 0 <= index.low < len(base):
            return Value(Interval(base[index.low], base[index.low]))
        result = _hull([int(item) for item in base])
        self._emit(Kind.ROM_READ, node, (index,), result, target=base)
        return Value(result)

    def _element(self, node: ast.Subscript, base: list[Any]) -> Value:
        index = self.value(node.slice).interval
        if index.constant is not None and not 0 <= index.low < len(base):
            raise self.unknown(node, f"index {index.low} of a list of {len(base)}")
        found = declared_range(base[index.low if index.constant is not None else 0])
        assert found is not None
        if index.constant is None:
            self._emit(Kind.MEMORY_READ, node, (index,), found.interval, target=base)
        return found

    def _slice(self, node: ast.Subscript, vector: Value) -> Value:
        assert isinstance(node.slice, ast.Slice)
        high, low = node.slice.lower, node.slice.upper
        bottom = self.value(low).interval if low is not None else Interval(0, 0)
        if high is None:
            return Value(_right(vector.interval, bottom))
        top = self.value(high).interval
        width = self.slice_width(node)
        if width is None or width < 1:
            raise self.unknown(node, "the bounds of a slice must differ by a constant > 0")
        if top.constant is None:
            self._emit(Kind.SELECT, node, (vector.interval, bottom), unsigned_range(width))
        elif vector.interval.constant is not None:
            number = (vector.interval.low >> bottom.low) & ((1 << width) - 1)
            return Value(Interval(number, number), width)
        return Value(unsigned_range(width), width)

    def slice_width(self, node: ast.Subscript) -> int | None:
        """Bits of a slice with both bounds, None if they don't differ by a constant."""
        assert isinstance(node.slice, ast.Slice)

        def constant(part: ast.expr) -> int | None:
            try:
                return self._quiet(part).interval.constant
            except UnknownConstruct:
                return None

        high = LinearForm.of(node.slice.lower, constant) if node.slice.lower is not None else LinearForm()
        low = LinearForm.of(node.slice.upper, constant) if node.slice.upper is not None else LinearForm()
        width = high.plus(low, -1)
        return None if width.terms else width.constant

    def _quiet(self, node: ast.expr) -> Value:
        """Evaluate without reporting."""
        before, self._silent = self._silent, True
        try:
            return self.value(node)
        finally:
            self._silent = before

    def of_call(self, node: ast.Call) -> Value:
        """``x.signed()``, concat, intbv, bool, int, len."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "signed" and not node.args:
            operand = self.value(node.func.value)
            bits = operand.bits or operand.interval.width
            return Value(operand.interval if operand.interval.signed else signed_range(bits), bits)
        function = self.object(node.func)
        if function is concat:
            return Value(unsigned_range(self._concat_width(node)), self._concat_width(node))
        if function in (intbv, modbv):
            return self._intbv(node)
        if function is len:
            return self._length(node)
        if function is bool and len(node.args) == 1:
            operand = self.value(node.args[0])
            self._emit(Kind.LOGIC, node, (operand.interval,), BIT)
            return Value(BIT)
        if function is int and len(node.args) == 1:
            return Value(self.value(node.args[0]).interval)
        raise self.unknown(node, "no rule for this call")

    def _concat_width(self, node: ast.Call) -> int:
        width = 0
        for argument in node.args:
            value = self._quiet(argument)
            one_bit = value.interval.low >= 0 and value.interval.high <= 1 and not self._is_int(argument)
            if value.bits is None and not one_bit:
                raise self.unknown(argument, "an operand of concat needs a length")
            width += value.bits or 1
            self.value(argument)
        return width

    def _is_int(self, node: ast.expr) -> bool:
        """A plain number, which has no length."""
        if isinstance(node, ast.Constant):
            return isinstance(node.value, int) and not isinstance(node.value, bool)
        item = self.object(node)
        return isinstance(item, int) and not isinstance(item, bool)

    def _intbv(self, node: ast.Call) -> Value:
        """``intbv(value, min=…, max=…)``; without a range it has only its value."""
        start = self.value(node.args[0]) if node.args else Value(Interval(0, 0))
        named = {k.arg: self.value(k.value).interval.constant for k in node.keywords}
        for name, argument in zip(("min", "max"), node.args[1:], strict=False):
            named[name] = self.value(argument).interval.constant
        if named.get("max") is None:
            return Value(start.interval)
        low, high = named.get("min") or 0, named["max"]
        assert high is not None
        interval = Interval(low, high - 1)
        return Value(interval, interval.width)

    def _length(self, node: ast.Call) -> Value:
        item = self.object(node.args[0])
        if item is None:
            raise self.unknown(node, "no rule for the length of this")
        return Value(Interval(len(item), len(item)))

    def of_unaryop(self, node: ast.UnaryOp) -> Value:
        """``not``, ``-``, ``~``, ``+``."""
        operand = self.value(node.operand)
        inner = operand.interval
        if isinstance(node.op, ast.Not):
            result = BIT if inner.constant is None else Interval(int(not inner.low), int(not inner.low))
            self._emit(Kind.LOGIC, node, (inner,), result)
            return Value(result)
        if isinstance(node.op, ast.USub):
            result = Interval(-inner.high, -inner.low)
            if inner.constant is None:
                self._emit(Kind.ADD, node, (Interval(0, 0), inner), result)
            return Value(result)
        if isinstance(node.op, ast.Invert):
            if operand.bits is not None and not inner.signed:
                result = unsigned_range(operand.bits)
            else:
                result = Interval(-inner.high - 1, -inner.low - 1)
            self._emit(Kind.LOGIC, node, (inner,), result)
            # the result of ~ has no length in MyHDL
            return Value(result)
        return Value(inner)

    def of_boolop(self, node: ast.BoolOp) -> Value:
        """``and``, ``or``."""
        parts = [self.value(part).interval for part in node.values]
        stop = isinstance(node.op, ast.Or)
        truths = [None if p.low <= 0 <= p.high and p.constant is None else bool(p.low or p.high) for p in parts]
        if stop in truths:
            return Value(Interval(int(stop), int(stop)))
        if all(truth is not None for truth in truths):
            return Value(Interval(int(not stop), int(not stop)))
        self._emit(Kind.LOGIC, node, tuple(parts), BIT)
        return Value(BIT)

    def of_compare(self, node: ast.Compare) -> Value:
        """One comparison, folded if the intervals decide it between constants."""
        if len(node.ops) != 1:
            raise self.unknown(node, "no rule for a chain of comparisons")
        left, right = self.value(node.left).interval, self.value(node.comparators[0]).interval
        if left.constant is not None and right.constant is not None:
            truth = int(_COMPARISONS[type(node.ops[0])](left.low, right.low))
            return Value(Interval(truth, truth))
        if type(node.ops[0]) not in _COMPARISONS:
            raise self.unknown(node, "no rule for this comparison")
        self._emit(Kind.COMPARE, node, (left, right), BIT)
        return Value(BIT)

    def of_ifexp(self, node: ast.IfExp) -> Value:
        """``x if c else y``."""
        test = self.value(node.test).interval
        body, orelse = self.value(node.body), self.value(node.orelse)
        if test.constant is not None:
            return body if test.constant else orelse
        result = body.interval.join(orelse.interval)
        self._emit(Kind.MUX, node, (test, body.interval, orelse.interval), result)
        return Value(result)

    def of_binop(self, node: ast.BinOp) -> Value:
        """Arithmetic and bitwise operators."""
        left, right = self.value(node.left).interval, self.value(node.right).interval
        try:
            result = combine(node.op, left, right)
        except (KeyError, ZeroDivisionError) as error:
            raise self.unknown(node, f"no rule for this operation ({error})") from error
        kind = _KINDS.get(type(node.op))
        if kind is not None:
            self._emit(kind, node, (left, right), result)
        return Value(result)


_KINDS: Mapping[type[ast.operator], Kind] = {
    ast.Add: Kind.ADD,
    ast.Sub: Kind.ADD,
    ast.Mult: Kind.MULTIPLY,
    ast.FloorDiv: Kind.DIVIDE,
    ast.Mod: Kind.DIVIDE,
    ast.LShift: Kind.SHIFT,
    ast.RShift: Kind.SHIFT,
    ast.BitAnd: Kind.LOGIC,
    ast.BitOr: Kind.LOGIC,
    ast.BitXor: Kind.LOGIC,
}

_COMPARISONS: Mapping[type[ast.cmpop], Any] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
