"""What planning charges for ports of Ethernet is what the units of a port cost, read off their circuits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from dagtrain.emission.ethernet import Ethernet, device_port
from dagtrain.emission.links import crossings_of, link_format, port_rest
from dagtrain.graph.ir import Role
from dagtrain.passes.fold import fold_graph
from dagtrain.passes.place import place
from dagtrain.planning.frame_ports import FramePorts, elaborated_peers, host_bits, port_units
from dagtrain.planning.link_costs import many_streams, network_links
from dagtrain.planning.prices import Prices
from dagtrain.progress import Silent
from hdl.costs.estimate import Builder, Circuit, Estimator, elaborated_contents
from hdl.costs.resources import Resources, Usage, fit
from hdl.link.ethernet.adapter import MacAdapter
from hdl.link.ethernet.clocked import MAC_CLOCKS, ClockedMac, mac_unit
from hdl.link.ethernet.packer import Packer
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.port import EthernetPort
from hdl.link.format import LinkFormat
from hdl.tensor import Kind
from hdl.unit import Unit
from placement.problem.cluster import Cluster, parse_cluster
from tests.suites import quick
from tests.test_relays import residual

CLUSTER = """
[cluster]
name = "three"
clock_mhz = 200
link_word_bits = 256

[[board]]
name = "arria"
part = "10AX115"
dram_gb_per_s = 38.4
dram_gbyte = 8
link_gbit_per_s = 40

[[device]]
name = "f"
board = "arria"
count = 3

[network]
kind = "ethernet"
"""


@cache
def cluster(mtu: int = 1500, more: str = "") -> Cluster:
    return parse_cluster(f"{CLUSTER}mtu = {mtu}\n{more}")


def cost(unit: Unit, on: Cluster) -> Usage:
    return fit(elaborated_contents(unit.streams, unit.build), on.devices[0].board.part)


def beside(form: LinkFormat, on: Cluster) -> int:
    """ALMs of the merges that a peer's trees have beyond the shares of streams."""
    return sum(cost(unit, on).alm for unit in port_rest(form, framed=True))


