"""The data flow of an elaborated block: `trace` reports its operations, and finds bits that matter and that agree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from myhdl import ConcatSignal, concat, intbv, modbv
from myhdl._ShadowSignal import _ShadowSignal, _SliceSignal
from myhdl._Signal import _Signal

from hdl.analysis.dataflow import ALWAYS_ZERO, Comparison, Driver, Logic, Node, Op, demand, settle_zeros
from hdl.analysis.equal_bits import EqualBits
from hdl.analysis.expressions import Visitor, augmented, folds
from hdl.analysis.gates import Run
from hdl.analysis.intervals import GeneratorAnalysis, generators
from hdl.analysis.ranges import Interval, combine
from hdl.elaboration.ports import port_signals, running_counts

_SUMS = {ast.Add: Op.ADD, ast.Sub: Op.SUBTRACT, ast.Mult: Op.MULTIPLY}
_BITWISE = {ast.BitAnd: Logic.AND, ast.BitOr: Logic.OR, ast.BitXor: Logic.XOR}
_PERHAPS_CONSTANT = frozenset((ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Call))
_COMPARISONS = {
    ast.Eq: Comparison.EQ,
    ast.NotEq: Comparison.NE,
    ast.Lt: Comparison.LT,
    ast.LtE: Comparison.LE,
    ast.Gt: Comparison.GT,
    ast.GtE: Comparison.GE,
}


class Liveness:
    """Bits that matter, by signal and by memory."""

    def __init__(self) -> None:
        self._stores: dict[int, Node] = {}
        # element of a memory -> the memory
        self._arrays: dict[int, Node] = {}
        self._equal = EqualBits()
        # what generators write, with the signal or memory
        self.drivers: list[tuple[Driver, Any]] = []
        # signals must live as long as their ids are keys
        self._kept: list[Any] = []
        # ports
        self.outputs: list[Node] = []

    def signal_bits(self, signal: Any) -> int:
        """Mask of the bits of a signal that matter and aren't always zero."""
        return self._bits(self._stores.get(id(signal)))

    def memory_bits(self, array: list[Any]) -> int:
        """Mask of the bits of a memory's words that matter and aren't always zero."""
        return self._bits(self._arrays.get(id(array[0])))

    def origins(self, signal: Any, mask: int) -> Iterator[tuple[int, int, Run]]:
        """(lowest bit, those of it in ``mask``, origins) of runs of a signal's bits; see `hdl.analysis.equal_bits`."""
        for at, run in self._equal.origins(self.store(signal), mask):
            wanted = mask >> at & ((1 << run.width) - 1)
            if wanted:
                yield at, wanted, run

    def _bits(self, node: Node | None) -> int:
        return node.live & ~node.zeros if node is not None else 0

    def store(self, signal: Any) -> Node:
        """The node of a signal; a shadow of other signals depends on them."""
        node = self._arrays.get(id(signal)) or self._stores.get(id(signal))
        if node is None:
            node = self._stores[id(signal)] = Node(Op.STORE, amount=_width(signal))
            self._kept.append(signal)
            if isinstance(signal, _ShadowSignal):
                self._shadow(node, signal)
        return node

    def array(self, members: list[Any]) -> Node:
        """The node of a list of signals that is accessed at a varying index."""
        node = self._arrays.get(id(members[0]))
        if node is None:
            node = Node(Op.STORE, amount=_width(members[0]))
            node.memory = True
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
            node.zeros = ALWAYS_ZERO
        for signal in self._kept:
            if isinstance(signal, _Signal) and signal._init:
                start = int(signal._init)
                node = self._stores[id(signal)]
                node.zeros &= ~start
        # contents of memories aren't known here: their bits may be anything
        settle_zeros(list(self._stores.values()))
        self.outputs = [self.store(signal) for signal in outputs]
        demand(self.outputs)


def trace(block: Any, visitor: Visitor) -> Liveness:
    """As `hdl.analysis.intervals.analyse`; returns the bits that matter to the ports of the block and to its counts."""
    liveness = Liveness()
    for owner, generator in generators(block):
        tracer = _Tracer(owner, generator, visitor)
        tracer.liveness = liveness
        visitor.generator(tracer)
        tracer.run()
        liveness.drivers += tracer.drivers()
    counts = [word for count in running_counts(block) for word in count.symdict["mem"]]
    liveness.finish([*port_signals(block, "block").values(), *counts])
    return liveness


def _width(signal: Any) -> int:
    return 1 if signal._type is bool else int(signal._nrbits)


