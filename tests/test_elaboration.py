"""The patches of MyHDL change its speed and its slices, nothing else."""

from typing import Any

import myhdl
import pytest
from myhdl import Signal, _bin, always, always_comb, block, intbv

from hdl import elaboration
from hdl.errors import ConversionError, ToolError
from hdl.memory import simple_dual_port
from hdl.verilog import convert

BITS = 8


@block
def adder_tree(clk: Any, xs: Any, y: Any) -> Any:
    """Recursive, so that names and levels matter."""
    if len(xs) == 1:
        leaf = xs[0]

        @always_comb
        def copy() -> None:
            y.next = leaf

        return copy
    half = len(xs) // 2
    left, right = (Signal(intbv(0, min=-(1 << 20), max=1 << 20)) for _ in range(2))
    lower = adder_tree(clk, xs[:half], left)
    upper = adder_tree(clk, xs[half:], right)

    @always(clk.posedge)
    def add() -> None:
        y.next = left + right

    return lower, upper, add


@block
def dot_product(clk: Any, a: Any, b: Any, y: Any, lanes: int) -> Any:
    products = [Signal(intbv(0, min=-(1 << 15), max=1 << 15)) for _ in range(lanes)]
    total = Signal(intbv(0, min=-(1 << 20), max=1 << 20))
    tree = adder_tree(clk, products, total)

    @always(clk.posedge)
    def multiply() -> None:
        for i in range(lanes):
            products[i].next = a[i * BITS + BITS : i * BITS].signed() * b[BITS * i + BITS : BITS * i].signed()

    @always_comb
    def output() -> None:
        y.next = total

    return tree, multiply, output


@block
def wrapped_memory(clk: Any, a: Any, b: Any, y: Any, lanes: int) -> Any:
    enable = Signal(bool(0))
    address = Signal(intbv(0)[4:])
    word = Signal(intbv(0)[8:])
    ram = simple_dual_port(clk, enable, address, word, enable, address, y, depth=16, width=8, contents=list(range(16)))

    @always_comb
    def drive() -> None:
        enable.next = a[0]
        address.next = b[4:]
        word.next = a[8:] ^ lanes

    return ram, drive


def text_of(function: Any, lanes: int, output: Any) -> str:
    a, b = (Signal(intbv(0)[lanes * BITS :]) for _ in range(2))
    return convert(function(Signal(bool(0)), a, b, output(), lanes), "dut").text


CASES = {
    "dot product of 1": (dot_product, 1, lambda: Signal(intbv(0, min=-(1 << 20), max=1 << 20))),
    "dot product of 7": (dot_product, 7, lambda: Signal(intbv(0, min=-(1 << 20), max=1 << 20))),
    "memory": (wrapped_memory, 1, lambda: Signal(intbv(0)[8:])),
}


@pytest.mark.parametrize("case", CASES)
def test_the_speed_patches_leave_the_verilog_the_same_to_the_byte(case: str) -> None:
    patched = text_of(*CASES[case])
    with elaboration.without_speed_patches():
        assert _bin._int2bitstring is not elaboration._bit_string
        unpatched = text_of(*CASES[case])
    assert patched == unpatched
    assert _bin._int2bitstring is elaboration._bit_string


def test_bit_strings_have_the_digits_and_lengths_of_myhdl() -> None:
    original = elaboration._originals["bits"]
    for number in [*range(-300, 300), 1 << 40, -(1 << 40), -(1 << 40) - 1, 1 - (1 << 40)]:
        assert elaboration._bit_string(number) == original(number), number


def test_another_version_of_myhdl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(myhdl, "__version__", "0.11.99")
    with pytest.raises(ToolError, match=r"MyHDL 0\.11\.99 is installed.*0\.11\.52 only.*make setup"):
        elaboration.install()


def test_installing_twice_changes_nothing() -> None:
    before = myhdl._block._Block.__init__
    elaboration.install()
    assert myhdl._block._Block.__init__ is before


def test_a_moving_slice_becomes_an_indexed_part_select() -> None:
    text = text_of(*CASES["dot product of 7"])
    assert "$signed(a[(i * 8) +: 8]) * $signed(b[(8 * i) +: 8])" in text


@block
def growing_slice(clk: Any, x: Any, y: Any) -> Any:
    @always(clk.posedge)
    def grow() -> None:
        for i in range(1, 4):
            y.next = x[2 * i : i]

    return grow


def test_a_slice_of_varying_width_is_refused() -> None:
    dut = growing_slice(Signal(bool(0)), Signal(intbv(0)[8:]), Signal(intbv(0)[8:]))
    with pytest.raises(ConversionError, match="bounds must differ by a constant > 0"):
        convert(dut, "grow")


def test_created_instances_lists_what_was_not_returned_too() -> None:
    @block
    def outer(x: Any, y: Any, z: Any) -> Any:
        @always_comb
        def kept() -> None:
            y.next = x

        @always_comb
        def dropped() -> None:
            z.next = x

        return kept

    dut = outer(*(Signal(bool(0)) for _ in range(3)))
    assert [instance.name for instance in elaboration.created_instances(dut)] == ["kept", "dropped"]
