"""FPGA parts: what a device holds, and how many blocks a multiplier or a memory takes.

Totals of a part are facts of its data sheet; clock, DRAM and links belong to the board and stand in the
cluster file. Nothing here estimates: widths and shapes come from the elaborated circuit, and these rules
turn them into blocks.

Sources: Intel Arria 10 Device Overview (A10-OVERVIEW, table of Arria 10 GX resources) and Arria 10 Core Fabric
Handbook (A10-HANDBOOK: embedded memory, variable-precision DSP); Intel Agilex 7 FPGAs and SoCs Device Overview
(683458, F-series), Agilex 7 Embedded Memory (683241) and Variable Precision DSP (683037) user guides; Xilinx 7
Series Overview (DS180), 7 Series Memory Resources (UG473) and DSP48E1 (UG479) guides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hdl.errors import DagtrainError


@dataclass(frozen=True, kw_only=True)
class DspMode:
    """One way to use a DSP block: `multipliers` independent signed products of at most `width_a` × `width_b` bits."""

    # bits of the wider operand (two's complement)
    width_a: int
    # bits of the narrower operand
    width_b: int
    # products a block does in one cycle in this mode
    multipliers: int

    def fits(self, width_a: int, width_b: int) -> bool:
        """Whether a product of these operand widths (either order, bits) fits one multiplier of this mode."""
        return max(width_a, width_b) <= self.width_a and min(width_a, width_b) <= self.width_b


@dataclass(frozen=True, kw_only=True)
class MemoryShape:
    """One simple-dual-port aspect ratio of a memory block."""

    # words
    depth: int
    # bits a word
    width: int


@dataclass(frozen=True, kw_only=True)
class LutMemory:
    """Memory made of logic: an Intel MLAB, or a Xilinx SLICEM look-up table as distributed RAM."""

    # aspect ratios of one block
    shapes: tuple[MemoryShape, ...]
    # logic cells (ALMs, LUTs) that one block takes away from logic
    logic_cells: int
    # blocks in the whole device: only some of the logic may be memory
    blocks: int


@dataclass(frozen=True, kw_only=True)
class LogicCell:
    """What one logic cell holds: an ALM, or a look-up table of Virtex-7 with its flip-flops."""

    # inputs of a look-up table -> tables of so many
    tables: Mapping[int, float]
    # bits of carry chains
    adder_bits: int
    registers: int


# two functions of five inputs, two full adders (of three values each), four flip-flops
ALM = LogicCell(tables={1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 1}, adder_bits=2, registers=4)
# one function (Yosys uses the second output of none), the propagate signal of one carry bit, two flip-flops; inverters
# vanish, since flip-flops may start with 1 and a carry bit's table inverts
LUT6 = LogicCell(tables={1: math.inf, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}, adder_bits=1, registers=2)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A device type: totals, and the packing rules of its hard blocks."""

    # ordering code without speed grade and package
    name: str
    # family, as on the data sheet named in the module's docstring
    family: str
    # adaptive logic modules; look-up tables on Virtex-7
    alm: int
    # flip-flops
    registers: int
    # block memories: M20K; RAMB36 on Virtex-7
    m20k: int
    # DSP blocks
    dsp: int
    # bits of one block memory
    m20k_bits: int
    # aspect ratios of one block memory with one write and one read port
    m20k_shapes: tuple[MemoryShape, ...]
    # memory in logic
    lut_memory: LutMemory
    # modes of a DSP block, narrowest multiplier first
    dsp_modes: tuple[DspMode, ...]
    logic_cell: LogicCell = ALM
    # aspect ratios of half a block memory, where two halves are memories of their own
    half_shapes: tuple[MemoryShape, ...] = ()

    def dsp_blocks(self, multipliers: Mapping[tuple[int, int], int]) -> int:
        """DSP blocks that pack these multipliers.

        Args:
            multipliers: operand widths (bits, either order) → number of multipliers of that kind.

        Each multiplier takes the narrowest mode it fits; multipliers of one mode share blocks, modes do not.
        One too wide for every mode is cut into a grid of the widest mode's products.

        Raises:
            DagtrainError: a width below 1 or a negative count.
        """
        by_mode: dict[DspMode, int] = {}
        for (width_a, width_b), count in multipliers.items():
            if min(width_a, width_b) < 1 or count < 0:
                raise DagtrainError(
                    f"{self.name}: {count} multipliers of {width_a}×{width_b} bits make no sense; "
                    "widths are at least 1 bit and counts at least 0"
                )
            mode, products = self._mode_for(width_a, width_b)
            by_mode[mode] = by_mode.get(mode, 0) + products * count
        return sum(-(-count // mode.multipliers) for mode, count in by_mode.items())

    def _mode_for(self, width_a: int, width_b: int) -> tuple[DspMode, int]:
        for mode in self.dsp_modes:
            if mode.fits(width_a, width_b):
                return mode, 1
        widest = self.dsp_modes[-1]
        wide, narrow = max(width_a, width_b), min(width_a, width_b)
        return widest, -(-wide // widest.width_a) * -(-narrow // widest.width_b)

    def m20k_blocks(self, depth: int, width: int) -> int:
        """Block memories for one simple-dual-port memory of `depth` words × `width` bits (0 if empty)."""
        return _blocks(self.m20k_shapes, depth, width)

    def m20k_halves(self, depth: int, width: int) -> int:
        """Halves of block memories for one memory; two to a block where a part has no halves."""
        whole = 2 * self.m20k_blocks(depth, width)
        return min(whole, _blocks(self.half_shapes, depth, width)) if self.half_shapes else whole

    def m20k_rows(self, depth: int, width: int) -> int:
        """Block memories one above the other, between which a read chooses: as few as take the fewest blocks."""
        fewest = self.m20k_blocks(depth, width)
        deepest = max(shape.depth for shape in self.m20k_shapes if _blocks((shape,), depth, width) == fewest)
        return -(-depth // deepest)

    def mlab_rows(self, depth: int) -> int:
        """Logic memory blocks one above the other."""
        return -(-depth // max(shape.depth for shape in self.lut_memory.shapes))

    def mlab_blocks(self, depth: int, width: int) -> int:
        """Logic memory blocks (MLAB, LUT RAM) for one memory of `depth` words × `width` bits (0 if empty)."""
        return _blocks(self.lut_memory.shapes, depth, width)


def block_share(parts: Sequence[Part], depth: int, width: int) -> Fraction:
    """The largest share of its block memories that such a memory takes of one of these parts."""
    return max(Fraction(part.m20k_halves(depth, width), 2 * part.m20k) for part in parts)


def _blocks(shapes: tuple[MemoryShape, ...], depth: int, width: int) -> int:
    """Fewest blocks over the aspect ratios: ⌈depth / d⌉ · ⌈width / w⌉."""
    return min(-(-depth // shape.depth) * -(-width // shape.width) for shape in shapes)


def _shapes(*pairs: tuple[int, int]) -> tuple[MemoryShape, ...]:
    return tuple(MemoryShape(depth=depth, width=width) for depth, width in pairs)


_M20K_SHAPES = _shapes((512, 40), (1024, 20), (2048, 10))
_MLAB_SHAPES = _shapes((32, 20), (64, 10))
_TWO_18X19 = DspMode(width_a=19, width_b=18, multipliers=2)
_ONE_27X27 = DspMode(width_a=27, width_b=27, multipliers=1)
_FOUR_9X9 = DspMode(width_a=9, width_b=9, multipliers=4)


def _intel(name: str, family: str, *, alm: int, m20k: int, dsp: int, mlab: int, modes: tuple[DspMode, ...]) -> Part:
    """An Intel part: four registers an ALM, an MLAB is one LAB of ten ALMs holding 640 bits."""
    return Part(
        name=name,
        family=family,
        alm=alm,
        registers=4 * alm,
        m20k=m20k,
        dsp=dsp,
        m20k_bits=20_480,
        m20k_shapes=_M20K_SHAPES,
        lut_memory=LutMemory(shapes=_MLAB_SHAPES, logic_cells=10, blocks=mlab),
        dsp_modes=modes,
    )


PARTS: Mapping[str, Part] = {
    part.name: part
    for part in (
        _intel(
            "10AX115", "Arria 10 GX", alm=427_200, m20k=2_713, dsp=1_518, mlab=20_774,
            modes=(_TWO_18X19, _ONE_27X27),
        ),
        _intel(
            "AGFB014", "Agilex 7 F", alm=487_200, m20k=7_110, dsp=4_510, mlab=24_360,
            modes=(_FOUR_9X9, _TWO_18X19, _ONE_27X27),
        ),
        _intel(
            "AGFB027", "Agilex 7 F", alm=912_800, m20k=13_272, dsp=8_528, mlab=45_640,
            modes=(_FOUR_9X9, _TWO_18X19, _ONE_27X27),
        ),
        Part(
            name="XC7VX690T",
            family="Virtex-7",
            alm=433_200,
            registers=866_400,
            m20k=1_470,
            dsp=3_600,
            m20k_bits=36_864,
            m20k_shapes=_shapes((512, 72), (1024, 36), (2048, 18), (4096, 9)),
            # 64×1 (or 32×2) a look-up table; 10 888 kbit at most (DS180)
            lut_memory=LutMemory(shapes=_shapes((64, 1), (32, 2)), logic_cells=1, blocks=174_208),
            dsp_modes=(DspMode(width_a=25, width_b=18, multipliers=1),),
            logic_cell=LUT6,
            half_shapes=_shapes((512, 36), (1024, 18), (2048, 9)),
        ),
    )
}  # fmt: skip


# of whose parts a graph is folded for, where nobody says
DEFAULT_PARTS = (PARTS["10AX115"],)


def part(name: str) -> Part:
    """The part of that name.

    Raises:
        DagtrainError: no such part; the message lists those known.
    """
    if name not in PARTS:
        raise DagtrainError(f"unknown part {name!r}; known parts: {', '.join(PARTS)}")
    return PARTS[name]
