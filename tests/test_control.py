"""The control of a circuit is what its handshakes depend on: no payload, no multiplier and no memory of data."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from dagtrain.emission.modules import ModuleLibrary
from dagtrain.simulate.control import given_state
from hdl.analysis.dataflow import EVERY_BIT
from hdl.cache import cache_folder
from hdl.convert.control import ControlSlicer, Solution
from hdl.convert.netlist import Direction
from hdl.convert.reader import read_module
from hdl.errors import ConversionError
from hdl.layers.base import Layer
from hdl.layers.capabilities import with_loaded_state
from hdl.layers.registry import load_layers

LIBRARY = ModuleLibrary(cache_folder() / "modules")
# one example of every kind of layer that is a circuit of its own
EXAMPLES: list[Layer] = [
    next(layer for layer in kind.examples() if layer.sinks and layer.sources)
    for kind in load_layers().values()
    if any(layer.sinks and layer.sources for layer in kind.examples())
]


def accessed(kind: type[Layer]) -> list[Layer]:
    """Examples whose state is loaded and dumped by a stream."""
    return [layer for layer in map(with_loaded_state, kind.examples()) if layer.accessed and layer.sinks]


# the first of each kind, and the last, at once
ACCESSED = [
    pytest.param(layer, id=f"{kind.__name__}{at}", marks=[pytest.mark.slow] if 0 < at < len(found) - 1 else [])
    for kind in load_layers().values()
    for found in [accessed(kind)]
    for at, layer in enumerate(found)
]


def handshakes(text: str, *asked: str) -> tuple[ControlSlicer, Solution]:
    """The slice of a module by all its outputs but payloads, and by those that are asked for."""
    module = read_module(text)
    slicer = ControlSlicer({module.name: text}, data=given_state)
    outputs = [name for name in module.ports if module.nets[name].direction is Direction.OUT]
    wanted = {name: EVERY_BIT for name in outputs if not name.endswith("_payload") or name in asked}
    return slicer, slicer.solve(module.name, wanted)


@pytest.mark.parametrize("layer", EXAMPLES, ids=lambda layer: type(layer).__name__)
def test_control_of_every_kind_of_layer_closes_without_data(layer: Layer) -> None:
    verilog = LIBRARY.layer(layer).verilog
    slicer, solution = handshakes(verilog.text)
    assert [port.name for port in verilog.ports if port.name.endswith("_payload") and solution.live[port.name]] == []
    left = slicer.contents(solution)
    assert left.multipliers == 0
    # flags on their way along a pipeline are all that is left in arrays
    nets = slicer.read(verilog.name).nets.values()
    assert [net.name for net in nets if net.depth and solution.live[net.name] and net.width > 8] == []
    # nothing is loaded but the constant order in which a shuffle reads
    assert set(re.findall(r"readmemh\((\w+)", slicer.texts(solution)[verilog.name])) <= {"INIT_order"}
    assert left.assignments < slicer.contents(None, verilog.name).assignments


@pytest.mark.parametrize("layer", ACCESSED)
def test_records_of_state_are_control_and_the_state_between_them_is_not(layer: Layer) -> None:
    verilog = LIBRARY.layer(layer).verilog
    slicer, solution = handshakes(verilog.text, "dump_payload")
    live = [port.name for port in verilog.ports if port.name.endswith("_payload") and solution.live[port.name]]
    assert sorted(live) == ["dump_payload", "load_payload"]
    assert slicer.contents(solution).multipliers == 0
    nets = slicer.read(verilog.name).nets.values()
    assert [net.name for net in nets if net.depth and solution.live[net.name] and net.width > 8] == []


# valid waits for a beat that is not zero
DATA_DEPENDENT = """module gate (
    clk, rst, x_valid, x_ready, x_payload, y_valid, y_ready, y_payload
);
input clk;
input rst;
input x_valid;
output x_ready;
wire x_ready;
input [15:0] x_payload;
output y_valid;
wire y_valid;
input y_ready;
output [15:0] y_payload;
wire [15:0] y_payload;
reg [7:0] seen = 0;
reg open = 0;
always @(posedge clk) begin: look
    if (x_valid) begin
        seen <= x_payload[11:4];
    end
    open <= (seen != 0);
