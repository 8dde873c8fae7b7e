"""What DSP blocks hold beside multipliers: small circuits by hand, Yosys' netlists, and what parts make of it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always, always_comb, block, intbv

from benchmarks.timing import MODULE, circuit_text, layer_circuit
from hdl.convert.tools import run_tool
from hdl.convert.verilog import convert
from hdl.costs import blocks
from hdl.costs.blocks import BlockContents
from hdl.costs.estimate import Estimator, elaborated_contents
from hdl.costs.resources import Resources, count, fit, in_block_memory
from hdl.costs.synthesis import expected_contents
from hdl.engine.arithmetic.mac import adder_trees, signed_signal
from hdl.layers.base import Layer
from hdl.layers.conv.dense import ConvGradient
from hdl.layers.registry import load_layers
from hdl.memory import simple_dual_port
from hdl.parts.catalogue import part
from hdl.tensor import Tile
from tests.layer_support import all_examples
from tests.suites import quick
from tests.word_netlist import Found, found_in

ARRIA, AGILEX, VIRTEX = part("10AX115"), part("AGFB014"), part("XC7VX690T")
# layers drawn with this seed, of the kinds that multiply
SEED = 3
CONVOLUTIONS = (
    "Conv", "ConvError", "ConvGradient", "ConvPair", "DepthwiseConv", "DepthwiseConvError", "DepthwiseConvGradient",
)  # fmt: skip
OTHERS = (
    "OnlineNorm", "OnlineNormBackward", "ChannelNorm", "ChannelNormError", "LocalResponseNorm", "Mul", "Scale",
    "ScaleSum", "Update",
)  # fmt: skip


def flag() -> Any:
    return Signal(bool(0))


# --------------------------------------------------------------------------------------------- small circuits


@block
def registered(clk: Any, taken: Any, register: Any) -> Any:
    @always(clk.posedge)
    def take() -> None:
        register.next = taken

    return take


@block
def product(clk: Any, left: Any, right: Any, y: Any) -> Any:
    @always(clk.posedge)
    def multiply() -> None:
        y.next = left * right

    return multiply


@block
def enabled_product(clk: Any, go: Any, left: Any, right: Any, y: Any) -> Any:
    @always(clk.posedge)
    def multiply() -> None:
        if go:
            y.next = left * right

    return multiply


@block
def cleared_product(clk: Any, stop: Any, left: Any, right: Any, y: Any) -> Any:
    @always(clk.posedge)
    def multiply() -> None:
        if stop:
            y.next = 0
        else:
            y.next = left * right

    return multiply


@block
def total(clk: Any, left: Any, right: Any, y: Any) -> Any:
    @always(clk.posedge)
    def add() -> None:
        y.next = left + right

    return add


@block
def enabled_total(clk: Any, go: Any, left: Any, right: Any, y: Any) -> Any:
    @always(clk.posedge)
    def add() -> None:
        if go:
            y.next = left + right

    return add


@block
def cleared_total(clk: Any, stop: Any, left: Any, right: Any, y: Any) -> Any:
    @always(clk.posedge)
    def add() -> None:
        if stop:
            y.next = 0
        else:
            y.next = left + right

    return add


@block
def total_of_three(clk: Any, left: Any, right: Any, third: Any, y: Any) -> Any:
    @always(clk.posedge)
    def add() -> None:
        y.next = left + right + third

    return add


@block
def less(clk: Any, left: Any, right: Any, y: Any) -> Any:
    @always(clk.posedge)
    def subtract() -> None:
        y.next = left - right

    return subtract


@block
def at_a_place(clk: Any, at: Any, values: Any, y: Any) -> Any:
    @always(clk.posedge)
    def choose() -> None:
        y.next = values[at]

    return choose


@block
def wired(taken: Any, y: Any) -> Any:
    @always_comb
    def wire() -> None:
        y.next = taken

    return wire


def operand_width(variant: str) -> int:
    return {"wide": 20, "narrow": 9}.get(variant, 16)


@block
def pair(
    clk: Any, go: Any, stop: Any, at: Any, a: Any, b: Any, c: Any, d: Any, extra: Any, y: Any, variant: str
) -> Any:
    """The sum of two registered products; most variants have something beside that a block has not."""
    bits = operand_width(variant)
    o = [signed_signal(bits) for _ in range(4)]
    p = [signed_signal(2 * bits) for _ in range(2)]
    if variant == "starts with one":
        p[0] = Signal(intbv(1, min=-(1 << 31), max=1 << 31))
    loads = [registered(clk, taken, register) for taken, register in zip((a, b, c, d), o, strict=True)]
    if variant in ("one enable", "both enabled"):
        first = enabled_product(clk, go, o[0], o[1], p[0])
    elif variant == "cleared product":
        first = cleared_product(clk, stop, o[0], o[1], p[0])
    else:
        first = product(clk, o[0], o[0] if variant == "square" else o[1], p[0])
    if variant == "both enabled":
        second = enabled_product(clk, go, o[2], o[3], p[1])
    elif variant == "one product":
        second = registered(clk, o[2], p[1])
    else:
        second = product(clk, o[0] if variant == "shared operand" else o[2], o[3], p[1])
    if variant == "sum enabled":
        last = enabled_total(clk, go, p[0], p[1], y)
    elif variant == "cleared sum":
        last = cleared_total(clk, stop, p[0], p[1], y)
    elif variant == "three terms":
        last = total_of_three(clk, p[0], p[1], o[0], y)
    elif variant == "difference":
        last = less(clk, p[0], p[1], y)
    else:
        last = total(clk, p[0], p[1], y)
    if variant == "product read by wires":
        other = wired(p[1], extra)
    elif variant == "product read at a place":
        other = at_a_place(clk, at, p, extra)
    else:
        taken = {"product read twice": p[0], "operand read twice": o[0]}.get(variant, stop)
        other = registered(clk, taken, extra)
    return loads, first, second, last, other


def pair_of(variant: str) -> Any:
    bits = operand_width(variant)
    factors = [signed_signal(bits) for _ in range(4)]
    at = Signal(intbv(0, min=0, max=2))
    return pair(flag(), flag(), flag(), at, *factors, signed_signal(2 * bits), signed_signal(2 * bits + 2), variant)


# variant -> sums that a block makes, products that a register takes, bits of registers around them
PAIRS: dict[str, tuple[int, int, int]] = {
    "plain": (1, 2, 4 * 16 + 2 * 32),
    "difference": (1, 2, 4 * 16 + 2 * 32),
    "sum enabled": (1, 2, 4 * 16 + 2 * 32),
    "both enabled": (1, 2, 4 * 16 + 2 * 32),
    "wide": (1, 2, 4 * 20 + 2 * 40),
    "narrow": (1, 2, 4 * 9 + 2 * 18),
    # operands that both products read stay outside
    "shared operand": (1, 2, 2 * 16 + 2 * 32),
    "square": (1, 2, 2 * 16 + 2 * 32),
    "operand read twice": (1, 2, 3 * 16 + 2 * 32),
    # what a block does not do
    "one product": (0, 1, 2 * 16 + 32),
    "one enable": (0, 2, 4 * 16 + 2 * 32),
    "three terms": (0, 2, 3 * 16 + 2 * 32),
    "cleared sum": (0, 2, 4 * 16 + 2 * 32),
    "cleared product": (0, 1, 2 * 16 + 32),
    "starts with one": (0, 1, 2 * 16 + 32),
    "product read twice": (0, 2, 4 * 16 + 2 * 32),
    "product read by wires": (0, 2, 4 * 16 + 2 * 32),
}


def summary(contents: Resources) -> tuple[int, int, int]:
    """Sums, products, bits of registers around these."""
    held = contents.multiplier_registers
    return (
        sum(contents.product_sums.values()),
        sum(held.values()),
        sum(bits * number for (_, _, bits), number in held.items()),
    )


@pytest.mark.parametrize("variant", PAIRS)
def test_a_block_adds_two_products_that_nothing_else_reads(variant: str) -> None:
    assert summary(count(pair_of(variant))) == PAIRS[variant]


@pytest.mark.parametrize("variant", quick(9, [name for name in PAIRS if name != "starts with one"]))
def test_yosys_finds_the_same_pairs(variant: str) -> None:
    """But for the first values of registers, which its netlist of words holds elsewhere."""
    found = found_in(convert(pair_of(variant), MODULE).text, MODULE)
    assert (sum(found.sums.values()), found.products, found.registers) == PAIRS[variant]


def test_products_that_are_read_at_a_varying_place_are_not_summed_in_a_block() -> None:
    assert summary(count(pair_of("product read at a place")))[0] == 0


# ------------------------------------------------------------------------------------------------------ parts


def without_blocks(contents: Resources) -> Resources:
    """The same with nothing but multipliers in DSP blocks."""
    return replace(contents, multiplier_registers={}, product_sums={}, output_registers={})


@pytest.mark.parametrize(
    ("variant", "name", "summed"),
    [
        ("plain", "10AX115", True),
        ("plain", "AGFB014", True),
        ("plain", "XC7VX690T", True),
        # one of 27 × 27 a block, and 25 × 18
        ("wide", "10AX115", False),
        ("wide", "AGFB014", False),
        ("wide", "XC7VX690T", False),
        ("narrow", "10AX115", True),
    ],
)
def test_a_part_adds_two_products_of_a_mode_that_does(variant: str, name: str, summed: bool) -> None:
    contents, target = count(pair_of(variant)), part(name)
    bare, fitted = fit(without_blocks(contents), target), fit(contents, target)
    ((*_, bits, chain),) = contents.product_sums
    held = PAIRS[variant][2] if (variant, name) != ("wide", "XC7VX690T") else 0
    assert bare.registers - fitted.registers == held + summed * bits
    assert fitted.dsp == bare.dsp
    logic = replace(contents, registers=0, multiplier_registers={}, tables={})
    saved = fit(without_blocks(logic), target).alm - fit(replace(logic, registers=bits), target).alm
    assert saved == summed * -(-chain // target.logic_cell.adder_bits)


def test_two_products_of_different_modes_are_not_summed() -> None:
    """One of 27 × 27 fills a block; a product of 9 × 9 beside one of 16 × 16 has the mode of its own in Agilex."""
    sums = {(20, 20, 16, 16, 41, 41): 1}
    both = Resources(multipliers={(20, 20): 1, (16, 16): 1}, registers=41, carry_bits=41, product_sums=sums)
    assert fit(both, ARRIA) == fit(without_blocks(both), ARRIA)
    sums = {(16, 16, 9, 9, 33, 33): 1}
    both = Resources(multipliers={(16, 16): 1, (9, 9): 1}, registers=33, carry_bits=33, product_sums=sums)
    assert fit(both, AGILEX) == fit(without_blocks(both), AGILEX)
    assert fit(both, ARRIA).registers == 0


@block
def trees(clk: Any, a: Any, b: Any, y: Any, terms: int, results: int) -> Any:
    """Sums of so many products of 16 × 16; the first operands are those of all results."""
    operands = [signed_signal(16) for _ in range(terms)]
    weights = [signed_signal(16) for _ in range(terms * results)]
    products = [signed_signal(32) for _ in range(terms * results)]
    sums = [signed_signal(32 + (terms - 1).bit_length()) for _ in range(results)]

    @always(clk.posedge)
    def load() -> None:
        for i in range(terms):
            operands[i].next = a[(i + 1) * 16 : i * 16].signed()
        for i in range(terms * results):
            weights[i].next = b[(i + 1) * 16 : i * 16].signed()

    @always(clk.posedge)
    def multiply() -> None:
        for result in range(results):
            for i in range(terms):
                products[result * terms + i].next = weights[result * terms + i] * operands[i]

    tree = adder_trees(clk, products, sums, terms=terms)

    @always(clk.posedge)
    def out() -> None:
        word = intbv(0, min=-(1 << 39), max=1 << 39)
        for result in range(results):
            word[:] = sums[result]
            y.next[(result + 1) * 40 : result * 40] = word[40:]

    return load, multiply, tree, out


@block
def in_a_row(clk: Any, a: Any, b: Any, c: Any, y: Any) -> Any:
    """A product is an operand of the next one."""
    first = signed_signal(32)
    return product(clk, a, b, first), product(clk, first, c, y)


def test_a_register_between_two_products_is_of_one_block() -> None:
    ports = (signed_signal(width) for width in (16, 16, 16, 48))
    assert summary(count(in_a_row(flag(), *ports))) == (0, 2, 32 + 48)


def trees_of(terms: int, results: int) -> Any:
    ports = (Signal(intbv(0)[bits:]) for bits in (16 * terms, 16 * terms * results, 40 * results))
    return trees(flag(), *ports, terms, results)


@pytest.mark.parametrize("terms", range(2, 10))
@pytest.mark.parametrize("results", [1, 2, 3])
def test_an_odd_product_of_a_tree_is_not_summed_and_two_of_them_share_a_block(terms: int, results: int) -> None:
    contents = count(trees_of(terms, results))
    assert contents.product_sums == {(16, 16, 16, 16, 33, 33): results * (terms // 2)}
    # a weight and its product; of one result its operand; an odd product is held for a cycle
    own = 16 + 32 + 16 * (results == 1)
    odd = {(16, 16, own + 32): results} if terms % 2 else {}
    assert contents.multiplier_registers == {(16, 16, own): results * (terms - terms % 2), **odd}
    pairs, odds = results * (terms // 2), results * (terms % 2)
    assert fit(contents, ARRIA).dsp == pairs + -(-odds // 2)
    assert fit(contents, VIRTEX).dsp == terms * results


@pytest.mark.parametrize(("terms", "results"), quick(1, [(4, 2), (2, 1), (9, 1), (5, 3), (8, 2)]))
def test_synthesis_for_virtex_adds_the_same_pairs_in_its_blocks(terms: int, results: int, tmp_path: Path) -> None:
    """`synth_xilinx` has a pass for that: one DSP48E1 of each pair adds what the cascade of the other one brings."""
    contents = count(trees_of(terms, results))
    (tmp_path / "circuit.v").write_text(convert(trees_of(terms, results), "circuit").text)
    synth = "synth_xilinx -family xc7 -top circuit -noiopad -noclkbuf"
    run_tool(["yosys", "-q", "-p", f"read_verilog circuit.v; {synth}; json -o mapped.json"], tmp_path)
    cells = json.loads((tmp_path / "mapped.json").read_text())["modules"]["circuit"]["cells"].values()
    built = [cell for cell in cells if cell["type"] == "DSP48E1"]
    adding = [block for block in built if any(isinstance(bit, int) for bit in block["connections"]["PCIN"])]
    assert len(adding) == sum(contents.product_sums.values())
    assert len(built) == fit(contents, VIRTEX).dsp
    # registers behind multipliers, and those of sums
    assert all(int(block["parameters"]["PREG"], 2) for block in adding)
    registers = sum(cell["type"].startswith("FD") for cell in cells)
    # operands of several results are in all of their blocks, and none outside; words of 40 bits repeat their signs
    levels = (terms - 1).bit_length()
    operands, wide = 16 * terms * (results > 1), results * (8 - levels)
    # an odd product's sign is one bit at every level
    assert 0 <= fit(contents, VIRTEX).registers - operands - wide - registers <= results * (terms % 2) * levels
    # a sum of 33 bits takes two of 32 and no table for their common sign
    tables = sum(cell["type"].startswith("LUT") for cell in cells)
    logic = fit(replace(contents, registers=0, multiplier_registers={}), VIRTEX).alm
    assert logic - results * terms <= tables <= logic


@block
def stored(clk: Any, on: Any, at: Any, data: Any, y: Any, depth: int, second: bool) -> Any:
    return simple_dual_port(clk, on, at, data, on, at, y, depth=depth, width=len(data), output_register=second)


def stored_of(depth: int, width: int, second: bool = True) -> Resources:
    at = Signal(intbv(0)[(depth - 1).bit_length() :])
    data, y = (Signal(intbv(0)[width:]) for _ in range(2))
    return count(stored(flag(), flag(), at, data, y, depth, second))


@pytest.mark.parametrize(("depth", "width"), [(512, 40), (2048, 16), (4096, 10), (32, 20)])
def test_a_block_memory_has_the_register_behind_what_is_read(depth: int, width: int) -> None:
    """Unless something chooses between blocks, or the memory is made of logic."""
    contents = stored_of(depth, width)
    assert contents.output_registers == {(depth, width): width}
    assert stored_of(depth, width, second=False).output_registers == {}
    alone = in_block_memory(depth, width, ARRIA) and ARRIA.m20k_rows(depth, width) == 1
    assert alone == (depth in (512, 2048))
    saved = fit(without_blocks(contents), ARRIA).registers - fit(contents, ARRIA).registers
    assert saved == alone * width


def test_the_first_sums_of_gradients_are_the_clear_of_a_register() -> None:
    """Gates in front of the adders would be one a bit of all sums of a tile."""
    engine = ConvGradient(height=4, width=4, channels=16, filters=16, kernel=(1, 1), tile=Tile(4, 8))
    assert elaborated_contents(*layer_circuit(engine)).tables[2] < engine.tile.size * engine.sum_bits


def test_contents_of_blocks_add_up_and_are_kept_on_disk(tmp_path: Path) -> None:
    contents = count(pair_of("plain"))
    both = contents + contents
    assert both.product_sums == {shape: 2 * number for shape, number in contents.product_sums.items()}
    assert both.multiplier_registers == {shape: 2 * number for shape, number in contents.multiplier_registers.items()}
    layer = all_examples(load_layers().values())["Conv-1"]
    first = Estimator(tmp_path / "kept.sqlite").layer(layer)
    assert first.product_sums
    assert Estimator(tmp_path / "kept.sqlite").layer(layer) == first


def test_the_comparison_with_synthesis_has_nothing_but_multipliers_in_blocks() -> None:
    """`synth_intel_alm` leaves registers and adders in the fabric."""
    contents = count(pair_of("plain"))
    expected = expected_contents(contents)
    assert (expected.multiplier_registers, expected.product_sums, expected.output_registers) == ({}, {}, {})
    assert (expected.registers, expected.carry_bits) == (contents.registers, contents.carry_bits)


# ------------------------------------------------------------------------------------------------------ layers


def disagreements(contents: Resources, found: Found) -> list[str]:
    """What Yosys' netlist of words says otherwise."""
    sums: dict[tuple[int, ...], int] = {}
    for (*widths, _, _), number in contents.product_sums.items():
        sums[tuple(widths)] = sums.get(tuple(widths), 0) + number
    wrong = [f"sums {sums}, Yosys {found.sums}"] if sums != found.sums else []
    _, products, registers = summary(contents)
    # Yosys has no memory of a single word, and no part a block for it
    behind = sum(bits for (words, _), bits in contents.output_registers.items() if words > 1)
    for name, ours, theirs in (
        ("products", products, found.products),
        ("bits of registers around them", registers, found.registers),
        ("bits of registers behind memories", behind, found.behind),
    ):
        wrong += [f"{name} {ours}, Yosys {theirs}"] if ours != theirs else []
    return wrong


