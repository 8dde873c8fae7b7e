"""The Ethernet port of an FPGA: who its peers are, which streams the host has, how large its memories are.

Structure (units of `hdl.link` and `hdl.link.ethernet`)::

    egress streams ─▶ Egress ─▶ 32 words ─┐
                                          ├─▶ Merge trees of each peer ─▶ EthernetPort ─▶ MacAdapter ─▶ MAC
    ingress credits ──────────────────────┘                                       │
    consumers ◀─ FIFO ◀─ Ingress ◀─ Split chain ◀─────────────────────────────────┘

The host is a peer of every device, if it speaks over the network: images, labels and results, and state that is loaded
and dumped, are streams like those between devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Self

from dagtrain.emission.links import (
    ARRIVING,
    NETWORK_ROLE,
    Crossing,
    NetworkPort,
    receiver_beats,
    receiver_words,
)
from dagtrain.emission.modules import verilog_name
from dagtrain.graph.ir import PlacedGraph
from dagtrain.training.feeds import host_ports
from hdl.convert.netlist import Direction
from hdl.engine.weights.records import WORD_BITS as STATE_BITS
from hdl.errors import DagtrainError
from hdl.link.egress import Egress
from hdl.link.ethernet.adapter import MacAdapter
from hdl.link.ethernet.clocked import ClockedMac, mac_unit
from hdl.link.ethernet.frame import BURST_WORDS, HOST, Address, FrameFormat
from hdl.link.ethernet.packer import Packer
from hdl.link.ethernet.peers import Timing
from hdl.link.ethernet.port import EthernetPort
from hdl.link.ethernet.tag import KEY_BITS
from hdl.link.ethernet.transmitter import DIGEST_BITS, EPOCH_BITS, OWN_BITS, PEER_BITS, own_constant, peer_constant
from hdl.link.format import LinkFormat
from hdl.link.ingress import Ingress
from hdl.link.routing import BurstStage
from hdl.tensor import Port
from hdl.unit import Unit
from placement.problem.cluster import Cluster

# words that the host holds of a stream at least
HOST_WORDS = 4096
# words of state that a device holds before its chain takes them
LOAD_WORDS = 512
# frames on their way to a peer
LEAST_WINDOW, MOST_WINDOW = 16, 256
# what streams of the host carry: to devices, and from them; a self-test has orders and reports (`hdl.selftest.console`)
TO_DEVICE, FROM_DEVICE = ("image", "label", "load", "order"), ("result", "dump", "report")
# epoch of a device that no host has reset
FIRST_EPOCH = 0
# reset of all but the port: that of the top, or the host's
ANEW = "anew"


@dataclass(frozen=True, kw_only=True)
class Ethernet:
    """What emission is told of a cluster's Ethernet."""

    frames: FrameFormat
    addresses: Mapping[str, Address]
    # None: the host has ports of its own
    host: Address | None
    # device -> the ports of its MAC
    macs: Mapping[str, str]
    # first 32 bits of the plan's SHA-256
    digest: int
    # cycles of the cluster's clock from a frame to its acknowledgement, at most
    rtt_cycles: int
    # the same to the host's program and back, and cycles for which that may be silent
    host_rtt_cycles: int
    host_silence_cycles: int
    # device -> MHz and bits a beat of its MAC, of those that have clocks of their own
    clocked: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster, digest: int, *, host: bool = True) -> Self:
        """Of a cluster file with ``network.kind = "ethernet"``; ``host``: whether its host speaks over the network.

        Raises:
            DagtrainError: where the host does, and nobody knows its MAC address.
        """
        network = cluster.network
        assert network.frames is not None
        assert network.host_ip is not None
        if host and network.host_mac is None:
            raise DagtrainError(
                "network.host_mac is missing: devices ask nobody for the MAC address that frames to the host go to",
                'write that of the host\'s network card, as "02:00:00:00:ff:ff", or emit with --host ports',
            )
        end = Address(number=HOST, mac=network.host_mac or 0, ip=network.host_ip)
        host_rtt_cycles, host_silence_cycles = network.host_cycles(cluster.clock_hz)
        return cls(
            frames=network.frames,
            addresses={d.name: address for d, address in zip(cluster.devices, network.addresses, strict=True)},
            host=end if host else None,
            macs={device.name: device.board.mac for device in cluster.devices},
            digest=digest,
            rtt_cycles=cluster.network_cycles,
            host_rtt_cycles=host_rtt_cycles,
            host_silence_cycles=host_silence_cycles,
            clocked={
                device.name: (device.board.mac_clock_hz / 10**6, device.board.mac_word_bits)
                for device in cluster.devices
                if device.board.mac_clock_hz
            },
        )

    @property
    def timing(self) -> Timing:
        """Of every pair of devices."""
        return pair_timing(self.frames, self.rtt_cycles)

    @property
    def host_timing(self) -> Timing:
        """What a device keeps of the host."""
        return host_timing(self.timing, self.host_rtt_cycles, self.host_silence_cycles)


