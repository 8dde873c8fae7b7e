"""What stands around a top on a board: every port of every black box is joined, with equal width, and a memory
controller that begins anew with its device answers nothing of before."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from myhdl import Signal, always, block, delay, instance

from dagtrain.emission.assembly import Assembly
from dagtrain.emission.board import (
    BoardDesign,
    design_board,
    lint_board,
    mac_of,
    reasons_against,
    top_reasons,
    write_board,
)
from dagtrain.emission.device import DeviceDesign
from dagtrain.emission.ip import MACS, MEMORY_BITS, MacIp, memory_ip
from dagtrain.emission.links import unit_module
from dagtrain.emission.memory import DeviceMemory, axi4_port, axi_nets, channel_prefix
from dagtrain.emission.project import module_head
from dagtrain.flow.emit_step import library
from hdl.convert.netlist import Direction, Module
from hdl.convert.tools import lint_verilog
from hdl.dram.axi import AxiFormat
from hdl.errors import ToolError
from hdl.link.ethernet.adapter import AVALON, mac_inputs, mac_outputs
from hdl.link.ethernet.clocked import MAC_CLOCKS
from hdl.link.ethernet.frame import FrameFormat
from hdl.link.ethernet.mac import MacBeats
from hdl.link.resets import SETTLED_CYCLES, start_up
from hdl.selftest.march import March
from placement.problem.cluster import Board, parse_cluster
from tests.flow_support import CLUSTER as TWO
from tests.flow_support import call, new_case, quick_costs, with_few_dsp

PAGE = Path(__file__).parent.parent / "docs" / "bring-up.md"
FORM = AxiFormat(data_bits=MEMORY_BITS, address_bits=26)
# rate and clock of each MAC that is known
RATES = {
    ("10AX", 256): (40, 312.5),
    ("10AX", 512): (100, 390.625),
    ("AGF", 64): (25, 402.83),
    ("AGF", 512): (100, 402.83),
}
PARTS = {"10AX": "10AX115", "AGF": "AGFB014"}
CLUSTER = """
[cluster]
name = "kit"
clock_mhz = 200
link_word_bits = {word}
dram_word_bits = 512
[[board]]
name = "one"
part = "{part}"
dram_gb_per_s = {gbytes}
dram_gbyte = {gbytes}
link_gbit_per_s = {gbit}
{mac}
[[device]]
name = "a"
board = "one"
[network]
kind = "ethernet"
host_mac = "02:00:00:00:ff:ff"
"""


def placed(part: str, bits: int, gbit: float, mhz: float, gbytes: float = 4, mac: str | None = None) -> Board:
    port = f'mac = "avalon-st"\nmac_clock_mhz = {mhz}\nmac_word_bits = {bits}' if mac is None else mac
    word = 512 if gbit > 40 else 256
    (device,) = parse_cluster(CLUSTER.format(word=word, part=part, gbit=gbit, mac=port, gbytes=gbytes)).devices
    return device.board


def inner(mac: MacIp, channels: int, form: AxiFormat = FORM, test: bool = False) -> tuple[Module, list[DeviceMemory]]:
    """A top with the ports of a MAC and of memory channels; ``test``: that marches for ever."""
    assembly, names = Assembly("device"), library()
    beats = MacBeats(frames=FrameFormat(word_bits=64, mtu=1500), bits=mac.bits, ends=True)
    for clk in MAC_CLOCKS:
        assembly.port(clk, 1, Direction.IN)
    for ports, way in ((mac_inputs(AVALON, beats), Direction.IN), (mac_outputs(AVALON, beats), Direction.OUT)):
        for name, bits in ports.items():
            assembly.port(name, bits, way)
            if way is Direction.OUT:
                assembly.assigns.append((name, f"{bits}'d0"))
    assembly.port("net_reset", 1, Direction.OUT)
    assembly.assigns += [("net_reset", assembly.wire("kicked")), (assembly.wire("anew"), "rst | net_reset")]
    assembly.reset = "anew"
    unit, memories = March(format=form, burst=8), []
    for channel in range(channels):
        net = f"dram{channel}"
        for name, width in form.ports(net).items():
            assembly.stream(name, width)
        if test:
            order = assembly.stream("order", unit.streams["x"])
            assembly.assigns += [(f"{order}_valid", "!anew"), (f"{order}_payload", f"{unit.streams['x']}'d4")]
            told = {name: assembly.wire(name, bits) for name, bits in unit.outputs.items()}
            module = unit_module(names, "march", unit)
            assembly.instance(module, "march", {"x": order, **axi_nets(net, "m")}, told)
        prefix = channel_prefix(channel, channels)
        axi4_port(assembly, form, net, prefix)
        memories.append(DeviceMemory(prefix, form, ()))
    return assembly.module(), memories


def made(mac: MacIp, channels: int = 2) -> BoardDesign:
    gbit, mhz = RATES[mac.family, mac.bits]
    device, memories = inner(mac, channels)
    return design_board(
        placed(PARTS[mac.family], mac.bits, min(gbit, mac.most_gbit), mhz), 200, device, memories, library()
    )


def netlist(design: BoardDesign, folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, int]], set[str]]:
    """The outermost module as Yosys reads it, ports of all modules in it, and which of them are inputs."""
    heads = [module_head(unit.verilog.text) for unit in design.library]
    heads.append(Module(design.inner.name, design.inner.ports).to_verilog())
    paths = [folder / "parts.v", folder / "board.v"]
    paths[0].write_text("\n".join([*heads, *(box.text for box in design.boxes)]))
    paths[1].write_text(design.top.to_verilog())
    script = f"read_verilog {paths[0]} {paths[1]}; write_json {folder / 'board.json'}"
    subprocess.run(["yosys", "-q", "-p", script], check=True, cwd=folder)
    modules = json.loads((folder / "board.json").read_text())["modules"]
    widths = {
        name: {port: len(told["bits"]) for port, told in module["ports"].items()} for name, module in modules.items()
    }
    inputs = {f"{name}.{port}" for name, module in modules.items() for port, told in module["ports"].items()
              if told["direction"] == "input"}  # fmt: skip
    return modules[design.top.name], widths, inputs


def faults(top: Mapping[str, Any], widths: Mapping[str, Mapping[str, int]], inputs: set[str]) -> Iterator[str]:
    """Ports of instances that are not joined, or by another width, and inputs that nobody drives."""
    cells = {name: cell for name, cell in top["cells"].items() if cell["type"].lstrip("\\") in widths}
    driven = {bit for port in top["ports"].values() if port["direction"] != "output" for bit in port["bits"]}
    driven |= {bit for name, cell in top["cells"].items() if name not in cells for bit in cell["connections"]["Y"]}
    for cell in cells.values():
        for port, bits in cell["connections"].items():
            if f"{cell['type']}.{port}" not in inputs:
                driven.update(bits)
    for name, cell in cells.items():
        for port, bits in widths[cell["type"]].items():
            found = cell["connections"].get(port, [])
            if len(found) != bits:
                yield f"{name}.{port} has {bits} bits, and {len(found)} are joined to it"
            elif f"{cell['type']}.{port}" in inputs and any(
                bit not in driven and bit not in ("0", "1") for bit in found
            ):
                yield f"nobody drives {name}.{port}"


@pytest.mark.parametrize("mac", MACS, ids=lambda mac: f"{mac.family}-{mac.most_gbit}G")
def test_every_port_of_every_box_is_joined_with_its_width(mac: MacIp, tmp_path: Path) -> None:
    design = made(mac)
    top, widths, inputs = netlist(design, tmp_path)
    instances = [cell["type"] for cell in top["cells"].values()]
    assert instances.count("memory_controller") == 2
    assert instances.count("clock_crossing_" + next(t for t in instances if t.startswith("clock_crossing"))[15:]) >= 2
    assert {box.name for box in design.boxes} <= set(instances)
    assert list(faults(top, widths, inputs)) == []
    lint_board(design)


def test_a_wrong_width_and_a_port_that_is_left_open_are_seen(tmp_path: Path) -> None:
    design = made(MACS[0])
    text = design.top.to_verilog()
    for old, new, wanted in (
        (
            "wire [25:0] memory0_amm_address;",
            "wire [24:0] memory0_amm_address;",
            "memory0.amm_address_0 has 26 bits, and 25",
        ),
        ("    .l4_tx_data(mac_tx_data),\n", "", "ethernet.l4_tx_data has 256 bits, and 0"),
        ("assign good = ", "assign unused_good = ", "nobody drives start_up.good"),
    ):
        assert text.count(old) == 1

        class Broken(Module):
            def to_verilog(self, text: str = text.replace(old, new)) -> str:
                return text

        top = Broken(design.top.name, design.top.ports)
        broken = BoardDesign(**{**vars(design), "top": top})
        assert any(wanted in fault for fault in faults(*netlist(broken, tmp_path))), wanted
    wrong = text.replace("wire [25:0] memory0_amm_address;", "wire [24:0] memory0_amm_address;")

    class Narrow(Module):
        def to_verilog(self) -> str:
            return wrong

    narrow = Narrow(design.top.name, design.top.ports, instances=design.top.instances)
    with pytest.raises(ToolError, match="WIDTH"):
        lint_board(BoardDesign(**{**vars(design), "top": narrow}))


def test_boxes_have_the_ports_that_the_page_tells() -> None:
    """The tables of the page were made of the vendor's documents, before there were boxes."""
    text = PAGE.read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")
    ]
    columns = (MACS[0], MACS[1], MACS[4], MACS[3])
    told = 0
    for ours, *cells in rows:
        if not re.match(r"`mac_[tr]x_|reset it waits", ours):
            continue
        cells = [
            cells[2].replace("i_clk", "i_sl_clk") + cells[3] if cell.startswith("the same") else cell for cell in cells
        ]
        for mac, cell in zip(columns, cells, strict=True):
            for name, high in re.findall(r"`(\w+?)(?:\[(\d+):0\])?`", cell):
                if name == "i_clk_tx" and mac is MACS[3]:
                    continue
                assert name in mac.box.widths, (ours, name)
                assert mac.box.widths[name] == int(high or 0) + 1 or name.endswith("error"), (ours, name)
                told += 1
    assert told >= 40
    for family, bits in (("10AX", 26), ("AGF", 27)):
        widths = memory_ip(family, bits).box.widths
        assert f"{bits} bits for" in text
        wanted = {"amm_address_0": bits, "amm_writedata_0": 512, "amm_readdata_0": 512, "amm_burstcount_0": 7}
        wanted |= {"amm_byteenable_0": 64, "emif_usr_clk": 1, "emif_usr_reset_n": 1, "amm_ready_0": 1}
        assert wanted.items() <= widths.items()
        assert all(f"`{name}`" in text for name in wanted)


