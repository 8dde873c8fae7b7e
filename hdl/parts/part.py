"""What a device holds, and how many blocks a multiplier or a memory takes; rules that hold for every maker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hdl.errors import DagtrainError


@dataclass(frozen=True, kw_only=True)
class DspMode:
    """One way to use a DSP block: `multipliers` signed products of at most `width_a` × `width_b` bits.

    They are independent, or with `sums` two and two are added or subtracted, in one block or in neighbours."""

    # bits of the wider operand (two's complement)
    width_a: int
    # bits of the narrower operand
    width_b: int
    # products a block does in one cycle in this mode
    multipliers: int
    # whether blocks add two products of this mode, without logic
    sums: bool = False

    def fits(self, width_a: int, width_b: int) -> bool:
        """Whether a product of these operand widths (either order, bits) fits one multiplier of this mode."""
        return max(width_a, width_b) <= self.width_a and min(width_a, width_b) <= self.width_b


@dataclass(frozen=True, kw_only=True)
class MemoryShape:
    """One aspect ratio of a memory block."""

    # words
    depth: int
    # bits a word
    width: int


@dataclass(frozen=True, kw_only=True)
class LutMemory:
    """Memory made of logic: an Intel MLAB, or a Xilinx SLICEM look-up table as distributed RAM."""

    # what the family calls a block
    name: str
    # aspect ratios of one block
    shapes: tuple[MemoryShape, ...]
    # logic cells (ALMs, LUTs) that one block takes away from logic
    logic_cells: int
    # blocks in the whole device: only some of the logic may be memory
    blocks: int


@dataclass(frozen=True, kw_only=True)
class LogicCell:
    """What one logic cell holds: an ALM, or a look-up table of Virtex-7 with its flip-flops."""

    # what the family calls it
    name: str
    # inputs of a look-up table -> tables of so many
    tables: Mapping[int, float]
    # bits of carry chains
    adder_bits: int
    registers: int


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
    # what the family calls a block memory
    block_memory: str
    # bits of one block memory
    m20k_bits: int
    # aspect ratios of one block memory with one write and one read port
    m20k_shapes: tuple[MemoryShape, ...]
    # aspect ratios of one block memory both of whose ports read, one of which writes too
    dual_shapes: tuple[MemoryShape, ...]
    # memory in logic
    lut_memory: LutMemory
    # modes of a DSP block, narrowest multiplier first
    dsp_modes: tuple[DspMode, ...]
    logic_cell: LogicCell
    # aspect ratios of half a block memory, where two halves are memories of their own
    half_shapes: tuple[MemoryShape, ...] = ()
    dual_half_shapes: tuple[MemoryShape, ...] = ()

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
                    f"{self.name}: {count} multipliers of {width_a}×{width_b} bits make no sense",
                    "widths are at least 1 bit and counts at least 0",
                )
            mode, products = self._mode_for(width_a, width_b)
            by_mode[mode] = by_mode.get(mode, 0) + products * count
        return sum(-(-count // mode.multipliers) for mode, count in by_mode.items())

    def dsp_mode(self, width_a: int, width_b: int) -> DspMode | None:
        """The narrowest mode that a product of these operand widths (bits, either order) fits, if there is one."""
        return next((mode for mode in self.dsp_modes if mode.fits(width_a, width_b)), None)

    def _mode_for(self, width_a: int, width_b: int) -> tuple[DspMode, int]:
        mode = self.dsp_mode(width_a, width_b)
        if mode is not None:
            return mode, 1
        widest = self.dsp_modes[-1]
        wide, narrow = max(width_a, width_b), min(width_a, width_b)
        return widest, -(-wide // widest.width_a) * -(-narrow // widest.width_b)

    def m20k_blocks(self, depth: int, width: int, dual: bool = False) -> int:
        """Block memories for one memory of `depth` words × `width` bits (0 if empty): with a port that writes and one
        that reads, or ``dual``, both of whose ports read."""
        return _blocks(self.dual_shapes if dual else self.m20k_shapes, depth, width)

    def m20k_halves(self, depth: int, width: int, dual: bool = False) -> int:
        """Halves of block memories for one memory; two to a block where a part has no halves."""
        whole = 2 * self.m20k_blocks(depth, width, dual)
        halves = self.dual_half_shapes if dual else self.half_shapes
        return min(whole, _blocks(halves, depth, width)) if halves else whole

    def m20k_rows(self, depth: int, width: int, dual: bool = False) -> int:
        """Block memories one above the other, between which a read chooses: as few as take the fewest blocks."""
        fewest = self.m20k_blocks(depth, width, dual)
        offered = self.dual_shapes if dual else self.m20k_shapes
        deepest = max(shape.depth for shape in offered if _blocks((shape,), depth, width) == fewest)
        return -(-depth // deepest)

    def mlab_rows(self, depth: int) -> int:
        """Logic memory blocks one above the other."""
        return -(-depth // max(shape.depth for shape in self.lut_memory.shapes))

    def mlab_blocks(self, depth: int, width: int) -> int:
        """Logic memory blocks (MLAB, LUT RAM) for one memory of `depth` words × `width` bits (0 if empty)."""
        return _blocks(self.lut_memory.shapes, depth, width)


def common_name(names: Iterable[str], otherwise: str) -> str:
    """What several families call something: the name that all of them have, or a word for all."""
    found = set(names)
    return found.pop() if len(found) == 1 else otherwise


def block_share(parts: Sequence[Part], depth: int, width: int) -> Fraction:
    """The largest share of its block memories that such a memory takes of one of these parts."""
    return max(Fraction(part.m20k_halves(depth, width), 2 * part.m20k) for part in parts)


def _blocks(shapes: tuple[MemoryShape, ...], depth: int, width: int) -> int:
    """Fewest blocks over the aspect ratios: ⌈depth / d⌉ · ⌈width / w⌉."""
    return min(-(-depth // shape.depth) * -(-width // shape.width) for shape in shapes)


def shapes(*pairs: tuple[int, int]) -> tuple[MemoryShape, ...]:
    """Aspect ratios (words, bits a word)."""
    return tuple(MemoryShape(depth=depth, width=width) for depth, width in pairs)
