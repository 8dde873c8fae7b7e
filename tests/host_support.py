"""A cluster of devices that a program plays (`tests/ethernet_peer.py`), and a network that loses between it and us."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dagtrain.emission.state import links_of, load_records
from dagtrain.flow.placed import load_placed_graph, load_plan
from dagtrain.flow.workspace import Workspace
from dagtrain.graph.builder import GraphBuilder
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph, Role
from dagtrain.host.cluster import Cluster, Feeds
from dagtrain.host.wiring import DeviceTable, HostTable, LinkTable, StreamTable, Wiring, wiring_text
from dagtrain.passes.access_state import access_state
from dagtrain.passes.autodiff import differentiate
from dagtrain.passes.calibrate import calibrate
from dagtrain.passes.insert_forks import insert_forks
from dagtrain.planning.choices import folded_graph
from dagtrain.training.feeds import host_ports, synthetic_feeds
from hdl.engine.weights.records import Kind, Record, words_of
from hdl.recipe import Recipe
from hdl.simulate.models.ethernet import EthernetSwitch, Faults

PEER = Path(__file__).parent / "ethernet_peer.py"
HOST_PEER = PEER.with_name("ethernet_host.py")
BATCH = 2


def small_net(staleness: int = 0) -> Graph:
    """A streaming graph whose state can be loaded."""
    builder = GraphBuilder("small", Recipe(batch=BATCH, staleness=staleness), seed=3)
    x = builder.relu(builder.bias(builder.conv(builder.input(4, 4, 1), 2, 3, padding=1)))
    training = differentiate(builder.classify(builder.gemm(builder.global_average_pool(x), 3)))
    return insert_forks(calibrate(training, [synthetic_feeds(training, BATCH, seed) for seed in range(2)]))


def wiring_of(graph: Graph, *, word_bits: int = 64, mtu: int = 1500, key: str | None = None) -> Wiring:
    """Two devices with state of some nodes each, the first one with images, labels and results."""
    image, label, output = (graph.by_name[name].layer for name in host_ports(graph))
    updates = [node for node in graph.nodes if node.role is Role.UPDATE]
    devices, streams = [], []
    for number, nodes in enumerate((updates[:-1], updates[-1:])):
        links = tuple(LinkTable(node=link.node, words=link.words) for link in links_of(nodes, graph))
        name = f"fpga-{number}"
        devices.append(DeviceTable(name=name, number=number, ip="127.0.0.1", link=links))
        streams += [StreamTable(number=10 + 2 * number, device=name, carries="load", credits=16)]
        streams += [StreamTable(number=11 + 2 * number, device=name, carries="dump", credits=24)]
    for number, carries, port in (
        (1, "image", image.sources[0]),
        (2, "label", label.sources[0]),
        (3, "result", output.sinks[0]),
    ):
        bits, elements = port.tensor.fixed.width, port.elements
        streams.append(
            StreamTable(
                number=number, device="fpga-0", carries=carries, credits=16, element_bits=bits, elements=elements
            )
        )
    return Wiring(
        schema_version=1,
        digest="0badcafe",
        word_bits=word_bits,
        mtu=mtu,
        key=key,
        batch=graph.recipe.batch,
        rounds=2 if graph.recipe.staleness else 1,
        host=HostTable(ip="127.0.0.1", port=0),
        device=tuple(devices),
        stream=tuple(streams),
    )


def work_of(graph: Graph, wiring: Wiring, feeds: Feeds, batches: int = 1) -> dict[str, Any]:
    """What `tests/ethernet_host.py` is to send and to wait for, so that a cluster trains a batch from the beginning."""
    executor, send, ends = Executor(graph), {}, {}
    for device in wiring.device:
        for stream in wiring.streams_of(device.name, ("load",)):
            records = [*load_records(executor, device.links), Record(Kind.RUN, (batches,))]
            send[stream.number], ends[stream.number] = [f"{word:x}" for word in words_of(records)], 0
    image, label, _ = host_ports(graph)
    for carries, name in (("image", image), ("label", label)):
        stream = wiring.only(carries)
        bits, per = stream.element_bits, wiring.word_bits // stream.element_bits
        codes = graph.by_name[name].layer.sources[0].tensor.fixed.encode(feeds[name]).reshape(-1, stream.elements)
        words = []
        for row in codes:
            masked = [int(code) & (1 << bits) - 1 for code in row]
            for at in range(0, len(masked), per):
                words.append(sum(code << bits * place for place, code in enumerate(masked[at : at + per])))
        send[stream.number], ends[stream.number] = [f"{word:x}" for word in words], -(-stream.elements // per)
    return {"send": send, "ends": ends, "want": {wiring.only("result").number: graph.recipe.batch}}


def hosted(wiring: Wiring, work: dict[str, Any], gateway: tuple[str, int], folder: Path) -> dict[int, list[int]]:
    """Words that came to `tests/ethernet_host.py`, by stream."""
    (folder / "hosted.toml").write_text(wiring_text(wiring))
    (folder / "work.json").write_text(json.dumps(work))
    words = [folder / "hosted.toml", f"{gateway[0]}:{gateway[1]}", folder / "work.json"]
    run = subprocess.run([sys.executable, HOST_PEER, *words], capture_output=True, text=True, timeout=180, check=False)
    assert run.returncode == 0, run.stderr
    return {int(number): [int(word, 16) for word in words] for number, words in json.loads(run.stdout).items()}


def feeds_of(graph: Graph, batch: int) -> Feeds:
    """The frames of a batch, by its number."""
    return synthetic_feeds(graph, BATCH, 100 + batch)


@contextmanager
def played(wiring: Wiring, folder: Path, *options: str) -> Iterator[Wiring]:
    """The wiring with the ports of programs that play its devices."""
    file = folder / "addresses.toml"
    file.write_text(wiring_text(wiring))
    running = [
        subprocess.Popen(
            [sys.executable, str(PEER), str(file), str(device.number), *options], stdout=subprocess.PIPE, text=True
        )
        for device in wiring.device
    ]
    try:
        ports = [int((program.stdout or sys.stdin).readline()) for program in running]
        devices = [device.model_copy(update={"port": port}) for device, port in zip(wiring.device, ports, strict=True)]
        found = wiring.model_copy(update={"device": tuple(devices)})
        file.write_text(wiring_text(found))
        yield found
        assert all(program.poll() is None for program in running), "a device has stopped"
    finally:
        for program in running:
            program.kill()
            program.wait()
            assert program.stdout is not None
            program.stdout.close()


@contextmanager
def driven(workspace: Workspace, folder: Path, *options: str) -> Iterator[Path]:
    """Programs that play the devices of a plan, and the file by which `dagtrain drive` finds them."""
    graph = access_state(folded_graph(load_placed_graph(workspace), load_plan(workspace)))
    with played(wiring_of(graph), folder, *options):
        yield folder / "addresses.toml"


class Relay(asyncio.DatagramProtocol):
    """A network between the host and a device that does to frames what the switch model decides."""

    def __init__(self, switch: EthernetSwitch, device: tuple[str, int]) -> None:
        self.switch, self.device = switch, device
        self.host: tuple[str, int] | None = None
        self.now = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        from_device = addr == self.device
        if not from_device:
            self.host = addr
        # the switch reads an address; a millisecond is a hundred of its cycles
        self.switch.enter(int(from_device), (0 if from_device else 1).to_bytes(6, "big") + data, self.now)
        self.tick()

    def tick(self) -> None:
        """What leaves the network now."""
        self.now += 10
        for port, data in self.switch.leave(self.now):
            place = self.device if port else self.host
            if place is not None:
                self.transport.sendto(data[6:], place)


@dataclass
class Lossy:
    """Relays to all devices of a wiring."""

    wiring: Wiring
    relays: Sequence[Relay]
    task: asyncio.Task[None]

    def close(self) -> None:
        """No more frames pass."""
        self.task.cancel()
        for relay in self.relays:
            relay.transport.close()

    @property
    def faults(self) -> Counter[str]:
        """What befell frames."""
        counts = [count for relay in self.relays for count in relay.switch.counts.values()]
        return sum(counts, Counter[str]())


async def lossy(wiring: Wiring, faults: Faults, seed: int) -> Lossy:
    """A network of seeded faults in front of every device; addresses of the wiring are its own."""
    loop, devices, relays = asyncio.get_running_loop(), [], []
    for device in wiring.device:
        switch = EthernetSwitch(ports={0: 0, 1: 1}, latency=5, faults=faults, seed=seed + device.number)
        relay = Relay(switch, device.place)
        transport, _ = await loop.create_datagram_endpoint(lambda relay=relay: relay, ("127.0.0.1", 0))
        relays.append(relay)
        devices.append(device.model_copy(update={"port": transport.get_extra_info("sockname")[1]}))

    async def ticks() -> None:
        while True:
            await asyncio.sleep(0.001)
            for relay in relays:
                relay.tick()

    return Lossy(wiring.model_copy(update={"device": tuple(devices)}), relays, asyncio.create_task(ticks()))


def expected_losses(graph: Graph, batches: Sequence[int], counts: Sequence[int]) -> list[float]:
    """Mean losses by the rule of the devices, where the nodes of the first one have counted so much."""
    image, label, output = host_ports(graph)
    form = graph.by_name[output].layer.sinks[0].tensor.fixed
    code = graph.by_name[image].layer.sources[0].tensor.fixed
    found, counted = [], list(counts)
    for batch in batches:
        feeds = feeds_of(graph, batch)
        sums = [int((row & (1 << code.width) - 1).sum()) for row in code.encode(feeds[image]).reshape(BATCH, -1)]
        labels = np.asarray(feeds[label]).reshape(-1).astype(int)
        losses = [(total + int(name) + sum(counted)) % 2**15 for total, name in zip(sums, labels, strict=True)]
        found.append(float(form.decode(np.array(losses)).mean()))
        counted = [(count + sum(sums)) % 256 for count in counted]
    return found


def counts_of(executor: Executor, wiring: Wiring) -> list[int]:
    """What the nodes of the first device have counted."""
    graph = executor.graph
    nodes = [graph.by_name[link.node] for link in wiring.device[0].links]
    return [node.layer.state_words(executor.states[node.name])[0] & 255 for node in nodes]


async def train_all(cluster: Cluster, batches: Sequence[int], every: int = 0) -> list[float]:
    """Losses of batches."""
    graph = cluster.emulator.graph
    return [done.metrics.loss async for done in cluster.train((feeds_of(graph, n) for n in batches), every)]
