"""Which bits of a circuit matter: a graph of its data flow, walked backwards from the outputs.

Synthesis drops a register bit that no output depends on, such as what lies below a rounding, and one that never
changes, such as the zeros below an alignment.  `demand` marks the bits that matter; `Node.zeros` has the bits
that are always zero.  Both err on the side of keeping a bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from functools import reduce
from operator import and_

# every bit, however wide
EVERY_BIT = -1
# all bits of what is always zero
ALWAYS_ZERO = EVERY_BIT
# more bits than any signal has
MOST_BITS = 1 << 20


class Op(IntEnum):
    """How a node's bits depend on those of its inputs."""

    # a signal of amount bits or a memory: any of `flows` may write it
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
    # bit by bit: amount is a Logic
    BITWISE = auto()
    # inputs side by side, none where another is
    JOIN = auto()
    # input 0 chooses an entry of `table`
    TABLE = auto()
    # input 0 decides which of the others
    CHOOSE = auto()
    # any bit depends on every bit, here and below
    MIX = auto()
    # amount is a Comparison
    COMPARE = auto()
    # of truths: amount is a Logic
    LOGIC = auto()
    # amount bits of input 0 from the place that input 1 says
    SELECT = auto()
    # input 0 shifted by input 1; to the left if amount is 1
    SHIFT_BY = auto()
    # of a memory: input 0 goes to the address that input 1 says
    WRITE = auto()
    # a memory stays as it is
    HOLD = auto()


class Logic(IntEnum):
    """Operators on bits, and on truths."""

    AND = auto()
    OR = auto()
    XOR = auto()
    NOT = auto()


class Comparison(IntEnum):
    """Comparisons."""

    EQ = auto()
    NE = auto()
    LT = auto()
    LE = auto()
    GT = auto()
    GE = auto()

    @property
    def mirrored(self) -> Comparison:
        """The same with the operands exchanged."""
        return _MIRRORED.get(self, self)

    def holds(self, left: int, right: int) -> bool:
        """The comparison of two numbers."""
        return bool(_HOLDS[self](left, right))


_MIRRORED = {
    Comparison.LT: Comparison.GT,
    Comparison.GT: Comparison.LT,
    Comparison.LE: Comparison.GE,
    Comparison.GE: Comparison.LE,
}
_HOLDS = {
    Comparison.EQ: operator.eq,
    Comparison.NE: operator.ne,
    Comparison.LT: operator.lt,
    Comparison.LE: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GE: operator.ge,
}


def _trailing_ones(mask: int) -> int:
    return (~mask & (mask + 1)).bit_length() - 1 if mask != ALWAYS_ZERO else MOST_BITS


def _ones(count: int) -> int:
    return (1 << max(0, count)) - 1


