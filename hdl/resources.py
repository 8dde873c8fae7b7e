"""What an elaborated circuit is made of, and how many blocks of a device that takes.

`count` reads multipliers, memories, registers and adders off the elaborated MyHDL block through the interval analysis
of `hdl.intervals`; `fit` packs them into the blocks of a part.  There is no formula beside the circuit.

What counts as what:
* a product of two values that vary is a multiplier of their interval widths; with a constant factor it is adders,
  one for each non-zero digit of the constant's canonical signed-digit form but the first;
* a list of signals written at a varying index is a memory; one only read at a varying index, and nowhere written,
  a ROM.  The register that takes a word straight from a memory is the block's own output register;
* every bit that a clocked process writes is a register, once, if an output depends on it and it isn't always zero
  (`hdl.liveness`), and if it isn't a copy of the sign of narrower values.  Likewise for the width of memories.
  Registers that always hold the same, such as two delays of one signal, are one (`hdl.equal_bits`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hdl.dataflow import EVERY_BIT
from hdl.equal_bits import CONSTANTS
from hdl.intervals import Event, GeneratorAnalysis, Kind, Visitor
from hdl.liveness import Liveness, trace
from hdl.memory import LOGIC_MEMORY_WORDS
from hdl.parts import Part
from hdl.ranges import Interval

# a memory that would fill less of its blocks than this goes to MLABs as well (the rule of Yosys' `synth_intel_alm`)
LEAST_M20K_FILL = 0.05
# adder or comparator bits an ALM computes (two full adders each)
ADDER_BITS_PER_ALM = 2
# flip-flops an ALM holds
REGISTERS_PER_ALM = 4
# two-way multiplexer or logic bits an ALM computes (two 4-input functions)
LOGIC_BITS_PER_ALM = 2
# bits of a table that an ALM holds (one 6-input function)
ROM_BITS_PER_ALM = 64


@dataclass(frozen=True)
class Resources:
    """The contents of a circuit, before any device is known."""

    # (wider, narrower) operand bits -> multipliers
    multipliers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (words, bits) -> memories with one write and one read port
    memories: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (words, bits) -> read-only memories in logic
    roms: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # flip-flops, output registers of block memories left out
    registers: int = 0
    # flip-flops that are output registers of memories, by (words, bits) of the memory
    memory_registers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (wider, narrower) operand bits -> products with a constant that is no power of two, made of adders
    constant_multipliers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # bits of the adders of products with constants
    constant_adder_bits: int = 0
    # bits of all other adders and subtractors
    adder_bits: int = 0
    # bits of comparators
    compare_bits: int = 0
    # bits of multiplexers (conditional assignments too), shifters, selections and logic
    logic_bits: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            _sum(self.multipliers, other.multipliers),
            _sum(self.memories, other.memories),
            _sum(self.roms, other.roms),
            self.registers + other.registers,
            _sum(self.memory_registers, other.memory_registers),
            _sum(self.constant_multipliers, other.constant_multipliers),
            self.constant_adder_bits + other.constant_adder_bits,
            self.adder_bits + other.adder_bits,
            self.compare_bits + other.compare_bits,
            self.logic_bits + other.logic_bits,
        )

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


def count(block: Any) -> Resources:
    """The contents of an elaborated block and all below it.

    Raises `UnknownConstruct` for anything the analysis has no rule for: nothing counts as zero by accident."""
    counter = _Counter()
    return counter.result(trace(block, counter))


def fit(resources: Resources, part: Part) -> Usage:
    """Blocks of ``part`` for these contents; memories and multipliers of one circuit share blocks as it packs them."""
    m20k = mlab = 0
    registers = resources.registers
    for (depth, width), number in resources.memories.items():
        if in_block_memory(depth, width, part):
            m20k += number * part.m20k_blocks(depth, width)
        else:
            mlab += number * part.mlab_blocks(depth, width)
            registers += resources.memory_registers.get((depth, width), 0)
    rom_bits = sum(number * depth * width for (depth, width), number in resources.roms.items())
    adder_bits = resources.adder_bits + resources.constant_adder_bits
    arithmetic = (adder_bits + resources.compare_bits) / ADDER_BITS_PER_ALM
    logic = resources.logic_bits / LOGIC_BITS_PER_ALM + rom_bits / ROM_BITS_PER_ALM
    alm = max(math.ceil(arithmetic + logic), math.ceil(registers / REGISTERS_PER_ALM))
    alm += mlab * part.lut_memory.logic_cells
    return Usage(part.dsp_blocks(resources.multipliers), m20k, mlab, registers, alm)


def in_block_memory(depth: int, width: int, part: Part) -> bool:
    """Whether a memory is worth block memories, or goes to memory made of logic."""
    if depth <= LOGIC_MEMORY_WORDS:
        return False
    blocks = part.m20k_blocks(depth, width)
    return depth * width >= LEAST_M20K_FILL * blocks * part.m20k_bits


def _sum(a: Mapping[tuple[int, int], int], b: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
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

    def __init__(self) -> None:
        self.roms: dict[int, tuple[int, int]] = {}
        self.written: dict[int, tuple[Any, set[int]]] = {}
        # register -> range of all values written; missing once a part alone is written
        self.ranges: dict[int, Interval | None] = {}
        self.memory_writes: dict[int, Any] = {}
        self.memory_reads: dict[int, Any] = {}
        # memory -> signals that take its words straight into a register
        self.outputs: dict[int, dict[int, Any]] = {}
        # (signal, its bits) -> assignments of values that vary, in one generator
        self.assignments: Counter[tuple[int, tuple[int, int]]] = Counter()
        # operations with the signal or memory that the next assignment writes, None if none follows
        self.operations: list[tuple[Any, Event]] = []
        # signal -> bits of multiplexers before it
        self.selected_bits: list[tuple[Any, int]] = []
        self._pending: list[Event] = []
        self._just_read: Any = None

    def generator(self, analysis: GeneratorAnalysis) -> None:
        """A new generator: no read is pending."""
        del analysis
        self._just_read = None
        self._flush(None)

    def _flush(self, target: Any) -> None:
        """The operations since the last assignment belong to this one."""
        self.operations += [(target, event) for event in self._pending]
        self._pending = []

    def event(self, event: Event) -> None:
        """Sort an operation into its kind."""
        just_read, self._just_read = self._just_read, None
        if event.kind in (Kind.REGISTER_WRITE, Kind.WIRE_WRITE):
            self._flush(event.target)
            self._assignment(event)
            if event.kind is Kind.REGISTER_WRITE:
                self._register(event, just_read)
        elif event.kind is Kind.MEMORY_WRITE:
            self._flush(event.target)
            self.memory_writes[id(event.target)] = event.target
        elif event.kind is Kind.MEMORY_READ:
            self.memory_reads[id(event.target)] = event.target
            self._just_read = event.target
        elif event.kind is Kind.ROM_READ:
            width = max(1, *(max(int(value).bit_length() + (value < 0), 1) for value in event.target))
            self.roms[id(event.target)] = (len(event.target), width)
        elif not event.repeated and not event.constant:
            self._pending.append(event)

    def _assignment(self, event: Event) -> None:
        """Every assignment but the first selects between it and the others.

        A flip-flop has a clear, an enable and a second input of its own: a constant and one more value are free."""
        if event.kind is Kind.REGISTER_WRITE and event.constant:
            return
        width = 1 if event.target._type is bool else event.target._nrbits
        high, low = event.bits or (width, 0)
        key = id(event.target), (high, low)
        self.assignments[key] += 1
        if self.assignments[key] > (2 if event.kind is Kind.REGISTER_WRITE else 1):
            self.selected_bits.append((event.target, high - low))

    def _register(self, event: Event, just_read: Any) -> None:
        signal = event.target
        width = 1 if signal._type is bool else signal._nrbits
        high, low = event.bits or (width, 0)
        self.written.setdefault(id(signal), (signal, set()))[1].update(range(low, high))
        start = int(signal._init)
        known = self.ranges.get(id(signal), Interval(start, start))
        self.ranges[id(signal)] = known.join(event.result) if known and event.bits is None else None
        if just_read is not None:
            self.outputs.setdefault(id(just_read), {})[id(signal)] = signal

    def result(self, live: Liveness) -> Resources:
        """Sort out which arrays are memories, and which registers are theirs; leave out bits that don't matter."""
        members: set[int] = set()
        memories: Counter[tuple[int, int]] = Counter()
        outputs: Counter[tuple[int, int]] = Counter()
        output_signals: set[int] = set()
        for key, array in self.memory_writes.items():
            members.update(id(signal) for signal in array)
            shape = (len(array), live.memory_bits(array).bit_count())
            if shape[1]:
                memories[shape] += 1
            for signal in self.outputs.get(key, {}).values():
                if id(signal) not in output_signals:
                    output_signals.add(id(signal))
                    outputs[shape] += len(self._register_bits(signal, live))
        work = _Work()
        for target, event in self.operations:
            bits = _live_bits(target, live)
            if bits:
                work.add(event, EVERY_BIT if bits < 0 else bits.bit_length())
        work.logic_bits += sum(width for target, width in self.selected_bits if _live_bits(target, live))
        roms = Counter(self.roms.values())
        for key, array in self.memory_reads.items():
            if key not in self.memory_writes:
                if any(id(signal) in self.written for signal in array):
                    # registers behind a multiplexer
                    work.logic_bits += (len(array) - 1) * (array[0]._nrbits or 1)
                else:
                    roms[len(array), array[0]._nrbits or 1] += 1
        registers = {
            live.bit_number(signal, bit)
            for key, (signal, _) in self.written.items()
            if key not in members and key not in output_signals
            for bit in self._register_bits(signal, live)
        }
        return Resources(
            dict(sorted(work.multipliers.items())),
            dict(sorted(memories.items())),
            dict(sorted(roms.items())),
            len(registers.difference(CONSTANTS)),
            dict(sorted(outputs.items())),
            dict(sorted(work.constant_multipliers.items())),
            work.constant_adder_bits,
            work.adder_bits,
            work.compare_bits,
            work.logic_bits,
        )

    def _register_bits(self, signal: Any, live: Liveness) -> list[int]:
        """Written bits that matter; bits above the values ever written repeat the sign and cost nothing."""
        bits, written = live.signal_bits(signal), self.written[id(signal)][1]
        written_range = self.ranges.get(id(signal))
        width = written_range.width if written_range else len(signal) if signal._type is not bool else 1
        kept = {bit for bit in written if bits >> bit & 1}
        if written_range and written_range.signed and any(bit >= width for bit in kept):
            kept.add(width - 1)
        return [bit for bit in kept if bit < width]


