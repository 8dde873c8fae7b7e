"""Values of the expressions of one generator, and the events that report them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any, NamedTuple

from myhdl import EnumType, concat, intbv, modbv
from myhdl._always_comb import _AlwaysComb
from myhdl._Signal import _isListOfSigs, _Signal

from hdl.analysis.ranges import (
    BIT,
    Interval,
    Local,
    UnknownConstruct,
    Value,
    combine,
    declared_range,
    hull,
    shift_right,
    signed_range,
    unsigned_range,
)
from hdl.elaboration.patches import LinearForm, resolved_tree

# ------------------------------------------------------------------------------------------------ events


class Kind(IntEnum):
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


# each writes anew: none is `repeated`
WRITES = frozenset((Kind.REGISTER_WRITE, Kind.WIRE_WRITE, Kind.MEMORY_WRITE))


class Event(NamedTuple):
    """One operation of a generator."""

    kind: Kind
    node: ast.AST
    operands: tuple[Interval, ...]
    result: Interval
    # the signal written, the list of signals or the tuple accessed
    target: Any = None
    # bits of the target written: [high, low), None for all
    bits: tuple[int, int] | None = None
    # the same expression with the same values has been reported before, of what computes
    repeated: bool = False
    # conditions under which a statement runs (tests of the enclosing ifs), outermost first
    depth: int = 0

    @property
    def constant(self) -> bool:
        """Every operand is constant: nothing is built."""
        return all(operand.constant is not None for operand in self.operands)

    @property
    def constant_operand(self) -> bool:
        """Some operand is constant, such as the factor of a multiplication."""
        return any(operand.constant is not None for operand in self.operands)


def augmented(node: ast.AugAssign) -> ast.BinOp:
    """What ``name op= value`` assigns; the same node each time."""
    found: ast.BinOp | None = getattr(node, "_assigned", None)
    if found is None:
        assert isinstance(node.target, ast.Name)
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        found = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        node._assigned = found  # type: ignore[attr-defined]
    return found


def _identity(node: ast.AST) -> tuple[str, tuple[str, ...]]:
    """The text of a node, which equal expressions have in common, and the names in it; worked out once."""
    found: tuple[str, tuple[str, ...]] | None = getattr(node, "_identity", None)
    if found is None:
        names = tuple(sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)}))
        found = ast.dump(node), names
        node._identity = found  # type: ignore[attr-defined]
    return found


# what is worth a look whether it is a number
_NUMBERS = frozenset((ast.Constant, ast.BinOp, ast.UnaryOp))
# what an expression of numbers alone is made of, beside names and numbers
_FOLDED = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.expr_context, ast.operator, ast.USub)


# values of one expression that are remembered
KEPT_FOLDS = 1 << 14


class Folds:
    """Values of an expression of names and numbers by those of its names; shared by all instances of a generator."""

    __slots__ = ("names", "values")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.values: dict[tuple[int, ...], Value] = {}


def folds(node: ast.expr) -> Folds | None:
    """Of an expression that is a number if its names are; worked out once."""
    try:
        found: Folds | None = node._folds  # type: ignore[attr-defined]
    except AttributeError:
        parts = list(ast.walk(node))
        numbers = all(
            isinstance(part, _FOLDED) and (not isinstance(part, ast.Constant) or isinstance(part.value, int))
            for part in parts
        )
        names = tuple(dict.fromkeys(part.id for part in parts if isinstance(part, ast.Name)))
        found = node._folds = Folds(names) if numbers else None  # type: ignore[attr-defined]
    return found


class Visitor:
    """Receives what `analyse` finds; override what matters."""

    # the events wanted, None for all; of others, and of operations on numbers, it is told only that there was one
    kinds: frozenset[Kind] | None = None

    def generator(self, analysis: Any) -> None:
        """A generator begins: a `hdl.analysis.intervals.GeneratorAnalysis`; its events follow."""

    def event(self, event: Event) -> None:
        """An operation."""

    def unwanted(self) -> None:
        """An operation of another kind."""


@dataclass
class ExpressionAnalysis:
    """One generator: its syntax tree, its names, and the values of its expressions."""

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
        # shared by all generators of the function: never changed
        self.tree: Any = resolved_tree(function, self.symbols).tree
        self.clocked = not isinstance(self.generator, _AlwaysComb)
        self.name = self.generator.funcobj.__name__
        self._seen: set[Any] = set()
        self._silent = False
        # ranges of lists of signals, by id; the symbols keep the lists alive
        self._elements: dict[int, Value] = {}
        self._signal_lists: dict[int, bool] = {}
        # of names that aren't locals
        self._declared: dict[str, Value] = {}
        self._rules = _RULES.setdefault(type(self), {})
        # numbers that names stand for, None for other objects
        self._numbers: dict[str, int | None] = {}
        self._folding = self.visitor.kinds is not None
        self._depth = 0

    def rule(self, prefix: str, node: ast.AST) -> Callable[[Any, Any], Any] | None:
        """The method for a kind of node, looked up once for each class."""
        key = prefix, type(node)
        try:
            return self._rules[key]
        except KeyError:
            found = getattr(type(self), f"{prefix}_{type(node).__name__.lower()}", None)
            self._rules[key] = found
            return found

    def is_signal_list(self, members: Any) -> bool:
        """Whether an object of this generator's symbols is a list of signals, a memory for instance."""
        if not isinstance(members, list):
            return False
        known = self._signal_lists.get(id(members))
        if known is None:
            known = self._signal_lists[id(members)] = bool(_isListOfSigs(members))
        return known

    # ---- reporting

    def where(self, node: ast.AST) -> str:
        """``file:line`` of a node."""
        return f"{self.tree.sourcefile}:{self.tree.lineoffset + getattr(node, 'lineno', 0)}"

    def unknown(self, node: ast.AST, why: str) -> UnknownConstruct:
        """The error for a construct without a rule."""
        source = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else type(node).__name__
        return UnknownConstruct(f"{self.where(node)}: {self.name}: {why}: {source[:120]}")

    def _emit(
        self,
        kind: Kind,
        node: ast.AST,
        operands: tuple[Interval, ...],
        result: Interval,
        target: Any = None,
        bits: tuple[int, int] | None = None,
    ) -> None:
        if self._silent:
            return
        wanted = self.visitor.kinds
        if wanted is not None and kind not in wanted:
            self.visitor.unwanted()
            return
        repeated = False
        if kind not in WRITES:
            key = (kind, self._key(node))
            repeated = key in self._seen
            self._seen.add(key)
        self.visitor.event(Event(kind, node, operands, result, target, bits, repeated, self._depth))

    def _key(self, node: ast.AST) -> Any:
        text, names = _identity(node)
        known = self.locals
        return text, tuple((known[n].interval, known[n].version) for n in names if n in known)

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
            if self.is_signal_list(members) and not isinstance(node.slice, ast.Slice):
                return members[0]
        return None

    def value(self, node: ast.expr) -> Value:
        """Evaluate; reports the operations inside."""
        if self._folding and type(node) in _NUMBERS:
            known = self.folded(node)
            if known is not None:
                if not self._silent and type(node) is not ast.Constant:
                    self.visitor.unwanted()
                return known
        method = self.rule("of", node)
        if method is None:
            raise self.unknown(node, "no rule for this expression")
        result: Value = method(self, node)
        return result

    def folded(self, node: ast.expr) -> Value | None:
        """The value of an expression of numbers, and of names that stand for numbers; None for any other."""
        known = folds(node)
        if known is None:
            return None
        found = []
        for name in known.names:
            local = self.locals.get(name)
            if local is not None:
                low, high = local.interval
                if low != high or local.bits is not None:
                    return None
                found.append(low)
            else:
                number = self.number(name)
                if number is None:
                    return None
                found.append(number)
        key = tuple(found)
        value = known.values.get(key)
        if value is None:
            if len(known.values) >= KEPT_FOLDS:
                known.values.clear()
            value = known.values[key] = self._folded(node)
        return value

    def number(self, name: str) -> int | None:
        """The number that a name stands for that is no local."""
        try:
            return self._numbers[name]
        except KeyError:
            found = self.symbols[name] if name in self.symbols else getattr(builtins, name, None)
            number = self._numbers[name] = int(found) if isinstance(found, int) else None
            return number

    def _folded(self, node: ast.expr) -> Value:
        """Worked out, as the rules for values do."""
        folding, self._folding = self._folding, False
        try:
            return self.quiet(node)
        finally:
            self._folding = folding

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
        local = self.locals.get(node.id)
        if local is not None:
            return Value(local.interval, local.bits)
        known = self._declared.get(node.id)
        if known is not None:
            return known
        found = declared_range(self.object(node))
        if found is None:
            raise self.unknown(node, "neither a signal nor a number nor a local assigned before")
        self._declared[node.id] = found
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
        if self.is_signal_list(base) and not isinstance(node.slice, ast.Slice):
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
        result = hull([int(item) for item in base])
        self._emit(Kind.ROM_READ, node, (index,), result, target=base)
        return Value(result)

    def _element(self, node: ast.Subscript, base: list[Any]) -> Value:
        index = self.value(node.slice).interval
        if index.constant is not None and not 0 <= index.low < len(base):
            raise self.unknown(node, f"index {index.low} of a list of {len(base)}")
        found = declared_range(base[index.low]) if index.constant is not None else self._any_element(base)
        assert found is not None
        if index.constant is None:
            self._emit(Kind.MEMORY_READ, node, (index,), found.interval, target=base)
        return found

    def _any_element(self, base: list[Any]) -> Value:
        """The range of all elements: MyHDL wants one width in a list, but not one range."""
        if id(base) not in self._elements:
            found = [value for member in base if (value := declared_range(member)) is not None]
            low = min(value.interval.low for value in found)
            high = max(value.interval.high for value in found)
            self._elements[id(base)] = Value(Interval(low, high), found[0].bits)
        return self._elements[id(base)]

    def _slice(self, node: ast.Subscript, vector: Value) -> Value:
        assert isinstance(node.slice, ast.Slice)
        high, low = node.slice.lower, node.slice.upper
        bottom = self.value(low).interval if low is not None else Interval(0, 0)
        if high is None:
            return Value(shift_right(vector.interval, bottom))
        top = self.value(high).interval
        constant = top.constant is not None and bottom.constant is not None
        width = top.low - bottom.low if constant else self.slice_width(node)
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
                return self.quiet(part).interval.constant
            except UnknownConstruct:
                return None

        high = LinearForm.of(node.slice.lower, constant) if node.slice.lower is not None else LinearForm()
        low = LinearForm.of(node.slice.upper, constant) if node.slice.upper is not None else LinearForm()
        width = high.plus(low, -1)
        return None if width.terms else width.constant

    def quiet(self, node: ast.expr) -> Value:
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
            value = self.quiet(argument)
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


# class of analysis -> (prefix, kind of node) -> its method
_RULES: dict[type, dict[tuple[str, type], Callable[[Any, Any], Any] | None]] = {}

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
