"""Tops that test a cluster on Ethernet before anything is trained on it: every link, every memory channel.

    order ──▶ Console ──▶ PrbsSource ──▶ to each other device        from each of them ──▶ PrbsCheck ──▶ counters
                 │  └───▶ March ──▶ AXI4 port of each memory channel                                       │
    report ◀─────┘◀────────────────── values: counters of links, channels, the port ◀─────────────────────┘

MAC, memory ports, addresses and clocks are those of a design that trains (`dagtrain.emission.ethernet`), so what is
around a top is tested as it will be used.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from dagtrain.emission.assembly import Assembly
from dagtrain.emission.device import DeviceDesign
from dagtrain.emission.ethernet import ANEW, HOST_WORDS, Ethernet, EthernetNetwork, HostStream, peered_port
from dagtrain.emission.links import link_format, unit_module
from dagtrain.emission.memory import DeviceMemory, Region, axi4_port, axi_nets, channel_prefix
from dagtrain.emission.modules import ModuleLibrary, verilog_name
from dagtrain.emission.project import Clocks, Pace, write_device
from hdl.convert.netlist import Direction
from hdl.dram.axi import AxiFormat
from hdl.errors import DagtrainError, Problem
from hdl.link.egress import Egress
from hdl.link.ethernet.clocked import OVERFLOW
from hdl.link.ethernet.receiver import COUNTER_BITS, Cause
from hdl.link.format import LinkFormat
from hdl.link.ingress import Ingress
from hdl.selftest.console import WORD_BITS, Console
from hdl.selftest.march import COUNT_BITS, MARCHED_BITS, March
from hdl.selftest.prbs import PrbsCheck, PrbsSource, first_word
from hdl.unit import Unit
from placement.problem.cluster import Cluster

# words that a receiver of orders, and of a link, holds at least
ORDER_WORDS, LEAST_WORDS = 64, 64
# words of a burst of a march, at most
BURST = 64
# of the seed of the link with the first number
FIRST_SEED = 0x2A5A5A5B
# whose flags a word of a report has, three a peer
MOST_DEVICES = WORD_BITS // 3
# what a report begins with, of the console's own
OWN_VALUES = ("cycles", "unknown_orders")


@dataclass(frozen=True, kw_only=True)
class Link:
    """Pseudo-random words from one device to another."""

    # stream in the cluster
    number: int
    # positions of the devices
    source: int
    target: int

    @property
    def edge(self) -> str:
        """What messages and nets call it."""
        return f"prbs {self.number}"

    def first(self, word_bits: int) -> int:
        """The word that both ends begin with: another one for every link."""
        return first_word(FIRST_SEED + self.number, word_bits)


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """The tops of a cluster, and what a host has to know of them."""

    cluster: Cluster
    ethernet: Ethernet
    devices: tuple[DeviceDesign, ...]
    # with the modules of the tops
    library: ModuleLibrary
    # of the host
    streams: tuple[HostStream, ...]
    links: tuple[Link, ...]
    # device -> what a report of it tells, in order
    values: Mapping[str, tuple[str, ...]]
    # device -> bursts of a march through all of a memory channel; None: it has none
    bursts: Mapping[str, int | None]

    def write(self, folder: Path, shared: Sequence[Path]) -> None:
        """``<folder>/<device>/`` of every device; ``shared``: what tells of their Ethernet, with digests."""
        pace = Pace.of(1, 0, folder, shared)
        mhz = self.cluster.clock_hz / 10**6
        for device, placed in zip(self.devices, self.cluster.devices, strict=True):
            own = self.cluster.periods.get(device.name)
            clocks = Clocks(mhz if own is None else placed.board.clock_hz / 10**6, None if own is None else mhz)
            write_device(folder / device.name, device, self.library, placed.board.part.name, clocks, pace)


def design_selftest(cluster: Cluster, library: ModuleLibrary) -> SelfTest:
    """The self-test of all devices of a cluster.

    Raises `DagtrainError` where the cluster has no Ethernet, nobody knows the host's MAC address, or there are more
    devices, or other memories, than can be tested."""
    if cluster.network.frames is None:
        raise DagtrainError(
            "a self-test tells a host on Ethernet what it found, and the cluster file has none",
            'write network.kind = "ethernet"',
        )
    if problems := _problems(cluster):
        raise DagtrainError.listing("a self-test of this cluster", problems)
    digest = int.from_bytes(hashlib.sha256(repr(cluster).encode()).digest()[:4], "big")
    ethernet = Ethernet.of(cluster, digest)
    names = [device.name for device in cluster.devices]
    pairs = enumerate(itertools.permutations(range(len(names)), 2))
    links = tuple(Link(number=number, source=source, target=target) for number, (source, target) in pairs)
    streams = tuple(
        HostStream(
            carries=carries,
            node="",
            device=name,
            number=len(links) + 2 * place + answer,
            element_bits=WORD_BITS,
            lanes=1,
            elements=0,
            words=HOST_WORDS if answer else ORDER_WORDS,
        )
        for place, name in enumerate(names)
        for answer, carries in enumerate(("order", "report"))
    )
    form = link_format(len(links) + len(streams), len(names), cluster.link_word_bits, framed=True)
    tops = [_Top(cluster, ethernet, place, links, streams, form, library) for place in range(len(names))]
    return SelfTest(
        cluster=cluster,
        ethernet=ethernet,
        devices=tuple(top.design() for top in tops),
        library=library,
        streams=streams,
        links=links,
        bursts={top.name: top.memory_words // top.burst if top.channels else None for top in tops},
        values={top.name: (*OWN_VALUES, *(name for name, _, _ in top.values)) for top in tops},
    )


def _problems(cluster: Cluster) -> list[Problem]:
    """What of a cluster can't be tested."""
    found = []
    if len(cluster.devices) > MOST_DEVICES:
        what = f"each device sends to every other, of {MOST_DEVICES} at most, not {len(cluster.devices)}"
        found.append(Problem(what, "test a part of them after the other, each with a cluster file of its own"))
    boards = {device.board.name: device.board for device in cluster.devices if device.board.dram_bytes}
    if boards and not MARCHED_BITS[0] <= cluster.dram_word_bits <= MARCHED_BITS[1]:
        least, most = MARCHED_BITS
        given = f"cluster.dram_word_bits = {cluster.dram_word_bits}"
        what = f"a march goes through words of {least} to {most} bits, not {given}"
        found.append(Problem(what, f"write {most} to test"))
    for name, board in boards.items():
        words = board.dram_bytes // board.dram_channels // (cluster.dram_word_bits // 8)
        if words // BURST >= (1 << COUNT_BITS) - 1:
            what = (
                f"board {name!r}: a march is of fewer than 2**{COUNT_BITS} bursts of {BURST} words, not {words:,} words"
            )
            found.append(Problem(what, "write the dram_gbyte of a part of it to test"))
    return found


