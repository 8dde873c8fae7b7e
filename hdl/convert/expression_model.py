"""What MyHDL 0.11.52 writes for an expression, and whether Verilog computes the same from it.

`Model.emitted` follows MyHDL's converter step by step (which operands it wraps in ``$signed({1'b0, …})``, where
it forgets to, how wide a constant is) and yields a tree of Verilog operands with their self-determined widths
and signs.  `Model.check` then evaluates that tree by the rules of Verilog (IEEE 1364-2005, 5.4 and 5.5):

* An expression is as wide as its widest context-determined operand and its target, and signed only if all
  those operands are.  Operands are extended to that width, by the sign of the *expression*.
* ``+ - * << & | ^ ~`` are right modulo 2**width whatever the operands' upper bits, so they are right as soon
  as every leaf is extended rightly: a negative leaf must not be extended with zeros.
* ``>> / %``, comparisons, tests and indices need the exact value, so it must fit the width and sign in which
  Verilog evaluates it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from myhdl import concat, intbv, modbv
from myhdl._Signal import _Signal

from hdl.analysis.intervals import GeneratorAnalysis, Interval, Value, declared_range

Report = Callable[[ast.AST, str], None]
# MyHDL writes numbers below as integers, others with a size and without a sign
SIGNED_NUMBERS = 2**30


class Rule(Enum):
    """How Verilog evaluates a node from its context-determined operands."""

    LEAF = auto()
    MODULAR = auto()
    EXACT = auto()  # operands must be exact, and not negative: / and %
    SHIFT_RIGHT = auto()


@dataclass(frozen=True)
class Emitted:
    """A Verilog expression: self-determined width and sign, and the exact value Python gives it."""

    node: ast.expr
    value: Interval
    width: int
    signed: bool
    rule: Rule = Rule.LEAF
    operands: tuple[Emitted, ...] = ()
    # right only in exactly this width (inversion of an unsigned vector)
    only_width: int | None = None


def _counting_names(node: ast.expr) -> tuple[str, ...] | None:
    """The names in an expression of ``+ - *`` over names and integers that MyHDL takes for signed; None for any other.
    Worked out once for a node."""
    try:
        found: tuple[str, ...] | None = node._counting_names  # type: ignore[attr-defined]
    except AttributeError:
        parts = list(ast.walk(node))
        counting = all(
            isinstance(part, _COUNTING)
            or (isinstance(part, ast.Constant) and type(part.value) is int and abs(part.value) < SIGNED_NUMBERS)
            for part in parts
        )
        names = tuple(dict.fromkeys(part.id for part in parts if isinstance(part, ast.Name)))
        found = node._counting_names = names if counting else None  # type: ignore[attr-defined]
    return found


_COUNTING = (ast.Name, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.expr_context)


class Model:
    """The converter's state for one generator; ``report`` gets what would differ."""

    def __init__(self, analysis: GeneratorAnalysis, report: Report) -> None:
        self.analysis, self._report = analysis, report
        # MyHDL's `context == SIGNED`
        self._signed_context = False

    # ---- whole expressions

    def assigned(self, node: ast.expr, width: int) -> Emitted:
        """The right side of an assignment to ``width`` bits, checked."""
        self._signed_context = False
        right = self.emitted(node, bare=True, is_rhs=True)
        self.check(right, max(width, right.width), right.signed)
        return right

    def truth(self, node: ast.expr, bare: bool = True) -> None:
        """A test: must be zero exactly when Python's value is."""
        self.exact(self.emitted(node, bare=bare), "a test")

    def index(self, node: ast.expr) -> None:
        """An index stands alone between brackets, and Python's negative indices don't exist in Verilog."""
        if self._counted(node):
            return
        emitted = self.emitted(node, bare=True)
        if emitted.value.low < 0:
            self._report(node, f"index may be negative ({emitted.value.low}): Python counts it from the end")
        self.exact(emitted, "an index")

    def _counted(self, node: ast.expr) -> bool:
        """Sums and products of loop variables and numbers, as most indices are: all 32 bits and signed in Verilog, so
        that only what comes out must fit."""
        names = _counting_names(node)
        if names is None:
            return False
        for name in names:
            local = self.analysis.locals.get(name)
            number = self.analysis.number(name) if local is None else 0
            if number is None or abs(number) >= SIGNED_NUMBERS or (local is not None and not local.loop):
                return False
        constant = self.value(node).interval.constant
        return constant is not None and 0 <= constant < SIGNED_NUMBERS

    def exact(self, emitted: Emitted, what: str) -> None:
        """A self-determined operand whose exact value matters."""
        self.check(emitted, emitted.width, emitted.signed)
        self._must_fit(emitted, emitted.width, emitted.signed, what)

    def _must_fit(self, emitted: Emitted, width: int, signed: bool, what: str) -> None:
        if not emitted.value.fits(width, signed):
            kind = "signed" if signed else "unsigned"
            self._report(
                emitted.node,
                f"{what} needs {emitted.value.low} … {emitted.value.high}, "
                f"but Verilog evaluates it in {width} {kind} bits; put it into a sized intbv first",
            )

    def check(self, emitted: Emitted, width: int, signed: bool) -> None:
        """Evaluate in a context of ``width`` bits and this sign; report what isn't Python's value."""
        if emitted.only_width not in (None, width):
            self._report(
                emitted.node,
                f"~ of {emitted.only_width} bits is evaluated in {width} bits; put it into a sized intbv first",
            )
        if emitted.rule is Rule.LEAF:
            if emitted.value.signed and not signed and emitted.width < width:
                self._report(
                    emitted.node,
                    f"a negative operand of {emitted.width} bits is extended to {width} bits with zeros: an unsigned "
                    "operand (a constant >= 2**30 is one) makes the whole Verilog expression unsigned",
                )
            return
        if emitted.rule is Rule.SHIFT_RIGHT:
            self._must_fit(emitted.operands[0], width, signed, "the operand of >>")
        if emitted.rule is Rule.EXACT:
            for operand in emitted.operands:
                if operand.value.signed:
                    self._report(emitted.node, "// or % of a negative operand: Verilog truncates, Python floors")
                self._must_fit(operand, width, signed, "the operand of // or %")
        for operand in emitted.operands:
            self.check(operand, width, signed)

    # ---- MyHDL's annotation `node.signed`

    def annotated(self, node: ast.expr, is_rhs: bool = False) -> bool:
        """MyHDL's belief whether an expression is signed."""
        if isinstance(node, ast.BinOp):
            either = self.annotated(node.left) or self.annotated(node.right)
            return either or (isinstance(node.op, ast.Sub) and not is_rhs)
        if isinstance(node, ast.UnaryOp):
            negated = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
            return negated or self.annotated(node.operand)
        if isinstance(node, ast.Compare):
            return self.annotated(node.left) or self.annotated(node.comparators[0])
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Attribute) and node.func.attr == "signed"
        if isinstance(node, ast.Name):
            if node.id in self.analysis.locals:
                return self.analysis.locals[node.id].declaration.negative
            found = declared_range(self.analysis.object(node))
            return found is not None and found.interval.signed
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            base = self.analysis.object(node.value)
            if isinstance(base, tuple):
                return True
            if self.analysis.is_signal_list(base):
                found = declared_range(base[0])
                return found is not None and found.interval.signed
        return False

    # ---- MyHDL's text

    def value(self, node: ast.expr) -> Value:
        """Python's value."""
        return self.analysis.quiet(node)

    def emitted(self, node: ast.expr, *, bare: bool = False, is_rhs: bool = False) -> Emitted:
        """The Verilog of an expression.  ``bare``: nothing stands beside it, so it needs no parentheses."""
        if isinstance(node, ast.IfExp):
            return self._conditional(node, bare)
        if isinstance(node, ast.BinOp):
            return self._binary(node, is_rhs)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self.truth(part, bare=False)
            return self._bit(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Call):
            return self._call(node, bare)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        return self._plain(node)

    def _bit(self, node: ast.expr) -> Emitted:
        return Emitted(node, self.value(node).interval, 1, False)

    def _widened(self, inner: Emitted) -> Emitted:
        """``$signed({1'b0, x})``."""
        if inner.value.signed:
            self._report(inner.node, "MyHDL takes this for unsigned, but it may be negative")
        return Emitted(inner.node, inner.value, inner.width + 1, True)

    def number(self, node: ast.expr, number: int) -> Emitted:
        """A constant: 32 bits and signed below 2**30, sized and unsigned from there on."""
        size = abs(number)
        signed = size < SIGNED_NUMBERS
        width = 32 if signed else math.ceil(math.log(size + 1, 2)) + 1
        leaf = Emitted(node, Interval(size, size), width, signed)
        if number >= 0:
            return leaf
        return Emitted(node, Interval(number, number), width, signed, Rule.MODULAR, (leaf,))

    def _plain(self, node: ast.expr) -> Emitted:
        """Constants, ``x.val``, ``x.max``, enum items."""
        value = self.value(node)
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                return self._bit(node)
            if isinstance(node.value, str):
                return Emitted(node, value.interval, len(node.value), False)
            return self.number(node, value.interval.low)
        assert isinstance(node, ast.Attribute)
        if node.attr in ("val", "next"):
            return self.emitted(node.value)
        if node.attr in ("min", "max"):
            if abs(value.interval.low) >= 2**31:
                self._report(node, f"{ast.unparse(node)} is written without a size, but is beyond 32 bits")
            return Emitted(node, value.interval, 32, True)
        return Emitted(node, value.interval, value.bits or 1, False)

    def _name(self, node: ast.Name) -> Emitted:
        value = self.value(node)
        if node.id in self.analysis.locals:
            declaration = self.analysis.locals[node.id].declaration
            leaf = Emitted(node, value.interval, declaration.width, declaration.signed)
        else:
            item = self.analysis.object(node)
            if isinstance(item, bool):
                return self._bit(node)
            if not isinstance(item, _Signal) and isinstance(item, int):
                return self.number(node, item)
            leaf = Emitted(node, value.interval, value.bits or 1, value.interval.signed)
            if not isinstance(item, _Signal):
                return leaf
        return self._widened(leaf) if self._signed_context and not self.annotated(node) else leaf

    def _binary(self, node: ast.BinOp, is_rhs: bool) -> Emitted:
        signed = self.annotated(node, is_rhs)
        self._signed_context = signed
        left = self.emitted(node.left)
        right = self.emitted(node.right)
        self._signed_context = False
        joined = self.join(node, node.op, left, right)
        if isinstance(node.op, ast.RShift) and signed:
            self.check(joined, joined.width, joined.signed)
            return self._cast(joined)
        return joined

    def join(self, node: ast.expr, op: ast.operator, left: Emitted, right: Emitted) -> Emitted:
        """``left op right``."""
        value = self.value(node).interval
        width, signed = max(left.width, right.width), left.signed and right.signed
        if isinstance(op, ast.LShift | ast.RShift):
            if right.value.signed:
                self._report(node, "the count of a shift may be negative")
            self.exact(right, "the count of a shift")
            rule = Rule.MODULAR if isinstance(op, ast.LShift) else Rule.SHIFT_RIGHT
            return Emitted(node, value, left.width, left.signed, rule, (left,))
        if isinstance(op, ast.Pow):
            if not value.fits(32, True):
                self._report(node, "a power beyond 32 bits: compute it outside of the generator")
            return Emitted(node, value, 32, True)
        rule = Rule.EXACT if isinstance(op, ast.FloorDiv | ast.Mod) else Rule.MODULAR
        return Emitted(node, value, width, signed, rule, (left, right))

    def _cast(self, inner: Emitted) -> Emitted:
        """``$signed(x)``: the operand stands alone, and its bits are read as a signed number."""
        if not inner.value.fits(inner.width, True):
            self._report(inner.node, f"{inner.width} bits read as signed don't hold {inner.value.high}")
        return Emitted(inner.node, inner.value, inner.width, True)

    def _unary(self, node: ast.UnaryOp) -> Emitted:
        if isinstance(node.op, ast.Not):
            self.truth(node.operand, bare=False)
            return self._bit(node)
        operand = self.emitted(node.operand)
        value = self.value(node)
        only = None
        if isinstance(node.op, ast.Invert):
            inner = self.value(node.operand)
            if inner.bits is not None and not inner.interval.signed:
                only = inner.bits
        return Emitted(node, value.interval, operand.width, operand.signed, Rule.MODULAR, (operand,), only)

    def _compare(self, node: ast.Compare) -> Emitted:
        self._signed_context = self.annotated(node)
        left = self.emitted(node.left)
        right = self.emitted(node.comparators[0])
        self._signed_context = False
        width, signed = max(left.width, right.width), left.signed and right.signed
        for side in (left, right):
            self.check(side, width, signed)
            self._must_fit(side, width, signed, "a comparison")
        return self._bit(node)

    def _conditional(self, node: ast.IfExp, bare: bool) -> Emitted:
        if not bare:
            self._report(node, "a conditional expression inside another one is written without parentheses")
        self.truth(node.test, bare=False)
        body = self.emitted(node.body, bare=True)
        orelse = self.emitted(node.orelse, bare=True)
        width, signed = max(body.width, orelse.width), body.signed and orelse.signed
        return Emitted(node, self.value(node).interval, width, signed, Rule.MODULAR, (body, orelse))

    def _call(self, node: ast.Call, bare: bool) -> Emitted:
        self._signed_context = False
        if isinstance(node.func, ast.Attribute) and node.func.attr == "signed":
            return self._signed_call(node, node.func.value)
        function = self.analysis.object(node.func)
        if function is concat:
            return self._concat(node)
        if function in (intbv, modbv) and node.args:
            return self.emitted(node.args[0], bare=bare)
        if function is bool:
            self.truth(node.args[0], bare=False)
            return self._bit(node)
        if function is int:
            return self.emitted(node.args[0], bare=bare)
        # len
        return self.number(node, self.value(node).interval.low)

    def _signed_call(self, node: ast.Call, operand: ast.expr) -> Emitted:
        inner = self.emitted(operand)
        bits = self.value(operand).bits
        if bits != inner.width:
            self._report(node, f"signed() of {bits} bits, which are {inner.width} bits in Verilog")
        value = self.value(node).interval
        if self.annotated(operand) and not inner.signed:
            self._report(node, "MyHDL takes the operand of signed() for signed already, but Verilog doesn't")
        return Emitted(node, value, inner.width, True)

    def _concat(self, node: ast.Call) -> Emitted:
        width = 0
        for argument in node.args:
            inner = self.emitted(argument, bare=True)
            self.check(inner, inner.width, inner.signed)
            bits = self.value(argument).bits or 1
            if bits != inner.width:
                self._report(argument, f"an operand of concat has {bits} bits, but {inner.width} in Verilog")
            width += bits
        return Emitted(node, self.value(node).interval, width, False)

    def _subscript(self, node: ast.Subscript) -> Emitted:
        widen = self._signed_context and not self.annotated(node)
        self._signed_context = False
        base = self.analysis.object(node.value)
        if isinstance(node.slice, ast.Slice):
            leaf = self._slice(node)
        elif isinstance(base, tuple):
            self._report(node, "a table can only be the whole right side of an assignment")
            self.index(node.slice)
            return Emitted(node, self.value(node).interval, 32, True)
        elif self.analysis.is_signal_list(base):
            self.index(node.slice)
            found = declared_range(base[0])
            assert found is not None
            leaf = Emitted(node, self.value(node).interval, found.bits or 1, found.interval.signed)
        else:
            self.select(node, 1)
            leaf = self._bit(node)
        return self._widened(leaf) if widen else leaf

    def _slice(self, node: ast.Subscript) -> Emitted:
        assert isinstance(node.slice, ast.Slice)
        value = self.value(node)
        if isinstance(node.value, ast.Call):
            if self.value(node.value).interval.constant is None or value.bits is None:
                self._report(node, "a slice of a computed intbv; write intbv(0)[n:] and assign name[:]")
            return Emitted(node, value.interval, value.bits or 32, False)
        width = self.select(node, value.bits or 0)
        if node.slice.lower is None and node.slice.upper is None:
            return self.emitted(node.value)
        if node.slice.lower is None and value.interval.signed:
            self._report(node, "a slice without upper bound of a negative value is signed in Python only")
        return Emitted(node, value.interval, width, False)

    def select(self, node: ast.Subscript, width: int) -> int:
        """A bit or slice of a vector: it must stay inside.  Returns its width (``width`` if that isn't 0)."""
        if not isinstance(node.value, ast.Name | ast.Attribute) and not self._list_element(node.value):
            self._report(node, "Verilog can only select from a signal, an element of a list or a local")
            return max(1, width)
        vector = self.emitted(node.value)
        self._signed_context = False
        if isinstance(node.slice, ast.Slice):
            upper, lower = node.slice.lower, node.slice.upper
            low = self.value(lower).interval if lower is not None else Interval(0, 0)
            high = self.value(upper).interval if upper is not None else Interval(vector.width, vector.width)
            if lower is not None:
                self.index(lower)
            if upper is None:
                width = vector.width - low.high
            top = low.high + width if low.constant is None and upper is not None else high.high
        else:
            self.index(node.slice)
            top = self.value(node.slice).interval.high + 1
        if top > vector.width:
            self._report(
                node, f"bit {top - 1} of {vector.width} bits may be selected: undefined in Verilog; narrow the index"
            )
        return width

    def _list_element(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Subscript)
            and not isinstance(node.slice, ast.Slice)
            and self.analysis.is_signal_list(self.analysis.object(node.value))
        )
