"""[network] and [[cable]] of a cluster file: what is read, and every problem of a bad one in one message."""

from __future__ import annotations

import re
from fractions import Fraction
from ipaddress import IPv4Address

import pytest

from hdl.errors import DagtrainError
from hdl.link.ethernet.frame import FrameFormat
from placement.problem.cluster import parse_cluster

HEAD = """
[cluster]
name = "lab"
clock_mhz = 200

[[board]]
name = "arria"
part = "10AX115"
dram_gb_per_s = 38.4
dram_gbyte = 8
link_gbit_per_s = 40

[[device]]
name = "head"
board = "arria"

[[device]]
name = "worker"
board = "arria"
count = 2
"""
ETHERNET = HEAD + '[network]\nkind = "ethernet"\n'


def problems(text: str) -> list[str]:
    with pytest.raises(DagtrainError) as caught:
        parse_cluster(text, "lab.toml")
    lines = str(caught.value).split("\n")
    assert all(line.startswith("lab.toml: ") for line in lines)
    return [line.removeprefix("lab.toml: ") for line in lines]


def held(found: list[str], *patterns: str) -> None:
    assert len(found) == len(patterns), found
    for line, pattern in zip(found, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


def test_a_mac_may_have_clocks_and_a_width_of_its_own() -> None:
    board = parse_cluster(ETHERNET).devices[0].board
    assert (board.mac_clock_hz, board.mac_word_bits) == (0, 0)
    for more, wanted in (
        ("mac_clock_mhz = 312.5\nmac_word_bits = 128", (312_500_000, 128)),
        ("mac_clock_mhz = 156.25", (156_250_000, 256)),
    ):
        cluster = parse_cluster(ETHERNET.replace("_s = 40\n", f"_s = 40\n{more}\n"))
        board = cluster.devices[0].board
        assert (board.mac_clock_hz, board.mac_word_bits) == wanted
        # each frame is stored once more either way, four times in a round trip
        plain = parse_cluster(ETHERNET)
        assert cluster.network_cycles - plain.network_cycles == 4 * 48


def test_clocks_and_widths_of_macs_that_do_not_suit_are_told_at_once() -> None:
    board = HEAD[HEAD.index("[[board]]") : HEAD.index("[[device]]")]
    more = [
        "mac_word_bits = 64", "mac_clock_mhz = 700", "mac_clock_mhz = 66.6\nmac_word_bits = 512",
        "mac_clock_mhz = 250\nmac_word_bits = 128",
    ]  # fmt: skip
    text = "".join(board.replace("arria", f"b{k}") + f"{one}\n" for k, one in enumerate(more))
    held(
        problems(ETHERNET + text),
        r"board\[1\]\.mac_word_bits = 64 without mac_clock_mhz: at the board's own clock a beat is a word; add mac_.*",
        r"board\[2\]\.mac_clock_mhz = 700: the board's clock, 200 MHz, is more than 3 times as fast or as slow;"
        r" write at least 66\.6667 and at most 600",
        r"board\[3\]\.mac_clock_mhz = 66\.6: the board's clock, 200 MHz, is more than 3 times as fast .*",
        r"board\[3\]\.mac_clock_mhz = 66\.6: beats of 512 bits carry 34\.0992 Gbit/s, less than .*",
        r"board\[4\]\.mac_clock_mhz = 250: beats of 128 bits carry 32 Gbit/s, less than link_gbit_per_s = 40; .*",
    )
    held(
        problems(ETHERNET.replace("_s = 40\n", '_s = 40\nmac_word_bits = 96\nmac_clock_mhz = "x"\n')),
        r"board\[0\]\.mac_clock_mhz = 'x': .*; write the clock of the MAC in MHz, 0\.001 to 2000",
        r"board\[0\]\.mac_word_bits = 96: .*; write bits a beat of the MAC: 64, 128, 256 or 512",
    )
    held(
        problems(HEAD.replace("_s = 40\n", "_s = 40\nmac_clock_mhz = 300\n")),
        r"board\[0\]\.mac_clock_mhz with network\.kind = 'words': only Ethernet has that; .*",
    )


def test_a_file_that_says_nothing_has_words_at_the_cable_s_rate() -> None:
    cluster = parse_cluster(HEAD)
    assert cluster.network.frames is None
    assert cluster.network.addresses == ()
    assert cluster.network.efficiency == 1
    assert parse_cluster(HEAD + '[network]\nkind = "words"\n') == cluster


def test_ethernet_has_defaults_for_everything() -> None:
    network = parse_cluster(ETHERNET).network
    assert network.frames == FrameFormat(word_bits=256, mtu=1500)
    assert network.efficiency == Fraction(1408, 1532)
    assert network.rtt_us == 10
    assert network.host_cycles(200_000_000) == (500_000, 720_000_000_000)
    assert [address.number for address in network.addresses] == [0, 1, 2]
    assert [str(IPv4Address(address.ip)) for address in network.addresses] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert [hex(address.mac) for address in network.addresses] == ["0x20000000000", "0x20000000001", "0x20000000002"]
    assert str(IPv4Address(network.host_ip or 0)) == "10.0.0.254"
    assert network.host_mac is None


def test_everything_can_be_said() -> None:
    text = ETHERNET + 'mtu = 9000\nrtt_us = 2.5\nip = "192.168.4.0/28"\nkey = "00112233445566ff"\ntopology = "switch"\n'
    text += 'host_rtt_us = 0.3\nhost_silence_s = 0.5\nhost_ip = "192.168.4.9"\nhost_mac = "A4:00:00:00:00:09"\n'
    text = text.replace('name = "head"', 'name = "head"\nip = "192.168.4.14"\nmac = "02:AA:00:00:00:01"')
    cluster = parse_cluster(text.replace("link_gbit", 'mac = "avalon-st"\nports = 1\nlink_gbit'))
    network = cluster.network
    assert network.frames == FrameFormat(word_bits=256, mtu=9000, key=0x00112233445566FF)
    assert network.efficiency == FrameFormat(word_bits=256, mtu=9000, key=1).efficiency() < Fraction(979, 1000)
    assert network.rtt_us == Fraction(5, 2)
    assert network.host_cycles(100_000_000) == (30, 50_000_000)
    assert [hex(address.mac) for address in network.addresses] == ["0x2aa00000001", "0x20000000001", "0x20000000002"]
    assert [address.ip & 255 for address in network.addresses] == [14, 2, 3]
    assert (network.host_ip or 0) & 255 == 9
    assert network.host_mac == 0xA40000000009
    assert {device.board.mac for device in cluster.devices} == {"avalon-st"}


def test_every_wrong_value_is_told_at_once() -> None:
    text = HEAD + (
        '[network]\nkind = "infiniband"\nmtu = 100\nrtt_us = 0\ntopology = "torus"\nip = "10.0.0.1/24"\n'
        'host_silence_s = 0\nhost_ip = "10.0.0"\nhost_mac = "02:00"\nkey = "123"\nvlan = 3\n[[cable]]\na = "head:0"\n'
    )
    text = text.replace('name = "head"', 'name = "head"\nip = 3\nmac = "02-00-00-00-00-01"')
    text = text.replace("link_gbit", 'mac = "cmac"\nports = 0\nlink_gbit')
    held(
        sorted(problems(text)),
        r"board\[0\]\.mac = 'cmac': input should be 'axi-stream' or 'avalon-st'; write the ports of the MAC .*",
        r"board\[0\]\.ports = 0: input should be greater .*; write a whole number of network ports, 1 to 16",
        r'cable\[0\]\.b is missing; add an end as "device:port"',
        r"device\[0\]\.ip = 3: input should be a valid string; write an IPv4 address .*",
        r"device\[0\]\.mac = '02-00-00-00-00-01': is no MAC address; write a MAC address .*",
        r"network\.host_ip = '10\.0\.0': is no IPv4 address; write .*",
        r"network\.host_mac = '02:00': is no MAC address; write .*",
        r"network\.host_silence_s = 0: input should be greater than 0; write how long the host may .*",
        r"network\.ip = '10\.0\.0\.1/24': is no IPv4 network \(10\.0\.0\.1/24 has host bits set\); write .*",
        r"network\.key = '123': is no number of 16 hexadecimal digits; write 16 hexadecimal digits in quotation marks",
        r"network\.kind = 'infiniband': input should be 'words' or 'ethernet'; write \"words\" or \"ethernet\"",
        r'network\.mtu = 100: is not in 576 to 9216; write bytes of the greatest IP packet, 576 to 9216, or "auto"',
        r"network\.rtt_us = 0: input should be greater than 0; write the round trip in µs, above 0 and at most 10 000",
        r"network\.topology = 'torus': input should be .*; write \"switch\", \"cables\", .*",
        r"network\.vlan = 3: unknown key; remove it, or correct it to one of kind, mtu, rtt_us, host_rtt_us, .*",
    )


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("mtu = true", r"network\.mtu = True: is neither a whole number nor \"auto\"; .*"),
        ('mtu = "big"', r"network\.mtu = 'big': is neither a whole number nor \"auto\"; .*"),
        ("mtu = 9217", r"network\.mtu = 9217: is not in 576 to 9216; .*"),
        ('rtt_us = "10"', r"network\.rtt_us = '10': is not a number; .*"),
        ("rtt_us = 10001", r"network\.rtt_us = 10001: input should be less .*"),
        ("host_rtt_us = 1000001", r"network\.host_rtt_us = 1000001: input should be less .*"),
        ("key = 12", r"network\.key = 12: input should be a valid string; .*"),
        ('ip = "10.0.0.0/31"', r"network\.ip = '10\.0\.0\.0/31': 3 devices and the host do not fit; .*"),
        ('ip = "10.0.0.0/30"', r"network\.ip = '10\.0\.0\.0/30': 3 devices and the host do not fit; .*"),
        ('host_ip = "10.0.1.1"', r"network\.host_ip = '10\.0\.1\.1': is no address of a device in 10\.0\.0\.0/24; .*"),
        ('host_ip = "10.0.0.255"', r"network\.host_ip = '10\.0\.0\.255': is no address of a device in .*"),
        (
            'host_ip = "10.0.0.2"',
            r"address of 'worker-0' and network\.host_ip = '10\.0\.0\.2': 2 times the same IP address; give each .*",
        ),
        (
            'host_mac = "01:00:5e:00:00:01"',
            r"network\.host_mac = '01:00:5e:00:00:01': a multicast address, or none; .*",
        ),
        ('host_mac = "ff:ff:ff:ff:ff:ff"', r"network\.host_mac = .*: a multicast address, or none; .*"),
        ('host_mac = "00:00:00:00:00:00"', r"network\.host_mac = .*: a multicast address, or none; .*"),
        (
            'host_mac = "02:00:00:00:00:02"',
            r"MAC address of 'worker-1' and network\.host_mac = '02:00:00:00:00:02': 2 times the same MAC address; .*",
        ),
        ('topology = "ring"', r"network\.topology = 'ring' with network\.kind = 'ethernet': is not built yet; .*"),
        ("shape = [1, 3]", r"network\.shape = \[1, 3\] with network\.topology = 'switch': only a mesh has that; .*"),
        ("shape = [0, 3]", r"network\.shape\[0\] = 0: input should be greater .*; write rows and columns of a mesh .*"),
        ("", r"cable\[0\] with network\.topology = 'switch': all devices hang on the switch; .*"),
    ],
)
def test_one_wrong_value_is_told_with_its_cure(line: str, pattern: str) -> None:
    text = ETHERNET + line + "\n"
    if not line:
        text += '[[cable]]\na = "head:0"\nb = "worker-0:0"\n'
    held(problems(text), pattern)


