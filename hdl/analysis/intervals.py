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
from collections.abc import Iterator
from typing import Any

from myhdl import concat, downrange, intbv, modbv
from myhdl._always import _Always
from myhdl._block import _Block
from myhdl._instance import _Instantiator
from myhdl._Signal import _Signal

from hdl.analysis.expressions import Event, ExpressionAnalysis, Kind, Visitor, augmented
from hdl.analysis.ranges import (
    INTEGER,
    NATURAL,
    ONE_BIT,
    Declaration,
    Interval,
    Local,
    UnknownConstruct,
    Value,
    declaration_of,
    declared_range,
    unsigned_range,
)


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


def _written(target: ast.expr, value: Interval, declared: Interval) -> Interval:
    """What a sized local can be after a write: ``name[:] = value`` has the value, a write of a part leaves anything."""
    assert isinstance(target, ast.Subscript)
    whole = isinstance(target.slice, ast.Slice) and target.slice.lower is None and target.slice.upper is None
    low, high = max(value.low, declared.low), min(value.high, declared.high)
    return Interval(low, high) if whole and low <= high else declared


def _joined(one: Local, other: Local) -> Local:
    """A local after two branches."""
    same = one.declaration is other.declaration or one.declaration == other.declaration
    declaration, bits, declared = (one.declaration, one.bits, one.declared) if same else (INTEGER, None, None)
    interval = one.interval if one is other else one.interval.join(other.interval)
    return Local(declaration, interval, bits, declared, max(one.version, other.version) + 1, one.loop)


class GeneratorAnalysis(ExpressionAnalysis):
    """One generator: the walk over its statements."""

    def run(self) -> None:
        """Walk the whole generator."""
        if not isinstance(self.generator, _Always):
            raise self.unknown(self.tree.body[0], "only @always and @always_comb are understood, not @instance")
        for statement in self.tree.body[0].body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Dispatch on the kind of statement."""
        method = self.rule("on", node)
        if method is None:
            raise self.unknown(node, "no rule for this statement")
        method(self, node)

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
        before = self.locals
        after: list[dict[str, Local]] = []
        self._depth += 1
        for body in bodies:
            self.locals = dict(before)
            self._branch(body)
            after.append(self.locals)
        self._depth -= 1
        self.locals = {}
        for name in {name for found in after for name in found}:
            joined, *others = [found[name] for found in after if name in found]
            for other in others:
                joined = _joined(joined, other)
            self.locals[name] = joined

    def _branch(self, body: list[ast.stmt]) -> None:
        """One of several bodies."""
        self._body(body)

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
            assert isinstance(target, ast.Subscript)
            assert isinstance(target.value, ast.Name)
            declared = signal.declared
            interval = signal.interval if declared is None else _written(target, result.interval, declared)
            self.locals[target.value.id] = signal._replace(interval=interval, version=signal.version + 1)
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
                bits = self.quiet(value).bits
                return unsigned_range(bits) if bits else None
        if isinstance(value, ast.Call) and self.object(value.func) in (intbv, modbv):
            made = self.quiet(value)
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
            if isinstance(inner, ast.Subscript) and self.is_signal_list(self.object(inner.value)):
                return declaration_of(self.object(inner.value)[0])
            return Declaration(self.quiet(value).bits or 32, False, sized=True)
        base = self.object(value.value)
        if self.is_signal_list(base):
            return declaration_of(base[0])
        return INTEGER if isinstance(base, tuple) else ONE_BIT

    def _declaration_of_call(self, value: ast.Call) -> Declaration:
        if isinstance(value.func, ast.Attribute) and value.func.attr == "signed":
            return Declaration(self.declaration(value.func.value).width, True, sized=True, negative=True)
        function = self.object(value.func)
        if function is bool:
            return ONE_BIT
        if function is concat or function in (intbv, modbv):
            made = self.quiet(value)
            signed = made.interval.signed
            return Declaration(made.bits, signed, sized=True, negative=signed) if made.bits else INTEGER
        return NATURAL if function is len else INTEGER

    def on_augassign(self, node: ast.AugAssign) -> None:
        """``local op= value``."""
        if not isinstance(node.target, ast.Name) or node.target.id not in self.locals:
            raise self.unknown(node, "augmented assignment is for locals only")
        result = self.value(augmented(node)).interval
        local = self.locals[node.target.id]
        if local.loop:
            raise self.unknown(node, "a loop variable is assigned inside its loop")
        if local.declaration.sized:
            local = local._replace(interval=local.declared or local.interval.join(result))
        else:
            local = local._replace(declaration=INTEGER, interval=result)
        self.locals[node.target.id] = local._replace(version=local.version + 1)

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
            if isinstance(base, ast.Subscript) and self.is_signal_list(self.object(base.value)):
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


__all__ = [
    "Event",
    "GeneratorAnalysis",
    "Interval",
    "Kind",
    "UnknownConstruct",
    "Value",
    "Visitor",
    "analyse",
    "declared_range",
    "generators",
]
