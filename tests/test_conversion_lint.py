"""The lint flags every known miscompile of MyHDL, and what it lets through agrees with Icarus."""

import importlib.util
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from myhdl import ResetSignal, Signal, Simulation, always, always_comb, always_seq, block, delay, instance, intbv

from hdl.analysis.intervals import Event, GeneratorAnalysis, Kind, UnknownConstruct, Visitor, analyse
from hdl.convert.expression_model import Model
from hdl.convert.lint import _Drivers, _StatementLint, lint
from hdl.convert.tools import compile_icarus, run_tool
from hdl.convert.verilog import convert
from hdl.errors import ConversionError
from hdl.memory import simple_dual_port
from hdl.simulate.myhdl_run import fresh_simulator

# width of the result of every expression under test
WIDTH = 80
# name, least value, greatest value + 1
INPUTS = (
    ("a", -128, 128),
    ("b", -128, 128),
    ("s", -(1 << 39), 1 << 39),
    ("u", 0, 256),
    ("v", 0, 256),
    ("w", 0, 1 << 16),
    ("k", 0, 8),
)


HEADER = "from myhdl import *\nTABLE = (3, -7, 100, 2**31, 5, -(2**33), 0, 1)\nLARGE = 2**32\n"


def block_source(statements: list[str], name: str = "dut") -> str:
    """A block with one clocked generator for each statement list; statement i writes ``y<i>``."""
    outputs = ", ".join(f"y{i}" for i in range(len(statements)))
    names = ", ".join(name for name, _, _ in INPUTS)
    lines = [
        "@block",
        f"def {name}(clk, {names}, c, {outputs}):",
        "    m = [Signal(intbv(0, min=-128, max=128)) for _ in range(8)]",
        "    @always(clk.posedge)",
        "    def fill():",
        "        for i in range(8):",
        "            m[i].next = a",
    ]
    for i, text in enumerate(statements):
        lines += ["    @always(clk.posedge)", f"    def g{i}():"]
        lines += [f"        {line}" for line in text.replace("Y", f"y{i}").split("\n")]
    return "\n".join([*lines, "    return instances()", ""])