def test_a_board_without_known_ip_is_told_why() -> None:
    assert reasons_against(placed("10AX115", 256, 40, 312.5)) == []
    (what,) = reasons_against(placed("10AX115", 256, 40, 312.5, mac='mac = "axi-stream"'))
    assert what == 'a MAC of Intel needs mac = "avalon-st", mac_clock_mhz and mac_word_bits'
    (what,) = reasons_against(placed("AGFB014", 256, 40, 312.5))
    assert what.startswith("no MAC is known of a AGFB014 with 256 bits at 40 Gbit/s; known: 10AX… 256 bits to 40G")
    assert mac_of(placed("AGFB014", 64, 10, 161.13)) is MACS[2]
    assert mac_of(placed("AGFB014", 64, 25, 402.83)) is MACS[3]
    narrow = SimpleNamespace(
        memories=[DeviceMemory("m_axi", AxiFormat(data_bits=64, address_bits=26), ())], port=None, host_ports=["x"]
    )
    assert top_reasons(cast("DeviceDesign", narrow)) == [
        "a memory controller has words of 512 bits, not 64: write dram_word_bits = 512",
        "it has no Ethernet port",
        "its host has ports of its own: emit with --host network",
    ]


def test_a_project_names_all_files_pins_and_clocks(tmp_path: Path) -> None:
    design = made(MACS[0])
    project = write_board(tmp_path, design, ["rtl/device.v"])
    lines = project.with_suffix(".qsf").read_text().splitlines()
    named = [line.split()[-1] for line in lines if "VERILOG_FILE" in line]
    assert named[0] == "../rtl/device.v"
    assert all((project.parent / name).is_file() for name in named[1:])
    for port in design.top.ports:
        assert f"# set_location_assignment PIN_… -to {port.name}" in lines
    constraints = project.with_suffix(".sdc").read_text()
    for name in ("clk_100", "ethernet_clk_ref", "memory0_pll_ref_clk", "memory1_pll_ref_clk"):
        assert name not in ("clk_100", "ethernet_clk_ref") or f"-name {name} " in constraints
    (groups,) = [line for line in constraints.splitlines() if line.startswith("set_clock_groups")]
    assert groups.count("-group") == 6
    # five channels of two memories, two counts each, and five of the MAC
    skews = re.findall(r"^set_max_skew -from \[get_registers \{\*(\w+)[|]?.*", constraints, re.MULTILINE)
    assert len(skews) == 25
    crossings = {instance.name for instance in design.top.instances if "_crossing_" in instance.name}
    assert crossings == {name for name in skews if "_crossing_" in name and name.startswith("memory")}
    # registers that are bounded are those of the circuits
    (text,) = {
        unit.verilog.text for unit in design.library if f"{unit.name} memory0_crossing_b (" in design.top.to_verilog()
    }
    assert all(
        f"] {name} =" in text for name in ("written_code", "taken_code", "synchroniser0_first", "synchroniser1_first")
    )