# the identity of a signal or memory, lowest bit, bits
_Place: TypeAlias = tuple[int, int, int]
_Key = TypeVar("_Key")
# how a branch ends: values of locals, what is written, and the places that it changed
_End: TypeAlias = tuple[dict[str, Node], dict[_Place, Node], dict[_Place, None]]


def _chosen(
    test: Node, yes: dict[_Key, Node], no: dict[_Key, Node], before: Mapping[_Key, Node], changed: Iterable[_Key]
) -> dict[_Key, Node]:
    """The state after two branches, each of which has some of what is ``changed``; what only one has is that.

    What ``yes`` has comes first, in its order."""
    found = dict(yes)
    added: dict[_Key, Node] = {}
    for key in changed:
        left, right = yes.get(key, before.get(key)), no.get(key, before.get(key))
        if left is None or right is None or left is right:
            value = left if left is not None else right
            assert value is not None
        else:
            value = Node(Op.CHOOSE, [test, left, right])
        (found if key in yes else added)[key] = value
    if len(added) > 1:
        added = {key: added[key] for key in no if key in added}
    found.update(added)
    return found


def _part(node: Node, low: int, width: int) -> Node:
    return Node(Op.CUT, [Node(Op.SHIFT, [node], -low)], width)


def _replaced(old: Node, value: Node, low: int, width: int, whole: int) -> Node:
    """``old``, of ``whole`` bits or more, with some of its bits replaced."""
    parts = [Node(Op.CUT, [old], low)] if low else []
    parts.append(Node(Op.SHIFT, [Node(Op.CUT, [value], width)], low))
    if low + width < whole:
        parts.append(Node(Op.SHIFT, [Node(Op.SHIFT, [old], -low - width)], low + width))
    return Node(Op.JOIN, parts)


class _Parts:
    """Places of a signal that are parts of it."""

    def __init__(self) -> None:
        self.places: dict[_Place, None] = {}
        # some of them have bits in common
        self.overlap = False
        self._bits = 0

    def add(self, place: _Place) -> None:
        """One more, or one that is known."""
        if place not in self.places:
            self.places[place] = None
            bits = ((1 << place[2]) - 1) << place[1]
            self.overlap = self.overlap or bool(self._bits & bits)
            self._bits |= bits

    def overlapping(self, place: _Place, written: Mapping[_Place, Node]) -> list[_Place]:
        """Others that have bits in common with one."""
        _, low, width = place
        found = (other for other in self.places if other[1] < low + width and low < other[1] + other[2])
        return [other for other in found if other != place and other in written]