def load(folder: Path, source: str) -> ModuleType:
    """MyHDL reads the source again, so it must be a file."""
    name = f"generated_{abs(hash(source))}"
    path = folder / f"{name}.py"
    path.write_text(HEADER + source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def elaborate(module: ModuleType, outputs: int, name: str = "dut") -> tuple[Any, dict[str, Any]]:
    signals: dict[str, Any] = {"clk": Signal(bool(0)), "c": Signal(bool(0))}
    signals |= {name: Signal(intbv(0, min=low, max=high)) for name, low, high in INPUTS}
    limit = 1 << (WIDTH - 1)
    signals |= {f"y{i}": Signal(intbv(0, min=-limit, max=limit)) for i in range(outputs)}
    return getattr(module, name)(**signals), signals


def random_inputs(rng: random.Random, count: int) -> list[dict[str, int]]:
    def pick(low: int, high: int) -> int:
        return rng.choice([low, high - 1, 0, rng.randrange(low, high), rng.randrange(low, high)])

    return [{n: pick(lo, hi) for n, lo, hi in INPUTS} | {"c": rng.randrange(2)} for _ in range(count)]


def run_myhdl(module: ModuleType, outputs: int, vectors: list[dict[str, int]]) -> list[list[int]]:
    results = []
    with fresh_simulator():
        dut, signals = elaborate(module, outputs)

        @block
        def bench() -> Any:
            @instance
            def stimulus() -> Any:
                for vector in vectors:
                    for name, value in vector.items():
                        signals[name].next = value
                    for level in (0, 1, 0):
                        signals["clk"].next = level
                        yield delay(1)
                    results.append([int(signals[f"y{i}"]) for i in range(outputs)])

            return stimulus

        Simulation(dut, bench()).run(quiet=1)
    return results


def run_verilog(
    folder: Path, module: ModuleType, outputs: int, vectors: list[dict[str, int]], *, checked: bool = True
) -> list[list[str]]:
    with fresh_simulator():
        dut, _ = elaborate(module, outputs)
        verilog = convert(dut, "dut", lint=checked).write(folder)
    ports = ["clk", "c", *(name for name, _, _ in INPUTS), *(f"y{i}" for i in range(outputs))]
    text = "module tb; reg clk, c;\n"
    for name, low, high in INPUTS:
        text += f"reg {'signed ' if low < 0 else ''}[{(high - 1).bit_length() - (low >= 0)}:0] {name};\n"
    text += "".join(f"wire signed [{WIDTH - 1}:0] y{i};\n" for i in range(outputs))
    text += f"dut d({', '.join(f'.{p}({p})' for p in ports)});\ninitial begin\n"
    results = ", ".join(f"y{i}" for i in range(outputs))
    for vector in vectors:
        text += " ".join(f"{name} = {_literal(value)};" for name, value in vector.items())
        text += f' clk = 0; #1 clk = 1; #1 clk = 0; #1\n$display("{" ".join(["%0d"] * outputs)}", {results});\n'
    (folder / "tb.v").write_text(text + "end endmodule\n")
    program = folder / "tb.vvp"
    run_tool(["iverilog", "-g2005", "-o", program, "-s", "tb", verilog, folder / "tb.v"])
    return [line.split() for line in run_tool(["vvp", program]).splitlines()]


def _literal(value: int) -> str:
    return f"64'd{value}" if value >= 0 else f"-64'sd{-value}"


def differences(folder: Path, statement: str, *, checked: bool = False) -> int:
    """Vectors for which MyHDL and its Verilog differ."""
    module = load(folder, block_source([statement]))
    vectors = random_inputs(random.Random(7), 200)
    wanted = run_myhdl(module, 1, vectors)
    got = run_verilog(folder, module, 1, vectors, checked=checked)
    return sum([str(x) for x in row] != text for row, text in zip(wanted, got, strict=True))


def findings(folder: Path, statement: str) -> str:
    with fresh_simulator():
        dut, _ = elaborate(load(folder, block_source([statement])), 1)
        return "\n".join(map(str, lint(dut)))


# statement, what the lint says
MISCOMPILES = {
    "a signed product is cut before its shift": ("Y.next = (s * s) >> 8", "operand of >> needs"),
    "a nested shift of a sum is cut": ("Y.next = ((a + b) >> 1) + s", "operand of >> needs"),
    "a comparison with a constant of 2**30 or more is unsigned": ("Y.next = s > 2147483648", "a comparison needs"),
    "an addition of a constant of 2**30 or more is unsigned": ("Y.next = s + 2147483648", "extended to 80 bits"),
    "an unsigned operand after a nested signed expression": ("Y.next = (a * b) + u", "extended to 80 bits"),
    "branches of different sign": ("Y.next = u if c else a", "extended to 80 bits"),
    "a division of a negative number": ("Y.next = a // 4", "Verilog truncates"),
    "a remainder of a negative number": ("Y.next = a % 4", "Verilog truncates"),
    "an untyped local is a 32-bit integer": ("t = s * a\nY.next = t", "an untyped local 't' has 32 signed bits"),
    "a sum is compared in the width of its operands": ("Y.next = (u + v) > w[8:]", "a comparison needs 0 … 510"),
    "an inversion grows ones above": ("Y.next = ~u", "~ of 8 bits is evaluated in 80 bits"),
    "an index of a narrow local is cut": ("n = intbv(0)[2:]\nn[:] = 3\nY.next = w[n + n]", "an index needs 6 … 6"),
    "a loop below 0 in an index beside a constant of 2**30 or more": (
        "for i in range(-1, 1):\n    Y.next[i + 1] = w[i + 4294967296 - 4294967295]",
        "a negative operand of 32 bits is extended",
    ),
    "a loop below 0 in an index beside a number of 2**30 or more": (
        "for i in range(-1, 1):\n    Y.next[i + 1] = w[i + LARGE - LARGE + 1]",
        "a negative operand of 32 bits is extended",
    ),
    "a local slice of a signed signal is as wide as the signal": ("t = a[8:0]\nY.next = t", "has 8 signed bits"),
}


@pytest.mark.parametrize("name", MISCOMPILES)
def test_a_known_miscompile_differs_in_icarus_and_is_flagged(name: str, tmp_path: Path) -> None:
    statement, message = MISCOMPILES[name]
    assert message in findings(tmp_path, statement)
    assert differences(tmp_path, statement) > 0


def test_a_lost_pair_of_parentheses_is_flagged(tmp_path: Path) -> None:
    for statement in ("Y.next = b + (u if c else 0)", "Y.next = bool(u if c else v)"):
        assert "without parentheses" in findings(tmp_path, statement)


FLAGGED = {
    "Y.next = m[k - 1]": "index may be negative",
    "for i in range(3):\n    Y.next[i] = w[1 - i]": "index may be negative (-1)",
    "for i in range(4):\n    Y.next[i] = k[i + 0]": "bit 3 of 3 bits may be selected",
    "Y.next = w[u]": "bit 255 of 16 bits may be selected",
    "Y.next[8:0] = a": "written into a slice",
    "Y.next = TABLE[k] + 1": "whole right side",
    "Y.next = a << b": "count of a shift may be negative",
    "Y.next = s.max": "written without a size",
    "Y.next = abs(a)": "no rule for this call",
    "Y.next = (u * v)[8:]": "can only select from",
    "while c:\n    Y.next = 0": "no rule for this statement",
    "for i in range(u):\n    Y.next = 0": "bounds of a loop must be constant",
    "for i in range(3):\n    i = 4\nY.next = 0": "assigned inside its loop",
    "if a == 1:\n    Y.next = 1\nelif a == -2:\n    Y.next = 2": "case with unsigned constants",
    "match k:\n    case 1 | 2:\n        Y.next = 1": "no rule for this pattern",
}


@pytest.mark.parametrize("statement", FLAGGED)
def test_a_dangerous_or_unknown_construct_is_flagged(statement: str, tmp_path: Path) -> None:
    assert FLAGGED[statement] in findings(tmp_path, statement)


CLEAN = (
    "p = intbv(0, min=-(1 << 47), max=1 << 47)\np[:] = s * a\nY.next = p >> 8",
    "for i in range(2):\n    Y.next = m[k] * w[i*8+8:i*8].signed()",
    "Y.next = TABLE[k]",
    "Y.next = b if c else a",
    # MyHDL widens the unsigned operand by a sign bit here, and the lint must know
    "Y.next = a + u",
    "t = a * b\nt += u\nY.next = t",
    "Y.next[16:8] = w[k+8:k]\nY.next[8:0] = u\nY.next[80:16] = 0",
    "Y.next = concat(u, v, c)",
    "if k == 1:\n    Y.next = 1\nelif k == 2:\n    Y.next = a\nelse:\n    Y.next = b - a",
    "match k:\n    case 1:\n        Y.next = 1\n    case _:\n        Y.next = w",
    "n = 0\nfor i in range(8):\n    if w[i]:\n        n = n + 1\nY.next = n",
)


@pytest.mark.parametrize("statement", CLEAN)
def test_our_style_is_clean_and_agrees_with_icarus(statement: str, tmp_path: Path) -> None:
    assert findings(tmp_path, statement) == ""
    assert differences(tmp_path, statement, checked=True) == 0


# ------------------------------------------------------------------------------------ random comparison


def random_expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.1:
        return random_leaf(rng)
    kind = rng.random()
    left, right = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    if kind < 0.6:
        return f"({left} {rng.choice('+-*&|^+-')} {right})"
    if kind < 0.7:
        return f"({left} >> {rng.choice('1247k8')})"
    if kind < 0.76:
        return f"({left} << {rng.choice('138k')})"
    if kind < 0.83:
        return f"({left} {rng.choice(['<', '<=', '>', '>=', '==', '!='])} {right})"
    if kind < 0.88:
        return f"({left} if {random_expression(rng, 0)} > {right} else {random_expression(rng, depth - 1)})"
    if kind < 0.95:
        return f"({rng.choice('~-')}{left})"
    return f"({left} {rng.choice(['//', '%'])} {rng.choice('347')})"


def random_leaf(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice("abuvwkcs")
    if kind < 0.7:
        return str(rng.choice([0, 1, 2, 7, 255, -1, -5, 2**15, 2**30, 2**31 - 1, 2**31, 2**40, -(2**31)]))
    if kind < 0.8:
        low = rng.randrange(7)
        part = f"{rng.choice('abuv')}[{rng.randrange(low + 1, 9)}:{low}]"
        return part + rng.choice(["", ".signed()"])
    return rng.choice(["u[3]", "a[7]", "w[k]", "u.signed()", "concat(u, a)", "concat(w, c)", "m[k]", "m[3]", "int(u)"])


def random_statement(rng: random.Random) -> str:
    text = random_expression(rng, rng.choice([1, 2, 3]))
    style = rng.random()
    # MyHDL can't infer the type of a local from a conditional expression, and says so
    if style < 0.7 or " if " in text:
        return f"Y.next = {text}"
    if style < 0.85:
        return f"t = {text}\nY.next = t"
    # the first write is overwritten; it is there to have the range of the expression checked
    return f"Y.next = {text}\nt = intbv(0, min=-(1 << 78), max=1 << 78)\nt[:] = {text}\nY.next = t >> 1"


INDICES = ("i", "i + 1", "i - 1", "7 - i", "2 * i", "i * i - 2", "i + 4294967296 - 4294967295", "i + k", "i // 2", "3")


def random_loop(rng: random.Random) -> str:
    """Statements whose indices count, many of them out of bounds in some round."""
    low = rng.choice([-2, 0, 0, 1])
    index, other = rng.choice(INDICES), rng.choice(INDICES)
    width = rng.choice([1, 2, 5])
    read = rng.choice([f"m[{index}]", f"w[{index}]", f"w[{index} + {width}:{index}]", f"(i {rng.choice('+-*')} a)"])
    target = rng.choice(["Y.next", f"Y.next[{other}]", f"Y.next[{other} + {width}:{other}]"])
    text = f"{read} {rng.choice('+-*&|')} {random_expression(rng, rng.choice([0, 1]))}"
    lines = [f"{target} = {text}"]
    if rng.random() < 0.3:
        lines = [f"if {rng.choice(['i', 'k'])} == {rng.choice('123')}:", f"    {lines[0]}"]
    if rng.random() < 0.3:
        lines = ["t[:] = i", f"{target} = t + {text}"]
    declared = "t = intbv(0, min=-4, max=16)\n" if "t[:]" in lines[0] else ""
    return f"{declared}for i in range({low}, {rng.choice([3, 5, 8])}):\n" + "\n".join(f"    {line}" for line in lines)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 13))])
