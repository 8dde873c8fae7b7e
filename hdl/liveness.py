"""The data flow of an elaborated block: `trace` reports its operations, and finds bits that matter and that agree."""

from __future__ import annotations

import ast
from typing import Any

from myhdl import ConcatSignal, concat, intbv, modbv
from myhdl._ShadowSignal import _ShadowSignal, _SliceSignal
from myhdl._Signal import _Signal

from hdl.dataflow import ALWAYS_ZERO, EVERY_BIT, Node, Op, settle_zeros
from hdl.equal_bits import EqualBits
from hdl.expressions import Visitor, augmented
from hdl.intervals import GeneratorAnalysis, generators
from hdl.ranges import Interval, combine
from hdl.verilog import port_signals

_SUMS = {ast.Add: Op.ADD, ast.Sub: Op.SUBTRACT, ast.Mult: Op.MULTIPLY}
_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor)


class Liveness:
    """Bits that matter, by signal and by memory."""

    def __init__(self) -> None:
        self._stores: dict[int, Node] = {}
        # element of a memory -> the memory
        self._arrays: dict[int, Node] = {}
        self._equal = EqualBits()
        # signals must live as long as their ids are keys
        self._kept: list[Any] = []

    def signal_bits(self, signal: Any) -> int:
        """Mask of the bits of a signal that matter and aren't always zero."""
        return self._bits(self._stores.get(id(signal)))

    def memory_bits(self, array: list[Any]) -> int:
        """Mask of the bits of a memory's words that matter and aren't always zero."""
        return self._bits(self._arrays.get(id(array[0])))

    def bit_number(self, signal: Any, bit: int) -> int:
        """The same number for bits that always hold the same, one of `CONSTANTS` for a bit that never changes."""
        return self._equal.number(self.store(signal), bit)

    def _bits(self, node: Node | None) -> int:
        return node.live & ~node.zeros if node is not None else 0

    def store(self, signal: Any) -> Node:
        """The node of a signal; a shadow of other signals depends on them."""
        node = self._arrays.get(id(signal)) or self._stores.get(id(signal))
        if node is None:
            node = self._stores[id(signal)] = Node(Op.STORE)
            self._kept.append(signal)
            if isinstance(signal, _ShadowSignal):
                self._shadow(node, signal)
        return node

    def array(self, members: list[Any]) -> Node:
        """The node of a list of signals that is accessed at a varying index."""
        node = self._arrays.get(id(members[0]))
        if node is None:
            node = Node(Op.STORE)
            self._kept.append(members)
            for member in members:
                self._arrays[id(member)] = node
                old = self._stores.get(id(member))
                if old is not None:
                    # accessed at a constant index before: the same bits
                    node.flows += old.flows
                    old.flows.append((node, 0, _width(member), ()))
        return node

    def _shadow(self, node: Node, signal: Any) -> None:
        if isinstance(signal, _SliceSignal):
            low = signal._right if signal._right is not None else signal._left
            whole = self.store(signal._sig)
            node.flows.append((Node(Op.SHIFT, [whole], -low), 0, _width(signal), ()))
            return
        assert isinstance(signal, ConcatSignal), f"a {type(signal).__name__} is no part of this project's circuits"
        low = 0
        for part in reversed(signal._args):
            if isinstance(part, _Signal):
                node.flows.append((self.store(part), low, _width(part), ()))
                low += _width(part)
            else:
                low += len(part)

    def finish(self, outputs: list[Any]) -> None:
        """All flows are known: settle what is zero, and demand the outputs."""
        for node in self._stores.values():
            node.zeros = ALWAYS_ZERO if node.flows else 0
        for signal in self._kept:
            if isinstance(signal, _Signal) and signal._init:
                start = int(signal._init)
                node = self._stores[id(signal)]
                node.zeros &= ~start
        # contents of memories aren't known here: their bits may be anything
        settle_zeros(list(self._stores.values()))
        for signal in outputs:
            self.store(signal).demand(EVERY_BIT)


def trace(block: Any, visitor: Visitor) -> Liveness:
    """As `hdl.intervals.analyse`; returns the bits that matter to the ports of the block."""
    liveness = Liveness()
    for owner, generator in generators(block):
        tracer = _Tracer(owner, generator, visitor)
        tracer.liveness = liveness
        visitor.generator(tracer)
        tracer.run()
    liveness.finish(list(port_signals(block, "block").values()))
    return liveness


