"""What the Ethernet ports of a cluster's devices cost, by the number of their peers, and what the host's streams take.

A port is one circuit: words of each peer into frames, the memory of those that have not arrived yet, both directions'
headers and sums, and what it keeps of each peer.  It grows with the peers, not with the streams: these have senders,
receivers and their places in the trees of words, as without frames (`dagtrain.planning.link_costs`).

Every device has the host for a peer, and other devices as a placement says.  So of each device there is a table, of
ports elaborated for that many peers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dagtrain.emission.ethernet import host_timing, pair_timing
from dagtrain.emission.links import LEAST_LINK_WORDS, port_rest
from dagtrain.graph.ir import Graph, Role
from hdl.costs.estimate import Contents
from hdl.costs.resources import Usage, fit
from hdl.link.ethernet.clocked import mac_unit
from hdl.link.ethernet.packer import Packer
from hdl.link.ethernet.port import EthernetPort
from hdl.link.format import LinkFormat, credit_batch
from hdl.parts.part import Part
from hdl.streams.width import wire_words
from hdl.unit import Unit
from placement.problem.cluster import Board, Cluster, ClusterDevice
from placement.problem.instance import NetworkPort

# up to so many peers a port is elaborated for each number of them; for more, for every number that is a fifth larger
EACH_PEERS = 8
# words by which replay memories grow: of the widest shape of a block
REPLAY_STEP = 512
NO_BITS = (Fraction(0), Fraction(0))


def port_units(cluster: Cluster, board: Board, form: LinkFormat, regions: Sequence[int]) -> tuple[Unit, ...]:
    """The units of a port, whose replay memory has so many words for each of its peers, as `dagtrain.emission.ethernet`
    builds them; beside the ends of streams."""
    frames = cluster.network.frames
    assert frames is not None
    # one circuit for all keys
    frames = frames if frames.key is None else replace(frames, key=0)
    words = Packer(frames=frames, form=form, regions=tuple(regions))
    timing = pair_timing(frames, cluster.network_cycles)
    of_host = host_timing(timing, *cluster.network.host_cycles(cluster.clock_hz))
    port = EthernetPort(packer=words, timing=timing, host_timing=of_host)
    return port, mac_unit(port.sink, board.mac, board.mac_word_bits)


def elaborated_peers(most: int) -> tuple[int, ...]:
    """Numbers of peers that ports are elaborated for, up to the first that is ``most`` or more."""
    found = [1]
    while found[-1] < most:
        found.append(found[-1] + 1 if found[-1] < EACH_PEERS else -(-found[-1] * 6 // 5))
    return tuple(found)


@dataclass
class FramePorts:
    """Ports of the devices of a cluster on Ethernet."""

    cluster: Cluster
    form: LinkFormat
    estimator: Contents
    # device -> bits a frame from the host and to it
    host_bits: Mapping[str, tuple[Fraction, Fraction]]

    def of(self, device: ClusterDevice) -> NetworkPort:
        """The table of a device, of as many others as the cluster has, and one more board."""
        counts = range(1, len(self.cluster.devices) + 2)
        sizes = [next(size for size in self._sizes if size >= count) for count in counts]
        return self._port(device, [self._regions(device, size) for size in sizes])

    def placed(self, device: ClusterDevice, rates: Sequence[Fraction]) -> NetworkPort:
        """The port of a device in a placement, which sends so many words a cycle to each of its peers: the same for
        every number of them."""
        needed = self.cluster.network.replay_regions(rates, self.cluster.clock_hz)
        return self._port(device, [self._canonical(sum(needed), len(needed))] * (len(self.cluster.devices) + 1))

    def _port(self, device: ClusterDevice, regions: Sequence[tuple[int, ...]]) -> NetworkPort:
        usages = [self._usage(device, each) for each in regions]
        # the next larger one that was elaborated may be smaller by a hair
        m20k, alm = _rising([usage.m20k for usage in usages]), _rising([usage.alm for usage in usages])
        into, out = self.host_bits.get(device.name, NO_BITS)
        return NetworkPort(
            m20k=m20k,
            alm=alm,
            replay_words=tuple(sum(each) for each in regions),
            host_in_bits_per_frame=into,
            host_out_bits_per_frame=out,
        )

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return elaborated_peers(len(self.cluster.devices) + 1)

    def _regions(self, device: ClusterDevice, peers: int) -> tuple[int, ...]:
        """Where all that its link carries may leave for any of so many peers."""
        cluster = self.cluster
        carried = Fraction(device.board.link_bits_per_s, cluster.clock_hz * cluster.link_word_bits)
        rate = min(Fraction(1), carried * cluster.network.efficiency)
        return self._canonical(sum(cluster.network.most_regions(peers, rate, cluster.clock_hz)), peers)

    def _canonical(self, words: int, peers: int) -> tuple[int, ...]:
        """Regions of so many peers that hold so many words in all, or up to `REPLAY_STEP` more: few circuits are
        elaborated, and how their memory is cut costs nothing."""
        frames = self.cluster.network.frames
        assert frames is not None
        least = 2 * frames.payload_beats
        return -(-words // REPLAY_STEP) * REPLAY_STEP - least * (peers - 1), *[least] * (peers - 1)

    def _usage(self, device: ClusterDevice, regions: tuple[int, ...]) -> Usage:
        units = port_units(self.cluster, device.board, self.form, regions)
        part = device.board.part
        # a tree of merges for each peer
        rest = [unit for _ in regions for unit in port_rest(self.form, framed=True)]
        contents = (self.estimator.block(repr(unit), dict(unit.streams), unit.build) for unit in (*units, *rest))
        return sum((fit(found, part) for found in contents), pool_rest(self.form, part))


def pool_rest(form: LinkFormat, part: Part) -> Usage:
    """Block memories of what is left of the last ones of a memory that receivers have in common."""
    return Usage(m20k=part.m20k_blocks(1, form.payload_bits) if form.pooled else 0)


def _rising(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(numbers[: k + 1]) for k in range(len(numbers)))


def host_streams(graph: Graph, word_bits: int) -> Iterator[tuple[int, int]]:
    """Words a frame that each stream of the host's brings, and those that it takes."""
    for node in graph.nodes:
        if node.role is Role.HOST:
            for port in node.layer.sources:
                yield wire_words(port.elements, port.tensor.fixed.width, word_bits), 0
            for port in node.layer.sinks:
                yield 0, wire_words(port.elements, port.tensor.fixed.width, word_bits)