def test_what_is_worked_out_once_a_statement_is_judged_as_if_it_were_not(seed: int, tmp_path: Path) -> None:
    """Values that are kept, events that nobody wants, and indices that only count, change no finding."""
    rng = random.Random(seed)
    statements = [random_loop(rng) for _ in range(60)] + [random_statement(rng) for _ in range(30)]
    module = load(tmp_path, "\n".join(block_source([text], f"dut{i}") for i, text in enumerate(statements)))

    def judged() -> list[list[str]]:
        with fresh_simulator():
            return [list(map(str, lint(elaborate(module, 1, f"dut{i}")[0]))) for i in range(len(statements))]

    found = judged()
    with (
        patch.object(Model, "_counted", lambda *_: False),
        patch.object(_StatementLint, "value", GeneratorAnalysis.value),
        patch.object(_Drivers, "kinds", None),
        patch.object(_Drivers, "event", lambda *_: None),
    ):
        slowly = judged()
    assert 20 <= sum(map(bool, found)) <= 80, f"seed {seed}: hardly any is flagged, or all are"
    for statement, one, other in zip(statements, found, slowly, strict=True):
        assert one == other, f"seed {seed}: {statement}"


class ResultRange(Visitor):
    """The interval of what is written to ``y0``."""

    def __init__(self, target: Any) -> None:
        self.target, self.fits = target, True

    def event(self, event: Event) -> None:
        if event.kind is Kind.REGISTER_WRITE and event.target is self.target:
            self.fits = self.fits and event.result.fits(WIDTH - 2, True)