@cache
def examples() -> Mapping[str, Layer]:
    return all_examples(load_layers().values())


def drawn(kinds: Sequence[str], count: int) -> list[str]:
    """Names of examples."""
    names = [name for name in sorted(examples()) if name.rsplit("-")[0] in kinds]
    return random.Random(SEED).sample(names, count)


# the last one's engines share a memory of one word
@pytest.mark.parametrize("name", [*quick(2, drawn(CONVOLUTIONS, 20)), "ConvPair-3"])
def test_convolutions_drawn_by_seed_have_the_sums_and_registers_that_yosys_finds(name: str) -> None:
    circuit = layer_circuit(examples()[name])
    assert disagreements(elaborated_contents(*circuit), found_in(circuit_text(*circuit), MODULE)) == []


@pytest.mark.parametrize("name", quick(3, drawn(OTHERS, 12)))
def test_of_other_layers_no_more_is_counted_than_yosys_finds(name: str) -> None:
    """Products that go into a part of a wider word are not seen."""
    circuit = layer_circuit(examples()[name])
    found = found_in(circuit_text(*circuit), MODULE)
    sums, products, registers = summary(elaborated_contents(*circuit))
    assert (sums <= sum(found.sums.values()), products <= found.products, registers <= found.registers) == (True,) * 3