end
assign y_valid = (x_valid && open);
assign x_ready = (y_ready && open);
assign y_payload = x_payload;
endmodule
"""


def test_control_that_reads_data_is_found_with_the_way_and_the_bits() -> None:
    slicer, solution = handshakes(DATA_DEPENDENT)
    assert solution.live["x_payload"] == 0x0FF0
    assert slicer.why(solution, "x_payload")[1:] == ["open", "seen", "x_payload"]
    assert slicer.why(solution, "y_payload") == []


# a queue of words in which two bits are a header; the rest is data
HEADER = """module words (
    clk, x_valid, x_payload, y_valid, y_payload
);
input clk;
input x_valid;
input [17:0] x_payload;
output y_valid;
reg y_valid;
output [17:0] y_payload;
wire [17:0] y_payload;
reg [17:0] mem [0:4-1];
initial begin: INITIALIZE_MEM
    integer i;
    for(i=0; i<4; i=i+1) begin
        mem[i] = 0;
    end
end
reg [1:0] at = 0;
reg [15:0] product = 0;
wire [17:0] word;
always @(posedge clk) begin: write
    integer lane;
    if (x_valid) begin
        mem[at] <= x_payload;
        at <= (at + 1);
    end
    for (lane=0; lane<2; lane=lane+1) begin
        product[(lane * 8) +: 8] <= (word[7:0] * word[15:8]);
    end
end
assign word = mem[at];
assign y_payload = {word[17:16], product};
always @(word) begin: decide
    case (word[17:16])
        0: y_valid = 0;
        3: y_valid = word[16];
        default: y_valid = 1;
    endcase
end
endmodule
"""


def test_a_header_stays_and_the_data_beside_it_do_not() -> None:
    slicer, solution = handshakes(HEADER)
    assert solution.live["x_payload"] == solution.live["mem"] == 0x30000
    assert solution.live["product"] == 0
    assert slicer.contents(None, "words").multipliers == 1
    assert slicer.contents(solution).multipliers == 0
    text = slicer.texts(solution)["words"]
    assert "product" not in text
    assert "y_payload" not in text


def test_a_slice_does_in_every_cycle_what_the_whole_does(tmp_path: Path) -> None:
    slicer, solution = handshakes(HEADER)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    sliced = slicer.texts(solution)["words"].replace("module words", "module control", 1)
    (tmp_path / "bench.v").write_text(f"""{HEADER}
{sliced}
module bench;
reg clk = 0, x_valid = 0;
reg [17:0] x_payload = 0;
wire whole, control;
integer seed = {seed}, cycle, passed = 0;
words a (.clk(clk), .x_valid(x_valid), .x_payload(x_payload), .y_valid(whole), .y_payload());
control b (.clk(clk), .x_valid(x_valid), .x_payload(x_payload), .y_valid(control));
initial begin
    for (cycle = 0; cycle < 1000; cycle = cycle + 1) begin
        x_valid = $random(seed);
        x_payload = $random(seed);
        #1 if (whole !== control) $display("cycle %0d differs", cycle);
        passed = passed + whole;
        clk = 1;
        #1 clk = 0;
    end
    $display("%0d", passed);
end
endmodule
""")
    program = tmp_path / "bench.vvp"
    subprocess.run(["iverilog", "-g2005", "-s", "bench", "-o", program, tmp_path / "bench.v"], check=True)
    told = subprocess.run(["vvp", "-n", program], check=True, capture_output=True, text=True).stdout.split("\n")
    assert len(told) == 2, told[:3]
    assert 100 < int(told[0]) < 900


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("open <= (seen != 0);", "while (open) open <= 0;", "what is written is not declared"),
        ("open <= (seen != 0);", "open <= (unknown != 0);", "'unknown' is not declared"),
        ("seen <= x_payload[11:4];", "seen <= x_payload[seen:4];", "a slice has bounds that vary"),
        ("reg open = 0;", "generate reg open; endgenerate", "'generate' begins nothing that is known"),
        ("endmodule", "", "begins nothing that is known"),
    ],
)
def test_verilog_of_another_kind_is_refused_and_never_skipped(was: str, becomes: str, message: str) -> None:
    with pytest.raises(ConversionError, match=rf"module gate, line \d+: .*{message}"):
        read_module(DATA_DEPENDENT.replace(was, becomes, 1))


def test_what_is_not_there_cannot_be_asked_for() -> None:
    slicer = ControlSlicer({"gate": DATA_DEPENDENT})
    with pytest.raises(ConversionError, match="module gate has no net z"):
        slicer.solve("gate", {"z": EVERY_BIT})
    with pytest.raises(ConversionError, match="module gate has no instance u"):
        slicer.solve("gate", {"u.z": EVERY_BIT})
    with pytest.raises(ConversionError, match="there is no module other"):
        slicer.read("other")
