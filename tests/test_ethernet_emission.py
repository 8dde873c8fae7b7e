"""Devices with Ethernet ports as `dagtrain emit` leaves them: every stream has its way, constants are those of the
cluster file, and what does not fit together is found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagtrain.emission.delivered import load_delivered
from dagtrain.emission.design import ClusterDesign
from dagtrain.emission.ethernet import Ethernet
from dagtrain.emission.links import unit_module
from dagtrain.emission.manifest import MANIFEST, DeliveryError
from dagtrain.emission.modules import ModuleLibrary
from dagtrain.emission.project import lint_devices, write_cluster
from dagtrain.emission.stored import DramUse
from dagtrain.flow.emit_step import EmitOptions, host_access
from dagtrain.host.designed import designed_wiring
from dagtrain.host.wiring import ADDRESSES, read_wiring, wiring_text
from hdl.cache import cache_folder
from hdl.convert.netlist import Module
from hdl.convert.tools import lint_verilog
from hdl.errors import DagtrainError
from hdl.link.ethernet.adapter import AVALON, AXI_STREAM, MacAdapter
from hdl.link.ethernet.frame import HOST, Address, FrameFormat
from hdl.link.ethernet.packer import Packer
from hdl.link.ethernet.port import EthernetPort
from hdl.link.format import LinkFormat
from placement.problem.cluster import parse_cluster
from tests.cosim_support import DEVICES, deliver, tiny_design, tiny_net
from tests.flow_support import with_few_dsp

LIBRARY = ModuleLibrary(cache_folder() / "modules")
DIGEST = 0x0BADCAFE
# numbers that are not the positions, so that neither is taken for the other
NUMBERS = {"alpha": 5, "beta": 2}
END = Address(number=HOST, mac=0x0200_0000_FFFF, ip=0x0A0000FE)


def ethernet(host: bool = True, mtu: int = 576) -> Ethernet:
    """Of two devices with MACs of both kinds."""
    return Ethernet(
        frames=FrameFormat(word_bits=64, mtu=mtu),
        addresses={name: Address(number=k, mac=0x0200_0000_0100 + k, ip=0x0A000001 + k) for name, k in NUMBERS.items()},
        host=END if host else None,
        macs={"alpha": AXI_STREAM, "beta": AVALON},
        digest=DIGEST,
        rtt_cycles=1000,
        host_rtt_cycles=1000,
        host_silence_cycles=10**9,
    )


def designed(host: bool = True, *, state_access: bool = True) -> ClusterDesign:
    return tiny_design(LIBRARY, net=tiny_net(), dram=DramUse(), ethernet=ethernet(host), state_access=state_access)


@pytest.fixture(scope="module")
def design() -> ClusterDesign:
    """The tiny cluster, whose state is loaded over the network."""
    return designed()


@pytest.fixture(scope="module")
def written(design: ClusterDesign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its files."""
    folder = tmp_path_factory.mktemp("ethernet")
    deliver(design, LIBRARY, folder)
    return folder


@pytest.fixture
def emit(written: Path, tmp_path: Path) -> Path:
    """A copy of them that a test may change."""
    shutil.copytree(written, tmp_path / "emit")
    return tmp_path / "emit"


def instances(top: Module, kind: str) -> list[Any]:
    return [instance for instance in top.instances if instance.module.startswith(f"{kind}_")]


def drivers(top: Module) -> Mapping[str, Any]:
    """Net of a stream → the instance that writes its words: a sender, its stage, a receiver's credits, or a merge."""
    found: dict[str, Any] = {}
    kinds = dict.fromkeys(("link_egress", "link_merge", "link_burst_stage", "credit_word"), "y")
    kinds["link_ingress"] = "credits"
    for kind, port in kinds.items():
        found |= {instance.connections[f"{port}_valid"]: instance for instance in instances(top, kind)}
    return found


def sources(top: Module, net: str) -> set[tuple[str, int]]:
    """(what, stream number) of all that reaches a net through stages and merges."""
    instance = drivers(top).get(net)
    if instance is None:
        return set()
    if not instance.module.startswith(("link_egress_", "link_ingress_")):
        ways = ("x", *(f"xs{side}" for side in range(4)))
        wires = [instance.connections.get(f"{way}_valid") for way in ways]
        return {one for wire in wires if wire for one in sources(top, wire)}
    what = "words" if instance.module.startswith("link_egress_") else "credits"
    return {(what, number_of(instance))}