def free_ports(graph: Graph, cluster: Cluster) -> dict[str, NetworkPort]:
    """Ports that take nothing but what the host's words need."""
    bits, none = host_bits(graph, cluster, credits=False), (0,) * (len(cluster.devices) + 1)
    return {
        device.name: NetworkPort(
            m20k=none, alm=none, replay_words=none, host_in_bits_per_frame=into, host_out_bits_per_frame=out
        )
        for device in cluster.devices
        for into, out in [bits.get(device.name, NO_BITS)]
    }


def host_bits(graph: Graph, cluster: Cluster, *, credits: bool = True) -> dict[str, tuple[Fraction, Fraction]]:
    """Device -> bits a frame from the host and to it, with ``credits`` as many as those of the smallest receivers."""
    bits, least_batch = cluster.link_word_bits, credit_batch(LEAST_LINK_WORDS)
    credit = (cluster.network.credit_bits or Fraction(bits)) if credits else Fraction(0)
    into, out = NO_BITS
    for brought, taken in host_streams(graph, bits):
        into += brought * bits + -(-taken // least_batch) * credit
        out += taken * bits + -(-brought // least_batch) * credit
    # whole bits: links have few common divisors
    return {cluster.devices[0].name: (Fraction(-int(-into // 1)), Fraction(-int(-out // 1)))}
