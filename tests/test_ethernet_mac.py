"""Adapters between beats of frames and vendors' MACs, and the checker of both contracts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from myhdl import Signal, Simulation, StopSimulation, always, block, delay, instance, intbv

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.errors import ContractViolation
from hdl.link.ethernet.frame import FrameFormat
from hdl.link.ethernet.mac import (
    MacBeats,
    MacChecker,
    avalon_receive,
    avalon_transmit,
    axi_stream_receive,
    axi_stream_transmit,
)
from hdl.signals import ClockReset
from hdl.simulate.myhdl_run import fresh_simulator
from hdl.stream import Stream

FRAMES = FrameFormat(word_bits=128, mtu=1500)
MAC = MacBeats(frames=FRAMES, bits=FRAMES.word_bits)
BYTES, BITS = FRAMES.word_bytes, FRAMES.word_bits


def bit() -> Any:
    return Signal(bool(0))


def bits(width: int) -> Any:
    return Signal(intbv(0)[width:])


@block
def axi_loop(x: Any, tvalid: Any, tready: Any, tdata: Any, tkeep: Any, tlast: Any, tuser: Any, y: Any) -> Any:
    """What is sent comes in as it is."""
    sent = axi_stream_transmit(x, tvalid, tready, tdata, tkeep, tlast, beats=MAC)
    came = axi_stream_receive(tvalid, tdata, tkeep, tlast, tuser, y, beats=MAC)
    return sent, came


@block
def avalon_loop(
    domain: Any, x: Any, valid: Any, ready: Any, data: Any, first: Any, last: Any, empty: Any, error: Any, y: Any
) -> Any:
    """As `axi_loop`."""
    sent = avalon_transmit(domain, x, valid, ready, data, first, last, empty, beats=MAC)
    came = avalon_receive(valid, data, last, empty, error, y, beats=MAC)
    return sent, came


def beats_of(data: bytes) -> list[int]:
    """Of a transmitter: the last beat has 4 bytes."""
    parts = [data[at : at + BYTES] for at in range(0, len(data), BYTES)]
    return [int.from_bytes(part, "little") | (part is parts[-1]) << BITS for part in parts]


def looped(kind: str, frames: list[bytes], seed: int) -> tuple[MacChecker, list[tuple[bytes, bool]]]:
    """What the MAC got of these frames, and what came of them behind the other adapter, with the MAC's verdict."""
    rng = random.Random(seed)
    domain, x, y = ClockReset(), Stream(BITS + 1), Stream(MAC.given_bits)
    valid, ready, data, start, end, error = bit(), bit(), bits(BITS), bit(), bit(), bit()
    keep, empty = bits(BYTES), bits(4)
    checker = MacChecker(kind, BYTES)
    came: list[tuple[bytes, bool]] = []
    ended = [True]
    queue = [beats_of(frame) for frame in frames]

    def observe(cycle: int) -> bool:
        number = int(data)
        if kind == "axi":
            size = int(keep).bit_length()
            assert int(keep) == (1 << size) - 1, "tkeep is not contiguous"
            checker.observe(cycle, bool(valid), bool(ready), (number, None, bool(end), size))
        else:
            number = int.from_bytes(number.to_bytes(BYTES, "big"), "little")
            assert bool(end) or int(empty) == 0
            checker.observe(cycle, bool(valid), bool(ready), (number, bool(start), bool(end), BYTES - int(empty)))
        if valid and ready:
            payload = int(y.payload)
            assert y.valid
            part = (payload & ((1 << BITS) - 1)).to_bytes(BYTES, "little")[: payload >> BITS + 2]
            if ended[0]:
                came.append((b"", False))
            came[-1] = (came[-1][0] + part, bool(payload >> BITS + 1 & 1))
            assert came[-1][1] == bool(error)
            ended[0] = bool(payload >> BITS & 1)
        return len(checker.frames) == len(frames)

    @block
    def bench() -> Any:
        edges = [0]

        @instance
        def tick() -> Iterator[object]:
            while True:
                yield delay(1)
                domain.clk.next = not domain.clk

        @always(domain.clk.posedge)
        def step() -> None:
            edges[0] += 1
            domain.rst.next = edges[0] < 3
            if edges[0] < 5:
                return
            if observe(edges[0]):
                raise StopSimulation
            if x.valid and x.ready:
                queue[0].pop(0)
                if not queue[0]:
                    queue.pop(0)
                    x.valid.next = False
            inside = bool(x.valid) and bool(queue) and len(queue[0]) != len(beats_of(frames[-len(queue)]))
            if queue and (inside or (x.valid and not x.ready) or rng.random() < 0.5):
                x.valid.next, x.payload.next = True, queue[0][0]
            ready.next = rng.random() < 0.6
            error.next = rng.random() < 0.4

        return tick, step

    with fresh_simulator():
        if kind == "axi":
            dut = axi_loop(x, valid, ready, data, keep, end, error, y)
        else:
            dut = avalon_loop(domain, x, valid, ready, data, start, end, empty, error, y)
        simulation = Simulation(dut, bench())
        try:
            simulation.run(20_000, quiet=1)
        finally:
            if not simulation._finished:
                simulation.quit()
    return checker, came


@pytest.mark.parametrize("kind", ["axi", "avalon"])
def test_frames_reach_the_mac_whole_and_come_back_as_they_were(kind: str) -> None:
    seed = 5
    rng = random.Random(seed)
    frames = [rng.randbytes(64 + BYTES * rng.randrange(12) + 4) for _ in range(12)]
    checker, came = looped(kind, frames, seed)
    assert checker.frames == frames, f"seed {seed}"
    assert [data for data, _ in came] == frames, f"seed {seed}"
    assert {bad for _, bad in came} == {False, True}


@pytest.mark.parametrize("kind", ["axi", "avalon"])
def test_the_verilog_of_adapters_is_clean(kind: str, tmp_path: Path) -> None:
    x, y = Stream(BITS + 1), Stream(MAC.given_bits)
    one = [bit() for _ in range(8)]
    if kind == "axi":
        loops = axi_loop(x, one[0], one[1], bits(BITS), bits(BYTES), one[2], one[3], y)
    else:
        loops = avalon_loop(ClockReset(), x, one[0], one[1], bits(BITS), one[2], one[3], bits(4), one[4], y)
    path = convert(loops, "loops").write(tmp_path)
    lint_verilog([path], "loops")
    compile_icarus([path], "loops")
    check_yosys([path], "loops")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([(True, True, (1, None, False, 16)), (False, True, (1, None, False, 16))], "valid fell inside a frame"),
        ([(True, False, (1, None, True, 4)), (False, True, (1, None, True, 4))], "valid fell inside a frame"),
        ([(True, False, (1, None, True, 4)), (True, True, (2, None, True, 4))], "a beat changed while it waited"),
        ([(True, True, (1, False, True, 4))], "the mark of a frame's first beat is False"),
        ([(True, True, (1, True, False, 16)), (True, True, (1, True, True, 4))], "first beat is True"),
        ([(True, True, (1, None, False, 5))], "5 bytes in a beat that is not the last"),
        ([(True, True, (1, None, True, 0))], "0 bytes in a beat that is the last"),
    ],
)
def test_the_checker_finds_what_no_mac_takes(steps: list[Any], said: str) -> None:
    checker = MacChecker("x", BYTES)
    for cycle, (valid, ready, beat) in enumerate(steps[:-1]):
        checker.observe(cycle, valid, ready, beat)
    valid, ready, beat = steps[-1]
    with pytest.raises(ContractViolation, match=said):
        checker.observe(len(steps), valid, ready, beat)
