"""The patches of MyHDL change its speed and its slices, nothing else."""

import ast
import contextlib
from types import SimpleNamespace
from typing import Any

import myhdl
import pytest
from myhdl import Signal, Simulation, _bin, always, always_comb, block, concat, delay, enum, instance, intbv
from myhdl._resolverefs import _AttrRefTransformer

from hdl.convert.verilog import convert
from hdl.elaboration import patches as elaboration
from hdl.errors import ConversionError, ToolError
from hdl.memory import simple_dual_port
from hdl.stream import bits_of

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


def lanes_swapped(sliced: bool) -> Any:
    """Four lanes of five bits behind a header of three, which come out in the opposite order."""

    @block
    def swapped(x: Any, y: Any) -> Any:
        width, start = 5, 3

        if sliced:

            @always_comb
            def out() -> None:
                y.next[start:] = x[start:]
                for lane in range(4):
                    y.next[bits_of(3 - lane, width, start)] = x[bits_of(lane, width, start)]
        else:

            @always_comb
            def out() -> None:
                y.next[start:] = x[start:]
                for lane in range(4):
                    y.next[start + (3 - lane) * width + width : start + (3 - lane) * width] = x[
                        start + lane * width + width : start + lane * width
                    ]

        return out

    return swapped


@pytest.mark.parametrize("fast", [True, False])
def test_the_bits_of_a_lane_are_the_slice_that_they_mean(fast: bool) -> None:
    def text(sliced: bool) -> str:
        x, y = (Signal(intbv(0)[23:]) for _ in range(2))
        return convert(lanes_swapped(sliced)(x, y), "dut").text

    with contextlib.nullcontext() if fast else elaboration.without_speed_patches():
        assert text(True) == text(False)
        assert "[(3 + (lane * 5)) +: 5]" in text(True)


def test_the_bits_of_a_lane_are_read_and_written_in_python() -> None:
    x, y = Signal(intbv(0b11111_00001_01010_11000_101)[23:]), Signal(intbv(0)[23:])
    found = []
    inside = lanes_swapped(True)(x, y)

    @instance
    def look() -> Any:
        yield delay(1)
        found.append(int(y))

    Simulation(inside, look).run(2, quiet=True)
    assert found == [0b11000_01010_00001_11111_101]


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


class Pair:
    """Two signals, one in an object of its own."""

    def __init__(self, bits: int) -> None:
        self.low = Signal(intbv(0)[bits:])
        self.inner = Inner(bits)


class Inner:
    def __init__(self, bits: int) -> None:
        self.high = Signal(intbv(0)[bits:])


STATES = enum("IDLE", "BUSY")


@block
def referring(clk: Any, x: Any, y: Any, mode: Any, x_low: Any) -> Any:
    """Attributes of attributes, of a signal, of an enum; a name that MyHDL's own name for an attribute would hide."""
    lanes = [Signal(intbv(0)[4:]) for _ in range(3)]
    table = (3, 1, 2)

    @always(clk.posedge)
    def step() -> None:
        width = len(x.low)
        if mode == STATES.BUSY:
            y.low.next = x.low + x.inner.high + table[x.low[2:]] + width
        elif x_low:
            y.low.next = y.low.val - x.low.max
            y.low.next[0] = 1
        lanes[1].next = x.low[4:]

    @always_comb
    def out() -> None:
        y.inner.high.next = concat(lanes[x.low[2:]], lanes[0])[4:]

    return step, out


def generators_of(mode: Any, x_low: Any) -> list[Any]:
    dut = referring(Signal(bool(0)), Pair(4), Pair(4), mode, x_low)
    return list(dut.subs)


def seen(generator: Any) -> tuple[Any, ...]:
    """What MyHDL wants to know of a generator."""
    sets = generator.inputs, generator.outputs, generator.inouts
    signals = list(generator.sigdict), {name: len(found) for name, found in generator.losdict.items()}
    senslist = len(generator.senslist)
    kinds = {name: type(found).__name__ for name, found in generator.symdict.items()}
    return generator.name, sets, signals, senslist, generator.embedded_func, list(kinds.items())


def test_instances_of_a_function_share_what_is_known_of_it_only_where_names_mean_the_same() -> None:
    modes = [Signal(STATES.IDLE), STATES.IDLE, Signal(STATES.IDLE)]
    names = [Signal(bool(0)), 1, [Signal(bool(0))]]
    for mode, x_low in zip(modes, names, strict=True):
        patched = [seen(generator) for generator in generators_of(mode, x_low)]
        trees = [tree_of(generator) for generator in generators_of(mode, x_low)]
        with elaboration.without_speed_patches():
            plain = generators_of(mode, x_low)
            assert patched == [seen(generator) for generator in plain]
            assert trees == [own_tree(generator) for generator in plain]


@block
def reading(x: Any, y: Any) -> Any:
    @always_comb
    def out() -> None:
        y.next = x.driven

    return out


def test_an_attribute_that_signals_have_is_replaced_of_other_objects_alone() -> None:
    pair = Pair(4)
    pair.driven = pair.low  # type: ignore[attr-defined]
    (generator,) = reading(pair, Signal(intbv(0)[4:])).subs
    for x, name in [(pair, "x_driven"), (Signal(intbv(0)[4:]), "driven"), (pair, "x_driven")]:
        generator.symdict = {"x": x}
        assert tree_of(generator) == own_tree(generator)
        assert repr(name) in tree_of(generator)


def before_references(generator: Any) -> dict[str, Any]:
    """What names mean, without the names of attributes."""
    return {name: found for name, found in generator.symdict.items() if name[:2] not in ("x_", "y_") or name == "x_low"}


def tree_of(generator: Any) -> str:
    return ast.dump(elaboration.resolved_tree(generator.funcobj, before_references(generator)).tree)


def own_tree(generator: Any) -> str:
    """As MyHDL makes it."""
    data: Any = SimpleNamespace(symdict=before_references(generator))
    tree = elaboration._originals["make_ast"](generator.funcobj)
    _AttrRefTransformer(data).visit(tree)
    return ast.dump(tree)


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
