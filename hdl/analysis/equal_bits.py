"""Registers that always hold the same, such as two delays of one signal, and those that never change.

Synthesis keeps one of the first and none of the others.  Each bit of each signal gets an origin, a place in something
that has one of its own; bits of one origin are equal in every cycle.  What an operation computes is taken for new each
time, so two counters that always agree stay two.

Origins are found for all bits of a signal at once, as runs of a `Word` whose "gates" are what has origins of its own;
only signals that follow themselves, as in a shift register, are followed bit by bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TypeAlias

from hdl.analysis.dataflow import Node, Op
from hdl.analysis.gates import ONE, ZERO, Run, constant_run
from hdl.analysis.words import Word, aligned, constant_word, joined

# what has an origin of its own, and the bit of it; the first is ZERO or ONE for bits that never change
Origin: TypeAlias = tuple[int, int]


class EqualBits:
    """Origins of bits; all flows of the nodes must be known."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        # None: of a store that follows itself
        self._words: dict[Node, Word | None] = {}
        # bits of stores that follow themselves
        self._known: dict[tuple[Node, int], Origin] = {}
        # number -> signal
        self._stores: dict[int, Node] = {}
        # store written by several flows -> what alone writes each bit
        self._drivers: dict[Node, list[tuple[Node, int] | None]] = {}

    def origins(self, store: Node, mask: int) -> Iterator[tuple[int, Run]]:
        """(lowest bit, origins) of runs of bits that have those of ``mask``."""
        word = self._word(store)
        at = 0
        if word is None:
            for at in range(mask.bit_length()):
                if mask >> at & 1:
                    number, offset = self._origin(store, at)
                    yield at, Run(number, offset, 0, 1)
            return
        for run in word.part(0, mask.bit_length()).runs if mask else ():
            yield at, run
            at += run.width

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + ONE + 1)

    # ---- whole signals

    def _word(self, root: Node) -> Word | None:
        """The origins of a signal's bits, None if it follows itself."""
        words = self._words
        waiting = [root]
        path: set[Node] = set()
        while waiting:
            store = waiting[-1]
            if store in words:
                waiting.pop()
                continue
            path.add(store)
            sources = self._sources(store)
            missing = [source for source in sources if source not in words]
            if not path.isdisjoint(missing):
                words.update(dict.fromkeys(path))
                path.clear()
            elif missing:
                waiting += missing
            else:
                waiting.pop()
                path.discard(store)
                itself = any(words[source] is None for source in sources)
                words[store] = None if itself else self._of_store(store)
        return words[root]

    def _sources(self, store: Node) -> list[Node]:
        """Signals that bits of ``store`` may come from unchanged."""
        found = []
        waiting = [value for value, _, _, conditions in store.flows if not conditions]
        while waiting:
            node = waiting.pop()
            if node.op is Op.STORE:
                found.append(node)
            elif node.op in _MOVING:
                waiting += node.inputs
        return found

    def _of_store(self, store: Node) -> Word:
        runs: list[Run] = []
        at = 0
        for low, width, driver in self._pieces(store):
            runs += self._run(store, at, low - at)
            runs += self._resolved(self._bits(*driver, width)) if driver else self._run(store, low, width)
            at = low + width
        runs += self._run(store, at, store.amount - at)
        if store.start is not None:
            width = max(at, store.amount)
            start = Word(constant_word(store.start & ((1 << width) - 1)).runs).extended(width)
            runs = [self._registered(run, first.gate) for run, first in aligned(tuple(runs), start)]
        return Word(joined(runs))

    def _pieces(self, store: Node) -> list[tuple[int, int, tuple[Node, int] | None]]:
        """(lowest bit, bits, the expression and its bit that alone and always write them), in order."""
        if len(store.flows) == 1:
            value, low, width, conditions = store.flows[0]
            return [] if conditions else [(low, width, (value, 0))]
        found: list[tuple[int, int, tuple[Node, int] | None]] = []
        for bit, driver in enumerate(self._drivers_of(store)):
            if found:
                low, width, known = found[-1]
                follows = known is driver is None or (
                    known is not None and driver is not None and driver == (known[0], known[1] + width)
                )
                if follows:
                    found[-1] = low, width + 1, known
                    continue
            found.append((bit, 1, driver))
        return found

    def _registered(self, run: Run, start: int) -> Run:
        """The bits of a register that starts with ``start`` and takes those of a run."""
        if run.constant == start:
            return run
        return Run(self._number(("register", start, run.gate)), run.offset, run.stride, run.width)

    def _run(self, node: Node, low: int, width: int) -> list[Run]:
        """Bits of a node that has origins of its own, or of a signal that has not been looked at yet."""
        if width <= 0:
            return []
        number = self._number(node)
        if node.op is Op.STORE:
            self._stores[number] = node
        return [Run(number, low, 1 if width > 1 else 0, width)]

    def _resolved(self, runs: list[Run]) -> list[Run]:
        """With the origins of the signals' bits."""
        found: list[Run] = []
        for run in runs:
            store = self._stores.get(run.gate)
            word = self._words[store] if store is not None else None
            if store is None or word is None or run.offset >= word.width:
                found.append(run)
            elif not run.stride:
                origin = word.part(run.offset, 1).runs[0]
                found.append(Run(origin.gate, origin.offset, 0, run.width))
            else:
                known = min(run.width, word.width - run.offset)
                found += word.part(run.offset, known).runs
                found += self._run(store, run.offset + known, run.width - known)
        return found

    def _bits(self, node: Node, low: int, width: int) -> list[Run]:
        """Where bits of an expression come from, signals not looked at yet."""
        if width <= 0:
            return []
        if node.op is Op.STORE:
            return self._run(node, low, width)
        if node.op is Op.CONSTANT:
            return list(Word(constant_word(node.amount >> low & ((1 << width) - 1)).runs).extended(width))
        if node.op is Op.SHIFT:
            zeros = min(width, max(0, node.amount - low))
            return _zeros(zeros) + self._bits(node.inputs[0], low + zeros - node.amount, width - zeros)
        if node.op is Op.CUT:
            known = max(0, min(width, node.amount - low))
            return self._bits(node.inputs[0], low, known) + _zeros(width - known)
        if node.op is Op.EXTEND:
            known = max(0, min(width, node.amount - low))
            top = self._bits(node.inputs[0], node.amount - 1, 1)[0] if known < width else constant_run(ZERO, 1)
            above = [Run(top.gate, top.offset, 0, width - known)] if known < width else []
            return self._bits(node.inputs[0], low, known) + above
        if node.op is Op.JOIN:
            parts = [self._bits(part, low, width) for part in node.inputs]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=False)
                parts = [self._side_by_side(node, low, *pair) for pair in pairs] + parts[len(parts) & ~1 :]
            return parts[0]
        if node.op is Op.TABLE:
            return [run for bit in range(low, low + width) for run in self._column(node, bit)]
        return self._run(node, low, width)

    def _column(self, node: Node, bit: int) -> list[Run]:
        """A bit of a table, which may be the same in all entries."""
        found = {entry >> bit & 1 for entry in node.table}
        return [constant_run(found.pop(), 1)] if len(found) == 1 else self._run(node, bit, 1)

    def _side_by_side(self, node: Node, low: int, left: list[Run], right: list[Run]) -> list[Run]:
        """Bits of ``node`` of which one part is 0, or that are new."""
        found: list[Run] = []
        for a, b in aligned(tuple(left), tuple(right)):
            if a.gate == ZERO or b.gate == ZERO:
                found.append(b if a.gate == ZERO else a)
            else:
                found += self._run(node, low, a.width)
            low += a.width
        return list(joined(found))

    # ---- bit by bit

    def _origin(self, store: Node, bit: int) -> Origin:
        """The origin of a bit of a signal."""
        trail: list[tuple[Node, int]] = []
        seen: set[tuple[Node, int]] = set()
        while True:
            place = store, bit
            found = self._known.get(place)
            if found is not None:
                break
            driver = None if place in seen else self._driver(store, bit)
            if driver is None:
                found = self._number(store), bit
                break
            seen.add(place)
            trail.append(place)
            run = self._bits(*driver, 1)[0]
            source = self._stores.get(run.gate)
            if source is None:
                found = run.gate, run.offset
                break
            store, bit = source, run.offset
        for place in reversed(trail):
            start = place[0].start
            if start is not None:
                run = self._registered(Run(*found, 0, 1), start >> place[1] & 1)
                found = run.gate, run.offset
            self._known[place] = found
        return found

    def _driver(self, store: Node, bit: int) -> tuple[Node, int] | None:
        """The expression and its bit that alone and always write a bit of a signal; None if there is no such."""
        flows = store.flows
        if len(flows) == 1:
            value, low, width, conditions = flows[0]
            return (value, bit - low) if not conditions and low <= bit < low + width else None
        drivers = self._drivers_of(store)
        return drivers[bit] if bit < len(drivers) else None

    def _drivers_of(self, store: Node) -> list[tuple[Node, int] | None]:
        """Of a signal that several flows write, or none."""
        drivers = self._drivers.get(store)
        if drivers is None:
            drivers = self._drivers[store] = _drivers(store)
        return drivers


# what moves bits to other places
_MOVING = frozenset((Op.SHIFT, Op.CUT, Op.EXTEND, Op.JOIN))


def _zeros(width: int) -> list[Run]:
    return [constant_run(ZERO, width)] if width > 0 else []


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