# the name of what is broken -> how
BROKEN: dict[str, Callable[[BlockContents], BlockContents]] = {
    "a sum too few": lambda found: replace(found, sums=found.sums[1:]),
    "a sum too many": lambda found: replace(found, sums=(*found.sums, found.sums[0])),
    "a product too few": lambda found: replace(found, products=found.products[1:]),
    "an operand left out": lambda found: replace(
        found, products=(replace(found.products[0], registers=found.products[0].registers[:-1]), *found.products[1:])
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_count_that_is_broken_on_purpose_is_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = layer_circuit(examples()["Conv-2"])
    found = found_in(circuit_text(*circuit), MODULE)
    assert disagreements(elaborated_contents(*circuit), found) == []
    whole = blocks.block_contents
    monkeypatch.setattr("hdl.costs.resources.block_contents", lambda *given: BROKEN[broken](whole(*given)))
    assert disagreements(elaborated_contents(*circuit), found)


def test_a_count_that_overlooks_second_readers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks._Readers, "_add", lambda self, node, reader: self._reader.setdefault(node, reader))
    assert summary(count(pair_of("product read twice")))[0] == 1 != PAIRS["product read twice"][0]


@pytest.mark.parametrize("variant", ["product read twice", "cleared sum"])
def test_yosys_is_not_asked_in_vain(variant: str) -> None:
    """What nothing but the second reader, or the clear, keeps out of a block, is there without it."""
    text = convert(pair_of(variant), MODULE).text
    assert not found_in(text, MODULE).sums
    good = re.sub(r"extra <= \w+;", "extra <= stop;", text) if "twice" in variant else text.replace("(stop)", "(0)")
    assert good != text
    assert sum(found_in(good, MODULE).sums.values()) == 1