def number_of(end: Any) -> int:
    """The stream of an end."""
    return int(end.connections["number"].rpartition("d")[2])


def test_words_and_credits_go_to_the_peer_whose_stream_they_are_of(design: ClusterDesign) -> None:
    for device in design.devices:
        (port,) = instances(device.top, "ethernet_port")
        assert device.port is not None
        ends = {c.number: (c.source_device, c.target_device) for c in design.crossings}
        numbers = [peer.number for peer in device.port.peers]
        assert numbers == sorted(numbers)
        assert numbers[-1] == HOST
        names = {NUMBERS[name]: name for name in NUMBERS}
        for index, peer in enumerate(numbers):
            wanted = set()
            for number, (source, target) in ends.items():
                if (source, target) == (device.name, names.get(peer)):
                    wanted.add(("words", number))
                elif (target, source) == (device.name, names.get(peer)):
                    wanted.add(("credits", number))
            if peer == HOST:
                wanted = {
                    ("credits" if stream.carries in ("image", "label", "load") else "words", stream.number)
                    for stream in design.host_streams
                    if stream.device == device.name
                }
            assert wanted
            assert sources(device.top, port.connections[f"xs{index}_valid"]) == wanted


def test_each_stream_and_each_credit_is_taken_out_of_what_arrives_once(design: ClusterDesign) -> None:
    for device in design.devices:
        bits, taken = device.form.width("stream"), []
        for split in instances(device.top, "link_split"):
            numbers, credits = (int(split.connections[port].rpartition("d")[2]) for port in ("numbers", "credits"))
            taps = sum(port.startswith("ys") and port.endswith("_valid") for port in split.connections)
            taken += [(numbers >> bits * tap & (1 << bits) - 1, credits >> tap & 1) for tap in range(taps)]
        into = [(number_of(one), 0) for one in instances(device.top, "link_ingress")]
        back = [(number_of(one), 1) for one in instances(device.top, "link_egress")]
        assert taken == into + back
        assert len(set(taken)) == len(taken)


def test_the_host_s_streams_are_in_the_port_of_their_device_and_no_ports_of_the_top(design: ClusterDesign) -> None:
    assert [(s.device, s.carries) for s in design.host_streams] == [
        ("alpha", "image"), ("alpha", "label"), ("alpha", "result"),
        ("alpha", "load"), ("alpha", "dump"), ("beta", "load"), ("beta", "dump"),
    ]  # fmt: skip
    numbers = [c.number for c in design.crossings] + [s.number for s in design.host_streams]
    assert numbers == list(range(len(numbers)))
    for device in design.devices:
        assert not device.host_ports
        names = [port.name for port in device.top.ports]
        assert [name for name in names if not re.match(r"(clk|rst|mac_[rt]x_\w+|net_\w+)$", name)] == []


def test_the_host_s_reset_is_that_of_all_but_the_port(design: ClusterDesign) -> None:
    for device in design.devices:
        assert ("anew", "rst | net_reset") in device.top.assigns
        resets = {one.name: one.connections["rst"] for one in device.top.instances if "rst" in one.connections}
        assert {name for name, reset in resets.items() if reset == "rst"} == {"ethernet", "mac"}
        assert {*resets.values()} == {"rst", "anew"}


def test_with_host_ports_no_stream_of_the_port_is_the_host_s() -> None:
    found = designed(host=False)
    assert found.host_streams == ()
    for device in found.devices:
        assert device.port is not None
        assert HOST not in [peer.number for peer in device.port.peers]
    names = [port.name for port in found.devices[0].top.ports]
    assert {"host_input1_valid", "state_load_valid", "state_dump_valid"} <= {*names}, names


def test_constants_of_a_top_are_the_addresses(written: Path) -> None:
    # the layout is told here anew, from docs/network.md
    text = (written / "beta" / "rtl" / "beta.v").read_text()
    found = {name: int(value, 16) for name, value in re.findall(r"localparam \S+ (\w+) = \d+'h(\w+);", text)}
    assert found["OWN"] == 0x0200_0000_0102 << 48 | 0x0A000003 << 16 | 2
    peers = [found["OTHERS"] >> 112 * index & (1 << 112) - 1 for index in range(2)]
    assert [peer >> 16 for peer in peers] == [
        0x0200_0000_0105 << 48 | 0x0A000006 << 16 | 5,
        0x0200_0000_FFFF << 48 | 0x0A0000FE << 16 | 0xFFFF,
    ]
    for peer, ip in zip(peers, (0x0A000006, 0x0A0000FE), strict=True):
        # sum of the header's 16-bit words but for the length: version, don't fragment, lifetime and UDP, addresses
        total = 0x4500 + 0x4000 + 0x4011 + 0x0A00 + 0x0003 + (ip >> 16) + (ip & 0xFFFF)
        assert peer & 0xFFFF == (total & 0xFFFF) + (total >> 16)
    assert found["DIGEST"] == DIGEST


