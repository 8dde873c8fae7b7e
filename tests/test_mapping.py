"""Logic counted off small circuits, one construct each, beside what Yosys makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.tools import run_tool
from hdl.convert.verilog import convert
from hdl.costs.estimate import elaborated_contents
from hdl.costs.resources import Resources, count, fit
from hdl.costs.synthesis import FABRIC, compare, synthesise
from hdl.memory import simple_dual_port
from hdl.parts.catalogue import part
from hdl.signals import ClockReset
from hdl.streams import width_adapter
from tests.suites import quick


def bits(width: int, signed: bool = False, start: int = 0) -> Any:
    if signed:
        return Signal(intbv(start, min=-(1 << (width - 1)), max=1 << (width - 1)))
    return Signal(intbv(start)[width:])


@block
def counter(domain: ClockReset, step: Any, last: Any, y: Any) -> Any:
    """Clear and enable are the flip-flops' own; the clear below the enable is a gate a bit."""
    at = bits(12)

    @always(domain.clk.posedge)
    def go() -> None:
        if domain.rst:
            at.next = 0
        elif step:
            if last:
                at.next = 0
            else:
                at.next = (at + 1) & 4095

    @always_comb
    def out() -> None:
        y.next = at

    return go, out


@block
def cleared(domain: ClockReset, a: Any, y: Any) -> Any:
    """Nothing but flip-flops with a clear."""

    @always(domain.clk.posedge)
    def go() -> None:
        if domain.rst:
            y.next = 0
        else:
            y.next = a

    return go


@block
def kept(domain: ClockReset, a: Any, b: Any, y: Any) -> Any:
    """A register that keeps its value in one branch of three: an enable, and one multiplexer a bit."""
    held = bits(16)

    @always(domain.clk.posedge)
    def go() -> None:
        if domain.rst:
            held.next = a
        elif a[0] and b[0]:
            held.next = b

    @always_comb
    def out() -> None:
        y.next = held

    return go, out


@block
def backwards(clk: Any, a: Any, y: Any) -> Any:
    """Flip-flops that start with ones hold the inverse, which a carry chain wants undone."""
    at = bits(10, True, -1)

    @always(clk.posedge)
    def go() -> None:
        at.next = a
        y.next = at + a

    return go


@block
def three(clk: Any, a: Any, b: Any, c: Any, y: Any) -> Any:
    """A sum of three: one chain, and adders in tables."""

    @always(clk.posedge)
    def go() -> None:
        y.next = a + b + c

    return go


@block
def ones(clk: Any, a: Any, y: Any) -> Any:
    """A sum of eight bits, most of whose full adders are near its lowest bit."""

    @always(clk.posedge)
    def go() -> None:
        total = intbv(0)[4:]
        total[:] = 0
        for place in range(8):
            total[:] = total + a[place]
        y.next = total

    return go


@block
def difference(clk: Any, a: Any, b: Any, y: Any) -> Any:
    """A chain, and a cell for its first carry."""

    @always(clk.posedge)
    def go() -> None:
        y.next = a - b

    return go


@block
def saturated(clk: Any, a: Any, y: Any) -> Any:
    """Cut to 12 bits, at the ends where it does not fit."""

    @always(clk.posedge)
    def go() -> None:
        if a > 2047:
            y.next = 2047
        elif a < -2048:
            y.next = -2048
        else:
            y.next = a

    return go


@block
def less(clk: Any, a: Any, b: Any, y: Any) -> Any:
    """A chain whose top tells."""

    @always(clk.posedge)
    def go() -> None:
        y.next = a < b

    return go


@block
def equal(clk: Any, a: Any, b: Any, y: Any) -> Any:
    """Tables of bits that agree, joined."""

    @always(clk.posedge)
    def go() -> None:
        y.next = a == b

    return go


@block
def in_time(clk: Any, a: Any, y: Any) -> Any:
    """Against a number of few bits: one table; against a power of two: the bits above it."""

    @always(clk.posedge)
    def go() -> None:
        y.next = a[5:] < 19 or a >= 1024

    return go