def _live_bits(target: Any, live: Liveness) -> int:
    """Bits of what is written that matter; all if nothing is known to be written."""
    if target is None:
        return EVERY_BIT
    return live.memory_bits(target) if isinstance(target, list) else live.signal_bits(target)


class _Work:
    """Operations, added up."""

    def __init__(self) -> None:
        self.multipliers: Counter[tuple[int, int]] = Counter()
        self.constant_multipliers: Counter[tuple[int, int]] = Counter()
        self.adder_bits = self.constant_adder_bits = self.compare_bits = self.logic_bits = 0

    def add(self, event: Event, limit: int) -> None:
        """One operation whose result is written where ``limit`` bits matter (negative: any number)."""
        widths = [operand.width for operand in event.operands]
        width = event.result.width if limit < 0 else min(event.result.width, limit)
        if event.kind is Kind.MULTIPLY:
            self._multiply(event, widths)
        elif event.kind in (Kind.ADD, Kind.DIVIDE):
            self.adder_bits += width
        elif event.kind is Kind.COMPARE:
            self.compare_bits += max(widths)
        elif event.kind is Kind.MUX:
            self.logic_bits += width
        elif event.kind is Kind.LOGIC:
            self.logic_bits += max(widths) if event.result.width > 1 else 1
        elif event.kind is Kind.SHIFT and not event.constant_operand:
            # a barrel shifter: one rank of two-way multiplexers for each bit of the distance
            self.logic_bits += event.operands[0].width * event.operands[1].width
        elif event.kind is Kind.SELECT and event.operands[1].constant is None:
            self.logic_bits += event.operands[0].width

    def _multiply(self, event: Event, widths: list[int]) -> None:
        """An unsigned operand beside a signed one needs a bit more, for its sign."""
        mixed = any(operand.signed for operand in event.operands)
        widths = [w + (mixed and not o.signed) for w, o in zip(widths, event.operands, strict=True)]
        constants = [operand.constant for operand in event.operands if operand.constant is not None]
        if not constants:
            self.multipliers[max(widths), min(widths)] += 1
            return
        digits = signed_digits(constants[0])
        if digits > 1:
            self.constant_multipliers[max(widths), min(widths)] += 1
            self.constant_adder_bits += (digits - 1) * event.result.width
