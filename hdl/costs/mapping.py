"""The data flow of a circuit as gates, carry chains and what lies between them: how many look-up tables it takes.

Follows what synthesis does with words (Yosys' `synth_intel_alm` and `synth_xilinx`): a flip-flop has a synchronous
clear and an enable of its own, which take multiplexers before it away; sums, differences and comparisons of two
values that vary are carry chains; a sum of three is a row of adders in tables before a chain; a comparison with a
constant of few bits is a table.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from hdl.analysis.dataflow import EVERY_BIT, Comparison, Driver, Logic, Node, Op
from hdl.analysis.gates import ONE, TABLE_INPUTS, ZERO, GateKind, Gates, Run, constant_run, new_run, through
from hdl.analysis.words import Word, aligned, constant_word, joined, single_bits

# widest word that a shift by a varying number makes of a narrower one
WIDEST_WORD = 512
# a comparison with a constant of no more bits is one table
COMPARED_IN_A_TABLE = 6
# operand bits of one multiplier, and the least for which one is taken; a product of wider ones is a sum of several
WIDEST_FACTOR, NARROWEST_FACTOR = 27, 4


def factors(width: int) -> int:
    """Multipliers side by side for a factor of ``width`` bits; a short rest is made of logic."""
    whole, rest = divmod(width, WIDEST_FACTOR)
    return max(1, whole + (rest >= NARROWEST_FACTOR))


@dataclass(frozen=True)
class Mapped:
    """Logic of a circuit."""

    # inputs -> tables of so many
    tables: Mapping[int, int]
    # bits of carry chains, what starts them included
    carry_bits: int
    # bits of sums of three, and of each operand beyond
    three_bits: int
    # full adders of these sums
    full_adders: int
    # (words, bits) -> constants of more words than a look-up table has
    constants: Mapping[tuple[int, int], int]
    # multiplexers that find a bit of those by the bits of the place, equal ones and inverses once
    choices: int
    # bits of registers that something takes that is neither table nor flip-flop
    bare: Mapping[Node, int]
    # other bits of registers that two flip-flops take, or one and a table
    shared: Mapping[Node, int]
    # bits of registers that keep what they start with
    still: Mapping[Node, int]
    # sums that are chains of their own -> bits of theirs among `carry_bits`
    sums: Mapping[Node, int]


class Mapper:
    """Turns drivers into gates; ``kept`` tells which bits of a driven register are built."""

    def __init__(self, drivers: Sequence[Driver], kept: Callable[[Driver], int]) -> None:
        self.gates = Gates()
        self._kept = kept
        self._words: dict[Node, Word] = {}
        self._open: set[Node] = set()
        self._drivers = drivers
        self._wires: dict[Node, list[Driver]] = {}
        # carry chains, and the cells that start them
        self._chains: dict[int, int] = {}
        # sum -> its chain
        self._summed: dict[Node, int] = {}
        # of products wider than a multiplier
        self._product_bits = 0
        self._constants: Counter[tuple[int, int]] = Counter()
        # places in large tables -> multiplexers that choose by them: (words, bits of what they choose among)
        self._choices: defaultdict[tuple[Run, ...], set[tuple[int, int]]] = defaultdict(set)
        # what is read from large tables: by table and place
        self._looked_up: dict[tuple[tuple[int, ...], tuple[Run, ...]], Word] = {}
        # flip-flops of registers that none starts with 1
        self._leaves: dict[Node, Word] = {}
        # register -> bits that keep what they start with
        self._still: dict[Node, int] = {}
        # whether nodes are not 0: tests are those of many registers
        self._truths: dict[Node, Run] = {}
        for driver in drivers:
            if not driver.clocked:
                self._wires.setdefault(driver.store, []).append(driver)

    def run(self, outputs: Sequence[Node]) -> Mapped:
        """Map all registers, memories and outputs."""
        for driver in self._drivers:
            if driver.clocked:
                self._register(driver)
        for output in outputs:
            self._need(self.word(output), EVERY_BIT)
        self.gates.settle()
        tables = self.gates.cover(TABLE_INPUTS)
        inner, outer = self._sums_of_three()
        three = adders = 0
        alone: dict[int, int] = {}
        for number, start in self._chains.items():
            bits = self.gates.gates[number].live.bit_length()
            if number in outer:
                # operands may be far narrower than their sum
                full = self._full_adders(number, inner)
                three += min(bits * outer[number], full)
                adders += full
            elif bits and number not in inner:
                alone[number] = bits + start
        leaves = {node: word.runs[0].gate for node, word in self._leaves.items()}
        bare = {node: self.gates.bare.get(gate, 0) for node, gate in leaves.items()}
        shared = {node: self.gates.shared.get(gate, 0) & ~bare[node] for node, gate in leaves.items()}
        return Mapped(
            dict(sorted(tables.items())),
            sum(alone.values()) + self._product_bits,
            three,
            adders,
            dict(sorted(self._constants.items())),
            sum(map(len, self._choices.values())),
            bare,
            shared,
            self._still,
            {node: alone[number] for node, number in self._summed.items() if number in alone},
        )

    def _need(self, word: Word, mask: int) -> None:
        for run in word.runs:
            self.gates.need(run, mask & ((1 << run.width) - 1))
            mask >>= run.width

    def _sums_of_three(self) -> tuple[set[int], dict[int, int]]:
        """Chains whose sum is an operand of one other chain and nothing else; those chains, and operands beyond two."""
        within: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for number in self._chains:
            for run, mask in self.gates.gates[number].summed():
                if run.gate in self._chains:
                    within[run.gate][number] += mask.bit_count()
        users: dict[int, int] = {}
        for number, found in within.items():
            gate, user = self.gates.gates[number], next(iter(found))
            alone = len(found) == 1 and found.total() >= gate.uses
            if alone and gate.label in _SUMS and self.gates.gates[user].label in _SUMS:
                users[number] = user
        outer: Counter[int] = Counter()
        for user in users.values():
            while user in users:
                user = users[user]
            outer[user] += 1
        return set(users), dict(outer)

    def _full_adders(self, number: int, inner: Collection[int]) -> int:
        """Of a chain and the sums among its operands: three bits of a place become one, and one of the place above."""
        heights: Counter[int] = Counter()
        waiting = [(number, 0)]
        while waiting:
            chain, low = waiting.pop()
            for operand in self.gates.gates[chain].operands:
                at = low
                for run in operand:
                    if run.gate in inner and run.stride:
                        waiting.append((run.gate, at - run.offset))
                    elif run.constant is None:
                        heights.update(range(at, at + run.width))
                    at += run.width
        adders = carries = 0
        for place in range(self.gates.gates[number].live.bit_length()):
            bits = heights[place] + carries
            adders += max(0, bits - 1) // 2
            carries = bits // 2
        return adders

    # ---- registers and memories

    def _register(self, driver: Driver) -> None:
        if driver.value.op is Op.HOLD:
            return
        if driver.store.memory:
            self._memory(driver)
            return
        kept = self._kept(driver)
        own = self._store(driver.store)
        at = 0
        for run in self._whole(driver.value, driver.width).runs:
            width = run[3]
            mask = kept >> at & ((1 << width) - 1)
            low = driver.low + at
            taken = self._flip_flops(run, own.first_of(low, width), mask) if mask else None
            if taken is not None:
                start = driver.store.start or 0
                still = mask << low & (start if taken else ~start)
                self._still[driver.store] = self._still.get(driver.store, 0) | still
            at += width

    def _whole(self, node: Node, width: int) -> Word:
        return self.word(node).part(0, width)

    def _flip_flops(self, value: Run, own: Run, mask: int) -> int | None:
        """Registers of a run: what is left of its multiplexers when clear and enable have taken theirs.

        Returns the constant that all of them take and nothing else, None if there is none."""
        gates = self.gates
        value, clears, _ = self._without_clears(value, own, None)
        outer = bool(clears)
        value, enable = self._without_holds(value, own)
        if not outer:
            value, clears, _ = self._without_clears(value, own, None)
        if value[0] > ONE:
            # a flip-flop that starts with 1 holds the inverse
            inverse = gates.gates[own.gate].kind is GateKind.NOT
            gates.need(gates.invert(value) if inverse else value, mask, flip_flop=not clears)
        clear = gates.reduce(GateKind.OR, clears)
        if outer and enable.constant is None:
            # the enable of this flip-flop comes before its clear
            enable = gates.both(GateKind.OR, enable, clear)
        for control in (clear, enable):
            gates.need(control, 1)
        return None if clears else value.constant

    def _without_clears(self, value: Run, own: Run, known: int | None) -> tuple[Run, list[Run], int | None]:
        found: list[Run] = []
        while True:
            gate = self.gates.gates[value.gate]
            if gate.kind is not GateKind.MUX:
                return value, found, known
            test, yes, no = (through(run, value) for run in gate.inputs)
            if test.stride:
                return value, found, known
            if yes.constant is not None and known in (None, yes.constant) and no != own:
                known, value = yes.constant, no
                found.append(test.part(0, 1))
            elif no.constant is not None and known in (None, no.constant) and yes != own:
                known, value = no.constant, yes
                found.append(self.gates.invert(test.part(0, 1)))
            else:
                return value, found, known

    def _without_holds(self, value: Run, own: Run) -> tuple[Run, Run]:
        """The value where the register does not keep its own, and when that is."""
        always = constant_run(ONE, 1)
        if value == own:
            return value, constant_run(ZERO, 1)
        gate = self.gates.gates[value.gate]
        if gate.kind is not GateKind.MUX:
            return value, always
        test, yes, no = (through(run, value) for run in gate.inputs)
        if test.stride:
            return value, always
        yes_value, yes_enable = self._without_holds(yes, own)
        no_value, no_enable = self._without_holds(no, own)
        if (yes_enable, no_enable) == (always, always):
            return value, always
        enable = self.gates.mux(test.part(0, 1), yes_enable, no_enable)
        if yes_enable.constant == 0:
            return no_value, enable
        if no_enable.constant == 0:
            return yes_value, enable
        return self.gates.mux(test, yes_value, no_value), enable

    def _memory(self, driver: Driver) -> None:
        """What a memory's write port takes: the value written, its address, and when."""
        node, enable = driver.value, constant_run(ONE, 1)
        while node.op is Op.CHOOSE:
            test, yes, no = node.inputs
            if no.op is Op.HOLD:
                enable, node = self.gates.both(GateKind.AND, enable, self._truth(test)), yes
            elif yes.op is Op.HOLD:
                enable = self.gates.both(GateKind.AND, enable, self.gates.invert(self._truth(test)))
                node = no
            else:
                break
        self.gates.need(enable, 1)
        writes = [node]
        while writes:
            node = writes.pop()
            if node.op is Op.CHOOSE:
                self.gates.need(self._truth(node.inputs[0]), 1)
                writes += node.inputs[1:]
            elif node.op is Op.WRITE:
                value, address = node.inputs
                self._need(self._whole(value, driver.width), self._kept(driver))
                self._need(self.word(address), EVERY_BIT)

    # ---- words

    def word(self, root: Node) -> Word:
        """The bits of a node."""
        words, open_nodes = self._words, self._open
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if node in words:
                waiting.pop()
                continue
            open_nodes.add(node)
            sources = self._sources(node) if node.op is Op.STORE else node.inputs
            missing = [source for source in sources if source not in words]
            if missing:
                fresh = [source for source in missing if source not in open_nodes]
                if fresh:
                    waiting += fresh
                    continue
            waiting.pop()
            # a loop of wires that is none bit by bit ends in a leaf
            words[node] = self._leaf(node) if missing else self._lower(node)
            open_nodes.discard(node)
        return words[root]

    def _sources(self, node: Node) -> tuple[Node, ...]:
        """What a signal's bits are read off."""
        if node.start is not None or node.memory:
            return ()
        if node in self._wires:
            return tuple(driver.value for driver in self._wires[node])
        return tuple(value for value, *_ in node.flows)

    def _leaf(self, node: Node) -> Word:
        known = self._words.get(node)
        if known is None:
            known = self._words[node] = Word((self.gates.leaf(max(1, node.amount)),))
        return known

    def _lower(self, node: Node) -> Word:
        return _RULES.get(node.op, Mapper._unknown)(self, node)

    def _unknown(self, node: Node) -> Word:
        """No rule: its inputs must exist, and its result is new."""
        for source in node.inputs:
            self._need(self._words[source], EVERY_BIT)
        return Word((self.gates.leaf(max([1, *(self._words[source].width for source in node.inputs)])),))

    def _store(self, node: Node) -> Word:
        if node.memory:
            return self._leaf(node)
        if node.start is not None:
            return self._flip_flop_bits(node)
        if node in self._wires:
            pieces = [(driver.low, driver.width, self._words[driver.value]) for driver in self._wires[node]]
        else:
            pieces = [(low, width, self._words[value]) for value, low, width, _ in node.flows]
        if not pieces:
            return self._leaf(node)
        runs: list[Run] = []
        at = 0
        for low, width, word in sorted(pieces, key=lambda piece: piece[0]):
            if low > at:
                runs.append(constant_run(ZERO, low - at))
            if low >= at:
                runs += word.part(0, width).runs
                at = low + width
        return Word(joined(runs))

    def _flip_flop_bits(self, node: Node) -> Word:
        """A register: flip-flops hold the inverse of bits that start with 1; bits that are always 0 have none."""
        if node not in self._words:
            assert node.start is not None
            raw = Word((self.gates.leaf(max(1, node.amount)),))
            self._leaves[node] = raw
            start = constant_word(node.start).extended(raw.width) if node.start else (constant_run(ZERO, raw.width),)
            runs = [self.gates.invert(bits) if first.constant else bits for bits, first in aligned(raw.runs, start)]
            zeros = node.zeros & ((1 << raw.width) - 1)
            if zeros:
                pairs = aligned(tuple(runs), constant_word(zeros).extended(raw.width))
                runs = [constant_run(ZERO, bits.width) if zero.constant else bits for bits, zero in pairs]
            self._words[node] = Word(joined(runs))
        return self._words[node]

    def _constant(self, node: Node) -> Word:
        return constant_word(node.amount)

    def _shift(self, node: Node) -> Word:
        word = self._words[node.inputs[0]]
        if node.amount >= 0:
            return Word(joined((constant_run(ZERO, node.amount), *word.runs)), word.signed)
        left = max(1, word.width + node.amount)
        return Word(word.part(-node.amount, left).runs, word.signed)

    def _cut(self, node: Node) -> Word:
        return self._words[node.inputs[0]].part(0, node.amount)

    def _extend(self, node: Node) -> Word:
        return Word(self._words[node.inputs[0]].part(0, node.amount).runs, True)

    def _join(self, node: Node) -> Word:
        runs: list[Run] = []
        at = 0
        for source in node.inputs:
            # each part is shifted to its place
            word = self._words[source]
            if word.width > at:
                runs += word.part(at, word.width - at).runs
                at = word.width
        return Word(joined(runs))

    def _choose(self, node: Node) -> Word:
        if len(node.inputs) == 2:
            return self._read(node)
        yes, no = (self._words[source] for source in node.inputs[1:])
        return self._either(self._truth(node.inputs[0]), yes, no)

    def _either(self, test: Run, yes: Word, no: Word) -> Word:
        """``yes if test else no``."""
        gate, offset = test.gate, test.offset
        mux = self.gates.mux
        return self._both(yes, no, lambda a, b: a if a == b else mux(new_run(Run, (gate, offset, 0, a[3])), a, b))

    def _both(self, left: Word, right: Word, gate: Callable[[Run, Run], Run]) -> Word:
        """A gate over two words, run by run."""
        signed = left.signed or right.signed
        if left.signed == right.signed and left.width == right.width and len(left.runs) == len(right.runs) == 1:
            return Word((gate(left.runs[0], right.runs[0]),), signed)
        width = max(word.width + (signed and not word.signed) for word in (left, right))
        return Word(joined([gate(a, b) for a, b in aligned(left.extended(width), right.extended(width))]), signed)

    def _bitwise(self, node: Node) -> Word:
        kind = Logic(node.amount)
        first = self._words[node.inputs[0]]
        if kind is Logic.NOT:
            # the result of ~ has no length: above it is ones
            return Word(
                tuple(
                    self.gates.invert(run) for run in (*first.runs, *(() if first.signed else (constant_run(ZERO, 1),)))
                ),
                True,
            )
        gate_kind = {Logic.AND: GateKind.AND, Logic.OR: GateKind.OR, Logic.XOR: GateKind.XOR}[kind]
        return self._both(first, self._words[node.inputs[1]], lambda a, b: self.gates.both(gate_kind, a, b))

    def _truth(self, node: Node) -> Run:
        """Whether a value is not 0."""
        found = self._truths.get(node)
        if found is None:
            found = self._truths[node] = self.gates.reduce(GateKind.OR, self.word(node).trimmed().bits())
        return found

    def _logic(self, node: Node) -> Word:
        kind = Logic(node.amount)
        truths = [self._truth(source) for source in node.inputs]
        if kind is Logic.NOT:
            return Word((self.gates.invert(truths[0]),))
        return Word((self.gates.reduce(GateKind.AND if kind is Logic.AND else GateKind.OR, truths),))

    def _sum(self, node: Node) -> Word:
        left, right = (self._words[source].trimmed() for source in node.inputs)
        if left.constant is not None and right.constant is not None:
            return constant_word(left.constant + (right.constant if node.op is Op.ADD else -right.constant))
        if right.constant == 0 or (left.constant == 0 and node.op is Op.ADD):
            return left if right.constant == 0 else right
        signed = left.signed or right.signed or node.op is Op.SUBTRACT
        width = 1 + max(word.width + ((left.signed or right.signed) and not word.signed) for word in (left, right))
        run = self.gates.chain((left.extended(width), right.extended(width)), node.op, width)
        self._chains.setdefault(run.gate, int(node.op is Op.SUBTRACT))
        self._summed[node] = run.gate
        return Word((run,), signed)

    def _multiply(self, node: Node) -> Word:
        left, right = (self._words[source].trimmed() for source in node.inputs)
        for word, other in ((left, right), (right, left)):
            if word.constant is not None and word.constant >= 0 and word.constant & (word.constant - 1) == 0:
                if word.constant == 0:
                    return constant_word(0)
                shift = word.constant.bit_length() - 1
                return Word(joined((constant_run(ZERO, shift), *other.runs)), other.signed)
        if left.constant is not None and right.constant is not None:
            return constant_word(left.constant * right.constant)
        self._need(left, EVERY_BIT)
        self._need(right, EVERY_BIT)
        if left.constant is None and right.constant is None:
            self._product_bits += (factors(left.width) * factors(right.width) - 1) * (left.width + right.width)
        return Word((self.gates.leaf(max(1, left.width + right.width)),), left.signed or right.signed)

    def _compare(self, node: Node) -> Word:
        kind = Comparison(node.amount)
        left, right = (self._words[source] for source in node.inputs)
        if left.constant is not None and right.constant is not None:
            return constant_word(int(kind.holds(left.constant, right.constant)))
        if left.constant is not None:
            left, right, kind = right, left, kind.mirrored
        if kind in (Comparison.EQ, Comparison.NE):
            equal = self._equal(left, right)
            return Word((equal if kind is Comparison.EQ else self.gates.invert(equal),))
        if right.constant is not None:
            return Word((self._compare_constant(left.trimmed(), right.constant, kind),))
        return Word((self._compare_chain(left, right, kind),))

    def _equal(self, left: Word, right: Word) -> Run:
        signed = left.signed or right.signed
        width = max(word.trimmed().width + (signed and not word.signed) for word in (left, right))
        pairs = aligned(left.extended(width), right.extended(width))
        bits: list[Run] = []
        for a, b in pairs:
            same = self.gates.invert(self.gates.both(GateKind.XOR, a, b))
            if same[0] != ONE:
                bits += single_bits(same) if same[2] else (same.part(0, 1),)
        return self.gates.reduce(GateKind.AND, bits)

    def _compare_constant(self, word: Word, constant: int, kind: Comparison) -> Run:
        """Against a number: as ``<`` of a number, perhaps inverted."""
        bound = constant + (kind in (Comparison.LE, Comparison.GT))
        inverted = kind in (Comparison.GT, Comparison.GE)
        low, high = (-(1 << (word.width - 1)), 1 << (word.width - 1)) if word.signed else (0, 1 << word.width)
        if bound <= low or bound >= high:
            less = constant_run(int(bound >= high), 1)
        elif word.width <= COMPARED_IN_A_TABLE:
            less = self.gates.gate(GateKind.FUNCTION, word.bits(), ("<", bound, word.signed))
        else:
            # synthesis has the number on the left, whatever the text says
            return self._compare_chain(constant_word(constant), word, kind.mirrored)
        return self.gates.invert(less) if inverted else less

    def _compare_chain(self, left: Word, right: Word, kind: Comparison) -> Run:
        """A difference, and what tells from its top whether it is negative."""
        signed = left.signed or right.signed
        width = max(word.width + (signed and not word.signed) for word in (left.trimmed(), right.trimmed()))
        a, b = left.extended(width), right.extended(width)
        run = self.gates.chain((a, b), "compare", width)
        self._chains.setdefault(run.gate, 1)
        words = Word(a), Word(b), Word((run,))
        tops = [word.first_of(width - 1, 1) for word in words]
        if signed and width > 1:
            tops += [word.first_of(width - 2, 1) for word in words]
        less = self.gates.gate(GateKind.FUNCTION, tops, "less")
        if kind is Comparison.LT:
            return less
        # the others ask beside for equality
        either = self.gates.both(GateKind.OR, less, self._equal(left, right))
        return self.gates.invert(either) if kind is Comparison.GT else either

    def _select(self, node: Node) -> Word:
        """Bits from a varying place on: multiplexers for each bit of the place."""
        vector, index = (self._words[source] for source in node.inputs)
        return self._shifted_right(vector, index.trimmed()).part(0, max(1, node.amount))

    def _shifted_right(self, vector: Word, index: Word) -> Word:
        for place, bit in reversed(list(enumerate(index.bits()))):
            step = 1 << place
            if step < vector.width:
                moved = Word(vector.part(step, vector.width - step).runs, vector.signed)
                vector = self._either(bit, moved, vector)
        return vector

    def _shift_by(self, node: Node) -> Word:
        vector, index = (self._words[source] for source in node.inputs)
        if not node.amount:
            return self._shifted_right(vector, index.trimmed())
        widest = max(WIDEST_WORD, 2 * vector.width)
        for place, bit in enumerate(index.trimmed().bits()):
            step = 1 << place
            if vector.width + step > widest:
                break
            vector = self._either(bit, Word((constant_run(ZERO, step), *vector.runs), vector.signed), vector)
        return vector

    def _table(self, node: Node) -> Word:
        """A column of a table for each bit of its words."""
        bits = self._words[node.inputs[0]].trimmed().bits()
        # words beyond what its index can say are never read
        entries = node.table[: 1 << len(bits)]
        signed = min(entries) < 0
        width = max(
            max(entry.bit_length() if entry >= 0 else (-entry - 1).bit_length() + 1 for entry in entries)
            + (signed and max(entries) > 0),
            1,
        )
        if len(bits) > TABLE_INPUTS:
            return self._large_table(entries, bits, Word((constant_run(ZERO, width),), signed))
        runs = []
        for column in range(width):
            ones = sum(1 << place for place, entry in enumerate(entries) if entry >> column & 1)
            runs.append(self._column(bits, ones, len(entries)))
        return Word(joined(runs), signed)

    def _large_table(self, table: tuple[int, ...], bits: list[Run], empty: Word) -> Word:
        """One of more places than a look-up table has: its columns that vary are new."""
        key = table, tuple(bits)
        if key not in self._looked_up:
            for bit in bits:
                self.gates.need(bit, 1)
            varying = [any((entry ^ table[0]) >> column & 1 for entry in table) for column in range(empty.width)]
            self._constants[len(table), sum(varying)] += 1
            runs = [
                self.gates.leaf(1) if varies else constant_run(table[0] >> column & 1, 1)
                for column, varies in enumerate(varying)
            ]
            words = 1 << (len(table) - 1).bit_length()
            entries = (*table, *[table[-1]] * (words - len(table)))
            for column in range(empty.width):
                ones = sum((entry >> column & 1) << place for place, entry in enumerate(entries))
                _choose(ones, words, self._choices[tuple(bits)])
            self._looked_up[key] = Word(joined(runs), empty.signed)
        return self._looked_up[key]

    def _column(self, bits: list[Run], ones: int, size: int) -> Run:
        """The function of ``bits`` that is 1 at the places of ``ones``; anything from ``size`` on."""
        every = (1 << size) - 1
        if ones == 0 or size <= 0:
            return constant_run(ZERO, 1)
        if ones == every:
            return constant_run(ONE, 1)
        # bits that choose nothing
        for place in range(len(bits) - 1, -1, -1):
            if size <= 1 << place:
                return self._column(bits[:place], ones, size)
        used = _support(ones, len(bits))
        if len(used) == 1:
            return bits[used[0]] if not ones & 1 else self.gates.invert(bits[used[0]])
        return self.gates.gate(GateKind.FUNCTION, [bits[place] for place in used], _projected(ones, used))

    def _read(self, node: Node) -> Word:
        """A word of a memory, or of registers behind multiplexers."""
        index, store = node.inputs
        self._need(self._words[index], EVERY_BIT)
        inner = store.inputs[0] if store.op is Op.EXTEND else store
        leaf = self.gates.leaf(max(1, inner.amount))
        return Word((leaf,), store.op is Op.EXTEND)


