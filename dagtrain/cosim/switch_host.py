"""The host of a co-simulation over Ethernet: loads state, feeds frames and labels, takes results, at its port of the
switch.

It is the endpoint of `dagtrain.host` in cycles of the cluster instead of microseconds, and frames instead of a socket,
so that a run depends on the seed alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dagtrain.cosim.network import Stamped
from dagtrain.cosim.parts import Bench
from dagtrain.emission.delivered import DeliveredDevice
from dagtrain.emission.ethernet import FIRST_EPOCH, TO_DEVICE
from dagtrain.emission.manifest import EthernetRecord, HostStreamRecord
from dagtrain.graph.ir import Graph
from dagtrain.host.endpoint import Endpoint, Pair, Place
from dagtrain.host.streams import Incoming, Layout, LinkFault, Outgoing
from hdl.convert.images import write_image
from hdl.engine.weights.records import Record, words_of
from hdl.layers.beats import pack
from hdl.link.ethernet.frame import DTL_START, HOST, Address, Drop, Dropped, Frame, FrameFormat, ends_of
from hdl.link.ethernet.protocol import Peer, Rules

# cycles between two exchanges with the bench
LOOK_AHEAD = 100


class _CyclePair(Pair):
    """A pair whose timer is that of the device."""

    def timed_rules(self) -> Rules:
        """See the base class."""
        return self.rules


class NetworkHost(Endpoint):
    """See the module; a `dagtrain.cosim.network.SwitchHost`.

    ``results``: tensors that it waits for."""

    def __init__(self, devices: Sequence[DeliveredDevice], results: int) -> None:
        found = [(device.manifest.device, device.manifest.ethernet) for device in devices]
        self._ports = [(name, port) for name, port in found if port is not None]
        first = self._ports[0][1]
        form = FrameFormat(word_bits=first.word_bits, mtu=first.mtu)
        own = host_of(first)
        assert own is not None
        self._own = own
        self._addresses = {port.own.number: port.own.address for _, port in self._ports}
        self._results = results
        self._now = 0
        self._leaving: list[Stamped] = []
        # what came of each node's results
        self.came: dict[str, list[bytes]] = {
            stream.node: [] for _, port in self._ports for stream in port.host_streams if stream.carries == "result"
        }
        super().__init__(HOST, form, FIRST_EPOCH, self._pairs)

    def _pairs(self, epoch: int) -> Sequence[Pair]:
        return [self._pair(name, port, epoch) for name, port in self._ports]

    def _pair(self, name: str, port: EthernetRecord, epoch: int) -> Pair:
        beats = FrameFormat(word_bits=port.word_bits, mtu=port.mtu).payload_beats
        rules = Rules(
            window=port.window,
            replay_beats=port.window * beats,
            word_bytes=port.word_bits // 8,
            timer_cycles=port.timer_cycles,
            ack_cycles=port.ack_cycles,
        )
        outgoing, incoming = {}, {}
        for stream in port.host_streams:
            layout = Layout(word_bits=port.word_bits, element_bits=stream.element_bits, elements=stream.elements)
            if stream.carries in TO_DEVICE:
                outgoing[stream.stream_number] = Outgoing(stream.stream_number, layout, stream.words)
            else:
                incoming[stream.stream_number] = Incoming(stream.stream_number, layout, stream.words)
        return _CyclePair(
            name=name,
            place=_place(port.own.address),
            peer=Peer(number=HOST, other=port.own.number, epoch=epoch, digest=int(port.digest, 16)),
            rules=rules,
            outgoing=outgoing,
            incoming=incoming,
        )

    # -------------------------------------------------------------------------------------------- what it sends

    def _streams(self) -> Iterator[tuple[Pair, HostStreamRecord]]:
        for _, port in self._ports:
            for stream in port.host_streams:
                yield self.pairs[port.own.number], stream

    def feed(self, node: str, codes: npt.NDArray[Any]) -> None:
        """Tensors of a host node, (tensors, elements)."""
        for pair, stream in self._streams():
            if stream.node == node:
                outgoing = pair.outgoing[stream.stream_number]
                mask = (1 << stream.element_bits) - 1
                outgoing.offer(outgoing.layout.encode(codes.reshape(len(codes), -1) & mask))

    def load(self, device: str, records: Sequence[Record]) -> None:
        """State and what to do with it."""
        for pair, stream in self._streams():
            if stream.carries == "load" and pair.name == device:
                outgoing = pair.outgoing[stream.stream_number]
                outgoing.offer(outgoing.layout.encode(np.array(words_of(records), np.uint64)))

    # -------------------------------------------------------------------------------------------- at the switch

    @property
    def done(self) -> bool:
        """See `SwitchHost`."""
        return all(len(tensors) >= self._results for tensors in self.came.values())

    def exchange(self, cycle: int, frames: Sequence[Stamped]) -> tuple[int, Sequence[Stamped]]:
        """See `SwitchHost`.  Raises `LinkFault` where a device breaks a rule of a stream, or is lost."""
        for came, data in frames:
            self._arrived(data, came)
        for pair, stream in self._streams():
            incoming = pair.incoming.get(stream.stream_number)
            while incoming is not None and incoming.tensors:
                tensor = incoming.get()
                if stream.carries == "result":
                    self.came[stream.node].append(tensor)
        self._leaving, self._now = [], cycle
        for pair in self.pairs.values():
            self._speak(pair, cycle)
            if pair.peer.lost:
                self.fault = self.fault or f"{pair.name} does not answer any more"
        if self.fault:
            raise LinkFault(f"{self.fault}, seen by the host in cycle {cycle:,}")
        return cycle + LOOK_AHEAD, self._leaving

    def _arrived(self, data: bytes, now: int) -> None:
        """A frame, whose addresses are those that its sender has, or it is dropped."""
        try:
            self.form.parse(data)
            source, target = ends_of(data)
            if target != self._own:
                raise Dropped(Drop.ADDRESS, f"to {target}")
        except Dropped as dropped:
            self.drops[dropped.cause] += 1
            return
        self.hear(data[DTL_START:], _place(source), now)

    def _send(self, pair: Pair, frame: Frame) -> None:
        self._leaving.append((self._now, self.form.build(frame, self._own, self._addresses[pair.peer.other])))

    # -------------------------------------------------------------------------------------------- what it got

    @property
    def dropped(self) -> dict[str, int]:
        """Frames that it did not hear, by cause."""
        found = Counter(self.drops)
        for pair in self.pairs.values():
            found.update(pair.drops)
        return {cause.value: count for cause, count in found.items()}

    def write_results(self, bench: Bench, graph: Graph, folder: Path) -> None:
        """Files of the beats of each node, as the recorders of a bench leave them."""
        for pair, stream in self._streams():
            if stream.carries == "result":
                port = graph.by_name[stream.node].layer.sinks[0]
                layout = pair.incoming[stream.stream_number].layout
                codes = layout.decode(b"".join(self.came[stream.node]))
                path = folder / bench.recorded[stream.node].file_name
                write_image(path, pack(codes, stream.element_bits, port.lanes), port.payload_bits)


def host_of(port: EthernetRecord) -> Address | None:
    """Where the host of a device is, if it speaks over the network."""
    return next((peer.address for peer in port.peers if peer.number == HOST), None)


def _place(address: Address) -> Place:
    return f"{address.mac:012x}", address.ip