def test_ethernet_s_keys_are_of_no_use_without_it() -> None:
    text = HEAD + "[network]\nmtu = 1500\n"
    text = text.replace('name = "head"', 'name = "head"\nip = "10.0.0.5"').replace("link_gbit", "ports = 1\nlink_gbit")
    held(
        problems(text),
        r"network\.mtu with network\.kind = 'words': only Ethernet has that; write network\.kind = \"ethernet\", .*",
        r"device\[0\]\.ip with .*",
    )


def test_devices_of_one_table_have_no_address_in_common() -> None:
    text = ETHERNET.replace("count = 2", 'count = 2\nmac = "02:00:00:00:00:09"\nip = "10.0.0.9"')
    found = problems(text)
    assert found[0] == "device[1].ip = '10.0.0.9' with count = 2; give each device its own table"
    assert found[1].startswith("device[1].mac = '02:00:00:00:00:09' with count = 2; ")


def test_a_multicast_address_and_a_doubled_one_are_refused() -> None:
    text = ETHERNET.replace('name = "head"', 'name = "head"\nmac = "03:00:00:00:00:01"\nip = "10.0.0.3"')
    held(
        problems(text),
        r"device\[0\]\.mac = '03:00:00:00:00:01': a multicast address, or none; write a device's own address",
        r"device\[0\]\.ip and address of 'worker-1' = '10\.0\.0\.3': 2 times the same IP address; give each its own",
    )


