"""The circuit of the keyed check against another package's SipHash."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import siphash24

from hdl.convert.tools import check_yosys, compile_icarus, lint_verilog
from hdl.convert.verilog import convert
from hdl.costs.synthesis import synthesise
from hdl.costs.timing import time_module
from hdl.link.ethernet.frame import DTL_START, HEADER_BYTES, Address, Frame, FrameFormat, FrameType
from hdl.link.ethernet.tag import COVERED_BYTES, STEPS, KeyedTag, keyed_tag
from hdl.memory import unsimulated
from hdl.signals import ClockReset
from hdl.simulate import Backend, Design, Direction, StreamPort, run_streams
from hdl.stream import Stream

UNIT = KeyedTag()
KEYS = (0, (1 << 64) - 1, 0x0123_4567_89AB_CDEF)


def design(key: int) -> Design:
    def factory(_: object) -> object:
        domain, x, y = ClockReset(), Stream(UNIT.streams["x"]), Stream(UNIT.streams["y"])
        (key_port,) = UNIT.signals(UNIT.inputs)
        return keyed_tag(domain, key_port, x, y)

    ports = (StreamPort("x", UNIT.streams["x"], Direction.IN), StreamPort("y", UNIT.streams["y"], Direction.OUT))
    return Design("keyed_tag", factory, ports, constants={"key": key})  # type: ignore[arg-type]


def expected(key: int, covered: bytes) -> int:
    """As it stands in the frame, byte 0 low."""
    second = key ^ int.from_bytes(b"dagtrain", "little")
    halves = key.to_bytes(8, "little") + second.to_bytes(8, "little")
    return int.from_bytes(siphash24.siphash24(covered, key=halves).digest()[::-1], "little")


@pytest.mark.parametrize(
    ("backend", "key", "stall"),
    [*((Backend.MYHDL, key, 0.3) for key in KEYS), (Backend.ICARUS, KEYS[2], 0.5), (Backend.ICARUS, KEYS[1], 0.0)],
)
def test_tags_are_those_of_another_package(backend: Backend, key: int, stall: float) -> None:
    rng = random.Random(key)
    texts = [bytes(COVERED_BYTES), b"\xff" * COVERED_BYTES, *(rng.randbytes(COVERED_BYTES) for _ in range(20))]
    sent = [int.from_bytes(text, "little") for text in texts]
    run = run_streams(backend, design(key), {"x": sent}, {"y": len(sent)}, seed=1, stall_probability=stall)
    assert run.outputs["y"] == [expected(key, text) for text in texts]
    if not stall:
        # a tag each so many cycles, and no cycle longer
        assert run.cycles <= len(sent) * (UNIT.latency_cycles + 1) + 20
        assert UNIT.latency_cycles == STEPS + 1 == 25


def test_the_tag_of_a_frame_is_that_of_the_codec() -> None:
    key = KEYS[2]
    here = Address(number=1, mac=2, ip=3)
    frame = Frame(kind=FrameType.ACK, source=1, target=2, epoch=3, sequence=4, acknowledge=5, digest=6)
    data = FrameFormat(word_bits=64, mtu=1500, key=key).build(frame, here, here)
    covered = data[DTL_START : HEADER_BYTES + 4]
    run = run_streams(Backend.MYHDL, design(key), {"x": [int.from_bytes(covered, "little")]}, {"y": 1}, seed=1)
    assert run.outputs["y"] == [int.from_bytes(data[-8:], "little")]


def test_its_verilog_is_clean_and_as_dear_as_the_page_says(tmp_path: Path) -> None:
    with unsimulated():
        module = convert(UNIT.build(ClockReset(), {name: Stream(bits) for name, bits in UNIT.streams.items()}), "tag")
    path = module.write(tmp_path)
    lint_verilog([path], "tag")
    compile_icarus([path], "tag")
    check_yosys([path], "tag")
    found = synthesise(module)
    assert found.adder_bits <= 128 + 8
    assert found.registers <= 256 + 256 + 8
    slowest = time_module(module.text, "tag").paths[0]
    assert slowest.ps <= 4000, slowest
    assert found.alm <= 600, found.alm
