"""Conversion of one block to one module: deterministic, hierarchical names, ports, images, tool checks."""

import resource
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.images import write_image
from hdl.convert.netlist import Direction, Identifier, Instance, Module, PortDecl, Wire, instantiate
from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog, run_tool
from hdl.convert.verilog import convert
from hdl.errors import ConversionError, ToolError, ToolMissing
from hdl.memory import simple_dual_port
from hdl.signals import ClockReset
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream
from hdl.streams import m2s_pipe


class Mode(Enum):
    """Something with attributes of its own, which MyHDL would walk for ever."""

    FAST = 1


@dataclass(frozen=True)
class Config:
    lanes: int = 2
    mode: Mode = Mode.FAST


@block
def register_lane(clk: Any, x: Any, y: Any) -> Any:
    held = Signal(intbv(3)[8:])

    @always(clk.posedge)
    def hold() -> None:
        held.next = x
        y.next = held

    return hold


@block
def splitter(domain: ClockReset, x: Any, ys: Any, cfg: Any) -> Any:
    """Copies every beat to all outputs, through a register each; drops what isn't taken at once."""
    lanes = [register_lane(domain.clk, x.payload, y.payload) for y in ys]
    first_valid, second_valid = ys[0].valid, ys[1].valid
    marks = [Signal(intbv(value)[8:]) for value in (1, 2, 3)]

    @always(domain.clk.posedge)
    def valid() -> None:
        marks[0].next = 5
        first_valid.next = x.valid and not domain.rst and marks[1] == cfg.lanes
        second_valid.next = x.valid and not domain.rst and marks[0] == 5

    @always_comb
    def ready() -> None:
        x.ready.next = not domain.rst

    return lanes, valid, ready


def new_splitter() -> Any:
    return splitter(ClockReset(), Stream(8), [Stream(8), Stream(8)], Config())


def test_a_block_converts_to_the_same_text_again_and_after_a_simulation() -> None:
    first = new_splitter()
    text = convert(first, "splitter").text
    assert convert(first, "splitter").text == text
    with fresh_simulator():
        for signal in first.sigdict.values():
            signal._clear()
    assert convert(first, "splitter").text == text
    assert convert(new_splitter(), "splitter").text == text


def test_the_text_has_no_date_path_or_version() -> None:
    text = convert(new_splitter(), "splitter").text
    assert text.startswith("module splitter (")
    assert "timescale" not in text
    assert "MyHDL" not in text


def test_ports_come_from_streams_and_lists_of_streams() -> None:
    ports = {port.name: (port.width, port.direction) for port in convert(new_splitter(), "splitter").ports}
    assert ports["x_payload"] == (8, Direction.IN)
    assert ports["x_ready"] == (1, Direction.OUT)
    assert ports["ys0_payload"] == (8, Direction.OUT)
    assert ports["ys1_valid"] == (1, Direction.OUT)
    # nothing reads it, but it is a port
    assert ports["ys1_ready"] == (1, Direction.IN)


def test_the_docstring_heads_the_module_but_for_its_ports() -> None:
    x, y = Stream(8), Stream(8)
    text = convert(m2s_pipe(ClockReset(), x, y), "stage").text
    header = [line for line in text.splitlines() if line.startswith("//")]
    assert header == [
        "// Registers valid and payload; ready passes through one gate.",
        "//",
        "// Cost: payload + 1 flip-flops.  Latency: 1 cycle.  Holds 1 beat, one beat a cycle.",
    ]


def test_names_of_instances_count_from_zero_in_each_module() -> None:
    for _ in range(2):
        text = convert(new_splitter(), "splitter").text
        assert "register_lane0_held" in text
        assert "register_lane1_held" in text


def test_a_clocked_write_of_a_constant_stays_nonblocking() -> None:
    text = convert(new_splitter(), "splitter").text
    assert "marks[0] <= 5;" in text
    assert "marks[1] = 2;" in text


def test_the_text_passes_verilator_icarus_and_yosys(tmp_path: Path) -> None:
    path = convert(new_splitter(), "splitter").write(tmp_path)
    lint_verilog([path], "splitter")
    compile_icarus([path], "splitter")
    check_yosys([path], "splitter")