@pytest.mark.slow
def test_the_files_that_the_command_leaves_are_one_hierarchy(tmp_path: Path) -> None:
    """Yosys finds every module of a project, and Verilator no fault in the whole of it."""
    gbit, mhz = RATES["10AX", 256]
    port = f'mac = "avalon-st"\nmac_clock_mhz = {mhz}\nmac_word_bits = 256\ndram_channels = 2'
    text = CLUSTER.format(word=256, part="10AX115", gbit=gbit, mac=port, gbytes=8)
    plain = text.split("[[board]]")[1].split("[[device]]")[0].replace("one", "plain").replace(port, "")
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(text.replace("[network]", f'[[device]]\nname = "b"\nboard = "plain"\n[[board]]{plain}[network]'))
    outcome = call("bring-up", "--devices", cluster, "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.error
    told, other = json.loads(outcome.out)["devices"]
    assert told["board"] == "a/board/a_board.qpf"
    assert other["board"] is None
    assert other["no_board"] == ['a MAC of Intel needs mac = "avalon-st", mac_clock_mhz and mac_word_bits']
    project = (tmp_path / "out" / "bring-up" / told["board"]).with_suffix(".qsf")
    files = [project.parent / line.split()[-1] for line in project.read_text().splitlines() if "VERILOG_FILE" in line]
    script = f"read_verilog {' '.join(map(str, files))}; hierarchy -check -top a_board"
    subprocess.run(["yosys", "-q", "-p", script], check=True, capture_output=True)
    lint_verilog(files, "a_board")


@pytest.mark.slow
def test_a_top_that_trains_gets_a_board_with_its_images(tmp_path: Path) -> None:
    """`emit` writes it where all around the top is known, and leaves what it wrote before as it was elsewhere."""
    mac = 'mac = "avalon-st"\nmac_clock_mhz = 402.83\nmac_word_bits = 512\n'
    network = '[network]\nkind = "ethernet"\nhost_mac = "02:00:00:00:ff:ff"\n'
    found, outs = {}, {}
    for name, more in (("known", mac), ("plain", "")):
        with pytest.MonkeyPatch.context() as patch:
            quick_costs(patch)
            text = with_few_dsp(0.02, TWO.replace("dram_gbyte = 32\n", f"dram_gbyte = 32\n{more}"))
            case = new_case(tmp_path / name, text + network).must("import", "place", "emit")
        outs[name] = case.out / "emit"
        found[name] = json.loads((case.out / "emit" / "emit.json").read_text())["devices"]
        boards = sorted(path.relative_to(case.out / "emit") for path in (case.out / "emit").glob("*/board/*.qpf"))
        assert [str(path) for path in boards] == [device["board"] for device in found[name] if "board" in device]
    assert len(found["known"]) == 2
    assert all("board" in device for device in found["known"])
    assert not any("board" in device for device in found["plain"])
    folder = outs["known"]
    for device in found["known"]:
        text = (folder / device["name"] / "board" / "rtl" / f"{device['name']}_board.v").read_text()
        images = sorted(re.findall(r'"\.\./(images/[^"]+)"', text))
        assert images == sorted(f"images/{path.name}" for path in (folder / device["name"] / "images").iterdir())


# ------------------------------------------------------------------------------------------------ resets


def test_a_device_starts_once_all_has_been_good_for_long_and_a_pulled_cable_is_no_reset() -> None:
    clk, good, stop, held = (Signal(bool(0)) for _ in range(4))
    seen: list[tuple[bool, bool]] = []

    @block
    def bench() -> Any:
        inst = start_up(clk, good, stop, held)

        @always(delay(5))
        def tick() -> None:
            clk.next = not clk

        @instance
        def play() -> Any:
            for wave, cycles, wanted in (
                ((0, 0), 200, True), ((1, 0), SETTLED_CYCLES - 1, True), ((0, 0), 3, True),
                ((1, 0), SETTLED_CYCLES + 4, False), ((0, 0), 300, False), ((0, 1), 5, True),
                ((0, 0), 300, True), ((1, 0), SETTLED_CYCLES + 4, False),
            ):  # fmt: skip
                good.next, stop.next = wave
                for _ in range(cycles):
                    yield clk.posedge
                yield delay(1)
                seen.append((bool(held), wanted))

        return inst, tick, play

    assert held.val == 0
    bench_block = bench()
    bench_block.run_sim(20_000, quiet=1)
    bench_block.quit_sim()
    assert len(seen) == 8
    assert all(found == wanted for found, wanted in seen), seen


# a controller with bursts, waits and a calibration; what it was asked for before a reset is forgotten, half a burst too
CONTROLLER = """
reg clk = 0, calibrated = 0; reg [7:0] since = 0;
always #17 clk = ~clk;
reg [511:0] words [0:127]; reg [25:0] at, to; reg [6:0] left = 0, reading = 0; reg ready = 0, given = 0;
reg [511:0] data; integer seed = SEED;
assign emif_usr_clk = clk; assign emif_usr_reset_n = calibrated; assign local_cal_success = calibrated;
assign local_cal_fail = 0; assign amm_ready_0 = ready && reading == 0;
assign amm_readdatavalid_0 = given; assign amm_readdata_0 = data;
always @(negedge global_reset_n) begin calibrated <= 0; since <= 0; left <= 0; reading <= 0; given <= 0; end
always @(posedge clk) if (global_reset_n) begin
    if (since < 100) since <= since + 1; else calibrated <= 1;
    ready <= calibrated && $random(seed) % 4 != 0; given <= 0;
    if (amm_write_0 && amm_ready_0) begin
        words[(left != 0 ? to : amm_address_0) % 128] <= amm_writedata_0;
        to <= (left != 0 ? to : amm_address_0) + 1; left <= (left != 0 ? left : amm_burstcount_0) - 1;
    end
    if (amm_read_0 && amm_ready_0) begin at <= amm_address_0; reading <= amm_burstcount_0; end
    if (reading != 0 && $random(seed) % 3 != 0) begin
        data <= words[at % 128]; given <= 1; at <= at + 1; reading <= reading - 1;
    end
end
"""
BENCH = """`timescale 1ns/1ps
module bench; reg clk = 0; integer i, seed = SEED, bad = 0; always #25 clk = ~clk;
device_board dut(.clk_100(clk), .reset_n(1'b1));
initial begin
    force dut.device.kicked = 0;
    for (i = 0; i < 12; i = i + 1) begin
        repeat (400 + $unsigned($random(seed)) % 1500) @(posedge clk);
        force dut.device.kicked = 1; repeat (32) @(posedge clk); force dut.device.kicked = 0;
    end
    repeat (12000) @(posedge clk);
    $display("done %0d wrong %0d", dut.device.done, bad); $finish;
end
always @(posedge clk) if (dut.device.wrong != 0) bad <= bad + 1;
endmodule
"""
IDLE = {
    "device_pll": "assign outclk_0 = refclk; assign locked = !rst;",
    "transmit_pll": "assign pll_locked = 1;",
    "ethernet_mac": "assign clk_txmac = clk_status, clk_rxmac = clk_status, tx_lanes_stable = 1, rx_pcs_ready = 1;",
    "memory_controller": CONTROLLER,
}


def marched(folder: Path, seed: int, old: str = "", new: str = "") -> tuple[int, int]:
    """Marches done behind the last of several resets of the device, and cycles in which a march had found wrong words;
    ``old`` of the gate's Verilog is replaced by ``new``."""
    device, memories = inner(MACS[0], 1, test=True)
    design = design_board(placed("10AX115", 256, 40, 312.5), 200, device, memories, library())
    project = write_board(folder, design, [])
    (gate,) = project.parent.glob("rtl/memory_gate_*.v")
    assert not old or gate.read_text().count(old) == 1
    gate.write_text(gate.read_text().replace(old, new))
    march = unit_module(library(), "march", March(format=FORM, burst=8))
    (folder / "device.v").write_text(device.to_verilog() + march.verilog.text)
    bodies = {name: body.replace("SEED", str(seed)) for name, body in IDLE.items()}
    boxes = [box.text.replace("\nendmodule", f"{bodies[box.name]}\nendmodule") for box in design.boxes]
    (folder / "boxes.v").write_text("`timescale 1ns/1ps\n" + "\n".join(boxes))
    (folder / "bench.v").write_text(BENCH.replace("SEED", str(seed)))
    sources = [*project.parent.glob("rtl/*.v"), *(folder / name for name in ("device.v", "boxes.v", "bench.v"))]
    program = folder / "bench.vvp"
    subprocess.run(["iverilog", "-g2012", "-s", "bench", "-o", program, *sources], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found = re.search(r"done (\d+) wrong (\d+)", printed)
    assert found, printed
    return int(found[1]), int(found[2])


def test_a_controller_begins_anew_with_its_device(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    done, wrong = marched(tmp_path, seed)
    assert done > 0
    assert wrong == 0


@pytest.mark.parametrize(
    ("old", "new"), [("request = asks;", "request = 1'b0;"), ("closed = (!opened);", "closed = 1'b0;")]
)
def test_a_controller_that_goes_on_is_seen(old: str, new: str, tmp_path: Path) -> None:
    done, wrong = marched(tmp_path, 3, old, new)
    assert wrong or not done
