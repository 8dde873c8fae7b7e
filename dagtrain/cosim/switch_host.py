"""The host of a co-simulation over Ethernet: `dagtrain.host.Cluster` at its port of the switch.

It is the program that drives boards, in cycles of the cluster instead of microseconds, and frames instead of a socket,
so that a run depends on the seed alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dagtrain.cosim.network import Stamped
from dagtrain.cosim.parts import Bench
from dagtrain.cosim.simulator import StuckError
from dagtrain.emission.delivered import Delivered
from dagtrain.emission.ethernet import FIRST_EPOCH
from dagtrain.emission.manifest import COMMAND, DeliveryError, EthernetRecord
from dagtrain.emission.state import differences, held
from dagtrain.graph.executor import Executor
from dagtrain.graph.ir import Graph
from dagtrain.host.bridge import addresses_of
from dagtrain.host.cluster import Cluster, Feeds
from dagtrain.host.connection import Settings
from dagtrain.host.endpoint import DeviceReset, Endpoint, Pair, Pairs, Place
from dagtrain.host.wiring import ADDRESSES, Wiring, read_wiring
from dagtrain.passes.access_state import access_state
from hdl.convert.images import write_image
from hdl.fixed import IntArray
from hdl.layers.beats import pack
from hdl.link.ethernet.frame import DTL_START, HOST, Address, Drop, Dropped, Frame, ends_of
from hdl.link.ethernet.protocol import Rules

# cycles between two exchanges with the bench
LOOK_AHEAD = 100
# timers of devices within which all that is on its way has been heard
REST_TIMERS = 3
# of the loop's seconds
CYCLES_PER_S = 10**6
# to which devices are reset first: later than that of devices that nobody has reset
FIRST_RESET = 1


class _CycleLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a cycle that it is told: it runs until nothing is left to do in it."""

    def __init__(self) -> None:
        super().__init__()
        self.cycle = 0
        # what a loop asks for what has come from outside: nothing does
        self._selector = self

    def time(self) -> float:
        """Now."""
        return self.cycle / CYCLES_PER_S

    def run_in(self, cycle: int) -> None:
        """All that there is to do in a cycle."""
        self.cycle = cycle
        self.run_forever()

    def select(self, timeout: float | None) -> Sequence[Any]:
        """A loop that would wait has done all."""
        if timeout != 0:
            self.stop()
        return ()

    def _process_events(self, event_list: Sequence[Any]) -> None:
        assert not event_list


class _CyclePair(Pair):
    """A pair whose timer is that of devices."""

    def timed_rules(self) -> Rules:
        """See the base class."""
        return self.rules


class _SwitchEnd(Endpoint):
    """An end whose frames pass a port of the switch."""

    def __init__(self, wiring: Wiring, epoch: int, pairs: Pairs, loop: _CycleLoop) -> None:
        self._loop = loop
        self._host, self._devices = addresses_of(wiring)
        self._places = {self._devices[device.number]: device.place for device in wiring.device}
        self.leaving: list[bytes] = []
        self._opened = False
        super().__init__(HOST, wiring.form, epoch, pairs)

    def open(self, bind: Place) -> Place:
        """See the base class."""
        self._opened = True
        self.work()
        return bind

    def close(self) -> None:
        """Devices are answered until the bench has ended."""

    @property
    def is_open(self) -> bool:
        """See the base class."""
        return self._opened

    def now(self) -> int:
        """See the base class."""
        return self._loop.cycle

    def arrived(self, data: bytes, now: int) -> None:
        """A frame, whose addresses are those that its sender has, or it is dropped."""
        try:
            self.form.parse(data)
            source, target = ends_of(data)
            if target != self._host:
                raise Dropped(Drop.ADDRESS, f"to {target}")
        except Dropped as dropped:
            self.drops[dropped.cause] += 1
            return
        self.hear(data[DTL_START:], self._places.get(source, ("", 0)), now)

    def _send(self, pair: Pair, frame: Frame) -> None:
        self.leaving.append(self.form.build(frame, self._host, self._devices[pair.peer.other]))


class _SwitchCluster(Cluster):
    """A cluster whose host is at a port of the switch.

    One that begins with its images is not reset: they are read once."""

    pair = _CyclePair

    def __init__(self, wiring: Wiring, graph: Graph, port: EthernetRecord, loop: _CycleLoop) -> None:
        self._port, self._loop = port, loop
        self.loads = any(stream.carries == "load" for stream in wiring.stream)
        super().__init__(wiring, graph, Settings(bind=("", 0), epoch=FIRST_RESET if self.loads else FIRST_EPOCH))

    def check(self, graph: Graph) -> None:
        """See the base class; images were compared with the graph."""
        if self.loads:
            super().check(graph)

    def end(self, epoch: int) -> Endpoint:
        """See the base class."""
        return _SwitchEnd(self.wiring, epoch, self._pairs, self._loop)

    def rules(self) -> Rules:
        """See the base class."""
        return replace(super().rules(), timer_cycles=self._port.timer_cycles, ack_cycles=self._port.ack_cycles)

    async def _connect(self, first: int) -> None:
        if self.loads:
            await super()._connect(first)