CABLE = '[[cable]]\na = "{}"\nb = "{}"\n'
PORTS = HEAD.replace("link_gbit", "ports = 2\nlink_gbit")


def test_a_device_has_one_port_to_a_switch() -> None:
    held(
        problems(PORTS), r"board\[0\]\.ports = 2 with network\.topology = 'switch': a device has one port .*; write 1.*"
    )


def test_cables_are_held_against_devices_and_ports() -> None:
    text = HEAD + '[network]\ntopology = "cables"\n'
    text += CABLE.format("head:0", "worker-0:0") + CABLE.format("head:0", "head:1") + CABLE.format("x:0", "worker-1")
    held(
        problems(text),
        r"cable\[1\]\.b = 'head:1': no such port; ports of head are 0 to 0",
        r"cable\[1\]: from 'head:0' to 'head:1'; name two devices",
        r"cable\[2\]\.a = 'x:0': no such port; ends are device:port; devices are head, worker-0, worker-1",
        r"cable\[2\]\.b = 'worker-1': no such port; .*",
        r"cable: 'head:0' has 2 cables; a port takes one",
    )


def test_cables_must_lead_everywhere_once_and_no_faster_than_ports() -> None:
    text = PORTS + '[network]\ntopology = "cables"\n'
    text += CABLE.format("head:0", "worker-0:0") + CABLE.format("worker-0:1", "head:1") + "gbit_per_s = 41\n"
    held(
        problems(text),
        r"cable: 'head' and 'worker-0' are joined more than once; words between them would take one alone: .*",
        r"cable: no cables lead to worker-1; every device needs a way to 'head': .*",
        r"cable\[1\]\.gbit_per_s = 41: a port of 'worker-0:1' has 40; write at most 40",
        r"cable\[1\]\.gbit_per_s = 41: a port of 'head:1' has 40; write at most 40",
    )


