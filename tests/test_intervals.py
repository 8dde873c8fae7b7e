"""Interval arithmetic holds every value, and the analysis reports what a circuit does."""

import ast
import itertools
import operator
from typing import Any

import numpy as np
import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.analysis.intervals import Event, GeneratorAnalysis, Kind, Visitor, analyse
from hdl.analysis.ranges import Interval, combine, signed_range, unsigned_range

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_the_interval_of_an_operation_holds_every_result(kind: type[ast.operator]) -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        a_low, b_low = (int(x) for x in rng.integers(-20, 20, size=2))
        if kind in (ast.LShift, ast.RShift):
            b_low = abs(b_low) % 6
        a = Interval(a_low, a_low + int(rng.integers(0, 12)))
        b = Interval(b_low, b_low + int(rng.integers(0, 6)))
        if kind in (ast.FloorDiv, ast.Mod) and b == Interval(0, 0):
            continue
        found = combine(kind(), a, b)
        for x, y in itertools.product(range(a.low, a.high + 1), range(b.low, b.high + 1)):
            if kind in (ast.FloorDiv, ast.Mod) and y == 0:
                continue
            assert found.low <= OPERATORS[kind](x, y) <= found.high, (a, b, x, y, found)


def test_widths_are_those_of_two_s_complement() -> None:
    widths = {(0, 0): 1, (0, 1): 1, (0, 255): 8, (0, 256): 9, (-1, 0): 1, (-1, 1): 2, (-128, 127): 8, (-129, 0): 9}
    for (low, high), width in widths.items():
        assert Interval(low, high).width == width
    for width in range(1, 20):
        assert signed_range(width).width == width
        assert unsigned_range(width).width == width


@block
def datapath(clk: Any, x: Any, i: Any, y: Any, z: Any, relu: bool) -> Any:
    low = Signal(intbv(0, min=-8, max=1))
    high = Signal(intbv(0, min=-1, max=8))
    mixed = [low, high]
    store = [Signal(intbv(0)[8:]) for _ in range(16)]
    taps = [Signal(intbv(0, min=-128, max=128)) for _ in range(3)]

    @always(clk.posedge)
    def multiply() -> None:
        for k in range(3):
            taps[k].next = x[8 * k + 8 : 8 * k].signed()
        total = taps[0] * 5 + taps[1] * taps[2]
        total = total + taps[1] * taps[2]
        if relu:
            y.next = total if total > 0 else 0
        else:
            y.next = taps[0] * taps[1]

    @always(clk.posedge)
    def remember() -> None:
        store[i].next = x[8:]

    @always_comb
    def pick() -> None:
        z.next = mixed[i[0]] + store[i]

    return multiply, remember, pick


class Collector(Visitor):
    """Keeps everything."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Event]] = []
        self.name = ""

    def generator(self, analysis: GeneratorAnalysis) -> None:
        self.name = analysis.name

    def event(self, event: Event) -> None:
        self.events.append((self.name, event))


def collect(relu: bool) -> list[tuple[str, Event]]:
    x, i = Signal(intbv(0)[24:]), Signal(intbv(0)[4:])
    y, z = (Signal(intbv(0, min=-(1 << 17), max=1 << 17)) for _ in range(2))
    collector = Collector()
    analyse(datapath(Signal(bool(0)), x, i, y, z, relu), collector)
    return collector.events


@block
def strided(clk: Any, x: Any, ys: Any, step: int) -> Any:
    @always(clk.posedge)
    def gather() -> None:
        for k in range(len(ys)):
            ys[k].next = x[step * k + step : step * k] * (step - 1) + (k << 1)

    return gather


class Choosy(Collector):
    """Wants each kind by name, so that operations on numbers are told to nobody and worked out once."""

    kinds = frozenset(Kind)


def test_numbers_worked_out_once_are_those_of_each_instance() -> None:
    def events(collector: Collector, step: int) -> list[tuple[Any, ...]]:
        ys = [Signal(intbv(0)[16:]) for _ in range(3)]
        analyse(strided(Signal(bool(0)), Signal(intbv(0)[24:]), ys, step), collector)
        return [(e.kind, ast.dump(e.node), e.operands, e.result) for _, e in collector.events if not e.constant]

    for step in (4, 8, 4, 5):
        found = events(Choosy(), step)
        assert found == events(Collector(), step)
        top = (1 << step) - 1
        assert [result.high for kind, _, _, result in found if kind is Kind.REGISTER_WRITE] == [
            top * (step - 1) + 2 * k for k in range(3)
        ]


def test_a_repeated_product_is_marked_and_a_factor_known() -> None:
    products = [e for _, e in collect(True) if e.kind is Kind.MULTIPLY and not e.constant]
    assert [(e.constant_operand, e.repeated) for e in products] == [(True, False), (False, False), (False, True)]
    assert products[1].operands == (signed_range(8), signed_range(8))
    assert products[1].result == Interval(-128 * 127, 1 << 14)


def test_a_branch_that_is_never_taken_is_left_out() -> None:
    written = {relu: [e.result for _, e in collect(relu) if e.kind is Kind.MUX] for relu in (True, False)}
    assert len(written[True]) == 1
    assert written[True][0].low <= 0
    assert written[False] == []


def test_memories_and_registers_are_told_apart() -> None:
    events = collect(True)
    kinds = {(name, e.kind) for name, e in events}
    assert ("remember", Kind.MEMORY_WRITE) in kinds
    assert ("pick", Kind.MEMORY_READ) in kinds
    assert ("pick", Kind.WIRE_WRITE) in kinds
    registers = {id(e.target) for _, e in events if e.kind is Kind.REGISTER_WRITE}
    assert len(registers) == 4


def test_an_element_at_a_varying_index_has_the_range_of_all_elements() -> None:
    reads = [e for name, e in collect(True) if name == "pick" and e.kind is Kind.MEMORY_READ]
    assert Interval(-8, 7) in [e.result for e in reads]