@pytest.mark.parametrize(("seed", "count"), [(1, 100), *(pytest.param(n, 250, marks=pytest.mark.slow) for n in (2, 3))])
def test_random_expressions_that_are_clean_agree_with_icarus(seed: int, count: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    clean, total = [], 0
    statements = [random_statement(rng) for _ in range(count)]
    # one file: Python's inspect gets slow with many modules
    module = load(tmp_path, "\n".join(block_source([text], f"dut{i}") for i, text in enumerate(statements)))
    with fresh_simulator():
        for i, statement in enumerate(statements):
            dut, signals = elaborate(module, 1, f"dut{i}")
            result = ResultRange(signals["y0"])
            try:
                analyse(dut, result)
            except UnknownConstruct:
                continue
            total += result.fits
            if result.fits and not lint(dut):
                clean.append(statement)
    assert len(clean) >= count // 10, f"seed {seed}: only {len(clean)} of {total} are clean, so little is compared"
    module = load(tmp_path, block_source(clean))
    vectors = random_inputs(rng, 200)
    wanted = run_myhdl(module, len(clean), vectors)
    got = run_verilog(tmp_path, module, len(clean), vectors)
    for vector, row, text in zip(vectors, wanted, got, strict=True):
        for statement, value, seen in zip(clean, row, text, strict=True):
            assert str(value) == seen, f"seed {seed}: {statement} of {vector} is {value}, in Icarus {seen}"


# -------------------------------------------------------------------------------------------- structure


@block
def child(x: Any, y: Any) -> Any:
    @always_comb
    def copy() -> None:
        y.next = x

    return copy


@block
def forgetful(x: Any, y: Any, z: Any) -> Any:
    kept = child(x, y)
    child(x, z)
    return kept


def test_an_instance_that_is_not_returned_is_flagged() -> None:
    dut = forgetful(*(Signal(intbv(0)[4:]) for _ in range(3)))
    assert any("'child' is made but not returned" in str(f) for f in lint(dut))


@block
def resetting_memory(clk: Any, rst: Any, address: Any, data: Any) -> Any:
    mem = [Signal(intbv(0)[8:]) for _ in range(4)]

    @always_seq(clk.posedge, reset=rst)
    def write() -> None:
        mem[address].next = data

    return write


def test_a_memory_written_under_a_reset_is_flagged() -> None:
    reset = ResetSignal(0, active=1, isasync=False)
    dut = resetting_memory(Signal(bool(0)), reset, Signal(intbv(0)[2:]), Signal(intbv(0)[8:]))
    assert any("its reset clears every word" in str(f) for f in lint(dut))


class Owner:
    @block
    def circuit(self, x: Any, y: Any) -> Any:
        @always_comb
        def copy() -> None:
            y.next = x

        return copy


def test_a_block_that_is_a_method_is_flagged() -> None:
    dut = Owner().circuit(Signal(bool(0)), Signal(bool(0)))
    assert any("method" in str(f) for f in lint(dut))


@block
def two_writers(clk: Any, a: Any, y: Any) -> Any:
    store = [Signal(intbv(0)[8:]) for _ in range(4)]

    @always(clk.posedge)
    def first() -> None:
        store[0].next = a

    @always(clk.posedge)
    def second() -> None:
        store[a].next = a
        y.next = store[1]

    return first, second


def test_two_writers_of_one_list_are_flagged() -> None:
    dut = two_writers(Signal(bool(0)), Signal(intbv(0)[2:]), Signal(intbv(0)[8:]))
    assert any(str(f).startswith("first and second") for f in lint(dut))


@block
def raw_instance(clk: Any, y: Any) -> Any:
    @instance
    def run() -> Any:
        while True:
            yield clk.posedge
            y.next = not y

    return run


def test_a_generator_of_its_own_making_is_flagged() -> None:
    assert any("not @instance" in str(f) for f in lint(raw_instance(Signal(bool(0)), Signal(bool(0)))))


@block
def with_signed_constant(x: Any, y: Any) -> Any:
    offset = Signal(intbv(-3, min=-8, max=8))

    @always_comb
    def add() -> None:
        y.next = x + offset

    return add


def test_an_undriven_signal_is_refused() -> None:
    dut = with_signed_constant(Signal(intbv(0, min=-8, max=8)), Signal(intbv(0, min=-16, max=16)))
    with pytest.raises(ConversionError, match=r"Signal is not driven.*use a Python int"):
        convert(dut, "offset")


def test_a_memory_block_is_clean(tmp_path: Path) -> None:
    bits = [Signal(bool(0)), Signal(bool(0)), Signal(intbv(0)[3:]), Signal(intbv(0)[8:])]
    dut = simple_dual_port(*bits, Signal(bool(0)), Signal(intbv(0)[3:]), Signal(intbv(0)[8:]), depth=8, width=8)
    assert lint(dut) == []
    compile_icarus([convert(dut, "ram").write(tmp_path)], "ram")


def test_the_conversion_error_lists_every_finding(tmp_path: Path) -> None:
    statements = ["Y.next = a // 4", "Y.next = s > 2147483648"]
    with fresh_simulator():
        dut, _ = elaborate(load(tmp_path, block_source(statements)), 2)
        with pytest.raises(ConversionError) as caught:
            convert(dut, "bad")
    assert re.search(r"in 2 place\(s\)", str(caught.value)), caught.value
    assert "truncates" in str(caught.value)
    assert "a comparison needs" in str(caught.value)