@pytest.mark.parametrize(
    ("lines", "pattern"),
    [
        ('topology = "mesh"', r"network\.shape is missing: a mesh has rows and columns; write it as \[2, 4\]"),
        ('topology = "mesh"\nshape = [2, 2]', r"network\.shape = \[2, 2\]: 4 devices, and the file has 3; .*"),
        ('topology = "chain"\nshape = [1, 3]', r"network\.shape = \[1, 3\] with network\.topology = 'chain': only .*"),
        (
            'topology = "chain"\n' + CABLE.format("head:0", "worker-0:0"),
            r"cable\[0\] with network\.topology = 'chain': .*",
        ),
        ('topology = "cables"', r"cable: no cables lead to worker-0, worker-1; .*"),
    ],
)
def test_a_topology_that_does_not_suit_its_devices_is_told(lines: str, pattern: str) -> None:
    held(problems(f"{PORTS}[network]\n{lines}\n"), pattern)


def test_boards_need_a_port_for_each_cable_of_their_devices() -> None:
    held(
        problems(HEAD + '[network]\ntopology = "chain"\n'),
        r"board\[0\]\.ports = 1: its devices need 2 for their cables; write 2 if the board has them",
    )


def test_two_devices_make_no_ring() -> None:
    text = PORTS.replace("count = 2", "count = 1")
    held(
        problems(text + '[network]\ntopology = "ring"\n'), r"network\.topology = 'ring' with 2 devices; a ring has 3 .*"
    )


def test_a_topology_becomes_cables_and_ways() -> None:
    chain, ring, mesh = (
        parse_cluster(f'{PORTS}[network]\ntopology = "{name}"\n{more}').routing
        for name, more in (("chain", ""), ("ring", ""), ("mesh", "shape = [3, 1]\n"))
    )
    assert chain is not None
    assert ring is not None
    assert mesh is not None
    assert [(cable.a, cable.b, cable.bits_per_s) for cable in chain.cables] == [
        ("head", "worker-0", 40 * 10**9),
        ("worker-0", "worker-1", 40 * 10**9),
    ]
    assert (chain.distance[0][2], ring.distance[0][2], mesh.distance[0][2]) == (2, 1, 2)
    text = PORTS + '[network]\ntopology = "cables"\n' + CABLE.format("worker-1:1", "head:0") + "gbit_per_s = 2.5\n"
    routing = parse_cluster(text + CABLE.format("head:1", "worker-0:0")).routing
    assert routing is not None
    assert [cable.bits_per_s for cable in routing.cables] == [25 * 10**8, 40 * 10**9]
    assert routing.through(1, 2) == (0,)
    assert parse_cluster(HEAD).routing is None


@pytest.mark.parametrize(
    ("word", "pattern"),
    [
        (
            "link_word_bits = 1024",
            r"cluster\.link_word_bits = 1024 with network\.kind = 'ethernet'; write 64, 128, 256 or .*",
        ),
        ("link_word_bits = 248", r"cluster\.link_word_bits = 248 with network\.kind = 'ethernet'; write 64, 128, .*"),
    ],
)
def test_frames_have_words_of_few_widths(word: str, pattern: str) -> None:
    held(problems(ETHERNET.replace("= 200", f"= 200\n{word}")), pattern)


def test_a_link_too_fast_for_a_frame_s_word_is_refused() -> None:
    held(
        problems(ETHERNET.replace("= 40", "= 200")),
        r"board\.link_gbit_per_s: the fastest needs words of 1024 bits; frames have 64, 128, 256 or 512; write .*",
    )