@dataclass
class _Top:
    """The top of a device under construction."""

    cluster: Cluster
    ethernet: Ethernet
    place: int
    links: Sequence[Link]
    streams: Sequence[HostStream]
    form: LinkFormat
    library: ModuleLibrary
    # that a report tells: name, Verilog, bits
    values: list[tuple[str, str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self.board = self.cluster.devices[self.place].name, self.cluster.devices[self.place].board
        self.assembly = Assembly(verilog_name(self.name), f"self-test of FPGA {self.name} of {self.cluster.name}")
        self.assembly.reset = self.assembly.wire(ANEW)
        self.leaving = [link for link in self.links if link.source == self.place]
        self.arriving = [link for link in self.links if link.target == self.place]
        bits, board = self.cluster.dram_word_bits, self.board
        words = board.dram_bytes // board.dram_channels // (bits // 8)
        # words of a burst, of a tiny memory fewer; and of a memory channel, whole bursts
        self.burst = min(BURST, AxiFormat(data_bits=bits).max_burst, 1 << max(0, words.bit_length() - 1))
        self.memory_words = words // self.burst * self.burst
        self.channels = board.dram_channels if self.memory_words else 0

    def design(self) -> DeviceDesign:
        """The whole of it."""
        network = self._network()
        runs, marches = self._links(network), self._channels()
        order, report = (self.assembly.stream(name, WORD_BITS) for name in ("order", "report"))
        for stream, net in zip(network.port.streams, (order, report), strict=True):
            network.add_host(stream, net)
        network.finish()
        self._tell_of_port(network)
        console = Console(links=len(runs), channels=len(marches), values=len(self.values))
        values = self.assembly.wire("values", WORD_BITS * len(self.values))
        told = [f"{{{WORD_BITS - bits}'d0, {net}}}" if bits < WORD_BITS else net for _, net, bits in self.values]
        self.assembly.assigns.append((values, f"{{{', '.join(reversed(told))}}}"))
        nets = {"x": order, "y": report, **{f"run{i}": net for i, net in enumerate(runs)}}
        nets |= {f"march{i}": net for i, net in enumerate(marches)}
        self._unit("selftest_console", console, "console", nets, {"values": values})
        return DeviceDesign(
            name=self.name,
            top=self.assembly.module(),
            nodes=(),
            images=(),
            host_ports=(),
            egress=(),
            ingress=(),
            form=self.form,
            number=self.place,
            weights=(),
            streams=tuple(self.assembly.ends()),
            copies=dict(self.assembly.copies),
            link_words={},
            memories=tuple(self._memories()),
            port=network.port,
        )

    def _unit(self, kind: str, unit: Unit, name: str, streams: Mapping[str, str], ports: Mapping[str, str]) -> None:
        self.assembly.instance(unit_module(self.library, kind, unit), name, streams, ports, role=name)

    def _network(self) -> EthernetNetwork:
        names = dict(enumerate(device.name for device in self.cluster.devices))
        sent = {link.target: Fraction(1, max(1, len(self.leaving))) for link in self.leaving}
        period = self.cluster.periods.get(self.name, Fraction(1))
        port = peered_port(self.ethernet, self.name, names, sent, self.streams, self.form, 1, period)
        return EthernetNetwork(self.assembly, self.library, self.form, port=port)

    def _links(self, network: EthernetNetwork) -> list[str]:
        """Both ends of what it sends and gets; the nets of orders to send."""
        bits, runs = self.form.word_bits, []
        source, check = PrbsSource(word_bits=bits), PrbsCheck(word_bits=bits)
        sender = Egress(format=self.form, element_bits=bits, lanes=1, elements=0, credits=self._credits)
        receiver = Ingress(format=self.form, element_bits=bits, lanes=1, elements=0, depth=self._credits)
        for link in self.leaving:
            order = self.assembly.stream(f"run_{link.number}", source.streams["x"])
            words = self.assembly.stream(f"prbs_{link.number}", bits)
            first = self.assembly.constant(f"FIRST_{link.number}", bits, link.first(bits))
            told = self._counters(f"to.{self._name(link.target)}", source, link)
            ports = {"first": first, **told}
            self._unit("selftest_prbs_source", source, f"source_{link.number}", {"x": order, "y": words}, ports)
            network.send(link.edge, sender, link.number, link.target, words)
            runs.append(order)
        for link in self.arriving:
            words = self.assembly.stream(f"prbs_{link.number}", bits)
            first = self.assembly.constant(f"FIRST_{link.number}", bits, link.first(bits))
            told = self._counters(f"from.{self._name(link.source)}", check, link)
            network.receive(link.edge, receiver, link.number, link.source, words)
            self._unit("selftest_prbs_check", check, f"check_{link.number}", {"x": words}, {"first": first, **told})
        return runs

    def _name(self, place: int) -> str:
        return self.cluster.devices[place].name

    @property
    def _credits(self) -> int:
        """Words that a receiver of a link holds: all senders of a device together keep its cable busy."""
        return max(LEAST_WORDS, self.ethernet.rtt_cycles // max(1, len(self.cluster.devices) - 1))

    def _counters(self, what: str, unit: Unit, link: Link) -> dict[str, str]:
        """Wires of a unit's outputs, which are told as ``<what>.<output>``."""
        found = {}
        for output, bits in unit.outputs.items():
            found[output] = self.assembly.wire(f"{output}_{link.number}", bits)
            self.values.append((f"{what}.{output}", found[output], bits))
        return found

    def _channels(self) -> list[str]:
        """A march at each memory port; the nets of orders to march."""
        orders, refused = [], []
        for channel in range(self.channels):
            unit = March(format=self._memory_format, burst=self.burst)
            order = self.assembly.stream(f"march_{channel}", unit.streams["x"])
            for name, width in unit.format.ports(f"dram{channel}").items():
                self.assembly.stream(name, width)
            wires = {}
            for output, bits in unit.outputs.items():
                wires[output] = self.assembly.wire(f"dram{channel}_{output}", bits)
                for low in range(0, bits, WORD_BITS):
                    size = min(WORD_BITS, bits - low)
                    label = f"{output}{low // WORD_BITS}" if bits > WORD_BITS else output
                    part = f"[{low + size - 1}:{low}]" if bits > 1 else ""
                    self.values.append((f"dram.{channel}.{label}", wires[output] + part, size))
            nets = {"x": order, **axi_nets(f"dram{channel}", "m")}
            self._unit("selftest_march", unit, f"march{channel}", nets, wires)
            axi4_port(self.assembly, unit.format, f"dram{channel}", channel_prefix(channel, self.channels))
            refused.append(f"|{wires['refused']}")
            orders.append(order)
        if orders:
            self.assembly.port("dram_error", 1, Direction.OUT)
            self.assembly.assigns.append(("dram_error", " | ".join(refused)))
        return orders

    @property
    def _memory_format(self) -> AxiFormat:
        bits = max(8, (self.memory_words - 1).bit_length())
        return AxiFormat(data_bits=self.cluster.dram_word_bits, address_bits=bits)

    def _memories(self) -> Iterator[DeviceMemory]:
        for channel in range(self.channels):
            region = Region("march", 0, self.memory_words, ())
            yield DeviceMemory(channel_prefix(channel, self.channels), self._memory_format, (region,))

    def _tell_of_port(self, network: EthernetNetwork) -> None:
        """What the Ethernet port counts."""
        for cause in Cause:
            low = COUNTER_BITS * cause
            net = f"net_dropped[{low + COUNTER_BITS - 1}:{low}]"
            self.values.append((f"dropped.{cause.name.lower()}", net, COUNTER_BITS))
        outputs = {**network.port.unit.outputs, **network.port.adapter.outputs}
        told = [("faults", outputs["faults"]), ("malformed", 1), ("current", outputs["current"]), ("error", 1)]
        self.values += [(f"net.{name}", f"net_{name}", bits) for name, bits in told]
        if OVERFLOW in outputs:
            self.values.append(("net.overflow", OVERFLOW, outputs[OVERFLOW]))