@pytest.mark.parametrize("key", quick(1, [True, False]), ids=["keyed", "no key"])
def test_a_device_s_table_is_of_ports_elaborated_for_its_peers(key: bool) -> None:
    """The host and 0, 1 or 2 other devices, and one more."""
    found = cluster(more='key = "00112233445566ff"\n') if key else cluster()
    form = many_streams(3, 256)
    table = FramePorts(found, form, Estimator(":memory:"), {"f-0": (Fraction(512), Fraction(256))}).of(found.devices[0])
    frames = found.network.frames
    assert frames is not None
    # words a cycle that 40 Gbit/s carry, with descriptors; half of 10 µs, 64 cycles and two frames, twice
    beats = Fraction(40, 256 * 200) * 10**3 * frames.efficiency() * frames.full_beats() / frames.full_words()
    round_trip = 2 * (1000 + 64 + 2 * -(-frames.frame_bytes(frames.payload_beats) // 32))
    whole = math.ceil(beats * round_trip)
    built = type(frames)(word_bits=256, mtu=1500, key=0 if key else None)
    for others in range(4):
        least = 2 * frames.payload_beats
        # a word more for each whose share is rounded up, in steps of a block's widest shape
        words = -(-(whole + others + others * least) // 512) * 512
        regions = (words - others * least, *[least] * others)
        unit = EthernetPort(
            packer=Packer(frames=built, form=form, regions=regions),
            timing=(timing := Timing(window=64, timer_cycles=4 * round_trip, ack_cycles=-(-round_trip // 5))),
            # 2.5 ms, and an hour
            host_timing=replace(timing, timer_cycles=2_000_000, retries=360_000),
        )
        usage, mac = cost(unit, found), cost(MacAdapter(sink=unit.sink, kind="axi-stream"), found)
        rest = (others + 1) * beside(form, found)
        assert (table.m20k[others], table.alm[others]) == (usage.m20k, usage.alm + mac.alm + rest)
        assert table.replay_words[others] == words
    assert list(table.alm) == sorted(set(table.alm))
    assert (table.host_in_bits_per_frame, table.host_out_bits_per_frame) == (512, 256)


class NoPorts(Estimator):
    """To whom ports are nothing."""

    def block(self, configuration: str, widths: Mapping[str, int], build: Builder) -> Resources:
        """Contents of one."""
        return Resources() if configuration.startswith("EthernetPort") else super().block(configuration, widths, build)


def test_a_mac_with_clocks_of_its_own_is_charged_with_its_crossings() -> None:
    own = CLUSTER.replace("_s = 40\n", "_s = 40\nmac_clock_mhz = 312.5\nmac_word_bits = 128\nmac = 'avalon-st'\n")
    found = parse_cluster(own)
    port, mac = port_units(found, found.devices[0].board, many_streams(3, 256), (90,))
    assert isinstance(port, EthernetPort)
    assert mac == ClockedMac(sink=port.sink, kind="avalon-st", mac_bits=128)
    usage, adapter = cost(mac, found), cost(MacAdapter(sink=port.sink, kind="avalon-st"), found)
    # a memory of 512 words of 257 bits, and one of 263
    assert usage.m20k == 14
    assert usage.alm > adapter.alm
    table = FramePorts(found, many_streams(3, 256), NoPorts(":memory:"), {}).placed(found.devices[0], [Fraction(1, 2)])
    assert (set(table.m20k), set(table.alm)) == ({usage.m20k}, {usage.alm + beside(many_streams(3, 256), found)})
    assert mac_unit(port.sink, "avalon-st", None).inputs.keys().isdisjoint(MAC_CLOCKS)


def test_many_peers_are_charged_as_the_next_number_that_is_elaborated() -> None:
    assert elaborated_peers(1) == (1,)
    assert elaborated_peers(8) == tuple(range(1, 9))
    sizes = elaborated_peers(101)
    assert sizes[:10] == (*range(1, 9), 10, 12)
    assert sizes[-1] >= 101 > sizes[-2]
    assert len(sizes) < 25


def test_replay_regions_hold_two_frames_or_a_round_trip_and_never_more_than_is_charged() -> None:
    network, clock = cluster().network, 200_000_000
    frames = network.frames
    assert frames is not None
    round_trip = network.allowed_cycles(clock)
    least = 2 * frames.payload_beats
    assert network.replay_regions([Fraction(0), Fraction(1, 10**6)], clock) == (least, least)
    (half,) = network.replay_regions([Fraction(1, 2)], clock)
    assert half == math.ceil(Fraction(round_trip * frames.full_beats(), 2 * frames.full_words())) > least
    for rates in ([1, 1, 1], [5, 3, 1], [7, 0, 0], [3, 3, 1]):
        shares = [Fraction(rate, sum(rates)) for rate in rates]
        assert sum(network.replay_regions(shares, clock)) <= sum(network.most_regions(3, Fraction(1), clock))


def test_credits_take_a_descriptor_and_words_a_word() -> None:
    """64 bits of a frame's beats, of which 44 of 45 are words: 64 · 44 / 45 bits of what is left for words."""
    network = cluster().network
    assert network.credit_bits == Fraction(64 * 44, 45)
    graph = residual(2)
    back = {edge: 32 for edge, *_ in graph.streams}
    plain, frames = (list(network_links(graph, 256, back, bits)) for bits in (None, network.credit_bits))
    assert [link.bits_per_frame for link in plain] == [link.bits_per_frame for link in frames]
    for word, descriptor in zip(plain, frames, strict=True):
        batch = graph.recipe.batch if word.kind.per_batch else 1
        words = word.bits_per_frame * batch / 256
        assert word.credit_bits_per_frame * batch == math.ceil(words * 256 / 32)
        assert descriptor.credit_bits_per_frame * batch == math.ceil(words * Fraction(64 * 44, 45) / 32)


def test_the_host_s_streams_are_charged_where_they_are_held() -> None:
    """Images and labels come, results leave, on the first device, each with an end in its port; and nowhere else."""
    graph, found = residual(2), cluster()
    bits = host_bits(graph, found)
    hosts = [node for node in graph.nodes if node.role is Role.HOST]
    (image,) = (port for node in hosts for port in node.layer.sources if port.tensor.kind is Kind.ACTIVATION)
    words = -(-image.elements // (256 // image.tensor.fixed.width))
    # a label more comes, a result leaves, with a credit for each eight words or fewer
    credit = Fraction(64 * 44, 45)
    into, out = words * 256 + 256 + credit, 256 + (-(-words // 8) + 1) * credit
    assert bits == {"f-0": (math.ceil(into), math.ceil(out))}


def test_a_plan_s_problem_has_ports_of_frames_and_ends_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(circuit: Circuit) -> Resources:
        asked.append(circuit.configuration)
        return Resources(registers=1000)

    monkeypatch.setattr("hdl.costs.estimate._elaborated", counted)
    monkeypatch.setattr("hdl.costs.estimate.in_processes", lambda *_: (result for result in ()))
    graph = residual(2)

    def priced(found: Cluster) -> dict[str, int]:
        instance = Prices(graph, found, Estimator(":memory:"), {}, Silent()).instance([2048])
        assert (instance.framing is not None) == (found.network.frames is not None)
        assert all((device.port is not None) == (instance.framing is not None) for device in instance.devices)
        return {item.name: item.configurations["10AX115"][0].alm for item in instance.items}

    frames, words = priced(cluster()), priced(parse_cluster(CLUSTER.replace("ethernet", "words")))
    assert sum(name.startswith("EthernetPort") for name in asked) == 4
    for node in graph.nodes:
        assert (frames[node.name] > words[node.name]) == (node.role is Role.HOST)


@pytest.mark.parametrize("used", [2, 3])
def test_a_placement_is_charged_with_the_ports_that_emission_builds(used: int) -> None:
    """On two devices with one another and the host for peers, or on three with two."""
    found = cluster(more='host_mac = "02:00:00:00:ff:ff"\n')
    cycles, devices = 4096, [device.name for device in found.devices]
    graph = fold_graph.run(residual(2), cycles, (found.devices[0].board.part,))
    places = {node.name: devices[used * at // len(graph.nodes)] for at, node in enumerate(graph.nodes)}
    places |= {node.name: devices[0] for node in graph.nodes if node.layer.pinned_to_host}
    crossings = crossings_of(place.run(graph, places, devices), devices)
    form = link_format(len(crossings), 3, 256, True)
    ethernet = Ethernet.of(found, 0)
    for device in found.devices[:used]:
        built = device_port(ethernet, device.name, crossings, (), form, cycles, graph.recipe.batch)
        sent: dict[str, Fraction] = {}
        for c in crossings:
            words = Fraction(c.words(256), graph.recipe.batch if c.source.tensor.kind.per_batch else 1) / cycles
            if device.name in (c.source_device, c.target_device):
                other = c.target_device if device.name == c.source_device else c.source_device
                sent[other] = sent.get(other, Fraction(0)) + (words if device.name == c.source_device else 0)
        peers = len(sent) + 1
        assert len(built.peers) == peers == used
        charged = FramePorts(found, form, Estimator(":memory:"), {}).placed(device, [*sent.values(), Fraction(0)])
        usage = cost(built.unit, found) + cost(built.adapter, found)
        assert charged.replay_words[peers - 1] >= built.unit.packer.depth
        assert charged.m20k[peers - 1] >= usage.m20k
        # how the memory is cut makes a few comparisons larger or smaller
        assert charged.alm[peers - 1] - peers * beside(form, found) == pytest.approx(usage.alm, rel=0.01)
