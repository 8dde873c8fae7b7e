"""What an elaborated circuit is made of, and how many blocks of a device that takes.

`count` reads multipliers, memories and registers off the elaborated MyHDL block through the interval analysis of
`hdl.analysis.intervals`, and look-up tables and carry chains off its data flow (`hdl.costs.mapping`); `fit` packs them
into the blocks of a part.  There is no formula beside the circuit.

What counts as what:
* a product of two values that vary is a multiplier of their interval widths; with a constant factor it is adders,
  one for each non-zero digit of the constant's canonical signed-digit form but the first;
* a list of signals written at a varying index is a memory; one only read at a varying index, and nowhere written,
  a ROM.  The register that takes a word straight from a memory is the block's own output register; a memory with two
  of them has two ports that read;
* every bit that a clocked process writes is a register, once, if an output depends on it and it isn't always zero
  (`hdl.analysis.liveness`), and if it isn't a copy of the sign of narrower values.  Likewise for the width of memories.
  Registers that always hold the same, such as two delays of one signal, are one (`hdl.analysis.equal_bits`).
* registers around products, sums of two products, and second registers behind memories are counted as all are, and once
  more beside them as what blocks have where a part's allow it (`hdl.costs.blocks`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

from hdl.analysis.dataflow import EVERY_BIT, Driver, Node
from hdl.analysis.gates import ONE, TABLE_INPUTS, ZERO, Run
from hdl.analysis.intervals import Event, GeneratorAnalysis, Kind, Visitor
from hdl.analysis.liveness import Liveness, trace
from hdl.analysis.ranges import Interval
from hdl.costs.blocks import BlockContents, block_contents
from hdl.costs.mapping import Mapper
from hdl.memory import LOGIC_MEMORY_WORDS
from hdl.parts.part import Part
from hdl.spelling import QUIET, spelt

# a memory that would fill less of its blocks than this goes to MLABs as well (the rule of Yosys' `synth_intel_alm`)
LEAST_M20K_FILL = 0.05
# words of the largest look-up table, and those among which one chooses
TABLE_WORDS, CHOSEN_WORDS = 1 << TABLE_INPUTS, 4
# inputs of a table that takes half an ALM
HALF_INPUTS = 5


@dataclass(frozen=True)
class Resources:
    """The contents of a circuit, before any device is known."""

    # (wider, narrower) operand bits -> multipliers
    multipliers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (words, bits) -> memories with one write and one read port
    memories: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (words, bits) -> memories with a port that writes or reads, and one that reads
    dual_memories: Mapping[tuple[int, int], int] = field(default_factory=dict, metadata=QUIET)
    # flip-flops, output registers of block memories left out
    registers: int = 0
    # flip-flops that are output registers of memories, by (words, bits) of the memory
    memory_registers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (wider, narrower) operand bits -> products with a constant that is no power of two, made of adders
    constant_multipliers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # bits of the adders of products with constants
    constant_adder_bits: int = 0
    # bits of the carry chains of all other adders, subtractors and comparators
    carry_bits: int = 0
    # bits of sums of three values, and again for each value beyond, but no more than full adders
    three_bits: int = 0
    # full adders of these sums
    full_adders: int = field(default=0, metadata=QUIET)
    # inputs -> look-up tables of so many: multiplexers, comparisons, tables, logic
    tables: Mapping[int, int] = field(default_factory=dict)
    # (words, bits) -> tables of constants of more words than a look-up table has
    constants: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (words, bits) of a memory -> bits read from it that something takes that is neither table nor flip-flop
    bare_bits: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (words, bits) of a memory -> other bits read from it that two flip-flops take, or one and a table
    shared_bits: Mapping[tuple[int, int], int] = field(default_factory=dict, metadata=QUIET)
    # multiplexers of trees that find bits of the tables of constants, equal ones and inverses once
    choices: int = field(default=0, metadata=QUIET)
    # (wider, narrower) operand bits, and how many of `registers` a DSP block has around that product -> products
    multiplier_registers: Mapping[tuple[int, int, int], int] = field(default_factory=dict, metadata=QUIET)
    # operand bits of two products, and how many of `registers` and of `carry_bits` are their sum's -> sums
    product_sums: Mapping[tuple[int, int, int, int, int, int], int] = field(default_factory=dict, metadata=QUIET)
    # (words, bits) of a memory -> how many of `registers` are behind those that take its words
    output_registers: Mapping[tuple[int, int], int] = field(default_factory=dict, metadata=QUIET)

    __repr__ = spelt

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            _sum(self.multipliers, other.multipliers),
            _sum(self.memories, other.memories),
            _sum(self.dual_memories, other.dual_memories),
            self.registers + other.registers,
            _sum(self.memory_registers, other.memory_registers),
            _sum(self.constant_multipliers, other.constant_multipliers),
            self.constant_adder_bits + other.constant_adder_bits,
            self.carry_bits + other.carry_bits,
            self.three_bits + other.three_bits,
            self.full_adders + other.full_adders,
            _sum(self.tables, other.tables),
            _sum(self.constants, other.constants),
            _sum(self.bare_bits, other.bare_bits),
            _sum(self.shared_bits, other.shared_bits),
            self.choices + other.choices,
            _sum(self.multiplier_registers, other.multiplier_registers),
            _sum(self.product_sums, other.product_sums),
            _sum(self.output_registers, other.output_registers),
        )

    @property
    def read_ports(self) -> Mapping[tuple[int, int], int]:
        """(words, bits) of memories -> ports that read one."""
        return _sum(self.memories, {shape: 2 * number for shape, number in self.dual_memories.items()})

    @property
    def multiplier_count(self) -> int:
        """All multipliers."""
        return sum(self.multipliers.values())


@dataclass(frozen=True)
class Usage:
    """Blocks of a part."""

    dsp: int = 0
    m20k: int = 0
    mlab: int = 0
    registers: int = 0
    # logic, registers that find no place beside it, and MLABs
    alm: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.dsp + other.dsp,
            self.m20k + other.m20k,
            self.mlab + other.mlab,
            self.registers + other.registers,
            self.alm + other.alm,
        )

    def scaled(self, share: Fraction) -> Usage:
        """A share of blocks, rounded up."""
        counts = (self.dsp, self.m20k, self.mlab, self.registers, self.alm)
        return Usage(*(math.ceil(count * share) for count in counts))


def count(block: Any) -> Resources:
    """The contents of an elaborated block and all below it.

    Raises `UnknownConstruct` for anything the analysis has no rule for: nothing counts as zero by accident."""
    counter = _Counter()
    return counter.result(trace(block, counter))


def fit(resources: Resources, part: Part, read_port: Callable[[int, int, int], ReadPort] | None = None) -> Usage:
    """Blocks of ``part`` for these contents; memories and multipliers of one circuit share blocks as it packs them.

    A memory both of whose ports read takes blocks that can do so, or two copies in memory made of logic.  Where nothing
    chooses between the blocks of a memory, they have the register behind what is read.  DSP blocks
    have the registers around their products, and add two products where both are of a mode that does so.  That takes
    none more: such a sum fills a block, or as much of several as its products do.

    Args:
        read_port: words, bits of a block memory, bits that go to no flip-flop or table -> what reads it; by default
            that of the fewest blocks.
    """
    halves = mlab = 0
    registers, tables = resources.registers, Counter(resources.tables)
    reads = resources.read_ports
    for (depth, width), ports in reads.items():
        single, dual = (found.get((depth, width), 0) for found in (resources.memories, resources.dual_memories))
        if in_block_memory(depth, width, part):
            halves += single * part.m20k_halves(depth, width) + dual * part.m20k_halves(depth, width, dual=True)
            if part.m20k_rows(depth, width, dual > 0) == 1:
                registers -= resources.output_registers.get((depth, width), 0)
            bare = min(width, resources.bare_bits.get((depth, width), 0) // max(1, ports))
            for number, both in ((single, False), (2 * dual, True)):
                rows = part.m20k_rows(depth, width, both)
                port = read_port(depth, width, bare) if read_port else block_read_port(rows, width, bare)
                registers += number * port.registers
                for inputs, count_of in port.tables.items():
                    tables[inputs] += number * count_of
        else:
            mlab += ports * part.mlab_blocks(depth, width)
            registers += resources.memory_registers.get((depth, width), 0)
            for inputs, count_of in logic_read_port(part.mlab_rows(depth), width).tables.items():
                tables[inputs] += ports * count_of
    for (words, width), number in resources.constants.items():
        columns = -(-words // TABLE_WORDS)
        tables[TABLE_INPUTS] += number * width * (columns + -(-(columns - 1) // (CHOSEN_WORDS - 1)))
    carry_bits = resources.carry_bits
    for (wide, narrow, bits), number in resources.multiplier_registers.items():
        registers -= number * bits if part.dsp_mode(wide, narrow) else 0
    for (*widths, bits, chain), number in resources.product_sums.items():
        mode, other = (part.dsp_mode(*pair) for pair in (widths[:2], widths[2:]))
        if mode is not None and mode == other and mode.sums:
            registers -= number * bits
            carry_bits -= number * chain
    # a chain adds three values as well as two
    adder_bits = carry_bits + resources.three_bits + resources.constant_adder_bits
    cell = part.logic_cell
    arithmetic = adder_bits / cell.adder_bits
    logic = sum(number / cell.tables[inputs] for inputs, number in tables.items())
    alm = max(math.ceil(arithmetic + logic), math.ceil(registers / cell.registers))
    alm += mlab * part.lut_memory.logic_cells
    return Usage(part.dsp_blocks(resources.multipliers), -(-halves // 2), mlab, registers, alm)


@dataclass(frozen=True)
class ReadPort:
    """What chooses between the blocks of a memory when it is read, and between them when it is written."""

    tables: Mapping[int, int]
    registers: int


def block_read_port(rows: int, width: int, bare: int) -> ReadPort:
    """Of block memories, ``rows`` one above the other.

    A flip-flop for each row remembers that the row was read; a table joins the words of two rows, the last of which
    needs no flip-flop's word where a flip-flop or a table takes it, and a tree of tables what those of two rows found;
    of few rows each takes what the one before found.  A table for each row finds from the address that it is read, and
    another one that it is written."""
    if rows < 2:
        return ReadPort({}, 0)
    gated, plain = -(-rows // 2), -(-(rows - 1) // 2)
    gated += -(-(gated - 1) // (HALF_INPUTS - 1)) if rows > 3 else 0
    plain += -(-(plain - 1) // (HALF_INPUTS - 1)) if rows > 4 else 0
    return ReadPort({HALF_INPUTS: gated * bare + plain * (width - bare) + 2 * rows}, rows)


def logic_read_port(rows: int, width: int) -> ReadPort:
    """Of memory made of logic: two-way multiplexers before the output register."""
    return ReadPort({3: (rows - 1) * width, 2: rows}, 0) if rows > 1 else ReadPort({}, 0)


def in_block_memory(depth: int, width: int, part: Part) -> bool:
    """Whether a memory is worth block memories, or goes to memory made of logic."""
    if depth <= LOGIC_MEMORY_WORDS:
        return False
    blocks = part.m20k_blocks(depth, width)
    return depth * width >= LEAST_M20K_FILL * blocks * part.m20k_bits


_Shape = TypeVar("_Shape", int, tuple[int, int], tuple[int, int, int], tuple[int, int, int, int, int, int])


def _sum(a: Mapping[_Shape, int], b: Mapping[_Shape, int]) -> dict[_Shape, int]:
    total = Counter(a)
    total.update(b)
    return dict(sorted(total.items()))


def signed_digits(constant: int) -> int:
    """Non-zero digits of the canonical signed-digit form: adders of a constant multiplication, plus one."""
    digits, rest = 0, abs(constant)
    while rest:
        if rest & 1:
            digits += 1
            rest += 1 if rest & 2 else -1
        rest >>= 1
    return digits


class _Counter(Visitor):
    """Collects events of all generators of a hierarchy."""

    kinds = frozenset((Kind.REGISTER_WRITE, Kind.WIRE_WRITE, Kind.MEMORY_WRITE, Kind.MEMORY_READ, Kind.MULTIPLY))

    def __init__(self) -> None:
        # register -> its bits that anything writes
        self.written: dict[int, tuple[Any, int]] = {}
        # register -> range of all values written; missing once a part alone is written
        self.ranges: dict[int, Interval | None] = {}
        self.memory_writes: dict[int, Any] = {}
        self.memory_reads: dict[int, Any] = {}
        # memory -> signals that take its words straight into a register
        self.outputs: dict[int, dict[int, Any]] = {}
        # products with the signal or memory that the next assignment writes, None if none follows
        self.products: list[tuple[Any, Event]] = []
        self._pending: list[Event] = []
        self._just_read: Any = None

    def generator(self, analysis: GeneratorAnalysis) -> None:
        """A new generator: no read is pending."""
        del analysis
        self._just_read = None
        self._flush(None)

    def _flush(self, target: Any) -> None:
        """The operations since the last assignment belong to this one."""
        self.products += [(target, event) for event in self._pending]
        self._pending = []

    def unwanted(self) -> None:
        """What was read is not written as it is."""
        self._just_read = None

    def event(self, event: Event) -> None:
        """Sort an operation into its kind."""
        just_read, self._just_read = self._just_read, None
        if event.kind in (Kind.REGISTER_WRITE, Kind.WIRE_WRITE):
            self._flush(event.target)
            if event.kind is Kind.REGISTER_WRITE:
                self._register(event, just_read)
        elif event.kind is Kind.MEMORY_WRITE:
            self._flush(event.target)
            self.memory_writes[id(event.target)] = event.target
        elif event.kind is Kind.MEMORY_READ:
            self._just_read = event.target
            self.memory_reads[id(event.target)] = event.target
        elif event.kind is Kind.MULTIPLY and not event.repeated and not event.constant:
            self._pending.append(event)

    def _register(self, event: Event, just_read: Any) -> None:
        signal = event.target
        width = 1 if signal._type is bool else signal._nrbits
        high, low = event.bits or (width, 0)
        known_bits = self.written.get(id(signal), (signal, 0))[1]
        self.written[id(signal)] = signal, known_bits | ((1 << high) - (1 << low))
        start = int(signal._init)
        known = self.ranges.get(id(signal), Interval(start, start))
        self.ranges[id(signal)] = known.join(event.result) if known and event.bits is None else None
        if just_read is not None:
            self.outputs.setdefault(id(just_read), {})[id(signal)] = signal

    def result(self, live: Liveness) -> Resources:
        """Sort out which arrays are memories, and which registers are theirs; leave out bits that don't matter."""
        members: set[int] = set()
        memories: Counter[tuple[int, int]] = Counter()
        dual_memories: Counter[tuple[int, int]] = Counter()
        outputs: Counter[tuple[int, int]] = Counter()
        output_signals: set[int] = set()
        read: dict[Node, tuple[int, int]] = {}
        for key, array in {**self.memory_writes, **self._read_only(live)}.items():
            members.update(id(signal) for signal in array)
            shape = (len(array), live.memory_bits(array).bit_count())
            if shape[1]:
                (dual_memories if len(self.outputs.get(key, ())) > 1 else memories)[shape] += 1
            for signal in self.outputs.get(key, {}).values():
                if id(signal) not in output_signals:
                    output_signals.add(id(signal))
                    outputs[shape] += self._register_bits(signal, live).bit_count()
                    read[live.store(signal)] = shape
        work = _Products()
        for target, event in self.products:
            if _live_bits(target, live):
                work.add(event)
        kept: dict[int, int] = {}
        # what registers hold, as bits of origins; constants need none
        seen = {ZERO: EVERY_BIT, ONE: EVERY_BIT}
        for key, (signal, _) in self.written.items():
            if key not in members:
                kept[key] = _fresh(live.origins(signal, self._register_bits(signal, live)), seen)
        targets = {id(driver): target for driver, target in live.drivers}

        def built(driver: Driver) -> int:
            target = targets[id(driver)]
            return live.memory_bits(target) if isinstance(target, list) else kept.get(id(target), 0) >> driver.low

        mapped = Mapper([driver for driver, _ in live.drivers], built).run(live.outputs)
        registers = 0
        for key, bits in kept.items():
            if key not in output_signals:
                registers += (bits & ~mapped.still.get(live.store(self.written[key][0]), 0)).bit_count()
        bare, shared = (_bits_read(read, found) for found in (mapped.bare, mapped.shared))
        signals = {driver.store: target for driver, target in live.drivers}

        def own(store: Node) -> int:
            key = id(signals[store])
            return 0 if key in output_signals else (kept.get(key, 0) & ~mapped.still.get(store, 0)).bit_count()

        drivers = [driver for driver, _ in live.drivers]
        contents = block_contents(drivers, live.outputs, read.keys())
        held, sums = self._in_dsp_blocks(contents, signals, own, mapped.sums)
        behind: Counter[tuple[int, int]] = Counter()
        for word, store in contents.behind.items():
            behind[read[word]] += own(store)
        return Resources(
            dict(sorted(work.multipliers.items())),
            dict(sorted(memories.items())),
            dict(sorted(dual_memories.items())),
            registers,
            dict(sorted(outputs.items())),
            dict(sorted(work.constant_multipliers.items())),
            work.constant_adder_bits,
            mapped.carry_bits,
            mapped.three_bits,
            mapped.full_adders,
            mapped.tables,
            mapped.constants,
            bare,
            shared,
            mapped.choices,
            held,
            sums,
            dict(sorted(behind.items())),
        )

    def _in_dsp_blocks(
        self,
        contents: BlockContents,
        signals: Mapping[Node, Any],
        own: Callable[[Node], int],
        chains: Mapping[Node, int],
    ) -> tuple[dict[tuple[int, int, int], int], dict[tuple[int, int, int, int, int, int], int]]:
        """`Resources.multiplier_registers` and `Resources.product_sums`."""
        events: dict[int, list[Event]] = {}
        for target, event in self.products:
            events.setdefault(id(target), []).append(event)
        widths: dict[Node, tuple[int, int]] = {}
        held: Counter[tuple[int, int, int]] = Counter()
        for product in contents.products:
            found = events.get(id(signals[product.register]), [])
            # one that is equal to another register is none
            if len(found) == 1 and own(product.register):
                widths[product.register] = wide, narrow = _operand_widths(found[0])
                held[wide, narrow, sum(map(own, product.registers))] += 1
        sums: Counter[tuple[int, int, int, int, int, int]] = Counter()
        for one in contents.sums:
            left, right = (widths.get(product) for product in one.products)
            if left is not None and right is not None and one.adder in chains:
                sums[*left, *right, own(one.register), chains[one.adder]] += 1
        return dict(sorted(held.items())), dict(sorted(sums.items()))

    def _read_only(self, live: Liveness) -> dict[int, Any]:
        """Arrays that nothing writes, and whose words go straight into a register."""
        driven: set[int] = set()
        for _, target in live.drivers:
            driven.add(id(target))
            if isinstance(target, list):
                driven.update(id(signal) for signal in target)
        return {
            key: array
            for key, array in self.memory_reads.items()
            if key in self.outputs and key not in driven and not any(id(signal) in driven for signal in array)
        }

    def _register_bits(self, signal: Any, live: Liveness) -> int:
        """Written bits that matter; bits above the values ever written repeat the sign and cost nothing."""
        kept = live.signal_bits(signal) & self.written[id(signal)][1]
        written_range = self.ranges.get(id(signal))
        width = written_range.width if written_range else len(signal) if signal._type is not bool else 1
        if written_range and written_range.signed and kept >> width:
            kept |= 1 << (width - 1)
        return kept & ((1 << width) - 1)


