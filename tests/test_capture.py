"""Captures of frames are read by scapy and, with the dissector, by tshark."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import PcapNgReader

from dagtrain.emission.capture import capture
from dagtrain.emission.dissector import FILE, dissector, write_dissector
from hdl.link.ethernet.frame import HEADER, Address, Burst, Frame, FrameFormat, FrameType

CLOCK_HZ = 156_250_000
KEYED = FrameFormat(word_bits=128, mtu=1500, key=5)
HERE, THERE = (Address(number=k, mac=0x020000000000 + k, ip=0x0A000001 + k) for k in range(2))


def frames(form: FrameFormat, count: int) -> list[tuple[bytes, Frame, tuple[Burst, ...]]]:
    """Frames of every type, most of them DATA."""
    rng, found = random.Random(4), []
    for k in range(count):
        bursts: tuple[Burst, ...] = ()
        kind = list(FrameType)[k] if k < len(FrameType) else FrameType.DATA
        if kind is FrameType.DATA:
            words = tuple(rng.getrandbits(form.word_bits) for _ in range(rng.choice([1, 31])))
            bursts = (
                Burst(stream=rng.randrange(1 << 16), words=words, sequence=rng.randrange(256), last=True),
                Burst(stream=k, credits=rng.randrange(1, 1 << 24)),
                Burst(stream=0, words=(0, (1 << form.word_bits) - 1)),
            )
        frame = Frame(
            kind=kind,
            source=0,
            target=1,
            epoch=rng.randrange(1 << 16),
            sequence=rng.choice([0, k, 0xFFFFFFFF]),
            acknowledge=rng.getrandbits(32),
            digest=0xDA67,
            payload=form.payload_of(bursts),
        )
        found.append((form.build(frame, HERE, THERE), frame, bursts))
    return found


def written(path: Path, form: FrameFormat, count: int = 12) -> list[tuple[bytes, Frame, tuple[Burst, ...]]]:
    """A capture in which frame k passes port k % 2 at cycle 10¹⁰ + k."""
    sent = frames(form, count)
    with capture(path, ["fpga-0", "fpga-1"], CLOCK_HZ) as file:
        for k, (data, _, _) in enumerate(sent):
            file.write(k % 2, data, 10**10 + k)
    return sent


def test_scapy_reads_frames_ports_and_nanoseconds(tmp_path: Path) -> None:
    sent = written(tmp_path / "x.pcapng", KEYED)
    with PcapNgReader(str(tmp_path / "x.pcapng")) as reader:
        seen = list(reader)
    assert [bytes(packet) for packet in seen] == [data for data, _, _ in sent]
    # a cycle is 6.4 ns: no two frames have one stamp, as they would in microseconds
    stamps = [round(packet.time * 10**9) for packet in seen]
    assert stamps == [64 * 10**9 + 64 * k // 10 for k in range(len(sent))]
    assert [packet.sniffed_on for packet in seen] == ["fpga-0", "fpga-1"] * (len(sent) // 2)


def test_the_dissector_has_every_field_of_the_table() -> None:
    text = dissector()
    assert all(f'"{label}"' in text for label, field in HEADER.items() if field.layer == "dtl")


def tshark(folder: Path, path: Path) -> list[dict[str, Any]]:
    """What tshark shows of the frames of a capture, with nothing but the dissector installed."""
    write_dissector(folder)
    command = ["tshark", "-X", f"lua_script:{folder / FILE}", "-r", path, "-T", "json", "--no-duplicate-keys"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"HOME": str(folder), "PATH": PATH})
    assert found.returncode == 0, found.stderr
    assert "Lua" not in found.stderr, found.stderr
    return [packet["_source"]["layers"] for packet in json.loads(found.stdout)]


PATH = "/usr/bin:/bin:/usr/local/bin"


def every(value: object, key: str) -> list[Any]:
    """All values of a key, however deep, in their order."""
    if isinstance(value, list):
        return [found for entry in value for found in every(entry, key)]
    if not isinstance(value, dict):
        return []
    here = value.get(key, [])
    return [
        *(here if isinstance(here, list) else [here]),
        *(f for k, v in value.items() if k != key for f in every(v, key)),
    ]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("form", [KEYED, FrameFormat(word_bits=64, mtu=576)], ids=["keyed-128", "plain-64"])
def test_tshark_shows_what_was_sent_and_finds_nothing_malformed(form: FrameFormat, tmp_path: Path) -> None:
    sent = written(tmp_path / "x.pcapng", form)
    layers = tshark(tmp_path, tmp_path / "x.pcapng")
    assert len(layers) == len(sent)
    for layer, (data, frame, bursts) in zip(layers, sent, strict=True):
        assert "_ws.malformed" not in json.dumps(layer)
        assert not every(layer, "_ws.expert.message"), every(layer, "_ws.expert.message")
        assert layer["ip"]["ip.checksum"] == f"0x{int.from_bytes(data[24:26], 'big'):04x}"
        seen = {name: every(layer["dtl"], f"dtl.{name}") for name in ("type", "source", "target", "epoch", "sequence")}
        told = (frame.kind.value, frame.source, frame.target, frame.epoch, frame.sequence)
        assert seen == {name: [str(value)] for name, value in zip(seen, told, strict=True)}
        assert every(layer["dtl"], "dtl.acknowledge") == [str(frame.acknowledge)]
        assert every(layer["dtl"], "dtl.version") == ["1"]
        assert every(layer["dtl"], "dtl.descriptor.stream") == [str(burst.stream) for burst in bursts]
        assert every(layer["dtl"], "dtl.descriptor.words") == [str(len(burst.words)) for burst in bursts]
        assert every(layer["dtl"], "dtl.descriptor.credits") == [str(burst.credits) for burst in bursts]


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_is_told_of_a_wrong_crc(tmp_path: Path) -> None:
    data = frames(KEYED, 8)[-1][0]
    with capture(tmp_path / "x.pcapng", ["fpga-0"], CLOCK_HZ) as file:
        file.write(0, data[:100] + bytes([data[100] ^ 1]) + data[101:], 0)
    (layer,) = tshark(tmp_path, tmp_path / "x.pcapng")
    assert every(layer, "_ws.expert.message") == ["CRC-32C is wrong"]