class Node:
    """A value of the circuit."""

    __slots__ = ("amount", "flows", "inputs", "live", "memory", "of_three", "op", "start", "table", "zeros")

    def __init__(self, op: Op, inputs: Iterable[Node] = (), amount: int = 0, table: tuple[int, ...] = ()) -> None:
        self.op, self.amount, self.table = op, amount, table
        self.inputs: tuple[Node, ...] = tuple(inputs)
        # (value, lowest bit written, bits written, conditions): for STORE
        self.flows: list[tuple[Node, int, int, tuple[Node, ...]]] = []
        # first value of a register; None for a wire and for what is no STORE
        self.start: int | None = None
        # words of which one is read or written at a varying index
        self.memory = False
        # a sum that is an operand of another sum, or has one
        self.of_three = False
        # bits that matter
        self.live = 0
        # bits that are always zero, found by `settle_zeros`; until then none is known to be
        self.zeros = 0

    def always_zero(self) -> int:
        """Bits that are always zero if those of the inputs (of a store: of its flows) are."""
        rule = _ZEROS.get(self.op)
        return rule(self) if rule is not None else 0

    def needs(self, new: int) -> list[tuple[Node, int]]:
        """The bits of other nodes on which ``new`` bits of this one depend."""
        rule = _NEEDS.get(self.op)
        return rule(self, new) if rule is not None else [(node, EVERY_BIT) for node in self.inputs]

    def _store_zeros(self) -> int:
        found = ALWAYS_ZERO if self.flows else ~_ones(self.amount)
        for value, low, width, _ in self.flows:
            found &= ~((~value.zeros & ((1 << width) - 1)) << low)
        return found

    def _shift_zeros(self) -> int:
        zeros, amount = self.inputs[0].zeros, self.amount
        return zeros >> -amount if amount < 0 else zeros << amount | _ones(amount)

    def _extend_zeros(self) -> int:
        zeros, below = self.inputs[0].zeros, _ones(self.amount)
        return zeros & below | (~below if zeros >> (self.amount - 1) & 1 else 0)

    def _sum_zeros(self) -> int:
        low = _ones(min(_trailing_ones(node.zeros) for node in self.inputs))
        if self.op is Op.SUBTRACT or not self._never_negative():
            return low
        # one bit wider than the wider; with nothing, as wide
        widths = sorted((~node.zeros).bit_length() for node in self.inputs)
        return low | ~_ones(widths[1] + (widths[0] > 0))

    def _product_zeros(self) -> int:
        low = _ones(min(MOST_BITS, sum(_trailing_ones(node.zeros) for node in self.inputs)))
        if not self._never_negative():
            return low
        return low | ~_ones(sum((~node.zeros).bit_length() for node in self.inputs))

    def _never_negative(self) -> bool:
        """Whether all inputs have zeros from some bit on."""
        return all(node.zeros < 0 for node in self.inputs)

    def _shift_needs(self, new: int) -> list[tuple[Node, int]]:
        return [(self.inputs[0], new << -self.amount if self.amount < 0 else new >> self.amount)]

    def _extend_needs(self, new: int) -> list[tuple[Node, int]]:
        sign = 1 << (self.amount - 1) if new >> self.amount else 0
        return [(self.inputs[0], new & _ones(self.amount) | sign)]

    def _carry_needs(self, new: int) -> list[tuple[Node, int]]:
        if self.of_three:
            return self._sum_needs(new)
        # a chain of carries keeps its low end, even where one operand is 0 there; sums of three aren't chains
        bits = _up_to(new)
        return [(node, bits) for node in self.inputs]

    def _store_needs(self, new: int) -> list[tuple[Node, int]]:
        found = []
        # of a wide vector few bits may be new: where these begin and end
        begin, end = (new & -new).bit_length() - 1, new.bit_length() if new > 0 else MOST_BITS
        for value, low, width, conditions in self.flows:
            if low >= end or low + width <= begin:
                continue
            wanted = new >> low & ((1 << width) - 1)
            if wanted:
                found.append((value, wanted))
                if conditions:
                    found += [(condition, EVERY_BIT) for condition in conditions if condition.live != EVERY_BIT]
        return found

    def _sum_needs(self, new: int) -> list[tuple[Node, int]]:
        """Below the trailing zeros of one operand the other's bits pass unchanged, without a carry."""
        left, right = self.inputs
        right_zeros = _trailing_ones(right.zeros)
        left_zeros = _trailing_ones(left.zeros) if self.op is Op.ADD else 0
        low = _ones(max(left_zeros, right_zeros))
        passed, summed = new & low, _up_to(new & ~low) & ~low
        if right_zeros >= left_zeros:
            return [(left, passed | summed), (right, summed)]
        return [(left, summed), (right, passed | summed)]

    def whole(self) -> Node:
        """The node that this one has the bits of, through wires, shifts and extensions."""
        node = self
        while True:
            if node.op in _MOVING:
                node = node.inputs[0]
            elif node.op is Op.STORE and node.start is None and len(node.flows) == 1 and not node.flows[0][3]:
                node = node.flows[0][0]
            else:
                return node


def _intersection(masks: Iterable[int]) -> int:
    return reduce(and_, masks, ALWAYS_ZERO)