def _bits_read(read: Mapping[Node, tuple[int, int]], found: Mapping[Node, int]) -> dict[tuple[int, int], int]:
    """Shape of memories -> how many bits are ``found`` of the words that are read from them."""
    total: Counter[tuple[int, int]] = Counter()
    for store, shape in read.items():
        total[shape] += found.get(store, 0).bit_count()
    return {shape: bits for shape, bits in total.items() if bits}


def _fresh(origins: Iterable[tuple[int, int, Run]], seen: dict[int, int]) -> int:
    """Bits whose origins are not among those ``seen``, which get them."""
    kept = 0
    met: list[tuple[int, int]] = []
    for at, mask, run in origins:
        if run.stride:
            fresh = mask & ~(seen.get(run.gate, 0) >> run.offset)
            met.append((run.gate, mask << run.offset))
        else:
            fresh = 0 if seen.get(run.gate, 0) >> run.offset & 1 else mask
            met.append((run.gate, 1 << run.offset))
        kept |= fresh << at
    for origin, bits in met:
        seen[origin] = seen.get(origin, 0) | bits
    return kept


def _live_bits(target: Any, live: Liveness) -> int:
    """Bits of what is written that matter; all if nothing is known to be written."""
    if target is None:
        return EVERY_BIT
    return live.memory_bits(target) if isinstance(target, list) else live.signal_bits(target)


def _operand_widths(event: Event) -> tuple[int, int]:
    """Bits of the wider and of the narrower operand; an unsigned one beside a signed one needs one for its sign."""
    mixed = any(operand.signed for operand in event.operands)
    widths = [operand.width + (mixed and not operand.signed) for operand in event.operands]
    return max(widths), min(widths)


class _Products:
    """Products, added up."""

    def __init__(self) -> None:
        self.multipliers: Counter[tuple[int, int]] = Counter()
        self.constant_multipliers: Counter[tuple[int, int]] = Counter()
        self.constant_adder_bits = 0

    def add(self, event: Event) -> None:
        """One product."""
        widths = _operand_widths(event)
        constants = [operand.constant for operand in event.operands if operand.constant is not None]
        if not constants:
            self.multipliers[widths] += 1
            return
        digits = signed_digits(constants[0])
        if digits > 1:
            self.constant_multipliers[widths] += 1
            self.constant_adder_bits += (digits - 1) * event.result.width
