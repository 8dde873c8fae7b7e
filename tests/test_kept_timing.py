"""The timing of the fixed circuits is held; what is kept of it is believed for the very same Verilog only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import circuits, kept_timing
from benchmarks.circuits import FixedCircuits, demo_design, fixed_circuits
from benchmarks.kept_timing import Entry, KeptTiming, broken_rules, entry_of, module_digest
from dagtrain.flow.emit_step import library
from dagtrain.flow.timing_step import DeviceVerilog, time_device
from hdl.convert.handshakes import broken_streams
from hdl.costs.timing import NET_PS, time_module

# characters of Verilog that the gate measures if they are new: a minute of Yosys
MOST_NEW = 400_000
MAKE = "python benchmarks/kept_timing.py --all"

# two registers and what is between; ports as `hdl.convert.verilog.convert` writes them
STAGE = """module stage (
    clk,
    x_valid,
    x_ready,
    x_payload,
    y_valid,
    y_ready,
    y_payload
);

input clk;
input x_valid;
output x_ready;
input [7:0] x_payload;
output y_valid;
input y_ready;
output [7:0] y_payload;
reg full;
reg [7:0] held;
assign x_ready = y_ready | ~full;
assign y_valid = full;
assign y_payload = held;
always @(posedge clk) if (x_ready) begin full <= x_valid; held <= x_payload + {7'b0, x_payload[7]}; end
endmodule
"""
TOP = """module board (input wire clk, input wire a_valid, output wire a_ready, input wire [7:0] a,
    output wire b_valid, input wire b_ready, output wire [7:0] b);
wire v, r; wire [7:0] d;
stage u0 (.clk(clk), .x_valid(a_valid), .x_ready(a_ready), .x_payload(a), .y_valid(v), .y_ready(r), .y_payload(d));
stage u1 (.clk(clk), .x_valid(v), .x_ready(r), .x_payload(d), .y_valid(b_valid), .y_ready(b_ready), .y_payload(b));
endmodule
"""


def _circuits(stage: str = STAGE, top: str = TOP) -> FixedCircuits:
    return FixedCircuits({"stage": ("stage", stage)}, [DeviceVerilog("fpga0", "board", top, {"stage": stage})])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptTiming:
    """Stage and board, measured and read back from a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGTRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = KeptTiming(tmp_path_factory.mktemp("kept") / "timing.json")
        assert list(found.measure(_circuits(), ["stage", "fpga0"])) == ["stage", "fpga0"]
    found.save()
    read = KeptTiming.load(found.path)
    assert read.entries == found.entries
    return read


def test_what_is_kept_is_what_the_walk_finds(kept: KeptTiming) -> None:
    timing = time_module(STAGE, "stage")
    assert kept.module("stage", STAGE) == entry_of(timing)
    exact = time_device(_circuits().devices[0], {"stage": timing.delays}, NET_PS)
    held = kept.device(_circuits().devices[0])
    assert held is not None
    # the slowest bit of a port stands for all
    assert exact.timing.worst.ps <= held.ps <= exact.timing.worst.ps + 150
    assert held.ready == len(exact.ready[0].instances) == 2


def test_another_text_walk_or_tool_is_measured_again(kept: KeptTiming, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not kept.missing(_circuits())
    slower = STAGE.replace("{7'b0, x_payload[7]}", "(x_payload ^ 8'd3)")
    # a device is of its modules
    assert list(kept.missing(_circuits(slower))) == ["stage", "fpga0"]
    assert list(kept.missing(_circuits(top=TOP.replace("wire v, r;", "wire r, v;")))) == ["fpga0"]
    # under another name the text is another's
    renamed = FixedCircuits({"other": ("stage", STAGE)}, [])
    assert not kept.missing(renamed)
    for tool in ("walk_hash", "yosys_version"):
        with monkeypatch.context() as patch:
            patch.setattr(kept_timing, tool, lambda: "another")
            assert list(kept.missing(_circuits())) == ["stage", "fpga0"]


def test_a_device_is_not_timed_with_a_module_that_was_not(kept: KeptTiming) -> None:
    empty = KeptTiming(kept.path)
    with pytest.raises(KeyError, match="must be measured first"):
        list(empty.measure(_circuits(), ["fpga0"]))


def test_others_are_forgotten(kept: KeptTiming) -> None:
    some = KeptTiming(kept.path, dict(kept.entries))
    some.forget_others(FixedCircuits(_circuits().modules, []))
    assert [name for name, _ in some.entries.values()] == ["stage"]


def test_each_broken_limit_is_named(kept: KeptTiming) -> None:
    digest = module_digest("stage", STAGE)
    assert broken_rules(kept, _circuits()) == []

    def with_stage(entry: Entry) -> KeptTiming:
        return KeptTiming(kept.path, {**kept.entries, digest: ("stage", entry)})

    entry = kept.entries[digest][1]
    assert broken_rules(with_stage(replace(entry, ps=4000)), _circuits()) == []
    (slow,) = broken_rules(with_stage(replace(entry, ps=4001)), _circuits())
    assert slow.startswith("stage: 4.00 ns, at most 4.0")
    (loose,) = broken_rules(with_stage(replace(entry, products=3, loose=1)), _circuits())
    assert loose == "stage: 1 of 3 products do not stand between registers"
    own = replace(
        entry, ports=(*entry.ports, ("through", "x_valid", "x_ready", 300), ("through", "y_ready", "x_ready", 9))
    )
    (handshake,) = broken_rules(with_stage(own), _circuits())
    assert handshake == "stage: x_ready follows x_valid in the same cycle"
    (top_digest,) = set(kept.entries) - {digest}
    board = kept.entries[top_digest][1]
    for changed, said in (({"ps": 4501}, "at most 4.5"), ({"ready": 3}, "ready enters 3 modules")):
        spoilt = KeptTiming(kept.path, {**kept.entries, top_digest: ("fpga0", replace(board, **changed))})
        (line,) = broken_rules(spoilt, _circuits())
        assert line.startswith("fpga0") and said in line  # noqa: PT018


# ------------------------------------------------------------------------------------------ the circuits themselves


def _measured(found: FixedCircuits) -> KeptTiming:
    """The timing of circuits, from tests/timing.json or measured now if new."""
    known = KeptTiming.load()
    missing = known.missing(found)
    new = sum(map(len, missing.values()))
    assert new <= MOST_NEW, (
        f"{len(missing)} circuits, {new:,} characters of Verilog, are not in {known.path.name}: run `{MAKE}`, which "
        f"measures these and no others: {', '.join(missing)}"
    )
    for _ in known.measure(found, missing):
        pass
    return known


@pytest.fixture(scope="module")
def found() -> FixedCircuits:
    return fixed_circuits()


def test_every_circuit_of_the_demo_and_layers_of_imagenets_sizes_keep_their_limits(found: FixedCircuits) -> None:
    assert len(found.modules) > 200
    assert len(found.devices) == 3
    assert broken_rules(_measured(found), found) == []


def test_no_stream_of_a_whole_device_follows_its_own_handshake(found: FixedCircuits) -> None:
    """By the gates of all modules of the demo, wired as its tops wire them: what no module shows alone."""
    known, modules = _measured(found), library()
    followed = {}
    for name, (module, text) in found.modules.items():
        entry = known.module(module, text)
        assert entry is not None
        followed[name] = entry.followed
    for device in demo_design(modules).devices:
        assert len(device.streams) > 100
        assert broken_streams(device.top, followed) == []
        # one circuit with the fault is found wherever it stands
        queues = [instance for instance in device.top.instances if instance.module.startswith("queue_")]
        faulty = {queues[0].module: {**followed[queues[0].module], "x_ready": {"x_valid"}}}
        streams = [q.connections["x_ready"].removesuffix("_ready") for q in queues if q.module in faulty]
        assert {line.split()[4] for line in broken_streams(device.top, {**followed, **faulty})} >= set(streams)


def test_the_fixed_circuits_are_generated_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer with another setting is another circuit, and one that is not in the file."""
    text = circuits.NETWORK_LAYERS.read_text()
    changed = tmp_path / "layers.json"
    changed.write_text(text.replace('"ceiling": null', '"ceiling": 6.0', 1))
    assert changed.read_text() != text
    before = circuits.network_layers()
    monkeypatch.setattr(circuits, "NETWORK_LAYERS", changed)
    after = circuits.network_layers()
    assert [name for name in before if before[name] != after[name]] == ["Relu, resnet18"]