@pytest.mark.parametrize("text", ["assign y = x;", "reg z; always @(x) if (x) z = 1; assign y = z; wire y;"])
def test_the_tools_refuse_what_is_not_clean(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.v"
    path.write_text(f"module bad(input x, output y); {text} {'endmodule' if 'reg' in text else ''}")
    with pytest.raises(ToolError, match="verilator failed"):
        lint_verilog([path], "bad")


def test_a_large_memory_that_is_cleared_costs_lint_next_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cleared.v"
    path.write_text(
        "module cleared(input clk, input [17:0] at, output reg [35:0] y);\n"
        "reg [35:0] words [0:200000-1]; reg [3:0] lanes [0:300-1];\n"
        "initial begin: CLEAR integer i; for (i = 0; i < 200000; i = i + 1) words[i] = 0; end\n"
        "always @(posedge clk) begin: STEP integer lane;\n"
        "    for (lane = 0; lane < 300; lane = lane + 1) lanes[lane] <= at[3:0];\n"
        "    y <= words[at]; words[at] <= {32'd0, lanes[299]};\n"
        "end\nendmodule\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    lint_verilog([path], "cleared")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # unrolled, it takes 10
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_a_latch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latch.v"
    path.write_text("module latch(input x, input d, output reg y);\nalways @(x, d) if (x) y = d;\nendmodule\n")
    with pytest.raises(ToolError, match="yosys failed"):
        check_yosys([path], "latch")


def test_a_missing_tool_is_named_with_the_cure() -> None:
    with pytest.raises(ToolMissing, match=r"no_such_tool is not installed.*make setup"):
        run_tool(["no_such_tool"])


@block
def keyword_port(clk: Any, input: Any, y: Any) -> Any:
    @always(clk.posedge)
    def copy() -> None:
        y.next = input

    return copy


@block
def keyword_process(clk: Any, y: Any) -> Any:
    @always(clk.posedge)
    def begin() -> None:
        y.next = 1

    return begin


@block
def keyword_variable(clk: Any, y: Any) -> Any:
    @always(clk.posedge)
    def count() -> None:
        reg = intbv(0)[8:]
        reg[:] = y
        y.next = reg ^ 1

    return count


@block
def turned(clk: Any, x: Any, y: Any) -> Any:
    @always(clk.posedge)
    def turn() -> None:
        word = intbv(0)[8:]
        word[:] = x
        word[:] = word ^ 1
        y.next = word ^ x

    return turn


@block
def hidden_signal(clk: Any, y: Any) -> Any:
    word = Signal(intbv(0)[8:])
    return register_lane(clk, y, word), turned(clk, word, y)


@block
def signal_list(clk: Any, xs: Any, y: Any) -> Any:
    first = xs[0]

    @always(clk.posedge)
    def copy() -> None:
        y.next = first

    return copy


class Slotted:
    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = Signal(intbv(0)[8:])


@block
def slotted(clk: Any, bus: Any, y: Any) -> Any:
    data = bus.data

    @always(clk.posedge)
    def copy() -> None:
        y.next = data

    return copy


REFUSED = {
    "keyword": (lambda c, y: keyword_port(c, Signal(bool(0)), y), "has the name of a Verilog keyword"),
    "process": (keyword_process, "process 'begin' has the name of a Verilog keyword"),
    "variable": (keyword_variable, "variable 'reg' has the name of a Verilog keyword"),
    "hidden": (hidden_signal, "variable 'word' of process 'turn' hides a signal that it uses; rename it"),
    "list": (lambda c, y: signal_list(c, [Signal(bool(0))], y), "port xs is a list of signals"),
    "slots": (lambda c, y: slotted(c, Slotted(), y), r"Slotted\.data is in __slots__"),
    "same": (lambda c, y: register_lane(c, y, y), "are the same signal"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ports_that_myhdl_would_lose_or_misname_are_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(ConversionError, match=message):
        convert(make(Signal(bool(0)), Signal(intbv(0)[8:])), "dut")


def test_a_module_needs_a_name_that_verilog_takes() -> None:
    for name in ("module", "2fast", "a b"):
        with pytest.raises(ConversionError, match="is no name for a Verilog module"):
            convert(new_splitter(), name)


def test_a_clock_and_its_reset_are_ports_of_these_names() -> None:
    module = convert(m2s_pipe(ClockReset(), Stream(8), Stream(8)), "stage")
    assert [port.name for port in module.ports[:3]] == ["clk", "rst", "x_valid"]


@block
def of_two_clocks(domain: ClockReset, other: ClockReset, x: Stream, y: Stream) -> Any:
    middle = Stream(8)
    return m2s_pipe(domain, x, middle), m2s_pipe(other, middle, y)


def test_a_module_of_two_clocks_is_refused() -> None:
    with pytest.raises(ConversionError, match="two ports are named clk"):
        convert(of_two_clocks(ClockReset(), ClockReset(), Stream(8), Stream(8)), "crossing")


@block
def two_memories(clk: Any, we: Any, a: Any, d: Any, q: Any, r: Any, names: Any) -> Any:
    first = simple_dual_port(clk, we, a, d, we, a, q, depth=4, width=8, image=names[0])
    second = simple_dual_port(clk, we, a, d, we, a, r, depth=4, width=8, image=names[1], contents=[1, 2, 3, 4])
    return first, second


def new_memories(*names: str) -> Any:
    signals = [Signal(bool(0)), Signal(bool(0)), Signal(intbv(0)[2:]), *(Signal(intbv(0)[8:]) for _ in range(3))]
    return two_memories(*signals, names)


def test_each_named_memory_has_its_own_parameter() -> None:
    module = convert(new_memories("left", "right"), "pair")
    assert {name: image.memory for name, image in module.images.items()} == {
        "left": "simple_dual_port0_mem",
        "right": "simple_dual_port1_mem",
    }
    for name, image in module.images.items():
        assert f'initial if (INIT_{name} != "") $readmemh(INIT_{name}, {image.memory});' in module.text
    assert "[0] =" not in module.text


def test_two_memories_of_one_name_are_refused() -> None:
    with pytest.raises(ConversionError, match="two memories are named 'same'; number them"):
        convert(new_memories("same", "same"), "pair")


def test_a_memory_without_a_name_keeps_its_contents_in_the_text() -> None:
    bits = [Signal(bool(0)), Signal(bool(0)), Signal(intbv(0)[1:]), Signal(intbv(0)[8:])]
    more = [Signal(bool(0)), Signal(intbv(0)[1:]), Signal(intbv(0)[8:])]
    text = convert(simple_dual_port(*bits, *more, depth=2, width=8, contents=[17, 18]), "ram").text
    assert "mem[0] = 17;" in text
    assert "mem[1] = 18;" in text


def test_an_image_file_has_one_word_a_line(tmp_path: Path) -> None:
    write_image(tmp_path / "i.hex", [0, 255, 4096], 13)
    assert (tmp_path / "i.hex").read_text() == "0000\n00ff\n1000\n"


# --------------------------------------------------------------------------------------------- netlists

IN, OUT = Direction.IN, Direction.OUT
CHILD_PORTS = (PortDecl("clk", 1, IN), PortDecl("x", 8, IN), PortDecl("y", 8, OUT))


def parent(**changes: Any) -> Module:
    widths = {"clk": 1, "x": 8, "y": 8, "middle": 8}
    first = instantiate("register_lane", CHILD_PORTS, "u0", {"clk": "clk", "x": "x", "y": "middle"}, widths)
    second = instantiate("register_lane", CHILD_PORTS, "u1", {"clk": "clk", "x": "middle", "y": ""}, widths)
    values: dict[str, Any] = {
        "name": "parent",
        "ports": CHILD_PORTS,
        "wires": (Wire("middle", 8),),
        "instances": (first, second),
        "assigns": (("y", "{middle[3:0], 4'hf}"),),
        "comment": "two lanes",
    }
    return Module(**(values | changes))


def test_a_netlist_over_converted_modules_compiles(tmp_path: Path) -> None:
    lane = convert(register_lane(Signal(bool(0)), Signal(intbv(0)[8:]), Signal(intbv(0)[8:])), "register_lane")
    top = tmp_path / "parent.v"
    top.write_text(parent().to_verilog())
    assert top.read_text() == parent().to_verilog()
    assert top.read_text().startswith("// two lanes\nmodule parent (\n    input wire clk,\n    input wire [7:0] x,")
    files = [lane.write(tmp_path), top]
    compile_icarus(files, "parent")
    check_yosys(files, "parent")


def test_parameters_of_a_netlist_are_passed_down(tmp_path: Path) -> None:
    memories = convert(new_memories("left", "right"), "pair")
    connections = {port.name: port.name for port in memories.ports}
    parameters = {"INIT_left": Identifier("INIT_left"), "INIT_right": "image.hex"}
    instance = Instance("pair", "u_pair", connections, parameters)
    top = Module("top", memories.ports, instances=(instance,), parameters={"INIT_left": ""})
    path = tmp_path / "top.v"
    path.write_text(top.to_verilog())
    assert '.INIT_right("image.hex")' in path.read_text()
    compile_icarus([memories.write(tmp_path), path], "top")


BROKEN = {
    "undeclared": ({"assigns": (("y", "nowhere + 1"),)}, "uses 'nowhere', which isn't declared"),
    "twice": ({"wires": (Wire("middle", 8), Wire("x", 8))}, "'x' is declared twice"),
    "keyword": ({"wires": (Wire("middle", 8), Wire("wire"))}, "'wire' is a Verilog keyword"),
    "identifier": ({"wires": (Wire("middle", 8), Wire("a-b"))}, "'a-b' is not a Verilog identifier"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_netlist_with_wrong_names_is_refused(case: str) -> None:
    changes, message = BROKEN[case]
    with pytest.raises(ConversionError, match=message):
        parent(**changes).to_verilog()


def test_an_instance_with_wrong_ports_is_refused() -> None:
    with pytest.raises(ConversionError, match=r"unconnected ports \['y'\], unknown ports \['z'\]"):
        instantiate("lane", CHILD_PORTS, "u", {"clk": "clk", "x": "x", "z": "z"}, {})
    with pytest.raises(ConversionError, match="port x has 8 bits, net narrow has 4"):
        instantiate("lane", CHILD_PORTS, "u", {"clk": "clk", "x": "narrow", "y": ""}, {"narrow": 4})
