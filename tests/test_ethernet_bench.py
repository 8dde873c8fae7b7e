"""Ethernet ports in Verilator on the switch in C++: words arrive, whatever the network does; it does what the switch in
Python does; captures hold every frame."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from dagtrain.cosim.network import Mac, read_frames
from hdl.link.ethernet.frame import FrameFormat, FrameType
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.receiver import Cause
from hdl.simulate.models.ethernet import EthernetSwitch, Faults
from tests.ethernet_bench import PortBench, Ran
from tests.test_ethernet_port import interleaved

TIMING = Timing(window=8, timer_cycles=1500, ack_cycles=100)
BAD = Faults(loss=0.05, duplicate=0.05, reorder=0.05, corrupt=0.05)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[PortBench, Path]:
    made = PortBench(
        frames=FrameFormat(word_bits=64, mtu=576), timing=TIMING, devices=2, folder=tmp_path_factory.mktemp("ports")
    )
    return made, made.build()


def delivered(bench: PortBench, ran: Ran) -> None:
    """Everybody has what was sent, in order."""
    for device in range(bench.devices):
        assert interleaved(ran.words[device], bench.expected(device))
    assert ran.host_words == [bench.there[device][-1] for device in range(bench.devices)]
    assert not any(ran.faults)


def as_in_python(switch: EthernetSwitch, folder: Path) -> None:
    """Frames leave the switch of a run as they leave the one in Python that gets the same."""
    frames = list(read_frames(folder))
    last = frames[-1].cycle
    entering = [one for one in frames if not one.arrives]
    wanted, found, at = [], [(one.cycle, one.port, one.frame) for one in frames if one.arrives], 0
    for now in range(last + 1):
        # what the host sends enters before frames leave, what a MAC has taken behind the edge before
        while at < len(entering) and entering[at].cycle <= now:
            switch.enter(entering[at].port, entering[at].frame, entering[at].cycle)
            at += 1
        wanted += [(now, port, frame) for port, frame in switch.leave(now)]
    assert found == wanted


def test_words_cross_in_verilator_as_the_switch_in_python_says(bench: tuple[PortBench, Path], tmp_path: Path) -> None:
    ports, program = bench
    options = {"bits_per_cycle": Fraction(160, 3)}
    ran = ports.run(program, tmp_path / "run", ports.switch(BAD, 3, **options))
    delivered(ports, ran)
    python = ports.switch(BAD, 3, **options)
    as_in_python(python, tmp_path / "run")
    for pair, count in ran.counts.items():
        wanted = python.counts[pair]
        names = ("in", "lost", "doubled", "reordered", "corrupted", "down", "out")
        told = (count.entered, count.lost, count.doubled, count.reordered, count.corrupted, count.down, count.left)
        assert Counter(dict(zip(names, told, strict=True))) == wanted, pair


def test_the_same_seed_gives_the_same_run_and_another_one_another(
    bench: tuple[PortBench, Path], tmp_path: Path
) -> None:
    ports, program = bench
    runs = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        runs.append(ports.run(program, tmp_path / name, ports.switch(BAD, seed)))
        delivered(ports, runs[-1])
    frames = [(tmp_path / name / "frames.bin").read_bytes() for name in "abc"]
    assert frames[0] == frames[1] != frames[2]
    assert runs[0].log.cycles == runs[1].log.cycles


def test_what_was_sent_again_and_dropped_is_counted(bench: tuple[PortBench, Path], tmp_path: Path) -> None:
    ports, program = bench
    good = ports.run(program, tmp_path / "good", ports.switch(Faults(), 1))
    delivered(ports, good)
    assert not any(one.again for one in good.counts.values())
    assert not any(count for drops in good.dropped for count in drops.values())
    ran = ports.run(program, tmp_path / "bad", ports.switch(Faults(loss=0.1, corrupt=0.1), 2))
    delivered(ports, ran)
    found = {pair: Counter() for pair in ran.counts}
    seen = set()
    macs = ports.switch(Faults(), 1).ports
    for one in read_frames(tmp_path / "bad"):
        if one.arrives:
            continue
        pair = one.port, macs[int.from_bytes(one.frame[:6], "big")]
        frame = ports.frames.parse(one.frame)
        found[pair]["frames"] += 1
        if frame.kind is FrameType.DATA:
            found[pair]["data"] += 1
            found[pair]["again"] += (pair, frame.sequence) in seen
            seen.add((pair, frame.sequence))
    for pair, one in ran.counts.items():
        assert (one.frames, one.data, one.again) == tuple(found[pair][name] for name in ("frames", "data", "again"))
    assert sum(one.again for one in ran.counts.values()) > 0
    # a frame that is corrupted is dropped by its receiver, for whatever part of it changed
    for device, drops in enumerate(ran.dropped):
        corrupted = sum(one.corrupted for (_, target), one in ran.counts.items() if target == device)
        causes = (Cause.DUPLICATE, Cause.GAP)
        assert sum(count for cause, count in drops.items() if cause not in causes) <= corrupted
        assert drops[Cause.CRC] > 0
        assert drops[Cause.OVERRUN] == 0


@pytest.mark.parametrize(
    ("word_bits", "kind", "devices"),
    [
        (64, Mac.AVALON, 1),
        *(pytest.param(bits, kind, 2, marks=pytest.mark.slow) for bits in (128, 256, 512) for kind in Mac),
    ],
)
def test_words_cross_to_every_mac_in_every_width(tmp_path: Path, word_bits: int, kind: Mac, devices: int) -> None:
    frames = FrameFormat(word_bits=word_bits, mtu=1500)
    ports = PortBench(
        frames=frames, timing=TIMING, devices=devices, folder=tmp_path / "ports", kind=kind, runs=30, seed=7
    )
    delivered(ports, ports.run(ports.build(), tmp_path / "run", ports.switch(BAD, 4)))
