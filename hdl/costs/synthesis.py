"""What Yosys makes of a circuit, to check `hdl.costs.resources` against: ``synth_intel_alm -family cyclone10gx``.

Cyclone 10 GX has the fabric of Arria 10: ALMs, MLABs and M20Ks.  Yosys counts multipliers, not DSP blocks, and builds a
memory in the logic of an MLAB as one cell a bit of width and 32 words.  Products narrower than 4 bits it makes of
logic, and one wider than 27 bits of several multipliers.  It takes multipliers for products with constants, where
`hdl.costs.resources` counts adders, and chooses the shape of block memories by other rules; `compare` follows Yosys
there.  It has no memory both of whose ports read, and makes two of one.

Contents of memories change no count; they are taken out of the text, because Yosys 0.23 can't map an M20K with
contents (its techmap lacks the parameter INIT) nor an MLAB (its rule says so).
For the same reason tables stay logic, as `hdl.costs.resources` counts them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hdl.cache import cache_folder
from hdl.convert.tools import run_tool
from hdl.convert.verilog import VerilogModule
from hdl.costs.mapping import NARROWEST_FACTOR, factors
from hdl.costs.resources import ReadPort, Resources, block_read_port, fit, in_block_memory
from hdl.errors import ToolError
from hdl.parts.catalogue import part
from hdl.parts.part import Part

# whose fabric Yosys maps to
FABRIC = "10AX115"
# words of one MISTRAL_MLAB cell, which is one bit wide
MLAB_CELL_WORDS = 32
# words and bits a block memory can have
M20K_SHAPES = (
    *((16384, 1), (8192, 2), (4096, 4), (4096, 5), (2048, 8)),
    *((2048, 10), (1024, 16), (1024, 20), (512, 32), (512, 40)),
)
# halves of an ALM that Yosys takes for a full adder of a sum of three or more: it makes them of tables alone
TABLES_A_FULL_ADDER = 2.5
# of the ports that write memories which are only read
CONTENTS_ADDRESS_BITS = 24
_ADDER = "MISTRAL_ALUT_ARITH"


@dataclass(frozen=True)
class Synthesis:
    """Cells by type, as Yosys counts them."""

    cells: Mapping[str, int]

    def _sum(self, pattern: str) -> int:
        return sum(count for cell, count in self.cells.items() if re.fullmatch(pattern, cell))

    @property
    def multipliers(self) -> int:
        """Multipliers of any width."""
        return self._sum(r"MISTRAL_MUL\d+X\d+")

    @property
    def m20k(self) -> int:
        """Block memories."""
        return self._sum(r"MISTRAL_M20K\w*|altsyncram")

    @property
    def mlab_cells(self) -> int:
        """Memory cells of 32 words × 1 bit."""
        return self._sum("MISTRAL_MLAB")

    @property
    def registers(self) -> int:
        """Flip-flops."""
        return self._sum("MISTRAL_FF")

    @property
    def adder_bits(self) -> int:
        """Full adders."""
        return self._sum(_ADDER)

    @property
    def alm(self) -> int:
        """ALMs: two functions of up to five inputs, or two full adders, share one; a 6-input function takes one."""
        halves = self._sum(r"MISTRAL_ALUT[2-5]|MISTRAL_NOT") + self.adder_bits
        logic = math.ceil(halves / 2) + self._sum("MISTRAL_ALUT6")
        return max(logic, math.ceil(self.registers / 4)) + math.ceil(self.mlab_cells / 20) * 10


@dataclass(frozen=True)
class Comparison:
    """One quantity, counted off the circuit and synthesised."""

    quantity: str
    estimate: int
    synthesis: int

    @property
    def error(self) -> float:
        """(estimate - synthesis) / synthesis; 0 if both are 0."""
        if self.estimate == self.synthesis:
            return 0.0
        return (self.estimate - self.synthesis) / self.synthesis if self.synthesis else math.inf


def compare(resources: Resources, synthesis: Synthesis) -> tuple[Comparison, ...]:
    """Estimate beside synthesis: multipliers, block memories, MLAB cells, registers, ALMs."""
    target = part(FABRIC)
    usage = fit(expected_contents(resources), target, expected_read_port)
    return (
        Comparison("multipliers", expected_multipliers(resources), synthesis.multipliers),
        Comparison("m20k", expected_m20k(resources, target), synthesis.m20k),
        Comparison("mlab_cells", expected_mlab_cells(resources, target), synthesis.mlab_cells),
        Comparison("registers", usage.registers, synthesis.registers),
        Comparison("alm", usage.alm, synthesis.alm),
    )


def expected_contents(resources: Resources) -> Resources:
    """Contents as Yosys sees them: multipliers for products with constants, wide ones in parts that are added, and
    nothing else in DSP blocks; no second registers in memories; trees of multiplexers for large tables; words of
    memories gated by a flip-flop, free where one flip-flop or tables take them; memories made of logic 32 words deep,
    and a multiplexer a bit between two."""
    parts = sum(
        number * (math.prod(factors(width) for width in widths) - 1) * sum(widths)
        for widths, number in resources.constant_multipliers.items()
    )
    tables = Counter(resources.tables)
    tables[3] += resources.choices
    tables[5] += round(TABLES_A_FULL_ADDER * resources.full_adders)
    target = part(FABRIC)
    for (depth, width), number in (*resources.bare_bits.items(), *resources.shared_bits.items()):
        if in_block_memory(depth, width, target) and depth <= _best_fill(depth, width)[0]:
            tables[2] += number
    for (depth, width), number in resources.read_ports.items():
        if not in_block_memory(depth, width, target):
            # two rows where an MLAB has 64 words
            tables[3] += number * width * (-(-depth // MLAB_CELL_WORDS) - target.mlab_rows(depth))
    return dataclasses.replace(
        resources,
        constant_adder_bits=0,
        carry_bits=resources.carry_bits + parts,
        three_bits=0,
        full_adders=0,
        constants={},
        choices=0,
        tables=tables,
        multiplier_registers={},
        product_sums={},
        output_registers={},
    )


def expected_multipliers(resources: Resources) -> int:
    """Multiplier cells that Yosys should use; it takes them for products with constants too."""
    both = [*resources.multipliers.items(), *resources.constant_multipliers.items()]
    return sum(
        number * math.prod(factors(width) for width in widths)
        for widths, number in both
        if min(widths) >= NARROWEST_FACTOR
    )


def expected_m20k(resources: Resources, target: Part) -> int:
    """Block memories that Yosys should use."""
    return sum(
        number * _blocks_of_best_fill(depth, width)
        for (depth, width), number in resources.read_ports.items()
        if in_block_memory(depth, width, target)
    )


def expected_read_port(depth: int, width: int, bare: int) -> ReadPort:
    """What Yosys builds to read a block memory: a flip-flop that says that something has been read even where one block
    is deep enough."""
    rows = -(-depth // _best_fill(depth, width)[0])
    return block_read_port(rows, width, bare) if rows > 1 else ReadPort({}, 1)


def _blocks_of_best_fill(depth: int, width: int) -> int:
    words, bits = _best_fill(depth, width)
    return -(-depth // words) * -(-width // bits)


def _best_fill(depth: int, width: int) -> tuple[int, int]:
    """The shape (words, bits) that Yosys takes: the one whose own bits a memory fills best, of the fewest blocks among
    equals, and the deepest of these.

    Shapes without parity bits have fewer, so this may be one of 512 × 32 where 512 × 40 takes fewer blocks."""

    def rank(shape: tuple[int, int]) -> tuple[int, int, int]:
        words, bits = shape
        blocks = -(-depth // words) * -(-width // bits)
        return -(100 * depth * width // (blocks * words * bits)), blocks, -words

    return min(M20K_SHAPES, key=rank)


def expected_mlab_cells(resources: Resources, target: Part) -> int:
    """MLAB cells that Yosys should use."""
    return sum(
        number * -(-depth // MLAB_CELL_WORDS) * width
        for (depth, width), number in resources.read_ports.items()
        if not in_block_memory(depth, width, target)
    )


def synthesise(module: VerilogModule, timeout: float = 900.0) -> Synthesis:
    """What Yosys makes of a module, kept on disk under `synthesis_digest`.  Raises `ToolError`, `ToolMissing`."""
    digest = synthesis_digest(module)
    kept = kept_synthesis(digest)
    if kept.exists():
        return Synthesis(json.loads(kept.read_text()))
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        folder = Path(name)
        (folder / "circuit.v").write_text(counted_text(module.text))
        run_tool(["yosys", "-q", "-p", _counting_script(module.name)], folder, timeout)
        report = json.loads((folder / "stat.json").read_text())
    try:
        cells = report["design"]["num_cells_by_type"]
    except KeyError as error:
        raise ToolError(f"Yosys' statistics of {module.name} have no {error}", "this reads those of 0.23") from error
    found = Synthesis({str(cell): int(count) for cell, count in cells.items()})
    keep_synthesis(digest, found.cells)
    return found


def synthesis_digest(module: VerilogModule) -> str:
    """Of everything that `synthesise` finds follows from: Yosys, its commands, the text without contents."""
    text, script = counted_text(module.text), _counting_script(module.name)
    return hashlib.sha256(f"{yosys_version()}\0{script}\0{text}".encode()).hexdigest()


def kept_synthesis(digest: str) -> Path:
    """The file with the cells of the module of that digest, whether it is there or not."""
    return cache_folder() / "synthesis" / f"{digest}.json"


def keep_synthesis(digest: str, cells: Mapping[str, int]) -> None:
    """Keep cells by type of the module of that digest."""
    kept = kept_synthesis(digest)
    kept.parent.mkdir(parents=True, exist_ok=True)
    # renamed when whole: several processes may synthesise
    fresh = kept.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(cells, indent=1) + "\n")
    fresh.replace(kept)


@cache
def yosys_version() -> str:
    """What the installed Yosys calls itself."""
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        return run_tool(["yosys", "-V"], Path(name), 60.0)


def _counting_script(name: str) -> str:
    return f"{mapping_script(name)}; tee -q -o stat.json stat -json"


def mapping_script(name: str) -> str:
    """Yosys commands that map the module of that name in ``circuit.v`` to cells."""
    synth = f"synth_intel_alm -family cyclone10gx -top {name} -noiopad -noclkbuf"
    return (
        f"read_verilog circuit.v; hierarchy -top {name}; proc -norom; "
        f"{synth} -run begin:map_bram; "
        # what the attribute asks for, as Quartus does
        "memory_bram -rules +/intel_alm/common/lutram_mlab.txt a:ramstyle=MLAB; "
        f"{synth} -run map_bram:"
    )


def longest_path(module: VerilogModule, timeout: float = 300.0) -> int:
    """Word-level cells (adders, comparators, multiplexers, gates) on the longest path between registers."""
    with tempfile.TemporaryDirectory(prefix="dagtrain-") as name:
        (Path(name) / "circuit.v").write_text(module.text)
        script = (
            f"read_verilog circuit.v; hierarchy -top {module.name}; proc; flatten; opt -full; memory -nomap; "
            "opt -full; tee -q -o path.txt ltp -noff"
        )
        run_tool(["yosys", "-q", "-p", script], Path(name), timeout)
        text = (Path(name) / "path.txt").read_text()
    found = re.search(r"length=(\d+)", text)
    if found is None:
        raise ToolError(f"Yosys' ltp of {module.name} says no length: {text[-500:]}")
    return int(found.group(1))


def without_contents(text: str) -> str:
    """The Verilog without initial contents of memories, and with one clock: Yosys has no block memories of two."""
    loop = r"initial begin: \w+\n    integer i;\n    for\(i=0; i<\d+; i=i\+1\) begin\n[^\n]*\n    end\nend\n"
    words = r"initial begin\n(?:    \w+\[\d+\] <= [^\n]*;\n)+end\n"
    plain = re.sub(rf"{loop}|{words}", "", text)
    clocks = sorted({*re.findall(r"posedge (\w+)", text)})
    return re.sub(r"\bposedge \w+", f"posedge {clocks[0]}", plain) if len(clocks) > 1 else plain


def counted_text(text: str) -> str:
    """The Verilog that is synthesised for its count: without contents, and with a write port for every memory that is
    only read, from ports of the module's own.  Without contents nobody would know what such a memory gives, and
    synthesis leaves out what nobody knows, with all that works on it."""
    plain = without_contents(text)
    declared = re.findall(
        r"^(?:\(\*.*\*\) )?reg (?:signed )?\[(\d+):0\] .*?(\w+_mem) \[0:\d+-1\];$", plain, re.MULTILINE
    )
    read_only = [(name, int(top) + 1) for top, name in declared if not re.search(rf"\b{name}\[[^\n]*\] <= ", plain)]
    if not read_only:
        return plain
    widths = {"write": len(read_only), "at": CONTENTS_ADDRESS_BITS, "word": max(width for _, width in read_only)}
    head, body = plain.split("\n);\n", 1)
    inside, end = body.rsplit("endmodule", 1)
    ports = "".join(f",\n    contents_{name}" for name in widths)
    inputs = "".join(f"input [{width - 1}:0] contents_{name};\n" for name, width in widths.items())
    writers = "".join(
        f"always @(posedge clk) if (contents_write[{number}]) {name}[contents_at] <= contents_word;\n"
        for number, (name, _) in enumerate(read_only)
    )
    return f"{head}{ports}\n);\n{inputs}{inside}{writers}endmodule{end}"
