"""A cluster's self-test: tops of all devices in Verilator, a switch that damages frames between them, a memory with a
stuck bit, and a host that reads the counters over UDP."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import jsonschema
import pytest

from dagtrain.cosim.serve import build_served, serve_cluster
from dagtrain.emission.delivered import Delivered, load_delivered
from dagtrain.emission.links import NetworkModel
from dagtrain.emission.memory import MemoryModel
from dagtrain.emission.project import lint_devices
from dagtrain.emission.selftest import SelfTest as Design
from dagtrain.emission.selftest import design_selftest
from dagtrain.flow.documents import results_schema
from dagtrain.flow.emit_step import library
from dagtrain.host.bridge import Bridge
from dagtrain.host.connection import Settings
from dagtrain.host.designed import selftest_wiring
from dagtrain.host.selftest import SelfTest, Verdict, summary
from dagtrain.host.wiring import ADDRESSES, Wiring, read_wiring, wiring_text
from hdl.errors import DagtrainError
from hdl.simulate.models.dram import StuckBit
from hdl.simulate.models.ethernet import Faults
from placement.problem.cluster import parse_cluster
from tests.flow_support import Outcome, call

# 4 KiB of DRAM on one kind of board
CLUSTER = """
[cluster]
name = "bench"
clock_mhz = 200
link_word_bits = 64
dram_word_bits = 64

[[board]]
name = "one"
part = "10AX115"
dram_gb_per_s = 10
dram_gbyte = 0.000004096
link_gbit_per_s = 10

[[board]]
name = "other"
part = "AGFB014"
dram_gb_per_s = 0
dram_gbyte = 0
link_gbit_per_s = 10
mac = "avalon-st"

[[device]]
name = "a"
board = "one"
count = 2

[[device]]
name = "b"
board = "other"

