"""Every public circuit says of each port its direction, its width and its timing."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always_comb, block, intbv
from myhdl._block import _Block
from myhdl._Signal import _Signal

import hdl
from hdl.dram.axi import AxiFormat, AxiMerge
from hdl.dram.deal import Collect, Deal
from hdl.dram.store import DramConstant, DramFifo, DramReplay, LoadedReplay
from hdl.dram.widen import AxiWiden
from hdl.elaboration.ports import subblocks
from hdl.engine.codec.bursts import Bursts
from hdl.engine.codec.compressor import Compressor
from hdl.engine.codec.decompressor import Decompressor
from hdl.engine.codec.integer_codec import IntegerCodec
from hdl.engine.weights.loaded_constant import LoadedConstant
from hdl.fixed import Fixed
from hdl.layers.registry import load_layers
from hdl.link.clocks import ClockCrossing
from hdl.link.egress import Egress
from hdl.link.ethernet.adapter import AVALON, AXI_STREAM
from hdl.link.ethernet.clocked import ClockedMac
from hdl.link.ethernet.frame import FrameFormat
from hdl.link.ethernet.sink import FrameSink
from hdl.link.format import LinkFormat
from hdl.link.forward import Forward
from hdl.link.ingress import Ingress
from hdl.link.pool import ReceivePool
from hdl.link.routing import CreditWord, Drain, Merge, Split
from hdl.memory import address_width, unsimulated
from hdl.selftest.console import Console
from hdl.selftest.march import March
from hdl.selftest.prbs import PrbsCheck, PrbsSource
from hdl.signals import Bit, Bits, ClockReset, Instances
from hdl.stream import Stream
from hdl.streams.pipes import m2s_pipe
from hdl.unit import Unit
from tests.layer_support import elaborate

ROOT = Path(hdl.__file__).parent
# said once for all blocks, in hdl/signals.py
COMMON = {"clk", "rst", "domain"}
# of parameters that are decided before there is a circuit
NUMBERS = re.compile(
    r"^(int|bool|str|float|Fixed|.*\b(tuple|Sequence|Mapping|Callable)\b.*\b(int|str)\b.*)( \| None)?$"
)
LINE = re.compile(r"^ {4,}([\w, ]+): (in|out|in and out)[,;]? (.*)", re.MULTILINE)


def circuits(source: str) -> Iterator[ast.FunctionDef]:
    """Functions under `myhdl.block`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(mark, ast.Name) and mark.id == "block" for mark in node.decorator_list
        ):
            yield node


def signals_of(circuit: ast.FunctionDef) -> dict[str, str]:
    """Parameter -> annotation, of those that are signals, streams or bundles of them."""
    given = [*circuit.args.args, *circuit.args.kwonlyargs]
    found = {arg.arg: ast.unparse(arg.annotation) if arg.annotation else "" for arg in given}
    # what comes by keyword are numbers, as far as they are no signals
    words = {arg.arg for arg in circuit.args.kwonlyargs}
    wires = re.compile(r"\b(Clock|Bit|Bits|Stream|Lanes|Steps|Axi|Any)\b")
    return {name: text for name, text in found.items() if name not in words or wires.search(text)}


def faults(source: str) -> list[str]:
    """What is missing in the circuits of a file."""
    found = []
    for circuit in circuits(source):
        said = {name.strip() for match in LINE.finditer(ast.get_docstring(circuit, clean=False) or "")
                for name in match[1].split(",")}  # fmt: skip
        for name, text in signals_of(circuit).items():
            if re.search(r"\bAny\b", text):
                found.append(f"{circuit.name}: {name} is {text}")
            wire = name not in COMMON and not NUMBERS.match(text)
            if wire and not circuit.name.startswith("_") and name not in said:
                found.append(f"{circuit.name}: nothing said of port {name}")
    return found