# operation -> rule; of others no bit is known to be zero, and every bit depends on all of the inputs
_ZEROS: Mapping[Op, Callable[[Node], int]] = {
    Op.CONSTANT: lambda node: ~node.amount,
    Op.STORE: Node._store_zeros,
    Op.SHIFT: Node._shift_zeros,
    Op.CUT: lambda node: node.inputs[0].zeros | ~_ones(node.amount),
    Op.EXTEND: Node._extend_zeros,
    Op.ADD: Node._sum_zeros,
    Op.SUBTRACT: Node._sum_zeros,
    Op.MULTIPLY: Node._product_zeros,
    Op.TABLE: lambda node: _intersection(~entry for entry in node.table),
    Op.JOIN: lambda node: _intersection(part.zeros for part in node.inputs),
    Op.CHOOSE: lambda node: _intersection(part.zeros for part in node.inputs[1:]),
}
_NEEDS: Mapping[Op, Callable[[Node, int], list[tuple[Node, int]]]] = {
    Op.STORE: Node._store_needs,
    Op.SHIFT: Node._shift_needs,
    Op.CUT: lambda node, new: [(node.inputs[0], new & _ones(node.amount))],
    Op.EXTEND: Node._extend_needs,
    Op.ADD: Node._carry_needs,
    Op.SUBTRACT: Node._carry_needs,
    Op.MULTIPLY: lambda node, new: [(factor, _up_to(new)) for factor in node.inputs],
    Op.BITWISE: lambda node, new: [(part, new) for part in node.inputs],
    Op.JOIN: lambda node, new: [(part, new) for part in node.inputs],
    Op.CHOOSE: lambda node, new: [(node.inputs[0], EVERY_BIT), *((part, new) for part in node.inputs[1:])],
}
_MOVING = frozenset((Op.SHIFT, Op.CUT, Op.EXTEND))
_CARRIES = frozenset((Op.ADD, Op.SUBTRACT))


def _find_sums_of_three(nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.op in _CARRIES:
            for source in node.inputs:
                inner = source.whole()
                if inner.op in _CARRIES:
                    inner.of_three = node.of_three = True


def _up_to(bits: int) -> int:
    """All bits up to the highest of ``bits``."""
    return EVERY_BIT if bits < 0 else _ones(bits.bit_length())


def demand(nodes: Iterable[Node]) -> None:
    """Mark all bits of ``nodes``, and all that they depend on."""
    demand_bits(dict.fromkeys(nodes, EVERY_BIT))


def demand_bits(wanted: Mapping[Node, int], askers: dict[Node, Node] | None = None) -> None:
    """Mark these bits of nodes, and all that they depend on.

    ``askers`` gets, of every other node that is marked, the one for which it was marked first."""
    waiting = dict(wanted)
    while waiting:
        # in rounds: what many users want of one node comes together before it is passed on
        asked, waiting = waiting, {}
        for node, bits in asked.items():
            new = bits & ~node.live
            if new:
                node.live |= new
                for source, bits_of_it in node.needs(new):
                    waiting[source] = waiting.get(source, 0) | bits_of_it
                    if askers is not None and source not in wanted:
                        askers.setdefault(source, node)


def settle_zeros(stores: Iterable[Node]) -> None:
    """Find the zeros of all nodes from which ``stores`` flow, as synthesis does: from constants forwards.

    A store's `zeros` must be what its first value allows.  What is zero only because it was zero before, such as the
    low bits of a counter of eights, isn't found."""
    users = _users(stores)
    allowed = {store: store.zeros for store in users if store.op is Op.STORE}
    for store in allowed:
        store.zeros = 0
    # what is read first stands last
    waiting = list(users)
    queued = set(waiting)
    while waiting:
        node = waiting.pop()
        queued.discard(node)
        zeros = node.always_zero() & allowed.get(node, ALWAYS_ZERO)
        if zeros & ~node.zeros:
            node.zeros |= zeros
            fresh = [user for user in users[node] if user not in queued]
            if fresh:
                waiting += fresh
                queued.update(fresh)
    _find_sums_of_three(users)


def _users(stores: Iterable[Node]) -> dict[Node, list[Node]]:
    """Every node from which ``stores`` flow, conditions included, with the nodes that read it; users come first."""
    users: dict[Node, list[Node]] = {store: [] for store in stores}
    open_nodes = list(users)
    while open_nodes:
        node = open_nodes.pop()
        if node.op is Op.STORE:
            sources = tuple([value for value, _, _, _ in node.flows])
            every = (*sources, *(condition for *_, found in node.flows for condition in found))
        else:
            sources = every = node.inputs
        for source in every:
            if source not in users:
                users[source] = []
                open_nodes.append(source)
        for source in sources:
            users[source].append(node)
    return users


@dataclass(frozen=True, slots=True)
class Driver:
    """What one generator writes into some bits of a signal or into a memory: a value for every case."""

    store: Node
    low: int
    width: int
    value: Node
    clocked: bool
