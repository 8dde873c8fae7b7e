"""A host behind the UDP socket of a simulated switch: devices in software (`tests/ethernet_peer.py`) stand in place of
the simulation, and their headers are made and read here by hand."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dagtrain.graph.executor import Executor
from dagtrain.host.bridge import Bridge
from dagtrain.host.cluster import Cluster
from dagtrain.host.connection import Settings
from dagtrain.host.streams import LinkFault
from dagtrain.host.wiring import Wiring, WiringError
from dagtrain.training.feeds import host_ports
from hdl.link.ethernet.frame import Drop
from hdl.simulate.models.ethernet import EthernetSwitch, Faults
from tests.host_support import (
    counts_of,
    expected_losses,
    feeds_of,
    hosted,
    played,
    small_net,
    train_all,
    wiring_of,
    work_of,
)

LIMIT = 60.0
HOST_MAC, HOST_IP = "02:00:00:00:ff:ff", "10.0.0.254"


def with_addresses(wiring: Wiring) -> Wiring:
    """MAC and IP addresses of all, as a simulated network needs them."""
    devices = tuple(
        device.model_copy(update={"mac": f"02:00:00:00:00:{device.number:02x}", "ip": f"10.0.0.{device.number + 1}"})
        for device in wiring.device
    )
    host = wiring.host.model_copy(update={"mac": HOST_MAC, "ip": HOST_IP})
    return wiring.model_copy(update={"device": devices, "host": host})


def mac_of(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def header(source: tuple[str, str], target: tuple[str, str], size: int) -> bytes:
    """Ethernet, IPv4 and UDP in front of so many bytes, between (MAC, IP) addresses."""
    ends = socket.inet_aton(source[1]) + socket.inet_aton(target[1])
    ip = struct.pack(">BBHHHBBH", 0x45, 0, size + 28, 0, 0x4000, 64, 17, 0) + ends
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack(">H", ~total & 0xFFFF) + ip[12:]
    return mac_of(target[0]) + mac_of(source[0]) + b"\x08\0" + ip + struct.pack(">HHHH", 0x4454, 0x4454, size + 8, 0)


class SoftDevices(threading.Thread):
    """In place of the simulation: the switch in Python, and sockets of the programs that play the devices."""

    def __init__(self, bridge: Bridge, wiring: Wiring, reached: Wiring, faults: Faults, seed: int) -> None:
        super().__init__(daemon=True)
        self.bridge, self.devices = bridge, wiring.device
        self.places = [("127.0.0.1", device.port) for device in reached.device]
        self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in self.places]
        self.host = (HOST_MAC, HOST_IP)
        macs = [*(str(device.mac) for device in self.devices), HOST_MAC]
        ports = {int.from_bytes(mac_of(mac), "big"): port for port, mac in enumerate(macs)}
        self.switch = EthernetSwitch(ports=ports, latency=50, faults=faults, seed=seed)
        self.fault = ""

    def run(self) -> None:
        try:
            cycle, frames = 0, list[tuple[int, bytes]]()
            while (answer := self.bridge.exchange(cycle, frames)) is not None:
                cycle, entering = answer
                for when, frame in entering:
                    self.switch.enter(len(self.devices), frame, when)
                self._from_devices(cycle)
                frames = [(cycle, frame) for frame in self._leaving(cycle)]
                threading.Event().wait(0.0005)
        except BaseException as error:
            self.fault = repr(error)

    def _from_devices(self, cycle: int) -> None:
        for port, (device, opened) in enumerate(zip(self.devices, self.sockets, strict=True)):
            while True:
                try:
                    data = opened.recv(65536, socket.MSG_DONTWAIT)
                except OSError:
                    break
                self.switch.enter(port, header((str(device.mac), str(device.ip)), self.host, len(data)) + data, cycle)

    def _leaving(self, cycle: int) -> Iterator[bytes]:
        for port, frame in self.switch.leave(cycle):
            if port == len(self.devices):
                yield frame
                continue
            device = self.devices[port]
            # what the network has changed a device would drop
            if frame[:42] == header(self.host, (str(device.mac), str(device.ip)), len(frame) - 42):
                self.sockets[port].sendto(frame[42:], self.places[port])


@contextmanager
def bridged(reached: Wiring, faults: Faults, seed: int) -> Iterator[tuple[Bridge, SoftDevices]]:
    """A bridge to the devices of a wiring, by their programs."""
    wiring = with_addresses(reached)
    bridge = Bridge(wiring, ("127.0.0.1", 0))
    devices = SoftDevices(bridge, wiring, reached, faults, seed)
    devices.start()
    try:
        yield bridge, devices
    finally:
        bridge.stop()
        devices.join(LIMIT)
        bridge.close()
        for opened in devices.sockets:
            opened.close()
    assert not devices.fault


@pytest.mark.parametrize("faults", [Faults(), Faults(loss=0.03, duplicate=0.03, reorder=0.03, corrupt=0.03)])
def test_a_cluster_is_trained_through_the_port_of_a_switch(tmp_path: Path, faults: Faults) -> None:
    graph, seed = small_net(1), 5
    wiring = wiring_of(graph)
    fresh = counts_of(Executor(graph), wiring)

    async def train(bridge: Bridge) -> list[float]:
        async with Cluster(with_addresses(wiring), graph, Settings(gateway=bridge.bound)) as cluster:
            losses = await train_all(cluster, range(6), every=2)
            assert await cluster.save_state(tmp_path / "state.npz") == 6
        return losses

    with played(wiring, tmp_path) as reached, bridged(reached, faults, seed) as (bridge, devices):
        losses = asyncio.run(asyncio.wait_for(train(bridge), LIMIT))
        befell = sum(devices.switch.counts.values(), Counter[str]())
        assert bridge.entered > 20
        assert bridge.left > 20
    assert losses == expected_losses(graph, range(6), fresh), f"seed {seed}"
    if faults.loss:
        assert all(befell[what] for what in ("lost", "doubled", "reordered", "corrupted")), befell
    else:
        assert not bridge.drops


def test_a_host_that_shares_no_code_trains_a_batch(tmp_path: Path) -> None:
    """`tests/ethernet_host.py`: state, a batch and RUN go to the devices, and records come back."""
    graph, seed = small_net(), 6
    wiring = wiring_of(graph)
    fresh = counts_of(Executor(graph), wiring)
    faults = Faults(loss=0.02, duplicate=0.02, reorder=0.02, corrupt=0.02)
    with played(wiring, tmp_path) as reached, bridged(reached, faults, seed) as (bridge, _):
        came = hosted(wiring, work_of(graph, wiring, feeds_of(graph, 0)), bridge.bound, tmp_path)
    losses = [word & 2**15 - 1 for word in came[wiring.only("result").number]]
    form = graph.by_name[host_ports(graph)[2]].layer.sinks[0].tensor.fixed
    assert form.decode(np.array(losses)).mean() == expected_losses(graph, [0], fresh)[0], f"seed {seed}"


def test_a_bridge_passes_only_what_is_of_the_cluster() -> None:
    wiring = with_addresses(wiring_of(small_net()))
    bridge = Bridge(wiring, ("127.0.0.1", 0))
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("127.0.0.1", 0))
    opened.settimeout(1)
    device = wiring.device[1]
    there = (str(device.mac), str(device.ip))
    # an ACK from the host to device 1, and one from there, by hand
    to = _ack(0xFFFF, 1)
    back = _ack(1, 0xFFFF)
    for bad in (b"", b"x" * 100, to + b"\0", to[:-1] + b"\0", _ack(0xFFFF, 7), _ack(1, 0xFFFF)):
        opened.sendto(bad, bridge.bound)
    assert bridge.exchange(0, []) == (64, [])
    assert bridge.place is None
    assert bridge.drops == Counter({Drop.SHORT: 1, Drop.VERSION: 1, Drop.LENGTH: 1, Drop.CRC: 1, Drop.ADDRESS: 2})
    opened.sendto(to, bridge.bound)
    assert bridge.exchange(64, []) == (128, [(64, header((HOST_MAC, HOST_IP), there, len(to)) + to)])
    right = header(there, (HOST_MAC, HOST_IP), len(back)) + back
    wrong = [right[:40], right[:24] + b"\0\0" + right[26:], right + b"\0", header(there, there, len(back)) + back]
    assert bridge.exchange(128, [(100, frame) for frame in (*wrong, right)]) == (192, [])
    assert opened.recv(4096) == back
    assert bridge.drops - Counter({Drop.VERSION: 1, Drop.CRC: 1}) == Counter(
        {Drop.SHORT: 2, Drop.LENGTH: 2, Drop.ADDRESS: 3, Drop.CHECKSUM: 1}
    )
    bridge.stop()
    assert bridge.exchange(192, []) is None
    opened.close()
    bridge.close()


def _ack(source: int, target: int) -> bytes:
    """An ACK of epoch 5 from DTL on."""
    body = struct.pack(">BBHHHIIHI", 0x12, 0, source, target, 5, 0, 0, 0, 0x0BADCAFE)
    crc = 0xFFFFFFFF
    for byte in body:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return body + struct.pack(">I", crc ^ 0xFFFFFFFF)


def test_what_a_bridge_cannot_use_is_said() -> None:
    wiring = wiring_of(small_net())
    with pytest.raises(WiringError) as lacking:
        Bridge(wiring, ("127.0.0.1", 0))
    for said in ("[host] has no mac", "device fpga-0 has no mac", "device fpga-1 has no mac", "emit again"):
        assert said in str(lacking.value)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(LinkFault, match=r"is in use; end the other program, or choose another with --port"):
            Bridge(with_addresses(wiring), taken.getsockname())