@block
def shifted(clk: Any, a: Any, n: Any, y: Any) -> Any:
    """A barrel shifter."""

    @always(clk.posedge)
    def go() -> None:
        y.next = a >> n

    return go


@block
def chosen(clk: Any, a: Any, n: Any, y: Any) -> Any:
    """One of eight elements."""

    @always(clk.posedge)
    def go() -> None:
        y.next = a[n * 6 + 6 : n * 6]

    return go


@block
def looked_up(clk: Any, n: Any, y: Any) -> Any:
    """A table of 40 words; two of its columns agree, and one never changes."""
    table = tuple((index * index * 5) % 61 * 8 + (index & 4) + 2 for index in range(40))

    @always(clk.posedge)
    def go() -> None:
        y.next = table[int(n)]

    return go


@block
def negated(clk: Any, a: Any, b: Any, y: Any) -> Any:
    """Inverted before a chain: a table of one input a bit."""

    @always(clk.posedge)
    def go() -> None:
        y.next = (a ^ 0x5A5A) + b

    return go


@block
def never_negative(clk: Any, a: Any, y: Any) -> Any:
    """A sum of numbers that are never negative has zeros above it, so that nothing is left of a saturation."""
    held, total = bits(20), bits(20)

    @always(clk.posedge)
    def go() -> None:
        code = intbv(0, min=-(1 << 19), max=1 << 19)
        held.next = a
        code[:] = held.signed()
        code[:] = code + 179
        total.next = code[20:]
        if total[19]:
            y.next = 0
        elif total[20:12] == 0:
            y.next = total[12:]
        else:
            y.next = 4095

    return go


@block
def product(clk: Any, a: Any, y: Any) -> Any:
    """Of numbers that are never negative: the bits of both, whatever holds it."""
    held = bits(12, True)
    total = bits(21, True)

    @always(clk.posedge)
    def go() -> None:
        held.next = a
        total.next = held * 201
        y.next = total

    return go


def flag() -> Any:
    return Signal(bool(0))


CONSTRUCTS: dict[str, Callable[[], Any]] = {
    "counter": lambda: counter(ClockReset(), flag(), flag(), bits(12)),
    "cleared": lambda: cleared(ClockReset(), bits(16), bits(16)),
    "kept": lambda: kept(ClockReset(), bits(16), bits(16), bits(16)),
    "backwards": lambda: backwards(flag(), bits(10, True), bits(11, True)),
    "three": lambda: three(flag(), bits(16), bits(16), bits(16), bits(18)),
    "ones": lambda: ones(flag(), bits(8), bits(4)),
    "difference": lambda: difference(flag(), bits(16), bits(16), bits(17, True)),
    "saturated": lambda: saturated(flag(), bits(20, True), bits(12, True)),
    "less": lambda: less(flag(), bits(20), bits(20), flag()),
    "equal": lambda: equal(flag(), bits(20), bits(20), flag()),
    "in_time": lambda: in_time(flag(), bits(14), flag()),
    "shifted": lambda: shifted(flag(), bits(16), bits(4), bits(16)),
    "chosen": lambda: chosen(flag(), bits(48), bits(3), bits(6)),
    "looked_up": lambda: looked_up(flag(), bits(6), bits(10)),
    "negated": lambda: negated(flag(), bits(16), bits(16), bits(17)),
    "never_negative": lambda: never_negative(flag(), bits(9), bits(12)),
    "product": lambda: product(flag(), bits(10), bits(21, True)),
}
# how far the estimate may be from Yosys' ALMs: most constructs are exact
ALMS_OFF = {"three": 1, "equal": 1, "in_time": 2, "shifted": 2, "saturated": 6, "chosen": 7}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_logic_of_a_construct_agrees_with_synthesis(name: str) -> None:
    contents = count(CONSTRUCTS[name]())
    found = synthesise(convert(CONSTRUCTS[name](), f"circuit_{name}"))
    # of two columns of a table that agree Yosys keeps one
    assert contents.registers == found.registers + (name == "looked_up")
    # sums of three it makes of tables
    assert contents.carry_bits == found.adder_bits
    rows = {row.quantity: row for row in compare(contents, found)}
    assert abs(rows["alm"].estimate - rows["alm"].synthesis) <= ALMS_OFF.get(name, 0), rows["alm"]


