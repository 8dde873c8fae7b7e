"""An AXI4 port in front of a memory controller with Avalon-MM: streams keep every bit, and the contract holds."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, always, always_comb, block, intbv

from hdl.convert.netlist import Direction
from hdl.convert.tools import compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.dram import avalon
from hdl.dram.avalon import AvalonMemory
from hdl.dram.axi import Axi, AxiFormat
from hdl.dram.checker import AxiChecker, axi_monitor
from hdl.dram.store import DramFifo, dram_store
from hdl.errors import ContractViolation, DeadlockError
from hdl.memory import unsimulated
from hdl.signals import Bit, Bits, ClockReset
from hdl.simulate import Backend, Design, StreamPort, run_streams
from hdl.stream import Stream
from tests.mutated import Mutator
from tests.test_dram import beats, tensors

FORM = AxiFormat(data_bits=64, address_bits=10)
UNIT = AvalonMemory(format=AxiFormat(data_bits=512, address_bits=12))


class Controller:
    """A memory controller that holds its master to Avalon-MM: call `step` with what stands before each edge."""

    def __init__(self, seed: int, stall: float) -> None:
        self.rng, self.stall = random.Random(seed), stall
        self.words: dict[int, int] = {}
        # words of a burst that are still to be written, and where
        self.left = self.place = 0
        self.asked: deque[int] = deque()
        self.stands: tuple[int, ...] | None = None
        self.ready = False

    def step(self, read: bool, write: bool, address: int, data: int, count: int) -> int | None:
        """A word that was read, for the next cycle, or None.  Raises `ContractViolation`."""
        if read and write:
            raise ContractViolation("read and write at once")
        command = (read, write, data if write else 0, *((address, count) if not self.left else ()))
        if self.stands is not None and command != self.stands:
            raise ContractViolation("a command changed while it waited")
        self.stands = command if (read or write) and not self.ready else None
        if self.ready and read:
            if self.left:
                raise ContractViolation("a read inside a burst that is written")
            self.asked.extend(range(address, address + count))
        if self.ready and write:
            if not self.left:
                self.left, self.place = count, address
            self.words[self.place] = data
            self.left, self.place = self.left - 1, self.place + 1
        self.ready = self.rng.random() >= self.stall
        if self.asked and self.rng.random() >= self.stall:
            return self.words[self.asked.popleft()]
        return None


@block
def controller(
    domain: ClockReset, ready: Bit, readdata: Bits, readdatavalid: Bit, read: Bit, write: Bit, address: Bits,
    writedata: Bits, burstcount: Bits, model: Controller,
) -> Any:  # fmt: skip
    """A `Controller` as a circuit of MyHDL."""

    @always(domain.clk.posedge)
    def serve() -> None:
        word = None
        if not domain.rst:
            word = model.step(bool(read), bool(write), int(address), int(writedata), int(burstcount))
        ready.next = model.ready
        readdatavalid.next = word is not None
        readdata.next = word or 0

    return serve


@block
def behind(
    domain: ClockReset, base: Any, x: Stream, y: Stream, error: Stream, unit: DramFifo, model: Controller
) -> Any:
    """A FIFO in the memory of a controller."""
    port, flag = Axi(unit.format), Signal(bool(0))
    adapter = AvalonMemory(format=unit.format, burst=unit.burst)
    inputs, outputs = adapter.signals(adapter.inputs), adapter.signals(adapter.outputs)
    store = dram_store(domain, base, x, y, port, flag, unit=unit)
    watcher = axi_monitor(domain, port, checker=AxiChecker("m", unit.format))
    serves = avalon.avalon_memory(domain, port, *inputs, *outputs, unit=adapter)
    memory = controller(domain, *inputs, *outputs[:-1], model)

    @always_comb
    def watch() -> None:
        error.valid.next = flag
        error.payload.next = 1

    return store, watcher, serves, memory, watch


def passes(seed: int, stall: float, count: int) -> None:
    """Tensors go in and come out, and what the master asks for is what the controller may be asked."""
    unit = DramFifo(
        format=FORM, element_bits=16, x_lanes=4, y_lanes=4, elements=256, burst=16, prefetch=128, capacity=4
    )  # fmt: skip
    sent = beats(tensors(unit, count, seed), 4, 16)

    def factory(_: Mapping[str, Sequence[int]]) -> Any:
        streams = Stream(64), Stream(64), Stream(1)
        return behind(ClockReset(), Signal(intbv(0)[10:]), *streams, unit, Controller(seed, stall))

    ports = (
        StreamPort("x", 64, Direction.IN), StreamPort("y", 64, Direction.OUT), StreamPort("error", 1, Direction.OUT)
    )  # fmt: skip
    design = Design("behind", factory, ports, constants={"base": 64})
    run = run_streams(
        Backend.MYHDL, design, {"x": sent}, {"y": len(sent)}, seed=seed, stall_probability=stall, max_cycles=9000
    )
    assert run.outputs["y"] == sent, f"seed {seed}"
    assert run.outputs["error"] == [], f"seed {seed}"


@block
def served(
    domain: ClockReset, m_aw: Stream, m_w: Stream, m_b: Stream, m_ar: Stream, m_r: Stream, unit: AvalonMemory,
    model: Controller,
) -> Any:  # fmt: skip
    """A port and its controller."""
    port = Axi.of({"m_aw": m_aw, "m_w": m_w, "m_b": m_b, "m_ar": m_ar, "m_r": m_r}, "m")
    inputs, outputs = unit.signals(unit.inputs), unit.signals(unit.outputs)
    serves = avalon.avalon_memory(domain, port, *inputs, *outputs, unit=unit)
    return serves, controller(domain, *inputs, *outputs[:-1], model)


def bursts(seed: int, stall: float, count: int) -> None:
    """Random bursts are written and others read, by a master that stalls on every channel."""
    rng, model, unit = random.Random(seed), Controller(seed, stall / 3), AvalonMemory(format=FORM, burst=8)
    model.words = {address: rng.getrandbits(64) for address in range(512)}
    asked = {"m_aw": list[int](), "m_w": list[int](), "m_ar": list[int]()}
    written, read = dict(model.words), list[int]()
    for _ in range(count):
        length = rng.randint(1, 8)
        start = 512 + rng.randrange(64) * 8
        words = [rng.getrandbits(64) for _ in range(length)]
        written |= dict(zip(range(start, start + length), words, strict=True))
        asked["m_aw"].append((length - 1) << 10 | start)
        asked["m_w"] += [(at == length - 1) << 64 | word for at, word in enumerate(words)]
        length = rng.choice((1, 5, 8, 8, 8))
        start = rng.randrange(64) * 8
        asked["m_ar"].append((length - 1) << 10 | start)
        read += [(at == length - 1) << 66 | model.words[start + at] for at in range(length)]

    def factory(_: Mapping[str, Sequence[int]]) -> Any:
        streams = {name: Stream(width) for name, width in unit.streams.items()}
        return served(ClockReset(), **streams, unit=unit, model=model)

    ports = tuple(
        StreamPort(name, width, Direction.IN if name in asked else Direction.OUT)
        for name, width in unit.streams.items()
    )
    wanted = {"m_b": count, "m_r": len(read)}
    run = run_streams(
        Backend.MYHDL, Design("served", factory, ports), asked, wanted, seed=seed, stall_probability=stall,
        max_cycles=200 * count,
    )  # fmt: skip
    assert run.outputs["m_r"] == read, f"seed {seed}"
    assert run.outputs["m_b"] == [0] * count, f"seed {seed}"
    assert model.words == written, f"seed {seed}"


def test_bursts_keep_every_bit_and_the_controller_s_contract() -> None:
    bursts(1, 0.4, 15)


@pytest.mark.slow
@pytest.mark.parametrize("stall", [0.0, 0.2, 0.6])
def test_they_do_at_any_pace(stall: float) -> None:
    for seed in range(2, 5):
        bursts(seed, stall, 60)
        passes(seed, stall, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"amm_write.next = writing and m.w.valid": "amm_write.next = writing"},
        {"m.w.ready.next = writing and amm_ready": "m.w.ready.next = writing"},
        {"if reading and amm_ready:": "if reading:"},
        {"m.r.payload.next[last_at] = given == length.payload": "m.r.payload.next[last_at] = given == 0"},
        {"depth=_OUTSTANDING * unit.burst": "depth=(_OUTSTANDING - 1) * unit.burst"},
        {"length.ready.next = data.valid and m.r.ready and given == length.payload": "length.ready.next = data.valid"},
        {"address.next = m.ar.payload[address_bits:]": "address.next = m.aw.payload[address_bits:]"},
    ],
    ids=["idle write", "word lost", "read lost", "last", "no room", "length", "address"],
)
def test_a_seeded_fault_is_seen(change: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Mutator(monkeypatch, tmp_path)(avalon, avalon, "avalon_memory", change)
    # outstanding words that no room is kept for are lost where their reader stalls
    with pytest.raises((ContractViolation, DeadlockError, AssertionError, ValueError, KeyError)):
        bursts(2, 0.6, 60)


def test_its_verilog_is_clean_and_has_the_ports_of_a_controller(tmp_path: Path) -> None:
    with unsimulated():
        module = convert(UNIT.build(ClockReset(), {n: Stream(w) for n, w in UNIT.streams.items()}), "unit")
    widths = {port.name: port.width for port in module.ports}
    assert {name: widths[name] for name in (*UNIT.inputs, *UNIT.outputs)} == {**UNIT.inputs, **UNIT.outputs}
    path = module.write(tmp_path)
    lint_verilog([path], "unit")
    compile_icarus([path], "unit")


def test_bursts_longer_than_a_controller_takes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^a controller's bursts have 1 to 64 words, not 65$"):
        AvalonMemory(format=FORM, burst=65)