def pair_timing(frames: FrameFormat, rtt_cycles: int) -> Timing:
    """What both ends of a pair agree on: the window holds full frames for a round trip."""
    frame = -(-frames.frame_bytes(frames.payload_beats) // frames.word_bytes)
    window = 1 << (rtt_cycles // frame + 1).bit_length()
    return Timing(
        window=min(MOST_WINDOW, max(LEAST_WINDOW, window)),
        timer_cycles=4 * rtt_cycles,
        ack_cycles=-(-rtt_cycles // 5),
    )


def host_timing(timing: Timing, rtt_cycles: int, silence_cycles: int) -> Timing:
    """Of the pair of a device and the host, whose program may stand still for longer than any network takes: a wait
    that costs time alone."""
    timer = 4 * rtt_cycles
    return replace(timing, timer_cycles=timer, retries=-(-silence_cycles // timer))


def host_label(carries: str) -> str:
    """What messages and nets call a stream of the host."""
    return f"host {carries}"


@dataclass(frozen=True, kw_only=True)
class HostStream:
    """A stream between the host and a device."""

    # of `TO_DEVICE` or `FROM_DEVICE`
    carries: str
    # of the graph; "" of state
    node: str
    device: str
    # in the cluster
    number: int
    element_bits: int
    # elements a beat inside the device
    lanes: int
    # of a tensor; 0: no tensors, each word holds one
    elements: int
    # that the receiver holds: the credits of the sender
    words: int

    @property
    def label(self) -> str:
        """What messages and nets call it."""
        return host_label(self.carries)

    @property
    def arrives(self) -> bool:
        """Whether the device receives it."""
        return self.carries in TO_DEVICE

    def end(self, form: LinkFormat) -> Egress | Ingress:
        """The device's end of it."""
        bits, lanes, elements = self.element_bits, self.lanes, self.elements
        if self.arrives:
            return Ingress(
                format=form, element_bits=bits, lanes=lanes, elements=elements, depth=self.words, pooled=form.pooled
            )
        return Egress(format=form, element_bits=bits, lanes=lanes, elements=elements, credits=self.words)


def host_words(port: Port, cycles: int, rtt_cycles: int, word_bits: int, *, arrives: bool) -> int:
    """Words that the receiver of a stream of the host holds, of a frame in so many cycles."""
    beats = receiver_beats(port, 1 << 30, True, cycles, rtt_cycles)
    words = receiver_words(port, beats, word_bits)
    return words if arrives else max(HOST_WORDS, 2 * words)


def host_streams(
    graph: PlacedGraph, devices: Sequence[str], first: int, ethernet: Ethernet, cycles: int
) -> tuple[HostStream, ...]:
    """The host's streams, numbered from ``first``; ``cycles``: of a frame.  None where it has ports of its own.

    Raises `GraphError` where the graph has not one input for images, one for labels and one output."""
    if ethernet.host is None:
        return ()
    found: list[HostStream] = []

    def add(carries: str, device: str, node: str, port: Port | None, words: int) -> None:
        found.append(
            HostStream(
                carries=carries,
                node=node,
                device=device,
                number=first + len(found),
                element_bits=port.tensor.fixed.width if port else STATE_BITS,
                lanes=port.lanes if port else 1,
                elements=port.elements if port else 0,
                words=words,
            )
        )

    for carries, name in zip(("image", "label", "result"), host_ports(graph), strict=True):
        layer = graph.by_name[name].layer
        (port,) = (*layer.sources, *layer.sinks)
        words = host_words(port, cycles, ethernet.rtt_cycles, ethernet.frames.word_bits, arrives=bool(layer.sources))
        add(carries, graph.placed[name], name, port, words)
    for device in devices:
        if any(node.layer.is_link for node in graph.circuits if graph.placed[node.name] == device):
            add("load", device, "", None, LOAD_WORDS)
            add("dump", device, "", None, HOST_WORDS)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class DevicePort:
    """The Ethernet port of one device."""

    ethernet: Ethernet
    device: str
    # in the order of their numbers, the host last
    peers: tuple[Address, ...]
    # position of a device in the design, or `HOST` -> index of a peer
    index: Mapping[int, int]
    unit: EthernetPort
    adapter: MacAdapter | ClockedMac
    # of the host, here
    streams: tuple[HostStream, ...]

    @property
    def own(self) -> Address:
        """Where the device is."""
        return self.ethernet.addresses[self.device]

    @property
    def mac_mhz(self) -> float | None:
        """Of a MAC with clocks of its own."""
        return self.ethernet.clocked[self.device][0] if self.device in self.ethernet.clocked else None

    @property
    def units(self) -> tuple[Unit, ...]:
        """What a port has once, beside the ends of streams and what merges and splits them."""
        return self.unit, self.adapter


def device_port(
    ethernet: Ethernet,
    device: str,
    crossings: Sequence[Crossing],
    streams: Sequence[HostStream],
    form: LinkFormat,
    cycles: int,
    batch: int,
    period: Fraction = Fraction(1),
) -> DevicePort:
    """The port of a device among all streams of a cluster, of which it has some.

    Every pair of devices that share a stream are peers, and with each the host, if it has streams.  A peer's region of
    the replay memory holds what is sent to it in a round trip at the planned rate, and two longest payloads at least.

    Args:
        cycles: of a frame.
        batch: frames of a batch.
        period: what a cycle of the device lasts in cycles of the cluster's clock."""
    sent: dict[int, Fraction] = {}
    for crossing in crossings:
        words = Fraction(crossing.words(form.word_bits), batch if crossing.source.tensor.kind.per_batch else 1)
        if crossing.source_device == device:
            sent[crossing.target_index] = sent.get(crossing.target_index, Fraction(0)) + words
        elif crossing.target_device == device:
            sent.setdefault(crossing.source_index, Fraction(0))
    names = {c.source_index: c.source_device for c in crossings} | {c.target_index: c.target_device for c in crossings}
    return peered_port(ethernet, device, names, sent, streams, form, cycles, period)


def peered_port(
    ethernet: Ethernet,
    device: str,
    names: Mapping[int, str],
    sent: Mapping[int, Fraction],
    streams: Sequence[HostStream],
    form: LinkFormat,
    cycles: int,
    period: Fraction = Fraction(1),
) -> DevicePort:
    """The port of a device with these peers: position of a device -> words that are ``sent`` to it in ``cycles``; the
    host is one if it has streams.  ``names``: position -> device.  Else as `device_port`."""
    rates = dict(sent) if ethernet.host is None else {**sent, HOST: Fraction(0)}
    order = sorted(rates)
    peers = tuple(ethernet.addresses[names[at]] if at in names else _host(ethernet) for at in order)
    least = 2 * ethernet.frames.payload_beats
    regions = tuple(max(least, -(-rates[at] * ethernet.rtt_cycles // cycles)) for at in order)
    # one circuit for all keys
    frames = ethernet.frames if ethernet.frames.key is None else replace(ethernet.frames, key=0)
    packer = Packer(frames=frames, form=form, regions=regions)
    unit = EthernetPort(
        packer=packer,
        timing=_in_own_cycles(ethernet.timing, period),
        host_timing=_in_own_cycles(ethernet.host_timing, period) if HOST in rates else None,
    )
    return DevicePort(
        ethernet=ethernet,
        device=device,
        peers=peers,
        index={at: index for index, at in enumerate(order)},
        unit=unit,
        adapter=mac_unit(unit.sink, ethernet.macs[device], ethernet.clocked.get(device, (0.0, 0))[1]),
        streams=tuple(stream for stream in streams if stream.device == device),
    )


def _host(ethernet: Ethernet) -> Address:
    assert ethernet.host is not None
    return ethernet.host


def _in_own_cycles(timing: Timing, period: Fraction) -> Timing:
    """The same times at another clock."""
    return Timing(
        window=timing.window,
        timer_cycles=-(-timing.timer_cycles // period),
        ack_cycles=-(-timing.ack_cycles // period),
        retries=timing.retries,
    )


@dataclass
class EthernetNetwork(NetworkPort):
    """The Ethernet port of one device under construction."""

    port: DevicePort = field(kw_only=True)

    def place(self, device: int) -> str:
        """See the base class: the tree of each peer leads to it alone."""
        del device
        return self.constant("device", 0)

    @property
    def framed(self) -> bool:
        """See the base class."""
        return True

    def send(self, edge: str, unit: Egress, number: int, device: int, net: str) -> None:
        """See the base class; words that wait for the port stand behind the sender, so that they leave in bursts."""
        super().send(edge, unit, number, device, net)
        words, target = self.leaving.pop()
        name = verilog_name(edge)
        burst = self.stream(f"burst_{name}")
        stage = BurstStage(format=self.form, words=BURST_WORDS)
        self.unit("link_burst_stage", stage, f"stage_{name}", {"x": words, "y": burst}, {}, f"burst of {edge}")
        self.assembly.copies[f"burst of {edge}"] = BURST_WORDS
        self.leaving.append((burst, target))

    def add_host(self, stream: HostStream, net: str) -> None:
        """The device's end of a stream of the host, whose elements are on ``net``."""
        end = stream.end(self.form)
        if isinstance(end, Ingress):
            self.receive(stream.label, end, stream.number, HOST, net)
        else:
            self.send(stream.label, end, stream.number, HOST, net)

    def finish(self) -> None:
        """The chain of splits, a tree of merges for each peer, the port, its MAC's ports, counters, the error flag."""
        port, assembly = self.port, self.assembly
        words = self.stream(ARRIVING)
        tx, rx = (assembly.stream(name, port.adapter.streams[name]) for name in ("tx", "rx"))
        self.deal_out(words)
        xs = {f"xs{index}": self._leaving(at, index) for at, index in port.index.items()}
        streams = {**xs, "tx": tx, "rx": rx, "words": words}
        told = dict(self._constants()) | dict(self._counters())
        # the host's reset is the port's to give, and frames that are being sent leave whole
        self.unit("ethernet_port", port.unit, "ethernet", streams, {**told, "rst": "rst"})
        ports = {
            name: assembly.port(name, width, way)
            for widths, way in ((port.adapter.inputs, Direction.IN), (port.adapter.outputs, Direction.OUT))
            for name, width in widths.items()
        }
        kind = "mac_adapter" if port.mac_mhz is None else "clocked_mac"
        self.unit(kind, port.adapter, "mac", {"tx": tx, "rx": rx}, {**ports, "rst": "rst"})
        assembly.assigns.append((ANEW, "rst | net_reset"))
        assembly.port("net_error", 1, Direction.OUT)
        assembly.assigns.append(("net_error", " | ".join([*self.errors, "net_malformed"])))

    def _leaving(self, device: int, index: int) -> str:
        """The words that go to a peer."""
        words, credits = ([net for net, to in nets if to == device] for nets in (self.leaving, self.returning))
        if words or credits:
            return self.merged(words, credits, str(index))
        quiet = self.stream(f"silent{index}")
        self.assembly.writers[quiet] = NETWORK_ROLE
        self.assembly.silence(quiet, self.form.payload_bits)
        return quiet

    def _constants(self) -> Iterator[tuple[str, str]]:
        """What the port is told of itself, its peers and the plan."""
        port = self.port
        others = sum(peer_constant(port.own, peer) << at * PEER_BITS for at, peer in enumerate(port.peers))
        for name, bits, value in (
            ("own", OWN_BITS, own_constant(port.own)),
            ("others", PEER_BITS * len(port.peers), others),
            ("epoch", EPOCH_BITS, FIRST_EPOCH),
            ("digest", DIGEST_BITS, port.ethernet.digest),
            ("key", KEY_BITS, port.ethernet.frames.key),
        ):
            if value is not None:
                yield name, self.assembly.constant(name.upper(), bits, value)

    def _counters(self) -> Iterator[tuple[str, str]]:
        """What the port says of frames and peers, as ports of the top."""
        for name, bits in self.port.unit.outputs.items():
            yield name, self.assembly.port(f"net_{name}", bits, Direction.OUT)