def test_an_adder_of_three_is_as_large_as_one_of_two() -> None:
    """In a vendor's hands: an ALM adds three values of two bits."""
    contents = count(CONSTRUCTS["three"]())
    assert (contents.three_bits, contents.full_adders) == (18, 30)
    assert fit(contents, part(FABRIC)).alm == 9
    # eight bits go in, four come out
    few = count(CONSTRUCTS["ones"]())
    assert (few.three_bits, few.full_adders, few.carry_bits) == (4, 4, 0)
    assert fit(few, part(FABRIC)).alm == 2


@block
def stored(clk: Any, write: Any, read: Any, at: Any, data: Any, y: Any, depth: int, bare: bool) -> Any:
    word = bits(len(data))
    store = simple_dual_port(clk, write, at, data, read, at, word, depth=depth, width=len(data))

    if bare:

        @always_comb
        def wire() -> None:
            y.next = word

        return store, wire

    @always(clk.posedge)
    def keep() -> None:
        y.next = word

    return store, keep


@pytest.mark.parametrize(
    ("depth", "width", "bare"),
    [
        *((64, 18, False), (1000, 20, True), (1000, 20, False), (8092, 40, False), (6044, 40, False)),
        *((6044, 40, True), (24476, 40, False), pytest.param(131072, 10, False, marks=pytest.mark.slow)),
    ],
)
def test_what_reads_a_memory_of_several_blocks_agrees_with_synthesis(depth: int, width: int, bare: bool) -> None:
    def make() -> Any:
        at, data, y = bits((depth - 1).bit_length()), bits(width), bits(width)
        return stored(flag(), flag(), flag(), at, data, y, depth, bare)

    rows = {row.quantity: row for row in compare(count(make()), synthesise(convert(make(), "memory")))}
    assert rows["m20k"].error == 0
    assert abs(rows["registers"].estimate - rows["registers"].synthesis) <= 1, rows["registers"]
    assert rows["alm"].error == pytest.approx(0, abs=0.12), rows["alm"]


@block
def read_twice(clk: Any, write: Any, read: Any, take: Any, at: Any, data: Any, y: Any, depth: int, table: bool) -> Any:
    """What is read goes to a flip-flop, and to another one's enable or multiplexer; tables on both are most ALMs."""
    word, p, q = bits(len(data)), bits(len(data)), bits(len(data))
    store = simple_dual_port(clk, write, at, data, read, at, word, depth=depth, width=len(data))

    @always(clk.posedge)
    def keep() -> None:
        p.next = word
        if take:
            q.next = word
        elif table:
            q.next = q >> 8

    @always_comb
    def out() -> None:
        y.next = p & q

    return store, keep, out


@pytest.mark.parametrize(("depth", "table"), [(576, True), (1000, True), (1000, False)])
def test_a_word_that_two_flip_flops_or_one_and_a_table_take_costs_a_table_a_bit(depth: int, table: bool) -> None:
    def make() -> Any:
        at, data, y = bits((depth - 1).bit_length()), bits(80), bits(80)
        return read_twice(flag(), flag(), flag(), flag(), at, data, y, depth, table)

    rows = {row.quantity: row for row in compare(count(make()), synthesise(convert(make(), "memory")))}
    assert rows["alm"].error == pytest.approx(0, abs=0.08), rows["alm"]


def test_a_memory_as_deep_as_one_block_has_no_multiplexer() -> None:
    """2048 × 40 fits four blocks side by side; 2049 words are five rows of 512, chosen between when read."""
    arria = part(FABRIC)
    assert (arria.m20k_rows(2048, 40), arria.m20k_rows(2049, 40)) == (1, 5)

    def alm(depth: int) -> int:
        at, data, y = bits((depth - 1).bit_length()), bits(40), bits(40)
        return fit(count(stored(flag(), flag(), flag(), at, data, y, depth, False)), arria).alm

    assert alm(2049) - alm(2048) >= 40


