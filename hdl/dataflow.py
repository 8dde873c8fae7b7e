"""Which bits of a circuit matter: a graph of its data flow, walked backwards from the outputs.

Synthesis drops a register bit that no output depends on, such as what lies below a rounding, and one that never
changes, such as the zeros below an alignment.  `Node.demand` marks the bits that matter; `Node.zeros` counts the low
bits that are always zero.  Both err on the side of keeping a bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

# more trailing zeros than any signal has bits: always zero
ALWAYS_ZERO = 1 << 20
# every bit, however wide
EVERY_BIT = -1
# expressions nested deeper than this are not looked into for trailing zeros
_DEEPEST = 60


class Op(Enum):
    """How a node's bits depend on those of its inputs."""

    # a signal or a memory: any of `flows` may write it
    STORE = auto()
    CONSTANT = auto()
    # input 0 << amount; amount may be negative
    SHIFT = auto()
    # input 0 cut to amount bits
    CUT = auto()
    # input 0 of amount bits with its sign repeated above
    EXTEND = auto()
    ADD = auto()
    SUBTRACT = auto()
    MULTIPLY = auto()
    # bit by bit: & | ^ ~
    BITWISE = auto()
    # input 0 decides which of the others
    CHOOSE = auto()
    # any bit depends on every bit: comparisons, varying shifts and indices
    MIX = auto()


def _ones(count: int) -> int:
    return (1 << max(0, count)) - 1


class Node:
    """A value of the circuit."""

    __slots__ = ("amount", "depth", "flows", "inputs", "live", "op", "zeros")

    def __init__(self, op: Op, inputs: Iterable[Node] = (), amount: int = 0) -> None:
        self.op, self.amount = op, amount
        self.inputs: tuple[Node, ...] = tuple(inputs)
        # (value, lowest bit written, bits written, conditions): for STORE
        self.flows: list[tuple[Node, int, int, tuple[Node, ...]]] = []
        # bits that matter
        self.live = 0
        self.depth: int = 1 + max((node.depth for node in self.inputs if node.op is not Op.STORE), default=0)
        # trailing zeros: for STORE, found by `settle_zeros`; for CONSTANT, known at once
        self.zeros = 0
        if op is Op.CONSTANT:
            self.zeros = (amount & -amount).bit_length() - 1 if amount else ALWAYS_ZERO

    def trailing_zeros(self) -> int:
        """Low bits that are always zero, as far as the stores are settled."""
        if self.op in (Op.STORE, Op.CONSTANT):
            return self.zeros
        if self.depth > _DEEPEST:
            return 0
        known = [node.trailing_zeros() for node in self.inputs]
        if self.op is Op.SHIFT:
            return max(0, known[0] + self.amount) if known[0] < ALWAYS_ZERO else ALWAYS_ZERO
        if self.op in (Op.CUT, Op.EXTEND):
            return ALWAYS_ZERO if known[0] >= self.amount else known[0]
        if self.op in (Op.ADD, Op.SUBTRACT):
            return min(known)
        if self.op is Op.MULTIPLY:
            return min(ALWAYS_ZERO, sum(known))
        return min(known[1:]) if self.op is Op.CHOOSE else 0

    def demand(self, bits: int) -> None:
        """Mark ``bits`` of this node, and all that they depend on."""
        waiting = [(self, bits)]
        while waiting:
            node, wanted = waiting.pop()
            new = wanted & ~node.live
            if new:
                node.live |= new
                waiting += node.needs(new)

    def needs(self, new: int) -> list[tuple[Node, int]]:
        """The bits of other nodes on which ``new`` bits of this one depend."""
        if self.op is Op.STORE:
            return self._store_needs(new)
        if self.op is Op.SHIFT:
            wanted = new << -self.amount if self.amount < 0 else new >> self.amount
            return [(self.inputs[0], wanted)]
        if self.op is Op.CUT:
            return [(self.inputs[0], new & _ones(self.amount))]
        if self.op is Op.EXTEND:
            sign = 1 << (self.amount - 1) if new >> self.amount else 0
            return [(self.inputs[0], new & _ones(self.amount) | sign)]
        if self.op in (Op.ADD, Op.SUBTRACT):
            return self._sum_needs(new)
        if self.op is Op.MULTIPLY:
            return [(node, _up_to(new)) for node in self.inputs]
        if self.op is Op.BITWISE:
            return [(node, new) for node in self.inputs]
        if self.op is Op.CHOOSE:
            return [(self.inputs[0], EVERY_BIT), *((node, new) for node in self.inputs[1:])]
        return [(node, EVERY_BIT) for node in self.inputs]

    def _store_needs(self, new: int) -> list[tuple[Node, int]]:
        found = []
        for value, low, width, conditions in self.flows:
            wanted = (new >> low) & _ones(width)
            if wanted:
                found.append((value, wanted))
                found += [(condition, EVERY_BIT) for condition in conditions]
        return found

    def _sum_needs(self, new: int) -> list[tuple[Node, int]]:
        """Below the trailing zeros of one operand the other's bits pass unchanged, without a carry."""
        left, right = self.inputs
        right_zeros = right.trailing_zeros()
        left_zeros = left.trailing_zeros() if self.op is Op.ADD else 0
        zeros = min(max(left_zeros, right_zeros), ALWAYS_ZERO)
        passed, summed = new & _ones(zeros), _up_to(new & ~_ones(zeros)) & ~_ones(zeros)
        if right_zeros >= left_zeros:
            return [(left, passed | summed), (right, summed)]
        return [(left, summed), (right, passed | summed)]


def _up_to(bits: int) -> int:
    """All bits up to the highest of ``bits``."""
    return EVERY_BIT if bits < 0 else _ones(bits.bit_length())


def settle_zeros(stores: list[Node]) -> None:
    """Find the trailing zeros of all stores: the most that all flows into them agree on."""
    open_stores = [store for store in stores if store.zeros]
    changed = True
    while changed:
        changed = False
        for store in open_stores:
            zeros = min(low + value.trailing_zeros() for value, low, _, _ in store.flows)
            if zeros < store.zeros:
                store.zeros, changed = zeros, True
        open_stores = [store for store in reversed(open_stores) if store.zeros]
