"""The gate before conversion: finds everything known to make MyHDL's Verilog differ from MyHDL's simulation.

`lint` returns findings; `hdl.convert.verilog.convert` refuses a block that has any.  Expressions are judged by
`hdl.convert.expression_model`; here stand the rules about statements and structure.  What the analysis doesn't
understand is a finding too: silence means that everything was understood.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from myhdl._always_seq import _AlwaysSeq
from myhdl._block import _Block
from myhdl._instance import _Instantiator
from myhdl._Signal import Constant

from hdl.analysis.expressions import WRITES, augmented
from hdl.analysis.intervals import (
    Event,
    GeneratorAnalysis,
    UnknownConstruct,
    Value,
    Visitor,
    declared_range,
    generators,
)
from hdl.convert.expression_model import Model
from hdl.elaboration.patches import created_instances


@dataclass(frozen=True, order=True)
class Finding:
    """One place where Verilog would not do what MyHDL does."""

    # "file:line", or the name of the block
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def lint(block: Any) -> list[Finding]:
    """All findings in an elaborated block and everything below it, sorted, each once."""
    found = set(_structure(block))
    drivers = _Drivers()
    for owner, generator in generators(block):
        drivers.current = generator
        try:
            analysis = _StatementLint(owner, generator, drivers, found)
        except UnknownConstruct as error:
            found.add(Finding(generator.name, str(error)))
            continue
        try:
            analysis.run()
        except UnknownConstruct as error:
            found.add(Finding(analysis.name, f"not understood, so not converted: {error}"))
    found.update(drivers.conflicts)
    return sorted(found)


# -------------------------------------------------------------------------------------------- structure


def _structure(block: Any) -> Iterator[Finding]:
    name = block.func.__name__
    if inspect.ismethod(block.func):
        yield Finding(name, "a block that is a method; use a function of the module, so that names can't collide")
    returned = {id(sub) for sub in block.subs}
    for instance in created_instances(block):
        if id(instance) not in returned:
            kind = "block" if isinstance(instance, _Block) else "generator"
            yield Finding(name, f"{kind} {_name(instance)!r} is made but not returned: MyHDL drops it silently")
    for sub in block.subs:
        if isinstance(sub, _Block):
            yield from _structure(sub)
            continue
        if not isinstance(sub, _Instantiator):
            yield Finding(name, f"contains a {type(sub).__name__}, which can't be converted")
            continue
        if isinstance(sub, _AlwaysSeq) and any(n in sub.losdict for n in sub.outputs):
            yield Finding(
                name,
                f"{sub.name}: @always_seq writes a list of signals, so its reset clears every word; "
                "use @always(clk.posedge)",
            )
        for label, signal in sub.sigdict.items():
            if isinstance(signal, Constant) and (signal._min or 0) < 0:
                yield Finding(name, f"constant {label} is signed, which MyHDL writes as unsigned; use a Python int")


def _name(instance: Any) -> str:
    return str(instance.func.__name__ if isinstance(instance, _Block) else instance.name)


class _Drivers(Visitor):
    """Two generators that drive one signal: MyHDL notices it for plain signals, but not in lists."""

    kinds = WRITES

    def __init__(self) -> None:
        self.current: Any = None
        self.conflicts: set[Finding] = set()
        self._driver: dict[int, Any] = {}
        # kept alive, since only their ids are compared
        self._kept: list[Any] = []

    def event(self, event: Event) -> None:
        """Remember who writes what."""
        for signal in event.target if isinstance(event.target, list) else [event.target]:
            first = self._driver.setdefault(id(signal), self.current)
            self._kept.append(signal)
            if first is not self.current:
                names = " and ".join(sorted((first.name, self.current.name)))
                self.conflicts.add(Finding(names, "drive the same signal or elements of the same list"))


# ------------------------------------------------------------------------------------------- statements


class _StatementLint(GeneratorAnalysis):
    """The analysis of one generator, with each expression checked where it stands."""

    def __init__(self, block: Any, generator: Any, visitor: Visitor, found: set[Finding]) -> None:
        super().__init__(block, generator, visitor)
        self._found = found
        self._model = Model(self, self.report)
        # of expressions of the statement at work, as they were before it
        self._values: dict[ast.expr, Value] = {}

    def statement(self, node: ast.stmt) -> None:
        """Values of one before are no longer true."""
        self._values.clear()
        super().statement(node)

    def value(self, node: ast.expr) -> Value:
        """Worked out once for each statement, however many rules ask: of operations nobody is told here."""
        known = self._values.get(node)
        if known is None:
            known = self._values[node] = super().value(node)
        return known

    def report(self, node: ast.AST, message: str) -> None:
        """Add a finding."""
        source = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
        self._found.add(Finding(self.where(node), f"{self.name}: {message}: {source[:100]}"))

    def on_if(self, node: ast.If) -> None:
        """The test; and MyHDL turns a chain of ``==`` into a case of unsigned constants."""
        self._model.truth(node.test)
        if self._is_case(node):
            test = node.test
            assert isinstance(test, ast.Compare)
            if self.quiet(test.left).interval.signed:
                self.report(test.left, "a chain of == on a signed signal becomes a case with unsigned constants")
        super().on_if(node)

    def _is_case(self, node: ast.If) -> bool:
        def constant_test(test: ast.expr) -> str | None:
            if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq)):
                return None
            return test.left.id if isinstance(test.left, ast.Name) else None

        following = node.orelse[0] if len(node.orelse) == 1 else None
        first = constant_test(node.test)
        return isinstance(following, ast.If) and first is not None and constant_test(following.test) == first

    def on_match(self, node: ast.Match) -> None:
        """Becomes a case."""
        self._model.truth(node.subject)
        if self.quiet(node.subject).interval.signed:
            self.report(node.subject, "match on a signed value becomes a case with unsigned constants")
        super().on_match(node)

    def assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
        """Check the right side in the width of its target, and the target's indices."""
        if isinstance(target, ast.Name):
            super().assign(target, value, node)
            self._check_local(target.id, value)
            return
        width, partial = self._target_width(target)
        if self._is_table(value):
            assert isinstance(value, ast.Subscript)
            self._model.index(value.slice)
        else:
            self._model.assigned(value, width)
        if partial and self.quiet(value).interval.signed:
            self.report(value, "a value that may be negative is written into a slice, where MyHDL sets all upper bits")
        super().assign(target, value, node)

    def _is_table(self, value: ast.expr) -> bool:
        return (
            isinstance(value, ast.Subscript)
            and not isinstance(value.slice, ast.Slice)
            and isinstance(self.object(value.value), tuple)
        )

    def _check_local(self, name: str, value: ast.expr) -> None:
        """Called after the declaration is known."""
        local = self.locals[name]
        width = local.declaration.width
        if self._is_table(value):
            assert isinstance(value, ast.Subscript)
            self._model.index(value.slice)
        else:
            self._model.assigned(value, width)
        interval = self.quiet(value).interval if local.declared is None else local.declared
        if not interval.fits(width, local.declaration.signed):
            what = "a sized local" if local.declaration.sized else "an untyped local"
            kind = "signed" if local.declaration.signed else "unsigned"
            self.report(
                value,
                f"{what} {name!r} has {width} {kind} bits in Verilog, but needs {interval.low} … {interval.high}; "
                "make it with intbv(0, min=…, max=…) and write name[:] = …",
            )

    def _target_width(self, target: ast.expr) -> tuple[int, bool]:
        """Bits of a target, and whether it is part of a vector."""
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Subscript):
            members = self.object(target.value.value)
            if self.is_signal_list(members):
                self._model.index(target.value.slice)
                found = declared_range(members[0])
                assert found is not None
                return found.bits or 1, False
        if isinstance(target, ast.Subscript):
            base = target.value.value if isinstance(target.value, ast.Attribute) else target.value
            read = _read(target, base)
            if isinstance(target.slice, ast.Slice):
                if target.slice.lower is None and target.slice.upper is None:
                    return self._model.emitted(base).width, False
                bits = self.quiet(read).bits
                return self._model.select(read, bits or 0), True
            return self._model.select(read, 1), True
        found = declared_range(self.object(target.value)) if isinstance(target, ast.Attribute) else None
        if found is None:
            raise self.unknown(target, "no rule for this target")
        return found.bits or 1, False

    def on_augassign(self, node: ast.AugAssign) -> None:
        """Written as ``x = x op value`` without parentheses or casts."""
        if isinstance(node.target, ast.Name) and node.target.id in self.locals:
            declaration = self.locals[node.target.id].declaration
            whole = augmented(node)
            left, right = self._model.emitted(whole.left), self._model.emitted(node.value)
            joined = self._model.join(whole, node.op, left, right)
            width = declaration.width if declaration.sized else 32
            self._model.check(joined, max(width, joined.width), joined.signed)
            super().on_augassign(node)
            interval = self.quiet(whole).interval if not declaration.sized else self.locals[node.target.id].interval
            if not declaration.sized and not interval.fits(32, True):
                self.report(node, f"an untyped local needs {interval.low} … {interval.high}, beyond a 32-bit integer")
            return
        super().on_augassign(node)


def _read(target: ast.Subscript, base: ast.expr) -> ast.Subscript:
    """The same part of a vector where it is read; the same node each time."""
    found: ast.Subscript | None = getattr(target, "_read", None)
    if found is None:
        found = ast.copy_location(ast.Subscript(base, target.slice, ast.Load()), target)
        target._read = found  # type: ignore[attr-defined]
    return found