def _choose(ones: int, words: int, found: set[tuple[int, int]]) -> None:
    """Add the multiplexers of a tree that chooses among so many bits, halves by the highest bit of the place."""
    if ones & 1:
        ones ^= (1 << words) - 1
    if not ones or (words, ones) in found:
        return
    half = words // 2
    low, high = ones & ((1 << half) - 1), ones >> half
    if low != high:
        found.add((words, ones))
        _choose(high, half, found)
    _choose(low, half, found)


def _support(ones: int, count: int) -> list[int]:
    """Which of ``count`` inputs a function depends on."""
    found = []
    for place in range(count):
        step = 1 << place
        if any((ones >> at & 1) != (ones >> (at + step) & 1) for at in range(1 << count) if not at & step):
            found.append(place)
    return found


def _projected(ones: int, used: list[int]) -> int:
    """The function over the inputs it depends on."""
    label = 0
    for at in range(1 << len(used)):
        full = sum(1 << place for bit, place in enumerate(used) if at >> bit & 1)
        label |= (ones >> full & 1) << at
    return label


_SUMS = (Op.ADD, Op.SUBTRACT)
_RULES: Mapping[Op, Callable[[Mapper, Node], Word]] = {
    Op.STORE: Mapper._store,
    Op.CONSTANT: Mapper._constant,
    Op.SHIFT: Mapper._shift,
    Op.CUT: Mapper._cut,
    Op.EXTEND: Mapper._extend,
    Op.ADD: Mapper._sum,
    Op.SUBTRACT: Mapper._sum,
    Op.MULTIPLY: Mapper._multiply,
    Op.BITWISE: Mapper._bitwise,
    Op.JOIN: Mapper._join,
    Op.TABLE: Mapper._table,
    Op.CHOOSE: Mapper._choose,
    Op.COMPARE: Mapper._compare,
    Op.LOGIC: Mapper._logic,
    Op.SELECT: Mapper._select,
    Op.SHIFT_BY: Mapper._shift_by,
}
