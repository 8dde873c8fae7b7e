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

    __slots__ = ("amount", "flows", "inputs", "live", "op", "zeros")

    def __init__(self, op: Op, inputs: Iterable[Node] = (), amount: int = 0) -> None:
        self.op, self.amount = op, amount
        self.inputs: tuple[Node, ...] = tuple(inputs)
        # (value, lowest bit written, bits written, conditions): for STORE
        self.flows: list[tuple[Node, int, int, tuple[Node, ...]]] = []
        # bits that matter
        self.live = 0
        # low bits that are always zero, found by `settle_zeros`; until then none is known to be
        self.zeros = 0

    def trailing_zeros(self) -> int:
        """Low bits that are always zero if those of the inputs (of a store: of its flows) are."""
        if self.op is Op.CONSTANT:
            return (self.amount & -self.amount).bit_length() - 1 if self.amount else ALWAYS_ZERO
        if self.op is Op.STORE:
            return min((low + value.zeros for value, low, _, _ in self.flows), default=self.zeros)
        known = [node.zeros for node in self.inputs]
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
        # first in, first out: what many users want of one node comes together before it is passed on
        waiting = {self: bits}
        while waiting:
            node = next(iter(waiting))
            new = waiting.pop(node) & ~node.live
            if new:
                node.live |= new
                for source, wanted in node.needs(new):
                    waiting[source] = waiting.get(source, 0) | wanted

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
        right_zeros = right.zeros
        left_zeros = left.zeros if self.op is Op.ADD else 0
        zeros = min(max(left_zeros, right_zeros), ALWAYS_ZERO)
        passed, summed = new & _ones(zeros), _up_to(new & ~_ones(zeros)) & ~_ones(zeros)
        if right_zeros >= left_zeros:
            return [(left, passed | summed), (right, summed)]
        return [(left, summed), (right, passed | summed)]


def _up_to(bits: int) -> int:
    """All bits up to the highest of ``bits``."""
    return EVERY_BIT if bits < 0 else _ones(bits.bit_length())


def settle_zeros(stores: Iterable[Node]) -> None:
    """Find the trailing zeros of all nodes from which ``stores`` flow: the most that they and their inputs agree on.

    A store's `zeros` must be what its first value allows (`ALWAYS_ZERO` if anything does); they only become fewer."""
    users = _users(stores)
    waiting = list(users)
    for node in waiting:
        if node.op is not Op.STORE:
            node.zeros = ALWAYS_ZERO
    queued = set(waiting)
    while waiting:
        node = waiting.pop()
        queued.discard(node)
        zeros = node.trailing_zeros()
        if zeros < node.zeros:
            node.zeros = zeros
            fresh = [user for user in users[node] if user not in queued]
            waiting += fresh
            queued.update(fresh)


def _users(stores: Iterable[Node]) -> dict[Node, list[Node]]:
    """Every node from which ``stores`` flow, conditions included, with the nodes that read it; users come first."""
    users: dict[Node, list[Node]] = {store: [] for store in stores}
    open_nodes = list(users)
    while open_nodes:
        node = open_nodes.pop()
        sources = [value for value, _, _, _ in node.flows] if node.op is Op.STORE else node.inputs
        conditions = [condition for *_, found in node.flows for condition in found]
        for source in (*sources, *conditions):
            if source not in users:
                users[source] = []
                open_nodes.append(source)
        for source in sources:
            users[source].append(node)
    return users
