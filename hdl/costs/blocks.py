"""What blocks hold beside multipliers and words: registers of DSP blocks, sums of two products, registers of memories.

A DSP block has registers at its operands, behind its multipliers and at its result, and adds two products between:

* a register that takes a product and nothing else is the block's, and so is one that alone reads that register, and
  takes its value as it is;
* so is a register whose only reader is the product.  One that several products read stays outside, though a block may
  have a copy of it;
* where two product registers with one enable have no other reader than one sum or difference, and a register takes
  that, the block adds.

None of these registers has a clear, or starts with a one.  That is the multiplier-adder with input, pipeline and output
registers that Quartus infers (Quartus Prime Pro Edition User Guide: Design Recommendations, 683082, 1.3.1 and 1.3.2;
its example has these three registers), in the mode ``m18x18_sumof2`` of Arria 10 (Native Fixed Point DSP, 683583,
3.1.2) and of Agilex 7 (683037, 5.2).  Of Virtex-7 two blocks make such a sum: the register of one product is the first
one's P, whose cascade (PCOUT to PCIN) the second one adds to its M (UG479, chapter 2).

A block memory has a register behind the one that takes the word read: the optional output register of an M20K (Arria 10
Core Fabric Handbook, embedded memory; Agilex 7, 683241) and of a RAMB36 (DO_REG, UG473).  It is the register that alone
reads the first one and takes its value as it is.

All is read off the data flow, as drivers have it; whether a part adds the two, `hdl.costs.resources.fit` decides.
Registers are whole signals: a product in a part of a wider word, such as a stream's payload, is not seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hdl.analysis.dataflow import Driver, Node, Op

_SUMS = (Op.ADD, Op.SUBTRACT)


@dataclass(frozen=True)
class BlockProduct:
    """A product that a register takes."""

    # that register
    register: Node
    # it and those beside that the block has: a second one behind it, and of operands
    registers: tuple[Node, ...]


@dataclass(frozen=True)
class BlockSum:
    """The sum or difference of two products that a register takes."""

    # registers of the products
    products: tuple[Node, Node]
    adder: Node
    # register of the sum
    register: Node


@dataclass(frozen=True)
class BlockContents:
    """What blocks may hold of a circuit."""

    products: tuple[BlockProduct, ...] = ()
    sums: tuple[BlockSum, ...] = ()
    # register that takes the words of a memory -> the one behind it
    behind: Mapping[Node, Node] = field(default_factory=dict)


@dataclass(frozen=True)
class _Register:
    """A register without a clear: what it takes, and when."""

    store: Node
    value: Node
    # (test, what it must be), the outermost first
    enable: tuple[tuple[Node, bool], ...]
    # the multiplexers of the enable, which read the register itself
    holds: tuple[Node, ...]


def block_contents(drivers: Sequence[Driver], outputs: Iterable[Node], words: Collection[Node]) -> BlockContents:
    """What blocks may hold of a circuit with these drivers and ports; registers ``words`` take what memories read."""
    registers = {register.store: register for driver in drivers for register in _plain_registers(driver)}
    if not any(_is_product(one.value) or _signal(one.value) in words for one in registers.values()):
        return BlockContents()
    readers = _Readers(drivers, registers, outputs)
    # what a register takes, and nothing else -> the register
    takers = {register.value: register for register in registers.values() if readers.takes_alone(register)}
    products = [register for register in takers.values() if _is_product(register.value)]
    sums = [
        BlockSum((left.store, right.store), adder, taker.store)
        for adder, taker in takers.items()
        if adder.op in _SUMS
        for left, right in [(registers.get(store) if store else None for store in map(_signal, adder.inputs))]
        if left and right and left is not right and left.enable == right.enable
        if all(takers.get(term.value) is term and _is_product(term.value) for term in (left, right))
        if all(readers.reader_of(term.store) is adder for term in (left, right))
    ]
    behind = {register: readers.delay_of(register.store, takers) for register in products}
    of_memories = {word: store for word in words for store in readers.delay_of(word, takers)}
    # no register is in two blocks
    taken = {register.store for register in products} | {one.register for one in sums} | {*of_memories.values()}
    taken.update(store for stores in behind.values() for store in stores)
    free = registers.keys() - taken
    return BlockContents(
        tuple(
            BlockProduct(
                register.store,
                (register.store, *behind[register], *_operands(register.value, free, readers)),
            )
            for register in products
        ),
        tuple(sums),
        of_memories,
    )


def _operands(product: Node, registers: Collection[Node], readers: _Readers) -> Iterator[Node]:
    """Those of the registers that nothing but a product reads."""
    for store in map(_signal, product.inputs):
        if store is not None and store in registers and readers.reader_of(store) is product:
            yield store


def _plain_registers(driver: Driver) -> Iterator[_Register]:
    """The register of a driver, if it is one that a block may have."""
    store, value = driver.store, driver.value
    if not driver.clocked or store.start != 0 or (driver.low, driver.width) != (0, store.amount):
        return
    # one of an array that is read at a varying index
    if store.memory or any(value.memory for value, *_ in store.flows):
        return
    enable: list[tuple[Node, bool]] = []
    holds: list[Node] = []
    while value.op is Op.CHOOSE and len(value.inputs) == 3:
        test, yes, no = value.inputs
        if _signal(yes) is store:
            enable.append((test, False))
            holds.append(value)
            value = no
        elif _signal(no) is store:
            enable.append((test, True))
            holds.append(value)
            value = yes
        else:
            return
    yield _Register(store, value, tuple(enable), tuple(holds))


def _is_product(node: Node) -> bool:
    return node.op is Op.MULTIPLY and all(factor.op is not Op.CONSTANT for factor in node.inputs)


def _signal(node: Node) -> Node | None:
    """The signal whose whole value a node is."""
    if node.op is Op.EXTEND and node.inputs[0].op is Op.STORE and node.amount == node.inputs[0].amount:
        node = node.inputs[0]
    return node if node.op is Op.STORE else None


class _Readers:
    """Who reads a value; what nothing depends on reads nothing."""

    def __init__(self, drivers: Sequence[Driver], registers: Mapping[Node, _Register], outputs: Iterable[Node]) -> None:
        # None: several, or a port
        self._reader: dict[Node, Node | None] = dict.fromkeys(outputs)
        holding = {hold: register.store for register in registers.values() for hold in register.holds}
        driven = {driver.store for driver in drivers}
        seen: set[Node] = set()
        for driver in drivers:
            if driver.store.live & ~driver.store.zeros:
                self._add(driver.value, driver.store)
                self._walk(driver.value, holding, driven, seen)

    def _add(self, node: Node, reader: Node) -> None:
        self._reader[node] = None if node in self._reader else reader

    def _walk(self, root: Node, holding: dict[Node, Node], driven: set[Node], seen: set[Node]) -> None:
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op is Op.STORE:
                # parts of other signals side by side
                sources: Iterable[Node] = () if node in driven else [value for value, *_ in node.flows]
            else:
                sources = node.inputs
            held = holding.get(node)
            for source in sources:
                if held is None or _signal(source) is not held:
                    self._add(source, node)
                    waiting.append(source)

    def _only(self, node: Node) -> Node | None:
        return self._reader.get(node)

    def reader_of(self, store: Node) -> Node | None:
        """The one operation that reads a signal, None if there are several or none."""
        reader = self._only(store)
        if reader is not None and reader.op is Op.EXTEND and _signal(reader) is store:
            reader = self._only(reader)
        return reader

    def takes_alone(self, register: _Register) -> bool:
        """Whether nothing else reads what a register takes."""
        reader = self._only(register.value)
        return reader is (register.holds[-1] if register.holds else register.store)

    def delay_of(self, store: Node, takers: Mapping[Node, _Register]) -> tuple[Node, ...]:
        """The register that alone reads another one and takes its value as it is."""
        read = self._only(store)
        if read is None:
            return ()
        value = read if read.op is Op.EXTEND and _signal(read) is store else store
        taker = takers.get(value)
        return () if taker is None else (taker.store,)