FILES = sorted(path for path in ROOT.rglob("*.py") if "@block" in path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_port_is_told(path: Path) -> None:
    assert faults(path.read_text()) == []


def test_what_is_missing_is_found() -> None:
    text = '''
@block
def adder(domain: ClockReset, a: Bits, b: Any, y: Bits, *, width: int, table: tuple[int, ...]) -> Any:
    """Adds.

    Ports:
        a: in, ``width`` bits.
    """
'''
    assert faults(text) == [
        "adder: b is Any", "adder: nothing said of port b", "adder: nothing said of port y",
    ]  # fmt: skip


def driven(part: Any) -> set[int]:
    """Identities of the signals that a block or a process drives."""
    if isinstance(part, _Block):
        return {signal for sub in part.subs for signal in driven(sub)}
    names = [*part.outputs, *part.inouts]
    found = {id(part.sigdict[name]) for name in names if name in part.sigdict}
    return found | {id(signal) for name in names for signal in part.losdict.get(name, ())}


def direction(port: Any, inside: set[int]) -> str | None:
    """What a block that drives these signals makes of a port; None of a bundle, whose signals go both ways."""
    if isinstance(port, list | tuple):
        found = {direction(item, inside) for item in port}
        return found.pop() if len(found) == 1 else None
    if isinstance(port, _Signal):
        return "out" if id(port) in inside else "in"
    if not isinstance(port, Stream):
        return None
    drives = tuple(id(signal) in inside for signal in (port.valid, port.payload, port.ready))
    return {(True, True, False): "out", (False, False, True): "in", (False, False, False): "watched"}.get(drives, "")


def wrong_ways(circuit: Any) -> list[str]:
    """Ports of a block and of those inside whose direction is not the one told, and flags of more than a bit."""
    found = []
    for part in subblocks(circuit):
        signature = inspect.signature(part.func)
        given = signature.bind(*part.args, **part.kwargs).arguments
        text = part.func.__doc__ or ""
        told = {name.strip(): match for match in LINE.finditer(text) for name in match[1].split(",")}
        inside = driven(part) if "Ports:" in text else set()
        for name in told.keys() & given.keys() if "Ports:" in text else ():
            way = direction(given[name], inside)
            says = "watched" if "watched" in told[name][3] else told[name][2]
            if way is not None and way != says:
                found.append(f"{part.func.__name__}: {name} is said to be {says}, and is {way or 'both'}")
            if signature.parameters[name].annotation == "Bit" and len(given[name]) > 1:
                found.append(f"{part.func.__name__}: {name} is a vector")
    return found


# of ports in docstrings: a number, a format or a port, as an expression of the block's parameters
EXPRESSION = r"(?:``([^`]+)``|`(\w+)`)"
COUNT = rf"(?:{EXPRESSION}|an?|one)"
SIGN = r"(?:signed |unsigned )?"
CODES = re.compile(rf"{COUNT} {SIGN}(?:codes? )?of {EXPRESSION}(?! bits)")
ANY_CODES = re.compile(rf"(?:stream of |^){SIGN}codes of {EXPRESSION}")
SUMS = re.compile(rf"{COUNT} {SIGN}(?:sums?|numbers?|codes?) of {EXPRESSION} bits")
BITS = re.compile(rf"^(?:streams? of )?{SIGN}(?:(\d+)|{EXPRESSION}) bits?\b(?! more| less)")
PLACES = re.compile(r"`(?:hdl\.memory\.)?address_width` ``\(([^`]+)\)`` bits")
ALIKE = re.compile(r"(?:^|streams? |vector a tap, )as wide as ``([^`]+)``")
# what a width is not said by, or only from below or above
VAGUE = re.compile(
    r"\b(at least|at most|up to|more than|of each|then|likewise|other bits|as many of|a lane)\b|From the low bits"
)


class Parameters(dict[str, Any]):
    """What an expression in a docstring may name: parameters of the block, names of its module, and where no other has
    the name, what is an attribute of a parameter."""

    def __missing__(self, name: str) -> Any:
        for value in list(self.values()):
            if dataclasses.is_dataclass(value) and hasattr(value, name):
                return getattr(value, name)
        raise KeyError(name)


def expected_width(text: str, known: Mapping[str, Any]) -> tuple[int, bool] | None:
    """(bits, whether a beat has any number of so many) that a port's line tells; None where it tells none.

    Raises what evaluating an expression of it raises."""
    if VAGUE.search(text):
        return None

    def value(written: str | None, name: str | None = None) -> Any:
        return 1 if not (written or name) else eval(written or name or "", {"__builtins__": {"len": len}}, known)

    every = ANY_CODES.search(text)
    if every:
        return value(*every.groups()).width, True
    sums, codes = SUMS.search(text), CODES.finditer(text)
    if sums:
        return value(sums[1], sums[2]) * value(sums[3], sums[4]), False
    first = next(codes, None)
    if first:
        found = [first, *(code for code in codes if text[: code.start()].endswith("and above them "))]
        return sum(value(code[1], code[2]) * value(code[3], code[4]).width for code in found), False
    bits, places, alike = BITS.search(text), PLACES.search(text), ALIKE.search(text)
    if bits:
        return int(bits[1]) if bits[1] else value(bits[2], bits[3]), False
    if places:
        return address_width(value(places[1])), False
    # of a port that is not there nothing is said
    return next(((width, False) for width in _widths(value(alike[1]))), None) if alike else None


def _widths(port: Any) -> list[int]:
    """Bits of a signal, of the payload of a stream, of each of several."""
    if isinstance(port, list | tuple):
        return [width for item in port for width in _widths(item)]
    if isinstance(port, Stream):
        return [port.width]
    return [len(port) or 1] if isinstance(port, _Signal) else []


def told_ports(text: str) -> Iterator[tuple[list[str], str]]:
    """Names and all that is said, of each line of "Ports:" with those that go on below it."""
    lines = list(LINE.finditer(text))
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        rest = text[line.start(3) : following.start() if following else None].partition("\n\n")[0]
        yield [name.strip() for name in line[1].split(",")], " ".join(rest.split())


def wrong_widths(circuit: Any) -> tuple[list[str], int]:
    """Ports of a block and of those inside that have other bits than is told, and how many have those."""
    found, held = [], 0
    for part in subblocks(circuit):
        given = inspect.signature(part.func).bind(*part.args, **part.kwargs)
        given.apply_defaults()
        known = Parameters({**part.func.__globals__, **given.arguments})
        text = part.func.__doc__ or ""
        for names, told in told_ports(text) if "Ports:" in text else ():
            for name in names:
                widths = _widths(known[name]) if name in given.arguments else []
                if not widths or (len(names) > 1 and ", of " in told):
                    continue
                where = f"{part.func.__name__}: {name}"
                try:
                    expected = expected_width(told, known)
                except Exception as error:
                    found.append(f"{where} is {told!r}, which says nothing: {type(error).__name__}: {error}")
                    continue
                if expected:
                    bits, several = expected
                    held += 1
                    if any(width % bits if several else width != bits for width in widths):
                        found.append(f"{where} has {widths} bits, and is said to have {bits}: {told!r}")
    return found, held


def units() -> tuple[Unit, ...]:
    """Of every kind of circuit between layers."""
    link, axi = LinkFormat(word_bits=32, streams=5, devices=3), AxiFormat(data_bits=64, address_bits=12)
    ends = {"format": link, "element_bits": 5, "lanes": 3, "elements": 30}
    frames = FrameFormat(word_bits=64, mtu=576)
    sink = FrameSink(frames=frames, form=LinkFormat(word_bits=64, streams=5, devices=1), peers=1)
    stored = {"format": axi, "element_bits": 8, "x_lanes": 4, "y_lanes": 2, "elements": 100, "burst": 4, "prefetch": 16}
    bursts = Bursts(codec=IntegerCodec(5), elements=11, lanes=4)
    return (
        Egress(**ends, credits=7), Ingress(**ends, depth=7), Split(format=link), Merge(format=link), Drain(format=link),
        ReceivePool(format=link, regions=(4, 5), stages=(2, 16)), Ingress(**ends, depth=7, pooled=True),
        CreditWord(format=link), Forward(format=link, table=(0, 1, 2), merged=((1, 2), (0, 2), (0, 1))),
        DramFifo(**stored, capacity=3), DramReplay(**stored, batch=4, staleness=2), DramConstant(**stored),
        LoadedConstant(**stored), LoadedReplay(**stored, batch=4, staleness=2),
        AxiMerge(format=axi),
        AxiWiden(narrow=axi.narrowed(16), wide=axi, burst=2), ClockCrossing(payload_bits=link.payload_bits),
        Compressor(bursts=bursts), Decompressor(bursts=bursts),
        PrbsSource(word_bits=64), PrbsCheck(word_bits=64), March(format=axi, burst=4),
        Console(links=2, channels=2, values=3),
        *(ClockedMac(sink=sink, kind=kind, mac_bits=bits) for kind, bits in ((AXI_STREAM, 128), (AVALON, 64))),
        Deal(payload_bits=6, parts=3), Collect(payload_bits=6, parts=3, turn=2),
    )  # fmt: skip


@pytest.mark.parametrize("unit", units(), ids=lambda unit: type(unit).__name__)
def test_ports_of_units_go_the_way_that_is_told(unit: Unit) -> None:
    streams = {name: Stream(width) for name, width in unit.streams.items()}
    circuit = unit.build(ClockReset(), streams)
    assert wrong_ways(circuit) == []
    assert wrong_widths(circuit)[0] == []


@pytest.mark.parametrize("kind", load_layers())
def test_ports_in_layers_go_the_way_that_is_told(kind: str) -> None:
    for example in load_layers()[kind].examples():
        with unsimulated():
            circuit = elaborate(example)[0]
        assert wrong_ways(circuit) == []
        wrong, held = wrong_widths(circuit)
        assert wrong == []
        assert held >= 1


@block
def backwards(domain: ClockReset, x: Stream, y: Stream, flag: Bit) -> Instances:
    """The wrong way round.

    Ports:
        x: out, stream of any width.
        y: in, stream of any width, watched.
        flag: in, 1 bit.
    """
    stage = m2s_pipe(domain, x, y)

    @always_comb
    def drive() -> None:
        flag.next = x.valid

    return stage, drive


def test_ports_that_go_another_way_are_found() -> None:
    circuit = backwards(ClockReset(), Stream(8), Stream(8), Signal(bool(0)))
    assert sorted(wrong_ways(circuit)) == [
        "backwards: flag is said to be in, and is out",
        "backwards: x is said to be out, and is in",
        "backwards: y is said to be watched, and is out",
    ]


@block
def narrow(domain: ClockReset, x: Stream, y: Stream, at: Bits, some: Sequence[Bits], *, lanes: int) -> Instances:
    """Other widths than it has.

    Ports:
        x: in, stream of ``lanes`` codes of ``FORM``, from
            registers.
        y: out, stream as wide as ``x``, 1 cycle later.
        at: in, `address_width` ``(lanes)`` bits.
        some: in, ``lane`` bits each.
    """
    del at, some, lanes
    return m2s_pipe(domain, x, y)


FORM = Fixed(8, 4)


def test_ports_that_are_wider_or_narrower_are_found() -> None:
    def found(x: int, at: int) -> tuple[list[str], int]:
        some = [Signal(intbv(0)[2:])]
        return wrong_widths(narrow(ClockReset(), Stream(x), Stream(x), Signal(intbv(0)[at:]), some, lanes=5))

    unknown = "narrow: some is '``lane`` bits each.', which says nothing: NameError: name 'lane' is not defined"
    assert found(40, 3)[0] == [unknown]
    assert found(40, 3)[1] == found(39, 4)[1] >= 3
    assert found(39, 4)[0] == [
        "narrow: x has [39] bits, and is said to have 40: 'stream of ``lanes`` codes of ``FORM``, from registers.'",
        "narrow: at has [4] bits, and is said to have 3: '`address_width` ``(lanes)`` bits.'",
        unknown,
    ]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("stream of codes of ``FORM``, any number a beat.", (8, True)),
        ("``n`` codes of ``FORM`` and above them ``n + 1`` of ``FORM``, later.", (56, False)),
        ("stream of ``n`` signed sums of ``m`` bits.", (15, False)),
        ("a code of `FORM`.", (8, False)),
        ("1 bit each, from registers.", (1, False)),
        ("stream of any width.", None),
        ("at least ``n`` bits.", None),
    ],
)
def test_what_a_line_tells_of_a_width(told: str, expected: tuple[int, bool] | None) -> None:
    assert expected_width(told, Parameters(FORM=FORM, n=3, m=5)) == expected