[network]
kind = "ethernet"
mtu = 1500
host_rtt_us = 10
host_mac = "02:00:00:00:ff:ff"
"""
WORDS = 2000
T = TypeVar("T")


def designed() -> Design:
    return design_selftest(parse_cluster(CLUSTER), library())


def delivered(folder: Path, design: Design) -> tuple[Delivered, Wiring]:
    """The files, read back."""
    (folder / ADDRESSES.parent).mkdir(parents=True)
    (folder / ADDRESSES).write_text(wiring_text(selftest_wiring(design)))
    design.write(folder, [folder / ADDRESSES])
    return load_delivered([folder / device.name for device in design.devices]), read_wiring(folder / ADDRESSES)


@pytest.mark.slow
def test_a_report_tells_of_every_link_channel_and_cause() -> None:
    design = designed()
    assert len(design.links) == 6
    assert len({link.first(64) for link in design.links}) == 6
    values = design.values["a-0"]
    assert [name for name in values if name.startswith("to.")] == ["to.a-1.sent", "to.b.sent"]
    assert "from.b.wrong_bits" in values
    assert {"dropped.crc", "net.error", "dram.0.bits", "cycles"} <= set(values)
    assert not any(name.startswith("dram.") for name in design.values["b"])
    assert "m_axi_awvalid" in {port.name for port in design.devices[0].top.ports}


def with_dram(gbyte: str, channels: int = 1, word_bits: int = 64) -> str:
    """The cluster with other memories on one kind of board."""
    text = CLUSTER.replace("dram_gbyte = 0.000004096", f"dram_gbyte = {gbyte}\ndram_channels = {channels}")
    return text.replace("dram_word_bits = 64", f"dram_word_bits = {word_bits}")


def test_what_cannot_be_tested_is_told_at_once() -> None:
    text = with_dram("1000000", word_bits=1024).replace("count = 2", "count = 21")
    with pytest.raises(DagtrainError) as raised:
        design_selftest(parse_cluster(text), library())
    assert [str(problem).partition(";")[0] for problem in raised.value.problems] == [
        "each device sends to every other, of 21 at most, not 22",
        "a march goes through words of 64 to 512 bits, not cluster.dram_word_bits = 1024",
        "board 'one': a march is of fewer than 2**32 bursts of 64 words, not 7,812,500,000,000 words",
    ]


def test_a_cluster_of_words_has_no_host_to_tell() -> None:
    with pytest.raises(DagtrainError, match=r"^a self-test tells a host on Ethernet what it found"):
        design_selftest(parse_cluster(CLUSTER.split("[network]")[0].replace('mac = "avalon-st"\n', "")), library())


@dataclass
class Bench:
    """A simulated cluster that tests itself."""

    design: Design
    delivered: Delivered
    wiring: Wiring
    folder: Path

    def run(self, faults: Faults, stuck: StuckBit | None, talk: Callable[[Settings], T]) -> T:
        network = NetworkModel(latency_cycles=50, stall_256=0, faults=faults, seed=5)
        bench = self.folder / f"bench{stuck is not None}"
        memory = MemoryModel(latency_cycles=10, stuck=stuck)
        program = build_served(self.delivered, 1, library(), bench, network, 5, optimise=False, memory=memory)
        bridge = Bridge(self.wiring, ("127.0.0.1", 0))
        parts = program, self.delivered, bench, network, bridge, lambda _: None
        served = threading.Thread(target=serve_cluster, args=parts)
        served.start()
        try:
            return talk(Settings(gateway=bridge.bound, answer_seconds=300))
        finally:
            bridge.stop()
            served.join()
            bridge.close()

    def test(self, settings: Settings) -> Verdict:
        """All of it."""
        return asyncio.run(asyncio.wait_for(self._test(settings), 1200))

    async def _test(self, settings: Settings) -> Verdict:
        async with SelfTest(self.wiring, settings) as test:
            return await test.test(WORDS)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder, design = tmp_path_factory.mktemp("selftest"), designed()
    return Bench(design, *delivered(folder, design), folder)


@pytest.mark.slow
def test_its_verilog_is_clean(bench: Bench, tmp_path: Path) -> None:
    tops = {device.folder: device.manifest.top for device in bench.delivered.devices}
    seen: list[str] = []
    lint_devices(tops, tmp_path, seen.append)
    assert seen == ["a-0", "a-1", "b"]


@pytest.mark.slow
def test_damaged_frames_are_counted_and_no_word_is_wrong(bench: Bench) -> None:
    verdict = bench.run(Faults(corrupt=0.2, loss=0.01), None, bench.test)
    assert verdict.problems == ()
    for device, told in verdict.reports.items():
        assert told["dropped.crc"] > 0, device
        others = 2
        assert sum(value for name, value in told.items() if name.endswith(".words")) == others * WORDS
    for channel in ("a-0", "a-1"):
        assert verdict.reports[channel]["dram.0.done"] == 1
    # the bit that was turned over on each link
    assert all(
        value == 1 for told in verdict.injected.values() for name, value in told.items() if name.endswith("wrong_bits")
    )
    assert len(summary(verdict)) == 3


@pytest.mark.slow
def test_the_commands_do_the_same(tmp_path: Path) -> None:
    """`bring-up` writes what `self-test` drives, and its verdict is the exit code."""
    cluster, out = tmp_path / "cluster.toml", tmp_path / "out"
    cluster.write_text(CLUSTER)
    made = call("bring-up", "--devices", cluster, "--out", out, "--json")
    assert made.code == 0, made.error
    assert [device["channels"] for device in json.loads(made.out)["devices"]] == [1, 1, 0]
    assert "unchanged" in call("bring-up", "--devices", cluster, "--out", out).out
    folder = out / "bring-up"
    wiring = read_wiring(folder / ADDRESSES)
    bench = Bench(designed(), load_delivered([folder / device.name for device in wiring.device]), wiring, tmp_path)

    def told(stuck: StuckBit | None) -> Outcome:
        def talk(settings: Settings) -> Outcome:
            assert settings.gateway is not None
            host = f"{settings.gateway[0]}:{settings.gateway[1]}"
            return call("self-test", "--host", host, "--words", 100, "--answer-seconds", 60, "--out", out, "--json")

        return bench.run(Faults(), stuck, talk)

    good = told(None)
    assert good.code == 0, good.error
    assert json.loads(good.out)["problems"] == []
    bad = told(StuckBit(word=3, bit=0, value=False))
    assert bad.code == 1
    assert len(json.loads(bad.out)["problems"]) == 2
    for name, document in (("bring-up", made.out), ("self-test", good.out)):
        schema = {"$ref": f"#/$defs/document {name}", "$defs": results_schema()["$defs"]}
        jsonschema.validate(json.loads(document), schema)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--words", 0), r"--words must lie in 1 to 4,294,967,294, not 0"),
        (
            ("--bursts", 9, "--addresses", "ADDRESSES"),
            r"--bursts 9 are more than memory has: a-0 has 8; leave it out for all",
        ),
        (("--addresses", "TRAINS"), r"is of a cluster that trains; name the file that `dagtrain bring-up"),
        (("--host", "127.0.0.1:x", "--addresses", "ADDRESSES"), r"--host 127\.0\.0\.1:x: 'x' is no port"),
    ],
    ids=lambda given: str(given)[:12],
)
def test_a_self_test_refuses(words: tuple[object, ...], wanted: str, tmp_path: Path) -> None:
    text = (
        'schema_version = 1\ndigest = "00000001"\nword_bits = 64\nmtu = 1500\nbatch = 1\n[host]\nip = "10.0.0.254"\n'
        '[[device]]\nname = "a-0"\nnumber = 0\nip = "10.0.0.1"\n'
    )
    stream = '[[stream]]\nnumber = {}\ndevice = "a-0"\ncarries = "{}"\ncredits = 64\n'
    tests = [stream.format(at, what) for at, what in enumerate(("order", "report"))]
    trains = [stream.format(at, what) + "element_bits = 8\nelements = 4\n"
              for at, what in enumerate(("image", "label", "result"))]  # fmt: skip
    files = {"ADDRESSES": text + 'values = ["cycles"]\nbursts = 8\n' + "".join(tests), "TRAINS": text + "".join(trains)}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    given = [tmp_path / str(word) if word in files else word for word in words]
    outcome = call("self-test", *given, "--out", tmp_path / "out")
    assert outcome.code == 1
    assert re.search(wanted, outcome.error), outcome.error


@pytest.mark.slow
def test_a_stuck_bit_is_told_with_its_address(bench: Bench) -> None:
    stuck = StuckBit(word=0x123, bit=17, value=True)
    verdict = bench.run(Faults(), stuck, bench.test)
    assert len(verdict.problems) == 2
    for device, problem in zip(("a-0", "a-1"), verdict.problems, strict=True):
        assert problem.startswith(f"{device}: dram.0 has ")
        assert "the first at address 0x123 in element" in problem
        assert problem.endswith("bits 17 differ")
        assert verdict.reports[device]["dropped.crc"] == 0


# MACs with clocks of their own, narrower and wider than a word; a key; several memory channels
MAC = 'mac = "{}"\nmac_clock_mhz = {}\nmac_word_bits = {}\n'
KINDS = {
    "128 bits": (with_dram("0.000008192", 2).replace("link_word_bits = 64", "link_word_bits = 128"), None),
    "512 bits": (with_dram("0.000032768", 2, 512).replace("link_word_bits = 64", "link_word_bits = 512"), None),
    "clocks": (
        CLUSTER.replace('mac = "avalon-st"\n', MAC.format("avalon-st", 312.5, 128)).replace(
            "link_gbit_per_s = 10\n\n[[board]]\nname",
            f"link_gbit_per_s = 10\n{MAC.format('axi-stream', 161.13, 64)}\n[[board]]\nname",
        ),
        None,
    ),
    "key": (CLUSTER, 0x0123456789ABCDEF),
    "all": (
        with_dram("0.000049152", 3, 512)
        .replace("link_word_bits = 64", "link_word_bits = 512")
        .replace('mac = "avalon-st"\n', MAC.format("avalon-st", 402.83, 512)),
        0xFEDCBA9876543210,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cluster_tests_itself(kind: str, tmp_path: Path) -> None:
    text, key = KINDS[kind]
    text += "" if key is None else f'key = "{key:016x}"\n'
    design = design_selftest(parse_cluster(text), library())
    made, wiring = delivered(tmp_path, design)
    assert wiring.form.key == key
    channels = {"128 bits": 2, "512 bits": 2, "all": 3}.get(kind, 1)
    assert [len(device.memories) for device in design.devices] == [channels, channels, 0]
    assert any("net.overflow" in values for values in design.values.values()) == (kind in ("clocks", "all"))
    bench = Bench(design, made, wiring, tmp_path)
    verdict = bench.run(Faults(corrupt=0.05, loss=0.02, duplicate=0.02, reorder=0.02), None, bench.test)
    assert verdict.problems == ()
    for device, told in verdict.reports.items():
        assert sum(value for name, value in told.items() if name.endswith(".words")) == 2 * WORDS
        done = [value for name, value in told.items() if re.fullmatch(r"dram\.\d\.done", name)]
        assert done == [1] * (0 if device == "b" else channels)
    assert sum(told["dropped.crc"] for told in verdict.reports.values()) > 0
    # a bit that is stuck is found in each channel, whatever the cluster is
    verdict = bench.run(Faults(), StuckBit(word=5, bit=9, value=True), bench.test)
    found = [problem.partition(" has ")[0] for problem in verdict.problems]
    assert found == [f"{device}: dram.{channel}" for device in ("a-0", "a-1") for channel in range(channels)]
    # whoever has another key is not heard
    if key is not None:
        # read anew: a copy would keep the frames' format, key and all
        stranger = type(wiring).model_validate({**wiring.model_dump(), "key": f"{key ^ 1:016x}"})
        silent = Bench(design, made, stranger, tmp_path)
        with pytest.raises(DagtrainError, match="a-0"):
            silent.run(Faults(), None, lambda settings: silent.test(replace(settings, answer_seconds=5)))
