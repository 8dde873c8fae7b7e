"""A MAC with clocks and a width of its own: frames reach it whole and without a gap, and come from it as they were, at
unlike clocks of any phase; in MyHDL, and in Verilog in Verilator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, Simulation, StopSimulation, always, block

from hdl.cache import cache_folder
from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import VerilogModule, convert
from hdl.costs.resources import count
from hdl.costs.synthesis import compare, synthesise
from hdl.costs.timing import time_module
from hdl.errors import ContractViolation
from hdl.link import clocks
from hdl.link.ethernet import clocked
from hdl.link.ethernet.adapter import AVALON, AXI_STREAM
from hdl.link.ethernet.clocked import OVERFLOW, ClockedMac
from hdl.link.ethernet.frame import WORD_BITS, FrameFormat
from hdl.link.ethernet.mac import MacChecker
from hdl.link.ethernet.sink import FrameSink
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.simulate.cosimulation import Engine, build_cosimulation
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream
from tests.ethernet_support import form_of
from tests.mutated import Mutator
from tests.test_clock_crossing import clock
from tests.test_packet_crossing import unsynchronised

# in which all sides are reset
RESET_CYCLES = 16
# femtoseconds of a cycle of the device, and of both clocks of the MAC: 40G of 200 MHz and 312.5 or 156.25 MHz, 100G of
# 322.265625 and 390.625, a third and three times, nearly alike; the recovered clock is off by 200 millionths
PERIODS = (
    (5_000_000, 3_200_000, 3_200_640),
    (5_000_000, 6_400_000, 6_398_720),
    (5_000_000, 3_103_030, 3_102_409),
    (5_000_000, 2_560_000, 2_560_512),
    (3_000_000, 9_000_000, 8_998_200),
    (9_000_000, 3_000_000, 3_000_600),
    (5_000_000, 5_001_000, 4_999_000),
)
Attach = Callable[[Mapping[str, Any]], Any]


def mac(word_bits: int, mac_bits: int, kind: str, key: int | None = None) -> ClockedMac:
    frames = FrameFormat(word_bits=word_bits, mtu=1500, key=key)
    return ClockedMac(sink=FrameSink(frames=frames, form=form_of(frames), peers=1), kind=kind, mac_bits=mac_bits)


@dataclass
class Bench:
    """A device that sends and gets frames, at the beats of its port, and its MAC."""

    unit: ClockedMac
    seed: int
    # frames that the device sends, and that the MAC gives with whether it finds them bad
    there: list[bytes]
    back: list[tuple[bytes, bool]]
    # shares of edges in which the device has no beat, the MAC is not ready, the MAC has no beat
    stalls: tuple[float, float, float] = (0.1, 0.2, 0.2)
    came: list[tuple[bytes, bool]] = field(default_factory=list)
    overflow: int = 0
    checker: MacChecker = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed}/mac")
        self.checker = MacChecker(self.unit.kind, self.unit.beats.bytes)

    @classmethod
    def of(cls, unit: ClockedMac, seed: int, number: int, **options: Any) -> Bench:
        """So many random frames each way; those that come have any length."""
        rng, frames = random.Random(f"{seed}/frames"), unit.sink.frames
        sizes = [rng.choice((0, 1, 2, rng.randint(3, 12))) for _ in range(number)]
        there = [rng.randbytes(frames.frame_bytes(size)) for size in sizes]
        back = [(rng.randbytes(rng.choice((60, 68, rng.randint(1, 200)))), rng.random() < 0.2) for _ in range(number)]
        return cls(unit, seed, there, back, **options)

    def run(self, periods: tuple[int, int, int], attach: Attach | None = None) -> Bench:
        """Until all frames have come or been counted; at clocks with these periods: device, to the MAC, from it."""
        unit = self.unit
        with fresh_simulator():
            domain, streams = ClockReset(), {name: Stream(width) for name, width in unit.streams.items()}
            dut: Any = unit.build(domain, streams)
            *_, tx_clk, rx_clk, mac, overflow = dut.args
            pins = dict(vars(mac))
            if attach is not None:
                signals = {"clk": domain.clk, "rst": domain.rst, "mac_tx_clk": tx_clk, "mac_rx_clk": rx_clk}
                signals |= {OVERFLOW: overflow, **{f"mac_{name}": pin for name, pin in pins.items()}}
                for name, stream in streams.items():
                    signals |= {f"{name}_{part}": getattr(stream, part) for part in ("valid", "ready", "payload")}
                dut = attach(signals)
            made = [
                dut,
                clock(domain.clk, domain.rst, periods[0], self.rng, RESET_CYCLES),
                clock(tx_clk, Signal(bool(0)), periods[1], self.rng),
                clock(rx_clk, Signal(bool(0)), periods[2], self.rng),
                at_edge(domain.clk, self._device(streams, overflow)),
                at_edge(tx_clk, self._takes(pins)),
                at_edge(rx_clk, self._gives(pins)),
            ]
            simulation = Simulation(*made)
            try:
                simulation.run(200 * (len(self.there) + len(self.back) + 10) * max(periods), quiet=1)
            finally:
                if not simulation._finished:
                    simulation.quit()
        return self

    def _device(self, streams: Mapping[str, Any], overflow: Any) -> Callable[[int], None]:
        tx, rx, size, bits = (
            streams["tx"],
            streams["rx"],
            self.unit.sink.frames.word_bytes,
            self.unit.sink.frames.word_bits,
        )
        beats = [beat for frame in self.there for beat in device_beats(frame, size)]
        at, ended, rest = [0], [True], [0]

        def step(edge: int) -> None:
            if edge < 3 * RESET_CYCLES:
                return
            if tx.valid and tx.ready:
                at[0] += 1
            if not tx.valid or tx.ready:
                tx.valid.next = at[0] < len(beats) and self.rng.random() >= self.stalls[0]
                tx.payload.next = beats[min(at[0], len(beats) - 1)]
            rx.ready.next = True
            if rx.valid and rx.ready:
                payload = int(rx.payload)
                part = (payload & (1 << bits) - 1).to_bytes(size, "little")[: payload >> bits + 2]
                assert len(part) == size or payload >> bits & 1, "a beat that is not the last is not full"
                if ended[0]:
                    self.came.append((b"", False))
                self.came[-1] = (self.came[-1][0] + part, bool(payload >> bits + 1 & 1))
                ended[0] = bool(payload >> bits & 1)
            self.overflow = int(overflow)
            done = len(self.checker.frames) >= len(self.there) and ended[0]
            rest[0] += done and len(self.came) + self.overflow >= len(self.back)
            # what comes too much would come behind the last
            if rest[0] > 60:
                raise StopSimulation

        return step

    def _takes(self, pins: Mapping[str, Any]) -> Callable[[int], None]:
        axi, size = self.unit.kind == AXI_STREAM, self.unit.beats.bytes

        def step(edge: int) -> None:
            ready = pins["tx_tready" if axi else "tx_ready"]
            data = int(pins["tx_tdata" if axi else "tx_data"])
            if axi:
                held = int(pins["tx_tkeep"]).bit_length()
                assert not pins["tx_tvalid"] or int(pins["tx_tkeep"]) == (1 << held) - 1, "tkeep is not contiguous"
                beat: tuple[int, bool | None, bool, int] = (data, None, bool(pins["tx_tlast"]), held)
            else:
                data = int.from_bytes(data.to_bytes(size, "big"), "little")
                first, last = bool(pins["tx_startofpacket"]), bool(pins["tx_endofpacket"])
                assert last or int(pins["tx_empty"]) == 0
                beat = (data, first, last, size - int(pins["tx_empty"]))
            self.checker.observe(edge, bool(pins["tx_tvalid" if axi else "tx_valid"]), bool(ready), beat)
            ready.next = self.rng.random() >= self.stalls[1]

        return step

    def _gives(self, pins: Mapping[str, Any]) -> Callable[[int], None]:
        axi, size = self.unit.kind == AXI_STREAM, self.unit.beats.bytes
        beats = [beat for frame, bad in self.back for beat in mac_beats(frame, bad, size)]
        waiting: list[Any] = list(reversed(beats))

        def step(edge: int) -> None:
            valid = bool(waiting) and edge > 3 * RESET_CYCLES and self.rng.random() >= self.stalls[2]
            part, first, last, bad = waiting.pop() if valid else (self.rng.randbytes(size), True, True, True)
            beat = part + self.rng.randbytes(size - len(part))
            pins["rx_tvalid" if axi else "rx_valid"].next = valid
            pins["rx_tlast" if axi else "rx_endofpacket"].next = last
            pins["rx_tuser" if axi else "rx_error"].next = bad
            if axi:
                pins["rx_tdata"].next = int.from_bytes(beat, "little")
                pins["rx_tkeep"].next = (1 << len(part)) - 1
            else:
                pins["rx_data"].next = int.from_bytes(beat, "big")
                pins["rx_startofpacket"].next = first
                pins["rx_empty"].next = size - len(part)

        return step

    def check(self) -> Bench:
        """All frames came whole, in their order, each once; or none of it did, and it was counted."""
        where = f"seed {self.seed}"
        assert self.checker.frames == self.there, where
        left = iter(self.back)
        assert all(frame in left for frame in self.came), where
        assert len(self.came) + self.overflow == len(self.back), f"{where}: {self.overflow} counted"
        return self


@block
def at_edge(clk: Any, act: Callable[[int], None]) -> Any:
    """At each rising edge of a clock, with its number."""
    edges = [0]

    @always(clk.posedge)
    def step() -> None:
        edges[0] += 1
        act(edges[0])

    return step


def device_beats(frame: bytes, size: int) -> Iterator[int]:
    """As a transmitter gives them."""
    for at in range(0, len(frame), size):
        yield int.from_bytes(frame[at : at + size], "little") | (at + size >= len(frame)) << 8 * size


def mac_beats(frame: bytes, bad: bool, size: int) -> Iterator[tuple[bytes, bool, bool, bool]]:
    """(bytes, whether it is the first, the last, bad)."""
    for at in range(0, len(frame), size):
        last = at + size >= len(frame)
        yield frame[at : at + size], at == 0, last, last and bad


def test_frames_cross_to_a_mac_and_from_it() -> None:
    assert Bench.of(mac(128, 64, AVALON), 1, 4).run(PERIODS[0]).check().overflow == 0


ALL = [(word, bits, kind) for word in WORD_BITS for bits in WORD_BITS for kind in (AXI_STREAM, AVALON)]


@pytest.mark.slow
@pytest.mark.parametrize(("word_bits", "mac_bits", "kind"), ALL, ids=lambda value: str(value))
def test_frames_cross_at_all_widths_whatever_the_clocks(word_bits: int, mac_bits: int, kind: str) -> None:
    unit = mac(word_bits, mac_bits, kind, key=0 if word_bits == mac_bits else None)
    seed = word_bits + mac_bits + len(kind)
    for periods in random.Random(seed).sample(PERIODS, 2):
        Bench.of(unit, seed, 12).run(periods).check()


def verilog(unit: ClockedMac) -> VerilogModule:
    with unsimulated():
        return convert(unit.build(ClockReset(), {n: Stream(w) for n, w in unit.streams.items()}), "mac")


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", [mac(256, 128, AVALON), mac(128, 256, AXI_STREAM), mac(64, 64, AXI_STREAM), mac(512, 512, AVALON)],
    ids=lambda unit: f"{unit.sink.frames.word_bits}-{unit.mac_bits}",
)  # fmt: skip
def test_the_verilog_does_so_in_verilator(unit: ClockedMac, tmp_path: Path) -> None:
    module = verilog(unit)
    path = module.write(tmp_path)
    program = build_cosimulation(Engine.VERILATOR, "mac", module.ports, [path], tmp_path / "built", optimise=False)
    for seed, periods in enumerate(PERIODS):
        Bench.of(unit, 100 + seed, 20).run(periods, program.attach).check()


@pytest.mark.slow
def test_what_a_mac_gives_too_fast_is_dropped_whole_and_counted() -> None:
    # eight words a beat, at three times the device's clock
    unit = mac(64, 512, AXI_STREAM)
    bench = Bench.of(unit, 7, 1, stalls=(0.1, 0.1, 0.0))
    rng = random.Random(7)
    bench.back = [(rng.randbytes(rng.randint(1000, 1500)), False) for _ in range(60)]
    assert 5 < bench.run(PERIODS[5]).check().overflow < 55


LAST_PART = "place == top or (x.payload[total] and place == last_part)"
Fault = tuple[Any, Any, str, dict[str, str]]
FAULTS: dict[str, Fault] = {
    "an underrun inside a packet": (
        clocked, clocks, "packet_crossing", {"not valid) and (goes_on or more)": "not valid) and more"},
    ),
    "a packet begins before it is whole": (
        clocked, clocks, "packet_crossing",
        {"whole.next = x.valid and room and x.payload[last_bit]": "whole.next = push"},
    ),
    "beats of the last word too many": (
        clocked, clocked, "words_in_parts", {f"ends.next = {LAST_PART}": "ends.next = place == top"},
    ),
    "another last byte": (
        clocked, clocked, "beats_side_by_side",
        {"byte.next = x.payload[high:low]": "byte.next = x.payload[high:low] ^ 1"},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, *FAULTS.values()], ids=["none", *FAULTS])
def test_a_seeded_fault_is_seen(fault: Fault | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # a device that is slower than its MAC
    bench = Bench.of(mac(128, 64, AVALON), 3, 8)
    if fault is None:
        bench.run(PERIODS[5]).check()
        return
    Mutator(monkeypatch, tmp_path)(*fault)
    with pytest.raises((AssertionError, ContractViolation)):
        bench.run(PERIODS[5]).check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AXI_STREAM, AVALON])
def test_the_verilog_is_clean_and_crosses_between_clocks_through_two_flip_flops(kind: str, tmp_path: Path) -> None:
    module = verilog(mac(64, 128, kind))
    path = module.write(tmp_path)
    lint_verilog([path], "mac")
    compile_icarus([path], "mac")
    at = {port.name: "clk" for port in module.ports}
    at |= {port.name: f"{port.name[:6]}_clk" for port in module.ports if port.name.startswith("mac_")}
    assert unsynchronised(path, "mac", {name: clk for name, clk in at.items() if not name.endswith("clk")}) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word_bits", "mac_bits", "kind"), [(256, 128, AVALON), (128, 256, AXI_STREAM), (512, 512, AXI_STREAM)]
)
def test_a_mac_costs_what_is_counted(word_bits: int, mac_bits: int, kind: str, tmp_path: Path) -> None:
    unit = mac(word_bits, mac_bits, kind)
    with unsimulated():
        made: Any = unit.build(ClockReset(), {n: Stream(w) for n, w in unit.streams.items()})
    module = convert(made, "mac")
    check_yosys([module.write(tmp_path)], "mac")
    rows = {row.quantity: row for row in compare(count(made), synthesise(module))}
    for quantity in ("multipliers", "m20k", "mlab_cells"):
        assert rows[quantity].estimate == rows[quantity].synthesis, rows[quantity]
    registers, alm = rows["registers"], rows["alm"]
    assert abs(registers.estimate - registers.synthesis) <= 0.02 * registers.synthesis, registers
    assert abs(alm.estimate - alm.synthesis) <= 0.12 * alm.synthesis, alm


@pytest.mark.slow
def test_a_mac_of_40g_is_as_fast_as_its_clock_by_the_timing_model() -> None:
    module = verilog(mac(256, 128, AVALON))
    paths = time_module(module.text, "mac", cache=cache_folder() / "timing").paths
    assert paths[0].ps < 4000
    # what leaves for the MAC does so at 312.5 MHz
    leaving = [path for path in paths if "packet_crossing0" in path.start]
    assert leaving
    assert leaving[0].ps < 3200