def _width(signal: Any) -> int:
    return 1 if signal._type is bool else int(signal._nrbits)


class _Tracer(GeneratorAnalysis):
    """The walk over one generator, with the graph of what it assigns."""

    liveness: Liveness

    def __post_init__(self) -> None:
        super().__post_init__()
        self._values: dict[str, Node] = {}
        self._conditions: list[Node] = []

    # ---- statements

    def on_if(self, node: ast.If) -> None:
        """What is assigned inside depends on the test."""
        self._under(node.test, lambda: super(_Tracer, self).on_if(node))

    def on_match(self, node: ast.Match) -> None:
        """What is assigned inside depends on the subject."""
        self._under(node.subject, lambda: super(_Tracer, self).on_match(node))

    def _under(self, test: ast.expr, body: Any) -> None:
        self._conditions.append(self.graph(test))
        body()
        self._conditions.pop()

    def assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
        """Record the flow, then report as usual."""
        self._flow(target, self.graph(value))
        super().assign(target, value, node)

    def on_augassign(self, node: ast.AugAssign) -> None:
        """Likewise."""
        assert isinstance(node.target, ast.Name)
        self._set_local(node.target.id, self.graph(augmented(node)), whole=True)
        super().on_augassign(node)

    def _flow(self, target: ast.expr, value: Node) -> None:
        if isinstance(target, ast.Name):
            self._set_local(target.id, value, whole=True)
        elif (
            isinstance(target, ast.Subscript)
            and isinstance(target.value, ast.Name)
            and (target.value.id in self.locals)
        ):
            whole = isinstance(target.slice, ast.Slice) and target.slice.lower is None and target.slice.upper is None
            if not whole:
                value = Node(Op.MIX, [value, *self._index_nodes(target.slice)])
            self._set_local(target.value.id, value, whole=whole)
        else:
            self._write(target, value)

    def _set_local(self, name: str, value: Node, *, whole: bool) -> None:
        old = self._values.get(name)
        if old is not None and (self._conditions or not whole):
            value = Node(Op.CHOOSE, [Node(Op.MIX, self._conditions), value, old])
        self._values[name] = value

    def _write(self, target: ast.expr, value: Node) -> None:
        """A signal, part of a signal, or a memory."""
        low, width, extra = 0, None, []
        if isinstance(target, ast.Subscript):
            bounds = self._bounds(target)
            if bounds is None:
                extra, value = self._index_nodes(target.slice), Node(Op.MIX, [value])
            else:
                low, width = bounds
            target = target.value
        assert isinstance(target, ast.Attribute)
        base = target.value
        members: Any = self.object(base.value) if isinstance(base, ast.Subscript) else None
        if isinstance(base, ast.Subscript) and self.is_signal_list(members):
            index = self._constant(base.slice)
            signal = members[index if index is not None else 0]
            if index is None:
                store = self.liveness.array(members)
                extra = [*extra, self.graph(base.slice)]
            else:
                store = self.liveness.store(signal)
        else:
            signal = self.object(base)
            store = self.liveness.store(signal)
        whole = _width(signal)
        if self.clocked:
            store.start = int(signal._init)
        store.flows.append((value, low, whole if width is None else width, (*self._conditions, *extra)))

    # ---- expressions

    def graph(self, node: ast.expr) -> Node:
        """The node of an expression."""
        constant = self._constant(node)
        if constant is not None:
            return Node(Op.CONSTANT, amount=constant)
        if isinstance(node, ast.Name) and node.id in self._values:
            return self._values[node.id]
        if isinstance(node, ast.Name | ast.Attribute):
            return self._leaf(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return Node(Op.BITWISE, [self.graph(node.operand)])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return Node(Op.SUBTRACT, [Node(Op.CONSTANT), self.graph(node.operand)])
        if isinstance(node, ast.IfExp):
            return Node(Op.CHOOSE, [self.graph(part) for part in (node.test, node.body, node.orelse)])
        if isinstance(node, ast.Call):
            return self._call(node)
        return Node(Op.MIX, [self.graph(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)])

    def _constant(self, node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant):
            return int(node.value) if isinstance(node.value, int) else None
        if isinstance(node, ast.Name):
            if node.id in self.locals:
                local = self.locals[node.id]
                return int(local.interval.low) if local.bits is None and local.interval.constant is not None else None
            found = self.object(node)
            return int(found) if isinstance(found, int) else None
        if isinstance(node, ast.BinOp):
            left, right = self._constant(node.left), self._constant(node.right)
            if left is None or right is None:
                return None
            combined: Interval = combine(node.op, Interval(left, left), Interval(right, right))
            constant: int | None = combined.constant
            return constant
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._constant(node.operand)
            return None if inner is None else -inner
        if isinstance(node, ast.Call) and self.object(node.func) is len:
            length: int = len(self.object(node.args[0]))
            return length
        return None

    def _leaf(self, node: ast.expr) -> Node:
        found = self.object(node)
        if isinstance(node, ast.Attribute) and node.attr in ("val", "next"):
            return self.graph(node.value)
        if isinstance(found, _Signal):
            store = self.liveness.store(found)
            signed = found._min is not None and found._min < 0
            return Node(Op.EXTEND, [store], _width(found)) if signed else store
        return Node(Op.MIX)

    def _bounds(self, node: ast.Subscript) -> tuple[int, int] | None:
        """(lowest bit, width) of a subscript with constant bounds; None if they vary or are left out."""
        if isinstance(node.slice, ast.Slice):
            low = self._constant(node.slice.upper) if node.slice.upper is not None else 0
            high = self._constant(node.slice.lower) if node.slice.lower is not None else None
            return None if low is None or high is None else (low, high - low)
        index = self._constant(node.slice)
        return None if index is None else (index, 1)

    def _index_nodes(self, index: ast.expr) -> list[Node]:
        parts = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
        return [self.graph(part) for part in parts if part is not None]

    def _subscript(self, node: ast.Subscript) -> Node:
        members = self.object(node.value)
        if self.is_signal_list(members) and not isinstance(node.slice, ast.Slice):
            index = self._constant(node.slice)
            if index is not None:
                return self._signal_node(members[index], self.liveness.store(members[index]))
            store = self._signal_node(members[0], self.liveness.array(members))
            return Node(Op.CHOOSE, [self.graph(node.slice), store])
        if isinstance(members, tuple):
            return Node(Op.TABLE, self._index_nodes(node.slice), table=tuple(int(entry) for entry in members))
        vector, bounds = self.graph(node.value), self._bounds(node)
        if bounds is not None:
            return Node(Op.CUT, [Node(Op.SHIFT, [vector], -bounds[0])], bounds[1])
        if isinstance(node.slice, ast.Slice) and node.slice.lower is None:
            low = self._constant(node.slice.upper) if node.slice.upper is not None else 0
            if low is not None:
                return Node(Op.SHIFT, [vector], -low)
        return Node(Op.MIX, [vector, *self._index_nodes(node.slice)])

    def _signal_node(self, signal: Any, store: Node) -> Node:
        signed = signal._min is not None and signal._min < 0
        return Node(Op.EXTEND, [store], _width(signal)) if signed else store

    def _binary(self, node: ast.BinOp) -> Node:
        left, right = self.graph(node.left), self.graph(node.right)
        if type(node.op) in _SUMS:
            return Node(_SUMS[type(node.op)], [left, right])
        if isinstance(node.op, _BITWISE):
            return Node(Op.BITWISE, [left, right])
        amount = self._constant(node.right)
        if isinstance(node.op, ast.LShift | ast.RShift) and amount is not None:
            return Node(Op.SHIFT, [left], amount if isinstance(node.op, ast.LShift) else -amount)
        return Node(Op.MIX, [left, right])

    def _call(self, node: ast.Call) -> Node:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "signed" and not node.args:
            value = self.quiet(node.func.value)
            bits = value.bits or value.interval.width
            return Node(Op.EXTEND, [self.graph(node.func.value)], bits)
        function = self.object(node.func)
        if function in (intbv, modbv, int):
            return self.graph(node.args[0]) if node.args else Node(Op.CONSTANT)
        if function is concat:
            return self._concat(node)
        return Node(Op.MIX, [self.graph(argument) for argument in node.args])

    def _concat(self, node: ast.Call) -> Node:
        parts, low = [], 0
        for argument in reversed(node.args):
            width = self.quiet(argument).bits or 1
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                part = Node(Op.CONSTANT, amount=int(argument.value, 2))
            else:
                part = Node(Op.CUT, [self.graph(argument)], width)
            parts.append(Node(Op.SHIFT, [part], low))
            low += width
        return Node(Op.JOIN, parts)