def swap_peers(text: str) -> str:
    (others,) = re.findall(r"OTHERS = 224'h(\w{56});", text)
    return text.replace(others, others[28:] + others[:28])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda text: text.replace(f"{DIGEST:08x}", f"{DIGEST ^ 1:08x}"), "DIGEST"),
        (swap_peers, "OTHERS"),
        (lambda text: re.sub(r"(OWN = 96'h\w+)\w;", r"\g<1>f;", text), "OWN"),
    ],
    ids=["digest", "order of peers", "number"],
)
def test_a_wrong_constant_is_found(emit: Path, change: Callable[[str], str], named: str) -> None:
    path = emit / "beta" / "rtl" / "beta.v"
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    with pytest.raises(DeliveryError, match=rf"{named} of .*beta\.v are not what manifest\.json says"):
        load_delivered([emit / name for name in DEVICES[:2]])


def change_manifest(emit: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Of beta, and the constants of its top with it."""
    path = emit / "beta" / MANIFEST
    document = json.loads(path.read_text())
    change(document["ethernet"])
    path.write_text(json.dumps(document))
    top = emit / "beta" / "rtl" / "beta.v"
    top.write_text(re.sub(r"^localparam .*\n", "", top.read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.update(digest="00000000"), "differ in digest"),
        (lambda record: record["own"].update(number=5), "give one number to two devices"),
        (lambda record: record["own"].update(ip="10.0.0.77"), "the manifest of alpha has other addresses of devices 2"),
        (lambda record: record["peers"][0].update(mac="02:00:00:00:00:00"), "of beta has other addresses of devices 5"),
    ],
    ids=["plan", "number", "address", "peer"],
)
def test_devices_that_would_not_hear_one_another_are_found(
    emit: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    change_manifest(emit, change)
    with pytest.raises(DeliveryError, match=said):
        load_delivered([emit / name for name in DEVICES[:2]])


def test_the_verilog_is_clean_for_both_kinds_of_mac(design: ClusterDesign, written: Path) -> None:
    tops = {written / device.name: device.top.name for device in design.devices}
    lint_devices(tops, cache_folder() / "lint")
    names = {device.name: {port.name for port in device.top.ports} for device in design.devices}
    assert {"mac_tx_tkeep", "mac_rx_tuser"} <= names["alpha"]
    assert {"mac_tx_empty", "mac_rx_error"} <= names["beta"]
    assert "mac_rx_tready" not in names["alpha"]


@pytest.mark.parametrize(("word_bits", "key"), [(256, None), (512, None), (64, 0)])
def test_ports_of_all_kinds_are_clean(word_bits: int, key: int | None, tmp_path: Path) -> None:
    # one beat holds all headers, or two
    frames = FrameFormat(word_bits=word_bits, mtu=1500, key=key)
    form = LinkFormat(word_bits=word_bits, streams=9, devices=1)
    port = EthernetPort(packer=Packer(frames=frames, form=form, regions=(2 * frames.payload_beats,)))
    units = {"ethernet_port": port, AXI_STREAM: MacAdapter(sink=port.sink, kind=AXI_STREAM),
             AVALON: MacAdapter(sink=port.sink, kind=AVALON)}  # fmt: skip
    for kind, unit in units.items():
        module = unit_module(LIBRARY, kind.replace("-", "_"), unit)
        path = tmp_path / f"{module.name}.v"
        path.write_text(module.verilog.text)
        lint_verilog([path], module.name)


def test_the_host_is_told_what_devices_have(design: ClusterDesign, written: Path) -> None:
    wiring = designed_wiring(design)
    assert read_wiring(written / ADDRESSES) == wiring
    records = {name: json.loads((written / name / MANIFEST).read_text()) for name in NUMBERS}
    assert [device.name for device in wiring.device] == [*records]
    for device in wiring.device:
        port, state = records[device.name]["ethernet"], records[device.name]["state"]
        assert (device.number, device.mac, device.ip) == tuple(port["own"].values())
        assert [{"node": link.node, "words": link.words} for link in device.links] == state["links"]
        streams = [[s.number, s.carries, s.element_bits, s.elements, s.credits] for s in wiring.stream
                   if s.device == device.name]  # fmt: skip
        names = ("stream_number", "carries", "element_bits", "elements", "words")
        assert streams == [[stream[name] for name in names] for stream in port["host_streams"]]
        assert (wiring.digest, wiring.mtu, wiring.window) == (port["digest"], port["mtu"], port["window"])
        assert (wiring.batch, wiring.rounds) == (state["batch"], state["rounds"]) == (2, 2)
    assert (wiring.host.ip, wiring.host.port) == ("10.0.0.254", 17492)


def test_another_file_of_addresses_is_found(design: ClusterDesign, tmp_path: Path) -> None:
    file = tmp_path / ADDRESSES
    file.parent.mkdir()
    file.write_text(wiring_text(designed_wiring(design)))
    parts = dict.fromkeys(NUMBERS, "AGFB014")
    write_cluster(tmp_path, design, LIBRARY, parts, 200.0, [file])
    load_delivered([tmp_path / name for name in NUMBERS])
    file.write_text(file.read_text().replace("10.0.0.254", "10.0.0.253"))
    with pytest.raises(DeliveryError, match=r"addresses\.toml is not the file that .*alpha/manifest\.json tells of"):
        load_delivered([tmp_path / name for name in NUMBERS])
    file.unlink()
    with pytest.raises(DeliveryError, match=r"addresses\.toml is missing"):
        load_delivered([tmp_path / name for name in NUMBERS])


def test_a_key_is_a_constant_of_the_top_and_not_of_the_circuit() -> None:
    tops = []
    for key in (0x0123456789ABCDEF, 0xFEDCBA9876543210):
        told = replace(ethernet(), frames=FrameFormat(word_bits=64, mtu=576, key=key))
        tops.append(tiny_design(LIBRARY, net=tiny_net(), dram=DramUse(), ethernet=told).devices[1].top)
        assert tops[-1].constants["KEY"] == (64, key)
    ports = [instances(top, "ethernet_port")[0] for top in tops]
    assert ports[0] == ports[1]
    assert ports[0].connections["key"] == "KEY"


def test_timers_and_regions_follow_the_round_trip() -> None:
    near = ethernet()
    far = replace(near, rtt_cycles=20_000, host_rtt_cycles=250_000, host_silence_cycles=10**7 + 1)
    assert near.timing.timer_cycles == 4000
    assert far.timing.timer_cycles == 80_000
    # the host's program may stand still for longer than devices
    assert (near.host_timing.timer_cycles, near.host_timing.retries) == (4000, 250_000)
    assert far.host_timing == replace(far.timing, timer_cycles=1_000_000, retries=11)
    # a frame of 576 bytes takes 75 beats with its headers and gap
    assert near.timing.window == 16
    assert far.timing.window == 256
    assert replace(far, frames=FrameFormat(word_bits=64, mtu=9000)).timing.window == 32


ETHERNET = with_few_dsp(0.003).replace("s = 100\n", "s = 10\n") + '[network]\nkind = "ethernet"\n'


def test_the_host_needs_an_address_or_ports() -> None:
    cluster = parse_cluster(ETHERNET)
    with pytest.raises(DagtrainError, match=r"^network\.host_mac is missing: .*; write that of .* --host ports$"):
        Ethernet.of(cluster, DIGEST)
    assert Ethernet.of(cluster, DIGEST, host=False).host is None
    found = Ethernet.of(parse_cluster(f'{ETHERNET}host_mac = "02:00:00:00:FF:FF"\n'), DIGEST)
    assert found.host == Address(number=HOST, mac=0x02_00_00_00_FF_FF, ip=0x0A0000FE)
    assert [found.addresses[name].ip for name in ("head", "worker")] == [0x0A000001, 0x0A000002]


def test_only_ethernet_has_a_host_on_it() -> None:
    framed, words = parse_cluster(ETHERNET), parse_cluster(with_few_dsp(0.003))
    assert [host_access(chosen, framed) for chosen in (None, "ports", "network")] == ["network", "ports", "network"]
    assert [host_access(chosen, words) for chosen in (None, "ports")] == ["ports", "ports"]
    with pytest.raises(DagtrainError, match=r"^--host network: the cluster file says network\.kind = 'words', which"):
        host_access("network", words)
    with pytest.raises(DagtrainError, match=r"^--host wires is unknown; choose one of ports, network$"):
        EmitOptions(host="wires")
