"""A network of gates over runs of bits, and how many look-up tables cover it.

A gate is as wide as the words it works on: bit i of its result depends on bit i of its inputs.  Equal gates are one.
`Gates.cover` chooses tables from the outputs backwards: a gate that is used once, or costs its users no further
input, is absorbed by the table of its user while that has inputs left.  What ends a table's cone is a leaf: a
register, a memory, a carry chain, a multiplier, a port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from functools import cache
from typing import NamedTuple

# inputs of the widest table
TABLE_INPUTS = 6


class GateKind(IntEnum):
    """What a gate is."""

    # no gate: a register, a port, an output of a memory or a multiplier
    LEAF = auto()
    # the sum of a carry chain; inputs are the operands
    CARRY = auto()
    # inputs are (test, value if true, value if false)
    MUX = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    NOT = auto()
    # any other function of its inputs
    FUNCTION = auto()


class Run(NamedTuple):
    """``width`` bits of a gate's result: bit i is its bit ``offset + stride * i``; a stride of 0 repeats one bit.

    Millions are made for a network: the hot paths make them by `new_run`, in half the time of ``Run(...)``."""

    gate: int
    offset: int
    stride: int
    width: int

    def part(self, low: int, width: int) -> Run:
        """Bits ``low`` to ``low + width``."""
        gate, offset, stride, known = self
        if width == known and width > 1:
            return self
        return new_run(Run, (gate, offset + stride * low, stride if width > 1 else 0, width))

    @property
    def constant(self) -> int | None:
        """0 or 1 if all bits are that."""
        return self.gate if self.gate <= ONE else None


# `new_run(Run, (gate, offset, stride, width))`
new_run = tuple.__new__
# the gates that are always 0 and always 1
ZERO, ONE = 0, 1


@cache
def constant_run(bit: int, width: int) -> Run:
    """``width`` times the same known bit."""
    return Run(bit, 0, 0, width)


@dataclass(slots=True)
class Gate:
    """A gate; inputs are as wide as its result."""

    kind: GateKind
    width: int
    inputs: tuple[Run, ...]
    # what tells functions of the same inputs apart
    label: object = None
    # of a carry chain: the runs of each operand, lowest first
    operands: tuple[tuple[Run, ...], ...] = ()
    # bits that anything needs
    live: int = 0
    # uses of live bits, each bit of each user counted
    uses: int = 0
    # inputs of its table: (gate, offset, stride)
    support: frozenset[tuple[int, int, int]] = frozenset()

    def summed(self) -> Iterator[tuple[Run, int]]:
        """The runs that a carry chain adds, with the bits of them: all up to the highest that anything needs."""
        wanted = (1 << self.live.bit_length()) - 1
        for operand in self.operands if wanted else ():
            at = 0
            for run in operand:
                if run.constant is None and wanted >> at:
                    yield run, (wanted >> at) & ((1 << run.width) - 1)
                at += run.width


_TABLES = frozenset((GateKind.MUX, GateKind.AND, GateKind.OR, GateKind.XOR, GateKind.NOT, GateKind.FUNCTION))


@dataclass
class Gates:
    """The network."""

    gates: list[Gate] = field(default_factory=list)
    # gate, label -> its number
    _known: dict[object, int] = field(default_factory=dict)
    # runs whose bits must exist: inputs of registers, memories, multipliers, ports; with the bits that matter
    roots: list[tuple[Run, int]] = field(default_factory=list)
    # gate -> bits that something takes that is neither table nor flip-flop
    bare: dict[int, int] = field(default_factory=dict)
    # gate -> bits that two flip-flops take, or one and a table
    shared: dict[int, int] = field(default_factory=dict)
    # gate -> bits that flip-flops take
    _flopped: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _ in (ZERO, ONE):
            self.gates.append(Gate(GateKind.LEAF, 1, ()))

    # ---- making gates

    def leaf(self, width: int) -> Run:
        """A new leaf."""
        self.gates.append(Gate(GateKind.LEAF, width, ()))
        return Run(len(self.gates) - 1, 0, 1 if width > 1 else 0, width)

    def gate(self, kind: GateKind, inputs: Sequence[Run], label: object = None) -> Run:
        """The gate of these inputs, all as wide as its result."""
        made = inputs[0][3]
        inputs = tuple(inputs)
        key = kind, inputs, label
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.gates)
            self.gates.append(Gate(kind, made, inputs, label))
        return new_run(Run, (number, 0, 1 if made > 1 else 0, made))

    def chain(self, operands: Sequence[tuple[Run, ...]], label: object, width: int) -> Run:
        """A carry chain of ``width`` bits over these operands; the label says what it computes."""
        key = (GateKind.CARRY, tuple(operands), label, width)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.gates)
            self.gates.append(Gate(GateKind.CARRY, width, (), label, operands=tuple(operands)))
        return Run(number, 0, 1 if width > 1 else 0, width)

    def invert(self, run: Run) -> Run:
        """NOT."""
        if run[0] <= ONE:
            return constant_run(1 - run[0], run[3])
        gate = self.gates[run[0]]
        if gate.kind is GateKind.NOT:
            return through(gate.inputs[0], run)
        return self.gate(GateKind.NOT, (run,))

    def mux(self, test: Run, yes: Run, no: Run) -> Run:
        """``yes if test else no``, with constants folded."""
        if yes == no or test[0] == ONE:
            return yes
        if test[0] == ZERO:
            return no
        if yes[0] <= ONE and no[0] <= ONE and yes[0] != no[0]:
            return test if yes[0] else self.invert(test)
        inner = self.gates[test[0]]
        if inner.kind is GateKind.NOT:
            return self.mux(through(inner.inputs[0], test), no, yes)
        return self.gate(GateKind.MUX, (test, yes, no))

    def both(self, kind: GateKind, left: Run, right: Run) -> Run:
        """AND, OR or XOR of two runs, with constants folded."""
        if left[0] <= ONE < right[0]:
            left, right = right, left
        known = right[0]
        if known <= ONE:
            if kind is GateKind.XOR:
                return self.invert(left) if known else left
            absorbing = int(kind is GateKind.OR)
            return right if known == absorbing else left
        if left == right:
            return constant_run(0, left[3]) if kind is GateKind.XOR else left
        return self.gate(kind, (right, left) if right[:2] < left[:2] else (left, right))

    def reduce(self, kind: GateKind, bits: Sequence[Run]) -> Run:
        """AND or OR of single bits, as a balanced tree."""
        level = list(dict.fromkeys(bits))
        if not level:
            return constant_run(int(kind is GateKind.AND), 1)
        both = self.both
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            level = [both(kind, a, b) for a, b in pairs] + ([level[-1]] if len(level) % 2 else [])
        return level[0]

    def need(self, run: Run, mask: int, *, flip_flop: bool = False) -> None:
        """Something that is no gate, perhaps a flip-flop, needs the bits of ``mask`` of a run."""
        if mask and run[0] > ONE:
            self.roots.append((run, mask))
            if flip_flop:
                self._share(run.gate, _bits(run, mask))
                self._take(self._flopped, run, mask)
            else:
                self._take(self.bare, run, mask)

    def _share(self, number: int, bits: int) -> None:
        """One more takes these bits of a gate: those that a flip-flop takes already are shared."""
        both = bits & self._flopped.get(number, 0)
        if both:
            self.shared[number] = self.shared.get(number, 0) | both

    def _take(self, users: dict[int, int], run: Run, mask: int) -> None:
        users[run.gate] = users.get(run.gate, 0) | _bits(run, mask)

    # ---- counting

    def settle(self) -> None:
        """Find the bits of all gates that anything needs."""
        for run, mask in self.roots:
            self._demand(run, mask)
        for gate in reversed(self.gates):
            if gate.live:
                for run in gate.inputs:
                    self._demand(run, gate.live)
                if gate.operands:
                    for run, mask in gate.summed():
                        self._demand(run, mask)
                        self._take(self.bare, run, mask)

    def _demand(self, run: Run, mask: int) -> None:
        number, offset, stride, width = run
        gate = self.gates[number]
        mask &= (1 << width) - 1
        if stride:
            gate.live |= mask << offset
        elif mask:
            gate.live |= 1 << offset
        gate.uses += mask.bit_count()

    def cover(self, inputs: int = TABLE_INPUTS) -> Counter[int]:
        """Number of inputs -> tables with so many, of at most ``inputs``."""
        for gate in self.gates:
            if gate.live and gate.kind in _TABLES:
                gate.support = self._table(gate, inputs)
        wanted: dict[int, int] = {}

        def want(run: Run, mask: int) -> None:
            wanted[run.gate] = wanted.get(run.gate, 0) | _bits(run, mask)

        for run, mask in self.roots:
            want(run, mask)
        found: Counter[int] = Counter()
        for number in range(len(self.gates) - 1, ONE, -1):
            gate = self.gates[number]
            if gate.operands:
                for run, mask in gate.summed():
                    want(run, mask)
            bits = wanted.get(number, 0)
            if bits and gate.kind in _TABLES:
                found[len(gate.support)] += bits.bit_count()
                for end, offset, stride in gate.support:
                    mask = bits << offset if stride else 1 << offset
                    wanted[end] = wanted.get(end, 0) | mask
                    self._share(end, mask)
        return found

    def _table(self, gate: Gate, limit: int) -> frozenset[tuple[int, int, int]]:
        """The inputs of a gate's table, with those of the gates that it absorbs."""
        direct = {run[:3] for run in gate.inputs if run[0] > ONE}
        support = direct
        open_gates = [entry for entry in direct if self.gates[entry[0]].kind in _TABLES]
        if len(open_gates) > 1:
            open_gates.sort(key=lambda entry: (self._shared(entry[0]), len(self.gates[entry[0]].support)))
        for entry in open_gates:
            inner = self.gates[entry[0]]
            if self._shared(entry[0]) and len(inner.support) > SHARED_INPUTS:
                continue
            joined = support - {entry}
            _, start, step = entry
            joined.update([(end, offset + stride * start, stride * step) for end, offset, stride in inner.support])
            if len(joined) <= limit:
                support = joined
        return frozenset(support)

    def _shared(self, number: int) -> bool:
        gate = self.gates[number]
        return gate.uses > gate.live.bit_count()


# a gate with several users is absorbed by each of them if its table has no more inputs
SHARED_INPUTS = 2


def _bits(run: Run, mask: int) -> int:
    """The bits of its gate that ``mask`` takes of a run."""
    mask &= (1 << run.width) - 1
    if run.stride:
        return mask << run.offset
    return 1 << run.offset if mask else 0


def through(inner: Run, outer: Run) -> Run:
    """The bits that ``outer`` takes of a gate whose bits are those of ``inner``."""
    gate, offset, step, _ = inner
    _, low, stride, width = outer
    return new_run(Run, (gate, offset + step * low, step * stride if width > 1 else 0, width))