class NetworkHost:
    """Trains on batches; a `dagtrain.cosim.network.SwitchHost`.

    ``graph`` is the folded one, ``every``: state is kept behind every so many batches, 0: behind the last alone.
    Where a device begins anew, all do, from the state that was kept last.  Raises `LinkFault` where a device breaks a
    rule of a stream or is lost.

    ``stuck_cycles``: it ends the run, a little after it has all, and raises `StuckError` where no batch comes in so
    many; 0: the bench does both."""

    def __init__(
        self, delivered: Delivered, graph: Graph, feeds: Sequence[Feeds], every: int = 0, stuck_cycles: int = 0
    ) -> None:
        wiring, self._feeds, self._every, self._stuck = wiring_of(delivered), feeds, every, stuck_cycles
        stands = any(node.layer.is_link for node in graph.nodes)
        if not stands and any(device.manifest.state for device in delivered.devices):
            graph = access_state(graph)
        self._loop = _CycleLoop()
        first = next(device.manifest.ethernet for device in delivered.devices if device.manifest.ethernet)
        self._cluster = _SwitchCluster(wiring, graph, first, self._loop)
        end = self._cluster._endpoint
        assert isinstance(end, _SwitchEnd)
        self._end = end
        # of each batch; those that gave something else when they were trained again
        self._records: dict[int, IntArray] = {}
        self.repeated: list[str] = []
        # how often a device began anew; the cycle in which something came last
        self.resets = self._moved = 0
        self._rest_cycles = REST_TIMERS * first.timer_cycles
        self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        cluster, tried = self._cluster, -1
        async with cluster:
            await cluster.load_state()
            while True:
                try:
                    await self._train()
                    return
                except DeviceReset:
                    if tried == len(self._records):
                        raise
                    tried = len(self._records)
                self.resets += 1
                await cluster.begin_anew()

    async def _train(self) -> None:
        cluster = self._cluster
        async for done in cluster.train(self._feeds[cluster.batches :], self._every):
            before = self._records.setdefault(done.batch, done.records)
            if not np.array_equal(before, done.records):
                self.repeated.append(f"batch {done.batch} gave other losses when it was trained again")
            self._moved = self._loop.cycle
        if cluster.loads:
            await cluster.take_state()
        self._moved = self._loop.cycle

    # -------------------------------------------------------------------------------------------- at the switch

    @property
    def done(self) -> bool:
        """See `SwitchHost`."""
        return self._task.done()

    def exchange(self, cycle: int, frames: Sequence[Stamped]) -> tuple[int, Sequence[Stamped]] | None:
        """See `SwitchHost`."""
        self._loop.cycle = cycle
        for came, data in frames:
            self._end.arrived(data, came)
        self._loop.call_soon(self._end.work)
        self._loop.run_in(cycle)
        leaving, self._end.leaving = self._end.leaving, []
        still = cycle - self._moved
        if self._task.done():
            self._task.result()
            if self._stuck and still > self._rest_cycles:
                return None
        elif self._stuck and still > self._stuck:
            raise StuckError(f"nothing came to the host from cycle {self._moved:,} to {cycle:,}")
        return cycle + LOOK_AHEAD, [(cycle, frame) for frame in leaving]

    def close(self) -> None:
        """The bench has ended."""
        self._task.cancel()
        self._loop.run_in(self._loop.cycle)
        self._loop.close()

    # -------------------------------------------------------------------------------------------- what it got

    @property
    def dropped(self) -> dict[str, int]:
        """Frames that it did not hear, by cause."""
        found = Counter(self._end.drops)
        for pair in self._end.pairs.values():
            found.update(pair.drops)
        return {cause.value: count for cause, count in found.items()}

    @property
    def records(self) -> IntArray:
        """Numbers of all frames, in their order."""
        return np.concatenate([self._records[batch] for batch in sorted(self._records)])

    def write_results(self, bench: Bench, folder: Path) -> None:
        """The file of beats that a recorder of a bench leaves."""
        cluster = self._cluster
        port = cluster.emulator.graph.by_name[cluster.output].layer.sinks[0]
        codes = self.records & (1 << port.tensor.fixed.width) - 1
        path = folder / bench.recorded[cluster.output].file_name
        write_image(path, pack(codes, port.tensor.fixed.width, port.lanes), port.payload_bits)

    def state_differences(self, golden: Executor) -> tuple[int, list[str]]:
        """Words of state that devices have dumped, and those that an executor has otherwise."""
        if not self._cluster.loads:
            return 0, []
        wanted, found = held(golden), held(self._cluster.emulator.executor)
        return sum(map(len, wanted.words.values())), differences(found, wanted, "the emulator")


def wiring_of(delivered: Delivered) -> Wiring:
    """What a host has to know of delivered devices.  Raises `DeliveryError` where they tell of no such file."""
    for device in delivered.devices:
        for shared in device.manifest.ethernet.files if device.manifest.ethernet else ():
            if Path(shared.file).name == ADDRESSES.name:
                return read_wiring(device.folder / shared.file)
    raise DeliveryError(f"no device was delivered with {ADDRESSES}", f"run `{COMMAND}` again")


def host_of(port: EthernetRecord) -> Address | None:
    """Where the host of a device is, if it speaks over the network."""
    return next((peer.address for peer in port.peers if peer.number == HOST), None)
