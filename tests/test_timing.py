"""Static timing: the walk against paths added up by hand and against Yosys' own `sta`."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from benchmarks.timing import LAYERS, UNITS, layer_circuit, time_circuit
from dagtrain.cli import app
from dagtrain.flow import timing_step
from dagtrain.flow.timing_step import TimingOptions
from dagtrain.flow.workspace import Workspace
from dagtrain.progress import Silent
from hdl.convert.tools import run_tool
from hdl.convert.verilog import convert
from hdl.costs.cell_delays import BLOCK_MEMORY, FLIP_FLOP, cell_delays
from hdl.costs.synthesis import mapping_script
from hdl.costs.timing import ModuleTiming, ReadyPath, map_module, ready_paths, time_module, time_netlist
from hdl.dram.axi import AxiMerge
from hdl.errors import ToolError
from hdl.signals import ClockReset
from hdl.stream import Stream
from hdl.streams import bordering_adapter
from hdl.unit import Unit

# of the installed Yosys, in ps
TO_Q, SETUP = 219, 268
# carry chain: operand to carry, carry to carry, carry to sum
INTO, ALONG, OUT = 525, 16, 276


def _module(ports: str, body: str, name: str = "probe") -> str:
    return f"module {name} (input wire clk, {ports});\n{body}\nendmodule\n"


ADDER = _module(
    "input wire [7:0] a, input wire [7:0] b, output reg [7:0] y",
    "reg [7:0] p, q;\nalways @(posedge clk) begin p <= a; q <= b; y <= p + q; end",
)
MULTIPLIER = _module(
    "input wire signed [15:0] a, input wire signed [15:0] b, output reg signed [31:0] y",
    "reg signed [15:0] p, q;\nalways @(posedge clk) begin p <= a; q <= b; y <= p * q; end",
)


def _path(timing: ModuleTiming, end: str) -> int:
    return next(path.ps for path in timing.paths if re.sub(r"\[\d+\]", "", path.end) == end)


def test_delays_are_those_that_yosys_ships_for_the_family() -> None:
    delays = cell_delays()
    lut6 = delays["MISTRAL_ALUT6"].through
    assert [lut6[(pin, None), ("Q", None)] for pin in "ABCDEF"] == [275, 272, 175, 165, 162, 53]
    adder = delays["MISTRAL_ALUT_ARITH"].through
    assert (adder[("A", None), ("CO", None)], adder[("CI", None), ("CO", None)]) == (INTO, ALONG)
    assert adder[("CI", None), ("SO", None)] == OUT
    assert delays[FLIP_FLOP].launch == {("Q", None): TO_Q}
    assert delays[FLIP_FLOP].setup == dict.fromkeys(
        [(pin, None) for pin in ("DATAIN", "ENA", "SCLR", "SLOAD", "SDATA")], SETUP
    )
    assert delays["MISTRAL_MLAB"].through[("B1ADDR", 0), ("B1DATA", None)] == 487
    assert delays["MISTRAL_MUL18X18"].through[("B", None), ("Y", None)] == 3982
    assert delays[BLOCK_MEMORY].launch == {("q_b", None): 1004}
    assert delays[BLOCK_MEMORY].setup[("wren_a", None)] == 140


@pytest.mark.parametrize("net_ps", [0, 350])
def test_an_adder_between_registers_is_its_carry_chain(net_ps: int) -> None:
    timing = time_module(ADDER, "probe", net_ps)
    chain = INTO + 6 * ALONG + OUT
    assert _path(timing, "y") == TO_Q + net_ps + chain + net_ps + SETUP
    slowest = timing.worst
    assert (slowest.end, slowest.levels) == ("y[7]", 1)
    assert slowest.start in ("p[0]", "q[0]")
    assert len(slowest.steps) == 8
    # a port is a register next door
    assert _path(timing, "p") == TO_Q + net_ps + SETUP


def test_a_product_between_registers_is_no_path_and_one_that_is_added_is() -> None:
    packed = time_module(MULTIPLIER, "probe")
    assert [product.registered for product in packed.products] == [True]
    assert packed.worst.ps == TO_Q + 350 + SETUP
    added = time_module(MULTIPLIER.replace("p * q", "p * q + 32'sd5"), "probe")
    (product,) = added.products
    assert not product.registered
    assert "goes into MISTRAL_ALUT_ARITH" in product.touches
    assert added.worst.ps > 3982 + TO_Q + SETUP + 3 * 350
    loose = time_module(MULTIPLIER.replace("p * q", "a * q"), "probe")
    assert loose.products[0].touches.startswith("operand a")
    cleared = time_module(MULTIPLIER.replace("y <= p * q;", "y <= p * q; if (b[0]) y <= 0;"), "probe")
    assert "synchronous clear" in cleared.products[0].touches


def test_a_wide_product_that_becomes_several_multipliers_is_seen() -> None:
    wide = MULTIPLIER.replace("[15:0]", "[39:0]").replace("[31:0]", "[79:0]")
    timing = time_module(wide, "probe")
    assert len(timing.products) > 1
    assert timing.loose_products == timing.products


@pytest.mark.parametrize(
    "body",
    [
        "always @(posedge clk) begin p <= a; q <= b; y <= (p < q) ? p + q : p - q; end",
        "always @(posedge clk) begin p <= a; q <= b; if (p[0] && q != 3) y <= (p ^ q) + y; end",
        "always @(posedge clk) begin p <= a; q <= b; if (q == p) y <= 0; else y <= p >> q[2:0]; end",
    ],
)
def test_the_walk_agrees_with_yosys_sta(body: str, tmp_path: Path) -> None:
    text = _module("input wire [7:0] a, input wire [7:0] b, output reg [7:0] y", f"reg [7:0] p, q;\n{body}")
    (tmp_path / "circuit.v").write_text(text)
    # its last step makes black boxes of the cells' models, and sta then finds no delays in them
    script = f"{mapping_script('probe')}check; tee -q -o sta.txt sta"
    run_tool(["yosys", "-q", "-p", script], tmp_path)
    found = re.search(r"Latest arrival time in 'probe' is (\d+):", (tmp_path / "sta.txt").read_text())
    assert found
    assert time_module(text, "probe", net_ps=0).worst.ps == int(found.group(1))


def test_a_module_seen_from_outside_has_the_delays_of_its_parts() -> None:
    text = _module(
        "input wire ready, input wire stop, input wire wire_in, output wire take, output reg busy, "
        "output wire wire_out",
        "assign take = ready & ~busy & ~stop;\nassign wire_out = wire_in;\nalways @(posedge clk) busy <= ready ^ busy;",
    )
    delays = time_module(text, "probe").delays
    lut3 = {162, 165, 53}
    assert delays.through[("ready", None), ("take", None)] in lut3
    assert delays.through[("stop", None), ("take", None)] in lut3
    # a wire is a net less than none, since both of its ends pay for theirs
    assert delays.through[("wire_in", None), ("wire_out", None)] == -350
    assert delays.launch[("busy", None)] == TO_Q
    assert delays.launch[("take", None)] - TO_Q - 350 in lut3
    assert delays.setup[("ready", None)] - 350 - SETUP in {162, 53}


def test_modules_in_a_row_are_as_slow_as_their_flat_text() -> None:
    stage = _module(
        "input wire x, input wire s, output wire y, output reg z",
        "assign y = x & s;\nalways @(posedge clk) z <= x ^ s;",
        "stage",
    )
    ports = "input wire x, input wire [2:0] s, output wire y, output wire [2:0] z"
    wires = "wire p, q;\n" + "\n".join(
        f"stage u{i} (.clk(clk), .x({a}), .s(s[{i}]), .y({b}), .z(z[{i}]));"
        for i, (a, b) in enumerate(("xp", "pq", "qy"))
    )
    inside = time_module(stage, "stage").delays
    hierarchy = map_module(_module(ports, wires), "probe", blackboxes=stage)
    found = time_netlist(hierarchy, modules={"stage": inside})
    # three gates between registers next door
    slowest = TO_Q + 4 * 350 + SETUP
    assert slowest + 3 * 53 <= _path(found, "output y") <= slowest + 3 * 162
    assert [step.cell for step in found.worst.steps] == ["stage"] * len(found.worst.steps)


def test_ready_paths_count_the_modules_that_they_enter() -> None:
    stage = _module(
        "input wire y_ready, output wire x_ready, output reg full",
        "assign x_ready = y_ready & ~full;\nalways @(posedge clk) full <= ~y_ready;",
        "stage",
    )
    keep = _module("input wire y_ready, output reg x_ready", "always @(posedge clk) x_ready <= y_ready;", "keep")
    wires = """wire a, b, c;
    stage u0 (.clk(clk), .y_ready(tx_ready), .x_ready(a));
    stage u1 (.clk(clk), .y_ready(a), .x_ready(b));
    keep u2 (.clk(clk), .y_ready(b), .x_ready(c));
    stage u3 (.clk(clk), .y_ready(c), .x_ready(rx_ready));"""
    modules = {name: time_module(text, name).delays for name, text in (("stage", stage), ("keep", keep))}
    top = map_module(_module("input wire tx_ready, output wire rx_ready", wires), "probe", blackboxes=stage + keep)
    found = ready_paths(top, modules)
    assert found[0] == ReadyPath("tx_ready", ("u0", "u1", "u2"))
    assert {path for path in found if path.start != "tx_ready"} == {ReadyPath("c", ("u3",))}


def test_a_combinational_loop_is_an_error() -> None:
    text = _module("input wire a, output wire y", "wire b;\nassign y = ~(a & b);\nassign b = y ^ clk;")
    with pytest.raises(ToolError, match="combinational loop"):
        time_module(text, "probe")


def test_command_fails_for_a_slow_module_and_names_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    good, bad = tmp_path / "good.v", tmp_path / "bad.v"
    good.write_text(ADDER)
    bad.write_text(ADDER.replace("probe", "slow").replace("p + q", "((p + q) ^ p) + ((q - p) & p) + (p - 8'd77)"))
    passed = CliRunner().invoke(app, ["timing", str(good)])
    assert passed.exit_code == 0
    assert "pass probe: 2.08 ns" in passed.output
    failed = CliRunner().invoke(app, ["timing", str(good), str(bad), "--net-ps", "900"])
    assert failed.exit_code == 1
    assert re.search(r"FAIL slow: .*\n +\d\.\d\d ns, \d levels: [pq]\[\d\] -> y\[7\]", failed.output)
    assert "modules take at most 4.0 ns: FAIL in 1 of 2" in failed.output
    several = tmp_path / "several.v"
    several.write_text(ADDER + MULTIPLIER)
    refused = CliRunner().invoke(app, ["timing", str(several)])
    assert refused.exit_code != 0
    assert "holds 2 Verilog modules" in str(refused.exception)


# ------------------------------------------------------------------------------------- links and memory ports

# ready of a stream behind may pass into that of one before: only between those that are dealt out and the queues
# around them
PASSES = {"AxiMerge": 6, "Deal": 4, "Collect": 4}


# units whose text takes longest to analyse
LARGE = ("receive pool, 16 streams", "forward, 4 cables")


@pytest.mark.parametrize(
    "unit", [pytest.param(unit, id=name, marks=[pytest.mark.slow] * (name in LARGE)) for name, unit in UNITS.items()]
)
def test_units_of_ports_are_fast_and_cut_ready(unit: Unit) -> None:
    timing = time_circuit(unit.streams, unit.build)
    assert timing.worst.ps <= 4000, timing.worst
    assert not timing.loose_products
    passed = [pins for pins in timing.delays.through if all(pin[0].endswith("_ready") for pin in pins)]
    cut = isinstance(unit, AxiMerge) and unit.cut
    assert len(passed) == (0 if cut else PASSES.get(type(unit).__name__, 0)), passed


@pytest.mark.parametrize(
    "name",
    [
        "error of a mean, 4 096 words",
        "gradient of a bias, 4 096 sums",
        pytest.param("error of a max pool, nine taps", marks=pytest.mark.slow),
        pytest.param("dropout, 4 lanes", marks=pytest.mark.slow),
    ],
)
def test_layers_with_deep_memories_and_products_are_fast(name: str) -> None:
    timing = time_circuit(*layer_circuit(LAYERS[name]))
    assert timing.worst.ps <= 4000, timing.worst
    assert not timing.loose_products


@pytest.mark.parametrize(("a", "b"), [(16, 64), (64, 16), (48, 32)])
def test_an_adapter_between_modules_cuts_ready(a: int, b: int) -> None:
    x, y = Stream(a), Stream(b)
    module = convert(bordering_adapter(ClockReset(), x, y, element_bits=16), "adapter")
    timing = time_module(module.text, "adapter")
    assert (("y_ready", None), ("x_ready", None)) not in timing.delays.through
    assert timing.worst.ps <= 4000


def test_emitted_devices_are_timed_with_hierarchy_and_ready_paths_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three stages whose ready passes, in a row: slow enough at 1.5 ns a net, and one module too many."""
    ports = {"rst": "input", "x_valid": "input", "x_ready": "output", "y_valid": "output", "y_ready": "input"}
    stage = (
        "module stage_1 (\n    clk,\n"
        + ",\n".join(f"    {port}" for port in ports)
        + "\n);\n\ninput clk;\n"
        + "".join(f"{way} {port};\n" for port, way in ports.items())
        + "reg full;\nassign x_ready = y_ready | ~full;\nassign y_valid = full;\n"
        "always @(posedge clk) if (rst) full <= 0; else if (x_ready) full <= x_valid;\nendmodule\n"
    )
    wires = "".join(f"wire v{i}, r{i};\n" for i in range(4))
    stages = "".join(
        f"stage_1 u{i} (.clk(clk), .rst(rst), .x_valid(v{i}), .x_ready(r{i}), "
        f".y_valid(v{i + 1}), .y_ready(r{i + 1}));\n"
        for i in range(3)
    )
    top = (
        "module board (input wire clk, input wire rst, input wire rx_valid, output wire rx_ready, "
        f"output wire tx_valid, input wire tx_ready);\n{wires}assign v0 = rx_valid;\nassign rx_ready = r0;\n"
        f"assign tx_valid = v3;\nassign r3 = tx_ready;\n{stages}endmodule\n"
    )
    (tmp_path / "stage_1.v").write_text(stage)
    (tmp_path / "board.v").write_text(top)
    manifest = SimpleNamespace(device="board0", top="board")
    device = SimpleNamespace(sources=[tmp_path / "stage_1.v", tmp_path / "board.v"], manifest=manifest)
    monkeypatch.setattr(timing_step, "load_emitted", lambda _space: SimpleNamespace(devices=[device]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    space = Workspace(tmp_path / "build")
    found = timing_step.run(space, TimingOptions(net_ps=350), Silent())
    gates = [step["cell"] for step in found.data["devices"][0]["paths"][0]["steps"]]
    # through two stages, into the registers of the third
    assert gates == ["stage_1"] * 2
    assert TO_Q + SETUP + 4 * 350 + 3 * 53 <= found.data["devices"][0]["paths"][0]["ps"] <= 2500
    assert found.data["devices"][0]["ready"][0]["instances"] == ["u2", "u1", "u0"]
    broken = {rule["rule"]: rule["broken"] for rule in found.data["rules"]}
    assert broken == {
        "modules take at most 4.0 ns": 0,
        "products stand between registers": 0,
        "device tops take at most 4.5 ns": 0,
        "paths of ready enter at most 2 modules": 2,
    }
    assert not found.passed
    assert not timing_step.run(space, TimingOptions(net_ps=350), Silent()).done
    slow = timing_step.run(space, TimingOptions(net_ps=1000), Silent())
    assert slow.done
    assert {rule["rule"]: rule["broken"] for rule in slow.data["rules"]}["device tops take at most 4.5 ns"] == 1


def test_a_path_through_no_cell_is_told_as_straight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = "module plain (input wire clk, input wire a, output reg b);\nalways @(posedge clk) b <= a;\nendmodule\n"
    (tmp_path / "plain.v").write_text(text)
    options = TimingOptions(files=(tmp_path / "plain.v",))
    found = timing_step.run(Workspace(tmp_path / "build"), options, Silent())
    assert {len(path["steps"]) for path in found.data["modules"][0]["paths"]} == {0}
    assert any(line.strip() == "straight" for line in found.lines)
    assert found.passed
