"""Registers that always hold the same, such as two delays of one signal, and those that never change.

Synthesis keeps one of the first and none of the others.  Each bit of each signal gets a number; bits with the same
number are equal in every cycle.  What an operation computes is taken for new each time, so two counters that always
agree stay two.
"""

from __future__ import annotations

from collections.abc import Hashable

from hdl.dataflow import Node, Op

# numbers of the bits that are always 0 and always 1
CONSTANTS = (0, 1)


class EqualBits:
    """Numbers of bits; all flows of the nodes must be known."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[tuple[Node, int], int] = {}
        # store written by several flows -> what alone writes each bit
        self._drivers: dict[Node, list[tuple[Node, int] | None]] = {}

    def number(self, store: Node, bit: int) -> int:
        """The number of a bit of a signal; one of `CONSTANTS` if it never changes."""
        trail: list[tuple[Node, int]] = []
        seen: set[tuple[Node, int]] = set()
        while True:
            place = store, bit
            found = self._known.get(place)
            if found is not None:
                break
            driver = None if place in seen else self._driver(store, bit)
            if driver is None:
                found = self._number((*place, "own"))
                break
            seen.add(place)
            trail.append(place)
            node, bit = self._source(*driver)
            if isinstance(node, int):
                found = node
                break
            store = node
        for place in reversed(trail):
            start = place[0].start
            if start is not None and found != (start >> place[1] & 1):
                found = self._number(("register", start >> place[1] & 1, found))
            self._known[place] = found
        return found

    def _source(self, node: Node, bit: int) -> tuple[Node | int, int]:
        """Where a bit of an expression comes from: a bit of a signal, or the number of a bit of its own."""
        while node.op is not Op.STORE:
            if node.op is Op.CONSTANT:
                return node.amount >> bit & 1, 0
            if node.op is Op.SHIFT:
                bit -= node.amount
                if bit < 0:
                    return 0, 0
            elif node.op is Op.CUT and bit >= node.amount:
                return 0, 0
            elif node.op is Op.EXTEND:
                bit = min(bit, node.amount - 1)
            elif node.op is Op.JOIN:
                parts = [part for part in node.inputs if self._source(part, bit) != (0, 0)]
                if len(parts) != 1:
                    return (self._number((node, bit)), 0) if parts else (0, 0)
                node = parts[0]
                continue
            elif node.op is Op.TABLE and len({entry >> bit & 1 for entry in node.table}) == 1:
                return node.table[0] >> bit & 1, 0
            elif node.op is not Op.CUT:
                return self._number((node, bit)), 0
            node = node.inputs[0]
        return node, bit

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + len(CONSTANTS))

    def _driver(self, store: Node, bit: int) -> tuple[Node, int] | None:
        """The expression and its bit that alone and always write a bit of a signal; None if there is no such."""
        flows = store.flows
        if len(flows) == 1:
            value, low, width, conditions = flows[0]
            return (value, bit - low) if not conditions and low <= bit < low + width else None
        drivers = self._drivers.get(store)
        if drivers is None:
            drivers = self._drivers[store] = _drivers(store)
        return drivers[bit] if bit < len(drivers) else None


def _drivers(store: Node) -> list[tuple[Node, int] | None]:
    """For each bit of a signal the expression and its bit that alone and always write it, None if there is no such."""
    width = max((low + width for _, low, width, _ in store.flows), default=0)
    found: list[tuple[Node, int] | None] = [None] * width
    written = bytearray(width)
    for value, low, bits, conditions in store.flows:
        for bit in range(low, low + bits):
            found[bit] = None if conditions or written[bit] else (value, bit - low)
            written[bit] = 1
    return found