SCATTERED = tuple((index * index * 37 + index * 11) % 251 for index in range(128))
# moves by loop and phase repeat
REPEATED = tuple((0, 1, 5, 4 - index % 5)[index // 45 % 4] for index in range(315))


@pytest.mark.parametrize("words", [SCATTERED, REPEATED, pytest.param(SCATTERED * 2 + REPEATED, marks=pytest.mark.slow)])
def test_large_tables_are_counted_apart(words: tuple[int, ...]) -> None:
    """Yosys makes trees of multiplexers of them, less of what repeats; a look-up table has 64 bits."""

    def make() -> Any:
        return of_words(flag(), bits((len(words) - 1).bit_length()), bits(8), words)

    contents = count(make())
    width = max(words).bit_length()
    assert contents.constants == {(len(words), width): 1}
    columns = -(-len(words) // 64)
    assert fit(contents, part(FABRIC)).alm == width * (columns + -(-(columns - 1) // 3))
    rows = {row.quantity: row for row in compare(contents, synthesise(convert(make(), "words")))}
    assert rows["alm"].error == pytest.approx(0, abs=0.33), rows["alm"]


@block
def of_words(clk: Any, n: Any, y: Any, words: tuple[int, ...]) -> Any:
    table = words

    @always(clk.posedge)
    def go() -> None:
        y.next = table[int(n)]

    return go


@pytest.mark.parametrize("words", [(0, 0, 0, 0, 5), (7, 7, 7, 7, 0), (3, 1, 2, 0, *SCATTERED)])
def test_words_of_a_table_that_its_index_never_reaches_count_nothing(words: tuple[int, ...]) -> None:
    def made(table: tuple[int, ...]) -> Any:
        return count(of_words(flag(), bits(2), bits(8), table))

    assert made(words) == made(words[:4])


VIRTEX = part("XC7VX690T")


@pytest.mark.parametrize(
    ("name", "off"),
    quick(1, [("backwards", 2), ("looked_up", 0), ("kept", 1), ("difference", 2)]),
)
def test_look_up_tables_of_virtex_agree_with_synthesis(name: str, off: int, tmp_path: Path) -> None:
    """A table and a carry bit take one each, where an ALM has room for two."""
    module = convert(CONSTRUCTS[name](), "circuit")
    (tmp_path / "circuit.v").write_text(module.text)
    synth = "synth_xilinx -family xc7 -top circuit -noiopad -noclkbuf"
    run_tool(["yosys", "-q", "-p", f"read_verilog circuit.v; {synth}; tee -q -o stat.json stat -json"], tmp_path)
    cells = json.loads((tmp_path / "stat.json").read_text())["design"]["num_cells_by_type"]
    tables = sum(number for cell, number in cells.items() if cell.startswith("LUT") or cell == "INV")
    assert abs(fit(count(CONSTRUCTS[name]()), VIRTEX).alm - tables) <= off


def test_virtex_packs_by_its_own_rules() -> None:
    """One 16 × 16 product a DSP48E1, two flip-flops a look-up table, half a RAMB36 for 18 kbit."""
    assert fit(Resources(multipliers={(16, 16): 3}), VIRTEX).dsp == 3
    assert fit(Resources(multipliers={(16, 16): 3}), part(FABRIC)).dsp == 2
    assert (fit(Resources(registers=80), VIRTEX).alm, fit(Resources(registers=80), part(FABRIC)).alm) == (40, 20)
    assert fit(Resources(memories={(512, 36): 3}), VIRTEX).m20k == 2
    assert fit(Resources(memories={(512, 40): 3}), VIRTEX).m20k == 3


def shift_register_tables(elements: int) -> float:
    """ALMs of logic of an adapter from so many elements of 48 bits to one."""
    contents = elaborated_contents(
        {"x": elements * 48, "y": 48},
        lambda domain, streams: width_adapter(domain, streams["x"], streams["y"], element_bits=48),
    )
    return sum(number / part(FABRIC).logic_cell.tables[inputs] for inputs, number in contents.tables.items())


def test_words_of_any_width_are_followed_to_their_last_bit() -> None:
    """A multiplexer a bit of the word but the top element: of 432 bits as of 1584."""
    narrow, wide = shift_register_tables(9), shift_register_tables(33)
    assert wide - narrow == pytest.approx(24 * 48 / 2, rel=0.02)