class _Tracer(GeneratorAnalysis):
    """The walk over one generator, with the graph of what it assigns."""

    liveness: Liveness

    def __post_init__(self) -> None:
        super().__post_init__()
        self._values: dict[str, Node] = {}
        self._conditions: tuple[Node, ...] = ()
        # tests of the branches that are being walked, and the states in which these end
        self._tests: list[list[Node]] = []
        self._ends: list[list[_End]] = []
        # what is written so far, in every case; and the store, signal or memory of each place
        self._written: dict[_Place, Node] = {}
        self._places: dict[_Place, tuple[Node, Any]] = {}
        # places written or left out since the branch began
        self._changed: dict[_Place, None] = {}
        # signals that are written in parts
        self._in_parts: dict[int, _Parts] = {}

    def drivers(self) -> list[tuple[Driver, Any]]:
        """What this generator writes."""
        return [
            (Driver(self._places[place][0], place[1], place[2], value, self.clocked), self._places[place][1])
            for place, value in self._written.items()
        ]

    # ---- statements

    def on_if(self, node: ast.If) -> None:
        """What is assigned inside depends on the test."""
        test = self.graph(node.test)
        self._under(test, [test], lambda: super(_Tracer, self).on_if(node))

    def on_match(self, node: ast.Match) -> None:
        """What is assigned inside depends on the subject."""
        subject = self.graph(node.subject)
        tests = [
            Node(Op.COMPARE, [subject, self.graph(case.pattern.value)], Comparison.EQ)
            for case in node.cases
            if isinstance(case.pattern, ast.MatchValue)
        ]
        self._under(subject, tests, lambda: super(_Tracer, self).on_match(node))

    def _under(self, condition: Node, tests: list[Node], body: Any) -> None:
        outside = self._conditions
        self._conditions = (*outside, condition)
        self._tests.append(tests)
        body()
        self._tests.pop()
        self._conditions = outside

    def _branches(self, bodies: list[list[ast.stmt]]) -> None:
        before = self._values, self._written, dict[_Place, None]()
        self._ends.append([])
        super()._branches(bodies)
        ends = self._ends.pop()
        tests = self._tests[-1]
        if len(ends) == len(tests):
            # a match without a default
            ends.append(before)
        self._values, self._written, changed = ends[-1]
        for test, (values, written, places) in zip(reversed(tests), reversed(ends[:-1]), strict=True):
            self._values = _chosen(test, values, self._values, before[0], {**values, **self._values})
            changed = {**places, **changed}
            written, self._written = self._comparable(written, self._written, changed)
            found = [place for place in changed if place in written or place in self._written]
            held = {place: before[1].get(place) or self._hold(place) for place in found}
            self._written = _chosen(test, written, self._written, held, found)
        self._changed.update(changed)

    def _comparable(
        self, left: dict[_Place, Node], right: dict[_Place, Node], changed: dict[_Place, None]
    ) -> tuple[dict[_Place, Node], dict[_Place, Node]]:
        """Both with a signal as a whole if one of them has it so; what that changes is ``changed``."""
        if any(place[0] in self._in_parts for place in changed):
            for place in {**left, **right}:
                store, target = self._places[place]
                if place[0] not in self._in_parts or place[1:] != (0, _width(target)):
                    continue
                for written in (left, right):
                    if place not in written:
                        changed |= {part: None for part in self._in_parts[place[0]].places if part in written}
                left = left if place in left else self._joined(left, store, place)
                right = right if place in right else self._joined(right, store, place)
        return left, right

    def _joined(self, written: dict[_Place, Node], store: Node, whole: _Place) -> dict[_Place, Node]:
        """With what is written of a signal in parts as a whole, if anything is."""
        parts = [place for place in (*self._in_parts[whole[0]].places, whole) if place in written]
        if parts in ([], [whole]):
            return written
        value = written.get(whole, store)
        for place in sorted(parts):
            if place != whole:
                value = _replaced(value, written[place], place[1], place[2], whole[2])
        rest = {place: node for place, node in written.items() if place[0] != whole[0]}
        self._places.setdefault(whole, self._places[parts[0]])
        return {**rest, whole: value}

    def _branch(self, body: list[ast.stmt]) -> None:
        values, written, changed = self._values, self._written, self._changed
        self._values, self._written, self._changed = dict(values), dict(written), {}
        super()._branch(body)
        self._ends[-1].append((self._values, self._written, self._changed))
        self._values, self._written, self._changed = values, written, changed

    def _hold(self, place: _Place) -> Node:
        """What bits of a signal are where nothing is written."""
        store, target = self._places[place]
        if isinstance(target, list):
            return Node(Op.HOLD)
        return _part(store, place[1], place[2]) if place[1:] != (0, _width(target)) else store

    def assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
        """Record the flow, then report as usual."""
        self._flow(target, self.graph(value))
        super().assign(target, value, node)

    def on_augassign(self, node: ast.AugAssign) -> None:
        """Likewise."""
        assert isinstance(node.target, ast.Name)
        self._values[node.target.id] = self.graph(augmented(node))
        super().on_augassign(node)

    def _flow(self, target: ast.expr, value: Node) -> None:
        if isinstance(target, ast.Name):
            self._values[target.id] = value
        elif (
            isinstance(target, ast.Subscript)
            and isinstance(target.value, ast.Name)
            and (target.value.id in self.locals)
        ):
            whole = isinstance(target.slice, ast.Slice) and target.slice.lower is None and target.slice.upper is None
            old = self._values.get(target.value.id)
            bounds = None if whole else self._bounds(target)
            if bounds is not None and old is not None:
                value = _replaced(old, value, *bounds, bounds[0] + bounds[1] + 1)
            elif not whole:
                value = Node(Op.MIX, [value, *self._index_nodes(target.slice), *([old] if old is not None else [])])
            self._values[target.value.id] = value
        else:
            self._write(target, value)

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
        index: int | None = 0
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
        conditions = (*self._conditions, *extra) if extra else self._conditions
        store.flows.append((value, low, whole if width is None else width, conditions))
        if store.memory and index is None:
            assert isinstance(base, ast.Subscript)
            place: _Place = id(members), 0, whole
            self._places[place] = store, members
            self._written[place] = Node(Op.WRITE, [value, self.graph(base.slice)])
            self._changed[place] = None
        else:
            self._put((id(signal), low, whole if width is None else width), value, store, signal)

    def _put(self, place: _Place, value: Node, store: Node, signal: Any) -> None:
        """Bits of a signal get a value; parts that overlap others make one whole of it."""
        whole: _Place = place[0], 0, _width(signal)
        self._places[place] = store, signal
        parts = self._in_parts.get(place[0])
        if place == whole:
            for other in (*(parts.places if parts else ()), whole):
                if self._written.pop(other, None) is not None:
                    self._changed[other] = None
        else:
            if parts is None:
                parts = self._in_parts[place[0]] = _Parts()
            parts.add(place)
            others = parts.overlapping(place, self._written) if parts.overlap or whole in self._written else []
            if others or whole in self._written:
                others = [other for other in (*parts.places, whole) if other in self._written]
                self._written = self._joined(self._written, store, whole)
                value = _replaced(self._written[whole], value, place[1], place[2], whole[2])
                self._changed.update(dict.fromkeys(others))
                place = whole
        self._written[place] = value
        self._changed[place] = None

    # ---- expressions

    def graph(self, node: ast.expr) -> Node:
        """The node of an expression."""
        constant = self._constant(node)
        if constant is not None:
            return Node(Op.CONSTANT, amount=constant)
        rule = _GRAPHS.get(type(node))
        if rule is not None:
            return rule(self, node)
        return Node(Op.MIX, [self.graph(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)])

    def _name(self, node: ast.Name) -> Node:
        known = self._values.get(node.id)
        return known if known is not None else self._leaf(node)

    def _unary(self, node: ast.UnaryOp) -> Node:
        operand = self.graph(node.operand)
        if isinstance(node.op, ast.Invert):
            return Node(Op.BITWISE, [operand], Logic.NOT)
        if isinstance(node.op, ast.Not):
            return Node(Op.LOGIC, [operand], Logic.NOT)
        if isinstance(node.op, ast.USub):
            return Node(Op.SUBTRACT, [Node(Op.CONSTANT), operand])
        return Node(Op.MIX, [operand])

    def _boolean(self, node: ast.BoolOp) -> Node:
        kind = Logic.AND if isinstance(node.op, ast.And) else Logic.OR
        return Node(Op.LOGIC, [self.graph(part) for part in node.values], kind)

    def _compare(self, node: ast.Compare) -> Node:
        sides = [self.graph(node.left), self.graph(node.comparators[0])]
        return Node(Op.COMPARE, sides, _COMPARISONS[type(node.ops[0])])

    def _choose(self, node: ast.IfExp) -> Node:
        return Node(Op.CHOOSE, [self.graph(part) for part in (node.test, node.body, node.orelse)])

    def _constant(self, node: ast.expr) -> int | None:
        if type(node) not in _PERHAPS_CONSTANT:
            return None
        if folds(node) is not None:
            found = self.folded(node)
            return found.interval.constant if found is not None else None
        if isinstance(node, ast.BinOp):
            left = self._constant(node.left)
            right = self._constant(node.right) if left is not None else None
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
        if isinstance(node.slice, ast.Slice):
            width = self.slice_width(node)
            if width is not None and node.slice.upper is not None:
                return Node(Op.SELECT, [vector, self.graph(node.slice.upper)], width)
            return Node(Op.MIX, [vector, *self._index_nodes(node.slice)])
        return Node(Op.SELECT, [vector, self.graph(node.slice)], 1)

    def _signal_node(self, signal: Any, store: Node) -> Node:
        signed = signal._min is not None and signal._min < 0
        return Node(Op.EXTEND, [store], _width(signal)) if signed else store

    def _binary(self, node: ast.BinOp) -> Node:
        left, right = self.graph(node.left), self.graph(node.right)
        if type(node.op) in _SUMS:
            return Node(_SUMS[type(node.op)], [left, right])
        if type(node.op) in _BITWISE:
            return Node(Op.BITWISE, [left, right], _BITWISE[type(node.op)])
        amount = self._constant(node.right)
        if isinstance(node.op, ast.LShift | ast.RShift) and amount is not None:
            return Node(Op.SHIFT, [left], amount if isinstance(node.op, ast.LShift) else -amount)
        if isinstance(node.op, ast.LShift | ast.RShift):
            return Node(Op.SHIFT_BY, [left, right], int(isinstance(node.op, ast.LShift)))
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
        if function is bool:
            return Node(Op.LOGIC, [self.graph(node.args[0])], Logic.OR)
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


# kind of expression -> what makes its node
_GRAPHS: Mapping[type[ast.expr], Callable[[_Tracer, Any], Node]] = {
    ast.Name: _Tracer._name,
    ast.Attribute: _Tracer._leaf,
    ast.Subscript: _Tracer._subscript,
    ast.BinOp: _Tracer._binary,
    ast.UnaryOp: _Tracer._unary,
    ast.BoolOp: _Tracer._boolean,
    ast.Compare: _Tracer._compare,
    ast.IfExp: _Tracer._choose,
    ast.Call: _Tracer._call,
}
